//! `cache_read` with `compute_at`: operands to shared memory at the k loop, to registers at the inner k loop.
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

/// `(for k body)` has been entered: `nest = (read X shared fill nest')`, A before B.
///
/// Side condition: what is staged by now fits in shared memory with the buffers of the k loop's overlap; cp.async moves
/// at least 4 bytes at a time.
pub struct Shared;

impl Rule for Shared {
    fn name(&self) -> &'static str {
        "cache_read shared, compute_at k"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Staging(pipe)) = (node, state.stage) else { return };
        if state.c != Place::Local {
            return;
        }
        let staged: i64 = match state.a {
            Place::Shared(layout) => {
                layout.elements(state.tile.m, state.tile.k) * i64::from(engine.contraction.a.dtype.bytes())
            }
            _ => 0,
        };
        // (which operand, whether another may follow). B alone is staged only where nothing is overlapped.
        let choices: &[(Side, bool)] = match (state.a, pipe) {
            (Place::Shared(_), _) => &[(Side::B, false)],
            (_, Pipe::Plain) => &[(Side::A, true), (Side::B, false)],
            _ => &[(Side::A, true)],
        };
        for (side, more) in choices {
            let spatial = state.tile.get(side.spatial());
            let bytes = i64::from(engine.contraction.operand(*side).dtype.bytes());
            for layout in layouts(engine, *side, spatial, state.tile.k) {
                let total = (staged + layout.elements(spatial, state.tile.k) * bytes) * pipe.buffers();
                let asynchronous = matches!(pipe, Pipe::Async(_));
                let same_rows = engine.contraction.operand(*side).contiguous_along(Axis::K) != layout.k_major;
                let fits = engine.holds(Condition::SharedFits, total <= engine.limits.shared_bytes);
                let moves = engine.holds(Condition::AsyncBytes, !asynchronous || bytes >= 4 || same_rows);
                if !fits || !moves {
                    continue;
                }
                let copied = [spatial, state.tile.k];
                let fill = engine.nest(copy_state(state, *side, layout, copied, asynchronous));
                let stage = if *more { Stage::Staging(pipe) } else { Stage::CtaVthread { m: true } };
                let below = State { stage, ..*state }.with_place(*side, Place::Shared(layout));
                let body = engine.nest(below);
                engine.equals(Term::Stage {
                    side: *side,
                    layout,
                    pipe,
                    more: *more,
                    tile: copied,
                    children: [fill, body],
                });
            }
        }
    }
}

/// The state of the cooperative copy of a tile.
fn copy_state(state: &State, side: Side, layout: Layout, tile: [i64; 2], asynchronous: bool) -> State {
    let stage = Stage::Copy { side, asynchronous };
    let tile = Tile { m: tile[0], n: 1, k: tile[1] };
    State { team: state.team, stage, tile, a: Place::Global, b: Place::Global, c: Place::Global }
        .with_place(side, Place::Shared(layout))
}

/// What is not staged is read from global memory directly: `nest = (direct nest')`.
///
/// Side condition: nothing is overlapped (there would be nothing to overlap).
pub struct Direct;

impl Rule for Direct {
    fn name(&self) -> &'static str {
        "no shared copy"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Staging(pipe)) = (node, state.stage) else { return };
        if !engine.holds(Condition::OverlapStaged, pipe == Pipe::Plain) {
            return;
        }
        let body = engine.nest(State { stage: Stage::CtaVthread { m: true }, ..*state });
        engine.equals(Term::Direct { pipe, body: [body] });
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
        let direct = ![state.a, state.b].iter().any(|p| matches!(p, Place::Shared(_))) && a;
        if direct {
            let body = engine.nest(State { stage: Stage::Registers { m: true, n: true }, ..*state });
            engine.equals(Term::Operands([body]));
        }
    }
}
