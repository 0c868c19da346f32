//! From a program to the streaming blocks that it is made of, and to what inlining makes of it.
use super::{read, tiled};
use crate::replay::Replay;
use crate::scope;
use crate::space::nests::NestError;
use crate::trace::Out;
use crate::{Call, Schedule};
use satune_ir::term::stream::{
    BlockKind, Inlining, KernelPlan, Stream, StreamBlock, StreamIter, StreamPlan, Streams, WHOLE_BLOCKS,
};
use satune_ir::Program;
use serde_json::{json, Value};

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

/// Most blocks that are inlined or not as is best, most ways to inline them all, and the same of long programs.
pub(super) const MOST_CHOICES: usize = 9;
const MOST_VARIANTS: usize = 1 << MOST_CHOICES;
const MOST_OF_LONG: usize = 4;
/// Most blocks: their numbers are bytes.
const MOST_BLOCKS: usize = 255;

/// Parts that rows are split into: powers of two up to this.
const MOST_PARTS: i64 = 4096;
/// Rows, times the parts of each: beyond, whole rows have work for every multiprocessor of any GPU.
const MOST_ROWS: i64 = 4096;
/// Least elements of a part: shorter rows are done before a second kernel is launched.
const LEAST_PART: i64 = 256;
/// The same of columns, each part of which is one thread's, and parts of all columns together.
const LEAST_OF_COLUMN: i64 = 8;
const MOST_COLUMNS: i64 = 1 << 19;

/// Reads a program whose blocks are maps, transposes and reductions of rows; each way to inline blocks is tried with the
/// primitive itself.
///
/// # Errors
/// When the program is something else; the message says what does not fit.
pub fn streams(program: &Program) -> Result<Streams, StreamError> {
    let internal = |e: crate::ScheduleError| StreamError::Program { reason: e.detail.clone() };
    let state = Replay::strict(program).map_err(internal)?;
    let (first, mut plain) = source(&state)?;
    if first.blocks.is_empty() || first.blocks.len() > MOST_BLOCKS {
        return Err(StreamError::Program {
            reason: format!("it has {} blocks, 1 to {MOST_BLOCKS} are taken", first.blocks.len()),
        });
    }
    let source: Vec<String> = first.blocks.iter().map(|b| b.name.clone()).collect();
    let mut variants = vec![first];
    let mut states = vec![state];
    let mut inline = Vec::new();
    let most = if source.len() > WHOLE_BLOCKS { MOST_OF_LONG } else { MOST_VARIANTS };
    let mut left_out = Vec::new();
    for (number, name) in source.iter().enumerate() {
        // All ways with a block, or none.
        let no_choice = 2 * variants.len() > most;
        for variant in 0..variants.len() {
            let Some((state, reverse)) = inlined(&states[variant], &variants[variant], name) else { continue };
            let mut how = variants[variant].inlined.clone();
            how.push(Inlining { block: name.clone(), reverse });
            // What inlining makes may be no streaming program any more; then it is no way.
            let Ok(next) = read(&state, how) else { continue };
            if others(&next) > others(&variants[variant]) {
                continue;
            }
            if no_choice {
                left_out.push(name.clone());
                break;
            }
            inline.push((variant, number, variants.len(), reverse));
            variants.push(next);
            states.push(state);
        }
    }
    let mut parted = Vec::new();
    for variant in 0..states.len() {
        for parts in offered(&variants[variant]) {
            let Some(mut next) = split_rows(&states[variant], &variants[variant], parts) else { continue };
            if reductions(&variants[variant]).any(|r| r.columns) {
                // Parts of columns are added up by plain kernels.
                while let Some(block) = first_uncovered(&next) {
                    only_plainly(std::slice::from_mut(&mut next), &block);
                }
            }
            if first_uncovered(&next).is_none() && variants.len() < MOST_VARIANTS {
                parted.push((variant, parts, variants.len()));
                variants.push(next);
            }
        }
    }
    let mut streams = Streams { source, variants, inline, parted, plain: Vec::new(), left_out };
    while let Some(block) = uncovered(&streams) {
        let why = match streams.variants[0].pipeline {
            true => "its accesses neither follow the order of its loops, nor run along rows, nor transpose one buffer",
            false => "a block writes what an earlier one reads, so that none is moved and nothing copied",
        };
        only_plainly(&mut streams.variants, &block);
        plain.push((block, why.into()));
    }
    streams.plain = plain;
    Ok(streams)
}

/// The program with the variant that one plan schedules, whether its rows and parts are on offer or not: for the same plan on
/// a program of other extents.
///
/// # Errors
/// When the program is none of streaming blocks, or a primitive refuses a step of the plan.
pub fn streams_of(program: &Program, plan: &StreamPlan) -> Result<Streams, StreamError> {
    let refused = |reason: String| StreamError::Program { reason };
    let mut state = Replay::strict(program).map_err(|e| refused(e.detail.clone()))?;
    let (first, plain) = source(&state)?;
    let names: Vec<String> = first.blocks.iter().map(|b| b.name.clone()).collect();
    let mut variants = vec![first];
    for inlining in plan.inlined.iter() {
        for call in calls(inlining) {
            state.call(&call).map_err(|e| refused(e.detail.clone()))?;
        }
    }
    if !plan.inlined.is_empty() {
        variants.push(read(&state, plan.inlined.clone())?);
    }
    if plan.parts > 1 {
        let whole = variants.last().and_then(|v| split_rows(&state, v, plan.parts));
        variants.push(whole.ok_or_else(|| refused(format!("its rows do not split into {} parts", plan.parts)))?);
    }
    for kernel in &plan.kernels {
        if let KernelPlan::Plain(p) = kernel {
            only_plainly(&mut variants, &p.block);
        }
    }
    Ok(Streams { source: names, variants, inline: Vec::new(), parted: Vec::new(), plain, left_out: Vec::new() })
}

/// The blocks of a program that may move, each a map or a reduction of rows.
///
/// # Errors
/// The first that is none, or that blocks must stay where they are.
pub(in crate::space) fn strictly(program: &Program) -> Result<Stream, StreamError> {
    let schedule = Schedule::new(program.clone()).map_err(|e| StreamError::Program { reason: e.detail.clone() })?;
    let mut plain = Vec::new();
    let mut told = |block: &str, reason: String| plain.push(StreamError::Block { block: block.into(), reason });
    let stream = read::stream(program, Vec::new(), moves(&schedule), &mut told)?;
    match plain.into_iter().next() {
        Some(first) => Err(first),
        None if stream.pipeline => Ok(stream),
        None => Err(StreamError::Program { reason: "a block writes what an earlier one reads".into() }),
    }
}

/// The blocks of a program as it is after some calls.
fn read(state: &Replay, inlined: Vec<Inlining>) -> Result<Stream, StreamError> {
    let stream = read::stream(state.schedule.program(), inlined, moves(&state.schedule), &mut |_, _| ())?;
    Ok(with_contractions(stream, state))
}

/// The blocks of a program that may move.
pub(super) fn movable(state: &Replay) -> Option<Stream> {
    read(state, Vec::new()).ok().filter(|stream| stream.pipeline)
}

/// The blocks, and which of them are contractions.
fn with_contractions(stream: Stream, state: &Replay) -> Stream {
    let tiled = if stream.pipeline { tiled::of(state.schedule.program()) } else { Vec::new() };
    Stream { tiled, ..stream }
}

/// Whether blocks may move.
fn moves(schedule: &Schedule) -> bool {
    scope::require_stage_pipeline(schedule, schedule.root()).is_ok()
}

/// Leaves a block to plain kernels in every variant.
fn only_plainly(variants: &mut [Stream], block: &str) {
    let blocks =
        variants.iter_mut().flat_map(|v| &mut v.blocks).filter(|b| b.name == block && b.kind != BlockKind::Bound);
    blocks.for_each(|b| b.kind = BlockKind::Other);
}

/// How many blocks are left to plain kernels.
pub(super) fn others(stream: &Stream) -> usize {
    stream.blocks.iter().filter(|b| b.kind == BlockKind::Other).count()
}

/// The blocks of a source program, and those that are left to plain kernels. A dimension that is indexed as a whole is not
/// indexed by parts, too.
fn source(state: &Replay) -> Result<(Stream, Vec<(String, String)>), StreamError> {
    let mut plain = Vec::new();
    let mut told = |block: &str, why: String| plain.push((block.to_string(), why));
    let stream = read::stream(state.schedule.program(), Vec::new(), moves(&state.schedule), &mut told)?;
    let accesses = || stream.blocks.iter().flat_map(|b| b.reads.iter().chain([&b.write]));
    for access in accesses().filter(|a| a.split.is_some()) {
        if accesses().any(|a| a.buffer == access.buffer && a.split != access.split) {
            let name = &stream.buffers[access.buffer].name;
            let reason = format!("buffer `{name}` is read by whole rows and by parts of rows");
            return Err(StreamError::Program { reason });
        }
    }
    Ok((with_contractions(stream, state), plain))
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

/// The program with the rows of all reductions split, as the primitives make it.
fn split_rows(state: &Replay, stream: &Stream, parts: i64) -> Option<Stream> {
    let mut next = state.clone();
    part_calls(stream, parts).iter().all(|call| next.call(call).is_ok()).then_some(())?;
    let mut made = read(&next, stream.inlined.clone()).ok()?;
    made.parts = parts;
    Some(made)
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

/// The calls that split the rows of every reduction and add the parts up in a block of their own.
pub(super) fn part_calls(stream: &Stream, parts: i64) -> Vec<Call> {
    let mut out = Vec::new();
    for (number, r) in reductions(stream).enumerate() {
        let name = |stem: &str| format!("{stem}_{number}");
        let var = |stem: &str| json!(format!("${}", name(stem)));
        out.push(Call::new("get_sblock", [json!(r.block.name)]).into_name(name("whole")));
        out.push(Call::new("get_loops", [var("whole")]).into_name(name("row_loops")));
        let outermost = json!(format!("${}[-{}]", name("row_loops"), r.reduced));
        // The parts of a row lie side by side, those of columns one below the other.
        let axis = json!(if r.columns { 0 } else { -1 });
        if r.outer == parts {
            out.push(Call::new("rfactor", [outermost, axis]).into_name(name("partial")));
            continue;
        }
        let mut split = Call::new("split", [outermost]);
        split.kwargs.insert("factors".into(), Value::Array(vec![json!(parts), Value::Null]));
        split.out = Some(Out::Many(vec![name("part"), name("in_part")]));
        out.push(split);
        out.push(Call::new("rfactor", [var("part"), axis]).into_name(name("partial")));
    }
    out
}

/// The calls that inline a block.
pub(super) fn calls(inlining: &Inlining) -> [Call; 2] {
    let op = if inlining.reverse { "reverse_compute_inline" } else { "compute_inline" };
    [Call::new("get_sblock", [json!(inlining.block)]).into_name("inlined"), Call::new(op, [json!("$inlined")])]
}

/// Blocks that write what a block reads.
fn producers(stream: &Stream, block: &str) -> Vec<String> {
    let Some(b) = stream.blocks.iter().find(|b| b.name == block) else { return Vec::new() };
    let read = |p: &&StreamBlock| b.reads.iter().any(|r| r.buffer == p.write.buffer);
    stream.blocks.iter().filter(read).map(|p| p.name.clone()).collect()
}

/// What is left after a block has gone into its consumers, or, where it cannot, into its producer. That its producer goes
/// into it makes the same program, and is decided at the producer: so it does not go into one that can.
pub(super) fn inlined(state: &Replay, stream: &Stream, block: &str) -> Option<(Replay, bool)> {
    let forward = one_inlined(state, block, false).map(|next| (next, false));
    forward.or_else(|| {
        let other_way = producers(stream, block).iter().any(|p| one_inlined(state, p, false).is_some());
        if other_way {
            None
        } else {
            one_inlined(state, block, true).map(|next| (next, true))
        }
    })
}

fn one_inlined(state: &Replay, block: &str, reverse: bool) -> Option<Replay> {
    let mut next = state.clone();
    let all = calls(&Inlining { block: block.into(), reverse });
    all.iter().all(|call| next.call(call).is_ok()).then_some(next)
}

/// A block of the source that no kernel takes, unless there is a way to inline with kernels for every block.
fn uncovered(streams: &Streams) -> Option<String> {
    let missing: Option<Vec<String>> = streams.variants.iter().map(first_uncovered).collect();
    missing?.into_iter().next()
}

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
