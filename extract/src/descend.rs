//! The search below an outer choice: which operands are staged and how, then, loop by loop, what a block does within a
//! k tile. At every step the ideals of the class that is entered, and the least of all fills, bound what is below; the
//! most promising part is entered first.
use crate::fills::{combinations, floor, floor_of, Combination, FillLabel, Floor};
use crate::inner::{repeats, Flavour, Ideal, Label, Numbers};
use crate::path::Path;
use crate::time::{least_ms, time, Inner, Outer};
use crate::topk::{Above, Search, Unit};
use crate::work::{distinct_sectors, epilogue, Work};
use egg::Id;
use satune_ir::term::{Pipe, Side, State, Team, Term};
use std::sync::Arc;

/// The operands that are staged.
#[derive(Default)]
struct Staged<'s> {
    nodes: Vec<&'s Term>,
    sides: Vec<Side>,
    fills: Vec<Arc<Vec<FillLabel<'s>>>>,
    /// Shared memory that they take, bytes.
    bytes: i64,
}

/// Everything that is fixed when the loops within a k tile are searched.
struct Block<'a, 's> {
    unit: &'a Unit<'s>,
    staged: &'a Staged<'s>,
    /// The node that ends the staging where an operand is left out.
    direct: Option<&'s Term>,
    state: State,
    contexts: Vec<(Outer<'s>, Above<'s>)>,
    /// The fills that are left, and the least of them.
    fills: Vec<&'a Combination<'s>>,
    floor: Floor,
}

impl<'s> Search<'_, 's> {
    /// Looks at every choice below a unit.
    pub(crate) fn look_into(&mut self, unit: &Unit<'s>) {
        self.stages(unit, unit.staging, &mut Staged::default());
    }

    fn stages(&mut self, unit: &Unit<'s>, class: Id, staged: &mut Staged<'s>) {
        let space = self.space;
        let tile = space.state(unit.accumulators).tile;
        for node in space.choices(class) {
            match node {
                Term::Stage { side, layout, pipe, more, children, .. } => {
                    let element = i64::from(space.contraction.operand(*side).dtype.bytes());
                    let elements = layout.elements(tile.get(side.spatial()), unit.k_tile);
                    let bytes = elements * element * unit.pipe.buffers();
                    let fills = self.labels.fills(children[0], *side, *layout, *pipe);
                    if fills.is_empty() {
                        continue;
                    }
                    let next = space.egraph.find(children[1]);
                    staged.nodes.push(node);
                    staged.sides.push(*side);
                    staged.fills.push(fills);
                    staged.bytes += bytes;
                    if *more {
                        self.stages(unit, next, staged);
                    } else {
                        self.enter(unit, next, staged, None);
                    }
                    staged.bytes -= bytes;
                    staged.fills.pop();
                    staged.sides.pop();
                    staged.nodes.pop();
                }
                Term::Direct { body, .. } => self.enter(unit, space.egraph.find(body[0]), staged, Some(node)),
                _ => {}
            }
        }
    }

    fn enter(&mut self, unit: &Unit<'s>, class: Id, staged: &Staged<'s>, direct: Option<&'s Term>) {
        let state = *self.space.state(unit.accumulators);
        let floor = floor(&staged.fills);
        // Without the ideals, which may have to be made: is it worth a look?
        let Some(outer) = self.least_outer(unit) else { return };
        let mut least = self.least(unit, staged.nodes.len());
        least.shared_bytes = staged.bytes;
        if staged.nodes.len() == 2 {
            let (fma, loads) = (least.tile.fma, least.tile.shared_loads);
            least.tile = Work { fma, shared_loads: loads, shared_load_wavefronts: loads, ..Work::default() };
            least.tile.add(&floor.work, 1.0);
        }
        let hopeless = |rolled: f64| {
            let inner = Inner { rolled_steps: rolled, ..least };
            self.hopeless(least_ms(&outer, &inner, None))
        };
        if hopeless(0.0) && hopeless(1.0) {
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
        let all = combinations(&staged.fills, self.query.k);
        for (_, ideal) in parts {
            // Fills that cannot win even with the ideal are left out: the floor of the others is higher.
            let left = all.iter().filter_map(|fills| {
                let inner = self.summary(&block, &ideal.least(), ideal.flavour, &fills.work, fills.registers);
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
        let inner = self.summary(block, numbers, flavour, &block.floor.work, least_registers);
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
            let inner = self.summary(block, &numbers, label.flavour, &fills.work, fills.registers);
            for (outer, around) in &block.contexts {
                let Ok(found) = time(outer, &inner) else { break };
                if self.hopeless(found.ms) {
                    // The contexts that follow move more bytes.
                    break;
                }
                for path in self.labels.paths(class, label) {
                    let path = above.iter().rev().fold(path, |path, node| Path::over(node, path, None));
                    let path = block.direct.iter().fold(path, |path, node| Path::over(node, path, None));
                    let staged = block.staged.nodes.iter().zip(&fills.paths).rev();
                    let path = staged.fold(path, |path, (node, fill)| Path::over(node, path, Some(fill.clone())));
                    let outside = around.iter().chain(&block.unit.above).rev();
                    let path = outside.fold(path, |path, (node, side)| Path::over(node, path, side.clone()));
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
        fills: &Work,
        staged_registers: i64,
    ) -> Inner {
        let contraction = &self.space.contraction;
        let (unit, state) = (block.unit, &block.state);
        let threads = if let Team::Cta(t) = state.team { t } else { 1 };
        let warps = f64::from(threads / 32);
        let mut tile = Work { fma: (state.tile.m * state.tile.n * unit.k_tile) as f64 / 32.0, ..Work::default() };
        let mut end = Work::default();
        tile.add(fills, 1.0);
        let mut registers = 0.0;
        for side in [Side::A, Side::B] {
            let [loads, wavefronts, sectors, l1, held] = numbers.side(side);
            registers += held;
            if block.staged.sides.contains(&side) {
                tile.shared_loads += loads * warps;
                tile.shared_load_wavefronts += wavefronts * warps;
            } else {
                tile.global_loads += loads * warps;
                tile.global_load_sectors += sectors * warps;
                let spatial = state.tile.get(side.spatial());
                tile.l2_sectors += distinct_sectors(contraction, side, spatial, unit.k_tile);
                tile.l1_bytes += l1 * warps;
            }
        }
        let (stores, store_sectors) = numbers.stores();
        if unit.in_place {
            let k = unit.k_tile as f64;
            let bytes = f64::from(contraction.c.dtype.bytes());
            tile.global_stores += stores * warps * k;
            tile.global_store_sectors += store_sectors * warps * k;
            tile.l2_sectors += store_sectors * warps * k;
            tile.global_loads += stores * warps * k;
            tile.global_load_sectors += store_sectors * warps * k;
            tile.l1_bytes += 2.0 * stores * warps * k * 32.0 * bytes;
        } else {
            end.global_stores = stores * warps;
            end.global_store_sectors = store_sectors * warps;
            end.l2_sectors = store_sectors * warps;
            end.add(&epilogue(contraction, stores * warps, store_sectors * warps), 1.0);
        }
        if !block.staged.nodes.is_empty() {
            let tiles = ((state.tile.k + unit.k_tile - 1) / unit.k_tile) as f64;
            end.barriers = warps
                * match unit.pipe {
                    Pipe::Plain if tiles > 1.0 => 2.0 * tiles,
                    Pipe::Plain => 1.0,
                    Pipe::Registers if tiles > 1.0 => tiles + 1.0,
                    Pipe::Registers => 1.0,
                    Pipe::Async(_) => tiles,
                };
        }
        Inner {
            tile,
            end,
            fragment_registers: if flavour.direct { 4 } else { registers as i64 },
            staged_registers,
            shared_bytes: block.staged.bytes,
            rolled_steps: numbers.rolled(),
            init_inside: unit.in_place,
        }
    }
}
