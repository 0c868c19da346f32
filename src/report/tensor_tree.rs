//! The loop tree of a schedule on tensor cores.
use super::tree::{Line, LineKind, Team};
use satune_ir::term::tensor::{Gemm, Order, Store, TileLayout, TileStore};
use satune_ir::term::{Contraction, Schedule};

struct Tree {
    lines: Vec<Line>,
    depth: usize,
    team: Team,
}

impl Tree {
    fn line(&mut self, kind: LineKind, text: String, tags: &[&str]) {
        let tags = tags.iter().filter(|t| !t.is_empty()).map(|t| (*t).to_string()).collect();
        self.lines.push(Line { depth: self.depth, team: self.team, kind, text, tags });
    }

    fn inside(&mut self, team: Team) {
        (self.depth, self.team) = (self.depth + 1, team);
    }
}

/// The lines; none where the contraction is no matrix product.
pub(super) fn of(schedule: &Schedule, contraction: &Contraction) -> Vec<Line> {
    let Ok(gemm) = Gemm::of(contraction) else { return Vec::new() };
    let mut tree = Tree { lines: Vec::new(), depth: 0, team: Team::Grid };
    let blocks = schedule.block_count(contraction);
    let described = schedule.describe();
    let order = described.first().cloned().unwrap_or_default();
    tree.line(LineKind::Work, format!("grid of {blocks} blocks: {order}"), &["blockIdx.x"]);
    tree.inside(Team::Block);
    let split_k = match schedule {
        Schedule::Mma(plan) => {
            let [m, n, k] = plan.tile;
            tree.line(LineKind::Work, format!("block of {} threads: a tile of {m} x {n}", plan.threads()), &[]);
            let tiles = parts(gemm.k, k * plan.split_k);
            let copied = if plan.instruction.is_async() { "cp.async" } else { "through registers" };
            let loaded = if plan.instruction.wmma().is_some() { "wmma.load" } else { "ldmatrix" };
            let stages = format!("{copied}, {} stages", plan.stages);
            tree.line(LineKind::Loop, format!("for k in {tiles}, a tile of {k}"), &["serial", &stages]);
            tree.inside(Team::Block);
            let names = if plan.swapped { ["B", "A"] } else { ["A", "B"] };
            for (name, operand, extent) in [(names[0], plan.operands[0], m), (names[1], plan.operands[1], n)] {
                let tag = match operand.layout {
                    TileLayout::Plain => "",
                    TileLayout::Padded => "padded",
                    TileLayout::Xor(_) => "xor",
                    TileLayout::Rotate(_) => "rotated",
                };
                let bytes = format!("{} bytes", operand.bytes);
                tree.line(LineKind::Stage, format!("{name}: {extent} x {k}"), &["shared", copied, &bytes, tag]);
            }
            let warps = [m / plan.warp[0].max(1), n / plan.warp[1].max(1)];
            let outer = if plan.warps_m_outer { "m outer" } else { "n outer" };
            tree.line(LineKind::Loop, format!("for m, n in {} x {}", warps[0], warps[1]), &["warps", outer]);
            tree.inside(Team::Warp);
            let steps = k / i64::from(plan.instruction.k());
            tree.line(LineKind::Loop, format!("for k in {steps}"), &["unrolled"]);
            tree.depth += 1;
            tree.line(LineKind::Stage, "A, B: fragments of the next step".into(), &["registers", loaded]);
            let Order { columns, serpentine, .. } = plan.order;
            let order = if columns { "by columns" } else { "by rows" };
            let turns = if serpentine { "back and forth" } else { "" };
            let [rows, columns] = plan.instruction.block();
            let count = [plan.warp[0] / rows, plan.warp[1] / columns];
            let text = format!("{}: {} x {} times", plan.instruction, count[0], count[1]);
            tree.line(LineKind::Work, text, &[order, turns]);
            (tree.depth, tree.team) = (1, Team::Warp);
            let way = match plan.store {
                Store::Direct => "from the fragments",
                Store::Shared { .. } => "by way of shared memory",
            };
            tree.line(LineKind::Work, "store C".into(), &[way]);
            plan.split_k
        }
        Schedule::Wgmma(plan) => {
            let [m, n, k] = plan.tile;
            if let Some(grid) = plan.blocks {
                let (text, tag) = match plan.dealt(&gemm) {
                    Some(stream) => (format!("for tile in its {} steps along k", stream.each().0), "stream-K"),
                    None => (format!("for tile in {}", parts(plan.tiles(&gemm), grid.into())), "persistent"),
                };
                tree.line(LineKind::Loop, text, &[tag]);
                tree.depth += 1;
            }
            tree.line(LineKind::Work, format!("block of {} threads: a tile of {m} x {n}", plan.threads()), &[]);
            let tiles = parts(gemm.k, k * plan.split_k);
            let stages = format!("{} stages", plan.stages);
            let multicast = match plan.cluster {
                [1, 1] => String::new(),
                [m, n] => format!("multicast, cluster {m} x {n}"),
            };
            tree.inside(Team::Block);
            let outside = tree.depth;
            tree.line(
                LineKind::Loop,
                format!("producer: for k in {tiles}, a tile of {k}"),
                &["TMA", &stages, &multicast],
            );
            tree.line(LineKind::Loop, format!("{} consumers: for k in {tiles}", plan.consumers), &["serial"]);
            tree.inside(Team::Warp);
            let steps = k * i64::from(gemm.operand.bytes()) / 32;
            let order = if plan.by_rows { "row block by row block" } else { "step by step" };
            let text = format!("{} m{}n{n}: {} x {steps} times", plan.op, plan.op.rows(), plan.row_blocks());
            let who = if plan.op.holds_sums() { "warpgroup" } else { "one thread" };
            tree.line(LineKind::Work, text, &[who, order]);
            (tree.depth, tree.team) = (outside, Team::Warp);
            let way = match plan.store {
                TileStore::Direct => "from the accumulators",
                TileStore::Tma => "shared memory, TMA",
                TileStore::Boxes => "shared memory, TMA, box by box",
            };
            tree.line(LineKind::Work, "store C".into(), &[way]);
            plan.sums_of_result(&gemm)
        }
        _ => 1,
    };
    if split_k > 1 {
        (tree.depth, tree.team) = (0, Team::Grid);
        let most = if matches!(schedule, Schedule::Wgmma(p) if p.stream_k) { "up to " } else { "" };
        tree.line(LineKind::Work, format!("second kernel: C = sum of {most}{split_k} partial sums"), &[]);
    }
    tree.lines
}

fn parts(extent: i64, of: i64) -> i64 {
    let of = of.max(1);
    extent / of + i64::from(extent % of > 0)
}
