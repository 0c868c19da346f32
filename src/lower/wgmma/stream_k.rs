//! Stream-K on `wgmma`: each block takes an even share of all tiles' steps along k, and a second kernel adds the parts of
//! each tile in the order of k.
use super::pipeline::{Piece, Pipeline, Step, Work};
use super::*;
use satune_ir::term::tensor::StreamK;

fn least(a: Index, b: i64) -> Index {
    Index::Min(Box::new(a), Box::new(c(b)))
}

fn minus(a: Index, b: Index) -> Index {
    Index::Sub(Box::new(a), Box::new(b))
}

/// A block's first step.
fn first(stream: &StreamK, block: Index) -> Index {
    let (each, more) = stream.each();
    match more {
        0 => mul(block, each),
        more => add(mul(block.clone(), each), least(block, more)),
    }
}

/// The block of a step.
fn block_of(stream: &StreamK, step: Index) -> Index {
    let (each, more) = stream.each();
    if more == 0 {
        return div(step, each);
    }
    // Those of one step more come first.
    let larger = more * (each + 1);
    let rest = Index::Max(Box::new(minus(step.clone(), c(larger))), Box::new(c(0)));
    add(div(least(step, larger), each + 1), div(rest, each))
}

/// How many blocks have parts of a tile, and the first of them.
pub(super) fn parts(stream: &StreamK, tile: &Index) -> (Index, Index) {
    let from = block_of(stream, mul(tile.clone(), stream.steps));
    let last = block_of(stream, add(mul(tile.clone(), stream.steps), c(stream.steps - 1)));
    (minus(add(last, c(1)), from.clone()), from)
}

impl Pipeline<'_> {
    /// The code for each of the block's parts of tiles.
    pub(super) fn for_each_piece(
        &mut self,
        stream: &StreamK,
        is_consumer: bool,
        code: impl FnOnce(&mut Self, &Work) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let block = Index::BlockIdx(Dim::X);
        let mut out = Vec::new();
        let b = &mut self.builder;
        let start = b.bind(&mut out, "first_step", first(stream, block.clone()));
        let end = b.bind(&mut out, "end_step", first(stream, add(block.clone(), c(1))));
        let first_tile = b.bind(&mut out, "first_tile", div(start.clone(), stream.steps));
        let turn = b.fresh();
        let mut body = Vec::new();
        let tile = b.bind(&mut body, "tile", add(first_tile.clone(), Index::Var(turn)));
        let of_tile = mul(tile.clone(), stream.steps);
        let begin = Index::Max(Box::new(start.clone()), Box::new(of_tile.clone()));
        let begin = b.bind(&mut body, "begin", begin);
        let stop = Index::Min(Box::new(end.clone()), Box::new(add(of_tile.clone(), c(stream.steps))));
        let extent = b.bind(&mut body, "steps", minus(stop, begin.clone()));
        let done = b.bind(&mut body, "steps_done", minus(begin.clone(), start));
        // The producer loads steps of k, a consumer stores a part.
        let (from, part) = (minus(begin, of_tile), minus(block, parts(stream, &tile).1));
        let (from, part) = match is_consumer {
            true => (from, b.bind(&mut body, "part", part)),
            false => (b.bind(&mut body, "step_of_tile", from), part),
        };
        let (batch, number) = product(self.gemm, tile, self.tiles[0] * self.tiles[1]);
        let batch = self.builder.bind(&mut body, "product", batch);
        let (row, column) = place(&number, self.tiles[0], self.tiles[1], self.plan.raster);
        let m0 = self.builder.bind(&mut body, "m_tile", mul(row, self.plan.tile[0]));
        let n0 = self.builder.bind(&mut body, "n_tile", mul(column, self.plan.tile[1]));
        let piece = Some(Piece { done, from, extent });
        let (turn_index, own_turn) = (Index::Var(turn), Index::Var(turn));
        body.extend(code(self, &Work { m0, n0, part, batch, turn: turn_index, own_turn, piece }));
        let extent = minus(add(div(minus(end, c(1)), stream.steps), c(1)), first_tile);
        out.push(Stmt::For { var: turn, name: "turn".into(), start: c(0), extent, unroll: Unroll::No, body });
        out
    }

    /// The code for each step of a part: the ring goes on where the part before left it.
    pub(super) fn for_each_step_of(
        &mut self,
        piece: &Piece,
        code: impl Fn(&mut Self, &Step) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (stages, k) = (i64::from(self.plan.stages), self.plan.tile[2]);
        let var = self.builder.fresh();
        let mut body = Vec::new();
        let place = add(piece.done.clone(), Index::Var(var));
        let place = self.builder.bind(&mut body, "place", place);
        let stage = self.builder.bind(&mut body, "stage", rem(place.clone(), stages));
        let step = Step {
            parity: rem(div(place.clone(), stages), 2),
            at_k: mul(add(piece.from.clone(), Index::Var(var)), k),
            before: Some((rem(add(place, c(stages - 1)), stages), Cond::Lt(c(0), Index::Var(var)))),
            stage,
        };
        body.extend(code(self, &step));
        let (start, extent, unroll) = (c(0), piece.extent.clone(), Unroll::No);
        vec![Stmt::For { var, name: "step".into(), start, extent, unroll, body }]
    }
}
