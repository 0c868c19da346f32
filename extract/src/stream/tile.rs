//! Work of a transpose through shared memory.
use super::accesses::rows;
use super::counts::{starts, up, zeros, Edge, KernelWork, LEAVE};
use satune_ir::machine::wavefronts;
use satune_ir::term::stream::{Stream, TilePlan};

/// Work of a tile kernel. Wavefronts are those of a whole tile, for each tile.
pub(super) fn work(plan: &TilePlan, stream: &Stream, block: usize) -> KernelWork {
    let b = &stream.blocks[block];
    let Some((read, write, access)) = stream.transposed(block) else { return KernelWork::default() };
    let (along_read, along_write) = (b.iters[read].extent, b.iters[write].extent);
    let all = b.instances();
    let batch = all / along_read / along_write;
    let tiles = (up(along_read, plan.side) * up(along_write, plan.side) * batch) as f64;
    let lanes = plan.side / plan.vector;
    let chunk = (32 * plan.vector).min(plan.side);
    let source = i64::from(stream.buffers[b.reads[access].buffer].dtype.bytes());
    let target = i64::from(stream.buffers[b.write.buffer].dtype.bytes());
    // An instruction of a warp takes several rows of the tile where they are short.
    let together = (32 / lanes).max(1) as f64;
    let mut work = KernelWork { blocks: tiles, ..KernelWork::default() };
    let mut load = rows(all / along_read, along_read, chunk, source);
    load.instructions /= together;
    work.global(load, false);
    let mut store = rows(all / along_write, along_write, chunk, target);
    store.instructions /= together;
    work.global(store, true);
    let steps = store.instructions;
    for (number, other) in b.reads.iter().enumerate() {
        if number == access {
            continue;
        }
        let bytes = i64::from(stream.buffers[other.buffer].dtype.bytes());
        let uses_inner = other.dims.contains(&Some(write));
        let mut touched = rows(all / along_write, along_write, chunk, bytes);
        if uses_inner {
            touched.instructions /= together;
        } else {
            touched.instructions = steps * plan.vector as f64;
            touched.sectors = touched.instructions * together;
        }
        work.global(touched, false);
    }
    let (filled, read_back) = shared(plan, source);
    let instances = tiles * (plan.side * plan.side) as f64 / 32.0;
    work.shared_stores = instances / if filled.2 { plan.vector as f64 } else { 1.0 };
    work.shared_loads = instances;
    (work.store_wavefronts, work.store_wavefronts_ideal) = (tiles * filled.0, tiles * filled.1);
    (work.load_wavefronts, work.load_wavefronts_ideal) = (tiles * read_back.0, tiles * read_back.1);
    // Rows of the tile are of one kind, columns of the other: nothing stays the same for long.
    work.operations(b, instances, instances, plan.vector == 1);
    work.barriers = tiles * (plan.threads / 32) as f64;
    let warps = tiles * (plan.threads / 32) as f64;
    // Rows and columns have threads, and the tile has addresses to write to and to read from: as many instructions as for four buffers.
    work.overhead = starts(warps, b.loads().count() + 1 + 4);
    // A thread's place along the lanes is the same in all steps, and so is what is asked about it. Of steps that differ, what each
    // does is short, and stands under a predicate.
    let (steps, wide) = (plan.side * lanes / plan.threads, plan.threads / lanes);
    if along_read % plan.side != 0 {
        let edge = Edge::of(along_read, steps, wide);
        let stores = if edge.conditions > 1.0 { edge.conditions } else { LEAVE };
        work.overhead += warps * (1.0 + steps as f64 * zeros(plan.vector, source) + stores);
    }
    if along_write % plan.side != 0 {
        let edge = Edge::of(along_write, steps, wide);
        work.overhead += warps * (LEAVE + edge.conditions + edge.steps * zeros(plan.vector, source));
    }
    if target < 4 && plan.vector > 1 {
        // What is read one by one is packed.
        work.overhead += instances * (1.0 - target as f64 / 4.0);
    }
    work.shared_bytes = plan.side * (plan.side + plan.pad) * source;
    work.held_registers = plan.side * plan.side / plan.threads * 2;
    work.chain = [1.0, 0.0, 2.0, 8.0];
    work
}

/// Wavefronts of a whole tile, (taken, least, whether stores are wide) when it is filled, (taken, least) when it is read.
fn shared(plan: &TilePlan, bytes: i64) -> ((f64, f64, bool), (f64, f64)) {
    let pitch = plan.side + plan.pad;
    let lanes = plan.side / plan.vector;
    let wide = pitch % plan.vector == 0;
    let (mut filled, mut read_back) = ((0.0, 0.0, wide), (0.0, 0.0));
    let accesses = plan.side * lanes;
    for first in (0..accesses).step_by(32) {
        let thread = |l: i64| (first + l).min(accesses - 1);
        let range = || 0..32.min(accesses - first);
        if wide {
            let list: Vec<(u32, u64)> = range()
                .map(|l| (l as u32, ((thread(l) / lanes * pitch + thread(l) % lanes * plan.vector) * bytes) as u64))
                .collect();
            let (taken, least) = wavefronts(&list, (plan.vector * bytes) as u32);
            filled.0 += f64::from(taken);
            filled.1 += f64::from(least);
        }
        for v in 0..plan.vector {
            let at = |row: i64, column: i64| ((row * pitch + column) * bytes) as u64;
            if !wide {
                let list: Vec<(u32, u64)> =
                    range().map(|l| (l as u32, at(thread(l) / lanes, thread(l) % lanes * plan.vector + v))).collect();
                let (taken, least) = wavefronts(&list, bytes as u32);
                filled.0 += f64::from(taken);
                filled.1 += f64::from(least);
            }
            let list: Vec<(u32, u64)> =
                range().map(|l| (l as u32, at(thread(l) % lanes * plan.vector + v, thread(l) / lanes))).collect();
            let (taken, least) = wavefronts(&list, bytes as u32);
            read_back.0 += f64::from(taken);
            read_back.1 += f64::from(least);
        }
    }
    (filled, read_back)
}
