//! One semantics of scalars (`docs/SEMANTICS.md`), everywhere: interpreter, kernel IR in the simulator, and CUDA text,
//! compiled as C++, against the rules written down a second time in [`crate::expressions`].
use crate::expressions::{bytes, interesting, of_bytes, random, text, value, Expression, Val, TYPES};
use crate::support::{h200, samples, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use satune::lower::program::{lower, Argument, Module};
use satune::{cuda, simulate};
use satune_ir::interp::{self, Array, Scalar};
use satune_ir::{tvmscript, DType};
use std::process::Command;

/// One that a reader of a failure can take in.
fn short(rng: &mut StdRng, dtype: DType, depth: u32, inputs: &[DType]) -> Expression {
    loop {
        let value = random(rng, dtype, depth, inputs);
        if text(&value).len() < 1500 {
            return value;
        }
    }
}

/// A map over inputs of random types.
struct Map {
    name: String,
    shape: [i64; 2],
    inputs: Vec<DType>,
    value: Expression,
    /// The elements of each input.
    data: Vec<Vec<Val>>,
}

impl Map {
    fn random(number: usize, rng: &mut StdRng) -> Map {
        let shape = [rng.gen_range(1..4), rng.gen_range(1..17)];
        let inputs: Vec<DType> = (0..rng.gen_range(1..4)).map(|_| TYPES[rng.gen_range(0..TYPES.len())]).collect();
        let dtype = TYPES[rng.gen_range(0..TYPES.len())];
        let depth = rng.gen_range(1..5);
        let value = short(rng, dtype, depth, &inputs);
        let count = shape[0] * shape[1];
        let data = inputs.iter().map(|t| (0..count).map(|_| interesting(rng, *t)).collect()).collect();
        Map { name: format!("map{number}"), shape, inputs, value, data }
    }

    /// One block of threads per row.
    fn script(&self) -> String {
        let [m, n] = self.shape;
        let buffer = |name: String, t: DType| format!("{name}: T.Buffer(({m}, {n}), \"{}\")", t.name());
        let mut params: Vec<String> =
            self.inputs.iter().enumerate().map(|(k, t)| buffer(format!("X{k}"), *t)).collect();
        params.push(buffer("Y".into(), self.value.dtype));
        format!(
            r#"
@T.prim_func(s_tir=True)
def {}({}):
    for i in T.thread_binding({m}, thread="blockIdx.x"):
        for j in T.thread_binding({n}, thread="threadIdx.x"):
            with T.sblock("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = {}
"#,
            self.name,
            params.join(", "),
            text(&self.value)
        )
    }

    fn expected(&self) -> Vec<Val> {
        let of = |at: usize| {
            let loads: Vec<Val> = self.data.iter().map(|d| d[at]).collect();
            value(&self.value, &loads, [at as i64 / self.shape[1], at as i64 % self.shape[1]])
        };
        (0..(self.shape[0] * self.shape[1]) as usize).map(of).collect()
    }

    fn arrays(&self) -> Vec<Array> {
        let of = |(values, t): (&Vec<Val>, &DType)| {
            let mut array = Array::unwritten(*t, &self.shape).unwrap();
            for (at, v) in values.iter().enumerate() {
                let bits = bytes(*v, *t).iter().rev().fold(0, |bits, b| bits << 8 | u64::from(*b));
                array.set(at, Scalar::of_bits(bits, *t));
            }
            array
        };
        let mut arrays: Vec<Array> = self.data.iter().zip(&self.inputs).map(of).collect();
        arrays.push(Array::unwritten(self.value.dtype, &self.shape).unwrap());
        arrays
    }

    /// What differs from what is expected.
    fn compare(&self, who: &str, got: impl Iterator<Item = Val>) {
        for (at, (want, got)) in self.expected().into_iter().zip(got).enumerate() {
            let loads: Vec<Val> = self.data.iter().map(|d| d[at]).collect();
            assert!(got.same(want), "{who} makes {got:?} of {loads:?} at {at}, not {want:?}:\n{}", self.script());
        }
    }
}

pub fn of_scalar(s: Scalar) -> Val {
    match s.dtype() {
        t if t.is_float() => Val::F(s.as_f64()),
        DType::U64 => Val::I((s.as_i64() as u64).into()),
        _ => Val::I(s.as_i64().into()),
    }
}

/// What the simulator leaves in the last parameter.
fn simulated(module: &Module, arrays: &[Array]) -> Vec<f64> {
    let [kernel] = &module.kernels[..] else { panic!("{} kernels", module.kernels.len()) };
    let of = |a: &Argument| if let Argument::Param(i) = a { *i } else { panic!("a workspace") };
    let mut held: Vec<Vec<f64>> = module.args[0].iter().map(|a| arrays[of(a)].to_held()).collect();
    simulate::run(kernel, &mut held, &simulate::Options::default()).unwrap();
    let last = module.args[0].iter().position(|a| of(a) == arrays.len() - 1).unwrap();
    held.swap_remove(last)
}

#[test]
fn every_expression_has_one_value() {
    let mut rng = StdRng::seed_from_u64(seed());
    let mut of_text = Vec::new();
    let count = samples(150);
    for number in 0..count {
        let (map, program) = readable(number, &mut rng);
        let script = map.script();
        let again = tvmscript::parse(&tvmscript::print(&program)).unwrap_or_else(|e| panic!("{e}\n{script}"));
        let arrays = map.arrays();
        for program in [&program, &again] {
            let out = interp::run(program, &arrays).unwrap_or_else(|e| panic!("{e}\n{script}"));
            map.compare("the interpreter", out.last().unwrap().iter().map(|s| of_scalar(s.unwrap())));
        }
        let module = lower(&program, &h200()).unwrap_or_else(|e| panic!("{e}\n{script}"));
        // A parameter that nothing reads is none of the kernel's.
        let held = simulated(&module, &arrays);
        let t = map.value.dtype;
        map.compare("the simulator", held.into_iter().map(|v| of_scalar(Scalar::of_held(v, t))));
        of_text.push((map, module));
        if of_text.len() == 150 || number + 1 == count {
            run_as_cpp(&of_text);
            of_text.clear();
        }
    }
}

/// A random map, and its program. A divisor that the reader folds to zero (`x % (y % 1)`) is refused, as TVM refuses it:
/// another map is drawn.
fn readable(number: usize, rng: &mut StdRng) -> (Map, satune_ir::Program) {
    for _ in 0..10 {
        let map = Map::random(number, rng);
        match tvmscript::parse(&map.script()) {
            Ok(program) => return (map, program),
            Err(e) if e.to_string().contains("divided by zero") => {}
            Err(e) => panic!("{e}\n{}", map.script()),
        }
    }
    panic!("ten maps in turn divide constants by zero")
}

/// The text of kernels as C++ for one thread after the other, checked for undefined behaviour. Machine instructions are
/// functions; conversions of the machine do what PTX says of them.
fn run_as_cpp(maps: &[(Map, Module)]) {
    let mut source = String::from(HEAD);
    let mut main = String::from("int main()\n{\n");
    for (map, module) in maps {
        let kernel = &module.kernels[0];
        source += &format!("namespace {} {{\n{}\n}}\n", map.name, host_text(&cuda::print(kernel)));
        let mut args = Vec::new();
        for (k, a) in module.args[0].iter().enumerate() {
            let Argument::Param(p) = a else { panic!("a workspace") };
            let t = map.inputs.get(*p).copied().unwrap_or(map.value.dtype);
            let contents: Vec<u8> = match map.data.get(*p) {
                Some(values) => values.iter().flat_map(|v| bytes(*v, t)).collect(),
                None => vec![0; map.expected().len() * t.bytes() as usize],
            };
            let list: Vec<String> = contents.iter().map(u8::to_string).collect();
            let name = format!("{}_{k}", map.name);
            source += &format!("alignas(16) static unsigned char {name}[] = {{{}}};\n", list.join(","));
            args.push((name, *p == map.inputs.len()));
        }
        let ([gx, ..], [bx, ..]) = (kernel.grid, kernel.block);
        // Pointers of any type convert.
        let list: Vec<String> = args.iter().map(|(name, _)| format!("Any{{{name}}}")).collect();
        let out = args.iter().find(|(_, out)| *out).map(|(name, _)| name.clone()).unwrap();
        main += &format!(
            "    for (blockIdx.x = 0; blockIdx.x < {gx}; ++blockIdx.x) for (threadIdx.x = 0; threadIdx.x < {bx}; ++threadIdx.x)\n        {}::{}({});\n    show({out}, sizeof {out});\n",
            map.name,
            kernel.name,
            list.join(", ")
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("maps.cpp"), folder.path().join("maps"));
    std::fs::write(&file, format!("{source}{main}    return 0;\n}}\n")).unwrap();
    // GCC 12 takes `0.0f - (float)i` for `-(float)i`, which is another zero, unless it is told that rounding may be any.
    let flags = [
        "-std=c++17",
        "-O1",
        "-w",
        "-ffp-contract=off",
        "-frounding-math",
        "-fsanitize=undefined",
        "-fsanitize-undefined-trap-on-error",
    ];
    let Ok(compiled) = Command::new("c++").args(flags).arg("-o").arg(&program).arg(&file).output() else {
        satune_testing::skip("no C++ compiler");
    };
    let errors = String::from_utf8_lossy(&compiled.stderr);
    if !compiled.status.success() {
        let kept = std::env::temp_dir().join("satune_maps.cpp");
        let _ = std::fs::copy(&file, &kept);
        panic!("{}: {}", kept.display(), errors.lines().take(20).collect::<Vec<_>>().join("\n"));
    }
    let run = Command::new(&program).output().unwrap();
    let out = String::from_utf8(run.stdout).unwrap();
    let mut lines = out.lines();
    for (map, module) in maps {
        let Some(line) = lines.next() else {
            panic!("undefined behaviour ({}):\n{}\n{}", run.status, map.script(), cuda::print(&module.kernels[0]));
        };
        let t = map.value.dtype;
        let digits: Vec<u8> = line
            .as_bytes()
            .chunks(2)
            .map(|c| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap())
            .collect();
        map.compare(&cuda::print(&module.kernels[0]), digits.chunks(t.bytes() as usize).map(|b| of_bytes(b, t)));
    }
}

/// The text with its machine instructions as functions of the head.
fn host_text(text: &str) -> String {
    let mut text = text.replace("extern \"C\" ", "");
    for (instruction, instead) in [
        ("asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(h));", "f = value_of_half(h);"),
        ("asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(half));", "f = value_of_half(half);"),
        ("asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(h) : \"f\"(f));", "h = half_of(f);"),
        ("asm(\"cvt.rn.f16.f64 %0, %1;\" : \"=h\"(h) : \"d\"(d));", "h = half_of(d);"),
        (
            "asm(\"add.rn.f16 %0, %1, %2;\" : \"=h\"(c) : \"h\"(a), \"h\"(b));",
            "c = half_of(value_of_half(a) + value_of_half(b));",
        ),
        (
            "asm(\"sub.rn.f16 %0, %1, %2;\" : \"=h\"(c) : \"h\"(a), \"h\"(b));",
            "c = half_of(value_of_half(a) - value_of_half(b));",
        ),
        (
            "asm(\"mul.rn.f16 %0, %1, %2;\" : \"=h\"(c) : \"h\"(a), \"h\"(b));",
            "c = half_of(value_of_half(a) * value_of_half(b));",
        ),
    ] {
        text = text.replace(instruction, instead);
    }
    text
}

const HEAD: &str = r#"
#include <cmath>
#include <cstdio>
#include <cstring>
#define __device__ static
#define __forceinline__ inline
#define __global__ static
#define __launch_bounds__(...)
#define __restrict__
struct Dim { int x, y, z; };
static Dim blockIdx{0, 0, 0}, threadIdx{0, 0, 0};
struct Any { void* p; template <class T> operator T*() const { return (T*)p; } };
template <class To, class From> static To same_bits(From f) { To t; memcpy(&t, &f, sizeof t); return t; }
static unsigned __float_as_uint(float f) { return same_bits<unsigned>(f); }
static float __uint_as_float(unsigned u) { return same_bits<float>(u); }
static long long __double_as_longlong(double d) { return same_bits<long long>(d); }
static double __longlong_as_double(long long l) { return same_bits<double>(l); }
static float value_of_half(unsigned short h) { return (float)same_bits<_Float16>(h); }
static unsigned short half_of(float f) { return same_bits<unsigned short>((_Float16)f); }
static unsigned short half_of(double d) { return same_bits<unsigned short>((_Float16)d); }
static float __double2float_rz(double d)
{
    float f = (float)d;
    return fabs((double)f) > fabs(d) ? nextafterf(f, 0.0f) : f;
}
// Saturating; of NaN what PTX says for cvt.
template <class To, class From> static To toward_zero(From f, bool zero)
{
    const double lo = (double)(To)((To)-1 < 0 ? (To)1 << (8 * sizeof(To) - 1) : 0);
    const double hi = (To)-1 < 0 ? -lo : ldexp(1.0, 8 * sizeof(To));
    if (f != f) return zero ? 0 : (To)(1ull << (8 * sizeof(To) - 1));
    if (f <= lo) return (To)-1 < 0 ? (To)(1ull << (8 * sizeof(To) - 1)) : 0;
    if (f >= hi) return (To)-1 < 0 ? (To)~(1ull << (8 * sizeof(To) - 1)) : (To)~0ull;
    return (To)f;
}
static int __float2int_rz(float f) { return toward_zero<int>(f, true); }
static unsigned __float2uint_rz(float f) { return toward_zero<unsigned>(f, true); }
static long long __float2ll_rz(float f) { return toward_zero<long long>(f, false); }
static unsigned long long __float2ull_rz(float f) { return toward_zero<unsigned long long>(f, false); }
static int __double2int_rz(double f) { return toward_zero<int>(f, false); }
static unsigned __double2uint_rz(double f) { return toward_zero<unsigned>(f, false); }
static long long __double2ll_rz(double f) { return toward_zero<long long>(f, false); }
static unsigned long long __double2ull_rz(double f) { return toward_zero<unsigned long long>(f, false); }
static int __popc(unsigned u) { return __builtin_popcount(u); }
static int __popcll(unsigned long long u) { return __builtin_popcountll(u); }
static int __clz(unsigned u) { return u ? __builtin_clz(u) : 32; }
static int __clzll(unsigned long long u) { return u ? __builtin_clzll(u) : 64; }
#define EXTREMES(T) \
    static T min(T a, T b) { return a < b ? a : b; } \
    static T max(T a, T b) { return a > b ? a : b; }
EXTREMES(int) EXTREMES(unsigned) EXTREMES(long long) EXTREMES(unsigned long long)
// A number rather than NaN, and the sign of zeros counts.
template <class T> static T least(T a, T b) { return b != b || a < b || (a == b && std::signbit(a)) ? a : b; }
template <class T> static T most(T a, T b) { return b != b || a > b || (a == b && !std::signbit(a)) ? a : b; }
#define fminf least<float>
#define fmaxf most<float>
#define fmin least<double>
#define fmax most<double>
static void show(const unsigned char* p, int n)
{
    for (int i = 0; i < n; ++i) printf("%02x", p[i]);
    printf("\n");
    fflush(stdout);
}
"#;

/// A program of one or two blocks: a map, a map of a map, or a reduction of a map.
fn random_program(number: usize, rng: &mut StdRng) -> String {
    let any = |rng: &mut StdRng| TYPES[rng.gen_range(0..TYPES.len())];
    let shape = [rng.gen_range(1..70), rng.gen_range(1..40)];
    let [m, n] = shape;
    let inputs: Vec<DType> = (0..rng.gen_range(1..4)).map(|_| any(rng)).collect();
    let buffer = |name: &str, t: DType, shape: &str| format!("{name}: T.Buffer(({shape}), \"{}\")", t.name());
    let whole = format!("{m}, {n}");
    let mut params: Vec<String> =
        inputs.iter().enumerate().map(|(k, t)| buffer(&format!("X{k}"), *t, &whole)).collect();
    let mut known = inputs.clone();
    let mut body = String::new();
    let map = |target: &str, value: &str| {
        format!(
            "    for i, j in T.grid({m}, {n}):\n        with T.sblock(\"{target}\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            {target}[vi, vj] = {value}\n"
        )
    };
    if rng.gen_range(0..3) == 0 {
        // The first block's result is one more input of the second one.
        let depth = rng.gen_range(1..3);
        let t = any(rng);
        let value = short(rng, t, depth, &inputs);
        let name = format!("X{}", known.len());
        body += &format!("    {name} = T.sblock_alloc_buffer(({whole}), \"{}\")\n", t.name());
        body += &map(&name, &text(&value));
        known.push(t);
    }
    let (t, depth) = (any(rng), rng.gen_range(1..4));
    let value = short(rng, t, depth, &known);
    if rng.gen_range(0..3) > 0 {
        params.push(buffer("Y", t, &whole));
        body += &map("Y", &text(&value));
    } else {
        params.push(buffer("Y", t, &m.to_string()));
        let value = text(&value);
        let (init, update) = match t {
            DType::Bool => ("T.bool(False)".into(), format!("Y[vi] or {value}")),
            t => match rng.gen_range(0..3) {
                0 => (format!("T.{}(0)", t.name()), format!("Y[vi] + {value}")),
                1 => (format!("T.min_value(\"{}\")", t.name()), format!("T.max(Y[vi], {value})")),
                _ => (format!("T.max_value(\"{}\")", t.name()), format!("T.min(Y[vi], {value})")),
            },
        };
        body += &format!(
            "    for i, j in T.grid({m}, {n}):\n        with T.sblock(\"Y\"):\n            vi, vj = T.axis.remap(\"SR\", [i, j])\n            with T.init():\n                Y[vi] = {init}\n            Y[vi] = {update}\n"
        );
    }
    format!(
        "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\ndef program{number}({}):\n    T.func_attr({{\"tirx.noalias\": True}})\n{body}",
        params.join(", ")
    )
}

/// Fresh programs over all types and operators, as a user gives them: explored, or refused with a reason. 300 of them with
/// `SATUNE_SAMPLES=50`.
#[test]
fn random_programs_are_explored_or_refused() {
    let mut rng = StdRng::seed_from_u64(seed());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program.py");
    let out = folder.path().join("out");
    let (mut explored, mut refused) = (0, Vec::new());
    let count = samples(6);
    for number in 0..count {
        let script = random_program(number, &mut rng);
        std::fs::write(&file, &script).unwrap();
        let gpu = ["h200", "a100", "t4"][number % 3];
        let run = Command::new(env!("CARGO_BIN_EXE_satune"))
            .args(["explore", file.to_str().unwrap(), "--gpu", gpu, "--top", "2", "--json", "--out"])
            .arg(&out)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&run.stderr).into_owned();
        match run.status.code() {
            Some(0) => explored += 1,
            Some(2) => refused.push(told),
            other => panic!("exit {other:?} of\n{script}\n{told}"),
        }
    }
    println!("{explored} explored, {} refused", refused.len());
    refused.sort();
    refused.dedup();
    refused.iter().for_each(|told| println!("{told}"));
    assert!(explored * 2 > count, "{explored} of {count} explored");
}
