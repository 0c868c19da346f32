//! A measured schedule, and what the model says of it under any rates.
use crate::cost::OfSchedule;
use crate::{stream, Descriptor, Infeasible};
use satune_ir::term::stream::Streams;
use satune_ir::term::{Contraction, Schedule};
use std::sync::Arc;

/// What was scheduled.
#[derive(Clone, Debug)]
pub enum Problem {
    /// A contraction.
    Contraction(Box<Contraction>),
    /// Streaming blocks.
    Streams(Streams),
}

/// One measured schedule.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Measurements of one shape have one name: they are ranked against each other.
    pub shape: String,
    /// The problem, which those of one shape share.
    pub problem: Arc<Problem>,
    /// Its schedule.
    pub plan: Schedule,
    /// Measured time, ms.
    pub ms: f64,
    /// Clock of the multiprocessors that was seen meanwhile, MHz.
    pub clock_mhz: Option<f64>,
}

/// A measurement ready to be predicted again and again.
pub(super) struct Row<'a> {
    pub shape: &'a str,
    pub prepared: Result<Model<'a>, Infeasible>,
    pub ms: f64,
    /// The clock that was seen over the descriptor's; 1 where none was.
    pub clock: f64,
}

impl Row<'_> {
    /// The time under the rates of a descriptor, ms.
    pub fn predict(&self, gpu: &Descriptor) -> Result<f64, Infeasible> {
        // Clocks vary by less from one repeat to the next.
        if (self.clock - 1.0).abs() > 2e-3 {
            let slower = Descriptor { clock_mhz: gpu.clock_mhz * self.clock, ..gpu.clone() };
            return Row::with(&self.prepared, &slower);
        }
        Row::with(&self.prepared, gpu)
    }

    fn with(prepared: &Result<Model<'_>, Infeasible>, gpu: &Descriptor) -> Result<f64, Infeasible> {
        match prepared {
            Ok(Model::Contraction(prepared)) => prepared.ms(gpu),
            Ok(Model::Stream(prepared)) => prepared.ms(gpu),
            Err(infeasible) => Err(infeasible.clone()),
        }
    }
}

/// What predicts a measurement.
pub(super) enum Model<'a> {
    Contraction(OfSchedule<'a>),
    Stream(stream::Prepared<'a>),
}

impl<'a> Model<'a> {
    pub fn of(m: &'a Measurement, gpu: &'a Descriptor) -> Result<Model<'a>, Infeasible> {
        match (&*m.problem, &m.plan) {
            (Problem::Contraction(c), schedule) => OfSchedule::of(schedule, c, gpu).map(Model::Contraction),
            (Problem::Streams(problem), Schedule::Stream(plan)) => {
                Ok(Model::Stream(stream::Prepared::of(plan, problem, gpu)))
            }
            (Problem::Streams(_), _) => Err(Infeasible::Kind),
        }
    }
}
