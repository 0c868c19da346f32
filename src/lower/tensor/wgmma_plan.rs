//! Schedules on `wgmma`, and when they fit.
use super::*;

/// A schedule on `wgmma`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WgmmaPlan {
    /// Tile of a block: m, n, k. k takes 128 bytes; n is one instruction's (at most 256).
    pub tile: [i64; 3],
    /// Groups of four warps that multiply; each takes `tile m / consumers` rows, a multiple of 64.
    pub consumers: u32,
    /// Instead, each of two consumers takes whole tiles, in turn: one multiplies while the other stores.
    pub ping_pong: bool,
    /// Tiles in the ring, 2 at least.
    pub stages: u32,
    /// Rows of tiles that neighbouring blocks walk down before the next column.
    pub group: i64,
    /// Blocks, each of which walks over tiles; `None`: one per tile.
    pub blocks: Option<u32>,
    /// Parts of k, summed by a second kernel.
    pub split_k: i64,
    /// How C is written.
    pub store: TileStore,
}

/// How C is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileStore {
    /// From the accumulators.
    Direct,
    /// `stmatrix` into shared memory, from there by the TMA (16-bit types).
    Tma,
}

/// Threads of a group of four warps.
pub(super) const GROUP: i64 = 128;

impl WgmmaPlan {
    /// Whether the plan fits the problem.
    ///
    /// # Errors
    /// The condition that does not hold.
    pub fn check(&self, gemm: &Gemm) -> Result<(), TensorError> {
        check(gemm, self)
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        (self.consumers + 1) * GROUP as u32
    }

    /// Registers of a producer's and of a consumer's thread, where they part with the launch's.
    pub fn registers(&self) -> Option<(u32, u32)> {
        match self.consumers {
            1 => None,
            2 => Some((40, 232)),
            _ => Some((32, 160)),
        }
    }

    /// Shared memory per block, bytes.
    pub fn shared_bytes(&self, gemm: &Gemm) -> i64 {
        let [m, n, _] = self.tile;
        let ring = i64::from(self.stages) * ((m + n) * GROUP + 16) + if self.ping_pong { 16 } else { 0 };
        ring + if self.store == TileStore::Tma { self.parts() * m * n * i64::from(gemm.output.bytes()) } else { 0 }
    }

    /// Tiles of C that are in work at once.
    pub(super) fn parts(&self) -> i64 {
        if self.ping_pong {
            i64::from(self.consumers)
        } else {
            1
        }
    }

    /// Blocks of 64 rows of a consumer.
    pub(super) fn row_blocks(&self) -> i64 {
        self.tile[0] * self.parts() / i64::from(self.consumers) / 64
    }
}

fn check(gemm: &Gemm, plan: &WgmmaPlan) -> Result<(), TensorError> {
    check_problem(gemm)?;
    let bytes = i64::from(gemm.operand.bytes());
    if !matches!(gemm.operand, DType::F16 | DType::BF16 | DType::F32 | DType::I8) {
        return Err(TensorError::OperandType { instruction: "wgmma".into(), operand: gemm.operand });
    }
    let [m, n, k] = plan.tile;
    if !(1..=3).contains(&plan.consumers) || plan.ping_pong && plan.consumers != 2 {
        return Err(TensorError::Threads(i64::from(plan.threads())));
    }
    if !(2..=16).contains(&plan.stages) {
        return Err(TensorError::Stages(plan.stages));
    }
    multiple("block tile m", m, 64 * i64::from(plan.consumers) / plan.parts())?;
    let small = matches!(gemm.operand, DType::I8) && n > 32;
    multiple(
        "block tile n",
        n,
        if gemm.b_transposed {
            if small {
                16
            } else {
                8
            }
        } else {
            64
        },
    )?;
    if m > 256 || n > 256 {
        return Err(TensorError::TensorMap("the tile", "a box has at most 256 rows"));
    }
    if k * bytes != 128 {
        return Err(TensorError::Multiple { what: "bytes of the tile along k", value: k * bytes, of: 128 });
    }
    multiple("raster group", plan.group, 1)?;
    multiple("split_k", plan.split_k, 1)?;
    let tiles = (gemm.k + k - 1) / k;
    if plan.split_k > tiles {
        return Err(TensorError::Split { parts: plan.split_k, tiles });
    }
    if plan.split_k > 1 && plan.store == TileStore::Tma {
        return Err(TensorError::Store("split-K stores its sums at once"));
    }
    for (side, across) in [("A", gemm.a_transposed), ("B", !gemm.b_transposed)] {
        if across && bytes != 2 {
            return Err(TensorError::Order { operand: gemm.operand, side });
        }
    }
    let rows = [
        ("A", if gemm.a_transposed { gemm.m } else { gemm.k } * bytes),
        ("B", if gemm.b_transposed { gemm.k } else { gemm.n } * bytes),
    ];
    let stored = (plan.store == TileStore::Tma).then_some(("C", gemm.n * i64::from(gemm.output.bytes())));
    for (name, row) in rows.into_iter().chain(stored) {
        if row % 16 != 0 {
            return Err(TensorError::TensorMap(name, "its rows are not multiples of 16 bytes"));
        }
    }
    if plan.store == TileStore::Tma && (gemm.output.bytes() != 2 || n % 64 != 0) {
        return Err(TensorError::Store("the TMA stores 16-bit types in boxes of 64 columns"));
    }
    let (sums, most) = (plan.row_blocks() * n / 2, plan.registers().map_or(255, |r| i64::from(r.1)) - 40);
    if sums > most {
        return Err(TensorError::Accumulators(sums, most));
    }
    let bytes = plan.shared_bytes(gemm);
    if bytes > MOST_SHARED {
        return Err(TensorError::Shared { bytes, most: MOST_SHARED });
    }
    Ok(())
}
