//! Sectors and instructions of the accesses that warps make along rows.
use satune_ir::machine::{self, SECTOR};
use satune_ir::term::stream::{Access, StreamBlock};

/// Instructions of a kernel's accesses to one buffer, and the sectors that they touch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Touched {
    pub instructions: f64,
    pub sectors: f64,
}

impl Touched {
    pub fn times(self, n: f64) -> Touched {
        Touched { instructions: self.instructions * n, sectors: self.sectors * n }
    }
}

/// Sectors of `count` elements of `bytes` from byte `start` on.
fn run(start: i64, count: i64, bytes: i64) -> i64 {
    let sector = SECTOR as i64;
    if count <= 0 {
        return 0;
    }
    (start + count * bytes - 1) / sector - start / sector + 1
}

/// One row of `columns` elements from byte `base` on, read by warps of 32 lanes, each with `vector` elements, `chunk`
/// elements at a time where a warp has less than 32 lanes of the row.
fn row(base: i64, columns: i64, chunk: i64, bytes: i64) -> Touched {
    let mut out = Touched::default();
    let mut at = 0;
    // Runs that begin at whole sectors all touch the same number.
    if (base % SECTOR as i64, chunk * bytes % SECTOR as i64) == (0, 0) {
        let whole = columns / chunk;
        let rest = columns % chunk;
        out.instructions = whole as f64 + if rest > 0 { 1.0 } else { 0.0 };
        out.sectors = (whole * run(0, chunk, bytes) + run(0, rest, bytes)) as f64;
        return out;
    }
    while at < columns {
        out.instructions += 1.0;
        out.sectors += run(base + at * bytes, chunk.min(columns - at), bytes) as f64;
        at += chunk;
    }
    out
}

/// `rows` rows of `columns` elements, one after the other in memory, each read once by chunks.
pub(super) fn rows(rows: i64, columns: i64, chunk: i64, bytes: i64) -> Touched {
    let sector = SECTOR as i64;
    let pitch = columns * bytes % sector;
    if pitch == 0 {
        return row(0, columns, chunk, bytes).times(rows as f64);
    }
    let period = sector / gcd(pitch, sector);
    let mut out = Touched::default();
    for residue in 0..period.min(rows) {
        let count = (rows - residue + period - 1) / period;
        let one = row(residue * pitch % sector, columns, chunk, bytes).times(count as f64);
        out.instructions += one.instructions;
        out.sectors += one.sectors;
    }
    out
}

/// Rows of which a part of a warp, so many threads, each takes one: where a warp's lanes are.
pub(super) struct ShortRows {
    pub rows: i64,
    pub threads: i64,
}

/// Warps whose accesses are looked at one by one (estimate).
const LOOKED_AT: i64 = 32;

impl ShortRows {
    /// All warps.
    pub fn warps(&self) -> f64 {
        ((self.rows * self.threads + 31) / 32) as f64
    }

    /// Accesses along rows of `columns` elements of `bytes`, `vector` at once.
    pub fn touched(&self, columns: i64, vector: i64, bytes: i64, places: &Places) -> Touched {
        let (all, tile) = (self.warps(), self.threads * vector);
        let (looked, laps) = (LOOKED_AT.min(all as i64).max(1), (columns + tile - 1) / tile);
        let along: Vec<i64> = (0..columns).step_by(vector.max(1) as usize).map(|at| places.column(at)).collect();
        let mut sectors = 0;
        let mut addresses: Vec<u64> = Vec::with_capacity(32);
        for warp in 0..looked {
            let lanes = 32 * warp..32 * (warp + 1);
            let lanes = lanes.map(|at| (at / self.threads, (at % self.threads) as usize));
            let lanes: Vec<(i64, usize)> = lanes.filter(|(row, _)| *row < self.rows).collect();
            let rows: Vec<(i64, usize)> = lanes.into_iter().map(|(row, lane)| (places.row(row), lane)).collect();
            for lap in 0..laps {
                let first = (lap * self.threads) as usize;
                let here = rows.iter().filter_map(|(row, lane)| along.get(first + lane).map(|column| row + column));
                addresses.clear();
                addresses.extend(here.map(|element| (element * bytes) as u64));
                sectors += i64::from(machine::touched(&addresses, (vector * bytes) as u32));
            }
        }
        Touched { instructions: all * laps as f64, sectors: sectors as f64 * all / looked as f64 }
    }

    /// Wavefronts of an access along rows in shared memory, each `pitch` elements after the one before: (taken, least). All lanes
    /// take part at the end of a row, too: it has room for them.
    pub fn wavefronts(&self, vector: i64, bytes: i64, pitch: i64) -> [f64; 2] {
        let place = |lane: i64| (lane / self.threads * pitch + lane % self.threads * vector) * bytes;
        let addresses: Vec<(u32, u64)> = (0..32).map(|lane| (lane as u32, place(lane) as u64)).collect();
        let (taken, least) = machine::wavefronts(&addresses, (vector * bytes) as u32);
        [taken, least].map(f64::from)
    }
}

/// Which element of a buffer an access touches, in two parts: by the number of its row, over the first iterators of its block, and by
/// that of its column, over the others.
pub(super) struct Places {
    /// (extent, stride) of the iterators of rows, and of columns.
    iters: [Vec<(i64, i64)>; 2],
}

impl Places {
    /// Of a block's access; rows of which is not known where they are count as far apart.
    pub fn of(b: &StreamBlock, access: &Access, row_iters: usize) -> Places {
        if !access.known {
            return Places { iters: [vec![(i64::MAX, 1 << 12)], vec![(i64::MAX, 1)]] };
        }
        let mut all: Vec<(i64, i64)> = b.iters.iter().map(|i| (i.extent.max(1), 0)).collect();
        let mut stride = 1_i64;
        for i in access.dims.iter().rev().flatten() {
            all[*i].1 += stride;
            stride = stride.saturating_mul(b.iters[*i].extent);
        }
        let columns = all.split_off(row_iters.min(all.len()));
        Places { iters: [all, columns] }
    }

    fn place(iters: &[(i64, i64)], number: i64) -> i64 {
        let mut left = number;
        let of = |(extent, stride): &(i64, i64)| {
            let digit = left % extent;
            left /= extent;
            digit * stride
        };
        iters.iter().rev().map(of).sum()
    }

    fn row(&self, number: i64) -> i64 {
        Places::place(&self.iters[0], number)
    }

    fn column(&self, number: i64) -> i64 {
        Places::place(&self.iters[1], number)
    }
}

/// Rows that are read in parts, each by wide copies of whole tiles: what lies beyond a part is read too, as far as the row goes
/// (it is there, and nobody uses it).
pub(super) struct Parted {
    pub rows: i64,
    pub parts: i64,
    /// Elements of a part.
    pub length: i64,
    /// Elements that a team reads at once.
    pub tile: i64,
}

impl Parted {
    /// The accesses, by chunks as of [`rows`].
    pub fn touched(&self, chunk: i64, bytes: i64) -> Touched {
        let sector = SECTOR as i64;
        let Parted { rows, parts, length, tile } = *self;
        let columns = parts * length;
        let reach = (length + tile - 1) / tile * tile;
        let mut out = Touched::default();
        // Where parts and rows begin within a sector repeats.
        let period = |pitch: i64| sector / gcd(pitch * bytes % sector, sector);
        for first_row in 0..period(columns).min(rows) {
            let alike_rows = (rows - first_row + period(columns) - 1) / period(columns);
            let base = |part: i64| (first_row * columns + part * length) * bytes % sector;
            let mut add = |part: i64, count: i64| {
                let one = row(base(part), reach.min(columns - part * length), chunk, bytes);
                let all = one.times((count * alike_rows) as f64);
                out.instructions += all.instructions;
                out.sectors += all.sectors;
            };
            // The last few end with the row, the others are alike.
            let inside = (parts - (reach + length - 1) / length + 1).max(0);
            for part in 0..period(length).min(inside) {
                add(part, (inside - part + period(length) - 1) / period(length));
            }
            for part in inside..parts {
                add(part, 1);
            }
        }
        out
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satune_ir::machine::touched;

    #[test]
    fn rows_touch_what_the_machine_model_says() {
        for (m, n, v, bytes) in [(5, 200, 4, 4), (7, 100, 4, 4), (9, 33, 1, 4), (3, 136, 8, 2), (6, 50, 2, 2)] {
            let mut expected = Touched::default();
            for r in 0..m {
                let mut at = 0;
                while at < n {
                    let lanes = (0..32).map(|l| at + l * v).filter(|c| *c < n);
                    let addresses: Vec<u64> = lanes.map(|c| ((r * n + c) * bytes) as u64).collect();
                    expected.instructions += 1.0;
                    expected.sectors += f64::from(touched(&addresses, (v * bytes) as u32));
                    at += 32 * v;
                }
            }
            assert_eq!(rows(m, n, 32 * v, bytes), expected, "{m} {n} {v} {bytes}");
        }
    }
}
