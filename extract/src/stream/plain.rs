//! Counts of plain kernels: a thread for each result or for some that lie side by side, or threads that share a sum. What a block in
//! the middle loads is looked at access by access; the rest is estimated.
use super::accesses::Touched;
use super::counts::{starts, up, KernelWork, EXCHANGE, LAP};
use satune_ir::affine::linear::Linear;
use satune_ir::affine::{int, value_of, Domains};
use satune_ir::machine::{self, SECTOR};
use satune_ir::term::stream::{BlockKind, Indexed, PlainPlan, Stream, StreamBlock, StreamBuffer};
use satune_ir::{visit, DType, Expr, Range, VarId};
use std::collections::{HashMap, HashSet};

/// Sectors of a warp's access of which nothing is known (estimate).
const UNKNOWN_SECTORS: f64 = 8.0;
/// Most steps of a loop that compilers expand (estimate).
const EXPANDED: f64 = 16.0;
/// Steps of a longer loop, or of any that is left to them, that they expand together: NVRTC 13.0 expands a loop over loads by
/// four or eight.
pub const TOGETHER: f64 = 4.0;
/// Most bytes of an access.
const ACCESS_BYTES: i64 = 16;
/// Steps of a block that are looked at, and of all its threads together (estimate).
const STEPS: i64 = 64;
const THREAD_STEPS: i64 = 1 << 15;
/// L1 for each thread that a multiprocessor has room for, sectors (estimate: 96 KB for 2048 threads).
const L1_SECTORS: f64 = 1.5;

/// The work of a kernel of these blocks: what makes the results, and the map that they go through.
pub(super) fn work(plan: &PlainPlan, stream: &Stream, blocks: &[StreamBlock]) -> KernelWork {
    let [b, maps @ ..] = blocks else { return KernelWork::default() };
    let threads = Threads::of(plan, stream, b);
    let (warps, vector) = (threads.warps(), plan.vector as f64);
    let steps = threads.steps(0) as f64;
    let mut work = KernelWork { blocks: up(b.results(), plan.results()) as f64, ..KernelWork::default() };
    if b.kind == BlockKind::Bound {
        for _ in b.loads() {
            let times = warps * steps;
            work.global(Touched { instructions: times, sectors: times * UNKNOWN_SECTORS }, false);
        }
    }
    threads.loads(b, maps, &mut work);
    // An element that is changed is loaded, too.
    let written = maps.last().unwrap_or(b).write.buffer;
    let bytes = i64::from(stream.buffers[written].dtype.bytes());
    let stored = Touched {
        instructions: warps * up(plan.vector * bytes, ACCESS_BYTES) as f64,
        sectors: warps * up(32 * plan.vector * bytes, SECTOR as i64) as f64,
    };
    if b.updates {
        work.global(stored, false);
    }
    work.global(stored, true);
    maps.iter().for_each(|map| beside(map, [warps, warps], vector, &mut work));
    // What the innermost loop does not change is computed before it; a short one is expanded.
    let inner = threads.steps(b.iters.len().saturating_sub(1)).max(1) as f64;
    let laps = if inner <= EXPANDED { steps / inner } else { (steps / TOGETHER).ceil() };
    beside(b, [warps * steps, warps * steps / inner], vector, &mut work);
    let buffers = b.loads().count() + maps.iter().map(|map| map.loads().count() - 1).sum::<usize>();
    work.overhead = starts(warps, buffers + 1) + if laps > 1.0 { warps * laps * LAP } else { 0.0 };
    // The loads of a lap wait for L1 or L2, one lap after the other.
    work.chain = [1.0, laps - 1.0, 0.0, vector * steps * f64::from(b.arithmetic + 4 * b.special).max(1.0)];
    // Beyond those of one result: a sum for each, and what is loaded for it in the steps that are expanded.
    let words = b.loaded.iter().map(|load| i64::from(stream.buffers[load.buffer].dtype.bytes()));
    let in_flight = words.sum::<i64>() * (inner.min(TOGETHER) as i64);
    work.held_registers = (plan.vector - 1) * (1 + up(in_flight, 4));
    // Lanes of a warp halve what is left step by step; other threads exchange their parts, and read all of them.
    let each = plan.sharing.map_or(1, |s| s.threads);
    let lanes = plan.sharing.is_some_and(|s| s.lanes);
    let parts = if lanes { each / 32 } else { each };
    if lanes {
        work.shuffles += 5.0 * warps;
        work.arithmetic += 5.0 * warps;
        work.chain[3] += 5.0 * 6.0;
    }
    if parts > 1 {
        work.barriers += warps;
        work.shared(warps, 4, true);
        work.shared(warps * parts as f64, 4, false);
        work.arithmetic += warps * parts as f64;
        work.overhead += EXCHANGE * warps;
        work.chain[2] += parts as f64;
    }
    work
}

/// Operations of a block for so many results side by side: what these have alike is computed once. In f16 no instruction takes two.
fn beside(b: &StreamBlock, times: [f64; 2], vector: f64, work: &mut KernelWork) {
    for ((all, apart), times) in b.issued.iter().zip(&b.apart).zip(times) {
        work.issues(apart, times * vector, true);
        work.issues(&all.since(*apart), times, true);
    }
}

/// The threads of a plain kernel, and what each of them computes.
struct Threads<'a> {
    plan: &'a PlainPlan,
    stream: &'a Stream,
    block: &'a StreamBlock,
    /// Spatial iterators in the order in which results are numbered.
    order: Vec<usize>,
    /// Threads that share a sum.
    each: i64,
}

impl<'a> Threads<'a> {
    fn of(plan: &'a PlainPlan, stream: &'a Stream, block: &'a StreamBlock) -> Threads<'a> {
        // A sum is held, and its threads follow the elements that are written.
        let written: Vec<usize> = block.write.dims.iter().flatten().copied().collect();
        let spatial: Vec<usize> = (0..block.iters.len()).filter(|i| !block.iters[*i].reduce).collect();
        let follows = stream.holds_sum(block) && written.len() == spatial.len();
        let order = if follows { written } else { spatial };
        Threads { plan, stream, block, order, each: plan.sharing.map_or(1, |s| s.threads) }
    }

    fn warps(&self) -> f64 {
        let blocks = up(self.block.results(), self.plan.results());
        let all = self.block.results() / self.plan.vector * self.each;
        up(all, 32).min(blocks * up(self.plan.teams * self.each, 32)) as f64
    }

    /// Values that a thread takes of an iterator that is reduced over.
    fn own(&self, iter: usize) -> i64 {
        let extent = self.block.iters[iter].extent;
        match self.plan.sharing {
            Some(s) if s.iter == iter => up(extent, s.threads),
            _ => extent,
        }
    }

    /// Steps of a thread in the loops from iterator `from` on.
    fn steps(&self, from: usize) -> i64 {
        let reduced = (from..self.block.iters.len()).filter(|i| self.block.iters[*i].reduce);
        reduced.map(|i| self.own(i)).fold(1, i64::saturating_mul)
    }

    /// The values of the iterators in a step of a thread for one of its results; none where there is nothing to do.
    fn at(&self, thread_block: i64, thread: i64, element: i64, step: i64, values: &mut [i64]) -> Option<()> {
        let lanes = self.plan.sharing.is_some_and(|s| s.lanes);
        let (team, part) = match lanes {
            true => (thread / self.each, thread % self.each),
            false => (thread % self.plan.teams, thread / self.plan.teams),
        };
        let mut left = (thread_block * self.plan.teams + team) * self.plan.vector + element;
        if left >= self.block.results() {
            return None;
        }
        for iter in self.order.iter().rev() {
            let extent = self.block.iters[*iter].extent;
            values[*iter] = left % extent;
            left /= extent;
        }
        let mut left = step;
        for iter in (0..self.block.iters.len()).rev().filter(|i| self.block.iters[*i].reduce) {
            let own = self.own(iter);
            values[iter] = left % own;
            left /= own;
            if self.plan.sharing.is_some_and(|s| s.iter == iter) {
                values[iter] = values[iter] * self.each + part;
                if values[iter] >= self.block.iters[iter].extent {
                    return None;
                }
            }
        }
        Some(())
    }

    /// What is loaded from global memory: a block in the middle is looked at, for some steps, with the sectors that L1 still has. A load
    /// that does not change in the innermost loops is made before them.
    fn loads(&self, b: &StreamBlock, maps: &[StreamBlock], work: &mut KernelWork) {
        let made = b.write.buffer;
        let of_maps = maps.iter().flat_map(|map| &map.loaded).filter(|load| load.buffer != made);
        let mut loads: Vec<Load> = b.loaded.iter().chain(of_maps).map(|load| Load::of(load, self)).collect();
        let all = self.steps(0);
        let threads = self.plan.teams * self.each;
        let looked = all.min(STEPS).min((THREAD_STEPS / threads).max(1));
        let middle = up(b.results(), self.plan.results()) / 2;
        let mut l1 = L1 { size: (L1_SECTORS * threads as f64) as u64, came: HashMap::new(), count: 0 };
        let mut values = vec![0; b.iters.len()];
        // What neighbours, and steps that are expanded, want of the same elements is loaded once.
        let together = self.steps(b.iters.len().saturating_sub(1)).max(1);
        let together = if together as f64 <= EXPANDED { together } else { 1 };
        let mut seen = HashSet::new();
        for step in 0..looked {
            if step % together == 0 {
                seen.clear();
            }
            for load in loads.iter_mut().filter(|load| step % load.inside == 0) {
                load.steps += 1;
                for first in (0..threads).step_by(32) {
                    let lanes = first..(first + 32).min(threads);
                    let mut at = |lane, element| {
                        self.at(middle, lane, element, step, &mut values)?;
                        Some(load.place.at(&values))
                    };
                    let own: Vec<Vec<i64>> =
                        lanes.filter_map(|lane| (0..self.plan.vector).map(|e| at(lane, e)).collect()).collect();
                    load.access(&own, &mut seen, &mut l1);
                }
            }
        }
        // The last warps may be without results.
        let mut works = |lane: i64| self.at(middle, lane, 0, 0, &mut values).is_some();
        let warps = (0..threads).step_by(32).filter(|first| (*first..threads.min(first + 32)).any(&mut works));
        let of_block = warps.count().max(1) as f64;
        for load in &loads {
            let times = (all / load.inside) as f64 / load.steps.max(1) as f64 * self.warps() / of_block;
            work.cached_sectors += load.cached * times;
            work.global(load.touched.times(times), false);
        }
    }
}

/// A load, and what has been seen of it.
struct Load {
    place: Place,
    /// Bytes of an element.
    bytes: i64,
    /// Steps of the loops inside of it, in which it stays the same.
    inside: i64,
    /// Whether a condition decides on it.
    chosen: bool,
    /// Steps that were looked at.
    steps: i64,
    touched: Touched,
    cached: f64,
}

impl Load {
    fn of(load: &Indexed, threads: &Threads<'_>) -> Load {
        let b = threads.block;
        let buffer = &threads.stream.buffers[load.buffer];
        let moves =
            |i: &usize| b.iters[*i].reduce && load.index.iter().any(|e| visit::uses_var(e, &|v| v.0 as usize == *i));
        let used = (0..b.iters.len()).rev().find(moves).map_or(0, |last| last + 1);
        Load {
            place: Place::of(load, buffer, b),
            bytes: i64::from(buffer.dtype.bytes()),
            inside: threads.steps(used).max(1),
            chosen: load.chosen,
            steps: 0,
            touched: Touched::default(),
            cached: 0.0,
        }
    }

    /// What a warp loads that it has not yet, by the elements that each of its threads wants: one for all results, neighbours by as few
    /// accesses as are aligned, or each by itself.
    fn access(&mut self, lanes: &[Vec<i64>], seen: &mut HashSet<(usize, u32, Vec<u64>)>, l1: &mut L1) {
        let vector = lanes.first().map_or(1, Vec::len) as i64;
        let same = |own: &Vec<i64>| own.iter().all(|at| *at == own[0]);
        let run = |own: &Vec<i64>| own.iter().zip(own[0]..).all(|(at, next)| *at == next);
        let aligned = |wide: i64| lanes.iter().all(|own| run(own) && own[0] % wide == 0);
        let most = (ACCESS_BYTES / self.bytes).max(1);
        // Results of an access, and elements that it brings.
        let [results, elements] = if lanes.iter().all(same) {
            [vector, 1]
        } else {
            let wide = [8, 4, 2].into_iter().find(|w| *w <= most && vector % w == 0 && aligned(*w));
            [wide.unwrap_or(1); 2]
        };
        for first in (0..vector).step_by(results as usize) {
            let starts = lanes.iter().map(|own| (own[first as usize] * self.bytes).max(0) as u64);
            let addresses: Vec<u64> = starts.collect();
            let bytes = (elements * self.bytes) as u32;
            if !self.chosen && !seen.insert((self.place.buffer, bytes, addresses.clone())) {
                continue;
            }
            let sectors = machine::sectors_of(&addresses, bytes);
            self.touched.instructions += f64::from(u8::from(!addresses.is_empty()));
            self.touched.sectors += sectors.len() as f64;
            let has = sectors.into_iter().filter(|sector| l1.has(self.place.buffer, *sector)).count();
            self.cached += has as f64;
        }
    }
}

/// The sectors that a block finds in L1: first in, first out.
struct L1 {
    size: u64,
    came: HashMap<(usize, u64), u64>,
    count: u64,
}

impl L1 {
    /// Whether it has a sector, which it has from now on.
    fn has(&mut self, buffer: usize, sector: u64) -> bool {
        let known = self.came.get(&(buffer, sector)).is_some_and(|at| at + self.size > self.count);
        if !known {
            self.count += 1;
            self.came.insert((buffer, sector), self.count);
        }
        known
    }
}

/// Which element of a buffer a load takes, counted from the first.
struct Place {
    buffer: usize,
    /// What the values of the iterators are multiplied by, and what is added.
    linear: (Vec<i64>, i64),
    /// Dimensions whose index is no such sum: the index, the iterators that it depends on, the extent, the elements of a step along it.
    others: Vec<(Expr, Vec<usize>, i64, i64)>,
}

impl Place {
    fn of(load: &Indexed, buffer: &StreamBuffer, b: &StreamBlock) -> Place {
        let range = |extent: i64| Range { min: int(0, DType::I32), extent: int(extent, DType::I32) };
        let domains: Domains = b.iters.iter().enumerate().map(|(i, it)| (VarId(i as u32), range(it.extent))).collect();
        let mut out = Place { buffer: load.buffer, linear: (vec![0; b.iters.len()], 0), others: Vec::new() };
        let mut stride = 1_i64;
        for (index, extent) in load.index.iter().zip(&buffer.dims).rev() {
            let form = Linear::of(index, &domains);
            let number = |e: &Expr| if let Expr::Var(v) = e { Some(v.id.0 as usize) } else { None };
            match form.filter(|form| form.terms().iter().all(|(atom, _)| number(atom).is_some())) {
                Some(form) => {
                    out.linear.1 += form.offset().saturating_mul(stride);
                    for (atom, factor) in form.terms() {
                        if let Some(own) = number(atom).and_then(|i| out.linear.0.get_mut(i)) {
                            *own += factor.saturating_mul(stride);
                        }
                    }
                }
                None => {
                    let used = |i: &usize| visit::uses_var(index, &|v| v.0 as usize == *i);
                    let used = (0..b.iters.len()).filter(used).collect();
                    out.others.push((index.clone(), used, *extent, stride));
                }
            }
            stride = stride.saturating_mul(*extent);
        }
        out
    }

    /// An index from data may be any: the same wherever what it depends on is.
    fn at(&self, values: &[i64]) -> i64 {
        let sum = |all: i64, (value, factor): (&i64, &i64)| all.wrapping_add(value.wrapping_mul(*factor));
        let mut all = values.iter().zip(&self.linear.0).fold(self.linear.1, sum);
        for (index, used, extent, stride) in &self.others {
            let known = value_of(index, &|v| values.get(v.0 as usize).copied());
            let at = known.unwrap_or_else(|| {
                let mix = |seed: u64, i: &usize| (seed ^ values[*i] as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7;
                (used.iter().fold(1, mix) % (*extent).max(1) as u64) as i64
            });
            all = all.wrapping_add(at.wrapping_mul(*stride));
        }
        all
    }
}
