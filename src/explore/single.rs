//! Products that tensor cores could multiply, and whose space has schedules for single threads alone.
use super::tensor_cores;
use crate::workload::{ProblemKind, Workload};
use satune_extract::Descriptor;
use satune_ir::term::tensor::Gemm;
use satune_ir::term::Contraction;
use satune_rewrites::space::rules::tensor::TensorMenu;

/// Names of their blocks, and for people why. None where the GPU has no instructions for their types.
pub(super) fn on_single_threads(problem: &dyn Workload, gpu: &Descriptor) -> (Vec<String>, Option<String>) {
    let offered = |c: &Contraction| {
        let menu = TensorMenu::of(c, &tensor_cores(gpu));
        Gemm::multiplied(c) && (menu.mma.is_some() || menu.wgmma || !menu.wmma.is_empty())
    };
    match problem.kind() {
        ProblemKind::Contraction(c) => match Gemm::of(c) {
            Err(why) if offered(c) => (vec![c.block_name.clone()], Some(one(&c.block_name, &why.to_string()))),
            _ => (Vec::new(), None),
        },
        ProblemKind::Streams(streams) => {
            let all = streams.whole().tiled.iter().map(|t| &t.contraction);
            let taken: Vec<&Contraction> = all.clone().filter(|c| Gemm::of(c).is_ok()).collect();
            // With blocks after it or without them: what has one form for tensor cores has schedules there.
            let none = |c: &&Contraction| offered(c) && !taken.iter().any(|t| t.block_name == c.block_name);
            let left: Vec<(&str, String)> = all
                .filter(none)
                .filter_map(|c| Some((c.block_name.as_str(), Gemm::of(c).err()?.to_string())))
                .collect();
            let mut blocks: Vec<String> = left.iter().map(|(block, _)| (*block).to_string()).collect();
            blocks.sort_unstable();
            blocks.dedup();
            let of = |block: &String| left.iter().find(|(b, _)| b == block).map(|(b, why)| one(b, why));
            let notes: Vec<String> = blocks.iter().filter_map(of).collect();
            (blocks, (!notes.is_empty()).then(|| notes.join("; ")))
        }
    }
}

fn one(block: &str, why: &str) -> String {
    format!("block {block} has schedules on single threads alone: {why}")
}
