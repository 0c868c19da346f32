//! `decompose_reduction`: the accumulators are cleared before the k loop.
use crate::space::{Engine, Rule};
use satune_ir::term::{Stage, State, Term};

/// `nest = clear; nest'`. The loop is above all reduction loops of the block, which is the primitive's condition.
pub struct Clear;

impl Rule for Clear {
    fn name(&self) -> &'static str {
        "decompose_reduction"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Clear) = (node, state.stage) else { return };
        let outer = u8::try_from(engine.contraction.outer_reduce().count()).unwrap_or(u8::MAX);
        let body = engine.nest(State { stage: Stage::Reduce(outer), ..*state });
        engine.equals(Term::Init([body]));
    }
}
