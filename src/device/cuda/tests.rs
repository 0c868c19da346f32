use super::*;
use crate::device::protocol::{encode, read_request, ArgumentJob, ProductJob, Request};
use crate::host::Map;
use crate::lower::program::Argument;
use crate::operators::{self, Problem};
use satune_extract::{predict, Descriptor};
use satune_ir::term::tensor::WgmmaPlan;

/// A candidate on `wgmma`, as it comes to a device.
fn subject(problem: &Problem, plan: WgmmaPlan) -> Subject {
    let gpu = Descriptor::load("h200").unwrap();
    let plan = Schedule::Wgmma(plan);
    let cost = predict(&plan, &problem.contraction, &gpu).unwrap();
    Subject::of((&plan, &cost), problem, &gpu, &|| true).unwrap()
}

fn plan(stages: u32, split_k: i64) -> WgmmaPlan {
    WgmmaPlan { split_k, ..WgmmaPlan::plain([128, 64, 64], 2, stages) }
}

#[test]
fn a_job_says_which_arguments_are_tensor_maps_and_passes_unchanged() {
    let problem = operators::parse("gemm:256,192,512,bf16,NN").unwrap();
    let made = subject(&problem, plan(3, 2));
    let job = job(&problem, Some(&Ready::of(&problem, &made)), &Ask::default());
    // The partial products, then their sum.
    let [partial, sum] = &job.kernels[..] else { panic!("{:?}", job.kernels) };
    let map = |dims: [u64; 2], tile: [u32; 2]| {
        let (dtype, strides) = (DType::BF16, vec![dims[0] * 2]);
        Some(Map { dtype, dims: dims.to_vec(), strides, tile: tile.to_vec(), image: None, swizzle: true })
    };
    // B is stored across k: boxes of 64 columns by the tile's k.
    let expected = [
        ArgumentJob { buffer: Argument::Param(0), map: map([512, 256], [64, 128]) },
        ArgumentJob { buffer: Argument::Param(1), map: map([192, 512], [64, 64]) },
        ArgumentJob { buffer: Argument::Workspace(0), map: None },
    ];
    assert_eq!(partial.args, expected);
    assert!(partial.dynamic_shared_bytes > 48 << 10 && partial.grid[0] == 12);
    assert!(sum.args.iter().all(|a| a.map.is_none()), "{sum:?}");
    assert_eq!(job.workspaces, [2 * 256 * 192 * 4]);
    // The maps fit their buffers.
    let bytes = [256 * 512 * 2, 512 * 192 * 2];
    for (argument, bytes) in partial.args.iter().zip(bytes) {
        assert_eq!(argument.map.as_ref().unwrap().check(bytes), Ok(()));
        assert!(argument.map.as_ref().unwrap().check(bytes - 1).is_err());
    }
    let (number, blobs): (u64, [&[u8]; 2]) = (7, [b"support", b"\n{}"]);
    let bytes = encode(number, What::Measure(Box::new(job.clone())), &blobs).unwrap();
    let (Request { number: got, what: What::Measure(read), .. }, back) =
        read_request(&mut &bytes[..]).unwrap().unwrap()
    else {
        panic!("another request")
    };
    assert_eq!((got, back), (number, blobs.map(<[u8]>::to_vec).to_vec()));
    assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&job).unwrap());
}

#[test]
fn tolerances_are_those_of_how_a_candidate_multiplies() {
    let problem = operators::parse("gemm:256,192,512,f32,NT").unwrap();
    let tf32 = subject(&problem, WgmmaPlan { tile: [128, 64, 32], ..plan(3, 1) });
    let of = |problem: &Problem, ready: Option<&Ready>| job(problem, ready, &Ask::default()).tolerances;
    let ready = Ready::of(&problem, &tf32);
    let [a, b, c] = of(&problem, Some(&ready))[..] else { panic!("three parameters") };
    assert!(a == 0.0 && b == 0.0 && c > 1e-3);
    // Small whole numbers are not rounded, and their sums are exact.
    assert_eq!(job(&problem, Some(&ready), &Ask { whole: true, ..Ask::default() }).tolerances, [0.0; 3]);
    assert!(of(&problem, None)[2] < 1e-5);
    // The library rounds to tf32 where the problem lets it.
    assert!(of(&operators::parse("gemm:256,192,512,tf32,NT").unwrap(), None)[2] > 1e-3);
    let whole = operators::parse("gemm:256,192,512,i8,NT").unwrap();
    assert_eq!(of(&whole, None), [0.0; 3]);
}

#[test]
fn a_problem_has_its_parameters_and_a_reference_in_double_precision() {
    let problem = operators::parse("gemm:64,48,32,bf16,NT,out=bf16,bias,gelu").unwrap();
    let made = job::of_problem(&problem.program, &Plain::of(&problem.program).unwrap(), "hash");
    let params: Vec<(&str, DType, u64, bool)> =
        made.params.iter().map(|p| (p.name.as_str(), p.dtype, p.elements, p.written)).collect();
    let expected = [
        ("A", DType::BF16, 64 * 32, false),
        ("B", DType::BF16, 48 * 32, false),
        ("bias", DType::BF16, 48, false),
        ("D", DType::BF16, 64 * 48, true),
    ];
    assert_eq!(params, expected);
    // Sums, bias and gelu, each in a launch, of one thread per result, with what stands between them in f64.
    assert_eq!(made.workspaces, [64 * 48 * 8; 2]);
    for launch in &made.reference {
        assert_eq!((launch.grid, launch.block), ([12, 1, 1], [256, 1, 1]), "{launch:?}");
        assert!(launch.args.iter().all(|a| a.map.is_none()));
    }
    assert_eq!(made.reference.first().unwrap().args[..2].iter().map(|a| a.buffer).collect::<Vec<_>>(), {
        [Argument::Param(0), Argument::Param(1)]
    });
    assert_eq!(made.reference.last().unwrap().args.iter().filter(|a| a.buffer == Argument::Param(3)).count(), 1);
}

#[test]
fn each_problem_is_compared_with_what_there_is() {
    let of = |name: &str| {
        let work = crate::source::load_work(name).unwrap();
        let found = opponent::of(work.workload()).unwrap_or_else(|e| panic!("{name}: {e}"));
        (found.what, found.whole, found.job)
    };
    let job = |params, tf32, strides| ProductJob { params, extents: [1, 16, 8, 32], strides, tf32, f16_sums: false };
    let product = |params, tf32, strides| LibraryJob::Product(job(params, tf32, strides));
    let nn = [[0, 32, 0, 1], [0, 0, 1, 8], [0, 8, 1, 0]];
    let nt = [nn[0], [0, 0, 32, 1], nn[2]];
    assert_eq!(of("gemm:16,8,32,f32"), ("cuBLAS", true, product([0, 1, 2], false, nn)));
    assert_eq!(of("gemm:16,8,32,tf32,NT"), ("cuBLAS with TF32", true, product([0, 1, 2], true, nt)));
    assert_eq!(of("gemm:16,8,32,e4m3,NT"), ("cuBLASLt", true, product([0, 1, 2], false, nt)));
    // A rounded result is the library's own, and what it does not have is left out.
    assert_eq!(of("gemm:16,8,32,f16,NT,out=f16"), ("cuBLAS", true, product([0, 1, 2], false, nt)));
    let halves = LibraryJob::Product(ProductJob { f16_sums: true, ..job([0, 1, 2], false, nt) });
    assert_eq!(of("gemm:16,8,32,f16,NT,sum=f16"), ("cuBLAS", true, halves));
    let alone = ("cuBLAS, the product alone", false, product([0, 1, 2], false, nn));
    assert_eq!(of("gemm_bias_relu:16,8,32,bf16"), alone);
    let (what, whole, job) = of("conv2d:1,4,4,4,8,3,3,f32,pad=1");
    assert_eq!((what, whole), ("cuBLAS, a product of matrices of its size", false));
    let LibraryJob::Product(ProductJob { extents, .. }) = job else { panic!("{job:?}") };
    assert_eq!(extents, [1, 16, 8, 36]);
    let rows = LibraryJob::Rows { params: [0, 1, 2], rows: 64, columns: 128 };
    assert_eq!(of("gemv:64,128,f32"), ("cuBLAS (cublasSgemv)", true, rows));
    for (name, bytes) in [("gemv:64,128,f16", 64 * 128 * 2 + 128 * 2 + 64 * 4), ("softmax:64,128,f32", 64 * 128 * 8)] {
        assert_eq!(of(name), ("a copy of the least bytes", false, LibraryJob::Copy { bytes }));
    }
}
