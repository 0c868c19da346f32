//! Tensor maps: what a descriptor of `cuTensorMapEncodeTiled` (without interleaving) says, and which bytes a box has.
use super::descriptor::Swizzle;

/// A tensor in global memory and the boxes that are copied of it. Dimension 0 is the contiguous one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Where the tensor begins.
    pub base: u64,
    /// Bytes of an element.
    pub element: u32,
    /// Elements along each dimension.
    pub sizes: Vec<u64>,
    /// Bytes from one element to the next along each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of a box along each dimension, before element strides.
    pub tile: Vec<u32>,
    /// Every which element of the box is copied, along each dimension.
    pub steps: Vec<u32>,
    /// How the chunks of a box are permuted in shared memory.
    pub swizzle: Swizzle,
    /// The bits of an element beyond the border: zero, or the NaN of float types.
    pub fill: u64,
}

/// Why there is no such map: the conditions of `cuTensorMapEncodeTiled`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Lists of other lengths.
    #[error("a tensor map has 1 to 5 dimensions, each with a size, a box, a step and (but for the first) a stride")]
    Rank,
    /// A number is out of its range.
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
    /// The box's rows do not fit.
    #[error("a row of the box has {bytes} bytes; it must be a multiple of 16 and, with this swizzle, at most {most}")]
    Row {
        /// What it has.
        bytes: u64,
        /// The swizzle's span.
        most: u64,
    },
    /// The tensor begins elsewhere.
    #[error("the tensor begins at {0:#x}, which is no multiple of 16")]
    Base(u64),
    /// No such element.
    #[error("an element of a tensor has 1, 2, 4 or 8 bytes, not {0}")]
    Element(u32),
}

/// Bytes of a box that are neighbours in shared memory (before the swizzle) and in global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes from the beginning of the box, before the swizzle.
    pub offset: u64,
    /// Where they stand in global memory; `None` beyond the border.
    pub address: Option<u64>,
    /// How many.
    pub bytes: u64,
}

impl TensorMap {
    /// Whether the driver would take it.
    ///
    /// # Errors
    /// The condition that does not hold.
    pub fn check(&self) -> Result<(), MapError> {
        let rank = self.sizes.len();
        if !(1..=5).contains(&rank)
            || self.strides.len() + 1 != rank
            || self.tile.len() != rank
            || self.steps.len() != rank
        {
            return Err(MapError::Rank);
        }
        if !matches!(self.element, 1 | 2 | 4 | 8) {
            return Err(MapError::Element(self.element));
        }
        if self.base % 16 != 0 {
            return Err(MapError::Base(self.base));
        }
        let range = |what, dimension, value, wanted, holds: bool| {
            if holds {
                return Ok(());
            }
            Err(MapError::Range { what, dimension, value, wanted })
        };
        for d in 0..rank {
            let (size, tile, step) = (self.sizes[d], u64::from(self.tile[d]), u64::from(self.steps[d]));
            range("the size", d, size, "1 to 2^32", (1..=1 << 32).contains(&size))?;
            range("the box", d, tile, "1 to 256", (1..=256).contains(&tile))?;
            range("the step", d, step, "1 to 8", (1..=8).contains(&step))?;
            if d > 0 {
                let stride = self.strides[d - 1];
                let holds = stride % 16 == 0 && stride < 1 << 40;
                range("the stride", d, stride, "a multiple of 16 below 2^40", holds)?;
            }
        }
        let (bytes, most) = (self.counts()[0] * u64::from(self.element), self.swizzle.span());
        if bytes % 16 != 0 || self.swizzle != Swizzle::None && bytes > most {
            return Err(MapError::Row { bytes, most });
        }
        Ok(())
    }

    /// Elements that are copied along each dimension.
    pub fn counts(&self) -> Vec<u64> {
        self.tile.iter().zip(&self.steps).map(|(&t, &s)| u64::from(t.div_ceil(s))).collect()
    }

    /// Bytes of a box, those beyond the border too.
    pub fn box_bytes(&self) -> u64 {
        self.counts().iter().product::<u64>() * u64::from(self.element)
    }

    /// The bytes of the box at coordinates, in the order of shared memory.
    pub fn runs(&self, at: &[i64]) -> Vec<Run> {
        let (counts, element) = (self.counts(), u64::from(self.element));
        let mut out: Vec<Run> = Vec::new();
        let mut push = |run: Run| match out.last_mut() {
            Some(last)
                if match (last.address, run.address) {
                    (None, None) => true,
                    (Some(from), Some(to)) => from + last.bytes == to,
                    _ => false,
                } =>
            {
                last.bytes += run.bytes
            }
            _ => out.push(run),
        };
        let size = self.sizes[0] as i64;
        let mut index = vec![0_u64; counts.len()];
        for row in 0..counts[1..].iter().product::<u64>() {
            let mut line = Some(self.base);
            for d in 1..counts.len() {
                let coordinate = at[d].saturating_add((index[d] * u64::from(self.steps[d])) as i64);
                line = match u64::try_from(coordinate) {
                    Ok(c) if c < self.sizes[d] => line.map(|a| a.wrapping_add(c.wrapping_mul(self.strides[d - 1]))),
                    _ => None,
                };
            }
            let start = row * counts[0] * element;
            let address = |x: i64| line.map(|a| a.wrapping_add((x as u64).wrapping_mul(element)));
            if self.steps[0] == 1 {
                let end = at[0].saturating_add(counts[0] as i64);
                let mut x = at[0];
                while x < end {
                    // Before the border, inside, behind it.
                    let (to, inside) = match x {
                        x if x < 0 => (end.min(0), false),
                        x if x < size => (end.min(size), true),
                        _ => (end, false),
                    };
                    let offset = start + (x - at[0]) as u64 * element;
                    push(Run { offset, address: address(x).filter(|_| inside), bytes: (to - x) as u64 * element });
                    x = to;
                }
            } else {
                for i in 0..counts[0] {
                    let x = at[0].saturating_add((i * u64::from(self.steps[0])) as i64);
                    let address = address(x).filter(|_| (0..size).contains(&x));
                    push(Run { offset: start + i * element, address, bytes: element });
                }
            }
            for (i, count) in index.iter_mut().zip(&counts).skip(1) {
                *i += 1;
                if *i < *count {
                    break;
                }
                *i = 0;
            }
        }
        out
    }

    /// The 128 bytes that stand for the map in this executor's memory; hardware has its own.
    pub fn encoded(&self) -> [u8; 128] {
        let mut words = [0_u64; 16];
        words[0] = MARK;
        words[1] = self.base;
        words[2] = self.fill;
        words[3] = u64::from(self.element) | (self.sizes.len() as u64) << 8 | (self.swizzle as u64) << 16;
        for d in 0..self.sizes.len().min(5) {
            words[4 + d] = self.sizes[d] | u64::from(self.tile[d]) << 40 | u64::from(self.steps[d]) << 56;
            words[9 + d] = if d == 0 { 0 } else { self.strides[d - 1] };
        }
        let mut bytes = [0; 128];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The map of bytes that [`TensorMap::encoded`] gave.
    pub fn decoded(bytes: &[u8]) -> Option<TensorMap> {
        let word = |i: usize| Some(u64::from_le_bytes(bytes.get(8 * i..8 * i + 8)?.try_into().ok()?));
        if word(0)? != MARK {
            return None;
        }
        let kind = word(3)?;
        let rank = (kind >> 8 & 7) as usize;
        let (mut sizes, mut strides, mut tile, mut steps) = (vec![], vec![], vec![], vec![]);
        for d in 0..rank {
            let packed = word(4 + d)?;
            sizes.push(packed & 0xff_ffff_ffff);
            tile.push((packed >> 40 & 0xffff) as u32);
            steps.push((packed >> 56) as u32);
            if d > 0 {
                strides.push(word(9 + d)?);
            }
        }
        let swizzle = match kind >> 16 & 3 {
            0 => Swizzle::None,
            1 => Swizzle::B32,
            2 => Swizzle::B64,
            _ => Swizzle::B128,
        };
        let map = TensorMap {
            base: word(1)?,
            fill: word(2)?,
            element: (kind & 0xff) as u32,
            sizes,
            strides,
            tile,
            steps,
            swizzle,
        };
        map.check().is_ok().then_some(map)
    }
}

/// What the bytes of a map begin with.
const MARK: u64 = 0x7465_6e73_6f72_6d70;

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            base: 4096,
            element: 2,
            sizes: vec![20, 5],
            strides: vec![48],
            tile: vec![16, 4],
            steps: vec![1, 1],
            swizzle: Swizzle::B32,
            fill: 0,
        }
    }

    #[test]
    fn boxes_are_clipped_at_the_border() {
        let map = map();
        map.check().unwrap();
        assert_eq!(map.box_bytes(), 128);
        let runs = map.runs(&[8, 3]);
        assert_eq!(runs.iter().map(|r| r.bytes).sum::<u64>(), 128);
        // Twelve numbers of a row are there.
        assert_eq!(runs[0], Run { offset: 0, address: Some(4096 + 3 * 48 + 16), bytes: 24 });
        assert_eq!(runs[1], Run { offset: 24, address: None, bytes: 8 });
        assert_eq!(runs[2].address, Some(4096 + 4 * 48 + 16));
        assert!(runs.iter().filter(|r| r.offset >= 64).all(|r| r.address.is_none()));
        assert_eq!(map.runs(&[-1, 0])[0], Run { offset: 0, address: None, bytes: 2 });
        assert_eq!(map.runs(&[-1, 0])[1], Run { offset: 2, address: Some(4096), bytes: 30 });
        assert_eq!(TensorMap::decoded(&map.encoded()), Some(map));
    }

    #[test]
    fn steps_take_every_other_element() {
        let map = TensorMap { steps: vec![2, 1], tile: vec![32, 1], sizes: vec![64, 5], strides: vec![128], ..map() };
        map.check().unwrap();
        let runs = map.runs(&[0, 1]);
        assert_eq!(runs.len(), 16);
        assert_eq!(runs[3], Run { offset: 6, address: Some(4096 + 128 + 12), bytes: 2 });
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        let fails = |change: &dyn Fn(&mut TensorMap)| {
            let mut map = map();
            change(&mut map);
            map.check().unwrap_err().to_string()
        };
        assert!(fails(&|m| m.strides[0] = 40).contains("the stride of dimension 1 is 40"));
        assert!(fails(&|m| m.tile[1] = 257).contains("the box of dimension 1"));
        assert!(fails(&|m| m.tile[0] = 32).contains("at most 32"));
        assert!(fails(&|m| m.base = 8).contains("no multiple of 16"));
        assert!(fails(&|m| m.sizes.push(1)).contains("1 to 5 dimensions"));
        assert!(fails(&|m| m.element = 3).contains("not 3"));
    }
}
