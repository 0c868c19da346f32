//! The meaning of a program with tensor intrinsics: the same program, with what each of them computes in its place.
//! Nothing marks a block as tensorized, so its body is compared with every implementation of so many parameters.
use super::{all, Instance, Intrinsic, Lie};
use crate::index_types::widened;
use crate::tree::has_blocks;
use satune_ir::affine::constant;
use satune_ir::{structural, Attr, Block, BlockId, BlockRealize, Buffer, BufferId, Program, Stmt};
use std::collections::HashMap;
use std::sync::Arc;

/// Whether buffers were loaded transposed, by buffer that a view shows.
type Loads = HashMap<BufferId, bool>;

/// Annotation of a block of [`named`] programs: the name of the intrinsic that the block is.
pub const INTRINSIC: &str = "satune.intrinsic";

/// The program with the descriptions of intrinsics in place of their implementations: one that an interpreter can run.
pub fn described(program: &Program) -> Program {
    all_described(program, false)
}

/// [`described`], where each block that was an intrinsic says which ([`INTRINSIC`]), and registers are where lanes hold them
/// ([`Intrinsic::held`]): lowering writes instructions for it.
pub fn named(program: &Program) -> Program {
    all_described(program, true)
}

fn all_described(program: &Program, names: bool) -> Program {
    let mut out = program.clone();
    let mut body = std::mem::replace(out.body.block.body.as_mut(), Stmt::Seq(Vec::new()));
    let mut loads = Loads::new();
    rewrite(&mut out, &mut loads, names, &mut body);
    *out.body.block.body = body;
    out
}

fn rewrite(program: &mut Program, loads: &mut Loads, names: bool, s: &mut Stmt) {
    match s {
        Stmt::For(l) => rewrite(program, loads, names, &mut l.body),
        Stmt::Realize(r) => match known(program, loads, &r.block) {
            Some((intrinsic, views)) => {
                if let Lie::Load { target, transposed } = intrinsic.lie {
                    loads.extend(shown(&r.block, views.get(target)).map(|b| (b, transposed)));
                }
                let mut instance = Instance::new(program);
                let description = intrinsic.held.as_ref().filter(|_| names).unwrap_or(&intrinsic.description);
                for (from, to) in description.params.iter().zip(views) {
                    instance.stands_for(*from, to);
                }
                *r.block.body = instance.stmt(description, &description.body.block.body);
                if names {
                    r.block.annotations.insert(INTRINSIC.into(), Attr::Str(intrinsic.name.clone()));
                }
            }
            None => rewrite(program, loads, names, &mut r.block.body),
        },
        Stmt::Seq(parts) => parts.iter_mut().for_each(|s| rewrite(program, loads, names, s)),
        Stmt::If { then, otherwise, .. } => {
            rewrite(program, loads, names, then);
            if let Some(s) = otherwise {
                rewrite(program, loads, names, s);
            }
        }
        Stmt::Let { body, .. } => rewrite(program, loads, names, body),
        Stmt::Store { .. } | Stmt::Evaluate(_) => {}
    }
}

/// The intrinsic whose implementation a block's body is, and the buffers that its parameters are views of. Where several
/// have the same instructions, which of them it is depends on the loads before it: then it is the first.
pub fn of_block(program: &Program, block: &Block) -> Option<(Arc<Intrinsic>, Vec<BufferId>)> {
    let (intrinsic, views) = known(program, &Loads::new(), block)?;
    let buffers = views.iter().map(|v| shown(block, Some(v))).collect::<Option<Vec<_>>>()?;
    Some((intrinsic, buffers))
}

/// The intrinsic that a block's body is, and the views that are its parameters.
fn known(program: &Program, loads: &Loads, block: &Block) -> Option<(Arc<Intrinsic>, Vec<BufferId>)> {
    // Only a body that calls something, directly or under loops of threads, can be one.
    if block.match_buffers.is_empty() || has_blocks(&block.body) {
        return None;
    }
    all().find_map(|intrinsic| {
        let implementation = &intrinsic.implementation;
        // Views that the block had before come first.
        let from = block.match_buffers.len().checked_sub(implementation.params.len())?;
        let views: Vec<BufferId> = block.match_buffers[from..].iter().map(|(b, _)| *b).collect();
        let alone = |p: &Program, params: &[BufferId], body: &Stmt| Program {
            params: params.to_vec(),
            attrs: Default::default(),
            body: bare(body.clone()),
            ..p.clone()
        };
        if let Lie::Multiply { a, b } = intrinsic.lie {
            let fits = |at: usize, transposed: bool| {
                let loaded = shown(block, views.get(at)).and_then(|b| loads.get(&b));
                loaded.is_none_or(|l| *l == transposed)
            };
            if !fits(0, a) || !fits(1, b) {
                return None;
            }
        }
        // Buffers first: comparing them is cheap, and copying programs is not.
        let extents = |b: &Buffer| b.shape.iter().map(constant).collect::<Vec<_>>();
        let alike = views.iter().zip(&implementation.params).all(|(x, y)| {
            let (x, y) = (program.buffer(*x), implementation.buffer(*y));
            x.dtype == y.dtype && x.scope == y.scope && extents(x) == extents(y) && x.strides.len() == y.strides.len()
        });
        if !alike {
            return None;
        }
        let here = alone(program, &views, &block.body);
        let there = alone(implementation, &implementation.params, &implementation.body.block.body);
        // In a program whose indices have 64 bits, those of the implementation have them, too.
        let same = structural::equal(&here, &there).is_ok() || structural::equal(&here, &widened(&there)).is_ok();
        same.then_some((intrinsic, views))
    })
}

/// The buffer that a view of a block shows.
fn shown(block: &Block, view: Option<&BufferId>) -> Option<BufferId> {
    block.match_buffers.iter().find(|(b, _)| Some(b) == view).map(|(_, region)| region.buffer)
}

/// A root block around a statement, which declares nothing.
fn bare(body: Stmt) -> BlockRealize {
    BlockRealize::single(Block::plain(BlockId(0), "root", body))
}
