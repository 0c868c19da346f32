//! The inverse of a bijective iter-map: from indices back to variables.
use super::{IterMap, Source};
use crate::arith::{add, constant, floor_div, floor_mod, int, mul, Domains};
use crate::linear::{Interval, Linear};
use satune_ir::affine::ends;
use satune_ir::{BinOp, DType, Expr, VarId};
use std::collections::HashMap;
use std::sync::Arc;

impl IterMap {
    /// The values of the variables of `domains` for which the indices lie in `outputs`: exact where those are single
    /// values, an interval that holds them all otherwise. None where the map is not bijective. Variables of one value may
    /// be missing.
    pub fn inverse(
        &self,
        outputs: &[Interval],
        domains: &Domains,
        outer: &Domains,
    ) -> Option<HashMap<VarId, Interval>> {
        if !self.is_bijective(domains) || outputs.len() != self.sums.len() {
            return None;
        }
        let mut values: Vec<Option<Interval>> = vec![None; self.marks.len()];
        for (sum, out) in self.sums.iter().zip(outputs) {
            let base = Interval::point(Linear::of(&sum.base, outer)?);
            let out = Interval { lo: out.lo.plus(&base.hi, -1)?, hi: out.hi.plus(&base.lo, -1)? };
            let Some(t) = sum.terms.first() else { continue };
            let part = out.div(t.scale, outer)?;
            accumulate(&mut values[t.mark], &part.times(t.lower)?, outer)?;
        }
        // A fused mark is made after the marks of its parts.
        for m in (0..self.marks.len()).rev() {
            let Source::Sum(parts) = &self.marks[m].source else { continue };
            let Some(value) = values[m].clone() else { continue };
            for (i, p) in parts.iter().enumerate() {
                let quotient = value.div(p.scale, outer)?;
                let part = if i == 0 { quotient } else { quotient.rem(p.extent, outer)? };
                accumulate(&mut values[p.mark], &part.times(p.lower)?, outer)?;
            }
        }
        let mut out = HashMap::new();
        for (mark, value) in self.marks.iter().zip(values) {
            if let (Source::Var(e), Some(value)) = (&mark.source, value) {
                let (id, offset) = shifted_variable(e)?;
                out.insert(id, Interval { lo: value.lo.shifted(-offset)?, hi: value.hi.shifted(-offset)? });
            }
        }
        Some(out)
    }

    /// The variables in terms of the indices, where every variable can be told from them (see
    /// [`IterMap::is_injective`]): expressions in TVM's form, not simplified. None where an index has a stride.
    pub fn inverse_exprs(&self, outputs: &[Expr]) -> Option<HashMap<VarId, Expr>> {
        let dtype = DType::I32;
        let mut values: Vec<Option<Expr>> = vec![None; self.marks.len()];
        let put = |values: &mut Vec<Option<Expr>>, mark: usize, part: Expr| {
            values[mark] = Some(match values[mark].take() {
                None => part,
                Some(old) => add(old, part),
            });
        };
        for (sum, out) in self.sums.iter().zip(outputs).rev() {
            let Some(t) = sum.terms.first() else { continue };
            let input = sub(out.clone(), sum.base.clone());
            if t.scale.abs() != 1 {
                return None;
            }
            put(&mut values, t.mark, mul(mul(input, int(t.scale, dtype)), int(t.lower, dtype)));
        }
        for m in (0..self.marks.len()).rev() {
            let Source::Sum(parts) = &self.marks[m].source else { continue };
            let Some(value) = values[m].clone() else { continue };
            for (i, p) in parts.iter().enumerate().rev() {
                let quotient = floor_div(value.clone(), p.scale, dtype);
                let part = if i == 0 { quotient } else { floor_mod(quotient, p.extent, dtype) };
                let part = mul(part, int(p.lower, dtype));
                put(&mut values, p.mark, part);
            }
        }
        let mut out = HashMap::new();
        for (mark, value) in self.marks.iter().zip(values) {
            if let (Source::Var(e), Some(value)) = (&mark.source, value) {
                let (id, offset) = shifted_variable(e)?;
                out.insert(id, sub(value, int(offset, dtype)));
            }
        }
        Some(out)
    }

    /// Whether every variable can be told from the indices; values of the indices may stay unused.
    pub fn is_injective(&self, domains: &Domains) -> bool {
        self.parts().iter().zip(&self.marks).all(|(parts, mark)| {
            let known = covered(parts);
            known.is_some_and(|extent| extent >= mark.extent)
        }) && self.knows_all(domains)
    }

    /// Whether every variable can be told from the indices, and all indices of the box are reached.
    pub fn is_bijective(&self, domains: &Domains) -> bool {
        let full = self.parts().iter().zip(&self.marks).all(|(parts, mark)| {
            mark.padded == mark.extent
                && (covered(parts) == Some(mark.extent) || (mark.extent == 1 && parts.is_empty()))
        });
        full && self.knows_all(domains)
    }

    /// The parts taken of every mark, in order: the divisor at which each starts, and its number of values.
    fn parts(&self) -> Vec<Vec<(i64, i64)>> {
        let mut parts: Vec<Vec<(i64, i64)>> = vec![Vec::new(); self.marks.len()];
        let mut todo: Vec<_> = self.sums.iter().flat_map(|s| s.terms.iter()).collect();
        let mut opened = vec![false; self.marks.len()];
        while let Some(t) = todo.pop() {
            parts[t.mark].push((t.lower, t.extent));
            if !std::mem::replace(&mut opened[t.mark], true) {
                if let Source::Sum(inner) = &self.marks[t.mark].source {
                    todo.extend(inner);
                }
            }
        }
        for list in &mut parts {
            list.retain(|(_, extent)| *extent != 1);
            list.sort_unstable();
        }
        parts
    }

    /// Whether every variable of several values occurs.
    fn knows_all(&self, domains: &Domains) -> bool {
        let known: Vec<VarId> = self
            .marks
            .iter()
            .filter_map(|m| match &m.source {
                Source::Var(e) => shifted_variable(e).map(|(id, _)| id),
                Source::Sum(_) => None,
            })
            .collect();
        let single = |r: &satune_ir::Range| ends(r).is_some_and(|(lo, hi)| lo == hi);
        domains.iter().all(|(v, r)| known.contains(v) || single(r))
    }
}

/// How many values of a mark its parts tell, where they lie side by side from its lowest digit on.
fn covered(parts: &[(i64, i64)]) -> Option<i64> {
    parts.iter().try_fold(1i64, |next, (lower, extent)| (*lower == next).then(|| next.checked_mul(*extent)).flatten())
}

/// `a - b`.
fn sub(a: Expr, b: Expr) -> Expr {
    match (&a, &b) {
        (_, Expr::Int(0, _)) => a,
        (Expr::Int(x, t), Expr::Int(y, _)) if x.checked_sub(*y).is_some() => Expr::Int(x - y, *t),
        _ => Expr::Binary(BinOp::Sub, Arc::new(a), Arc::new(b)),
    }
}

fn accumulate(slot: &mut Option<Interval>, part: &Interval, outer: &Domains) -> Option<()> {
    // Read again, `i // 4 * 4 + i % 4` is `i`.
    let sum = |a: &Linear, b: &Linear| Linear::of(&a.plus(b, 1)?.expr(), outer);
    *slot = Some(match slot.take() {
        None => part.clone(),
        Some(old) => Interval { lo: sum(&old.lo, &part.lo)?, hi: sum(&old.hi, &part.hi)? },
    });
    Some(())
}

/// The variable and offset of `v + offset`.
fn shifted_variable(e: &Expr) -> Option<(VarId, i64)> {
    match e {
        Expr::Var(v) => Some((v.id, 0)),
        Expr::Binary(BinOp::Add, a, b) => match &**a {
            Expr::Var(v) => Some((v.id, constant(b)?)),
            _ => None,
        },
        Expr::Binary(BinOp::Sub, a, b) => match &**a {
            Expr::Var(v) => Some((v.id, constant(b)?.checked_neg()?)),
            _ => None,
        },
        _ => None,
    }
}
