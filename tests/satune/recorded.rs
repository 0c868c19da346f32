//! The best schedules of 60 programs of all kinds, types and GPUs, as they were recorded: what a change of the house may not lose.
//! `tests/recorded/programs.toml` names the programs, and each has a file with its eight best as traces, with what the model
//! predicts. Where the model changes, they are recorded anew:
//!
//! ```text
//! cargo test --test satune recorded::record -- --ignored
//! ```
use crate::support::{some_of, NO_LIMIT};
use satune::source::{self, Work};
use satune::workload::Explorable;
use satune_extract::{Descriptor, Query, Searched};
use satune_ir::term::StoppedBy;
use satune_rewrites::replay::replay_strict;
use satune_rewrites::space::read_plan;
use satune_rewrites::Trace;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// How many programs a run of the test looks at.
const FEW: usize = 4;
const BEST: usize = 8;

/// A program and a GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Asked {
    /// An operator, or the name of a file of `tests/recorded/programs`.
    program: String,
    gpu: String,
}

#[derive(Debug, Deserialize)]
struct All {
    program: Vec<Asked>,
}

/// What was found of one.
#[derive(Debug, Serialize, Deserialize)]
struct Recorded {
    program: String,
    gpu: String,
    /// The fastest first.
    best: Vec<Best>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Best {
    predicted_ms: f64,
    trace: Trace,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded")
}

fn all() -> Vec<Asked> {
    let text = std::fs::read_to_string(folder().join("programs.toml")).unwrap();
    toml::from_str::<All>(&text).unwrap().program
}

impl Asked {
    fn file(&self) -> PathBuf {
        let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = self.program.trim_end_matches(".py").chars().map(safe).collect();
        folder().join(format!("{name}.{}.json", self.gpu))
    }

    fn work(&self) -> Work {
        match self.program.ends_with(".py") {
            true => source::load_work(&folder().join("programs").join(&self.program).display().to_string()).unwrap(),
            false => source::operator(&self.program).unwrap(),
        }
    }

    /// The best schedules of today.
    fn explored(&self) -> Recorded {
        let best = match &self.work() {
            Work::Contraction(problem) => best(&**problem, &self.gpu),
            Work::Streams(problem) => best(&**problem, &self.gpu),
        };
        Recorded { program: self.program.clone(), gpu: self.gpu.clone(), best }
    }
}

fn best<W: Explorable>(problem: &W, gpu: &str) -> Vec<Best> {
    let gpu = Descriptor::load(gpu).unwrap();
    let space = problem.space(&gpu).unwrap();
    assert!(space.report.stopped_by == StoppedBy::Saturated, "{}", problem.name());
    let query = Query { k: BEST, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    let found = W::Term::best_while(&space, &gpu, query, &|| true);
    let of = |c: satune_extract::Candidate<W::Term>| Best { predicted_ms: c.cost.ms, trace: problem.trace(&c.plan) };
    found.candidates.into_iter().map(of).collect()
}

#[test]
#[ignore = "writes what the other test compares with"]
fn record() {
    for asked in all() {
        let recorded = asked.explored();
        assert!(!recorded.best.is_empty(), "{asked:?}");
        let text = serde_json::to_string(&recorded).unwrap();
        std::fs::write(asked.file(), text + "\n").unwrap();
        println!("{} on {}: {:.4} ms", asked.program, asked.gpu, recorded.best[0].predicted_ms);
    }
}

/// Some of them each run, others with another `SATUNE_SEED`.
#[test]
fn the_best_are_no_worse_than_they_were() {
    let all = all();
    assert_eq!(all.len(), 60);
    assert!(all.iter().all(|asked| asked.file().exists()));
    for asked in some_of(all, FEW) {
        let text = std::fs::read_to_string(asked.file()).unwrap();
        let recorded: Recorded = serde_json::from_str(&text).unwrap();
        let today = asked.explored();
        assert!(today.best.len() >= recorded.best.len(), "{asked:?}");
        for (number, (now, then)) in today.best.iter().zip(&recorded.best).enumerate() {
            let (now, then) = (now.predicted_ms, then.predicted_ms);
            assert!(now <= then * (1.0 + 1e-9), "{asked:?}: best {number} takes {now} ms, was {then} ms");
        }
        // What was legal is legal.
        let work = asked.work();
        let source = work.workload().program();
        let replayed = |best: &Best| {
            let (results, made) = replay_strict(source, &best.trace.calls).unwrap();
            let refused = results.into_iter().find_map(Result::err);
            assert!(refused.is_none(), "{asked:?}: {}: {refused:?}", best.trace.to_python("main"));
            made
        };
        recorded.best.iter().for_each(|best| drop(replayed(best)));
        // What is a plan is read as one from its program.
        let Some(contraction) = work.workload().contraction() else { continue };
        for (number, best) in today.best.iter().enumerate() {
            let read = read_plan(replayed(best).program(), source, contraction);
            assert!(read.is_ok(), "{asked:?}: trace {number}: {read:?}");
        }
    }
}
