//! Rules of tensor-core schedules. They begin where a block begins, beside `enter block`; the loops over blocks, their
//! order and split-K are everybody's. Conditions are those of `TensorPlan::check` and `WgmmaPlan::check`, one by one.
mod blocks;
mod cluster;
mod consumers;
mod instructions;
mod menu;
mod offer;
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

use crate::space::Rule;
use offer::Offer;
use satune_ir::term::tensor::Gemm;
use satune_ir::term::Contraction;
use std::sync::Arc;

/// The rules for a contraction; none where tensor cores do not take it or the GPU has none.
pub fn all(contraction: &Contraction, menu: TensorMenu) -> Vec<Box<dyn Rule>> {
    let Ok(gemm) = Gemm::of(contraction) else { return Vec::new() };
    let (mma, wmma, wgmma) = (menu.mma.is_some(), !menu.wmma.is_empty(), menu.group.is_some());
    if !mma && !wmma && !wgmma {
        return Vec::new();
    }
    let gemms = [false, true].map(|swapped| gemm.oriented(swapped).into_owned());
    let offer = Arc::new(Offer { gemms, menu });
    let mut rules: Vec<Box<dyn Rule>> =
        vec![Box::new(blocks::TensorBlocks(offer.clone())), Box::new(swap::SwapOperands(offer.clone()))];
    if contraction.finishes() {
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
        rules.push(Box::new(ring::GroupRing(offer.clone())));
        rules.push(Box::new(consumers::BindConsumers));
        rules.push(Box::new(instructions::WgmmaOrder));
    }
    rules
}
