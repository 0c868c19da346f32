//! `tensorize`: a block that computes what a tensor intrinsic computes is given the intrinsic's instructions.
//!
//! before                                     after, tensorize(k_1, "dp4a_s8s8s32")
//!   for i, j, k_0 in T.grid(8, 8, 4):          for i, j, k_0 in T.grid(8, 8, 4):
//!       for k_1 in range(4):                       with T.sblock("C_o"):
//!           with T.sblock("C"):                        vi_o, vj_o, vk_o = ...
//!               ...                                    A_1 = T.match_buffer(A[vi_o, vk_o * 4:vk_o * 4 + 4], (4,), ...)
//!               C[vi, vj] = C[vi, vj] +                B_1, C_1 = ...
//!                   A[vi, vk] * B[vj, vk]              C_1[0] = C_1[0] + __dp4a(A_1[0:4], B_1[0:4], 0)
//!
//! Legal when: 1 the intrinsic is known; 2 a loop can be made a block of (see [`crate::blockize`]); 3 that block is the
//! description: the same loops, blocks, iterators of the same kinds and extents, the same operations in the same order;
//! buffers of the same types and scopes, each accessed from one first element on; the description's annotations.
use crate::blockize;
use crate::intrinsics::{self, Instance, Intrinsic};
use crate::schedule::{Result, Schedule};
use crate::simplify::simplified_realize;
use crate::tree::Node;
use crate::{ErrorClass, ScheduleError};
use compare::Comparison;
use satune_ir::affine::{int, Domains};
use satune_ir::{Block, BlockId, BlockRealize, BufferId, DType, Range, Region, Stmt};

mod compare;

/// A view that the implementation gets: its parameter, and what it shows.
#[derive(Clone, Debug, PartialEq)]
struct View {
    param: BufferId,
    shows: Region,
}

/// Conditions 1 to 3 for a block that stands in the program. The schedule is not changed.
pub fn legal(s: &Schedule, block: BlockId, intrinsic: &str) -> Result<()> {
    let intrinsic = known(intrinsic)?;
    matched(s, &s.realize(block)?.block, &intrinsic).map(|_| ()).map_err(|e| e.at_block(block))
}

/// Condition 1.
fn known(name: &str) -> Result<std::sync::Arc<Intrinsic>> {
    intrinsics::get(name).ok_or_else(|| {
        let message = format!("TensorIntrin '{name}' is not registered");
        ScheduleError::of(ErrorClass::ValueError, message.clone(), message)
            .remedy("register it: --intrinsics FILE, with two functions and TensorIntrin.register(name, description, implementation)")
    })
}

/// Condition 3.
fn matched(s: &Schedule, block: &Block, intrinsic: &Intrinsic) -> Result<Vec<View>> {
    let mismatch = |why: String| {
        ScheduleError::refused(
            "The stmt doesn't match the tensor intrin.",
            format!("The stmt doesn't match the tensor intrin {}: block {}: {why}", intrinsic.name, block.name),
        )
        .remedy("bring the block into the form that the intrinsic describes: extents, types, scopes, order of operands")
    };
    let description = &intrinsic.description;
    let simple = simplified_realize(&description.body, &Domains::new());
    let mut comparison = Comparison::new(s.program(), description);
    comparison.outermost(block, &simple.block).map_err(mismatch)?;
    let implementation = &intrinsic.implementation;
    let declared = &implementation.body.block;
    let mut views = Vec::new();
    for (param, described) in implementation.params.iter().zip(&description.params) {
        let region = declared.reads.iter().chain(&declared.writes).rfind(|r| r.buffer == *param);
        let (Some(source), Some(region)) = (comparison.buffer_of(*described), region) else {
            let name = &implementation.buffer(*param).name;
            return Err(mismatch(format!("parameter {name} stands for nothing")));
        };
        let base = comparison.base(source);
        let lead = base.len().saturating_sub(region.ranges.len());
        let extent = |d: usize| match d.checked_sub(lead).and_then(|d| region.ranges.get(d)) {
            Some(range) => range.extent.clone(),
            None => int(1, DType::I32),
        };
        let ranges = base.iter().enumerate().map(|(d, min)| Range { min: min.clone(), extent: extent(d) }).collect();
        views.push(View { param: *param, shows: Region { buffer: source, ranges } });
    }
    Ok(views)
}

/// The primitive, for a loop or a block.
pub fn tensorize(s: &mut Schedule, target: Node, intrinsic: &str, preserve_unit_iters: bool) -> Result<()> {
    apply(s, target, intrinsic, preserve_unit_iters).map_err(|e| e.within("tensorize"))
}

fn apply(s: &mut Schedule, target: Node, name: &str, preserve_unit_iters: bool) -> Result<()> {
    let intrinsic = known(name)?;
    let (scope, mut realize): (BlockId, BlockRealize) = match target {
        Node::Block(id) => (s.scope_of(target)?, s.realize(id)?.clone()),
        Node::Loop(id) => {
            let plan = blockize::legal(s, id, preserve_unit_iters)?;
            (s.scope_of(Node::Block(plan.block))?, blockize::blockized(s, &plan, preserve_unit_iters)?)
        }
    };
    let views = matched(s, &realize.block, &intrinsic).map_err(|e| match target {
        Node::Block(id) => e.at_block(id),
        Node::Loop(id) => e.at_loop(id),
    })?;
    let implementation = &intrinsic.implementation;
    let mut instance = Instance::new(s.program_mut());
    for view in views {
        let id = instance.buffer(implementation, view.param);
        realize.block.match_buffers.push((id, view.shows));
    }
    *realize.block.body = instance.stmt(implementation, &implementation.body.block.body);
    realize.block.annotations.extend(implementation.body.block.annotations.clone());
    s.replace(target, |_| Stmt::Realize(Box::new(realize)))?;
    s.recompute_flags(scope);
    Ok(())
}
