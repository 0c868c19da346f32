//! Rules of tensor-core schedules. They begin where a block begins, beside `enter block`; the loops over blocks, their
//! order and split-K are everybody's. Conditions are those of `TensorPlan::check` and `WgmmaPlan::check`, one by one.
mod blocks;
mod cluster;
mod consumers;
mod instructions;
mod menu;
mod operand;
mod ring;
mod split_k;
mod store;
mod stream_k;
mod swap;
mod tensorize;
mod warps;
mod wmma;

pub use menu::{TensorCores, TensorMenu};
pub use swap::is_offered;

use crate::space::{Engine, Rule};
use satune_ir::term::tensor::{mma_conditions, Gemm, Kind, TensorNode, TensorStage};
use satune_ir::term::{Contraction, Layout, Place, Side, Stage, State, Term};
use std::sync::Arc;

/// What all these rules know: the matrix product as it is and swapped, and the sizes on offer.
#[derive(Clone, Debug)]
struct Offer {
    gemms: [Gemm; 2],
    menu: TensorMenu,
}

impl Offer {
    /// The product that a state is about.
    fn gemm(&self, state: &State) -> &Gemm {
        &self.gemms[usize::from(state.swapped)]
    }
}

/// The rules for a contraction; none where tensor cores do not take it or the GPU has none.
pub fn all(contraction: &Contraction, menu: TensorMenu) -> Vec<Box<dyn Rule>> {
    let Ok(gemm) = Gemm::of(contraction) else { return Vec::new() };
    let (mma, wmma, wgmma) = (menu.mma, !menu.wmma.is_empty(), menu.wgmma);
    if !mma && !wmma && !wgmma {
        return Vec::new();
    }
    let gemms = [false, true].map(|swapped| gemm.oriented(swapped).into_owned());
    let offer = Arc::new(Offer { gemms, menu });
    let mut rules: Vec<Box<dyn Rule>> =
        vec![Box::new(blocks::TensorBlocks(offer.clone())), Box::new(swap::SwapOperands(offer.clone()))];
    if contraction.epilogue.is_some() {
        rules.push(Box::new(split_k::SplitFused));
    }
    if mma {
        rules.push(Box::new(tensorize::TensorizeMma(offer.clone())));
    }
    if wmma {
        rules.push(Box::new(wmma::TensorizeWmma(offer.clone())));
    }
    if mma || wmma {
        rules.push(Box::new(store::StoreSums(offer.clone())));
        rules.push(Box::new(ring::CopyRing(offer.clone())));
        rules.push(Box::new(warps::BindWarps(offer.clone())));
        rules.push(Box::new(operand::LayoutTile(offer.clone())));
        rules.push(Box::new(operand::CopyTile(offer.clone())));
        rules.push(Box::new(operand::IssueCopies(offer.clone())));
        rules.push(Box::new(operand::LoadFragments(offer.clone())));
        rules.push(Box::new(instructions::MmaOrder(offer.clone())));
    }
    if wgmma {
        rules.push(Box::new(tensorize::TensorizeWgmma(offer.clone())));
        rules.push(Box::new(cluster::BindCluster(offer.clone())));
        rules.push(Box::new(stream_k::ShareSteps(offer.clone())));
        rules.push(Box::new(store::StoreTiles(offer.clone())));
        rules.push(Box::new(ring::TmaRing(offer.clone())));
        rules.push(Box::new(consumers::BindConsumers));
        rules.push(Box::new(instructions::WgmmaOrder));
    }
    rules
}

/// The stage of an unscheduled nest of a block on tensor cores.
fn stage_of(node: &Term, state: &State) -> Option<TensorStage> {
    match (node, state.stage) {
        (Term::Nest(_), Stage::Tensor(stage)) => Some(stage),
        _ => None,
    }
}

/// The tile of an operand in shared memory, as it is in global memory.
fn shared(gemm: &Gemm, side: Side) -> Place {
    let k_major = mma_conditions::rows_along_k(gemm, side);
    Place::Shared(Layout { k_major, pad: 0, swizzle: true })
}

/// States that the node under consideration equals `node` over what is not decided yet.
fn decide(engine: &mut Engine<'_>, node: TensorNode, below: State) {
    let body = engine.nest(below);
    engine.equals(Term::Tensor { node, body: [body] });
}

/// The same state with another decision to come.
fn at(state: &State, stage: TensorStage) -> State {
    State { stage: Stage::Tensor(stage), ..*state }
}

/// Rows of the tile that are not yet dealt out by a kind of block.
fn own_rows(kind: Kind, rows: i64) -> i64 {
    match kind {
        Kind::Wgmma { consumers, ping_pong: false } => rows / i64::from(consumers.max(1)),
        _ => rows,
    }
}
