//! Each rule alone, and each side condition removed.
//!
//! A rule is used together with the fewest others that lead to whole programs. Random programs that contain a node of the
//! rule are turned into traces, replayed on the source, and compared with it by the interpreter. A rule without one of
//! its side conditions has to be caught: by the invariant of a class, by a primitive that refuses, by the interpreter, or
//! by the limits of the GPU. The conditions that only hardware minds (width and alignment of accesses, cp.async) are
//! removed in the end-to-end tests, which have a simulator.
use egg::{Id, Language, RecExpr};
use satune_ir::term::*;
use satune_ir::{interp, tvmscript, DType, Program};
use satune_rewrites::replay::replay;
use satune_rewrites::space::*;

const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };

const GEMM: &str = r#"
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(A: T.Buffer((M, K), "float32"), B: T.Buffer((K, N), "float32"), C: T.Buffer((M, N), "float32")):
    for i, j, k in T.grid(M, N, K):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"#;

/// Two reduction axes.
const DOUBLE: &str = r#"
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(A: T.Buffer((M, 3, K), "float32"), B: T.Buffer((3, K, N), "float32"), C: T.Buffer((M, N), "float32")):
    for i, j, o, k in T.grid(M, N, 3, K):
        with T.sblock("C"):
            vi, vj, vo, vk = T.axis.remap("SSRR", [i, j, o, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vo, vk] * B[vo, vk, vj]
"#;

fn program(text: &str, [m, n, k]: [i64; 3]) -> (Program, Contraction) {
    let mut text = text.to_string();
    for (name, extent) in [("M", m), ("N", n), ("K", k)] {
        for (before, after) in [("(", ","), (" ", ","), (" ", ")"), ("(", ")")] {
            text = text.replace(&format!("{before}{name}{after}"), &format!("{before}{extent}{after}"));
        }
    }
    let program = tvmscript::parse(&text).unwrap();
    let contraction = contraction(&program).unwrap();
    (program, contraction)
}

fn menu() -> Menu {
    Menu {
        tile_m: vec![8, 16],
        tile_n: vec![8, 16],
        tile_k: vec![4, 8],
        threads: vec![32, 64],
        vthreads: vec![1, 2],
        registers: 8,
        split_k: vec![2],
        groups: vec![2],
        async_stages: vec![3],
    }
}

/// The rules without which no program is whole: the sum is kept in place, operands are read where they are.
const BASE: [&str; 12] = [
    "one-kernel",
    "split, bind to blocks",
    "enter block",
    "in place",
    "split k, software_pipeline",
    "no shared copy",
    "split, bind to vthreads",
    "split, bind to warps",
    "split, bind to lanes",
    "split k, unroll",
    "cache_read local, compute_at inner k",
    "unroll registers",
];
const SUMS: [&str; 2] = ["cache_write, reverse_compute_at", "decompose_reduction"];
const COPY: [&str; 6] = [
    "cache_read shared, compute_at k",
    "cache_read shared, compute_at above k",
    "fuse copy",
    "split copy",
    "bind copy",
    "vectorize copy",
];

/// What a rule needs beside itself.
fn needs(rule: &str) -> Vec<&'static str> {
    let mut needed = BASE.to_vec();
    // The store's piece is the innermost loop, whether or not it has a width.
    needed.push("vectorize store");
    if SUMS.contains(&rule) || COPY.contains(&rule) || rule == "rfactor (split k)" {
        needed.extend(SUMS);
    }
    if COPY.contains(&rule) {
        needed.extend(COPY);
    }
    needed
}

fn only(names: &[&str]) -> Vec<Box<dyn Rule>> {
    rules::all().into_iter().filter(|r| names.contains(&r.name())).collect()
}

/// A small generator: tests want the same programs every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A random walk down a space; `None` from an empty one. `uses` is set where a node was made by `rule`.
fn walk(
    space: &Space,
    class: Id,
    random: &mut Random,
    out: &mut RecExpr<Term>,
    seen: &mut dyn FnMut(&Term),
) -> Option<Id> {
    let choices: Vec<&Term> = space.choices(space.egraph.find(class)).collect();
    if choices.is_empty() {
        return None;
    }
    let mut node = choices[random.below(choices.len())].clone();
    seen(&node);
    for child in node.children_mut() {
        *child = walk(space, *child, random, out, seen)?;
    }
    Some(out.add(node))
}

/// Random plans of a space, each with whether a node of it was made by `rule`.
fn sample(space: &Space, rule: &str, random: &mut Random) -> Option<(CoresPlan, bool)> {
    let (mut term, mut seen) = (RecExpr::default(), Vec::new());
    let mut see = |node: &Term| seen.push((space.egraph.lookup(node.clone()).unwrap(), node.clone()));
    walk(space, space.root, random, &mut term, &mut see)?;
    let uses = space.rules(&seen).into_iter().flatten().any(|name| name == rule);
    Some((CoresPlan::from_term(&term, &space.contraction).unwrap(), uses))
}

/// What is wrong with a plan, if anything: a primitive refuses, or the interpreter finds another meaning.
fn fault(source: &Program, plan: &CoresPlan, contraction: &Contraction, seed: u64) -> Option<String> {
    let trace = trace(plan, contraction);
    let (results, schedule) = replay(source, &trace.calls).unwrap();
    if let Some((call, error)) = trace.calls.iter().zip(&results).find_map(|(c, r)| Some((c, r.as_ref().err()?))) {
        return Some(format!("refused: {}: {}", call.op, error.detail));
    }
    interp::equal_on(source, schedule.program(), seed).err().map(|difference| format!("meaning: {difference}"))
}

#[test]
fn each_rule_alone_makes_programs_that_equal_the_source() {
    let mut random = Random(5);
    for rule in rules::all().iter().map(|r| r.name()) {
        let text = if rule == "outer reduction loop" { DOUBLE } else { GEMM };
        let (source, contraction) = program(text, [30, 24, 32]);
        let mut names = needs(rule);
        names.push(rule);
        let space = saturate(&contraction, H200, &menu(), &only(&names), Fuel::default()).unwrap();
        let space = space.restricted(&|_, _| true);
        assert!(!space.is_empty(), "{rule}: no whole program");
        let mut used = 0;
        for seed in 0..400 {
            let Some((plan, true)) = sample(&space, rule, &mut random) else { continue };
            if let Some(fault) = fault(&source, &plan, &contraction, seed) {
                panic!("{rule}: {fault}\n{}", plan.describe().join("\n"));
            }
            used += 1;
            if used == 8 {
                break;
            }
        }
        println!("{rule}: {used} programs");
        assert!(used >= 8, "{rule}: only {used} programs use it");
    }
}

#[test]
fn every_base_rule_is_needed() {
    let (_, contraction) = program(GEMM, [30, 24, 32]);
    let names = needs("");
    for left_out in &names {
        let rest: Vec<&str> = names.iter().copied().filter(|n| n != left_out).collect();
        let space = saturate(&contraction, H200, &menu(), &only(&rest), Fuel::default()).unwrap();
        assert!(space.restricted(&|_, _| true).is_empty(), "there are programs without `{left_out}`");
    }
}

/// How a rule without a condition is caught.
#[derive(Debug, PartialEq)]
enum Caught {
    /// A class's invariant.
    Invariant,
    /// A primitive refuses, or the program means something else.
    Replay(String),
    /// A program is beyond the GPU's limits.
    Limits(String),
    Not,
}

struct Mutant {
    removed: Condition,
    /// Operands of 2 bytes.
    half: bool,
    shape: [i64; 3],
    limits: Limits,
    menu: Menu,
}

fn mutant(removed: Condition, change: impl FnOnce(&mut Mutant)) -> Mutant {
    let mut mutant = Mutant { removed, half: false, shape: [32, 32, 32], limits: H200, menu: menu() };
    change(&mut mutant);
    mutant
}

impl Mutant {
    fn catch(&self) -> Caught {
        let (source, mut contraction) = program(GEMM, self.shape);
        if self.half {
            (contraction.a.dtype, contraction.b.dtype) = (DType::F16, DType::F16);
        }
        let (fuel, all) = (Fuel::default(), rules::all());
        let sound = saturate(&contraction, self.limits, &self.menu, &all, fuel).unwrap();
        let removed = Some(self.removed);
        let made = saturate_without(&contraction, self.limits, &self.menu, &all, fuel, removed);
        let space = match made {
            Err(SaturationError::Unsound { .. }) => return Caught::Invariant,
            other => other.unwrap().restricted(&|_, _| true),
        };
        let mut random = Random(3);
        let mut looked = 0;
        for seed in 0..3000 {
            let Some((plan, _)) = sample(&space, "", &mut random) else { break };
            if sound.contains(&plan).is_ok() {
                continue;
            }
            if let Some(beyond) = beyond_hardware(&plan, &contraction, &self.limits) {
                return Caught::Limits(beyond);
            }
            if let Some(fault) = fault(&source, &plan, &contraction, seed) {
                return Caught::Replay(fault);
            }
            looked += 1;
            if looked == 25 {
                break;
            }
        }
        Caught::Not
    }
}

/// What a GPU cannot do of a plan, if anything.
fn beyond_hardware(plan: &CoresPlan, c: &Contraction, limits: &Limits) -> Option<String> {
    let (bytes, results) = (plan.shared_bytes(c), plan.results_per_thread());
    if bytes > limits.shared_bytes {
        return Some(format!("{bytes} bytes of shared memory"));
    }
    if results > limits.registers - 40 {
        return Some(format!("{results} accumulators"));
    }
    // An access of `width` elements starts at a multiple of its size: so do all, where it divides each of these.
    let access = |what: String, width: i64, size: u32, of: &[i64]| {
        let aligned = of.iter().all(|length| length % width == 0);
        (width > 1 && (width * i64::from(size) > 16 || !aligned)).then(|| format!("{what} of {width} in {of:?}"))
    };
    if plan.pipe != Pipe::Plain && [Side::A, Side::B].iter().all(|side| plan.way(*side) != Way::Tile) {
        return Some("an overlapped loop copies nothing".into());
    }
    for side in [Side::A, Side::B] {
        let (operand, staging) = (c.operand(side), plan.staging(side));
        let (spatial, registers) = match side {
            Side::A => (plan.tile.m, plan.registers.m),
            Side::B => (plan.tile.n, plan.registers.n),
        };
        let size = operand.dtype.bytes();
        let along_k = operand.contiguous_along(Axis::K);
        let Some((layout, fill)) = staging.shared else { continue };
        let width = i64::from(fill.vector);
        let run = if along_k { plan.staged_k(side) } else { spatial };
        let row = c.extent(if along_k { Axis::K } else { side.spatial() });
        let contiguous = if fill.coalesced { run } else { 1 };
        if let Some(text) = access(format!("copy of {side}"), width, size, &[row, run, contiguous]) {
            return Some(text);
        }
        if matches!(plan.pipe, Pipe::Async(_)) && plan.way(side) == Way::Tile {
            if width * i64::from(size) < 4 {
                return Some(format!("cp.async of {} bytes", width * i64::from(size)));
            }
            if width > 1 && layout.k_major == along_k {
                return Some(format!("cp.async of {width} elements to a transposed tile"));
            }
        }
        let run = if layout.k_major { registers } else { plan.k_step };
        let local = i64::from(staging.local.unwrap_or(1));
        if let Some(text) = access(format!("fragment of {side}"), local, size, &[run]) {
            return Some(text);
        }
    }
    let rows = [c.extent(Axis::N), plan.registers.n];
    access("store".into(), i64::from(plan.store_vector), c.c.dtype.bytes(), &rows)
}

#[test]
fn a_rule_without_its_side_condition_is_caught() {
    use Condition::*;
    let invariant = [
        mutant(WarpsDivide, |m| (m.menu.tile_m, m.menu.tile_n, m.menu.threads) = (vec![12], vec![64], vec![256])),
        mutant(WarpsDivide, |m| (m.menu.tile_m, m.menu.tile_n, m.menu.threads) = (vec![64], vec![12], vec![256])),
        mutant(LanesDivide, |m| m.menu.tile_m = vec![12]),
        mutant(LanesDivide, |m| m.menu.tile_n = vec![12]),
        mutant(VthreadsDivide, |m| (m.menu.tile_m, m.menu.tile_n, m.menu.threads) = (vec![9], vec![32], vec![32])),
        mutant(StepDivides, |m| m.menu.tile_k = vec![6]),
        mutant(SplitKDivides, |m| m.shape = [32, 32, 33]),
        mutant(InPlaceWhole, |_| ()),
        mutant(ReorderRoles, |_| ()),
        mutant(ReorderGrouped, |_| ()),
        mutant(GroupDivides, |m| m.shape = [40, 32, 32]),
        mutant(StoreDivides, |_| ()),
    ];
    for mutant in &invariant {
        assert_eq!(mutant.catch(), Caught::Invariant, "{}", mutant.removed);
    }
    let tight = Limits { shared_bytes: 1024, ..H200 };
    let few = Limits { registers: 48, ..H200 };
    for mutant in [
        mutant(SharedFits, |m| m.limits = tight),
        mutant(StripFits, |m| m.limits = tight),
        mutant(AccumulatorsFit, |m| (m.limits, m.menu.tile_m, m.menu.tile_n) = (few, vec![32], vec![32])),
        mutant(OverlapStaged, |_| ()),
        mutant(AsyncBytes, |m| m.half = true),
        mutant(AsyncRows, |_| ()),
        mutant(CopyBytes, |m| (m.menu.tile_m, m.menu.tile_n) = (vec![32], vec![32])),
        mutant(CopyRows, |m| m.shape = [32, 30, 32]),
        mutant(CopyRuns, |m| (m.menu.tile_m, m.menu.tile_k, m.shape) = (vec![32], vec![6], [32, 32, 36])),
        mutant(CopyCoalesced, |_| ()),
        mutant(FragmentRun, |_| ()),
        mutant(FragmentBytes, |m| (m.menu.tile_m, m.menu.tile_n) = (vec![32], vec![32])),
        mutant(StoreBytes, |m| (m.menu.tile_m, m.menu.tile_n) = (vec![32], vec![32])),
        mutant(StoreRows, |m| m.shape = [32, 30, 32]),
    ] {
        let caught = mutant.catch();
        println!("{:?}: {caught:?}", mutant.removed);
        assert!(matches!(caught, Caught::Limits(_)), "{}: {caught:?}", mutant.removed);
    }
    let mutant = mutant(SwizzleRows, |m| (m.shape, m.menu.tile_m, m.menu.tile_n) = ([24, 32, 32], vec![24], vec![16]));
    let caught = mutant.catch();
    println!("{:?}: {caught:?}", mutant.removed);
    assert!(matches!(caught, Caught::Replay(_)), "{}: {caught:?}", mutant.removed);
}

#[test]
fn a_condition_that_the_rules_below_imply_adds_no_program() {
    // Every split below the block divides, so the results do too; the condition only keeps dead ends out.
    let (_, contraction) = program(GEMM, [32, 32, 32]);
    let menu = Menu { tile_m: vec![8, 12], tile_n: vec![8, 20], threads: vec![32, 64, 128], ..menu() };
    let count = |space: &Space| {
        let mut counts = std::collections::HashMap::new();
        for class in space.bottom_up() {
            let sum: u128 = space
                .choices(class)
                .map(|n| n.children().iter().map(|c| counts[&space.egraph.find(*c)]).product::<u128>())
                .sum();
            counts.insert(class, sum);
        }
        counts[&space.egraph.find(space.root)]
    };
    let make = |removed| {
        saturate_without(&contraction, H200, &menu, &rules::all(), Fuel::default(), removed).map(|s| count(&s)).unwrap()
    };
    assert_eq!(make(None), make(Some(Condition::ThreadsDivide)));
    assert!(make(None) > 0);
}

/// Every condition stands in RULES.md with its text, and every rule.
#[test]
fn the_document_lists_every_rule_and_condition() {
    let document = include_str!("../../RULES.md");
    for condition in Condition::ALL {
        let name = format!("`{condition:?}`");
        assert!(document.contains(&name) && document.contains(condition.text()), "RULES.md has no {name}");
    }
    for rule in rules::all() {
        assert!(document.contains(rule.name()), "RULES.md has no {}", rule.name());
    }
}
