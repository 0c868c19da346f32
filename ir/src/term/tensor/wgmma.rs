//! Schedules on `wgmma` and `tcgen05`, and when they fit.
use super::{boxes::Part, multiple, tiles, Boxes, Consumers, Gemm, GroupMma, Raster, StreamK, TensorError};
use crate::term::{Axis, Place, Side};
use crate::DType;
use serde::{Deserialize, Serialize};

/// A schedule on `wgmma`, or `tcgen05`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WgmmaPlan {
    /// The instruction that multiplies.
    #[serde(default, skip_serializing_if = "GroupMma::is_wgmma")]
    pub op: GroupMma,
    /// The transposed product `C^T = B^T A^T` is computed: m of all that follows runs over columns of C.
    #[serde(default)]
    pub swapped: bool,
    /// Tile of a block: m, n, k. k takes 128 or 256 bytes ([`tile_k`]); n is one instruction's (at most 256).
    pub tile: [i64; 3],
    /// Groups of four warps that multiply; each takes `tile m / consumers` rows, a multiple of the
    /// instruction's.
    pub consumers: u32,
    /// They copy the tiles, too; else a producer has the TMA bring them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_threads: bool,
    /// Instead, each of two consumers takes whole tiles, in turn: one multiplies while the other stores.
    pub ping_pong: bool,
    /// Tiles in the ring, 2 at least.
    pub stages: u32,
    /// Whether a consumer's blocks of rows go through all of a tile along k one after the other (else step by step).
    pub by_rows: bool,
    /// Whether a consumer waits for a tile's instructions at once and frees its place in the ring (else one tile later). Of `tcgen05`
    /// the instructions say so themselves, and nobody waits.
    pub eager_release: bool,
    /// Whether each warp of a consumer says that a tile has been read (else one thread for its four warps).
    #[serde(default)]
    pub arrive_per_warp: bool,
    /// Order of the tiles.
    pub raster: Raster,
    /// Blocks, each of which walks over tiles; `None`: one per tile.
    pub blocks: Option<u32>,
    /// Neighbouring tiles along m and n whose blocks form a cluster: the TMA brings what they share once, to all of them.
    /// A's tile is shared by those along n, B's by those along m.
    #[serde(default = "alone")]
    pub cluster: [u32; 2],
    /// Parts of k, summed by a second kernel.
    pub split_k: i64,
    /// Instead of tiles, the steps along k of all tiles are dealt out to the blocks evenly; a second kernel adds what
    /// several blocks have of a tile. See [`StreamK`].
    #[serde(default)]
    pub stream_k: bool,
    /// How C is written.
    pub store: TileStore,
}

/// How C is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TileStore {
    /// From the accumulators.
    Direct,
    /// Into shared memory (16-bit types by `stmatrix`), from there by the TMA; where that does not take C's rows ([`by_rows`]), by the
    /// threads, row by row.
    Tma,
    /// The same box by box of an instruction's rows and 128 bytes: shared memory has room for two of each consumer, not for the whole tile.
    Boxes,
}

impl TileStore {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            TileStore::Direct => "from the accumulators",
            TileStore::Tma => "by shared memory and TMA",
            TileStore::Boxes => "by shared memory and TMA in boxes",
        }
    }

    /// How C is written that is there while it is made.
    pub fn of_place(place: Place) -> TileStore {
        match place {
            Place::Shared(_) => TileStore::Tma,
            Place::Strip(..) => TileStore::Boxes,
            _ => TileStore::Direct,
        }
    }
}

/// Threads of a group of four warps.
const GROUP: i64 = 128;

/// Bytes of a row that the swizzle permutes: where k runs along memory, those of a box.
const SPAN: i64 = 128;

/// Columns of 16-bit types whose rows swizzles of 128, 64 and 32 bytes permute.
const BOX_COLUMNS: [i64; 3] = [64, 32, 16];

/// Spans of a tile along k, at most. Two halve the barriers per value of k, for places in the ring twice as large.
const MOST_SPANS: i64 = 2;

/// Boxes of C of a consumer that are in shared memory where they go one by one: each has lines for an instruction's rows.
pub const BOXES: i64 = 2;

/// Elements of a line of a box in which the TMA stores results of a type: what the swizzle permutes.
pub fn box_line(output: DType) -> i64 {
    SPAN / i64::from(output.bytes()).max(1)
}

/// Columns of tensor memory of a multiprocessor: 128 lanes of 32 bits each.
pub const COLUMNS: i64 = 512;

/// Blocks of a cluster that every GPU with clusters runs, at most.
const MOST_CLUSTER: u32 = 8;

/// Rows of a part of a tile that every tile consists of.
const LEAST_ROWS: i64 = 8;

/// No cluster: how plans were before there were any.
fn alone() -> [u32; 2] {
    [1, 1]
}

/// The most instructions in a loop whose descriptors, two of two words each, have room in the 63 uniform registers beside what
/// else is there.
pub const MOST_KEPT: usize = 12;

impl WgmmaPlan {
    /// A plan without any refinement: a block per tile, in rows, which stores its sums itself.
    pub fn plain(tile: [i64; 3], consumers: u32, stages: u32) -> WgmmaPlan {
        WgmmaPlan {
            op: GroupMma::Wgmma,
            swapped: false,
            tile,
            consumers,
            by_threads: false,
            ping_pong: false,
            stages,
            by_rows: false,
            eager_release: false,
            arrive_per_warp: false,
            raster: Raster::rows(1),
            blocks: None,
            cluster: alone(),
            split_k: 1,
            stream_k: false,
            store: TileStore::Direct,
        }
    }

    /// The same of a team.
    pub fn of_team(team: Consumers, tile: [i64; 3], stages: u32) -> WgmmaPlan {
        let Consumers { op, count, ping_pong, by_threads } = team;
        WgmmaPlan { op, ping_pong, by_threads, ..WgmmaPlan::plain(tile, count, stages) }
    }

    /// Who multiplies.
    pub fn team(&self) -> Consumers {
        Consumers { op: self.op, count: self.consumers, ping_pong: self.ping_pong, by_threads: self.by_threads }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.team().threads()
    }

    /// Registers of a producer's and of a consumer's thread, where they part with the launch's.
    pub fn registers(&self, gemm: &Gemm) -> Option<(u32, u32)> {
        // Sums in tensor memory leave the launch's registers enough.
        let deals = self.op.holds_sums() && !self.by_threads;
        dealt_registers(self.consumers, gemm.sum_registers(self.sums())).filter(|_| deals)
    }

    /// Sums of a consumer, for each of its threads.
    pub fn sums(&self) -> i64 {
        self.row_blocks() * self.op.rows() * self.tile[1] / GROUP
    }

    /// Shared memory per block, bytes.
    pub fn shared_bytes(&self, gemm: &Gemm) -> i64 {
        let [m, n, k] = self.tile;
        let step = (m + n) * k * i64::from(gemm.operand.bytes());
        // Beside a tile its barriers: of a producer, when it is there, and when it was read.
        let barriers = if self.by_threads { 0 } else { 16 };
        let ring = i64::from(self.stages) * (step + barriers) + if self.ping_pong { 16 } else { 0 };
        // Where tensor memory begins, and a barrier that says when a consumer's sums are there.
        let ring = ring + if self.op.holds_sums() { 0 } else { 8 + 8 * i64::from(self.consumers) };
        ring + i64::from(self.consumers) * self.staged(gemm.output) * i64::from(gemm.output.bytes())
    }

    /// Elements of C that a consumer has in shared memory at once.
    pub fn staged(&self, output: DType) -> i64 {
        match self.store {
            TileStore::Direct => 0,
            TileStore::Tma => self.row_blocks() * self.op.rows() * self.tile[1],
            TileStore::Boxes => BOXES * self.op.rows() * box_line(output),
        }
    }

    /// Blocks of a cluster.
    pub fn cluster_size(&self) -> u32 {
        self.cluster[0].saturating_mul(self.cluster[1])
    }

    /// Whether the kernel writes partial sums, which a second one adds.
    pub fn partial(&self) -> bool {
        self.split_k > 1 || self.stream_k
    }

    /// How the steps of all tiles are dealt out to its blocks; `None` where they take whole tiles.
    pub fn dealt(&self, gemm: &Gemm) -> Option<StreamK> {
        let blocks = self.blocks.filter(|_| self.stream_k)?;
        let [m, n, k] = self.tile;
        let gemm = gemm.oriented(self.swapped);
        let tiles_of_c = gemm.batch * tiles(gemm.m, m) * tiles(gemm.n, n);
        Some(StreamK { blocks: i64::from(blocks).max(1), tiles: tiles_of_c, steps: tiles(gemm.k, k) })
    }

    /// Partial sums that a result may have.
    pub fn sums_of_result(&self, gemm: &Gemm) -> i64 {
        self.dealt(gemm).map_or(self.split_k, |stream| stream.parts().max(2))
    }

    /// Arrivals of a consumer that free a tile's place in the ring, at each block that has it.
    pub fn arrivals(&self) -> u32 {
        if self.arrive_per_warp {
            GROUP as u32 / 32
        } else {
            1
        }
    }

    /// Tiles of C that are in work at once.
    pub fn parts(&self) -> i64 {
        self.team().tiles()
    }

    /// Blocks of an instruction's rows of a consumer.
    pub fn row_blocks(&self) -> i64 {
        self.team().row_blocks(self.tile[0])
    }

    /// Different instructions of a consumer in its loop over k, which is unrolled by the ring's length; stream-K's is not.
    pub fn instructions(&self, operand: DType) -> i64 {
        let stages = if self.stream_k { 1 } else { i64::from(self.stages) };
        self.row_blocks() * (self.tile[2] * i64::from(operand.bytes()) / 32) * stages
    }

    /// Tiles of C, all products and parts of k together.
    pub fn tiles(&self, gemm: &Gemm) -> i64 {
        let gemm = gemm.oriented(self.swapped);
        gemm.batch * tiles(gemm.m, self.tile[0]) * tiles(gemm.n, self.tile[1]) * self.split_k
    }

    /// Blocks of the launch.
    pub fn grid(&self, gemm: &Gemm) -> i64 {
        let total = if self.stream_k { i64::MAX } else { self.tiles(gemm) };
        self.blocks.map_or(total, |grid| i64::from(grid.max(1)).min(total))
    }

    /// The schedule in a few lines for people.
    pub fn describe(&self) -> Vec<String> {
        let [m, n, k] = self.tile;
        vec![
            format!(
                "{} m{}n{n}{}, {}{}{}{}",
                self.op,
                self.op.rows(),
                super::mma::swapped_text(self.swapped),
                self.raster.oriented(self.swapped).text(),
                match self.cluster {
                    [1, 1] => String::new(),
                    [m, n] => format!(", clusters of {m}x{n} tiles"),
                },
                self.blocks.map_or(String::new(), |b| {
                    let what =
                        if self.stream_k { "share the tiles' steps along k evenly" } else { "walk over the tiles" };
                    format!(", {b} blocks {what}")
                }),
                if self.split_k > 1 { format!(", k in {} parts", self.split_k) } else { String::new() }
            ),
            format!(
                "block tile {m}x{n}, k {k} ({}, {} stages, freed {}{}), {} threads",
                if self.by_threads { "by threads" } else { "TMA" },
                self.stages,
                match (self.op.holds_sums(), self.eager_release) {
                    (false, _) => "by its instructions",
                    (true, true) => "at once",
                    (true, false) => "a tile later",
                },
                if self.arrive_per_warp { ", an arrival per warp" } else { "" },
                self.threads()
            ),
            format!(
                "{} consumers{} of {} x {} rows{}; C {}",
                self.consumers,
                if self.ping_pong { " in turn" } else { "" },
                self.row_blocks(),
                self.op.rows(),
                if self.by_rows && self.row_blocks() > 1 { ", one after the other" } else { "" },
                self.store.text()
            ),
        ]
    }
}

/// Registers of a thread beside its sums: addresses, counters, parities (from machine code).
pub(super) const BESIDE_SUMS: i64 = 40;

/// Registers of a thread beside an instruction's sums while it runs (from ptxas: m64n224 needs 138).
const BESIDE_INSTRUCTION: i64 = 26;

/// `setmaxnreg` of the producer and of consumers with so many registers of sums: the producer keeps as many of 40, 32 and 24 as
/// leaves consumers what they need. Each is a multiple of 8 from 24 to 240, and together they have what the launch gave to all (PTX ISA,
/// `setmaxnreg`). `None`: one consumer keeps what the launch gives.
pub fn dealt_registers(consumers: u32, sums: i64) -> Option<(u32, u32)> {
    if consumers < 2 {
        return None;
    }
    let groups = consumers + 1;
    let given = 65536 / (groups * GROUP as u32) / 8 * 8 * groups;
    let of = |producer: u32| (producer, ((given - producer) / consumers / 8 * 8).min(240));
    let enough = |budget: &(u32, u32)| sums + BESIDE_SUMS <= i64::from(budget.1);
    Some([40, 32, 24].map(of).into_iter().find(enough).unwrap_or_else(|| of(24)))
}

/// The instruction takes the problem's operands, in their order of storage.
pub fn operands(gemm: &Gemm, op: GroupMma) -> Result<(), TensorError> {
    if !super::gemm::multiplies(gemm.operand) {
        return Err(TensorError::OperandType { instruction: op.name().into(), operand: gemm.operand });
    }
    // Sums of 16 bits stand by pairs in the registers of `wgmma`, and one by one in tensor memory.
    if gemm.f16_sums && !op.holds_sums() {
        let sums = [DType::F32, DType::F16];
        return Err(TensorError::SumType { instruction: op.name().into(), sums });
    }
    for (name, side) in [("A", Side::A), ("B", Side::B)] {
        if across(gemm, side) && gemm.operand.bytes() != 2 {
            return Err(TensorError::Order { instruction: op.name(), operand: gemm.operand, side: name });
        }
    }
    Ok(())
}

/// What only `wgmma` leaves open: its instructions' order, and who frees places in the ring.
pub(super) fn order(plan: &WgmmaPlan) -> Result<(), TensorError> {
    if !plan.op.holds_sums() && (plan.by_rows || plan.eager_release || plan.arrive_per_warp) {
        return Err(TensorError::Loop(
            "the instructions of tcgen05 free a tile's place themselves, in their one order",
        ));
    }
    Ok(())
}

/// One to three consumers; two where they take turns.
pub fn consumers(team: Consumers) -> Result<(), TensorError> {
    if !(1..=3).contains(&team.count) || team.ping_pong && team.count != 2 {
        return Err(TensorError::Threads(team.threads().into()));
    }
    Ok(())
}

/// The ring has a length that there is.
pub fn stages(stages: u32) -> Result<(), TensorError> {
    if (2..=16).contains(&stages) {
        Ok(())
    } else {
        Err(TensorError::Stages(stages))
    }
}

/// Whole instructions make the tile; the TMA moves it.
pub fn tile(gemm: &Gemm, [m, n, k]: [i64; 3], team: Consumers) -> Result<(), TensorError> {
    multiple("block tile m", m, team.op.rows() * team.at_tile())?;
    let step = match (across(gemm, Side::B), gemm.operand) {
        (true, _) => BOX_COLUMNS[2],
        _ if team.op == GroupMma::Tcgen05 => 16,
        (false, DType::I8) if n > 32 => 16,
        (false, _) => 8,
    };
    multiple("block tile n", n, step)?;
    if m > 256 || n > 256 {
        return Err(TensorError::TensorMap("the tile", "a box has at most 256 rows"));
    }
    let bytes = k * i64::from(gemm.operand.bytes());
    multiple("bytes of the tile along k", bytes, SPAN)?;
    if bytes > MOST_SPANS * SPAN {
        return Err(TensorError::TensorMap("the tile", "it has at most 256 bytes along k"));
    }
    for (name, side, tile, all) in [("A", Side::A, m, gemm.m), ("B", Side::B, n, gemm.n)] {
        if team.by_threads {
            continue;
        }
        boxes(gemm, side, [tile, k]).transpose()?;
        if all % tile != 0 && gemm.gathered(side).is_some_and(|of| of.shares(side.spatial())) {
            return Err(TensorError::TensorMap(name, "its last tile would reach into the next product's"));
        }
    }
    Ok(())
}

/// Columns of a box of an operand that is stored across k: the widest that make up all columns of its tile. A row of them is
/// what a swizzle permutes.
pub fn box_columns(extent: i64) -> i64 {
    BOX_COLUMNS.into_iter().find(|columns| extent % columns == 0).unwrap_or(BOX_COLUMNS[2])
}

/// Values of k in a tile of so many spans of the swizzle (of 128 bytes).
pub fn tile_k(operand: DType, spans: i64) -> i64 {
    spans * SPAN / i64::from(operand.bytes()).max(1)
}

/// Whole clusters make the grid, and each block brings an equal part of what it shares: whole atoms of eight rows.
pub fn cluster(
    gemm: &Gemm,
    [m, n, k]: [i64; 3],
    [along_m, along_n]: [u32; 2],
    blocks: Option<u32>,
) -> Result<(), TensorError> {
    let refuse = |why| Err(TensorError::Cluster { cluster: [along_m, along_n], why });
    let is_size = |extent: u32| extent.is_power_of_two() && extent <= MOST_CLUSTER;
    if !is_size(along_m) || !is_size(along_n) || along_m * along_n > MOST_CLUSTER {
        return refuse("a cluster has 1, 2, 4 or 8 blocks");
    }
    let (rows, columns) = (tiles(gemm.m, m), tiles(gemm.n, n));
    if rows % i64::from(along_m) != 0 || columns % i64::from(along_n) != 0 {
        return refuse("clusters do not divide the tiles");
    }
    if blocks.is_some_and(|b| b % (along_m * along_n) != 0) {
        return refuse("clusters do not divide the grid");
    }
    // Stored across k, a box is split along k.
    let whole = |across: bool, extent: i64, sharing: u32| {
        let box_rows = if across { k } else { extent };
        box_rows % (8 * i64::from(sharing)) == 0
    };
    if !whole(across(gemm, Side::A), m, along_n) || !whole(across(gemm, Side::B), n, along_m) {
        return refuse("a block's part of a shared tile is no multiple of eight rows");
    }
    Ok(())
}

/// Every part of k has a tile; where a tile beyond the end of k would be the next product's, or other pixels, there is none.
pub fn split(gemm: &Gemm, tile_k: i64, parts: i64) -> Result<(), TensorError> {
    super::mma::split(gemm, tile_k, parts)?;
    let ends_within = gemm.k % (tile_k * parts) != 0;
    for (name, side) in [("A", Side::A), ("B", Side::B)] {
        if gemm.batch > 1 && across(gemm, side) && ends_within && gemm.gathered(side).is_none() {
            return Err(TensorError::TensorMap(name, "its last tile along k would reach into the next product's"));
        }
        let boxes = boxes(gemm, side, [LEAST_ROWS, tile_k]).transpose()?;
        if ends_within && boxes.is_some_and(|boxes| !boxes.ends[1]) {
            return Err(TensorError::TensorMap(name, "its last tile along k would reach beyond the window"));
        }
    }
    Ok(())
}

/// An operand that is copied first: to rows that begin at multiples of 16 bytes, since the TMA takes no others; or to rows along k, since
/// `wgmma` reads elements of other than 16 bits along k alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlignedRows {
    /// Products.
    pub batch: i64,
    /// Rows of the copy, of all products.
    pub rows: i64,
    /// Elements of one.
    pub row: i64,
    /// Whether rows of the copy are columns of the operand.
    pub turned: bool,
    /// Elements from one to the next in the copy: a multiple of [`AlignedRows::unit`].
    pub pitch: i64,
    /// Elements of 16 bytes.
    pub unit: i64,
}

impl AlignedRows {
    /// Threads of a block that copies, and elements of each: enough loads are under way for DRAM to be busy.
    pub const THREADS: i64 = 256;
    pub const STEPS: i64 = 8;
    /// Rows and columns of a tile that a block turns.
    pub const SIDE: i64 = 32;

    /// Elements of the copy, gaps included.
    pub fn elements(&self) -> i64 {
        self.rows * self.pitch
    }

    /// Blocks that copy.
    pub fn blocks(&self) -> i64 {
        if self.turned {
            let [down, along] = self.tiles();
            return self.batch * down * along;
        }
        tiles(self.rows * self.row, AlignedRows::THREADS * AlignedRows::STEPS)
    }

    /// Tiles along the rows of a product's copy that are turned, and along one row.
    pub fn tiles(&self) -> [i64; 2] {
        [self.rows / self.batch.max(1), self.row].map(|extent| tiles(extent, AlignedRows::SIDE))
    }
}

/// Whether rows of an operand run across k where the TMA finds it: elements of other than 16 bits lie along k there, unless they are gathered.
pub fn across(gemm: &Gemm, side: Side) -> bool {
    stored_across(gemm, side) && (gemm.operand.bytes() == 2 || gemm.gathered(side).is_some())
}

pub(super) fn stored_across(gemm: &Gemm, side: Side) -> bool {
    match side {
        Side::A => gemm.a_transposed,
        Side::B => !gemm.b_transposed,
    }
}

/// Elements of a row of an operand where the TMA finds it, and its rows, of one product.
fn matrix(gemm: &Gemm, side: Side) -> (i64, i64) {
    let spatial = if side == Side::A { gemm.m } else { gemm.n };
    if across(gemm, side) {
        (spatial, gemm.k)
    } else {
        (gemm.k, spatial)
    }
}

/// How an operand is copied first; `None` where it is taken as it is, or gathered.
pub fn aligned(gemm: &Gemm, side: Side) -> Option<AlignedRows> {
    let unit = 16 / i64::from(gemm.operand.bytes()).max(1);
    let turned = stored_across(gemm, side) && !across(gemm, side);
    let (row, rows) = matrix(gemm, side);
    let copied = gemm.gathered(side).is_none() && (turned || row % unit != 0);
    let pitch = tiles(row, unit) * unit;
    copied.then(|| AlignedRows { batch: gemm.batch, rows: gemm.batch * rows, row, turned, pitch, unit })
}

/// The TMA takes the operands' rows, as they are or copied first.
pub fn rows(gemm: &Gemm) -> Result<(), TensorError> {
    for (name, side) in [("A", Side::A), ("B", Side::B)] {
        if let Some(boxes) = boxes(gemm, side, [LEAST_ROWS, tile_k(gemm.operand, 1)]) {
            boxes?;
            continue;
        }
        stacked(name, matrix(gemm, side).1, gemm)?;
        if aligned(gemm, side).is_some_and(|copy| copy.elements() > i64::from(i32::MAX)) {
            let why =
                "its rows are not multiples of 16 bytes along k, and too long together to be copied to such as are";
            return Err(TensorError::TensorMap(name, why));
        }
    }
    Ok(())
}

/// How the TMA brings a factor that is gathered, in tiles of so many rows (columns) and values of k. `None`: memory holds its matrix.
pub fn boxes(gemm: &Gemm, side: Side, [own, k]: [i64; 2]) -> Option<Result<Boxes, TensorError>> {
    let factor = gemm.gathered(side)?;
    let name = if side == Side::A { "A" } else { "B" };
    let across = across(gemm, side);
    // Stored across k, a box has some columns of the tile, and all values of k; else a span along k, and all rows.
    let (rows, k) = if across { (box_columns(own), k) } else { (own, tile_k(gemm.operand, 1)) };
    let bytes = i64::from(gemm.operand.bytes());
    let part = Part { own: side.spatial(), other: Axis::K, rows, columns: k, across, bytes };
    Some(Boxes::of_factor(factor, part).map_err(|why| TensorError::TensorMap(name, why)))
}

/// Rows of all products lie one below the other in a tensor map, whose coordinates have 32 bits, signed.
fn stacked(name: &'static str, rows: i64, gemm: &Gemm) -> Result<(), TensorError> {
    match rows.checked_mul(gemm.batch) {
        Some(all) if all <= i64::from(i32::MAX) => Ok(()),
        _ => Err(TensorError::TensorMap(name, "the products together have 2^31 rows or more")),
    }
}

fn whole_chunks(name: &'static str, bytes: i64) -> Result<(), TensorError> {
    if bytes % 16 == 0 {
        Ok(())
    } else {
        Err(TensorError::TensorMap(name, "its rows are not multiples of 16 bytes"))
    }
}

/// Whether what is in shared memory of C is stored by threads, since the TMA does not take rows that are no multiples of 16 bytes.
pub fn by_rows(gemm: &Gemm) -> bool {
    let bytes = i64::from(gemm.output.bytes());
    gemm.placed.is_none() && !gemm.c_transposed && gemm.c_pitch() * bytes % 16 != 0
}

/// C can be written so; `is_split`: what is written are sums of a part of k.
pub fn store(
    gemm: &Gemm,
    store: TileStore,
    is_split: bool,
    [tile_m, tile_n]: [i64; 2],
    team: Consumers,
) -> Result<(), TensorError> {
    if store == TileStore::Direct {
        return Ok(());
    }
    if is_split {
        return Err(TensorError::Store("split-K stores its sums at once"));
    }
    if let Some(boxes) = places(gemm, [tile_m, tile_n], team.op) {
        boxes?;
    } else if !by_rows(gemm) {
        whole_chunks("C", gemm.c_pitch() * i64::from(gemm.output.bytes()))?;
        stacked("C", if gemm.c_transposed { gemm.n } else { gemm.m }, gemm)?;
    }
    // Rows of memory are those of C, or its columns: then 64 rows of C are 64 elements of a row.
    let (along, across, extent) = match gemm.c_transposed {
        false => (tile_n, tile_m, gemm.m),
        true => (tile_m, tile_n, gemm.n),
    };
    if along % box_line(gemm.output) != 0 {
        return Err(TensorError::Store("the TMA stores boxes of 128 bytes, and a tile has whole ones"));
    }
    // `stmatrix` turns 16-bit matrices alone.
    if !gemm.stores_halves() && gemm.c_transposed {
        return Err(TensorError::Store(
            "the TMA stores other types than f16 and bf16 where rows of C are rows of memory",
        ));
    }
    if gemm.batch > 1 && extent % across != 0 && gemm.placed.is_none() && !by_rows(gemm) {
        return Err(TensorError::Store("the last tile would reach into the next product's"));
    }
    if store == TileStore::Boxes && gemm.c_transposed {
        return Err(TensorError::Store("boxes go one by one where rows of C are rows of memory"));
    }
    if store == TileStore::Boxes && team.row_blocks(tile_m) * tile_n <= BOXES * box_line(gemm.output) {
        return Err(TensorError::Store("a consumer has no more boxes than shared memory holds"));
    }
    Ok(())
}

/// How the TMA stores a result whose elements have places, in boxes of an instruction's rows and 128 bytes. `None`: memory
/// holds it as a matrix.
pub fn places(gemm: &Gemm, tile: [i64; 2], op: GroupMma) -> Option<Result<Boxes, TensorError>> {
    let placed = gemm.placed.as_ref()?;
    let bytes = i64::from(gemm.output.bytes());
    let columns = box_line(gemm.output);
    let part = Part { own: Axis::M, other: Axis::N, rows: op.rows(), columns, across: false, bytes };
    if gemm.c_transposed {
        return Some(Err(TensorError::Store("the TMA stores rows of C to their places, and not columns")));
    }
    let boxes = Boxes::of_result(placed, part).map_err(|why| TensorError::TensorMap("C", why));
    let over = [gemm.m % tile[0] != 0, gemm.n % tile[1] != 0];
    // What a tile has beyond the result must be outside of the buffer.
    Some(boxes.and_then(|boxes| match (0..2).all(|i| !over[i] || boxes.ends[i]) {
        true => Ok(boxes),
        false => Err(TensorError::Store("the last tile would reach beyond the result")),
    }))
}

/// Columns of tensor memory that a block takes: a power of two, 32 at least (PTX ISA, `tcgen05.alloc`).
pub fn columns([m, n, _]: [i64; 3], team: Consumers) -> i64 {
    (m / team.op.rows() * n * team.tiles()).unsigned_abs().next_power_of_two().max(32) as i64
}

/// A consumer's sums fit its registers, or those of all of them tensor memory.
pub fn sums(gemm: &Gemm, [m, n, k]: [i64; 3], team: Consumers) -> Result<(), TensorError> {
    let consumers = team.count;
    if !team.op.holds_sums() {
        let columns = columns([m, n, k], team);
        return if columns > COLUMNS { Err(TensorError::Columns(columns, COLUMNS)) } else { Ok(()) };
    }
    let row_blocks = team.row_blocks(m);
    let of_instruction = gemm.sum_registers(n / 2);
    let sums = row_blocks * of_instruction;
    let launch = (65536 / i64::from(team.threads()) / 8 * 8).min(255);
    let dealt = dealt_registers(consumers, sums).filter(|_| !team.by_threads);
    let most = dealt.map_or(launch, |r| i64::from(r.1)) - BESIDE_SUMS;
    if sums > most {
        return Err(TensorError::Accumulators(sums, most));
    }
    // ptxas gives one instruction no more than the launch gives a thread, whatever setmaxnreg says later (C7602).
    let most = launch - BESIDE_INSTRUCTION;
    if of_instruction > most {
        return Err(TensorError::Accumulators(of_instruction, most));
    }
    Ok(())
}

/// The steps can be dealt out: to a fixed grid without clusters, whose consumers work on one tile together, and which
/// has no more blocks than there are steps.
///
/// # Errors
/// The condition that does not hold.
pub fn stream_k(plan: &WgmmaPlan, gemm: &Gemm) -> Result<(), TensorError> {
    if !plan.stream_k {
        return Ok(());
    }
    let refuse = |why| Err(TensorError::StreamK(why));
    let Some(stream) = plan.dealt(gemm) else { return refuse("it needs a fixed grid") };
    if plan.split_k > 1 {
        return refuse("k is split already");
    }
    if plan.cluster != [1, 1] {
        return refuse("the blocks of a cluster would have different steps");
    }
    if plan.ping_pong {
        return refuse("consumers that take turns need whole tiles");
    }
    if stream.total() < stream.blocks {
        return refuse("there are fewer steps than blocks");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_budgets_are_legal_and_follow_from_the_sums() {
        let budgets = |consumers, sums: [i64; 3]| sums.map(|sums| dealt_registers(consumers, sums).unwrap());
        assert_eq!(budgets(2, [128, 192, 200]), [(40, 232), (40, 232), (24, 240)]);
        assert_eq!(budgets(3, [64, 112, 120]), [(40, 152), (40, 152), (32, 160)]);
        assert_eq!(dealt_registers(1, 128), None);
        for consumers in [2, 3] {
            for sums in 0..256 {
                let (producer, each) = dealt_registers(consumers, sums).unwrap();
                assert!(producer % 8 == 0 && each % 8 == 0 && producer >= 24 && each <= 240);
                // What threads hold of the file at launch is what they may hold of it later.
                let threads = 128 * (consumers + 1);
                assert!(128 * (producer + consumers * each) <= 65536 / threads / 8 * 8 * threads);
            }
        }
    }
}
