//! `cache_write` of C to registers with `reverse_compute_at` of its write-back.
use crate::space::conditions::in_place;
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Place, Stage, State, Term};

/// `(cta nest) = (write C local nest' store)`: the block accumulates in registers, and its threads store what they hold.
///
/// All producers of C stay under the block, and each thread stores exactly the results that it computed, so the region
/// is covered.
pub struct Accumulators;

impl Rule for Accumulators {
    fn name(&self) -> &'static str {
        "cache_write, reverse_compute_at"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Accumulators) = (node, state.stage) else { return };
        let body = engine.nest(State { stage: Stage::Clear, c: Place::Local, ..*state });
        let drain = engine.term(Term::Store(state.c));
        engine.equals(Term::Write([body, drain]));
    }
}

/// `(cta nest) = (in-place nest)`: the sum is kept in C's own buffer.
///
/// Side condition: not under a split reduction, whose partial sums have their own buffer and no reader before the end.
pub struct InPlace;

impl Rule for InPlace {
    fn name(&self) -> &'static str {
        "in place"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Accumulators) = (node, state.stage) else { return };
        let [whole, plain] = in_place(state.c != Place::Global, engine.contraction);
        if !engine.holds(Condition::InPlaceWhole, whole) || plain.is_err() {
            return;
        }
        let outer = u8::try_from(engine.contraction.outer_reduce().count()).unwrap_or(u8::MAX);
        let body = engine.nest(State { stage: Stage::Reduce(outer), ..*state });
        engine.equals(Term::InPlace([body]));
    }
}
