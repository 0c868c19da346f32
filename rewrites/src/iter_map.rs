//! Iter-map detection: are indices a mixed-radix recombination of loop variables, and which?
//!
//! An index is written as `base + Σ scale · ((mark // lower) % extent)`, where a *mark* is a loop variable or a fused sum
//! of such terms. The terms of all indices together are independent when the parts taken of each mark do not overlap.
use crate::arith::{add, constant, floor_div, floor_mod, int, mul, Domains};
use crate::linear::Linear;
use satune_ir::affine::index_type;
use satune_ir::{visit, BinOp, DType, Expr, Range};
use std::sync::Arc;

mod inverse;
pub mod subspace;
#[cfg(test)]
mod tests;

/// `scale · ((mark // lower) % extent)`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    mark: usize,
    lower: i64,
    extent: i64,
    scale: i64,
}

/// `scale · ((var // lower) % extent)`, of a loop from 0 on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopDigit<'m> {
    /// The loop variable, less its least value.
    pub var: &'m Expr,
    /// What its values are divided by.
    pub lower: i64,
    /// Number of values.
    pub extent: i64,
    /// What they are multiplied with.
    pub scale: i64,
}

/// `base + Σ terms`.
#[derive(Clone, Debug)]
struct Sum {
    terms: Vec<Term>,
    base: Expr,
}

#[derive(Clone, Debug)]
enum Source {
    Var(Expr),
    Sum(Vec<Term>),
}

#[derive(Clone, Debug)]
struct Mark {
    source: Source,
    /// Number of values, after constraints.
    extent: i64,
    /// Number of values that its parts were taken of, where a part did not divide it.
    padded: i64,
}

/// Indices taken apart.
#[derive(Clone, Debug)]
pub struct IterMap {
    marks: Vec<Mark>,
    constraints: Vec<usize>,
    /// Digits of a mark that a predicate bounds: `i % 32 < 30`.
    digits: Vec<(Term, i64)>,
    sums: Vec<Sum>,
    keep_unit: bool,
}

/// Takes indices apart over the variables of `domains` under a predicate. None where they are no surjective map.
pub fn detect(indices: &[Expr], domains: &Domains, predicate: &Expr, keep_unit: bool) -> Option<IterMap> {
    taken_apart(indices, domains, predicate, keep_unit).filter(IterMap::independent)
}

/// The same for indices that need not be independent of each other.
pub fn taken_apart(indices: &[Expr], domains: &Domains, predicate: &Expr, keep_unit: bool) -> Option<IterMap> {
    let mut map =
        IterMap { marks: Vec::new(), constraints: Vec::new(), digits: Vec::new(), sums: Vec::new(), keep_unit };
    map.constrain(predicate, domains)?;
    for e in indices {
        let sum = map.rewrite(e, domains)?;
        let sum = map.fused(sum)?;
        map.sums.push(sum);
    }
    Some(map)
}

/// Whether a part of a mark takes all its values beside all of the digit's others, where the digit is less than `limit`: of
/// `i % 32 < 30` the parts `i % 32 // 2` and `i % 2` do, and `i % 32 // 4` does not.
fn whole_parts(digit: &Term, limit: i64, part: &Term) -> bool {
    let end = |t: &Term| t.lower.saturating_mul(t.extent);
    if part.mark != digit.mark || part.extent == 1 || end(part) <= digit.lower || end(digit) <= part.lower {
        return true;
    }
    let inside = part.lower % digit.lower == 0 && end(part) <= end(digit);
    let below = if end(part) == end(digit) { part.lower } else { end(part) };
    inside && limit % (below / digit.lower) == 0
}

impl IterMap {
    /// Whether every index is a run of consecutive values.
    pub fn has_unit_strides(&self) -> bool {
        self.sums.iter().all(|s| s.terms.first().is_none_or(|t| t.scale == 1))
    }

    /// Whether every index is made of whole digits of single loops: no digit of a sum of several loops, and none that a guard
    /// or a padding cuts.
    pub fn is_of_digits(&self) -> bool {
        self.constraints.is_empty()
            && self.digits.is_empty()
            && (0..self.sums.len()).all(|index| self.loop_digits(index).is_some())
    }

    /// The whole digits of single loops that an index is the sum of, beside its base, as far as no predicate bounds them.
    pub fn loop_digits(&self, index: usize) -> Option<Vec<LoopDigit<'_>>> {
        let mut out = Vec::new();
        self.sums.get(index)?.terms.iter().all(|t| self.digits_of(t, &mut out)).then_some(out)
    }

    fn digits_of<'m>(&'m self, t: &Term, out: &mut Vec<LoopDigit<'m>>) -> bool {
        let mark = &self.marks[t.mark];
        let Some(end) = t.lower.checked_mul(t.extent) else { return false };
        if mark.padded != mark.extent {
            return false;
        }
        let parts = match &mark.source {
            Source::Var(var) => {
                out.push(LoopDigit { var, lower: t.lower, extent: t.extent, scale: t.scale });
                return true;
            }
            Source::Sum(parts) => parts,
        };
        // The digit's part in each of the sum's terms is a digit of that term.
        parts.iter().all(|p| {
            let Some(last) = p.scale.checked_mul(p.extent) else { return false };
            let (from, to) = (t.lower.max(p.scale), end.min(last));
            if from >= to {
                return true;
            }
            let whole = from % p.scale == 0 && to % p.scale == 0 && to % from == 0 && last % to == 0;
            let (lower, scale) = (p.lower.checked_mul(from / p.scale), t.scale.checked_mul(from / t.lower));
            let part = lower.zip(scale).map(|(lower, scale)| Term { mark: p.mark, lower, extent: to / from, scale });
            whole && part.is_some_and(|part| self.digits_of(&part, out))
        })
    }

    /// Whether every index, taken with `extents[i]` consecutive values from it on, fills an interval.
    pub fn fills(&self, extents: &[i64]) -> bool {
        self.sums.iter().zip(extents).all(|(s, e)| s.terms.first().is_none_or(|t| t.scale <= *e))
    }

    /// Number of values of an index.
    pub fn extent_of(&self, index: usize) -> Option<i64> {
        let sum = self.sums.get(index)?;
        sum.terms.iter().try_fold(1i64, |most, t| Some(most.max(t.extent.checked_mul(t.scale)?)))
    }

    /// The constant part of an index, where it is a number.
    pub fn base_of(&self, index: usize) -> Option<i64> {
        constant(&self.sums.get(index)?.base)
    }

    /// The indices in normal form.
    pub fn indices(&self) -> Vec<Expr> {
        self.sums.iter().map(|s| self.expr(s)).collect()
    }

    fn mark(&mut self, source: Source, extent: i64) -> usize {
        let same = |m: &Mark| match (&m.source, &source) {
            (Source::Var(a), Source::Var(b)) => a == b,
            (Source::Sum(a), Source::Sum(b)) => a == b,
            _ => false,
        };
        self.marks.iter().position(same).unwrap_or_else(|| {
            self.marks.push(Mark { source, extent, padded: extent });
            self.marks.len() - 1
        })
    }

    fn rewrite(&mut self, e: &Expr, domains: &Domains) -> Option<Sum> {
        if !visit::uses_var(e, &|v| domains.contains_key(&v)) {
            let base = Linear::of(e, &Domains::new()).map_or_else(|| e.clone(), |l| l.expr());
            return Some(Sum { terms: Vec::new(), base });
        }
        match e {
            Expr::Var(v) => {
                let Range { min, extent } = domains.get(&v.id)?;
                let (lo, extent) = (constant(min)?, constant(extent)?);
                let base = int(lo, v.dtype);
                if extent == 1 && !self.keep_unit {
                    return Some(Sum { terms: Vec::new(), base });
                }
                let mark = self.mark(Source::Var(less(e, lo, v.dtype)), extent);
                let extent = self.marks[mark].extent;
                Some(Sum { terms: vec![Term { mark, lower: 1, extent, scale: 1 }], base })
            }
            Expr::Binary(BinOp::Add, a, b) => {
                let (a, b) = (self.rewrite(a, domains)?, self.rewrite(b, domains)?);
                combined(a, b, 1)
            }
            Expr::Binary(BinOp::Sub, a, b) => {
                let (a, b) = (self.rewrite(a, domains)?, self.rewrite(b, domains)?);
                combined(a, b, -1)
            }
            Expr::Binary(BinOp::Mul, a, b) => {
                let (sum, c) = match (constant(a), constant(b)) {
                    (_, Some(c)) => (self.rewrite(a, domains)?, c),
                    (Some(c), _) => (self.rewrite(b, domains)?, c),
                    _ => return None,
                };
                combined(Sum { terms: Vec::new(), base: int(0, DType::I32) }, sum, c)
            }
            Expr::Binary(op @ (BinOp::FloorDiv | BinOp::FloorMod), a, b) => {
                let c = constant(b).filter(|c| *c > 0)?;
                let sum = self.rewrite(a, domains)?;
                self.part(*op, sum, c)
            }
            _ => None,
        }
    }

    /// `sum // c` or `sum % c`.
    fn part(&mut self, op: BinOp, sum: Sum, c: i64) -> Option<Sum> {
        let base = constant(&sum.base)?;
        if base % c != 0 {
            return None;
        }
        let mut out =
            Sum { terms: Vec::new(), base: int(if op == BinOp::FloorDiv { base / c } else { 0 }, DType::I32) };
        let zero = || int(0, DType::I32);
        // One term that stays below c: whatever guards sums that it is a part of, its quotient is 0.
        if let [t] = &sum.terms[..] {
            if t.scale > 0 && t.extent.checked_sub(1)?.checked_mul(t.scale)? < c {
                out.terms.extend((op == BinOp::FloorMod).then(|| t.clone()));
                return Some(out);
            }
        }
        let rest = match self.fused(Sum { terms: sum.terms.clone(), base: zero() }) {
            Some(fused) if fused.terms.first().is_none_or(|t| t.scale % c != 0) => fused,
            _ => {
                // What is a multiple of c passes through a division, and vanishes in a remainder.
                let (whole, rest): (Vec<Term>, Vec<Term>) = sum.terms.into_iter().partition(|t| t.scale % c == 0);
                if op == BinOp::FloorDiv {
                    out.terms.extend(whole.iter().map(|t| Term { scale: t.scale / c, ..t.clone() }));
                }
                self.fused(Sum { terms: rest, base: zero() })?
            }
        };
        let Some(t) = rest.terms.first() else { return Some(out) };
        if c % t.scale != 0 || t.scale <= 0 {
            return None;
        }
        let c = c / t.scale;
        if t.extent <= c {
            if op == BinOp::FloorMod {
                out.terms.push(t.clone());
            }
        } else {
            if t.extent % c != 0 {
                // Only the highest part of a mark can be padded, and all parts must agree on how far.
                let mark = &mut self.marks[t.mark];
                let end = t.lower.checked_mul(t.extent)?;
                let padded = t.lower.checked_mul(t.extent.checked_add(c - 1)? / c)?.checked_mul(c)?;
                if end != mark.padded && (end != mark.extent || padded != mark.padded) {
                    return None;
                }
                mark.padded = padded;
            }
            out.terms.push(match op {
                BinOp::FloorDiv => {
                    Term { lower: t.lower.checked_mul(c)?, extent: (t.extent + c - 1) / c, scale: 1, ..t.clone() }
                }
                _ => Term { extent: c, ..t.clone() },
            });
        }
        Some(out)
    }

    /// The sum with all its terms fused into one, in mixed radix. None where they are not such.
    fn fused(&mut self, mut sum: Sum) -> Option<Sum> {
        // First of all: a guard of `f // 3` says nothing about a sum of `f // 3 * 3 + f % 3`, which is f.
        join_parts(&mut sum.terms)?;
        for i in 0..self.constraints.len() {
            self.use_constraint(self.constraints[i], &mut sum.terms)?;
        }
        join_parts(&mut sum.terms)?;
        if sum.terms.len() <= 1 {
            return Some(sum);
        }
        sum.terms.sort_by_key(|t| std::cmp::Reverse((t.scale, t.extent)));
        let unit = sum.terms.last()?.scale;
        if unit <= 0 {
            return None;
        }
        let mut next = unit;
        for t in sum.terms.iter().rev() {
            // A loop of one iteration fits anywhere.
            if t.extent == 1 {
                continue;
            }
            if t.scale != next {
                return None;
            }
            next = next.checked_mul(t.extent)?;
        }
        let terms = sum.terms.iter().map(|t| Term { scale: t.scale / unit, ..t.clone() }).collect();
        let extent = next / unit;
        let mark = self.mark(Source::Sum(terms), extent);
        let extent = self.marks[mark].extent.min(extent);
        Some(Sum { terms: vec![Term { mark, lower: 1, extent, scale: unit }], base: sum.base })
    }

    /// Replaces the terms of a constrained sum, where `terms` has all of them at one common factor. None where it has the
    /// lowest of them without the others.
    fn use_constraint(&self, mark: usize, terms: &mut Vec<Term>) -> Option<()> {
        let Source::Sum(parts) = &self.marks[mark].source else { return Some(()) };
        let same = |a: &Term, b: &Term| a.mark == b.mark && a.lower == b.lower && a.extent == b.extent;
        let first = parts.last()?;
        let Some(factor) = terms.iter().find(|t| same(t, first)).map(|t| t.scale / first.scale) else {
            return Some(());
        };
        let is_part = |t: &Term| parts.iter().any(|p| same(p, t) && p.scale.checked_mul(factor) == Some(t.scale));
        if terms.iter().filter(|t| is_part(t)).count() < parts.len() {
            // The lowest part of a guarded sum takes other values in its last round.
            return None;
        }
        terms.retain(|t| !is_part(t));
        terms.push(Term { mark, lower: 1, extent: self.marks[mark].extent, scale: factor });
        Some(())
    }

    /// Takes a conjunction of `sum < constant` into account, smaller sums first. None for other predicates; conditions on
    /// none of the variables let all of them run, or none.
    fn constrain(&mut self, predicate: &Expr, domains: &Domains) -> Option<()> {
        let mut clauses = Vec::new();
        conjuncts(predicate, &mut clauses);
        clauses.retain(|e| visit::uses_var(e, &|v| domains.contains_key(&v)));
        clauses.sort_by_key(|e| size(e));
        clauses.into_iter().try_for_each(|e| self.constrain_one(e, domains))
    }

    fn constrain_one(&mut self, clause: &Expr, domains: &Domains) -> Option<()> {
        match clause {
            Expr::Int(1, _) => Some(()),
            Expr::Binary(op @ (BinOp::Lt | BinOp::Le), a, b) => {
                let sum = self.rewrite(a, domains)?;
                let sum = self.fused(sum)?;
                let limit = constant(b)?.checked_sub(constant(&sum.base)?)?;
                let limit = if *op == BinOp::Le { limit.checked_add(1)? } else { limit };
                let Some(t) = sum.terms.first() else { return Some(()) };
                if limit <= 0 {
                    return None;
                }
                let extent = t.extent.min(limit.checked_add(t.scale - 1)? / t.scale);
                if t.lower != 1 || t.extent != self.marks[t.mark].extent {
                    self.digits.push((t.clone(), extent));
                    // `i < 19` and `i % 4 < 3` hold where `i < 20` and `i % 4 < 3` do.
                    let mark = &mut self.marks[t.mark];
                    let whole = mark.extent.checked_add(t.extent - extent)?;
                    if t.lower == 1 && whole % t.extent == 0 && (mark.extent..=whole).contains(&mark.padded) {
                        (mark.extent, mark.padded) = (whole, whole);
                    }
                    return Some(());
                }
                self.marks[t.mark].extent = extent;
                self.marks[t.mark].padded = extent;
                if !self.constraints.contains(&t.mark) {
                    self.constraints.push(t.mark);
                }
                Some(())
            }
            _ => None,
        }
    }

    /// Whether the parts taken of every mark, over all indices, lie side by side and fit.
    fn independent(&self) -> bool {
        let mut used: Vec<Term> = Vec::new();
        let mut todo: Vec<Term> = self.sums.iter().flat_map(|s| s.terms.clone()).collect();
        let mut opened = vec![false; self.marks.len()];
        while let Some(t) = todo.pop() {
            let mark = t.mark;
            used.push(t);
            if !std::mem::replace(&mut opened[mark], true) {
                if let Source::Sum(parts) = &self.marks[mark].source {
                    todo.extend(parts.iter().cloned());
                }
            }
        }
        if !self.digits.iter().all(|(digit, limit)| used.iter().all(|t| whole_parts(digit, *limit, t))) {
            return false;
        }
        (0..self.marks.len()).all(|m| {
            let mut parts: Vec<&Term> = used.iter().filter(|t| t.mark == m && t.extent != 1).collect();
            parts.sort_by_key(|t| t.lower);
            let mark = &self.marks[m];
            let apart = parts.windows(2).all(|w| w[0].lower.saturating_mul(w[0].extent) <= w[1].lower);
            let product = parts.iter().fold(1i64, |p, t| p.saturating_mul(t.extent));
            // A part without values, of a loop that never runs, is no part.
            if product <= 0 {
                return false;
            }
            let fits = if mark.padded == mark.extent {
                mark.extent % product == 0
            } else {
                mark.padded % product == 0 && mark.extent >= product
            };
            apart && (fits || matches!(parts[..], [t] if t.extent == mark.extent))
        })
    }

    fn expr(&self, sum: &Sum) -> Expr {
        let terms = sum.terms.iter().fold(int(0, DType::I32), |e, t| add(e, self.term(t)));
        add(terms, sum.base.clone())
    }

    /// The type of the variables that a mark is made of.
    fn dtype(&self, mark: usize) -> DType {
        match &self.marks[mark].source {
            Source::Var(e) => index_type(e),
            Source::Sum(parts) => parts.first().map_or(DType::I32, |p| self.dtype(p.mark)),
        }
    }

    /// A term, with its scale.
    fn term(&self, t: &Term) -> Expr {
        let mark = &self.marks[t.mark];
        let dtype = self.dtype(t.mark);
        let whole = t.lower == 1 && t.extent >= mark.extent;
        match &mark.source {
            Source::Sum(parts) if whole && t.scale == 1 => {
                parts.iter().fold(int(0, dtype), |e, p| add(e, self.term(p)))
            }
            source => {
                let source = match source {
                    Source::Var(e) => e.clone(),
                    Source::Sum(parts) => parts.iter().fold(int(0, dtype), |e, p| add(e, self.term(p))),
                };
                let upper = t.lower.saturating_mul(t.extent);
                let value = if whole {
                    source
                } else if upper >= mark.padded {
                    floor_div(source, t.lower, dtype)
                } else {
                    floor_div(floor_mod(source, upper, dtype), t.lower, dtype)
                };
                mul(value, int(t.scale, dtype))
            }
        }
    }
}

/// `e - lo`, as it reads best.
fn less(e: &Expr, lo: i64, dtype: DType) -> Expr {
    match lo.checked_neg() {
        Some(up) if lo <= 0 => add(e.clone(), int(up, dtype)),
        _ => Expr::Binary(BinOp::Sub, Arc::new(e.clone()), Arc::new(int(lo, dtype))),
    }
}

/// `a + factor · b`, with equal terms added up.
fn combined(mut a: Sum, b: Sum, factor: i64) -> Option<Sum> {
    for t in b.terms {
        let scale = t.scale.checked_mul(factor)?;
        match a.terms.iter_mut().find(|x| x.mark == t.mark && x.lower == t.lower && x.extent == t.extent) {
            Some(x) => x.scale = x.scale.checked_add(scale)?,
            None => a.terms.push(Term { scale, ..t }),
        }
    }
    a.terms.retain(|t| t.scale != 0);
    a.base = add(a.base, mul(b.base, int(factor, DType::I32)));
    Some(a)
}

/// Joins neighbouring parts of one mark: `(x // 3) * 3 + x % 3` is `x`.
fn join_parts(terms: &mut Vec<Term>) -> Option<()> {
    let next_to = |low: &Term, high: &Term| {
        low.mark == high.mark
            && low.lower.checked_mul(low.extent) == Some(high.lower)
            && low.scale.checked_mul(low.extent) == Some(high.scale)
    };
    while let Some((i, j)) = (0..terms.len())
        .flat_map(|i| (0..terms.len()).map(move |j| (i, j)))
        .find(|&(i, j)| i != j && next_to(&terms[i], &terms[j]))
    {
        terms[i].extent = terms[i].extent.checked_mul(terms[j].extent)?;
        terms.remove(j);
    }
    Some(())
}

fn conjuncts<'a>(e: &'a Expr, out: &mut Vec<&'a Expr>) {
    match e {
        Expr::Binary(BinOp::And, a, b) => {
            conjuncts(a, out);
            conjuncts(b, out);
        }
        other => out.push(other),
    }
}

/// Number of nodes.
fn size(e: &Expr) -> usize {
    let mut count = 0;
    visit::walk_expr(e, &mut |_| count += 1);
    count
}
