//! From a term to the tensor plan that it stands for.
use super::node::{Kind, Matrix, TensorNode, TensorStage};
use super::{Gemm, Mma, Raster, Store, TensorPlan, TileStore, WgmmaPlan};
use crate::term::{Axis, BlockLoop, Contraction, Incomplete, Place, Role, Stage, Term};
use egg::{Id, Language, RecExpr};

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
        let node = |id: Id| nodes.get(usize::from(id));
        let mut chain: Vec<&Term> = Vec::new();
        let mut current = nodes.last();
        while let Some(term) = current {
            chain.push(term);
            current = term.children().first().and_then(|id| node(*id));
        }
        if !matches!(chain.last(), Some(Term::Matrix { .. })) {
            return Ok(None);
        }
        TensorSchedule::from_chain(&chain, contraction).map(Some)
    }

    /// Reads the nodes from the root down to the instructions.
    ///
    /// # Errors
    /// As [`TensorSchedule::from_term`].
    pub fn from_chain(chain: &[&Term], contraction: &Contraction) -> Result<TensorSchedule, Incomplete> {
        let wrong = |what: &str| Incomplete(what.to_string());
        let gemm = Gemm::of(contraction).map_err(|e| Incomplete(e.to_string()))?;
        let mut blocks = Vec::new();
        let mut parts = Parts::default();
        for term in chain {
            match term {
                Term::Split(_) | Term::Grid(_) => {}
                Term::Loop { axis, role: role @ (Role::Block | Role::Group), extent, .. } => {
                    blocks.push(BlockLoop { axis: *axis, extent: *extent, group: *role == Role::Group });
                }
                Term::Tensor { node, .. } => parts.take(node),
                Term::Matrix { matrix, state } => parts.leaf = Some((*matrix, **state)),
                other => return Err(Incomplete(format!("{other} has no place in a block on tensor cores"))),
            }
        }
        let (matrix, state) = parts.leaf.ok_or_else(|| wrong("it has no instructions"))?;
        let split_k = blocks.iter().find(|l| l.axis == Axis::K).map_or(1, |l| l.extent);
        let raster = raster(&blocks);
        let stages = parts.stages.ok_or_else(|| wrong("it has no ring"))?;
        let tile = state.tile;
        match (matrix, state.stage) {
            (Matrix::Mma(order), Stage::Tensor(TensorStage::Multiply(Kind::Mma(instruction)))) => {
                let ([m, n], m_outer, min_blocks) = parts.warps.ok_or_else(|| wrong("it has no warps"))?;
                let swizzled = |place| matches!(place, Place::Shared(layout) if layout.swizzle);
                let plan = TensorPlan {
                    tile: [tile.m * m, tile.n * n, tile.k],
                    warp: [tile.m, tile.n],
                    warps_m_outer: m_outer,
                    instruction,
                    order,
                    stages,
                    swizzle: [swizzled(state.a), swizzled(state.b)],
                    raster,
                    split_k,
                    store: parts.store.ok_or_else(|| wrong("C is not stored"))?,
                    min_blocks,
                };
                plan.check(&gemm).map_err(|e| Incomplete(e.to_string()))?;
                Ok(TensorSchedule::Mma(plan))
            }
            (
                Matrix::Wgmma { by_rows, eager_release },
                Stage::Tensor(TensorStage::Multiply(Kind::Wgmma { consumers, ping_pong })),
            ) => {
                let own = if ping_pong { 1 } else { i64::from(consumers) };
                let (grid, cluster, stream_k) = parts.grid.ok_or_else(|| wrong("it has no blocks"))?;
                let plan = WgmmaPlan {
                    tile: [tile.m * own, tile.n, tile.k],
                    consumers,
                    ping_pong,
                    stages,
                    by_rows,
                    eager_release,
                    raster,
                    blocks: grid,
                    cluster,
                    split_k,
                    stream_k,
                    store: parts.store_tile.ok_or_else(|| wrong("C is not stored"))?,
                };
                plan.check(&gemm).map_err(|e| Incomplete(e.to_string()))?;
                Ok(TensorSchedule::Wgmma(plan))
            }
            _ => Err(wrong("its instructions are not those of its blocks")),
        }
    }
}

/// What the nodes say, one by one.
#[derive(Default)]
struct Parts {
    store: Option<Store>,
    store_tile: Option<TileStore>,
    stages: Option<u32>,
    warps: Option<([i64; 2], bool, Option<u32>)>,
    grid: Option<(Option<u32>, [u32; 2], bool)>,
    leaf: Option<(Matrix, crate::term::State)>,
}

impl Parts {
    fn take(&mut self, node: &TensorNode) {
        match *node {
            TensorNode::Mma { .. } | TensorNode::Consumers { .. } => {}
            TensorNode::Wgmma { blocks, cluster, stream_k, .. } => self.grid = Some((blocks, cluster, stream_k)),
            TensorNode::Store { store, .. } => self.store = Some(store),
            TensorNode::StoreTile { store, .. } => self.store_tile = Some(store),
            TensorNode::Ring { stages, .. } => self.stages = Some(stages),
            TensorNode::Warps { count, m_outer, min_blocks } => self.warps = Some((count, m_outer, min_blocks)),
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
    /// The instruction for operands of a type.
    pub fn of(operand: crate::DType) -> Option<Mma> {
        [Mma::F16, Mma::Bf16, Mma::Tf32, Mma::S8].into_iter().find(|op| op.operand() == operand)
    }
}
