//! Satune's tensor programs and everything that gives them meaning: the model (TensorIR's own), TVMScript in and
//! out, affine arithmetic with proofs, a reference interpreter; and the term language in which the space of a
//! program's schedules is held.
#![forbid(unsafe_code)]

pub mod access;
pub mod affine;
mod expr;
pub mod fields;
pub mod files;
pub mod fold;
pub mod fp8;
pub mod interp;
pub mod machine;
mod program;
pub mod semantics;
pub mod structural;
pub mod term;
pub mod tvmscript;
pub mod visit;

pub use expr::{BinOp, DType, Expr, Var, VarId};
pub use program::{
    Annotations, Attr, Block, BlockId, BlockRealize, Buffer, BufferId, For, ForKind, IterKind, IterVar, Program, Range,
    Region, Stmt,
};
