//! Which blocks share a kernel: `compute_at` of all but the last of them.
use super::Engine;
use crate::space::conditions::stream::{flat_fits, plain_fits, row_fits, transposes};
use crate::space::stream::StreamCondition;
use crate::space::Rule;
use satune_ir::term::stream::{Step, StreamState, StreamTerm};

/// `nest(from..) = kernel(from..to) then nest(to..)`.
///
/// Side condition: some kind of kernel takes the blocks.
pub struct Kernels;

impl Rule<StreamTerm> for Kernels {
    fn name(&self) -> &'static str {
        "compute_at (kernel)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &StreamTerm, state: &StreamState) {
        let (StreamTerm::Nest(_), Step::Kernels(from)) = (node, state.step) else { return };
        let Some(stream) = engine.problem().variants.get(usize::from(state.variant)) else { return };
        let (start, end) = (usize::from(from), stream.blocks.len());
        for to in start + 1..=end {
            let one = to == start + 1;
            let flat = one && engine.holds(StreamCondition::FlatFits, flat_fits(stream, start));
            let rows = stream.row_shape(start, to).is_some()
                && engine.holds(StreamCondition::RowFits, row_fits(stream, start, to));
            let alone = || transposes(stream, start).is_ok() || plain_fits(stream, start).is_ok();
            let tiled = engine.menu.tiled.contains_key(&(state.variant, from, to as u8));
            let fits = flat || rows || tiled || (one && alone());
            if !fits {
                continue;
            }
            let kernel = engine.nest(StreamState { step: Step::Kernel { from, to: to as u8 }, ..*state });
            if to == end {
                engine.equals(StreamTerm::Last { from, to: to as u8, body: [kernel] });
            } else {
                let rest = engine.nest(StreamState { step: Step::Kernels(to as u8), ..*state });
                engine.equals(StreamTerm::Launch { from, to: to as u8, children: [kernel, rest] });
            }
        }
    }
}
