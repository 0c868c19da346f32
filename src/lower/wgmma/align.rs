//! The kernels that copy an operand first, which the TMA or `wgmma` cannot take as it is: to rows that begin at multiples of 16 bytes, or
//! to rows along k.
use super::*;

/// The kernel, from `operand`, which the kernel's text names so, to the buffer between kernels of a number.
pub(super) fn kernel(
    gemm: &Gemm,
    copy: AlignedRows,
    (operand, name): (Operand, &str),
    number: usize,
) -> (Kernel, Vec<Operand>) {
    let mut builder = Builder::new();
    let from = builder.array(name, gemm.operand, copy.rows * copy.row, Space::Global, 16);
    let to = builder.array("aligned", gemm.operand, copy.elements(), Space::Global, 16);
    builder.arrays[to.0 as usize].written = true;
    let body = match copy.turned {
        false => moved(&mut builder, copy, [from, to]),
        true => turned(&mut builder, copy, [from, to], gemm.operand),
    };
    let AlignedRows { row, pitch, .. } = copy;
    let what = if copy.turned { format!("turns columns into rows of {row}") } else { format!("copies rows of {row}") };
    let kernel = Kernel {
        name: format!("{}_align_{}", gemm.name, name.to_lowercase()),
        notes: vec![format!("{what} elements, which begin {pitch} elements after each other")],
        arrays: builder.arrays,
        grid: [copy.blocks() as u32, 1, 1],
        block: [AlignedRows::THREADS as u32, 1, 1],
        shared_bytes: builder.shared_bytes,
        min_blocks_per_sm: None,
        cluster: 1,
        tensor_maps: vec![],
        body,
    };
    (kernel, vec![operand, Operand::Between(number)])
}

/// Rows to rows: each thread some elements, neighbours those that follow each other.
fn moved(builder: &mut Builder, copy: AlignedRows, [from, to]: [ArrayId; 2]) -> Vec<Stmt> {
    let (threads, steps, elements) = (AlignedRows::THREADS, AlignedRows::STEPS, copy.rows * copy.row);
    let first = add(mul(Index::BlockIdx(Dim::X), threads * steps), thread());
    builder.repeat("step", (0, steps), Unroll::Full, |builder, step| {
        let mut body = Vec::new();
        let i = builder.bind(&mut body, "i", add(first, mul(step, threads)));
        let place = add(mul(div(i.clone(), copy.row), copy.pitch), rem(i.clone(), copy.row));
        let store = Stmt::Store { array: to, index: place, value: Value::Load(from, i.clone()) };
        body.extend(guarded(less(elements % (threads * steps) != 0, &i, elements), vec![store]));
        body
    })
}

/// Columns to rows, by tiles in shared memory: neighbours read, and write, what follows each other.
fn turned(builder: &mut Builder, copy: AlignedRows, [from, to]: [ArrayId; 2], dtype: DType) -> Vec<Stmt> {
    const SIDE: i64 = AlignedRows::SIDE;
    // A column of the tile is in as many banks as it has elements.
    const PITCH: i64 = SIDE + 1;
    let [down, along] = copy.tiles();
    let (columns, own) = (copy.row, copy.rows / copy.batch.max(1));
    let lines = AlignedRows::THREADS / SIDE;
    let tile = builder.array("tile", dtype, SIDE * PITCH, Space::Shared, 16);
    let mut body = Vec::new();
    let block = Index::BlockIdx(Dim::X);
    let product = builder.bind(&mut body, "product", div(block.clone(), down * along));
    let row0 = builder.bind(&mut body, "row0", mul(rem(div(block.clone(), along), down), SIDE));
    let column0 = builder.bind(&mut body, "column0", mul(rem(block, along), SIDE));
    let x = builder.bind(&mut body, "x", rem(thread(), SIDE));
    let y = builder.bind(&mut body, "y", div(thread(), SIDE));
    let inside =
        |row: &Index, column: &Index| both(less(own % SIDE != 0, row, own), less(columns % SIDE != 0, column, columns));
    for i in 0..SIDE / lines {
        let line = add(y.clone(), c(i * lines));
        let (row, column) = (add(row0.clone(), x.clone()), add(column0.clone(), line.clone()));
        let place = add(mul(add(mul(product.clone(), columns), column.clone()), own), row.clone());
        let index = add(mul(line, PITCH), x.clone());
        let store = Stmt::Store { array: tile, index, value: Value::Load(from, place) };
        body.extend(guarded(inside(&row, &column), vec![store]));
    }
    body.push(Stmt::Barrier);
    for i in 0..SIDE / lines {
        let line = add(y.clone(), c(i * lines));
        let (row, column) = (add(row0.clone(), line.clone()), add(column0.clone(), x.clone()));
        let place = add(mul(add(mul(product.clone(), own), row.clone()), copy.pitch), column.clone());
        let value = Value::Load(tile, add(mul(x.clone(), PITCH), line));
        let store = Stmt::Store { array: to, index: place, value };
        body.extend(guarded(inside(&row, &column), vec![store]));
    }
    body
}
