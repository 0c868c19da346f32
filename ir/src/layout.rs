//! Layouts: which element of a tile a place holds, as a linear map over bits.
//!
//! A place is numbered by the bits of its lane, its register and the like, an element by the bits of its row and column. Each bit of a place
//! turns some bits of the element, and the element of a place is what all bits that are set turn (their exclusive or). So a layout is a
//! matrix over the field of two values: equal layouts are equal matrices, one layout after another is a product, and who holds an element
//! is told by the inverse. Such are the fragments of matrix instructions and swizzles. A side that is no power of two is a number of such
//! tiles, and a pad is a stride beside the layout.
//!
//! After Triton's linear layouts (Zhou et al., "Linear Layouts: Robust Code Generation of Efficient Tensor Computation Using F2").
//!
//! ```
//! use satune_ir::layout::Layout;
//!
//! // Sums of `mma.sync`: neighbours in pairs, four lanes along a row, eight rows, then eight more.
//! let sums = Layout::along("element", "column", 2)
//!     .then("lane", "column", 4)
//!     .then("lane", "row", 8)
//!     .then("element", "row", 2);
//! assert_eq!(sums.at(&[("lane", 5), ("element", 3)], "row"), 9);
//! assert_eq!(sums.at(&[("lane", 5), ("element", 3)], "column"), 3);
//! let held = sums.inverse().unwrap();
//! assert_eq!(held.at(&[("row", 9), ("column", 3)], "lane"), 5);
//! ```

/// A name of what is numbered, and how many bits its numbers have.
type Dim = (&'static str, u32);

/// A linear map from places to elements, or the other way round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    from: Vec<Dim>,
    to: Vec<Dim>,
    /// What each bit of each name in `from` turns, the bits of all names in `to` side by side, the first lowest.
    turns: Vec<u64>,
}

/// Neighbouring bits of one number that are neighbouring bits of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// What they are bits of.
    pub of: &'static str,
    /// The first of them.
    pub first: u32,
    /// How many.
    pub bits: u32,
    /// Which bit the first one is in the other number.
    pub at: u32,
    /// Whether they end with the highest bit that there is of it.
    pub highest: bool,
}

impl Layout {
    /// So many neighbours, a power of two, of one kind are neighbours of the other.
    pub fn along(from: &'static str, to: &'static str, count: u32) -> Layout {
        Layout { from: Vec::new(), to: Vec::new(), turns: Vec::new() }.then(from, to, count)
    }

    /// With further bits: so many (a power of two) of one kind, beyond those that it has, are neighbours of the other beyond those
    /// that this has.
    pub fn then(mut self, from: &'static str, to: &'static str, count: u32) -> Layout {
        let bits = count.trailing_zeros();
        let first = widened(&mut self.to, to, bits);
        // Bits of what stands behind move up.
        let shift = |turns: u64| turns & ((1 << first) - 1) | (turns >> first) << (first + bits);
        self.turns.iter_mut().for_each(|turns| *turns = shift(*turns));
        let at = widened(&mut self.from, from, bits) as usize;
        self.turns.splice(at..at, (0..bits).map(|bit| 1 << (first + bit)));
        self
    }

    /// What the bits of one name that are set turn, all else being 0.
    fn turned(&self, name: &str, value: u32) -> u64 {
        let first = offset(&self.from, name) as usize;
        let bits = width(&self.from, name) as usize;
        let turns = self.turns.iter().skip(first).take(bits).enumerate();
        turns.filter(|(bit, _)| value >> bit & 1 == 1).fold(0, |all, (_, turns)| all ^ turns)
    }

    fn part(&self, all: u64, name: &str) -> u32 {
        ((all >> offset(&self.to, name)) & ((1 << width(&self.to, name)) - 1)) as u32
    }

    /// The number of that name that a place, or an element, has; what is not named is 0.
    pub fn at(&self, values: &[(&str, u32)], name: &str) -> u32 {
        self.part(values.iter().fold(0, |all, (name, value)| all ^ self.turned(name, *value)), name)
    }

    /// The two numbers of each of `x` times `y` places, those of one x side by side.
    pub fn table(&self, [x, y]: [&str; 2], to: [&str; 2]) -> Vec<[u32; 2]> {
        let all = |name| (0..1_u32 << width(&self.from, name)).map(move |value| self.turned(name, value));
        let of_y: Vec<u64> = all(y).collect();
        let both = |turned: u64| to.map(|name| self.part(turned, name));
        all(x).flat_map(|x| of_y.iter().map(move |y| both(x ^ y)).collect::<Vec<_>>()).collect()
    }

    /// Who holds what: the map back, where each element is in one place and each place holds one.
    pub fn inverse(&self) -> Option<Layout> {
        let bits = self.turns.len();
        (bits == self.to.iter().map(|dim| dim.1 as usize).sum::<usize>()).then_some(())?;
        // Gauss and Jordan: what turns one bit alone, and which bits of `from` that took.
        let mut rows: Vec<(u64, u64)> = self.turns.iter().enumerate().map(|(bit, turns)| (*turns, 1 << bit)).collect();
        for bit in 0..bits {
            let pivot = (bit..bits).find(|row| rows[*row].0 >> bit & 1 == 1)?;
            rows.swap(bit, pivot);
            let (turns, took) = rows[bit];
            let others = rows.iter_mut().enumerate().filter(|(row, _)| *row != bit);
            others.filter(|(_, row)| row.0 >> bit & 1 == 1).for_each(|(_, row)| *row = (row.0 ^ turns, row.1 ^ took));
        }
        let turns = rows.into_iter().map(|(_, took)| took).collect();
        Some(Layout { from: self.to.clone(), to: self.from.clone(), turns })
    }

    /// A number as runs of bits of others, the highest first; `None` where one of its bits depends on several.
    pub fn runs(&self, name: &str) -> Option<Vec<Run>> {
        let (first, bits) = (offset(&self.to, name), width(&self.to, name));
        let mut runs: Vec<Run> = Vec::new();
        for at in 0..bits {
            let mut sources = (0..self.turns.len()).filter(|bit| self.turns[*bit] >> (first + at) & 1 == 1);
            let Some(source) = sources.next() else { continue };
            sources.next().is_none().then_some(())?;
            let mut below = source as u32;
            let (of, width) = *self.from.iter().find(|(_, bits)| {
                let here = below < *bits;
                below = if here { below } else { below - bits };
                here
            })?;
            let highest = below + 1 == width;
            match runs.last_mut() {
                Some(run) if run.of == of && run.first + run.bits == below && run.at + run.bits == at => {
                    (run.bits, run.highest) = (run.bits + 1, highest);
                }
                _ => runs.push(Run { of, first: below, bits: 1, at, highest }),
            }
        }
        runs.reverse();
        Some(runs)
    }
}

/// Most bits of variables that [`digits`] looks at.
const MOST_BITS: u32 = 12;

/// The low bits of some variables, which tell numbers: of each variable which number and which bit of it each is, `None` where it is
/// none. Its bits above these change nothing. `None` in all where one bit turns several, several turn one, or what a bit turns depends
/// on others; so it is with more than 12 bits, and where a number is not known. `value`: the numbers, by the variables.
///
/// ```
/// let of = |at: &[i64]| Some([at[0] % 8 * 4 + at[1] % 8 / 2]);
/// let lanes = satune_ir::layout::digits(&[80, 16], &of).unwrap();
/// assert_eq!(lanes, [vec![Some((0, 2)), Some((0, 3)), Some((0, 4))], vec![None, Some((0, 0)), Some((0, 1))]]);
/// ```
#[allow(clippy::type_complexity)]
pub fn digits<const N: usize>(
    extents: &[i64],
    value: &dyn Fn(&[i64]) -> Option<[i64; N]>,
) -> Option<Vec<Vec<Option<(usize, u32)>>>> {
    let mut out = Vec::new();
    for (d, extent) in extents.iter().enumerate() {
        let alone = |n: i64| value(&(0..extents.len()).map(|at| if at == d { n } else { 0 }).collect::<Vec<_>>());
        let all = (0..*extent).map(alone).collect::<Option<Vec<_>>>()?;
        let again = |low: &i64| (*low..*extent).all(|n| all[n as usize] == all[(n % low) as usize]);
        let low = (0..=MOST_BITS).map(|bit| 1_i64 << bit).find(again)?;
        let digit = |at: u32| {
            let mut turned = all[1 << at].iter().enumerate().filter(|(_, n)| **n != 0);
            match (turned.next(), turned.next()) {
                (None, _) => Some(None),
                (Some((of, n)), None) if *n > 0 && n.count_ones() == 1 => Some(Some((of, n.trailing_zeros()))),
                _ => None,
            }
        };
        out.push((0..low.trailing_zeros()).map(digit).collect::<Option<Vec<_>>>()?);
    }
    let bits = |d: usize, digits: &[Option<(usize, u32)>]| -> Vec<_> {
        (0..).zip(digits).map(|(at, b)| (d, at, *b)).collect()
    };
    let all: Vec<(usize, u32, Option<(usize, u32)>)> =
        out.iter().enumerate().flat_map(|(d, own)| bits(d, own)).collect();
    let apart = |i: usize| all[i].2.is_none() || all[..i].iter().all(|(.., other)| *other != all[i].2);
    let whole = |number: i64| {
        let (mut point, mut expected) = (vec![0; extents.len()], [0; N]);
        for (_, (d, at, bit)) in all.iter().enumerate().filter(|(n, _)| number >> n & 1 == 1) {
            point[*d] += 1_i64 << at;
            if let Some((of, bit)) = bit {
                expected[*of] += 1_i64 << bit;
            }
        }
        value(&point) == Some(expected)
    };
    let known = all.len() as u32 <= MOST_BITS && (0..all.len()).all(apart) && (0..1_i64 << all.len()).all(whole);
    known.then_some(out)
}

/// Where the bits of a name begin.
fn offset(dims: &[Dim], name: &str) -> u32 {
    dims.iter().take_while(|dim| dim.0 != name).map(|dim| dim.1).sum()
}

fn width(dims: &[Dim], name: &str) -> u32 {
    dims.iter().find(|dim| dim.0 == name).map_or(0, |dim| dim.1)
}

/// Gives a name more bits; returned is where they begin.
fn widened(dims: &mut Vec<Dim>, name: &'static str, bits: u32) -> u32 {
    let begin = offset(dims, name);
    match dims.iter_mut().find(|dim| dim.0 == name) {
        Some(dim) => {
            dim.1 += bits;
            begin + dim.1 - bits
        }
        None => {
            dims.push((name, bits));
            begin
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 3] = ["element", "lane", "warp"];
    const PLACES: [&str; 2] = ["row", "column"];

    proptest! {
        /// Any layout of neighbours: each element is in one place, and the inverse finds it.
        #[test]
        fn inverses_find_every_element(steps in prop::collection::vec((0_usize..3, 0_usize..2, 0_u32..3), 1..6)) {
            let all = |at: usize| steps.iter().filter(|s| s.0 == at).map(|s| s.2).sum::<u32>();
            let mut steps_left = steps.iter();
            let (from, to, bits) = *steps_left.next().unwrap();
            let first = Layout::along(NAMES[from], PLACES[to], 1 << bits);
            let layout = steps_left.fold(first, |l, (from, to, bits)| l.then(NAMES[*from], PLACES[*to], 1 << bits));
            let inverse = layout.inverse().unwrap();
            prop_assert_eq!(&inverse.inverse().unwrap(), &layout);
            let mut seen = std::collections::BTreeSet::new();
            for place in 0..1_u32 << (all(0) + all(1) + all(2)) {
                let values = [place & ((1 << all(0)) - 1), place >> all(0) & ((1 << all(1)) - 1), place >> (all(0) + all(1))];
                let named: Vec<(&str, u32)> = NAMES.into_iter().zip(values).collect();
                let element = PLACES.map(|name| layout.at(&named, name));
                prop_assert!(seen.insert(element), "{:?} twice", element);
                let found: Vec<(&str, u32)> = PLACES.into_iter().zip(element).collect();
                for (name, value) in &named {
                    prop_assert_eq!(inverse.at(&found, name), *value);
                }
                // The runs say the same.
                for name in PLACES {
                    let value = layout.runs(name).unwrap().iter().fold(0, |sum, run| {
                        let of = named.iter().find(|(n, _)| *n == run.of).unwrap().1;
                        sum + ((of >> run.first & ((1 << run.bits) - 1)) << run.at)
                    });
                    prop_assert_eq!(value, layout.at(&named, name));
                }
            }
        }
    }

    #[test]
    fn what_holds_an_element_twice_has_no_inverse() {
        let broadcast = Layout { from: vec![("lane", 2)], to: vec![("row", 2)], turns: vec![1, 1] };
        assert_eq!(broadcast.inverse(), None);
        let swizzled = Layout { from: vec![("row", 1), ("column", 1)], to: vec![("bank", 2)], turns: vec![3, 1] };
        assert_eq!(swizzled.runs("bank"), None);
        assert_eq!(swizzled.inverse().unwrap().at(&[("bank", 2)], "column"), 1);
    }
}
