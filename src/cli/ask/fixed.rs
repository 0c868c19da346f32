//! What a question fixes of a product's schedules, and which programs of a space keep to it.
use super::tensor::{MmaFixed, Multiplier, WgmmaFixed};
use egg::{Id, Language};
use satune_ir::term::{Axis, CoresPlan, Fill, Pair, Pipe, Role, Schedule, Side, Space, Stage, StagedLayout, Term};

/// What is fixed of an operand's way to the arithmetic.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Operand {
    /// Copied to shared memory or not.
    pub shared: Option<bool>,
    /// Copied above the k loop, or in it.
    pub hoisted: Option<bool>,
    /// Rows along k.
    pub k_major: Option<bool>,
    pub pad: Option<u32>,
    pub swizzle: Option<bool>,
    /// Elements per access of the copy.
    pub fill: Option<u32>,
    pub coalesced: Option<bool>,
    pub fill_unroll: Option<bool>,
    /// `Some(None)`: read where it is.
    pub local: Option<Option<u32>>,
}

impl Operand {
    /// Whether it has to be in shared memory.
    pub fn staged(&self) -> bool {
        self.shared == Some(true)
            || self.hoisted.is_some()
            || self.k_major.is_some()
            || self.pad.is_some()
            || self.swizzle.is_some()
            || self.fill.is_some()
            || self.coalesced.is_some()
            || self.fill_unroll.is_some()
    }

    /// Layouts that it may have, of those whose rows are padded by so much or not.
    pub fn layouts(&self, pad: u32) -> Vec<StagedLayout> {
        let pads = self.pad.map_or(vec![0, pad], |p| vec![p]);
        let both = [true, false].into_iter().flat_map(|k| [false, true].map(|swizzle| (k, swizzle)));
        let all = both
            .flat_map(|(k_major, swizzle)| pads.iter().map(move |pad| StagedLayout { k_major, pad: *pad, swizzle }));
        all.filter(|layout| self.layout_fits(*layout)).collect()
    }

    fn layout_fits(&self, layout: StagedLayout) -> bool {
        self.shared != Some(false)
            && self.k_major.is_none_or(|k| k == layout.k_major)
            && self.pad.is_none_or(|p| p == layout.pad)
            && self.swizzle.is_none_or(|s| s == layout.swizzle)
    }
}

/// What a question fixes; the rest is free. What all kinds of schedules have, and what those on single threads have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fixed {
    /// What multiplies.
    pub kind: Option<Multiplier>,
    /// The transposed product is computed, on tensor cores.
    pub swapped: Option<bool>,
    pub mma: MmaFixed,
    pub wgmma: WgmmaFixed,
    pub block: Option<Pair>,
    pub k: Option<i64>,
    pub step: Option<i64>,
    /// Threads of a block.
    pub threads: Option<u32>,
    /// Threads along m and n: warps times lanes.
    pub thread_grid: Option<Pair>,
    pub warps: Option<Pair>,
    pub warps_m_outer: Option<bool>,
    pub lanes: Option<Pair>,
    pub lanes_m_outer: Option<bool>,
    /// Virtual threads along m and n: outside times inside the warp.
    pub vthreads: Option<Pair>,
    pub vthreads_outside: Option<Pair>,
    pub vthreads_inside: Option<Pair>,
    pub registers: Option<Pair>,
    pub registers_m_outer: Option<bool>,
    pub stages: Option<Pipe>,
    pub split: Option<i64>,
    /// Whether the loop over m is the outer one of the two over blocks.
    pub blocks_m_outer: Option<bool>,
    /// `Some(None)`: no grouped rasterization.
    pub group: Option<Option<(Axis, i64)>>,
    pub a: Operand,
    pub b: Operand,
    pub unroll: Option<bool>,
    pub store: Option<u32>,
    pub init_hoisted: Option<bool>,
    pub accumulators: Option<bool>,
}

const ONE: Pair = Pair { m: 1, n: 1 };

/// The order of two loops is a decision only where both run more than once.
fn order(pair: Pair, m_outer: bool) -> Option<bool> {
    (pair.m > 1 && pair.n > 1).then_some(m_outer)
}

impl Fixed {
    /// Every decision of a contraction's schedule; none of others.
    pub fn of_schedule(schedule: &Schedule) -> Option<Fixed> {
        match schedule {
            Schedule::Cores(plan) => Some(Fixed::of(plan)),
            Schedule::Mma(plan) => Some(Fixed::of_mma(plan)),
            Schedule::Wgmma(plan) => Some(Fixed::of_wgmma(plan)),
            Schedule::Stream(_) => None,
        }
    }

    /// Every decision of a plan.
    pub fn of(plan: &CoresPlan) -> Fixed {
        let operand = |side: Side| {
            let staging = plan.staging(side);
            let mut fixed =
                Operand { shared: Some(staging.shared.is_some()), local: Some(staging.local), ..Operand::default() };
            if let Some((layout, Fill { coalesced, vector, unroll })) = staging.shared {
                fixed.hoisted = Some(staging.hoisted);
                fixed.k_major = Some(layout.k_major);
                fixed.pad = Some(layout.pad);
                fixed.swizzle = Some(layout.swizzle);
                fixed.fill = Some(vector);
                fixed.coalesced = Some(coalesced);
                fixed.fill_unroll = Some(unroll);
            }
            fixed
        };
        let tiled: Vec<_> = plan.blocks.iter().filter(|l| matches!(l.axis, Axis::M | Axis::N)).collect();
        let group = plan.blocks.iter().find(|l| l.group).map(|l| (l.axis, l.extent));
        let both = group.is_some() || tiled.iter().all(|l| l.extent > 1);
        Fixed {
            kind: Some(Multiplier::Cores),
            swapped: None,
            mma: MmaFixed::default(),
            wgmma: WgmmaFixed::default(),
            block: Some(plan.tile),
            k: Some(plan.k_tile),
            step: Some(plan.k_step),
            threads: Some(plan.threads),
            thread_grid: None,
            warps: Some(plan.warps),
            warps_m_outer: order(plan.warps, plan.warps_m_outer),
            lanes: Some(plan.lanes),
            lanes_m_outer: order(plan.lanes, plan.lanes_m_outer),
            vthreads: None,
            vthreads_outside: Some(plan.vthread_outer),
            vthreads_inside: Some(plan.vthread_inner),
            registers: Some(plan.registers),
            // The loop over n stands over pieces of one store each.
            registers_m_outer: order(
                Pair { m: plan.registers.m, n: plan.registers.n / i64::from(plan.store_vector.max(1)) },
                plan.registers_m_outer,
            ),
            stages: Some(plan.pipe),
            split: Some(plan.split_k),
            blocks_m_outer: tiled.first().filter(|_| both).map(|l| l.axis == Axis::M),
            group: Some(group),
            a: operand(Side::A),
            b: operand(Side::B),
            unroll: Some(plan.unroll_k),
            store: Some(plan.store_vector),
            init_hoisted: Some(plan.init_hoisted),
            accumulators: Some(plan.accumulators),
        }
    }

    pub fn operand(&self, side: Side) -> &Operand {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    /// The same question without what no single node says (threads and virtual threads along an axis, each a product
    /// of two loops): one question for every way to make the products.
    pub fn variants(&self) -> Vec<Fixed> {
        let mut all = vec![self.clone()];
        if let Some(grid) = self.thread_grid {
            let lanes = [(1, 32), (2, 16), (4, 8), (8, 4), (16, 2), (32, 1)].map(|(m, n)| Pair { m, n });
            all = products(&all, grid, &lanes, |f, inner, outer| {
                merge(&mut f.lanes, inner) && merge(&mut f.warps, outer)
            });
        }
        if let Some(total) = self.vthreads {
            let powers = [1, 2, 4, 8];
            let inner: Vec<Pair> = powers.iter().flat_map(|m| powers.map(|n| Pair { m: *m, n })).collect();
            all = products(&all, total, &inner, |f, inner, outer| {
                merge(&mut f.vthreads_inside, inner) && merge(&mut f.vthreads_outside, outer)
            });
        }
        all
    }

    /// Whether a program with this node can keep to what is fixed.
    pub fn keeps(&self, space: &Space, class: Id, node: &Term) -> bool {
        let state = space.state(class);
        let below = |index: usize| node.children().get(index).map(|id| space.state(space.egraph.find(*id)));
        let stands = |side: Side| state.place(side).layout().is_some();
        match node {
            Term::Split(_) => self.split.is_none_or(|s| s > 1),
            Term::Grid(_) => self.split.is_none_or(|s| s == 1),
            Term::Cta { threads, .. } => {
                self.kinds().contains(&Multiplier::Cores)
                    && self.threads.is_none_or(|t| t == *threads)
                    && self.block.is_none_or(|b| (b.m, b.n) == (state.tile.m, state.tile.n))
            }
            Term::Write(_) => self.accumulators != Some(false) && self.init_hoisted != Some(false),
            Term::InPlace(_) => self.accumulators != Some(true) && self.init_hoisted != Some(true),
            Term::Stage { side, layout, .. } => {
                let asked = self.operand(*side);
                asked.hoisted != Some(true)
                    && asked.layout_fits(*layout)
                    // A comes before B.
                    && (*side == Side::A || stands(Side::A) || !self.a.staged())
            }
            Term::Strip { side, layout, .. } => {
                let asked = self.operand(*side);
                asked.hoisted != Some(false)
                    && asked.layout_fits(*layout)
                    && (*side == Side::A || stands(Side::A) || self.a.hoisted != Some(true))
            }
            Term::Direct { .. } => [Side::A, Side::B].into_iter().all(|s| stands(s) || !self.operand(s).staged()),
            Term::Fragment { side, vector, .. } => self.operand(*side).local.is_none_or(|l| l == Some(*vector)),
            Term::Operands(_) => [&self.a, &self.b].iter().all(|o| !matches!(o.local, Some(Some(_)))),
            Term::Fuse { side, coalesced, .. } => self.operand(*side).coalesced.is_none_or(|c| c == *coalesced),
            Term::Loop { axis, role, extent, total, .. } => {
                let Some(body) = below(0) else { return true };
                match role {
                    Role::Pipeline(pipe) => {
                        let strips = [Side::A, Side::B];
                        self.stages.is_none_or(|p| p == *pipe)
                            && self.k.is_none_or(|k| k == body.tile.k)
                            && strips.into_iter().all(|s| stands(s) || self.operand(s).hoisted != Some(true))
                    }
                    _ => self.keeps_loop((*axis, *role), (*extent, *total), state.stage, body.stage),
                }
            }
            Term::Tensor { .. } | Term::Dealt { .. } | Term::Operand { .. } | Term::Matrix { .. } => {
                self.keeps_tensor(space, state, node)
            }
            _ => true,
        }
    }

    fn keeps_loop(&self, (axis, role): (Axis, Role), (extent, total): (i64, i64), stage: Stage, below: Stage) -> bool {
        let along = |pair: Option<Pair>| pair.is_none_or(|p| extent == if axis == Axis::M { p.m } else { p.n });
        let ordered = |m_outer: Option<bool>| m_outer.is_none_or(|m| m == (axis == Axis::M));
        match (role, stage) {
            (Role::Vector, Stage::FusedCopy { side, .. }) => {
                self.operand(side).fill.is_none_or(|v| i64::from(v) == extent)
            }
            (Role::Serial | Role::Unroll, Stage::FusedCopy { side, .. }) => {
                self.operand(side).fill_unroll.is_none_or(|u| u == (role == Role::Unroll))
            }
            (_, Stage::FusedCopy { .. }) => true,
            (Role::Block, _) if axis == Axis::K => self.split.is_none_or(|s| s == extent),
            (Role::Block, Stage::Blocks { batch: 0, m: true, n: true }) => {
                let grouped = matches!(below, Stage::Grouped { .. });
                let group = match self.group {
                    None => true,
                    Some(None) => !grouped,
                    Some(Some((along, _))) => grouped && along == axis,
                };
                group && ordered(self.blocks_m_outer)
            }
            (Role::Group, _) => !matches!(self.group, Some(Some((_, size))) if size != extent),
            (Role::Serial | Role::Unroll, Stage::Steps) => {
                self.step.is_none_or(|s| s * extent == total) && self.unroll.is_none_or(|u| u == (role == Role::Unroll))
            }
            (Role::Vthread, Stage::CtaVthread { .. }) => along(self.vthreads_outside),
            (Role::Vthread, _) => along(self.vthreads_inside),
            (Role::Warp, _) => {
                along(self.warps) && (stage != Stage::Warps { m: true, n: true } || ordered(self.warps_m_outer))
            }
            (Role::Thread, _) => {
                along(self.lanes) && (stage != Stage::Lanes { m: true, n: true } || ordered(self.lanes_m_outer))
            }
            (Role::Unroll, Stage::Registers { .. }) => {
                let covered = self.registers.is_none_or(|p| total == if axis == Axis::M { p.m } else { p.n });
                covered && (stage != Stage::Registers { m: true, n: true } || ordered(self.registers_m_outer))
            }
            (Role::Vector, _) => self.store.is_none_or(|v| i64::from(v) == extent),
            _ => true,
        }
    }
}

/// Fixes a pair; false where it is fixed to something else already.
fn merge(slot: &mut Option<Pair>, pair: Pair) -> bool {
    let fits = slot.is_none_or(|p| p == pair);
    *slot = Some(pair);
    fits
}

/// For every question and every inner pair that divides the total: the question with both factors fixed.
fn products(
    questions: &[Fixed],
    total: Pair,
    inner: &[Pair],
    fix: impl Fn(&mut Fixed, Pair, Pair) -> bool,
) -> Vec<Fixed> {
    let mut out = Vec::new();
    for question in questions {
        for pair in inner {
            if total.m % pair.m != 0 || total.n % pair.n != 0 {
                continue;
            }
            let outer = Pair { m: total.m / pair.m, n: total.n / pair.n };
            let mut fixed = question.clone();
            if fix(&mut fixed, *pair, outer) {
                out.push(fixed);
            }
        }
    }
    out
}

impl Fixed {
    /// Fills in what follows from the rest: the order of two loops is left free where one of them runs once.
    pub fn settle(&mut self) {
        for (pair, order) in [
            (self.warps, &mut self.warps_m_outer),
            (self.lanes, &mut self.lanes_m_outer),
            (self.registers, &mut self.registers_m_outer),
        ] {
            if pair.is_some_and(|p| p.m == 1 || p.n == 1) {
                *order = None;
            }
        }
        if self.vthreads == Some(ONE) {
            (self.vthreads_outside, self.vthreads_inside) = (Some(ONE), Some(ONE));
        }
    }
}
