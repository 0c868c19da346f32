//! Streaming operators by name, as TVMScript.
use super::problem::{LONGEST, MOST_INSTANCES};
use crate::operators::OperatorError;

/// The operators with their arguments.
const KNOWN: &[(&str, &[&str])] = &[
    ("rowsum", &["M", "N"]),
    ("mean", &["M", "N"]),
    ("softmax", &["M", "N"]),
    ("layernorm", &["M", "N"]),
    ("rmsnorm", &["M", "N"]),
    ("transpose", &["M", "N"]),
    ("gemv", &["M", "K"]),
    ("relu_chain", &["M", "N"]),
];

/// Their names, for a sentence.
pub fn list() -> String {
    KNOWN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Whether a text names one of them.
pub fn names(text: &str) -> bool {
    text.split_once(':').is_some_and(|(name, _)| KNOWN.iter().any(|(n, _)| *n == name))
}

/// The program of an operator as TVMScript.
///
/// # Errors
/// Unknown types, extents that are not whole numbers from 1 to 2^28 with a product up to 2^40, wrong number of arguments.
pub fn script(text: &str) -> Result<String, OperatorError> {
    let error = |reason: String, remedy: &str| OperatorError {
        text: text.chars().take(60).collect(),
        reason,
        remedy: remedy.into(),
    };
    let known: Vec<String> = KNOWN.iter().map(|(name, args)| format!("{name}:{},dtype", args.join(","))).collect();
    let form = format!("write one of {}", known.join(", "));
    let found = text.split_once(':').and_then(|(name, rest)| KNOWN.iter().find(|(n, _)| *n == name).map(|k| (k, rest)));
    let Some(((name, args), rest)) = found else { return Err(error("unknown operator".into(), &form)) };
    let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
    if parts.len() != args.len() + 1 {
        return Err(error(format!("{} arguments where {} belong", parts.len(), args.len() + 1), &form));
    }
    let mut extents = Vec::new();
    for (part, arg) in parts.iter().zip(*args) {
        let range = "give a whole number from 1 to 268435456";
        let value: i64 = part.parse().map_err(|_| {
            error(format!("{arg} is `{}`, not a whole number", part.chars().take(60).collect::<String>()), range)
        })?;
        if !(1..=LONGEST).contains(&value) {
            return Err(error(format!("{arg} is {value}"), range));
        }
        extents.push(value);
    }
    if extents[0].saturating_mul(extents[1]) > MOST_INSTANCES {
        let remedy = format!("their product is at most {MOST_INSTANCES}");
        return Err(error(format!("{} is {} and {} is {}", args[0], extents[0], args[1], extents[1]), &remedy));
    }
    let dtype = match parts[args.len()] {
        "f32" => "float32",
        "f16" => "float16",
        "bf16" => "bfloat16",
        other => {
            let shown: String = other.chars().take(60).collect();
            return Err(error(
                format!("unknown type `{shown}`"),
                "types are f32, f16 and bf16 (of inputs and results; sums are f32)",
            ));
        }
    };
    Ok(write(name, extents[0], extents[1], dtype))
}

fn write(name: &str, m: i64, n: i64, dtype: &str) -> String {
    let mut s = Script { lines: Vec::new() };
    let matrix = format!("({m}, {n})");
    let rows = format!("({m},)");
    let columns = format!("({n},)");
    // What is read of a buffer of the inputs' type, and what is stored to one.
    let wide = |e: &str| if dtype == "float32" { e.to_string() } else { format!("T.Cast(\"float32\", {e})") };
    let narrow = |e: &str| if dtype == "float32" { e.to_string() } else { format!("T.Cast(\"{dtype}\", {e})") };
    let sum = "T.float32(0)";
    match name {
        "rowsum" => {
            s.header(&[("A", &matrix, dtype), ("S", &rows, "float32")]);
            s.reduce("sum", m, n, "S", sum, &format!("S[vi] + {}", wide("A[vi, vj]")));
        }
        "mean" => {
            s.header(&[("A", &matrix, dtype), ("S", &rows, "float32")]);
            s.alloc("total", &rows);
            s.reduce("sum", m, n, "total", sum, &format!("total[vi] + {}", wide("A[vi, vj]")));
            s.row("divide", m, &format!("S[vi] = total[vi] / T.float32({n})"));
        }
        "softmax" => {
            s.header(&[("A", &matrix, dtype), ("B", &matrix, dtype)]);
            s.alloc("largest", &rows);
            s.alloc("power", &matrix);
            s.alloc("total", &rows);
            let a = wide("A[vi, vj]");
            s.reduce("max", m, n, "largest", "T.min_value(\"float32\")", &format!("T.max(largest[vi], {a})"));
            s.map("exp", m, n, &format!("power[vi, vj] = T.exp({a} - largest[vi])"));
            s.reduce("sum", m, n, "total", sum, "total[vi] + power[vi, vj]");
            s.map("divide", m, n, &format!("B[vi, vj] = {}", narrow("power[vi, vj] / total[vi]")));
        }
        "transpose" => {
            let other = format!("({n}, {m})");
            s.header(&[("A", &matrix, dtype), ("B", &other, dtype)]);
            s.map("transpose", n, m, "B[vi, vj] = A[vj, vi]");
        }
        "gemv" => {
            s.header(&[("A", &matrix, dtype), ("x", &columns, dtype), ("y", &rows, "float32")]);
            let product = format!("{} * {}", wide("A[vi, vj]"), wide("x[vj]"));
            s.reduce("dot", m, n, "y", sum, &format!("y[vi] + {product}"));
        }
        "layernorm" => {
            s.header(&[
                ("A", &matrix, dtype),
                ("gamma", &columns, dtype),
                ("beta", &columns, dtype),
                ("B", &matrix, dtype),
            ]);
            s.alloc("total", &rows);
            s.alloc("squares", &rows);
            let a = wide("A[vi, vj]");
            let centred = format!("({a} - total[vi] / T.float32({n}))");
            s.reduce("sum", m, n, "total", sum, &format!("total[vi] + {a}"));
            s.reduce("variance", m, n, "squares", sum, &format!("squares[vi] + {centred} * {centred}"));
            let scale = format!("T.rsqrt(squares[vi] / T.float32({n}) + T.float32(1e-5))");
            let value = format!("{centred} * {scale} * {} + {}", wide("gamma[vj]"), wide("beta[vj]"));
            s.map("normalise", m, n, &format!("B[vi, vj] = {}", narrow(&value)));
        }
        "rmsnorm" => {
            s.header(&[("A", &matrix, dtype), ("gamma", &columns, dtype), ("B", &matrix, dtype)]);
            s.alloc("squares", &rows);
            let a = wide("A[vi, vj]");
            s.reduce("sum", m, n, "squares", sum, &format!("squares[vi] + {a} * {a}"));
            let scale = format!("T.rsqrt(squares[vi] / T.float32({n}) + T.float32(1e-6))");
            s.map("scale", m, n, &format!("B[vi, vj] = {}", narrow(&format!("{a} * {scale} * {}", wide("gamma[vj]")))));
        }
        _ => {
            s.header(&[("A", &matrix, dtype), ("bias", &columns, dtype), ("B", &matrix, dtype)]);
            s.lines.push(format!("    shifted = T.sblock_alloc_buffer({matrix}, \"{dtype}\")"));
            s.map("add", m, n, "shifted[vi, vj] = A[vi, vj] + bias[vj]");
            s.map("relu", m, n, &format!("B[vi, vj] = T.max(shifted[vi, vj], T.{dtype}(0))"));
        }
    }
    s.lines.join("\n") + "\n"
}

struct Script {
    lines: Vec<String>,
}

impl Script {
    fn header(&mut self, params: &[(&str, &String, &str)]) {
        let params: Vec<String> =
            params.iter().map(|(name, shape, dtype)| format!("{name}: T.Buffer({shape}, \"{dtype}\")")).collect();
        self.lines.extend([
            "from tvm.script import tirx as T".to_string(),
            String::new(),
            "@T.prim_func(s_tir=True)".into(),
            format!("def main({}):", params.join(", ")),
            "    T.func_attr({\"tirx.noalias\": True})".into(),
        ]);
    }

    fn alloc(&mut self, name: &str, shape: &str) {
        self.lines.push(format!("    {name} = T.sblock_alloc_buffer({shape}, \"float32\")"));
    }

    fn nest(&mut self, name: &str, m: i64, n: i64, kinds: &str, body: &[String]) {
        self.lines.extend([
            format!("    for i, j in T.grid({m}, {n}):"),
            format!("        with T.sblock(\"{name}\"):"),
            format!("            vi, vj = T.axis.remap(\"{kinds}\", [i, j])"),
        ]);
        self.lines.extend(body.iter().map(|line| format!("            {line}")));
    }

    fn reduce(&mut self, name: &str, m: i64, n: i64, target: &str, init: &str, value: &str) {
        let body =
            ["with T.init():".to_string(), format!("    {target}[vi] = {init}"), format!("{target}[vi] = {value}")];
        self.nest(name, m, n, "SR", &body);
    }

    fn map(&mut self, name: &str, m: i64, n: i64, store: &str) {
        self.nest(name, m, n, "SS", &[store.to_string()]);
    }

    fn row(&mut self, name: &str, m: i64, store: &str) {
        self.lines.extend([
            format!("    for i in range({m}):"),
            format!("        with T.sblock(\"{name}\"):"),
            format!("            vi = T.axis.spatial({m}, i)"),
            format!("            {store}"),
        ]);
    }
}
