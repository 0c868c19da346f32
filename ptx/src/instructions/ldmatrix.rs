//! ldmatrix, stmatrix, movmatrix: 8 x 8 matrices of 16-bit elements between shared memory and fragments.
//!
//! Row r of matrix i begins at the address of lane `8 i + r`. Lane l holds, of each matrix, row `l / 4` and the columns
//! `2 (l % 4)` and the next; transposed: column `l / 4` and those rows.
use super::load_store::space;
use super::mma::{registers, values};
use crate::program::{Decoder, Flow, Operation, Unsupported};
use crate::syntax::{Instruction, Operand};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    match i.opcode.as_str() {
        "ldmatrix" => Some(load(i, d)),
        "stmatrix" => Some(store(i, d)),
        "movmatrix" => Some(transpose(i, d)),
        _ => None,
    }
}

fn checked(i: &Instruction, operand: &Operand, d: &Decoder<'_>) -> Result<usize, Unsupported> {
    if !i.has("m8n8") || !i.has("b16") {
        return Err("only matrices of 8 x 8 elements of 16 bits are known".into());
    }
    let count = i.modifiers.iter().find_map(|m| m.strip_prefix('x').and_then(|n| n.parse::<usize>().ok())).unwrap_or(1);
    if d.elements(operand).len() != count || !matches!(count, 1 | 2 | 4) {
        return Err(format!("as many registers as matrices expected, {count}"));
    }
    Ok(count)
}

/// Row and column of the elements of a lane's register.
fn places(lane: usize, transposed: bool) -> [(usize, usize); 2] {
    let (group, pair) = (lane / 4, 2 * (lane % 4));
    [0, 1].map(|n| if transposed { (pair + n, group) } else { (group, pair + n) })
}

fn load(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, from] = i.operands.as_slice() else { return Err("registers and an address expected".into()) };
    let count = checked(i, to, d)?;
    let (to, address, space, transposed) = (registers(to, d)?, d.address(from)?, space(i), i.has("trans"));
    Ok(Box::new(move |c| {
        c.together()?;
        let at = c.addresses(&address);
        for (matrix, slot) in to.iter().enumerate().take(count) {
            let mut rows = [[0_u8; 16]; 8];
            for (r, row) in rows.iter_mut().enumerate() {
                let lane = 8 * matrix + r;
                c.load_one(space, lane, at[lane], row)?;
            }
            let words = std::array::from_fn(|lane| {
                if transposed {
                    let [low, high] = places(lane, true).map(|(row, column)| {
                        u32::from(u16::from_le_bytes([rows[row][2 * column], rows[row][2 * column + 1]]))
                    });
                    return u64::from(low | high << 16);
                }
                let (row, at) = (&rows[lane / 4], 4 * (lane % 4));
                u64::from(u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]))
            });
            c.write_to(*slot, &words);
        }
        Ok(Flow::Next)
    }))
}

fn store(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, from] = i.operands.as_slice() else { return Err("an address and registers expected".into()) };
    let count = checked(i, from, d)?;
    let (from, address, space, transposed) = (values(from, d)?, d.address(to)?, space(i), i.has("trans"));
    Ok(Box::new(move |c| {
        c.together()?;
        let at = c.addresses(&address);
        for (matrix, value) in from.iter().enumerate().take(count) {
            let words = c.read(*value);
            let mut rows = [[0_u8; 16]; 8];
            for (lane, word) in words.iter().enumerate() {
                for (n, (row, column)) in places(lane, transposed).into_iter().enumerate() {
                    rows[row][2 * column..2 * column + 2].copy_from_slice(&((word >> (16 * n)) as u16).to_le_bytes());
                }
            }
            for (r, row) in rows.iter().enumerate() {
                let lane = 8 * matrix + r;
                c.store(space, lane, at[lane], row, false)?;
            }
        }
        Ok(Flow::Next)
    }))
}

fn transpose(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let [to, from] = i.operands.as_slice() else { return Err("two registers expected".into()) };
    let (to, from) = (d.register(to)?, d.value(from)?);
    Ok(Box::new(move |c| {
        c.together()?;
        let words = c.read(from);
        let mut matrix = [[0_u64; 8]; 8];
        for (lane, word) in words.iter().enumerate() {
            for (n, (row, column)) in places(lane, false).into_iter().enumerate() {
                matrix[row][column] = word >> (16 * n) & 0xffff;
            }
        }
        let out = std::array::from_fn(|lane| {
            let [low, high] = places(lane, true);
            matrix[low.0][low.1] | matrix[high.0][high.1] << 16
        });
        c.write_to(to, &out);
        Ok(Flow::Next)
    }))
}
