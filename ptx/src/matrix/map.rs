//! Tensor maps: what a descriptor of `cuTensorMapEncodeTiled` or `cuTensorMapEncodeIm2col` (without interleaving) says, and which
//! bytes a box has.
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
    /// Elements of a box along each dimension, before element strides; of images: channels, and pixels.
    pub tile: Vec<u32>,
    /// Every which element of the box is copied, along each dimension; of images: how far the next pixel is.
    pub steps: Vec<u32>,
    /// The tensor is a batch of images (mode im2col).
    pub image: Option<Image>,
    /// How the chunks of a box are permuted in shared memory.
    pub swizzle: Swizzle,
    /// The bits of an element beyond the border: zero, or the NaN of float types.
    pub fill: u64,
}

/// Images of channels, columns, rows (and depth), of which the dimensions between the first and the last are walked through, pixel by
/// pixel, within a box, and after it the next image's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// From the first column (row, ..) of the image to the box's, where the offsets are 0.
    pub lower: Vec<i32>,
    /// From the image's last to the box's.
    pub upper: Vec<i32>,
}

/// Why there is no such map: the conditions of `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`.
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
    /// Corners of a box that is empty, or too far away.
    #[error("corners of dimension {dimension} are {lower} and {upper}; they must be -{most} to {}, and enclose a pixel", most - 1)]
    Corner {
        /// Of which dimension.
        dimension: usize,
        /// The lower one.
        lower: i32,
        /// The upper one.
        upper: i32,
        /// What bounds them.
        most: i32,
    },
    /// Lists of an image of other lengths.
    #[error("a map of images has 3 to 5 dimensions, channels and pixels of a box, and corners for all dimensions but the first and the last")]
    Image,
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
        let listed = self.tile.len() == if self.image.is_some() { 2 } else { rank };
        if !(1..=5).contains(&rank) || self.strides.len() + 1 != rank || !listed || self.steps.len() != rank {
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
        for (d, tile) in self.tile.iter().map(|t| u64::from(*t)).enumerate() {
            let (most, wanted) = if self.image.is_some() && d == 1 { (1024, "1 to 1024") } else { (256, "1 to 256") };
            range("the box", d, tile, wanted, (1..=most).contains(&tile))?;
        }
        for d in 0..rank {
            let (size, step) = (self.sizes[d], u64::from(self.steps[d]));
            range("the size", d, size, "1 to 2^32", (1..=1 << 32).contains(&size))?;
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
        self.image.as_ref().map_or(Ok(()), |image| self.check_image(image))
    }

    fn check_image(&self, image: &Image) -> Result<(), MapError> {
        let between = self.sizes.len().saturating_sub(2);
        // PTX ISA, im2col mode: what corners may be; the offsets of an instruction have as many bits, and no sign.
        let Some(most) = [1 << 15, 1 << 7, 1 << 4].get(between.wrapping_sub(1)) else { return Err(MapError::Image) };
        if image.lower.len() != between || image.upper.len() != between || self.steps[0] != 1 {
            return Err(MapError::Image);
        }
        for (d, (lower, upper)) in image.lower.iter().zip(&image.upper).enumerate() {
            let fits = |corner: &i32| (-most..*most).contains(corner);
            let pixels = i64::from(*upper) - i64::from(*lower) + self.sizes[d + 1] as i64;
            if !fits(lower) || !fits(upper) || pixels < 1 {
                return Err(MapError::Corner { dimension: d + 1, lower: *lower, upper: *upper, most: *most });
            }
        }
        Ok(())
    }

    /// Elements that are copied along each dimension; of images: channels, and pixels.
    pub fn counts(&self) -> Vec<u64> {
        if self.image.is_some() {
            return self.tile.iter().map(|t| u64::from(*t)).collect();
        }
        self.tile.iter().zip(&self.steps).map(|(&t, &s)| u64::from(t.div_ceil(s))).collect()
    }

    /// Bytes of a box, those beyond the border too.
    pub fn box_bytes(&self) -> u64 {
        self.counts().iter().product::<u64>() * u64::from(self.element)
    }

    /// The bytes of the box at coordinates, in the order of shared memory; `offsets`: of images, what is added to each dimension between
    /// the first and the last.
    ///
    /// # Errors
    /// Of images: coordinates that are not in the box, or offsets beyond what the instruction takes.
    pub fn runs(&self, at: &[i64], offsets: &[i64]) -> Result<Vec<Run>, String> {
        let (counts, element) = (self.counts(), u64::from(self.element));
        let rows = match &self.image {
            Some(image) => self.pixels(image, at, offsets)?,
            None => self.rows(at),
        };
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
        for (line, start) in rows.into_iter().zip((0..).map(|row: u64| row * counts[0] * element)) {
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
        }
        Ok(out)
    }

    /// Where a row along dimension 0 begins; `None` beyond the border.
    fn line(&self, at: impl Iterator<Item = i64>) -> Option<u64> {
        at.enumerate().try_fold(self.base, |line, (d, coordinate)| {
            let inside = u64::try_from(coordinate).ok().filter(|c| *c < self.sizes[d + 1])?;
            Some(line.wrapping_add(inside.wrapping_mul(self.strides[d])))
        })
    }

    /// Where the rows of a box begin.
    fn rows(&self, at: &[i64]) -> Vec<Option<u64>> {
        let counts = self.counts();
        let mut index = vec![0_u64; counts.len()];
        let mut rows = Vec::new();
        for _ in 0..counts[1..].iter().product::<u64>() {
            let moved = |d: usize| at[d].saturating_add((index[d] * u64::from(self.steps[d])) as i64);
            rows.push(self.line((1..counts.len()).map(moved)));
            advance(&mut index[1..], &counts[1..]);
        }
        rows
    }

    /// Where the channels of a box's pixels begin: from the one at the coordinates on, along each dimension by its step, to the upper
    /// corner, then from the lower corner on in the next line, and after the last in the next image. The offsets are added to each.
    fn pixels(&self, image: &Image, at: &[i64], offsets: &[i64]) -> Result<Vec<Option<u64>>, String> {
        let between = image.lower.len();
        let most = [1 << 16, 1 << 8, 1 << 5][between - 1];
        if offsets.len() != between || offsets.iter().any(|o| !(0..most).contains(o)) {
            return Err(format!("offsets {offsets:?} in images: {between} from 0 to {} expected", most - 1));
        }
        let corners: Vec<[i64; 2]> = (0..between)
            .map(|d| [i64::from(image.lower[d]), self.sizes[d + 1] as i64 - 1 + i64::from(image.upper[d])])
            .collect();
        if let Some(d) = (0..between).find(|d| !(corners[*d][0]..=corners[*d][1]).contains(&at[d + 1])) {
            let [lower, upper] = corners[d];
            return Err(format!(
                "coordinate {} of dimension {} is not in the box {lower} to {upper}",
                at[d + 1],
                d + 1
            ));
        }
        let mut pixel = at[1..].to_vec();
        let mut lines = Vec::new();
        for _ in 0..self.tile[1] {
            let moved = (0..pixel.len()).map(|d| pixel[d].saturating_add(offsets.get(d).copied().unwrap_or(0)));
            lines.push(self.line(moved));
            for (d, at) in pixel.iter_mut().enumerate() {
                *at = at.saturating_add(i64::from(self.steps[d + 1]));
                match corners.get(d) {
                    Some([lower, upper]) if *at > *upper => *at = *lower,
                    _ => break,
                }
            }
        }
        Ok(lines)
    }

    /// The 128 bytes that stand for the map in this executor's memory; hardware has its own.
    pub fn encoded(&self) -> [u8; 128] {
        let mut words = [0_u64; 16];
        words[0] = MARK;
        words[1] = self.base;
        words[2] = self.fill;
        words[3] = u64::from(self.element) | (self.sizes.len() as u64) << 8 | (self.swizzle as u64) << 16;
        for d in 0..self.sizes.len().min(5) {
            let tile = self.tile.get(d).copied().unwrap_or(0);
            words[4 + d] = self.sizes[d] | u64::from(tile) << 40 | u64::from(self.steps[d]) << 56;
            words[9 + d] = if d == 0 { 0 } else { self.strides[d - 1] };
        }
        if let Some(image) = &self.image {
            words[3] |= 1 << 24;
            for (word, corners) in [(14, &image.lower), (15, &image.upper)] {
                let packed = corners.iter().take(3).enumerate();
                words[word] = packed.fold(0, |bits, (d, c)| bits | u64::from(*c as i16 as u16) << (16 * d));
            }
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
        let image = (kind >> 24 & 1 == 1).then(|| {
            let corners =
                |word: u64| (0..rank.saturating_sub(2)).map(|d| i32::from((word >> (16 * d)) as i16)).collect();
            Some(Image { lower: corners(word(14)?), upper: corners(word(15)?) })
        });
        if image.is_some() {
            tile.truncate(2);
        }
        let map = TensorMap {
            image: image.flatten(),
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

/// The next index of a box of these counts, the first one first.
fn advance(index: &mut [u64], counts: &[u64]) {
    for (i, count) in index.iter_mut().zip(counts) {
        *i += 1;
        if *i < *count {
            break;
        }
        *i = 0;
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
            image: None,
            swizzle: Swizzle::B32,
            fill: 0,
        }
    }

    #[test]
    fn boxes_are_clipped_at_the_border() {
        let map = map();
        map.check().unwrap();
        assert_eq!(map.box_bytes(), 128);
        let runs = map.runs(&[8, 3], &[]).unwrap();
        assert_eq!(runs.iter().map(|r| r.bytes).sum::<u64>(), 128);
        // Twelve numbers of a row are there.
        assert_eq!(runs[0], Run { offset: 0, address: Some(4096 + 3 * 48 + 16), bytes: 24 });
        assert_eq!(runs[1], Run { offset: 24, address: None, bytes: 8 });
        assert_eq!(runs[2].address, Some(4096 + 4 * 48 + 16));
        assert!(runs.iter().filter(|r| r.offset >= 64).all(|r| r.address.is_none()));
        assert_eq!(map.runs(&[-1, 0], &[]).unwrap()[0], Run { offset: 0, address: None, bytes: 2 });
        assert_eq!(map.runs(&[-1, 0], &[]).unwrap()[1], Run { offset: 2, address: Some(4096), bytes: 30 });
        assert_eq!(TensorMap::decoded(&map.encoded()), Some(map));
    }

    #[test]
    fn steps_take_every_other_element() {
        let map = TensorMap { steps: vec![2, 1], tile: vec![32, 1], sizes: vec![64, 5], strides: vec![128], ..map() };
        map.check().unwrap();
        let runs = map.runs(&[0, 1], &[]).unwrap();
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

    /// Images of 14 x 9 pixels of 64 channels, a window of 3 x 3 with a padding of one: PTX ISA, im2col mode.
    fn images() -> TensorMap {
        TensorMap {
            element: 2,
            sizes: vec![64, 9, 14, 2],
            strides: vec![128, 9 * 128, 14 * 9 * 128],
            tile: vec![8, 64],
            steps: vec![1; 4],
            swizzle: Swizzle::None,
            image: Some(Image { lower: vec![-1, -1], upper: vec![-1, -1] }),
            ..map()
        }
    }

    /// Column, row and image of a box's pixels.
    fn walked(map: &TensorMap, at: [i64; 4], offsets: [i64; 2]) -> Vec<Option<[u64; 3]>> {
        let mut pixels = Vec::new();
        for run in map.runs(&at, &offsets).unwrap() {
            let rows = run.bytes / 16;
            let place = |address: u64| {
                let pixel = (address - map.base - 2 * at[0] as u64) / 128;
                [pixel % 9, pixel / 9 % 14, pixel / 9 / 14]
            };
            // Channels of two pixels do not lie side by side.
            pixels.extend((0..rows).map(|_| run.address.map(place)));
        }
        pixels
    }

    #[test]
    fn pixels_of_a_box_are_walked_through_image_by_image() {
        let map = images();
        map.check().unwrap();
        assert_eq!(map.box_bytes(), 8 * 64 * 2);
        assert_eq!(TensorMap::decoded(&map.encoded()), Some(map.clone()));
        // Columns -1 to 7 and rows -1 to 12; each pixel of the window is one more along either.
        let expected = |mut pixel: [i64; 3], offsets: [i64; 2]| -> Vec<Option<[u64; 3]>> {
            let mut list = Vec::new();
            while list.len() < 64 {
                let [x, y, n] = [pixel[0] + offsets[0], pixel[1] + offsets[1], pixel[2]];
                let inside = (0..9).contains(&x) && (0..14).contains(&y) && n < 2;
                list.push(inside.then_some([x as u64, y as u64, n as u64]));
                pixel[0] += 1;
                if pixel[0] > 7 {
                    pixel = [-1, pixel[1] + 1, n];
                }
                if pixel[1] > 12 {
                    pixel = [-1, -1, n + 1];
                }
            }
            list
        };
        for (at, offsets) in [([7, 4, 0], [0, 0]), ([-1, -1, 0], [2, 1]), ([5, 9, 0], [2, 2]), ([3, 11, 1], [0, 2])] {
            let [x, y, n] = at;
            assert_eq!(walked(&map, [8, x, y, n], offsets), expected(at, offsets), "{at:?} {offsets:?}");
        }
        // Strides do not change how many pixels there are.
        let strided = TensorMap { steps: vec![1, 2, 2, 1], ..map };
        let columns = walked(&strided, [0, -1, -1, 0], [1, 1]);
        assert_eq!(columns.len(), 64);
        assert_eq!(columns[..6].iter().map(|p| p.map(|p| p[0])).collect::<Vec<_>>(), [0, 2, 4, 6, 8, 0].map(Some));
        assert_eq!(columns[5], Some([0, 2, 0]));
    }

    #[test]
    fn boxes_of_images_that_hardware_does_not_take_are_refused() {
        let map = images();
        let image = |lower: i32, upper: i32| Some(Image { lower: vec![lower, -1], upper: vec![upper, -1] });
        let fails = |map: TensorMap| map.check().unwrap_err().to_string();
        assert!(fails(TensorMap { image: image(-129, 0), ..map.clone() }).contains("-128 to 127"));
        assert!(fails(TensorMap { image: image(3, -7), ..map.clone() }).contains("enclose a pixel"));
        assert!(fails(TensorMap { tile: vec![8, 1025], ..map.clone() }).contains("1 to 1024"));
        assert!(fails(TensorMap { sizes: vec![64, 9], strides: vec![128], steps: vec![1; 2], ..map.clone() })
            .contains("3 to 5"));
        assert!(map.runs(&[0, 8, 0, 0], &[0, 0]).unwrap_err().contains("not in the box -1 to 7"));
        assert!(map.runs(&[0, 0, 0, 0], &[256, 0]).unwrap_err().contains("from 0 to 255"));
    }
}
