//! Scans, each element of which is one more than the one before, as sums of parts.
//!
//! before                                       after
//!   X[i, 0] = A[i, 0]                            T[i, q] = T[i, q] + A[i, 16 q + l]                          init 0
//!   for j: X[i, j] = X[i, j - 1] + A[i, j]       E[i, q] = E[i, q] + (T[i, r] if r < q else 0)               init 0
//!                                                X[i, j] = X[i, j] + (E[i, q] if l == 0 else 0)              init 0
//!                                                                  + (A[i, 16 q + l] if l <= j % 16 else 0)   q = j // 16
//!
//! A scan has a thread for each row, which waits for each of its steps. Addition and multiplication are associative: the elements of a
//! part are added up, what stands before each part is a scan of these sums, and an element is that with what its own part has up to it.
//! Scans of sums are done likewise, until few are left. What becomes of it are sums of affine indices, which any kernels take. Its
//! elements are not added up in their order.
//!
//! Taken is one store of an element at the next place of a loop, of the element before it and of what does not read what is written:
//! with its first element stored before the loop or chosen in it, or kept in a scalar on the way. Each value of the other loops has
//! elements of its own.
use super::nests::{allocated, nest_over, parts, touches, unused};
use crate::reducer::number;
use crate::tree::all_realizes;
use satune_ir::affine::simplify::simplified;
use satune_ir::affine::{add, constant, int, mul, value_of, Domains};
use satune_ir::{
    fold, visit, BinOp, BufferId, DType, Expr, ForKind, IterKind, IterVar, Program, Range, Stmt, Var, VarId,
};
use std::collections::{BTreeSet, HashMap};

/// Elements of a scan that is worth it.
const LONG: i64 = 128;
/// Elements that are scanned at once.
const AT_ONCE: i64 = 64;
/// Lengths of parts, the best first.
const PARTS: [i64; 4] = [16, 32, 64, 48];

/// The same program with its scans as sums.
pub(super) fn as_sums(program: &Program) -> Program {
    let mut out = program.clone();
    let mut taken: BTreeSet<String> =
        all_realizes(&program.body.block.body).into_iter().map(|r| r.block.name.clone()).collect();
    let all = parts(program);
    let (mut made, mut at) = (Vec::new(), 0);
    while at < all.len() {
        // The first elements may have a nest of their own before it.
        let found = [2, 1].into_iter().filter(|count| at + count <= all.len()).find_map(|count| {
            let own = &all[at..at + count];
            let elsewhere = |b: BufferId| all[..at].iter().chain(&all[at + count..]).any(|part| touches(part, b));
            Some((count, Scan::of(program, own, &elsewhere)?))
        });
        match found {
            Some((count, scan)) => {
                for own in all[at..at + count].iter().flat_map(|part| all_realizes(part)) {
                    taken.remove(&own.block.name);
                }
                if let Some(scalar) = scan.scalar {
                    out.body.block.alloc_buffers.retain(|b| *b != scalar);
                }
                let mut sums = Sums { out: &mut out, taken: &mut taken, scan: &scan, nests: Vec::new() };
                sums.prefix(scan.target, &scan.index, Elements::of(&scan));
                made.extend(sums.nests);
                at += count;
            }
            None => {
                made.push(all[at].clone());
                at += 1;
            }
        }
    }
    if made.iter().ne(all) {
        *out.body.block.body = Stmt::seq(made);
    }
    out
}

/// Loops and stores, without the blocks around them.
enum Node {
    Loop(Var, i64, Vec<Node>),
    Store(BufferId, Vec<Expr>, Expr),
}

/// The loops and stores of a statement; none where there is anything else.
fn nodes(stmt: &Stmt, values: &HashMap<VarId, Expr>) -> Option<Vec<Node>> {
    let put = |e: &Expr| visit::substitute(e, values);
    match stmt {
        Stmt::For(l) => {
            let bound = matches!(l.kind, ForKind::ThreadBinding(_)) || !l.annotations.is_empty();
            let (min, extent) = (constant(&l.min)?, constant(&l.extent).filter(|n| *n > 0 && !bound)?);
            let mut inside = values.clone();
            if min != 0 {
                inside.insert(l.var.id, add(Expr::Var(l.var.clone()), int(min, l.var.dtype)));
            }
            Some(vec![Node::Loop(l.var.clone(), extent, nodes(&l.body, &inside)?)])
        }
        Stmt::Realize(r) => {
            let block = &r.block;
            let whole = constant(&r.predicate) == Some(1) && block.init.is_none() && block.match_buffers.is_empty();
            if !whole || !block.alloc_buffers.is_empty() {
                return None;
            }
            let mut inside = values.clone();
            inside.extend(block.iter_vars.iter().zip(&r.iter_values).map(|(iv, value)| (iv.var.id, put(value))));
            nodes(&block.body, &inside)
        }
        Stmt::Seq(list) => {
            let all: Option<Vec<Vec<Node>>> = list.iter().map(|s| nodes(s, values)).collect();
            Some(all?.into_iter().flatten().collect())
        }
        Stmt::Store { buffer, indices, value } => {
            Some(vec![Node::Store(*buffer, indices.iter().map(put).collect(), put(value))])
        }
        Stmt::If { cond, then, otherwise: Some(otherwise) } => {
            let [mut then, mut otherwise] = [nodes(then, values)?, nodes(otherwise, values)?];
            match (then.pop()?, otherwise.pop()?) {
                (Node::Store(a, at, x), Node::Store(b, same, y))
                    if (a, &at) == (b, &same) && then.is_empty() && otherwise.is_empty() =>
                {
                    Some(vec![Node::Store(a, at, Expr::if_then_else(put(cond), x, y))])
                }
                _ => None,
            }
        }
        Stmt::Let { var, value, body } => {
            let mut inside = values.clone();
            inside.insert(var.id, put(value));
            nodes(body, &inside)
        }
        Stmt::Evaluate(Expr::Int(..)) => Some(Vec::new()),
        Stmt::If { .. } | Stmt::Evaluate(_) => None,
    }
}

fn loads_of(e: &Expr, buffer: BufferId) -> usize {
    visit::loads(e).iter().filter(|(b, _)| *b == buffer).count()
}

/// A scan.
struct Scan {
    target: BufferId,
    /// Where element `j` is stored.
    index: Vec<Expr>,
    /// The other loops.
    outer: Vec<(Var, i64)>,
    /// The number of an element.
    j: Var,
    length: i64,
    op: BinOp,
    dtype: DType,
    /// What element `j` adds.
    element: Expr,
    /// Whether an element has what those before it add, and not what it adds itself: the last one's is not there.
    exclusive: bool,
    /// A scalar that it was kept in.
    scalar: Option<BufferId>,
    /// What its block is called.
    name: String,
}

impl Scan {
    fn of(program: &Program, parts: &[&Stmt], elsewhere: &dyn Fn(BufferId) -> bool) -> Option<Scan> {
        let mut all: Vec<Node> = Vec::new();
        for part in parts {
            all.extend(nodes(part, &HashMap::new())?);
        }
        let name = parts.last().and_then(|part| all_realizes(part).last().map(|r| r.block.name.clone()));
        let mut outer = Vec::new();
        let mut first_of_all = None;
        if let [Node::Loop(..), Node::Loop(..)] = &all[..] {
            let scan = all.pop();
            first_of_all = all.pop();
            all.extend(scan);
        }
        while let [Node::Loop(..)] = &all[..] {
            let Some(Node::Loop(var, extent, body)) = all.pop() else { return None };
            outer.push((var, extent));
            all = body;
        }
        let mut found = Found { program, outer, name };
        match (first_of_all, &mut all[..]) {
            (None, [Node::Store(target, at, value)]) => found.chosen(*target, at, value),
            (Some(first), [Node::Store(target, at, value)]) => {
                // Its loops are the other ones.
                let mut node = &first;
                let mut loops = Vec::new();
                while let Node::Loop(var, extent, body) = node {
                    loops.push((var.clone(), *extent));
                    node = if let [one] = &body[..] { one } else { return None };
                }
                let Node::Store(same, first_at, begin) = node else { return None };
                let scanned = found.scanned(*target, at, value)?;
                let own: Vec<(Var, i64)> = found.outer.iter().filter(|(v, _)| *v != scanned).cloned().collect();
                let extents = |list: &[(Var, i64)]| list.iter().map(|(_, n)| *n).collect::<Vec<_>>();
                if same != target || extents(&loops) != extents(&own) {
                    return None;
                }
                let map = loops.iter().zip(own).map(|((from, _), (to, _))| (from.id, Expr::Var(to))).collect();
                let put = |e: &Expr| visit::substitute(e, &map);
                let first_at: Vec<Expr> = first_at.iter().map(put).collect();
                found.begun(*target, (&first_at, &put(begin)), &scanned, (at, value))
            }
            (None, [Node::Store(first, first_at, begin), Node::Loop(k, steps, inner)]) => {
                found.outer.push((k.clone(), *steps));
                match &inner[..] {
                    [Node::Store(target, at, value)] if first == target => {
                        found.begun(*target, (first_at, begin), k, (at, value))
                    }
                    [Node::Store(a, a_at, a_value), Node::Store(b, b_at, b_value)] if first == a || first == b => {
                        let passed = program.body.block.alloc_buffers.contains(first) && !elsewhere(*first);
                        let both = [(*a, a_at, a_value), (*b, b_at, b_value)];
                        let kept = passed.then(|| found.kept((*first, first_at, begin), k, both));
                        kept.flatten()
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Loops around a store that may be a scan's.
struct Found<'p> {
    program: &'p Program,
    /// All of them, the one that scans among them.
    outer: Vec<(Var, i64)>,
    name: Option<String>,
}

impl Found<'_> {
    fn domains(&self) -> Domains {
        let range = |v: &Var, n: i64| Range { min: int(0, v.dtype), extent: int(n, v.dtype) };
        self.outer.iter().map(|(v, n)| (v.id, range(v, *n))).collect()
    }

    /// An expression with its indices in their shortest form.
    fn simple(&self, e: &Expr) -> Expr {
        visit::map_expr(e, &mut |e| match e {
            Expr::Load(b, at) => Expr::Load(b, self.indices(&at)),
            other => other,
        })
    }

    fn indices(&self, at: &[Expr]) -> Vec<Expr> {
        let domains = self.domains();
        at.iter().map(|index| simplified(index, &domains)).collect()
    }

    /// The same with another number of iterations of a loop.
    fn longer(&self, k: &Var, extent: i64) -> Found<'_> {
        let outer = self.outer.iter().map(|(v, n)| (v.clone(), if v == k { extent } else { *n })).collect();
        Found { program: self.program, outer, name: self.name.clone() }
    }

    /// The loop of which a store takes the element before.
    fn scanned(&self, target: BufferId, at: &[Expr], value: &Expr) -> Option<Var> {
        let at = self.indices(at);
        let (_, own) = visit::loads(&self.simple(value)).into_iter().find(|(b, _)| *b == target)?;
        let differ: Vec<&Expr> = at.iter().zip(&own).filter(|(x, y)| x != y).map(|(x, _)| x).collect();
        let [one] = differ[..] else { return None };
        self.outer.iter().map(|(v, _)| v).find(|v| visit::uses_var(one, &|x| x == v.id)).cloned()
    }

    /// The places of a store by its loops: the place of the loop that scans, and what is added to it. Each other loop has one, too.
    fn places(&self, at: &[Expr], k: &Var) -> Option<(usize, i64)> {
        let mut left: BTreeSet<VarId> = self.outer.iter().map(|(v, _)| v.id).collect();
        let mut scanned = None;
        for (dim, index) in at.iter().enumerate() {
            let (var, offset) = match index {
                Expr::Var(v) => (v, 0),
                Expr::Int(..) => continue,
                Expr::Binary(BinOp::Add, v, c) => match (&**v, &**c) {
                    (Expr::Var(v), Expr::Int(c, _)) => (v, *c),
                    _ => return None,
                },
                _ => return None,
            };
            if !left.remove(&var.id) {
                return None;
            }
            if var.id == k.id {
                scanned = Some((dim, offset));
            } else if offset != 0 {
                return None;
            }
        }
        scanned.filter(|_| left.is_empty())
    }

    /// Whether an index is that of a store, an element before it.
    fn is_before(&self, own: &[Expr], at: &[Expr], (dim, offset): (usize, i64), k: &Var) -> bool {
        let wanted = simplified(&next(k, offset - 1), &self.domains());
        own.iter().zip(at).enumerate().all(|(d, (x, y))| if d == dim { *x == wanted } else { x == y })
    }

    /// `own op rest` taken apart: the operation, and what is combined with the one operand that is `own`.
    fn step(value: &Expr, own: &dyn Fn(&Expr) -> bool) -> Option<(BinOp, Expr, Expr)> {
        let Expr::Binary(op @ (BinOp::Add | BinOp::Mul), ..) = value else { return None };
        fn operands<'e>(e: &'e Expr, op: BinOp, out: &mut Vec<&'e Expr>) {
            match e {
                Expr::Binary(same, a, b) if *same == op => {
                    operands(a, op, out);
                    operands(b, op, out);
                }
                other => out.push(other),
            }
        }
        let mut all = Vec::new();
        operands(value, *op, &mut all);
        let at = all.iter().position(|e| own(e))?;
        let taken = all.remove(at).clone();
        let rest = all.into_iter().cloned().reduce(|a, b| Expr::binary(*op, a, b))?;
        Some((*op, taken, rest))
    }

    /// A scan whose first element is chosen in the loop.
    fn chosen(&self, target: BufferId, at: &[Expr], value: &Expr) -> Option<Scan> {
        let (at, value) = (self.indices(at), self.simple(value));
        let k = self.scanned(target, &at, &value)?;
        let place = self.places(&at, &k).filter(|(_, offset)| *offset == 0)?;
        let own = |e: &Expr| matches!(e, Expr::Load(b, own) if *b == target && self.is_before(own, &at, place, &k));
        let (op, begin, element) = match &value {
            Expr::Select { .. } => {
                let (begin, next) = branches(&value, &k)?;
                let (op, _, element) = Found::step(next, &own)?;
                (op, begin.clone(), element)
            }
            sum => {
                let is_choice = |e: &Expr| matches!(e, Expr::Select { .. }) && loads_of(e, target) > 0;
                let (op, choice, element) = Found::step(sum, &is_choice)?;
                let (begin, _) = branches(&choice, &k).filter(|(_, next)| own(next))?;
                (op, Expr::binary(op, begin.clone(), element.clone()), element)
            }
        };
        let length = self.outer.iter().find(|(v, _)| *v == k)?.1;
        let begin = with(&begin, &k, int(0, k.dtype));
        self.made(target, at, k, (op, length), (begin, element))
    }

    /// A scan whose first element is stored before the loop, which stores the others.
    fn begun(
        &self,
        target: BufferId,
        (first_at, begin): (&[Expr], &Expr),
        k: &Var,
        (at, value): (&[Expr], &Expr),
    ) -> Option<Scan> {
        let (at, value) = (self.indices(at), self.simple(value));
        let place = self.places(&at, k).filter(|(_, offset)| *offset == 1)?;
        let own = |e: &Expr| matches!(e, Expr::Load(b, own) if *b == target && self.is_before(own, &at, place, k));
        let (op, _, element) = Found::step(&value, &own)?;
        let mut begins = at.clone();
        begins[place.0] = int(0, k.dtype);
        if self
            .indices(first_at)
            .iter()
            .zip(&begins)
            .any(|(x, y)| x != y && constant(x).zip(constant(y)).is_none_or(|(x, y)| x != y))
        {
            return None;
        }
        let steps = self.outer.iter().find(|(v, _)| v == k)?.1;
        let mut index = at;
        index[place.0] = Expr::Var(k.clone());
        // The loop adds the second element first.
        let element = with(&element, k, next(k, -1));
        let (element, begin) = (self.longer(k, steps + 1).simple(&element), self.simple(begin));
        self.made(target, index, k.clone(), (op, steps + 1), (begin, element))
    }

    /// A scan that a scalar keeps on the way.
    fn kept(
        &self,
        (scalar, scalar_at, begin): (BufferId, &[Expr], &Expr),
        k: &Var,
        [a, b]: [(BufferId, &Vec<Expr>, &Expr); 2],
    ) -> Option<Scan> {
        let is_scalar = |e: &Expr| matches!(e, Expr::Load(b, at) if *b == scalar && at == scalar_at);
        let after = a.0 == scalar;
        let (sum, store) = if after { (a, b) } else { (b, a) };
        if sum.0 != scalar || store.0 == scalar || sum.1 != scalar_at || !is_scalar(store.2) {
            return None;
        }
        let (at, value) = (self.indices(store.1), self.simple(sum.2));
        self.places(&at, k).filter(|(_, offset)| *offset == 0)?;
        let (op, _, element) = Found::step(&value, &is_scalar)?;
        let length = self.outer.iter().find(|(v, _)| v == k)?.1;
        let (begin, element) = match after {
            true => (Expr::binary(op, begin.clone(), with(&element, k, int(0, k.dtype))), element),
            false => (begin.clone(), self.simple(&with(&element, k, next(k, -1)))),
        };
        let scan = self.made(store.0, at, k.clone(), (op, length), (begin, element))?;
        (loads_of(&scan.element, scalar) == 0).then_some(Scan { scalar: Some(scalar), ..scan })
    }

    /// Of the first element what it is, of the others what they add.
    fn made(
        &self,
        target: BufferId,
        index: Vec<Expr>,
        k: Var,
        (op, length): (BinOp, i64),
        (begin, element): (Expr, Expr),
    ) -> Option<Scan> {
        let dtype = self.program.buffer(target).dtype;
        let numbers = dtype.is_float() || dtype.int_range().is_some();
        let typed = |e: &Expr| fold::dtype(e, &self.program.buffers) == dtype;
        let reads = loads_of(&begin, target) + loads_of(&element, target);
        if length < LONG || reads > 0 || !numbers || !typed(&begin) || !typed(&element) {
            return None;
        }
        let outer: Vec<(Var, i64)> = self.outer.iter().filter(|(v, _)| *v != k).cloned().collect();
        let neutral = neutral(op, dtype);
        // `0 + x` and `1 * x` are x.
        let bare = match &begin {
            Expr::Binary(same, a, b) if *same == op && **a == neutral => &**b,
            Expr::Binary(same, a, b) if *same == op && **b == neutral => &**a,
            other => other,
        };
        let uniform = self.simple(bare) == self.simple(&with(&element, &k, int(0, k.dtype)));
        let (element, exclusive) = match (uniform, *bare == neutral) {
            (true, _) => (element, false),
            // What element j adds is what the next one has.
            (false, true) => (self.longer(&k, length).simple(&with(&element, &k, next(&k, 1))), true),
            (false, false) => {
                let first = Expr::binary(BinOp::Eq, Expr::Var(k.clone()), int(0, k.dtype));
                (Expr::if_then_else(first, bare.clone(), element), false)
            }
        };
        let name = self.name.clone().unwrap_or_else(|| "scan".into());
        Some(Scan { target, index, outer, j: k, length, op, dtype, element, exclusive, scalar: None, name })
    }
}

/// Whether a condition holds for the first value of a loop and no other (true), or for all others (false).
fn first(cond: &Expr, k: &Var) -> Option<bool> {
    let Expr::Binary(BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge, a, b) = cond else {
        return None;
    };
    match (&**a, &**b) {
        (Expr::Var(v), Expr::Int(..)) | (Expr::Int(..), Expr::Var(v)) if v == k => {}
        _ => return None,
    }
    let holds = |value: i64| value_of(cond, &|_| Some(value));
    match [holds(0)?, holds(1)?, holds(2)?] {
        [1, 0, 0] => Some(true),
        [0, 1, 1] => Some(false),
        _ => None,
    }
}

/// What a choice is for the first value of a loop, and for the others.
fn branches<'e>(choice: &'e Expr, k: &Var) -> Option<(&'e Expr, &'e Expr)> {
    let Expr::Select { cond, then, otherwise, .. } = choice else { return None };
    Some(if first(cond, k)? { (then, otherwise) } else { (otherwise, then) })
}

/// An expression with something else in the place of a variable.
fn with(e: &Expr, k: &Var, value: Expr) -> Expr {
    visit::substitute(e, &HashMap::from([(k.id, value)]))
}

/// A variable, so much further.
fn next(k: &Var, by: i64) -> Expr {
    match by {
        0 => Expr::Var(k.clone()),
        by => add(Expr::Var(k.clone()), int(by, k.dtype)),
    }
}

fn neutral(op: BinOp, dtype: DType) -> Expr {
    number(i64::from(op == BinOp::Mul), dtype)
}

/// What is scanned.
struct Elements {
    /// By the scan's variables.
    element: Expr,
    length: i64,
    /// How many there are: the rest is nothing.
    valid: i64,
    exclusive: bool,
}

impl Elements {
    fn of(scan: &Scan) -> Elements {
        let Scan { element, length, exclusive, .. } = scan;
        let valid = length - i64::from(*exclusive);
        Elements { element: element.clone(), length: *length, valid, exclusive: *exclusive }
    }
}

/// The sums that a scan becomes.
struct Sums<'a> {
    out: &'a mut Program,
    taken: &'a mut BTreeSet<String>,
    scan: &'a Scan,
    nests: Vec<Stmt>,
}

impl Sums<'_> {
    fn neutral(&self) -> Expr {
        neutral(self.scan.op, self.scan.dtype)
    }

    fn op(&self, a: Expr, b: Expr) -> Expr {
        Expr::binary(self.scan.op, a, b)
    }

    fn number(&self, value: i64) -> Expr {
        int(value, self.scan.j.dtype)
    }

    /// Element number `at` of those that are less than `end`.
    fn element(&self, e: &Elements, at: &Expr, end: i64) -> Expr {
        let value = with(&e.element, &self.scan.j, at.clone());
        match end <= e.valid {
            true => value,
            false => {
                let there = Expr::binary(BinOp::Lt, at.clone(), self.number(e.valid));
                Expr::if_then_else(there, value, self.neutral())
            }
        }
    }

    fn iter(&mut self, name: &str, extent: i64, kind: IterKind) -> IterVar {
        let var = self.out.fresh_var(format!("v{name}"), self.scan.j.dtype);
        IterVar { var, min: self.number(0), extent: self.number(extent), kind }
    }

    /// A sum: over the rows and these iterators, what a step adds to the element of a buffer.
    fn sum(&mut self, name: &str, (target, index): (BufferId, Vec<Expr>), iters: [&IterVar; 2], added: Expr) {
        let name = unused(name, |name| self.taken.contains(name));
        self.taken.insert(name.clone());
        let rows = self.scan.outer.iter().enumerate().map(|(number, (var, extent))| IterVar {
            var: Var { name: format!("vi{number}").as_str().into(), ..var.clone() },
            min: int(0, var.dtype),
            extent: int(*extent, var.dtype),
            kind: IterKind::Spatial,
        });
        let iters: Vec<IterVar> = rows.chain(iters.into_iter().cloned()).collect();
        let store = |value: Expr| Stmt::Store { buffer: target, indices: index.clone(), value };
        let before = Expr::Load(target, index.clone());
        let (init, body) = (store(self.neutral()), store(self.op(before, added)));
        let nest = nest_over(self.out, name, &iters, Some(init), body);
        self.nests.push(nest);
    }

    /// A buffer with so many elements for each row.
    fn buffer(&mut self, what: &str, extent: i64) -> BufferId {
        let name = format!("{}_{what}", self.out.buffer(self.scan.target).name);
        let rows = self.scan.outer.iter().map(|(var, n)| int(*n, var.dtype));
        let shape = rows.chain([self.number(extent)]).collect();
        allocated(self.out, &name, self.scan.dtype, shape)
    }

    fn row(&self, at: Expr) -> Vec<Expr> {
        self.scan.outer.iter().map(|(var, _)| Expr::Var(var.clone())).chain([at]).collect()
    }

    /// The scan of elements, into the places of a buffer that are said by the scan's variables.
    fn prefix(&mut self, target: BufferId, index: &[Expr], e: Elements) {
        let name =
            if target == self.scan.target { self.scan.name.clone() } else { self.out.buffer(target).name.clone() };
        let up_to = if e.exclusive { BinOp::Lt } else { BinOp::Le };
        let j = IterVar { var: self.scan.j.clone(), ..self.iter("j", e.length, IterKind::Spatial) };
        let number = Expr::Var(j.var.clone());
        let j = IterVar { var: Var { name: "vj".into(), ..j.var.clone() }, ..j };
        if e.length <= AT_ONCE {
            let l = self.iter("l", e.length, IterKind::Reduce);
            let at = Expr::Var(l.var.clone());
            let there = Expr::binary(up_to, at.clone(), number);
            let added = Expr::select(there, self.element(&e, &at, e.length), self.neutral());
            return self.sum(&name, (target, index.to_vec()), [&j, &l], added);
        }
        let length = PARTS.into_iter().find(|n| e.length % n == 0).unwrap_or(PARTS[0]);
        let parts = (e.length + length - 1) / length;
        let end = parts * length;
        let [of_parts, before] = ["parts", "before"].map(|what| self.buffer(what, parts));
        let [q, l] = [("q", parts, IterKind::Spatial), ("l", length, IterKind::Reduce)]
            .map(|(name, extent, kind)| self.iter(name, extent, kind));
        let at = add(mul(Expr::Var(q.var.clone()), self.number(length)), Expr::Var(l.var.clone()));
        let (name_of_parts, place) = (self.out.buffer(of_parts).name.clone(), self.row(Expr::Var(q.var.clone())));
        let added = self.element(&e, &at, end);
        self.sum(&name_of_parts, (of_parts, place), [&q, &l], added);
        let element = Expr::Load(of_parts, self.row(number.clone()));
        let own = self.row(number.clone());
        self.prefix(before, &own, Elements { element, length: parts, valid: parts, exclusive: true });
        // An element has what stands before its part, and what its part has up to it.
        let part = Expr::binary(BinOp::FloorDiv, number.clone(), self.number(length));
        let place = Expr::binary(BinOp::FloorMod, number, self.number(length));
        let begin = mul(part.clone(), self.number(length));
        let l = self.iter("l", length, IterKind::Reduce);
        let step = Expr::Var(l.var.clone());
        let mut first = self.element(&e, &begin, end);
        if e.exclusive {
            first = Expr::select(Expr::binary(up_to, self.number(0), place.clone()), first, self.neutral());
        }
        let with_before = self.op(Expr::Load(before, self.row(part)), first);
        let there = Expr::binary(up_to, step.clone(), place);
        let next = Expr::select(there, self.element(&e, &add(begin, step.clone()), end), self.neutral());
        let added = Expr::select(Expr::binary(BinOp::Eq, step, self.number(0)), with_before, next);
        self.sum(&name, (target, index.to_vec()), [&j, &l], added);
    }
}

#[cfg(test)]
mod tests {
    use super::as_sums;
    use satune_ir::{interp, tvmscript, Program};

    fn program(body: &str, shape: &str) -> Program {
        let body: String = body.trim().lines().map(|line| format!("    {line}\n")).collect();
        tvmscript::parse(&format!(
            "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main(A: T.Buffer({shape}, \"int32\"), B: T.Buffer({shape}, \"int32\")):\n{body}"
        ))
        .unwrap_or_else(|e| panic!("{e}\n{body}"))
    }

    /// Ways to write the scan of rows of `n` elements.
    fn ways(n: i64) -> Vec<String> {
        let last = n - 1;
        let chosen = |value: &str| {
            format!("for i, j in T.grid(3, {n}):\n    with T.sblock(\"scan\"):\n        vi = T.axis.spatial(3, i)\n        vj = T.axis.opaque({n}, j)\n        B[vi, vj] = {value}\n")
        };
        let kept = |begin: &str, steps: &str| {
            format!("s = T.sblock_alloc_buffer((1,), \"int32\", scope=\"local\")\nfor i in range(3):\n    s[0] = {begin}\n    for j in range({n}):\n{steps}")
        };
        vec![
            chosen("T.if_then_else(vj == 0, A[vi, vj], B[vi, vj - 1] + A[vi, vj])"),
            chosen("T.if_then_else(vj > 0, B[vi, vj - 1], 0) + A[vi, vj] * A[vi, vj]"),
            chosen("A[vi, vj] + T.if_then_else(vj < 1, 5, B[vi, vj - 1])"),
            chosen("T.if_then_else(vj == 0, A[vi, 7], B[vi, vj - 1] * A[vi, vj])"),
            format!("for i in range(3):\n    B[i, 0] = A[i, 0]\n    for j in range({last}):\n        B[i, j + 1] = B[i, j] + A[i, j + 1]\n"),
            format!("for i in range(3):\n    B[i, 0] = 1\n    for j in range({last}):\n        B[i, j + 1] = A[i, j] * B[i, j]\n"),
            format!("for i in range(3):\n    B[i, 0] = 2\n    for j in range({last}):\n        B[i, j + 1] = A[i, j + 1] + B[i, j] + A[i, j]\n"),
            format!("for i in range(3):\n    B[i, 0] = A[i, 1]\nfor i, j in T.grid(3, {last}):\n    B[i, j + 1] = B[i, j] + A[i, j + 1]\n"),
            format!("for f in T.parallel(3):\n    B[f * {n} // {n}, f * {n} % {n}] = A[f * {n} // {n}, f * {n} % {n}]\n    for j in range({last}):\n        B[(f * {n} + (j + 1)) // {n}, (f * {n} + (j + 1)) % {n}] = B[(f * {n} + j) // {n}, (f * {n} + j) % {n}] + A[(f * {n} + (j + 1)) // {n}, (f * {n} + (j + 1)) % {n}]\n"),
            kept("0", "        s[0] = s[0] + A[i, j]\n        B[i, j] = s[0]\n"),
            kept("A[i, 3]", "        s[0] = s[0] + A[i, j]\n        B[i, j] = s[0]\n"),
            kept("0", "        B[i, j] = s[0]\n        s[0] = s[0] + A[i, j]\n"),
            kept("A[i, 3]", "        B[i, j] = s[0]\n        s[0] = A[i, j] + s[0]\n"),
        ]
    }

    #[test]
    fn every_way_to_write_a_scan_is_taken_and_means_the_same() {
        // Whole parts or not, of one level and of two.
        for n in [128, 131, 2080, 2100] {
            for (way, body) in ways(n).iter().enumerate() {
                let source = program(body, &format!("(3, {n})"));
                let sums = as_sums(&source);
                assert_ne!(source.body.block.body, sums.body.block.body, "{body}");
                if let Err(difference) = interp::equal_on(&source, &sums, way as u64) {
                    panic!("{difference}\n{body}\n{}", tvmscript::print(&sums));
                }
            }
        }
    }

    #[test]
    fn columns_are_scanned_as_rows_are() {
        let source = program(
            "for t, i in T.grid(150, 5):\n    with T.sblock(\"scan\"):\n        vt = T.axis.scan(150, t)\n        vi = T.axis.spatial(5, i)\n        B[vt, vi] = T.if_then_else(vt == 0, A[vt, vi], B[vt - 1, vi] + A[vt, vi])\n",
            "(150, 5)",
        );
        let sums = as_sums(&source);
        assert_ne!(source.body.block.body, sums.body.block.body);
        interp::equal_on(&source, &sums, 1).unwrap();
    }

    #[test]
    fn one_row_is_scanned_as_several_are() {
        for body in [
            "B[0] = A[0]\nfor j in range(199):\n    B[j + 1] = B[j] + A[j + 1]\n",
            "s = T.sblock_alloc_buffer((1,), \"int32\", scope=\"local\")\ns[0] = 0\nfor j in range(200):\n    s[0] = s[0] + A[j]\n    B[j] = s[0]\n",
        ] {
            let source = program(body, "(200,)");
            let sums = as_sums(&source);
            assert_ne!(source.body.block.body, sums.body.block.body, "{body}");
            interp::equal_on(&source, &sums, 1).unwrap();
        }
    }

    #[test]
    fn what_is_no_scan_stays() {
        let row = |begin: &str, next: &str| {
            format!(
                "for i in range(3):\n    B[i, 0] = {begin}\n    for j in range(199):\n        B[i, j + 1] = {next}\n"
            )
        };
        for body in [
            // A recurrence; a step that reads what is written; another operation; two elements before; fewer elements.
            row("A[i, 0]", "B[i, j] * A[i, j] + A[i, j + 1]"),
            row("A[i, 0]", "B[i, j] + B[i, 0] * A[i, j + 1]"),
            row("A[i, 0]", "B[i, j] - A[i, j + 1]"),
            row("A[i, 0]", "A[i, j + 1] - B[i, j]"),
            row("A[i, 0]", "B[i, j] + B[i, j]"),
            row("B[i, 1]", "B[i, j] + A[i, j + 1]"),
            row("A[i, 0]", "B[i, j] + A[i, j + 1]").replace("B[i, 0] =", "B[i, 2] ="),
            row("A[i, 0]", "B[i, j] + A[i, j + 1]").replace("199", "99"),
            // All rows in one, and one row again and again.
            "for i, j in T.grid(3, 199):\n    B[0, j + 1] = B[0, j] + A[i, j]\n".into(),
            "for i in range(3):\n    B[0, 0] = A[i, 0]\n    for j in range(199):\n        B[0, j + 1] = B[0, j] + A[i, j + 1]\n".into(),
            // A scalar that is read afterwards.
            "s = T.sblock_alloc_buffer((1,), \"int32\", scope=\"local\")\ns[0] = 0\nfor j in range(200):\n    s[0] = s[0] + A[0, j]\n    B[0, j] = s[0]\nB[1, 0] = s[0]\n".into(),
            // Choices that are of another element.
            "for i, j in T.grid(3, 200):\n    with T.sblock(\"scan\"):\n        vi = T.axis.spatial(3, i)\n        vj = T.axis.opaque(200, j)\n        B[vi, vj] = T.if_then_else(vj == 0 or vj == 9, A[vi, vj], B[vi, T.max(vj - 1, 0)] + A[vi, vj])\n".into(),
            "for i, j in T.grid(3, 200):\n    with T.sblock(\"scan\"):\n        vi = T.axis.spatial(3, i)\n        vj = T.axis.opaque(200, j)\n        B[vi, vj] = T.if_then_else(vi == 0, A[vi, vj], B[vi - 1, vj] + A[vi, vj])\n".into(),
        ] {
            let source = program(&body, "(3, 200)");
            assert_eq!(source.body.block.body, as_sums(&source).body.block.body, "{body}");
        }
    }
}
