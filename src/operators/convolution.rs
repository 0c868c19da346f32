//! Convolutions by name, channels last: `conv1d:N,W,CI,CO,KW,dtype`, `conv2d:N,H,W,CI,CO,KH,KW,dtype`,
//! `conv3d:N,D,H,W,CI,CO,KD,KH,KW,dtype` and `conv2d_transpose:N,H,W,CI,CO,KH,KW,dtype`, each with `stride=s`, `pad=p`,
//! `groups=g` and `dilation=d` (`output_pad=o` instead of it where transposed), and with what gemm takes for what is done with the sums.
//!
//! X is N x H x W x CI, W is KH x KW x CI / g x CO, C is N x OH x OW x CO.
use super::{clip, named_type, number, sums, tail, Operator, OperatorError, Options, Problem, Types, MOST, OPTIONS};
use crate::workload::Asked;
use satune_ir::{tvmscript, DType};
use satune_rewrites::space::explored;

/// What a convolution's name asks for, one number per spatial dimension.
struct Shape {
    batch: i64,
    /// Sizes of the input, outermost first.
    input: Vec<i64>,
    channels: [i64; 2],
    kernel: Vec<i64>,
    stride: i64,
    pad: i64,
    dilation: i64,
    groups: i64,
    output_pad: i64,
    transposed: bool,
}

const FORM: &str = "write conv1d:N,W,CI,CO,KW,dtype, conv2d:N,H,W,CI,CO,KH,KW,dtype, conv3d:N,D,H,W,CI,CO,KD,KH,KW,dtype or \
                    conv2d_transpose:N,H,W,CI,CO,KH,KW,dtype, then stride=, pad=, groups=, dilation= (output_pad= where transposed)";

/// Spatial dimensions of an operator of this name; `None` where it is no convolution.
fn rank(operator: &str) -> Option<usize> {
    match operator {
        "conv1d" => Some(1),
        "conv2d" | "conv2d_transpose" => Some(2),
        "conv3d" => Some(3),
        _ => None,
    }
}

/// A convolution, where the operator's name is one.
pub(super) fn parse(text: &str, operator: &str, rest: &str) -> Option<Result<Operator, OperatorError>> {
    rank(operator).map(|rank| read(text, operator, rest, rank))
}

fn read(text: &str, operator: &str, rest: &str, rank: usize) -> Result<Operator, OperatorError> {
    let error = |reason: String, remedy: &str| OperatorError { text: clip(text), reason, remedy: remedy.into() };
    let parts: Vec<&str> = rest.split(',').map(str::trim).collect();
    let count = 3 + 2 * rank;
    if parts.len() <= count {
        return Err(error(format!("{} arguments where {} belong at least", parts.len(), count + 1), FORM));
    }
    let names = [&["N"][..], &["D", "H", "W"][3 - rank..], &["CI", "CO"], &["KD", "KH", "KW"][3 - rank..]].concat();
    let mut sizes = Vec::new();
    for (part, name) in parts.iter().zip(names) {
        sizes.push(number(part, name).map_err(|(reason, remedy)| error(reason, remedy))?);
    }
    let Types { input, sum, tf32 } = named_type(parts[count]).map_err(|(reason, remedy)| error(reason, remedy))?;
    let mut shape = Shape {
        batch: sizes[0],
        input: sizes[1..=rank].to_vec(),
        channels: [sizes[rank + 1], sizes[rank + 2]],
        kernel: sizes[rank + 3..].to_vec(),
        stride: 1,
        pad: 0,
        dilation: 1,
        groups: 1,
        output_pad: 0,
        transposed: operator == "conv2d_transpose",
    };
    let (mut others, mut given) = (Vec::new(), Vec::new());
    for part in &parts[count + 1..] {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let (slot, least) = match (name, shape.transposed) {
            ("stride", _) => (&mut shape.stride, 1),
            ("pad", _) => (&mut shape.pad, 0),
            ("groups", _) => (&mut shape.groups, 1),
            ("dilation", false) => (&mut shape.dilation, 1),
            ("output_pad", true) => (&mut shape.output_pad, 0),
            _ => {
                others.push(*part);
                continue;
            }
        };
        if given.contains(&name) {
            return Err(error(format!("option `{name}` is given twice"), "give it once"));
        }
        given.push(name);
        // Of channels each may be a group.
        let most = if name == "groups" { MOST } else { 1024 };
        let range = format!("give a whole number from {least} to {most}");
        let read = value.parse().ok().filter(|v| (least..=most).contains(v));
        *slot = read.ok_or_else(|| error(format!("{name} is `{}`", clip(value)), &range))?;
    }
    if let Some(channels) = shape.channels.iter().find(|n| *n % shape.groups != 0) {
        return Err(error(
            format!("{} groups do not divide {channels} channels", shape.groups),
            "give groups that divide CI and CO",
        ));
    }
    let sum = sums(&mut others, [input, sum]).map_err(|reason| error(reason, &format!("{FORM}; {OPTIONS}")))?;
    let options = Options::read(&others, sum).map_err(|reason| error(reason, &format!("{FORM}; {OPTIONS}")))?;
    let output =
        shape.output().map_err(|reason| error(reason, "give a larger input, or a smaller kernel or padding"))?;
    let mut script = script(&shape, &output, (input, sum), &options);
    let wrong = |e: String| error(e, "give sizes whose fused axes (N x OH x OW, and KH x KW x CI) are at most 1048576");
    let mut program = tvmscript::parse(&script).map_err(|e| wrong(e.to_string()))?;
    if shape.groups > 1 {
        program = explored(&program);
        script = tvmscript::print(&program);
    }
    let contraction = match satune_rewrites::space::contraction(&program) {
        Ok(found) => found,
        Err(why) => return Ok(Operator::Program { program: Box::new(program), why }),
    };
    if let Some((axis, info)) = contraction.iters.iter().find(|(_, info)| info.extent > MOST) {
        return Err(wrong(format!("axis {axis} has {} iterations", info.extent)));
    }
    if let Some(reason) = super::oversized(&contraction) {
        return Err(error(reason, "give smaller extents"));
    }
    let problem = Problem { name: text.into(), script, program, contraction, tf32, asked: Asked::default() };
    Ok(Operator::Product(Box::new(problem)))
}

impl Shape {
    /// Sizes of the result.
    fn output(&self) -> Result<Vec<i64>, String> {
        let one = |(size, kernel): (&i64, &i64)| {
            let reach = self.dilation * (kernel - 1);
            if self.transposed {
                if self.pad > reach {
                    return Err(format!("a padding of {} cuts a kernel of {kernel} off as a whole", self.pad));
                }
                let size = (size - 1) * self.stride - 2 * self.pad + reach + self.output_pad + 1;
                return if size < 1 { Err("there is no result".into()) } else { Ok(size) };
            }
            let room = size + 2 * self.pad - reach - 1;
            if room < 0 {
                return Err(format!(
                    "a kernel that reaches {} is larger than its input of {}",
                    reach + 1,
                    size + 2 * self.pad
                ));
            }
            Ok(room / self.stride + 1)
        };
        self.input.iter().zip(&self.kernel).map(one).collect()
    }

    /// Zeros before the input; where transposed, zeros stand between its elements, too.
    fn before(&self, kernel: i64) -> i64 {
        if self.transposed {
            kernel - 1 - self.pad
        } else {
            self.pad
        }
    }
}

/// A list in parentheses' place.
fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}

/// The convolution as TVMScript.
fn script(s: &Shape, output: &[i64], (input, sum): (DType, DType), options: &Options) -> String {
    let tail_of = |extents: &[i64], loops: &[String]| tail(options, extents, loops, sum);
    let (input, sum) = (input.name(), sum.name());
    let axes = &["d", "h", "w"][3 - output.len()..];
    let [ci, co] = s.channels;
    let padded = s.pad > 0 || s.transposed;
    let whole = |inner: &[i64], last: i64| list([&[s.batch], inner, &[last]].concat());
    let (x, c) = (whole(&s.input, ci), whole(output, co));
    let [ci_of_group, co_of_group] = s.channels.map(|n| n / s.groups);
    let w = list([&s.kernel[..], &[ci_of_group, co]].concat());
    let loops: Vec<String> =
        ["n".into()].into_iter().chain(axes.iter().map(|a| format!("o{a}"))).chain(["co".into()]).collect();
    let extents = [&[s.batch][..], output, &[co]].concat();
    let tail = tail_of(&extents, &loops);
    let parameters = match tail.is_empty() {
        true => format!(", C: T.Buffer(({c}), \"{sum}\")"),
        false => tail.parameters.clone(),
    };
    let mut text = format!(
        "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef main(X: T.Buffer(({x}), \"{input}\"), W: T.Buffer(({w}), \"{input}\"){}):\n    T.func_attr({{\"tirx.noalias\": True}})\n{}",
        parameters, tail.allocations
    );
    if padded {
        // As large as the windows reach.
        let sizes: Vec<i64> = output.iter().zip(&s.kernel).map(|(o, k)| s.reach(*o, *k)).collect();
        let p = whole(&sizes, ci);
        let names: Vec<String> = ["n", "c"].iter().map(|a| a.to_string()).collect();
        let all: Vec<String> =
            [&names[..1], &axes.iter().map(|a| a.to_string()).collect::<Vec<_>>(), &names[1..]].concat();
        let iters: Vec<String> = all.iter().map(|a| format!("v{a}")).collect();
        let (mut clauses, mut from) = (Vec::new(), vec!["vn".to_string()]);
        for (((axis, size), kernel), padded) in axes.iter().zip(&s.input).zip(&s.kernel).zip(&sizes) {
            let (before, spread) = (s.before(*kernel), if s.transposed { s.stride } else { 1 });
            let shifted = if before > 0 { format!("v{axis} - {before}") } else { format!("v{axis}") };
            let last = before + (size - 1) * spread + 1;
            if before > 0 {
                clauses.push(format!("{before} <= v{axis}"));
            }
            if last < *padded {
                clauses.push(format!("v{axis} < {last}"));
            }
            if spread > 1 {
                clauses.push(format!("({shifted}) % {spread} == 0"));
                from.push(format!("({shifted}) // {spread}"));
            } else {
                from.push(shifted);
            }
        }
        from.push("vc".into());
        let element = format!("X[{}]", from.join(", "));
        let value = match clauses.is_empty() {
            true => element,
            false => format!("T.if_then_else({}, {element}, T.{input}(0))", clauses.join(" and ")),
        };
        let (grid, remap) = (all.join(", "), iters.join(", "));
        text += &format!(
            "    P = T.sblock_alloc_buffer(({p}), \"{input}\")\n    for {grid} in T.grid({p}):\n        with T.sblock(\"pad\"):\n            {remap} = T.axis.remap(\"{}\", [{grid}])\n            P[{remap}] = {value}\n",
            "S".repeat(all.len())
        );
    }
    let kernel: Vec<String> = axes.iter().map(|a| format!("k{a}")).collect();
    let all: Vec<String> = loops.iter().chain(&kernel).cloned().chain(["ci".into()]).collect();
    let kinds = "S".repeat(loops.len()) + &"R".repeat(kernel.len() + 1);
    let sizes = list([&extents[..], &s.kernel, &[ci_of_group]].concat());
    let times = |name: String, by: i64| if by > 1 { format!("{name} * {by}") } else { name };
    let step = if s.transposed { 1 } else { s.stride };
    let window =
        axes.iter().map(|a| format!("{} + {}", times(format!("vo{a}"), step), times(format!("vk{a}"), s.dilation)));
    let flipped = |(a, k): (&&str, &i64)| if s.transposed { format!("{} - vk{a}", k - 1) } else { format!("vk{a}") };
    let weight: Vec<String> = axes.iter().zip(&s.kernel).map(flipped).collect();
    let cast = |element: String| if input == sum { element } else { format!("T.Cast(\"{sum}\", {element})") };
    let from = if padded { "P" } else { "X" };
    let channel = match s.groups {
        1 => "vci".into(),
        _ => format!("vco // {co_of_group} * {ci_of_group} + vci"),
    };
    let first = cast(format!("{from}[vn, {}, {channel}]", list(window)));
    let second = cast(format!("W[{}, vci, vco]", weight.join(", ")));
    let at: Vec<String> = loops.iter().map(|l| format!("v{l}")).collect();
    let (grid, remap) = (all.join(", "), all.iter().map(|l| format!("v{l}")).collect::<Vec<_>>().join(", "));
    let result = format!("C[{}]", at.join(", "));
    text += &format!(
        "    for {grid} in T.grid({sizes}):\n        with T.sblock(\"C\"):\n            {remap} = T.axis.remap(\"{kinds}\", [{grid}])\n            with T.init():\n                {result} = T.{sum}(0)\n            {result} = {result} + {first} * {second}\n"
    );
    text + &tail.maps
}

impl Shape {
    /// How far the windows of so many results reach.
    fn reach(&self, output: i64, kernel: i64) -> i64 {
        let step = if self.transposed { 1 } else { self.stride };
        (output - 1) * step + self.dilation * (kernel - 1) + 1
    }
}
