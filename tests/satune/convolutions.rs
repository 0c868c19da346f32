//! Convolutions: what operators mean, which programs are taken, and that schedules of them are products' schedules whose
//! matrices are in no memory: right by interpreter and simulator, counted as the simulator
//! counts.
use crate::support::*;
use rand::SeedableRng;
use satune::reference::Reference;
use satune::{explore, operators, scheduled, source};
use satune_extract::{best, work, Counts, Descriptor, Query};
use satune_ir::term::{Axis, Contraction, CoresPlan, Side, Space};
use satune_ir::tvmscript;
use satune_rewrites::space::{contraction, rules, saturate, Fuel, Menu};

fn problem(operator: &str) -> operators::Problem {
    operators::parse(operator).unwrap_or_else(|e| panic!("{e}"))
}

/// A space of few sizes, quickly searched. The tiles divide what extents have factors of 32.
fn small_space(c: &Contraction) -> Space {
    let menu = Menu {
        tile_m: vec![16, 32],
        tile_n: vec![16],
        tile_k: vec![8, 16],
        threads: vec![32, 64],
        vthreads: vec![1, 2],
        registers: 4,
        split_k: vec![],
        groups: vec![2],
        async_stages: vec![3],
    };
    saturate(c, H200, &menu, &rules::all(), Fuel::default()).unwrap()
}

#[test(slow)]
fn random_schedules_of_convolutions_are_right() {
    for (operator, count) in [
        ("conv2d:1,6,6,4,4,3,3,f32,pad=1", 8),
        ("conv2d:2,7,9,3,5,3,2,f32,stride=2,pad=1", 12),
        ("conv1d:2,20,8,12,5,f32,dilation=3,pad=2", 12),
        // Here guards on parts of an index say what is read of a tile.
        ("conv3d:1,3,4,5,2,4,2,3,3,f32,pad=1", 8),
        ("conv2d_transpose:1,4,5,4,4,3,3,f32,stride=2,pad=1,output_pad=1", 8),
        ("conv2d:1,6,6,4,8,3,3,f16,dilation=2,pad=2,bias,relu", 6),
        ("conv2d:3,5,5,4,8,1,1,i8,stride=2", 10),
        // One position, one channel of the result: axes without digits.
        ("conv1d:1,5,4,16,5,f32", 8),
        ("conv2d:1,3,4,4,1,3,2,f64,stride=2", 8),
        ("conv1d:1,2,3,8,4,f32,pad=1", 8),
        // Groups of channels.
        ("conv2d:2,6,5,12,18,3,3,f32,groups=3,pad=1,bias,relu", 8),
        ("conv2d_transpose:1,4,3,8,8,3,3,f32,groups=2,stride=2,pad=1", 6),
    ] {
        let problem = problem(operator);
        sampled_schedules_are_right(&problem.program, &problem.contraction, count);
    }
}

/// Random schedules on a GPU's tensor cores are right.
fn sampled_on_tensor_cores(
    what: &str,
    (program, contraction): (&satune_ir::Program, &Contraction),
    gpu: &str,
    count: usize,
    rng: &mut rand::rngs::StdRng,
) {
    let plans = crate::tensor_space::drawn(contraction, &Descriptor::load(gpu).unwrap(), samples(count), rng);
    assert!(!plans.is_empty(), "{what}: {gpu}");
    for plan in plans {
        crate::tensor_space::right(program, contraction, &plan, &format!("{what}: {gpu}"));
    }
}

/// On `mma.sync` and `wmma`, and where pixels are rows of 128 bytes on `wgmma`: paddings, strides, zeros between elements, channels that
/// fill a part of a tile along k, parts of k, results that tiles hang over, and what is done with them.
#[test]
fn random_schedules_of_convolutions_on_tensor_cores_are_right() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(crate::support::seed());
    for (operator, gpu, count) in [
        ("conv2d:2,8,8,32,32,3,3,f16,pad=1", "a100", 6),
        ("conv2d:1,9,7,16,24,3,2,f16,stride=2,pad=1,bias,relu,out=f16", "a100", 6),
        ("conv2d:2,8,8,64,64,1,1,bf16", "h200", 4),
        ("conv2d:2,9,9,64,32,1,1,bf16,stride=2", "h200", 4),
        ("conv2d:2,9,7,64,40,3,3,f16,stride=2,pad=1", "h200", 4),
        ("conv2d:2,9,7,24,40,3,3,f16,stride=2,pad=1", "h200", 4),
        ("conv2d:2,8,8,3,40,7,7,bf16,pad=3,relu,out=bf16", "h200", 4),
        ("conv1d:3,20,8,16,5,f16,dilation=3,pad=2", "t4", 6),
        ("conv2d:1,8,8,5,40,3,3,f16,pad=1", "rtx4090", 4),
        ("conv3d:1,3,4,5,8,16,2,3,3,i8,pad=1", "a100", 4),
        ("conv2d_transpose:1,5,6,16,16,3,3,f16,stride=2,pad=1,output_pad=1", "a100", 6),
        ("conv2d:2,8,8,32,16,3,3,f16,pad=1", "v100", 6),
        ("conv2d:2,6,6,64,64,3,3,f16,pad=1,groups=2,bias,relu,out=f16", "a100", 6),
        ("conv2d:2,6,6,32,48,3,3,f16,groups=2,stride=2,residual,out=f16", "t4", 4),
        ("conv1d:2,12,128,64,3,bf16,groups=2,pad=1,out=bf16", "h200", 4),
    ] {
        let problem = problem(operator);
        sampled_on_tensor_cores(operator, (&problem.program, &problem.contraction), gpu, count, &mut rng);
    }
}

/// Products whose channels, or heads, are in groups, as TensorIR's `te` writes them: each group has tiles, and what comes after is in the
/// same kernel. Random schedules on tensor cores and on single threads are right.
#[test]
fn products_in_groups_are_right() {
    use crate::sums::sum;
    let mut rng = rand::rngs::StdRng::seed_from_u64(crate::support::seed());
    let scores = sum(
        "S",
        &[('S', 1), ('S', 8), ('S', 24), ('S', 40), ('R', 32)],
        [
            "S[v0, v1, v2, v3]",
            "T.float32(0)",
            "SUM + T.Cast(\"float32\", Q[v0, v1, v2, v4]) * T.Cast(\"float32\", K[v0, v1 // 4, v3, v4])",
        ],
    );
    let values = sum(
        "O",
        &[('S', 2), ('S', 24), ('S', 6), ('S', 32), ('R', 48)],
        [
            "O[v0, v1, v2, v3]",
            "T.float32(0)",
            "SUM + T.Cast(\"float32\", P[v0, v2, v1, v4]) * T.Cast(\"float32\", V[v0, v4, v2 // 3, v3])",
        ],
    );
    let layer = "
P = T.sblock_alloc_buffer((2, 32, 8, 8), \"float16\")
S = T.sblock_alloc_buffer((2, 48, 6, 6))
for i0, i1, i2, i3 in T.grid(2, 32, 8, 8):
    with T.sblock(\"P\"):
        v0, v1, v2, v3 = T.axis.remap(\"SSSS\", [i0, i1, i2, i3])
        P[v0, v1, v2, v3] = T.if_then_else(1 <= v2 and v2 < 7 and 1 <= v3 and v3 < 7, A[v0, v1, v2 - 1, v3 - 1], T.float16(0))
"
    .to_string()
        + &sum(
            "S",
            &[('S', 2), ('S', 48), ('S', 6), ('S', 6), ('R', 16), ('R', 3), ('R', 3)],
            [
                "S[v0, v1, v2, v3]",
                "T.float32(0)",
                "SUM + T.Cast(\"float32\", P[v0, v1 // 24 * 16 + v4, v2 + v5, v3 + v6]) * T.Cast(\"float32\", W[v1, v4, v5, v6])",
            ],
        )
        + "
for i0, i1, i2, i3 in T.grid(2, 48, 6, 6):
    with T.sblock(\"Y\"):
        v0, v1, v2, v3 = T.axis.remap(\"SSSS\", [i0, i1, i2, i3])
        Y[v0, v1, v2, v3] = T.max(S[v0, v1, v2, v3] + B[v1], T.float32(0))
";
    for (what, params, body) in [
        ("heads that share keys", "Q: 1, 8, 24, 32 float16; K: 1, 2, 40, 32 float16; S: 1, 8, 24, 40 float32", scores),
        (
            "heads that share values",
            "P: 2, 6, 24, 48 bfloat16; V: 2, 48, 2, 32 bfloat16; O: 2, 24, 6, 32 float32",
            values,
        ),
        ("a layer", "A: 2, 32, 6, 6 float16; W: 48, 16, 3, 3 float16; B: 48, float32; Y: 2, 48, 6, 6 float32", layer),
    ] {
        let program = satune_rewrites::space::explored(&tvmscript::parse(&script(params, &body)).unwrap());
        let contraction = contraction(&program).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(contraction.epilogue.is_some(), what == "a layer");
        sampled_schedules_are_right(&program, &contraction, 2);
        for gpu in ["a100", "h200"] {
            sampled_on_tensor_cores(what, (&program, &contraction), gpu, 2, &mut rng);
        }
    }
}

/// What the TMA does not bring as pixels of images, threads bring; the TMA says why.
#[test]
fn factors_that_the_tma_does_not_gather_say_why() {
    use satune_ir::term::tensor::{wgmma_conditions, Gemm};
    let why = |operator: &str| {
        let gemm = Gemm::of(&problem(operator).contraction).unwrap();
        wgmma_conditions::rows(&gemm).map_err(|why| why.to_string())
    };
    let taken = [
        "conv2d:2,9,8,64,32,3,3,f16,stride=8,dilation=2,pad=3",
        "conv2d_transpose:1,6,7,64,32,3,3,f16,pad=1",
        "conv2d:2,9,8,64,36,3,3,f16,pad=1",
    ];
    for operator in taken {
        assert_eq!(why(operator), Ok(()), "{operator}");
    }
    for (operator, part) in [
        ("conv2d:2,9,8,40,32,3,3,f16,pad=1", "its channels are no multiple of 128 bytes"),
        ("conv2d:2,40,40,64,32,3,3,f16,stride=9", "its stride is not 1 to 8"),
        ("conv2d:2,9,8,64,32,3,3,f16,pad=130", "its padding or its window is too large for images"),
        ("conv3d:1,6,6,6,64,32,3,3,3,f16,pad=17", "its padding or its window is too large for images"),
        ("conv2d_transpose:1,6,7,64,32,3,3,f16,stride=2", "zeros stand between its elements"),
    ] {
        assert!(why(operator).is_err_and(|why| why.contains(part)), "{operator}: {:?}", why(operator));
    }
}

/// Weights whose rows are no multiples of 16 bytes are copied to such first, beside pixels that the TMA gathers.
#[test]
fn weights_that_the_tma_does_not_take_are_copied_first() {
    use satune_ir::term::tensor::{TileStore, WgmmaPlan};
    use satune_ir::term::Schedule;
    for (operator, store) in [
        ("conv2d:2,9,8,64,36,3,3,f16,pad=1", TileStore::Direct),
        ("conv2d:2,9,8,64,35,3,3,bf16,pad=1,bias,relu", TileStore::Direct),
        ("conv2d:1,9,8,64,36,3,3,bf16,stride=2,pad=1", TileStore::Tma),
    ] {
        let problem = problem(operator);
        for swapped in [false, true].into_iter().filter(|swapped| !swapped || store == TileStore::Direct) {
            let plan = WgmmaPlan { swapped, store, ..WgmmaPlan::plain([64, 64, 64], 1, 3) };
            let plan = Schedule::Wgmma(plan);
            let made = scheduled::of_schedule(&problem.program, &plan, &problem.contraction, &h200());
            let made = made.unwrap_or_else(|e| panic!("{operator}: {e}"));
            assert_eq!((made.module.kernels.len(), made.module.main), (2, 1));
            explore::check(&plan, &problem.contraction, &h200(), &|| true)
                .unwrap_or_else(|e| panic!("{operator}: {e}"));
        }
    }
}

/// One dimension of a convolution: size, kernel, stride, padding, dilation.
#[derive(Clone, Copy)]
struct Along(i64, i64, i64, i64, i64);

/// Sums by the definition: `conv[n, o, co] = Σ x[n, o s + k d - p, ci] w[k, ci, co]` over two dimensions.
fn by_definition(x: &[f64], w: &[f64], [n, ci, co]: [i64; 3], along: [Along; 2]) -> Vec<f64> {
    let [Along(h, kh, s, p, d), Along(width, kw, ..)] = along;
    let size = |a: Along| (a.0 + 2 * a.3 - a.4 * (a.1 - 1) - 1) / a.2 + 1;
    let (oh, ow) = (size(along[0]), size(along[1]));
    let mut out = vec![0.0; (n * oh * ow * co) as usize];
    for (at, sum) in out.iter_mut().enumerate() {
        let at = at as i64;
        let (b, y, z, c) = (at / co / ow / oh, at / co / ow % oh, at / co % ow, at % co);
        for (i, j) in (0..kh).flat_map(|i| (0..kw).map(move |j| (i, j))) {
            let (row, column) = (y * s + i * d - p, z * s + j * d - p);
            if (0..h).contains(&row) && (0..width).contains(&column) {
                let from = ((b * h + row) * width + column) * ci;
                *sum += (0..ci)
                    .map(|k| x[(from + k) as usize] * w[(((i * kw + j) * ci + k) * co + c) as usize])
                    .sum::<f64>();
            }
        }
    }
    out
}

#[test]
fn operators_mean_what_they_say() {
    for (operator, along) in [
        ("conv2d:2,5,6,3,4,3,2,f32", [Along(5, 3, 1, 0, 1), Along(6, 2, 1, 0, 1)]),
        ("conv2d:2,5,6,3,4,3,2,f32,pad=1,stride=2", [Along(5, 3, 2, 1, 1), Along(6, 2, 2, 1, 1)]),
        ("conv2d:2,7,6,3,4,3,2,f32,pad=2,dilation=2", [Along(7, 3, 1, 2, 2), Along(6, 2, 1, 2, 2)]),
    ] {
        let reference = Reference::of(&problem(operator).program, 3, &|| true).unwrap();
        let [x, w, c] =
            [0, 1, 2].map(|i| if i < 2 { reference.inputs[i].to_f64() } else { reference.expected[i].to_f64() });
        assert_eq!(c, by_definition(&x, &w, [2, 3, 4], along), "{operator}");
    }
    // Of groups each is a convolution by itself.
    let [groups, ci, co] = [2, 3, 2];
    let operator = format!("conv2d:2,5,6,{},{},3,2,f32,pad=1,groups={groups}", groups * ci, groups * co);
    let reference = Reference::of(&problem(&operator).program, 3, &|| true).unwrap();
    let [x, w, c] =
        [0, 1, 2].map(|i| if i < 2 { reference.inputs[i].to_f64() } else { reference.expected[i].to_f64() });
    for group in 0..groups {
        let of = |all: &[f64], of_group: i64| -> Vec<f64> {
            let own = |at: &usize| *at as i64 / of_group % groups == group;
            (0..all.len()).filter(own).map(|at| all[at]).collect()
        };
        let wanted = by_definition(&of(&x, ci), &of(&w, co), [2, ci, co], [Along(5, 3, 1, 1, 1), Along(6, 2, 1, 1, 1)]);
        assert_eq!(of(&c, co), wanted, "group {group}");
    }
    // What a transposed convolution makes is where each element goes.
    let (h, width, ci, co, k, s, p) = (4, 3, 2, 3, 3, 2, 1);
    let operator = format!("conv2d_transpose:1,{h},{width},{ci},{co},{k},{k},f32,stride={s},pad={p},output_pad=1");
    let reference = Reference::of(&problem(&operator).program, 3, &|| true).unwrap();
    let (x, w) = (reference.inputs[0].to_f64(), reference.inputs[1].to_f64());
    let size = |n: i64| (n - 1) * s - 2 * p + k + 1;
    let mut wanted = vec![0.0; (size(h) * size(width) * co) as usize];
    for (y, z, c, i, j) in each(&[h, width, ci, k, k]) {
        let (row, column) = (y * s + i - p, z * s + j - p);
        if (0..size(h)).contains(&row) && (0..size(width)).contains(&column) {
            for o in 0..co {
                wanted[((row * size(width) + column) * co + o) as usize] +=
                    x[((y * width + z) * ci + c) as usize] * w[(((i * k + j) * ci + c) * co + o) as usize];
            }
        }
    }
    assert_eq!(reference.expected[2].to_f64(), wanted);
}

/// All values of five numbers below these.
fn each(ends: &[i64; 5]) -> Vec<(i64, i64, i64, i64, i64)> {
    let total: i64 = ends.iter().product();
    let digits = |mut n: i64| {
        let mut out = [0; 5];
        for (digit, end) in out.iter_mut().zip(ends).rev() {
            (*digit, n) = (n % end, n / end);
        }
        (out[0], out[1], out[2], out[3], out[4])
    };
    (0..total).map(digits).collect()
}

/// A program of a convolution along one dimension: `padding` is what P holds, `factors` what is added up.
fn text(padding: &str, factors: &str) -> String {
    format!(
        r#"from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(X: T.Buffer((2, 4, 10), "float32"), W: T.Buffer((6, 4, 3), "float32"), C: T.Buffer((2, 6, 10), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    P = T.sblock_alloc_buffer((2, 4, 12), "float32")
    for n, c, w in T.grid(2, 4, 12):
        with T.sblock("pad"):
            vn, vc, vw = T.axis.remap("SSS", [n, c, w])
            P[vn, vc, vw] = {padding}
    for n, co, ow, ci, kw in T.grid(2, 6, 10, 4, 3):
        with T.sblock("C"):
            vn, vco, vow, vci, vkw = T.axis.remap("SSSRR", [n, co, ow, ci, kw])
            with T.init():
                C[vn, vco, vow] = T.float32(0)
            C[vn, vco, vow] = C[vn, vco, vow] + {factors}
"#
    )
}

const PADDED: &str = "T.if_then_else(1 <= vw and vw < 11, X[vn, vc, vw - 1], T.float32(0))";
const FACTORS: &str = "P[vn, vci, vow + vkw] * W[vco, vci, vkw]";

#[test]
fn channels_may_come_first() {
    let problem = source::of_script("first.py", &text(PADDED, FACTORS)).unwrap();
    let c = &problem.contraction;
    assert_eq!([Axis::M, Axis::N, Axis::K].map(|a| c.extent(a)), [20, 6, 12]);
    // Neighbouring results are neighbours in memory, but a window's columns shift them.
    assert_eq!((c.a.dims.last(), c.row(Side::A)), (Some(&Axis::M), 1));
    // The weights of one channel lie one after the other.
    assert_eq!((c.b.dims.last(), c.row(Side::B)), (Some(&Axis::K), 12));
}

#[test]
fn what_is_no_convolution_is_refused_by_name() {
    for (padding, factors, part) in [
        ("T.max(X[vn, vc, vw], T.float32(0))", FACTORS, "it computes more than a copy with zeros"),
        ("X[vn, vc, vw + vw // 2]", FACTORS, "an index is no iterator, shifted or divided"),
        ("X[vn, vc, vn + vw]", FACTORS, "an index is no iterator, shifted or divided"),
        (
            PADDED,
            "P[vn, vci, vow * vkw] * W[vco, vci, vkw]",
            "the index vow * vkw of buffer `P` is no sum of iterators",
        ),
        (PADDED, "P[vn, vci, vow + vkw] * P[vco % 2, vci, vkw]", "both factors are the same buffer"),
        (PADDED, "X[vn, vci, vow] * W[vco, vci, vkw]", "`vkw` does not index both factors"),
        (
            PADDED,
            "P[vn, vci, vow + vkw] * W[0, vci, vkw]",
            "spatial iterator `vco` does not index the result and a factor",
        ),
        (PADDED, "X[vn, vci, vow + vkw - vkw // 2] * W[vco, vci, vkw]", "no sum of iterators"),
        (PADDED, "X[vn, vci, vow + 0 * vkw] * W[vco, vci, vkw]", "`vkw` does not index both factors"),
    ] {
        let program = tvmscript::parse(&text(padding, factors)).unwrap();
        let error = contraction(&program).unwrap_err().to_string();
        assert!(error.contains(part), "{padding}, {factors}:\n{error}");
    }
    // A block that makes no operand, and results that are written in several blocks.
    let unused = text(PADDED, "X[vn, vci, vow] * W[vco, vci, 0]")
        .replace(", kw in T.grid(2, 6, 10, 4, 3)", " in T.grid(2, 6, 10, 4)");
    let unused = unused.replace(
        "vci, vkw = T.axis.remap(\"SSSRR\", [n, co, ow, ci, kw])",
        "vci = T.axis.remap(\"SSSR\", [n, co, ow, ci])",
    );
    let error = contraction(&tvmscript::parse(&unused).unwrap()).unwrap_err().to_string();
    assert!(error.contains("block `pad` makes no operand of block `C`"), "{error}");
    for (operator, part) in [
        ("conv2d:1,8,8,4,4,3,f32", "7 arguments where 8 belong"),
        ("conv2d:1,8,8,4,4,3,3,f32,stride=0", "stride is `0`; give a whole number from 1 to 1024"),
        ("conv2d:1,8,8,4,4,3,3,f32,pad=1,pad=2", "option `pad` is given twice"),
        ("conv2d:1,8,8,4,4,3,3,f32,output_pad=1", "unknown option `output_pad=1`"),
        ("conv2d:1,2,2,4,4,5,5,f32,pad=1", "a kernel that reaches 5 is larger than its input of 4"),
        ("conv2d_transpose:1,2,2,4,4,3,3,f32,pad=3", "a padding of 3 cuts a kernel of 3 off"),
        ("conv1d:0,8,4,4,3,f32", "N is 0"),
        ("conv1d:4096,4096,4,4,1,f32", "axis m has 16777216 iterations"),
    ] {
        let error = operators::parse(operator).unwrap_err().to_string();
        assert!(error.contains(part), "{operator}: {error}");
    }
}

/// Every width that divides a row is one aligned run, inside or outside as a whole; no other width is.
#[test]
fn widths_are_exact() {
    for (operator, rows) in [
        ("conv2d:1,6,6,8,8,3,3,f32,pad=1", [8, 8]),
        ("conv2d:1,6,6,6,8,3,3,f32,pad=1", [6, 8]),
        ("conv2d:1,6,6,12,10,3,3,f32,stride=2", [12, 10]),
        ("conv2d:1,6,6,3,7,3,3,f32,dilation=2", [3, 7]),
        ("conv2d_transpose:1,4,4,8,8,3,3,f32,stride=2,pad=1", [8, 8]),
        ("conv1d:2,9,4,4,3,f32", [4, 4]),
        // All of K lies in one row where the kernel is the input.
        ("conv2d:2,1,4,3,8,1,4,f32", [12, 8]),
    ] {
        let c = problem(operator).contraction;
        assert_eq!([c.row(Side::A), c.row(Side::B)], rows, "{operator}");
        let size = |side: Side| [c.extent(side.spatial()), c.extent(Axis::K)];
        for side in [Side::A, Side::B] {
            let [spatial, k] = size(side);
            let places = c.places(side, [0, 0], [spatial, k]);
            let along_k = c.operand(side).contiguous_along(Axis::K);
            let (lines, length) = if along_k { (spatial, k) } else { (k, spatial) };
            let at = |line, x| if along_k { places.at(line, x) } else { places.at(x, line) };
            for width in 2..=length {
                let run = |line: i64, x: i64| {
                    let first = at(line, x);
                    let aligned = first.is_none_or(|p| p % width as u64 == 0);
                    aligned && (1..width).all(|i| at(line, x + i) == first.map(|p| p + i as u64))
                };
                let all = (0..lines).all(|line| (0..length / width).all(|x| run(line, x * width)));
                let wide = all && length % width == 0;
                assert_eq!(wide, c.row(side) % width == 0, "{operator}: {side:?} by {width}");
            }
        }
    }
}

/// The model counts a few tiles of a gathered operand: its sectors are the simulator's within this share.
const SECTORS: f64 = 0.15;

/// Where tiles divide the problem, instructions and wavefronts are the simulator's; the model counts whole tiles, so what hangs
/// over an edge makes it count more multiply-adds than are made.
#[test]
fn the_models_counts_are_near_the_simulators() {
    let mut rng = rand::rngs::StdRng::seed_from_u64(5);
    let mut worst: f64 = 0.0;
    for (operator, whole) in [
        ("conv2d:2,16,16,16,32,3,3,f32,pad=1", true),
        ("conv2d:2,17,17,16,32,3,3,f32,stride=2", true),
        ("conv1d:4,34,32,32,3,f32", true),
        ("conv2d:1,11,9,3,20,3,3,f32,pad=1", false),
    ] {
        let problem = problem(operator);
        let c = &problem.contraction;
        let space = small_space(c);
        let counts = Counts::of(&space);
        for _ in 0..6 {
            let plan = CoresPlan::from_term(&counts.sample(&space, &mut rng).unwrap(), c).unwrap();
            let made = scheduled::of_plan(&problem.program, &plan, c, &h200()).unwrap();
            let counted = scheduled::check(&problem.program, &made, 1).unwrap().total;
            let model = work::total(&plan, c);
            let told = || format!("{operator}: {:#?}", plan.describe());
            assert_eq!(model.barriers as u64, counted.barriers, "{}", told());
            if !whole {
                assert!(model.fma as u64 > counted.fma, "{}", told());
                continue;
            }
            let exact = [model.fma, model.shared_loads, model.async_copies, model.shared_load_wavefronts];
            let same = [counted.fma, counted.shared_loads, counted.async_copies, counted.shared_load_wavefronts];
            assert_eq!(exact.map(|x| x as u64), same, "{}", told());
            let share = model.global_load_sectors / counted.global_load_sectors as f64 - 1.0;
            assert!(share.abs() <= SECTORS, "sectors by {share}: {}", told());
            worst = worst.max(share.abs());
        }
    }
    println!("sectors within {worst:.3}");
}

/// The best schedules of a layer are checked on a small problem of the same windows, in one kernel without a workspace.
#[test]
fn a_layer_is_one_kernel() {
    let gpu = Descriptor::load("h200").unwrap();
    for operator in ["conv2d:2,8,8,16,16,3,3,f32,pad=1,bias,relu", "conv2d:2,16,16,3,16,7,7,f32,stride=2,pad=3"] {
        let problem = problem(operator);
        let space = small_space(&problem.contraction);
        let found = best(&space, &gpu, Query { k: 2, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY });
        assert!(!found.candidates.is_empty());
        for candidate in &found.candidates {
            let made =
                scheduled::of_schedule(&problem.program, &candidate.plan, &problem.contraction, &h200()).unwrap();
            assert_eq!((made.module.kernels.len(), made.module.workspaces.len()), (1, 0));
            explore::check(&candidate.plan, &problem.contraction, &h200(), &|| true)
                .unwrap_or_else(|e| panic!("{operator}: {e}"));
        }
    }
}

/// A result whose channels come before its places is a matrix for one image: by columns. For several its elements have places.
#[test]
fn channels_first_are_a_matrix_for_one_image_alone() {
    let of = |images: i64| {
        let body = format!(
            "
for n, f, y, x, c, i, j in T.grid({images}, 32, 8, 8, 16, 3, 3):
    with T.sblock(\"C\"):
        vn, vf, vy, vx, vc, vi, vj = T.axis.remap(\"SSSSRRR\", [n, f, y, x, c, i, j])
        with T.init():
            C[vn, vf, vy, vx] = T.float32(0)
        C[vn, vf, vy, vx] = C[vn, vf, vy, vx] + T.Cast(\"float32\", X[vn, vc, vy + vi, vx + vj]) * T.Cast(\"float32\", W[vf, vc, vi, vj])
"
        );
        let params = format!("X: {images}, 16, 10, 10 float16; W: 32, 16, 3, 3 float16; C: {images}, 32, 8, 8 float32");
        let program = tvmscript::parse(&script(&params, &body)).unwrap();
        satune_ir::term::tensor::Gemm::of(&contraction(&program).unwrap()).unwrap()
    };
    assert!(of(1).c_transposed && of(1).placed.is_none());
    let several = of(3);
    let placed = several.placed.as_ref().unwrap();
    // Row (image 2, y 1, x 5), channel 7.
    assert_eq!(placed.place(0, [2 * 64 + 8 + 5, 7]), 2 * 32 * 64 + 7 * 64 + 8 + 5);
    assert_eq!((several.c_run(false), several.c_pitch()), (64, 192));
}

/// Explored as a user does: every candidate is executed, and most are on tensor cores.
#[test(slow)]
fn layers_are_explored_on_tensor_cores() {
    let cases = [
        ("conv2d:8,28,28,64,128,3,3,f16,pad=1,bias,relu,out=f16", "a100"),
        ("conv2d:4,56,56,64,64,1,1,bf16,stride=2", "h200"),
        ("conv2d:2,32,32,3,32,7,7,f16,stride=2,pad=3", "t4"),
        ("conv1d:8,200,24,40,5,f16,pad=2,dilation=2", "v100"),
        ("conv2d_transpose:1,28,28,32,32,4,4,f16,stride=2,pad=1", "rtx4090"),
        ("conv2d:1,14,14,128,256,3,3,i8,pad=1", "a100"),
    ];
    for (operator, gpu) in some_of(cases, 1) {
        let text = tvmscript::print(&problem(operator).program);
        let report = executed(&text, gpu, 4);
        assert_eq!(report["untiled"].as_array().map_or(0, Vec::len), 0, "{operator}: {}", report["untiled"]);
        let first = report["candidates"][0]["schedule"].to_string();
        assert!(first.contains("mma"), "{operator}: {first}");
    }
}

/// Two layers, each with the padding before it: two kernels on tensor cores, and nothing padded in memory.
#[test(slow)]
fn layers_one_after_the_other_are_on_tensor_cores() {
    let layer = |name: &str, from: &str, to: &str, channels: [i64; 2]| {
        let [c, f] = channels;
        format!(
            "
for n, y, x, f in T.grid(2, 16, 16, {c}):
    with T.sblock(\"pad_{name}\"):
        vn, vy, vx, vf = T.axis.remap(\"SSSS\", [n, y, x, f])
        P_{name}[vn, vy, vx, vf] = T.if_then_else(1 <= vy and vy < 15 and 1 <= vx and vx < 15, {from}[vn, vy - 1, vx - 1, vf], T.float16(0))
for n, y, x, f, i, j, c in T.grid(2, 14, 14, {f}, 3, 3, {c}):
    with T.sblock(\"{name}\"):
        vn, vy, vx, vf, vi, vj, vc = T.axis.remap(\"SSSSRRR\", [n, y, x, f, i, j, c])
        with T.init():
            {to}[vn, vy, vx, vf] = T.float32(0)
        {to}[vn, vy, vx, vf] = {to}[vn, vy, vx, vf] + T.Cast(\"float32\", P_{name}[vn, vy + vi, vx + vj, vc]) * T.Cast(\"float32\", W_{name}[vi, vj, vc, vf])
"
        )
    };
    let body = format!(
        "P_one = T.alloc_buffer((2, 16, 16, 16), \"float16\")
S = T.alloc_buffer((2, 14, 14, 32), \"float32\")
R = T.alloc_buffer((2, 14, 14, 32), \"float16\")
P_two = T.alloc_buffer((2, 16, 16, 32), \"float16\"){}
for n, y, x, f in T.grid(2, 14, 14, 32):
    with T.sblock(\"relu\"):
        vn, vy, vx, vf = T.axis.remap(\"SSSS\", [n, y, x, f])
        R[vn, vy, vx, vf] = T.Cast(\"float16\", T.max(S[vn, vy, vx, vf], T.float32(0)))
{}",
        layer("one", "X", "S", [16, 32]),
        layer("two", "R", "Y", [32, 64])
    );
    let params =
        "X: 2, 14, 14, 16 float16; W_one: 3, 3, 16, 32 float16; W_two: 3, 3, 32, 64 float16; Y: 2, 14, 14, 64 float32";
    let report = executed(&script(params, &body), "a100", 2);
    assert_eq!(report["untiled"].as_array().map_or(0, Vec::len), 0, "{}", report["untiled"]);
    let first = &report["candidates"][0];
    assert_eq!(first["kernels"].as_array().map(Vec::len), Some(2), "{first}");
    assert_eq!(first["schedule"].to_string().matches("mma.sync F16").count(), 2, "{}", first["schedule"]);
}
