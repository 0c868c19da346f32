//! What a matrix instruction computes.
//!
//! Floats: the products of an instruction are exact in f64 and are added in f64 in the order of k, then what was there is added,
//! and the sum is rounded once to the type of the result. Whole numbers and whatever has few enough bits are thereby exact. The
//! tensor cores keep fewer bits on the way; how far results may be off is for the caller to say.
//! f64: one fused multiply-add after the other. Whole numbers: modulo 2^32, or clipped (`.satfinite`).
use crate::format::{tf32, Element};
use half::f16;
use std::sync::OnceLock;

/// Sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub m: usize,
    /// Columns.
    pub n: usize,
    /// Terms of a sum.
    pub k: usize,
}

/// What is done to whole numbers beside multiplication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// Sums are clipped to 32 bits.
    pub saturate: bool,
    /// Bits are joined by xor, else by and, before they are counted (`.b1`).
    pub xor: bool,
    /// A's numbers change their sign.
    pub negate_a: bool,
    /// B's numbers change their sign.
    pub negate_b: bool,
}

impl Form {
    /// Whether the numbers of A (0), or B (1), change their sign.
    pub fn negates(&self, side: usize) -> bool {
        [self.negate_a, self.negate_b][side]
    }
}

/// An operand as numbers: all types but f64 have none that f32 does not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    values: Vec<f32>,
    /// The largest magnitude, where all are whole numbers; else infinity.
    whole: f32,
}

impl Numbers {
    /// The numbers of elements' bits, with their signs changed where asked.
    pub fn of(element: Element, bits: &[u64], negated: bool) -> Numbers {
        let mut values = vec![0.0; bits.len()];
        convert(element, bits.iter().copied(), &mut values);
        Numbers::new(values, negated)
    }

    /// The same of elements of 8, 16 or 32 bits as they stand in memory.
    pub fn of_bytes(element: Element, bytes: &[u8], negated: bool) -> Numbers {
        let width = (element.bits() / 8).max(1) as usize;
        let mut values = vec![0.0; bytes.len() / width];
        match width {
            1 => convert(element, bytes.iter().map(|b| u64::from(*b)), &mut values),
            2 => convert(
                element,
                bytes.chunks_exact(2).map(|b| u64::from(u16::from_le_bytes([b[0], b[1]]))),
                &mut values,
            ),
            _ => {
                let word = |b: &[u8]| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                convert(element, bytes.chunks_exact(4).map(word), &mut values);
            }
        }
        Numbers::new(values, negated)
    }

    fn new(mut values: Vec<f32>, negated: bool) -> Numbers {
        if negated {
            values.iter_mut().for_each(|x| *x = -*x);
        }
        let mut most = 0_f32;
        let mut whole = true;
        for x in &values {
            // Of a large number, an infinity or a NaN the difference is none of a fraction.
            let magnitude = x.abs();
            whole &= magnitude < 16_777_216.0 && (magnitude + 8_388_608.0) - 8_388_608.0 == magnitude;
            most = most.max(magnitude);
        }
        Numbers { values, whole: if whole { most } else { f32::INFINITY } }
    }

    /// With rows and columns exchanged, of a matrix of so many columns.
    #[must_use]
    pub fn transposed(self, columns: usize) -> Numbers {
        let rows = self.values.len() / columns.max(1);
        let mut values = vec![0.0; self.values.len()];
        for (row, line) in self.values.chunks_exact(columns.max(1)).enumerate() {
            line.iter().enumerate().for_each(|(column, x)| values[column * rows + row] = *x);
        }
        Numbers { values, ..self }
    }
}

/// The values of elements' bits.
fn convert(element: Element, bits: impl Iterator<Item = u64>, to: &mut [f32]) {
    let pairs = to.iter_mut().zip(bits);
    match element {
        Element::F16 => pairs.for_each(|(to, x)| *to = half_to_single(x as u16)),
        Element::Bf16 => pairs.for_each(|(to, x)| *to = f32::from_bits((x as u32) << 16)),
        Element::Tf32 => pairs.for_each(|(to, x)| *to = tf32(x as u32)),
        Element::S8 => pairs.for_each(|(to, x)| *to = f32::from(x as i8)),
        Element::U8 => pairs.for_each(|(to, x)| *to = f32::from(x as u8)),
        Element::E4m3 | Element::E5m2 => {
            let table = bytes(element);
            pairs.for_each(|(to, x)| *to = table[x as usize & 0xff]);
        }
        other => pairs.for_each(|(to, x)| *to = other.value(x) as f32),
    }
}

/// Exact: an f16 as an f32.
#[inline]
fn half_to_single(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // 2^112 moves the exponent; it makes normal numbers of those that are none.
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let other = magnitude | 0x7f80_0000;
    let value = if bits & 0x7c00 == 0x7c00 { other } else { finite };
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

/// The values of all bytes of a type.
fn bytes(element: Element) -> &'static [f32; 256] {
    static E4M3: OnceLock<[f32; 256]> = OnceLock::new();
    static E5M2: OnceLock<[f32; 256]> = OnceLock::new();
    let table = if element == Element::E4m3 { &E4M3 } else { &E5M2 };
    table.get_or_init(|| std::array::from_fn(|bits| element.value(bits as u64) as f32))
}

/// `D = A B + C` on the bits of row-major matrices (B is K x N). `c` is missing where nothing is added.
pub fn multiply(
    shape: Shape,
    form: Form,
    (a_type, a): (Element, &[u64]),
    (b_type, b): (Element, &[u64]),
    c: Option<(Element, &[u64])>,
    d_type: Element,
) -> Vec<u64> {
    if a_type == Element::B1 {
        return count_bits(shape, form, a, b, c.map(|c| c.1));
    }
    if d_type == Element::F64 {
        return fused(shape, a, b, c);
    }
    let (a, b) = (Numbers::of(a_type, a, form.negate_a), Numbers::of(b_type, b, form.negate_b));
    product(shape, form, &a, &b, c, d_type)
}

/// [`multiply`] on numbers.
pub fn product(
    shape: Shape,
    form: Form,
    a: &Numbers,
    b: &Numbers,
    c: Option<(Element, &[u64])>,
    d_type: Element,
) -> Vec<u64> {
    let sums = sums(shape, a, b);
    let added = |at: usize| c.map_or(0.0, |(t, c)| t.value(c[at]));
    sums.iter().enumerate().map(|(at, sum)| rounded(d_type, form, sum + added(at))).collect()
}

/// The product of two matrices of numbers, each sum in the order of k; row-major.
pub fn sums(Shape { m, n, k }: Shape, a: &Numbers, b: &Numbers) -> Vec<f64> {
    // Sums of whole numbers below 2^24 are exact in f32, where the processor adds twice as many at once.
    if a.whole * b.whole * (k as f32) < 16_777_216.0 {
        let mut sums = vec![0_f32; m * n];
        multiplied::<f32, 8>(k, n, &a.values, &b.values, &mut sums);
        return sums.iter().map(|x| f64::from(*x)).collect();
    }
    let wide = |values: &[f32]| values.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let mut sums = vec![0_f64; m * n];
    multiplied::<f64, 4>(k, n, &wide(&a.values), &wide(&b.values), &mut sums);
    sums
}

/// Rows that are multiplied side by side: their sums over `C` columns stay in the processor's registers.
const ROWS: usize = 4;

/// Sums of lines of A with the columns of B, each in the order of k.
fn multiplied<T, const C: usize>(k: usize, n: usize, a: &[T], b: &[T], sums: &mut [T])
where
    T: Copy + Default + std::ops::Add<Output = T> + std::ops::Mul<Output = T>,
{
    for (lines, sums) in a.chunks(ROWS * k).zip(sums.chunks_mut(ROWS * n)) {
        let mut column = 0;
        while column < n {
            if column + C <= n && lines.len() == ROWS * k {
                let mut tile = [[T::default(); C]; ROWS];
                for at in 0..k {
                    let mut row = [T::default(); C];
                    row.copy_from_slice(&b[at * n + column..at * n + column + C]);
                    for (tile, line) in tile.iter_mut().zip(lines.chunks_exact(k)) {
                        let factor = line[at];
                        tile.iter_mut().zip(&row).for_each(|(sum, x)| *sum = *sum + factor * *x);
                    }
                }
                for (sums, tile) in sums.chunks_exact_mut(n).zip(&tile) {
                    sums[column..column + C].copy_from_slice(tile);
                }
                column += C;
                continue;
            }
            for (sums, line) in sums.chunks_exact_mut(n).zip(lines.chunks_exact(k)) {
                let terms = line.iter().enumerate().map(|(at, x)| *x * b[at * n + column]);
                sums[column] = terms.fold(T::default(), |sum, term| sum + term);
            }
            column += 1;
        }
    }
}

/// In doubles, one fused multiply-add after the other.
fn fused(Shape { m, n, k }: Shape, a: &[u64], b: &[u64], c: Option<(Element, &[u64])>) -> Vec<u64> {
    let mut out = Vec::with_capacity(m * n);
    for row in 0..m {
        for column in 0..n {
            let start = c.map_or(0.0, |(t, c)| t.value(c[row * n + column]));
            let sum = (0..k).fold(start, |sum, at| {
                f64::from_bits(a[row * k + at]).mul_add(f64::from_bits(b[at * n + column]), sum)
            });
            out.push(sum.to_bits());
        }
    }
    out
}

/// Adds sums to what stands in a result's register, or to nothing; `places`: which sum is whose, by lane and, in a
/// register, by element.
pub fn accumulated(dtype: Element, form: Form, sums: &[f64], places: &[u32], before: Option<&[u64; 32]>) -> [u64; 32] {
    let of = |place: &u32| sums[*place as usize];
    if dtype == Element::F32 && places.len() == 32 {
        let single = |lane: usize| before.map_or(0.0, |b| f64::from(f32::from_bits(b[lane] as u32)));
        return std::array::from_fn(|lane| u64::from(canonical((of(&places[lane]) + single(lane)) as f32)));
    }
    let (per, bits) = (places.len() / 32, dtype.bits());
    let mask = u64::MAX >> (64 - bits);
    std::array::from_fn(|lane| {
        places[lane * per..(lane + 1) * per].iter().enumerate().fold(0, |word, (element, place)| {
            let shift = element as u32 * bits;
            let added = before.map_or(0.0, |b| dtype.value(b[lane] >> shift & mask));
            word | rounded(dtype, form, of(place) + added) << shift
        })
    })
}

/// Bits of a sum in the result's type. Sums of whole numbers have fewer than 53 bits.
fn rounded(dtype: Element, form: Form, sum: f64) -> u64 {
    match dtype {
        Element::F16 => u64::from(f16::from_f64(sum).to_bits()),
        Element::S32 if form.saturate => u64::from(sum.clamp(f64::from(i32::MIN), f64::from(i32::MAX)) as i32 as u32),
        Element::S32 => u64::from(sum as i64 as u32),
        _ => u64::from(canonical(sum as f32)),
    }
}

/// The tensor cores know one NaN.
fn canonical(value: f32) -> u32 {
    if value.is_nan() {
        0x7fff_ffff
    } else {
        value.to_bits()
    }
}

fn count_bits(Shape { m, n, k }: Shape, form: Form, a: &[u64], b: &[u64], c: Option<&[u64]>) -> Vec<u64> {
    let mut out = Vec::with_capacity(m * n);
    for row in 0..m {
        for column in 0..n {
            let counted = (0..k).fold(0_u32, |count, at| {
                let (x, y) = (a[row * k + at], b[at * n + column]);
                count + (if form.xor { x ^ y } else { x & y }) as u32
            });
            out.push(u64::from((c.map_or(0, |c| c[row * n + column] as u32)).wrapping_add(counted)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_products_are_exact() {
        let shape = Shape { m: 2, n: 2, k: 3 };
        let bits = |values: &[f32]| values.iter().map(|&v| u64::from(f16::from_f32(v).to_bits())).collect::<Vec<_>>();
        let (a, b) = (bits(&[1.0, 2.0, 3.0, -4.0, 5.0, 0.5]), bits(&[1.0, 0.0, 2.0, 1.0, 0.0, -1.0]));
        let c: Vec<u64> = [10.0_f32, 0.0, 0.0, 1.0].iter().map(|v| u64::from(v.to_bits())).collect();
        let d = multiply(
            shape,
            Form::default(),
            (Element::F16, &a),
            (Element::F16, &b),
            Some((Element::F32, &c)),
            Element::F32,
        );
        let d: Vec<f32> = d.iter().map(|&x| f32::from_bits(x as u32)).collect();
        assert_eq!(d, [15.0, -1.0, 6.0, 5.5]);
    }

    #[test]
    fn halves_are_singles() {
        for bits in 0..=u16::MAX {
            let (fast, slow) = (half_to_single(bits), f16::from_bits(bits).to_f32());
            assert!(fast.to_bits() == slow.to_bits() || fast.is_nan() && slow.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn whole_numbers_have_the_sums_of_others() {
        let shape = Shape { m: 3, n: 8, k: 18 };
        let bits = |seed: u64, count: u64| -> Vec<u64> {
            let value = |i: u64| ((i * 2_654_435_761 + seed) >> 7) % 13;
            (0..count).map(|i| u64::from(f16::from_f64(value(i) as f64 - 6.0).to_bits())).collect()
        };
        let (a, b) = (bits(1, 54), bits(2, 144));
        let (x, y) = (Numbers::of(Element::F16, &a, false), Numbers::of(Element::F16, &b, false));
        assert_eq!(x.whole, 6.0);
        let slow = Numbers { whole: f32::INFINITY, ..x.clone() };
        let of = |a: &Numbers| product(shape, Form::default(), a, &y, None, Element::F32);
        assert_eq!(of(&x), of(&slow));
    }

    #[test]
    fn whole_numbers_wrap_or_are_clipped() {
        let shape = Shape { m: 1, n: 1, k: 1 };
        let run = |saturate| {
            let form = Form { saturate, ..Form::default() };
            let c = [u64::from(i32::MAX as u32)];
            multiply(shape, form, (Element::S8, &[100]), (Element::U8, &[200]), Some((Element::S32, &c)), Element::S32)
                [0]
        };
        assert_eq!(run(true) as u32 as i32, i32::MAX);
        assert_eq!(run(false) as u32 as i32, i32::MAX.wrapping_add(20_000));
        let xor = Form { xor: true, ..Form::default() };
        let shape = Shape { k: 3, ..shape };
        assert_eq!(multiply(shape, xor, (Element::B1, &[1, 0, 1]), (Element::B1, &[1, 1, 0]), None, Element::S32), [2]);
    }
}
