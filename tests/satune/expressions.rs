//! Random expressions over all types and operators: their text in TVMScript, and their values by the rules of
//! `docs/SEMANTICS.md`, written here a second time: whole numbers in 128 bits, floats in Rust's own types.
use rand::rngs::StdRng;
use rand::Rng;
use satune_ir::DType;

pub const TYPES: [DType; 16] = [
    DType::Bool,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F16,
    DType::BF16,
    DType::TF32,
    DType::F32,
    DType::F64,
];

/// A value of a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Val {
    I(i128),
    F(f64),
}

impl Val {
    fn int(self) -> i128 {
        let Val::I(v) = self else { panic!("{self:?} is no integer") };
        v
    }

    fn float(self) -> f64 {
        let Val::F(v) = self else { panic!("{self:?} is no float") };
        v
    }

    /// The same value; all NaNs are one, `-0.0` is not `0.0`.
    pub fn same(self, other: Val) -> bool {
        match (self, other) {
            (Val::F(a), Val::F(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (a, b) => a == b,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Node {
    /// An element of an input, by the input's number.
    Load(usize),
    /// `vi` or `vj`.
    Axis(usize),
    Const(Val),
    Binary(&'static str, Box<Expression>, Box<Expression>),
    Unary(&'static str, Box<Expression>),
    Cast(Box<Expression>),
    Reinterpret(Box<Expression>),
    Select(&'static str, Box<[Expression; 3]>),
}

#[derive(Clone, Debug)]
pub struct Expression {
    pub dtype: DType,
    pub node: Node,
}

/// Width, bits.
fn width(t: DType) -> u32 {
    8 * t.bytes()
}

fn signed(t: DType) -> bool {
    matches!(t, DType::I8 | DType::I16 | DType::I32 | DType::I64)
}

fn ends(t: DType) -> (i128, i128) {
    match t {
        DType::Bool => (0, 1),
        t if signed(t) => (-(1 << (width(t) - 1)), (1 << (width(t) - 1)) - 1),
        t => (0, (1 << width(t)) - 1),
    }
}

fn wrapped(v: i128, t: DType) -> Val {
    let (lo, hi) = ends(t);
    Val::I(if t == DType::Bool { i128::from(v != 0) } else { lo + (v - lo).rem_euclid(hi - lo + 1) })
}

/// The nearest number of a float type.
pub fn rounded(x: f64, t: DType) -> f64 {
    match t {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        DType::TF32 => {
            let y = x as f32;
            let (below, above) =
                (f32::from_bits(y.to_bits() & !0x1fff), f32::from_bits((y.to_bits() & !0x1fff).wrapping_add(0x2000)));
            match y.is_finite() {
                false => y.into(),
                true if (y - below).abs() < (f64::from(above) - f64::from(y)).abs() as f32 => below.into(),
                true => above.into(),
            }
        }
        DType::F16 => of_sixteen(x, &|b| half::f16::from_bits(b).to_f64(), 0x7c00),
        DType::BF16 => of_sixteen(x, &|b| half::bf16::from_bits(b).to_f64(), 0x7f80),
        // No infinity comes of a number: the largest takes its place.
        DType::F8E4M3 => of_sixteen(x.clamp(-448.0, 448.0), &e4m3, 0x7f),
        _ => of_sixteen(x.clamp(-57344.0, 57344.0), &e5m2, 0x7c),
    }
}

/// The upper bits of an `f16` with another exponent of 1.
fn e4m3(b: u16) -> f64 {
    match b & 0x7f {
        0x7f => f64::NAN,
        _ => 256.0 * half::f16::from_bits((b & 0x80) << 8 | (b & 0x7f) << 7).to_f64(),
    }
}

fn e5m2(b: u16) -> f64 {
    half::f16::from_bits(b << 8).to_f64()
}

/// By looking for it: magnitudes grow with their bits.
fn of_sixteen(x: f64, value: &dyn Fn(u16) -> f64, infinite: u16) -> f64 {
    if x.is_nan() {
        return x;
    }
    // The number that would be next stands for infinity.
    let of = |b: u16| if b == infinite { 2.0 * value(b - 1) - value(b - 2) } else { value(b) };
    let (mut lo, mut hi) = (0, infinite);
    while lo < hi {
        let mid = (lo + hi).div_ceil(2);
        if of(mid) <= x.abs() {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    let near = match infinite {
        end if lo == end => lo,
        _ => match (x.abs() - of(lo)).partial_cmp(&(of(lo + 1) - x.abs())) {
            Some(std::cmp::Ordering::Less) => lo,
            Some(std::cmp::Ordering::Equal) => lo + (lo & 1),
            _ => lo + 1,
        },
    };
    value(near).copysign(x)
}

/// What a conversion makes of a value.
pub fn converted(v: Val, from: DType, to: DType) -> Val {
    match (v, to.is_float()) {
        (Val::I(v), true) if to == DType::F64 => Val::F(v as f64),
        (Val::I(v), true) => Val::F(rounded((v as f32).into(), to)),
        (Val::I(v), false) => wrapped(v, to),
        (Val::F(v), true) => Val::F(if from == to { v } else { rounded(v, to) }),
        (Val::F(v), false) if to == DType::Bool => Val::I((v != 0.0).into()),
        (Val::F(v), false) if v.is_nan() => Val::I(0),
        (Val::F(v), false) => Val::I((v.trunc() as i128).clamp(ends(to).0, ends(to).1)),
    }
}

/// The value's bytes, little-endian.
pub fn bytes(v: Val, t: DType) -> Vec<u8> {
    let pattern = match v {
        Val::I(v) => v as u64,
        Val::F(v) => match t {
            DType::F64 => v.to_bits(),
            DType::F16 => half::f16::from_f64(v).to_bits().into(),
            DType::BF16 => half::bf16::from_f64(v).to_bits().into(),
            DType::F8E4M3 => (0..0x100).find(|b| Val::F(e4m3(*b)).same(Val::F(v))).unwrap().into(),
            DType::F8E5M2 => (0..0x100).find(|b| Val::F(e5m2(*b)).same(Val::F(v))).unwrap().into(),
            _ => (v as f32).to_bits().into(),
        },
    };
    pattern.to_le_bytes()[..t.bytes() as usize].to_vec()
}

/// The value of bytes.
pub fn of_bytes(bytes: &[u8], t: DType) -> Val {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    let pattern = u64::from_le_bytes(all);
    match t {
        DType::F64 => Val::F(f64::from_bits(pattern)),
        DType::F16 => Val::F(half::f16::from_bits(pattern as u16).to_f64()),
        DType::BF16 => Val::F(half::bf16::from_bits(pattern as u16).to_f64()),
        DType::F8E4M3 => Val::F(e4m3(pattern as u16)),
        DType::F8E5M2 => Val::F(e5m2(pattern as u16)),
        DType::F32 | DType::TF32 => Val::F(f32::from_bits(pattern as u32).into()),
        t => wrapped(pattern.into(), t),
    }
}

/// Its value where the inputs' elements and the axes have these.
pub fn value(e: &Expression, loads: &[Val], axes: [i64; 2]) -> Val {
    let of = |e: &Expression| value(e, loads, axes);
    let t = e.dtype;
    match &e.node {
        Node::Load(k) => loads[*k],
        Node::Axis(k) => Val::I(axes[*k].into()),
        Node::Const(v) => *v,
        Node::Cast(a) => converted(of(a), a.dtype, t),
        Node::Reinterpret(a) => of_bytes(&bytes(of(a), a.dtype), t),
        Node::Select(_, parts) => of(&parts[if of(&parts[0]).int() != 0 { 1 } else { 2 }]),
        Node::Unary(op, a) => unary(op, of(a), a.dtype, t),
        Node::Binary(op, a, b) if matches!(*op, "and" | "or") => {
            let (a, b) = (of(a).int() != 0, of(b).int() != 0);
            Val::I(if *op == "and" { a && b } else { a || b }.into())
        }
        Node::Binary(op, a, b) => match (of(a), of(b)) {
            (Val::I(x), Val::I(y)) => whole(op, x, y, t),
            (x, y) => real(op, x.float(), y.float(), t),
        },
    }
}

fn unary(op: &str, a: Val, from: DType, t: DType) -> Val {
    match (op, a) {
        ("-", Val::I(v)) => wrapped(-v, t),
        ("~", Val::I(v)) if t == DType::Bool => Val::I(1 - v),
        ("~", Val::I(v)) => wrapped(-1 - v, t),
        ("not ", Val::I(v)) => Val::I((v == 0).into()),
        ("T.abs", Val::I(v)) => wrapped(v.abs(), t),
        ("T.popcount", Val::I(v)) => Val::I((v.rem_euclid(1 << width(from)) as u128).count_ones().into()),
        ("T.clz", Val::I(v)) => {
            Val::I(i128::from((v.rem_euclid(1 << width(from)) as u128).leading_zeros()) - i128::from(128 - width(from)))
        }
        ("-", Val::F(v)) => Val::F(rounded(-v, t)),
        ("T.abs", Val::F(v)) => Val::F(rounded(v.abs(), t)),
        ("T.floor", Val::F(v)) => Val::F(rounded(v.floor(), t)),
        ("T.ceil", Val::F(v)) => Val::F(rounded(v.ceil(), t)),
        ("T.trunc", Val::F(v)) => Val::F(rounded(v.trunc(), t)),
        ("T.nearbyint", Val::F(v)) => Val::F(rounded(v.round_ties_even(), t)),
        ("T.sqrt", Val::F(v)) if t == DType::F64 => Val::F(v.sqrt()),
        ("T.sqrt", Val::F(v)) => Val::F(rounded((v as f32).sqrt().into(), t)),
        ("T.isnan", Val::F(v)) => Val::I(v.is_nan().into()),
        ("T.isinf", Val::F(v)) => Val::I(v.is_infinite().into()),
        ("T.isfinite", Val::F(v)) => Val::I(v.is_finite().into()),
        other => panic!("{other:?}"),
    }
}

fn whole(op: &str, x: i128, y: i128, t: DType) -> Val {
    let floor = |x: i128, y: i128| x.div_euclid(y) - i128::from(y < 0 && x.rem_euclid(y) != 0);
    let far = !(0..i128::from(width(t))).contains(&y);
    let of = match op {
        "+" => x + y,
        "-" => x - y,
        "*" => ((x as u128).wrapping_mul(y as u128)) as i128,
        "//" | "%" | "T.truncdiv" | "T.truncmod" if y == 0 => 0,
        "//" => floor(x, y),
        "%" => x - y * floor(x, y),
        "T.truncdiv" => x / y,
        "T.truncmod" => x % y,
        "T.min" => x.min(y),
        "T.max" => x.max(y),
        "&" => x & y,
        "|" => x | y,
        "^" => x ^ y,
        "<<" if far => 0,
        "<<" => (x as u128).wrapping_shl(y as u32) as i128,
        ">>" if far => -i128::from(x < 0),
        ">>" => x >> y,
        "<" => (x < y).into(),
        "<=" => (x <= y).into(),
        "==" => (x == y).into(),
        "!=" => (x != y).into(),
        other => panic!("{other}"),
    };
    // The low 64 bits hold every value.
    wrapped(i128::from(of as u64), t)
}

fn real(op: &str, x: f64, y: f64, t: DType) -> Val {
    // Of 32 bits and less: one operation in f32, then rounded.
    let in_type = |f: &dyn Fn(f64, f64) -> f64, g: &dyn Fn(f32, f32) -> f32| {
        Val::F(if t == DType::F64 { f(x, y) } else { rounded(g(x as f32, y as f32).into(), t) })
    };
    let less = x < y || (x == y && x.is_sign_negative());
    match op {
        "+" => in_type(&|a, b| a + b, &|a, b| a + b),
        "-" => in_type(&|a, b| a - b, &|a, b| a - b),
        "*" => in_type(&|a, b| a * b, &|a, b| a * b),
        "/" => in_type(&|a, b| a / b, &|a, b| a / b),
        "T.fmod" => in_type(&|a, b| a % b, &|a, b| a % b),
        "T.copysign" => Val::F(rounded(x.copysign(y), t)),
        "T.min" => Val::F(rounded(if less || y.is_nan() { x } else { y }, t)),
        "T.max" => Val::F(rounded(if (!less && !x.is_nan()) || y.is_nan() { x } else { y }, t)),
        "<" => Val::I((x < y).into()),
        "<=" => Val::I((x <= y).into()),
        "==" => Val::I((x == y).into()),
        "!=" => Val::I((x != y).into()),
        other => panic!("{other}"),
    }
}

/// Its text, of inputs `X0`, `X1`, ...
pub fn text(e: &Expression) -> String {
    match &e.node {
        Node::Load(k) => format!("X{k}[vi, vj]"),
        Node::Axis(k) => ["vi", "vj"][*k].into(),
        Node::Const(Val::I(v)) => format!("T.{}({v})", e.dtype.name()),
        Node::Const(Val::F(v)) if v.is_finite() => format!("T.{}({v:?})", e.dtype.name()),
        Node::Const(Val::F(v)) => format!("T.{}(\"{v}\")", e.dtype.name()),
        Node::Binary(op, a, b) if op.starts_with("T.") => format!("{op}({}, {})", text(a), text(b)),
        Node::Binary(op, a, b) => format!("({} {op} {})", text(a), text(b)),
        Node::Unary(op, a) if op.starts_with("T.") => format!("{op}({})", text(a)),
        Node::Unary(op, a) => format!("({op}{})", text(a)),
        Node::Cast(a) => format!("T.Cast(\"{}\", {})", e.dtype.name(), text(a)),
        Node::Reinterpret(a) => format!("T.reinterpret(\"{}\", {})", e.dtype.name(), text(a)),
        Node::Select(name, parts) => {
            let [c, a, b] = parts.as_ref();
            format!("T.{name}({}, {}, {})", text(c), text(a), text(b))
        }
    }
}

fn one<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.gen_range(0..of.len())]
}

/// A number that computers get wrong, or any.
pub fn interesting(rng: &mut StdRng, t: DType) -> Val {
    if t.is_float() {
        let list = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            0.1,
            2.5,
            -3.0,
            100.0,
            127.5,
            -128.9,
            255.9,
            300.0,
            40000.0,
            65519.0,
            65520.0,
            1e10,
            -3e9,
            2147483648.0,
            1e19,
            1e-40,
            6e-8,
            3.4e38,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        let any = f64::from(rng.gen_range(-1000_i32..1000)) / 7.0;
        let v = if rng.gen_range(0..3) == 0 { any } else { one(rng, &list) };
        // The infinities of this one come from whoever fills memory.
        let as_it_is = t == DType::F8E5M2 && v.is_infinite();
        return Val::F(if as_it_is { v } else { rounded(v, t) });
    }
    let (lo, hi) = ends(t);
    let list = [lo, lo + 1, hi, hi - 1, 0, 1, 2, 3, 7, 31, 32, 63, -1, -2, -7, 100];
    let v = if rng.gen_range(0..3) == 0 { i128::from(rng.gen::<u64>()) } else { one(rng, &list) };
    wrapped(v, t)
}

/// An expression of a type over inputs of types.
pub fn random(rng: &mut StdRng, t: DType, depth: u32, inputs: &[DType]) -> Expression {
    let of = |node| Expression { dtype: t, node };
    if depth == 0 {
        let same: Vec<usize> = (0..inputs.len()).filter(|k| inputs[*k] == t).collect();
        if !same.is_empty() && rng.gen_range(0..8) > 0 {
            return of(Node::Load(one(rng, &same)));
        }
        if rng.gen_range(0..4) == 0 {
            let axis = Expression { dtype: DType::I32, node: Node::Axis(rng.gen_range(0..2)) };
            return if t == DType::I32 { axis } else { of(Node::Cast(Box::new(axis))) };
        }
        let k = rng.gen_range(0..inputs.len());
        let load = Expression { dtype: inputs[k], node: Node::Load(k) };
        return if inputs[k] == t { load } else { of(Node::Cast(Box::new(load))) };
    }
    let any = |rng: &mut StdRng, t| Box::new(random(rng, t, depth - 1, inputs));
    // What a whole type has, or what numbers have alike.
    match rng.gen_range(0..10) {
        0 => {
            let from = one(rng, &TYPES);
            let a = any(rng, from);
            if from == t {
                *a
            } else {
                of(Node::Cast(a))
            }
        }
        1 => {
            let name = one(rng, &["if_then_else", "Select"]);
            of(Node::Select(name, Box::new([*any(rng, DType::Bool), *any(rng, t), *any(rng, t)])))
        }
        2 if t != DType::Bool => {
            let widths: Vec<DType> = TYPES
                .into_iter()
                .filter(|u| width(*u) == width(t) && *u != t && *u != DType::Bool && *u != DType::TF32)
                .collect();
            // NaNs have many bits.
            if t == DType::TF32 || widths.is_empty() {
                return *any(rng, t);
            }
            let from = one(rng, &widths);
            let a = any(rng, from);
            of(Node::Reinterpret(if from.is_float() { number(a, from) } else { a }))
        }
        3 if t == DType::Bool => {
            let from = one(rng, &TYPES[9..]);
            of(Node::Unary(one(rng, &["T.isnan", "T.isinf", "T.isfinite"]), any(rng, from)))
        }
        3 if t == DType::I32 => {
            let from = one(rng, &TYPES[1..9]);
            of(Node::Unary("T.clz", any(rng, from)))
        }
        3 | 4 => {
            let list: &[&str] = match t {
                DType::Bool => &["not ", "~"],
                DType::F32 | DType::F64 => &["-", "T.abs", "T.floor", "T.ceil", "T.trunc", "T.nearbyint", "T.sqrt"],
                t if t.is_float() => &["-", "T.abs", "T.floor", "T.ceil", "T.trunc"],
                _ => &["-", "~", "T.abs", "T.popcount"],
            };
            of(Node::Unary(one(rng, list), any(rng, t)))
        }
        _ => {
            let (list, operands): (&[&str], DType) = match t {
                DType::Bool if rng.gen_range(0..4) > 0 => (&["<", "<=", "==", "!="], one(rng, &TYPES)),
                DType::Bool => (&["and", "or", "&", "|", "^", "T.min", "T.max"], t),
                t if t.is_float() => (&["+", "-", "*", "/", "T.min", "T.max", "T.fmod", "T.copysign"], t),
                _ => (
                    &[
                        "+",
                        "-",
                        "*",
                        "//",
                        "%",
                        "T.truncdiv",
                        "T.truncmod",
                        "T.min",
                        "T.max",
                        "&",
                        "|",
                        "^",
                        "<<",
                        ">>",
                    ],
                    t,
                ),
            };
            let op = one(rng, list);
            let a = any(rng, operands);
            let b = if rng.gen_range(0..3) > 0 || operands == DType::Bool {
                any(rng, operands)
            } else {
                constant(rng, operands, op)
            };
            // The sign of what is no number is nobody's.
            let b = if op == "T.copysign" { number(b, operands) } else { b };
            of(Node::Binary(op, a, b))
        }
    }
}

/// A float, 1 where it is no number.
fn number(a: Box<Expression>, t: DType) -> Box<Expression> {
    let nan = Expression { dtype: DType::Bool, node: Node::Unary("T.isnan", a.clone()) };
    let one = Expression { dtype: t, node: Node::Const(Val::F(1.0)) };
    Box::new(Expression { dtype: t, node: Node::Select("Select", Box::new([nan, one, *a])) })
}

/// A constant as an operand on the right: no 0, by which nobody divides, and which is folded away.
fn constant(rng: &mut StdRng, t: DType, op: &str) -> Box<Expression> {
    let v = if t.is_float() {
        Val::F(rounded(one(rng, &[0.5, 3.0, -2.25, 100.0, 1.0, -1.0, 0.1]), t))
    } else if matches!(op, "<<" | ">>") {
        Val::I(i128::from(rng.gen_range(1..width(t) + 2)))
    } else {
        let (lo, hi) = ends(t);
        // The text of the least number would be that of one that does not fit, with a sign.
        wrapped(one(rng, &[1, 2, 3, 5, 7, 16, 100, hi, hi - 1, (lo + 1).min(-1), -2, -7]), t)
    };
    Box::new(Expression { dtype: t, node: Node::Const(if v == Val::I(0) { Val::I(1) } else { v }) })
}
