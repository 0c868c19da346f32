//! The kernel that copies an operand whose rows the TMA cannot take to rows that begin at multiples of 16 bytes.
use super::*;

/// The kernel, from `operand`, which the kernel's text names so, to the buffer between kernels of a number.
pub(super) fn kernel(
    gemm: &Gemm,
    copy: AlignedRows,
    (operand, name): (Operand, &str),
    number: usize,
) -> (Kernel, Vec<Operand>) {
    let mut builder = Builder::new();
    let elements = copy.rows * copy.row;
    let from = builder.array(name, gemm.operand, elements, Space::Global, 16);
    let to = builder.array("aligned", gemm.operand, copy.elements(), Space::Global, 16);
    builder.arrays[to.0 as usize].written = true;
    let (threads, steps) = (AlignedRows::THREADS, AlignedRows::STEPS);
    let first = add(mul(Index::BlockIdx(Dim::X), threads * steps), thread());
    let body = builder.repeat("step", (0, steps), Unroll::Full, |builder, step| {
        let mut body = Vec::new();
        let i = builder.bind(&mut body, "i", add(first, mul(step, threads)));
        let place = add(mul(div(i.clone(), copy.row), copy.pitch), rem(i.clone(), copy.row));
        let store = Stmt::Store { array: to, index: place, value: Value::Load(from, i.clone()) };
        body.extend(guarded(less(elements % (threads * steps) != 0, &i, elements), vec![store]));
        body
    });
    let kernel = Kernel {
        name: format!("{}_align_{}", gemm.name, name.to_lowercase()),
        notes: vec![format!("copies rows of {} elements to such as begin {} elements after each other", copy.row, copy.pitch)],
        arrays: builder.arrays,
        grid: [copy.blocks() as u32, 1, 1],
        block: [threads as u32, 1, 1],
        shared_bytes: 0,
        min_blocks_per_sm: None,
        cluster: 1,
        tensor_maps: vec![],
        body,
    };
    (kernel, vec![operand, Operand::Between(number)])
}
