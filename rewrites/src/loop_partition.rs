//! `loop_partition`: the iterations of a loop are cut into runs, each with a loop of its own.
//!
//! before                                after, loop_partition(i, [4, None])
//!   for i, j in T.grid(16, 16):           with T.sblock("B_i_common"):
//!       with T.sblock("B"):                   with T.sblock("B_i0_partition"):
//!           vi, vj = ...                          for i0, j in T.grid(4, 16):
//!           B[vi, vj] = A[vi, vj]                     with T.sblock("B_i0"): ...
//!                                             with T.sblock("B_i1_partition"):
//!                                                 for i1 in range(4, 16):
//!                                                     for j in range(16):
//!                                                         with T.sblock("B_i1"): ...
//!
//! Legal when: 1 at most one factor is left to be inferred; 2 factors are positive; 3 their sum is less than the extent;
//! 4 the loop has neither annotations nor a thread binding; 5 it starts with 0, holds one block, and is no iterator of a
//! reduction with an init, which would run again in every part (TVM does not ask).
//!
//! The blocks around the parts declare no accesses, and those inside declare all that their part touches, as TVM has it.
use crate::arith::{constant, int};
use crate::loop_checks::{constant_extent, require_plain, require_zero_start};
use crate::schedule::{Result, Schedule};
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::{
    visit, Block, BlockRealize, BufferId, Expr, For, ForKind, IterKind, Program, Range, Region, Stmt, VarId,
};
use std::collections::HashMap;

/// Conditions 1 to 5. Returns where each part ends.
pub fn legal(s: &Schedule, id: LoopId, factors: &[Option<i64>]) -> Result<Vec<i64>> {
    let l = s.get_loop(id)?;
    if constant(&l.min).is_none() || constant(&l.extent).is_none() {
        let what =
            "The min and extent values of the loop are required to be known at compile time. However, dynamic shape \
                    has been detected.";
        let detail = format!("Detected dynamic shape in either min or extent of a loop {}", l.var.name);
        return Err(ScheduleError::refused(what, detail).at_loop(id).remedy("give the loop constant bounds"));
    }
    let extent = constant_extent(l)?;
    let mut inferred = None;
    let mut sum = 0i64;
    for (i, factor) in factors.iter().enumerate() {
        match factor {
            None if inferred.is_some() => {
                let message = "only one factor can be specified as -1 or none";
                return Err(ScheduleError::refused(message, "Only one factor can be specified as -1 or none")
                    .at_loop(id)
                    .remedy("leave at most one factor open"));
            }
            None => inferred = Some(i),
            Some(f) if *f <= 0 => {
                let all = "All the constant factors are required to be positive. However,";
                return Err(ScheduleError::refused(
                    format!("{all} some constant input factor is zero or negative."),
                    format!("{all} the factor at position {i} is {f}"),
                )
                .at_loop(id)
                .remedy("give factors of 1 or more"));
            }
            Some(f) => sum = sum.saturating_add(*f),
        }
    }
    if sum >= extent {
        let what = "The sum of factors is larger than or equal to the extent of loop";
        return Err(ScheduleError::refused(what, format!("{what} {}", l.var.name))
            .at_loop(id)
            .remedy(format!("leave the rest to the last part: the factors may sum up to {}", extent - 1)));
    }
    require_plain(l)?;
    require_zero_start(l)?;
    require_one_block(s, l)?;
    let mut ends = Vec::new();
    let mut end = 0;
    for factor in factors {
        end += factor.unwrap_or(extent - sum);
        ends.push(end);
    }
    if inferred.is_none() {
        ends.push(extent);
    }
    Ok(ends)
}

/// Condition 5.
fn require_one_block(s: &Schedule, l: &For) -> Result<()> {
    let mut body = &*l.body;
    while let Stmt::For(inner) = body {
        body = &inner.body;
    }
    let Stmt::Realize(r) = body else {
        return Err(ScheduleError::refused(
            "The loop is required to have only one child block",
            format!("The loop {} is required to have only one child block", l.var.name),
        )
        .at_loop(l.var.id)
        .remedy("partition a loop with one block below it"));
    };
    let narrowed = r.block.iter_vars.iter().zip(&r.iter_values).find(|(_, e)| **e == Expr::Var(l.var.clone()));
    // Blocks of an earlier partition hold the reduction deeper down.
    let inside = crate::tree::all_realizes(&r.block.body).into_iter().any(|x| x.block.init.is_some());
    let again = narrowed.is_some_and(|(iv, _)| iv.kind != IterKind::Spatial) && r.block.init.is_some() || inside;
    if again {
        return Err(ScheduleError::refused(
            "The loop of a reduction with an init cannot be partitioned",
            format!("The init of block {} would run again in every part of loop {}", r.block.name, l.var.name),
        )
        .at_block(r.block.id)
        .at_loop(l.var.id)
        .remedy("decompose the reduction first"));
    }
    s.block(r.block.id).map(|_| ())
}

/// The primitive. Returns the loops of the parts.
pub fn loop_partition(s: &mut Schedule, id: LoopId, factors: &[Option<i64>]) -> Result<Vec<LoopId>> {
    let ends = legal(s, id, factors).map_err(|e| e.within("loop_partition"))?;
    apply(s, id, &ends).map_err(|e| e.within("loop_partition"))
}

fn apply(s: &mut Schedule, id: LoopId, ends: &[i64]) -> Result<Vec<LoopId>> {
    let scope = s.scope_of(Node::Loop(id))?;
    let l = s.get_loop(id)?.clone();
    let name = match tree::child_realizes(&l.body)[..] {
        [one] => format!("{}_{}", one.block.name, l.var.name),
        _ => return Err(ScheduleError::internal("the loop holds several blocks")),
    };
    let mut start = 0;
    let (mut parts, mut loops) = (Vec::new(), Vec::new());
    for (k, &end) in ends.iter().enumerate() {
        let program = s.program_mut();
        let var = program.fresh_var(format!("{}{k}", l.var.name), l.var.dtype);
        let part = Part { old: l.var.id, suffix: format!("_{}", var.name), start, end };
        let body = part.stmt(program, &l.body, &HashMap::from([(l.var.id, Expr::Var(var.clone()))]));
        loops.push(var.id);
        let nest = Stmt::For(For {
            min: int(start, var.dtype),
            extent: int(end - start, var.dtype),
            var,
            kind: ForKind::Serial,
            annotations: Default::default(),
            body: Box::new(body),
        });
        parts.push(plain_block(program, format!("{name}{k}_partition"), nest));
        start = end;
    }
    let common = plain_block(s.program_mut(), format!("{name}_common"), Stmt::seq(parts));
    s.replace(Node::Loop(id), |_| common)?;
    s.recompute_flags(scope);
    Ok(loops)
}

/// A block without iterators or declared accesses.
fn plain_block(program: &mut Program, name: String, body: Stmt) -> Stmt {
    Stmt::Realize(Box::new(BlockRealize::single(Block::plain(program.fresh_block(), name, body))))
}

/// A run of iterations.
struct Part {
    old: LoopId,
    suffix: String,
    start: i64,
    end: i64,
}

impl Part {
    /// A copy of a statement with variables, loops and blocks of its own.
    fn stmt(&self, program: &mut Program, s: &Stmt, map: &HashMap<VarId, Expr>) -> Stmt {
        let of = |e: &Expr| visit::substitute(e, map);
        match s {
            Stmt::For(l) => {
                let var = program.fresh_var(l.var.name.clone(), l.var.dtype);
                let mut map = map.clone();
                map.insert(l.var.id, Expr::Var(var.clone()));
                let body = Box::new(self.stmt(program, &l.body, &map));
                Stmt::For(For { var, min: of(&l.min), extent: of(&l.extent), body, ..l.clone() })
            }
            Stmt::Realize(r) => Stmt::Realize(Box::new(self.realize(program, r, map))),
            Stmt::Seq(parts) => Stmt::Seq(parts.iter().map(|s| self.stmt(program, s, map)).collect()),
            Stmt::Store { buffer, indices, value } => {
                Stmt::Store { buffer: *buffer, indices: indices.iter().map(of).collect(), value: of(value) }
            }
            Stmt::If { cond, then, otherwise } => Stmt::If {
                cond: of(cond),
                then: Box::new(self.stmt(program, then, map)),
                otherwise: otherwise.as_ref().map(|s| Box::new(self.stmt(program, s, map))),
            },
            Stmt::Let { var, value, body } => {
                let new = program.fresh_var(var.name.clone(), var.dtype);
                let mut map = map.clone();
                map.insert(var.id, Expr::Var(new.clone()));
                Stmt::Let { var: new, value: of(value), body: Box::new(self.stmt(program, body, &map)) }
            }
            Stmt::Evaluate(e) => Stmt::Evaluate(of(e)),
        }
    }

    fn realize(&self, program: &mut Program, r: &BlockRealize, around: &HashMap<VarId, Expr>) -> BlockRealize {
        let mut map = around.clone();
        let mut block = r.block.clone();
        block.id = program.fresh_block();
        for iv in &mut block.iter_vars {
            let var = program.fresh_var(iv.var.name.clone(), iv.var.dtype);
            map.insert(iv.var.id, Expr::Var(var.clone()));
            iv.var = var;
        }
        let narrowed = r.iter_values.iter().position(|e| matches!(e, Expr::Var(v) if v.id == self.old));
        let own = around.contains_key(&self.old) && narrowed.is_some();
        block.name.push_str(&self.suffix);
        let rename = &mut |e: &Expr| visit::substitute(e, &map);
        block.reads = block.reads.iter().map(|x| visit::map_region(x, rename)).collect();
        block.writes = block.writes.iter().map(|x| visit::map_region(x, rename)).collect();
        block.match_buffers = block.match_buffers.iter().map(|(b, x)| (*b, visit::map_region(x, rename))).collect();
        block.init = r.block.init.as_ref().map(|s| Box::new(self.stmt(program, s, &map)));
        block.body = Box::new(self.stmt(program, &r.block.body, &map));
        if let (true, Some(at)) = (own, narrowed) {
            let iv = &mut block.iter_vars[at];
            iv.min = int(self.start, iv.var.dtype);
            iv.extent = int(self.end - self.start, iv.var.dtype);
            widen(&mut block);
        }
        let of = |e: &Expr| visit::substitute(e, around);
        BlockRealize { iter_values: r.iter_values.iter().map(of).collect(), predicate: of(&r.predicate), block }
    }
}

/// Declares, of every buffer accessed at plain iterators, all that the iterators' domains reach.
fn widen(block: &mut Block) {
    let mut accesses: HashMap<BufferId, Vec<Range>> = HashMap::new();
    let domains = crate::regions::iter_domains(block);
    let mut note = |buffer: BufferId, indices: &[Expr]| {
        let range = |e: &Expr| match e {
            Expr::Var(v) => domains.get(&v.id).cloned(),
            _ => None,
        };
        if let Some(ranges) = indices.iter().map(range).collect::<Option<Vec<_>>>() {
            accesses.entry(buffer).or_insert(ranges);
        }
    };
    for s in block.init.as_deref().into_iter().chain([&*block.body]) {
        visit::walk_stmt(s, &mut |s| {
            if let Stmt::Store { buffer, indices, value } = s {
                note(*buffer, indices);
                visit::loads(value).iter().for_each(|(b, list)| note(*b, list));
            }
        });
    }
    let widened = |r: &mut Region| {
        if let Some(ranges) = accesses.get(&r.buffer) {
            r.ranges = ranges.clone();
        }
    };
    block.reads.iter_mut().chain(&mut block.writes).for_each(widened);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_read::cache_read;
    use crate::testing::{block, chain, joined, loops, matmul, refusal};

    #[test]
    fn cuts_into_runs() {
        let mut s = chain();
        let i = loops(&s, "B")[0];
        let parts = loop_partition(&mut s, i, &[Some(4), None]).unwrap();
        let bounds: Vec<_> =
            parts.iter().map(|l| s.get_loop(*l).unwrap()).map(|l| (constant(&l.min), constant(&l.extent))).collect();
        assert_eq!(bounds, [(Some(0), Some(4)), (Some(4), Some(12))]);
        assert_eq!(s.child_blocks(Node::Block(s.root())).unwrap(), [block(&s, "B_i_common"), block(&s, "C")]);
    }

    #[test]
    fn dependencies_are_kept() {
        let mut s = chain();
        let i = loops(&s, "B")[0];
        loop_partition(&mut s, i, &[Some(4), None]).unwrap();
        let c = block(&s, "C");
        // TVM puts the copy before the blocks that write what is copied.
        let copy = cache_read(&mut s, c, 0, "shared", &[]).unwrap();
        let order = s.child_blocks(Node::Block(s.root())).unwrap();
        assert_eq!(order, [block(&s, "B_i_common"), copy, c]);
        satune_ir::interp::equal_on(chain().program(), s.program(), 1).unwrap();
    }

    #[test]
    fn refuses() {
        let mut s = chain();
        let i = loops(&s, "B")[0];
        for (factors, message) in [
            (&[None, None][..], "only one factor can be specified as -1 or none"),
            (
                &[Some(0), None][..],
                "All the constant factors are required to be positive. However, some constant input factor is zero or negative.",
            ),
            (&[Some(8), Some(8)][..], "The sum of factors is larger than or equal to the extent of loop"),
        ] {
            assert_eq!(refusal(&mut s, |s| loop_partition(s, i, factors)), format!("ScheduleError: {message}"));
        }
        let mut s = joined();
        let i = loops(&s, "B")[0];
        let message = "ScheduleError: The loop is required to have only one child block";
        assert_eq!(refusal(&mut s, |s| loop_partition(s, i, &[Some(4), None])), message);
        let mut s = matmul();
        let k = loops(&s, "C")[2];
        let message = "ScheduleError: The loop of a reduction with an init cannot be partitioned";
        assert_eq!(refusal(&mut s, |s| loop_partition(s, k, &[Some(4), None])), message);
    }
}
