//! What a block does within one k tile. Every class has its ideals: the least of each number over everything below it,
//! which bound what is below; a warp's classes, where lanes are placed, have labels: the choices that can be among the
//! k best, with what they cost. Both are made on demand, each class once.
use crate::dominance::{keep, Weighed};
use crate::path::Path;
use crate::tensor;
use crate::work::{self, LaneGrid, Work};
use egg::Id;
use satune_ir::term::{Axis, Pair, Pipe, Place, Role, Side, Space, Stage, StagedLayout, State, Term};
use satune_ir::DType;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Per warp and k tile: loads, wavefronts, sectors, L1 bytes and registers of A's fragments, of B's, stores of results,
/// their sectors and L1 bytes, steps of the inner k loop that are not expanded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers([f64; 14]);

/// Where in [`Numbers`] an operand's begin.
fn first(side: Side) -> usize {
    if side == Side::A {
        0
    } else {
        5
    }
}
/// Stores of results; their sectors and L1 bytes follow.
const STORES: usize = 10;
/// Steps that are not expanded.
const ROLLED: usize = 13;

impl Numbers {
    /// (loads, wavefronts, sectors, L1 bytes, registers) of an operand.
    pub fn side(&self, side: Side) -> [f64; 5] {
        let i = first(side);
        let n = &self.0;
        [n[i], n[i + 1], n[i + 2], n[i + 3], n[i + 4]]
    }

    /// (stores, sectors, L1 bytes).
    pub fn stores(&self) -> [f64; 3] {
        [self.0[STORES], self.0[STORES + 1], self.0[STORES + 2]]
    }

    /// Steps of the inner k loop that are not expanded.
    pub fn rolled(&self) -> f64 {
        self.0[ROLLED]
    }

    /// With everything repeated by virtual threads, along m and n. What is read where it is used is read again by those
    /// along either axis.
    pub fn repeated(&self, times: [f64; 2], flavour: Flavour) -> Numbers {
        let all = times[0] * times[1];
        let mut out = *self;
        for (side, own) in [(Side::A, times[0]), (Side::B, times[1])] {
            let factor = if flavour.direct { all } else { own };
            out.0[first(side)..first(side) + 5].iter_mut().for_each(|x| *x *= factor);
        }
        out.0[STORES..STORES + 3].iter_mut().for_each(|x| *x *= all);
        out
    }
}

/// What decides how numbers become time: within one flavour of a class they are comparable, since the registers of all
/// its programs are the same. It also keeps the best of A and the best of B from being taken from programs that deal
/// out the results differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flavour {
    /// Operands are read where they are used.
    pub direct: bool,
    /// The inner k loop is not expanded.
    pub rolled: bool,
    k_step: u8,
    /// A thread's results along m, in all its virtual threads below the class; those along n follow from the tile.
    rows: u32,
}

impl Flavour {
    /// Of programs that are repeated by virtual threads, along m and n.
    fn repeated(self, times: [f64; 2]) -> Flavour {
        Flavour { rows: self.rows * times[0] as u32, ..self }
    }

    /// Elements that a warp's lane reads over a k tile for each register of its fragments.
    pub fn per_register(self, dtype: DType, k_tile: i64) -> f64 {
        k_tile as f64 / (i64::from(self.k_step) * crate::cost::words(dtype)) as f64
    }

    /// Whether a compiler reads a step's fragments from shared memory while those of the one before are used.
    pub fn reads_ahead(self) -> bool {
        !self.rolled && !self.direct && self.k_step == 1
    }

    /// The flavour below virtual threads that repeat it, if there is one.
    pub fn below(self, times: [f64; 2]) -> Option<Flavour> {
        let times = (times[0] as u32).max(1);
        (self.rows % times == 0).then(|| Flavour { rows: self.rows / times, ..self })
    }
}

/// What no program below a class beats that has a flavour: the least of each number. In single precision to save
/// memory, rounded down.
#[derive(Clone, Debug)]
pub(crate) struct Ideal {
    pub flavour: Flavour,
    least: [f32; 14],
}

impl Ideal {
    pub fn least(&self) -> Numbers {
        Numbers(self.least.map(f64::from))
    }
}

/// The largest single-precision number that is not larger, for numbers that are not negative. Most are whole and small:
/// they stay as they are.
fn rounded_down(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) > x {
        // The bits of positive numbers are ordered as they are; this one is above `x`, so it is not 0.
        f32::from_bits(near.to_bits().saturating_sub(1))
    } else {
        near
    }
}

/// Takes up one more choice.
fn include(ideals: &mut Vec<Ideal>, flavour: Flavour, numbers: &Numbers) {
    let least = numbers.0.map(rounded_down);
    match ideals.iter_mut().find(|i| i.flavour == flavour) {
        Some(ideal) => ideal.least.iter_mut().zip(least).for_each(|(a, b)| *a = a.min(b)),
        None => ideals.push(Ideal { flavour, least }),
    }
}

/// A pair of lane loops with what a thread decides below them.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub numbers: Numbers,
    pub flavour: Flavour,
    /// Which pair of lane loops of the class.
    grid: usize,
    config: Config,
}

/// What a thread decides below its lanes that has a cost.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Config {
    k_step: i64,
    rolled: f64,
    /// Elements per access; `None`: read where it is used.
    vectors: [Option<u32>; 2],
    store: u32,
}

impl Config {
    fn flavour(&self, rows: i64) -> Flavour {
        let direct = self.vectors[0].is_none();
        Flavour { direct, rolled: self.rolled > 0.0, k_step: self.k_step as u8, rows: rows as u32 }
    }
}

/// Configurations, each with the number of programs that have it.
type Configs = Arc<Vec<(Config, usize)>>;

/// A pair of lane loops.
struct Lanes<'s> {
    nodes: [&'s Term; 2],
    grid: LaneGrid,
    thread: Id,
}

/// What the loads of a fragment by one warp depend on: operand, lanes, whether m is the outer loop, registers along the
/// operand's axis, layout and the k values that it is for, k tile, k step, elements per access.
type FragmentKey = (Side, Pair, bool, i64, Option<(StagedLayout, i64)>, i64, i64, u32);

/// Operand, k step, elements per access.
type PieceKey = (Side, i64, Option<u32>);

/// Labels of the classes of a space, for the k best.
pub(crate) struct Labels<'k, 's> {
    pub space: &'s Space,
    pub k: usize,
    pub known: &'k Known<'s>,
}

/// What can be among the k best of a class where lanes are placed.
type Choices = Arc<Vec<Label>>;

/// One way to copy a tile.
#[derive(Clone, Debug)]
pub(crate) struct FillLabel<'s> {
    pub work: Work,
    /// Registers that hold the tile on its way.
    pub registers: i64,
    pub path: Arc<Path<'s>>,
}

/// Ways to fill one tile.
pub(crate) type Fills<'s> = Arc<Vec<FillLabel<'s>>>;

/// What searches of one space have found out that depends on no GPU: whoever searches it again need not find it out again.
pub struct Known<'s> {
    ideals: Vec<OnceLock<Box<[Ideal]>>>,
    /// By class, for the k best.
    lanes: RwLock<HashMap<(Id, usize), Choices>>,
    configs: RwLock<HashMap<Id, Configs>>,
    fragments: RwLock<HashMap<FragmentKey, [f64; 4]>>,
    pub(crate) copies: RwLock<HashMap<(Id, bool, u32), Work>>,
    /// By class, for the k best.
    pub(crate) fills: RwLock<HashMap<(Id, Pipe, usize), Fills<'s>>>,
    pub(crate) tensor: tensor::Known<'s>,
}

impl Known<'_> {
    /// Nothing yet.
    pub fn new(space: &Space) -> Self {
        let ids = space.egraph.classes().map(|c| usize::from(c.id) + 1).max().unwrap_or(0);
        Known {
            ideals: (0..ids).map(|_| OnceLock::new()).collect(),
            lanes: RwLock::default(),
            configs: RwLock::default(),
            fragments: RwLock::default(),
            copies: RwLock::default(),
            fills: RwLock::default(),
            tensor: tensor::Known::default(),
        }
    }
}

/// What a map has; a worker that panicked while it held the lock has left the map whole.
pub(crate) fn look_up<K: Eq + Hash, V: Clone>(map: &RwLock<HashMap<K, V>>, key: &K) -> Option<V> {
    map.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

pub(crate) fn store<K: Eq + Hash, V>(map: &RwLock<HashMap<K, V>>, key: K, value: V) {
    map.write().unwrap_or_else(PoisonError::into_inner).insert(key, value);
}

impl<'k, 's> Labels<'k, 's> {
    /// Whether lanes are placed next: such a class has labels.
    pub fn at_lanes(&self, class: Id) -> bool {
        self.space.state(class).stage == (Stage::Lanes { m: true, n: true })
    }

    /// The ideals of a class at or below the virtual threads of a block, one for each flavour that it has.
    pub fn ideals(&self, class: Id) -> &'k [Ideal] {
        let class = self.space.egraph.find(class);
        let Some(cell) = self.known.ideals.get(usize::from(class)) else { return &[] };
        cell.get_or_init(|| {
            let found = if self.at_lanes(class) { self.over_lanes(class) } else { self.over_loops(class) };
            found.into_boxed_slice()
        })
    }

    /// Vthread loops repeat what is below; warp loops do not, for the numbers are those of one warp.
    fn over_loops(&self, class: Id) -> Vec<Ideal> {
        let mut ideals = Vec::new();
        for node in self.space.choices(class) {
            let Term::Loop { axis, role, extent, body, .. } = node else { continue };
            let times = repeats(*axis, *role, *extent);
            for ideal in self.ideals(body[0]) {
                let flavour = ideal.flavour.repeated(times);
                include(&mut ideals, flavour, &ideal.least().repeated(times, flavour));
            }
        }
        ideals
    }

    fn over_lanes(&self, class: Id) -> Vec<Ideal> {
        let mut ideals = Vec::new();
        for lanes in self.lanes(class) {
            let configs = self.configs(lanes.thread);
            for ((config, _), numbers) in configs.iter().zip(self.numbers(&lanes, &configs)) {
                include(&mut ideals, config.flavour(lanes.grid.registers.m), &numbers);
            }
        }
        ideals
    }

    /// The labels of a class where lanes are placed.
    pub fn labels(&self, class: Id) -> Choices {
        let class = self.space.egraph.find(class);
        if let Some(found) = look_up(&self.known.lanes, &(class, self.k)) {
            return found;
        }
        let mut labels = Vec::new();
        let mut weighed = Vec::new();
        for (grid, lanes) in self.lanes(class).iter().enumerate() {
            let configs = self.configs(lanes.thread);
            for ((config, ways), numbers) in configs.iter().zip(self.numbers(lanes, &configs)) {
                let flavour = config.flavour(lanes.grid.registers.m);
                weighed.push(Weighed { numbers: numbers.0, group: flavour, ways: *ways });
                labels.push(Label { numbers, flavour, grid, config: *config });
            }
        }
        let labels: Vec<Label> = keep(&weighed, self.k).into_iter().map(|i| labels[i].clone()).collect();
        let labels = Arc::new(labels);
        store(&self.known.lanes, (class, self.k), labels.clone());
        labels
    }

    /// The programs that a label of a class stands for.
    pub fn paths(&self, class: Id, label: &Label) -> Vec<Arc<Path<'s>>> {
        let mut out = Vec::new();
        if let Some(lanes) = self.lanes(self.space.egraph.find(class)).get(label.grid) {
            self.walk(lanes.thread, Config::default(), &mut Vec::new(), &mut |config, above, leaf| {
                if config == label.config {
                    let below = Path::over(lanes.nodes[1], Path::chain(above, leaf), None);
                    out.push(Path::over(lanes.nodes[0], below, None));
                }
            });
        }
        out
    }

    /// Pairs of lane loops: with them, conflicts and sectors are known.
    fn lanes(&self, class: Id) -> Vec<Lanes<'s>> {
        let space = self.space;
        let mut out = Vec::new();
        for outer in space.choices(class) {
            let Term::Loop { axis, extent, body, .. } = outer else { continue };
            for inner in space.choices(space.egraph.find(body[0])) {
                let Term::Loop { extent: e, body, .. } = inner else { continue };
                let thread = space.egraph.find(body[0]);
                let tile = space.state(thread).tile;
                let m_outer = *axis == Axis::M;
                let (m, n) = if m_outer { (*extent, *e) } else { (*e, *extent) };
                let registers = Pair { m: tile.m, n: tile.n };
                let grid = LaneGrid { lanes: Pair { m, n }, m_outer, registers };
                out.push(Lanes { nodes: [outer, inner], grid, thread });
            }
        }
        out
    }

    /// The numbers of each configuration under a pair of lane loops.
    fn numbers(&self, lanes: &Lanes<'s>, configs: &[(Config, usize)]) -> Vec<Numbers> {
        let state = *self.space.state(lanes.thread);
        let contraction = &self.space.contraction;
        // Few differ: (operand, k step, access) and the width of stores.
        let mut pieces: Vec<(PieceKey, [f64; 5])> = Vec::new();
        let mut stored: Vec<(u32, [f64; 3])> = Vec::new();
        let mut out = Vec::with_capacity(configs.len());
        for (config, _) in configs {
            let mut v = [0.0; 14];
            for side in [Side::A, Side::B] {
                let key = (side, config.k_step, config.vectors[side as usize]);
                let piece = match pieces.iter().find(|p| p.0 == key) {
                    Some(found) => found.1,
                    None => {
                        let made = self.piece(side, &lanes.grid, &state, config);
                        pieces.push((key, made));
                        made
                    }
                };
                v[first(side)..first(side) + 5].copy_from_slice(&piece);
            }
            let stores = match stored.iter().find(|s| s.0 == config.store) {
                Some(found) => found.1,
                None => {
                    let made = work::store(contraction, &lanes.grid, config.store);
                    stored.push((config.store, made));
                    made
                }
            };
            v[STORES..STORES + 3].copy_from_slice(&stores);
            v[ROLLED] = config.rolled;
            out.push(Numbers(v));
        }
        out
    }

    /// (loads, wavefronts, sectors, L1 bytes, registers) of one piece of an operand's fragment.
    fn piece(&self, side: Side, grid: &LaneGrid, state: &State, config: &Config) -> [f64; 5] {
        let contraction = &self.space.contraction;
        let access = config.vectors[side as usize];
        let vector = access.unwrap_or(1);
        // The pitch of rows along k is that of the k tile, or one as good as that of the strip.
        let layout = match state.place(side) {
            Place::Shared(layout) => Some((layout, state.tile.k)),
            Place::Strip(layout, k) => Some((layout, k)),
            _ => None,
        };
        let (own, other) = match side {
            Side::A => (state.tile.m, state.tile.n),
            Side::B => (state.tile.n, state.tile.m),
        };
        let key = (side, grid.lanes, grid.m_outer, own, layout, state.tile.k, config.k_step, vector);
        let [loads, wavefronts, sectors, l1] = look_up(&self.known.fragments, &key).unwrap_or_else(|| {
            // The pitch of rows along the spatial axis does not matter.
            let size = (256, state.tile.k, config.k_step);
            let read = work::fragment(contraction, side, grid, layout, size, vector);
            let made = [read.loads, read.wavefronts.0, read.sectors, read.l1_bytes];
            store(&self.known.fragments, key, made);
            made
        });
        if access.is_some() {
            let words = crate::cost::words(contraction.operand(side).dtype);
            [loads, wavefronts, sectors, l1, (own * config.k_step * words) as f64]
        } else {
            [loads, wavefronts, sectors, l1, 0.0].map(|x| x * other as f64)
        }
    }

    /// Everything that a thread decides: steps of k, fragments, order of registers, width of stores.
    fn configs(&self, thread: Id) -> Configs {
        if let Some(found) = look_up(&self.known.configs, &thread) {
            return found;
        }
        let mut out: Vec<(Config, usize)> = Vec::new();
        self.walk(thread, Config::default(), &mut Vec::new(), &mut |config, _, _| match out
            .iter_mut()
            .find(|c| c.0 == config)
        {
            Some(same) => same.1 += 1,
            None => out.push((config, 1)),
        });
        let out = Arc::new(out);
        store(&self.known.configs, thread, out.clone());
        out
    }

    fn walk(
        &self,
        class: Id,
        config: Config,
        above: &mut Vec<&'s Term>,
        visit: &mut dyn FnMut(Config, &[&'s Term], &'s Term),
    ) {
        for node in self.space.choices(self.space.egraph.find(class)) {
            let mut config = config;
            let next = match node {
                Term::Multiply(_) => {
                    visit(config, above, node);
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
            above.push(node);
            self.walk(next, config, above, visit);
            above.pop();
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config { k_step: 1, rolled: 0.0, vectors: [None; 2], store: 1 }
    }
}

/// How often a loop repeats what a warp does, along m and along n.
pub(crate) fn repeats(axis: Axis, role: Role, extent: i64) -> [f64; 2] {
    match (role, axis) {
        (Role::Vthread, Axis::M) => [extent as f64, 1.0],
        (Role::Vthread, Axis::N) => [1.0, extent as f64],
        _ => [1.0, 1.0],
    }
}
