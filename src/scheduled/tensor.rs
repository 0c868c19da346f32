//! Schedules on tensor cores on their way to kernels. Those on `wgmma`: the trace is replayed on the source program, the plan is read from
//! the scheduled program, and the generator makes the kernels of the plan so read. All others are lowered as the program that they are.
//! Of a program of several kernels each is taken by itself.
use super::{lowered, replayed, Scheduled, ScheduledError};
use crate::lower::program::{Argument, LowerOptions, Module, Workspace};
use crate::lower::wgmma::{lower_wgmma, Between, Gemm, Operand, TensorError, TensorModule};
use satune_ir::affine::constant;
use satune_ir::term::stream::Tiled;
use satune_ir::term::tensor::NotGemm;
use satune_ir::term::{Contraction, Schedule};
use satune_ir::{BufferId, Program};
use satune_rewrites::intrinsics::has_tcgen05;
use satune_rewrites::space::stream::{contractions, Nests};
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
    /// A part of the program has an instruction of tensor cores, and is no product.
    #[error("the kernel that writes {0} multiplies on tensor cores; it is no product of the source program, with the elementwise blocks after it")]
    NoProduct(String),
    /// The schedule is one of primitives.
    #[error("the schedule is none on tensor cores")]
    Primitives,
}

/// Kernels of a schedule on tensor cores, by way of its trace.
pub(super) fn of_schedule(
    source: &Program,
    schedule: &Schedule,
    contraction: &Contraction,
    options: &LowerOptions,
) -> Result<Scheduled, ScheduledError> {
    let trace = space::tensor_trace(schedule, contraction)?;
    let program = replayed(source, &trace)?;
    if !is_generated(schedule) {
        return Ok(Scheduled { trace, module: lowered(&program, options)?, program });
    }
    let read = space::read_plan(&program, source, contraction)?;
    Ok(Scheduled { trace, module: generate(source, &read, contraction)?, program })
}

/// Whether a schedule has a generator of its own.
fn is_generated(schedule: &Schedule) -> bool {
    matches!(schedule, Schedule::Wgmma(_))
}

/// Kernels of a scheduled program that has instructions of tensor cores. `base` is the source as it is before any kernel has
/// its loops: some blocks inlined into others.
pub(super) fn of_program(
    source: &Program,
    base: &Program,
    (trace, program): (Trace, Program),
    options: &LowerOptions,
) -> Result<Scheduled, ScheduledError> {
    // Kernels that make what a product reads are kernels of their own, though the whole be a product of what is read so.
    let one = Nests::of(&program).together(base).len() == 1;
    let module = match space::contraction(source) {
        Ok(contraction) if one => match space::read_plan(&program, source, &contraction) {
            Ok(plan) if is_generated(&plan) => generate(source, &plan, &contraction)?,
            Err(none) if has_tcgen05(&program) => return Err(none.into()),
            _ => lowered(&program, options)?,
        },
        _ => Joined::of(base, &program, options)?,
    };
    Ok(Scheduled { trace, program, module })
}

/// Kernels one after the other, their arguments those of the whole program.
struct Joined<'p> {
    program: &'p Program,
    module: Module,
    /// Buffers between kernels, each a workspace of this number.
    between: Vec<(BufferId, usize)>,
}

impl<'p> Joined<'p> {
    /// The kernels of a program, run by run of its nests.
    fn of(base: &Program, program: &'p Program, options: &LowerOptions) -> Result<Module, ScheduledError> {
        let (nests, products) = (Nests::of(program), contractions(base));
        let module = Module { kernels: Vec::new(), args: Vec::new(), workspaces: Vec::new(), main: 0 };
        let mut joined = Joined { program, module, between: Vec::new() };
        for (number, run) in nests.together(base).into_iter().enumerate() {
            let part = nests.alone(&run);
            if let Some((own, module)) =
                nests.on_tensor_cores(&run).then(|| product((base, &products), &part)).transpose()?.flatten()
            {
                joined.add(&own, module)?;
            } else {
                let min_blocks = options.min_blocks.filter(|_| number == 0);
                let module = lowered(&part, &LowerOptions { min_blocks, ..options.clone() })?;
                joined.add(&part, module)?;
            }
        }
        let name = crate::cuda::function_name(&program.name);
        for (number, kernel) in joined.module.kernels.iter_mut().enumerate() {
            kernel.name = format!("{name}_{number}");
        }
        Ok(joined.module)
    }

    /// Adds the kernels of a part.
    fn add(&mut self, part: &Program, made: Module) -> Result<(), ScheduledError> {
        let own = self.module.workspaces.len();
        // What is of one name is one buffer.
        let named = |(at, w): (usize, Workspace)| Workspace { name: format!("{}_{}", w.name, own + at), ..w };
        self.module.workspaces.extend(made.workspaces.into_iter().enumerate().map(named));
        let mut known: Vec<Argument> = Vec::new();
        for buffer in &part.params {
            known.push(self.argument(part, *buffer)?);
        }
        let argument = |a: &Argument| match a {
            Argument::Param(i) => known[*i],
            Argument::Workspace(i) => Argument::Workspace(own + i),
        };
        self.module.kernels.extend(made.kernels);
        self.module.args.extend(made.args.iter().map(|list| list.iter().map(argument).collect()));
        Ok(())
    }

    /// What a part's parameter is in the whole.
    fn argument(&mut self, part: &Program, buffer: BufferId) -> Result<Argument, ScheduledError> {
        if let Some(at) = self.program.params.iter().position(|id| *id == buffer) {
            return Ok(Argument::Param(at));
        }
        if let Some((_, number)) = self.between.iter().find(|(known, _)| *known == buffer) {
            return Ok(Argument::Workspace(*number));
        }
        let info = part.buffer(buffer);
        let missing = || GenerateError::Parameter(info.name.clone());
        let extents = info.shape.iter().map(|e| constant(e).and_then(|e| u64::try_from(e).ok()));
        let elements = extents.into_iter().try_fold(1_u64, |all, e| all.checked_mul(e?)).ok_or_else(missing)?;
        let number = self.module.workspaces.len();
        self.module.workspaces.push(Workspace { name: info.name.clone(), dtype: info.dtype, elements });
        self.between.push((buffer, number));
        Ok(Argument::Workspace(number))
    }
}

/// The product that a part of a scheduled program computes, one of those of `base`: as a program of its own, and its kernels. None where
/// lowering takes the part as it is.
fn product(
    (base, products): (&Program, &[Tiled]),
    part: &Program,
) -> Result<Option<(Program, Module)>, ScheduledError> {
    let nests = Nests::of(base);
    let mut last = None;
    // Of those whose result the part has, the one with most blocks after it: what is between them the part does not have.
    for found in products.iter().rev().filter(|found| part.params.contains(&found.contraction.c.buffer)) {
        let own = nests.alone(&(found.from..found.to).collect::<Vec<_>>());
        match space::read_plan(part, &own, &found.contraction) {
            Ok(plan) if is_generated(&plan) => {
                let module = generate(&own, &plan, &found.contraction)?;
                return Ok(Some((own, module)));
            }
            Ok(_) => return Ok(None),
            Err(error) => last = Some(error),
        }
    }
    if !has_tcgen05(part) {
        return Ok(None);
    }
    let written = part.params.last().map_or_else(String::new, |id| part.buffer(*id).name.clone());
    Err(last.map_or_else(|| GenerateError::NoProduct(written).into(), ScheduledError::from))
}

/// The generator's kernels for a schedule on tensor cores, their arguments in terms of the program's parameters.
///
/// # Errors
/// See [`GenerateError`].
pub fn generate(source: &Program, schedule: &Schedule, contraction: &Contraction) -> Result<Module, GenerateError> {
    let gemm = Gemm { name: "gemm".into(), ..Gemm::of(contraction)? };
    let made = match schedule {
        Schedule::Wgmma(plan) => lower_wgmma(&gemm, plan)?,
        _ => return Err(GenerateError::Primitives),
    };
    let at = |buffer: BufferId, name: &String| {
        let position = source.params.iter().position(|id| *id == buffer);
        position.ok_or_else(|| GenerateError::Parameter(name.clone()))
    };
    let params = [&contraction.a, &contraction.b, &contraction.c].map(|operand| at(operand.buffer, &operand.name));
    let [a, b, c] = params;
    let reads = contraction.epilogue.iter().flat_map(|e| &e.reads).map(|read| at(read.buffer, &read.name));
    module(made, [a?, b?, c?], &reads.collect::<Result<Vec<_>, _>>()?)
}

fn module(made: TensorModule, [a, b, c]: [usize; 3], reads: &[usize]) -> Result<Module, GenerateError> {
    let argument = |operand: &Operand| match operand {
        Operand::A => Ok(Argument::Param(a)),
        Operand::B => Ok(Argument::Param(b)),
        Operand::C => Ok(Argument::Param(c)),
        Operand::Between(number) => Ok(Argument::Workspace(*number)),
        Operand::Read(number) => {
            let place = reads.get(*number).copied().map(Argument::Param);
            place.ok_or_else(|| GenerateError::Parameter(format!("read {number}")))
        }
    };
    let args = made.args.iter().map(|list| list.iter().map(argument).collect()).collect::<Result<_, _>>()?;
    let workspace = |b: &Between| Workspace { name: b.name.into(), dtype: b.dtype, elements: b.elements };
    let workspaces = made.workspaces.iter().map(workspace).collect();
    Ok(Module { kernels: made.kernels, args, workspaces, main: made.main })
}
