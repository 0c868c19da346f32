//! `vectorize`: run the iterations of a loop as lanes of vector instructions.
//!
//! before                                after, vectorize(i)
//!   for i in range(4):                    for i in T.vectorized(4):
//!       B[i] = A[i]                           B[i] = A[i]
//!
//! Legal when: 1 the subtree has compact dataflow; 2 every block iterator that uses the loop is data-parallel.
use crate::loop_kind::{require_parallelizable, What};
use crate::schedule::{Result, Schedule};
use crate::tree::LoopId;
use satune_ir::ForKind;

/// Conditions 1 and 2.
pub fn legal(s: &Schedule, id: LoopId) -> Result<()> {
    require_parallelizable(s, id, What::Vectorize)
}

/// The primitive.
pub fn vectorize(s: &mut Schedule, id: LoopId) -> Result<()> {
    legal(s, id).map_err(|e| e.within("vectorize"))?;
    s.update_loop(id, |l| l.kind = ForKind::Vectorized)
}
