//! Intervals of index expressions, their ends linear forms.
use crate::affine::linear::Linear;
use crate::affine::{constant, ends, Domains};
use crate::{visit, BinOp, Expr, Range};

/// Consecutive values, both ends included.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Smallest value.
    pub lo: Linear,
    /// Largest value.
    pub hi: Linear,
}

impl Interval {
    /// One value.
    pub fn point(l: Linear) -> Interval {
        Interval { lo: l.clone(), hi: l }
    }

    /// Constant ends.
    pub fn constant(lo: i64, hi: i64) -> Interval {
        Interval { lo: Linear::constant(lo), hi: Linear::constant(hi) }
    }

    /// Number of values.
    pub fn extent(&self, domains: &Domains) -> Option<Linear> {
        self.hi.plus(&self.lo, -1)?.shifted(1)?.joined(domains)
    }

    /// The smallest interval that holds both.
    pub fn union(&self, other: &Interval, domains: &Domains) -> Interval {
        Interval { lo: self.lo.min(&other.lo, domains), hi: self.hi.max(&other.hi, domains) }
    }

    /// What both hold.
    pub fn intersection(&self, other: &Interval, domains: &Domains) -> Interval {
        Interval { lo: self.lo.max(&other.lo, domains), hi: self.hi.min(&other.hi, domains) }
    }

    /// `v, v + 1, ... v + extent - 1` for the values of an index while the variables of `relaxed` run.
    pub fn of_range(range: &Range, relaxed: &Domains, outer: &Domains) -> Option<Interval> {
        let start = Interval::of(&range.min, relaxed, outer)?;
        let extent = Interval::of(&range.extent, relaxed, outer)?;
        Some(Interval { lo: start.lo, hi: start.hi.plus(&extent.hi, 1)?.shifted(-1)? })
    }

    /// An interval that holds the values of an expression while the variables of `relaxed` run. Others stay symbols; those
    /// of `outer` have a known domain. Of bitwise operations nothing is known, even where nothing runs (as in TVM).
    pub fn of(e: &Expr, relaxed: &Domains, outer: &Domains) -> Option<Interval> {
        if !visit::uses_var(e, &|v| relaxed.contains_key(&v)) && !has_bits(e) {
            return Linear::of(e, outer).map(Interval::point);
        }
        match e {
            Expr::Var(v) => {
                let (lo, hi) = ends(relaxed.get(&v.id)?)?;
                Some(Interval::constant(lo, hi))
            }
            Expr::Binary(BinOp::FloorMod, a, c) => {
                let c = constant(c).filter(|c| *c > 0)?;
                match Interval::of(a, relaxed, outer) {
                    Some(x) => x.rem(c, outer),
                    // Whatever it is.
                    None => Some(Interval::constant(0, c - 1)),
                }
            }
            Expr::Binary(op, a, b) => {
                let (x, y) = (Interval::of(a, relaxed, outer)?, Interval::of(b, relaxed, outer)?);
                let c = y.lo.as_constant().filter(|_| y.lo == y.hi);
                match op {
                    BinOp::Add => {
                        let sum = |p: &Linear, q: &Linear| p.plus(q, 1).and_then(|l| l.joined(outer));
                        Some(Interval { lo: sum(&x.lo, &y.lo)?, hi: sum(&x.hi, &y.hi)? })
                    }
                    BinOp::Sub => Some(Interval { lo: x.lo.plus(&y.hi, -1)?, hi: x.hi.plus(&y.lo, -1)? }),
                    BinOp::Mul => match (c, x.lo.as_constant().filter(|_| x.lo == x.hi)) {
                        (Some(c), _) => x.times(c),
                        (None, Some(c)) => y.times(c),
                        _ => None,
                    },
                    BinOp::FloorDiv => x.div(c.filter(|c| *c > 0)?, outer),
                    BinOp::Min => Some(Interval { lo: x.lo.min(&y.lo, outer), hi: x.hi.min(&y.hi, outer) }),
                    BinOp::Max => Some(Interval { lo: x.lo.max(&y.lo, outer), hi: x.hi.max(&y.hi, outer) }),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// `self // c`, for a positive `c`.
    pub fn div(&self, c: i64, outer: &Domains) -> Option<Interval> {
        let lo = self.lo.div(c, outer)?;
        let hi = if self.within_a_step(c) { lo.clone() } else { self.hi.div(c, outer)? };
        Some(Interval { lo, hi })
    }

    /// Whether all values have one quotient by `c`, because they are fewer than the steps in which the first of them moves on.
    fn within_a_step(&self, c: i64) -> bool {
        let further = self.hi.plus(&self.lo, -1).and_then(|l| l.as_constant());
        further.is_some_and(|further| (0..self.lo.step(c)).contains(&further))
    }

    /// `self % c`, for a positive `c`.
    pub fn rem(&self, c: i64, outer: &Domains) -> Option<Interval> {
        if self.lo == self.hi {
            return self.lo.rem(c, outer).map(Interval::point);
        }
        let Interval { lo: low, hi: high } = self.div(c, outer)?;
        if low == high {
            let rest = |end: &Linear| end.plus(&low, -c).and_then(|l| l.joined(outer));
            return Some(Interval { lo: rest(&self.lo)?, hi: rest(&self.hi)? });
        }
        Some(Interval::constant(0, c - 1))
    }

    /// `self · c`.
    pub fn times(&self, c: i64) -> Option<Interval> {
        let (lo, hi) = (self.lo.scale(c)?, self.hi.scale(c)?);
        Some(if c >= 0 { Interval { lo, hi } } else { Interval { lo: hi, hi: lo } })
    }

    /// The values `[0, dim)`.
    pub fn whole(dim: i64) -> Interval {
        Interval::constant(0, dim.saturating_sub(1))
    }

    /// Whether `inner`, as far as it lies in `[0, dim)`, lies in `self` for all values of the variables in `domains`.
    pub fn covers(&self, inner: &Interval, dim: i64, domains: &Domains) -> bool {
        let Interval { lo: first, hi: last } = Interval::whole(dim);
        let below = self.lo.at_most(&inner.lo, domains) || self.lo.at_most(&first, domains);
        let above = inner.hi.at_most(&self.hi, domains) || last.at_most(&self.hi, domains);
        below && above
    }

    /// The smallest interval that holds both, where it can be told which ends are further out.
    pub fn hull(&self, other: &Interval, domains: &Domains) -> Option<Interval> {
        let ordered = |a: &Linear, b: &Linear| a.at_most(b, domains) || b.at_most(a, domains);
        (ordered(&self.lo, &other.lo) && ordered(&self.hi, &other.hi)).then(|| self.union(other, domains))
    }
}

/// Whether an expression has bitwise operations.
pub fn has_bits(e: &Expr) -> bool {
    let mut found = false;
    visit::walk_expr(e, &mut |e| found |= matches!(e, Expr::Binary(BinOp::BitXor | BinOp::BitAnd | BinOp::BitOr, ..)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affine::int;
    use crate::affine::{add, floor_div, floor_mod, mul};
    use crate::DType;
    use crate::{Var, VarId};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn var(id: u32) -> Expr {
        Expr::Var(Var { id: VarId(id), name: format!("x{id}").into(), dtype: DType::I32 })
    }

    fn range(extent: i64) -> Range {
        Range { min: int(0, DType::I32), extent: int(extent, DType::I32) }
    }

    #[test]
    fn symbols_cancel() {
        let (inner, outer) = (Domains::from([(VarId(0), range(4))]), Domains::from([(VarId(1), range(8))]));
        let none = Domains::new();
        let tile = |offset| add(mul(var(1), int(4, DType::I32)), add(var(0), int(offset, DType::I32)));
        let at = |offset| Interval::of(&tile(offset), &inner, &none).unwrap();
        assert!(at(0).covers(&at(0), 32, &outer));
        assert!(!at(0).covers(&at(1), 32, &outer));
        assert!(!at(0).covers(&at(-1), 32, &outer));
        assert!(Interval::whole(32).covers(&at(0), 32, &outer));
        let quotient = Interval::of(&floor_div(tile(0), 4, DType::I32), &inner, &none).unwrap();
        assert_eq!(quotient, Interval::of(&var(1), &inner, &none).unwrap());
    }

    #[test]
    fn a_vector_lies_in_one_row() {
        let inner = Domains::from([(VarId(0), range(4))]);
        let outer = Domains::from([(VarId(1), range(64)), (VarId(2), range(512))]);
        let times = |v: u32, c: i64| mul(var(v), int(c, DType::I32));
        let at = add(add(times(2, 256), times(1, 4)), var(0));
        // Rows of whole chunks, of parts of them, and of any multiples of the vector.
        for row in [1024, 64, 40_000, 4] {
            let row_of = Interval::of(&floor_div(at.clone(), row, DType::I32), &inner, &outer).unwrap();
            assert_eq!(row_of.lo, row_of.hi, "{row}");
            let column = Expr::Binary(BinOp::FloorMod, Arc::new(at.clone()), Arc::new(int(row, DType::I32)));
            let column = Interval::of(&column, &inner, &outer).unwrap();
            assert_eq!(column.extent(&outer).and_then(|e| e.as_constant()), Some(4), "{row}");
        }
        let across = Interval::of(&floor_div(at, 6, DType::I32), &inner, &outer).unwrap();
        assert_ne!(across.lo, across.hi);
    }

    fn expression() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![(0u32..2).prop_map(var), (-4i64..9).prop_map(|v| int(v, DType::I32))];
        leaf.prop_recursive(4, 16, 2, |e| {
            prop_oneof![
                (e.clone(), e.clone()).prop_map(|(a, b)| add(a, b)),
                (e.clone(), -3i64..6).prop_map(|(a, c)| mul(a, int(c, DType::I32))),
                (e.clone(), 1i64..6).prop_map(|(a, c)| floor_div(a, c, DType::I32)),
                (e.clone(), 1i64..6).prop_map(|(a, c)| floor_mod(a, c, DType::I32)),
                (e.clone(), e, 1i64..9).prop_map(|(a, b, c)| {
                    floor_mod(Expr::Binary(BinOp::BitXor, Arc::new(a), Arc::new(b)), c, DType::I32)
                }),
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
                (BinOp::Sub, a, b) => a - b,
                (BinOp::FloorDiv, a, b) => a.div_euclid(b),
                (BinOp::FloorMod, a, b) => a.rem_euclid(b),
                (BinOp::BitXor, a, b) => a ^ b,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        /// With x0 running and x1 a symbol, every value lies between the ends.
        #[test]
        fn hold_all_values(e in expression(), symbol in 0i64..5) {
            let relaxed = Domains::from([(VarId(0), range(7))]);
            let Some(interval) = Interval::of(&e, &relaxed, &Domains::new()) else { return Ok(()) };
            let value = |l: &Linear| eval(&l.expr(), [0, symbol]);
            for x in 0..7 {
                let v = eval(&e, [x, symbol]);
                prop_assert!(value(&interval.lo) <= v && v <= value(&interval.hi), "{v} outside {interval:?} of {e:?}");
            }
        }
    }
}
