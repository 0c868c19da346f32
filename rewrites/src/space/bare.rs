//! Loops and stores that no block is around, and loops within blocks, as blocks.
//!
//! ```text
//! before                                             after
//!   for i, j in T.grid(m, n):                          for i, j, k in T.grid(m, n, l):
//!       C[i, j] = 0                                        C[i, j] = C[i, j] + A[i, k] * B[k, j]      init 0
//!       for k in range(l):
//!           C[i, j] = C[i, j] + A[i, k] * B[k, j]
//!
//!   for i in range(m):                                 for i, k in T.grid(m, l):
//!       s[0] = 0                                           s_each[i] = s_each[i] + A[i, k]            init 0
//!       for k in range(l): s[0] = s[0] + A[i, k]       for i in range(m):
//!       B[i] = s[0]                                        B[i] = s_each[i]
//! ```
//! A store is an iteration of the loops around it. Those whose values its index tells are spatial iterators of a block; over the others
//! it adds up, or takes the least or the largest. What stands before it in a loop is a nest before it, where each value of the loops
//! around both has elements of its own in all that one writes and the other accesses. A buffer that each value writes anew before it reads
//! it gets an element for each.
//!
//! A value with a name is computed where it is used. A sum that one block begins and another goes on with is one block.
//!
//! Instances of a block run in any order, so that a sum is not added up in the order of its loops. Where something else depends on their order
//! the nest stays as it is ([`super::in_order`]).
use super::in_order::{is_bound, Touched};
use super::in_place::combined;
use super::nests::{allocated, is_fixed, nest_over, parts, touches, unused};
use crate::arith::Domains;
use crate::iter_map;
use crate::tree::{all_realizes, has_blocks};
use satune_ir::affine::{self, constant, int};
use satune_ir::{
    fold, visit, BufferId, DType, Expr, For, ForKind, IterKind, IterVar, Program, Range, Stmt, Var, VarId,
};
use std::collections::{BTreeSet, HashMap};

/// Most stores that become blocks: of more, what is asked of pairs of blocks takes too long.
const MOST: usize = 128;

/// The same program with a block for each such store.
pub(super) fn as_blocks(program: &Program) -> Program {
    let mut stores = 0;
    visit::walk_stmt(&program.body.block.body, &mut |s| stores += usize::from(matches!(s, Stmt::Store { .. })));
    if stores > MOST || !parts(program).into_iter().any(is_bare) {
        return program.clone();
    }
    let mut out = program.clone();
    let mut taken: BTreeSet<String> =
        all_realizes(&program.body.block.body).into_iter().map(|r| r.block.name.clone()).collect();
    let mut made = Vec::new();
    let parts = parts(program);
    let mut at = 0;
    while at < parts.len() {
        let run = parts[at..].iter().take_while(|part| is_bare(part) || is_constant(part)).count();
        // Together: a sum may begin with what stands before it. Else each by itself.
        for count in [run, 1] {
            let group = &parts[at..at + count.max(1)];
            let (before, after) = (&parts[..at], &parts[at + group.len()..]);
            let others = |b: BufferId| before.iter().chain(after).any(|other| touches(other, b));
            let (mut tried, mut names) = (out.clone(), taken.clone());
            for own in group.iter().flat_map(|part| all_realizes(part)) {
                names.remove(&own.block.name);
            }
            let whole = Stmt::seq(group.iter().map(|part| (*part).clone()).collect());
            let nests =
                group.iter().any(|part| is_bare(part)).then(|| nests_of(&mut tried, &whole, &others, &mut names));
            if let Some(nests) = nests.flatten() {
                (out, taken) = (tried, names);
                made.extend(nests);
                at += group.len();
                break;
            }
            if group.len() == 1 {
                made.push(with_own_elements(&mut out, parts[at], &others));
                at += 1;
                break;
            }
        }
    }
    *out.body.block.body = Stmt::seq(made);
    let body = out.body.block.body.clone();
    let read = |id: &BufferId| program.body.block.alloc_buffers.contains(id) && touches(&program.body.block.body, *id);
    out.body.block.alloc_buffers.retain(|id| touches(&body, *id) || !read(id));
    out
}

/// Whether a part stores outside of blocks, has loops within one, or adds up what another block has begun.
fn is_bare(part: &Stmt) -> bool {
    fn inside(stmt: &Stmt) -> bool {
        let mut loops = false;
        visit::walk_stmt(stmt, &mut |s| loops |= matches!(s, Stmt::For(_)));
        loops
    }
    match part {
        Stmt::For(l) => is_bare(&l.body),
        Stmt::Seq(parts) => parts.iter().any(is_bare),
        Stmt::Realize(r) => {
            let goes_on = r.block.init.is_none() && r.block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce);
            !has_blocks(&r.block.body) && (goes_on || inside(&r.block.body))
        }
        Stmt::If { then, .. } => is_bare(then),
        Stmt::Let { body, .. } => is_bare(body),
        Stmt::Store { .. } => true,
        Stmt::Evaluate(_) => false,
    }
}

/// Whether a part stores a constant, and does nothing else.
fn is_constant(part: &Stmt) -> bool {
    let mut constant = true;
    visit::walk_stmt(part, &mut |s| {
        constant &= match s {
            Stmt::Store { value, .. } => is_fixed(value),
            Stmt::Realize(r) => r.block.init.is_none(),
            s => matches!(s, Stmt::For(_)),
        };
    });
    constant
}

/// The nests of blocks that a part is. `others`: whether other parts access a buffer.
fn nests_of(
    out: &mut Program,
    part: &Stmt,
    others: &dyn Fn(BufferId) -> bool,
    taken: &mut BTreeSet<String>,
) -> Option<Vec<Stmt>> {
    let mut names = Vec::new();
    let mut owned = out.body.block.alloc_buffers.clone();
    let mut body = without_blocks(part, None, &mut names, &mut owned)?;
    for buffer in owned.iter().filter(|b| !others(**b)) {
        body = with_elements(out, &body, *buffer);
    }
    let mut stores = Vec::new();
    stores_of(out, &body, &mut Vec::new(), &mut stores)?;
    let mut stores: Vec<Option<Store>> = stores.into_iter().map(Some).collect();
    let mut nests = Vec::new();
    for at in 0..stores.len() {
        let Some(store) = stores[at].take() else { continue };
        let reduces = store.check(out)?;
        // What a sum begins with is the last that was stored there before, where that is a constant, and all that was done there.
        let init =
            reduces.then(|| stores[..at].iter().rposition(|s| s.as_ref().is_some_and(|s| s.touches(store.buffer))));
        let init = init.flatten().filter(|at| stores[*at].as_ref().is_some_and(|first| store.begins_with(first)));
        let first = init.and_then(|at| stores[at].take());
        let own = Stmt::Store { buffer: store.buffer, indices: store.indices.clone(), value: store.value.clone() };
        let zero =
            first.map(|first| Stmt::Store { value: first.value, buffer: store.buffer, indices: store.indices.clone() });
        nests.push((at, store.iters(), zero, own));
        stores[at] = Some(store);
    }
    // A constant that a sum begins with is no nest.
    let mut made = Vec::new();
    for (at, iters, init, body) in nests {
        let Some(store) = &stores[at] else { continue };
        let of_block = names.get(at).cloned().flatten();
        let name =
            unused(&of_block.unwrap_or_else(|| out.buffer(store.buffer).name.clone()), |name| taken.contains(name));
        taken.insert(name.clone());
        made.push(nest_over(out, name, &iters, init, body));
    }
    for buffer in owned {
        if made.iter().any(|nest| touches(nest, buffer)) {
            in_global_memory(out, buffer);
        }
    }
    Some(made)
}

/// Gives a buffer of what is bound to no threads memory that is everybody's.
fn in_global_memory(out: &mut Program, buffer: BufferId) {
    out.buffer_mut(buffer).scope = "global".into();
    if !out.body.block.alloc_buffers.contains(&buffer) {
        out.body.block.alloc_buffers.push(buffer);
    }
}

/// Loops, statements in order and stores alone; of each store the name of its block. None where there is more, or a loop is bound to
/// threads.
fn without_blocks(
    stmt: &Stmt,
    name: Option<&str>,
    names: &mut Vec<Option<String>>,
    owned: &mut Vec<BufferId>,
) -> Option<Stmt> {
    match stmt {
        Stmt::For(l) => {
            let min = constant(&l.min).filter(|_| constant(&l.extent).is_some_and(|e| e > 0))?;
            if matches!(l.kind, ForKind::ThreadBinding(_)) {
                return None;
            }
            let mut body = without_blocks(&l.body, name, names, owned)?;
            if min != 0 {
                let from = affine::add(Expr::Var(l.var.clone()), l.min.clone());
                let values = HashMap::from([(l.var.id, from)]);
                body = visit::map_stmt_exprs(&body, &mut |e| visit::substitute(e, &values));
            }
            let (min, annotations) = (int(0, l.var.dtype), Default::default());
            Some(Stmt::For(For { min, kind: ForKind::Serial, annotations, body: body.into(), ..l.clone() }))
        }
        Stmt::Seq(parts) => {
            let parts: Option<Vec<Stmt>> = parts.iter().map(|s| without_blocks(s, name, names, owned)).collect();
            parts.map(Stmt::seq)
        }
        Stmt::Realize(r) => {
            let block = &r.block;
            let known = block.init.is_none() && block.match_buffers.is_empty() && constant(&r.predicate) == Some(1);
            let free = block.iter_vars.iter().all(|iv| iv.kind.any_order());
            if !known || !free || has_blocks(&block.body) {
                return None;
            }
            owned.extend(&block.alloc_buffers);
            let values: HashMap<VarId, Expr> =
                block.iter_vars.iter().zip(&r.iter_values).map(|(iv, value)| (iv.var.id, value.clone())).collect();
            let body = visit::map_stmt_exprs(&block.body, &mut |e| visit::substitute(e, &values));
            without_blocks(&body, Some(&block.name), names, owned)
        }
        // A value is computed where it is used, where nothing stores to what it reads before.
        Stmt::Let { var, value, body } => {
            let mut stored = false;
            let loads = visit::loads(value);
            visit::walk_stmt(body, &mut |s| {
                stored |= matches!(s, Stmt::Store { buffer, .. } if loads.iter().any(|(b, _)| b == buffer));
            });
            let values = HashMap::from([(var.id, value.clone())]);
            let body = visit::map_stmt_exprs(body, &mut |e| visit::substitute(e, &values));
            (!stored).then(|| without_blocks(&body, name, names, owned)).flatten()
        }
        Stmt::Store { .. } => {
            names.push(name.map(String::from));
            Some(stmt.clone())
        }
        Stmt::Evaluate(Expr::Int(..)) => Some(Stmt::Seq(Vec::new())),
        Stmt::If { .. } | Stmt::Evaluate(_) => None,
    }
}

/// What stays as it is, bound to no threads: its memory is everybody's, and buffers that are written anew for each value of its loops have
/// elements for each, so that threads are apart.
fn with_own_elements(out: &mut Program, part: &Stmt, others: &dyn Fn(BufferId) -> bool) -> Stmt {
    if !is_bare(part) || is_bound(part) {
        return part.clone();
    }
    let in_no_block = all_realizes(part).is_empty();
    let mut made = part.clone();
    for buffer in out.body.block.alloc_buffers.clone() {
        if touches(part, buffer) {
            in_global_memory(out, buffer);
            if in_no_block && !others(buffer) {
                made = with_elements(out, &made, buffer);
            }
        }
    }
    made
}

/// The statement where a buffer that is written anew for each value of loops has elements for each; else the same.
fn with_elements(out: &mut Program, stmt: &Stmt, buffer: BufferId) -> Stmt {
    let (mut around, mut rest) = (Vec::new(), stmt);
    loop {
        match rest {
            Stmt::For(l) => {
                around.push(l);
                rest = &l.body;
            }
            Stmt::Seq(parts) => match parts.iter().filter(|part| touches(part, buffer)).collect::<Vec<_>>()[..] {
                [] => return stmt.clone(),
                [one] => rest = one,
                _ => break,
            },
            _ => return stmt.clone(),
        }
    }
    let touched = Touched::of(out, rest);
    around.retain(|l| constant(&l.extent) != Some(1));
    let told = |l: &For| touched.of_buffer(buffer).any(|at| at.iter().any(|e| visit::uses_var(e, &|v| v == l.var.id)));
    let info = out.buffer(buffer).clone();
    if around.is_empty()
        || around.iter().any(|l| told(l))
        || !info.strides.is_empty()
        || !writes_first(rest, buffer, out)
    {
        return stmt.clone();
    }
    // One element is none.
    let scalar = info.shape.iter().all(|d| constant(d) == Some(1));
    let own = if scalar { Vec::new() } else { info.shape.clone() };
    let shape = around.iter().map(|l| l.extent.clone()).chain(own).collect();
    let each = allocated(out, &format!("{}_each", info.name), info.dtype, shape);
    let place = |at: &[Expr]| -> Vec<Expr> {
        let own = if scalar { &[] } else { at };
        around.iter().map(|l| Expr::Var(l.var.clone())).chain(own.iter().cloned()).collect()
    };
    let mut made =
        visit::map_stmt_exprs(stmt, &mut |e| visit::replace_loads(e, buffer, &mut |at| Expr::Load(each, place(&at))));
    visit::walk_stmt_mut(&mut made, &mut |s| {
        if let Stmt::Store { buffer: b, indices, .. } = s {
            if *b == buffer {
                (*b, *indices) = (each, place(indices));
            }
        }
    });
    made
}

/// Whether the first of several statements that touches a buffer stores to all of it, and reads what it has stored alone.
fn writes_first(stmt: &Stmt, buffer: BufferId, program: &Program) -> bool {
    let Stmt::Seq(parts) = stmt else { return false };
    let Some(whole) = parts.iter().find(|part| touches(part, buffer)) else { return false };
    let (mut loops, mut first) = (HashMap::new(), whole);
    loop {
        match first {
            Stmt::For(l) => {
                loops.insert(l.var.id, constant(&l.extent));
                first = &l.body;
            }
            Stmt::Seq(parts) => match parts.iter().find(|part| touches(part, buffer)) {
                Some(part) => first = part,
                None => return false,
            },
            _ => break,
        }
    }
    let Stmt::Store { buffer: to, indices, value } = first else { return false };
    if !Touched::of(program, whole).of_buffer(buffer).all(|at| at == indices) {
        return false;
    }
    let mut used = BTreeSet::new();
    let whole = |(at, dim): (&Expr, &Expr)| match at {
        Expr::Var(v) => loops.get(&v.id) == Some(&constant(dim)) && used.insert(v.id.0),
        at => constant(at) == Some(0) && constant(dim) == Some(1),
    };
    let all = indices.iter().zip(&program.buffer(buffer).shape).all(whole);
    *to == buffer && all && visit::loads(value).iter().all(|(b, _)| *b != buffer)
}

/// A store under loops.
struct Store {
    loops: Vec<(Var, i64)>,
    buffer: BufferId,
    indices: Vec<Expr>,
    value: Expr,
}

/// The stores in their order, each under loops of its own; none where a loop's values meet in what is written.
fn stores_of(program: &Program, stmt: &Stmt, loops: &mut Vec<(Var, i64)>, out: &mut Vec<Store>) -> Option<()> {
    match stmt {
        Stmt::For(l) => {
            loops.push((l.var.clone(), constant(&l.extent)?));
            stores_of(program, &l.body, loops, out)?;
            loops.pop();
            Some(())
        }
        Stmt::Seq(parts) => {
            let touched = Touched::of(program, stmt);
            // What one of them alone accesses is none of the others'.
            let shared = |b: BufferId| parts.iter().filter(|part| touches(part, b)).count() > 1;
            let apart = |(v, extent): &(Var, i64)| *extent == 1 || touched.apart_in(v.id, &shared);
            if parts.len() > 1 && !loops.iter().all(apart) {
                return None;
            }
            parts.iter().try_for_each(|s| stores_of(program, s, loops, out))
        }
        Stmt::Store { buffer, indices, value } => {
            let (indices, value) = (indices.clone(), value.clone());
            out.push(Store { loops: loops.clone(), buffer: *buffer, indices, value });
            Some(())
        }
        _ => None,
    }
}

impl Store {
    fn touches(&self, buffer: BufferId) -> bool {
        let loads = self.indices.iter().chain([&self.value]).flat_map(visit::loads);
        self.buffer == buffer || loads.into_iter().any(|(b, _)| b == buffer)
    }

    /// Whether an index tells the value of a loop.
    fn tells(&self, v: &Var) -> bool {
        self.indices.iter().any(|e| visit::uses_var(e, &|x| x == v.id))
    }

    /// Whether it adds up over some of its loops. None where the order of its instances is something to what it stores.
    fn check(&self, program: &Program) -> Option<bool> {
        let zero = || fold::int32(0);
        let of = |(v, extent): &(Var, i64)| (v.id, Range { min: zero(), extent: Expr::Int(*extent, v.dtype) });
        let spatial: Domains = self.loops.iter().filter(|(v, _)| self.tells(v)).map(of).collect();
        let at: Vec<Expr> = self.indices.iter().filter(|e| constant(e).is_none()).cloned().collect();
        let each_once = spatial.is_empty() || {
            let map = iter_map::detect(&at, &spatial, &Expr::Int(1, DType::Bool), true)?;
            map.is_injective(&spatial)
        };
        let own = visit::loads(&self.value).iter().all(|(b, at)| *b != self.buffer || *at == self.indices);
        let no_data = self.indices.iter().all(|e| visit::loads(e).is_empty());
        if !each_once || !own || !no_data {
            return None;
        }
        let reduces = self.loops.iter().any(|(v, extent)| *extent > 1 && !self.tells(v));
        let element = Expr::Load(self.buffer, self.indices.clone());
        let dtype = program.buffer(self.buffer).dtype;
        (!reduces || combined(&self.value, &element, dtype).is_some()).then_some(reduces)
    }

    /// Whether another stores a constant to the elements that this one adds up in, and nothing else.
    fn begins_with(&self, first: &Store) -> bool {
        let shape = |store: &Store| -> Option<Vec<Result<i64, i64>>> {
            let of = |e: &Expr| match e {
                Expr::Var(v) => store.loops.iter().find(|(l, _)| l.id == v.id).map(|(_, extent)| Ok(*extent)),
                e => constant(e).map(Err),
            };
            store.indices.iter().map(of).collect()
        };
        let all_told = first.loops.iter().all(|(v, extent)| *extent == 1 || first.tells(v));
        first.buffer == self.buffer
            && is_fixed(&first.value)
            && all_told
            && shape(first).is_some()
            && shape(first) == shape(self)
    }

    /// Its loops as iterators.
    fn iters(&self) -> Vec<IterVar> {
        let of = |(v, extent): &(Var, i64)| IterVar {
            var: Var { name: format!("v{}", v.name.trim_start_matches('v')).into(), ..v.clone() },
            min: Expr::Int(0, v.dtype),
            extent: Expr::Int(*extent, v.dtype),
            kind: if *extent == 1 || self.tells(v) { IterKind::Spatial } else { IterKind::Reduce },
        };
        self.loops.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::as_blocks;
    use crate::space::nests::{parts, touches};
    use crate::tree::all_realizes;
    use proptest::prelude::*;
    use satune_ir::{interp, tvmscript, BufferId, Program};

    const PARAMS: &str =
        "A: T.Buffer((4, 4), \"float32\"), B: T.Buffer((4, 4), \"float32\"), C: T.Buffer((4, 4), \"float32\"), \
                          V: T.Buffer((4,), \"float32\")";
    const OWN: &str = "S = T.alloc_buffer((1,), \"float32\", scope=\"local\")\nR = T.alloc_buffer((4,), \"float32\")\n";

    fn script(body: &str) -> String {
        let body: String = format!("{OWN}{body}").lines().map(|line| format!("    {line}\n")).collect();
        format!("@T.prim_func(s_tir=True)\ndef main({PARAMS}):\n{body}")
    }

    fn read(body: &str) -> Program {
        tvmscript::parse(&script(body)).unwrap()
    }

    /// Blocks of a program, in order: its name, its iterators and whether it has an init.
    fn told(program: &Program) -> Vec<String> {
        let of = |r: &satune_ir::BlockRealize| {
            let kinds: String = r.block.iter_vars.iter().map(|iv| iv.kind.letter()).collect();
            format!("{} {kinds}{}", r.block.name, if r.block.init.is_some() { " init" } else { "" })
        };
        all_realizes(&program.body.block.body).into_iter().map(of).collect()
    }

    const PRODUCT: &str = "for i, j in T.grid(4, 4):
    C[i, j] = T.float32(0)
    for k in range(4):
        C[i, j] = C[i, j] + A[i, k] * B[k, j]";
    /// The sums begin elsewhere, and k is the outermost loop.
    const APART: &str = "for i, j in T.grid(4, 4):
    C[i, j] = T.float32(0)
for k, i, j in T.grid(4, 4, 4):
    C[i, j] = C[i, j] + A[i, k] * B[k, j]";
    const SCALAR: &str = "for i in range(4):
    S[0] = T.float32(0)
    for k in range(4):
        S[0] = A[i, k] + S[0]
    V[i] = S[0]";
    const SOFTMAX: &str = "for i in range(4):
    S[0] = T.float32(0)
    for j in range(4):
        R[j] = T.exp(A[i, j])
        S[0] = S[0] + R[j]
    for j in T.vectorized(4):
        B[i, j] = R[j] / S[0]";
    /// A buffer that no loop around has elements for.
    const WHOLE: &str = "S[0] = T.float32(0)
for i in range(4):
    S[0] = S[0] + A[0, i]
V[0] = S[0]";
    /// A buffer of the block's own.
    const OWNED: &str = "with T.sblock(\"total\"):
    Q = T.sblock_alloc_buffer((1,), \"float32\", scope=\"local\")
    Q[0] = T.float32(0)
    for i in range(4):
        Q[0] = Q[0] + A[0, i]
    V[0] = Q[0]";
    /// Cleared by a block of its own.
    const CLEARED: &str = "for i in range(4):
    with T.sblock(\"V_init\"):
        vi = T.axis.spatial(4, i)
        V[vi] = T.float32(0)
for i, k in T.grid(4, 4):
    with T.sblock(\"V\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        V[vi] = V[vi] + A[vi, vk]";
    const NAMED: &str = "for i, j in T.grid(4, 4):
    x: T.float32 = A[i, j]
    y: T.float32 = x * x
    B[i, j] = x + y";
    const IN_BLOCK: &str = "for i in range(4):
    with T.sblock(\"rows\"):
        vi = T.axis.spatial(4, i)
        for j in range(1, 3):
            B[vi, j] = A[vi, j - 1] + A[vi, j + 1]";

    #[test]
    fn loops_are_those_of_blocks() {
        for (text, blocks) in [
            (PRODUCT, vec!["C SSR init"]),
            (APART, vec!["C RSS init"]),
            (SCALAR, vec!["S_each SR init", "V S"]),
            (SOFTMAX, vec!["R_each SS", "S_each SR init", "B SS"]),
            (IN_BLOCK, vec!["rows SS"]),
            (WHOLE, vec!["S R init", "V "]),
            (OWNED, vec!["total R init", "total_1 "]),
            (CLEARED, vec!["V SR init"]),
            (NAMED, vec!["B SS"]),
            ("V[2] = A[0, 0]", vec!["V "]),
        ] {
            let source = read(text);
            let made = as_blocks(&source);
            assert_eq!(told(&made), blocks, "{}", tvmscript::print(&made));
            interp::equal_on(&source, &made, 3).unwrap_or_else(|e| panic!("{e}\n{}", tvmscript::print(&made)));
            for (id, buffer) in (0..).map(BufferId).zip(&made.buffers) {
                let used = parts(&made).into_iter().any(|nest| touches(nest, id));
                let known = made.params.contains(&id) || made.body.block.alloc_buffers.contains(&id);
                assert!(!used || known && buffer.scope == "global", "{}", tvmscript::print(&made));
            }
        }
        assert!(crate::space::contraction(&as_blocks(&read(PRODUCT))).is_ok());
    }

    /// A scan, elements that meet, what is read from the iteration before, what is overwritten: none is a block whose instances may
    /// run in any order.
    #[test]
    fn what_depends_on_its_order_stays() {
        for text in [
            "for i in range(3):\n    V[i + 1] = V[i] + A[i, 0]",
            "for i, j in T.grid(4, 4):\n    V[i] = A[i, j]",
            "for i, j in T.grid(2, 3):\n    V[i + j] = A[i, j]",
            "for i, j in T.grid(4, 4):\n    C[i, j] = C[j, i] * T.float32(2)",
            "for i in range(4):\n    for j in range(4):\n        V[i] = V[i] - A[i, j]",
            "for i in range(3):\n    V[i] = A[i, 0]\n    B[i, 0] = V[i + 1]",
            "for i, j in T.grid(4, 4):\n    V[T.Cast(\"int32\", A[i, j])] = A[i, j]",
            "for i in range(4):\n    if A[i, 0] > T.float32(0):\n        V[i] = A[i, 1]",
            "for i in range(4):\n    x: T.float32 = V[i]\n    V[i] = A[i, 0]\n    B[i, 0] = x",
        ] {
            let source = read(text);
            assert_eq!(tvmscript::print(&as_blocks(&source)), tvmscript::print(&source));
        }
    }

    /// Choices, one after the other; the first where there are none left.
    struct Tape<'t>(&'t [u8]);

    impl Tape<'_> {
        fn below(&mut self, most: usize) -> usize {
            let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
            self.0 = rest;
            usize::from(*first) % most
        }

        fn index(&mut self, loops: &[&str]) -> String {
            match self.below(loops.len() + 1) {
                at if at < loops.len() => loops[at].to_string(),
                _ => self.below(4).to_string(),
            }
        }

        fn element(&mut self, loops: &[&str]) -> String {
            let name = ["A", "B", "C", "V", "S", "R"][self.below(6)];
            match name {
                "S" => "S[0]".into(),
                "V" | "R" => format!("{name}[{}]", self.index(loops)),
                _ => format!("{name}[{}, {}]", self.index(loops), self.index(loops)),
            }
        }

        fn store(&mut self, loops: &[&str]) -> String {
            let own = loop {
                let own = self.element(loops);
                if !own.starts_with('A') {
                    break own;
                }
                if self.0.is_empty() {
                    break "S[0]".into();
                }
            };
            let (a, b) = (self.element(loops), self.element(loops));
            let value = match self.below(6) {
                0 => "T.float32(0)".into(),
                1 => a,
                2 => format!("{own} + {a} * {b}"),
                3 => format!("T.max({a}, {own})"),
                4 => format!("{a} + {b}"),
                _ => format!("{own} * T.float32(3)"),
            };
            format!("{own} = {value}")
        }

        fn statements(&mut self, loops: &mut Vec<&'static str>, out: &mut String) {
            for _ in 0..1 + self.below(3) {
                let indent = "    ".repeat(loops.len());
                if loops.len() < 3 && self.below(5) < 3 {
                    let name = ["i", "j", "k"][loops.len()];
                    out.push_str(&format!("{indent}for {name} in range({}):\n", [4, 3, 1][self.below(3)]));
                    loops.push(name);
                    self.statements(loops, out);
                    loops.pop();
                } else if self.below(8) == 7 {
                    let asked = self.element(loops);
                    out.push_str(&format!("{indent}if {asked} > T.float32(0):\n{indent}    {}\n", self.store(loops)));
                } else {
                    out.push_str(&format!("{indent}{}\n", self.store(loops)));
                }
            }
        }
    }

    proptest! {
        /// Whatever stands in loops means the same as blocks, to the last bit.
        #[test]
        fn random_loops_mean_the_same(tape in prop::collection::vec(any::<u8>(), 10..60)) {
            let mut text = String::new();
            Tape(&tape).statements(&mut Vec::new(), &mut text);
            let source = read(&text);
            // Whole numbers are the same in whatever order they are added up.
            let whole = tvmscript::parse(&script(&text).replace("float32", "int32")).unwrap();
            for (source, made) in [(&source, as_blocks(&source)), (&whole, crate::space::explored(&whole))] {
                // What reads its own memory before it writes it means nothing.
                let runs = interp::random_inputs(source, 1).is_ok_and(|inputs| interp::run(source, &inputs).is_ok());
                if let Err(e) = if runs { interp::equal_on(source, &made, 1) } else { Ok(()) } {
                    prop_assert!(false, "{e}\n{text}\n{}", tvmscript::print(&made));
                }
            }
        }
    }
}
