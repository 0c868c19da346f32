//! What the kernels of a program ask of a GPU, by counting: a few of their blocks are run at their own size ([`sampled`]), and what
//! each of all blocks begins with says which of them read the same.
use crate::kernel::{
    Array, ArrayId, Dim, GroupOp, Index, Kernel, LocalVar, Space, Stmt, Unroll, WarpOp, Wgmma, WmmaOp,
};
use crate::lower::program::{Argument, Module};
use crate::simulate::{sampled, Sampled, Touched};
use satune_extract::stream::{around, Kept, KernelWork, BASE_REGISTERS, STEP_CLOCKS, TOGETHER};
use satune_extract::tensor::{group_clocks, matrix_clocks};
use satune_extract::{resident_blocks, stays_in_l2, Descriptor};
use satune_ir::term::tensor::Mma;
use satune_ir::DType;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What the simulator runs of a kernel, in statements of a thread: some ten seconds.
const MOST_STEPS: u64 = 400_000_000;
/// What a statement takes of it besides its threads.
const STATEMENT: u64 = 200;
/// L1 of a multiprocessor, bytes, beside which shared memory lies (the least from sm_70 on: 96 KB of both on sm_75).
const L1_BYTES: i64 = 96 << 10;

/// The work of each kernel, and the threads of its blocks. `registers`: of a thread of each, where a compiler has said it.
///
/// # Errors
/// What stands in the way of counting, for people.
pub(super) fn works(
    module: &Module,
    registers: &[u32],
    gpu: &Descriptor,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<(KernelWork, i64)>, String> {
    let mut works: Vec<(KernelWork, i64)> = Vec::new();
    let mut before: BTreeMap<usize, Moved> = BTreeMap::new();
    for (number, (kernel, args)) in module.kernels.iter().zip(&module.args).enumerate() {
        let counted = Counted::of(kernel, registers.get(number).copied(), gpu, go_on)?;
        let moved = counted.moved();
        let mut work = counted.work(moved.values().copied());
        let now: BTreeMap<usize, Moved> =
            kernel.params().zip(args).map(|((id, _), a)| (place(*a), moved[&id])).collect();
        // What the kernel before wrote is found in L2, where that holds what both touch.
        let found: f64 = now.iter().filter_map(|(at, m)| before.get(at).map(|b| m.once.min(b.written))).sum();
        let live = now.values().chain(before.values()).map(|m| m.once + m.written).sum();
        work.kept[0] = Kept { live, read: found, written: 0.0 };
        works.push((work, i64::from(kernel.threads())));
        before = now;
    }
    Ok(works)
}

/// A number for each buffer of a program.
fn place(argument: Argument) -> usize {
    match argument {
        Argument::Param(i) => 2 * i,
        Argument::Workspace(i) => 2 * i + 1,
    }
}

/// Bytes of an array that a kernel moves.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    /// Read, each once.
    once: f64,
    /// Read, once for each wave of blocks that has a use for them.
    by_waves: f64,
    written: f64,
}

struct Counted<'k> {
    kernel: &'k Kernel,
    gpu: &'k Descriptor,
    sampled: Sampled,
    held_registers: i64,
    resident: i64,
    /// What an instruction on matrices takes: clocks of tensor cores, and machine instructions.
    matrices: [f64; 2],
}

impl<'k> Counted<'k> {
    fn of(
        kernel: &'k Kernel,
        registers: Option<u32>,
        gpu: &'k Descriptor,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Counted<'k>, String> {
        let all = matrix_instructions(kernel, gpu)?;
        let matrices = all.into_iter().reduce(|a, b| if a >= b { a } else { b }).unwrap_or_default();
        let words = |a: &Array| (a.len as i64 * i64::from(a.dtype.bytes()) + 3) / 4;
        let counted = kernel.arrays.iter().filter(|a| a.space.is_private()).map(words).sum();
        let held_registers = registers.map_or(counted, |n| i64::from(n) - BASE_REGISTERS);
        let threads = i64::from(kernel.threads());
        let shared = i64::from(kernel.shared_bytes);
        let resident =
            resident_blocks(gpu, threads, held_registers + BASE_REGISTERS, shared).map_err(|e| e.to_string())?;
        let blocks: u64 = kernel.grid.iter().map(|n| u64::from(*n)).product();
        let steps = Cell::new(0_u64);
        let limited = || {
            steps.set(steps.get() + threads as u64 + STATEMENT);
            steps.get() < MOST_STEPS && go_on()
        };
        let cache = ((L1_BYTES - shared * resident) / resident).max(0) as u64;
        // The first, one in the middle, and the last, which the edges are in; one of many where one takes long.
        let middle = blocks / 2;
        let mut found =
            sampled(kernel, &[middle], cache, &limited).map_err(|fault| match steps.get() >= MOST_STEPS {
                true => format!("a block of kernel {} does too much to be counted", kernel.name),
                false => fault.to_string(),
            })?;
        if steps.get() < MOST_STEPS / 4 {
            let ends = BTreeSet::from([0, blocks - 1]).into_iter().filter(|number| *number != middle);
            if let Ok(ends) = sampled(kernel, &ends.collect::<Vec<_>>(), cache, &limited) {
                found += ends;
            }
        }
        Ok(Counted { kernel, gpu, sampled: found, held_registers, resident, matrices })
    }

    fn blocks(&self) -> f64 {
        self.kernel.grid.iter().map(|n| f64::from(*n)).product()
    }

    /// The work of all blocks, which move so much of each array.
    fn work(&self, moved: impl Iterator<Item = Moved>) -> KernelWork {
        let (kernel, gpu) = (self.kernel, self.gpu);
        let (c, blocks) = (&self.sampled.total, self.blocks());
        let scale = blocks / self.sampled.blocks as f64;
        let all = |n: u64| n as f64 * scale;
        let warps = f64::from(kernel.threads().div_ceil(32));
        let wide = kernel.arrays.iter().any(|a| a.dtype == DType::F64);
        // An instruction of 32 lanes takes the units of a partition so many clocks.
        let lanes = f64::from(if wide { gpu.fp64_lanes } else { gpu.fp32_lanes });
        let arithmetic = all(c.fma) * (128.0 / lanes).max(1.0) + all(c.arithmetic);
        let buffers = kernel.params().count();
        let (mut once, mut again, mut written) = (0.0, 0.0, 0.0);
        for m in moved {
            (once, again, written) = (once + m.once, again + (m.by_waves - m.once), written + m.written);
        }
        let [tensor_clocks, instructions] = self.matrices.map(|each| all(c.matrix) * each);
        let mut work = KernelWork {
            blocks,
            tensor_clocks,
            global_loads: all(c.global_loads + c.async_copies),
            global_stores: all(c.global_stores + c.atomics),
            load_sectors: all(c.global_load_sectors),
            store_sectors: all(c.global_store_sectors),
            cached_sectors: all(c.global_load_sectors.saturating_sub(self.sampled.fetched)),
            shared_loads: all(c.shared_loads + c.matrix_moves),
            shared_stores: all(c.shared_stores),
            load_wavefronts: all(c.shared_load_wavefronts),
            load_wavefronts_ideal: all(c.shared_load_wavefronts_ideal),
            store_wavefronts: all(c.shared_store_wavefronts),
            store_wavefronts_ideal: all(c.shared_store_wavefronts_ideal),
            arithmetic: arithmetic + instructions,
            shuffles: all(c.shuffles),
            barriers: all(c.barriers),
            overhead: around(blocks * warps, buffers, all(self.sampled.laps) * warps),
            read_bytes: once,
            written_bytes: written,
            again_bytes: again,
            // All of it is wanted again, or nothing.
            again_live: if stays_in_l2(once, gpu) { 0.0 } else { f64::INFINITY },
            shared_bytes: kernel.shared_bytes.into(),
            held_registers: self.held_registers,
            ..KernelWork::default()
        };
        let slots = work.arithmetic + work.overhead + work.shared_loads + work.global_loads + work.shared_stores;
        let [from_global, from_shared] = rounds(kernel);
        let staged = kernel.arrays.iter().any(|a| a.space == Space::Shared);
        let [dram, l2] = if staged { [from_global, 0.0] } else { [from_global.min(1.0), (from_global - 1.0).max(0.0)] };
        work.chain = [dram, l2, from_shared, slots / (blocks * warps) / STEP_CLOCKS];
        work
    }

    /// Bytes of each array between DRAM and L2.
    fn moved(&self) -> BTreeMap<ArrayId, Moved> {
        let blocks = self.blocks();
        let slots = (self.resident as f64 * f64::from(self.gpu.sms)).min(blocks);
        let panels = panels(self.kernel, slots as u64);
        let of = |(id, array): (ArrayId, &Array)| {
            let Touched { read, written } = self.sampled.touched.get(&id).copied().unwrap_or_default();
            let of_block = |sectors: u64| sectors as f64 * 32.0 / self.sampled.blocks as f64;
            let whole = array.len as f64 * f64::from(array.dtype.bytes());
            let once = whole.min(blocks * of_block(read));
            let in_wave = panels.get(&id).copied().unwrap_or(slots as usize) as f64 * of_block(read);
            let by_waves = (in_wave.min(whole) * blocks / slots).clamp(once, (blocks * of_block(read)).max(once));
            (id, Moved { once, by_waves, written: whole.min(blocks * of_block(written)) })
        };
        self.kernel.params().map(of).collect()
    }
}

/// How often a thread waits, one after the other: for what it loads from global memory, and from shared memory. Loads between two
/// barriers, or in one iteration of a loop, are waited for together.
fn rounds(kernel: &Kernel) -> [f64; 2] {
    let mut walk = Rounds { kernel, found: [0.0; 2], open: [false; 2] };
    walk.list(&kernel.body, 1.0);
    walk.close(1.0);
    walk.found
}

struct Rounds<'k> {
    kernel: &'k Kernel,
    found: [f64; 2],
    /// Loads that nothing has waited for yet.
    open: [bool; 2],
}

impl Rounds<'_> {
    fn close(&mut self, times: f64) {
        for (found, open) in self.found.iter_mut().zip(&mut self.open) {
            *found += if std::mem::take(open) { times } else { 0.0 };
        }
    }

    fn reads(&mut self, array: ArrayId) {
        match self.kernel.array(array).space {
            Space::Global => self.open[0] = true,
            Space::Shared => self.open[1] = true,
            Space::Register | Space::Fragment | Space::Opaque | Space::Tensor => {}
        }
    }

    fn list(&mut self, body: &[Stmt], times: f64) {
        for stmt in body {
            match stmt {
                Stmt::For { extent, unroll, body, .. } => {
                    let extent = if let Index::Const(n) = extent { *n as f64 } else { 1.0 };
                    let (laps, inside) = match unroll {
                        Unroll::Full => (1.0, extent),
                        Unroll::No => (extent, 1.0),
                        Unroll::By(n) => (extent / f64::from(*n), f64::from(*n)),
                        Unroll::Auto => {
                            let inside = TOGETHER.min(extent.max(1.0));
                            (extent / inside, inside)
                        }
                    };
                    if has_barrier(body) {
                        self.list(body, times * laps * inside);
                    } else {
                        let before = std::mem::take(&mut self.open);
                        self.list(body, times * laps);
                        if laps > 1.0 {
                            self.close(times * laps);
                        }
                        self.open.iter_mut().zip(before).for_each(|(open, before)| *open |= before);
                    }
                }
                Stmt::If { then, otherwise, .. } => {
                    self.list(then, times);
                    self.list(otherwise, times);
                }
                Stmt::Fetch { value, .. } | Stmt::Store { value, .. } | Stmt::AtomicAdd { value, .. } => {
                    value.loads(&mut |array, _| self.reads(array));
                }
                Stmt::Copy { src, .. }
                | Stmt::Warp(WarpOp::LoadMatrix { src, .. })
                | Stmt::Warp(WarpOp::Wmma(WmmaOp::Load { src: (src, _), .. })) => self.reads(*src),
                Stmt::AsyncWait(latest) => self.found[0] += times / f64::from(latest + 1),
                Stmt::Barrier | Stmt::Group(GroupOp::NamedBarrier { .. }) => self.close(times),
                // The producer is as far ahead as there are places.
                Stmt::Group(GroupOp::WaitPhase { barrier: (places, _), .. }) => {
                    self.found[0] += times / self.kernel.array(*places).len.max(1) as f64;
                }
                // Those that multiply wait for the others.
                Stmt::Roles(roles) => roles.last().into_iter().for_each(|role| self.list(&role.body, times)),
                Stmt::Let { .. } | Stmt::AsyncCopy { .. } | Stmt::AsyncCommit => {}
                Stmt::Warp(_) | Stmt::Group(_) | Stmt::Comment(_) => {}
            }
        }
    }
}

fn has_barrier(body: &[Stmt]) -> bool {
    body.iter().any(|stmt| match stmt {
        Stmt::Barrier | Stmt::Group(GroupOp::NamedBarrier { .. }) => true,
        Stmt::For { body, .. } => has_barrier(body),
        Stmt::If { then, otherwise, .. } => has_barrier(then) || has_barrier(otherwise),
        _ => false,
    })
}

/// What instructions on matrices of a kernel take: clocks of tensor cores, and machine instructions.
///
/// # Errors
/// The first that the GPU does not have.
pub(super) fn matrix_instructions(kernel: &Kernel, gpu: &Descriptor) -> Result<Vec<[f64; 2]>, String> {
    let clocks = |op| match op {
        Multiplication::Warp(op) => matrix_clocks(op, gpu).ok_or_else(|| format!("{} has no {op}", gpu.name)),
        Multiplication::Group(op) => group_clocks([op.operand, op.accumulator()], [op.n, op.k()], gpu)
            .ok_or_else(|| format!("{} has no wgmma", gpu.name)),
    };
    multiplications(&kernel.body).into_iter().map(clocks).collect()
}

/// An instruction that multiplies matrices.
enum Multiplication {
    Warp(Mma),
    Group(Wgmma),
}

/// The multiplications of matrices in statements.
fn multiplications(body: &[Stmt]) -> Vec<Multiplication> {
    let of = |stmt: &Stmt| match stmt {
        Stmt::Warp(WarpOp::Wmma(WmmaOp::Multiply { op, .. })) => vec![Multiplication::Warp(Mma::Wmma(*op))],
        Stmt::Warp(WarpOp::Mma { op, .. }) => vec![Multiplication::Warp(*op)],
        Stmt::Group(GroupOp::Matrix { op, .. }) => vec![Multiplication::Group(*op)],
        Stmt::For { body, .. } => multiplications(body),
        Stmt::If { then, otherwise, .. } => [then, otherwise].into_iter().flat_map(|s| multiplications(s)).collect(),
        Stmt::Roles(roles) => roles.iter().flat_map(|role| multiplications(&role.body)).collect(),
        _ => Vec::new(),
    };
    body.iter().flat_map(of).collect()
}

/// Of the first blocks so many, as many as run at once: how many different places of each array they begin to read at. Blocks that
/// begin at one place read the same.
fn panels(kernel: &Kernel, blocks: u64) -> BTreeMap<ArrayId, usize> {
    let [x, y, _] = kernel.grid.map(u64::from);
    let mut places: BTreeMap<ArrayId, HashSet<i64>> = BTreeMap::new();
    for number in 0..blocks {
        let block = [number % x, number / x % y, number / x / y].map(|n| n as i64);
        let mut begin = Begin { kernel, block, vars: HashMap::new(), found: BTreeMap::new() };
        begin.list(&kernel.body);
        for (array, at) in begin.found {
            places.entry(array).or_default().insert(at);
        }
    }
    places.into_iter().map(|(array, places)| (array, places.len())).collect()
}

/// Where a block's first thread begins to read each array, all loops at their beginning.
struct Begin<'k> {
    kernel: &'k Kernel,
    block: [i64; 3],
    vars: HashMap<LocalVar, i64>,
    found: BTreeMap<ArrayId, i64>,
}

impl Begin<'_> {
    fn list(&mut self, body: &[Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::For { var, start, body, .. } => {
                    let start = self.index(start);
                    self.vars.insert(*var, start);
                    self.list(body);
                }
                Stmt::If { then, otherwise, .. } => {
                    self.list(then);
                    self.list(otherwise);
                }
                Stmt::Let { var, value, .. } => {
                    let value = self.index(value);
                    self.vars.insert(*var, value);
                }
                Stmt::Fetch { value, .. } | Stmt::Store { value, .. } | Stmt::AtomicAdd { value, .. } => {
                    value.loads(&mut |array, at| self.reads(array, at));
                }
                Stmt::Copy { src, src_index, .. } | Stmt::AsyncCopy { src, src_index, .. } => {
                    self.reads(*src, src_index)
                }
                Stmt::Group(GroupOp::LoadTile { map, at, .. }) => self.reads_box(*map, at),
                Stmt::Roles(roles) => roles.iter().for_each(|role| self.list(&role.body)),
                _ => {}
            }
        }
    }

    fn reads_box(&mut self, map: u32, at: &[Index]) {
        let Some(map) = self.kernel.tensor_maps.get(map as usize) else { return };
        let steps = std::iter::once(1).chain(map.strides.iter().map(|step| *step as i64));
        let first = at.iter().zip(steps).map(|(at, step)| self.index(at) * step).sum();
        self.found.entry(map.array).or_insert(first);
    }

    fn reads(&mut self, array: ArrayId, at: &Index) {
        if self.kernel.array(array).space == Space::Global && !self.found.contains_key(&array) {
            let at = self.index(at);
            self.found.insert(array, at);
        }
    }

    fn index(&self, index: &Index) -> i64 {
        let two = |a: &Index, b: &Index| (self.index(a), self.index(b));
        let of = |dim: &Dim| match dim {
            Dim::X => self.block[0],
            Dim::Y => self.block[1],
            Dim::Z => self.block[2],
        };
        match index {
            Index::Const(n) => *n,
            Index::Var(var) => self.vars.get(var).copied().unwrap_or(0),
            Index::BlockIdx(dim) => of(dim),
            Index::ThreadIdx(_) => 0,
            Index::Add(a, b) => self.index(a) + self.index(b),
            Index::Sub(a, b) => self.index(a) - self.index(b),
            Index::Mul(a, b) => self.index(a) * self.index(b),
            Index::Div(a, b) => self.index(a).checked_div_euclid(self.index(b)).unwrap_or(0),
            Index::Mod(a, b) => self.index(a).checked_rem_euclid(self.index(b)).unwrap_or(0),
            Index::Min(a, b) => self.index(a).min(self.index(b)),
            Index::Max(a, b) => self.index(a).max(self.index(b)),
            Index::Xor(a, b) => self.index(a) ^ self.index(b),
            Index::And(a, b) => self.index(a) & self.index(b),
            Index::Shl(a, b) => two(a, b).0 << (two(a, b).1 & 63),
            Index::Shr(a, b) => two(a, b).0 >> (two(a, b).1 & 63),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::program::lower;
    use crate::operators;
    use crate::scheduled;
    use crate::source::{operator, Work};
    use crate::workload::{Explorable, Workload};
    use rand::rngs::StdRng;
    use rand::SeedableRng;
    use satune_extract::stream::counted_cost;
    use satune_extract::{Counts, Searched};
    use satune_ir::term::Schedule;

    /// Of random members of a space that have kernels: what these are counted to take over what the model takes for their decisions.
    fn ratios<W: Explorable>(
        problem: &W,
        gpu: &Descriptor,
        draws: usize,
        kernels: &dyn Fn(&Schedule) -> Option<Module>,
    ) -> Vec<f64> {
        let space = problem.space(gpu).unwrap();
        let counts = Counts::of(&space);
        let mut rng = StdRng::seed_from_u64(3);
        let mut out = Vec::new();
        while out.len() < draws {
            let Some(term) = counts.sample(&space, &mut rng) else { continue };
            let plan = W::Term::schedule(&term, problem.problem()).unwrap();
            let (Ok(cost), Some(module)) = (problem.predict(&plan, gpu), kernels(&plan)) else { continue };
            let registers: Vec<u32> = if module.kernels.len() == 1 { vec![cost.registers as u32] } else { Vec::new() };
            let works = works(&module, &registers, gpu, &|| true).unwrap();
            out.push(counted_cost(&works, gpu).unwrap().ms / cost.ms);
        }
        out.sort_by(f64::total_cmp);
        out
    }

    #[test]
    fn kernels_on_wmma_are_counted_to_take_about_what_the_model_takes() {
        let problem = operators::parse("gemm:512,384,256,f16,NT").unwrap();
        let gpu = Descriptor::load("v100").unwrap();
        let options = scheduled::options(&gpu);
        let written = |plan: &Schedule| {
            let made = matches!(plan, Schedule::Mma(_)).then(|| problem.scheduled(plan, &options).ok())??;
            Some(lower(&made.program, &options).unwrap())
        };
        let all = ratios(&problem, &gpu, 9, &written);
        assert!((0.7..1.4).contains(&all[4]), "{all:?}");
    }

    #[test]
    fn kernels_are_counted_to_take_about_what_the_model_takes_for_their_schedules() {
        let gpu = Descriptor::load("h200").unwrap();
        let gemm = operators::parse("gemm:512,384,256,f32").unwrap();
        let Work::Streams(softmax) = operator("softmax:2048,1024,f32").unwrap() else { panic!("no streams") };
        // Of rows in parts L1 has more than the model lets it.
        let options = scheduled::options(&gpu);
        let of_gemm = |plan: &Schedule| gemm.scheduled(plan, &options).ok().map(|made| made.module);
        let of_softmax = |plan: &Schedule| softmax.scheduled(plan, &options).ok().map(|made| made.module);
        for (all, least) in [(ratios(&gemm, &gpu, 9, &of_gemm), 0.8), (ratios(&*softmax, &gpu, 9, &of_softmax), 0.7)] {
            let middle = all[all.len() / 2];
            assert!((least..1.25).contains(&middle), "{all:?}");
        }
    }
}
