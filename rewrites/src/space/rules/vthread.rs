//! `bind` to a virtual thread (with the `split` that makes the loop): strided pieces of a thread's tile.
use crate::space::conditions::divides;
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Axis, Role, Stage, State, Team, Term};

/// `nest(m) = for m in vthreads(v): nest(m / v)`, outside the warps and again outside the lanes, m then n.
///
/// Side condition: v divides the tile; below, every thread must still get a result.
pub struct Vthreads;

impl Rule for Vthreads {
    fn name(&self) -> &'static str {
        "split, bind to vthreads"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Term::Nest(_) = node else { return };
        let (axis, stage) = match state.stage {
            Stage::CtaVthread { m: true } => (Axis::M, Stage::CtaVthread { m: false }),
            Stage::CtaVthread { m: false } => (Axis::N, Stage::Warps { m: true, n: true }),
            Stage::WarpVthread { m: true } => (Axis::M, Stage::WarpVthread { m: false }),
            Stage::WarpVthread { m: false } => (Axis::N, Stage::Lanes { m: true, n: true }),
            _ => return,
        };
        let threads = match state.team {
            Team::Cta(n) | Team::Warp(n) => i64::from(n),
            Team::Grid | Team::Warpgroup | Team::Thread => return,
        };
        let total = state.tile.get(axis);
        for extent in engine.menu.vthreads.clone() {
            let each = total / extent;
            let other = state.tile.m * state.tile.n / total;
            // Operands that stay in global memory gain nothing from strided pieces; that keeps their space small.
            let useful = extent == 1 || state.a != satune_ir::term::Place::Global;
            let divide = engine.holds(Condition::VthreadsDivide, divides("virtual threads", axis, extent, total));
            if divide && each * other >= threads && useful {
                let body = engine.nest(State { stage, tile: state.tile.with(axis, each), ..*state });
                engine.equals(Term::Loop { axis, role: Role::Vthread, extent, total, body: [body] });
            }
        }
    }
}
