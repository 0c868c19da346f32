//! `cache_read` with `compute_at`: operands to shared memory above or in the k loop, to registers at the inner k loop.
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Axis, Layout, Pipe, Place, Side, Stage, State, Term, Tile};

/// Layouts that a tile of an operand may take in shared memory. `padding` is 16 bytes, so that vector accesses stay
/// aligned. Where the operand runs along its spatial axis in global memory a transposed tile is not offered: it costs
/// scalar stores and wins nothing.
fn layouts(engine: &Engine<'_>, side: Side, spatial: i64, k: i64) -> Vec<Layout> {
    let operand = engine.contraction.operand(side);
    let chunk = (16 / operand.dtype.bytes()).max(1);
    let plain = |k_major| Layout { k_major, pad: 0, swizzle: false };
    let padded = |k_major| Layout { k_major, pad: chunk, swizzle: false };
    let mut list = vec![plain(true), padded(true)];
    if operand.contiguous_along(Axis::K) {
        list.extend([plain(false), padded(false)]);
    }
    // A swizzled row has a power of two of chunks, two at least.
    let swizzles = |row: i64| {
        let power = row % i64::from(chunk) == 0 && row / i64::from(chunk) >= 2 && row.count_ones() == 1;
        engine.holds(Condition::SwizzleRows, power)
    };
    if operand.contiguous_along(Axis::K) {
        if swizzles(spatial) {
            list.push(Layout { k_major: true, pad: 0, swizzle: true });
        }
        if swizzles(k) {
            list.push(Layout { k_major: false, pad: 0, swizzle: true });
        }
    }
    list
}

/// The layout that a strip of an operand takes; one, to keep the space small. Rows along the spatial axis in global memory
/// stay as they are. Rows along k, which threads read across, are swizzled where they can be; else the strip is transposed
/// and padded.
fn strip_layout(engine: &Engine<'_>, side: Side, spatial: i64, k: i64) -> Option<Layout> {
    let list = layouts(engine, side, spatial, k);
    if !engine.contraction.operand(side).contiguous_along(Axis::K) {
        return list.first().copied();
    }
    let swizzled = list.iter().find(|l| !l.k_major && l.swizzle);
    swizzled.or_else(|| list.iter().find(|l| l.k_major && l.pad > 0)).copied()
}

/// Bytes of the strips of a state that has not entered its k loop.
pub(super) fn strip_bytes(engine: &Engine<'_>, state: &State) -> i64 {
    [Side::A, Side::B].into_iter().map(|side| staged_bytes(engine, state, side, state.tile.k)).sum()
}

/// Bytes of an operand's copy of so many k values; 0 where it is not in shared memory.
fn staged_bytes(engine: &Engine<'_>, state: &State, side: Side, k: i64) -> i64 {
    state.place(side).layout().map_or(0, |layout| copied_bytes(engine, state, side, layout, k))
}

fn copied_bytes(engine: &Engine<'_>, state: &State, side: Side, layout: Layout, k: i64) -> i64 {
    layout.elements(state.tile.get(side.spatial()), k) * i64::from(engine.contraction.operand(side).dtype.bytes())
}

/// The k loop is still to come: `nest = (read X shared-strip fill nest')`, A before B. The copy stands above the loop and
/// holds all that the loop will read of the operand.
///
/// Side condition: what is staged by now fits in shared memory. (A loop over one tile would be the same program as with
/// the copy inside; [`super::split::KLoop`] leaves it out.)
pub struct SharedStrip;

impl Rule for SharedStrip {
    fn name(&self) -> &'static str {
        "cache_read shared, compute_at above k"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Reduce(0)) = (node, state.stage) else { return };
        if state.c != Place::Local {
            return;
        }
        let k = state.tile.k;
        let taken = strip_bytes(engine, state);
        // Some k tile has to leave more than one iteration.
        if engine.menu.tile_k.iter().all(|size| *size >= k) {
            return;
        }
        for side in [Side::A, Side::B] {
            if state.b != Place::Global || state.place(side) != Place::Global {
                continue;
            }
            let spatial = state.tile.get(side.spatial());
            let Some(layout) = strip_layout(engine, side, spatial, k) else { continue };
            let bytes = taken + copied_bytes(engine, state, side, layout, k);
            if !engine.holds(Condition::StripFits, bytes <= engine.limits.shared_bytes) {
                continue;
            }
            let tile = [spatial, k];
            let fill = engine.nest(copy_state(state, side, layout, tile, false));
            let body = engine.nest(state.with_place(side, Place::strip(layout, k)));
            engine.equals(Term::Strip { side, layout, tile, children: [fill, body] });
        }
    }
}

/// `(for k body)` has been entered: `nest = (read X shared fill nest')`, A before B, for operands that are no strips.
///
/// Side condition: what is staged by now fits in shared memory with the buffers of the k loop's overlap; cp.async moves
/// at least 4 bytes at a time.
pub struct Shared;

impl Rule for Shared {
    fn name(&self) -> &'static str {
        "cache_read shared, compute_at k"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Staging { pipe, strips }) = (node, state.stage) else { return };
        if state.c != Place::Local {
            return;
        }
        let taken: i64 = [Side::A, Side::B]
            .into_iter()
            .map(|side| match strips.has(side) {
                true => staged_bytes(engine, state, side, strips.k),
                false => staged_bytes(engine, state, side, state.tile.k) * pipe.buffers(),
            })
            .sum();
        for side in [Side::A, Side::B] {
            // Only A can have been staged by now; B is the last.
            if strips.has(side) || state.place(side) != Place::Global {
                continue;
            }
            let more = side == Side::A && !strips.b;
            let spatial = state.tile.get(side.spatial());
            let bytes = i64::from(engine.contraction.operand(side).dtype.bytes());
            for layout in layouts(engine, side, spatial, state.tile.k) {
                let total = taken + copied_bytes(engine, state, side, layout, state.tile.k) * pipe.buffers();
                let asynchronous = matches!(pipe, Pipe::Async(_));
                let same_rows = engine.contraction.operand(side).contiguous_along(Axis::K) != layout.k_major;
                let fits = engine.holds(Condition::SharedFits, total <= engine.limits.shared_bytes);
                let moves = engine.holds(Condition::AsyncBytes, !asynchronous || bytes >= 4 || same_rows);
                if !fits || !moves {
                    continue;
                }
                let tile = [spatial, state.tile.k];
                let fill = engine.nest(copy_state(state, side, layout, tile, asynchronous));
                let stage = if more { state.stage } else { Stage::CtaVthread { m: true } };
                let body = engine.nest(State { stage, ..*state }.with_place(side, Place::Shared(layout)));
                engine.equals(Term::Stage { side, layout, pipe, strips, more, tile, children: [fill, body] });
            }
        }
    }
}

/// The state of the cooperative copy of a tile.
fn copy_state(state: &State, side: Side, layout: Layout, tile: [i64; 2], asynchronous: bool) -> State {
    let stage = Stage::Copy { side, asynchronous };
    let tile = Tile { m: tile[0], n: 1, k: tile[1] };
    State { team: state.team, stage, tile, a: Place::Global, b: Place::Global, c: Place::Global, swapped: false }
        .with_place(side, Place::Shared(layout))
}

/// Nothing more is staged: `nest = (direct nest')`. What is in shared memory by now, as a strip or a tile, is read there,
/// the rest from global memory.
///
/// Side condition: an overlapped loop copies an operand's tiles; else there would be nothing to overlap.
pub struct Direct;

impl Rule for Direct {
    fn name(&self) -> &'static str {
        "no shared copy"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Staging { pipe, strips }) = (node, state.stage) else { return };
        let copied = [Side::A, Side::B].iter().any(|s| !strips.has(*s) && state.place(*s).layout().is_some());
        if !engine.holds(Condition::OverlapStaged, pipe == Pipe::Plain || copied) {
            return;
        }
        let body = engine.nest(State { stage: Stage::CtaVthread { m: true }, ..*state });
        engine.equals(Term::Direct { pipe, strips, body: [body] });
    }
}

/// At one step of the inner k loop: `nest = (read X local vector nest')`, A then B, or the operands are read where they
/// are.
///
/// Side condition: accumulators and fragments fit the registers; an access is aligned: its width divides the run that it
/// reads and the padding of the rows, and is 16 bytes at most.
pub struct Fragments;

impl Rule for Fragments {
    fn name(&self) -> &'static str {
        "cache_read local, compute_at inner k"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Fragments { a }) = (node, state.stage) else { return };
        let side = if a { Side::A } else { Side::B };
        if state.c == Place::Local {
            let spatial = state.tile.get(side.spatial());
            let bytes = i64::from(engine.contraction.operand(side).dtype.bytes());
            let (run, pad) = match state.place(side) {
                Place::Shared(layout) if layout.k_major => (spatial, i64::from(layout.pad)),
                Place::Shared(layout) => (state.tile.k, i64::from(layout.pad)),
                // All rows begin where an access may.
                Place::Strip(layout, k) => (state.tile.k, k + i64::from(layout.pad)),
                _ => (1, 0),
            };
            for vector in [1_i64, 2, 4, 8] {
                let divides = engine.holds(Condition::FragmentRun, run % vector == 0 && pad % vector == 0);
                if !divides || !engine.holds(Condition::FragmentBytes, vector * bytes <= 16) {
                    continue;
                }
                let stage = if a { Stage::Fragments { a: false } } else { Stage::Registers { m: true, n: true } };
                let body = engine.nest(State { stage, ..*state }.with_place(side, Place::Local));
                let from = state.place(side);
                engine.equals(Term::Fragment { side, from, vector: vector as u32, body: [body] });
            }
        }
        // Without fragments only where nothing is in shared memory: a register copy of a shared element costs the same
        // load and saves the repeated ones.
        let direct = ![state.a, state.b].iter().any(|p| p.layout().is_some()) && a;
        if direct {
            let body = engine.nest(State { stage: Stage::Registers { m: true, n: true }, ..*state });
            engine.equals(Term::Operands([body]));
        }
    }
}
