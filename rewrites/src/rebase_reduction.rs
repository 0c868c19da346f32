//! `rebase_reduction`: the parts of a reduction that uses the result of another use that one's parts.
//!
//! before (M_rf, M, Z_rf and Z are made by two rfactor)   after, rebase_reduction(Z_rf)
//!   M_rf[i, p] = max over k of A[i, p, k]                  M_rf[i, p] = max over k of A[i, p, k]
//!   M[i] = max over p of M_rf[i, p]                        Z_rf[i, p] = sum over k of exp(A[i, p, k] - M_rf[i, p])
//!   Z_rf[i, p] = sum over k of exp(A[i, p, k] - M[i])      M[i] = max over p of M_rf[i, p]
//!   Z[i] = sum over p of Z_rf[i, p]                        Z[i] = sum over p of Z_rf[i, p] * exp(M_rf[i, p] - M[i])
//!
//! So each part of A is read once: the reduction no longer waits for all of the other. TVM has no such primitive. What is
//! computed is equal as real numbers, by one of two equations, with b for the part's result and q for the whole one's:
//!
//! * sum of exp(x - q) = exp(b - q) * sum of exp(x - b), and the same of exp(q - x), with minima. `exp2`, factors beside the
//!   power, and a positive constant that x, b and q (or the differences) are multiplied by are taken, too. b is the largest x
//!   of the part, so no power is above 1, and it is finite or one of the x, so that nothing becomes NaN that was none (online
//!   softmax: Milakov and Gimelshein 2018).
//! * sum of (x - q)^2 = sum of (x - b)^2 + n (b - q)^2, where b is the mean of the part's n elements, and q any number that is
//!   made of their sum (Chan, Golub and LeVeque 1979).
//!
//! Legal when: 1 the block's scope is a stage pipeline, and the block no output; 2 it adds up numbers of f32 or f64, and one
//! other block adds up its results as they are, which its data-parallel iterators index one by one; 3 what it adds has one of the two forms above, uses q nowhere else, and q
//! depends on no iterator that it reduces over; 4 q is made of the result of a reduction over parts, of the same x over the
//! same elements: the maximum (the minimum, where x is taken from q) for the first form, the sum for the second; 5 the blocks
//! that reduce parts, and the one that adds up, run over the whole of their domains; 6 those that reduce parts are each alone
//! in a nest; 7 nothing between these nests writes what the block reads, or touches what it writes.
use crate::access_regions;
use crate::arith::{constant, int};
use crate::dependencies::Scope;
use crate::reducer::{self, number, Reduction};
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::tree::{self, Node};
use crate::ScheduleError;
use satune_ir::{fold, visit, BinOp, Block, BlockId, BufferId, DType, Expr, IterKind, IterVar, Stmt, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// What changes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block in which all of them stand.
    scope: BlockId,
    /// The block that adds the parts up.
    whole: BlockId,
    /// What the block does then, and what that one does.
    updates: [Stmt; 2],
    /// The buffer between the two.
    parts: BufferId,
    /// Entries of the scope: the nest of the other reduction's parts, and the block's.
    entries: [usize; 2],
}

/// The difference of an equation, x - q.
type Difference<'e> = (&'e Expr, &'e Expr);

/// What a reduction over parts gives in the place of the whole one's result.
struct Base {
    /// The block that reduces over parts.
    block: BlockId,
    /// The whole one's result, in the difference.
    result: BufferId,
    /// What stands for it: b.
    value: Expr,
}

/// Conditions 1 to 7.
pub fn legal(s: &Schedule, block: BlockId) -> Result<Plan> {
    let scope_id = scope::pipeline_of(s, block)?;
    let graph = s.scope(scope_id)?;
    scope::require_not_output(s, block, &graph)?;
    let Some(partial) =
        of_op(s, block, BinOp::Add).filter(|r| matches!(dtype(s, &r.operands[0]), DType::F32 | DType::F64))
    else {
        return Err(refused(
            s,
            block,
            "it is no sum of numbers of float32 or float64",
            "rebase the parts of a sum that rfactor made",
        ));
    };
    let (whole, total, at) = summed(s, block, partial.buffers[0], &graph)?;
    let (operand, correction, base) = rebased(s, block, &graph, &partial.operands[0])?;
    if visit::loads(&operand).iter().any(|(b, _)| *b == base.result) {
        let why = format!("it uses {} elsewhere, too", s.program().buffer(base.result).name);
        return Err(refused(s, block, &why, "give what uses it a reduction of its own"));
    }
    for id in [base.block, block, whole] {
        require_whole(s, id)?;
    }
    // In the terms of the block that adds the parts up.
    let names = names_by(&partial.indices, &at, s.block(block)?).ok_or_else(|| {
        let why = "its iterators are not told by where it writes";
        refused(s, block, why, "index its results by its iterators")
    })?;
    let (op, correction) = (correction.0, visit::substitute(&correction.1, &names));
    let entries = entries(s, scope_id, [base.block, block], (&operand, partial.buffers[0]))?;
    let updates = [(&partial, operand), (&total, binary(op, &total.operands[0], &correction))].map(|(r, operand)| {
        let (buffer, indices) = (r.buffers[0], r.indices.clone());
        let value = r.combined(&[Expr::Load(buffer, indices.clone())], &[operand]).swap_remove(0);
        Stmt::Store { buffer, indices, value }
    });
    Ok(Plan { scope: scope_id, whole, updates, parts: partial.buffers[0], entries })
}

fn refused(s: &Schedule, block: BlockId, why: &str, remedy: &str) -> ScheduleError {
    let name = s.block(block).map(|b| b.name.clone()).unwrap_or_default();
    ScheduleError::refused(
        "The parts of the reduction cannot use the parts of another",
        format!("The parts of {name} cannot use the parts of another reduction: {why}"),
    )
    .at_block(block)
    .remedy(remedy)
}

fn binary(op: BinOp, a: &Expr, b: &Expr) -> Expr {
    Expr::Binary(op, Arc::new(a.clone()), Arc::new(b.clone()))
}

/// The reduction of one result by an operation that a block is.
fn of_op(s: &Schedule, block: BlockId, op: BinOp) -> Option<Reduction> {
    let reduction = reducer::of(s.program(), s.block(block).ok()?).ok()?;
    let [a, b] = [0, 1].map(|n| int(n, DType::I32));
    let one = reduction.buffers.len() == 1;
    (one && reduction.combined(std::slice::from_ref(&a), std::slice::from_ref(&b)) == [binary(op, &a, &b)])
        .then_some(reduction)
}

/// What the data-parallel iterators of a block are where what it writes is indexed otherwise; none where an index is more than one of
/// them, and does not tell.
fn names_by(indices: &[Expr], others: &[Expr], block: &Block) -> Option<HashMap<VarId, Expr>> {
    let told: HashMap<VarId, Expr> = (indices.iter().zip(others))
        .filter_map(|(index, other)| match index {
            Expr::Var(v) => Some((v.id, other.clone())),
            _ => None,
        })
        .collect();
    let spatial = block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Spatial);
    let name = |iv: &IterVar| {
        let one = || (constant(&iv.extent) == Some(1)).then(|| iv.min.clone());
        Some((iv.var.id, told.get(&iv.var.id).cloned().or_else(one)?))
    };
    spatial.map(name).collect()
}

/// Condition 2: the block that adds up what a block makes, as it is; and where it reads that.
fn summed(s: &Schedule, block: BlockId, parts: BufferId, graph: &Scope) -> Result<(BlockId, Reduction, Vec<Expr>)> {
    let adds = |id: &BlockId| {
        let of = of_op(s, *id, BinOp::Add)?;
        let at = match &of.operands[0] {
            Expr::Load(b, at) if *b == parts => at.clone(),
            _ => return None,
        };
        Some((*id, of, at))
    };
    match graph.readers_of(parts) {
        [one] => adds(one),
        _ => None,
    }
    .ok_or_else(|| {
        refused(
            s,
            block,
            "its results are not what one other block adds up",
            "make the parts by rfactor, which makes that block, too",
        )
    })
}

/// Conditions 3 and 4: what is added with b for q; what the results of parts are multiplied by, or what is added to them.
fn rebased(s: &Schedule, block: BlockId, graph: &Scope, operand: &Expr) -> Result<(Expr, (BinOp, Expr), Base)> {
    let mut last = refused(
        s,
        block,
        "it adds up neither powers nor squares of differences from a number that is the same for all of them",
        "write what is added as exp(x - q), alone or times others, or as (x - q) * (x - q)",
    );
    if let Expr::Binary(BinOp::Mul, left, right) = operand {
        if let (Expr::Binary(BinOp::Sub, x, q), true) = (&**left, left == right) {
            match base(s, block, graph, (x, q), BinOp::Add) {
                Ok(base) => {
                    let squared = |d: Expr| binary(BinOp::Mul, &d, &d);
                    let correction = squared(binary(BinOp::Sub, &base.value, q));
                    let n = number(elements(s.block(block)?), dtype(s, operand));
                    let correction = (BinOp::Add, binary(BinOp::Mul, &n, &correction));
                    return Ok((squared(binary(BinOp::Sub, x, &base.value)), correction, base));
                }
                Err(error) => last = error,
            }
        }
    }
    let reduced = reduced_in(s.block(block)?);
    let mut found = None;
    let rebased = factor(operand, &mut |power| {
        let mut of = None;
        let new = difference(power, &mut |left, right| {
            // The smallest is taken from each x, or each x from the largest.
            let (op, x, q) = if reduced(right) { (BinOp::Min, right, left) } else { (BinOp::Max, left, right) };
            match base(s, block, graph, (x, q), op) {
                Ok(base) => {
                    let from = |a: &Expr, b: &Expr| match op {
                        BinOp::Min => binary(BinOp::Sub, b, a),
                        _ => binary(BinOp::Sub, a, b),
                    };
                    let (new, correction) = (from(x, &base.value), from(&base.value, q));
                    of = Some((correction, base));
                    Some(new)
                }
                Err(error) => {
                    last = error;
                    None
                }
            }
        })?;
        let (correction, base) = of?;
        let correction = difference(power, &mut |_, _| Some(correction.clone()))?;
        found = Some(((BinOp::Mul, correction), base));
        Some(new)
    });
    match (rebased, found) {
        (Some(operand), Some((correction, base))) => Ok((operand, correction, base)),
        _ => Err(last),
    }
}

/// A product with another first factor, of those that `f` has one for.
fn factor(e: &Expr, f: &mut dyn FnMut(&Expr) -> Option<Expr>) -> Option<Expr> {
    if let Some(new) = f(e) {
        return Some(new);
    }
    match e {
        Expr::Binary(BinOp::Mul, a, b) => match factor(a, f) {
            Some(a) => Some(binary(BinOp::Mul, &a, b)),
            None => factor(b, f).map(|b| binary(BinOp::Mul, a, &b)),
        },
        Expr::Binary(BinOp::Div, a, b) => factor(a, f).map(|a| binary(BinOp::Div, &a, b)),
        _ => None,
    }
}

/// A power of a difference, which a positive constant may be multiplied by, with another one.
fn difference(power: &Expr, f: &mut dyn FnMut(&Expr, &Expr) -> Option<Expr>) -> Option<Expr> {
    let Expr::Call(name, args, dtype) = power else { return None };
    let ([exponent], "exp" | "exp2") = (args.as_slice(), name.as_ref()) else { return None };
    let new = match exponent {
        Expr::Binary(BinOp::Sub, x, q) => f(x, q)?,
        Expr::Binary(BinOp::Mul, a, b) => match (&**a, &**b) {
            (Expr::Binary(BinOp::Sub, x, q), c) if positive(c) => binary(BinOp::Mul, &f(x, q)?, c),
            (c, Expr::Binary(BinOp::Sub, x, q)) if positive(c) => binary(BinOp::Mul, c, &f(x, q)?),
            _ => return None,
        },
        _ => return None,
    };
    Some(Expr::Call(name.clone(), vec![new], *dtype))
}

fn positive(e: &Expr) -> bool {
    matches!(e, Expr::Float(bits, _) if f64::from_bits(*bits) > 0.0 && f64::from_bits(*bits).is_finite())
}

/// How many elements an instance of the results reduces over.
fn elements(block: &Block) -> i64 {
    let reduced = block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce);
    reduced.map(|iv| constant(&iv.extent).unwrap_or(1)).product()
}

/// Whether an expression depends on what a block reduces over.
fn reduced_in(block: &Block) -> impl Fn(&Expr) -> bool {
    let iters = block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce);
    let reduced: Vec<VarId> = iters.map(|iv| iv.var.id).collect();
    move |e| visit::uses_var(e, &|v| reduced.contains(&v))
}

/// What stands for q in x - q: the result of `op` over the block's own part, in the terms of the block.
fn base(s: &Schedule, block: BlockId, graph: &Scope, (x, q): Difference<'_>, op: BinOp) -> Result<Base> {
    let b = s.block(block)?;
    let reduced = reduced_in(b);
    let error = |why: &str| {
        refused(s, block, why, "reduce over the same parts of the same elements, by rfactor, in a block before")
    };
    if reduced(q) {
        return Err(error("what it takes differences from is not the same for all that a part reduces over"));
    }
    let parts_of = |result: BufferId| {
        let [whole] = graph.writers_of(result) else { return None };
        let whole = of_op(s, *whole, op)?;
        let Expr::Load(parts, _) = whole.operands[0] else { return None };
        let [before] = graph.writers_of(parts) else { return None };
        Some((whole, *before, of_op(s, *before, op)?))
    };
    let mut loads = visit::loads(q).into_iter();
    let Some((result, row, (whole, before, reduction))) = loads.find_map(|(r, row)| Some((r, row, parts_of(r)?)))
    else {
        let wanted = match op {
            BinOp::Max => "maximum",
            BinOp::Min => "minimum",
            _ => "sum",
        };
        return Err(error(&format!("what it takes differences from is not made of a {wanted} over parts")));
    };
    let (x, q_alone) = if op == BinOp::Add { (x, q) } else { peeled(x, q) };
    let plain = matches!(q_alone, Expr::Load(b, _) if *b == result);
    let names = same_elements(&reduction.operands[0], x, s.block(before)?, b).filter(|_| plain || op == BinOp::Add);
    let at = names.map(|names| reduction.indices.iter().map(|i| visit::substitute(i, &names)).collect::<Vec<_>>());
    let Some(at) = at.filter(|at| !at.iter().any(&reduced)) else {
        let name = &s.block(before)?.name;
        return Err(error(&format!("what it takes differences from is not reduced from the same elements by {name}")));
    };
    let part = Expr::Load(reduction.buffers[0], at);
    // The whole one's result is that of these parts, and no other row's.
    let mut names = HashMap::new();
    let same_row =
        alike(&whole.operands[0], &part, &mut |v, e| (names.entry(v).or_insert_with(|| e.clone()) == e).then_some(()));
    if same_row.is_none() || whole.indices.iter().map(|i| visit::substitute(i, &names)).ne(row) {
        return Err(error("what it takes differences from is made of other elements' parts"));
    }
    let value = match op {
        BinOp::Max | BinOp::Min => visit::replace_loads(q, result, &mut |_| part.clone()),
        _ => binary(BinOp::Div, &part, &number(elements(s.block(before)?), dtype(s, &part))),
    };
    if dtype(s, &value) != dtype(s, q) {
        return Err(error("the parts of what it takes differences from have another type"));
    }
    Ok(Base { block: before, result, value })
}

fn dtype(s: &Schedule, e: &Expr) -> DType {
    fold::dtype(e, &s.program().buffers)
}

/// x and q without what both are given to: conversions between floating-point types, and positive constants that they are multiplied
/// by. The larger is the larger as before.
fn peeled<'e>(x: &'e Expr, q: &'e Expr) -> Difference<'e> {
    match (x, q) {
        (Expr::Cast(t, a), Expr::Cast(u, b)) if t == u && t.is_float() => peeled(a, b),
        (Expr::Binary(BinOp::Mul, a, c), Expr::Binary(BinOp::Mul, b, d)) if c == d && positive(c) => peeled(a, b),
        (Expr::Binary(BinOp::Mul, c, a), Expr::Binary(BinOp::Mul, d, b)) if c == d && positive(c) => peeled(a, b),
        both => both,
    }
}

/// What the iterators of a block are called in another, where the first one's expression goes through the values that the second one's
/// goes through, part by part.
fn same_elements(of: &Expr, x: &Expr, from: &Block, to: &Block) -> Option<HashMap<VarId, Expr>> {
    let mut names = HashMap::new();
    alike(of, x, &mut |v, e| {
        let known = from.iter_vars.iter().find(|iv| iv.var.id == v)?;
        let Expr::Var(w) = e else { return None };
        let other = to.iter_vars.iter().find(|iv| iv.var.id == w.id)?;
        let same = (known.kind, &known.extent, &known.min) == (other.kind, &other.extent, &other.min);
        (same && names.entry(v).or_insert_with(|| e.clone()) == e).then_some(())
    })?;
    let named = names.len();
    let used: Vec<Expr> = names.values().cloned().collect();
    let distinct = (0..named).all(|i| !used[..i].contains(&used[i]));
    let one = |extent: &Expr| constant(extent) == Some(1);
    let unnamed: Vec<&IterVar> = from.iter_vars.iter().filter(|iv| !names.contains_key(&iv.var.id)).collect();
    unnamed.iter().all(|iv| one(&iv.extent)).then_some(())?;
    names.extend(unnamed.iter().map(|iv| (iv.var.id, iv.min.clone())));
    let mut reduced = to.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce && !one(&iv.extent));
    (distinct && reduced.all(|iv| used.contains(&Expr::Var(iv.var.clone())))).then_some(names)
}

/// Whether two expressions are the same but for variables, of which `same` is asked.
fn alike(a: &Expr, b: &Expr, same: &mut dyn FnMut(VarId, &Expr) -> Option<()>) -> Option<()> {
    if let Expr::Var(v) = a {
        return same(v.id, b);
    }
    let (parts, others) = (visit::children(a), visit::children(b));
    let bare = |e: &Expr| visit::map_children(e, &mut |_| int(0, DType::I32));
    (parts.len() == others.len() && bare(a) == bare(b)).then_some(())?;
    parts.into_iter().zip(others).try_for_each(|(a, b)| alike(a, b, same))
}

/// Condition 5.
fn require_whole(s: &Schedule, block: BlockId) -> Result<()> {
    let r = s.realize(block)?;
    if s.flags(block).affine_binding && constant(&r.predicate) == Some(1) {
        return Ok(());
    }
    let why = "it runs under a condition, or not over the whole of its iterators' domains";
    Err(refused(s, block, why, "split by a number that divides the loop"))
}

/// Conditions 6 and 7: the entries of the scope where the two blocks stand.
fn entries(
    s: &Schedule,
    scope: BlockId,
    blocks: [BlockId; 2],
    (operand, parts): (&Expr, BufferId),
) -> Result<[usize; 2]> {
    let all = tree::entries(&s.block(scope)?.body);
    let at = blocks.map(|b| all.iter().position(|entry| tree::contains(entry, Node::Block(b))));
    let alone = |entry: usize| tree::child_realizes(&all[entry]).len() == 1;
    let [Some(from), Some(to)] = at else {
        return Err(refused(s, blocks[1], "it does not stand beside the other", "put both blocks at the root"));
    };
    if from >= to || !alone(from) || !alone(to) {
        return Err(refused(s, blocks[1], "it shares its loops with another block", "rebase before compute_at"));
    }
    let read: Vec<BufferId> = visit::loads(operand).into_iter().map(|(b, _)| b).collect();
    let between = all[from + 1..to].iter().flat_map(tree::child_realizes);
    let in_the_way = between.into_iter().find(|r| {
        let touches = r.block.reads.iter().chain(&r.block.writes).any(|region| region.buffer == parts);
        touches || r.block.writes.iter().any(|w| read.contains(&w.buffer))
    });
    match in_the_way {
        None => Ok([from, to]),
        Some(r) => {
            let why = format!("{} stands between them and writes what it reads", r.block.name);
            Err(refused(s, blocks[1], &why, "move that block before both"))
        }
    }
}

/// The primitive.
pub fn rebase_reduction(s: &mut Schedule, block: BlockId) -> Result<()> {
    let Plan { scope, whole, updates, parts, entries: [after, at] } =
        legal(s, block).map_err(|e| e.within("rebase_reduction"))?;
    for (id, update) in [block, whole].into_iter().zip(updates) {
        s.update_block(id, |b| *b.body = update)?;
    }
    let buffers = s.program().buffers.clone();
    s.update_body(Node::Block(scope), |body| {
        if let Stmt::Seq(entries) = body {
            let nest = entries.remove(at);
            entries.insert(after + 1, nest);
        }
        access_regions::refresh(body, &buffers, parts);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rfactor::rfactor;
    use crate::split::split;
    use crate::testing::{assert_program, block, func, loops, refusal, schedule};
    use satune_ir::interp::{self, Array};

    const HEADER: &str = "A: T.Buffer((4, 64), \"float32\"), Z: T.Buffer((4,), \"float32\")";

    /// Two reductions of rows of 64 elements, in four parts each: `first` with its neutral element, and a sum of `second`.
    fn in_parts((neutral, first): (&str, &str), second: &str) -> Schedule {
        let body = format!(
            r#"
M = T.sblock_alloc_buffer((4,))
for i, k in T.grid(4, 64):
    with T.sblock("M"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            M[vi] = {neutral}
        M[vi] = {first}
for i, k in T.grid(4, 64):
    with T.sblock("Z"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            Z[vi] = T.float32(0)
        Z[vi] = Z[vi] + {second}
"#
        );
        let mut s = schedule(&func(HEADER, &body));
        for name in ["M", "Z"] {
            let k = loops(&s, name)[1];
            let part = split(&mut s, k, &[Some(4), None], true, false).unwrap()[0];
            rfactor(&mut s, part, -1).unwrap();
        }
        s
    }

    const LARGEST: (&str, &str) = ("T.min_value(\"float32\")", "T.max(M[vi], A[vi, vk])");
    const SMALLEST: (&str, &str) = ("T.max_value(\"float32\")", "T.min(M[vi], A[vi, vk])");
    const SUM: (&str, &str) = ("T.float32(0)", "M[vi] + A[vi, vk]");

    fn taken(of: (&str, &str), second: &str) -> Schedule {
        let mut s = in_parts(of, second);
        let parts = block(&s, "Z_rf");
        rebase_reduction(&mut s, parts).unwrap();
        s
    }

    #[test]
    fn powers_are_taken_from_the_maximum_of_their_part() {
        let s = taken(LARGEST, "T.exp(A[vi, vk] - M[vi])");
        assert_program(
            &s,
            &func(
                HEADER,
                r#"
M = T.sblock_alloc_buffer((4,))
M_rf = T.sblock_alloc_buffer((4, 4))
Z_rf = T.sblock_alloc_buffer((4, 4))
for i, k_0, k_1 in T.grid(4, 4, 16):
    with T.sblock("M_rf"):
        vk_0, vi, vk_1 = T.axis.remap("SSR", [k_0, i, k_1])
        T.reads(A[vi, vk_0 * 16 + vk_1])
        T.writes(M_rf[vi, vk_0])
        with T.init():
            M_rf[vi, vk_0] = T.float32(-3.4028234663852886e38)
        M_rf[vi, vk_0] = T.max(M_rf[vi, vk_0], A[vi, vk_0 * 16 + vk_1])
for i, k_0, k_1 in T.grid(4, 4, 16):
    with T.sblock("Z_rf"):
        vk_0, vi, vk_1 = T.axis.remap("SSR", [k_0, i, k_1])
        T.reads(A[vi, vk_0 * 16 + vk_1], M_rf[vi, vk_0])
        T.writes(Z_rf[vi, vk_0])
        with T.init():
            Z_rf[vi, vk_0] = T.float32(0)
        Z_rf[vi, vk_0] = Z_rf[vi, vk_0] + T.exp(A[vi, vk_0 * 16 + vk_1] - M_rf[vi, vk_0])
for i, k_0 in T.grid(4, 4):
    with T.sblock("M"):
        vk_0, vi = T.axis.remap("RS", [k_0, i])
        T.reads(M_rf[vi, vk_0])
        T.writes(M[vi])
        with T.init():
            M[vi] = T.float32(-3.4028234663852886e38)
        M[vi] = T.max(M[vi], M_rf[vi, vk_0])
for i, k_0 in T.grid(4, 4):
    with T.sblock("Z"):
        vk_0, vi = T.axis.remap("RS", [k_0, i])
        T.reads(Z_rf[vi, vk_0], M_rf[vi, vk_0], M[vi])
        T.writes(Z[vi])
        with T.init():
            Z[vi] = T.float32(0)
        Z[vi] = Z[vi] + Z_rf[vi, vk_0] * T.exp(M_rf[vi, vk_0] - M[vi])
"#,
            ),
        );
    }

    /// What a program makes of four rows.
    fn results(s: &Schedule, rows: &dyn Fn(usize) -> f64) -> Vec<f64> {
        let a = Array::from_f64(DType::F32, &[4, 64], &(0..256).map(rows).collect::<Vec<_>>()).unwrap();
        interp::run(s.program(), &[a, Array::from_f64(DType::F32, &[4], &[0.0; 4]).unwrap()]).unwrap()[1].to_f64()
    }

    #[test]
    fn results_are_those_of_the_source() {
        let inf = f64::INFINITY;
        let number = |i: usize| ((i * 37 + 11) % 101) as f64 * 0.25 - 9.0;
        let of_part = |part: usize, other: f64| move |i: usize| if i / 16 % 4 == part { other } else { number(i) };
        let all: [&dyn Fn(usize) -> f64; 9] = [
            &number,
            &|i| number(i) * 1e3,
            &of_part(0, -inf),
            &of_part(3, -inf),
            &|_| -inf,
            &of_part(1, inf),
            &|i| if i == 70 { inf } else { number(i) },
            &|i| if i == 70 { f64::NAN } else { number(i) },
            &|i| if i % 5 == 0 { -3e38 } else { number(i) },
        ];
        let forms = [
            (LARGEST, "T.exp(A[vi, vk] - M[vi])"),
            (LARGEST, "T.exp2((A[vi, vk] - M[vi]) * T.float32(1.5))"),
            (LARGEST, "T.exp(A[vi, vk] * T.float32(0.5) - M[vi] * T.float32(0.5)) * A[vi, 3]"),
            (LARGEST, "A[vi, vk] * T.exp(A[vi, vk] - M[vi]) / T.float32(3)"),
            (SMALLEST, "T.exp(M[vi] - A[vi, vk])"),
            (SMALLEST, "T.exp2(T.float32(2) * (M[vi] - A[vi, vk])) * A[vi, vk]"),
            (SUM, "(A[vi, vk] - M[vi] / T.float32(64)) * (A[vi, vk] - M[vi] / T.float32(64))"),
            (SUM, "(A[vi, vk] - (M[vi] + T.float32(7))) * (A[vi, vk] - (M[vi] + T.float32(7)))"),
        ];
        for (of, second) in forms {
            let source = in_parts(of, second);
            let rebased = taken(of, second);
            assert!(crate::soundness::check(source.program(), rebased.program()).is_ok());
            for (number, rows) in all.iter().enumerate() {
                let [before, after] = [&source, &rebased].map(|s| results(s, rows));
                for (a, b) in before.iter().zip(&after) {
                    // A part's sum may be too large where the squares are, too.
                    let alike = a.is_nan() && b.is_nan() || of == SUM && !a.is_finite() && !b.is_finite();
                    let same = a == b || alike || (a - b).abs() <= 1e-5 * a.abs();
                    assert!(same, "rows {number} of {second}: {before:?} {after:?}");
                }
            }
        }
    }

    #[test]
    fn is_refused_where_no_equation_says_so() {
        let power = "T.exp(A[vi, vk] - M[vi])";
        for (of, second, why) in [
            (LARGEST, "A[vi, vk] * A[vi, vk]", "neither powers nor squares"),
            (SUM, power, "not made of a maximum over parts"),
            (LARGEST, "(A[vi, vk] - M[vi]) * (A[vi, vk] - M[vi])", "not made of a sum over parts"),
            (LARGEST, "T.exp(A[vi, 63 - vk] - M[vi])", "not reduced from the same elements by M_rf"),
            (LARGEST, "T.exp(A[vi, vk] * T.float32(2) - M[vi])", "not reduced from the same elements"),
            (LARGEST, "T.exp(A[vi, vk] * T.float32(-2) - M[vi] * T.float32(-2))", "not reduced from the same elements"),
            (LARGEST, "T.exp(M[vi] - A[vi, vk])", "not made of a minimum over parts"),
            (SMALLEST, power, "not made of a maximum over parts"),
            (LARGEST, "T.exp(A[vi, vk] - A[vi, 63 - vk])", "not the same for all that a part reduces over"),
            (LARGEST, "T.exp((A[vi, vk] - M[vi]) * T.float32(-1))", "neither powers nor squares"),
            (LARGEST, "T.exp(A[vi, vk] - M[vi]) * M[vi]", "it uses M elsewhere, too"),
            (LARGEST, "T.exp(A[vi, vk] - M[3 - vi])", "made of other elements' parts"),
        ] {
            let mut s = in_parts(of, second);
            let parts = block(&s, "Z_rf");
            let error = rebase_reduction(&mut s, parts).map_err(|e| e.detail.clone());
            assert!(error.as_ref().is_err_and(|e| e.contains(why)), "{second}: {error:?}");
        }
        // All results but the first.
        let body = r#"
M = T.sblock_alloc_buffer((4,))
M_rf = T.sblock_alloc_buffer((4, 4))
Z_rf = T.sblock_alloc_buffer((4, 4))
for i, p, k in T.grid(3, 4, 16):
    with T.sblock("M_rf"):
        vi, vp, vk = T.axis.remap("SSR", [i, p, k])
        with T.init():
            M_rf[vi + 1, vp] = T.min_value("float32")
        M_rf[vi + 1, vp] = T.max(M_rf[vi + 1, vp], A[vi + 1, vp * 16 + vk])
for i, p in T.grid(3, 4):
    with T.sblock("M"):
        vi, vp = T.axis.remap("SR", [i, p])
        with T.init():
            M[vi + 1] = T.min_value("float32")
        M[vi + 1] = T.max(M[vi + 1], M_rf[vi + 1, vp])
for i, p, k in T.grid(3, 4, 16):
    with T.sblock("Z_rf"):
        vi, vp, vk = T.axis.remap("SSR", [i, p, k])
        with T.init():
            Z_rf[vi + 1, vp] = T.float32(0)
        Z_rf[vi + 1, vp] = Z_rf[vi + 1, vp] + T.exp(A[vi + 1, vp * 16 + vk] - M[vi + 1])
for i, p in T.grid(3, 4):
    with T.sblock("Z"):
        vi, vp = T.axis.remap("SR", [i, p])
        with T.init():
            Z[vi + 1] = T.float32(0)
        Z[vi + 1] = Z[vi + 1] + Z_rf[vi + 1, vp]
"#;
        let mut s = schedule(&func(HEADER, body));
        let parts = block(&s, "Z_rf");
        let error = rebase_reduction(&mut s, parts).unwrap_err();
        assert!(error.detail.contains("not told by where it writes"), "{}", error.detail);
        let mut s = in_parts(LARGEST, power);
        let other = block(&s, "M_rf");
        let fast = refusal(&mut s, |s| rebase_reduction(s, other));
        assert_eq!(fast, "ScheduleError: The parts of the reduction cannot use the parts of another");
        let output = block(&s, "Z");
        assert_eq!(
            refusal(&mut s, |s| rebase_reduction(s, output)),
            "ScheduleError: Cannot operate on an output block"
        );
        let parts = block(&s, "Z_rf");
        rebase_reduction(&mut s, parts).unwrap();
        let again = block(&s, "Z_rf");
        refusal(&mut s, |s| rebase_reduction(s, again));
    }
}
