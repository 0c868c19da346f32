//! A program over the reals, as nearly as a machine has them: the same program with every float in `f64`.
//!
//! In their own types, two orders of a sum of rounded values differ by as much as a small error of the program would.
//! In `f64` they agree to some 1e-13, so that what differs by more is another program, not another order.
use crate::semantics::round;
use crate::{fold, visit, BlockRealize, Buffer, DType, Expr, Program, Stmt};
use std::sync::Arc;

/// The type in which a value of a type is held: `f64` for all floats.
pub fn doubled(dtype: DType) -> DType {
    if dtype.is_float() {
        DType::F64
    } else {
        dtype
    }
}

/// The program with all its buffers, operations and conversions of floats in `f64`. Constants keep the value that their
/// type gives them.
pub fn in_double(program: &Program) -> Program {
    let mut out = program.clone();
    out.buffers.iter_mut().for_each(|b| b.dtype = doubled(b.dtype));
    out.body = visit::map_realize_exprs(&program.body, &mut |e| expression(e, &program.buffers));
    bound_values(&mut out.body);
    out
}

fn expression(e: &Expr, buffers: &[Buffer]) -> Expr {
    if let Expr::Call(name, args, to) = e {
        if let ("reinterpret", [of]) = (name.as_ref(), &args[..]) {
            // Bits are those that the value has in its own type.
            let (from, of) = (fold::dtype(of, buffers), expression(of, buffers));
            let of = if from.is_float() { Expr::Cast(from, Arc::new(of)) } else { of };
            let bits = Expr::Call(name.clone(), vec![of], *to);
            return if to.is_float() { Expr::Cast(DType::F64, Arc::new(bits)) } else { bits };
        }
    }
    match visit::map_children(e, &mut |e| expression(e, buffers)) {
        Expr::Int(v, t) if t.is_float() => Expr::Float(round(v as f64, t).to_bits(), DType::F64),
        Expr::Float(bits, t) => Expr::Float(round(f64::from_bits(bits), t).to_bits(), DType::F64),
        Expr::Cast(t, a) => Expr::Cast(doubled(t), a),
        Expr::Call(name, args, t) => Expr::Call(name, args, doubled(t)),
        Expr::Var(mut v) => {
            v.dtype = doubled(v.dtype);
            Expr::Var(v)
        }
        other => other,
    }
}

/// The variables of `Let`.
fn bound_values(r: &mut BlockRealize) {
    let mut todo: Vec<&mut Stmt> = vec![&mut r.block.body];
    todo.extend(r.block.init.as_deref_mut());
    while let Some(stmt) = todo.pop() {
        match stmt {
            Stmt::For(l) => todo.push(&mut l.body),
            Stmt::Realize(r) => {
                todo.push(&mut r.block.body);
                todo.extend(r.block.init.as_deref_mut());
            }
            Stmt::Seq(parts) => todo.extend(parts),
            Stmt::If { then, otherwise, .. } => {
                todo.push(then);
                todo.extend(otherwise.as_deref_mut());
            }
            Stmt::Let { var, body, .. } => {
                var.dtype = doubled(var.dtype);
                todo.push(body);
            }
            Stmt::Store { .. } | Stmt::Evaluate(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interp::{run, Array};

    #[test]
    fn bits_are_those_of_the_types_of_the_program() {
        let text = r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((1,), "float16"), B: T.Buffer((1,), "uint16"), C: T.Buffer((1,), "float32")):
    for i in range(1):
        with T.sblock("B"):
            vi = T.axis.spatial(1, i)
            B[vi] = T.reinterpret("uint16", A[vi] * T.float16(2))
    for i in range(1):
        with T.sblock("C"):
            vi = T.axis.spatial(1, i)
            C[vi] = T.reinterpret("float32", T.Cast("int32", B[vi]) * 32768) + T.float32(1)
"#;
        let program = crate::tvmscript::parse(text).unwrap();
        let inputs = [
            Array::from_f64(DType::F64, &[1], &[1.0]).unwrap(),
            Array::from_i64(DType::U16, &[1], &[0]).unwrap(),
            Array::from_f64(DType::F64, &[1], &[0.0]).unwrap(),
        ];
        let out = run(&in_double(&program), &inputs).unwrap();
        assert_eq!(out[1].get(0).unwrap().as_i64(), 0x4000);
        let of_bits = f64::from(f32::from_bits(0x4000 * 32768));
        assert_eq!(out[2].get(0).unwrap().as_f64(), of_bits + 1.0);
    }

    #[test]
    fn nothing_is_rounded_but_constants() {
        let text = r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((1,), "float32"), B: T.Buffer((1,), "float16")):
    for i in range(1):
        with T.sblock("B"):
            vi = T.axis.spatial(1, i)
            with T.LetStmt(A[vi] / T.float32(3)) as x:
                B[vi] = T.Cast("float16", x + T.float32(0.1))
"#;
        let program = in_double(&crate::tvmscript::parse(text).unwrap());
        let inputs = [Array::from_f64(DType::F64, &[1], &[1.0]).unwrap(), Array::unwritten(DType::F64, &[1]).unwrap()];
        assert_eq!(run(&program, &inputs).unwrap()[1].to_f64(), [1.0 / 3.0 + f64::from(0.1f32)]);
    }
}
