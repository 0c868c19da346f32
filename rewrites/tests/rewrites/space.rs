//! The space of a contraction: it saturates, every rule fires, and it is large.
use satune_ir::term::*;
use satune_ir::DType;
use satune_rewrites::space::*;

fn gemm(m: i64, n: i64, k: i64) -> Contraction {
    Contraction::gemm(None, [m, n, k], DType::F32, DType::F32, [false; 2])
}

const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };

fn count(space: &Space) -> f64 {
    let order = space.bottom_up();
    assert!(!order.is_empty(), "the space has a cycle");
    let mut counts = std::collections::HashMap::new();
    for class in order {
        let mut sum = 0.0;
        for node in space.choices(class) {
            sum += egg::Language::children(node).iter().map(|c| counts[&space.egraph.find(*c)]).product::<f64>();
        }
        counts.insert(class, sum);
    }
    counts[&space.root]
}

#[test]
fn the_space_of_a_large_gemm_is_large_and_saturates() {
    for size in [1024, 16384] {
        let c = gemm(size, size, size);
        let menu = Menu::of(&c, &H200);
        let space = saturate(&c, H200, &menu, &rules::all(), Fuel::default()).unwrap();
        assert_eq!(space.report.stopped_by, StoppedBy::Saturated);
        let order = space.bottom_up();
        println!("reachable classes {}", order.len());
        let mut by_stage = std::collections::BTreeMap::new();
        for c in space.egraph.classes() {
            let e = by_stage
                .entry(
                    format!("{:?}", c.data.stage).split(|ch: char| !ch.is_alphanumeric()).next().unwrap().to_string(),
                )
                .or_insert((0, 0));
            e.0 += 1;
            e.1 += c.nodes.len();
        }
        println!("{by_stage:?}");
        println!("{size}: {:?} {:e}", space.report, count(&space));
        assert!(count(&space) > 1e12);
        for (rule, firings) in &space.report.firings {
            assert!(*firings > 0 || *rule == "outer reduction loop", "{rule} never fires");
        }
    }
}
