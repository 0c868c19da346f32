//! Plain kernels of a program, made from the program itself: of each block one thread per spatial instance, with its
//! reductions one after the other. Nothing of it is quick; everything of it is easy to believe: it is made by `reorder`,
//! `fuse`, `split`, `bind` and `decompose_reduction`, and lowered as every scheduled program is.
use crate::lower::program::{lower, LowerError, LowerOptions, Module};
use satune_ir::interp::{first_uses, in_double, FirstUse};
use satune_ir::{visit, BlockId, BufferId, DType, Expr, IterKind, Program, Stmt};
use satune_rewrites::tree::child_realizes;
use satune_rewrites::{add_unit_loop, bind, decompose_reduction, fuse, reorder, split};
use satune_rewrites::{LoopId, Node, Schedule, ScheduleError};
use std::collections::HashSet;
use std::sync::Arc;

/// Threads of a block of the plain kernels.
const THREADS: i64 = 256;

/// Why a program has no plain kernels.
#[derive(Debug, thiserror::Error)]
pub enum PlainError {
    /// Run twice, it gives two results.
    #[error("the program reads {buffer} before it writes it, so that each of the repeated runs of a measurement would compute something else; give it another buffer for its result")]
    InPlace {
        /// The parameter.
        buffer: String,
    },
    /// A block holds blocks.
    #[error("block {block} holds other blocks; the reference takes programs whose blocks stand in loops alone")]
    Nested {
        /// The outer one.
        block: String,
    },
    /// A block has iterators that are neither spatial nor reductions, or loops that serve both.
    #[error("block {block}: its instances cannot be told apart by {what}")]
    Instances {
        /// Its name.
        block: String,
        /// What stands in the way.
        what: String,
    },
    /// A primitive refuses.
    #[error("block {block}: {detail}")]
    Refused {
        /// Its name.
        block: String,
        /// Why.
        detail: String,
    },
    /// The result cannot be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
}

/// The reference of a program: the same in double precision, by plain kernels.
#[derive(Clone, Debug)]
pub struct Plain {
    /// The program in double precision, with its loops bound to threads.
    pub program: Program,
    /// Of each parameter, whether the program writes it.
    pub written: Vec<bool>,
    /// Its kernels. Parameters that are written are in f64 where the source's are floats.
    pub module: Module,
    /// Instances of all blocks together.
    pub instances: f64,
    /// Most instances that one thread runs one after the other.
    pub serial: f64,
}

impl Plain {
    /// Makes the reference of a program.
    ///
    /// # Errors
    /// [`PlainError`].
    pub fn of(source: &Program) -> Result<Plain, PlainError> {
        let (wide, written) = widen(source)?;
        let refused = |e: ScheduleError| PlainError::Refused { block: wide.name.clone(), detail: e.detail.clone() };
        let mut schedule = Schedule::new(wide.clone()).map_err(refused)?;
        let blocks: Vec<BlockId> = child_realizes(&wide.body.block.body).iter().map(|r| r.block.id).collect();
        let (mut instances, mut serial) = (0.0, 0.0_f64);
        for id in blocks {
            let [parallel, each] = of_block(&mut schedule, id)?;
            instances += parallel * each;
            serial = serial.max(each);
        }
        let program = schedule.into_program();
        let module = lower(&program, &LowerOptions::default())?;
        Ok(Plain { program, written, module, instances, serial })
    }
}

/// The program in double precision, and of each parameter whether the program writes it.
///
/// Parameters that it only reads keep their type, so that the reference reads the very bits that a candidate reads; all
/// else is [`in_double`]: roundings of the source (a cast to f16 between two blocks) are a part of what a candidate may
/// be off by. Whole numbers stay as they are: their arithmetic is exact in any order, wrapping round included, and in a
/// wider type the reference would not wrap where the program does.
fn widen(source: &Program) -> Result<(Program, Vec<bool>), PlainError> {
    let mut stored: HashSet<BufferId> = HashSet::new();
    visit::walk_stmt(&source.body.block.body, &mut |s| {
        if let Stmt::Store { buffer, .. } = s {
            stored.insert(*buffer);
        }
    });
    let written: Vec<bool> = source.params.iter().map(|id| stored.contains(id)).collect();
    for ((id, first), written) in source.params.iter().zip(first_uses(source)).zip(&written) {
        if *written && first == Some(FirstUse::Read) {
            return Err(PlainError::InPlace { buffer: source.buffer(*id).name.clone() });
        }
    }
    let mut wide = in_double(source);
    let inputs = source.params.iter().copied().filter(|id| !stored.contains(id));
    let inputs: Vec<BufferId> = inputs.filter(|id| source.buffer(*id).dtype.is_float()).collect();
    for id in &inputs {
        wide.buffer_mut(*id).dtype = source.buffer(*id).dtype;
    }
    let mut widened = |e: Expr| match e {
        Expr::Load(id, _) if inputs.contains(&id) => Expr::Cast(DType::F64, Arc::new(e)),
        other => other,
    };
    wide.body = visit::map_realize_exprs(&wide.body, &mut |e| visit::map_expr(e, &mut widened));
    Ok((wide, written))
}

/// Binds the loops of a block. Returns the number of threads that it has work for, and of instances that each runs.
fn of_block(schedule: &mut Schedule, id: BlockId) -> Result<[f64; 2], PlainError> {
    let realize = schedule.realize(id).map_err(|e| refused("", &e))?.clone();
    let name = realize.block.name.clone();
    let of = |e: ScheduleError| refused(&name, &e);
    if !child_realizes(&realize.block.body).is_empty() {
        return Err(PlainError::Nested { block: name });
    }
    let loops = schedule.loops_of(id).map_err(of)?;
    // A loop that no spatial iterator uses is run by one thread, whatever it is for.
    let (mut parallel, mut serial): (Vec<LoopId>, Vec<LoopId>) = (Vec::new(), Vec::new());
    for l in &loops {
        let uses = |e: &Expr| visit::uses_var(e, &|v| v == *l);
        let mut kinds: Vec<IterKind> = Vec::new();
        for (value, iter) in realize.iter_values.iter().zip(&realize.block.iter_vars) {
            if uses(value) && !kinds.contains(&iter.kind) {
                kinds.push(iter.kind);
            }
        }
        match kinds[..] {
            [IterKind::Spatial] => parallel.push(*l),
            [] | [IterKind::Reduce] => serial.push(*l),
            _ => {
                let l = schedule.get_loop(*l).map_err(of)?.var.name.clone();
                let what = format!("loop {l}, which serves an opaque iterator, or a spatial one and a reduction");
                return Err(PlainError::Instances { block: name, what });
            }
        }
    }
    let extent = |schedule: &Schedule, list: &[LoopId]| -> Result<f64, ScheduleError> {
        let of = |l: &LoopId| Ok(if let Expr::Int(n, _) = schedule.get_loop(*l)?.extent { n as f64 } else { 1.0 });
        list.iter().map(of).product()
    };
    let sizes = [extent(schedule, &parallel).map_err(of)?, extent(schedule, &serial).map_err(of)?];
    let order: Vec<LoopId> = parallel.iter().chain(&serial).copied().collect();
    if order != loops {
        reorder::reorder(schedule, &order).map_err(of)?;
    }
    let fused = match parallel[..] {
        [] => {
            let outermost = serial.first().map_or(Node::Block(id), |l| Node::Loop(*l));
            add_unit_loop::add_unit_loop(schedule, outermost).map_err(of)?
        }
        [one] => one,
        _ => fuse::fuse(schedule, &parallel, true).map_err(of)?,
    };
    let [blocks, threads] = split::split(schedule, fused, &[None, Some(THREADS)], true, false).map_err(of)?[..] else {
        return Err(PlainError::Instances { block: name, what: "the loops that `split` left".into() });
    };
    bind::bind(schedule, blocks, "blockIdx.x").map_err(of)?;
    bind::bind(schedule, threads, "threadIdx.x").map_err(of)?;
    if let (Some(first), true) = (serial.first(), realize.block.init.is_some()) {
        // The sum is begun before its loops, not in each of their iterations.
        decompose_reduction::decompose_reduction(schedule, id, *first).map_err(of)?;
    }
    Ok(sizes)
}

fn refused(block: &str, error: &ScheduleError) -> PlainError {
    PlainError::Refused { block: block.into(), detail: error.detail.clone() }
}
