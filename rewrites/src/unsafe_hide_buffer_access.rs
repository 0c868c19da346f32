//! `unsafe_hide_buffer_access`: a block no longer says that it reads, or writes, some buffers.
//!
//! before                                        after, unsafe_hide_buffer_access(C, "read", [1])
//!   with T.sblock("C"):                           with T.sblock("C"):
//!       T.reads(A[vi], B[vi])                         T.reads(A[vi])
//!       T.writes(C[vi])                               T.writes(C[vi])
//!       C[vi] = A[B[vi]]                              C[vi] = A[B[vi]]
//!
//! The program means what it meant. What later calls may do is judged without the hidden accesses, so that it may come to
//! mean something else: hence unsafe.
//!
//! Legal when: 1 the kind is `"read"` or `"write"`; 2 the indices are of the block's buffers.
use crate::schedule::{Result, Schedule};
use crate::tree::Node;
use crate::ScheduleError;
use satune_ir::BlockId;

/// Conditions 1 and 2. Returns whether the accesses are written.
pub fn legal(s: &Schedule, block: BlockId, kind: &str, indices: &[i64]) -> Result<bool> {
    let b = s.block(block)?;
    let count = match kind {
        "read" => b.reads.len(),
        "write" => b.writes.len(),
        other => {
            return Err(ScheduleError::refused(
                "Invalid buffer type for hide_buffer_access schedule.",
                format!(
                    "The buffer type for hide_buffer_access schedule should either be 'read' or 'write', got {other} \
                     instead."
                ),
            )
            .at_block(block)
            .remedy("say \"read\" or \"write\""))
        }
    };
    match indices.iter().find(|i| usize::try_from(**i).map_or(true, |i| i >= count)) {
        None => s.scope_of(Node::Block(block)).map(|_| kind == "write"),
        Some(index) => Err(ScheduleError::refused(
            "Invalid buffer index array for hide_buffer_access schedule.",
            format!(
                "The buffer index array for hide_buffer_access schedule should be a list of integers between 0 and {}, \
                 got {index} instead.",
                count as i64 - 1
            ),
        )
        .at_block(block)
        .remedy("count the block's buffers from 0, in the order that the program prints")),
    }
}

/// The primitive.
pub fn unsafe_hide_buffer_access(s: &mut Schedule, block: BlockId, kind: &str, indices: &[i64]) -> Result<()> {
    let write = legal(s, block, kind, indices).map_err(|e| e.within("unsafe_hide_buffer_access"))?;
    s.update_block(block, |b| {
        let list = if write { &mut b.writes } else { &mut b.reads };
        let mut at = -1;
        list.retain(|_| {
            at += 1;
            !indices.contains(&at)
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{block, matmul, refusal};

    #[test]
    fn hides_what_there_is() {
        let mut s = matmul();
        let c = block(&s, "C");
        let mut message = |kind: &str, list: &[i64]| refusal(&mut s, |s| unsafe_hide_buffer_access(s, c, kind, list));
        let kind = "ScheduleError: Invalid buffer type for hide_buffer_access schedule.";
        let index = "ScheduleError: Invalid buffer index array for hide_buffer_access schedule.";
        assert_eq!(message("both", &[0]), kind);
        assert_eq!(message("read", &[2]), index);
        assert_eq!(message("write", &[-1]), index);
        let kept = s.block(c).unwrap().reads[1].clone();
        unsafe_hide_buffer_access(&mut s, c, "read", &[0]).unwrap();
        assert_eq!(s.block(c).unwrap().reads, [kept]);
    }
}
