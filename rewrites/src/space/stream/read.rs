//! From the blocks of a program to what the space knows of them.
use super::StreamError;
use crate::space::nests::{nest_of, parts, Nest};
use satune_ir::affine::constant;
use satune_ir::term::stream::{Access, BlockKind, Inlining, Stream, StreamBlock, StreamBuffer, StreamIter};
use satune_ir::{visit, BinOp, Block, BufferId, Expr, IterKind, Program, Region, Stmt};

/// Reads the blocks of a program in order.
pub(in crate::space) fn stream(program: &Program, inlined: Vec<Inlining>) -> Result<Stream, StreamError> {
    let mut buffers = Buffers { program, known: Vec::new() };
    let mut blocks: Vec<StreamBlock> = Vec::new();
    for part in parts(program) {
        let Nest { block, order } = nest_of(program, part)?;
        let fail = |reason: String| StreamError::Block { block: block.name.clone(), reason };
        if blocks.iter().any(|b| b.name == block.name) {
            return Err(fail("another block has its name".into()));
        }
        blocks.push(read_block(block, &order, &mut buffers).map_err(fail)?);
    }
    let known = buffers.known;
    let mut stream = Stream { inlined, parts: 1, blocks, buffers: Vec::with_capacity(known.len()) };
    for id in known {
        stream.buffers.push(buffer(program, id).map_err(|reason| StreamError::Program { reason })?);
    }
    check_extents(&stream)?;
    axes(&mut stream);
    Ok(stream)
}

struct Buffers<'p> {
    program: &'p Program,
    known: Vec<BufferId>,
}

impl Buffers<'_> {
    fn number(&mut self, id: BufferId) -> usize {
        self.known.iter().position(|b| *b == id).unwrap_or_else(|| {
            self.known.push(id);
            self.known.len() - 1
        })
    }

    /// `order` names the block's iterators in the order of its loops.
    fn access(&mut self, block: &Block, order: &[usize], region: &Region) -> Result<Access, String> {
        let name = &self.program.buffer(region.buffer).name;
        let number = |v: &satune_ir::Var| {
            let place = block.iter_vars.iter().position(|iv| iv.var.id == v.id);
            let place = place.and_then(|p| order.iter().position(|o| *o == p));
            place.ok_or_else(|| format!("an index of buffer `{name}` is no iterator"))
        };
        let reduces = block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce);
        let (mut dims, mut split) = (Vec::new(), None);
        for range in &region.ranges {
            match (&range.min, constant(&range.extent)) {
                (Expr::Var(v), Some(1)) => dims.push(Some(number(v)?)),
                (Expr::Int(0, _), Some(1)) => dims.push(None),
                // A part of a row, and a place in it.
                (Expr::Binary(BinOp::Add, outer, inner), Some(1)) if reduces && split.is_none() => {
                    let parts = part_of(outer, inner, block);
                    let (outer, inner) =
                        parts.ok_or_else(|| format!("an index of buffer `{name}` is no bare iterator"))?;
                    split = Some(dims.len());
                    dims.extend([Some(number(outer)?), Some(number(inner)?)]);
                }
                _ => return Err(format!("an index of buffer `{name}` is no bare iterator")),
            }
        }
        let used: Vec<usize> = dims.iter().flatten().copied().collect();
        if (1..used.len()).any(|i| used[..i].contains(&used[i])) {
            return Err(format!("an iterator indexes two dimensions of buffer `{name}`"));
        }
        Ok(Access { buffer: self.number(region.buffer), dims, split })
    }
}

/// The iterators of an index `outer * extent of inner + inner`.
fn part_of<'e>(outer: &'e Expr, inner: &'e Expr, block: &Block) -> Option<(&'e satune_ir::Var, &'e satune_ir::Var)> {
    let (Expr::Binary(BinOp::Mul, part, length), Expr::Var(inner)) = (outer, inner) else { return None };
    let (Expr::Var(part), Expr::Int(length, _)) = (&**part, &**length) else { return None };
    let extent = block.iter_vars.iter().find(|iv| iv.var.id == inner.id).and_then(|iv| constant(&iv.extent));
    (extent == Some(*length) && *length > 1).then_some((part, inner))
}

fn buffer(program: &Program, id: BufferId) -> Result<StreamBuffer, String> {
    let b = program.buffer(id);
    let dims: Option<Vec<i64>> = b.shape.iter().map(constant).collect();
    let dims = dims.ok_or_else(|| format!("the shape of buffer `{}` is no constant", b.name))?;
    if !b.strides.is_empty() || b.elem_offset.is_some() || b.scope != "global" {
        return Err(format!("buffer `{}` is not a plain row-major array in global memory", b.name));
    }
    Ok(StreamBuffer { name: b.name.clone(), dtype: b.dtype, dims, param: program.params.contains(&id) })
}

fn read_block(block: &Block, order: &[usize], buffers: &mut Buffers<'_>) -> Result<StreamBlock, String> {
    let mut iters = Vec::new();
    for iter in order.iter().map(|i| &block.iter_vars[*i]) {
        let extent = constant(&iter.extent).filter(|e| *e >= 1 && constant(&iter.min) == Some(0));
        let extent = extent.ok_or_else(|| format!("iterator `{}` has no constant range from 0", iter.var.name))?;
        let reduce = match iter.kind {
            IterKind::Spatial => false,
            IterKind::Reduce => true,
            IterKind::Opaque => return Err(format!("iterator `{}` is opaque", iter.var.name)),
        };
        if !reduce && iters.last().is_some_and(|i: &StreamIter| i.reduce) {
            return Err("a spatial iterator comes after a reduction's".into());
        }
        iters.push(StreamIter { name: iter.var.name.to_string(), extent, reduce, axis: 0 });
    }
    let Stmt::Store { value, buffer: target, indices } = &*block.body else {
        return Err("its body is not one store".into());
    };
    let reduces = iters.iter().any(|i| i.reduce);
    if reduces != block.init.is_some() {
        return Err("it has an init and no reduction, or the other way round".into());
    }
    if let Some(init) = &block.init {
        let constant = |e: &Expr| matches!(e, Expr::Int(..) | Expr::Float(..));
        if !matches!(&**init, Stmt::Store { buffer, indices: at, value } if (buffer, at) == (target, indices) && constant(value))
        {
            return Err("its init is not one store of a constant to the result".into());
        }
        if !updates(*target, indices, value) {
            return Err("it is not `S = S op value` with op one of +, *, min, max".into());
        }
    }
    if !block.alloc_buffers.is_empty() || !block.match_buffers.is_empty() {
        return Err("it has buffers of its own".into());
    }
    let [write] = block.writes.as_slice() else { return Err("it does not write one buffer".into()) };
    let write = buffers.access(block, order, write)?;
    let mut reads = Vec::new();
    for region in &block.reads {
        reads.push(buffers.access(block, order, region)?);
    }
    if reads.iter().any(|r| r.buffer == write.buffer) {
        return Err("it reads what it writes".into());
    }
    let spatial: Vec<usize> = (0..iters.len()).filter(|i| !iters[*i].reduce).collect();
    let mut written: Vec<usize> = write.dims.iter().flatten().copied().collect();
    written.sort_unstable();
    if written != spatial {
        return Err("it does not write one element per value of its spatial iterators".into());
    }
    let (mut arithmetic, mut special) = (0, 0);
    count(value, &mut arithmetic, &mut special);
    let dtype = buffers.program.buffer(*target).dtype;
    let kind = if reduces { BlockKind::Reduce } else { BlockKind::Map };
    let places = order.to_vec();
    // The loops that `compute_at` makes are in the order of the iterators.
    let reduced: Vec<usize> = places.iter().zip(&iters).filter(|(_, i)| i.reduce).map(|(p, _)| *p).collect();
    let adjacent = reduced.windows(2).all(|w| w[1] == w[0] + 1);
    let in_order = places.windows(2).all(|w| w[0] < w[1]);
    if !(if reduces { adjacent } else { in_order }) {
        return Err("its loops are not in the order of its iterators".into());
    }
    Ok(StreamBlock { name: block.name.clone(), kind, iters, places, reads, write, arithmetic, special, dtype })
}

/// Whether a value is that of an element, and of something else by an operation that may be taken in any order.
fn updates(target: BufferId, at: &[Expr], value: &Expr) -> bool {
    let own = |e: &Expr| matches!(e, Expr::Load(buffer, indices) if *buffer == target && indices == at);
    let Expr::Binary(BinOp::Add | BinOp::Mul | BinOp::Min | BinOp::Max, a, b) = value else { return false };
    let operand = if own(a) { b } else { a };
    (own(a) || own(b)) && visit::loads(operand).iter().all(|(buffer, _)| *buffer != target)
}

/// Counts the operations of an expression.
fn count(e: &Expr, arithmetic: &mut u32, special: &mut u32) {
    match e {
        Expr::Binary(op, a, b) => {
            match op {
                BinOp::Div | BinOp::FloorDiv | BinOp::FloorMod | BinOp::TruncDiv | BinOp::TruncMod => *special += 1,
                _ => *arithmetic += 1,
            }
            count(a, arithmetic, special);
            count(b, arithmetic, special);
        }
        Expr::Not(a) => count(a, arithmetic, special),
        Expr::Cast(_, a) => {
            *arithmetic += 1;
            count(a, arithmetic, special);
        }
        Expr::Select { cond, then, otherwise, .. } => {
            *arithmetic += 1;
            [cond, then, otherwise].into_iter().for_each(|x| count(x, arithmetic, special));
        }
        Expr::Call(_, args, _) => {
            *special += 1;
            args.iter().for_each(|x| count(x, arithmetic, special));
        }
        Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) | Expr::Load(..) => {}
    }
}

/// Every buffer is as large as what is accessed, and the parts of its rows have one length.
fn check_extents(stream: &Stream) -> Result<(), StreamError> {
    for b in &stream.blocks {
        for access in b.reads.iter().chain([&b.write]) {
            let buffer = &stream.buffers[access.buffer];
            let length = |b: &StreamBlock, a: &Access| a.split.and_then(|at| a.dims[at + 1]).map(|i| b.iters[i].extent);
            let others = stream.blocks.iter().flat_map(|b| b.reads.iter().chain([&b.write]).map(move |a| (b, a)));
            let mut same = others.filter(|(_, a)| a.buffer == access.buffer && a.split == access.split);
            if access.split.is_some() && !same.all(|(other, a)| length(other, a) == length(b, access)) {
                let reason = format!("the parts of rows of buffer `{}` have several lengths", buffer.name);
                return Err(StreamError::Block { block: b.name.clone(), reason });
            }
            if access.reach(&|i| b.iters[i].extent) != buffer.dims {
                let reason = format!("buffer `{}` is larger or smaller than what is accessed", buffer.name);
                return Err(StreamError::Block { block: b.name.clone(), reason });
            }
        }
    }
    Ok(())
}

/// Numbers the axes: iterators that index one dimension of a buffer share one.
fn axes(stream: &mut Stream) {
    let mut starts = Vec::new();
    let mut total = 0;
    for b in &stream.blocks {
        starts.push(total);
        total += b.iters.len();
    }
    let mut of: Vec<usize> = (0..total).collect();
    loop {
        let mut changed = false;
        for buffer in 0..stream.buffers.len() {
            let places = (0..stream.buffers[buffer].dims.len()).flat_map(|dim| (0..3).map(move |part| (dim, part)));
            for place in places {
                let members: Vec<usize> = stream
                    .blocks
                    .iter()
                    .zip(&starts)
                    .flat_map(|(b, start)| b.reads.iter().chain([&b.write]).map(move |a| (a, start)))
                    .filter(|(a, _)| a.buffer == buffer)
                    .filter_map(|(a, start)| {
                        let at = (0..a.dims.len()).find(|at| a.dimension(*at) == place)?;
                        a.dims[at].map(|i| start + i)
                    })
                    .collect();
                let Some(least) = members.iter().map(|m| of[*m]).min() else { continue };
                for m in members {
                    changed |= of[m] != least;
                    of[m] = least;
                }
            }
        }
        if !changed {
            break;
        }
    }
    for (b, start) in stream.blocks.iter_mut().zip(&starts) {
        for (i, iter) in b.iters.iter_mut().enumerate() {
            iter.axis = of[start + i];
        }
    }
}
