//! `split` of the reduction, and the overlap (`software_pipeline`, `double_buffer`) annotated on its outer loop.
use crate::space::conditions::{cut, overlap_staged, overlap_sums, shared_fits, strip_repeats, Staged};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{strip_length, Axis, Pipe, Place, Role, Side, Stage, StagedLayout, State, Strips, Term};

/// `nest(K) = for k in pipeline(ceil(K / f)): nest(f)` for every k tile on the menu and every overlap that the GPU has.
///
/// Side condition: strips have room for whole tiles, though the last one is cut (its values beyond the end are guarded).
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
        let stands = |side: Side| state.place(side).layout().is_some();
        let (a, b) = (stands(Side::A), stands(Side::B));
        let any = a || b;
        let strips = Strips { a, b, k: if any { state.tile.k } else { 0 }, cut: false };
        let asynchronous = engine.menu.async_stages.iter().map(|s| Pipe::Async(*s));
        let may_overlap = |pipe: &Pipe| {
            overlap_sums(*pipe, state.c == Place::Local).and(overlap_staged(*pipe, !(strips.a && strips.b))).is_ok()
        };
        let pipes: Vec<Pipe> =
            [Pipe::Plain, Pipe::Registers].into_iter().chain(asynchronous).filter(may_overlap).collect();
        let total = state.tile.k;
        let plain = StagedLayout { k_major: true, pad: 0, swizzle: false };
        for size in engine.menu.tile_k.clone() {
            if any && strip_repeats(size, total).is_err() {
                continue;
            }
            let long = strip_length(total, size);
            let strip = |side: Side| super::cache_read::staged(engine, state, (side, state.place(side)), long, None);
            let fits = shared_fits([Side::A, Side::B].map(strip), engine.limits.shared_bytes);
            if any && !engine.holds(Condition::StripFits, fits) {
                continue;
            }
            for pipe in &pipes {
                let place = |side: Side| if strips.has(side) { state.place(side) } else { Place::Shared(plain) };
                let staged = |side: Side| {
                    let (k, tile) = if strips.has(side) { (long, None) } else { (size, Some(pipe.buffers())) };
                    super::cache_read::staged(engine, state, (side, place(side)), k, tile)
                };
                // Of two tiles the smaller one at least is copied.
                let mut both = [Side::A, Side::B].map(staged);
                let bytes = |staged: &Option<Staged>| staged.map_or(0, |s| s.bytes);
                match (strips.a, strips.b) {
                    (false, false) if bytes(&both[0]) > bytes(&both[1]) => both[0] = None,
                    (false, false) => both[1] = None,
                    _ => {}
                }
                if *pipe != Pipe::Plain && shared_fits(both, engine.limits.shared_bytes).is_err() {
                    continue;
                }
                let cut = cut([total, engine.contraction.extent(Axis::K)], size);
                let stage = Stage::Staging { pipe: *pipe, strips: Strips { cut, ..strips } };
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
