//! `rfactor` over a part of k (split-K) under an epilogue.
use crate::space::conditions::plain_parts;
use crate::space::rules::rfactor;
use crate::space::{Engine, Rule};
use satune_ir::term::{State, Term};

/// `nest(K) = split-k (for k in blocks(s): nest(K / s)) (add s parts, then the epilogue)`: the kernel that adds the parts
/// of products on tensor cores applies the epilogue to their sum.
///
/// Side condition: as without an epilogue.
pub struct SplitFused;

impl Rule for SplitFused {
    fn name(&self) -> &'static str {
        "rfactor (split k), epilogue after the sum"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        // Without one it is everybody's rule.
        if plain_parts(engine.contraction).is_err() {
            rfactor::split(engine, node, state);
        }
    }
}
