//! The loop tree of a plan: who executes what, from the outside in.
use crate::workload::{self, Workload};
use satune_ir::term::{Axis, Contraction, CoresPlan, Fill, Pipe, Schedule, Side, StagedLayout, Way};

/// Who executes a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(super) enum Team {
    Grid,
    Block,
    Warp,
    Thread,
}

impl Team {
    pub fn name(self) -> &'static str {
        match self {
            Team::Grid => "grid",
            Team::Block => "block",
            Team::Warp => "warp",
            Team::Thread => "thread",
        }
    }
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    /// A loop.
    Loop,
    /// A copy of an operand, or where results are kept.
    Stage,
    /// Arithmetic, stores.
    Work,
}

/// A line of the tree.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub depth: usize,
    pub team: Team,
    pub kind: LineKind,
    pub text: String,
    /// How: `blockIdx.x`, `unrolled`, `cp.async`, ...
    pub tags: Vec<String>,
}

struct Tree<'a> {
    plan: &'a CoresPlan,
    contraction: &'a Contraction,
    lines: Vec<Line>,
    depth: usize,
    team: Team,
}

/// The loop tree of a schedule.
pub(super) fn of(schedule: &Schedule, problem: &dyn Workload) -> Vec<Line> {
    match (schedule, problem.kind()) {
        (Schedule::Stream(plan), workload::ProblemKind::Streams(streams)) => super::stream_tree::of(plan, streams),
        (_, workload::ProblemKind::Contraction(contraction)) => of_contraction(schedule, contraction),
        _ => Vec::new(),
    }
}

/// The loop tree of a contraction's schedule.
pub(super) fn of_contraction(schedule: &Schedule, contraction: &Contraction) -> Vec<Line> {
    match schedule {
        Schedule::Cores(plan) => {
            let mut tree = Tree { plan, contraction, lines: Vec::new(), depth: 0, team: Team::Grid };
            tree.grid();
            tree.lines
        }
        Schedule::Mma(_) | Schedule::Wgmma(_) => super::tensor_tree::of(schedule, contraction),
        Schedule::Stream(_) => Vec::new(),
    }
}

impl Tree<'_> {
    fn line(&mut self, kind: LineKind, text: String, tags: &[&str]) {
        let tags = tags.iter().filter(|t| !t.is_empty()).map(|t| (*t).to_string()).collect();
        self.lines.push(Line { depth: self.depth, team: self.team, kind, text, tags });
    }

    /// A loop, and what follows is inside it; a loop of one iteration is left out.
    fn enter(&mut self, axis: &str, extent: i64, tags: &[&str]) {
        if extent > 1 {
            self.line(LineKind::Loop, format!("for {axis} in {extent}"), tags);
            self.depth += 1;
        }
    }

    fn name(&self, axis: Axis) -> String {
        match axis {
            Axis::M => "m".into(),
            Axis::N => "n".into(),
            Axis::K => "k".into(),
            _ => self
                .contraction
                .iters
                .iter()
                .find(|(a, _)| *a == axis)
                .map_or_else(|| axis.to_string(), |(_, info)| info.name.trim_start_matches('v').to_string()),
        }
    }

    /// Two loops, the outer one first.
    fn enter_pair(&mut self, (m, n): (i64, i64), m_outer: bool, tags: &[&str]) {
        let pair = if m_outer { [("m", m), ("n", n)] } else { [("n", n), ("m", m)] };
        for (axis, extent) in pair {
            self.enter(axis, extent, tags);
        }
    }

    fn grid(&mut self) {
        let plan = self.plan;
        let blocks = plan.block_count();
        self.line(LineKind::Work, format!("grid of {blocks} block{}", if blocks == 1 { "" } else { "s" }), &[]);
        self.depth += 1;
        for l in &plan.blocks {
            let (tag, axis) = (if l.group { "group" } else { "" }, self.name(l.axis));
            let split = if l.axis == Axis::K { "split-K" } else { "" };
            self.enter(&axis, l.extent, &["blockIdx.x", tag, split]);
        }
        self.team = Team::Block;
        self.block();
        if plan.split_k > 1 {
            (self.depth, self.team) = (0, Team::Grid);
            self.line(LineKind::Work, format!("second kernel: C = sum of {} partial sums", plan.split_k), &[]);
        }
    }

    fn block(&mut self) {
        let plan = self.plan;
        let text = format!("block of {} threads: a tile of {} x {}", plan.threads, plan.tile.m, plan.tile.n);
        self.line(LineKind::Work, text, &[]);
        self.depth += 1;
        let outside = self.depth;
        if plan.accumulators {
            let text = format!("C: {} sums per thread", plan.results_per_thread());
            self.line(LineKind::Stage, text, &["registers"]);
        }
        if plan.init_hoisted {
            self.line(LineKind::Work, "clear the sums".into(), &[]);
        }
        let outer: Vec<(String, i64)> =
            self.contraction.outer_reduce().map(|(axis, info)| (self.name(axis), info.extent)).collect();
        for (axis, extent) in outer {
            self.enter(&axis, extent, &["serial"]);
        }
        self.fills(Way::Strip);
        let tiles = (plan.k_part + plan.k_tile - 1) / plan.k_tile;
        let pipe = match plan.pipe {
            Pipe::Plain => "no overlap".to_string(),
            other => other.to_string(),
        };
        self.line(LineKind::Loop, format!("for k in {tiles}, a tile of {}", plan.k_tile), &["serial", &pipe]);
        self.depth += 1;
        self.fills(Way::Tile);
        self.warps();
        (self.depth, self.team) = (outside, Team::Thread);
        if plan.accumulators {
            let width = if plan.store_vector > 1 { format!("vectors of {}", plan.store_vector) } else { String::new() };
            self.line(LineKind::Work, "store C to global memory".into(), &[&width]);
        }
    }

    /// The copies to shared memory of the operands that come this way.
    fn fills(&mut self, way: Way) {
        for side in [Side::A, Side::B] {
            if let Some(shared) = self.plan.staging(side).shared.filter(|_| self.plan.way(side) == way) {
                self.fill(side, shared);
            }
        }
    }

    fn fill(&mut self, side: Side, (layout, fill): (StagedLayout, Fill)) {
        let plan = self.plan;
        let (spatial, k) = (plan.spatial(side), plan.staged_k(side));
        let bytes = layout.elements(spatial, k) * i64::from(self.contraction.operand(side).dtype.bytes());
        let pipe = if plan.way(side) == Way::Strip { Pipe::Plain } else { plan.pipe };
        let buffers = pipe.buffers();
        let text = format!(
            "{side} to shared{}: {spatial} x {k}, {}{}",
            if plan.way(side) == Way::Strip { ", all that the k loop reads" } else { "" },
            super::number::kib(bytes),
            if buffers > 1 { format!(" x {buffers} buffers") } else { String::new() }
        );
        self.line(LineKind::Stage, text, &[&layout.to_string()]);
        self.depth += 1;
        let step = i64::from(plan.threads) * i64::from(fill.vector);
        let serial = (spatial * k + step - 1) / step;
        let depth = self.depth;
        self.enter("copy", serial, &[if fill.unroll { "unrolled" } else { "serial" }]);
        self.team = Team::Thread;
        let how = if matches!(pipe, Pipe::Async(_)) { "cp.async" } else { "" };
        let order = if fill.coalesced { "along rows" } else { "along columns" };
        let vector = if fill.vector > 1 { format!("vectors of {}", fill.vector) } else { String::new() };
        self.line(LineKind::Work, format!("copy by {} threads", plan.threads), &[order, &vector, how]);
        (self.depth, self.team) = (depth - 1, Team::Block);
    }

    fn warps(&mut self) {
        let plan = self.plan;
        self.enter_pair((plan.vthread_outer.m, plan.vthread_outer.n), true, &["vthread"]);
        self.team = Team::Warp;
        let warps = plan.warps.product();
        self.line(LineKind::Work, format!("{warps} warp{}", if warps == 1 { "" } else { "s" }), &[]);
        self.depth += 1;
        self.enter_pair((plan.warps.m, plan.warps.n), plan.warps_m_outer, &["threadIdx.x / 32"]);
        self.enter_pair((plan.vthread_inner.m, plan.vthread_inner.n), true, &["vthread"]);
        self.team = Team::Thread;
        self.line(LineKind::Work, format!("{} lanes", plan.lanes.product()), &[]);
        self.depth += 1;
        self.enter_pair((plan.lanes.m, plan.lanes.n), plan.lanes_m_outer, &["threadIdx.x % 32"]);
        self.thread();
    }

    fn thread(&mut self) {
        let plan = self.plan;
        let steps = plan.k_tile / plan.k_step.max(1);
        let step = if plan.k_step > 1 { format!("steps of {}", plan.k_step) } else { String::new() };
        self.enter("k", steps, &[if plan.unroll_k { "unrolled" } else { "serial" }, &step]);
        for side in [Side::A, Side::B] {
            let staging = plan.staging(side);
            let from = if staging.shared.is_some() { "shared" } else { "global" };
            if let Some(vector) = staging.local {
                let vector = if vector > 1 { format!("vectors of {vector}") } else { String::new() };
                self.line(LineKind::Stage, format!("{side} to registers, from {from}"), &[&vector]);
            }
        }
        if !plan.init_hoisted {
            self.line(LineKind::Work, "clear the sums at the first k".into(), &[]);
        }
        self.enter_pair((plan.registers.m, plan.registers.n), plan.registers_m_outer, &["unrolled"]);
        let what = if self.contraction.combine.is_none() { "multiply-add" } else { "combine" };
        let to = if plan.accumulators { "" } else { " to C in global memory" };
        self.line(LineKind::Work, format!("{what}{to}"), &[]);
    }
}
