//! `merge`: run the iterations of several nests together.
//!
//! before                                after, merge(i of B, i of C)
//!   for i, j in T.grid(16, 16):           for i_m in range(16):
//!       with T.sblock("B"):                   for j in range(16):
//!           vi, vj = ...("SS", [i, j])            with T.sblock("B"):
//!           B[vi, vj] = A[vi, vj] * 2                 vi, vj = ...("SS", [i_m, j])
//!   for i, j in T.grid(16, 16):                       B[vi, vj] = A[vi, vj] * 2
//!       with T.sblock("C"):                   for j in range(16):
//!           vi, vj = ...("SS", [i, j])            with T.sblock("C"):
//!           C[vi, vj] = A[vi, vj] + 1                 vi, vj = ...("SS", [i_m, j])
//!                                                     C[vi, vj] = A[vi, vj] + 1
//!
//! The loops given are merged, and those above them up to the lowest node above all of them. The bodies run in the order of
//! the arguments; the new nest stands where the last one stood. Kinds of loops are dropped.
//!
//! Legal when: 1 there are two loops or more; 2 none of these loops has an annotation or a thread binding, and all start with
//! 0; 3 each is the only child of the one above; 4 all lie in one scope; 5 the nests are equally deep; 6 with equal extents;
//! and, what TVM does not ask: 7 no loop is given twice (it crashes); 8 what a nest reads, overwrites or is moved behind is
//! written by one block before anybody reads it; 9 then [`soundness`] finds no read that comes too early. TVM asks
//! nothing of what the nests exchange.
use crate::arith::int;
use crate::loop_checks::{require_only_child, require_plain, require_zero_start};
use crate::schedule::{Result, Schedule};
use crate::tree::{self, LoopId, Node};
use crate::{soundness, ErrorClass, ScheduleError};
use satune_ir::{visit, BlockId, BufferId, Expr, For, ForKind, Stmt};
use std::collections::{HashMap, HashSet};

/// The nests that become one.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The node above all of them.
    pub above: Node,
    /// The loops of each nest, outermost first, in the order of the arguments.
    pub nests: Vec<Vec<LoopId>>,
}

/// Conditions 1 to 8, in TVM's order.
pub fn legal(s: &Schedule, loops: &[LoopId]) -> Result<Plan> {
    let Some((&first, rest)) = loops.split_first().filter(|(_, rest)| !rest.is_empty()) else {
        return Err(ScheduleError::value("'merge' requires at least 2 loop(s)").remedy("give two loops or more"));
    };
    let mut above = Node::Loop(first);
    for &id in rest {
        above = s.lowest_common_ancestor(above, Node::Loop(id))?;
    }
    let mut nests: Vec<Vec<LoopId>> = Vec::new();
    for &id in loops {
        let path = s.path(Node::Loop(id))?;
        let below = path.iter().position(|n| *n == above).map_or(0, |at| at + 1);
        let nest: Vec<LoopId> = path[below..]
            .iter()
            .filter_map(|n| match n {
                Node::Loop(id) => Some(*id),
                Node::Block(_) => None,
            })
            .collect();
        for &id in nest.iter().rev() {
            require_plain(s.get_loop(id)?)?;
            require_zero_start(s.get_loop(id)?)?;
        }
        nest.windows(2).try_for_each(|pair| require_only_child(s, pair[0], pair[1]))?;
        if let Some(other) = nests.first() {
            require_alike(s, first, other, id, &nest)?;
        }
        nests.push(nest);
    }
    let mut seen = HashSet::new();
    if nests.iter().any(Vec::is_empty) || !loops.iter().all(|id| seen.insert(*id)) {
        let mut error = refused("The loops to be merged must be of different nests", "a loop is given twice".into());
        error.loops = loops.to_vec();
        return Err(error);
    }
    let plan = Plan { above, nests };
    require_kept_order(s, &plan)?;
    Ok(plan)
}

fn refused(fast: &str, detail: String) -> ScheduleError {
    ScheduleError::of(ErrorClass::ScheduleError, fast, detail)
}

/// Conditions 4 to 6, of a nest and the first one.
fn require_alike(s: &Schedule, first: LoopId, others: &[LoopId], id: LoopId, nest: &[LoopId]) -> Result<()> {
    let name = |id: LoopId| s.get_loop(id).map(|l| l.var.name.clone());
    let at = |e: ScheduleError| e.at_loop(first).at_loop(id);
    if s.scope_of(Node::Loop(first))? != s.scope_of(Node::Loop(id))? {
        let fast = "Expected the loops to be under the same block scope.";
        return Err(at(refused(fast, format!("The loops {} and {} lie in different blocks", name(first)?, name(id)?))));
    }
    if others.len() != nest.len() {
        let detail = format!(
            "The loop {} is number {} from the node above all loops, and {} is number {}",
            name(first)?,
            others.len(),
            name(id)?,
            nest.len()
        );
        return Err(at(refused("Merge loop's nesting depth must be same, but not.", detail))
            .remedy("name loops that are equally deep, or split one of them"));
    }
    // TVM counts from the innermost.
    for (k, (a, b)) in others.iter().zip(nest).rev().enumerate() {
        let (a, b) = (s.get_loop(*a)?, s.get_loop(*b)?);
        if a.extent != b.extent {
            let (x, y) = (crate::text::expr(&a.extent), crate::text::expr(&b.extent));
            let fast = format!("Merge loop's `extent` must be same, but not. extent=[{k},{x},{y}]");
            let detail = format!("The loop {} runs {x} times, and {} runs {y} times", a.var.name, b.var.name);
            return Err(refused(&fast, detail)
                .at_loop(a.var.id)
                .at_loop(b.var.id)
                .remedy("split the longer loop so that a part of it has the extent of the other"));
        }
    }
    Ok(())
}

/// Condition 8. [`soundness`] looks for reads of elements which nobody has written yet, and takes every element that
/// somebody has written for the right one. So of what the nests, and those between them, exchange, nothing may be written
/// that an earlier block of the scope accesses, but by the one block that writes it at all.
fn require_kept_order(s: &Schedule, plan: &Plan) -> Result<()> {
    let entries = tree::entries(s.body_of(plan.above)?);
    // Which entry of the body above each nest is, or stands in.
    let places: Vec<usize> = plan
        .nests
        .iter()
        .filter_map(|n| entries.iter().position(|e| n.first().is_some_and(|id| tree::contains(e, Node::Loop(*id)))))
        .collect();
    let (Some(&from), Some(&to)) = (places.iter().min(), places.iter().max()) else { return Ok(()) };
    let moved: Vec<(usize, BlockId)> =
        (from..=to).flat_map(|k| tree::child_realizes(&entries[k]).into_iter().map(move |r| (k, r.block.id))).collect();
    let scope_id = match plan.above {
        Node::Block(id) => id,
        loop_ => s.scope_of(loop_)?,
    };
    let scope = s.scope(scope_id)?;
    let own = |b: BufferId| scope_id == s.root() || scope.allocated.contains(&b);
    for (at, &(here, earlier)) in moved.iter().enumerate() {
        for &(there, later) in &moved[at + 1..] {
            if here == there || !(places.contains(&here) || places.contains(&there)) {
                continue;
            }
            for (buffer, readers, writers) in
                scope.writers.iter().map(|(b, writers)| (*b, scope.readers_of(*b), writers.as_slice())).filter(
                    |(_, readers, writers)| {
                        let touches = |x: BlockId| readers.contains(&x) || writers.contains(&x);
                        touches(earlier) && touches(later) && (writers.contains(&earlier) || writers.contains(&later))
                    },
                )
            {
                let first_reader = scope.children.iter().position(|c| readers.contains(c));
                let writer = scope.children.iter().position(|c| *c == earlier);
                if own(buffer) && writers == [earlier] && first_reader > writer {
                    continue;
                }
                let name = &s.program().buffer(buffer).name;
                return Err(ScheduleError::refused(
                    "The nests to be merged exchange a buffer in a way that merging may change",
                    format!(
                        "Both {} and {} access {name}, which is written by other blocks, too, or read before it is written: \
                         nothing proves that each still reads what it did",
                        s.block(earlier)?.name,
                        s.block(later)?.name
                    ),
                )
                .at_block(earlier)
                .at_block(later)
                .remedy("compute_at and reverse_compute_at join nests and check what they must"));
            }
        }
    }
    Ok(())
}

/// The primitive. Returns the innermost of the new loops.
pub fn merge(s: &mut Schedule, loops: &[LoopId]) -> Result<LoopId> {
    let plan = legal(s, loops).map_err(|e| e.within("merge"))?;
    // Condition 9 is asked of the result.
    let before = s.clone();
    let done = apply(s, &plan).and_then(|id| soundness::check(before.program(), s.program()).map(|()| id));
    done.map_err(|e| {
        *s = before;
        e.within("merge").remedy("give the nests in the order in which they stand, and shift neither against the other")
    })
}

fn apply(s: &mut Schedule, plan: &Plan) -> Result<LoopId> {
    let (Some(first), Some(last)) = (plan.nests.first(), plan.nests.last()) else {
        return Err(ScheduleError::internal("nothing to merge"));
    };
    let outermost = |nest: &[LoopId]| nest.first().copied().ok_or_else(|| ScheduleError::internal("an empty nest"));
    // All but the last one are taken out of the sequence in which they stand.
    let gone: Vec<Node> =
        plan.nests[..plan.nests.len() - 1].iter().map(|n| outermost(n).map(Node::Loop)).collect::<Result<_>>()?;
    let entries = tree::entries(s.body_of(plan.above)?);
    let stands = |node: &Node| entries.iter().any(|e| Node::of(e) == Some(*node));
    if !gone.iter().all(stands) || !stands(&Node::Loop(outermost(last)?)) {
        return Err(ScheduleError::internal("A nest to be merged stands under a condition of its own"));
    }
    let old: Vec<For> = s.get_loops(first)?.into_iter().cloned().collect();
    let program = s.program_mut();
    let vars: Vec<_> = old.iter().map(|l| program.fresh_var(format!("{}_m", l.var.name), l.var.dtype)).collect();
    let mut bodies = Vec::new();
    for nest in &plan.nests {
        let map: HashMap<_, _> = nest.iter().copied().zip(vars.iter().cloned().map(Expr::Var)).collect();
        let innermost = nest.last().copied().ok_or_else(|| ScheduleError::internal("an empty nest"))?;
        bodies.push(visit::map_stmt_exprs(&s.get_loop(innermost)?.body, &mut |e| visit::substitute(e, &map)));
    }
    let innermost = vars.last().map(|v| v.id).ok_or_else(|| ScheduleError::internal("an empty nest"))?;
    let nest = old.into_iter().zip(vars).rev().fold(Stmt::seq(bodies), |body, (l, var)| {
        let min = int(0, l.var.dtype);
        Stmt::For(For {
            var,
            min,
            extent: l.extent,
            kind: ForKind::Serial,
            annotations: Default::default(),
            body: Box::new(body),
        })
    });
    let target = Node::Loop(outermost(last)?);
    s.update_body(plan.above, |body| {
        let parts = match std::mem::replace(body, Stmt::Seq(Vec::new())) {
            Stmt::Seq(parts) => parts,
            other => vec![other],
        };
        let mut nest = Some(nest);
        let kept = parts.into_iter().filter_map(|part| match Node::of(&part) {
            Some(node) if node == target => nest.take(),
            Some(node) if gone.contains(&node) => None,
            _ => Some(part),
        });
        *body = Stmt::seq(kept.collect());
    })?;
    Ok(innermost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotate::annotate;
    use crate::bind::bind;
    use crate::parallel::parallel;
    use crate::testing::{assert_program, func, joined, loops, refusal, schedule};
    use satune_ir::Attr;

    const PARAMS: &str =
        "A: T.Buffer((16, 16), \"float32\"), C: T.Buffer((16, 16), \"float32\"), D: T.Buffer((16, 16), \"float32\")";

    /// `name[target] = value` over `extents`.
    fn nest(name: &str, extents: &str, value: &str) -> String {
        format!(
            r#"
for i, j in T.grid({extents}):
    with T.sblock("{name}"):
        vi, vj = T.axis.remap("SS", [i, j])
        {name}[vi, vj] = {value}
"#
        )
    }

    /// C and D, made of A each.
    fn apart() -> Schedule {
        schedule(&func(PARAMS, &(nest("C", "16, 16", "A[vi, vj]") + &nest("D", "16, 16", "A[vj, vi]"))))
    }

    /// D is made of C at `index`.
    fn chained(index: &str) -> Schedule {
        let second = format!("C[{index}]");
        schedule(&func(PARAMS, &(nest("C", "16, 16", "A[vi, vj]") + &nest("D", "16, 16", &second))))
    }

    fn pair(s: &Schedule, depth: usize) -> [LoopId; 2] {
        [loops(s, "C")[depth], loops(s, "D")[depth]]
    }

    #[test]
    fn merges_outer_loops() {
        let mut s = apart();
        let pair = pair(&s, 0);
        let merged = merge(&mut s, &pair).unwrap();
        assert_eq!([loops(&s, "C")[0], loops(&s, "D")[0]], [merged; 2]);
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
for i_m in range(16):
    for j in range(16):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i_m, j])
            C[vi, vj] = A[vi, vj]
    for j in range(16):
        with T.sblock("D"):
            vi, vj = T.axis.remap("SS", [i_m, j])
            D[vi, vj] = A[vj, vi]
"#,
            ),
        );
        // And then the inner ones, now under a loop that both have.
        let inner = [loops(&s, "C")[1], loops(&s, "D")[1]];
        let merged = merge(&mut s, &inner).unwrap();
        assert_eq!(loops(&s, "D")[1], merged);
        assert_eq!(loops(&s, "C").len(), 2);
    }

    #[test]
    fn merges_whole_nests_in_the_order_of_the_arguments() {
        let mut s = apart();
        let [c, d] = pair(&s, 1);
        let i = loops(&s, "C")[0];
        parallel(&mut s, i).unwrap();
        merge(&mut s, &[d, c]).unwrap();
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
for i_m, j_m in T.grid(16, 16):
    with T.sblock("D"):
        vi, vj = T.axis.remap("SS", [i_m, j_m])
        D[vi, vj] = A[vj, vi]
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i_m, j_m])
        C[vi, vj] = A[vi, vj]
"#,
            ),
        );
    }

    #[test]
    fn refuses_what_tvm_refuses() {
        let mut s = apart();
        let [c, d] = pair(&s, 0);
        assert_eq!(refusal(&mut s, |s| merge(s, &[c])), "'merge' requires at least 2 loop(s)");
        let deeper = loops(&s, "D")[1];
        let depth = "Merge loop's nesting depth must be same, but not.";
        assert_eq!(refusal(&mut s, |s| merge(s, &[c, deeper])), depth);
        assert_eq!(refusal(&mut s, |s| merge(s, &[d, deeper])), depth);
        let twice = "The loops to be merged must be of different nests";
        assert_eq!(refusal(&mut s, |s| merge(s, &[c, c])), twice);
        assert_eq!(refusal(&mut s, |s| merge(s, &[c, d, d])), twice);
        let plain = "ScheduleError: The primitive can't be applied because the loop has annotation or thread binding";
        let mut annotated = s.clone();
        annotate(&mut annotated, Node::Loop(d), "x", Attr::Int(1)).unwrap();
        assert_eq!(refusal(&mut annotated, |s| merge(s, &[c, d])), plain);
        let mut bound = s.clone();
        bind(&mut bound, d, "threadIdx.x").unwrap();
        assert_eq!(refusal(&mut bound, |s| merge(s, &pair(s, 1))), plain);
        s.update_loop(d, |l| l.min = int(1, satune_ir::DType::I32)).unwrap();
        let start = "ScheduleError: The primitive only supports loop starting with 0";
        assert_eq!(refusal(&mut s, |s| merge(s, &[c, d])), start);
        let mut s = schedule(&func(PARAMS, &(nest("C", "16, 8", "A[vi, vj]") + &nest("D", "16, 16", "A[vj, vi]"))));
        let extent = "Merge loop's `extent` must be same, but not. extent=[0,8,16]";
        assert_eq!(refusal(&mut s, |s| merge(s, &pair(s, 1))), extent);
    }

    #[test]
    fn refuses_loops_that_share_their_parent_with_others() {
        let body = r#"
for i in range(16):
    for j in range(16):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = A[vi, vj]
    for j in range(16):
        with T.sblock("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = D[vi, vj] + A[vj, vi]
"#;
        let mut s = schedule(&func(PARAMS, &(body.to_string() + &nest("C", "16, 16", "A[vi, vj]"))));
        let [b, c] = [loops(&s, "B")[1], loops(&s, "C")[1]];
        let message = "ScheduleError: The inner loop is not the only child of outer loop";
        assert_eq!(refusal(&mut s, |s| merge(s, &[c, b])), message);
    }

    #[test]
    fn refuses_other_scopes() {
        let body = r#"
for i in range(16):
    with T.sblock("O"):
        vi = T.axis.spatial(16, i)
        for j in range(16):
            with T.sblock("D"):
                vj = T.axis.spatial(16, j)
                D[vi, vj] = A[vi, vj]
"#;
        let mut s = schedule(&func(PARAMS, &(nest("C", "16, 16", "A[vi, vj]") + body)));
        // A block between two loops of a nest counts as a child of the outer one.
        let [c, d] = [loops(&s, "C")[1], loops(&s, "D")[0]];
        let message = "ScheduleError: The inner loop is not the only child of outer loop";
        assert_eq!(refusal(&mut s, |s| merge(s, &[c, d])), message);
        let body = body.replace("for i in range(16):\n    with", "for i in range(1):\n    with");
        let alone = body.lines().skip(2).map(|l| l.strip_prefix("    ").unwrap_or(l)).collect::<Vec<_>>().join("\n");
        let alone = alone.replace("vi = T.axis.spatial(16, i)", "vi = T.axis.spatial(16, 0)");
        let mut s = schedule(&func(PARAMS, &(nest("C", "16, 16", "A[vi, vj]") + &alone)));
        let [c, d] = [loops(&s, "C")[0], loops(&s, "D")[0]];
        assert_eq!(refusal(&mut s, |s| merge(s, &[c, d])), "Expected the loops to be under the same block scope.");
    }

    #[test]
    fn refuses_what_would_read_something_else() {
        // Each element is written by one block, before it is read.
        let mut s = chained("vi, vj");
        let [c, d] = pair(&s, 0);
        merge(&mut s, &[c, d]).unwrap();
        let early = "ScheduleError: The program would mean something else";
        for (index, reversed) in [("15 - vi, vj", false), ("vi, vj", true)] {
            let mut s = chained(index);
            let [c, d] = pair(&s, 0);
            assert_eq!(refusal(&mut s, |s| merge(s, &if reversed { [d, c] } else { [c, d] })), early, "{index}");
        }
        // Under a loop that both have.
        let mut s = joined();
        let both = [loops(&s, "B")[1], loops(&s, "C")[1]];
        merge(&mut s, &both).unwrap();
    }

    #[test]
    fn refuses_what_is_written_anew() {
        let exchange = "ScheduleError: The nests to be merged exchange a buffer in a way that merging may change";
        let overwrites = nest("A", "16, 16", "T.float32(0)");
        let second = nest("D", "16, 16", "A[vj, vi]").replace("D[vi, vj]", "C[15 - vi, vj]");
        for (body, other) in [
            // The second overwrites what the first reads.
            (nest("C", "16, 16", "A[15 - vi, vj]") + &overwrites, "A"),
            // Two writers.
            (nest("C", "16, 16", "A[vi, vj]") + &second, "D"),
            // A nest in between, behind which the first is moved.
            (nest("C", "16, 16", "T.float32(1)") + &nest("D", "16, 16", "A[vi, vj]") + &overwrites, "A"),
        ] {
            let mut s = schedule(&func(PARAMS, &body));
            let pair = [loops(&s, "C")[0], loops(&s, other)[0]];
            assert_eq!(refusal(&mut s, |s| merge(s, &pair)), exchange, "{other}");
        }
    }
}
