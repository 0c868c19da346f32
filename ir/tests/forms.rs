//! Forms of TVMScript: what each reads as, that it is printed as it is read, and what is said of those that mean nothing
//! here.
use satune_ir::{interp, structural, tvmscript};

fn read(file: &str, text: &str) -> satune_ir::Program {
    let program = tvmscript::parse_named(file, text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let printed = tvmscript::print(&program);
    let again = tvmscript::parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    structural::equal(&program, &again).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    program
}

fn refused(file: &str, text: &str) -> String {
    let error = tvmscript::parse_named(file, text).expect_err("the text should be refused");
    format!("{}: {} ({})", error.line, error.message, error.help.clone().unwrap_or_default())
}

/// `B = 2 A` of 16 elements, with `head` before it, written `body`.
fn double(params: &str, body: &str) -> String {
    let body: String = body.lines().map(|l| format!("    {l}\n")).collect();
    format!("@T.prim_func(s_tir=True)\ndef main({params}):\n{body}")
}

const PARAMS: &str = "A: T.Buffer((16,), \"float32\"), B: T.Buffer((16,), \"float32\")";
const PLAIN: &str = "for i in range(16):\n    B[i] = A[i] * T.float32(2)";

/// Programs that all do the same.
#[test]
fn forms_of_one_program() {
    let plain = read("p.py", &double(PARAMS, PLAIN));
    let matched = |head: &str| double("a: T.handle, b: T.handle", &format!("{head}\n{PLAIN}"));
    let (a, b) = ("A = T.match_buffer(a, (16,), \"float32\")", "B = T.match_buffer(b, (16,), \"float32\")");
    let attr = "T.func_attr({\"tirx.noalias\": True})";
    let threads = "with T.launch_thread(\"blockIdx.x\", 4) as bx:\n    tx = T.launch_thread(\"threadIdx.x\", 4)\n    \
                   B[bx * 4 + tx] = A[bx * 4 + tx] * T.float32(2)";
    let environment = "tx = T.env_thread(\"threadIdx.x\")\nT.launch_thread(tx, 16)\nB[tx] = A[tx] * T.float32(2)";
    let extent =
        "tx = T.env_thread(\"threadIdx.x\")\nwith T.attr(tx, \"thread_extent\", 16):\n    B[tx] = A[tx] * T.float32(2)";
    let memory =
        "p = T.allocate([16], \"float32\", \"local\")\nC = T.decl_buffer((16,), \"float32\", data=p)\nfor i in \
                  range(16):\n    C[i] = A[i]\nfor i in range(16):\n    B[i] = C[i] * T.float32(2)";
    let own =
        "with T.decl_buffer((16,), \"float32\", scope=\"shared\") as C:\n    for i in range(16):\n        C[i] = \
               A[i]\n        B[i] = C[i] * T.float32(2)";
    let meta =
        "N = T.meta_var(16)\nX = T.meta_var(A)\nassert N == 16\nfor i in range(N):\n    B[i] = X[i] * T.float32(2)";
    let texts = [
        matched(&format!("{attr}\n{a}\n{b}")),
        matched(&format!("{b}\n{attr}\n{a}")),
        matched(&format!("'''About it.'''\n{a}\n{attr}\n{b}")),
        double(PARAMS, threads),
        double(PARAMS, environment),
        double(PARAMS, extent),
        double(PARAMS, memory),
        double(PARAMS, own),
        double(PARAMS, meta),
        format!(
            "def make(n=16, dtype=\"float32\"):\n{}",
            indented(&double("A: T.Buffer((n,), dtype), B: T.Buffer((n,), dtype)", PLAIN))
        ),
        format!(
            "n, dtype = 16, \"float32\"\n@I.ir_module\nclass Module:\n{}",
            indented(&double("A: T.Buffer((n,), dtype), B: T.Buffer((n,), dtype)", PLAIN))
        ),
    ];
    for text in texts {
        let program = read("p.py", &text);
        interp::equal_on(&plain, &program, 3).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}

/// The size of the least integer is none of its type.
#[test]
fn the_least_integer_is_read() {
    let text = double("A: T.Buffer((16,), \"int64\")", "for i in range(16):\n    A[i] = T.min_value(\"int64\")");
    assert!(tvmscript::print(&read("p.py", &text)).contains("T.int64(-9223372036854775808)"));
}

fn indented(text: &str) -> String {
    text.lines().map(|l| format!("    {l}\n")).collect()
}

#[test]
fn functions_are_chosen_and_scalars_given() {
    let open = "def f(a: T.handle, b: T.handle, n: T.int32, x: T.float32):\n    A = T.match_buffer(a, (n,))\n    B = \
                T.match_buffer(b, (n,))\n    for i in range(n):\n        B[i] = A[i] * x\n";
    let symbolic = "def g(a: T.handle, b: T.handle):\n    m = T.int32()\n    A = T.match_buffer(a, (m,))\n    B = \
                    T.match_buffer(b, (m,))\n    for i in range(m):\n        B[i] = A[i] * T.float32(2)\n";
    let module = format!("@T.prim_func\n{open}\n@T.prim_func\n{symbolic}");
    let plain = read("p.py", &double(PARAMS, PLAIN));
    for choice in ["m.py::f(n=16, x=2)", "m.py::g(m=16)"] {
        interp::equal_on(&plain, &read(choice, &module), 3).unwrap_or_else(|e| panic!("{choice}: {e}"));
    }
    for (choice, why) in [
        ("m.py", "there are 2 functions: f, g (say which: FILE::f; or name one of them main)"),
        ("m.py::h", "there is no function h, but f, g"),
        ("m.py::f(n=16)", "x is a scalar of type float32 and has no value"),
        ("m.py::f", "give it behind the file's name, FILE::main(n=128)"),
        ("m.py::f(n=16, x=2, y=3)", "y is no scalar that the function leaves open"),
        ("m.py::f(n=many, x=2)", "\"many\" is no value of n, which is of type int32"),
        ("m.py::g", "m is a scalar of type int32 and has no value"),
        ("m.py::g(m", "a bracket is not closed"),
    ] {
        let said = refused(choice, &module);
        assert!(said.contains(why), "{choice}: {said}");
    }
}

#[test]
fn what_means_nothing_is_refused() {
    for (body, why) in [
        ("while T.bool(True):\n    B[0] = A[0]", "1: "),
        ("i = T.int32(0)\nwhile i < 4:\n    B[0] = A[0]", "how often a while runs is not known"),
        ("with T.attr(A, \"pragma_x\", 1):\n    B[0] = A[0]", "T.attr \"pragma_x\" has no meaning"),
        (
            "with T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), \"reduce_scope\", T.reinterpret(\"handle\", \
             T.uint64(0))):\n    T.tvm_thread_allreduce(T.uint32(1), A[0], True, B[0], 0)",
            "a reduction that is written out has no meaning",
        ),
        ("T.evaluate(T.tvm_thread_allreduce(T.uint32(1), A[0], True, B[0], 0))", "T.axis.reduce and T.init"),
        ("B[0] = T.Reduce(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), [A[0]], [], [], True, 0)", "is written out"),
        ("assert A[0] > T.float32(0)\nB[0] = A[0]", "a kernel cannot check this while it runs"),
        ("tx = T.env_thread(\"threadIdx.w\")\nB[0] = A[0]", "\"threadIdx.w\" is no thread axis"),
        ("C = T.decl_buffer((16,), \"float32\", data=A.data)\nB[0] = C[0]", "two buffers would lie in the same memory"),
    ] {
        let said = refused("p.py", &double(PARAMS, body));
        assert!(said.contains(why) || why == "1: ", "{body}: {said}");
    }
}

#[test]
fn intrinsics_are_read_where_they_are_registered() {
    let two = "@T.prim_func\ndef d(A: T.Buffer((4,))):\n    A[0] = T.float32(1)\n@T.prim_func\ndef i(A: \
               T.Buffer((4,))):\n    A[0] = T.float32(1)\n";
    let found = tvmscript::parse_intrinsics("i.py", &format!("{two}TensorIntrin.register(\"one\", d, i)\n")).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "one");
    for (line, why) in [
        ("", "no intrinsic is registered here"),
        ("TensorIntrin.register(\"one\", d, j)", "j is no function"),
        ("TensorIntrin.register(\"one\", d)", "the argument impl is missing"),
        ("TensorIntrin.register(one, d, i)", "one is no text"),
    ] {
        let error = tvmscript::parse_intrinsics("i.py", &format!("{two}{line}\n")).unwrap_err();
        assert!(error.message.contains(why), "{line}: {}", error.message);
    }
}

/// A type that a function is given beside its arguments is none of its own. Products of fixed-point numbers are rounded to the nearest.
#[test]
fn types_beside_arguments_and_fixed_point_products() {
    let body = |value: &str| format!("for i in range(16):\n    B[i] = {value}");
    let named = read("p.py", &double(PARAMS, &body("T.exp(A[i], dtype=\"float32\")")));
    structural::equal(&named, &read("p.py", &double(PARAMS, &body("T.exp(A[i])")))).unwrap();
    let error = refused("p.py", &double(PARAMS, &body("T.exp(A[i], base=2)")));
    assert!(error.contains("takes no named arguments"), "{error}");
    let error = refused("p.py", &double(PARAMS, &body("T.q_multiply_shift(A[i], 5, 31, 2)")));
    assert!(error.contains("an integer is expected here, not float32"), "{error}");
    let whole = "A: T.Buffer((4,), \"int32\"), Y: T.Buffer((4,), \"int32\"), B: T.Buffer((4,), \"int32\")";
    for (value, of) in [
        ("T.q_multiply_shift_per_axis(A[i], Y[i], 2, 1, 31, True, True, dtype=\"int32\")", [2, 1]),
        ("T.q_multiply_shift_per_axis(A[i], Y[i], 2, 1, 31, False, True)", [0, 1]),
        ("T.q_multiply_shift(A[i], Y[i], 31, 3)", [3, 0]),
        ("T.q_multiply_shift(A[i], Y[i], 31, -4)", [0, 4]),
    ] {
        let program = read("q.py", &double(whole, &format!("for i in range(4):\n    B[i] = {value}")));
        let (a, y) = ([1000, -1000, 7, 123_456], [1 << 30, 1_500_000_000, -1_500_000_000, 3]);
        let array =
            |values: [i32; 4]| interp::Array::from_i64(satune_ir::DType::I32, &[4], &values.map(i64::from)).unwrap();
        let after = interp::run(&program, &[array(a), array(y), array([0; 4])]).unwrap();
        let [left, right] = of;
        let exact =
            |i: usize| (i64::from(a[i]) << left) as f64 * f64::from(y[i]) / (f64::from(1 << right) * 2f64.powi(31));
        for (i, got) in after[2].to_f64().into_iter().enumerate() {
            assert!((got - exact(i)).abs() <= 0.5, "{value}: {got}, {}", exact(i));
        }
    }
}

/// Iterators whose instances run one after the other are read and printed, and no primitive binds their loops.
#[test]
fn iterators_of_scans_are_their_own_kind() {
    let body = "for i, j in T.grid(4, 4):\n    with T.sblock(\"S\"):\n        vi = T.axis.spatial(4, i)\n        vj = T.axis.scan(4, j)\n        \
                B[vi * 4 + vj] = T.if_then_else(vj == 0, T.float32(0), B[vi * 4 + vj - 1]) + A[vi * 4 + vj]";
    let program = read("p.py", &double(PARAMS, body));
    let text = tvmscript::print(&program);
    assert!(text.contains("vj = T.axis.scan(4, j)") && text.contains("vi = T.axis.spatial(4, i)"), "{text}");
}
