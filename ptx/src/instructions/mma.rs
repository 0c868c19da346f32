//! mma.sync: a warp multiplies matrices that its registers hold.
use crate::format::Element;
use crate::matrix::fragment::{Fragment, FragmentLayout, Side};
use crate::matrix::product::{multiply, Accumulators, Form, Numbers, Panels, Shape};
use crate::program::{Decoder, Flow, Lanes, Operation, Unsupported, Value};
use crate::syntax::{Instruction, Operand};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    (i.opcode == "mma").then(|| mma(i, d))
}

/// `m16n8k16`.
pub fn shape(i: &Instruction) -> Option<Shape> {
    i.modifiers.iter().find_map(|m| {
        let (m, rest) = m.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
    })
}

/// The types that an instruction names, in order.
pub fn types(i: &Instruction) -> Vec<Element> {
    i.modifiers.iter().filter_map(|m| Element::named(m)).collect()
}

/// What the instruction says beside shape and types.
pub fn form(i: &Instruction) -> Form {
    Form { saturate: i.has("satfinite"), xor: i.has("xor"), ..Form::default() }
}

/// Elements in a register.
pub fn per(element: Element) -> usize {
    32 / element.bits().min(32) as usize
}

/// Registers that are read.
pub fn values(operand: &Operand, d: &Decoder<'_>) -> Result<Vec<Value>, Unsupported> {
    d.elements(operand).iter().map(|o| d.value(o)).collect()
}

/// Registers that are written.
pub fn registers(operand: &Operand, d: &Decoder<'_>) -> Result<Vec<Option<u32>>, Unsupported> {
    d.elements(operand).iter().map(|o| d.register(o)).collect()
}

/// Fails unless a fragment has as many registers as the matrix needs.
pub fn counted(fragment: &Fragment, given: usize) -> Result<(), Unsupported> {
    let elements = fragment.rows * fragment.columns;
    let whole = fragment.layout == FragmentLayout::Opaque || given * fragment.per * 32 == elements;
    if given == fragment.registers && whole && (given * fragment.per * 32) % elements == 0 {
        return Ok(());
    }
    Err(format!("{given} registers for a matrix of {} x {}", fragment.rows, fragment.columns))
}

fn mma(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let other = |m: &String| {
        m == "sp" || m.starts_with("sp::") || m.contains("block_scale") || m.starts_with("kind") && m != "kind::f8f6f4"
    };
    if i.modifiers.iter().any(other) {
        return Err("sparse and scaled matrices are not known".into());
    }
    let shape = shape(i).ok_or("a shape expected")?;
    let [d_type, a_type, b_type, c_type] = types(i)[..] else { return Err("four types expected".into()) };
    let small = [a_type, b_type].map(|t| matches!(t, Element::E4m3 | Element::E5m2));
    let sums = c_type == d_type && matches!(d_type, Element::F16 | Element::F32);
    if small.contains(&true) && !(small == [true; 2] && sums && shape.m == 16 && matches!(shape.k, 16 | 32)) {
        return Err("floats of 8 bits are multiplied with such, 16 or 32 deep, into sums of f16 or of f32".into());
    }
    let [to, a, b, c] = i.operands.as_slice() else { return Err("four matrices expected".into()) };
    let quads = shape == Shape { m: 8, n: 8, k: 4 } && a_type == Element::F16;
    let order: Vec<bool> = i.modifiers.iter().filter(|m| *m == "row" || *m == "col").map(|m| m == "row").collect();
    let [a_rows, b_rows] = order[..] else { return Err("two orders expected".into()) };
    if !quads && (!a_rows || b_rows) {
        return Err("A by rows and B by columns expected".into());
    }
    let layout = if quads { FragmentLayout::Quads { a_columns: !a_rows, b_rows } } else { FragmentLayout::Groups };
    let known = quads || matches!(shape.m, 8 | 16) && shape.n == 8;
    if !known {
        return Err("this shape is not known".into());
    }
    let products = if quads { 4 } else { 1 };
    let to = registers(to, d)?;
    let operands = [values(a, d)?, values(b, d)?, values(c, d)?];
    let fragment = |side, rows, columns, element, registers| Fragment {
        side,
        layout,
        rows,
        columns,
        registers,
        per: per(element),
    };
    let fragments = [
        fragment(Side::A, products * shape.m, shape.k, a_type, operands[0].len()),
        fragment(Side::B, products * shape.k, shape.n, b_type, operands[1].len()),
        fragment(Side::C, products * shape.m, shape.n, c_type, operands[2].len()),
    ];
    let result = Fragment { registers: to.len(), per: per(d_type), ..fragments[2] };
    for (fragment, given) in fragments.iter().zip(&operands) {
        counted(fragment, given.len())?;
    }
    counted(&result, to.len())?;
    let form = form(i);
    let (fragments, result) = (fragments.map(Fragment::dealt), result.dealt());
    // Where a register's sums are added to what stands in it, and A and B are numbers.
    let in_place = products == 1 && c_type == d_type && d_type != Element::F64 && a_type != Element::B1;
    Ok(Box::new(move |c| {
        c.together()?;
        let read = |n: usize| {
            let bits = [a_type, b_type, c_type][n].bits();
            fragments[n].gather(bits, operands[n].iter().map(|v| c.read(*v)))
        };
        let (a, b) = (read(0), read(1));
        if in_place {
            let added: Vec<Lanes> = operands[2].iter().map(|v| c.read(*v)).collect();
            let mut sums = Accumulators::of(d_type, &result, added.iter());
            let b = Panels::of(Numbers::of(b_type, &b, false), shape.k, true);
            sums.add(shape, form, &Numbers::of(a_type, &a, false), &b);
            for (register, slot) in to.iter().enumerate() {
                c.write_to(*slot, &sums.register(&result, register));
            }
            return Ok(Flow::Next);
        }
        let added = read(2);
        let mut out = Vec::with_capacity(added.len());
        let Shape { m, n, k } = shape;
        for p in 0..products {
            out.extend(multiply(
                shape,
                form,
                (a_type, &a[p * m * k..(p + 1) * m * k]),
                (b_type, &b[p * k * n..(p + 1) * k * n]),
                Some((c_type, &added[p * m * n..(p + 1) * m * n])),
                d_type,
            ));
        }
        for (register, slot) in to.iter().enumerate() {
            c.write_to(*slot, &result.scatter(d_type.bits(), &out, register));
        }
        Ok(Flow::Next)
    }))
}
