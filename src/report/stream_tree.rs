//! The loop tree of a streaming schedule: its kernels one after the other.
use super::tree::{Line, LineKind, Team};
use satune_ir::term::stream::{
    AccessForm, BlockKind, FlatPlan, KernelPlan, PlainPlan, RowPlace, RowPlan, Stream, StreamBlock, StreamPlan,
    Streams, TilePlan,
};

struct Tree<'a> {
    stream: &'a Stream,
    lines: Vec<Line>,
    depth: usize,
    team: Team,
}

/// The lines; none where the plan is of another program.
pub(super) fn of(plan: &StreamPlan, problem: &Streams) -> Vec<Line> {
    let Some(stream) = &problem.of_plan(plan) else { return Vec::new() };
    let mut tree = Tree { stream, lines: Vec::new(), depth: 0, team: Team::Grid };
    for kernel in &plan.kernels {
        let Some((from, to)) = kernel.range(stream) else { continue };
        (tree.depth, tree.team) = (0, Team::Grid);
        let blocks = kernel.thread_blocks(stream);
        let many =
            if plan.kernels.len() > 1 { format!("kernel of {}: ", kernel.blocks().join(", ")) } else { String::new() };
        if let (KernelPlan::Tiled(p), Some(contraction)) = (kernel, stream.contraction(from, to)) {
            tree.line(LineKind::Work, format!("kernel of {}", kernel.blocks().join(", ")), &[]);
            tree.lines.extend(super::tree::of_contraction(&p.plan, contraction));
            continue;
        }
        let plural = if blocks == 1 { "" } else { "s" };
        tree.line(LineKind::Loop, format!("{many}grid of {blocks} block{plural}"), &["blockIdx"]);
        tree.inside(Team::Block);
        tree.line(LineKind::Work, format!("block of {} threads", kernel.threads()), &[]);
        tree.depth += 1;
        match kernel {
            KernelPlan::Row(p) => tree.row(p, from, to),
            KernelPlan::Flat(p) => tree.flat(p, (from, to)),
            KernelPlan::Tile(p) => tree.tile(p, from),
            KernelPlan::Plain(p) => {
                let named = |name: &Option<String>| stream.blocks.iter().find(|b| Some(&b.name) == name.as_ref());
                let Some(block) = stream.blocks[from..to].iter().find(|b| b.name == p.block) else { continue };
                tree.plain(p, block, named(&p.before));
                named(&p.map).into_iter().for_each(|map| tree.work(map, ""));
            }
            KernelPlan::Tiled(_) => {}
        }
    }
    tree.lines
}

fn wide(vector: i64) -> String {
    if vector > 1 {
        format!("vectors of {vector}")
    } else {
        String::new()
    }
}

impl Tree<'_> {
    /// A thread for each result or for some, or several that share one.
    fn plain(&mut self, p: &PlainPlan, b: &StreamBlock, before: Option<&StreamBlock>) {
        self.inside(Team::Thread);
        let (mut each, mut tag) = (b.instances() / b.results().max(1), String::new());
        if let Some((s, i)) = p.sharing.and_then(|s| Some((s, b.iters.get(s.iter)?))) {
            each = each / i.extent.max(1) * ((i.extent + s.threads - 1) / s.threads.max(1));
            tag = format!("{} threads share it", s.threads);
        }
        let blocks = self.stream.plain_of(p);
        let step = blocks.map(|blocks| self.stream.plain_step(blocks, p.vector, p.window)).unwrap_or_default();
        let inside: i64 = step.inside.iter().map(|iter| b.iters[*iter].extent).product();
        self.enter("what is reduced over", each / inside.max(1), &[&tag]);
        if let Some(before) = before {
            self.work(before, "in registers, for a step");
        }
        self.enter("what is reduced over in a step", inside, &["unrolled"]);
        self.enter("result along a window", p.window.map_or(1, |w| w.results), &["unrolled"]);
        self.enter("result side by side", p.vector, &[&wide(p.vector)]);
        self.line(LineKind::Work, b.name.clone(), &[]);
    }

    fn line(&mut self, kind: LineKind, text: String, tags: &[&str]) {
        let tags = tags.iter().filter(|t| !t.is_empty()).map(|t| (*t).to_string()).collect();
        self.lines.push(Line { depth: self.depth, team: self.team, kind, text, tags });
    }

    fn inside(&mut self, team: Team) {
        (self.depth, self.team) = (self.depth + 1, team);
    }

    /// A loop, and what follows is inside it; a loop of one iteration is left out.
    fn enter(&mut self, what: &str, extent: i64, tags: &[&str]) {
        if extent > 1 {
            self.line(LineKind::Loop, format!("for {what} in {extent}"), tags);
            self.depth += 1;
        }
    }

    fn row(&mut self, p: &RowPlan, from: usize, to: usize) {
        let Some(shape) = self.stream.row_shape(from, to) else { return };
        let columns = (shape.columns + p.threads * p.vector - 1) / (p.threads * p.vector).max(1);
        let held = self.stream.held(from, to, p.rows_per_block());
        let copied = |form: AccessForm| {
            let stream = self.stream;
            held.iter()
                .filter(|(b, f)| *f == form && !stream.made_in(*b, from, to))
                .map(|(b, _)| (stream.buffers[*b].name.clone(), p.place(&stream.buffers[*b].name)))
                .filter(|(_, place)| *place != RowPlace::Global)
                .collect::<Vec<_>>()
        };
        let (per_column, per_row) = (copied(AccessForm::PerColumn), copied(AccessForm::Full));
        for (buffer, _) in per_column {
            self.line(
                LineKind::Stage,
                format!("{buffer}: {} values for all rows", shape.columns),
                &["shared", &wide(p.vector)],
            );
        }
        self.enter("row", p.serial_rows, &["serial"]);
        self.enter("row", p.side_by_side, &["threadIdx.y"]);
        for (buffer, place) in per_row {
            let place = if place == RowPlace::Shared { "shared" } else { "registers" };
            self.line(
                LineKind::Stage,
                format!("{buffer}: the row of {} values", shape.columns),
                &[place, &wide(p.vector)],
            );
        }
        let outside = self.depth;
        for (i, b) in self.stream.blocks[from..to].iter().enumerate() {
            self.depth = outside;
            if b.iters.len() > shape.row_iters {
                let unrolled = if p.unroll.get(i) == Some(&true) { "unrolled" } else { "serial" };
                self.enter("column", columns, &[unrolled]);
                self.enter("column", p.threads, &["threadIdx.x"]);
                self.team = Team::Thread;
            }
            self.work(b, &wide(p.vector));
            if from + i + 1 < to && self.stream.outlives(b.write.buffer, to) {
                let buffer = &self.stream.buffers[b.write.buffer].name;
                self.line(
                    LineKind::Stage,
                    format!("{buffer}: copied to memory, for what comes after"),
                    &[&wide(p.vector)],
                );
            }
            if b.kind == BlockKind::Reduce {
                self.depth = outside;
                let how = if p.threads > 32 { "shuffles, then through shared memory" } else { "shuffles" };
                self.line(LineKind::Work, format!("{}: combine over {} threads", b.name, p.threads), &[how]);
            }
            self.team = Team::Block;
        }
    }

    fn flat(&mut self, p: &FlatPlan, (from, to): (usize, usize)) {
        self.enter("row", p.side_by_side, &["threadIdx.y"]);
        self.enter("column", p.steps, &["unrolled"]);
        self.enter("column", p.threads, &["threadIdx.x"]);
        self.team = Team::Thread;
        let stream = self.stream;
        stream.blocks[from..to].iter().for_each(|b| self.work(b, &wide(p.vector)));
    }

    fn tile(&mut self, p: &TilePlan, from: usize) {
        let Some((_, _, read)) = self.stream.transposed(from) else { return };
        let b = &self.stream.blocks[from];
        let along = p.side / p.vector.max(1);
        let source = self.stream.buffers[b.reads[read].buffer].name.clone();
        let pad = if p.pad > 0 { format!("rows padded by {}", p.pad) } else { String::new() };
        self.line(
            LineKind::Stage,
            format!("{source}: a tile of {0} x {0}", p.side),
            &["shared", &wide(p.vector), &pad],
        );
        let rows = p.threads / along.max(1);
        self.enter("row", p.side / rows.max(1), &["unrolled"]);
        self.enter("row", rows, &["threadIdx.y"]);
        self.enter("column", along, &["threadIdx.x"]);
        self.team = Team::Thread;
        self.work(b, &wide(p.vector));
    }

    fn work(&mut self, b: &StreamBlock, wide: &str) {
        let target = &self.stream.buffers[b.write.buffer].name;
        let reads: Vec<&str> = b.reads.iter().map(|r| self.stream.buffers[r.buffer].name.as_str()).collect();
        let from = if reads.is_empty() { String::new() } else { format!(" from {}", reads.join(", ")) };
        let kind = if b.kind == BlockKind::Reduce { "reduce" } else { "compute" };
        self.line(LineKind::Work, format!("{}: {kind} {target}{from}", b.name), &[wide]);
    }
}
