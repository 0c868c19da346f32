//! What a matrix instruction computes.
//!
//! Floats: the products of an instruction are exact in f64 and are added in f64 in the order of k, then what was there is added,
//! and the sum is rounded once to the type of the result. Whole numbers and whatever has few enough bits are thereby exact. The
//! tensor cores keep fewer bits on the way; how far results may be off is for the caller to say.
//! f64: one fused multiply-add after the other. Whole numbers: modulo 2^32, or clipped (`.satfinite`).
use super::fragment::{Dealt, Fragment};
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
        // Of all at once: the largest magnitude, by its bits, and what is left of any of them beside a whole number.
        let (mut most, mut rest) = (0, 0);
        for x in &values {
            let magnitude = x.abs();
            rest |= ((magnitude + 8_388_608.0) - 8_388_608.0).to_bits() ^ magnitude.to_bits();
            most = most.max(magnitude.to_bits() as i32);
        }
        let most = f32::from_bits(most as u32);
        // Of a large number, an infinity or a NaN the difference is none of a fraction.
        let whole = if rest == 0 && most < 16_777_216.0 { most } else { f32::INFINITY };
        Numbers { values, whole }
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

/// A right operand, K x N, as it is multiplied: eight columns after the other, of each all rows.
#[derive(Clone, Debug)]
pub struct Panels {
    values: Vec<f32>,
    /// As of [`Numbers`].
    whole: f32,
    /// The same, for sums that are made in doubles.
    doubles: OnceLock<Vec<f64>>,
}

impl Panels {
    /// Of a matrix of so many terms of each sum that stands by rows, or by columns. The columns are a multiple of eight.
    pub fn of(numbers: Numbers, terms: usize, by_rows: bool) -> Panels {
        let Numbers { values, whole } = numbers;
        let columns = values.len() / terms.max(1);
        let values = match by_rows {
            true if columns == 8 => values,
            true => {
                let row = |at: usize| values[at..].first_chunk::<8>().copied().unwrap_or_default();
                (0..columns).step_by(8).flat_map(|c| (0..terms).flat_map(move |at| row(at * columns + c))).collect()
            }
            false => {
                let mut panels = vec![[0.0; 8]; values.len() / 8];
                for (lines, panel) in values.chunks_exact(8 * terms).zip(panels.chunks_exact_mut(terms)) {
                    for (column, line) in lines.chunks_exact(terms).enumerate() {
                        line.iter().zip(&mut *panel).for_each(|(x, row)| row[column] = *x);
                    }
                }
                panels.into_flattened()
            }
        };
        Panels { values, whole, doubles: OnceLock::new() }
    }

    fn doubles(&self) -> &[f64] {
        self.doubles.get_or_init(|| self.values.iter().map(|x| f64::from(*x)).collect())
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
    let mut out = vec![0; shape.m * shape.n];
    each_sum(shape, &a, &Panels::of(b, shape.k, true), |first, sums| {
        for (at, sum) in (first..).zip(sums) {
            let added = c.map_or(0.0, |(t, c)| t.value(c[at]));
            out[at] = rounded(d_type, form, sum + added);
        }
    });
    out
}

/// Shows the sums of a product, each in the order of k: some that stand side by side, with the row-major place of the first.
#[inline]
fn each_sum(Shape { k, n, .. }: Shape, a: &Numbers, b: &Panels, mut show: impl FnMut(usize, &[f64])) {
    // Sums of whole numbers below 2^24 are exact in f32, where the processor adds twice as many at once.
    if a.whole * b.whole * (k as f32) < 16_777_216.0 {
        tiles(k, n, &a.values, &b.values, |at, sums: &[f32; PANEL]| show(at, &sums.map(f64::from)));
    } else {
        tiles(k, n, &a.values, b.doubles(), |at, sums: &[f64; PANEL]| show(at, sums));
    }
}

/// Rows, and columns, that are multiplied side by side.
const ROWS: usize = 4;
const PANEL: usize = 8;

/// The sums of lines of A with the columns of B, tile by tile.
#[inline]
fn tiles<T>(k: usize, n: usize, a: &[f32], panels: &[T], mut show: impl FnMut(usize, &[T; PANEL]))
where
    T: Copy + Default + From<f32> + std::ops::Add<Output = T> + std::ops::Mul<Output = T>,
{
    let arch = pulp::Arch::new();
    for (block, lines) in a.chunks(ROWS * k).enumerate() {
        let factor = |row: usize, at: usize| lines.get(row * k + at).map_or(T::default(), |x| T::from(*x));
        let factors: Vec<[T; ROWS]> = (0..k).map(|at| std::array::from_fn(|row| factor(row, at))).collect();
        for (number, panel) in panels.as_chunks::<PANEL>().0.chunks_exact(k).enumerate() {
            let sums = arch.dispatch(Tile { factors: &factors, panel });
            for (row, sums) in sums.iter().enumerate().take(lines.len() / k) {
                show((block * ROWS + row) * n + number * PANEL, sums);
            }
        }
    }
}

/// The sums of some rows with the columns of a panel. It is compiled for what the processor has at hand, by itself, so that the
/// sums stay in registers.
struct Tile<'a, T> {
    factors: &'a [[T; ROWS]],
    panel: &'a [[T; PANEL]],
}

impl<T> pulp::NullaryFnOnce for Tile<'_, T>
where
    T: Copy + Default + std::ops::Add<Output = T> + std::ops::Mul<Output = T>,
{
    type Output = [[T; PANEL]; ROWS];

    #[inline(always)]
    fn call(self) -> Self::Output {
        let mut tile = [[T::default(); PANEL]; ROWS];
        for (factors, row) in self.factors.iter().zip(self.panel) {
            for (sums, factor) in tile.iter_mut().zip(factors) {
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum = *sum + *factor * *x);
            }
        }
        tile
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

/// What instructions add to, between one and the next: numbers of their type, row-major.
pub struct Accumulators {
    dtype: Element,
    values: Vec<f64>,
}

impl Accumulators {
    /// What stands in registers.
    pub fn of<'r>(dtype: Element, dealt: &Dealt, registers: impl Iterator<Item = &'r [u64; 32]>) -> Accumulators {
        let Fragment { rows, columns, per, .. } = dealt.fragment;
        let mut values = vec![0.0; rows * columns];
        let (bits, mask) = (dtype.bits(), u64::MAX >> (64 - dtype.bits()));
        for (number, register) in registers.enumerate() {
            let places = dealt.places(number);
            if dtype == Element::F32 {
                let pairs = places.iter().zip(register);
                pairs.for_each(|(place, word)| values[*place as usize] = f64::from(f32::from_bits(*word as u32)));
                continue;
            }
            for (places, word) in places.chunks_exact(per).zip(register) {
                for (element, place) in places.iter().enumerate() {
                    values[*place as usize] = dtype.value(word >> (element as u32 * bits) & mask);
                }
            }
        }
        Accumulators { dtype, values }
    }

    /// What stands in words of 32 bits, row-major, a number in each.
    pub fn of_words(dtype: Element, words: impl Iterator<Item = u32>) -> Accumulators {
        let mask = u64::MAX >> (64 - dtype.bits());
        Accumulators { dtype, values: words.map(|word| dtype.value(u64::from(word) & mask)).collect() }
    }

    /// Words of 32 bits, row-major, a number in each.
    pub fn words(&self) -> impl Iterator<Item = u32> + '_ {
        self.values.iter().map(|value| rounded(self.dtype, Form::default(), *value) as u32)
    }

    /// Forgets them: the next product is added to nothing.
    pub fn clear(&mut self) {
        self.values.fill(0.0);
    }

    /// Adds a product.
    pub fn add(&mut self, shape: Shape, form: Form, a: &Numbers, b: &Panels) {
        let Accumulators { dtype, values } = self;
        match dtype {
            Element::F32 => each_sum(shape, a, b, |at, sums| {
                let values = &mut values[at..at + sums.len()];
                values.iter_mut().zip(sums).for_each(|(value, sum)| *value = f64::from((*sum + *value) as f32));
            }),
            _ => each_sum(shape, a, b, |at, sums| {
                for (value, sum) in values[at..].iter_mut().zip(sums) {
                    *value = dtype.value(rounded(*dtype, form, *sum + *value));
                }
            }),
        }
    }

    /// What stands in a register of all lanes.
    pub fn register(&self, dealt: &Dealt, number: usize) -> [u64; 32] {
        let (per, places, bits) = (dealt.fragment.per, dealt.places(number), self.dtype.bits());
        let mut out = [0; 32];
        if self.dtype == Element::F32 {
            let pairs = out.iter_mut().zip(places);
            pairs.for_each(|(out, place)| *out = u64::from(canonical(self.values[*place as usize] as f32)));
            return out;
        }
        for (word, places) in out.iter_mut().zip(places.chunks_exact(per)) {
            for (element, place) in places.iter().enumerate() {
                *word |= rounded(self.dtype, Form::default(), self.values[*place as usize]) << (element as u32 * bits);
            }
        }
        out
    }
}

/// Bits of a sum in the result's type. Sums of whole numbers have fewer than 53 bits.
fn rounded(dtype: Element, form: Form, sum: f64) -> u64 {
    match dtype {
        Element::F16 if sum.is_nan() => 0x7fff,
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
        let shape = Shape { m: 2, n: 8, k: 3 };
        let bits = |values: &[f32]| values.iter().map(|&v| u64::from(f16::from_f32(v).to_bits())).collect::<Vec<_>>();
        // Two columns of eight.
        let padded =
            |pairs: &[[f32; 2]]| pairs.iter().flat_map(|[x, y]| [*x, *y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).collect();
        let b: Vec<f32> = padded(&[[1.0, 0.0], [2.0, 1.0], [0.0, -1.0]]);
        let (a, b) = (bits(&[1.0, 2.0, 3.0, -4.0, 5.0, 0.5]), bits(&b));
        let c: Vec<f32> = padded(&[[10.0, 0.0], [0.0, 1.0]]);
        let c: Vec<u64> = c.iter().map(|v| u64::from(v.to_bits())).collect();
        let d = multiply(
            shape,
            Form::default(),
            (Element::F16, &a),
            (Element::F16, &b),
            Some((Element::F32, &c)),
            Element::F32,
        );
        let d: Vec<f32> = d.iter().map(|&x| f32::from_bits(x as u32)).collect();
        assert_eq!([d[0], d[1], d[8], d[9]], [15.0, -1.0, 6.0, 5.5]);
    }

    #[test]
    fn halves_are_singles() {
        for bits in 0..=u16::MAX {
            let (fast, slow) = (half_to_single(bits), f16::from_bits(bits).to_f32());
            assert!(fast.to_bits() == slow.to_bits() || fast.is_nan() && slow.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn sums_are_those_of_the_definition() {
        let value = |i: usize, seed: usize| ((i * 2_654_435_761 + seed) >> 7) as f32 % 13.0 - 6.0;
        for (m, n, k) in [(3, 8, 18), (16, 24, 8), (6, 16, 5)] {
            let a: Vec<f32> = (0..m * k).map(|i| value(i, 1)).collect();
            let (b, turned): (Vec<f32>, Vec<f32>) =
                (0..k * n).map(|i| (value(i, 2), value(i % k * n + i / k, 2))).unzip();
            let sum = |at: usize| (0..k).map(|t| f64::from(a[at / n * k + t] * b[t * n + at % n])).sum::<f64>();
            let right: Vec<f64> = (0..m * n).map(sum).collect();
            let a = Numbers::new(a, false);
            let fraction = Numbers { whole: f32::INFINITY, ..a.clone() };
            assert_eq!(a.whole, 6.0);
            for a in [&a, &fraction] {
                for (b, by_rows) in [(&b, true), (&turned, false)] {
                    let mut sums = vec![0.0; m * n];
                    let b = Panels::of(Numbers::new(b.clone(), false), k, by_rows);
                    each_sum(Shape { m, n, k }, a, &b, |at, some| sums[at..at + some.len()].copy_from_slice(some));
                    assert_eq!(sums, right, "{m} x {n} x {k}, B by rows: {by_rows}");
                }
            }
        }
    }

    #[test]
    fn only_whole_numbers_are_whole() {
        for (x, whole) in [(6.0, 6.0), (-0.0, 0.0), (8_388_607.0, 8_388_607.0)] {
            assert_eq!(Numbers::new(vec![x, 0.0], false).whole, whole);
        }
        for x in [0.5, 4_194_304.5, 16_777_216.0, f32::NAN, f32::NEG_INFINITY, f32::MIN_POSITIVE, f32::from_bits(1)] {
            assert_eq!(Numbers::new(vec![1.0, x], true).whole, f32::INFINITY, "{x}");
        }
    }

    #[test]
    fn whole_numbers_wrap_or_are_clipped() {
        let shape = Shape { m: 1, n: 8, k: 1 };
        let run = |saturate| {
            let form = Form { saturate, ..Form::default() };
            let c = [u64::from(i32::MAX as u32); 8];
            let (a, b) = ((Element::S8, &[100][..]), (Element::U8, &[200; 8][..]));
            multiply(shape, form, a, b, Some((Element::S32, &c)), Element::S32)[0]
        };
        assert_eq!(run(true) as u32 as i32, i32::MAX);
        assert_eq!(run(false) as u32 as i32, i32::MAX.wrapping_add(20_000));
        let xor = Form { xor: true, ..Form::default() };
        let shape = Shape { m: 1, n: 1, k: 3 };
        assert_eq!(multiply(shape, xor, (Element::B1, &[1, 0, 1]), (Element::B1, &[1, 1, 0]), None, Element::S32), [2]);
    }
}
