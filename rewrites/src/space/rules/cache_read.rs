//! `cache_read` with `compute_at`: operands to shared memory above or in the k loop, to registers at the inner k loop.
use crate::space::conditions::{
    async_bytes, fragment_bytes, fragment_run, fragment_sums, offered, overlap_staged, shared_fits, staged_sums,
    strip_layout, swizzle_parts, swizzle_rows, Staged, WIDTHS,
};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{strip_length, Axis, Pipe, Place, Side, Stage, StagedLayout, State, Term, Tile};

/// Layouts that a tile of an operand may take in shared memory. `cut`: tiles reach into the next part of k.
fn layouts(engine: &Engine<'_>, side: Side, extents: [i64; 2], cut: bool) -> Vec<StagedLayout> {
    let operand = engine.contraction.operand(side);
    let swizzles = |l: &StagedLayout| {
        engine.holds(Condition::SwizzleRows, swizzle_rows(side, operand, *l, extents))
            && engine.holds(Condition::SwizzleParts, swizzle_parts(side, *l, cut))
    };
    offered(side, operand).filter(swizzles).collect()
}

/// What an operand's copy of so many k values takes; nothing where it is not in shared memory. `tile`: buffers of a tile of
/// the k loop.
pub(super) fn staged(
    engine: &Engine<'_>,
    state: &State,
    (side, place): (Side, Place),
    k: i64,
    tile: Option<i64>,
) -> Option<Staged> {
    let extents = [state.tile.get(side.spatial()), k];
    Some(Staged::of(side, engine.contraction.operand(side), place.layout()?, extents, tile))
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
        let k = state.tile.k;
        // Some k tile has to leave more than one iteration.
        if engine.menu.tile_k.iter().all(|size| *size >= k) {
            return;
        }
        for side in [Side::A, Side::B] {
            if state.b != Place::Global || state.place(side) != Place::Global {
                continue;
            }
            if staged_sums(side, state.c == Place::Local).is_err() {
                continue;
            }
            let tile = [state.tile.get(side.spatial()), k];
            let swizzles = |held| engine.holds(Condition::SwizzleRows, held);
            let Some(layout) = strip_layout(side, engine.contraction.operand(side), tile, swizzles) else { continue };
            let with = state.with_place(side, Place::strip(layout, k));
            let strips = [Side::A, Side::B].map(|s| staged(engine, state, (s, with.place(s)), k, None));
            if !engine.holds(Condition::StripFits, shared_fits(strips, engine.limits.shared_bytes)) {
                continue;
            }
            let fill = engine.nest(copy_state(state, (side, layout), tile, false));
            let body = engine.nest(state.with_place(side, Place::strip(layout, k)));
            engine.equals(Term::Strip { side, layout, tile, children: [fill, body] });
        }
    }
}

/// `(for k body)` has been entered: `nest = (read X shared fill nest')`, A before B, for operands that are no strips.
///
/// Side condition: what is staged by now fits in shared memory with the buffers of the k loop's overlap; swizzled rows begin
/// where the operand's do; cp.async moves at least 4 bytes at a time.
pub struct Shared;

impl Rule for Shared {
    fn name(&self) -> &'static str {
        "cache_read shared, compute_at k"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Staging { pipe, strips }) = (node, state.stage) else { return };
        let buffers = Some(pipe.buffers());
        let strip = strip_length(strips.k, state.tile.k);
        for side in [Side::A, Side::B] {
            // Only A can have been staged by now; B is the last.
            if strips.has(side) || state.place(side) != Place::Global {
                continue;
            }
            if staged_sums(side, state.c == Place::Local).is_err() {
                continue;
            }
            let more = side == Side::A && !strips.b;
            let operand = engine.contraction.operand(side);
            let bytes = i64::from(operand.dtype.bytes());
            let tile = [state.tile.get(side.spatial()), state.tile.k];
            for layout in layouts(engine, side, tile, strips.cut) {
                let with = state.with_place(side, Place::Shared(layout));
                let both = [Side::A, Side::B].map(|s| match strips.has(s) {
                    true => staged(engine, state, (s, with.place(s)), strip, None),
                    false => staged(engine, state, (s, with.place(s)), state.tile.k, buffers),
                });
                let asynchronous = matches!(pipe, Pipe::Async(_));
                let same_rows = operand.contiguous_along(Axis::K) != layout.k_major;
                let fits = engine.holds(Condition::SharedFits, shared_fits(both, engine.limits.shared_bytes));
                // Several at once, where they are neighbours on both sides, may be enough.
                let wide = !asynchronous || same_rows;
                if !fits || !engine.holds(Condition::AsyncBytes, wide || async_bytes(side, 1, bytes).is_ok()) {
                    continue;
                }
                let fill = engine.nest(copy_state(state, (side, layout), tile, asynchronous));
                let stage = if more { state.stage } else { Stage::CtaVthread { m: true } };
                let body = engine.nest(State { stage, ..*state }.with_place(side, Place::Shared(layout)));
                engine.equals(Term::Stage { side, layout, pipe, strips, more, tile, children: [fill, body] });
            }
        }
    }
}

/// The state of the cooperative copy of a tile.
fn copy_state(state: &State, (side, layout): (Side, StagedLayout), tile: [i64; 2], asynchronous: bool) -> State {
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
        if !engine.holds(Condition::OverlapStaged, overlap_staged(pipe, copied)) {
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
        if fragment_sums(side, state.c == Place::Local).is_ok() {
            let spatial = state.tile.get(side.spatial());
            let bytes = i64::from(engine.contraction.operand(side).dtype.bytes());
            let (run, pad) = match state.place(side) {
                Place::Shared(layout) if layout.k_major => (spatial, i64::from(layout.pad)),
                Place::Shared(layout) => (state.tile.k, i64::from(layout.pad)),
                // All rows begin where an access may.
                Place::Strip(layout, k) => (state.tile.k, k + i64::from(layout.pad)),
                _ => (1, 0),
            };
            for vector in WIDTHS {
                let divides = engine.holds(Condition::FragmentRun, fragment_run(side, vector, run, pad));
                if !divides || !engine.holds(Condition::FragmentBytes, fragment_bytes(side, vector, bytes)) {
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
