//! atom and red: reads and writes in one, in shared and global memory.
use super::lanewise::{mask, signed};
use super::load_store::{space, strength, Strength};
use crate::machine::lanes;
use crate::number::{Format, Rounding};
use crate::program::{Decoder, Flow, Operation, Unsupported};
use crate::syntax::{Instruction, Type};

type Update = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    if !matches!(i.opcode.as_str(), "atom" | "red") || i.has("async") {
        return None;
    }
    Some(atomic(i, d))
}

fn update(i: &Instruction, ty: Type) -> Result<Update, Unsupported> {
    let (m, bits, s) = (mask(ty), ty.bits(), ty.signed());
    let less = move |a: u64, b: u64| if s { signed(a, bits) < signed(b, bits) } else { a < b };
    let name = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"].into_iter().find(|n| i.has(n));
    let name = name.ok_or("this atomic operation is not known")?;
    if let Some((f, pair)) = super::float::format(ty) {
        let scalar = move |a: u64, b: u64| -> u64 {
            let (x, y) = (f.value(a), f.value(b));
            match name {
                "add" => f.add(a, b, Rounding::Nearest),
                "min" => pick(f, a, b, x <= y || y.is_nan()),
                "max" => pick(f, a, b, x >= y || y.is_nan()),
                _ => b,
            }
        };
        if !matches!(name, "add" | "min" | "max" | "exch") {
            return Err("this atomic operation is not known for this type".into());
        }
        return Ok(if pair {
            Box::new(move |old, b, _| super::lanewise::halves(ty, old, b, 0, |a, b, _| scalar(a, b)))
        } else {
            Box::new(move |old, b, _| scalar(old, b))
        });
    }
    Ok(match name {
        "add" => Box::new(move |old, b, _| old.wrapping_add(b) & m),
        "min" => Box::new(move |old, b, _| if less(b, old) { b } else { old }),
        "max" => Box::new(move |old, b, _| if less(old, b) { b } else { old }),
        "and" => Box::new(|old, b, _| old & b),
        "or" => Box::new(|old, b, _| old | b),
        "xor" => Box::new(|old, b, _| old ^ b),
        "exch" => Box::new(|_, b, _| b),
        "cas" => Box::new(|old, b, c| if old == b { c } else { old }),
        "inc" => Box::new(|old, b, _| if old >= b { 0 } else { old + 1 }),
        _ => Box::new(|old, b, _| if old == 0 || old > b { b } else { old - 1 }),
    })
}

fn pick(f: Format, a: u64, b: u64, first: bool) -> u64 {
    if f.is_nan(a) {
        b
    } else if first {
        a
    } else {
        b
    }
}

fn atomic(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let ty = i.ty().ok_or("a type expected")?;
    let returns = i.opcode == "atom";
    let operands = if returns { &i.operands[1.min(i.operands.len())..] } else { &i.operands[..] };
    let [address, value, rest @ ..] = operands else { return Err("an address and a value expected".into()) };
    let elements = d.elements(value);
    let mut results = Vec::new();
    if returns {
        for element in d.elements(&i.operands[0]) {
            results.push(d.register(element)?);
        }
    }
    let address = d.address(address)?;
    let values = elements.iter().map(|e| d.typed(e, ty)).collect::<Result<Vec<_>, _>>()?;
    let third = rest.first().map(|o| d.typed(o, ty)).transpose()?;
    let update = update(i, ty)?;
    let space = address.of.filter(|_| space(i) != crate::syntax::Space::Generic).unwrap_or(space(i));
    let strength = Strength { strong: true, ..strength(i) };
    let bytes = ty.bytes();
    if bytes > 8 {
        return Err("atomic operations on 128 bits are not known".into());
    }
    let (m, total) = (mask(ty), bytes * values.len());
    Ok(Box::new(move |c| {
        let at = c.addresses(&address);
        let inputs: Vec<_> = values.iter().map(|v| c.read(*v)).collect();
        let third = third.map(|v| c.read(v));
        super::order_load(c, space, &at, strength);
        super::order_store(c, space, &at, strength);
        let mut buffer = [0u8; 32];
        for lane in lanes(c.mask) {
            c.load(space, lane, at[lane], &mut buffer[..total], true)?;
            for (n, input) in inputs.iter().enumerate() {
                let mut word = [0u8; 8];
                word[..bytes].copy_from_slice(&buffer[n * bytes..(n + 1) * bytes]);
                let old = u64::from_le_bytes(word);
                let new = update(old, input[lane] & m, third.map_or(0, |t| t[lane] & m));
                buffer[n * bytes..(n + 1) * bytes].copy_from_slice(&new.to_le_bytes()[..bytes]);
                if let Some(Some(slot)) = results.get(n) {
                    c.warp.registers[*slot as usize][lane] = old;
                }
            }
            c.store(space, lane, at[lane], &buffer[..total], true)?;
        }
        Ok(Flow::Next)
    }))
}
