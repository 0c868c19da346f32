//! Blocks that take one tile after the other (`satune.persistent`): so many walk over what the loop would have as many blocks for.
//!
//! ```text
//!   for tile in T.thread_binding(1000, "blockIdx.x"):     ->     for turn in range(tiles of the block):     132 blocks
//!       ..                                                           tile = blockIdx.x + turn * 132
//! ```
//! The loop is one over tiles to all that decides on layouts and guards.
use super::build::{Around, Builder};
use super::cluster::Cluster;
use super::emit::Emitter;
use super::error::LowerError;
use super::linear::Linear;
use super::nest::{Leaf, Loop, LoopKind, Nest, Node, Thread};
use crate::kernel::{Dim, Index, Stmt, Unroll};
use crate::lower::index::{add, c, div, minus, mul};
use satune_ir::{Attr, For, VarId};
use satune_rewrites::keys;

/// The loop of a kernel's blocks over their tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// The tile's number.
    pub tile: VarId,
    /// How many the block has taken before, and how many it takes at most.
    pub turn: VarId,
    pub most: i64,
    /// The block, and how many there are.
    block: VarId,
    pub blocks: i64,
}

impl Nest {
    /// Whether a thread's, or block's, number says what a statement accesses.
    pub fn uses(&self, leaf: &Leaf, t: &Thread) -> bool {
        // Blocks have different pieces of a tile.
        let by_tile = |turns: &Turns| turns.block == t.var && (self.pieces().is_some() || leaf.uses(turns.tile));
        leaf.uses(t.var) || self.turns.as_ref().is_some_and(by_tile)
    }
}

impl Builder<'_> {
    /// So many blocks walk over a loop's tiles, where they are fewer.
    pub(super) fn walkers(&self, l: &For, tag: &str, extent: i64, around: &Around) -> Option<i64> {
        match l.annotations.get(keys::PERSISTENT) {
            Some(Attr::Int(blocks)) if !around.bound && tag == "blockIdx.x" => {
                Some(*blocks).filter(|n| self.nest.pieces().is_some() || (1..extent).contains(n))
            }
            _ => None,
        }
    }

    /// The loop over a block's tiles, whose number is `tile`.
    pub(super) fn in_turns(
        &mut self,
        l: &For,
        (tile, extent): (VarId, i64),
        blocks: i64,
        inside: &Around,
    ) -> Result<Vec<Node>, LowerError> {
        let block = self.thread("blockIdx.x", blocks, &l.var.name)?;
        let most = self.nest.pieces().map_or((extent + blocks - 1) / blocks, |pieces| pieces.stream.pieces().1);
        // How many there are of a block is said where the loop is written.
        let count = Linear::of(most);
        self.nest.turns = Some(Turns { tile, turn: self.nest.fresh(most), most, block, blocks });
        let body = self.stmt(&l.body, inside)?;
        Ok(vec![Node::Loop(Loop {
            var: tile,
            name: l.var.name.to_string(),
            extent,
            steps: Some(Box::new((count, Vec::new()))),
            kind: LoopKind::Serial,
            annotations: l.annotations.clone(),
            child_sizes: vec![body.len()],
            body,
        })])
    }
}

impl Emitter<'_> {
    /// The turns of a loop over tiles, with what is done in each. None of any other loop.
    pub(super) fn turns(
        &mut self,
        l: &Loop,
        code: &dyn Fn(&mut Self) -> Result<Vec<Stmt>, LowerError>,
    ) -> Option<Result<Vec<Stmt>, LowerError>> {
        let turns = self.nest.turns.filter(|turns| turns.tile == l.var)?;
        if let Some(pieces) = self.pieces(&turns, code) {
            return Some(pieces);
        }
        let (var, tile) = (self.fresh(), self.fresh());
        let own = Index::Var(var);
        // Clusters walk over tiles as their blocks do.
        let size = self.cluster.as_ref().map_or(1, Cluster::size);
        let (first, step) = (div(Index::BlockIdx(Dim::X), size), turns.blocks / size);
        let left = div(minus(c(l.extent / size + step - 1), first.clone()), step);
        let count = if l.extent % turns.blocks == 0 { c(turns.most) } else { left };
        let (turn, extent) = self.every_other(&own, count);
        let value = self.numbered(&add(first, mul(turn.clone(), step)));
        let mut bound = vec![(turns.turn, turn), (turns.tile, Index::Var(tile))];
        bound.extend(self.nest.in_turn.map(|turn| (turn.own, own)));
        let inside = self.with_all(&bound, |this| code(this));
        Some(inside.map(|inside| {
            if inside.is_empty() {
                return inside;
            }
            let mut body = vec![Stmt::Let { var: tile, name: "tile".into(), value }];
            body.extend(inside);
            vec![Stmt::For { var, name: "turn".into(), start: c(0), extent, unroll: Unroll::No, body }]
        }))
    }
}
