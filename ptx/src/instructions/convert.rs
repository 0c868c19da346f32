//! cvt: between integers and floating-point numbers of all widths, with all roundings.
use super::float::{format, saturated};
use super::lanewise::{mask, one, signed, two};
use crate::format::{Small, E4M3, E5M2};
use crate::number::{integral, Format, Rounding, F16, F32};
use crate::program::{Decoder, Operation, Unsupported};
use crate::syntax::{Instruction, Type};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    if i.opcode != "cvt" {
        return None;
    }
    if i.has("tf32") && i.has("f32") {
        return Some(tf32(i, d));
    }
    if let Some(small) = [("e4m3x2", E4M3), ("e5m2x2", E5M2)].into_iter().find_map(|(name, s)| i.has(name).then_some(s))
    {
        return Some(bytes(small, i, d));
    }
    if i.has("pack") {
        return Some(pack(i, d));
    }
    let types = i.types();
    let [to, from] = types[..] else { return Some(Err("this conversion is not known".into())) };
    let mode = Rounding::of(&i.modifiers);
    let (ftz, sat, relu, finite) = (i.has("ftz"), i.has("sat"), i.has("relu"), i.has("satfinite"));
    let result = i.operands.first().and_then(|o| d.type_of(o)).unwrap_or(to);
    let register = mask(Type::Bits(result.bits().max(8) as u16));
    let round = move |f: Format, x: f64| {
        let bits = f.round(x, mode);
        let bits = if ftz { f.flushed(bits) } else { bits };
        if f.is_nan(bits) {
            if sat {
                0
            } else {
                f.nan()
            }
        } else if sat {
            saturated(f, bits)
        } else if relu && bits & f.sign() != 0 {
            0
        } else if finite && bits & (f.sign() - 1) == f.infinity() {
            bits - 1
        } else {
            bits
        }
    };
    Some(match (format(to), format(from)) {
        // Two singles into a pair; the first operand is the upper half.
        (Some((f, true)), Some((g, false))) => two(i, d, &[from], move |high, low| {
            let value = |x: u64| g.value(if ftz { g.flushed(x) } else { x });
            round(f, value(low)) | round(f, value(high)) << (f.bits())
        }),
        (Some((f, false)), Some((g, false))) => {
            let whole = i.modifiers.iter().any(|m| matches!(m.as_str(), "rni" | "rzi" | "rmi" | "rpi"));
            one(i, d, &[from], move |x| {
                let x = g.value(if ftz { g.flushed(x) } else { x });
                round(f, if whole { integral(x, mode) } else { x })
            })
        }
        (Some((f, false)), None) => {
            let (m, bits, s) = (mask(from), from.bits(), from.signed());
            one(i, d, &[from], move |x| {
                let n = if s { i128::from(signed(x & m, bits)) } else { i128::from(x & m) };
                let out = f.integer(n, mode);
                if sat {
                    saturated(f, out)
                } else {
                    out
                }
            })
        }
        (None, Some((g, false))) => one(i, d, &[from], move |x| {
            let x = g.value(if ftz { g.flushed(x) } else { x });
            to_integer(x, to, g.bits() == 64, mode) & register
        }),
        (None, None) => {
            let (m, bits, s) = (mask(from), from.bits(), from.signed());
            let (to_mask, to_bits, to_signed) = (mask(to), to.bits(), to.signed());
            one(i, d, &[from], move |x| {
                let n = if s { i128::from(signed(x & m, bits)) } else { i128::from(x & m) };
                let n = if sat { n.clamp(least(to), most(to)) } else { n };
                let cut = n as u64 & to_mask;
                (if to_signed { signed(cut, to_bits) as u64 } else { cut }) & register
            })
        }
        _ => Err("this conversion is not known".into()),
    })
}

fn least(ty: Type) -> i128 {
    if ty.signed() {
        -(1 << (ty.bits() - 1))
    } else {
        0
    }
}

fn most(ty: Type) -> i128 {
    if ty.signed() {
        (1 << (ty.bits() - 1)) - 1
    } else {
        (1 << ty.bits()) - 1
    }
}

/// Out of range it is the nearest integer there is. A NaN gives 0, but the highest bit alone where 64 bits are on either side
/// (PTX ISA, "cvt").
fn to_integer(x: f64, to: Type, from_double: bool, mode: Rounding) -> u64 {
    if x.is_nan() {
        return if from_double || to.bits() == 64 { 1 << (to.bits() - 1) } else { 0 };
    }
    // Saturates by itself.
    let n = integral(x, mode) as i128;
    n.clamp(least(to), most(to)) as u64
}

/// tf32 keeps ten bits of the fraction.
fn tf32(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let mode = Rounding::of(&i.modifiers);
    let relu = i.has("relu");
    one(i, d, &[Type::F32], move |x| {
        let x = x as u32;
        if x & 0x7fff_ffff >= 0x7f80_0000 {
            return u64::from(if x & 0x7fff_ffff > 0x7f80_0000 {
                0x7fff_ffff
            } else if relu && x >> 31 == 1 {
                0
            } else {
                x
            });
        }
        let (magnitude, sign) = (x & 0x7fff_ffff, x & 0x8000_0000);
        let add = match mode {
            Rounding::NearestAway => 0x1000,
            Rounding::Zero => 0,
            _ => 0xfff + (magnitude >> 13 & 1),
        };
        let out = sign | (magnitude + add) & !0x1fff;
        u64::from(if relu && sign != 0 { 0 } else { out })
    })
}

/// Two floats of 8 bits, from two singles (the first operand is the upper one) or a pair of f16, or into such a pair.
fn bytes(small: Small, i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let relu = i.has("relu");
    let positive = move |bits: u64, sign: u64| if relu && bits & sign != 0 { 0 } else { bits };
    let narrow = move |x: f64| positive(u64::from(small.saturated(x as f32)), small.sign.into());
    let wide = move |x: u64| positive(F16.round(small.value(x as u16 & 0xff).into(), Rounding::Nearest), F16.sign());
    match (&i.types()[..], i.modifiers.last().and_then(|m| Type::parse(m))) {
        ([Type::F32], Some(_)) => {
            two(i, d, &[Type::F32], move |high, low| narrow(F32.value(high)) << 8 | narrow(F32.value(low)))
        }
        ([Type::F16x2], Some(_)) => {
            one(i, d, &[Type::F16x2], move |x| narrow(F16.value(x >> 16)) << 8 | narrow(F16.value(x & 0xffff)))
        }
        ([Type::F16x2], None) => one(i, d, &[Type::Bits(16)], move |x| wide(x >> 8) << 16 | wide(x)),
        _ => Err("this conversion is not known".into()),
    }
}

/// cvt.pack.sat: two integers, narrowed, beside each other, and a third value moved up.
fn pack(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let types = i.types();
    let to = *types.first().ok_or("a type expected")?;
    let bits = to.bits();
    let narrowed = move |x: u64| (i128::from(signed(x, 32)).clamp(least(to), most(to))) as u64 & mask(to);
    match i.operands.len() {
        3 => two(i, d, &[Type::Signed(32)], move |a, b| (narrowed(a) << bits | narrowed(b)) & 0xffff_ffff),
        _ => super::lanewise::three(i, d, &[Type::Signed(32), Type::Signed(32), Type::Bits(32)], move |a, b, c| {
            (c << (2 * bits) | narrowed(a) << bits | narrowed(b)) & 0xffff_ffff
        }),
    }
}
