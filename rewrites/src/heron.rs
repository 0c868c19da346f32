//! Heron's schedules (ASPLOS 2023): a row of the table that its search writes for a product on tensor cores, and what that
//! row does with a program here.
//!
//! Heron schedules `C = A * B^T` in TVM's te by one template. A row has its 37 parameters, by the names of te's stages and
//! loops. `dense` is the stage that writes C:
//!
//! ```text
//! dense                          i, j  -> blockIdx.x, threadIdx.y, threadIdx.x, serial, vector      (`nparts` of each level)
//! dense.wmma.accumulator.shared  at the blocks: tiles on threadIdx.y, wmma stores
//! dense.wmma.accumulator         at these tiles: i_c, j_c, k three times in parts, wmma multiplications
//! A/B.shared.wmma.matrix_a/b     at a level of the parts: wmma loads
//! A/B.shared                     at a level of the parts: fused, in vectors on threadIdx.x and threadIdx.y
//! ```
//!
//! A position counts the levels of a stage from 0: of `dense` the level of one part for the pragma, the blocks, threadIdx.y and
//! so on; of the sums the three levels of parts, and the multiplications. `dense_unroll_pragma` is an exponent: loops of up to
//! 4^n steps are unrolled.
mod fit;
mod read;
mod shared;
mod write;

pub use fit::Tile;
pub use shared::SharedBytes;

/// A row of Heron's table for a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// m, n and k of the instruction (the columns have k before n).
    pub wmma: [i64; 3],
    /// `dense.wmma.accumulator_shared_pos`: the level of the sums' parts at which tiles of A and B are copied.
    pub tiles_at: i64,
    /// `dense.wmma.accumulator_local_pos`: the level at which their fragments are loaded.
    pub fragments_at: i64,
    /// `dense_shared_pos`: the level of `dense` at which C's tile in shared memory stands.
    pub result_at: i64,
    /// `dense.wmma.accumulator.shared_local_pos`: the level of that tile at which sums stand.
    pub sums_at: i64,
    /// `dense_unroll_pragma`.
    pub unroll: i64,
    /// `densei` and `densej.innertileSpatial`: blocks along i and j.
    pub blocks: [i64; 2],
    /// `.inner.innertileSpatial`: on threadIdx.y.
    pub warps: [i64; 2],
    /// `threadIdx.y`.
    pub threads_y: i64,
    /// `.inner.inner.innertileSpatial`: on threadIdx.x.
    pub lanes: [i64; 2],
    /// `threadIdx.x`.
    pub threads_x: i64,
    /// `.inner.inner.inner.innertileSpatial`: one after the other.
    pub serial: [i64; 2],
    /// C's tile: `dense.wmma.accumulator.shared_ax1` and `_offset`.
    pub c: Rows,
    /// `dense.wmma.accumulator.sharedax0tileSpatial` and `ax1`: warps along i and j that sum up and store.
    pub sums: [i64; 2],
    /// The three levels of parts of the sums' loops, each along i, j and k (`...tileAll`).
    pub parts: [[i64; 3]; 3],
    /// B's tile: `B.shared_ax1` and `_offset`.
    pub b: Rows,
    /// `B.shared_vectorize`.
    pub b_vector: i64,
    /// A's tile: `A.shared_ax1` and `_offset`.
    pub a: Rows,
    /// `A.shared_vectorize`.
    pub a_vector: i64,
}

/// What Heron measured of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measured {
    /// There is no performance beside the row.
    NotSaid,
    /// It did not run.
    Failed,
    /// So many seconds.
    Seconds(f64),
}

/// A row with what was measured of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The schedule.
    pub row: Row,
    /// Its time.
    pub measured: Measured,
    /// The line of the text that it stands on, from 1.
    pub line: usize,
}

/// How the rows of a tile lie in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Elements of a row.
    pub length: i64,
    /// Elements between a row and the next.
    pub offset: i64,
}

impl Rows {
    /// Elements from the beginning of a row to that of the next.
    pub fn pitch(self) -> i64 {
        self.length + self.offset
    }
}

/// The columns of a table, in order.
pub const COLUMNS: [&str; 37] = [
    "wmma_m",
    "wmma_k",
    "wmma_n",
    "dense.wmma.accumulator_shared_pos",
    "dense.wmma.accumulator_local_pos",
    "dense_shared_pos",
    "dense.wmma.accumulator.shared_local_pos",
    "dense_unroll_pragma",
    "densei.innertileSpatial",
    "densej.innertileSpatial",
    "densei.inner.innertileSpatial",
    "densej.inner.innertileSpatial",
    "threadIdx.y",
    "densei.inner.inner.innertileSpatial",
    "densej.inner.inner.innertileSpatial",
    "threadIdx.x",
    "densei.inner.inner.inner.innertileSpatial",
    "densej.inner.inner.inner.innertileSpatial",
    "dense.wmma.accumulator.shared_ax1",
    "dense.wmma.accumulator.shared_offset",
    "dense.wmma.accumulator.sharedax0tileSpatial",
    "dense.wmma.accumulator.sharedax1tileSpatial",
    "dense.wmma.accumulatori.ctileAll",
    "dense.wmma.accumulatorj.ctileAll",
    "dense.wmma.accumulatorktileAll",
    "dense.wmma.accumulatori.c.innertileAll",
    "dense.wmma.accumulatorj.c.innertileAll",
    "dense.wmma.accumulatork.innertileAll",
    "dense.wmma.accumulatori.c.inner.innertileAll",
    "dense.wmma.accumulatorj.c.inner.innertileAll",
    "dense.wmma.accumulatork.inner.innertileAll",
    "B.shared_ax1",
    "B.shared_offset",
    "B.shared_vectorize",
    "A.shared_ax1",
    "A.shared_offset",
    "A.shared_vectorize",
];

impl Row {
    /// The row with these values in the order of [`COLUMNS`].
    fn of(values: [i64; 37]) -> Row {
        let [m, k, n, tiles_at, fragments_at, result_at, sums_at, unroll, values @ ..] = values;
        let [bi, bj, yi, yj, threads_y, xi, xj, threads_x, si, sj, c_row, c_offset, sums_i, sums_j, values @ ..] =
            values;
        let [i0, j0, k0, i1, j1, k1, i2, j2, k2, b_row, b_offset, b_vector, a_row, a_offset, a_vector] = values;
        let rows = |length, offset| Rows { length, offset };
        Row {
            wmma: [m, n, k],
            tiles_at,
            fragments_at,
            result_at,
            sums_at,
            unroll,
            blocks: [bi, bj],
            warps: [yi, yj],
            threads_y,
            lanes: [xi, xj],
            threads_x,
            serial: [si, sj],
            c: rows(c_row, c_offset),
            sums: [sums_i, sums_j],
            parts: [[i0, j0, k0], [i1, j1, k1], [i2, j2, k2]],
            b: rows(b_row, b_offset),
            b_vector,
            a: rows(a_row, a_offset),
            a_vector,
        }
    }
}

/// Why a text is no row, or a row no schedule of a product.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A list of another length.
    #[error(
        "a row of Heron's has 37 numbers, 38 with the performance before them, 39 with an id before that; here are {0}"
    )]
    Count(usize),
    /// A line of a table with more values than columns, or fewer.
    #[error("the table has {names} columns, and here are {values} values")]
    Entries {
        /// Columns.
        names: usize,
        /// Values of the line.
        values: usize,
    },
    /// More rows than are looked at.
    #[error("there are more than {0} rows; ask about fewer at a time")]
    Many(usize),
    /// A line that is no row.
    #[error("line {line}: {error}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// Why not.
        error: String,
    },
    /// A performance that is no number.
    #[error("{name} is {value}; it is the natural logarithm of runs per second, and 0 where it did not run")]
    Performance {
        /// Its name.
        name: String,
        /// What stands there.
        value: String,
    },
    /// A value that is none.
    #[error("{name} is {value}; it is a whole number from 0 to {most}", most = i32::MAX)]
    Value {
        /// The column.
        name: String,
        /// What stands there.
        value: String,
    },
    /// Columns without a value.
    #[error("a row of Heron's has {0}, too: there is no value of it here")]
    Missing(String),
    /// A name of no column.
    #[error("{0} is no column of Heron's for a product; these are {list}", list = COLUMNS.join(", "))]
    Unknown(String),
    /// A column with two values.
    #[error("{0} has two values; leave one")]
    Twice(String),
    /// Two numbers of the row, or of the row and the product, that cannot both be.
    #[error("the row is none of this product: {0}")]
    Disagree(String),
    /// A stage where the program would be no kernel.
    #[error("the row makes no kernel: {0}")]
    Position(String),
    /// What is multiplied, or by which instruction.
    #[error("Heron's template for products does not take this: {0}")]
    Product(String),
}

#[cfg(test)]
mod testing {
    use super::{Record, Row};
    use crate::space;
    use crate::testing::{func, parse};
    use satune_ir::term::Contraction;
    use satune_ir::Program;

    /// Rows of a table for 1024 x 1024 x 1024 in f16. The last one did not run.
    pub const ROW_77: &str =
        "16,16,16, 3,3, 1,0,5, 4,16,16,1,16, 1,32,32,16,1, 64,8, 16,1, 1,4,32, 1,1,1, 1,1,1, 16,0,1, 16,24,2";
    pub const ROW_1190: &str =
        "16,16,16, 0,1, 1,0,5, 4,16,16,1,16, 1,32,32,16,1, 64,0, 16,1, 1,1,32, 1,1,1, 1,4,2, 32,24,8, 32,8,8";
    pub const ROW_99: &str =
        "16,16,16,1,2,1,0,5,4,16,16,1,16,1,32,32,16,1,64,24,16,1,1,1,32,1,1,1,1,1,1,32,24,2,32,24,2";

    pub fn row(text: &str) -> Row {
        Record::read(text).unwrap().unwrap().remove(0).row
    }

    /// A product of m x n x k; A and B as in BLAS, `T` for transposed.
    pub fn product([m, n, k]: [i64; 3], order: &str, [operand, sum]: [&str; 2]) -> (Program, Contraction) {
        let (a, at_a) = if order.starts_with('T') { ([k, m], "vk, vi") } else { ([m, k], "vi, vk") };
        let (b, at_b) = if order.ends_with('T') { ([n, k], "vj, vk") } else { ([k, n], "vk, vj") };
        let buffer = |name: &str, [rows, columns]: [i64; 2], dtype: &str| {
            format!("{name}: T.Buffer(({rows}, {columns}), \"{dtype}\")")
        };
        let params = [buffer("A", a, operand), buffer("B", b, operand), buffer("C", [m, n], sum)].join(", ");
        let cast = |x: String| if operand == sum { x } else { format!("T.Cast(\"{sum}\", {x})") };
        let product = [format!("A[{at_a}]"), format!("B[{at_b}]")].map(cast).join(" * ");
        let zero = if sum == "int32" { "0".to_string() } else { format!("T.{sum}(0)") };
        let body = format!(
            "for i, j, k in T.grid({m}, {n}, {k}):\n    with T.sblock(\"C\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, \
             k])\n        with T.init():\n            C[vi, vj] = {zero}\n        C[vi, vj] = C[vi, vj] + {product}\n"
        );
        let program = parse(&func(&params, &body));
        let contraction = space::contraction(&program).unwrap();
        (program, contraction)
    }
}
