//! Counts a space of schedules, draws from it evenly, and ranks nothing: for those who study search. Needs no GPU.
//!
//! ```text
//! cargo run --example sample -- gemm:1024,1024,1024,f32 h200
//! ```
//!
//! Prints how many schedules there are, exactly; how the predicted times of 200 of them lie, drawn with equal probability; the
//! schedule in the middle; and how many times the proved best is faster. Both arguments may be left out.
use rand::{rngs::StdRng, SeedableRng};
use satune::workload::{Explorable, Workload};
use satune::{operators, Descriptor};
use satune_extract::{best, Counts, Query};
use satune_ir::term::Schedule;
use std::error::Error;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let problem = operators::parse(&arguments.next().unwrap_or("gemm:256,256,256,f32".into()))?;
    let gpu = Descriptor::load(&arguments.next().unwrap_or("h200".into()))?;
    let space = problem.space(&gpu)?;
    let counts = Counts::of(&space);
    println!("{} schedules in {} e-nodes", counts.total(), space.report.nodes);
    let mut random = StdRng::seed_from_u64(1);
    let mut drawn = Vec::new();
    for _ in 0..200 {
        let term = counts.sample(&space, &mut random).ok_or("the space is empty")?;
        let schedule = Schedule::from_term(&term, &problem.contraction)?;
        // Some need more registers than there are: the space leaves these to the prediction.
        if let Ok(cost) = problem.predict(&schedule, &gpu) {
            drawn.push((cost.ms, schedule));
        }
    }
    drawn.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("{} of 200 drawn can run", drawn.len());
    for percent in [0, 25, 50, 75] {
        let (ms, _) = drawn.get(drawn.len() * percent / 100).ok_or("none of them can run")?;
        println!("{percent:3}% of them are faster than {ms:.4} ms");
    }
    let (median, schedule) = &drawn[drawn.len() / 2];
    schedule.describe().iter().for_each(|line| println!("    {line}"));
    let query = Query { k: 1, diverse: false, limit: Duration::from_secs(60), below_ms: f64::INFINITY };
    let found = best(&space, &gpu, query);
    let first = found.candidates.first().ok_or("nothing was found")?;
    println!(
        "the best takes {:.4} ms (proved: {}), {:.0} times less",
        first.cost.ms,
        found.proved,
        median / first.cost.ms
    );
    Ok(())
}
