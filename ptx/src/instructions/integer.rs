//! Integers and bits.
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported, Value};
use crate::syntax::{Instruction, Operand, Type};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    let ty = i.ty();
    match i.opcode.as_str() {
        "mov" => Some(mov(i, d)),
        "cvta" | "isspacep" => None,
        "add" if !ty?.float() => Some(binary(i, d, u64::wrapping_add)),
        "mul" if i.has("wide") => Some(wide(i, d)),
        "shl" => Some(binary(i, d, |a, b| if b > 63 { 0 } else { a << b })),
        _ => None,
    }
}

fn mov(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let ty = i.ty().ok_or("a type expected")?;
    let [Operand::Register(_), from] = i.operands.as_slice() else { return Err("not yet".into()) };
    let (to, from) = (d.register(&i.operands[0])?, d.typed(from, ty)?);
    Ok(Box::new(move |c| {
        let value = c.read(from);
        c.write_to(to, &value);
        Ok(Flow::Next)
    }))
}

fn mask(ty: Type) -> u64 {
    u64::MAX >> (64 - ty.bits().min(64))
}

fn binary(
    i: &Instruction,
    d: &Decoder<'_>,
    f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static,
) -> Result<Operation, Unsupported> {
    let ty = i.ty().ok_or("a type expected")?;
    let [to, a, b] = i.operands.as_slice() else { return Err("three operands expected".into()) };
    let (to, a, b) = (d.register(to)?, d.typed(a, ty)?, d.typed(b, ty)?);
    let mask = mask(ty);
    Ok(Box::new(move |c| {
        let (a, b): (Lanes, Lanes) = (c.read(a), c.read(b));
        let out: Lanes = std::array::from_fn(|l| f(a[l], b[l]) & mask);
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}

fn wide(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let ty = i.ty().ok_or("a type expected")?;
    let [to, a, b] = i.operands.as_slice() else { return Err("three operands expected".into()) };
    let (to, a, b): (_, Value, Value) = (d.register(to)?, d.typed(a, ty)?, d.typed(b, ty)?);
    let bits = ty.bits();
    let signed = ty.signed();
    let extend = move |x: u64| if signed { ((x << (64 - bits)) as i64 >> (64 - bits)) as u64 } else { x };
    let mask = u64::MAX >> (64 - (2 * bits).min(64));
    Ok(Box::new(move |c| {
        let (a, b) = (c.read(a), c.read(b));
        let out: Lanes = std::array::from_fn(|l| extend(a[l]).wrapping_mul(extend(b[l])) & mask);
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}
