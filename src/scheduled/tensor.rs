//! Schedules on tensor cores on their way to kernels: the trace is replayed on the source program, the plan is read from the
//! scheduled program, and the generator makes the kernels of the plan so read.
use super::{replayed, Scheduled, ScheduledError};
use crate::lower::program::{Argument, Module, Workspace};
use crate::lower::tensor::{lower_mma, lower_wgmma, Gemm, Operand, TensorError, TensorModule};
use satune_ir::term::tensor::NotGemm;
use satune_ir::term::{Contraction, OperandInfo, Schedule};
use satune_ir::Program;
use satune_rewrites::{space, Trace};

/// Why there are no kernels.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The program is no contraction.
    #[error(transparent)]
    Contraction(space::EncodeError),
    /// The program is no matrix product that tensor cores take.
    #[error(transparent)]
    NotGemm(#[from] NotGemm),
    /// The plan does not fit it.
    #[error(transparent)]
    Plan(#[from] TensorError),
    /// The program has other parameters.
    #[error("{0} is no parameter of the program")]
    Parameter(String),
    /// The schedule is one of primitives.
    #[error("the schedule is none on tensor cores")]
    Primitives,
}

/// Kernels of a schedule on tensor cores, by way of its trace.
pub(super) fn of_schedule(
    source: &Program,
    schedule: &Schedule,
    contraction: &Contraction,
) -> Result<Scheduled, ScheduledError> {
    let trace = space::tensor_trace(schedule, contraction)?;
    let program = replayed(source, &trace)?;
    let read = space::read_plan(&program, source, contraction)?;
    Ok(Scheduled { trace, module: generate(source, &read, contraction)?, program })
}

/// Kernels of a scheduled program on tensor cores.
pub(super) fn of_program(source: &Program, trace: Trace, program: Program) -> Result<Scheduled, ScheduledError> {
    let contraction = space::contraction(source).map_err(GenerateError::Contraction)?;
    let read = space::read_plan(&program, source, &contraction)?;
    Ok(Scheduled { trace, module: generate(source, &read, &contraction)?, program })
}

/// The generator's kernels for a schedule on tensor cores, their arguments in terms of the program's parameters.
///
/// # Errors
/// See [`GenerateError`].
pub fn generate(source: &Program, schedule: &Schedule, contraction: &Contraction) -> Result<Module, GenerateError> {
    let gemm = Gemm { name: "gemm".into(), ..Gemm::of(contraction)? };
    let made = match schedule {
        Schedule::Mma(plan) => lower_mma(&gemm, plan)?,
        Schedule::Wgmma(plan) => lower_wgmma(&gemm, plan)?,
        _ => return Err(GenerateError::Primitives),
    };
    let at = |operand: &OperandInfo| {
        let position = source.params.iter().position(|id| *id == operand.buffer);
        position.ok_or_else(|| GenerateError::Parameter(operand.name.clone()))
    };
    let params = [at(&contraction.a)?, at(&contraction.b)?, at(&contraction.c)?];
    let reads = contraction.epilogue.as_ref().map_or(&[][..], |e| &e.reads);
    let mut added = [None; 2];
    for (place, number) in added.iter_mut().zip(Gemm::added(contraction)) {
        *place = number.and_then(|n| reads.get(n)).map(at).transpose()?;
    }
    module(made, params, added)
}

fn module(
    made: TensorModule,
    [a, b, c]: [usize; 3],
    [bias, residual]: [Option<usize>; 2],
) -> Result<Module, GenerateError> {
    let argument = |operand: &Operand| match operand {
        Operand::A => Ok(Argument::Param(a)),
        Operand::B => Ok(Argument::Param(b)),
        Operand::C => Ok(Argument::Param(c)),
        Operand::Workspace => Ok(Argument::Workspace(0)),
        Operand::Bias => bias.map(Argument::Param).ok_or_else(|| GenerateError::Parameter("bias".into())),
        Operand::Residual => residual.map(Argument::Param).ok_or_else(|| GenerateError::Parameter("residual".into())),
    };
    let args = made.args.iter().map(|list| list.iter().map(argument).collect()).collect::<Result<_, _>>()?;
    let (elements, dtype) = made.workspace;
    let workspace = (elements > 0).then(|| Workspace { name: "partial".into(), dtype, elements });
    Ok(Module { kernels: made.kernels, args, workspaces: workspace.into_iter().collect() })
}
