//! Sums of `wgmma` stay untouched from the instruction until it is waited for. No `wgmma.fence` and no volatile copy stand
//! in the text to hold the compiler off; so its PTX is looked at.
use crate::support::samples;
use satune::compile::{Compiler, Job};
use satune::measure::{Random, Strategy};
use satune::source::{load_work, Work};
use satune::workload::{Explorable, Workload};
use satune_extract::Descriptor;
use satune_ir::term::tensor::TensorNode;
use satune_ir::term::{Schedule, Term};
use std::collections::{BTreeSet, HashMap, VecDeque};

type Registers<'p> = BTreeSet<&'p str>;

/// What is under way: an open group, and those that are committed.
#[derive(Clone, Default)]
struct Flight<'p> {
    open: Registers<'p>,
    groups: VecDeque<Registers<'p>>,
}

impl<'p> Flight<'p> {
    /// The first register of a statement that is under way.
    fn touched(&self, statement: &'p str) -> Option<&'p str> {
        registers(statement).find(|r| self.open.contains(r) || self.groups.iter().any(|g| g.contains(r)))
    }

    /// Follows a statement; whether it is one of `wgmma`.
    fn follow(&mut self, statement: &'p str) -> bool {
        if statement.starts_with("wgmma.mma_async") {
            let sums = statement.split('{').nth(1).and_then(|rest| rest.split('}').next()).unwrap_or("");
            self.open.extend(registers(sums));
        } else if statement.starts_with("wgmma.commit_group") {
            self.groups.push_back(std::mem::take(&mut self.open));
        } else if let Some(left) = statement.strip_prefix("wgmma.wait_group.sync.aligned") {
            let left: usize = left.trim().parse().unwrap();
            while self.groups.len() > left {
                self.groups.pop_front();
            }
        } else {
            return false;
        }
        true
    }
}

fn registers(text: &str) -> impl Iterator<Item = &str> {
    let name = |c: char| c.is_ascii_alphanumeric() || c == '%' || c == '_' || c == '$';
    text.split(move |c| !name(c)).filter(|word| word.starts_with('%'))
}

/// Instructions of `wgmma` in PTX; or the statement that touches sums which are under way, along the text and once around
/// each loop.
fn untouched(ptx: &str) -> Result<usize, String> {
    let body = ptx.split_once(".entry").map_or(ptx, |(_, body)| body);
    let lines: Vec<&str> = body.lines().map(|l| l.split("//").next().unwrap_or("").trim()).collect();
    let text: Vec<String> =
        lines.iter().filter(|l| !l.is_empty() && !l.starts_with('.')).map(|l| l.to_string()).collect();
    let labels: HashMap<&str, usize> =
        text.iter().enumerate().filter_map(|(i, l)| Some((l.strip_suffix(':')?, i))).collect();
    let (mut flight, mut count) = (Flight::default(), 0);
    for (at, line) in text.iter().enumerate() {
        count += usize::from(line.starts_with("wgmma.mma_async"));
        step(&mut flight, line)?;
        // Back to the beginning of a loop with what is under way at its end.
        let target = line.split("bra").nth(1).map(|t| t.trim_start_matches(".uni").trim().trim_end_matches(';'));
        if let Some(start) = target.and_then(|t| labels.get(t)).filter(|start| **start < at) {
            let mut again = flight.clone();
            text[*start..at].iter().try_for_each(|line| step(&mut again, line))?;
        }
    }
    Ok(count)
}

fn step<'p>(flight: &mut Flight<'p>, line: &'p str) -> Result<(), String> {
    let statement = line.trim_end_matches(';');
    match flight.touched(statement) {
        Some(register) if !flight.follow(statement) => Err(format!("{register} is under way in: {line}")),
        Some(_) => Ok(()),
        None => {
            flight.follow(statement);
            Ok(())
        }
    }
}

/// Fails where a kernel's sums are touched too early.
pub fn assert_untouched(name: &str, ptx: &str) {
    match untouched(ptx) {
        Ok(count) => assert!(count > 0, "{name} has no wgmma"),
        Err(what) => panic!("{name}: {what}"),
    }
}

#[test]
fn a_copy_between_the_instruction_and_its_wait_is_found() {
    let text = |before: &str, between: &str, after: &str, left: u32| {
        format!(
            ".entry k() {{\n$L1:\n{before}\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f1, %f2, %f3, %f4}}, %rd1, %rd2, 1, 1, 1, 0, 0;\nwgmma.commit_group.sync.aligned;\n{between}\nwgmma.wait_group.sync.aligned {left};\n{after}\n@%p1 bra $L1;\nst.global.f32 [%rd3], %f9;\n}}\n"
        )
    };
    assert_eq!(untouched(&text("", "add.s32 %r1, %r2, 1;", "mov.f32 %f5, %f1;", 0)), Ok(1));
    for (bad, register) in [
        (text("", "mov.f32 %f5, %f2;", "", 0), "%f2"),
        // Read behind a wait that leaves the group under way; and at the beginning of the next turn.
        (text("", "", "mov.f32 %f3, 0f00000000;", 1), "%f3"),
        (text("mov.f32 %f5, %f4;", "", "", 1), "%f4"),
    ] {
        assert!(untouched(&bad).unwrap_err().starts_with(&format!("{register} is under way")), "{bad}");
    }
    // %f1 is not %f11.
    assert_eq!(untouched(&text("", "mov.f32 %f11, %f12;", "", 0)), Ok(1));
}

/// Programs of the suites whose schedules on `wgmma` are drawn by chance, `SATUNE_SAMPLES` times three of them.
#[test(slow)]
fn sums_of_the_suites_kernels_are_untouched() {
    let gpu = Descriptor::load("h200").unwrap();
    let suites = ["tensor_other.txt", "tensor_16bit.txt"].map(|file| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/suites").join(file))
            .unwrap()
    });
    let lines = suites.iter().flat_map(|text| text.lines()).map(|l| l.split('#').next().unwrap_or("").trim());
    let programs: Vec<&str> = lines.filter(|l| !l.is_empty() && !l.contains("4097")).collect();
    let step = (programs.len() / samples(3)).max(1);
    let mut jobs = Vec::new();
    for (number, name) in programs.iter().enumerate().step_by(step) {
        let Work::Contraction(problem) = load_work(name).unwrap() else { panic!("{name} is no contraction") };
        let space = problem.space(&gpu).unwrap();
        let others = |node: &Term| matches!(node, Term::Cta { .. } | Term::Tensor { node: TensorNode::Mma { .. }, .. });
        let wgmma = space.restricted(&|_, node| !others(node));
        // Not every type and shape has some.
        let Some(plan) = Random::of(&wgmma, &gpu, number as u64, &|| true).next(&[], 1).pop().map(|c| c.plan) else {
            continue;
        };
        assert!(matches!(plan, Schedule::Wgmma(_)), "{plan:?}");
        let made = problem.scheduled(&plan, &satune::scheduled::options(&gpu)).unwrap();
        let source = satune::cuda::print(&made.module.kernels[0]);
        jobs.push(Job { name: (*name).into(), source, arch: "sm_90a".into() });
    }
    assert!(!jobs.is_empty(), "no program of the suites has a schedule on wgmma");
    let compiler = Compiler::of(crate::faults::SATUNE);
    let jobs_and_code = jobs.iter().zip(compiler.compile_many(&jobs));
    for (job, compiled) in jobs_and_code {
        match compiled {
            Ok(compiled) => assert_untouched(&job.name, &compiled.ptx),
            Err(satune::compile::CompileError::Missing) => satune_testing::missing("NVRTC", "cuda"),
            Err(error) => panic!("{error}"),
        }
    }
}
