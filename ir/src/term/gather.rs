//! Contractions whose operands are gathered: the block has more axes than a product of two matrices, and its indices are sums
//! of iterators (a convolution). Its axes are fused into those of a product of matrices that lie in no memory: an element of
//! one is a digit of each iterator away from an element of a buffer, or a zero of a padding.
use super::{Axis, AxisInfo, Contraction, OperandInfo, Side};
use crate::affine::linear::gcd;
use serde::{Deserialize, Serialize};

/// How the matrices of a contraction lie in the buffers of its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gather {
    /// TVMScript of the whole source program.
    pub script: String,
    /// The source block's iterators in order, each with the axis of which it is a digit: the last of an axis is its lowest.
    pub iters: Vec<(Axis, AxisInfo)>,
    /// First factor.
    pub a: Gathered,
    /// Second factor.
    pub b: Gathered,
    /// Result.
    pub c: Gathered,
}

/// Where the elements of one matrix are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathered {
    /// Name of the buffer that the source block accesses: the padded one, where there is a padding.
    pub name: String,
    /// Iterators of the source block that index the buffer, by number: those that `reindex` gives its copy.
    pub iters: Vec<usize>,
    /// Blocks between the buffer in memory and what the source block reads (a padding), the nearest to the block first.
    pub blocks: Vec<String>,
    /// Dimensions of the buffer in memory, outermost first; row-major.
    pub dims: Vec<Dimension>,
}

/// One dimension of a buffer, with the index that is accessed: `(offset + Σ coefficient · iterator) / step`. Where that is no
/// whole number from 0 to the extent, a zero is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dimension {
    /// Number of values.
    pub extent: i64,
    /// Constant part, `step` times.
    pub offset: i64,
    /// 1, unless zeros stand between the elements (a transposed convolution with a stride).
    pub step: i64,
    /// Iterators by number, with their coefficients.
    pub terms: Vec<(usize, i64)>,
    /// Whether some of its values are outside, or a condition decides by it what is read.
    pub padded: bool,
}

impl Gathered {
    /// Elements of the buffer.
    pub fn elements(&self) -> i64 {
        self.dims.iter().fold(1, |n, d| n.saturating_mul(d.extent))
    }

    /// Dimensions with their strides in memory, elements.
    fn strided(&self) -> impl Iterator<Item = (&Dimension, i64)> {
        let mut stride = self.elements();
        self.dims.iter().map(move |d| {
            stride /= d.extent.max(1);
            (d, stride)
        })
    }

    /// How far an iterator's next value is in memory; `None` where that is not always as far.
    fn coefficient(&self, iter: usize) -> Option<i64> {
        self.strided().try_fold(0, |sum, (d, stride)| {
            let own = d.terms.iter().find(|(i, _)| *i == iter).map_or(0, |(_, c)| *c);
            (own == 0 || d.step == 1).then_some(sum + own * stride)
        })
    }

    /// The axis along which neighbours are neighbours in memory, if there is one.
    pub fn contiguous(&self, iters: &[(Axis, AxisInfo)]) -> Option<Axis> {
        let lowest = |axis: Axis| iters.iter().rposition(|(a, info)| *a == axis && info.extent > 1);
        let neighbours = |axis: &Axis| lowest(*axis).is_some_and(|i| self.coefficient(i) == Some(1));
        self.iters.iter().filter_map(|i| iters.get(*i)).map(|(axis, _)| *axis).find(neighbours)
    }

    /// What the width of an access along `axis` has to divide: then it begins at a multiple of its width in memory, what it
    /// takes lies side by side, and is inside of the buffer as a whole or not at all.
    ///
    /// Neighbours along the axis are neighbours in memory as far as its lowest digits run together (channels; with them the
    /// columns of a kernel, where these lie one after the other). All else that an address is the sum of has to be a
    /// multiple of the width.
    pub fn run(&self, iters: &[(Axis, AxisInfo)], axis: Axis) -> i64 {
        let of_axis = (0..iters.len()).rev().filter(|i| iters[*i].0 == axis && iters[*i].1.extent > 1);
        let whole = |i: &usize| self.dims.iter().all(|d| !d.padded || d.terms.iter().all(|(x, _)| x != i));
        let (mut length, mut run) = (1_i64, Vec::new());
        for i in of_axis.take_while(whole) {
            if self.coefficient(i) != Some(length) {
                break;
            }
            length = length.saturating_mul(iters[i].1.extent);
            run.push(i);
        }
        self.strided().fold(length, |width, (d, stride)| {
            if d.step > 1 {
                // An index that is divided takes any value.
                return gcd(width, stride);
            }
            let moves = |(i, _): &&(usize, i64)| iters[*i].1.extent > 1 && !run.contains(i);
            let others = d.terms.iter().filter(moves).map(|(_, c)| c * stride);
            others.fold(gcd(width, d.offset * stride), gcd)
        })
    }
}

/// Places of the elements of a part of a matrix in memory.
#[derive(Clone, Debug)]
pub enum Places {
    /// Strides along its two axes: every part is like the first.
    Strides([u64; 2]),
    /// Of this part.
    Gathered(Window),
}

/// A part of a gathered matrix. An index is a sum of what its row and what its column add.
#[derive(Clone, Debug)]
pub struct Window {
    /// Extent, step and stride of each dimension in memory.
    dims: Vec<[i64; 3]>,
    /// For each row and each column, what it adds to the index of each dimension.
    sums: [Vec<i64>; 2],
}

/// What a row adds that the matrix does not have: no index with it is inside.
const NOWHERE: i64 = i64::MIN / 4;

impl Window {
    fn of(gather: &Gather, of: &Gathered, axes: [Axis; 2], origin: [i64; 2], size: [i64; 2]) -> Window {
        let dims: Vec<[i64; 3]> = of.strided().map(|(d, stride)| [d.extent, d.step, stride]).collect();
        let mut sums = [Vec::new(), Vec::new()];
        for (part, ((list, axis), (from, count))) in
            sums.iter_mut().zip(axes).zip(origin.into_iter().zip(size)).enumerate()
        {
            for value in from..from.saturating_add(count) {
                let mut rest = value;
                let mut digits = vec![0; gather.iters.len()];
                for (digit, (_, info)) in digits.iter_mut().zip(&gather.iters).rev().filter(|(_, (a, _))| *a == axis) {
                    *digit = rest % info.extent;
                    rest /= info.extent;
                }
                for d in &of.dims {
                    let sum: i64 = d.terms.iter().map(|(i, c)| c * digits[*i]).sum();
                    let constant = if part == 0 { d.offset } else { 0 };
                    list.push(if rest == 0 { sum + constant } else { NOWHERE });
                }
            }
        }
        Window { dims, sums }
    }

    fn at(&self, x: usize, y: usize) -> Option<u64> {
        let rank = self.dims.len();
        let [rows, columns] = [(0, x), (1, y)].map(|(i, at)| self.sums[i].get(at * rank..(at + 1) * rank));
        let sums = rows?.iter().zip(columns?).map(|(a, b)| a + b);
        let position = self.dims.iter().zip(sums).try_fold(0, |sum, ([extent, step, stride], index)| {
            let inside = index >= 0 && index % step == 0 && index / step < *extent;
            inside.then(|| sum + index / step * stride)
        });
        position.and_then(|p| u64::try_from(p).ok())
    }
}

impl Places {
    /// Position of an element, in elements from the beginning of the buffer (of the part, where every part is like the first);
    /// `None` where a zero is read, or nothing.
    pub fn at(&self, x: i64, y: i64) -> Option<u64> {
        match self {
            Places::Strides([a, b]) => Some((x as u64).wrapping_mul(*a).wrapping_add((y as u64).wrapping_mul(*b))),
            Places::Gathered(window) => window.at(usize::try_from(x).ok()?, usize::try_from(y).ok()?),
        }
    }
}

impl Contraction {
    /// How an operand is gathered, where it is.
    pub fn gathered(&self, side: Side) -> Option<&Gathered> {
        self.gather.as_ref().map(|g| match side {
            Side::A => &g.a,
            Side::B => &g.b,
        })
    }

    /// Name of the buffer that the product writes.
    pub fn sums(&self) -> String {
        let of_chain = self.epilogue.as_ref().and_then(|e| e.between.first());
        match (&self.gather, of_chain) {
            (Some(gather), _) => format!("{}_reindex", gather.c.name),
            (None, Some(name)) => name.clone(),
            (None, None) => self.c.name.clone(),
        }
    }

    /// Whether the sums pass through registers to the result: something is done with them, or with their indices.
    pub fn finishes(&self) -> bool {
        self.epilogue.is_some() || self.gather.is_some()
    }

    /// What the width of an access along an operand's rows in global memory has to divide.
    pub fn row(&self, side: Side) -> i64 {
        self.row_of(self.operand(side), self.gathered(side))
    }

    /// What the width of an access along the result's rows has to divide.
    pub fn result_row(&self) -> i64 {
        self.row_of(&self.c, self.gather.as_ref().map(|g| &g.c))
    }

    /// Bytes of the widest element that a store touches: a sum, a result, or what the epilogue reads beside it.
    pub fn widest_result(&self) -> i64 {
        let reads = self.epilogue.iter().flat_map(|e| &e.reads).map(|read| read.dtype);
        let all = [self.accumulate, self.c.dtype].into_iter().chain(reads);
        all.map(|dtype| i64::from(dtype.bytes())).max().unwrap_or(1)
    }

    fn row_of(&self, operand: &OperandInfo, gathered: Option<&Gathered>) -> i64 {
        let Some(axis @ (Axis::M | Axis::N | Axis::K)) = operand.dims.last() else { return 1 };
        match (&self.gather, gathered) {
            (Some(gather), Some(gathered)) => gathered.run(&gather.iters, *axis),
            _ => self.extent(*axis),
        }
    }

    /// Elements of an operand in memory.
    pub fn elements(&self, side: Side) -> f64 {
        let all = || self.operand(side).dims.iter().map(|a| self.extent(*a) as f64).product();
        self.gathered(side).map_or_else(all, |g| g.elements() as f64)
    }

    /// Elements of an operand's matrix over those in memory: how often each is read by the product's blocks of one column.
    pub fn repeats(&self, side: Side) -> f64 {
        let matrix: f64 = self.operand(side).dims.iter().map(|a| self.extent(*a) as f64).product();
        (matrix / self.elements(side)).max(1.0)
    }

    /// Where parts of a matrix of this size begin that stand for all of them: one, where all are alike; of a gathered matrix, up
    /// to three along each axis.
    pub fn samples(&self, axes: [Axis; 2], size: [i64; 2]) -> Vec<[i64; 2]> {
        const MOST: i64 = 3;
        if self.gather.is_none() {
            return vec![[0, 0]];
        }
        let along = |i: usize| {
            let parts = (self.extent(axes[i]) + size[i] - 1) / size[i].max(1);
            let count = parts.clamp(1, MOST);
            (0..count).map(move |s| (2 * s + 1) * parts / (2 * count) * size[i]).collect::<Vec<_>>()
        };
        let (rows, columns) = (along(0), along(1));
        rows.iter().flat_map(|x| columns.iter().map(move |y| [*x, *y])).collect()
    }

    /// Places of an operand's elements in the part that begins at `origin`, by its spatial axis and k.
    pub fn places(&self, side: Side, origin: [i64; 2], size: [i64; 2]) -> Places {
        self.places_of(self.operand(side), self.gathered(side), [side.spatial(), Axis::K], (origin, size))
    }

    /// Places of the results in the part that begins at `origin`, by m and n.
    pub fn result_places(&self, origin: [i64; 2], size: [i64; 2]) -> Places {
        let gathered = self.gather.as_ref().map(|g| &g.c);
        self.places_of(&self.c, gathered, [Axis::M, Axis::N], (origin, size))
    }

    fn places_of(
        &self,
        operand: &OperandInfo,
        gathered: Option<&Gathered>,
        axes: [Axis; 2],
        (origin, size): ([i64; 2], [i64; 2]),
    ) -> Places {
        if let (Some(gather), Some(gathered)) = (&self.gather, gathered) {
            return Places::Gathered(Window::of(gather, gathered, axes, origin, size));
        }
        let mut strides = [0, 0];
        let mut stride = 1_u64;
        for axis in operand.dims.iter().rev() {
            if let Some(i) = axes.iter().position(|a| a == axis) {
                strides[i] = stride;
            }
            stride = stride.wrapping_mul(self.extent(*axis) as u64);
        }
        Places::Strides(strides)
    }
}
