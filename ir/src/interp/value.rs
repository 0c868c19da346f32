//! Scalars and arrays.
use super::fault::{Fault, Tuple};
use crate::semantics::{float_to_int, from_pattern, held, int_to_float, moved, round, to_pattern, unheld, wrap};
use crate::DType;
use std::fmt;

/// What a memory cell holds for a float: its bits, with one NaN only, since which NaN comes out of an operation is
/// not defined.
pub(super) fn float_cell(value: f64) -> u64 {
    if value.is_nan() {
        f64::NAN.to_bits()
    } else {
        value.to_bits()
    }
}

/// One element: a value of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar {
    dtype: DType,
    cell: u64,
}

impl Scalar {
    /// An integer brought into a type: wrapped in two's complement, or rounded to the nearest float.
    pub fn int(value: i64, dtype: DType) -> Scalar {
        let cell = if dtype.is_float() {
            float_cell(int_to_float(value, DType::I64, dtype))
        } else {
            wrap(value, dtype) as u64
        };
        Scalar { dtype, cell }
    }

    /// A float brought into a type: rounded to nearest, or towards zero for integers.
    pub fn float(value: f64, dtype: DType) -> Scalar {
        let cell = if dtype.is_float() { float_cell(round(value, dtype)) } else { float_to_int(value, dtype) as u64 };
        Scalar { dtype, cell }
    }

    /// A value of a type as the simulator of kernels holds it (see [`held`]).
    pub fn of_held(value: f64, dtype: DType) -> Scalar {
        if dtype.is_float() {
            Scalar { dtype, cell: float_cell(moved(value, dtype)) }
        } else {
            Scalar::int(unheld(value, dtype), dtype)
        }
    }

    /// Its bits in memory.
    pub fn bits(self) -> u64 {
        to_pattern(self.cell, self.dtype)
    }

    /// The value of bits in memory.
    pub fn of_bits(bits: u64, dtype: DType) -> Scalar {
        let cell = from_pattern(bits, dtype);
        Scalar { dtype, cell: if dtype.is_float() { float_cell(f64::from_bits(cell)) } else { cell } }
    }

    /// Its type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The value; exact for all types but 64-bit integers beyond 2^53.
    pub fn as_f64(self) -> f64 {
        match self.dtype {
            t if t.is_float() => f64::from_bits(self.cell),
            DType::U64 => self.cell as f64,
            _ => self.cell as i64 as f64,
        }
    }

    /// The value of an integer or boolean (`u64` as its bits); a float is rounded towards zero.
    pub fn as_i64(self) -> i64 {
        if self.dtype.is_float() {
            f64::from_bits(self.cell) as i64
        } else {
            self.cell as i64
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            t if t.is_float() => write!(f, "{:?}", f64::from_bits(self.cell)),
            DType::Bool => write!(f, "{}", self.cell != 0),
            DType::U64 => write!(f, "{}", self.cell),
            _ => write!(f, "{}", self.cell as i64),
        }
    }
}

/// Contents of a buffer, row-major. Each element is a value of the type, or unwritten.
#[derive(Clone, Debug)]
pub struct Array {
    pub(super) dtype: DType,
    pub(super) shape: Vec<i64>,
    pub(super) cells: Vec<u64>,
    /// An element is written where its stamp equals `epoch`; so that all become unwritten by one increment.
    pub(super) stamps: Vec<u32>,
    pub(super) epoch: u32,
}

/// Bytes that an element takes in the interpreter.
pub(super) const BYTES_PER_ELEMENT: u64 = 12;

/// Number of elements of a shape; none where it is negative or beyond 2^60.
pub(super) fn elements(shape: &[i64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(1u64, |product, &extent| product.checked_mul(u64::try_from(extent).ok()?).filter(|&n| n < 1 << 60))
}

impl Array {
    /// An array of which nothing is written. A shape of negative or absurd extents is refused, and so is more than
    /// 16 GiB.
    pub fn unwritten(dtype: DType, shape: &[i64]) -> Result<Array, Fault> {
        let limit = 16u64 << 30;
        let count = elements(shape)
            .ok_or_else(|| Fault::Inputs { reason: format!("an array of shape {} cannot be", Tuple(shape)) })?;
        let needed = count.saturating_mul(BYTES_PER_ELEMENT);
        if needed > limit {
            return Err(Fault::Memory { needed, limit });
        }
        let count = count as usize;
        Ok(Array { dtype, shape: shape.to_vec(), cells: vec![0; count], stamps: vec![0; count], epoch: 1 })
    }

    /// The same values, floats in `f64`.
    pub fn in_double(&self) -> Array {
        // A cell holds a float of any type as an `f64`.
        Array { dtype: super::doubled(self.dtype), ..self.clone() }
    }

    /// 0 in `f64` for each value.
    pub fn zeros(&self) -> Array {
        Array { dtype: DType::F64, cells: vec![0.0_f64.to_bits(); self.cells.len()], ..self.clone() }
    }

    /// An array of the values in row-major order, each brought into the type (see [`Scalar::float`]).
    pub fn from_f64(dtype: DType, shape: &[i64], values: &[f64]) -> Result<Array, Fault> {
        Self::filled(dtype, shape, values.len(), values.iter().map(|&v| Scalar::float(v, dtype)))
    }

    /// An array of the values in row-major order, each brought into the type (see [`Scalar::int`]).
    pub fn from_i64(dtype: DType, shape: &[i64], values: &[i64]) -> Result<Array, Fault> {
        Self::filled(dtype, shape, values.len(), values.iter().map(|&v| Scalar::int(v, dtype)))
    }

    fn filled(dtype: DType, shape: &[i64], given: usize, values: impl Iterator<Item = Scalar>) -> Result<Array, Fault> {
        let mut array = Self::unwritten(dtype, shape)?;
        if given != array.len() {
            let reason = format!("{given} values for an array of shape {}, {} elements", Tuple(shape), array.len());
            return Err(Fault::Inputs { reason });
        }
        for (at, value) in values.enumerate() {
            array.cells[at] = value.cell;
            array.stamps[at] = array.epoch;
        }
        Ok(array)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extent per dimension.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The element of a row-major position; none where it is unwritten or beyond the end.
    pub fn get(&self, at: usize) -> Option<Scalar> {
        (*self.stamps.get(at)? == self.epoch).then(|| Scalar { dtype: self.dtype, cell: self.cells[at] })
    }

    /// The element of an index; none where it is unwritten or outside.
    pub fn at(&self, index: &[i64]) -> Option<Scalar> {
        if index.len() != self.shape.len() {
            return None;
        }
        let mut at = 0usize;
        for (&i, &extent) in index.iter().zip(&self.shape) {
            if !(0..extent).contains(&i) {
                return None;
            }
            at = at * extent as usize + i as usize;
        }
        self.get(at)
    }

    /// Writes the element of a row-major position, brought into the type; does nothing beyond the end.
    pub fn set(&mut self, at: usize, value: Scalar) {
        let value = match value.dtype {
            same if same == self.dtype => value,
            other if other.is_float() => Scalar::float(value.as_f64(), self.dtype),
            _ => value.int_as(self.dtype),
        };
        if let (Some(cell), Some(stamp)) = (self.cells.get_mut(at), self.stamps.get_mut(at)) {
            *cell = value.cell;
            *stamp = self.epoch;
        }
    }

    /// The elements in row-major order; none for unwritten ones.
    pub fn iter(&self) -> impl Iterator<Item = Option<Scalar>> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }

    /// The elements as `f64`, NaN for unwritten ones.
    pub fn to_f64(&self) -> Vec<f64> {
        self.iter().map(|e| e.map_or(f64::NAN, Scalar::as_f64)).collect()
    }

    /// The elements as the simulator of kernels holds them (see [`held`]), NaN for unwritten ones.
    pub fn to_held(&self) -> Vec<f64> {
        let of = |e: Scalar| if e.dtype.is_float() { e.as_f64() } else { held(e.as_i64(), e.dtype) };
        self.iter().map(|e| e.map_or(f64::NAN, of)).collect()
    }

    /// Makes every element unwritten.
    pub(super) fn forget(&mut self) {
        match self.epoch.checked_add(1) {
            Some(next) => self.epoch = next,
            None => {
                self.stamps.fill(0);
                self.epoch = 1;
            }
        }
    }

    /// The index of a row-major position.
    pub(super) fn index_of(&self, at: usize) -> Vec<i64> {
        let mut rest = at as i64;
        let mut index = vec![0; self.shape.len()];
        for (i, &extent) in index.iter_mut().zip(&self.shape).rev() {
            *i = rest % extent.max(1);
            rest /= extent.max(1);
        }
        index
    }
}

/// Equal in type, shape, and element by element: the same value (`-0.0` is not `0.0`, NaN is NaN) or both unwritten.
impl PartialEq for Array {
    fn eq(&self, other: &Array) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.iter().eq(other.iter())
    }
}

impl Scalar {
    /// An integer brought into another type.
    fn int_as(self, to: DType) -> Scalar {
        if to.is_float() {
            Scalar { dtype: to, cell: float_cell(int_to_float(self.cell as i64, self.dtype, to)) }
        } else {
            Scalar::int(self.cell as i64, to)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_compare_unwritten_elements() {
        let written = Array::from_f64(DType::F32, &[2], &[f64::NAN, 0.0]).unwrap();
        let mut other = Array::unwritten(DType::F32, &[2]).unwrap();
        assert_ne!(written, other);
        other.set(0, Scalar::float(-f64::NAN, DType::F64));
        other.set(1, Scalar::int(0, DType::I32));
        assert_eq!(written, other);
        other.set(1, Scalar::float(-0.0, DType::F64));
        assert_ne!(written, other);
        other.forget();
        assert_eq!(other.at(&[0]), None);
    }
}
