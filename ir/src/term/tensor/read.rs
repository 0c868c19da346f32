//! From a term to the tensor plan that it stands for.
use super::node::{Matrix, TensorNode};
use super::stage::{TensorInstruction, TensorStage};
use super::{shared, Gemm, Mma, OperandPlan, Raster, Store, TensorPlan, TileLayout, TileStore, WgmmaPlan};
use crate::term::{Axis, BlockLoop, Contraction, Incomplete, Role, Side, Stage, Term};
use egg::{Language, RecExpr};

/// A plan on tensor cores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TensorSchedule {
    /// On `mma.sync`.
    Mma(TensorPlan),
    /// On `wgmma`.
    Wgmma(WgmmaPlan),
}

impl TensorSchedule {
    /// Reads a complete term (its last node is the root); `None` where it is none on tensor cores.
    ///
    /// # Errors
    /// When something is not scheduled, or the term is no chain of the term language.
    pub fn from_term(term: &RecExpr<Term>, contraction: &Contraction) -> Result<Option<TensorSchedule>, Incomplete> {
        let nodes = term.as_ref();
        // Each node before what is below it.
        let mut chain: Vec<&Term> = Vec::new();
        let mut left: Vec<&Term> = nodes.last().into_iter().collect();
        while let Some(term) = left.pop() {
            chain.push(term);
            left.extend(term.children().iter().rev().filter_map(|id| nodes.get(usize::from(*id))));
        }
        let on_tensor_cores = |t: &&Term| matches!(t, Term::Tensor { .. } | Term::Matrix { .. });
        if !chain.iter().any(on_tensor_cores) {
            return Ok(None);
        }
        TensorSchedule::from_chain(&chain, contraction).map(Some)
    }

    /// Reads the nodes, each before what is below it.
    ///
    /// # Errors
    /// As [`TensorSchedule::from_term`].
    pub fn from_chain(chain: &[&Term], contraction: &Contraction) -> Result<TensorSchedule, Incomplete> {
        let gemm = Gemm::of(contraction).map_err(|e| Incomplete(e.to_string()))?;
        TensorSchedule::from_chain_of(chain, &gemm)
    }

    /// The same for a matrix product that was read off its contraction before. Operands' ways may be missing: then they
    /// are the usual ones.
    ///
    /// # Errors
    /// As [`TensorSchedule::from_term`].
    pub fn from_chain_of(chain: &[&Term], gemm: &Gemm) -> Result<TensorSchedule, Incomplete> {
        let wrong = |what: &str| Incomplete(what.to_string());
        let mut blocks = Vec::new();
        let mut parts = Parts {
            swapped: false,
            store: None,
            store_tile: None,
            stages: None,
            slack: 0,
            warps: None,
            side: Side::A,
            operands: [OperandPlan { layout: TileLayout::Plain, ..OperandPlan::default() }; 2],
            grid: None,
            leaf: None,
        };
        for term in chain {
            match term {
                Term::Split(_) | Term::Grid(_) | Term::AddParts(_) => {}
                Term::Loop { axis, role: role @ (Role::Block | Role::Group), extent, .. } => {
                    blocks.push(BlockLoop { axis: *axis, extent: *extent, group: *role == Role::Group });
                }
                Term::Tensor { node, .. } => parts.take(node),
                Term::Dealt { node, .. } => parts.take(node),
                Term::Operand { side, layout, .. } => {
                    parts.side = *side;
                    parts.operand().layout = *layout;
                }
                Term::Matrix { matrix: Matrix::Copy { bytes, order }, .. } => {
                    let operand = parts.operand();
                    (operand.bytes, operand.order) = (*bytes, *order);
                }
                Term::Matrix { matrix: Matrix::Issue { rolled, step, prefetch }, .. } => {
                    let operand = parts.operand();
                    (operand.rolled, operand.step, operand.prefetch) = (*rolled, *step, *prefetch);
                }
                Term::Matrix { matrix: Matrix::Load { matrices }, .. } => parts.operand().matrices = *matrices,
                Term::Matrix { matrix, state } => parts.leaf = Some((*matrix, **state)),
                other => return Err(Incomplete(format!("{other} has no place in a block on tensor cores"))),
            }
        }
        let (matrix, state) = parts.leaf.ok_or_else(|| wrong("it has no instructions"))?;
        let split_k = blocks.iter().find(|l| l.axis == Axis::K).map_or(1, |l| l.extent);
        let swapped = parts.swapped;
        // Loops over blocks are the product's, whichever way a block computes its tile.
        let raster = raster(&blocks).oriented(swapped);
        let stages = parts.stages.ok_or_else(|| wrong("it has no ring"))?;
        let tile = state.tile;
        match (matrix, state.stage) {
            (Matrix::Mma(way), Stage::Tensor(TensorStage::Warp { op: instruction, .. })) => {
                let ([m, n], sets, min_blocks) = parts.warps.ok_or_else(|| wrong("it has no warps"))?;
                let mut operands = parts.operands;
                (operands[0].sets, operands[1].sets) = (sets[0], sets[1]);
                let plan = TensorPlan {
                    swapped,
                    tile: [tile.m * m, tile.n * n, tile.k],
                    warp: [tile.m, tile.n],
                    warps_m_outer: way.m_outer,
                    instruction,
                    order: way.order,
                    stages,
                    slack: parts.slack,
                    rolled: way.rolled,
                    operands,
                    raster,
                    split_k,
                    store: parts.store.ok_or_else(|| wrong("C is not stored"))?,
                    min_blocks,
                };
                plan.check(gemm).map_err(|e| Incomplete(e.to_string()))?;
                Ok(TensorSchedule::Mma(plan))
            }
            (
                Matrix::Wgmma { by_rows, eager_release, arrive_per_warp },
                Stage::Tensor(TensorStage::Multiply(TensorInstruction::Wgmma(team))),
            ) => {
                let (grid, cluster, stream_k) = parts.grid.ok_or_else(|| wrong("it has no blocks"))?;
                let plan = WgmmaPlan {
                    op: team.op,
                    swapped,
                    tile: [tile.m * team.at_tile(), tile.n, tile.k],
                    consumers: team.count,
                    ping_pong: team.ping_pong,
                    by_threads: team.by_threads,
                    stages,
                    by_rows,
                    eager_release,
                    arrive_per_warp,
                    raster,
                    blocks: grid,
                    cluster,
                    split_k,
                    stream_k,
                    store: parts.store_tile.ok_or_else(|| wrong("C is not stored"))?,
                };
                plan.check(gemm).map_err(|e| Incomplete(e.to_string()))?;
                Ok(TensorSchedule::Wgmma(plan))
            }
            _ => Err(wrong("its instructions are not those of its blocks")),
        }
    }
}

/// What the nodes say, one by one.
struct Parts {
    swapped: bool,
    store: Option<Store>,
    store_tile: Option<TileStore>,
    stages: Option<u32>,
    slack: u32,
    warps: Option<([i64; 2], [u32; 2], Option<u32>)>,
    side: Side,
    operands: [OperandPlan; 2],
    grid: Option<(Option<u32>, [u32; 2], bool)>,
    leaf: Option<(Matrix, crate::term::State)>,
}

impl Parts {
    fn operand(&mut self) -> &mut OperandPlan {
        match self.side {
            Side::A => &mut self.operands[0],
            Side::B => &mut self.operands[1],
        }
    }

    fn take(&mut self, node: &TensorNode) {
        match *node {
            TensorNode::Swap => self.swapped = true,
            // Ways that the instruction has, whether they are decided or not.
            TensorNode::Mma { op } => {
                self.operands = [OperandPlan { layout: shared::least_layout(op), ..OperandPlan::usual(op) }; 2];
            }
            TensorNode::Consumers { .. } => {}
            TensorNode::Wgmma { blocks, cluster, stream_k, .. } => self.grid = Some((blocks, cluster, stream_k)),
            TensorNode::Store { store, .. } => self.store = Some(store),
            TensorNode::StoreTile { store, .. } => self.store_tile = Some(store),
            TensorNode::Ring { stages, slack, .. } => (self.stages, self.slack) = (Some(stages), slack),
            TensorNode::Warps { count, sets, min_blocks } => self.warps = Some((count, sets, min_blocks)),
        }
    }
}

/// The order that loops over blocks give, the last of which runs fastest.
fn raster(blocks: &[BlockLoop]) -> Raster {
    let order: Vec<&BlockLoop> = blocks.iter().filter(|l| matches!(l.axis, Axis::M | Axis::N)).collect();
    match order[..] {
        [.., last] if last.group => Raster { columns: last.axis == Axis::N, group: last.extent },
        [first, _] => Raster { columns: first.axis == Axis::N, group: 1 },
        _ => Raster::rows(1),
    }
}

impl Mma {
    /// The instruction of `mma.sync` for the types of operands and sums on an architecture, by number.
    pub fn of(types: [crate::DType; 2], arch: u32) -> Option<Mma> {
        Mma::SYNC.into_iter().find(|op| [op.operand(), op.accumulator()] == types && op.is_native(arch))
    }
}
