//! What can be wrong with a program, in words.
use crate::syntax::{Line, Space};
use std::fmt;

/// A thread: its block and its number within the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// Block: x, y, z.
    pub block: [u32; 3],
    /// Thread of the block, linear.
    pub thread: u32,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        match (y, z) {
            (0, 0) => write!(f, "thread {} of block {x}", self.thread),
            _ => write!(f, "thread {} of block ({x}, {y}, {z})", self.thread),
        }
    }
}

/// An instruction of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Where it stands.
    pub line: Line,
    /// As written.
    pub text: String,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`", self.line, self.text)
    }
}

/// How an instruction touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Touch {
    /// Reads.
    Reads,
    /// Writes.
    Writes,
    /// Reads and writes at once.
    Updates,
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Touch::Reads => "reads",
            Touch::Writes => "writes",
            Touch::Updates => "updates",
        })
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// Two accesses, one of them a write, with nothing that orders them.
    #[error("data race in {space} memory at {place}: {touch} here, and {other} {other_touch} it ({other_site}) with no synchronisation between the two")]
    Race {
        /// Which memory.
        space: Space,
        /// Where: a variable and an offset.
        place: String,
        /// What this instruction does.
        touch: Touch,
        /// The other thread.
        other: Thread,
        /// What it does.
        other_touch: Touch,
        /// Its instruction.
        other_site: Site,
    },
    /// An asynchronous copy that nobody has waited for.
    #[error("missing wait: {touch} {space} memory at {place}, which an asynchronous operation of {other} ({other_site}) has not finished with; nothing has waited for it")]
    NotWaited {
        /// Which memory.
        space: Space,
        /// Where.
        place: String,
        /// What this instruction does.
        touch: Touch,
        /// Who started the operation.
        other: Thread,
        /// Its instruction.
        other_site: Site,
    },
    /// Generic writes that the asynchronous proxy need not see.
    #[error("missing fence.proxy.async: an asynchronous operation touches {space} memory at {place}, which {other} {other_touch} by a usual instruction ({other_site}) with no proxy fence after it")]
    NotFenced {
        /// Which memory.
        space: Space,
        /// Where.
        place: String,
        /// Who touched it.
        other: Thread,
        /// How.
        other_touch: Touch,
        /// Its instruction.
        other_site: Site,
    },
    /// Outside of every variable or allocation.
    #[error("out of bounds: {touch} {bytes} bytes of {space} memory at {place}")]
    OutOfBounds {
        /// Which memory.
        space: Space,
        /// Which address, in words.
        place: String,
        /// Reads or writes.
        touch: Touch,
        /// How many bytes.
        bytes: u64,
    },
    /// An address that the access's width does not divide.
    #[error("misaligned: {touch} {bytes} bytes of {space} memory at {place}, which is no multiple of {align}")]
    Misaligned {
        /// Which memory.
        space: Space,
        /// Where.
        place: String,
        /// Reads or writes.
        touch: Touch,
        /// How many bytes.
        bytes: u64,
        /// What must divide the address.
        align: u64,
    },
    /// A read of what nobody wrote.
    #[error("reads {space} memory at {place}, which nothing has written")]
    Unwritten {
        /// Which memory.
        space: Space,
        /// Where.
        place: String,
    },
    /// A write into what the program only reads.
    #[error("writes {place}, which is an input")]
    ReadOnly {
        /// Where.
        place: String,
    },
    /// Lanes of a warp at different places where all must be at one.
    #[error("divergent: {here} of the warp's threads are here, {elsewhere}; all must execute it together")]
    Divergent {
        /// How many are here.
        here: u32,
        /// Where others are.
        elsewhere: String,
    },
    /// Nobody can go on.
    #[error("hang: nobody can go on; {waiting}")]
    Hang {
        /// Who waits for what.
        waiting: String,
    },
    /// The program did not end in time.
    #[error("no end after {instructions} thread instructions")]
    Budget {
        /// How many were executed.
        instructions: u64,
    },
    /// The caller told it to end: nothing is wrong.
    #[error("interrupted")]
    Stopped,
    /// `trap`, or an assertion.
    #[error("{0}")]
    Trap(String),
    /// What the architecture says has no defined result.
    #[error("{0}")]
    Undefined(String),
    /// What this executor does not know.
    #[error("not executed: {0}")]
    Unsupported(String),
}

/// A fault: what, who, where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// What is wrong.
    pub kind: Box<FaultKind>,
    /// The instruction.
    pub site: Option<Site>,
    /// A thread that does it.
    pub thread: Option<Thread>,
}

impl Fault {
    /// A fault of no single instruction.
    pub fn of_program(kind: FaultKind) -> Fault {
        Fault { kind: Box::new(kind), site: None, thread: None }
    }

    /// Whether it says that the executor does not know an instruction, not that the program is wrong.
    pub fn unsupported(&self) -> bool {
        matches!(*self.kind, FaultKind::Unsupported(_))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.site, &self.thread) {
            (Some(site), Some(thread)) => write!(f, "{site}: {thread}: {}", self.kind),
            (Some(site), None) => write!(f, "{site}: {}", self.kind),
            _ => write!(f, "{}", self.kind),
        }
    }
}
