//! What makes other blocks of some, with the same results: a block inlined, or the rows of a reduction split. Which steps there are, the
//! calls of primitives that they are, and why one is not offered.
use super::programs::Programs;
use crate::replay::Replay;
use crate::trace::Out;
use crate::Call;
use satune_ir::term::stream::{
    BlockKind, Cascade, How, Inlining, KernelPlan, Parting, RowParts, Stream, StreamBlock, StreamIter, StreamPlan,
};
use satune_ir::Program;
use serde_json::{json, Value};

/// Parts that rows are split into: powers of two up to this.
const MOST_PARTS: i64 = 4096;
/// Rows, times the parts of each: beyond, whole rows have work for every multiprocessor of any GPU.
const MOST_ROWS: i64 = 4096;
/// Least elements of a part: shorter rows are done before a second kernel is launched.
const LEAST_PART: i64 = 256;
/// Least elements of a part where each is read once for several reductions, however many rows there are: a shorter row has room
/// beside the threads that read it (estimate).
const LONG_PART: i64 = 4096;
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

    /// Whether it can be split so.
    fn fits(&self, RowParts { number, cascaded }: RowParts) -> bool {
        let each = self.outer / number * self.inner;
        // Rows of three axes fused have digits that `compute_at` leaves as they are.
        (self.reduced == 1 || self.block.spatial() <= 1)
            && self.outer % number == 0
            && each >= self.least_part()
            && (self.rows.saturating_mul(number) <= self.most() || cascaded && each >= LONG_PART)
    }

    /// How its rows are split into so many parts.
    fn parting(&self, parts: i64) -> Parting {
        let (block, each) = (self.block.name.clone(), self.outer == parts);
        Parting { block, reduced: self.reduced, columns: self.columns, each }
    }
}

/// The reduction that a block is.
fn reduction(stream: &Stream, block: usize) -> Option<Reduction<'_>> {
    let name = &stream.blocks.get(block)?.name;
    reductions(stream).find(|r| r.block.name == *name)
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

/// How the rows of a program's reductions are split: into powers of two, and into the extent of the outermost iterator where others
/// are below it.
pub(super) fn offered(stream: &Stream, cascaded: bool) -> Vec<RowParts> {
    let unknown = |b: &StreamBlock| matches!(b.kind, BlockKind::Other | BlockKind::Bound) && !b.sums && !b.gathers;
    if stream.blocks.iter().any(unknown) || !stream.pipeline {
        return Vec::new();
    }
    // Shorter rows stay whole.
    let fits = |parts: &RowParts| reductions(stream).any(|r| r.fits(*parts));
    let powers = std::iter::successors(Some(2), |parts| Some(2 * parts)).take_while(|p| *p <= MOST_PARTS);
    let whole = reductions(stream).find(|r| r.reduced > 1 && r.outer > 1).map(|r| r.outer);
    let numbers = powers.chain(whole.filter(|w| w & (w - 1) != 0));
    numbers.map(|number| RowParts { number, cascaded }).filter(fits).collect()
}

/// Which rows are split, and how.
#[derive(Clone, Copy)]
pub(super) struct Split<'p> {
    pub parts: RowParts,
    /// Where only one plan's way is wanted: it names the blocks that reduce parts.
    pub only: Option<&'p StreamPlan>,
}

impl Split<'_> {
    /// How the rows of a block are split; `None` where it is no reduction, or its rows stay whole.
    pub fn parting(self, stream: &Stream, block: usize) -> Option<Parting> {
        let r = reduction(stream, block)?;
        let splits = match self.only {
            Some(plan) => {
                plan.kernels.iter().flat_map(KernelPlan::blocks).any(|b| b.strip_suffix("_rf") == Some(&r.block.name))
            }
            None => r.fits(self.parts),
        };
        splits.then(|| r.parting(self.parts.number))
    }
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
pub fn why_not_parted(stream: &Stream, parts: RowParts) -> Option<String> {
    if parts == RowParts::WHOLE || offered(stream, parts.cascaded).contains(&parts) {
        return None;
    }
    let RowParts { number: parts, cascaded } = parts;
    if !(1..=MOST_PARTS).contains(&parts) || parts & (parts - 1) != 0 {
        return Some(format!("rows are split into a power of two of parts, {MOST_PARTS} at most; {parts} is none"));
    }
    let Some(reduction) = reductions(stream).max_by_key(|r| (r.outer % parts, r.rows)) else {
        return Some("no block reduces: there are no rows to split".into());
    };
    let (least, most) = (reduction.least_part(), reduction.most());
    let Reduction { block, rows, outer, inner, .. } = reduction;
    let each = outer / parts * inner;
    Some(if parts == 1 {
        "rows that stay whole have no parts to be cascaded".into()
    } else if outer % parts != 0 {
        format!("{parts} parts do not divide the {outer} columns of {}", block.name)
    } else if each < least {
        format!("{parts} parts of a row of {} have {each} elements each; {least} are the least", block.name)
    } else {
        let long = if cascaded { format!(", or parts of {LONG_PART} elements") } else { String::new() };
        format!(
            "{rows} rows of {} in {parts} parts are {}; up to {most} are split{long}, for more give every multiprocessor work as they are",
            block.name,
            rows.saturating_mul(parts)
        )
    })
}

/// The calls that split the rows of a reduction and add the parts up in a block of their own; their results have names with this
/// tag.
fn part_calls(parting: &Parting, parts: i64, tag: &str) -> Vec<Call> {
    let name = |stem: &str| format!("{stem}_{tag}");
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
        How::Part(parting) => part_calls(parting, parts, &number.to_string()),
        How::Cascade(cascade) => cascade_calls(cascade, parts, number),
    }
}

/// The calls that split several reductions, and let the later ones use the parts of the first.
fn cascade_calls(cascade: &Cascade, parts: i64, number: usize) -> Vec<Call> {
    let tag = |at: usize| format!("{number}_{at}");
    let mut out: Vec<Call> = cascade.inlined.iter().flat_map(calls).collect();
    for (at, parting) in cascade.partings.iter().enumerate() {
        out.extend(part_calls(parting, parts, &tag(at)));
        if at > 0 {
            out.push(Call::new("rebase_reduction", [json!(format!("$partial_{}", tag(at)))]));
        }
    }
    out
}

/// The blocks that a cascade touches: what is split, what is inlined, and what reads that.
pub(super) fn touched(stream: &Stream, cascade: &Cascade) -> Vec<usize> {
    let goes = |at: usize| cascade.inlines(&stream.blocks[at].name);
    let reads = |at: usize| (0..at).any(|maker| goes(maker) && stream.reads_from(at, maker));
    let all = 0..stream.blocks.len();
    all.filter(|at| cascade.splits(&stream.blocks[*at].name) || goes(*at) || reads(*at)).collect()
}

/// The later reductions of a program that can use the parts of this one, and what is inlined for it; none where there are none.
pub(super) fn cascade(programs: &mut Programs, program: usize, block: usize, split: Split<'_>) -> Option<Cascade> {
    let stream = programs.stream(program)?.clone();
    let rows = |block: usize| split.parting(&stream, block).filter(|p| !p.columns);
    let mut found = Cascade { inlined: Vec::new(), partings: vec![rows(block)?] };
    for later in block + 1..stream.blocks.len() {
        let Some(parting) = rows(later) else { continue };
        let longer = with(&found, &stream, (block, later), parting);
        if waits(&stream, &longer, block, later) {
            continue;
        }
        let calls = cascade_calls(&longer, split.parts.number, 0);
        if programs.next(program, &touched(&stream, &longer), &calls).is_some() {
            found = longer;
        }
    }
    (found.partings.len() > 1).then_some(found)
}

/// The same with a later reduction.
fn with(found: &Cascade, stream: &Stream, (block, later): (usize, usize), parting: Parting) -> Cascade {
    let mut out = found.clone();
    let between = between(stream, block, later).filter(|name| !found.inlines(name));
    out.inlined.extend(between.map(|block| Inlining { block, reverse: false }));
    out.partings.push(parting);
    out
}

/// Whether a later reduction, or a map that is inlined for it, reads the whole rows of one that reads the first: all of the first's
/// parts have been read by then.
fn waits(stream: &Stream, cascade: &Cascade, block: usize, later: usize) -> bool {
    let whole = |at: &usize| stream.blocks[*at].sums && !cascade.splits(&stream.blocks[*at].name);
    let reads = |at: usize, maker: usize| {
        stream.reads_from(at, maker) && (at == later || cascade.inlines(&stream.blocks[at].name))
    };
    let mut makers = after(stream, block, block + 1..later).into_iter().filter(whole);
    makers.any(|maker| (maker + 1..=later).any(|at| reads(at, maker)))
}

/// A block, and those of some that read it, be it by way of each other.
fn after(stream: &Stream, from: usize, among: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut out = vec![from];
    for at in among {
        if out.iter().any(|maker| stream.reads_from(at, *maker)) {
            out.push(at);
        }
    }
    out
}

/// Why no reduction of a program can use the parts of another, in the primitives' words; `None` where one can.
pub fn why_not_cascaded(program: &Program, stream: &Stream) -> Option<String> {
    let mut last = "no two blocks reduce rows that have parts".to_string();
    for block in 0..stream.blocks.len() {
        for later in block + 1..stream.blocks.len() {
            let parts = |block: usize| {
                let r = reduction(stream, block).filter(|r| !r.columns)?;
                let number = (2..=r.outer.min(MOST_PARTS)).find(|parts| r.outer % parts == 0)?;
                Some((number, r.parting(number)))
            };
            let (Some((number, first)), Some((_, second))) = (parts(block), parts(later)) else { continue };
            let alone = Cascade { inlined: Vec::new(), partings: vec![first] };
            let calls = cascade_calls(&with(&alone, stream, (block, later), second), number, 0);
            let mut state = Replay::strict(program).ok()?;
            last = calls.iter().find_map(|call| state.call(call).err()).map(|e| e.detail.clone())?;
        }
    }
    Some(last)
}

/// The maps that read what one block makes, and that another reads, be it by way of other maps.
fn between(stream: &Stream, from: usize, to: usize) -> impl Iterator<Item = String> + '_ {
    let maps: Vec<usize> = (from + 1..to).filter(|at| stream.blocks[*at].kind == BlockKind::Map).collect();
    let (after, mut before) = (after(stream, from, maps.iter().copied()), vec![to]);
    for map in maps.iter().rev() {
        if before.iter().any(|other| stream.reads_from(*other, *map)) {
            before.push(*map);
        }
    }
    maps.into_iter().filter(move |m| after.contains(m) && before.contains(m)).map(|m| stream.blocks[m].name.clone())
}
