//! A schedule of any kind, as candidates, stores and reports carry it: of a contraction, or of a streaming program, whose kernels may be
//! contractions under schedules of their own. Every decision by its name.
use super::stream::{How, Inlining, RowParts, RowPlace, Stream, StreamBlock, Streams, Way};
use super::tensor::{swapped_text, Gemm, TensorPlan, TensorSchedule, WgmmaPlan};
use super::{Contraction, CoresPlan, Incomplete, Term};
use egg::RecExpr;
use serde::{Deserialize, Serialize};

/// Every decision of a candidate. In JSON it is the plan itself: each kind has fields of its own by which it is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Schedule {
    /// A contraction by multiply-adds of single threads.
    Cores(CoresPlan),
    /// A program of streaming blocks.
    Stream(StreamPlan),
    /// A matrix product by `mma.sync`.
    Mma(TensorPlan),
    /// A matrix product by `wgmma`.
    Wgmma(WgmmaPlan),
}

/// What a table shows of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Results of a block, `128x128`.
    pub tile: String,
    /// Values of the reduction per iteration of a block's loop; `-` where there is none.
    pub step: String,
    /// How copies and arithmetic overlap.
    pub overlap: String,
}

impl Summary {
    /// Results of a block, and values of the reduction per iteration: `128x128x32`.
    pub fn volume(&self) -> String {
        format!("{}x{}", self.tile, self.step)
    }
}

impl Schedule {
    /// Reads the decisions off a term.
    ///
    /// # Errors
    /// When something of the term is not scheduled, or the term is none of a program.
    pub fn from_term(term: &RecExpr<Term>, contraction: &Contraction) -> Result<Schedule, Incomplete> {
        match TensorSchedule::from_term(term, contraction)? {
            Some(TensorSchedule::Mma(plan)) => Ok(Schedule::Mma(plan)),
            Some(TensorSchedule::Wgmma(plan)) => Ok(Schedule::Wgmma(plan)),
            None => CoresPlan::from_term(term, contraction).map(Schedule::Cores),
        }
    }

    /// Whether it is so, or the schedule of one of its kernels.
    pub fn any(&self, is: &dyn Fn(&Schedule) -> bool) -> bool {
        let of_kernel = |kernel: &KernelPlan| matches!(kernel, KernelPlan::Tiled(tiled) if tiled.plan.any(is));
        is(self) || matches!(self, Schedule::Stream(plan) if plan.kernels.iter().any(of_kernel))
    }

    /// The plan on single threads, where it is one.
    pub fn cores(&self) -> Option<&CoresPlan> {
        match self {
            Schedule::Cores(plan) => Some(plan),
            Schedule::Stream(_) | Schedule::Mma(_) | Schedule::Wgmma(_) => None,
        }
    }

    /// The schedule in a few lines for people.
    pub fn describe(&self) -> Vec<String> {
        match self {
            Schedule::Cores(plan) => plan.describe(),
            Schedule::Stream(plan) => plan.describe(),
            Schedule::Mma(plan) => plan.describe(),
            Schedule::Wgmma(plan) => plan.describe(),
        }
    }

    /// Columns of a table.
    pub fn summary(&self) -> Summary {
        match self {
            Schedule::Cores(plan) => Summary {
                tile: format!("{}x{}", plan.tile.m, plan.tile.n),
                step: plan.k_tile.to_string(),
                overlap: plan.pipe.to_string(),
            },
            Schedule::Stream(plan) => Summary {
                tile: tiles_text(plan.kernels.iter().map(KernelPlan::tile_text).collect()),
                step: "-".into(),
                overlap: match plan.kernels.len() {
                    1 => "one kernel".into(),
                    n => format!("{n} kernels"),
                },
            },
            Schedule::Mma(plan) => Summary {
                tile: tile_text(plan.tile, plan.swapped),
                step: plan.tile[2].to_string(),
                overlap: {
                    let swapped = swapped_text(plan.swapped);
                    let name = if plan.instruction.wmma().is_some() { "wmma" } else { "mma.sync" };
                    let copied = if plan.instruction.is_async() { "cp.async" } else { "through registers" };
                    format!("{name}{swapped}, {copied}, {} stages", plan.stages)
                },
            },
            Schedule::Wgmma(plan) => Summary {
                tile: tile_text(plan.tile, plan.swapped),
                step: plan.tile[2].to_string(),
                overlap: format!(
                    "{}{}, {}, {} stages, {} consumers{}{}{}",
                    plan.op,
                    swapped_text(plan.swapped),
                    if plan.by_threads { "by threads" } else { "TMA" },
                    plan.stages,
                    plan.consumers,
                    if plan.ping_pong { " in turn" } else { "" },
                    match plan.cluster {
                        [1, 1] => String::new(),
                        [m, n] => format!(", cluster {m}x{n}"),
                    },
                    if plan.stream_k { ", stream-K" } else { "" }
                ),
            },
        }
    }

    /// Threads per block of the main kernel, of streaming programs of the first.
    pub fn threads(&self) -> u32 {
        match self {
            Schedule::Cores(plan) => plan.threads,
            Schedule::Stream(plan) => plan.kernels.first().map_or(0, |k| u32::try_from(k.threads()).unwrap_or(0)),
            Schedule::Mma(plan) => u32::try_from(plan.threads()).unwrap_or(u32::MAX),
            Schedule::Wgmma(plan) => plan.threads(),
        }
    }

    /// Parts of k, each summed up by blocks of its own; 1 of streaming programs.
    pub fn split_k(&self) -> i64 {
        match self {
            Schedule::Cores(plan) => plan.split_k,
            Schedule::Stream(_) => 1,
            Schedule::Mma(plan) => plan.split_k,
            Schedule::Wgmma(plan) => plan.split_k,
        }
    }

    /// Blocks of the main kernel; 0 where the contraction is none of the schedule's kind.
    pub fn block_count(&self, contraction: &Contraction) -> i64 {
        let gemm = Gemm::of(contraction);
        match self {
            Schedule::Cores(plan) => plan.block_count(),
            Schedule::Stream(_) => 0,
            Schedule::Mma(plan) => gemm.map_or(0, |g| plan.blocks(&g)),
            Schedule::Wgmma(plan) => gemm.map_or(0, |g| plan.grid(&g)),
        }
    }

    /// Shared memory of a block of the main kernel, bytes; 0 of a streaming program, which is no contraction.
    pub fn shared_bytes(&self, contraction: &Contraction) -> i64 {
        match self {
            Schedule::Cores(plan) => plan.shared_bytes(contraction),
            Schedule::Stream(_) => 0,
            Schedule::Mma(plan) => Gemm::of(contraction).map_or(0, |g| plan.shared_bytes(&g)),
            Schedule::Wgmma(plan) => Gemm::of(contraction).map_or(0, |g| plan.shared_bytes(&g)),
        }
    }
}

/// The tiles of kernels, those of many that are alike told once.
fn tiles_text(tiles: Vec<String>) -> String {
    let alike = tiles.chunk_by(|a, b| a == b).flat_map(|same| match same {
        [one, _, _, ..] => vec![format!("{} times {one}", same.len())],
        few => few.to_vec(),
    });
    alike.collect::<Vec<_>>().join(", ")
}

/// Rows and columns of C in a block's tile.
fn tile_text([m, n, _]: [i64; 3], swapped: bool) -> String {
    match swapped {
        false => format!("{m}x{n}"),
        true => format!("{n}x{m}"),
    }
}

impl From<CoresPlan> for Schedule {
    fn from(plan: CoresPlan) -> Schedule {
        Schedule::Cores(plan)
    }
}

/// A complete schedule of a streaming program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamPlan {
    /// Blocks that are inlined.
    pub inlined: Vec<Inlining>,
    /// Parts that each row of a reduction is split into: one kernel reduces the parts, another adds these up (`rfactor`).
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub parts: i64,
    /// Whether reductions that use the result of another use its parts', as far as they can (`rebase_reduction`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cascaded: bool,
    /// Kernels in order; together they have every block that is left, once.
    pub kernels: Vec<KernelPlan>,
}

fn whole() -> i64 {
    1
}

fn is_whole(parts: &i64) -> bool {
    *parts == 1
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KernelPlan {
    /// A map over all elements.
    Flat(FlatPlan),
    /// Row by row.
    Row(RowPlan),
    /// Tile by tile through shared memory.
    Tile(TilePlan),
    /// One thread per element of the result.
    Plain(PlainPlan),
    /// A contraction by itself.
    Tiled(Box<TiledPlan>),
}

/// Threads that add up one result together: a loop of the sum is split into (serial, theirs).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sharing {
    /// Number of the loop among those of the block.
    pub iter: usize,
    /// Threads of a result.
    pub threads: i64,
    /// Whether these are neighbours (threadIdx.x), and results lie along threadIdx.y; else the other way round.
    pub lanes: bool,
}

/// Results of a thread along a loop that is not the innermost one: windows that slide along it overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Window {
    /// Number of the loop among those of the block.
    pub iter: usize,
    /// Results along it.
    pub results: i64,
}

/// The spatial loops of a block, fused, into (blockIdx.x, threadIdx.x, window, vector); what it reduces over one value after the other, or
/// shared out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PlainPlan {
    /// Name of the map whose values the block reads from registers, where a thread computes them itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Name of the block.
    pub block: String,
    /// Name of the map that its results go through, where they are in registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<String>,
    /// Threads of a block, or teams of those that share a sum; each has `vector` results, in each place of its window.
    #[serde(rename = "threads")]
    pub teams: i64,
    /// Results of a thread, side by side along the last dimension of what is written.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub vector: i64,
    /// Results of a thread along another loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Whether it is a nest that is bound in the source, whose statements run in their order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_order: bool,
    /// Threads that share a sum; none where one thread has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

/// Blocks that are a contraction, under one of its schedules.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TiledPlan {
    /// Names of the blocks: what sums up first, then what is done with the sums.
    pub blocks: Vec<String>,
    /// The contraction's schedule.
    pub plan: Schedule,
}

/// The innermost loop of maps over the same elements split into (blockIdx.y, unrolled, threadIdx.x, vector); the others, fused, into
/// (blockIdx.x, threadIdx.y).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlatPlan {
    /// Names of the blocks, in order; of one, its name alone.
    #[serde(rename = "block", with = "one_or_more")]
    pub blocks: Vec<String>,
    /// Rows of a block of threads, side by side.
    pub side_by_side: i64,
    /// Unrolled iterations of a thread.
    pub steps: i64,
    /// Threads along a row.
    pub threads: i64,
    /// Elements per access.
    pub vector: i64,
}

/// Names as a text where there is one, else as a list.
mod one_or_more {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        More(Vec<String>),
    }

    pub fn serialize<S: Serializer>(names: &[String], to: S) -> Result<S::Ok, S::Error> {
        match names {
            [one] => Names::One(one.clone()).serialize(to),
            more => Names::More(more.to_vec()).serialize(to),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
        Ok(match Names::deserialize(from)? {
            Names::One(one) => vec![one],
            Names::More(more) => more,
        })
    }
}

/// A buffer and where it is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Held {
    /// Name of the buffer.
    pub buffer: String,
    /// Where.
    pub place: RowPlace,
}

/// Rows split into (blockIdx.x, serial, threadIdx.y); the columns of each block of the kernel into (serial or unrolled,
/// threadIdx.x, vector).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowPlan {
    /// Names of the blocks, in order.
    pub blocks: Vec<String>,
    /// Rows of a block of threads, one after the other.
    pub serial_rows: i64,
    /// Rows of a block of threads, side by side.
    pub side_by_side: i64,
    /// Threads per row.
    pub threads: i64,
    /// Elements per access.
    pub vector: i64,
    /// Where rows are held.
    pub held: Vec<Held>,
    /// For each block: whether its loop over columns is unrolled.
    pub unroll: Vec<bool>,
}

/// A square tile is read along the rows of the source, held in shared memory, and written along the rows of the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TilePlan {
    /// Name of the block.
    pub block: String,
    /// Side of the tile.
    pub side: i64,
    /// Elements per access to the source and to the result.
    pub vector: i64,
    /// Threads per block: `side / vector` along a row, the others side by side.
    pub threads: i64,
    /// Elements added to each row of the tile.
    pub pad: i64,
}

impl Window {
    /// Whether its results divide a loop of so many values.
    pub fn divides(&self, extent: i64) -> bool {
        self.results > 0 && extent % self.results == 0
    }
}

impl PlainPlan {
    /// Results of a block.
    pub fn results(&self) -> i64 {
        self.teams.saturating_mul(self.of_thread())
    }

    /// Results of a thread, or of those that share sums.
    pub fn of_thread(&self) -> i64 {
        self.vector.saturating_mul(self.window.map_or(1, |w| w.results))
    }

    /// Names of its blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = &String> {
        self.before.iter().chain([&self.block]).chain(&self.map)
    }
}

impl RowPlan {
    /// Where a buffer is held; global where nothing is decided.
    pub fn place(&self, buffer: &str) -> RowPlace {
        self.held.iter().find(|h| h.buffer == buffer).map_or(RowPlace::Global, |h| h.place)
    }

    /// Rows of a block of threads.
    pub fn rows_per_block(&self) -> i64 {
        self.serial_rows * self.side_by_side
    }
}

impl KernelPlan {
    /// Threads per block.
    pub fn threads(&self) -> i64 {
        match self {
            KernelPlan::Flat(p) => p.threads * p.side_by_side,
            KernelPlan::Row(p) => p.threads * p.side_by_side,
            KernelPlan::Tile(p) => p.threads,
            KernelPlan::Plain(p) => p.teams * p.sharing.map_or(1, |s| s.threads),
            KernelPlan::Tiled(p) => p.plan.threads().into(),
        }
    }

    /// Whether the blocks of a work are what a kernel of this kind computes.
    pub fn fits(&self, work: &Stream) -> bool {
        let (count, alone) = (work.blocks.len(), work.blocks.len() == 1);
        match self {
            KernelPlan::Flat(_) => work.fits_flat(0, count),
            KernelPlan::Row(_) => work.fits_row(0, count),
            KernelPlan::Tile(_) => alone && work.transposed(0).is_some(),
            KernelPlan::Plain(p) => work.plain_as(p, 0, count),
            KernelPlan::Tiled(_) => work.contraction(0, count).is_some(),
        }
    }

    /// Names of its blocks.
    pub fn blocks(&self) -> Vec<&str> {
        match self {
            KernelPlan::Flat(p) => p.blocks.iter().map(String::as_str).collect(),
            KernelPlan::Row(p) => p.blocks.iter().map(String::as_str).collect(),
            KernelPlan::Tile(p) => vec![&p.block],
            KernelPlan::Plain(p) => p.blocks().map(String::as_str).collect(),
            KernelPlan::Tiled(p) => p.blocks.iter().map(String::as_str).collect(),
        }
    }

    /// What a thread block covers, for a table.
    pub fn tile_text(&self) -> String {
        match self {
            KernelPlan::Flat(p) => format!("{}x{}", p.side_by_side, p.steps * p.threads * p.vector),
            KernelPlan::Row(p) if p.rows_per_block() == 1 => "1 row".into(),
            KernelPlan::Row(p) => format!("{} rows", p.rows_per_block()),
            KernelPlan::Tile(p) => format!("{0}x{0}", p.side),
            KernelPlan::Plain(p) => format!("{} {}", p.results(), if p.in_order { "in order" } else { "plain" }),
            KernelPlan::Tiled(p) => p.plan.summary().volume(),
        }
    }

    /// The kernel in a line.
    pub fn describe(&self) -> String {
        match self {
            KernelPlan::Flat(p) => format!(
                "{}: over all elements, {}x{} threads, {} unrolled steps, accesses of {}",
                p.blocks.join(" + "),
                p.side_by_side,
                p.threads,
                p.steps,
                p.vector
            ),
            KernelPlan::Row(p) => {
                let rows = match (p.serial_rows, p.side_by_side) {
                    (1, 1) => "a row per block".into(),
                    (s, y) => format!("{} rows per block ({y} side by side, {s} in turn)", s * y),
                };
                let held: Vec<String> = p
                    .held
                    .iter()
                    .map(|h| {
                        let place = match h.place {
                            RowPlace::Global => "read again",
                            RowPlace::Shared => "in shared memory",
                            RowPlace::Registers => "in registers",
                        };
                        format!("; {} {place}", h.buffer)
                    })
                    .collect();
                let unrolled: Vec<&str> =
                    p.blocks.iter().zip(&p.unroll).filter(|(_, u)| **u).map(|(b, _)| b.as_str()).collect();
                format!(
                    "{}: {rows}, {} threads per row, accesses of {}{}{}",
                    p.blocks.join(" + "),
                    p.threads,
                    p.vector,
                    held.concat(),
                    if unrolled.is_empty() { String::new() } else { format!("; unrolled: {}", unrolled.join(", ")) }
                )
            }
            KernelPlan::Tile(p) => format!(
                "{0}: tiles of {1}x{1} through shared memory, rows padded by {2}, {3} threads, accesses of {4}",
                p.block, p.side, p.pad, p.threads, p.vector
            ),
            KernelPlan::Plain(p) if p.in_order => {
                format!("{}: its statements in order, {} threads per block", p.block, p.teams)
            }
            KernelPlan::Plain(p) => {
                let each = match p.sharing {
                    None if p.window.is_some() => {
                        format!("{} elements of its result per thread, {} of them neighbours", p.of_thread(), p.vector)
                    }
                    None if p.vector > 1 => format!("{} neighbouring elements of its result per thread", p.vector),
                    None => "one thread per element of its result".into(),
                    Some(Sharing { threads, lanes: true, .. }) => format!("{threads} neighbouring threads per element"),
                    Some(Sharing { threads, lanes: false, .. }) => format!("{threads} threads per element"),
                };
                format!("{}: a plain kernel, {each}, {} threads per block", self.blocks().join(" + "), self.threads())
            }
            KernelPlan::Tiled(p) => format!("{}: {}", p.blocks.join(" + "), p.plan.describe().join("; ")),
        }
    }
}

impl StreamPlan {
    /// How rows are split.
    pub fn row_parts(&self) -> RowParts {
        RowParts { number: self.parts, cascaded: self.cascaded }
    }

    /// The schedule in a few lines for people.
    pub fn describe(&self) -> Vec<String> {
        let inlined: Vec<String> = self
            .inlined
            .iter()
            .map(|i| format!("{}{}", i.block, if i.reverse { " (into its producer)" } else { "" }))
            .collect();
        let mut lines = Vec::new();
        if !inlined.is_empty() {
            lines.push(format!("inlined: {}", inlined.join(", ")));
        }
        if self.parts > 1 {
            let each = if self.cascaded { ", each of which is read once for all reductions" } else { "" };
            lines.push(format!("rows in {} parts{each}, added up by another kernel", self.parts));
        }
        lines.extend(self.kernels.iter().map(KernelPlan::describe));
        lines
    }
}

impl Streams {
    /// The way of a plan.
    pub fn way_of(&self, plan: &StreamPlan) -> Option<Way<'_>> {
        let mut kernels = plan.kernels.iter().map(KernelPlan::blocks);
        let mut next = kernels.next();
        let mut ends = |blocks: &[StreamBlock]| {
            let names = blocks.iter().map(|b| b.name.as_str());
            let here = next.as_ref().is_some_and(|next| names.eq(next.iter().copied()));
            if here {
                next = kernels.next();
            }
            here
        };
        let way = self.way(plan.row_parts(), &|inlining| plan.inlined.contains(inlining), &mut ends)?;
        let inlined = way.becomes.iter().filter(|how| matches!(how, How::Inline(_))).count();
        (next.is_none() && inlined == plan.inlined.len()).then_some(way)
    }

    /// The blocks that a plan schedules, all in one.
    pub fn of_plan(&self, plan: &StreamPlan) -> Option<Stream> {
        Some(self.joined(&self.way_of(plan)?.kernels))
    }
}
