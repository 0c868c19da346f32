//! The side conditions of the rule for plain kernels, and what else it offers no schedule for.
use super::stream::{names, vector_divides, StreamHeld, StreamRefusal};
use satune_ir::term::stream::{PlainBlocks, PlainHeld, PlainStep, Stream, Window};

/// Most statements of a thread in a step of a sum: they are expanded.
const STATEMENTS: i64 = 1024;

/// The loop of a sum that threads of a plain kernel share: of neighbours the innermost one, where something lies along it in memory; of
/// others the outermost one that is long enough.
///
/// # Errors
/// Why there is none.
pub fn shared_loop(stream: &Stream, blocks: PlainBlocks, threads: i64, lanes: bool) -> Result<usize, StreamRefusal> {
    let block = blocks.block;
    let refused = |why| Err(StreamRefusal::Sharing { threads, block: names(stream, block, block + 1), why });
    let Some(b) = stream.blocks.get(block).filter(|b| b.shares && stream.holds_sum(b)) else {
        return refused("it is no sum by one operation, of an element that its first loops name");
    };
    if blocks.before.is_some() {
        return refused("a thread computes what it reads of the map before it for all of its own results");
    }
    let long = |iter: &usize| b.iters[*iter].reduce && b.iters[*iter].extent >= threads;
    let lies_along = |iter: &usize| b.reads.iter().any(|read| read.dims.last() == Some(&Some(*iter)));
    let all = 0..b.iters.len();
    match lanes {
        true => match all.last().filter(long).filter(lies_along) {
            Some(iter) => Ok(iter),
            None => refused("its innermost loop has fewer values, or nothing lies along it in memory"),
        },
        false => match all.into_iter().find(long) {
            Some(iter) => Ok(iter),
            None => refused("none of its loops has as many values"),
        },
    }
}

/// A thread of a plain kernel has so many results, side by side, each of them its own sum.
///
/// # Errors
/// Why it has not.
pub fn neighbours(stream: &Stream, from: usize, to: usize, vector: i64, sharing: i64) -> StreamHeld {
    let refused = |why| Err(StreamRefusal::Neighbours { vector, block: names(stream, from, to), why });
    let block = |blocks: PlainBlocks| &stream.blocks[blocks.block];
    match stream.neighbours(from, to) {
        _ if sharing > 1 => refused("threads share a sum, and have one of them"),
        None => refused(
            "it does not store once, along its innermost loop, what a register holds and no other block has changed",
        ),
        Some(iter) => {
            let extent = stream.plain_blocks(from, to).map_or(0, |blocks| block(blocks).iters[iter].extent);
            vector_divides(vector, extent)
        }
    }
}

/// A thread of a plain kernel has so many results along another loop, each of them its own sum.
///
/// # Errors
/// Why it has not.
pub fn window_fits(
    stream: &Stream,
    blocks: PlainBlocks,
    offered: &[usize],
    window: Window,
    sharing: i64,
) -> StreamHeld {
    let block = &stream.blocks[blocks.block];
    let Window { iter, results } = window;
    let extent = block.iters.get(iter).map_or(0, |i| i.extent);
    let why = match () {
        () if sharing > 1 => "threads share a sum, and have one of them",
        () if !offered.contains(&iter) => {
            "results along it read nothing of each other's, or are not stored once from a register"
        }
        () if !window.divides(extent) => "they do not divide its values",
        () => return Ok(()),
    };
    let iter = block.iters.get(iter).map_or_else(|| "any loop".into(), |i| i.name.clone());
    Err(StreamRefusal::Window { results, block: block.name.clone(), iter, why })
}

/// A thread with several results does not do too much in a step, and holds something of the map before.
///
/// # Errors
/// Which of them it is.
pub fn step_fits(stream: &Stream, blocks: PlainBlocks, results: i64, step: &PlainStep) -> StreamHeld {
    let name = |block: usize| stream.blocks[block].name.clone();
    if let (Some(before), 1) = (blocks.before, results) {
        return Err(StreamRefusal::NothingHeld { block: name(blocks.block), before: name(before) });
    }
    let statements = step.statements(&stream.blocks[blocks.block], results);
    let offered = step.inside.is_empty() || statements <= STATEMENTS;
    offered.then_some(()).ok_or_else(|| StreamRefusal::Statements {
        block: name(blocks.block),
        statements,
        most: STATEMENTS,
    })
}

/// Registers of a thread for so many results, and for what it holds in a step.
pub fn held_by_thread(stream: &Stream, results: i64, step: &PlainStep) -> i64 {
    // Elements of fewer than four bytes share registers.
    let words = |held: &PlainHeld| {
        let bytes = i64::from(stream.buffers[held.buffer].dtype.bytes());
        held.elements().saturating_mul(bytes).saturating_add(3) / 4
    };
    step.held.iter().map(words).fold(results, i64::saturating_add)
}
