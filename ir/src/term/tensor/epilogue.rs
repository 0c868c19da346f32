//! From the elementwise blocks after a product to what the generators of tensor-core kernels fuse.
//!
//! The blocks are put into one expression of the sum. It is brought to a form in which factors and summands have an order of
//! their own, and compared with that of each epilogue that there is. Order and association of sums and products are thus
//! free; they change a result by rounding only.
use super::{Activation, Epilogue};
use crate::term::{Axis, Contraction};
use crate::{tvmscript, BinOp, BlockRealize, BufferId, DType, Expr, Program, Stmt};

/// An expression of the sum, of what else is read, and of constants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// The sum.
    X,
    Bias,
    Residual,
    /// The bits of an f32 constant.
    Constant(u32),
    Sum(Vec<Form>),
    Product(Vec<Form>),
    Max(Vec<Form>),
    Call(String, Vec<Form>),
}

fn constant(value: f64) -> Form {
    Form::Constant((value as f32).to_bits())
}

/// Summands (factors, ...) in one list, in order.
fn join(of: fn(Vec<Form>) -> Form, parts: Vec<Form>) -> Form {
    let mut list = Vec::new();
    for part in parts {
        match (part, of(Vec::new())) {
            (Form::Sum(inner), Form::Sum(_))
            | (Form::Product(inner), Form::Product(_))
            | (Form::Max(inner), Form::Max(_)) => list.extend(inner),
            (part, _) => list.push(part),
        }
    }
    list.sort();
    of(list)
}

/// What the epilogue's blocks compute, if the kernels know it; the reason otherwise.
pub(super) fn recognized(contraction: &Contraction) -> Result<Epilogue, String> {
    let Some(fused) = &contraction.epilogue else { return Ok(Epilogue::default()) };
    let float = |dtype: DType| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    for read in &fused.reads {
        if read.dtype != contraction.c.dtype && !(float(read.dtype) && float(contraction.c.dtype)) {
            return Err(format!(
                "`{}` has elements of {}, the result of {}",
                read.name,
                read.dtype.name(),
                contraction.c.dtype.name()
            ));
        }
    }
    bias(contraction)?;
    residual(contraction)?;
    let program = tvmscript::parse(&fused.script).map_err(|e| e.to_string())?;
    let mut stores = Vec::new();
    collect(&program.body, &mut stores);
    let mut form = Form::X;
    let mut names = fused.between.iter();
    for (number, name) in fused.blocks.iter().enumerate() {
        let (_, value) = stores.iter().find(|(block, _)| block == name).ok_or("a block is missing")?;
        let before = names.next().ok_or("a buffer is missing")?;
        let reader = Reader { program: &program, contraction, before, form: &form };
        let last = number + 1 == fused.blocks.len();
        form = match value {
            Expr::Cast(to, inner) if last && *to == contraction.c.dtype => reader.read(inner),
            other => reader.read(other),
        }?;
    }
    known(&form)
        .ok_or_else(|| "its elementwise blocks are none of the epilogues that kernels on tensor cores fuse".into())
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
    form: &'a Form,
}

impl Reader<'_> {
    fn read(&self, expr: &Expr) -> Result<Form, String> {
        let both = |a: &Expr, b: &Expr| Ok::<_, String>(vec![self.read(a)?, self.read(b)?]);
        match expr {
            Expr::Load(buffer, _) => self.load(*buffer),
            Expr::Int(value, _) => Ok(constant(*value as f64)),
            Expr::Float(bits, _) => Ok(constant(f64::from_bits(*bits))),
            // What is rounded in between is another number.
            Expr::Cast(DType::F32, inner) => self.read(inner),
            Expr::Binary(BinOp::Add, a, b) => Ok(join(Form::Sum, both(a, b)?)),
            Expr::Binary(BinOp::Mul, a, b) => Ok(join(Form::Product, both(a, b)?)),
            Expr::Binary(BinOp::Max, a, b) => Ok(join(Form::Max, both(a, b)?)),
            Expr::Call(name, args, _) => {
                let name = name.rsplit('.').next().unwrap_or(name);
                Ok(Form::Call(name.into(), args.iter().map(|a| self.read(a)).collect::<Result<_, _>>()?))
            }
            Expr::Cast(to, _) => Err(format!("a block rounds to {}", to.name())),
            _ => Err("a block computes what kernels on tensor cores do not fuse".into()),
        }
    }

    fn load(&self, buffer: BufferId) -> Result<Form, String> {
        let name = &self.program.buffer(buffer).name;
        if name == self.before {
            return Ok(self.form.clone());
        }
        let number = |found: Result<Option<usize>, String>| -> Option<&str> {
            let reads = &self.contraction.epilogue.as_ref()?.reads;
            Some(reads.get(found.ok()??)?.name.as_str())
        };
        match name.as_str() {
            n if number(bias(self.contraction)) == Some(n) => Ok(Form::Bias),
            n if number(residual(self.contraction)) == Some(n) => Ok(Form::Residual),
            n => Err(format!("`{n}` is read neither per column nor per result")),
        }
    }
}

/// The epilogue of a form: each that there is with the form's constants is tried.
fn known(form: &Form) -> Option<Epilogue> {
    let mut constants = vec![1.0_f64];
    let (mut has_bias, mut has_residual) = (false, false);
    walk(form, &mut |part| match part {
        Form::Constant(bits) => constants.push(f32::from_bits(*bits).into()),
        Form::Bias => has_bias = true,
        Form::Residual => has_residual = true,
        _ => {}
    });
    for alpha in constants.iter().copied() {
        for activation in [Activation::None, Activation::Relu, Activation::Gelu, Activation::Silu] {
            for factor in constants.iter().copied() {
                let residual = has_residual.then_some(factor);
                let epilogue = Epilogue { alpha, bias: has_bias, activation, residual };
                if template(&epilogue) == *form {
                    return Some(epilogue);
                }
                if residual.is_none() {
                    break;
                }
            }
        }
    }
    None
}

fn walk(form: &Form, see: &mut impl FnMut(&Form)) {
    see(form);
    match form {
        Form::Sum(parts) | Form::Product(parts) | Form::Max(parts) | Form::Call(_, parts) => {
            parts.iter().for_each(|p| walk(p, see));
        }
        _ => {}
    }
}

/// The form of an epilogue.
fn template(epilogue: &Epilogue) -> Form {
    let scaled = |form: Form, factor: f64| match factor {
        1.0 => form,
        factor => join(Form::Product, vec![form, constant(factor)]),
    };
    let mut y = scaled(Form::X, epilogue.alpha);
    if epilogue.bias {
        y = join(Form::Sum, vec![y, Form::Bias]);
    }
    let call = |name: &str, form: Form| Form::Call(name.into(), vec![form]);
    let mut value = match epilogue.activation {
        Activation::None => y,
        Activation::Relu => join(Form::Max, vec![y, constant(0.0)]),
        Activation::Silu => join(Form::Product, vec![y.clone(), call("sigmoid", y)]),
        Activation::Gelu => {
            let cube = join(Form::Product, vec![y.clone(), y.clone(), y.clone(), constant(0.044715)]);
            let inner = join(Form::Sum, vec![y.clone(), cube]);
            let scaled = join(Form::Product, vec![inner, constant(std::f64::consts::FRAC_2_PI.sqrt())]);
            let bent = join(Form::Sum, vec![call("tanh", scaled), constant(1.0)]);
            join(Form::Product, vec![y, constant(0.5), bent])
        }
    };
    if let Some(factor) = epilogue.residual {
        value = join(Form::Sum, vec![value, scaled(Form::Residual, factor)]);
    }
    value
}
