//! Loops with known answers, written out: instructions with the control bits that are to be judged.
use crate::{judge, Judged, Listing, Unknown, Warps};
use satune_extract::Descriptor;

/// Control bits of an instruction.
#[derive(Clone, Copy)]
struct Bits {
    stall: u128,
    write: u128,
    wait: u128,
    reuse: u128,
}

fn bits(stall: u128) -> Bits {
    Bits { stall, write: 7, wait: 0, reuse: 0 }
}

/// A listing of a loop as the disassembler prints it.
fn listing(body: &[(&str, Bits)]) -> Listing {
    let mut text = ".L_x_0:\n".to_string();
    let branch = ("@!P0 BRA `(.L_x_0)", bits(1));
    for (at, (instruction, bits)) in body.iter().chain([&branch]).enumerate() {
        let Bits { stall, write, wait, reuse } = bits;
        // The warp need not yield, and no scoreboard is held for operands.
        let high = (stall << 105 | 1 << 109 | write << 110 | 7 << 113 | wait << 116 | reuse << 122) >> 64;
        text += &format!("/*{at:04x}*/ {instruction} ; /* 0x{at:016x} */\n/* 0x{high:016x} */\n");
    }
    Listing::read(&text)
}

fn gpu(name: &str) -> Descriptor {
    Descriptor::load(name).unwrap()
}

fn clocks(body: &[(&str, Bits)], gpu: &Descriptor, warps: usize) -> f64 {
    let Judged { clocks, .. } = judge(&listing(body), Warps::of(1, 4 * warps), gpu, None).unwrap();
    clocks
}

/// Many times the same instruction, so that the branch hardly counts; clocks of one.
fn each(instruction: &str, reuse: u128, stall: u128, gpu: &Descriptor, warps: usize) -> f64 {
    let mut body = vec![(instruction, Bits { reuse, ..bits(stall) }); 100];
    // A loop without arithmetic is no hot loop.
    body.push(("FFMA R1, RZ, RZ, RZ", bits(1)));
    clocks(&body, gpu, warps) / 100.0 / warps as f64
}

fn near(value: f64, expected: f64) -> bool {
    (value / expected - 1.0).abs() < 0.05
}

#[test]
fn a_chain_takes_its_stall_counts_until_warps_fill_the_lanes() {
    let chain = vec![("FFMA R1, R1, R2, c[0x0][0x160]", bits(4)); 25];
    for name in ["v100", "t4", "a100", "rtx3090", "rtx4090", "h200"] {
        assert_eq!(clocks(&chain, &gpu(name), 1), 101.0, "{name}");
    }
    // 16 lanes take a warp in two clocks, 32 in one; there the branch takes a slot, too.
    assert!(near(clocks(&chain, &gpu("a100"), 8), 25.0 * 8.0 * 2.0));
    assert!(near(clocks(&chain, &gpu("h200"), 8), 26.0 * 8.0));
}

#[test]
fn a_lone_warp_waits_for_the_instructions_of_a_long_loop() {
    let h200 = gpu("h200");
    let buffer = h200.instruction_buffer_bytes.unwrap() as usize / 16;
    let of = |count, gpu: &Descriptor, warps| clocks(&vec![("FFMA R1, RZ, RZ, RZ", bits(1)); count], gpu, warps);
    let long = 2 * buffer;
    assert!(near(of(buffer / 2, &h200, 1), buffer as f64 / 2.0));
    assert!(near(of(long, &h200, 1), 2.0 * long as f64));
    // Two have each other's.
    assert!(near(of(long, &h200, 2), 2.0 * long as f64));
    // Of others it is not known.
    assert!(near(of(long, &gpu("rtx3090"), 1), long as f64));
}

#[test]
fn each_unit_has_its_rate() {
    let rate = |text, name: &str| each(text, 0, 1, &gpu(name), 8);
    for (text, name, clocks) in [
        ("FADD R1, R2, R3", "a100", 2.0),
        ("FADD R1, R2, R3", "h200", 1.0),
        // Integers: 64 lanes of a multiprocessor, also where it has 128 for single precision.
        ("IADD3 R1, R2, R3, RZ", "h200", 2.0),
        ("IMAD R1, R2, R3, RZ", "rtx3090", 2.0),
        ("DFMA R2, R4, R6, R8", "a100", 4.0),
        ("DFMA R2, R4, R6, R8", "rtx3090", 64.0),
        ("MUFU.EX2 R1, R2", "a100", 8.0),
        ("HMMA.16816.F32 R4, R8, R2, R4", "a100", 8.0),
        ("HMMA.16816.F32 R4, R8, R2, R4", "a6000", 16.0),
        ("HMMA.1688.F32 R4, R8, R2, R4", "t4", 8.0),
        // A wavefront of 128 bytes a clock for all four partitions; the units of sm_75 and of GeForce take two.
        ("LDS R1, [R2]", "a100", 4.0),
        ("LDS R1, [R2]", "t4", 8.0),
        ("LDS.64 R2, [R2]", "rtx3090", 8.0),
        ("LDS.128 R4, [R2]", "a100", 16.0),
        ("LDSM.16.M88.4 R4, [R2]", "a100", 16.0),
    ] {
        assert!(near(rate(text, name), clocks), "{text} on {name}: {}", rate(text, name));
    }
}

#[test]
fn multiply_adds_and_integers_run_side_by_side() {
    let both = [("FFMA R1, R2, R3, c[0x0][0x160]", bits(1)), ("IADD3 R5, R6, R7, RZ", bits(1))].repeat(50);
    assert!(near(clocks(&both, &gpu("h200"), 8), 101.0 * 8.0));
    // A half of the lanes takes the integer multiplication, so that the other has both multiply-adds.
    let thirds = [("FFMA R1, R2, R3, c[0x0][0x160]", bits(1)), ("IMAD R5, R6, R7, RZ", bits(1))].repeat(50);
    assert!(near(clocks(&thirds, &gpu("h200"), 8), 101.0 * 8.0));
}

/// Three operands of one bank take three clocks, two take two, unless the cache has one of them.
#[test]
fn register_banks_conflict() {
    let (fast, slow) = (gpu("rtx3090"), gpu("a100"));
    assert!(near(each("FFMA R1, R2, R4, R6", 0, 1, &fast, 1), 3.0));
    assert!(near(each("FFMA R1, R2, R4, R7", 0, 1, &fast, 1), 2.0));
    assert!(near(each("FFMA R1, R2, R4, R7", 0b001, 1, &fast, 1), 1.0));
    assert!(near(each("FFMA R1, R2, R4, R6", 0b001, 1, &fast, 1), 2.0));
    // Volta's rule: where an instruction takes two clocks, only three of one bank conflict.
    assert!(near(each("FFMA R1, R2, R4, R7", 0, 2, &slow, 1), 2.0));
    assert!(near(each("FFMA R1, R2, R4, R6", 0, 2, &slow, 1), 3.0));
}

#[test]
fn a_load_is_waited_for_by_its_scoreboard() {
    let gpu = gpu("a100");
    let load = |board| ("LDS R1, [R2]", Bits { write: board, ..bits(2) });
    let use_of = |mask| ("FFMA R3, R1, R2, R3", Bits { wait: mask, ..bits(4) });
    // Latency of shared memory, the stall of the use, and the branch.
    let waited = clocks(&[load(0), use_of(0b1)], &gpu, 1);
    assert!((waited - (gpu.latency_shared + 5.0)).abs() <= 1.0, "{waited}");
    // Of another scoreboard nothing is waited for; eight warps cover the latency.
    assert!(clocks(&[load(0), use_of(0b10)], &gpu, 1) < 10.0);
    assert!(clocks(&[load(0), use_of(0b1)], &gpu, 8) < 1.5 * waited);
}

#[test]
fn copies_are_waited_for_in_their_order() {
    let gpu = gpu("a100");
    let stage = |left: &'static str| {
        [
            ("LDGSTS.E.BYPASS.128 [R1], [R2.64]", bits(2)),
            ("LDGDEPBAR", Bits { write: 0, ..bits(2) }),
            (left, bits(2)),
            ("FFMA R1, R1, R2, R1", bits(4)),
        ]
    };
    let none_left = clocks(&stage("DEPBAR.LE SB0, 0x0"), &gpu, 1);
    let one_left = clocks(&stage("DEPBAR.LE SB0, 0x1"), &gpu, 1);
    let three_left = clocks(&stage("DEPBAR.LE SB0, 0x3"), &gpu, 1);
    assert!(none_left >= gpu.latency_l2, "{none_left}");
    assert!(
        near(one_left, none_left / 2.0) && near(three_left, none_left / 4.0),
        "{none_left} {one_left} {three_left}"
    );
}

#[test]
fn a_warpgroups_products_run_beside_its_warps() {
    let gpu = gpu("h200");
    let stage = |shape: &str, left: u32| {
        let product = format!("HGMMA.{shape}.F32.BF16 R24, gdesc[UR4], R24");
        let wait = format!("WARPGROUP.DEPBAR.LE gsb0, 0x{left}");
        [product.clone(), product.clone(), product.clone(), format!("{product}, gsb0"), wait]
    };
    let judged = |shape: &str, left: u32, groups: usize| {
        let text = stage(shape, left);
        let body: Vec<_> = text.iter().map(|line| (line.as_str(), bits(1))).collect();
        clocks(&body, &gpu, groups)
    };
    // 128 clocks each, whether one warpgroup has the tensor cores or two; with no group in flight nothing covers the latency.
    assert_eq!(judged("64x256x16", 1, 1), 4.0 * 128.0);
    assert_eq!(judged("64x256x16", 1, 2), 2.0 * 4.0 * 128.0);
    assert!(judged("64x256x16", 0, 1) > 4.0 * 128.0 + 20.0);
    assert_eq!(judged("64x256x16", 0, 2), 2.0 * 4.0 * 128.0);
    // A narrow product waits for its operands: 64 + 8 rows of 32 bytes take 18 clocks, the arithmetic 4.
    assert_eq!(judged("64x8x16", 1, 2), 2.0 * 4.0 * 18.0);
}

#[test]
fn warps_of_a_block_wait_for_each_other_at_a_barrier() {
    let gpu = gpu("a100");
    let body = [("FFMA R1, R1, R2, R1", bits(4)), ("BAR.SYNC 0x0", bits(5))];
    let judged = |blocks, warps| judge(&listing(&body), Warps::of(blocks, warps), &gpu, None).unwrap().clocks;
    // A block of 16 warps goes on once a barrier; four blocks of 4 warps cover each other's waits.
    assert!(judged(1, 16) > 20.0);
    assert!(judged(4, 4) < judged(1, 16) + 8.0);
    // The chain, the barrier's own latency, and the branch.
    assert_eq!(judged(1, 4), 4.0 + 20.0 + 1.0);
}

#[test]
fn wavefronts_go_by_arithmetic() {
    let body = [("LDS R1, [R2]", bits(1)), ("FFMA R1, R1, R2, R1", bits(1))].repeat(50);
    let judged = |each| judge(&listing(&body), Warps::of(8, 4), &gpu("a100"), each).unwrap().clocks;
    assert!(near(judged(Some(4.0)), 4.0 * judged(Some(1.0))));
    assert_eq!(judged(Some(1.0)), judged(None));
}

#[test]
fn only_arithmetic_counts() {
    let fma = ("FFMA R1, R1, R2, R1", bits(4));
    let pairs = ("HFMA2 R1, R2, R3, R4", bits(4));
    let constant = ("HFMA2.MMA R3, -RZ, RZ, 0, 2.384185791015625e-07", bits(4));
    let of = |body: &[(&str, Bits)]| judge(&listing(body), Warps::of(1, 4), &gpu("a100"), None).unwrap();
    assert_eq!((of(&[fma, constant]).math, of(&[fma, constant]).flop), (1, 64.0));
    assert_eq!((of(&[fma, pairs]).math, of(&[fma, pairs]).flop), (2, 64.0 + 128.0));
    // Judged by arithmetic, twice the warps that take twice the clocks are as fast.
    let (one, two) =
        (of(&vec![fma; 50]), judge(&listing(&vec![fma; 50]), Warps::of(2, 4), &gpu("a100"), None).unwrap());
    assert!(near(2.0 * two.clocks_per_flop(), one.clocks_per_flop()) && one.clocks == two.clocks);
}

#[test]
fn what_is_not_known_has_no_number() {
    let judged = |body: &[(&str, Bits)], name: &str| judge(&listing(body), Warps::of(1, 4), &gpu(name), None);
    let fma = ("FFMA R1, R1, R2, R1", bits(4));
    let atomic = ("ATOMG.E.ADD.F32 R1, [R2], R3", bits(1));
    assert!(matches!(judged(&[fma, atomic], "a100"), Err(Unknown::Instruction(text)) if text.starts_with("ATOMG")));
    assert!(matches!(judged(&[fma], "b200"), Err(Unknown::Architecture(_))));
    let integers = ("IMMA.16832.S8.S8 R8, R4.ROW, R2.COL, R8", bits(1));
    assert!(matches!(judged(&[fma, integers], "v100"), Err(Unknown::Instruction(_))));
    let leaves = ("BRA `(.L_x_9)", bits(1));
    assert!(matches!(judged(&[fma, leaves], "a100"), Err(Unknown::Branch(_))));
    assert_eq!(judge(&Listing::read(""), Warps::of(1, 4), &gpu("a100"), None), Err(Unknown::NoCode));
    let straight = Listing::read("/*0000*/ FFMA R1, R2, R3, R1 ; /* 0x0000000000000001 */");
    assert_eq!(judge(&straight, Warps::of(1, 4), &gpu("a100"), None), Err(Unknown::NoLoop));
    // A disassembly without words has no control bits.
    let bare = Listing::read(".L_x_0:\n/*0000*/ FFMA R1, R2, R3, R1 ;\n/*0010*/ @P0 BRA `(.L_x_0) ;\n");
    assert_eq!(judge(&bare, Warps::of(1, 4), &gpu("a100"), None), Err(Unknown::NoWords));
}
