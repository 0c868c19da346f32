//! `reindex_cache_write`: write to another memory first, at indices that a map makes of the block's iterators, and copy back
//! afterwards.
//!
//! before                                after, reindex_cache_write(C, 0, "local", lambda i, j: (i // 4, j, i % 4))
//!   for i, j in T.grid(16, 32):           C_local = T.sblock_alloc_buffer((4, 32, 4), scope="local")
//!       with T.sblock("C"):               for i, j in T.grid(16, 32):
//!           vi, vj = ...                      with T.sblock("C"):
//!           C[vi, vj] = A[vi, vj]                 vi, vj = ...
//!                                                 C_local[vi // 4, vj, vi % 4] = A[vi, vj]
//!                                         for i, j in T.grid(16, 32):
//!                                             with T.sblock("C_local"):
//!                                                 vi, vj = ...
//!                                                 C[vi, vj] = C_local[vi // 4, vj, vi % 4]
//!
//! Legal when: 1 the memory scope exists; 2 the index names a buffer that the block writes; 3 its scope is a stage pipeline;
//! 4 the block is the only one of the scope that writes the buffer; 5 the map has a parameter for each iterator, and its
//! outputs start with 0; 6 they use the iterators that the buffer is indexed by, and no others; 7 an instance writes one
//! element of it; and, what TVM does not ask: 8 the block holds no other block and writes what it declares; 9 it does not
//! update the buffer in place, but for a reduction's own result; 10 the copy stays inside the buffer; 11 elements with values
//! of their own have places of their own; 12 the sums of a reduction have elements of their own; 13 the loops and conditions
//! of the elements copied can be told from the others. The conditions are kept, which TVM drops.
//!
//! The copy stands where that of `cache_write` would; it has those loops and iterators of the block that the elements depend
//! on.
use crate::index_map::IndexMap;
use crate::reindex_cache::{self, Plan};
use crate::schedule::{Result, Schedule};
use satune_ir::BlockId;

/// Conditions 1 to 13.
pub fn legal(s: &Schedule, block: BlockId, index: i64, memory: &str, map: &IndexMap) -> Result<Plan> {
    reindex_cache::legal(s, block, index, memory, map, true)
}

/// The primitive. Returns the block that copies back.
pub fn reindex_cache_write(
    s: &mut Schedule,
    block: BlockId,
    index: i64,
    memory: &str,
    map: &IndexMap,
) -> Result<BlockId> {
    let plan = legal(s, block, index, memory, map).map_err(|e| e.within("reindex_cache_write"))?;
    reindex_cache::apply(s, block, &plan, memory, true).map_err(|e| e.within("reindex_cache_write"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decompose_reduction::decompose_reduction;
    use crate::testing::{assert_program, block, func, joined, loops, matmul, refusal, schedule};

    const COPY: &str = "ScheduleError: The copy would not hold what the block exchanges with others";
    const HEADER: &str =
        "A: T.Buffer((16, 16), \"float32\"), B: T.Buffer((16, 16), \"float32\"), C: T.Buffer((16, 16), \"float32\")";

    fn map(text: &str) -> IndexMap {
        IndexMap::parse(text).unwrap()
    }

    #[test]
    fn copies_a_sum_without_its_reduction_loop() {
        let mut s = matmul();
        let c = block(&s, "C");
        let id = reindex_cache_write(&mut s, c, 0, "local", &map("lambda i, j, k: (i // 4, j, i % 4)")).unwrap();
        assert_eq!(s.block(id).unwrap().name, "C_local");
        assert_program(
            &s,
            &func(
                HEADER,
                r#"
C_local = T.sblock_alloc_buffer((4, 16, 4), scope="local")
for i, j, k in T.grid(16, 16, 16):
    with T.sblock("C"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        T.reads(A[vi, vk], B[vk, vj])
        T.writes(C_local[vi // 4, vj, vi % 4])
        with T.init():
            C_local[vi // 4, vj, vi % 4] = T.float32(0)
        C_local[vi // 4, vj, vi % 4] = C_local[vi // 4, vj, vi % 4] + A[vi, vk] * B[vk, vj]
for i, j in T.grid(16, 16):
    with T.sblock("C_local"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = C_local[vi // 4, vj, vi % 4]
"#,
            ),
        );
    }

    #[test]
    fn stands_before_the_reader() {
        let mut s = joined();
        let (b, c, i) = (block(&s, "B"), block(&s, "C"), loops(&s, "B")[0]);
        let id = reindex_cache_write(&mut s, b, 0, "shared", &map("lambda i, j: (j, i)")).unwrap();
        assert_eq!(s.child_blocks(crate::Node::Loop(i)).unwrap(), [b, id, c]);
        assert_eq!(s.loops_of(id).unwrap().len(), 2);
    }

    #[test]
    fn refuses() {
        let mut s = matmul();
        let c = block(&s, "C");
        for (memory, index, text, message) in [
            ("attic", 0, "lambda i, j, k: (j, i)", "The input storage scope is invalid"),
            ("local", 1, "lambda i, j, k: (j, i)", "The input `buffer_index` is out of range"),
            ("local", 0, "lambda i, j: (j, i)", "The map T.index_map(lambda i, j: (j, i)) has 2 parameters"),
            ("local", 0, "lambda i, j, k: (j, i - 1)", "The indices that the map"),
            ("local", 0, "lambda i, j, k: (i, j, k)", "the block itervars appeared in lhs and rhs"),
            ("local", 0, "lambda i, j, k: (i + j,)", "The copy would not hold"),
        ] {
            let got = refusal(&mut s, |s| reindex_cache_write(s, c, index, memory, &map(text)));
            assert!(got.trim_start_matches("ScheduleError: ").starts_with(message), "{text}: {got}");
        }
        // An update in place.
        let k = loops(&s, "C")[2];
        decompose_reduction(&mut s, c, k).unwrap();
        let got = refusal(&mut s, |s| reindex_cache_write(s, c, 0, "local", &map("lambda i, j, k: (i, j)")));
        assert_eq!(got, "ScheduleError: The buffer is allowed to be written by single block.");
    }

    #[test]
    fn refuses_sums_that_share_an_element() {
        let mut s = schedule(&func(
            "A: T.Buffer((16, 16), \"float32\"), C: T.Buffer((8,), \"float32\")",
            r#"
for i, k in T.grid(16, 16):
    with T.sblock("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            C[vi // 2] = T.float32(0)
        C[vi // 2] = C[vi // 2] + A[vi, vk]
"#,
        ));
        let c = block(&s, "C");
        assert_eq!(refusal(&mut s, |s| reindex_cache_write(s, c, 0, "local", &map("lambda i, k: (i,)"))), COPY);
    }
}
