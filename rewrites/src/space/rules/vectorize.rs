//! `vectorize` of the store of C: the run of neighbouring results that one access takes. It is written on the
//! accumulators' nest, because its width must divide it; the drain follows it.
use crate::space::conditions::{store_along, store_bytes, store_divides, store_rows, WIDTHS};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Axis, Place, Role, Stage, State, Term};

/// Widths, elements, in which the register tile's rows can be stored: up to 16 bytes of whatever the store accesses, dividing
/// the tile and C's rows.
pub(super) fn store_widths(engine: &Engine<'_>, state: &State) -> Vec<i64> {
    let element = engine.contraction.widest_result();
    let row = engine.contraction.result_row();
    WIDTHS
        .into_iter()
        .filter(|w| {
            store_along(*w, state.c == Place::Local, engine.contraction).is_ok()
                && engine.holds(Condition::StoreBytes, store_bytes(*w, element))
                && engine.holds(Condition::StoreDivides, store_divides(*w, state.tile.n))
                && engine.holds(Condition::StoreRows, store_rows(*w, row))
        })
        .collect()
}

/// `nest(n = w) = for n in vector(w): multiply-add`.
pub struct Piece;

impl Rule for Piece {
    fn name(&self) -> &'static str {
        "vectorize store"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Piece) = (node, state.stage) else { return };
        let below = State { stage: Stage::Statement, tile: state.tile.with(Axis::N, 1), ..*state };
        let body = engine.term(Term::Multiply(Box::new(below)));
        let extent = state.tile.n;
        engine.equals(Term::Loop { axis: Axis::N, role: Role::Vector, extent, total: extent, body: [body] });
    }
}
