//! Problems and candidates in a worker's terms.
use super::super::protocol::{ArgumentJob, KernelJob, MeasureJob, ParamJob, ProblemJob};
use super::super::{Ask, Ready};
use super::on_tensor_cores;
use crate::agreement;
use crate::cuda::function_name;
use crate::host::Map;
use crate::kernel::Kernel;
use crate::lower::program::{Argument, Module};
use crate::reference::Plain;
use crate::workload::Workload;
use satune_ir::term::tensor::Gemm;
use satune_ir::term::{Contraction, Schedule};
use satune_ir::{DType, Expr, Program};

/// A candidate of a problem, or without one what a library is asked for, in a worker's terms; the problem itself is
/// [`of_problem`].
pub(in crate::device) fn job(problem: &dyn Workload, ready: Option<&Ready>, ask: &Ask) -> MeasureJob {
    let mut job = MeasureJob {
        trace: String::new(),
        predicted_ms: 0.0,
        problem: None,
        kernels: Vec::new(),
        workspaces: Vec::new(),
        cut_off_ms: ask.cut_off_ms,
        settle: ask.settle,
        most_repeats: ask.most_repeats,
        seconds: ask.timeout.as_secs_f64() / 4.0,
        floor_ms: 0.0,
        tolerances: Vec::new(),
    };
    match ready {
        Some(ready) => {
            job.trace.clone_from(&ready.trace);
            job.predicted_ms = ready.predicted_ms;
            job.workspaces.clone_from(&ready.workspaces);
            job.kernels.clone_from(&ready.launches);
            job.tolerances.clone_from(&ready.tolerances);
            if ask.whole && ready.exact_on_whole {
                job.tolerances.fill(0.0);
            }
        }
        None => job.tolerances = tolerances(problem, None),
    }
    job
}

/// How far results may be off, by how a candidate multiplies. A library takes tensor cores wherever the factors' type has
/// them; f32 only where that may be rounded.
pub(in crate::device) fn tolerances(problem: &dyn Workload, plan: Option<&Schedule>) -> Vec<f64> {
    let contraction = problem.contraction();
    let wide = contraction.is_some_and(|c| matches!(c.a.dtype, DType::F32 | DType::F64));
    let cores = plan.map_or(!wide || problem.allows_tf32(), on_tensor_cores);
    let block = contraction.filter(|_| cores).map(|c| c.block_name.as_str());
    agreement::tolerances(problem.program(), block)
}

/// Whether results on small whole numbers are exact in whatever order they are summed: sums of products, in a type that
/// holds them.
pub(in crate::device) fn exact_on_whole(problem: &dyn Workload) -> bool {
    let exact = |c: &Contraction| {
        let plain = c.epilogue.is_none() || Gemm::of(c).is_ok_and(|g| g.epilogue == Default::default());
        plain && c.combine.is_none() && matches!(c.c.dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64)
    };
    problem.contraction().is_some_and(exact)
}

/// A problem in a worker's terms, with its reference.
pub(super) fn of_problem(program: &Program, plain: &Plain, hash: &str) -> ProblemJob {
    let extent = |e: &Expr| if let Expr::Int(n, _) = e { n.unsigned_abs() } else { 1 };
    let params = program.params.iter().zip(&plain.written).map(|(id, written)| {
        let buffer = program.buffer(*id);
        let elements = buffer.shape.iter().map(extent).product();
        ParamJob { name: buffer.name.clone(), dtype: buffer.dtype, elements, written: *written }
    });
    ProblemJob {
        program: hash.into(),
        params: params.collect(),
        reference: launches(&plain.module),
        workspaces: workspaces(&plain.module),
        whole: false,
    }
}

/// Bytes of a module's buffers between its kernels.
pub(crate) fn workspaces(module: &Module) -> Vec<u64> {
    module.workspaces.iter().map(|w| w.elements * u64::from(w.dtype.bytes())).collect()
}

/// A module's launches.
pub(crate) fn launches(module: &Module) -> Vec<KernelJob> {
    let of = |(kernel, args): (&Kernel, &Vec<Argument>)| KernelJob {
        name: function_name(&kernel.name),
        grid: kernel.grid,
        block: kernel.block,
        dynamic_shared_bytes: kernel.dynamic_shared_bytes(),
        args: kernel
            .params()
            .zip(args)
            .map(|((id, array), buffer)| {
                let map = kernel.tensor_maps.iter().find(|m| m.array == id);
                ArgumentJob { buffer: *buffer, map: map.map(|m| Map::of(m, array.dtype)) }
            })
            .collect(),
    };
    module.kernels.iter().zip(&module.args).map(of).collect()
}
