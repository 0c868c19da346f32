//! What a block does within one k tile, as labels: for each class below the staged operands, the choices that can be
//! among the k best, with what they cost. Labels are made bottom-up, on demand, each class once.
use crate::dominance::keep;
use crate::path::Path;
use crate::work::{self, LaneGrid, Work};
use egg::Id;
use satune_ir::term::{Axis, Contraction, Fill, Layout, Pair, Pipe, Place, Role, Side, Space, Stage, Team, Term};
use std::collections::HashMap;
use std::sync::Arc;

/// Loads of an operand by one warp in one k tile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SideWork {
    pub loads: f64,
    pub wavefronts: f64,
    pub wavefronts_ideal: f64,
    pub sectors: f64,
    pub registers: f64,
}

impl SideWork {
    fn scale(&mut self, e: f64) {
        self.loads *= e;
        self.wavefronts *= e;
        self.wavefronts_ideal *= e;
        self.sectors *= e;
        self.registers *= e;
    }
}

/// What the threads of a warp do in one k tile, and at the end.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub a: SideWork,
    pub b: SideWork,
    pub stores: f64,
    pub store_sectors: f64,
    /// Steps of the inner k loop that are not expanded.
    pub rolled: f64,
    /// Operands are read where they are used, so repeats along one axis repeat the loads of both.
    pub direct: bool,
    pub path: Arc<Path>,
}

impl Label {
    fn components(&self) -> [f64; 11] {
        let (a, b) = (&self.a, &self.b);
        [
            a.loads,
            a.wavefronts,
            a.sectors,
            a.registers,
            b.loads,
            b.wavefronts,
            b.sectors,
            b.registers,
            self.stores,
            self.store_sectors,
            self.rolled,
        ]
    }
}

/// One way to copy a tile.
#[derive(Clone, Debug)]
pub(crate) struct FillLabel {
    pub work: Work,
    /// Registers that hold the tile on its way.
    pub registers: f64,
    pub path: Arc<Path>,
}

impl FillLabel {
    pub(crate) fn components(&self) -> [f64; 7] {
        let w = &self.work;
        [
            w.global_loads,
            w.async_copies,
            w.shared_stores,
            w.shared_store_wavefronts,
            w.global_load_sectors,
            w.l1_bytes,
            self.registers,
        ]
    }
}

/// What a thread decides below its lanes.
#[derive(Clone)]
struct Config {
    k_step: i64,
    rolled: f64,
    /// Elements per access; `None`: read where it is used.
    vectors: [Option<u32>; 2],
    store: u32,
    path: Arc<Path>,
}

/// Labels of the classes of a space, for the k best.
pub(crate) struct Labels<'s> {
    pub space: &'s Space,
    pub k: usize,
    memo: HashMap<Id, Arc<Vec<Label>>>,
    fills: HashMap<(Id, Pipe), Arc<Vec<FillLabel>>>,
    configs: HashMap<Id, Arc<Vec<Config>>>,
}

impl<'s> Labels<'s> {
    pub fn new(space: &'s Space, k: usize) -> Labels<'s> {
        Labels { space, k, memo: HashMap::new(), fills: HashMap::new(), configs: HashMap::new() }
    }

    fn contraction(&self) -> &'s Contraction {
        &self.space.contraction
    }

    /// Labels of a class at or below the virtual threads of a block.
    pub fn of(&mut self, class: Id) -> Arc<Vec<Label>> {
        let class = self.space.egraph.find(class);
        if let Some(found) = self.memo.get(&class) {
            return found.clone();
        }
        let state = *self.space.state(class);
        // What stands over a label's path is added only to those kept.
        let mut labels: Vec<Label> = Vec::new();
        let mut above: Vec<[Option<Term>; 2]> = Vec::new();
        let choices: Vec<Term> = self.space.choices(class).cloned().collect();
        for node in choices {
            let Term::Loop { axis, role, extent, body, .. } = &node else { continue };
            if let (Stage::Lanes { m: true, n: true }, Role::Thread) = (state.stage, role) {
                self.lanes(&node, *axis, *extent, body[0], &mut labels, &mut above);
                continue;
            }
            let e = *extent as f64;
            for below in self.of(body[0]).iter() {
                let mut label = below.clone();
                if *role == Role::Vthread && *extent > 1 {
                    if *axis == Axis::M || label.direct {
                        label.a.scale(e);
                    }
                    if *axis == Axis::N || label.direct {
                        label.b.scale(e);
                    }
                    label.stores *= e;
                    label.store_sectors *= e;
                }
                labels.push(label);
                above.push([Some(node.clone()), None]);
            }
        }
        let vectors: Vec<[f64; 11]> = labels.iter().map(Label::components).collect();
        let labels: Vec<Label> = keep(&vectors, self.k)
            .into_iter()
            .map(|i| {
                let mut label = labels[i].clone();
                for node in above[i].iter().rev().flatten() {
                    label.path = Path::over(node.clone(), label.path);
                }
                label
            })
            .collect();
        let labels = Arc::new(labels);
        self.memo.insert(class, labels.clone());
        labels
    }

    /// Labels of a pair of lane loops over what a thread decides.
    fn lanes(
        &mut self,
        outer: &Term,
        axis: Axis,
        extent: i64,
        below: Id,
        labels: &mut Vec<Label>,
        above: &mut Vec<[Option<Term>; 2]>,
    ) {
        let below = self.space.egraph.find(below);
        let inner_nodes: Vec<Term> = self.space.choices(below).cloned().collect();
        for inner in inner_nodes {
            let Term::Loop { extent: e, body, .. } = &inner else { continue };
            let thread = self.space.egraph.find(body[0]);
            let state = *self.space.state(thread);
            let (m, n) = if axis == Axis::M { (extent, *e) } else { (*e, extent) };
            let grid = LaneGrid {
                lanes: Pair { m, n },
                m_outer: axis == Axis::M,
                registers: Pair { m: state.tile.m, n: state.tile.n },
            };
            let mut found: HashMap<(usize, i64, u32), SideWork> = HashMap::new();
            let mut stored: HashMap<u32, (f64, f64)> = HashMap::new();
            for config in self.configs(thread).iter() {
                let mut sides = [SideWork::default(); 2];
                for (i, side) in [Side::A, Side::B].into_iter().enumerate() {
                    let vector = config.vectors[i].unwrap_or(1);
                    sides[i] = *found.entry((i, config.k_step, vector)).or_insert_with(|| {
                        let layout = state.place(side).layout();
                        // The pitch of a row along k is that of the k tile; along the spatial axis it does not matter.
                        let spatial = 256;
                        let size = (spatial, state.tile.k, config.k_step);
                        let (loads, wavefronts, wavefronts_ideal, sectors) =
                            work::fragment(self.space_contraction(), side, &grid, layout, size, vector);
                        SideWork { loads, wavefronts, wavefronts_ideal, sectors, registers: 0.0 }
                    });
                    let registers = if i == 0 { state.tile.m } else { state.tile.n };
                    let words = crate::cost::words(self.contraction().operand(side).dtype);
                    if config.vectors[i].is_some() {
                        sides[i].registers = (registers * config.k_step * words) as f64;
                    } else {
                        let other = if i == 0 { state.tile.n } else { state.tile.m };
                        sides[i].scale(other as f64);
                    }
                }
                let (stores, store_sectors) = *stored
                    .entry(config.store)
                    .or_insert_with(|| work::store(self.space_contraction(), &grid, config.store));
                labels.push(Label {
                    a: sides[0],
                    b: sides[1],
                    stores,
                    store_sectors,
                    rolled: config.rolled,
                    direct: config.vectors[0].is_none(),
                    path: config.path.clone(),
                });
                above.push([Some(outer.clone()), Some(inner.clone())]);
            }
        }
    }

    fn space_contraction(&self) -> &'s Contraction {
        &self.space.contraction
    }

    /// Everything that a thread decides: steps of k, fragments, order of registers, width of stores.
    fn configs(&mut self, thread: Id) -> Arc<Vec<Config>> {
        if let Some(found) = self.configs.get(&thread) {
            return found.clone();
        }
        let mut out = Vec::new();
        let start = Config {
            k_step: 1,
            rolled: 0.0,
            vectors: [None; 2],
            store: 1,
            path: Path::leaf(Term::Store(Place::Local)),
        };
        self.walk(thread, start, &mut Vec::new(), &mut out);
        let out = Arc::new(out);
        self.configs.insert(thread, out.clone());
        out
    }

    fn walk(&self, class: Id, config: Config, above: &mut Vec<Term>, out: &mut Vec<Config>) {
        for node in self.space.choices(self.space.egraph.find(class)) {
            let mut config = config.clone();
            let next = match node {
                Term::Multiply(_) => {
                    let mut path = Path::leaf(node.clone());
                    for node in above.iter().rev() {
                        path = Path::over(node.clone(), path);
                    }
                    config.path = path;
                    out.push(config);
                    continue;
                }
                Term::Loop { axis: Axis::K, role, extent, total, body, .. } => {
                    config.k_step = total / extent;
                    config.rolled = if *role == Role::Unroll { 0.0 } else { *extent as f64 };
                    body[0]
                }
                Term::Loop { role: Role::Vector, extent, body, .. } => {
                    config.store = *extent as u32;
                    body[0]
                }
                Term::Fragment { side, vector, body, .. } => {
                    config.vectors[*side as usize] = Some(*vector);
                    body[0]
                }
                Term::Loop { body, .. } => body[0],
                Term::Operands(body) => body[0],
                _ => continue,
            };
            above.push(node.clone());
            self.walk(next, config, above, out);
            above.pop();
        }
    }

    /// Ways to fill a tile: (fill class, overlap).
    pub fn fills(&mut self, class: Id, side: Side, layout: Layout, pipe: Pipe) -> Arc<Vec<FillLabel>> {
        let class = self.space.egraph.find(class);
        if let Some(found) = self.fills.get(&(class, pipe)) {
            return found.clone();
        }
        let state = *self.space.state(class);
        let mut labels = Vec::new();
        if let Team::Cta(threads) = state.team {
            let mut ways = Vec::new();
            self.walk_fill(class, Fill { coalesced: true, vector: 1, unroll: false }, &mut Vec::new(), &mut ways);
            let size = (state.tile.m, state.tile.k);
            let dtype = self.contraction().operand(side).dtype;
            for (fill, path) in ways {
                let work = work::fill(self.contraction(), side, size, threads, pipe, (layout, fill));
                let held = fill.unroll || pipe == Pipe::Registers;
                let registers = match pipe {
                    Pipe::Async(_) => 0,
                    _ => crate::cost::staged_of(size.0 * size.1, threads, fill.vector, dtype, held),
                };
                labels.push(FillLabel { work, registers: registers as f64, path });
            }
        }
        let vectors: Vec<[f64; 7]> = labels.iter().map(FillLabel::components).collect();
        let labels: Vec<FillLabel> = keep(&vectors, self.k).into_iter().map(|i| labels[i].clone()).collect();
        let labels = Arc::new(labels);
        self.fills.insert((class, pipe), labels.clone());
        labels
    }

    fn walk_fill(&self, class: Id, fill: Fill, above: &mut Vec<Term>, out: &mut Vec<(Fill, Arc<Path>)>) {
        for node in self.space.choices(self.space.egraph.find(class)) {
            let mut fill = fill;
            let next = match node {
                Term::CopyElement(_) => {
                    let mut path = Path::leaf(node.clone());
                    for node in above.iter().rev() {
                        path = Path::over(node.clone(), path);
                    }
                    out.push((fill, path));
                    continue;
                }
                Term::Fuse { coalesced, body, .. } => {
                    fill.coalesced = *coalesced;
                    body[0]
                }
                Term::Loop { role, extent, body, .. } => {
                    match role {
                        Role::Vector => fill.vector = *extent as u32,
                        Role::Unroll => fill.unroll = true,
                        _ => {}
                    }
                    body[0]
                }
                _ => continue,
            };
            above.push(node.clone());
            self.walk_fill(next, fill, above, out);
            above.pop();
        }
    }
}
