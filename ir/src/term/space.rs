//! The space of a problem's schedules: an e-graph of terms, and what is known about how it was made.
use super::{state_of, Contraction, Place, Stage, State, Team, Term, Tile};
use egg::{Analysis, DidMerge, EGraph, Id, Language};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// A language of schedules: terms whose every class has an invariant, and a leaf that stands for what is not scheduled.
pub trait TermLanguage: Language<Discriminant: Send + Sync> + std::fmt::Display + Send + Sync + 'static {
    /// The invariant of a class.
    type State: Copy + Eq + std::hash::Hash + std::fmt::Debug + Send + Sync + 'static;
    /// What is scheduled.
    type Problem: Clone + std::fmt::Debug + Send + Sync;
    /// The plain, unscheduled nest of a state.
    fn plain(state: Self::State) -> Self;
    /// Whether a node is such a nest.
    fn is_plain(&self) -> bool;
    /// The invariant of a node from those of its children. This is the meaning of well-formedness.
    ///
    /// # Errors
    /// When the node may not stand over such children; the text is for people.
    fn invariant(&self, child: &dyn Fn(Id) -> Option<Self::State>) -> Result<Self::State, String>;
    /// What stands in for the invariant of an ill-formed node, which is an error anyway.
    fn no_invariant() -> Self::State;
}

impl TermLanguage for Term {
    type State = State;
    type Problem = Contraction;

    fn plain(state: State) -> Term {
        Term::Nest(Box::new(state))
    }

    fn is_plain(&self) -> bool {
        matches!(self, Term::Nest(_))
    }

    fn invariant(&self, child: &dyn Fn(Id) -> Option<State>) -> Result<State, String> {
        state_of(self, child).map_err(|e| e.to_string())
    }

    fn no_invariant() -> State {
        ILL_FORMED
    }
}

/// The analysis that holds every class to its invariant. A violation is a bug in a rule: it is recorded here and makes
/// saturation fail.
#[derive(Clone, Debug, Default)]
pub struct Invariants {
    /// What was found to be wrong, for people.
    pub violations: Vec<String>,
}

const ILL_FORMED: State = State {
    team: Team::Thread,
    stage: Stage::Root,
    tile: Tile { m: 0, n: 0, k: 0 },
    a: Place::Global,
    b: Place::Global,
    c: Place::Global,
    swapped: false,
};

impl<T: TermLanguage> Analysis<T> for Invariants {
    type Data = T::State;

    fn make(egraph: &mut EGraph<T, Self>, enode: &T, _id: Id) -> T::State {
        match enode.invariant(&|id| Some(egraph[id].data)) {
            Ok(state) => state,
            Err(error) => {
                egraph.analysis.violations.push(error);
                T::no_invariant()
            }
        }
    }

    fn merge(&mut self, to: &mut T::State, from: T::State) -> DidMerge {
        if *to != from {
            self.violations.push(format!("merge of classes with different invariants: {to:?} and {from:?}"));
        }
        DidMerge(false, false)
    }
}

/// Why saturation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoppedBy {
    /// No rule has anything left to add.
    Saturated,
    /// A limit, by name and value ("nodes 2000000").
    Limit(String),
}

/// How a space was made.
#[derive(Clone, Debug)]
pub struct SaturationReport {
    /// Why it ended.
    pub stopped_by: StoppedBy,
    /// Rounds.
    pub rounds: usize,
    /// Wall-clock time.
    pub time: Duration,
    /// Nodes of the e-graph (unscheduled nests included).
    pub nodes: usize,
    /// Classes.
    pub classes: usize,
    /// For each rule: how often it added something.
    pub firings: Vec<(&'static str, u64)>,
}

/// What has many nodes, whose memory is given back behind its owner's back and a little later: to free millions takes a second,
/// in which nobody else gets memory quickly, and nobody who is told to end should wait for it.
pub struct Behind<T: Send + 'static> {
    held: Option<T>,
    nodes: usize,
}

/// Fewer nodes are freed at once.
const MANY: usize = 100_000;
/// How much later the others are.
const LATER: Duration = Duration::from_secs(1);

impl<T: Send + 'static> Behind<T> {
    /// Takes over what has so many nodes.
    pub fn of(held: T, nodes: usize) -> Behind<T> {
        Behind { held: Some(held), nodes }
    }
}

impl<T: Send + 'static> std::ops::Deref for Behind<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Send + 'static> Drop for Behind<T> {
    fn drop(&mut self) {
        let Some(held) = self.held.take().filter(|_| self.nodes >= MANY) else { return };
        // Where no thread can be had, it is freed here.
        let _ = std::thread::Builder::new().spawn(move || {
            std::thread::sleep(LATER);
            drop(held);
        });
    }
}

/// Every schedule of a problem that the rules reach, under the limits of a GPU.
pub struct Space<T: TermLanguage = Term> {
    /// The terms; parts of a space share them.
    pub egraph: Arc<Behind<EGraph<T, Invariants>>>,
    /// Where only a part of the terms is meant: the nodes of each class that are.
    pub(super) kept: Option<FxHashMap<Id, Vec<T>>>,
    /// The class of the whole problem.
    pub root: Id,
    /// What is scheduled (a contraction in the language that spaces began with; see [`Space::problem`]).
    pub contraction: T::Problem,
    /// Which rule made each node, by the number that the node was given: its place in the report's rules, or none.
    pub(super) made_by: Arc<Vec<Option<u8>>>,
    /// How it was made.
    pub report: SaturationReport,
}

impl<T: TermLanguage> Space<T> {
    /// All terms of an e-graph.
    pub fn of(
        egraph: EGraph<T, Invariants>,
        root: Id,
        problem: T::Problem,
        made_by: Vec<Option<u8>>,
        report: SaturationReport,
    ) -> Space<T> {
        let nodes = egraph.total_size();
        let (egraph, made_by) = (Arc::new(Behind::of(egraph, nodes)), Arc::new(made_by));
        Space { egraph, kept: None, root, contraction: problem, made_by, report }
    }

    /// What is scheduled.
    pub fn problem(&self) -> &T::Problem {
        &self.contraction
    }

    /// The nodes of a class that are (parts of) programs: all but unscheduled nests.
    pub fn choices(&self, class: Id) -> impl Iterator<Item = &T> {
        let nodes = match &self.kept {
            None => &self.egraph[class].nodes[..],
            Some(kept) => kept.get(&self.egraph.find(class)).map_or(&[][..], Vec::as_slice),
        };
        nodes.iter().filter(|node| !node.is_plain())
    }

    /// The rules that made some nodes, each of which is given with its class; for derivations. It looks at every node of the space.
    pub fn rules(&self, nodes: &[(Id, T)]) -> Vec<Option<&'static str>> {
        let mut wanted: FxHashMap<Id, Vec<usize>> = FxHashMap::default();
        nodes.iter().enumerate().for_each(|(at, (class, _))| wanted.entry(*class).or_default().push(at));
        let mut found = vec![None; nodes.len()];
        for ((id, node), rule) in self.egraph.nodes().iter().enumerate().zip(self.made_by.iter()) {
            let (Some(rule), Some(here)) = (rule, wanted.get(&self.egraph.find(Id::from(id)))) else { continue };
            let node = node.clone().map_children(|child| self.egraph.find(child));
            let name = self.report.firings.get(usize::from(*rule)).map(|(name, _)| *name);
            here.iter().filter(|at| nodes[**at].1 == node).for_each(|at| found[*at] = found[*at].or(name));
        }
        found
    }

    /// The invariant of a class.
    pub fn state(&self, class: Id) -> &T::State {
        &self.egraph[class].data
    }

    /// Classes in an order in which children come before their parents. Empty where there is a cycle, which no legal
    /// space has.
    pub fn bottom_up(&self) -> Vec<Id> {
        self.bottom_up_while(&|| true)
    }

    /// [`Space::bottom_up`], empty too where `go_on` says so, which is asked at every step.
    pub fn bottom_up_while(&self, go_on: &dyn Fn() -> bool) -> Vec<Id> {
        let mut order = Vec::with_capacity(self.egraph.number_of_classes());
        // 0: not seen, 1: its children are being visited, 2: done.
        let mut mark: FxHashMap<Id, u8> = FxHashMap::default();
        let mut stack = vec![(self.egraph.find(self.root), false)];
        while let Some((class, leaving)) = stack.pop() {
            if !go_on() {
                return Vec::new();
            }
            if leaving {
                mark.insert(class, 2);
                order.push(class);
                continue;
            }
            match mark.get(&class) {
                Some(2) => continue,
                Some(_) => return Vec::new(),
                None => {}
            }
            mark.insert(class, 1);
            stack.push((class, true));
            for node in self.choices(class) {
                for child in node.children() {
                    let child = self.egraph.find(*child);
                    match mark.get(&child) {
                        Some(2) => {}
                        Some(_) => return Vec::new(),
                        None => stack.push((child, false)),
                    }
                }
            }
        }
        order
    }
}
