//! From the elementwise blocks after a product to what the kernels on tensor cores compute of each sum.
use super::GatheredMatrix;
use crate::interp::Scalar;
use crate::term::{Axis, AxisInfo, Beside, Contraction, Dimension, Gathered};
use crate::{fold, interp, semantics, tvmscript, BinOp, Block, BlockRealize, BufferId, DType, Expr, Program, Stmt};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is stored for a sum: an expression, whose value is then converted to C's type. Integers are computed in their types, floats
/// in f32, which holds all values of narrower ones. What an operator takes is brought into its type first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Epilogue {
    /// The sum of products.
    #[default]
    Sum,
    /// An element of one of [`super::Gemm::reads`], by number.
    Read(usize),
    /// An index of the result, in its type: the one of [`super::Gemm::indices`] with this number.
    Index(usize, DType),
    /// A constant in f32.
    Number(f64),
    /// A constant of an integer type.
    Integer(i64, DType),
    /// An operator on two values of a type: f32, an integer type, or bool. A bool where it compares.
    Binary(BinOp, DType, Box<Epilogue>, Box<Epilogue>),
    /// A function of one float, see [`interp::intrinsic`].
    Call(String, Box<Epilogue>),
    /// Converted to a type; narrower floats are rounded, and held in f32.
    Cast(DType, Box<Epilogue>),
    /// The second where the first, a bool, holds, and the third where it does not.
    Choose(Box<[Epilogue; 3]>),
}

impl Epilogue {
    /// `a op b` in f32.
    #[must_use]
    pub fn binary(op: BinOp, a: Epilogue, b: Epilogue) -> Epilogue {
        Epilogue::Binary(op, DType::F32, Box::new(a), Box::new(b))
    }

    /// Whether any part of it is so.
    pub fn any(&self, is: &dyn Fn(&Epilogue) -> bool) -> bool {
        is(self)
            || match self {
                Epilogue::Binary(_, _, a, b) => a.any(is) || b.any(is),
                Epilogue::Call(_, a) | Epilogue::Cast(_, a) => a.any(is),
                Epilogue::Choose(parts) => parts.iter().any(|part| part.any(is)),
                Epilogue::Sum
                | Epilogue::Read(_)
                | Epilogue::Index(..)
                | Epilogue::Number(_)
                | Epilogue::Integer(..) => false,
            }
    }

    /// The type of its value, given that of the sum and those of what it reads: f32 of all floats.
    pub fn dtype(&self, sum: DType, reads: &[Read]) -> DType {
        match self {
            Epilogue::Sum => computed(sum),
            Epilogue::Read(number) => reads.get(*number).map_or(DType::F32, |read| computed(read.dtype)),
            Epilogue::Number(_) | Epilogue::Call(..) => DType::F32,
            Epilogue::Integer(_, dtype) | Epilogue::Index(_, dtype) => *dtype,
            Epilogue::Binary(op, dtype, ..) => made_by(*op, *dtype),
            Epilogue::Cast(dtype, _) => computed(*dtype),
            Epilogue::Choose(parts) => parts[1].dtype(sum, reads),
        }
    }

    /// What is stored, in C's type: see [`Epilogue::of`].
    pub fn stored(&self, output: DType, sum: Scalar, reads: &[Scalar], at: &[i64]) -> Scalar {
        converted(self.of(sum, reads, at), output)
    }

    /// Its value for a sum, the elements that it reads, and the result's indices, as kernels have it: step by step.
    pub fn of(&self, sum: Scalar, reads: &[Scalar], at: &[i64]) -> Scalar {
        let part = |part: &Epilogue| part.of(sum, reads, at);
        let as_held = |value: Scalar| converted(value, computed(value.dtype()));
        match self {
            Epilogue::Sum => as_held(sum),
            Epilogue::Read(number) => {
                as_held(reads.get(*number).copied().unwrap_or(Scalar::float(f64::NAN, DType::F32)))
            }
            Epilogue::Index(number, dtype) => Scalar::int(at.get(*number).copied().unwrap_or(-1), *dtype),
            Epilogue::Number(x) => Scalar::float(*x, DType::F32),
            Epilogue::Integer(x, dtype) => Scalar::int(*x, *dtype),
            Epilogue::Binary(op, dtype, a, b) => {
                let [a, b] = [a, b].map(|side| converted(part(side), *dtype));
                let out = made_by(*op, *dtype);
                if dtype.is_float() {
                    let value = semantics::floats(*op, *dtype, a.as_f64(), b.as_f64());
                    return Scalar::float(value.unwrap_or(f64::NAN), out);
                }
                Scalar::int(semantics::integers(*op, *dtype, a.as_i64(), b.as_i64()), out)
            }
            Epilogue::Call(name, a) => {
                let a = converted(part(a), DType::F32);
                Scalar::float(interp::intrinsic(name, &[a.as_f64()], DType::F32).unwrap_or(f64::NAN), DType::F32)
            }
            Epilogue::Cast(dtype, a) => as_held(converted(part(a), *dtype)),
            Epilogue::Choose(parts) => {
                let [condition, then, otherwise] = &**parts;
                if part(condition).as_i64() != 0 {
                    part(then)
                } else {
                    part(otherwise)
                }
            }
        }
    }
}

/// The type of what an operator makes of two values of a type.
fn made_by(op: BinOp, dtype: DType) -> DType {
    if semantics::is_comparison(op) {
        DType::Bool
    } else {
        dtype
    }
}

/// The type in which values of a type are computed with.
fn computed(dtype: DType) -> DType {
    if dtype.is_float() {
        DType::F32
    } else {
        dtype
    }
}

/// A value in another type.
fn converted(value: Scalar, to: DType) -> Scalar {
    match (value.dtype(), to.is_float()) {
        (from, _) if from == to => value,
        (from, _) if from.is_float() => Scalar::float(value.as_f64(), to),
        (from, true) => Scalar::float(semantics::int_to_float(value.as_i64(), from, to), to),
        (_, false) => Scalar::int(value.as_i64(), to),
    }
}

impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Epilogue::Sum => f.write_str("sum"),
            Epilogue::Read(number) => write!(f, "read {number}"),
            Epilogue::Index(number, _) => write!(f, "index {number}"),
            Epilogue::Number(x) => write!(f, "{x}"),
            Epilogue::Integer(x, _) => write!(f, "{x}"),
            Epilogue::Binary(op, _, a, b) => match op {
                BinOp::Add => write!(f, "({a} + {b})"),
                BinOp::Sub => write!(f, "({a} - {b})"),
                BinOp::Mul => write!(f, "({a} * {b})"),
                BinOp::Div => write!(f, "({a} / {b})"),
                other => write!(f, "{}({a}, {b})", format!("{other:?}").to_lowercase()),
            },
            Epilogue::Call(name, a) => write!(f, "{name}({a})"),
            Epilogue::Cast(dtype, a) => write!(f, "{}({a})", dtype.name()),
            Epilogue::Choose(parts) => write!(f, "({} ? {} : {})", parts[0], parts[1], parts[2]),
        }
    }
}

/// Floats that kernels on tensor cores round to, and read elements of.
fn float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// What an epilogue reads beside the sum: an element for each result, or one for several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Read {
    /// What it is called in a kernel.
    pub name: String,
    /// Type of its elements: C's, or a float.
    pub dtype: DType,
    /// Where the element of a result is; none where it is as C is in memory.
    pub at: Option<GatheredMatrix>,
}

impl Read {
    /// A matrix like C, called `residual`.
    pub fn per_result(dtype: DType) -> Read {
        Read { name: "residual".into(), dtype, at: None }
    }

    /// One number per column of a result that is not swapped, called `bias`.
    pub fn per_column(dtype: DType, columns: i64) -> Read {
        let info = AxisInfo { name: "n".into(), extent: columns, reduce: false };
        let dim = Dimension { extent: columns, offset: 0, step: 1, terms: vec![(0, 1)], padded: false };
        let of = Gathered { name: "bias".into(), iters: vec![0], blocks: Vec::new(), dims: vec![dim], computed: None };
        Read { name: "bias".into(), dtype, at: Some(GatheredMatrix { iters: vec![(Axis::N, info)], of }) }
    }

    /// Its elements: as many as there are results of all products, or fewer.
    pub fn elements(&self, results: i64) -> i64 {
        self.at.as_ref().map_or(results, |at| at.of.elements())
    }

    /// The same of the transposed product.
    pub(super) fn transposed(&self) -> Read {
        Read { at: self.at.as_ref().map(GatheredMatrix::transposed), ..self.clone() }
    }

    fn of(contraction: &Contraction, read: &Beside, others: &[Read]) -> Read {
        let dims = contraction.result_dims();
        let whole: Vec<Option<usize>> = (0..dims.len()).map(Some).collect();
        let axes: Vec<Axis> = read.dims.iter().flatten().filter_map(|d| dims.get(*d)).map(|d| d.0).collect();
        let kind = match &axes[..] {
            _ if read.dims == whole => "residual",
            [Axis::N] => "bias",
            [Axis::M] => "of_row",
            [] => "number",
            _ => "beside",
        };
        let alike = others.iter().filter(|other| other.name.starts_with(kind)).count();
        let name = if alike == 0 { kind.to_string() } else { format!("{kind}{}", alike + 1) };
        let at = (read.dims != whole).then(|| GatheredMatrix::beside(contraction, read));
        Read { name, dtype: read.dtype, at }
    }
}

/// What the epilogue's blocks compute, of what they read; the reason where kernels on tensor cores do not.
pub(super) fn read(contraction: &Contraction) -> Result<(Epilogue, Vec<Read>, Vec<GatheredMatrix>), String> {
    let Some(fused) = &contraction.epilogue else { return Ok((Epilogue::Sum, Vec::new(), Vec::new())) };
    let result = contraction.c.dtype;
    for read in &fused.reads {
        if !float(read.dtype) && read.dtype.int_range().is_none() {
            return Err(format!("`{}` has elements of {}", read.name, read.dtype.name()));
        }
    }
    let mut reads = Vec::new();
    for read in &fused.reads {
        if fused.reads.iter().any(|other| other.name == read.name && other.dims != read.dims) {
            return Err(format!("`{}` is read in two ways", read.name));
        }
        reads.push(Read::of(contraction, read, &reads));
    }
    let program = tvmscript::parse(&fused.script).map_err(|e| e.to_string())?;
    let mut stores = Vec::new();
    collect(&program.body, &mut stores);
    let dtype_of = |made: &Epilogue| made.dtype(contraction.accumulate, &reads);
    let (mut made, mut dims) = (Epilogue::Sum, Vec::new());
    let mut names = fused.between.iter();
    for (number, name) in fused.blocks.iter().enumerate() {
        let (block, value) = stores.iter().find(|(block, _)| block.name == *name).ok_or("a block is missing")?;
        let before = names.next().ok_or("a buffer is missing")?;
        let mut reader = Reader { program: &program, block, reads: &fused.reads, before, made: &made, dims: &mut dims };
        let last = number + 1 == fused.blocks.len();
        made = match value {
            Expr::Cast(to, inner) if last && *to == result => stored(result, reader.read(inner)?, &dtype_of),
            other => reader.read(other)?,
        };
    }
    // It is converted as it is stored.
    let made = match made {
        Epilogue::Cast(to, inner) if to == result => stored(result, *inner, &dtype_of),
        other => other,
    };
    let index = |d: &usize| {
        let of = Beside { buffer: BufferId(0), name: String::new(), dtype: DType::I32, dims: vec![Some(*d)] };
        GatheredMatrix::beside(contraction, &of)
    };
    Ok((made, reads, dims.iter().map(index).collect()))
}

/// What is to be converted to the result's type. Halves are made of f32 where they are stored: an integer is rounded before.
fn stored(result: DType, made: Epilogue, dtype_of: &dyn Fn(&Epilogue) -> DType) -> Epilogue {
    match result.is_float() && result != DType::F32 && !dtype_of(&made).is_float() {
        true => Epilogue::Cast(result, Box::new(made)),
        false => made,
    }
}

fn collect<'p>(realize: &'p BlockRealize, out: &mut Vec<(&'p Block, &'p Expr)>) {
    fn below<'p>(block: &'p Block, stmt: &'p Stmt, out: &mut Vec<(&'p Block, &'p Expr)>) {
        match stmt {
            Stmt::Seq(parts) => parts.iter().for_each(|s| below(block, s, out)),
            Stmt::For(l) => below(block, &l.body, out),
            Stmt::Realize(r) => collect(r, out),
            Stmt::Store { value, .. } => out.push((block, value)),
            _ => {}
        }
    }
    below(&realize.block, &realize.block.body, out);
}

struct Reader<'a> {
    program: &'a Program,
    /// Its iterators are the dimensions of the result.
    block: &'a Block,
    reads: &'a [Beside],
    /// The buffer before it, and what that holds.
    before: &'a str,
    made: &'a Epilogue,
    /// Dimensions of the result whose indices are computed with.
    dims: &'a mut Vec<usize>,
}

impl Reader<'_> {
    fn read(&mut self, expr: &Expr) -> Result<Epilogue, String> {
        let dtype = self.computed(expr)?;
        let cast = |to: DType, made: Epilogue| Epilogue::Cast(to, Box::new(made));
        // `+`, `-`, `*` and `/` of narrower floats are those in f32, rounded once more: it has more than twice their digits.
        let rounded = |made: Epilogue| if float(dtype) && dtype != DType::F32 { cast(dtype, made) } else { made };
        match expr {
            Expr::Load(buffer, _) => self.load(*buffer),
            Expr::Int(value, _) if dtype.is_float() => Ok(Epilogue::Number(*value as f64)),
            Expr::Int(value, _) => Ok(Epilogue::Integer(*value, dtype)),
            Expr::Float(bits, dtype) => Ok(Epilogue::Number(Scalar::float(f64::from_bits(*bits), *dtype).as_f64())),
            Expr::Cast(DType::F32, inner) if self.computed(inner)?.is_float() => self.read(inner),
            Expr::Cast(DType::Bool, _) => Err("a block converts to bool".into()),
            Expr::Cast(to, inner) => Ok(cast(*to, self.read(inner)?)),
            Expr::Binary(op, a, b) => {
                // What they compare has a type of its own.
                let compares = semantics::is_comparison(*op);
                let typed = match compares {
                    true => semantics::promote(self.computed(a)?, self.computed(b)?),
                    false => dtype,
                };
                let exact = compares || matches!(op, BinOp::Min | BinOp::Max);
                if float(typed) && !exact && !matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div) {
                    return Err(format!("a block computes {op:?} of floats"));
                }
                let made = Epilogue::Binary(*op, computed(typed), Box::new(self.read(a)?), Box::new(self.read(b)?));
                Ok(if exact { made } else { rounded(made) })
            }
            Expr::Not(a) => {
                let no = Epilogue::Integer(0, DType::Bool);
                Ok(Epilogue::Binary(BinOp::Eq, DType::Bool, Box::new(self.read(a)?), Box::new(no)))
            }
            Expr::Select { cond, then, otherwise, .. } => {
                if self.computed(then)? != self.computed(otherwise)? {
                    return Err("a block chooses between values of two types".into());
                }
                Ok(Epilogue::Choose(Box::new([self.read(cond)?, self.read(then)?, self.read(otherwise)?])))
            }
            Expr::Call(name, args, _) => {
                if !float(dtype) {
                    return Err(format!("a block calls {name} on {}", dtype.name()));
                }
                let name = name.rsplit('.').next().unwrap_or(name);
                match &args[..] {
                    [a] if interp::intrinsic(name, &[0.0], DType::F32).is_some() => {
                        // Of narrower floats it is that of f32, rounded.
                        Ok(rounded(Epilogue::Call(name.into(), Box::new(self.read(a)?))))
                    }
                    _ => Err(format!("a block calls {name}, which kernels on tensor cores do not fuse")),
                }
            }
            Expr::Var(v) => {
                let dim = self.block.iter_vars.iter().position(|iv| iv.var.id == v.id);
                let dim = dim.ok_or_else(|| format!("a block computes with `{}`", v.name))?;
                let known = self.dims.iter().position(|d| *d == dim);
                let number = known.unwrap_or(self.dims.len());
                if known.is_none() {
                    self.dims.push(dim);
                }
                Ok(Epilogue::Index(number, dtype))
            }
            Expr::Str(_) => Err("a block has a value that is no number".into()),
        }
    }

    /// The type of a value, where kernels on tensor cores compute in it.
    fn computed(&self, expr: &Expr) -> Result<DType, String> {
        match fold::dtype(expr, &self.program.buffers) {
            dtype if float(dtype) || dtype.int_range().is_some() || dtype == DType::Bool => Ok(dtype),
            other => Err(format!("a block computes in {}", other.name())),
        }
    }

    fn load(&self, buffer: BufferId) -> Result<Epilogue, String> {
        let name = &self.program.buffer(buffer).name;
        if name == self.before {
            return Ok(self.made.clone());
        }
        let number = self.reads.iter().position(|read| read.name == *name);
        number.map(Epilogue::Read).ok_or_else(|| format!("`{name}` is not among what is read beside the sums"))
    }
}
