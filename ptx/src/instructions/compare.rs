//! setp, set, slct; and, or, xor, not of predicates.
use super::float::format;
use super::lanewise::{mask, one, signed, three, two};
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported, Value};
use crate::syntax::{Instruction, Operand, Type};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    let ty = i.ty()?;
    Some(match i.opcode.as_str() {
        "setp" => setp(i, d, ty),
        "set" => set(i, d),
        "slct" => {
            let kind = i.types();
            let [value, by] = kind[..] else { return Some(Err("two types expected".into())) };
            three(i, d, &[value, value, by], move |a, b, c| {
                let chosen = match by {
                    Type::F32 => f32::from_bits(c as u32) >= 0.0,
                    _ => signed(c, 32) >= 0,
                };
                if chosen {
                    a
                } else {
                    b
                }
            })
        }
        "and" if ty == Type::Pred => two(i, d, &[ty], |a, b| a & b & 1),
        "or" if ty == Type::Pred => two(i, d, &[ty], |a, b| (a | b) & 1),
        "xor" if ty == Type::Pred => two(i, d, &[ty], |a, b| (a ^ b) & 1),
        "not" if ty == Type::Pred => one(i, d, &[ty], |a| !a & 1),
        _ => return None,
    })
}

/// A comparison by its name, on bits of a type.
fn comparison(name: &str, ty: Type, ftz: bool) -> Result<Box<dyn Fn(u64, u64) -> bool + Send + Sync>, Unsupported> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    if let Some((f, false)) = format(ty) {
        let unordered = name.len() == 3 && name.ends_with('u') && name != "neu" || matches!(name, "equ" | "neu");
        let stem = if unordered { &name[..2] } else { name };
        let (less, equal, greater) = match stem {
            "eq" => (false, true, false),
            "ne" => (true, false, true),
            "lt" => (true, false, false),
            "le" => (true, true, false),
            "gt" => (false, false, true),
            "ge" => (false, true, true),
            "num" => (true, true, true),
            "nan" => {
                return Ok(Box::new(move |a, b| f.is_nan(a) || f.is_nan(b)));
            }
            _ => return Err(format!("the comparison `{name}` is not known")),
        };
        return Ok(Box::new(move |a, b| {
            let (a, b) = if ftz { (f.flushed(a), f.flushed(b)) } else { (a, b) };
            match f.value(a).partial_cmp(&f.value(b)) {
                Some(Less) => less,
                Some(Equal) => equal,
                Some(Greater) => greater,
                None => unordered,
            }
        }));
    }
    let (m, bits) = (mask(ty), ty.bits());
    let is_signed = ty.signed() && !matches!(name, "lo" | "ls" | "hi" | "hs");
    let (less, equal, greater) = match name {
        "eq" => (false, true, false),
        "ne" => (true, false, true),
        "lt" | "lo" => (true, false, false),
        "le" | "ls" => (true, true, false),
        "gt" | "hi" => (false, false, true),
        "ge" | "hs" => (false, true, true),
        _ => return Err(format!("the comparison `{name}` is not known")),
    };
    Ok(Box::new(move |a, b| {
        let order = if is_signed { signed(a & m, bits).cmp(&signed(b & m, bits)) } else { (a & m).cmp(&(b & m)) };
        match order {
            Less => less,
            Equal => equal,
            Greater => greater,
        }
    }))
}

/// A predicate that is read, possibly negated: value and what to flip.
pub fn predicate(operand: &Operand, d: &Decoder<'_>) -> Result<(Value, u64), Unsupported> {
    match operand {
        Operand::Not(r) => Ok((d.value(&Operand::Register(*r))?, 1)),
        other => Ok((d.value(other)?, 0)),
    }
}

#[derive(Clone, Copy)]
enum Combine {
    None,
    And,
    Or,
    Xor,
}

fn combination(i: &Instruction) -> Combine {
    if i.has("and") {
        Combine::And
    } else if i.has("or") {
        Combine::Or
    } else if i.has("xor") {
        Combine::Xor
    } else {
        Combine::None
    }
}

impl Combine {
    fn apply(self, a: u64, b: u64) -> u64 {
        match self {
            Combine::None => a,
            Combine::And => a & b,
            Combine::Or => a | b,
            Combine::Xor => a ^ b,
        }
    }
}

fn setp(i: &Instruction, d: &Decoder<'_>, ty: Type) -> Result<Operation, Unsupported> {
    let name = i.modifiers.first().ok_or("a comparison expected")?;
    let [to, a, b, rest @ ..] = i.operands.as_slice() else { return Err("three operands expected".into()) };
    let (first, second) = match to {
        Operand::Pair(p, q) => (d.register(p)?, d.register(q)?),
        other => (d.register(other)?, None),
    };
    let pair = matches!(to, Operand::Pair(..));
    let combine = combination(i);
    let third = match rest.first() {
        Some(operand) => predicate(operand, d)?,
        None => (Value::Constant(0), 0),
    };
    let (a, b) = (d.typed(a, ty)?, d.typed(b, ty)?);
    let two_wide = matches!(ty, Type::F16x2 | Type::Bf16x2);
    let scalar = match ty {
        Type::F16x2 => Type::F16,
        Type::Bf16x2 => Type::Bf16,
        other => other,
    };
    let compare = comparison(name, scalar, i.has("ftz"))?;
    Ok(Box::new(move |c| {
        let (a, b, e): (Lanes, Lanes, Lanes) = (c.read(a), c.read(b), c.read(third.0));
        let e = |l: usize| (e[l] ^ third.1) & 1;
        if two_wide {
            let low: Lanes =
                std::array::from_fn(|l| combine.apply(u64::from(compare(a[l] & 0xffff, b[l] & 0xffff)), e(l)));
            let high: Lanes = std::array::from_fn(|l| {
                combine.apply(u64::from(compare(a[l] >> 16 & 0xffff, b[l] >> 16 & 0xffff)), e(l))
            });
            c.write_to(first, &low);
            c.write_to(second, &high);
        } else {
            let is: Lanes = std::array::from_fn(|l| u64::from(compare(a[l], b[l])));
            let out: Lanes = std::array::from_fn(|l| combine.apply(is[l], e(l)));
            c.write_to(first, &out);
            if pair {
                let other: Lanes = std::array::from_fn(|l| combine.apply(1 - is[l], e(l)));
                c.write_to(second, &other);
            }
        }
        Ok(Flow::Next)
    }))
}

fn set(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let name = i.modifiers.first().ok_or("a comparison expected")?;
    let types = i.types();
    let [result, ty] = types[..] else { return Err("two types expected".into()) };
    let [to, a, b, rest @ ..] = i.operands.as_slice() else { return Err("three operands expected".into()) };
    let combine = combination(i);
    let third = match rest.first() {
        Some(operand) => predicate(operand, d)?,
        None => (Value::Constant(0), 0),
    };
    let (to, a, b) = (d.register(to)?, d.typed(a, ty)?, d.typed(b, ty)?);
    let (scalar, pair) = match ty {
        Type::F16x2 => (Type::F16, true),
        Type::Bf16x2 => (Type::Bf16, true),
        other => (other, false),
    };
    let one = match result {
        Type::F32 => u64::from(1f32.to_bits()),
        Type::F16 | Type::F16x2 => 0x3c00,
        Type::Bf16 | Type::Bf16x2 => 0x3f80,
        other if pair => mask(other) & 0xffff,
        other => mask(other),
    };
    let compare = comparison(name, scalar, i.has("ftz"))?;
    Ok(Box::new(move |c| {
        let (a, b, e): (Lanes, Lanes, Lanes) = (c.read(a), c.read(b), c.read(third.0));
        let out: Lanes = std::array::from_fn(|l| {
            let e = (e[l] ^ third.1) & 1;
            let value = |a, b| combine.apply(u64::from(compare(a, b)), e) * one;
            if pair {
                value(a[l] & 0xffff, b[l] & 0xffff) | value(a[l] >> 16 & 0xffff, b[l] >> 16 & 0xffff) << 16
            } else {
                value(a[l], b[l])
            }
        });
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}
