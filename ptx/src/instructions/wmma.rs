//! wmma: matrices whose fragments nobody knows the layout of. Here elements are dealt out in an order that no other
//! instruction has, so that what takes a fragment for something else computes something else.
use super::load_store::space;
use super::mbarrier::undefined;
use super::mma::{counted, form, per, registers, shape, types, values};
use crate::format::Element;
use crate::machine::Context;
use crate::matrix::fragment::{Fragment, FragmentLayout, Side};
use crate::matrix::product::{multiply, Shape};
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported};
use crate::syntax::{Instruction, Space};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    if i.opcode != "wmma" {
        return None;
    }
    Some(match i.modifiers.first().map(String::as_str) {
        Some("load") => load(i, d),
        Some("store") => store(i, d),
        Some("mma") => product(i, d),
        _ => Err("this form of wmma is not known".into()),
    })
}

fn fragment(side: Side, Shape { m, n, k }: Shape, element: Element, registers: usize) -> Fragment {
    let (rows, columns) = match side {
        Side::A => (m, k),
        Side::B => (k, n),
        Side::C => (m, n),
    };
    Fragment { side, layout: FragmentLayout::Opaque, rows, columns, registers, per: per(element) }
}

/// How a matrix stands in memory.
#[derive(Clone, Copy)]
struct Lines {
    by_rows: bool,
    /// Elements from one line to the next.
    stride: u64,
    lines: usize,
    length: usize,
    bits: u32,
}

impl Lines {
    fn of(f: &Fragment, by_rows: bool, element: Element) -> Lines {
        let (lines, length) = if by_rows { (f.rows, f.columns) } else { (f.columns, f.rows) };
        Lines { by_rows, stride: length as u64, lines, length, bits: element.bits() }
    }

    fn bytes(&self) -> usize {
        self.length * self.bits as usize / 8
    }

    /// Where an element of a line stands in the row-major matrix.
    fn place(&self, line: usize, at: usize) -> usize {
        if self.by_rows {
            line * self.length + at
        } else {
            at * self.lines + line
        }
    }

    /// The lane that has a line, its address, and the pieces that are accessed at once.
    fn pieces(&self, line: usize, base: u64) -> impl Iterator<Item = (usize, u64, std::ops::Range<usize>)> {
        let (bytes, start) = (self.bytes(), base + line as u64 * self.stride * u64::from(self.bits) / 8);
        (0..bytes).step_by(16).map(move |at| (line % 32, start + at as u64, at..(at + 16).min(bytes)))
    }
}

/// The address that all lanes give, and the stride.
fn uniform(c: &Context<'_, '_>, at: &Lanes, what: &str) -> Result<u64, crate::fault::Fault> {
    if at.iter().any(|a| *a != at[0]) {
        return undefined(c, 0, format!("the lanes give different {what} for one matrix"));
    }
    Ok(at[0])
}

fn by_rows(i: &Instruction) -> bool {
    i.has("row")
}

fn load(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let (to, from, stride) = match i.operands.as_slice() {
        [to, from] => (to, from, None),
        [to, from, stride] => (to, from, Some(d.value(stride)?)),
        _ => return Err("registers, an address and a stride expected".into()),
    };
    let side = match i.modifiers.get(1).map(String::as_str) {
        Some("a") => Side::A,
        Some("b") => Side::B,
        _ => Side::C,
    };
    let (shape, element) = (shape(i).ok_or("a shape expected")?, *types(i).last().ok_or("a type expected")?);
    let (to, address, space) = (registers(to, d)?, d.address(from)?, space(i));
    let fragment = fragment(side, shape, element, to.len());
    counted(&fragment, to.len())?;
    let lines = Lines::of(&fragment, by_rows(i), element);
    let dealt = fragment.dealt();
    Ok(Box::new(move |c| {
        c.together()?;
        let base = uniform(c, &c.addresses(&address), "addresses")?;
        let stride = stride.map(|s| uniform(c, &c.read(s), "strides")).transpose()?;
        let lines = Lines { stride: stride.unwrap_or(lines.stride) & 0xffff_ffff, ..lines };
        let mut matrix = vec![0; fragment.rows * fragment.columns];
        let mut line_bytes = vec![0; lines.bytes()];
        for line in 0..lines.lines {
            for (lane, at, piece) in lines.pieces(line, base) {
                c.load(space, lane, at, &mut line_bytes[piece], false)?;
            }
            for at in 0..lines.length {
                matrix[lines.place(line, at)] = bits(&line_bytes, at, lines.bits);
            }
        }
        for (register, slot) in to.iter().enumerate() {
            c.write_to(*slot, &dealt.scatter(lines.bits, &matrix, register));
        }
        Ok(Flow::Next)
    }))
}

fn bits(bytes: &[u8], at: usize, bits: u32) -> u64 {
    let first = at * bits as usize / 8;
    let word = bytes[first..].iter().take(8).rev().fold(0_u64, |w, b| w << 8 | u64::from(*b));
    word >> (at * bits as usize % 8) & (u64::MAX >> (64 - bits))
}

fn store(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let (to, from, stride) = match i.operands.as_slice() {
        [to, from] => (to, from, None),
        [to, from, stride] => (to, from, Some(d.value(stride)?)),
        _ => return Err("an address, registers and a stride expected".into()),
    };
    let (shape, element) = (shape(i).ok_or("a shape expected")?, *types(i).last().ok_or("a type expected")?);
    let (from, address, space): (_, _, Space) = (values(from, d)?, d.address(to)?, space(i));
    let fragment = fragment(Side::C, shape, element, from.len());
    counted(&fragment, from.len())?;
    let lines = Lines::of(&fragment, by_rows(i), element);
    let dealt = fragment.dealt();
    Ok(Box::new(move |c| {
        c.together()?;
        let base = uniform(c, &c.addresses(&address), "addresses")?;
        let stride = stride.map(|s| uniform(c, &c.read(s), "strides")).transpose()?;
        let lines = Lines { stride: stride.unwrap_or(lines.stride) & 0xffff_ffff, ..lines };
        let words: Vec<Lanes> = from.iter().map(|v| c.read(*v)).collect();
        let matrix = dealt.gather(element.bits(), &words);
        let bytes = lines.bits as usize / 8;
        for line in 0..lines.lines {
            let line_bytes: Vec<u8> = (0..lines.length)
                .flat_map(|at| matrix[lines.place(line, at)].to_le_bytes().into_iter().take(bytes))
                .collect();
            for (lane, at, piece) in lines.pieces(line, base) {
                c.store(space, lane, at, &line_bytes[piece], false)?;
            }
        }
        Ok(Flow::Next)
    }))
}

fn product(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let shape = shape(i).ok_or("a shape expected")?;
    // Of f16 only the types of the sums are named.
    let (d_type, a_type, b_type, c_type) = match types(i)[..] {
        [d, c] => (d, Element::F16, Element::F16, c),
        [d, a, b, c] => (d, a, b, c),
        _ => return Err("two or four types expected".into()),
    };
    let [to, a, b, c] = i.operands.as_slice() else { return Err("four matrices expected".into()) };
    let to = registers(to, d)?;
    let operands: [Vec<_>; 3] = [values(a, d)?, values(b, d)?, values(c, d)?];
    let fragments = [
        fragment(Side::A, shape, a_type, operands[0].len()),
        fragment(Side::B, shape, b_type, operands[1].len()),
        fragment(Side::C, shape, c_type, operands[2].len()),
    ];
    let result = fragment(Side::C, shape, d_type, to.len());
    for (fragment, given) in fragments.iter().zip(&operands) {
        counted(fragment, given.len())?;
    }
    counted(&result, to.len())?;
    let form = form(i);
    let (fragments, result) = (fragments.map(Fragment::dealt), result.dealt());
    Ok(Box::new(move |c: &mut Context<'_, '_>| {
        c.together()?;
        let read = |n: usize, element: Element| {
            let words: Vec<Lanes> = operands[n].iter().map(|v| c.read(*v)).collect();
            fragments[n].gather(element.bits(), &words)
        };
        let (a, b, added) = (read(0, a_type), read(1, b_type), read(2, c_type));
        let out = multiply(shape, form, (a_type, &a), (b_type, &b), Some((c_type, &added)), d_type);
        for (register, slot) in to.iter().enumerate() {
            c.write_to(*slot, &result.scatter(d_type.bits(), &out, register));
        }
        Ok(Flow::Next)
    }))
}
