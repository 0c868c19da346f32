//! From a program to the streaming blocks that it is made of, and to what inlining makes of it.
use super::works::Source;
use super::{read, tiled};
use crate::replay::Replay;
use crate::scope;
use crate::space::nests::NestError;
use crate::trace::Out;
use crate::{Call, Schedule};
use satune_ir::term::stream::{
    BlockKind, Inlining, KernelPlan, Parting, Stream, StreamBlock, StreamIter, StreamPlan, Streams,
};
use satune_ir::Program;
use serde_json::{json, Value};
use std::collections::BTreeSet;

/// Why a program has no space of streaming schedules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A block is none of what streams.
    #[error("block `{block}` is neither an elementwise map nor a reduction: {reason}; the explorer takes one store per block, the result's indices bare iterators, under a plain nest of loops")]
    Block {
        /// Its name.
        block: String,
        /// What does not fit.
        reason: String,
    },
    /// The program is no sequence of blocks.
    #[error(
        "the program is no sequence of loop nests with one block each: {reason}; the explorer takes one nest per block"
    )]
    Program {
        /// What does not fit.
        reason: String,
    },
}

impl From<NestError> for StreamError {
    fn from(error: NestError) -> StreamError {
        match error {
            NestError::Block { block, reason } => StreamError::Block { block, reason },
            NestError::Program { reason } => StreamError::Program { reason },
        }
    }
}

/// Most blocks: their numbers are bytes.
pub(super) const MOST_BLOCKS: usize = 255;

/// Parts that rows are split into: powers of two up to this.
const MOST_PARTS: i64 = 4096;
/// Rows, times the parts of each: beyond, whole rows have work for every multiprocessor of any GPU.
const MOST_ROWS: i64 = 4096;
/// Least elements of a part: shorter rows are done before a second kernel is launched.
const LEAST_PART: i64 = 256;
/// The same of columns, each part of which is one thread's, and parts of all columns together.
const LEAST_OF_COLUMN: i64 = 8;
const MOST_COLUMNS: i64 = 1 << 19;

/// Reads a program whose blocks are maps, transposes and reductions of rows, and all the works that the primitives make of it.
///
/// # Errors
/// When the program is something else; the message says what does not fit.
pub fn streams(program: &Program) -> Result<Streams, StreamError> {
    let (mut source, mut plain) = source(program)?;
    source.parts = offered(&source.stream);
    let other = |b: &&StreamBlock| b.kind == BlockKind::Other;
    let mut plainly: BTreeSet<String> = source.stream.blocks.iter().filter(other).map(|b| b.name.clone()).collect();
    let mut whole = BTreeSet::new();
    loop {
        let (streams, [covered, by_parts]) = source.works([&plainly, &whole]);
        let Some(block) = (!covered).then(|| first_uncovered(streams.whole())).flatten() else {
            return Ok(Streams { plain, ..streams });
        };
        if by_parts {
            whole.insert(block);
            continue;
        }
        let why = match source.stream.pipeline {
            true => "its accesses neither follow the order of its loops, nor run along rows, nor transpose one buffer",
            false => "a block writes what an earlier one reads, so that none is moved and nothing copied",
        };
        plain.push((block.clone(), why.into()));
        plainly.insert(block);
    }
}

/// The program with the works of one plan, whether its rows and parts are on offer or not: for the same plan on a program of
/// other extents.
///
/// # Errors
/// When the program is none of streaming blocks, or a primitive refuses a step of the plan.
pub fn streams_of(program: &Program, plan: &StreamPlan) -> Result<Streams, StreamError> {
    let (mut source, plain) = source(program)?;
    source.only = Some(plan);
    source.parts = Some(plan.parts).into_iter().filter(|parts| *parts > 1).collect();
    let left = |kernel: &KernelPlan| match kernel {
        KernelPlan::Plain(p) => Some(p.block.clone()),
        _ => None,
    };
    let plainly = plan.kernels.iter().filter_map(left).collect();
    let (streams, _) = source.works([&plainly, &BTreeSet::new()]);
    let Some(way) = streams.way_of(plan) else {
        return Err(StreamError::Program { reason: refused(&source, plan) });
    };
    match plan.kernels.iter().zip(&way.kernels).find(|(kernel, work)| !kernel.fits(work)) {
        None => Ok(Streams { plain, ..streams }),
        Some((kernel, _)) => {
            let reason = format!("{} are not what a kernel of this kind computes", kernel.blocks().join(" + "));
            Err(StreamError::Program { reason })
        }
    }
}

/// Why a plan has no way through the works of a program.
fn refused(source: &Source<'_>, plan: &StreamPlan) -> String {
    let mut state = source.replay.clone();
    for call in plan.inlined.iter().flat_map(calls) {
        if let Err(error) = state.call(&call) {
            return error.detail.clone();
        }
    }
    match plan.parts {
        1 => "its blocks do not make the plan's kernels".into(),
        parts => format!("its rows do not split into {parts} parts"),
    }
}

/// The blocks of a program that may move, each a map or a reduction of rows.
///
/// # Errors
/// The first that is none, or that blocks must stay where they are.
pub(in crate::space) fn strictly(program: &Program) -> Result<Stream, StreamError> {
    let schedule = Schedule::new(program.clone()).map_err(|e| StreamError::Program { reason: e.detail.clone() })?;
    let mut plain = Vec::new();
    let mut told = |block: &str, reason: String| plain.push(StreamError::Block { block: block.into(), reason });
    let stream = read::stream(program, moves(&schedule), &mut told)?;
    match plain.into_iter().next() {
        Some(first) => Err(first),
        None if stream.pipeline => Ok(stream),
        None => Err(StreamError::Program { reason: "a block writes what an earlier one reads".into() }),
    }
}

/// The blocks of a program as it is after some calls; buffers of these names are made by blocks, though they be parameters.
pub(super) fn read(state: &Replay, made: &BTreeSet<String>) -> Result<Stream, StreamError> {
    let stream = read::stream(state.schedule.program(), moves(&state.schedule), &mut |_, _| ())?;
    Ok(with_contractions(stream, state, made))
}

/// The blocks, and which of them are contractions.
fn with_contractions(stream: Stream, state: &Replay, made: &BTreeSet<String>) -> Stream {
    let tiled = if stream.pipeline { tiled::of(state.schedule.program(), made) } else { Vec::new() };
    Stream { tiled, ..stream }
}

/// Whether blocks may move.
fn moves(schedule: &Schedule) -> bool {
    scope::require_stage_pipeline(schedule, schedule.root()).is_ok()
}

/// Leaves a block to plain kernels.
pub(super) fn only_plainly(stream: &mut Stream, block: &str) {
    let blocks = stream.blocks.iter_mut().filter(|b| b.name == block && b.kind != BlockKind::Bound);
    blocks.for_each(|b| b.kind = BlockKind::Other);
}

/// How many blocks are left to plain kernels.
pub(super) fn others(stream: &Stream) -> usize {
    stream.blocks.iter().filter(|b| b.kind == BlockKind::Other).count()
}

/// A source program, and those of its blocks that are left to plain kernels.
fn source(program: &Program) -> Result<(Source<'static>, Vec<(String, String)>), StreamError> {
    let replay = Replay::strict(program).map_err(|e| StreamError::Program { reason: e.detail.clone() })?;
    let mut plain = Vec::new();
    let mut told = |block: &str, why: String| plain.push((block.to_string(), why));
    let moves = moves(&replay.schedule);
    let mut stream = read::stream(program, moves, &mut told)?;
    if stream.blocks.is_empty() || stream.blocks.len() > MOST_BLOCKS {
        let reason = format!("it has {} blocks, 1 to {MOST_BLOCKS} are taken", stream.blocks.len());
        return Err(StreamError::Program { reason });
    }
    for (number, why) in read::by_parts_and_whole(&stream) {
        let block = &mut stream.blocks[number];
        block.kind = BlockKind::Other;
        plain.push((block.name.clone(), why));
    }
    let made = stream.blocks.iter().map(|b| stream.buffers[b.write.buffer].name.clone()).collect();
    let stream = with_contractions(stream, &replay, &made);
    Ok((Source { replay, stream, made, moves, parts: Vec::new(), only: None }, plain))
}

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
fn offered(stream: &Stream) -> Vec<i64> {
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

/// Whether all blocks of a work can be one kernel without tiles.
pub(super) fn is_kernel(stream: &Stream) -> bool {
    let count = stream.blocks.len();
    let alone = || stream.fits_flat(0) || stream.transposed(0).is_some() || stream.fits_plain(0);
    (count == 1 && alone()) || stream.fits_row(0, count)
}

/// Whether some kernel begins with a block.
pub(super) fn begins_kernel(stream: &Stream, from: usize) -> bool {
    let alone = stream.fits_flat(from) || stream.transposed(from).is_some() || stream.fits_plain(from);
    alone || (from + 1..=stream.blocks.len()).any(|to| stream.fits_row(from, to))
}

/// The furthest block that kernels do not reach when none is inlined.
fn first_uncovered(stream: &Stream) -> Option<String> {
    let n = stream.blocks.len();
    let mut reached = vec![false; n + 1];
    reached[0] = true;
    for from in 0..n {
        if !reached[from] {
            continue;
        }
        if stream.fits_flat(from) || stream.transposed(from).is_some() || stream.fits_plain(from) {
            reached[from + 1] = true;
        }
        for (to, reached) in reached.iter_mut().enumerate().skip(from + 1) {
            *reached |= stream.fits_row(from, to);
        }
    }
    if reached[n] {
        return None;
    }
    let furthest = reached.iter().rposition(|r| *r).unwrap_or(0);
    stream.blocks.get(furthest).map(|b| b.name.clone())
}
