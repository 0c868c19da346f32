//! Barriers: where shared memory passes between threads, and nowhere else.
//!
//! Statements are taken in order with what was read and written since the last barrier. A barrier goes before a
//! statement that reads what another wrote, or writes what another read or wrote; and to the end of a loop's body
//! where its next iteration would need one. A statement never conflicts with itself: its instances own their elements.
use super::nest::{Leaf, Node};
use satune_ir::{BufferId, VarId};
use std::collections::{HashMap, HashSet};

#[derive(Clone, Debug, Default)]
pub struct Pending {
    reads: HashMap<BufferId, HashSet<usize>>,
    writes: HashMap<BufferId, HashSet<usize>>,
}

/// What decides on barriers.
pub struct Rules<'r> {
    /// Whether a buffer is shared.
    pub shared: &'r dyn Fn(BufferId) -> bool,
    /// Whether a loop is pipelined: it has barriers of its own, and leaves all behind it in order only at its end.
    pub pipelined: &'r dyn Fn(VarId) -> bool,
}

impl Pending {
    fn leaf(&mut self, leaf: &Leaf, rules: &Rules) {
        for (b, _) in leaf.reads.iter().filter(|(b, _)| (rules.shared)(*b)) {
            self.reads.entry(*b).or_default().insert(leaf.id);
        }
        if (rules.shared)(leaf.target) {
            self.writes.entry(leaf.target).or_default().insert(leaf.id);
        }
    }

    fn all(nodes: &[Node], rules: &Rules) -> Pending {
        let mut out = Pending::default();
        for node in nodes {
            match node {
                Node::Leaf(leaf) => out.leaf(leaf, rules),
                Node::Loop(l) => out.join(&Pending::all(&l.body, rules)),
                Node::Barrier => {}
            }
        }
        out
    }

    fn join(&mut self, other: &Pending) {
        for (mine, theirs) in [(&mut self.reads, &other.reads), (&mut self.writes, &other.writes)] {
            for (b, ids) in theirs {
                mine.entry(*b).or_default().extend(ids);
            }
        }
    }

    fn conflicts(&self, next: &Pending) -> bool {
        let clash = |a: &HashMap<BufferId, HashSet<usize>>, b: &HashMap<BufferId, HashSet<usize>>| {
            b.iter().any(|(buffer, ids)| {
                a.get(buffer).is_some_and(|before| before.iter().any(|x| ids.iter().any(|y| x != y)))
            })
        };
        clash(&self.writes, &next.reads) || clash(&self.reads, &next.writes) || clash(&self.writes, &next.writes)
    }
}

/// Puts the barriers of a list of statements.
pub fn place(nodes: &mut Vec<Node>, pending: &mut Pending, rules: &Rules) {
    let mut out = Vec::with_capacity(nodes.len());
    for mut node in nodes.drain(..) {
        let one = std::slice::from_ref(&node);
        if pending.conflicts(&Pending::all(one, rules)) {
            out.push(Node::Barrier);
            *pending = Pending::default();
        }
        match &mut node {
            Node::Leaf(leaf) => pending.leaf(leaf, rules),
            Node::Loop(l) if (rules.pipelined)(l.var) => {
                // Its statements keep their number: a child's own barriers would go between copies and arithmetic.
                pending.join(&Pending::all(&l.body, rules));
            }
            Node::Loop(l) => {
                place(&mut l.body, pending, rules);
                if needs_barrier(&l.body, &mut pending.clone(), rules) {
                    l.body.push(Node::Barrier);
                    *pending = Pending::default();
                }
            }
            Node::Barrier => *pending = Pending::default(),
        }
        out.push(node);
    }
    *nodes = out;
}

/// Whether the statements up to the first barrier conflict with what is pending.
fn needs_barrier(nodes: &[Node], pending: &mut Pending, rules: &Rules) -> bool {
    for node in nodes {
        if matches!(node, Node::Barrier) {
            return false;
        }
        let own = Pending::all(std::slice::from_ref(node), rules);
        if pending.conflicts(&own) {
            return true;
        }
        pending.join(&own);
    }
    false
}
