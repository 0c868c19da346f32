//! The kernels of a program, run one after the other on the CPU.
use super::kernel::{finding, some};
use crate::device::{launches, workspaces, KernelJob};
use crate::host::Map;
use crate::lower::program::{Argument, Module};
use satune_ptx::{
    Allocation, Argument as Passed, Delivery, Initial, Launch, LaunchError, Options, Outcome, ParseError, Program,
    ProgramError, Swizzle, TensorMap,
};

/// Why kernels cannot be run here: it says nothing about them.
#[derive(Debug, thiserror::Error)]
pub enum Unable {
    /// The PTX is not understood.
    #[error("the PTX is not understood: {0}")]
    Parse(#[from] ParseError),
    /// It uses what is not known.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The launch does not fit.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// It was told to end.
    #[error("interrupted")]
    Stopped,
    /// Not one kernel in a text, or another number of texts.
    #[error("{0}")]
    Texts(String),
}

/// A kernel with its launch.
struct Kernel {
    program: Program,
    job: KernelJob,
    source: String,
    written: Vec<bool>,
}

/// The kernels of a program.
pub struct Kernels {
    list: Vec<Kernel>,
    workspaces: Vec<(String, u64)>,
}

/// What stands in the program's buffers.
#[derive(Clone)]
pub struct Contents {
    /// Parameters: name, bytes, what they hold.
    pub params: Vec<(String, u64, Initial)>,
    /// Buffers between kernels.
    spaces: Vec<Initial>,
}

/// What came of one kernel.
pub struct Ran {
    /// What was written, by argument.
    pub outcome: Outcome,
    /// Allocation of the outcome for each parameter of the program that the kernel takes.
    pub params: Vec<(usize, usize)>,
    /// Blocks that were run.
    pub blocks: u64,
    /// Thread instructions.
    pub executed: u64,
    /// The first thing that is wrong; the budget's end is nothing wrong.
    pub fault: Option<String>,
    /// The budget ended it.
    pub cut_off: bool,
}

impl Kernels {
    /// Of a module, with the CUDA text and the PTX of each kernel.
    ///
    /// # Errors
    /// See [`Unable`].
    pub fn of(module: &Module, texts: &[String], ptx: &[String]) -> Result<Kernels, Unable> {
        let jobs = launches(module);
        if ptx.len() != jobs.len() || texts.len() != jobs.len() {
            return Err(Unable::Texts(format!("{} texts of PTX for {} kernels", ptx.len(), jobs.len())));
        }
        let mut list = Vec::new();
        for (((job, kernel), ptx), source) in jobs.into_iter().zip(&module.kernels).zip(ptx).zip(texts) {
            let parsed = satune_ptx::parse(ptx)?;
            let names: Vec<&str> = parsed.kernels().collect();
            let [name] = names[..] else {
                return Err(Unable::Texts(format!("the PTX has {} kernels", names.len())));
            };
            let program = Program::new(&parsed, name)?;
            let written = kernel.params().map(|(_, array)| array.written).collect();
            list.push(Kernel { program, job, source: source.clone(), written });
        }
        let names = module.workspaces.iter().map(|w| w.name.clone());
        Ok(Kernels { list, workspaces: names.zip(workspaces(module)).collect() })
    }

    /// How many kernels.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Blocks of all grids.
    pub fn blocks(&self) -> u64 {
        self.list.iter().map(|k| k.job.grid.iter().map(|n| u64::from(*n)).product::<u64>()).sum()
    }

    /// Whether singles lose digits on their way into a matrix instruction.
    pub fn tf32(&self) -> bool {
        let rounds = |i: &satune_ptx::syntax::Instruction| i.modifiers.iter().any(|m| m == "tf32");
        self.list.iter().any(|k| k.program.instructions().iter().any(rounds))
    }

    /// Whether a kernel writes a parameter of the program.
    pub fn writes_results(&self, number: usize) -> bool {
        let kernel = &self.list[number];
        let mut all = kernel.job.args.iter().zip(&kernel.written);
        all.any(|(argument, written)| *written && matches!(argument.buffer, Argument::Param(_)))
    }

    /// Whether a kernel from this number on writes a parameter of the program.
    pub fn written_from(&self, number: usize, param: usize) -> bool {
        self.list.iter().skip(number).any(|kernel| {
            let mut all = kernel.job.args.iter().zip(&kernel.written);
            all.any(|(argument, written)| *written && argument.buffer == Argument::Param(param))
        })
    }

    /// Whether blocks of a kernel talk to each other.
    pub fn communicates(&self) -> bool {
        self.list.iter().any(|k| k.program.communicates)
    }

    /// Contents before the first kernel.
    pub fn contents(&self, params: Vec<(String, u64, Initial)>) -> Contents {
        Contents { params, spaces: vec![Initial::Undefined; self.workspaces.len()] }
    }

    /// Runs clusters of a kernel: the first, and as many in all as `wanted` says, which is told how many thread instructions the
    /// first took (all, or the corners of the grid, its edges, and some at random). For as long as `go_on` says so.
    ///
    /// # Errors
    /// See [`Unable`].
    pub fn run(
        &self,
        number: usize,
        contents: &Contents,
        wanted: impl FnOnce(u64) -> u64,
        options: &Options,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Ran, Unable> {
        let kernel = &self.list[number];
        // Each buffer once, though several arguments may be maps on it.
        let mut first: Vec<(Argument, usize)> = Vec::new();
        let written = |buffer: Argument| {
            let mut all = kernel.job.args.iter().zip(&kernel.written);
            all.any(|(a, written)| a.buffer == buffer && *written)
        };
        let mut params = Vec::new();
        let mut arguments = Vec::new();
        for (at, argument) in kernel.job.args.iter().enumerate() {
            let plain = match first.iter().find(|f| f.0 == argument.buffer) {
                Some((_, earlier)) => Passed::Alias(*earlier),
                None => {
                    let (name, bytes, initial) = match argument.buffer {
                        Argument::Param(i) => contents.params[i].clone(),
                        Argument::Workspace(i) => {
                            let (name, bytes) = self.workspaces[i].clone();
                            (name, bytes, contents.spaces[i].clone())
                        }
                    };
                    if let Argument::Param(i) = argument.buffer {
                        params.push((i, first.len()));
                    }
                    first.push((argument.buffer, at));
                    Passed::Allocation(Allocation { name, bytes, initial, writable: written(argument.buffer) })
                }
            };
            arguments.push(match &argument.map {
                Some(map) => Passed::Map(tensor_map(map), Box::new(plain)),
                None => plain,
            });
        }
        let job = &kernel.job;
        let shared = u64::from(job.dynamic_shared_bytes);
        let launch = Launch::new(&kernel.program, job.grid, job.block, shared, &arguments, options.clone())?;
        // The first of them is among those of any number.
        let first = some(&launch, 1, options.seed)[0];
        let mut clusters = 1;
        let others = |executed| {
            let all = some(&launch, wanted(executed).clamp(1, launch.clusters()), options.seed);
            clusters = all.len() as u64;
            all.into_iter().filter(|cluster| *cluster != first).collect()
        };
        let outcome = satune_ptx::run_onward(&kernel.program, &launch, first, others, go_on);
        if outcome.faults.iter().any(|f| matches!(*f.kind, satune_ptx::FaultKind::Stopped)) {
            return Err(Unable::Stopped);
        }
        let budget = |f: &&satune_ptx::Fault| matches!(*f.kind, satune_ptx::FaultKind::Budget { .. });
        let fault = outcome.faults.iter().find(|f| !budget(f)).map(|f| {
            let found = finding(f, &kernel.source);
            let at = if found.line > 0 { format!("line {} `{}`: ", found.line, found.text) } else { String::new() };
            let thread = if found.thread.is_empty() { String::new() } else { format!("{}: ", found.thread) };
            format!("kernel {}, executed: {at}{thread}{}", job.name, found.what)
        });
        Ok(Ran {
            blocks: clusters * u64::from(launch.cluster_size()),
            executed: outcome.executed,
            cut_off: outcome.faults.iter().any(|f| budget(&f)),
            fault,
            params,
            outcome,
        })
    }

    /// Clusters of a kernel's grid.
    pub fn clusters(&self, number: usize) -> u64 {
        let kernel = &self.list[number];
        let cluster: u32 = kernel.program.function.cluster.unwrap_or([1; 3]).iter().product();
        kernel.job.grid.iter().map(|n| u64::from(*n)).product::<u64>() / u64::from(cluster.max(1))
    }

    /// What all blocks of a kernel left becomes what the next one finds.
    pub fn keep(&self, number: usize, ran: &Ran, contents: &mut Contents) {
        let mut seen: Vec<Argument> = Vec::new();
        for argument in &self.list[number].job.args {
            if seen.contains(&argument.buffer) {
                continue;
            }
            let (bytes, mut known) = ran.outcome.whole(seen.len());
            seen.push(argument.buffer);
            let slot = match argument.buffer {
                Argument::Param(i) => &mut contents.params[i].2,
                Argument::Workspace(i) => &mut contents.spaces[i],
            };
            if !known.iter().any(|k| *k) {
                continue;
            }
            match &*slot {
                Initial::Bytes(_) | Initial::Formula(_) => known.fill(true),
                Initial::Partly { known: before, .. } => {
                    known.iter_mut().zip(before.iter()).for_each(|(now, before)| *now |= *before);
                }
                Initial::Undefined => {}
            }
            *slot = Initial::Partly { bytes: bytes.into(), known: known.into() };
        }
    }
}

/// How the deliveries of asynchronous data take turns over the runs of one check.
pub fn delivery(run: usize) -> Delivery {
    [Delivery::Late, Delivery::Early, Delivery::Random][run % 3]
}

fn tensor_map(map: &Map) -> TensorMap {
    TensorMap {
        base: 0,
        element: map.dtype.bytes(),
        sizes: map.dims.clone(),
        strides: map.strides.clone(),
        tile: map.tile.clone(),
        steps: map.steps(),
        image: map.image.as_ref().map(|i| satune_ptx::Image { lower: i.lower.clone(), upper: i.upper.clone() }),
        swizzle: match map.span() {
            Some(32) => Swizzle::B32,
            Some(64) => Swizzle::B64,
            Some(_) => Swizzle::B128,
            None => Swizzle::None,
        },
        fill: 0,
    }
}
