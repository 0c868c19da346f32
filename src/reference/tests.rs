//! The interpreter's reference, and the plain kernels, which must mean the same.
use super::*;
use crate::scheduled::{simulate_module, Held};
use satune_ir::{DType, Expr};

#[test]
fn the_same_question_gets_the_same_answer_and_another_one_its_own() {
    let of = |name: &str, seed| {
        let problem = crate::operators::parse(name).unwrap();
        Reference::of(&problem.program, seed, &|| true).unwrap()
    };
    let first = of("gemm:3,4,5,f32", 1);
    assert!(Arc::ptr_eq(&first, &of("gemm:3,4,5,f32", 1)));
    assert_ne!(first.inputs, of("gemm:3,4,5,f32", 2).inputs);
    assert_ne!(first.expected[2].to_f64().len(), of("gemm:4,4,5,f32", 1).expected[2].to_f64().len());
    for k in 1..=KEPT as i64 {
        of(&format!("gemm:2,2,{k},f32"), 1);
    }
    // Forgotten, and made again.
    let again = of("gemm:3,4,5,f32", 1);
    assert_eq!(again.expected, first.expected);
}

/// Numbers of a type, most of them with all their digits.
fn numbers(dtype: DType, count: usize, seed: &mut u64) -> Vec<f64> {
    let mut next = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
    };
    let number = |x: f64| match dtype.int_range() {
        Some((least, most)) => (x * 128.0).floor().clamp(least as f64, most as f64),
        None => interp::Scalar::float(x, dtype).as_f64(),
    };
    (0..count).map(|_| number(next())).collect()
}

/// The plain kernels of a program, simulated, against the interpreter on the program in double precision.
fn agrees(script: &str, name: &str) {
    let program = tvmscript::parse(script).unwrap();
    let plain = Plain::of(&program).unwrap_or_else(|e| panic!("{name}: {e}"));
    let wide = interp::in_double(&program);
    let mut seed = 7;
    let mut inputs: Vec<Array> = Vec::new();
    for ((given, held), written) in program.params.iter().zip(&wide.params).zip(&plain.written) {
        let (from, to) = (program.buffer(*given).dtype, wide.buffer(*held));
        let of = |e: &Expr| if let Expr::Int(n, _) = e { *n } else { panic!("{name}: a shape") };
        let shape: Vec<i64> = to.shape.iter().map(of).collect();
        let count = shape.iter().product::<i64>() as usize;
        inputs.push(match written {
            true => Array::unwritten(to.dtype, &shape).unwrap(),
            false => Array::from_f64(to.dtype, &shape, &numbers(from, count, &mut seed)).unwrap(),
        });
    }
    let expected: Vec<Vec<f64>> = interp::run(&wide, &inputs).unwrap().iter().map(Array::to_f64).collect();
    assert!(expected.iter().flatten().any(|x| x.fract() != 0.0 || x.abs() > 1.0), "{name}: nothing to compare");
    let given = inputs.iter().map(Held::from).collect();
    let expected: Vec<Held> = expected.into_iter().map(Held::floats).collect();
    let ran = simulate_module(&plain.module, given, &expected, (false, &|| true), |_, want, got| {
        (want - got).abs() <= 1e-12 * want.abs().max(1.0) || want == got
    });
    ran.unwrap_or_else(|e| panic!("{name}: {e}"));
}

#[test]
fn plain_kernels_of_operators_are_the_interpreter_in_double_precision() {
    for name in [
        "gemm:5,7,9,f32",
        "gemm:20,30,3,f32,NT",
        "gemm:9,8,7,f64,TN",
        "gemm:9,8,17,f16,TT",
        "gemm:9,8,17,bf16",
        "gemm:9,8,17,i8,NT",
        "gemm:9,8,17,e4m3,NT",
        "gemm:9,8,17,e5m2,NT",
        "gemm:9,8,17,tf32,NT",
        "gemm:9,8,17,bf16,NT,out=bf16,alpha=0.5,bias,gelu,residual",
        "gemm:9,8,17,f16,out=f16",
        "gemm:9,8,17,f32,bias,silu",
        "gemm_bias_relu:17,33,5,f32",
        "bmm:3,5,4,6,f32,TN",
        "conv2d:2,6,5,3,4,3,3,f32,stride=2,pad=1",
        "conv1d:2,9,3,4,3,f16,dilation=2",
        "rowsum:5,300,f16",
        "mean:300,5,f32",
        "softmax:7,40,f32",
        "softmax:3,40,f16",
        "transpose:17,20,f32",
        "gemv:6,50,f32",
        "gemv:6,50,f16",
        "relu_chain:7,50,f16",
        "layernorm:5,40,f32",
        "rmsnorm:5,40,bf16",
    ] {
        let problem = crate::source::load_work(name).unwrap();
        agrees(problem.workload().script(), name);
    }
}

/// A program of so many parameters, between the usual lines.
fn text(params: &str, body: &str) -> String {
    format!("from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main({params}):\n    T.func_attr({{\"tirx.noalias\": True}})\n{body}")
}

#[test]
fn plain_kernels_of_any_program_are_the_interpreter_in_double_precision() {
    let convolution = text(
        "X: T.Buffer((2, 6, 5, 3), \"float16\"), W: T.Buffer((3, 3, 3, 4), \"float16\"), Y: T.Buffer((2, 3, 3, 4), \"float32\")",
        r#"    P = T.sblock_alloc_buffer((2, 8, 7, 3), "float16")
    for n, h, w, c in T.grid(2, 8, 7, 3):
        with T.sblock("pad"):
            vn, vh, vw, vc = T.axis.remap("SSSS", [n, h, w, c])
            P[vn, vh, vw, vc] = T.if_then_else(1 <= vh and vh < 7 and 1 <= vw and vw < 6, X[vn, vh - 1, vw - 1, vc], T.float16(0))
    for n, h, w, o, kh, kw, c in T.grid(2, 3, 3, 4, 3, 3, 3):
        with T.sblock("conv"):
            vn, vh, vw, vo, vkh, vkw, vc = T.axis.remap("SSSSRRR", [n, h, w, o, kh, kw, c])
            with T.init():
                Y[vn, vh, vw, vo] = T.float32(0)
            Y[vn, vh, vw, vo] = Y[vn, vh, vw, vo] + T.Cast("float32", P[vn, vh * 2 + vkh, vw * 2 + vkw, vc]) * T.Cast("float32", W[vkh, vkw, vc, vo])
"#,
    );
    agrees(&convolution, "a convolution");
    // Nothing is spatial in the last block, the first reduces its outer loop, and the largest of all is a result, too.
    let whole = text(
        "A: T.Buffer((40, 8), \"float32\"), S: T.Buffer((1,), \"float32\"), L: T.Buffer((8,), \"float32\")",
        r#"    C = T.sblock_alloc_buffer((8,), "float32")
    for i, j in T.grid(40, 8):
        with T.sblock("columns"):
            vj = T.axis.spatial(8, j)
            vi = T.axis.reduce(40, i)
            with T.init():
                C[vj] = T.float32(0)
            C[vj] = C[vj] + A[vi, vj] * A[vi, vj]
    for i, j in T.grid(40, 8):
        with T.sblock("largest"):
            vj = T.axis.spatial(8, j)
            vi = T.axis.reduce(40, i)
            with T.init():
                L[vj] = T.min_value("float32")
            L[vj] = T.max(L[vj], A[vi, vj])
    for j in range(8):
        with T.sblock("sum"):
            vj = T.axis.reduce(8, j)
            with T.init():
                S[0] = T.float32(0)
            S[0] = S[0] + T.sqrt(C[vj])
"#,
    );
    agrees(&whole, "a sum of all");
    let parts = text(
        "A: T.Buffer((3, 64), \"float32\"), S: T.Buffer((3,), \"float32\")",
        r#"    P = T.sblock_alloc_buffer((3, 4), "float32")
    for i, p, k in T.grid(3, 4, 16):
        with T.sblock("part"):
            vi, vp, vk = T.axis.remap("SSR", [i, p, k])
            with T.init():
                P[vi, vp] = T.float32(0)
            P[vi, vp] = P[vi, vp] + A[vi, vp * 16 + vk]
    for i, p in T.grid(3, 4):
        with T.sblock("sum"):
            vi, vp = T.axis.remap("SR", [i, p])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + P[vi, vp]
"#,
    );
    agrees(&parts, "sums in parts");
}

#[test]
fn what_has_no_reference_is_refused_by_name() {
    let in_place = text(
        "A: T.Buffer((8,), \"float32\"), B: T.Buffer((8,), \"float32\")",
        "    for i in range(8):\n        with T.sblock(\"add\"):\n            vi = T.axis.spatial(8, i)\n            B[vi] = B[vi] + A[vi]\n",
    );
    let error = Plain::of(&tvmscript::parse(&in_place).unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("the program reads B before it writes it"), "{error}");
}
