//! Tensor-core kernels: simulated bit for bit, and really compiled.
use crate::compiles::compile;
use crate::support::some_of;
use crate::synchronisation::without;
use satune::compile::{hot_loop_mix, Compiled, Job};
use satune::kernel::{GroupOp, Mma, Stmt};
use satune::lower::program::{Argument, Module, Workspace};
use satune::simulate::{self, Options, Report};
use satune::workload::Workload;
use satune_ir::interp::Scalar;
use satune_ir::term::tensor::wgmma_conditions;
use satune_ir::term::Schedule;
use satune_ir::{BinOp, DType};

/// Plans, and kernels by what their parameters are to a product.
pub mod plans {
    use super::{lower_written, DType, Schedule};
    use satune::kernel::Kernel;
    pub use satune::kernel::Mma;
    pub use satune_ir::term::tensor::{
        CopyOrder, Epilogue, Gemm, OperandPlan, Order, Raster, Read, Store, TensorPlan, TileLayout, TileStore,
        WgmmaPlan,
    };

    /// Kernels to be launched in order, and the buffers between them.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TensorModule {
        pub kernels: Vec<Kernel>,
        pub args: Vec<Vec<Operand>>,
        pub workspaces: Vec<Between>,
        pub main: usize,
    }

    #[derive(Clone, Debug, PartialEq)]
    pub struct Between {
        pub name: String,
        pub elements: u64,
        pub dtype: DType,
    }

    impl Between {
        pub fn bytes(&self) -> u64 {
            self.elements * u64::from(self.dtype.bytes())
        }
    }

    /// An argument of a kernel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Operand {
        A,
        B,
        C,
        Read(usize),
        Between(usize),
    }

    /// The kernels of a plan on `wgmma` or `tcgen05`.
    pub fn lower_wgmma(g: &Gemm, plan: &WgmmaPlan) -> Result<TensorModule, String> {
        plan.check(g).map_err(|e| e.to_string())?;
        lower_written(g, &Schedule::Wgmma(plan.clone()))
    }
}
pub use plans::*;

/// Small whole numbers, which all types hold and whose sums are exact in f32.
fn numbers(len: i64, seed: i64) -> Vec<f64> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729) % 1009 % 7 - 3) as f64).collect()
}

struct Inputs {
    a: Vec<f64>,
    b: Vec<f64>,
    reads: Vec<Vec<f64>>,
}

fn inputs(g: &Gemm) -> Inputs {
    Inputs {
        a: numbers(g.batch * g.m * g.k, 1),
        b: numbers(g.batch * g.k * g.n, 2),
        reads: g.reads.iter().zip(3..).map(|(read, seed)| numbers(read.elements(g.results()), seed)).collect(),
    }
}

/// The product with `max(alpha * sum + bias, 0) + factor * residual`.
pub fn relu_and_residual(g: &mut Gemm, alpha: f64, factor: f64) {
    use Epilogue::{Number, Sum};
    let binary = Epilogue::binary;
    let biased = binary(BinOp::Add, binary(BinOp::Mul, Sum, Number(alpha)), Epilogue::Read(0));
    let residual = binary(BinOp::Mul, Epilogue::Read(1), Number(factor));
    g.epilogue = binary(BinOp::Add, binary(BinOp::Max, biased, Number(0.0)), residual);
    g.reads = vec![Read::per_column(g.output, g.n), Read::per_result(g.output)];
}

/// The results in the order of memory.
fn reference(g: &Gemm, x: &Inputs) -> Vec<f64> {
    let mut out = Vec::new();
    for at in 0..g.results() {
        let (product, within) = (at / (g.m * g.n), at % (g.m * g.n));
        let (i, j) = if g.c_transposed { (within % g.m, within / g.m) } else { (within / g.n, within % g.n) };
        let (a, b) = (&x.a[(product * g.m * g.k) as usize..], &x.b[(product * g.k * g.n) as usize..]);
        let sum: f64 = (0..g.k)
            .map(|k| {
                let a = a[if g.a_transposed { k * g.m + i } else { i * g.k + k } as usize];
                let b = b[if g.b_transposed { j * g.k + k } else { k * g.n + j } as usize];
                a * b
            })
            .sum();
        let place = |read: &Read| read.at.as_ref().map_or(at, |matrix| matrix.place(product, [i, j]));
        let element = |(read, list): (&Read, &Vec<f64>)| Scalar::of_held(list[place(read) as usize], read.dtype);
        let beside: Vec<Scalar> = g.reads.iter().zip(&x.reads).map(element).collect();
        let sum = Scalar::float(sum, g.accumulator());
        out.push(g.epilogue.stored(g.output, sum, &beside, &g.indices_of(product, [i, j])).as_f64());
    }
    out
}

/// Runs a module; its report is the main kernel's.
pub fn run(g: &Gemm, module: &TensorModule) -> Result<(Vec<f64>, Report), simulate::Fault> {
    let x = inputs(g);
    let mut c = vec![f64::NAN; g.results() as usize];
    let mut between: Vec<Vec<f64>> = module.workspaces.iter().map(|w| vec![f64::NAN; w.elements as usize]).collect();
    let mut report = None;
    for (number, (kernel, operands)) in module.kernels.iter().zip(&module.args).enumerate() {
        let mut values: Vec<Vec<f64>> = operands
            .iter()
            .map(|o| match o {
                Operand::A => x.a.clone(),
                Operand::B => x.b.clone(),
                Operand::C => c.clone(),
                Operand::Read(number) => x.reads[*number].clone(),
                Operand::Between(number) => between[*number].clone(),
            })
            .collect();
        let r = simulate::run(kernel, &mut values, &Options::default())?;
        // Workspaces may have room that is not used.
        assert!(r.unwritten == 0 || !operands.contains(&Operand::C));
        if number == module.main {
            report = Some(r);
        }
        for (o, value) in operands.iter().zip(values) {
            match o {
                Operand::C => c = value,
                Operand::Between(number) => between[*number] = value,
                _ => {}
            }
        }
    }
    Ok((c, report.unwrap()))
}

/// A product as a program: A, B, what the epilogue reads, C.
fn program_of(g: &Gemm) -> String {
    let batch = g.batch > 1;
    let shape = |dims: [i64; 2]| {
        if batch {
            format!("{}, {}, {}", g.batch, dims[0], dims[1])
        } else {
            format!("{}, {}", dims[0], dims[1])
        }
    };
    let at = |dims: [&str; 2]| {
        if batch {
            format!("vb, {}, {}", dims[0], dims[1])
        } else {
            format!("{}, {}", dims[0], dims[1])
        }
    };
    let turned = |turned: bool, [x, y]: [&'static str; 2]| if turned { [y, x] } else { [x, y] };
    let sizes = |turned: bool, [x, y]: [i64; 2]| if turned { [y, x] } else { [x, y] };
    let (sum, output) = (g.accumulator(), g.output);
    let mut params = vec![
        format!("A: {} {}", shape(sizes(g.a_transposed, [g.m, g.k])), g.operand.name()),
        format!("B: {} {}", shape(sizes(g.b_transposed, [g.k, g.n])), g.operand.name()),
    ];
    let per_column = |read: &Read| read.elements(g.results()) == g.n && g.results() != g.n;
    for (number, read) in g.reads.iter().enumerate() {
        let shape = if per_column(read) { format!("{},", g.n) } else { shape(sizes(g.c_transposed, [g.m, g.n])) };
        params.push(format!("R{number}: {shape} {}", read.dtype.name()));
    }
    params.push(format!("C: {} {}", shape(sizes(g.c_transposed, [g.m, g.n])), output.name()));
    let (loops, extents) = (
        if batch { "b, i, j" } else { "i, j" },
        if batch { format!("{}, {}, {}", g.batch, g.m, g.n) } else { format!("{}, {}", g.m, g.n) },
    );
    let (axes, kinds) = (if batch { "vb, vi, vj" } else { "vi, vj" }, if batch { "SSS" } else { "SS" });
    let plain = g.epilogue == Epilogue::Sum && sum == output;
    let c = at(turned(g.c_transposed, ["vi", "vj"]));
    let name = if plain { "C" } else { "S" };
    let factor = |name: &str, at: String| match g.operand == sum {
        true => format!("{name}[{at}]"),
        false => format!("T.cast({name}[{at}], \"{}\")", sum.name()),
    };
    let a = factor("A", at(turned(g.a_transposed, ["vi", "vk"])));
    let b = factor("B", at(turned(g.b_transposed, ["vk", "vj"])));
    let mut body = String::new();
    if !plain {
        body +=
            &format!("S = T.sblock_alloc_buffer(({}), \"{}\")\n", shape(sizes(g.c_transposed, [g.m, g.n])), sum.name());
    }
    body += &format!(
        "for {loops}, k in T.grid({extents}, {}):
    with T.sblock(\"product\"):
        {axes}, vk = T.axis.remap(\"{kinds}R\", [{loops}, k])
        with T.init():
            {name}[{c}] = T.{}(0)
        {name}[{c}] = {name}[{c}] + {a} * {b}
",
        g.k,
        sum.name()
    );
    if !plain {
        let read = |number: usize| {
            let read = &g.reads[number];
            let at = if per_column(read) { "vj".to_string() } else { c.clone() };
            factor_of(&format!("R{number}[{at}]"), read.dtype)
        };
        let value = text_of(&g.epilogue, &factor_of(&format!("S[{c}]"), sum), &read);
        body += &format!(
            "for {} in T.grid({}):
    with T.sblock(\"store\"):
        {c} = T.axis.remap(\"{kinds}\", [{}])
        C[{c}] = T.cast({value}, \"{}\")
",
            c.replace('v', ""),
            shape(sizes(g.c_transposed, [g.m, g.n])),
            c.replace('v', ""),
            output.name()
        );
    }
    crate::support::script(&params.join("; "), &body)
}

/// A value as what is computed with.
fn factor_of(text: &str, dtype: DType) -> String {
    match dtype {
        DType::F32 | DType::I32 => text.into(),
        _ => format!("T.cast({text}, \"float32\")"),
    }
}

/// An epilogue of floats as text.
fn text_of(epilogue: &Epilogue, sum: &str, read: &dyn Fn(usize) -> String) -> String {
    match epilogue {
        Epilogue::Sum => sum.into(),
        Epilogue::Read(number) => read(*number),
        Epilogue::Number(x) => format!("T.float32({x:?})"),
        Epilogue::Binary(op, _, a, b) => {
            let [a, b] = [a, b].map(|part| text_of(part, sum, read));
            match op {
                BinOp::Add => format!("({a} + {b})"),
                BinOp::Mul => format!("{a} * {b}"),
                BinOp::Max => format!("T.max({a}, {b})"),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

/// The kernels of a plan on `mma.sync` or `wmma`, by way of its scheduled program.
pub fn lower_mma(g: &Gemm, plan: &TensorPlan) -> Result<TensorModule, String> {
    plan.check(g).map_err(|e| e.to_string())?;
    let program = satune_ir::tvmscript::parse(&program_of(g)).unwrap_or_else(|e| panic!("{e}\n{}", program_of(g)));
    let contraction =
        satune_rewrites::space::contraction(&program).unwrap_or_else(|e| panic!("{e}\n{}", program_of(g)));
    let schedule = Schedule::Mma(plan.clone());
    let made = satune::scheduled::of_schedule(&program, &schedule, &contraction, &crate::support::h200())
        .unwrap_or_else(|e| {
            let trace = satune::scheduled::trace(&schedule, &contraction);
            let scheduled = satune::scheduled::replayed(&program, &trace).map(|p| satune_ir::tvmscript::print(&p));
            panic!("{e}\n{plan:?}\n{}\n{}", program_of(g), scheduled.unwrap_or_default())
        });
    Ok(of_program(g, made.module))
}

/// The kernels of a schedule's program, lowered as it is written.
pub fn lower_written(g: &Gemm, schedule: &Schedule) -> Result<TensorModule, String> {
    let program = satune_ir::tvmscript::parse(&program_of(g)).unwrap_or_else(|e| panic!("{e}\n{}", program_of(g)));
    let contraction = satune_rewrites::space::contraction(&program).unwrap();
    let trace = satune::scheduled::trace(schedule, &contraction);
    let scheduled = satune::scheduled::replayed(&program, &trace).map_err(|e| e.to_string())?;
    let module = satune::lower::program::lower(&scheduled, &Default::default()).map_err(|e| e.to_string())?;
    Ok(of_program(g, module))
}

/// A module of a product's program, its parameters by what they are to the product.
pub fn of_program(g: &Gemm, module: Module) -> TensorModule {
    let operand = |argument: &Argument| match argument {
        Argument::Workspace(number) => Operand::Between(*number),
        Argument::Param(0) => Operand::A,
        Argument::Param(1) => Operand::B,
        Argument::Param(at) if *at < g.reads.len() + 2 => Operand::Read(at - 2),
        Argument::Param(_) => Operand::C,
    };
    let Module { kernels, args, workspaces, main } = module;
    let between = |w: &Workspace| Between { name: w.name.clone(), elements: w.elements, dtype: w.dtype };
    TensorModule {
        kernels,
        args: args.iter().map(|list| list.iter().map(operand).collect()).collect(),
        workspaces: workspaces.iter().map(between).collect(),
        main,
    }
}

pub fn check(g: &Gemm, module: &TensorModule) -> Report {
    let (c, report) =
        run(g, module).unwrap_or_else(|f| panic!("{g:?}: {f}\n{}", satune::cuda::print(&module.kernels[0])));
    let expected = reference(g, &inputs(g));
    if let Some(at) = c.iter().zip(&expected).position(|(x, y)| x != y) {
        let text = satune::cuda::print(&module.kernels[0]);
        panic!("{g:?}: C[{at}] is {}, not {}\n{text}", c[at], expected[at]);
    }
    report
}

/// A plan on `wgmma` or `tcgen05` is right, and its kernel is the one that the plan says.
pub fn check_plan(g: &Gemm, plan: &WgmmaPlan) -> Report {
    let module = lower_wgmma(g, plan).unwrap_or_else(|e| panic!("{plan:?}: {e}"));
    let kernel = &module.kernels[module.main];
    let told = kernel.notes.join("\n");
    assert!(kernel.body.iter().any(|s| matches!(s, Stmt::Roles(_))), "{plan:?}\n{told}");
    assert_eq!((kernel.grid[0], kernel.cluster), (plan.grid(g) as u32, plan.cluster_size()), "{plan:?}\n{told}");
    // Beside the ring two boxes of each consumer, or the whole tile.
    assert!(i64::from(kernel.shared_bytes) <= plan.shared_bytes(g), "{plan:?}: {}", kernel.shared_bytes);
    assert!(!told.contains("ignored") || plan.blocks.is_none(), "{plan:?}\n{told}");
    let stores = without(&mut kernel.body.clone(), &|s| matches!(s, Stmt::Group(GroupOp::StoreTile { .. })));
    let by_tma = plan.store != TileStore::Direct && !wgmma_conditions::by_rows(&g.oriented(plan.swapped));
    assert_eq!(stores > 0, by_tma, "{plan:?}\n{told}");
    check(g, &module)
}

/// Instructions, and a type of the result.
pub const TYPES: [(Mma, DType); 11] = [
    (Mma::F16, DType::F16),
    (Mma::F16Sums, DType::F16),
    (Mma::F16k8, DType::F16),
    (Mma::F16k8Sums, DType::F32),
    (Mma::Bf16, DType::BF16),
    (Mma::Bf16k8, DType::BF16),
    (Mma::Tf32, DType::F32),
    (Mma::S8, DType::I32),
    (Mma::S8k16, DType::I32),
    (Mma::E4m3, DType::F32),
    (Mma::E5m2, DType::BF16),
];

/// A product of what an instruction multiplies, with its sums.
pub fn product_of(op: Mma, shape: [i64; 3], output: DType, layout: &str) -> Gemm {
    let f16_sums = op.accumulator() == DType::F16;
    Gemm { f16_sums, ..Gemm::plain("gemm", shape, op.operand(), output, layout) }
}

/// An architecture that an instruction is for.
pub fn arch_of(op: Mma) -> u32 {
    [80, 75, 89].into_iter().find(|arch| op.is_native(*arch)).unwrap()
}

pub fn small(instruction: Mma) -> TensorPlan {
    let k = i64::from(2 * instruction.k());
    let stages = if instruction.is_async() { 3 } else { 2 };
    TensorPlan { raster: Raster::rows(2), ..TensorPlan::plain([64, 64, k], [32, 32], instruction, stages) }
}

#[test]
fn stores_declare_nothing_that_they_do_not_use() {
    let read = Epilogue::binary(BinOp::Add, Epilogue::Sum, Epilogue::Read(0));
    // An odd row of C, one that is stored by pairs, and one whose values are read where lanes part.
    for (shape, epilogue) in
        [([1, 5, 64], Epilogue::default()), ([64, 66, 64], Epilogue::default()), ([70, 66, 64], read)]
    {
        let mut g = Gemm::plain("gemm", shape, DType::F16, DType::F16, "NT");
        if epilogue != Epilogue::default() {
            g.reads = vec![Read::per_column(g.output, g.n)];
        }
        g.epilogue = epilogue;
        let module = lower_mma(&g, &small(Mma::F16)).unwrap();
        check(&g, &module);
        let text = satune::cuda::print(&module.kernels[0]);
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        for line in
            text.lines().map(str::trim).filter(|l| l.starts_with("const int ") || l.starts_with("unsigned int "))
        {
            let name = line.split(' ').nth(2).unwrap_or_default();
            let name = name.split(|c| !is_part(c)).next().unwrap_or_default();
            let uses = text.split(|c| !is_part(c)).filter(|word| *word == name).count();
            assert!(uses > 1, "{shape:?}: {line}\n{text}");
        }
    }
}

#[test]
fn all_types_and_layouts_are_exact_and_free_of_conflicts() {
    for (op, output) in TYPES {
        for layout in ["NN", "NT", "TN", "TT"] {
            let mut plan = small(op);
            // Rows along n or m of 128 bytes, so that each swizzle has all its chunks.
            if op.word() == 4 {
                plan.tile = [128, 128, 64];
                plan.warp = [64, 64];
            }
            let g = product_of(op, [192, 128, 7 * plan.tile[2]], output, layout);
            let free = |plan: &TensorPlan| {
                let report = check(&g, &lower_mma(&g, plan).unwrap());
                let total = report.total;
                assert_eq!(total.shared_load_wavefronts, total.shared_load_wavefronts_ideal, "{op:?} {layout}");
                assert!(report.hot_loop.matrix > 0);
                (total.shared_store_wavefronts, total.shared_store_wavefronts_ideal)
            };
            let (stored, least) = free(&plan);
            assert_eq!(stored, least, "{op:?} {layout}");
            // Padded rows are read without conflicts too, but for bytes across k, of which two rows in eight meet.
            if op.word() == 4 && layout != "NT" {
                continue;
            }
            plan.operands = [OperandPlan { layout: TileLayout::Padded, ..OperandPlan::usual(op) }; 2];
            let (stored, least) = free(&plan);
            assert!(stored <= 2 * least, "{op:?} {layout}: {stored} of {least}");
        }
    }
}

/// Rows of tiles whose chunks no swizzle takes, or only in short spans: padded ones are free of conflicts.
#[test]
fn padded_rows_have_any_number_of_chunks() {
    let padded = TensorPlan { tile: [48, 96, 96], warp: [48, 48], operands: [PADDED; 2], ..small(Mma::F16) };
    let spans = OperandPlan { layout: TileLayout::Xor(2), ..OperandPlan::USUAL };
    let swizzled = TensorPlan { operands: [spans; 2], ..padded.clone() };
    for layout in ["NN", "NT", "TN"] {
        let g = Gemm::plain("gemm", [96, 96, 240], DType::F16, DType::F16, layout);
        assert!(TensorPlan { operands: [OperandPlan::USUAL; 2], ..padded.clone() }.check(&g).is_err());
        let [padded, swizzled] = [&padded, &swizzled].map(|p| check(&g, &lower_mma(&g, p).unwrap()).total);
        assert_eq!(padded.shared_load_wavefronts, padded.shared_load_wavefronts_ideal, "{layout}");
        assert!(swizzled.shared_load_wavefronts > swizzled.shared_load_wavefronts_ideal, "{layout}");
    }
}

/// C's tile in shared memory is padded where its rows are not swizzled.
#[test]
fn tiles_of_c_with_any_rows_go_by_way_of_shared_memory() {
    for (columns, stmatrix) in [(48, false), (48, true), (96, true), (80, false)] {
        let base = TensorPlan { tile: [64, columns, 64], warp: [32, columns], ..small(Mma::F16) };
        let plan = TensorPlan { store: Store::Shared { stmatrix }, operands: [PADDED; 2], ..base };
        for c_transposed in [false, true] {
            let mut g = Gemm::plain("gemm", [136, 2 * columns, 200], DType::F16, DType::F16, "NT");
            g.c_transposed = c_transposed;
            let plan = TensorPlan { swapped: c_transposed, ..plan.clone() };
            let total = check(&g, &lower_mma(&g, &plan).unwrap()).total;
            assert_eq!(total.shared_store_wavefronts, total.shared_store_wavefronts_ideal, "{columns} {stmatrix}");
        }
    }
}

/// Another way of an operand on `mma.sync` than the usual one.
const PADDED: OperandPlan = OperandPlan { layout: TileLayout::Padded, ..OperandPlan::USUAL };

#[test]
fn ragged_shapes_are_guarded() {
    for (op, output) in TYPES {
        for (layout, shape) in [
            ("NN", [72, 40, 104]),
            ("NT", [65, 67, 61]),
            ("TN", [70, 66, 50]),
            ("TT", [100, 4, 300]),
            ("NN", [1, 16, 33]),
            ("NT", [17, 130, 2]),
        ] {
            let g = product_of(op, shape, output, layout);
            check(&g, &lower_mma(&g, &small(op)).unwrap());
        }
    }
}

/// One warp of eight has all results, whichever of its digits the store tells it by.
#[test]
fn fewer_results_than_a_warp_has_are_stored_by_the_first() {
    for (layout, shape) in [("TN", [8, 8, 200]), ("NT", [8, 8, 64]), ("NN", [1, 8, 40]), ("NN", [16, 32, 40])] {
        let mut g = product_of(Mma::F16, shape, DType::F16, layout);
        relu_and_residual(&mut g, 2.0, 1.0);
        for warps_m_outer in [false, true] {
            let plan = TensorPlan { tile: [32, 128, 16], warp: [16, 32], warps_m_outer, ..small(Mma::F16) };
            check(&g, &lower_mma(&g, &plan).unwrap());
        }
    }
}

/// Chunks in order: bank conflicts.
const PLAIN: OperandPlan = OperandPlan { layout: TileLayout::Plain, ..OperandPlan::USUAL };

#[test]
fn schedules_of_other_forms_are_exact() {
    let base = small(Mma::F16);
    let plans = [
        TensorPlan { stages: 2, raster: Raster::rows(1), ..base.clone() },
        TensorPlan { stages: 5, tile: [64, 64, 16], ..base.clone() },
        TensorPlan { stages: 4, tile: [64, 32, 48], operands: [PLAIN; 2], warp: [16, 32], ..base.clone() },
        TensorPlan { split_k: 3, ..base.clone() },
        TensorPlan { split_k: 2, raster: Raster::rows(8), tile: [32, 64, 64], warp: [32, 16], ..base.clone() },
        TensorPlan { store: Store::Shared { stmatrix: false }, ..base.clone() },
        TensorPlan { store: Store::Shared { stmatrix: true }, ..base.clone() },
    ];
    for plan in plans {
        for shape in [[128, 192, 448], [136, 72, 200]] {
            let mut g = Gemm::plain("gemm", shape, DType::F16, DType::F16, "NT");
            let report = check(&g, &lower_mma(&g, &plan).unwrap());
            if plan.operands[0] != PLAIN {
                let total = report.total;
                assert_eq!(total.shared_load_wavefronts, total.shared_load_wavefronts_ideal, "{plan:?}");
            }
            relu_and_residual(&mut g, 2.0, 0.5);
            check(&g, &lower_mma(&g, &plan).unwrap());
        }
    }
}

/// Any plan that is not refused is right, whatever the shape.
#[test]
fn random_plans_on_random_shapes_are_exact() {
    use rand::{seq::SliceRandom, Rng, SeedableRng};
    let mut rng = rand::rngs::StdRng::seed_from_u64(satune_testing::seed());
    let mut done = 0;
    while done < 80 {
        let (op, output) = *TYPES.choose(&mut rng).unwrap();
        let warp = [*[16, 32, 48].choose(&mut rng).unwrap(), *[8, 16, 24, 32, 48].choose(&mut rng).unwrap()];
        let mut times = |list: &[i64]| *list.choose(&mut rng).unwrap();
        let tile = [warp[0] * times(&[1, 2, 3]), warp[1] * times(&[1, 2, 4]), i64::from(op.k()) * times(&[1, 2, 3, 4])];
        let store = match times(&[0, 1, 2]) {
            0 => Store::Direct,
            n => Store::Shared { stmatrix: n == 1 },
        };
        let (group, split_k) = (times(&[1, 2, 3]), times(&[1, 1, 2, 3]));
        let mut yes = |share: f64| rng.gen_bool(share);
        let raster = Raster { columns: yes(0.5), group };
        let order = Order { columns: yes(0.5), serpentine: yes(0.5), pairs: yes(0.3), descending: yes(0.3) };
        let rolled = yes(0.3);
        let warps_m_outer = yes(0.5);
        let stages = rng.gen_range(2..6);
        let base = small(op);
        let slack = rng.gen_range(0..2);
        let operands = [0, 1].map(|_| {
            let mut of = |list: &[u32]| *list.choose(&mut rng).unwrap();
            let span = of(&[2, 4, 8]) as u8;
            OperandPlan {
                layout: [TileLayout::Plain, TileLayout::Xor(span), TileLayout::Rotate(span), TileLayout::Padded]
                    [of(&[0, 1, 1, 2, 3]) as usize],
                bytes: of(&[16, 16, 8, 4]),
                order: [CopyOrder::Rows, CopyOrder::Columns, CopyOrder::Own][of(&[0, 1, 2]) as usize],
                rolled: of(&[0, 0, 1]) == 1,
                prefetch: of(&[0, 0, 0, 128, 256]),
                step: of(&[0, 0, 1, 2]),
                matrices: of(&[4, 4, 2, 1]),
                sets: of(&[1, 2]),
            }
        });
        let plan = TensorPlan { tile, warp, stages, slack, rolled, operands, raster, split_k, store, order, ..base };
        let swapped = rng.gen_bool(0.4);
        let plan = TensorPlan { warps_m_outer, swapped, ..plan };
        let layout = *["NN", "NT", "TN", "TT"].choose(&mut rng).unwrap();
        let extent = |rng: &mut rand::rngs::StdRng, most: i64| match rng.gen_bool(0.5) {
            true => 8 * rng.gen_range(1..most / 8),
            false => rng.gen_range(1..most),
        };
        let shape = [extent(&mut rng, 120), extent(&mut rng, 120), extent(&mut rng, 260)];
        let mut g = product_of(op, shape, output, layout);
        (g.batch, g.c_transposed) = (if rng.gen_bool(0.3) { 3 } else { 1 }, rng.gen_bool(0.3));
        if rng.gen_bool(0.3) {
            relu_and_residual(&mut g, 2.0, 1.0);
        }
        if let Ok(module) = lower_mma(&g, &plan) {
            println!("{plan:?} {shape:?} {layout} {} {}", g.batch, g.c_transposed);
            check(&g, &module);
            done += 1;
        }
    }
}

/// Of eight columns, or of eight more than an even number of instructions has.
#[test]
fn a_warp_may_have_an_odd_number_of_instructions_along_n() {
    for (op, output) in TYPES {
        for layout in ["NN", "NT"] {
            for (tile, warp, matrices) in [([64, 8], [16, 8], 4), ([32, 24], [32, 24], 2), ([32, 48], [32, 24], 1)] {
                let k = i64::from(2 * op.k());
                let mut plan = TensorPlan { tile: [tile[0], tile[1], k], warp, ..small(op) };
                let across = op.word() == 4 && layout == "NN";
                // Rows of 3 chunks are apart as padded ones are.
                plan.operands[1] = OperandPlan { layout: TileLayout::Padded, ..plan.operands[1] };
                if op.word() != 4 && (op != Mma::Tf32 || layout == "NT") {
                    plan.operands[1].matrices = matrices.min(op.matrices());
                }
                let g = product_of(op, [64, 48, 5 * k], output, layout);
                if across {
                    let refusal = plan.check(&g).unwrap_err().to_string();
                    assert!(refusal.contains("warp tile n is") && refusal.contains("multiple of 16"), "{refusal}");
                    continue;
                }
                let total = check(&g, &lower_mma(&g, &plan).unwrap()).total;
                assert_eq!(
                    total.shared_load_wavefronts, total.shared_load_wavefronts_ideal,
                    "{op:?} {layout} {tile:?}"
                );
            }
        }
    }
    // By way of shared memory, too.
    let g = Gemm::plain("gemm", [64, 48, 160], DType::F16, DType::F16, "NT");
    for stmatrix in [false, true] {
        let plan = TensorPlan { tile: [32, 24, 32], warp: [16, 24], ..small(Mma::F16) };
        check(&g, &lower_mma(&g, &TensorPlan { store: Store::Shared { stmatrix }, ..plan }).unwrap());
    }
}

/// Rows of a product that has eight are the columns of its transposed one.
#[test]
fn eight_rows_swapped_compile() {
    let g = Gemm::plain("decode_8", [8, 4096, 4096], DType::BF16, DType::BF16, "NT");
    for n in [8, 16] {
        let base = TensorPlan::plain([64, n, 64], [16, n], Mma::Bf16, 4);
        let module = lower_mma(&g, &TensorPlan { swapped: true, ..base }).unwrap();
        let list = compiled(&g, &module, &["sm_80"]);
        assert_eq!(list[0].spill_bytes, 0, "{}", list[0].log);
        println!("{n} columns: {} registers, {:?}", list[0].registers, hot_loop_mix(&list[0].cubin));
    }
}

#[test]
fn a_missing_wait_or_barrier_is_found() {
    let g = Gemm::plain("gemm", [64, 64, 320], DType::F16, DType::F16, "NN");
    for drop in
        [|s: &Stmt| *s == Stmt::Barrier, |s: &Stmt| matches!(s, Stmt::AsyncWait(_)), |s: &Stmt| *s == Stmt::AsyncCommit]
    {
        let mut module = lower_mma(&g, &small(Mma::F16)).unwrap();
        assert!(without(&mut module.kernels[0].body, &drop) > 0);
        assert!(run(&g, &module).is_err());
    }
}

pub fn compiled(g: &Gemm, module: &TensorModule, archs: &[&str]) -> Vec<Compiled> {
    let source = satune::cuda::print(&module.kernels[0]);
    if let Some(folder) = std::env::var_os("SATUNE_TEST_TEXT") {
        let name = format!("{}.cu", g.name);
        std::fs::write(std::path::Path::new(&folder).join(name), &source).unwrap();
    }
    let jobs: Vec<Job> =
        archs.iter().map(|a| Job { name: g.name.clone(), source: source.clone(), arch: (*a).into() }).collect();
    compile(&jobs)
}

#[test]
fn a_large_tile_compiles_without_spills_to_a_dense_loop() {
    let base = small(Mma::F16);
    let plan = TensorPlan { tile: [128, 128, 32], warp: [64, 32], stages: 4, raster: Raster::rows(8), ..base };
    for (layout, warp) in [("NN", [64, 32]), ("NT", [64, 32]), ("NT", [64, 64])] {
        let name = format!("hgemm_{}_{}", layout.to_lowercase(), warp[1]);
        let plan = TensorPlan { warp, ..plan.clone() };
        let g = Gemm::plain(&name, [4096, 4096, 4096], DType::F16, DType::F16, layout);
        let module = lower_mma(&g, &plan).unwrap();
        let list = compiled(&g, &module, &["sm_80", "sm_90"]);
        for kernel in list {
            assert_eq!(kernel.spill_bytes, 0, "{}", kernel.log);
            if let Some(mix) = hot_loop_mix(&kernel.cubin) {
                println!("{name} {}: {} registers, {mix:?}", kernel.arch, kernel.registers);
                assert!(mix.share > 0.45, "{mix:?}");
            }
        }
    }
}

#[test]
fn stores_by_way_of_shared_memory_compile() {
    let mut plan =
        TensorPlan { tile: [128, 128, 32], warp: [64, 32], stages: 4, raster: Raster::rows(8), ..small(Mma::Bf16) };
    let text = "gemm:4096,4096,4096,bf16,NT,out=bf16,alpha=0.5,bias,gelu,residual";
    let problem = satune::operators::parse(text).unwrap();
    for (arch, stmatrix, min_blocks) in [("sm_80", false, None), ("sm_90", true, None)] {
        (plan.store, plan.min_blocks) = (Store::Shared { stmatrix }, min_blocks);
        let schedule = Schedule::Mma(plan.clone());
        let made = problem.scheduled(&schedule, &crate::support::h200()).unwrap();
        let source = satune::cuda::print(&made.module.kernels[0]);
        let list = compile(&[Job { name: "gemm".into(), source, arch: arch.into() }]);
        println!("{arch}: {} registers, {} bytes spilled", list[0].registers, list[0].spill_bytes);
        assert_eq!(list[0].spill_bytes, 0, "{}", list[0].log);
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_condition() {
    let g = Gemm::plain("gemm", [128, 128, 128], DType::F16, DType::F16, "NN");
    let base = small(Mma::F16);
    let refused = [
        (TensorPlan { warp: [24, 32], ..base.clone() }, "warp tile m is 24; it must be a positive multiple of 16"),
        (TensorPlan { tile: [64, 64, 40], ..base.clone() }, "block tile k is 40; it must be a positive multiple of 16"),
        (TensorPlan { instruction: Mma::S8, ..base.clone() }, "mma.sync S8 does not multiply F16"),
        (TensorPlan { stages: 1, ..base.clone() }, "1 stages; a ring has 2 to 16"),
        (
            TensorPlan { tile: [96, 64, 48], ..base.clone() },
            "rows of A's tile have 6 16-byte chunks; a swizzle takes 1, 2, 4 or a multiple of 8",
        ),
        (TensorPlan { tile: [512, 512, 64], ..base.clone() }, "8192 threads per block; a GPU runs 32 to 1024"),
        (TensorPlan { split_k: 9, ..base.clone() }, "9 parts of 4 tiles along k"),
        (
            TensorPlan { stages: 16, tile: [128, 128, 64], ..base.clone() },
            "524288 bytes of shared memory per block; at most 232448",
        ),
    ];
    for (plan, message) in refused {
        assert_eq!(plan.check(&g).unwrap_err().to_string(), message);
    }
}

#[test(slow)]
fn every_type_and_layout_compiles() {
    for (op, output) in TYPES {
        for layout in some_of(["NN", "NT", "TN", "TT"], 2) {
            let plan = TensorPlan { tile: [128, 64, i64::from(4 * op.k())], ..small(op) };
            let name = format!("gemm_{op:?}_{layout}").to_lowercase();
            let g = Gemm { name: name.clone(), ..product_of(op, [1000, 1000, 1000], output, layout) };
            let module = lower_mma(&g, &plan).unwrap();
            let arch = format!("sm_{}", arch_of(op));
            let list = compiled(&g, &module, &[&arch]);
            assert_eq!(list[0].spill_bytes, 0, "{}", list[0].log);
            if op.operand() == output && output.bytes() == 2 {
                // By way of shared memory, where rows of C have whole chunks.
                let staged = TensorPlan { store: Store::Shared { stmatrix: false }, ..plan };
                compiled(&g, &lower_mma(&g, &staged).unwrap(), &[&arch]);
            }
        }
    }
}

/// Layouts against the executor of PTX, which says by itself where lanes hold elements.
#[test]
fn layouts_are_those_of_the_executor() {
    use satune_ir::term::tensor::{Fragment, Mma};
    use satune_ptx::matrix::fragment::{Fragment as Executed, FragmentLayout, Side};
    for op in Mma::SYNC {
        let (k, word) = (op.k() as usize, op.word() as usize);
        let [in_a, in_b] = op.fragment_words().map(|words| words as usize);
        let of = |side, [rows, columns]: [usize; 2], registers, per| Executed {
            side,
            layout: FragmentLayout::Groups,
            rows,
            columns,
            registers,
            per,
        };
        let executed = [
            (Fragment::A, of(Side::A, [16, k], in_a, word)),
            (Fragment::B, of(Side::B, [k, 8], in_b, word)),
            (Fragment::D, of(Side::C, [16, 8], 4, 1)),
        ];
        for (fragment, executed) in executed {
            let places = op.places(fragment);
            assert_eq!(places.len(), 32 * executed.registers * executed.per);
            for (at, [x, y]) in places.iter().enumerate() {
                let (lane, element) = (at * 32 / places.len(), at % (places.len() / 32));
                let place = executed.place(lane, element / executed.per, element % executed.per);
                assert_eq!((*x as usize, *y as usize), place, "{op:?} {fragment:?}: lane {lane}, element {element}");
            }
        }
    }
}
