//! Every decision of a plan, and which nodes of a space keep to decisions.
use super::super::fixed::Fixed;
use super::{MmaFixed, Multiplier, Way, WgmmaFixed};
use satune_ir::term::tensor::{
    Matrix, MmaLoop, OperandPlan, Raster, TensorNode, TensorPlan, TensorStage, TileLayout, Turn, WgmmaPlan,
};
use satune_ir::term::{Axis, Pair, Pipe, Side, Space, Stage, State, Term};
use satune_ir::DType;

/// Whether a value is the fixed one, if one is fixed.
fn is<T: PartialEq>(fixed: Option<T>, value: T) -> bool {
    fixed.is_none_or(|f| f == value)
}

impl Way {
    fn of(plan: &OperandPlan) -> Way {
        let OperandPlan { layout, bytes, order, rolled, prefetch, step, matrices, sets } = *plan;
        Way {
            layout: Some(layout),
            bytes: Some(bytes),
            order: Some(order),
            rolled: Some(rolled),
            prefetch: Some(prefetch),
            step: Some(step),
            matrices: Some(matrices),
            sets: Some(sets),
        }
    }
}

/// Whether two layouts put the chunks of such rows at the same places: of two chunks each is exchanged or not.
fn same_places(a: TileLayout, b: TileLayout, columns: i64, (dtype, turn): (DType, Turn)) -> bool {
    let same_kind = std::mem::discriminant(&a) == std::mem::discriminant(&b);
    let [pitch, other] = [a, b].map(|layout| layout.pitch(columns, dtype, turn));
    let chunks = columns * i64::from(dtype.bytes()) / 16;
    pitch == other && a.span(chunks) == b.span(chunks) && (same_kind || a.span(chunks) <= 2)
}

impl Fixed {
    /// What is common to plans on tensor cores.
    fn of_tiles(
        kind: Multiplier,
        (tile, swapped): ([i64; 3], bool),
        stages: u32,
        raster: Raster,
        split_k: i64,
    ) -> Fixed {
        // Loops over blocks are the product's.
        let raster = raster.oriented(swapped);
        let along = if raster.columns { Axis::N } else { Axis::M };
        Fixed {
            kind: Some(kind),
            swapped: Some(swapped),
            block: Some(Pair { m: tile[0], n: tile[1] }),
            k: Some(tile[2]),
            stages: Some(Pipe::Async(u8::try_from(stages).unwrap_or(u8::MAX))),
            split: Some(split_k),
            blocks_m_outer: Some(!raster.columns),
            group: Some((raster.group > 1).then_some((along, raster.group))),
            ..Fixed::default()
        }
    }

    /// Every decision of a plan on `mma.sync`.
    pub fn of_mma(plan: &TensorPlan) -> Fixed {
        let warps = [plan.tile[0] / plan.warp[0].max(1), plan.tile[1] / plan.warp[1].max(1)];
        let order = plan.order;
        let mma = MmaFixed {
            instruction: Some(plan.instruction),
            warp: Some(Pair { m: plan.warp[0], n: plan.warp[1] }),
            warps_m_outer: (warps[0] > 1 && warps[1] > 1).then_some(plan.warps_m_outer),
            slack: Some(plan.slack),
            rolled: Some(plan.rolled),
            columns: Some(order.columns),
            serpentine: Some(order.serpentine),
            pairs: Some(order.pairs),
            descending: Some(order.descending),
            store: Some(plan.store),
            min_blocks: Some(plan.min_blocks),
            ways: plan.operands.each_ref().map(Way::of),
        };
        let threads = u32::try_from(plan.threads()).ok();
        Fixed {
            threads,
            mma,
            ..Fixed::of_tiles(Multiplier::Mma, (plan.tile, plan.swapped), plan.stages, plan.raster, plan.split_k)
        }
    }

    /// Every decision of a plan on `wgmma` or `tcgen05`.
    pub fn of_wgmma(plan: &WgmmaPlan) -> Fixed {
        let wgmma = WgmmaFixed {
            op: Some(plan.op),
            n: None,
            consumers: Some(plan.consumers),
            in_turn: Some(plan.ping_pong),
            by_threads: Some(plan.by_threads),
            row_blocks: None,
            by_rows: Some(plan.by_rows),
            eager_release: Some(plan.eager_release),
            arrive_per_warp: Some(plan.arrive_per_warp),
            grid: Some(plan.blocks),
            stream_k: Some(plan.stream_k),
            cluster: Some(plan.cluster),
            store: Some(plan.store),
        };
        Fixed {
            wgmma,
            ..Fixed::of_tiles(Multiplier::Wgmma, (plan.tile, plan.swapped), plan.stages, plan.raster, plan.split_k)
        }
    }

    /// What multiplies, as far as the words leave it open: each kind has words of its own.
    pub fn kinds(&self) -> Vec<Multiplier> {
        let mma = self.mma != MmaFixed::default();
        let wgmma = self.wgmma != WgmmaFixed::default();
        let common = Fixed {
            kind: self.kind,
            swapped: self.swapped,
            block: self.block,
            k: self.k,
            threads: self.threads,
            split: self.split,
            blocks_m_outer: self.blocks_m_outer,
            group: self.group,
            stages: self.stages.filter(|pipe| matches!(pipe, Pipe::Async(_))),
            mma: self.mma.clone(),
            wgmma: self.wgmma.clone(),
            ..Fixed::default()
        };
        let cores = *self != common;
        let others = |kind: Multiplier| match kind {
            Multiplier::Cores => mma || wgmma || self.swapped == Some(true),
            Multiplier::Mma => cores || wgmma,
            Multiplier::Wgmma => cores || mma,
        };
        Multiplier::ALL.into_iter().filter(|kind| is(self.kind, *kind) && !others(*kind)).collect()
    }

    /// Whether a program with this node about a block on tensor cores can keep to what is fixed.
    pub fn keeps_tensor(&self, space: &Space, state: &State, node: &Term) -> bool {
        match node {
            Term::Tensor { node, body } => self.keeps_decision(node, state, space.state(space.egraph.find(body[0]))),
            Term::Dealt { node: TensorNode::Warps { count: [m, n], sets: [a, b], min_blocks }, .. } => {
                let warp = Pair { m: state.tile.m / m, n: state.tile.n / n };
                let threads = u32::try_from(m * n * 32).unwrap_or(u32::MAX);
                is(self.mma.warp, warp)
                    && is(self.threads, threads)
                    && is(self.mma.of(Side::A).sets, *a)
                    && is(self.mma.of(Side::B).sets, *b)
                    && is(self.mma.min_blocks, *min_blocks)
            }
            Term::Operand { side, layout, .. } => {
                let of_product = if state.swapped { side.other() } else { *side };
                let operand = space.contraction.operand(of_product);
                let k_rows = !operand.contiguous_along(Axis::K);
                let row = if k_rows { state.tile.m } else { state.tile.k };
                let Stage::Tensor(TensorStage::Operand { op, .. }) = state.stage else { return true };
                let read = (operand.dtype, Turn::of(op, k_rows));
                self.mma.of(*side).layout.is_none_or(|asked| same_places(asked, *layout, row, read))
            }
            Term::Matrix { matrix, state } => self.keeps_leaf(matrix, state),
            _ => true,
        }
    }

    fn keeps_decision(&self, node: &TensorNode, state: &State, below: &State) -> bool {
        let tile = Pair { m: state.tile.m, n: state.tile.n };
        let begins =
            |kind: Multiplier| is(self.swapped, state.swapped) && is(self.block, tile) && self.kinds().contains(&kind);
        let w = &self.wgmma;
        match *node {
            TensorNode::Swap => self.swapped != Some(false),
            TensorNode::Mma { op } => begins(Multiplier::Mma) && is(self.mma.instruction, op),
            TensorNode::Wgmma { team, blocks, cluster, stream_k } => {
                begins(Multiplier::Wgmma)
                    && is(w.op, team.op)
                    && is(w.n, tile.n)
                    && is(w.consumers, team.count)
                    && is(w.in_turn, team.ping_pong)
                    && is(w.by_threads, team.by_threads)
                    && is(w.row_blocks, team.row_blocks(tile.m))
                    && is(w.grid, blocks)
                    && is(w.cluster, cluster)
                    && is(w.stream_k, stream_k)
                    && is(self.threads, team.threads())
            }
            TensorNode::Store { store, .. } => is(self.mma.store, store),
            TensorNode::StoreTile { store, .. } => is(w.store, store),
            TensorNode::Ring { stages, slack, .. } => {
                is(self.stages, Pipe::Async(u8::try_from(stages).unwrap_or(u8::MAX)))
                    && is(self.k, below.tile.k)
                    && is(self.mma.slack, slack)
            }
            TensorNode::Warps { .. } | TensorNode::Consumers { .. } => true,
        }
    }

    fn keeps_leaf(&self, matrix: &Matrix, state: &State) -> bool {
        let side = match state.stage {
            Stage::Tensor(TensorStage::Copy(_, side, _) | TensorStage::Load(_, side, _)) => side,
            Stage::Tensor(TensorStage::Issue { side, .. }) => side,
            _ => Side::A,
        };
        let way = self.mma.of(side);
        match *matrix {
            Matrix::Copy { bytes, order } => is(way.bytes, bytes) && is(way.order, order),
            Matrix::Issue { rolled, step, prefetch } => {
                is(way.rolled, rolled) && is(way.step, step) && is(way.prefetch, prefetch)
            }
            Matrix::Load { matrices } => is(way.matrices, matrices),
            Matrix::Mma(MmaLoop { order, rolled, m_outer }) => {
                is(self.mma.columns, order.columns)
                    && is(self.mma.serpentine, order.serpentine)
                    && is(self.mma.pairs, order.pairs)
                    && is(self.mma.descending, order.descending)
                    && is(self.mma.rolled, rolled)
                    && is(self.mma.warps_m_outer, m_outer)
            }
            Matrix::Wgmma { by_rows, eager_release, arrive_per_warp } => {
                is(self.wgmma.by_rows, by_rows)
                    && is(self.wgmma.eager_release, eager_release)
                    && is(self.wgmma.arrive_per_warp, arrive_per_warp)
            }
        }
    }
}
