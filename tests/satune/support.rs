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
    }
}

pub const H200: Limits = Limits { threads: 1024, shared_bytes: 232_448, registers: 255, cp_async: true };

/// The space of a contraction with the usual menu.
pub fn space(contraction: &Contraction) -> Space {
    saturate(contraction, H200, &Menu::of(contraction, &H200), &rules::all(), Fuel::default()).unwrap()
}

/// Small integers, so that sums are exact in any order.
pub fn inputs(operand: &OperandInfo, contraction: &Contraction, seed: u64) -> Vec<f64> {
    let len: i64 = operand.dims.iter().map(|a| contraction.extent(*a)).product();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % 7) as f64 - 3.0
        })
        .collect()
}

/// The contraction by its definition.
pub fn reference(contraction: &Contraction, a: &[f64], b: &[f64]) -> Vec<f64> {
    let axes: Vec<(Axis, i64)> = contraction.iters.iter().map(|(axis, info)| (*axis, info.extent)).collect();
    let at = |operand: &OperandInfo, values: &[i64]| -> usize {
        operand.dims.iter().fold(0, |sum, axis| {
            let i = axes.iter().position(|(a, _)| a == axis).unwrap();
            sum * axes[i].1 + values[i]
        }) as usize
    };
    let len: i64 = contraction.c.dims.iter().map(|a| contraction.extent(*a)).product();
    let mut c = vec![0.0; len as usize];
    let mut values = vec![0; axes.len()];
    loop {
        c[at(&contraction.c, &values)] += a[at(&contraction.a, &values)] * b[at(&contraction.b, &values)];
        let mut i = axes.len();
        loop {
            if i == 0 {
                return c;
            }
            i -= 1;
            values[i] += 1;
            if values[i] < axes[i].1 {
                break;
            }
            values[i] = 0;
        }
    }
}
