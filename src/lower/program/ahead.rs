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
use super::emit::{innermost, steps, Emitter, Mode};
use super::error::LowerError;
use super::leaf::unpadded;
use super::nest::{Leaf, Loop, LoopKind, Node};
use super::vector::{Element, Load};
use crate::kernel::{ArrayId, Index};
use crate::lower::index::{add, mul};
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

impl Emitter<'_> {
    /// Whether a leaf stores what it reads.
    pub(super) fn copies_only(&self, leaf: &Leaf) -> bool {
        matches!(unpadded(&leaf.value, &self.ranges), Some((Expr::Load(..), _)))
    }

    /// Gives those copies that compute registers for so many sets of what they load. A vector is as wide as the guards of all tiles let
    /// it be.
    pub(super) fn load_ahead(&mut self, copies: &[Node], sets: i64) -> Result<(), LowerError> {
        for node in copies {
            let Node::Loop(l) = node else { continue };
            let Some((leaf, l)) = innermost(l).filter(|(_, l)| l.kind == LoopKind::Vectorized) else { continue };
            if self.copies_only(leaf) || !leaf.is_steady(Some(l), self.program) {
                continue;
            }
            let Some(plan) = self.vectors_of(leaf, l)?.filter(|plan| plan.store) else { continue };
            let vectors = steps(std::slice::from_ref(node)) / plan.width;
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
        let lap = self.plain_index(&self.lap(|v| v != l.var));
        let vector = add(mul(lap, l.extent / ahead.width), chunk.clone());
        let of_set = mul(self.set.clone(), ahead.vectors);
        Some((*array, mul(add(of_set, vector), load.elements(ahead.width))))
    }
}
