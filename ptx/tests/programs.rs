//! Small programs in PTX: what they compute, and, where they are wrong, what exactly is said.
use satune_ptx::{
    parse, run, run_onward, Allocation, Argument, Delivery, FaultKind, Initial, Launch, Options, Outcome, Program,
};

/// A kernel over one array `x` of 32-bit words that is read and written, another `y` that is only written.
fn launch(body: &str, grid: u32, block: u32, x: &[u32], words: u64, options: Options) -> Outcome {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n\
        .visible .entry k(.param .u64 px, .param .u64 py)\n{{\n\
        .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .f32 %f<16>; .reg .f64 %d<8>;\n\
        .shared .align 16 .b8 tile[256];\n\
        ld.param.u64 %rd1, [px]; ld.param.u64 %rd2, [py];\n\
        mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;\n\
        shl.b32 %r2, %r1, 2; mov.u32 %r3, tile; add.s32 %r3, %r3, %r2;\n\
        {body}\nret;\n}}\n"
    );
    let module = parse(&text).unwrap();
    let program = Program::new(&module, "k").unwrap_or_else(|e| panic!("{e}"));
    let bytes: Vec<u8> = x.iter().flat_map(|w| w.to_le_bytes()).collect();
    let size = bytes.len() as u64;
    let x = Allocation { name: "x".into(), bytes: size, initial: Initial::Bytes(bytes.into()), writable: true };
    let y = Allocation { name: "y".into(), bytes: words * 4, initial: Initial::Undefined, writable: true };
    let arguments = [Argument::Allocation(x), Argument::Allocation(y)];
    let launch = Launch::new(&program, [grid, 1, 1], [block, 1, 1], 0, &arguments, options).unwrap();
    run(&program, &launch)
}

/// What one thread leaves in `y[0]` of a body that puts it in `%r10`, with `x` in `%r4`, `%r5`, `%r6`.
fn word(body: &str, x: [u32; 3]) -> u32 {
    let load = "ld.global.u32 %r4, [%rd1]; ld.global.u32 %r5, [%rd1+4]; ld.global.u32 %r6, [%rd1+8];";
    let float = "mov.b32 %f4, %r4; mov.b32 %f5, %r5; mov.b32 %f6, %r6;";
    let outcome = launch(&format!("{load}{float}{body} st.global.u32 [%rd2], %r10;"), 1, 1, &x, 1, Options::default());
    assert!(outcome.faults.is_empty(), "{}", outcome.faults[0]);
    u32::from_le_bytes(outcome.whole(1).0[..4].try_into().unwrap())
}

/// The only fault of a program, without its first words (line and instruction).
fn fault(body: &str, grid: u32, block: u32) -> String {
    let outcome = launch(body, grid, block, &[7; 64], 64, Options::default());
    assert_eq!(outcome.faults.len(), 1, "{:?}", outcome.faults.iter().map(ToString::to_string).collect::<Vec<_>>());
    outcome.faults[0].to_string()
}

#[test]
fn integers() {
    let cases: &[(&str, [u32; 3], u32)] = &[
        ("add.s32 %r10, %r4, %r5;", [0x7fff_ffff, 1, 0], 0x8000_0000),
        // The sum of a register of 32 bits and an offset has 32 bits.
        (
            "st.shared.u32 [%r3+8], %r5; sub.u32 %r20, %r3, %r4; ld.shared.u32 %r10, [%r20+2147483640];",
            [0x7fff_fff0, 5, 0],
            5,
        ),
        ("add.sat.s32 %r10, %r4, %r5;", [0x7fff_ffff, 1, 0], 0x7fff_ffff),
        ("sub.u32 %r10, %r4, %r5;", [0, 1, 0], u32::MAX),
        ("mul.hi.s32 %r10, %r4, %r5;", [u32::MAX, u32::MAX, 0], 0),
        ("mul.hi.u32 %r10, %r4, %r5;", [u32::MAX, u32::MAX, 0], 0xffff_fffe),
        ("mad.lo.s32 %r10, %r4, %r5, %r6;", [3, u32::MAX, 10], 7),
        ("mul.wide.s32 %rd6, %r4, %r5; shr.u64 %rd6, %rd6, 32; cvt.u32.u64 %r10, %rd6;", [u32::MAX, 2, 0], u32::MAX),
        ("div.s32 %r10, %r4, %r5;", [(-7i32) as u32, 2, 0], (-3i32) as u32),
        ("rem.s32 %r10, %r4, %r5;", [(-7i32) as u32, 2, 0], (-1i32) as u32),
        ("div.s32 %r10, %r4, %r5;", [0x8000_0000, u32::MAX, 0], 0x8000_0000),
        ("shl.b32 %r10, %r4, %r5;", [1, 32, 0], 0),
        ("shr.s32 %r10, %r4, %r5;", [0x8000_0000, 40, 0], u32::MAX),
        ("shr.u32 %r10, %r4, %r5;", [0x8000_0000, 31, 0], 1),
        ("shf.l.wrap.b32 %r10, %r4, %r5, %r6;", [0x8000_0000, 1, 1], 3),
        ("shf.r.wrap.b32 %r10, %r4, %r5, %r6;", [2, 1, 1], 0x8000_0001),
        ("lop3.b32 %r10, %r4, %r5, %r6, 0x96;", [0b1100, 0b1010, 0b0110], 0b0000),
        ("prmt.b32 %r10, %r4, %r5, 0x5410;", [0x3322_1100, 0x7766_5544, 0], 0x5544_1100),
        ("prmt.b32 %r10, %r4, %r5, 0x888b;", [0x8000_0000, 0, 0], 0x0000_00ff),
        ("bfe.u32 %r10, %r4, 4, 8;", [0xabcd, 0, 0], 0xbc),
        ("bfe.s32 %r10, %r4, 4, 8;", [0xabcd, 0, 0], 0xffff_ffbc),
        ("bfi.b32 %r10, %r4, %r5, 8, 4;", [0xf, 0, 0], 0xf00),
        ("popc.b32 %r10, %r4;", [0xff00_00ff, 0, 0], 16),
        ("clz.b32 %r10, %r4;", [1, 0, 0], 31),
        ("clz.b32 %r10, %r4;", [0, 0, 0], 32),
        ("brev.b32 %r10, %r4;", [1, 0, 0], 0x8000_0000),
        ("bfind.u32 %r10, %r4;", [0x100, 0, 0], 8),
        ("fns.b32 %r10, %r4, 0, 2;", [0b1010, 0, 0], 3),
        ("dp4a.s32.s32 %r10, %r4, %r5, %r6;", [0x01ff_0203, 0x0101_0101, 10], 15),
        ("mad24.lo.s32 %r10, %r4, %r5, %r6;", [3, 4, 5], 17),
        ("sad.s32 %r10, %r4, %r5, %r6;", [u32::MAX, 3, 1], 5),
        ("min.s32 %r10, %r4, %r5;", [u32::MAX, 0, 0], u32::MAX),
        ("max.u32 %r10, %r4, %r5;", [u32::MAX, 0, 0], u32::MAX),
        ("add.cc.u32 %r7, %r4, %r5; addc.u32 %r10, %r6, 0;", [u32::MAX, 1, 4], 5),
        ("sub.cc.u32 %r7, %r4, %r5; subc.u32 %r10, %r6, 0;", [0, 1, 4], 3),
        ("setp.lt.s32 %p1, %r4, %r5; selp.b32 %r10, 1, 2, %p1;", [u32::MAX, 0, 0], 1),
        ("setp.lt.u32 %p1|%p2, %r4, %r5; selp.b32 %r10, 1, 2, %p2;", [u32::MAX, 0, 0], 1),
        ("cvt.s8.s32 %h1, %r4; cvt.s32.s16 %r10, %h1;", [200, 0, 0], (-56i32) as u32),
        ("cvt.sat.u8.s32 %h1, %r4; cvt.u32.u16 %r10, %h1;", [300, 0, 0], 255),
        ("mov.b32 {%h1, %h2}, %r4; mov.b32 %r10, {%h2, %h1};", [0x1234_5678, 0, 0], 0x5678_1234),
    ];
    for (body, x, expected) in cases {
        assert_eq!(word(body, *x), *expected, "{body} of {x:x?}");
    }
}

#[test]
fn floats() {
    let f = |x: f32| x.to_bits();
    let cases: &[(&str, [u32; 3], u32)] = &[
        ("add.rn.f32 %f7, %f4, %f5;", [f(1.0), f(2f32.powi(-24)), 0], f(1.0)),
        ("add.rp.f32 %f7, %f4, %f5;", [f(1.0), f(2f32.powi(-24)), 0], f(1.0 + f32::EPSILON)),
        (
            "fma.rn.f32 %f7, %f4, %f5, %f6;",
            [f(1.0 + f32::EPSILON), f(1.0 - f32::EPSILON), f(-1.0)],
            f(-(f32::EPSILON * f32::EPSILON)),
        ),
        ("mul.ftz.f32 %f7, %f4, %f5;", [1, f(1.0), 0], 0),
        ("min.f32 %f7, %f4, %f5;", [f32::NAN.to_bits(), f(3.0), 0], f(3.0)),
        ("max.NaN.f32 %f7, %f4, %f5;", [f32::NAN.to_bits(), f(3.0), 0], 0x7fff_ffff),
        ("min.f32 %f7, %f4, %f5;", [f(0.0), f(-0.0), 0], f(-0.0)),
        ("div.rz.f32 %f7, %f4, %f5;", [f(1.0), f(3.0), 0], 0x3eaa_aaaa),
        ("sqrt.rn.f32 %f7, %f4;", [f(2.0), 0, 0], f(2f32.sqrt())),
        ("ex2.approx.ftz.f32 %f7, %f4;", [f(3.0), 0, 0], f(8.0)),
        ("add.sat.f32 %f7, %f4, %f5;", [f(1.0), f(2.0), 0], f(1.0)),
        ("copysign.f32 %f7, %f4, %f5;", [f(-1.0), f(2.0), 0], f(-2.0)),
        ("neg.f32 %f7, %f4;", [0, 0, 0], 0x8000_0000),
        ("cvt.rni.f32.f32 %f7, %f4;", [f(2.5), 0, 0], f(2.0)),
        ("cvt.rn.f32.s32 %f7, %r4;", [16_777_217, 0, 0], f(16_777_216.0)),
        ("cvt.rna.tf32.f32 %r11, %f4; mov.b32 %f7, %r11;", [0x3f80_1000, 0, 0], 0x3f80_2000),
        ("setp.geu.f32 %p1, %f4, %f5; selp.f32 %f7, %f5, %f6, %p1;", [f32::NAN.to_bits(), f(1.0), f(2.0)], f(1.0)),
        ("slct.f32.f32 %f7, %f4, %f5, %f6;", [f(1.0), f(2.0), f(-1.0)], f(2.0)),
    ];
    for (body, x, expected) in cases {
        let found = word(&format!("{body} mov.b32 %r10, %f7;"), *x);
        assert_eq!(found, *expected, "{body} of {x:x?} is {found:x}, not {expected:x}");
    }
    let cases: &[(&str, [u32; 3], u32)] = &[
        ("cvt.rzi.s32.f32 %r10, %f4;", [f(-2.7), 0, 0], (-2i32) as u32),
        ("cvt.rzi.s32.f32 %r10, %f4;", [f(1e20), 0, 0], i32::MAX as u32),
        ("cvt.rzi.u32.f32 %r10, %f4;", [f(-5.0), 0, 0], 0),
        ("cvt.rni.s32.f32 %r10, %f4;", [f32::NAN.to_bits(), 0, 0], 0),
        ("cvt.rn.f16x2.f32 %r10, %f4, %f5;", [f(1.0), f(2.0), 0], 0x3c00_4000),
        ("cvt.rn.bf16.f32 %h1, %f4; mov.b32 %r10, {%h1, 0};", [0x3f80_8000, 0, 0], 0x3f80),
        ("fma.rn.f16x2 %r10, %r4, %r5, %r6;", [0x3c00_4000, 0x4000_4000, 0x3c00_3c00], 0x4200_4500),
        ("mul.bf16x2 %r10, %r4, %r5;", [0x3f80_4000, 0x4000_4000, 0], 0x4000_4080),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f4, %f5; mov.b32 %r10, {%h1, 0};", [f(1.0), f(-1e9), 0], 0x38fe),
        ("cvt.rn.satfinite.e5m2x2.f32 %h1, %f4, %f5; mov.b32 %r10, {%h1, 0};", [f(f32::NAN), f(1.125), 0], 0x7f3c),
        ("cvt.rn.satfinite.relu.e4m3x2.f16x2 %h1, %r4; mov.b32 %r10, {%h1, 0};", [0x3c00_c000, 0, 0], 0x3800),
        ("mov.b32 {%h1, %h2}, %r4; cvt.rn.f16x2.e4m3x2 %r10, %h1;", [0x7f01, 0, 0], 0x7fff_1800),
        ("mov.b32 {%h1, %h2}, %r4; cvt.rn.relu.f16x2.e5m2x2 %r10, %h1;", [0xfcc0, 0, 0], 0),
        ("mov.b32 {%h1, %h2}, %r4; cvt.rn.f16x2.e5m2x2 %r10, %h1;", [0xfcc0, 0, 0], 0xfc00_c000),
        ("testp.subnormal.f32 %p1, %f4; selp.b32 %r10, 1, 0, %p1;", [1, 0, 0], 1),
    ];
    for (body, x, expected) in cases {
        let found = word(body, *x);
        assert_eq!(found, *expected, "{body} of {x:x?} is {found:x}, not {expected:x}");
    }
}

#[test]
fn lanes_that_went_different_ways_meet_again() {
    // Lanes loop as often as their number says, and meet for the shuffle.
    let body = "mov.u32 %r6, 0; mov.u32 %r5, 0;
        LOOP: setp.ge.u32 %p1, %r5, %r1; @%p1 bra DONE; add.u32 %r6, %r6, 2; add.u32 %r5, %r5, 1; bra LOOP;
        DONE: shfl.sync.bfly.b32 %r7, %r6, 1, 31, 0xffffffff; st.global.u32 [%rd5], %r7;";
    let outcome = launch(body, 1, 32, &[0], 32, Options::default());
    assert!(outcome.faults.is_empty(), "{}", outcome.faults[0]);
    let words: Vec<u32> = outcome.whole(1).0.chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(words, (0..32u32).map(|l| 2 * (l ^ 1)).collect::<Vec<_>>());
}

#[test]
fn warps_vote_match_and_reduce() {
    let body = "setp.lt.u32 %p1, %r1, 4; vote.sync.ballot.b32 %r5, %p1, 0xffffffff;
        redux.sync.add.s32 %r6, %r1, 0xffffffff; and.b32 %r8, %r1, 1; match.any.sync.b32 %r7, %r8, 0xffffffff;
        add.u32 %r9, %r5, %r6; add.u32 %r9, %r9, %r7; st.global.u32 [%rd5], %r9;";
    let outcome = launch(body, 1, 32, &[0], 32, Options::default());
    assert!(outcome.faults.is_empty(), "{}", outcome.faults[0]);
    let first = u32::from_le_bytes(outcome.whole(1).0[..4].try_into().unwrap());
    assert_eq!(first, 0xfu32.wrapping_add(496).wrapping_add(0x5555_5555));
}

#[test]
fn barriers_order_shared_memory() {
    let body = "st.shared.u32 [%r3], %r1; bar.sync 0; xor.b32 %r5, %r2, 252; mov.u32 %r6, tile; add.u32 %r6, %r6, %r5;
        ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd5], %r7;";
    let outcome = launch(body, 1, 64, &[0], 64, Options::default());
    assert!(outcome.faults.is_empty(), "{}", outcome.faults[0]);
    let without = body.replace("bar.sync 0;", "");
    let said = launch(&without, 1, 64, &[0], 64, Options::default()).faults[0].to_string();
    assert_eq!(
        said,
        "line 12 of the PTX: `ld.shared.u32 %r7, [%r6]`: thread 0 of block 0: reads shared memory at `tile` + 252 bytes, which nothing has written"
    );
    let unordered = body.replace("bar.sync 0;", "bar.warp.sync 0xffffffff;");
    let said = launch(&unordered, 1, 64, &[0], 64, Options::default()).faults[0].to_string();
    assert!(said.contains("which nothing has written"), "{said}");
}

#[test]
fn races_name_both_instructions() {
    // Written before, so that only the order is missing.
    let body = "mov.u32 %r5, 0; st.shared.u32 [%r3], %r5; bar.sync 0; st.shared.u32 [%r3], %r1;
        xor.b32 %r5, %r2, 128; mov.u32 %r6, tile; add.u32 %r6, %r6, %r5; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd5], %r7;";
    let outcome = launch(body, 1, 64, &[0], 64, Options::default());
    let said: Vec<String> = outcome.faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        ["line 11 of the PTX: `st.shared.u32 [%r3], %r1`: thread 0 of block 0: data race in shared memory at `tile` + 0 bytes: writes here, and thread 32 of block 0 reads it (line 12 of the PTX: `ld.shared.u32 %r7, [%r6]`) with no synchronisation between the two"]
    );
}

#[test]
fn blocks_race_in_global_memory() {
    let body = "mov.u32 %r5, %ctaid.x; st.global.u32 [%rd5], %r5;";
    assert_eq!(
        fault(body, 2, 1),
        "line 11 of the PTX: `st.global.u32 [%rd5], %r5`: thread 0 of block 1: data race in global memory at `y` + 0 bytes: writes here, and thread 0 of block 0 writes it (line 11 of the PTX: `st.global.u32 [%rd5], %r5`) with no synchronisation between the two"
    );
    // The same value twice is no race, and an atomic addition none either.
    let same = "mov.u32 %r5, 3; st.global.u32 [%rd5], %r5;";
    assert!(launch(same, 2, 1, &[0], 1, Options::default()).faults.is_empty());
    let outcome = launch("red.global.add.u32 [%rd1], 5;", 4, 32, &[1], 1, Options::default());
    assert!(outcome.faults.is_empty());
    assert_eq!(outcome.whole(0).0, (1u32 + 5 * 128).to_le_bytes());
}

#[test]
fn a_flag_hands_on_what_was_written_before_it_if_there_are_fences() {
    // Block 0 writes y[0] and raises x[0]; block 1 waits for the flag and reads.
    let body = "mov.u32 %r5, %ctaid.x; setp.ne.u32 %p1, %r5, 0; @%p1 bra READ;
        st.global.u32 [%rd2], 42; membar.gl; st.volatile.global.u32 [%rd1], 1; bra END;
        READ: ld.volatile.global.u32 %r6, [%rd1]; setp.eq.u32 %p2, %r6, 0; @%p2 bra READ; membar.gl;
        ld.global.u32 %r7, [%rd2]; st.global.u32 [%rd2+4], %r7; END:";
    let outcome = launch(body, 2, 1, &[0], 2, Options::default());
    assert!(outcome.faults.is_empty(), "{}", outcome.faults[0]);
    assert_eq!(outcome.whole(1).0[4..], 42u32.to_le_bytes());
    let outcome = launch(&body.replacen("membar.gl;", "", 1), 2, 1, &[0], 2, Options::default());
    assert!(outcome.faults[0].to_string().contains("data race in global memory at `y` + 0 bytes: reads here"));
}

#[test]
fn bounds_alignment_and_inputs() {
    assert_eq!(
        fault("st.global.u32 [%rd5+4], %r1;", 1, 64),
        "line 11 of the PTX: `st.global.u32 [%rd5+4], %r1`: thread 63 of block 0: out of bounds: writes 4 bytes of global memory at `y` + 256 bytes (it has 256)"
    );
    assert_eq!(
        fault("ld.global.u32 %r5, [%rd1+2];", 1, 1),
        "line 11 of the PTX: `ld.global.u32 %r5, [%rd1+2]`: thread 0 of block 0: misaligned: reads 4 bytes of global memory at `x` + 2 bytes, which is no multiple of 4"
    );
    assert!(fault("st.shared.u32 [%r3+256], %r1;", 1, 1).contains("`tile` + 256 bytes (it has 256)"));
    assert!(fault("ld.global.u32 %r5, [%rd5];", 1, 1)
        .ends_with("reads global memory at `y` + 0 bytes, which nothing has written"));
    assert!(fault("mov.u64 %rd6, 8; st.global.u32 [%rd6], %r1;", 1, 1).contains("which belongs to no allocation"));
}

/// NVRTC reads three elements as four, and four bytes of which three were written as one word.
#[test]
fn what_compilers_read_beyond_the_program_is_no_fault() {
    let three = "st.shared.u32 [tile], 1; st.shared.u32 [tile+4], 2; st.shared.u32 [tile+8], 3;";
    // The fourth register is named nowhere else.
    let unread = format!("{three} ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [tile]; add.s32 %r10, %r4, %r6;");
    assert_eq!(word(&unread, [0; 3]), 4);
    let wrong = format!("{unread} add.s32 %r10, %r10, %r7; st.global.u32 [%rd2], %r10;");
    assert!(fault(&wrong, 1, 1).contains("`tile` + 12 bytes, which nothing has written"), "{}", fault(&wrong, 1, 1));
    let ahead = Options { reads_ahead: true, ..Options::default() };
    let noise = launch(&wrong, 1, 1, &[0; 3], 1, ahead);
    assert!(noise.faults.is_empty() && noise.whole(1).0[..4] != 4_u32.to_le_bytes(), "{:?}", noise.faults);
    let bytes = "st.shared.u8 [tile], 1; st.shared.u8 [tile+1], 2; st.shared.u8 [tile+2], 3;";
    let masked = format!("{bytes} ld.shared.u32 %r10, [tile]; and.b32 %r10, %r10, 0xffffff;");
    assert_eq!(word(&masked, [0; 3]), 0x03_0201);
    // What matters is no zero by chance.
    assert_ne!(word(&format!("{bytes} ld.shared.u32 %r10, [tile];"), [0; 3]), 0x03_0201);
}

#[test]
fn barriers_that_not_all_reach() {
    let body = "setp.lt.u32 %p1, %r1, 16; @%p1 bra END; bar.sync 0; mov.u32 %r5, 0; bra END2; END: mov.u32 %r5, 1; bar.sync 1; END2:";
    let said = fault(body, 1, 32);
    assert!(
        said.contains("divergent: 16 of the warp's threads are here, 16 at line 11 of the PTX: `bar.sync"),
        "{said}"
    );
    let half = "setp.lt.u32 %p1, %r1, 32; @%p1 bra END; bar.sync 1, 64; END:";
    let said = fault(half, 1, 64);
    assert!(
        said.contains("hang: nobody can go on; 32 threads wait at barrier 1, line 11 of the PTX: `bar.sync 1, 64`"),
        "{said}"
    );
    // Threads that have ended are not waited for.
    assert!(launch("setp.lt.u32 %p1, %r1, 32; @%p1 ret; bar.sync 0;", 1, 64, &[0], 1, Options::default())
        .faults
        .is_empty());
}

#[test]
fn named_barriers_hand_over() {
    let body = "setp.ge.u32 %p1, %r1, 32; @%p1 bra CONSUME;
        st.shared.u32 [%r3], %r1; bar.arrive 2, 64; bra END;
        CONSUME: bar.sync 2, 64; ld.shared.u32 %r5, [%r3+-128]; st.global.u32 [%rd5], %r5; END:";
    let outcome = launch(body, 1, 64, &[0], 64, Options::default());
    assert!(outcome.faults.is_empty(), "{}", outcome.faults[0]);
}

#[test]
fn copies_that_nobody_waited_for() {
    let body = "cvta.to.global.u64 %rd6, %rd4; cp.async.ca.shared.global [%r3], [%rd6], 4; cp.async.commit_group;
        cp.async.wait_group 0; ld.shared.u32 %r5, [%r3]; st.global.u32 [%rd5], %r5;";
    for delivery in [Delivery::Late, Delivery::Early, Delivery::Random] {
        let options = Options { delivery, ..Options::default() };
        let outcome = launch(body, 1, 32, &[9; 32], 32, options.clone());
        assert!(outcome.faults.is_empty(), "{}", outcome.faults[0]);
        assert_eq!(outcome.whole(1).0[..4], 9u32.to_le_bytes());
        let outcome = launch(&body.replace("wait_group 0", "wait_group 1"), 1, 32, &[9; 32], 32, options);
        let said = outcome.faults[0].to_string();
        assert!(said.contains("missing wait: reads shared memory at `tile` + 0 bytes"), "{said}");
    }
}

#[test]
fn what_does_not_end_is_stopped() {
    let options = Options { budget: 100_000, ..Options::default() };
    let outcome = launch("LOOP: bra LOOP;", 1, 1, &[0], 1, options);
    assert!(outcome.faults[0].to_string().starts_with("no end after "));
    assert!(fault("trap;", 1, 1).ends_with("the program traps"));
}

#[test]
fn functions_are_called() {
    let text = ".version 8.0\n.target sm_80\n.address_size 64\n\
        .func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %r<3>; ld.param.u32 %r1, [a]; setp_free: add.u32 %r2, %r1, %r1; st.param.b32 [r+0], %r2; ret; }\n\
        .visible .entry k(.param .u64 py) { .reg .b32 %r<5>; .reg .b64 %rd<5>; ld.param.u64 %rd1, [py];\n\
        { .reg .b32 t; .param .b32 p0; st.param.b32 [p0+0], 21; .param .b32 q; call.uni (q), twice, (p0); ld.param.b32 %r1, [q+0]; }\n\
        st.global.u32 [%rd1], %r1; ret; }";
    let module = parse(text).unwrap();
    let program = Program::new(&module, "k").unwrap();
    let y = Allocation { name: "y".into(), bytes: 4, initial: Initial::Undefined, writable: true };
    let launch = Launch::new(&program, [1; 3], [1; 3], 0, &[Argument::Allocation(y)], Options::default()).unwrap();
    let outcome = run(&program, &launch);
    assert!(outcome.faults.is_empty(), "{}", outcome.faults[0]);
    assert_eq!(outcome.whole(0).0, 42u32.to_le_bytes());
}

/// A launch that is told to end does so in the middle of a block, and its only fault says that nothing is wrong.
#[test]
fn a_launch_ends_when_it_is_told_to() {
    let text = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry k()
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    mov.u32 %r1, 1000000;
LOOP:
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra LOOP;
    ret;
}";
    let module = parse(text).unwrap();
    let program = Program::new(&module, "k").unwrap();
    let launch = Launch::new(&program, [2, 1, 1], [64, 1, 1], 0, &[], Options::default()).unwrap();
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let go_on = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 3;
    let outcome = run_onward(&program, &launch, 0, |_| panic!("the first did not come to its end"), &go_on);
    assert!(matches!(outcome.faults.as_slice(), [fault] if matches!(*fault.kind, FaultKind::Stopped)));
    assert!(outcome.executed > 0 && outcome.executed < 64 * 1_000_000);
}
