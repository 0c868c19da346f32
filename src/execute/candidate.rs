//! A candidate's own text is executed: at the program's own constants as far as a budget of thread instructions goes, and, where
//! that is not all of it, whole on the smaller problem that the simulator runs.
use super::expected::{boxes, Meaning};
use super::inputs::size;
use super::module::{delivery, Kernels, Ran, Unable};
use super::values::InputKind;
use crate::compile::{CompileError, Compiler, Job};
use crate::cuda;
use crate::lower::program::{Argument, Module};
use crate::scheduled;
use crate::workload::Workload;
use satune_extract::Descriptor;
use satune_ir::affine::constant;
use satune_ir::term::Schedule;
use satune_ir::{BufferId, Program};
use satune_ptx::Options;
use serde::{Deserialize, Serialize};

/// Thread instructions that a candidate's text gets at the program's own constants, on each kind of inputs: a fraction of a
/// second of one core.
pub const BUDGET: u64 = 10_000_000;
/// The same on the smaller problem, whose blocks are all run.
const REDUCED: u64 = 400_000_000;
/// The same of kernels that have no smaller problem.
const GIVEN: u64 = 100_000_000;
/// Boxes of results that are compared, of one parameter.
const BOXES: usize = 64;

/// What was executed of a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Blocks at the program's own constants that ran to their end, their results compared.
    pub blocks: u64,
    /// Blocks that there are.
    pub of: u64,
    /// Blocks that the budget cut off: only what they did until then was judged.
    #[serde(default, skip_serializing_if = "none")]
    pub begun: u64,
    /// Blocks of the same schedule on a smaller problem, all of them; 0 where the program itself was run whole.
    #[serde(default, skip_serializing_if = "none")]
    pub reduced: u64,
    /// Results that were compared with the interpreter's.
    pub compared: u64,
    /// Thread instructions.
    pub instructions: u64,
    /// Kinds of inputs.
    pub inputs: Vec<InputKind>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn none(n: &u64) -> bool {
    *n == 0
}

impl Executed {
    /// In a table: `all 64`, `2/128`; `0/132` where the budget ended before a block had its results.
    pub fn word(&self) -> String {
        let Executed { blocks, of, .. } = self;
        if blocks == of {
            format!("all {of}")
        } else {
            format!("{blocks}/{of}")
        }
    }

    /// In a sentence.
    pub fn words(&self) -> String {
        let own = match self {
            Executed { blocks, of, .. } if blocks == of => format!("all {of} blocks"),
            Executed { blocks: 0, begun, of, .. } => format!("the beginning of {begun} of {of} blocks"),
            Executed { blocks, of, .. } => format!("{blocks} of {of} blocks"),
        };
        match self.reduced {
            0 => own,
            n => format!("{own}, and all {n} of the same schedule on a smaller problem"),
        }
    }
}

/// Why a candidate's text was not found right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does something wrong: a bug.
    #[error("{0}")]
    Wrong(String),
    /// It was not executed, for reasons that say nothing about it.
    #[error("text not executed: {0}")]
    Unable(String),
}

impl From<Unable> for Refusal {
    fn from(unable: Unable) -> Refusal {
        Refusal::Unable(unable.to_string())
    }
}

/// What was executed of one problem.
#[derive(Default)]
struct Share {
    blocks: u64,
    of: u64,
    begun: u64,
    compared: u64,
    instructions: u64,
    inputs: Vec<InputKind>,
}

impl Share {
    fn whole(&self) -> bool {
        self.blocks == self.of
    }
}

impl From<Share> for Executed {
    fn from(share: Share) -> Executed {
        let Share { blocks, of, begun, compared, instructions, inputs } = share;
        Executed { blocks, of, begun, reduced: 0, compared, instructions, inputs }
    }
}

/// A candidate whose text is to be executed.
pub struct Candidate<'a> {
    /// What it is a schedule of.
    pub problem: &'a dyn Workload,
    /// The schedule.
    pub plan: &'a Schedule,
    /// Its kernels.
    pub module: &'a Module,
    /// Their CUDA text.
    pub texts: &'a [String],
    /// For which GPU.
    pub gpu: &'a Descriptor,
    /// Whether to go on; where not, the text could not be executed.
    pub go_on: &'a (dyn Fn() -> bool + Sync),
}

impl Candidate<'_> {
    /// Executes it. `ptx`: what NVRTC made of its texts, where that is known.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn execute(&self, ptx: Option<Vec<String>>, compiler: &Compiler) -> Result<Executed, Refusal> {
        let ptx = match ptx {
            Some(ptx) if ptx.iter().all(|p| !p.is_empty()) => ptx,
            _ => self.compiled(self.texts, compiler)?,
        };
        let own = self.run((self.problem.program(), self.module), self.texts, &ptx, BUDGET)?;
        let whole = own.whole();
        let mut out = Executed::from(own);
        if whole {
            return Ok(out);
        }
        let small = self.problem.reduced(self.plan, &scheduled::options(self.gpu)).map_err(Refusal::Wrong)?;
        let texts: Vec<String> = small.made.module.kernels.iter().map(cuda::print).collect();
        let ptx = self.compiled(&texts, compiler)?;
        let share = self.run((&small.source, &small.made.module), &texts, &ptx, REDUCED);
        let share = share.map_err(|refusal| match refusal {
            Refusal::Wrong(text) => Refusal::Wrong(format!("on a smaller problem: {text}")),
            other => other,
        })?;
        if share.whole() {
            out.reduced = share.blocks;
        } else if out.blocks == 0 {
            return Err(Refusal::Unable("even on a smaller problem it takes too many thread instructions".into()));
        }
        out.compared += share.compared;
        out.instructions += share.instructions;
        let more = share.inputs.into_iter().filter(|kind| !out.inputs.contains(kind)).collect::<Vec<_>>();
        out.inputs.extend(more);
        Ok(out)
    }

    /// Executes the kernels of the problem or of a smaller one. Of streaming blocks what one kernel leaves to another is compared, too.
    fn run(
        &self,
        (source, module): (&Program, &Module),
        texts: &[String],
        ptx: &[String],
        budget: u64,
    ) -> Result<Share, Refusal> {
        match self.plan {
            Schedule::Stream(_) => {
                let (source, module) = opened(source, module);
                execute((&source, &module), texts, ptx, budget, self.go_on)
            }
            _ => execute((source, module), texts, ptx, budget, self.go_on),
        }
    }

    fn compiled(&self, texts: &[String], compiler: &Compiler) -> Result<Vec<String>, Refusal> {
        let arch = crate::explore::arch(self.plan, self.gpu).replace("sm_", "compute_");
        let job = |text: &String| Job { name: "kernel".into(), source: text.clone(), arch: arch.clone() };
        let compiled = texts.iter().map(|text| compiler.compile_job(&job(text), self.go_on).map(|c| c.ptx));
        compiled.collect::<Result<Vec<_>, _>>().map_err(|e| match e {
            CompileError::Refused { .. } => Refusal::Wrong(e.to_string()),
            other => Refusal::Unable(other.to_string()),
        })
    }
}

/// A program and its kernels with each buffer of the program that one kernel leaves to another as a parameter: what it should hold
/// is known then, and who writes it can be judged without who reads it.
fn opened(source: &Program, module: &Module) -> (Program, Module) {
    let (mut source, mut module) = (source.clone(), module.clone());
    for (at, space) in module.workspaces.iter().enumerate() {
        let is = |id: &BufferId| {
            let buffer = source.buffer(*id);
            let elements = buffer.shape.iter().map(|e| constant(e).unwrap_or(0) as u64).product::<u64>();
            (&buffer.name, buffer.dtype, elements) == (&space.name, space.dtype, space.elements)
        };
        let Some(id) = source.body.block.alloc_buffers.iter().copied().find(is) else { continue };
        source.body.block.alloc_buffers.retain(|other| *other != id);
        let param = Argument::Param(source.params.len());
        source.params.push(id);
        let spaces = module.args.iter_mut().flatten().filter(|argument| **argument == Argument::Workspace(at));
        spaces.for_each(|argument| *argument = param);
    }
    (source, module)
}

/// Executes all blocks of the kernels of a program on each kind of inputs.
///
/// # Errors
/// See [`Refusal`].
pub fn execute_whole(source: &Program, module: &Module, texts: &[String], ptx: &[String]) -> Result<Executed, Refusal> {
    let share = execute((source, module), texts, ptx, REDUCED, &|| true)?;
    if !share.whole() {
        return Err(Refusal::Unable(format!("it takes more than {REDUCED} thread instructions")));
    }
    Ok(share.into())
}

/// Executes blocks of the kernels of a program that were not made of a schedule of it, on each kind of inputs.
///
/// # Errors
/// See [`Refusal`].
pub fn execute_given(
    program: (&Program, &Module),
    texts: &[String],
    ptx: &[String],
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Executed, Refusal> {
    execute(program, texts, ptx, GIVEN, go_on).map(Executed::from)
}

/// Executes the kernels of a program on each kind of inputs, for about so many thread instructions.
fn execute(
    (source, module): (&Program, &Module),
    texts: &[String],
    ptx: &[String],
    budget: u64,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Result<Share, Refusal> {
    let kernels = Kernels::of(module, texts, ptx)?;
    let mut all: Option<Share> = None;
    for (number, kind) in [InputKind::Ordinary, InputKind::Extreme].into_iter().enumerate() {
        let meaning = Meaning::of(source, kind, kernels.tf32(), (crate::reference::SEED, go_on));
        let mut share = one_kind(&kernels, &meaning, number, budget)?;
        let kinds = |share: &Share| if share.compared > 0 { vec![kind] } else { Vec::new() };
        all = Some(match all {
            None => {
                share.inputs = kinds(&share);
                share
            }
            // Of the two what both had.
            Some(first) => Share {
                blocks: first.blocks.min(share.blocks),
                of: first.of,
                begun: first.begun.max(share.begun),
                compared: first.compared + share.compared,
                instructions: first.instructions + share.instructions,
                inputs: [first.inputs.clone(), kinds(&share)].concat(),
            },
        });
        // The smaller problem has the other kind.
        if all.as_ref().is_some_and(|s| !s.whole()) {
            break;
        }
    }
    Ok(all.unwrap_or_default())
}

/// Runs all kernels in order, as long as the budget lasts, and compares what the last ones wrote.
fn one_kind(kernels: &Kernels, meaning: &Meaning<'_>, number: usize, budget: u64) -> Result<Share, Refusal> {
    let kind = if number == 0 { "ordinary" } else { "extreme" };
    let wrong = |fault: String| Refusal::Wrong(format!("{fault} (inputs: {kind})"));
    let source = meaning.program;
    let params = source.params.iter().enumerate().map(|(i, id)| {
        let elements: i64 = meaning.shape(i).iter().product();
        let buffer = source.buffer(*id);
        (buffer.name.clone(), elements as u64 * size(buffer.dtype), meaning.inputs.initial(i))
    });
    let mut contents = kernels.contents(params.collect());
    let mut share = Share { of: kernels.blocks(), ..Share::default() };
    let mut left = budget;
    let mut results: Vec<(usize, Ran, bool)> = Vec::new();
    for kernel in 0..kernels.len() {
        let options =
            Options { delivery: delivery(number), seed: 1, budget: left, reads_ahead: true, ..Options::default() };
        let clusters = kernels.clusters(kernel);
        let last = kernel + 1 == kernels.len();
        let mut all = clusters == 1;
        // Results without what other blocks would have written are none.
        let mut alone = false;
        let wanted = |executed: u64| {
            let fits = (left / executed.max(1)).max(1);
            all = fits >= clusters;
            alone = !all && (kernels.communicates() || !(last || kernels.writes_results(kernel)));
            if alone {
                1
            } else {
                fits
            }
        };
        let ran = kernels.run(kernel, &contents, wanted, &options, meaning.go_on)?;
        share.instructions += ran.executed;
        if let Some(fault) = ran.fault {
            return Err(wrong(fault));
        }
        if ran.cut_off || alone {
            share.begun = share.begun.max(ran.blocks);
            break;
        }
        left = left.saturating_sub(ran.executed).max(1);
        share.blocks += ran.blocks;
        if all {
            kernels.keep(kernel, &ran, &mut contents);
        }
        results.push((kernel, ran, all));
        if !all {
            // What the next ones read is not there.
            break;
        }
    }
    let every = results.len() == kernels.len() && results.iter().all(|(_, _, all)| *all);
    // The last kernel that writes a parameter has its results: where it did not run, nobody has.
    for param in (0..source.params.len()).filter(|param| !kernels.written_from(results.len(), *param)) {
        let shape = meaning.shape(param);
        let bytes = size(meaning.inputs.dtype(param)) as usize;
        let found = results.iter().rev().find_map(|(_, ran, all)| {
            let at = ran.params.iter().find(|p| p.0 == param)?.1;
            let written = ran.outcome.written(at);
            (!written.is_empty()).then_some((ran, at, written, *all))
        });
        let name = &source.buffer(source.params[param]).name;
        let report = |w: super::expected::Wrong| {
            let index = index_of(w.at, &shape);
            wrong(match w.got {
                Some(got) => format!("executed: {name}{index} is {got}, not {}", w.want),
                None => format!("executed: {name}{index} is not written; it should be {}", w.want),
            })
        };
        let Some((ran, at, written, all)) = found else {
            // Nobody wrote anything of it: wrong, where all blocks were run and it is a result.
            if every && !meaning.inputs.read(param) {
                for expected in meaning.parts(param, &shape.iter().map(|n| (0, *n)).collect())? {
                    expected.compare(&shape, true, |_| None, bytes).map_err(report)?;
                }
            }
            continue;
        };
        let elements: Vec<std::ops::Range<u64>> =
            written.iter().map(|r| r.start / bytes as u64..r.end.div_ceil(bytes as u64)).collect();
        // Several kernels may have written it: then it is compared where all blocks were run, as a whole.
        let parts = if all { vec![shape.iter().map(|n| (0, *n)).collect()] } else { boxes(&elements, &shape) };
        let whole = all.then(|| ran.outcome.whole(at));
        let whole = whole.map(|(data, mut known)| {
            for (_, earlier, _) in &results {
                if let Some((_, at)) = earlier.params.iter().find(|p| p.0 == param) {
                    earlier.outcome.whole(*at).1.iter().zip(&mut known).for_each(|(w, k)| *k |= *w);
                }
            }
            (data, known)
        });
        for bounds in parts.iter().take(BOXES) {
            for expected in meaning.parts(param, bounds)? {
                let got = |position: u64| {
                    let from = position as usize * bytes;
                    let (mut data, mut known) = ([0u8; 8], [false; 8]);
                    match &whole {
                        Some((all, wrote)) => {
                            data[..bytes].copy_from_slice(all.get(from..from + bytes)?);
                            known[..bytes].copy_from_slice(wrote.get(from..from + bytes)?);
                        }
                        None => ran.outcome.read(at, from as u64, &mut data[..bytes], &mut known[..bytes]),
                    }
                    known[..bytes].iter().all(|k| *k).then_some(data)
                };
                // What the program leaves as it was need not be written.
                let must = all && !meaning.inputs.read(param);
                share.compared += expected.compare(&shape, must, got, bytes).map_err(report)?;
            }
        }
    }
    Ok(share)
}

fn index_of(at: u64, shape: &[i64]) -> String {
    let mut rest = at as i64;
    let mut index: Vec<String> = shape
        .iter()
        .rev()
        .map(|extent| {
            let i = rest % (*extent).max(1);
            rest /= (*extent).max(1);
            i.to_string()
        })
        .collect();
    index.reverse();
    format!("[{}]", index.join(", "))
}
