//! Whether a row's numbers agree with each other and with a product, and what follows from them.
use super::{Row, RowError, Rows};
use satune_ir::term::tensor::Wmma;
use satune_ir::term::{Axis, Contraction, OperandInfo, Side};
use std::borrow::Cow;

type Fits<T> = Result<T, RowError>;

/// What the numbers of a row come to.
pub(super) struct Fit {
    /// What multiplies.
    pub op: Wmma,
    /// Whether A is stored as k x m, B as n x k.
    pub transposed: [bool; 2],
    /// Rows of A's, B's and C's tiles in shared memory; how long these are the row says.
    pub rows: [i64; 3],
    /// Rows and columns of C that a warp stores.
    pub warp: [i64; 2],
    /// Elements along k of a tile.
    pub k: i64,
    /// Vectors whose elements are no run of addresses.
    pub scattered: Vec<String>,
}

/// What of a row other schedules on tensor cores have, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// A block's tile along m, n and k.
    pub block: [i64; 3],
    /// A warp's along m and n.
    pub warp: [i64; 2],
    /// Threads of a block.
    pub threads: i64,
}

/// The product whose result is stored by rows, as te's dense stores it and wmma does: i runs along C's rows in memory, and A
/// is the factor that has them.
pub(super) fn by_rows(contraction: &Contraction) -> Cow<'_, Contraction> {
    match contraction.c.dims[..] == [Axis::N, Axis::M] {
        true => Cow::Owned(contraction.transposed()),
        false => Cow::Borrowed(contraction),
    }
}

fn disagree<T>(reason: String) -> Fits<T> {
    Err(RowError::Disagree(reason))
}

/// Parts of what is left of an extent.
fn divide(left: i64, of: &str, name: &str, parts: i64) -> Fits<i64> {
    if parts < 1 || left % parts != 0 {
        return disagree(format!("{name} is {parts}, but {of} is {left} there, which {parts} does not divide"));
    }
    Ok(left / parts)
}

/// A number that follows from others.
fn follows(name: &str, value: i64, what: &str, of: [i64; 2]) -> Fits<()> {
    let [x, y] = of;
    if value != x * y {
        return disagree(format!("{name} is {value}, but {what} {x} x {y} = {}", x * y));
    }
    Ok(())
}

impl Fit {
    pub fn of(row: &Row, contraction: &Contraction) -> Fits<Fit> {
        let (op, transposed) = instruction(row, contraction)?;
        let [m, n] = [Axis::M, Axis::N].map(|axis| contraction.extent(axis));
        row.positions()?;
        row.threads()?;
        let (mut block, mut vector) = ([m, n], [m, n]);
        for (at, axis) in ["i", "j"].into_iter().enumerate() {
            let levels = [row.blocks, row.warps, row.lanes, row.serial];
            for (level, parts) in levels.into_iter().enumerate() {
                let name = format!("dense{axis}.{}innertileSpatial", "inner.".repeat(level));
                vector[at] = divide(vector[at], axis, &name, parts[at])?;
                if level == 0 {
                    block[at] = vector[at];
                }
            }
        }
        let mut scattered: Vec<String> = row.vector_of_results(vector, n).into_iter().collect();
        let mut warp = block;
        for (at, axis) in ["i", "j"].into_iter().enumerate() {
            let name = format!("dense.wmma.accumulator.sharedax{at}tileSpatial");
            warp[at] = divide(block[at], axis, &name, row.sums[at])?;
            divide(warp[at], axis, ["wmma_m", "wmma_n"][at], row.wmma[at])?;
        }
        let tiles = row.tiles(warp, contraction.extent(Axis::K))?;
        let [a, b] = [Side::A, Side::B].map(|side| {
            let (across, along) = (tiles[usize::from(side == Side::B)], tiles[2]);
            if transposed[usize::from(side == Side::B)] == (side == Side::A) {
                [along, across]
            } else {
                [across, along]
            }
        });
        let bytes = [contraction.a.dtype, contraction.b.dtype, contraction.accumulate].map(|t| i64::from(t.bytes()));
        let rows = [("A", row.a, a), ("B", row.b, b), ("dense.wmma.accumulator", row.c, block)];
        for ((name, of, [_, length]), bytes) in rows.into_iter().zip(bytes) {
            follows(&format!("{name}.shared_ax1"), of.length, "a row of the tile has", [1, length])?;
            aligned(name, of, bytes)?;
        }
        for (name, of, vector) in [("A", row.a, row.a_vector), ("B", row.b, row.b_vector)] {
            if vector < 1 {
                return disagree(format!("{name}.shared_vectorize is {vector}, and a vector has an element"));
            }
            if of.length % vector != 0 {
                scattered
                    .push(format!("those of {name}.shared, {vector} elements, go on in the next row of {}", of.length));
            }
        }
        Ok(Fit { op, transposed, rows: [a[0], b[0], block[0]], warp, k: tiles[2], scattered })
    }
}

/// What multiplies, and how A and B lie.
fn instruction(row: &Row, contraction: &Contraction) -> Fits<(Wmma, [bool; 2])> {
    let no = |reason: String| Err(RowError::Product(reason));
    if contraction.combine.is_some() || contraction.gather.is_some() {
        return no("it is no product of matrices as they lie in memory".into());
    }
    if contraction.iters.len() != 3 {
        return no("it has axes beside i, j and k; a batch has a template of its own".into());
    }
    // Whether it is stored as columns x rows.
    let stored = |operand: &OperandInfo, axes: [Axis; 2]| match operand.dims[..] {
        [row, column] if [row, column] == axes => Ok(false),
        [row, column] if [column, row] == axes => Ok(true),
        _ => Err(RowError::Product(format!("`{}` is no matrix", operand.name))),
    };
    let transposed = [stored(&contraction.a, [Axis::M, Axis::K])?, stored(&contraction.b, [Axis::K, Axis::N])?];
    stored(&contraction.c, [Axis::M, Axis::N])?;
    let types = [contraction.a.dtype, contraction.accumulate];
    let fits = |op: &Wmma| op.extents().map(i64::from) == row.wmma && [op.operand, op.accumulator()] == types;
    let op = Wmma::all().find(fits).filter(|_| contraction.b.dtype == contraction.a.dtype);
    let Some(op) = op else {
        let ([m, n, k], [operand, sum]) = (row.wmma, types.map(|t| t.name()));
        return no(format!(
            "no wmma has m, n, k = {m}, {n}, {k} for {operand} with sums in {sum}; there are 16, 16, 16 and 32, 8, 16 and \
             8, 32, 16, of float16 in float16 or float32, bfloat16 in float32, int8 in int32"
        ));
    };
    Ok((op, transposed))
}

/// wmma takes rows that begin at multiples of 16 bytes.
fn aligned(name: &str, rows: Rows, bytes: i64) -> Fits<()> {
    let pitch = rows.pitch() * bytes;
    if pitch % 16 != 0 {
        return disagree(format!(
            "{name}.shared_ax1 + {name}.shared_offset = {} elements of {bytes} bytes are {pitch} bytes from row to row, and \
             wmma takes multiples of 16",
            rows.pitch()
        ));
    }
    Ok(())
}

impl Row {
    /// What blocks and warps take of a product.
    ///
    /// # Errors
    /// Where the row is none of the product.
    pub fn tile(&self, contraction: &Contraction) -> Result<Tile, RowError> {
        let stored = by_rows(contraction);
        let fit = Fit::of(self, &stored)?;
        let (mut block, mut warp) = ([fit.rows[2], self.c.length], fit.warp);
        if matches!(stored, Cow::Owned(_)) {
            block.reverse();
            warp.reverse();
        }
        let [m, n] = block;
        Ok(Tile { block: [m, n, fit.k], warp, threads: self.threads_x * self.threads_y })
    }

    /// The vectors of the row whose elements are no affine run of addresses, and so are loaded and stored one by one; none where
    /// every vector is one.
    ///
    /// # Errors
    /// Where the row is none of the product.
    pub fn scattered(&self, contraction: &Contraction) -> Result<Option<String>, RowError> {
        let Fit { scattered, .. } = Fit::of(self, &by_rows(contraction))?;
        Ok((!scattered.is_empty()).then(|| {
            let vectors = scattered.join(", ");
            format!(
                "the addresses of some vectors are no affine run with step 1, and their elements are accessed one by one: {vectors}"
            )
        }))
    }

    /// Where stages stand.
    fn positions(&self) -> Fits<()> {
        let no = |reason: String| Err(RowError::Position(reason));
        match self.result_at {
            1 => {}
            0 => {
                return no(
                    "dense_shared_pos is 0, above the loop over blocks, and no two blocks share memory; it is 1".into()
                )
            }
            at => {
                return no(format!(
                "dense_shared_pos is {at}, below loops that are bound to threads: the warps that store C's tile are \
                     bound to threadIdx.y again; it is 1, below the blocks"
            ))
            }
        }
        if self.sums_at > 1 {
            return no(format!(
                "dense.wmma.accumulator.shared_local_pos is {}, in the middle of an instruction; it is 0 (sums of a warp's \
                 tile) or 1 (of one fragment)",
                self.sums_at
            ));
        }
        let [tiles, fragments] = [self.tiles_at, self.fragments_at];
        if fragments > 3 {
            return no(format!(
                "dense.wmma.accumulator_local_pos is {fragments}, and the sums have levels 0 to 2 of parts, and 3 of instructions"
            ));
        }
        if tiles > fragments {
            return no(format!(
                "dense.wmma.accumulator_shared_pos is {tiles} and dense.wmma.accumulator_local_pos {fragments}: fragments \
                 would be loaded before their tiles are copied; the first is no more than the second"
            ));
        }
        if self.unroll > 12 {
            return disagree(format!(
                "dense_unroll_pragma is {}, and 4^{0} is more steps than a loop has",
                self.unroll
            ));
        }
        Ok(())
    }

    /// Threads of a block.
    fn threads(&self) -> Fits<()> {
        follows("threadIdx.y", self.threads_y, "the loops of dense have", self.warps)?;
        follows("threadIdx.y", self.threads_y, "the tiles of C in shared memory have, in warps,", self.sums)?;
        follows("threadIdx.x", self.threads_x, "the loops of dense have", self.lanes)?;
        follows("threadIdx.x", self.threads_x, "wmma has the lanes of a warp,", [1, 32])?;
        if self.threads_x * self.threads_y > 1024 {
            let all = self.threads_x * self.threads_y;
            return disagree(format!(
                "threadIdx.x x threadIdx.y = {} x {} = {all} threads of a block, which has at most 1024",
                self.threads_x, self.threads_y
            ));
        }
        Ok(())
    }

    /// The last loops along i and j are one vector: the one whose elements do not lie side by side.
    fn vector_of_results(&self, [i, j]: [i64; 2], n: i64) -> Option<String> {
        // Where it takes whole rows of C and of its tile, these follow each other.
        let runs = i == 1 || (j == n && self.c.offset == 0);
        (!runs).then(|| format!("those of dense are {i} rows x {j} columns of C"))
    }

    /// What copies at the level of tiles take: rows of A, columns of B, both of all warps, and elements along k.
    fn tiles(&self, warp: [i64; 2], k: i64) -> Fits<[i64; 3]> {
        let sums = if self.sums_at == 0 { warp } else { [self.wmma[0], self.wmma[1]] };
        let mut left = [sums[0], sums[1], k];
        let mut at_level = left;
        for (level, parts) in (0..).zip(self.parts) {
            for (at, axis) in ["i.c", "j.c", "k"].into_iter().enumerate() {
                let name = format!("dense.wmma.accumulator{axis}{}tileAll", inner(level));
                left[at] = divide(left[at], axis, &name, parts[at])?;
            }
            if level <= self.tiles_at {
                at_level = left;
            }
        }
        for ((left, axis), (name, own)) in
            left.into_iter().zip(["i", "j", "k"]).zip(["wmma_m", "wmma_n", "wmma_k"].into_iter().zip(self.wmma))
        {
            divide(left, axis, name, own)?;
        }
        if self.tiles_at == 3 {
            at_level = self.wmma;
        }
        // From the first warp's to the end of the last one's: what lies between is copied with it.
        let [i, j] = [0, 1].map(|at| (self.sums[at] - 1) * warp[at] + at_level[at]);
        Ok([i, j, at_level[2]])
    }
}

/// The end of a loop's name at a level of parts.
fn inner(level: i64) -> &'static str {
    match level {
        0 => "",
        1 => ".inner",
        _ => ".inner.inner",
    }
}

#[cfg(test)]
mod tests {
    use crate::heron::testing::{product, row, ROW_1190, ROW_77};
    use crate::heron::{Row, RowError};

    /// What is told of a row after a change.
    fn told(text: &str, change: impl FnOnce(&mut Row)) -> RowError {
        let mut row = row(text);
        change(&mut row);
        row.trace(&product([1024; 3], "NT", ["float16"; 2]).1).unwrap_err()
    }

    #[test]
    fn numbers_that_disagree_are_told() {
        let cases: [(RowError, &str); 13] = [
            (told(ROW_77, |r| r.threads_y = 8), "threadIdx.y is 8, but the loops of dense have 16 x 1 = 16"),
            (
                told(ROW_77, |r| r.sums = [8, 1]),
                "threadIdx.y is 16, but the tiles of C in shared memory have, in warps, 8 x 1 = 8",
            ),
            (
                told(ROW_77, |r| (r.threads_x, r.lanes) = (64, [1, 64])),
                "threadIdx.x is 64, but wmma has the lanes of a warp, 1 x 32",
            ),
            (told(ROW_77, |r| (r.threads_y, r.warps, r.sums) = (64, [64, 1], [64, 1])), "32 x 64 = 2048 threads"),
            (told(ROW_77, |r| r.blocks[0] = 3), "densei.innertileSpatial is 3, but i is 1024 there"),
            (told(ROW_77, |r| r.serial[0] = 0), "densei.inner.inner.inner.innertileSpatial is 0"),
            (
                told(ROW_77, |r| r.c.length = 32),
                "dense.wmma.accumulator.shared_ax1 is 32, but a row of the tile has 1 x 64 = 64",
            ),
            (told(ROW_77, |r| r.b.length = 32), "B.shared_ax1 is 32, but a row of the tile has 1 x 16 = 16"),
            (told(ROW_77, |r| r.parts[0][2] = 48), "dense.wmma.accumulatorktileAll is 48, but k is 1024 there"),
            (told(ROW_77, |r| r.parts[2][1] = 2), "wmma_n is 16, but j is 8 there"),
            (told(ROW_1190, |r| r.a.offset = 4), "36 elements of 2 bytes are 72 bytes from row to row"),
            (told(ROW_1190, |r| r.unroll = 13), "dense_unroll_pragma is 13"),
            (told(ROW_77, |r| r.wmma[1] = 8), "no wmma has m, n, k = 16, 8, 16 for float16 with sums in float16"),
        ];
        for (error, part) in cases {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn what_is_no_kernel_is_told() {
        for (error, part) in [
            (told(ROW_77, |r| r.result_at = 0), "no two blocks share memory"),
            (told(ROW_77, |r| r.result_at = 2), "bound to threadIdx.y again"),
            (told(ROW_77, |r| r.sums_at = 2), "in the middle of an instruction"),
            (told(ROW_77, |r| r.fragments_at = 4), "levels 0 to 2 of parts"),
            (told(ROW_77, |r| r.fragments_at = 2), "before their tiles are copied"),
        ] {
            assert!(matches!(error, RowError::Position(_)) && error.to_string().contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn vectors_of_elements_that_are_apart_are_told() {
        let product = product([1024; 3], "NT", ["float16"; 2]).1;
        let told = |text: &str, change: &dyn Fn(&mut Row)| {
            let mut row = row(text);
            change(&mut row);
            assert!(row.trace(&product).is_ok());
            row.scattered(&product).unwrap()
        };
        assert_eq!(told(ROW_77, &|_| ()), None);
        for (told, part) in [
            (told(ROW_77, &|r| r.serial = [8, 1]), "2 rows x 2 columns of C"),
            (told(ROW_77, &|r| (r.lanes, r.serial) = ([1, 32], [2, 2])), "8 rows x 1 columns of C"),
            (told(ROW_1190, &|r| r.a_vector = 64), "A.shared, 64 elements, go on in the next row of 32"),
        ] {
            assert!(told.as_ref().is_some_and(|told| told.contains(part)), "{part}: {told:?}");
        }
    }

    #[test]
    fn other_products_are_told() {
        for (product, part) in [
            (product([1024; 3], "NT", ["float32"; 2]), "float32 with sums in float32"),
            (product([1000; 3], "NT", ["float16"; 2]), "densei.inner.innertileSpatial is 16, but i is 250 there"),
        ] {
            let error = row(ROW_77).trace(&product.1).unwrap_err();
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
}
