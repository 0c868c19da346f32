//! Contractions by name: `gemm:M,N,K,dtype[,layout]`, `bmm:B,M,N,K,dtype[,layout]` and
//! `gemm_bias_relu:M,N,K,dtype[,layout]`, with options after the layout for what is done with the sums (`out=bf16`,
//! `alpha=0.5`, `bias`, `relu`, `gelu`, `silu`, `residual`); convolutions (`convolution.rs`); [`crate::streaming`] has the operators that stream.
mod convolution;
mod names;
mod scheduled;

pub use names::{canonical, help, nearest, OPERATORS};
pub use scheduled::of_scheduled;

use crate::workload::Asked;
use satune_ir::term::{Axis, Contraction, OperandInfo, Side};
use satune_ir::{tvmscript, DType, Program};
use satune_rewrites::space::EncodeError;

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
    /// Operands in f32 may be rounded to tf32, the type that tensor cores multiply.
    pub tf32: bool,
    /// What else there is to it.
    pub asked: Asked,
}

impl Problem {
    /// The product of a contraction, of matrices as they are, without what is done with its sums.
    ///
    /// # Errors
    /// Where it is none of matrices.
    pub fn product_of(contraction: &Contraction, tf32: bool) -> Result<Problem, String> {
        let mut plain = Contraction { epilogue: None, gather: None, ..contraction.clone() };
        plain.c.dtype = plain.accumulate;
        for (operand, name) in [(&mut plain.a, "A"), (&mut plain.b, "B"), (&mut plain.c, "C")] {
            operand.name = name.into();
        }
        for (axis, info) in &mut plain.iters {
            // Names of fused axes are none in Python.
            info.name = format!("v{axis}");
        }
        let script = script(&plain);
        let program = tvmscript::parse(&script).map_err(|e| e.to_string())?;
        let contraction = satune_rewrites::space::contraction(&program).map_err(|e| e.to_string())?;
        Ok(Problem { name: "the product alone".into(), script, program, contraction, tf32, asked: Asked::default() })
    }
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

/// Most elements of a matrix, of all products together.
const MOST_ELEMENTS: f64 = (1_u64 << 40) as f64;

/// Says which matrix of a contraction is larger than any memory.
pub(crate) fn oversized(c: &Contraction) -> Option<String> {
    let result: f64 = c.c.dims.iter().map(|axis| c.extent(*axis) as f64).product();
    let sizes = [("A", c.elements(Side::A)), ("B", c.elements(Side::B)), ("C", result)];
    let (name, elements) = sizes.into_iter().find(|(_, elements)| *elements > MOST_ELEMENTS)?;
    Some(format!("{name} has {elements:.2e} elements; at most {MOST_ELEMENTS} are explored"))
}

/// What an operator is.
#[derive(Clone, Debug)]
pub enum Operator {
    /// A product.
    Product(Box<Problem>),
    /// A convolution that is none.
    Program {
        /// Its blocks.
        program: Box<Program>,
        /// Why it is none.
        why: EncodeError,
    },
}

/// Reads an operator, product or not.
///
/// # Errors
/// See [`parse`].
pub fn read(text: &str) -> Result<Operator, OperatorError> {
    let name = canonical(text);
    match name.split_once(':').and_then(|(operator, rest)| convolution::parse(&name, operator, rest)) {
        Some(convolution) => convolution,
        None => parse(&name).map(|problem| Operator::Product(Box::new(problem))),
    }
}

/// Reads an operator that is a product.
///
/// # Errors
/// Unknown operators, types and layouts, extents that are not whole numbers from 1 to 2^20, wrong number of arguments.
pub fn parse(text: &str) -> Result<Problem, OperatorError> {
    let text = &canonical(text);
    let text = text.as_str();
    let error = |reason: String, remedy: &str| OperatorError { text: clip(text), reason, remedy: remedy.into() };
    if let Some(rest) = text.strip_prefix("gemm_bias_relu:") {
        return gemm_bias_relu(text, rest);
    }
    let form = &format!(
        "write gemm:M,N,K,dtype[,layout][,options] or bmm:B,M,N,K,dtype[,layout][,options], for instance \
         gemm:4096,4096,4096,bf16,TN,out=bf16, or one of gemm_bias_relu, conv1d, conv2d, conv3d, conv2d_transpose, {}",
        crate::streaming::list()
    );
    let Some((operator, rest)) = text.split_once(':') else {
        return Err(error("there is no `:` after the operator's name".into(), form));
    };
    if let Some(convolution) = convolution::parse(text, operator, rest) {
        return match convolution? {
            Operator::Product(problem) => Ok(*problem),
            Operator::Program { why, .. } => Err(error(why.to_string(), "explore it as what it is: no product")),
        };
    }
    let count = match operator {
        "gemm" => 3,
        "bmm" => 4,
        other => {
            let meant = nearest(other).map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"));
            return Err(error(format!("unknown operator `{}`{meant}", clip(other)), form));
        }
    };
    let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
    if parts.len() <= count {
        return Err(error(format!("{} arguments where {} or {} belong", parts.len(), count + 1, count + 2), form));
    }
    let mut extents = Vec::new();
    for (part, name) in parts[..count].iter().zip(if count == 3 { &["M", "N", "K", ""] } else { &["B", "M", "N", "K"] })
    {
        extents.push(number(part, name).map_err(|(reason, remedy)| error(reason, remedy))?);
    }
    let Types { input, sum, tf32 } = named_type(parts[count]).map_err(|(reason, remedy)| error(reason, remedy))?;
    let is_layout = |part: &&str| part.len() == 2 && part.chars().all(|c| c.is_ascii_uppercase());
    let named = parts.get(count + 1).copied().filter(is_layout);
    let layout = named.unwrap_or("NN");
    if !["NN", "NT", "TN", "TT"].contains(&layout) {
        return Err(error(
            format!("unknown layout `{}`", clip(layout)),
            "layouts are NN, NT, TN and TT (NT: B is stored as N x K)",
        ));
    }
    let mut rest = parts[count + 1 + usize::from(named.is_some())..].to_vec();
    let sum = sums(&mut rest, [input, sum]).map_err(|reason| error(reason, OPTIONS))?;
    let options = Options::read(&rest, sum).map_err(|reason| error(reason, OPTIONS))?;
    let batch = if count == 4 { Some(extents.remove(0)) } else { None };
    let transposed = [layout.starts_with('T'), layout.ends_with('T')];
    let contraction = Contraction::gemm(batch, [extents[0], extents[1], extents[2]], input, sum, transposed);
    if let Some(reason) = oversized(&contraction) {
        return Err(error(reason, "give smaller extents"));
    }
    if options != Options::default() {
        let script = epilogue_script(&contraction, &options);
        let program = tvmscript::parse(&script).map_err(|e| error(e.to_string(), "please report this operator"))?;
        let contraction = satune_rewrites::space::contraction(&program);
        let contraction = contraction.map_err(|e| error(e.to_string(), "please report this operator"))?;
        return Ok(Problem { name: text.into(), script, program, contraction, tf32, asked: Asked::default() });
    }
    let script = script(&contraction);
    let program = tvmscript::parse(&script).map_err(|e| error(e.to_string(), "please report this operator"))?;
    Ok(Problem { name: text.into(), script, program, contraction, tf32, asked: Asked::default() })
}

/// What is wrong, and what would be right.
type Wrong = (String, &'static str);

/// The extent of an axis.
fn number(text: &str, name: &str) -> Result<i64, Wrong> {
    let range = "give a whole number from 1 to 1048576";
    let value: i64 = text.parse().map_err(|_| (format!("{name} is `{}`, not a whole number", clip(text)), range))?;
    match (1..=MOST).contains(&value) {
        true => Ok(value),
        false => Err((format!("{name} is {value}"), range)),
    }
}

/// Types of the factors and of the sums.
struct Types {
    input: DType,
    sum: DType,
    /// Factors may be rounded to tf32.
    tf32: bool,
}

fn named_type(name: &str) -> Result<Types, Wrong> {
    let (input, sum) = match name {
        "f32" | "tf32" => (DType::F32, DType::F32),
        "f64" => (DType::F64, DType::F64),
        "f16" => (DType::F16, DType::F32),
        "bf16" => (DType::BF16, DType::F32),
        "e4m3" => (DType::F8E4M3, DType::F32),
        "e5m2" => (DType::F8E5M2, DType::F32),
        "i8" => (DType::I8, DType::I32),
        other => {
            return Err((
                format!("unknown type `{}`", clip(other)),
                "types are f32, tf32 (f32 that tensor cores may round), f64, f16, bf16, e4m3 and e5m2 (sums in f32, result too unless out= says otherwise), and i8 (sums and result in i32)",
            ))
        }
    };
    Ok(Types { input, sum, tf32: name == "tf32" })
}

/// The type of the sums where `sum=` asks for another than the usual one of `types`; the option is taken out.
fn sums(parts: &mut Vec<&str>, [input, usual]: [DType; 2]) -> Result<DType, String> {
    let Some(at) = parts.iter().position(|part| part.starts_with("sum=")) else { return Ok(usual) };
    match parts.remove(at) {
        "sum=f16" if input == DType::F16 => Ok(DType::F16),
        "sum=f32" if usual == DType::F32 => Ok(usual),
        part => Err(format!("`{}` of {}: only f16 is added up in another type, f16", clip(part), input.name())),
    }
}

/// `gemm_bias_relu:M,N,K,dtype[,layout][,out=dtype]`: a product, a bias per column, and the larger of that and 0.
fn gemm_bias_relu(text: &str, rest: &str) -> Result<Problem, OperatorError> {
    let of_text = |e: OperatorError| OperatorError { text: clip(text), ..e };
    parse(&format!("gemm:{rest},bias,relu")).map(|p| Problem { name: text.into(), ..p }).map_err(of_text)
}

/// What the options after the layout say: `out=dtype`, `alpha=x`, `bias`, `relu`, `gelu`, `silu`, `residual`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Options {
    out: Option<DType>,
    alpha: Option<f32>,
    bias: bool,
    activation: Option<&'static str>,
    residual: bool,
}

const OPTIONS: &str =
    "options after the layout are out=f32 (f16, bf16, e4m3, e5m2), alpha=x, bias, one of relu, gelu and silu, and \
     residual; of f16 also sum=f16";

impl Options {
    /// Reads them; the error says what is wrong.
    fn read(parts: &[&str], sum: DType) -> Result<Options, String> {
        let mut options = Options::default();
        for part in parts {
            let activation = ["relu", "gelu", "silu"].into_iter().find(|name| name == part);
            let is_new = match (*part, activation, part.split_once('=')) {
                ("bias", ..) => !std::mem::replace(&mut options.bias, true),
                ("residual", ..) => !std::mem::replace(&mut options.residual, true),
                (_, Some(name), _) => options.activation.replace(name).is_none(),
                (.., Some(("out", name))) => {
                    let out = match name {
                        "f32" => DType::F32,
                        "f16" => DType::F16,
                        "bf16" => DType::BF16,
                        "e4m3" => DType::F8E4M3,
                        "e5m2" => DType::F8E5M2,
                        _ => return Err(format!("unknown result type `{}`", clip(name))),
                    };
                    options.out.replace(out).is_none()
                }
                (.., Some(("alpha", number))) => {
                    let alpha: f32 = number.parse().ok().filter(|x: &f32| x.is_finite()).ok_or("alpha is no number")?;
                    options.alpha.replace(alpha).is_none()
                }
                _ => return Err(format!("unknown option `{}`", clip(part))),
            };
            if !is_new {
                return Err(format!("option `{}` is given twice", clip(part)));
            }
        }
        // A result of the sums' type needs no conversion.
        options.out = options.out.filter(|out| *out != sum);
        if options != Options::default() && !matches!(sum, DType::F32 | DType::F16) {
            return Err(format!("sums in {} have no options", sum.name()));
        }
        Ok(options)
    }
}

/// What comes after the sums, as TVMScript.
#[derive(Default)]
struct Tail {
    /// Of the function, each after a comma; the result of the sums is none.
    parameters: String,
    /// Buffers in between.
    allocations: String,
    /// The nests.
    maps: String,
}

impl Tail {
    /// Whether the sums are the result.
    fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }
}

/// The elementwise blocks that options ask for, over results of this shape in the type of the sums.
fn tail(options: &Options, extents: &[i64], loops: &[String], sum: DType) -> Tail {
    if *options == Options::default() {
        return Tail::default();
    }
    let list = |items: &[i64]| items.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    let (shape, columns) = (list(extents), extents.last().copied().unwrap_or(1));
    let iters: Vec<String> = loops.iter().map(|l| format!("v{l}")).collect();
    let column = iters.last().cloned().unwrap_or_default();
    let (loops, at) = (loops.join(", "), iters.join(", "));
    let (sum, out) = (sum.name(), options.out.unwrap_or(sum).name());
    let read = |buffer: &str, index: &str| match out == sum {
        true => format!("{buffer}[{index}]"),
        false => format!("T.Cast(\"{sum}\", {buffer}[{index}])"),
    };
    // Block, the buffer that it writes unless it is the last, and its value from the one before it.
    type Value = Box<dyn Fn(&str) -> String>;
    let mut blocks: Vec<(&str, &str, Value)> = Vec::new();
    if let Some(alpha) = options.alpha {
        blocks.push(("scale", "scaled", Box::new(move |x| format!("{x} * T.{sum}({alpha:?})"))));
    }
    if options.bias {
        let bias = read("bias", &column);
        blocks.push(("add", "shifted", Box::new(move |x| format!("{x} + {bias}"))));
    }
    match options.activation {
        Some("relu") => blocks.push(("relu", "bent", Box::new(move |x| format!("T.max({x}, T.{sum}(0))")))),
        Some("silu") => blocks.push(("silu", "bent", Box::new(|x| format!("{x} * T.sigmoid({x})")))),
        Some(_) => blocks.push((
            "gelu",
            "bent",
            Box::new(move |x| {
                let inner = format!("{x} + {x} * {x} * {x} * T.{sum}(0.044715)");
                let scale = std::f64::consts::FRAC_2_PI.sqrt();
                format!("{x} * T.{sum}(0.5) * (T.tanh(({inner}) * T.{sum}({scale})) + T.{sum}(1))")
            }),
        )),
        None => {}
    }
    if options.residual {
        let residual = read("residual", &at);
        blocks.push(("add_residual", "added", Box::new(move |x| format!("{x} + {residual}"))));
    }
    if blocks.is_empty() {
        blocks.push(("cast", "D", Box::new(|x| x.to_string())));
    }
    let (kinds, mut before, mut maps, mut between) = ("S".repeat(iters.len()), "C", String::new(), vec!["C"]);
    let last = blocks.len() - 1;
    for (number, (name, buffer, value)) in blocks.iter().enumerate() {
        let value = value(&format!("{before}[{at}]"));
        let (buffer, value) = match (number == last, out == sum) {
            (true, false) => ("D", format!("T.Cast(\"{out}\", {value})")),
            (true, true) => ("D", value),
            (false, _) => (*buffer, value),
        };
        maps += &format!("    for {loops} in T.grid({shape}):\n        with T.sblock(\"{name}\"):\n            {at} = T.axis.remap(\"{kinds}\", [{loops}])\n            {buffer}[{at}] = {value}\n");
        if number != last {
            between.push(buffer);
        }
        before = buffer;
    }
    let mut parameters = String::new();
    if options.bias {
        parameters += &format!(", bias: T.Buffer(({columns},), \"{out}\")");
    }
    if options.residual {
        parameters += &format!(", residual: T.Buffer(({shape}), \"{out}\")");
    }
    parameters += &format!(", D: T.Buffer(({shape}), \"{out}\")");
    let allocation = |name| format!("    {name} = T.sblock_alloc_buffer(({shape}), \"{sum}\")\n");
    Tail { parameters, allocations: between.into_iter().map(allocation).collect(), maps }
}

/// The contraction with elementwise blocks after it as TVMScript: the sums go to a buffer of their own first.
fn epilogue_script(c: &Contraction, options: &Options) -> String {
    let extents: Vec<i64> = c.c.dims.iter().map(|a| c.extent(*a)).collect();
    let loops: &[&str] = if extents.len() == 3 { &["b", "i", "j"] } else { &["i", "j"] };
    let loops: Vec<String> = loops.iter().map(|l| l.to_string()).collect();
    let tail = tail(options, &extents, &loops, c.accumulate);
    let shape = extents.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    // The result of the product is no parameter here.
    let parameter = format!(", C: T.Buffer(({shape}), \"{}\")", c.accumulate.name());
    let attribute = "    T.func_attr({\"tirx.noalias\": True})\n";
    let allocations = attribute.to_string() + &tail.allocations;
    script(c).replacen(&parameter, &tail.parameters, 1).replacen(attribute, &allocations, 1) + &tail.maps
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
    let loops = loop_names(c);
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

/// Names of the loops, that of iterator `vi` being `i`: where that is no name, or one that something else has (`v0`, `vT`), the
/// next free one.
fn loop_names(c: &Contraction) -> Vec<String> {
    let buffers = [&c.a, &c.b, &c.c].map(|o| o.name.as_str());
    let mut taken: Vec<String> =
        c.iters.iter().map(|(_, i)| i.name.as_str()).chain(buffers).map(String::from).collect();
    taken.extend(tvmscript::TAKEN.map(String::from));
    let mut name = |(at, name): (usize, &str)| {
        let short = name.trim_start_matches('v');
        let is_name = short.starts_with(|first: char| first.is_alphabetic() || first == '_');
        let numbered = (at..).map(|n| format!("i{n}"));
        let mut candidates = is_name.then(|| short.to_string()).into_iter().chain(numbered);
        let found = candidates.find(|name| !taken.contains(name)).unwrap_or_default();
        taken.push(found.clone());
        found
    };
    c.iters.iter().map(|(_, i)| i.name.as_str()).enumerate().map(&mut name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_products_text_has_names_whatever_its_iterators_are_called() {
        let script = |names: [&str; 3]| {
            let mut c = Contraction::gemm(None, [4, 8, 16], DType::F32, DType::F32, [false, false]);
            c.iters.iter_mut().zip(names).for_each(|((_, info), name)| info.name = name.into());
            super::script(&c)
        };
        assert!(script(["vi", "vj", "vk"]).contains("for i, j, k in T.grid(4, 8, 16)"));
        for names in [
            ["v0", "v1", "v2"],
            ["v", "vv", "i0"],
            ["vA", "vT", "i1"],
            ["vi", "i", "vvi"],
            ["x", "vx", "y"],
            ["vif", "vin", "vfor"],
        ] {
            let text = script(names);
            let program = satune_ir::tvmscript::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert!(satune_rewrites::space::contraction(&program).is_ok(), "{text}");
        }
    }

    #[test]
    fn operators_are_read() {
        let p = parse("bmm:2,16,32,64,f16,NT").unwrap();
        assert_eq!(p.contraction.b.dims, [Axis::Batch(0), Axis::N, Axis::K]);
        assert_eq!((p.contraction.extent(Axis::M), p.contraction.extent(Axis::N)), (16, 32));
        assert!(p.script.contains("T.Cast(\"float32\", A[vb, vi, vk]) * T.Cast(\"float32\", B[vb, vj, vk])"));
    }

    #[test]
    fn tensor_cores_take_what_options_spell() {
        use satune_ir::interp::Scalar;
        use satune_ir::term::tensor::{Epilogue, Gemm};
        let gelu = |x: f64| x * 0.5 * (1.0 + ((x + 0.044715 * x * x * x) * (2.0 / std::f64::consts::PI).sqrt()).tanh());
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let activations: [(&str, &dyn Fn(f64) -> f64); 4] =
            [("gelu", &gelu), ("silu", &silu), ("relu", &|x| x.max(0.0)), ("", &|x| x)];
        for (name, activation) in activations {
            let text = format!("gemm:64,64,64,bf16,NT,out=bf16,alpha=0.5,bias,{name},residual").replace(",,", ",");
            let gemm = Gemm::of(&parse(&text).unwrap().contraction).unwrap();
            let names = gemm.reads.iter().map(|read| read.name.as_str()).collect::<Vec<_>>();
            assert_eq!((gemm.output, &names[..]), (DType::BF16, &["bias", "residual"][..]));
            for [sum, bias, residual] in [[3.0, 1.0, -7.0], [-3.0, 0.25, 2.0]] {
                let single = |x| Scalar::float(x, DType::F32);
                let got = gemm.epilogue.of(single(sum), &[single(bias), single(residual)], &[]).as_f64();
                let want = activation(0.5 * sum + bias) + residual;
                assert!((got - want).abs() < 1e-5, "{text}: {got}, {want}: {}", gemm.epilogue);
            }
        }
        let plain = Gemm::of(&parse("gemm:64,64,64,f16,NT,out=f16").unwrap().contraction).unwrap();
        assert_eq!((plain.output, plain.epilogue), (DType::F16, Epilogue::default()));
        let relu = Gemm::of(&parse("gemm_bias_relu:64,64,64,bf16,NT").unwrap().contraction).unwrap();
        assert_eq!((relu.output, relu.epilogue.to_string()), (DType::F32, "max((sum + read 0), 0)".into()));
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
            ("gemm:1,1,1,f32,NN,sum", "unknown option `sum`"),
            ("gemm:1,1,1,f32,out=i8", "unknown result type `i8`"),
            ("gemm:1,1,1,bf16,relu,gelu", "option `gelu` is given twice"),
            ("gemm:1,1,1,i8,relu", "sums in int32 have no options"),
            ("gemm:1,1,1,bf16,sum=f16", "`sum=f16` of bfloat16: only f16"),
            ("gemm:1,1,1,i8,sum=f32", "`sum=f32` of int8: only f16"),
            ("gemm:1,1,1,f16,sum=f16,sum=f16", "unknown option `sum=f16`"),
            ("gemm:1,1,f32", "3 arguments where 4 or 5 belong"),
            ("bmm:1048576,1048576,1048576,64,bf16", "A has 7.04e13 elements; at most 1099511627776"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
