//! Stream-K (`satune.stream_k`): the steps along k of all tiles are dealt out to the blocks evenly, not whole tiles.
//!
//! ```text
//!   2 tiles of 5 steps, 4 blocks:     tile 0      0 0 0 1 1
//!                                     tile 1      1 2 2 3 3
//!
//!   for tile in blockIdx.x:           for piece of the block:                    for tile in blockIdx.x:
//!       S[..] = 0                         S[..] = 0                                  sum = 0
//!       for k: S[..] += A * B     ->      for k in steps of the piece: S += ..       for part in parts of the tile:
//!       C[..] = f(S[..])                  partial[part, tile, ..] = S[..]                sum += partial[part, tile, ..]
//!                                                                                    C[..] = f(sum)
//! ```
//! The program's nest becomes two: blocks store parts of tiles, and a second kernel adds those of each tile, in the order of k, and
//! computes what is stored. Only sums may tell the steps of a tile apart from each other. The ring of tiles goes on from a piece to
//! the next where the piece before left it; its places are not constants then.
//!
//! A program for which that cannot be done is lowered as if nothing were said of steps, and a note says why.
mod program;

use super::emit::Emitter;
use super::error::{At, LowerError};
use super::linear::Linear;
use super::nest::{Leaf, Loop, Nest};
use super::pipeline::Pipeline;
use super::roles::{Brought, Lap};
use super::turns::Turns;
use crate::kernel::{Cond, Dim, Index, Stmt, Unroll};
use crate::lower::index::{add, c, div, minus, mul, rem};
use satune_ir::term::tensor::StreamK;
use satune_ir::VarId;

pub use program::{asked, Asked};

/// What a kernel of dealt steps has variables for that no loop of the program binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealt {
    /// It multiplies.
    Steps(Pieces),
    /// It adds parts; the number of a block's tile in the order in which tiles are dealt out, which are so many.
    Parts(VarId, i64),
}

/// A block's pieces of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    pub stream: StreamK,
    /// The number of a piece among its tile's.
    part: VarId,
    /// Steps of the pieces before, the first step of the tile, and how many steps it has.
    done: VarId,
    from: VarId,
    steps: VarId,
}

impl Dealt {
    /// The variable that the program's statements use, with how many values it has.
    pub fn free(&self) -> (VarId, i64) {
        match self {
            Dealt::Steps(pieces) => (pieces.part, pieces.stream.parts()),
            Dealt::Parts(number, tiles) => (*number, *tiles),
        }
    }
}

/// The same in a kernel's integers.
fn block_at(stream: &StreamK, step: Index) -> Index {
    let (each, more) = stream.each();
    if more == 0 {
        return div(step, each);
    }
    let larger = more * (each + 1);
    let rest = Index::Max(Box::new(minus(step.clone(), c(larger))), Box::new(c(0)));
    add(div(Index::Min(Box::new(step), Box::new(c(larger))), each + 1), div(rest, each))
}

/// A block's first step.
fn first(stream: &StreamK, block: Index) -> Index {
    let (each, more) = stream.each();
    match more {
        0 => mul(block, each),
        more => add(mul(block.clone(), each), Index::Min(Box::new(block), Box::new(c(more)))),
    }
}

impl Nest {
    /// A block's pieces of tiles, where steps are dealt out.
    pub(super) fn pieces(&self) -> Option<Pieces> {
        match self.dealt {
            Some(Dealt::Steps(pieces)) => Some(pieces),
            _ => None,
        }
    }

    /// Whether blocks can take pieces of tiles, where they are to.
    ///
    /// # Errors
    /// Why they cannot.
    pub(super) fn check_pieces(&self, brought: &[Brought]) -> Result<(), LowerError> {
        if self.pieces().is_none() {
            return Ok(());
        }
        let refused = |what: &str| {
            let remedy = "take whole tiles".into();
            Err(LowerError::Unsupported { what: what.into(), place: At::default(), remedy })
        };
        let [ring] = brought else { return refused("a deal of steps whose tiles no producer brings by one ring") };
        if !self.turns.is_some_and(|turns: Turns| ring.is_once_in(turns.turn)) {
            return refused("a deal of steps whose ring is not gone through once for each tile");
        }
        if !self.laps_are_apart(ring.variable()) {
            return refused("a deal of steps that need what a step before has brought");
        }
        Ok(())
    }

    /// Whether each lap of a loop reads on the chip only what the same lap has written, but for what it adds to.
    fn laps_are_apart(&self, v: VarId) -> bool {
        let mut inside: Vec<&Leaf> = Vec::new();
        self.leaves(&mut |leaf, path| {
            if path.iter().any(|l| l.var == v) {
                inside.push(leaf);
            }
        });
        let writers: Vec<&Leaf> = inside.iter().copied().filter(|leaf| !leaf.accumulates()).collect();
        let of_tile = |x| self.turns.is_some_and(|turns| turns.tile == x);
        // In one dimension: all that is read of a lap is written of it.
        let covered = |read: &Linear, written: &Linear| {
            let (Some((unit, read)), Some((own, written))) = (read.split_var(v), written.split_var(v)) else {
                return false;
            };
            let [(a, read), (b, written)] = [read, written].map(|form| form.partition(&|atom| atom.uses(&of_tile)));
            let [read, written] = [read, written].map(|form| form.range(&self.ranges));
            unit == own && a == b && written.0 <= read.0 && read.1 <= written.1
        };
        inside.iter().all(|leaf| {
            leaf.reads.iter().all(|(b, at)| {
                let mut of: Vec<&&Leaf> = writers.iter().filter(|leaf| leaf.target == *b).collect();
                of.retain(|leaf| at.iter().zip(&leaf.at).any(|(read, written)| !covered(read, written)));
                // No writer is left that does not write all of it.
                of.is_empty()
            })
        })
    }
}

impl Emitter<'_> {
    /// Gives a variable that is the number of a block's tile its value.
    pub(super) fn number_tiles(&mut self) {
        if let Some(Dealt::Parts(number, _)) = self.nest.dealt {
            self.env.insert(number, Index::BlockIdx(Dim::X));
        }
    }

    /// A value by a name, where it is none of a variable or a constant.
    fn bind(&mut self, out: &mut Vec<Stmt>, name: &str, value: Index) -> Index {
        if matches!(value, Index::Const(_) | Index::Var(_)) {
            return value;
        }
        let var = self.fresh();
        out.push(Stmt::Let { var, name: name.into(), value });
        Index::Var(var)
    }

    /// A block's pieces of tiles, with what is done of each. None where it takes whole tiles.
    pub(super) fn pieces(
        &mut self,
        turns: &Turns,
        code: &dyn Fn(&mut Self) -> Result<Vec<Stmt>, LowerError>,
    ) -> Option<Result<Vec<Stmt>, LowerError>> {
        let Pieces { stream, part, done, from, steps } = self.nest.pieces()?;
        let block = Index::BlockIdx(Dim::X);
        let mut out = Vec::new();
        let start = self.bind(&mut out, "first_step", first(&stream, block.clone()));
        let end = self.bind(&mut out, "end_step", first(&stream, add(block.clone(), c(1))));
        let first_tile = self.bind(&mut out, "first_tile", div(start.clone(), stream.steps));
        let turn = self.fresh();
        let mut body = Vec::new();
        let name = if self.nest.raster.is_some() { "number" } else { "tile" };
        let number = self.bind(&mut body, name, add(first_tile.clone(), Index::Var(turn)));
        let of_tile = mul(number.clone(), stream.steps);
        let begin = Index::Max(Box::new(start.clone()), Box::new(of_tile.clone()));
        let begin = self.bind(&mut body, "begin", begin);
        let stop = Index::Min(Box::new(end.clone()), Box::new(add(of_tile.clone(), c(stream.steps))));
        let count = self.bind(&mut body, "steps", minus(stop, begin.clone()));
        let before = self.bind(&mut body, "steps_done", minus(begin.clone(), start));
        let (mut step, mut own) = (minus(begin, of_tile.clone()), minus(block, block_at(&stream, of_tile)));
        // The producer brings steps of k, a consumer stores a part.
        match self.role {
            Some(_) => own = self.bind(&mut body, "part", own),
            None => step = self.bind(&mut body, "step_of_tile", step),
        }
        let tile = self.numbered(&number);
        let tile = self.bind(&mut body, "tile", tile);
        let bound = [
            (turns.turn, Index::Var(turn)),
            (turns.tile, tile),
            (part, own),
            (done, before),
            (from, step),
            (steps, count),
        ];
        let inside = self.with_all(&bound, |this| code(this));
        Some(inside.map(|inside| {
            body.extend(inside);
            let extent = minus(add(div(minus(end, c(1)), stream.steps), c(1)), first_tile);
            out.push(Stmt::For { var: turn, name: "turn".into(), start: c(0), extent, unroll: Unroll::No, body });
            out
        }))
    }

    /// The steps of the piece, of a ring's loop: the ring goes on where the piece before left it. None where whole tiles are taken.
    #[allow(clippy::type_complexity)]
    pub(super) fn steps_of_piece(
        &mut self,
        p: &Pipeline,
        code: &dyn Fn(&mut Self, &Lap) -> Result<Vec<Stmt>, LowerError>,
    ) -> Option<Result<Vec<Stmt>, LowerError>> {
        let pieces = self.nest.pieces()?;
        let places = p.slots();
        let [done, from, count] = [pieces.done, pieces.from, pieces.steps].map(|v| self.env.get(&v).cloned());
        let (done, from, extent) = (done?, from?, count?);
        let var = self.fresh();
        let mut body = Vec::new();
        let use_number = self.bind(&mut body, "use", add(done, Index::Var(var)));
        let place = self.bind(&mut body, "place", rem(use_number.clone(), places));
        let lap = Lap {
            number: add(from, Index::Var(var)),
            parity: rem(div(use_number.clone(), places), 2),
            before: Some((rem(add(use_number, c(places - 1)), places), Cond::Lt(c(0), Index::Var(var)))),
            place,
        };
        Some(code(self, &lap).map(|code| {
            body.extend(code);
            vec![Stmt::For { var, name: "step".into(), start: c(0), extent, unroll: Unroll::No, body }]
        }))
    }

    /// The place of the last lap of a ring's loop.
    pub(super) fn last_place(&self, l: &Loop, p: &Pipeline) -> Index {
        let of_piece = self.nest.pieces().and_then(|pieces| {
            let [done, steps] = [pieces.done, pieces.steps].map(|v| self.env.get(&v).cloned());
            Some(rem(minus(add(done?, steps?), c(1)), p.slots()))
        });
        of_piece.unwrap_or(c((l.extent - 1) % p.slots()))
    }
}
