//! Words for every decision on tensor cores: those of the lines that `show` prints, and short ones.
use super::super::fixed::Fixed;
use super::super::parse::{clip, small, whole};
use super::{Multiplier, Way};
use satune_ir::term::tensor::{CopyOrder, GroupMma, Mma, Store, TileLayout, TileStore, Wmma};
use satune_ir::term::{Axis, Pair, Pipe};

/// What the language knows, for help and error messages.
pub(in crate::cli::ask) const WORDS: &str = "the lines of a candidate on tensor cores as show prints them, or of these: \
cores|mma.sync|wmma|wgmma|tcgen05, swapped [yes|no], tile MxNxK, N stages, T threads, k in P parts, blocks along the rows|down the columns|in groups of \
G rows over the columns|in groups of G columns over the rows; mma.sync: warp MxN [m outer|n outer], waits for N more, \
rolled|unrolled, instructions by rows|by columns, straight|back and forth, one at a time|two at once, k upwards|downwards, \
C from the fragments|by way of shared memory|by stmatrix and shared memory, resident B|any, A: and B: copies of N bytes, along \
rows|across rows|each thread its own, rolled|unrolled, at step N, N bytes to L2, swizzled [in spans of N]|rotated in spans \
of N|not swizzled|rows padded, ldmatrix xN, one set|two sets of fragments; wgmma, tcgen05: TMA|by threads, N consumers [in turn|together], cluster MxN, grid N|tiles, \
stream-k yes|no, freed at once|a tile later, an arrival per warp|per warpgroup, one after the other|step by step, C from the accumulators|by shared memory and TMA [in boxes]";

/// Reads one decision from the front of the words; how many words it takes, or none where it is none of these.
///
/// # Errors
/// A value that is none.
pub(in crate::cli::ask) fn read(fixed: &mut Fixed, words: &[&str]) -> Result<Option<usize>, String> {
    let taken = match words {
        ["cores", ..] => set(&mut fixed.kind, Multiplier::Cores, 1),
        ["swapped", answer @ ("yes" | "no"), ..] => set(&mut fixed.swapped, *answer == "yes", 2),
        ["swapped", ..] => set(&mut fixed.swapped, true, 1),
        ["TMA", ..] => {
            fixed.kind = Some(Multiplier::Wgmma);
            set(&mut fixed.wgmma.by_threads, false, 1)
        }
        ["by", "threads", ..] => {
            fixed.kind = Some(Multiplier::Wgmma);
            set(&mut fixed.wgmma.by_threads, true, 2)
        }
        // Of single threads' schedules as well.
        ["cp.async", ..] => 1,
        ["through", "registers", ..] => 2,
        ["wmma", rest @ ..] => {
            fixed.kind = Some(Multiplier::Mma);
            let of = |count: usize| whole_instruction(&rest.get(..count)?.join(" ")).map(|op| (op, count));
            // The longest name that there is.
            let named = (1..=rest.len().min(5)).rev().find_map(of);
            fixed.mma.instruction = named.map(|(op, _)| op).or(fixed.mma.instruction);
            1 + named.map_or(0, |(_, count)| count)
        }
        ["mma.sync", rest @ ..] => {
            fixed.kind = Some(Multiplier::Mma);
            let named = rest.first().and_then(|name| instruction(name));
            fixed.mma.instruction = named.or(fixed.mma.instruction);
            1 + usize::from(named.is_some())
        }
        [name @ ("wgmma" | "tcgen05"), rest @ ..] => {
            fixed.kind = Some(Multiplier::Wgmma);
            let op = if *name == "wgmma" { GroupMma::Wgmma } else { GroupMma::Tcgen05 };
            fixed.wgmma.op = Some(op);
            let columns = rest.first().and_then(|shape| shape.strip_prefix(&format!("m{}n", op.rows())));
            if let Some(n) = columns {
                fixed.wgmma.n = Some(whole(n)?);
            }
            1 + usize::from(columns.is_some())
        }
        ["tile", size, ..] => tile(fixed, size, 2)?,
        ["block", "tile", size, ..] => tile(fixed, size, 3)?,
        ["k", "in", parts, "parts", ..] => set(&mut fixed.split, whole(parts)?, 4),
        ["k", word @ ("upwards" | "downwards"), ..] => set(&mut fixed.mma.descending, *word == "downwards", 2),
        ["blocks", "along", "the", "rows", ..] => raster(fixed, true, None, 4),
        ["blocks", "down", "the", "columns", ..] => raster(fixed, false, None, 4),
        ["blocks", "in", "groups", "of", size, "rows", "over", "the", "columns", ..] => {
            raster(fixed, true, Some((Axis::M, whole(size)?)), 9)
        }
        ["blocks", "in", "groups", "of", size, "columns", "over", "the", "rows", ..] => {
            raster(fixed, false, Some((Axis::N, whole(size)?)), 9)
        }
        [count, "stages", ..] if is_number(count) => {
            let stages = u8::try_from(whole(count)?).map_err(|_| "too many stages".to_string())?;
            set(&mut fixed.stages, Pipe::Async(stages), 2)
        }
        [count, "threads", ..] if is_number(count) => set(&mut fixed.threads, number(count)?, 2),
        ["C", way @ ..] => match store(fixed, way) {
            Some(words) => 1 + words,
            None => return Err(format!("`C {}` is not known; known are {WORDS}", clip(&way.join(" ")))),
        },
        _ => match of_mma(fixed, words)? {
            0 => of_wgmma(fixed, words)?,
            words => words,
        },
    };
    Ok((taken > 0).then_some(taken))
}

/// Fixes a decision that took so many words.
fn set<T>(slot: &mut Option<T>, value: T, words: usize) -> usize {
    *slot = Some(value);
    words
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

fn number(text: &str) -> Result<u32, String> {
    small("a number", whole(text)?)
}

/// The same, or 0.
fn count(text: &str) -> Result<u32, String> {
    if text == "0" {
        Ok(0)
    } else {
        number(text)
    }
}

fn sizes(text: &str) -> Result<Vec<i64>, String> {
    text.split('x').map(whole).collect()
}

fn pair(text: &str) -> Result<[i64; 2], String> {
    let pair = sizes(text)?;
    pair.try_into().map_err(|_| format!("`{}` is not MxN", clip(text)))
}

fn tile(fixed: &mut Fixed, text: &str, words: usize) -> Result<usize, String> {
    match sizes(text)?[..] {
        [m, n] => fixed.block = Some(Pair { m, n }),
        [m, n, k] => (fixed.block, fixed.k) = (Some(Pair { m, n }), Some(k)),
        _ => return Err(format!("`{}` is not MxN or MxNxK", clip(text))),
    }
    Ok(words)
}

fn raster(fixed: &mut Fixed, m_outer: bool, group: Option<(Axis, i64)>, words: usize) -> usize {
    (fixed.blocks_m_outer, fixed.group) = (Some(m_outer), Some(group));
    words
}

fn instruction(name: &str) -> Option<Mma> {
    Mma::SYNC.into_iter().find(|op| format!("{op:?}").eq_ignore_ascii_case(name))
}

/// The instruction of `wmma` by its shape and type.
fn whole_instruction(name: &str) -> Option<Mma> {
    Wmma::all().map(Mma::Wmma).find(|op| op.to_string().eq_ignore_ascii_case(&format!("wmma {name}")))
}

fn store(fixed: &mut Fixed, way: &[&str]) -> Option<usize> {
    Some(match way {
        ["from", "the", "fragments", ..] => set(&mut fixed.mma.store, Store::Direct, 3),
        ["by", "stmatrix", "and", "shared", "memory", ..] => {
            set(&mut fixed.mma.store, Store::Shared { stmatrix: true }, 5)
        }
        ["by", "way", "of", "shared", "memory", ..] => set(&mut fixed.mma.store, Store::Shared { stmatrix: false }, 5),
        ["from", "the", "accumulators", ..] => set(&mut fixed.wgmma.store, TileStore::Direct, 3),
        ["by", "shared", "memory", "and", "TMA", "in", "boxes", ..] => set(&mut fixed.wgmma.store, TileStore::Boxes, 7),
        ["by", "shared", "memory", "and", "TMA", ..] => set(&mut fixed.wgmma.store, TileStore::Tma, 5),
        _ => return None,
    })
}

/// Words of `mma.sync`; 0: none of these.
fn of_mma(fixed: &mut Fixed, words: &[&str]) -> Result<usize, String> {
    let mma = &mut fixed.mma;
    Ok(match words {
        ["warp", "tile", rest @ ..] | ["warp", rest @ ..] => {
            let before = words.len() - rest.len();
            let [m, n] = pair(rest.first().copied().unwrap_or_default())?;
            mma.warp = Some(Pair { m, n });
            match rest.get(1..3) {
                Some([axis @ ("m" | "n"), "outer"]) => set(&mut mma.warps_m_outer, *axis == "m", before + 3),
                _ => before + 1,
            }
        }
        ["waits", "for", tiles, "more", ..] => set(&mut mma.slack, count(tiles)?, 4),
        ["rolled", ..] => set(&mut mma.rolled, true, 1),
        ["unrolled", ..] => set(&mut mma.rolled, false, 1),
        ["instructions", "by", lines @ ("rows" | "columns"), ..] => set(&mut mma.columns, *lines == "columns", 3),
        ["back", "and", "forth", ..] => set(&mut mma.serpentine, true, 3),
        ["straight", ..] => set(&mut mma.serpentine, false, 1),
        ["two", "at", "once", ..] => set(&mut mma.pairs, true, 3),
        ["one", "at", "a", "time", ..] => set(&mut mma.pairs, false, 4),
        [blocks, "blocks", "per", "multiprocessor", "asked", "for", ..] => {
            set(&mut mma.min_blocks, Some(number(blocks)?), 6)
        }
        ["resident", "any", ..] => set(&mut mma.min_blocks, None, 2),
        ["resident", blocks, ..] => set(&mut mma.min_blocks, Some(number(blocks)?), 2),
        _ => 0,
    })
}

/// Words of `wgmma`; 0: none of these.
fn of_wgmma(fixed: &mut Fixed, words: &[&str]) -> Result<usize, String> {
    let wgmma = &mut fixed.wgmma;
    Ok(match words {
        [consumers, "consumers", rest @ ..] => {
            wgmma.consumers = Some(number(consumers)?);
            let turn = if matches!(rest, ["in", "turn", ..]) { 2 } else { 0 };
            if let ["of", rows, "x", "64" | "128", "rows", ..] = &rest[turn..] {
                // The line of a description says of turns by saying nothing.
                (wgmma.row_blocks, wgmma.in_turn) = (Some(whole(rows)?), Some(turn > 0));
                2 + turn + 5
            } else {
                2
            }
        }
        ["consumers", consumers, ..] => set(&mut wgmma.consumers, number(consumers)?, 2),
        ["in", "turn", ..] => set(&mut wgmma.in_turn, true, 2),
        ["together", ..] => set(&mut wgmma.in_turn, false, 1),
        ["one", "after", "the", "other", ..] => set(&mut wgmma.by_rows, true, 4),
        ["step", "by", "step", ..] => set(&mut wgmma.by_rows, false, 3),
        ["freed", "at", "once", ..] => set(&mut wgmma.eager_release, true, 3),
        ["freed", "a", "tile", "later", ..] | ["freed", "by", "its", "instructions", ..] => {
            set(&mut wgmma.eager_release, false, 4)
        }
        ["an", "arrival", "per", each @ ("warp" | "warpgroup"), ..] => {
            set(&mut wgmma.arrive_per_warp, *each == "warp", 4)
        }
        ["clusters", "of", size, "tiles", ..] => set(&mut wgmma.cluster, cluster(size)?, 4),
        ["cluster", size, ..] => set(&mut wgmma.cluster, cluster(size)?, 2),
        [blocks, "blocks", "walk", "over", "the", "tiles", ..] => {
            (wgmma.grid, wgmma.stream_k) = (Some(Some(number(blocks)?)), Some(false));
            6
        }
        [blocks, "blocks", "share", "the", "tiles'", "steps", "along", "k", "evenly", ..] => {
            (wgmma.grid, wgmma.stream_k) = (Some(Some(number(blocks)?)), Some(true));
            9
        }
        ["grid", "tiles", ..] => set(&mut wgmma.grid, None, 2),
        ["grid", blocks, ..] => set(&mut wgmma.grid, Some(number(blocks)?), 2),
        ["stream-k", "no", ..] => set(&mut wgmma.stream_k, false, 2),
        ["stream-k", "yes", ..] => set(&mut wgmma.stream_k, true, 2),
        ["stream-k", ..] => set(&mut wgmma.stream_k, true, 1),
        _ => 0,
    })
}

fn cluster(text: &str) -> Result<[u32; 2], String> {
    let [m, n] = pair(text)?;
    Ok([small("a cluster", m)?, small("a cluster", n)?])
}

/// Reads one decision about an operand's way to the warps, as [`read`] does.
///
/// # Errors
/// A value that is none.
pub(in crate::cli::ask) fn read_way(way: &mut Way, words: &[&str]) -> Result<Option<usize>, String> {
    let taken = match words {
        ["copies", "of", bytes, "bytes", ..] => set(&mut way.bytes, number(bytes)?, 4),
        ["along", "rows", ..] => set(&mut way.order, CopyOrder::Rows, 2),
        ["across", "rows", ..] => set(&mut way.order, CopyOrder::Columns, 2),
        ["each", "thread", "its", "own", ..] => set(&mut way.order, CopyOrder::Own, 4),
        ["rolled", ..] => set(&mut way.rolled, true, 1),
        ["unrolled", ..] => set(&mut way.rolled, false, 1),
        ["at", "step", step, ..] => set(&mut way.step, count(step)?, 3),
        [bytes, "bytes", "to", "L2", ..] => set(&mut way.prefetch, count(bytes)?, 4),
        ["swizzled", "in", "spans", "of", span, ..] => set(&mut way.layout, TileLayout::Xor(chunks(span)?), 5),
        ["swizzled", ..] => set(&mut way.layout, TileLayout::Xor(8), 1),
        ["rotated", "in", "spans", "of", span, ..] => set(&mut way.layout, TileLayout::Rotate(chunks(span)?), 5),
        ["not", "swizzled", ..] => set(&mut way.layout, TileLayout::Plain, 2),
        ["rows", "padded", ..] => set(&mut way.layout, TileLayout::Padded, 2),
        // The only way to load fragments of that instruction.
        ["wmma.load", ..] => 1,
        ["ldmatrix", many, ..] => {
            let many = many.strip_prefix('x').ok_or_else(|| format!("`ldmatrix {}` is not ldmatrix xN", clip(many)))?;
            set(&mut way.matrices, number(many)?, 2)
        }
        ["one", "set", "of", "fragments", ..] => set(&mut way.sets, 1, 4),
        ["two", "sets", "of", "fragments", ..] => set(&mut way.sets, 2, 4),
        _ => 0,
    };
    Ok((taken > 0).then_some(taken))
}

fn chunks(text: &str) -> Result<u8, String> {
    u8::try_from(whole(text)?).map_err(|_| format!("a span of {} chunks is too long", clip(text)))
}
