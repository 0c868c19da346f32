//! The space of a streaming problem.
use super::StreamProblem;
use crate::explore::{limits, ExploreError};
use satune_extract::Descriptor;
use satune_ir::term::stream::StreamTerm;
use satune_ir::term::Space;
use satune_rewrites::space::stream::{rules, StreamMenu};
use satune_rewrites::space::{saturate, Fuel};

/// The space of a streaming problem on a GPU.
///
/// # Errors
/// When a rule is unsound, which is a bug.
pub fn space(problem: &StreamProblem, gpu: &Descriptor) -> Result<Space<StreamTerm>, ExploreError> {
    Ok(saturate(&problem.streams, limits(gpu), &menu(), &rules::all(), Fuel::default())?)
}

/// The sizes that its rules offer.
pub fn menu() -> StreamMenu {
    StreamMenu::default()
}
