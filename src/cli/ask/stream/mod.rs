//! Questions about the schedules of a streaming program.
mod fixed;
mod legal;
mod parse;
mod words;

pub(super) use parse::WORDS;

use super::answer::{only, NOT_HELD};
use super::Askable;
use crate::streaming::{self, StreamProblem};
use fixed::Fixed;
use satune_extract::Descriptor;
use satune_ir::term::stream::StreamTerm;
use satune_ir::term::{Schedule, Space};

impl Askable for StreamProblem {
    type Fixed = Fixed;

    fn question(&self, text: &str) -> Result<Fixed, String> {
        parse::parse(text, &self.streams)
    }

    fn fixed_of(&self, plan: &Schedule) -> Result<Fixed, String> {
        match plan {
            Schedule::Stream(plan) => Ok(Fixed::of(plan, &self.streams)),
            _ => Err("the schedule is one of a product, and the program one of streaming blocks".into()),
        }
    }

    fn outside(&self, fixed: &Fixed, _: &Descriptor) -> Vec<String> {
        let mut out = legal::outside(fixed, &streaming::menu());
        out.extend(legal::impossible(fixed, &self.streams));
        out
    }

    fn broken(&self, fixed: &Fixed, gpu: &Descriptor) -> Vec<String> {
        legal::broken(fixed, self, gpu)
    }

    fn missing(&self, space: &Space<StreamTerm>, plan: &Schedule) -> Option<String> {
        // Everything that a plan says is fixed, so what is left is the plan or nothing.
        let Schedule::Stream(own) = plan else { return None };
        let found = only(space, &Fixed::of(own, space.problem()));
        (found.as_ref() != Some(plan)).then(|| NOT_HELD.to_string())
    }
}
