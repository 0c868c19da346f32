//! Cases of the primitives that change what blocks say, how a sum ends, or where a copy stands.
use super::programs::script;
use super::Case;
use satune_rewrites::Call;
use serde_json::{json, Value};

const SUM: &str = "
S = T.sblock_alloc_buffer((8, 6))
for i, j, k in T.grid(8, 6, 4):
    with T.sblock(\"S\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            S[vi, vj] = T.float32(0)
        S[vi, vj] = S[vi, vj] + A[vi, vk] * B[vk, vj]
for i, j in T.grid(8, 6):
    with T.sblock(\"D\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        D[vi, vj] = VALUE";
const SUM_PARAMS: &str = "A: (8, 4), B: (4, 6), C: (6), D: (8, 6)";

/// A producer under the tiles of its consumer; tiles of 4, windows of 3.
const TILES: &str = "
B = T.sblock_alloc_buffer((10, 10))
for i, j in T.grid(2, 2):
    for x, y in T.grid(6, 6):
        with T.sblock(\"B\"):
            vi = T.axis.spatial(10, i * 4 + x)
            vj = T.axis.spatial(10, j * 4 + y)
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for x, y, p, q in T.grid(4, 4, 3, 3):
        with T.sblock(\"C\"):
            vi = T.axis.spatial(8, i * 4 + x)
            vj = T.axis.spatial(8, j * 4 + y)
            vp, vq = T.axis.remap(\"RR\", [p, q])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + B[vi + vp, vj + vq]";

/// One dimension with windows, the other without.
const ROWS: &str = "
B = T.sblock_alloc_buffer((10, 6))
for i in range(8):
    for x, y in T.grid(3, 6):
        with T.sblock(\"B\"):
            vi = T.axis.spatial(10, i + x)
            vj = T.axis.spatial(6, y)
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for y, p in T.grid(6, 3):
        with T.sblock(\"C\"):
            vi = T.axis.spatial(8, i)
            vj, vp = T.axis.remap(\"SR\", [y, p])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + B[vi + vp, vj]";

const CHAIN: &str = "
B = T.sblock_alloc_buffer((8, 6))
for i, j in T.grid(8, 6):
    with T.sblock(\"B\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        B[vi, vj] = A[vi, vj] + T.float32(1)
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = B[vi, vj] * T.float32(2)";
const CHAIN_PARAMS: &str = "A: (8, 6), C: (8, 6)";

/// The cases; `changes` those that compute something else, as TVM documents.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let mut case = |name: String, params: &str, body: &str, calls: Vec<Call>, changes: bool| {
        out.push(Case { name, script: script(params, body), calls, changes });
    };
    let block = |name: &str| Call::new("get_sblock", [json!(name)]).into_name(name.to_lowercase());
    let loops = |name: &str| Call::new("get_loops", [json!(format!("${name}"))]).into_name(format!("l{name}"));
    for (value, changes) in [
        ("S[vi, vj] + C[vj]", false),
        ("C[vj] + S[vi, vj]", false),
        ("T.max(S[vi, vj] + C[vj], T.float32(0))", true),
        ("T.max(T.float32(0), C[vj] + S[vi, vj])", true),
        ("T.min(T.max(S[vi, vj], T.float32(-1)), T.float32(5))", true),
        ("T.max(T.min(T.float32(5), S[vi, vj]), T.float32(-1))", true),
        ("S[vi, vj] * T.float32(2) + C[vj]", false),
        ("S[vi, vj] + S[vi, vj]", false),
        ("S[vi, vj] + C[vj] + C[0]", false),
        ("C[vj] * T.float32(2)", false),
        ("S[vi, vj] - C[vj]", false),
        ("T.exp(S[vi, vj])", false),
    ] {
        let fuse = Call::new("fuse_reduction_epilogue", [json!("$s"), json!("$d")]);
        let body = SUM.replace("VALUE", value);
        case(format!("epilogue {value}"), SUM_PARAMS, &body, vec![block("S"), block("D"), fuse], changes);
    }
    let body = SUM.replace("VALUE", "S[vi, vj] + C[vj]");
    let wrong = Call::new("fuse_reduction_epilogue", [json!("$d"), json!("$s")]);
    case("epilogue: the other way".into(), SUM_PARAMS, &body, vec![block("S"), block("D"), wrong], false);
    for (name, params, body) in [("tiles", "A: (10, 10), C: (8, 8)", TILES), ("rows", "A: (10, 6), C: (8, 6)", ROWS)] {
        for (at, index) in [("B", 0), ("B", 1), ("C", 0)] {
            let call = Call::new("rolling_buffer", [json!(format!("${}", at.to_lowercase())), json!(index)]);
            case(format!("{name}: rolling_buffer {at} {index}"), params, body, vec![block(at), call], false);
        }
    }
    let apart = Call::new("rolling_buffer", [json!("$b"), json!(0)]);
    case("chain: rolling_buffer".into(), CHAIN_PARAMS, CHAIN, vec![block("B"), apart], false);
    for (dtype, changes) in [("float16", true), ("float32", false), ("float64", false)] {
        for at in ["B", "C"] {
            let call =
                Call::new("unsafe_set_dtype", [json!(format!("${}", at.to_lowercase())), json!(0), json!(dtype)]);
            let changes = changes && at == "B";
            case(format!("unsafe_set_dtype {at} {dtype}"), CHAIN_PARAMS, CHAIN, vec![block(at), call], changes);
        }
    }
    for order in [json!([1, 0]), json!([0, 1]), json!([0]), json!([0, 0]), json!([1, 2]), json!([-1, 0])] {
        let name = format!("reorder_block_iter_var {order}");
        let call = Call::new("reorder_block_iter_var", [json!("$b"), order]);
        case(name, CHAIN_PARAMS, CHAIN, vec![block("B"), call], false);
    }
    for (op, at, depth) in [("read_at", "C", 0), ("read_at", "C", 1), ("write_at", "B", 0), ("write_at", "C", 1)] {
        for (index, memory) in [(0, "shared"), (0, "local"), (3, "shared")] {
            let name = at.to_lowercase();
            let args = [json!(format!("$l{name}[{depth}]")), json!(format!("${name}")), json!(index), json!(memory)];
            let calls = vec![block(at), loops(&name), Call::new(op, args).into_name("x")];
            case(format!("{op} {at} {depth} {index} {memory}"), CHAIN_PARAMS, CHAIN, calls, false);
        }
    }
    for (kind, list) in [("read", json!([0])), ("write", json!([])), ("read", json!([1])), ("both", json!([0]))] {
        let name = format!("unsafe_hide_buffer_access {kind} {list}");
        let call = Call::new("unsafe_hide_buffer_access", [json!("$b"), json!(kind), list]);
        case(name, CHAIN_PARAMS, CHAIN, vec![block("B"), call], false);
    }
    for (index, kind, map) in [
        (0, "read", "lambda vi, vj: ((vi, vi + 2), vj)"),
        (0, "write", "lambda vi, vj: [(vi, vi + 1), (vj, vj + 1)]"),
        (0, "read", "lambda vi, vj: ((vi, vj),)"),
        (1, "read", "lambda vi, vj: (vi, vj)"),
    ] {
        let args = [json!("$b"), json!(index), json!(kind), json!({ "index_map": map })];
        let call = Call::new("annotate_buffer_access", args);
        case(
            format!("annotate_buffer_access {index} {kind} {map}"),
            CHAIN_PARAMS,
            CHAIN,
            vec![block("B"), call],
            false,
        );
    }
    for decision in [-2, -1, 0, 1, 7] {
        let sample = Call::new("sample_compute_location", [json!("$b"), json!(decision)]).into_name("l");
        let compute = Call::new("compute_at", [json!("$b"), json!("$l"), json!(true)]);
        let name = format!("sample_compute_location {decision}");
        case(name, CHAIN_PARAMS, CHAIN, vec![block("B"), sample, compute], false);
    }
    for (position, number, decision) in [
        (1, 2, json!([4, 2])),
        (1, 4, json!([4, 2])),
        (1, 3, json!([4, 2])),
        (0, 1, json!([2, 4])),
        (1, 2, json!([3, 2])),
    ] {
        let args: Vec<Value> = vec![json!("$lb[0]"), json!(2), json!(position), json!(number), decision];
        let name = format!("sample_partitioned_tile {args:?}");
        let sample = Call::new("sample_partitioned_tile", args).into_name("f");
        let split = Call::new("split", [json!("$lb[0]")]).with("factors", json!(["$f[0]", "$f[1]"])).into_name("x");
        case(name, CHAIN_PARAMS, CHAIN, vec![block("B"), loops("b"), sample, split], false);
    }
    // Buffers by name.
    for (op, args) in [
        ("cache_read", vec![json!("$c"), json!("B"), json!("shared")]),
        ("cache_read", vec![json!("$c"), json!(0), json!("shared"), json!(["$c"])]),
        ("cache_write", vec![json!("$c"), json!("C"), json!("local")]),
        ("set_scope", vec![json!("$b"), json!("B"), json!("shared")]),
        ("reindex", vec![json!("$c"), json!("B")]),
        ("transform_layout", vec![json!("$c"), json!("B"), json!({"index_map": "lambda i, j: (j, i)"})]),
    ] {
        let name = format!("{op} {args:?}");
        let call = Call::new(op, args);
        let call = if op.starts_with("cache") || op == "reindex" { call.into_name("x") } else { call };
        case(name, CHAIN_PARAMS, CHAIN, vec![block("B"), block("C"), call], false);
    }
    out
}
