//! What is counted of a plan, and what its block takes, by the instruction that it uses.
use super::{mma, tensor_clocks, wgmma, Inner, Share};
use crate::prediction::Infeasible;
use crate::tensor::kernel::Kernel;
use crate::tensor::work::{self, Block, Operand};
use crate::work::Work;
use crate::Descriptor;
use satune_ir::term::tensor::{by_threads_conditions, Gemm, GroupMma, WgmmaPlan};

/// What is counted of a plan's block: it does not depend on a GPU.
#[derive(Clone, Copy, Debug)]
pub(in crate::tensor) struct Counted {
    pub block: Block,
    /// Of the operands, where a block's threads copy them.
    share: Share,
}

impl Counted {
    /// Counts.
    pub fn of(kernel: &Kernel<'_>, gemm: &Gemm) -> Counted {
        match kernel {
            Kernel::Mma(plan) => {
                Counted { block: work::block(kernel, gemm), share: mma::share(plan, &gemm.oriented(plan.swapped)) }
            }
            Kernel::Wgmma(plan) => {
                let gemm = &*gemm.oriented(plan.swapped);
                Counted::of_copied(plan, gemm, &work::copied(plan, gemm))
            }
        }
    }

    /// Counts a plan on `wgmma` whose own threads make such copies of operands; of the product as the plan has it.
    pub fn of_copied(plan: &WgmmaPlan, gemm: &Gemm, copied: &[(Operand, Work)]) -> Counted {
        let share = |(place, copies): &(Operand, Work)| {
            Share::counted(place, gemm, &by_threads_conditions::WAY, copies, &Work::default())
        };
        let share = copied.iter().map(share).fold(Share::default(), |sum, one| sum.plus(&one));
        Counted { block: work::wgmma(plan, gemm, copied), share }
    }
}

impl Inner {
    /// What a plan's block takes, which is counted.
    pub fn of_counts(
        kernel: &Kernel<'_>,
        gemm: &Gemm,
        counted: &Counted,
        gpu: &Descriptor,
    ) -> Result<Inner, Infeasible> {
        let Some(rates) = gpu.tensor else {
            return Err(Infeasible::cores("wmma", "sm_70 or later", gpu));
        };
        let gemm = &*gemm.oriented(kernel.swapped());
        let [m, n, k] = kernel.tile();
        let flop = (2 * m * n * k) as f64;
        let rate = rates.of(gemm.types());
        match kernel {
            Kernel::Mma(plan) => {
                let Some(tensor) = tensor_clocks(plan, gpu) else {
                    let op = plan.instruction;
                    return Err(Infeasible::cores(&op.to_string(), &op.needs(), gpu));
                };
                mma::inner(plan, gemm, gpu, (&counted.block, tensor), &counted.share)
            }
            Kernel::Wgmma(plan) => {
                let has = GroupMma::of(gpu.arch_number()) == Some(plan.op);
                if rates.wgmma_share <= 0.0 || !gpu.tma || !has {
                    return Err(Infeasible::cores(plan.op.name(), plan.op.needs(), gpu));
                }
                wgmma::inner(plan, gemm, gpu, (&counted.block, flop / (rate * rates.wgmma_share)), &counted.share)
            }
        }
    }
}
