//! Explores an operator for a GPU, and writes the best schedule's CUDA. Needs no GPU and no CUDA toolkit.
//!
//! ```text
//! cargo run --example explore -- gemm:512,512,512,f32,NT a100 > best.cu
//! ```
//!
//! Prints, as comments, how many schedules there are, whether the best are proved, the best three with what binds them, and the
//! loops of the first; then the CUDA text of its kernels. Both arguments may be left out. The first may also be the path of a
//! Python file with a PrimFunc.
use satune::explore::Request;
use satune::progress::Quiet;
use satune::{cuda, source, Descriptor};
use satune_rewrites::space::Fuel;
use std::error::Error;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let work = source::load_work(&arguments.next().unwrap_or("gemm:512,512,512,f32,NT".into()))?;
    let gpu = Descriptor::load(&arguments.next().unwrap_or("a100".into()))?;
    let request = Request {
        gpu: gpu.clone(),
        top: 3,
        twins: false,
        limit: Duration::from_secs(60),
        compile: false,
        fuel: Fuel::default(),
    };
    let report = work.explore_on(&request, None, &Quiet)?;
    println!("// {} schedules, best proved: {}", report.space.schedules, report.proved_optimal);
    for candidate in &report.candidates {
        println!("// {} {:.4} ms, bound by {}", candidate.id, candidate.predicted_ms, candidate.bottleneck);
    }
    let best = report.candidates.first().ok_or("nothing was found")?;
    best.schedule.iter().for_each(|line| println!("//   {line}"));
    // From the decision to kernels: its trace of primitives is replayed on the program, and the result lowered.
    let problem = work.workload();
    let made = problem.scheduled(&best.plan, &problem.options(&best.plan, &gpu))?;
    made.module.kernels.iter().for_each(|kernel| println!("{}", cuda::print(kernel)));
    Ok(())
}
