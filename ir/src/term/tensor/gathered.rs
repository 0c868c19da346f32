//! Factors whose matrices lie in no memory: those of a convolution.
use crate::term::places::{samples, Places, Window};
use crate::term::{Axis, AxisInfo, Contraction, Gathered, Side};
use serde::{Deserialize, Serialize};

/// A factor that is gathered: an element of its matrix is a digit of each iterator away from an element of a buffer, or a zero of
/// a padding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatheredFactor {
    /// All iterators of the block that multiplies, each with the axis of which it is a digit: the last of an axis is its lowest.
    pub iters: Vec<(Axis, AxisInfo)>,
    /// Where its elements are.
    pub of: Gathered,
}

impl GatheredFactor {
    /// A and B of a contraction, where memory does not hold their matrices.
    pub(super) fn of(contraction: &Contraction) -> [Option<Box<GatheredFactor>>; 2] {
        let Some(gather) = &contraction.gather else { return [None, None] };
        [(&gather.a, Side::A), (&gather.b, Side::B)].map(|(of, side)| {
            let is_matrix = of.is_matrix(&gather.iters, &contraction.operand(side).dims);
            (!is_matrix).then(|| Box::new(GatheredFactor { iters: gather.iters.clone(), of: of.clone() }))
        })
    }

    /// The same of the transposed product.
    pub(super) fn transposed(&self) -> GatheredFactor {
        let iters = self.iters.iter().map(|(axis, info)| (axis.transposed(), info.clone())).collect();
        GatheredFactor { iters, of: self.of.clone() }
    }

    /// What the width of an access along an axis has to divide.
    pub(super) fn run(&self, axis: Axis) -> i64 {
        self.of.run(&self.iters, axis)
    }

    /// Places of the elements of parts of this size along `own` and k, which stand for all.
    pub fn parts(&self, own: Axis, size: [i64; 2]) -> Vec<Places> {
        let axes = [own, Axis::K];
        let of_axis = |axis: Axis| self.iters.iter().filter(move |(a, _)| *a == axis).map(|(_, info)| info.extent);
        let extents = axes.map(|axis| of_axis(axis).product());
        let part = |origin| Places::Gathered(Window::of(&self.iters, &self.of, axes, (origin, size)));
        samples(extents, size).into_iter().map(part).collect()
    }

    /// Iterators of more than one value that are digits of an axis.
    pub fn digits(&self, axis: Axis) -> usize {
        self.iters.iter().filter(|(a, info)| *a == axis && info.extent > 1).count()
    }

    /// Dimensions of which an access has to ask whether it is inside.
    pub fn asked(&self) -> i64 {
        self.of.dims.iter().map(|d| i64::from(d.padded || d.step > 1)).sum()
    }
}
