//! `sample_partitioned_tile`: factors for a later split, of which the last ones together are a multiple of a number. The
//! program stays as it is.
//!
//!   f = sample_partitioned_tile(i, n=3, partition_pos=2, innerpart_factor=4)      i of extent 64: [2, 8, 4], [1, 4, 16], ...
//!   i0, i1, i2 = split(i, f)
//!
//! The factors from `partition_pos` on multiply to a multiple of `innerpart_factor`. Every ordered factorization of that
//! kind is equally probable. As in TVM: where the number does not divide the extent, nothing is tiled and the first factor
//! is left to the split (-1); a decision whose last factors are no multiple gives way to the extent over the number, ones,
//! and the number at the partition; and one for another extent is mended as `sample_perfect_tile` does.
//!
//! Legal when: 1 the loop has a constant positive extent; 2 there are at least 2 factors; 3 the partition is one of their
//! positions, and the number positive; 4 a decision has as many factors, all positive (but for a first one of -1).
use crate::loop_checks::constant_extent;
use crate::sample::{weighted, Random};
use crate::sample_perfect_tile::{divisors, factorizations, mended, sampled};
use crate::schedule::{Result, Schedule};
use crate::tree::LoopId;
use crate::ScheduleError;

/// The primitive. Returns as many factors as asked for.
///
/// # Errors
/// Conditions 1 to 4.
pub fn sample_partitioned_tile(
    s: &Schedule,
    id: LoopId,
    n: i64,
    (position, number): (i64, i64),
    decision: Option<&[i64]>,
    random: &mut Random,
) -> Result<Vec<i64>> {
    let fail = |message: String| {
        let remedy = "give as many positive factors as asked for, a position among them, and a positive number";
        ScheduleError::value(message).at_loop(id).within("sample_partitioned_tile").remedy(remedy)
    };
    let extent = constant_extent(s.get_loop(id)?)?;
    if extent < 1 {
        return Err(fail(format!("a loop of extent {extent} has no factors")));
    }
    let count = usize::try_from(n).ok().filter(|n| (2..=16).contains(n));
    let count = count.ok_or_else(|| fail(format!("n must be from 2 to 16, not {n}")))?;
    let place = usize::try_from(position).ok().filter(|p| *p < count);
    let place = place.ok_or_else(|| fail(format!("partition_pos must be from 0 to {}, not {position}", count - 1)))?;
    if number < 1 {
        return Err(fail(format!("innerpart_factor must be positive, not {number}")));
    }
    if let Some(factors) = decision {
        if factors.len() != count || factors.iter().skip(1).any(|f| *f < 1) || (factors[0] < 1 && factors[0] != -1) {
            return Err(fail(format!("the decision {factors:?} is not {count} positive factors")));
        }
    }
    let mut ones = vec![1; count];
    if extent % number != 0 {
        ones[0] = -1;
        return Ok(ones);
    }
    match decision {
        Some(factors) => {
            let inner = factors[place.max(1)..].iter().fold(1i64, |p, f| p.saturating_mul(*f));
            let inner = if place == 0 { inner.saturating_mul(factors[0].max(1)) } else { inner };
            if inner % number == 0 {
                return Ok(mended(extent, factors));
            }
            ones[0] = extent / number;
            ones[place] = if place == 0 { extent } else { number };
            Ok(ones)
        }
        None if place == 0 => sampled(extent, count, -1, random),
        None => {
            let inner: Vec<i64> = divisors(extent).into_iter().filter(|d| d % number == 0).collect();
            let ways = |d: &i64| factorizations(extent / d, place) * factorizations(*d, count - place);
            let chosen = inner.get(weighted(&inner.iter().map(ways).collect::<Vec<_>>(), random)?).copied();
            let inner = chosen.unwrap_or(extent);
            let mut factors = sampled(extent / inner, place, -1, random)?;
            factors.extend(sampled(inner, count - place, -1, random)?);
            Ok(factors)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{loops, matmul};

    #[test]
    fn last_factors_are_a_multiple() {
        let s = matmul();
        let i = loops(&s, "C")[0];
        let mut random = Random::new(5);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..400 {
            let f = sample_partitioned_tile(&s, i, 3, (2, 4), None, &mut random).unwrap();
            assert!(f.iter().product::<i64>() == 16 && f[2] % 4 == 0, "{f:?}");
            seen.insert(f);
        }
        // 4, 8 and 16 last: 3, 2 and 1 ways to factor the rest.
        assert_eq!(seen.len(), 6);
        let mut ask = |pair, decision: &[i64]| sample_partitioned_tile(&s, i, 3, pair, Some(decision), &mut random);
        assert_eq!(ask((2, 3), &[1, 4, 4]).unwrap(), [-1, 1, 1]);
        assert_eq!(ask((2, 4), &[2, 4, 2]).unwrap(), [4, 1, 4]);
        assert_eq!(ask((1, 4), &[2, 4, 2]).unwrap(), [2, 4, 2]);
        assert_eq!(ask((1, 4), &[8, 4, 2]).unwrap(), [2, 4, 2]);
        assert!(ask((3, 4), &[2, 4, 2]).is_err() && ask((1, 0), &[2, 4, 2]).is_err() && ask((1, 4), &[2, 4]).is_err());
    }
}
