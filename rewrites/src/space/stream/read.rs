//! From the blocks of a program to what the space knows of them.
use crate::space::in_order;
use crate::space::instructions::{operands, unit, Issuing, Unit};
use crate::space::nests::{nest_of, part_of, parts, Nest, NestError};
use crate::tree::all_realizes;
use satune_ir::affine::constant;
use satune_ir::term::stream::{
    Access, BlockKind, Indexed, Issued, PartValue, Shape, Stream, StreamBlock, StreamBuffer, StreamIter,
};
use satune_ir::{
    access as regions, fields, fold, visit, BinOp, Block, Buffer, BufferId, Expr, IterKind, Program, Range, Region,
    Stmt, Var, VarId,
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Why a program has no space of streaming schedules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A block is none of what streams.
    #[error("block `{block}` is neither an elementwise map nor a reduction: {reason}; the explorer takes one store per block, the result's indices bare iterators, under a plain nest of loops")]
    Block {
        /// Its name.
        block: String,
        /// What does not fit.
        reason: String,
    },
    /// The program is no sequence of blocks.
    #[error(
        "the program is no sequence of loop nests with one block each: {reason}; the explorer takes one nest per block"
    )]
    Program {
        /// What does not fit.
        reason: String,
    },
}

impl From<NestError> for StreamError {
    fn from(error: NestError) -> StreamError {
        match error {
            NestError::Block { block, reason } => StreamError::Block { block, reason },
            NestError::Program { reason } => StreamError::Program { reason },
        }
    }
}

/// Reads the blocks of a program in order. `plain` is told of each block that only a plain kernel takes, and why.
pub(in crate::space) fn stream(
    program: &Program,
    pipeline: bool,
    plain: &mut dyn FnMut(&str, String),
) -> Result<Stream, StreamError> {
    let mut buffers = Buffers { program, known: Vec::new(), values: HashMap::new() };
    let mut blocks: Vec<StreamBlock> = Vec::new();
    for part in parts(program) {
        if let Some(block) = bound(program, part, &mut buffers) {
            plain(&block.name, in_order::why(part));
            blocks.push(block);
            continue;
        }
        let Nest { block, order } = nest_of(program, part)?;
        let fail = |reason: String| StreamError::Block { block: block.name.clone(), reason };
        if blocks.iter().any(|b| b.name == block.name) {
            return Err(fail("another block has its name".into()));
        }
        blocks.push(read_block(block, &order, &mut buffers, plain).map_err(fail)?);
    }
    let known = buffers.known;
    let buffers = Vec::with_capacity(known.len());
    // A copy of what a buffer holds is that of one writer.
    let pipeline = pipeline && written_once(program);
    let mut stream = Stream { blocks, buffers, pipeline, tiled: Vec::new() };
    for id in known {
        stream.buffers.push(buffer(program, id).map_err(|reason| StreamError::Program { reason })?);
    }
    for (number, why) in unlike(&stream) {
        let block = &mut stream.blocks[number];
        plain(&block.name, why);
        block.kind = BlockKind::Other;
    }
    stream.number_axes();
    Ok(stream)
}

/// Whether no two nests write one buffer.
fn written_once(program: &Program) -> bool {
    let mut seen = HashSet::new();
    parts(program).into_iter().all(|part| {
        let own: HashSet<BufferId> =
            all_realizes(part).into_iter().flat_map(|r| &r.block.writes).map(|r| r.buffer).collect();
        own.into_iter().all(|b| seen.insert(b))
    })
}

/// Whether primitives schedule a nest.
///
/// # Errors
/// Why they do not.
pub(in crate::space) fn takes(program: &Program, part: &Stmt) -> Result<(), String> {
    let mut buffers = Buffers { program, known: Vec::new(), values: HashMap::new() };
    let Nest { block, order } = nest_of(program, part).map_err(|e| match e {
        NestError::Block { reason, .. } | NestError::Program { reason } => reason,
    })?;
    read_block(block, &order, &mut buffers, &mut |_, _| ()).map(drop)
}

/// Whether a nest's accesses are known one by one, so that kernels of rows and of elements have it in other ways than as it is.
pub(in crate::space) fn knows(program: &Program, part: &Stmt) -> bool {
    let mut buffers = Buffers { program, known: Vec::new(), values: HashMap::new() };
    let Ok(Nest { block, order }) = nest_of(program, part) else { return false };
    read_block(block, &order, &mut buffers, &mut |_, _| ()).is_ok_and(|b| b.kind != BlockKind::Other)
}

/// Rows shorter than a warp leave lanes idle, and of so many rows each has a thread on any GPU.
const SHORT: i64 = 32;
const MANY: i64 = 1 << 15;

/// Whether a nest is a reduction of rows that threads can share, and are the better for it.
pub(in crate::space) fn sums_rows(program: &Program, part: &Stmt) -> bool {
    let mut alone = program.clone();
    *alone.body.block.body = part.clone();
    let Ok(stream) = stream(&alone, true, &mut |_, _| ()) else { return false };
    let worth = |shape: Shape| shape.columns >= SHORT || shape.rows < MANY;
    stream.fits_row(0, 1) && stream.row_shape(0, 1).is_some_and(worth)
}

/// A nest that is bound to threads.
fn bound(program: &Program, part: &Stmt, buffers: &mut Buffers<'_>) -> Option<StreamBlock> {
    let [launched, threads, steps] = in_order::launched(part)?;
    let name = all_realizes(part).first()?.block.name.clone();
    let touched = regions::of_block(None, part, &[], &program.buffers);
    let mut all = |regions: &[Region]| -> Vec<Access> {
        let of = |r: &Region| Access {
            buffer: buffers.number(r.buffer),
            dims: vec![None; r.ranges.len()],
            split: None,
            known: false,
        };
        regions.iter().map(of).collect()
    };
    let (mut reads, mut writes) = (all(&touched.reads), all(&touched.writes).into_iter());
    let write = writes.next()?;
    reads.extend(writes);
    let iter = |name: &str, extent, reduce| StreamIter { name: name.into(), extent, reduce, axis: 0 };
    let (mut each, mut per_row, mut stores) = ([0; 2], [0; 2], 0);
    let mut issued = Issuing::of(&program.buffers, false, &|_| true);
    visit::walk_stmt(part, &mut |s| {
        if let Stmt::Store { value, .. } = s {
            stores += 1;
            count(value, &program.buffers, &|_| true, [&mut each, &mut per_row]);
            issued.store(value);
        }
    });
    let dtype = program.buffer(touched.writes.first()?.buffer).dtype;
    Some(StreamBlock {
        name,
        kind: BlockKind::Bound,
        sums: false,
        iters: vec![iter("block", launched, false), iter("thread", threads, false), iter("step", steps, true)],
        places: vec![0, 1, 2],
        reads,
        loaded: Vec::new(),
        write,
        stores,
        shares: false,
        updates: false,
        gathers: false,
        arithmetic: each[0],
        special: each[1],
        per_row,
        issued: issued.all,
        apart: issued.all,
        parts: Vec::new(),
        dtype,
    })
}

struct Buffers<'p> {
    program: &'p Program,
    known: Vec<BufferId>,
    /// Numbers of the values that blocks compute.
    values: HashMap<Expr, usize>,
}

impl Buffers<'_> {
    fn number(&mut self, id: BufferId) -> usize {
        self.known.iter().position(|b| *b == id).unwrap_or_else(|| {
            self.known.push(id);
            self.known.len() - 1
        })
    }

    /// What a block computes on its way.
    fn part(
        &mut self,
        block: &Block,
        order: &[usize],
        (value, varies, issued): (Expr, bool, Issued),
        alike: Option<usize>,
    ) -> PartValue {
        let next = self.values.len();
        let placed = by_places(&value, block, order);
        let used = |iter: &usize| visit::uses_var(&placed, &|v| v.0 as usize == *iter);
        PartValue {
            iters: (0..order.len()).filter(|iter| Some(*iter) != alike && used(iter)).collect(),
            number: *self.values.entry(placed).or_insert(next),
            converts: matches!(&value, Expr::Cast(_, of) if matches!(**of, Expr::Load(..))),
            varies,
            buffers: visit::loads(&value).iter().map(|(b, _)| self.number(*b)).collect(),
            issued,
        }
    }

    /// Every different element that values load, but what the block adds to.
    fn loaded(&mut self, block: &Block, order: &[usize], values: &[&Expr]) -> Vec<Indexed> {
        let (mut out, mut found): (Vec<Indexed>, _) = (Vec::new(), Vec::new());
        values.iter().for_each(|value| elements_of(value, false, &mut found));
        for (buffer, index, chosen) in found {
            if block.writes.iter().all(|w| w.buffer != buffer) {
                let index: Vec<Expr> = index.iter().map(|e| by_places(e, block, order)).collect();
                let buffer = self.number(buffer);
                match out.iter_mut().find(|load| load.buffer == buffer && load.index == index) {
                    Some(load) => load.chosen &= chosen,
                    None => out.push(Indexed { buffer, index, chosen }),
                }
            }
        }
        out
    }

    /// `order` names the block's iterators in the order of its loops.
    fn access(&mut self, block: &Block, order: &[usize], region: &Region) -> Result<Access, String> {
        let name = &self.program.buffer(region.buffer).name;
        let number = |v: &satune_ir::Var| {
            number_of(v, block, order).ok_or_else(|| format!("an index of buffer `{name}` is no iterator"))
        };
        let no_iterator =
            |index: &Expr| format!("an index of buffer `{name}` is no bare iterator: {}", crate::text::expr(index));
        let (mut dims, mut split) = (Vec::new(), None);
        for range in &region.ranges {
            match (&range.min, constant(&range.extent)) {
                (Expr::Var(v), Some(1)) => dims.push(Some(number(v)?)),
                (Expr::Int(0, _), Some(1)) => dims.push(None),
                // A part of a row, and a place in it.
                (index, Some(1)) if split.is_none() => {
                    let (outer, inner) = part_of(index, block).ok_or_else(|| no_iterator(index))?;
                    split = Some(dims.len());
                    dims.extend([Some(number(outer)?), Some(number(inner)?)]);
                }
                (index, _) => return Err(no_iterator(index)),
            }
        }
        let used: Vec<usize> = dims.iter().flatten().copied().collect();
        if (1..used.len()).any(|i| used[..i].contains(&used[i])) {
            return Err(format!("an iterator indexes two dimensions of buffer `{name}`"));
        }
        Ok(Access { buffer: self.number(region.buffer), dims, split, known: true })
    }

    /// An access of which only is told where an index is a bare iterator, unless that is all.
    fn roughly(&mut self, block: &Block, order: &[usize], region: &Region) -> Access {
        if let Some(known) = self.access(block, order, region).ok().filter(|access| access.split.is_none()) {
            return known;
        }
        let of = |range: &Range| match (&range.min, constant(&range.extent)) {
            (Expr::Var(v), Some(1)) => number_of(v, block, order),
            _ => None,
        };
        let dims = region.ranges.iter().map(of).collect();
        Access { buffer: self.number(region.buffer), dims, split: None, known: false }
    }
}

/// The place of a block's iterator in the order of its loops.
fn number_of(v: &satune_ir::Var, block: &Block, order: &[usize]) -> Option<usize> {
    let place = block.iter_vars.iter().position(|iv| iv.var.id == v.id)?;
    order.iter().position(|o| *o == place)
}

fn buffer(program: &Program, id: BufferId) -> Result<StreamBuffer, String> {
    let b = program.buffer(id);
    let dims = b.extents().ok_or_else(|| format!("the shape of buffer `{}` is no constant", b.name))?;
    if !b.strides.is_empty() || b.elem_offset.is_some() || b.scope != "global" {
        return Err(format!("buffer `{}` is not a plain row-major array in global memory", b.name));
    }
    let param = program.params.contains(&id);
    Ok(StreamBuffer { name: b.name.clone(), dtype: b.dtype, dims, param, before: false, after: false })
}

fn read_block(
    block: &Block,
    order: &[usize],
    buffers: &mut Buffers<'_>,
    plain: &mut dyn FnMut(&str, String),
) -> Result<StreamBlock, String> {
    let mut iters = Vec::new();
    for iter in order.iter().map(|i| &block.iter_vars[*i]) {
        let extent = constant(&iter.extent).filter(|e| *e >= 1 && constant(&iter.min) == Some(0));
        let extent = extent.ok_or_else(|| format!("iterator `{}` has no constant range from 0", iter.var.name))?;
        let reduce = match iter.kind {
            IterKind::Spatial => false,
            IterKind::Reduce => true,
            _ => return Err(format!("iterator `{}` is neither spatial nor a reduction's", iter.var.name)),
        };
        iters.push(StreamIter { name: iter.var.name.to_string(), extent, reduce, axis: 0 });
    }
    let reduces = iters.iter().any(|i| i.reduce);
    if reduces != block.init.is_some() {
        return Err("it has an init and no reduction, or the other way round".into());
    }
    if !block.alloc_buffers.is_empty() || !block.match_buffers.is_empty() {
        return Err("it has buffers of its own".into());
    }
    let values = stored(&block.body)?;
    let [first, others @ ..] = block.writes.as_slice() else { return Err("it writes nothing".into()) };
    if block.reads.iter().any(|r| block.writes.iter().any(|w| w.buffer == r.buffer)) {
        return Err("it reads what it writes".into());
    }
    let spatial: Vec<usize> = (0..iters.len()).filter(|i| !iters[*i].reduce).collect();
    if block.writes.iter().any(|w| elements(block, order, w) != spatial) {
        return Err("it does not write one element per value of its spatial iterators".into());
    }
    let innermost = order.last().map(|i| block.iter_vars[*i].var.id);
    let (mut each, mut per_row) = ([0; 2], [0; 2]);
    let varies = |e: &Expr| visit::uses_var(e, &|id| Some(id) == innermost);
    values.iter().for_each(|v| count(v, &buffers.program.buffers, &varies, [&mut each, &mut per_row]));
    let mut issued = Issuing::of(&buffers.program.buffers, reduces, &varies);
    values.iter().for_each(|v| issued.store(v));
    let Issuing { all: issued, parts: values_of, .. } = issued;
    let last_spatial = iters.iter().rposition(|i| !i.reduce);
    let last = last_spatial.map(|at| block.iter_vars[order[at]].var.id);
    let uses_last = |e: &Expr| visit::uses_var(e, &|id| Some(id) == last);
    // Where a load stands under one condition for all neighbours, there is nothing to choose for each.
    let differs = |e: &Expr| match e {
        Expr::Select { cond, then, otherwise, .. }
            if matches!(**then, Expr::Load(..)) && fold::is_constant(otherwise) =>
        {
            uses_last(cond)
        }
        other => uses_last(other),
    };
    let apart = [true, false].map(|varies| {
        let own = values_of.iter().filter(|(value, varying, _)| *varying == varies && differs(value));
        own.fold(Issued::default(), |all, (.., issued)| all.plus(*issued))
    });
    let [arithmetic, special] = each;
    let dtype = buffers.program.buffer(first.buffer).dtype;
    let places = order.to_vec();
    let written = loops_follow(&places, &iters)
        .and_then(|()| one_value(block))
        .and_then(|()| buffers.access(block, order, first));
    let sets_one = !reduces && written.is_ok();
    let shares = reduces && one_value(block).is_ok();
    let known = written.and_then(|write| {
        let reads = block.reads.iter().map(|region| buffers.access(block, order, region));
        Ok((reads.collect::<Result<Vec<_>, _>>()?, write))
    });
    let (kind, reads, write) = match known {
        Ok((reads, write)) => (if reduces { BlockKind::Reduce } else { BlockKind::Map }, reads, write),
        Err(why) => {
            plain(&block.name, why);
            let mut rough = |region| buffers.roughly(block, order, region);
            (BlockKind::Other, block.reads.iter().chain(others).map(&mut rough).collect(), rough(first))
        }
    };
    let gathers = sets_one && kind == BlockKind::Other && write.known;
    let (name, sums) = (block.name.clone(), kind == BlockKind::Reduce);
    let stores = values.len();
    let own = |v: &&Expr| visit::loads(v).iter().any(|(b, _)| block.writes.iter().any(|w| w.buffer == *b));
    let updates = block.init.is_none() && values.iter().any(own);
    let loaded = buffers.loaded(block, order, &values);
    let of_part = |value: (Expr, bool, Issued)| {
        let alike = last_spatial.filter(|_| !differs(&value.0));
        buffers.part(block, order, value, alike)
    };
    let parts = values_of.into_iter().map(of_part).collect();
    Ok(StreamBlock {
        name,
        kind,
        sums,
        iters,
        places,
        reads,
        loaded,
        write,
        stores,
        shares,
        updates,
        gathers,
        arithmetic,
        special,
        per_row,
        issued,
        apart,
        parts,
        dtype,
    })
}

/// The elements that an expression loads, those of indices among them, and whether a condition decides on it.
fn elements_of<'e>(e: &'e Expr, chosen: bool, out: &mut Vec<(BufferId, &'e [Expr], bool)>) {
    if let Expr::Load(buffer, index) = e {
        out.push((*buffer, index, chosen));
    }
    match e {
        // The name of a buffer is no element.
        e if fields::of(e).is_some() => {}
        Expr::Select { cond, then, otherwise, lazy } => {
            elements_of(cond, chosen, out);
            [then, otherwise].into_iter().for_each(|e| elements_of(e, chosen || *lazy, out));
        }
        other => visit::children(other).into_iter().for_each(|e| elements_of(e, chosen, out)),
    }
}

/// An expression whose iterators are numbered by their places in the order of the loops.
fn by_places(value: &Expr, block: &Block, order: &[usize]) -> Expr {
    let numbered = |(place, number): (usize, &usize)| {
        let var = &block.iter_vars[*number].var;
        let (id, name) = (VarId(place as u32), place.to_string().as_str().into());
        (var.id, Expr::Var(Var { id, name, dtype: var.dtype }))
    };
    visit::substitute(value, &order.iter().enumerate().map(numbered).collect())
}

/// What a block stores, and the conditions and values on which this depends.
fn stored(body: &Stmt) -> Result<Vec<&Expr>, String> {
    match body {
        Stmt::Store { value, .. } => Ok(vec![value]),
        Stmt::Seq(parts) => parts.iter().map(stored).collect::<Result<Vec<_>, _>>().map(|all| all.concat()),
        Stmt::If { then, otherwise, .. } => {
            let mut all = stored(then)?;
            all.extend(otherwise.as_deref().map(stored).transpose()?.unwrap_or_default());
            Ok(all)
        }
        Stmt::Let { body, .. } => stored(body),
        _ => Err("its body is more than stores".into()),
    }
}

/// The iterators, by their places in the order of the loops, of whose values an access has elements of its own.
fn elements(block: &Block, order: &[usize], region: &Region) -> Vec<usize> {
    let one = |range: &&Range| constant(&range.extent) == Some(1);
    let of = |range: &Range| match part_of(&range.min, block) {
        Some((part, place)) => [Some(part), Some(place)].map(|v| number_of(v?, block, order)),
        None => [in_order::told(&range.min).and_then(|v| number_of(v, block, order)), None],
    };
    let mut out: Vec<usize> = region.ranges.iter().filter(one).flat_map(of).flatten().collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// The block has one store, of one element per value of its spatial iterators; a reduction has a constant init, and combines
/// what it has with something by one operation.
fn one_value(block: &Block) -> Result<(), String> {
    let Stmt::Store { value, buffer: target, indices } = &*block.body else {
        return Err("its body is not one store".into());
    };
    let starts =
        |init: &Stmt| matches!(init, Stmt::Store { buffer, indices: at, .. } if (buffer, at) == (target, indices));
    if block.init.as_deref().is_some_and(|init| !starts(init)) {
        return Err("its init is not one store to the result".into());
    }
    sums(block, *target, indices, value)
}

/// The loops that `compute_at` makes are in the order of the iterators: spatial ones first, those of a reduction side by side.
fn loops_follow(places: &[usize], iters: &[StreamIter]) -> Result<(), String> {
    if iters.windows(2).any(|w| w[0].reduce && !w[1].reduce) {
        return Err("a spatial iterator comes after a reduction's".into());
    }
    let reduced: Vec<usize> = places.iter().zip(iters).filter(|(_, i)| i.reduce).map(|(p, _)| *p).collect();
    let kept = match reduced[..] {
        [] => places.windows(2).all(|w| w[0] < w[1]),
        _ => reduced.windows(2).all(|w| w[1] == w[0] + 1),
    };
    kept.then_some(()).ok_or_else(|| "its loops are not in the order of its iterators".into())
}

/// A reduction begins with a constant, and combines what it has with something by one operation.
fn sums(block: &Block, target: BufferId, indices: &[Expr], value: &Expr) -> Result<(), String> {
    let Some(init) = &block.init else { return Ok(()) };
    if !matches!(&**init, Stmt::Store { value, .. } if fold::is_constant(value)) {
        return Err("its init is no constant".into());
    }
    match updates(target, indices, value) {
        true => Ok(()),
        false => Err("it is not `S = S op value` with op one of +, *, min, max".into()),
    }
}

/// Whether a value is that of an element, and of something else by an operation that may be taken in any order.
fn updates(target: BufferId, at: &[Expr], value: &Expr) -> bool {
    let own = |e: &Expr| matches!(e, Expr::Load(buffer, indices) if *buffer == target && indices == at);
    let Expr::Binary(BinOp::Add | BinOp::Mul | BinOp::Min | BinOp::Max, a, b) = value else { return false };
    let operand = if own(a) { b } else { a };
    (own(a) || own(b)) && visit::loads(operand).iter().all(|(buffer, _)| *buffer != target)
}

/// Counts the operations of an expression, plain and special ones: of those that vary within a row, and of the others.
fn count(e: &Expr, buffers: &[Buffer], varies: &dyn Fn(&Expr) -> bool, [each, per_row]: [&mut [u32; 2]; 2]) {
    if let Some(unit) = unit(e, buffers) {
        let counts = if varies(e) { &mut *each } else { &mut *per_row };
        counts[usize::from(unit == Unit::Special)] += 1;
    }
    operands(e).into_iter().for_each(|x| count(x, buffers, varies, [&mut *each, &mut *per_row]));
}

/// Numbers of the blocks that read a part of a buffer only, or parts of its rows that are not as long as others', or of which threads
/// could share nothing, with the words for it. Written are buffers as a whole.
fn unlike(stream: &Stream) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    for (number, b) in stream.blocks.iter().enumerate() {
        if matches!(b.kind, BlockKind::Other | BlockKind::Bound) {
            continue;
        }
        // Of one loop of one step threads have a row; of several nothing is left to share.
        let several = b.spatial() == 0 || b.iters.len() > b.spatial() + 1;
        if b.kind == BlockKind::Reduce && several && b.instances() == b.results() {
            out.push((number, "it reduces a single element".into()));
            continue;
        }
        for access in b.accesses() {
            let buffer = &stream.buffers[access.buffer];
            let mut others = stream.blocks.iter().flat_map(|o| o.accesses().map(move |a| (o, a)));
            let length = |b: &StreamBlock, a: &Access| a.split.and_then(|at| a.dims[at + 1]).map(|i| b.iters[i].extent);
            let same = |(o, a): (&StreamBlock, &Access)| {
                (a.buffer, a.split) != (access.buffer, access.split) || length(o, a) == length(b, access)
            };
            if access.split.is_some() && !others.all(same) {
                out.push((number, format!("the parts of rows of buffer `{}` have several lengths", buffer.name)));
                break;
            }
            if access.reach(&|i| b.iters[i].extent) != buffer.dims {
                out.push((number, format!("buffer `{}` is larger or smaller than what is accessed", buffer.name)));
                break;
            }
        }
    }
    out
}

/// Numbers of the blocks that access rows as a whole of which others access parts, or, where a sum is among these, of the others;
/// with the words for it.
pub(super) fn by_parts_and_whole(stream: &Stream) -> Vec<(usize, String)> {
    let known = |b: &StreamBlock| !matches!(b.kind, BlockKind::Other | BlockKind::Bound);
    let all = || stream.blocks.iter().enumerate().filter(|(_, b)| known(b));
    let mut out = BTreeMap::new();
    for buffer in 0..stream.buffers.len() {
        let of = |parts: bool| -> Vec<(usize, &StreamBlock)> {
            let here = |a: &Access| a.buffer == buffer && a.split.is_some() == parts;
            all().filter(|(_, b)| b.accesses().any(here)).collect()
        };
        let (parts, whole) = (of(true), of(false));
        if parts.is_empty() || whole.is_empty() {
            continue;
        }
        let plain = if whole.iter().any(|(_, b)| b.sums) { parts } else { whole };
        let why =
            format!("rows of buffer `{}` are accessed as a whole, and parts of them", stream.buffers[buffer].name);
        out.extend(plain.into_iter().map(|(number, _)| (number, why.clone())));
    }
    out.into_iter().collect()
}
