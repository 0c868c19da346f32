use super::*;
use crate::device::protocol::{encode, read_request, Request};
use crate::operators::{self, Problem};
use satune_extract::{predict, Candidate, Descriptor};
use satune_ir::term::tensor::WgmmaPlan;
use satune_ir::term::Term;

/// A candidate on `wgmma`, as it comes to a device.
fn subject(problem: &Problem, plan: WgmmaPlan) -> Subject {
    let gpu = Descriptor::load("h200").unwrap();
    let plan = Schedule::Wgmma(plan);
    let cost = predict(&plan, &problem.contraction, &gpu).unwrap();
    let candidate: Candidate<Term> = Candidate { term: Default::default(), plan, cost };
    Subject::of(&candidate, problem, &gpu).unwrap()
}

fn plan(stages: u32, split_k: i64) -> WgmmaPlan {
    WgmmaPlan { split_k, ..WgmmaPlan::plain([128, 64, 64], 2, stages) }
}

#[test]
fn a_job_says_which_arguments_are_tensor_maps_and_passes_unchanged() {
    let problem = operators::parse("gemm:256,192,512,bf16,NN").unwrap();
    let made = subject(&problem, plan(3, 2));
    let job = job(&problem, Some(&made), &Ask::default());
    // The partial products, then their sum.
    let [partial, sum] = &job.kernels[..] else { panic!("{:?}", job.kernels) };
    let map = |dims: [u64; 2], tile: [u32; 2]| {
        let (dtype, strides) = (DType::BF16, vec![dims[0] * 2]);
        Some(Map { dtype, dims: dims.to_vec(), strides, tile: tile.to_vec(), swizzle: true })
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
    let tolerance = |subject: Option<&Subject>| job(&problem, subject, &Ask::default()).tolerance;
    assert!(tolerance(Some(&tf32)) > 1e-3 && tolerance(None) < 1e-4);
    let whole = operators::parse("gemm:256,192,512,i8,NT").unwrap();
    assert_eq!(job(&whole, None, &Ask::default()).tolerance, 0.0);
    // The reference is the product alone.
    let fused = operators::parse("gemm_bias_relu:64,64,64,f32").unwrap();
    assert!(job(&fused, None, &Ask::default()).contraction.is_none());
}
