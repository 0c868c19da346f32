//! The space of streaming programs: encoding, rules, and the trace of a plan.
mod blocks;
mod condition;
mod derive;
mod encode;
mod menu;
mod programs;
mod read;
pub mod rules;
mod steps;
mod tiled;
mod works;

pub(in crate::space) use blocks::strictly;
pub use condition::StreamCondition;
pub use derive::trace;
pub use encode::{streams, streams_of};
pub use menu::StreamMenu;
pub use read::StreamError;
pub(in crate::space) use read::{knows, sums_rows, takes};
pub use steps::{why_not_cascaded, why_not_inlined, why_not_parted};
pub use tiled::contractions;

use super::Explored;
use satune_ir::term::stream::{Step, StreamState, StreamTerm, Streams};

impl Explored for StreamTerm {
    type Menu = StreamMenu;
    type Condition = StreamCondition;

    fn root(_: &Streams) -> StreamState {
        StreamState { work: 0, step: Step::Parts }
    }
}
