//! `bind` (with the `split` that makes the loop): loops are handed to smaller teams, one way, from the grid to lanes.
use crate::space::conditions::{accumulators_fit, divides, plain_parts, threads_divide};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Axis, Place, Role, Stage, State, Team, Term};

/// `nest = grid nest`: the reduction stays whole, one kernel.
pub struct Whole;

impl Rule for Whole {
    fn name(&self) -> &'static str {
        "one-kernel"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        if let (Term::Nest(_), Stage::Root) = (node, state.stage) {
            let batch = u8::try_from(engine.contraction.batch().count()).unwrap_or(u8::MAX);
            let body = engine.nest(State { stage: Stage::Blocks { batch, m: true, n: true }, ..*state });
            engine.equals(Term::Grid([body]));
        }
    }
}

/// `nest(M, ..) = for m in blocks(ceil(M / f)): nest(f, ..)` for every tile `f` on the menu: batch axes first, then m,
/// then n ([`super::reorder::Reorder`] gives the other order).
pub struct Blocks;

impl Rule for Blocks {
    fn name(&self) -> &'static str {
        "split, bind to blocks"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Blocks { batch, m, n }) = (node, state.stage) else { return };
        if batch > 0 {
            let index = engine.contraction.batch().count() as u8 - batch;
            let extent = engine.contraction.extent(Axis::Batch(index));
            let body = engine.nest(State { stage: Stage::Blocks { batch: batch - 1, m, n }, ..*state });
            engine.equals(Term::Loop {
                axis: Axis::Batch(index),
                role: Role::Block,
                extent,
                total: extent,
                body: [body],
            });
            return;
        }
        let (axis, stage, sizes) = match (m, n) {
            (true, _) => (Axis::M, Stage::Blocks { batch, m: false, n }, engine.menu.tile_m.clone()),
            (false, true) => (Axis::N, Stage::Blocks { batch, m, n: false }, engine.menu.tile_n.clone()),
            (false, false) => return,
        };
        let total = state.tile.get(axis);
        for size in sizes {
            let body = engine.nest(State { stage, tile: state.tile.with(axis, size), ..*state });
            let extent = (total + size - 1) / size;
            engine.equals(Term::Loop { axis, role: Role::Block, extent, total, body: [body] });
        }
    }
}

/// `(grid nest) = (cta T nest)`: a block of T threads computes the tile.
///
/// Side condition: at most one accumulator per result fits the registers of T threads, and no thread is idle; parts of
/// sums are for no epilogue.
pub struct EnterCta;

impl Rule for EnterCta {
    fn name(&self) -> &'static str {
        "enter block"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Blocks { batch: 0, m: false, n: false }) = (node, state.stage) else { return };
        // Other tiles are there for tensor cores, and so are swapped operands.
        if state.swapped || !engine.menu.tile_m.contains(&state.tile.m) || !engine.menu.tile_n.contains(&state.tile.n) {
            return;
        }
        if state.c == Place::Workspace && plain_parts(engine.contraction).is_err() {
            return;
        }
        let results = state.tile.m * state.tile.n;
        for threads in engine.menu.threads.clone() {
            let all = i64::from(threads);
            let fit = accumulators_fit(results, all, engine.contraction.accumulate, engine.limits.registers);
            let divide = engine.holds(Condition::ThreadsDivide, threads_divide(results, all));
            if !divide || !engine.holds(Condition::AccumulatorsFit, fit) {
                continue;
            }
            let body = engine.nest(State { team: Team::Cta(threads), stage: Stage::Accumulators, ..*state });
            engine.equals(Term::Cta { threads, body: [body] });
        }
    }
}

/// `(cta T nest) = for m in warps(w): for n in warps(T/32/w): (warp nest)`.
pub struct Warps;

impl Rule for Warps {
    fn name(&self) -> &'static str {
        "split, bind to warps"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Team::Cta(threads)) = (node, state.team) else { return };
        let warps = i64::from(threads / 32);
        match state.stage {
            Stage::Warps { m: true, n: true } => {
                let mut along_m = 1;
                while along_m <= warps {
                    let along_n = warps / along_m;
                    let along = |axis, parts| divides("warps", axis, parts, state.tile.get(axis));
                    let divide = along(Axis::M, along_m).and(along(Axis::N, along_n));
                    if warps % along_m == 0 && engine.holds(Condition::WarpsDivide, divide) {
                        let tile = state.tile.with(Axis::M, state.tile.m / along_m);
                        if enough_for_lanes(tile.m, tile.n / along_n, engine) {
                            let team = Team::Cta((along_n * 32) as u32);
                            let stage = Stage::Warps { m: false, n: true };
                            let body = engine.nest(State { team, stage, tile, ..*state });
                            let (extent, total) = (along_m, state.tile.m);
                            engine.equals(Term::Loop { axis: Axis::M, role: Role::Warp, extent, total, body: [body] });
                        }
                    }
                    along_m *= 2;
                }
            }
            Stage::Warps { m: false, n: true } => {
                if !engine.holds(Condition::WarpsDivide, divides("warps", Axis::N, warps, state.tile.n)) {
                    return;
                }
                let tile = state.tile.with(Axis::N, state.tile.n / warps);
                let stage = Stage::WarpVthread { m: true };
                let body = engine.nest(State { team: Team::Warp(32), stage, tile, ..*state });
                let (extent, total) = (warps, state.tile.n);
                engine.equals(Term::Loop { axis: Axis::N, role: Role::Warp, extent, total, body: [body] });
            }
            _ => {}
        }
    }
}

/// Whether a warp's tile gives each of 32 lanes a result, and none more than the register menu times the vthreads.
fn enough_for_lanes(m: i64, n: i64, engine: &Engine<'_>) -> bool {
    let most = engine.menu.registers * engine.menu.vthreads.iter().copied().max().unwrap_or(1);
    lane_splits(m, n, engine).into_iter().any(|(along_m, along_n)| m / along_m <= most && n / along_n <= most)
}

/// (lanes along m, lanes along n) with product 32 that divide the tile.
fn lane_splits(m: i64, n: i64, engine: &Engine<'_>) -> Vec<(i64, i64)> {
    let divide = |a: i64, b: i64| {
        engine.holds(Condition::LanesDivide, divides("lanes", Axis::M, a, m).and(divides("lanes", Axis::N, b, n)))
    };
    (0..=5).map(|p| (1 << p, 32 >> p)).filter(|(a, b)| divide(*a, *b)).collect()
}

/// `(warp nest) = for m in lanes(l): for n in lanes(32/l): (thread nest)`.
pub struct Lanes;

impl Rule for Lanes {
    fn name(&self) -> &'static str {
        "split, bind to lanes"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Team::Warp(lanes)) = (node, state.team) else { return };
        match state.stage {
            Stage::Lanes { m: true, n: true } => {
                for (along_m, along_n) in lane_splits(state.tile.m, state.tile.n, engine) {
                    let registers = (state.tile.m / along_m, state.tile.n / along_n);
                    if registers.0 > engine.menu.registers || registers.1 > engine.menu.registers {
                        continue;
                    }
                    let tile = state.tile.with(Axis::M, registers.0);
                    let team = Team::Warp(along_n as u32);
                    let body = engine.nest(State { team, stage: Stage::Lanes { m: false, n: true }, tile, ..*state });
                    let (extent, total) = (along_m, state.tile.m);
                    engine.equals(Term::Loop { axis: Axis::M, role: Role::Thread, extent, total, body: [body] });
                }
            }
            Stage::Lanes { m: false, n: true } => {
                let extent = i64::from(lanes);
                if engine.holds(Condition::LanesDivide, divides("lanes", Axis::N, extent, state.tile.n)) {
                    let tile = state.tile.with(Axis::N, state.tile.n / extent);
                    let body = engine.nest(State { team: Team::Thread, stage: Stage::Steps, tile, ..*state });
                    let total = state.tile.n;
                    engine.equals(Term::Loop { axis: Axis::N, role: Role::Thread, extent, total, body: [body] });
                }
            }
            _ => {}
        }
    }
}
