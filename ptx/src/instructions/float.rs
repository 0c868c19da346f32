//! Floating-point arithmetic: f16, bf16, f32, f64, and pairs; one rounding each, as asked.
use super::lanewise::{halves, one, operands, three, two};
use crate::number::{Format, Rounding, BF16, F16, F32, F64};
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported};
use crate::syntax::{Instruction, Type};

/// The format of a type's numbers, and whether it is a pair of them.
pub fn format(ty: Type) -> Option<(Format, bool)> {
    Some(match ty {
        Type::F16 => (F16, false),
        Type::F16x2 => (F16, true),
        Type::Bf16 => (BF16, false),
        Type::Bf16x2 => (BF16, true),
        Type::F32 => (F32, false),
        Type::F32x2 => (F32, true),
        Type::F64 => (F64, false),
        _ => return None,
    })
}

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    // `fma.rn.f32.f16`: mixed types.
    let types = i.types();
    if types.len() > 1 && types.first() != types.last() {
        return None;
    }
    let ty = i.ty()?;
    let (f, pair) = format(ty)?;
    let mode = Rounding::of(&i.modifiers);
    let ftz = i.has("ftz");
    let (sat, relu) = (i.has("sat"), i.has("relu"));
    let input = move |x: u64| if ftz { f.flushed(x) } else { x };
    let output = move |x: u64| {
        let x = if ftz { f.flushed(x) } else { x };
        let x = if f.is_nan(x) { f.nan() } else { x };
        if sat {
            saturated(f, x)
        } else if relu && !f.is_nan(x) && x & f.sign() != 0 {
            0
        } else {
            x
        }
    };
    let same = [ty];
    macro_rules! each {
        (1, $op:expr) => {{
            let op = $op;
            if pair {
                one(i, d, &same, move |a| halves(ty, a, 0, 0, |a, _, _| op(a)))
            } else {
                one(i, d, &same, op)
            }
        }};
        (2, $op:expr) => {{
            let op = $op;
            if pair {
                two(i, d, &same, move |a, b| halves(ty, a, b, 0, |a, b, _| op(a, b)))
            } else {
                two(i, d, &same, op)
            }
        }};
        (3, $op:expr) => {{
            let op = $op;
            if pair {
                three(i, d, &same, move |a, b, c| halves(ty, a, b, c, |a, b, c| op(a, b, c)))
            } else {
                three(i, d, &same, op)
            }
        }};
    }
    let by_value = move |g: fn(f64) -> f64| move |a: u64| output(f.round(g(f.value(input(a))), Rounding::Nearest));
    let plain = mode == Rounding::Nearest && f == F32;
    if plain && !(pair || ftz || sat || relu) {
        if let Some(quick) = quick(i, d) {
            return Some(quick);
        }
    }
    Some(match i.opcode.as_str() {
        "add" => each!(2, move |a, b| output(f.add(input(a), input(b), mode))),
        "sub" => each!(2, move |a, b| output(f.add(input(a), input(b) ^ f.sign(), mode))),
        "mul" => each!(2, move |a, b| output(f.mul(input(a), input(b), mode))),
        "fma" | "mad" => each!(3, move |a, b, c| output(f.fma(input(a), input(b), input(c), mode))),
        "div" => each!(2, move |a, b| output(f.div(input(a), input(b), mode))),
        "rcp" => {
            let unit = f.round(1.0, Rounding::Nearest);
            each!(1, move |a| output(f.div(unit, input(a), mode)))
        }
        "sqrt" => each!(1, move |a| output(f.sqrt(input(a), mode))),
        "rsqrt" => each!(1, by_value(|x| 1.0 / x.sqrt())),
        "ex2" => each!(1, by_value(f64::exp2)),
        "lg2" => each!(1, by_value(f64::log2)),
        "sin" => each!(1, by_value(f64::sin)),
        "cos" => each!(1, by_value(f64::cos)),
        "tanh" => each!(1, by_value(f64::tanh)),
        "abs" => each!(1, move |a: u64| {
            let a = input(a) & !f.sign();
            if sat {
                saturated(f, a)
            } else {
                a
            }
        }),
        "neg" => each!(1, move |a: u64| input(a) ^ f.sign()),
        "min" | "max" => {
            let (largest, keeps, xorsign) = (i.opcode == "max", i.has("NaN"), i.has("xorsign"));
            if i.operands.len() == 4 {
                return Some(three(i, d, &same, move |a, b, c| {
                    let first = pick(f, input(a), input(b), largest, keeps);
                    output(pick(f, first, input(c), largest, keeps))
                }));
            }
            each!(2, move |a: u64, b: u64| {
                let (a, b) = (input(a), input(b));
                if xorsign {
                    let sign = (a ^ b) & f.sign();
                    let out = pick(f, a & !f.sign(), b & !f.sign(), largest, keeps);
                    return if f.is_nan(out) { f.nan() } else { out | sign };
                }
                output(pick(f, a, b, largest, keeps))
            })
        }
        "copysign" => each!(2, move |a: u64, b: u64| (b & !f.sign()) | (a & f.sign())),
        "testp" => testp(i, d, ty, f),
        "selp" => three(i, d, &[ty, ty, Type::Pred], |a, b, p| if p & 1 == 1 { a } else { b }),
        _ => return None,
    })
}

/// Sums, products and both of singles, to nearest, without any further wish: what most of a kernel's instructions are.
fn quick(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    let same = [Type::F32];
    let single = |x: u64| f32::from_bits(x as u32);
    let bits = |x: f32| u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() });
    Some(match i.opcode.as_str() {
        "add" => two(i, d, &same, move |a, b| bits(single(a) + single(b))),
        "sub" => two(i, d, &same, move |a, b| bits(single(a) - single(b))),
        "mul" => two(i, d, &same, move |a, b| bits(single(a) * single(b))),
        "fma" => match operands(i, d, &same) {
            Ok((to, [a, b, e])) => Ok(Box::new(move |c| {
                let (mut r0, mut r1, mut r2) = (None, None, None);
                let (a, b, e) = (c.view(a, &mut r0), c.view(b, &mut r1), c.view(e, &mut r2));
                let out = fused(a, b, e);
                c.write_to(to, &out);
                Ok(Flow::Next)
            })),
            Err(e) => Err(e),
        },
        _ => return None,
    })
}

/// `a b + c` on singles, rounded once. In doubles the product is exact, and the sum is rounded a first time; rounding again errs
/// only where that has left the middle between two singles, or where the single has fewer digits. There the
/// operation itself is asked, which takes longer.
fn fused(a: &Lanes, b: &Lanes, c: &Lanes) -> Lanes {
    const MIDDLE: u64 = 1 << 28;
    let double = |x: u64| f64::from(f32::from_bits(x as u32));
    let mut out = [0; 32];
    let mut unsure = false;
    for (((out, a), b), c) in out.iter_mut().zip(a).zip(b).zip(c) {
        let sum = double(*a) * double(*b) + double(*c);
        let near = sum as f32;
        unsure |= sum.to_bits() & (2 * MIDDLE - 1) == MIDDLE;
        unsure |= near.abs() <= f32::MIN_POSITIVE && sum != 0.0;
        *out = u64::from(if near.is_nan() { 0x7fff_ffff } else { near.to_bits() });
    }
    if unsure {
        return std::array::from_fn(|l| F32.fma(a[l], b[l], c[l], Rounding::Nearest));
    }
    out
}

/// Within 0 and 1; a NaN becomes 0.
pub fn saturated(f: Format, x: u64) -> u64 {
    if f.is_nan(x) || x & f.sign() != 0 {
        return 0;
    }
    x.min(f.round(1.0, Rounding::Nearest))
}

/// The smaller or larger; of a number and a NaN the number, unless NaNs are kept; -0 is below 0.
fn pick(f: Format, a: u64, b: u64, largest: bool, keeps_nan: bool) -> u64 {
    match (f.is_nan(a), f.is_nan(b)) {
        (true, true) => return f.nan(),
        (true, false) => return if keeps_nan { f.nan() } else { b },
        (false, true) => return if keeps_nan { f.nan() } else { a },
        _ => {}
    }
    let key = |x: u64| if x & f.sign() != 0 { -((x & !f.sign()) as i128) - 1 } else { i128::from(x) };
    if (key(a) < key(b)) == largest {
        b
    } else {
        a
    }
}

fn testp(i: &Instruction, d: &Decoder<'_>, ty: Type, f: Format) -> Result<Operation, Unsupported> {
    let what = i.modifiers.first().cloned().unwrap_or_default();
    one(i, d, &[ty], move |x| {
        let magnitude = x & (f.sign() - 1);
        u64::from(match what.as_str() {
            "finite" => magnitude < f.infinity(),
            "infinite" => magnitude == f.infinity(),
            "number" => magnitude <= f.infinity(),
            "notanumber" => magnitude > f.infinity(),
            "normal" => magnitude < f.infinity() && magnitude & f.infinity() != 0,
            _ => magnitude != 0 && magnitude & f.infinity() == 0,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_fused_product_is_rounded_once(
            a in any::<[u32; 32]>(),
            near in any::<[u8; 32]>(),
            b in any::<[u32; 32]>(),
            one in any::<bool>(),
        ) {
            let lanes = |x: [u32; 32]| x.map(u64::from);
            // Sums whose parts are of one size, and those that fall between two singles.
            let b = if one { b.map(|x| x & 0x807f_ffff | 0x3f80_0000) } else { b };
            let c: [u32; 32] = std::array::from_fn(|l| {
                let product = f32::from_bits(a[l]) * f32::from_bits(b[l]);
                (product * 2f32.powi(i32::from(near[l] % 64) - 32)).to_bits()
            });
            let out = fused(&lanes(a), &lanes(b), &lanes(c));
            for l in 0..32 {
                let want = F32.fma(u64::from(a[l]), u64::from(b[l]), u64::from(c[l]), Rounding::Nearest);
                prop_assert_eq!(out[l], want, "{:x} {:x} {:x}", a[l], b[l], c[l]);
            }
        }
    }

    #[test]
    fn what_doubles_round_into_the_middle_is_rounded_once() {
        // 1 + 2^-24 is the middle between two singles; what decides is 2^-60 beyond it, which no double has.
        let of = |x: f32| u64::from(x.to_bits());
        let (a, b) = (1.0 + 2f32.powi(-12), 2f32.powi(-24));
        for (x, y, z) in [
            (2f32.powi(-30), 2f32.powi(-30), 1.0 + 2f32.powi(-23)),
            (a, a * b, 1.0),
            (2f32.powi(-75), 3.0 * 2f32.powi(-75), 2f32.powi(-149)),
            (2f32.powi(-64), 1.0 - b, 2f32.powi(-126) - 2f32.powi(-149)),
        ] {
            let want = x.mul_add(y, z);
            assert_eq!(fused(&[of(x); 32], &[of(y); 32], &[of(z); 32]), [of(want); 32], "{x} {y} {z}");
        }
    }
}
