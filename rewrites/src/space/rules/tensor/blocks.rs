//! Tiles of blocks that only tensor cores use.
use super::offer::Offer;
use crate::space::{Engine, Rule};
use satune_ir::term::{Axis, Role, Stage, State, Term};
use std::sync::Arc;

/// `nest(M, ..) = for m in blocks(ceil(M / f)): nest(f, ..)` for tiles that the menu of single threads lacks; the same
/// for n.
pub struct TensorBlocks(pub(super) Arc<Offer>);

impl Rule for TensorBlocks {
    fn name(&self) -> &'static str {
        "split, bind to blocks (tensor tiles)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Blocks { batch: 0, m, n }) = (node, state.stage) else { return };
        let menu = &self.0.menu;
        let (axis, stage, sizes, known) = match (m, n) {
            (true, _) => (Axis::M, Stage::Blocks { batch: 0, m: false, n }, &menu.tile_m, &engine.menu.tile_m),
            (false, true) => (Axis::N, Stage::Blocks { batch: 0, m, n: false }, &menu.tile_n, &engine.menu.tile_n),
            (false, false) => return,
        };
        let total = state.tile.get(axis);
        let new: Vec<i64> = sizes.iter().copied().filter(|s| !known.contains(s)).collect();
        for size in new {
            let body = engine.nest(State { stage, tile: state.tile.with(axis, size), ..*state });
            let extent = total / size + i64::from(total % size > 0);
            engine.equals(Term::Loop { axis, role: Role::Block, extent, total, body: [body] });
        }
    }
}
