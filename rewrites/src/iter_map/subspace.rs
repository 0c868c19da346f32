//! Subspace division: every index as `outer · extent + inner`, where `inner` runs over the inner loops only.
//!
//! A sum that starts with parts of outer loops and goes on with parts of inner ones is divided where they meet; the parts
//! taken of such a sum are divided with it, as long as one of them ends at that boundary.
use super::{IterMap, Mark, Source, Sum, Term};
use crate::arith::{and, int, lt};
use satune_ir::{DType, Expr, VarId};

/// One side of a divided index: its value and number of values.
#[derive(Clone, Debug)]
pub struct Side {
    /// Value, in terms of the loops of this side.
    pub value: Expr,
    /// Number of values.
    pub extent: i64,
}

/// Indices divided into outer and inner sides.
#[derive(Clone, Debug)]
pub struct Division {
    /// For each index its outer and its inner side: the index is `outer · inner.extent + inner`.
    pub sides: Vec<(Side, Side)>,
    /// What guards the outer loops.
    pub outer_predicate: Expr,
    /// What guards the inner loops.
    pub inner_predicate: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DivisionKind {
    Outer,
    Inner,
    Mixed,
}

/// `outer · inner_extent + inner`.
#[derive(Clone, Debug)]
struct Divided {
    outer: Sum,
    outer_extent: i64,
    inner: Sum,
    inner_extent: i64,
    kind: DivisionKind,
}

fn zero() -> Sum {
    Sum { terms: Vec::new(), base: int(0, DType::I32) }
}

fn of_terms(terms: Vec<Term>) -> Sum {
    Sum { terms, base: int(0, DType::I32) }
}

impl Divided {
    fn outer(sum: Sum, extent: i64) -> Divided {
        Divided { outer: sum, outer_extent: extent, inner: zero(), inner_extent: 1, kind: DivisionKind::Outer }
    }

    fn inner(sum: Sum, extent: i64) -> Divided {
        Divided { outer: zero(), outer_extent: 1, inner: sum, inner_extent: extent, kind: DivisionKind::Inner }
    }
}

struct Divider<'a> {
    map: &'a mut IterMap,
    is_inner: &'a dyn Fn(VarId) -> bool,
    /// The parts taken of every mark, each as often as it is taken.
    taken: Vec<Vec<Term>>,
    /// Parts that were divided already.
    known: Vec<(Term, Divided)>,
    outer_predicate: Expr,
    inner_predicate: Expr,
}

impl IterMap {
    /// Divides the indices between the loops for which `is_inner` holds and the others. None where they cannot be.
    pub fn divide(&self, is_inner: &dyn Fn(VarId) -> bool) -> Option<Division> {
        let mut map = self.clone();
        let taken = self.taken();
        let yes = int(1, DType::Bool);
        let mut divider = Divider {
            map: &mut map,
            is_inner,
            taken,
            known: Vec::new(),
            outer_predicate: yes.clone(),
            inner_predicate: yes,
        };
        let mut divided = Vec::new();
        for sum in &self.sums {
            divided.push(divider.sum(sum)?);
        }
        let (outer_predicate, inner_predicate) = (divider.outer_predicate, divider.inner_predicate);
        let side = |sum: &Sum, extent| Side { value: map.expr(sum), extent };
        let sides = divided.iter().map(|d| (side(&d.outer, d.outer_extent), side(&d.inner, d.inner_extent))).collect();
        Some(Division { sides, outer_predicate, inner_predicate })
    }

    /// The parts taken of every mark, over all indices and the marks that they use.
    fn taken(&self) -> Vec<Vec<Term>> {
        let mut out: Vec<Vec<Term>> = vec![Vec::new(); self.marks.len()];
        let mut opened = vec![false; self.marks.len()];
        let mut todo: Vec<Term> = self.sums.iter().flat_map(|s| s.terms.clone()).collect();
        while let Some(t) = todo.pop() {
            let mark = t.mark;
            out[mark].push(t);
            if !std::mem::replace(&mut opened[mark], true) {
                if let Source::Sum(parts) = &self.marks[mark].source {
                    todo.extend(parts.iter().cloned());
                }
            }
        }
        out
    }
}

impl Divider<'_> {
    /// A whole index: one part with a base.
    fn sum(&mut self, sum: &Sum) -> Option<Divided> {
        match sum.terms.as_slice() {
            [] => Some(Divided {
                outer: zero(),
                outer_extent: 1,
                inner: sum.clone(),
                inner_extent: 1,
                kind: DivisionKind::Mixed,
            }),
            [t] if t.scale == 1 => {
                let mut out = self.part(t)?;
                out.inner.base = crate::arith::add(out.inner.base, sum.base.clone());
                Some(out)
            }
            _ => None,
        }
    }

    /// The sum that a mark stands for, of which `extent` values are used.
    fn parts(&mut self, parts: &[Term], extent: i64) -> Option<Divided> {
        let mut total = 1i64;
        let (mut outer, mut inner) = (Vec::new(), Vec::new());
        for t in parts.iter().rev() {
            let divided = self.part(t)?;
            let part = match divided.kind {
                DivisionKind::Inner if outer.is_empty() => {
                    inner.push(self.as_part(divided.inner, divided.inner_extent));
                    inner.last()
                }
                DivisionKind::Outer => {
                    outer.push(self.as_part(divided.outer, divided.outer_extent));
                    outer.last()
                }
                _ => return None,
            };
            total = total.checked_mul(part?.extent)?;
        }
        let whole = total == extent;
        let (outer, outer_extent) = radix(outer)?;
        let (inner, inner_extent) = radix(inner)?;
        if whole {
            return Some(Divided { outer, outer_extent, inner, inner_extent, kind: DivisionKind::Mixed });
        }
        // A guarded sum cannot be divided: all of it lies on one side, and its guard too.
        let guard = |map: &IterMap, sum: &Sum| lt(map.expr(sum), int(extent, DType::I32));
        if inner.terms.is_empty() {
            self.outer_predicate = and(self.outer_predicate.clone(), guard(self.map, &outer));
            Some(Divided::outer(outer, extent))
        } else if outer.terms.is_empty() {
            self.inner_predicate = and(self.inner_predicate.clone(), guard(self.map, &inner));
            Some(Divided::inner(inner, extent))
        } else {
            None
        }
    }

    /// A sum as one part; a new mark stands for it where it has several.
    fn as_part(&mut self, sum: Sum, extent: i64) -> Term {
        match <[Term; 1]>::try_from(sum.terms) {
            Ok([t]) => t,
            Err(terms) => Term { mark: self.new_mark(terms, extent), lower: 1, extent, scale: 1 },
        }
    }

    fn new_mark(&mut self, terms: Vec<Term>, extent: i64) -> usize {
        self.map.marks.push(Mark { source: Source::Sum(terms), extent, padded: extent });
        self.map.marks.len() - 1
    }

    /// A part of a mark.
    fn part(&mut self, t: &Term) -> Option<Divided> {
        if let Some((_, d)) = self.known.iter().find(|(k, _)| k == t) {
            return Some(d.clone());
        }
        let mark = self.map.marks.get(t.mark)?.clone();
        match &mark.source {
            Source::Var(e) => {
                if mark.padded != mark.extent && (t.lower != 1 || t.extent != mark.extent) {
                    return None;
                }
                let inner = satune_ir::visit::uses_var(e, self.is_inner);
                let sum = of_terms(vec![t.clone()]);
                Some(if inner { Divided::inner(sum, t.extent) } else { Divided::outer(sum, t.extent) })
            }
            Source::Sum(parts) => {
                let whole = self.parts(parts, mark.extent)?;
                let taken = self.taken.get(t.mark)?.clone();
                if let [only] = taken.as_slice() {
                    // The only part taken is divided as the whole; any other part would have to be cut first.
                    return (only.lower == 1 && only.extent == mark.extent).then_some(whole);
                }
                self.split_mark(&whole, taken)?;
                self.known.iter().find(|(k, _)| k == t).map(|(_, d)| d.clone())
            }
        }
    }

    /// Divides the parts taken of a mark: those below the boundary are inner, the others outer.
    fn split_mark(&mut self, whole: &Divided, taken: Vec<Term>) -> Option<()> {
        let outer_mark = self.new_mark(whole.outer.terms.clone(), whole.outer_extent);
        let inner_mark = self.new_mark(whole.inner.terms.clone(), whole.inner_extent);
        let mut beyond = whole.kind == DivisionKind::Outer;
        let mut next = 1i64;
        let mut boundary = None;
        let mut rest = taken;
        while !rest.is_empty() {
            let at = rest.iter().position(|p| p.lower == next)?;
            let part = rest.remove(at);
            let divided = if beyond {
                let first = *boundary.get_or_insert(part.lower);
                let moved = Term { mark: outer_mark, lower: part.lower / first, ..part.clone() };
                Divided::outer(of_terms(vec![moved]), part.extent)
            } else {
                Divided::inner(of_terms(vec![Term { mark: inner_mark, ..part.clone() }]), part.extent)
            };
            next = next.checked_mul(part.extent)?;
            beyond |= next == whole.inner_extent;
            self.known.push((part, divided));
        }
        beyond.then_some(())
    }
}

/// Parts given from the innermost on as one sum in mixed radix, with its number of values.
fn radix(parts: Vec<Term>) -> Option<(Sum, i64)> {
    let mut extent = 1i64;
    let mut terms = Vec::with_capacity(parts.len());
    for t in parts {
        let next = extent.checked_mul(t.extent)?;
        terms.push(Term { scale: extent, ..t });
        extent = next;
    }
    terms.reverse();
    Some((of_terms(terms), extent))
}
