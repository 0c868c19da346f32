//! What keeps decisions out of a streaming program's space: a menu without the size, or a condition of a rule, with its
//! numbers. The rules decide; this only says why, after the space has said no.
use super::fixed::{Fixed, Kernel, Kind};
use crate::explore::limits;
use crate::streaming::StreamProblem;
use satune_extract::Descriptor;
use satune_ir::term::stream::{AccessForm, Place, Stream, Streams};
use satune_rewrites::space::stream::{why_not_inlined, why_not_parted, StreamCondition, StreamMenu};

/// Decisions that no menu offers.
pub(super) fn outside(fixed: &Fixed, menu: &StreamMenu) -> Vec<String> {
    let mut out = Vec::new();
    for (_, k) in &fixed.kernels {
        let rows: Vec<i64> =
            menu.serial_rows.iter().flat_map(|s| menu.side_by_side.iter().map(move |y| s * y)).collect();
        let threads: Vec<i64> = match k.implied() {
            Some(Kind::Tile) => menu.tile_threads.clone(),
            _ => menu.threads.clone(),
        };
        for (value, sizes, what) in [
            (k.rows, &rows, "rows of a block"),
            (k.side_by_side, &menu.side_by_side, "rows side by side"),
            (k.threads, &threads, "threads"),
            (k.vector, &menu.vectors, "elements per access"),
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
        streams.variants.iter().any(|v| (0..v.blocks.len()).any(|block| able(v, block)))
    };
    let mut out = Vec::new();
    for kind in fixed.kernels.iter().filter_map(|(_, kernel)| kernel.implied()) {
        let (possible, why) = match kind {
            Kind::Tile => (
                some(&|v, block| v.transposed(block).is_some()),
                "no block of the program is a transpose of one buffer, which tiles are for",
            ),
            Kind::Rows => (
                some(&|v, block| v.fits_row(block, block + 1)),
                "no block of the program reduces rows: it has no kernel of rows",
            ),
            Kind::Flat => (some(&|v, block| v.fits_flat(block)), "no block of the program is a map over all elements"),
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
        let can = streams.inline.iter().any(|(_, number, _, _)| streams.source.get(*number) == Some(block));
        if *inlined && !can {
            out.extend(why_not_inlined(&problem.program, block).map(|why| format!("{block} is not inlined: {why}")));
        }
    }
    if let (Some(parts), Some(source)) = (fixed.parts, streams.variants.first()) {
        out.extend(why_not_parted(source, parts));
    }
    // The variant that is asked about, as far as it is said; else the source.
    let wanted = |v: &&Stream| {
        fixed.inlined.iter().all(|(b, inlined)| v.inlined.iter().any(|i| i.block == *b) == *inlined)
            && fixed.parts.is_none_or(|p| p == v.parts)
    };
    let Some(stream) = streams.variants.iter().find(wanted).or(streams.variants.first()) else { return out };
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

/// Whether some kernel takes blocks together.
fn whole(stream: &Stream, (from, to): (usize, usize), out: &mut Vec<String>) {
    let one = to == from + 1;
    if stream.fits_row(from, to) || one && (stream.fits_flat(from) || stream.transposed(from).is_some()) {
        return;
    }
    let names: Vec<&str> = stream.blocks[from..to].iter().map(|b| b.name.as_str()).collect();
    let why = match stream.row_shape(from, to) {
        None => "there is no reduction among them whose rows and columns all of them have".to_string(),
        Some(_) => {
            let outlives = stream.blocks[from..to - 1].iter().find(|b| stream.outlives(b.write.buffer, to));
            match outlives {
                Some(b) => format!("{} is needed after the kernel, and only its last block writes what is", stream.buffers[b.write.buffer].name),
                None => "an access among them neither follows the rows nor the columns, or nobody reads what one of them makes".into(),
            }
        }
    };
    out.push(format!("{} make no kernel: {why} ({})", names.join(" + "), StreamCondition::RowFits));
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
        let names: Vec<&str> = stream.blocks[from..to].iter().map(|b| b.name.as_str()).collect();
        let names = names.join(" + ");
        let one = to == from + 1;
        match kernel.implied() {
            Some(Kind::Tile) if !one || stream.transposed(from).is_none() => {
                own.push(format!("{names} is no transpose of one buffer, which tiles are for"));
            }
            Some(Kind::Flat) if !one || !stream.fits_flat(from) => {
                own.push(format!("{names} is no kernel over all elements: {}", StreamCondition::FlatFits));
            }
            Some(Kind::Rows) if !stream.fits_row(from, to) => {
                own.push(format!("{names} is no kernel of rows: {}", StreamCondition::RowFits));
            }
            Some(Kind::Tile) => tile(kernel, (stream, from), gpu, &mut own),
            _ => rows(kernel, (stream, from, to), gpu, &mut own),
        }
        reasons.push(own);
    }
    // Said of every kernel, it is refused where no kernel takes it.
    if reasons.iter().all(|r| !r.is_empty()) {
        out.extend(reasons.into_iter().flatten());
    }
}

fn rows(kernel: &Kernel, (stream, from, to): (&Stream, usize, usize), gpu: &Descriptor, out: &mut Vec<String>) {
    let limits = limits(gpu);
    let blocks = &stream.blocks[from..to];
    let Some(first) = blocks.first() else { return };
    let (all, columns, row_iters) = match stream.row_shape(from, to) {
        Some(shape) => (shape.rows, shape.columns, shape.row_iters),
        None => {
            let columns = first.iters.last().map_or(1, |i| i.extent);
            (first.instances() / columns.max(1), columns, first.iters.len().saturating_sub(1))
        }
    };
    let per_block = kernel.rows.or(kernel.side_by_side);
    if let Some(n) = per_block.filter(|n| *n > 0 && all % n != 0) {
        out.push(format!("{n} rows of a block do not divide {all} rows: {}", StreamCondition::RowsDivide));
    }
    if let (Some(rows), Some(side)) = (kernel.rows, kernel.side_by_side) {
        if side > 0 && rows % side != 0 {
            out.push(format!("{side} rows side by side do not divide the {rows} of a block"));
        }
    }
    let side_by_side = kernel.side_by_side.unwrap_or(1);
    if let Some(threads) = kernel.threads {
        let total = threads * side_by_side;
        if total > i64::from(limits.threads) {
            out.push(format!(
                "{threads} threads for each of {side_by_side} rows are {total}: {} ({})",
                StreamCondition::ThreadsFit,
                limits.threads
            ));
        }
        let vector = kernel.vector.unwrap_or(1);
        if threads > 32 && (threads - 32) * vector >= columns {
            out.push(format!(
                "{threads} threads with {vector} elements each leave a warp without any of a row's {columns}"
            ));
        }
    }
    if let Some(vector) = kernel.vector {
        let along = |b: &satune_ir::term::stream::StreamBlock, a: &satune_ir::term::stream::Access| {
            matches!(b.form(a, row_iters), AccessForm::Full | AccessForm::PerColumn | AccessForm::SharedRow)
        };
        let widest = blocks
            .iter()
            .flat_map(|b| b.reads.iter().chain([&b.write]).filter(move |a| along(b, a)))
            .map(|a| (i64::from(stream.buffers[a.buffer].dtype.bytes()), stream.buffers[a.buffer].name.as_str()))
            .max();
        if let Some((bytes, name)) = widest.filter(|(bytes, _)| bytes * vector > 16) {
            out.push(format!(
                "{vector} elements of {name} take {} bytes: {}",
                bytes * vector,
                StreamCondition::VectorBytes
            ));
        }
        if vector > 0 && columns % vector != 0 {
            out.push(format!("{vector} elements do not divide rows of {columns}: {}", StreamCondition::VectorDivides));
        }
    }
    for (buffer, place) in &kernel.held {
        let Some(number) = stream.buffer(buffer) else { continue };
        let held = stream.held(from, to, kernel.rows.unwrap_or(2));
        let Some((_, form)) = held.iter().find(|(b, _)| *b == number) else {
            out.push(format!("{buffer} is not held: no two blocks of the kernel read or make a row of it, and it has no value per column for several rows"));
            continue;
        };
        let made = stream.made_in(number, from, to);
        if *place == Place::Global && made {
            out.push(format!("{buffer} passes between blocks of the kernel, and never through global memory"));
        }
        if *place == Place::Registers && *form == AccessForm::PerColumn {
            out.push(format!("{buffer} has a value per column for several rows, which shared memory holds"));
        }
        let bytes = columns
            * i64::from(stream.buffers[number].dtype.bytes())
            * if *form == AccessForm::PerColumn { 1 } else { side_by_side };
        if *place == Place::Shared && bytes > limits.shared_bytes {
            out.push(format!(
                "{columns} elements of {buffer} for {side_by_side} rows take {bytes} bytes; a block has {}: {}",
                limits.shared_bytes,
                StreamCondition::SharedFits
            ));
        }
        let most = crate::streaming::menu().held_elements;
        let (threads, vector) = (kernel.threads.unwrap_or(1024), kernel.vector.unwrap_or(1));
        let each = (columns + threads * vector - 1) / (threads * vector).max(1) * vector;
        if *place == Place::Registers && each > most {
            out.push(format!(
                "{each} elements of {buffer} for a thread; at most {most} are held: {}",
                StreamCondition::RegistersFit
            ));
        }
    }
}

fn tile(kernel: &Kernel, (stream, block): (&Stream, usize), gpu: &Descriptor, out: &mut Vec<String>) {
    let limits = limits(gpu);
    let Some((read, write, access)) = stream.transposed(block) else { return };
    let b = &stream.blocks[block];
    let source = i64::from(stream.buffers[b.reads[access].buffer].dtype.bytes());
    let target = i64::from(stream.buffers[b.write.buffer].dtype.bytes());
    if let Some(vector) = kernel.vector.filter(|v| *v > 0) {
        if vector * source.max(target) > 16 {
            out.push(format!(
                "{vector} elements take {} bytes: {}",
                vector * source.max(target),
                StreamCondition::VectorBytes
            ));
        }
        let (a, c) = (b.iters[read].extent, b.iters[write].extent);
        if a % vector != 0 || c % vector != 0 {
            out.push(format!(
                "{vector} elements do not divide rows of {a} and {c}: {}",
                StreamCondition::VectorDivides
            ));
        }
        if let Some(pad) = kernel.pad.filter(|pad| pad % vector != 0 && pad % 2 == 0) {
            out.push(format!("rows padded by {pad} keep a part of an access of {vector}"));
        }
    }
    if let (Some(side), Some(threads)) = (kernel.tile, kernel.threads) {
        let along = side / kernel.vector.unwrap_or(1).max(1);
        let rows = threads / along.max(1);
        if along > 0 && (threads % along != 0 || rows > side || side % rows.max(1) != 0) {
            out.push(format!("{threads} threads on rows of {along} accesses: {}", StreamCondition::TeamDivides));
        }
    }
    if let Some(side) = kernel.tile {
        let bytes = side * (side + kernel.pad.unwrap_or(0)) * source;
        if bytes > limits.shared_bytes {
            out.push(format!(
                "a tile of {side} x {side} takes {bytes} bytes; a block has {}: {}",
                limits.shared_bytes,
                StreamCondition::SharedFits
            ));
        }
    }
}
