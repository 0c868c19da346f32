//! Checks a CUDA kernel that Satune did not write: for those who write their own. Needs NVRTC (`scripts/fetch-cuda`), and no GPU.
//!
//! ```text
//! cargo run --example check_kernel
//! ```
//!
//! Prints what is wrong with a kernel that lacks a barrier, with the lines of its text; then that of the same kernel with the
//! barrier nothing is. `satune check my.cu --launch ".."` does the same for a file.
use satune::compile::{Compiler, Job};
use satune::execute::{check, LaunchWords, Request};
use std::error::Error;

/// Each block reverses its 64 elements by way of shared memory.
const KERNEL: &str = r#"
extern "C" __global__ void reverse(const float *x, float *y) {
    __shared__ float tile[64];
    int first = blockIdx.x * 64;
    tile[threadIdx.x] = x[first + threadIdx.x];
    // barrier
    y[first + threadIdx.x] = tile[63 - threadIdx.x];
}
"#;

const LAUNCH: &str = "grid=4, block=64, args=(x: in f32[256], y: out f32[256])";

fn main() -> Result<(), Box<dyn Error>> {
    satune::worker();
    let compiler = Compiler::of_this_program()?;
    let launch: LaunchWords = LAUNCH.parse()?;
    for source in [KERNEL.to_string(), KERNEL.replace("// barrier", "__syncthreads();")] {
        let compiled =
            compiler.compile(&Job { name: "reverse".into(), source: source.clone(), arch: "sm_80".into() })?;
        let request =
            Request { ptx: &compiled.ptx, source: &source, launch: &launch, blocks: 0, seed: 0, budget: 1_000_000 };
        let findings = check(&request)?;
        for fault in &findings.faults {
            println!("line {}: {}: {}\n    {}", fault.line, fault.thread, fault.what, fault.text);
        }
        println!("{} of {} blocks run, clean: {}", findings.blocks_run, findings.blocks, findings.clean());
    }
    Ok(())
}
