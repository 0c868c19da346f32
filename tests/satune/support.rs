//! What several tests need.
use satune_ir::term::*;
use satune_ir::{BlockId, BufferId, DType};
use satune_rewrites::space::{rules, saturate, Fuel, Limits, Menu};

/// A GEMM or batched GEMM, operands of type `input`, sums of type `sum`.
pub fn gemm(batch: Option<i64>, m: i64, n: i64, k: i64, input: DType, sum: DType, layout: &str) -> Contraction {
    let info = |name: &str, extent, reduce| AxisInfo { name: name.into(), extent, reduce };
    let operand = |id, name: &str, dims: [Axis; 2], dtype| OperandInfo {
        buffer: BufferId(id),
        name: name.into(),
        dtype,
        index: usize::from(id == 1),
        dims: batch.map(|_| Axis::Batch(0)).into_iter().chain(dims).collect(),
    };
    let ordered = |transposed: bool, dims: [Axis; 2]| if transposed { [dims[1], dims[0]] } else { dims };
    let mut iters =
        vec![(Axis::M, info("vi", m, false)), (Axis::N, info("vj", n, false)), (Axis::K, info("vk", k, true))];
    if let Some(b) = batch {
        iters.insert(0, (Axis::Batch(0), info("vb", b, false)));
    }
    Contraction {
        block: BlockId(1),
        block_name: "C".into(),
        iters,
        a: operand(0, "A", ordered(&layout[..1] == "T", [Axis::M, Axis::K]), input),
        b: operand(1, "B", ordered(&layout[1..] == "T", [Axis::K, Axis::N]), input),
        c: operand(2, "C", [Axis::M, Axis::N], sum),
        accumulate: sum,
        epilogue: None,
    }
}

pub const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };

/// The space of a contraction with the usual menu.
pub fn space(contraction: &Contraction) -> Space {
    saturate(contraction, H200, &Menu::of(contraction, &H200), &rules::all(), Fuel::default()).unwrap()
}

/// The source program of a contraction.
pub fn source(contraction: &Contraction) -> satune_ir::Program {
    satune_ir::tvmscript::parse(&satune::operators::script(contraction)).unwrap()
}

/// The GPU that most tests lower for.
pub fn h200() -> satune::lower::program::LowerOptions {
    satune::scheduled::options(&satune_extract::Descriptor::load("h200").unwrap())
}

/// The kernels of a plan, through its trace.
pub fn kernels_of(plan: &Plan, contraction: &Contraction) -> satune::lower::program::Module {
    match satune::scheduled::of_plan(&source(contraction), plan, contraction, &h200()) {
        Ok(scheduled) => scheduled.module,
        Err(error) => panic!("{error}\n{}", plan.describe().join("\n")),
    }
}
