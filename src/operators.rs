//! Contractions by name: `gemm:M,N,K,dtype[,layout]`, `bmm:B,M,N,K,dtype[,layout]` and
//! `gemm_bias_relu:M,N,K,dtype[,layout]`; [`crate::streaming`] has the operators that stream.
use satune_ir::term::{Axis, Contraction, OperandInfo};
use satune_ir::{tvmscript, DType, Program};

/// A problem: its text as TVMScript, and the contraction that it is.
#[derive(Clone, Debug)]
pub struct Problem {
    /// As it was asked for.
    pub name: String,
    /// TVMScript of the source program.
    pub script: String,
    /// The source program.
    pub program: Program,
    /// What it computes.
    pub contraction: Contraction,
}

/// Why a text names no operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator `{text}`: {reason}; {remedy}")]
pub struct OperatorError {
    /// As asked.
    pub text: String,
    /// What is wrong.
    pub reason: String,
    /// What would be right.
    pub remedy: String,
}

/// Largest extent of an axis.
pub const MOST: i64 = 1 << 20;

/// Reads an operator.
///
/// # Errors
/// Unknown operators, types and layouts, extents that are not whole numbers from 1 to 2^20, wrong number of arguments.
pub fn parse(text: &str) -> Result<Problem, OperatorError> {
    let error = |reason: String, remedy: &str| OperatorError { text: clip(text), reason, remedy: remedy.into() };
    if let Some(rest) = text.strip_prefix("gemm_bias_relu:") {
        return gemm_bias_relu(text, rest);
    }
    let form = "write gemm:M,N,K,dtype[,layout] or bmm:B,M,N,K,dtype[,layout], for instance gemm:4096,4096,4096,f32,NN, or one of gemm_bias_relu, rowsum, mean, softmax, transpose, gemv, relu_chain";
    let Some((operator, rest)) = text.split_once(':') else {
        return Err(error("there is no `:` after the operator's name".into(), form));
    };
    let count = match operator {
        "gemm" => 3,
        "bmm" => 4,
        other => return Err(error(format!("unknown operator `{}`", clip(other)), form)),
    };
    let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
    if parts.len() != count + 1 && parts.len() != count + 2 {
        return Err(error(format!("{} arguments where {} or {} belong", parts.len(), count + 1, count + 2), form));
    }
    let mut extents = Vec::new();
    for (part, name) in parts[..count].iter().zip(if count == 3 { &["M", "N", "K", ""] } else { &["B", "M", "N", "K"] })
    {
        let range = "give a whole number from 1 to 1048576";
        let value: i64 =
            part.parse().map_err(|_| error(format!("{name} is `{}`, not a whole number", clip(part)), range))?;
        if !(1..=MOST).contains(&value) {
            return Err(error(format!("{name} is {value}"), range));
        }
        extents.push(value);
    }
    let (input, sum) = match parts[count] {
        "f32" => (DType::F32, DType::F32),
        "f64" => (DType::F64, DType::F64),
        "f16" => (DType::F16, DType::F32),
        "bf16" => (DType::BF16, DType::F32),
        "e4m3" => (DType::F8E4M3, DType::F32),
        "e5m2" => (DType::F8E5M2, DType::F32),
        "i8" => (DType::I8, DType::I32),
        other => return Err(error(
            format!("unknown type `{}`", clip(other)),
            "types are f32, f64, f16, bf16, e4m3 and e5m2 (sums and result in f32), and i8 (sums and result in i32)",
        )),
    };
    let layout = parts.get(count + 1).copied().unwrap_or("NN");
    if !["NN", "NT", "TN", "TT"].contains(&layout) {
        return Err(error(
            format!("unknown layout `{}`", clip(layout)),
            "layouts are NN, NT, TN and TT (NT: B is stored as N x K)",
        ));
    }
    let batch = if count == 4 { Some(extents.remove(0)) } else { None };
    let transposed = [layout.starts_with('T'), layout.ends_with('T')];
    let contraction = Contraction::gemm(batch, [extents[0], extents[1], extents[2]], input, sum, transposed);
    let script = script(&contraction);
    let program = tvmscript::parse(&script).map_err(|e| error(e.to_string(), "please report this operator"))?;
    Ok(Problem { name: text.into(), script, program, contraction })
}

/// `gemm_bias_relu:M,N,K,dtype[,layout]`: a product, a bias per column, and the larger of that and 0.
fn gemm_bias_relu(text: &str, rest: &str) -> Result<Problem, OperatorError> {
    let plain = parse(&format!("gemm:{rest}")).map_err(|e| OperatorError { text: clip(text), ..e })?;
    let script = epilogue_script(&plain.contraction);
    let failed =
        |reason: String| OperatorError { text: clip(text), reason, remedy: "please report this operator".into() };
    let program = tvmscript::parse(&script).map_err(|e| failed(e.to_string()))?;
    let contraction = satune_rewrites::space::contraction(&program).map_err(|e| failed(e.to_string()))?;
    Ok(Problem { name: text.into(), script, program, contraction })
}

/// The contraction with bias and relu as TVMScript: the sums go to a buffer of their own first.
fn epilogue_script(c: &Contraction) -> String {
    let (m, n, dtype) = (c.extent(Axis::M), c.extent(Axis::N), c.accumulate.name());
    let result = format!("({m}, {n}), \"{dtype}\"");
    let map = |name: &str, store: &str| {
        format!("    for i, j in T.grid({m}, {n}):\n        with T.sblock(\"{name}\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            {store}\n")
    };
    let plain = script(c);
    // The result of the product is no parameter here.
    let parameter = format!(", C: T.Buffer({result})");
    let parameters = format!(", bias: T.Buffer(({n},), \"{dtype}\"), D: T.Buffer({result})");
    let attribute = "    T.func_attr({\"tirx.noalias\": True})\n";
    let allocations =
        format!("{attribute}    C = T.sblock_alloc_buffer({result})\n    shifted = T.sblock_alloc_buffer({result})\n");
    plain.replacen(&parameter, &parameters, 1).replacen(attribute, &allocations, 1)
        + &map("add", "shifted[vi, vj] = C[vi, vj] + bias[vj]")
        + &map("relu", &format!("D[vi, vj] = T.max(shifted[vi, vj], T.{dtype}(0))"))
}

/// The beginning of a text that may be very long.
fn clip(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

/// The contraction as TVMScript.
pub fn script(c: &Contraction) -> String {
    let shape = |o: &OperandInfo| {
        let dims: Vec<String> = o.dims.iter().map(|a| c.extent(*a).to_string()).collect();
        format!("{}: T.Buffer(({}), \"{}\")", o.name, dims.join(", "), o.dtype.name())
    };
    let name_of = |axis: &Axis| c.iters.iter().find(|(a, _)| a == axis).map_or("0", |(_, i)| i.name.as_str());
    let element =
        |o: &OperandInfo| format!("{}[{}]", o.name, o.dims.iter().map(name_of).collect::<Vec<_>>().join(", "));
    let cast = |o: &OperandInfo| {
        if o.dtype == c.accumulate {
            element(o)
        } else {
            format!("T.Cast(\"{}\", {})", c.accumulate.name(), element(o))
        }
    };
    let names: Vec<&str> = c.iters.iter().map(|(_, i)| i.name.as_str()).collect();
    let loops: Vec<&str> = names.iter().map(|n| n.trim_start_matches('v')).collect();
    let extents: Vec<String> = c.iters.iter().map(|(_, i)| i.extent.to_string()).collect();
    let kinds: String = c.iters.iter().map(|(_, i)| if i.reduce { 'R' } else { 'S' }).collect();
    let out = element(&c.c);
    format!(
        "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main({}, {}, {}):\n    T.func_attr({{\"tirx.noalias\": True}})\n    for {} in T.grid({}):\n        with T.sblock(\"{}\"):\n            {} = T.axis.remap(\"{kinds}\", [{}])\n            with T.init():\n                {out} = T.{}(0)\n            {out} = {out} + {} * {}\n",
        shape(&c.a),
        shape(&c.b),
        shape(&c.c),
        loops.join(", "),
        extents.join(", "),
        c.block_name,
        names.join(", "),
        loops.join(", "),
        c.accumulate.name(),
        cast(&c.a),
        cast(&c.b),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_read() {
        let p = parse("bmm:2,16,32,64,f16,NT").unwrap();
        assert_eq!(p.contraction.b.dims, [Axis::Batch(0), Axis::N, Axis::K]);
        assert_eq!((p.contraction.extent(Axis::M), p.contraction.extent(Axis::N)), (16, 32));
        assert!(p.script.contains("T.Cast(\"float32\", A[vb, vi, vk]) * T.Cast(\"float32\", B[vb, vj, vk])"));
    }

    #[test]
    fn bad_operators_are_refused_with_the_remedy() {
        for (text, part) in [
            ("gemm", "there is no `:`"),
            ("conv:1,2", "unknown operator `conv`"),
            ("gemm:0,1,1,f32", "M is 0; give a whole number from 1 to 1048576"),
            ("gemm:1,-4,1,f32", "N is -4;"),
            ("gemm:1,1,1.5,f32", "K is `1.5`, not a whole number"),
            ("gemm:99999999999999999999,1,1,f32", "not a whole number"),
            ("gemm:1048577,1,1,f32", "M is 1048577"),
            ("gemm:1,1,1,f8", "unknown type `f8`"),
            ("gemm:1,1,1,f32,XY", "unknown layout `XY`"),
            ("gemm:1,1,f32", "3 arguments where 4 or 5 belong"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
