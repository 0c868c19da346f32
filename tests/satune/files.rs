//! Programs and traces in files: `explore FILE`, `replay`, and what is wrong with files.
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn satune(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_satune")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn put(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

const MATMUL: &str = r#"from tvm.script import tirx as T

M, N, K = 48, 32, 40

@T.prim_func(s_tir=True)
def mine(X: T.Buffer((M, K), "float32"), Y: T.Buffer((N, K), "float32"), Z: T.Buffer((M, N), "float32")):
    for i, j, k in T.grid(M, N, K):
        with T.sblock("Z"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Z[vi, vj] = T.float32(0)
            Z[vi, vj] += X[vi, vk] * Y[vj, vk]
"#;

#[test]
fn a_prim_func_is_explored_and_its_trace_makes_its_program_again() {
    let folder = tempfile::tempdir().unwrap();
    let program = put(folder.path(), "mine.py", MATMUL);
    let out = folder.path().join("out");
    let run = satune(&[
        "explore",
        &program,
        "--gpu",
        "a100",
        "--top",
        "2",
        "--no-compile",
        "--json",
        "--out",
        out.to_str().unwrap(),
    ]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let candidate = &report["candidates"][0];
    assert_eq!(candidate["kernels"][0]["args"], serde_json::json!(["X", "Y", "Z"]));
    let file = |field: &str| -> PathBuf { out.join(candidate[field].as_str().unwrap()) };
    let replayed = satune(&["replay", file("trace").to_str().unwrap()]);
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    // The file says first what it is, and imports what it needs.
    let scheduled = std::fs::read_to_string(file("scheduled")).unwrap();
    assert_eq!(text(&replayed.stdout), &scheduled[scheduled.find("@T.prim_func").unwrap()..]);
}

#[test]
fn cases_are_judged_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let case = |name: &str, calls: &str| {
        let script = serde_json::to_string(MATMUL).unwrap();
        format!("{{\"name\": \"{name}\", \"script\": {script}, \"calls\": {calls}}}\n")
    };
    let good = r#"[{"op": "get_sblock", "args": ["Z"], "out": "b"}, {"op": "get_loops", "args": ["$b"], "out": "l"},
        {"op": "split", "args": ["$l[0]"], "kwargs": {"factors": [null, 8]}, "out": ["io", "ii"]}]"#
        .replace('\n', " ");
    let bad = r#"[{"op": "get_sblock", "args": ["Z"], "out": "b"}, {"op": "get_loops", "args": ["$b"], "out": "l"}, {"op": "compute_at", "args": ["$b", "$l[0]"]}]"#;
    let cases = put(folder.path(), "cases.jsonl", &(case("good", &good) + &case("bad", bad)));
    let run = satune(&["replay", &cases, "--json"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let lines: Vec<serde_json::Value> = text(&run.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["calls"][2], serde_json::json!({"ok": true}));
    assert!(lines[0]["script"].as_str().unwrap().contains("i_0, i_1, j, k in T.grid(6, 8, 32, 40)"));
    assert_eq!(lines[1]["calls"][2]["ok"], false);
    assert_eq!(lines[1]["calls"][2]["error_class"], "ScheduleError");
    assert!(lines[1]["calls"][2]["fast"].as_str().unwrap().starts_with("ScheduleError: "));
    // For people: the program, with the block underlined.
    let told = text(&satune(&["replay", &cases]).stdout);
    assert!(told.contains("bad: call 2 (compute_at) is refused") && told.contains("with T.sblock(\"Z\")"), "{told}");
}

#[test]
fn files_that_are_no_programs_get_place_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let deep = format!("{}x = {}0{}\n", MATMUL, "(".repeat(100_000), ")".repeat(100_000));
    let signs = format!("{}x = {}1\n", MATMUL, "-".repeat(100_000));
    // Each reads the one before it twice.
    let doubling = |bound: &dyn Fn(&str) -> String| {
        let lines: String =
            (1..40).map(|k| format!("            x{k} = {}\n", bound(&format!("x{0} + x{0}", k - 1)))).collect();
        format!(
            "@T.prim_func\ndef f(A: T.Buffer((8,), \"float32\"), B: T.Buffer((8,), \"float32\")):\n    for i in range(8):\n        with \
             T.sblock(\"B\"):\n            vi = T.axis.spatial(8, i)\n            x0 = A[vi]\n{lines}            B[vi] = x39\n"
        )
    };
    for (name, source, wanted) in [
        ("syntax.py", MATMUL.replace("with T.sblock", "with T.sblock(("), vec!["syntax.py:8", "this is not Python"]),
        ("deep.py", deep, vec!["deep.py:13", "nested more than"]),
        ("signs.py", signs, vec!["signs.py:13", "operators and operands"]),
        ("let.py", doubling(&str::to_string), vec!["let.py:", "variables written out", "in a buffer"]),
        (
            "meta.py",
            doubling(&|e| format!("T.meta_var({e})")),
            vec!["meta.py:", "variables written out", "in a buffer"],
        ),
        (
            "name.py",
            MATMUL.replace("Y[vj, vk]", "Y[vj, kk]"),
            vec!["name.py:12:", "kk is not known here", "known here:"],
        ),
        ("zero.py", MATMUL.replace("M, N, K = 48", "M, N, K = 0"), vec!["zero.py:6:", "dimension of 0"]),
        ("negative.py", MATMUL.replace("M, N, K = 48", "M, N, K = -3"), vec!["negative.py:6:", "dimension of -3"]),
        ("huge.py", MATMUL.replace("48, 32, 40", "4611686018427387904, 32, 40"), vec!["huge.py:6:", "more than 2^63"]),
        ("rank.py", MATMUL.replace("X[vi, vk]", "X[vi]"), vec!["rank.py:12:", "has 2 dimensions; 1 indices"]),
        ("divide.py", MATMUL.replace("X[vi, vk]", "X[vi / 2, vk]"), vec!["divide.py:12:", "use //"]),
        ("while.py", MATMUL.replace("    for i, j, k in T.grid(M, N, K):", "    while True:"), vec!["while.py:7:"]),
        ("empty.py", String::new(), vec!["no function under @T.prim_func"]),
        ("large.py", " ".repeat(5 << 20), vec!["more than 4194304 bytes"]),
        (
            "call.py",
            MATMUL.replace("X[vi, vk] * Y[vj, vk]", "T.call_extern(\"float32\", \"f\", X[vi, vk])"),
            vec!["call.py", "not a sum of products", "no kernel computes it", "call_extern"],
        ),
    ] {
        let path = put(folder.path(), name, &source);
        let run = satune(&["count", &path]);
        let told = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{name}: {told}");
        assert!(wanted.iter().all(|w| told.contains(w)), "{name}: {told}");
        assert!(told.len() < 2000 && !told.contains("panicked"), "{name}: {told}");
    }
    let missing = satune(&["count", "no_such.py"]);
    assert_eq!(missing.status.code(), Some(2));
    let trace = put(folder.path(), "trace.json", "[{\"op\": \"split\"}]");
    let run = satune(&["replay", &trace]);
    assert_eq!(run.status.code(), Some(2), "{}", text(&run.stderr));
    assert!(text(&run.stderr).contains("--program"));
    let run = satune(&["replay", &trace, "--program", "gemm:16,16,16,f32"]);
    assert_eq!(run.status.code(), Some(1), "{}", text(&run.stderr));
}

/// A program, a trace of TVM 0.27 on it as `Trace.as_json` gives it, and the same as TVM prints it.
const TVM_PROGRAM: &str = r#"@T.prim_func(s_tir=True)
def main(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32"), C: T.Buffer((16, 16), "float32")):
    for i, j, k in T.grid(16, 16, 16):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"#;
const TVM_JSON: &str = include_str!("tvm_trace.json");
const TVM_TEXT: &str = r#"# from tvm import s_tir
def apply_trace(sch: s_tir.Schedule) -> None:
  b0 = sch.get_sblock(name="C", func_name="main")
  l1, l2, l3 = sch.get_loops(block=b0)
  v4, v5 = sch.sample_perfect_tile(loop=l1, n=2, max_innermost_factor=8, decision=[4, 4])
  l6, l7 = sch.split(loop=l1, factors=[v4, v5], preserve_unit_iters=True, disable_predication=False)
  b8 = sch.reindex_cache_read(block=b0, read_buffer_index=1, storage_scope="shared", index_map=lambda i, j, k: (j, k,))
  sch.bind(loop=l6, thread_axis="blockIdx.x")
  b9 = sch.reindex_cache_write(block=b0, write_buffer_index=0, storage_scope="local", index_map=lambda i, j, k: (i, j,))
  sch.transform_layout(block=b9, buffer=("read", 0), index_map=lambda a, b: (b, a,), pad_value=None, assume_injective_transform=False)
"#;
/// What TVM makes of it.
const TVM_RESULT: &str = r#"@T.prim_func(s_tir=True)
def main(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32"), C: T.Buffer((16, 16), "float32")):
    B_shared = T.sblock_alloc_buffer((16, 16), scope="shared")
    C_local = T.sblock_alloc_buffer((16, 16), scope="local")
    for j, k in T.grid(16, 16):
        with T.sblock("B_shared"):
            vj, vk = T.axis.remap("SS", [j, k])
            B_shared[vj, vk] = B[vk, vj]
    for i_0 in T.thread_binding(4, thread="blockIdx.x"):
        for i_1, j, k in T.grid(4, 16, 16):
            with T.sblock("C"):
                vi = T.axis.spatial(16, i_0 * 4 + i_1)
                vj, vk = T.axis.remap("SR", [j, k])
                T.reads(A[vi, vk], B_shared[vj, vk])
                T.writes(C_local[vj, vi])
                with T.init():
                    C_local[vj, vi] = T.float32(0)
                C_local[vj, vi] = C_local[vj, vi] + A[vi, vk] * B_shared[vj, vk]
    for i_0, i_1, j in T.grid(4, 4, 16):
        with T.sblock("C_local"):
            vi = T.axis.spatial(16, i_0 * 4 + i_1)
            vj = T.axis.spatial(16, j)
            C[vi, vj] = C_local[vj, vi]
"#;

#[test]
fn traces_that_tvm_writes_are_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let program = put(folder.path(), "program.py", TVM_PROGRAM);
    let parsed = |text: &str| satune_ir::tvmscript::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    for (name, trace) in [("trace.json", TVM_JSON), ("trace.py", TVM_TEXT)] {
        let path = put(folder.path(), name, trace);
        let run = satune(&["replay", &path, "--program", &program]);
        assert!(run.status.success(), "{name}: {}", text(&run.stderr));
        let (ours, theirs) = (parsed(&text(&run.stdout)), parsed(TVM_RESULT));
        satune_ir::structural::equal(&ours, &theirs).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        // The same with a call that is refused: which one, where, and why.
        let path = put(folder.path(), name, &trace.replace("blockIdx.x", "blockIdx.q"));
        let run = satune(&["replay", &path, "--program", &program]);
        let told = text(&run.stderr);
        assert_eq!((run.status.code(), text(&run.stdout).as_str()), (Some(1), ""), "{told}");
        assert!(told.contains("call 5 (bind) is refused") && told.contains("blockIdx.q"), "{told}");
    }
    // What TVM has and Satune does not is named.
    let path = put(folder.path(), "unknown.json", &TVM_JSON.replace("\"Bind\"", "\"NoSuchCall\""));
    let told = text(&satune(&["replay", &path, "--program", &program]).stderr);
    assert!(told.contains("instruction 5: `NoSuchCall` is no instruction that Satune has"), "{told}");
    let path = put(folder.path(), "cut.py", &TVM_TEXT[..TVM_TEXT.len() - 30]);
    let told = text(&satune(&["replay", &path, "--program", &program]).stderr);
    assert!(told.contains("cut.py: line 10"), "{told}");
}

/// Two functions, the first with a scalar that it leaves open.
const OPS: &str = r#"from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def double(a: T.handle, b: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.sblock("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * T.float32(2)

@T.prim_func(s_tir=True)
def other(A: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("A"):
            vi = T.axis.spatial(8, i)
            A[vi] = T.float32(1)
"#;
/// Four elements doubled at once, as TVM's users register it.
const INTRINSIC: &str = r#"from tvm.script import tirx as T
from tvm.s_tir import TensorIntrin

@T.prim_func(s_tir=True)
def desc(A: T.Buffer((4,), "float32", offset_factor=1), B: T.Buffer((4,), "float32", offset_factor=1)):
    with T.sblock("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        for i in range(4):
            with T.sblock("B"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi] * T.float32(2)

@T.prim_func(s_tir=True)
def impl(A: T.Buffer((4,), "float32", offset_factor=1), B: T.Buffer((4,), "float32", offset_factor=1)):
    with T.sblock("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        T.evaluate(T.call_extern("int32", "double4", A.access_ptr("r"), B.access_ptr("w")))

TensorIntrin.register("double4", desc, impl)
"#;

#[test]
fn functions_scalars_and_intrinsics_are_given_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let ops = put(folder.path(), "ops.py", OPS);
    let nothing = put(folder.path(), "nothing.json", "[]");
    let run = satune(&["replay", &nothing, "--program", &format!("{ops}::double(n=64)")]);
    assert!(run.status.success() && text(&run.stdout).contains("A: T.Buffer((64,)"), "{}", text(&run.stderr));
    for (choice, why) in
        [("", "say which: FILE::double"), ("::double", "has no value"), ("::double(n=x)", "no value of n")]
    {
        let run = satune(&["replay", &nothing, "--program", &format!("{ops}{choice}")]);
        assert_eq!(run.status.code(), Some(2), "{choice}");
        assert!(text(&run.stderr).contains(why), "{choice}: {}", text(&run.stderr));
    }
    let calls = r#"[{"op": "get_sblock", "args": ["B"], "out": "b"}, {"op": "get_loops", "args": ["$b"], "out": ["i"]},
        {"op": "split", "args": ["$i", [null, 4]], "out": ["x", "y"]}, {"op": "tensorize", "args": ["$y", "double4"]}]"#;
    let trace = put(folder.path(), "trace.json", calls);
    let program = format!("{ops}::double(n=64)");
    let run = satune(&["replay", &trace, "--program", &program]);
    assert_eq!(run.status.code(), Some(1), "{}", text(&run.stderr));
    assert!(text(&run.stderr).contains("TensorIntrin 'double4' is not registered"), "{}", text(&run.stderr));
    let intrinsic = put(folder.path(), "double4.py", INTRINSIC);
    let run = satune(&["replay", &trace, "--program", &program, "--intrinsics", &intrinsic]);
    assert!(run.status.success() && text(&run.stdout).contains("\"double4\""), "{}", text(&run.stderr));
    let wrong = put(folder.path(), "wrong.py", &INTRINSIC.replace("desc, impl)", "desc)"));
    let run = satune(&["replay", &trace, "--program", &program, "--intrinsics", &wrong]);
    assert_eq!(run.status.code(), Some(2), "{}", text(&run.stderr));
    assert!(text(&run.stderr).contains("wrong.py:21:"), "{}", text(&run.stderr));
}

#[cfg(unix)]
#[test]
fn what_may_never_end_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, store) = (folder.path().join("pipe.cu"), folder.path().join("store.db"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for endless in [pipe.to_str().unwrap(), "/dev/zero"] {
        for command in [
            &["db", "import", endless, "--store", store.to_str().unwrap()][..],
            &["run-pack", endless, "--out", folder.path().to_str().unwrap()],
            &["check", endless, "--launch", "grid=1, block=32, args=(x: out f32[32])"],
            &["replay", endless],
        ] {
            let child = Command::new("timeout").arg("60").arg(env!("CARGO_BIN_EXE_satune")).args(command).output();
            let run = child.unwrap();
            assert!(matches!(run.status.code(), Some(2 | 3)), "{command:?}: {}", text(&run.stderr));
            assert!(text(&run.stderr).contains("no regular file"), "{command:?}: {}", text(&run.stderr));
        }
    }
}

#[test]
fn what_adds_no_products_is_not_said_to_multiply() {
    let folder = tempfile::tempdir().unwrap();
    let least = MATMUL
        .replace("T.float32(0)", "T.float32(3.4e38)")
        .replace("Z[vi, vj] += X[vi, vk] * Y[vj, vk]", "Z[vi, vj] = T.min(Z[vi, vj], X[vi, vk] + Y[vj, vk])");
    let program = put(folder.path(), "least.py", &least);
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let explored = satune(&["explore", &program, "--gpu", "a100", "--top", "1", "--no-compile", "--out", out]);
    assert!(explored.status.success(), "{}", text(&explored.stderr));
    for command in ["show", "check"] {
        let told = text(&satune(&[command, "1", "--out", out]).stdout);
        assert!(told.contains(" instructions of arithmetic") && !told.contains("multiply-adds"), "{command}: {told}");
    }
}
