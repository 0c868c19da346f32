//! Conditions on integers: predicates of blocks, guards of accesses.
use super::linear::{Atom, Linear, Ranges};
use satune_ir::{BinOp, DType, Expr, VarId};

/// A condition. Forms of comparisons have no constant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pred {
    Never,
    /// `form < bound`.
    Lt(Linear, i64),
    /// `form == value`.
    Eq(Linear, i64),
    Not(Box<Pred>),
    And(Vec<Pred>),
    Or(Vec<Pred>),
}

impl Pred {
    /// The clauses of a conjunction; no clause is "true". None for conditions that depend on data.
    pub fn clauses(e: &Expr, ranges: &Ranges) -> Option<Vec<Pred>> {
        Pred::clauses_of(e, &|e| Linear::of_expr(e, ranges), ranges)
    }

    /// The clauses of a conjunction of comparisons of what has a form.
    pub fn clauses_of(e: &Expr, form: &dyn Fn(&Expr) -> Option<Linear>, ranges: &Ranges) -> Option<Vec<Pred>> {
        let of = |e: &Expr| Pred::clauses_of(e, form, ranges);
        match e {
            Expr::Int(v, _) => Some(if *v == 0 { vec![Pred::Never] } else { vec![] }),
            Expr::Not(a) => Some(Pred::negated(of(a)?)),
            Expr::Cast(DType::Bool, a) => of(a),
            Expr::Binary(BinOp::And, a, b) => {
                let mut all = of(a)?;
                all.extend(of(b)?);
                Some(all)
            }
            Expr::Binary(BinOp::Or, a, b) => {
                let (a, b) = (of(a)?, of(b)?);
                Some(if a.is_empty() || b.is_empty() { vec![] } else { vec![Pred::Or(vec![all(a), all(b)])] })
            }
            Expr::Binary(op, a, b) => {
                let difference = form(a)?.plus(&form(b)?, -1);
                Some(match op {
                    BinOp::Lt => Pred::lt(&difference, ranges),
                    BinOp::Le => Pred::lt(&difference.shifted(-1), ranges),
                    BinOp::Gt => Pred::lt(&difference.scaled(-1), ranges),
                    BinOp::Ge => Pred::lt(&difference.scaled(-1).shifted(-1), ranges),
                    BinOp::Eq => Pred::eq(&difference, ranges),
                    BinOp::Ne => Pred::negated(Pred::eq(&difference, ranges)),
                    _ => return None,
                })
            }
            _ => None,
        }
    }

    /// `form < 0`.
    pub fn lt(form: &Linear, ranges: &Ranges) -> Vec<Pred> {
        let (lo, hi) = form.range(ranges);
        if hi < 0 {
            vec![]
        } else if lo >= 0 {
            vec![Pred::Never]
        } else {
            vec![Pred::Lt(form.shifted(-form.constant), -form.constant)]
        }
    }

    /// `form == 0`.
    pub fn eq(form: &Linear, ranges: &Ranges) -> Vec<Pred> {
        let (lo, hi) = form.range(ranges);
        if (lo, hi) == (0, 0) {
            vec![]
        } else if lo > 0 || hi < 0 {
            vec![Pred::Never]
        } else {
            vec![Pred::Eq(form.shifted(-form.constant), -form.constant)]
        }
    }

    /// The opposite of a conjunction.
    pub fn negated(mut clauses: Vec<Pred>) -> Vec<Pred> {
        if clauses.is_empty() {
            return vec![Pred::Never];
        }
        if clauses.len() > 1 {
            return vec![Pred::Not(Box::new(Pred::And(clauses)))];
        }
        match clauses.remove(0) {
            Pred::Never => vec![],
            Pred::Lt(form, bound) => vec![Pred::Lt(form.scaled(-1), 1 - bound)],
            other => vec![Pred::Not(Box::new(other))],
        }
    }

    /// Whether a variable in it satisfies `pred`.
    pub fn uses(&self, pred: &dyn Fn(VarId) -> bool) -> bool {
        match self {
            Pred::Never => false,
            Pred::Lt(l, _) | Pred::Eq(l, _) => l.uses(pred),
            Pred::Not(p) => p.uses(pred),
            Pred::And(list) | Pred::Or(list) => list.iter().any(|p| p.uses(pred)),
        }
    }

    /// Puts the loads in it into a list, each after those that its own index needs.
    pub fn loads(&self, out: &mut Vec<Atom>) {
        match self {
            Pred::Never => {}
            Pred::Lt(l, _) | Pred::Eq(l, _) => l.loads(out),
            Pred::Not(p) => p.loads(out),
            Pred::And(list) | Pred::Or(list) => list.iter().for_each(|p| p.loads(out)),
        }
    }

    /// Whether data decide it.
    pub fn is_data(&self) -> bool {
        let mut found = Vec::new();
        self.loads(&mut found);
        !found.is_empty()
    }

    /// Whether it is sure to hold.
    pub fn holds(&self, ranges: &Ranges) -> bool {
        matches!(self, Pred::Lt(form, bound) if form.range(ranges).1 < *bound)
    }

    /// The same condition without what cannot decide it: `4 t + j < 1000` is `t < 250` where j is less than 4.
    pub fn coarse(&self, ranges: &Ranges) -> Pred {
        let Pred::Lt(form, bound) = self else { return self.clone() };
        match form.low_part(*bound, ranges) {
            Some((g, high, _)) => Pred::Lt(high, bound / g),
            None => self.clone(),
        }
    }

    /// Whether every form in it satisfies `f`.
    pub fn forms(&self, f: &mut dyn FnMut(&Linear) -> bool) -> bool {
        match self {
            Pred::Never => true,
            Pred::Lt(l, _) | Pred::Eq(l, _) => f(l),
            Pred::Not(p) => p.forms(f),
            Pred::And(list) | Pred::Or(list) => list.iter().all(|p| p.forms(f)),
        }
    }

    /// The condition with other forms in it.
    pub fn map(&self, f: &mut dyn FnMut(&Linear) -> Linear) -> Pred {
        match self {
            Pred::Never => Pred::Never,
            Pred::Lt(l, bound) => {
                let l = f(l);
                Pred::Lt(l.shifted(-l.constant), bound.saturating_sub(l.constant))
            }
            Pred::Eq(l, value) => {
                let l = f(l);
                Pred::Eq(l.shifted(-l.constant), value.saturating_sub(l.constant))
            }
            Pred::Not(p) => Pred::Not(Box::new(p.map(f))),
            Pred::And(list) => Pred::And(list.iter().map(|p| p.map(f)).collect()),
            Pred::Or(list) => Pred::Or(list.iter().map(|p| p.map(f)).collect()),
        }
    }
}

/// The conjunction as one condition.
pub fn all(mut clauses: Vec<Pred>) -> Pred {
    if clauses.len() == 1 {
        clauses.remove(0)
    } else {
        Pred::And(clauses)
    }
}

/// Adds clauses that are not there yet.
pub fn join(clauses: &mut Vec<Pred>, more: Vec<Pred>) {
    for p in more {
        if !clauses.contains(&p) {
            clauses.push(p);
        }
    }
}

/// Range of a form where the clauses hold.
///
/// A clause `e < c` bounds the form itself where they differ by a constant, and quotients and multiples of `e` in it.
pub fn range_under(form: &Linear, clauses: &[Pred], ranges: &Ranges) -> (i64, i64) {
    let (mut lo, mut hi) = form.range(ranges);
    for (atom, c) in form.terms.iter().filter(|(_, c)| *c > 0) {
        let Atom::Div(inner, d) = atom else { continue };
        let most = range_of_parts(inner, clauses, ranges).1.div_euclid(*d);
        let (other, _) = form.partition(&|a| a != atom);
        hi = hi.min(other.shifted(form.constant).range(ranges).1.saturating_add(most.saturating_mul(*c)));
    }
    for clause in clauses {
        let Pred::Lt(e, bound) = clause else { continue };
        let same = |factor: i64| form.plus(e, -factor);
        if let Some(rest) = same(1).as_constant() {
            hi = hi.min((bound - 1).saturating_add(rest));
        }
        if let Some(rest) = same(-1).as_constant() {
            lo = lo.max(rest.saturating_sub(bound - 1));
        }
        // Quotients that came apart: the form is e // d in another shape, times a number, and a rest.
        if e.range(ranges).0 >= 0 {
            for d in (2..=*bound.min(&4096)).filter(|d| bound % d == 0) {
                let quotient = e.divided(d, ranges);
                if let Some(factor) = form.times(&quotient).filter(|f| *f > 0) {
                    let rest = form.plus(&quotient, -factor).range(ranges).1;
                    hi = hi.min((bound / d - 1).saturating_mul(factor).saturating_add(rest));
                }
            }
        }
    }
    (lo, hi)
}

/// Range of a form where the clauses hold, as [`range_under`] has it, and by clauses on a part of the form, times a number: a
/// condition on `2 (32 w + l) + r` may have come apart to one on `32 w + l`.
pub fn range_of_parts(form: &Linear, clauses: &[Pred], ranges: &Ranges) -> (i64, i64) {
    let (mut lo, mut hi) = range_under(form, clauses, ranges);
    for clause in clauses {
        let Pred::Lt(e, bound) = clause else { continue };
        // The clause is on the form times a number: on 8 t + j, of t.
        if let Some(factor) = e.times(form).filter(|factor| *factor > 1) {
            let rest = e.plus(form, -factor).range(ranges).0;
            hi = hi.min((bound - 1).saturating_sub(rest).div_euclid(factor));
        }
        let Some(factor) = form.times(e) else { continue };
        // `e` is the form over a number, in another shape: 2 w + l // 4 of 32 w + 4 l + r, over 16.
        let over = || {
            let quotient = form.divided(factor, ranges);
            quotient == *e || quotient.joined(ranges) == *e
        };
        if factor > 1 && form.range(ranges).0 >= 0 && over() {
            hi = hi.min(bound.saturating_mul(factor).saturating_sub(1));
        }
        let most = (bound - 1).saturating_mul(factor);
        let rest = form.plus(e, -factor).range(ranges);
        if factor > 0 {
            hi = hi.min(most.saturating_add(rest.1));
        } else {
            lo = lo.max(most.saturating_add(rest.0));
        }
    }
    (lo, hi)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_a_vector_end_together() {
        let [t, j] = [0, 1].map(|i| Linear::var(VarId(i)));
        let ranges: Ranges = [(VarId(0), (0, 255)), (VarId(1), (0, 3))].into_iter().collect();
        let of = |bound: i64| Pred::Lt(t.scaled(4).plus(&j, 1), bound).coarse(&ranges);
        assert_eq!(of(1000), Pred::Lt(t.clone(), 250));
        assert_eq!(of(1001), Pred::Lt(t.scaled(4).plus(&j, 1), 1001));
        // Two of four elements are beyond it.
        assert_eq!(of(1002), Pred::Lt(t.scaled(4).plus(&j, 1), 1002));
    }

    #[test]
    fn guards_on_parts_bound_the_whole() {
        // 64 w + 2 l + r where 32 w + l < 40; the guard comes apart from 2 (32 w + l) + r < 80.
        let [w, l, r] = [0, 1, 2].map(|i| Linear::var(VarId(i)));
        let ranges: Ranges = [(VarId(0), (0, 1)), (VarId(1), (0, 31)), (VarId(2), (0, 1))].into_iter().collect();
        let guard = [Pred::Lt(w.scaled(32).plus(&l, 1), 40)];
        let form = w.scaled(64).plus(&l, 2).plus(&r, 1);
        assert_eq!(form.range(&ranges), (0, 127));
        assert_eq!(range_of_parts(&form, &guard, &ranges), (0, 79));
        assert_eq!(range_of_parts(&form.scaled(-1), &guard, &ranges), (-79, 0));
        // 64 k + (32 w + l) // 14 where 8 (32 w + l) + r < 320.
        let k = Linear::var(VarId(5));
        let ranges: Ranges =
            [(VarId(0), (0, 7)), (VarId(1), (0, 31)), (VarId(2), (0, 7)), (VarId(5), (0, 3))].into_iter().collect();
        let number = w.scaled(32).plus(&l, 1);
        let guard = [Pred::Lt(number.scaled(8).plus(&r, 1), 320)];
        assert_eq!(range_of_parts(&k.scaled(64).plus(&number.divided(14, &ranges), 1), &guard, &ranges), (0, 194));
        // 32 (t // 8) + 4 (t % 8) + r where 2 (t // 8) + t % 8 // 4 < 3.
        let [t, r] = [3, 4].map(|i| Linear::var(VarId(i)));
        let ranges: Ranges = [(VarId(3), (0, 15)), (VarId(4), (0, 3))].into_iter().collect();
        let (high, low) = (t.divided(8, &ranges), t.remainder(8, &ranges));
        let guard = [Pred::Lt(high.scaled(2).plus(&low.divided(4, &ranges), 1), 3)];
        let form = high.scaled(32).plus(&low, 4).plus(&r, 1);
        assert_eq!(range_of_parts(&form, &guard, &ranges), (0, 47));
        // 32 (t % 2) + t // 2 where 8 (t % 2) + t // 2 // 4 < 9, whose quotient comes first.
        let (high, low) = (t.remainder(2, &ranges), t.divided(2, &ranges));
        let guard = [Pred::Lt(high.scaled(8).plus(&low.divided(4, &ranges), 1), 9)];
        assert_eq!(range_of_parts(&high.scaled(32).plus(&low, 1), &guard, &ranges), (0, 35));
    }
}
