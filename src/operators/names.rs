//! Operators and types by the names that people type.

/// The operators: name, arguments, an example.
pub const OPERATORS: &[(&str, &str, &str)] = &[
    ("gemm", "M,N,K,dtype[,layout][,options]", "gemm:4096,4096,4096,bf16,NT,out=bf16"),
    ("bmm", "B,M,N,K,dtype[,layout][,options]", "bmm:12,512,512,64,f16,NT"),
    ("gemm_bias_relu", "M,N,K,dtype[,layout]", "gemm_bias_relu:1024,1024,1024,f32"),
    ("conv1d", "N,W,CI,CO,KW,dtype[,options]", "conv1d:1,1024,64,64,3,f16,pad=1"),
    ("conv2d", "N,H,W,CI,CO,KH,KW,dtype[,options]", "conv2d:1,56,56,64,64,3,3,f16,pad=1"),
    ("conv3d", "N,D,H,W,CI,CO,KD,KH,KW,dtype[,options]", "conv3d:1,8,28,28,16,32,3,3,3,f16"),
    ("conv2d_transpose", "N,H,W,CI,CO,KH,KW,dtype[,options]", "conv2d_transpose:1,4,4,64,64,4,4,f16,stride=2,pad=1"),
    ("rowsum", "M,N,dtype", "rowsum:4096,4096,f32"),
    ("mean", "M,N,dtype", "mean:4096,4096,f32"),
    ("softmax", "M,N,dtype", "softmax:4096,4096,f32"),
    ("layernorm", "M,N,dtype", "layernorm:4096,4096,f16"),
    ("rmsnorm", "M,N,dtype", "rmsnorm:4096,4096,bf16"),
    ("transpose", "M,N,dtype", "transpose:4096,4096,f32"),
    ("gemv", "M,K,dtype", "gemv:4096,4096,f16"),
    ("relu_chain", "M,N,dtype", "relu_chain:4096,4096,f32"),
];

/// Other names of operators.
const ALIASES: &[(&str, &str)] = &[
    ("matmul", "gemm"),
    ("mm", "gemm"),
    ("dot", "gemm"),
    ("batch_matmul", "bmm"),
    ("batched_gemm", "bmm"),
    ("linear_relu", "gemm_bias_relu"),
    ("deconv2d", "conv2d_transpose"),
    ("conv_transpose2d", "conv2d_transpose"),
    ("row_sum", "rowsum"),
    ("sum", "rowsum"),
    ("layer_norm", "layernorm"),
    ("rms_norm", "rmsnorm"),
    ("matvec", "gemv"),
];

/// Other names of types.
const TYPES: &[(&str, &str)] = &[
    ("fp32", "f32"),
    ("float32", "f32"),
    ("float", "f32"),
    ("single", "f32"),
    ("fp64", "f64"),
    ("float64", "f64"),
    ("double", "f64"),
    ("fp16", "f16"),
    ("float16", "f16"),
    ("half", "f16"),
    ("bfloat16", "bf16"),
    ("int8", "i8"),
    ("s8", "i8"),
    ("tfloat32", "tf32"),
    ("fp8", "e4m3"),
    ("fp8_e4m3", "e4m3"),
    ("float8_e4m3", "e4m3"),
    ("float8_e4m3fn", "e4m3"),
    ("e4m3fn", "e4m3"),
    ("fp8_e5m2", "e5m2"),
    ("float8_e5m2", "e5m2"),
];

fn known(list: &[(&str, &str)], word: &str) -> Option<String> {
    list.iter().find(|(other, _)| *other == word).map(|(_, name)| (*name).to_string())
}

/// A text in the names that operators, types and layouts have here: `MatMul:64,64,64,Float16,nt` is `gemm:64,64,64,f16,NT`. What
/// is no such name stays as it is.
pub fn canonical(text: &str) -> String {
    let Some((operator, rest)) = text.trim().split_once(':') else { return text.trim().into() };
    let operator = operator.trim().to_lowercase().replace('-', "_");
    let operator = known(ALIASES, &operator).unwrap_or(operator);
    let word = |part: &str| -> String {
        let lower = part.to_lowercase();
        let of_type = |name: &str| known(TYPES, name).unwrap_or_else(|| name.to_string());
        match lower.as_str() {
            // Two letters are a layout, known or not.
            two if two.len() == 2 && two.bytes().all(|c| c.is_ascii_alphabetic()) => part.to_uppercase(),
            _ => match lower.split_once('=') {
                Some((option @ ("out" | "sum"), name)) => format!("{option}={}", of_type(name.trim())),
                Some((option, value)) => format!("{}={}", option.trim(), value.trim()),
                None => of_type(&lower),
            },
        }
    };
    let parts: Vec<String> = rest.split(',').map(|part| word(part.trim())).collect();
    format!("{operator}:{}", parts.join(","))
}

/// The operator whose name is most like this one, if any is.
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let distance = |other: &&str| strsim::damerau_levenshtein(other, &name);
    OPERATORS
        .iter()
        .map(|(name, ..)| *name)
        .min_by_key(distance)
        .filter(|other| distance(other) <= 2.max(other.len() / 3))
}

/// One line for each operator: how it is written, and an example.
pub fn help() -> String {
    let width = OPERATORS.iter().map(|(name, args, _)| name.len() + args.len() + 1).max().unwrap_or(0);
    let line =
        |(name, args, example): &(&str, &str, &str)| format!("  {:<width$}  {example}\n", format!("{name}:{args}"));
    OPERATORS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_people_type_are_known() {
        for (typed, name) in [
            ("GEMM:64,64,64,FP32", "gemm:64,64,64,f32"),
            ("matmul: 64, 64, 64, float16, nt", "gemm:64,64,64,f16,NT"),
            ("batch-matmul:2,64,64,64,int8,NT", "bmm:2,64,64,64,i8,NT"),
            ("gemm:8,8,8,bfloat16,TN,OUT=bfloat16,Bias", "gemm:8,8,8,bf16,TN,out=bf16,bias"),
            ("LayerNorm:8,8,half", "layernorm:8,8,f16"),
            ("conv2d:1,8,8,4,4,3,3,f32,PAD=1", "conv2d:1,8,8,4,4,3,3,f32,pad=1"),
            ("gemm:64,64,x,q4", "gemm:64,64,x,q4"),
        ] {
            assert_eq!(canonical(typed), name);
            assert_eq!(canonical(name), name);
        }
        assert_eq!((nearest("gem"), nearest("softmx"), nearest("attention")), (Some("gemm"), Some("softmax"), None));
    }

    #[test]
    fn every_example_is_an_operator_and_every_operator_has_one() {
        for (name, _, example) in OPERATORS {
            assert!(example.starts_with(&format!("{name}:")));
            assert_eq!(canonical(example), *example);
            crate::source::operator(example).unwrap_or_else(|e| panic!("{example}: {e}"));
        }
    }
}
