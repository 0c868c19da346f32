//! Reads TVM's trace JSON: `Trace.as_json()`, which is [instructions, decisions], an instruction being
//! [kind, inputs, attributes, outputs] and a decision [index of the instruction, decision]. Also the same as TVM's object
//! graph, which `tvm.ir.save_json` writes.
use crate::trace::{Call, Out, Trace, TraceError};
use serde_json::{json, Map, Value};
use std::collections::HashSet;

/// A kind of instruction.
struct InstructionKind {
    name: &'static str,
    op: &'static str,
    inputs: &'static [&'static str],
    attributes: &'static [&'static str],
}

const fn kind(
    name: &'static str,
    op: &'static str,
    inputs: &'static [&'static str],
    attributes: &'static [&'static str],
) -> InstructionKind {
    InstructionKind { name, op, inputs, attributes }
}

/// `*` takes all remaining inputs as positional arguments, `*x` as the list `x`; `buffer` takes two attributes.
const KINDS: &[InstructionKind] = &[
    kind("GetSBlock", "get_sblock", &[], &["name", "func_name"]),
    kind("GetLoops", "get_loops", &["block"], &[]),
    kind("GetChildBlocks", "get_child_blocks", &["block_or_loop"], &[]),
    kind("GetProducers", "get_producers", &["block"], &[]),
    kind("GetConsumers", "get_consumers", &["block"], &[]),
    kind("GetOutputBlocks", "get_output_blocks", &["scope_block"], &[]),
    kind("SamplePerfectTile", "sample_perfect_tile", &["loop"], &["n", "max_innermost_factor"]),
    kind("SampleCategorical", "sample_categorical", &[], &["candidates", "probs"]),
    kind("SamplePartitionedTile", "sample_partitioned_tile", &["loop"], &["n", "partition_pos", "innerpart_factor"]),
    kind("SampleComputeLocation", "sample_compute_location", &["block"], &[]),
    kind("Merge", "merge", &["*"], &[]),
    kind("Fuse", "fuse", &["*"], &["preserve_unit_iters"]),
    kind("Split", "split", &["loop", "*factors"], &["preserve_unit_iters", "disable_predication"]),
    kind("LoopPartition", "loop_partition", &["loop", "*factors"], &["preserve_unit_iters"]),
    kind("Reorder", "reorder", &["*"], &[]),
    kind("ReorderBlockIterVar", "reorder_block_iter_var", &["block", "new_order"], &[]),
    kind("AddUnitLoop", "add_unit_loop", &["block_or_loop"], &[]),
    kind("Parallel", "parallel", &["loop"], &[]),
    kind("Vectorize", "vectorize", &["loop"], &[]),
    kind("Bind", "bind", &["loop"], &["thread_axis"]),
    kind("Unroll", "unroll", &["loop"], &[]),
    kind("CacheRead", "cache_read", &["block", "consumer_blocks"], &["read_buffer_index", "storage_scope"]),
    kind("CacheWrite", "cache_write", &["block", "consumer_blocks"], &["write_buffer_index", "storage_scope"]),
    kind("ReIndex", "reindex", &["block"], &["buffer"]),
    kind("ReindexCacheRead", "reindex_cache_read", &["block", "index_map"], &["read_buffer_index", "storage_scope"]),
    kind("ReindexCacheWrite", "reindex_cache_write", &["block", "index_map"], &["write_buffer_index", "storage_scope"]),
    kind("CacheInplace", "cache_inplace", &["block"], &["read_buffer_index", "storage_scope"]),
    kind("CacheIndex", "cache_index", &["block"], &["storage_scope", "cse_thresh"]),
    kind("ReadAt", "read_at", &["loop", "block"], &["read_buffer_index", "storage_scope"]),
    kind("WriteAt", "write_at", &["loop", "block"], &["write_buffer_index", "storage_scope"]),
    kind("ComputeAt", "compute_at", &["block", "loop"], &["preserve_unit_loops", "index"]),
    kind("ReverseComputeAt", "reverse_compute_at", &["block", "loop"], &["preserve_unit_loops", "index"]),
    kind("ComputeInline", "compute_inline", &["block"], &[]),
    kind("ReverseComputeInline", "reverse_compute_inline", &["block"], &[]),
    kind("FuseReductionEpilogue", "fuse_reduction_epilogue", &["reduction_block", "epilogue_block"], &[]),
    kind("DecomposeReduction", "decompose_reduction", &["block", "loop"], &[]),
    kind("RFactor", "rfactor", &["loop"], &["factor_axis"]),
    kind("StorageAlign", "storage_align", &["block"], &["buffer_index", "axis", "factor", "offset"]),
    kind("SetScope", "set_scope", &["block"], &["buffer_index", "storage_scope"]),
    kind("UnsafeSetDType", "unsafe_set_dtype", &["block"], &["buffer_index", "dtype"]),
    kind("Blockize", "blockize", &["target"], &["preserve_unit_iters"]),
    kind("Tensorize", "tensorize", &["block_or_loop"], &["tensor_intrin", "preserve_unit_iters"]),
    kind("Annotate", "annotate", &["block_or_loop", "ann_val"], &["ann_key"]),
    kind("AnnotateBufferAccess", "annotate_buffer_access", &["block", "buffer_index", "buf_type", RANGES], &[]),
    kind("UnsafeHideBufferAccess", "unsafe_hide_buffer_access", &["block", "buf_type", "buf_index_array"], &[]),
    kind("Unannotate", "unannotate", &["block_or_loop"], &["ann_key"]),
    kind(
        "TransformLayout",
        "transform_layout",
        &["block", "index_map"],
        &["buffer", "pad_value", "assume_injective_transform"],
    ),
    kind("TransformBlockLayout", "transform_block_layout", &["block"], &["index_map"]),
    kind("DecomposePadding", "decompose_padding", &["block", "loop"], &[]),
    kind("PadEinsum", "pad_einsum", &["block"], &["padding"]),
    kind("RollingBuffer", "rolling_buffer", &["block"], &["write_buffer_index"]),
    kind("EnterPostproc", "enter_postproc", &[], &[]),
];

/// Calls that give a list, even of one element.
const LISTS: &[&str] = &[
    "get_loops",
    "get_child_blocks",
    "get_producers",
    "get_consumers",
    "get_output_blocks",
    "split",
    "loop_partition",
    "cache_inplace",
    "cache_index",
    "sample_perfect_tile",
    "sample_partitioned_tile",
];

/// The argument that is an index map of twice as many outputs as there are ranges.
const RANGES: &str = "gen_new_ranges";

/// Attributes that may be written 0 or 1.
const FLAGS: &[&str] =
    &["preserve_unit_iters", "disable_predication", "preserve_unit_loops", "assume_injective_transform"];

fn fail<T>(message: impl Into<String>) -> Result<T, TraceError> {
    Err(TraceError::Tvm(message.into()))
}

/// Whether a value looks like a trace of TVM's.
pub(crate) fn is_trace(value: &Value) -> bool {
    is_graph(value)
        || value.as_array().is_some_and(|parts| {
            let [instructions, decisions] = &parts[..] else { return false };
            decisions.is_array() && instructions.as_array().is_some_and(|list| list.iter().all(Value::is_array))
        })
}

fn is_graph(value: &Value) -> bool {
    value.get("root_index").is_some() && value.get("nodes").is_some_and(Value::is_array)
}

/// Reads such a value.
pub(crate) fn read(value: &Value) -> Result<Trace, TraceError> {
    let graph;
    let value = if is_graph(value) {
        graph = Graph::of(value)?.root()?;
        &graph
    } else {
        value
    };
    let Some([instructions, decisions]) = value.as_array().map(Vec::as_slice) else {
        return fail("a trace is [instructions, decisions]");
    };
    let (Some(instructions), Some(decisions)) = (instructions.as_array(), decisions.as_array()) else {
        return fail("a trace is [instructions, decisions]");
    };
    let mut names = HashSet::new();
    let mut calls = Vec::with_capacity(instructions.len());
    for (at, instruction) in instructions.iter().enumerate() {
        let call = call(instruction, &mut names).map_err(|e| match e {
            TraceError::Tvm(message) => TraceError::Tvm(format!("instruction {at}: {message}")),
            other => other,
        })?;
        calls.push(call);
    }
    for decision in decisions {
        let Some([at, value]) = decision.as_array().map(Vec::as_slice) else {
            return fail("a decision is [index of the instruction, decision]");
        };
        let call = at.as_u64().and_then(|at| calls.get_mut(usize::try_from(at).ok()?));
        let Some(call) = call else { return fail(format!("decision for instruction {at}, which is not there")) };
        call.kwargs.insert("decision".into(), value.clone());
    }
    Ok(Trace { calls })
}

fn call(instruction: &Value, names: &mut HashSet<String>) -> Result<Call, TraceError> {
    let Some([name, inputs, attributes, outputs]) = instruction.as_array().map(Vec::as_slice) else {
        return fail("an instruction is [kind, inputs, attributes, outputs]");
    };
    let (Some(name), Some(inputs), Some(attributes), Some(outputs)) =
        (name.as_str(), inputs.as_array(), attributes.as_array(), outputs.as_array())
    else {
        return fail("an instruction is [kind, inputs, attributes, outputs]");
    };
    let Some(kind) = KINDS.iter().find(|k| k.name == name) else {
        let known: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
        return fail(format!("`{name}` is no instruction that Satune has; it has {}", known.join(", ")));
    };
    let mut call = Call::new(kind.op, []);
    let mut rest = inputs.iter();
    for parameter in kind.inputs {
        if let Some(list) = parameter.strip_prefix('*') {
            let values: Vec<Value> = rest.by_ref().map(|v| input(v, names)).collect::<Result<_, _>>()?;
            if list.is_empty() {
                call.args = values;
            } else {
                call.kwargs.insert(list.into(), values.into());
            }
            continue;
        }
        let Some(value) = rest.next() else { return fail(format!("{name} lacks its input `{parameter}`")) };
        let value = match value.as_str() {
            // Else a map to a constant would be the constant.
            Some(text) if *parameter == "index_map" && text.starts_with('{') => map(text, false)?,
            Some(text) if *parameter == RANGES && text.starts_with('{') => map(text, true)?,
            None if *parameter == "buf_type" => if value.as_i64() == Some(0) { "read" } else { "write" }.into(),
            _ => input(value, names)?,
        };
        call.kwargs.insert((*parameter).into(), value);
    }
    let mut attributes = attributes.iter();
    for parameter in kind.attributes {
        let Some(value) = attributes.next() else { return fail(format!("{name} lacks its attribute `{parameter}`")) };
        let value = match *parameter {
            "buffer" => {
                let Some(of) = attributes.next().and_then(Value::as_u64) else {
                    return fail(format!("{name} does not say whether the buffer is read or written"));
                };
                json!([if of == 0 { "read" } else { "write" }, value])
            }
            "index_map" | "pad_value" => match value.as_str() {
                Some(text) if *parameter == "index_map" => map(text, false)?,
                Some(text) => constant(text)?,
                None => value.clone(),
            },
            flag if FLAGS.contains(&flag) => match value.as_i64() {
                Some(number) => Value::Bool(number != 0),
                None => value.clone(),
            },
            _ => value.clone(),
        };
        call.kwargs.insert((*parameter).into(), value);
    }
    if rest.next().is_some() || attributes.next().is_some() {
        return fail(format!("{name} has more inputs or attributes than Satune knows"));
    }
    let outputs: Option<Vec<String>> = outputs.iter().map(|v| v.as_str().map(str::to_string)).collect();
    let Some(outputs) = outputs else { return fail(format!("the outputs of {name} are not names")) };
    names.extend(outputs.iter().cloned());
    call.out = match &outputs[..] {
        [] => None,
        [one] if !LISTS.contains(&kind.op) => Some(Out::One(one.clone())),
        _ => Some(Out::Many(outputs)),
    };
    Ok(call)
}

/// An input: a name that an earlier instruction bound, a text in quotes, an index map, or a constant.
fn input(value: &Value, names: &HashSet<String>) -> Result<Value, TraceError> {
    Ok(match value {
        Value::String(text) if names.contains(text) => Value::String(format!("${text}")),
        Value::String(text) if text == "None" => Value::Null,
        Value::String(text) if text.starts_with('"') => match serde_json::from_str::<String>(text) {
            Ok(text) => text.into(),
            Err(error) => return fail(format!("{text} is no text: {error}")),
        },
        Value::String(text) if text.starts_with('{') => constant(text)?,
        Value::String(text) => return fail(format!("`{text}` is not bound to anything")),
        Value::Array(items) => items.iter().map(|v| input(v, names)).collect::<Result<_, _>>()?,
        Value::Object(map) => {
            let entries = map.iter().map(|(k, v)| Ok((k.clone(), input(v, names)?)));
            Value::Object(entries.collect::<Result<Map<_, _>, TraceError>>()?)
        }
        other => other.clone(),
    })
}

/// An index map that TVM saved, as a lambda.
fn map(text: &str, pairs: bool) -> Result<Value, TraceError> {
    Graph::of(&graph(text)?)?.map(pairs)
}

/// The same, or the number where it is a constant.
fn constant(text: &str) -> Result<Value, TraceError> {
    Graph::of(&graph(text)?)?.root()
}

fn graph(text: &str) -> Result<Value, TraceError> {
    let value: Value = serde_json::from_str(text)?;
    if !is_graph(&value) {
        return fail("an index map is a graph of nodes");
    }
    Ok(value)
}

/// Most levels of a graph.
const DEEPEST: usize = 200;
/// Most values that a graph may give: its nodes can be shared, and each use gives a copy.
const LARGEST: usize = 1 << 20;

/// TVM's object graph: nodes that refer to each other by index.
struct Graph<'a> {
    nodes: &'a [Value],
    root: &'a Value,
    left: usize,
}

impl<'a> Graph<'a> {
    fn of(value: &'a Value) -> Result<Graph<'a>, TraceError> {
        match (value.get("nodes").and_then(Value::as_array), value.get("root_index")) {
            (Some(nodes), Some(root)) => Ok(Graph { nodes, root, left: LARGEST }),
            _ => fail("a graph has `nodes` and a `root_index`"),
        }
    }

    fn root(&mut self) -> Result<Value, TraceError> {
        self.value(self.root, 0)
    }

    fn node(&mut self, index: &Value, depth: usize) -> Result<(&'a str, &'a Value), TraceError> {
        if depth > DEEPEST || self.left == 0 {
            return fail("the graph is too deep, too large, or refers to itself");
        }
        self.left -= 1;
        let node = index.as_u64().and_then(|i| self.nodes.get(usize::try_from(i).ok()?));
        match node.and_then(|n| Some((n.get("type")?.as_str()?, n.get("data").unwrap_or(&Value::Null)))) {
            Some(node) => Ok(node),
            None => fail(format!("node {index} is not there or has no type")),
        }
    }

    fn field(&self, data: &'a Value, name: &str) -> Result<&'a Value, TraceError> {
        data.get(name).map_or_else(|| fail(format!("a node lacks `{name}`")), Ok)
    }

    fn list(&mut self, index: &Value, depth: usize) -> Result<&'a [Value], TraceError> {
        match self.node(index, depth)? {
            ("ffi.Array", Value::Array(items)) => Ok(items),
            (other, _) => fail(format!("a list is expected, not {other}")),
        }
    }

    fn value(&mut self, index: &Value, depth: usize) -> Result<Value, TraceError> {
        Ok(match self.node(index, depth)? {
            ("None", _) => Value::Null,
            ("int" | "float" | "bool" | "ffi.String", data) => data.clone(),
            ("ir.IntImm", data) => self.value(self.field(data, "value")?, depth + 1)?,
            ("ir.FloatImm", data) => self.field(data, "value")?.clone(),
            ("ffi.Array", Value::Array(items)) => {
                items.iter().map(|i| self.value(i, depth + 1)).collect::<Result<_, _>>()?
            }
            ("ffi.Map" | "ffi.Dict", Value::Array(items)) => {
                let mut map = Map::new();
                for pair in items.chunks_exact(2) {
                    let Value::String(key) = self.value(&pair[0], depth + 1)? else {
                        return fail("the keys of a map are texts");
                    };
                    map.insert(key, self.value(&pair[1], depth + 1)?);
                }
                map.into()
            }
            ("tirx.IndexMap", data) => {
                let outputs = self.list(self.field(data, "final_indices")?, depth + 1)?;
                if let [one] = outputs {
                    if let ("ir.IntImm" | "ir.FloatImm", _) = self.node(one, depth + 1)? {
                        return self.value(one, depth + 1);
                    }
                }
                self.lambda(data, depth, false)?
            }
            (other, _) => return fail(format!("a node of type {other} is no part of a trace that Satune reads")),
        })
    }

    /// The graph's root, an index map, as a lambda.
    fn map(&mut self, pairs: bool) -> Result<Value, TraceError> {
        match self.node(self.root, 0)? {
            ("tirx.IndexMap", data) => self.lambda(data, 0, pairs),
            (other, _) => fail(format!("an index map is expected, not {other}")),
        }
    }

    /// A lambda of an index map; `pairs` are ranges, each of two outputs.
    fn lambda(&mut self, data: &'a Value, depth: usize, pairs: bool) -> Result<Value, TraceError> {
        let outputs = self.list(self.field(data, "final_indices")?, depth + 1)?;
        let params = self.list(self.field(data, "initial_indices")?, depth + 1)?;
        let names: Vec<String> = (0..params.len()).map(|k| format!("i{k}")).collect();
        let mut texts = Vec::with_capacity(outputs.len());
        for index in outputs {
            let text = self.expression(index, params, depth + 1)?;
            texts.push(if self.is_wide(index, depth + 1)? { format!("T.int64({text})") } else { text });
        }
        if pairs {
            texts = texts.chunks_exact(2).map(|pair| format!("({})", pair.join(", "))).collect();
        }
        Ok(json!({"index_map": format!("lambda {}: [{}]", names.join(", "), texts.join(", "))}))
    }

    /// Whether a node is a constant of 64 bits: where a map puts one in front of the iterators, the new one is as wide.
    fn is_wide(&mut self, index: &Value, depth: usize) -> Result<bool, TraceError> {
        let ("ir.IntImm", data) = self.node(index, depth)? else { return Ok(false) };
        let Some(of) = data.get("ty") else { return Ok(false) };
        let (_, of) = self.node(of, depth + 1)?;
        Ok(of.get("dtype").and_then(Value::as_str) == Some("int64"))
    }

    /// An index as Python text; `params` are the nodes of the parameters.
    fn expression(&mut self, index: &Value, params: &[Value], depth: usize) -> Result<String, TraceError> {
        let (kind, data) = self.node(index, depth)?;
        let operator = match kind {
            "ir.IntImm" => {
                let value = self.value(index, depth + 1)?;
                return Ok(if value.as_i64().is_some_and(|v| v < 0) {
                    format!("({value})")
                } else {
                    value.to_string()
                });
            }
            "ir.Var" => {
                return match params.iter().position(|p| p == index) {
                    Some(k) => Ok(format!("i{k}")),
                    None => fail("an index map uses a variable that is not one of its parameters"),
                };
            }
            // Widths of indices are not told apart.
            "prim.Cast" => return self.expression(self.field(data, "value")?, params, depth + 1),
            "prim.Add" => "+",
            "prim.Sub" => "-",
            "prim.Mul" => "*",
            "prim.FloorDiv" => "//",
            "prim.FloorMod" => "%",
            "prim.BitwiseXor" => "^",
            "prim.BitwiseAnd" => "&",
            "prim.BitwiseOr" => "|",
            "prim.LeftShift" => "<<",
            "prim.RightShift" => ">>",
            other => return fail(format!("an index map cannot use {other}")),
        };
        let a = self.expression(self.field(data, "a")?, params, depth + 1)?;
        let b = self.expression(self.field(data, "b")?, params, depth + 1)?;
        Ok(format!("({a} {operator} {b})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::PRIMITIVES;

    /// Every instruction that TVM 0.27 registers, and what each is here.
    #[test]
    fn every_instruction_is_known() {
        const TVM: &str = "AddUnitLoop Annotate AnnotateBufferAccess Bind Blockize CacheIndex CacheInplace CacheRead CacheWrite \
                           ComputeAt ComputeInline DecomposePadding DecomposeReduction EnterPostproc Fuse \
                           FuseReductionEpilogue GetChildBlocks GetConsumers GetLoops GetOutputBlocks GetProducers GetSBlock \
                           LoopPartition Merge PadEinsum Parallel RFactor ReIndex ReadAt ReindexCacheRead ReindexCacheWrite \
                           Reorder ReorderBlockIterVar ReverseComputeAt ReverseComputeInline RollingBuffer SampleCategorical \
                           SampleComputeLocation SamplePartitionedTile SamplePerfectTile SetScope Split StorageAlign Tensorize \
                           TransformBlockLayout TransformLayout Unannotate Unroll UnsafeHideBufferAccess UnsafeSetDType \
                           Vectorize WriteAt";
        for name in TVM.split_whitespace() {
            let kind = KINDS.iter().find(|k| k.name == name).unwrap_or_else(|| panic!("{name}"));
            assert!(PRIMITIVES.contains(&kind.op), "{name}: {}", kind.op);
        }
    }

    #[test]
    fn reads_tensorize() {
        let text =
            json!([[["GetSBlock", [], ["C", "main"], ["b0"]], ["Tensorize", ["b0"], ["dp4a_s8s8s32", 1], []]], []]);
        let trace = read(&text).unwrap();
        let call = &trace.calls[1];
        assert_eq!(call.op, "tensorize");
        assert_eq!(call.kwargs["tensor_intrin"], json!("dp4a_s8s8s32"));
        assert_eq!(call.kwargs["preserve_unit_iters"], json!(true));
    }
}
