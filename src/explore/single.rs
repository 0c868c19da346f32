//! Products that tensor cores could multiply, and whose space has schedules for single threads alone.
use super::tensor_cores;
use crate::workload::{Kind, Workload};
use satune_extract::Descriptor;
use satune_ir::term::tensor::Gemm;
use satune_ir::term::Contraction;
use satune_ir::DType;
use satune_rewrites::space::rules::tensor::TensorMenu;

/// Names of their blocks, and for people why. None where the GPU has no instructions for their types.
pub(super) fn on_single_threads(problem: &dyn Workload, gpu: &Descriptor) -> (Vec<String>, Option<String>) {
    let offered = |c: &Contraction| {
        let menu = TensorMenu::of(c, &tensor_cores(gpu));
        // Floats of 8 bits are multiplied by `wgmma` alone.
        let mma = menu.mma && !matches!(c.a.dtype, DType::F8E4M3 | DType::F8E5M2);
        Gemm::multiplied(c) && (mma || menu.wgmma || !menu.wmma.is_empty())
    };
    match problem.kind() {
        Kind::Contraction(c) => match Gemm::of(c) {
            Err(why) if offered(c) => {
                let note = format!("block {} has schedules on single threads alone: {why}", c.block_name);
                (vec![c.block_name.clone()], Some(note))
            }
            _ => (Vec::new(), None),
        },
        Kind::Streams(streams) => {
            let all = streams.whole().tiled.iter().map(|t| &t.contraction);
            let mut blocks: Vec<String> = all.filter(|c| offered(c)).map(|c| c.block_name.clone()).collect();
            blocks.sort_unstable();
            blocks.dedup();
            let note = (!blocks.is_empty()).then(|| {
                format!(
                    "{}: tensor cores multiply such operands, but beside other blocks there are schedules on single threads alone; as \
                     a program of its own, with elementwise blocks after it, a product has both",
                    blocks.join(", ")
                )
            });
            (blocks, note)
        }
    }
}
