//! tcgen05 on small programs: what it computes, and what is wrong with programs that leave something out.
mod common;

use common::{input, judged, output};
use half::f16;
use satune_ptx::{parse, Argument, Program};

/// How a matrix stands in shared memory.
#[derive(Clone, Copy)]
enum Order {
    /// Lines of 128 bytes along k, permuted.
    AlongK,
    /// 16 bytes of a line along k, eight lines one after the other; then the other 16 bytes of a step.
    Chunks,
    /// 128 bytes along the lines for each k, permuted.
    Across,
}

/// One matrix: its lines (rows of A, columns of B), bytes of a number, k of all steps, k of one.
#[derive(Clone, Copy)]
struct Matrix {
    order: Order,
    lines: usize,
    bytes: usize,
    k: usize,
    step: usize,
}

impl Matrix {
    /// Where a number stands.
    fn at(self, line: usize, k: usize) -> usize {
        match self.order {
            Order::AlongK => {
                let byte = k * self.bytes;
                line * 128 + ((byte / 16) ^ (line % 8)) * 16 + byte % 16
            }
            Order::Chunks => {
                let byte = k % self.step * self.bytes;
                k / self.step * self.lines * 32 + line / 8 * 256 + byte / 16 * 128 + line % 8 * 16 + byte % 16
            }
            Order::Across => {
                let (byte, per) = (line * self.bytes, 128 / self.bytes);
                let atom = line / per * (self.k / 8) * 1024 + k / 8 * 1024;
                atom + k % 8 * 128 + ((byte % 128 / 16) ^ (k % 8)) * 16 + byte % 16
            }
        }
    }

    fn size(self) -> usize {
        match self.order {
            Order::AlongK => 128 * self.lines,
            _ => self.lines * self.k * self.bytes,
        }
    }

    /// The descriptor without the start, and bytes from one step to the next.
    fn descriptor(self) -> (u64, usize) {
        let fields = |leading: u64, stride: u64, swizzle: u64| {
            (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | swizzle << 61
        };
        match self.order {
            Order::AlongK => (fields(16, 1024, 2), 32),
            Order::Chunks => (fields(128, 256, 0), 32 * self.lines),
            Order::Across => (fields(1024 * (self.k as u64 / 8), 1024, 2), self.step / 8 * 1024),
        }
    }
}

/// How the sums are read.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// Each lane a row.
    Rows,
    /// As `mma.sync` has its sums, sixteen lanes at once.
    Fragments,
}

/// A product of matrices that a program computes.
#[derive(Clone, Copy)]
struct Case<'f> {
    a: Matrix,
    b: Matrix,
    kind: &'f str,
    /// Types, signs and majors; not the shape.
    types: u32,
    load: Load,
    /// Bytes of the numbers at a line and a k.
    numbers: [&'f dyn Fn(usize, usize) -> Vec<u8>; 2],
    /// The bits of a sum.
    sum: &'f dyn Fn(usize, usize) -> u32,
}

impl Case<'_> {
    /// Bytes of both matrices: whole rounds of the copy.
    fn size(&self) -> usize {
        (self.a.size() + self.b.size()).next_multiple_of(2048)
    }

    /// What both matrices are, one behind the other.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size()];
        for (matrix, start, numbers) in [(self.a, 0, self.numbers[0]), (self.b, self.a.size(), self.numbers[1])] {
            for line in 0..matrix.lines {
                for k in 0..matrix.k {
                    bytes[start + matrix.at(line, k)..][..matrix.bytes].copy_from_slice(&numbers(line, k));
                }
            }
        }
        bytes
    }

    fn registers(&self) -> usize {
        // Of 64 rows a warp has sixteen.
        self.b.lines * self.a.lines / 128
    }

    /// What each thread stores.
    fn expected(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for thread in 0..128 {
            let (warp, lane) = (thread / 32, thread % 32);
            for register in 0..self.registers() {
                let (row, column) = match self.load {
                    Load::Rows => (32 * warp + lane, register),
                    Load::Fragments => {
                        let (half, register) = (register / (self.b.lines / 2), register % (self.b.lines / 2));
                        let row = self.a.lines / 4 * warp + 16 * half + lane / 4 + register % 4 / 2 * 8;
                        (row, register / 4 * 8 + lane % 4 * 2 + register % 2)
                    }
                };
                out.extend((self.sum)(row, column).to_le_bytes());
            }
        }
        out
    }

    fn text(&self) -> String {
        let (m, n) = (self.a.lines, self.b.lines);
        let described = self.types | (n as u32 / 8) << 17 | (m as u32 / 16) << 24;
        let bytes = self.size();
        let ((a, a_step), (b, b_step)) = (self.a.descriptor(), self.b.descriptor());
        let mut copies = String::new();
        for at in (0..bytes).step_by(2048) {
            copies += &format!(
                "    ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%rd3+{at}];
    st.shared.v4.u32 [%r8+{at}], {{%r2, %r3, %r4, %r5}};\n"
            );
        }
        let mut steps = String::new();
        for step in 0..self.a.k / self.a.step {
            let p = if step == 0 { "%p3" } else { "%p4" };
            let (a, b) = (a_step * step / 16, b_step * step / 16);
            steps += &format!(
                "    add.s64 %rd6, %rd4, {a};
    add.s64 %rd7, %rd5, {b};
    tcgen05.mma.cta_group::1.kind::{} [%r12], %rd6, %rd7, %r13, {p};\n",
                self.kind
            );
        }
        let list = |from: usize, count: usize| {
            let names: Vec<String> = (from..from + count).map(|i| format!("%s{i}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let registers = self.registers();
        let loads = match self.load {
            Load::Rows => format!("    tcgen05.ld.sync.aligned.32x32b.x{n}.b32 {}, [%r15];\n", list(0, n)),
            Load::Fragments => (0..m / 64)
                .map(|half| {
                    let (names, at) = (list(half * n / 2, n / 2), half * (16 << 16));
                    format!("    tcgen05.ld.sync.aligned.16x256b.x{}.b32 {names}, [%r15+{at}];\n", n / 8)
                })
                .collect(),
        };
        let stores: String = (0..registers).map(|i| format!("    st.global.u32 [%rd9+{}], %s{i};\n", 4 * i)).collect();
        format!(
            "
.version 8.6
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{{
    .reg .pred %p<8>;
    .reg .b32 %r<20>;
    .reg .b32 %s<{registers}>;
    .reg .b64 %rd<12>;
    .shared .align 1024 .b8 tile[{bytes}];
    .shared .align 8 .b8 bar[8];
    .shared .align 4 .b8 slot[4];
    mov.u32 %r1, %tid.x;
    mov.u32 %r6, tile;
    mov.u32 %r9, bar;
    mov.u32 %r10, slot;
    ld.param.u64 %rd1, [in];
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r1, 16;
    add.s64 %rd3, %rd1, %rd2;
    shl.b32 %r7, %r1, 4;
    add.s32 %r8, %r6, %r7;
{copies}    fence.proxy.async.shared::cta;
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra others;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], 64;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
others:
    setp.ne.u32 %p2, %r1, 0;
    @%p2 bra sync;
    mbarrier.init.shared::cta.b64 [%r9], 1;
    fence.mbarrier_init.release.cluster;
sync:
    bar.sync 0;
    ld.shared.u32 %r12, [%r10];
    @%p2 bra again;
    shr.u32 %r11, %r6, 4;
    cvt.u64.u32 %rd4, %r11;
    add.s64 %rd5, %rd4, {};
    or.b64 %rd4, %rd4, {a};
    or.b64 %rd5, %rd5, {b};
    mov.u32 %r13, {described};
    setp.ne.u32 %p3, %r1, %r1;
    setp.eq.u32 %p4, %r1, %r1;
{steps}    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
again:
    mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r9], 0;
    @!%p5 bra again;
    tcgen05.fence::after_thread_sync;
    and.b32 %r14, %r1, 96;
    shl.b32 %r14, %r14, 16;
    add.s32 %r15, %r12, %r14;
{loads}    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 %rd8, [out];
    cvta.to.global.u64 %rd8, %rd8;
    mul.wide.u32 %rd9, %r1, {};
    add.s64 %rd9, %rd8, %rd9;
{stores}    bar.sync 0;
    @%p1 bra end;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 64;
end:
    ret;
}}",
            self.a.size() / 16,
            4 * registers
        )
    }

    fn judged(&self, changes: &[(&str, &str, &str)]) {
        self.text_judged(&self.text(), 1, changes);
    }

    /// A text, for some blocks that do the same.
    fn text_judged(&self, text: &str, blocks: u32, changes: &[(&str, &str, &str)]) {
        let expected = self.expected().repeat(blocks as usize);
        let arguments = [Argument::Allocation(input(self.bytes())), output(expected.len() as u64)];
        judged(text, blocks, 128, &arguments, &expected, changes);
    }
}

/// Small numbers of both signs.
fn small(line: usize, k: usize, seed: usize) -> i32 {
    ((line * 5 + k * 3 + line * k + seed) % 11) as i32 - 5
}

/// The sum of a row and a column of small numbers.
fn summed(k: usize) -> impl Fn(usize, usize) -> i32 {
    move |row, column| (0..k).map(|k| small(row, k, 1) * small(column, k, 4)).sum()
}

fn half(value: i32) -> Vec<u8> {
    f16::from_f32(value as f32).to_le_bytes().to_vec()
}

/// Sums of f32.
const F32: u32 = 1 << 4;

#[test]
fn halves_are_multiplied_in_four_steps_and_must_be_waited_for() {
    let matrix = |lines| Matrix { order: Order::AlongK, lines, bytes: 2, k: 64, step: 16 };
    let sum = |row, column| (summed(64)(row, column) as f32).to_bits();
    let case = |m, load| Case {
        a: matrix(m),
        b: matrix(32),
        kind: "f16",
        types: F32,
        load,
        numbers: [&|m, k| half(small(m, k, 1)), &|n, k| half(small(n, k, 4))],
        sum: &sum,
    };
    case(64, Load::Fragments).judged(&[]);
    case(128, Load::Fragments).judged(&[]);
    let case = case(128, Load::Rows);
    let version = |n: u64| (case.a.descriptor().0 & !(7 << 46) | n << 46).to_string();
    let (right, none, two) = (version(1), version(0), version(2));
    let (right, none, two) = [right, none, two].map(|bits| format!("or.b64 %rd4, %rd4, {bits};")).into();
    let described = F32 | 4 << 17 | 8 << 24;
    let early = "    bar.sync 0;
    @%p1 bra on;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 64;
on:
    tcgen05.wait::ld";
    let unfinished = format!("again:\n{}", early.replace("    tcgen05.wait::ld", ""));
    let other = |bits: u32| format!("mov.u32 %r13, {bits};");
    case.judged(&[
        ("@!%p5 bra again;", "", "that no tcgen05.mma has written"),
        ("@!%p5 bra again;", "bar.sync 0;", "nothing has waited for the mbarrier of its tcgen05.commit"),
        ("tcgen05.fence::after_thread_sync;", "", "missing tcgen05.fence::after_thread_sync"),
        ("tcgen05.wait::ld.sync.aligned;", "", "missing tcgen05.wait::ld"),
        ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 64;", "", "missing tcgen05.dealloc"),
        (
            "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 64;",
            "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 32;",
            "there is no allocation of 32 columns",
        ),
        ("bar.sync 0;\n    @%p1 bra end;", "@%p1 bra end;", "are not all allocated"),
        ("    tcgen05.wait::ld", early, "freed while it may still be read"),
        ("again:\n", &unfinished, "freed while it may still be written"),
        (&right, &none, "bits 46 to 48"),
        (&right, &two, "bits 46 to 48"),
        (
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];",
            "",
            "1 of 1 arrivals are missing",
        ),
        ("again:\n", "st.shared.v4.u32 [%r8], {%r2, %r3, %r4, %r5};\nagain:\n", "data race"),
        ("fence.proxy.async.shared::cta;", "", "missing fence.proxy.async"),
        ("fence.mbarrier_init.release.cluster;", "", "missing fence.mbarrier_init"),
        ("%r13, %p3;", "%r13, %p4;", "adds to tensor memory that nothing has written"),
        ("%r13, %p4;", "%r13, !%p4;", "another result"),
        ("@%p2 bra again;", "@%p1 bra again;", "for one thread, and 32"),
        ("[%r10], 64;", "[%r10], 48;", "a power of two, not 48"),
        ("[%r10], 64;", "[%r10], 1024;", "a power of two, not 1024"),
        ("mov.u32 %r13", "add.s32 %r12, %r12, 48; mov.u32 %r13", "are not all allocated"),
        ("mov.u32 %r13", "mov.u32 %r12, 0; mov.u32 %r13", "are not all allocated"),
        ("and.b32 %r14, %r1, 96;", "and.b32 %r14, %r1, 32;", "the warp has lanes"),
        (
            "add.s32 %r15, %r12, %r14;",
            "add.s32 %r15, %r12, %r14; add.s32 %r15, %r15, 32;",
            "no tcgen05.mma has written",
        ),
        (
            "tcgen05.relinquish",
            "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], 512; tcgen05.relinquish",
            "free columns of tensor memory",
        ),
        (
            "sync.aligned;\nothers:",
            "sync.aligned; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10], 32;\nothers:",
            "after tcgen05.relinquish_alloc_permit",
        ),
        ("bar.sync 0;", "", "data race"),
        (&other(described), &other(described | 4), "sparse"),
        (&other(described), &other(described | 1 << 31), "must be 0"),
        (&other(described), &other(described | 2 << 7), "no numbers of type 2"),
        (&other(described), &other(described | 2 << 4), "no sums of type 3"),
        (&other(described), &other(described + (1 << 17)), "no shape of 128 x 40"),
        (&other(described), &other(described + (1 << 24)), "no shape of 144 x 32"),
        (&other(described), &other(described | 1 << 13), "another result"),
        ("mma.cta_group::1", "mma.cta_group::2", "cta_group::2"),
        ("tcgen05.ld.sync.aligned.32x32b.x32", "tcgen05.ld.sync.aligned.32x32b.x16", "32 registers for 16"),
        ("    tcgen05.wait::ld", "    mov.u32 %r3, %s5;\n    tcgen05.wait::ld", "missing tcgen05.wait::ld"),
    ]);
}

#[test]
fn matrices_may_run_across_k() {
    let matrix = |lines| Matrix { order: Order::Across, lines, bytes: 2, k: 32, step: 16 };
    let sum = |row, column| u32::from(f16::from_f32(summed(32)(row, column) as f32).to_bits());
    for (m, load) in [(64, Load::Fragments), (128, Load::Rows)] {
        let case = Case {
            a: matrix(m),
            b: matrix(64),
            kind: "f16",
            types: 1 << 15 | 1 << 16,
            load,
            numbers: [&|m, k| half(small(m, k, 1)), &|n, k| half(small(n, k, 4))],
            sum: &sum,
        };
        case.judged(&[("%r13, %p4;", "%r13, %p3;", "another result")]);
    }
}

#[test]
fn whole_numbers_and_floats_of_8_bits_are_multiplied() {
    let matrix = |lines| Matrix { order: Order::Chunks, lines, bytes: 1, k: 64, step: 32 };
    // Sums of s32; s8 by u8, which small numbers above 0 are, too.
    let whole = Case {
        a: matrix(128),
        b: matrix(16),
        kind: "i8",
        types: 2 << 4 | 1 << 7,
        load: Load::Rows,
        numbers: [&|m, k| vec![small(m, k, 1) as u8], &|n, k| vec![(200 + small(n, k, 4)) as u8]],
        sum: &|row, column| (0..64).map(|k| small(row, k, 1) * (200 + small(column, k, 4))).sum::<i32>() as u32,
    };
    whole.judged(&[("kind::i8", "kind::f16", "no sums of type 2")]);
    let narrow = Case {
        a: matrix(64),
        b: matrix(8),
        types: 2 << 4 | 1 << 7 | 1 << 10,
        load: Load::Fragments,
        numbers: [&|m, k| vec![small(m, k, 1) as u8], &|n, k| vec![small(n, k, 4) as u8]],
        sum: &|row, column| summed(64)(row, column) as u32,
        ..whole
    };
    narrow.judged(&[("%r13, %p4;", "%r13, %p3;", "another result")]);
    // e4m3 by e5m2: 1 to 8 and their halves, by bits.
    let e4m3 = |m: usize, k: usize| 8 * ((m + 3 * k) % 4 + 5) + (m * k) % 8;
    let e5m2 = |n: usize, k: usize| 128 * (n % 2) + 4 * ((n + k) % 3 + 14) + (n + 5 * k) % 4;
    let wide = |bits: usize| (8 + bits % 8) as f32 * 2f32.powi((bits >> 3) as i32 - 10);
    let narrow = |bits: usize| f16::from_bits((bits as u16) << 8).to_f32();
    for m in [64, 128] {
        let floats = Case {
            a: matrix(m),
            b: matrix(16),
            kind: "f8f6f4",
            types: F32 | 1 << 10,
            load: Load::Fragments,
            numbers: [&|m, k| vec![e4m3(m, k) as u8], &|n, k| vec![e5m2(n, k) as u8]],
            sum: &|row, column| (0..64).map(|k| wide(e4m3(row, k)) * narrow(e5m2(column, k))).sum::<f32>().to_bits(),
        };
        // The same with A across k.
        Case { a: Matrix { order: Order::Across, lines: 128, ..matrix(m) }, types: floats.types | 1 << 15, ..floats }
            .judged(&[]);
        floats.judged(&[("%rd7, %r13", "%rd6, %r13", "another result")]);
    }
}

#[test]
fn words_of_32_bits_are_multiplied_as_tf32() {
    let matrix = |lines| Matrix { order: Order::AlongK, lines, bytes: 4, k: 32, step: 8 };
    // The last 13 bits do not count.
    let word = |value: i32| ((value as f32).to_bits() | 0x1fff).to_le_bytes().to_vec();
    let case = Case {
        a: matrix(64),
        b: matrix(16),
        kind: "tf32",
        types: F32 | 2 << 7 | 2 << 10 | 1 << 14,
        load: Load::Fragments,
        numbers: [&|m, k| word(small(m, k, 1)), &|n, k| word(small(n, k, 4))],
        sum: &|row, column| (-summed(32)(row, column) as f32).to_bits(),
    };
    case.judged(&[("kind::tf32", "kind::f16", "multiplies no numbers of type 2")]);
}

/// 128 x 16 numbers, 16 terms each.
fn one_step() -> Case<'static> {
    let matrix = |lines| Matrix { order: Order::Chunks, lines, bytes: 2, k: 16, step: 16 };
    Case {
        a: matrix(128),
        b: matrix(16),
        kind: "f16",
        types: F32,
        load: Load::Rows,
        numbers: [&|m, k| half(small(m, k, 1)), &|n, k| half(small(n, k, 4))],
        sum: &|row, column| (summed(16)(row, column) as f32).to_bits(),
    }
}

#[test]
fn operands_are_replaced_when_their_commit_has_come() {
    let case = one_step();
    let commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];";
    let replaced = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r9], 32;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%rd1], 32, [%r9];";
    let late = format!(
        "    tcgen05.wait::ld.sync.aligned;
    bar.sync 0;
    @%p2 bra more;
    {replaced}
more:
    mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r9], 1;
    @!%p5 bra more;"
    );
    let text = case.text().replace("    tcgen05.wait::ld.sync.aligned;", &late);
    let early = format!(
        "{commit}\n    {}",
        replaced.replace("arrive.expect_tx.shared::cta.b64 _,", "expect_tx.relaxed.cta.shared::cta.b64")
    );
    case.text_judged(
        &text,
        1,
        &[
            (commit, &early, "data race"),
            ("@!%p5 bra again;", "", "tensor memory"),
            ("[%r9], 1;\n    @!%p5 bra more;", "[%r9], 1;", "the block ends"),
        ],
    );
}

#[test]
fn a_commit_arrives_in_all_blocks_of_a_cluster() {
    let case = one_step();
    let commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster";
    let text = case
        .text()
        .replace(".param .u64 out)", ".param .u64 out) .reqnctapercluster 2, 1, 1")
        .replace("[%r9], 1;", "[%r9], 2;")
        .replacen("bar.sync 0;", "barrier.cluster.arrive.release;\n    barrier.cluster.wait.acquire;", 1)
        .replace(&format!("{commit}.b64 [%r9];"), &format!("{commit}.multicast::cluster.b64 [%r9], 3;"))
        .replace(
            "mul.wide.u32 %rd9, %r1,",
            "mov.u32 %r2, %ctaid.x;\n    mad.lo.u32 %r2, %r2, 128, %r1;\n    mul.wide.u32 %rd9, %r2,",
        );
    case.text_judged(
        &text,
        2,
        &[
            ("[%r9], 3;", "[%r9], 1;", "arrival"),
            ("[%r9], 3;", "[%r9], 7;", "the cluster has 2 blocks"),
            ("[%r9], 2;", "[%r9], 3;", "hang"),
            ("barrier.cluster.arrive.release;\n    barrier.cluster.wait.acquire;", "bar.sync 0;", "mbarrier"),
        ],
    );
}

/// Two threads of the last warp add to the same sums, one after the other; four warps read them; then they are overwritten, and
/// read again.
const ROUNDS: &str = "
.version 8.6
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
    .reg .pred %p<8>;
    .reg .b32 %r<20>;
    .reg .b32 %s<16>;
    .reg .b64 %rd<12>;
    .shared .align 1024 .b8 tile[5120];
    .shared .align 8 .b8 full[8];
    .shared .align 8 .b8 free[8];
    .shared .align 4 .b8 slot[4];
    mov.u32 %r1, %tid.x;
    mov.u32 %r6, tile;
    mov.u32 %r9, full;
    mov.u32 %r10, free;
    mov.u32 %r11, slot;
    ld.param.u64 %rd1, [in];
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r1, 16;
    add.s64 %rd3, %rd1, %rd2;
    shl.b32 %r7, %r1, 4;
    add.s32 %r8, %r6, %r7;
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd3];
    st.shared.v4.u32 [%r8], {%r2, %r3, %r4, %r5};
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd3+2560];
    st.shared.v4.u32 [%r8+2560], {%r2, %r3, %r4, %r5};
    fence.proxy.async.shared::cta;
    setp.lt.u32 %p1, %r1, 128;
    setp.eq.u32 %p2, %r1, 128;
    setp.eq.u32 %p3, %r1, 129;
    @%p1 bra ready;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r11], 32;
    @%p2 mbarrier.init.shared::cta.b64 [%r9], 2;
    @%p2 mbarrier.init.shared::cta.b64 [%r10], 128;
    fence.mbarrier_init.release.cluster;
ready:
    bar.sync 0;
    ld.shared.u32 %r12, [%r11];
    @%p1 bra reads;
    shr.u32 %r13, %r6, 4;
    cvt.u64.u32 %rd4, %r13;
    add.s64 %rd5, %rd4, 256;
    or.b64 %rd4, %rd4, DESCRIPTOR;
    or.b64 %rd5, %rd5, DESCRIPTOR;
    mov.u32 %r14, DESCRIBED;
    setp.ne.u32 %p4, %r1, %r1;
    setp.eq.u32 %p5, %r1, %r1;
    @%p2 tcgen05.mma.cta_group::1.kind::f16 [%r12], %rd4, %rd5, %r14, %p4;
    @%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
    tcgen05.fence::before_thread_sync;
    bar.warp.sync -1;
    tcgen05.fence::after_thread_sync;
    @%p3 tcgen05.mma.cta_group::1.kind::f16 [%r12], %rd4, %rd5, %r14, %p5;
    @%p3 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
emptied:
    mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r10], 0;
    @!%p6 bra emptied;
    tcgen05.fence::after_thread_sync;
    @%p2 tcgen05.mma.cta_group::1.kind::f16 [%r12], %rd4, %rd5, %r14, %p4;
    @%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
    @%p3 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
    bra end;
reads:
    shl.b32 %r15, %r1, 16;
    and.b32 %r15, %r15, 6291456;
    add.s32 %r15, %r12, %r15;
    ld.param.u64 %rd8, [out];
    cvta.to.global.u64 %rd8, %rd8;
    mul.wide.u32 %rd9, %r1, 64;
    add.s64 %rd9, %rd8, %rd9;
first:
    mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r9], 0;
    @!%p6 bra first;
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x8.b32 {%s0, %s1, %s2, %s3, %s4, %s5, %s6, %s7}, [%r15];
    tcgen05.wait::ld.sync.aligned;
    tcgen05.fence::before_thread_sync;
    mbarrier.arrive.shared::cta.b64 _, [%r10];
second:
    mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r9], 1;
    @!%p6 bra second;
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x8.b32 {%s8, %s9, %s10, %s11, %s12, %s13, %s14, %s15}, [%r15+8];
    tcgen05.wait::ld.sync.aligned;
    STORES
end:
    bar.sync 0;
    @%p1 bra done;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r12, 32;
done:
    ret;
}";

#[test]
fn sums_are_overwritten_when_they_have_been_read() {
    let case = one_step();
    let stores: String = (0..16).map(|i| format!("st.global.u32 [%rd9+{}], %s{i};\n", 4 * i)).collect();
    let text = ROUNDS
        .replace("DESCRIPTOR", &case.a.descriptor().0.to_string())
        .replace("DESCRIBED", &(F32 | 2 << 17 | 8 << 24).to_string())
        .replace("STORES", &stores);
    let mut bytes = case.bytes();
    bytes.resize(5120, 0);
    let sum = |row, column| summed(16)(row, column) as f32 * if column < 8 { 2.0 } else { 1.0 };
    let expected: Vec<u8> =
        (0..128).flat_map(|row| (0..16).flat_map(move |column| sum(row, column).to_le_bytes())).collect();
    let arguments = [Argument::Allocation(input(bytes)), output(expected.len() as u64)];
    let read = "tcgen05.wait::ld.sync.aligned;\n    tcgen05.fence::before_thread_sync;\n    mbarrier";
    let unfenced = "tcgen05.wait::ld.sync.aligned;\n    mbarrier";
    let written = "tcgen05.fence::before_thread_sync;\n    bar.warp.sync -1;\n    tcgen05.fence::after_thread_sync;";
    judged(
        &text,
        1,
        160,
        &arguments,
        &expected,
        &[
            (read, "tcgen05.fence::before_thread_sync;\n    mbarrier", "may still be read"),
            (read, unfenced, "missing tcgen05.fence::before_thread_sync"),
            (
                "bra emptied;\n    tcgen05.fence::after_thread_sync;",
                "bra emptied;",
                "missing tcgen05.fence::after_thread_sync",
            ),
            ("@!%p6 bra emptied;", "", "tensor memory"),
            (written, "", "overwritten while it may still be written"),
            (written, "bar.warp.sync -1;", "overwritten while it may still be written"),
            (
                written,
                "bar.warp.sync -1; tcgen05.fence::after_thread_sync;",
                "overwritten while it may still be written",
            ),
            (
                written,
                "tcgen05.fence::before_thread_sync; bar.warp.sync -1;",
                "overwritten while it may still be written",
            ),
            ("[%r15+8];", "[%r15+12];", "tensor memory"),
            (
                "bra first;\n    tcgen05.fence::after_thread_sync;",
                "bra first;",
                "missing tcgen05.fence::after_thread_sync",
            ),
            (
                "bra second;\n    tcgen05.fence::after_thread_sync;",
                "bra second;",
                "missing tcgen05.fence::after_thread_sync",
            ),
            ("@!%p6 bra second;", "", "tensor memory"),
        ],
    );
}

#[test]
fn what_is_not_known_is_refused() {
    let case = one_step();
    let text = case.text();
    for (from, to, words) in [
        ("tcgen05.alloc.cta_group::1", "tcgen05.alloc.cta_group::2", "cta_group::2"),
        ("tcgen05.commit.cta_group::1", "tcgen05.commit.cta_group::2", "cta_group::2"),
        ("kind::f16 [%r12], %rd6", "kind::f16 [%r12], [%r12]", "A in tensor memory"),
        ("kind::f16", "ws.kind::f16", "ws"),
        ("kind::f16", "kind::mxf4", "kind::mxf4"),
        ("%r13, %p3;", "%r13, 0;", "a predicate"),
        ("32x32b.x16.b32", "32x32b.x16.pack::16b.b32", "this form"),
        ("32x32b.x16.b32", "16x64b.x16.b32", "16x64b"),
        ("32x32b.x16.b32", "32x32b.x12.b32", "expected"),
        ("tcgen05.wait::ld.sync.aligned", "tcgen05.cp.cta_group::1.128x256b", "this form"),
    ] {
        assert!(text.contains(from), "{from}");
        let module = parse(&text.replacen(from, to, 1)).unwrap();
        let found = Program::new(&module, "k").map(|_| ()).unwrap_err().to_string();
        assert!(found.contains(words), "{from} -> {to}: {found}");
    }
}
