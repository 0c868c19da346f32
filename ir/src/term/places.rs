//! Where the elements of a contraction's matrices are in memory, gathered or not.
use super::{Axis, AxisInfo, Contraction, Gathered, OperandInfo, Side};

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
    /// The part that begins at `origin`; `iters`: digits of the matrix's axes.
    pub(super) fn of(
        iters: &[(Axis, AxisInfo)],
        of: &Gathered,
        axes: [Axis; 2],
        (origin, size): ([i64; 2], [i64; 2]),
    ) -> Window {
        let dims: Vec<[i64; 3]> = of.strided().map(|(d, stride)| [d.extent, d.step, stride]).collect();
        let mut sums = [Vec::new(), Vec::new()];
        for (part, ((list, axis), (from, count))) in
            sums.iter_mut().zip(axes).zip(origin.into_iter().zip(size)).enumerate()
        {
            for value in from..from.saturating_add(count) {
                let mut rest = value;
                let mut digits = vec![0; iters.len()];
                for (digit, (_, info)) in digits.iter_mut().zip(iters).rev().filter(|(_, (a, _))| *a == axis) {
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

/// Where parts of this size begin that stand for all of a matrix with these extents: up to three along each axis.
pub(super) fn samples(extents: [i64; 2], size: [i64; 2]) -> Vec<[i64; 2]> {
    const MOST: i64 = 3;
    let along = |i: usize| {
        let parts = (extents[i] + size[i] - 1) / size[i].max(1);
        let count = parts.clamp(1, MOST);
        (0..count).map(move |s| (2 * s + 1) * parts / (2 * count) * size[i]).collect::<Vec<_>>()
    };
    let (rows, columns) = (along(0), along(1));
    rows.iter().flat_map(|x| columns.iter().map(move |y| [*x, *y])).collect()
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

    /// Name of the buffer that the product reads as an operand, once its matrices are made.
    pub fn matrix(&self, side: Side) -> String {
        let memory = || self.operand(side).name.clone();
        self.gathered(side).map_or_else(memory, |of| format!("{}_reindex", of.name))
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

    /// Elements of an operand in memory; of a computed one, as many as have the bytes that are read for it.
    pub fn elements(&self, side: Side) -> f64 {
        let all = || self.operand(side).dims.iter().map(|a| self.extent(*a) as f64).product();
        self.gathered(side).map_or_else(all, |g| g.elements() as f64 * g.read_share())
    }

    /// Whether an operand is computed where it is copied.
    pub fn computes_operands(&self) -> bool {
        [Side::A, Side::B].into_iter().any(|side| self.gathered(side).is_some_and(|of| of.computed.is_some()))
    }

    /// Bytes that are read for an element of an operand, over those of the element.
    pub fn read_share(&self, side: Side) -> f64 {
        self.gathered(side).map_or(1.0, Gathered::read_share)
    }

    /// Elements of an operand's matrix over those in memory: how often each is read by the product's blocks of one column.
    pub fn repeats(&self, side: Side) -> f64 {
        let matrix: f64 = self.operand(side).dims.iter().map(|a| self.extent(*a) as f64).product();
        let share = self.read_share(side);
        (matrix * share / self.elements(side)).max(1.0) / share
    }

    /// Where parts of a matrix of this size begin that stand for all of them: one, where all are alike; of a gathered matrix, up
    /// to three along each axis.
    pub fn samples(&self, axes: [Axis; 2], size: [i64; 2]) -> Vec<[i64; 2]> {
        match self.gather {
            None => vec![[0, 0]],
            Some(_) => samples(axes.map(|axis| self.extent(axis)), size),
        }
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
            return Places::Gathered(Window::of(&gather.iters, gathered, axes, (origin, size)));
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
