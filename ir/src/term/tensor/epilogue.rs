//! From the elementwise blocks after a product to what the kernels on tensor cores compute of each sum.
use super::GatheredMatrix;
use crate::interp::Scalar;
use crate::term::{Axis, AxisInfo, Beside, Contraction, Dimension, Gathered};
use crate::{fold, interp, semantics, tvmscript, BinOp, BlockRealize, BufferId, DType, Expr, Program, Stmt};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is stored for a sum, an expression in f32; it is then rounded to C's type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Epilogue {
    /// The sum of products.
    #[default]
    Sum,
    /// An element of one of [`super::Gemm::reads`], by number.
    Read(usize),
    /// A constant.
    Number(f64),
    /// `+`, `-`, `*`, `/`, `min`, `max`.
    Binary(BinOp, Box<Epilogue>, Box<Epilogue>),
    /// A function of one argument, see [`interp::intrinsic`].
    Call(String, Box<Epilogue>),
    /// Rounded to a type, and back in f32.
    Rounded(DType, Box<Epilogue>),
}

impl Epilogue {
    /// `a op b`.
    #[must_use]
    pub fn binary(op: BinOp, a: Epilogue, b: Epilogue) -> Epilogue {
        Epilogue::Binary(op, Box::new(a), Box::new(b))
    }

    /// Whether any part of it is so.
    pub fn any(&self, is: &dyn Fn(&Epilogue) -> bool) -> bool {
        is(self)
            || match self {
                Epilogue::Binary(_, a, b) => a.any(is) || b.any(is),
                Epilogue::Call(_, a) | Epilogue::Rounded(_, a) => a.any(is),
                Epilogue::Sum | Epilogue::Read(_) | Epilogue::Number(_) => false,
            }
    }

    /// Its value for a sum and the elements that it reads, as kernels have it: in f32, step by step.
    pub fn of(&self, sum: f64, reads: &[f64]) -> f64 {
        match self {
            Epilogue::Sum => sum,
            Epilogue::Read(number) => reads.get(*number).copied().unwrap_or(f64::NAN),
            Epilogue::Number(x) => Scalar::float(*x, DType::F32).as_f64(),
            Epilogue::Binary(op, a, b) => {
                semantics::floats(*op, DType::F32, a.of(sum, reads), b.of(sum, reads)).unwrap_or(f64::NAN)
            }
            Epilogue::Call(name, a) => interp::intrinsic(name, &[a.of(sum, reads)], DType::F32).unwrap_or(f64::NAN),
            Epilogue::Rounded(dtype, a) => Scalar::float(a.of(sum, reads), *dtype).as_f64(),
        }
    }
}

impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Epilogue::Sum => f.write_str("sum"),
            Epilogue::Read(number) => write!(f, "read {number}"),
            Epilogue::Number(x) => write!(f, "{x}"),
            Epilogue::Binary(BinOp::Add, a, b) => write!(f, "({a} + {b})"),
            Epilogue::Binary(BinOp::Sub, a, b) => write!(f, "({a} - {b})"),
            Epilogue::Binary(BinOp::Mul, a, b) => write!(f, "({a} * {b})"),
            Epilogue::Binary(BinOp::Div, a, b) => write!(f, "({a} / {b})"),
            Epilogue::Binary(BinOp::Min, a, b) => write!(f, "min({a}, {b})"),
            Epilogue::Binary(_, a, b) => write!(f, "max({a}, {b})"),
            Epilogue::Call(name, a) => write!(f, "{name}({a})"),
            Epilogue::Rounded(dtype, a) => write!(f, "{}({a})", dtype.name()),
        }
    }
}

/// Types that kernels on tensor cores round to, and add elements of.
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
        let of = Gathered { name: "bias".into(), iters: vec![0], blocks: Vec::new(), dims: vec![dim] };
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
pub(super) fn read(contraction: &Contraction) -> Result<(Epilogue, Vec<Read>), String> {
    let Some(fused) = &contraction.epilogue else { return Ok((Epilogue::Sum, Vec::new())) };
    let result = contraction.c.dtype;
    for read in &fused.reads {
        if read.dtype != result && !(float(read.dtype) && float(result)) {
            return Err(format!(
                "`{}` has elements of {}, the result of {}",
                read.name,
                read.dtype.name(),
                result.name()
            ));
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
    let mut made = Epilogue::Sum;
    let mut names = fused.between.iter();
    for (number, name) in fused.blocks.iter().enumerate() {
        let (_, value) = stores.iter().find(|(block, _)| block == name).ok_or("a block is missing")?;
        let before = names.next().ok_or("a buffer is missing")?;
        let reader = Reader { program: &program, reads: &fused.reads, before, made: &made };
        let last = number + 1 == fused.blocks.len();
        made = match value {
            Expr::Cast(to, inner) if last && *to == result => reader.read(inner),
            other => reader.read(other),
        }?;
    }
    // It is rounded as it is stored.
    let made = match made {
        Epilogue::Rounded(to, inner) if to == result => *inner,
        other => other,
    };
    Ok((made, reads))
}

fn collect<'p>(realize: &'p BlockRealize, out: &mut Vec<(&'p str, &'p Expr)>) {
    fn below<'p>(name: &'p str, stmt: &'p Stmt, out: &mut Vec<(&'p str, &'p Expr)>) {
        match stmt {
            Stmt::Seq(parts) => parts.iter().for_each(|s| below(name, s, out)),
            Stmt::For(l) => below(name, &l.body, out),
            Stmt::Realize(r) => collect(r, out),
            Stmt::Store { value, .. } => out.push((name, value)),
            _ => {}
        }
    }
    below(&realize.block.name, &realize.block.body, out);
}

struct Reader<'a> {
    program: &'a Program,
    reads: &'a [Beside],
    /// The buffer before it, and what that holds.
    before: &'a str,
    made: &'a Epilogue,
}

impl Reader<'_> {
    fn read(&self, expr: &Expr) -> Result<Epilogue, String> {
        let typed = |e: &Expr| match fold::dtype(e, &self.program.buffers) {
            dtype if float(dtype) => Ok(dtype),
            other => Err(format!("a block computes in {}", other.name())),
        };
        // `+`, `-`, `*` and `/` of narrower floats are those in f32, rounded once more: it has more than twice their digits.
        let rounded = |dtype: DType, made: Epilogue| match dtype {
            DType::F32 => made,
            narrow => Epilogue::Rounded(narrow, Box::new(made)),
        };
        match expr {
            Expr::Load(buffer, _) => self.load(*buffer),
            Expr::Int(value, _) => Ok(Epilogue::Number(*value as f64)),
            Expr::Float(bits, dtype) => Ok(Epilogue::Number(Scalar::float(f64::from_bits(*bits), *dtype).as_f64())),
            Expr::Cast(DType::F32, inner) => self.read(inner),
            Expr::Cast(to, inner) if float(*to) => {
                typed(inner)?;
                Ok(Epilogue::Rounded(*to, Box::new(self.read(inner)?)))
            }
            Expr::Cast(to, _) => Err(format!("a block converts to {}", to.name())),
            Expr::Binary(op @ (BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div | BinOp::Min | BinOp::Max), a, b) => {
                let dtype = typed(expr)?;
                let made = Epilogue::binary(*op, self.read(a)?, self.read(b)?);
                Ok(if matches!(op, BinOp::Min | BinOp::Max) { made } else { rounded(dtype, made) })
            }
            Expr::Call(name, args, _) => {
                if typed(expr)? != DType::F32 {
                    return Err(format!("a block calls {name} on narrower floats than f32"));
                }
                let name = name.rsplit('.').next().unwrap_or(name);
                match &args[..] {
                    [a] if interp::intrinsic(name, &[0.0], DType::F32).is_some() => {
                        Ok(Epilogue::Call(name.into(), Box::new(self.read(a)?)))
                    }
                    _ => Err(format!("a block calls {name}, which kernels on tensor cores do not fuse")),
                }
            }
            _ => Err("a block computes what kernels on tensor cores do not fuse: a choice, or no arithmetic of floats"
                .into()),
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
