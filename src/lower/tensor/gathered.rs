//! Where the elements of a gathered factor are: as expressions of a tile's number. And where those of a result are.
//!
//! ```text
//! x[n, oh s + kh - p, ow s + kw - p, c],  m = (n, oh, ow),  k = (kh, kw, c)
//!
//! before the loop along k, of m:  y = oh s - p,  x = ow s - p,  from = n H W C + (y W + x) C
//! in it, of the tile's number:    from + (kh W + kw) C + c,  where 0 <= y + kh < H and 0 <= x + kw < W, else zeros
//! ```
use super::{add, c, div, mul, rem, Cond, Index};
use crate::lower::index::all;
use satune_ir::term::tensor::{BoxIndex, Boxes, GatheredMatrix, BEYOND};
use satune_ir::term::{Axis, Dimension};
use std::rc::Rc;

/// A gathered factor in a kernel.
pub(super) struct Gathering {
    pub factor: GatheredMatrix,
    /// The axis that is not k.
    pub own: Axis,
    /// Number of the product.
    pub batch: Index,
    /// Number of the block's first tile along k, and the length of one.
    pub first_tile: Index,
    pub tile_k: i64,
}

/// What of a copy does not depend on the tile.
pub(super) struct Chosen {
    of: Rc<Gathering>,
    /// Its part of the place in memory.
    from: Index,
    /// Its part of the index in each dimension that is asked about, in order.
    asked: Vec<Index>,
    /// Position along k within the tile.
    pub k: Index,
}

/// A number along an axis: `number * times + rest`, where `0 <= rest < times`.
struct Digits {
    number: Index,
    times: i64,
    rest: Index,
}

impl Digits {
    /// Takes the lowest digit off, which has so many values. Where tiles are whole parts of it, or it of them, what is left and the
    /// digit are computed of the number alone: the same for all threads.
    fn lowest(&mut self, extent: i64) -> Index {
        if self.times % extent == 0 {
            let digit = rem(self.rest.clone(), extent);
            self.rest = div(self.rest.clone(), extent);
            self.times /= extent;
            return digit;
        }
        let (number, digit) = if extent % self.times == 0 {
            let parts = extent / self.times;
            let high = mul(rem(self.number.clone(), parts), self.times);
            (div(self.number.clone(), parts), add(high, self.rest.clone()))
        } else {
            let all = add(mul(self.number.clone(), self.times), self.rest.clone());
            (div(all.clone(), extent), rem(all, extent))
        };
        *self = Digits { number, times: 1, rest: c(0) };
        digit
    }

    /// What is left is one digit.
    fn highest(self) -> Index {
        add(mul(self.number, self.times), self.rest)
    }
}

fn is_asked(d: &Dimension) -> bool {
    d.padded || d.step > 1
}

/// Values of the iterators that are digits of an axis, by number; the highest takes all that is left.
fn digits(of: &GatheredMatrix, is: impl Fn(Axis) -> bool, at: Digits) -> Vec<(usize, Index)> {
    values_of(of.digits(is), at)
}

/// The same of digits by number with how many values they have, the highest first.
fn values_of(mut list: Vec<(usize, i64)>, mut at: Digits) -> Vec<(usize, Index)> {
    let Some(highest) = (!list.is_empty()).then(|| list.remove(0)) else { return Vec::new() };
    let mut values: Vec<(usize, Index)> = Vec::new();
    for (i, extent) in list.into_iter().rev() {
        values.push((i, at.lowest(extent)));
    }
    values.push((highest.0, at.highest()));
    values
}

/// What a dimension's index is the sum of, of these iterators.
fn sum(d: &Dimension, values: &[(usize, Index)]) -> Index {
    combination(&d.terms, values)
}

/// The sum of iterators, each so many times; one that is not among the values is 0.
fn combination(terms: &[(usize, i64)], values: &[(usize, Index)]) -> Index {
    let terms = terms.iter().filter_map(|(i, by)| Some((values.iter().find(|(x, _)| x == i)?.1.clone(), *by)));
    terms.fold(c(0), |sum, (value, by)| add(sum, mul(value, by)))
}

/// Coordinates of a box, and of pixels what is added to them, from numbers along the matrix's own axis, of the product, and along
/// the other axis.
pub(super) fn box_at(
    (factor, boxes): (&GatheredMatrix, &Boxes),
    own: (Axis, Index),
    batch: &Index,
    other: (Axis, Index),
) -> (Vec<Index>, Vec<Index>) {
    let whole = |number: Index| Digits { number, times: 1, rest: c(0) };
    let mut of_own = factor.digits(|axis| axis == own.0);
    if boxes.first.iter().any(|(_, terms)| terms.contains(&(BEYOND, 1))) {
        of_own.insert(0, (BEYOND, 1));
    }
    let mut values = values_of(of_own, whole(own.1));
    values.extend(digits(factor, |axis| matches!(axis, Axis::Batch(_)), whole(batch.clone())));
    values.extend(digits(factor, |axis| axis == other.0, whole(other.1)));
    let of = |list: &[BoxIndex]| {
        list.iter().map(|(constant, terms)| add(combination(terms, &values), c(*constant))).collect()
    };
    (of(&boxes.first), boxes.images.as_ref().map_or(Vec::new(), |images| of(&images.offsets)))
}

/// Index in memory of a result of a product: such matrices have no padding.
pub(super) fn place(of: &GatheredMatrix, batch: &Index, row: &Index, column: &Index) -> Index {
    let along = |is: &dyn Fn(Axis) -> bool, number: &Index| {
        let digits = of.strides(is);
        let Some(([_, highest], lower)) = digits.split_last() else { return c(0) };
        let (mut left, mut sum) = (number.clone(), c(0));
        for [values, stride] in lower {
            sum = add(sum, mul(rem(left.clone(), *values), *stride));
            left = div(left, *values);
        }
        add(sum, mul(left, *highest))
    };
    let of_batch = along(&|axis| matches!(axis, Axis::Batch(_)), batch);
    let of_row = along(&|axis| axis == Axis::M, row);
    let of_column = along(&|axis| axis == Axis::N, column);
    add(add(c(of.first()), of_batch), add(of_row, of_column))
}

impl Gathering {
    /// A copy that begins at `own`, and at `k` of a tile; `name` keeps a part under a name.
    pub fn chosen(self: &Rc<Self>, own: Index, k: Index, name: &mut dyn FnMut(&str, Index) -> Index) -> Chosen {
        let whole = |number: Index| Digits { number, times: 1, rest: c(0) };
        let mut values = digits(&self.factor, |axis| axis == self.own, whole(own));
        values.extend(digits(&self.factor, |axis| matches!(axis, Axis::Batch(_)), whole(self.batch.clone())));
        let (mut from, mut asked) = (c(0), Vec::new());
        for (d, stride) in self.factor.of.strided() {
            let sum = add(sum(d, &values), c(d.offset));
            let sum = if is_asked(d) { name("at", sum) } else { sum };
            if d.step == 1 {
                from = add(from, mul(sum.clone(), stride));
            }
            if is_asked(d) {
                asked.push(sum);
            }
        }
        Chosen { of: self.clone(), from: name("from", from), asked, k }
    }
}

impl Chosen {
    /// Index in memory of the copy of tile `number`, and where there is such an element.
    pub fn element(&self, number: &Index) -> (Index, Cond) {
        let of = &self.of;
        let number = add(of.first_tile.clone(), number.clone());
        let along_k = Digits { number, times: of.tile_k, rest: self.k.clone() };
        let values = digits(&of.factor, |axis| axis == Axis::K, along_k);
        // What is the tile's alone is one sum, which copies have in common.
        let (mut of_tile, mut inside) = (c(0), Vec::new());
        let mut asked = self.asked.iter();
        for (d, stride) in of.factor.of.strided() {
            let sum = sum(d, &values);
            if d.step == 1 {
                of_tile = add(of_tile, mul(sum.clone(), stride));
            }
            if !is_asked(d) {
                continue;
            }
            let at = add(asked.next().cloned().unwrap_or(c(0)), sum);
            inside.push(Cond::Le(c(0), at.clone()));
            inside.push(Cond::Lt(at.clone(), c(d.extent * d.step)));
            if d.step > 1 {
                inside.push(Cond::Eq(rem(at.clone(), d.step), c(0)));
                of_tile = add(of_tile, mul(div(at, d.step), stride));
            }
        }
        (add(self.from.clone(), of_tile), all(inside))
    }
}
