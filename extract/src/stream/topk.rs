//! The k best programs of a space of streaming schedules, exactly. The time is a sum over kernels. Of row kernels every choice of rows
//! and threads is looked at, with the best of what they leave to choose ([`super::chain`]); of others every schedule. The best
//! sums are merged from the bottom up. What the k best of a whole need of a part are its k best,
//! so nothing is left out. A class of kernels is looked at once it is of one of the best wholes, as fast as what it moves from and to
//! DRAM lets it be. A kernel's time depends on others by what these leave in L2: a part is taken as fast as it can be with
//! any others, and the wholes are told apart by their own times, of as many as it takes for no other to be faster.
use super::chain::Sums;
use super::cost::{kernel_ms, least_ms, stream_cost_knowing, work_ms, TiledCosts};
use super::counts::KernelWork;
use super::row::Rows;
use super::work::Passing;
use crate::{Candidate, Descriptor, Extraction, Query};
use egg::{Id, Language, RecExpr};
use rayon::prelude::*;
use satune_ir::term::stream::{KernelPlan, Step, StreamPlan, StreamTerm};
use satune_ir::term::{Schedule, Space};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A term, shared between the wholes that it is part of.
enum Tree {
    Node(StreamTerm, Vec<Arc<Tree>>),
    /// A kernel of a class that was not looked at.
    Open(Id),
}

impl Tree {
    /// Nothing where a kernel is open.
    fn add(&self, out: &mut RecExpr<StreamTerm>) -> Option<Id> {
        let Tree::Node(node, children) = self else { return None };
        let mut node = node.clone();
        let ids: Vec<Id> = children.iter().map(|c| c.add(out)).collect::<Option<_>>()?;
        for (slot, id) in node.children_mut().iter_mut().zip(ids) {
            *slot = id;
        }
        Some(out.add(node))
    }

    /// The classes of kernels that were not looked at.
    fn open(&self, found: &mut BTreeSet<Id>) {
        match self {
            Tree::Node(_, children) => children.iter().for_each(|child| child.open(found)),
            Tree::Open(class) => {
                found.insert(*class);
            }
        }
    }

    fn over(node: &StreamTerm, children: Vec<Arc<Tree>>) -> Arc<Tree> {
        Arc::new(Tree::Node(node.clone(), children))
    }

    /// Nodes that stand over each other.
    fn of<'a>(path: impl Iterator<Item = &'a StreamTerm>) -> Arc<Tree> {
        let mut below = Vec::new();
        for node in path.collect::<Vec<_>>().into_iter().rev() {
            below = vec![Tree::over(node, below)];
        }
        below.pop().unwrap_or_else(|| unreachable!("a term has a node"))
    }

    fn term(&self) -> Option<RecExpr<StreamTerm>> {
        let mut out = RecExpr::default();
        self.add(&mut out)?;
        Some(out)
    }
}

type Ranked = Vec<(f64, Arc<Tree>)>;

/// What is known of a class of kernels.
enum Kernels {
    /// None was looked at; none takes less, ms.
    Open(f64),
    /// So many best were asked for.
    Best(usize, Arc<Ranked>),
}

struct Search<'s, 'a> {
    space: &'s Space<StreamTerm>,
    teams: &'a Teams<'s>,
    gpu: &'a Descriptor,
    query: Query,
    start: Instant,
    go_on: &'a (dyn Fn() -> bool + Sync),
    known: HashMap<Id, Arc<Ranked>>,
    kernels: HashMap<Id, Kernels>,
    tiled: TiledCosts,
    /// Schedules of kernels, of row kernels choices of rows and threads; and those that were looked at.
    looked: [AtomicUsize; 2],
    stopped: AtomicBool,
}

/// Finds the k best programs of a space on a GPU.
pub fn best_stream(space: &Space<StreamTerm>, gpu: &Descriptor, query: Query) -> Extraction<StreamTerm> {
    best_stream_knowing(space, &Teams::default(), gpu, query, &|| true)
}

/// [`best_stream`] with what earlier searches of the space have found out; ended early when `go_on` says so: then as if the time were over. Some program is found all the same:
/// of a kernel that was not looked at by then, the first schedule that the GPU can run.
pub fn best_stream_knowing<'s>(
    space: &'s Space<StreamTerm>,
    teams: &Teams<'s>,
    gpu: &Descriptor,
    query: Query,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Extraction<StreamTerm> {
    let start = Instant::now();
    let (known, kernels) = (HashMap::new(), HashMap::new());
    let (looked, stopped) = (Default::default(), AtomicBool::new(false));
    let tiled = TiledCosts::default();
    let mut search = Search { space, teams, gpu, query, start, go_on, known, kernels, tiled, looked, stopped };
    // One more than asked for bounds the others.
    let mut wanted = query.k + 1;
    let (ranked, next, proved) = loop {
        search.query = Query { k: wanted, ..query };
        let parts = search.wholes();
        // Of those that are left out, none is faster than this.
        let least = if parts.len() < wanted { None } else { parts.last() }.map_or(query.below_ms, |(ms, _)| *ms);
        let mut ranked: Vec<Candidate<StreamTerm>> =
            parts.iter().filter_map(|(_, tree)| search.candidate(tree)).collect();
        ranked.sort_by(|a, b| a.cost.ms.total_cmp(&b.cost.ms));
        let last = match query.k {
            0 => 0.0,
            k => ranked.get(k - 1).map_or(query.below_ms, |c| c.cost.ms),
        };
        let next = ranked.get(query.k).map_or(f64::INFINITY, |c| c.cost.ms).min(least);
        // Sums of the same times differ in their last digits.
        let all = last <= least * (1.0 + 1e-12);
        let stopped = search.stopped.load(Relaxed);
        if all || stopped || wanted >= MOST_RANKED {
            break (ranked, next, all && !stopped);
        }
        wanted *= 4;
    };
    let candidates: Vec<Candidate<StreamTerm>> =
        ranked.into_iter().take(query.k).take_while(|c| c.cost.ms < query.below_ms).collect();
    let last = candidates.last().map_or(f64::INFINITY, |c| c.cost.ms);
    let bound_ms = match (search.stopped.load(Relaxed), next.is_finite()) {
        (true, _) => 0.0,
        (false, true) => next,
        (false, false) => last,
    };
    let [all, looked] = search.looked.map(AtomicUsize::into_inner);
    let outer = (all, looked);
    Extraction { candidates, proved, bound_ms, outer, time: start.elapsed() }
}

/// Most wholes that are told apart.
const MOST_RANKED: usize = 4096;

impl Search<'_, '_> {
    /// A whole with its own time.
    fn candidate(&self, tree: &Tree) -> Option<Candidate<StreamTerm>> {
        let term = tree.term()?;
        let plan = StreamPlan::from_term(&term, self.space.problem()).ok()?;
        let cost = stream_cost_knowing(&plan, self.space.problem(), self.gpu, &self.tiled).ok()?.whole();
        Some(Candidate { term, plan: Schedule::Stream(plan), cost })
    }
}

impl<'s> Search<'s, '_> {
    /// The best wholes.
    fn wholes(&mut self) -> Arc<Ranked> {
        // More are asked for now: what had no more is known, the rest is as fast as its first.
        let wanted = self.query.k;
        for kernels in self.kernels.values_mut() {
            let first = match kernels {
                Kernels::Best(asked, best) if *asked < wanted && best.len() == *asked => best.first(),
                _ => None,
            };
            if let Some((ms, _)) = first {
                *kernels = Kernels::Open(*ms);
            }
        }
        loop {
            self.known.clear();
            let parts = self.whole(self.space.egraph.find(self.space.root));
            let mut open = BTreeSet::new();
            parts.iter().for_each(|(_, tree)| tree.open(&mut open));
            if open.is_empty() {
                return parts;
            }
            let open: Vec<Id> = open.into_iter().collect();
            let best: Vec<Ranked> = open.par_iter().map(|class| self.kernel(*class)).collect();
            for (class, best) in open.into_iter().zip(best) {
                self.kernels.insert(class, Kernels::Best(wanted, Arc::new(best)));
            }
        }
    }

    /// Whether the time is over.
    fn over(&self) -> bool {
        let over = self.start.elapsed() > self.query.limit || !(self.go_on)();
        self.stopped.fetch_or(over, Relaxed) || over
    }

    /// Whether nothing more is looked at: the time is over, and a program was found if any is to be.
    fn ends(&self, empty: bool) -> bool {
        self.over() && (!empty || self.query.below_ms.is_finite())
    }

    /// The best of a class of kernels.
    fn kernel(&self, class: Id) -> Ranked {
        let work = self.space.state(class).work;
        let stream = &self.space.problem().works[usize::from(work)];
        let (space, gpu, query) = (self.space, self.gpu, self.query);
        let passing = Passing::of(stream, 0, stream.blocks.len());
        let mut found = Best { query, all: Vec::new(), shapes: HashMap::new(), last_shape: None };
        let held = [stream.rows_held(false), stream.rows_held(true)];
        let (known, mut made, mut plain) = (self.teams.of(class), Vec::new(), Vec::new());
        let [all, looked] = &self.looked;
        each_term(space, class, &mut Vec::new(), &mut |path, chain| {
            all.fetch_add(1, Relaxed);
            if self.ends(found.is_empty() && made.is_empty() && plain.is_empty()) {
                return;
            }
            let Some(chain) = chain else {
                let Ok(plan) = KernelPlan::from_path(path.iter().copied(), stream) else { return };
                // What a plain kernel loads is looked at where it may be among the best.
                if let KernelPlan::Plain(of) = &plan {
                    if let Ok(least) = work_ms(&passing.least(of, stream), plan.threads(), gpu) {
                        plain.push((least, path.to_vec(), plan));
                    }
                    return;
                }
                looked.fetch_add(1, Relaxed);
                let Ok(ms) = kernel_ms(&plan, stream, &passing, gpu, &self.tiled) else { return };
                let shape = || (plan.tile_text(), plan.threads());
                return found.take(ms, &shape, || Tree::of(path.iter().copied()));
            };
            let Some(rows) = Rows::on(path, stream).filter(|_| known.is_none()) else { return };
            let mut least = rows.team();
            least.add(&Sums::new(space, &rows, gpu, query.k, &held).least(chain));
            passing.passes(&mut least);
            made.push(Team { path: path.to_vec(), chain, least });
        });
        plain.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (least, path, plan) in plain {
            let shape = || (plan.tile_text(), plan.threads());
            if found.beyond(least, &shape) || self.ends(found.is_empty()) {
                continue;
            }
            looked.fetch_add(1, Relaxed);
            if let Ok(ms) = kernel_ms(&plan, stream, &passing, gpu, &self.tiled) {
                found.take(ms, &shape, || Tree::of(path.iter().copied()));
            }
        }
        let teams = known.unwrap_or_else(|| Arc::new(made));
        if !self.stopped.load(Relaxed) {
            self.teams.keep(class, &teams);
        }
        let mut order: Vec<(f64, &Team<'_>)> = teams.iter().map(|team| (least_ms(&team.least, gpu), team)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (least, Team { path, chain, .. }) in order {
            let Some(rows) = Rows::on(path, stream) else { continue };
            let (per_block, threads) = (rows.rows_per_block(), rows.threads());
            let shape = || (per_block.to_string(), threads);
            if found.beyond(least, &shape) || self.ends(found.is_empty()) {
                continue;
            }
            looked.fetch_add(1, Relaxed);
            let mut sums = Sums::new(space, &rows, gpu, query.k, &held);
            let all = sums.of(*chain);
            for label in all.iter() {
                let mut work = rows.team();
                work.add(&sums.work(label));
                passing.passes(&mut work);
                if let Ok(ms) = work_ms(&work, threads, gpu) {
                    found.take(ms, &shape, || Tree::of(path.iter().copied().chain(sums.nodes(label))));
                }
            }
        }
        found.ranked()
    }

    /// What is known of a class of kernels that was not met before.
    fn unmet(&self, class: Id) -> Kernels {
        // What a contraction moves is counted with it.
        if self.space.choices(class).any(|node| matches!(node, StreamTerm::Tiled { .. })) {
            return Kernels::Best(self.query.k, Arc::new(self.kernel(class)));
        }
        let stream = &self.space.problem().works[usize::from(self.space.state(class).work)];
        let passing = Passing::of(stream, 0, stream.blocks.len());
        let mut work = KernelWork::default();
        passing.passes(&mut work);
        // Where all kernels are plain ones, none has less arithmetic than the least of them.
        let of = |node: &StreamTerm| {
            let kernel = KernelPlan::from_path([node], stream).ok()?;
            let KernelPlan::Plain(plan) = &kernel else { return None };
            work_ms(&passing.least(plan, stream), kernel.threads(), self.gpu).ok()
        };
        let all = self.space.choices(class).all(|node| matches!(node, StreamTerm::Plain { .. }));
        let plain = match all {
            true => self.space.choices(class).filter_map(of).fold(f64::INFINITY, f64::min),
            false => 0.0,
        };
        Kernels::Open(least_ms(&work, self.gpu).max(plain))
    }

    /// The best of a class of kernels; of one that was not looked at one that no other is faster than.
    fn of_kernels(&mut self, class: Id) -> Arc<Ranked> {
        if !self.kernels.contains_key(&class) {
            let kernels = self.unmet(class);
            self.kernels.insert(class, kernels);
        }
        match &self.kernels[&class] {
            Kernels::Open(ms) => Arc::new(vec![(*ms, Arc::new(Tree::Open(class)))]),
            Kernels::Best(_, best) => best.clone(),
        }
    }

    /// The best of a class above kernels.
    fn whole(&mut self, class: Id) -> Arc<Ranked> {
        if let Step::Kernel(_) = self.space.state(class).step {
            return self.of_kernels(class);
        }
        if let Some(known) = self.known.get(&class) {
            return known.clone();
        }
        let mut out: Ranked = Vec::new();
        let nodes: Vec<StreamTerm> = self.space.choices(class).cloned().collect();
        for node in nodes {
            let parts: Vec<Arc<Ranked>> =
                node.children().iter().map(|c| self.whole(self.space.egraph.find(*c))).collect();
            match parts.as_slice() {
                [one] => {
                    for (ms, tree) in one.iter() {
                        keep(&mut out, *ms, self.query, || Tree::over(&node, vec![tree.clone()]));
                    }
                }
                [first, second] => {
                    for (a, x) in first.iter() {
                        for (b, y) in second.iter() {
                            let tree = || Tree::over(&node, vec![x.clone(), y.clone()]);
                            if !keep(&mut out, a + b, self.query, tree) {
                                break;
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        let out = Arc::new(out);
        self.known.insert(class, out.clone());
        out
    }
}

/// A choice of rows and threads of a row kernel, the class of what is left, and the least work that can be.
struct Team<'s> {
    path: Vec<&'s StreamTerm>,
    chain: Id,
    least: KernelWork,
}

/// The choices of rows and threads of a space's row kernels, for whatever GPU.
#[derive(Default)]
pub struct Teams<'s>(Mutex<HashMap<Id, Arc<Vec<Team<'s>>>>>);

impl<'s> Teams<'s> {
    fn of(&self, class: Id) -> Option<Arc<Vec<Team<'s>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&class).cloned()
    }

    fn keep(&self, class: Id, teams: &Arc<Vec<Team<'s>>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(class, teams.clone());
    }
}

/// What a block covers, and its threads: of shapes that are to differ.
type Shape = (String, i64);

/// The best of a kernel so far.
struct Best {
    query: Query,
    all: Ranked,
    /// Where shapes are to differ, the best of each, and the time of the last of as many as are asked for.
    shapes: HashMap<Shape, (f64, Arc<Tree>)>,
    last_shape: Option<f64>,
}

impl Best {
    fn is_empty(&self) -> bool {
        self.all.is_empty() && self.shapes.is_empty()
    }

    /// Whether nothing that takes so long, or longer, is among them.
    fn beyond(&self, ms: f64, shape: &dyn Fn() -> Shape) -> bool {
        let Query { k, diverse, below_ms, .. } = self.query;
        let last = match diverse {
            true => {
                self.shapes.get(&shape()).map(|(known, _)| *known).into_iter().chain(self.last_shape).reduce(f64::min)
            }
            false if self.all.len() >= k => self.all.last().map_or(Some(0.0), |(known, _)| Some(*known)),
            false => None,
        };
        last.unwrap_or(below_ms).min(below_ms) <= ms
    }

    fn take(&mut self, ms: f64, shape: &dyn Fn() -> Shape, tree: impl FnOnce() -> Arc<Tree>) {
        if !self.query.diverse {
            keep(&mut self.all, ms, self.query, tree);
        } else if !self.beyond(ms, shape) {
            self.shapes.insert(shape(), (ms, tree()));
            if self.shapes.len() >= self.query.k {
                let mut times: Vec<f64> = self.shapes.values().map(|(known, _)| *known).collect();
                times.sort_by(f64::total_cmp);
                self.last_shape = times.get(self.query.k - 1).copied();
            }
        }
    }

    fn ranked(mut self) -> Ranked {
        let mut shapes: Vec<_> = self.shapes.into_iter().collect();
        shapes.sort_by(|a, b| a.1 .0.total_cmp(&b.1 .0).then_with(|| a.0.cmp(&b.0)));
        for (_, (ms, tree)) in shapes {
            keep(&mut self.all, ms, self.query, || tree);
        }
        self.all
    }
}

/// Takes up a term if it is among the best so far that are asked for; the first of equals stays.
fn keep(out: &mut Ranked, ms: f64, query: Query, tree: impl FnOnce() -> Arc<Tree>) -> bool {
    let at = out.partition_point(|(known, _)| *known <= ms);
    if at >= query.k || ms >= query.below_ms {
        return false;
    }
    out.insert(at, (ms, tree()));
    out.truncate(query.k);
    true
}

/// Every term of a class of kernels, as the nodes that stand over each other; of row kernels as far as rows and columns have threads,
/// with the class of what is left.
fn each_term<'s>(
    space: &'s Space<StreamTerm>,
    class: Id,
    path: &mut Vec<&'s StreamTerm>,
    found: &mut dyn FnMut(&[&'s StreamTerm], Option<Id>),
) {
    let class = space.egraph.find(class);
    if let Step::Chain(..) = space.state(class).step {
        return found(path, Some(class));
    }
    for node in space.choices(class) {
        path.push(node);
        match node.children() {
            [] => found(path, None),
            [body, ..] => each_term(space, *body, path, found),
        }
        path.pop();
    }
}
