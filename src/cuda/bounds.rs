//! Bounds of integer expressions, which decide between 32 and 64 bits.
use crate::kernel::Index;

/// An interval, both ends included. 128 bits hold every sum and product of two 64-bit numbers; beyond that it saturates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub lo: i128,
    pub hi: i128,
}

impl Range {
    /// What an `int` holds.
    pub const INT: Range = Range { lo: i32::MIN as i128, hi: i32::MAX as i128 };

    pub fn of(lo: i128, hi: i128) -> Range {
        Range { lo: lo.min(hi), hi: hi.max(lo) }
    }

    pub fn fits_int(self) -> bool {
        self.lo >= Range::INT.lo && self.hi <= Range::INT.hi
    }

    pub fn plus(self, other: Range) -> Range {
        Range::of(self.lo.saturating_add(other.lo), self.hi.saturating_add(other.hi))
    }

    /// Bounds of `operation(a, b)` from those of a and b. An operation on numbers that are not negative may be given
    /// an operand whose bounds only seem negative (`i - j` where j <= i); its bounds are taken from 0.
    pub fn after(operation: &Index, a: Range, b: Range) -> Range {
        let (a_top, b_top) = (a.hi.max(0), b.hi.max(0));
        match operation {
            Index::Add(..) => a.plus(b),
            Index::Sub(..) => Range::of(a.lo.saturating_sub(b.hi), a.hi.saturating_sub(b.lo)),
            Index::Mul(..) => {
                let corners =
                    [(a.lo, b.lo), (a.lo, b.hi), (a.hi, b.lo), (a.hi, b.hi)].map(|(x, y)| x.saturating_mul(y));
                let lo = corners.iter().copied().fold(i128::MAX, i128::min);
                Range::of(lo, corners.into_iter().fold(i128::MIN, i128::max))
            }
            Index::Div(..) => Range::of(a.lo.min(0) / b.lo.max(1), a_top / b.lo.max(1)),
            Index::Mod(..) => Range::of(0, a_top.min((b_top - 1).max(0)).max(if a.lo < 0 { b_top - 1 } else { 0 })),
            Index::Min(..) => Range::of(a.lo.min(b.lo), a.hi.min(b.hi)),
            Index::Max(..) => Range::of(a.lo.max(b.lo), a.hi.max(b.hi)),
            Index::Xor(..) => Range::of(0, ones(a_top.max(b_top))),
            Index::And(..) => Range::of(0, a_top.min(b_top)),
            Index::Shl(..) => Range::of(a.lo.min(0), a_top.saturating_mul(power(b_top))),
            Index::Shr(..) => Range::of(a.lo.min(0), a_top / power(b.lo.max(0))),
            Index::Const(_) | Index::Var(_) | Index::BlockIdx(_) | Index::ThreadIdx(_) => a,
        }
    }
}

fn power(bits: i128) -> i128 {
    1_i128 << bits.clamp(0, 100)
}

/// The least 2^n - 1 that is not below the number.
fn ones(top: i128) -> i128 {
    (0..100).map(|bits| (1_i128 << bits) - 1).find(|v| *v >= top).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every result of small operands lies within the bounds.
    #[test]
    fn bounds_hold_for_all_small_operands() {
        let c = |v: i64| Box::new(Index::Const(v));
        type Run = fn(i64, i64) -> i64;
        let operations: [(Index, Run); 11] = [
            (Index::Add(c(0), c(0)), |a, b| a + b),
            (Index::Sub(c(0), c(0)), |a, b| a - b),
            (Index::Mul(c(0), c(0)), |a, b| a * b),
            (Index::Div(c(0), c(1)), |a, b| a / b.max(1)),
            (Index::Mod(c(0), c(1)), |a, b| a % b.max(1)),
            (Index::Min(c(0), c(0)), i64::min),
            (Index::Max(c(0), c(0)), i64::max),
            (Index::Xor(c(0), c(0)), |a, b| a ^ b),
            (Index::And(c(0), c(0)), |a, b| a & b),
            (Index::Shl(c(0), c(0)), |a, b| a << b),
            (Index::Shr(c(0), c(0)), |a, b| a >> b),
        ];
        for (operation, run) in operations {
            let least = i64::from(matches!(operation, Index::Div(..) | Index::Mod(..)));
            for (a_lo, a_hi, b_lo, b_hi) in [(0, 0, 1, 1), (0, 9, 1, 4), (3, 5, 2, 7), (7, 12, 3, 3), (0, 12, least, 5)]
            {
                let range = |lo: i64, hi: i64| Range::of(lo.into(), hi.into());
                let bounds = Range::after(&operation, range(a_lo, a_hi), range(b_lo, b_hi));
                for (a, b) in (a_lo..=a_hi).flat_map(|a| (b_lo..=b_hi).map(move |b| (a, b))) {
                    let v = i128::from(run(a, b));
                    assert!((bounds.lo..=bounds.hi).contains(&v), "{operation:?} {a} {b}: {v} not in {bounds:?}");
                }
            }
        }
    }
}
