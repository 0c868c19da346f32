//! What a matrix instruction computes.
//!
//! Floats: the products of an instruction are exact in f64 and are added in f64 in the order of k, then what was there is added,
//! and the sum is rounded once to the type of the result. Whole numbers and whatever has few enough bits are thereby exact. The
//! tensor cores keep fewer bits on the way; how far results may be off is for the caller to say.
//! f64: one fused multiply-add after the other. Whole numbers: modulo 2^32, or clipped (`.satfinite`).
use crate::format::Element;
use half::f16;

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

/// `D = A B + C` on the bits of row-major matrices (B is K x N). `c` is missing where nothing is added.
pub fn multiply(
    shape: Shape,
    form: Form,
    (a_type, a): (Element, &[u64]),
    (b_type, b): (Element, &[u64]),
    c: Option<(Element, &[u64])>,
    d_type: Element,
) -> Vec<u64> {
    let Shape { m, n, k } = shape;
    if a_type == Element::B1 {
        return count_bits(shape, form, a, b, c.map(|c| c.1));
    }
    let sign = |negated: bool| if negated { -1.0 } else { 1.0 };
    let a: Vec<f64> = a.iter().map(|&x| sign(form.negate_a) * a_type.value(x)).collect();
    let b: Vec<f64> = b.iter().map(|&x| sign(form.negate_b) * b_type.value(x)).collect();
    let mut out = Vec::with_capacity(m * n);
    let mut sums = vec![0.0; n];
    for row in 0..m {
        let added = |column: usize| c.map_or(0.0, |(t, c)| t.value(c[row * n + column]));
        let fused = d_type == Element::F64;
        for (column, sum) in sums.iter_mut().enumerate() {
            *sum = if fused { added(column) } else { 0.0 };
        }
        for at in 0..k {
            let (left, line) = (a[row * k + at], &b[at * n..(at + 1) * n]);
            for (sum, right) in sums.iter_mut().zip(line) {
                *sum = if fused { left.mul_add(*right, *sum) } else { *sum + left * right };
            }
        }
        out.extend(sums.iter().enumerate().map(|(column, &sum)| match fused {
            true => sum.to_bits(),
            false => rounded(d_type, form, sum + added(column)),
        }));
    }
    out
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
