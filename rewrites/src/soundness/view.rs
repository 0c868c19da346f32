//! A scheduled program as the rules see it, and how they refuse it.
use super::samples::Samples;
use super::walk::Walk;
use crate::schedule::Result;
use crate::ScheduleError;
use satune_ir::{BlockId, BufferId, Program};
use std::collections::HashSet;

/// What a program must not do.
pub(super) type Rule = for<'a> fn(&View<'a, '_>, &mut Samples<'a>) -> Result<()>;

/// A program with its accesses.
pub(super) struct View<'a, 'v> {
    pub program: &'a Program,
    pub walk: &'v Walk<'a>,
    /// Parameters that the source reads before it writes them.
    pub read_first: HashSet<BufferId>,
}

impl<'a, 'v> View<'a, 'v> {
    pub fn of(program: &'a Program, walk: &'v Walk<'a>, source: &Walk) -> View<'a, 'v> {
        let first = |b: &BufferId| source.written_first(*b) == Some(false);
        View { program, walk, read_first: program.params.iter().copied().filter(first).collect() }
    }
}

/// The refusal of a program, by what its block does.
pub(super) fn unsound(why: String, block: Option<BlockId>) -> ScheduleError {
    let mut error = ScheduleError::refused("The program would mean something else", why).remedy(
        "leave the call out, or make it before the calls that split, guard or move the block; TVM takes it as it is",
    );
    error.blocks.extend(block);
    error
}
