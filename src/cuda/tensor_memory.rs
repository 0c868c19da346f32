//! Helper functions for `tcgen05` and tensor memory, as inline PTX (sm_100a), and their calls.
use super::hopper::{operand, registers, sides, GroupHelper};
use super::instructions::sums;
use super::Printer;
use crate::kernel::{Cond, Tcgen05, TensorMemoryOp};
use satune_ir::DType;

/// An instruction of sm_100a.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TensorMemoryHelper {
    Allocate,
    Free,
    Multiply(Tcgen05),
    Commit { multicast: bool },
    Load { eights: u32, sums: DType },
    FenceBefore,
    FenceAfter,
}

impl TensorMemoryHelper {
    pub fn name(self) -> String {
        match self {
            TensorMemoryHelper::Allocate => "tensor_memory_allocate".into(),
            TensorMemoryHelper::Free => "tensor_memory_free".into(),
            TensorMemoryHelper::Multiply(op) => {
                let sides = sides(op.operand, [op.a_transposed, op.b_transposed]);
                format!("tcgen05_m{}n{}k{}_{}{sides}", Tcgen05::ROWS, op.n, op.k(), operand(op.operand))
            }
            TensorMemoryHelper::Commit { multicast: false } => "tcgen05_commit".into(),
            TensorMemoryHelper::Commit { multicast: true } => "tcgen05_commit_multicast".into(),
            TensorMemoryHelper::Load { eights, .. } => format!("tensor_memory_load_x{eights}"),
            TensorMemoryHelper::FenceBefore => "tcgen05_fence_before".into(),
            TensorMemoryHelper::FenceAfter => "tcgen05_fence_after".into(),
        }
    }

    /// The whole definition.
    pub fn text(self) -> String {
        let function = |rest: &str| format!("__device__ __forceinline__ void {}{rest}\n", self.name());
        let shared = "(unsigned int)__cvta_generic_to_shared";
        match self {
            TensorMemoryHelper::Allocate => format!(
                "// Columns of tensor memory, whose address goes to shared memory: by a whole warp.
template <int columns> __device__ __forceinline__ void {}(int* to)
{{
    asm volatile(\"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;\"
                 :: \"r\"({shared}(to)), \"n\"(columns) : \"memory\");
    asm volatile(\"tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\");
}}
",
                self.name()
            ),
            TensorMemoryHelper::Free => format!(
                "template <int columns> __device__ __forceinline__ void {}(int at)
{{
    asm volatile(\"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;\" :: \"r\"(at), \"n\"(columns) : \"memory\");
}}
",
                self.name()
            ),
            TensorMemoryHelper::Multiply(op) => function(&format!(
                "(int d, unsigned long long a, unsigned long long b, bool adds)
{{
    asm volatile(\"{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %3, 0;\\n\"
                 \"tcgen05.mma.cta_group::1.kind::{} [%0], %1, %2, {:#x}, adds;\\n}}\"
                 :: \"r\"(d), \"l\"(a), \"l\"(b), \"r\"((int)adds) : \"memory\");
}}",
                op.kind(),
                op.descriptor()
            )),
            TensorMemoryHelper::Commit { multicast } => {
                let arrive = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster";
                match multicast {
                    false => function(&format!(
                        "(unsigned long long* barrier)
{{
    asm volatile(\"{arrive}.b64 [%0];\" :: \"r\"({shared}(barrier)) : \"memory\");
}}"
                    )),
                    true => function(&format!(
                        "(unsigned long long* barrier, int blocks)
{{
    asm volatile(\"{arrive}.multicast::cluster.b64 [%0], %1;\"
                 :: \"r\"({shared}(barrier)), \"h\"((unsigned short)blocks) : \"memory\");
}}"
                    )),
                }
            }
            TensorMemoryHelper::Load { eights, sums: dtype } => {
                let (c_type, letter, _) = sums(dtype);
                let count = 4 * eights;
                let [list, d] = registers(count, &format!("={letter}"));
                function(&format!(
                    "({c_type}* d, int at)
{{
    asm volatile(\"tcgen05.ld.sync.aligned.16x256b.x{eights}.b32 {{\"
                 \"{list}\"
                 \"}}, [%{count}];\\ntcgen05.wait::ld.sync.aligned;\"
                 : {d}
                 : \"r\"(at) : \"memory\");
}}"
                ))
            }
            TensorMemoryHelper::FenceBefore => {
                function("()\n{\n    asm volatile(\"tcgen05.fence::before_thread_sync;\" ::: \"memory\");\n}")
            }
            TensorMemoryHelper::FenceAfter => {
                function("()\n{\n    asm volatile(\"tcgen05.fence::after_thread_sync;\" ::: \"memory\");\n}")
            }
        }
    }
}

impl Printer<'_> {
    pub(super) fn tensor_memory_op(&mut self, op: &TensorMemoryOp) {
        use TensorMemoryHelper as H;
        let helper = |p: &mut Self, helper: H| p.group_helper(GroupHelper::TensorMemory(helper));
        let text = match op {
            TensorMemoryOp::Allocate { slot, columns } => {
                format!("{}<{columns}>({})", helper(self, H::Allocate), self.at(slot))
            }
            TensorMemoryOp::Free { at, columns } => {
                format!("{}<{columns}>({})", helper(self, H::Free), self.integer(at).text.text)
            }
            TensorMemoryOp::Multiply { op, d, a, b, adds } => {
                let name = helper(self, H::Multiply(*op));
                let (d, a, b) = (self.integer(&d.1).text.text, self.descriptor(a), self.descriptor(b));
                let adds = match adds {
                    Cond::True => "true".into(),
                    Cond::Not(inner) if **inner == Cond::True => "false".into(),
                    cond => self.condition(cond).text,
                };
                format!("{name}({d}, {a}, {b}, {adds})")
            }
            TensorMemoryOp::Commit { barrier, multicast: None } => {
                format!("{}({})", helper(self, H::Commit { multicast: false }), self.at(barrier))
            }
            TensorMemoryOp::Commit { barrier, multicast: Some(blocks) } => {
                let name = helper(self, H::Commit { multicast: true });
                format!("{name}({}, {})", self.at(barrier), self.integer(blocks).text.text)
            }
            TensorMemoryOp::Load { dst, from, eights } => {
                let sums = self.kernel.array(dst.0).dtype;
                let name = helper(self, H::Load { eights: *eights, sums });
                format!("{name}({}, {})", self.at(dst), self.integer(&from.1).text.text)
            }
            TensorMemoryOp::FenceBefore => format!("{}()", helper(self, H::FenceBefore)),
            TensorMemoryOp::FenceAfter => format!("{}()", helper(self, H::FenceAfter)),
        };
        self.line(&format!("{text};"));
    }
}
