//! Questions about the schedules of a contraction, on single threads and on tensor cores.
use super::answer::{only, NOT_HELD};
use super::fixed::Fixed;
use super::tensor::{Multiplier, Products};
use super::{cores, parse, Askable, Fixes};
use crate::explore::{limits, tensor_cores};
use crate::operators::Problem;
use satune_extract::Descriptor;
use satune_ir::term::{Schedule, Space, Term};
use satune_rewrites::space::rules::tensor::TensorCores;
use satune_rewrites::space::Menu;

/// Leaves a decision free.
type Release = fn(&mut Fixed);

/// Every decision, by the word that names it.
const RELEASES: [(&str, Release); 44] = [
    ("what multiplies", |f| f.kind = None),
    ("swapped", |f| f.swapped = None),
    ("block", |f| f.block = None),
    ("k", |f| f.k = None),
    ("step", |f| f.step = None),
    ("threads", |f| (f.threads, f.thread_grid) = (None, None)),
    ("warps", |f| (f.warps, f.warps_m_outer) = (None, None)),
    ("lanes", |f| (f.lanes, f.lanes_m_outer) = (None, None)),
    ("vthreads", |f| (f.vthreads, f.vthreads_outside, f.vthreads_inside) = (None, None, None)),
    ("registers", |f| (f.registers, f.registers_m_outer) = (None, None)),
    ("stages", |f| f.stages = None),
    ("split", |f| f.split = None),
    ("order", |f| f.blocks_m_outer = None),
    ("group", |f| f.group = None),
    ("A", |f| (f.a, f.mma.ways[0]) = Default::default()),
    ("B", |f| (f.b, f.mma.ways[1]) = Default::default()),
    ("unroll", |f| f.unroll = None),
    ("store", |f| f.store = None),
    ("init", |f| f.init_hoisted = None),
    ("accumulators", |f| f.accumulators = None),
    ("instruction", |f| f.mma.instruction = None),
    ("warp", |f| f.mma.warp = None),
    ("order of warps", |f| f.mma.warps_m_outer = None),
    ("tiles waited for", |f| f.mma.slack = None),
    ("rolled", |f| f.mma.rolled = None),
    ("instructions by rows or columns", |f| f.mma.columns = None),
    ("straight or back and forth", |f| f.mma.serpentine = None),
    ("two at once", |f| f.mma.pairs = None),
    ("k upwards or downwards", |f| f.mma.descending = None),
    ("C", |f| (f.mma.store, f.wgmma.store) = (None, None)),
    ("resident", |f| f.mma.min_blocks = None),
    ("columns of wgmma", |f| f.wgmma.n = None),
    ("consumers", |f| (f.wgmma.consumers, f.wgmma.row_blocks) = (None, None)),
    ("in turn", |f| f.wgmma.in_turn = None),
    ("rows of consumers", |f| f.wgmma.row_blocks = None),
    ("one after the other", |f| f.wgmma.by_rows = None),
    ("freed", |f| f.wgmma.eager_release = None),
    ("arrivals", |f| f.wgmma.arrive_per_warp = None),
    ("grid", |f| f.wgmma.grid = None),
    ("stream-k", |f| f.wgmma.stream_k = None),
    ("cluster", |f| f.wgmma.cluster = None),
    ("bytes to L2", |f| f.mma.ways.iter_mut().for_each(|w| w.prefetch = None)),
    ("layouts", |f| f.mma.ways.iter_mut().for_each(|w| w.layout = None)),
    ("sets of fragments", |f| f.mma.ways.iter_mut().for_each(|w| w.sets = None)),
];

impl Fixes for Fixed {
    type Term = Term;

    fn variants(&self) -> Vec<Fixed> {
        Fixed::variants(self)
    }

    fn keeps(&self, space: &Space, class: egg::Id, node: &Term) -> bool {
        Fixed::keeps(self, space, class, node)
    }

    fn freer(&self) -> Vec<(String, Fixed)> {
        let without = |(name, release): &(&str, Release)| {
            let mut freer = self.clone();
            release(&mut freer);
            ((*name).to_string(), freer)
        };
        RELEASES.iter().map(without).collect()
    }

    fn decisions(&self) -> Vec<(String, Fixed)> {
        Fixed::decisions(self)
    }

    fn words(&self) -> String {
        Fixed::words(self)
    }
}

impl Askable for Problem {
    type Fixed = Fixed;

    fn question(&self, text: &str) -> Result<Fixed, String> {
        parse::parse(text, &self.contraction)
    }

    fn fixed_of(&self, plan: &Schedule) -> Result<Fixed, String> {
        Fixed::of_schedule(plan)
            .ok_or_else(|| "the schedule is one of streaming blocks, and the program a contraction".into())
    }

    fn outside(&self, fixed: &Fixed, gpu: &Descriptor) -> Vec<String> {
        let kinds = fixed.kinds();
        if kinds.is_empty() {
            return vec![
                "words of different kinds of schedules (single threads, mma.sync, wgmma) are asked together".into()
            ];
        }
        let limits = limits(gpu);
        by_kind(&kinds, |kind| match (kind, self.products(gpu)) {
            (Multiplier::Cores, _) => cores::outside(fixed, &Menu::of(&self.contraction, &limits), &limits),
            (_, Err(why)) => vec![why],
            (kind, Ok(products)) => products.outside(kind, fixed),
        })
    }

    fn broken(&self, fixed: &Fixed, gpu: &Descriptor) -> Vec<String> {
        let limits = limits(gpu);
        let menu = Menu::of(&self.contraction, &limits);
        // What no menu offers was left out before; of what is left each kind has its reasons.
        let kinds: Vec<Multiplier> = fixed.kinds();
        by_kind(&kinds, |kind| match (kind, self.products(gpu)) {
            (Multiplier::Cores, _) => {
                let outside = cores::outside(fixed, &menu, &limits);
                let broken = || cores::broken(fixed, &self.contraction, &limits, &menu);
                if outside.is_empty() {
                    broken()
                } else {
                    outside
                }
            }
            (_, Err(why)) => vec![why],
            (kind, Ok(products)) => {
                let outside = products.outside(kind, fixed);
                if !outside.is_empty() {
                    return outside;
                }
                let mut out = cores::grid(fixed, &self.contraction, &limits, &menu);
                out.extend(products.broken(kind, fixed));
                out
            }
        })
    }

    fn missing(&self, space: &Space, plan: &Schedule) -> Option<String> {
        if let Some(plan) = plan.cores() {
            return space.contains(plan).err().map(|m| m.to_string());
        }
        // Everything that a plan says is fixed, so what is left is the plan or nothing.
        let found = only(space, &self.fixed_of(plan).ok()?);
        (found.as_ref() != Some(plan)).then(|| NOT_HELD.to_string())
    }
}

trait Tensors {
    /// The product as tensor cores may take it.
    fn products(&self, gpu: &Descriptor) -> Result<Products, String>;
}

impl Tensors for Problem {
    fn products(&self, gpu: &Descriptor) -> Result<Products, String> {
        let cores = TensorCores { tf32: self.tf32, ..tensor_cores(gpu) };
        Products::of(&self.contraction, cores, limits(gpu))
    }
}

/// Reasons against schedules of each kind that is possible; none where there is none against one of them.
fn by_kind(kinds: &[Multiplier], reasons: impl Fn(Multiplier) -> Vec<String>) -> Vec<String> {
    let all: Vec<(Multiplier, Vec<String>)> = kinds.iter().map(|kind| (*kind, reasons(*kind))).collect();
    if all.iter().any(|(_, reasons)| reasons.is_empty()) {
        return Vec::new();
    }
    if let [(_, reasons)] = &all[..] {
        return reasons.clone();
    }
    let named = |(kind, reasons): &(Multiplier, Vec<String>)| format!("on {}: {}", kind.name(), reasons.join("; "));
    all.iter().map(named).collect()
}
