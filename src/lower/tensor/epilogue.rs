//! What is done with the sums before they are stored, and the kernel that adds the parts of split-K.
use super::{c, guarded, thread, Activation, Builder, Cond, Epilogue, Gemm, Operand, Params};
use crate::kernel::{Arith, ArrayId, Dim, Index, Kernel, Space, Stmt, Unroll, Value};
use crate::lower::index::{add, mul};
use satune_ir::DType;

/// The value stored for a sum at a place of C. The sums of split-K are stored as they are (`split`).
pub(super) fn value(gemm: &Gemm, params: &Params, split: bool, sum: Value, row: &Index, column: &Index) -> Value {
    if split {
        return sum;
    }
    let epilogue = &gemm.epilogue;
    let place = add(mul(row.clone(), gemm.n), column.clone());
    let f = DType::F32;
    let binary = |op, a, b| Value::Binary(op, f, Box::new(a), Box::new(b));
    let float = |v: f64| Value::Float(v, f);
    let mut x = sum;
    let is_plain = *epilogue == Epilogue::default();
    if gemm.accumulator() != f && !is_plain {
        x = Value::Cast(f, Box::new(x));
    }
    if epilogue.alpha != 1.0 {
        x = binary(Arith::Mul, x, float(epilogue.alpha));
    }
    if let Some(bias) = params.bias {
        x = binary(Arith::Add, x, Value::Cast(f, Box::new(Value::Load(bias, column.clone()))));
    }
    let unary = |name: &str, a: Value| Value::Unary(name.into(), f, Box::new(a));
    x = match epilogue.activation {
        Activation::None => x,
        Activation::Relu => binary(Arith::Max, x, float(0.0)),
        Activation::Silu => binary(Arith::Mul, x.clone(), unary("sigmoid", x)),
        Activation::Gelu => {
            let cube = binary(Arith::Mul, binary(Arith::Mul, x.clone(), x.clone()), x.clone());
            let inner = binary(Arith::Add, x.clone(), binary(Arith::Mul, cube, float(0.044715)));
            let bent = unary("tanh", binary(Arith::Mul, inner, float(std::f64::consts::FRAC_2_PI.sqrt())));
            let half = binary(Arith::Mul, x, float(0.5));
            binary(Arith::Mul, half, binary(Arith::Add, bent, float(1.0)))
        }
    };
    if let (Some(residual), Some(factor)) = (params.residual, epilogue.residual) {
        let other = Value::Cast(f, Box::new(Value::Load(residual, place)));
        let other = if factor == 1.0 { other } else { binary(Arith::Mul, other, float(factor)) };
        x = binary(Arith::Add, x, other);
    }
    if gemm.output == f && (gemm.accumulator() == f || !is_plain) {
        return x;
    }
    Value::Cast(gemm.output, Box::new(x))
}

/// Adds the parts of each result: one thread per result.
pub(super) fn sum_kernel(gemm: &Gemm, parts: i64) -> (Kernel, Vec<Operand>) {
    let mut builder = Builder::new();
    let results = gemm.m * gemm.n;
    let dtype = gemm.accumulator();
    let partial = builder.array("partial", dtype, results * parts, Space::Global, 16);
    let mut operands = vec![Operand::Workspace];
    let (bias, residual) = builder.epilogue_params(gemm, &mut operands);
    let out = builder.array("C", gemm.output, results, Space::Global, 16);
    builder.arrays[out.0 as usize].written = true;
    operands.push(Operand::C);
    let params = Params { a: ArrayId(0), b: ArrayId(0), bias, residual, out, operands };
    let sum = builder.array("sum", dtype, 1, Space::Register, 16);
    let mut body = Vec::new();
    let i = builder.bind(&mut body, "i", add(mul(Index::BlockIdx(Dim::X), 256), thread()));
    let zero = if dtype == DType::I32 { Value::Int(0, dtype) } else { Value::Float(0.0, dtype) };
    let mut then = vec![Stmt::Store { array: sum, index: c(0), value: zero }];
    then.extend(builder.repeat("part", (0, parts), Unroll::By(4), |_, part| {
        let load = Value::Load(partial, add(mul(part, results), i.clone()));
        let value = Value::Binary(Arith::Add, dtype, Box::new(Value::Load(sum, c(0))), Box::new(load));
        vec![Stmt::Store { array: sum, index: c(0), value }]
    }));
    let row = Index::Div(Box::new(i.clone()), Box::new(c(gemm.n)));
    let column = Index::Mod(Box::new(i.clone()), Box::new(c(gemm.n)));
    let value = value(gemm, &params, false, Value::Load(sum, c(0)), &row, &column);
    then.push(Stmt::Store { array: out, index: i.clone(), value });
    body.extend(guarded(Cond::Lt(i, c(results)), then));
    let kernel = Kernel {
        name: format!("{}_sum", gemm.name),
        notes: vec![format!("adds the {parts} partial sums of each result")],
        arrays: builder.arrays,
        grid: [(results as u64).div_ceil(256) as u32, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        min_blocks_per_sm: None,
        cluster: 1,
        tensor_maps: vec![],
        body,
    };
    (kernel, params.operands)
}
