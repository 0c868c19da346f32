//! What several tests need.
use satune_ir::term::*;
use satune_ir::DType;
use satune_rewrites::space::{rules, saturate, Fuel, Limits, Menu};

/// A GEMM or batched GEMM, operands of type `input`, sums of type `sum`.
pub fn gemm(batch: Option<i64>, m: i64, n: i64, k: i64, input: DType, sum: DType, layout: &str) -> Contraction {
    Contraction::gemm(batch, [m, n, k], input, sum, [layout.starts_with('T'), layout.ends_with('T')])
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
