//! From the elementwise blocks after a product to what the kernels on tensor cores compute of each sum.
use crate::interp::Scalar;
use crate::term::{Axis, Contraction};
use crate::{fold, interp, semantics, tvmscript, BinOp, BlockRealize, BufferId, DType, Expr, Program, Stmt};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is stored for a sum, an expression in f32; it is then rounded to C's type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Epilogue {
    /// The sum of products.
    #[default]
    Sum,
    /// One number per column; per row, where the product is [`super::Gemm::swapped`].
    Bias,
    /// An element of a matrix like C.
    Residual,
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
                Epilogue::Sum | Epilogue::Bias | Epilogue::Residual | Epilogue::Number(_) => false,
            }
    }

    /// Whether a number per column is read.
    pub fn reads_bias(&self) -> bool {
        self.any(&|part| *part == Epilogue::Bias)
    }

    /// Whether a matrix like C is read.
    pub fn reads_residual(&self) -> bool {
        self.any(&|part| *part == Epilogue::Residual)
    }

    /// Its value for a sum, a number of the column and an element of the matrix, as kernels have it: in f32, step by step.
    pub fn of(&self, given: [f64; 3]) -> f64 {
        match self {
            Epilogue::Sum => given[0],
            Epilogue::Bias => given[1],
            Epilogue::Residual => given[2],
            Epilogue::Number(x) => Scalar::float(*x, DType::F32).as_f64(),
            Epilogue::Binary(op, a, b) => {
                semantics::floats(*op, DType::F32, a.of(given), b.of(given)).unwrap_or(f64::NAN)
            }
            Epilogue::Call(name, a) => interp::intrinsic(name, &[a.of(given)], DType::F32).unwrap_or(f64::NAN),
            Epilogue::Rounded(dtype, a) => Scalar::float(a.of(given), *dtype).as_f64(),
        }
    }
}

impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Epilogue::Sum => f.write_str("sum"),
            Epilogue::Bias => f.write_str("bias"),
            Epilogue::Residual => f.write_str("residual"),
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

/// What the epilogue's blocks compute; the reason where kernels on tensor cores do not.
pub(super) fn read(contraction: &Contraction) -> Result<Epilogue, String> {
    let Some(fused) = &contraction.epilogue else { return Ok(Epilogue::Sum) };
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
    bias(contraction)?;
    residual(contraction)?;
    let program = tvmscript::parse(&fused.script).map_err(|e| e.to_string())?;
    let mut stores = Vec::new();
    collect(&program.body, &mut stores);
    let mut made = Epilogue::Sum;
    let mut names = fused.between.iter();
    for (number, name) in fused.blocks.iter().enumerate() {
        let (_, value) = stores.iter().find(|(block, _)| block == name).ok_or("a block is missing")?;
        let before = names.next().ok_or("a buffer is missing")?;
        let reader = Reader { program: &program, contraction, before, made: &made };
        let last = number + 1 == fused.blocks.len();
        made = match value {
            Expr::Cast(to, inner) if last && *to == result => reader.read(inner),
            other => reader.read(other),
        }?;
    }
    Ok(made)
}

/// The operand that is added per column.
pub(super) fn bias(contraction: &Contraction) -> Result<Option<usize>, String> {
    of_dims(contraction, &[Axis::N])
}

/// The operand that is added per result.
pub(super) fn residual(contraction: &Contraction) -> Result<Option<usize>, String> {
    of_dims(contraction, &contraction.c.dims)
}

fn of_dims(contraction: &Contraction, dims: &[Axis]) -> Result<Option<usize>, String> {
    let Some(fused) = &contraction.epilogue else { return Ok(None) };
    let mut found = None;
    for (number, read) in fused.reads.iter().enumerate().filter(|(_, r)| r.dims == dims) {
        match found {
            Some(other) if fused.reads.get::<usize>(other).is_some_and(|o| o.name != read.name) => {
                return Err(format!("`{}` is read beside another buffer of its shape", read.name));
            }
            Some(_) => {}
            None => found = Some(number),
        }
    }
    Ok(found)
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
    contraction: &'a Contraction,
    /// The buffer before it, and what that holds.
    before: &'a str,
    made: &'a Epilogue,
}

impl Reader<'_> {
    fn read(&self, expr: &Expr) -> Result<Epilogue, String> {
        let typed = |e: &Expr| match fold::dtype(e, &self.program.buffers) {
            DType::F32 => Ok(()),
            other => Err(format!("a block computes in {}", other.name())),
        };
        match expr {
            Expr::Load(buffer, _) => self.load(*buffer),
            Expr::Int(value, _) => Ok(Epilogue::Number(*value as f64)),
            Expr::Float(bits, _) => Ok(Epilogue::Number(f64::from_bits(*bits))),
            Expr::Cast(DType::F32, inner) => self.read(inner),
            Expr::Cast(to, inner) if float(*to) => {
                typed(inner)?;
                Ok(Epilogue::Rounded(*to, Box::new(self.read(inner)?)))
            }
            Expr::Cast(to, _) => Err(format!("a block converts to {}", to.name())),
            Expr::Binary(op @ (BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::Div | BinOp::Min | BinOp::Max), a, b) => {
                typed(expr)?;
                Ok(Epilogue::binary(*op, self.read(a)?, self.read(b)?))
            }
            Expr::Call(name, args, _) => {
                typed(expr)?;
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
        let number = |found: Result<Option<usize>, String>| -> Option<&str> {
            let reads = &self.contraction.epilogue.as_ref()?.reads;
            Some(reads.get(found.ok()??)?.name.as_str())
        };
        match name.as_str() {
            n if number(bias(self.contraction)) == Some(n) => Ok(Epilogue::Bias),
            n if number(residual(self.contraction)) == Some(n) => Ok(Epilogue::Residual),
            n => Err(format!("`{n}` is read neither per column nor per result")),
        }
    }
}
