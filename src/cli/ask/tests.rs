//! The question language.
use super::fixed::Fixed;
use super::parse::parse;
use super::tensor::Multiplier;
use satune_ir::term::tensor::*;
use satune_ir::term::{Axis, Pair, Pipe};

fn read(text: &str) -> Result<Fixed, String> {
    parse(text, &crate::operators::parse("gemm:64,64,64,f32").unwrap().contraction)
}

#[test]
fn every_decision_has_a_word() {
    let f = read(
        "block 128x64, k 8, step 2, threads 16x16, vthreads 2x1, registers 8x4 n outer, stages async 3, split 4, \
         order n m, group m 4, A above-k transposed pad 4 fill 4 rows fill-unrolled local 2, B at-k row xor in-place, unroll no, \
         store 4, init hoisted, accumulators registers, warps 4x2 n outer, lanes 4x8 m outer",
    )
    .unwrap();
    assert_eq!(f.block, Some(Pair { m: 128, n: 64 }));
    assert_eq!((f.k, f.step, f.split, f.store), (Some(8), Some(2), Some(4), Some(4)));
    assert_eq!((f.stages, f.group), (Some(Pipe::Async(3)), Some(Some((Axis::M, 4)))));
    assert_eq!((f.a.k_major, f.a.pad, f.a.swizzle), (Some(true), Some(4), Some(false)));
    assert_eq!((f.a.fill, f.a.coalesced, f.a.fill_unroll, f.a.local), (Some(4), Some(true), Some(true), Some(Some(2))));
    assert_eq!((f.a.hoisted, f.b.hoisted), (Some(true), Some(false)));
    assert_eq!((f.b.k_major, f.b.swizzle, f.b.local), (Some(true), Some(true), Some(None)));
    assert_eq!((f.unroll, f.init_hoisted, f.accumulators), (Some(false), Some(true), Some(true)));
    assert_eq!((f.blocks_m_outer, f.warps_m_outer, f.lanes_m_outer), (Some(false), Some(false), Some(true)));
    assert_eq!(f.registers_m_outer, Some(false));
    // Both ways to make 2 virtual threads along m, and the one way to make 16 x 16 threads of the warps and lanes given.
    assert_eq!(f.variants().len(), 2);
    assert_eq!(read("stages serial").unwrap().stages, Some(Pipe::Plain));
    assert_eq!(read("stages 2").unwrap().stages, Some(Pipe::Async(2)));
    assert_eq!(read("stages registers").unwrap().stages, Some(Pipe::Registers));
    assert_eq!(read("vthreads outside 2x2").unwrap().vthreads_outside, Some(Pair { m: 2, n: 2 }));
}

#[test]
fn nonsense_is_refused_by_the_word() {
    for (text, part) in [
        ("blok 1x1", "`blok` is not known; known are block MxN"),
        ("k 0", "`0` is not a whole number"),
        ("k 99999999999999999999", "is not a whole number"),
        ("k", "`k` has no value"),
        ("", "nothing is fixed"),
        ("block 128", "`128` is not MxN"),
        ("A sideways", "`sideways` is not known of an operand"),
        ("stages 300", "too many stages"),
        ("split 2 3", "`3` is not understood after `split`"),
        ("order k", "`order k` is not known"),
        ("unroll maybe", "`unroll maybe` is not known"),
        ("tile 64", "`64` is not MxN or MxNxK"),
        ("cluster 2", "`2` is not MxN"),
        ("C by magic", "`C by magic` is not known"),
        ("A: copies of many bytes", "`many` is not a whole number"),
        ("A: sideways", "`sideways` is not known of an operand"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// A description, read as a question, fixes what it says as the plan has it; decisions that it says by silence are free.
#[test]
fn descriptions_of_mma_plans_are_questions() {
    let plain = TensorPlan::plain([128, 256, 64], [64, 64], Mma::Bf16, 3);
    let mut busy = plain.clone();
    (busy.warps_m_outer, busy.slack, busy.rolled) = (false, 1, true);
    busy.order = Order { columns: true, serpentine: true, pairs: true, descending: true };
    busy.raster = Raster { columns: true, group: 4 };
    (busy.split_k, busy.store, busy.min_blocks) = (2, Store::Shared { stmatrix: true }, Some(2));
    let own = OperandPlan { layout: TileLayout::Rotate(4), bytes: 8, order: CopyOrder::Own, ..OperandPlan::default() };
    let own = OperandPlan { rolled: true, prefetch: 128, step: 1, matrices: 2, sets: 1, ..own };
    let across = OperandPlan { layout: TileLayout::Plain, order: CopyOrder::Columns, ..OperandPlan::default() };
    busy.operands = [own, across];
    for plan in [&plain, &busy] {
        let (read, of) = (read(&plan.describe().join("\n")).unwrap(), Fixed::of_mma(plan));
        assert_eq!(read.kinds(), [Multiplier::Mma]);
        let common = |f: &Fixed| (f.block, f.k, f.threads, f.stages, f.blocks_m_outer, f.group);
        assert_eq!(common(&read), common(&of));
        let said = |f: &Fixed| (f.mma.instruction, f.mma.warp, f.mma.columns, f.mma.store);
        assert_eq!(said(&read), said(&of));
        for (read, of) in read.mma.ways.iter().zip(&of.mma.ways) {
            assert_eq!(
                (read.layout, read.bytes, read.order, read.step, read.matrices, read.sets),
                (of.layout, of.bytes, of.order, of.step, of.matrices, of.sets)
            );
        }
        if plan == &busy {
            let unusual = |f: &Fixed| (f.mma.rolled, f.mma.slack, f.mma.serpentine, f.mma.pairs, f.mma.descending);
            assert_eq!(unusual(&read), unusual(&of));
            assert_eq!((read.split, read.mma.warps_m_outer), (of.split, of.mma.warps_m_outer));
            assert_eq!(read.mma.min_blocks, of.mma.min_blocks);
            assert_eq!((read.mma.ways[0].rolled, read.mma.ways[0].prefetch), (Some(true), Some(128)));
        } else {
            assert_eq!((read.mma.rolled, read.mma.slack, read.mma.min_blocks, read.split), (None, None, None, None));
        }
    }
}

#[test]
fn descriptions_of_wgmma_plans_are_questions() {
    let plain = WgmmaPlan::plain([128, 256, 64], 2, 4);
    let mut busy = WgmmaPlan::plain([256, 128, 64], 2, 3);
    (busy.blocks, busy.cluster, busy.by_rows) = (Some(132), [2, 1], true);
    (busy.eager_release, busy.store, busy.raster) = (true, TileStore::Tma, Raster::rows(8));
    busy.arrive_per_warp = true;
    let mut turns = WgmmaPlan::plain([128, 128, 64], 2, 4);
    (turns.ping_pong, turns.blocks) = (true, Some(132));
    let mut stream = plain.clone();
    (stream.stream_k, stream.blocks) = (true, Some(132));
    let memory = WgmmaPlan { op: GroupMma::Tcgen05, ..busy.clone() };
    let memory = WgmmaPlan { by_rows: false, eager_release: false, arrive_per_warp: false, ..memory };
    for plan in [&plain, &busy, &turns, &stream, &memory] {
        let (read, of) = (read(&plan.describe().join("\n")).unwrap(), Fixed::of_wgmma(plan));
        assert_eq!(read.kinds(), [Multiplier::Wgmma]);
        let common = |f: &Fixed| (f.block, f.k, f.stages, f.blocks_m_outer, f.group, f.wgmma.op);
        assert_eq!(common(&read), common(&of));
        assert_eq!((read.threads, read.wgmma.n), (Some(plan.threads()), Some(plan.tile[1])));
        assert_eq!(read.wgmma.row_blocks, Some(plan.row_blocks()));
        let said = |f: &Fixed| (f.wgmma.consumers, f.wgmma.in_turn, f.wgmma.eager_release, f.wgmma.store);
        assert_eq!(said(&read), said(&of));
        if plan.blocks.is_some() {
            assert_eq!((read.wgmma.grid, read.wgmma.stream_k), (of.wgmma.grid, of.wgmma.stream_k));
        }
        assert_eq!(read.wgmma.cluster, (plan.cluster != [1, 1]).then_some(plan.cluster));
        assert_eq!(read.wgmma.by_rows, plan.by_rows.then_some(true));
        assert_eq!(read.wgmma.arrive_per_warp, plan.arrive_per_warp.then_some(true));
    }
}

#[test]
fn what_descriptions_leave_unsaid_has_words() {
    let f = read(
        "warp 64x32 n outer, waits for 0 more, unrolled, straight, one at a time, k upwards, resident any, tile 128x128x64 \
         stages 4, A: unrolled, 0 bytes to L2, swizzled in spans of 4, B: each thread its own, not swizzled",
    )
    .unwrap();
    assert_eq!((f.mma.slack, f.mma.rolled, f.mma.serpentine), (Some(0), Some(false), Some(false)));
    assert_eq!((f.mma.pairs, f.mma.descending, f.mma.min_blocks), (Some(false), Some(false), Some(None)));
    assert_eq!((f.block, f.k), (Some(Pair { m: 128, n: 128 }), Some(64)));
    assert_eq!((f.stages, f.mma.warps_m_outer), (Some(Pipe::Async(4)), Some(false)));
    assert_eq!((f.mma.ways[0].rolled, f.mma.ways[0].prefetch), (Some(false), Some(0)));
    assert_eq!(f.mma.ways[0].layout, Some(TileLayout::Xor(4)));
    assert_eq!((f.mma.ways[1].order, f.mma.ways[1].layout), (Some(CopyOrder::Own), Some(TileLayout::Plain)));
    let f =
        read("consumers 2 together, grid tiles, stream-k no, cluster 1x1, step by step, freed a tile later, an arrival per warpgroup").unwrap();
    assert_eq!((f.wgmma.consumers, f.wgmma.in_turn), (Some(2), Some(false)));
    assert_eq!((f.wgmma.grid, f.wgmma.stream_k, f.wgmma.cluster), (Some(None), Some(false), Some([1, 1])));
    assert_eq!((f.wgmma.by_rows, f.wgmma.eager_release), (Some(false), Some(false)));
    assert_eq!(f.wgmma.arrive_per_warp, Some(false));
    assert_eq!(f.kinds(), [Multiplier::Wgmma]);
    // Words of two kinds fit none; words of all kinds fit each.
    assert_eq!(read("registers 8x8, cluster 2x1").unwrap().kinds(), []);
    assert_eq!(read("tile 128x128x32, 3 stages").unwrap().kinds(), Multiplier::ALL);
}

/// Each decision of schedules drawn from spaces, said in words and read again, and freed.
#[test]
fn what_is_said_is_what_is_read() {
    fn check<W: super::Askable>(problem: &W, gpu: &str) -> usize {
        use super::Fixes;
        use rand::SeedableRng;
        use satune_extract::{Counts, Descriptor, Searched};
        let gpu = Descriptor::load(gpu).unwrap();
        let space = problem.space_while(&gpu, satune_rewrites::space::Fuel::default(), &|_| true).unwrap();
        let counts = Counts::of(&space);
        let mut rng = rand::rngs::StdRng::seed_from_u64(7);
        let mut said = 0;
        for _ in 0..60 {
            let term = counts.sample(&space, &mut rng).unwrap();
            let plan = <W::Term as Searched>::schedule(&term, space.problem()).unwrap();
            let mut fixed = problem.fixed_of(&plan).unwrap();
            for (name, alone) in fixed.decisions() {
                let words = alone.words();
                let read = problem.question(&words).unwrap_or_else(|e| panic!("{name}: {words}: {e}"));
                assert!(read == alone, "{name}: \"{words}\" is read as \"{}\"", read.words());
                said += 1;
            }
            // Whatever is fixed is freed by a word.
            while let Some((_, next)) = fixed.freer().into_iter().find(|(_, next)| *next != fixed) {
                fixed = next;
            }
            assert_eq!(fixed.words(), "");
        }
        said
    }
    let product = |text: &str| crate::operators::parse(text).unwrap();
    assert!(check(&product("gemm:64,48,32,f32"), "a100") > 600);
    assert!(check(&product("gemm:128,128,64,bf16,TN"), "h200") > 600);
    assert!(check(&product("gemm:64,64,64,f16"), "v100") > 600);
    assert!(check(&product("gemm:64,64,64,f16,NT,sum=f16"), "t4") > 600);
    assert!(check(&crate::streaming::StreamProblem::operator("softmax:64,256,f32").unwrap(), "h200") > 300);
}
