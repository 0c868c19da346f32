//! Every candidate is run in the simulator before anybody sees it, on a problem with its tiles and few blocks.
use crate::lower::{lower, Argument};
use crate::simulate::{self, Counts};
use satune_ir::term::{Axis, BlockLoop, Contraction, OperandInfo, Pipe, Plan};

/// What the simulator found.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    /// Counts of the main kernel on the small problem.
    pub total: Counts,
    /// Its hot loop's.
    pub hot_loop: Counts,
    /// Blocks that were run.
    pub blocks: u64,
}

/// The same plan on a problem of few blocks and k tiles: two tiles along m and n at most (the second cut where the
/// problem's last one is), as many k tiles as the overlap needs to get going and to end.
pub fn shrink(plan: &Plan, contraction: &Contraction) -> (Plan, Contraction) {
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
    let tiles = match plan.pipe {
        Pipe::Async(stages) => i64::from(stages) + 2,
        _ => 4,
    };
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
    (plan, small)
}

/// Small integers: sums of them are exact in any order.
fn integers(operand: &OperandInfo, contraction: &Contraction, seed: u64) -> Vec<f64> {
    let len: i64 = operand.dims.iter().map(|a| contraction.extent(*a)).product();
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % 7) as f64 - 3.0
        })
        .collect()
}

/// The contraction by its definition.
fn reference(contraction: &Contraction, a: &[f64], b: &[f64]) -> Vec<f64> {
    let stride = |operand: &OperandInfo, axis: Axis| -> usize {
        let after = operand.dims.iter().skip_while(|d| **d != axis).skip(1);
        if operand.dims.contains(&axis) {
            after.map(|d| contraction.extent(*d)).product::<i64>() as usize
        } else {
            0
        }
    };
    let axes: Vec<(usize, [usize; 3])> = contraction
        .iters
        .iter()
        .map(|(axis, info)| {
            let strides = [&contraction.a, &contraction.b, &contraction.c].map(|o| stride(o, *axis));
            (info.extent as usize, strides)
        })
        .collect();
    let len: i64 = contraction.c.dims.iter().map(|d| contraction.extent(*d)).product();
    let mut out = vec![0.0; len as usize];
    fn walk(axes: &[(usize, [usize; 3])], at: [usize; 3], a: &[f64], b: &[f64], out: &mut [f64]) {
        match axes.split_first() {
            None => out[at[2]] += a[at[0]] * b[at[1]],
            Some(((extent, strides), rest)) => {
                for i in 0..*extent {
                    walk(rest, [at[0] + i * strides[0], at[1] + i * strides[1], at[2] + i * strides[2]], a, b, out);
                }
            }
        }
    }
    walk(&axes, [0; 3], a, b, &mut out);
    out
}

/// Runs a plan's kernels on a small problem and compares with the definition, bit for bit.
///
/// # Errors
/// What went wrong, for people: a fault, an unwritten result, or a wrong number.
pub fn check(plan: &Plan, contraction: &Contraction) -> Result<Checked, String> {
    let (plan, small) = shrink(plan, contraction);
    let module = lower(&plan, &small, "gemm").map_err(|e| e.to_string())?;
    let a = integers(&small.a, &small, 0x5eed);
    let b = integers(&small.b, &small, 0xfeed);
    let expected = reference(&small, &a, &b);
    let mut c = vec![f64::NAN; expected.len()];
    let mut workspace = vec![f64::NAN; module.workspace.0 as usize];
    let mut checked = None;
    for (kernel, arguments) in module.kernels.iter().zip(&module.args) {
        let mut values: Vec<Vec<f64>> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::A => a.clone(),
                Argument::B => b.clone(),
                Argument::C => c.clone(),
                Argument::Workspace => workspace.clone(),
            })
            .collect();
        let report = simulate::run(kernel, &mut values, &simulate::Options::default())
            .map_err(|fault| format!("kernel {}: {fault}", kernel.name))?;
        if report.unwritten > 0 {
            return Err(format!("kernel {}: {} results are not written", kernel.name, report.unwritten));
        }
        checked.get_or_insert(Checked { total: report.total, hot_loop: report.hot_loop, blocks: report.blocks });
        for (argument, value) in arguments.iter().zip(values) {
            match argument {
                Argument::C => c = value,
                Argument::Workspace => workspace = value,
                Argument::A | Argument::B => {}
            }
        }
    }
    if let Some(at) = c.iter().zip(&expected).position(|(x, y)| x != y) {
        return Err(format!("result {at} is {}, not {}", c[at], expected[at]));
    }
    checked.ok_or_else(|| "no kernel was made".into())
}
