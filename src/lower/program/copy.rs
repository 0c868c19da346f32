//! Copies, as wide as both sides allow.
use super::emit::{guarded, Emitter};
use super::linear::Linear;
use super::pred::Pred;
use crate::kernel::{ArrayId, Cond, Index, Space, Stmt, Unroll, Value};
use crate::lower::index::{add, c, mul};
use satune_ir::VarId;

/// A copy of one element, or of those of a vectorized loop.
pub struct Move {
    pub dst: ArrayId,
    pub dst_form: Linear,
    pub src: ArrayId,
    pub src_form: Linear,
    /// It runs where these hold.
    pub when: Vec<Pred>,
    /// Zeros are written where these do not hold.
    pub zero: Vec<Pred>,
    /// Variable and extent of the vectorized loop.
    pub lane: Option<(VarId, i64)>,
    /// Whether to issue it asynchronously where that is possible, and the bytes that L2 is then asked to fetch.
    pub asynchronous: Option<u32>,
}

/// Which sides of a copy take a vector.
#[derive(Clone, Copy, PartialEq)]
enum Sides {
    Both,
    Source,
    Target,
}

impl Emitter<'_> {
    /// Statements of a copy.
    pub(super) fn moved(&mut self, m: &Move) -> Vec<Stmt> {
        let Some((x, extent)) = m.lane else { return self.vector(m, Sides::Both, 1, None) };
        if extent == 1 {
            return self.with(x, c(0), |this| this.vector(m, Sides::Both, 1, None));
        }
        let (width, sides) = self.width(m, x, extent);
        if extent == width {
            return self.with(x, c(0), |this| this.vector(m, sides, width, Some((x, c(0)))));
        }
        let var = self.fresh();
        let number = Index::Var(var);
        let body = self.with(x, number.clone(), |this| this.vector(m, sides, width, Some((x, number))));
        vec![Stmt::For { var, name: "v".into(), start: c(0), extent: c(extent / width), unroll: Unroll::Full, body }]
    }

    /// The widest access.
    fn width(&self, m: &Move, x: VarId, extent: i64) -> (i64, Sides) {
        let bytes = i64::from(self.array(m.dst).dtype.bytes());
        let most = 16 / bytes;
        let widths = || [16, 8, 4, 2].into_iter().filter(|w| *w <= most && extent % w == 0);
        let takes = |form: &Linear, w: i64| form.split_var(x).is_some_and(|(k, rest)| k == 1 && rest.multiple_of(w));
        let uniform = |w: i64| m.when.iter().chain(&m.zero).all(|p| uniform(p, x, w));
        let memory = |a: ArrayId| !self.array(a).space.is_private();
        let both = widths().find(|w| takes(&m.dst_form, *w) && takes(&m.src_form, *w) && uniform(*w));
        if let Some(w) = both {
            return (w, Sides::Both);
        }
        if m.asynchronous.is_none() {
            for w in widths().filter(|w| uniform(*w)) {
                if takes(&m.src_form, w) && memory(m.src) {
                    return (w, Sides::Source);
                }
                if takes(&m.dst_form, w) && memory(m.dst) {
                    return (w, Sides::Target);
                }
            }
        }
        (1, Sides::Both)
    }

    /// One access of `width` elements, the vector's number being what the variable is bound to.
    fn vector(&mut self, m: &Move, sides: Sides, width: i64, number: Option<(VarId, Index)>) -> Vec<Stmt> {
        let x = number.as_ref().map(|(x, _)| *x).filter(|_| width > 1);
        let lane = |form: &Linear, j: i64| match x {
            Some(x) => form.split_var(x).map_or_else(
                || form.clone(),
                |(k, rest)| rest.plus(&Linear::var(x), k.saturating_mul(width)).shifted(k.saturating_mul(j)),
            ),
            None => form.clone(),
        };
        let clauses = |list: &[Pred]| -> Vec<Pred> { list.iter().map(|p| p.map(&mut |l| lane(l, 0))).collect() };
        let (when, zero) = (clauses(&m.when), clauses(&m.zero));
        let cond = self.condition(&when);
        let zero_unless = self.condition(&zero);
        let (dst, src) = (m.dst, m.src);
        let mut body = Vec::new();
        if sides == Sides::Both {
            let dst_index = self.index(dst, &lane(&m.dst_form, 0), "to");
            let src_index = self.index(src, &lane(&m.src_form, 0), "from");
            body.push(self.one_copy((dst, dst_index), (src, src_index), width, zero_unless, m.asynchronous));
            return guarded(cond, body);
        }
        let dtype = self.array(dst).dtype;
        let of = if sides == Sides::Source { dst } else { src };
        let between = self.vector_registers(of, dtype, width, &[]);
        let wide = |dst, dst_index, src, src_index, zero_unless| Stmt::Copy {
            dst,
            dst_index,
            src,
            src_index,
            width: width as u32,
            zero_unless,
        };
        if sides == Sides::Source {
            let from = self.index(src, &lane(&m.src_form, 0), "from");
            body.push(wide(between, c(0), src, from, zero_unless));
            for j in 0..width {
                let to = self.lane_of((dst, &m.dst_form), &lane(&m.dst_form, j), (width, j), (&number, "to"));
                body.push(self.one_copy((dst, to), (between, c(j)), 1, Cond::True, None));
            }
        } else {
            for j in 0..width {
                let from = self.lane_of((src, &m.src_form), &lane(&m.src_form, j), (width, j), (&number, "from"));
                body.push(self.one_copy((between, c(j)), (src, from), 1, zero_unless.clone(), None));
            }
            let to = self.index(dst, &lane(&m.dst_form, 0), "to");
            body.push(wide(dst, to, between, c(0), Cond::True));
        }
        guarded(cond, body)
    }

    /// Position of a vector's element: `linear`, where that is a linear function of the lane, which in a swizzled tile it
    /// is not.
    fn lane_of(
        &mut self,
        (array, form): (ArrayId, &Linear),
        linear: &Linear,
        (width, lane): (i64, i64),
        (number, role): (&Option<(VarId, Index)>, &str),
    ) -> Index {
        match number {
            Some((x, number)) if form.split_var(*x).is_none() => {
                let element = add(mul(number.clone(), width), c(lane));
                self.with(*x, element, |this| this.index(array, form, role))
            }
            _ => self.index(array, linear, role),
        }
    }

    fn one_copy(
        &mut self,
        (dst, dst_index): (ArrayId, Index),
        (src, src_index): (ArrayId, Index),
        width: i64,
        zero_unless: Cond,
        asynchronous: Option<u32>,
    ) -> Stmt {
        let (to, from) = (self.array(dst).space, self.array(src).space);
        let bytes = width * i64::from(self.array(dst).dtype.bytes());
        let width_u32 = width as u32;
        if let Some(prefetch) = asynchronous.filter(|_| (to, from) == (Space::Shared, Space::Global)) {
            if matches!(bytes, 4 | 8 | 16) {
                return Stmt::AsyncCopy { dst, dst_index, src, src_index, width: width_u32, prefetch, zero_unless };
            }
            let note = format!("{} is copied {bytes} bytes at a time: not asynchronously", self.array(src).name);
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        // Part of a word is no register of its own.
        if from == Space::Fragment && bytes % 4 != 0 {
            let zero = Value::zero(self.array(dst).dtype);
            let value = Value::Load(src, src_index);
            let value = match zero_unless {
                Cond::True => value,
                cond => Value::Select(cond, Box::new(value), Box::new(zero)),
            };
            return Stmt::Store { array: dst, index: dst_index, value };
        }
        Stmt::Copy { dst, dst_index, src, src_index, width: width_u32, zero_unless }
    }
}

/// Whether a condition is the same for `w` neighbouring values of `x`, the first being a multiple of `w`.
pub(super) fn uniform(p: &Pred, x: VarId, w: i64) -> bool {
    if !p.uses(&|v| v == x) {
        return true;
    }
    match p {
        Pred::Lt(form, bound) => match form.split_var(x) {
            Some((1, rest)) => rest.multiple_of(w) && bound % w == 0,
            _ => false,
        },
        _ => false,
    }
}
