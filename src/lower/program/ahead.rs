//! Copies that compute what they store, in a ring of tiles: what they load waits in registers for as many tiles as copies of others are
//! under way.
//!
//! ```text
//!   for tile:                            for tile:
//!     ring[tile + 2] = f(W[tile + 2])  ->  ring[tile + 2] = f(words[(tile + 2) % 3])
//!                                          words[(tile + 4) % 3] = W[tile + 4]
//! ```
//! `cp.async` cannot compute. Computed at once, a tile would wait for its loads; so it is computed of words that were asked for
//! `slots - 1` tiles before. Each has its registers, whose numbers are constants: such loops are written out.
use super::emit::{Emitter, Mode};
use super::error::LowerError;
use super::leaf::unpadded;
use super::nest::{Leaf, Loop, LoopKind, Node};
use super::vector::{Element, Load};
use crate::kernel::{ArrayId, Index};
use crate::lower::index::{add, c, mul};
use satune_ir::Expr;

/// What a copy has asked for and not used yet.
#[derive(Clone)]
pub(super) struct Ahead {
    /// Elements of a vector.
    pub width: i64,
    /// What is loaded for it, with the registers of all sets.
    words: Vec<(Element, ArrayId)>,
    /// Vectors of a thread in a tile.
    vectors: i64,
}

impl Ahead {
    pub fn has(&self, load: &Load) -> bool {
        self.words.iter().any(|(element, _)| *element == load.element)
    }
}

/// The only leaf of a node, under a vectorized loop, and the laps of the loops around that.
fn vectorized(node: &Node) -> Option<(&Leaf, &Loop, i64)> {
    let Node::Loop(l) = node else { return None };
    match l.body.as_slice() {
        [Node::Leaf(leaf)] => (l.kind == LoopKind::Vectorized).then_some((leaf, l, 1)),
        [inner] => vectorized(inner).map(|(leaf, lanes, laps)| (leaf, lanes, laps.saturating_mul(l.extent))),
        _ => None,
    }
}

impl Emitter<'_> {
    /// Whether a leaf stores what it reads.
    pub(super) fn copies_only(&self, leaf: &Leaf) -> bool {
        matches!(unpadded(&leaf.value, &self.ranges), Some((Expr::Load(..), _)))
    }

    /// Gives those copies that compute registers for so many sets of what they load. A vector is as wide as the guards of all tiles let
    /// it be.
    pub(super) fn load_ahead(&mut self, copies: &[Node], sets: i64) -> Result<(), LowerError> {
        for (leaf, l, laps) in copies.iter().filter_map(vectorized) {
            if self.copies_only(leaf) || !leaf.data().is_empty() {
                continue;
            }
            let Some(plan) = self.vectors_of(leaf, l)?.filter(|plan| plan.store) else { continue };
            let vectors = laps * (l.extent / plan.width);
            let mut words = Vec::new();
            for load in plan.loads {
                let of = self.array(load.array);
                let (name, dtype) = (format!("{}_ahead", of.name), of.dtype);
                let len = sets * vectors * load.elements(plan.width);
                words.push((load.element, self.registers(&name, dtype, len)));
            }
            if !words.is_empty() {
                self.ahead.insert(leaf.id, Ahead { width: plan.width, words, vectors });
            }
        }
        Ok(())
    }

    /// What of a leaf waits in registers, in either half of its copy.
    pub(super) fn waiting(&self, leaf: &Leaf) -> Option<Ahead> {
        self.ahead.get(&leaf.id).filter(|_| matches!(self.mode, Mode::Load | Mode::Store)).cloned()
    }

    /// Where the elements of a vector wait that is number `chunk` of the loop's.
    pub(super) fn place_ahead(
        &mut self,
        ahead: &Ahead,
        load: &Load,
        l: &Loop,
        chunk: &Index,
    ) -> Option<(ArrayId, Index)> {
        let (_, array) = ahead.words.iter().find(|(element, _)| *element == load.element)?;
        let path: Vec<_> = self.path.iter().filter(|(v, _)| *v != l.var).copied().collect();
        let lap = path.into_iter().fold(c(0), |sum, (v, extent)| {
            let at = self.env.get(&v).cloned().unwrap_or(c(0));
            add(mul(sum, extent), at)
        });
        let vector = add(mul(lap, l.extent / ahead.width), chunk.clone());
        let of_set = mul(self.set.clone(), ahead.vectors);
        Some((*array, mul(add(of_set, vector), load.elements(ahead.width))))
    }
}
