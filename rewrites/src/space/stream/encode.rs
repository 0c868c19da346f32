//! From a program to the streaming blocks that it is made of, and to what inlining makes of it.
use super::read;
use crate::replay::Replay;
use crate::Call;
use satune_ir::term::stream::{Inlining, Stream, Streams};
use satune_ir::Program;
use serde_json::json;

/// Why a program has no space of streaming schedules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A block is none of what streams.
    #[error("block `{block}` is neither an elementwise map nor a reduction of rows: {reason}; the explorer takes one store per block, each index a bare iterator, under a plain nest of loops")]
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
    /// No kernel computes a block.
    #[error("block `{block}` fits no kernel: its accesses neither follow the order of its loops, nor run along rows, nor transpose one buffer; transform the layout of a buffer first")]
    NoKernel {
        /// Its name.
        block: String,
    },
    /// Too many ways to inline.
    #[error(
        "there are more than {most} ways to inline its elementwise blocks; inline some of them first (compute_inline)"
    )]
    Ways {
        /// Limit.
        most: usize,
    },
}

/// Most ways to inline blocks, and most blocks.
const MOST_VARIANTS: usize = 512;
const MOST_BLOCKS: usize = 24;

/// Reads a program whose blocks are maps, transposes and reductions of rows; each way to inline blocks is tried with the
/// primitive itself.
///
/// # Errors
/// When the program is something else; the message says what does not fit.
pub fn streams(program: &Program) -> Result<Streams, StreamError> {
    let first = read::stream(program, Vec::new())?;
    if first.blocks.is_empty() || first.blocks.len() > MOST_BLOCKS {
        return Err(StreamError::Program {
            reason: format!("it has {} blocks, 1 to {MOST_BLOCKS} are taken", first.blocks.len()),
        });
    }
    let source: Vec<String> = first.blocks.iter().map(|b| b.name.clone()).collect();
    let internal = |e: crate::ScheduleError| StreamError::Program { reason: e.detail.clone() };
    let mut variants = vec![first];
    let mut states = vec![Replay::strict(program).map_err(internal)?];
    let mut inline = Vec::new();
    for (number, name) in source.iter().enumerate() {
        for variant in 0..variants.len() {
            let Some((state, reverse)) = inlined(&states[variant], name) else { continue };
            let mut how = variants[variant].inlined.clone();
            how.push(Inlining { block: name.clone(), reverse });
            // What inlining makes may be no streaming program any more; then it is no way.
            let Ok(next) = read::stream(state.schedule.program(), how) else { continue };
            if variants.len() == MOST_VARIANTS {
                return Err(StreamError::Ways { most: MOST_VARIANTS });
            }
            inline.push((variant, number, variants.len(), reverse));
            variants.push(next);
            states.push(state);
        }
    }
    let streams = Streams { source, variants, inline };
    covered(&streams)?;
    Ok(streams)
}

/// The calls that inline a block.
pub(super) fn calls(inlining: &Inlining) -> [Call; 2] {
    let op = if inlining.reverse { "reverse_compute_inline" } else { "compute_inline" };
    [Call::new("get_sblock", [json!(inlining.block)]).into_name("inlined"), Call::new(op, [json!("$inlined")])]
}

/// What is left after a block has gone into its consumers, or, where it cannot, into its producer.
fn inlined(state: &Replay, block: &str) -> Option<(Replay, bool)> {
    for reverse in [false, true] {
        let mut next = state.clone();
        let all = calls(&Inlining { block: block.into(), reverse });
        if all.iter().all(|call| next.call(call).is_ok()) {
            return Some((next, reverse));
        }
    }
    None
}

/// Whether some sequence of kernels has every block, for some way to inline.
fn covered(streams: &Streams) -> Result<(), StreamError> {
    let mut missing = None;
    for stream in &streams.variants {
        match first_uncovered(stream) {
            None => return Ok(()),
            Some(block) => missing = missing.or(Some(block)),
        }
    }
    Err(StreamError::NoKernel { block: missing.unwrap_or_default() })
}

fn first_uncovered(stream: &Stream) -> Option<String> {
    let n = stream.blocks.len();
    let mut reached = vec![false; n + 1];
    reached[0] = true;
    for from in 0..n {
        if !reached[from] {
            continue;
        }
        if stream.fits_flat(from) || stream.transposed(from).is_some() {
            reached[from + 1] = true;
        }
        for to in from + 1..=n {
            reached[to] |= stream.fits_row(from, to);
        }
    }
    if reached[n] {
        return None;
    }
    let furthest = reached.iter().rposition(|r| *r).unwrap_or(0);
    stream.blocks.get(furthest).map(|b| b.name.clone())
}
