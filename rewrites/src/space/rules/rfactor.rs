//! `rfactor` over a part of k (split-K): partial sums in a workspace, added by a second kernel.
use crate::space::conditions::{long_parts, one_kernel_parts, parts_divide, plain_parts};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Axis, Place, Role, Stage, State, Term};

/// `nest(K) = split-k (for k in blocks(s): nest(K / s)) (add s parts)`.
///
/// Side condition: s divides K, and each part keeps at least the longest k tile; there is no epilogue, of which products
/// on tensor cores know more ([`super::tensor`]).
pub struct SplitK;

impl Rule for SplitK {
    fn name(&self) -> &'static str {
        "rfactor (split k)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        if plain_parts(engine.contraction).is_ok() {
            split(engine, node, state);
        }
    }
}

/// The rule, whatever the second kernel does with the sums.
pub(super) fn split(engine: &mut Engine<'_>, node: &Term, state: &State) {
    let (Term::Nest(_), Stage::Root) = (node, state.stage) else { return };
    if one_kernel_parts(engine.contraction).is_err() {
        return;
    }
    let total = state.tile.k;
    let longest = engine.menu.tile_k.iter().copied().max().unwrap_or(1);
    let batch = u8::try_from(engine.contraction.batch().count()).unwrap_or(u8::MAX);
    for parts in engine.menu.split_k.clone() {
        let divides = engine.holds(Condition::SplitKDivides, parts_divide(total, parts));
        if !divides || long_parts(total, parts, longest).is_err() {
            continue;
        }
        let tile = state.tile.with(Axis::K, total / parts);
        let stage = Stage::Blocks { batch, m: true, n: true };
        let inner = engine.nest(State { stage, tile, c: Place::Workspace, ..*state });
        let main = engine.term(Term::Loop { axis: Axis::K, role: Role::Block, extent: parts, total, body: [inner] });
        let finish =
            engine.term(Term::AddParts(Box::new(State { stage: Stage::Finish(parts), c: Place::Workspace, ..*state })));
        engine.equals(Term::Split([main, finish]));
    }
}
