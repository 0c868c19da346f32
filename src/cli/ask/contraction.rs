//! Questions about the schedules of a contraction on single threads.
use super::fixed::Fixed;
use super::{cores, parse, Askable, Failure, Fixes};
use crate::explore::limits;
use crate::operators::Problem;
use satune_extract::Descriptor;
use satune_ir::term::{Schedule, Space, Term};
use satune_rewrites::space::{rules, saturate, Fuel, Menu};

/// Leaves a decision free.
type Release = fn(&mut Fixed);

impl Fixes for Fixed {
    type Term = Term;

    fn variants(&self) -> Vec<Fixed> {
        Fixed::variants(self)
    }

    fn keeps(&self, space: &Space, class: egg::Id, node: &Term) -> bool {
        Fixed::keeps(self, space, class, node)
    }

    fn freer(&self) -> Vec<(String, Fixed)> {
        let free: [(&str, Release); 18] = [
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
            ("A", |f| f.a = Default::default()),
            ("B", |f| f.b = Default::default()),
            ("unroll", |f| f.unroll = None),
            ("store", |f| f.store = None),
            ("init", |f| f.init_hoisted = None),
            ("accumulators", |f| f.accumulators = None),
        ];
        let without = |(name, release): &(&str, Release)| {
            let mut freer = self.clone();
            release(&mut freer);
            ((*name).to_string(), freer)
        };
        free.iter().map(without).collect()
    }
}

impl Askable for Problem {
    type Fixed = Fixed;

    fn question(&self, text: &str) -> Result<Fixed, String> {
        parse::parse(text, &self.contraction)
    }

    fn fixed_of(&self, plan: &Schedule) -> Result<Fixed, String> {
        match plan {
            Schedule::Cores(plan) => Ok(Fixed::of(plan)),
            Schedule::Stream(_) => Err("the schedule is one of streaming blocks, and the program a contraction".into()),
            Schedule::Mma(_) | Schedule::Wgmma(_) => Err(
                "the schedule uses tensor cores; why-not answers for schedules on single threads, `satune why ID` shows the parts of this one's time"
                    .into(),
            ),
        }
    }

    fn asked_space(&self, gpu: &Descriptor) -> Result<Space, Failure> {
        let limits = limits(gpu);
        let menu = Menu::of(&self.contraction, &limits);
        saturate(&self.contraction, limits, &menu, &rules::all(), Fuel::default())
            .map_err(|e| Failure::Internal(e.to_string()))
    }

    fn outside(&self, fixed: &Fixed, gpu: &Descriptor) -> Vec<String> {
        let limits = limits(gpu);
        cores::outside(fixed, &Menu::of(&self.contraction, &limits), &limits)
    }

    fn broken(&self, fixed: &Fixed, gpu: &Descriptor) -> Vec<String> {
        let limits = limits(gpu);
        cores::broken(fixed, &self.contraction, &limits, &Menu::of(&self.contraction, &limits))
    }

    fn missing(&self, space: &Space, plan: &Schedule) -> Option<String> {
        space.contains(plan.cores()?).err().map(|m| m.to_string())
    }
}
