//! Sampling: the random state of a schedule. The decision a sample takes is written down in its call, so that a trace
//! gives the same program without the seed.
use crate::schedule::Result;
use crate::ScheduleError;

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        // 53 bits: as many as a double holds.
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 up to, not including, `count`; 0 where there is nothing to choose from.
    pub fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count.saturating_sub(1))
    }
}

/// An index by weight.
pub(crate) fn weighted(weights: &[f64], random: &mut Random) -> Result<usize> {
    let total: f64 = weights.iter().sum();
    if weights.iter().any(|w| !(*w >= 0.0 && w.is_finite())) || !(total > 0.0 && total.is_finite()) {
        return Err(ScheduleError::value(format!(
            "probabilities must not be negative, and one of them must be positive: {weights:?}"
        ))
        .remedy("give positive weights"));
    }
    let mut left = random.unit() * total;
    for (i, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return Ok(i);
        }
    }
    // Rounding may leave a little; the last one that can be chosen at all takes it.
    Ok(weights.iter().rposition(|w| *w > 0.0).unwrap_or(0))
}
