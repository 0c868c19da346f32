//! Streaming programs, from the operator to simulated kernels.
use rand::rngs::StdRng;
use rand::SeedableRng;
use satune::scheduled;
use satune::streaming;
use satune_extract::stream::stream_work;
use satune_extract::{Counts, Descriptor};
use satune_ir::term::stream::{StreamPlan, StreamTerm, Streams};
use satune_ir::term::Space;
use satune_ir::{tvmscript, Program};
use satune_rewrites::space::stream::{rules, streams, StreamMenu};
use satune_rewrites::space::{saturate, Fuel};

fn problem(operator: &str) -> (Program, Streams) {
    let program = tvmscript::parse(&streaming::script(operator).unwrap()).unwrap();
    let problem = streams(&program).unwrap();
    (program, problem)
}

fn space(problem: &Streams, gpu: &Descriptor, menu: &StreamMenu) -> Space<StreamTerm> {
    saturate(problem, satune::explore::limits(gpu), menu, &rules::all(), Fuel::default()).unwrap()
}

#[test]
fn random_schedules_run_and_their_sectors_are_counted_exactly() {
    let gpu = Descriptor::load("h200").unwrap();
    let options = scheduled::options(&gpu);
    for operator in [
        "rowsum:64,1000,f32",
        "mean:64,4096,f32",
        "softmax:64,1000,f32",
        "softmax:64,1024,f16",
        "gemv:64,2048,f32",
        "transpose:96,200,f32",
        "transpose:128,128,f16",
        "relu_chain:64,1000,f32",
    ] {
        let (program, problem) = problem(operator);
        let space = space(&problem, &gpu, &StreamMenu::default());
        let counts = Counts::of(&space);
        let mut random = StdRng::seed_from_u64(1);
        println!("{operator}: {} schedules", counts.total());
        let mut failed = Vec::new();
        for _ in 0..12 {
            let term = counts.sample(&space, &mut random).unwrap();
            let plan = StreamPlan::from_term(&term, &problem).unwrap();
            let small = streaming::shrink(&program, &plan, &problem);
            let small_problem = streams(&small).unwrap();
            let text = plan.describe().join("\n");
            let checked = match streaming::check(&program, &plan, &problem, &options) {
                Ok(checked) => checked,
                Err(fault) => {
                    failed.push(format!("{fault}\n{text}"));
                    continue;
                }
            };
            let work = stream_work(&plan, &small_problem);
            assert_eq!(work.len(), checked.len(), "{operator}");
            for (w, c) in work.iter().zip(&checked) {
                let expected = (c.total.global_load_sectors as f64, c.total.global_store_sectors as f64);
                if (w.load_sectors, w.store_sectors) != expected {
                    failed.push(format!("sectors {:?} {expected:?}\n{text}", (w.load_sectors, w.store_sectors)));
                }
            }
        }
        assert!(failed.is_empty(), "{operator}: {} of 12:\n{}", failed.len(), failed.join("\n---\n"));
    }
}
