//! Every candidate is run in the simulator before anybody sees it, on a problem with its tiles and few blocks.
use super::check_gather::KeptTiles;
use crate::lower::program::LowerOptions;
use crate::operators;
use crate::scheduled::{self, Checked, Reduced};
use satune_ir::term::{Axis, BlockLoop, Contraction, CoresPlan, Pipe, Schedule};
use satune_ir::{tvmscript, visit, Buffer, BufferId, Expr, Program};
use satune_rewrites::tree;
use std::collections::BTreeMap;

/// The same plan on a problem of few blocks and k tiles: two tiles along m and n at most (the second cut where the
/// problem's last one is), as many k tiles as the overlap needs to get going and to end.
pub fn shrink(plan: &CoresPlan, contraction: &Contraction) -> (CoresPlan, Contraction) {
    let mut small = contraction.clone();
    let mut plan = plan.clone();
    let cut = |extent: i64, tile: i64| {
        if extent <= 2 * tile {
            extent
        } else {
            tile + if extent % tile == 0 { tile } else { extent % tile }
        }
    };
    let (m, n) = (cut(contraction.extent(Axis::M), plan.tile.m), cut(contraction.extent(Axis::N), plan.tile.n));
    let tiles = k_tiles(&plan);
    let part = if plan.k_part <= tiles * plan.k_tile {
        plan.k_part
    } else {
        (tiles - 1) * plan.k_tile + if plan.k_part % plan.k_tile == 0 { plan.k_tile } else { plan.k_part % plan.k_tile }
    };
    for (axis, info) in &mut small.iters {
        info.extent = match axis {
            Axis::M => m,
            Axis::N => n,
            Axis::K => part * plan.split_k,
            Axis::Batch(_) | Axis::Outer(_) => info.extent.min(2),
        };
    }
    plan.k_part = part;
    (refitted(plan, &small), small)
}

/// k tiles that a loop needs to get going and to end.
pub(crate) fn k_tiles(plan: &CoresPlan) -> i64 {
    let tiles = match plan.pipe {
        Pipe::Async(stages) => i64::from(stages) + 2,
        _ => 4,
    };
    // A swizzled strip has rows of a power of two.
    let strips = plan.a.hoisted || plan.b.hoisted;
    if strips {
        (tiles as u64).next_power_of_two() as i64
    } else {
        tiles
    }
}

/// The plan with as many blocks as the problem's m, n and batch take.
pub(crate) fn refitted(mut plan: CoresPlan, small: &Contraction) -> CoresPlan {
    let (m, n) = (small.extent(Axis::M), small.extent(Axis::N));
    let blocks = |extent: i64, tile: i64| (extent + tile - 1) / tile;
    let grouped: Vec<Axis> = plan.blocks.iter().filter(|l| l.group).map(|l| l.axis).collect();
    plan.blocks = plan
        .blocks
        .iter()
        .map(|l| {
            let all = match l.axis {
                Axis::M => blocks(m, plan.tile.m),
                Axis::N => blocks(n, plan.tile.n),
                Axis::K => l.extent,
                other => small.extent(other),
            };
            // A group takes all the blocks that are left of its axis.
            let extent = if grouped.contains(&l.axis) && !l.group { 1 } else { all };
            BlockLoop { extent, ..*l }
        })
        .collect();
    plan
}

/// The kernels of a schedule on a problem of few blocks.
///
/// # Errors
/// A refused call, which is a bug.
pub fn reduced(schedule: &Schedule, contraction: &Contraction, options: &LowerOptions) -> Result<Reduced, String> {
    let plan = match schedule {
        Schedule::Cores(plan) => plan,
        Schedule::Mma(_) | Schedule::Wgmma(_) => return super::check_tensor::reduced(schedule, contraction, options),
        Schedule::Stream(_) => return Err(scheduled::ScheduledError::Kind.to_string()),
    };
    let (plan, source, small) = match &contraction.gather {
        Some(gather) => {
            let (_, wanted) = shrink(plan, contraction);
            // Rows of a strip stay as long as they are.
            let k_tile = (!plan.a.hoisted && !plan.b.hoisted).then_some(plan.k_tile);
            let kept = KeptTiles { k_tile, ..KeptTiles::default() };
            let (source, small) = super::check_gather::smaller(contraction, gather, &wanted, kept)?;
            let plan = CoresPlan { k_part: small.extent(Axis::K), ..plan.clone() };
            (refitted(plan, &small), source, small)
        }
        None => {
            let (plan, small) = shrink(plan, contraction);
            let (source, small) = source(&small)?;
            (plan, source, small)
        }
    };
    let made = scheduled::of_plan(&source, &plan, &small, options).map_err(|e| e.to_string())?;
    Ok(Reduced { source, made })
}

/// Runs a plan on a small problem, by interpreter and in the simulator, and compares with the definition, bit for bit; for as
/// long as `go_on` says so.
///
/// # Errors
/// What went wrong, for people: a refused call, a fault, an unwritten result, or a wrong number.
pub fn check(
    schedule: &Schedule,
    contraction: &Contraction,
    options: &LowerOptions,
    go_on: &dyn Fn() -> bool,
) -> Result<Checked, String> {
    // Products of matrices that lie in memory are compared with the definition.
    if contraction.gather.is_none() && matches!(schedule, Schedule::Mma(_) | Schedule::Wgmma(_)) {
        return super::check_tensor::check(schedule, contraction, options, go_on);
    }
    let Reduced { source, made } = reduced(schedule, contraction, options)?;
    let kernels = scheduled::check_each(&source, &made, crate::reference::SEED, go_on).map_err(|e| e.to_string())?;
    kernels.into_iter().nth(made.module.main).ok_or_else(|| "it has no kernels".into())
}

/// The program, and its contraction, in which blocks after the contraction have parameters of their own for the operands that they read:
/// with fewer values of each axis an operand's shape is another than theirs.
pub(super) fn read_apart(program: Program, contraction: &Contraction) -> Result<(Program, Contraction), String> {
    let mut small = contraction.clone();
    let Some(epilogue) = &mut small.epilogue else { return Ok((program, small)) };
    let operands = [contraction.a.name.as_str(), &contraction.b.name];
    if !epilogue.reads.iter().any(|read| operands.contains(&read.name.as_str())) {
        return Ok((program, small));
    }
    let mut program = program;
    for read in epilogue.reads.iter_mut().filter(|read| operands.contains(&read.name.as_str())) {
        let named = (0u32..).map(BufferId).zip(&program.buffers).find(|(_, b)| b.name == read.name);
        let Some((old, buffer)) = named.map(|(id, b)| (id, b.clone())) else { continue };
        read.name.push_str("_beside");
        let own = program.add_buffer(Buffer { name: read.name.clone(), ..buffer });
        program.params.push(own);
        let there = |e: &Expr| {
            visit::map_expr(e, &mut |e| match e {
                Expr::Load(b, at) if b == old => Expr::Load(own, at),
                e => e,
            })
        };
        tree::each_realize_mut(&mut program.body.block.body, &mut |r| {
            if r.block.name != contraction.block_name {
                *r.block.body = visit::map_stmt_exprs(&r.block.body, &mut |e| there(e));
                let reads = r.block.reads.iter_mut().filter(|region| region.buffer == old);
                reads.for_each(|region| region.buffer = own);
            }
        });
    }
    epilogue.script = tvmscript::print(&program);
    let program = tvmscript::parse(&epilogue.script).map_err(|e| e.to_string())?;
    for read in &mut epilogue.reads {
        let place = program.buffers.iter().position(|b| b.name == read.name).and_then(|at| u32::try_from(at).ok());
        read.buffer = place.map_or(read.buffer, BufferId);
    }
    Ok((program, small))
}

/// The source program of a contraction whose matrices lie in memory, with the contraction's extents.
/// The contraction is that of the program.
pub(super) fn source(small: &Contraction) -> Result<(Program, Contraction), String> {
    let whole = small.epilogue.as_ref().map(|e| &e.script);
    let Some(script) = whole.or(small.combine.as_ref().map(|c| &c.script)) else {
        let program = tvmscript::parse(&operators::script(small)).map_err(|e| e.to_string())?;
        return Ok((program, small.clone()));
    };
    let program = tvmscript::parse(script).map_err(|e| e.to_string())?;
    let (program, small) = read_apart(program, small)?;
    let extents = |dims: &[Axis]| -> Vec<i64> { dims.iter().map(|a| small.extent(*a)).collect() };
    let result = extents(&small.c.dims);
    let chain = || small.epilogue.iter();
    let mut nests = vec![small.iters.iter().map(|(_, info)| info.extent).collect()];
    nests.extend(chain().flat_map(|e| &e.blocks).map(|_| result.clone()));
    let operands = [&small.a, &small.b, &small.c];
    let mut shapes: BTreeMap<String, Vec<i64>> = operands.map(|o| (o.name.clone(), extents(&o.dims))).into();
    let beside = |dims: &[Option<usize>]| dims.iter().map(|d| d.map_or(1, |d| result[d])).collect();
    shapes.extend(chain().flat_map(|e| &e.reads).map(|read| (read.name.clone(), beside(&read.dims))));
    shapes.extend(chain().flat_map(|e| &e.between).map(|name| (name.clone(), result.clone())));
    let program = crate::streaming::resized(&program, &nests, &shapes);
    Ok((program, small))
}
