//! The k best programs of a space of streaming schedules, exactly: the time is a sum over kernels, and every kernel's
//! schedules are looked at, one by one; the best sums are merged from the bottom up. What the k best of a whole need of a
//! part are its k best, so nothing is left out.
use super::cost::{kernel_cost, stream_cost};
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
    // One more than asked for bounds the others.
    let wanted = Query { k: query.k + 1, ..query };
    let known = HashMap::new();
    let mut search = Search { space, gpu, query: wanted, start, go_on, known, looked: (0, 0), stopped: false };
    let ranked = search.whole(space.egraph.find(space.root));
    let next = ranked.get(query.k).map(|r| r.0);
    let candidates: Vec<Candidate<StreamTerm>> = ranked
        .iter()
        .take(query.k)
        .take_while(|(ms, _)| *ms < query.below_ms)
        .filter_map(|(_, tree)| {
            let term = tree.term();
            let plan = StreamPlan::from_term(&term, space.problem()).ok()?;
            let cost = stream_cost(&plan, space.problem(), gpu).ok()?.whole();
            Some(Candidate { term, plan: Schedule::Stream(plan), cost })
        })
        .collect();
    let last = candidates.last().map_or(f64::INFINITY, |c| c.cost.ms);
    let bound_ms = if search.stopped { 0.0 } else { next.unwrap_or(last) };
    let outer = search.looked;
    Extraction { candidates, proved: !search.stopped, bound_ms, outer, time: start.elapsed() }
}

impl Search<'_> {
    /// The best of a class above kernels.
    fn whole(&mut self, class: Id) -> Arc<Ranked> {
        if let Some(known) = self.known.get(&class) {
            return known.clone();
        }
        let state = *self.space.state(class);
        let mut out: Ranked = Vec::new();
        if let Step::Kernel { from, to } = state.step {
            let stream = &self.space.problem().variants[usize::from(state.variant)];
            let mut shapes: HashMap<(String, i64), (f64, Arc<Tree>)> = HashMap::new();
            let space = self.space;
            each_term(space, class, &mut |tree| {
                self.looked.0 += 1;
                self.stopped |= self.start.elapsed() > self.query.limit || !(self.go_on)();
                if self.stopped && !(out.is_empty() && shapes.is_empty()) {
                    return;
                }
                self.looked.1 += 1;
                let Ok(plan) = KernelPlan::from_term(&tree.term(), stream, (from, to)) else { return };
                let Ok(cost) = kernel_cost(&plan, stream, self.gpu) else { return };
                if self.query.diverse {
                    let key = (plan.tile_text(), plan.threads());
                    match shapes.get(&key) {
                        Some((ms, _)) if *ms <= cost.ms => {}
                        _ => {
                            shapes.insert(key, (cost.ms, tree));
                        }
                    }
                } else {
                    keep(&mut out, (cost.ms, tree), self.query.k);
                }
            });
            let mut shapes: Vec<_> = shapes.into_iter().collect();
            shapes.sort_by(|a, b| a.1 .0.total_cmp(&b.1 .0).then_with(|| a.0.cmp(&b.0)));
            for (_, ranked) in shapes {
                keep(&mut out, ranked, self.query.k);
            }
        } else {
            let nodes: Vec<StreamTerm> = self.space.choices(class).cloned().collect();
            for node in nodes {
                let parts: Vec<Arc<Ranked>> =
                    node.children().iter().map(|c| self.whole(self.space.egraph.find(*c))).collect();
                match parts.as_slice() {
                    [one] => {
                        for (ms, tree) in one.iter() {
                            keep(&mut out, (*ms, Arc::new(Tree::Node(node.clone(), vec![tree.clone()]))), self.query.k);
                        }
                    }
                    [first, second] => {
                        for (a, x) in first.iter() {
                            for (b, y) in second.iter() {
                                let tree = Tree::Node(node.clone(), vec![x.clone(), y.clone()]);
                                if !keep(&mut out, (a + b, Arc::new(tree)), self.query.k) {
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
        self.known.insert(class, out.clone());
        out
    }
}

/// Takes up a term if it is among the k best so far; the first of equals stays.
fn keep(out: &mut Ranked, one: (f64, Arc<Tree>), k: usize) -> bool {
    let at = out.partition_point(|(ms, _)| *ms <= one.0);
    if at >= k {
        return false;
    }
    out.insert(at, one);
    out.truncate(k);
    true
}

/// Every term of a class.
fn each_term(space: &Space<StreamTerm>, class: Id, found: &mut dyn FnMut(Arc<Tree>)) {
    for node in space.choices(space.egraph.find(class)) {
        match node.children() {
            [] => found(Arc::new(Tree::Node(node.clone(), Vec::new()))),
            [body, ..] => each_term(space, *body, &mut |tree| {
                found(Arc::new(Tree::Node(node.clone(), vec![tree])));
            }),
        }
    }
}
