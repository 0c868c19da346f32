//! `unsafe_set_dtype`: a buffer between blocks holds elements of another type.
//!
//! before                                     after, unsafe_set_dtype(B, 0, "float16")
//!   B = T.sblock_alloc_buffer((16,))           B = T.sblock_alloc_buffer((16,), "float16")
//!   ...                                        ...
//!       B[vi] = A[vi] * 2                          B[vi] = T.Cast("float16", A[vi] * 2)
//!   ...                                        ...
//!       C[vi] = B[vi] + 1                          C[vi] = T.Cast("float32", B[vi]) + 1
//!
//! Legal when: 1 the index names a buffer that the block writes; 2 the type is one that Satune knows; 3 a block allocates the
//! buffer. Views of the buffer take the type, too. Where the new type does not hold every value of the old one, results
//! change: hence unsafe, and refused by strict replays ([`keeps_values`]).
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::set_scope::allocation;
use crate::tree::{self, children_and_init_mut};
use crate::ScheduleError;
use satune_ir::{visit, BlockId, BufferId, DType, Expr, Stmt};
use std::sync::Arc;

/// What changes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The buffer.
    pub buffer: BufferId,
    /// Its new type.
    pub dtype: DType,
    /// The block that allocates it; none where it has the type already.
    pub site: Option<BlockId>,
}

/// Conditions 1 to 3.
pub fn legal(s: &Schedule, block: BlockId, index: i64, dtype: &str) -> Result<Plan> {
    let buffer = regions::access(s, block, index, true)?.buffer;
    let dtype = DType::of_name(dtype).filter(|t| *t != DType::Handle).ok_or_else(|| {
        ScheduleError::value(format!("unknown dtype `{dtype}`"))
            .at_block(block)
            .remedy("float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64, bool")
    })?;
    let same = s.program().buffer(buffer).dtype == dtype;
    let site = if same { None } else { Some(allocation(s, block, buffer)?) };
    Ok(Plan { buffer, dtype, site })
}

/// The primitive.
pub fn unsafe_set_dtype(s: &mut Schedule, block: BlockId, index: i64, dtype: &str) -> Result<()> {
    let plan = legal(s, block, index, dtype).map_err(|e| e.within("unsafe_set_dtype"))?;
    let Some(site) = plan.site else { return Ok(()) };
    let old = s.program().buffer(plan.buffer).dtype;
    // Views of views come after what they show.
    let mut shown = vec![plan.buffer];
    let at = s.block(site)?;
    for b in [at].into_iter().chain(tree::all_realizes(&at.body).into_iter().map(|r| &r.block)) {
        let views = b.match_buffers.iter().filter(|(_, source)| shown.contains(&source.buffer)).map(|(view, _)| *view);
        shown.extend(views.collect::<Vec<_>>());
    }
    let loads = |e: &Expr| {
        shown.iter().fold(e.clone(), |e, b| {
            visit::replace_loads(&e, *b, &mut |list| Expr::Cast(old, Arc::new(Expr::Load(*b, list))))
        })
    };
    s.update_block(site, |b| {
        for stmt in [Some(&mut b.body), b.init.as_mut()].into_iter().flatten() {
            **stmt = visit::map_stmt_exprs(stmt, &mut |e| loads(e));
            stores(stmt, &shown, plan.dtype);
        }
    })?;
    for b in shown {
        s.program_mut().buffer_mut(b).dtype = plan.dtype;
    }
    Ok(())
}

fn stores(stmt: &mut Stmt, shown: &[BufferId], dtype: DType) {
    if let Stmt::Store { buffer, value, .. } = stmt {
        if shown.contains(buffer) {
            *value = Expr::Cast(dtype, Arc::new(value.clone()));
        }
    }
    children_and_init_mut(stmt).into_iter().for_each(|s| stores(s, shown, dtype));
}

/// Whether every value of a type has its like in another, so that a detour through it changes nothing.
pub fn keeps_values(from: DType, to: DType) -> bool {
    // Bits of the significand, and of the exponent.
    let float = |t: DType| match t {
        DType::F8E4M3 => Some((4, 4)),
        DType::F8E5M2 => Some((3, 5)),
        DType::F16 => Some((11, 5)),
        DType::BF16 => Some((8, 8)),
        DType::TF32 => Some((11, 8)),
        DType::F32 => Some((24, 8)),
        DType::F64 => Some((53, 11)),
        _ => None,
    };
    match (from.int_range(), to.int_range(), float(from), float(to)) {
        _ if from == to => true,
        (Some((lo, hi)), Some((low, high)), ..) => low <= lo && hi <= high && from != DType::U64,
        (Some((lo, hi)), None, _, Some((bits, exponent))) => {
            let most = 1i64 << bits.min(62);
            from != DType::U64 && -most <= lo && hi <= most && exponent >= 8
        }
        (None, None, Some((b, e)), Some((bits, exponent))) => b <= bits && e <= exponent,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_program, block, chain, func, refusal};

    #[test]
    fn casts_where_the_buffer_is_accessed() {
        let mut s = chain();
        let (b, c) = (block(&s, "B"), block(&s, "C"));
        let parameter = refusal(&mut s, |s| unsafe_set_dtype(s, c, 0, "float16"));
        assert!(parameter.starts_with("ScheduleError: The input buffer is not allocated by a block."), "{parameter}");
        assert!(refusal(&mut s, |s| unsafe_set_dtype(s, b, 1, "float16")).contains("`buffer_index` is out of range"));
        assert_eq!(refusal(&mut s, |s| unsafe_set_dtype(s, b, 0, "f16")), "unknown dtype `f16`");
        unsafe_set_dtype(&mut s, b, 0, "float32").unwrap();
        unsafe_set_dtype(&mut s, b, 0, "float16").unwrap();
        assert_program(
            &s,
            &func(
                "A: T.Buffer((16, 30), \"float32\"), C: T.Buffer((16, 30), \"float32\")",
                r#"
B = T.sblock_alloc_buffer((16, 30), "float16")
for i, j in T.grid(16, 30):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = T.Cast("float16", A[vi, vj] * T.float32(2))
for i, j in T.grid(16, 30):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = T.Cast("float32", B[vi, vj]) + T.float32(1)
"#,
            ),
        );
    }

    #[test]
    fn knows_what_holds_what() {
        use DType::*;
        for (from, to) in [(F16, F32), (BF16, F32), (I8, F32), (I8, I32), (U8, I16), (Bool, U8), (I32, F64)] {
            assert!(keeps_values(from, to), "{from:?} {to:?}");
        }
        for (from, to) in [(F32, F16), (F16, BF16), (I32, F32), (I8, U8), (U64, I64), (I64, F64), (F32, I64)] {
            assert!(!keeps_values(from, to), "{from:?} {to:?}");
        }
    }
}
