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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{loops, matmul, refusal};

    #[test]
    fn applies_to_spatial_loops_only() {
        let mut s = matmul();
        let l = loops(&s, "C");
        vectorize(&mut s, l[1]).unwrap();
        assert_eq!(s.get_loop(l[1]).unwrap().kind, ForKind::Vectorized);
        assert_eq!(
            refusal(&mut s, |s| vectorize(s, l[2])),
            "ScheduleError: The \"vectorize\" cannot be fulfilled with regard to some of its underlying block"
        );
    }
}
