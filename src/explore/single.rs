//! Products that tensor cores could multiply, and whose space has schedules for single threads alone.
use super::tensor_cores;
use crate::workload::{ProblemKind, Workload};
use satune_extract::Descriptor;
use satune_ir::term::tensor::{wgmma_conditions, Gemm};
use satune_ir::term::Contraction;
use satune_rewrites::space::rules::tensor::TensorMenu;

/// Names of their blocks, and for people why. None where the GPU has no instructions for their types.
pub(super) fn on_single_threads(problem: &dyn Workload, gpu: &Descriptor) -> (Vec<String>, Option<String>) {
    let all: Vec<&Contraction> = match problem.kind() {
        ProblemKind::Contraction(contraction) => vec![contraction],
        ProblemKind::Streams(streams) => streams.whole().tiled.iter().map(|t| &t.contraction).collect(),
    };
    let asked: Vec<(&str, Result<(), String>)> =
        all.into_iter().filter_map(|c| Some((c.block_name.as_str(), taken(c, gpu)?))).collect();
    // With blocks after it or without them: what has one form for tensor cores has schedules there.
    let has_one = |block: &str| asked.iter().any(|(other, taken)| *other == block && taken.is_ok());
    let mut left: Vec<(&str, &String)> = asked
        .iter()
        .filter(|(block, _)| !has_one(block))
        .filter_map(|(block, taken)| Some((*block, taken.as_ref().err()?)))
        .collect();
    left.sort_by_key(|(block, _)| *block);
    left.dedup_by(|a, b| a.0 == b.0);
    let blocks = left.iter().map(|(block, _)| (*block).to_string()).collect();
    let notes: Vec<String> = left.iter().map(|(block, why)| one(block, why)).collect();
    (blocks, (!notes.is_empty()).then(|| notes.join("; ")))
}

/// Whether an instruction of the GPU's tensor cores takes a product; `None` where it has none for its types.
fn taken(contraction: &Contraction, gpu: &Descriptor) -> Option<Result<(), String>> {
    let menu = TensorMenu::of(contraction, &tensor_cores(gpu));
    let on_warps = menu.mma.is_some() || !menu.wmma.is_empty();
    let offered = Gemm::multiplied(contraction) && (on_warps || menu.group.is_some());
    offered.then(|| {
        let gemm = Gemm::of(contraction).map_err(|why| why.to_string())?;
        // Warps take any product in this form.
        if on_warps {
            return Ok(());
        }
        let op = menu.group.unwrap_or_default();
        let by_warpgroups = wgmma_conditions::operands(&gemm, op).and_then(|()| wgmma_conditions::rows(&gemm));
        by_warpgroups.map_err(|why| why.to_string())
    })
}

fn one(block: &str, why: &str) -> String {
    format!("block {block} has schedules on single threads alone: {why}")
}
