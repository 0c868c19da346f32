//! The space of streaming programs: encoding, rules, and the trace of a plan.
mod condition;
mod derive;
mod encode;
mod menu;
mod read;
pub mod rules;
mod tiled;
mod works;

pub use condition::StreamCondition;
pub use derive::{becomes, trace};
pub(in crate::space) use encode::strictly;
pub use encode::{streams, streams_of, why_not_inlined, why_not_parted, StreamError};
pub use menu::StreamMenu;
pub(in crate::space) use read::takes;
pub use tiled::{contractions, Nests};

use super::Explored;
use satune_ir::term::stream::{Step, StreamState, StreamTerm, Streams};

impl Explored for StreamTerm {
    type Menu = StreamMenu;
    type Condition = StreamCondition;

    fn root(_: &Streams) -> StreamState {
        StreamState { work: 0, step: Step::Parts }
    }
}
