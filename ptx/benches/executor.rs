//! Thread instructions a second of one core: a loop of multiply-adds on shared memory, one of `mma.sync`, one of `wgmma`.
use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use satune_ptx::{parse, run, Allocation, Argument, Initial, Launch, Options, Program};
use std::fmt::Write;

const HEAD: &str = ".version 8.7\n.target sm_90a\n.address_size 64\n";

/// Every thread: eight loads of shared memory and 64 multiply-adds in each of 256 rounds, as a tile of 8 x 8 takes.
fn scalar() -> String {
    let mut body = String::new();
    for i in 0..8 {
        let _ = writeln!(
            body,
            "ld.shared.v4.f32 {{%f{},%f{},%f{},%f{}}}, [%r3+{}];",
            4 * i,
            4 * i + 1,
            4 * i + 2,
            4 * i + 3,
            512 * i
        );
    }
    for i in 0..64 {
        let _ = writeln!(body, "fma.rn.f32 %f{}, %f{}, %f{}, %f{};", 32 + i, i % 8, 8 + i / 8, 32 + i);
    }
    let zero: String = (0..96).map(|i| format!("mov.f32 %f{i}, 0f3F800000;\n")).collect();
    format!(
        "{HEAD}.visible .entry bench(.param .u64 x)\n.maxntid 128\n{{\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n.reg .f32 %f<97>;\n.reg .pred %p;
.shared .align 16 .b8 tile[8192];\nld.param.u64 %rd1, [x];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, tile;\nshl.b32 %r4, %r1, 4;\nadd.s32 %r3, %r2, %r4;\n{zero}
st.shared.v4.f32 [%r3], {{%f0,%f1,%f2,%f3}};\nst.shared.v4.f32 [%r3+2048], {{%f0,%f1,%f2,%f3}};\nst.shared.v4.f32 [%r3+4096], {{%f0,%f1,%f2,%f3}};\nst.shared.v4.f32 [%r3+6144], {{%f0,%f1,%f2,%f3}};\nbar.sync 0;\nand.b32 %r4, %r4, 511;\nadd.s32 %r3, %r2, %r4;\nmov.u32 %r5, 0;
again:\n{body}\nadd.s32 %r5, %r5, 1;\nsetp.lt.u32 %p, %r5, 256;\n@%p bra again;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.f32 [%rd3], %f95;\nret;\n}}"
    )
}

/// A warp's tile of 32 x 32 by `m16n8k16`: eight products, four loads of fragments, and what surrounds them.
fn mma() -> String {
    let mut body = String::new();
    for i in 0..4 {
        let r = 10 + 4 * i;
        let _ = writeln!(
            body,
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r{r},%r{},%r{},%r{}}}, [%r3+{}];",
            r + 1,
            r + 2,
            r + 3,
            512 * i
        );
    }
    for i in 0..8 {
        let (d, a, b) = (4 * i, 10 + 4 * (i / 4), 18 + 2 * (i % 4));
        let _ = writeln!(
            body,
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%f{d},%f{},%f{},%f{}}}, {{%r{a},%r{},%r{},%r{}}}, {{%r{b},%r{}}}, {{%f{d},%f{},%f{},%f{}}};",
            d + 1, d + 2, d + 3, a + 1, a + 2, a + 3, b + 1, d + 1, d + 2, d + 3
        );
    }
    let zero: String = (0..32).map(|i| format!("mov.f32 %f{i}, 0f00000000;\n")).collect();
    let fill: String = (0..4).map(|i| format!("st.shared.v4.b32 [%r3+{}], {{%r6,%r6,%r6,%r6}};\n", 2048 * i)).collect();
    format!(
        "{HEAD}.visible .entry bench(.param .u64 x)\n.maxntid 128\n{{\n.reg .b32 %r<40>;\n.reg .b64 %rd<4>;\n.reg .f32 %f<33>;\n.reg .pred %p;
.shared .align 128 .b8 tile[8192];\nld.param.u64 %rd1, [x];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, tile;\nshl.b32 %r4, %r1, 4;\nadd.s32 %r3, %r2, %r4;\nmov.u32 %r6, 0x3C003C00;\n{zero}{fill}bar.sync 0;
and.b32 %r4, %r4, 511;\nadd.s32 %r3, %r2, %r4;\nmov.u32 %r5, 0;\nagain:\n{body}add.s32 %r5, %r5, 1;\nsetp.lt.u32 %p, %r5, 512;\n@%p bra again;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.f32 [%rd3], %f0;\nret;\n}}"
    )
}

/// A warpgroup: in each of 64 rounds four `m64n64k16`, with the descriptors' additions, as a consumer's loop has them.
fn wgmma() -> String {
    let d: Vec<String> = (0..32).map(|i| format!("%f{i}")).collect();
    let mut body = String::from("wgmma.fence.sync.aligned;\n");
    for i in 0..4 {
        let _ = writeln!(body, "add.s64 %rd5, %rd2, {};\nadd.s64 %rd6, %rd3, {};", 2 * i, 2 * i);
        let _ = writeln!(
            body,
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{{}}}, %rd5, %rd6, 1, 1, 1, 0, 0;",
            d.join(", ")
        );
    }
    body.push_str("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n");
    let zero: String = (0..32).map(|i| format!("mov.f32 %f{i}, 0f00000000;\n")).collect();
    let fill: String = (0..8).map(|i| format!("st.shared.v4.b32 [%r3+{}], {{%r6,%r6,%r6,%r6}};\n", 2048 * i)).collect();
    // 128-byte swizzle, eight lines 1024 bytes apart; the address goes into the low bits.
    format!(
        "{HEAD}.visible .entry bench(.param .u64 x)\n.maxntid 128\n{{\n.reg .b32 %r<10>;\n.reg .b64 %rd<9>;\n.reg .f32 %f<33>;\n.reg .pred %p;
.shared .align 1024 .b8 tile[16384];\nld.param.u64 %rd1, [x];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, tile;\nshl.b32 %r4, %r1, 4;\nadd.s32 %r3, %r2, %r4;\nmov.u32 %r6, 0x3C003C00;\n{zero}{fill}fence.proxy.async.shared::cta;\nbar.sync 0;
shr.u32 %r7, %r2, 4;\ncvt.u64.u32 %rd2, %r7;\nor.b64 %rd2, %rd2, 0x4000004000000000;\nadd.s64 %rd3, %rd2, 512;\nmov.u32 %r5, 0;\nagain:\n{body}add.s32 %r5, %r5, 1;\nsetp.lt.u32 %p, %r5, 64;\n@%p bra again;
mul.wide.u32 %rd7, %r1, 4;\nadd.s64 %rd8, %rd1, %rd7;\nst.global.f32 [%rd8], %f0;\nret;\n}}"
    )
}

fn executor(c: &mut Criterion) {
    let mut group = c.benchmark_group("thread instructions");
    group.sample_size(10);
    for (name, text) in [("scalar", scalar()), ("mma.sync", mma()), ("wgmma", wgmma())] {
        let module = parse(&text).expect("the text is PTX");
        let program = Program::new(&module, "bench").expect("all of it is known");
        let x = Allocation { name: "x".into(), bytes: 512, initial: Initial::Undefined, writable: true };
        let argument = [Argument::Allocation(x)];
        let launch = Launch::new(&program, [1; 3], [128, 1, 1], 0, &argument, Options::default()).expect("it fits");
        let outcome = run(&program, &launch);
        assert!(outcome.faults.is_empty(), "{name}: {}", outcome.faults[0]);
        group.throughput(Throughput::Elements(outcome.executed));
        group.bench_function(name, |b| b.iter(|| run(&program, &launch).executed));
    }
    group.finish();
}

criterion_group!(benches, executor);
criterion_main!(benches);
