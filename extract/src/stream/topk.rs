//! The k best programs of a space of streaming schedules, exactly. The time is a sum over kernels, and every kernel's schedules are
//! looked at, one by one; the best sums are merged from the bottom up. What the k best of a whole need of a part are its k best,
//! so nothing is left out. A kernel's time depends on others by what these leave in L2: a part is taken as fast as it can be with
//! any others, and the wholes are told apart by their own times, of as many as it takes for no other to be faster.
use super::cost::{kernel_ms, stream_cost};
use super::work::Passing;
use crate::{Candidate, Descriptor, Extraction, Query};
use egg::{Id, Language, RecExpr};
use satune_ir::term::stream::{KernelPlan, Step, StreamPlan, StreamTerm};
use satune_ir::term::{Schedule, Space};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// A term, shared between the wholes that it is part of.
enum Tree {
    Node(StreamTerm, Vec<Arc<Tree>>),
}

impl Tree {
    fn add(&self, out: &mut RecExpr<StreamTerm>) -> Id {
        let Tree::Node(node, children) = self;
        let mut node = node.clone();
        let ids: Vec<Id> = children.iter().map(|c| c.add(out)).collect();
        for (slot, id) in node.children_mut().iter_mut().zip(ids) {
            *slot = id;
        }
        out.add(node)
    }

    fn over(node: &StreamTerm, children: Vec<Arc<Tree>>) -> Arc<Tree> {
        Arc::new(Tree::Node(node.clone(), children))
    }

    /// Nodes that stand over each other.
    fn of(path: &[&StreamTerm]) -> Arc<Tree> {
        let mut below = Vec::new();
        for node in path.iter().rev() {
            below = vec![Tree::over(node, below)];
        }
        below.pop().unwrap_or_else(|| unreachable!("a term has a node"))
    }

    fn term(&self) -> RecExpr<StreamTerm> {
        let mut out = RecExpr::default();
        self.add(&mut out);
        out
    }
}

type Ranked = Vec<(f64, Arc<Tree>)>;

struct Search<'s> {
    space: &'s Space<StreamTerm>,
    gpu: &'s Descriptor,
    query: Query,
    start: Instant,
    go_on: &'s (dyn Fn() -> bool + Sync),
    known: HashMap<Id, Arc<Ranked>>,
    /// Of the classes of kernels, with how many were asked for.
    kernels: HashMap<Id, (usize, Arc<Ranked>)>,
    /// Schedules of kernels, and those whose time was predicted.
    looked: (usize, usize),
    stopped: bool,
}

/// Finds the k best programs of a space on a GPU.
pub fn best_stream(space: &Space<StreamTerm>, gpu: &Descriptor, query: Query) -> Extraction<StreamTerm> {
    best_stream_while(space, gpu, query, &|| true)
}

/// [`best_stream`], ended early when `go_on` says so: then as if the time were over. Some program is found all the same:
/// of a kernel that was not looked at by then, the first schedule that the GPU can run.
pub fn best_stream_while(
    space: &Space<StreamTerm>,
    gpu: &Descriptor,
    query: Query,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Extraction<StreamTerm> {
    let start = Instant::now();
    let (known, kernels) = (HashMap::new(), HashMap::new());
    let mut search = Search { space, gpu, query, start, go_on, known, kernels, looked: (0, 0), stopped: false };
    // One more than asked for bounds the others.
    let mut wanted = query.k + 1;
    let (ranked, next, proved) = loop {
        search.query = Query { k: wanted, ..query };
        search.known.clear();
        let parts = search.whole(space.egraph.find(space.root));
        // Of those that are left out, none is faster than this.
        let least =
            if parts.len() < wanted { f64::INFINITY } else { parts.last().map_or(f64::INFINITY, |(ms, _)| *ms) };
        let mut ranked: Vec<Candidate<StreamTerm>> =
            parts.iter().filter_map(|(_, tree)| search.candidate(tree)).collect();
        ranked.sort_by(|a, b| a.cost.ms.total_cmp(&b.cost.ms));
        let last = match query.k {
            0 => 0.0,
            k => ranked.get(k - 1).map_or(f64::INFINITY, |c| c.cost.ms),
        };
        let next = ranked.get(query.k).map_or(f64::INFINITY, |c| c.cost.ms).min(least);
        // Sums of the same times differ in their last digits.
        let all = last <= least * (1.0 + 1e-12);
        if all || search.stopped || wanted >= MOST_RANKED {
            break (ranked, next, all && !search.stopped);
        }
        wanted *= 4;
    };
    let candidates: Vec<Candidate<StreamTerm>> =
        ranked.into_iter().take(query.k).take_while(|c| c.cost.ms < query.below_ms).collect();
    let last = candidates.last().map_or(f64::INFINITY, |c| c.cost.ms);
    let bound_ms = match (search.stopped, next.is_finite()) {
        (true, _) => 0.0,
        (false, true) => next,
        (false, false) => last,
    };
    let outer = search.looked;
    Extraction { candidates, proved, bound_ms, outer, time: start.elapsed() }
}

/// Most wholes that are told apart.
const MOST_RANKED: usize = 4096;

impl Search<'_> {
    /// A whole with its own time.
    fn candidate(&self, tree: &Tree) -> Option<Candidate<StreamTerm>> {
        let term = tree.term();
        let plan = StreamPlan::from_term(&term, self.space.problem()).ok()?;
        let cost = stream_cost(&plan, self.space.problem(), self.gpu).ok()?.whole();
        Some(Candidate { term, plan: Schedule::Stream(plan), cost })
    }
}

impl Search<'_> {
    /// The best of a class above kernels.
    fn whole(&mut self, class: Id) -> Arc<Ranked> {
        if let Some(known) = self.known.get(&class) {
            return known.clone();
        }
        let state = *self.space.state(class);
        let mut out: Ranked = Vec::new();
        if let Step::Kernel(_) = state.step {
            if let Some((asked, known)) = self.kernels.get(&class) {
                if *asked >= self.query.k || known.len() < *asked {
                    return known.clone();
                }
            }
            let stream = &self.space.problem().works[usize::from(state.work)];
            let mut shapes: HashMap<(String, i64), (f64, Arc<Tree>)> = HashMap::new();
            let space = self.space;
            let passing = Passing::of(stream, 0, stream.blocks.len());
            each_term(space, class, &mut Vec::new(), &mut |path| {
                self.looked.0 += 1;
                self.stopped |= self.start.elapsed() > self.query.limit || !(self.go_on)();
                if self.stopped && !(out.is_empty() && shapes.is_empty()) {
                    return;
                }
                self.looked.1 += 1;
                let Ok(plan) = KernelPlan::from_path(path.iter().copied(), stream) else { return };
                let Ok(ms) = kernel_ms(&plan, stream, &passing, self.gpu) else { return };
                if self.query.diverse {
                    let key = (plan.tile_text(), plan.threads());
                    match shapes.get(&key) {
                        Some((known, _)) if *known <= ms => {}
                        _ => {
                            shapes.insert(key, (ms, Tree::of(path)));
                        }
                    }
                } else {
                    keep(&mut out, ms, self.query.k, || Tree::of(path));
                }
            });
            let mut shapes: Vec<_> = shapes.into_iter().collect();
            shapes.sort_by(|a, b| a.1 .0.total_cmp(&b.1 .0).then_with(|| a.0.cmp(&b.0)));
            for (_, (ms, tree)) in shapes {
                keep(&mut out, ms, self.query.k, || tree);
            }
        } else {
            let nodes: Vec<StreamTerm> = self.space.choices(class).cloned().collect();
            for node in nodes {
                let parts: Vec<Arc<Ranked>> =
                    node.children().iter().map(|c| self.whole(self.space.egraph.find(*c))).collect();
                match parts.as_slice() {
                    [one] => {
                        for (ms, tree) in one.iter() {
                            keep(&mut out, *ms, self.query.k, || Tree::over(&node, vec![tree.clone()]));
                        }
                    }
                    [first, second] => {
                        for (a, x) in first.iter() {
                            for (b, y) in second.iter() {
                                let tree = || Tree::over(&node, vec![x.clone(), y.clone()]);
                                if !keep(&mut out, a + b, self.query.k, tree) {
                                    break;
                                }
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        let out = Arc::new(out);
        if let Step::Kernel(_) = state.step {
            self.kernels.insert(class, (self.query.k, out.clone()));
            return out;
        }
        self.known.insert(class, out.clone());
        out
    }
}

/// Takes up a term if it is among the k best so far; the first of equals stays.
fn keep(out: &mut Ranked, ms: f64, k: usize, tree: impl FnOnce() -> Arc<Tree>) -> bool {
    let at = out.partition_point(|(known, _)| *known <= ms);
    if at >= k {
        return false;
    }
    out.insert(at, (ms, tree()));
    out.truncate(k);
    true
}

/// Every term of a class of kernels, as the nodes that stand over each other.
fn each_term<'s>(
    space: &'s Space<StreamTerm>,
    class: Id,
    path: &mut Vec<&'s StreamTerm>,
    found: &mut dyn FnMut(&[&'s StreamTerm]),
) {
    for node in space.choices(space.egraph.find(class)) {
        path.push(node);
        match node.children() {
            [] => found(path),
            [body, ..] => each_term(space, *body, path, found),
        }
        path.pop();
    }
}
