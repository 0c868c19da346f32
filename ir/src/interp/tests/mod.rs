//! What programs do.
mod build;

use super::*;
use crate::{BinOp, DType, Expr, ForKind, Stmt, Var};
use build::*;
use std::sync::Arc;

/// `B[i] = value(i)` for the indices below `extent`, B of 8 elements, A of 8 too; and the program's faults.
fn pointwise(extent: i64, dtype: DType, value: impl Fn(BufferId, &Var) -> Expr) -> Program {
    let mut p = Build::new();
    let (a, b) = (p.param("A", dtype, &[8]), p.param("B", dtype, &[8]));
    let (i, v) = (p.var("i"), p.var("v"));
    let mut r = p.block("B", &[(&v, extent, S, var(&i))], store(b, &[var(&v)], value(a, &v)));
    r.block.reads = vec![region(a, &[(var(&v), 1)])];
    r.block.writes = vec![region(b, &[(var(&v), 1)])];
    p.done(looped(&i, extent, block(r)))
}

/// The second array after running on the first, which holds `inputs`.
fn results(p: &Program, inputs: &[f64]) -> Result<Vec<f64>, Fault> {
    let dtype = p.buffer(p.params[0]).dtype;
    let a = Array::from_f64(dtype, &[8], inputs)?;
    let b = Array::unwritten(p.buffer(p.params[1]).dtype, &[8])?;
    Ok(run_checked(p, &[a, b])?[1].to_f64())
}

const COUNT: [f64; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

/// C = A B of the sizes; `k` split by 4 where `split`, the loops reordered and bound.
fn matmul(m: i64, n: i64, k: i64, split: bool, dtype: DType) -> Program {
    let mut p = Build::new();
    let (a, b) = (p.param("A", dtype, &[m, k]), p.param("B", dtype, &[k, n]));
    let c = p.param("C", dtype, &[m, n]);
    let names = ["i", "j", "ko", "ki", "vi", "vj", "vk"].map(|name| p.var(name));
    let [i, j, ko, ki, vi, vj, vk] = &names;
    let out = [var(vi), var(vj)];
    let product = mul(load(a, &[var(vi), var(vk)]), load(b, &[var(vk), var(vj)]));
    let update = store(c, &out, add(load(c, &out), product));
    let vk_value = if split { add(mul(var(ko), int(4)), var(ki)) } else { var(ki) };
    let mut r = p.block("C", &[(vi, m, S, var(i)), (vj, n, S, var(j)), (vk, k, R, vk_value)], update);
    r.block.init = Some(Box::new(store(c, &out, Expr::Float(0, dtype))));
    r.block.reads = vec![region(a, &[(var(vi), 1), (var(vk), 1)]), region(b, &[(var(vk), 1), (var(vj), 1)])];
    r.block.writes = vec![region(c, &[(var(vi), 1), (var(vj), 1)])];
    if split {
        r.predicate = bin(BinOp::Lt, add(mul(var(ko), int(4)), var(ki)), int(k));
        let inner = looped(ki, 4, bound(j, n, ForKind::ThreadBinding("threadIdx.x".into()), block(r)));
        let body = bound(i, m, ForKind::ThreadBinding("blockIdx.x".into()), looped(ko, (k + 3) / 4, inner));
        return p.done(body);
    }
    let body = looped(i, m, looped(j, n, looped(ki, k, block(r))));
    p.done(body)
}

/// Regions that are checked keep a loop from running many iterations at a time.
#[test]
fn many_iterations_at_a_time_are_one_by_one() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::I32, DType::I8, DType::U8] {
        let p = matmul(3, 5, 200, false, dtype);
        let mut inputs = random_inputs(&p, 7).unwrap();
        let both = |inputs: &[Array], max_steps| {
            [false, true].map(|check_regions| {
                let options = Options { max_steps, check_regions, ..Options::default() };
                run_with(&p, inputs, &options).map(|out| out[2].iter().collect::<Vec<_>>())
            })
        };
        let [many, single] = both(&inputs, u64::MAX);
        assert!(single.is_ok() && many == single, "{dtype:?}");
        for limit in [0, 5, 400, 601, 3 * 64 + 9, 5000, 9045, 9046, 9047] {
            let [many, single] = both(&inputs, limit);
            assert_eq!(many, single, "{dtype:?} {limit}");
        }
        let mut missing = Array::unwritten(dtype, &[3, 200]).unwrap();
        for (at, value) in inputs[0].iter().enumerate().filter(|(at, _)| *at != 200 + 137) {
            missing.set(at, value.unwrap());
        }
        inputs[0] = missing;
        let [many, single] = both(&inputs, u64::MAX);
        assert!(matches!(single, Err(Fault::Unwritten { .. })) && many == single, "{dtype:?}");
    }
    // What is beyond an array's end is found at the iteration that is, and what maps leave is the same.
    for (extent, value) in [(8, 0), (40, 0), (40, 1)] {
        let mut p = Build::new();
        let (a, b) = (p.param("A", DType::F32, &[40]), p.param("B", DType::F32, &[20]));
        let (i, v) = (p.var("i"), p.var("v"));
        let twice = add(load(a, &[var(&v)]), load(a, &[add(mul(var(&v), int(-1)), int(39))]));
        let value = if value == 0 { twice } else { load(a, &[add(var(&v), int(1))]) };
        let r = p.block("B", &[(&v, extent, S, var(&i))], store(b, &[var(&v)], value));
        let p = p.done(looped(&i, extent, block(r)));
        let inputs: Vec<f64> = (0..40).map(f64::from).collect();
        let arrays =
            [Array::from_f64(DType::F32, &[40], &inputs).unwrap(), Array::unwritten(DType::F32, &[20]).unwrap()];
        let found = run(&p, &arrays).map(|out| out[1].iter().flatten().map(Scalar::as_f64).collect::<Vec<_>>());
        match extent {
            8 => assert_eq!(found.unwrap(), [39.0; 8]),
            _ => assert!(matches!(found, Err(Fault::OutOfBounds { index, .. }) if index == [20])),
        }
    }
}

#[test]
fn matmul_is_three_loops() {
    let (m, n, k) = (5, 7, 6);
    let p = matmul(m, n, k, false, DType::F32);
    let inputs = random_inputs(&p, 1).unwrap();
    assert!(inputs[2].iter().all(|e| e.is_none()), "an output that is written first starts unwritten");
    let out = run_checked(&p, &inputs).unwrap();
    for i in 0..m {
        for j in 0..n {
            let mut sum = 0.0;
            for l in 0..k {
                sum += inputs[0].at(&[i, l]).unwrap().as_f64() * inputs[1].at(&[l, j]).unwrap().as_f64();
            }
            assert_eq!(out[2].at(&[i, j]).unwrap().as_f64(), sum);
        }
    }
    assert_eq!(out[0], inputs[0]);
}

#[test]
fn random_inputs_are_small_integers_that_differ_by_seed() {
    let p = matmul(5, 7, 6, false, DType::F16);
    let [x, y] = [1, 2].map(|seed| random_inputs(&p, seed).unwrap());
    assert_ne!(x[0], y[0]);
    assert_eq!(x, random_inputs(&p, 1).unwrap());
    let values = x[0].to_f64();
    assert!(values.iter().all(|v| v.fract() == 0.0 && v.abs() <= 3.0) && values.contains(&-3.0));
}

#[test]
fn schedules_of_a_product_are_equal_and_others_are_not() {
    for dtype in [DType::F16, DType::F32] {
        let source = matmul(5, 7, 6, false, dtype);
        assert_eq!(equal_on(&source, &matmul(5, 7, 6, true, dtype), 3), Ok(()));
    }
    let source = matmul(5, 7, 6, false, DType::F32);
    let mut wrong = matmul(5, 7, 6, true, DType::F32);
    // The tail of k is dropped.
    let Stmt::For(i) = wrong.body.block.body.as_mut() else { panic!() };
    let Stmt::For(ko) = i.body.as_mut() else { panic!() };
    ko.extent = int(1);
    let error = equal_on(&source, &wrong, 3).unwrap_err();
    assert!(matches!(error, Difference::Value { .. }));
    let text = error.to_string();
    assert!(text.starts_with("C[0, 0] is ") && text.contains("of 35 elements of C"), "{text}");
    // Nothing is left in C where no row is computed.
    let Stmt::For(i) = wrong.body.block.body.as_mut() else { panic!() };
    i.extent = int(4);
    let Stmt::For(ko) = i.body.as_mut() else { panic!() };
    ko.extent = int(2);
    let error = equal_on(&source, &wrong, 3).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("C[4, 0] is") && text.contains("unwritten after the second; so differ 7 of 35"), "{text}");
    let signature = equal_on(&source, &matmul(5, 7, 8, false, DType::F32), 3).unwrap_err();
    assert_eq!(
        signature.to_string(),
        "the parameters differ: number 1, A, is float32[5, 6] in the first program and float32[5, 8] in the second"
    );
}

#[test]
fn a_reduction_in_which_init_comes_late_is_wrong() {
    // The loop of k outermost is right; running it backwards runs init last.
    let source = matmul(3, 3, 4, false, DType::F32);
    let mut backwards = source.clone();
    let Stmt::For(i) = backwards.body.block.body.as_mut() else { panic!() };
    let Stmt::For(j) = i.body.as_mut() else { panic!() };
    let Stmt::For(k) = j.body.as_mut() else { panic!() };
    let var_k = var(&k.var);
    let Stmt::Realize(r) = k.body.as_mut() else { panic!() };
    r.iter_values[2] = bin(BinOp::Sub, int(3), var_k);
    let error = equal_on(&source, &backwards, 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the second program: block \"C\" at vi = 0, vj = 0, vk = 3: C[0, 0] is read, but nothing has written it"
    );
}

#[test]
fn predicates_skip_instances_before_their_iterators_count() {
    let mut p = Build::new();
    let (a, b) = (p.param("A", DType::F32, &[8]), p.param("B", DType::F32, &[8]));
    let (i, v) = (p.var("i"), p.var("v"));
    let mut r = p.block("B", &[(&v, 6, S, var(&i))], store(b, &[var(&v)], load(a, &[var(&v)])));
    r.predicate = bin(BinOp::Lt, var(&i), int(6));
    let mut program = p.done(looped(&i, 8, block(r)));
    let mut expected = COUNT.to_vec();
    let inputs = [Array::from_f64(DType::F32, &[8], &COUNT).unwrap(), Array::unwritten(DType::F32, &[8]).unwrap()];
    let out = run(&program, &inputs).unwrap();
    expected.truncate(6);
    assert_eq!(out[1].to_f64()[..6], expected);
    assert_eq!((out[1].get(6), out[1].get(7)), (None, None));
    let Stmt::For(l) = program.body.block.body.as_mut() else { panic!() };
    let Stmt::Realize(r) = l.body.as_mut() else { panic!() };
    r.predicate = Expr::Int(1, DType::Bool);
    let fault = run(&program, &inputs).unwrap_err();
    assert_eq!(fault.to_string(), "block \"B\" at v = 6: v is outside its domain [0, 6)");
}

#[test]
fn unwritten_and_outside_reads_are_faults() {
    let p = pointwise(8, DType::F32, |a, v| load(a, &[var(v)]));
    let mut a = Array::from_f64(DType::F32, &[8], &COUNT).unwrap();
    a.forget();
    a.set(0, Scalar::int(1, DType::I32));
    let fault = run(&p, &[a, Array::unwritten(DType::F32, &[8]).unwrap()]).unwrap_err();
    assert_eq!(fault.to_string(), "block \"B\" at v = 1: A[1] is read, but nothing has written it");
    let p = pointwise(8, DType::F32, |a, v| load(a, &[bin(BinOp::Sub, var(v), int(2))]));
    let fault = results(&p, &COUNT).unwrap_err();
    assert_eq!(fault.to_string(), "block \"B\" at v = 0: A[-2] is outside the buffer, whose shape is (8,)");
}

#[test]
fn undeclared_accesses_are_faults_where_asked() {
    let p = pointwise(7, DType::F32, |a, v| load(a, &[add(var(v), int(1))]));
    let inputs = [Array::from_f64(DType::F32, &[8], &COUNT).unwrap(), Array::unwritten(DType::F32, &[8]).unwrap()];
    assert!(run(&p, &inputs).is_ok());
    let fault = run_checked(&p, &inputs).unwrap_err();
    assert_eq!(fault.to_string(), "block \"B\" at v = 0: A[1] is read, but block \"B\" declares A[0:1]");
}

#[test]
fn blocks_around_have_to_declare_too() {
    let mut p = Build::new();
    let b = p.param("B", DType::F32, &[8]);
    let (i, v, o) = (p.var("i"), p.var("v"), p.var("o"));
    let mut inner = p.block("inner", &[(&v, 8, S, add(mul(var(&o), int(4)), var(&i)))], store(b, &[var(&v)], f32(1.0)));
    inner.block.writes = vec![region(b, &[(var(&v), 1)])];
    let mut outer = p.block("outer", &[(&o, 1, S, int(0))], looped(&i, 4, block(inner)));
    outer.block.writes = vec![region(b, &[(mul(var(&o), int(4)), 3)])];
    let p = p.done(block(outer));
    let fault = run_checked(&p, &[Array::unwritten(DType::F32, &[8]).unwrap()]).unwrap_err();
    assert_eq!(fault.to_string(), "block \"inner\" at v = 3: B[3] is written, but block \"outer\" declares B[0:3]");
}

#[test]
fn selects_guard_what_they_do_not_take() {
    for lazy in [true, false] {
        let p = pointwise(8, DType::F32, |a, v| {
            let shifted = load(a, &[bin(BinOp::Sub, var(v), int(2))]);
            select(lazy, bin(BinOp::Ge, var(v), int(2)), shifted, f32(9.0))
        });
        let b = Array::unwritten(DType::F32, &[8]).unwrap();
        let out = run(&p, &[Array::from_f64(DType::F32, &[8], &COUNT).unwrap(), b]).unwrap();
        assert_eq!(out[1].to_f64(), [9.0, 9.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
    let p = pointwise(8, DType::F32, |a, v| {
        let positive = bin(BinOp::Gt, load(a, &[add(var(v), int(1))]), f32(4.0));
        let cond = bin(BinOp::And, bin(BinOp::Lt, var(v), int(7)), positive.clone());
        let or = bin(BinOp::Or, Expr::Not(Arc::new(bin(BinOp::Lt, var(v), int(7)))), positive);
        add(select(false, cond, f32(1.0), f32(0.0)), select(false, or, f32(2.0), f32(0.0)))
    });
    let b = Array::unwritten(DType::F32, &[8]).unwrap();
    let out = run(&p, &[Array::from_f64(DType::F32, &[8], &COUNT).unwrap(), b]).unwrap();
    assert_eq!(out[1].to_f64(), [0.0, 0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 2.0]);
}

#[test]
fn halves_round_after_each_operation() {
    // 2048 + 1 is 2048 in f16, twice; in f32 it would be 2050.
    let half = |v: f64| Expr::Float(v.to_bits(), DType::F16);
    let p = pointwise(8, DType::F16, |a, v| add(add(load(a, &[var(v)]), half(1.0)), half(1.0)));
    assert_eq!(results(&p, &[2048.0; 8]).unwrap(), [2048.0; 8]);
    let p = pointwise(8, DType::F16, |a, v| {
        let wide = Expr::Cast(DType::F32, Arc::new(load(a, &[var(v)])));
        Expr::Cast(DType::F16, Arc::new(add(add(wide, f32(1.0)), f32(1.0))))
    });
    assert_eq!(results(&p, &[2048.0; 8]).unwrap(), [2050.0; 8]);
    let p = pointwise(8, DType::BF16, |a, v| mul(load(a, &[var(v)]), load(a, &[var(v)])));
    assert_eq!(results(&p, &[17.0; 8]).unwrap(), [288.0; 8]);
}

#[test]
fn elements_and_indices_wrap_in_their_types() {
    let byte = |v: i64| Expr::Int(v, DType::I8);
    let p = pointwise(8, DType::I8, |a, v| add(load(a, &[var(v)]), byte(100)));
    assert_eq!(results(&p, &[100.0; 8]).unwrap(), [-56.0; 8]);
    let p = pointwise(8, DType::U8, |a, v| bin(BinOp::Sub, load(a, &[var(v)]), Expr::Int(1, DType::U8)));
    assert_eq!(results(&p, &[0.0; 8]).unwrap(), [255.0; 8]);
    // v 2^30 + 5 in 32 bits.
    let p = pointwise(8, DType::I64, |_, v| add(mul(var(v), int(1 << 30)), int(5)));
    let wrapped: Vec<f64> = (0..8_i32).map(|v| f64::from(v.wrapping_mul(1 << 30).wrapping_add(5))).collect();
    assert_eq!(results(&p, &COUNT).unwrap(), wrapped[..]);
    // A cast that does not hold the index.
    let p = pointwise(8, DType::I64, |_, v| Expr::Cast(DType::I8, Arc::new(mul(var(v), int(100)))));
    let wrapped: Vec<f64> = (0..8_i32).map(|v| f64::from((v * 100) as i8)).collect();
    assert_eq!(results(&p, &COUNT).unwrap(), wrapped[..]);
    let p = pointwise(8, DType::I32, |a, v| bin(BinOp::FloorDiv, int(7), load(a, &[var(v)])));
    assert_eq!(results(&p, &COUNT).unwrap(), [0.0, 7.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0]);
    let p = pointwise(8, DType::I32, |a, v| bin(BinOp::Shl, load(a, &[var(v)]), int(32)));
    assert_eq!(results(&p, &COUNT).unwrap(), [0.0; 8]);
}

#[test]
fn intrinsics() {
    let one = |name: &str, x: f64| {
        let p = pointwise(8, DType::F32, |a, v| call(name, &[load(a, &[var(v)])], DType::F32));
        results(&p, &[x; 8]).unwrap()[0] as f32
    };
    assert_eq!(one("T.exp", 1.0), 1f64.exp() as f32);
    assert_eq!(one("tir.rsqrt", 4.0), 0.5);
    assert_eq!(one("sigmoid", 0.0), 0.5);
    assert_eq!(one("fabs", -3.0), 3.0);
    assert_eq!(one("T.erf", 1.0), 0.842_700_8);
    let p = pointwise(8, DType::F32, |a, v| call("T.pow", &[load(a, &[var(v)]), f32(2.0)], DType::F32));
    assert_eq!(results(&p, &COUNT).unwrap()[3], 9.0);
    let p = pointwise(8, DType::I32, |a, v| call("T.abs", &[load(a, &[var(v)])], DType::I32));
    assert_eq!(results(&p, &[-5.0; 8]).unwrap(), [5.0; 8]);
    let p = pointwise(8, DType::F32, |a, v| call("T.likely", &[load(a, &[var(v)])], DType::F32));
    assert_eq!(results(&p, &COUNT).unwrap(), COUNT);
    let p = pointwise(8, DType::F32, |_, _| call("T.ptx_mma", &[], DType::F32));
    assert_eq!(
        results(&p, &COUNT).unwrap_err().to_string(),
        "block \"B\": the intrinsic T.ptx_mma with 0 arguments is not known to the interpreter"
    );
}

#[test]
fn lets_and_ifs() {
    let mut p = Build::new();
    let (a, b) = (p.param("A", DType::F32, &[8]), p.param("B", DType::F32, &[8]));
    let (i, n) = (p.var("i"), p.var("n"));
    let x = p.0.fresh_var("x", DType::F32);
    let at = [var(&i)];
    let negative = store(b, &at, bin(BinOp::Sub, f32(0.0), var(&x)));
    let branch = Stmt::If {
        cond: bin(BinOp::Lt, var(&n), int(8)),
        then: Box::new(store(b, &at, var(&x))),
        otherwise: Some(Box::new(negative)),
    };
    let bound_x = Stmt::Let { var: x, value: load(a, &at), body: Box::new(branch) };
    let body = Stmt::Let { var: n, value: mul(var(&i), int(2)), body: Box::new(bound_x) };
    let p = p.done(looped(&i, 8, body));
    assert_eq!(results(&p, &COUNT).unwrap(), [0.0, 1.0, 2.0, 3.0, -4.0, -5.0, -6.0, -7.0]);
}

#[test]
fn allocations_are_unwritten_at_every_entry() {
    let build = |inside: bool| {
        let mut p = Build::new();
        let b = p.param("B", DType::F32, &[4]);
        let t = p.buffer("T", DType::F32, &[1]);
        let (i, v) = (p.var("i"), p.var("v"));
        let write = Stmt::If {
            cond: bin(BinOp::Eq, var(&v), int(0)),
            then: Box::new(store(t, &[int(0)], f32(5.0))),
            otherwise: None,
        };
        let body = Stmt::seq(vec![write, store(b, &[var(&v)], load(t, &[int(0)]))]);
        let mut r = p.block("B", &[(&v, 4, S, var(&i))], body);
        if inside {
            r.block.alloc_buffers.push(t);
        } else {
            p.0.body.block.alloc_buffers.push(t);
        }
        p.done(looped(&i, 4, block(r)))
    };
    let b = Array::unwritten(DType::F32, &[4]).unwrap();
    assert_eq!(run(&build(false), std::slice::from_ref(&b)).unwrap()[0].to_f64(), [5.0; 4]);
    let fault = run(&build(true), &[b]).unwrap_err();
    assert_eq!(fault.to_string(), "block \"B\" at v = 1: T[0] is read, but nothing has written it");
    let error = equal_on(&build(false), &build(true), 0).unwrap_err();
    assert!(matches!(error, Difference::Fault { program: Which::Second, .. }));
}

/// Copies rows of A to B by way of views; `extent` is that of the view's region.
fn viewed(shift: i64, extent: i64) -> Program {
    let mut p = Build::new();
    let (a, b) = (p.param("A", DType::F32, &[2, 8]), p.param("B", DType::F32, &[2, 8]));
    let (va, vb, deep) =
        (p.buffer("VA", DType::F32, &[4]), p.buffer("VB", DType::F32, &[1, 4]), p.buffer("deep", DType::F32, &[2]));
    let names = ["i", "j", "k", "l", "vi", "vj", "vl"].map(|name| p.var(name));
    let [i, j, k, l, vi, vj, vl] = &names;
    let copy = store(vb, &[int(0), add(mul(var(vl), int(2)), var(k))], load(deep, &[var(k)]));
    let mut inner = p.block("inner", &[(vl, 2, S, var(l))], looped(k, 2, copy));
    inner.block.reads = vec![region(va, &[(mul(var(vl), int(2)), 2)])];
    inner.block.writes = vec![region(vb, &[(int(0), 1), (mul(var(vl), int(2)), 2)])];
    inner.block.match_buffers = vec![(deep, region(va, &[(mul(var(vl), int(2)), 2)]))];
    let mut outer = p.block("outer", &[(vi, 2, S, var(i)), (vj, 2, S, var(j))], looped(l, 2, block(inner)));
    let part = [(var(vi), 1), (add(mul(var(vj), int(4)), int(shift)), extent)];
    outer.block.reads = vec![region(a, &part)];
    outer.block.writes = vec![region(b, &part)];
    outer.block.match_buffers = vec![(va, region(a, &part)), (vb, region(b, &part))];
    let body = looped(i, 2, looped(j, 2, block(outer)));
    p.done(body)
}

#[test]
fn views_share_the_memory_of_what_they_show() {
    let p = viewed(0, 4);
    let inputs = random_inputs(&p, 5).unwrap();
    assert!(inputs[0].get(0).is_some() && inputs[1].get(0).is_none(), "views count as what they show");
    let out = run_checked(&p, &inputs).unwrap();
    assert_eq!(out[1], inputs[0]);
    let fault = run(&viewed(2, 4), &inputs).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "block \"outer\" at vi = 0, vj = 1: VA stands for A[0:1, 6:10], whose dimension 1 is outside the extent 8"
    );
    let fault = run(&viewed(0, 3), &inputs).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "block \"outer\" at vi = 0, vj = 0: VA stands for A[0:1, 0:3], whose dimension 1 has 3 indices where 4 are due"
    );
}

#[test]
fn limits_are_kept() {
    let p = matmul(5, 7, 6, false, DType::F32);
    let inputs = random_inputs(&p, 1).unwrap();
    let fault = run_with(&p, &inputs, &Options { max_steps: 100, ..Options::default() }).unwrap_err();
    assert!(fault.to_string().ends_with("stopped after 100 steps"), "{fault}");
    let fault = run_with(&p, &inputs, &Options { max_bytes: 1000, ..Options::default() }).unwrap_err();
    assert_eq!(fault, Fault::Memory { needed: (30 + 42 + 35) * 12, limit: 1000 });
    assert_eq!(run(&p, &inputs[..2]).unwrap_err().to_string(), "main has 3 parameters, but 2 arrays");
    let fault = run(&p, &[inputs[1].clone(), inputs[1].clone(), inputs[2].clone()]).unwrap_err();
    assert_eq!(fault.to_string(), "the parameter A is float32 of shape (5, 6), its array float32 of shape (6, 7)");
}

#[test]
fn programs_that_cannot_be_run_are_refused() {
    let stray = Build::new().var("q");
    let p = pointwise(8, DType::F32, |a, _| load(a, &[Expr::Var(Var { id: crate::VarId(99), ..stray.clone() })]));
    let fault = results(&p, &COUNT).unwrap_err();
    assert_eq!(fault.to_string(), "block \"B\": the variable q is used where nothing binds it");
    let p = pointwise(8, DType::F32, |a, v| load(a, &[var(v), var(v)]));
    let fault = results(&p, &COUNT).unwrap_err();
    assert_eq!(fault.to_string(), "block \"B\": A has 1 dimensions, but 2 indices are given");
    let deep = |n: usize| pointwise(8, DType::F32, |a, v| (0..n).fold(load(a, &[var(v)]), |e, _| add(e, f32(1.0))));
    assert_eq!(results(&deep(900), &COUNT).unwrap()[1], 901.0);
    assert!(matches!(results(&deep(3000), &COUNT), Err(Fault::Invalid { .. })));
}

#[test]
fn inputs_that_are_indices_are_within_what_they_index() {
    let mut p = Build::new();
    let (a, ids) = (p.param("A", DType::F32, &[5]), p.param("ids", DType::I32, &[64]));
    let (mask, b) = (p.param("mask", DType::Bool, &[64]), p.param("B", DType::F32, &[64]));
    let i = p.var("i");
    let gathered = load(a, &[load(ids, &[var(&i)])]);
    let value = select(true, load(mask, &[var(&i)]), gathered, f32(7.0));
    let p = p.done(looped(&i, 64, store(b, &[var(&i)], value)));
    let inputs = random_inputs(&p, 4).unwrap();
    let out = run(&p, &inputs).unwrap();
    for i in 0..64 {
        let at = inputs[1].get(i).unwrap().as_i64();
        let expected = if inputs[2].get(i).unwrap().as_i64() != 0 {
            inputs[0].at(&[at])
        } else {
            Some(Scalar::float(7.0, DType::F32))
        };
        assert_eq!(out[3].get(i), expected);
    }
}

#[test]
fn inputs_that_are_parts_of_indices_are_within_what_they_index() {
    // Blocks of four, places in pairs, and two numbers that are added.
    type Index = fn(Expr, Expr) -> Expr;
    let kinds: [(&str, Index); 3] = [
        ("ids[i] * 4 + j", |id, j| add(mul(id, int(4)), j)),
        ("ids[i] // 2 + j", |id, j| add(Expr::Binary(BinOp::FloorDiv, id.into(), int(2).into()), j)),
        ("ids[i] + ids[i] * 2 + j", |id, j| add(add(id.clone(), mul(id, int(2))), j)),
    ];
    for (what, index) in kinds {
        let mut p = Build::new();
        let (a, ids) = (p.param("A", DType::F32, &[17]), p.param("ids", DType::I32, &[64]));
        let b = p.param("B", DType::F32, &[64, 4]);
        let (i, j) = (p.var("i"), p.var("j"));
        let at = index(load(ids, &[var(&i)]), var(&j));
        let p = p.done(looped(&i, 64, looped(&j, 4, store(b, &[var(&i), var(&j)], load(a, &[at])))));
        let inputs = random_inputs(&p, 4).unwrap();
        run(&p, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
        let most = (0..64).map(|i| inputs[1].get(i).unwrap().as_i64()).max();
        assert!(most >= Some(2), "{what}: {most:?}");
    }
}

#[test]
fn opposite_signs_of_zero_differ_and_nans_do_not() {
    let signed = |z: f64| pointwise(8, DType::F32, move |_, _| f32(z));
    let error = equal_on(&signed(0.0), &signed(-0.0), 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "B[0] is 0.0 after the first program and -0.0 after the second; so differ 8 of 8 elements of B"
    );
    assert_eq!(equal_on(&signed(f64::NAN), &signed(-f64::NAN), 0), Ok(()));
}

#[test]
fn a_block_without_iterators_runs_its_init() {
    let mut p = Build::new();
    let b = p.param("B", DType::F32, &[1]);
    let at = [int(0)];
    let mut r = p.block("B", &[], store(b, &at, add(load(b, &at), f32(2.0))));
    r.block.init = Some(Box::new(store(b, &at, f32(1.0))));
    r.block.writes = vec![region(b, &[(int(0), 1)])];
    let p = p.done(block(r));
    assert_eq!(run_checked(&p, &random_inputs(&p, 0).unwrap()).unwrap()[0].to_f64(), [3.0]);
}

#[test]
fn an_update_that_does_not_declare_what_it_reads_is_a_fault() {
    // As after decompose_reduction, but with the regions of before.
    let mut p = matmul(3, 3, 4, false, DType::F32);
    let Stmt::For(i) = p.body.block.body.as_mut() else { panic!() };
    let Stmt::For(j) = i.body.as_mut() else { panic!() };
    let Stmt::For(k) = j.body.as_mut() else { panic!() };
    let Stmt::Realize(r) = k.body.as_mut() else { panic!() };
    r.block.init = None;
    let mut inputs = random_inputs(&p, 1).unwrap();
    assert!(inputs[2].get(0).is_some(), "what is updated without init is an input");
    inputs[2] = Array::from_f64(DType::F32, &[3, 3], &[0.0; 9]).unwrap();
    assert_eq!(run(&p, &inputs).unwrap()[2], run(&matmul(3, 3, 4, false, DType::F32), &inputs).unwrap()[2]);
    assert_eq!(
        run_checked(&p, &inputs).unwrap_err().to_string(),
        "block \"C\" at vi = 0, vj = 0, vk = 0: C[0, 0] is read, but block \"C\" declares no region of C"
    );
}

#[test]
fn a_tile_in_shared_memory_with_a_ragged_tail() {
    let source = r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((30,), "float16"), B: T.Buffer((30,), "float32")):
    for i in range(30):
        with T.sblock("B"):
            vi = T.axis.spatial(30, i)
            B[vi] = T.exp(T.Cast("float32", A[vi])) + T.float32(1)
"#;
    let tiled = |predicate: &str| {
        let script = format!(
            r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((30,), "float16"), B: T.Buffer((30,), "float32")):
    A_shared = T.sblock_alloc_buffer((30,), "float16", scope="shared")
    for o in T.thread_binding(4, thread="blockIdx.x"):
        for ax in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("A_shared"):
                v = T.axis.spatial(30, o * 8 + ax)
                T.where(o * 8 + ax < 30)
                A_shared[v] = A[v]
        for i in T.vectorized(8):
            with T.sblock("B"):
                vi = T.axis.spatial(30, o * 8 + i)
                T.where(o * 8 + i < {predicate})
                B[vi] = T.exp(T.Cast("float32", A_shared[vi])) + T.float32(1)
"#
        );
        crate::tvmscript::parse(&script).unwrap()
    };
    let source = crate::tvmscript::parse(source).unwrap();
    assert_eq!(equal_on(&source, &tiled("30"), 7), Ok(()));
    let text = equal_on(&source, &tiled("29"), 7).unwrap_err().to_string();
    assert!(text.starts_with("B[29] is") && text.ends_with("so differ 1 of 30 elements of B"), "{text}");
    assert_eq!(
        equal_on(&source, &tiled("31"), 7).unwrap_err().to_string(),
        "the second program: block \"B\" at vi = 30: vi is outside its domain [0, 30)"
    );
}
