//! How the TMA brings a gathered factor: as pixels of images (mode im2col of `cp.async.bulk.tensor`).
//!
//! ```text
//! x[n, oh s + kh d - p, ow s + kw d - p, c],  m = (n, oh, ow),  k = (kh, kw, c)
//!
//!   rows of the matrix     pixels of a box: ow, then oh, then the next image; columns -p, s - p, .. (OW - 1) s - p
//!   64 values of k         64 channels of these pixels, moved by the offsets (kw d, kh d)
//!   zeros of the padding   what is outside of the image
//! ```
//!
//! So any rows that follow each other are one box, as those of a matrix in memory are.
use super::GatheredMatrix;
use crate::term::{Axis, Dimension};

/// A factor's buffer as images: channels, columns (rows, depth), images; the contiguous dimension first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Elements along each dimension.
    pub extents: Vec<i64>,
    /// Elements from one to the next along each dimension but the first.
    pub strides: Vec<i64>,
    /// The index in each dimension of the first pixel of a box: a constant, and iterators by number with their coefficients.
    pub first: Vec<(i64, Vec<(usize, i64)>)>,
    /// What is added to it for a value of k, in each dimension but the first and the last; never negative.
    pub offsets: Vec<(i64, Vec<(usize, i64)>)>,
    /// From one pixel to the next, of the same dimensions.
    pub steps: Vec<i64>,
    /// From the image's first column (row, ..) to that of the first pixel, where the offset is 0; from its last to that of the last.
    pub corners: Vec<[i64; 2]>,
}

/// What corners of a box in images of one, two and three dimensions may be: below this, and no less than its negative. Offsets are
/// below twice as much (PTX ISA, im2col mode).
const CORNERS: [i64; 3] = [1 << 15, 1 << 7, 1 << 4];

/// The longest step from pixel to pixel.
const STEP: i64 = 8;

impl Images {
    /// A factor with rows along `own`, whose boxes have `channels` channels, each of so many bytes.
    ///
    /// # Errors
    /// Why its buffer is not such images.
    pub(super) fn of(
        factor: &GatheredMatrix,
        own: Axis,
        (channels, bytes): (i64, i64),
    ) -> Result<Images, &'static str> {
        let no = Err;
        let of_axis = |axis: Axis| {
            let digits = factor.iters.iter().enumerate().filter(move |(_, (a, info))| *a == axis && info.extent > 1);
            digits.map(|(i, (_, info))| (i, info.extent)).collect::<Vec<_>>()
        };
        let (mut rows, values) = (of_axis(own), of_axis(Axis::K));
        let dims: Vec<(&Dimension, i64)> = factor.of.strided().collect();
        let (Some(lowest), Some((channel, before))) = (values.last(), dims.split_last()) else {
            return no("it has no channels");
        };
        if dims.iter().any(|(d, _)| d.step > 1) {
            return no("zeros stand between its elements");
        }
        let moved = |d: &Dimension, is: &dyn Fn(Axis) -> bool| -> Vec<(usize, i64)> {
            let terms = d.terms.iter().filter(|(i, _)| factor.iters[*i].1.extent > 1 && is(factor.iters[*i].0));
            terms.copied().collect()
        };
        let (along_own, along_k) = (|axis: Axis| axis == own, |axis: Axis| axis == Axis::K);
        let others = |axis: Axis| !along_own(axis) && !along_k(axis);
        let own_of = |d: &Dimension| moved(d, &along_own);
        if !channel.0.terms.contains(&(lowest.0, 1)) || !own_of(channel.0).is_empty() {
            return no("neighbours along k do not lie side by side");
        }
        if lowest.1 % channels != 0 {
            return no("its channels are no multiple of 128 bytes");
        }
        // The outermost dimension is that of the images where each is one more; else there is one image.
        let numbers_images = |d: &Dimension| {
            moved(d, &along_k).is_empty() && own_of(d).iter().all(|(_, by)| *by == 1) && own_of(d).len() < 2
        };
        let (images, between) = match before.split_first() {
            Some(((d, stride), rest)) if numbers_images(d) => (Some((*d, *stride)), rest),
            _ => (None, before),
        };
        // A signal of one dimension has no rows: one of them.
        let Some(most) = CORNERS.get(between.len().max(1) - 1) else {
            return no("its images have more than three dimensions");
        };
        let mut all = Images {
            extents: vec![channel.0.extent],
            strides: Vec::new(),
            first: vec![(channel.0.offset, channel.0.terms.clone())],
            offsets: Vec::new(),
            steps: Vec::new(),
            corners: Vec::new(),
        };
        for (d, stride) in between.iter().rev() {
            let (mut step, mut positions) = (1, 1);
            match own_of(d)[..] {
                [] => {}
                [(i, by)] if rows.last().is_some_and(|(lowest, _)| *lowest == i) => {
                    (step, positions) = (by, rows.pop().map_or(1, |(_, extent)| extent));
                }
                _ => return no("its rows are in another order than its dimensions"),
            }
            if !moved(d, &others).is_empty() {
                return no("a batch axis moves within its images");
            }
            if !(1..=STEP).contains(&step) {
                return no("its stride is not 1 to 8");
            }
            let windows = moved(d, &along_k);
            let far = |(i, by): &(usize, i64)| by * (factor.iters[*i].1.extent - 1);
            let before: i64 = windows.iter().map(far).filter(|far| *far < 0).sum();
            let after: i64 = windows.iter().map(far).filter(|far| *far > 0).sum();
            let lower = d.offset + before;
            let upper = lower + (positions - 1) * step + 1 - d.extent;
            if ![lower, upper].iter().all(|corner| (-most..*most).contains(corner)) || after - before >= 2 * most {
                return no("its padding or its window is too large for images");
            }
            all.extents.push(d.extent);
            all.strides.push(*stride);
            all.first.push((lower, own_of(d)));
            all.offsets.push((-before, windows));
            all.steps.push(step);
            all.corners.push([lower, upper]);
        }
        if between.is_empty() {
            all.extents.push(1);
            all.strides.push(images.map_or(channel.0.extent, |(_, stride)| stride));
            all.first.push((0, Vec::new()));
            all.offsets.push((0, Vec::new()));
            all.steps.push(1);
            all.corners.push([0, 0]);
        }
        match images {
            Some((d, stride)) => {
                let own = own_of(d);
                if own.first().is_some_and(|(i, _)| rows.pop().map(|(lowest, _)| lowest) != Some(*i)) {
                    return no("its rows are in another order than its dimensions");
                }
                all.extents.push(d.extent);
                all.strides.push(stride);
                all.first.push((d.offset, [own, moved(d, &others)].concat()));
            }
            None => {
                all.extents.push(1);
                all.strides.push(factor.of.elements());
                all.first.push((0, Vec::new()));
            }
        }
        if !rows.is_empty() {
            return no("its rows are in another order than its dimensions");
        }
        if all.strides.iter().any(|stride| stride * bytes % 16 != 0) {
            return no("its rows are not multiples of 16 bytes");
        }
        Ok(all)
    }

    /// Dimensions between the channels and the images.
    pub fn between(&self) -> usize {
        self.steps.len()
    }
}
