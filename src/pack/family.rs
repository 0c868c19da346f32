//! Families of kernels: those of one family rest on the same parts of the hardware, and fail together.
use satune_ir::term::stream::KernelPlan;
use satune_ir::term::Schedule;
use serde::{Deserialize, Serialize};

/// A family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Multiply-adds of single threads.
    SingleThreads,
    /// Streaming blocks.
    Streaming,
    /// `mma.sync`.
    Mma,
    /// `wmma`.
    Wmma,
    /// `wgmma` and the TMA.
    Wgmma,
    /// The same, two consumers in turn.
    InTurn,
    /// The same, blocks of a cluster share tiles.
    Cluster,
    /// The same, steps along k dealt out evenly.
    StreamK,
}

impl Family {
    /// All.
    pub const ALL: [Family; 8] = [
        Family::SingleThreads,
        Family::Streaming,
        Family::Mma,
        Family::Wmma,
        Family::Wgmma,
        Family::InTurn,
        Family::Cluster,
        Family::StreamK,
    ];

    /// The family of a schedule: of several the one that asks most of the hardware.
    pub fn of(plan: &Schedule) -> Family {
        match plan {
            Schedule::Cores(_) => Family::SingleThreads,
            // A product among other blocks may be on tensor cores.
            Schedule::Stream(plan) => {
                let tiled = plan.kernels.iter().filter_map(|kernel| match kernel {
                    KernelPlan::Tiled(tiled) => Some(Family::of(&tiled.plan)),
                    _ => None,
                });
                tiled.fold(Family::Streaming, Family::max)
            }
            Schedule::Mma(plan) if plan.instruction.wmma().is_some() => Family::Wmma,
            Schedule::Mma(_) => Family::Mma,
            Schedule::Wgmma(plan) if plan.stream_k => Family::StreamK,
            Schedule::Wgmma(plan) if plan.cluster != [1, 1] => Family::Cluster,
            Schedule::Wgmma(plan) if plan.ping_pong => Family::InTurn,
            Schedule::Wgmma(_) => Family::Wgmma,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Family::SingleThreads => "single threads",
            Family::Streaming => "streaming",
            Family::Mma => "mma.sync",
            Family::Wmma => "wmma",
            Family::Wgmma => "wgmma",
            Family::InTurn => "in turn",
            Family::Cluster => "cluster",
            Family::StreamK => "stream-K",
        }
    }
}
