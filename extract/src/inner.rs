//! What a block does within one k tile, as labels: for each class below the staged operands, the choices that can be
//! among the k best, with what they cost. Labels are made bottom-up, on demand, each class once.
use crate::dominance::keep;
use crate::path::Path;
use crate::work::{self, LaneGrid, Work};
use egg::Id;
use satune_ir::term::{
    Axis, Contraction, Fill, Layout, Pair, Pipe, Place, Role, Side, Space, Stage, State, Team, Term,
};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock};

/// Components of a label, per warp and k tile: loads, wavefronts, sectors, L1 bytes and registers of A's fragments, of B's, stores
/// of results and their sectors, steps of the inner k loop that are not expanded.
pub(crate) type Vector = [f64; 13];

/// Where in a [`Vector`] an operand's numbers begin.
fn first(side: Side) -> usize {
    if side == Side::A {
        0
    } else {
        5
    }
}
/// Stores of results; their sectors follow.
const STORES: usize = 10;
/// Steps that are not expanded.
const ROLLED: usize = 12;

/// What the threads of a warp do in one k tile, and at the end.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    numbers: Vector,
    /// Operands are read where they are used, so repeats along one axis repeat the loads of both.
    pub direct: bool,
    pub path: Arc<Path>,
}

impl Label {
    /// (loads, wavefronts, sectors, L1 bytes, registers) of an operand.
    pub fn side(&self, side: Side) -> [f64; 5] {
        let i = first(side);
        let n = &self.numbers;
        [n[i], n[i + 1], n[i + 2], n[i + 3], n[i + 4]]
    }

    /// (stores, sectors).
    pub fn stores(&self) -> (f64, f64) {
        (self.numbers[STORES], self.numbers[STORES + 1])
    }

    /// Steps of the inner k loop that are not expanded.
    pub fn rolled(&self) -> f64 {
        self.numbers[ROLLED]
    }
}

/// What stands over a label that is being made: nodes from the outside in, and what is below.
struct Origin {
    nodes: [u16; 2],
    below: u32,
    direct: bool,
}

/// What the loads of a fragment by one warp depend on.
type FragmentKey = (Side, LaneGrid, Option<Layout>, i64, i64, u32);

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
    known: &'s Known,
    configs: HashMap<Id, Arc<Vec<Config>>>,
    fragments: HashMap<FragmentKey, [f64; 4]>,
}

/// Ways to fill one tile.
type Fills = Arc<Vec<FillLabel>>;

/// Labels that any worker has made.
#[derive(Default)]
pub(crate) struct Known {
    labels: RwLock<HashMap<Id, Arc<Vec<Label>>>>,
    fills: RwLock<HashMap<(Id, Pipe), Fills>>,
}

/// What a map has; a worker that panicked while it held the lock has left the map whole.
fn look_up<K: Eq + Hash, V: Clone>(map: &RwLock<HashMap<K, V>>, key: &K) -> Option<V> {
    map.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

fn store<K: Eq + Hash, V>(map: &RwLock<HashMap<K, V>>, key: K, value: V) {
    map.write().unwrap_or_else(PoisonError::into_inner).insert(key, value);
}

impl<'s> Labels<'s> {
    pub fn new(space: &'s Space, k: usize, known: &'s Known) -> Labels<'s> {
        Labels { space, k, known, configs: HashMap::new(), fragments: HashMap::new() }
    }

    fn contraction(&self) -> &'s Contraction {
        &self.space.contraction
    }

    /// Labels of a class at or below the virtual threads of a block.
    pub fn of(&mut self, class: Id) -> Arc<Vec<Label>> {
        let class = self.space.egraph.find(class);
        if let Some(found) = look_up(&self.known.labels, &class) {
            return found;
        }
        let labels = if self.space.state(class).stage == (Stage::Lanes { m: true, n: true }) {
            self.over_lanes(class)
        } else {
            self.over_loops(class)
        };
        let labels = Arc::new(labels);
        store(&self.known.labels, class, labels.clone());
        labels
    }

    /// Vthread loops repeat what is below; warp loops do not, for the numbers are those of one warp.
    fn over_loops(&mut self, class: Id) -> Vec<Label> {
        let space = self.space;
        let nodes: Vec<&Term> = space.choices(class).collect();
        let mut vectors: Vec<Vector> = Vec::new();
        let mut origins: Vec<Origin> = Vec::new();
        let mut bodies: Vec<Arc<Vec<Label>>> = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            let below = match node {
                Term::Loop { body, .. } => self.of(body[0]),
                _ => Arc::default(),
            };
            if let Term::Loop { axis, role, extent, .. } = node {
                let e = if *role == Role::Vthread { *extent as f64 } else { 1.0 };
                for (j, label) in below.iter().enumerate() {
                    let mut v = label.numbers;
                    for side in [Side::A, Side::B] {
                        if *axis == side.spatial() || label.direct {
                            v[first(side)..first(side) + 5].iter_mut().for_each(|x| *x *= e);
                        }
                    }
                    v[STORES] *= e;
                    v[STORES + 1] *= e;
                    vectors.push(v);
                    origins.push(Origin { nodes: [i as u16, 0], below: j as u32, direct: label.direct });
                }
            }
            bodies.push(below);
        }
        keep(&vectors, self.k)
            .into_iter()
            .map(|i| {
                let origin = &origins[i];
                let at = origin.nodes[0] as usize;
                let below = &bodies[at][origin.below as usize];
                let path = Path::over(nodes[at].clone(), below.path.clone());
                Label { numbers: vectors[i], direct: origin.direct, path }
            })
            .collect()
    }

    /// Pairs of lane loops over what a thread decides: here conflicts and sectors are known.
    fn over_lanes(&mut self, class: Id) -> Vec<Label> {
        let space = self.space;
        let mut pairs: Vec<(&Term, &Term, Arc<Vec<Config>>)> = Vec::new();
        let mut vectors: Vec<Vector> = Vec::new();
        let mut origins: Vec<Origin> = Vec::new();
        for outer in space.choices(class) {
            let Term::Loop { axis, extent, body, .. } = outer else { continue };
            for inner in space.choices(space.egraph.find(body[0])) {
                let Term::Loop { extent: e, body, .. } = inner else { continue };
                let thread = space.egraph.find(body[0]);
                let state = *space.state(thread);
                let m_outer = *axis == Axis::M;
                let (m, n) = if m_outer { (*extent, *e) } else { (*e, *extent) };
                let registers = Pair { m: state.tile.m, n: state.tile.n };
                let grid = LaneGrid { lanes: Pair { m, n }, m_outer, registers };
                let configs = self.configs(thread);
                let mut stored: HashMap<u32, (f64, f64)> = HashMap::new();
                for (j, config) in configs.iter().enumerate() {
                    let mut v = [0.0; 13];
                    for side in [Side::A, Side::B] {
                        self.fragment(side, &grid, &state, config, &mut v[first(side)..first(side) + 5]);
                    }
                    let contraction = self.contraction();
                    let (stores, sectors) =
                        *stored.entry(config.store).or_insert_with(|| work::store(contraction, &grid, config.store));
                    v[STORES] = stores;
                    v[STORES + 1] = sectors;
                    v[ROLLED] = config.rolled;
                    vectors.push(v);
                    let direct = config.vectors[0].is_none();
                    origins.push(Origin { nodes: [pairs.len() as u16, 0], below: j as u32, direct });
                }
                pairs.push((outer, inner, configs));
            }
        }
        keep(&vectors, self.k)
            .into_iter()
            .map(|i| {
                let origin = &origins[i];
                let (outer, inner, configs) = &pairs[origin.nodes[0] as usize];
                let below = configs[origin.below as usize].path.clone();
                let path = Path::over((*outer).clone(), Path::over((*inner).clone(), below));
                Label { numbers: vectors[i], direct: origin.direct, path }
            })
            .collect()
    }

    /// Writes (loads, wavefronts, sectors, L1 bytes, registers) of one piece of an operand's fragment.
    fn fragment(&mut self, side: Side, grid: &LaneGrid, state: &State, config: &Config, out: &mut [f64]) {
        let contraction = self.contraction();
        let vector = config.vectors[side as usize].unwrap_or(1);
        let layout = state.place(side).layout();
        let key = (side, *grid, layout, state.tile.k, config.k_step, vector);
        let [loads, wavefronts, sectors, l1] = *self.fragments.entry(key).or_insert_with(|| {
            // The pitch of rows along k is that of the k tile; that of rows along the spatial axis does not matter.
            let size = (256, state.tile.k, config.k_step);
            let read = work::fragment(contraction, side, grid, layout, size, vector);
            [read.loads, read.wavefronts.0, read.sectors, read.l1_bytes]
        });
        out.copy_from_slice(&[loads, wavefronts, sectors, l1, 0.0]);
        let (own, other) = match side {
            Side::A => (state.tile.m, state.tile.n),
            Side::B => (state.tile.n, state.tile.m),
        };
        if config.vectors[side as usize].is_some() {
            let words = crate::cost::words(contraction.operand(side).dtype);
            out[4] = (own * config.k_step * words) as f64;
        } else {
            out.iter_mut().for_each(|x| *x *= other as f64);
        }
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
        if let Some(found) = look_up(&self.known.fills, &(class, pipe)) {
            return found;
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
        store(&self.known.fills, (class, pipe), labels.clone());
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
