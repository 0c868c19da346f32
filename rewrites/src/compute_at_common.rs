//! What compute_at and reverse_compute_at share: where a block goes under a loop, and over which domain it runs there.
use crate::arith::{self, add, constant, int, Domains};
use crate::compute_domain::{self, Direction, Domain};
use crate::dependencies::Scope;
use crate::flags::threads_share;
use crate::guards;
use crate::linear::{all, Linear};
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::affine::linear::conjuncts;
use satune_ir::{visit, BlockId, BlockRealize, BufferId, DType, Expr, ForKind, Stmt};

/// Where a block goes, and over which domain it runs there.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The entry of the loop's body before which it stands.
    pub index: usize,
    /// A domain per iterator.
    pub domains: Vec<Domain>,
    /// Conditions on loops above it, that its producers run under and that its domains do not show.
    pub kept: Vec<Expr>,
}

/// The conditions that both share, in TVM's order, and the placement.
pub fn legal(s: &Schedule, block: BlockId, target: LoopId, index: i64, direction: Direction) -> Result<Placement> {
    s.get_loop(target)?;
    let scope_id = scope::pipeline_of(s, block)?;
    let graph = s.scope(scope_id)?;
    scope::require_complete_or_reduction(s, block, &graph)?;
    require_same_scope(s, block, target, scope_id)?;
    if direction == Direction::ToConsumers {
        scope::require_not_output(s, block, &graph)?;
    }
    s.removal_plan(block)?;
    let index = insertion(s, block, target, &graph, index, direction)?;
    let required = match direction {
        Direction::ToConsumers => graph.consumers(block),
        Direction::ToProducers => graph.producers(block),
    };
    let outer = regions::domains_to(s, Node::Loop(target))?;
    let domains = compute_domain::of(s, block, target, &required, &outer, direction)?;
    let kept = match direction {
        Direction::ToConsumers => Vec::new(),
        Direction::ToProducers => kept(s, block, target, &required, &domains)?,
    };
    Ok(Placement { index, domains, kept })
}

/// Conditions that the producers run under, on threads whose memory is their own and that the block's instances do not depend
/// on: the others have nothing for it. (TVM runs it in all of them.)
fn kept(s: &Schedule, block: BlockId, target: LoopId, producers: &[BlockId], domains: &[Domain]) -> Result<Vec<Expr>> {
    let mut outer = s.loops_above(Node::Loop(target))?;
    outer.push(target);
    let mut out: Vec<Expr> = Vec::new();
    for producer in producers {
        let realize = s.realize(*producer)?;
        let read = |buffer: BufferId| s.block(block).is_ok_and(|b| b.reads.iter().any(|r| r.buffer == buffer));
        let scopes: Vec<&str> = realize
            .block
            .writes
            .iter()
            .filter(|w| read(w.buffer))
            .map(|w| s.program().buffer(w.buffer).scope.as_str())
            .collect();
        let private = |id: &LoopId| {
            let tag =
                s.get_loop(*id)
                    .ok()
                    .and_then(|l| if let ForKind::ThreadBinding(tag) = &l.kind { Some(tag) } else { None });
            tag.is_some_and(|tag| scopes.iter().any(|scope| *scope != "global" && !threads_share(scope, tag)))
        };
        for clause in conjuncts(&realize.predicate) {
            let (mut used, mut above) = (Vec::new(), true);
            visit::walk_expr(&clause, &mut |e| {
                if let Expr::Var(v) = e {
                    above &= outer.contains(&v.id);
                    used.push(v.id);
                }
            });
            let shown = domains.iter().any(|d| visit::uses_var(&d.min.expr(), &|v| used.contains(&v)));
            if above && !shown && used.iter().any(private) && !out.contains(&clause) {
                out.push(clause);
            }
        }
    }
    Ok(out)
}

/// Refuses a loop of another scope, and a loop above the block.
fn require_same_scope(s: &Schedule, block: BlockId, target: LoopId, scope: BlockId) -> Result<()> {
    if s.scope_of(Node::Loop(target))? == scope && !s.loops_of(block)?.contains(&target) {
        return Ok(());
    }
    let name = &s.get_loop(target)?.var.name;
    Err(ScheduleError::refused(
        "Expected the block and loop to be under the same block scope, and loop not to be the ancestor of block",
        format!(
            "The block {} and the loop {name} are required to be under the same block scope, and the loop must not be above \
             the block",
            s.block(block)?.name
        ),
    )
    .at_block(block)
    .at_loop(target).remedy("give a loop of the scope that the block is in, and not one around the block itself"))
}

/// The entry of the loop's body before which the block goes: after its producers, before its consumers.
fn insertion(
    s: &Schedule,
    block: BlockId,
    target: LoopId,
    graph: &Scope,
    index: i64,
    direction: Direction,
) -> Result<usize> {
    let entries = tree::entries(s.body_of(Node::Loop(target))?);
    let (producers, consumers) = (graph.producers(block), graph.consumers(block));
    let holds = |e: &Stmt, list: &[BlockId]| list.iter().any(|b| tree::contains(e, Node::Block(*b)));
    let after = entries.iter().rposition(|e| holds(e, &producers)).map_or(0, |i| i + 1);
    let before = entries.iter().position(|e| holds(e, &consumers)).unwrap_or(entries.len());
    if after > before {
        let word = format!(
            "Cannot find the insertion point under the loop {} that satisfies the producer-consumer constraint for {}: \
             a consumer stands before a producer",
            s.get_loop(target)?.var.name,
            s.block(block)?.name
        );
        let fast = "Cannot find the insertion point that satisfies the producer-consumer constraint";
        return Err(ScheduleError::refused(fast, word)
            .at_block(block)
            .at_loop(target)
            .remedy("move the producer before the consumer first, or choose a loop further out"));
    }
    let (word, required) = match direction {
        Direction::ToConsumers => ("consumer", &consumers),
        Direction::ToProducers => ("producer", &producers),
    };
    let missing: Vec<BlockId> = required.iter().copied().filter(|b| !entries.iter().any(|e| holds(e, &[*b]))).collect();
    if !missing.is_empty() {
        return Err(not_all_visited(s, block, target, word, &missing)?);
    }
    match index {
        -1 => Ok(before),
        -2 => Ok(after),
        i => usize::try_from(i).ok().filter(|i| (after..=before).contains(i)).ok_or_else(|| {
            ScheduleError::internal(format!("Valid index:(-1, -2, [{after}, {before}]), current index={i}"))
        }),
    }
}

fn not_all_visited(
    s: &Schedule,
    block: BlockId,
    target: LoopId,
    word: &str,
    missing: &[BlockId],
) -> Result<ScheduleError> {
    let names = missing.iter().map(|b| Ok(s.block(*b)?.name.clone())).collect::<Result<Vec<_>>>()?;
    let list: String = names.iter().map(|n| format!("\n{n}")).collect();
    let (name, target_name) = (&s.block(block)?.name, &s.get_loop(target)?.var.name);
    let mut error = ScheduleError::refused(
        "Not all required blocks are under the loop scope",
        format!(
            "The primitive requires all the {word}(s) of the given block to be present under the target loop. However, there \
             are {} {word}(s) not satisfying the constraint. List of the {word}(s):{list}",
            missing.len()
        ),
    )
    .at_loop(target)
    .remedy(format!(
        "move {names} under loop {target_name} before {name}: these {word}s are not under it",
        names = names.join(", ")
    ));
    error.blocks = missing.to_vec();
    Ok(error)
}

/// Moves a block under a loop.
pub fn apply(
    s: &mut Schedule,
    block: BlockId,
    target: LoopId,
    placement: &Placement,
    preserve_unit_loops: bool,
) -> Result<()> {
    let nest = new_nest(s, block, target, placement, preserve_unit_loops)?;
    // Where the block leaves an earlier entry of the same sequence, the loop may stand alone afterwards; its own entries
    // never change, since the block is not below it.
    s.remove_leaf(block)?;
    s.insert(Node::Loop(target), placement.index, vec![nest])?;
    s.update_affine_binding(block);
    Ok(())
}

/// The block in a new nest of serial loops over its domains.
pub fn new_nest(
    s: &mut Schedule,
    block: BlockId,
    target: LoopId,
    placement: &Placement,
    preserve_unit_loops: bool,
) -> Result<Stmt> {
    let mut known = regions::domains_to(s, Node::Loop(target))?;
    let mut realize: BlockRealize = s.realize(block)?.clone();
    let mut loops = Vec::new();
    let mut clauses = Vec::new();
    let mut values = Vec::new();
    for domain in &placement.domains {
        let extent = domain.extent;
        let value = if preserve_unit_loops || extent != 1 {
            let var = s.program_mut().fresh_var(format!("ax{}", loops.len()), DType::I32);
            known.insert(var.id, satune_ir::Range { min: int(0, DType::I32), extent: int(extent, DType::I32) });
            loops.push((var.clone(), extent));
            add(domain.min.expr(), Expr::Var(var))
        } else {
            domain.min.expr()
        };
        if let Some((lo, hi)) = domain.guard {
            let overflow = || ScheduleError::value("A bound of a block is too large").at_block(block);
            let linear = Linear::of(&value, &known).ok_or_else(overflow)?;
            if !Linear::constant(lo).at_most(&linear, &known) {
                clauses.push(guards::at_least(&linear, lo));
            }
            if !linear.at_most(&Linear::constant(hi), &known) {
                clauses.push(guards::opened(&linear, hi.checked_add(1).ok_or_else(overflow)?, &known));
            }
        }
        values.push(value);
    }
    realize.iter_values = values;
    // As in TVM, conditions narrow each other before common factors are divided out.
    let narrowed = guards::together(clauses).into_iter();
    let narrowed = narrowed.map(|clause| guards::divided_out(&clause, &known));
    realize.predicate = all(narrowed.chain(placement.kept.iter().cloned()));
    Ok(crate::split::serial_nest(loops.into_iter(), Stmt::Realize(Box::new(realize))))
}

/// Whether the loop runs more than once.
pub fn repeats(s: &Schedule, id: LoopId) -> Result<bool> {
    Ok(constant(&s.get_loop(id)?.extent) != Some(1))
}

/// The domains of the loops of a nest that was made by [`new_nest`], and its block.
pub fn taken_apart(nest: &Stmt) -> Option<(Domains, &BlockRealize)> {
    let mut domains = Domains::new();
    let mut at = nest;
    loop {
        match at {
            Stmt::For(l) => {
                domains.extend(arith::domains(&[l]));
                at = &l.body;
            }
            Stmt::Realize(r) => return Some((domains, r)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::replay_strict;
    use crate::trace::Trace;
    use satune_ir::tvmscript;

    /// Of threads that have nothing in memory of their own, none writes.
    #[test]
    fn consumers_of_one_value_keep_the_guard_of_threads() {
        let script = r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((32, 1, 1), "float32"), C: T.Buffer((1, 1), "float32")):
    for i, j, k in T.grid(1, 1, 32):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vk, vi, vj]
"#;
        let trace = r#"[
            {"op": "get_sblock", "args": ["C"], "out": "block"},
            {"op": "cache_write", "args": ["$block", 0, "local"], "out": "copy"},
            {"op": "get_loops", "args": ["$block"], "out": ["i", "j", "k"]},
            {"op": "fuse", "args": ["$i", "$j"], "out": "f"},
            {"op": "split", "args": ["$f"], "kwargs": {"factors": [null, 256]}, "out": ["bx", "tx"]},
            {"op": "bind", "args": ["$bx", "blockIdx.x"]},
            {"op": "bind", "args": ["$tx", "threadIdx.x"]},
            {"op": "reverse_compute_at", "args": ["$copy", "$tx", true]}
        ]"#;
        let program = tvmscript::parse(script).unwrap();
        let (results, schedule) = replay_strict(&program, &Trace::read(trace).unwrap().calls).unwrap();
        let text = tvmscript::print(schedule.program());
        assert!(results.iter().all(Result::is_ok), "{results:?}\n{text}");
        let copy = text.split("T.sblock(\"C_local\")").nth(1).unwrap();
        assert!(copy.contains("T.where(") && copy.contains("< 1)"), "{text}");
    }
}
