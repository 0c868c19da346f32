//! Every phase of a run ends when it is told to, in the middle of whatever it does, and says nothing that it does not know. The
//! flag is raised after a number of questions, at no moment of a clock.
use crate::support::NO_LIMIT;
use satune::device::{Ask, Simulator};
use satune::explore::{ExploreError, Report, Request, Search};
use satune::measure::bench::{bench, BenchError, Wanted};
use satune::measure::{BestFirst, Record, StrategyKind};
use satune::progress::Progress;
use satune::scheduled::options;
use satune::store::Store;
use satune::workload::{Explorable, Workload};
use satune::{operators, simulate, source};
use satune_extract::{Counts, Descriptor, Query};
use satune_ir::interp::{self, Fault};
use satune_rewrites::space::Fuel;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Mutex;

fn h200() -> Descriptor {
    Descriptor::load("h200").unwrap()
}

/// Whether to go on: yes, so many times.
struct Questions {
    left: AtomicUsize,
    after: AtomicUsize,
}

impl Questions {
    fn answered(yes: usize) -> Questions {
        Questions { left: AtomicUsize::new(yes), after: AtomicUsize::new(0) }
    }

    fn go_on(&self) -> bool {
        let yes = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        self.after.fetch_add(usize::from(!yes), Ordering::Relaxed);
        yes
    }

    /// How often it was asked after it had said no.
    fn in_vain(&self) -> usize {
        self.after.load(Ordering::Relaxed)
    }
}

/// Raises its flag when it is asked for the n-th time in a step.
struct Ends {
    step: &'static str,
    now: Mutex<String>,
    questions: Questions,
    raised: AtomicBool,
}

impl Ends {
    fn within(step: &'static str, after: usize) -> Ends {
        let (now, questions) = (Mutex::default(), Questions::answered(after));
        Ends { step, now, questions, raised: AtomicBool::new(false) }
    }

    fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }
}

impl Progress for Ends {
    fn begin(&self, step: &str, _pieces: usize) {
        *self.now.lock().unwrap() = step.into();
    }

    fn stopped(&self) -> bool {
        let asked = self.now.lock().unwrap().contains(self.step);
        if asked && !self.questions.go_on() {
            self.raised.store(true, Ordering::Relaxed);
        }
        self.is_raised()
    }
}

fn request() -> Request {
    Request { gpu: h200(), top: 4, twins: true, limit: NO_LIMIT, compile: false, fuel: Fuel::default() }
}

fn explored(operator: &str, search: Option<Search<'_>>, ends: &Ends) -> Result<Report, ExploreError> {
    let found = source::load_work(operator).unwrap().explore_on(&request(), search, ends);
    assert!(ends.is_raised(), "{operator}: nobody asks while {}", ends.step);
    found
}

/// What an interrupted run may say.
fn honest(found: Result<Report, ExploreError>, may_say: &[&str], what: &str) {
    match found {
        Ok(report) => {
            assert!(!may_say.contains(&"saturating") && !report.candidates.is_empty(), "{what}");
            assert!(!report.proved_optimal, "{what}: proved");
            assert_eq!((report.space.schedules.as_str(), &report.bugs), ("", &Vec::new()), "{what}");
        }
        Err(ExploreError::Interrupted(step)) => {
            assert!(may_say.iter().any(|word| step.starts_with(word)), "{what}: {step}");
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test(slow)]
fn explorations_end_in_every_phase() {
    for operator in ["gemm:48,32,32,f32", "gemm:64,64,32,bf16,NT", "softmax:16,64,f32"] {
        for (phase, may_say) in [
            ("saturating", &["saturating"][..]),
            ("extracting", &["extracting", "checking"]),
            ("simulating", &["checking"]),
            ("counting", &[]),
        ] {
            for after in [0, 2] {
                let what = format!("{operator}, {phase}, {after}");
                honest(explored(operator, None, &Ends::within(phase, after)), may_say, &what);
            }
        }
    }
}

#[test]
fn measurements_end_while_candidates_are_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    for (after, strategy) in [(0, StrategyKind::Analytical), (40, StrategyKind::Random), (40, StrategyKind::Learned)] {
        let run = store.begin_run("test").unwrap();
        let mut device = Simulator::of(&h200());
        let search = Search {
            device: &mut device,
            record: Record { store: &mut store, run },
            strategy,
            trials: 4,
            seed: 1,
            fresh: true,
            ask: Ask::default(),
        };
        let found = explored("gemm:96,64,48,f32", Some(search), &Ends::within("simulating", after));
        honest(found, &["checking"], &format!("{strategy:?}"));
        let steps = store.steps(run).unwrap();
        assert!(steps.is_empty(), "an interruption is no candidate's fault: {}", steps.len());
    }
}

#[test]
fn a_benchmark_that_is_interrupted_has_no_figures() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    let work = |operator: &str| source::load_work(operator).unwrap();
    let wanted = Wanted { request: request(), library: false, ask: Ask::default() };
    let works = [work("rowsum:64,96,f32"), work("gemm:96,64,48,f32")];
    let mut told =
        |works: &[_], ends: &Ends| bench(works, &wanted, &mut Simulator::of(&h200()), &mut store, ends, &mut |_| {});
    let ends = Ends::within("gemm:96,64,48,f32: simulating", 2);
    let found = told(&works, &ends).unwrap();
    assert!(ends.is_raised());
    let names: Vec<&str> = found.rows.iter().map(|row| row.program.as_str()).collect();
    assert_eq!((names, found.failed.len()), (vec!["rowsum:64,96,f32"], 0));
    let alone = told(&works[1..], &Ends::within("simulating", 2));
    assert!(matches!(alone, Err(BenchError::Explore(_, ExploreError::Interrupted(_)))));
}

/// Notes the most that was told of each kind.
#[derive(Default)]
struct Told(Mutex<BTreeMap<String, u64>>);

impl Progress for Told {
    fn begin(&self, _step: &str, _pieces: usize) {}

    fn grown(&self, count: u64, what: &str) {
        let mut told = self.0.lock().unwrap();
        let most = told.entry(what.into()).or_default();
        *most = count.max(*most);
    }
}

#[test]
fn phases_without_an_end_in_sight_tell_how_far_they_are() {
    let told = Told::default();
    let report = source::load_work("gemm:512,512,512,f32").unwrap().explore_on(&request(), None, &told).unwrap();
    let told = told.0.into_inner().unwrap();
    let of = |what: &str| told.get(what).copied().unwrap_or(0);
    // Told every so many rounds, and of a thread's looks a thousand together.
    assert!((report.space.enodes as u64 / 2..=report.space.enodes as u64).contains(&of("e-nodes")), "{told:?}");
    assert!(of("choices looked at") >= 1024 && of("steps") >= 1024, "{told:?}");
}

/// A check is told to end at any of its questions: it never calls the candidate wrong, and what it had begun is not taken for
/// known later.
#[test(slow)]
fn an_interrupted_check_blames_nobody() {
    for operator in ["gemm:88,72,56,f32", "gemm:192,136,72,bf16,NT", "layernorm:40,72,f32"] {
        let work = source::load_work(operator).unwrap();
        let gpu = h200();
        let report = work.explore_on(&Request { top: 1, ..request() }, None, &satune::progress::Quiet).unwrap();
        let (plan, options) = (&report.candidates[0].plan, options(&gpu));
        let mut ended = 0;
        for yes in [0, 1, 2, 5, 20, 100, 1_000] {
            let questions = Questions::answered(yes);
            match work.workload().check(plan, &options, &|| questions.go_on()) {
                Ok(_) => assert_eq!(questions.in_vain(), 0, "{operator}: it went on"),
                Err(words) => {
                    assert_eq!(words, "interrupted", "{operator} after {yes}");
                    assert_eq!(questions.in_vain(), 1, "{operator}: it ends at once");
                    ended += 1;
                }
            }
        }
        assert!(ended > 2, "{operator}: {ended}");
        work.workload().check(plan, &options, &|| true).unwrap();
    }
}

#[test]
fn the_interpreter_and_the_simulator_end_at_once() {
    let problem = operators::parse("gemm:64,64,64,f32").unwrap();
    let inputs = interp::random_inputs(&problem.program, 1).unwrap();
    for yes in [0, 2] {
        let questions = Questions::answered(yes);
        let limits = interp::Options::default();
        let ended = interp::run_while(&problem.program, &inputs, &limits, &|| questions.go_on());
        assert_eq!((ended, questions.in_vain()), (Err(Fault::Stopped), 1));
    }
    let work = source::load_work("gemm:64,64,64,f32").unwrap();
    let plan = &work.explore_on(&request(), None, &satune::progress::Quiet).unwrap().candidates[0].plan;
    let made = problem.scheduled(plan, &options(&h200())).unwrap();
    let kernel = &made.module.kernels[0];
    for yes in [0, 7] {
        let questions = Questions::answered(yes);
        let mut values: Vec<Vec<f64>> = kernel.params().map(|(_, a)| vec![1.0; a.len as usize]).collect();
        let mut known: Vec<Vec<bool>> = kernel.params().map(|(_, a)| vec![!a.written; a.len as usize]).collect();
        let limits = simulate::Options::default();
        let ended = simulate::run_while(kernel, &mut values, &mut known, &limits, &|| questions.go_on()).unwrap_err();
        assert_eq!((ended.kind, questions.in_vain()), (simulate::FaultKind::Stopped, 1));
    }
}

/// A search or a count that was interrupted claims nothing.
#[test]
fn an_interrupted_search_proves_nothing() {
    let (problem, gpu) = (operators::parse("gemm:128,128,64,bf16,NT").unwrap(), h200());
    let space = problem.space(&gpu).unwrap();
    let query = Query { k: 3, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    for yes in [0, 1, 4, 16, 64] {
        let questions = Questions::answered(yes);
        let go_on = || questions.go_on();
        let mut list = BestFirst::of(&space, &gpu, query, &go_on);
        assert!(questions.in_vain() > 0, "it was faster than {yes} questions");
        assert!(!list.proved && list.least_ms() < f64::INFINITY, "{yes}");
        assert!(!list.spread_out().proved, "{yes}");
        let counting = Questions::answered(yes);
        assert_eq!(Counts::of_while(&space, &|| counting.go_on()).total(), 0u32.into());
    }
}
