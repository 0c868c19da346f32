//! Integers and bits: arithmetic that wraps, shifts, permutations, moves.
use super::lanewise::{four, mask, one, signed, three, two};
use crate::machine::Context;
use crate::memory::{LOCAL_WINDOW, SHARED_WINDOW};
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported, Value};
use crate::syntax::{Instruction, Operand, Type};

type Decoded = Result<Operation, Unsupported>;

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Decoded> {
    match i.opcode.as_str() {
        "mov" => return Some(mov(i, d)),
        "cvta" => return Some(cvta(i, d)),
        "isspacep" => return Some(isspacep(i, d)),
        "prmt" => return Some(prmt(i, d)),
        "lop3" => return Some(lop3(i, d)),
        "dp4a" | "dp2a" => return Some(dot(i, d)),
        "szext" | "bmsk" | "shf" => return Some(shifted(i, d)),
        _ => {}
    }
    let ty = i.ty()?;
    if ty.float() || matches!(ty, Type::F16x2 | Type::Bf16x2 | Type::F32x2) {
        return None;
    }
    if i.modifiers.iter().any(|m| matches!(m.as_str(), "s16x2" | "u16x2" | "cc"))
        || matches!(i.opcode.as_str(), "addc" | "subc" | "madc")
    {
        return carried(i, d, ty);
    }
    let (m, bits, is_signed) = (mask(ty), ty.bits(), ty.signed());
    // The value as a wide number.
    let w = move |x: u64| if is_signed { i128::from(signed(x & m, bits)) } else { i128::from(x & m) };
    let same = [ty];
    // The count of shifts has 32 bits.
    let count = [ty, Type::Unsigned(32)];
    let saturates = i.has("sat");
    let fit = move |x: i128| {
        let x = if saturates { x.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { x };
        x as u64 & m
    };
    if !saturates {
        if let Some(quick) = quick(i, d, ty) {
            return Some(quick);
        }
    }
    Some(match i.opcode.as_str() {
        "add" => two(i, d, &same, move |a, b| fit(w(a) + w(b))),
        "sub" => two(i, d, &same, move |a, b| fit(w(a) - w(b))),
        "mul" | "mul24" => {
            let part = Part::of(i, bits);
            let cut = move |x: u64| if part.short { x & 0xff_ffff } else { x };
            let extend = move |x: u64| if part.short && is_signed { i128::from(signed(x, 24)) } else { w(cut(x)) };
            two(i, d, &same, move |a, b| part.of_product(extend(cut(a)).wrapping_mul(extend(cut(b)))))
        }
        "mad" | "mad24" => {
            let part = Part::of(i, bits);
            let third = if part.wide { Type::Bits(2 * bits as u16) } else { ty };
            three(i, d, &[ty, ty, third], move |a, b, e| {
                if part.wide {
                    part.of_product(w(a).wrapping_mul(w(b)).wrapping_add(i128::from(e)))
                } else {
                    let product = i128::from(part.of_product(w(a).wrapping_mul(w(b))));
                    if saturates {
                        fit(i128::from(signed(product as u64, bits)) + w(e))
                    } else {
                        (product as u64).wrapping_add(e) & m
                    }
                }
            })
        }
        "sad" => three(i, d, &same, move |a, b, e| e.wrapping_add((w(a) - w(b)).unsigned_abs() as u64) & m),
        // By zero the result is unspecified; hardware gives all ones, and the dividend as the rest.
        "div" => two(i, d, &same, move |a, b| if b & m == 0 { m } else { (w(a) / w(b)) as u64 & m }),
        "rem" => two(i, d, &same, move |a, b| if b & m == 0 { a & m } else { (w(a) % w(b)) as u64 & m }),
        "abs" => one(i, d, &same, move |a| w(a).unsigned_abs() as u64 & m),
        "neg" => one(i, d, &same, move |a| fit(-w(a))),
        "min" => {
            let relu = i.has("relu");
            two(
                i,
                d,
                &same,
                move |a, b| if relu { w(a).min(w(b)).max(0) as u64 & m } else { w(a).min(w(b)) as u64 & m },
            )
        }
        "max" => {
            let relu = i.has("relu");
            two(
                i,
                d,
                &same,
                move |a, b| if relu { w(a).max(w(b)).max(0) as u64 & m } else { w(a).max(w(b)) as u64 & m },
            )
        }
        "and" => two(i, d, &same, |a, b| a & b),
        "or" => two(i, d, &same, |a, b| a | b),
        "xor" => two(i, d, &same, |a, b| a ^ b),
        "not" => one(i, d, &same, move |a| !a & m),
        "cnot" => one(i, d, &same, move |a| u64::from(a & m == 0)),
        "shl" => two(i, d, &count, move |a, b| if b & 0xffff_ffff >= u64::from(bits) { 0 } else { a << (b & 63) & m }),
        "shr" => two(i, d, &count, move |a, b| {
            let by = (b & 0xffff_ffff).min(127) as u32;
            (w(a) >> by) as u64 & m
        }),
        "popc" => one(i, d, &same, move |a| u64::from((a & m).count_ones())),
        "clz" => one(i, d, &same, move |a| u64::from((a & m).leading_zeros() - (64 - bits))),
        "brev" => one(i, d, &same, move |a| (a & m).reverse_bits() >> (64 - bits)),
        "bfind" => {
            let shift = i.has("shiftamt");
            one(i, d, &same, move |a| {
                let x = if is_signed && w(a) < 0 { !a & m } else { a & m };
                match x {
                    0 => 0xffff_ffff,
                    x if shift => u64::from(bits - 1) - (63 - u64::from(x.leading_zeros())),
                    x => 63 - u64::from(x.leading_zeros()),
                }
            })
        }
        "bfe" => three(i, d, &[ty, Type::Unsigned(32), Type::Unsigned(32)], move |a, at, length| {
            extract(a & m, at as u32 & 0xff, length as u32 & 0xff, bits, is_signed)
        }),
        "bfi" => four(i, d, &[ty, ty, Type::Unsigned(32), Type::Unsigned(32)], move |a, b, at, length| {
            let (at, length) = (at as u32 & 0xff, length as u32 & 0xff);
            if length == 0 || at >= bits {
                return b & m;
            }
            let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
            ((b & !(field << at)) | ((a & field) << at)) & m
        }),
        "fns" => three(i, d, &[Type::Bits(32), Type::Unsigned(32), Type::Signed(32)], |mask, base, offset| {
            find_nth_set(mask as u32, base as u32, signed(offset, 32))
        }),
        "selp" => selp(i, d, ty),
        _ => return None,
    })
}

/// What addresses and loops are made of, of 16 to 64 bits: the low bits of sums and products do not depend on signs, and products
/// of up to 32 bits fit.
fn quick(i: &Instruction, d: &Decoder<'_>, ty: Type) -> Option<Decoded> {
    let (m, bits, is_signed) = (mask(ty), ty.bits(), ty.signed());
    let wide = i.has("wide") && bits <= 32;
    let low = i.has("lo") || !(i.has("wide") || i.has("hi"));
    let product = move |a: u64, b: u64| match is_signed {
        true => signed(a & m, bits).wrapping_mul(signed(b & m, bits)) as u64,
        false => (a & m).wrapping_mul(b & m),
    };
    let both = u64::MAX >> (64 - (2 * bits).min(64));
    let same = [ty];
    Some(match i.opcode.as_str() {
        "add" => two(i, d, &same, move |a, b| a.wrapping_add(b) & m),
        "sub" => two(i, d, &same, move |a, b| a.wrapping_sub(b) & m),
        "mul" if low => two(i, d, &same, move |a, b| a.wrapping_mul(b) & m),
        "mul" if wide => two(i, d, &same, move |a, b| product(a, b) & both),
        "mad" if low => three(i, d, &same, move |a, b, e| a.wrapping_mul(b).wrapping_add(e) & m),
        "mad" if wide => {
            let third = Type::Bits(2 * bits as u16);
            three(i, d, &[ty, ty, third], move |a, b, e| product(a, b).wrapping_add(e) & both)
        }
        "shr" => two(i, d, &[ty, Type::Unsigned(32)], move |a, by| {
            let by = by & 0xffff_ffff;
            match is_signed {
                true => (signed(a & m, bits) >> by.min(63)) as u64 & m,
                false if by > 63 => 0,
                false => (a & m) >> by,
            }
        }),
        _ => return None,
    })
}

/// Which part of a product is kept.
#[derive(Clone, Copy)]
struct Part {
    wide: bool,
    high: bool,
    short: bool,
    bits: u32,
}

impl Part {
    fn of(i: &Instruction, bits: u32) -> Part {
        Part { wide: i.has("wide"), high: i.has("hi"), short: i.opcode.ends_with("24"), bits }
    }

    fn of_product(self, x: i128) -> u64 {
        let bits = if self.wide { 2 * self.bits } else { self.bits };
        let x = match (self.high, self.short) {
            // Of 48 bits the upper 32.
            (true, true) => x >> 16,
            (true, false) => x >> self.bits,
            _ => x,
        };
        x as u64 & (u64::MAX >> (64 - bits.min(64)))
    }
}

fn extract(a: u64, at: u32, length: u32, bits: u32, is_signed: bool) -> u64 {
    let m = u64::MAX >> (64 - bits);
    let top = bits - 1;
    let sign = is_signed && length != 0 && a >> (at + length - 1).min(top) & 1 == 1;
    let field = if at >= bits { 0 } else { a >> at };
    if length >= bits {
        // Beyond the top there are copies of the sign.
        let kept = bits - at.min(bits);
        return if sign && kept < bits { (field | (u64::MAX << kept)) & m } else { field & m };
    }
    let low = (1u64 << length) - 1;
    let kept = bits.saturating_sub(at).min(length);
    let field = if sign && kept < length { field | (u64::MAX << kept) } else { field };
    (if sign { (field & low) | !low } else { field & low }) & m
}

fn find_nth_set(mask: u32, base: u32, offset: i64) -> u64 {
    let mut at = i64::from(base.min(31));
    let step = if offset < 0 { -1 } else { 1 };
    let mut left = if offset == 0 { 1 } else { offset.abs() };
    if offset == 0 {
        return if mask >> at & 1 == 1 { at as u64 } else { 0xffff_ffff };
    }
    while (0..32).contains(&at) {
        if mask >> at & 1 == 1 {
            left -= 1;
            if left == 0 {
                return at as u64;
            }
        }
        at += step;
    }
    0xffff_ffff
}

fn selp(i: &Instruction, d: &Decoder<'_>, ty: Type) -> Decoded {
    three(i, d, &[ty, ty, Type::Pred], |a, b, p| if p & 1 == 1 { a } else { b })
}

/// Carries go through a bit of every lane; pairs of 16 bits.
fn carried(i: &Instruction, d: &Decoder<'_>, ty: Type) -> Option<Decoded> {
    let (m, bits) = (mask(ty), ty.bits());
    if let Some(pair) = i.modifiers.iter().find(|m| matches!(m.as_str(), "s16x2" | "u16x2")) {
        let s = pair == "s16x2";
        let w = move |x: u64| if s { signed(x, 16) } else { x as i64 };
        let opcode = i.opcode.clone();
        return Some(two(i, d, &[Type::Bits(32)], move |a, b| {
            super::lanewise::halves(Type::Bits(32), a, b, 0, |a, b, _| {
                let out = match opcode.as_str() {
                    "add" => w(a) + w(b),
                    "sub" => w(a) - w(b),
                    "min" => w(a).min(w(b)),
                    _ => w(a).max(w(b)),
                };
                out as u64 & 0xffff
            })
        }));
    }
    let set = i.has("cc");
    let opcode = i.opcode.as_str();
    let takes = opcode.ends_with('c');
    let subtracts = opcode.starts_with("sub");
    if opcode.starts_with("mad") {
        let part = Part::of(i, bits);
        let s = ty.signed();
        let w = move |x: u64| if s { i128::from(signed(x & m, bits)) } else { i128::from(x & m) };
        let (to, [a, b, e]) = match super::lanewise::operands(i, d, &[ty]) {
            Ok(found) => found,
            Err(refused) => return Some(Err(refused)),
        };
        return Some(Ok(Box::new(move |c| {
            let (a, b, e) = (c.read(a), c.read(b), c.read(e));
            finish(c, to, bits, set, |l, carry| {
                u128::from(part.of_product(w(a[l]).wrapping_mul(w(b[l]))))
                    + u128::from(e[l] & m)
                    + u128::from(takes && carry)
            });
            Ok(Flow::Next)
        })));
    }
    if !matches!(opcode, "add" | "addc" | "sub" | "subc") {
        return None;
    }
    let (to, [a, b]) = match super::lanewise::operands(i, d, &[ty]) {
        Ok(found) => found,
        Err(refused) => return Some(Err(refused)),
    };
    Some(Ok(Box::new(move |c| {
        let (a, b): (Lanes, Lanes) = (c.read(a), c.read(b));
        finish(c, to, bits, set, |l, carry| {
            let (a, b) = (u128::from(a[l] & m), u128::from(b[l] & m));
            if subtracts {
                // A borrow is a missing carry.
                a.wrapping_sub(b).wrapping_sub(u128::from(takes && carry))
            } else {
                a + b + u128::from(takes && carry)
            }
        });
        Ok(Flow::Next)
    })))
}

fn finish(c: &mut Context<'_, '_>, to: Option<u32>, bits: u32, set: bool, f: impl Fn(usize, bool) -> u128) {
    let before = *c.warp.state.get::<Carry>();
    let mut after = before.0;
    let out: Lanes = std::array::from_fn(|l| {
        let x = f(l, before.0 >> l & 1 == 1);
        if c.mask >> l & 1 == 1 {
            after = after & !(1 << l) | (((x >> bits & 1) as u32) << l);
        }
        x as u64 & (u64::MAX >> (64 - bits))
    });
    if set {
        c.warp.state.get::<Carry>().0 = after;
    }
    c.write_to(to, &out);
}

/// The carry of every lane.
#[derive(Clone, Copy, Default)]
struct Carry(u32);

fn mov(i: &Instruction, d: &Decoder<'_>) -> Decoded {
    let ty = i.ty().ok_or("a type expected")?;
    let [to, from] = i.operands.as_slice() else { return Err("two operands expected".into()) };
    match (to, from) {
        (Operand::Vector(to), Operand::Vector(from)) if to.len() == from.len() => {
            let from = from.iter().map(|o| d.typed(o, ty)).collect::<Result<Vec<_>, _>>()?;
            let to = to.iter().map(|o| d.register(o)).collect::<Result<Vec<_>, _>>()?;
            Ok(Box::new(move |c| {
                let values: Vec<Lanes> = from.iter().map(|v| c.read(*v)).collect();
                for (to, value) in to.iter().zip(&values) {
                    c.write_to(*to, value);
                }
                Ok(Flow::Next)
            }))
        }
        (to, Operand::Vector(parts)) => {
            let bits = ty.bits() / parts.len() as u32;
            let parts =
                parts
                    .iter()
                    .map(|o| {
                        if *o == Operand::Discard {
                            Ok(Value::Constant(0))
                        } else {
                            d.typed(o, Type::Bits(bits as u16))
                        }
                    })
                    .collect::<Result<Vec<_>, _>>()?;
            let Some(to) = d.register(to)? else { return Err("a register expected".into()) };
            let quad = ty.bits() == 128;
            Ok(Box::new(move |c| {
                let mut out = [[0u64; 32]; 2];
                for (n, part) in parts.iter().enumerate() {
                    let value = c.read(*part);
                    let at = n as u32 * bits;
                    for l in 0..32 {
                        let cut = value[l] & (u64::MAX >> (64 - bits));
                        out[(at / 64) as usize][l] |= cut << (at % 64);
                    }
                }
                c.write(to, &out[0]);
                if quad {
                    c.write(to + 1, &out[1]);
                }
                Ok(Flow::Next)
            }))
        }
        (Operand::Vector(parts), from) => {
            let bits = ty.bits() / parts.len() as u32;
            let parts = parts.iter().map(|o| d.register(o)).collect::<Result<Vec<_>, _>>()?;
            let from = d.typed(from, ty)?;
            let quad = ty.bits() == 128;
            Ok(Box::new(move |c| {
                let mut words = [c.read(from), [0; 32]];
                if let (true, Value::Register(slot)) = (quad, from) {
                    words[1] = c.read(Value::Register(slot + 1));
                }
                for (n, part) in parts.iter().enumerate() {
                    let at = n as u32 * bits;
                    let m = u64::MAX >> (64 - bits);
                    let out: Lanes = std::array::from_fn(|l| words[(at / 64) as usize][l] >> (at % 64) & m);
                    c.write_to(*part, &out);
                }
                Ok(Flow::Next)
            }))
        }
        (to, from) => {
            let (to, from) = (d.register(to)?, d.typed(from, ty)?);
            let quad = ty.bits() == 128;
            Ok(Box::new(move |c| {
                let value = c.read(from);
                c.write_to(to, &value);
                if let (true, Some(to), Value::Register(slot)) = (quad, to, from) {
                    let high = c.read(Value::Register(slot + 1));
                    c.write(to + 1, &high);
                }
                Ok(Flow::Next)
            }))
        }
    }
}

/// Addresses between a space and the generic one.
fn cvta(i: &Instruction, d: &Decoder<'_>) -> Decoded {
    let window = match super::load_store::space(i) {
        crate::syntax::Space::Shared => SHARED_WINDOW,
        crate::syntax::Space::Local => LOCAL_WINDOW,
        _ => 0,
    };
    let ty = i.ty().ok_or("a type expected")?;
    if i.has("to") {
        one(i, d, &[ty], move |a| a.wrapping_sub(window) & mask(ty))
    } else {
        one(i, d, &[ty], move |a| a.wrapping_add(window))
    }
}

fn isspacep(i: &Instruction, d: &Decoder<'_>) -> Decoded {
    let wanted = match super::load_store::space(i) {
        crate::syntax::Space::Shared => 1,
        crate::syntax::Space::Local => 2,
        crate::syntax::Space::Param => 3,
        _ => 0,
    };
    one(i, d, &[Type::Bits(64)], move |a| u64::from(a >> 56 == wanted))
}

fn prmt(i: &Instruction, d: &Decoder<'_>) -> Decoded {
    let mode = i.modifiers.iter().find(|m| *m != "b32").cloned().unwrap_or_default();
    three(i, d, &[Type::Bits(32)], move |a, b, select| {
        let bytes = (a & 0xffff_ffff) | (b & 0xffff_ffff) << 32;
        let byte = |n: u64| bytes >> (8 * (n & 7)) & 0xff;
        let s = select & 3;
        let out = |f: &dyn Fn(u64) -> u64| (0..4).map(|k| f(k) << (8 * k)).sum::<u64>();
        match mode.as_str() {
            "f4e" => out(&|k| byte(s + k)),
            "b4e" => out(&|k| byte(s.wrapping_sub(k))),
            "rc8" => out(&|_| byte(s)),
            "ecl" => out(&|k| byte(k.max(s))),
            "ecr" => out(&|k| byte(k.min(s))),
            "rc16" => out(&|k| byte((s & 1) * 2 + (k & 1))),
            _ => out(&|k| {
                let pick = select >> (4 * k) & 0xf;
                let value = byte(pick);
                match pick & 8 {
                    0 => value,
                    _ => {
                        if value & 0x80 != 0 {
                            0xff
                        } else {
                            0
                        }
                    }
                }
            }),
        }
    })
}

fn lop3(i: &Instruction, d: &Decoder<'_>) -> Decoded {
    // `lop3.or.b32 d|p, a, b, c, table, q` has a predicate besides; it is not emitted by NVRTC.
    let Some(Operand::Integer(table)) = i.operands.get(4) else { return Err("a constant table expected".into()) };
    if i.operands.len() != 5 {
        return Err("lop3 with a predicate is not known".into());
    }
    let table = *table as u64;
    let cut = Instruction { operands: i.operands[..4].to_vec(), ..i.clone() };
    three(&cut, d, &[Type::Bits(32)], move |a, b, e| {
        let mut out = 0;
        for n in 0..8 {
            if table >> n & 1 == 1 {
                let pick = |x: u64, bit: u64| if n >> bit & 1 == 1 { x } else { !x };
                out |= pick(a, 2) & pick(b, 1) & pick(e, 0);
            }
        }
        out & 0xffff_ffff
    })
}

fn dot(i: &Instruction, d: &Decoder<'_>) -> Decoded {
    let types: Vec<bool> = i.types().iter().map(|t| t.signed()).collect();
    let [a_signed, b_signed] = types[..] else { return Err("two types expected".into()) };
    let two_way = i.opcode == "dp2a";
    let high = i.has("hi");
    three(i, d, &[Type::Bits(32)], move |a, b, e| {
        let value = |x: u64, bits: u32, s: bool| {
            let x = x & ((1 << bits) - 1);
            if s {
                signed(x, bits)
            } else {
                x as i64
            }
        };
        let mut sum = e as i64;
        if two_way {
            for k in 0..2 {
                let byte = k + if high { 2 } else { 0 };
                sum = sum.wrapping_add(value(a >> (16 * k), 16, a_signed) * value(b >> (8 * byte), 8, b_signed));
            }
        } else {
            for k in 0..4 {
                sum = sum.wrapping_add(value(a >> (8 * k), 8, a_signed) * value(b >> (8 * k), 8, b_signed));
            }
        }
        sum as u64 & 0xffff_ffff
    })
}

fn shifted(i: &Instruction, d: &Decoder<'_>) -> Decoded {
    let (clamp, right, is_signed) = (i.has("clamp"), i.has("r"), i.has("s32"));
    let by = move |n: u64| if clamp { (n & 0xffff_ffff).min(32) } else { n & 31 };
    match i.opcode.as_str() {
        "shf" => three(i, d, &[Type::Bits(32)], move |a, b, n| {
            let both = (b & 0xffff_ffff) << 32 | a & 0xffff_ffff;
            if right {
                both >> by(n) & 0xffff_ffff
            } else {
                (u128::from(both) << by(n) >> 32) as u64 & 0xffff_ffff
            }
        }),
        "bmsk" => two(i, d, &[Type::Unsigned(32)], move |at, width| {
            let (at, width) = (by(at), by(width));
            (((1u64 << width) - 1) << at.min(32)) & 0xffff_ffff
        }),
        _ => two(i, d, &[Type::Bits(32)], move |a, n| {
            let n = by(n) as u32;
            match n {
                0 => 0,
                32.. => a & 0xffff_ffff,
                n if is_signed => signed(a, n) as u64 & 0xffff_ffff,
                n => a & ((1 << n) - 1),
            }
        }),
    }
}
