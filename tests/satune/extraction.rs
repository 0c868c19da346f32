//! The k best are the k best.
use crate::support::*;
use satune_extract::{best, cost, Counts, Descriptor, Query};
use satune_ir::DType;
use std::time::Duration;

#[test]
fn a_large_gemm_is_extracted_and_proved() {
    let gpu = Descriptor::load("h200").unwrap();
    for size in [1024, 4096] {
        let c = gemm(None, size, size, size, DType::F32, DType::F32, "NN");
        let space = space(&c);
        let found = best(&space, &gpu, Query { k: 8, diverse: false, limit: Duration::from_secs(60) });
        println!(
            "{size}: {} programs, {:?}, proved {}, bound {}, outer {:?}",
            Counts::of(&space).total(),
            found.time,
            found.proved,
            found.bound_ms,
            found.outer
        );
        for candidate in found.candidates.iter().take(2) {
            println!("{:.4} {:#?} {:#?}", candidate.cost.ms, candidate.plan.describe(), candidate.cost);
        }
        assert!(found.proved);
        assert_eq!(found.candidates.len(), 8);
        for pair in found.candidates.windows(2) {
            assert!(pair[0].cost.ms <= pair[1].cost.ms);
        }
        let _ = cost(&found.candidates[0].plan, &c, &gpu).unwrap();
    }
}
