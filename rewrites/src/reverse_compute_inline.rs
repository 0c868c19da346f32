//! `reverse_compute_inline`: compute a block's result where what it reads is made.
//!
//! before                                        after, reverse_compute_inline(C)
//!   B = T.sblock_alloc_buffer((16, 30))           for i, j in T.grid(16, 30):
//!   for i, j in T.grid(16, 30):                       with T.sblock("B"):
//!       with T.sblock("B"):                               vi, vj = T.axis.remap("SS", [i, j])
//!           vi, vj = T.axis.remap("SS", [i, j])           C[vi, vj] = A[vi, vj] * 2 + 1
//!           B[vi, vj] = A[vi, vj] * 2
//!   for i, j in T.grid(16, 30):
//!       with T.sblock("C"):
//!           vi, vj = T.axis.remap("SS", [i, j])
//!           C[vi, vj] = B[vi, vj] + 1
//!
//! Legal when: 1 the block has no init; 2 its scope is a stage pipeline; 3 it reads one buffer that is written in the scope;
//! 4 it is complete; 5 one block writes that buffer, a complete one (that nobody else reads it is asked by nobody here, as
//! in TVM: other readers are left with a buffer that is not there, which `soundness` finds);
//! or, where it has an init beside its iterators, all of them spatial, the block's value has the type of what it reads;
//! 6 the buffer is not used outside of the scope; 7 the block is one store without predicate, and reads the buffer at one
//! place, from whose indices its iterators can be told; the producer is one store, and its instances reach all of the
//! block's; 8 it is not alone in its scope; 9 nobody has a view of the buffer.
use crate::arith::{constant, int, Domains};
use crate::dependencies::Scope;
use crate::guards::{at_least, below, implies, simplified};
use crate::inline_common as common;
use crate::iter_map;
use crate::linear::{all, conjuncts, Linear};
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::tree;
use crate::ScheduleError;
use satune_ir::{visit, Block, BlockId, BlockRealize, BufferId, DType, Expr, IterVar, Stmt, VarId};
use std::collections::HashMap;

/// Where the block goes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block that allocates the buffer.
    pub scope: BlockId,
    /// The buffer that disappears.
    pub buffer: BufferId,
    /// The block that writes it.
    pub producer: BlockId,
    /// The block's iterators in terms of the producer's.
    pub iterators: HashMap<VarId, Expr>,
    /// Which instances of the producer stand for an instance of the block, in terms of the producer's iterators; none where
    /// all do.
    pub guards: Vec<Expr>,
}

/// Conditions 1 to 9, in TVM's order.
pub fn legal(s: &Schedule, block: BlockId) -> Result<Plan> {
    let realize = s.realize(block)?;
    let b = &realize.block;
    common::require_no_init(b)?;
    let scope_id = scope::pipeline_of(s, block)?;
    let graph = s.scope(scope_id)?;
    let buffer = single_read(b, &graph)?;
    scope::require_complete(s, block, &graph)?;
    let producer = only_producer(s, b, scope_id, &graph, buffer)?;
    scope::require_not_output(s, producer, &graph)?;
    let iterators = matched(s, realize, s.block(producer)?, buffer)?;
    s.removal_plan(block)?;
    common::require_no_views(s, scope_id, buffer)?;
    let guards = guards(b, s.block(producer)?, &iterators)?;
    Ok(Plan { scope: scope_id, buffer, producer, iterators, guards })
}

/// The buffer of those that the block reads that is written in the scope. Refused where there is none, or several.
fn single_read(block: &Block, graph: &Scope) -> Result<BufferId> {
    let mut made: Vec<BufferId> = Vec::new();
    for r in &block.reads {
        if !graph.writers_of(r.buffer).is_empty() && !made.contains(&r.buffer) {
            made.push(r.buffer);
        }
    }
    match made.as_slice() {
        [one] => Ok(*one),
        other => Err(ScheduleError::refused(
            "The block is allowed to read only a single buffer region",
            format!(
                "The block is only allowed to read a single buffer region, but it reads {} region(s), of which {} are \
                 written in its scope: {}",
                block.reads.len(),
                other.len(),
                block.name
            ),
        )
        .at_block(block.id)
        .remedy("inline all but one of its producers first")),
    }
}

/// The leaf blocks below `stmt` that write a buffer.
fn writers<'a>(stmt: &'a Stmt, buffer: BufferId, out: &mut Vec<&'a Block>) {
    for r in tree::child_realizes(stmt) {
        let before = out.len();
        writers(&r.block.body, buffer, out);
        if out.len() == before && r.block.writes.iter().any(|w| w.buffer == buffer) {
            out.push(&r.block);
        }
    }
}

/// The block that writes `buffer`. Refused where it is no complete block, or not the only one.
fn only_producer(s: &Schedule, block: &Block, scope: BlockId, graph: &Scope, buffer: BufferId) -> Result<BlockId> {
    let refused = |why: String, at: &[BlockId]| {
        let mut error = ScheduleError::refused(
            "The consumer block to be inlined is required to have only a single producer block, and the producer block \
             should be a complete block who has only a single consumer",
            format!(
                "The consumer block {} to be inlined is required to have only a single producer block, and the producer \
                 block should be a complete block who has only a single consumer: {why}",
                block.name
            ),
        )
        .remedy("for a reduction, cache_write it and reverse_compute_at the block instead");
        error.blocks = at.to_vec();
        error
    };
    let mut found = Vec::new();
    writers(&s.block(scope)?.body, buffer, &mut found);
    if let Some(b) = found.iter().find(|b| !scope::is_complete(s, b.id, graph)) {
        return Err(refused(format!("{} is not complete", b.name), &[b.id]));
    }
    let [producer] = found.as_slice() else {
        let blocks: Vec<BlockId> = found.iter().map(|b| b.id).collect();
        return Err(refused(format!("it has {} producers", found.len()), &blocks));
    };
    Ok(producer.id)
}

const REMEDY: &str =
    "the body should be `C[...] = g(B[f(i, j, ...)])` without predicate, with indices from which i, j, ... \
                      can be told, and the producer's a single store that reaches all of them";

/// The iterators of the block in terms of the producer's, where the two bodies have the right form.
fn matched(s: &Schedule, realize: &BlockRealize, producer: &Block, buffer: BufferId) -> Result<HashMap<VarId, Expr>> {
    let block = &realize.block;
    let refused = |why: &str| common::wrong_body(block, why, REMEDY);
    if !matches!(realize.predicate, Expr::Int(1, _)) {
        return Err(refused("it has a predicate"));
    }
    let Stmt::Store { indices, value, .. } = &*block.body else {
        return Err(refused("its body is not a single store"));
    };
    let loops = s.loops_of(block.id)?;
    if indices.iter().chain([value]).any(|e| visit::uses_var(e, &|v| loops.contains(&v))) {
        return Err(refused("it depends on a loop that is no iterator of the block"));
    }
    let mut loads = indices.iter().chain([value]).flat_map(visit::loads).filter(|(b, _)| *b == buffer).map(|(_, i)| i);
    let Some(read) = loads.next() else { return Err(refused("its body does not read the buffer")) };
    if loads.any(|other| other != read) {
        return Err(refused("it reads the buffer at several places"));
    }
    let Some(written) = producer_store(producer) else {
        return Err(refused("its producer's body is not a single store"));
    };
    if let (Some(init), Stmt::Store { buffer: target, .. }) = (&producer.init, &*block.body) {
        let same = s.program().buffer(*target).dtype == s.program().buffer(buffer).dtype;
        require_accumulator(producer, init, buffer, same).map_err(refused)?;
    }
    let made = regions::iter_domains(producer);
    let domains = regions::iter_domains(block);
    let map = iter_map::taken_apart(&read, &domains, &int(1, DType::Bool), true)
        .filter(|m| m.is_injective(&domains))
        .ok_or_else(|| refused("its iterators cannot be told from the indices at which it reads"))?;
    // Another index than the one that is read must not be taken for it.
    let mut iterators = map.inverse_exprs(written).ok_or_else(|| {
        ScheduleError::internal(format!("The block {} cannot be inlined: it reads at a stride", block.name))
            .at_block(block.id)
            .remedy("compute_inline the producer instead")
    })?;
    for (v, range) in domains.iter().filter(|(_, range)| constant(&range.extent) == Some(1)) {
        iterators.entry(*v).or_insert_with(|| range.min.clone());
    }
    if !told_apart(&read, written, &domains, &made) {
        return Err(refused("its producer writes at indices that it never reads, and that look like others"));
    }
    match block.iter_vars.iter().find(|iv| misses(iv, &iterators, &made)) {
        None => Ok(iterators),
        Some(iv) => Err(refused(&format!("its producer does not reach all of {}", iv.var.name))),
    }
}

/// A producer with an init, whose iterators are all spatial, sets an element and updates it once; the block's target takes
/// the element's place in both. TVM puts the block's function around both, which counts it twice where it is not the
/// identity.
fn require_accumulator(
    producer: &Block,
    init: &Stmt,
    buffer: BufferId,
    same_type: bool,
) -> std::result::Result<(), &'static str> {
    let (Stmt::Store { buffer: set, indices: at, .. }, Stmt::Store { indices, value, .. }) = (init, &*producer.body)
    else {
        return Err("its producer's init and body are not a store each");
    };
    let elsewhere = visit::loads(value).into_iter().any(|(b, i)| b == buffer && i != *indices);
    if *set != buffer || at != indices || elsewhere {
        return Err("its producer's init is of another element than its body");
    }
    if !same_type {
        return Err("its producer accumulates in another type than it stores");
    }
    Ok(())
}

/// The indices at which the producer stores: its body is one store, which may stand under one condition.
fn producer_store(producer: &Block) -> Option<&[Expr]> {
    match &*producer.body {
        Stmt::Store { indices, .. } => Some(indices),
        Stmt::If { then, otherwise: None, .. } => match &**then {
            Stmt::Store { indices, .. } => Some(indices),
            _ => None,
        },
        _ => None,
    }
}

/// Whether indices that the block never reads lead to iterators outside of their domains, where the guard sees them: so it
/// is with an iterator read as it is. Of other indices, the producer must write none but those that are read.
fn told_apart(read: &[Expr], written: &[Expr], domains: &Domains, made: &Domains) -> bool {
    let none = Domains::new();
    let plain = |e: &Expr| {
        let variables: Vec<VarId> = domains.keys().copied().filter(|v| visit::uses_var(e, &|u| u == *v)).collect();
        let alone = |v: &VarId| read.iter().filter(|e| visit::uses_var(e, &|u| u == *v)).count() == 1;
        Linear::of(e, &none)
            .is_some_and(|l| l.terms().iter().all(|(a, _)| matches!(a, Expr::Var(_))) && variables.iter().all(alone))
    };
    let reached = |(r, w): (&Expr, &Expr)| {
        let ends = |e: &Expr, d: &Domains| Linear::of(e, d).map(|l| l.ends(d));
        match (ends(r, domains), ends(w, made)) {
            (Some((Some(lo), Some(hi))), Some((Some(first), Some(last)))) => lo <= first && last <= hi,
            _ => false,
        }
    };
    read.iter().zip(written).all(|(r, w)| plain(r) || reached((r, w)))
}

/// Whether the producer's instances provably leave out values of the iterator.
fn misses(iv: &IterVar, iterators: &HashMap<VarId, Expr>, made: &Domains) -> bool {
    let (Some(lo), Some(extent)) = (constant(&iv.min), constant(&iv.extent)) else { return true };
    let Some(l) = iterators.get(&iv.var.id).and_then(|e| Linear::of(e, made)) else { return true };
    let (first, last) = l.ends(made);
    first.is_some_and(|v| v > lo) || last.is_some_and(|v| v < lo.saturating_add(extent).saturating_sub(1))
}

/// `min <= v < min + extent` for every iterator of the block, in terms of the producer's, as far as it is not always so.
fn guards(block: &Block, producer: &Block, iterators: &HashMap<VarId, Expr>) -> Result<Vec<Expr>> {
    let made = regions::iter_domains(producer);
    let mut out = Vec::new();
    for iv in &block.iter_vars {
        let bounds = (constant(&iv.min), constant(&iv.extent));
        let value = iterators.get(&iv.var.id).and_then(|e| Linear::of(e, &made));
        let ((Some(lo), Some(extent)), Some(value)) = (bounds, value) else {
            return Err(ScheduleError::internal("an iterator without value").at_block(block.id));
        };
        let end = lo.saturating_add(extent);
        if !Linear::constant(lo).at_most(&value, &made) {
            out.push(at_least(&value, lo));
        }
        if !value.at_most(&Linear::constant(end.saturating_sub(1)), &made) {
            out.push(below(&value, end, &made));
        }
    }
    Ok(out)
}

/// The primitive.
pub fn reverse_compute_inline(s: &mut Schedule, block: BlockId) -> Result<()> {
    let plan = legal(s, block).map_err(|e| e.within("reverse_compute_inline"))?;
    apply(s, block, &plan).map_err(|e| e.within("reverse_compute_inline"))
}

fn apply(s: &mut Schedule, block: BlockId, plan: &Plan) -> Result<()> {
    let consumer = s.remove_leaf(block)?.block;
    let Stmt::Store { buffer: target, indices, value } = *consumer.body else {
        return Err(ScheduleError::internal("a body that is no store").at_block(block));
    };
    s.update_realize(plan.producer, |r| {
        let bindings = regions::bindings(r);
        if !plan.guards.is_empty() {
            let body = std::mem::replace(&mut *r.block.body, Stmt::Seq(Vec::new()));
            let mut guards = plan.guards.clone();
            *r.block.body = match body {
                Stmt::If { cond, then, otherwise: None } if conjuncts(&cond) != plan.guards => {
                    guards.extend(conjuncts(&cond).into_iter().filter(|c| !plan.guards.contains(c)));
                    *then
                }
                other => other,
            };
            let bound = guards.iter().map(|g| simplified(&visit::substitute(g, &bindings)));
            let bound: Vec<Expr> = bound.collect();
            // Other than in TVM, the instances that the producer left out stay out.
            let kept: Vec<Expr> =
                conjuncts(&r.predicate).into_iter().filter(|c| !bound.iter().any(|b| implies(b, c))).collect();
            r.predicate = all(kept.into_iter().chain(bound));
        }
        let store = |old: &Expr| {
            // The iterators first: the producer's value has iterators of its own.
            let here = |e: &Expr| {
                visit::replace_loads(&visit::substitute(e, &plan.iterators), plan.buffer, &mut |_| old.clone())
            };
            Stmt::Store { buffer: target, indices: indices.iter().map(here).collect(), value: here(&value) }
        };
        let slot = match &mut *r.block.body {
            Stmt::If { then, .. } => then,
            _ => &mut r.block.body,
        };
        let moved: Vec<Expr> = indices.iter().map(|e| visit::substitute(e, &plan.iterators)).collect();
        if let Stmt::Store { value: old, .. } = &**slot {
            // What a producer with an init updates is now an element of the target.
            let old = visit::replace_loads(old, plan.buffer, &mut |_| Expr::Load(target, moved.clone()));
            **slot = store(&old);
        }
        if let Some(Stmt::Store { buffer, indices, .. }) = r.block.init.as_deref_mut() {
            (*buffer, *indices) = (target, moved);
        }
    })?;
    common::drop_buffer(s, plan.scope, plan.buffer)?;
    s.update_affine_binding(plan.producer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::split;
    use crate::testing::{assert_program, block, chain, func, loops, refusal, schedule};

    const BODY: &str =
        "ScheduleError: The block cannot be inlined because its body pattern does not meet the condition for \
                        inlining";
    const PRODUCER: &str =
        "ScheduleError: The consumer block to be inlined is required to have only a single producer \
                            block, and the producer block should be a complete block who has only a single consumer";

    #[test]
    fn applies() {
        let mut s = chain();
        let c = block(&s, "C");
        reverse_compute_inline(&mut s, c).unwrap();
        assert_program(
            &s,
            &func(
                "A: T.Buffer((16, 30), \"float32\"), C: T.Buffer((16, 30), \"float32\")",
                r#"
for i, j in T.grid(16, 30):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.reads(A[vi, vj])
        T.writes(C[vi, vj])
        C[vi, vj] = A[vi, vj] * T.float32(2) + T.float32(1)
"#,
            ),
        );
    }

    /// B = 2 A, 16 x 16; C, of `rows` x `columns`, reads B at `index`.
    fn reading(rows: i64, columns: i64, index: &str) -> Schedule {
        let body = format!(
            r#"
B = T.sblock_alloc_buffer((16, 16))
for i, j in T.grid(16, 16):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] * T.float32(2)
for i, j in T.grid({rows}, {columns}):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = B[{index}]
"#
        );
        let header = format!("A: T.Buffer((16, 16), \"float32\"), C: T.Buffer(({rows}, {columns}), \"float32\")");
        schedule(&func(&header, &body))
    }

    /// The block that [`reading`] leaves: it stores at `index` where `guard`.
    fn left(rows: i64, columns: i64, guard: &str, index: &str) -> String {
        let body = format!(
            "for i, j in T.grid(16, 16):\n    with T.sblock(\"B\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        \
             {guard}\n        T.reads(A[vi, vj])\n        T.writes(C[{index}])\n        \
             C[{index}] = A[vi, vj] * T.float32(2)"
        );
        func(&format!("A: T.Buffer((16, 16), \"float32\"), C: T.Buffer(({rows}, {columns}), \"float32\")"), &body)
    }

    #[test]
    fn guards_what_the_block_does_not_compute() {
        for (rows, columns, read, guard, index) in [
            (16, 16, "vj, vi", "", "vj, vi"),
            (8, 16, "vi, vj", "T.where(i < 8)", "vi, vj"),
            (8, 16, "vi + 3, vj", "T.where(3 <= i and i < 11)", "vi - 3, vj"),
            (256, 1, "vi // 16, vi % 16", "", "vj + vi * 16, 0"),
            (250, 1, "vi // 16, vi % 16", "T.where(i * 16 + j < 250)", "vj + vi * 16, 0"),
        ] {
            let mut s = reading(rows, columns, read);
            let c = block(&s, "C");
            reverse_compute_inline(&mut s, c).unwrap();
            assert_program(&s, &left(rows, columns, guard, index));
        }
    }

    #[test]
    fn keeps_the_guard_of_the_producer() {
        let mut s = reading(16, 8, "vi, vj");
        let (c, i) = (block(&s, "C"), loops(&s, "B")[0]);
        split(&mut s, i, &[None, Some(5)], true, false).unwrap();
        reverse_compute_inline(&mut s, c).unwrap();
        let guard = crate::text::expr(&s.realize(block(&s, "B")).unwrap().predicate);
        assert_eq!(guard, "i_0 * 5 + i_1 < 16 and j < 8");
    }

    #[test]
    fn refuses_indices_that_do_not_tell_the_iterators() {
        let stride = "The block C cannot be inlined: it reads at a stride";
        for (rows, columns, index, message) in [
            (16, 1, "vi, vi", BODY),
            (8, 16, "vi * 2, vj", stride),
            (16, 16, "vi, 0", BODY),
            (128, 1, "vi // 8, vi % 8", BODY),
        ] {
            let mut s = reading(rows, columns, index);
            let c = block(&s, "C");
            assert_eq!(refusal(&mut s, |s| reverse_compute_inline(s, c)), message, "{index}");
        }
    }

    #[test]
    fn refuses_predicates() {
        let mut s = chain();
        let (c, i) = (block(&s, "C"), loops(&s, "C")[0]);
        split(&mut s, i, &[None, Some(5)], true, false).unwrap();
        assert_eq!(refusal(&mut s, |s| reverse_compute_inline(s, c)), BODY);
    }

    fn refused(body: &str) -> String {
        let mut s = schedule(&func(
            "A: T.Buffer((16,), \"float32\"), C: T.Buffer((16,), \"float32\"), D: T.Buffer((16,), \"float32\")",
            body,
        ));
        let c = block(&s, "C");
        refusal(&mut s, |s| reverse_compute_inline(s, c))
    }

    fn stage(name: &str, value: &str) -> String {
        format!(
            "for i in range(16):\n    with T.sblock(\"{name}\"):\n        vi = T.axis.spatial(16, i)\n        \
             {name}[vi] = {value}\n"
        )
    }

    /// As TVM does; `soundness` finds what comes of it.
    #[test]
    fn leaves_other_readers_behind() {
        let body = format!(
            "B = T.sblock_alloc_buffer((16,))\n{}{}{}",
            stage("B", "A[vi]"),
            stage("C", "B[vi]"),
            stage("D", "B[vi]")
        );
        let mut s = schedule(&func(
            "A: T.Buffer((16,), \"float32\"), C: T.Buffer((16,), \"float32\"), D: T.Buffer((16,), \"float32\")",
            &body,
        ));
        let (source, c) = (s.program().clone(), block(&s, "C"));
        reverse_compute_inline(&mut s, c).unwrap();
        let error = crate::soundness::check(&source, s.program()).unwrap_err();
        assert!(error.detail.starts_with("B is accessed"), "{}", error.detail);
    }

    #[test]
    fn refuses_several_producers() {
        let body = format!(
            "B = T.sblock_alloc_buffer((16,))\nE = T.sblock_alloc_buffer((16,))\n{}{}{}",
            stage("B", "A[vi]"),
            stage("E", "A[vi]"),
            stage("C", "B[vi] + E[vi]")
        );
        assert_eq!(refused(&body), "ScheduleError: The block is allowed to read only a single buffer region");
        assert_eq!(
            refused(&stage("C", "A[vi]")),
            "ScheduleError: The block is allowed to read only a single buffer region"
        );
    }

    #[test]
    fn refuses_reductions() {
        let body = format!(
            r#"
B = T.sblock_alloc_buffer((16,))
for i, k in T.grid(16, 4):
    with T.sblock("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            B[vi] = T.float32(0)
        B[vi] = B[vi] + A[vi]
{}"#,
            stage("C", "B[vi]")
        );
        assert_eq!(refused(&body), PRODUCER);
        let init = body.replace("sblock(\"B\")", "sblock(\"X\")").replace("sblock(\"C\")", "sblock(\"Y\")");
        let mut s = schedule(&func("A: T.Buffer((16,), \"float32\"), C: T.Buffer((16,), \"float32\")", &init));
        let x = block(&s, "X");
        assert_eq!(refusal(&mut s, |s| reverse_compute_inline(s, x)), "ScheduleError: The block has init statement");
    }
}
