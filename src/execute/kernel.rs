//! Any CUDA kernel is judged: races, bounds, reads of what was not written, barriers, results that are left unwritten.
use super::inputs;
use super::words::{ArgumentWords, LaunchWords, Role};
use satune_ir::DType;
use satune_ptx::{
    Allocation, Argument, Delivery, Fault, Initial, Launch, LaunchError, Options, ParseError, Program, ProgramError,
    Swizzle, TensorMap,
};
use serde::Serialize;

/// What to run.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// PTX.
    pub ptx: &'a str,
    /// CUDA text, to show lines of; empty where there is none.
    pub source: &'a str,
    /// How to launch it.
    pub launch: &'a LaunchWords,
    /// At most so many blocks (clusters, where the kernel has them): the corners and edges of the grid, and others at random. 0: all.
    pub blocks: u64,
    /// Of inputs and random choices.
    pub seed: u64,
    /// Most thread instructions of a block.
    pub budget: u64,
}

/// Why nothing was run.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The PTX is not understood.
    #[error("the PTX is not understood: {0}")]
    Parse(#[from] ParseError),
    /// The text has several kernels, or none.
    #[error("the text has {}; name one: kernel=NAME", .0.join(", "))]
    Which(Vec<String>),
    /// A tensor map on nothing.
    #[error("the tensor map `{name}` is on `{of}`, and no array of that name stands before it")]
    Map {
        /// The map.
        name: String,
        /// What it is said to be on.
        of: String,
    },
    /// The kernel cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The launch does not fit the kernel.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Line of the CUDA text; 0 where it is not known.
    pub line: u32,
    /// Line of the call that the line was inlined through; 0 if it was not.
    pub called_at: u32,
    /// The line itself.
    pub text: String,
    /// The instruction of the PTX.
    pub instruction: String,
    /// A thread that does it.
    pub thread: String,
    /// What is wrong.
    pub what: String,
}

/// A result that was not written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unwritten {
    /// The argument.
    pub argument: String,
    /// How many elements.
    pub elements: u64,
    /// The first of them.
    pub first: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// The kernel.
    pub kernel: String,
    /// Blocks of the grid.
    pub blocks: u64,
    /// Blocks that were run.
    pub blocks_run: u64,
    /// Thread instructions that were executed.
    pub executed: u64,
    /// What is wrong.
    pub faults: Vec<Finding>,
    /// What no thread wrote; looked for where all blocks were run and nothing else is wrong.
    pub unwritten: Vec<Unwritten>,
}

impl Findings {
    /// Whether nothing is wrong.
    pub fn clean(&self) -> bool {
        self.faults.is_empty() && self.unwritten.is_empty()
    }
}

/// Runs a kernel and says what is wrong with it. With asynchronous copies it is run twice: they arrive as late as is legal, then
/// as early.
///
/// # Errors
/// See [`KernelError`].
pub fn check(request: &Request<'_>) -> Result<Findings, KernelError> {
    let module = satune_ptx::parse(request.ptx)?;
    let words = request.launch;
    let name = match &words.kernel {
        Some(name) => name.clone(),
        None => match module.kernels().collect::<Vec<_>>()[..] {
            [one] => one.to_string(),
            ref several => return Err(KernelError::Which(several.iter().map(|k| k.to_string()).collect())),
        },
    };
    let program = Program::new(&module, &name)?;
    let arguments = arguments(request)?;
    let asynchronous = ["cp", "wgmma", "tcgen05"].iter().any(|o| program.instructions().iter().any(|i| i.opcode == *o));
    let mut findings = Findings {
        kernel: name,
        blocks: words.grid.iter().map(|n| u64::from(*n)).product(),
        blocks_run: 0,
        executed: 0,
        faults: Vec::new(),
        unwritten: Vec::new(),
    };
    let deliveries: &[Delivery] = if asynchronous { &[Delivery::Late, Delivery::Early] } else { &[Delivery::Late] };
    for delivery in deliveries {
        let options = Options { delivery: *delivery, seed: request.seed, budget: request.budget, ..Options::default() };
        let launch = Launch::new(&program, words.grid, words.block, words.shared, &arguments, options)?;
        let clusters = some(&launch, request.blocks, request.seed);
        let outcome = satune_ptx::run_clusters(&program, &launch, &clusters);
        findings.blocks_run = clusters.len() as u64 * u64::from(launch.cluster_size());
        findings.executed += outcome.executed;
        for fault in &outcome.faults {
            let found = finding(fault, request.source);
            if !findings.faults.contains(&found) {
                findings.faults.push(found);
            }
        }
        if findings.faults.is_empty() && clusters.len() as u64 == launch.clusters() && findings.unwritten.is_empty() {
            findings.unwritten = unwritten(words, &outcome);
        }
    }
    Ok(findings)
}

/// The arguments, arrays with their contents.
fn arguments(request: &Request<'_>) -> Result<Vec<Argument>, KernelError> {
    let list = &request.launch.arguments;
    let array = |i: usize, role: Role, dtype: DType, elements: u64, below: Option<i64>| {
        let given = matches!(role, Role::In | Role::InOut);
        let initial = if given {
            Initial::Bytes(inputs::bytes(dtype, elements, below, request.seed ^ (i as u64) << 32).into())
        } else {
            Initial::Undefined
        };
        let bytes = elements * inputs::size(dtype);
        Argument::Allocation(Allocation { name: list[i].0.clone(), bytes, initial, writable: role != Role::In })
    };
    let of = |(i, (name, words)): (usize, &(String, ArgumentWords))| match words {
        ArgumentWords::Number(bytes) => Ok(Argument::Bytes(bytes.clone())),
        ArgumentWords::Array { role, dtype, elements, below } => Ok(array(i, *role, *dtype, *elements, *below)),
        ArgumentWords::Map { own, of, dtype, shape, tile, swizzle } => {
            let below = match own {
                Some(role) => array(i, *role, *dtype, shape.iter().product(), None),
                None => {
                    let is = |a: &(String, ArgumentWords)| a.0 == *of && !matches!(a.1, ArgumentWords::Number(_));
                    let at = list[..i].iter().position(is);
                    Argument::Alias(at.ok_or_else(|| KernelError::Map { name: name.clone(), of: of.clone() })?)
                }
            };
            let element = inputs::size(*dtype);
            // The contiguous dimension stands first.
            let sizes: Vec<u64> = shape.iter().rev().copied().collect();
            let strides = sizes[..sizes.len() - 1].iter().scan(element, |stride, n| {
                *stride *= n;
                Some(*stride)
            });
            let swizzle = match swizzle {
                32 => Swizzle::B32,
                64 => Swizzle::B64,
                128 => Swizzle::B128,
                _ => Swizzle::None,
            };
            let map = TensorMap {
                base: 0,
                element: element as u32,
                strides: strides.collect(),
                sizes,
                tile: tile.iter().rev().copied().collect(),
                steps: vec![1; tile.len()],
                image: None,
                swizzle,
                fill: 0,
            };
            Ok(Argument::Map(map, Box::new(below)))
        }
    };
    list.iter().enumerate().map(of).collect()
}

/// Clusters to run: all, or the corners and middles of the edges, and others at random.
pub(crate) fn some(launch: &Launch, most: u64, seed: u64) -> Vec<u64> {
    use rand::{rngs::StdRng, Rng, SeedableRng};
    let all = launch.clusters();
    if most == 0 || all <= most {
        return (0..all).collect();
    }
    let at = |i: usize, part: u32| match part {
        0 => 0,
        1 => launch.grid[i] / 2,
        _ => launch.grid[i] - 1,
    };
    let mut list: Vec<u64> = Vec::new();
    // Corners first.
    let mut parts: Vec<[u32; 3]> = (0..27).map(|n| [n % 3, n / 3 % 3, n / 9]).collect();
    parts.sort_by_key(|p| p.iter().filter(|x| **x == 1).count());
    for part in parts {
        let cluster = launch.cluster_of([at(0, part[0]), at(1, part[1]), at(2, part[2])]);
        if !list.contains(&cluster) && (list.len() as u64) < most {
            list.push(cluster);
        }
    }
    let mut random = StdRng::seed_from_u64(seed);
    while (list.len() as u64) < most {
        let cluster = random.gen_range(0..all);
        if !list.contains(&cluster) {
            list.push(cluster);
        }
    }
    list.sort_unstable();
    list
}

pub(crate) fn finding(fault: &Fault, source: &str) -> Finding {
    let line = fault.site.as_ref().map(|s| s.line).unwrap_or_default();
    let text = match line.line {
        0 => "",
        n => source.lines().nth(n as usize - 1).unwrap_or_default().trim(),
    };
    Finding {
        line: line.line,
        called_at: line.called_at,
        text: text.into(),
        instruction: fault.site.as_ref().map(|s| s.text.clone()).unwrap_or_default(),
        thread: fault.thread.map(|t| t.to_string()).unwrap_or_default(),
        what: fault.kind.to_string(),
    }
}

fn unwritten(words: &LaunchWords, outcome: &satune_ptx::Outcome) -> Vec<Unwritten> {
    let mut list = Vec::new();
    let arrays = words.arguments.iter().filter_map(|(name, a)| match a {
        ArgumentWords::Array { role, dtype, .. } | ArgumentWords::Map { own: Some(role), dtype, .. } => {
            Some((name, *role, inputs::size(*dtype)))
        }
        ArgumentWords::Map { .. } | ArgumentWords::Number(_) => None,
    });
    for (allocation, (name, role, size)) in arrays.enumerate() {
        if role != Role::Out {
            continue;
        }
        let (_, written) = outcome.whole(allocation);
        let missing = |element: &[bool]| !element.iter().all(|w| *w);
        let mut elements = written.chunks(size.max(1) as usize).enumerate().filter(|(_, e)| missing(e));
        if let Some((first, _)) = elements.next() {
            let elements = 1 + elements.count() as u64;
            list.push(Unwritten { argument: name.clone(), elements, first: first as u64 });
        }
    }
    list
}
