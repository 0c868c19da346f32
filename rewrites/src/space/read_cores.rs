//! From the scheduled program to the plan on single threads that it is a program of.
//!
//! What loops are bound to, which digits of them iterators are, how copies are written and annotated says what the plan is:
//!
//! ```text
//!   vi = bx // 64 * 256 + bx % 8 * 32 + tx // 64 * 16 + vx * 8 + tx % 32 // 8 * 2 + i      block 2, group 8, warps 2, vthreads 2, lanes 4, registers 2
//! ```
//! Whether that is all that the program says is then seen by making the plan's own program, which has to be this one.
use super::derive::trace;
use super::unread::{wrong, Read};
use crate::arith::domains;
use crate::iter_map;
use crate::keys;
use crate::replay::replay;
use crate::schedule::Schedule as Scheduled;
use crate::storage_align;
use crate::tree;
use satune_ir::affine::{constant, int};
use satune_ir::term::{
    Axis, BlockLoop, Contraction, CoresPlan, Fill, OperandInfo, Pair, Pipe, Side, StagedLayout, Staging,
};
use satune_ir::{
    structural, visit, Attr, BlockRealize, BufferId, DType, Expr, For, ForKind, IterKind, Program, Stmt, VarId,
};

/// Reads the plan of a scheduled program; `source` is what was scheduled, and `contraction` what that is.
///
/// # Errors
/// What in the program is not as any plan on single threads has it, and where.
pub(super) fn read_cores(program: &Program, source: &Program, contraction: &Contraction) -> Read<CoresPlan> {
    let scheduled = Scheduled::new(program.clone()).or_else(|e| wrong("program", e.detail.clone()))?;
    let nest = Nest::of(program, &scheduled)?;
    let asked = keys::by_present_names(program);
    let (mut nearest, mut tried) = (None, Vec::new());
    for guess in 0..32 {
        let [m, n, units_first, a, b] = [0, 1, 2, 3, 4].map(|bit| guess >> bit & 1 == 1);
        let plan = nest.plan(contraction, Guess { outside: [m, n], units_first, across: [a, b] })?;
        if tried.contains(&plan) {
            continue;
        }
        let (results, made) =
            replay(source, &trace(&plan, contraction).calls).or_else(|e| wrong("source program", e.detail.clone()))?;
        let difference = match results.into_iter().find_map(Result::err) {
            Some(error) => error.detail.clone(),
            None => match structural::equal(&asked, &keys::by_present_names(made.program())) {
                Ok(()) => return Ok(plan),
                Err(difference) => difference.to_string(),
            },
        };
        nearest.get_or_insert(difference);
        tried.push(plan);
    }
    let nearest = nearest.unwrap_or_default();
    wrong("program", format!("it is not that of any plan; beside the plan nearest to it: {nearest}"))
}

/// What the program does not always tell.
#[derive(Clone, Copy)]
struct Guess {
    /// Whether vthreads along m, and along n, are outside of warps, where there are none along that axis.
    outside: [bool; 2],
    /// Whether loops over blocks of one iteration are the outermost.
    units_first: bool,
    /// Whether threads run across the rows of gathered A, of B, where both sides of the matrix are as long.
    across: [bool; 2],
}

/// A digit of a loop.
#[derive(Clone, Copy)]
struct Digit {
    axis: Axis,
    lower: i64,
    extent: i64,
    scale: i64,
}

/// The block that multiplies, with its loops by what they are bound to.
struct Nest<'p> {
    program: &'p Program,
    realizes: Vec<&'p BlockRealize>,
    main: &'p BlockRealize,
    block: &'p For,
    thread: &'p For,
    vthreads: Vec<&'p For>,
    serial: Vec<&'p For>,
    all: Vec<&'p For>,
}

fn extent(l: &For) -> Read<i64> {
    constant(&l.extent).map_or_else(|| wrong(format!("loop `{}`", l.var.name), "its extent is no number"), Ok)
}

fn block_name(realize: &BlockRealize) -> String {
    format!("block `{}`", realize.block.name)
}

fn times(extents: impl Iterator<Item = i64>) -> i64 {
    extents.fold(1, i64::saturating_mul)
}

fn is_around(l: &For, realize: &BlockRealize) -> bool {
    tree::all_realizes(&l.body).iter().any(|r| r.block.id == realize.block.id)
}

/// The only store of a block, with what it loads.
fn store(realize: &BlockRealize) -> Option<(BufferId, &[Expr], &Expr)> {
    match realize.block.body.as_ref() {
        Stmt::Store { buffer, indices, value } => Some((*buffer, indices, value)),
        _ => None,
    }
}

impl<'p> Nest<'p> {
    fn of(program: &'p Program, scheduled: &'p Scheduled) -> Read<Nest<'p>> {
        let realizes = tree::all_realizes(&program.body.block.body);
        let combines = |r: &&&BlockRealize| {
            let reduces = r.block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce);
            let of = |(target, _, value)| visit::loads(value).iter().filter(|(b, _)| *b != target).count();
            reduces && store(r).map_or(0, of) >= 2
        };
        let Some(main) = realizes.iter().find(combines).copied() else {
            return wrong("program", "no block of it combines elements of two operands");
        };
        let found = scheduled.loops_of(main.block.id).and_then(|ids| scheduled.get_loops(&ids));
        let all: Vec<&For> = found.or_else(|e| wrong(block_name(main), e.detail.clone()))?;
        let bound = |tag: &str| -> Vec<&'p For> {
            let is = |l: &&&For| matches!(&l.kind, ForKind::ThreadBinding(t) if t.starts_with(tag));
            all.iter().filter(is).copied().collect()
        };
        let (blocks, threads) = (bound("blockIdx"), bound("threadIdx"));
        let ([block], [thread]) = (blocks.as_slice(), threads.as_slice()) else {
            return wrong(block_name(main), "plans have one loop bound to blockIdx.x and one to threadIdx.x");
        };
        let serial = all.iter().filter(|l| !matches!(l.kind, ForKind::ThreadBinding(_))).copied().collect();
        Ok(Nest { program, main, block, thread, vthreads: bound("vthread"), serial, realizes, all })
    }

    fn plan(&self, contraction: &Contraction, guess: Guess) -> Read<CoresPlan> {
        let Some((target, at, _)) = store(self.main) else { return wrong(block_name(self.main), "it stores nothing") };
        let is_split = self.main.block.iter_vars.len() == contraction.iters.len() + 1;
        let axes: Vec<Axis> =
            is_split.then_some(Axis::K).into_iter().chain(contraction.iters.iter().map(|(axis, _)| *axis)).collect();
        if axes.len() != self.main.block.iter_vars.len() || (is_split && at.len() != contraction.c.dims.len() + 1) {
            return wrong(block_name(self.main), "it has not the iterators of the product, or of one of its parts");
        }
        let map = iter_map::detect(&self.main.iter_values, &domains(&self.all), &int(1, DType::Bool), false);
        let Some(map) = map else { return wrong(block_name(self.main), "its iterators are no digits of loops") };
        // By loop: those of blocks, of threads, of vthreads, of others.
        let mut digits: [Vec<Digit>; 4] = Default::default();
        for (index, (axis, iv)) in axes.iter().zip(&self.main.block.iter_vars).enumerate() {
            // The part of a reduction is one of its blocks.
            if iv.kind == IterKind::Reduce {
                continue;
            }
            let Some(own) = map.loop_digits(index) else {
                return wrong(
                    block_name(self.main),
                    format!("iterator `{}` is no sum of digits of loops", iv.var.name),
                );
            };
            for digit in own {
                let of = |l: &For| matches!(digit.var, Expr::Var(v) if v.id == l.var.id);
                let place = match () {
                    () if of(self.block) => 0,
                    () if of(self.thread) => 1,
                    () if self.vthreads.iter().any(|l| of(l)) => 2,
                    () => 3,
                };
                digits[place].push(Digit { axis: *axis, lower: digit.lower, extent: digit.extent, scale: digit.scale });
            }
        }
        let [blocks, threads, vthreads, registers] = digits;
        let [warps, lanes] = warps_and_lanes(&threads);
        let of = |list: &[Digit]| {
            let along = |axis| times(list.iter().filter(|d| d.axis == axis).map(|d| d.extent));
            Pair { m: along(Axis::M), n: along(Axis::N) }
        };
        let m_outer = |list: &[Digit]| {
            let lower = |axis| list.iter().find(|d| d.axis == axis).map(|d| d.lower);
            lower(Axis::M).zip(lower(Axis::N)).is_none_or(|(m, n)| m > n)
        };
        let is_outside = |d: &&Digit| {
            let warp = warps.iter().find(|w| w.axis == d.axis).map(|w| w.scale);
            let others = vthreads.iter().filter(|v| v.axis == d.axis);
            let by_place = guess.outside[usize::from(d.axis != Axis::M)];
            match warp {
                Some(scale) => d.scale > scale,
                None if others.clone().count() > 1 => others.clone().all(|v| v.scale <= d.scale),
                None => by_place,
            }
        };
        let (outer, inner): (Vec<Digit>, Vec<Digit>) = vthreads.iter().copied().partition(|d| is_outside(&d));
        let [vthread_outer, warps_, vthread_inner, lanes_, registers_] =
            [&outer, &warps, &inner, &lanes, &registers].map(|list| of(list));
        let product = |get: fn(Pair) -> i64| {
            times([vthread_outer, warps_, vthread_inner, lanes_, registers_].into_iter().map(get))
        };
        let tile = Pair { m: product(|p| p.m), n: product(|p| p.n) };
        let k = self.along_k(contraction)?;
        let split_k =
            if is_split { times(blocks.iter().filter(|d| d.axis == Axis::K).map(|d| d.extent)).max(1) } else { 1 };
        let whole = contraction.extent(Axis::K);
        let mut plan = CoresPlan {
            blocks: order_of_blocks(&blocks, contraction, is_split, guess.units_first),
            split_k,
            tile,
            k_part: whole.saturating_add(split_k - 1) / split_k,
            k_tile: k.tile,
            threads: u32::try_from(extent(self.thread)?).unwrap_or(0),
            pipe: self.pipe(k.outer),
            a: Staging::default(),
            b: Staging::default(),
            vthread_outer,
            warps: warps_,
            warps_m_outer: m_outer(&warps),
            vthread_inner,
            lanes: lanes_,
            lanes_m_outer: m_outer(&lanes),
            registers: registers_,
            registers_m_outer: self.registers_m_outer(&axes),
            k_step: k.step,
            unroll_k: k.inner.kind == ForKind::Unrolled,
            accumulators: self.program.buffer(target).scope == "local",
            init_hoisted: self.main.block.init.is_none(),
            store_vector: 1,
        };
        for side in [Side::A, Side::B] {
            let staging = self.staging(contraction, side, k.outer, &plan, guess)?;
            match side {
                Side::A => plan.a = staging,
                Side::B => plan.b = staging,
            }
        }
        if plan.accumulators {
            let stores = |r: &&&BlockRealize| {
                store(r)
                    .is_some_and(|(to, _, value)| to != target && visit::loads(value).iter().any(|(b, _)| *b == target))
            };
            let written = self.realizes.iter().find(stores);
            plan.store_vector = written.map_or(Ok(1), |r| self.vector(r))?;
        }
        Ok(plan)
    }

    /// The extent of the vectorized loop around a block.
    fn vector(&self, realize: &BlockRealize) -> Read<u32> {
        let inside = |l: &&For| l.kind == ForKind::Vectorized && is_around(l, realize);
        let all = tree::all_loops(&self.program.body.block.body);
        let width = all.into_iter().find(inside).map_or(Ok(1), extent)?;
        u32::try_from(width).or_else(|_| wrong(block_name(realize), "a vector has too many elements"))
    }

    /// The loops along k.
    fn along_k(&self, contraction: &Contraction) -> Read<AlongK<'p>> {
        let reduces = |l: &&&For| {
            let mut values = self.main.block.iter_vars.iter().zip(&self.main.iter_values);
            !values.any(|(iv, value)| iv.kind != IterKind::Reduce && visit::uses_var(value, &|v| v == l.var.id))
        };
        let along: Vec<&For> = self.serial.iter().filter(reduces).copied().collect();
        let own = along.get(contraction.outer_reduce().count()..).unwrap_or(&[]);
        let (outer, inner, step) = match *own {
            [outer, inner] => (outer, inner, 1),
            [outer, inner, step] => (outer, inner, extent(step)?),
            _ => return wrong(block_name(self.main), "plans have two or three loops along k"),
        };
        Ok(AlongK { outer, inner, step, tile: extent(inner)?.saturating_mul(step) })
    }

    /// Whether registers along m are the outer of two loops.
    fn registers_m_outer(&self, axes: &[Axis]) -> bool {
        let at = |axis: Axis| {
            let value = axes.iter().position(|own| *own == axis).and_then(|at| self.main.iter_values.get(at))?;
            self.serial.iter().rposition(|l| visit::uses_var(value, &|v| v == l.var.id))
        };
        at(Axis::M).zip(at(Axis::N)).is_none_or(|(m, n)| m < n)
    }

    fn pipe(&self, outer: &For) -> Pipe {
        let list = |key: &str| match outer.annotations.get(key) {
            Some(Attr::List(list)) => {
                list.iter().filter_map(|a| if let Attr::Int(n) = a { Some(*n) } else { None }).max()
            }
            _ => None,
        };
        match (list(keys::PIPELINE_STAGE), list(keys::PIPELINE_ASYNC)) {
            (None, _) => Pipe::Plain,
            (Some(last), Some(_)) => Pipe::Async(u8::try_from(last.saturating_add(1)).unwrap_or(0)),
            (Some(_), None) => Pipe::Registers,
        }
    }

    /// The copy that fills a buffer.
    fn copy(&self, buffer: BufferId) -> Read<(&'p BlockRealize, BufferId, &'p [Expr], &'p [Expr])> {
        let fills = |r: &&&BlockRealize| store(r).is_some_and(|(to, ..)| to == buffer);
        let found = self.realizes.iter().find(fills).and_then(|r| {
            let (_, to, value) = store(r)?;
            let mut element = value;
            // Beyond the edge there are zeros.
            while let Expr::Select { then, .. } = element {
                element = then;
            }
            match element {
                Expr::Load(from, at) => Some((*r, *from, to, at.as_slice())),
                _ => None,
            }
        });
        let name = || format!("buffer `{}`", self.program.buffer(buffer).name);
        found.map_or_else(|| wrong(name(), "no block copies an operand to it"), Ok)
    }

    /// An operand's way.
    fn staging(
        &self,
        contraction: &Contraction,
        side: Side,
        outer: &For,
        plan: &CoresPlan,
        guess: Guess,
    ) -> Read<Staging> {
        let operand = contraction.operand(side);
        let (mut staging, mut buffer) = (Staging::default(), self.operand(contraction, side)?);
        if self.program.buffer(buffer).scope == "local" {
            let (copy, from, ..) = self.copy(buffer)?;
            staging.local = Some(self.vector(copy)?);
            buffer = from;
        }
        if !self.program.buffer(buffer).scope.starts_with("shared") {
            return Ok(staging);
        }
        let (copy, _, to, from) = self.copy(buffer)?;
        let inside = is_around(outer, copy);
        staging.hoisted = !inside;
        let dims = dims_of(copy, from, contraction, (side, guess));
        let loops = tree::all_loops(&self.program.body.block.body);
        let around: Vec<&For> = loops.into_iter().filter(|l| is_around(l, copy)).collect();
        let mut own = around.iter().rev().filter(|l| l.kind != ForKind::Vectorized);
        // The threads' loop, and the serial one above it.
        let serial = own.nth(1);
        let fill = Fill {
            coalesced: dims.last().copied() == copy.block.iter_vars.last().map(|iv| iv.var.id),
            vector: self.vector(copy)?,
            unroll: serial.is_some_and(|l| l.kind == ForKind::Unrolled),
        };
        staging.shared = Some((layout(operand, side, (copy, to, &dims), staging.hoisted, plan)?, fill));
        Ok(staging)
    }

    /// The buffer in which the block that multiplies reads an operand.
    fn operand(&self, contraction: &Contraction, side: Side) -> Read<BufferId> {
        let wanted = contraction.operand(side).buffer;
        let Some((target, _, value)) = store(self.main) else {
            return wrong(block_name(self.main), "it stores nothing");
        };
        let mut found: Vec<BufferId> = Vec::new();
        for (b, _) in visit::loads(value).into_iter().filter(|(b, _)| *b != target) {
            if !found.contains(&b) {
                found.push(b);
            }
        }
        let leads = |b: &&BufferId| {
            let mut at = **b;
            for _ in &self.program.buffers {
                match self.copy(at) {
                    Ok((_, from, ..)) if at != wanted => at = from,
                    _ => break,
                }
            }
            at == wanted
        };
        // Of one buffer that is both the first is A's.
        let both = contraction.a.buffer == contraction.b.buffer && side == Side::B;
        let mut leading = found.iter().filter(leads);
        let first = leading.next();
        let own = if both { leading.next().or(first) } else { first };
        own.copied().map_or_else(
            || wrong(block_name(self.main), format!("it does not read {}", contraction.operand(side).name)),
            Ok,
        )
    }
}

/// The iterators of a copy by the operand's dimensions. They are in that order, or the last one comes first.
fn dims_of(copy: &BlockRealize, from: &[Expr], contraction: &Contraction, (side, guess): (Side, Guess)) -> Vec<VarId> {
    let own: Vec<VarId> = copy.block.iter_vars.iter().map(|iv| iv.var.id).collect();
    let mut turned = own.clone();
    if !turned.is_empty() {
        turned.rotate_left(1);
    }
    let extent_of =
        |v: &VarId| copy.block.iter_vars.iter().find(|iv| iv.var.id == *v).and_then(|iv| constant(&iv.extent));
    let fits = |list: &[VarId]| {
        let dims = &contraction.operand(side).dims;
        let extents = dims.iter().zip(list).all(|(axis, v)| extent_of(v) == Some(contraction.extent(*axis)));
        // Of a gathered operand memory has other indices.
        let last = |e: &Expr| contraction.gather.is_some() || matches!(e, Expr::Var(v) if Some(&v.id) == list.last());
        dims.len() == list.len() && extents && from.last().is_some_and(last)
    };
    let across = guess.across[usize::from(side == Side::B)];
    if fits(&turned) && (across || !fits(&own)) {
        turned
    } else {
        own
    }
}

fn layout(
    operand: &OperandInfo,
    side: Side,
    (copy, to, dims): (&BlockRealize, &[Expr], &[VarId]),
    hoisted: bool,
    plan: &CoresPlan,
) -> Read<StagedLayout> {
    let var_of = |axis: Axis| operand.dims.iter().position(|d| *d == axis).and_then(|d| dims.get(d)).copied();
    let spatial = var_of(side.spatial());
    let Some(column) = to.last() else { return wrong(block_name(copy), "it stores a number") };
    let swizzle = !matches!(column, Expr::Var(_));
    // A swizzled column is made of the row, too: its own is what is divided.
    let k = var_of(Axis::K);
    let row = to.len().checked_sub(2).and_then(|d| to.get(d));
    let is = |e: Option<&Expr>, of: Option<VarId>| matches!((e, of), (Some(Expr::Var(v)), Some(of)) if v.id == of);
    let k_major = if swizzle { is(row, k) } else { is(Some(column), spatial) };
    let of_row = match () {
        () if k_major => plan.spatial(side),
        () if hoisted => plan.k_part,
        () => plan.k_tile,
    };
    let pad = match copy.block.annotations.get(storage_align::KEY) {
        Some(Attr::List(all)) => match all.as_slice() {
            [Attr::List(one)] => match one.as_slice() {
                [_, _, Attr::Int(factor), Attr::Int(0)] => factor.saturating_sub(of_row),
                [_, _, _, Attr::Int(offset)] => *offset,
                _ => 0,
            },
            _ => 0,
        },
        _ => 0,
    };
    Ok(StagedLayout { k_major, pad: u32::try_from(pad).unwrap_or(0), swizzle })
}

/// Loops along k.
struct AlongK<'p> {
    outer: &'p For,
    inner: &'p For,
    step: i64,
    tile: i64,
}

/// Digits of threads from 32 on are warps; one that is both comes apart.
fn warps_and_lanes(threads: &[Digit]) -> [Vec<Digit>; 2] {
    const LANES: i64 = 32;
    let mut out = [Vec::new(), Vec::new()];
    for d in threads {
        let low = (LANES / d.lower.max(1)).clamp(1, d.extent);
        match d.lower {
            LANES.. => out[0].push(*d),
            _ if low == d.extent => out[1].push(*d),
            _ => {
                out[1].push(Digit { extent: low, ..*d });
                out[0].push(Digit { lower: LANES, extent: d.extent / low, scale: d.scale.saturating_mul(low), ..*d });
            }
        }
    }
    out
}

/// Loops over blocks, those of one iteration, which no digit tells of, first or last.
fn order_of_blocks(blocks: &[Digit], contraction: &Contraction, is_split: bool, units_first: bool) -> Vec<BlockLoop> {
    let spatial = contraction
        .iters
        .iter()
        .map(|(axis, _)| *axis)
        .filter(|axis| matches!(axis, Axis::M | Axis::N | Axis::Batch(_)));
    let axes = is_split.then_some(Axis::K).into_iter().chain(spatial);
    let missing = axes.filter(|axis| blocks.iter().all(|d| d.axis != *axis));
    let units = missing.map(|axis| BlockLoop { axis, extent: 1, group: false });
    let mut sorted = blocks.to_vec();
    sorted.sort_by_key(|d| std::cmp::Reverse(d.lower));
    let known = sorted.iter().map(|d| {
        let group = blocks.iter().any(|other| other.axis == d.axis && other.scale > d.scale);
        BlockLoop { axis: d.axis, extent: d.extent, group }
    });
    match units_first {
        true => units.chain(known).collect(),
        false => known.chain(units).collect(),
    }
}
