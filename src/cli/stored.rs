//! Commands on candidates that `explore` has written.
use super::{print, print_json, torch, Failure, Outcome};
use crate::compile::Compiler;
use crate::execute::{self, Executed, Refusal};
use crate::explore::{self, results, CandidateReport, Report};
use crate::host::Launch;
use crate::lower::program::{Argument, LowerOptions, Workspace};
use crate::scheduled::Scheduled;
use crate::source::{self, Work};
use crate::workload::Workload;
use satune_extract::Descriptor;
use satune_ir::{files, Program};
use satune_rewrites::Trace;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Which candidate.
#[derive(clap::Args)]
pub(super) struct Pick {
    /// Its id, the beginning of one, its rank; or `given`, the schedule that the program came with or that `--given` named
    pub(super) id: String,
    /// Folder that `explore` wrote
    #[arg(long, default_value = "satune-out")]
    pub(super) out: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Pick {
    /// The exploration, and the candidate of it.
    pub(super) fn load(&self) -> Result<(Report, CandidateReport), Failure> {
        let report = report(&self.out)?;
        let candidate = find(&report, &self.id)?.clone();
        Ok((report, candidate))
    }

    /// The folder of the exploration's files.
    pub(super) fn folder(&self) -> PathBuf {
        results::folder(&self.out)
    }
}

/// Largest candidates.json, bytes.
const LONGEST: u64 = 256 << 20;

/// The exploration in a folder.
pub(super) fn report(folder: &Path) -> Result<Report, Failure> {
    let path = results::folder(folder).join("candidates.json");
    let text = files::read_text(&path, LONGEST).map_err(|e| {
        Failure::Input(format!("{}: {e}; run `satune explore` first, or name its folder with --out", path.display()))
    })?;
    serde_json::from_str(&text)
        .map_err(|e| Failure::Input(format!("{}: {e}; it is not what `satune explore` writes", path.display())))
}

/// The schedule that was given, where it is of the space's kind.
fn given(report: &Report) -> Result<&CandidateReport, Failure> {
    let Some(given) = &report.given else {
        return Err(Failure::Input(
            "no schedule was given: `satune explore PROGRAM --given SCHEDULE` names one".into(),
        ));
    };
    let ranked = given.candidate.and_then(|rank| report.candidates.iter().find(|c| c.rank == rank));
    ranked.or(given.entry.as_deref()).ok_or_else(|| {
        let files: Vec<&str> = given.kernels.iter().map(|k| k.file.as_str()).collect();
        let kernels =
            if files.is_empty() { String::new() } else { format!("; its kernels are in {}", files.join(", ")) };
        let sentence = given.sentence(report.candidates.first());
        Failure::Nothing(format!(
            "the given schedule is none of the space, so that no more is known of it than this: {sentence}{kernels}"
        ))
    })
}

/// A candidate by its rank, its id, or the beginning of one.
pub(super) fn find<'a>(report: &'a Report, id: &str) -> Result<&'a CandidateReport, Failure> {
    if id == "given" {
        return given(report);
    }
    let mut found: Vec<&CandidateReport> = report.candidates.iter().filter(|c| c.rank.to_string() == id).collect();
    if found.is_empty() {
        let given = report.given.iter().filter_map(|given| given.entry.as_deref());
        found = report.candidates.iter().chain(given).filter(|c| c.id.starts_with(id)).collect();
    }
    match found[..] {
        [one] => Ok(one),
        _ => {
            let ids: Vec<&str> = report.candidates.iter().map(|c| c.id.as_str()).collect();
            let many = if found.is_empty() { "no candidate" } else { "more than one candidate" };
            Err(Failure::Input(format!("{many} is called `{id}`; there are {}", ids.join(", "))))
        }
    }
}

/// Where a candidate stands.
pub(super) fn place(c: &CandidateReport) -> String {
    match c.rank {
        0 => "as it is given".into(),
        rank => format!("rank {rank}"),
    }
}

/// The predicted time, and what of it is the kernels' and what their launches'.
pub(super) fn predicted(c: &CandidateReport) -> String {
    let kernels = if c.kernels.len() == 1 { "the kernel" } else { "the kernels" };
    match c.launch_ms > 0.0 {
        true => {
            format!("{:.4} ms ({kernels} {:.4}, launching {:.4})", c.predicted_ms, c.predicted_kernel_ms, c.launch_ms)
        }
        // Stored by a version that did not tell them apart.
        false => format!("{:.4} ms", c.predicted_ms),
    }
}

/// Bars of the time's parts.
pub(super) fn parts(c: &CandidateReport) -> String {
    let longest = c.parts.values().copied().fold(0.0, f64::max).max(1e-12);
    c.parts
        .iter()
        .map(|(name, ms)| {
            let bar = "#".repeat((ms / longest * 40.0).round() as usize);
            format!("  {name:<14} {ms:>10.4} ms  {bar}\n")
        })
        .collect()
}

/// What `why` is asked.
#[derive(clap::Args)]
pub(super) struct Why {
    #[command(flatten)]
    pick: Pick,
    #[command(flatten)]
    worth: super::ask::Worth,
}

/// `why`.
pub(super) fn why(args: &Why) -> Outcome {
    let (report, c) = args.pick.load()?;
    let gpu = report.gpu().map_err(|e| Failure::Input(e.to_string()))?;
    let sensitivity = args.worth.of(&report, &gpu, &c.plan)?;
    if args.pick.json {
        return print_json(&serde_json::json!({
            "id": c.id, "predicted_ms": c.predicted_ms, "predicted_kernel_ms": c.predicted_kernel_ms,
            "launch_ms": c.launch_ms, "parts": c.parts, "bottleneck": c.bottleneck,
            "binds": explore::binds(&c.parts, &c.occupancy),
            "loop_clocks": c.compiled.as_ref().and_then(|m| m.loop_clocks.as_ref()),
            "occupancy": c.occupancy, "derivation": c.derivation, "sensitivity": sensitivity,
        }));
    }
    let mut out = format!(
        "{} of {} on {}: predicted {}. {}\nWhat each resource alone would take:\n{}",
        c.id,
        report.operator,
        report.gpu,
        predicted(&c),
        explore::binds(&c.parts, &c.occupancy),
        parts(&c)
    );
    if let Some(of_loop) = c.compiled.as_ref().and_then(|m| m.loop_clocks.as_ref()) {
        out.push_str(&format!("{}\n", of_loop.sentence()));
    }
    out.push_str(&format!(
        "{} block{} resident per multiprocessor, limited by {}\nderivation, from the outside in:\n",
        c.occupancy.0,
        if c.occupancy.0 == 1 { "" } else { "s" },
        c.occupancy.1
    ));
    for line in &c.derivation {
        out.push_str(&format!("  {line}\n"));
    }
    out.extend(sensitivity.map(|s| s.text()));
    print(&out)
}

/// What `emit` prints.
#[derive(clap::Args)]
pub(super) struct Emit {
    #[command(flatten)]
    pick: Pick,
    /// cuda, c, torch, tvm or json
    #[arg(long = "as", value_enum, default_value = "cuda")]
    form: Form,
    /// What its functions are called [default: by operator, shape and id, so that headers of several can live together]
    #[arg(long, value_parser = identifier)]
    name: Option<String>,
}

/// The forms of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// CUDA text
    Cuda,
    /// A C header that launches it by the driver API
    C,
    /// A PyTorch operator, in C++
    Torch,
    /// The trace as a Python function on tvm.s_tir.Schedule
    Tvm,
    /// The trace as JSON
    Json,
}

/// A name that C takes.
fn identifier(text: &str) -> Result<String, String> {
    let good = !text.is_empty()
        && text.len() <= 200
        && crate::lower::safe(text) == text
        && crate::cuda::function_name(text) == text;
    good.then(|| text.to_string())
        .ok_or_else(|| "give letters, digits and underscores, no keyword, no digit first".into())
}

/// `emit`.
pub(super) fn emit(args: &Emit) -> Outcome {
    let pick = &args.pick;
    let (report, c) = pick.load()?;
    let base = args.name.clone().unwrap_or_else(|| explore::function_base(&report.operator, &c.id));
    let one = |name: String, text: String| Ok::<_, Failure>(vec![(name, text)]);
    let read = |file: &String| {
        let path = pick.folder().join(file);
        let text = files::read_text(&path, LONGEST).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
        Ok::<_, Failure>((file.clone(), text))
    };
    let texts: Vec<(String, String)> = match args.form {
        Form::C => one(format!("{base}.h"), c_header(&report, &c, &made(&report, &c)?, &base)?)?,
        Form::Torch => one(format!("{base}.cpp"), torch::extension(&report, &c, &made(&report, &c)?, &base)?)?,
        Form::Cuda if args.name.is_some() => named_cuda(&report, &c, &made(&report, &c)?, &base)?,
        Form::Cuda => c.kernels.iter().map(|k| read(&k.file)).collect::<Result<_, _>>()?,
        Form::Tvm => {
            let (_, trace) = read(&c.trace)?;
            if let Some(op) = Trace::read(&trace).ok().and_then(|t| t.beyond_tvm().map(String::from)) {
                return Err(Failure::Input(format!(
                    "{}: TVM has no {op}, which this schedule makes; `why-not PROGRAM \"cascaded no\"` has the best schedule without it",
                    c.id
                )));
            }
            vec![read(&c.tvm)?]
        }
        Form::Json => vec![read(&c.trace)?],
    };
    if pick.json {
        let list: Vec<_> = texts.iter().map(|(name, text)| json!({"name": name, "text": text})).collect();
        return print_json(&json!({
            "id": c.id, "operator": report.operator, "gpu": report.gpu, "function": base, "files": list,
        }));
    }
    texts.iter().try_for_each(|(_, text)| print(text))
}

/// A candidate's kernels, made again.
fn made(report: &Report, c: &CandidateReport) -> Result<Scheduled, Failure> {
    let (work, options) = again(report, c)?;
    let made = work.workload().scheduled(&c.plan, &options);
    made.map_err(|e| Failure::Internal(format!("candidate {}: {e}", c.id)))
}

/// The problem of a stored exploration, and what its GPU lets a candidate's kernels have.
fn again(report: &Report, c: &CandidateReport) -> Result<(Work, LowerOptions), Failure> {
    let work = source::work_of_script(&report.operator, &report.program).map_err(|e| Failure::Input(e.to_string()))?;
    let options = work.workload().options(&c.plan, &gpu(report)?);
    Ok((work, options))
}

/// The GPU of a stored exploration.
pub(super) fn gpu(report: &Report) -> Result<Descriptor, Failure> {
    report.gpu().map_err(|e| Failure::Input(e.to_string()))
}

/// What a file of a candidate says about itself.
pub(super) fn about(report: &Report, c: &CandidateReport) -> Result<String, Failure> {
    Ok(explore::about(&report.operator, &gpu(report)?, &c.id, env!("CARGO_PKG_VERSION")))
}

/// CUDA text of the kernels under another name.
fn named_cuda(
    report: &Report,
    c: &CandidateReport,
    made: &Scheduled,
    base: &str,
) -> Result<Vec<(String, String)>, Failure> {
    let (about, gpu) = (about(report, c)?, gpu(report)?);
    let text = |kernel: &crate::kernel::Kernel| {
        let file = format!("{}.cu", kernel.name);
        let head = explore::head(&about, explore::arch(&c.plan, &gpu), &file);
        (file, format!("{head}{}", crate::cuda::print(kernel)))
    };
    Ok(explore::renamed(made, base).iter().map(text).collect())
}

/// What to compile of a candidate.
pub(super) fn jobs(report: &Report, c: &CandidateReport) -> Result<Vec<crate::compile::Job>, Failure> {
    let (made, gpu) = (made(report, c)?, gpu(report)?);
    let arch = explore::arch(&c.plan, &gpu);
    let kernels = explore::renamed(&made, &explore::function_base(&report.operator, &c.id));
    let job = |k: &crate::kernel::Kernel| crate::compile::Job {
        name: k.name.clone(),
        source: crate::cuda::print(k),
        arch: arch.to_string(),
    };
    Ok(kernels.iter().map(job).collect())
}

/// How the kernels are launched under their names, with the program's names of what they take.
pub(super) fn launches(program: &Program, made: &Scheduled, base: &str) -> Vec<Launch> {
    let named = |a: &Argument| explore::argument_name(*a, program, &made.module.workspaces);
    let kernels = explore::renamed(made, base);
    let taken = kernels.iter().zip(&made.module.args);
    taken.map(|(kernel, args)| Launch::of(kernel, &args.iter().map(named).collect::<Vec<_>>())).collect()
}

/// A C header that launches the candidate's kernels.
fn c_header(report: &Report, c: &CandidateReport, made: &Scheduled, base: &str) -> Result<String, Failure> {
    let bytes = |w: &Workspace| (w.name.clone(), w.elements * u64::from(w.dtype.bytes()));
    let workspaces: Vec<(String, u64)> = made.module.workspaces.iter().map(bytes).collect();
    let files: Vec<&str> = c.kernels.iter().map(|k| k.file.as_str()).collect();
    let about = format!(
        "{}.\nKernels: {}, each compiled as it says itself. Compile what includes this with: cc -c FILE.c; link with -lcuda.",
        about(report, c)?,
        files.join(", ")
    );
    let (work, _) = again(report, c)?;
    let launches = launches(work.workload().program(), made, base);
    Ok(format!("{}{}", explore::comment("//", &about), crate::host::c_header(base, &launches, &workspaces)))
}

/// `check`.
pub(super) fn check(pick: &Pick) -> Outcome {
    let (report, c) = pick.load()?;
    let (work, options) = again(&report, &c)?;
    let within = work.workload().agreement().words();
    let checked = work.workload().check(&c.plan, &options, &|| true);
    let checked = match checked {
        Ok(checked) => checked,
        Err(fault) => {
            if pick.json {
                print_json(&json!({"id": c.id, "verdict": "wrong", "fault": fault.to_string()}))?;
            }
            return Err(Failure::Internal(format!("candidate {} is wrong: {fault}", c.id)));
        }
    };
    let executed = executed(&report, &c, work.workload())?;
    if pick.json {
        let agreement = work.workload().agreement().word();
        return print_json(&json!({
            "id": c.id, "verdict": "right", "agreement": agreement, "blocks": checked.blocks, "counts": checked.total,
            "executed": executed.as_ref().ok(), "not_executed": executed.as_ref().err(),
        }));
    }
    let (taken, ideal) = checked.total.shared_wavefronts();
    let (touched, least) = checked.total.global_sectors();
    let arithmetic = checked.total.computed();
    let text = match executed {
        Ok(e) => format!("text executed: {}; {} results compared", e.words(), e.compared),
        Err(why) => format!("text not executed: {why}"),
    };
    print(&format!(
        "{}: {} blocks simulated, equal to the definition {within}, no races, nothing out of bounds or unwritten\n  {text}\n  shared wavefronts {taken} (least {ideal}), global sectors {touched} (least {least}), {arithmetic}\n",
        c.id, checked.blocks
    ))
}

/// What was executed of a candidate's text; the inner error says why nothing was.
fn executed(report: &Report, c: &CandidateReport, problem: &dyn Workload) -> Result<Result<Executed, String>, Failure> {
    let (made, gpu) = (made(report, c)?, gpu(report)?);
    let texts: Vec<String> = made.module.kernels.iter().map(crate::cuda::print).collect();
    let compiler = match Compiler::of_this_program() {
        Ok(compiler) => compiler,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let (plan, module, go_on) = (&c.plan, &made.module, &|| true);
    let candidate = execute::Candidate { problem, plan, module, texts: &texts, gpu: &gpu, go_on };
    match candidate.execute(None, &compiler) {
        Ok(executed) => Ok(Ok(executed)),
        Err(Refusal::Unable(why)) => Ok(Err(why)),
        Err(Refusal::Wrong(fault)) => Err(Failure::Internal(format!("candidate {} is wrong: {fault}", c.id))),
    }
}
