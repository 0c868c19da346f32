//! What `explore` writes: `candidates.json` and the files that it names.
use super::{argument_name, Checked};
use crate::agreement::Agreement;
use crate::compile::Mix;
use crate::cuda;
use crate::execute::Executed;
use crate::host::{Launch, Map};
use crate::kernel::Kernel;
use crate::lower::program::{Argument, Module};
use crate::nvmmh::Beside;
use crate::scheduled::Scheduled;
use crate::store::Conditions;
use crate::workload::Workload;
use satune_extract::{Cost, Descriptor, DescriptorError};
use satune_ir::term::Schedule;
use satune_ir::{tvmscript, Program};
use satune_rewrites::Call;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// All of an exploration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// TVMScript of the source.
    pub program: String,
    /// Shapes of the given program's parameters, where other ones are explored: neighbouring dimensions as one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shapes: Vec<Vec<i64>>,
    /// As it was asked for.
    pub operator: String,
    /// The GPU's short name.
    pub gpu: String,
    /// What was known of it; none where an earlier version wrote the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<Descriptor>,
    /// Version of Satune.
    #[serde(default)]
    pub satune: String,
    /// The space.
    pub space: SpaceReport,
    /// Whether the candidates are proved to be the best of the space under the model.
    pub proved_optimal: bool,
    /// No other program is predicted faster than this.
    pub bound_ms: f64,
    /// Who put the candidates in their order. What is proved is proved under the model.
    #[serde(default)]
    pub ranked_by: super::Judge,
    /// Best first.
    pub candidates: Vec<CandidateReport>,
    /// Candidates that simulator or execution refused: bugs of Satune, never ranked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bugs: Vec<String>,
    /// Candidates that the compiler refused, or that do not fit the GPU as compiled: others took their places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<String>,
    /// Blocks with reuse that the space has no tiles for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untiled: Vec<String>,
    /// What else there is to say of the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why nothing was compiled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_compiled: Option<String>,
    /// Why the text of some candidates was not executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_executed: Option<String>,
    /// The schedule that the program came with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<super::GivenReport>,
    /// How the candidates were chosen, where they are not the plain best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub portfolio: Option<PortfolioReport>,
    /// What nvMatmulHeuristics takes, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvmmh: Option<Beside>,
    /// What was measured, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<SearchReport>,
}

/// Candidates that are worth measuring together ([`satune_extract::portfolio`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortfolioReport {
    /// How many were chosen because they are best on some GPU that was drawn; the others are the best of other tiles.
    pub chosen: usize,
    /// GPUs, the described one and those drawn within its spread.
    pub drawn: usize,
    /// Mean over them: what the best of the candidates loses against the best of the space.
    pub regret: f64,
    /// The same of as many plain best.
    pub plain_regret: f64,
}

impl PortfolioReport {
    pub(super) fn of<T>(found: &satune_extract::Portfolio<T>) -> PortfolioReport {
        let satune_extract::Portfolio { chosen, drawn, regret, plain_regret, .. } = *found;
        PortfolioReport { chosen, drawn, regret, plain_regret }
    }

    /// For people.
    pub(super) fn text(&self, top: usize) -> String {
        format!(
            "chosen to be measured together: on {} GPUs within what is known of this one\ntheir best loses {:.2}% in the mean, \
             that of the plain {top} best {:.2}% (--twins shows those)",
            self.drawn,
            100.0 * self.regret,
            100.0 * self.plain_regret
        )
    }
}

impl Report {
    /// The GPU that was explored for, as it was known then.
    ///
    /// # Errors
    /// Where the report does not hold it, and no built-in one has the name.
    pub fn gpu(&self) -> Result<Descriptor, DescriptorError> {
        self.descriptor.clone().map_or_else(|| Descriptor::load(&self.gpu), Ok)
    }

    /// The operator in letters, digits and underscores: part of the names of files, kernels and functions.
    pub fn slug(&self) -> String {
        slug(&self.operator)
    }

    /// The source program as a file that Python reads.
    pub fn program_text(&self) -> String {
        python(&format!("{}: the source program, by satune {}", self.operator, self.satune), &self.program)
    }
}

/// A program's name in letters, digits and underscores, at most 48: of a file its name without folder and ending.
pub(crate) fn slug(operator: &str) -> String {
    let path = Path::new(operator);
    let is_file = path.extension().is_some_and(|e| e == "py") || operator.contains('/');
    let name = if is_file { path.file_stem().and_then(|n| n.to_str()).unwrap_or("program") } else { operator };
    let safe = crate::lower::safe(name);
    safe.chars().take(48).collect::<String>().trim_end_matches('_').to_string()
}

/// TVMScript with a comment and the import that it needs.
pub(crate) fn python(note: &str, script: &str) -> String {
    let imported =
        if script.contains("from tvm.script import") { "" } else { "from tvm.script import tirx as T\n\n\n" };
    format!("{}{imported}{script}", comment("#", note))
}

/// A comment of lines that no name can end.
pub(crate) fn comment(mark: &str, text: &str) -> String {
    text.lines().map(|line| format!("{mark} {}\n", line.trim_end_matches([' ', '\\']))).collect()
}

/// The measuring of candidates on a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SearchReport {
    /// What the times mean: of a simulator they are predictions.
    pub kind: crate::device::DeviceKind,
    /// The device and its clocks.
    pub device: String,
    /// What compiled and ran.
    pub toolchain: String,
    /// How candidates were chosen.
    pub strategy: crate::measure::StrategyKind,
    /// Candidates that had their turn.
    pub trials: usize,
    /// Of those, known from the store.
    pub reused: usize,
    /// Number of those without a time, by reason.
    pub rejected: BTreeMap<String, usize>,
    /// What was said about the first of each.
    #[serde(default)]
    pub rejections: BTreeMap<String, String>,
    /// Time around the device's own work, per measured candidate, ms.
    pub overhead_ms: f64,
    /// The run's number in the store.
    pub run: i64,
    /// Best so far after each turn.
    pub log: Vec<crate::store::Step>,
}

impl SearchReport {
    /// How many have no time and why, in words: the first detail of each reason.
    pub fn rejected_text(&self) -> String {
        let said = |(reason, n): (&String, &usize)| match self.rejections.get(reason) {
            Some(detail) => format!("{n} {reason} ({})", detail.lines().next().unwrap_or_default()),
            None => format!("{n} {reason}"),
        };
        let list: Vec<String> = self.rejected.iter().map(said).collect();
        if list.is_empty() {
            "none rejected".into()
        } else {
            list.join(", ")
        }
    }
}

/// A candidate's times on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredReport {
    /// Its place; those that noise does not tell apart share one.
    pub place: usize,
    /// Median, ms.
    pub ms: f64,
    /// Spread of the repeats over the median.
    pub spread: f64,
    /// Repeats.
    pub repeats: usize,
    /// Clock while it ran, MHz, where the device says.
    pub clock_mhz: Option<f64>,
    /// Clocks, power and what held them back meanwhile, where the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Box<Conditions>>,
    /// Relative error of the result, where the device says.
    pub relative_error: Option<f64>,
    /// Whether the store knew it.
    pub reused: bool,
}

/// The space and what it took.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SpaceReport {
    /// Exact number of what was made, decimal; empty where it was not counted.
    pub schedules: String,
    pub enodes: usize,
    pub eclasses: usize,
    #[serde(default)]
    pub encode_s: f64,
    pub saturate_s: f64,
    pub extract_s: f64,
    pub simulate_s: f64,
    pub compile_s: f64,
    #[serde(default)]
    pub execute_s: f64,
    pub peak_bytes: u64,
    /// `saturated`, or the limit.
    pub stopped_by: String,
}

/// A candidate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CandidateReport {
    /// Short name, from its schedule.
    pub id: String,
    /// 1 is the best; 0: given, and none of the best.
    pub rank: usize,
    /// Predicted time under the model, ms.
    pub predicted_ms: f64,
    /// The part of it that the kernels take without their launches, ms.
    #[serde(default)]
    pub predicted_kernel_ms: f64,
    /// The part of it that launching takes, ms.
    #[serde(default)]
    pub launch_ms: f64,
    /// What each resource alone would take, ms.
    pub parts: BTreeMap<String, f64>,
    /// The largest: `launch`, or what of the kernels it is.
    pub bottleneck: String,
    /// The schedule in a few lines.
    pub schedule: Vec<String>,
    /// Resident blocks per multiprocessor and what limits them.
    pub occupancy: (i64, String),
    /// File of the trace.
    pub trace: String,
    /// File of the scheduled program, TVMScript.
    pub scheduled: String,
    /// File of the trace as Python.
    pub tvm: String,
    /// Kernels in launch order.
    pub kernels: Vec<KernelReport>,
    /// What the simulator found.
    pub simulated: SimulatedReport,
    /// What the compiler made, if it was asked and can.
    pub compiled: Option<CompiledReport>,
    /// What of its text was executed; none where it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executed: Option<Executed>,
    /// Its times on a device, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredReport>,
    /// The rule that made each node of the term, from the outside in.
    pub derivation: Vec<String>,
    /// Every decision.
    pub plan: Schedule,
    /// Texts to be written, not part of the JSON.
    #[serde(skip)]
    pub(crate) files: Vec<(String, String)>,
}

/// A kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct KernelReport {
    pub name: String,
    pub file: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Blocks of a cluster, along x; 1: none. The kernel's text says so too, so that a launch need not.
    #[serde(default = "alone")]
    pub cluster: u32,
    pub dynamic_shared_bytes: u32,
    /// Buffers in order.
    pub args: Vec<String>,
    /// Arguments that are tensor maps on a buffer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensor_maps: Vec<TensorMapReport>,
}

fn alone() -> u32 {
    1
}

/// A tensor map: what `cuTensorMapEncodeTiled`, or for images `cuTensorMapEncodeIm2col`, is to be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorMapReport {
    /// Buffer.
    pub buffer: String,
    /// The map.
    #[serde(flatten)]
    pub map: Map,
}

/// The simulator's findings, on a problem with the same tiles and few blocks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct SimulatedReport {
    pub ok: bool,
    /// How closely results agree with the definition: bit for bit, or up to roundoff where rounded values are added up.
    #[serde(default = "exact")]
    pub agreement: Agreement,
    pub shared_wavefronts: u64,
    pub shared_wavefronts_ideal: u64,
    pub global_sectors: u64,
    pub global_sectors_ideal: u64,
    /// Of the hot loop.
    pub hot_loop_shared_wavefronts: u64,
    pub hot_loop_shared_wavefronts_ideal: u64,
    pub hot_loop_global_sectors: u64,
    pub hot_loop_global_sectors_ideal: u64,
    pub fma: u64,
    /// Matrix instructions of warps.
    #[serde(default)]
    pub matrix: u64,
    /// Other arithmetic on elements, in warp instructions.
    #[serde(default)]
    pub arithmetic: u64,
    pub barriers: u64,
    pub blocks: u64,
}

fn exact() -> Agreement {
    Agreement::Exact
}

/// The compiler's findings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CompiledReport {
    pub arch: String,
    pub registers: u32,
    pub spill_bytes: u32,
    pub static_shared_bytes: u32,
    /// What the compiler warned of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Instructions of the hot loop, where there is a disassembler.
    pub hot_loop: Option<Mix>,
    /// Clocks of that loop, by its machine code and by the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loop_clocks: Option<super::LoopReport>,
}

/// FNV-1a, 64 bits: enough to tell the candidates of a folder apart.
fn short_hash(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")[..10].to_string()
}

impl CandidateReport {
    /// The predicted time with the clocks of its compiled loop, ms.
    pub fn judged_ms(&self) -> Option<f64> {
        self.compiled.as_ref()?.loop_clocks.as_ref()?.judged_ms
    }
}

/// What a candidate's report is made of, beside the candidate.
pub(crate) struct Parts<'a> {
    pub problem: &'a dyn Workload,
    pub scheduled: &'a Scheduled,
    pub named: Named,
    pub checked: &'a Checked,
    pub agreement: Agreement,
    pub derivation: Vec<String>,
}

/// A trace with the program that it is replayed on.
#[derive(Serialize)]
struct TraceFile<'a> {
    /// What it schedules; not part of a candidate's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<&'a str>,
    program: &'a str,
    calls: &'a [Call],
}

/// The largest part of the kernels' time that overlaps with others; where launching takes longer, the largest of all.
fn bound_by(cost: &Cost) -> String {
    let largest = cost.parts.get(&cost.bottleneck).copied().unwrap_or(0.0);
    match cost.parts.iter().max_by(|a, b| a.1.total_cmp(b.1)) {
        Some((name, _)) if cost.launch_ms() > largest => name.clone(),
        _ => cost.bottleneck.clone(),
    }
}

/// A candidate's id, and its kernels under names that no other program's or candidate's have.
pub(crate) struct Named {
    id: String,
    about: String,
    kernels: Vec<String>,
    /// CUDA text of each kernel.
    pub texts: Vec<String>,
}

impl Named {
    pub fn of(problem: &dyn Workload, scheduled: &Scheduled, schedule: &Schedule, gpu: &Descriptor) -> Named {
        let file = TraceFile { about: None, program: problem.script(), calls: &scheduled.trace.calls };
        let json = serde_json::to_string_pretty(&file).unwrap_or_default();
        let id = short_hash(&format!("{json}{schedule:?}"));
        let about = about(problem.name(), gpu, &id, env!("CARGO_PKG_VERSION"));
        let base = function_base(problem.name(), &id);
        let arch = arch(schedule, gpu);
        let kernels = renamed(scheduled, &base);
        let texts = kernels
            .iter()
            .zip(files_of(&id, scheduled))
            .map(|(kernel, file)| format!("{}{}", head(&about, arch, &file), cuda::print(kernel)))
            .collect();
        Named { id, about, kernels: kernels.into_iter().map(|k| k.name).collect(), texts }
    }
}

/// What a file is about: what it computes, for which GPU, by which schedule, made by what.
pub(crate) fn about(operator: &str, gpu: &Descriptor, id: &str, version: &str) -> String {
    format!("{operator} for {} ({}), schedule {id}, by satune {version}", gpu.name, gpu.full_name)
}

/// The comment at the top of a CUDA file.
pub(crate) fn head(about: &str, arch: &str, file: &str) -> String {
    let object = file.replace(".cu", ".cubin");
    comment("//", &format!("{about}\nCompile: nvcc -arch={arch} -std=c++17 -cubin -o {object} {file}"))
}

/// The architecture that a schedule's kernels are compiled for: wgmma is a feature of the very chip.
pub(crate) fn arch<'g>(schedule: &Schedule, gpu: &'g Descriptor) -> &'g str {
    if schedule.any(&|own| matches!(own, Schedule::Wgmma(_))) {
        &gpu.arch_features
    } else {
        &gpu.arch
    }
}

/// What the functions of a candidate are called: by operator, shape and id.
pub(crate) fn function_base(operator: &str, id: &str) -> String {
    format!("{}_{id}", slug(operator))
}

/// A candidate's kernels under their names: the one kernel has the base itself, several have theirs behind it.
pub(crate) fn renamed(scheduled: &Scheduled, base: &str) -> Vec<Kernel> {
    let mut kernels = scheduled.module.kernels.clone();
    let alone = kernels.len() == 1;
    for kernel in &mut kernels {
        kernel.name = if alone { base.to_string() } else { format!("{base}_{}", kernel.name) };
    }
    kernels
}

/// The names of the kernels' files.
pub(super) fn files_of<'a>(id: &'a str, scheduled: &'a Scheduled) -> impl Iterator<Item = String> + 'a {
    let alone = scheduled.module.kernels.len() == 1;
    let name = move |kernel: &Kernel| if alone { format!("{id}.cu") } else { format!("{id}.{}.cu", kernel.name) };
    scheduled.module.kernels.iter().map(name)
}

/// The reports of a module's kernels, with their names and the names of their files.
pub(super) fn kernels_of(
    module: &Module,
    program: &Program,
    names: impl IntoIterator<Item = String>,
    files: &[String],
) -> Vec<KernelReport> {
    let named = names.into_iter().zip(files);
    let of = |((kernel, args), (name, file)): ((&Kernel, &Vec<Argument>), (String, &String))| {
        let args: Vec<String> = args.iter().map(|a| argument_name(*a, program, &module.workspaces)).collect();
        let launch = Launch::of(kernel, &args);
        let tensor_maps = launch
            .arguments
            .iter()
            .filter_map(|a| Some(TensorMapReport { buffer: a.name.clone(), map: a.map.clone()? }));
        KernelReport {
            name,
            file: file.clone(),
            grid: kernel.grid,
            block: kernel.block,
            cluster: kernel.cluster,
            dynamic_shared_bytes: kernel.dynamic_shared_bytes(),
            tensor_maps: tensor_maps.collect(),
            args,
        }
    };
    module.kernels.iter().zip(&module.args).zip(named).map(of).collect()
}

/// The report of a candidate.
pub(crate) fn candidate(rank: usize, (schedule, cost): (&Schedule, &Cost), parts: Parts) -> CandidateReport {
    let Parts { problem, scheduled, named, checked, agreement, derivation } = parts;
    let (trace, module) = (&scheduled.trace, &scheduled.module);
    let Named { id, about, kernels: names, texts } = named;
    let file = TraceFile { about: Some(&about), program: problem.script(), calls: &trace.calls };
    let json = serde_json::to_string_pretty(&file).unwrap_or_default();
    let by_tvm = match (schedule, trace.beyond_tvm()) {
        (_, Some(op)) => format!("\nTVM has no {op}: it does not run this."),
        (Schedule::Mma(_) | Schedule::Wgmma(_), None) => {
            "\nTVM makes the scheduled program of this, and checks it. It cannot compile it: its intrinsics are\ndescriptions that Satune lowers itself; compile the CUDA file beside this one.".into()
        }
        _ => String::new(),
    };
    let mut files = vec![
        (format!("{id}.trace.json"), json),
        (
            format!("{id}.tvm.py"),
            format!(
                "{}{}",
                comment("#", &format!("{about}: its trace for TVM's Schedule.{by_tvm}")),
                trace.to_python("schedule")
            ),
        ),
        (
            format!("{id}.program.py"),
            python(&format!("{about}: the scheduled program"), &tvmscript::print(&scheduled.program)),
        ),
    ];
    let printed: Vec<String> = files_of(&id, scheduled).collect();
    let kernels = kernels_of(module, problem.program(), names, &printed);
    files.extend(printed.into_iter().zip(texts));
    let (total, hot) = (&checked.total, &checked.hot_loop);
    CandidateReport {
        rank,
        predicted_ms: cost.ms,
        predicted_kernel_ms: cost.kernel_ms(),
        launch_ms: cost.launch_ms(),
        parts: cost.parts.clone(),
        bottleneck: bound_by(cost),
        schedule: schedule.describe(),
        occupancy: (cost.resident_blocks, cost.occupancy_limit.clone()),
        trace: format!("{id}.trace.json"),
        scheduled: format!("{id}.program.py"),
        tvm: format!("{id}.tvm.py"),
        kernels,
        simulated: SimulatedReport {
            ok: true,
            agreement,
            shared_wavefronts: total.shared_wavefronts().0,
            shared_wavefronts_ideal: total.shared_wavefronts().1,
            global_sectors: total.global_sectors().0,
            global_sectors_ideal: total.global_sectors().1,
            hot_loop_shared_wavefronts: hot.shared_wavefronts().0,
            hot_loop_shared_wavefronts_ideal: hot.shared_wavefronts().1,
            hot_loop_global_sectors: hot.global_sectors().0,
            hot_loop_global_sectors_ideal: hot.global_sectors().1,
            fma: total.fma,
            arithmetic: total.arithmetic,
            matrix: total.matrix,
            barriers: total.barriers,
            blocks: checked.blocks,
        },
        compiled: None,
        executed: None,
        measured: None,
        derivation,
        plan: schedule.clone(),
        files,
        id,
    }
}

/// Writes a file into a folder, whole or not at all.
///
/// # Errors
/// What the system says, with the path.
pub fn write_whole(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = folder.join(name);
    let named = |error: io::Error, path: &Path| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut builder = tempfile::Builder::new();
    // As any file, not as a secret one, which temporary files are by default.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    let mut file = builder.tempfile_in(folder).map_err(|e| named(e, folder))?;
    io::Write::write_all(&mut file, text.as_bytes()).map_err(|e| named(e, &path))?;
    file.persist(&path).map_err(|e| named(e.error, &path))?;
    Ok(())
}
