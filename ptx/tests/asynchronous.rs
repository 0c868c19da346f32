//! Matrix and asynchronous instructions on small programs: what they compute, and what is wrong with programs that leave
//! something out.
mod common;

use common::{input, judged, output};
use half::f16;
use satune_ptx::*;

const TMA: &str = "
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out)
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<8>;
    .shared .align 1024 .b8 tile[512];
    .shared .align 8 .b8 bar[8];
    mov.u32 %r1, bar;
    mov.u32 %r2, tile;
    mov.u32 %r3, %tid.x;
    mov.b64 %rd1, map;
    cvta.param.u64 %rd2, %rd1;
    mov.u32 %r5, 0;
    mov.u32 %r6, 2;
    mov.u32 %r7, 512;
    mov.u32 %r8, 1;
    setp.ne.s32 %p1, %r3, 0;
    @%p1 bra sync;
    mbarrier.init.shared::cta.b64 [%r1], %r8;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r7;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd2, {%r5, %r6}], [%r1];
sync:
    bar.sync 0;
again:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], %r5;
    @!%p2 bra again;
    shl.b32 %r9, %r3, 2;
    add.s32 %r10, %r2, %r9;
    ld.shared.u32 %r11, [%r10];
    ld.param.u64 %rd3, [out];
    cvta.to.global.u64 %rd4, %rd3;
    mul.wide.u32 %rd5, %r3, 4;
    add.s64 %rd6, %rd4, %rd5;
    st.global.u32 [%rd6], %r11;
    ret;
}";

#[test]
fn a_box_arrives_permuted_and_must_be_waited_for() {
    // Five rows of 32 numbers; the box is four rows from the third on, so that one is beyond the border.
    let values: Vec<u32> = (0..160).map(|i| i + 1).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let map = TensorMap {
        base: 0,
        element: 4,
        sizes: vec![32, 5],
        strides: vec![128],
        tile: vec![32, 4],
        steps: vec![1, 1],
        image: None,
        swizzle: Swizzle::B128,
        fill: 0,
    };
    let arguments = [Argument::Map(map, Box::new(Argument::Allocation(input(bytes)))), output(512)];
    let mut expected = [0_u32; 128];
    for row in 0..3 {
        for column in 0..32 {
            expected[32 * row + ((column / 4) ^ row) * 4 + column % 4] = values[32 * (row + 2) + column];
        }
    }
    let expected: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
    judged(
        TMA,
        1,
        128,
        &[arguments[0].clone(), arguments[1].clone()],
        &expected,
        &[
            ("@!%p2 bra again;", "", "missing wait"),
            ("[%r1], %r5;\n    @!", "[%r1], %r8;\n    @!", "missing wait"),
            ("mov.u32 %r7, 512;", "mov.u32 %r7, 528;", "16 bytes are missing"),
            ("mov.u32 %r7, 512;", "mov.u32 %r7, 496;", "hang"),
            ("fence.mbarrier_init.release.cluster;", "", "missing fence.mbarrier_init"),
            ("bar.sync 0;", "", "mbarrier"),
            ("mbarrier.init.shared::cta.b64 [%r1], %r8;", "", "no initialised mbarrier"),
            ("mbarrier.init.shared::cta.b64 [%r1], %r8;", "mbarrier.init.shared::cta.b64 [%r1], 2;", "hang"),
            ("{%r5, %r6}", "{%r5, %r8}", "another result"),
            ("mov.u32 %r2, tile;", "mov.u32 %r2, tile+16;", "misaligned"),
            ("mov.u32 %r2, tile;", "mov.u32 %r2, bar;", "out of bounds"),
        ],
    );
}

const MATRIX: &str = "
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
    .reg .f32 %f<5>;
    .shared .align 1024 .b8 a[2048];
    .shared .align 1024 .b8 b[256];
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [in];
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r1, 16;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd3];
    mov.u32 %r6, a;
    shl.b32 %r7, %r1, 4;
    add.s32 %r8, %r6, %r7;
    st.shared.v4.u32 [%r8], {%r2, %r3, %r4, %r5};
    mov.u32 %r9, b;
    shl.b32 %r10, %r1, 1;
    add.s32 %r10, %r9, %r10;
    mul.wide.u32 %rd2, %r1, 2;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u16 %r11, [%rd3+2048];
    st.shared.u16 [%r10], %r11;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    and.b32 %r6, %r6, 262143;
    shr.u32 %r6, %r6, 4;
    and.b32 %r9, %r9, 262143;
    shr.u32 %r9, %r9, 4;
    cvt.u64.u32 %rd4, %r6;
    cvt.u64.u32 %rd5, %r9;
    or.b64 %rd4, %rd4, 68727865344;
    or.b64 %rd5, %rd5, 68727865344;
    mov.f32 %f1, 0f3F800000;
    mov.f32 %f2, 0f3F800000;
    mov.f32 %f3, 0f3F800000;
    mov.f32 %f4, 0f3F800000;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd4, %rd5, 1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    ld.param.u64 %rd6, [out];
    cvta.to.global.u64 %rd6, %rd6;
    mul.wide.u32 %rd7, %r1, 16;
    add.s64 %rd8, %rd6, %rd7;
    st.global.v4.f32 [%rd8], {%f1, %f2, %f3, %f4};
    ret;
}";

#[test]
fn a_warpgroup_multiplies_and_must_be_waited_for() {
    // Without a swizzle: 16 bytes of a row, eight rows one after the other, then the other half of k: LBO 128, SBO 256.
    let (a, b) = (|m: usize, k: usize| (m * 3 + k) % 7, |k: usize, n: usize| (k + 5 * n) % 5);
    let mut bytes = vec![0; 2048 + 256];
    let place = |line: usize, k: usize| line / 8 * 256 + k / 8 * 128 + line % 8 * 16 + k % 8 * 2;
    for k in 0..16 {
        for m in 0..64 {
            bytes[place(m, k)..][..2].copy_from_slice(&f16::from_f32(a(m, k) as f32).to_le_bytes());
        }
        for n in 0..8 {
            bytes[2048 + place(n, k)..][..2].copy_from_slice(&f16::from_f32(b(k, n) as f32).to_le_bytes());
        }
    }
    let mut expected = Vec::new();
    for thread in 0..128 {
        for i in 0..4 {
            let (row, column) = (thread / 32 * 16 + thread % 32 / 4 + i / 2 * 8, thread % 4 * 2 + i % 2);
            let sum: usize = (0..16).map(|k| a(row, k) * b(k, column)).sum();
            expected.extend((1.0 + sum as f32).to_le_bytes());
        }
    }
    let text = MATRIX.replace("68727865344", &((16_u64 << 32) | (8 << 16)).to_string());
    let arguments = [Argument::Allocation(input(bytes)), output(2048)];
    judged(
        &text,
        1,
        128,
        &arguments,
        &expected,
        &[
            ("wgmma.wait_group.sync.aligned 0;", "", "missing wgmma.wait_group"),
            ("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;", "missing wgmma.wait_group"),
            ("wgmma.commit_group.sync.aligned;", "", "missing wgmma.wait_group"),
            ("wgmma.fence.sync.aligned;", "", "missing wgmma.fence"),
            (
                "mov.f32 %f4, 0f3F800000;\n    wgmma.fence.sync.aligned;",
                "wgmma.fence.sync.aligned; mov.f32 %f4, 0f3F800000;",
                "missing wgmma.fence",
            ),
            ("fence.proxy.async.shared::cta;", "", "missing fence.proxy.async"),
            ("bar.sync 0;", "", "which nothing has written"),
            ("%rd4, %rd5, 1, 1, 1", "%rd4, %rd5, 0, 1, 1", "another result"),
            ("%rd4, %rd5, 1, 1, 1", "%rd4, %rd5, 1, -1, 1", "another result"),
            (
                "wgmma.wait_group.sync.aligned 0;",
                "st.shared.u16 [%r10], %r11; wgmma.wait_group.sync.aligned 0;",
                "data race",
            ),
        ],
    );
}

const CLUSTER: &str = "
.version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out) .reqnctapercluster 2, 1, 1
{
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<6>;
    .shared .align 8 .b8 word[8];
    .shared .align 8 .b8 bar[8];
    mov.u32 %r1, word;
    mov.u32 %r2, bar;
    mov.u32 %r3, %cluster_ctarank;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    xor.b32 %r4, %r3, 1;
    mapa.shared::cluster.u32 %r5, %r1, %r4;
    mapa.shared::cluster.u32 %r6, %r2, %r4;
    add.s32 %r7, %r3, 40;
    st.shared::cluster.u32 [%r5], %r7;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
again:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r2], 0;
    @!%p1 bra again;
    ld.shared.u32 %r8, [%r1];
    mov.u32 %r9, %ctaid.x;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r9, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r8;
    ret;
}";

#[test]
fn blocks_of_a_cluster_write_to_each_other() {
    let expected: Vec<u8> = [41_u32, 40].iter().flat_map(|v| v.to_le_bytes()).collect();
    judged(
        CLUSTER,
        2,
        1,
        &[output(8)],
        &expected,
        &[
            ("barrier.cluster.arrive.release;\n    barrier.cluster.wait.acquire;", "", "mbarrier"),
            ("barrier.cluster.arrive.release;", "", "has not arrived"),
            ("@!%p1 bra again;", "", "which nothing has written"),
            (
                "mapa.shared::cluster.u32 %r6, %r2, %r4;",
                "mapa.shared::cluster.u32 %r6, %r2, %r3;",
                "which nothing has written",
            ),
            ("mapa.shared::cluster.u32 %r6, %r2, %r4;", "mapa.shared::cluster.u32 %r6, %r2, 2;", "a rank below 2"),
            ("mbarrier.init.shared::cta.b64 [%r2], 1;", "mbarrier.init.shared::cta.b64 [%r2], 2;", "hang"),
        ],
    );
}

#[test]
fn a_warp_multiplies_what_ldmatrix_loads() {
    let text = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .reg .b32 %r<20>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<9>;
    .shared .align 16 .b8 s[768];
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd1, [in];
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r1, 16;
    add.s64 %rd3, %rd1, %rd2;
    mov.u32 %r2, s;
    shl.b32 %r3, %r1, 4;
    add.s32 %r3, %r2, %r3;
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd3];
    st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
    and.b32 %r8, %r1, 15;
    shl.b32 %r8, %r8, 4;
    mul.wide.u32 %rd2, %r8, 1;
    add.s64 %rd3, %rd1, %rd2;
    add.s32 %r9, %r2, %r8;
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd3+512];
    st.shared.v4.u32 [%r9+512], {%r4, %r5, %r6, %r7};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r3];
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14, %r15}, [%r9+512];
    mov.f32 %f1, 0f00000000;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f5, %f6, %f7, %f8}, {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%f1, %f1, %f1, %f1};
    ld.param.u64 %rd4, [out];
    cvta.to.global.u64 %rd4, %rd4;
    mul.wide.u32 %rd5, %r1, 16;
    add.s64 %rd6, %rd4, %rd5;
    st.global.v4.f32 [%rd6], {%f5, %f6, %f7, %f8};
    ret;
}";
    // Four matrices of 8 x 8: rows 0 to 7 and 8 to 15 of A for k below 8, then the others. B stands by rows of k.
    let (a, b) = (|m: usize, k: usize| (m * 3 + k) % 7, |k: usize, n: usize| (k + 5 * n) % 5);
    let mut bytes = vec![0; 768];
    for k in 0..16 {
        for m in 0..16 {
            let at = (k / 8 * 2 + m / 8) * 128 + m % 8 * 16 + k % 8 * 2;
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(a(m, k) as f32).to_le_bytes());
        }
        for n in 0..8 {
            let at = 512 + k * 16 + n * 2;
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(b(k, n) as f32).to_le_bytes());
        }
    }
    let mut expected = Vec::new();
    for thread in 0..32 {
        for i in 0..4 {
            let (row, column) = (thread / 4 + i / 2 * 8, thread % 4 * 2 + i % 2);
            let sum: usize = (0..16).map(|k| a(row, k) * b(k, column)).sum();
            expected.extend((sum as f32).to_le_bytes());
        }
    }
    let arguments = [Argument::Allocation(input(bytes)), output(512)];
    judged(
        text,
        1,
        32,
        &arguments,
        &expected,
        &[
            ("x2.trans.shared", "x2.shared", "another result"),
            ("[%r9+512];\n    mov.f32", "[%r9+520];\n    mov.f32", "misaligned"),
            ("bar.sync 0;", "", "data race"),
        ],
    );
}

/// A warp loads fragments, multiplies and stores its sums.
const SMALL: &str = "
.version 8.7
.target sm_89
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .reg .b32 %r<12>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [in];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 48;
    add.s64 %rd4, %rd1, %rd3;
    mul.wide.u32 %rd5, %r1, 16;
    add.s64 %rd6, %rd2, %rd5;
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd4];
    ld.global.v2.u32 {%r6, %r7}, [%rd4+16];
    ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%rd4+32];
    mma.sync.aligned.SHAPE.row.col.TYPES SUMS, A, B, SUMS;
    st.global.v4.u32 [%rd6], {%r8, %r9, %r10, %r11};
    ret;
}";

#[test]
fn floats_of_8_bits_are_multiplied_on_registers() {
    let value = |e4m3: bool, bits: u8| {
        let (size, sign) = (bits & 0x7f, if bits & 0x80 == 0 { 1.0 } else { -1.0 });
        match e4m3 {
            false => f16::from_bits(u16::from(bits) << 8).to_f64(),
            true if size == 0x7f => f64::NAN,
            true if size < 8 => sign * f64::from(size) / 512.0,
            true => sign * f64::from(8 + (size & 7)) * 2f64.powi(i32::from(size >> 3) - 10),
        }
    };
    // All bytes; NaN and infinities in one line alone.
    let byte = |line: usize, k: usize, seed: u64| {
        let bits = (((line * 37 + k + 1) as u64).wrapping_mul(seed | 1) >> 13) as u8;
        if bits & 0x7f >= 0x7c && line != 3 {
            bits ^ 0x40
        } else {
            bits
        }
    };
    let f32s = |x: f64| if x.is_nan() { 0x7fff_ffff } else { (x as f32).to_bits() };
    let f16s = |x: f64| if x.is_nan() { 0x7fff } else { u32::from(f16::from_f64(x).to_bits()) };
    for (n, (k, half)) in [(16, false), (32, false), (16, true), (32, true)].into_iter().enumerate() {
        for (a_e4m3, b_e4m3) in [(true, true), (true, false), (false, true), (false, false)] {
            let seed = 0x9e37_79b9_7f4a_7c15_u64 >> (n + 4 * usize::from(a_e4m3) + usize::from(b_e4m3));
            let (a, b) = (|m: usize, k: usize| byte(m, k, seed), |k: usize, n: usize| byte(n, k, seed >> 3));
            let c = |m: usize, n: usize| ((m * 8 + n) % 11) as f64 - 4.5;
            let sum = |m: usize, n: usize| {
                (0..k).map(|k| value(a_e4m3, a(m, k)) * value(b_e4m3, b(k, n))).fold(0.0, |sum, x| sum + x) + c(m, n)
            };
            // The fragments of the instruction's description, lane after lane.
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for lane in 0..32 {
                let (group, thread) = (lane / 4, lane % 4);
                let quad = |f: &dyn Fn(usize) -> u8| u32::from_le_bytes([f(0), f(1), f(2), f(3)]);
                let mut words = [0; 12];
                for (register, word) in words.iter_mut().enumerate().take(k / 8) {
                    let (row, first) = (group + register % 2 * 8, thread * 4 + register / 2 * 16);
                    *word = quad(&|i| a(row, first + i));
                }
                for (register, word) in words[4..].iter_mut().enumerate().take(k / 16) {
                    *word = quad(&|i| b(thread * 4 + register * 16 + i, group));
                }
                let mut sums = [0; 4];
                for (register, result) in sums.iter_mut().enumerate().take(if half { 2 } else { 4 }) {
                    let at = |i: usize| (group + i / 2 * 8, thread * 2 + i % 2);
                    let of = |f: &dyn Fn(usize, usize) -> f64| match half {
                        false => f32s(f(at(register).0, at(register).1)),
                        true => {
                            let pair = [0, 1].map(|i| f16s(f(at(2 * register + i).0, at(2 * register + i).1)));
                            pair[0] | pair[1] << 16
                        }
                    };
                    (words[8 + register], *result) = (of(&c), of(&sum));
                }
                bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
                expected.extend((0..4).flat_map(|i| if half && i > 1 { [0; 4] } else { sums[i].to_le_bytes() }));
            }
            let name = |e4m3| if e4m3 { "e4m3" } else { "e5m2" };
            let sums = if half { "f16" } else { "f32" };
            let types = format!("{sums}.{}.{}.{sums}", name(a_e4m3), name(b_e4m3));
            let text = SMALL
                .replace("SHAPE", &format!("m16n8k{k}"))
                .replace("TYPES", &types)
                .replace("SUMS", if half { "{%r8, %r9}" } else { "{%r8, %r9, %r10, %r11}" })
                .replace(" A,", if k == 16 { " {%r2, %r3}," } else { " {%r2, %r3, %r4, %r5}," })
                .replace(" B,", if k == 16 { " {%r6}," } else { " {%r6, %r7}," });
            let arguments = [Argument::Allocation(input(bytes)), output(512)];
            let (operands, other) =
                (format!("{}.{}", name(a_e4m3), name(b_e4m3)), format!("{}.{}", name(!a_e4m3), name(b_e4m3)));
            let depth = format!("m16n8k{k}");
            judged(
                &text,
                1,
                32,
                &arguments,
                &expected,
                &[
                    (&operands, &other, "another result"),
                    (&operands, "e4m3.s8", "floats of 8 bits"),
                    (&types, &types.replacen(sums, if half { "f32" } else { "f16" }, 1), "floats of 8 bits"),
                    (&depth, "m16n8k8", "floats of 8 bits"),
                ],
            );
        }
    }
}
