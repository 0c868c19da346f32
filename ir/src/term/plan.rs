//! A complete schedule of a contraction, read off a term: every decision by its name. What the cost model predicts,
//! what the trace of primitives is made from, and what people are shown.
use super::{Axis, Contraction, Side};
use serde::{Deserialize, Serialize};

/// How a staged tile is laid out in shared memory. "Spatial" is m for A and n for B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StagedLayout {
    /// True: rows run along k, `[k][spatial]`; false: `[spatial][k]`.
    pub k_major: bool,
    /// Elements added to each row.
    pub pad: u32,
    /// Chunk index within a row is xored with the row number (chunks of 16 bytes); `pad` is then 0.
    pub swizzle: bool,
}

/// How the k loop overlaps the copies of its next tiles with the arithmetic of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Pipe {
    /// It does not: copy, barrier, compute, barrier. One buffer.
    Plain,
    /// The next tile is loaded into registers before the arithmetic and stored to the other buffer after it. Two buffers.
    Registers,
    /// `cp.async` into a ring of this many buffers (2 to 5).
    Async(u8),
}

impl Pipe {
    /// Buffers of shared memory per staged operand.
    pub fn buffers(self) -> i64 {
        match self {
            Pipe::Plain => 1,
            Pipe::Registers => 2,
            Pipe::Async(stages) => stages as i64,
        }
    }
}

/// The cooperative copy of a tile from global to shared memory: the tile's two loops fused, then split into
/// (serial, threads, vector).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fill {
    /// True: neighbouring threads run along the operand's contiguous dimension in global memory (coalesced); false:
    /// along the other one.
    pub coalesced: bool,
    /// Elements per access on the global side; they lie along the contiguous dimension. 1 where not coalesced.
    pub vector: u32,
    /// Whether the serial loop is expanded.
    pub unroll: bool,
}

/// An operand's way from global memory to the arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Staging {
    /// cache_read to shared memory: its layout and copy.
    pub shared: Option<(StagedLayout, Fill)>,
    /// Where that copy stands. False: in the k loop, a k tile per iteration. True: above it, the whole strip (block tile
    /// by `k_part`) at once, in one buffer whatever the overlap.
    #[serde(default)]
    pub hoisted: bool,
    /// cache_read to registers at the inner k loop: elements per access (16 bytes at most). The access runs along the
    /// row of what it reads: along the spatial axis where rows are `[k][spatial]`, else along k.
    pub local: Option<u32>,
}

/// Where the k loop finds an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Way {
    /// In global memory.
    Direct,
    /// In a tile that it copies to shared memory.
    Tile,
    /// In a strip that was copied to shared memory before it.
    Strip,
}

/// A pair of numbers, for m and for n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Pair {
    pub m: i64,
    pub n: i64,
}

impl Pair {
    /// m * n; the largest number where that is none.
    pub fn product(self) -> i64 {
        self.m.saturating_mul(self.n)
    }
}

/// One loop over blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockLoop {
    /// Its axis; k for split-K.
    pub axis: Axis,
    /// Number of iterations.
    pub extent: i64,
    /// Whether it is the inner part of a grouped rasterization.
    pub group: bool,
}

/// A complete schedule of a contraction. All loops over blocks are fused into blockIdx.x in the order of `blocks`
/// (outermost first, so the last one varies fastest); all of warps and lanes are fused into threadIdx.x.
///
/// The m axis is covered as `blocks x vthread_outer x warps x vthread_inner x lanes x registers`, outermost first, and
/// n likewise: `tile.m = vthread_outer.m * warps.m * vthread_inner.m * lanes.m * registers.m`. A tile may hang over
/// the problem's edge; then guards are made.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CoresPlan {
    /// Loops over blocks, outermost first.
    pub blocks: Vec<BlockLoop>,
    /// Parts that the reduction is split into; more than 1 needs the second kernel that adds the partial sums.
    pub split_k: i64,
    /// What a block computes.
    pub tile: Pair,
    /// k values per block (the whole of k, or its part under split-K).
    pub k_part: i64,
    /// k values per iteration of the block's k loop.
    pub k_tile: i64,
    /// Threads per block; `32 * warps.product()`.
    pub threads: u32,
    /// Overlap in the k loop.
    pub pipe: Pipe,
    /// A's way.
    pub a: Staging,
    /// B's way.
    pub b: Staging,
    /// Virtual threads outside the warps.
    pub vthread_outer: Pair,
    /// Warps.
    pub warps: Pair,
    /// Whether m is the outer one of the two warp loops.
    pub warps_m_outer: bool,
    /// Virtual threads inside a warp, outside the lanes.
    pub vthread_inner: Pair,
    /// Lanes of a warp; their product is 32.
    pub lanes: Pair,
    /// Whether m is the outer one of the two lane loops (the last lane loop varies fastest).
    pub lanes_m_outer: bool,
    /// Neighbouring results per thread (times the vthreads).
    pub registers: Pair,
    /// Whether m is the outer one of the two register loops.
    pub registers_m_outer: bool,
    /// k values per step of the inner k loop (more than 1 where fragments are read along k).
    pub k_step: i64,
    /// Whether the inner k loop is expanded.
    pub unroll_k: bool,
    /// Accumulators in registers (cache_write to local); otherwise the sum is kept in global memory.
    pub accumulators: bool,
    /// Whether the accumulators are cleared before the k loop (decompose_reduction) rather than inside it.
    pub init_hoisted: bool,
    /// Elements per store of C, along n where n is C's innermost dimension, else 1.
    pub store_vector: u32,
}

/// k values that a strip has room for: all that the k loop's tiles reach, where the last one reaches beyond its part of k, too.
pub fn strip_length(k: i64, tile: i64) -> i64 {
    let tile = tile.max(1);
    k.saturating_add(tile - 1) / tile * tile
}

impl CoresPlan {
    /// The staging of a side.
    pub fn staging(&self, side: Side) -> &Staging {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    /// Results per thread.
    pub fn results_per_thread(&self) -> i64 {
        self.vthread_outer.product() * self.vthread_inner.product() * self.registers.product()
    }

    /// What the block computes along an operand's spatial axis.
    pub fn spatial(&self, side: Side) -> i64 {
        match side {
            Side::A => self.tile.m,
            Side::B => self.tile.n,
        }
    }

    /// k values of an operand that are in shared memory at a time: those of a k tile, or of the whole strip.
    pub fn staged_k(&self, side: Side) -> i64 {
        match self.way(side) {
            Way::Strip => self.k_part,
            _ => self.k_tile,
        }
    }

    /// Where the k loop finds an operand.
    pub fn way(&self, side: Side) -> Way {
        match self.staging(side) {
            Staging { shared: None, .. } => Way::Direct,
            Staging { hoisted: false, .. } => Way::Tile,
            Staging { hoisted: true, .. } => Way::Strip,
        }
    }

    /// Shared memory of one block, bytes: every staged operand's tile with its padding, times the buffers of the k loop
    /// where it is copied there.
    pub fn shared_bytes(&self, contraction: &Contraction) -> i64 {
        [Side::A, Side::B]
            .into_iter()
            .filter_map(|side| {
                let (layout, _) = self.staging(side).shared?;
                let element = contraction.operand(side).dtype.bytes() as i64;
                let (k, buffers) = match self.way(side) {
                    Way::Strip => (strip_length(self.k_part, self.k_tile), 1),
                    _ => (self.k_tile, self.pipe.buffers()),
                };
                Some(layout.elements(self.spatial(side), k) * element * buffers)
            })
            .sum()
    }

    /// Number of blocks of the main kernel.
    pub fn block_count(&self) -> i64 {
        self.blocks.iter().map(|l| l.extent).product()
    }
}

impl StagedLayout {
    /// Elements from one row to the next, for a tile of `spatial` by `k`.
    pub fn pitch(&self, spatial: i64, k: i64) -> i64 {
        (if self.k_major { spatial } else { k }) + self.pad as i64
    }

    /// Elements of a tile of `spatial` by `k`, with padding.
    pub fn elements(&self, spatial: i64, k: i64) -> i64 {
        self.pitch(spatial, k) * if self.k_major { k } else { spatial }
    }

    /// Position of an element within the tile, elements; `element_bytes` sets how many make a swizzled chunk.
    /// With swizzle, chunk `c` of row `r` stands at `c ^ (r mod chunks)` where `chunks`, the number of 16-byte chunks
    /// in a row, is a power of two (8 at most take part).
    pub fn offset(&self, spatial_index: i64, k_index: i64, spatial: i64, k: i64, element_bytes: i64) -> i64 {
        let (row, column) = if self.k_major { (k_index, spatial_index) } else { (spatial_index, k_index) };
        let pitch = self.pitch(spatial, k);
        if !self.swizzle {
            return row * pitch + column;
        }
        let chunk = (16 / element_bytes).max(1);
        let chunks = (pitch / chunk).clamp(1, 8);
        let swizzled = (column / chunk) ^ (row % chunks);
        row * pitch + swizzled * chunk + column % chunk
    }
}

impl CoresPlan {
    /// The schedule in a few lines for people.
    pub fn describe(&self) -> Vec<String> {
        let pair = |p: Pair| format!("{}x{}", p.m, p.n);
        let order: Vec<String> = self
            .blocks
            .iter()
            .filter(|l| l.extent > 1)
            .map(|l| format!("{}{}:{}", l.axis, if l.group { " group" } else { "" }, l.extent))
            .collect();
        let mut lines = vec![
            format!("blocks {}, order {}", self.block_count(), if order.is_empty() { "-".into() } else { order.join(", ") }),
            format!(
                "block tile {}, k {} ({}), {} threads: warps {}{}, lanes {}{}",
                pair(self.tile),
                self.k_tile,
                self.pipe,
                self.threads,
                pair(self.warps),
                if self.warps_m_outer { "" } else { " n outer" },
                pair(self.lanes),
                if self.lanes_m_outer { "" } else { " n outer" },
            ),
            format!(
                "thread: {} results as vthreads {} outside and {} inside the warp, {} each{}; k steps of {}{}; stores of {}",
                self.results_per_thread(),
                pair(self.vthread_outer),
                pair(self.vthread_inner),
                pair(self.registers),
                if self.registers_m_outer { "" } else { " (n outer)" },
                self.k_step,
                if self.unroll_k { ", unrolled" } else { "" },
                self.store_vector,
            ),
        ];
        for side in [Side::A, Side::B] {
            let staging = self.staging(side);
            let shared = match staging.shared {
                Some((layout, fill)) => format!(
                    "shared {layout}{}, filled by {} of {}{}",
                    if staging.hoisted { " above the k loop" } else { "" },
                    if fill.coalesced { "rows" } else { "columns" },
                    fill.vector,
                    if fill.unroll { ", unrolled" } else { "" }
                ),
                None => "not in shared memory".into(),
            };
            let local = staging.local.map_or("read in place".into(), |v| format!("read to registers by {v}"));
            lines.push(format!("{side}: {shared}; {local}"));
        }
        lines
    }
}
