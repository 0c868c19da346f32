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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{func, loops, matmul, refusal, schedule};

    #[test]
    fn applies_to_spatial_loops_only() {
        let mut s = matmul();
        let l = loops(&s, "C");
        parallel(&mut s, l[0]).unwrap();
        assert_eq!(s.get_loop(l[0]).unwrap().kind, ForKind::Parallel);
        assert_eq!(
            refusal(&mut s, |s| parallel(s, l[2])),
            "ScheduleError: The \"parallel\" cannot be fulfilled with regard to some of its underlying block"
        );
    }

    #[test]
    fn refuses_two_writers() {
        let mut s = schedule(&func(
            "A: T.Buffer((16,), \"float32\"), B: T.Buffer((16,), \"float32\")",
            r#"
for i in range(16):
    with T.sblock("B1"):
        vi = T.axis.spatial(16, i)
        B[vi] = A[vi]
    with T.sblock("B2"):
        vi = T.axis.spatial(16, i)
        B[vi] = A[vi] * T.float32(2)
"#,
        ));
        let i = loops(&s, "B1")[0];
        assert_eq!(
            refusal(&mut s, |s| parallel(s, i)),
            "ScheduleError: The \"parallel\" cannot be fulfilled because two blocks under the loop write one buffer"
        );
    }
}
