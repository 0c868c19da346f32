//! Explores a product for a GPU and prints the best kernel: `cargo run --example explore`.
use satune::explore::{explore, Request};
use satune::progress::Quiet;
use satune::{operators, Descriptor};
use satune_rewrites::space::Fuel;
use std::error::Error;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let problem = operators::parse("gemm:512,512,512,f32,NT")?;
    let gpu = Descriptor::load("a100")?;
    let request =
        Request { gpu, top: 3, twins: false, limit: Duration::from_secs(60), compile: false, fuel: Fuel::default() };
    let report = explore(&problem, &request, &Quiet)?;
    println!("{} schedules, proved: {}", report.space.schedules, report.proved_optimal);
    for candidate in &report.candidates {
        println!("{} {:.4} ms, bound by {}", candidate.id, candidate.predicted_ms, candidate.bottleneck);
    }
    let best = &report.candidates[0];
    println!("{}", best.schedule.join("\n"));
    Ok(())
}
