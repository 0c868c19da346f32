//! `annotate_buffer_access`: say which region of a buffer a block reads or writes, where it cannot be inferred.
//!
//! before                                   after, annotate_buffer_access(B, 0, "read", lambda vi, vj: ((vi - 1, vi + 2), vj))
//!   with T.sblock("B"):                      with T.sblock("B"):
//!       vi, vj = ...                             vi, vj = ...
//!       T.reads(A[vi, vj])                       T.reads(A[vi - 1:vi + 2, vj])
//!       T.writes(B[vi, vj])                      T.writes(B[vi, vj])
//!       ...                                      T.sblock_attr({"explicit_read_region": [0]})
//!                                                ...
//!
//! The program means what it meant; later calls believe the region.
//!
//! Legal when: 1 the kind is `"read"` or `"write"`; 2 the index is of one of the block's buffers; 3 the function takes the
//! block's iterators and gives as many ranges; 4 that is as many as the buffer has dimensions.
use crate::arith::{int, Domains};
use crate::index_map::Ranges;
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::simplify::simplified;
use crate::ScheduleError;
use satune_ir::{visit, Attr, BinOp, BlockId, Expr, Range, Region, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// Conditions 1 to 4. Returns whether the access is written, and its new region.
pub fn legal(s: &Schedule, block: BlockId, index: i64, kind: &str, ranges: &Ranges) -> Result<(bool, Region)> {
    let write = match kind {
        "read" => false,
        "write" => true,
        other => {
            return Err(ScheduleError::value(format!("Invalid buffer type: {other}"))
                .at_block(block)
                .remedy("say \"read\" or \"write\""))
        }
    };
    let b = s.block(block)?;
    let (iterators, given) = (b.iter_vars.len(), ranges.ranges.len());
    let remedy =
        "write a function of the block's iterators that gives one range, or index, per dimension of the buffer";
    if ranges.params.len() != iterators || given != iterators {
        let message = format!("Number of iter_vars ({iterators}) must match number of new_ranges_spec ({given})");
        return Err(ScheduleError::value(message).at_block(block).remedy(remedy));
    }
    let old = regions::access(s, block, index, write)?;
    let buffer = s.program().buffer(old.buffer);
    if buffer.shape.len() != given {
        let message = format!("buffer {} has {} dimensions, not {given}", buffer.name, buffer.shape.len());
        return Err(ScheduleError::internal(message).at_block(block).remedy(remedy));
    }
    let map: HashMap<VarId, Expr> =
        b.iter_vars.iter().enumerate().map(|(k, iv)| (VarId(k as u32), Expr::Var(iv.var.clone()))).collect();
    let bound = |e: &Expr| simplified(&visit::substitute(e, &map), &Domains::new());
    let range = |(begin, end): &(Expr, Option<Expr>)| {
        let min = bound(begin);
        let extent = match end {
            None => int(1, satune_ir::fold::dtype(&min, &s.program().buffers)),
            Some(end) => {
                simplified(&Expr::Binary(BinOp::Sub, Arc::new(bound(end)), Arc::new(min.clone())), &Domains::new())
            }
        };
        Range { min, extent }
    };
    Ok((write, Region { buffer: old.buffer, ranges: ranges.ranges.iter().map(range).collect() }))
}

/// The primitive.
pub fn annotate_buffer_access(s: &mut Schedule, block: BlockId, index: i64, kind: &str, ranges: &Ranges) -> Result<()> {
    let (write, region) = legal(s, block, index, kind, ranges).map_err(|e| e.within("annotate_buffer_access"))?;
    s.update_block(block, |b| {
        let (list, key) = match write {
            false => (&mut b.reads, "explicit_read_region"),
            true => (&mut b.writes, "explicit_write_region"),
        };
        if let Some(old) = usize::try_from(index).ok().and_then(|i| list.get_mut(i)) {
            *old = region;
        }
        let said = b.annotations.entry(key.to_string()).or_insert_with(|| Attr::List(Vec::new()));
        match said {
            Attr::List(all) if all.contains(&Attr::Int(index)) => {}
            Attr::List(all) => all.push(Attr::Int(index)),
            other => *other = Attr::List(vec![Attr::Int(index)]),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_program, block, chain, func, refusal};

    #[test]
    fn says_regions() {
        let mut s = chain();
        let b = block(&s, "B");
        let ranges = |text: &str| Ranges::parse(text).unwrap();
        let mut message = |index, kind: &str, text: &str| {
            refusal(&mut s, |s| annotate_buffer_access(s, b, index, kind, &ranges(text)))
        };
        let two = "lambda i, j: ((i - 1, i + 2), j)";
        assert!(message(1, "read", two).contains("`buffer_index` is out of range"));
        assert_eq!(message(0, "both", two), "Invalid buffer type: both");
        let count = "Number of iter_vars (2) must match number of new_ranges_spec (1)";
        assert_eq!(message(0, "read", "lambda i, j: ((i, j),)"), count);
        annotate_buffer_access(&mut s, b, 0, "read", &ranges(two)).unwrap();
        annotate_buffer_access(&mut s, b, 0, "read", &ranges("lambda i, j: [(i - 1, 3 + i), j]")).unwrap();
        annotate_buffer_access(&mut s, b, 0, "write", &ranges("lambda i, j: (i, [j, j + 1])")).unwrap();
        assert_program(
            &s,
            &func(
                "A: T.Buffer((16, 30), \"float32\"), C: T.Buffer((16, 30), \"float32\")",
                r#"
B = T.sblock_alloc_buffer((16, 30))
for i, j in T.grid(16, 30):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.reads(A[vi - 1:vi - 1 + 4, vj])
        T.writes(B[vi, vj])
        T.sblock_attr({"explicit_read_region": [0], "explicit_write_region": [0]})
        B[vi, vj] = A[vi, vj] * T.float32(2)
for i, j in T.grid(16, 30):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = B[vi, vj] + T.float32(1)
"#,
            ),
        );
    }
}
