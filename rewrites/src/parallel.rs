//! `parallel`: run the iterations of a loop on the threads of a CPU.
//!
//! before                                after, parallel(i)
//!   for i in range(128):                  for i in T.parallel(128):
//!       B[i] = A[i]                           B[i] = A[i]
//!
//! Legal when: 1 the subtree has compact dataflow; 2 every block iterator that uses the loop is data-parallel; 3 no two
//! sibling blocks under the loop write one buffer.
use crate::loop_kind::{require_one_writer_each, require_parallelizable, What};
use crate::schedule::{Result, Schedule};
use crate::tree::LoopId;
use satune_ir::ForKind;

/// Conditions 1 to 3.
pub fn legal(s: &Schedule, id: LoopId) -> Result<()> {
    require_parallelizable(s, id, What::Parallel)?;
    require_one_writer_each(s, id, What::Parallel)
}

/// The primitive.
pub fn parallel(s: &mut Schedule, id: LoopId) -> Result<()> {
    legal(s, id).map_err(|e| e.within("parallel"))?;
    s.update_loop(id, |l| l.kind = ForKind::Parallel)
}
