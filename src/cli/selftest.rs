//! `selftest`: each guarantee tried on this machine, without a network: what is promised, what was tried, what came of it.
use super::{print_json, print_styled, table, visible, Failure, Outcome};
use crate::compile::{CompileError, Compiler, Job};
use crate::explore::{self, Request};
use crate::kernel::{Kernel, Stmt};
use crate::operators::{self, Problem};
use crate::progress::Quiet;
use crate::scheduled::{self, Scheduled};
use crate::store::{hash, Key, Row, Store, Timing, Verdict};
use comfy_table::{Cell, Color};
use satune_extract::{best, cost, Counts, Descriptor, Query};
use satune_ir::term::{CoresPlan, Schedule, Space};
use satune_ir::{interp, tvmscript, Program};
use satune_rewrites::replay::replay_strict;
use satune_rewrites::space::{rules, saturate, Fuel, Menu};
use satune_rewrites::{soundness, Call};
use serde::Serialize;
use serde_json::json;
use std::time::{Duration, Instant};

/// What to print.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a trial came to, in words.
enum Tried {
    Held(String),
    Broken(String),
    /// This machine lacks something.
    NotHere(String),
}

#[derive(Serialize)]
struct Answer {
    guarantee: &'static str,
    tried: &'static str,
    /// `held`, `broken` or `not here`.
    verdict: &'static str,
    result: String,
    seconds: f64,
}

/// A product with a cut-off below 0 behind it.
const PROGRAM: &str = r#"
@T.prim_func
def main(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32"), D: T.Buffer((16, 16), "float32")):
    C = T.alloc_buffer((16, 16), "float32")
    for i, j, k in T.grid(16, 16, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(16, 16):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(0))
"#;

type Trial = fn() -> Result<Tried, String>;

/// The guarantees, each with what is tried.
const TRIALS: [(&str, &str, Trial); 10] = [
    ("a legal schedule keeps the meaning", "tile a product and fuse its consumer; both programs by interpreter", legal),
    ("an illegal call is refused", "inline a sum, and sum up in parallel", illegal),
    ("a wrong program is told from its source", "one iteration less, another operand, no init", changed),
    ("the number of schedules is exact", "count against enumeration of a small space", counted),
    ("the best are the best under the model", "search against the cost of every program of that space", extracted),
    ("a ranked kernel computes its program", "simulate the best of four problems against the interpreter", simulated),
    ("a mutated kernel is caught", "leave out each barrier, a block, a row of threads", mutated),
    ("two runs come to the same", "explore one problem twice", repeated),
    ("a damaged row of the store is found", "change a digit of a measured time", damaged),
    ("the CUDA text compiles", "NVRTC on the kernel with barriers", compiled),
];

/// `selftest`.
pub(super) fn run(args: &Args) -> Outcome {
    let mut rows = Vec::new();
    for (guarantee, tried, trial) in TRIALS {
        let start = Instant::now();
        let (verdict, result) = match trial() {
            Ok(Tried::Held(result)) => ("held", result),
            Ok(Tried::NotHere(result)) => ("not here", result),
            Ok(Tried::Broken(result)) | Err(result) => ("broken", result),
        };
        rows.push(Answer { guarantee, tried, verdict, result, seconds: start.elapsed().as_secs_f64() });
    }
    let broken = rows.iter().filter(|r| r.verdict == "broken").count();
    if args.json {
        print_json(&json!({"satune": env!("CARGO_PKG_VERSION"), "held": broken == 0, "trials": rows}))?;
    } else {
        let mut list = table::table(&["guarantee", "tried", "verdict", "result", "s"]);
        for r in &rows {
            let colour = match r.verdict {
                "held" => Color::Green,
                "broken" => Color::Red,
                _ => Color::Yellow,
            };
            list.add_row([
                Cell::new(r.guarantee),
                Cell::new(r.tried),
                Cell::new(r.verdict).fg(colour),
                Cell::new(visible(&r.result)),
                Cell::new(format!("{:.1}", r.seconds)),
            ]);
        }
        [0, 1, 3].into_iter().for_each(|column| table::wrap(&mut list, column));
        print_styled(&table::text(&list))?;
    }
    match broken {
        0 => Ok(()),
        n => Err(Failure::Nothing(format!("{n} of {} guarantees do not hold here: please report this", rows.len()))),
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn judged(good: bool, result: String) -> Result<Tried, String> {
    Ok(if good { Tried::Held(result) } else { Tried::Broken(result) })
}

fn program() -> Result<Program, String> {
    tvmscript::parse(PROGRAM).map_err(words)
}

fn block(name: &str) -> Call {
    Call::new("get_sblock", [json!(name)]).into_name(name.to_lowercase())
}

fn legal() -> Result<Tried, String> {
    let source = program()?;
    let calls: Vec<Call> = serde_json::from_value(json!([
        {"op": "get_sblock", "args": ["C"], "out": "c"},
        {"op": "get_sblock", "args": ["D"], "out": "d"},
        {"op": "get_loops", "args": ["$c"], "out": "l"},
        {"op": "split", "args": ["$l[0]"], "kwargs": {"factors": [4, 4]}, "out": ["x", "y"]},
        {"op": "reverse_compute_at", "args": ["$d", "$x"]}
    ]))
    .map_err(words)?;
    let (results, schedule) = replay_strict(&source, &calls).map_err(|e| e.detail.clone())?;
    if let Some(error) = results.iter().find_map(|r| r.as_ref().err()) {
        return Ok(Tried::Broken(format!("refused: {}", error.detail)));
    }
    for seed in 0..4 {
        if let Err(difference) = interp::equal_on(&source, schedule.program(), seed) {
            return Ok(Tried::Broken(difference.to_string()));
        }
    }
    judged(true, format!("{} calls made, equal bit for bit on 4 inputs", calls.len()))
}

fn illegal() -> Result<Tried, String> {
    let source = program()?;
    let inline = [block("C"), Call::new("compute_inline", [json!("$c")])];
    let loops = Call::new("get_loops", [json!("$c")]).into_name("l".to_string());
    let parallel = [block("C"), loops, Call::new("parallel", [json!("$l[2]")])];
    let mut reasons = Vec::new();
    for calls in [&inline[..], &parallel[..]] {
        let (results, _) = replay_strict(&source, calls).map_err(|e| e.detail.clone())?;
        match results.last() {
            Some(Err(error)) => reasons.push(error.fast.clone()),
            _ => return Ok(Tried::Broken(format!("{} is made", calls.last().map_or("", |c| &c.op)))),
        }
    }
    judged(true, format!("refused: {}", reasons.join("; ")))
}

fn changed() -> Result<Tried, String> {
    let source = program()?;
    let changes = [
        ("T.grid(16, 16, 16)", "T.grid(16, 16, 15)"),
        ("A[vi, vk]", "A[vk, vi]"),
        ("= T.float32(0)\n", "= T.float32(1)\n"),
    ];
    let mut found = 0;
    for (from, to) in changes {
        let other = tvmscript::parse(&PROGRAM.replacen(from, to, 1)).map_err(words)?;
        let differs = interp::equal_on(&source, &other, 7).is_err();
        found += usize::from(differs || soundness::check(&source, &other).is_err());
    }
    judged(found == changes.len(), format!("{found} of {} changes found", changes.len()))
}

/// A space small enough to enumerate.
fn small() -> Result<(Problem, Space), String> {
    let problem = operators::parse("gemm:16,16,16,f64,TN").map_err(words)?;
    let menu = Menu {
        tile_m: vec![8],
        tile_n: vec![8],
        tile_k: vec![4],
        threads: vec![32],
        vthreads: vec![1],
        registers: 4,
        split_k: vec![],
        groups: vec![2],
        async_stages: vec![],
    };
    let limits = explore::limits(&h200()?);
    let space = saturate(&problem.contraction, limits, &menu, &rules::all(), Fuel::default()).map_err(words)?;
    Ok((problem, space))
}

fn h200() -> Result<Descriptor, String> {
    Descriptor::load("h200").map_err(words)
}

fn counted() -> Result<Tried, String> {
    let (_, space) = small()?;
    let (counted, all) = (Counts::of(&space).total(), space.programs(space.root).len());
    judged(counted == all.into(), format!("{counted} counted, {all} enumerated"))
}

fn extracted() -> Result<Tried, String> {
    let ((problem, space), gpu) = (small()?, h200()?);
    let contraction = &problem.contraction;
    let plans = space.programs(space.root);
    let plans = plans.iter().filter_map(|term| CoresPlan::from_term(term, contraction).ok());
    let mut times: Vec<f64> = plans.filter_map(|plan| cost(&plan, contraction, &gpu).ok()).map(|c| c.ms).collect();
    times.sort_by(f64::total_cmp);
    let found =
        best(&space, &gpu, Query { k: 8, diverse: false, limit: Duration::from_secs(60), below_ms: f64::INFINITY });
    let same = found.candidates.iter().zip(&times).all(|(c, ms)| (c.cost.ms - ms).abs() <= 1e-12 * ms);
    let good = found.proved && found.candidates.len() == times.len().min(8) && same;
    judged(good, format!("the {} best are those of all {}", found.candidates.len(), times.len()))
}

/// The best schedules of an operator.
fn explored(operator: &str, top: usize) -> Result<explore::Report, String> {
    let work = crate::source::operator(operator).map_err(words)?;
    let request = Request {
        gpu: h200()?,
        top,
        twins: true,
        limit: Duration::from_secs(60),
        compile: false,
        fuel: satune_rewrites::space::Fuel::default(),
    };
    work.explore_on(&request, None, &Quiet).map_err(words)
}

fn simulated() -> Result<Tried, String> {
    let operators =
        ["gemm:12,20,17,f32", "gemm:16,16,32,f16,NT,out=f16,bias,relu", "softmax:16,200,f32", "transpose:40,24,f32"];
    let mut kernels = 0;
    for operator in operators {
        let report = explored(operator, 4)?;
        if let Some(fault) = report.bugs.first() {
            return Ok(Tried::Broken(format!("{operator}: {fault}")));
        }
        kernels += report.candidates.len();
    }
    judged(kernels >= operators.len(), format!("{kernels} schedules of {} programs are right", operators.len()))
}

/// The kernels of the best schedule of the small space that has a barrier, with its source.
fn kernel() -> Result<(Program, Scheduled), String> {
    let ((problem, space), gpu) = (small()?, h200()?);
    let options = scheduled::options(&gpu);
    let found =
        best(&space, &gpu, Query { k: 500, diverse: false, limit: Duration::from_secs(60), below_ms: f64::INFINITY });
    for candidate in &found.candidates {
        let Schedule::Cores(plan) = &candidate.plan else { continue };
        let made = scheduled::of_plan(&problem.program, plan, &problem.contraction, &options).map_err(words)?;
        if made.module.kernels.iter().any(|kernel| barriers(&kernel.body) > 0) {
            return Ok((problem.program, made));
        }
    }
    Err("no schedule of the product has a barrier".into())
}

fn barriers(body: &[Stmt]) -> usize {
    let inside = |stmt: &Stmt| match stmt {
        Stmt::Barrier => 1,
        Stmt::For { body, .. } => barriers(body),
        _ => 0,
    };
    body.iter().map(inside).sum()
}

/// Leaves the n-th barrier out.
fn without(body: &mut Vec<Stmt>, n: &mut usize) {
    body.retain_mut(|stmt| match stmt {
        Stmt::Barrier => {
            *n = n.wrapping_sub(1);
            *n != usize::MAX
        }
        Stmt::For { body, .. } => {
            without(body, n);
            true
        }
        _ => true,
    });
}

fn mutated() -> Result<Tried, String> {
    let (source, made) = kernel()?;
    scheduled::check(&source, &made, 1).map_err(words)?;
    let mut mutants: Vec<Scheduled> = Vec::new();
    let mut mutant = |change: &dyn Fn(&mut Kernel)| {
        let mut other = made.clone();
        if let Some(kernel) = other.module.kernels.first_mut() {
            change(kernel);
            mutants.push(other);
        }
    };
    let count = made.module.kernels.first().map_or(0, |kernel| barriers(&kernel.body));
    for n in 0..count {
        mutant(&|kernel| without(&mut kernel.body, &mut n.clone()));
    }
    mutant(&|kernel| {
        if let Some(extent) = kernel.grid.iter_mut().find(|extent| **extent > 1) {
            *extent -= 1;
        } else {
            kernel.body.truncate(kernel.body.len() / 2);
        }
    });
    mutant(&|kernel| {
        kernel.body.pop();
    });
    let found = mutants.iter().filter(|other| scheduled::check(&source, other, 1).is_err()).count();
    judged(
        found == mutants.len(),
        format!("{found} of {} mutants caught, {count} of them without a barrier", mutants.len()),
    )
}

fn repeated() -> Result<Tried, String> {
    let ids = |report: &explore::Report| report.candidates.iter().map(|c| c.id.clone()).collect::<Vec<_>>();
    let (first, second) = (explored("gemm:12,20,17,f32", 8)?, explored("gemm:12,20,17,f32", 8)?);
    let same = ids(&first) == ids(&second) && first.space.schedules == second.space.schedules;
    judged(same, format!("{} candidates of {} schedules, twice", first.candidates.len(), first.space.schedules))
}

fn damaged() -> Result<Tried, String> {
    let folder = tempfile::tempdir().map_err(words)?;
    let path = folder.path().join("store.db");
    let mut store = Store::open(&path).map_err(words)?;
    let problem = operators::parse("gemm:16,16,16,f32").map_err(words)?;
    let key = |text: &str| Key { program: hash(text), trace: hash(text), toolchain: "t".into(), device: "d".into() };
    let times = Timing {
        times_ms: vec![0.125],
        rounds: 1,
        cut_off: false,
        clock_mhz: None,
        relative_error: None,
        conditions: None,
    };
    let row = Row {
        key: key("selftest"),
        operator: problem.name.clone(),
        script: None,
        gpu: "h200".into(),
        predicted_ms: 0.125,
        plan: Schedule::Cores(CoresPlan::naive(&problem.contraction)),
        at: 0,
        verdict: Verdict::Measured(times),
    };
    store.put(&row).map_err(words)?;
    let sound = store.check().map_err(words)?.faults.is_empty();
    drop(store);
    let other = rusqlite::Connection::open(&path).map_err(words)?;
    other.execute("UPDATE measurement SET body = replace(body, '0.125', '0.025')", []).map_err(words)?;
    drop(other);
    let store = Store::open(&path).map_err(words)?;
    let faults = store.check().map_err(words)?.faults;
    let believed = store.get(&row.key).is_ok();
    judged(sound && !believed && !faults.is_empty(), faults.first().cloned().unwrap_or_else(|| "not found".into()))
}

fn compiled() -> Result<Tried, String> {
    let (_, made) = kernel()?;
    let Some(kernel) = made.module.kernels.first() else { return Err("no kernel".into()) };
    let job = Job { name: "selftest".into(), source: crate::cuda::print(kernel), arch: "sm_80".into() };
    Ok(match Compiler::of_this_program().map_err(words)?.compile(&job) {
        Ok(compiled) => {
            Tried::Held(format!("{}: {} registers, {} bytes", compiled.nvrtc, compiled.registers, compiled.cubin.len()))
        }
        Err(error @ CompileError::Missing) => Tried::NotHere(error.to_string()),
        Err(error) => Tried::Broken(error.to_string()),
    })
}
