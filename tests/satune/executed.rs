//! The emitted text is executed: NVRTC's PTX of each family of kernels on the CPU, all blocks, on ordinary and extreme
//! inputs, against the interpreter.
use crate::compiles::compile;
use crate::hopper::{clustered, small as wgmma, stream};
use crate::support::{h200, kernels_of, samples, space};
use crate::tensor::plans::*;
use crate::tensor::{arch_of, small as mma};
use rand::rngs::StdRng;
use rand::SeedableRng;
use satune::compile::Job;
use satune::execute::{execute_whole, Executed, InputKind};
use satune::kernel::Mma;
use satune::lower::program::{lower, Module};
use satune::streaming::StreamProblem;
use satune::workload::{Explorable, Workload};
use satune::{operators, scheduled, streaming};
use satune_extract::{Counts, Descriptor};
use satune_ir::interp::{self, Array, Scalar};
use satune_ir::term::stream::StreamPlan;
use satune_ir::term::tensor::{Wmma, WmmaShape};
use satune_ir::term::{CoresPlan, Schedule};
use satune_ir::{tvmscript, DType, Program};
use satune_rewrites::space::rules::tensor::TensorMenu;

/// A module's CUDA texts, and what NVRTC makes of them for an architecture.
pub fn texts(module: &Module, arch: &str) -> (Vec<String>, Vec<String>) {
    let texts: Vec<String> = module.kernels.iter().map(satune::cuda::print).collect();
    let arch = format!("compute_{arch}");
    let jobs: Vec<Job> =
        texts.iter().map(|t| Job { name: "kernel".into(), source: t.clone(), arch: arch.clone() }).collect();
    let ptx = compile(&jobs).into_iter().map(|c| c.ptx).collect();
    (texts, ptx)
}

/// Executes all of a module; what is wrong is told with the first text.
fn judged(source: &Program, module: &Module, arch: &str) -> Result<Executed, String> {
    let (texts, ptx) = texts(module, arch);
    let executed = execute_whole(source, module, &texts, &ptx).map_err(|e| format!("{e}\n{}", texts.join("\n")))?;
    match executed.compared > 0 && executed.inputs == [InputKind::Ordinary, InputKind::Extreme] {
        true => Ok(executed),
        false => Err(format!("{executed:?}: not all was compared")),
    }
}

pub fn right(source: &Program, module: &Module, arch: &str, what: &str) {
    if let Err(wrong) = judged(source, module, arch) {
        panic!("{what}: {wrong}\n{}", tvmscript::print(source));
    }
}

/// The kernels of an operator's schedule.
pub fn of_schedule(operator: &str, schedule: &Schedule) -> (Program, Module) {
    let problem = operators::parse(operator).unwrap();
    let made = scheduled::of_schedule(&problem.program, schedule, &problem.contraction, &h200());
    let made = made.unwrap_or_else(|e| panic!("{operator}: {e}\n{}", schedule.describe().join("\n")));
    (problem.program, made.module)
}

pub fn all_right(arch: &str, cases: &[(&str, Schedule)]) {
    for (operator, schedule) in cases {
        let (source, module) = of_schedule(operator, schedule);
        right(&source, &module, arch, &format!("{operator} {:?}", schedule.describe()));
    }
}

#[test(slow)]
fn products_by_single_threads_are_right() {
    for (operator, count) in [
        ("gemm:64,48,40,f32", 2),
        ("gemm:35,21,50,f32,TN", 2),
        ("bmm:3,20,24,16,f32,NT", 1),
        ("gemm:24,40,64,i8,NT", 1),
        ("gemm:20,24,32,f64", 1),
        ("gemm:40,24,32,f16,out=f16,bias,relu", 1),
        ("gemm:24,32,16,e4m3", 1),
        ("conv2d:1,8,8,4,8,3,3,f32,pad=1", 1),
    ] {
        let problem = operators::parse(operator).unwrap();
        let space = space(&problem.contraction);
        let counts = Counts::of(&space);
        let mut random = StdRng::seed_from_u64(11);
        for _ in 0..samples(count) {
            let plan =
                CoresPlan::from_term(&counts.sample(&space, &mut random).unwrap(), &problem.contraction).unwrap();
            let made = scheduled::of_plan(&problem.program, &plan, &problem.contraction, &h200()).unwrap();
            right(&problem.program, &made.module, "80", &format!("{operator} {:?}", plan.describe()));
        }
    }
    let c = crate::support::gemm(None, 256, 128, 32, DType::F32, DType::F32, "NN");
    right(&crate::support::source(&c), &kernels_of(&crate::compiles::classic(&c), &c), "90", "the classic schedule");
}

/// Some schedules of a program on `wgmma`, of which so many factors and results are gathered, that is no matrices in memory.
fn gathered_by_the_tma(what: &str, problem: &operators::Problem, count: usize, random: &mut StdRng) {
    let gpu = Descriptor::load("h200").unwrap();
    let contraction = &problem.contraction;
    let menu = TensorMenu { mma: None, ..TensorMenu::of(contraction, &satune::explore::tensor_cores(&gpu)) };
    let space = crate::tensor_space::on_tensor_cores(contraction, &gpu, menu);
    let counts = Counts::of(&space);
    for _ in 0..samples(count) {
        let term = counts.sample(&space, random).unwrap_or_else(|| panic!("{what}: no schedule"));
        let plan = Schedule::from_term(&term, contraction).unwrap();
        let made = scheduled::of_schedule(&problem.program, &plan, contraction, &h200()).unwrap();
        let maps = made.module.kernels[0].tensor_maps.iter();
        assert!(maps.filter(|map| map.dims.len() > 2).count() > 0, "{what}");
        right(&problem.program, &made.module, "90a", &format!("{what} {:?}", plan.describe()));
    }
}

/// Pixels that the TMA brings as rows of a factor (mode im2col): strides, dilations, paddings on either side, one to three
/// dimensions, several images, rows that tiles hang over; in clusters, in parts of k, and where the images are the second factor.
#[test]
fn pixels_that_the_tma_brings_are_right() {
    let mut random = StdRng::seed_from_u64(crate::support::seed());
    let cases = [
        ("conv2d:2,9,8,64,32,3,3,f16,pad=1", 2),
        ("conv2d:3,11,9,64,64,3,2,bf16,stride=2,pad=1,bias,relu,out=bf16", 2),
        ("conv2d:2,8,8,96,256,1,1,bf16,stride=2,out=bf16", 1),
        ("conv1d:3,70,64,48,5,f16,dilation=3,pad=4", 1),
        ("conv3d:1,4,5,6,64,32,2,3,3,f16,pad=1", 1),
        // Weights are read backwards.
        ("conv2d_transpose:1,6,12,64,32,3,3,f16,pad=1", 1),
        ("conv2d:8,7,7,128,64,3,3,f16,pad=1,out=f16", 1),
    ];
    for (operator, count) in crate::support::some_of(cases, 2) {
        gathered_by_the_tma(operator, &operators::parse(operator).unwrap(), count, &mut random);
    }
}

/// Channels first, with whole rows of columns: boxes of columns and channels, which begin before the first column and end behind the last.
#[test]
fn boxes_that_hang_over_either_side_are_right() {
    let body = "
P = T.alloc_buffer((2, 64, 7, 34), \"float16\")
for n, c, y, x in T.grid(2, 64, 7, 34):
    with T.sblock(\"P\"):
        vn, vc, vy, vx = T.axis.remap(\"SSSS\", [n, c, y, x])
        P[vn, vc, vy, vx] = T.if_then_else(1 <= vy and vy < 6 and 1 <= vx and vx < 33, X[vn, vc, vy - 1, vx - 1], T.float16(0))
for n, f, y, x, i, j, c in T.grid(2, 40, 5, 32, 3, 3, 64):
    with T.sblock(\"C\"):
        vn, vf, vy, vx, vi, vj, vc = T.axis.remap(\"SSSSRRR\", [n, f, y, x, i, j, c])
        with T.init():
            C[vn, vf, vy, vx] = T.float32(0)
        C[vn, vf, vy, vx] = C[vn, vf, vy, vx] + T.Cast(\"float32\", P[vn, vc, vy + vi, vx + vj]) * T.Cast(\"float32\", W[vi, vj, vc, vf])
";
    let params = "X: 2, 64, 5, 32 float16; W: 3, 3, 64, 40 float16; C: 2, 40, 5, 32 float32";
    let text = crate::support::script(params, body);
    let mut random = StdRng::seed_from_u64(crate::support::seed());
    gathered_by_the_tma("channels first", &satune::source::of_script("first.py", &text).unwrap(), 2, &mut random);
    crate::support::executed(&text, "h200", 2);
}

/// Boxes of tensors that the TMA brings and stores: heads between positions and channels, as attention has them, so that neither factors
/// nor results are matrices; the last rows end within a tile.
#[test]
fn heads_between_positions_and_channels_are_right() {
    let scores = "
for b, h, i, j, d in T.grid(2, 3, 130, 72, 64):
    with T.sblock(\"S\"):
        vb, vh, vi, vj, vd = T.axis.remap(\"SSSSR\", [b, h, i, j, d])
        with T.init():
            S[vb, vh, vi, vj] = T.float32(0)
        S[vb, vh, vi, vj] = S[vb, vh, vi, vj] + T.Cast(\"float32\", Q[vb, vi, vh, vd]) * T.Cast(\"float32\", K[vb, vj, vh, vd])
";
    let values = "
S = T.alloc_buffer((2, 130, 3, 64), \"float32\")
for b, h, i, d, j in T.grid(2, 3, 130, 64, 72):
    with T.sblock(\"S\"):
        vb, vh, vi, vd, vj = T.axis.remap(\"SSSSR\", [b, h, i, d, j])
        with T.init():
            S[vb, vi, vh, vd] = T.float32(0)
        S[vb, vi, vh, vd] = S[vb, vi, vh, vd] + T.Cast(\"float32\", P[vb, vh, vi, vj]) * T.Cast(\"float32\", V[vb, vj, vh, vd])
for b, i, h, d in T.grid(2, 130, 3, 64):
    with T.sblock(\"O\"):
        vb, vi, vh, vd = T.axis.remap(\"SSSS\", [b, i, h, d])
        O[vb, vi, vh, vd] = T.Cast(\"bfloat16\", S[vb, vi, vh, vd])
";
    let mut random = StdRng::seed_from_u64(crate::support::seed());
    for (what, params, body) in [
        ("scores", "Q: 2, 130, 3, 64 bfloat16; K: 2, 72, 3, 64 bfloat16; S: 2, 3, 130, 72 float32", scores),
        ("values", "P: 2, 3, 130, 72 bfloat16; V: 2, 72, 3, 64 bfloat16; O: 2, 130, 3, 64 bfloat16", values),
    ] {
        let text = crate::support::script(params, body);
        let problem = satune::source::of_script("heads.py", &text).unwrap();
        gathered_by_the_tma(what, &problem, 2, &mut random);
    }
}

/// Other forms that neither factor nor result is a matrix in: groups of channels, batch axes between or behind the axes of a matrix,
/// several axes to add up, a part of the channels, windows that begin within an image.
#[test]
fn products_of_any_form_that_the_tma_takes_are_right() {
    let cases = [
        product(
            "2, 10, 9, 128; 2, 3, 3, 64, 32; 2, 8, 7, 64",
            "n 2 y 8 x 7 g 2 f 32 I 3 J 3 C 64",
            "n, y + i, x + j, g * 64 + c; g, i, j, c, f; n, y, x, g * 32 + f",
        ),
        product(
            "70, 2, 3, 64; 40, 2, 3, 64; 2, 3, 70, 40",
            "b 2 h 3 p 70 q 40 D 64",
            "p, b, h, d; q, b, h, d; b, h, p, q",
        ),
        product(
            "3, 50, 2, 72; 3, 56, 2, 72; 3, 50, 2, 56",
            "b 3 h 2 p 50 q 56 D 72",
            "b, p, h, d; b, q, h, d; b, p, h, q",
        ),
        product("2, 3, 72, 64; 3, 64, 96; 2, 72, 96", "b 2 p 72 q 96 H 3 D 64", "b, h, p, d; h, d, q; b, p, q"),
        product("128, 3, 64; 128, 3, 32; 3, 64, 32", "b 3 p 64 q 32 D 128", "d, b, p; d, b, q; b, p, q"),
        product(
            "2, 12, 12, 192; 3, 3, 64, 64; 2, 7, 6, 64",
            "n 2 y 7 x 6 f 64 I 3 J 3 C 64",
            "n, y + i + 2, x + j + 1, c + 64; i, j, c, f; n, y, x, f",
        ),
        product(
            "12, 11, 128; 64, 3, 3, 128; 10, 9, 64",
            "y 10 x 9 f 64 I 3 J 3 C 128",
            "y + i, x + j, c; f, i, j, c; y, x, f",
        ),
    ];
    let mut random = StdRng::seed_from_u64(crate::support::seed());
    for text in crate::support::some_of(cases, 2) {
        let problem = satune::source::of_script("product.py", &text).unwrap();
        gathered_by_the_tma(&text, &problem, 1, &mut random);
    }
}

/// A product in f16 with sums in f32: shapes of factors and result, loops with their extents (capital letters are added up), and indices
/// of the three.
pub fn product(shapes: &str, loops: &str, indices: &str) -> String {
    let words: Vec<&str> = loops.split(' ').collect();
    let lower: Vec<String> = words.iter().step_by(2).map(|v| v.to_lowercase()).collect();
    let kinds: String = words.iter().step_by(2).map(|v| if **v == v.to_lowercase() { 'S' } else { 'R' }).collect();
    let extents: Vec<&str> = words.iter().skip(1).step_by(2).copied().collect();
    let at: Vec<String> = indices
        .split("; ")
        .map(|list| {
            let letter = |c: char| if c.is_ascii_alphabetic() { format!("v{c}") } else { c.to_string() };
            list.chars().map(letter).collect()
        })
        .collect();
    let bound: Vec<String> = lower.iter().map(|v| format!("v{v}")).collect();
    let (sum, a, b) = (format!("C[{}]", at[2]), format!("A[{}]", at[0]), format!("B[{}]", at[1]));
    let (loops, extents, bound) = (lower.join(", "), extents.join(", "), bound.join(", "));
    let body = format!(
        "
for {loops} in T.grid({extents}):
    with T.sblock(\"C\"):
        {bound} = T.axis.remap(\"{kinds}\", [{loops}])
        with T.init():
            {sum} = T.float32(0)
        {sum} = {sum} + T.Cast(\"float32\", {a}) * T.Cast(\"float32\", {b})
"
    );
    let shapes: Vec<&str> = shapes.split("; ").collect();
    let params = format!("A: {} float16; B: {} float16; C: {} float32", shapes[0], shapes[1], shapes[2]);
    crate::support::script(&params, &body)
}

#[test]
fn streaming_programs_are_right() {
    let gpu = Descriptor::load("h200").unwrap();
    for (operator, count) in [
        ("softmax:6,300,f32", 2),
        ("rowsum:8,1000,f32", 1),
        ("rowsum:2,16384,f32", 1),
        ("mean:4,513,f16", 1),
        ("transpose:40,72,f32", 1),
        ("transpose:64,64,f16", 1),
        ("relu_chain:8,200,f32", 1),
        ("layernorm:6,260,f32", 1),
        ("rmsnorm:4,512,bf16", 1),
        ("gemv:6,700,f32", 1),
    ] {
        let problem = StreamProblem::operator(operator).unwrap();
        let space = problem.space(&gpu).unwrap();
        let counts = Counts::of(&space);
        let mut random = StdRng::seed_from_u64(5);
        for _ in 0..samples(count) {
            let plan = StreamPlan::from_term(&counts.sample(&space, &mut random).unwrap(), &problem.streams).unwrap();
            let made = streaming::scheduled(problem.program(), &plan, &problem.streams, &h200()).unwrap();
            right(problem.program(), &made.module, "90", &format!("{operator} {:?}", plan.describe()));
        }
    }
}

/// Infinities of `float8_e5m2` (the extreme inputs have them, as bits) stay where they are moved, and no operation leaves one.
#[test]
fn infinities_of_8_bits_are_right() {
    // Of all 256 bytes how many infinities come out.
    let values = [
        ("float8_e5m2", "X[vi]", 2),
        ("float8_e5m2", "T.Select(T.isinf(X[vi]), X[vi], T.float8_e5m2(1.0))", 2),
        ("float8_e5m2", "T.reinterpret(\"float8_e5m2\", T.Cast(\"uint8\", vi))", 2),
        ("float32", "T.Cast(\"float32\", X[vi])", 2),
        ("float32", "T.if_then_else(T.isinf(X[vi]), T.infinity(\"float32\"), T.float32(0))", 2),
        ("float8_e5m2", "T.floor(X[vi])", 0),
        ("float8_e5m2", "T.abs(X[vi])", 0),
        ("float8_e5m2", "X[vi] * T.float8_e5m2(1.0)", 0),
        ("float8_e5m2", "T.min(X[vi], T.float8_e5m2(3.0))", 0),
        ("float8_e5m2", "T.Cast(\"float8_e5m2\", T.Cast(\"float32\", X[vi]))", 0),
    ];
    for (dtype, value, infinities) in values {
        let text = format!(
            r#"
@T.prim_func(s_tir=True)
def main(X: T.Buffer((256,), "float8_e5m2"), Y: T.Buffer((256,), "{dtype}")):
    for i in T.thread_binding(256, thread="threadIdx.x"):
        with T.sblock("Y"):
            vi = T.axis.spatial(256, i)
            Y[vi] = {value}
"#
        );
        let program = tvmscript::parse(&text).unwrap();
        let mut arrays: Vec<Array> =
            program.params.iter().map(|p| Array::unwritten(program.buffer(*p).dtype, &[256]).unwrap()).collect();
        (0..256).for_each(|bits| arrays[0].set(bits, Scalar::of_bits(bits as u64, DType::F8E5M2)));
        let results = interp::run(&program, &arrays).unwrap();
        let count = results[1].to_f64().into_iter().filter(|v| v.is_infinite()).count();
        assert_eq!(count, infinities, "{value}");
        let module = lower(&program, &h200()).unwrap();
        for arch in ["75", "90"] {
            right(&program, &module, arch, value);
        }
    }
}

#[test]
fn products_on_wmma_are_right() {
    let plan = |shape, operand, k| {
        let instruction = Mma::Wmma(Wmma::of(shape, operand).unwrap());
        TensorPlan { raster: Raster::rows(2), ..TensorPlan::plain([32, 64, k], [32, 32], instruction, 2) }
    };
    let f16 = plan(WmmaShape::ALL[0], DType::F16, 32);
    let staged = TensorPlan { store: Store::Shared { stmatrix: false }, ..f16.clone() };
    let halves = Mma::Wmma(Wmma { shape: WmmaShape::ALL[1], operand: DType::F16, f16_sums: true });
    let halves = TensorPlan { instruction: halves, ..f16.clone() };
    let cases = [
        ("gemm:64,64,64,f16,NT,sum=f16", halves.clone()),
        ("gemm:40,72,96,f16,TT,sum=f16", TensorPlan { instruction: halves.instruction, ..staged.clone() }),
        ("gemm:32,64,128,f16,NT,sum=f16", TensorPlan { split_k: 2, ..halves }),
        ("gemm:64,64,64,f16,NT", f16.clone()),
        ("gemm:40,72,96,f16,TN,out=f16,bias,relu", staged),
        ("gemm:32,64,128,f16,NN", TensorPlan { split_k: 2, ..f16 }),
    ];
    for (operator, plan) in cases {
        all_right("70", &[(operator, Schedule::Mma(plan))]);
    }
    all_right("75", &[("gemm:64,64,64,i8,NT", Schedule::Mma(plan(WmmaShape::ALL[1], DType::I8, 32)))]);
    all_right("80", &[("gemm:32,64,64,bf16,TT", Schedule::Mma(plan(WmmaShape::ALL[2], DType::BF16, 32)))]);
}

#[test(slow)]
fn products_on_mma_sync_are_right() {
    for op in Mma::SYNC {
        let (name, sums) = match op.operand() {
            DType::F32 => ("tf32", ""),
            operand if op.accumulator() == DType::F16 => (operand.name(), ",sum=f16"),
            operand => (operand.name(), ""),
        };
        for (layout, shape, plan) in [
            ("NT", [64, 64, 4 * op.k()], mma(op)),
            ("NN", [40, 72, 6 * op.k()], TensorPlan { split_k: 2, ..mma(op) }),
            ("TN", [16, 72, 4 * op.k()], TensorPlan { swapped: true, tile: [64, 32, mma(op).tile[2]], ..mma(op) }),
        ] {
            let [m, n, k] = shape.map(i64::from);
            let cases = [(&*format!("gemm:{m},{n},{k},{name},{layout}{sums}"), Schedule::Mma(plan))];
            all_right(&arch_of(op).to_string(), &cases);
        }
    }
    let f16 = TensorPlan { store: Store::Shared { stmatrix: true }, ..mma(Mma::F16) };
    all_right("90", &[("gemm:72,88,96,f16,NT,out=f16,bias,gelu,residual", Schedule::Mma(f16))]);
}

#[test(slow)]
fn products_on_wgmma_are_right() {
    let base = wgmma(1, 64);
    let plans: Vec<(&str, WgmmaPlan)> = vec![
        ("gemm:128,64,128,f16,NT", base.clone()),
        ("gemm:72,136,100,f16,TN,out=f16", WgmmaPlan { tile: [64, 64, 64], ..base.clone() }),
        ("gemm:72,136,100,f16,NT,sum=f16", WgmmaPlan { tile: [64, 64, 64], ..base.clone() }),
        ("gemm:128,72,128,f16,TN,sum=f16", WgmmaPlan { store: TileStore::Tma, blocks: None, ..wgmma(2, 64) }),
        ("gemm:64,64,256,f16,NN,sum=f16", WgmmaPlan { split_k: 2, ..base.clone() }),
        ("gemm:128,136,136,bf16,NN,out=bf16,bias,relu", wgmma(2, 64)),
        ("gemm:70,36,100,tf32,NT", WgmmaPlan { tile: [64, 32, 32], ..base.clone() }),
        ("gemm:66,48,272,i8,NT", WgmmaPlan { tile: [64, 32, 128], ..base.clone() }),
        ("gemm:66,48,272,e4m3,NT", WgmmaPlan { tile: [64, 32, 128], ..base.clone() }),
        ("gemm:64,64,256,f16,NT", WgmmaPlan { split_k: 2, ..base.clone() }),
        ("gemm:128,128,192,f16,NT", WgmmaPlan { ping_pong: true, tile: [64, 64, 64], ..wgmma(2, 64) }),
        ("gemm:128,72,128,f16,NT,out=f16", WgmmaPlan { store: TileStore::Tma, blocks: None, ..wgmma(2, 64) }),
        (
            "gemm:200,328,136,bf16,NT,out=bf16,bias,relu",
            WgmmaPlan { store: TileStore::Boxes, tile: [128, 256, 64], stages: 3, blocks: Some(2), ..wgmma(2, 64) },
        ),
        ("gemm:128,64,128,f16,TN", WgmmaPlan { eager_release: true, stages: 2, blocks: None, ..clustered([2, 1]) }),
        ("gemm:128,128,128,f16,NT", WgmmaPlan { blocks: None, ..clustered([1, 2]) }),
        // An arrival per warp: at the own block, at others, of consumers in turn, of steps that are dealt out.
        ("gemm:128,64,320,bf16,NT", WgmmaPlan { arrive_per_warp: true, stages: 2, ..wgmma(2, 64) }),
        (
            "gemm:128,128,320,f16,TN",
            WgmmaPlan { arrive_per_warp: true, eager_release: true, stages: 2, blocks: None, ..clustered([2, 2]) },
        ),
        (
            "gemm:128,128,192,f16,NT",
            WgmmaPlan { arrive_per_warp: true, ping_pong: true, tile: [64, 64, 64], stages: 2, ..wgmma(2, 64) },
        ),
        ("gemm:64,128,200,f16,NT", WgmmaPlan { arrive_per_warp: true, eager_release: true, ..stream(1, 3) }),
        // Zeros that a compiler would set after the fence.
        (
            "gemm:256,256,192,bf16,TN",
            WgmmaPlan {
                tile: [256, 128, 64],
                eager_release: true,
                stages: 3,
                cluster: [1, 2],
                blocks: Some(2),
                ..wgmma(2, 64)
            },
        ),
        ("gemm:64,72,264,f16,NT", WgmmaPlan { tile: [64, 64, 128], ..base.clone() }),
        ("gemm:64,64,392,bf16,TN", WgmmaPlan { tile: [64, 64, 128], split_k: 2, ..base.clone() }),
        ("gemm:64,88,136,f16,NN", WgmmaPlan { tile: [64, 80, 64], ..base.clone() }),
        ("gemm:64,40,136,bf16,TN", WgmmaPlan { tile: [64, 32, 64], ..base.clone() }),
        ("gemm:128,256,256,f16,NT", WgmmaPlan { tile: [64, 64, 128], blocks: None, stages: 2, ..clustered([2, 4]) }),
        ("gemm:64,128,200,f16,NT", stream(1, 3)),
        ("gemm:16,136,128,f16,NT", WgmmaPlan { swapped: true, tile: [64, 16, 64], ..base.clone() }),
        ("bmm:2,64,64,64,f16,NT", base),
    ];
    for (operator, plan) in plans {
        all_right("90a", &[(operator, Schedule::Wgmma(plan))]);
    }
}
