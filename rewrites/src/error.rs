//! Refusals: what a primitive says when it does not apply, with TVM's short messages.
use satune_ir::{BlockId, VarId};
use std::fmt::{self, Display};
use std::ops::{Deref, DerefMut};

/// The class under which TVM reports the same refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// A legality condition of a primitive.
    ScheduleError,
    /// A wrong argument, or a handle whose loop or block no longer exists.
    ValueError,
    /// An index or key that is not there.
    IndexError,
    /// An argument of the wrong type.
    TypeError,
    /// A check that TVM makes without an error type of its own.
    InternalError,
}

impl Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Contents of a [`ScheduleError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The primitive that refused, `compute_at` for instance; empty until [`ScheduleError::within`] names it.
    pub primitive: &'static str,
    /// Class of the error.
    pub class: ErrorClass,
    /// The short message, TVM's word for word where TVM has one.
    pub fast: String,
    /// The same with names and numbers.
    pub detail: String,
    /// What would make the call legal; empty where nothing general can be said.
    pub remedy: String,
    /// Blocks to underline.
    pub blocks: Vec<BlockId>,
    /// Loops to underline.
    pub loops: Vec<VarId>,
}

/// Why a primitive is refused. Boxed, so that results stay small.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.fast)]
pub struct ScheduleError(Box<Refusal>);

impl Deref for ScheduleError {
    type Target = Refusal;
    fn deref(&self) -> &Refusal {
        &self.0
    }
}

impl DerefMut for ScheduleError {
    fn deref_mut(&mut self) -> &mut Refusal {
        &mut self.0
    }
}

impl ScheduleError {
    /// An error of any class; `fast` is taken as it is.
    pub fn of(class: ErrorClass, fast: impl Into<String>, detail: impl Into<String>) -> Self {
        ScheduleError(Box::new(Refusal {
            primitive: "",
            class,
            fast: fast.into(),
            detail: detail.into(),
            remedy: String::new(),
            blocks: Vec::new(),
            loops: Vec::new(),
        }))
    }

    /// A legality condition that does not hold; `message` is TVM's short message without its `ScheduleError: `.
    pub fn refused(message: impl Display, detail: impl Into<String>) -> Self {
        Self::of(ErrorClass::ScheduleError, format!("ScheduleError: {message}"), detail)
    }

    /// A wrong argument.
    pub fn value(message: impl Into<String>) -> Self {
        let message = message.into();
        Self::of(ErrorClass::ValueError, message.clone(), message)
    }

    /// A failed check that TVM reports as an internal error.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        Self::of(ErrorClass::InternalError, message.clone(), message)
    }

    /// Names the primitive, where no inner one did already.
    pub fn within(mut self, primitive: &'static str) -> Self {
        if self.0.primitive.is_empty() {
            self.0.primitive = primitive;
        }
        self
    }

    /// Underlines a block.
    pub fn at_block(mut self, block: BlockId) -> Self {
        self.0.blocks.push(block);
        self
    }

    /// Underlines a loop.
    pub fn at_loop(mut self, id: VarId) -> Self {
        self.0.loops.push(id);
        self
    }

    /// Says what would make the call legal.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = remedy.into();
        self
    }
}

/// Errors that several primitives share.
impl ScheduleError {
    /// The loop's handle is expired.
    pub fn loop_expired(id: VarId) -> Self {
        Self::value("The loop no longer exists in the IRModule")
            .at_loop(id)
            .remedy("get the loops again after a call that makes new ones")
    }

    /// The block's handle is expired.
    pub fn block_expired(id: BlockId) -> Self {
        Self::value("The block no longer exists in the IRModule")
            .at_block(id)
            .remedy("get the block again after a call that makes a new one")
    }

    /// The root block has no enclosing scope.
    pub fn root_block(id: BlockId) -> Self {
        Self::refused(
            "The primitive does not operate on the root block",
            "The primitive does not operate on the root block",
        )
        .at_block(id)
        .remedy("name a block below the root")
    }

    /// `read_index` (or `write_index`, where `write`) is not one of the block's regions.
    pub fn buffer_index(block: &satune_ir::Block, index: i64, write: bool) -> Self {
        let (word, past, count) =
            if write { ("write", "written", block.writes.len()) } else { ("read", "read", block.reads.len()) };
        Self::refused(
            format!(
                "The input `buffer_index` is out of range. It is required to be in range [0, num_{word}_regions) where \
                 `num_{word}_regions` is the number of buffer regions {past} by the block."
            ),
            format!(
                "The block {} has {count} {word} regions, so `buffer_index` is required to be in [0, {count}). However, \
                 the input `buffer_index` is {index}, which is out of the expected range.",
                block.name
            ),
        )
        .at_block(block.id).remedy("count the block's buffers from 0, in the order that the program prints")
    }
}
