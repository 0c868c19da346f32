//! Linear forms of index expressions, with quotients and remainders as atoms: simplification, comparison, intervals.
//!
//! A sum or product that may leave its type within the domains is not taken apart: it wraps.
//!
//! `i_0 * 128 + i_1 * 8 + 3` is a list of coefficients in the order in which the atoms first occur, so that a simplified
//! expression reads like the one that was written.
use crate::affine::{add, and, constant, ends, index_type, int, mul, Domains};
use crate::{fold, BinOp, DType, Expr};
use std::sync::Arc;

pub use super::interval::{has_bits, Interval};

/// `constant + Σ coefficient · atom`.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    terms: Vec<(Expr, i64)>,
    constant: i64,
}

impl Linear {
    /// A constant.
    pub fn constant(value: i64) -> Linear {
        Linear { terms: Vec::new(), constant: value }
    }

    /// An expression that is not taken apart.
    pub fn atom(e: Expr) -> Linear {
        Linear { terms: vec![(e, 1)], constant: 0 }
    }

    /// The linear form of an integer expression, as far as the domains of variables let it be simplified. None where a
    /// coefficient overflows.
    pub fn of(e: &Expr, domains: &Domains) -> Option<Linear> {
        match e {
            Expr::Int(v, _) => Some(Linear::constant(*v)),
            Expr::Var(v) => match domains.get(&v.id).and_then(ends) {
                Some((lo, hi)) if lo == hi => Some(Linear::constant(lo)),
                _ => Some(Linear::atom(e.clone())),
            },
            Expr::Binary(op, a, b) => {
                let (x, y) = (Linear::of(a, domains)?, Linear::of(b, domains)?);
                let whole = || Expr::Binary(*op, Arc::new(x.expr()), Arc::new(y.expr()));
                // What wraps in its type is no sum of its parts.
                let held = |sum: Linear| {
                    if sum.leaves(fold::dtype(e, &[]), domains) {
                        Some(Linear::atom(e.clone()))
                    } else {
                        sum.joined(domains)
                    }
                };
                match op {
                    BinOp::Add => held(x.plus(&y, 1)?),
                    BinOp::Sub => held(x.plus(&y, -1)?),
                    BinOp::Mul => match (x.as_constant(), y.as_constant()) {
                        (_, Some(c)) => held(x.scale(c)?),
                        (Some(c), _) => held(y.scale(c)?),
                        _ => Some(Linear::atom(whole())),
                    },
                    BinOp::FloorDiv => match y.as_constant() {
                        Some(c) if c > 0 => x.div(c, domains),
                        _ => Some(Linear::atom(whole())),
                    },
                    BinOp::FloorMod => match y.as_constant() {
                        Some(c) if c > 0 => x.rem(c, domains),
                        _ => Some(Linear::atom(whole())),
                    },
                    BinOp::Min => Some(x.min(&y, domains)),
                    BinOp::Max => Some(x.max(&y, domains)),
                    _ => Some(Linear::atom(whole())),
                }
            }
            other => Some(Linear::atom(other.clone())),
        }
    }

    /// The form that an expression was made of: sums are taken apart, and atoms stay as they are. Simplified again, chains of
    /// minima would take time without end, since each asks which side is smaller.
    fn back(e: &Expr, domains: &Domains) -> Option<Linear> {
        let of = |e| Linear::back(e, domains);
        let form = match e {
            Expr::Int(v, _) => return Some(Linear::constant(*v)),
            Expr::Binary(BinOp::Add, a, b) => of(a)?.plus(&of(b)?, 1)?,
            Expr::Binary(BinOp::Sub, a, b) => of(a)?.plus(&of(b)?, -1)?,
            Expr::Binary(BinOp::Mul, a, b) => match constant(b) {
                Some(c) => of(a)?.scale(c)?,
                None => return Some(Linear::atom(e.clone())),
            },
            _ => return Some(Linear::atom(e.clone())),
        };
        match form.leaves(fold::dtype(e, &[]), domains) {
            true => Some(Linear::atom(e.clone())),
            false => Some(form),
        }
    }

    /// The type of its literals: that of the variables.
    fn dtype(&self) -> DType {
        self.terms.first().map_or(DType::I32, |(atom, _)| index_type(atom))
    }

    /// The constant that the form is, if it is one.
    pub fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The atoms with their coefficients.
    pub fn terms(&self) -> &[(Expr, i64)] {
        &self.terms
    }

    /// The constant part.
    pub fn offset(&self) -> i64 {
        self.constant
    }

    /// `self + factor · other`.
    pub fn plus(&self, other: &Linear, factor: i64) -> Option<Linear> {
        let mut out = self.clone();
        out.constant = out.constant.checked_add(other.constant.checked_mul(factor)?)?;
        for (atom, c) in &other.terms {
            let c = c.checked_mul(factor)?;
            match out.terms.iter_mut().find(|(a, _)| a == atom) {
                Some((_, old)) => *old = old.checked_add(c)?,
                None => out.terms.push((atom.clone(), c)),
            }
        }
        out.terms.retain(|(_, c)| *c != 0);
        Some(out)
    }

    /// `self + value`.
    pub fn shifted(&self, value: i64) -> Option<Linear> {
        self.plus(&Linear::constant(value), 1)
    }

    /// `self · factor`.
    pub fn scale(&self, factor: i64) -> Option<Linear> {
        Linear::constant(0).plus(self, factor)
    }

    /// Puts `(x // c) * c + x % c` together again, and `x - (x // c) * c`.
    pub(super) fn joined(self, domains: &Domains) -> Option<Linear> {
        for (atom, k) in &self.terms {
            let Expr::Binary(op @ (BinOp::FloorMod | BinOp::FloorDiv), x, c) = atom else { continue };
            let Some(c) = constant(c).filter(|c| *c > 0) else { continue };
            // What takes the place of the atom, and what goes with it.
            let (inner, rest) = (Linear::of(x, domains)?, self.plus(&Linear::atom(atom.clone()), -k)?);
            let (new, gone) = match op {
                BinOp::FloorMod => (inner.scale(*k)?, inner.div(c, domains)?.scale(c.checked_mul(*k)?)?),
                _ if *k < 0 && k % c == 0 => {
                    let factor = (k / c).checked_neg()?;
                    (inner.rem(c, domains)?.scale(factor)?, inner.scale(factor)?)
                }
                _ => continue,
            };
            let held = |t: &(Expr, i64)| rest.terms.iter().any(|r| r == t);
            if !gone.terms.is_empty() && gone.terms.iter().all(held) {
                return rest.plus(&gone, -1)?.plus(&new, 1)?.joined(domains);
            }
        }
        Some(self)
    }

    /// Smallest and largest value, where they can be told.
    pub fn ends(&self, domains: &Domains) -> (Option<i64>, Option<i64>) {
        let mut out = (Some(self.constant), Some(self.constant));
        for (atom, c) in &self.terms {
            let (lo, hi) = atom_ends(atom, domains);
            let (lo, hi) = if *c > 0 { (lo, hi) } else { (hi, lo) };
            let sum = |acc: Option<i64>, v: Option<i64>| acc?.checked_add(v?.checked_mul(*c)?);
            out = (sum(out.0, lo), sum(out.1, hi));
        }
        out
    }

    /// Whether a value is known that is none of the type.
    fn leaves(&self, dtype: DType, domains: &Domains) -> bool {
        let (lo, hi) = self.ends(domains);
        let Some((least, most)) = dtype.int_range() else { return false };
        lo.is_some_and(|v| v < least) || hi.is_some_and(|v| v > most)
    }

    /// Whether `self <= other` for all values of the variables.
    pub fn at_most(&self, other: &Linear, domains: &Domains) -> bool {
        let below = |a: &Linear, b: &Linear| {
            a.plus(b, -1).and_then(|d| d.joined(domains)).is_some_and(|d| d.ends(domains).1.is_some_and(|v| v <= 0))
        };
        below(self, other)
            || self.quotient_at_most(other, domains)
            || self.sides(BinOp::Min, domains).is_some_and(|(a, b)| below(&a, other) || below(&b, other))
            || other.sides(BinOp::Max, domains).is_some_and(|(a, b)| below(self, &a) || below(self, &b))
            || self.sides(BinOp::Max, domains).is_some_and(|(a, b)| below(&a, other) && below(&b, other))
            || other.sides(BinOp::Min, domains).is_some_and(|(a, b)| below(self, &a) && below(self, &b))
    }

    /// Whether both are quotients by one divisor, of dividends that are ordered.
    fn quotient_at_most(&self, other: &Linear, domains: &Domains) -> bool {
        let dividend = |l: &Linear| match l.terms.as_slice() {
            [(Expr::Binary(BinOp::FloorDiv, x, d), 1)] => {
                Some((Linear::of(x, domains)?, constant(d).filter(|d| *d > 0)?))
            }
            _ => None,
        };
        match (dividend(self), dividend(other)) {
            (Some((x, c)), Some((y, d))) => c == d && self.constant <= other.constant && x.at_most(&y, domains),
            _ => false,
        }
    }

    /// The arguments of the minimum (or maximum) that the form is.
    fn sides(&self, op: BinOp, domains: &Domains) -> Option<(Linear, Linear)> {
        match self.terms.as_slice() {
            [(Expr::Binary(o, a, b), 1)] if *o == op => {
                let side = |e| Linear::back(e, domains)?.shifted(self.constant);
                Some((side(a)?, side(b)?))
            }
            _ => None,
        }
    }

    /// The smaller one.
    pub fn min(&self, other: &Linear, domains: &Domains) -> Linear {
        if self.at_most(other, domains) {
            self.clone()
        } else if other.at_most(self, domains) {
            other.clone()
        } else {
            Linear::atom(Expr::Binary(BinOp::Min, Arc::new(self.expr()), Arc::new(other.expr())))
        }
    }

    /// The larger one.
    pub fn max(&self, other: &Linear, domains: &Domains) -> Linear {
        if self.at_most(other, domains) {
            other.clone()
        } else if other.at_most(self, domains) {
            self.clone()
        } else {
            Linear::atom(Expr::Binary(BinOp::Max, Arc::new(self.expr()), Arc::new(other.expr())))
        }
    }

    /// `self` as `divisor · first + second`, the second without multiples of the divisor.
    fn separated(&self, divisor: i64) -> (Linear, Linear) {
        let (whole, rest): (Vec<_>, Vec<_>) = self.terms.iter().cloned().partition(|(_, c)| c % divisor == 0);
        let whole: Vec<_> = whole.into_iter().map(|(a, c)| (a, c / divisor)).collect();
        // A constant is taken apart only where nothing of it is left: `(x - 1) // 3` stays as it is written.
        let apart = rest.is_empty() || self.constant % divisor == 0;
        let (quotient, remainder) = if apart {
            (self.constant.div_euclid(divisor), self.constant.rem_euclid(divisor))
        } else {
            (0, self.constant)
        };
        (Linear { terms: whole, constant: quotient }, Linear { terms: rest, constant: remainder })
    }

    /// The quotient by `divisor` that all values share, if they share one.
    fn common_quotient(&self, divisor: i64, domains: &Domains) -> Option<i64> {
        match self.ends(domains) {
            (Some(lo), Some(hi)) if lo.div_euclid(divisor) == hi.div_euclid(divisor) => Some(lo.div_euclid(divisor)),
            _ => None,
        }
    }

    /// `factor · high + low`, where low lies in `[0, factor)`, so that it carries nothing, and the factor divides `divisor`:
    /// sums of two terms, as TVM's rules have them.
    fn carried(&self, divisor: i64, domains: &Domains) -> Option<(i64, Linear, Linear)> {
        let ([_, _], 0) = (&self.terms[..], self.constant) else { return None };
        let large = self.terms.iter().position(|(_, c)| *c > 1 && divisor % c == 0)?;
        let (atom, factor) = self.terms[large].clone();
        let low = Linear { terms: vec![self.terms[1 - large].clone()], constant: 0 };
        let inside = matches!(low.ends(domains), (Some(lo), Some(hi)) if lo >= 0 && hi < factor);
        inside.then(|| (factor, Linear::atom(atom), low))
    }

    /// `self // divisor`, for a positive divisor.
    pub fn div(&self, divisor: i64, domains: &Domains) -> Option<Linear> {
        let (whole, rest) = self.separated(divisor);
        if let Some(q) = rest.common_quotient(divisor, domains) {
            return whole.shifted(q);
        }
        if let Some((factor, high, _)) = rest.carried(divisor, domains) {
            return whole.plus(&high.div(divisor / factor, domains)?, 1);
        }
        let g = rest.terms.iter().fold(divisor, |g, (_, c)| gcd(g, c.abs()));
        let reduced = Linear {
            terms: rest.terms.iter().map(|(a, c)| (a.clone(), c / g)).collect(),
            constant: rest.constant.div_euclid(g),
        };
        let divisor = divisor / g;
        if let ([(Expr::Binary(BinOp::FloorDiv, x, c), 1)], 0) = (reduced.terms.as_slice(), reduced.constant) {
            if let Some(product) = constant(c).filter(|c| *c > 0).and_then(|c| c.checked_mul(divisor)) {
                return whole.plus(&Linear::of(x, domains)?.div(product, domains)?, 1);
            }
        }
        let quotient = Expr::Binary(BinOp::FloorDiv, Arc::new(reduced.expr()), Arc::new(int(divisor, reduced.dtype())));
        Linear::atom(quotient).plus(&whole, 1).map(|sum| reordered(sum, &whole))
    }

    /// The largest number that divides all values, and this one.
    pub fn step(&self, divisor: i64) -> i64 {
        self.terms.iter().fold(gcd(divisor, self.constant), |step, (_, factor)| gcd(step, factor.abs()))
    }

    /// `self % divisor`, for a positive divisor.
    pub fn rem(&self, divisor: i64, domains: &Domains) -> Option<Linear> {
        let (_, mut rest) = self.separated(divisor);
        if let Some(q) = rest.common_quotient(divisor, domains) {
            return rest.shifted(q.checked_mul(divisor)?.checked_neg()?);
        }
        if let Some((factor, high, low)) = rest.carried(divisor, domains) {
            return high.rem(divisor / factor, domains)?.scale(factor)?.plus(&low, 1);
        }
        rest.constant = rest.constant.rem_euclid(divisor);
        if let ([(Expr::Binary(BinOp::FloorDiv, x, c), 1)], 0) = (rest.terms.as_slice(), rest.constant) {
            // `(x // c) % d` is `(x % (c * d)) // c`.
            if let Some((c, product)) = constant(c).filter(|c| *c > 0).and_then(|c| Some((c, c.checked_mul(divisor)?)))
            {
                return Linear::of(x, domains)?.rem(product, domains)?.div(c, domains);
            }
        }
        let g = rest.step(divisor);
        let reduced =
            Linear { terms: rest.terms.iter().map(|(a, c)| (a.clone(), c / g)).collect(), constant: rest.constant / g };
        let atom = Expr::Binary(BinOp::FloorMod, Arc::new(reduced.expr()), Arc::new(int(divisor / g, reduced.dtype())));
        Linear::atom(atom).scale(g)
    }

    /// The same with larger coefficients first, then larger divisors, then larger moduli, as TVM writes a sum that it
    /// simplified.
    pub fn sorted(mut self) -> Linear {
        self.terms.sort_by_cached_key(|(atom, c)| {
            let digit = Digit::of(atom);
            std::cmp::Reverse((*c, digit.divisor, digit.modulus.unwrap_or(i64::MAX)))
        });
        self
    }

    /// The form as an expression: positive terms, then negative ones, then the constant; it comes first where it alone is
    /// positive.
    pub fn expr(&self) -> Expr {
        let dtype = self.dtype();
        let leads = self.constant > 0 && !self.terms.is_empty() && self.terms.iter().all(|(_, c)| *c < 0);
        let mut out: Option<Expr> = leads.then(|| int(self.constant, dtype));
        for (atom, c) in self.terms.iter().filter(|(_, c)| *c > 0) {
            let term = mul(atom.clone(), int(*c, dtype));
            out = Some(out.map_or_else(|| term.clone(), |sum| add(sum, term.clone())));
        }
        for (atom, c) in self.terms.iter().filter(|(_, c)| *c < 0) {
            out = Some(match out {
                Some(sum) => {
                    let term = mul(atom.clone(), int(c.saturating_neg(), dtype));
                    Expr::Binary(BinOp::Sub, Arc::new(sum), Arc::new(term))
                }
                None => mul(atom.clone(), int(*c, dtype)),
            });
        }
        match out {
            None => int(self.constant, dtype),
            Some(sum) if leads => sum,
            Some(sum) if self.constant < 0 => {
                let offset = int(self.constant.saturating_neg(), dtype);
                Expr::Binary(BinOp::Sub, Arc::new(sum), Arc::new(offset))
            }
            Some(sum) => add(sum, int(self.constant, dtype)),
        }
    }
}

/// An atom as a digit of an index, `index % modulus // divisor`.
#[derive(Clone, Debug, PartialEq)]
pub struct Digit {
    /// Of which it is a digit.
    pub index: Expr,
    /// 1 where there is none.
    pub divisor: i64,
    /// Where there is one.
    pub modulus: Option<i64>,
}

impl Digit {
    /// An atom taken apart; what is neither quotient nor remainder is a digit of itself.
    pub fn of(atom: &Expr) -> Digit {
        let by = |op: BinOp, e: &Expr| match e {
            Expr::Binary(o, x, c) if *o == op => Some((x.as_ref().clone(), constant(c).filter(|c| *c > 0)?)),
            _ => None,
        };
        let (inner, divisor) = by(BinOp::FloorDiv, atom).unwrap_or_else(|| (atom.clone(), 1));
        match by(BinOp::FloorMod, &inner) {
            Some((index, modulus)) => Digit { index, divisor, modulus: Some(modulus) },
            None => Digit { index: inner, divisor, modulus: None },
        }
    }
}

/// A quotient's terms in the order of the dividend: multiples of the divisor first, as they were written.
fn reordered(mut sum: Linear, whole: &Linear) -> Linear {
    sum.terms.sort_by_key(|(atom, _)| !whole.terms.iter().any(|(a, _)| a == atom));
    sum
}

/// Smallest and largest value of an atom, where they can be told.
fn atom_ends(atom: &Expr, domains: &Domains) -> (Option<i64>, Option<i64>) {
    match atom {
        Expr::Var(v) => domains.get(&v.id).and_then(ends).map_or((None, None), |(lo, hi)| (Some(lo), Some(hi))),
        Expr::Binary(op, a, b) => {
            let of = |e: &Expr| Linear::back(e, domains).map_or((None, None), |l| l.ends(domains));
            let (x, y) = (of(a), of(b));
            match (op, constant(b)) {
                (BinOp::FloorDiv, Some(c)) if c > 0 => (x.0.map(|v| v.div_euclid(c)), x.1.map(|v| v.div_euclid(c))),
                (BinOp::FloorMod, Some(c)) if c > 0 => {
                    let high = x.1.filter(|_| x.0.is_some_and(|lo| lo >= 0)).map_or(c - 1, |hi| hi.min(c - 1));
                    (Some(0), Some(high))
                }
                (BinOp::Min, _) => (x.0.zip(y.0).map(|(a, b)| a.min(b)), smaller(x.1, y.1)),
                (BinOp::Max, _) => (larger(x.0, y.0), x.1.zip(y.1).map(|(a, b)| a.max(b))),
                _ => (None, None),
            }
        }
        _ => (None, None),
    }
}

fn smaller(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a.into_iter().chain(b).min()
}

fn larger(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a.into_iter().chain(b).max()
}

/// The greatest common divisor, never negative; of 0 and a number that number.
pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        // The remainder of the smallest number by -1 does not fit.
        (a, b) = (b, a.wrapping_rem(b));
    }
    a.saturating_abs()
}

/// The conjuncts of a condition, in order.
pub fn conjuncts(e: &Expr) -> Vec<Expr> {
    match e {
        Expr::Binary(BinOp::And, a, b) => [conjuncts(a), conjuncts(b)].concat(),
        Expr::Int(1, DType::Bool) => Vec::new(),
        other => vec![other.clone()],
    }
}

/// The conjunction of conditions.
pub fn all(conditions: impl IntoIterator<Item = Expr>) -> Expr {
    conditions.into_iter().fold(int(1, DType::Bool), and)
}
