//! `reorder_block_iter_var`: a block's iterators in another order. Loops and accesses stay as they are.
//!
//! before                                                after, reorder_block_iter_var(C, [2, 0, 1])
//!   for i, j, k in T.grid(16, 16, 16):                    for i, j, k in T.grid(16, 16, 16):
//!       with T.sblock("C"):                                   with T.sblock("C"):
//!           vi, vj, vk = T.axis.remap("SSR", [i, j, k])           vk, vi, vj = T.axis.remap("RSS", [k, i, j])
//!           ...                                                   ...
//!
//! Legal when the order is a permutation of the positions of the iterators.
use crate::schedule::{Result, Schedule};
use crate::tree::Node;
use crate::ScheduleError;
use satune_ir::BlockId;

/// The positions that the order names, where it is a permutation.
pub fn legal(s: &Schedule, block: BlockId, order: &[i64]) -> Result<Vec<usize>> {
    let b = s.block(block)?;
    let refused = || {
        ScheduleError::refused(
            "The specified reorder indices are invalid.",
            format!(
                "The user provided block itervar index order {order:?} is not a valid permutation of [0, 1, ..., \
                 num_block_iter_vars-1] in block {}.",
                b.name
            ),
        )
        .at_block(block)
        .remedy(format!("give each number from 0 to {} once", b.iter_vars.len().saturating_sub(1)))
    };
    let places: Option<Vec<usize>> = order.iter().map(|i| usize::try_from(*i).ok()).collect();
    let mut sorted = places.clone().ok_or_else(refused)?;
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..b.iter_vars.len()) {
        return Err(refused());
    }
    s.scope_of(Node::Block(block))?;
    places.ok_or_else(refused)
}

/// The primitive.
pub fn reorder_block_iter_var(s: &mut Schedule, block: BlockId, order: &[i64]) -> Result<()> {
    let places = legal(s, block, order).map_err(|e| e.within("reorder_block_iter_var"))?;
    s.update_realize(block, |r| {
        r.iter_values = places.iter().map(|i| r.iter_values[*i].clone()).collect();
        r.block.iter_vars = places.iter().map(|i| r.block.iter_vars[*i].clone()).collect();
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_program, block, func, matmul, refusal};

    #[test]
    fn permutes_what_is_a_permutation() {
        let mut s = matmul();
        let c = block(&s, "C");
        let message = "ScheduleError: The specified reorder indices are invalid.";
        for wrong in [&[0, 1][..], &[0, 1, 1], &[0, 1, 3], &[-1, 0, 1], &[0, 1, 2, 3]] {
            assert_eq!(refusal(&mut s, |s| reorder_block_iter_var(s, c, wrong)), message, "{wrong:?}");
        }
        reorder_block_iter_var(&mut s, c, &[2, 0, 1]).unwrap();
        let params = ["A", "B", "C"].map(|n| format!("{n}: T.Buffer((16, 16), \"float32\")")).join(", ");
        assert_program(
            &s,
            &func(
                &params,
                r#"
for i, j, k in T.grid(16, 16, 16):
    with T.sblock("C"):
        vk, vi, vj = T.axis.remap("RSS", [k, i, j])
        T.reads(A[vi, vk], B[vk, vj])
        T.writes(C[vi, vj])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"#,
            ),
        );
    }
}
