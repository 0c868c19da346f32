//! What is done with the sums before they are stored, and the kernel that adds the parts of split-K.
use super::{both, c, div, first_result, gathered, guarded, in_memory, less, product, rem, result, stream_k, thread};
use super::{place as tile_place, Builder, Cond, Epilogue, Gemm, Operand, Params, Read, ResultPlace, WgmmaPlan};
use crate::kernel::{Arith, ArrayId, Dim, Index, Kernel, Space, Stmt, Unroll, Value};
use crate::lower::index::{add, mul};
use satune_ir::term::tensor::{GatheredMatrix, StreamK};
use satune_ir::DType;

/// The value stored for a sum at a place of C. The sums of split-K are stored as they are (`split`).
pub(super) fn value(gemm: &Gemm, params: &Params, split: bool, sum: Value, at: &ResultPlace) -> Value {
    if split {
        return sum;
    }
    let read = |(read, array): (&Read, &ArrayId)| {
        let place = |of: &GatheredMatrix| gathered::place(of, at.batch, at.row, at.column);
        Value::Load(*array, read.at.as_ref().map_or(at.index.clone(), place))
    };
    let reads: Vec<Value> = gemm.reads.iter().zip(&params.reads).map(read).collect();
    let made = Made { gemm, sum, reads };
    let (value, dtype) = match gemm.epilogue {
        Epilogue::Sum => (made.sum.clone(), gemm.accumulator()),
        ref epilogue => made.value(epilogue),
    };
    value.converted(dtype, gemm.output)
}

/// What an epilogue's value is made of.
struct Made<'g> {
    gemm: &'g Gemm,
    sum: Value,
    reads: Vec<Value>,
}

impl Made<'_> {
    /// The value of an epilogue, and the type that it is in.
    fn value(&self, epilogue: &Epilogue) -> (Value, DType) {
        let dtype = epilogue.dtype(self.gemm.accumulator(), &self.gemm.reads);
        let within = |part: &Epilogue, to: DType| {
            let (value, from) = self.value(part);
            value.converted(from, to)
        };
        let value = match epilogue {
            Epilogue::Sum => self.sum.clone().converted(self.gemm.accumulator(), dtype),
            // What an epilogue reads has an array: the kernel's parameters are made of it.
            Epilogue::Read(number) => match (self.reads.get(*number), self.gemm.reads.get(*number)) {
                (Some(value), Some(read)) => value.clone().converted(read.dtype, dtype),
                _ => Value::Float(0.0, dtype),
            },
            Epilogue::Number(x) => Value::Float(*x, dtype),
            Epilogue::Integer(x, _) => Value::Int(*x, dtype),
            Epilogue::Binary(op, of, a, b) => Value::of_operator(*op, *of, within(a, *of), within(b, *of)),
            Epilogue::Call(name, a) => Value::Unary(name.clone(), dtype, Box::new(within(a, dtype))),
            Epilogue::Cast(to, a) => within(a, *to).converted(*to, dtype),
            Epilogue::Choose(parts) => {
                let [condition, then, otherwise] = &**parts;
                let [then, otherwise] = [then, otherwise].map(|part| Box::new(within(part, dtype)));
                Value::Choose(Box::new(within(condition, DType::Bool)), then, otherwise)
            }
        };
        (value, dtype)
    }
}

/// Adds the parts of each result, one thread per result; those of stream-K tile by tile, since tiles have different
/// numbers of parts.
pub(super) fn sum_kernel(
    gemm: &Gemm,
    parts: i64,
    stream: Option<(StreamK, &WgmmaPlan)>,
    partial_sums: Operand,
) -> (Kernel, Vec<Operand>) {
    let mut builder = Builder::new();
    let results = gemm.results();
    let dtype = gemm.accumulator();
    let partial = builder.array("partial", dtype, results * parts, Space::Global, 16);
    let mut operands = vec![partial_sums];
    let reads = builder.epilogue_params(gemm, &mut operands);
    let out = builder.array("C", gemm.output, results, Space::Global, 16);
    builder.arrays[out.0 as usize].written = true;
    operands.push(Operand::C);
    let params = Params { a: ArrayId(0), b: ArrayId(0), reads, out, operands };
    let sum = builder.array("sum", dtype, 1, Space::Register, 16);
    let mut body = Vec::new();
    let by_256 = |extent: i64| (extent + 255) / 256;
    let (blocks, place, count) = match stream {
        None => {
            let i = builder.bind(&mut body, "i", add(mul(Index::BlockIdx(Dim::X), 256), thread()));
            let (line, within) = (div(i.clone(), gemm.c_pitch()), rem(i.clone(), gemm.c_pitch()));
            // Lines of all products follow each other.
            let (batch, line) = product(gemm, line, gemm.m * gemm.n / gemm.c_pitch());
            let (row, column) = if gemm.c_transposed { (within, line) } else { (line, within) };
            let at = if gemm.placed.is_some() { in_memory(gemm, &batch, &row, &column) } else { i.clone() };
            (by_256(results), (Cond::Lt(i.clone(), c(results)), [i, batch, row, column, at]), c(parts))
        }
        Some((stream, plan)) => {
            let [m, n, _] = plan.tile;
            let per_tile = by_256(m * n);
            let tile = builder.bind(&mut body, "tile", div(Index::BlockIdx(Dim::X), per_tile));
            let (rows, columns) = (tiles(gemm.m, m), tiles(gemm.n, n));
            let (batch, number) = product(gemm, tile.clone(), rows * columns);
            let (row, column) = tile_place(&number, rows, columns, plan.raster);
            let within = add(mul(rem(Index::BlockIdx(Dim::X), per_tile), 256), thread());
            let within = builder.bind(&mut body, "place", within);
            let row = builder.bind(&mut body, "row", add(mul(row, m), div(within.clone(), n)));
            let column = builder.bind(&mut body, "column", add(mul(column, n), rem(within.clone(), n)));
            let whole = less(m * n % 256 != 0, &within, m * n);
            let inside = both(less(gemm.m % m != 0, &row, gemm.m), less(gemm.n % n != 0, &column, gemm.n));
            let i = result(gemm, &first_result(gemm, &c(0), &batch), &row, &column);
            let i = builder.bind(&mut body, "i", i);
            let count = builder.bind(&mut body, "parts", stream_k::parts(&stream, &tile).0);
            (stream.tiles * per_tile, (both(whole, inside), [i.clone(), batch, row, column, i]), count)
        }
    };
    let (exists, [i, batch, row, column, at]) = place;
    let mut then = vec![Stmt::Store { array: sum, index: c(0), value: Value::zero(dtype) }];
    let part = builder.fresh();
    let load = Value::Load(partial, add(mul(Index::Var(part), results), i));
    let more = Value::Binary(Arith::Add, dtype, Box::new(Value::Load(sum, c(0))), Box::new(load));
    let add_part = vec![Stmt::Store { array: sum, index: c(0), value: more }];
    let (name, start, unroll) = ("part".into(), c(0), Unroll::By(4));
    then.push(Stmt::For { var: part, name, start, extent: count, unroll, body: add_part });
    let placed = ResultPlace { batch: &batch, row: &row, column: &column, index: &at };
    let value = value(gemm, &params, false, Value::Load(sum, c(0)), &placed);
    then.push(Stmt::Store { array: out, index: at, value });
    body.extend(guarded(exists, then));
    let kernel = Kernel {
        name: format!("{}_sum", gemm.name),
        notes: vec![match stream {
            None => format!("adds the {parts} partial sums of each result"),
            Some(_) => "adds the partial sums that blocks have of each tile, in the order of k".into(),
        }],
        arrays: builder.arrays,
        grid: [blocks as u32, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        min_blocks_per_sm: None,
        cluster: 1,
        tensor_maps: vec![],
        body,
    };
    (kernel, params.operands)
}

fn tiles(extent: i64, tile: i64) -> i64 {
    (extent + tile - 1) / tile
}
