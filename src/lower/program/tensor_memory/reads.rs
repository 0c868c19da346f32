//! What is read of tensor memory, by way of registers: a warp reads 32 lanes of it, in the way that `mma.sync` holds sums, some columns
//! at a time.
//!
//! ```text
//!                                        for s, p in T.grid(2, 8):
//!   for r, c in T.grid(128, 256):            for r, c in T.grid(64, 32):             # tcgen05.ld
//!       C[r, c] = f(D[r, c])        ->           W[lane, register] = D[r // 16 * 32 + s * 16 + r % 16, p * 32 + c]
//!                                            for r, c in T.grid(64, 32):
//!                                                C[r // 16 * 32 + s * 16 + r % 16, p * 32 + c] = f(W[lane, register])
//! ```
use super::super::by_box::shortened;
use super::super::error::{At, LowerError};
use super::super::group::THREADS;
use super::super::interleaved::ranges;
use super::super::lanes::{chain, is_held};
use super::super::linear::{Linear, Ranges};
use super::super::matrix::LANES;
use super::{is_tensor, ROWS};
use satune_ir::affine::{add, and, floor_div, floor_mod, int, lt, mul};
use satune_ir::{
    visit, Annotations, Block, BlockRealize, Buffer, BufferId, Expr, For, ForKind, Program, Stmt as Statement, Var,
};
use satune_rewrites::intrinsics::INTRINSIC;
use std::borrow::Cow;
use std::collections::HashMap;

/// Rows that warps load at once.
const SLICE: i64 = 64;
/// Columns of a row that a thread loads at once, at most: so many registers more or less hide the way from tensor memory.
const PART: i64 = 32;

/// The statement, and the program, in which registers hold what is read of tensor memory.
///
/// # Errors
/// Where it is not read by whole tiles of an instruction's rows.
pub fn by_registers<'p>(
    mut program: Cow<'p, Program>,
    part: Cow<'p, Statement>,
) -> Result<(Cow<'p, Program>, Cow<'p, Statement>), LowerError> {
    if !program.buffers.iter().any(|b| is_tensor(&b.scope)) {
        return Ok((program, part));
    }
    let ranges = ranges(&part);
    let (mut part, mut failed) = (part.into_owned(), None);
    visit::walk_stmt_mut(&mut part, &mut |s| {
        let Statement::Seq(parts) = s else { return };
        for one in parts {
            match Read::of(&program, &ranges, one) {
                Ok(Some(read)) => *one = read.by_registers(program.to_mut()),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
    });
    failed.map_or(Ok((program, Cow::Owned(part))), Err)
}

/// A nest that reads tensor memory: which of its loops goes over rows, and which over columns.
struct Read {
    /// These loops alone, and those around them, outermost first.
    nest: Statement,
    around: Vec<For>,
    buffer: BufferId,
    /// The element that it reads, by the loops.
    at: Vec<Expr>,
    rows: (For, i64),
    columns: (For, i64),
}

/// A statement in loops, outermost first.
fn within(loops: impl DoubleEndedIterator<Item = For>, body: Statement) -> Statement {
    loops.rev().fold(body, |body, l| Statement::For(For { body: body.into(), ..l }))
}

impl Read {
    fn of(program: &Program, ranges: &Ranges, nest: &Statement) -> Result<Option<Read>, LowerError> {
        let Some((loops, inner, r)) = chain(nest).filter(|(.., r)| !r.block.annotations.contains_key(INTRINSIC)) else {
            return Ok(None);
        };
        let Statement::Store { buffer: target, value, .. } = r.block.body.as_ref() else { return Ok(None) };
        if is_held(&program.buffer(*target).scope) {
            return Ok(None);
        }
        let of_tensor = |(b, _): &(BufferId, Vec<Expr>)| is_tensor(&program.buffer(*b).scope);
        let reads: Vec<(BufferId, Vec<Expr>)> = visit::loads(value).into_iter().filter(of_tensor).collect();
        let Some((buffer, at)) = reads.first().cloned() else { return Ok(None) };
        let refused = |why: &str| LowerError::Unsupported {
            what: format!("{}, in tensor memory, read where {why}", program.buffer(buffer).name),
            place: At::block(&r.block.name),
            remedy: "copy a tile in two loops, over rows and columns".into(),
        };
        let iters =
            r.block.iter_vars.iter().zip(&r.iter_values).map(|(iv, value)| (iv.var.id, value.clone())).collect();
        let at: Vec<Expr> = at.iter().map(|e| visit::substitute(e, &iters)).collect();
        let [.., row, column] = at.as_slice() else { return Err(refused("it is no matrix")) };
        let over = |e: &Expr| {
            let form = Linear::of_expr(e, ranges)?;
            let own = loops.iter().find(|(l, _)| form.split_var(l.var.id).is_some_and(|(times, _)| times == 1))?;
            Some((own.0.clone(), own.1))
        };
        let (Some(rows), Some(columns)) = (over(row), over(column)) else {
            return Err(refused("no loop goes over rows, or over columns"));
        };
        if rows.0.var.id == columns.0.var.id || reads.iter().any(|(b, other)| (*b, other) != (buffer, &reads[0].1)) {
            return Err(refused("several elements are read together"));
        }
        let is_own = |l: &For| [rows.0.var.id, columns.0.var.id].contains(&l.var.id);
        let (own, around): (Vec<&For>, Vec<&For>) = loops.iter().map(|(l, _)| *l).partition(|l| is_own(l));
        let nest = within(own.into_iter().cloned(), inner.clone());
        let around = around.into_iter().cloned().collect();
        Ok(Some(Read { nest, around, buffer, at, rows, columns }))
    }

    /// Slice by slice, part by part: to registers, and from there.
    fn by_registers(self, program: &mut Program) -> Statement {
        // All of a tile is there, where less of it is read.
        let columns = (self.columns.1 as u64).next_multiple_of(16) as i64;
        let (whole, rest) = (columns / PART, columns % PART);
        let mut parts = Vec::new();
        for (first, count, width) in [(0, whole, PART), (whole * PART, i64::from(rest > 0), rest)] {
            if count > 0 {
                parts.push(self.part(program, (first, count, width)));
            }
        }
        let body = match parts.pop() {
            Some(one) if parts.is_empty() => one,
            last => Statement::Seq(parts.into_iter().chain(last).collect()),
        };
        within(self.around.into_iter(), body)
    }

    /// So many parts of so many columns each, from a column on.
    fn part(&self, program: &mut Program, (first, count, width): (i64, i64, i64)) -> Statement {
        let ((rows, all_rows), (columns, all_columns)) = (&self.rows, &self.columns);
        let slices = (*all_rows as u64).div_ceil(ROWS as u64) as i64 * (ROWS / SLICE);
        let of = rows.var.dtype;
        let number = |n: i64| int(n, of);
        let [slice, part] = ["slice", "part"].map(|name| program.fresh_var(name, of));
        let info = program.buffer(self.buffer).clone();
        let shape = [1, width / 8, THREADS, 4].map(number).to_vec();
        let name = format!("{}_held", info.name);
        program.buffers.push(Buffer { name, shape, strides: Vec::new(), scope: "warp".into(), ..info });
        let held = BufferId(program.buffers.len() as u32 - 1);
        // Of a lap over 64 rows and some columns: the row, the column, and where it is held.
        let (r, e) = (|| Expr::Var(rows.var.clone()), || Expr::Var(columns.var.clone()));
        let warp = || floor_div(r(), 16, of);
        let of_slice = |by: Expr, times: i64| mul(by, number(times));
        let block = add(
            of_slice(floor_div(Expr::Var(slice.clone()), 2, of), ROWS),
            of_slice(floor_mod(Expr::Var(slice.clone()), 2, of), 16),
        );
        let row = add(block, add(of_slice(warp(), LANES), floor_mod(r(), 16, of)));
        let column = add(of_slice(Expr::Var(part.clone()), width), add(number(first), e()));
        let lane = add(of_slice(floor_mod(r(), 8, of), 4), floor_div(floor_mod(e(), 8, of), 2, of));
        let register = add(of_slice(floor_div(floor_mod(r(), 16, of), 8, of), 2), floor_mod(e(), 2, of));
        let place = vec![number(0), floor_div(e(), 8, of), add(of_slice(warp(), LANES), lane), register];
        // To registers.
        let by = HashMap::from([(rows.var.id, row.clone()), (columns.var.id, column.clone())]);
        let from = self.at.iter().map(|at| visit::substitute(at, &by)).collect();
        let load = Statement::Store { buffer: held, indices: place.clone(), value: Expr::Load(self.buffer, from) };
        let realize = BlockRealize::single(Block::plain(program.fresh_block(), "tensor_memory", load));
        let laps = |v: &Var, extent: i64, kind: ForKind, body: Statement| {
            let (min, extent, annotations) = (number(0), number(extent), Annotations::new());
            Statement::For(For { var: v.clone(), min, extent, kind, annotations, body: body.into() })
        };
        let load = laps(&columns.var, width, ForKind::Serial, Statement::Realize(Box::new(realize)));
        let load = laps(&rows.var, SLICE, ForKind::Serial, load);
        // From there.
        let store = shortened(&self.nest, rows.var.id, SLICE, &row);
        let store = shortened(&store, columns.var.id, width, &column);
        let store = visit::map_stmt_exprs(&store, &mut |value| {
            visit::replace_loads(value, self.buffer, &mut |_| Expr::Load(held, place.clone()))
        });
        // Where less is read than a tile has.
        let mut store = store;
        let beyond = [(row, *all_rows, slices * SLICE), (column, *all_columns, first + count * width)];
        let exists: Vec<Expr> =
            beyond.into_iter().filter(|(_, all, most)| all < most).map(|(e, all, _)| lt(e, number(all))).collect();
        visit::walk_stmt_mut(&mut store, &mut |s| {
            if let Statement::Realize(r) = s {
                r.predicate = exists.iter().fold(r.predicate.clone(), |all, one| and(one.clone(), all));
            }
        });
        let body = laps(&part, count, ForKind::Unrolled, Statement::Seq(vec![load, store]));
        laps(&slice, slices, ForKind::Unrolled, body)
    }
}
