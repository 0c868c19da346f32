//! Floating-point arithmetic: f16, bf16, f32, f64, and pairs; one rounding each, as asked.
use super::lanewise::{halves, one, three, two};
use crate::number::{Format, Rounding, BF16, F16, F32, F64};
use crate::program::{Decoder, Operation, Unsupported};
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
    let single = |x: u64| f32::from_bits(x as u32);
    Some(match i.opcode.as_str() {
        "add" if plain => {
            each!(2, move |a, b| output(u64::from((single(input(a)) + single(input(b))).to_bits())))
        }
        "sub" if plain => {
            each!(2, move |a, b| output(u64::from((single(input(a)) - single(input(b))).to_bits())))
        }
        "mul" if plain => {
            each!(2, move |a, b| output(u64::from((single(input(a)) * single(input(b))).to_bits())))
        }
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
