//! What keeps decisions about tensor cores out of a space: a menu without the size, or a condition of a plan. A question that
//! leaves decisions open stands for the plans that keep to it; a condition that refuses all of them is what is said.
use super::super::fixed::Fixed;
use super::Multiplier;
use satune_ir::term::tensor::{
    by_threads_conditions as by_threads, mma_conditions as mma, wgmma_conditions as wgmma, Consumers, Gemm, Mma,
    OperandPlan, Raster, Store, TensorError, TensorPlan, TileLayout, TileStore, WgmmaPlan,
};
use satune_ir::term::{Contraction, Pair, Pipe, Side};
use satune_rewrites::space::rules::tensor::{is_offered, TensorCores, TensorMenu};
use satune_rewrites::space::Limits;
use std::fmt::Debug;

/// A product as tensor cores may take it.
pub(in crate::cli::ask) struct Products {
    gemm: Gemm,
    menu: TensorMenu,
    limits: Limits,
    cores: TensorCores,
}

type Condition<'a, P> = Box<dyn Fn(&P) -> Result<(), TensorError> + 'a>;

/// What is said of plans: the conditions that refuse all of them; where none does alone, what refuses one or the other.
fn refused<P>(plans: &[P], conditions: &[Condition<'_, P>]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for condition in conditions {
        // The smallest plan comes first: its numbers are the closest.
        let mut refusals = plans.iter().map_while(|plan| condition(plan).err());
        let Some(first) = refusals.next() else { continue };
        if refusals.count() + 1 == plans.len() {
            out.push(first.to_string());
        }
    }
    if !out.is_empty() {
        return out;
    }
    let mut each: Vec<TensorError> = Vec::new();
    for plan in plans {
        let Some(refusal) = conditions.iter().find_map(|condition| condition(plan).err()) else { return out };
        let kind = std::mem::discriminant(&refusal);
        if !each.iter().any(|e| std::mem::discriminant(e) == kind) {
            each.push(refusal);
        }
    }
    let each: Vec<String> = each.iter().map(TensorError::to_string).collect();
    if !each.is_empty() {
        out.push(format!("whatever is chosen of what is left free, one of these: {}", each.join("; or ")));
    }
    out
}

/// A decision that a menu does not offer.
fn unless_offered<T: PartialEq + Debug + Copy>(out: &mut Vec<String>, what: &str, fixed: Option<T>, menu: &[T]) {
    if let Some(value) = fixed.filter(|v| !menu.contains(v)) {
        out.push(format!("{what} {value:?} (the menu is {menu:?})"));
    }
}

impl Products {
    /// # Errors
    /// Why no tensor cores take the contraction.
    pub fn of(contraction: &Contraction, cores: TensorCores, limits: Limits) -> Result<Products, String> {
        let gemm = Gemm::of(contraction).map_err(|e| e.to_string())?;
        Ok(Products { gemm, menu: TensorMenu::of(contraction, &cores), limits, cores })
    }

    /// Whether the plans of a question swap operands; where it leaves that open, as results are stored by rows.
    fn swaps(&self, fixed: &Fixed) -> bool {
        fixed.swapped.unwrap_or(self.gemm.c_transposed)
    }

    fn stages(&self, fixed: &Fixed) -> u32 {
        match fixed.stages {
            Some(Pipe::Async(stages)) => stages.into(),
            _ => self.menu.stages.iter().copied().min().unwrap_or(2),
        }
    }

    /// Blocks' tiles, the smallest first.
    fn tiles(&self, fixed: &Fixed) -> Vec<Pair> {
        if let Some(block) = fixed.block {
            return vec![block];
        }
        let (tile_m, tile_n) = match self.swaps(fixed) {
            false => (&self.menu.tile_m, &self.menu.tile_n),
            true => (&self.menu.tile_n, &self.menu.tile_m),
        };
        let rows = |m: &i64| tile_n.iter().map(move |n| Pair { m: *m, n: *n }).collect::<Vec<_>>();
        tile_m.iter().flat_map(rows).filter(|t| fixed.wgmma.n.is_none_or(|n| n == t.n)).collect()
    }

    /// Decisions that no menu offers.
    pub fn outside(&self, kind: Multiplier, fixed: &Fixed) -> Vec<String> {
        let menu = &self.menu;
        let mut out = Vec::new();
        let wmma = !menu.wmma.is_empty();
        // That says more than for which GPUs it is offered.
        let op = fixed.mma.instruction.filter(|_| kind == Multiplier::Mma);
        if let Some(Err(error @ TensorError::SumType { .. })) = op.map(|op| mma::operands(&self.gemm, op)) {
            out.push(error.to_string());
            return out;
        }
        let offered = match (kind, fixed.mma.instruction) {
            (Multiplier::Mma, Some(Mma::Wmma(op))) if !menu.wmma.contains(&op) => {
                out.push(format!("the instruction {op}: it is offered on GPUs before sm_80, where they have it"));
                return out;
            }
            (Multiplier::Mma, Some(op))
                if op.wmma().is_none() && self.cores.mma.is_none_or(|arch| !op.is_native(arch)) =>
            {
                out.push(format!("the instruction {op}: it is offered on {}", op.needs()));
                return out;
            }
            (Multiplier::Mma, Some(op)) => op.wmma().is_some() || menu.mma.is_some(),
            (Multiplier::Mma, None) => menu.mma.is_some() || wmma,
            _ => menu.group.is_some_and(|op| fixed.wgmma.op.is_none_or(|asked| asked == op)),
        };
        if !offered {
            let operand = self.gemm.operand;
            let native = |arch| Mma::of([operand, self.gemm.accumulator()], arch).is_some();
            let asked = fixed.wgmma.op.or(self.cores.group).unwrap_or_default();
            let there = match kind {
                Multiplier::Mma => self.cores.mma.is_some_and(native),
                _ => self.cores.group == Some(asked),
            };
            out.push(if there {
                format!(
                    "operands in {operand:?} are rounded to tf32 only where the program says so (`gemm:M,N,K,tf32`)"
                )
            } else if kind == Multiplier::Mma {
                format!("the GPU has no mma.sync of {operand:?}")
            } else {
                format!("the GPU has no {asked}")
            });
            return out;
        }
        let swaps = self.swaps(fixed);
        if !is_offered(&self.gemm.oriented(swaps)) {
            let which =
                if swaps { "swapped operands are" } else { "a product as it is, with its result by columns, is" };
            out.push(format!(
                "{which} offered only where rows of instructions run over more than C's other extent, which is 128 at most"
            ));
        }
        // The menu's tiles are the product's.
        let (tile_m, tile_n) = if swaps { (&menu.tile_n, &menu.tile_m) } else { (&menu.tile_m, &menu.tile_n) };
        unless_offered(&mut out, "block tile along m", fixed.block.map(|b| b.m), tile_m);
        unless_offered(&mut out, "block tile along n", fixed.block.map(|b| b.n), tile_n);
        if let Some(Pipe::Async(stages)) = fixed.stages {
            unless_offered(&mut out, "stages", Some(stages.into()), &menu.stages);
        }
        match kind {
            Multiplier::Mma => self.mma_outside(fixed, &mut out),
            _ => self.wgmma_outside(fixed, &mut out),
        }
        out
    }

    fn mma_outside(&self, fixed: &Fixed, out: &mut Vec<String>) {
        let (menu, f) = (&self.menu, &fixed.mma);
        unless_offered(out, "k tile", fixed.k, &menu.tile_k);
        unless_offered(out, "threads", fixed.threads, &menu.threads);
        if let Some(warp) = f.warp.filter(|w| w.m > menu.warp[0] || w.n > menu.warp[1]) {
            let [m, n] = menu.warp;
            out.push(format!("warp tile {}x{} (the menu ends at {m}x{n})", warp.m, warp.n));
        }
        if f.store == Some(Store::Shared { stmatrix: true }) && !menu.stmatrix {
            out.push("the GPU has no stmatrix".into());
        }
        unless_offered(out, "further tiles waited for", f.slack, &menu.slack);
        unless_offered(out, "resident blocks", f.min_blocks.flatten(), &menu.min_blocks);
        for way in &f.ways {
            unless_offered(out, "bytes per copy", way.bytes, &menu.copy_bytes);
            unless_offered(out, "bytes to L2", way.prefetch, &menu.prefetch);
            unless_offered(out, "matrices per ldmatrix", way.matrices, &menu.matrices);
            unless_offered(out, "sets of fragments", way.sets, &menu.sets);
            unless_offered(out, "layout", way.layout, &menu.layouts);
        }
    }

    fn wgmma_outside(&self, fixed: &Fixed, out: &mut Vec<String>) {
        let (menu, f) = (&self.menu, &fixed.wgmma);
        unless_offered(out, "consumers", f.consumers, &menu.consumers);
        unless_offered(out, "blocks of a fixed grid", f.grid.flatten(), &menu.grids);
        unless_offered(out, "cluster", f.cluster.filter(|c| *c != [1, 1]), &menu.clusters);
        let columns = if self.swaps(fixed) { &menu.tile_m } else { &menu.tile_n };
        unless_offered(out, "columns of an instruction", f.n, columns);
        let ks: Vec<i64> = menu.spans.iter().map(|spans| wgmma::tile_k(self.gemm.operand, *spans)).collect();
        unless_offered(out, "k tile", fixed.k, &ks);
    }

    /// Conditions that what is fixed breaks, with their numbers.
    pub fn broken(&self, kind: Multiplier, fixed: &Fixed) -> Vec<String> {
        match kind {
            Multiplier::Mma => self.mma_broken(fixed),
            _ => self.wgmma_broken(fixed),
        }
    }

    /// Values of k in a part.
    fn part(&self, fixed: &Fixed) -> i64 {
        self.gemm.k / fixed.split.unwrap_or(1).max(1)
    }

    fn wgmma_plans(&self, fixed: &Fixed) -> Vec<WgmmaPlan> {
        let f = &fixed.wgmma;
        let k = fixed.k.unwrap_or(wgmma::tile_k(self.gemm.operand, 1));
        let stages = self.stages(fixed);
        let op = f.op.or(self.menu.group).unwrap_or_default();
        let teams: Vec<Consumers> = match f.consumers {
            Some(consumers) => vec![consumers],
            None => self.menu.consumers.clone(),
        }
        .into_iter()
        .flat_map(|count| [false, true].map(|ping_pong| Consumers { op, count, ping_pong, by_threads: false }))
        .flat_map(|team| [team, Consumers { by_threads: true, ..team }])
        .filter(|team| f.in_turn.is_none_or(|turn| turn == team.ping_pong))
        .filter(|team| f.by_threads.is_none_or(|asked| asked == team.by_threads))
        .collect();
        let grids = match f.grid {
            Some(grid) => vec![grid],
            // Stream-K is for a fixed grid.
            None => {
                let per_tile = (f.stream_k != Some(true)).then_some(None);
                per_tile.into_iter().chain(self.menu.grids.iter().copied().map(Some)).collect()
            }
        };
        let stores = f.store.map_or(vec![TileStore::Direct, TileStore::Tma, TileStore::Boxes], |store| vec![store]);
        let mut plans = Vec::new();
        for tile in self.tiles(fixed) {
            for team in &teams {
                let ways = grids.iter().flat_map(|grid| stores.iter().map(move |store| (*grid, *store)));
                plans.extend(ways.map(|(blocks, store)| WgmmaPlan {
                    swapped: self.swaps(fixed),
                    blocks,
                    store,
                    cluster: f.cluster.unwrap_or([1, 1]),
                    split_k: fixed.split.unwrap_or(1),
                    stream_k: f.stream_k.unwrap_or(false),
                    raster: Raster::rows(1),
                    ..WgmmaPlan::of_team(*team, [tile.m, tile.n, k], stages)
                }));
            }
        }
        plans
    }

    fn wgmma_broken(&self, fixed: &Fixed) -> Vec<String> {
        let (gemm, most) = (&*self.gemm.oriented(self.swaps(fixed)), self.limits.shared_bytes);
        let part = self.part(fixed);
        let conditions: Vec<Condition<'_, WgmmaPlan>> = vec![
            Box::new(|p| wgmma::operands(gemm, p.op)),
            Box::new(|p| if p.by_threads { by_threads::operands(gemm, p.op) } else { wgmma::rows(gemm) }),
            Box::new(|p| if p.by_threads { by_threads::alone(p) } else { Ok(()) }),
            Box::new(|p| if p.by_threads { by_threads::stages(p.stages) } else { Ok(()) }),
            Box::new(|p| match p.by_threads {
                true => by_threads::registers_fit(p, gemm),
                false => Ok(()),
            }),
            Box::new(|p| if p.by_threads { by_threads::has_use(gemm) } else { Ok(()) }),
            Box::new(|p| wgmma::consumers(p.team())),
            Box::new(|p| wgmma::tile(gemm, p.tile, p.team())),
            Box::new(|p| wgmma::sums(gemm, p.tile, p.team())),
            Box::new(|p| wgmma::stages(p.stages)),
            Box::new(|p| mma::shared_fits(p.shared_bytes(gemm), most)),
            Box::new(|p| wgmma::cluster(gemm, p.tile, p.cluster, p.blocks)),
            // Steps are shared where there are enough of any tile along k.
            Box::new(|p| {
                let longest = self.menu.spans.iter().copied().max().unwrap_or(1);
                let tile = [p.tile[0], p.tile[1], wgmma::tile_k(gemm.operand, longest)];
                wgmma::stream_k(&WgmmaPlan { tile, ..p.clone() }, gemm)
            }),
            Box::new(|p| match p.by_threads {
                true => mma::split(gemm, p.tile[2], p.split_k),
                false => wgmma::split(gemm, p.tile[2], p.split_k),
            }),
            Box::new(move |p| mma::whole_parts(gemm, part, p.tile[2])),
            Box::new(|p| wgmma::store(gemm, p.store, p.partial(), [p.tile[0], p.tile[1]], p.team())),
        ];
        refused(&self.wgmma_plans(fixed), &conditions)
    }

    /// The instruction on offer for the operands.
    fn usual_instruction(&self) -> Option<Mma> {
        self.menu.mma.or_else(|| self.menu.wmma.first().copied().map(Mma::Wmma))
    }

    fn mma_plans(&self, fixed: &Fixed) -> Vec<TensorPlan> {
        let f = &fixed.mma;
        let Some(instruction) = f.instruction.or_else(|| self.usual_instruction()) else { return Vec::new() };
        let is_wmma = instruction.wmma().is_some();
        let ks = fixed.k.map_or_else(|| self.menu.tile_k.clone(), |k| vec![k]);
        let threads = fixed.threads.map_or_else(|| self.menu.threads.clone(), |t| vec![t]);
        let way = |side: usize| {
            let (way, usual) = (&f.ways[side], OperandPlan::usual(instruction));
            OperandPlan {
                layout: way.layout.unwrap_or(mma::least_layout(instruction)),
                bytes: way.bytes.unwrap_or(usual.bytes),
                order: way.order.unwrap_or(usual.order),
                rolled: way.rolled.unwrap_or(usual.rolled),
                prefetch: way.prefetch.unwrap_or(usual.prefetch),
                step: way.step.unwrap_or(usual.step),
                matrices: way.matrices.unwrap_or(usual.matrices),
                sets: way.sets.unwrap_or(1),
            }
        };
        let staged = is_wmma && fixed.split.unwrap_or(1) == 1;
        let usual_store = if staged { Store::Shared { stmatrix: false } } else { Store::Direct };
        let mut plans = Vec::new();
        for tile in self.tiles(fixed) {
            let warps = |threads: u32| {
                let count = i64::from(threads / 32).max(1);
                (1..=count).filter(move |m| count % m == 0).map(move |m| [tile.m / m, tile.n / (count / m)])
            };
            let warps: Vec<[i64; 2]> = match f.warp {
                Some(warp) => vec![[warp.m, warp.n]],
                None => threads.iter().flat_map(|t| warps(*t)).collect(),
            };
            for k in &ks {
                plans.extend(warps.iter().map(|warp| {
                    let mut plan = TensorPlan::plain([tile.m, tile.n, *k], *warp, instruction, self.stages(fixed));
                    plan.swapped = self.swaps(fixed);
                    (plan.order.columns, plan.order.pairs) = (f.columns.unwrap_or(false), f.pairs.unwrap_or(false));
                    (plan.slack, plan.rolled) = (f.slack.unwrap_or(0), f.rolled.unwrap_or(false));
                    (plan.operands, plan.split_k) = ([way(0), way(1)], fixed.split.unwrap_or(1));
                    (plan.store, plan.min_blocks) = (f.store.unwrap_or(usual_store), f.min_blocks.flatten());
                    plan
                }));
            }
        }
        plans
    }

    fn mma_broken(&self, fixed: &Fixed) -> Vec<String> {
        let (gemm, limits) = (&*self.gemm.oriented(self.swaps(fixed)), self.limits);
        let part = self.part(fixed);
        let way = |p: &TensorPlan, side: Side| {
            let plan = &p.operands[usize::from(side == Side::B)];
            mma::way(gemm, side, p.instruction, p.tile[2], plan)
        };
        let padding = |p: &TensorPlan| mma::padding(gemm, p.instruction, p.tile, p.operands.map(|o| o.layout));
        let conditions: Vec<Condition<'_, TensorPlan>> = vec![
            Box::new(|p| mma::operands(gemm, p.instruction)),
            Box::new(|p| mma::warps(gemm, p.instruction, [p.tile[0], p.tile[1]], p.warp)),
            Box::new(|p| mma::whole_steps(p.instruction, p.tile[2])),
            Box::new(|p| mma::threads(p.threads())),
            Box::new(|p| mma::rows(gemm, p.tile, p.operands)),
            Box::new(move |p| mma::ring(gemm, p.instruction, p.tile, p.stages, padding(p))),
            Box::new(move |p| mma::shared_fits(p.shared_with(gemm, padding(p)), limits.shared_bytes)),
            Box::new(move |p| match p.instruction.wmma() {
                None if p.operands.iter().any(|o| o.layout == TileLayout::Padded) => {
                    mma::room(gemm, p.instruction, p.tile, p.stages, limits.shared_bytes)
                }
                _ => Ok(()),
            }),
            Box::new(move |p| way(p, Side::A)),
            Box::new(move |p| way(p, Side::B)),
            Box::new(|p| mma::instructions(p.instruction, p.warp, p.order)),
            Box::new(|p| mma::k_loop(p.instruction, p.tile[2], (p.stages, p.slack), p.rolled, mma::sets(&p.operands))),
            Box::new(|p| mma::split(gemm, p.tile[2], p.split_k)),
            Box::new(move |p| mma::whole_parts(gemm, part, p.tile[2])),
            Box::new(|p| mma::store(gemm, p.instruction, p.store, p.split_k > 1, p.tile, p.stages)),
            Box::new(move |p| {
                let bytes = p.operands.map(|o| o.bytes);
                let need = mma::least_registers(gemm, p.instruction, p.tile, p.warp, p.threads(), bytes);
                mma::registers_fit(need, p.threads(), p.min_blocks, limits.registers)
            }),
        ];
        let plans = self.mma_plans(fixed);
        let threads = fixed.threads.map(i64::from);
        let mut out = Vec::new();
        if let (Some(threads), Some(plan), Some(_), Some(_)) = (threads, plans.first(), fixed.mma.warp, fixed.block) {
            if plan.threads() != threads {
                let [m, n] = plan.warp;
                out.push(format!(
                    "warp tiles of {m}x{n} make {} threads of the block tile, not {threads}",
                    plan.threads()
                ));
            }
        }
        out.extend(refused(&plans, &conditions));
        out
    }
}
