//! `sample_perfect_tile`: factors for a later split, whose product is the extent of a loop. The program stays as it is.
//!
//!   f = sample_perfect_tile(i, n=2, max_innermost_factor=16)      i of extent 30: [6, 5], or [2, 15], or ...
//!   io, ii = split(i, f)
//!
//! Every ordered factorization whose last factor is within the bound is equally probable. A decision fixes the factors;
//! as in TVM, one made for another extent is mended: from the last factor on, a factor that does not divide what is left of
//! the extent takes all of it, and the first factor takes the rest.
//!
//! Legal when: 1 the loop has a constant positive extent; 2 there are at least 2 factors; 3 a decision has as many factors,
//! all positive; 4 the bound is positive, or -1 for none.
use crate::loop_checks::constant_extent;
use crate::sample::{weighted, Random};
use crate::schedule::{Result, Schedule};
use crate::tree::LoopId;
use crate::ScheduleError;

/// The primitive. Returns the factors, outermost first: they are the decision too.
pub fn sample_perfect_tile(
    s: &Schedule,
    id: LoopId,
    n: i64,
    max_innermost_factor: i64,
    decision: Option<&[i64]>,
    random: &mut Random,
) -> Result<Vec<i64>> {
    let fail = |message: String| {
        ScheduleError::value(message)
            .at_loop(id)
            .within("sample_perfect_tile")
            .remedy("give a decision whose factors multiply to the loop's extent, as many as asked for")
    };
    let extent = constant_extent(s.get_loop(id)?)?;
    if extent < 1 {
        return Err(fail(format!("a loop of extent {extent} has no factors")));
    }
    let count = usize::try_from(n).ok().filter(|n| (2..=16).contains(n));
    let count = count.ok_or_else(|| fail(format!("n must be from 2 to 16, not {n}")))?;
    if max_innermost_factor < 1 && max_innermost_factor != -1 {
        return Err(fail(format!("max_innermost_factor must be positive, or -1, not {max_innermost_factor}")));
    }
    match decision {
        Some(factors) if factors.len() != count || factors.iter().any(|f| *f < 1) => {
            Err(fail(format!("the decision {factors:?} is not {count} positive factors")))
        }
        Some(factors) => Ok(mended(extent, factors)),
        None => sampled(extent, count, max_innermost_factor, random),
    }
}

/// A decision for this extent.
pub(crate) fn mended(extent: i64, decision: &[i64]) -> Vec<i64> {
    let mut factors = decision.to_vec();
    let mut left = extent;
    for factor in factors.iter_mut().skip(1).rev() {
        if left % *factor != 0 {
            *factor = left;
        }
        left /= *factor;
    }
    if let Some(first) = factors.first_mut() {
        *first = left;
    }
    factors
}

pub(crate) fn sampled(extent: i64, count: usize, bound: i64, random: &mut Random) -> Result<Vec<i64>> {
    let mut factors = vec![1; count];
    let mut left = extent;
    // From the innermost on, each divisor by the number of ways to factor the rest.
    for place in (1..count).rev() {
        let innermost = place == count - 1;
        let mut divisors = divisors(left);
        divisors.retain(|d| !innermost || bound == -1 || *d <= bound);
        let ways: Vec<f64> = divisors.iter().map(|d| factorizations(left / d, place)).collect();
        let chosen = divisors.get(weighted(&ways, random)?).copied().unwrap_or(1);
        factors[place] = chosen;
        left /= chosen;
    }
    factors[0] = left;
    Ok(factors)
}

pub(crate) fn divisors(n: i64) -> Vec<i64> {
    let (mut low, mut high) = (Vec::new(), Vec::new());
    let mut d = 1;
    while d <= n / d {
        if n % d == 0 {
            low.push(d);
            if d != n / d {
                high.push(n / d);
            }
        }
        d += 1;
    }
    low.extend(high.into_iter().rev());
    low
}

/// Number of ways to write `n` as an ordered product of `count` factors: per prime of exponent `e`, the ways to hand out `e`
/// factors to `count` places, (e + count - 1) choose e.
pub(crate) fn factorizations(mut n: i64, count: usize) -> f64 {
    let mut ways = 1.0;
    let mut prime = 2;
    while n > 1 {
        if prime > n / prime {
            prime = n;
        }
        let mut exponent = 0;
        while n % prime == 0 {
            n /= prime;
            exponent += 1;
            ways *= (exponent + count - 1) as f64 / exponent as f64;
        }
        prime += 1;
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_factorization_is_equally_probable() {
        let mut random = Random::new(3);
        let mut counts: BTreeMap<Vec<i64>, usize> = BTreeMap::new();
        for _ in 0..9_000 {
            *counts.entry(sampled(12, 3, 4, &mut random).unwrap()).or_default() += 1;
        }
        // 12 in 3 factors: 18 ways, of which 1 ends with 12 and 3 - 0 with 6 (1*2, 2*1).
        assert_eq!(counts.len(), 15);
        for (factors, count) in counts {
            assert_eq!(factors.iter().product::<i64>(), 12);
            assert!(factors[2] <= 4 && (450..750).contains(&count), "{factors:?}: {count}");
        }
    }

    #[test]
    fn decisions_for_another_extent_are_mended() {
        assert_eq!(mended(128, &[64, 2]), [64, 2]);
        assert_eq!(mended(30, &[8, 4, 5]), [1, 6, 5]);
        assert_eq!(mended(64, &[64, 2]), [32, 2]);
    }

    #[test]
    fn counts_factorizations() {
        assert_eq!(factorizations(1, 4), 1.0);
        assert_eq!(factorizations(12, 3), 18.0);
        assert_eq!(factorizations(2 * 1_000_003, 2), 4.0);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
    }
}
