//! Why a program cannot be run to its end.
use std::fmt;

/// Where a program was when it went wrong: the innermost block instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Name of the block.
    pub block: String,
    /// Its iterators and their values.
    pub iterators: Vec<(String, i64)>,
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block \"{}\"", self.block)?;
        for (i, (name, value)) in self.iterators.iter().enumerate() {
            write!(f, "{}{name} = {value}", if i == 0 { " at " } else { ", " })?;
        }
        Ok(())
    }
}

/// What is done to an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written.
    Written,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Access::Read { "read" } else { "written" })
    }
}

/// Why a program cannot be run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It was told to end.
    #[error("interrupted")]
    Stopped,
    /// An element is read that nothing has written.
    #[error("{place}: {buffer}{index:?} is read, but nothing has written it")]
    Unwritten {
        /// Name of the buffer.
        buffer: String,
        /// Which element.
        index: Vec<i64>,
        /// Where.
        place: Box<Instance>,
    },
    /// An element outside a buffer is accessed.
    #[error("{place}: {buffer}{index:?} is outside the buffer, whose shape is {}", Tuple(shape))]
    OutOfBounds {
        /// Name of the buffer.
        buffer: String,
        /// Which element.
        index: Vec<i64>,
        /// Shape of the buffer.
        shape: Vec<i64>,
        /// Where.
        place: Box<Instance>,
    },
    /// A `match_buffer` names a region that is not within its buffer or not of the view's shape.
    #[error("{place}: {view} stands for {region}, {reason}")]
    View {
        /// Name of the view.
        view: String,
        /// The region, as text.
        region: String,
        /// What is wrong with it.
        reason: String,
        /// Where.
        place: Box<Instance>,
    },
    /// A block accesses what it does not declare.
    #[error("{place}: {buffer}{index:?} is {access}, but block \"{block}\" declares {declared}")]
    Undeclared {
        /// What is done to it.
        access: Access,
        /// Name of the buffer.
        buffer: String,
        /// Which element.
        index: Vec<i64>,
        /// Block whose declaration is violated.
        block: String,
        /// The regions of the buffer that it declares here, as text.
        declared: String,
        /// Where.
        place: Box<Instance>,
    },
    /// A block iterator gets a value outside its domain.
    #[error("{place}: {iterator} is outside its domain [{min}, {end})")]
    Domain {
        /// Name of the iterator.
        iterator: String,
        /// First value of the domain.
        min: i64,
        /// The value after the last one.
        end: i64,
        /// Where; the iterator's value is among the iterators.
        place: Box<Instance>,
    },
    /// Index arithmetic leaves the range of 64 bits.
    #[error("{place}: index arithmetic overflows 64 bits in {what}")]
    Overflow {
        /// The operation with its operands.
        what: String,
        /// Where.
        place: Box<Instance>,
    },
    /// An intrinsic that has no meaning here.
    #[error("block \"{block}\": the intrinsic {name} with {arguments} arguments is not known to the interpreter")]
    UnknownIntrinsic {
        /// Its name.
        name: String,
        /// How many arguments it is given.
        arguments: usize,
        /// Name of the block.
        block: String,
    },
    /// The program is not one that can be run: an unbound variable, a buffer that nothing allocates, ...
    #[error("block \"{block}\": {reason}")]
    Invalid {
        /// What is wrong.
        reason: String,
        /// Name of the block.
        block: String,
    },
    /// More statements than allowed were executed.
    #[error("{place}: stopped after {limit} steps")]
    Steps {
        /// How many were allowed.
        limit: u64,
        /// Where.
        place: Box<Instance>,
    },
    /// The buffers take more memory than allowed.
    #[error("the buffers need {needed} bytes in the interpreter, more than the limit of {limit}")]
    Memory {
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The inputs do not fit the program's parameters, or an array cannot be made.
    #[error("{reason}")]
    Inputs {
        /// What does not fit.
        reason: String,
    },
}

/// A shape as a message has it: `(3, 4)`.
pub(super) struct Tuple<'a>(pub &'a [i64]);

impl fmt::Display for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> = self.0.iter().map(i64::to_string).collect();
        write!(f, "({}{})", list.join(", "), if list.len() == 1 { "," } else { "" })
    }
}
