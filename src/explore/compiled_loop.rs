//! The compiled loop of a candidate beside the model: clocks per iteration by its machine code ([`satune_sass::judge`]), what
//! the model takes for the same arithmetic, and the time predicted anew with the former. Where all candidates have it, they are
//! ranked by it.
use crate::scheduled::Checked;
use satune_extract::{Descriptor, KLoop};
use satune_ir::term::Schedule;
use satune_sass::{judge, Judged, Listing, Unknown, Warps};
use serde::{Deserialize, Serialize};

/// What is known of a compiled loop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoopReport {
    /// By its machine code; none where it has something that is not modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judged>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Clocks that the model takes for an iteration of the same warps, power and what is beyond the multiprocessor left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_clocks: Option<f64>,
    /// The predicted time with the judged clocks in place of the model's, ms; none where the judged loop is a part of the loop
    /// over k.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_ms: Option<f64>,
}

/// A kernel as it is launched and counted.
pub(super) struct Counted<'a> {
    pub schedule: &'a Schedule,
    /// Its loop by the model; none of programs that are no contraction.
    pub k_loop: Option<&'a KLoop<'a>>,
    /// What it computes has its multiply-adds counted by none of the machine's.
    pub combines: bool,
    pub checked: &'a Checked,
    /// Blocks of the launch, and threads of a block.
    pub launch: (u64, u32),
}

impl Counted<'_> {
    /// The report of its machine code.
    pub fn report(&self, listing: &Listing, gpu: &Descriptor) -> LoopReport {
        let mut report = LoopReport::default();
        // A small grid does not fill what would be resident.
        let most = self.launch.0.div_ceil(gpu.sms.into()).max(1) as i64;
        let resident = self.k_loop.map_or(1, |k_loop| k_loop.resident).clamp(1, most);
        let judged = match self.judged(listing, resident, gpu) {
            Ok(judged) => judged,
            Err(unknown) => return LoopReport { unknown: Some(unknown.to_string()), ..report },
        };
        // What is no multiply-add is counted by no share of the arithmetic.
        if let Some(k_loop) = self.k_loop.filter(|_| !self.combines || self.checked.hot_loop.fma > 0) {
            let of_model = k_loop.clocks(resident) / (k_loop.flop * resident as f64);
            report.model_clocks = Some(of_model * judged.iteration());
            let of_block = judged.iteration() / resident as f64;
            // A loop within the k loop says nothing of the copies around it.
            if !k_loop.copies || of_block > 0.99 * k_loop.flop {
                let clocks = |blocks: i64| match self.judged(listing, blocks, gpu) {
                    Ok(judged) => judged.clocks_per_flop() * k_loop.flop * blocks as f64,
                    Err(_) => f64::INFINITY,
                };
                report.judged_ms = Some(k_loop.ms(&clocks));
            }
        }
        LoopReport { judged: Some(judged), ..report }
    }

    fn judged(&self, listing: &Listing, resident: i64, gpu: &Descriptor) -> Result<Judged, Unknown> {
        let warps = match self.schedule {
            // The loop is the consumers'; of two in turn one multiplies.
            Schedule::Wgmma(plan) => 4 * if plan.ping_pong { 1 } else { plan.consumers as usize },
            _ => self.launch.1.div_ceil(32) as usize,
        };
        let warps = Warps::of(resident.max(1) as usize, warps);
        // The simulator's loop is the text's, so its wavefronts go by arithmetic. Matrix instructions of the text may be several of
        // the machine: there each access takes what its bytes need.
        let hot = self.checked.hot_loop;
        let each = hot.shared_wavefronts().0 as f64 / hot.fma.max(1) as f64;
        judge(listing, warps, gpu, (hot.fma > 0 && hot.matrix == 0).then_some(each))
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
        if let Some(ms) = self.judged_ms {
            text.push_str(&format!("; with these clocks the prediction is {ms:.4} ms"));
        }
        let busy: Vec<String> =
            judged.busy.iter().take(3).map(|(name, share)| format!("{name} {:.0}%", 100.0 * share)).collect();
        text.push_str(&format!(". Busy: {}.", busy.join(", ")));
        text
    }
}

/// Who put the candidates in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judge {
    /// Predicted times.
    #[default]
    Model,
    /// Predicted times with the clocks of the compiled loops.
    CompiledLoops,
    /// Measured times.
    Device,
}

/// So many times the model's time, or such a part of it, and one of the two judges has misread the kernel.
const APART: f64 = 3.0;

/// Who orders candidates, each given by its predicted time and what is known of its loop, and a sentence about it; none where nothing
/// was compiled. Times by different judges are not compared: the compiled loops speak where all have one.
pub(super) fn judge_of(candidates: &[(f64, Option<&LoopReport>)]) -> (Judge, Option<String>) {
    if candidates.iter().all(|(_, of_loop)| of_loop.is_none()) {
        return (Judge::Model, None);
    }
    let judged: Vec<(f64, f64)> =
        candidates.iter().filter_map(|(ms, of_loop)| Some((of_loop.as_ref()?.judged_ms?, *ms))).collect();
    let by_model = |why: String| (Judge::Model, Some(format!("ranked by the model: {why}")));
    if judged.len() < candidates.len() {
        let why = candidates.iter().find_map(|(_, of_loop)| of_loop.as_ref()?.unknown.clone());
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        return by_model(format!("of {} compiled loops {} are judged{why}", candidates.len(), judged.len()));
    }
    let (least, most) = judged
        .iter()
        .map(|(by_loop, ms)| by_loop / ms)
        .fold((f64::INFINITY, 0.0), |(least, most), ratio| (f64::min(least, ratio), f64::max(most, ratio)));
    if least < 1.0 / APART || most > APART {
        return by_model(format!("the compiled loops say {least:.2}x to {most:.2}x of it, which is too far away"));
    }
    let mut order: Vec<usize> = (0..judged.len()).collect();
    order.sort_by(|a, b| judged[*a].0.total_cmp(&judged[*b].0));
    let order = match order.is_sorted() {
        true => "the model's order is the same".into(),
        false => {
            let ranks: Vec<String> = order.iter().map(|at| (at + 1).to_string()).collect();
            format!("by the model they are {}", ranks.join(", "))
        }
    };
    let note = format!(
        "ranked by the clocks of the compiled loops, with which predictions are {least:.2}x to {most:.2}x of the model's; {order}"
    );
    (Judge::CompiledLoops, Some(note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiled_loops_speak_where_all_are_judged_and_none_is_far_from_the_model() {
        let of = |judged_ms| LoopReport { judged_ms, ..LoopReport::default() };
        let (fast, slow, none, wild) = (of(Some(0.9)), of(Some(1.2)), of(None), of(Some(4.0)));
        let judge = |second: Option<&LoopReport>| judge_of(&[(1.0, Some(&slow)), (1.0, second)]);
        let (who, note) = judge(Some(&fast));
        assert_eq!(who, Judge::CompiledLoops);
        assert!(note.is_some_and(|n| n.contains("0.90x to 1.20x") && n.ends_with("by the model they are 2, 1")));
        assert_eq!(judge(Some(&none)).0, Judge::Model);
        assert_eq!(judge(None).0, Judge::Model);
        assert!(judge(Some(&wild)).1.is_some_and(|n| n.contains("too far away")));
        assert_eq!(judge_of(&[(1.0, None)]), (Judge::Model, None));
    }
}
