//! What a question fixes of a streaming schedule, and which programs of a space keep to it.
use crate::cli::ask::decisions::{alone, freer, part, Part};
use crate::cli::ask::{fixed, Fixes};
use egg::Id;
use satune_ir::term::stream::{
    How, KernelPlan, RowParts, RowPlace, Sharing, Step, Stream, StreamBlock, StreamPlan, StreamTerm, Streams, Window,
};
use satune_ir::term::{Schedule, Space};

/// How a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::ask) enum KernelKind {
    Rows,
    Flat,
    Tile,
    Plain,
    Tiled,
}

/// What is fixed of kernels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::cli::ask) struct Kernel {
    /// The blocks of the kernel, all of them.
    pub blocks: Option<Vec<String>>,
    pub kind: Option<KernelKind>,
    /// Rows of a block of threads.
    pub rows: Option<i64>,
    pub side_by_side: Option<i64>,
    pub threads: Option<i64>,
    /// Threads that share a sum of a plain kernel, and whether they are neighbours; of one thread none are.
    pub sharing: Option<(i64, bool)>,
    pub vector: Option<i64>,
    /// Results of a thread of a plain kernel along another loop, and which; 1 where there is none.
    pub window: Option<(i64, Option<String>)>,
    /// Unrolled steps of a flat kernel.
    pub steps: Option<i64>,
    pub tile: Option<i64>,
    pub pad: Option<i64>,
    /// Where buffers are held.
    pub held: Vec<(String, RowPlace)>,
    /// Whether the loops of blocks are unrolled.
    pub unroll: Vec<(String, bool)>,
    /// The whole schedule of a contraction.
    pub tiled: Option<Box<Schedule>>,
}

/// Threads of a sum, and whether they are neighbours.
fn shared_by(sharing: Option<Sharing>) -> (i64, bool) {
    sharing.map_or((1, false), |s| (s.threads, s.lanes))
}

/// The results of a thread along a loop, and the loop's name.
fn along(window: Option<Window>, block: Option<&StreamBlock>) -> (i64, Option<String>) {
    let Some(window) = window else { return (1, None) };
    let iter = block.and_then(|b| b.iters.get(window.iter)).map(|i| i.name.clone());
    (window.results, iter)
}

/// Whether a window is the one that is asked for, along any loop where none is named.
fn slides((results, named): &(i64, Option<String>), window: Option<Window>, stream: &Stream) -> bool {
    let blocks = stream.plain_blocks(0, stream.blocks.len());
    let (own, iter) = along(window, blocks.map(|blocks| &stream.blocks[blocks.block]));
    own == *results && (named.is_none() || *named == iter)
}

/// Every part of a kernel, by its decision.
const PARTS: &[Part<Kernel>] = &[
    part(&["kernel"], "blocks", |k| k.blocks = None),
    part(&["as"], "kind", |k| k.kind = None),
    part(&["rows"], "rows", |k| k.rows = None),
    part(&["side by side"], "side by side", |k| k.side_by_side = None),
    part(&["threads"], "threads", |k| k.threads = None),
    part(&["sharing"], "sharing", |k| k.sharing = None),
    part(&["vector"], "vector", |k| k.vector = None),
    part(&["window"], "window", |k| k.window = None),
    part(&["steps"], "steps", |k| k.steps = None),
    part(&["tile"], "tile", |k| k.tile = None),
    part(&["pad"], "tile", |k| k.pad = None),
    part(&["hold"], "held", |k| k.held.clear()),
    part(&["unroll"], "unrolled", |k| k.unroll.clear()),
    part(&["tiles"], "tiles", |k| k.tiled = None),
];

/// How a word says which kernel it is about.
pub(super) fn whose(block: &Option<String>) -> String {
    block.as_ref().map_or_else(String::new, |b| format!("{b}: "))
}

/// What a question fixes; the rest is free.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::cli::ask) struct Fixed {
    /// Blocks, and whether they are inlined.
    pub inlined: Vec<(String, bool)>,
    /// Parts that rows are split into.
    pub parts: Option<i64>,
    /// Whether reductions use the parts of earlier ones.
    pub cascaded: Option<bool>,
    /// Whether there is one kernel only.
    pub one: bool,
    /// The kernel that has a block, or every one.
    pub kernels: Vec<(Option<String>, Kernel)>,
}

impl Kernel {
    /// How the kernel must run for its words to mean something.
    pub fn implied(&self) -> Option<KernelKind> {
        let rows = self.rows.is_some() || !self.held.is_empty() || !self.unroll.is_empty();
        if self.tile.is_some() || self.pad.is_some() {
            Some(KernelKind::Tile)
        } else if rows {
            Some(KernelKind::Rows)
        } else if self.steps.is_some() {
            Some(KernelKind::Flat)
        } else if self.sharing.is_some_and(|(threads, _)| threads > 1)
            || self.window.as_ref().is_some_and(|(results, _)| *results > 1)
        {
            Some(KernelKind::Plain)
        } else {
            self.kind
        }
    }

    fn keeps(&self, node: &StreamTerm, stream: &Stream, named: bool) -> bool {
        let (from, to) = (0, stream.blocks.len());
        let same = |fixed: Option<i64>, value: i64| fixed.is_none_or(|f| f == value);
        let kind = match node {
            StreamTerm::Tile { .. } => Some(KernelKind::Tile),
            StreamTerm::Plain { .. } => Some(KernelKind::Plain),
            StreamTerm::Tiled { .. } => Some(KernelKind::Tiled),
            StreamTerm::Blocks { .. } => Some(KernelKind::Rows),
            StreamTerm::Threads { .. } => Some(KernelKind::Flat),
            _ => None,
        };
        if let (Some(kind), Some(wanted)) = (kind, self.implied()) {
            let able = match wanted {
                KernelKind::Rows => stream.fits_row(from, to),
                KernelKind::Flat => stream.fits_flat(from, to),
                KernelKind::Tile => to == from + 1 && stream.transposed(from).is_some(),
                KernelKind::Plain => stream.fits_plain(from, to),
                KernelKind::Tiled => stream.contraction(from, to).is_some(),
            };
            // A word about kernels of one kind says nothing of those that cannot be of it, unless they are named.
            if kind != wanted && (able || named) {
                return false;
            }
        }
        match node {
            StreamTerm::Tile { side, .. } => same(self.tile, *side),
            StreamTerm::Wide { vector, .. } => same(self.vector, *vector),
            StreamTerm::Team { threads, .. } => same(self.threads, *threads),
            StreamTerm::Plain { teams, vector, window, sharing, .. } => {
                same(self.threads, *teams)
                    && same(self.vector, *vector)
                    && self.window.as_ref().is_none_or(|own| slides(own, *window, stream))
                    && self.sharing.is_none_or(|own| own == shared_by(*sharing))
            }
            StreamTerm::Tiled { plan, .. } => {
                same(self.threads, plan.threads().into()) && self.tiled.as_ref().is_none_or(|own| own == plan)
            }
            StreamTerm::Pad { pad, .. } => same(self.pad, *pad),
            StreamTerm::Blocks { rows, .. } => same(self.rows, *rows),
            StreamTerm::Threads { side_by_side, threads, .. } => {
                same(self.side_by_side, *side_by_side) && same(self.threads, *threads)
            }
            StreamTerm::Steps { steps, vector, .. } => same(self.steps, *steps) && same(self.vector, *vector),
            StreamTerm::Rows { side_by_side, .. } => same(self.side_by_side, *side_by_side),
            StreamTerm::Columns { threads, vector, .. } => same(self.threads, *threads) && same(self.vector, *vector),
            StreamTerm::Hold { buffer, place, .. } => {
                let name = stream.buffers.get(usize::from(*buffer)).map(|b| b.name.as_str());
                self.held.iter().all(|(b, p)| Some(b.as_str()) != name || p == place)
            }
            StreamTerm::Stage { block, unroll, .. } => {
                let name = stream.blocks.get(usize::from(*block)).map(|b| b.name.as_str());
                self.unroll.iter().all(|(b, u)| Some(b.as_str()) != name || u == unroll)
            }
            _ => true,
        }
    }
}

impl Fixed {
    /// Whether rows may be split so.
    pub fn splits(&self, parts: RowParts) -> bool {
        self.parts.is_none_or(|p| p == parts.number) && self.cascaded.is_none_or(|c| c == parts.cascaded)
    }

    /// Every decision of a plan.
    pub fn of(plan: &StreamPlan, streams: &Streams) -> Fixed {
        let cascaded = (plan.parts > 1).then_some(plan.cascaded);
        let one = plan.kernels.len() == 1;
        let mut fixed = Fixed { parts: Some(plan.parts), cascaded, one, ..Fixed::default() };
        fixed.inlined = plan.inlined.iter().map(|i| (i.block.clone(), true)).collect();
        for kernel in &plan.kernels {
            let blocks: Vec<String> = kernel.blocks().into_iter().map(String::from).collect();
            let parted = |name: &String| name.trim_end_matches("_rf").to_string();
            fixed.inlined.extend(blocks.iter().map(|b| (if plan.parts > 1 { parted(b) } else { b.clone() }, false)));
            let first = blocks.first().cloned();
            let mut own = Kernel { blocks: Some(blocks), ..Kernel::default() };
            match kernel {
                KernelPlan::Row(p) => {
                    own.kind = Some(KernelKind::Rows);
                    own.rows = Some(p.rows_per_block());
                    (own.side_by_side, own.threads, own.vector) =
                        (Some(p.side_by_side), Some(p.threads), Some(p.vector));
                    own.held = p.held.iter().map(|h| (h.buffer.clone(), h.place)).collect();
                    own.unroll = p.blocks.iter().cloned().zip(p.unroll.iter().copied()).collect();
                }
                KernelPlan::Flat(p) => {
                    own.kind = Some(KernelKind::Flat);
                    (own.side_by_side, own.threads, own.vector) =
                        (Some(p.side_by_side), Some(p.threads), Some(p.vector));
                    own.steps = Some(p.steps);
                }
                KernelPlan::Tile(p) => {
                    own.kind = Some(KernelKind::Tile);
                    (own.tile, own.threads, own.vector, own.pad) =
                        (Some(p.side), Some(p.threads), Some(p.vector), Some(p.pad));
                }
                KernelPlan::Plain(p) => {
                    (own.kind, own.threads, own.vector) = (Some(KernelKind::Plain), Some(p.teams), Some(p.vector));
                    own.sharing = Some(shared_by(p.sharing));
                    let block = streams.works.iter().flat_map(|work| &work.blocks).find(|b| b.name == p.block);
                    own.window = Some(along(p.window, block));
                }
                KernelPlan::Tiled(p) => {
                    (own.kind, own.threads) = (Some(KernelKind::Tiled), Some(kernel.threads()));
                    own.tiled = Some(Box::new(p.plan.clone()));
                }
            }
            fixed.kernels.push((first, own));
        }
        fixed
    }
}

impl Fixes for Fixed {
    type Term = StreamTerm;

    fn keeps(&self, space: &Space<StreamTerm>, class: Id, node: &StreamTerm) -> bool {
        let state = space.state(class);
        let problem = space.problem();
        let decided = |block: &str, inlined: bool| self.inlined.iter().all(|(b, i)| b != block || *i == inlined);
        let Some(stream) = problem.works.get(usize::from(state.work)) else { return true };
        match node {
            StreamTerm::Become { at, choice, .. } => {
                let choices = problem.choices.get(at);
                let chosen = choices.and_then(|c| c.becomes.get(usize::from(*choice))).map(|b| &b.how);
                return match chosen {
                    Some(How::Inline(inlining)) => decided(&inlining.block, true),
                    Some(How::Cascade(cascade)) => cascade.inlined.iter().all(|i| decided(&i.block, true)),
                    Some(How::Part(_)) | None => true,
                };
            }
            StreamTerm::Keep { at, .. } => {
                return stream.blocks.get(usize::from(at.kept)).is_none_or(|b| decided(&b.name, false));
            }
            StreamTerm::Parts { parts, .. } => return self.splits(*parts),
            StreamTerm::Then { at, .. } | StreamTerm::Last { at, .. } => {
                let names: Vec<&str> = stream.blocks.iter().take(at.kept.into()).map(|b| b.name.as_str()).collect();
                let together = self.kernels.iter().filter_map(|(_, k)| k.blocks.as_ref()).all(|wanted| {
                    // The kernel that has one of them has them all, and no other.
                    !wanted.iter().any(|w| names.contains(&w.as_str())) || names == *wanted
                });
                return together && !(self.one && matches!(node, StreamTerm::Then { .. }));
            }
            _ => {}
        }
        if matches!(state.step, Step::Parts | Step::Block(..)) {
            return true;
        }
        self.kernels.iter().all(|(name, kernel)| {
            let mine = name.as_ref().is_none_or(|n| stream.blocks.iter().any(|b| b.name == *n));
            !mine || kernel.keeps(node, stream, name.is_some())
        })
    }

    fn freer(&self) -> Vec<(String, Fixed)> {
        let mut out: Vec<(String, Fixed)> = Vec::new();
        let mut without = |name: String, change: &dyn Fn(&mut Fixed)| {
            let mut freer = self.clone();
            change(&mut freer);
            out.push((name, freer));
        };
        for (at, (block, inlined)) in self.inlined.iter().enumerate() {
            let word = if *inlined { "inline" } else { "keep" };
            without(format!("{word} {block}"), &|f| {
                f.inlined.remove(at);
            });
        }
        without("parts".into(), &|f| f.parts = None);
        without("cascaded".into(), &|f| f.cascaded = None);
        without("one kernel".into(), &|f| f.one = false);
        for (at, (block, kernel)) in self.kernels.iter().enumerate() {
            for (word, freer) in freer(PARTS, kernel) {
                without(format!("{}{word}", whose(block)), &|f| f.kernels[at].1 = freer.clone());
            }
        }
        out
    }

    fn decisions(&self) -> Vec<(String, Fixed)> {
        let mut out: Vec<(String, Fixed)> = Vec::new();
        for (block, inlined) in &self.inlined {
            let alone = Fixed { inlined: vec![(block.clone(), *inlined)], ..Fixed::default() };
            out.push((format!("{block} inlined or kept"), alone));
        }
        out.push(("parts of rows".into(), Fixed { parts: self.parts, ..Fixed::default() }));
        out.push(("cascaded reductions".into(), Fixed { cascaded: self.cascaded, ..Fixed::default() }));
        out.push(("one kernel".into(), Fixed { one: self.one, ..Fixed::default() }));
        for (block, kernel) in &self.kernels {
            for (decision, kept) in alone(PARTS, kernel) {
                if kept != Kernel::default() {
                    let alone = Fixed { kernels: vec![(block.clone(), kept)], ..Fixed::default() };
                    out.push((format!("{}{decision}", whose(block)), alone));
                }
            }
        }
        out.retain(|(_, alone)| *alone != Fixed::default());
        out
    }

    fn words(&self) -> String {
        Fixed::words(self)
    }

    fn told(&self) -> Vec<(String, String)> {
        let of_rows = self.decisions().into_iter().map(|(name, alone)| (name, alone.words()));
        let tiles = self.kernels.iter().filter_map(|(block, kernel)| Some((block, kernel.tiled.as_deref()?)));
        let of_tiles = tiles.flat_map(|(block, plan)| {
            let of = whose(block);
            let all = fixed::Fixed::of_schedule(plan).unwrap_or_default().decisions().into_iter();
            all.map(move |(name, alone)| (format!("{of}{name}"), alone.words()))
        });
        of_rows.chain(of_tiles).collect()
    }
}
