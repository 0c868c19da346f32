//! What is assumed of the hardware and was not seen on it, each with a small program and the schedules that rest on it.
use crate::pack::Assumption;
use satune_ir::term::tensor::{TileStore, WgmmaPlan};
use satune_ir::term::Schedule;

fn wgmma(plan: &Schedule) -> Option<&WgmmaPlan> {
    match plan {
        Schedule::Wgmma(plan) => Some(plan),
        _ => None,
    }
}

fn plain(plan: &Schedule) -> bool {
    wgmma(plan).is_some_and(|p| {
        p.cluster == [1, 1]
            && !p.stream_k
            && !p.ping_pong
            && p.split_k == 1
            && p.store == TileStore::Direct
            && !p.swapped
    })
}

fn mma(plan: &Schedule) -> bool {
    matches!(plan, Schedule::Mma(p) if p.instruction.wmma().is_none())
}

fn cluster(plan: &Schedule, of: [u32; 2]) -> bool {
    wgmma(plan).is_some_and(|p| p.cluster == of)
}

fn any(_: &Schedule) -> bool {
    true
}

macro_rules! assume {
    ($($what:literal, $program:literal, $fits:expr;)*) => {
        &[$(Assumption { what: $what, program: $program, fits: $fits }),*]
    };
}

/// Of H100 and H200, and what they share with earlier GPUs.
pub(super) const ASSUMPTIONS: &[Assumption] = assume! {
    "multiply-adds of single threads", "gemm:64,64,64,f32", |p| matches!(p, Schedule::Cores(_));
    "the same in double precision", "gemm:64,64,64,f64", any;
    "mma.sync bf16, ldmatrix", "gemm:128,64,128,bf16,NT", mma;
    "mma.sync bf16, ldmatrix.trans", "gemm:128,64,128,bf16,NN", mma;
    "mma.sync f16, A across k", "gemm:128,64,128,f16,TN", mma;
    "mma.sync tf32", "gemm:128,64,128,tf32,NT", mma;
    "mma.sync s8", "gemm:128,64,128,i8,NT", mma;
    "wmma f16, where there is no mma.sync", "gemm:128,64,128,f16,NT", |p| matches!(p, Schedule::Mma(m) if m.instruction.wmma().is_some());
    "mma.sync, stmatrix", "gemm:128,64,128,bf16,NT,out=bf16", mma;
    "wgmma bf16, both along k", "gemm:256,256,256,bf16,NT", plain;
    "two groups of consumers, setmaxnreg", "gemm:256,256,256,bf16,NT", |p| wgmma(p).is_some_and(|w| w.consumers > 1);
    "consumers in turn", "gemm:256,256,256,bf16,NT", |p| wgmma(p).is_some_and(|w| w.ping_pong);
    "blocks that walk over tiles", "gemm:256,256,256,bf16,NT", |p| wgmma(p).is_some_and(|w| w.blocks.is_some() && !w.stream_k);
    "one arrival right behind the wait", "gemm:256,256,256,bf16,NT", |p| wgmma(p).is_some_and(|w| w.eager_release && !w.arrive_per_warp);
    "an arrival per warp right behind the wait", "gemm:256,256,256,bf16,NT", |p| wgmma(p).is_some_and(|w| w.eager_release && w.arrive_per_warp);
    "steps along k dealt out", "gemm:256,256,256,bf16,NT", |p| wgmma(p).is_some_and(|w| w.stream_k);
    "multicast 2x1", "gemm:256,256,256,bf16,NT", |p| cluster(p, [2, 1]);
    "multicast 1x2", "gemm:256,256,256,bf16,NT", |p| cluster(p, [1, 2]);
    "multicast 2x2", "gemm:256,256,256,bf16,NT", |p| cluster(p, [2, 2]);
    "the transposed product", "gemm:256,256,256,bf16,NT", |p| wgmma(p).is_some_and(|w| w.swapped);
    "wgmma bf16, rows of B along n", "gemm:256,256,256,bf16,NN", plain;
    "wgmma bf16, rows of A along m", "gemm:256,256,256,bf16,TT", plain;
    "wgmma bf16, both across k", "gemm:256,256,256,bf16,TN", plain;
    "multicast of rows along n", "gemm:256,256,256,bf16,NN", |p| cluster(p, [2, 1]);
    "wgmma f16", "gemm:256,256,256,f16,NT", plain;
    "wgmma tf32 through FLOAT32 maps", "gemm:256,256,256,tf32,NT", plain;
    "wgmma e4m3", "gemm:256,256,256,e4m3,NT", plain;
    "wgmma e5m2", "gemm:256,256,256,e5m2,NT", plain;
    "wgmma s8", "gemm:256,256,256,i8,NT", plain;
    "stmatrix and TMA stores", "gemm:256,256,256,bf16,NT,out=bf16", |p| wgmma(p).is_some_and(|w| w.store == TileStore::Tma);
    "TMA stores box by box", "gemm:256,256,256,bf16,NT,out=bf16", |p| wgmma(p).is_some_and(|w| w.store == TileStore::Boxes);
    "TMA stores of 32-bit results", "gemm:256,256,256,bf16,NT", |p| wgmma(p).is_some_and(|w| w.store == TileStore::Boxes);
    "TMA stores of 8-bit results", "gemm:256,256,256,e4m3,NT,out=e4m3", |p| wgmma(p).is_some_and(|w| w.store == TileStore::Tma);
    "TMA loads and stores that are clipped", "gemm:200,136,264,bf16,NT,out=bf16", |p| wgmma(p).is_some_and(|w| w.store == TileStore::Tma);
    "sums over lanes and warps", "softmax:64,256,f32", any;
    "tiles through shared memory", "transpose:128,128,f32", any;
};
