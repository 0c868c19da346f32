//! `pad_einsum`: the iterators of a contraction get multiples of a padding as extents.
//!
//! before                                after, pad_einsum(C, [8, 1, 1])
//!   for i, j, k in T.grid(30, 16, 16):    for i0, i1 in T.grid(32, 16):
//!       with T.sblock("C"):                   with T.sblock("A_pad"):
//!           vi, vj, vk = ...                      v0, v1 = T.axis.remap("SS", [i0, i1])
//!           with T.init():                        A_pad[v0, v1] = T.if_then_else(v0 < 30, A[v0, v1], 0)
//!               C[vi, vj] = 0             for i, j, k in T.grid(32, 16, 16):
//!           C[vi, vj] +=                      with T.sblock("C"):
//!               A[vi, vk] * B[vk, vj]             C_pad[vi, vj] += A_pad[vi, vk] * B[vk, vj]
//!                                         for i0, i1 in T.grid(30, 16):
//!                                             with T.sblock("C_pad"):
//!                                                 C[v0, v1] = C_pad[v0, v1]
//!
//! Legal when: 1 the scope is a stage pipeline; 2 there is a positive padding for each iterator; 3 every buffer is touched
//! once, at iterators or constants. TVM does not ask for the rest: 4 the block stands alone in its branch of the scope;
//! 5 a padded loop feeds the padded iterator only; 6 the padded buffers are as large as the iterators and the output is
//! written completely; 7 where a reduction is padded, it adds up a term that is zero where its padded inputs are.
use crate::arith::{self, and, constant, int, lt};
use crate::cache_common::point;
use crate::regions;
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::scope;
use crate::tree::{self, Node};
use crate::ScheduleError;
use satune_ir::{
    visit, BinOp, Block, BlockId, BlockRealize, Buffer, BufferId, DType, Expr, IterKind, IterVar, Region, Stmt, VarId,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What is padded.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block in whose body the padded branch stands.
    pub scope: BlockId,
    /// The branch.
    pub index: usize,
    /// New extents of iterators.
    pub iters: HashMap<VarId, i64>,
    /// New extents of loops.
    pub loops: HashMap<VarId, i64>,
    /// Inputs to be padded.
    pub reads: Vec<Region>,
    /// Outputs to be padded.
    pub writes: Vec<Region>,
}

/// Conditions 1 to 7.
pub fn legal(s: &Schedule, block: BlockId, padding: &[i64]) -> Result<Plan> {
    let realize = s.realize(block)?;
    let b = &realize.block;
    let scope_id = scope::pipeline_of(s, block)?;
    if padding.len() != b.iter_vars.len() || padding.iter().any(|p| *p <= 0) {
        let list: Vec<String> = padding.iter().map(i64::to_string).collect();
        return Err(ScheduleError::refused(
            "The padding size for the block is invalid.",
            format!(
                "The padding for the block {} are invalid. It should be a list of {} positive integers. Got ({})",
                b.name,
                b.iter_vars.len(),
                list.join(", ")
            ),
        )
        .at_block(block)
        .remedy("give one factor per iterator, 1 for those that stay"));
    }
    require_einsum(b)?;
    let (mut iters, mut loops) = (HashMap::new(), HashMap::new());
    for ((iv, value), pad) in b.iter_vars.iter().zip(&realize.iter_values).zip(padding) {
        let old = constant(&iv.extent)
            .ok_or_else(|| ScheduleError::value("The extent of an iterator is not a constant").at_block(block))?;
        let new = old
            .checked_add(pad - 1)
            .and_then(|v| (v / pad).checked_mul(*pad))
            .ok_or_else(|| ScheduleError::value("The padded extent is too large").at_block(block))?;
        if new != old {
            iters.insert(iv.var.id, new);
            if let Expr::Var(v) = value {
                loops.insert(v.id, new);
            }
        }
    }
    let padded = |r: &&Region| r.ranges.iter().any(|x| matches!(&x.min, Expr::Var(v) if iters.contains_key(&v.id)));
    let reads: Vec<Region> = b.reads.iter().filter(padded).cloned().collect();
    let writes: Vec<Region> = b.writes.iter().filter(padded).cloned().collect();
    let entries = tree::entries(s.body_of(Node::Block(scope_id))?);
    let Some(index) = entries.iter().position(|e| tree::contains(e, Node::Block(block))) else {
        return Err(ScheduleError::internal("the block is not in its scope").at_block(block));
    };
    if !iters.is_empty() {
        require_alone(s, realize, &entries[index], &loops)?;
        for r in reads.iter().chain(&writes) {
            require_same_size(s, b, r)?;
        }
        for w in &writes {
            require_written(s, realize, scope_id, w)?;
        }
        require_neutral(s, b, &iters)?;
    }
    Ok(Plan { scope: scope_id, index, iters, loops, reads, writes })
}

/// Condition 3.
fn require_einsum(b: &Block) -> Result<()> {
    let mut seen: Vec<BufferId> = Vec::new();
    for r in b.reads.iter().chain(&b.writes) {
        let trivial =
            r.ranges.iter().all(|x| constant(&x.extent) == Some(1) && matches!(x.min, Expr::Var(_) | Expr::Int(..)));
        if seen.contains(&r.buffer) || !trivial {
            return Err(ScheduleError::refused(
                "The block is not a computation of Einsum pattern.",
                format!("The block {} not a computation of Einsum pattern.", b.name),
            )
            .at_block(b.id)
            .remedy("pad a block whose accesses are plain iterators: reindex it, and keep its init inside"));
        }
        seen.push(r.buffer);
    }
    Ok(())
}

/// A program that TVM would get wrong.
fn unsound(b: &Block, detail: String, remedy: &str) -> ScheduleError {
    ScheduleError::refused("The padded block would not compute the same", detail).at_block(b.id).remedy(remedy)
}

/// Conditions 4 and 5.
fn require_alone(s: &Schedule, realize: &BlockRealize, branch: &Stmt, loops: &HashMap<VarId, i64>) -> Result<()> {
    let b = &realize.block;
    let alone = matches!(tree::all_realizes(branch)[..], [one] if one.block.id == b.id);
    if !alone || !b.alloc_buffers.is_empty() || !b.match_buffers.is_empty() {
        let detail = format!("The loops of block {} hold other blocks, which would run in the padding too", b.name);
        return Err(unsound(b, detail, "pad before blocks are moved under the loops of the contraction"));
    }
    for (iv, value) in b.iter_vars.iter().zip(&realize.iter_values) {
        let Expr::Var(v) = value else { continue };
        if !loops.contains_key(&v.id) {
            continue;
        }
        let l = s.get_loop(v.id)?;
        let uses = realize.iter_values.iter().filter(|e| visit::uses_var(e, &|u| u == v.id)).count();
        if uses != 1 || l.extent != iv.extent || l.min != iv.min || constant(&l.min) != Some(0) {
            let detail =
                format!("The loop {} is not the whole of iterator {} of {} alone", v.name, iv.var.name, b.name);
            return Err(unsound(b, detail, "bind each padded iterator to a loop of its own first").at_loop(v.id));
        }
    }
    Ok(())
}

/// Condition 6: in the dimensions of iterators the buffer is as large as they are; the others have one element.
fn require_same_size(s: &Schedule, b: &Block, r: &Region) -> Result<()> {
    let buffer = s.program().buffer(r.buffer);
    let same = r.ranges.iter().zip(&buffer.shape).all(|(x, dim)| match &x.min {
        Expr::Var(v) => match b.iter_vars.iter().find(|iv| iv.var.id == v.id) {
            Some(iv) => constant(&iv.extent) == constant(dim) && constant(&iv.min) == Some(0),
            None => false,
        },
        other => constant(other) == Some(0) && constant(dim) == Some(1),
    });
    if same {
        return Ok(());
    }
    let detail = format!("The block {} touches a part of buffer {} only", b.name, buffer.name);
    Err(unsound(b, detail, "copy the part that is used to a buffer of its own first"))
}

/// Condition 6: what is copied back was written.
fn require_written(s: &Schedule, realize: &BlockRealize, scope: BlockId, w: &Region) -> Result<()> {
    let loops = regions::relaxed_loops(s, realize.block.id, Node::Block(scope), w.buffer, false)?;
    if arith::fills_boxes(&regions::bound(realize, w).ranges, &loops, &realize.predicate) {
        return Ok(());
    }
    let name = &s.program().buffer(w.buffer).name;
    let detail =
        format!("The block {} may leave elements of {name} unwritten, which would be copied back", realize.block.name);
    Err(unsound(&realize.block, detail, "pad a block that writes its output completely"))
}

/// Condition 7.
fn require_neutral(s: &Schedule, b: &Block, iters: &HashMap<VarId, i64>) -> Result<()> {
    let reduced: Vec<VarId> = b
        .iter_vars
        .iter()
        .filter(|iv| iv.kind != IterKind::Spatial && iters.contains_key(&iv.var.id))
        .map(|iv| iv.var.id)
        .collect();
    let neutral = reduced.iter().all(|r| match &*b.body {
        Stmt::Store { buffer, indices, value: Expr::Binary(BinOp::Add, x, y) } => {
            let own = Expr::Load(*buffer, indices.clone());
            (**x == own && vanishes(y, *r)) || (**y == own && vanishes(x, *r))
        }
        _ => false,
    });
    if neutral {
        return Ok(());
    }
    let written = b.writes.first().map_or("", |w| &s.program().buffer(w.buffer).name);
    let detail = format!("The reduction into {written} is no sum of products: zeros in its padding would change it");
    Err(unsound(b, detail, "pad the spatial iterators only, with 1 for the reduction"))
}

/// Whether a value is zero where all that is loaded at iterator `r` is.
fn vanishes(e: &Expr, r: VarId) -> bool {
    match e {
        Expr::Int(0, _) => true,
        Expr::Float(bits, _) => f64::from_bits(*bits) == 0.0,
        Expr::Load(_, list) => list.iter().any(|i| matches!(i, Expr::Var(v) if v.id == r)),
        Expr::Cast(_, a) => vanishes(a, r),
        Expr::Binary(BinOp::Mul, a, b) => vanishes(a, r) || vanishes(b, r),
        Expr::Binary(BinOp::Add | BinOp::Sub, a, b) => vanishes(a, r) && vanishes(b, r),
        Expr::Select { then, otherwise, .. } => vanishes(then, r) && vanishes(otherwise, r),
        _ => false,
    }
}

/// The primitive.
pub fn pad_einsum(s: &mut Schedule, block: BlockId, padding: &[i64]) -> Result<()> {
    let plan = legal(s, block, padding).map_err(|e| e.within("pad_einsum"))?;
    apply(s, &plan).map_err(|e| e.within("pad_einsum"))
}

fn apply(s: &mut Schedule, plan: &Plan) -> Result<()> {
    let mut map: HashMap<BufferId, BufferId> = HashMap::new();
    let (mut before, mut after, mut made, mut allocated) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (regions, copies, read) in [(&plan.reads, &mut before, true), (&plan.writes, &mut after, false)] {
        for r in regions {
            let padded = padded_buffer(s, r, &plan.iters);
            map.insert(r.buffer, padded);
            allocated.push(padded);
            let (id, nest) = copy(s, r.buffer, padded, read);
            made.push(id);
            copies.push(nest);
        }
    }
    s.update_block(plan.scope, |b| {
        let mut parts = match std::mem::replace(&mut *b.body, Stmt::Seq(Vec::new())) {
            Stmt::Seq(parts) => parts,
            other => vec![other],
        };
        let old = std::mem::replace(&mut parts[plan.index], Stmt::Seq(Vec::new()));
        let branch = padded(&old, plan, &map);
        parts.splice(plan.index..=plan.index, before.into_iter().chain([branch]).chain(after));
        *b.body = Stmt::seq(parts);
        b.alloc_buffers.extend(allocated);
    })?;
    for id in made {
        s.set_flags(id, BlockFlags { affine_binding: true, region_cover: true, stage_pipeline: true });
    }
    Ok(())
}

/// The branch over padded buffers, with padded extents.
fn padded(branch: &Stmt, plan: &Plan, map: &HashMap<BufferId, BufferId>) -> Stmt {
    let to = |b: BufferId| map.get(&b).copied().unwrap_or(b);
    let mut out = visit::map_stmt_exprs(branch, &mut |e| {
        visit::map_expr(e, &mut |e| match e {
            Expr::Load(b, list) => Expr::Load(to(b), list),
            other => other,
        })
    });
    fn walk(s: &mut Stmt, plan: &Plan, to: &dyn Fn(BufferId) -> BufferId) {
        match s {
            Stmt::For(l) => {
                if let Some(extent) = plan.loops.get(&l.var.id) {
                    l.extent = int(*extent, l.var.dtype);
                }
                walk(&mut l.body, plan, to);
            }
            Stmt::Realize(r) => {
                for iv in &mut r.block.iter_vars {
                    if let Some(extent) = plan.iters.get(&iv.var.id) {
                        iv.extent = int(*extent, iv.var.dtype);
                    }
                }
                r.block.reads.iter_mut().chain(&mut r.block.writes).for_each(|x| x.buffer = to(x.buffer));
                if let Some(init) = &mut r.block.init {
                    walk(init, plan, to);
                }
                walk(&mut r.block.body, plan, to);
            }
            Stmt::Seq(parts) => parts.iter_mut().for_each(|s| walk(s, plan, to)),
            Stmt::Store { buffer, .. } => *buffer = to(*buffer),
            Stmt::If { then, otherwise, .. } => {
                walk(then, plan, to);
                if let Some(s) = otherwise {
                    walk(s, plan, to);
                }
            }
            Stmt::Let { body, .. } => walk(body, plan, to),
            Stmt::Evaluate(_) => {}
        }
    }
    walk(&mut out, plan, &to);
    out
}

fn padded_buffer(s: &mut Schedule, r: &Region, iters: &HashMap<VarId, i64>) -> BufferId {
    let old = s.program().buffer(r.buffer);
    let dim = |(x, dim): (&satune_ir::Range, &Expr)| match &x.min {
        Expr::Var(v) => iters.get(&v.id).map_or_else(|| dim.clone(), |e| int(*e, v.dtype)),
        _ => int(1, DType::I32),
    };
    let buffer = Buffer::plain(
        format!("{}_pad", old.name),
        old.dtype,
        r.ranges.iter().zip(&old.shape).map(dim).collect(),
        &old.scope,
    );
    s.program_mut().add_buffer(buffer)
}

/// The copy between a buffer and its padded form; into the latter where `read`.
fn copy(s: &mut Schedule, buffer: BufferId, padded: BufferId, read: bool) -> (BlockId, Stmt) {
    let (old, new) = (s.program().buffer(buffer).clone(), s.program().buffer(padded).clone());
    let shape = if read { new.shape.clone() } else { old.shape.clone() };
    let dims: Vec<_> =
        shape.iter().enumerate().map(|(i, e)| (format!("i{i}"), int(0, DType::I32), e.clone())).collect();
    let id = s.program_mut().fresh_block();
    let nest = s.nest(&dims, |program, loops| {
        let vars: Vec<_> = (0..dims.len()).map(|i| program.fresh_var(format!("v{i}"), DType::I32)).collect();
        let indices: Vec<Expr> = vars.iter().cloned().map(Expr::Var).collect();
        let iter_vars = vars
            .into_iter()
            .zip(&shape)
            .map(|(var, e)| IterVar { var, min: int(0, DType::I32), extent: e.clone(), kind: IterKind::Spatial })
            .collect();
        let (from, to) = if read { (buffer, padded) } else { (padded, buffer) };
        let mut value = Expr::Load(from, indices.clone());
        if read {
            let inside = indices
                .iter()
                .zip(old.shape.iter().zip(&new.shape))
                .filter(|(_, (a, b))| constant(a) != constant(b))
                .fold(int(1, DType::Bool), |all, (i, (dim, _))| and(all, lt(i.clone(), dim.clone())));
            value = Expr::Select {
                lazy: true,
                cond: Arc::new(inside),
                then: Arc::new(value),
                otherwise: Arc::new(zero_of(old.dtype)),
            };
        }
        let block = Block {
            iter_vars,
            reads: vec![point(from, &indices)],
            writes: vec![point(to, &indices)],
            ..Block::plain(id, new.name.clone(), Stmt::Store { buffer: to, indices, value })
        };
        Stmt::Realize(Box::new(BlockRealize { iter_values: loops.to_vec(), predicate: int(1, DType::Bool), block }))
    });
    (id, nest)
}

/// Zero of a type.
pub(crate) fn zero_of(dtype: DType) -> Expr {
    if dtype.is_float() {
        Expr::Float(0f64.to_bits(), dtype)
    } else {
        int(0, dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{block, chain, func, joined, matmul, refusal, schedule};

    const UNSOUND: &str = "ScheduleError: The padded block would not compute the same";

    #[test]
    fn pads() {
        let mut s = chain();
        let c = block(&s, "C");
        pad_einsum(&mut s, c, &[1, 8]).unwrap();
        let names: Vec<String> =
            s.child_blocks(Node::Block(s.root())).unwrap().iter().map(|b| s.block(*b).unwrap().name.clone()).collect();
        assert_eq!(names, ["B", "B_pad", "C", "C_pad"]);
        let extents: Vec<_> = s.block(c).unwrap().iter_vars.iter().map(|iv| constant(&iv.extent)).collect();
        assert_eq!(extents, [Some(16), Some(32)]);
    }

    #[test]
    fn nothing_to_pad() {
        let mut s = matmul();
        let before = s.program().clone();
        let c = block(&s, "C");
        pad_einsum(&mut s, c, &[16, 4, 2]).unwrap();
        assert_eq!(s.program(), &before);
    }

    #[test]
    fn refuses() {
        let mut s = matmul();
        let c = block(&s, "C");
        let message = "ScheduleError: The padding size for the block is invalid.";
        assert_eq!(refusal(&mut s, |s| pad_einsum(s, c, &[1, 1])), message);
        assert_eq!(refusal(&mut s, |s| pad_einsum(s, c, &[1, 1, 0])), message);
        let mut s = joined();
        let c = block(&s, "C");
        assert_eq!(refusal(&mut s, |s| pad_einsum(s, c, &[1, 8])), UNSOUND, "another block in the nest");
    }

    /// Reduces 30 values by `update`.
    fn reduced(update: &str) -> Schedule {
        schedule(&func(
            "A: T.Buffer((4, 30), \"float32\"), R: T.Buffer((4,), \"float32\")",
            &format!(
                "for i, k in T.grid(4, 30):\n    with T.sblock(\"R\"):\n        vi, vk = T.axis.remap(\"SR\", [i, k])\n        \
                 with T.init():\n            R[vi] = T.float32(0)\n        R[vi] = {update}\n"
            ),
        ))
    }

    #[test]
    fn zeros_must_be_neutral() {
        for (update, sound) in [
            ("R[vi] + A[vi, vk]", true),
            ("R[vi] + A[vi, vk] * T.float32(2)", true),
            ("T.max(R[vi], A[vi, vk])", false),
            ("R[vi] + T.exp(A[vi, vk])", false),
            ("R[vi] + (A[vi, vk] + T.float32(1))", false),
        ] {
            let mut s = reduced(update);
            let r = block(&s, "R");
            if sound {
                pad_einsum(&mut s, r, &[1, 16]).unwrap();
            } else {
                assert_eq!(refusal(&mut s, |s| pad_einsum(s, r, &[1, 16])), UNSOUND, "{update}");
            }
        }
    }
}
