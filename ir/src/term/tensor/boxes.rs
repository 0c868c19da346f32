//! How the TMA brings a factor that is gathered, and a result to its places: of which tensor, and which box of it is a part of the
//! matrix.
//!
//! ```text
//! pixels of images (mode im2col of cp.async.bulk.tensor)
//!   x[n, oh s + kh d - p, ow s + kw d - p, c],  m = (n, oh, ow),  k = (kh, kw, c)
//!     rows of the matrix     pixels of a box: ow, then oh, then the next image; columns -p, s - p, .. (OW - 1) s - p
//!     64 values of k         64 channels of these pixels, moved by the offsets (kw d, kh d)
//!     zeros of the padding   what is outside of the image
//! boxes of a tensor (mode tile)
//!   q[b, s, h, d],  batch = (b, h),  m = s,  k = d
//!     rows of the matrix     a box of 64 x 1 x rows x 1, at (d, h, s, b)
//! ```
//!
//! Rows of pixels may be any that follow each other, as those of a matrix are. A box of a tensor stays within one value of all digits
//! of m and k but the lowest.
use super::GatheredMatrix;
use crate::term::{Axis, Dimension};

/// In an index: how often all rows of a factor are passed, where it has no iterator for that. A box that begins behind the last row
/// begins in an image behind the last one, so that all of it is outside.
pub const BEYOND: usize = usize::MAX;

/// An index: a constant, and iterators by number with their coefficients.
pub type BoxIndex = (i64, Vec<(usize, i64)>);

/// A factor's buffer as the TMA sees it, the contiguous dimension first; the second is the one along which a box's rows lie, or in which
/// pixels follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boxes {
    /// Elements along each dimension.
    pub extents: Vec<i64>,
    /// Elements from one to the next along each dimension but the first.
    pub strides: Vec<i64>,
    /// Where a box begins, along each dimension.
    pub first: Vec<BoxIndex>,
    /// Boxes are pixels of images.
    pub images: Option<Images>,
    /// Whether what follows the last value is outside of the buffer: along the own axis, and along the other.
    pub ends: [bool; 2],
}

/// What is said of each dimension between channels and images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Images {
    /// What is added to the places of all pixels of a box; never negative.
    pub offsets: Vec<BoxIndex>,
    /// From one pixel to the next.
    pub steps: Vec<i64>,
    /// From the image's first column (row, ..) to that of the first pixel, where the offset is 0; from its last to that of the last.
    pub corners: Vec<[i64; 2]>,
}

/// The longest step from pixel to pixel.
const STEP: i64 = 8;

/// Most dimensions of a tensor map.
const RANK: usize = 5;

/// What part of a matrix boxes are.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The axis along which it has `rows`: of a factor the one beside k, of a result m.
    pub own: Axis,
    /// The other axis: of a factor k, of a result n.
    pub other: Axis,
    /// Boxes begin at multiples of so many values along the own axis.
    pub rows: i64,
    /// And of so many along the other.
    pub columns: i64,
    /// The own axis runs along memory, not the other.
    pub across: bool,
    /// Bytes of an element.
    pub bytes: i64,
}

/// A gathered factor with its digits.
struct Digits<'f> {
    factor: &'f GatheredMatrix,
    part: Part,
    /// Iterators of more than one value by number with these, the lowest digit last: of the own axis, and of the other.
    own: Vec<(usize, i64)>,
    k: Vec<(usize, i64)>,
}

impl Images {
    /// What corners of a box in images of so many dimensions between channels and images may be: below this, and no less than its
    /// negative. Offsets are below twice as much (PTX ISA, im2col mode). None where there are no such images.
    pub fn most_corner(between: usize) -> Option<i64> {
        [1 << 15, 1 << 7, 1 << 4].get(between.checked_sub(1)?).copied()
    }
}

impl Boxes {
    /// Of a factor: pixels of images, or boxes of a tensor.
    ///
    /// # Errors
    /// Why the TMA cannot bring such parts.
    pub fn of_factor(factor: &GatheredMatrix, part: Part) -> Result<Boxes, &'static str> {
        let digits = Digits::of(factor, part)?;
        digits.whole_chunks(match factor.of.computed {
            Some(_) => digits.tile()?,
            None => digits.pixels().or_else(|why| digits.tile().map_err(|_| why))?,
        })
    }

    /// Of a result: boxes of a tensor.
    ///
    /// # Errors
    /// Why the TMA cannot store such parts.
    pub fn of_result(result: &GatheredMatrix, part: Part) -> Result<Boxes, &'static str> {
        let digits = Digits::of(result, part)?;
        digits.whole_chunks(digits.tile()?)
    }
}

impl<'f> Digits<'f> {
    fn of(factor: &'f GatheredMatrix, part: Part) -> Result<Digits<'f>, &'static str> {
        let of_axis = |axis: Axis| factor.digits(|a| a == axis);
        if factor.of.computed.as_ref().is_some_and(|of| !of.whole_matrices) {
            return Err("its elements are computed, or looked up, where they are copied");
        }
        match factor.of.dims.iter().any(|d| d.step > 1) {
            true => Err("zeros stand between its elements"),
            false => Ok(Digits { factor, part, own: of_axis(part.own), k: of_axis(part.other) }),
        }
    }

    fn whole_chunks(&self, boxes: Boxes) -> Result<Boxes, &'static str> {
        match boxes.strides.iter().all(|stride| stride * self.part.bytes % 16 == 0) {
            true => Ok(boxes),
            false => Err("its rows are not multiples of 16 bytes"),
        }
    }

    /// The iterators of some axes that a dimension's index has.
    fn terms(&self, d: &Dimension, is: impl Fn(Axis) -> bool) -> Vec<(usize, i64)> {
        let of =
            |(i, _): &&(usize, i64)| self.factor.iters.get(*i).is_some_and(|(axis, info)| info.extent > 1 && is(*axis));
        d.terms.iter().filter(of).copied().collect()
    }

    fn own_of(&self, d: &Dimension) -> Vec<(usize, i64)> {
        self.terms(d, |axis| axis == self.part.own)
    }

    fn k_of(&self, d: &Dimension) -> Vec<(usize, i64)> {
        self.terms(d, |axis| axis == self.part.other)
    }

    fn batches_of(&self, d: &Dimension) -> Vec<(usize, i64)> {
        self.terms(d, |axis| axis != self.part.own && axis != self.part.other)
    }

    /// Whether parts of `size` values stay within one value of all digits but the lowest, which is this iterator.
    fn within(digits: &[(usize, i64)], iter: usize, size: i64) -> bool {
        matches!(digits, [.., (lowest, extent)] if *lowest == iter && (digits.len() == 1 || extent % size.max(1) == 0))
    }

    /// A box of a tensor: some dimensions are the lowest digits of the two axes and nothing else.
    fn tile(&self) -> Result<Boxes, &'static str> {
        let dims: Vec<(&Dimension, i64)> = self.factor.of.strided().filter(|(d, _)| d.extent > 1 || d.padded).collect();
        let (Some((first, others)), true) = (dims.split_last(), dims.len() <= RANK) else {
            return Err("it has more than five dimensions");
        };
        let is_lowest = |d: &Dimension, digits: &[(usize, i64)], size: i64| {
            digits.last().is_some_and(|(i, _)| d.terms.contains(&(*i, 1)) && Digits::within(digits, *i, size))
        };
        let (k, own) = ((&self.k[..], self.part.columns), (&self.own[..], self.part.rows));
        let (along, across) = if self.part.across { (own, k) } else { (k, own) };
        if first.1 != 1 || !is_lowest(first.0, along.0, along.1) {
            return Err("neighbours in a row do not lie side by side");
        }
        let Some(rows) = others.iter().position(|(d, _)| is_lowest(d, across.0, across.1)) else {
            return Err("its rows do not lie one after the other");
        };
        // Where matrices are looked up, it is those that their last two dimensions are.
        if self.factor.of.computed.is_some() && rows + 1 != others.len() {
            return Err("its rows do not lie one after the other");
        }
        // No other dimension's index moves within a box.
        let lowest = [along.0, across.0].map(|digits| digits.last().map(|(i, _)| *i));
        let moves = |d: &Dimension| d.terms.iter().filter(|(i, _)| lowest.contains(&Some(*i))).count();
        if dims.iter().map(|(d, _)| moves(d)).sum::<usize>() != 2 {
            return Err("its rows do not lie one after the other");
        }
        let mut order = vec![*first, others[rows]];
        order.extend(others.iter().enumerate().rev().filter(|(i, _)| *i != rows).map(|(_, d)| *d));
        Ok(Boxes {
            extents: order.iter().map(|(d, _)| d.extent).collect(),
            strides: order[1..].iter().map(|(_, stride)| *stride).collect(),
            first: order.iter().map(|(d, _)| (d.offset, self.terms(d, |_| true))).collect(),
            images: None,
            ends: self.ends(),
        })
    }

    /// Whether what follows the last value of each axis is outside of the buffer.
    fn ends(&self) -> [bool; 2] {
        [&self.own, &self.k].map(|digits| {
            let [(i, extent)] = digits[..] else { return false };
            let ends = |d: &Dimension| self.terms(d, |_| true) == [(i, 1)] && d.offset == 0 && d.extent == extent;
            self.factor.of.dims.iter().any(ends)
        })
    }

    /// Pixels of images.
    fn pixels(&self) -> Result<Boxes, &'static str> {
        const ORDER: Result<Boxes, &str> = Err("its rows are in another order than its dimensions");
        let mut rows = self.own.clone();
        let dims: Vec<(&Dimension, i64)> = self.factor.of.strided().collect();
        let (Some(lowest), Some((channel, before))) = (self.k.last(), dims.split_last()) else {
            return Err("it has no channels");
        };
        if !channel.0.terms.contains(&(lowest.0, 1)) || !self.own_of(channel.0).is_empty() {
            return Err("neighbours along k do not lie side by side");
        }
        if !Digits::within(&self.k, lowest.0, self.part.columns) {
            return Err("its channels are no multiple of 128 bytes");
        }
        // The outermost dimension is that of the images where each is one more; else there is one image.
        let numbers_images = |d: &Dimension| {
            let own = self.own_of(d);
            self.k_of(d).is_empty() && own.len() < 2 && own.iter().all(|(_, by)| *by == 1)
        };
        let (images, between) = match before.split_first() {
            Some(((d, stride), rest)) if numbers_images(d) => (Some((*d, *stride)), rest),
            _ => (None, before),
        };
        // Where there is no dimension between, it has one value.
        let Some(most) = Images::most_corner(between.len().max(1)) else {
            return Err("its images have more than three dimensions");
        };
        let mut of = Images::default();
        let mut all = Boxes {
            extents: vec![channel.0.extent],
            strides: Vec::new(),
            first: vec![(channel.0.offset, self.terms(channel.0, |_| true))],
            images: None,
            ends: self.ends(),
        };
        for (d, stride) in between.iter().rev() {
            let (mut step, mut positions) = (1, 1);
            match self.own_of(d)[..] {
                [] => {}
                [(i, by)] if rows.last().is_some_and(|(lowest, _)| *lowest == i) => {
                    (step, positions) = (by, rows.pop().map_or(1, |(_, extent)| extent));
                }
                _ => return ORDER,
            }
            if !self.batches_of(d).is_empty() {
                return Err("a batch axis moves within its images");
            }
            if !(1..=STEP).contains(&step) {
                return Err("its stride is not 1 to 8");
            }
            let window = self.k_of(d);
            let far = window.iter().map(|(i, by)| by * (self.factor.iters[*i].1.extent - 1));
            let (back, ahead) = far.fold((0, 0), |(back, ahead), far| (back + far.min(0), ahead + far.max(0)));
            let lower = d.offset + back;
            let upper = lower + (positions - 1) * step + 1 - d.extent;
            if ![lower, upper].iter().all(|corner| (-most..most).contains(corner)) || ahead - back >= 2 * most {
                return Err("its padding or its window is too large for images");
            }
            all.extents.push(d.extent);
            all.strides.push(*stride);
            all.first.push((lower, self.own_of(d)));
            of.offsets.push((-back, window));
            of.steps.push(step);
            of.corners.push([lower, upper]);
        }
        if between.is_empty() {
            all.extents.push(1);
            all.strides.push(channel.0.extent);
            all.first.push((0, Vec::new()));
            of = Images { offsets: vec![(0, Vec::new())], steps: vec![1], corners: vec![[0, 0]] };
        }
        let numbered = images.and_then(|(d, _)| self.own_of(d).first().copied());
        let number = numbered.unwrap_or((BEYOND, 1));
        let last = images.map_or((1, self.factor.of.elements(), (0, vec![number])), |(d, stride)| {
            (d.extent, stride, (d.offset, [vec![number], self.batches_of(d)].concat()))
        });
        if numbered.is_some_and(|(i, _)| rows.pop().map(|(lowest, _)| lowest) != Some(i)) || !rows.is_empty() {
            return ORDER;
        }
        all.extents.push(last.0);
        all.strides.push(last.1);
        all.first.push(last.2);
        Ok(Boxes { images: Some(of), ..all })
    }
}
