//! Term languages whose spaces can be searched for the fastest programs: what is above extraction (measuring, strategies,
//! reports) is written once for all of them.
use crate::calibrate::{calibrate, Measurement, Problem};
use crate::stream::{best_stream_knowing, predict_stream, Teams};
use crate::{best_knowing, predict, Cost, Descriptor, Extraction, Infeasible, Known, Query};
use egg::RecExpr;
use satune_ir::term::stream::{StreamPlan, StreamTerm, Streams};
use satune_ir::term::{Contraction, Incomplete, Schedule, Space, Term, TermLanguage};
use std::sync::Arc;

/// A language of schedules with a cost and a search.
pub trait Searched: TermLanguage {
    /// Reads the decisions off a complete term.
    ///
    /// # Errors
    /// When something of the term is not scheduled, or the term is none of a program.
    fn schedule(term: &RecExpr<Self>, problem: &Self::Problem) -> Result<Schedule, Incomplete>;

    /// Predicts the time of a schedule.
    ///
    /// # Errors
    /// When the GPU cannot run it, or the schedule is of another language.
    fn predict(schedule: &Schedule, problem: &Self::Problem, gpu: &Descriptor) -> Result<Cost, Infeasible>;

    /// What searches of one space find out that depends on no GPU.
    type Known<'s>: Sync;

    /// Nothing yet.
    fn known(space: &Space<Self>) -> Self::Known<'_>;

    /// The k best programs of a space on a GPU; ended early when `go_on` says so, then as if the time were over. `known` goes
    /// from search to search.
    fn best_knowing<'s>(
        space: &'s Space<Self>,
        known: &Self::Known<'s>,
        gpu: &Descriptor,
        query: Query,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Extraction<Self>;

    /// [`Searched::best_knowing`] for a single search.
    fn best_while(
        space: &Space<Self>,
        gpu: &Descriptor,
        query: Query,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Extraction<Self> {
        Self::best_knowing(space, &Self::known(space), gpu, query, go_on)
    }

    /// The descriptor fitted to what schedules of one problem took, ms; as it is where that is too little.
    fn fitted(gpu: &Descriptor, problem: &Self::Problem, measured: &[(&Schedule, f64)]) -> Descriptor;
}

impl Searched for Term {
    fn schedule(term: &RecExpr<Term>, problem: &Contraction) -> Result<Schedule, Incomplete> {
        Schedule::from_term(term, problem)
    }

    fn predict(schedule: &Schedule, problem: &Contraction, gpu: &Descriptor) -> Result<Cost, Infeasible> {
        predict(schedule, problem, gpu)
    }

    type Known<'s> = Known<'s>;

    fn known(space: &Space) -> Known<'_> {
        Known::new(space)
    }

    fn best_knowing<'s>(
        space: &'s Space,
        known: &Known<'s>,
        gpu: &Descriptor,
        query: Query,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Extraction {
        best_knowing(space, known, gpu, query, go_on)
    }

    fn fitted(gpu: &Descriptor, problem: &Contraction, measured: &[(&Schedule, f64)]) -> Descriptor {
        fitted(gpu, Problem::Contraction(Box::new(problem.clone())), measured)
    }
}

/// The descriptor fitted to measurements of one problem; as it is where they are too few.
fn fitted(gpu: &Descriptor, problem: Problem, measured: &[(&Schedule, f64)]) -> Descriptor {
    let problem = Arc::new(problem);
    let row = |(plan, ms): &(&Schedule, f64)| Measurement {
        shape: String::new(),
        problem: problem.clone(),
        plan: (*plan).clone(),
        ms: *ms,
        clock_mhz: None,
    };
    let rows: Vec<Measurement> = measured.iter().filter(|(_, ms)| ms.is_finite() && *ms > 0.0).map(row).collect();
    calibrate(gpu, &rows).map_or_else(|_| gpu.clone(), |fitted| fitted.descriptor)
}

impl Searched for StreamTerm {
    fn schedule(term: &RecExpr<StreamTerm>, problem: &Streams) -> Result<Schedule, Incomplete> {
        StreamPlan::from_term(term, problem).map(Schedule::Stream)
    }

    fn predict(schedule: &Schedule, problem: &Streams, gpu: &Descriptor) -> Result<Cost, Infeasible> {
        predict_stream(schedule, problem, gpu)
    }

    type Known<'s> = Teams<'s>;

    fn known(_space: &Space<StreamTerm>) -> Teams<'_> {
        Teams::default()
    }

    fn best_knowing<'s>(
        space: &'s Space<StreamTerm>,
        known: &Teams<'s>,
        gpu: &Descriptor,
        query: Query,
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Extraction<StreamTerm> {
        best_stream_knowing(space, known, gpu, query, go_on)
    }

    fn fitted(gpu: &Descriptor, problem: &Streams, measured: &[(&Schedule, f64)]) -> Descriptor {
        fitted(gpu, Problem::Streams(problem.clone()), measured)
    }
}
