//! `unroll` and the loops that a thread runs itself: the inner k loop and the register tile.
use crate::space::conditions::{step_along_k, step_divides, STEPS};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Axis, Role, Stage, State, Term};

/// `nest(k) = for k in serial or unroll (k / step): nest(step)`. Steps of more than one k value are offered where an
/// operand's rows run along k, so that a fragment is read along k.
pub struct Steps;

impl Rule for Steps {
    fn name(&self) -> &'static str {
        "split k, unroll"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Steps) = (node, state.stage) else { return };
        let along_k = [state.a, state.b].into_iter().any(|p| p.layout().is_some_and(|l| !l.k_major));
        let total = state.tile.k;
        for step in STEPS.into_iter().filter(|step| step_along_k(*step, along_k).is_ok()) {
            if !engine.holds(Condition::StepDivides, step_divides(total, step)) {
                continue;
            }
            let stage = Stage::Fragments { a: true };
            let body = engine.nest(State { stage, tile: state.tile.with(Axis::K, step), ..*state });
            let extent = total / step;
            for role in [Role::Serial, Role::Unroll] {
                engine.equals(Term::Loop { axis: Axis::K, role, extent, total, body: [body] });
            }
        }
    }
}

/// The register tile: expanded loops over m and n, in this order ([`super::reorder::Reorder`] gives the other).
pub struct Registers;

impl Rule for Registers {
    fn name(&self) -> &'static str {
        "unroll registers"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Term::Nest(_) = node else { return };
        match state.stage {
            Stage::Registers { m: true, n: true } => {
                let tile = state.tile.with(Axis::M, 1);
                let body = engine.nest(State { stage: Stage::Registers { m: false, n: true }, tile, ..*state });
                let extent = state.tile.m;
                engine.equals(Term::Loop { axis: Axis::M, role: Role::Unroll, extent, total: extent, body: [body] });
            }
            Stage::Registers { m: false, n: true } => {
                for width in super::vectorize::store_widths(engine, state) {
                    let tile = state.tile.with(Axis::N, width);
                    let body = engine.nest(State { stage: Stage::Piece, tile, ..*state });
                    let (extent, total) = (state.tile.n / width, state.tile.n);
                    engine.equals(Term::Loop { axis: Axis::N, role: Role::Unroll, extent, total, body: [body] });
                }
            }
            _ => {}
        }
    }
}
