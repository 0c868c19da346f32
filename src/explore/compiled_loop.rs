//! The compiled loop of a candidate beside the model: clocks per iteration by its machine code ([`satune_sass::judge`]), and what
//! the model takes for the same arithmetic.
use super::CandidateReport;
use crate::scheduled::Checked;
use satune_extract::{Cost, Descriptor};
use satune_ir::term::{Contraction, Schedule};
use satune_sass::{judge, Judged, Listing, Unknown, Warps};
use serde::{Deserialize, Serialize};

/// What is known of a compiled loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoopReport {
    /// By its machine code; none where it has something that is not modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judged>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Clocks that the model takes for an iteration of the same warps, power and what is beyond the multiprocessor left out;
    /// none for schedules whose blocks take several tiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_clocks: Option<f64>,
}

/// Parts of a predicted time that are pipes of a multiprocessor.
const PIPES: [&str; 6] = ["issue", "multiply_add", "tensor_cores", "shared_memory", "load_store", "l1"];

/// A kernel as it is launched and counted.
pub(super) struct Counted<'a> {
    pub schedule: &'a Schedule,
    pub contraction: Option<&'a Contraction>,
    pub cost: &'a Cost,
    pub checked: &'a Checked,
    /// Blocks of the launch, and threads of a block.
    pub launch: (u64, u32),
}

impl Counted<'_> {
    /// The report of its machine code.
    pub fn report(&self, listing: &Listing, gpu: &Descriptor) -> LoopReport {
        match self.judged(listing, gpu) {
            Ok(judged) => {
                let model_clocks = self.model_clocks(&judged, gpu);
                LoopReport { judged: Some(judged), unknown: None, model_clocks }
            }
            Err(unknown) => LoopReport { judged: None, unknown: Some(unknown.to_string()), model_clocks: None },
        }
    }

    fn judged(&self, listing: &Listing, gpu: &Descriptor) -> Result<Judged, Unknown> {
        let (blocks, threads) = self.launch;
        // A small grid does not fill what would be resident.
        let resident = (self.cost.resident_blocks.max(1) as u64).min(blocks.div_ceil(gpu.sms.into())).max(1);
        let warps = match self.schedule {
            // The loop is the consumers'; of two in turn one multiplies.
            Schedule::Wgmma(plan) => 4 * if plan.ping_pong { 1 } else { plan.consumers as usize },
            _ => threads.div_ceil(32) as usize,
        };
        let warps = Warps::of(resident as usize, warps);
        // The simulator's loop is the text's, so its wavefronts go by arithmetic. Matrix instructions of the text may be several of
        // the machine: there each access takes what its bytes need.
        let hot = self.checked.hot_loop;
        let each = hot.shared_wavefronts().0 as f64 / hot.fma.max(1) as f64;
        judge(listing, warps, gpu, (hot.fma > 0 && hot.matrix == 0).then_some(each))
    }

    /// The time of the busiest multiprocessor, its largest pipe and what the loop waits for, by its share of the arithmetic.
    fn model_clocks(&self, judged: &Judged, gpu: &Descriptor) -> Option<f64> {
        let contraction = self.contraction?;
        let (blocks, _) = self.launch;
        let alone = self.schedule.block_count(contraction) as u64 == blocks;
        let all = match self.schedule {
            // What is no multiply-add is counted by no share of the arithmetic.
            Schedule::Cores(_) if contraction.combine.is_some() && self.checked.hot_loop.fma == 0 => return None,
            Schedule::Cores(_) => self.cost.work.fma * 64.0,
            Schedule::Mma(_) if alone => {
                contraction.iters.iter().map(|(_, info)| info.extent as f64).product::<f64>() * 2.0
            }
            _ => return None,
        };
        let (sms, resident) = (u64::from(gpu.sms), self.cost.resident_blocks.max(1) as u64);
        let slots = sms * resident;
        let of_sm = blocks / slots * resident + (blocks % slots).div_ceil(sms);
        let flop = all * of_sm as f64 / blocks as f64;
        let part = |name: &str| self.cost.parts.get(name).copied().unwrap_or(0.0);
        let pipe = PIPES.iter().map(|name| part(name)).fold(0.0, f64::max);
        let clocks_per_ms = gpu.clock_mhz * 1e3;
        // Each wave of blocks begins and ends with DRAM's latency, which is no part of the loop.
        let around = self.cost.waves.ceil() * 2.0 * gpu.latency_dram / clocks_per_ms;
        let waits = (part("latency") - around).max(0.0);
        let warps = judged.warps as f64 * f64::from(judged.partitions);
        Some((pipe + waits) * clocks_per_ms * judged.flop * warps / flop)
    }
}

impl LoopReport {
    /// For people, one sentence.
    pub fn sentence(&self) -> String {
        let Some(judged) = &self.judged else {
            return format!(
                "The compiled loop is not judged: {}.",
                self.unknown.as_deref().unwrap_or("no reason is known")
            );
        };
        let warps = if judged.warps == 1 { "1 warp".into() } else { format!("{} warps", judged.warps) };
        let mut text =
            format!("The compiled loop takes {:.0} clocks for an iteration of {warps} of a partition", judged.clocks);
        if let Some(model) = self.model_clocks {
            text.push_str(&format!("; the model {model:.0} ({:.2}x)", judged.clocks / model.max(1e-9)));
        }
        let busy: Vec<String> =
            judged.busy.iter().take(3).map(|(name, share)| format!("{name} {:.0}%", 100.0 * share)).collect();
        text.push_str(&format!(". Busy: {}.", busy.join(", ")));
        text
    }
}

/// Which judge spoke: candidates are ranked by the model, and where all their compiled loops are judged it is told how those alone
/// would order them. Nothing where none was compiled.
pub(super) fn order(candidates: &[CandidateReport]) -> Option<String> {
    let loops = || candidates.iter().filter_map(|c| c.compiled.as_ref()?.loop_clocks.as_ref());
    let judged: Vec<f64> = loops().filter_map(|l| l.judged.as_ref()).map(Judged::clocks_per_flop).collect();
    loops().next()?;
    if judged.len() < candidates.len() {
        return Some(format!(
            "ranked by the model; {} of {} compiled loops are judged",
            judged.len(),
            candidates.len()
        ));
    }
    let mut ranks: Vec<usize> = (0..judged.len()).collect();
    ranks.sort_by(|a, b| judged[*a].total_cmp(&judged[*b]));
    if ranks.is_sorted() {
        return Some("ranked by the model; the clocks of the compiled loops agree".into());
    }
    let ranks: Vec<String> = ranks.iter().map(|at| (at + 1).to_string()).collect();
    Some(format!("ranked by the model; the clocks of the compiled loops alone would order them {}", ranks.join(", ")))
}
