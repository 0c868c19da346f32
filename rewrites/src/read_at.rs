//! `read_at`: copy what the blocks under a loop read of a buffer to another memory, by one block with loops of its own.
//!
//! before                                    after, read_at(i, C, 0, "shared")
//!   for i in range(4):                        A_shared = T.sblock_alloc_buffer((64,), scope="shared")
//!       for j in range(16):                   for i in range(4):
//!           with T.sblock("C"):                   with T.sblock("A_shared"):
//!               v = ... i * 16 + j                    v0 = T.axis.spatial(4, i)
//!               C[v] = A[v]                           T.reads(A[v0 * 16:v0 * 16 + 16])
//!                                                     T.writes(A_shared[v0 * 16:v0 * 16 + 16])
//!                                                     T.sblock_attr({"auto_copy": True})
//!                                                     for ax0 in range(16):
//!                                                         A_shared[v0 * 16 + ax0] = A[v0 * 16 + ax0]
//!                                                 for j in range(16):
//!                                                     ... C[v] = A_shared[v]
//!
//! Legal when: 1 the index names a buffer that the block reads; 2 the memory scope exists; 3 a block under the loop reads the
//! buffer, and none writes it from there on; 4 the scope is a stage pipeline; and, what TVM does not ask: 5 what is copied
//! lies inside the buffer.
use crate::read_write_at::{self as common, Plan};
use crate::schedule::{Result, Schedule};
use crate::tree::LoopId;
use satune_ir::BlockId;

/// Conditions 1 to 5.
pub fn legal(s: &Schedule, target: LoopId, block: BlockId, index: i64, memory: &str) -> Result<Plan> {
    common::legal(s, target, block, index, memory, false)
}

/// The primitive. Returns the block that copies.
pub fn read_at(s: &mut Schedule, target: LoopId, block: BlockId, index: i64, memory: &str) -> Result<BlockId> {
    let plan = legal(s, target, block, index, memory).map_err(|e| e.within("read_at"))?;
    common::apply(s, target, &plan, memory, false).map_err(|e| e.within("read_at"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soundness;
    use crate::testing::{assert_program, block, func, loops, refusal, schedule};

    #[test]
    fn the_picture() {
        let params = "A: T.Buffer((64,), \"float32\"), C: T.Buffer((64,), \"float32\")";
        let nest = |copy: &str, from: &str| {
            let block = format!(
                "    for j in range(16):\n        with T.sblock(\"C\"):\n            v = T.axis.spatial(64, i * 16 + j)\n            \
                 C[v] = {from}[v]\n"
            );
            func(
                params,
                &format!(
                    "{}for i in range(4):\n{copy}{block}",
                    if copy.is_empty() { "" } else { "A_shared = T.sblock_alloc_buffer((64,), scope=\"shared\")\n" }
                ),
            )
        };
        let mut s = schedule(&nest("", "A"));
        let (before, c, l) = (s.program().clone(), block(&s, "C"), loops(&s, "C"));
        assert!(refusal(&mut s, |s| read_at(s, l[0], c, 1, "shared")).contains("`buffer_index` is out of range"));
        assert_eq!(refusal(&mut s, |s| read_at(s, l[0], c, 0, "attic")), "unknown storage scope attic");
        let copy = read_at(&mut s, l[0], c, 0, "shared").unwrap();
        assert_eq!(s.block(copy).unwrap().name, "A_shared");
        soundness::check(&before, s.program()).unwrap();
        let copied = r#"    with T.sblock("A_shared"):
        v0 = T.axis.spatial(4, i)
        T.reads(A[v0 * 16:v0 * 16 + 16])
        T.writes(A_shared[v0 * 16:v0 * 16 + 16])
        T.sblock_attr({"auto_copy": True})
        for ax0 in range(16):
            A_shared[v0 * 16 + ax0] = A[v0 * 16 + ax0]
"#;
        assert_program(&s, &nest(copied, "A_shared"));
    }
}
