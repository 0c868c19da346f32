//! `reindex_cache_read`: copy what a block reads to another memory first, at indices that a map makes of its iterators.
//!
//! before                                after, reindex_cache_read(C, 0, "shared", lambda i, j: (j, i))
//!   for i, j in T.grid(16, 32):           A_shared = T.sblock_alloc_buffer((32, 16), scope="shared")
//!       with T.sblock("C"):               for i, j in T.grid(16, 32):
//!           vi, vj = ...                      with T.sblock("A_shared"):
//!           C[vi, vj] = A[vi, vj] + 1             vi, vj = ...
//!                                                 A_shared[vj, vi] = A[vi, vj]
//!                                         for i, j in T.grid(16, 32):
//!                                             with T.sblock("C"):
//!                                                 vi, vj = ...
//!                                                 C[vi, vj] = A_shared[vj, vi] + 1
//!
//! Legal when: 1 the memory scope exists; 2 the index names a buffer that the block reads; 3 its scope is a stage pipeline;
//! 4 one block of the scope writes the buffer, or none; 5 an instance reads one element of it; 6 the map has a parameter for
//! each iterator, and its outputs start with 0; 7 they use the iterators that the buffer is indexed by, and no others; and,
//! what TVM does not ask: 8 the block holds no other block and reads what it declares; 9 it does not write the buffer;
//! 10 the copy stays inside the buffer; 11 elements with values of their own have places of their own; 12 the loops and
//! conditions of the elements copied can be told from the others. The conditions are kept, which TVM drops.
//!
//! The copy stands where that of `cache_read` would; it has those loops and iterators of the block that the elements depend
//! on.
use crate::index_map::IndexMap;
use crate::reindex_cache::{self, Plan};
use crate::schedule::{Result, Schedule};
use satune_ir::BlockId;

/// Conditions 1 to 12.
pub fn legal(s: &Schedule, block: BlockId, index: i64, memory: &str, map: &IndexMap) -> Result<Plan> {
    reindex_cache::legal(s, block, index, memory, map, false)
}

/// The primitive. Returns the block that copies.
pub fn reindex_cache_read(
    s: &mut Schedule,
    block: BlockId,
    index: i64,
    memory: &str,
    map: &IndexMap,
) -> Result<BlockId> {
    let plan = legal(s, block, index, memory, map).map_err(|e| e.within("reindex_cache_read"))?;
    reindex_cache::apply(s, block, &plan, memory, false).map_err(|e| e.within("reindex_cache_read"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::split;
    use crate::testing::{assert_program, block, func, loops, refusal, schedule};

    const PARAMS: &str = "A: T.Buffer((16, 32), \"float32\"), C: T.Buffer((16, 32), \"float32\")";
    const COPY: &str = "ScheduleError: The copy would not hold what the block exchanges with others";

    fn map(text: &str) -> IndexMap {
        IndexMap::parse(text).unwrap()
    }

    /// C[index] = value, over `extents`.
    fn one(extents: &str, index: &str, value: &str) -> Schedule {
        let body = format!(
            r#"
for i, j in T.grid({extents}):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[{index}] = {value}
"#
        );
        schedule(&func(PARAMS, &body))
    }

    #[test]
    fn the_picture() {
        let mut s = one("16, 32", "vi, vj", "A[vi, vj] + T.float32(1)");
        let c = block(&s, "C");
        let id = reindex_cache_read(&mut s, c, 0, "shared", &map("lambda i, j: (j, i)")).unwrap();
        assert_eq!(s.block(id).unwrap().name, "A_shared");
        assert!(s.flags(id).affine_binding);
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
A_shared = T.sblock_alloc_buffer((32, 16), scope="shared")
for i, j in T.grid(16, 32):
    with T.sblock("A_shared"):
        vi, vj = T.axis.remap("SS", [i, j])
        A_shared[vj, vi] = A[vi, vj]
for i, j in T.grid(16, 32):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A_shared[vj, vi] + T.float32(1)
"#,
            ),
        );
    }

    #[test]
    fn keeps_the_guards_of_its_loops() {
        let mut s = one("16, 32", "vi, vj", "A[vi, 3]");
        let (c, l) = (block(&s, "C"), loops(&s, "C"));
        split(&mut s, l[0], &[None, Some(5)], true, false).unwrap();
        split(&mut s, l[1], &[None, Some(7)], true, false).unwrap();
        reindex_cache_read(&mut s, c, 0, "local", &map("lambda i, j: (i // 4, i % 4)")).unwrap();
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
A_local = T.sblock_alloc_buffer((4, 4), scope="local")
for i_0, i_1 in T.grid(4, 5):
    with T.sblock("A_local"):
        vi = T.axis.spatial(16, i_0 * 5 + i_1)
        T.where(i_0 * 5 + i_1 < 16)
        A_local[vi // 4, vi % 4] = A[vi, 3]
for i_0, i_1, j_0, j_1 in T.grid(4, 5, 5, 7):
    with T.sblock("C"):
        vi = T.axis.spatial(16, i_0 * 5 + i_1)
        vj = T.axis.spatial(32, j_0 * 7 + j_1)
        T.where(i_0 * 5 + i_1 < 16 and j_0 * 7 + j_1 < 32)
        C[vi, vj] = A_local[vi // 4, vi % 4]
"#,
            ),
        );
    }

    #[test]
    fn stands_below_the_loops_shared_with_the_producer() {
        let mut s = crate::testing::joined();
        let (c, i) = (block(&s, "C"), loops(&s, "C")[0]);
        let id = reindex_cache_read(&mut s, c, 0, "shared", &map("lambda i, j: (j, i)")).unwrap();
        assert_eq!((s.loops_of(id).unwrap()[0], s.loops_of(id).unwrap().len()), (i, 2));
        assert_eq!(s.child_blocks(crate::Node::Loop(i)).unwrap(), [block(&s, "B"), id, c]);
    }

    #[test]
    fn refuses_what_tvm_refuses() {
        for (memory, index, text, message) in [
            ("attic", 0, "lambda i, j: (j, i)", "The input storage scope is invalid"),
            ("local", 1, "lambda i, j: (j, i)", "The input `buffer_index` is out of range"),
            ("local", 0, "lambda i: (i,)", "The map T.index_map(lambda i: (i,)) has 1 parameters"),
            ("local", 0, "lambda i, j: (i + 1, j)", "The indices that the map"),
            ("local", 0, "lambda i, j: (15 - i, j)", "The indices that the map"),
            ("local", 0, "lambda i, j: (i, j ^ i)", "The indices that the map"),
            ("local", 0, "lambda i, j: (i,)", "the block itervars appeared in lhs and rhs"),
        ] {
            let mut s = one("16, 32", "vi, vj", "A[vi, vj]");
            let c = block(&s, "C");
            let got = refusal(&mut s, |s| reindex_cache_read(s, c, index, memory, &map(text)));
            assert!(got.trim_start_matches("ScheduleError: ").starts_with(message), "{text}: {got}");
        }
        let mut s = one("16, 31", "vi, vj", "A[vi, vj] + A[vi, vj + 1]");
        let c = block(&s, "C");
        let point = "ScheduleError: The buffer region accessed inside the block is not a single point.";
        assert_eq!(refusal(&mut s, |s| reindex_cache_read(s, c, 0, "local", &map("lambda i, j: (j, i)"))), point);
    }

    #[test]
    fn refuses_what_the_copy_would_get_wrong() {
        for (extents, index, value, text) in [
            // Two elements at one place.
            ("16, 32", "vi, vj", "A[vi, vj]", "lambda i, j: (i + j,)"),
            ("16, 32", "vi, vj", "A[vi, vj]", "lambda i, j: (i, j // 2)"),
            // Outside of the buffer where the condition does not hold.
            ("16, 32", "vi, vj", "T.if_then_else(1 <= vi, A[vi - 1, vj], T.float32(0))", "lambda i, j: (i, j)"),
        ] {
            let mut s = one(extents, index, value);
            let c = block(&s, "C");
            assert_eq!(refusal(&mut s, |s| reindex_cache_read(s, c, 0, "local", &map(text))), COPY, "{text}");
        }
        // An update in place.
        let mut s = one("16, 32", "vi, vj", "C[vi, vj] + A[vi, vj]");
        let c = block(&s, "C");
        assert_eq!(refusal(&mut s, |s| reindex_cache_read(s, c, 0, "local", &map("lambda i, j: (i, j)"))), COPY);
        // The same element more than once may lie at one place.
        let mut s = one("16, 32", "vi, vj", "A[vi // 2, vj]");
        let c = block(&s, "C");
        reindex_cache_read(&mut s, c, 0, "local", &map("lambda i, j: (i // 2, j)")).unwrap();
        // A condition that ties the loops of the elements to others.
        let mut s = one("16, 32", "vi, vj", "A[vi, 3]");
        let c = block(&s, "C");
        let l = loops(&s, "C");
        let sum = satune_ir::affine::add(satune_ir::Expr::Int(0, satune_ir::DType::I32), var(&s, l[0]));
        let tied = satune_ir::affine::lt(
            satune_ir::affine::add(sum, var(&s, l[1])),
            satune_ir::Expr::Int(9, satune_ir::DType::I32),
        );
        s.update_realize(c, |r| r.predicate = tied).unwrap();
        assert_eq!(refusal(&mut s, |s| reindex_cache_read(s, c, 0, "local", &map("lambda i, j: (i,)"))), COPY);
    }

    fn var(s: &Schedule, id: crate::LoopId) -> satune_ir::Expr {
        satune_ir::Expr::Var(s.get_loop(id).unwrap().var.clone())
    }
}
