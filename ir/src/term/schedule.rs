//! A schedule of any kind, as candidates, stores and reports carry it.
use super::stream::{KernelPlan, StreamPlan};
use super::tensor::{swapped_text, Gemm, TensorPlan, TensorSchedule, WgmmaPlan};
use super::{Contraction, Incomplete, Plan, Term};
use egg::RecExpr;
use serde::{Deserialize, Serialize};

/// Every decision of a candidate. In JSON it is the plan itself: each kind has fields of its own by which it is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Schedule {
    /// A contraction by multiply-adds of single threads.
    Cores(Plan),
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
            None => Plan::from_term(term, contraction).map(Schedule::Cores),
        }
    }

    /// Whether it is so, or the schedule of one of its kernels.
    pub fn any(&self, is: &dyn Fn(&Schedule) -> bool) -> bool {
        let of_kernel = |kernel: &KernelPlan| matches!(kernel, KernelPlan::Tiled(tiled) if tiled.plan.any(is));
        is(self) || matches!(self, Schedule::Stream(plan) if plan.kernels.iter().any(of_kernel))
    }

    /// The plan on single threads, where it is one.
    pub fn cores(&self) -> Option<&Plan> {
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
                    match plan.instruction.wmma() {
                        Some(_) => format!("wmma{swapped}, through registers, {} stages", plan.stages),
                        None => format!("mma.sync{swapped}, cp.async, {} stages", plan.stages),
                    }
                },
            },
            Schedule::Wgmma(plan) => Summary {
                tile: tile_text(plan.tile, plan.swapped),
                step: plan.tile[2].to_string(),
                overlap: format!(
                    "wgmma{}, TMA, {} stages, {} consumers{}{}{}",
                    swapped_text(plan.swapped),
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

impl From<Plan> for Schedule {
    fn from(plan: Plan) -> Schedule {
        Schedule::Cores(plan)
    }
}
