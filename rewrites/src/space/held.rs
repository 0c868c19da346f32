//! Buffers that lanes hold (scope `warp`), as the matrices that they are tiles of: so that the copies to and from them are copies of
//! elements, as others are.
//!
//! ```text
//!   W[i // 16, j // 16, 4 * (i % 8) + j % 8 // 2, 4 * (j % 16 // 8) + i % 16 // 8 * 2 + j % 2] = A[i, j]    ->    W[i, j] = A[i, j]
//!   .. W[v, u, 4 * (x % 8) + y % 8 // 2, 4 * (y // 8) + x // 8 * 2 + y % 2] ..                                ->    .. W[v * 16 + x, u * 16 + y] ..
//! ```
//! Which bits of a lane and of a register are which of a row and a column is read from one access, and has to hold for all.
use crate::index_map::value_of;
use crate::tree::{self, has_blocks};
use crate::views::renamed;
use satune_ir::affine::{constant, index_type, int};
use satune_ir::{visit, BinOp, BufferId, Expr, IterVar, Program, Stmt, Var, VarId};
use std::cell::Cell;

/// Lanes of a warp, and the bits of their numbers.
const LANES: (i64, usize) = (32, 5);

/// A bit of a lane's number or of a register's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Bit {
    Lane(u32),
    Register(u32),
}

/// What the low bits of a row or a column are.
type Digits = Vec<Bit>;

/// How a buffer holds tiles.
struct Tile {
    /// Of each side, the dimension that numbers the tiles along it.
    sides: Vec<(usize, Digits)>,
}

/// Has such buffers as matrices; whether that can be told of all.
pub(super) fn as_matrices(program: &mut Program) -> bool {
    let mut held = program.body.block.alloc_buffers.clone();
    held.retain(|id| program.buffer(*id).scope == "warp");
    for id in held {
        let Some(tile) = Tile::of(program, id) else { return false };
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
            return false;
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
    true
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
            out[*d] = match &tile {
                Expr::Binary(BinOp::FloorDiv, a, b) if **a == whole() && constant(b) == Some(low) => whole(),
                tile if visit::uses_var(tile, &|x| x == var.id) => return None,
                _ => {
                    let within = if extent == low { whole() } else { binary(BinOp::FloorMod, whole(), number(low)) };
                    match constant(&tile) {
                        Some(0) => within,
                        _ => binary(BinOp::Add, binary(BinOp::Mul, tile, number(low)), within),
                    }
                }
            };
        }
        Some(out)
    }
}

/// Of the iterators that tell the lane and the register of an access: which bits of them their low ones are.
fn digits(at: &[Expr], iters: &[IterVar]) -> Option<Vec<(Var, Digits)>> {
    let [.., lane, register] = at else { return None };
    let uses = |v: VarId| [lane, register].into_iter().any(|e| visit::uses_var(e, &|x| x == v));
    let vars: Vec<(&Var, i64)> = iters
        .iter()
        .filter(|iv| uses(iv.var.id))
        .map(|iv| Some((&iv.var, constant(&iv.extent).filter(|n| (1..=1 << 16).contains(n))?)))
        .collect::<Option<_>>()?;
    let value = |point: &[i64]| {
        let of = |v: VarId| Some(vars.iter().position(|(var, _)| var.id == v).map_or(0, |d| point[d]));
        Some([value_of(lane, &of)?, value_of(register, &of)?])
    };
    let (mut out, mut turned) = (Vec::new(), Vec::new());
    for (d, (var, extent)) in vars.iter().enumerate() {
        let alone = |n: i64| value(&(0..vars.len()).map(|at| if at == d { n } else { 0 }).collect::<Vec<_>>());
        let all = (0..*extent).map(alone).collect::<Option<Vec<_>>>()?;
        let again = |low: &i64| (*low..*extent).all(|n| all[n as usize] == all[(n % low) as usize]);
        let low = (0..12).map(|bit| 1_i64 << bit).find(again)?;
        let digit = |at: u32| match all[1 << at] {
            [lane, 0] if lane.count_ones() == 1 => Some(Bit::Lane(lane.trailing_zeros())),
            [0, register] if register.count_ones() == 1 => Some(Bit::Register(register.trailing_zeros())),
            _ => None,
        };
        let digits = (0..low.trailing_zeros()).map(digit).collect::<Option<Digits>>()?;
        turned.extend(digits.iter().enumerate().map(|(at, bit)| (d, at, *bit)));
        if !digits.is_empty() {
            out.push(((*var).clone(), digits));
        }
    }
    // What a bit turns it turns whatever the others are, and no two turn the same.
    let apart = turned.iter().enumerate().all(|(i, (.., bit))| turned[..i].iter().all(|(.., other)| other != bit));
    let sum = |number: i64| {
        let (mut point, mut expected) = (vec![0; vars.len()], [0; 2]);
        for (_, (d, at, bit)) in turned.iter().enumerate().filter(|(n, _)| number >> n & 1 == 1) {
            point[*d] += 1_i64 << at;
            match bit {
                Bit::Lane(bit) => expected[0] += 1_i64 << bit,
                Bit::Register(bit) => expected[1] += 1_i64 << bit,
            }
        }
        value(&point) == Some(expected)
    };
    (apart && turned.len() <= 12 && (0..1_i64 << turned.len()).all(sum)).then_some(out)
}
