//! `transform_layout`: a buffer is laid out anew, by a map of its indices.
//!
//! before                                after, transform_layout(B, ("write", 0), lambda i, j: (j, i))
//!   B = T.sblock_alloc_buffer((16, 30))   B = T.sblock_alloc_buffer((30, 16))
//!   for i, j in T.grid(16, 30):           for i, j in T.grid(16, 30):
//!       with T.sblock("B"):                   with T.sblock("B"):
//!           vi, vj = ...                          vi, vj = ...
//!           B[vi, vj] = A[vi, vj]                 B[vj, vi] = A[vi, vj]
//!
//! Legal when: 1 the index names a buffer of the block; 2 the buffer is allocated or a parameter, and no block names a
//! part of it (TVM leaves such parts as they were); 3 the padding is one value of the buffer's type; 4 different indices
//! go to different places (TVM does not ask); 5 every element of the new shape is used, unless a padding is given; 6 what a
//! block declares of the buffer is seen in what it holds, so that it can be declared anew (blocks of `loop_partition` hide it). A map that
//! is neither mixed radix nor an xor swizzle is tried index by index where the buffer is small; TVM takes xors only where it
//! is told to assume that they are one to one. The
//! layout of a parameter is that of the function's argument from then on.
//!
//! Padding is written by the blocks that write the buffer, where their loops run over it row by row; by a block of its own
//! after the last of them otherwise; and taken as given where nothing writes it.
use crate::arith::{int, Domains};
use crate::index_map::{IndexMap, MapError};
use crate::reindexed::Rewriter;
use crate::schedule::{Result, Schedule};
use crate::tree::{children_and_init_mut, Node};
use crate::{pointers, regions, ErrorClass, ScheduleError};
use satune_ir::{access, Block, BlockId, BlockRealize, Buffer, BufferId, DType, Expr, Program, Region, Stmt};

mod padding;
mod plan;
pub use plan::{Padding, Plan};

/// Conditions 1 to 6.
pub fn legal(s: &Schedule, block: BlockId, write: bool, index: i64, map: &IndexMap, pad: Padding) -> Result<Plan> {
    let buffer = regions::access(s, block, index, write)?.buffer;
    let old = s.program().buffer(buffer);
    let shape = old.extents().ok_or_else(|| {
        ScheduleError::value(format!("The shape of buffer {} is not constant", old.name)).at_block(block)
    })?;
    if shape.len() != map.params.len() {
        return Err(ScheduleError::internal(format!(
            "The index map has {} parameters, but buffer {} has {} dimensions",
            map.params.len(),
            old.name,
            shape.len()
        ))
        .at_block(block));
    }
    require_own(s, block, buffer)?;
    require_seen(s, buffer)?;
    if let Padding::Value(value) = pad {
        require_padding_type(s, block, buffer, value)?;
    }
    let layout = match pad {
        Padding::Unused => map.layout_with_gaps(&shape),
        Padding::None | Padding::Value(_) => map.layout(&shape),
    };
    let layout = layout.map_err(|e| wrong_map(&e).at_block(block))?;
    if let (Some(padding), Padding::None) = (&layout.padding, pad) {
        let padding = crate::text::expr(padding);
        let list = |v: &[i64]| v.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        return Err(ScheduleError::refused(
            format!("Transformation would introduce padding at {padding}."),
            format!(
                "The transformation {map} applied on buffer {} of shape ({}) would result in shape ({}).  However, this \
                 would introduce padding wherever {padding} is true.",
                old.name,
                list(&shape),
                list(&layout.shape)
            ),
        )
        .at_block(block)
        .remedy("give a pad_value, or choose factors that divide the shape"));
    }
    Ok(Plan { buffer, layout })
}

/// Condition 2.
fn require_own(s: &Schedule, block: BlockId, buffer: BufferId) -> Result<()> {
    let name = &s.program().buffer(buffer).name;
    let views = all_blocks(s.program());
    if views.iter().any(|r| r.block.match_buffers.iter().any(|(b, _)| *b == buffer)) {
        return Err(ScheduleError::refused(
            "The input buffer is defined in `match_buffer` of a block, it is expected to be a function parameter or \
             allocated by a block",
            format!(
                "ScheduleError: The input buffer {name} is defined in `match_buffer` of a block, it is expected to be a \
                 function parameter or allocated by a block."
            ),
        )
        .at_block(block).remedy("transform the buffer that the view shows"));
    }
    let part = views.iter().find(|r| r.block.match_buffers.iter().any(|(_, x)| x.buffer == buffer));
    if let Some(r) = part {
        return Err(ScheduleError::refused(
            "A part of the buffer has a name of its own",
            format!("The block {} names a part of buffer {name}, which would not be laid out anew", r.block.name),
        )
        .at_block(r.block.id)
        .remedy("transform the layout before tensorize"));
    }
    pointers::require_none_as_tvm(s, buffer, "would find other elements there", "infered_access_regions.size() == 1")?;
    if !s.program().buffer(buffer).strides.is_empty() {
        return Err(ScheduleError::refused(
            "The buffer has strides of its own",
            format!("The strides of buffer {name} do not say how its new dimensions lie"),
        )
        .at_block(block)
        .remedy("give the buffer no strides of its own"));
    }
    Ok(())
}

/// Condition 6.
fn require_seen(s: &Schedule, buffer: BufferId) -> Result<()> {
    let of = |list: &[Region]| list.iter().any(|x| x.buffer == buffer);
    let hides = |b: &Block| {
        let (reads, writes) = (of(&b.reads), of(&b.writes));
        (reads || writes) && {
            let seen = access::of_block(b.init.as_deref(), &b.body, &[], &s.program().buffers);
            reads && !of(&seen.reads) || writes && !of(&seen.writes)
        }
    };
    let Some(r) = all_blocks(s.program()).into_iter().find(|r| hides(&r.block)) else { return Ok(()) };
    let name = &s.program().buffer(buffer).name;
    let mut error =
        ScheduleError::internal("Check failed: (infered_access_regions.size() == 1) is false:").at_block(r.block.id);
    error.detail = format!(
        "The block {} declares that it accesses {name}, but no block in it does: which part of {name} it would be after the call \
         is not known",
        r.block.name
    );
    Err(error.remedy(format!(
        "declare the accesses of {name} in the blocks inside, or transform the layout before the call that hid them"
    )))
}

/// All blocks, the root included.
fn all_blocks(program: &Program) -> Vec<&BlockRealize> {
    let mut out = vec![&program.body];
    out.extend(crate::tree::all_realizes(&program.body.block.body));
    out
}

/// Condition 3.
fn require_padding_type(s: &Schedule, block: BlockId, buffer: BufferId, value: &Expr) -> Result<()> {
    let old = s.program().buffer(buffer);
    let dtype = match value {
        Expr::Int(_, t) | Expr::Float(_, t) => *t,
        other => {
            let what = format!("The padding {} is no constant", crate::text::expr(other));
            return Err(ScheduleError::of(ErrorClass::TypeError, what.clone(), what).at_block(block));
        }
    };
    if dtype == old.dtype {
        return Ok(());
    }
    let (own, given) = (old.dtype.name(), dtype.name());
    Err(ScheduleError::refused(
        format!("Type mismatch T.{own} vs {given}"),
        format!(
            "ScheduleError: Buffer {} has elements of type {own}, but the transformation fills padding with {}, which is of \
             type {given}",
            old.name,
            crate::text::expr(value)
        ),
    )
    .at_block(block)
    .remedy("give the padding in the type of the buffer: 0.0 instead of 0 for floats"))
}

/// Conditions 4 and 5, where the map cannot be used at all. TVM fails an internal check for most of them.
fn wrong_map(error: &MapError) -> ScheduleError {
    let message = format!("{error}");
    match error {
        MapError::NotInjective(_) => ScheduleError::refused("The index map is not injective.", message)
            .remedy("add an output for the part of the index that is lost, `i % 4` beside `i // 4`"),
        _ => ScheduleError::internal(message).remedy("use sums of indices divided by constants, or a permutation"),
    }
}

/// The primitive. `index` counts what the block reads, or writes where `write`.
pub fn transform_layout(
    s: &mut Schedule,
    block: BlockId,
    write: bool,
    index: i64,
    map: &IndexMap,
    pad: Padding,
) -> Result<()> {
    let plan = legal(s, block, write, index, map, pad).map_err(|e| e.within("transform_layout"))?;
    apply(s, block, &plan, map, pad.value()).map_err(|e| e.within("transform_layout"))
}

fn apply(s: &mut Schedule, block: BlockId, plan: &Plan, map: &IndexMap, pad_value: Option<&Expr>) -> Result<()> {
    let mut program = s.program().clone();
    let padding = pad_value.filter(|_| plan.layout.padding.is_some());
    let scope = match padding {
        Some(_) => Some(defining_block(s, block, plan.buffer)?),
        None => None,
    };
    let fill = match (padding, scope) {
        (Some(value), Some(scope)) => padding::plan(&mut program, scope, plan, value),
        _ => padding::Fill::None,
    };
    let dims = plan.layout.shape.iter().map(|e| int(*e, DType::I32)).collect();
    let apply = |b: BufferId, list: &[Expr]| if b == plan.buffer { map.apply(list) } else { None };
    let mut rewriter = Rewriter { map: &apply, ranges: Domains::new(), guards: Vec::new() };
    program.body = rewriter.realize(&program.body);
    program.buffer_mut(plan.buffer).shape = dims;
    if let Some(scope) = scope {
        padding::insert(&mut program, scope, fill);
    }
    infer(&mut program, plan.buffer);
    *s.program_mut() = program;
    Ok(())
}

/// The block that allocates the buffer; the scope of `block` for a parameter.
fn defining_block(s: &Schedule, block: BlockId, buffer: BufferId) -> Result<BlockId> {
    for node in s.path(Node::Block(block))? {
        if let Node::Block(id) = node {
            if s.block(id)?.alloc_buffers.contains(&buffer) {
                return Ok(id);
            }
        }
    }
    s.scope_of(Node::Block(block))
}

/// Recomputes what blocks declare of a buffer, from the inside out.
fn infer(program: &mut Program, buffer: BufferId) {
    fn below(s: &mut Stmt, buffer: BufferId, buffers: &[Buffer]) {
        match s {
            Stmt::Realize(r) => block(&mut r.block, buffer, buffers),
            other => children_and_init_mut(other).into_iter().for_each(|s| below(s, buffer, buffers)),
        }
    }
    fn block(b: &mut Block, buffer: BufferId, buffers: &[Buffer]) {
        below(&mut b.body, buffer, buffers);
        if let Some(init) = &mut b.init {
            below(init, buffer, buffers);
        }
        let touched = access::of_block(b.init.as_deref(), &b.body, &[], buffers);
        for (declared, found) in [(&mut b.reads, touched.reads), (&mut b.writes, touched.writes)] {
            let new = found.into_iter().find(|x| x.buffer == buffer);
            for old in declared.iter_mut().filter(|x| x.buffer == buffer) {
                if let Some(new) = &new {
                    *old = new.clone();
                }
            }
        }
    }
    block(&mut program.body.block, buffer, &program.buffers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_program, block, chain, func, loops, refusal};

    const PARAMS: &str = "A: T.Buffer((16, 30), \"float32\"), C: T.Buffer((16, 30), \"float32\")";

    fn map(text: &str) -> IndexMap {
        IndexMap::parse(text).unwrap()
    }

    fn transformed(text: &str, shape: &str, at: &str) {
        let mut s = chain();
        let b = block(&s, "B");
        transform_layout(&mut s, b, true, 0, &map(text), Padding::None).unwrap();
        assert_program(
            &s,
            &func(
                PARAMS,
                &format!(
                    r#"
B = T.sblock_alloc_buffer({shape})
for i, j in T.grid(16, 30):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[{at}] = A[vi, vj] * T.float32(2)
for i, j in T.grid(16, 30):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = B[{at}] + T.float32(1)
"#
                ),
            ),
        );
    }

    #[test]
    fn transposes_tiles_and_swizzles() {
        transformed("lambda i, j: (j, i)", "(30, 16)", "vj, vi");
        transformed("lambda i, j: (i // 4, j, i % 4)", "(4, 30, 4)", "vi // 4, vj, vi % 4");
        transformed("lambda i, j: i * 30 + j", "(480,)", "vi * 30 + vj");
        transformed("lambda i, j: (i ^ (j % 4), j)", "(16, 30)", "vi ^ (vj % 4), vj");
    }

    #[test]
    fn the_writer_fills_the_padding() {
        let mut s = chain();
        let b = block(&s, "B");
        let value = Expr::Float(1.5f64.to_bits(), DType::F32);
        transform_layout(&mut s, b, true, 0, &map("lambda i, j: (j // 4, i, j % 4)"), Padding::Value(&value)).unwrap();
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
B = T.sblock_alloc_buffer((8, 16, 4))
for a0, a1, a2 in T.grid(8, 16, 4):
    with T.sblock("B"):
        v0, v1, v2 = T.axis.remap("SSS", [a0, a1, a2])
        B[v0, v1, v2] = T.if_then_else(v0 == 7 and 2 <= v2, T.float32(1.5), A[v1, v0 * 4 + v2] * T.float32(2))
for i, j in T.grid(16, 30):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = B[vj // 4, vi, vj % 4] + T.float32(1)
"#,
            ),
        );
    }

    #[test]
    fn inputs_are_assumed_to_be_padded() {
        let mut s = chain();
        let b = block(&s, "B");
        let value = Expr::Float(0f64.to_bits(), DType::F32);
        transform_layout(&mut s, b, false, 0, &map("lambda i, j: (j // 4, i, j % 4)"), Padding::Value(&value)).unwrap();
        let first = s.child_blocks(Node::Block(s.root())).unwrap()[0];
        assert_eq!(s.block(first).unwrap().name, "buffer_A_assumptions");
    }

    #[test]
    fn refuses() {
        let mut s = chain();
        let b = block(&s, "B");
        let int = Expr::Int(0, DType::I32);
        for (text, value, message) in [
            (
                "lambda i, j: (i, j // 8, j % 8)",
                Padding::None,
                "ScheduleError: Transformation would introduce padding at axis1 == 3 and 6 <= axis2.",
            ),
            (
                "lambda i, j: (i, j // 8, j % 8)",
                Padding::Value(&int),
                "ScheduleError: Type mismatch T.float32 vs int32",
            ),
            ("lambda i, j: (i // 4, j)", Padding::None, "ScheduleError: The index map is not injective."),
            ("lambda i: i", Padding::None, "The index map has 1 parameters, but buffer B has 2 dimensions"),
        ] {
            let got = refusal(&mut s, |s| transform_layout(s, b, true, 0, &map(text), value));
            assert_eq!(got, message, "{text}");
        }
        let got = refusal(&mut s, |s| transform_layout(s, b, true, 1, &map("lambda i, j: (j, i)"), Padding::None));
        assert!(got.starts_with("ScheduleError: The input `buffer_index` is out of range."), "{got}");
    }

    #[test]
    fn what_blocks_hide_is_not_laid_out_anew() {
        let mut s = chain();
        let i = loops(&s, "B")[0];
        let outer = crate::blockize::blockize(&mut s, i, true).unwrap();
        let i = loops(&s, "B")[0];
        crate::loop_partition::loop_partition(&mut s, i, &[Some(4), None]).unwrap();
        let got = refusal(&mut s, |s| transform_layout(s, outer, true, 0, &map("lambda i, j: (j, i)"), Padding::None));
        assert_eq!(got, "Check failed: (infered_access_regions.size() == 1) is false:");
    }
}
