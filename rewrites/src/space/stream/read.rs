//! From the blocks of a program to what the space knows of them.
use super::StreamError;
use satune_ir::affine::constant;
use satune_ir::term::stream::{Access, BlockKind, Inlining, Stream, StreamBlock, StreamBuffer, StreamIter};
use satune_ir::{BinOp, Block, BlockRealize, BufferId, Expr, IterKind, Program, Region, Stmt};

/// Reads the blocks of a program in order.
pub(in crate::space) fn stream(program: &Program, inlined: Vec<Inlining>) -> Result<Stream, StreamError> {
    let body = &program.body.block.body;
    let parts: Vec<&Stmt> = match &**body {
        Stmt::Seq(parts) => parts.iter().collect(),
        one => vec![one],
    };
    let mut buffers = Buffers { program, known: Vec::new() };
    let mut blocks: Vec<StreamBlock> = Vec::new();
    for part in parts {
        let (loops, realize) = nest(part)?;
        let block = &realize.block;
        let fail = |reason: String| StreamError::Block { block: block.name.clone(), reason };
        if blocks.iter().any(|b| b.name == block.name) {
            return Err(fail("another block has its name".into()));
        }
        plain(&loops, realize).map_err(fail)?;
        blocks.push(read_block(block, &mut buffers).map_err(fail)?);
    }
    let known = buffers.known;
    let mut stream = Stream { inlined, blocks, buffers: Vec::with_capacity(known.len()) };
    for id in known {
        stream.buffers.push(buffer(program, id).map_err(|reason| StreamError::Program { reason })?);
    }
    check_extents(&stream)?;
    axes(&mut stream);
    Ok(stream)
}

type Loops = Vec<(satune_ir::VarId, i64)>;

/// The loops of a nest with one block, and the block.
fn nest(stmt: &Stmt) -> Result<(Loops, &BlockRealize), StreamError> {
    let mut loops = Vec::new();
    let mut current = stmt;
    loop {
        match current {
            Stmt::For(l) => {
                let extent = constant(&l.extent).filter(|_| constant(&l.min) == Some(0));
                let extent = extent.ok_or_else(|| StreamError::Program {
                    reason: format!("loop `{}` has no constant bounds from 0", l.var.name),
                })?;
                if l.kind != satune_ir::ForKind::Serial {
                    return Err(StreamError::Program { reason: format!("loop `{}` is scheduled already", l.var.name) });
                }
                loops.push((l.var.id, extent));
                current = &l.body;
            }
            Stmt::Realize(r) => return Ok((loops, r)),
            _ => {
                return Err(StreamError::Program { reason: "a nest holds something besides loops and a block".into() })
            }
        }
    }
}

/// The loops are one per iterator, in the iterators' order, over the whole of it.
fn plain(loops: &Loops, r: &BlockRealize) -> Result<(), String> {
    let iters = &r.block.iter_vars;
    let same = r.iter_values.len() == loops.len()
        && r.iter_values.iter().zip(iters).zip(loops).all(|((value, iter), (var, extent))| {
            matches!(value, Expr::Var(v) if v.id == *var) && constant(&iter.extent) == Some(*extent)
        });
    let unconditional = matches!(&r.predicate, Expr::Int(1, _));
    match (same, unconditional) {
        (true, true) => Ok(()),
        (false, _) => Err("its loops are not one per iterator, in the same order".into()),
        (_, false) => Err("it runs under a condition".into()),
    }
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

    fn access(&mut self, block: &Block, region: &Region) -> Result<Access, String> {
        let name = &self.program.buffer(region.buffer).name;
        let dims = region
            .ranges
            .iter()
            .map(|range| match (&range.min, constant(&range.extent)) {
                (Expr::Var(v), Some(1)) => match block.iter_vars.iter().position(|iv| iv.var.id == v.id) {
                    Some(i) => Ok(Some(i)),
                    None => Err(format!("an index of buffer `{name}` is no iterator")),
                },
                (Expr::Int(0, _), Some(1)) => Ok(None),
                _ => Err(format!("an index of buffer `{name}` is no bare iterator")),
            })
            .collect::<Result<Vec<_>, String>>()?;
        let used: Vec<usize> = dims.iter().flatten().copied().collect();
        if (1..used.len()).any(|i| used[..i].contains(&used[i])) {
            return Err(format!("an iterator indexes two dimensions of buffer `{name}`"));
        }
        Ok(Access { buffer: self.number(region.buffer), dims })
    }
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

fn read_block(block: &Block, buffers: &mut Buffers<'_>) -> Result<StreamBlock, String> {
    let mut iters = Vec::new();
    for iter in &block.iter_vars {
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
    let Stmt::Store { value, buffer: target, .. } = &*block.body else {
        return Err("its body is not one store".into());
    };
    let reduces = iters.iter().any(|i| i.reduce);
    if reduces != block.init.is_some() {
        return Err("it has an init and no reduction, or the other way round".into());
    }
    if let Some(init) = &block.init {
        if !matches!(&**init, Stmt::Store { buffer, .. } if buffer == target) {
            return Err("its init is not one store to the result".into());
        }
    }
    if !block.alloc_buffers.is_empty() || !block.match_buffers.is_empty() {
        return Err("it has buffers of its own".into());
    }
    let [write] = block.writes.as_slice() else { return Err("it does not write one buffer".into()) };
    let write = buffers.access(block, write)?;
    let mut reads = Vec::new();
    for region in &block.reads {
        reads.push(buffers.access(block, region)?);
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
    Ok(StreamBlock { name: block.name.clone(), kind, iters, reads, write, arithmetic, special, dtype })
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

/// Every buffer is as large as what is accessed.
fn check_extents(stream: &Stream) -> Result<(), StreamError> {
    for b in &stream.blocks {
        for access in b.reads.iter().chain([&b.write]) {
            let buffer = &stream.buffers[access.buffer];
            let fits = access.dims.len() == buffer.dims.len()
                && access.dims.iter().zip(&buffer.dims).all(|(iter, dim)| match iter {
                    Some(i) => b.iters[*i].extent == *dim,
                    None => *dim == 1,
                });
            if !fits {
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
            for dim in 0..stream.buffers[buffer].dims.len() {
                let members: Vec<usize> = stream
                    .blocks
                    .iter()
                    .zip(&starts)
                    .flat_map(|(b, start)| b.reads.iter().chain([&b.write]).map(move |a| (a, start)))
                    .filter(|(a, _)| a.buffer == buffer)
                    .filter_map(|(a, start)| a.dims[dim].map(|i| start + i))
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
