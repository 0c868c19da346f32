//! `check`, `repair`, `gc`.
use super::{insert, is_ours, now, read, Run, Store, StoreError};
use crate::device::SIMULATED;
use rusqlite::{params, Connection, OpenFlags, TransactionBehavior};
use serde::Serialize;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Rows.
    pub rows: u64,
    /// Of those, measured on a GPU.
    pub measured: u64,
    /// Of those, times that the model predicted where the simulator stood in for a GPU.
    pub predicted: u64,
    /// Runs, and those that did not come to their end.
    pub runs: (u64, u64),
    /// What is wrong; empty for a sound store.
    pub faults: Vec<String>,
}

/// What a repair came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// Rows saved.
    pub saved: u64,
    /// Rows that were there and not sound.
    pub lost: u64,
    /// Where the damaged file is now.
    pub kept: PathBuf,
}

impl Store {
    /// Looks at every page and every row.
    ///
    /// # Errors
    /// When the store cannot be read at all.
    pub fn check(&self) -> Result<Health, StoreError> {
        let c = &self.connection;
        let mut faults = Vec::new();
        let pages = || -> Result<Vec<String>, rusqlite::Error> {
            c.prepare("PRAGMA integrity_check(20)")?.query_map([], |r| r.get(0))?.collect()
        };
        match pages() {
            Ok(said) => faults.extend(said.into_iter().filter(|s| s != "ok")),
            Err(error) => faults.push(error.to_string()),
        }
        let (mut rows, mut measured, mut predicted) = (0, 0, 0);
        let mut each = || -> Result<(), rusqlite::Error> {
            let mut statement = c.prepare("SELECT id, body, digest, outcome, median_ms FROM measurement")?;
            let mut found = statement.query([])?;
            while let Some(r) = found.next()? {
                rows += 1;
                let (id, outcome): (i64, String) = (r.get(0)?, r.get(3)?);
                let timed = u64::from(outcome == "measured");
                match read(&r.get::<_, String>(1)?, &r.get::<_, String>(2)?) {
                    Err(what) => {
                        measured += timed;
                        faults.push(format!("row {id}: {what}"));
                    }
                    Ok(row) if row.verdict.name() != outcome || row.verdict.median_ms() != r.get(4)? => {
                        faults.push(format!("row {id}: its columns are not its text's"));
                    }
                    Ok(row) if row.key.device.starts_with(SIMULATED) => predicted += timed,
                    Ok(_) => measured += timed,
                }
            }
            Ok(())
        };
        if let Err(error) = each() {
            faults.push(error.to_string());
        }
        let runs = c
            .query_row("SELECT count(*), count(*) - count(finished) FROM run", [], |r| {
                Ok((r.get::<_, i64>(0)? as u64, r.get::<_, i64>(1)? as u64))
            })
            .unwrap_or_else(|error| {
                faults.push(error.to_string());
                (0, 0)
            });
        Ok(Health { rows, measured, predicted, runs, faults })
    }

    /// Removes what is older than so many days, the rejected ones if asked (so that they are tried again), and the
    /// finished runs; gives the space back. Returns the number of rows removed.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn gc(&mut self, days: Option<u64>, rejected: bool) -> Result<u64, StoreError> {
        let oldest = days.map_or(0, |d| now().saturating_sub(d.saturating_mul(86_400)));
        let oldest = i64::try_from(oldest).unwrap_or(i64::MAX);
        let (path, busy) = (self.path.clone(), self.busy.as_secs());
        let mut sweep = || -> Result<u64, rusqlite::Error> {
            let t = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let removed = t.execute(
                "DELETE FROM measurement WHERE at < ?1 OR (?2 AND outcome <> 'measured')",
                params![oldest, rejected],
            )?;
            t.execute("DELETE FROM step WHERE run IN (SELECT id FROM run WHERE finished IS NOT NULL)", [])?;
            t.execute("DELETE FROM run WHERE finished IS NOT NULL", [])?;
            t.commit()?;
            self.connection.execute_batch("VACUUM")?;
            Ok(removed as u64)
        };
        sweep().map_err(|e| StoreError::of(&path, busy, &e))
    }
}

/// Saves every sound row and every readable run of a damaged store into a new one under the same name; the damaged file
/// stays beside it. A sound store comes out with the same rows.
///
/// # Errors
/// When the file cannot be copied or replaced. The damaged file is not touched before the new one is complete.
pub fn repair(path: &Path) -> Result<Repaired, StoreError> {
    let failed = |e: std::io::Error| StoreError::Unusable { path: path.into(), reason: e.to_string() };
    let beside = |what: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(what);
        PathBuf::from(name)
    };
    // Newer and foreign files are not ours to repair.
    match Store::existing(path) {
        Err(error @ (StoreError::Newer { .. } | StoreError::Foreign { .. } | StoreError::Busy { .. })) => {
            return Err(error)
        }
        Err(error @ StoreError::Unusable { .. }) if !path.is_file() => return Err(error),
        Err(_) | Ok(_) => {}
    }
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let work = tempfile::tempdir_in(folder).map_err(failed)?;
    let (copy, fresh) = (work.path().join("copy.db"), work.path().join("fresh.db"));
    for suffix in ["", "-wal"] {
        let mut target = copy.clone().into_os_string();
        target.push(suffix);
        if beside(suffix).is_file() {
            std::fs::copy(beside(suffix), PathBuf::from(target)).map_err(failed)?;
        }
    }
    let mut new = Store::open(&fresh)?;
    let mut saved = salvage(&copy, &mut new)?;
    if saved.head_lost {
        // The first page holds the table of tables, which is the same in every store: take a new one's.
        first_page(&copy, work.path()).map_err(failed)?;
        saved = Saved { head_lost: true, ..salvage(&copy, &mut new)? };
    }
    if saved.head_lost && new.is_empty()? && !begins_as_a_database(path) {
        // Nothing says that it ever was a store.
        return Err(StoreError::Foreign { path: path.into() });
    }
    new.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").map_err(|e| new.failed(&e))?;
    let rows = new.len()?;
    drop(new);
    let kept =
        (0..).map(|n: u32| beside(&format!(".damaged{n}"))).find(|p| !p.exists()).unwrap_or_else(|| beside(".damaged"));
    std::fs::copy(path, &kept).map_err(failed)?;
    // The log of the damaged file must not be taken for the new one's.
    for suffix in ["-wal", "-shm"] {
        if beside(suffix).is_file() {
            std::fs::remove_file(beside(suffix)).map_err(failed)?;
        }
    }
    std::fs::rename(&fresh, path).map_err(failed)?;
    Ok(Repaired { saved: rows, lost: saved.lost, kept })
}

struct Saved {
    lost: u64,
    head_lost: bool,
}

/// Copies what is sound. Unreadable pages cost the rows on them: ids are asked for one range after the other, ever
/// smaller where one fails.
fn salvage(from: &Path, into: &mut Store) -> Result<Saved, StoreError> {
    let mut saved = Saved { lost: 0, head_lost: false };
    let Ok(old) = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE) else {
        return Ok(Saved { lost: 0, head_lost: true });
    };
    if !is_ours(&old).unwrap_or(false) {
        saved.head_lost = true;
        return Ok(saved);
    }
    // Where the last row cannot be read, a bound from the size: no row takes less than 64 bytes.
    let bytes = std::fs::metadata(from).map_or(0, |m| m.len());
    let bound = i64::try_from(bytes / 64 + 1024).unwrap_or(i64::MAX);
    let last = old.query_row("SELECT max(id) FROM measurement", [], |r| r.get::<_, Option<i64>>(0));
    let last = last.map_or(bound, |l| l.unwrap_or(0));
    let mut ranges = vec![(1_i64, last)];
    while let Some((low, high)) = ranges.pop() {
        if low > high {
            continue;
        }
        let texts = || -> Result<Vec<(String, String)>, rusqlite::Error> {
            let mut statement =
                old.prepare_cached("SELECT body, digest FROM measurement WHERE id BETWEEN ?1 AND ?2")?;
            let rows = statement.query_map([low, high], |r| Ok((r.get(0)?, r.get(1)?)))?;
            rows.collect()
        };
        match texts() {
            Ok(texts) => {
                let transaction = into.connection.unchecked_transaction().map_err(|e| into.failed(&e))?;
                for (body, digest) in texts {
                    match read(&body, &digest) {
                        Ok(row) => {
                            insert(&transaction, &row).map_err(|e| into.failed(&e))?;
                        }
                        Err(_) => saved.lost += 1,
                    }
                }
                transaction.commit().map_err(|e| into.failed(&e))?;
            }
            Err(_) if low == high => saved.lost += 1,
            Err(_) => {
                let middle = low + (high - low) / 2;
                ranges.push((low, middle));
                ranges.push((middle + 1, high));
            }
        }
    }
    // Runs only serve to resume; those that cannot be read are not worth more than that.
    let runs = || -> Result<Vec<Run>, rusqlite::Error> {
        let mut statement = old.prepare("SELECT id, request, started, finished FROM run")?;
        let rows = statement.query_map([], |r| {
            Ok(Run { id: r.get(0)?, request: r.get(1)?, started: r.get(2)?, finished: r.get(3)? })
        })?;
        rows.collect()
    };
    for Run { id, request, started, finished } in runs().unwrap_or_default() {
        into.connection
            .execute(
                "INSERT OR REPLACE INTO run(id, request, started, finished) VALUES (?1, ?2, ?3, ?4)",
                params![id, request, started, finished],
            )
            .map_err(|e| into.failed(&e))?;
    }
    Ok(saved)
}

/// Whether a file has the mark of SQLite.
fn begins_as_a_database(path: &Path) -> bool {
    let mut mark = [0; 16];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut mark)).is_ok() && mark == *b"SQLite format 3\0"
}

/// Puts the first page of a new store in place of a file's own.
fn first_page(path: &Path, folder: &Path) -> std::io::Result<()> {
    let template = folder.join("template.db");
    Store::open(&template).map_err(std::io::Error::other)?;
    let mut page = vec![0; 4096];
    std::fs::File::open(&template)?.read_exact(&mut page)?;
    // Pages in the file, and the change counter that says that this number holds.
    let pages = u32::try_from(std::fs::metadata(path)?.len() / 4096).unwrap_or(u32::MAX);
    page[28..32].copy_from_slice(&pages.to_be_bytes());
    let counter: [u8; 4] = [page[24], page[25], page[26], page[27]];
    page[92..96].copy_from_slice(&counter);
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&page)?;
    file.sync_all()
}
