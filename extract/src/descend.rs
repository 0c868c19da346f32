//! The search below an outer choice: which operands are staged and how, then, loop by loop, what a block does within a
//! k tile. At every step the ideals of the class that is entered, and the least of all fills, bound what is below; the
//! most promising part is entered first.
use crate::cores::{least_ms, time, Inner, Outer, Waits};
use crate::fills::{combinations, floor, floor_of, Combination, Copied, Floor};
use crate::inner::{repeats, Flavour, Ideal, Label, Numbers};
use crate::path::{Above, Path};
use crate::topk::{Search, Unit};
use crate::work::{self, distinct_sectors, epilogue, outer_iterations, stored, Work};
use egg::Id;
use satune_ir::term::{Pipe, Side, State, Team, Term, Way};

/// The operands that are staged: strips, then tiles.
#[derive(Default)]
struct Staged<'s> {
    copied: Vec<Copied<'s>>,
    /// The nodes of the tiles.
    nodes: Vec<&'s Term>,
}

impl Staged<'_> {
    /// Shared memory that they take, bytes.
    fn bytes(&self) -> i64 {
        self.copied.iter().map(|c| c.bytes).sum()
    }

    /// Where the k loop finds an operand.
    fn way(&self, side: Side) -> Way {
        self.copied.iter().find(|c| c.side == side).map_or(Way::Direct, |c| c.way)
    }

    fn ways(&self) -> [Way; 2] {
        [Side::A, Side::B].map(|side| self.way(side))
    }
}

/// Everything that is fixed when the loops within a k tile are searched.
struct Block<'a, 's> {
    unit: &'a Unit<'s>,
    staged: &'a Staged<'s>,
    /// The node that ends the staging where an operand is left out.
    direct: Option<&'s Term>,
    state: State,
    contexts: Vec<(Outer<'a>, Above<'s>)>,
    /// The fills that are left, and the least of them.
    fills: Vec<&'a Combination<'s>>,
    floor: Floor,
}

impl<'s> Search<'_, 's> {
    /// Looks at every choice below a unit.
    pub(crate) fn look_into(&mut self, unit: &Unit<'s>) {
        let mut staged = Staged::default();
        for strip in &unit.strips {
            let fills = self.labels.fills(strip.fill, strip.side, strip.layout, Pipe::Plain);
            if fills.is_empty() {
                return;
            }
            staged.copied.push(Copied { side: strip.side, way: Way::Strip, fills, bytes: strip.bytes });
        }
        self.stages(unit, unit.staging, &mut staged);
    }

    fn stages(&mut self, unit: &Unit<'s>, class: Id, staged: &mut Staged<'s>) {
        let space = self.space;
        for node in space.choices(class) {
            match node {
                Term::Stage { side, layout, pipe, more, tile, children, .. } => {
                    let element = i64::from(space.contraction.operand(*side).dtype.bytes());
                    let bytes = layout.elements(tile[0], tile[1]) * element * pipe.buffers();
                    let fills = self.labels.fills(children[0], *side, *layout, *pipe);
                    if fills.is_empty() {
                        continue;
                    }
                    let next = space.egraph.find(children[1]);
                    staged.nodes.push(node);
                    staged.copied.push(Copied { side: *side, way: Way::Tile, fills, bytes });
                    if *more {
                        self.stages(unit, next, staged);
                    } else {
                        self.enter(unit, next, staged, None);
                    }
                    staged.copied.pop();
                    staged.nodes.pop();
                }
                Term::Direct { body, .. } => self.enter(unit, space.egraph.find(body[0]), staged, Some(node)),
                _ => {}
            }
        }
    }

    fn enter(&mut self, unit: &Unit<'s>, class: Id, staged: &Staged<'s>, direct: Option<&'s Term>) {
        let state = *self.space.state(unit.accumulators);
        let rounds = outer_iterations(&self.space.contraction);
        let floor = floor(&staged.copied, rounds);
        // Without the ideals, which may have to be made: is it worth a look?
        let Some(outer) = self.least_outer(unit) else { return };
        if self.hopeless(self.least(unit, &outer, staged.ways(), staged.bytes(), Some(&floor))) {
            return;
        }
        let contexts = self.contexts(unit);
        let mut block = Block { unit, staged, direct, state, contexts, fills: Vec::new(), floor };
        let mut parts: Vec<(f64, &Ideal)> = Vec::new();
        for ideal in self.labels.ideals(class) {
            let bound = self.bound_with(&block, &ideal.least(), ideal.flavour);
            if !self.hopeless(bound) {
                parts.push((bound, ideal));
            }
        }
        if parts.is_empty() {
            return;
        }
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all = combinations(&staged.copied, rounds, self.query.k);
        for (_, ideal) in parts {
            // Fills that cannot win even with the ideal are left out: the floor of the others is higher.
            let left = all.iter().filter_map(|fills| {
                let work = [&fills.work.tile, &fills.work.begin];
                let inner = self.summary(&block, &ideal.least(), ideal.flavour, work, fills.work.registers());
                let outer = &block.contexts.first()?.0;
                let most = inner.fragment_registers + inner.staged_registers;
                (!self.hopeless(least_ms(outer, &inner, Some(most)))).then_some(fills)
            });
            let left: Vec<&Combination<'s>> = left.collect();
            if !left.is_empty() {
                block.floor = floor_of(&left);
                block.fills = left;
                self.descend(&block, class, [1.0; 2], ideal.flavour, &mut Vec::new());
            }
        }
    }

    /// What no program beats that has these numbers at least, with the least of all fills.
    fn bound_with(&self, block: &Block<'_, 's>, numbers: &Numbers, flavour: Flavour) -> f64 {
        let Some((outer, _)) = block.contexts.first() else { return f64::INFINITY };
        let [least_registers, most_registers] = block.floor.registers;
        let work = [&block.floor.tile, &block.floor.begin];
        let inner = self.summary(block, numbers, flavour, work, least_registers);
        least_ms(outer, &inner, Some(inner.fragment_registers + most_registers))
    }

    /// Loop by loop down to the lanes; `above` holds the loops that were taken, whose virtual threads repeat what is below
    /// so many times; `flavour` is that of what is below.
    fn descend(
        &mut self,
        block: &Block<'_, 's>,
        class: Id,
        times: [f64; 2],
        flavour: Flavour,
        above: &mut Vec<&'s Term>,
    ) {
        let space = self.space;
        if self.labels.at_lanes(class) {
            for label in self.labels.labels(class).iter().filter(|l| l.flavour == flavour) {
                self.try_label(block, class, label, times, above);
            }
            return;
        }
        let mut parts = Vec::new();
        for node in space.choices(class) {
            let Term::Loop { axis, role, extent, body, .. } = node else { continue };
            let more = repeats(*axis, *role, *extent);
            let below = space.egraph.find(body[0]);
            let Some(flavour) = flavour.below(more) else { continue };
            let Some(ideal) = self.labels.ideals(below).iter().find(|i| i.flavour == flavour) else { continue };
            let times = [times[0] * more[0], times[1] * more[1]];
            let bound = self.bound_with(block, &ideal.least().repeated(times, flavour), flavour);
            if !self.hopeless(bound) {
                parts.push((bound, node, below, times, flavour));
            }
        }
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (bound, node, below, times, flavour) in parts {
            if self.hopeless(bound) {
                return;
            }
            above.push(node);
            self.descend(block, below, times, flavour, above);
            above.pop();
        }
    }

    fn try_label(&mut self, block: &Block<'_, 's>, class: Id, label: &Label, times: [f64; 2], above: &[&'s Term]) {
        let numbers = label.numbers.repeated(times, label.flavour);
        if self.hopeless(self.bound_with(block, &numbers, label.flavour)) {
            return;
        }
        let key = (block.state.tile.m, block.state.tile.n, block.unit.k_tile);
        for fills in &block.fills {
            let work = [&fills.work.tile, &fills.work.begin];
            let inner = self.summary(block, &numbers, label.flavour, work, fills.work.registers());
            for (outer, around) in &block.contexts {
                let Ok(found) = time(outer, &inner) else { break };
                if self.hopeless(found.ms) {
                    // The contexts that follow move more bytes.
                    break;
                }
                for path in self.labels.paths(class, label) {
                    let path = above.iter().rev().fold(path, |path, node| Path::over(node, path, None));
                    let path = block.direct.iter().fold(path, |path, node| Path::over(node, path, None));
                    let (strips, tiles) = fills.paths.split_at(block.unit.strips.len());
                    let staged = block.staged.nodes.iter().zip(tiles).rev();
                    let path = staged.fold(path, |path, (node, fill)| Path::over(node, path, Some(fill.clone())));
                    let mut strips = strips.iter().rev();
                    let outside = around.iter().chain(&block.unit.above).rev();
                    let path = outside.fold(path, |path, (node, side)| {
                        let side = if let Term::Strip { .. } = node { strips.next() } else { side.as_ref() };
                        Path::over(node, path, side.cloned())
                    });
                    self.offer(found.ms, key, path);
                }
            }
        }
    }

    /// A block's work from the numbers of its warps and the work of its fills.
    fn summary(
        &self,
        block: &Block<'_, 's>,
        numbers: &Numbers,
        flavour: Flavour,
        [copied, begin]: [&Work; 2],
        staged_registers: i64,
    ) -> Inner {
        let contraction = &self.space.contraction;
        let (unit, state) = (block.unit, &block.state);
        let threads = if let Team::Cta(t) = state.team { t } else { 1 };
        let warps = f64::from(threads / 32);
        let mut tile = Work { fma: (state.tile.m * state.tile.n * unit.k_tile) as f64 / 32.0, ..Work::default() };
        let mut end = Work::default();
        tile.add(copied, 1.0);
        let (mut registers, mut direct, mut staged) = (0.0, 0.0, 0.0);
        for side in [Side::A, Side::B] {
            let [loads, wavefronts, sectors, l1, held] = numbers.side(side);
            registers += held;
            let elements = match flavour.direct {
                true => loads,
                false => held * flavour.per_register(contraction.operand(side).dtype, unit.k_tile),
            };
            tile.prepared += work::prepared(contraction, side, elements * warps);
            if block.staged.way(side) != Way::Direct {
                staged += held;
                tile.shared_loads += loads * warps;
                tile.shared_load_wavefronts += wavefronts * warps;
            } else {
                direct += held;
                tile.global_loads += loads * warps;
                tile.addresses += work::addresses(contraction, side, loads * warps, 1);
                tile.global_load_sectors += sectors * warps;
                let spatial = state.tile.get(side.spatial());
                tile.l2_sectors += distinct_sectors(contraction, side, spatial, unit.k_tile);
                tile.l1_bytes += l1 * warps;
            }
        }
        let stores = numbers.stores().map(|x| x * warps);
        end.add(&stored(stores), 1.0);
        if !unit.in_place {
            end.add(&epilogue(contraction, stores[0], stores[1]), 1.0);
        }
        let tiles = (state.tile.k + unit.k_tile - 1) / unit.k_tile;
        let ways = block.staged.ways();
        end.barriers = warps * work::barriers(unit.pipe, tiles, ways) as f64;
        Inner {
            begin: *begin,
            tile,
            end,
            waits: Waits::of(ways),
            held: direct,
            fragment_registers: if flavour.direct { 4 } else { registers as i64 },
            next_registers: if flavour.reads_ahead() { staged as i64 } else { 0 },
            staged_registers,
            shared_bytes: block.staged.bytes(),
            rolled_steps: numbers.rolled(),
            init_inside: unit.in_place,
            compiled: None,
        }
    }
}
