//! Schedules that people have written by hand, which the space has to hold.
use crate::compiles::classic;
use crate::support::gemm;
use satune_ir::term::*;
use satune_ir::DType;

/// Name, layout of the operands, and schedule, for 1024 x 1024 x 1024 in f32.
pub fn schedules() -> Vec<(&'static str, &'static str, CoresPlan)> {
    let c = gemm(None, 1024, 1024, 1024, DType::F32, DType::F32, "NN");
    let tn = gemm(None, 1024, 1024, 1024, DType::F32, DType::F32, "TN");
    let blocks = |m: i64, n: i64| {
        vec![
            BlockLoop { axis: Axis::M, extent: 1024 / m, group: false },
            BlockLoop { axis: Axis::N, extent: 1024 / n, group: false },
        ]
    };
    let tiled = |c: &Contraction| {
        // 128 x 128 x 8, 16 x 16 threads, 8 x 8 results each, scalar copies: stage 2 of the staircase.
        let mut p = classic(c);
        let plain = StagedLayout { k_major: true, pad: 0, swizzle: false };
        let by_rows = StagedLayout { k_major: false, pad: 0, swizzle: false };
        let fill = Fill { coalesced: true, vector: 1, unroll: false };
        let a_rows = if c.a.contiguous_along(Axis::K) { by_rows } else { plain };
        (p.a, p.b) = (
            Staging { shared: Some((a_rows, fill)), local: Some(1), ..Staging::default() },
            Staging { shared: Some((plain, fill)), local: Some(1), ..Staging::default() },
        );
        p.pipe = Pipe::Plain;
        p.warps = Pair { m: 8, n: 1 };
        p.lanes = Pair { m: 2, n: 16 };
        p.vthread_inner = Pair { m: 1, n: 1 };
        p.registers = Pair { m: 8, n: 8 };
        (p.unroll_k, p.store_vector) = (false, 1);
        p
    };
    let vectored = |c: &Contraction| {
        // vthreads 2 x 2 outside 16 x 16 threads, 4 x 4 each, float4 copies: stage 4.
        let mut p = tiled(c);
        p.vthread_outer = Pair { m: 2, n: 2 };
        p.registers = Pair { m: 4, n: 4 };
        let fill = Fill { coalesced: true, vector: 4, unroll: true };
        for (staging, vector) in [(&mut p.a, 1), (&mut p.b, 4)] {
            staging.shared = staging.shared.map(|(layout, _)| (layout, fill));
            staging.local = Some(vector);
        }
        p.store_vector = 4;
        p
    };
    let mut named: Vec<(&str, &str, CoresPlan)> = Vec::new();
    // Stage 1: 32 x 32 threads, one result each, accumulator in a register, no shared memory.
    let mut blocked = CoresPlan::naive(&c);
    blocked.blocks = blocks(32, 32);
    (blocked.tile, blocked.k_tile, blocked.threads) = (Pair { m: 32, n: 32 }, 8, 1024);
    (blocked.warps, blocked.lanes) = (Pair { m: 32, n: 1 }, Pair { m: 1, n: 32 });
    (blocked.accumulators, blocked.init_hoisted) = (true, true);
    named.push(("stage 1, blocked", "NN", blocked.clone()));
    // Stage 0: the sum kept in global memory.
    let mut native = blocked;
    (native.accumulators, native.init_hoisted) = (false, false);
    named.push(("stage 0, in global memory", "NN", native));
    named.push(("stage 2, thread tiling", "NN", tiled(&c)));
    let mut vthread = tiled(&c);
    (vthread.vthread_outer, vthread.registers) = (Pair { m: 2, n: 8 }, Pair { m: 4, n: 1 });
    named.push(("stage 3, vthreads 2 x 8", "NN", vthread));
    named.push(("stage 4, vectorize", "NN", vectored(&c)));
    let mut unrolled = vectored(&c);
    unrolled.unroll_k = true;
    named.push(("stage 5, unroll", "NN", unrolled));
    let mut warp_tiled = classic(&c);
    warp_tiled.k_tile = 16;
    named.push(("128 x 128 x 16, 8 x 8 threads, warp tiles", "NN", warp_tiled));
    let mut wide = classic(&c);
    wide.blocks = blocks(128, 256);
    wide.tile.n = 256;
    (wide.warps, wide.lanes) = (Pair { m: 2, n: 4 }, Pair { m: 4, n: 8 });
    (wide.vthread_inner, wide.registers) = (Pair { m: 4, n: 2 }, Pair { m: 4, n: 4 });
    named.push(("128 x 256 x 8, 16 x 8 results, two stages", "NN", wide));
    let mut split = classic(&c);
    split.split_k = 4;
    split.k_part = 256;
    split.blocks.insert(0, BlockLoop { axis: Axis::K, extent: 4, group: false });
    named.push(("split-K by 4", "NN", split));
    let mut transposed = vectored(&tn);
    transposed.a.local = Some(4);
    named.push(("A stored as K x M", "TN", transposed));
    let mut asynchronous = classic(&c);
    asynchronous.pipe = Pipe::Async(3);
    asynchronous.a.shared.as_mut().unwrap().1.vector = 1;
    named.push(("cp.async, three stages", "NN", asynchronous));
    let mut swapped = classic(&c);
    swapped.blocks.reverse();
    named.push(("grid axes swapped", "NN", swapped));
    let mut grouped = classic(&c);
    grouped.blocks = vec![
        BlockLoop { axis: Axis::M, extent: 2, group: false },
        BlockLoop { axis: Axis::N, extent: 8, group: false },
        BlockLoop { axis: Axis::M, extent: 4, group: true },
    ];
    named.push(("grouped rasterization by 4", "NN", grouped));
    assert!(named.len() >= 10);
    named
}
