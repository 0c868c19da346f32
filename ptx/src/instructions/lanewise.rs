//! Instructions that do in every lane the same to its own operands.
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported, Value};
use crate::syntax::{Instruction, Operand, Type};

/// The low bits of a type.
pub fn mask(ty: Type) -> u64 {
    u64::MAX >> (64 - ty.bits().clamp(1, 64))
}

/// The value of a number of so many bits, with its sign.
#[inline]
pub fn signed(x: u64, bits: u32) -> i64 {
    ((x << (64 - bits)) as i64) >> (64 - bits)
}

/// The result's slot and the sources, read with their types (the last type holds for the rest).
pub fn operands<const N: usize>(
    i: &Instruction,
    d: &Decoder<'_>,
    types: &[Type],
) -> Result<(Option<u32>, [Value; N]), Unsupported> {
    let Some((to, from)) = i.operands.split_first().filter(|(_, from)| from.len() == N) else {
        return Err(format!("{} operands expected", N + 1));
    };
    let mut values = [Value::Constant(0); N];
    for (n, (value, operand)) in values.iter_mut().zip(from).enumerate() {
        let ty = types.get(n).or(types.last()).copied().unwrap_or(Type::Bits(64));
        *value = source(operand, d, ty)?;
    }
    Ok((d.register(to)?, values))
}

/// A source, cut to its type where it is a constant. `!p` is not read here.
pub fn source(operand: &Operand, d: &Decoder<'_>, ty: Type) -> Result<Value, Unsupported> {
    d.typed(operand, ty)
}

/// One operand.
pub fn one(
    i: &Instruction,
    d: &Decoder<'_>,
    types: &[Type],
    f: impl Fn(u64) -> u64 + Send + Sync + 'static,
) -> Result<Operation, Unsupported> {
    let (to, [a]) = operands(i, d, types)?;
    Ok(Box::new(move |c| {
        let mut room = None;
        let a = c.view(a, &mut room);
        let out: Lanes = std::array::from_fn(|l| f(a[l]));
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}

/// Two operands.
pub fn two(
    i: &Instruction,
    d: &Decoder<'_>,
    types: &[Type],
    f: impl Fn(u64, u64) -> u64 + Send + Sync + 'static,
) -> Result<Operation, Unsupported> {
    let (to, [a, b]) = operands(i, d, types)?;
    Ok(Box::new(move |c| {
        let (mut r0, mut r1) = (None, None);
        let (a, b) = (c.view(a, &mut r0), c.view(b, &mut r1));
        let out: Lanes = std::array::from_fn(|l| f(a[l], b[l]));
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}

/// Three operands.
pub fn three(
    i: &Instruction,
    d: &Decoder<'_>,
    types: &[Type],
    f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static,
) -> Result<Operation, Unsupported> {
    let (to, [a, b, e]) = operands(i, d, types)?;
    Ok(Box::new(move |c| {
        let (mut r0, mut r1, mut r2) = (None, None, None);
        let (a, b, e) = (c.view(a, &mut r0), c.view(b, &mut r1), c.view(e, &mut r2));
        let out: Lanes = std::array::from_fn(|l| f(a[l], b[l], e[l]));
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}

/// Four operands.
pub fn four(
    i: &Instruction,
    d: &Decoder<'_>,
    types: &[Type],
    f: impl Fn(u64, u64, u64, u64) -> u64 + Send + Sync + 'static,
) -> Result<Operation, Unsupported> {
    let (to, [a, b, e, g]) = operands(i, d, types)?;
    Ok(Box::new(move |c| {
        let (mut r0, mut r1, mut r2, mut r3) = (None, None, None, None);
        let (a, b, e, g) = (c.view(a, &mut r0), c.view(b, &mut r1), c.view(e, &mut r2), c.view(g, &mut r3));
        let out: Lanes = std::array::from_fn(|l| f(a[l], b[l], e[l], g[l]));
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}

/// The same function on the two halves of 32 bits (or of 64, for pairs of singles).
pub fn halves(ty: Type, a: u64, b: u64, e: u64, f: impl Fn(u64, u64, u64) -> u64) -> u64 {
    let bits = ty.bits() / 2;
    let low = (1u64 << bits) - 1;
    f(a & low, b & low, e & low) | f(a >> bits & low, b >> bits & low, e >> bits & low) << bits
}
