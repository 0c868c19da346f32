//! Reductions over threads: blocks whose reduction loops are bound to threadIdx.
//!
//! ```text
//!   for k0:                                     partial = identity
//!     for k1 in threads:                        for k0:
//!       S[i] = S[i] + A[i, k]         ->          partial = partial + A[i, k]           each thread its own
//!                                               partial = partial + shuffled(partial)   lanes of a warp, log2 steps
//!                                               exchange[warp] = partial; barrier       where a team has several parts
//!                                               partial = exchange[...] combined
//!                                               S[i] = partial                          every thread has the result
//! ```
//! Every member of the team ends with the same value, bit for bit: it is combined over the same tree, and the operations
//! are commutative. So a local S can be read by all threads afterwards; a shared or global one is written by one of them.
//!
//! Lowered is a reduction block with one store as init and one as body, `S = S op value`, op one of +, *, min, max, whose
//! reduction loops are the innermost around it. An init that is not the identity of its operation is combined last.
use super::error::LowerError;
use super::team::{block_extents, component, integer, variable, Team};
use satune_ir::{
    fold, visit, BinOp, BlockRealize, Buffer, BufferId, DType, Expr, For, ForKind, IterKind, Program, Stmt, VarId,
};
use std::borrow::Cow;

/// A reduction over threads of a kernel.
pub struct Reduction<'p> {
    /// The block.
    pub realize: &'p BlockRealize,
    /// Its reduction loops, the outermost first.
    pub loops: Vec<&'p For>,
    /// Operation.
    pub op: BinOp,
    /// What the init stores.
    pub init: &'p Expr,
    /// Registers that are set before it.
    pub before: &'p [Stmt],
    /// What is combined with the accumulator.
    pub operand: &'p Expr,
    /// The accumulator.
    pub target: BufferId,
    /// Its index.
    pub at: &'p [Expr],
    /// Threads that reduce together.
    pub team: Team,
    /// Each thread's partial result.
    pub partial: BufferId,
    /// What the parts of a team exchange, [part, team]; none where shuffles are enough.
    pub exchange: Option<BufferId>,
}

impl Reduction<'_> {
    /// Element type.
    pub fn dtype(&self, program: &Program) -> DType {
        program.buffer(self.target).dtype
    }

    /// Whether combining a value twice is the same as combining it once.
    pub fn idempotent(&self) -> bool {
        matches!(self.op, BinOp::Min | BinOp::Max)
    }

    /// The value that changes nothing.
    pub fn identity(&self, dtype: DType) -> Expr {
        let number = |float: f64, int: i64| match dtype.is_float() {
            true => Expr::Float(float.to_bits(), dtype),
            false => Expr::Int(int, dtype),
        };
        let (least, most) = dtype.int_range().unwrap_or((i64::MIN, i64::MAX));
        match self.op {
            BinOp::Mul => number(1.0, 1),
            BinOp::Min => number(f64::INFINITY, most),
            BinOp::Max => number(f64::NEG_INFINITY, least),
            _ => number(0.0, 0),
        }
    }

    /// What partial results start with, and whether the init is still to be combined with them.
    pub fn start(&self, dtype: DType) -> (Expr, bool) {
        let constant = fold::is_constant(self.init);
        let identity = self.identity(dtype);
        let same = match (self.init, &identity) {
            (Expr::Float(a, _), Expr::Float(b, _)) => f64::from_bits(*a) == f64::from_bits(*b),
            (Expr::Int(a, _), Expr::Int(b, _)) => a == b,
            (Expr::Int(a, _), Expr::Float(b, _)) => *a as f64 == f64::from_bits(*b),
            _ => false,
        };
        if same || constant && self.idempotent() {
            (self.init.clone(), false)
        } else {
            (identity, true)
        }
    }
}

/// The reductions over threads below a top-level statement, and the program with the buffers that they need.
pub fn find<'p>(program: &'p Program, part: &'p Stmt) -> Result<(Cow<'p, Program>, Vec<Reduction<'p>>), LowerError> {
    let mut search = Search { program, extents: block_extents(part)?, found: Vec::new() };
    search.stmt(part, &mut Vec::new())?;
    let mut found = search.found;
    let mut grown = Cow::Borrowed(program);
    for r in &mut found {
        let (dtype, name) = (r.dtype(program), program.buffer(r.target).name.clone());
        let mut add = |suffix: &str, shape: &[i64], scope: &str| {
            grown.to_mut().add_buffer(Buffer::plain(
                format!("{name}_{suffix}"),
                dtype,
                shape.iter().map(|e| integer(*e)).collect(),
                scope,
            ))
        };
        r.partial = add("partial", &[1], "local");
        if r.team.parts() > 1 {
            r.exchange = Some(add("exchange", &[r.team.parts(), r.team.count()], "shared"));
        }
    }
    Ok((grown, found))
}

struct Search<'p> {
    program: &'p Program,
    extents: [i64; 3],
    found: Vec<Reduction<'p>>,
}

fn extent(l: &For) -> Option<i64> {
    match &l.extent {
        Expr::Int(v, _) => Some(*v),
        _ => None,
    }
}

fn tag(l: &For) -> Option<&str> {
    match &l.kind {
        ForKind::ThreadBinding(tag) => Some(tag),
        _ => None,
    }
}

impl<'p> Search<'p> {
    fn stmt(&mut self, stmt: &'p Stmt, above: &mut Vec<&'p For>) -> Result<(), LowerError> {
        match stmt {
            Stmt::For(l) => {
                above.push(l);
                let out = self.stmt(&l.body, above);
                above.pop();
                out
            }
            Stmt::Realize(r) => {
                if let Some(reduction) = self.reduction(r, above)? {
                    self.found.push(reduction);
                }
                self.stmt(&r.block.body, &mut Vec::new())
            }
            Stmt::Seq(parts) => parts.iter().try_for_each(|s| self.stmt(s, above)),
            Stmt::If { then, otherwise, .. } => {
                self.stmt(then, above)?;
                otherwise.iter().try_for_each(|s| self.stmt(s, above))
            }
            Stmt::Let { body, .. } => self.stmt(body, above),
            Stmt::Store { .. } | Stmt::Evaluate(_) => Ok(()),
        }
    }

    fn reduction(&self, r: &'p BlockRealize, above: &[&'p For]) -> Result<Option<Reduction<'p>>, LowerError> {
        let block = &r.block;
        let refuse = |why: String| Err(LowerError::CrossThread { block: block.name.clone(), why });
        let feeds = |l: &For, kind: IterKind| {
            let mut pairs = block.iter_vars.iter().zip(&r.iter_values);
            pairs.any(|(iv, e)| iv.kind == kind && visit::uses_var(e, &|v| v == l.var.id))
        };
        let long = |l: &For| extent(l) != Some(1);
        let mut over = [false; 3];
        for l in above.iter().filter(|l| feeds(l, IterKind::Reduce) && long(l)) {
            match tag(l) {
                Some(tag) if tag.starts_with("blockIdx") => {
                    return refuse(format!(
                        "its reduction loop {} is bound to {tag}, and blocks cannot wait for each other: rfactor that loop, \
                         and reduce its partial results in a second kernel",
                        l.var.name
                    ));
                }
                Some(tag) => {
                    if let Some(d) = component(tag) {
                        over[d] = true;
                    }
                }
                None => {}
            }
        }
        if over == [false; 3] {
            return Ok(None);
        }
        let first = above.iter().position(|l| feeds(l, IterKind::Reduce)).unwrap_or(0);
        let loops = above[first..].to_vec();
        if let Some(l) = loops.iter().find(|l| long(l) && (!feeds(l, IterKind::Reduce) || feeds(l, IterKind::Spatial)))
        {
            return refuse(format!(
                "loop {} lies inside of its first reduction loop {}, but does not reduce; reorder it to the outside",
                l.var.name, loops[0].var.name
            ));
        }
        let Some(init) = block.init.as_deref() else {
            return refuse("it has no init any more, so that its threads have nothing to start from; leave out decompose_reduction".into());
        };
        let form = "its init and body are not one store each, `S = constant` and `S = S op value` with op one of +, *, min, max";
        // Registers may be set before it that hold what the operand needs.
        let (before, last) = match block.body.as_ref() {
            Stmt::Seq(parts) => {
                parts.split_last().map_or((&[][..], block.body.as_ref()), |(last, before)| (before, last))
            }
            one => (&[][..], one),
        };
        let (
            Stmt::Store { buffer: first_buffer, indices: first_at, value: init },
            Stmt::Store { buffer, indices, value },
        ) = (init, last)
        else {
            return refuse(form.into());
        };
        if !before.iter().enumerate().all(|(i, s)| self.sets_register(s, &before[i..], *buffer))
            || !before.is_empty() && indices.iter().any(|e| !visit::loads(e).is_empty())
        {
            return refuse(form.into());
        }
        let own = |e: &Expr| matches!(e, Expr::Load(b, at) if b == buffer && at == indices);
        let (op, operand) = match value {
            Expr::Binary(op @ (BinOp::Add | BinOp::Mul | BinOp::Min | BinOp::Max), a, b) => match (own(a), own(b)) {
                (true, false) => (*op, b.as_ref()),
                (false, true) => (*op, a.as_ref()),
                _ => return refuse(form.into()),
            },
            _ => return refuse(form.into()),
        };
        if first_buffer != buffer || first_at != indices {
            return refuse(form.into());
        }
        let reads_own = |e: &Expr| visit::loads(e).iter().any(|(b, _)| b == buffer);
        let reduce = |v: VarId| block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce && iv.var.id == v);
        if reads_own(operand) || reads_own(init) || indices.iter().chain([init]).any(|e| visit::uses_var(e, &reduce)) {
            return refuse(form.into());
        }
        let dtype = self.program.buffers.get(buffer.0 as usize).map_or(DType::Handle, |b| b.dtype);
        if dtype == DType::Handle {
            return refuse("addresses are not reduced".into());
        }
        if used_below(&loops[0].body, *buffer, r) {
            return refuse(format!(
                "its result is used under its reduction loop {}, before the threads have combined it",
                loops[0].var.name
            ));
        }
        let team = Team::new(self.extents, over);
        Ok(Some(Reduction {
            realize: r,
            loops,
            op,
            init,
            before,
            operand,
            target: *buffer,
            at: indices,
            team,
            partial: *buffer,
            exchange: None,
        }))
    }
}

impl Search<'_> {
    /// Whether a statement sets a register, other than the accumulator, of nothing that is set from there on: what one step leaves is
    /// nothing to the next, which another thread may have.
    fn sets_register(&self, stmt: &Stmt, from_here: &[Stmt], accumulator: BufferId) -> bool {
        let Stmt::Store { buffer, value, .. } = stmt else { return false };
        let local = self.program.buffers.get(buffer.0 as usize).is_some_and(|b| b.scope == "local");
        let set = |b: &BufferId| from_here.iter().any(|s| matches!(s, Stmt::Store { buffer, .. } if buffer == b));
        local && *buffer != accumulator && !visit::loads(value).iter().any(|(b, _)| *b == accumulator || set(b))
    }
}

/// Whether a statement, other than those of a block, accesses a buffer.
fn used_below(stmt: &Stmt, buffer: BufferId, own: &BlockRealize) -> bool {
    let reads = |e: &Expr| visit::loads(e).iter().any(|(b, _)| *b == buffer);
    match stmt {
        Stmt::For(l) => used_below(&l.body, buffer, own),
        Stmt::Realize(r) if std::ptr::eq(r.as_ref(), own) => false,
        Stmt::Realize(r) => {
            r.block.init.as_ref().is_some_and(|s| used_below(s, buffer, own)) || used_below(&r.block.body, buffer, own)
        }
        Stmt::Seq(parts) => parts.iter().any(|s| used_below(s, buffer, own)),
        Stmt::If { then, otherwise, .. } => {
            used_below(then, buffer, own) || otherwise.as_ref().is_some_and(|s| used_below(s, buffer, own))
        }
        Stmt::Let { value, body, .. } => reads(value) || used_below(body, buffer, own),
        Stmt::Store { buffer: b, indices, value } => *b == buffer || reads(value) || indices.iter().any(reads),
        Stmt::Evaluate(e) => reads(e),
    }
}

/// The loads of the components of threadIdx, 0 where a block has none.
pub fn thread_numbers(of: impl Fn(&str) -> Option<VarId>) -> [Expr; 3] {
    ["threadIdx.x", "threadIdx.y", "threadIdx.z"].map(|tag| of(tag).map_or(integer(0), |v| variable(v, tag)))
}
