//! Published measurements beside the model: what is reached of it, and what is not. Rows of libraries, and bounds, take searches:
//! `--ignored` makes them.
use satune::published::{bounds, judge, Judging};
use satune_extract::published::{sets, Verdict};
use satune_extract::Descriptor;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(600);

fn judged(known_only: bool) -> Vec<Verdict> {
    let verdicts = judge(Judging { known_only, limit: LIMIT }, &|_, _| true).unwrap();
    for v in &verdicts {
        println!("{}: error {:.3}x, bias {:.3}x, {:?}", v.set, v.error, v.bias, v.by_mechanism);
        for row in &v.rows {
            println!("  {:>6.3} {:<14} {}", row.ratio(), row.mechanism, row.name);
        }
    }
    verdicts
}

fn of<'v>(verdicts: &'v [Verdict], set: &str) -> &'v Verdict {
    verdicts.iter().find(|v| v.set == set).unwrap()
}

#[test]
fn schedules_that_were_measured_are_predicted() {
    let verdicts = judged(true);
    // The staircase of SGEMM: each stage within 30%, in the right order.
    let staircase = of(&verdicts, "sgemm-staircase");
    assert_eq!(staircase.rows.len(), 8);
    assert!(staircase.rows.iter().all(|r| r.holds()), "{staircase:#?}");
    assert!(staircase.out_of_order.is_empty() && staircase.error < 1.2, "{staircase:#?}");
    assert!(staircase.wrong_gains.is_empty(), "{staircase:#?}");
    let ladder = of(&verdicts, "wgmma-ladder");
    assert!(ladder.rows.iter().all(|r| r.holds()), "{ladder:#?}");
    assert!(ladder.out_of_order.is_empty() && ladder.error <= 1.08, "{ladder:#?}");
}

#[test]
fn a_librarys_time_is_known_of_what_was_measured_and_of_nothing_else() {
    let gpu = |name: &str| Descriptor::load(name).unwrap();
    let (library, ms) = satune::published::library("gemm:4096,4096,4096,f32", &gpu("h100")).unwrap();
    assert!(library == "cuBLAS" && (ms / (2.0 * 4096.0_f64.powi(3) / 51.9e12 * 1e3) - 1.0).abs() < 1e-9, "{ms}");
    for (operator, name) in [
        ("gemm:4096,4096,4096,f32", "v100"),
        ("gemm:4096,4096,4096,f32,TN", "h100"),
        // A known schedule, and a library at a locked clock, are no library as it runs.
        ("gemm:16384,16384,16384,f32,TN", "rtx3090"),
    ] {
        assert_eq!(satune::published::library(operator, &gpu(name)), None, "{operator} on {name}");
    }
}

#[test]
#[ignore = "searches whole spaces: minutes"]
fn no_measured_schedule_is_faster_than_what_its_space_is_proved_to_reach() {
    for set in sets().unwrap().iter().filter(|set| set.rows.iter().any(|row| row.plan.is_some())) {
        let spread = set.rows.iter().map(|row| row.within).fold(0.0, f64::max);
        for (operator, bound, measured) in bounds(set, LIMIT).unwrap() {
            println!("{operator} on {}: bound {bound:.4} ms, fastest measured {measured:.4}", set.gpu);
            assert!(bound <= measured * (1.0 + spread), "{operator}: {bound} {measured}");
        }
    }
}

#[test]
#[ignore = "searches whole spaces: minutes"]
fn libraries_are_near_the_best_of_the_space() {
    let verdicts = judged(false);
    for verdict in &verdicts {
        assert!(verdict.rows.iter().all(|r| r.holds()), "{verdict:#?}");
    }
    // Boards of 70 W are throttled throughout: each row within 25%, and no set of a library off by more than that.
    let errors =
        [("cublas-h100", 1.08), ("cublas-h200", 1.08), ("cublas-a100", 1.08), ("cublas-l4", 1.2), ("cublas-t4", 1.2)];
    for (set, most) in errors {
        assert!(of(&verdicts, set).error <= most, "{set}: {:.3}", of(&verdicts, set).error);
    }
}
