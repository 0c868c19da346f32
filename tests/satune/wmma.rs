//! Kernels on `wmma`: simulated with fragments as matrices, compiled for sm_75, explored for GPUs that have no `mma.sync`.
use crate::support::{executed, h200, some_of, NO_LIMIT};
use crate::synchronisation::without;
use crate::tensor::plans::*;
use crate::tensor::{check, compiled, lower_mma, product_of, run};
use crate::tensor_space::explored;
use satune::compile::hot_loop_mix;
use satune::kernel::{Array, ArrayId, Index, Kernel, Mma, Space, Stmt, Value, WarpOp, WmmaOp};
use satune::operators;
use satune::source::load_work;
use satune_extract::{best, Descriptor, Query};
use satune_ir::term::tensor::{TensorNode, Wmma, WmmaShape};
use satune_ir::term::{Schedule, Term};
use satune_ir::DType;

fn op(shape: WmmaShape, operand: DType) -> Mma {
    Mma::Wmma(Wmma::of(shape, operand).unwrap())
}

/// Warps of two by two instructions at least, so that each index matters.
fn small(instruction: Mma) -> TensorPlan {
    TensorPlan { raster: Raster::rows(2), ..TensorPlan::plain([64, 64, 32], [32, 64], instruction, 2) }
}

fn staged(plan: TensorPlan) -> TensorPlan {
    TensorPlan { store: Store::Shared { stmatrix: false }, ..plan }
}

#[test]
fn all_shapes_types_and_layouts_are_exact_and_free_of_conflicts() {
    for op in Wmma::all() {
        let (Wmma { shape, operand, f16_sums }, sums) = (op, op.accumulator());
        // Rows of 128 bytes: eight copies of neighbouring threads lie in different banks.
        let k = 128 / i64::from(operand.bytes());
        let plan = TensorPlan { tile: [64, 64, k], ..small(Mma::Wmma(op)) };
        for layout in ["NN", "NT", "TN", "TT"] {
            let g = product_of(plan.instruction, [128, 64, 3 * k], sums, layout);
            // Lines of 8 f16 across k begin at 16 bytes.
            let is_narrow = operand == DType::F16
                && (shape == WmmaShape::M32N8 && layout.ends_with('N')
                    || shape == WmmaShape::M8N32 && layout.starts_with('T'));
            if operand == DType::I8 && layout != "NT" || is_narrow {
                let text = lower_mma(&g, &plan).unwrap_err();
                assert!(text.starts_with("wmma") && text.contains("only along k"), "{text}");
                continue;
            }
            let total = check(&g, &lower_mma(&g, &plan).unwrap()).total;
            let taken = (total.shared_load_wavefronts, total.shared_store_wavefronts);
            let least = (total.shared_load_wavefronts_ideal, total.shared_store_wavefronts_ideal);
            assert_eq!(taken, least, "{op} {layout}");
        }
        // A result of another type goes by way of shared memory.
        let output = if operand == DType::I8 || f16_sums { DType::F32 } else { operand };
        let g = product_of(plan.instruction, [128, 64, 2 * k], output, "NT");
        let total = check(&g, &lower_mma(&g, &staged(plan)).unwrap()).total;
        assert_eq!(total.shared_store_wavefronts, total.shared_store_wavefronts_ideal, "{op}");
    }
}

#[test]
fn ragged_shapes_epilogues_and_schedules_of_other_forms_are_exact() {
    let half = op(WmmaShape::M16N16, DType::F16);
    let base = staged(small(half));
    let one = OperandPlan { sets: 1, bytes: 4, order: CopyOrder::Own, ..base.operands[0] };
    let late = OperandPlan { step: 1, order: CopyOrder::Columns, ..base.operands[0] };
    let plans = [
        base.clone(),
        TensorPlan { rolled: true, ..base.clone() },
        TensorPlan { operands: [one, late], tile: [64, 64, 64], ..base.clone() },
        TensorPlan { tile: [64, 64, 16], warp: [16, 32], warps_m_outer: false, ..base.clone() },
        TensorPlan { instruction: op(WmmaShape::M8N32, DType::F16), warp: [8, 64], ..base.clone() },
        TensorPlan { instruction: op(WmmaShape::M32N8, DType::F16), warp: [64, 8], ..base.clone() },
        // Of eight warps' tiles a part is staged at once: those parts lie together in shared memory.
        TensorPlan { tile: [128, 256, 16], warp: [64, 64], ..base.clone() },
    ];
    for (i, plan) in plans.iter().enumerate() {
        for shape in [[61, 50, 77], [64, 128, 128], [130, 65, 31]] {
            let mut g = Gemm::plain("gemm", shape, DType::F16, DType::F16, ["NN", "NT", "TN", "TT"][i % 4]);
            if i % 2 == 0 {
                crate::tensor::relu_and_residual(&mut g, 2.0, 1.0);
            }
            check(&g, &lower_mma(&g, plan).unwrap());
        }
    }
    // Parts of k: whole fragments of partial sums; the last part of k may be shorter.
    let split = TensorPlan { split_k: 3, store: Store::Direct, ..base };
    for k in [288, 300] {
        let g = Gemm::plain("gemm", [64, 128, k], DType::F16, DType::F16, "TN");
        check(&g, &lower_mma(&g, &split).unwrap());
    }
}

#[test]
fn a_missing_barrier_is_found_and_nothing_depends_on_a_fragments_layout() {
    let g = Gemm::plain("gemm", [64, 64, 320], DType::F16, DType::F16, "NN");
    let module = lower_mma(&g, &staged(small(op(WmmaShape::M16N16, DType::F16)))).unwrap();
    let mut bare = module.clone();
    assert!(without(&mut bare.kernels[0].body, &|s| *s == Stmt::Barrier) > 0);
    assert!(run(&g, &bare).is_err());

    let fault = |change: &dyn Fn(&mut Kernel)| {
        let mut module = module.clone();
        change(&mut module.kernels[0]);
        run(&g, &module).unwrap_err().to_string()
    };
    let first =
        |kernel: &Kernel, is: &dyn Fn(&Array) -> bool| ArrayId(kernel.arrays.iter().position(is).unwrap() as u32);
    // An element of a fragment.
    let text = fault(&|kernel| {
        let value = Value::Load(first(kernel, &|a| a.name.ends_with("accumulator")), Index::Const(0));
        let array = first(kernel, &|a| a.space == Space::Register);
        kernel.body.push(Stmt::Store { array, index: Index::Const(0), value });
    });
    assert!(text.contains("whose layout is not known"), "{text}");
    // An operand that was loaded in another order, or as the other operand's.
    let text = fault(&|kernel| {
        each(&mut kernel.body, &|op| {
            if let WmmaOp::Multiply { across, .. } = op {
                across[1] = !across[1];
            }
        });
    });
    assert!(text.contains("used as another"), "{text}");
    let text = fault(&|kernel| {
        each(&mut kernel.body, &|op| {
            if let WmmaOp::Multiply { a, b, .. } = op {
                *a = b.clone();
            }
        });
    });
    assert!(text.contains("used as another"), "{text}");
    // Lines that no lane may load.
    let text = fault(&|kernel| {
        each(&mut kernel.body, &|op| {
            if let WmmaOp::Load { stride, .. } = op {
                *stride -= 1;
            }
        });
    });
    assert!(text.contains("aligned"), "{text}");
}

fn each(body: &mut [Stmt], change: &dyn Fn(&mut WmmaOp)) {
    for s in body {
        match s {
            Stmt::Warp(WarpOp::Wmma(op)) => change(op),
            Stmt::For { body, .. } => each(body, change),
            Stmt::If { then, .. } => each(then, change),
            _ => {}
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_condition() {
    let g = Gemm::plain("gemm", [256, 256, 256], DType::F16, DType::F32, "NT");
    let base = small(op(WmmaShape::M16N16, DType::F16));
    let wrong = OperandPlan { layout: TileLayout::Xor(8), ..base.operands[0] };
    let rolled = OperandPlan { rolled: true, ..base.operands[0] };
    let half = Gemm { output: DType::F16, ..g.clone() };
    let ragged = Gemm { m: 250, ..g.clone() };
    let cases = [
        (&g, TensorPlan { stages: 3, ..base.clone() }, "a ring that is filled through registers has two tiles"),
        (&g, TensorPlan { operands: [wrong, base.operands[1]], ..base.clone() }, "rows that are padded"),
        (&g, TensorPlan { operands: [rolled, base.operands[1]], ..base.clone() }, "wait in registers are not a loop"),
        (&g, TensorPlan { store: Store::Shared { stmatrix: true }, ..base.clone() }, "no fragments of wmma"),
        (&g, TensorPlan { instruction: op(WmmaShape::M8N32, DType::F16), warp: [32, 16], ..base.clone() }, "of 32"),
        (&g, TensorPlan { instruction: op(WmmaShape::M8N32, DType::BF16), ..base.clone() }, "does not multiply F16"),
        (&half, base.clone(), "C has another type"),
        (&ragged, base.clone(), "tiles hang over the edge"),
    ];
    for (g, plan, part) in cases {
        let text = plan.check(g).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
        assert!(lower_mma(g, &plan).is_err());
    }
    // Padded rows are a choice of `mma.sync`.
    let sync = TensorPlan { instruction: Mma::F16, operands: base.operands, ..base };
    sync.check(&g).unwrap();
}

#[test(slow)]
fn large_tiles_compile_for_turing_without_spills() {
    for (shape, warp) in [(WmmaShape::M16N16, [64, 32]), (WmmaShape::M32N8, [64, 32]), (WmmaShape::M8N32, [32, 64])] {
        let half = op(shape, DType::F16);
        let plan = TensorPlan { raster: Raster::rows(8), ..TensorPlan::plain([128, 128, 32], warp, half, 2) };
        let cases = [(DType::F32, plan.clone()), (DType::F16, staged(plan))];
        for (output, plan) in cases {
            let name = format!("wmma_{shape:?}_{output:?}").to_lowercase();
            let g = Gemm::plain(&name, [4096, 4096, 4096], DType::F16, output, "NT");
            let module = lower_mma(&g, &plan).unwrap();
            let list = compiled(&g, &module, &["sm_75", "sm_80"]);
            for kernel in list {
                assert_eq!(kernel.spill_bytes, 0, "{}", kernel.log);
                if let Some(mix) = hot_loop_mix(&kernel.cubin) {
                    println!("{name} {}: {} registers, {mix:?}", kernel.arch, kernel.registers);
                    assert!(mix.share > 0.3, "{mix:?}");
                }
            }
        }
    }
    // Bytes; types and orders that Turing lacks, or that are rare.
    for (operand, sums, layout, arch) in [
        (DType::I8, DType::I32, "NT", "sm_75"),
        (DType::BF16, DType::F32, "TN", "sm_80"),
        (DType::F16, DType::F32, "TT", "sm_75"),
    ] {
        for shape in WmmaShape::ALL.into_iter().filter(|s| (operand, *s) != (DType::F16, WmmaShape::M8N32)) {
            let name = format!("wmma_{shape:?}_{operand:?}").to_lowercase();
            let g = Gemm::plain(&name, [512, 512, 512], operand, sums, layout);
            let module = lower_mma(&g, &small(op(shape, operand))).unwrap();
            let list = compiled(&g, &module, &[arch]);
            list.iter().for_each(|kernel| assert_eq!(kernel.spill_bytes, 0, "{}", kernel.log));
        }
    }
}

#[test(slow)]
fn explore_gives_wmma_to_a_v100_and_to_a_t4() {
    for (gpu, operator, has_mma_sync) in [
        ("v100", "gemm:512,512,512,f16,NN,out=f16", false),
        ("t4", "gemm:512,512,512,f16,TN", true),
        ("t4", "gemm:512,512,512,i8,NT", false),
        ("t4", "gemm:500,300,200,f16,NT,out=f16,bias,relu", true),
    ] {
        for c in &explored(operator, gpu, 2, false).candidates {
            let Schedule::Mma(plan) = &c.plan else { panic!("{operator} on {gpu}: {:?}", c.plan) };
            assert!(plan.instruction.wmma().is_some() || has_mma_sync && plan.instruction == Mma::F16k8);
            assert!(c.simulated.matrix > 0, "{operator} on {gpu}");
            let stored = serde_json::to_value(&c.plan).unwrap();
            assert_eq!(serde_json::from_value::<Schedule>(stored).unwrap(), c.plan, "a stored plan is read again");
        }
    }
    // Types that they lack.
    for (gpu, operator) in [("v100", "gemm:256,256,256,i8,NT"), ("t4", "gemm:256,256,256,bf16,NT")] {
        assert!(explored(operator, gpu, 1, false).candidates[0].plan.cores().is_some(), "{operator} on {gpu}");
    }
}

/// The shapes of Heron's evaluation have kernels on tensor cores, whose text is executed; a few of them each time. Vectors have
/// kernels of rows.
#[test(slow)]
fn herons_shapes_have_kernels_on_a_v100() {
    let list = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/heron_shapes.txt")).unwrap();
    let all: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(all.len(), 50);
    for operator in some_of(all, 2) {
        let work = load_work(operator).unwrap();
        let report = executed(work.workload().script(), "v100", 1);
        let plan = report["candidates"][0]["plan"].to_string();
        assert!(plan.contains("Wmma") || operator.starts_with("gemv"), "{operator}: {plan}");
    }
}

/// The best on `mma.sync` is no slower than the best of all by more than what a board's power hides.
#[test]
fn a_t4_has_mma_sync_of_f16_beside_wmma() {
    let (problem, gpu) = (operators::parse("gemm:1024,1024,1024,f16,NN").unwrap(), Descriptor::load("t4").unwrap());
    let space = satune::explore::space(&problem, &gpu).unwrap();
    let query = Query { k: 1, diverse: false, limit: NO_LIMIT, below_ms: f64::INFINITY };
    let is_wmma = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Mma { op: Mma::Wmma(_) }, .. });
    let is_sync = |node: &Term| matches!(node, Term::Tensor { node: TensorNode::Mma { op: Mma::F16k8 }, .. });
    let ms = [true, false].map(|sync| {
        let rest = space.restricted(&|_, node| if sync { !is_wmma(node) } else { !is_sync(node) });
        let first = best(&rest, &gpu, query).candidates.remove(0);
        let Schedule::Mma(plan) = &first.plan else { panic!("{:?}", first.plan) };
        assert_eq!(plan.instruction == Mma::F16k8, sync);
        satune::explore::check(&first.plan, &problem.contraction, &h200(), &|| true).unwrap();
        first.cost.ms
    });
    assert!(ms[0] < 1.05 * ms[1] && ms[1] < 1.05 * ms[0], "{ms:?}");
}
