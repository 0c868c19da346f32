//! Parts of the texts of intrinsics.

/// The name of a multiplication whose description has the factors in the other order, B's before A's: blocks are compared as
/// they are written, and the transposed product's instruction takes its rows from the second factor. It is the same
/// instruction of the same parameters, so blocks with it are read as the other's.
pub(crate) fn swapped(name: &str) -> String {
    format!("{name}{SWAPPED}")
}

/// The end of such a name.
pub(super) const SWAPPED: &str = "_swapped";

/// What a description says of A and B, in their order, or B first.
pub(super) fn in_order(swapped: bool, [a, b]: [String; 2], separator: &str) -> String {
    if swapped { [b, a] } else { [a, b] }.join(separator)
}

/// A parameter: shape and type, and the rest of `T.Buffer`'s arguments.
pub(super) fn param(name: &str, shape: &[i64], dtype: &str, strides: &str, rest: &str) -> String {
    let shape: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    let strides = match strides {
        "" => String::new(),
        s => format!(", strides=(\"{s}0\", \"{s}1\")"),
    };
    format!("{name}: T.Buffer(({}), \"{dtype}\"{strides}, {rest})", shape.join(" "))
}

/// What a parameter in shared memory is told beside its shape, for tiles anywhere in their buffer.
pub(super) fn rest_of_shared() -> String {
    "scope=\"shared\", offset_factor=1".into()
}

/// A function with its root block.
pub(super) fn function(params: &[String], reads: &str, writes: &str, body: &str) -> String {
    let body: String = body.lines().map(|l| format!("        {l}\n")).collect();
    format!(
        "@T.prim_func(s_tir=True)\ndef main({}):\n    with T.sblock(\"root\"):\n        T.reads({reads})\n        \
         T.writes({writes})\n{body}",
        params.join(", ")
    )
}

/// A copy, element by element: the body of descriptions of loads and stores.
pub(super) fn copied(rows: i64, columns: i64, block: &str, target: &str, source: &str) -> String {
    format!(
        "for i, j in T.grid({rows}, {columns}):\n    with T.sblock(\"{block}\"):\n        vi, vj = \
         T.axis.remap(\"SS\", [i, j])\n        {target} = {source}\n"
    )
}

/// `x` in a type, where it has another one.
pub(super) fn cast(from: &str, to: &str, x: &str) -> String {
    if from == to {
        x.to_string()
    } else {
        format!("T.Cast(\"{to}\", {x})")
    }
}

/// Zero of a type.
pub(super) fn zero(dtype: &str) -> String {
    match dtype {
        "int32" => "0".into(),
        other => format!("T.{other}(0)"),
    }
}

/// The short name of a type, as names of intrinsics have it.
pub(super) fn short(dtype: &str) -> &'static str {
    match dtype {
        "float16" => "f16",
        "bfloat16" => "bf16",
        "tfloat32" => "tf32",
        "float32" => "f32",
        "int8" => "s8",
        "float8_e4m3fn" => "e4m3",
        "float8_e5m2" => "e5m2",
        _ => "s32",
    }
}
