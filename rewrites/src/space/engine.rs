//! Saturation: a worklist of (class, node) pairs; each rule sees each of them once.
use super::menu::{Fuel, Limits, Menu};
use super::Condition;
use rustc_hash::FxHashMap;
use satune_ir::term::{
    Behind, Contraction, Invariants, Place, SaturationReport, Space, Stage, State, StoppedBy, Team, Term, TermLanguage,
    Tile,
};
use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError, SendError};
use std::thread;
use std::time::{Duration, Instant};

type Graph<T> = egg::EGraph<T, Invariants>;

/// What saturation needs to know of a term language besides the terms.
pub trait Explored: TermLanguage {
    /// Sizes that the rules offer.
    type Menu;
    /// The side conditions of its rules.
    type Condition: Copy + PartialEq;
    /// The state of the whole problem.
    fn root(problem: &Self::Problem) -> Self::State;
}

impl Explored for Term {
    type Menu = Menu;
    type Condition = Condition;

    fn root(contraction: &Contraction) -> State {
        root_state(contraction)
    }
}

/// A rewrite rule: what a node of a class equals besides. One direction only; the side condition stands in `apply`.
pub trait Rule<T: Explored = Term>: Sync {
    /// The primitive (and variant) that it stands for.
    fn name(&self) -> &'static str;
    /// Adds to `engine` every term that equals `node`, which is in a class of invariant `state`.
    fn apply(&self, engine: &mut Engine<'_, T>, node: &T, state: &T::State);
}

/// What went wrong while a space was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaturationError {
    /// A rule merged what is not equal, or made a term that is not well formed: a bug.
    #[error("rule `{rule}` is unsound: {violation}")]
    Unsound {
        /// The rule.
        rule: &'static str,
        /// What the invariant check says.
        violation: String,
    },
    /// It was told to end.
    #[error("saturation was interrupted at {nodes} e-nodes, before its space was whole")]
    Interrupted {
        /// Made by then.
        nodes: usize,
    },
    /// There is no schedule at all within the limits.
    #[error("no schedule of this problem fits the limits of the GPU")]
    Empty,
}

/// What is said of a side condition: whether it is met, or what does not hold.
pub trait Verdict {
    /// Whether it is met.
    fn is_met(&self) -> bool;
}

impl Verdict for bool {
    fn is_met(&self) -> bool {
        *self
    }
}

impl<E> Verdict for Result<(), E> {
    fn is_met(&self) -> bool {
        self.is_ok()
    }
}

/// A rule's view of the e-graph.
pub struct Engine<'a, T: Explored = Term> {
    egraph: Graph<T>,
    /// What is scheduled (a contraction in the language that spaces began with; see [`Engine::problem`]).
    pub contraction: &'a T::Problem,
    /// Limits of the GPU.
    pub limits: Limits,
    /// Sizes on offer.
    pub menu: &'a T::Menu,
    queue: VecDeque<(egg::Id, T)>,
    nests: FxHashMap<T::State, egg::Id>,
    made_by: Vec<Option<u8>>,
    class: egg::Id,
    rule: u8,
    added: u64,
    removed: Option<T::Condition>,
}

impl<'a, T: Explored> Engine<'a, T> {
    /// What is scheduled.
    pub fn problem(&self) -> &'a T::Problem {
        self.contraction
    }

    /// Whether a side condition is met; always so where a test has removed it.
    pub fn holds(&self, condition: T::Condition, verdict: impl Verdict) -> bool {
        verdict.is_met() || self.removed == Some(condition)
    }

    /// The class of everything that equals the plain nest of a state.
    pub fn nest(&mut self, state: T::State) -> egg::Id {
        if let Some(id) = self.nests.get(&state) {
            return *id;
        }
        let node = T::plain(state);
        let id = self.egraph.add(node.clone());
        self.nests.insert(state, id);
        self.queue.push_back((id, node));
        id
    }

    /// A term below the one under consideration.
    pub fn term(&mut self, node: T) -> egg::Id {
        let before = self.egraph.total_size();
        let id = self.egraph.add(node.clone());
        if self.egraph.total_size() > before {
            // A new node is a class of its own, whose number is the node's.
            self.made_by.resize(usize::from(id), None);
            self.made_by.push(Some(self.rule));
            self.queue.push_back((id, node));
        }
        id
    }

    /// Ends here; nobody waits until the nodes are freed.
    fn interrupted(self) -> SaturationError {
        let nodes = self.egraph.total_size();
        drop(Behind::of((self.egraph, self.queue), nodes));
        SaturationError::Interrupted { nodes }
    }

    /// The nodes of a class, as known now.
    pub fn nodes(&self, class: egg::Id) -> Vec<T> {
        self.egraph[class].nodes.clone()
    }

    /// The invariant of a class.
    pub fn state(&self, class: egg::Id) -> T::State {
        self.egraph[class].data
    }

    /// States that the node under consideration equals this one.
    pub fn equals(&mut self, node: T) {
        let id = self.term(node);
        if self.egraph.union(self.class, id) {
            self.added += 1;
        }
    }
}

/// Builds the space of a problem's schedules: starts from the plain nest, applies the rules until nothing is added
/// or the fuel is spent.
///
/// # Errors
/// When a rule breaks a class's invariant (a bug), or when no schedule fits.
pub fn saturate<T: Explored>(
    contraction: &T::Problem,
    limits: Limits,
    menu: &T::Menu,
    rules: &[Box<dyn Rule<T>>],
    fuel: Fuel,
) -> Result<Space<T>, SaturationError> {
    saturate_while(contraction, limits, menu, rules, fuel, &|_| true)
}

/// [`saturate`] for as long as `go_on` says so, which is told how many e-nodes there are.
///
/// # Errors
/// As [`saturate`], and [`SaturationError::Interrupted`].
pub fn saturate_while<T: Explored>(
    contraction: &T::Problem,
    limits: Limits,
    menu: &T::Menu,
    rules: &[Box<dyn Rule<T>>],
    fuel: Fuel,
    go_on: &dyn Fn(usize) -> bool,
) -> Result<Space<T>, SaturationError> {
    run(contraction, (limits, menu, rules), fuel, None, go_on)
}

/// [`saturate`] with one side condition taken out of the rules. The space is wrong; tests show that this is noticed.
///
/// # Errors
/// As [`saturate`].
pub fn saturate_without<T: Explored>(
    contraction: &T::Problem,
    limits: Limits,
    menu: &T::Menu,
    rules: &[Box<dyn Rule<T>>],
    fuel: Fuel,
    removed: Option<T::Condition>,
) -> Result<Space<T>, SaturationError> {
    run(contraction, (limits, menu, rules), fuel, removed, &|_| true)
}

/// What a space is made from: limits of the GPU, sizes on offer, rules.
type From<'a, T> = (Limits, &'a <T as Explored>::Menu, &'a [Box<dyn Rule<T>>]);

fn run<T: Explored>(
    contraction: &T::Problem,
    (limits, menu, rules): From<'_, T>,
    fuel: Fuel,
    removed: Option<T::Condition>,
    go_on: &dyn Fn(usize) -> bool,
) -> Result<Space<T>, SaturationError> {
    let start = Instant::now();
    let mut engine = Engine {
        egraph: Graph::<T>::new(Invariants::default()),
        contraction,
        limits,
        menu,
        queue: VecDeque::new(),
        nests: FxHashMap::default(),
        made_by: Vec::new(),
        class: egg::Id::from(0),
        rule: 0,
        added: 0,
        removed,
    };
    let root = engine.nest(T::root(contraction));
    let mut firings: Vec<(&'static str, u64)> = rules.iter().map(|r| (r.name(), 0)).collect();
    let mut stopped_by = StoppedBy::Saturated;
    let mut rounds = 0;
    while let Some((class, node)) = engine.queue.pop_front() {
        rounds += 1;
        if engine.egraph.total_size() > fuel.nodes {
            stopped_by = StoppedBy::Limit(format!("nodes {}", fuel.nodes));
            break;
        }
        if rounds % 256 == 0 && !go_on(engine.egraph.total_size()) {
            return Err(engine.interrupted());
        }
        engine.class = engine.egraph.find(class);
        let state = engine.egraph[engine.class].data;
        for (number, (rule, firing)) in rules.iter().zip(&mut firings).enumerate() {
            engine.rule = number as u8;
            let before = engine.added;
            rule.apply(&mut engine, &node, &state);
            firing.1 += engine.added - before;
            if let Some(violation) = engine.egraph.analysis.violations.first() {
                return Err(SaturationError::Unsound { rule: rule.name(), violation: violation.clone() });
            }
        }
    }
    let Engine { egraph, made_by, queue, .. } = engine;
    let nodes = egraph.total_size();
    drop(Behind::of(queue, nodes));
    let egraph = finished(egraph, &|| go_on(nodes)).ok_or(SaturationError::Interrupted { nodes })?;
    if let Some(violation) = egraph.analysis.violations.first() {
        return Err(SaturationError::Unsound { rule: "congruence", violation: violation.clone() });
    }
    let report = SaturationReport {
        stopped_by,
        rounds,
        time: start.elapsed(),
        nodes: egraph.total_number_of_nodes(),
        classes: egraph.number_of_classes(),
        firings,
    };
    let root = egraph.find(root);
    Ok(Space::of(egraph, root, contraction.clone(), made_by, report))
}

/// How often it is asked whether to go on while a thread is waited for.
const ASK: Duration = Duration::from_millis(20);

/// An e-graph whose congruence is restored; none where `go_on` says so first. This takes seconds of millions of nodes, in one call that cannot be interrupted: a thread does it, and is left
/// alone with it where nobody wants it any more.
fn finished<T: Explored>(mut egraph: Graph<T>, go_on: &dyn Fn() -> bool) -> Option<Graph<T>> {
    let nodes = egraph.total_size();
    let (done, result) = mpsc::channel();
    let worker = thread::spawn(move || {
        egraph.rebuild();
        // Where nobody waits any more, it comes back.
        if let Err(SendError(unwanted)) = done.send(egraph) {
            drop(Behind::of(unwanted, nodes));
        }
    });
    loop {
        match result.recv_timeout(ASK) {
            Ok(finished) => return Some(finished),
            Err(RecvTimeoutError::Timeout) if go_on() => {}
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => return None,
            },
        }
    }
}

/// The state of the whole problem.
pub fn root_state(contraction: &Contraction) -> State {
    use satune_ir::term::Axis;
    State {
        team: Team::Grid,
        stage: Stage::Root,
        tile: Tile { m: contraction.extent(Axis::M), n: contraction.extent(Axis::N), k: contraction.extent(Axis::K) },
        a: Place::Global,
        b: Place::Global,
        c: Place::Global,
        swapped: false,
    }
}
