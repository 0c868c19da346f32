//! `db`: the store by itself.
use super::{print, print_json, Failure, Outcome};
use crate::store::{repair, Store};
use clap::Subcommand;
use satune_ir::files;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

/// Which store.
#[derive(clap::Args)]
pub(super) struct Which {
    /// File of the store
    #[arg(long, default_value = "satune-out/store.db")]
    store: PathBuf,
}

/// What to do with it.
#[derive(Subcommand)]
pub(super) enum Db {
    /// Look at every page and every row
    Check {
        #[command(flatten)]
        which: Which,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Save every sound row of a damaged store into a new one; the damaged file is kept
    Repair {
        #[command(flatten)]
        which: Which,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write every row as NDJSON
    Export {
        #[command(flatten)]
        which: Which,
        /// File [default: stdout]
        #[arg(long)]
        to: Option<PathBuf>,
    },
    /// Read NDJSON, all of it or nothing
    Import {
        /// File, or - for stdin
        file: PathBuf,
        #[command(flatten)]
        which: Which,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove finished runs, and rows if asked; give the space back
    Gc {
        #[command(flatten)]
        which: Which,
        /// Remove rows older than so many days
        #[arg(long)]
        days: Option<u64>,
        /// Remove rejected candidates, so that they are tried again
        #[arg(long)]
        rejected: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// `db`.
pub(super) fn run(what: &Db) -> Outcome {
    match what {
        Db::Check { which, json } => {
            let health = Store::existing(&which.store)?.check()?;
            if *json {
                print_json(&health)?;
            } else {
                let (runs, open) = health.runs;
                let (rows, measured, predicted) = (health.rows, health.measured, health.predicted);
                let rejected = rows - (measured + predicted).min(rows);
                print(&format!(
                    "{rows} rows ({measured} measured, {predicted} predicted, {rejected} rejected), {runs} runs ({open} unfinished)\n"
                ))?;
                for fault in &health.faults {
                    print(&format!("fault: {fault}\n"))?;
                }
            }
            if health.faults.is_empty() {
                return Ok(());
            }
            let store = which.store.display();
            Err(Failure::Environment(format!(
                "store {store}: {} faults; `satune db repair --store {store}` saves every sound row",
                health.faults.len()
            )))
        }
        Db::Repair { which, json } => {
            let repaired = repair(&which.store)?;
            if *json {
                return print_json(&repaired);
            }
            print(&format!(
                "{} rows saved, {} lost; the old file is {}\n",
                repaired.saved,
                repaired.lost,
                repaired.kept.display()
            ))
        }
        Db::Export { which, to } => export(&Store::existing(&which.store)?, to.as_deref()),
        Db::Import { file, which, json } => {
            let name = file.display().to_string();
            let imported = if name == "-" {
                Store::open(&which.store)?.import(&mut std::io::stdin().lock(), "stdin")?
            } else {
                let input = files::open(file).map_err(|e| Failure::Input(format!("{name}: {e}")))?;
                Store::open(&which.store)?.import(&mut BufReader::new(input), &name)?
            };
            if *json {
                return print_json(&imported);
            }
            print(&format!("{} rows read, {} of them new or better\n", imported.read, imported.written))
        }
        Db::Gc { which, days, rejected, json } => {
            let removed = Store::existing(&which.store)?.gc(*days, *rejected)?;
            if *json {
                return print_json(&serde_json::json!({ "removed": removed }));
            }
            print(&format!("{removed} rows removed\n"))
        }
    }
}

fn export(store: &Store, to: Option<&Path>) -> Outcome {
    let Some(path) = to else {
        let mut text = Vec::new();
        store.export(&mut text)?;
        return print(&String::from_utf8_lossy(&text));
    };
    // Whole or not at all.
    let failed = |e: std::io::Error| Failure::Environment(format!("{}: {e}", path.display()));
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let rows = store.export(&mut file)?;
    file.flush().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    print(&format!("{rows} rows written to {}\n", path.display()))
}
