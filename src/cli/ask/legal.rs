//! What keeps decisions out of a space: a menu without the size, or a condition of a rule, with its numbers. The rules
//! decide; this only says why, so everything here is asked after the space has said no, or is about menus.
use super::fixed::{Fixed, Operand};
use satune_ir::term::{Axis, Contraction, Layout, Pair, Pipe, Side};
use satune_rewrites::space::{Limits, Menu};

const WIDTHS: [u32; 4] = [1, 2, 4, 8];

/// Decisions that no menu offers.
pub(super) fn outside(fixed: &Fixed, menu: &Menu) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(Pair { m, n }) = fixed.block {
        for (size, sizes, axis) in [(m, &menu.tile_m, "m"), (n, &menu.tile_n, "n")] {
            if !sizes.contains(&size) {
                out.push(format!("block tile {size} along {axis} (the menu is {sizes:?})"));
            }
        }
    }
    if let Some(k) = fixed.k.filter(|k| !menu.tile_k.contains(k)) {
        out.push(format!("k tile {k} (the menu is {:?})", menu.tile_k));
    }
    let threads = fixed.threads.map(i64::from).or(fixed.thread_grid.map(Pair::product));
    if let Some(t) = threads.filter(|t| !menu.threads.iter().any(|x| i64::from(*x) == *t)) {
        out.push(format!("{t} threads (the menu is {:?})", menu.threads));
    }
    for (pair, name) in [(fixed.vthreads_outside, "outside the warps"), (fixed.vthreads_inside, "inside a warp")] {
        for size in pair.into_iter().flat_map(|p| [p.m, p.n]) {
            if !menu.vthreads.contains(&size) {
                out.push(format!("{size} vthreads {name} (the menu is {:?})", menu.vthreads));
            }
        }
    }
    if let Some(p) = fixed.registers.filter(|p| p.m.max(p.n) > menu.registers) {
        out.push(format!("registers {}x{} (the menu ends at {} along an axis)", p.m, p.n, menu.registers));
    }
    if let Some(s) = fixed.split.filter(|s| *s > 1 && !menu.split_k.contains(s)) {
        out.push(format!("split {s} (the menu is {:?})", menu.split_k));
    }
    if let Some(Some((axis, size))) = fixed.group {
        if !menu.groups.contains(&size) {
            out.push(format!("group {axis} {size} (the menu is {:?})", menu.groups));
        }
    }
    if let Some(Pipe::Async(stages)) = fixed.stages.filter(|_| !menu.async_stages.is_empty()) {
        if !menu.async_stages.contains(&stages) {
            out.push(format!("{stages} stages of cp.async (the menu is {:?})", menu.async_stages));
        }
    }
    if let Some(s) = fixed.step.filter(|s| ![1, 2, 4].contains(s)) {
        out.push(format!("k step {s} (the menu is [1, 2, 4])"));
    }
    let widths = [
        (fixed.a.fill, "fill of A"),
        (fixed.b.fill, "fill of B"),
        (fixed.a.local.flatten(), "local copy of A"),
        (fixed.b.local.flatten(), "local copy of B"),
        (fixed.store, "store"),
    ];
    for (width, name) in widths {
        if let Some(w) = width.filter(|w| !WIDTHS.contains(w)) {
            out.push(format!("vector {w} for the {name} (the menu is {WIDTHS:?})"));
        }
    }
    out
}

/// Conditions of the rules that what is fixed breaks, with their numbers; empty where it takes more than a look at one
/// or two decisions to see it.
pub(super) fn broken(fixed: &Fixed, c: &Contraction, limits: &Limits, menu: &Menu) -> Vec<String> {
    let mut out = Vec::new();
    threads(fixed, c, limits, &mut out);
    shared(fixed, c, limits, menu, &mut out);
    let strip = strip_length(fixed, c, menu);
    for side in [Side::A, Side::B] {
        operand(fixed, c, (side, strip), &mut out);
    }
    if let Some(parts) = fixed.split.filter(|s| *s > 1) {
        let k = c.extent(Axis::K);
        let longest = menu.tile_k.iter().copied().max().unwrap_or(1);
        if k % parts != 0 {
            out.push(format!("rfactor: split {parts} does not divide k = {k}"));
        } else if k / parts < 2 * longest {
            out.push(format!(
                "rfactor: split {parts} leaves {} of k to a part, less than two of the longest k tile ({longest})",
                k / parts
            ));
        }
        if fixed.accumulators == Some(false) {
            out.push(format!(
                "rfactor: the partial sums of split {parts} are kept in registers, never in global memory"
            ));
        }
    }
    if let (Some(Some((axis, size))), Some(block)) = (fixed.group, fixed.block) {
        let blocks = |a: Axis, tile: i64| (c.extent(a) + tile - 1) / tile;
        let (along, across) = match axis {
            Axis::M => (blocks(Axis::M, block.m), blocks(Axis::N, block.n)),
            _ => (blocks(Axis::N, block.n), blocks(Axis::M, block.m)),
        };
        if along % size != 0 || size >= along || across == 1 {
            out.push(format!(
                "grouped rasterization: group {axis} {size} of {along} blocks along {axis} and {across} across; it has to divide \
                 them into more than one group, with more than one block across"
            ));
        }
    }
    if let Some(width) = fixed.store.filter(|w| *w > 1) {
        let bytes = width * c.c.dtype.bytes();
        let row = c.extent(Axis::N);
        if bytes > 16 {
            out.push(format!("vectorize: a store of {width} takes {bytes} bytes; an access has 16 at most"));
        }
        if !c.c.contiguous_along(Axis::N) {
            out.push(format!("vectorize: a store of {width} along n, but rows of {} do not run along n", c.c.name));
        } else if row % i64::from(width) != 0 {
            out.push(format!("vectorize: a store of {width} is not aligned in rows of {row} elements"));
        }
        if let Some(r) = fixed.registers.filter(|r| r.n % i64::from(width) != 0) {
            out.push(format!(
                "vectorize: a store of {width} does not divide the {} neighbouring results of a thread",
                r.n
            ));
        }
    }
    if let (Some(init), Some(accumulators)) = (fixed.init_hoisted, fixed.accumulators) {
        if init != accumulators {
            out.push(
                "decompose_reduction: sums in registers are cleared before the k loop, sums in global memory inside it"
                    .into(),
            );
        }
    }
    if let (Some(k), Some(step)) = (fixed.k, fixed.step) {
        if k % step != 0 {
            out.push(format!("split k: a step of {step} does not divide the k tile {k}"));
        }
    }
    if let Some(step) = fixed.step {
        if step > 1 && [&fixed.a, &fixed.b].iter().all(|o| o.k_major == Some(true) || o.shared == Some(false)) {
            out.push(format!(
                "split k: a step of {step} needs an operand whose rows in shared memory run along k (x-major)"
            ));
        }
    }
    out
}

/// Threads, registers, and whether the tiling multiplies out to the block tile.
fn threads(fixed: &Fixed, c: &Contraction, limits: &Limits, out: &mut Vec<String>) {
    let words = i64::from(c.accumulate.bytes().max(4) / 4);
    let threads = fixed.threads.map(i64::from).or(fixed.thread_grid.map(Pair::product));
    if let (Some(t), Some(grid)) = (fixed.threads, fixed.thread_grid) {
        if i64::from(t) != grid.product() {
            out.push(format!("threads {}x{} are {}, not {t}", grid.m, grid.n, grid.product()));
        }
    }
    if let (Some(block), Some(threads)) = (fixed.block, threads) {
        let results = block.product();
        let need = results / threads * words;
        if results % threads != 0 {
            out.push(format!("bind: {results} results of the block tile do not divide among {threads} threads"));
        } else if need + 40 > limits.registers {
            out.push(format!(
                "cache_write: {need} registers of accumulators for each of {threads} threads (and 40 for the rest); a thread has {}",
                limits.registers
            ));
        }
    }
    if let Some(lanes) = fixed.lanes.filter(|l| l.product() != 32) {
        out.push(format!("bind: lanes {}x{} are {}; a warp has 32", lanes.m, lanes.n, lanes.product()));
    }
    if let (Some(warps), Some(threads)) = (fixed.warps, threads) {
        if warps.product() * 32 != threads {
            out.push(format!(
                "bind: warps {}x{} are {} threads, not {threads}",
                warps.m,
                warps.n,
                warps.product() * 32
            ));
        }
    }
    let one_by_one = |pick: fn(&Pair) -> i64| -> Option<(i64, String)> {
        let vthreads = match (fixed.vthreads, fixed.vthreads_outside, fixed.vthreads_inside) {
            (Some(v), _, _) => pick(&v),
            (None, Some(o), Some(i)) => pick(&o) * pick(&i),
            _ => return None,
        };
        let threads = match (fixed.thread_grid, fixed.warps, fixed.lanes) {
            (Some(g), _, _) => pick(&g),
            (None, Some(w), Some(l)) => pick(&w) * pick(&l),
            _ => return None,
        };
        let registers = pick(&fixed.registers?);
        let text = format!("vthreads {vthreads} x threads {threads} x registers {registers}");
        Some((vthreads * threads * registers, text))
    };
    if let Some(block) = fixed.block {
        for (tile, axis, product) in [(block.m, "m", one_by_one(|p| p.m)), (block.n, "n", one_by_one(|p| p.n))] {
            if let Some((product, text)) = product.filter(|(p, _)| *p != tile) {
                out.push(format!("split: {text} along {axis} are {product}, not the block tile {tile}"));
            }
        }
    }
}

/// k values of a strip: of all of k, or of the smallest part that k may be split into.
fn strip_length(fixed: &Fixed, c: &Contraction, menu: &Menu) -> i64 {
    let k = c.extent(Axis::K);
    let longest = menu.tile_k.iter().copied().max().unwrap_or(1);
    let may_split = |s: i64| k % s == 0 && k / s >= 2 * longest && c.outer_reduce().count() == 0;
    let most = menu.split_k.iter().copied().filter(|s| may_split(*s)).max().unwrap_or(1);
    k / fixed.split.unwrap_or(most).max(1)
}

/// Overlap and shared memory.
fn shared(fixed: &Fixed, c: &Contraction, limits: &Limits, menu: &Menu, out: &mut Vec<String>) {
    let pipe = fixed.stages.unwrap_or(Pipe::Plain);
    if let Pipe::Async(stages) = pipe {
        if !limits.cp_async {
            out.push(format!(
                "software_pipeline: {stages} stages of cp.async need sm_80 or later, which this GPU is not"
            ));
        }
    }
    let sides = [Side::A, Side::B].map(|side| (side, fixed.operand(side)));
    let never = |o: &Operand| o.shared == Some(false) || o.hoisted == Some(true);
    if pipe != Pipe::Plain {
        if fixed.accumulators == Some(false) {
            out.push(format!("software_pipeline ({pipe}): sums in global memory leave nothing to overlap"));
        }
        if sides.iter().all(|(_, o)| never(o)) {
            out.push(format!(
                "software_pipeline ({pipe}): neither A nor B is copied to shared memory in the k loop, so there is no copy to \
                 overlap"
            ));
        }
    }
    let strip = strip_length(fixed, c, menu);
    for (side, o) in sides {
        if o.staged() && fixed.accumulators == Some(false) {
            out.push(format!("cache_read shared: {side} is staged only where sums are kept in registers"));
        }
        if let Some(k) = fixed.k.filter(|k| o.hoisted == Some(true) && *k >= strip) {
            out.push(format!(
                "compute_at above k: with k tiles of {k} a block has the whole of its {strip} k values in one, so the copy of \
                 {side} in the k loop is the same program"
            ));
        }
    }
    let Some(block) = fixed.block else { return };
    let mut tiles = Vec::new();
    let (mut bytes, mut parts) = (0, Vec::new());
    for (side, o) in sides {
        let spatial = if side == Side::A { block.m } else { block.n };
        let layout =
            Layout { k_major: o.k_major.unwrap_or(true), pad: o.pad.unwrap_or(0), swizzle: o.swizzle == Some(true) };
        let taken = |k: i64| layout.elements(spatial, k) * i64::from(c.operand(side).dtype.bytes());
        if o.hoisted == Some(true) {
            bytes += taken(strip);
            parts.push(format!("{side}'s strip of {spatial} x {strip} with {}", taken(strip)));
        } else if let Some(k) = fixed.k {
            // Where a copy stands that is only said to be shared is open; the tile is the smaller one.
            tiles.push((side, taken(k), o.staged(), never(o)));
        }
    }
    let mut copied: Vec<_> = tiles.iter().filter(|t| t.2).collect();
    if copied.is_empty() && pipe != Pipe::Plain {
        // One of them is copied in the loop: the smaller one at least.
        copied.extend(tiles.iter().filter(|t| !t.3).min_by_key(|t| t.1));
    }
    for (side, taken, ..) in copied {
        let buffers = if fixed.operand(*side).hoisted == Some(false) || !fixed.operand(*side).staged() {
            pipe.buffers()
        } else {
            1
        };
        bytes += taken * buffers;
        parts.push(format!("{side}'s tile with {taken} in {buffers} buffer{}", if buffers == 1 { "" } else { "s" }));
    }
    if bytes > limits.shared_bytes {
        out.push(format!(
            "cache_read shared: {} are {bytes} bytes; a block has {} bytes of shared memory",
            parts.join(" and "),
            limits.shared_bytes
        ));
    }
}

/// Layout, copy and fragments of one operand.
/// `strip`: k values of a strip.
fn operand(fixed: &Fixed, c: &Contraction, (side, strip): (Side, i64), out: &mut Vec<String>) {
    let o = fixed.operand(side);
    // What is copied along k, where the question says it.
    let k = match o.hoisted {
        Some(true) => Some(strip).filter(|_| fixed.split.is_some()),
        Some(false) => fixed.k,
        None => fixed.k.filter(|_| o.shared != Some(false)),
    };
    let info = c.operand(side);
    let bytes = info.dtype.bytes();
    let along_k = info.contiguous_along(Axis::K);
    let chunk = (16 / bytes).max(1);
    let name = &info.name;
    let (spatial, axis) = match side {
        Side::A => (fixed.block.map(|b| b.m), "m"),
        Side::B => (fixed.block.map(|b| b.n), "n"),
    };
    let global_run = if along_k { k } else { spatial };
    if o.k_major == Some(false) && !along_k {
        out.push(format!(
            "transform_layout: {name} runs along {axis} in global memory; a tile with rows along k is not offered"
        ));
    }
    if o.hoisted == Some(true) {
        let row = Some(strip).filter(|_| fixed.split.is_some());
        let offered = |k_major: bool, pad: u32, swizzle: bool| {
            o.k_major.is_none_or(|k| k == k_major)
                && o.pad.is_none_or(|p| p == pad)
                && o.swizzle.is_none_or(|s| s == swizzle)
        };
        let (one, other) = (offered(false, 0, true), offered(true, chunk, false));
        let fits = match (along_k, row.map(|r| r.count_ones() == 1 && r >= 2 * i64::from(chunk))) {
            (false, _) => offered(true, 0, false),
            (true, Some(xor)) => (one && xor) || (other && !xor),
            (true, None) => one || other,
        };
        if !fits {
            out.push(format!(
                "cache_read shared above k: a strip of {name} {}; no other layout is offered",
                if along_k {
                    "is x-major xor where its length is a power of two, else k-major and padded".into()
                } else {
                    format!("has rows along {axis}, as in global memory, plain")
                }
            ));
        }
    }
    if let Some(pad) = o.pad.filter(|p| *p != 0 && *p != chunk) {
        out.push(format!("storage_align: pad {pad} of {name}; rows are padded by 16 bytes, {chunk} elements, or not"));
    }
    if o.swizzle == Some(true) {
        let row = if o.k_major == Some(true) { spatial } else { k };
        if !along_k {
            out.push(format!(
                "transform_layout: xor is offered for operands that run along k; {name} runs along {axis}"
            ));
        } else if let Some(row) = row.filter(|r| r.count_ones() != 1 || *r < 2 * i64::from(chunk)) {
            out.push(format!(
                "transform_layout: xor needs rows of a power of two of 16-byte chunks, two at least; rows of {name} have {row} \
                 elements of {bytes} bytes"
            ));
        }
    }
    if let Some(vector) = o.fill {
        let row = c.extent(if along_k { Axis::K } else { side.spatial() });
        let wide = i64::from(vector);
        if vector * bytes > 16 {
            out.push(format!(
                "vectorize copy: {vector} elements of {name} take {} bytes; an access has 16 at most",
                vector * bytes
            ));
        }
        if row % wide != 0 {
            out.push(format!(
                "vectorize copy: accesses of {vector} are not aligned in rows of {name} of {row} elements"
            ));
        }
        if let Some(run) = global_run.filter(|r| r % wide != 0) {
            out.push(format!(
                "vectorize copy: {vector} does not divide the runs of {run} elements of a tile of {name}"
            ));
        }
        if vector > 1 && o.coalesced == Some(false) {
            out.push(format!(
                "vectorize copy: {name} is copied by columns, so neighbouring elements are not in one access"
            ));
        }
        let threads = fixed.threads.map(i64::from).or(fixed.thread_grid.map(Pair::product));
        if let (Some(spatial), Some(k), Some(t)) = (spatial, k, threads) {
            if vector > 1 && wide * t > spatial * k {
                out.push(format!(
                    "split copy: {t} threads times {vector} elements are {}; the tile of {name} has {}",
                    wide * t,
                    spatial * k
                ));
            }
        }
        if let Some(Pipe::Async(_)) = fixed.stages.filter(|_| o.hoisted != Some(true)) {
            if vector * bytes < 4 {
                out.push(format!(
                    "cp.async: {vector} elements of {name} are {} bytes; it moves 4 at least",
                    vector * bytes
                ));
            }
            if vector > 1 && o.k_major == Some(along_k) {
                out.push(format!(
                    "cp.async: {vector} elements of {name} at once need them side by side in shared memory too, but the tile is \
                     transposed"
                ));
            }
        }
    }
    if let Some(Some(vector)) = o.local {
        if vector * bytes > 16 {
            out.push(format!(
                "cache_read local: {vector} elements of {name} take {} bytes; an access has 16 at most",
                vector * bytes
            ));
        }
        let registers = fixed.registers.map(|r| if side == Side::A { r.m } else { r.n });
        let run = match (o.shared, o.k_major) {
            (Some(false), _) => Some((1, "what stays in global memory is read one by one")),
            (_, Some(true)) => registers.map(|r| (r, "neighbouring results of a thread")),
            (_, Some(false)) => fixed.step.map(|s| (s, "k values of a step")),
            _ => None,
        };
        if let Some((run, what)) = run.filter(|(r, _)| r % i64::from(vector) != 0) {
            out.push(format!(
                "cache_read local: accesses of {vector} do not divide the run of {run} elements of {name} ({what})"
            ));
        }
        if fixed.accumulators == Some(false) {
            out.push(format!("cache_read local: {name} is read to registers only where sums are kept there too"));
        }
    }
}
