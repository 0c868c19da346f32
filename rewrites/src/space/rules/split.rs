//! `split` of the reduction, and the overlap (`software_pipeline`, `double_buffer`) annotated on its outer loop.
use crate::space::{Engine, Rule};
use satune_ir::term::{Axis, Pipe, Place, Role, Side, Stage, State, Strips, Term};

/// `nest(K) = for k in pipeline(ceil(K / f)): nest(f)` for every k tile on the menu and every overlap that the GPU has.
///
/// Only to keep the space small: an overlapped loop has a tile to copy, which fits in shared memory with its buffers beside
/// the strips (without accumulators nothing is copied); where there are strips the loop runs more than once.
pub struct KLoop;

impl Rule for KLoop {
    fn name(&self) -> &'static str {
        "split k, software_pipeline"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let (Term::Nest(_), Stage::Reduce(0)) = (node, state.stage) else { return };
        let mut pipes = vec![Pipe::Plain];
        let stands = |side: Side| state.place(side).layout().is_some();
        let strips = Strips { a: stands(Side::A), b: stands(Side::B), k: 0 };
        let any = strips.a || strips.b;
        let strips = Strips { k: if any { state.tile.k } else { 0 }, ..strips };
        if state.c == Place::Local && !(strips.a && strips.b) {
            pipes.push(Pipe::Registers);
            pipes.extend(engine.menu.async_stages.iter().map(|s| Pipe::Async(*s)));
        }
        let total = state.tile.k;
        let row =
            |side: Side| state.tile.get(side.spatial()) * i64::from(engine.contraction.operand(side).dtype.bytes());
        let narrow = [Side::A, Side::B].into_iter().filter(|s| !strips.has(*s)).map(row).min().unwrap_or(0);
        let taken = super::cache_read::strip_bytes(engine, state);
        for size in engine.menu.tile_k.clone() {
            if any && size >= total {
                continue;
            }
            for pipe in &pipes {
                let bytes = taken + narrow * size * pipe.buffers();
                if *pipe != Pipe::Plain && bytes > engine.limits.shared_bytes {
                    continue;
                }
                let stage = Stage::Staging { pipe: *pipe, strips };
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
