//! The rules of `docs/SEMANTICS.md` against others' arithmetic: numpy's on random expressions, that of TVM's LLVM on single
//! operations wherever it is defined.
use crate::expressions::{bytes, interesting, of_bytes, random, text, value, Expression, Node, Val, TYPES};
use crate::support::{one_in, samples, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use satune_ir::interp::{self, Array, Scalar};
use satune_ir::{tvmscript, DType};
use serde_json::{json, Value};
use std::process::Command;

/// Puts requests to `scripts/scalars_check.py`, which says what they are; of each, the outputs' bytes.
fn ask(name: &str, requests: &[Value]) -> Vec<Vec<Vec<u8>>> {
    let tvm = satune_testing::root().join("target/tvm");
    if !tvm.join("ml_dtypes").is_dir() {
        satune_testing::missing("TVM", "tvm");
    }
    let folder = tempfile::tempdir().unwrap();
    let (questions, answers) = (folder.path().join("requests"), folder.path().join("answers"));
    std::fs::write(&questions, requests.iter().map(|r| format!("{r}\n")).collect::<String>()).unwrap();
    let script = satune_testing::root().join("scripts/scalars_check.py");
    let output = Command::new("python3").arg(script).args([&tvm, &questions, &answers]).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{name}: {}\n{}", output.status, String::from_utf8_lossy(&told));
    let text = std::fs::read_to_string(answers).unwrap();
    let outputs =
        |line| serde_json::from_value(serde_json::from_str::<Value>(line).unwrap()["outputs"].take()).unwrap();
    let answers: Vec<_> = text.lines().map(outputs).collect();
    assert_eq!(answers.len(), requests.len());
    answers
}

fn input(values: &[Val], t: DType) -> Value {
    json!({"dtype": t.name(), "bytes": values.iter().flat_map(|v| bytes(*v, t)).collect::<Vec<u8>>()})
}

/// The expression as a tree for numpy; none of what numpy has not: tfloat32, and the bits of a NaN.
fn tree(e: &Expression) -> Option<Value> {
    let of = |op: &str, parts: &[&Expression]| {
        let parts = parts.iter().map(|p| tree(p)).collect::<Option<Vec<Value>>>()?;
        Some(json!({"dtype": e.dtype.name(), "op": op.trim(), "of": parts}))
    };
    if e.dtype == DType::TF32 {
        return None;
    }
    match &e.node {
        Node::Load(k) => Some(json!({"dtype": e.dtype.name(), "load": k})),
        Node::Axis(k) => Some(json!({"dtype": "int32", "axis": k})),
        Node::Const(v) => Some(json!({"dtype": e.dtype.name(), "bytes": bytes(*v, e.dtype)})),
        Node::Binary(op, a, b) => of(op, &[a, b]),
        Node::Unary(op, a) => of(op, &[a]),
        Node::Cast(a) => of("cast", &[a]),
        Node::Reinterpret(a) if a.dtype.is_float() && e.dtype.is_float() => None,
        Node::Reinterpret(a) => of("reinterpret", &[a]),
        Node::Select(name, parts) => of(name, &[&parts[0], &parts[1], &parts[2]]),
    }
}

#[test]
fn numpy_gives_the_same_values() {
    let mut rng = StdRng::seed_from_u64(seed());
    let shape = [rng.gen_range(1..4_i64), rng.gen_range(1..17)];
    let count = (shape[0] * shape[1]) as usize;
    let (mut requests, mut maps) = (Vec::new(), Vec::new());
    while maps.len() < samples(400) {
        let inputs: Vec<DType> = (0..rng.gen_range(1..4)).map(|_| TYPES[rng.gen_range(0..TYPES.len())]).collect();
        let (dtype, depth) = (TYPES[rng.gen_range(0..TYPES.len())], rng.gen_range(1..5));
        let map = random(&mut rng, dtype, depth, &inputs);
        let Some(tree) = tree(&map).filter(|_| !inputs.contains(&DType::TF32)) else { continue };
        let data: Vec<Vec<Val>> =
            inputs.iter().map(|t| (0..count).map(|_| interesting(&mut rng, *t)).collect()).collect();
        let given: Vec<Value> = data.iter().zip(&inputs).map(|(d, t)| input(d, *t)).collect();
        requests.push(json!({"expression": tree, "inputs": given, "shape": shape}));
        maps.push((map, data));
    }
    for ((map, data), outputs) in maps.iter().zip(ask("numpy", &requests)) {
        let width = map.dtype.bytes() as usize;
        for (at, got) in outputs[0].chunks(width).enumerate() {
            let loads: Vec<Val> = data.iter().map(|d| d[at]).collect();
            let want = value(map, &loads, [at as i64 / shape[1], at as i64 % shape[1]]);
            let got = of_bytes(got, map.dtype);
            assert!(got.same(want), "numpy makes {got:?} of {loads:?} at {at}, not {want:?}: {}", text(map));
        }
    }
}

/// One operation of operands of a type, on pairs for which LLVM defines it.
struct Operation {
    text: String,
    result: DType,
    pairs: Vec<[Val; 2]>,
}

const PAIRS: usize = 64;

/// The least integer of a type, and the one after its greatest.
fn ends(t: DType) -> (f64, f64) {
    let bits = 8 * t.bytes() as i32;
    match t {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (-(2_f64.powi(bits - 1)), 2_f64.powi(bits - 1)),
        _ => (0.0, 2_f64.powi(bits)),
    }
}

/// All operations of a type that TVM's LLVM has.
fn operations(t: DType, rng: &mut StdRng) -> Vec<Operation> {
    let number = |v: Val| match v {
        Val::I(v) => v as f64,
        Val::F(v) => v,
    };
    let mut out = Vec::new();
    let mut add = |text: &str, result: DType, defined: &dyn Fn(f64, f64) -> bool| {
        let mut pairs = Vec::new();
        while pairs.len() < PAIRS {
            let pair = [interesting(rng, t), interesting(rng, t)];
            if defined(number(pair[0]), number(pair[1])) {
                pairs.push(pair);
            }
        }
        out.push(Operation { text: text.into(), result, pairs });
    };
    let always = |_: f64, _: f64| true;
    for op in ["<", "<=", "=="] {
        add(&format!("X {op} Z"), DType::Bool, &always);
    }
    // LLVM's `!=` of TVM is ordered: false of a NaN, where C, numpy and CUDA say true.
    add("X != Z", DType::Bool, &|x, y| !x.is_nan() && !y.is_nan());
    for to in [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64] {
        let (lo, hi) = ends(to);
        if to != t {
            add(&format!("T.Cast(\"{}\", X)", to.name()), to, &|x, _| !t.is_float() || (x.trunc() >= lo && x < hi));
        }
    }
    for to in [DType::F32, DType::F64] {
        if to != t {
            add(&format!("T.Cast(\"{}\", X)", to.name()), to, &always);
        }
    }
    for op in ["X + Z", "X - Z", "X * Z", "T.if_then_else(X < Z, X, Z)", "T.abs(X)"] {
        add(op, t, &always);
    }
    // TVM has no minus of unsigned integers.
    if t.is_float() || ends(t).0 < 0.0 {
        add("-X", t, &always);
    }
    let zeros = |x: f64, y: f64| x == 0.0 && y == 0.0;
    for op in ["T.min(X, Z)", "T.max(X, Z)"] {
        add(op, t, &|x, y| !t.is_float() || !(x.is_nan() || y.is_nan() || zeros(x, y)));
    }
    if t.is_float() {
        for op in ["X / Z", "T.floor(X)", "T.ceil(X)", "T.trunc(X)", "T.nearbyint(X)", "T.sqrt(X)"] {
            add(op, t, &always);
        }
        for op in ["T.isnan(X)", "T.isinf(X)", "T.isfinite(X)"] {
            add(op, DType::Bool, &always);
        }
        return out;
    }
    let least = ends(t).0;
    for op in ["X // Z", "X % Z", "T.truncdiv(X, Z)", "T.truncmod(X, Z)"] {
        add(op, t, &|x, y| y != 0.0 && !(y == -1.0 && x == least));
    }
    for op in ["X & Z", "X | Z", "X ^ Z", "~X", "T.popcount(X)"] {
        add(op, t, &always);
    }
    for op in ["X << Z", "X >> Z"] {
        add(op, t, &|_, y| y >= 0.0 && y < f64::from(8 * t.bytes()));
    }
    out
}

#[test(slow)]
fn llvm_gives_the_same_values() {
    let mut rng = StdRng::seed_from_u64(seed());
    let types =
        TYPES.into_iter().filter(|t| *t != DType::Bool && (!t.is_float() || t.bytes() >= 4) && *t != DType::TF32);
    let types = one_in(2, types);
    let all: Vec<(DType, Vec<Operation>)> = types.into_iter().map(|t| (t, operations(t, &mut rng))).collect();
    let requests: Vec<Value> = all.iter().map(|(t, operations)| request(*t, operations)).collect();
    for (((t, operations), request), outputs) in all.iter().zip(&requests).zip(ask("llvm", &requests)) {
        let program = tvmscript::parse(request["script"].as_str().unwrap()).unwrap();
        let array = |values: &mut dyn Iterator<Item = Val>, t: DType| {
            let mut array = Array::unwritten(t, &[PAIRS as i64]).unwrap();
            for (at, v) in values.enumerate() {
                let scalar = match v {
                    Val::I(v) => Scalar::int(v as i64, t),
                    Val::F(v) => Scalar::float(v, t),
                };
                array.set(at, scalar);
            }
            array
        };
        let mut arrays = Vec::new();
        for o in operations {
            arrays.extend([0, 1].map(|k| array(&mut o.pairs.iter().map(|p| p[k]), *t)));
        }
        arrays.extend(operations.iter().map(|o| Array::unwritten(o.result, &[PAIRS as i64]).unwrap()));
        let ours = interp::run(&program, &arrays).unwrap();
        for ((o, ours), theirs) in operations.iter().zip(&ours[2 * operations.len()..]).zip(&outputs) {
            for ((pair, ours), theirs) in o.pairs.iter().zip(ours.iter()).zip(theirs.chunks(o.result.bytes() as usize))
            {
                let (ours, theirs) = (crate::semantics::of_scalar(ours.unwrap()), of_bytes(theirs, o.result));
                assert!(theirs.same(ours), "{}, {}: LLVM makes {theirs:?} of {pair:?}, not {ours:?}", t.name(), o.text);
            }
        }
    }
}

/// One function of all operations, each with operands and a result of its own.
fn request(t: DType, operations: &[Operation]) -> Value {
    let (mut params, mut body, mut inputs) = (Vec::new(), String::new(), Vec::new());
    let buffer = |name: String, t: DType| format!("{name}: T.Buffer(({PAIRS},), \"{}\")", t.name());
    for (k, o) in operations.iter().enumerate() {
        params.extend([buffer(format!("X{k}"), t), buffer(format!("Z{k}"), t)]);
        inputs.extend([0, 1].map(|side| input(&o.pairs.iter().map(|p| p[side]).collect::<Vec<_>>(), t)));
        let operation = o.text.replace('X', &format!("X{k}[v]")).replace('Z', &format!("Z{k}[v]"));
        body += &format!("        with T.sblock(\"Y{k}\"):\n");
        body += &format!("            v = T.axis.spatial({PAIRS}, i)\n            Y{k}[v] = {operation}\n");
    }
    params.extend(operations.iter().enumerate().map(|(k, o)| buffer(format!("Y{k}"), o.result)));
    let script = format!(
        "@T.prim_func(s_tir=True)\ndef operations({}):\n    for i in range({PAIRS}):\n{body}",
        params.join(", ")
    );
    let outputs: Vec<&str> = operations.iter().map(|o| o.result.name()).collect();
    json!({"script": script, "inputs": inputs, "outputs": outputs})
}
