//! Execution of a block, or of a cluster's blocks: all threads together, statement by statement.
mod cluster;
mod evaluate;
mod matrix;
mod overlap;
mod phases;
mod roles;
mod tensor_memory;
mod traffic;
mod warp;
mod wmma;

use super::memory::{held, Access, Order, Tracked};
use super::sampled::Cache;
use super::{beyond_machine, Counts, Fault, FaultKind};
use crate::kernel::{ArrayId, Cond, Index, Kernel, LocalVar, Space, Stmt, Unroll};
use satune_ir::machine::{sectors, wavefronts};
use satune_ir::DType;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// An integer that is the same for all threads, or one per thread.
#[derive(Clone)]
enum Ints {
    Same(i64),
    Each(Rc<Vec<i64>>),
}

impl Ints {
    fn get(&self, thread: usize) -> i64 {
        match self {
            Ints::Same(v) => *v,
            Ints::Each(list) => list[thread],
        }
    }
}

/// The threads that run a statement.
type Mask = Rc<Vec<bool>>;

struct Pending {
    thread: u32,
    dst: ArrayId,
    dst_element: usize,
    src: ArrayId,
    src_element: Option<usize>,
}

/// What each role has of its own; the whole block, before its warps part.
#[derive(Default)]
struct Context {
    vars: HashMap<LocalVar, Ints>,
    epoch: u32,
    open_group: Vec<Pending>,
    groups: VecDeque<Vec<Pending>>,
    loops: Vec<usize>,
    order: Option<Rc<Order>>,
    matrix: matrix::Flights,
    fragments: wmma::Fragments,
}

/// A load of one element per thread.
struct Loaded {
    array: ArrayId,
    index: Index,
    mask: Mask,
    values: Vec<f64>,
}

/// Runs clusters one after the other over one memory.
pub(super) struct Runner<'k> {
    kernel: &'k Kernel,
    /// Whether floats are held in `f64`.
    double: bool,
    /// Asked before each statement.
    go_on: &'k dyn Fn() -> bool,
    /// What the current statement has loaded from memory. Nothing is written while its value is computed, so that
    /// compilers load an element once, however often it stands there.
    loaded: Vec<Loaded>,
    /// Whether it loads an element twice.
    repeats: bool,
    threads: usize,
    memory: Vec<Option<Tracked>>,
    /// What the cluster's blocks have of their own; that of the current one is in the runner's own fields.
    blocks: Vec<cluster::Own>,
    /// The current block's number in its cluster.
    rank: usize,
    /// Register arrays: `element * threads + thread`.
    registers: Vec<Vec<f64>>,
    known: Vec<Vec<bool>>,
    now: Context,
    block: u32,
    block_index: [u32; 3],
    thread_index: [Ints; 3],
    totals: HashMap<usize, (Counts, u64)>,
    phases: phases::Phases,
    tensor_memory: tensor_memory::TensorMemory,
    overlaps: overlap::Overlaps,
    /// Where sectors are told apart.
    pub(super) cache: Option<Cache>,
}

impl<'k> Runner<'k> {
    /// A runner; an error names a shared array that overlaps another where that is not simulated.
    pub fn new(
        kernel: &'k Kernel,
        memory: Vec<Option<Tracked>>,
        double: bool,
        go_on: &'k dyn Fn() -> bool,
    ) -> Result<Runner<'k>, String> {
        let threads = kernel.threads() as usize;
        let [bx, by, _] = kernel.block.map(|d| d as usize);
        let axis = |f: &dyn Fn(usize) -> usize| Ints::Each(Rc::new((0..threads).map(|t| f(t) as i64).collect()));
        let thread_index = [axis(&|t| t % bx), axis(&|t| t / bx % by), axis(&|t| t / bx / by)];
        let sizes: Vec<usize> =
            kernel.arrays.iter().map(|a| if a.space.is_private() { a.len as usize * threads } else { 0 }).collect();
        Ok(Runner {
            kernel,
            double,
            go_on,
            loaded: Vec::new(),
            repeats: false,
            threads,
            memory,
            registers: sizes.iter().map(|n| vec![f64::NAN; *n]).collect(),
            known: sizes.iter().map(|n| vec![false; *n]).collect(),
            now: Context::default(),
            block: 0,
            block_index: [0; 3],
            thread_index,
            totals: HashMap::new(),
            phases: phases::Phases::new(threads),
            tensor_memory: tensor_memory::TensorMemory::default(),
            blocks: cluster::Own::of(kernel, &sizes, double),
            rank: 0,
            overlaps: overlap::Overlaps::of(kernel)?,
            cache: None,
        })
    }

    /// (whole kernel, hot loop, its iterations).
    pub fn counts(&self) -> (Counts, Counts, u64) {
        let mut total = Counts::default();
        self.totals.values().for_each(|(c, _)| total += *c);
        // Key 0 is what stands outside of all loops.
        let work = |c: &Counts| (c.fma + c.matrix, c.arithmetic);
        let hot = self.totals.iter().filter(|(k, _)| **k != 0).max_by_key(|(k, (c, _))| (work(c), **k));
        let (hot, iterations) = hot.map_or((total, 1), |(_, v)| *v);
        (total, hot, iterations)
    }

    /// Iterations of all loops that stay loops.
    pub fn laps(&self) -> u64 {
        self.totals.values().map(|(_, iterations)| iterations).sum()
    }

    pub fn into_memory(self) -> Vec<Option<Tracked>> {
        self.memory
    }

    fn here(&mut self) -> &mut Counts {
        let key = self.now.loops.last().copied().unwrap_or(0);
        &mut self.totals.entry(key).or_default().0
    }

    fn who(&self, thread: usize) -> Access {
        let id = self.id(thread);
        Access {
            block: self.block,
            thread: id as u32,
            epoch: self.now.epoch,
            order: self.now.order.clone(),
            fences: self.phases.fences.get(id).copied().unwrap_or(0),
        }
    }

    /// The thread's number in the cluster.
    fn id(&self, thread: usize) -> usize {
        self.rank * self.threads + thread
    }

    fn warps(&self, mask: &Mask) -> u64 {
        mask.chunks(32).filter(|w| w.iter().any(|b| *b)).count() as u64
    }

    fn machine(&self, message: String) -> Fault {
        beyond_machine(self.kernel, self.block, message)
    }

    fn list(&mut self, body: &'k [Stmt], mask: &Mask) -> Result<(), Fault> {
        body.iter().try_for_each(|s| self.statement(s, mask))
    }

    fn statement(&mut self, stmt: &'k Stmt, mask: &Mask) -> Result<(), Fault> {
        if !mask.iter().any(|b| *b) {
            return Ok(());
        }
        if !(self.go_on)() {
            let array = self.kernel.name.clone();
            return Err(Fault { kind: FaultKind::Stopped, array, index: 0, block: self.block, thread: 0 });
        }
        match stmt {
            Stmt::For { var, start, extent, unroll, body, .. } => {
                let (start, extent) = (self.index(start)?, self.index(extent)?);
                let Ints::Same(start) = start else {
                    return Err(self.machine("a loop whose first values differ between threads".into()));
                };
                let steps = |t: usize| if mask[t] { extent.get(t) } else { 0 };
                let most = (0..self.threads).map(steps).max().unwrap_or(0);
                let real = *unroll != Unroll::Full;
                if real {
                    self.now.loops.push(std::ptr::from_ref(stmt) as usize);
                }
                for i in start..start.saturating_add(most) {
                    if real {
                        let key = self.now.loops.last().copied().unwrap_or(0);
                        self.totals.entry(key).or_default().1 += 1;
                    }
                    self.now.vars.insert(*var, Ints::Same(i));
                    match &extent {
                        Ints::Same(_) => self.list(body, mask)?,
                        Ints::Each(_) => {
                            let runs = (0..self.threads).map(|t| steps(t) > i - start).collect();
                            self.list(body, &Rc::new(runs))?;
                        }
                    }
                }
                if real {
                    self.now.loops.pop();
                }
                Ok(())
            }
            Stmt::If { cond, then, otherwise } => {
                let holds = self.condition(cond)?;
                let side =
                    |want: bool| Rc::new(mask.iter().zip(&holds).map(|(m, h)| *m && *h == want).collect::<Vec<_>>());
                self.list(then, &side(true))?;
                self.list(otherwise, &side(false))
            }
            Stmt::Let { var, value, .. } => {
                let value = self.index(value)?;
                self.now.vars.insert(*var, value);
                Ok(())
            }
            Stmt::Fetch { var, value, .. } => {
                let dtype = self.kernel.type_of(value);
                let values = self.value(value, dtype, mask)?;
                let values = values.into_iter().map(|v| satune_ir::semantics::unheld(v, dtype)).collect();
                self.now.vars.insert(*var, Ints::Each(Rc::new(values)));
                Ok(())
            }
            Stmt::Store { array, index, value } => {
                let values = self.value(value, self.kernel.array(*array).dtype, mask)?;
                let index = self.index(index)?;
                self.store(*array, &index, &values, mask)
            }
            Stmt::Copy { dst, dst_index, src, src_index, width, zero_unless } => {
                self.copy((*dst, dst_index), (*src, src_index), *width, zero_unless, mask)
            }
            Stmt::AsyncCopy { dst, dst_index, src, src_index, width, zero_unless, prefetch: _ } => {
                self.async_copy((*dst, dst_index), (*src, src_index), *width, zero_unless, mask)
            }
            Stmt::Barrier => {
                if mask.iter().any(|b| !*b) {
                    let thread = mask.iter().position(|b| !*b).unwrap_or(0) as u32;
                    let array = self.kernel.name.clone();
                    return Err(Fault {
                        kind: FaultKind::DivergentBarrier,
                        array,
                        index: 0,
                        block: self.block,
                        thread,
                    });
                }
                self.now.epoch += 1;
                self.here().barriers += self.warps(mask);
                Ok(())
            }
            Stmt::AsyncCommit => {
                let group = std::mem::take(&mut self.now.open_group);
                self.now.groups.push_back(group);
                Ok(())
            }
            Stmt::AsyncWait(latest) => {
                while self.now.groups.len() > *latest as usize {
                    let group = self.now.groups.pop_front().unwrap_or_default();
                    self.deliver(group)?;
                }
                Ok(())
            }
            Stmt::AtomicAdd { array, index, value } => {
                let values = self.value(value, self.kernel.array(*array).dtype, mask)?;
                let index = self.index(index)?;
                self.here().atomics += self.warps(mask);
                for t in (0..self.threads).filter(|t| mask[*t]) {
                    let who = self.who(t);
                    let memory = self.tracked(*array)?;
                    let i = memory.position(&who, index.get(t), 1)?;
                    memory.add(&who, i, values[t])?;
                }
                Ok(())
            }
            Stmt::Warp(op) => self.warp_op(op, mask),
            Stmt::Group(op) => self.group_op(op, mask),
            // The blocks of a cluster come there together.
            Stmt::Roles(_) => Err(self.machine("warps part where not all of them are".into())),
            Stmt::Comment(_) => Ok(()),
        }
    }

    fn tracked(&mut self, array: ArrayId) -> Result<&mut Tracked, Fault> {
        let (kernel, block) = (self.kernel, self.block);
        let missing = || beyond_machine(kernel, block, format!("array {} is not in memory", array.0));
        self.memory.get_mut(array.0 as usize).and_then(Option::as_mut).ok_or_else(missing)
    }

    /// The type in which a thread holds values of a type.
    fn held(&self, dtype: DType) -> DType {
        held(self.double, dtype)
    }

    fn space(&self, array: ArrayId) -> Space {
        self.kernel.array(array).space
    }

    fn register(&self, array: ArrayId, index: i64, width: u32, thread: usize) -> Result<usize, Fault> {
        let a = self.kernel.array(array);
        if a.space == Space::Opaque {
            return Err(self.machine(format!("an element of {}, whose layout is not known", a.name)));
        }
        let fault = |kind| Fault { kind, array: a.name.clone(), index, block: self.block, thread: thread as u32 };
        match u64::try_from(index) {
            Ok(i) if i + u64::from(width) <= a.len => {
                if i % u64::from(width) != 0 {
                    return Err(fault(FaultKind::Misaligned { width }));
                }
                Ok(i as usize * self.threads + thread)
            }
            _ => Err(fault(FaultKind::OutOfBounds { len: a.len })),
        }
    }

    /// Where all threads' copies of a private element stand, in their order; none where no thread takes part.
    fn row(&self, array: ArrayId, index: i64, mask: &Mask) -> Result<Option<Range<usize>>, Fault> {
        let Some(first) = mask.iter().position(|takes_part| *takes_part) else { return Ok(None) };
        let begin = self.register(array, index, 1, first)? - first;
        Ok(Some(begin..begin + self.threads))
    }

    fn unwritten(&self, array: ArrayId, index: i64, thread: usize) -> Fault {
        let (name, thread) = (self.kernel.array(array).name.clone(), thread as u32);
        Fault { kind: FaultKind::Unwritten, array: name, index, block: self.block, thread }
    }

    fn store(&mut self, array: ArrayId, index: &Ints, values: &[f64], mask: &Mask) -> Result<(), Fault> {
        match self.space(array) {
            Space::Register | Space::Fragment | Space::Opaque => {
                self.now.matrix.touch(array);
                if let Ints::Same(index) = index {
                    let Some(row) = self.row(array, *index, mask)? else { return Ok(()) };
                    let (held, known) = (&mut self.registers[array.0 as usize], &mut self.known[array.0 as usize]);
                    for (at, t) in row.zip(0..).filter(|(_, t)| mask[*t]) {
                        (held[at], known[at]) = (values[t], true);
                    }
                    return Ok(());
                }
                for t in (0..self.threads).filter(|t| mask[*t]) {
                    let at = self.register(array, index.get(t), 1, t)?;
                    self.registers[array.0 as usize][at] = values[t];
                    self.known[array.0 as usize][at] = true;
                }
            }
            _ => {
                self.count_access(array, index, 1, mask, true, false);
                for t in (0..self.threads).filter(|t| mask[*t]) {
                    let who = self.who(t);
                    let memory = self.tracked(array)?;
                    let i = memory.position(&who, index.get(t), 1)?;
                    memory.write(&who, i, values[t])?;
                    self.overwrite(&who, array, i)?;
                }
            }
        }
        Ok(())
    }

    fn load(&mut self, array: ArrayId, index: &Ints, mask: &Mask) -> Result<Vec<f64>, Fault> {
        let mut out = vec![0.0; self.threads];
        if !self.space(array).is_private() {
            self.count_access(array, index, 1, mask, false, false);
        } else if let Ints::Same(index) = index {
            // Most of what a kernel computes on: one check for all threads.
            let Some(row) = self.row(array, *index, mask)? else { return Ok(out) };
            let known = &self.known[array.0 as usize][row.clone()];
            if let Some(t) = mask.iter().zip(known).position(|(takes_part, known)| *takes_part && !*known) {
                return Err(self.unwritten(array, *index, t));
            }
            for ((out, held), takes_part) in out.iter_mut().zip(&self.registers[array.0 as usize][row]).zip(&**mask) {
                *out = if *takes_part { *held } else { 0.0 };
            }
            return Ok(out);
        }
        for t in (0..self.threads).filter(|t| mask[*t]) {
            out[t] = self.element(array, index.get(t), 1, 0, t)?;
        }
        Ok(out)
    }

    /// Element `offset` of a vector access of `width` elements at `index`.
    fn element(&mut self, array: ArrayId, index: i64, width: u32, offset: u32, t: usize) -> Result<f64, Fault> {
        if self.space(array).is_private() {
            let at = self.register(array, index, width, t)? + offset as usize * self.threads;
            if !self.known[array.0 as usize][at] {
                return Err(self.unwritten(array, index, t));
            }
            return Ok(self.registers[array.0 as usize][at]);
        }
        let who = self.who(t);
        let memory = self.tracked(array)?;
        let i = memory.position(&who, index, width)? + offset as usize;
        memory.read(&who, i)
    }

    fn copy(
        &mut self,
        (dst, dst_index): (ArrayId, &Index),
        (src, src_index): (ArrayId, &Index),
        width: u32,
        zero_unless: &Cond,
        mask: &Mask,
    ) -> Result<(), Fault> {
        let holds = self.condition(zero_unless)?;
        let (to, from) = (self.index(dst_index)?, self.index(src_index)?);
        let reads: Mask = Rc::new(mask.iter().zip(&holds).map(|(m, h)| *m && *h).collect());
        if !self.space(src).is_private() {
            self.count_access(src, &from, width, &reads, false, false);
        }
        if !self.space(dst).is_private() {
            self.count_access(dst, &to, width, mask, true, false);
        }
        for t in (0..self.threads).filter(|t| mask[*t]) {
            for o in 0..width {
                let value = if reads[t] { self.element(src, from.get(t), width, o, t)? } else { 0.0 };
                if self.space(dst).is_private() {
                    let at = self.register(dst, to.get(t), width, t)? + o as usize * self.threads;
                    self.registers[dst.0 as usize][at] = value;
                    self.known[dst.0 as usize][at] = true;
                } else {
                    let who = self.who(t);
                    let memory = self.tracked(dst)?;
                    let i = memory.position(&who, to.get(t), width)? + o as usize;
                    memory.write(&who, i, value)?;
                    self.overwrite(&who, dst, i)?;
                }
            }
        }
        Ok(())
    }

    fn async_copy(
        &mut self,
        (dst, dst_index): (ArrayId, &Index),
        (src, src_index): (ArrayId, &Index),
        width: u32,
        zero_unless: &Cond,
        mask: &Mask,
    ) -> Result<(), Fault> {
        let bytes = width * self.kernel.array(dst).dtype.bytes();
        if !matches!(bytes, 4 | 8 | 16) {
            return Err(self.machine(format!("cp.async of {bytes} bytes; it moves 4, 8 or 16")));
        }
        let holds = self.condition(zero_unless)?;
        let (to, from) = (self.index(dst_index)?, self.index(src_index)?);
        let reads: Mask = Rc::new(mask.iter().zip(&holds).map(|(m, h)| *m && *h).collect());
        self.count_access(src, &from, width, &reads, false, true);
        self.count_access(dst, &to, width, mask, true, true);
        self.here().async_copies += self.warps(mask);
        for t in (0..self.threads).filter(|t| mask[*t]) {
            let who = self.who(t);
            let target = self.tracked(dst)?.position(&who, to.get(t), width)?;
            let source = if reads[t] { Some(self.tracked(src)?.position(&who, from.get(t), width)?) } else { None };
            for o in 0..width as usize {
                self.tracked(dst)?.begin(&who, target + o)?;
                self.overwrite(&who, dst, target + o)?;
                self.now.open_group.push(Pending {
                    thread: t as u32,
                    dst,
                    dst_element: target + o,
                    src,
                    src_element: source.map(|s| s + o),
                });
            }
        }
        Ok(())
    }

    fn deliver(&mut self, group: Vec<Pending>) -> Result<(), Fault> {
        for p in group {
            let who = self.who(p.thread as usize);
            let value = match p.src_element {
                Some(i) => self.tracked(p.src)?.read(&who, i)?,
                None => 0.0,
            };
            self.tracked(p.dst)?.end(&who, p.dst_element, value);
        }
        Ok(())
    }

    /// Counts one access of every warp.
    fn count_access(&mut self, array: ArrayId, index: &Ints, width: u32, mask: &Mask, store: bool, asynchronous: bool) {
        let a = self.kernel.array(array);
        let bytes = u64::from(a.dtype.bytes());
        let per_lane = width * a.dtype.bytes();
        let (space, base) = (a.space, u64::from(a.shared_offset));
        let mut sum = Counts::default();
        for warp in 0..self.threads.div_ceil(32) {
            let lanes: Vec<(u32, u64)> = (0..32)
                .filter(|l| mask.get(warp * 32 + l).copied().unwrap_or(false))
                .map(|l| (l as u32, (index.get(warp * 32 + l).max(0) as u64) * bytes))
                .collect();
            if lanes.is_empty() {
                continue;
            }
            if space == Space::Shared {
                let placed: Vec<(u32, u64)> = lanes.iter().map(|(l, a)| (*l, a + base)).collect();
                let (taken, ideal) = wavefronts(&placed, per_lane);
                if store {
                    sum.shared_stores += u64::from(!asynchronous);
                    sum.shared_store_wavefronts += u64::from(taken);
                    sum.shared_store_wavefronts_ideal += u64::from(ideal);
                } else {
                    sum.shared_loads += 1;
                    sum.shared_load_wavefronts += u64::from(taken);
                    sum.shared_load_wavefronts_ideal += u64::from(ideal);
                }
            } else {
                let addresses: Vec<u64> = lanes.iter().map(|l| l.1).collect();
                let (touched, ideal) = sectors(&addresses, per_lane);
                if let Some(cache) = &mut self.cache {
                    cache.access(array, &addresses, per_lane.into(), store);
                }
                if store {
                    sum.global_stores += 1;
                    sum.global_store_sectors += u64::from(touched);
                    sum.global_store_sectors_ideal += u64::from(ideal);
                } else {
                    sum.global_loads += u64::from(!asynchronous);
                    sum.global_load_sectors += u64::from(touched);
                    sum.global_load_sectors_ideal += u64::from(ideal);
                }
            }
        }
        *self.here() += sum;
    }
}
