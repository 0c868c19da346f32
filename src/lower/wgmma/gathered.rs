//! Where the elements of a gathered factor are, as coordinates of boxes, and where those of a result are in memory.
use super::{add, c, div, mul, rem, Index};
use satune_ir::term::tensor::{BoxIndex, Boxes, GatheredMatrix, BEYOND};
use satune_ir::term::Axis;

/// Values of the iterators that are digits of an axis, by number; the highest takes all that is left.
fn digits(of: &GatheredMatrix, is: impl Fn(Axis) -> bool, number: Index) -> Vec<(usize, Index)> {
    values_of(of.digits(is), number)
}

/// The same of digits by number with how many values they have, the highest first.
fn values_of(mut list: Vec<(usize, i64)>, mut number: Index) -> Vec<(usize, Index)> {
    let Some(highest) = (!list.is_empty()).then(|| list.remove(0)) else { return Vec::new() };
    let mut values: Vec<(usize, Index)> = Vec::new();
    for (i, extent) in list.into_iter().rev() {
        values.push((i, rem(number.clone(), extent)));
        number = div(number, extent);
    }
    values.push((highest.0, number));
    values
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
    let mut of_own = factor.digits(|axis| axis == own.0);
    if boxes.first.iter().any(|(_, terms)| terms.contains(&(BEYOND, 1))) {
        of_own.insert(0, (BEYOND, 1));
    }
    let mut values = values_of(of_own, own.1);
    values.extend(digits(factor, |axis| matches!(axis, Axis::Batch(_)), batch.clone()));
    values.extend(digits(factor, |axis| axis == other.0, other.1));
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
