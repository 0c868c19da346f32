//! Buffers that lanes hold (scope `warp`), as the matrices that they are tiles of: so that the copies to and from them are copies of
//! elements, as others are.
//!
//! ```text
//!   W[i // 16, j // 16, 4 * (i % 8) + j % 8 // 2, 4 * (j % 16 // 8) + i % 16 // 8 * 2 + j % 2] = A[i, j]    ->    W[i, j] = A[i, j]
//!   .. W[v, u, 4 * (x % 8) + y % 8 // 2, 4 * (y // 8) + x // 8 * 2 + y % 2] ..                                ->    .. W[v * 16 + x, u * 16 + y] ..
//! ```
//! Which bits of a lane and of a register are which of a row and a column is read from one access, and has to hold for all.
use crate::tree::{self, has_blocks};
use crate::views::renamed;
use satune_ir::affine::value_of;
use satune_ir::affine::{constant, index_type, int};
use satune_ir::layout;
use satune_ir::{visit, BinOp, BufferId, Expr, IterVar, Program, Stmt, Var, VarId};
use std::cell::Cell;

/// Lanes of a warp, and the bits of their numbers.
const LANES: (i64, usize) = (32, 5);

/// What the low bits of a row or a column are: bits of a lane's number (0) or of a register's (1).
type Digits = Vec<(usize, u32)>;

/// How a buffer holds tiles.
struct Tile {
    /// Of each side, the dimension that numbers the tiles along it.
    sides: Vec<(usize, Digits)>,
}

/// Has such buffers as matrices.
///
/// # Errors
/// The buffer of which that cannot be told.
pub(super) fn as_matrices(program: &mut Program) -> Result<(), String> {
    let mut held = program.body.block.alloc_buffers.clone();
    held.retain(|id| program.buffer(*id).scope == "warp");
    for id in held {
        let told = |program: &Program| {
            format!("which lanes hold what of `{}` is not told by its accesses", program.buffer(id).name)
        };
        let tile = Tile::of(program, id).ok_or_else(|| told(program))?;
        let (whole, mut body) = (Cell::new(true), program.body.block.body.as_ref().clone());
        tree::each_realize_mut(&mut body, &mut |r| {
            r.block.reads.retain(|region| region.buffer != id);
            r.block.writes.retain(|region| region.buffer != id);
            if has_blocks(&r.block.body) {
                return;
            }
            let iters = r.block.iter_vars.clone();
            let there = |at: &[Expr]| {
                tile.place(at, &iters).unwrap_or_else(|| {
                    whole.set(false);
                    at.to_vec()
                })
            };
            for part in r.block.init.iter_mut().chain([&mut r.block.body]) {
                **part = renamed(part, id, id, &there);
            }
        });
        if !whole.get() {
            return Err(told(program));
        }
        *program.body.block.body = body;
        let buffer = &mut program.buffers[id.0 as usize];
        buffer.shape.truncate(buffer.shape.len() - 2);
        buffer.strides.clear();
        for (d, digits) in &tile.sides {
            let (tiles, dtype) = (constant(&buffer.shape[*d]).unwrap_or(1), index_type(&buffer.shape[*d]));
            buffer.shape[*d] = int(tiles << digits.len(), dtype);
        }
    }
    Ok(())
}

impl Tile {
    /// As the first access has it that tells.
    fn of(program: &Program, id: BufferId) -> Option<Tile> {
        let buffer = program.buffer(id);
        let (rank, registers) = (buffer.shape.len().checked_sub(2)?, constant(buffer.shape.last()?)?);
        let bits = LANES.1 + registers.trailing_zeros() as usize;
        let power = registers.count_ones() == 1 && constant(&buffer.shape[rank]) == Some(LANES.0);
        let accesses = tree::all_realizes(&program.body.block.body).into_iter().filter(|r| !has_blocks(&r.block.body));
        let mut found = None;
        for r in accesses.filter(|_| power) {
            visit::walk_stmt(&r.block.body, &mut |s| {
                let Stmt::Store { buffer, indices, value } = s else { return };
                let all = visit::loads(value).into_iter().chain([(*buffer, indices.clone())]);
                for (_, at) in all.filter(|(b, _)| *b == id) {
                    found = found.take().or_else(|| Tile::read(&at, &r.block.iter_vars, rank, bits));
                }
            });
        }
        found
    }

    fn read(at: &[Expr], iters: &[IterVar], rank: usize, bits: usize) -> Option<Tile> {
        let digits = digits(at, iters)?;
        let told: usize = digits.iter().map(|(_, digits)| digits.len()).sum();
        (told == bits && digits.len() <= rank).then_some(())?;
        // A tile's number is of the iterator whose low bits are within it; else sides and dimensions are in one order.
        let first = rank - digits.len();
        let own = |v: VarId| (first..rank).find(|d| visit::uses_var(&at[*d], &|x| x == v));
        let owned: Vec<Option<usize>> = digits.iter().map(|(var, _)| own(var.id)).collect();
        let mut free = (first..rank).filter(|d| !owned.contains(&Some(*d)));
        let sides =
            digits.iter().zip(&owned).map(|((_, digits), d)| Some((d.or_else(|| free.next())?, digits.clone())));
        Some(Tile { sides: sides.collect::<Option<_>>()? })
    }

    /// The element of the matrix that an access is of.
    fn place(&self, at: &[Expr], iters: &[IterVar]) -> Option<Vec<Expr>> {
        let own = digits(at, iters)?;
        let mut out = at[..at.len() - 2].to_vec();
        for (d, side) in &self.sides {
            let (var, _) = own.iter().find(|(_, digits)| digits == side)?;
            let (dtype, low) = (var.dtype, 1_i64 << side.len());
            let number = |n: i64| int(n, dtype);
            let binary = |op, a: Expr, b: Expr| Expr::Binary(op, a.into(), b.into());
            let whole = || Expr::Var(var.clone());
            let extent = iters.iter().find(|iv| iv.var.id == var.id).and_then(|iv| constant(&iv.extent))?;
            let tile = out.get(*d)?.clone();
            // The number of a tile may count those of the iterator's own.
            let own_tiles = |e: &Expr| matches!(e, Expr::Binary(BinOp::FloorDiv, a, b) if **a == whole() && constant(b) == Some(low));
            let (tile, within) = match beside(&tile, &own_tiles) {
                Some(rest) => (rest.unwrap_or_else(|| number(0)), whole()),
                None if extent == low => (tile, whole()),
                None => (tile, binary(BinOp::FloorMod, whole(), number(low))),
            };
            if visit::uses_var(&tile, &|x| x == var.id) {
                return None;
            }
            out[*d] = match constant(&tile) {
                Some(0) => within,
                _ => binary(BinOp::Add, binary(BinOp::Mul, tile, number(low)), within),
            };
        }
        Some(out)
    }
}

/// What a sum has beside one of its terms; none where it has no such term.
#[allow(clippy::option_option)]
fn beside(sum: &Expr, is_term: &dyn Fn(&Expr) -> bool) -> Option<Option<Expr>> {
    match sum {
        e if is_term(e) => Some(None),
        Expr::Binary(BinOp::Add, a, b) => {
            let rest = |own: &Expr, other: &Expr| {
                let own = beside(own, is_term)?;
                let other = other.clone();
                Some(Some(own.map_or(other.clone(), |own| Expr::Binary(BinOp::Add, own.into(), other.into()))))
            };
            rest(a, b).or_else(|| rest(b, a))
        }
        _ => None,
    }
}

/// Of the iterators that tell the lane and the register of an access: which bits of them their low ones are.
fn digits(at: &[Expr], iters: &[IterVar]) -> Option<Vec<(Var, Digits)>> {
    let [.., lane, register] = at else { return None };
    let uses = |v: VarId| [lane, register].into_iter().any(|e| visit::uses_var(e, &|x| x == v));
    let vars: Vec<&IterVar> = iters.iter().filter(|iv| uses(iv.var.id)).collect();
    let extent = |iv: &&IterVar| constant(&iv.extent).filter(|n| (1..=1 << 16).contains(n));
    let extents: Vec<i64> = vars.iter().map(extent).collect::<Option<_>>()?;
    let told = layout::digits(&extents, &|point| {
        let of = |v: VarId| Some(vars.iter().position(|iv| iv.var.id == v).map_or(0, |d| point[d]));
        Some([value_of(lane, &of)?, value_of(register, &of)?])
    })?;
    let digits = told.into_iter().map(|digits| digits.into_iter().collect::<Option<Digits>>());
    let all =
        vars.iter().zip(digits).map(|(iv, digits)| Some((iv.var.clone(), digits?))).collect::<Option<Vec<_>>>()?;
    Some(all.into_iter().filter(|(_, digits)| !digits.is_empty()).collect())
}
