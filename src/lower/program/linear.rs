//! Integer expressions as linear forms, `constant + Σ coefficient · atom`, simplified against the ranges of variables.
//!
//! Equal forms are equal values, so forms are compared, and taken apart by what their atoms use. Arithmetic saturates:
//! a saturated index lies outside of every array, and is refused where arrays are laid out.
use satune_ir::semantics::promote;
use satune_ir::{BinOp, BufferId, DType, Expr, Program, VarId};
use std::collections::HashMap;

/// First and last value of each variable.
pub type Ranges = HashMap<VarId, (i64, i64)>;

/// What a variable without a range may be.
const ANYTHING: (i64, i64) = (-(1 << 40), 1 << 40);

/// Operations that are not taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    Min,
    Max,
    Xor,
    And,
    Mul,
}

/// A factor of a term.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Atom {
    Var(VarId),
    /// Of a form that is never negative, rounded down.
    Div(Box<Linear>, i64),
    /// Of a form that is never negative.
    Mod(Box<Linear>, i64),
    Other(Op, Box<Linear>, Box<Linear>),
    /// An element of a buffer of integers of the type: a number that data decide. Equal ones are equal as long as nothing is
    /// stored there.
    Load(BufferId, DType, Vec<Linear>),
}

/// A linear form. Terms are sorted by atom, no coefficient is 0.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Linear {
    pub terms: Vec<(Atom, i64)>,
    pub constant: i64,
}

pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.saturating_abs(), b.saturating_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Atom {
    fn range(&self, ranges: &Ranges) -> (i64, i64) {
        match self {
            Atom::Var(v) => ranges.get(v).copied().unwrap_or(ANYTHING),
            Atom::Div(l, d) => {
                let (lo, hi) = l.range(ranges);
                (lo.div_euclid(*d), hi.div_euclid(*d))
            }
            Atom::Mod(l, d) => {
                let (lo, hi) = l.range(ranges);
                (0, if lo >= 0 { hi.min(d - 1) } else { d - 1 })
            }
            Atom::Other(op, a, b) => {
                let ((a0, a1), (b0, b1)) = (a.range(ranges), b.range(ranges));
                match op {
                    Op::Min => (a0.min(b0), a1.min(b1)),
                    Op::Max => (a0.max(b0), a1.max(b1)),
                    Op::And if b0 >= 0 && a0 >= 0 => (0, a1.min(b1)),
                    Op::Xor if a0 >= 0 && b0 >= 0 && a1.max(b1) < 1 << 40 => {
                        (0, ((a1.max(b1) + 1) as u64).next_power_of_two() as i64 - 1)
                    }
                    Op::And | Op::Xor => ANYTHING,
                    Op::Mul => {
                        let corners = [a0, a1].map(|a| [b0, b1].map(|b| a.saturating_mul(b)));
                        let all = corners.concat();
                        (all.iter().copied().min().unwrap_or(0), all.iter().copied().max().unwrap_or(0))
                    }
                }
            }
            Atom::Load(_, dtype, _) => dtype.int_range().unwrap_or((i64::MIN, i64::MAX)),
        }
    }

    /// Calls `f` for every variable in it.
    pub fn vars(&self, f: &mut dyn FnMut(VarId)) {
        match self {
            Atom::Var(v) => f(*v),
            Atom::Div(l, _) | Atom::Mod(l, _) => l.vars(f),
            Atom::Other(_, a, b) => {
                a.vars(f);
                b.vars(f);
            }
            Atom::Load(_, _, at) => at.iter().for_each(|l| l.vars(f)),
        }
    }

    /// Whether data decide it.
    pub fn is_data(&self) -> bool {
        let mut found = Vec::new();
        self.loads(&mut found);
        !found.is_empty()
    }

    /// Puts the loads in it into a list, each after those that its own index needs.
    pub fn loads(&self, out: &mut Vec<Atom>) {
        match self {
            Atom::Var(_) => {}
            Atom::Div(l, _) | Atom::Mod(l, _) => l.loads(out),
            Atom::Other(_, a, b) => {
                a.loads(out);
                b.loads(out);
            }
            Atom::Load(_, _, at) => {
                at.iter().for_each(|l| l.loads(out));
                if !out.contains(self) {
                    out.push(self.clone());
                }
            }
        }
    }

    /// Whether a variable in it satisfies `pred`.
    pub fn uses(&self, pred: &dyn Fn(VarId) -> bool) -> bool {
        let mut found = false;
        self.vars(&mut |v| found |= pred(v));
        found
    }

    /// A number that divides every value.
    fn factor(&self) -> i64 {
        match self {
            Atom::Var(_) | Atom::Div(..) | Atom::Load(..) => 1,
            Atom::Mod(l, d) => gcd(l.factor(), *d),
            Atom::Other(Op::Xor, a, b) => {
                let both = gcd(a.factor(), b.factor());
                both & both.wrapping_neg()
            }
            Atom::Other(Op::Min | Op::Max, a, b) => gcd(a.factor(), b.factor()),
            Atom::Other(Op::Mul, a, b) => a.factor().saturating_mul(b.factor()),
            Atom::Other(Op::And, ..) => 1,
        }
    }
}

impl Linear {
    /// A constant.
    pub fn of(constant: i64) -> Linear {
        Linear { terms: Vec::new(), constant }
    }

    /// A variable.
    pub fn var(v: VarId) -> Linear {
        Linear::atom(Atom::Var(v))
    }

    fn atom(atom: Atom) -> Linear {
        Linear { terms: vec![(atom, 1)], constant: 0 }
    }

    /// The constant that it is.
    pub fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The form with every xor replaced by its left side: what is permuted. None where there is no xor.
    pub fn without_xor(&self) -> Option<Linear> {
        let mut found = false;
        let mut out = Linear { terms: Vec::new(), constant: self.constant };
        for (atom, c) in &self.terms {
            let part = match atom {
                Atom::Other(Op::Xor, a, _) => {
                    found = true;
                    a.scaled(*c)
                }
                other => Linear { terms: vec![(other.clone(), *c)], constant: 0 },
            };
            out = out.plus(&part, 1);
        }
        found.then_some(out)
    }

    /// The bits that are in one of two numbers; neither is negative.
    pub fn xor(&self, other: &Linear, ranges: &Ranges) -> Linear {
        combine(Op::Xor, self.clone(), other.clone(), ranges)
    }

    /// `self + factor · other`.
    pub fn plus(&self, other: &Linear, factor: i64) -> Linear {
        let mut out = self.clone();
        out.constant = out.constant.saturating_add(other.constant.saturating_mul(factor));
        for (atom, c) in &other.terms {
            out.add_term(atom.clone(), c.saturating_mul(factor));
        }
        out
    }

    fn add_term(&mut self, atom: Atom, c: i64) {
        match self.terms.binary_search_by(|(a, _)| a.cmp(&atom)) {
            Ok(i) => {
                self.terms[i].1 = self.terms[i].1.saturating_add(c);
                if self.terms[i].1 == 0 {
                    self.terms.remove(i);
                }
            }
            Err(_) if c == 0 => {}
            Err(i) => self.terms.insert(i, (atom, c)),
        }
    }

    /// `factor · self`.
    pub fn scaled(&self, factor: i64) -> Linear {
        Linear::of(0).plus(self, factor)
    }

    /// `self + constant`.
    pub fn shifted(&self, constant: i64) -> Linear {
        Linear { terms: self.terms.clone(), constant: self.constant.saturating_add(constant) }
    }

    /// First and last value, or wider.
    pub fn range(&self, ranges: &Ranges) -> (i64, i64) {
        self.terms.iter().fold((self.constant, self.constant), |(lo, hi), (atom, c)| {
            let (a, b) = atom.range(ranges);
            let (a, b) = (a.saturating_mul(*c), b.saturating_mul(*c));
            (lo.saturating_add(a.min(b)), hi.saturating_add(a.max(b)))
        })
    }

    /// Calls `f` for every variable in it.
    pub fn vars(&self, f: &mut dyn FnMut(VarId)) {
        self.terms.iter().for_each(|(atom, _)| atom.vars(f));
    }

    /// Puts the loads in it into a list, each after those that its own index needs.
    pub fn loads(&self, out: &mut Vec<Atom>) {
        self.terms.iter().for_each(|(atom, _)| atom.loads(out));
    }

    /// Whether data decide it.
    pub fn is_data(&self) -> bool {
        let mut found = Vec::new();
        self.loads(&mut found);
        !found.is_empty()
    }

    /// Whether a variable in it satisfies `pred`.
    pub fn uses(&self, pred: &dyn Fn(VarId) -> bool) -> bool {
        self.terms.iter().any(|(atom, _)| atom.uses(pred))
    }

    /// A number that divides every value (0 for the constant 0).
    pub fn factor(&self) -> i64 {
        self.terms.iter().fold(self.constant.saturating_abs(), |g, (atom, c)| gcd(g, c.saturating_mul(atom.factor())))
    }

    /// How often it has a term of another form.
    pub fn times(&self, other: &Linear) -> Option<i64> {
        let times = |(atom, own): &(Atom, i64)| {
            let (_, all) = self.terms.iter().find(|(a, _)| a == atom)?;
            all.checked_div(*own).filter(|f| *f != 0 && all % own == 0)
        };
        other.terms.iter().find_map(times)
    }

    /// Whether every value is a multiple of `n`.
    pub fn multiple_of(&self, n: i64) -> bool {
        self.factor() % n == 0
    }

    /// (terms whose atoms satisfy `pred`, the rest with the constant).
    pub fn partition(&self, pred: &dyn Fn(&Atom) -> bool) -> (Linear, Linear) {
        let (yes, no) = self.terms.iter().cloned().partition(|(atom, _)| pred(atom));
        (Linear { terms: yes, constant: 0 }, Linear { terms: no, constant: self.constant })
    }

    /// (terms with positive coefficients, the others negated), without the constant.
    pub fn signs(&self) -> (Linear, Linear) {
        let (up, down): (Vec<_>, Vec<_>) = self.terms.iter().cloned().partition(|(_, c)| *c > 0);
        (Linear { terms: up, constant: 0 }, Linear { terms: down, constant: 0 }.scaled(-1))
    }

    /// (coefficient of a variable, the rest); None where the variable is inside of another atom.
    pub fn split_var(&self, v: VarId) -> Option<(i64, Linear)> {
        let (own, rest) = self.partition(&|a| *a == Atom::Var(v));
        (!rest.uses(&|x| x == v)).then(|| (own.terms.first().map_or(0, |t| t.1), rest))
    }

    /// Replaces variables, and simplifies anew.
    pub fn substitute(&self, map: &HashMap<VarId, Linear>, ranges: &Ranges) -> Linear {
        if !self.uses(&|v| map.contains_key(&v)) {
            return self.clone();
        }
        self.terms.iter().fold(Linear::of(self.constant), |sum, (atom, c)| {
            let value = match atom {
                Atom::Var(v) => map.get(v).cloned().unwrap_or_else(|| Linear::var(*v)),
                Atom::Div(l, d) => l.substitute(map, ranges).divided(*d, ranges),
                Atom::Mod(l, d) => l.substitute(map, ranges).remainder(*d, ranges),
                Atom::Other(op, a, b) => combine(*op, a.substitute(map, ranges), b.substitute(map, ranges), ranges),
                Atom::Load(b, dtype, at) => {
                    Linear::atom(Atom::Load(*b, *dtype, at.iter().map(|l| l.substitute(map, ranges)).collect()))
                }
            };
            sum.plus(&value, *c)
        })
    }

    /// The same with another first index of the elements of a buffer that decide it.
    pub fn with_dimension(&self, buffer: BufferId, first: &Linear) -> Linear {
        let boxed = |l: &Linear| Box::new(l.with_dimension(buffer, first));
        let of = |(atom, c): &(Atom, i64)| {
            let atom = match atom {
                Atom::Var(v) => Atom::Var(*v),
                Atom::Div(l, d) => Atom::Div(boxed(l), *d),
                Atom::Mod(l, d) => Atom::Mod(boxed(l), *d),
                Atom::Other(op, a, b) => Atom::Other(*op, boxed(a), boxed(b)),
                Atom::Load(table, dtype, at) => {
                    let own = (*table == buffer).then(|| first.clone());
                    let at = own.into_iter().chain(at.iter().map(|l| l.with_dimension(buffer, first)));
                    Atom::Load(*table, *dtype, at.collect())
                }
            };
            Linear { terms: vec![(atom, *c)], constant: 0 }
        };
        self.terms.iter().map(of).fold(Linear::of(self.constant), |sum, term| sum.plus(&term, 1))
    }

    /// (what `d` divides, divided; what it does not, never negative where that can be had).
    fn reduce(&self, d: i64, ranges: &Ranges) -> (Linear, Linear) {
        let (whole, mut rest) = self.partition_by(d);
        let mut quotient = Linear { terms: whole.iter().map(|(a, c)| (a.clone(), c / d)).collect(), constant: 0 };
        quotient.constant = rest.constant.div_euclid(d);
        rest.constant = rest.constant.rem_euclid(d);
        let lo = rest.range(ranges).0;
        if lo < 0 && lo > ANYTHING.0 {
            let up = (-lo).saturating_add(d - 1) / d;
            quotient.constant -= up;
            rest.constant += up.saturating_mul(d);
        }
        (quotient, rest)
    }

    fn partition_by(&self, d: i64) -> (Vec<(Atom, i64)>, Linear) {
        let (whole, rest) = self.terms.iter().cloned().partition(|(_, c)| c % d == 0);
        (whole, Linear { terms: rest, constant: self.constant })
    }

    /// The largest g that divides d such that what g does not divide lies in `[0, g)`: (g, the others over g, the low part).
    pub fn low_part(&self, d: i64, ranges: &Ranges) -> Option<(i64, Linear, Linear)> {
        let mut candidates: Vec<i64> = self.terms.iter().map(|(_, c)| gcd(d, *c)).filter(|g| *g > 1).collect();
        candidates.sort_unstable();
        candidates.into_iter().rev().find_map(|g| {
            let (high, mut low) = self.partition_by(g);
            let mut high = Linear { terms: high.into_iter().map(|(a, c)| (a, c / g)).collect(), constant: 0 };
            high.constant = low.constant.div_euclid(g);
            low.constant = low.constant.rem_euclid(g);
            let (lo, hi) = low.range(ranges);
            (lo >= 0 && hi < g).then_some((g, high, low))
        })
    }

    /// `self // d`, rounded down; `d` is positive.
    pub fn divided(&self, d: i64, ranges: &Ranges) -> Linear {
        if d == 1 {
            return self.clone();
        }
        let (quotient, rest) = self.reduce(d, ranges);
        let (lo, hi) = rest.range(ranges);
        if lo >= 0 && hi < d {
            return quotient;
        }
        if let Some((g, high, _)) = rest.low_part(d, ranges) {
            return quotient.plus(&high.divided(d / g, ranges), 1);
        }
        if let ([(Atom::Div(inner, first), 1)], 0) = (rest.terms.as_slice(), rest.constant) {
            return quotient.plus(&inner.divided(first.saturating_mul(d), ranges), 1);
        }
        quotient.plus(&Linear::atom(Atom::Div(Box::new(rest), d)), 1)
    }

    /// `self % d`, never negative; `d` is positive.
    pub fn remainder(&self, d: i64, ranges: &Ranges) -> Linear {
        if self.multiple_of(d) {
            return Linear::of(0);
        }
        let (_, rest) = self.reduce(d, ranges);
        let (lo, hi) = rest.range(ranges);
        if lo >= 0 && hi < d {
            return rest;
        }
        if let Some((g, high, low)) = rest.low_part(d, ranges) {
            return high.remainder(d / g, ranges).scaled(g).plus(&low, 1);
        }
        match (rest.terms.as_slice(), rest.constant) {
            ([(Atom::Mod(inner, first), 1)], 0) if first % d == 0 => return inner.remainder(d, ranges),
            // The low bits of an xor are the xor of the low bits.
            ([(Atom::Other(Op::Xor, a, b), 1)], 0) if d.count_ones() == 1 => {
                return combine(Op::Xor, a.remainder(d, ranges), b.remainder(d, ranges), ranges);
            }
            _ => {}
        }
        Linear::atom(Atom::Mod(Box::new(rest), d))
    }

    /// The form with quotients and remainders of one number put together again, `x // d * (c d) + x % d * c` as `x * c`: so
    /// it is with the address of an element whose indices are digits of one index.
    pub fn joined(&self, ranges: &Ranges) -> Linear {
        // Each step takes a quotient or a remainder away; a number of steps is set, lest what comes apart again should come
        // together without end.
        let mut form = self.clone();
        for _ in 0..32 {
            match form.joined_once(ranges) {
                Some(next) => form = next,
                None => break,
            }
        }
        form
    }

    fn joined_once(&self, ranges: &Ranges) -> Option<Linear> {
        let instead = |gone: &[&(Atom, i64)], new: &Linear, c: i64| {
            let mut out = self.clone();
            gone.iter().for_each(|(atom, of)| out.add_term(atom.clone(), of.saturating_neg()));
            out.plus(new, c)
        };
        for term @ (atom, c) in &self.terms {
            match atom {
                // `x % f // d` is a remainder of the quotient.
                Atom::Div(l, d) => {
                    if let ([(Atom::Mod(x, f), 1)], 0) = (l.terms.as_slice(), l.constant) {
                        if f % d == 0 {
                            return Some(instead(&[term], &x.divided(*d, ranges).remainder(f / d, ranges), *c));
                        }
                    }
                }
                Atom::Mod(whole, d) => {
                    // `x % f // q % d` is a remainder of the quotient, too.
                    if let ([(Atom::Div(l, q), 1)], 0) = (whole.terms.as_slice(), whole.constant) {
                        if let ([(Atom::Mod(x, f), 1)], 0) = (l.terms.as_slice(), l.constant) {
                            if f % q.saturating_mul(*d) == 0 {
                                return Some(instead(&[term], &x.divided(*q, ranges).remainder(*d, ranges), *c));
                            }
                        }
                    }
                    let above = self.terms.iter().filter(|(_, of)| *of == c.saturating_mul(*d));
                    let mut joined = above.filter_map(|other| match &other.0 {
                        Atom::Div(l, by) if by % d == 0 && l.divided(by / d, ranges) == **whole => {
                            Some((other, (**whole).clone()))
                        }
                        // The digits above, up to another modulus.
                        Atom::Mod(l, by) => {
                            let all = match whole.divided(*d, ranges) == **l {
                                true => Some((**whole).clone()),
                                // Multiples of `d` do not show in the digit.
                                false => l.scaled(*d).plus(&Linear::atom(atom.clone()), 1).joined_once(ranges),
                            };
                            Some((other, all?.remainder(d.saturating_mul(*by), ranges)))
                        }
                        _ => None,
                    });
                    if let Some((other, joined)) = joined.next() {
                        return Some(instead(&[other, term], &joined, *c));
                    }
                }
                Atom::Var(_) | Atom::Other(..) | Atom::Load(..) => {}
            }
        }
        None
    }

    /// The linear form of an integer expression. None for what has none (loads, selections, ...), and for what may leave a
    /// type on the way: forms are of whole numbers, and the expression wraps.
    pub fn of_expr(e: &Expr, ranges: &Ranges) -> Option<Linear> {
        typed(e, ranges, None).map(|(form, _)| form)
    }

    /// The linear form of an index, in which elements of the program's buffers may stand.
    pub fn of_index(e: &Expr, ranges: &Ranges, program: &Program) -> Option<Linear> {
        typed(e, ranges, Some(program)).map(|(form, _)| form)
    }

    /// Whether all values are of an integer type.
    fn within(&self, dtype: DType, ranges: &Ranges) -> bool {
        let (lo, hi) = self.range(ranges);
        // Ranges saturate.
        let whole = lo > i64::MIN / 2 && hi < i64::MAX / 2;
        whole && dtype.int_range().is_some_and(|(least, most)| least <= lo && hi <= most)
    }
}

/// The form of an integer expression, whose values are all of its type, and the type. Elements of buffers stand in it where
/// their program is given.
fn typed(e: &Expr, ranges: &Ranges, program: Option<&Program>) -> Option<(Linear, DType)> {
    let held = |form: Linear, dtype| form.within(dtype, ranges).then_some((form, dtype));
    match e {
        Expr::Int(v, t) => held(Linear::of(*v), *t),
        Expr::Var(v) => match ranges.get(&v.id) {
            Some((lo, hi)) if lo == hi => Some((Linear::of(*lo), v.dtype)),
            _ => Some((Linear::var(v.id), v.dtype)),
        },
        Expr::Cast(t, a) => held(typed(a, ranges, program)?.0, *t),
        Expr::Binary(op, a, b) => {
            let ((a, t), (b, u)) = (typed(a, ranges, program)?, typed(b, ranges, program)?);
            held(binary(*op, a, b, ranges)?, promote(t, u))
        }
        Expr::Load(buffer, at) => {
            let dtype = program?.buffer(*buffer).dtype;
            dtype.int_range().filter(|_| dtype != DType::Bool)?;
            let at: Option<Vec<Linear>> = at.iter().map(|e| Some(typed(e, ranges, program)?.0)).collect();
            Some((Linear::atom(Atom::Load(*buffer, dtype, at?)), dtype))
        }
        _ => None,
    }
}

fn binary(op: BinOp, a: Linear, b: Linear, ranges: &Ranges) -> Option<Linear> {
    let by = b.as_constant();
    // Quotients are of what is not negative, or can be moved there.
    if matches!(op, BinOp::FloorDiv | BinOp::FloorMod | BinOp::Shr) && a.range(ranges).0 < ANYTHING.0 {
        return None;
    }
    Some(match op {
        BinOp::Add => a.plus(&b, 1),
        BinOp::Sub => a.plus(&b, -1),
        BinOp::Mul => match (a.as_constant(), by) {
            (_, Some(c)) => a.scaled(c),
            (Some(c), _) => b.scaled(c),
            _ => combine(Op::Mul, a, b, ranges),
        },
        BinOp::FloorDiv => a.divided(by.filter(|d| *d > 0)?, ranges),
        BinOp::FloorMod => a.remainder(by.filter(|d| *d > 0)?, ranges),
        BinOp::TruncDiv if a.range(ranges).0 >= 0 => a.divided(by.filter(|d| *d > 0)?, ranges),
        BinOp::TruncMod if a.range(ranges).0 >= 0 => a.remainder(by.filter(|d| *d > 0)?, ranges),
        BinOp::Min => combine(Op::Min, a, b, ranges),
        BinOp::Max => combine(Op::Max, a, b, ranges),
        // Bits of negative numbers go on without end.
        BinOp::BitXor | BinOp::BitAnd if a.range(ranges).0 < 0 || b.range(ranges).0 < 0 => return None,
        BinOp::BitXor => combine(Op::Xor, a, b, ranges),
        BinOp::BitAnd => match by {
            Some(mask) if (mask + 1).count_ones() == 1 => a.remainder(mask + 1, ranges),
            _ => combine(Op::And, a, b, ranges),
        },
        // Types of 32 bits and more: what a shift by less leaves of a narrower one is not within it anyway.
        BinOp::Shl => a.scaled(1 << by.filter(|b| (0..31).contains(b))?),
        BinOp::Shr => a.divided(1 << by.filter(|b| (0..31).contains(b))?, ranges),
        _ => return None,
    })
}

fn combine(op: Op, a: Linear, b: Linear, ranges: &Ranges) -> Linear {
    if let (Some(x), Some(y)) = (a.as_constant(), b.as_constant()) {
        return Linear::of(match op {
            Op::Min => x.min(y),
            Op::Max => x.max(y),
            Op::Xor => x ^ y,
            Op::And => x & y,
            Op::Mul => x.saturating_mul(y),
        });
    }
    let (lo, hi) = a.plus(&b, -1).range(ranges);
    match op {
        Op::Min if hi <= 0 => return a,
        Op::Min if lo >= 0 => return b,
        Op::Max if hi <= 0 => return b,
        Op::Max if lo >= 0 => return a,
        Op::Xor if a == b => return Linear::of(0),
        Op::Xor => {
            // Bits below every bit of one side pass through.
            // The left side stays on the left: see `without_xor`.
            let ordered = |x: Linear, y: &Linear, swapped: bool| match swapped {
                false => combine(Op::Xor, x, y.clone(), ranges),
                true => combine(Op::Xor, y.clone(), x, ranges),
            };
            for (x, y, swapped) in [(&a, &b, false), (&b, &a, true)] {
                let g = y.factor() & y.factor().wrapping_neg();
                if g > 1 && y.range(ranges).0 >= 0 {
                    let low = x.remainder(g, ranges);
                    let high = x.plus(&low, -1);
                    // Only what is seen to have none of these bits left: else it would come apart without end.
                    if low.as_constant() != Some(0) && high.multiple_of(g) {
                        return ordered(high, y, swapped).plus(&low, 1);
                    }
                }
                if y.as_constant() == Some(0) {
                    return x.clone();
                }
                // So do bits above.
                let (y_lo, y_hi) = y.range(ranges);
                for bits in 0..40 {
                    let p = 1_i64 << bits;
                    let (high, low) = x.partition_by(p);
                    let (lo, hi) = low.range(ranges);
                    if !high.is_empty() && lo >= 0 && hi < p && y_lo >= 0 && y_hi < p {
                        let high = Linear { terms: high, constant: 0 };
                        return ordered(low, y, swapped).plus(&high, 1);
                    }
                }
            }
        }
        _ => {}
    }
    let (a, b) = if op == Op::Xor || a <= b { (a, b) } else { (b, a) };
    Linear::atom(Atom::Other(op, Box::new(a), Box::new(b)))
}

#[cfg(test)]
mod tests;
