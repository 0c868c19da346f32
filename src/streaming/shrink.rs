//! The same schedule on a problem of few blocks and few iterations, for the simulator.
use satune_ir::term::stream::{KernelPlan, Stream, StreamIter, StreamPlan, Streams};
use satune_ir::{BlockRealize, DType, Expr, Program, Stmt};
use std::collections::BTreeMap;

/// What a kernel wants of an axis.
#[derive(Clone, Copy, Debug)]
struct Want {
    /// Values at least.
    size: i64,
    /// A multiple of this.
    multiple: i64,
}

/// New extents by axis, so that every kernel of the plan has two blocks or iterations along each axis, the last of them cut
/// where the problem's is.
fn wanted(plan: &StreamPlan, stream: &Stream) -> BTreeMap<usize, Want> {
    let mut wants: BTreeMap<usize, Want> = BTreeMap::new();
    let mut want = |axis: usize, size: i64, multiple: i64| {
        let w = wants.entry(axis).or_insert(Want { size: 0, multiple: 1 });
        w.size = w.size.max(size);
        // All are powers of two.
        w.multiple = w.multiple.max(multiple);
    };
    let cut = |extent: i64, tile: i64| if extent % tile == 0 { 2 * tile } else { tile + extent % tile };
    for kernel in &plan.kernels {
        let names = kernel.blocks();
        let Some(from) = stream.blocks.iter().position(|b| Some(b.name.as_str()) == names.first().copied()) else {
            continue;
        };
        let blocks = &stream.blocks[from..from + names.len()];
        match kernel {
            KernelPlan::Row(p) => {
                let Some(shape) = stream.row_shape(from, from + names.len()) else { continue };
                let tile = p.threads * p.vector;
                for b in blocks {
                    for (i, iter) in b.iters.iter().enumerate() {
                        if i + 1 == shape.row_iters {
                            want(iter.axis, 2 * p.rows_per_block(), p.rows_per_block());
                        } else if i < shape.row_iters {
                            want(iter.axis, 1, 1);
                        } else if b.iters.len() == shape.row_iters + 1 {
                            want(iter.axis, tile + cut(iter.extent, tile), p.vector);
                        } else {
                            want(iter.axis, iter.extent, 1);
                        }
                    }
                }
            }
            KernelPlan::Flat(p) => {
                let (last, rows) = match blocks[0].iters.split_last() {
                    Some(parts) => parts,
                    None => continue,
                };
                want(last.axis, cut(last.extent, p.steps * p.threads * p.vector), p.vector);
                for (i, iter) in rows.iter().enumerate() {
                    let side = if i + 1 == rows.len() { p.side_by_side } else { 1 };
                    want(iter.axis, 2 * side, side);
                }
            }
            KernelPlan::Tile(p) => {
                let Some((read, write, _)) = stream.transposed(from) else { continue };
                for (i, iter) in blocks[0].iters.iter().enumerate() {
                    if i == read || i == write {
                        want(iter.axis, cut(iter.extent, p.side), p.vector);
                    } else {
                        want(iter.axis, 2, 1);
                    }
                }
            }
        }
    }
    wants
}

/// The source program with fewer values along its axes; the plan is one of it, too.
pub fn shrink(program: &Program, plan: &StreamPlan, problem: &Streams) -> Program {
    let Some(stream) = problem.variant(&plan.inlined) else { return program.clone() };
    let source = &problem.variants[0];
    // Axes are numbered anew when blocks go; iterators of one name and block are the same.
    let wants = wanted(plan, stream);
    let mut extents: BTreeMap<usize, i64> = BTreeMap::new();
    for b in &stream.blocks {
        let Some(original) = source.blocks.iter().find(|o| o.name == b.name) else { continue };
        for (iter, old) in b.iters.iter().zip(&original.iters) {
            let Some(w) = wants.get(&iter.axis) else { continue };
            let size = (w.size + w.multiple - 1) / w.multiple * w.multiple;
            if size < iter.extent {
                let known = extents.entry(old.axis).or_insert(size);
                *known = (*known).max(size);
            }
        }
    }
    let new = |i: &StreamIter| extents.get(&i.axis).copied().unwrap_or(i.extent);
    let nests: Vec<Vec<i64>> = source.blocks.iter().map(|b| b.iters.iter().map(new).collect()).collect();
    let mut shapes = BTreeMap::new();
    for b in &source.blocks {
        for access in b.reads.iter().chain([&b.write]) {
            let dims = access.dims.iter().map(|d| d.map_or(1, |i| new(&b.iters[i]))).collect();
            shapes.insert(source.buffers[access.buffer].name.clone(), dims);
        }
    }
    resized(program, &nests, &shapes)
}

fn integer(value: i64) -> Expr {
    Expr::Int(value, DType::I32)
}

/// The program with other extents: of the loops of each nest in order, and of the buffers by name.
pub(crate) fn resized(program: &Program, nests: &[Vec<i64>], shapes: &BTreeMap<String, Vec<i64>>) -> Program {
    let mut out = program.clone();
    let mut parts = match (*out.body.block.body).clone() {
        Stmt::Seq(parts) => parts,
        one => vec![one],
    };
    for (part, extents) in parts.iter_mut().zip(nests) {
        resize_nest(part, extents);
    }
    for buffer in &mut out.buffers {
        if let Some(shape) = shapes.get(&buffer.name) {
            buffer.shape = shape.iter().map(|e| integer(*e)).collect();
        }
    }
    out.body.block.body = Box::new(Stmt::seq(parts));
    out
}

fn resize_nest(stmt: &mut Stmt, extents: &[i64]) {
    if let (Stmt::For(l), Some((first, rest))) = (stmt, extents.split_first()) {
        l.extent = integer(*first);
        resize_nest(&mut l.body, rest);
        // The block's iterators have the loops' extents.
        resize_block(&mut l.body, &l.var.clone(), &l.extent.clone());
    }
}

fn resize_block(stmt: &mut Stmt, var: &satune_ir::Var, extent: &Expr) {
    match stmt {
        Stmt::For(l) => resize_block(&mut l.body, var, extent),
        Stmt::Realize(r) => {
            let BlockRealize { iter_values, block, .. } = &mut **r;
            for (value, iter) in iter_values.iter().zip(&mut block.iter_vars) {
                if matches!(value, Expr::Var(v) if v == var) {
                    iter.extent = extent.clone();
                }
            }
        }
        _ => {}
    }
}
