//! What keeps decisions out of a streaming program's space: a menu without the size, or a condition of a rule, with its
//! numbers. The rules decide; after the space has said no, this puts a question that may leave decisions open to the
//! rules' own conditions.
use super::fixed::{Fixed, Kernel, KernelKind};
use crate::explore::limits;
use crate::streaming::StreamProblem;
use satune_extract::Descriptor;
use satune_ir::term::stream::{HeldRow, How, Inlining, RowParts, Stream, Streams, Window};
use satune_rewrites::space::conditions::plain::*;
use satune_rewrites::space::conditions::stream::*;
use satune_rewrites::space::stream::{why_not_cascaded, why_not_inlined, why_not_parted, StreamCondition, StreamMenu};

/// Decisions that no menu offers.
pub(super) fn outside(fixed: &Fixed, menu: &StreamMenu) -> Vec<String> {
    let mut out = Vec::new();
    for (_, k) in &fixed.kernels {
        let mut rows: Vec<i64> =
            menu.serial_rows.iter().flat_map(|s| menu.side_by_side.iter().map(move |y| s * y)).collect();
        let mut side_by_side = menu.side_by_side.clone();
        // A part of a warp for each row: how many threads that is in flat kernels follows from the rows.
        let short = matches!(k.implied(), None | Some(KernelKind::Flat)) && k.threads.is_none_or(part_of_warp);
        let row_threads = || menu.threads.iter().chain(&menu.part_threads).copied();
        if short {
            rows.extend(&menu.short_rows);
            side_by_side.extend(&menu.short_rows);
        }
        let threads: Vec<i64> = match k.implied() {
            Some(KernelKind::Tile) => menu.tile_threads.clone(),
            // Those of a contraction are a product of its own sizes.
            Some(KernelKind::Tiled) => k.threads.into_iter().collect(),
            _ => match k.sharing.filter(|(threads, _)| *threads > 1) {
                Some((_, lanes)) => menu.shared_results[usize::from(lanes)].clone(),
                None if short => k.threads.into_iter().chain(row_threads()).collect(),
                None if k.implied() == Some(KernelKind::Rows) => row_threads().collect(),
                None => menu.threads.clone(),
            },
        };
        let sharing: Vec<i64> = match k.sharing {
            Some((_, lanes)) => [vec![1], menu.sharing[usize::from(lanes)].clone()].concat(),
            None => Vec::new(),
        };
        let windows = [vec![1], menu.windows.clone()].concat();
        for (value, sizes, what) in [
            (k.rows, &rows, "rows of a block"),
            (k.side_by_side, &side_by_side, "rows side by side"),
            (k.threads, &threads, "threads"),
            (k.sharing.map(|(threads, _)| threads), &sharing, "threads that share a sum"),
            (k.vector, &menu.vectors, "elements per access"),
            (k.window.as_ref().map(|(results, _)| *results), &windows, "results along a window"),
            (k.steps, &menu.steps, "unrolled steps"),
            (k.tile, &menu.tiles, "elements along a tile's side"),
            (k.pad, &menu.pads, "elements of padding"),
        ] {
            let Some(value) = value.filter(|v| !sizes.contains(v)) else { continue };
            let mut sizes = sizes.clone();
            sizes.sort_unstable();
            sizes.dedup();
            out.push(format!("{value} {what} (the menu is {sizes:?})"));
        }
    }
    out
}

/// Kinds of kernels that are asked for and that no block of the program can be.
pub(super) fn impossible(fixed: &Fixed, streams: &Streams) -> Vec<String> {
    let some = |able: &dyn Fn(&Stream, usize) -> bool| {
        streams.works.iter().any(|v| (0..v.blocks.len()).any(|block| able(v, block)))
    };
    let mut out = Vec::new();
    for kind in fixed.kernels.iter().filter_map(|(_, kernel)| kernel.implied()) {
        let (possible, why) = match kind {
            KernelKind::Tile => (
                some(&|v, block| v.transposed(block).is_some()),
                "no block of the program is a transpose of one buffer, which tiles are for",
            ),
            KernelKind::Rows => (
                some(&|v, block| v.fits_row(block, block + 1)),
                "no block of the program reduces rows: it has no kernel of rows",
            ),
            KernelKind::Flat => {
                (some(&|v, block| v.fits_flat(block, block + 1)), "no block of the program is a map over all elements")
            }
            KernelKind::Plain => (
                some(&|v, block| v.fits_plain(block, block + 1)),
                "no block of the program is left to plain kernels: others take them all",
            ),
            KernelKind::Tiled => (
                streams.works.iter().any(|v| !v.tiled.is_empty()),
                "no blocks of the program are a contraction by themselves",
            ),
        };
        if !possible && !out.iter().any(|o| o == why) {
            out.push(why.to_string());
        }
    }
    out
}

/// Conditions of the rules that what is fixed breaks, with their numbers; empty where it takes more than a look at one or
/// two decisions to see it.
pub(super) fn broken(fixed: &Fixed, problem: &StreamProblem, gpu: &Descriptor) -> Vec<String> {
    let mut out = Vec::new();
    let streams = &problem.streams;
    for (block, inlined) in &fixed.inlined {
        let can = streams.becomes().any(|how| matches!(how, How::Inline(inlining) if inlining.block == *block));
        if *inlined && !can {
            out.extend(why_not_inlined(&problem.program, block).map(|why| format!("{block} is not inlined: {why}")));
        }
    }
    let offered = streams.roots.iter().any(|(parts, _)| parts.cascaded);
    if fixed.cascaded == Some(true) && !offered {
        out.extend(why_not_cascaded(&problem.program, streams.whole()));
    } else if let Some(number) = fixed.parts {
        let ways =
            [false, true].into_iter().filter(|way| fixed.cascaded.map_or(offered || !way, |asked| asked == *way));
        let refusals = ways.map(|cascaded| why_not_parted(streams.whole(), RowParts { number, cascaded }));
        out.extend(refusals.collect::<Option<Vec<String>>>().unwrap_or_default().pop());
    }
    // The blocks that are asked about, as far as it is said; else the source's.
    let inlined = |inlining: &Inlining| fixed.inlined.iter().any(|(b, inlined)| *inlined && *b == inlining.block);
    let parts = streams.roots.iter().map(|(parts, _)| *parts).find(|parts| fixed.splits(*parts));
    let way = parts.and_then(|parts| streams.way(parts, &inlined, &mut |_| true));
    let stream = &way.map_or_else(|| streams.whole().clone(), |way| streams.joined(&way.kernels));
    if fixed.one {
        whole(stream, (0, stream.blocks.len()), &mut out);
    }
    for (name, kernel) in &fixed.kernels {
        let ranges = match (fixed.one, &kernel.blocks) {
            (true, None) => vec![(0, stream.blocks.len())],
            _ => ranges(name.as_deref(), kernel, stream),
        };
        of_kernel(ranges, kernel, (stream, gpu), &mut out);
    }
    out.sort();
    out.dedup();
    out
}

/// What no kernel takes together, and why.
fn whole(stream: &Stream, (from, to): (usize, usize), out: &mut Vec<String>) {
    let one = to == from + 1;
    let flat = flat_fits(stream, from, to);
    let other = one && transposes(stream, from).is_ok() || plain_fits(stream, from, to).is_ok();
    if flat.is_ok() || other {
        return;
    }
    let maps = !one && stream.same_elements(from, to);
    ask(out, if maps { flat } else { row_fits(stream, from, to) });
}

/// What a condition says, where it does not hold.
fn ask(out: &mut Vec<String>, held: StreamHeld) {
    out.extend(held.err().map(|refusal| refusal.to_string()));
}

/// The kernels that a clause is about: those with a named block, or all that can be made of one block or of all of them.
fn ranges(name: Option<&str>, kernel: &Kernel, stream: &Stream) -> Vec<(usize, usize)> {
    let at = |name: &str| stream.blocks.iter().position(|b| b.name == name);
    match (&kernel.blocks, name) {
        (Some(blocks), _) => {
            let from = blocks.first().and_then(|b| at(b));
            let same = from.filter(|f| {
                let here = stream.blocks[*f..].iter().map(|b| &b.name);
                here.take(blocks.len()).eq(blocks.iter())
            });
            same.map(|from| (from, from + blocks.len())).into_iter().collect()
        }
        (None, Some(name)) => at(name).map(|from| (from, from + 1)).into_iter().collect(),
        (None, None) => (0..stream.blocks.len()).map(|from| (from, from + 1)).collect(),
    }
}

fn of_kernel(
    ranges: Vec<(usize, usize)>,
    kernel: &Kernel,
    (stream, gpu): (&Stream, &Descriptor),
    out: &mut Vec<String>,
) {
    if let (Some(blocks), []) = (&kernel.blocks, ranges.as_slice()) {
        out.push(format!("{} do not follow each other among the blocks that are left", blocks.join(" + ")));
    }
    let mut reasons: Vec<Vec<String>> = Vec::new();
    for (from, to) in ranges {
        let mut own = Vec::new();
        whole(stream, (from, to), &mut own);
        let kind = match (kernel.implied(), to == from + 1) {
            (Some(KernelKind::Tile), true) => transposes(stream, from),
            (Some(KernelKind::Flat), _) => flat_fits(stream, from, to),
            (Some(KernelKind::Plain), _) => plain_fits(stream, from, to),
            (Some(KernelKind::Rows), _) => row_fits(stream, from, to),
            (Some(KernelKind::Tiled), _) => contraction_fits(stream, from, to),
            (Some(KernelKind::Tile), false) => {
                Err(StreamRefusal::OneBlock { blocks: names(stream, from, to), kernel: "a transpose" })
            }
            (None, _) => Ok(()),
        };
        match kind {
            Err(refusal) => own.push(refusal.to_string()),
            Ok(()) if kernel.implied() == Some(KernelKind::Tile) => tile(kernel, (stream, from), gpu, &mut own),
            Ok(()) if kernel.implied() == Some(KernelKind::Plain) => plain(kernel, (stream, from, to), gpu, &mut own),
            Ok(()) => rows(kernel, (stream, from, to), gpu, &mut own),
        }
        reasons.push(own);
    }
    // Said of every kernel, it is refused where no kernel takes it.
    if reasons.iter().all(|r| !r.is_empty()) {
        out.extend(reasons.into_iter().flatten());
    }
}

fn plain(kernel: &Kernel, (stream, from, to): (&Stream, usize, usize), gpu: &Descriptor, out: &mut Vec<String>) {
    let Some(blocks) = stream.plain_blocks(from, to) else { return };
    let (sharing, lanes) = kernel.sharing.unwrap_or((1, false));
    if sharing > 1 {
        ask(out, shared_loop(stream, blocks, sharing, lanes).map(drop));
    }
    if let Some(vector) = kernel.vector.filter(|vector| *vector > 1) {
        ask(out, neighbours(stream, from, to, vector, sharing));
        ask(out, vector_bytes(vector, widest_of_any(stream, from, to)));
    }
    let window = kernel.window.as_ref().filter(|(results, _)| *results > 1);
    let mut along = None;
    if let Some((results, named)) = window {
        let offered = stream.windows(from, to);
        let iters = &stream.blocks[blocks.block].iters;
        let of_name = |name: &String| iters.iter().position(|i| i.name == *name);
        let iter = named.as_ref().map_or_else(|| offered.first().copied(), of_name).unwrap_or(iters.len());
        along = Some(Window { iter, results: *results });
        ask(out, along.map_or(Ok(()), |window| window_fits(stream, blocks, &offered, window, sharing)));
    }
    if let (Some(vector), true) =
        (kernel.vector, along.is_none_or(|window| window.iter < stream.blocks[blocks.block].iters.len()))
    {
        let step = stream.plain_step(blocks, vector, along);
        let results = vector.saturating_mul(along.map_or(1, |window| window.results));
        let settled = kernel.window.is_some();
        ask(out, if settled { step_fits(stream, blocks, results, &step) } else { Ok(()) });
        let held = held_by_thread(stream, results, &step);
        ask(out, registers_fit(held, crate::streaming::menu().held_elements));
    }
    if let Some(threads) = kernel.threads {
        ask(out, threads_fit(threads, sharing, limits(gpu).threads.into()));
    }
}

fn rows(kernel: &Kernel, (stream, from, to): (&Stream, usize, usize), gpu: &Descriptor, out: &mut Vec<String>) {
    let limits = limits(gpu);
    let Some(first) = stream.blocks[from..to].first() else { return };
    let (all, columns, row_iters) = match stream.row_shape(from, to) {
        Some(shape) => (shape.rows, shape.columns, shape.row_iters),
        None => {
            let columns = first.iters.last().map_or(1, |i| i.extent);
            (first.instances() / columns.max(1), columns, first.iters.len().saturating_sub(1))
        }
    };
    if let Some(per_block) = kernel.rows.or(kernel.side_by_side) {
        ask(out, rows_divide(per_block, all));
    }
    if let (Some(rows), Some(side)) = (kernel.rows, kernel.side_by_side) {
        ask(out, teams_divide(side, rows));
    }
    let side_by_side = kernel.side_by_side.unwrap_or(1);
    if let Some(threads) = kernel.threads {
        ask(out, threads_fit(threads, side_by_side, limits.threads.into()));
        let (steps, vector) = (kernel.steps.unwrap_or(1), kernel.vector.unwrap_or(1));
        ask(out, no_idle_warp(threads.saturating_mul(steps), vector, columns));
        if stream.fits_flat(from, to) {
            ask(out, short_row(threads, steps, kernel.vector.unwrap_or(columns / threads.max(1)), columns));
        } else {
            ask(out, part_team(threads, vector, columns));
        }
        if let Some(rows) = kernel.side_by_side {
            ask(out, whole_warps(threads, rows));
        }
    }
    if let Some(vector) = kernel.vector {
        ask(out, vector_bytes(vector, widest(stream, from, to, row_iters)));
        ask(out, vector_divides(vector, stream.row_shape(from, to).map_or(columns, |shape| shape.innermost)));
        ask(out, pipeline(stream, from, to, vector));
    }
    // What is left open is taken as whoever needs least: one row, and as many threads as there are.
    let (threads, vector) = (kernel.threads.unwrap_or(limits.threads.into()), kernel.vector.unwrap_or(1));
    let team = Team { columns, side_by_side, threads, vector };
    let held = stream.rows_of(from, to, kernel.rows.unwrap_or(2));
    let (mut in_shared, mut in_registers) = (0, Vec::new());
    for (buffer, place) in &kernel.held {
        let Some(number) = stream.buffer(buffer) else { continue };
        let Some(row) = held.iter().find(|row| row.buffer == number) else {
            let why = match stream.pipeline {
                true => "no two blocks of the kernel read or make a row of it, and it has no value per column for several rows",
                false => StreamCondition::Pipeline.text(),
            };
            out.push(format!("{buffer} is not held: {why}"));
            continue;
        };
        ask(out, holdable(buffer, row.form, row.made, *place));
        ask(out, rows_apart(buffer, *place, side_by_side, row_iters, row.made));
        let (shared, registers) = team.taken(row.form, *place, i64::from(stream.buffers[number].dtype.bytes()));
        in_shared += shared;
        in_registers.push((*row, registers));
    }
    ask(out, shared_fits(HELD_ROWS, in_shared, limits.shared_bytes));
    ask(out, registers_fit(HeldRow::most_at_once(&in_registers), crate::streaming::menu().held_elements));
}

fn tile(kernel: &Kernel, (stream, block): (&Stream, usize), gpu: &Descriptor, out: &mut Vec<String>) {
    let limits = limits(gpu);
    let Some((read, write, access)) = stream.transposed(block) else { return };
    let b = &stream.blocks[block];
    if let Some(vector) = kernel.vector {
        ask(out, vector_bytes(vector, Some(widest_of_tile(stream, block, access))));
        for row in [b.iters[read].extent, b.iters[write].extent].into_iter().chain(kernel.tile) {
            ask(out, vector_divides(vector, row));
        }
        if let Some(pad) = kernel.pad {
            ask(out, pad_whole(pad, vector));
        }
    }
    if let (Some(side), Some(threads)) = (kernel.tile, kernel.threads) {
        ask(out, team_divides(threads, side, kernel.vector.unwrap_or(1)));
    }
    if let Some(threads) = kernel.threads {
        ask(out, threads_fit(threads, 1, limits.threads.into()));
    }
    if let Some(side) = kernel.tile {
        let bytes = i64::from(stream.buffers[b.reads[access].buffer].dtype.bytes());
        let bytes = side.saturating_mul(side.saturating_add(kernel.pad.unwrap_or(0))).saturating_mul(bytes);
        ask(out, shared_fits(TILE, bytes, limits.shared_bytes));
    }
}
