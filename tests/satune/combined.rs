//! Contractions that combine something else than products: they have the schedules of a product on single threads, and are right.
use crate::extraction::{counts_agree, quick, small_menu, Steps};
use crate::support::*;
use rand::SeedableRng;
use satune::source::{self, Work};
use satune_extract::{best, cost, predict, Counts, Descriptor, Query};
use satune_ir::term::*;
use satune_ir::tvmscript;
use satune_rewrites::space::{rules, saturate, Fuel, Menu};
use std::collections::HashSet;
use std::process::Command;

/// What is combined, with `{a}`, `{b}`, `{c}` for the elements.
#[derive(Clone, Copy)]
struct Combination {
    name: &'static str,
    init: &'static str,
    update: &'static str,
    /// Types of the operands and of the result.
    types: [&'static str; 2],
}

const F32: [&str; 2] = ["float32", "float32"];
const LEAST: &str = "T.float32(-3.4028234663852886e+38)";
const MOST: &str = "T.float32(3.4028234663852886e+38)";

const PAIRWISE: Combination = Combination {
    name: "pairwise distance",
    init: "T.float32(0)",
    update: "{c} + ({a} - {b}) * ({a} - {b})",
    types: F32,
};
const MIN_PLUS: Combination =
    Combination { name: "min-plus", init: "T.float32(3.4e38)", update: "T.min({c}, {a} + {b})", types: F32 };
const MAX_OF_PRODUCTS: Combination =
    Combination { name: "max of products", init: LEAST, update: "T.max({c}, {a} * {b})", types: F32 };
/// 0, which stands beyond a ragged shape, is less than what is there.
const LEAST_SQUARES: Combination =
    Combination { name: "least squares", init: MOST, update: "T.min({c}, {a} * {a} + {b} * {b})", types: F32 };
/// What is added is not 0 where its elements are.
const SUM_OF_MORE: Combination =
    Combination { name: "sum of more", init: "T.float32(0)", update: "{c} + (T.abs({a} - {b}) + 1)", types: F32 };
const SUM_OF_EXP: Combination =
    Combination { name: "sum of exp", init: "T.float32(0)", update: "{c} + T.exp({a} - {b})", types: F32 };
const EXP_BY_EXP: Combination =
    Combination { name: "exp by exp", init: "T.float32(0)", update: "{c} + T.exp({a}) * T.exp({b})", types: F32 };

const COMBINATIONS: [Combination; 14] = [
    PAIRWISE,
    MIN_PLUS,
    MAX_OF_PRODUCTS,
    LEAST_SQUARES,
    SUM_OF_MORE,
    SUM_OF_EXP,
    EXP_BY_EXP,
    Combination {
        name: "max-plus",
        init: "T.float64(-1000)",
        update: "T.max({c}, {a} + {b})",
        types: ["float64", "float64"],
    },
    Combination {
        name: "L1 distance",
        init: "T.float32(0)",
        update: "{c} + T.abs(T.Cast(\"float32\", {a}) - T.Cast(\"float32\", {b}))",
        types: ["float16", "float32"],
    },
    Combination {
        name: "sum of maxima",
        init: "T.int32(0)",
        update: "{c} + T.max(T.Cast(\"int32\", {a}), T.Cast(\"int32\", {b}))",
        types: ["int8", "int32"],
    },
    Combination {
        name: "Hamming distance",
        init: "T.int32(0)",
        update: "{c} + T.popcount({a} ^ {b})",
        types: ["int32", "int32"],
    },
    Combination {
        name: "common bits",
        init: "T.int32(0)",
        update: "{c} + (T.Cast(\"int32\", {a}) & T.Cast(\"int32\", {b}))",
        types: ["int8", "int32"],
    },
    Combination { name: "halves", init: "T.float32(0)", update: "{c} + {a} * {b} * T.float32(0.5)", types: F32 },
    Combination { name: "product from 1 on", init: "T.float32(1)", update: "{c} + {a} * {b}", types: F32 },
];

impl Combination {
    /// A program of m x n x k; `transposed`: A is stored as k x m, and B as k x n.
    fn script(&self, [m, n, k]: [i64; 3], transposed: bool) -> String {
        let (shapes, at) = match transposed {
            false => ([[m, k], [n, k]], ["A[vi, vk]", "B[vj, vk]"]),
            true => ([[k, m], [k, n]], ["A[vk, vi]", "B[vk, vj]"]),
        };
        let [a, b] = shapes.map(|[rows, columns]| format!("({rows}, {columns}), \"{}\"", self.types[0]));
        let update = self.update.replace("{a}", at[0]).replace("{b}", at[1]).replace("{c}", "C[vi, vj]");
        format!(
            r#"@T.prim_func(s_tir=True)
def main(A: T.Buffer({a}), B: T.Buffer({b}), C: T.Buffer(({m}, {n}), "{}")):
    for i, j, k in T.grid({m}, {n}, {k}):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = {}
            C[vi, vj] = {update}
"#,
            self.types[1], self.init
        )
    }

    fn problem(&self, extents: [i64; 3], transposed: bool) -> satune::operators::Problem {
        match source::work_of_script(self.name, &self.script(extents, transposed)) {
            Ok(Work::Contraction(problem)) => *problem,
            Ok(Work::Streams(problem)) => panic!("{}: {:?}", self.name, problem.asked.notes),
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    fn contraction(&self, extents: [i64; 3], transposed: bool) -> Contraction {
        self.problem(extents, transposed).contraction
    }
}

/// The whole way of the command, with NVRTC and the execution of its texts where they are there: something is ranked, nothing is
/// refused, and the results are right. Six of them each run, others with another `SATUNE_SEED`.
#[test(slow)]
fn combinations_are_explored_and_right() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    for (number, combination) in some_of(COMBINATIONS.iter().enumerate(), 6) {
        let extents = [[33, 35, 37], [100, 70, 50], [64, 48, 32]][number % 3];
        let gpu = ["h200", "t4"][number % 2];
        let path = folder.path().join("combined.py");
        std::fs::write(&path, combination.script(extents, number % 4 > 1)).unwrap();
        let args = ["--gpu", gpu, "--top", "2", "--json", "--out", out.to_str().unwrap()];
        let run = Command::new(env!("CARGO_BIN_EXE_satune")).arg("explore").arg(&path).args(args).output().unwrap();
        let told = || format!("{} on {gpu}: {}", combination.name, String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{}", told());
        let report: satune::explore::Report = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(report.candidates.len(), 2, "{}", told());
        assert!(report.bugs.is_empty() && report.rejected.is_empty(), "{}", told());
        assert!(report.candidates.iter().all(|c| matches!(c.plan, Schedule::Cores(_))), "{}", told());
    }
}

/// Random schedules of ragged problems, as the interpreter and the simulator see them. Where 0 is not neutral a guard that was
/// left out would be seen.
#[test]
fn random_schedules_of_ragged_combinations_are_right() {
    let all = [PAIRWISE, LEAST_SQUARES, SUM_OF_MORE, MAX_OF_PRODUCTS];
    for (number, combination) in some_of(all.iter().enumerate(), 1) {
        let extents = [[33, 35, 37], [100, 70, 50]][number / 2];
        let problem = combination.problem(extents, number % 2 == 1);
        sampled_schedules_are_right(&problem.program, &problem.contraction, 4);
    }
}

/// A reduction is taken apart where `rfactor` takes it: it begins with the neutral element.
#[test(slow)]
fn parts_of_k_are_combined_by_the_operation() {
    for (combination, splits) in [(PAIRWISE, true), (MAX_OF_PRODUCTS, true), (LEAST_SQUARES, true), (MIN_PLUS, false)] {
        let problem = combination.problem([16, 24, 256], false);
        let c = &problem.contraction;
        assert_eq!(c.combine.as_ref().unwrap().splits, splits, "{}", combination.name);
        let space = space(c);
        let in_parts = |space: &Space, parts: bool| {
            let of = |node: &Term| matches!(node, Term::Loop { axis: Axis::K, role: Role::Block, .. });
            let part = space.restricted(&|_, node| !of(node) || parts);
            Counts::of(&part).total()
        };
        assert_eq!(in_parts(&space, true) > in_parts(&space, false), splits, "{}", combination.name);
        if !splits {
            continue;
        }
        let counts = Counts::of(&space);
        let mut rng = rand::rngs::StdRng::seed_from_u64(3);
        let mut draw = || CoresPlan::from_term(&counts.sample(&space, &mut rng).unwrap(), c).unwrap();
        let mut found = 0;
        while found < 3 {
            let plan = draw();
            if plan.split_k > 1 {
                let made = satune::scheduled::of_plan(&problem.program, &plan, c, &h200()).unwrap();
                let checked = satune::scheduled::check(&problem.program, &made, 5);
                checked.unwrap_or_else(|e| panic!("{}: {e}\n{}", combination.name, plan.describe().join("\n")));
                is_read_back(&made.program, &problem.program, c, &plan);
                found += 1;
            }
        }
    }
}

/// A step of two instructions takes about twice the time of a product's.
#[test(slow)]
fn combinations_take_the_time_of_their_instructions() {
    let gpu = Descriptor::load("h200").unwrap();
    let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    let ms = |c: &Contraction| {
        let found = best(&space(c), &gpu, query);
        assert!(found.proved);
        found.candidates[0].cost.ms
    };
    let extents = [4096; 3];
    let product = ms(&gemm(None, 4096, 4096, 4096, satune_ir::DType::F32, satune_ir::DType::F32, "NT"));
    for combination in some_of([PAIRWISE, MIN_PLUS], 1) {
        let ratio = ms(&combination.contraction(extents, false)) / product;
        assert!((1.5..=2.2).contains(&ratio), "{}: {ratio:.2} times the product", combination.name);
    }
}

/// What is computed of one operand alone is computed once for each element that is read; what occurs twice, once.
#[test]
fn instructions_are_counted_once() {
    let of = |combination: Combination| *combination.contraction([64, 48, 32], false).combine.unwrap();
    let count = |multiply_adds, logic, special| Instructions { multiply_adds, logic, special };
    let none = count(0, 0, 0);
    for (combination, step, sided, operations) in [
        (PAIRWISE, count(2, 0, 0), [none; 2], 3),
        (MIN_PLUS, count(1, 1, 0), [none; 2], 2),
        (MAX_OF_PRODUCTS, count(1, 1, 0), [none; 2], 2),
        (LEAST_SQUARES, count(1, 1, 0), [count(1, 0, 0); 2], 4),
        (SUM_OF_EXP, count(2, 0, 1), [none; 2], 3),
        (EXP_BY_EXP, count(1, 0, 0), [count(0, 0, 1); 2], 4),
        (COMBINATIONS[8], count(2, 0, 0), [count(0, 1, 0); 2], 3),
        (COMBINATIONS[12], count(2, 0, 0), [none; 2], 3),
        (COMBINATIONS[13], count(1, 0, 0), [none; 2], 2),
    ] {
        let found = of(combination);
        let counted = (found.step, found.sided, found.operations);
        assert_eq!(counted, (step, sided, operations), "{}", combination.name);
    }
}

#[test(slow)]
fn the_models_counts_of_combinations_are_the_simulators() {
    let gpu = Descriptor::load("h200").unwrap();
    let [pairwise, min_plus] = [PAIRWISE, MIN_PLUS].map(|c| c.contraction([512, 256, 256], false));
    // The text has the difference twice; both operations of the other are arithmetic.
    let cases: [(&Contraction, Steps); 3] =
        [(&pairwise, |s| s.fma), (&pairwise, |s| s.arithmetic / 2), (&min_plus, |s| s.arithmetic / 2)];
    for (c, steps) in some_of(cases, 1) {
        let space = space(c);
        let found = best(&space, &gpu, Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        let counts = Counts::of(&space);
        let mut rng = rand::rngs::StdRng::seed_from_u64(17);
        let random: Vec<CoresPlan> = (0..3).map(|_| quick(|| counts.sample(&space, &mut rng), c)).collect();
        let all = found.candidates.iter().filter_map(|c| c.plan.cores().cloned()).chain(random);
        // The second kernel of parts combines, too.
        all.filter(|plan| plan.split_k == 1).for_each(|plan| counts_agree(&plan, c, steps));
    }
}

#[test(slow)]
fn extraction_of_combinations_equals_brute_force() {
    let gpu = Descriptor::load("rtx3090").unwrap();
    let mut tried = 0;
    for i in 0..60 {
        let combination = [PAIRWISE, EXP_BY_EXP, LEAST_SQUARES, SUM_OF_EXP][i as usize % 4];
        let c = combination.contraction([8 + 8 * (i % 3), 16, 16], i % 2 == 0);
        let space = saturate(&c, H200, &small_menu(i), &rules::all(), Fuel::default()).unwrap();
        let counted: u64 = Counts::of(&space).total().try_into().unwrap_or(u64::MAX);
        if counted == 0 || counted > 20_000 {
            continue;
        }
        let plans: HashSet<CoresPlan> =
            space.programs(space.root).iter().map(|t| CoresPlan::from_term(t, &c).unwrap()).collect();
        let mut times: Vec<f64> = plans.iter().filter_map(|p| cost(p, &c, &gpu).ok()).map(|c| c.ms).collect();
        times.sort_by(f64::total_cmp);
        let found = best(&space, &gpu, Query { k: 5, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        assert!(found.proved);
        let got: Vec<f64> = found.candidates.iter().map(|c| c.cost.ms).collect();
        assert_eq!(got.len(), times.len().min(5));
        for (got, want) in got.iter().zip(&times) {
            assert!((got - want).abs() <= 1e-12 * want, "menu {i}, {}: {got} is not {want}", combination.name);
        }
        tried += 1;
    }
    assert!(tried >= 10, "only {tried} spaces were small enough");
}

/// What ends a chain of maps, and what has a batch, is one kernel, as it is of a product.
#[test(slow)]
fn combinations_have_epilogues_and_batches() {
    let distances = PAIRWISE.script([48, 40, 24], false).replace("C: T.Buffer", "D: T.Buffer").replacen(
        "    for i, j, k",
        "    C = T.sblock_alloc_buffer((48, 40), \"float32\")\n    for i, j, k",
        1,
    ) + r#"    for i, j in T.grid(48, 40):
        with T.sblock("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(2))
"#;
    let batched = r#"@T.prim_func(s_tir=True)
def main(A: T.Buffer((3, 20, 24), "float32"), B: T.Buffer((3, 18, 24), "float32"), C: T.Buffer((3, 20, 18), "float32")):
    for b, i, j, k in T.grid(3, 20, 18, 24):
        with T.sblock("C"):
            vb, vi, vj, vk = T.axis.remap("SSSR", [b, i, j, k])
            with T.init():
                C[vb, vi, vj] = T.float32(0)
            C[vb, vi, vj] = C[vb, vi, vj] + T.max(A[vb, vi, vk], B[vb, vj, vk])
"#;
    for script in [&distances, batched] {
        let Ok(Work::Contraction(problem)) = source::work_of_script("test.py", script) else { panic!("{script}") };
        assert!(problem.contraction.combine.is_some());
        sampled_schedules_are_right(&problem.program, &problem.contraction, 4);
        let gpu = Descriptor::load("h200").unwrap();
        let space = space(&problem.contraction);
        let found = best(&space, &gpu, Query { k: 2, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        for candidate in &found.candidates {
            let checked = satune::explore::check(&candidate.plan, &problem.contraction, &h200(), &|| true);
            checked.unwrap_or_else(|e| panic!("{e}\n{}", candidate.plan.describe().join("\n")));
        }
    }
}

/// What no such space takes is told why, and left to streaming kernels.
#[test]
fn other_updates_are_told_apart() {
    let whole = ["int32", "int32"];
    let of = |update, init, types| Combination { name: "other", init, update, types };
    for (combination, why) in [
        (of("{c} + T.abs({a} - A[vj, vk])", "T.float32(0)", F32), "both factors are the same buffer"),
        (of("{c} + {a} * {b} * {a} * A[vj, vk]", "T.float32(0)", F32), "but 3 in all"),
        (of("{c} * ({a} + {b})", "T.float32(1)", F32), "no sum, min or max"),
        (of("{c} + {a} // {b}", "T.int32(0)", whole), "divides integers"),
        (of("{c} + ({a} - {b}) * vk", "T.int32(0)", whole), "depends on iterator `vk`"),
        (of("T.min({a} + {b}, {c})", "T.float32(1)", F32), "must stand before"),
    ] {
        let script = combination.script([16, 16, 16], false);
        let told = satune_rewrites::space::contraction(&tvmscript::parse(&script).unwrap()).unwrap_err().to_string();
        assert!(told.contains(why), "{}: {told}", combination.update);
        let work = source::work_of_script("other.py", &script);
        assert!(matches!(work, Ok(Work::Streams(_))), "{}: {work:?}", combination.update);
    }
}

/// A product is what it was: no word of it is written, and no tensor-core schedule is lost or won.
#[test]
fn products_are_no_combinations() {
    let product = satune::operators::parse("gemm:64,64,64,f16,NT").unwrap();
    assert!(product.contraction.combine.is_none());
    assert!(!serde_json::to_string(&product.contraction).unwrap().contains("combine"));
    let halves = Combination { types: ["float16", "float32"], ..COMBINATIONS[12] };
    let update = "{c} + T.Cast(\"float32\", {a}) * T.Cast(\"float32\", {b}) * T.float32(0.5)";
    let halves = Combination { update, ..halves }.contraction([64; 3], false);
    let gpu = Descriptor::load("h200").unwrap();
    assert!(tensor::Gemm::of(&product.contraction).is_ok() && tensor::Gemm::of(&halves).is_err());
    let plan = Schedule::Cores(best_plan(&halves, &gpu));
    // The same schedule of a product takes no longer.
    let [combined, plain] = [&halves, &product.contraction].map(|c| predict(&plan, c, &gpu).unwrap().ms);
    assert!(combined > plain, "{combined} {plain}");
}

fn best_plan(c: &Contraction, gpu: &Descriptor) -> CoresPlan {
    let space = saturate(c, H200, &Menu::of(c, &H200), &rules::all(), Fuel::default()).unwrap();
    let found = best(&space, gpu, Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
    found.candidates[0].plan.cores().unwrap().clone()
}
