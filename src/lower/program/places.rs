//! Copies by the TMA of tiles whose elements lie apart in memory: pixels of images, and tensors of several dimensions.
//!
//! ```text
//!   S[r, c] = X[r // 64, r // 8 % 8 * 2 + c // 192 - 1, r % 8 * 2 + c // 64 % 3 - 1, c % 64], or 0 outside of X
//!
//!   digits of r:  r // 64,  r // 8 % 8,  r % 8          the image, and the place of a pixel in it
//!   digits of c:  c // 192,  c // 64 % 3,  c % 64       the place in a window, and the channel
//! ```
//! The block of a copy says where its elements are by its own iterators. There each index is a sum of digits of the row, digits of the
//! column, and others. That is a gathered matrix, as a product's plan has them. So the same analysis says which boxes its parts are
//! ([`satune_ir::term::tensor::Boxes`]). Dimensions that are digits of one number are one dimension. A box begins at the digits of its first row
//! and column.
//!
//! What is outside of the tensor is 0, or not stored. So are rows behind the last one where their highest digit is then outside of a
//! dimension, or where they are pixels of a further image that is not there.
use super::build::Around;
use super::leaf::unpadded;
use super::linear::{Atom, Linear, Ranges};
use super::pred::Pred;
use crate::kernel::{ArrayId, TensorMap};
use satune_ir::term::tensor::{BoxIndex, BoxPart, Boxes, GatheredMatrix, BEYOND};
use satune_ir::term::{Axis, AxisInfo, Dimension, Gathered};
use satune_ir::{visit, Expr, VarId};
use satune_rewrites::keys;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A copy as its block has it.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its iterators with their numbers of values, and what each is in variables of the nest.
    iters: Vec<(VarId, i64, Linear)>,
    at: Vec<Expr>,
    value: Expr,
}

impl Written {
    /// Of a statement that asks for the TMA.
    pub fn of((at, value): (&[Expr], &Expr), around: &Around, ranges: &Ranges) -> Option<Arc<Written>> {
        around.annotations.get(keys::TMA)?;
        let of_iter = |(v, extent): &(VarId, i64)| {
            let value = Linear::of_expr(around.values.get(v)?, ranges)?;
            Some((*v, *extent, value))
        };
        let iters: Vec<_> = around.iters.iter().map(of_iter).collect::<Option<_>>()?;
        let mut values = around.values.clone();
        values.retain(|v, _| iters.iter().all(|(iter, ..)| iter != v));
        let at = at.iter().map(|e| visit::substitute(e, &values)).collect();
        Some(Arc::new(Written { iters, at, value: visit::substitute(value, &values) }))
    }
}

/// What a copy's boxes have to be.
pub struct Wanted<'w> {
    /// Whether it goes to shared memory.
    pub is_load: bool,
    /// Extents of the buffer in global memory, which has no gaps.
    pub shape: &'w [i64],
    /// The dimension of the tile's rows in shared memory.
    pub row: usize,
    /// Rows that a box may have, the best first, its columns, and bytes of an element.
    pub rows: &'w [i64],
    pub columns: i64,
    pub bytes: i64,
    /// The ranges of the nest's variables.
    pub ranges: &'w Ranges,
}

/// Where the boxes of a copy begin in global memory.
#[derive(Clone, Debug)]
pub struct Places {
    boxes: Boxes,
    /// What indices are sums of, by number.
    parts: Vec<Part>,
    /// Rows of the matrix.
    all_rows: i64,
    /// Rows of a box.
    pub rows: i64,
    /// Rows and columns of the matrix, where those behind the last are 0, or not stored.
    pub ends: [Option<i64>; 2],
}

/// A part of an index.
#[derive(Clone, Debug)]
enum Part {
    /// `n // unit % values` of a row (0) or a column (1).
    Digit { side: usize, unit: i64, values: i64, is_highest: bool },
    /// A number that is the same in all of a tile.
    Same(Linear),
}

/// A dimension in global memory: the index, by the block's iterators, and its extent.
#[derive(Clone)]
struct Index {
    form: Linear,
    extent: i64,
    /// Whether it may be outside.
    padded: bool,
}

const MORE: &str = "it does more than copy";
const NO_DIGITS: &str = "indices are no sums of digits of rows and columns";

impl Places {
    /// Of a copy; else why the TMA cannot make it.
    pub fn of(written: &Written, wanted: &Wanted<'_>) -> Result<Places, &'static str> {
        let mut ranges = wanted.ranges.clone();
        ranges.extend(written.iters.iter().map(|(v, extent, _)| (*v, (0, extent - 1))));
        let Some((Expr::Load(_, from), zero)) = unpadded(&written.value, &ranges) else { return Err(MORE) };
        let (shared, global) = if wanted.is_load { (&written.at, from) } else { (from, &written.at) };
        let (Some(Expr::Var(row)), Some(Expr::Var(column))) = (shared.get(wanted.row), shared.last()) else {
            return Err("rows and columns of its tile are no iterators of its block");
        };
        let extent = |v: VarId| written.iters.iter().find(|(iter, ..)| *iter == v).map(|(_, extent, _)| *extent);
        let (Some(rows), Some(columns), true) = (extent(row.id), extent(column.id), row.id != column.id) else {
            return Err("rows and columns of its tile are no iterators of its block");
        };
        // Where tiles hang over, a condition says which rows and columns there are.
        let declared = [(row.id, rows), (column.id, columns)];
        let most = |v: VarId| {
            let of = |p: &Pred| match p {
                Pred::Lt(form, bound) if *form == Linear::var(v) && *bound > 0 => Some(*bound),
                _ => None,
            };
            zero.iter().filter_map(of).min()
        };
        let sides = declared.map(|(v, extent)| (v, most(v).map_or(extent, |most| most.min(extent))));
        ranges.extend(sides.iter().map(|(v, extent)| (*v, (0, extent - 1))));
        let Some((_, zero)) = unpadded(&written.value, &ranges) else { return Err(MORE) };
        let dims = indices(global, wanted.shape, &ranges).ok_or(NO_DIGITS)?;
        let bounds: Vec<Pred> = dims.iter().flat_map(|dim| bounds(&dim.form, dim.extent, &ranges)).collect();
        if !zero.iter().all(|p| bounds.contains(p)) {
            return Err("a condition leaves out elements of the matrix");
        }
        let (parts, matrix) =
            gathered(&joined(dims, &ranges), sides, written, (&ranges, wanted.ranges)).ok_or(NO_DIGITS)?;
        let mut why = "its tile does not consist of whole boxes";
        for high in wanted.rows {
            let part = BoxPart {
                own: Axis::M,
                other: Axis::K,
                rows: *high,
                columns: wanted.columns,
                across: false,
                bytes: wanted.bytes,
            };
            let found = if wanted.is_load { Boxes::of_factor(&matrix, part) } else { Boxes::of_result(&matrix, part) };
            match found {
                Ok(boxes) => {
                    let ends = ends(&boxes, &matrix, &parts);
                    if (0..2).any(|side| sides[side] != declared[side] && !ends[side]) {
                        return Err("what is behind its last row or column is not outside of its tensor");
                    }
                    let ends = [0, 1].map(|side| ends[side].then_some(sides[side].1));
                    return Ok(Places { boxes, parts, all_rows: sides[0].1, rows: *high, ends });
                }
                Err(other) => why = other,
            }
        }
        Err(why)
    }

    /// The parameter as the TMA sees it, in boxes of so many columns and rows.
    pub fn map(&self, array: ArrayId, tile: [u32; 2]) -> TensorMap {
        TensorMap::of_boxes(array, &self.boxes, tile)
    }

    /// What tells tiles apart, beside their first row and column.
    pub fn same(&self) -> impl Iterator<Item = &Linear> {
        self.parts.iter().filter_map(|part| match part {
            Part::Same(form) => Some(form),
            Part::Digit { .. } => None,
        })
    }

    /// The coordinates of the box that begins at a row and a column, and of pixels what is added to them.
    pub fn at(&self, first: [&Linear; 2], ranges: &Ranges) -> [Vec<Linear>; 2] {
        let from_beyond = self.boxes.first.iter().any(|(_, terms)| terms.contains(&(BEYOND, 1)));
        let value = |i: &usize| match self.parts.get(*i) {
            Some(Part::Same(form)) => form.clone(),
            Some(Part::Digit { side, unit, values, is_highest }) => {
                let digit = first[*side].divided(*unit, ranges);
                // The highest digit takes all that is left, where nothing is above it.
                let takes_all = *is_highest && !(from_beyond && *side == 0);
                if takes_all {
                    digit
                } else {
                    digit.remainder(*values, ranges)
                }
            }
            None => first[0].divided(self.all_rows, ranges),
        };
        let of = |list: &[BoxIndex]| -> Vec<Linear> {
            let one = |(constant, terms): &BoxIndex| {
                terms.iter().fold(Linear::of(*constant), |sum, (i, by)| sum.plus(&value(i), *by))
            };
            list.iter().map(one).collect()
        };
        [of(&self.boxes.first), self.boxes.images.as_ref().map_or(Vec::new(), |images| of(&images.offsets))]
    }
}

/// The conditions that an index is inside.
pub fn bounds(index: &Linear, extent: i64, ranges: &Ranges) -> Vec<Pred> {
    [Pred::lt(&index.shifted(-extent), ranges), Pred::lt(&index.scaled(-1).shifted(-1), ranges)].concat()
}

/// The indices, where data do not decide them.
fn indices(at: &[Expr], shape: &[i64], ranges: &Ranges) -> Option<Vec<Index>> {
    let one = |(e, extent): (&Expr, &i64)| {
        let form = Linear::of_expr(e, ranges)?;
        let (first, last) = form.range(ranges);
        Some(Index { form, extent: *extent, padded: first < 0 || last >= *extent })
    };
    (at.len() == shape.len()).then(|| at.iter().zip(shape).map(one).collect())?
}

/// Neighbouring dimensions whose indices are digits of one number are one.
fn joined(dims: Vec<Index>, ranges: &Ranges) -> Vec<Index> {
    let mut out: Vec<Index> = Vec::new();
    for dim in dims {
        let form = dim.form.joined(ranges);
        if let Some(outer) = out.last_mut().filter(|outer| !outer.padded && !dim.padded) {
            let both = outer.form.scaled(dim.extent).plus(&form, 1).joined(ranges);
            // All of both: a sum that has a digit of it is an index of its own.
            if [&outer.form, &form, &both].iter().all(|form| form.terms.len() == 1) {
                *outer = Index { form: both, extent: outer.extent.saturating_mul(dim.extent), padded: false };
                continue;
            }
        }
        out.push(Index { form, ..dim });
    }
    out
}

/// The matrix whose elements have such indices, and what these are made of.
fn gathered(
    dims: &[Index],
    sides: [(VarId, i64); 2],
    written: &Written,
    (ranges, of_nest): (&Ranges, &Ranges),
) -> Option<(Vec<Part>, GatheredMatrix)> {
    let atoms: Vec<&Atom> = dims.iter().flat_map(|dim| &dim.form.terms).map(|(atom, _)| atom).collect();
    let of_side = |atom: &Atom| sides.iter().position(|(v, _)| atom.uses(&|x| x == *v));
    let (mut parts, mut iters) = (Vec::new(), Vec::new());
    let mut add = |axis: Axis, extent: i64, part: Part| {
        iters.push((axis, AxisInfo { name: String::new(), extent, reduce: false }));
        parts.push(part);
    };
    for (side, (v, all)) in sides.into_iter().enumerate() {
        let own = atoms.iter().filter(|atom| of_side(atom) == Some(side));
        let digits: Vec<(i64, i64)> = own.map(|atom| digit(atom, v, all)).collect::<Option<_>>()?;
        let ends = digits.iter().flat_map(|(unit, values)| [*unit, unit * values]);
        let units: BTreeSet<i64> = ends.chain([1, all]).collect();
        let units: Vec<i64> = units.into_iter().collect();
        for (place, pair) in units.windows(2).enumerate().rev() {
            let (unit, values) = (pair[0], pair[1] / pair[0]);
            if pair[1] % pair[0] != 0 || pair[1] > all {
                return None;
            }
            let is_highest = place + 2 == units.len();
            add([Axis::M, Axis::K][side], values, Part::Digit { side, unit, values, is_highest });
        }
    }
    let mut others: Vec<&Atom> = Vec::new();
    for atom in atoms.iter().filter(|atom| of_side(atom).is_none()) {
        if others.contains(atom) {
            continue;
        }
        let form = Linear { terms: vec![((*atom).clone(), 1)], constant: 0 };
        let of_iters = written.iters.iter().map(|(v, _, value)| (*v, value.clone())).collect();
        let (first, last) = form.range(ranges);
        if first < 0 {
            return None;
        }
        others.push(atom);
        add(Axis::Batch(0), last.saturating_add(1), Part::Same(form.substitute(&of_iters, of_nest)));
    }
    let first_other = parts.len() - others.len();
    let dimension = |dim: &Index| -> Option<Dimension> {
        let mut terms: BTreeMap<usize, i64> = BTreeMap::new();
        for (atom, by) in &dim.form.terms {
            let Some(side) = of_side(atom) else {
                let number = first_other + others.iter().position(|other| *other == atom)?;
                *terms.entry(number).or_default() += by;
                continue;
            };
            let (first, values) = digit(atom, sides[side].0, sides[side].1)?;
            for (i, part) in parts.iter().enumerate() {
                let Part::Digit { side: own, unit, .. } = part else { continue };
                if *own == side && (first..first * values).contains(unit) {
                    *terms.entry(i).or_default() += by * (unit / first);
                }
            }
        }
        terms.retain(|_, by| *by != 0);
        let (extent, offset, padded) = (dim.extent, dim.form.constant, dim.padded);
        Some(Dimension { extent, offset, step: 1, terms: terms.into_iter().collect(), padded })
    };
    let dims = dims.iter().map(dimension).collect::<Option<_>>()?;
    let of = Gathered { name: String::new(), iters: Vec::new(), blocks: Vec::new(), dims, computed: None };
    Some((parts, GatheredMatrix { iters, of }))
}

/// (unit, number of values) of the digit of a variable that an atom is, whose values are `0..all`.
fn digit(atom: &Atom, of: VarId, all: i64) -> Option<(i64, i64)> {
    let below = |inner: &Linear| match (inner.terms.as_slice(), inner.constant) {
        ([(atom, 1)], 0) => digit(atom, of, all),
        _ => None,
    };
    match atom {
        Atom::Var(v) => (*v == of).then_some((1, all)),
        Atom::Div(inner, by) => {
            let (unit, values) = below(inner)?;
            (values % by == 0).then(|| (unit * by, values / by))
        }
        Atom::Mod(inner, by) => {
            let (unit, values) = below(inner)?;
            (values % by == 0).then_some((unit, *by))
        }
        Atom::Other(..) | Atom::Load(..) => None,
    }
}

/// Whether all that follows the last row, and the last column, is outside of the tensor.
fn ends(boxes: &Boxes, matrix: &GatheredMatrix, parts: &[Part]) -> [bool; 2] {
    let highest = |of: usize| {
        let is = |part: &Part| matches!(part, Part::Digit { side, is_highest: true, .. } if *side == of);
        parts.iter().position(is)
    };
    // A box is on one side of the end, or has rows of one digit alone.
    let alone = |side: usize| {
        let Some((i, Part::Digit { values, .. })) = highest(side).and_then(|i| Some((i, parts.get(i)?))) else {
            return false;
        };
        matrix.of.dims.iter().any(|d| d.terms == [(i, 1)] && d.offset == 0 && d.extent == *values)
    };
    let Some(_) = &boxes.images else { return [alone(0), alone(1)] };
    let beyond = |(_, terms): &BoxIndex| terms.iter().any(|(i, _)| *i == BEYOND);
    let rows = match boxes.first.iter().any(beyond) {
        true => boxes.first.last() == Some(&(0, vec![(BEYOND, 1)])) && boxes.extents.last() == Some(&1),
        false => alone(0),
    };
    [rows, boxes.ends[1]]
}
