//! The schedule of a cooperative copy: `fuse` its two loops, `split` into (serial, threads, vector), `bind`,
//! `vectorize`.
use crate::space::conditions::{
    async_bytes, async_rows, copy_bytes, copy_coalesced, copy_rows, copy_runs, copy_threads, WIDTHS,
};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Axis, Place, Role, Side, Stage, State, Team, Term};

/// `copy(x, k) = fuse(x, k) copy(x * k)`: neighbouring threads run along the operand's rows in global memory, or across.
pub struct FuseCopy;

impl Rule for FuseCopy {
    fn name(&self) -> &'static str {
        "fuse copy"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Copy { side, asynchronous }) = (node, state.stage) else { return };
        let tile = [state.tile.m, state.tile.k];
        for coalesced in [true, false] {
            // A tile of one row is the same either way.
            if !coalesced && (tile[0] == 1 || tile[1] == 1) {
                continue;
            }
            let stage = Stage::FusedCopy { side, asynchronous, coalesced, done: 0 };
            let fused = state.tile.with(Axis::M, tile[0] * tile[1]).with(Axis::K, run_along(engine, side, &tile));
            let body = engine.nest(State { stage, tile: fused, ..*state });
            engine.equals(Term::Fuse { side, asynchronous, coalesced, tile, body: [body] });
        }
    }
}

/// Length of a run of neighbouring elements in global memory within the tile.
fn run_along(engine: &Engine<'_>, side: Side, tile: &[i64; 2]) -> i64 {
    if engine.contraction.operand(side).contiguous_along(Axis::K) {
        tile[1]
    } else {
        tile[0]
    }
}

/// `fused(L) = for f in serial or unroll (ceil(L / (T v))): fused(T v)` for every vector width v.
///
/// Side condition: v elements are one aligned access on the global side (v divides the operand's rows and the tile's
/// runs, 16 bytes at most); cp.async wants both sides contiguous and 4 bytes at least.
pub struct SplitCopy;

impl Rule for SplitCopy {
    fn name(&self) -> &'static str {
        "split copy"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::FusedCopy { side, asynchronous, coalesced, done: 0 }) = (node, state.stage) else {
            return;
        };
        let Team::Cta(threads) = state.team else { return };
        let operand = engine.contraction.operand(side);
        let bytes = i64::from(operand.dtype.bytes());
        let along_k = operand.contiguous_along(Axis::K);
        let row = engine.contraction.row(side);
        let same_rows = matches!(state.place(side), Place::Shared(layout) if layout.k_major != along_k);
        for vector in WIDTHS {
            let wide = engine.holds(Condition::CopyBytes, copy_bytes(side, vector, bytes))
                && engine.holds(Condition::CopyRows, copy_rows(side, vector, row))
                && engine.holds(Condition::CopyRuns, copy_runs(side, vector, state.tile.k))
                && engine.holds(Condition::CopyCoalesced, copy_coalesced(side, vector, coalesced))
                && copy_threads(side, vector, threads.into(), state.tile.m).is_ok();
            let moves = !asynchronous
                || (engine.holds(Condition::AsyncBytes, async_bytes(side, vector, bytes))
                    && engine.holds(Condition::AsyncRows, async_rows(side, vector, same_rows)));
            let step = vector * i64::from(threads);
            if !wide || !moves {
                continue;
            }
            let total = state.tile.m;
            let extent = (total + step - 1) / step;
            let stage = Stage::FusedCopy { side, asynchronous, coalesced, done: 1 };
            let body = engine.nest(State { stage, tile: state.tile.with(Axis::M, step), ..*state });
            let roles: &[Role] = if extent > 1 { &[Role::Serial, Role::Unroll] } else { &[Role::Unroll] };
            for role in roles {
                engine.equals(Term::Loop { axis: Axis::M, role: *role, extent, total, body: [body] });
            }
        }
    }
}

/// `fused(T v) = for f in threads(T): (thread fused(v))`.
pub struct BindCopy;

impl Rule for BindCopy {
    fn name(&self) -> &'static str {
        "bind copy"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::FusedCopy { side, asynchronous, coalesced, done: 1 }) = (node, state.stage) else {
            return;
        };
        let Team::Cta(threads) = state.team else { return };
        let extent = i64::from(threads);
        let stage = Stage::FusedCopy { side, asynchronous, coalesced, done: 2 };
        let tile = state.tile.with(Axis::M, state.tile.m / extent);
        let body = engine.nest(State { team: Team::Thread, stage, tile, ..*state });
        let total = state.tile.m;
        engine.equals(Term::Loop { axis: Axis::M, role: Role::Thread, extent, total, body: [body] });
    }
}

/// `fused(v) = for f in vector(v): copy one element`.
pub struct VectorizeCopy;

impl Rule for VectorizeCopy {
    fn name(&self) -> &'static str {
        "vectorize copy"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::FusedCopy { side, asynchronous, coalesced, done: 2 }) = (node, state.stage) else {
            return;
        };
        let stage = Stage::FusedCopy { side, asynchronous, coalesced, done: 3 };
        let below = State { stage, tile: state.tile.with(Axis::M, 1), ..*state };
        let body = engine.term(Term::CopyElement(Box::new(below)));
        let extent = state.tile.m;
        engine.equals(Term::Loop { axis: Axis::M, role: Role::Vector, extent, total: extent, body: [body] });
    }
}
