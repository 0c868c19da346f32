//! `split` of the reduction, and the overlap (`software_pipeline`, `double_buffer`) annotated on its outer loop.
use crate::space::{Engine, Rule};
use satune_ir::term::{Axis, Pipe, Place, Role, Stage, State, Term};

/// `nest(K) = for k in pipeline(ceil(K / f)): nest(f)` for every k tile on the menu and every overlap that the GPU has.
///
/// Side condition: the unpadded tiles of both operands, times the buffers, fit in shared memory; without accumulators
/// there is nothing to overlap.
pub struct KLoop;

impl Rule for KLoop {
    fn name(&self) -> &'static str {
        "split k, software_pipeline"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Reduce(0)) = (node, state.stage) else { return };
        let mut pipes = vec![Pipe::Plain];
        if state.c == Place::Local {
            pipes.push(Pipe::Registers);
            pipes.extend(engine.menu.async_stages.iter().map(|s| Pipe::Async(*s)));
        }
        let total = state.tile.k;
        let (a, b) = (engine.contraction.a.dtype.bytes() as i64, engine.contraction.b.dtype.bytes() as i64);
        for size in engine.menu.tile_k.clone() {
            for pipe in &pipes {
                let bytes = (state.tile.m * a + state.tile.n * b) * size * pipe.buffers();
                if *pipe != Pipe::Plain && bytes > engine.limits.shared_bytes {
                    continue;
                }
                let stage = Stage::Staging(*pipe);
                let body = engine.nest(State { stage, tile: state.tile.with(Axis::K, size), ..*state });
                let extent = (total + size - 1) / size;
                engine.equals(Term::Loop { axis: Axis::K, role: Role::Pipeline(*pipe), extent, total, body: [body] });
            }
        }
    }
}

/// Further reduction axes become serial loops around the k loop.
pub struct OuterReduction;

impl Rule for OuterReduction {
    fn name(&self) -> &'static str {
        "outer reduction loop"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Reduce(left @ 1..)) = (node, state.stage) else { return };
        let index = engine.contraction.outer_reduce().count() as u8 - left;
        let extent = engine.contraction.extent(Axis::Outer(index));
        let body = engine.nest(State { stage: Stage::Reduce(left - 1), ..*state });
        let axis = Axis::Outer(index);
        engine.equals(Term::Loop { axis, role: Role::Serial, extent, total: extent, body: [body] });
    }
}
