//! The compiled loop as a judge: clocks per iteration of the loop where a kernel spends its time, from its machine code and a
//! small model of one partition of a multiprocessor. It needs no GPU. And what the warps of a whole launch issue ([`issued`]).
//!
//! ptxas leaves its schedule in the control bits ([`Control`]): how long a warp stalls, which scoreboards it holds and waits
//! for, which operands are kept for reuse. So the judge sees what a count of the program's operations does not: what the compiler
//! hoisted or merged, register banks, chains of dependent instructions, and warps that are too few to cover them.
//!
//! ```
//! use satune_extract::Descriptor;
//! use satune_sass::{judge, Listing, Warps};
//!
//! // A chain of four multiply-adds as the disassembler prints it: the upper word says to stall 4 clocks after each.
//! let mut text = ".L_x_0:\n".to_string();
//! let branch = "@!P0 BRA `(.L_x_0)";
//! for (at, instruction) in ["FFMA R1, R1, R2, R3"; 4].into_iter().chain([branch]).enumerate() {
//!     let stall = if instruction == branch { 1 } else { 4 };
//!     let word = (stall << 105 | 1_u128 << 109 | 7 << 110 | 7 << 113) >> 64;
//!     text += &format!("/*{at:04x}*/ {instruction} ; /* 0x{at:016x} */\n/* 0x{word:016x} */\n");
//! }
//! let judged = judge(&Listing::read(&text), Warps::of(1, 4), &Descriptor::load("a100")?, None)?;
//! assert_eq!((judged.clocks, judged.math), (4.0 * 4.0 + 1.0, 4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it takes for granted: warps of a partition fetch instructions together; a branch takes its stall count; loads of global memory come
//! from L2 after its latency, and neither L2's nor DRAM's rate is in the clocks; shared accesses have the conflicts that they are
//! said to have, spread evenly; what is predicated, or behind a branch that skips it, is executed, as it is in the steady state. What it does not know it refuses
//! ([`Unknown`]).
mod control;
mod instruction;
mod listing;
mod partition;
mod rates;
#[cfg(test)]
mod tests;
mod walk;

pub use control::Control;
pub use listing::{opcode, Line, Listing};
pub use partition::Warps;
pub use walk::{issued, Launch};

use instruction::{Step, Unit};
use rates::Rates;
use satune_extract::Descriptor;
use serde::{Deserialize, Serialize};

/// What the judge says of a loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Clocks of a partition for one iteration of each of its warps.
    pub clocks: f64,
    /// Warps of the partition.
    pub warps: usize,
    /// Partitions that have warps: those of the multiprocessor in all are as many times `warps`.
    pub partitions: u32,
    /// Instructions of an iteration that do the arithmetic.
    pub math: usize,
    /// Multiply-adds of a warp's iteration, times two.
    pub flop: f64,
    /// Share of the clocks in which issue slots and units are busy, the busiest first.
    pub busy: Vec<(String, f64)>,
}

impl Judged {
    /// Multiplies and adds of an iteration of all warps of the multiprocessor.
    pub fn iteration(&self) -> f64 {
        self.flop * self.warps as f64 * f64::from(self.partitions)
    }

    /// Clocks of the multiprocessor for a multiply or an add: what loops of different lengths are compared by.
    pub fn clocks_per_flop(&self) -> f64 {
        self.clocks / self.iteration().max(1.0)
    }
}

/// Why a loop has no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// Machine code or units that are not modelled.
    #[error("the partitions of {0} are not modelled (sm_70 to sm_90 are)")]
    Architecture(String),
    /// Nothing to judge.
    #[error("the disassembler does not know this machine code")]
    NoCode,
    /// No loop with arithmetic.
    #[error("there is no loop with arithmetic")]
    NoLoop,
    /// A loop within it, or a branch to where the disassembly does not say.
    #[error("`{0}` makes a loop within the loop, or leaves it")]
    Branch(String),
    /// An instruction that is not modelled.
    #[error("`{0}` is not modelled")]
    Instruction(String),
    /// Words are missing.
    #[error("the disassembler printed no machine words")]
    NoWords,
}

/// Clocks per iteration of the hot loop of a kernel, with so many warps. `wavefronts`: those of shared memory per instruction of
/// arithmetic, as the program's accesses take them; `None`: each access takes what its bytes need.
///
/// # Errors
/// Where the loop has something that is not modelled.
pub fn judge(listing: &Listing, warps: Warps, gpu: &Descriptor, wavefronts: Option<f64>) -> Result<Judged, Unknown> {
    let missing = if listing.lines.is_empty() { Unknown::NoCode } else { Unknown::NoLoop };
    let range = listing.hot_loop().ok_or(missing)?;
    let mut rates = Rates::of_gpu(gpu)?;
    let mut steps = Vec::with_capacity(range.len());
    let path = path(listing, &range)?;
    for line in path.iter().map(|at| &listing.lines[*at]) {
        if line.word >> 64 == 0 {
            return Err(Unknown::NoWords);
        }
        let step = Step::of(line)?;
        if rates.lacks(step.unit) {
            return Err(Unknown::Instruction(line.text.clone()));
        }
        steps.push(step);
    }
    // HFMA2 on registers that are zero moves a constant.
    let works = |at: usize, step: &Step| {
        listing.math(at..at + 1) > 0 && (step.unit != Unit::Half || step.reads.iter().any(Option::is_some))
    };
    let arithmetic: Vec<&Step> =
        path.iter().zip(&steps).filter(|(at, step)| works(**at, step)).map(|(_, s)| s).collect();
    let (math, flop) = (arithmetic.len(), arithmetic.iter().map(|step| step.unit.flop()).sum());
    let least: f64 = steps.iter().map(|step| step.unit.wavefronts()).sum();
    if let Some(each) = wavefronts.filter(|_| least > 0.0) {
        rates.wavefronts = each * math as f64 / least;
    }
    let steady = partition::steady(&steps, warps, &rates);
    let mut busy: Vec<(String, f64)> = steady.busy.into_iter().map(|(name, share)| (name.to_string(), share)).collect();
    busy.sort_by(|a, b| b.1.total_cmp(&a.1));
    // 16 bytes each.
    let clocks = steady.clocks.max(gpu.fetch_clocks(16.0 * steps.len() as f64));
    Ok(Judged { clocks, warps: warps.here, partitions: warps.partitions, math, flop, busy })
}

/// The instructions of an iteration in the steady state: no branch is taken that leaves the loop, or that skips a part of it, as
/// the last iterations skip the copies of further tiles.
fn path(listing: &Listing, range: &std::ops::Range<usize>) -> Result<Vec<usize>, Unknown> {
    let mut path = Vec::with_capacity(range.len());
    let mut at = range.start;
    while at < range.end {
        let line = &listing.lines[at];
        path.push(at);
        let branches = matches!(opcode(&line.text), "BRA" | "CALL" | "JMP" | "BRX" | "RET");
        if !branches || at + 1 == range.end {
            at += 1;
            continue;
        }
        let unknown = || Unknown::Branch(line.text.clone());
        let target = listing.target(line).ok_or_else(unknown)?;
        let sometimes = line.text.starts_with('@');
        at = match range.contains(&target) {
            _ if target <= at && target >= range.start => return Err(unknown()),
            false if !sometimes => return Err(unknown()),
            true if !sometimes => target,
            _ => at + 1,
        };
    }
    Ok(path)
}
