//! Contractions whose operands are gathered: the block has more axes than a product of two matrices, and its indices are sums
//! of iterators (a convolution). Its axes are fused into those of a product of matrices that lie in no memory: an element of
//! one is a digit of each iterator away from an element of a buffer, or a zero of a padding.
use super::{Axis, AxisInfo, Instructions};
use crate::affine::linear::gcd;
use crate::DType;
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
    /// Where the last of the blocks computes what the others read: that buffer is then in no memory, and these are its dimensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed: Option<Computed>,
}

/// What computes each element of a factor of others, where its copies read it: packed weights become numbers on their way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Computed {
    /// Type of what is computed.
    pub dtype: DType,
    /// Each element that it reads.
    pub reads: Vec<Input>,
    /// Neighbours that are computed at once at most: of each input they read one element, or as many in one access.
    pub vector: i64,
    /// Instructions for an element.
    pub step: Instructions,
    /// It is one element of another buffer, as it is: data decide only where that stands.
    #[serde(default)]
    pub looked_up: bool,
    /// What is looked up is whole matrices: its last two dimensions are those of its buffer, and data decide by the others alone. So the
    /// TMA takes it.
    #[serde(default)]
    pub whole_matrices: bool,
}

/// What an element is computed of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Elements of its buffer that are read; 0 where another one is of the same.
    pub elements: i64,
    /// Their type.
    pub dtype: DType,
    /// Neighbours read neighbours of it; else one for all: a word of packed weights, a scale.
    pub moves: bool,
}

impl Computed {
    /// 32-bit registers of what so many neighbours are computed of.
    pub fn registers(&self, vector: i64) -> i64 {
        let of = |input: &Input| {
            let elements = if input.moves { vector } else { 1 };
            (elements * i64::from(input.dtype.bytes()) + 3) / 4
        };
        self.reads.iter().map(of).sum()
    }
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

impl Gather {
    /// The same of the transposed product, whose first factor is this one's second.
    pub fn transposed(&self) -> Gather {
        let iters = self.iters.iter().map(|(axis, info)| (axis.transposed(), info.clone())).collect();
        Gather { iters, a: self.b.clone(), b: self.a.clone(), ..self.clone() }
    }
}

impl Gathered {
    /// Elements of the buffer.
    pub fn elements(&self) -> i64 {
        self.dims.iter().fold(1, |n, d| n.saturating_mul(d.extent))
    }

    /// Bytes that are read for an element, over those of the element: 1 where it is one in memory.
    pub fn read_share(&self) -> f64 {
        let Some(computed) = &self.computed else { return 1.0 };
        let size = |elements: i64, dtype: DType| elements as f64 * f64::from(dtype.bytes());
        let read: f64 = computed.reads.iter().map(|input| size(input.elements, input.dtype)).sum();
        read / size(self.elements(), computed.dtype)
    }

    /// Dimensions with their strides in memory, elements.
    pub fn strided(&self) -> impl Iterator<Item = (&Dimension, i64)> {
        let mut stride = self.elements();
        self.dims.iter().map(move |d| {
            stride /= d.extent.max(1);
            (d, stride)
        })
    }

    /// The iterator of each dimension and its number of values, outermost first; none where an index is always 0. A dimension that several
    /// iterators are the digits of (groups, and channels of a group) is as many. `None` where an index is anything else.
    pub fn by_iterators(&self, iters: &[(Axis, AxisInfo)]) -> Option<Vec<(Option<usize>, i64)>> {
        let mut out = Vec::new();
        for d in &self.dims {
            let mut digits = d.terms.clone();
            digits.sort_by_key(|(_, factor)| std::cmp::Reverse(*factor));
            let (first, mut below) = (out.len(), 1_i64);
            for (i, factor) in digits.into_iter().rev() {
                let extent = iters.get(i)?.1.extent;
                if factor != below {
                    return None;
                }
                below = below.saturating_mul(extent);
                out.insert(first, (Some(i), extent));
            }
            if d.offset != 0 || d.step != 1 || below != d.extent {
                return None;
            }
            if d.terms.is_empty() {
                out.push((None, 1));
            }
        }
        Some(out)
    }

    /// How far an iterator's next value is in memory; `None` where that is not always as far.
    pub(super) fn coefficient(&self, iter: usize) -> Option<i64> {
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

    /// Whether memory holds the matrix with these axes as its dimensions, outermost first, and nothing else.
    pub fn is_matrix(&self, iters: &[(Axis, AxisInfo)], dims: &[Axis]) -> bool {
        let mut elements = 1_i64;
        for axis in dims.iter().rev() {
            for (i, (_, info)) in iters.iter().enumerate().rev().filter(|(_, (a, info))| a == axis && info.extent > 1) {
                if self.coefficient(i) != Some(elements) {
                    return false;
                }
                elements = elements.saturating_mul(info.extent);
            }
        }
        elements == self.elements() && self.dims.iter().all(|d| !d.padded && d.offset == 0 && d.step == 1)
    }

    /// The lowest digits of an axis, lowest first, as far as they run together: their values lie side by side in memory.
    pub fn running(&self, iters: &[(Axis, AxisInfo)], axis: Axis) -> Vec<usize> {
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
        run
    }

    /// What the width of an access along `axis` has to divide: then it begins at a multiple of its width in memory, what it
    /// takes lies side by side, and is inside of the buffer as a whole or not at all.
    ///
    /// Neighbours along the axis are neighbours in memory as far as its lowest digits run together (channels; with them the
    /// columns of a kernel, where these lie one after the other). All else that an address is the sum of has to be a
    /// multiple of the width.
    pub fn run(&self, iters: &[(Axis, AxisInfo)], axis: Axis) -> i64 {
        let run = self.running(iters, axis);
        let length = run.iter().fold(1_i64, |n, i| n.saturating_mul(iters[*i].1.extent));
        let length = self.computed.as_ref().map_or(length, |computed| gcd(length, computed.vector));
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
