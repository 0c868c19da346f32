//! What of a space's tensor-core part is still to be looked into.
use super::traffic::Traffic;
use crate::path::{Above, Path};
use egg::Id;
use satune_ir::term::tensor::{Store, TensorPlan};
use satune_ir::term::{BlockLoop, Term};
use std::cmp::Ordering;
use std::sync::Arc;

/// How a block is reached from the root.
pub(super) struct Reach<'s> {
    pub above: Above<'s>,
    pub loops: Vec<BlockLoop>,
}

impl<'s> Reach<'s> {
    /// The whole path: this, what the block does, and what is below.
    pub fn over(&self, chain: &[&'s Term], below: Arc<Path<'s>>) -> Arc<Path<'s>> {
        let path = chain.iter().rev().fold(below, |path, node| Path::over(node, path, None));
        self.above.iter().rev().fold(path, |path, (node, side)| Path::over(node, path, side.clone()))
    }
}

/// The ways to the blocks of a class.
pub(super) struct Blocks<'s> {
    pub reaches: Vec<Reach<'s>>,
    pub traffic: Traffic,
}

/// A part of the space that is not looked into yet.
pub(super) struct Open<'s> {
    /// What any of it takes at least, ms.
    pub bound: f64,
    /// In the order in which they were opened.
    pub number: usize,
    /// The block's class.
    pub class: Id,
    pub part: Part<'s>,
}

/// What is open.
pub(super) enum Part<'s> {
    /// Blocks that begin with a node.
    Blocks(&'s Term),
    /// Ways to deal a tile out to warps.
    Deals(Deals<'s>),
}

impl Ord for Open<'_> {
    /// The least bound is the greatest; of several the one that was opened first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.bound.total_cmp(&self.bound).then_with(|| other.number.cmp(&self.number))
    }
}

impl PartialOrd for Open<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Open<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Open<'_> {}

/// Ways to deal a tile out to warps that cost the same whatever is decided besides, where registers suffice for them.
pub(super) struct Deals<'s> {
    pub nodes: Vec<&'s Term>,
    /// The decisions between the block and these, each way that there is.
    pub chains: Arc<Vec<Chain<'s>>>,
    /// The plan with the usual ways of operands; store and ring are one of the chains'.
    pub plan: TensorPlan,
    /// The bound knows what the best order of blocks moves.
    pub with_traffic: bool,
}

/// A store and a ring.
pub(super) struct Chain<'s> {
    /// The block, the store, the ring.
    pub nodes: [&'s Term; 3],
    pub store: Store,
    pub stages: u32,
    pub slack: u32,
}

impl Chain<'_> {
    pub fn of(&self, plan: &TensorPlan) -> TensorPlan {
        TensorPlan { store: self.store, stages: self.stages, slack: self.slack, ..plan.clone() }
    }
}
