//! Satune's tensor programs and everything that gives them meaning: the model (TensorIR's own), TVMScript in and
//! out, affine arithmetic with proofs, a reference interpreter; and the term language in which the space of a
//! program's schedules is held. All other crates speak of programs in its words.
//!
//! ```
//! use satune_ir::{interp, tvmscript};
//!
//! let text = "
//! @T.prim_func
//! def double(A: T.Buffer((8,), 'float32'), B: T.Buffer((8,), 'float32')):
//!     for i in range(8):
//!         with T.block('B'):
//!             vi = T.axis.spatial(8, i)
//!             B[vi] = A[vi] * T.float32(2)
//! ";
//! let program = tvmscript::parse(text)?;
//! let sums = tvmscript::parse(&text.replace("A[vi] * T.float32(2)", "A[vi] + A[vi]"))?;
//! let other = tvmscript::parse(&text.replace("T.float32(2)", "T.float32(3)"))?;
//! // Both are run on the same inputs, and their results compared bit for bit.
//! assert!(interp::equal_on(&program, &sums, 1).is_ok());
//! assert!(interp::equal_on(&program, &other, 1).is_err());
//! // What is printed is read again as the same program.
//! assert_eq!(tvmscript::print(&tvmscript::parse(&tvmscript::print(&program))?), tvmscript::print(&program));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod affine;
mod expr;
pub mod fields;
pub mod files;
pub mod fold;
pub mod fp8;
pub mod interp;
pub mod layout;
pub mod machine;
pub mod pointers;
mod program;
pub mod semantics;
pub mod structural;
pub mod term;
pub mod tvmscript;
pub mod visit;

pub use expr::{BinOp, BufferId, DType, Expr, Var, VarId};
pub use program::{
    Annotations, Attr, Block, BlockId, BlockRealize, Buffer, For, ForKind, IterKind, IterVar, Program, Range, Region,
    Stmt,
};
