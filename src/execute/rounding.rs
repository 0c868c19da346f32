//! How much rounding may change each element of a result, whatever the order of sums, and whether a compiler rounds a product and
//! its sum once or twice.
//!
//! A program is made that computes, in `f64`, beside each value how far from it a value of the program's own types may be:
//!
//! ```text
//!   C = A * B                    C = A * B,      C_error = |A| B_error + |B| A_error + A_error B_error + u (|C| + ...)
//!   S = S + x, n times           S = S + x,      S_error = S_error + x_error + (n + 2) u (|x| + x_error)
//!   y = exp(x)                   y = exp(x),     y_error = the most that exp changes within x_error, and 16 u of it
//! ```
//! with the unit of roundoff u of the type. Both the interpreter's element and a kernel's are within that of the value without
//! rounding. A bound that is too wide hides an error; none is too narrow: what outgrows its type, or is divided by what may be 0,
//! has a bound beyond [`BEYOND`], which says nothing. A whole number that is made of a float has one, too:
//!
//! ```text
//!   q = int(x)                   q = int(x),     q_error = the most that int changes within x_error; beyond the type, nothing
//! ```
//! There is no such program at all where rounded values become indices or conditions of statements, where reductions are other than
//! sums, minima and maxima, and for functions that are not monotone, but for sine and cosine.
mod whole;

pub(super) use whole::bounds_of_whole_numbers;
pub(crate) use whole::of_whole_numbers;

use crate::agreement::{smallest, unit, EXACT, FUNCTION};
use satune_ir::affine::constant;
use satune_ir::interp::{self, in_double, Array, Fault};
use satune_ir::{
    fold, fp8, visit, BinOp, BlockRealize, Buffer, BufferId, DType, Expr, For, IterKind, Program, Region, Stmt, Var,
    VarId,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A bound from which on nothing is known.
pub(super) const BEYOND: f64 = 1e250;
/// The bound of what nothing is known of: beyond [`BEYOND`] also after a product with, or a quotient by, a single.
const NOTHING: f64 = 1e300;
/// Most nodes of the sides of a choice of which only one may be evaluated: nothing in them is computed before, and so all is
/// computed again wherever it is used.
const LAZY: usize = 12;

/// The program in `f64` that has, after the parameters of the given one, the bound of each float that it writes, and of each whole
/// number that is made of one: of the parameters of which `bounded` gives the positions.
pub(super) struct Bounds {
    pub program: Program,
    pub bounded: Vec<usize>,
    /// How many values are computed where the given program computes one, at most.
    pub values: u64,
}

impl Bounds {
    /// The bounds of each of the parameters `bounded`, given what all parameters hold.
    ///
    /// # Errors
    /// What the interpreter says of the program.
    pub fn run(&self, inputs: &[Array], max_steps: u64, go_on: &dyn Fn() -> bool) -> Result<Vec<Array>, Fault> {
        let none = self.bounded.iter().filter_map(|p| inputs.get(*p)).map(Array::zeros);
        let inputs: Vec<Array> = inputs.iter().map(Array::in_double).chain(none).collect();
        let options = interp::Options { max_steps, ..interp::Options::default() };
        let mut all = interp::run_while(&self.program, &inputs, &options, go_on)?;
        Ok(all.split_off(all.len() - self.bounded.len()))
    }
}

/// See [`Bounds`]; none where there is none.
pub(super) fn bounds(program: &Program) -> Option<Bounds> {
    let mut written = BTreeSet::new();
    visit::walk_stmt(&program.body.block.body, &mut |s| {
        if let Stmt::Store { buffer, .. } = s {
            written.insert(*buffer);
        }
    });
    let wide = in_double(program);
    let mut maker = Maker {
        program,
        out: wide.clone(),
        errors: HashMap::new(),
        vars: HashMap::new(),
        lets: Vec::new(),
        values: 1,
        lazy: false,
    };
    for b in written {
        if program.buffers.get(b.0 as usize)?.dtype.is_float() {
            maker.rounds(b);
        }
    }
    while let Some(whole) = maker.made_of_rounded() {
        maker.rounds(whole);
    }
    maker.out.body = maker.realize(&program.body, &wide.body)?;
    let of = |(at, p): (usize, &BufferId)| Some((at, *maker.errors.get(p)?));
    let (bounded, errors): (Vec<usize>, Vec<BufferId>) = program.params.iter().enumerate().filter_map(of).unzip();
    maker.out.params.extend(errors);
    Some(Bounds { program: maker.out, bounded, values: maker.values })
}

/// A value without rounding, and its bound.
type Pair = (Expr, Expr);

struct Maker<'p> {
    program: &'p Program,
    out: Program,
    /// The bounds of buffers.
    errors: HashMap<BufferId, BufferId>,
    /// The bounds of bound values.
    vars: HashMap<VarId, Expr>,
    /// What is computed before the statement.
    lets: Vec<(Var, Expr)>,
    /// How many of these a statement has, at most.
    values: u64,
    /// Whether only one side of a choice is evaluated.
    lazy: bool,
}

impl Maker<'_> {
    /// A buffer has bounds.
    fn rounds(&mut self, b: BufferId) {
        let buffer = self.program.buffer(b);
        let error = Buffer { name: format!("{}_error", buffer.name), dtype: DType::F64, ..buffer.clone() };
        let error = self.out.add_buffer(error);
        self.errors.insert(b, error);
    }

    /// A block with the bounds of what it stores; `wide`: its form in `f64`.
    fn realize(&mut self, given: &BlockRealize, wide: &BlockRealize) -> Option<BlockRealize> {
        (self.exact(&given.predicate) && given.iter_values.iter().all(|e| self.exact(e))).then_some(())?;
        given.block.match_buffers.is_empty().then_some(())?;
        let mut out = wide.clone();
        let block = &mut out.block;
        for regions in [&mut block.reads, &mut block.writes] {
            let of = |r: &Region| Some(Region { buffer: *self.errors.get(&r.buffer)?, ranges: r.ranges.clone() });
            let errors: Vec<Region> = regions.iter().filter_map(of).collect();
            regions.extend(errors);
        }
        let own: Vec<BufferId> = block.alloc_buffers.iter().filter_map(|b| self.errors.get(b)).copied().collect();
        block.alloc_buffers.extend(own);
        if let (Some(given), Some(wide)) = (&given.block.init, &wide.block.init) {
            block.init = Some(self.stmt(given, wide)?.into());
        }
        let reduces = given.block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce);
        let rounded = reduces && self.stores_rounded(&given.block.body);
        let (given_body, wide_body) = (&given.block.body, &wide.block.body);
        block.body = match rounded {
            true => self.reduction(given, given_body, wide_body)?.into(),
            false => self.stmt(given_body, wide_body)?.into(),
        };
        Some(out)
    }

    fn stores_rounded(&self, stmt: &Stmt) -> bool {
        let mut found = false;
        visit::walk_stmt(stmt, &mut |s| {
            found |= matches!(s, Stmt::Store { buffer, .. } if self.errors.contains_key(buffer));
        });
        found
    }

    /// `S = S + x`, or a minimum or maximum, in any order.
    fn reduction(&mut self, r: &BlockRealize, given: &Stmt, wide: &Stmt) -> Option<Stmt> {
        let (Stmt::Store { buffer, indices, value }, Stmt::Store { indices: at, value: wide_value, .. }) =
            (given, wide)
        else {
            return None;
        };
        let own = |e: &Expr| matches!(e, Expr::Load(b, i) if b == buffer && i == indices);
        let (Expr::Binary(op, a, b), Expr::Binary(_, wide_a, wide_b)) = (value, wide_value) else { return None };
        let (term, wide_term) = match (own(a), own(b), op) {
            (true, false, BinOp::Add | BinOp::Sub | BinOp::Min | BinOp::Max) => (b, wide_b),
            (false, true, BinOp::Add | BinOp::Min | BinOp::Max) => (a, wide_a),
            _ => return None,
        };
        let apart = visit::loads(term).iter().all(|(b, _)| b != buffer);
        (apart && indices.iter().all(|e| self.exact(e))).then_some(())?;
        let reduced = r.block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce);
        let terms = reduced.map(|iv| constant(&iv.extent)).try_fold(1.0, |n, extent| Some(n * extent? as f64))?;
        let (x, error) = self.pair(term, wide_term)?;
        let dtype = self.program.buffer(*buffer).dtype;
        let x = self.bind_as(x, dtype);
        let of = |b: BufferId| Expr::Load(b, at.clone());
        let (sum, sums) = (*buffer, *self.errors.get(buffer)?);
        let bound = match op {
            BinOp::Min | BinOp::Max => larger(of(sums), error),
            _ if !dtype.is_float() => self.bounded(plus(of(sums), error)),
            _ => {
                let rounds = number((terms + 2.0) * unit(self.program.buffer(sum).dtype));
                let own = times(rounds, plus(magnitude(x.clone()), error.clone()));
                self.bounded(plus(of(sums), plus(error, own)))
            }
        };
        Some(self.stored([(sum, binary(*op, of(sum), x)), (sums, bound)], at))
    }

    /// The stores to one place, all values computed before.
    fn stored(&mut self, stores: [(BufferId, Expr); 2], at: &[Expr]) -> Stmt {
        let stores = stores.map(|(buffer, value)| {
            let value = self.bind_as(value, self.out.buffer(buffer).dtype);
            Stmt::Store { buffer, indices: at.to_vec(), value }
        });
        let body = Stmt::seq(stores.into());
        self.let_around(body)
    }

    /// What was bound since, around a statement.
    fn let_around(&mut self, stmt: Stmt) -> Stmt {
        let lets = std::mem::take(&mut self.lets);
        self.values = self.values.max(lets.len() as u64);
        lets.into_iter().rev().fold(stmt, |body, (var, value)| Stmt::Let { var, value, body: body.into() })
    }

    fn stmt(&mut self, given: &Stmt, wide: &Stmt) -> Option<Stmt> {
        Some(match (given, wide) {
            (Stmt::For(l), Stmt::For(wide)) => {
                (self.exact(&l.min) && self.exact(&l.extent)).then_some(())?;
                Stmt::For(For { body: self.stmt(&l.body, &wide.body)?.into(), ..wide.clone() })
            }
            (Stmt::Realize(r), Stmt::Realize(wide)) => Stmt::Realize(self.realize(r, wide)?.into()),
            (Stmt::Seq(parts), Stmt::Seq(wide)) => {
                let parts = parts.iter().zip(wide).map(|(part, wide)| self.stmt(part, wide));
                Stmt::seq(parts.collect::<Option<Vec<_>>>()?)
            }
            (
                Stmt::If { cond, then, otherwise },
                Stmt::If { cond: wide_cond, then: wide_then, otherwise: wide_otherwise },
            ) => {
                self.exact(cond).then_some(())?;
                let then = self.stmt(then, wide_then)?.into();
                let otherwise = match (otherwise, wide_otherwise) {
                    (Some(given), Some(wide)) => Some(self.stmt(given, wide)?.into()),
                    _ => None,
                };
                Stmt::If { cond: wide_cond.clone(), then, otherwise }
            }
            (Stmt::Store { buffer, indices, value }, Stmt::Store { indices: at, value: wide_value, .. }) => {
                indices.iter().all(|e| self.exact(e)).then_some(())?;
                let Some(error) = self.errors.get(buffer).copied() else {
                    return self.exact(value).then(|| wide.clone());
                };
                let (new, bound) = self.pair(value, wide_value)?;
                self.stored([(*buffer, new), (error, bound)], at)
            }
            (Stmt::Let { var, value, body }, Stmt::Let { var: wide_var, value: wide_value, body: wide_body }) => {
                if !var.dtype.is_float() {
                    self.exact(value).then_some(())?;
                    let body = self.stmt(body, wide_body)?.into();
                    return Some(Stmt::Let { var: wide_var.clone(), value: wide_value.clone(), body });
                }
                let (new, bound) = self.pair(value, wide_value)?;
                let bound = self.bind(bound);
                self.lets.push((wide_var.clone(), new));
                self.vars.insert(var.id, bound);
                let lets = std::mem::take(&mut self.lets);
                let body = self.stmt(body, wide_body)?;
                self.lets = lets;
                self.let_around(body)
            }
            (Stmt::Evaluate(Expr::Int(..)), wide) => wide.clone(),
            _ => return None,
        })
    }

    /// Whether an expression has one value, whatever is rounded how: none that was rounded is in it, and nothing rounds.
    fn exact(&self, e: &Expr) -> bool {
        let mut exact = true;
        visit::walk_expr(e, &mut |e| {
            exact &= match e {
                Expr::Load(b, _) => !self.errors.contains_key(b),
                Expr::Var(v) => self.vars.get(&v.id).is_none_or(is_zero),
                Expr::Binary(BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div, ..) | Expr::Cast(..) => {
                    !self.dtype(e).is_float()
                }
                Expr::Call(name, _, t) => !t.is_float() || EXACT.contains(&short(name)),
                _ => true,
            };
        });
        exact
    }

    fn dtype(&self, e: &Expr) -> DType {
        fold::dtype(e, &self.program.buffers)
    }

    /// A name for a value in `f64`; itself, where it is one already, or must not be computed before.
    fn bind(&mut self, e: Expr) -> Expr {
        self.bind_as(e, DType::F64)
    }

    /// A name for a value that is of a type in the given program.
    fn bind_as(&mut self, e: Expr, dtype: DType) -> Expr {
        let dtype = if dtype.is_float() { DType::F64 } else { dtype };
        if self.lazy || matches!(e, Expr::Var(_) | Expr::Float(..) | Expr::Int(..)) {
            return e;
        }
        let var = self.out.fresh_var("x", dtype);
        self.lets.push((var.clone(), e));
        Expr::Var(var)
    }

    /// A bound that may be no number, as [`BEYOND`] then.
    fn bounded(&mut self, bound: Expr) -> Expr {
        if is_zero(&bound) {
            return bound;
        }
        let bound = self.bind(bound);
        choice(binary(BinOp::Le, bound.clone(), number(BEYOND)), bound, number(NOTHING))
    }

    /// A value of a type with the bound that it has from its operands, and by its own rounding.
    fn rounded(&mut self, value: Expr, from: Expr, (dtype, units): (DType, f64)) -> Pair {
        let value = self.bind(value);
        let size = plus(magnitude(value.clone()), from.clone());
        let size = self.bind(size);
        // Instructions of functions may leave out what is below the least normal number.
        let least = if units > 1.0 { smallest(dtype) / unit(dtype) } else { smallest(dtype) };
        let own = plus(times(number(units * unit(dtype)), size.clone()), number(least));
        let own = choice(binary(BinOp::Le, size, number(largest(dtype))), own, number(NOTHING));
        let bound = self.bounded(plus(from, own));
        (value, self.bind(bound))
    }

    /// The value of an expression, and its bound.
    fn pair(&mut self, given: &Expr, wide: &Expr) -> Option<Pair> {
        let dtype = self.dtype(given);
        if !dtype.is_float() {
            return match (given, wide) {
                _ if self.exact(given) => Some((wide.clone(), number(0.0))),
                (Expr::Load(b, at), Expr::Load(_, wide_at)) => self.loaded(*b, [at, wide_at]),
                _ if dtype == DType::Bool => self.decided(given, wide),
                _ => self.whole(given, wide, dtype),
            };
        }
        Some(match (given, wide) {
            (Expr::Int(..) | Expr::Float(..), _) => (wide.clone(), number(0.0)),
            (Expr::Load(b, at), Expr::Load(_, wide_at)) => self.loaded(*b, [at, wide_at])?,
            (Expr::Var(v), _) => (wide.clone(), self.vars.get(&v.id).cloned().unwrap_or(number(0.0))),
            (Expr::Binary(op, a, b), Expr::Binary(_, wide_a, wide_b)) => {
                let (a, b) = (self.pair(a, wide_a)?, self.pair(b, wide_b)?);
                self.operation(*op, a, b, dtype)?
            }
            (Expr::Cast(_, a), Expr::Cast(_, wide_a)) => {
                let from = self.dtype(a);
                let (value, bound) = self.pair(a, wide_a)?;
                if !from.is_float() {
                    self.rounded(Expr::Cast(DType::F64, value.into()), bound, (dtype, 1.0))
                } else if holds(dtype, from) {
                    (value, bound)
                } else {
                    self.rounded(value, bound, (dtype, 1.0))
                }
            }
            (
                Expr::Select { lazy, cond, then, otherwise },
                Expr::Select { cond: wide_cond, then: wide_then, otherwise: wide_otherwise, .. },
            ) => self.choice(*lazy, [(cond, wide_cond), (then, wide_then), (otherwise, wide_otherwise)])?,
            (Expr::Call(name, args, _), Expr::Call(_, wide_args, _)) => self.call((name, dtype), args, wide_args)?,
            _ => return None,
        })
    }

    /// An element, and its bound.
    fn loaded(&mut self, b: BufferId, [at, wide_at]: [&Vec<Expr>; 2]) -> Option<Pair> {
        at.iter().all(|e| self.exact(e)).then_some(())?;
        let bound = self.errors.get(&b).map(|error| Expr::Load(*error, wide_at.clone()));
        let value = self.bind_as(Expr::Load(b, wide_at.clone()), self.program.buffer(b).dtype);
        Some((value, bound.map_or(number(0.0), |bound| self.bind(bound))))
    }

    fn operation(&mut self, op: BinOp, (a, of_a): Pair, (b, of_b): Pair, dtype: DType) -> Option<Pair> {
        let (a, b) = (self.bind(a), self.bind(b));
        let value = self.bind(binary(op, a.clone(), b.clone()));
        let from = match op {
            BinOp::Add | BinOp::Sub => plus(of_a, of_b),
            BinOp::Mul => {
                let each = plus(times(magnitude(a), of_b.clone()), times(magnitude(b), of_a.clone()));
                plus(each, times(of_a, of_b))
            }
            BinOp::Div => {
                let over = plus(of_a, times(magnitude(value.clone()), of_b.clone()));
                let below = self.bind(less(magnitude(b), of_b));
                match is_zero(&over) {
                    true => over,
                    false => {
                        let positive = binary(BinOp::Gt, below.clone(), number(0.0));
                        choice(positive, binary(BinOp::Div, over, below), number(NOTHING))
                    }
                }
            }
            BinOp::Min | BinOp::Max => return Some((value, larger(of_a, of_b))),
            _ => return None,
        };
        let from = self.bounded(from);
        let from = self.bind(from);
        Some(self.rounded(value, from, (dtype, 1.0)))
    }

    /// One of two values: where rounding may choose the other one, as far as that is away.
    fn choice(&mut self, lazy: bool, [cond, then, otherwise]: [(&Arc<Expr>, &Arc<Expr>); 3]) -> Option<Pair> {
        let dtype = self.dtype(then.0);
        let unsure = self.unsure(cond.0, cond.1)?;
        let (then, otherwise) = match lazy {
            false => (self.pair(then.0, then.1)?, self.pair(otherwise.0, otherwise.1)?),
            true => {
                let mut nodes = 0;
                [then.0, otherwise.0].into_iter().for_each(|e| visit::walk_expr(e, &mut |_| nodes += 1));
                (nodes <= LAZY).then_some(())?;
                let before = std::mem::replace(&mut self.lazy, true);
                let sides = self.pair(then.0, then.1).zip(self.pair(otherwise.0, otherwise.1));
                self.lazy = before;
                sides?
            }
        };
        let one = |then: Expr, otherwise: Expr| Expr::Select {
            lazy,
            cond: cond.1.clone(),
            then: then.into(),
            otherwise: otherwise.into(),
        };
        let apart = match lazy {
            true => number(NOTHING),
            false => {
                let (a, b) = (self.bind(in_f64(&then.0, dtype)), self.bind(in_f64(&otherwise.0, dtype)));
                let apart = plus(magnitude(binary(BinOp::Sub, a, b)), larger(then.1.clone(), otherwise.1.clone()));
                self.bounded(apart)
            }
        };
        let value = self.bind_as(one(then.0, otherwise.0), dtype);
        let both_zero = is_zero(&then.1) && is_zero(&otherwise.1);
        let bound = if both_zero { number(0.0) } else { one(then.1, otherwise.1) };
        let bound = match unsure {
            Some(unsure) => choice(unsure, apart, bound),
            None => bound,
        };
        Some((value, self.bind(bound)))
    }

    /// Whether rounding may decide a condition; the inner none: never. None where that cannot be told.
    #[allow(clippy::option_option)]
    fn unsure(&mut self, given: &Expr, wide: &Expr) -> Option<Option<Expr>> {
        if self.exact(given) {
            return Some(None);
        }
        match (given, wide) {
            (Expr::Not(a), Expr::Not(wide_a)) => self.unsure(a, wide_a),
            (Expr::Binary(BinOp::And | BinOp::Or, a, b), Expr::Binary(_, wide_a, wide_b)) => {
                let (a, b) = (self.unsure(a, wide_a)?, self.unsure(b, wide_b)?);
                Some(match (a, b) {
                    (Some(a), Some(b)) => Some(binary(BinOp::Or, a, b)),
                    (a, b) => a.or(b),
                })
            }
            (Expr::Load(b, at), Expr::Load(_, wide_at)) => {
                self.loaded(*b, [at, wide_at]).map(|(_, bound)| Some(binary(BinOp::Gt, bound, number(0.0))))
            }
            (Expr::Binary(op, given_a, given_b), Expr::Binary(_, wide_a, wide_b)) if fold::is_condition(*op) => {
                let (a, b) = (self.pair(given_a, wide_a)?, self.pair(given_b, wide_b)?);
                if is_zero(&a.1) && is_zero(&b.1) {
                    return Some(None);
                }
                let [x, y] = [(given_a, a.0), (given_b, b.0)].map(|(e, x)| in_f64(&x, self.dtype(e)));
                let near = magnitude(binary(BinOp::Sub, x, y));
                let far = binary(BinOp::Gt, near, plus(a.1, b.1));
                Some(Some(Expr::Not(far.into())))
            }
            _ => None,
        }
    }

    fn call(&mut self, (name, dtype): (&str, DType), args: &[Expr], wide: &[Expr]) -> Option<Pair> {
        let pairs: Vec<Pair> = args.iter().zip(wide).map(|(a, wide)| self.pair(a, wide)).collect::<Option<_>>()?;
        let of = |args: Vec<Expr>| Expr::Call(name.into(), args, DType::F64);
        let name = short(name);
        match (name, &pairs[..]) {
            ("likely", [pair]) => Some(pair.clone()),
            ("abs" | "fabs", [(a, bound)]) => Some((magnitude(a.clone()), bound.clone())),
            ("fma", [a, b, c]) => {
                let product = self.operation(BinOp::Mul, a.clone(), b.clone(), dtype)?;
                self.operation(BinOp::Add, product, c.clone(), dtype)
            }
            ("sin" | "cos", [(a, bound)]) => Some(self.rounded(of(vec![a.clone()]), bound.clone(), (dtype, FUNCTION))),
            (known, [(a, bound)]) if EXACT.contains(&known) || MONOTONE.contains(&known) => {
                let (a, bound) = (self.bind(a.clone()), self.bind(bound.clone()));
                let value = self.bind(of(vec![a.clone()]));
                let from = match is_zero(&bound) {
                    true => bound,
                    false => {
                        let end = |op| {
                            magnitude(binary(BinOp::Sub, of(vec![binary(op, a.clone(), bound.clone())]), value.clone()))
                        };
                        let (up, down) = (end(BinOp::Add), end(BinOp::Sub));
                        let (up, down) = (self.bounded(up), self.bounded(down));
                        let most = larger(up, down);
                        self.bind(most)
                    }
                };
                match EXACT.contains(&known) {
                    true => Some((value, from)),
                    false => Some(self.rounded(value, from, (dtype, FUNCTION))),
                }
            }
            _ => None,
        }
    }
}

/// Functions that rise or fall everywhere; and the hyperbolic cosine, which rises the faster the farther it is from 0.
const MONOTONE: [&str; 20] = [
    "exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf", "sigmoid",
];

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Whether a type has all values of another one.
fn holds(dtype: DType, other: DType) -> bool {
    dtype == other || dtype == DType::F64 || dtype == DType::F32 && other != DType::F64
}

/// The largest number of a type.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(half::bf16::MAX),
        DType::F8E4M3 => fp8::E4M3.largest,
        DType::F8E5M2 => fp8::E5M2.largest,
        _ => f64::from(f32::MAX),
    }
}

/// A value of a type of the given program in `f64`, which its floats are in already.
fn in_f64(e: &Expr, dtype: DType) -> Expr {
    if dtype.is_float() {
        e.clone()
    } else {
        Expr::Cast(DType::F64, e.clone().into())
    }
}

fn number(value: f64) -> Expr {
    Expr::Float(value.to_bits(), DType::F64)
}

fn is_zero(e: &Expr) -> bool {
    matches!(e, Expr::Float(0, _))
}

fn binary(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, a.into(), b.into())
}

fn choice(cond: Expr, then: Expr, otherwise: Expr) -> Expr {
    Expr::Select { lazy: false, cond: cond.into(), then: then.into(), otherwise: otherwise.into() }
}

fn magnitude(e: Expr) -> Expr {
    Expr::Call("fabs".into(), vec![e], DType::F64)
}

fn plus(a: Expr, b: Expr) -> Expr {
    match (is_zero(&a), is_zero(&b)) {
        (true, _) => b,
        (_, true) => a,
        _ => binary(BinOp::Add, a, b),
    }
}

fn less(a: Expr, b: Expr) -> Expr {
    if is_zero(&b) {
        return a;
    }
    binary(BinOp::Sub, a, b)
}

fn times(a: Expr, b: Expr) -> Expr {
    match is_zero(&a) || is_zero(&b) {
        true => number(0.0),
        false => binary(BinOp::Mul, a, b),
    }
}

fn larger(a: Expr, b: Expr) -> Expr {
    match (is_zero(&a), is_zero(&b)) {
        (true, _) => b,
        (_, true) => a,
        _ => binary(BinOp::Max, a, b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satune_ir::interp::run;
    use satune_ir::tvmscript;

    /// The bounds of `C` and of its f64 values, where `A` is f32, of four elements of four values each.
    fn of(body: &str, a: &[f64; 16]) -> Option<Vec<(f64, f64)>> {
        of_type("float32", body, a)
    }

    /// The same where `C` is of a type.
    fn of_type(dtype: &str, body: &str, a: &[f64; 16]) -> Option<Vec<(f64, f64)>> {
        let body: String = body.lines().map(|line| format!("    {line}\n")).collect();
        let text = format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((4, 4), \"float32\"), C: T.Buffer((4,), \"{dtype}\")):\n{body}"
        );
        let program = tvmscript::parse(&text).unwrap();
        let made = bounds(&program)?;
        assert_eq!(made.bounded, [1], "{text}");
        let result = program.buffer(program.params[1]).dtype;
        let inputs = [
            Array::from_f64(DType::F64, &[4, 4], a).unwrap(),
            Array::unwritten(if result.is_float() { DType::F64 } else { result }, &[4]).unwrap(),
            Array::unwritten(DType::F64, &[4]).unwrap(),
        ];
        let out = run(&made.program, &inputs).unwrap();
        Some(out[1].to_f64().into_iter().zip(out[2].to_f64()).collect())
    }

    #[test]
    fn whole_numbers_move_where_rounding_takes_them_over_an_end() {
        let of = |dtype: &str, value: &str, a: f64| of_type(dtype, &map(value), &[a; 16]).unwrap()[2];
        // 0.1 * 30 is near 3, 0.1 * 33 is not.
        assert_eq!(of("int8", "T.Cast(\"int8\", A[vi, 0] * T.float32(0.1))", 30.0).1, 1.0);
        assert_eq!(of("int8", "T.Cast(\"int8\", A[vi, 0] * T.float32(0.1))", 33.0), (3.0, 0.0));
        assert_eq!(of("int8", "T.Cast(\"int8\", T.round(A[vi, 0] * T.float32(0.1)))", 35.0).1, 1.0);
        // What the number is used in moves with it, up to the ends of its type.
        let twice = "T.Cast(\"int16\", T.Cast(\"int8\", A[vi, 0] * T.float32(0.1))) * T.int16(2) + T.int16(1)";
        assert_eq!(of("int16", twice, 30.0).1, 2.0);
        assert!(of("int8", "T.Cast(\"int8\", A[vi, 0] * T.float32(0.1))", 1280.0).1 >= BEYOND);
        let clipped =
            "T.Cast(\"int8\", T.max(T.min(T.round(A[vi, 0] * A[vi, 1] + A[vi, 2]), T.float32(127)), T.float32(-128)))";
        assert_eq!(of("int8", clipped, 100.0), (127.0, 0.0));
        assert!(of("int8", clipped, 1e30).1 >= BEYOND);
        // And so do comparisons.
        let compared = "A[vi, 0] * T.float32(0.1) > T.float32(0.3)";
        assert_eq!((of("bool", compared, 3.0).1, of("bool", compared, 4.0)), (1.0, (1.0, 0.0)));
        let chosen = "T.Select(A[vi, 0] * T.float32(0.1) > T.float32(0.3), 7, -7)";
        assert_eq!((of("int32", chosen, 3.0).1, of("int32", chosen, 4.0)), (14.0, (7.0, 0.0)));
        // And what is made of them by way of a buffer.
        let mask = |a: f64, value: &str| {
            let mask = map(compared).replace("\"C\"", "\"M\"").replace("C[vi]", "M[vi]");
            let body = format!("M = T.sblock_alloc_buffer((4,), \"bool\")\n{mask}\n{}", map(value));
            of_type("int32", &body, &[a; 16]).unwrap()[2]
        };
        let scaled = "T.Cast(\"int32\", M[vi]) * 5";
        assert_eq!((mask(3.0, scaled).1, mask(4.0, scaled)), (5.0, (5.0, 0.0)));
        let kept = "T.Select(M[vi], 3, 1)";
        assert_eq!((mask(3.0, kept).1, mask(4.0, kept)), (2.0, (3.0, 0.0)));
    }

    fn map(value: &str) -> String {
        format!(
            "for i in range(4):\n    with T.sblock(\"C\"):\n        vi = T.axis.spatial(4, i)\n        C[vi] = {value}"
        )
    }

    const U: f64 = 1.0 / 16_777_216.0;

    #[test]
    fn each_element_has_a_bound_of_its_own() {
        let mut a = [0.1; 16];
        (a[0], a[1]) = (1e30, 1e30);
        let product = of(&map("A[vi, 0] * A[vi, 1] - A[vi, 2]"), &a).unwrap();
        // What outgrows its type says nothing; the others are rounded twice, or once.
        assert!(product[0].1 >= BEYOND && (0.1 * U..0.3 * U).contains(&product[1].1), "{product:?}");
        let quotient = of(&map("A[vi, 0] / (A[vi, 1] * A[vi, 2] + T.float32(1))"), &a).unwrap();
        assert!((U * 0.1..U).contains(&quotient[1].1), "{quotient:?}");
        // By what may be 0.
        let nothing = of(&map("T.float32(1) / (A[vi, 1] * A[vi, 2] - A[vi, 3] * T.float32(0.1))"), &a).unwrap();
        assert!(nothing[1].1 >= BEYOND, "{nothing:?}");
        // A function, near its value: it is off by its own units, and by what its argument is.
        let function = |value: &str| of(&map(value), &[3.0; 16]).unwrap()[1];
        let (plain, far) = (function("T.exp(A[vi, 0])"), function("T.exp(A[vi, 0] * A[vi, 1])"));
        assert!((16.0 * U * 20.0..17.0 * U * 21.0).contains(&plain.1), "{plain:?}");
        assert!((25.0 * U * 8103.0..26.0 * U * 8104.0).contains(&far.1), "{far:?}");
        assert!(function("T.log(A[vi, 0])").1 < 20.0 * U);
    }

    #[test]
    fn sums_have_a_bound_in_any_order() {
        let sum = |update: &str, start: &str, after: &str| {
            format!(
                "S = T.sblock_alloc_buffer((4,))\nfor i, j in T.grid(4, 4):\n    with T.sblock(\"S\"):\n        vi, vj = \
                 T.axis.remap(\"SR\", [i, j])\n        with T.init():\n            S[vi] = {start}\n        S[vi] = {update}\n{}",
                map(after)
            )
        };
        let mut a = [0.1; 16];
        (a[0], a[1]) = (1e4, -1e4);
        let plain = of(&sum("S[vi] + A[vi, vj]", "T.float32(0)", "S[vi]"), &a).unwrap();
        // What cancels is off by as much as what it is made of.
        assert!(
            (6.0 * 2e4 * U..6.1 * 2e4 * U).contains(&plain[0].1) && (2.4 * U..2.5 * U).contains(&plain[1].1),
            "{plain:?}"
        );
        let rows = of(&sum("S[vi] + T.exp(A[vi, vj])", "T.float32(0)", "A[vi, 0] / S[vi]"), &[1.0; 16]).unwrap();
        assert!((16.0 * U * 0.09..32.0 * U * 0.1).contains(&rows[2].1), "{rows:?}");
        let most =
            of(&sum("T.max(S[vi], A[vi, vj])", "T.min_value(\"float32\")", "A[vi, 0] - S[vi]"), &[1.0; 16]).unwrap();
        assert!(most[0].1 < 1e-40 && most[0].0 == 0.0, "{most:?}");
        // Products in another order outgrow their type elsewhere.
        assert!(of(&sum("S[vi] * A[vi, vj]", "T.float32(1)", "S[vi]"), &a).is_none());
    }

    #[test]
    fn choices_that_rounding_makes_are_as_far_off_as_their_sides() {
        let choice = |value: &str| of(&map(value), &[3.0; 16]).unwrap()[1].1;
        // An input decides.
        assert!(choice("T.Select(A[vi, 0] > T.float32(2), A[vi, 1], T.float32(7))") == 0.0);
        let (near, far) = ("A[vi, 0] * T.float32(0.1)", "A[vi, 0] * T.float32(0.2)");
        let chosen = |by: &str| choice(&format!("T.Select({by} > T.float32(0.3), A[vi, 1], T.float32(7))"));
        assert!(chosen(near) >= 4.0 && chosen(near) < 4.1 && chosen(far) < U, "{} {}", chosen(near), chosen(far));
        let lazy = |by: &str| choice(&format!("T.if_then_else({by} > T.float32(0.3), A[vi, 1], T.float32(7))"));
        assert!(lazy(near) >= BEYOND && lazy(far) < U);
        // A whole number jumps, by 1 where it may.
        let whole = "T.Cast(\"float32\", T.Cast(\"int32\", A[vi, 0] * T.float32(0.1)))";
        assert!(choice(whole) < U && of(&map(whole), &[30.0; 16]).unwrap()[1].1 > 0.9);
        assert!(of(&map("T.tan(A[vi, 0])"), &[3.0; 16]).is_none());
    }
}
