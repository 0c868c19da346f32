//! Traces: calls of primitives as data, to be stored, replayed, and printed as Python for TVM.
use crate::intrinsics;
use indexmap::IndexSet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::Write;

/// One call of a primitive. `op` is the name of a method of TVM's `Schedule`.
///
/// Among the arguments, `"$x"` is a value that an earlier call bound, `"$x[2]"` an element of it, `"$x[-1]"` its last one;
/// `{"factors": [null, 8]}` leaves a factor to be inferred; `{"index_map": "lambda i, j: (j, i)"}` is an index map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Name of the primitive.
    pub op: String,
    /// Positional arguments.
    #[serde(default)]
    pub args: Vec<Value>,
    /// Named arguments.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub kwargs: Map<String, Value>,
    /// What the result is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<Out>,
}

/// Name of a result, or names of its elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Out {
    /// The result as it is.
    One(String),
    /// Its elements.
    Many(Vec<String>),
}

/// A list of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// In order.
    pub calls: Vec<Call>,
}

/// Why a text is not a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Not JSON, or not of the form of a trace.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// TVM's form of a trace, but not as TVM writes it, or with an instruction that is not there.
    #[error("{0}")]
    Tvm(String),
    /// Python text that is not a list of calls.
    #[error("line {line}: {message}")]
    Python {
        /// From 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
}

impl Call {
    /// A call with positional arguments.
    pub fn new(op: impl Into<String>, args: impl IntoIterator<Item = Value>) -> Call {
        Call { op: op.into(), args: args.into_iter().collect(), kwargs: Map::new(), out: None }
    }

    /// Adds a named argument.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Call {
        self.kwargs.insert(name.to_string(), value.into());
        self
    }

    /// Names the result.
    pub fn into_name(mut self, name: impl Into<String>) -> Call {
        self.out = Some(Out::One(name.into()));
        self
    }

    /// Names the elements of the result.
    pub fn into_names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Call {
        self.out = Some(Out::Many(names.into_iter().map(Into::into).collect()));
        self
    }
}

impl Trace {
    /// Reads a trace: a list of calls, or an object with `calls`.
    pub fn from_json(text: &str) -> serde_json::Result<Trace> {
        let value: Value = serde_json::from_str(text)?;
        if value.is_array() {
            return Ok(Trace { calls: serde_json::from_value(value)? });
        }
        serde_json::from_value(value)
    }

    /// Writes a trace, as an object with `calls`.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// A Python function `func(sch)` that makes the same calls on a `tvm.s_tir.Schedule`.
    pub fn to_python(&self, func: &str) -> String {
        let mut out = format!("def {}(sch):\n", identifier(func));
        if self.calls.is_empty() {
            out.push_str("    pass\n");
        }
        self.register_intrinsics(&mut out);
        for call in &self.calls {
            let op = if call.op == "get_block" { "get_sblock" } else { &call.op };
            let positional = call.args.iter().map(|a| python(a, Some(op)));
            let named = call.kwargs.iter().map(|(k, v)| format!("{k}={}", python(v, Some(k))));
            let args: Vec<String> = positional.chain(named).collect();
            let target = match &call.out {
                None => String::new(),
                Some(Out::One(name)) => format!("{} = ", identifier(name)),
                Some(Out::Many(names)) => {
                    let names: Vec<String> = names.iter().map(|n| identifier(n)).collect();
                    let comma = if names.len() == 1 { "," } else { "" };
                    format!("{}{comma} = ", names.join(", "))
                }
            };
            if op == NORMALIZE {
                // No method of a schedule.
                let _ = writeln!(out, "    from tvm.s_tir.dlight import {NORMALIZE}");
                let _ = writeln!(out, "    {target}{NORMALIZED}sch)]");
                continue;
            }
            // Writing to a string cannot fail.
            let _ = writeln!(out, "    {target}sch.{op}({})", args.join(", "));
        }
        out
    }

    /// The first of its primitives that TVM does not have.
    pub fn beyond_tvm(&self) -> Option<&str> {
        self.calls.iter().map(|c| c.op.as_str()).find(|op| BEYOND_TVM.contains(op))
    }

    /// Lines that make intrinsics known to TVM: its own by their module, those that it does not have by their texts.
    fn register_intrinsics(&self, out: &mut String) {
        let names = self.calls.iter().filter(|c| c.op == "tensorize");
        let names = names.filter_map(|c| c.args.get(1).or_else(|| c.kwargs.get("tensor_intrin"))?.as_str());
        let names: IndexSet<&str> = names.collect();
        let count = names.len();
        let own: Vec<_> = names.into_iter().filter_map(|n| Some((n, intrinsics::texts_of_own(n)?))).collect();
        if own.len() < count {
            out.push_str("    import tvm.s_tir.tensor_intrin\n");
        }
        if own.is_empty() {
            return;
        }
        out.push_str("    from tvm.s_tir import TensorIntrin\n    from tvm.script import from_source\n");
        for (name, texts) in own {
            let texts = texts.map(|t| format!("from_source({})", Value::from(t)));
            let _ = writeln!(out, "    {REGISTER}(\"{name}\", {}, override=True)", texts.join(", "));
        }
    }
}

/// Primitives that TVM does not have.
const BEYOND_TVM: [&str; 1] = ["rebase_reduction"];
/// What makes an intrinsic known to TVM: no call of a schedule.
pub(crate) const REGISTER: &str = "TensorIntrin.register";
/// The one primitive that TVM has as a function of a schedule.
pub(crate) const NORMALIZE: &str = "normalize_prim_func";
/// How its blocks are had in Python, up to the schedule's name.
pub(crate) const NORMALIZED: &str = "[info.block_rv for info in normalize_prim_func(";

/// A name that Python accepts.
fn identifier(name: &str) -> String {
    const KEYWORDS: [&str; 12] = ["as", "is", "in", "if", "or", "and", "not", "for", "def", "del", "lambda", "sch"];
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    if KEYWORDS.contains(&out.as_str()) {
        out.push('_');
    }
    out
}

/// A JSON value as a Python expression. A list whose first element is `"read"` or `"write"` names a block's buffer.
fn python(value: &Value, key: Option<&str>) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(n) => n.to_string(),
        Value::String(text) => reference(text).unwrap_or_else(|| match key {
            Some("index_map") => text.clone(),
            _ => Value::String(text.clone()).to_string(),
        }),
        Value::Array(items) => {
            let list: Vec<String> = items.iter().map(|v| python(v, None)).collect();
            match items.first() {
                Some(Value::String(kind)) if items.len() == 2 && (kind == "read" || kind == "write") => {
                    format!("({})", list.join(", "))
                }
                _ => format!("[{}]", list.join(", ")),
            }
        }
        Value::Object(map) => match map.get("index_map") {
            Some(Value::String(text)) if map.len() == 1 => text.clone(),
            _ => {
                let entries: Vec<String> =
                    map.iter().map(|(k, v)| format!("{}: {}", Value::String(k.clone()), python(v, None))).collect();
                format!("{{{}}}", entries.join(", "))
            }
        },
    }
}

fn reference(text: &str) -> Option<String> {
    let name = text.strip_prefix('$')?;
    Some(match name.split_once('[') {
        Some((name, index)) => format!("{}[{index}", identifier(name)),
        None => identifier(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_python() {
        let text = r#"[{"op": "get_sblock", "args": ["C"], "out": "b"},
            {"op": "get_loops", "args": ["$b"], "out": ["i", "j", "k"]},
            {"op": "split", "args": ["$i"], "kwargs": {"factors": [null, 8]}, "out": ["io", "ii"]},
            {"op": "compute_at", "args": ["$b", "$io", true]},
            {"op": "transform_layout", "args": ["$b", ["read", 0], {"index_map": "lambda i, j: (j, i)"}]}]"#;
        let trace = Trace::from_json(text).unwrap();
        assert_eq!(
            trace.to_python("tile"),
            "def tile(sch):\n    b = sch.get_sblock(\"C\")\n    i, j, k = sch.get_loops(b)\n    io, ii = sch.split(i, \
             factors=[None, 8])\n    sch.compute_at(b, io, True)\n    sch.transform_layout(b, (\"read\", 0), lambda i, j: \
             (j, i))\n"
        );
        assert_eq!(Trace::from_json(&trace.to_json().unwrap()).unwrap(), trace);
    }
}
