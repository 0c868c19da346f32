//! `write_at`: let the blocks under a loop write a buffer in another memory, and copy it back by one block with loops of its
//! own.
//!
//! before                                    after, write_at(i, C, 0, "local")
//!   for i in range(4):                        C_local = T.sblock_alloc_buffer((64,), scope="local")
//!       for j in range(16):                   for i in range(4):
//!           with T.sblock("C"):                   for j in range(16):
//!               v = ... i * 16 + j                    ... C_local[v] = A[v]
//!               C[v] = A[v]                       with T.sblock("C_local"):
//!                                                     v0 = T.axis.spatial(4, i)
//!                                                     T.reads(C_local[v0 * 16:v0 * 16 + 16])
//!                                                     T.writes(C[v0 * 16:v0 * 16 + 16])
//!                                                     T.sblock_attr({"auto_copy": True})
//!                                                     for ax0 in range(16):
//!                                                         C[v0 * 16 + ax0] = C_local[v0 * 16 + ax0]
//!
//! Legal when: 1 the index names a buffer that the block writes; 2 the memory scope exists; 3 a block under the loop writes
//! the buffer, and none reads it after the last one; 4 the scope is a stage pipeline; and, what TVM does not ask: 5 what is
//! copied lies inside the buffer.
use crate::read_write_at::{self as common, Plan};
use crate::schedule::{Result, Schedule};
use crate::tree::LoopId;
use satune_ir::BlockId;

/// Conditions 1 to 5.
pub fn legal(s: &Schedule, target: LoopId, block: BlockId, index: i64, memory: &str) -> Result<Plan> {
    common::legal(s, target, block, index, memory, true)
}

/// The primitive. Returns the block that copies.
pub fn write_at(s: &mut Schedule, target: LoopId, block: BlockId, index: i64, memory: &str) -> Result<BlockId> {
    let plan = legal(s, target, block, index, memory).map_err(|e| e.within("write_at"))?;
    common::apply(s, target, &plan, memory, true).map_err(|e| e.within("write_at"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soundness;
    use crate::testing::{block, loops, matmul, refusal};
    use satune_ir::interp;

    #[test]
    fn copies_sums_back() {
        let mut s = matmul();
        let (before, c, l) = (s.program().clone(), block(&s, "C"), loops(&s, "C"));
        assert!(refusal(&mut s, |s| write_at(s, l[0], c, 1, "local")).contains("`buffer_index` is out of range"));
        let copy = write_at(&mut s, l[1], c, 0, "local").unwrap();
        assert_eq!(s.loops_of(copy).unwrap(), l[..2]);
        soundness::check(&before, s.program()).unwrap();
        interp::equal_on(&before, s.program(), 7).unwrap();
    }
}
