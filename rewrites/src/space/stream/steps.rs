//! What makes other blocks of some, with the same results: a block inlined, or the rows of a reduction split. Which steps there are, the
//! calls of primitives that they are, and why one is not offered.
use crate::replay::Replay;
use crate::trace::Out;
use crate::Call;
use satune_ir::term::stream::{BlockKind, How, Inlining, Parting, Stream, StreamBlock, StreamIter};
use satune_ir::Program;
use serde_json::{json, Value};

/// Parts that rows are split into: powers of two up to this.
const MOST_PARTS: i64 = 4096;
/// Rows, times the parts of each: beyond, whole rows have work for every multiprocessor of any GPU.
const MOST_ROWS: i64 = 4096;
/// Least elements of a part: shorter rows are done before a second kernel is launched.
const LEAST_PART: i64 = 256;
/// The same of columns, each part of which is one thread's, and parts of all columns together.
const LEAST_OF_COLUMN: i64 = 8;
const MOST_COLUMNS: i64 = 1 << 19;

/// A reduction whose rows can be split, along the outermost iterator that is reduced over.
struct Reduction<'a> {
    block: &'a StreamBlock,
    rows: i64,
    /// Extent of that iterator.
    outer: i64,
    /// Elements of a row per value of it.
    inner: i64,
    /// Iterators that are reduced over.
    reduced: usize,
    /// What is summed up lies across the rows of memory.
    columns: bool,
}

impl Reduction<'_> {
    /// Least elements of a part.
    fn least_part(&self) -> i64 {
        if self.columns {
            LEAST_OF_COLUMN
        } else {
            LEAST_PART
        }
    }

    /// Most parts of all rows.
    fn most(&self) -> i64 {
        if self.columns {
            MOST_COLUMNS
        } else {
            MOST_ROWS
        }
    }
}

fn reductions(stream: &Stream) -> impl Iterator<Item = Reduction<'_>> {
    // A contraction splits its sums by itself.
    let tiled = |at: usize| stream.tiled.iter().any(|t| t.from == at);
    let sums = stream.blocks.iter().enumerate().filter(move |(at, b)| b.sums && !tiled(*at));
    sums.filter_map(|(_, block)| {
        let (rows, columns) = block.iters.split_at(block.spatial());
        let (outer, inner) = columns.split_first()?;
        let product = |iters: &[StreamIter]| iters.iter().map(|i| i.extent).product();
        Some(Reduction {
            block,
            rows: product(rows),
            outer: outer.extent,
            inner: product(inner),
            reduced: columns.len(),
            columns: block.sums_columns(),
        })
    })
}

/// Numbers of parts that the rows of a program's reductions are split into: powers of two, and the extent of the outermost
/// iterator where others are below it.
pub(super) fn offered(stream: &Stream) -> Vec<i64> {
    let unknown = |b: &StreamBlock| matches!(b.kind, BlockKind::Other | BlockKind::Bound) && !b.sums;
    if stream.blocks.iter().any(unknown) || !stream.pipeline {
        return Vec::new();
    }
    let fits = |parts: &i64| {
        let mut all = reductions(stream).peekable();
        all.peek().is_some()
            && all.all(|r| {
                // Rows of three axes fused have digits that `compute_at` leaves as they are.
                (r.reduced == 1 || r.block.spatial() <= 1)
                    && r.outer % parts == 0
                    && r.outer / parts * r.inner >= r.least_part()
                    && r.rows.saturating_mul(*parts) <= r.most()
            })
    };
    let powers = std::iter::successors(Some(2), |parts| Some(2 * parts)).take_while(|p| *p <= MOST_PARTS);
    let whole = reductions(stream).find(|r| r.reduced > 1 && r.outer > 1).map(|r| r.outer);
    powers.chain(whole.filter(|w| w & (w - 1) != 0)).filter(fits).collect()
}

/// How the rows of a block are split into so many parts; `None` where it is no reduction that can be.
pub(super) fn parting(stream: &Stream, block: usize, parts: i64) -> Option<Parting> {
    let name = &stream.blocks.get(block)?.name;
    let r = reductions(stream).find(|r| r.block.name == *name)?;
    Some(Parting { block: name.clone(), reduced: r.reduced, columns: r.columns, each: r.outer == parts })
}

/// Why a block of a program is not inlined, in the primitives' words; `None` where it could be.
pub fn why_not_inlined(program: &Program, block: &str) -> Option<String> {
    let state = Replay::strict(program).ok()?;
    let refusal = |reverse: bool| {
        let mut next = state.clone();
        let all = calls(&Inlining { block: block.into(), reverse });
        all.iter().find_map(|call| next.call(call).err()).map(|e| e.detail.clone())
    };
    Some(format!("{}; into its producer: {}", refusal(false)?, refusal(true)?))
}

/// Why the rows of a program's reductions are not split into so many parts; `None` where they can be.
pub fn why_not_parted(stream: &Stream, parts: i64) -> Option<String> {
    if parts == 1 || offered(stream).contains(&parts) {
        return None;
    }
    if !(1..=MOST_PARTS).contains(&parts) || parts & (parts - 1) != 0 {
        return Some(format!("rows are split into a power of two of parts, {MOST_PARTS} at most; {parts} is none"));
    }
    let Some(reduction) = reductions(stream).max_by_key(|r| (r.outer % parts, r.rows)) else {
        return Some("no block reduces: there are no rows to split".into());
    };
    let (least, most) = (reduction.least_part(), reduction.most());
    let Reduction { block, rows, outer, inner, .. } = reduction;
    let each = outer / parts * inner;
    Some(if outer % parts != 0 {
        format!("{parts} parts do not divide the {outer} columns of {}", block.name)
    } else if each < least {
        format!("{parts} parts of a row of {} have {each} elements each; {least} are the least", block.name)
    } else {
        format!(
            "{rows} rows of {} in {parts} parts are {}; up to {most} are split, for more give every multiprocessor work as they are",
            block.name,
            rows.saturating_mul(parts)
        )
    })
}

/// The calls that split the rows of a reduction and add the parts up in a block of their own; their results have names with this
/// number.
pub(super) fn part_calls(parting: &Parting, parts: i64, number: usize) -> Vec<Call> {
    let name = |stem: &str| format!("{stem}_{number}");
    let var = |stem: &str| json!(format!("${}", name(stem)));
    let outermost = json!(format!("${}[-{}]", name("row_loops"), parting.reduced));
    // The parts of a row lie side by side, those of columns one below the other.
    let axis = json!(if parting.columns { 0 } else { -1 });
    let mut out = vec![
        Call::new("get_sblock", [json!(parting.block)]).into_name(name("whole")),
        Call::new("get_loops", [var("whole")]).into_name(name("row_loops")),
    ];
    if parting.each {
        out.push(Call::new("rfactor", [outermost, axis]).into_name(name("partial")));
        return out;
    }
    let mut split = Call::new("split", [outermost]);
    split.kwargs.insert("factors".into(), Value::Array(vec![json!(parts), Value::Null]));
    split.out = Some(Out::Many(vec![name("part"), name("in_part")]));
    out.push(split);
    out.push(Call::new("rfactor", [var("part"), axis]).into_name(name("partial")));
    out
}

/// The calls that inline a block.
pub(super) fn calls(inlining: &Inlining) -> [Call; 2] {
    let op = if inlining.reverse { "reverse_compute_inline" } else { "compute_inline" };
    [Call::new("get_sblock", [json!(inlining.block)]).into_name("inlined"), Call::new(op, [json!("$inlined")])]
}

/// The calls of a step.
pub(super) fn calls_of(how: &How, parts: i64, number: usize) -> Vec<Call> {
    match how {
        How::Inline(inlining) => calls(inlining).to_vec(),
        How::Part(parting) => part_calls(parting, parts, number),
    }
}
