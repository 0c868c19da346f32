//! The question language.
use super::fixed::Fixed;
use super::parse::parse;
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
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}
