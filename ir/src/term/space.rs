//! The space of a contraction's schedules: an e-graph of terms, and what is known about how it was made.
use super::{state_of, Contraction, Place, Stage, State, Team, Term, Tile};
use egg::{Analysis, DidMerge, EGraph, Id, Language};
use rustc_hash::FxHashMap;
use std::time::Duration;

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
};

impl Analysis<Term> for Invariants {
    type Data = State;

    fn make(egraph: &mut EGraph<Term, Self>, enode: &Term, _id: Id) -> State {
        match state_of(enode, |id| Some(egraph[id].data)) {
            Ok(state) => state,
            Err(error) => {
                egraph.analysis.violations.push(error.to_string());
                ILL_FORMED
            }
        }
    }

    fn merge(&mut self, to: &mut State, from: State) -> DidMerge {
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

/// Every schedule of a contraction that the rules reach, under the limits of a GPU.
pub struct Space {
    /// The terms.
    pub egraph: EGraph<Term, Invariants>,
    /// The class of the whole problem.
    pub root: Id,
    /// What is scheduled.
    pub contraction: Contraction,
    /// Which rule made a node, by the node as it was added; for derivations.
    pub made_by: FxHashMap<Term, &'static str>,
    /// How it was made.
    pub report: SaturationReport,
}

impl Space {
    /// The nodes of a class that are (parts of) programs: all but unscheduled nests.
    pub fn choices(&self, class: Id) -> impl Iterator<Item = &Term> {
        self.egraph[class].iter().filter(|node| !matches!(node, Term::Nest(_)))
    }

    /// The invariant of a class.
    pub fn state(&self, class: Id) -> &State {
        &self.egraph[class].data
    }

    /// Classes in an order in which children come before their parents. Empty where there is a cycle, which no legal
    /// space has.
    pub fn bottom_up(&self) -> Vec<Id> {
        let mut order = Vec::with_capacity(self.egraph.number_of_classes());
        // 0: not seen, 1: its children are being visited, 2: done.
        let mut mark: FxHashMap<Id, u8> = FxHashMap::default();
        let mut stack = vec![(self.egraph.find(self.root), false)];
        while let Some((class, leaving)) = stack.pop() {
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
