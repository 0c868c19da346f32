//! ld, st: vectors of registers from and to memory.
use crate::machine::{lanes, Registers};
use crate::program::{Decoder, Flow, Operation, Unsupported};
use crate::syntax::{Instruction, Operand, Space, Type};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    match i.opcode.as_str() {
        "ld" | "ldu" => Some(load(i, d)),
        "st" => Some(store(i, d)),
        "prefetch" | "prefetchu" | "applypriority" | "discard" if !i.has("tensormap") => {
            Some(Ok(Box::new(|_| Ok(Flow::Next))))
        }
        _ => None,
    }
}

/// The space that an instruction names.
pub fn space(i: &Instruction) -> Space {
    let named = i.modifiers.iter().find_map(|m| {
        Some(match m.split("::").next()? {
            "global" => Space::Global,
            "shared" => Space::Shared,
            "local" => Space::Local,
            "param" => Space::Param,
            "const" => Space::Const,
            _ => return None,
        })
    });
    named.unwrap_or(Space::Generic)
}

/// Whether others may access the same location at the same time, and the order in which it makes accesses visible.
#[derive(Clone, Copy)]
pub struct Strength {
    /// Volatile, relaxed, acquire, release.
    pub strong: bool,
    /// What others released is seen.
    pub acquire: bool,
    /// What was seen is released.
    pub release: bool,
}

/// The strength that an instruction's modifiers tell.
pub fn strength(i: &Instruction) -> Strength {
    let (acquire, release) = (i.has("acquire") || i.has("acq_rel"), i.has("release") || i.has("acq_rel"));
    let strong = acquire || release || i.has("relaxed") || i.has("volatile") || i.has("mmio");
    Strength { strong, acquire, release }
}

fn load(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let ty = i.ty().ok_or("a type expected")?;
    let [result, from, ..] = i.operands.as_slice() else { return Err("a result and an address expected".into()) };
    let to: Vec<Option<u32>> = d.elements(result).iter().map(|e| d.register(e)).collect::<Result<_, _>>()?;
    let address = d.address(from)?;
    let space = address.of.filter(|_| space(i) != Space::Generic).unwrap_or(space(i));
    let strength = strength(i);
    let (bytes, signed) = (ty.bytes(), ty.signed());
    let total = bytes * to.len();
    if total > 32 {
        return Err("more than 32 bytes at once".into());
    }
    // A number in a wider register keeps its sign.
    let read = d.elements(result).iter().map(|e| to.len() == 1 || d.is_read(e)).collect();
    let registers = Registers { bytes, read };
    let widths: Vec<u32> = d.elements(result).iter().map(|e| d.type_of(e).map_or(64, Type::bits)).collect();
    Ok(Box::new(move |c| {
        let at = c.addresses(&address);
        c.load_all(space, &at, &registers, strength.strong, |warp, lane, data| {
            for ((slot, piece), width) in to.iter().zip(data.chunks_exact(bytes)).zip(&widths) {
                let Some(slot) = slot else { continue };
                let mut value = word(piece);
                if signed && bytes < 8 {
                    let shift = 64 - 8 * bytes as u32;
                    let extended = (value << shift) as i64 >> shift;
                    value = extended as u64 & (u64::MAX >> (64 - (*width).clamp(1, 64)));
                }
                warp.registers[*slot as usize][lane] = value;
                if bytes == 16 {
                    warp.registers[*slot as usize + 1][lane] = word(&piece[8..]);
                }
            }
        })?;
        if strength.strong {
            super::order_load(c, space, &at, strength);
        }
        Ok(Flow::Next)
    }))
}

/// The number of up to eight bytes, the least significant first.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    match *bytes {
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a] => u64::from(a),
        [a, b, c, d, e, f, g, h, ..] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

fn store(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let ty = i.ty().ok_or("a type expected")?;
    let [to, value, ..] = i.operands.as_slice() else { return Err("an address and a value expected".into()) };
    let address = d.address(to)?;
    let space = address.of.filter(|_| space(i) != Space::Generic).unwrap_or(space(i));
    let strength = strength(i);
    let bytes = ty.bytes();
    let mut from = Vec::new();
    for element in d.elements(value) {
        from.push(match element {
            Operand::Not(_) | Operand::Discard => return Err("a value expected".into()),
            other => d.typed(other, ty)?,
        });
    }
    let total = bytes * from.len();
    if total > 32 {
        return Err("more than 32 bytes at once".into());
    }
    Ok(Box::new(move |c| {
        let at = c.addresses(&address);
        if strength.strong {
            super::order_store(c, space, &at, strength);
        }
        for lane in lanes(c.mask) {
            let mut buffer = [0u8; 32];
            for (n, value) in from.iter().enumerate() {
                use crate::program::Value;
                let (low, high) = match *value {
                    Value::Register(slot) if bytes == 16 => {
                        (c.warp.registers[slot as usize][lane], c.warp.registers[slot as usize + 1][lane])
                    }
                    Value::Register(slot) => (c.warp.registers[slot as usize][lane], 0),
                    Value::Constant(n) => (n, 0),
                    special => (c.read(special)[lane], 0),
                };
                let piece = &mut buffer[n * bytes..(n + 1) * bytes];
                match bytes {
                    4 => piece.copy_from_slice(&(low as u32).to_le_bytes()),
                    8 => piece.copy_from_slice(&low.to_le_bytes()),
                    _ => {
                        let word = (u128::from(low) | u128::from(high) << 64).to_le_bytes();
                        piece.copy_from_slice(&word[..bytes]);
                    }
                }
            }
            c.store(space, lane, at[lane], &buffer[..total], strength.strong)?;
        }
        Ok(Flow::Next)
    }))
}
