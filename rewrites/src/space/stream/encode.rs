//! From a program to the streaming blocks that it is made of, and to what inlining makes of it.
use super::blocks::{moves, MOST_BLOCKS};
use super::programs::Programs;
use super::read::{self, StreamError};
use super::steps::{calls, offered};
use super::tiled::{with_contractions, Contractions};
use super::works::Source;
use crate::replay::Replay;
use satune_ir::term::stream::{BlockKind, KernelPlan, RowParts, Stream, StreamBlock, StreamPlan, Streams};
use satune_ir::Program;
use std::collections::{BTreeMap, BTreeSet};

/// Reads a program whose blocks are maps, transposes and reductions of rows, and all the works that the primitives make of it.
///
/// # Errors
/// When the program is something else; the message says what does not fit.
pub fn streams(program: &Program) -> Result<Streams, StreamError> {
    let (mut source, mut programs, mut plain) = source(program)?;
    source.parts = offered(&source.stream, false);
    for parts in offered(&source.stream, true) {
        source.find_cascades(parts, &mut programs);
    }
    let other = |b: &&StreamBlock| b.kind == BlockKind::Other;
    let mut plainly: BTreeSet<String> = source.stream.blocks.iter().filter(other).map(|b| b.name.clone()).collect();
    let mut whole = BTreeSet::new();
    loop {
        let (streams, [covered, by_parts]) = source.works([&plainly, &whole], &mut programs);
        let Some(block) = (!covered).then(|| first_uncovered(streams.whole())).flatten() else {
            return Ok(Streams { plain, ..streams });
        };
        if by_parts {
            whole.insert(block);
            continue;
        }
        let why = match source.stream.pipeline {
            true => "its accesses neither follow the order of its loops, nor run along rows, nor transpose one buffer",
            false => "its accesses neither follow the order of its loops nor run along rows, and a block writes what an earlier one reads, so that none is moved and nothing copied",
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
    let (mut source, mut programs, plain) = source(program)?;
    source.only = Some(plan);
    match plan.row_parts() {
        RowParts::WHOLE => {}
        parts @ RowParts { cascaded: false, .. } => source.parts.push(parts),
        parts => source.find_cascades(parts, &mut programs),
    }
    let left = |kernel: &KernelPlan| match kernel {
        KernelPlan::Plain(p) => Some(p.block.clone()),
        _ => None,
    };
    let plainly = plan.kernels.iter().filter_map(left).collect();
    let (streams, _) = source.works([&plainly, &BTreeSet::new()], &mut programs);
    let Some(way) = streams.way_of(plan) else {
        return Err(StreamError::Program { reason: refused(program, plan) });
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
fn refused(program: &Program, plan: &StreamPlan) -> String {
    let mut state = match Replay::strict(program) {
        Ok(state) => state,
        Err(error) => return error.detail.clone(),
    };
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

/// Blocks that are left to plain kernels, and why.
type Plain = Vec<(String, String)>;

/// A source program, what is made of it, and those of its blocks that are left to plain kernels.
fn source(program: &Program) -> Result<(Source<'static>, Programs, Plain), StreamError> {
    let replay = Replay::new(program).map_err(|e| StreamError::Program { reason: e.detail.clone() })?;
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
    let mut contractions = Contractions::default();
    let stream = with_contractions(stream, &replay, &made, &mut contractions);
    let programs = Programs::of(replay, (stream.clone(), contractions), made, moves);
    Ok((Source { stream, parts: Vec::new(), cascades: BTreeMap::new(), only: None }, programs, plain))
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
        if stream.fits_flat(from, from + 1) || stream.transposed(from).is_some() || stream.fits_plain(from, from + 1) {
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
