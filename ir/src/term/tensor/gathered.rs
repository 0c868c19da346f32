//! Matrices that memory does not hold: factors of a convolution, and its result where channels come first.
use crate::term::places::{samples, Places, Window};
use crate::term::{Axis, AxisInfo, Beside, Contraction, Dimension, Gather, Gathered, Side};
use serde::{Deserialize, Serialize};

/// A matrix whose elements are gathered from a buffer, or a result whose elements are put in their places there: the place of
/// an element is a sum of digits of its row and of its column. An element of a factor may be a zero of a padding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatheredMatrix {
    /// All iterators of the block that multiplies, each with the axis of which it is a digit: the last of an axis is its lowest.
    pub iters: Vec<(Axis, AxisInfo)>,
    /// Where its elements are.
    pub of: Gathered,
}

impl GatheredMatrix {
    /// A and B of a contraction, where memory does not hold their matrices.
    pub(super) fn of(contraction: &Contraction) -> [Option<Box<GatheredMatrix>>; 2] {
        let Some(gather) = &contraction.gather else { return [None, None] };
        [(&gather.a, Side::A), (&gather.b, Side::B)].map(|(of, side)| {
            // What is behind the last row of a product has to be outside of the buffer, or in a dimension of another.
            let apart = of.dims.iter().all(|d| !shared(&gather.iters, d, |_| true));
            GatheredMatrix::unless(apart, gather, of, &contraction.operand(side).dims)
        })
    }

    /// C of a contraction, where memory does not hold its matrix.
    pub(super) fn result(contraction: &Contraction) -> Option<Box<GatheredMatrix>> {
        let gather = contraction.gather.as_ref()?;
        GatheredMatrix::unless(true, gather, &gather.c, &contraction.c.dims)
    }

    /// What an epilogue reads: indexed as dimensions of the result are.
    pub(super) fn beside(contraction: &Contraction, read: &Beside) -> GatheredMatrix {
        let dims = contraction.result_dims();
        let (iters, terms) = match &contraction.gather {
            Some(gather) => {
                let bare = gather.c.by_iterators(&gather.iters);
                let terms = match bare {
                    Some(dims) => dims.into_iter().map(|(i, _)| i.map(|i| (i, 1)).into_iter().collect()).collect(),
                    None => gather.c.dims.iter().map(|d| d.terms.clone()).collect::<Vec<_>>(),
                };
                (gather.iters.clone(), terms)
            }
            None => {
                let place = |axis: &Axis| contraction.iters.iter().position(|(a, _)| a == axis);
                let term = |axis: &Axis| place(axis).map(|i| (i, 1)).into_iter().collect();
                (contraction.iters.clone(), dims.iter().map(|(axis, _)| term(axis)).collect())
            }
        };
        let dim = |d: &Option<usize>| {
            let (extent, terms) = d.map_or((1, Vec::new()), |d| (dims[d].1, terms[d].clone()));
            Dimension { extent, offset: 0, step: 1, terms, padded: false }
        };
        let dims = read.dims.iter().map(dim).collect();
        let of = Gathered { name: read.name.clone(), iters: Vec::new(), blocks: Vec::new(), dims, computed: None };
        GatheredMatrix { iters, of }
    }

    /// Where there is no padding: the digits of the axes that are so, lowest first, each with its number of values and how far its next
    /// value is in memory. Those that run together are one.
    pub fn strides(&self, is: impl Fn(Axis) -> bool) -> Vec<[i64; 2]> {
        let mut digits: Vec<[i64; 2]> = Vec::new();
        for (i, extent) in self.digits(is).into_iter().rev() {
            let stride = self.of.coefficient(i).unwrap_or(0);
            match digits.last_mut() {
                Some([values, below]) if *below * *values == stride => *values *= extent,
                _ => digits.push([extent, stride]),
            }
        }
        digits
    }

    /// Index in memory of the first element.
    pub fn first(&self) -> i64 {
        self.of.strided().map(|(d, stride)| d.offset * stride).sum()
    }

    /// Index in memory of the element of a row and a column of a product, where there is no padding.
    pub fn place(&self, batch: i64, [row, column]: [i64; 2]) -> i64 {
        let along = |is: &dyn Fn(Axis) -> bool, mut number: i64| {
            self.strides(is).into_iter().fold(0, |sum, [values, stride]| {
                let digit = number % values;
                number /= values;
                sum + digit * stride
            })
        };
        let of_batch = along(&|axis| matches!(axis, Axis::Batch(_)), batch);
        self.first() + of_batch + along(&|axis| axis == Axis::M, row) + along(&|axis| axis == Axis::N, column)
    }

    /// A matrix that memory does not hold.
    fn unless(held: bool, gather: &Gather, of: &Gathered, dims: &[Axis]) -> Option<Box<GatheredMatrix>> {
        let is_held = held && of.computed.is_none() && of.is_matrix(&gather.iters, dims);
        (!is_held).then(|| Box::new(GatheredMatrix { iters: gather.iters.clone(), of: of.clone() }))
    }

    /// The same of the transposed product.
    pub(super) fn transposed(&self) -> GatheredMatrix {
        let iters = self.iters.iter().map(|(axis, info)| (axis.transposed(), info.clone())).collect();
        GatheredMatrix { iters, of: self.of.clone() }
    }

    /// What the width of an access along an axis has to divide.
    pub(super) fn run(&self, axis: Axis) -> i64 {
        self.of.run(&self.iters, axis)
    }

    /// Places of the elements of parts of this size along two axes, which stand for all.
    pub fn parts(&self, axes: [Axis; 2], size: [i64; 2]) -> Vec<Places> {
        let of_axis = |axis: Axis| self.iters.iter().filter(move |(a, _)| *a == axis).map(|(_, info)| info.extent);
        let extents = axes.map(|axis| of_axis(axis).product());
        let part = |origin| Places::Gathered(Window::of(&self.iters, &self.of, axes, (origin, size)));
        samples(extents, size).into_iter().map(part).collect()
    }

    /// Iterators of more than one value that are digits of the axes that are so, by number with how many values each has, the highest
    /// first.
    pub fn digits(&self, is: impl Fn(Axis) -> bool) -> Vec<(usize, i64)> {
        let of = self.iters.iter().enumerate().filter(|(_, (axis, info))| is(*axis) && info.extent > 1);
        of.map(|(i, (_, info))| (i, info.extent)).collect()
    }

    /// Whether what is behind the last value of an axis is of the next product: both are digits of one dimension.
    pub fn shares(&self, axis: Axis) -> bool {
        self.of.dims.iter().any(|d| shared(&self.iters, d, |a| a == axis))
    }

    /// Dimensions of which an access has to ask whether it is inside.
    pub fn asked(&self) -> i64 {
        self.of.dims.iter().map(|d| i64::from(d.padded || d.step > 1)).sum()
    }
}

/// Whether a dimension is that of batches and of an axis of the matrix that is so, `g * 64 + r`.
fn shared(iters: &[(Axis, AxisInfo)], d: &Dimension, is: impl Fn(Axis) -> bool) -> bool {
    let axes = d.terms.iter().filter_map(|(i, _)| iters.get(*i)).filter(|(_, info)| info.extent > 1);
    let (batches, others): (Vec<_>, Vec<_>) = axes.partition(|(axis, _)| matches!(axis, Axis::Batch(_)));
    !batches.is_empty() && others.into_iter().any(|(axis, _)| is(*axis))
}
