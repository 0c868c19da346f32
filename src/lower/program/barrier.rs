//! Barriers: where shared memory passes between threads, and nowhere else.
//!
//! Statements are taken in order with what was read and written since the last barrier. A barrier goes before a
//! statement that reads what another wrote, or writes what another read or wrote; and to the end of a loop's body
//! where its next iteration would need one. A statement never conflicts with itself: its instances own their elements. Nor
//! do two statements whose indices say that each thread has its own elements, the same in both. A buffer that takes over
//! the bytes of another waits for all that was done with that one.
use super::linear::{Linear, Ranges};
use super::nest::{leaves, Leaf, Nest, Node, Thread};
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
    /// Which threads own the elements that statements access.
    pub owners: &'r Owners,
    /// Whether who writes next waits by itself for what a statement reads.
    pub waited_for: &'r dyn Fn(&Leaf) -> bool,
    /// The buffers that lie in bytes of a buffer at other times.
    pub sharing: &'r HashMap<BufferId, Vec<BufferId>>,
}

/// Where an index tells the thread: (component of threadIdx, dimension, unit): `index[dimension] // unit % extent` is the
/// thread's number.
pub(super) type Owner = Vec<(VarId, usize, i64)>;

/// For each statement and buffer: how its indices tell the thread, the same for all of its accesses.
#[derive(Default)]
pub struct Owners(HashMap<(usize, BufferId), Option<Owner>>);

impl Owners {
    /// Of the statements of a nest.
    pub fn of(nest: &Nest) -> Owners {
        let threads: Vec<&Thread> = nest.threads.iter().filter(|t| t.block && t.extent > 1).collect();
        let mut out = Owners::default();
        nest.leaves(&mut |leaf, _| {
            for (b, at) in leaf.reads.iter().map(|(b, at)| (*b, at)).chain([(leaf.target, &leaf.at)]) {
                let own = owner(at, &threads, &nest.ranges);
                let known = out.0.entry((leaf.id, b)).or_insert_with(|| own.clone());
                if *known != own {
                    *known = None;
                }
            }
        });
        out
    }

    /// Whether each thread accesses in one statement what it accesses itself in the other.
    fn same(&self, buffer: BufferId, a: usize, b: usize) -> bool {
        let of = |leaf: usize| self.0.get(&(leaf, buffer)).and_then(Option::as_ref);
        matches!((of(a), of(b)), (Some(x), Some(y)) if x == y)
    }
}

/// How indices tell each of the threads; none where they do not.
pub(super) fn owner(at: &[Linear], threads: &[&Thread], ranges: &Ranges) -> Option<Owner> {
    let place = |t: &Thread| {
        let number = Linear::var(t.var);
        at.iter().enumerate().find_map(|(d, form)| {
            let (unit, _) = form.split_var(t.var)?;
            let tells = unit > 0 && form.divided(unit, ranges).remainder(t.extent, ranges) == number;
            tells.then_some((t.var, d, unit))
        })
    };
    threads.iter().map(|t| place(t)).collect()
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

    fn conflicts(&self, next: &Pending, rules: &Rules) -> bool {
        let clash = |a: &HashMap<BufferId, HashSet<usize>>, b: &HashMap<BufferId, HashSet<usize>>| {
            b.iter().any(|(buffer, ids)| {
                let apart = |x: usize, y: usize| x != y && !rules.owners.same(*buffer, x, y);
                a.get(buffer).is_some_and(|before| before.iter().any(|x| ids.iter().any(|y| apart(*x, *y))))
            })
        };
        let pending = |b: &BufferId| self.reads.contains_key(b) || self.writes.contains_key(b);
        let takes_over = |b: &BufferId| rules.sharing.get(b).is_some_and(|others| others.iter().any(pending));
        clash(&self.writes, &next.reads)
            || clash(&self.reads, &next.writes)
            || clash(&self.writes, &next.writes)
            || next.reads.keys().chain(next.writes.keys()).any(takes_over)
    }
}

/// Puts the barriers of a list of statements.
pub fn place(nodes: &mut Vec<Node>, pending: &mut Pending, rules: &Rules) {
    let mut out = Vec::with_capacity(nodes.len());
    for mut node in nodes.drain(..) {
        let one = std::slice::from_ref(&node);
        if pending.conflicts(&Pending::all(one, rules), rules) {
            out.push(Node::Barrier);
            *pending = Pending::default();
        }
        match &mut node {
            Node::Leaf(leaf) if (rules.waited_for)(leaf) => {}
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
                if matches!(out.last(), Some(Node::Barrier)) && turned(&mut l.body) {
                    out.pop();
                    *pending = Pending::all(&l.body, rules);
                }
            }
            Node::Barrier => *pending = Pending::default(),
        }
        out.push(node);
    }
    *nodes = out;
}

/// Whether a loop over a warp's matrices ends with a barrier, which then stands at its beginning instead: there it is also that before the
/// loop, and the last lap has none.
fn turned(body: &mut Vec<Node>) -> bool {
    if let [Node::Loop(inner)] = body.as_mut_slice() {
        return turned(&mut inner.body);
    }
    let mut of_matrices = false;
    leaves(body, &mut |leaf| of_matrices |= leaf.instruction.is_some());
    if !of_matrices || !matches!(body.last(), Some(Node::Barrier)) {
        return false;
    }
    body.rotate_right(1);
    true
}

/// Whether the statements up to the first barrier conflict with what is pending.
fn needs_barrier(nodes: &[Node], pending: &mut Pending, rules: &Rules) -> bool {
    for node in nodes {
        if matches!(node, Node::Barrier) {
            return false;
        }
        let own = Pending::all(std::slice::from_ref(node), rules);
        if pending.conflicts(&own, rules) {
            return true;
        }
        pending.join(&own);
    }
    false
}
