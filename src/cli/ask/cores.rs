//! What keeps decisions about single threads out of a space: a menu without the size, or a condition of a rule. Here a
//! question that leaves decisions open is put to the rules' own conditions; what these refuse is what is said.
use super::fixed::{Fixed, Operand};
use satune_ir::term::{strip_length, Axis, Contraction, Pair, Pipe, Side, StagedLayout};
use satune_rewrites::space::conditions::*;
use satune_rewrites::space::{Limits, Menu};

/// Decisions that no menu offers.
pub(super) fn outside(fixed: &Fixed, menu: &Menu, limits: &Limits) -> Vec<String> {
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
    if let Some(Pipe::Async(stages)) = fixed.stages {
        if !limits.cp_async {
            out.push(format!(
                "software_pipeline: {stages} stages of cp.async need sm_80 or later, which this GPU is not"
            ));
        } else if !menu.async_stages.contains(&stages) {
            out.push(format!("{stages} stages of cp.async (the menu is {:?})", menu.async_stages));
        }
    }
    if let Some(s) = fixed.step.filter(|s| !STEPS.contains(s)) {
        out.push(format!("k step {s} (the menu is {STEPS:?})"));
    }
    let widths = [
        (fixed.a.fill, "fill of A"),
        (fixed.b.fill, "fill of B"),
        (fixed.a.local.flatten(), "local copy of A"),
        (fixed.b.local.flatten(), "local copy of B"),
        (fixed.store, "store"),
    ];
    for (width, name) in widths {
        if let Some(w) = width.filter(|w| !WIDTHS.contains(&i64::from(*w))) {
            out.push(format!("vector {w} for the {name} (the menu is {WIDTHS:?})"));
        }
    }
    out
}

/// Conditions of the rules that what is fixed breaks, with their numbers, and what of it contradicts itself; empty where it
/// takes more than a look at one or two decisions to see it.
pub(super) fn broken(fixed: &Fixed, c: &Contraction, limits: &Limits, menu: &Menu) -> Vec<String> {
    let mut asked = Asked { fixed, c, limits, menu, out: contradictions(fixed) };
    asked.threads();
    asked.group();
    asked.parts();
    if fixed.split.is_some_and(|parts| parts > 1) {
        asked.ask(plain_parts(c));
    }
    asked.k();
    asked.staging();
    asked.operand(Side::A);
    asked.operand(Side::B);
    asked.store();
    asked.out
}

/// The same of what schedules on tensor cores have, too: parts of k and groups of blocks.
pub(super) fn grid(fixed: &Fixed, c: &Contraction, limits: &Limits, menu: &Menu) -> Vec<String> {
    let mut asked = Asked { fixed, c, limits, menu, out: Vec::new() };
    asked.group();
    asked.parts();
    asked.out
}

/// A question, and what the rules refuse of it.
struct Asked<'a> {
    fixed: &'a Fixed,
    c: &'a Contraction,
    limits: &'a Limits,
    menu: &'a Menu,
    out: Vec<String>,
}

impl Asked<'_> {
    fn ask(&mut self, held: Held) {
        self.out.extend(held.err().map(|refusal| refusal.to_string()));
    }

    /// Refused is only what is so whatever is open: every one of the ways.
    fn ask_all(&mut self, ways: impl IntoIterator<Item = Held>) {
        let mut refusals = Vec::new();
        for way in ways {
            let Err(refusal) = way else { return };
            let text = refusal.to_string();
            if !refusals.contains(&text) {
                refusals.push(text);
            }
        }
        self.out.extend(refusals);
    }

    /// Threads of a block.
    fn block_threads(&self) -> Option<i64> {
        self.fixed.threads.map(i64::from).or(self.fixed.thread_grid.map(Pair::product))
    }

    fn threads(&mut self) {
        let fixed = self.fixed;
        if let (Some(block), Some(threads)) = (fixed.block, self.block_threads()) {
            self.ask(threads_divide(block.product(), threads));
            let fit = accumulators_fit(block.product(), threads, self.c.accumulate, self.limits.registers);
            if block.product() % threads == 0 {
                self.ask(fit);
            }
        }
        for (what, parts) in [("warps", fixed.warps), ("lanes", fixed.lanes)] {
            if let (Some(block), Some(parts)) = (fixed.block, parts) {
                self.ask(divides(what, Axis::M, parts.m, block.m));
                self.ask(divides(what, Axis::N, parts.n, block.n));
            }
        }
    }

    fn group(&mut self) {
        if let (Some(Some((axis, size))), Some(block)) = (self.fixed.group, self.fixed.block) {
            let blocks = |a: Axis, tile: i64| (self.c.extent(a) + tile - 1) / tile;
            let (m, n) = (blocks(Axis::M, block.m), blocks(Axis::N, block.n));
            let (along, across) = if axis == Axis::M { (m, n) } else { (n, m) };
            let [several, divide] = group_divides(axis, size, along, across);
            self.ask(several.and(divide));
        }
    }

    fn parts(&mut self) {
        let k = self.c.extent(Axis::K);
        let longest = self.menu.tile_k.iter().copied().max().unwrap_or(1);
        if let Some(parts) = self.fixed.split.filter(|s| *s > 1) {
            self.ask(parts_divide(k, parts).and(long_parts(k, parts, longest)));
            self.ask(one_kernel_parts(self.c));
        }
    }

    fn k(&mut self) {
        let fixed = self.fixed;
        let parts = fixed.split.unwrap_or(1);
        if fixed.accumulators == Some(false) {
            in_place(parts > 1, self.c).into_iter().for_each(|held| self.ask(held));
        }
        if let (Some(tile), Some(step)) = (fixed.k, fixed.step) {
            self.ask(step_divides(tile, step));
        }
        if let Some(step) = fixed.step {
            let never = |o: &Operand| o.k_major == Some(true) || o.shared == Some(false);
            self.ask(step_along_k(step, ![&fixed.a, &fixed.b].into_iter().all(never)));
        }
    }

    /// k values that a strip may have: of all of k, or of a part, longest first.
    fn strips(&self) -> Vec<i64> {
        let k = self.c.extent(Axis::K);
        if let Some(parts) = self.fixed.split {
            return vec![k / parts.max(1)];
        }
        let longest = self.menu.tile_k.iter().copied().max().unwrap_or(1);
        let may = |parts: &i64| {
            let kept = parts_divide(k, *parts).and(long_parts(k, *parts, longest));
            kept.and(one_kernel_parts(self.c)).and(plain_parts(self.c)).is_ok()
        };
        [1].into_iter().chain(self.menu.split_k.iter().copied().filter(may)).map(|parts| k / parts).collect()
    }

    /// Overlap and shared memory.
    fn staging(&mut self) {
        let fixed = self.fixed;
        let pipe = fixed.stages.unwrap_or(Pipe::Plain);
        let in_registers = fixed.accumulators != Some(false);
        let never = |o: &Operand| o.shared == Some(false) || o.hoisted == Some(true);
        let sides = [Side::A, Side::B];
        self.ask(overlap_sums(pipe, in_registers));
        self.ask(overlap_staged(pipe, !sides.iter().all(|s| never(fixed.operand(*s)))));
        let strip = self.strips().into_iter().min().unwrap_or(1);
        for side in sides.into_iter().filter(|s| fixed.operand(*s).staged()) {
            self.ask(staged_sums(side, in_registers));
            if let Some(tile) = fixed.k.filter(|_| fixed.operand(side).hoisted == Some(true)) {
                self.ask(strip_repeats(tile, strip));
            }
        }
        let Some(block) = fixed.block else { return };
        // The least that the operands take.
        let of = |side: Side, k: i64, buffers: Option<i64>| {
            let o = fixed.operand(side);
            let (k_major, pad) = (o.k_major.unwrap_or(true), o.pad.unwrap_or(0));
            let layout = StagedLayout { k_major, pad, swizzle: o.swizzle == Some(true) };
            let spatial = if side == Side::A { block.m } else { block.n };
            Staged::of(side, self.c.operand(side), layout, [spatial, k], buffers)
        };
        let mut both = sides.map(|side| {
            let o = fixed.operand(side);
            match (o.hoisted, fixed.k) {
                (Some(true), k) => {
                    let long = k.map_or(strip, |tile| strip_length(strip, tile));
                    Some(of(side, long, None))
                }
                (Some(false), Some(k)) => Some(of(side, k, Some(pipe.buffers()))),
                // Where a copy stands that is only said to be shared is open; a tile in one buffer is the smaller one.
                (None, Some(k)) if o.staged() => Some(of(side, k, Some(1))),
                _ => None,
            }
        });
        let copied = |side: Side| fixed.operand(side).staged() && fixed.operand(side).hoisted != Some(true);
        if let Some(k) = fixed.k.filter(|_| pipe != Pipe::Plain && !sides.into_iter().any(copied)) {
            // One of them is copied in the loop: the smaller one at least.
            let may = (0..2).filter(|at| !never(fixed.operand(sides[*at])));
            let tile = may.map(|at| (at, of(sides[at], k, Some(pipe.buffers())))).min_by_key(|(_, s)| s.bytes);
            if let Some((at, staged)) = tile {
                both[at] = Some(staged);
            }
        }
        self.ask(shared_fits(both, self.limits.shared_bytes));
    }

    /// Layout, copy and fragments of one operand.
    fn operand(&mut self, side: Side) {
        let (fixed, o, info) = (self.fixed, self.fixed.operand(side), self.c.operand(side));
        let strips = self.strips();
        // What is copied along k, where the question says it.
        let k = match o.hoisted {
            Some(true) => strips.first().copied().filter(|_| strips.len() == 1),
            Some(false) => fixed.k,
            None => fixed.k.filter(|_| o.shared != Some(false)),
        };
        let spatial = fixed.block.map(|b| if side == Side::A { b.m } else { b.n });
        let lengths = if o.hoisted == Some(true) { strips.iter().copied().map(Some).collect() } else { vec![k] };
        let layouts = o.layouts(chunk(info));
        let all = self.c.extent(Axis::K);
        let parts = fixed.split.map_or(1, |parts| parts.max(1));
        let cut_at = |k: Option<i64>| k.is_some_and(|k| o.hoisted == Some(false) && cut([all / parts, all], k));
        let ways: Vec<Held> = layouts
            .iter()
            .flat_map(|layout| lengths.iter().map(move |k| (*layout, *k)))
            .map(|(layout, k)| {
                layout_offered(side, info, layout)?;
                let row = if layout.k_major { spatial } else { k };
                if row.is_some() {
                    swizzle_rows(side, info, layout, [row.unwrap_or(1); 2])?;
                }
                swizzle_parts(side, layout, cut_at(k))?;
                match k.filter(|_| o.hoisted == Some(true)) {
                    // Which layout strips have depends on their length alone.
                    Some(k) => strip_offered(side, info, layout, [spatial.unwrap_or(1), k]),
                    None => Ok(()),
                }
            })
            .collect();
        if o.staged() {
            self.ask_all(ways);
        }
        let along_k = info.contiguous_along(Axis::K);
        let element = i64::from(info.dtype.bytes());
        if let Some(vector) = o.fill.map(i64::from) {
            self.ask(copy_bytes(side, vector, element));
            self.ask(copy_rows(side, vector, self.c.row(side)));
            if let Some(run) = if along_k { k } else { spatial } {
                self.ask(copy_runs(side, vector, run));
            }
            self.ask(copy_coalesced(side, vector, o.coalesced != Some(false)));
            if let (Some(spatial), Some(k), Some(threads)) = (spatial, k, self.block_threads()) {
                self.ask(copy_threads(side, vector, threads, spatial * k));
            }
            if matches!(fixed.stages, Some(Pipe::Async(_))) && o.hoisted != Some(true) {
                self.ask(async_bytes(side, vector, element));
                self.ask(async_rows(side, vector, o.k_major != Some(along_k)));
            }
        }
        if let Some(vector) = o.local.flatten().map(i64::from) {
            self.ask(fragment_bytes(side, vector, element));
            let registers = fixed.registers.map(|r| if side == Side::A { r.m } else { r.n });
            let run = match (o.shared, o.k_major) {
                (Some(false), _) => Some(1),
                (_, Some(true)) => registers,
                (_, Some(false)) => fixed.step,
                _ => None,
            };
            if let Some(run) = run {
                self.ask(fragment_run(side, vector, run, o.pad.unwrap_or(0).into()));
            }
            self.ask(fragment_sums(side, fixed.accumulators != Some(false)));
        }
    }

    fn store(&mut self) {
        let Some(vector) = self.fixed.store.map(i64::from) else { return };
        self.ask(store_along(vector, self.fixed.accumulators != Some(false), self.c));
        self.ask(store_bytes(vector, self.c.widest_result()));
        self.ask(store_rows(vector, self.c.result_row()));
        if let Some(registers) = self.fixed.registers {
            self.ask(store_divides(vector, registers.n));
        }
    }
}

/// What a question says twice, differently: its sizes along an axis multiply to one thing, and are said to be another.
fn contradictions(fixed: &Fixed) -> Vec<String> {
    let mut out = Vec::new();
    let threads = fixed.threads.map(i64::from).or(fixed.thread_grid.map(Pair::product));
    if let (Some(t), Some(grid)) = (fixed.threads, fixed.thread_grid) {
        if i64::from(t) != grid.product() {
            out.push(format!("threads {}x{} are {}, not {t}", grid.m, grid.n, grid.product()));
        }
    }
    if let Some(lanes) = fixed.lanes.filter(|l| l.product() != 32) {
        out.push(format!("bind: lanes {}x{} are {}; a warp has 32", lanes.m, lanes.n, lanes.product()));
    }
    if let (Some(warps), Some(threads)) = (fixed.warps, threads) {
        if warps.product() * 32 != threads {
            let are = warps.product() * 32;
            out.push(format!("bind: warps {}x{} are {are} threads, not {threads}", warps.m, warps.n));
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
    if let (Some(init), Some(accumulators)) = (fixed.init_hoisted, fixed.accumulators) {
        if init != accumulators {
            out.push(
                "decompose_reduction: sums in registers are cleared before the k loop, sums in global memory inside it"
                    .into(),
            );
        }
    }
    out
}
