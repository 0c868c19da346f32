//! Bounds of index expressions as linear forms, for region cover.
use crate::arith::Domains;
use satune_ir::affine::ends;
use satune_ir::{visit, BinOp, Expr, Range};

/// `constant + Σ coefficient · atom`, where an atom is a variable or an expression that is not taken apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    terms: Vec<(Expr, i64)>,
    constant: i64,
}

impl Linear {
    fn of(constant: i64) -> Linear {
        Linear { terms: Vec::new(), constant }
    }

    fn atom(e: &Expr) -> Linear {
        Linear { terms: vec![(e.clone(), 1)], constant: 0 }
    }

    fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// `self + factor · other`.
    fn add(&self, other: &Linear, factor: i64) -> Option<Linear> {
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

    fn scale(&self, factor: i64) -> Option<Linear> {
        Linear::of(0).add(self, factor)
    }

    /// `self // divisor` where every coefficient is divisible.
    fn divide(&self, divisor: i64) -> Option<Linear> {
        let terms = self.terms.iter().map(|(a, c)| (c % divisor == 0).then(|| (a.clone(), c / divisor)));
        Some(Linear { terms: terms.collect::<Option<_>>()?, constant: self.constant.div_euclid(divisor) })
    }

    /// Whether the form is at most 0 for all values of the variables in `domains`.
    fn never_positive(&self, domains: &Domains) -> bool {
        let largest = self.terms.iter().try_fold(self.constant, |sum, (atom, c)| {
            let Expr::Var(v) = atom else { return None };
            let (lo, hi) = ends(domains.get(&v.id)?)?;
            sum.checked_add(c.checked_mul(if *c > 0 { hi } else { lo })?)
        });
        largest.is_some_and(|v| v <= 0)
    }
}

/// An interval, both ends included.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Smallest value.
    pub lo: Linear,
    /// Largest value.
    pub hi: Linear,
}

impl Interval {
    fn point(l: Linear) -> Interval {
        Interval { lo: l.clone(), hi: l }
    }

    fn constants(&self) -> Option<(i64, i64)> {
        Some((self.lo.as_constant()?, self.hi.as_constant()?))
    }

    /// Whether `inner`, as far as it lies in `[0, dim)`, lies in `self` for all values of the variables in `domains`.
    pub fn covers(&self, inner: &Interval, dim: i64, domains: &Domains) -> bool {
        let at_most = |a: &Linear, b: &Linear| a.add(b, -1).is_some_and(|d| d.never_positive(domains));
        let below = at_most(&self.lo, &inner.lo) || at_most(&self.lo, &Linear::of(0));
        let above = at_most(&inner.hi, &self.hi) || at_most(&Linear::of(dim - 1), &self.hi);
        below && above
    }

    /// The smallest interval that holds both, where it can be told.
    pub fn hull(&self, other: &Interval, domains: &Domains) -> Option<Interval> {
        let at_most = |a: &Linear, b: &Linear| a.add(b, -1).is_some_and(|d| d.never_positive(domains));
        let pick = |a: &Linear, b: &Linear| {
            if at_most(a, b) {
                Some((a.clone(), b.clone()))
            } else {
                at_most(b, a).then(|| (b.clone(), a.clone()))
            }
        };
        Some(Interval { lo: pick(&self.lo, &other.lo)?.0, hi: pick(&self.hi, &other.hi)?.1 })
    }

    /// All of a dimension.
    pub fn whole(dim: i64) -> Interval {
        Interval { lo: Linear::of(0), hi: Linear::of(dim - 1) }
    }
}

/// The values of `min`, `min + 1`, ... `min + extent - 1` while the variables of `relaxed` run; others stay symbols.
pub fn bounds_of_range(range: &Range, relaxed: &Domains) -> Option<Interval> {
    let start = bounds(&range.min, relaxed)?;
    let extent = bounds(&range.extent, relaxed)?;
    let hi = start.hi.add(&extent.hi, 1)?.add(&Linear::of(1), -1)?;
    Some(Interval { lo: start.lo, hi })
}

/// The values of an expression while the variables of `relaxed` run.
pub fn bounds(e: &Expr, relaxed: &Domains) -> Option<Interval> {
    if !visit::uses_var(e, &|v| relaxed.contains_key(&v)) && !matches!(e, Expr::Int(..) | Expr::Binary(..)) {
        return Some(Interval::point(Linear::atom(e)));
    }
    match e {
        Expr::Int(v, _) => Some(Interval::point(Linear::of(*v))),
        Expr::Var(v) => {
            let (lo, hi) = ends(relaxed.get(&v.id)?)?;
            Some(Interval { lo: Linear::of(lo), hi: Linear::of(hi) })
        }
        Expr::Binary(op, a, b) => {
            let sides = bounds(a, relaxed).zip(bounds(b, relaxed));
            sides.and_then(|(x, y)| combine(*op, &x, &y)).or_else(|| {
                let free = !visit::uses_var(e, &|v| relaxed.contains_key(&v));
                free.then(|| Interval::point(Linear::atom(e)))
            })
        }
        _ => None,
    }
}

fn combine(op: BinOp, x: &Interval, y: &Interval) -> Option<Interval> {
    let same = y.constants().filter(|(a, b)| a == b).map(|(a, _)| a);
    match op {
        BinOp::Add => Some(Interval { lo: x.lo.add(&y.lo, 1)?, hi: x.hi.add(&y.hi, 1)? }),
        BinOp::Sub => Some(Interval { lo: x.lo.add(&y.hi, -1)?, hi: x.hi.add(&y.lo, -1)? }),
        BinOp::Mul => match (same, x.constants().filter(|(a, b)| a == b)) {
            (Some(c), _) if c >= 0 => Some(Interval { lo: x.lo.scale(c)?, hi: x.hi.scale(c)? }),
            (Some(c), _) => Some(Interval { lo: x.hi.scale(c)?, hi: x.lo.scale(c)? }),
            (None, Some((c, _))) => combine(BinOp::Mul, y, &Interval::point(Linear::of(c))),
            _ => None,
        },
        BinOp::FloorDiv => {
            let c = same.filter(|c| *c > 0)?;
            Some(Interval { lo: x.lo.divide(c)?, hi: x.hi.divide(c)? })
        }
        BinOp::FloorMod => {
            let c = same.filter(|c| *c > 0)?;
            match x.constants() {
                Some((lo, hi)) if lo.div_euclid(c) == hi.div_euclid(c) => {
                    Some(Interval { lo: Linear::of(lo.rem_euclid(c)), hi: Linear::of(hi.rem_euclid(c)) })
                }
                None if x.lo == x.hi => None,
                _ => Some(Interval::whole(c)),
            }
        }
        BinOp::Min | BinOp::Max => {
            let ((a, b), (c, d)) = (x.constants()?, y.constants()?);
            let pick = |p: i64, q: i64| if op == BinOp::Min { p.min(q) } else { p.max(q) };
            Some(Interval { lo: Linear::of(pick(a, c)), hi: Linear::of(pick(b, d)) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::{add, floor_div, floor_mod, int, mul};
    use proptest::prelude::*;
    use satune_ir::{DType, Var, VarId};

    fn var(id: u32) -> Expr {
        Expr::Var(Var { id: VarId(id), name: format!("x{id}").into(), dtype: DType::I32 })
    }

    fn range(extent: i64) -> Range {
        Range { min: int(0, DType::I32), extent: int(extent, DType::I32) }
    }

    #[test]
    fn symbols_cancel() {
        let (inner, outer) = (Domains::from([(VarId(0), range(4))]), Domains::from([(VarId(1), range(8))]));
        let tile = |offset| add(mul(var(1), int(4, DType::I32)), add(var(0), int(offset, DType::I32)));
        let at = |offset| bounds(&tile(offset), &inner).unwrap();
        assert!(at(0).covers(&at(0), 32, &outer));
        assert!(!at(0).covers(&at(1), 32, &outer));
        assert!(!at(0).covers(&at(-1), 32, &outer));
        assert!(Interval::whole(32).covers(&at(0), 32, &outer));
        let quotient = bounds(&floor_div(tile(0), 4, DType::I32), &inner).unwrap();
        assert_eq!(quotient, bounds(&var(1), &inner).unwrap());
    }

    fn expression() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![(0u32..2).prop_map(var), (-4i64..9).prop_map(|v| int(v, DType::I32))];
        leaf.prop_recursive(4, 16, 2, |e| {
            prop_oneof![
                (e.clone(), e.clone()).prop_map(|(a, b)| add(a, b)),
                (e.clone(), -3i64..6).prop_map(|(a, c)| mul(a, int(c, DType::I32))),
                (e.clone(), 1i64..6).prop_map(|(a, c)| floor_div(a, c, DType::I32)),
                (e, 1i64..6).prop_map(|(a, c)| floor_mod(a, c, DType::I32)),
            ]
        })
    }

    fn eval(e: &Expr, point: [i64; 2]) -> i64 {
        match e {
            Expr::Int(v, _) => *v,
            Expr::Var(v) => point[v.id.0 as usize],
            Expr::Binary(op, a, b) => match (op, eval(a, point), eval(b, point)) {
                (BinOp::Add, a, b) => a + b,
                (BinOp::Mul, a, b) => a * b,
                (BinOp::FloorDiv, a, b) => a.div_euclid(b),
                (_, a, b) => a.rem_euclid(b),
            },
            _ => 0,
        }
    }

    proptest! {
        /// With x0 running and x1 a symbol, every value lies between the ends.
        #[test]
        fn hold_all_values(e in expression(), symbol in 0i64..5) {
            let Some(interval) = bounds(&e, &Domains::from([(VarId(0), range(7))])) else { return Ok(()) };
            let value = |l: &Linear| l.terms.iter().fold(l.constant, |s, (a, c)| s + c * eval(a, [0, symbol]));
            for x in 0..7 {
                let v = eval(&e, [x, symbol]);
                prop_assert!(value(&interval.lo) <= v && v <= value(&interval.hi), "{v} outside {interval:?} of {e:?}");
            }
        }
    }
}
