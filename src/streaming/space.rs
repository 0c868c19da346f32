//! The space of a streaming problem.
use super::StreamProblem;
use crate::explore::{limits, ExploreError};
use satune_extract::Descriptor;
use satune_ir::term::stream::StreamTerm;
use satune_ir::term::Space;
use satune_rewrites::space::stream::{rules, StreamMenu};
use satune_rewrites::space::{saturate_while, Fuel};

/// The space of a streaming problem on a GPU.
///
/// # Errors
/// When a rule is unsound, which is a bug.
pub fn space(problem: &StreamProblem, gpu: &Descriptor) -> Result<Space<StreamTerm>, ExploreError> {
    space_while(problem, gpu, Fuel::default(), &|| true)
}

/// [`space`] of at most so many nodes, for as long as `go_on` says so.
///
/// # Errors
/// As [`space`], and when it is told to end.
pub fn space_while(
    problem: &StreamProblem,
    gpu: &Descriptor,
    fuel: Fuel,
    go_on: &dyn Fn() -> bool,
) -> Result<Space<StreamTerm>, ExploreError> {
    Ok(saturate_while(&problem.streams, limits(gpu), &menu(), &rules::all(), fuel, go_on)?)
}

/// The sizes that its rules offer.
pub fn menu() -> StreamMenu {
    StreamMenu::default()
}
