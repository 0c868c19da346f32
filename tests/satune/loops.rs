//! Compiled loops under the judge: loops with known answers through the compiler, and schedules that were measured.
use crate::compiles::compile;
use satune::compile::{disassemble, Job};
use satune::explore::check;
use satune_extract::published::sets;
use satune_extract::Descriptor;
use satune_ir::term::Schedule;
use satune_sass::{judge, Judged, Listing, Warps};

/// The disassembly of a kernel; leaves the test where there is no compiler or no disassembler.
fn listing(source: &str, arch: &str) -> Listing {
    let job = Job { name: "loop".into(), source: source.into(), arch: arch.into() };
    let compiled = compile(&[job]);
    disassemble(&compiled[0].cubin).unwrap_or_else(|| satune_testing::missing("nvdisasm", "cuda"))
}

fn gpu(name: &str) -> Descriptor {
    Descriptor::load(name).unwrap()
}

/// Of one block of so many warps.
fn judged(source: &str, gpu: &Descriptor, warps: usize) -> Judged {
    judge(&listing(source, &gpu.arch), Warps::of(1, warps), gpu, None).unwrap()
}

/// `links` multiply-adds that each need the one before.
fn chain(links: usize) -> String {
    format!(
        r#"extern "C" __global__ void k(float* o, float a, float b, int n)
{{
    float x = o[0];
    #pragma unroll 1
    for (int i = 0; i < n; i++) {{
        #pragma unroll
        for (int j = 0; j < {links}; j++) x = __fmaf_rn(x, a, b);
    }}
    o[threadIdx.x] = x;
}}"#
    )
}

#[test(slow)]
fn a_link_of_a_chain_takes_four_clocks_and_sixteen_warps_fill_the_lanes() {
    // What a loop has beside its chain is the same for both lengths.
    let link = |gpu: &Descriptor, warps: usize| {
        let [short, long] = [64, 128].map(|links| judged(&chain(links), gpu, warps).clocks);
        (long - short) / 64.0
    };
    for (name, full) in [("a100", Some(2.0)), ("rtx3090", Some(1.0)), ("rtx4090", Some(1.0)), ("h200", None)] {
        let gpu = gpu(name);
        let alone = link(&gpu, 1);
        assert!((alone / 4.0 - 1.0).abs() < 0.03, "{name}: {alone}");
        // On sm_90 the compiler keeps all three operands in registers, whose banks then bind.
        let filled = full.map(|full: f64| link(&gpu, 64) / 16.0 / full);
        assert!(filled.is_none_or(|of_full| (of_full - 1.0).abs() < 0.05), "{name}: {filled:?}");
    }
}

#[test]
fn sixteen_byte_loads_of_shared_memory_take_four_wavefronts() {
    let source = r#"extern "C" __global__ void k(float* o, int n)
{
    extern __shared__ float4 s[];
    float4 a[4] = {};
    #pragma unroll 1
    for (int i = 0; i < n; i++) {
        #pragma unroll
        for (int j = 0; j < 16; j++) {
            float4 v = s[threadIdx.x + j * 512 + (i & 1)];
            a[j & 3].x = fmaf(v.x, v.y, a[j & 3].x);
            a[j & 3].z = fmaf(v.z, v.w, a[j & 3].z);
        }
    }
    o[threadIdx.x] = a[0].x + a[1].x + a[2].x + a[3].x + a[0].z + a[1].z + a[2].z + a[3].z;
}"#;
    for name in ["a100", "rtx3090", "h200"] {
        let judged = judged(source, &gpu(name), 32);
        // 16 loads of 8 warps in each of four partitions, a wavefront a clock.
        let least = 16.0 * 4.0 * 32.0;
        assert!((judged.clocks / least - 1.0).abs() < 0.05, "{name}: {judged:?}");
        assert_eq!(judged.busy[0].0, "load/store units and shared memory");
    }
}

#[test]
fn matrix_instructions_take_the_tensor_cores_rate_and_a_chain_their_latency() {
    let source = |chains: usize| {
        format!(
            r#"extern "C" __global__ void k(float* o, unsigned a, unsigned b, int n)
{{
    float c[{chains}][4] = {{}};
    #pragma unroll 1
    for (int i = 0; i < n; i++) {{
        #pragma unroll
        for (int t = 0; t < 16 / {chains}; t++)
            #pragma unroll
            for (int j = 0; j < {chains}; j++)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{%0,%1,%2,%3}},{{%4,%5,%6,%7}},{{%8,%9}},{{%0,%1,%2,%3}};"
                    : "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3]) : "r"(a), "r"(a + 1), "r"(a + 2), "r"(a + 3), "r"(b), "r"(b + 1));
    }}
    for (int j = 0; j < {chains}; j++) for (int t = 0; t < 4; t++) o[threadIdx.x + 4 * j + t] = c[j][t];
}}"#
        )
    };
    // 4096 FLOP each; a partition has a quarter of the multiprocessor's rate, on sm_90 the share of a warp's own instruction.
    for (name, clocks) in [("a100", 8.0), ("a6000", 16.0), ("rtx3090", 32.0), ("h200", 4096.0 / (1024.0 * 0.6))] {
        let all = judged(&source(8), &gpu(name), 8);
        assert!((all.clocks / (16.0 * 2.0 * clocks) - 1.0).abs() < 0.05, "{name}: {all:?}");
        assert_eq!((all.flop, all.busy[0].0.as_str()), (16.0 * 4096.0, "tensor cores"));
    }
    // The compiler's own schedule of a chain on sm_80: 24 clocks a link.
    let chain = judged(&source(1), &gpu("a100"), 1);
    assert!((chain.clocks / (16.0 * 24.0) - 1.0).abs() < 0.05, "{chain:?}");
}

/// The staircase of SGEMM: what the judge says of the machine code of each measured schedule, beside what was measured.
#[test(slow)]
fn the_judge_beside_the_measured_staircase() {
    let all = sets().unwrap();
    let staircase = all.iter().find(|set| set.name == "sgemm-staircase").unwrap();
    let gpu = gpu(&staircase.gpu);
    let mut ratios = Vec::new();
    for row in staircase.rows.iter().filter(|row| row.operator.contains("16384")) {
        let problem = satune::operators::parse(&row.operator).unwrap();
        let plan: Schedule = serde_json::from_str(row.plan.as_ref().unwrap()).unwrap();
        let options = satune::scheduled::options(&gpu);
        let source = crate::support::source(&problem.contraction);
        let made = satune::scheduled::of_schedule(&source, &plan, &problem.contraction, &options).unwrap();
        let kernel = &made.module.kernels[0];
        let job = Job { name: row.name.clone(), source: satune::cuda::print(kernel), arch: gpu.arch.clone() };
        let compiled = compile(&[job]).remove(0);
        let Some(listing) = disassemble(&compiled.cubin) else { satune_testing::missing("nvdisasm", "cuda") };
        let cost = satune_extract::compiled(&plan, &problem.contraction, &gpu, compiled.registers).unwrap().cost;
        let hot = check(&plan, &problem.contraction, &options, &|| true).unwrap().hot_loop;
        let wavefronts = hot.shared_wavefronts().0 as f64 / hot.fma as f64;
        let warps = Warps::of(cost.resident_blocks as usize, plan.threads() as usize / 32);
        let judged = judge(&listing, warps, &gpu, Some(wavefronts)).unwrap();
        // Iterations of all warps of a multiprocessor.
        let all = 2.0 * 16384.0_f64.powi(3) / f64::from(gpu.sms);
        let iterations = all / (judged.flop * judged.warps as f64 * f64::from(judged.partitions));
        let ms = iterations * judged.clocks / (gpu.clock_mhz * 1e3);
        let measured = row.ms.unwrap();
        println!("{:<26} measured {measured:>7.1} judged {ms:>7.1} model {:>7.1} {judged:?}", row.name, cost.ms);
        ratios.push((row.name.clone(), ms, measured));
    }
    assert_eq!(ratios.len(), 7);
    // No step is judged slower than the one before it, but for one: of sums that are cleared inside the loop the compiler of the
    // measurement made another kernel (`benches/results/staircase_compilers.md`).
    let odd = |name: &str| name == "+ decompose_reduction";
    assert!(ratios.windows(2).all(|pair| odd(&pair[1].0) || pair[1].1 < 1.01 * pair[0].1), "{ratios:#?}");
    // The judge leaves out power, DRAM and what stands around the loop: measured times are longer, of all steps by about as much.
    // That step is the exception.
    let of_measured = |row: &&(String, f64, f64)| row.1 / row.2;
    let (odd, even): (Vec<_>, Vec<_>) = ratios.iter().partition(|row| odd(&row.0));
    assert!(even.iter().map(of_measured).all(|ratio| (0.7..0.95).contains(&ratio)), "{ratios:#?}");
    assert!(odd.iter().map(of_measured).all(|ratio| (1.2..1.5).contains(&ratio)), "{ratios:#?}");
}

fn satune(args: &[&str], out: &std::path::Path) -> String {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_satune")).args(args).arg("--out").arg(out).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_command_shows_the_compiled_loop_beside_the_model() {
    let out = tempfile::tempdir().unwrap();
    let table =
        satune(&["explore", "gemm:128,128,256,f32", "--gpu", "a100", "--top", "2", "--device", "none"], out.path());
    if table.contains("not compiled") {
        satune_testing::missing("NVRTC", "cuda");
    }
    let why: serde_json::Value = serde_json::from_str(&satune(&["why", "1", "--json"], out.path())).unwrap();
    let of_loop = &why["loop_clocks"];
    if of_loop.is_null() {
        satune_testing::missing("nvdisasm", "cuda");
    }
    // Both loops are whole and near the model, so they rank, and the table, the answer and the page say so.
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(out.path().join("candidates.json")).unwrap()).unwrap();
    let by_loop = |c: &serde_json::Value| c["compiled"]["loop_clocks"]["judged_ms"].as_f64().unwrap();
    let times: Vec<f64> = report["candidates"].as_array().unwrap().iter().map(by_loop).collect();
    assert!(times.len() == 2 && times.is_sorted(), "{times:?}");
    assert_eq!(report["ranked_by"], "compiled_loops");
    assert!(table.contains("ranked by the clocks of the compiled loops") && table.contains("by loop"), "{table}");
    let page = std::fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(page.contains("by its loop") && page.contains("ranked by the predictions with the clocks"));
    let (judged, model) = (of_loop["judged"]["clocks"].as_f64().unwrap(), of_loop["model_clocks"].as_f64().unwrap());
    // Two counts of the same work: the judge's may be longer by what stalls, and neither by much.
    assert!(judged > 0.5 * model && judged < 3.0 * model, "{of_loop:#}");
    let sentence = "The compiled loop takes ";
    assert!(satune(&["why", "1"], out.path()).contains(sentence));
    assert!(std::fs::read_to_string(out.path().join("report.html")).unwrap().contains(sentence));
}
