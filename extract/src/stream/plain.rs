//! Counts of plain kernels: a thread for each result or for some that lie side by side, or threads that share a sum. What a block in
//! the middle loads is looked at access by access; the rest is estimated.
use super::accesses::Touched;
use super::counts::{starts, up, KernelWork, EXCHANGE, LAP};
use satune_ir::affine::linear::Linear;
use satune_ir::affine::{int, value_of, Domains};
use satune_ir::machine::{self, SECTOR};
use satune_ir::term::stream::{
    BlockKind, Indexed, PartValue, PlainHeld, PlainPlan, PlainStep, Stream, StreamBlock, StreamBuffer,
};
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

/// The work of a kernel of these blocks: what makes the results, and the maps before and after it.
pub(super) fn work(plan: &PlainPlan, stream: &Stream, blocks: &[StreamBlock]) -> KernelWork {
    let mut work = least(plan, stream, blocks);
    if let Some((b, beside)) = of(plan, blocks) {
        Threads::of(plan, stream, b).loads(b, beside, &mut work);
    }
    work
}

/// What makes the results, and the maps before and after it.
fn of<'b>(plan: &PlainPlan, blocks: &'b [StreamBlock]) -> Option<(&'b StreamBlock, [Option<&'b StreamBlock>; 2])> {
    let named = |name: &String| blocks.iter().find(|b| b.name == *name);
    Some((named(&plan.block)?, [&plan.before, &plan.map].map(|name| name.as_ref().and_then(named))))
}

/// The same but for what is looked at access by access, which only adds to it.
pub(super) fn least(plan: &PlainPlan, stream: &Stream, blocks: &[StreamBlock]) -> KernelWork {
    let Some((b, [before, map])) = of(plan, blocks) else { return KernelWork::default() };
    let threads = Threads::of(plan, stream, b);
    let (warps, vector, windows) = (threads.warps(), plan.vector as f64, threads.windows() as f64);
    let steps = threads.steps(0) as f64;
    let mut work = KernelWork { blocks: up(b.results(), plan.results()) as f64, ..KernelWork::default() };
    if b.kind == BlockKind::Bound {
        for _ in b.loads() {
            let times = warps * steps;
            work.global(Touched { instructions: times, sectors: times * UNKNOWN_SECTORS }, false);
        }
    }
    // An element that is changed is loaded, too.
    let written = map.unwrap_or(b).write.buffer;
    let bytes = i64::from(stream.buffers[written].dtype.bytes());
    let stored = Touched {
        instructions: warps * up(plan.vector * bytes, ACCESS_BYTES) as f64,
        sectors: warps * up(32 * plan.vector * bytes, SECTOR as i64) as f64,
    };
    if b.updates {
        work.global(stored, false);
    }
    work.global(stored.times(windows), true);
    if let Some(map) = map {
        beside(map, [warps * windows; 2], vector, &mut work);
    }
    // What the innermost loop does not change is computed before it; a short one is expanded, as a step of several results is.
    let inner = threads.inner() as f64;
    let expanded = !threads.step.inside.is_empty() || inner <= EXPANDED;
    let laps = if expanded { steps / inner } else { (steps / TOGETHER).ceil() };
    match threads.step.inside.is_empty() {
        true => beside(b, [steps, steps / inner].map(|times| warps * windows * times), vector, &mut work),
        false => b.parts.iter().for_each(|part| work.issues(&part.issued, warps * laps * threads.times(part), true)),
    }
    if let Some(before) = before {
        let of = |part: &PartValue| warps * laps * threads.times_before(part, before);
        before.parts.iter().for_each(|part| work.issues(&part.issued, of(part), true));
    }
    let others = [before, map].into_iter().flatten().map(|map| map.loads().count() - 1);
    let buffers = b.loads().count() + others.sum::<usize>();
    work.overhead = starts(warps, buffers + 1) + if laps > 1.0 { warps * laps * LAP } else { 0.0 };
    // The loads of a lap wait for L1 or L2, one lap after the other; sums of a thread do not wait for each other.
    work.chain = [1.0, laps - 1.0, 0.0, steps * f64::from(b.arithmetic + 4 * b.special).max(1.0)];
    // Beyond those of one result: a sum for each, and what is loaded for it in the steps that are expanded, or held for one.
    let words = |buffer: usize, times: i64| up(i64::from(stream.buffers[buffer].dtype.bytes()) * times, 4);
    work.held_registers = if plan.before.is_none() && plan.window.is_none() {
        let bytes: i64 = b.loaded.iter().map(|load| i64::from(stream.buffers[load.buffer].dtype.bytes())).sum();
        (plan.vector - 1) * (1 + up(bytes * (inner as i64).min(TOGETHER as i64), 4))
    } else {
        let held = threads.step.held.iter().map(|held| words(held.buffer, held.elements()));
        let alone = b.loaded.iter().filter(|load| threads.held(load.buffer).is_none());
        plan.of_thread() - 1 + held.sum::<i64>() + alone.map(|load| words(load.buffer, plan.vector)).sum::<i64>()
    };
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
    /// What is added up in a step, where a thread has several results.
    step: PlainStep,
    /// Iterators that are reduced over, from the outside in.
    serial: Vec<usize>,
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
        let blocks = stream.plain_of(plan);
        let step = blocks.map(|blocks| stream.plain_step(blocks, plan.vector, plan.window)).unwrap_or_default();
        let serial = step.outside.iter().chain(&step.inside).copied().collect();
        Threads { plan, stream, block, order, step, serial, each: plan.sharing.map_or(1, |s| s.threads) }
    }

    fn warps(&self) -> f64 {
        let blocks = up(self.block.results(), self.plan.results());
        let all = self.block.results() / self.plan.of_thread() * self.each;
        up(all, 32).min(blocks * up(self.plan.teams * self.each, 32)) as f64
    }

    /// Results of a thread along its window.
    fn windows(&self) -> i64 {
        self.plan.window.map_or(1, |w| w.results)
    }

    /// What the threads hold of a buffer.
    fn held(&self, buffer: usize) -> Option<&PlainHeld> {
        self.step.held.iter().find(|held| held.buffer == buffer)
    }

    /// Values that a thread takes of an iterator that is reduced over.
    fn own(&self, iter: usize) -> i64 {
        let extent = self.block.iters[iter].extent;
        match self.plan.sharing {
            Some(s) if s.iter == iter => up(extent, s.threads),
            _ => extent,
        }
    }

    /// Steps of a thread in the loops of its sum from number `from` on, outermost first.
    fn steps(&self, from: usize) -> i64 {
        self.serial[from.min(self.serial.len())..].iter().map(|i| self.own(*i)).fold(1, i64::saturating_mul)
    }

    /// Steps of its innermost loop, or of those that a step of several results has.
    fn inner(&self) -> i64 {
        let count = self.step.inside.len().max(1);
        self.steps(self.serial.len().saturating_sub(count)).max(1)
    }

    /// The values of the iterators in a step of a thread for one of its results; none where there is nothing to do.
    fn at(&self, thread_block: i64, thread: i64, element: i64, step: i64, values: &mut [i64]) -> Option<()> {
        let lanes = self.plan.sharing.is_some_and(|s| s.lanes);
        let (team, part) = match lanes {
            true => (thread / self.each, thread % self.each),
            false => (thread % self.plan.teams, thread / self.plan.teams),
        };
        let (beside, along) = (element % self.plan.vector, element / self.plan.vector);
        let mut left = thread_block * self.plan.teams + team;
        if left >= self.block.results() / self.plan.of_thread() {
            return None;
        }
        for (at, iter) in self.order.iter().enumerate().rev() {
            // Results of a thread along it, and which of them this is.
            let (own, number) = match self.plan.window {
                Some(window) if window.iter == *iter => (window.results, along),
                _ if at + 1 == self.order.len() => (self.plan.vector, beside),
                _ => (1, 0),
            };
            let extent = self.block.iters[*iter].extent / own;
            values[*iter] = left % extent * own + number;
            left /= extent;
        }
        let mut left = step;
        for iter in self.serial.iter().rev() {
            let own = self.own(*iter);
            values[*iter] = left % own;
            left /= own;
            if self.plan.sharing.is_some_and(|s| s.iter == *iter) {
                values[*iter] = values[*iter] * self.each + part;
                if values[*iter] >= self.block.iters[*iter].extent {
                    return None;
                }
            }
        }
        Some(())
    }

    /// How often a value of the block is computed in a step of several results: once for those of them, and for what is added up in it,
    /// of which it does not depend.
    fn times(&self, part: &PartValue) -> f64 {
        let b = self.block;
        // What is computed of one element that is held is found again.
        if let Some(held) = part.buffers.first().and_then(|one| self.held(*one)).filter(|held| held.slides) {
            if part.buffers.iter().all(|buffer| *buffer == held.buffer) && part.converts {
                return held.elements() as f64;
            }
        }
        let reduced = self.step.inside.iter().map(|iter| (*iter, b.iters[*iter].extent));
        let window = self.plan.window.map(|w| (w.iter, w.results));
        let beside = b.spatial().checked_sub(1).map(|last| (last, self.plan.vector));
        let several = reduced.chain(window).chain(beside).filter(|(iter, _)| part.iters.contains(iter));
        several.map(|(_, many)| many as f64).product()
    }

    /// The same of a value of the map before it.
    fn times_before(&self, part: &PartValue, before: &StreamBlock) -> f64 {
        let lengths = self.held(before.write.buffer).into_iter().flat_map(|held| &held.lengths);
        let along = before.write.dims.iter().zip(lengths);
        let used = along.filter(|(dim, _)| dim.is_some_and(|iter| part.iters.contains(&iter)));
        used.map(|(_, length)| *length as f64).product()
    }

    /// What is loaded from global memory: a block in the middle is looked at, for some steps, with the sectors that L1 still has. A load
    /// that does not change in the innermost loops is made before them. What is held for a step is loaded at once.
    fn loads(&self, b: &StreamBlock, [before, map]: [Option<&StreamBlock>; 2], work: &mut KernelWork) {
        let made = b.write.buffer;
        let slides = |load: &&Indexed| self.held(load.buffer).is_some_and(|held| held.slides);
        let own = b.loaded.iter().filter(|load| !slides(load));
        let of_map = map.into_iter().flat_map(|map| &map.loaded).filter(|load| load.buffer != made);
        let mut loads: Vec<Load> = own.chain(of_map).map(|load| Load::of(load, b, self)).collect();
        let mut held: Vec<(&PlainHeld, Fetch)> = Vec::new();
        for of in self.step.held.iter().filter(|held| held.slides) {
            match before.filter(|before| before.write.buffer == of.buffer) {
                Some(before) => held.extend(before.loaded.iter().map(|load| (of, Fetch::first(load, before, self)))),
                None => held.push((of, Fetch::copied(&b.loaded[of.load], b, self))),
            }
        }
        let all = self.steps(0);
        let threads = self.plan.teams * self.each;
        // What neighbours, and steps that are expanded, want of the same elements is loaded once.
        let inner = self.inner();
        let together = if !self.step.inside.is_empty() || inner as f64 <= EXPANDED { inner } else { 1 };
        let looked = all.min(STEPS).min((THREAD_STEPS / threads / self.windows()).max(1));
        let looked = if self.step.inside.is_empty() { looked } else { up(looked, inner) * inner };
        let middle = up(b.results(), self.plan.results()) / 2;
        let mut l1 = L1 { size: (L1_SECTORS * threads as f64) as u64, came: HashMap::new(), count: 0 };
        let mut values = vec![0; b.iters.len()];
        let mut seen = HashSet::new();
        for step in 0..looked {
            if step % together == 0 {
                seen.clear();
            }
            if step % inner == 0 {
                held.iter_mut().for_each(|(of, fetch)| self.hold(of, (middle, step), fetch, (&mut seen, &mut l1)));
            }
            for load in loads.iter_mut().filter(|load| step % load.inside == 0) {
                load.steps += 1;
                for from in (0..threads).step_by(32) {
                    let lanes = from..(from + 32).min(threads);
                    for along in 0..if load.slides { self.windows() } else { 1 } {
                        let mut at = |lane, element| {
                            self.at(middle, lane, along * self.plan.vector + element, step, &mut values)?;
                            Some(load.place.at(&values))
                        };
                        let own: Vec<Vec<i64>> = lanes
                            .clone()
                            .filter_map(|lane| (0..self.plan.vector).map(|e| at(lane, e)).collect())
                            .collect();
                        load.access(&own, &mut seen, &mut l1);
                    }
                }
            }
        }
        // The last warps may be without results.
        let mut works = |lane: i64| self.at(middle, lane, 0, 0, &mut values).is_some();
        let warps = (0..threads).step_by(32).filter(|first| (*first..threads.min(first + 32)).any(&mut works));
        let of_block = warps.count().max(1) as f64;
        for load in loads.iter().chain(held.iter().map(|(_, fetch)| &fetch.load)) {
            let times = (all / load.inside) as f64 / load.steps.max(1) as f64 * self.warps() / of_block;
            work.cached_sectors += load.cached * times;
            work.global(load.touched.times(times), false);
        }
    }

    /// What is loaded for a step of what a thread holds, by runs of it.
    fn hold(
        &self,
        held: &PlainHeld,
        (thread_block, step): (i64, i64),
        Fetch { load, dims }: &mut Fetch,
        (seen, l1): (&mut Seen, &mut L1),
    ) {
        let threads = self.plan.teams * self.each;
        let run = held.lengths.last().copied().filter(|length| *length == self.plan.vector).unwrap_or(1);
        let mut values = vec![0; self.block.iters.len()];
        let mut own = vec![0; dims.iter().flatten().max().map_or(0, |most| most + 1)];
        load.steps += 1;
        for from in (0..threads).step_by(32) {
            let lanes = from..(from + 32).min(threads);
            // Where each lane's elements begin.
            let begins: Vec<Vec<i64>> = lanes
                .filter_map(|lane| {
                    self.at(thread_block, lane, 0, step, &mut values)?;
                    let known = |(index, first): (&Expr, &i64)| {
                        value_of(index, &|v| values.get(v.0 as usize).copied()).map(|at| at + first)
                    };
                    self.block.loaded[held.load].index.iter().zip(&held.first).map(known).collect()
                })
                .collect();
            for number in (0..held.elements()).step_by(run as usize) {
                let mut at = |begin: &[i64], number: i64| {
                    let mut left = number;
                    for ((dim, length), begin) in dims.iter().zip(&held.lengths).zip(begin).rev() {
                        if let Some(iter) = dim {
                            own[*iter] = begin + left % length;
                        }
                        left /= length;
                    }
                    load.place.at(&own)
                };
                let wanted: Vec<Vec<i64>> =
                    begins.iter().map(|begin| (number..number + run).map(|n| at(begin, n)).collect()).collect();
                load.access(&wanted, seen, l1);
            }
        }
    }
}

/// How what a thread holds is loaded: at which place for the element at an index.
struct Fetch {
    load: Load,
    /// Number of what each dimension of the index is for the load's place.
    dims: Vec<Option<usize>>,
}

impl Fetch {
    /// For the map before: by its iterators.
    fn first(load: &Indexed, before: &StreamBlock, threads: &Threads<'_>) -> Fetch {
        let place = Place::of(load, &threads.stream.buffers[load.buffer], before);
        Fetch { load: Load::by(load, place, threads, threads.inner()), dims: before.write.dims.clone() }
    }

    /// For a copy: by the dimensions of the buffer.
    fn copied(load: &Indexed, b: &StreamBlock, threads: &Threads<'_>) -> Fetch {
        let buffer = &threads.stream.buffers[load.buffer];
        let mut place = Place::of(load, buffer, b);
        let strides =
            (0..buffer.dims.len()).map(|d| buffer.dims[d + 1..].iter().fold(1, |n: i64, e| n.saturating_mul(*e)));
        place.linear = (strides.collect(), 0);
        Fetch {
            load: Load::by(load, place, threads, threads.inner()),
            dims: (0..buffer.dims.len()).map(Some).collect(),
        }
    }
}

/// Whether the place of what is loaded depends on an iterator.
fn moved_by(load: &Indexed, iter: usize) -> bool {
    load.index.iter().any(|e| visit::uses_var(e, &|v| v.0 as usize == iter))
}

/// What has been loaded: buffer, bytes of an access, addresses.
type Seen = HashSet<(usize, u32, Vec<u64>)>;

/// A load, and what has been seen of it.
struct Load {
    place: Place,
    /// Bytes of an element.
    bytes: i64,
    /// Steps of the loops inside of it, in which it stays the same.
    inside: i64,
    /// Whether a condition decides on it.
    chosen: bool,
    /// Whether it is another one for each result along a window.
    slides: bool,
    /// Steps that were looked at.
    steps: i64,
    touched: Touched,
    cached: f64,
}

impl Load {
    /// A load of a block whose threads these are.
    fn of(load: &Indexed, b: &StreamBlock, threads: &Threads<'_>) -> Load {
        let used = threads.serial.iter().rposition(|iter| moved_by(load, *iter)).map_or(0, |last| last + 1);
        let place = Place::of(load, &threads.stream.buffers[load.buffer], b);
        Load::by(load, place, threads, threads.steps(used).max(1))
    }

    fn by(load: &Indexed, place: Place, threads: &Threads<'_>, inside: i64) -> Load {
        Load {
            place,
            bytes: i64::from(threads.stream.buffers[load.buffer].dtype.bytes()),
            inside,
            chosen: load.chosen,
            slides: threads.plan.window.is_some_and(|window| moved_by(load, window.iter)),
            steps: 0,
            touched: Touched::default(),
            cached: 0.0,
        }
    }

    /// What a warp loads that it has not yet, by the elements that each of its threads wants: one for all results, neighbours by as few
    /// accesses as are aligned, or each by itself.
    fn access(&mut self, lanes: &[Vec<i64>], seen: &mut Seen, l1: &mut L1) {
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
