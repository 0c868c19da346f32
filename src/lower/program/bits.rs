//! Exclusive ors bit by bit, as addresses of swizzled tiles have them.
//!
//! `(2 t + i) ^ k` is `((t ^ k / 2) * 2) + (i ^ k % 2)` where i is 0 or 1: with i and k known, the right part is a constant, and the left one the
//! same for every other k. A compiler that expands the loops does not see that, and keeps an address in a register for each pair of i
//! and k.
use super::emit::Emitter;
use super::linear::{Atom, Linear};
use crate::kernel::Index;
use crate::lower::index::{add, mul, xor};

/// Bits that indices may have.
const BITS: u32 = 30;

impl Emitter<'_> {
    /// `a ^ b`, neither of them negative.
    pub(super) fn xor_of(&mut self, a: &Linear, b: &Linear) -> Index {
        let found = (1..BITS).find_map(|bits| {
            let [a, b] = [a, b].map(|form| self.apart(form, 1 << bits));
            let ([high_a, low_a], [high_b, low_b]) = (a?, b?);
            let [high, low] = [[high_a, high_b], [low_a, low_b]];
            let of_threads = |pair: &[Linear; 2]| pair.iter().any(|form| form.uses(&|v| self.nest.thread(v).is_some()));
            let nothing = |pair: &[Linear; 2]| pair.iter().all(|form| form.as_constant() == Some(0));
            let useless = nothing(&high) || nothing(&low) || of_threads(&high) && of_threads(&low);
            (!useless).then_some((1 << bits, high, low))
        });
        let Some((unit, high, low)) = found else { return xor(self.plain_index(a), self.plain_index(b)) };
        let [high, low] = [high, low].map(|[a, b]| self.xor_of(&a, &b));
        add(mul(high, unit), low)
    }

    /// (what a power of two divides, divided by it; what is less than it), neither of them negative.
    fn apart(&self, form: &Linear, unit: i64) -> Option<[Linear; 2]> {
        let ranges = &self.nest.ranges;
        let mut high = Linear::of(form.constant.div_euclid(unit));
        let mut low = Linear::of(form.constant.rem_euclid(unit));
        for (atom, factor) in &form.terms {
            let own = Linear { terms: vec![(atom.clone(), 1)], constant: 0 };
            let least_and_most = own.scaled(*factor).range(ranges);
            if factor % unit == 0 {
                high = high.plus(&own, factor / unit);
            } else if least_and_most.0 >= 0 && least_and_most.1 < unit {
                low = low.plus(&own, *factor);
            } else if *factor > 0 && unit % factor == 0 && own.range(ranges).0 >= 0 && self.known_to_compilers(atom) {
                high = high.plus(&own.divided(unit / factor, ranges), 1);
                low = low.plus(&own.remainder(unit / factor, ranges), *factor);
            } else {
                return None;
            }
        }
        let within = low.range(ranges).0 >= 0 && low.range(ranges).1 < unit && high.range(ranges).0 >= 0;
        within.then_some([high, low])
    }

    /// Whether loops that are expanded alone decide an atom.
    fn known_to_compilers(&self, atom: &Atom) -> bool {
        !atom.is_data()
            && !atom.uses(&|v| !self.counted.contains(&v) && !matches!(self.env.get(&v), Some(Index::Const(_))))
    }
}
