//! What `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col` are asked: the same for the launcher in C and for the worker that
//! measures.
use crate::kernel::{Image, TensorMap};
use satune_ir::term::tensor::Images;
use satune_ir::DType;
use serde::{Deserialize, Serialize};

/// A tensor map: a matrix in device memory (or a tensor of up to five dimensions) that the TMA moves in boxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// Element type.
    pub dtype: DType,
    /// Elements along each dimension, the contiguous one first.
    pub dims: Vec<u64>,
    /// Bytes from one element to the next along each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of a box along each dimension; of images: channels, and pixels.
    pub tile: Vec<u32>,
    /// Boxes are pixels of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Chunks are permuted within a box's rows: [`Map::span`].
    pub swizzle: bool,
}

/// Why the driver takes no such map. The conditions are those of `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col` in the driver's
/// manual, without interleaving.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Rank.
    #[error("a tensor map has 1 to 5 dimensions, each with a size, a box and (but for the first) a stride: {dims} sizes, {strides} strides, {tile} of the box")]
    Rank {
        /// Sizes given.
        dims: usize,
        /// Strides given.
        strides: usize,
        /// Sizes of the box given.
        tile: usize,
    },
    /// A number out of its range.
    #[error("{what} of dimension {dimension} is {value}; it must be {wanted}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Of which dimension.
        dimension: usize,
        /// Its value.
        value: u64,
        /// What it must be.
        wanted: &'static str,
    },
    /// The box's rows do not fit the swizzle.
    #[error("a row of the box has {0} bytes; a swizzle is of rows of 128, 64 or 32")]
    Row(u64),
    /// Images that the driver does not take.
    #[error("images have channels, one to three dimensions with corners from -{most} to {} that enclose a pixel and steps of 1 to 8, and a number", most - 1)]
    Image {
        /// What bounds the corners.
        most: i64,
    },
    /// More than the buffer has.
    #[error("the tensor map reaches over {bytes} bytes, the buffer has {has}")]
    Buffer {
        /// From the first to the last element.
        bytes: u64,
        /// Of the buffer.
        has: u64,
    },
}

impl Map {
    /// What a kernel's map asks of the driver; `dtype`: of the parameter.
    pub fn of(map: &TensorMap, dtype: DType) -> Map {
        let strides = map.strides.iter().map(|stride| stride * u64::from(dtype.bytes())).collect();
        let (dims, mut tile, image) = (map.dims.clone(), map.tile.to_vec(), map.image.clone());
        if image.is_none() {
            tile.resize(dims.len(), 1);
        }
        Map { dtype, dims, strides, tile, image, swizzle: map.swizzle }
    }

    /// The driver's number of the element type, and its name behind `CU_TENSOR_MAP_DATA_TYPE_`. Types that the driver does
    /// not have are moved as whole numbers of their size: the TMA does not look into them.
    pub fn element(&self) -> (u32, &'static str) {
        match self.dtype {
            DType::I8 | DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => (0, "UINT8"),
            DType::I16 | DType::U16 => (1, "UINT16"),
            DType::U32 => (2, "UINT32"),
            DType::I32 => (3, "INT32"),
            DType::U64 | DType::Handle => (4, "UINT64"),
            DType::I64 => (5, "INT64"),
            DType::F16 => (6, "FLOAT16"),
            DType::F32 | DType::TF32 => (7, "FLOAT32"),
            DType::F64 => (8, "FLOAT64"),
            DType::BF16 => (9, "BFLOAT16"),
        }
    }

    /// Bytes from the first element to behind the last; none where that is no number.
    pub fn reach(&self) -> Option<u64> {
        let row = self.dims.first()?.checked_mul(self.dtype.bytes().into())?;
        let steps = self.dims.iter().skip(1).zip(&self.strides);
        steps.map(|(n, s)| n.saturating_sub(1).checked_mul(*s)).try_fold(row, |sum, part| sum.checked_add(part?))
    }

    /// Bytes of a box's row.
    fn row(&self) -> u64 {
        u64::from(self.tile.first().copied().unwrap_or(0)) * u64::from(self.dtype.bytes())
    }

    /// The swizzle: bytes of the rows that it permutes, 128, 64 or 32, which are those of a box; none where there is none.
    pub fn span(&self) -> Option<u64> {
        self.swizzle.then(|| self.row())
    }

    fn check_image(&self, image: &Image) -> Result<(), MapError> {
        let between = self.dims.len().saturating_sub(2);
        let most = Images::most_corner(between).unwrap_or(0);
        let counted = [image.lower.len(), image.upper.len(), image.steps.len()] == [between; 3];
        let fits = |corner: &i32| (-most..most).contains(&i64::from(*corner));
        let corners = image.lower.iter().chain(&image.upper).all(fits);
        let steps = image.steps.iter().all(|step| (1..=8).contains(step));
        let pixel = |d: usize| image.last(d, self.dims[d + 1]) >= i64::from(image.lower[d]);
        match most > 0 && counted && corners && steps && (0..between).all(pixel) {
            true => Ok(()),
            false => Err(MapError::Image { most }),
        }
    }

    /// Steps from element to element along each dimension.
    pub fn steps(&self) -> Vec<u32> {
        let between = self.image.iter().flat_map(|image| image.steps.iter().copied());
        let mut steps: Vec<u32> = std::iter::once(1).chain(between).collect();
        steps.resize(self.dims.len(), 1);
        steps
    }

    /// Whether the driver takes it, for a buffer of so many bytes that begins at a multiple of 16.
    ///
    /// # Errors
    /// The condition that does not hold.
    pub fn check(&self, has: u64) -> Result<(), MapError> {
        let (dims, strides, tile) = (self.dims.len(), self.strides.len(), self.tile.len());
        let listed = if self.image.is_some() { 2 } else { dims };
        if !(1..=5).contains(&dims) || strides + 1 != dims || tile != listed {
            return Err(MapError::Rank { dims, strides, tile });
        }
        let range = |holds: bool, what, dimension, value, wanted| match holds {
            true => Ok(()),
            false => Err(MapError::Range { what, dimension, value, wanted }),
        };
        for (i, value) in self.dims.iter().enumerate() {
            range((1..=1 << 32).contains(value), "the size", i, *value, "1 to 2^32")?;
        }
        for (i, value) in self.strides.iter().enumerate() {
            let fits = *value % 16 == 0 && *value > 0 && *value < 1 << 40;
            range(fits, "the stride", i + 1, *value, "a positive multiple of 16 bytes below 2^40")?;
        }
        for (i, value) in self.tile.iter().enumerate() {
            range((1..=256).contains(value), "the box", i, u64::from(*value), "1 to 256")?;
        }
        self.image.as_ref().map_or(Ok(()), |image| self.check_image(image))?;
        let row = self.row();
        range(row % 16 == 0, "bytes of the box", 0, row, "a multiple of 16")?;
        if self.swizzle && !matches!(row, 32 | 64 | 128) {
            return Err(MapError::Row(row));
        }
        match self.reach() {
            Some(bytes) if bytes <= has => Ok(()),
            reach => Err(MapError::Buffer { bytes: reach.unwrap_or(u64::MAX), has }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Map {
        let dims = vec![4096, 100];
        Map { dtype: DType::BF16, dims, strides: vec![8192], tile: vec![64, 256], image: None, swizzle: true }
    }

    #[test]
    fn what_the_driver_refuses_is_refused_with_the_condition() {
        assert_eq!(map().check(819_200), Ok(()));
        let cases: [(Map, &str); 9] = [
            (Map { strides: vec![], ..map() }, "2 sizes, 0 strides, 2 of the box"),
            (Map { dims: vec![0, 100], ..map() }, "the size of dimension 0 is 0"),
            (Map { dims: vec![1 << 33, 100], ..map() }, "the size of dimension 0 is 8589934592"),
            (Map { strides: vec![8190], ..map() }, "the stride of dimension 1 is 8190"),
            (Map { strides: vec![1 << 40], ..map() }, "the stride of dimension 1 is 1099511627776"),
            (Map { tile: vec![64, 257], ..map() }, "the box of dimension 1 is 257"),
            (Map { tile: vec![4, 64], ..map() }, "bytes of the box of dimension 0 is 8"),
            (Map { tile: vec![128, 64], ..map() }, "a row of the box has 256 bytes"),
            (Map { dims: vec![4096, 101], ..map() }, "reaches over 827392 bytes, the buffer has 819200"),
        ];
        for (bad, part) in cases {
            let error = bad.check(819_200).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_map_passes_through_json_unchanged() {
        let text = serde_json::to_string(&map()).unwrap();
        assert_eq!(serde_json::from_str::<Map>(&text).unwrap(), map());
    }
}
