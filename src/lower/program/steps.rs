//! Steps of a tile: what they load of it, and what multiplies that.
use super::matrix::{is_private, What};
use super::nest::{leaves, Loop, Node};
use satune_ir::{BufferId, Program};
use satune_rewrites::intrinsics::wmma::Step;
use std::collections::HashSet;

/// Steps of a tile that are written out, at most.
const MOST: i64 = 64;

/// What the arithmetic on a tile is made of.
#[derive(Clone, Copy)]
pub(super) struct Steps<'n> {
    /// The loop over steps, where there are several.
    pub of: Option<&'n Loop>,
    /// Loads from the ring; what multiplies reads none of it.
    pub loads: &'n [Node],
    pub multiply: &'n [Node],
}

impl<'n> Steps<'n> {
    /// Of nodes that read buffers of a ring.
    pub fn of(nodes: &'n [Node], ring: &HashSet<BufferId>, program: &Program) -> Option<Steps<'n>> {
        let inside = |of: Option<&'n Loop>, nodes: &'n [Node]| {
            let count = nodes.iter().take_while(|node| loads(node, program)).count();
            let (loads, multiply) = nodes.split_at(count);
            let mut apart = !loads.is_empty() && !multiply.is_empty();
            leaves(multiply, &mut |leaf| {
                apart &= leaf.instruction.is_some() && leaf.reads.iter().all(|(b, _)| !ring.contains(b));
            });
            apart.then_some(Steps { of, loads, multiply })
        };
        let steps = match nodes {
            [Node::Loop(l)] if l.steps.is_none() && l.extent <= MOST => inside(Some(l), &l.body),
            _ => None,
        };
        steps.or_else(|| inside(None, nodes))
    }

    pub fn count(&self) -> i64 {
        self.of.map_or(1, |l| l.extent)
    }
}

/// Whether all of a node's statements load what a warp multiplies.
fn loads(node: &Node, program: &Program) -> bool {
    let mut all = true;
    leaves(std::slice::from_ref(node), &mut |leaf| {
        let by_instruction =
            leaf.instruction.as_ref().is_some_and(|i| matches!(i.what, What::Hold | What::Fragments(Step::Load(..))));
        all &= by_instruction && is_private(&program.buffer(leaf.target).scope) && !leaf.accumulates();
    });
    all && !matches!(node, Node::Barrier)
}

/// The buffers that a loop over steps loads a step ahead; none where its first stage does anything else.
pub(super) fn sets(l: &Loop, stages: &[i64], program: &Program) -> Option<HashSet<BufferId>> {
    let (mut buffers, mut at, mut all) = (HashSet::new(), 0, true);
    for (stage, size) in stages.iter().zip(&l.child_sizes) {
        let nodes = &l.body[at..at + size];
        at += size;
        if *stage == 0 {
            all &= nodes.iter().all(|node| loads(node, program));
            leaves(nodes, &mut |leaf| {
                buffers.insert(leaf.target);
            });
        }
    }
    (all && !buffers.is_empty()).then_some(buffers)
}
