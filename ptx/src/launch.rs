//! Launching a kernel: which blocks run, in parallel where they cannot talk, and what comes of it.
use crate::clocks::{Agent, ENGINES};
use crate::fault::{Fault, FaultKind, Site, Thread, Touch};
use crate::machine::{Finished, Unit};
use crate::matrix::map::{MapError, TensorMap};
use crate::memory::{Allocation, Global, Initial, Stamp, PAGE};
use crate::program::Program;
use crate::syntax::Space;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// When asynchronous operations are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// As late as is legal: only when nobody can go on otherwise.
    #[default]
    Late,
    /// At once.
    Early,
    /// At any time.
    Random,
}

/// How to run and when to stop.
#[derive(Clone, Debug)]
pub struct Options {
    /// When asynchronous operations are delivered.
    pub delivery: Delivery,
    /// Of random choices.
    pub seed: u64,
    /// Most thread instructions of one unit of blocks.
    pub budget: u64,
    /// Stop at the first fault, of whatever kind.
    pub first_fault: bool,
    /// Most blocks that are resident at once, where blocks can talk.
    pub resident: usize,
    /// What a register gets from memory that nobody has written is noise, and no fault by itself. Compilers read ahead of
    /// conditions where memory is surely there, in shared memory and where a thread stores later, and select afterwards. For those
    /// who compare all results.
    pub reads_ahead: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            delivery: Delivery::Late,
            seed: 0,
            budget: 4_000_000_000,
            first_fault: false,
            resident: 256,
            reads_ahead: false,
        }
    }
}

/// A launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block: x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster: x, y, z.
    pub cluster: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u64,
    /// The parameters' bytes, as the kernel lays them out; see [`Arguments`].
    pub parameters: Vec<u8>,
    /// Global memory: the module's variables, then the launch's.
    pub allocations: Arc<[Allocation]>,
    /// How to run.
    pub options: Options,
}

/// A kernel's argument.
#[derive(Clone, Debug)]
pub enum Argument {
    /// A pointer to an allocation of its own.
    Allocation(Allocation),
    /// A pointer into the allocation of another argument, by that argument's number.
    Alias(usize),
    /// A tensor map, passed by value, on an allocation of its own or of an earlier argument; the map's base counts from there.
    Map(TensorMap, Box<Argument>),
    /// A value's bytes.
    Bytes(Vec<u8>),
}

/// Why a launch makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// Wrong number of arguments.
    #[error("the kernel `{kernel}` takes {takes} arguments, {given} are given")]
    Arguments {
        /// Kernel.
        kernel: String,
        /// How many.
        takes: usize,
        /// How many were given.
        given: usize,
    },
    /// An argument of another size.
    #[error("argument {number} of `{kernel}` has {takes} bytes, {given} are given")]
    Size {
        /// Kernel.
        kernel: String,
        /// Which, from 0.
        number: usize,
        /// Its size.
        takes: u64,
        /// Size given.
        given: u64,
    },
    /// A tensor map that the driver would refuse.
    #[error("argument {number}: {why}")]
    Map {
        /// Which, from 0.
        number: usize,
        /// The condition.
        why: MapError,
    },
    /// Threads or blocks that no GPU launches.
    #[error("{0}")]
    Shape(String),
}

impl Launch {
    /// A launch of a program with arguments. Alias arguments point to what an earlier one allocated.
    ///
    /// # Errors
    /// Arguments that do not fit, or a shape that no GPU launches.
    pub fn new(
        program: &Program,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u64,
        arguments: &[Argument],
        options: Options,
    ) -> Result<Launch, LaunchError> {
        let kernel = &program.function;
        let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
        let blocks: u128 = grid.iter().map(|n| u128::from(*n)).product();
        let shape = |text: String| Err(LaunchError::Shape(text));
        if threads == 0 || threads > 1024 {
            return shape(format!("a block has 1 to 1024 threads, not {threads}"));
        }
        if blocks == 0 || blocks > 1 << 31 {
            return shape(format!("a grid has 1 to 2^31 blocks, not {blocks}"));
        }
        if let Some(most) = kernel.max_threads.filter(|most| threads > *most) {
            return shape(format!("`{}` is compiled for at most {most} threads a block, not {threads}", kernel.name));
        }
        if let Some(required) = kernel.required_threads.filter(|r| *r != block) {
            return shape(format!("`{}` is compiled for blocks of {required:?} threads, not {block:?}", kernel.name));
        }
        let cluster = kernel.cluster.unwrap_or([1; 3]);
        if (0..3).any(|i| cluster[i] == 0 || grid[i] % cluster[i] != 0) {
            return shape(format!("the grid {grid:?} is no multiple of the cluster {cluster:?}"));
        }
        if dynamic_shared + program.shared.iter().map(|s| s.2).sum::<u64>() > 228 << 10 {
            return shape(format!("{dynamic_shared} bytes of dynamic shared memory are more than any GPU has"));
        }
        if arguments.len() != kernel.parameters.len() {
            let (takes, given) = (kernel.parameters.len(), arguments.len());
            return Err(LaunchError::Arguments { kernel: kernel.name.clone(), takes, given });
        }
        let mut allocations: Vec<Allocation> = program
            .globals
            .iter()
            .map(|v| {
                let mut bytes = v.initial.clone().unwrap_or_default();
                bytes.resize(v.bytes as usize, 0);
                let writable = v.space != Space::Const;
                Allocation { name: v.name.clone(), bytes: v.bytes, initial: Initial::Bytes(bytes.into()), writable }
            })
            .collect();
        let mut parameters = vec![0; program.parameter_bytes as usize];
        let mut addresses = vec![0u64; arguments.len()];
        for (number, argument) in arguments.iter().enumerate() {
            let argument = match argument {
                Argument::Map(map, on) => {
                    let base = match on.as_ref() {
                        Argument::Alias(other) => addresses.get(*other).copied().unwrap_or(0),
                        Argument::Allocation(allocation) => {
                            addresses[number] = Global::address(allocations.len());
                            allocations.push(allocation.clone());
                            addresses[number]
                        }
                        _ => return shape(format!("argument {number}: a tensor map is on an allocation")),
                    };
                    let map = TensorMap { base: base.wrapping_add(map.base), ..map.clone() };
                    map.check().map_err(|why| LaunchError::Map { number, why })?;
                    &Argument::Bytes(map.encoded().to_vec())
                }
                other => other,
            };
            let bytes = match argument {
                Argument::Map(..) => Vec::new(),
                Argument::Bytes(bytes) => bytes.clone(),
                Argument::Alias(other) => addresses.get(*other).copied().unwrap_or(0).to_le_bytes().to_vec(),
                Argument::Allocation(allocation) => {
                    addresses[number] = Global::address(allocations.len());
                    allocations.push(allocation.clone());
                    addresses[number].to_le_bytes().to_vec()
                }
            };
            let takes = kernel.parameters[number].bytes;
            if bytes.len() as u64 != takes {
                let given = bytes.len() as u64;
                return Err(LaunchError::Size { kernel: kernel.name.clone(), number, takes, given });
            }
            let at = program.parameters[number] as usize;
            parameters[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(Launch { grid, block, cluster, dynamic_shared, parameters, allocations: allocations.into(), options })
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Warps of a block.
    pub fn warps(&self) -> u32 {
        self.threads().div_ceil(32)
    }

    /// Blocks of a cluster.
    pub fn cluster_size(&self) -> u32 {
        self.cluster.iter().product()
    }

    /// Clusters of the grid.
    pub fn clusters(&self) -> u64 {
        (0..3).map(|i| u64::from(self.grid[i] / self.cluster[i])).product()
    }

    /// The linear number of a block.
    pub fn linear(&self, index: [u32; 3]) -> u64 {
        let [gx, gy, _] = self.grid.map(u64::from);
        u64::from(index[0]) + gx * (u64::from(index[1]) + gy * u64::from(index[2]))
    }

    /// The block of a linear number.
    pub fn block_index(&self, linear: u64) -> [u32; 3] {
        let [gx, gy, _] = self.grid.map(u64::from);
        [(linear % gx) as u32, (linear / gx % gy) as u32, (linear / (gx * gy)) as u32]
    }

    /// A block of a cluster, by its rank.
    pub fn block_of(&self, cluster: u64, rank: u32) -> [u32; 3] {
        let n: [u64; 3] = std::array::from_fn(|i| u64::from(self.grid[i] / self.cluster[i]));
        let c = [cluster % n[0], cluster / n[0] % n[1], cluster / (n[0] * n[1])];
        let [cx, cy, _] = self.cluster;
        let r = [rank % cx, rank / cx % cy, rank / (cx * cy)];
        std::array::from_fn(|i| c[i] as u32 * self.cluster[i] + r[i])
    }

    /// The cluster that a block belongs to.
    pub fn cluster_of(&self, index: [u32; 3]) -> u64 {
        let n: [u64; 3] = std::array::from_fn(|i| u64::from(self.grid[i] / self.cluster[i]));
        let c: [u64; 3] = std::array::from_fn(|i| u64::from(index[i] / self.cluster[i]));
        c[0] + n[0] * (c[1] + n[1] * c[2])
    }
}

/// What came of a launch.
#[derive(Debug)]
pub struct Outcome {
    /// What is wrong, in the order of blocks; empty if nothing is.
    pub faults: Vec<Fault>,
    /// Thread instructions executed.
    pub executed: u64,
    /// Parts of writable allocations that were touched.
    memory: FxHashMap<(u32, u64), Merged>,
    allocations: Arc<[Allocation]>,
    own: usize,
}

#[derive(Debug)]
struct Merged {
    bytes: Box<[u8; PAGE]>,
    written: Box<[bool; PAGE]>,
    /// By granule: the unit that wrote, and its access.
    writers: Vec<Option<(u32, Stamp)>>,
}

impl Outcome {
    /// Bytes of the launch's allocation of a number, from an offset, as the program left them; and whether it wrote each.
    pub fn read(&self, allocation: usize, offset: u64, to: &mut [u8], written: &mut [bool]) {
        let index = self.own + allocation;
        self.allocations[index].initial.copy(offset, to);
        written.fill(false);
        let mut done = 0;
        while done < to.len() {
            let at = offset + done as u64;
            let inside = (at % PAGE as u64) as usize;
            let piece = (PAGE - inside).min(to.len() - done);
            if let Some(page) = self.memory.get(&(index as u32, at / PAGE as u64)) {
                to[done..done + piece].copy_from_slice(&page.bytes[inside..inside + piece]);
                written[done..done + piece].copy_from_slice(&page.written[inside..inside + piece]);
            }
            done += piece;
        }
    }

    /// A whole allocation: its bytes, and whether the program wrote each.
    pub fn whole(&self, allocation: usize) -> (Vec<u8>, Vec<bool>) {
        let bytes = self.allocations[self.own + allocation].bytes as usize;
        let (mut to, mut written) = (vec![0; bytes], vec![false; bytes]);
        self.read(allocation, 0, &mut to, &mut written);
        (to, written)
    }

    /// The stretches of an allocation that were written, as ranges of bytes, in order.
    pub fn written(&self, allocation: usize) -> Vec<std::ops::Range<u64>> {
        let index = (self.own + allocation) as u32;
        let mut pages: Vec<(&u64, &Merged)> =
            self.memory.iter().filter(|(k, _)| k.0 == index).map(|(k, p)| (&k.1, p)).collect();
        pages.sort_by_key(|(number, _)| **number);
        let mut list: Vec<std::ops::Range<u64>> = Vec::new();
        for (number, page) in pages {
            for (i, _) in page.written.iter().enumerate().filter(|(_, w)| **w) {
                let at = number * PAGE as u64 + i as u64;
                match list.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => list.push(at..at + 1),
                }
            }
        }
        list
    }
}

/// Runs all blocks.
pub fn run(program: &Program, launch: &Launch) -> Outcome {
    let clusters: Vec<u64> = (0..launch.clusters()).collect();
    run_clusters(program, launch, &clusters)
}

/// Runs some clusters of blocks (without clusters: some blocks), by linear number. Where blocks can talk through global memory
/// they share one memory and run by turns, else each cluster runs for itself, in parallel.
pub fn run_clusters(program: &Program, launch: &Launch, clusters: &[u64]) -> Outcome {
    merge(program, launch, units(program, launch, clusters, &|| true))
}

/// Runs one cluster, and then those that `others` names, which is told how many thread instructions the first took; none
/// of them where something is wrong with the first. Where blocks can talk, the first runs again with the others. All for as
/// long as `go_on` says so; a fault, [`FaultKind::Stopped`], tells that it did not.
pub fn run_onward(
    program: &Program,
    launch: &Launch,
    first: u64,
    others: impl FnOnce(u64) -> Vec<u64>,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Outcome {
    let mut done = units(program, launch, &[first], go_on);
    if done.iter().all(|unit| unit.faults.is_empty()) {
        let mut others = others(done.iter().map(|unit| unit.executed).sum());
        if program.communicates && !others.is_empty() {
            others.insert(0, first);
            done.clear();
        }
        done.extend(units(program, launch, &others, go_on));
    }
    merge(program, launch, done)
}

fn units(program: &Program, launch: &Launch, clusters: &[u64], go_on: &(dyn Fn() -> bool + Sync)) -> Vec<Finished> {
    let global = || Global::new(launch.allocations.clone(), program.global_granule);
    if program.communicates && !clusters.is_empty() {
        let mut unit = Unit::new(program, launch, global(), 0);
        let result = unit.run(clusters.iter().copied().collect(), launch.options.resident, go_on);
        return vec![with(unit, result)];
    }
    let stop = AtomicBool::new(false);
    let run = |cluster: &u64| {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let mut unit = Unit::new(program, launch, global(), *cluster + 1);
        let result = unit.run(VecDeque::from([*cluster]), 1, go_on);
        if result.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        Some(with(unit, result))
    };
    clusters.par_iter().filter_map(run).collect()
}

fn with(unit: Unit<'_>, result: Result<(), Fault>) -> Finished {
    let mut finished = unit.finish();
    finished.faults.extend(result.err());
    finished
}

/// An access, and the unit of blocks that made it.
type Made = (u32, Stamp);

fn merge(program: &Program, launch: &Launch, units: Vec<Finished>) -> Outcome {
    let starters: Vec<Vec<(Agent, u8)>> = units.iter().map(|u| u.starters.clone()).collect();
    let mut outcome = Outcome {
        faults: Vec::new(),
        executed: 0,
        memory: FxHashMap::default(),
        allocations: launch.allocations.clone(),
        own: program.globals.len(),
    };
    let granule = program.global_granule;
    let mut races: Vec<Fault> = Vec::new();
    let mut race = |(key, at): ((u32, u64), usize), first: (Made, Touch), second: (Made, Touch)| {
        let site = |(_, stamp): Made| program.site(stamp.pc);
        // An engine's access is the thread's that started it.
        let thread = |(unit, stamp): Made| -> Thread {
            let started = stamp.agent.checked_sub(ENGINES).and_then(|n| starters[unit as usize].get(n as usize));
            let (agent, lane) = started.copied().unwrap_or((stamp.agent, stamp.lane));
            let block = launch.block_index(u64::from(agent / launch.warps()));
            Thread { block, thread: agent % launch.warps() * 32 + u32::from(lane) }
        };
        let known = |f: &Fault| match (&f.site, &*f.kind) {
            (Some(s), FaultKind::Race { other_site, .. }) => {
                (s.clone(), other_site.clone()) == (site(second.0), site(first.0))
            }
            _ => false,
        };
        if races.len() < 16 && !races.iter().any(known) {
            let name = &launch.allocations[key.0 as usize].name;
            let offset = key.1 * PAGE as u64 + at as u64;
            let other_site: Site = site(first.0);
            races.push(Fault {
                kind: Box::new(FaultKind::Race {
                    space: Space::Global,
                    place: format!("`{name}` + {offset} bytes"),
                    touch: second.1,
                    other: thread(first.0),
                    other_touch: first.1,
                    other_site,
                }),
                site: Some(site(second.0)),
                thread: Some(thread(second.0)),
            });
        }
    };
    let several = units.len() > 1;
    let mut read_too = Vec::new();
    for (number, Finished { written: pages, faults, executed, .. }) in units.into_iter().enumerate() {
        let number = number as u32;
        outcome.executed += executed;
        for fault in faults {
            let same = |f: &Fault| {
                f.site == fault.site && std::mem::discriminant(&*f.kind) == std::mem::discriminant(&*fault.kind)
            };
            if outcome.faults.len() < 64 && !outcome.faults.iter().any(same) {
                outcome.faults.push(fault);
            }
        }
        for (key, page) in pages {
            let merged = outcome.memory.entry(key).or_insert_with(|| Merged {
                bytes: page.bytes.clone(),
                written: Box::new([false; PAGE]),
                writers: vec![None; PAGE / granule],
            });
            let mut reads = false;
            for g in 0..PAGE / granule {
                let at = g * granule;
                reads |= page.shadow.read_of(at).is_some();
                let Some(stamp) = page.shadow.written(at) else { continue };
                let (old, new) = (&mut merged.bytes[at..at + granule], &page.bytes[at..at + granule]);
                if let Some(first) = merged.writers[g] {
                    if old != new {
                        race((key, at), (first, Touch::Writes), ((number, stamp), Touch::Writes));
                    }
                }
                old.copy_from_slice(new);
                merged.written[at..at + granule].fill(true);
                merged.writers[g] = Some((number, stamp));
            }
            if reads && several {
                read_too.push((number, key, page));
            }
        }
    }
    for (number, key, page) in read_too {
        let Some(merged) = outcome.memory.get(&key) else { continue };
        for g in 0..PAGE / granule {
            let (Some(reader), Some((writer, stamp))) = (page.shadow.read_of(g * granule), merged.writers[g]) else {
                continue;
            };
            if writer != number {
                race((key, g * granule), ((writer, stamp), Touch::Writes), ((number, reader), Touch::Reads));
            }
        }
    }
    outcome.faults.extend(races);
    outcome
}
