//! A streaming problem, from an operator's name or the text of a PrimFunc.
use super::operators;
use crate::lower::program::{LowerError, LowerOptions};
use crate::operators::OperatorError;
use crate::reference::{Reference, SEED};
use crate::scheduled::{self, Reduced, ScheduledError};
use crate::workload::Asked;
use satune_ir::interp::Fault;
use satune_ir::term::stream::{KernelPlan, PlainPlan, StreamBlock, StreamPlan, Streams};
use satune_ir::{tvmscript, Program};
use satune_rewrites::space::stream::{streams, streams_of, StreamError};
use satune_rewrites::space::BY_ITSELF;
use std::collections::BTreeSet;
use std::time::Instant;

/// Longest axis.
pub const LONGEST: i64 = 1 << 28;
/// Most instances of a block: those of the largest matrix of axes that contractions take.
pub const MOST_INSTANCES: i64 = 1 << 40;
/// Most instances of a block that the simulator is to run.
pub const MOST_CHECKED: i64 = 1 << 22;

/// A problem: its text as TVMScript, and the blocks that it is made of.
#[derive(Clone, Debug)]
pub struct StreamProblem {
    /// As it was asked for.
    pub name: String,
    /// TVMScript of the source program.
    pub script: String,
    /// The source program.
    pub program: Program,
    /// Its blocks, with all ways to inline them.
    pub streams: Streams,
    /// What else there is to it; its notes say which blocks are left to plain kernels, and why.
    pub asked: Asked,
}

/// Why a program is no streaming problem.
#[derive(Debug, thiserror::Error)]
pub enum NotStreaming {
    /// Its blocks do not stream.
    #[error(transparent)]
    Blocks(#[from] StreamError),
    /// A block is none that kernels compute.
    #[error("no kernel computes it: {0}")]
    Lower(Box<ScheduledError>),
    /// A block that only plain kernels take is too large for the simulator, as small as the check can make it.
    #[error("block {block} has {instances} instances at least when it is checked; the simulator takes {most}: give smaller extents", most = MOST_CHECKED)]
    Checked {
        /// Its name.
        block: String,
        /// How many.
        instances: i64,
    },
    /// It does not run to its end on inputs as they are made.
    #[error("on the inputs of the check it goes wrong itself: {0}; keep indices from data within their buffers (T.min, T.max)")]
    Inputs(Box<Fault>),
    /// The threads that it binds itself are not apart.
    #[error("threads that the program binds itself race ({0}); let each have elements of its own, or leave its loops serial")]
    Threads(Box<ScheduledError>),
    /// An axis is too long.
    #[error("axis {axis} has {extent} iterations; at most {most} are explored", most = LONGEST)]
    Extent {
        /// Name of the iterator.
        axis: String,
        /// Its extent.
        extent: i64,
    },
    /// A block has too many instances.
    #[error("block {block} has {instances} instances; at most {most} are explored", most = MOST_INSTANCES)]
    Instances {
        /// Its name.
        block: String,
        /// How many.
        instances: i64,
    },
}

impl StreamProblem {
    /// An operator by name.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn operator(text: &str) -> Result<StreamProblem, OperatorError> {
        let script = operators::script(text)?;
        let failed = |reason: String| OperatorError {
            text: text.chars().take(60).collect(),
            reason,
            remedy: "please report this operator".into(),
        };
        let program = tvmscript::parse(&script).map_err(|e| failed(e.to_string()))?;
        StreamProblem::of_program(text, program).map_err(|e| failed(e.to_string()))
    }

    /// A program.
    ///
    /// # Errors
    /// [`NotStreaming`].
    pub fn of_program(name: &str, program: Program) -> Result<StreamProblem, NotStreaming> {
        let start = Instant::now();
        let streams = streams(&program)?;
        let encoding = start.elapsed();
        let blocks = &streams.whole().blocks;
        if let Some(long) = blocks.iter().flat_map(|b| &b.iters).find(|i| i.extent > LONGEST) {
            return Err(NotStreaming::Extent { axis: long.name.clone(), extent: long.extent });
        }
        if let Some(large) = blocks.iter().find(|b| b.instances() > MOST_INSTANCES) {
            return Err(NotStreaming::Instances { block: large.name.clone(), instances: large.instances() });
        }
        let of =
            |(block, why): &(String, String)| format!("block {block} runs as a plain kernel, without tiles: {why}");
        let mut notes: Vec<String> = streams.left_plain().map(of).collect();
        notes.extend(streams.in_order().map(|(b, why)| {
            let [blocks, threads, steps] = [0, 1, 2].map(|i| b.iters.get(i).map_or(1, |iter| iter.extent));
            format!(
                "{} runs in the order of its statements, {} in each of {blocks} x {threads} threads: no primitive schedules it, since {why}",
                b.name,
                if steps == 1 { "one step".into() } else { format!("{steps} steps") }
            )
        }));
        notes.extend(streams.left_out.clone());
        let part: BTreeSet<String> = streams.whole().tiled.iter().filter_map(|t| t.contraction.left_out()).collect();
        notes.extend(part);
        let sums: BTreeSet<&str> = streams.whole().tiled.iter().map(|t| t.contraction.block_name.as_str()).collect();
        if !sums.is_empty() {
            notes.push(format!(
                "{} {} of its own: the best schedules of its space, which is searched exactly, take part here",
                sums.iter().copied().collect::<Vec<_>>().join(", "),
                if sums.len() == 1 { "is tiled as a contraction" } else { "are tiled, each as a contraction" },
            ));
        }
        let problem = StreamProblem {
            name: name.into(),
            script: tvmscript::print(&program),
            program,
            streams,
            asked: Asked { notes, encoding, ..Asked::default() },
        };
        problem.lowers()?;
        Ok(problem)
    }

    /// Whether there are kernels, and a check, for what is left to plain kernels.
    fn lowers(&self) -> Result<(), NotStreaming> {
        let source = self.streams.whole();
        let plain = |b: &StreamBlock| {
            KernelPlan::Plain(PlainPlan {
                before: None,
                block: b.name.clone(),
                map: None,
                teams: 256,
                vector: 1,
                window: None,
                in_order: false,
                sharing: None,
            })
        };
        let plan = StreamPlan {
            inlined: Vec::new(),
            parts: 1,
            cascaded: false,
            kernels: source.blocks.iter().map(plain).collect(),
        };
        let options = LowerOptions::default();
        // Where there are too many works, this plan need not be among those that are looked at.
        let of_plan = match self.streams.way_of(&plan) {
            Some(_) => None,
            None => Some(streams_of(&self.program, &plan)?),
        };
        let streams = of_plan.as_ref().unwrap_or(&self.streams);
        let made = super::scheduled(&self.program, &plan, streams, &options);
        let unknown = matches!(made, Err(ScheduledError::Lower(LowerError::Unsupported { .. })));
        let usual = self.streams.plain.is_empty() && self.streams.in_order().next().is_none();
        if usual && !unknown {
            return Ok(());
        }
        made.map_err(|e| NotStreaming::Lower(Box::new(e)))?;
        let (small, _) = super::shrink::shrink(&self.program, &plan, streams);
        let of_small = streams_of(&small, &plan)?;
        if let Some(b) = of_small.whole().blocks.iter().find(|b| b.instances() > MOST_CHECKED) {
            return Err(NotStreaming::Checked { block: b.name.clone(), instances: b.instances() });
        }
        Reference::of(&small, SEED, &|| true).map_err(|fault| NotStreaming::Inputs(Box::new(fault)))?;
        self.own_threads(&plan, streams)
    }

    /// Whether the threads that the source itself binds are apart. Nobody else has decided on them: where they race the program is
    /// wrong, and not its schedule.
    fn own_threads(&self, plan: &StreamPlan, streams: &Streams) -> Result<(), NotStreaming> {
        let own: Vec<&str> =
            self.streams.in_order().filter(|(_, why)| *why == BY_ITSELF).map(|(b, _)| &*b.name).collect();
        if own.is_empty() {
            return Ok(());
        }
        let found = super::reduced(&self.program, plan, streams, &LowerOptions::default());
        let Ok(Reduced { source, made }) = found else { return Ok(()) };
        let Err(error) = scheduled::check_each(&source, &made, SEED, &|| true) else { return Ok(()) };
        let of_own = |kernel: &str| {
            let at = made.module.kernels.iter().position(|k| k.name == kernel);
            at.and_then(|at| self.streams.whole().blocks.get(at)).is_some_and(|b| own.contains(&b.name.as_str()))
        };
        match &error {
            ScheduledError::Race { kernel, .. } if of_own(kernel) => Err(NotStreaming::Threads(Box::new(error))),
            _ => Ok(()),
        }
    }
}
