//! `bench`: measured times in a table, beside the vendor's library.
use super::devices::{open, open_store, store_path, Choice};
use super::{ask, given, print_json, print_styled, report, table, visible, watch::Watch, Failure, Outcome, Size};
use crate::device::{Ask, DeviceKind};
use crate::execute::Executed;
use crate::explore::{write_whole, Request};
use crate::measure::bench::{bench, regressions, BenchRow, Benchmark, Wanted};
use crate::nvmmh::Beside;
use crate::source::{self, Work};
use clap::ValueEnum;
use satune_extract::Descriptor;
use satune_ir::files;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to compare with.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Rival {
    /// The vendor's library, TF32 off unless the program says tf32; a copy for programs that only stream
    Cublas,
    /// NVIDIA's nvMatmulHeuristics for products on tensor cores: its tile, and its own estimate (scripts/fetch-nvmmh)
    Nvmmh,
}

/// What to measure.
#[derive(clap::Args)]
pub(super) struct Bench {
    /// gemm:M,N,K,dtype[,layout], bmm:B,M,N,K,dtype[,layout], or files with a PrimFunc; any number of them
    programs: Vec<String>,
    /// File with one program per line; `#` begins a comment
    #[arg(long)]
    suite: Option<PathBuf>,
    /// A schedule to measure beside the best of the one program: a file or words, as for `explore --given`
    #[arg(long, value_name = "SCHEDULE")]
    given: Option<String>,
    /// Show beside; both may be named
    #[arg(long, value_enum, value_delimiter = ',')]
    vs: Vec<Rival>,
    /// A GPU by name (see `gpu list`), or a TOML file
    #[arg(long, default_value = "h200")]
    gpu: String,
    #[command(flatten)]
    size: Size,
    /// What candidates run on
    #[arg(long, value_enum, default_value = "auto")]
    device: Choice,
    /// How many candidates of each program are measured
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    top: u32,
    /// Longest time for extraction, seconds
    #[arg(long, default_value_t = 60)]
    time_limit: u64,
    /// Longest time for one candidate on the device, seconds
    #[arg(long, default_value_t = 20)]
    timeout: u64,
    /// Folder for report.html
    #[arg(long, default_value = "satune-out")]
    out: PathBuf,
    /// File that remembers what was measured [default: store.db in the output folder]
    #[arg(long)]
    store: Option<PathBuf>,
    /// An earlier `bench --json`; what is slower than there is a regression (exit code 1)
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// How much slower is a regression, percent
    #[arg(long, default_value_t = 5.0)]
    tolerance: f64,
    /// Outcomes of --device scripted
    #[arg(long, hide = true)]
    script: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// Programs that are named, and those of a suite's file.
pub(super) fn problems(programs: &[String], suite: Option<&Path>) -> Result<Vec<Work>, Failure> {
    let mut names: Vec<(String, String)> = programs.iter().map(|p| (p.clone(), String::new())).collect();
    if let Some(suite) = suite {
        let path = suite.display();
        let text = files::read_text(suite, 1 << 20).map_err(|e| Failure::Input(format!("suite {path}: {e}")))?;
        for (at, line) in text.lines().enumerate() {
            let program = line.split('#').next().unwrap_or("").trim();
            if !program.is_empty() {
                names.push((program.into(), format!("suite {path}, line {}: ", at + 1)));
            }
        }
    }
    if names.is_empty() {
        return Err(Failure::Input("nothing to measure; name a program, or a file of them with --suite".into()));
    }
    names.iter().map(|(p, at)| source::load_work(p).map_err(|e| Failure::Input(format!("{at}{e}")))).collect()
}

/// `bench`.
pub(super) fn run(args: &Bench) -> Outcome {
    let mut problems = problems(&args.programs, args.suite.as_deref())?;
    let gpu = Descriptor::load(&args.gpu).map_err(|e| Failure::Input(e.to_string()))?;
    if let Some(named) = &args.given {
        let [work] = problems.as_mut_slice() else {
            return Err(Failure::Input(format!("--given is of one program, and {} are named", problems.len())));
        };
        given::put_beside(named, work, &gpu, (args.size.fuel(), Duration::from_secs(args.time_limit)))?;
    }
    let before: Option<Benchmark> = match &args.baseline {
        None => None,
        Some(path) => {
            let wrong = |e: String| Failure::Input(format!("baseline {}: {e}", path.display()));
            let text = files::read_text(path, 64 << 20).map_err(|e| wrong(e.to_string()))?;
            Some(serde_json::from_str(&text).map_err(|e| wrong(format!("not what `bench --json` prints: {e}")))?)
        }
    };
    let mut device = open(args.device, &gpu, args.script.as_deref())?
        .ok_or_else(|| Failure::Input("--device none measures nothing; choose simulator or cuda".into()))?;
    let mut store = open_store(&store_path(args.store.as_deref(), &args.out))?;
    let request = Request {
        gpu,
        top: args.top as usize,
        twins: false,
        limit: Duration::from_secs(args.time_limit),
        compile: false,
        fuel: args.size.fuel(),
    };
    let ask = Ask { timeout: Duration::from_secs(args.timeout.max(1)), ..Ask::default() };
    let wanted = Wanted { request, library: args.vs.contains(&Rival::Cublas), ask };
    let choices = match args.vs.contains(&Rival::Nvmmh) {
        true => {
            let products: Vec<&Work> = problems.iter().filter(|work| ask::is_product(work)).collect();
            let found = ask::heuristic(ask::VS, &products, &wanted.request.gpu)?;
            products.into_iter().zip(found).collect()
        }
        false => Vec::new(),
    };
    let watch = Watch::new();
    // A run that is killed leaves the rows that it had.
    let mut unwritten = None;
    let mut so_far = |result: &Benchmark| {
        let text = serde_json::to_string_pretty(result).map_err(|e| e.to_string());
        let written = text.and_then(|t| write_whole(&args.out, "bench.json", &t).map_err(|e| e.to_string()));
        unwritten = written.err();
    };
    let mut result = bench(&problems, &wanted, &mut *device, &mut store, &watch, &mut so_far)?;
    for (work, choice) in &choices {
        let name = work.workload().name();
        let Some(row) = result.rows.iter_mut().find(|row| row.program == name) else { continue };
        let within = (wanted.request.fuel, wanted.request.limit);
        row.nvmmh = Some(Box::new(ask::beside(work, &wanted.request.gpu, choice, within)?));
    }
    let interrupted = watch.finish();
    let page_notes = [notes(&result), rivals(&result), texts(&result)].concat();
    report::write_bench(&result, &problems, &wanted.request.gpu, &page_notes, &args.out)?;
    if args.json {
        print_json(&result)?;
    } else {
        print_styled(&text(&result))?;
    }
    if let Some(reason) = unwritten {
        return Err(Failure::Environment(reason));
    }
    if interrupted {
        return Err(Failure::Interrupted);
    }
    if let Some(last) = result.failed.last() {
        let list: Vec<String> = result.failed.iter().map(|f| format!("{}: {}", f.program, f.reason)).collect();
        let said = format!("{} of {} programs have no result:\n{}", list.len(), problems.len(), list.join("\n"));
        return Err(match result.lost {
            true => Failure::Environment(format!("{said}\nwhat stands behind {} was not tried", last.program)),
            false => Failure::Nothing(said),
        });
    }
    if let Some(before) = before {
        if before.device != result.device {
            return Err(Failure::Input(format!(
                "the baseline is of another device ({}), this one is {}",
                before.device, result.device
            )));
        }
        let slower = regressions(&result, &before, args.tolerance / 100.0);
        if !slower.is_empty() {
            return Err(Failure::Nothing(format!("slower than the baseline:\n{}", slower.join("\n"))));
        }
    }
    Ok(())
}

/// A program's speed in its unit.
fn rate(row: &BenchRow) -> String {
    match row.unit.as_str() {
        "B/s" => format!("{:.0} GB/s", row.rate * 1e-9),
        _ => format!("{:.2} TFLOP/s", row.tflops),
    }
}

/// The conditions of a benchmark, in sentences.
fn notes(result: &Benchmark) -> Vec<String> {
    let mut out =
        vec![format!("{} ({}), predictions by the descriptor {}", result.device, result.toolchain, result.gpu)];
    if result.kind != DeviceKind::Cuda {
        out.push(
            "not measured on a GPU: times are predictions of the model, results were checked in the simulator".into(),
        );
    }
    if let Some(c) = result.ceilings {
        let matrix = c.matrix_tflops.map_or("no cuBLAS".into(), |t| format!("{t:.1} TFLOP/s"));
        out.push(format!(
            "ceilings measured in this run: copy {:.0} GB/s, multiply-adds {:.1} TFLOP/s, f16 matrix products {matrix}",
            c.copy_gbs, c.fma_tflops
        ));
    }
    out
}

/// What rows were compared with, where that is not plain cuBLAS, in sentences.
fn rivals(result: &Benchmark) -> Vec<String> {
    let of = |row: &BenchRow| {
        let what = row.library.as_deref().unwrap_or("cuBLAS");
        match (&row.library_missing, row.library_whole) {
            (Some(why), _) => Some(format!("{}: {what} not measured: {why}", row.program)),
            (None, true) if what == "cuBLAS" => None,
            (None, true) => Some(format!("{}: beside {what}", row.program)),
            (None, false) => Some(format!("{}: beside {what}, which computes less", row.program)),
        }
    };
    let heuristic = |row: &BenchRow| row.nvmmh.as_ref().map(|beside| format!("{}: {}", row.program, beside.text()));
    let given = |row: &BenchRow| row.given.as_ref().map(|given| format!("{}: {given}", row.program));
    result.rows.iter().flat_map(|row| [of(row), heuristic(row), given(row)]).flatten().collect()
}

fn text(result: &Benchmark) -> String {
    let simulated = result.kind != DeviceKind::Cuda;
    let lines = |notes: Vec<String>| visible(&notes.iter().map(|note| format!("{note}\n")).collect::<String>());
    let mut out = lines(notes(result));
    let time = if simulated { "ms (predicted)" } else { "ms" };
    let mut header =
        vec!["program", time, "spread", "rate", "of peak", "predicted ms", "model's first", "library ms", "vs library"];
    let heuristic = result.rows.iter().any(|row| row.nvmmh.is_some());
    let executed = result.rows.iter().any(|row| row.executed.is_some());
    header.extend(executed.then_some("ran"));
    // Its own estimate, and what the model predicts for its tile.
    header.extend(heuristic.then_some(["nvMMH's ms", "its tile ms"]).into_iter().flatten());
    let mut rows = table::table(&header);
    let dash = || "-".to_string();
    for r in &result.rows {
        let mut cells = vec![
            visible(&r.program),
            format!("{:.4}", r.ms),
            format!("{:.1}%", 100.0 * r.spread),
            rate(r),
            format!("{:.0}%", 100.0 * r.fraction_of_peak),
            format!("{:.4}", r.predicted_ms),
            r.first_ms.map_or_else(dash, |ms| format!("{:.2}x", r.ms / ms)),
            r.library_ms.map_or_else(dash, |ms| format!("{ms:.4}")),
            r.ratio.map_or_else(dash, |ratio| format!("{ratio:.2}x")),
        ];
        if executed {
            cells.push(r.executed.as_ref().map_or_else(dash, Executed::word));
        }
        if heuristic {
            let of = |ms: fn(&Beside) -> Option<f64>| r.nvmmh.as_deref().and_then(ms);
            let cell = |ms: Option<f64>| ms.map_or_else(dash, |ms| format!("{ms:.4}"));
            cells.extend([cell(of(|b| Some(b.choice.estimated_ms))), cell(of(|b| b.predicted_ms))]);
        }
        rows.add_row(cells);
    }
    table::right(&mut rows, &(1..header.len()).collect::<Vec<_>>());
    out.push_str(&table::text(&rows));
    if let Some(mean) = result.mean_ratio {
        out.push_str(&format!("geometric mean: {mean:.3}x the library, where it computes the same\n"));
    }
    out + &lines([rivals(result), texts(result)].concat())
}

/// What became of the texts before they were measured, where not all is well, in sentences.
fn texts(result: &Benchmark) -> Vec<String> {
    let first = |text: &str| text.lines().next().unwrap_or_default().to_string();
    let of = |row: &BenchRow| {
        let refused = row.bugs.first().map(|bug| {
            format!("{}: {} refused by simulator or execution (a bug): {}", row.program, row.bugs.len(), first(bug))
        });
        let why = row.not_executed.as_ref().filter(|_| result.kind == DeviceKind::Cuda);
        [refused, why.map(|why| format!("{}: text not executed: {}", row.program, first(why)))]
    };
    result.rows.iter().flat_map(of).flatten().collect()
}
