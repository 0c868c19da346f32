//! Floats of 8 bits: from the operator to kernels. The kernels on `wgmma` themselves are in `hopper`.
use crate::compiles::compile;
use crate::support::{gemm, h200, support_as_cpp, NO_LIMIT};
use crate::tensor::lower_mma;
use satune::compile::Job;
use satune::explore::{check, Request};
use satune::operators;
use satune::progress::Quiet;
use satune::scheduled;
use satune_extract::{best, predict, Counts, Descriptor, Query};
use satune_ir::fp8::{Format, E4M3, E5M2};
use satune_ir::interp::{self, Array};
use satune_ir::term::tensor::{Gemm, WgmmaPlan};
use satune_ir::term::{CoresPlan, Schedule};
use satune_ir::{tvmscript, DType};
use satune_rewrites::space::Fuel;
use std::process::Command;

/// The conversions of the CUDA text without the newer GPUs' instructions, compiled as C++: every number to f32, and every
/// f32 from a comb of them, as the interpreter converts.
#[test]
fn conversions_bit_by_bit_are_the_interpreters() {
    let main = r#"
int main()
{
    for (int b = 0; b < 256; ++b) printf("%a\n", load_FP8((unsigned char)b));
    // Over all exponents that matter: numbers in between, then every tie.
    for (unsigned step : {0x1ffffu, 0x80000u}) for (unsigned u = 0x36000000u; u < 0x48000000u; u += step)
        for (unsigned s = 0; s < 2; ++s) printf("%08x %02x\n", u | s << 31, (unsigned)store_FP8(__uint_as_float(u | s << 31)));
    for (unsigned u : {0u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x42e40000u, 0x00000001u})
        printf("%08x %02x\n", u, (unsigned)store_FP8(__uint_as_float(u)));
    return 0;
}
"#;
    let folder = tempfile::tempdir().unwrap();
    for (dtype, format) in [(DType::F8E4M3, E4M3), (DType::F8E5M2, E5M2)] {
        let (source, program) = (folder.path().join("fp8.cpp"), folder.path().join("fp8"));
        std::fs::write(&source, format!("{}{}", support_as_cpp(), main.replace("FP8", dtype.name()))).unwrap();
        let compiled = Command::new("c++").args(["-O1", "-w", "-o"]).arg(&program).arg(&source).output();
        let compiled = compiled.unwrap_or_else(|error| satune_testing::no_compiler(&error));
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let run = Command::new(&program).output().unwrap();
        assert!(run.status.success());
        let out = String::from_utf8(run.stdout).unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines.len() > 2000);
        for (bits, line) in (0..=255_u8).zip(&lines) {
            assert_eq!(
                hexadecimal(line).to_bits(),
                canonical(format.value(bits)).to_bits(),
                "{dtype:?} {bits:#x}: {line}"
            );
        }
        for line in &lines[256..] {
            let (from, to) = line.split_once(' ').unwrap();
            let value = f64::from(f32::from_bits(u32::from_str_radix(from, 16).unwrap()));
            assert_eq!(u8::from_str_radix(to, 16).unwrap(), bits_of(format, value), "{dtype:?} {value}");
        }
    }
}

fn bits_of(format: Format, value: f64) -> u8 {
    format.bits(format.round(value))
}

fn canonical(value: f64) -> f64 {
    if value.is_nan() {
        f64::NAN
    } else {
        value
    }
}

/// What `%a` writes.
fn hexadecimal(text: &str) -> f64 {
    let (sign, rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    if rest == "nan" {
        return f64::NAN;
    }
    if rest == "inf" {
        return sign * f64::INFINITY;
    }
    let (mantissa, exponent) = rest.trim_start_matches("0x").split_once('p').unwrap();
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let value = u64::from_str_radix(&digits, 16).unwrap() as f64;
    sign * value * 2_f64.powi(exponent.parse::<i32>().unwrap() - 4 * fraction.len() as i32)
}

#[test]
fn operators_and_scripts_name_the_types() {
    for (name, dtype, script) in [("e4m3", DType::F8E4M3, "float8_e4m3fn"), ("e5m2", DType::F8E5M2, "float8_e5m2")] {
        let problem = operators::parse(&format!("gemm:4,6,8,{name},NT")).unwrap();
        let c = &problem.contraction;
        assert_eq!((c.a.dtype, c.accumulate, c.c.dtype), (dtype, DType::F32, DType::F32));
        assert!(problem.script.contains(&format!("A: T.Buffer((4, 8), \"{script}\")")), "{}", problem.script);
        let printed = tvmscript::print(&problem.program);
        assert_eq!(tvmscript::print(&tvmscript::parse(&printed).unwrap()), printed);
        // What does not fit is the nearest number, the largest beyond it.
        let program = format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((4,), \"float32\"), B: T.Buffer((4,), \"{script}\")):\n    for i in range(4):\n        with T.sblock(\"B\"):\n            vi = T.axis.spatial(4, i)\n            B[vi] = T.Cast(\"{script}\", A[vi])\n"
        );
        let program = tvmscript::parse(&program).unwrap();
        let input = Array::from_f64(DType::F32, &[4], &[1.05, -17.0, 1e6, 2.0_f64.powi(-30)]).unwrap();
        let output = Array::unwritten(dtype, &[4]).unwrap();
        let results = interp::run(&program, &[input, output]).unwrap();
        let largest = if name == "e4m3" { 448.0 } else { 57344.0 };
        assert_eq!(results[1].to_f64(), [1.0, -16.0, largest, 0.0], "{name}");
    }
}

#[test(slow)]
fn wgmma_takes_fp8_along_k_only() {
    let gpu = Descriptor::load("h200").unwrap();
    let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    let problem = operators::parse("gemm:256,256,256,e4m3,NT").unwrap();
    let space = satune::explore::space(&problem, &gpu).unwrap();
    let found = best(&space, &gpu, query);
    let Schedule::Wgmma(plan) = &found.candidates[0].plan else { panic!("{:?}", found.candidates[0].plan) };
    check(&found.candidates[0].plan, &problem.contraction, &h200(), &|| true).unwrap();
    // What is stored across k is turned first.
    for layout in ["NN", "TT", "TN"] {
        let across = operators::parse(&format!("gemm:256,256,256,e4m3,{layout}")).unwrap();
        let plan = Schedule::Wgmma(plan.clone());
        check(&plan, &across.contraction, &h200(), &|| true).unwrap_or_else(|e| panic!("{layout}: {e}"));
        let made = scheduled::of_schedule(&across.program, &plan, &across.contraction, &h200()).unwrap();
        assert_eq!(made.module.main, if layout == "TN" { 2 } else { 1 }, "{layout}");
    }
    // Nothing on tensor cores is left where the GPU has none for fp8.
    let (problem, gpu) = (operators::parse("gemm:64,64,256,e5m2,NT").unwrap(), Descriptor::load("a100").unwrap());
    let space = satune::explore::space(&problem, &gpu).unwrap();
    let found = best(&space, &gpu, query);
    assert!(matches!(found.candidates[0].plan, Schedule::Cores(_)));
    check(&found.candidates[0].plan, &problem.contraction, &h200(), &|| true).unwrap();
    let wide = WgmmaPlan { tile: [64, 64, 64], ..plan.clone() };
    assert!(wide.check(&Gemm::of(&problem.contraction).unwrap()).is_err(), "a tile has 128 bytes along k");
}

#[test]
fn kernels_of_single_threads_compile_everywhere() {
    use rand::SeedableRng;
    let mut jobs = Vec::new();
    let mut rng = rand::rngs::StdRng::seed_from_u64(5);
    for (dtype, arch) in [(DType::F8E4M3, "sm_75"), (DType::F8E5M2, "sm_90")] {
        let c = gemm(None, 48, 64, 32, dtype, DType::F32, "NN");
        let space = crate::support::space(&c);
        let plan = CoresPlan::from_term(&Counts::of(&space).sample(&space, &mut rng).unwrap(), &c).unwrap();
        check(&plan.clone().into(), &c, &h200(), &|| true).unwrap();
        for kernel in crate::support::kernels_of(&plan, &c).kernels {
            jobs.push(Job { name: "k".into(), source: satune::cuda::print(&kernel), arch: arch.into() });
        }
    }
    assert!(compile(&jobs).iter().all(|c| !c.cubin.is_empty()));
}

/// Where machine code has the instruction, in any order of storage, and on no other GPU.
#[test]
fn mma_sync_takes_fp8_where_machine_code_has_it() {
    let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    for (operator, gpu_name) in [("gemm:128,64,256,e4m3,NT", "rtx4090"), ("gemm:64,128,128,e5m2,NN", "l4")] {
        let (problem, gpu) = (operators::parse(operator).unwrap(), Descriptor::load(gpu_name).unwrap());
        let space = satune::explore::space(&problem, &gpu).unwrap();
        let found = best(&space, &gpu, query);
        let plan = &found.candidates[0].plan;
        let Schedule::Mma(mma) = plan else { panic!("{operator} on {gpu_name}: {plan:?}") };
        check(plan, &problem.contraction, &h200(), &|| true).unwrap();
        let module = lower_mma(&Gemm::of(&problem.contraction).unwrap(), mma).unwrap();
        let kernel = module.kernels.iter().map(satune::cuda::print);
        let jobs: Vec<Job> = kernel.map(|source| Job { name: "k".into(), source, arch: gpu.arch.clone() }).collect();
        assert!(compile(&jobs).iter().all(|c| !c.cubin.is_empty()));
        for other in ["a100", "h200", "b200"] {
            let cost = predict(plan, &problem.contraction, &Descriptor::load(other).unwrap());
            let refused = cost.unwrap_err().to_string();
            assert!(refused.contains("needs sm_89 or sm_120 to sm_121; this GPU is sm_"), "{other}: {refused}");
        }
    }
}

/// On an H200 `wgmma` alone multiplies them. What it does not take has schedules on single threads, which is told, and not called the best.
#[test]
fn products_that_warpgroups_do_not_take_say_why() {
    let rows = [
        ("gemm:64,64,128,e4m3,NT", None),
        ("gemm:64,64,200,e4m3,NT", None),
        ("gemm:64,64,128,e5m2,NN", None),
        ("conv2d:1,8,8,40,32,3,3,e4m3,pad=1", Some("its channels are no multiple of 128 bytes")),
    ];
    for (operator, why) in rows {
        let work = satune::source::operator(operator).unwrap();
        let request = Request {
            gpu: Descriptor::load("h200").unwrap(),
            top: 1,
            twins: true,
            limit: NO_LIMIT,
            compile: false,
            fuel: Fuel::default(),
        };
        let report = work.explore_on(&request, None, &Quiet).unwrap();
        let told = report.notes.iter().any(|note| why.is_some_and(|why| note.contains(why)));
        assert_eq!(
            (told, !report.untiled.is_empty()),
            (why.is_some(), why.is_some()),
            "{operator}: {:?}",
            report.notes
        );
    }
}
