//! A kernel that is a contraction by itself: `cache_read`, `cache_write`, `split`, `bind`, `compute_at` and the other decisions
//! of a contraction, taken together.
use super::engine::Engine;
use crate::space::Rule;
use satune_ir::term::stream::{Step, StreamState, StreamTerm};

/// `kernel = tiled p`, for each schedule p of the contraction that the blocks are.
///
/// Side conditions: those of the contraction's own rules, by which the schedules of the menu were made.
pub struct Tiled;

impl Rule<StreamTerm> for Tiled {
    fn name(&self) -> &'static str {
        "tiles of a contraction"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Kernel(_)) = (node, state.step) else { return };
        let menu = engine.menu;
        for plan in menu.tiled.get(&state.work).into_iter().flatten() {
            engine.equals(StreamTerm::Tiled { plan: Box::new(plan.clone()), state: Box::new(*state) });
        }
    }
}
