//! `reorder`: the loops of a chain in another order.
//!
//! before                                after, reorder(k, i)
//!   for i, j, k in T.grid(4, 8, 2):       for k, j, i in T.grid(2, 8, 4):
//!       ...                                   ...
//!
//! The given loops take, in the order given, the places that given loops had; the others stay. Legal when: 1 no loop is
//! given twice; 2 the loops lie on one chain, in one scope, each the only child of the one above; 3 the blocks below have
//! data-parallel and reduction iterators only, with affine bindings; 4 no loop's bounds use a loop that is now inside;
//! 5 a loop that changes places and feeds both a data-parallel and a reduction iterator of one block does so by whole
//! digits: with one digit fixed the others begin at 0, as if they were loops. Else its init could run after updates (TVM
//! accepts this).
use crate::fuse::dependent;
use crate::schedule::{Result, Schedule};
use crate::tree::{self, LoopId, Node};
use crate::{arith, flags, iter_map, ScheduleError};
use satune_ir::{visit, BlockRealize, For, IterKind, Stmt};
use std::collections::HashSet;

/// The chain from the topmost given loop to the bottommost, and the same in the new order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// As it is.
    pub chain: Vec<LoopId>,
    /// As it will be.
    pub order: Vec<LoopId>,
}

/// Conditions 1 to 5.
pub fn legal(s: &Schedule, loops: &[LoopId]) -> Result<Plan> {
    let mut given = HashSet::new();
    for &id in loops {
        let l = s.get_loop(id)?;
        if !given.insert(id) {
            return Err(ScheduleError::refused(
                "Some loop appears in the input array for multiple times.",
                format!("Loop {} appears in the input array for multiple times.", l.var.name),
            )
            .at_loop(id)
            .remedy("name each loop once"));
        }
    }
    let chain = chain_of(s, loops, &given)?;
    require_reorderable_blocks(s, &chain)?;
    let mut next = loops.iter();
    let order: Vec<LoopId> =
        chain.iter().filter_map(|id| if given.contains(id) { next.next().copied() } else { Some(*id) }).collect();
    for (i, &id) in order.iter().enumerate() {
        let l = s.get_loop(id)?;
        if [&l.min, &l.extent].into_iter().any(|e| visit::uses_var(e, &|v| order[i + 1..].contains(&v))) {
            return Err(dependent(
                "An outer loop's `min` or `extent` is dependent on an inner loop in the new order",
                format!("Outer Loop {}'s `min` or `extent` is dependent on an inner loop in the new order", l.var.name),
                id,
            ));
        }
    }
    require_pure_loops(s, &chain, &order)?;
    Ok(Plan { chain, order })
}

fn not_a_chain(why: String) -> ScheduleError {
    ScheduleError::refused("the loops are not in a chain", format!("The loops are not in a chain because {why}"))
        .remedy("give loops that stand inside one another with nothing beside them")
}

/// Condition 2.
fn chain_of(s: &Schedule, loops: &[LoopId], given: &HashSet<LoopId>) -> Result<Vec<LoopId>> {
    let scope = s.scope_of(Node::Loop(loops[0]))?;
    let mut longest: Vec<LoopId> = Vec::new();
    for &id in loops {
        if s.scope_of(Node::Loop(id))? != scope {
            return Err(not_a_chain("they are not under the same scope.".into()).at_loop(loops[0]).at_loop(id));
        }
        let mut path = s.loops_above(Node::Loop(id))?;
        path.push(id);
        let (short, long) = if path.len() > longest.len() { (&longest, &path) } else { (&path, &longest) };
        if !long.starts_with(short) {
            let shared = short.iter().zip(long).take_while(|(a, b)| a == b).count();
            let at = shared.checked_sub(1).map(|i| short[i]);
            let branch = "there is a non-single-branch stmt in between. Problematic stmt";
            let error = match at {
                Some(at) => not_a_chain(format!("{branch}: {}", s.get_loop(at)?.var.name)).at_loop(at),
                None => not_a_chain("they are not under the same scope.".into()),
            };
            return Err(error.at_loop(id));
        }
        if path.len() > longest.len() {
            longest = path;
        }
    }
    let top = longest.iter().position(|id| given.contains(id)).unwrap_or(0);
    let chain = longest.split_off(top);
    for pair in chain.windows(2) {
        let l = s.get_loop(pair[0])?;
        if Node::of(&l.body) != Some(Node::Loop(pair[1])) {
            let why = "there is a non-single-branch stmt in between. Problematic stmt";
            return Err(not_a_chain(format!("{why}: {}", l.var.name)).at_loop(pair[0]));
        }
    }
    Ok(chain)
}

/// Condition 3.
fn require_reorderable_blocks(s: &Schedule, chain: &[LoopId]) -> Result<()> {
    let (Some(&top), Some(&bottom)) = (chain.first(), chain.last()) else { return Ok(()) };
    for r in tree::all_realizes(&s.get_loop(bottom)?.body) {
        let b = &r.block;
        if b.iter_vars.iter().any(|iv| !iv.kind.any_order()) {
            return Err(ScheduleError::refused(
                "The block under the loops to be reordered have block iter type other than data-parallel or reduction",
                format!("The block {} under the loops to be reordered have block iter type other than data-parallel or reduction", b.name),
            )
            .at_block(b.id).remedy("reorder loops of blocks whose iterators are spatial or reductions"));
        }
        if b.iter_vars.is_empty() || s.flags(b.id).affine_binding || flags::affine_binding_from(s, b.id, top) {
            continue;
        }
        let (word, tail) = match s.parent(Node::Loop(top))? {
            Some(Node::Loop(outer)) => ("partial affine", format!(" under {}", s.get_loop(outer)?.var.name)),
            _ => ("affine", String::new()),
        };
        return Err(ScheduleError::refused(
            format!("The block is required to have an {word} binding{tail}"),
            format!("The block {} is required to have an {word} binding{tail}", b.name),
        )
        .at_block(b.id)
        .remedy("split and fuse so that iterators stay affine in the loops"));
    }
    Ok(())
}

/// Condition 5.
fn require_pure_loops(s: &Schedule, chain: &[LoopId], order: &[LoopId]) -> Result<()> {
    let place = |of: &[LoopId], id| of.iter().position(|x| *x == id);
    let moved = |id: LoopId| {
        chain.iter().any(|&o| (place(chain, id) < place(chain, o)) != (place(order, id) < place(order, o)))
    };
    let Some(&bottom) = chain.last() else { return Ok(()) };
    for r in tree::all_realizes(&s.get_loop(bottom)?.body) {
        for &id in chain.iter().filter(|id| moved(**id)) {
            let l = s.get_loop(id)?;
            let feeds = |kind| {
                r.block
                    .iter_vars
                    .iter()
                    .zip(&r.iter_values)
                    .any(|(iv, e)| iv.kind == kind && visit::uses_var(e, &|v| v == id))
            };
            let mixed = feeds(IterKind::Spatial) && feeds(IterKind::Reduce);
            if arith::constant(&l.extent) != Some(1) && mixed && !of_digits(s, r)? {
                return Err(ScheduleError::refused(
                    "A loop to be reordered feeds both a data parallel and a reduction block iter",
                    format!(
                        "The loop {} feeds both a data parallel and a reduction block iter of the block {}: in the new order \
                         its init may run after updates",
                        l.var.name, r.block.name
                    ),
                )
                .at_loop(id)
                .at_block(r.block.id)
                .remedy("decompose_reduction the block first, or reorder before the fuse that mixed the axes"));
            }
        }
    }
    Ok(())
}

/// Whether a block's iterators are made of whole digits of the loops around it.
fn of_digits(s: &Schedule, r: &BlockRealize) -> Result<bool> {
    let domains = arith::domains(&s.get_loops(&s.loops_of(r.block.id)?)?);
    let map = iter_map::detect(&r.iter_values, &domains, &r.predicate, true);
    Ok(map.is_some_and(|map| map.is_of_digits()))
}

/// The primitive. One loop or none: nothing happens.
pub fn reorder(s: &mut Schedule, loops: &[LoopId]) -> Result<()> {
    if loops.len() <= 1 {
        return Ok(());
    }
    let plan = legal(s, loops).map_err(|e| e.within("reorder"))?;
    apply(s, &plan).map_err(|e| e.within("reorder"))
}

fn apply(s: &mut Schedule, plan: &Plan) -> Result<()> {
    let headers: Vec<For> = plan
        .order
        .iter()
        .map(|id| s.get_loop(*id).map(|l| For { body: Box::new(Stmt::Seq(Vec::new())), ..shallow(l) }))
        .collect::<Result<_>>()?;
    let body = (*s.get_loop(plan.chain[plan.chain.len() - 1])?.body).clone();
    let nest = headers.into_iter().rev().fold(body, |body, header| Stmt::For(For { body: Box::new(body), ..header }));
    s.replace(Node::Loop(plan.chain[0]), |_| nest)
}

fn shallow(l: &For) -> For {
    For {
        var: l.var.clone(),
        min: l.min.clone(),
        extent: l.extent.clone(),
        kind: l.kind.clone(),
        annotations: l.annotations.clone(),
        body: Box::new(Stmt::Seq(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::fuse;
    use crate::split::split;
    use crate::testing::{chain, copy, func, joined, loops, matmul, refusal, schedule};

    #[test]
    fn permutes_only_the_given_loops() {
        let mut s = matmul();
        let l = loops(&s, "C");
        reorder(&mut s, &[l[2], l[0]]).unwrap();
        assert_eq!(loops(&s, "C"), vec![l[2], l[1], l[0]]);
        reorder(&mut s, &[l[0]]).unwrap();
        assert_eq!(loops(&s, "C"), vec![l[2], l[1], l[0]]);
    }

    #[test]
    fn refuses_what_is_no_chain() {
        let mut s = matmul();
        let l = loops(&s, "C");
        assert_eq!(
            refusal(&mut s, |s| reorder(s, &[l[0], l[1], l[0]])),
            "ScheduleError: Some loop appears in the input array for multiple times."
        );
        let message = "ScheduleError: the loops are not in a chain";
        let mut s = joined();
        let (b, c) = (loops(&s, "B"), loops(&s, "C"));
        assert_eq!(refusal(&mut s, |s| reorder(s, &[c[1], c[0]])), message);
        assert_eq!(refusal(&mut s, |s| reorder(s, &[b[1], c[1]])), message);
        let mut s = chain();
        let (b, c) = (loops(&s, "B"), loops(&s, "C"));
        assert_eq!(refusal(&mut s, |s| reorder(s, &[b[0], c[0]])), message);
    }

    #[test]
    fn refuses_a_diagonal() {
        let mut s = schedule(&func(
            "A: T.Buffer((8, 8), \"float32\"), B: T.Buffer((8, 8), \"float32\")",
            r#"
for i, j in T.grid(8, 8):
    with T.sblock("B"):
        vi = T.axis.spatial(8, i)
        vj = T.axis.spatial(8, i)
        B[vi, vj] = A[vi, vj]
"#,
        ));
        let l = loops(&s, "B");
        assert_eq!(
            refusal(&mut s, |s| reorder(s, &[l[1], l[0]])),
            "ScheduleError: The block is required to have an affine binding"
        );
    }

    #[test]
    fn refuses_loops_that_feed_both_kinds_of_iterators() {
        let mut s = matmul();
        let l = loops(&s, "C");
        let fused = fuse(&mut s, &[l[1], l[2]], true).unwrap();
        // Rows of 16 do not end where tiles of 24 do; of tiles of 32 each holds two rows.
        let mut tiled = s.clone();
        let source = s.program().clone();
        let parts = split(&mut tiled, fused, &[None, Some(32)], true, false).unwrap();
        reorder(&mut tiled, &[parts[1], parts[0]]).unwrap();
        satune_ir::interp::equal_on(&source, tiled.program(), 3).unwrap();
        let parts = split(&mut s, fused, &[None, Some(24)], true, false).unwrap();
        let message = "ScheduleError: A loop to be reordered feeds both a data parallel and a reduction block iter";
        assert_eq!(refusal(&mut s, |s| reorder(s, &[parts[1], parts[0]])), message);
        let mut s = copy("for i in range(32):");
        let i = loops(&s, "B")[0];
        let parts = split(&mut s, i, &[None, Some(4)], true, false).unwrap();
        reorder(&mut s, &[parts[1], parts[0]]).unwrap();
    }
}
