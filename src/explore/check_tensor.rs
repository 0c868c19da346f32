//! Tensor-core kernels in the simulator: their tiles and roles on a problem of few blocks and few tiles along k.
use super::check_gather::KeptTiles;
use crate::agreement::Agreement;
use crate::lower::program::LowerOptions;
use crate::scheduled::{self, Checked, Held, Reduced};
use satune_ir::interp;
use satune_ir::interp::Scalar;
use satune_ir::term::tensor::{self, Epilogue, Gemm, TensorPlan, WgmmaPlan};
use satune_ir::term::{Axis, Contraction, Schedule};
use satune_ir::{BinOp, DType};

/// Tile of a schedule on tensor cores, and blocks of a cluster along m and n, both of the product as it is; none of others.
pub(crate) fn oriented(schedule: &Schedule) -> Option<([i64; 3], [i64; 2])> {
    let (mut tile, mut cluster, swapped) = match schedule {
        Schedule::Mma(plan) => (plan.tile, [1, 1], plan.swapped),
        Schedule::Wgmma(plan) => (plan.tile, plan.cluster.map(i64::from), plan.swapped),
        Schedule::Cores(_) | Schedule::Stream(_) => return None,
    };
    if swapped {
        tile.swap(0, 1);
        cluster.reverse();
    }
    Some((tile, cluster))
}

/// Tiles along an axis that show all of a schedule: their size and number. Along m and n two or a cluster's, of a batch two products,
/// along k as many as take the ring once around. None where the schedule is none on tensor cores.
pub(crate) fn tiles(schedule: &Schedule, axis: Axis) -> Option<(i64, i64)> {
    let (tile, cluster) = oriented(schedule)?;
    let stages = match schedule {
        Schedule::Mma(plan) => plan.stages,
        Schedule::Wgmma(plan) => plan.stages,
        Schedule::Cores(_) | Schedule::Stream(_) => return None,
    };
    Some(match axis {
        Axis::M => (tile[0], cluster[0].max(2)),
        Axis::N => (tile[1], cluster[1].max(2)),
        Axis::Batch(_) => (1, 2),
        Axis::K | Axis::Outer(_) => (tile[2], (i64::from(stages) + 2) * parts(schedule)),
    })
}

/// Parts of k that show all of a schedule: two are added as many are.
pub(crate) fn parts(schedule: &Schedule) -> i64 {
    schedule.split_k().min(2)
}

/// The schedule as it is on a problem of so many [`tiles`]: fewer parts of k, and of a persistent grid fewer blocks than there are
/// tiles.
pub(crate) fn on_few(schedule: &Schedule) -> Schedule {
    let split_k = parts(schedule);
    match schedule {
        Schedule::Mma(plan) => Schedule::Mma(TensorPlan { split_k, ..plan.clone() }),
        Schedule::Wgmma(plan) => {
            let few = if plan.cluster_size() > 1 { plan.cluster_size() } else { 3 };
            let blocks = plan.blocks.map(|b| b.min(few));
            Schedule::Wgmma(WgmmaPlan { split_k, blocks, ..plan.clone() })
        }
        other => other.clone(),
    }
}

/// The same schedule on a problem of a few [`tiles`], the last cut where the problem's last one is.
pub fn shrink(schedule: &Schedule, contraction: &Contraction) -> (Schedule, Contraction) {
    let mut small = contraction.clone();
    for (axis, info) in &mut small.iters {
        let Some((tile, count)) = tiles(schedule, *axis) else { continue };
        if info.extent > count * tile {
            let last = if info.extent % tile == 0 { tile } else { info.extent % tile };
            info.extent = (count - 1) * tile + last;
        }
        if *axis == Axis::K && parts(schedule) > 1 {
            // Each part keeps a tile.
            info.extent = info.extent.max(parts(schedule) * tile);
        }
    }
    (on_few(schedule), small)
}

/// The kernels of the shrunken problem.
///
/// # Errors
/// A refused call, which is a bug.
pub fn reduced(schedule: &Schedule, contraction: &Contraction, options: &LowerOptions) -> Result<Reduced, String> {
    Ok(shrunken(schedule, contraction, options)?.0)
}

fn shrunken(
    schedule: &Schedule,
    contraction: &Contraction,
    options: &LowerOptions,
) -> Result<(Reduced, Contraction), String> {
    let (schedule, wanted) = shrink(schedule, contraction);
    let (source, small) = match &contraction.gather {
        Some(gather) => {
            let of = oriented(&schedule);
            // What the TMA brings in boxes stays whole boxes, and clusters whole.
            let boxes = of.filter(|_| matches!(schedule, Schedule::Wgmma(_)));
            let tiles = boxes.map(|(tile, cluster)| [0, 1].map(|i| (tile[i], cluster[i]))).unwrap_or_default();
            let kept = KeptTiles { tiles, k_tile: of.map(|(tile, _)| tile[2]) };
            super::check_gather::smaller(contraction, gather, &wanted, kept)?
        }
        None => super::check::source(&wanted)?,
    };
    let made = scheduled::of_schedule(&source, &schedule, &small, options);
    Ok((Reduced { made: made.map_err(|e| e.to_string())?, source }, small))
}

/// Runs the kernels of the shrunken problem in the simulator and compares with the definition: sums of
/// products of small whole numbers, which are exact in every order. For as long as `go_on` says so.
///
/// # Errors
/// What went wrong, for people.
pub fn check(
    schedule: &Schedule,
    contraction: &Contraction,
    options: &LowerOptions,
    go_on: &dyn Fn() -> bool,
) -> Result<Checked, String> {
    let (Reduced { source, made }, small) = shrunken(schedule, contraction, options)?;
    let module = made.module;
    let inputs = interp::random_inputs(&source, crate::reference::SEED).map_err(|e| e.to_string())?;
    let given: Vec<Held> = inputs.iter().map(Held::from).collect();
    let mut expected = given.clone();
    let inputs: Vec<Vec<f64>> = inputs.iter().map(interp::Array::to_held).collect();
    let at = |id| source.params.iter().position(|p| *p == id).ok_or("a parameter is missing");
    let (a, b, c) = (at(small.a.buffer)?, at(small.b.buffer)?, at(small.c.buffer)?);
    let gemm = Gemm::of(&small).map_err(|e| e.to_string())?;
    let sums = product(&gemm, &inputs[a], &inputs[b], go_on).ok_or(scheduled::ScheduledError::Stopped);
    let sums = sums.map_err(|e| e.to_string())?;
    let reads = small.epilogue.as_ref().map_or(&[][..], |e| &e.reads);
    let values = reads.iter().map(|read| Ok(&inputs[at(read.buffer)?][..])).collect::<Result<Vec<_>, &str>>()?;
    expected[c] = Held::floats(finished(&gemm, sums, &values));
    // Functions are rounded; everything else is exact.
    let rounds = |part: &Epilogue| matches!(part, Epilogue::Call(..) | Epilogue::Binary(BinOp::Div, DType::F32, ..));
    let agreement = if gemm.epilogue.any(&rounds) { Agreement::Roundoff } else { Agreement::Exact };
    let agree = |_, want, got| agreement.agree(want, got, gemm.output);
    let kernels = scheduled::simulate_module(&module, given, &expected, (false, go_on), agree);
    let main = kernels.map_err(|e| e.to_string())?.into_iter().nth(module.main);
    main.ok_or_else(|| "it has no kernels".into())
}

/// The results of sums by the epilogue's definition.
fn finished(gemm: &Gemm, sums: Vec<f64>, reads: &[&[f64]]) -> Vec<f64> {
    let one = |(at, sum): (i64, f64)| {
        let (product, line, within) =
            (at / (gemm.m * gemm.n), at % (gemm.m * gemm.n) / gemm.c_pitch(), at % gemm.c_pitch());
        let place = if gemm.c_transposed { [within, line] } else { [line, within] };
        let read = |(read, values): (&tensor::Read, &&[f64])| {
            let at = read.at.as_ref().map_or(at, |matrix| matrix.place(product, place));
            let value = usize::try_from(at).ok().and_then(|at| values.get(at).copied()).unwrap_or(f64::NAN);
            Scalar::of_held(value, read.dtype)
        };
        let beside: Vec<Scalar> = gemm.reads.iter().zip(reads).map(read).collect();
        let sum = match gemm.accumulator() {
            DType::I32 => Scalar::int(sum as i64, DType::I32),
            float => Scalar::float(sum, float),
        };
        gemm.epilogue.stored(gemm.output, sum, &beside, &gemm.indices_of(product, place)).as_f64()
    };
    (0..).zip(sums).map(one).collect()
}

/// C = A * B by its definition, for each product of a batch; none where `go_on` ends it, which is asked before each row.
fn product(gemm: &Gemm, a: &[f64], b: &[f64], go_on: &dyn Fn() -> bool) -> Option<Vec<f64>> {
    let [batch, m, n, k] = [gemm.batch, gemm.m, gemm.n, gemm.k].map(|extent| usize::try_from(extent).unwrap_or(0));
    let mut out = Vec::with_capacity(batch * m * n);
    for number in 0..batch {
        let (a, b) = (&a[number * m * k..], &b[number * k * n..]);
        let mut sums = vec![0.0; m * n];
        for i in 0..m {
            if !go_on() {
                return None;
            }
            let row = &mut sums[i * n..(i + 1) * n];
            for kk in 0..k {
                let x = if gemm.a_transposed { a[kk * m + i] } else { a[i * k + kk] };
                for (j, sum) in row.iter_mut().enumerate() {
                    *sum += x * if gemm.b_transposed { b[j * k + kk] } else { b[kk * n + j] };
                }
            }
        }
        match gemm.c_transposed {
            false => out.extend(sums),
            true => out.extend((0..n).flat_map(|j| (0..m).map(move |i| (i, j))).map(|(i, j)| sums[i * n + j])),
        }
    }
    Some(out)
}
