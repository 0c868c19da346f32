//! From a term to the plan that it stands for.
use super::{Axis, BlockLoop, Contraction, CoresPlan, Fill, Pair, Pipe, Role, Side, StagedLayout, Staging, Term};
use egg::{Id, Language, RecExpr};

/// A term that is not a complete schedule of the contraction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a complete schedule: {0}")]
pub struct Incomplete(pub String);

impl CoresPlan {
    /// A plan with nothing decided: one block, one thread, no staging.
    pub fn naive(contraction: &Contraction) -> CoresPlan {
        let one = Pair { m: 1, n: 1 };
        let none = Staging::default();
        CoresPlan {
            blocks: Vec::new(),
            split_k: 1,
            tile: one,
            k_part: contraction.extent(Axis::K),
            k_tile: 1,
            threads: 1,
            pipe: Pipe::Plain,
            a: none,
            b: none,
            vthread_outer: one,
            warps: one,
            warps_m_outer: true,
            vthread_inner: one,
            lanes: one,
            lanes_m_outer: true,
            registers: one,
            registers_m_outer: true,
            k_step: 1,
            unroll_k: false,
            accumulators: false,
            init_hoisted: false,
            store_vector: 1,
        }
    }

    /// Reads a complete term (its last node is the root).
    ///
    /// # Errors
    /// When the term still holds an unscheduled nest or is not a chain of the term language.
    pub fn from_term(term: &RecExpr<Term>, contraction: &Contraction) -> Result<CoresPlan, Incomplete> {
        let nodes = term.as_ref();
        let root = nodes.len().checked_sub(1).ok_or_else(|| Incomplete("an empty term".into()))?;
        CoresPlan::from_nodes(&nodes[root], &|id| nodes.get(usize::from(id)), contraction)
    }

    /// Reads a complete term whose nodes are found through `node`.
    ///
    /// # Errors
    /// As [`CoresPlan::from_term`].
    pub fn from_nodes<'a>(
        root: &'a Term,
        node: &dyn Fn(Id) -> Option<&'a Term>,
        contraction: &Contraction,
    ) -> Result<CoresPlan, Incomplete> {
        let mut plan = CoresPlan::naive(contraction);
        let mut reader = Reader {
            plan: &mut plan,
            node,
            phase: Phase::Blocks,
            first_warp: true,
            first_lane: true,
            first_register: true,
        };
        reader.chain(root)?;
        plan.tile = Pair {
            m: plan.vthread_outer.m * plan.warps.m * plan.vthread_inner.m * plan.lanes.m * plan.registers.m,
            n: plan.vthread_outer.n * plan.warps.n * plan.vthread_inner.n * plan.lanes.n * plan.registers.n,
        };
        Ok(plan)
    }
}

#[derive(PartialEq)]
enum Phase {
    Blocks,
    Cta,
    Warp,
}

struct Reader<'a, 'p> {
    plan: &'p mut CoresPlan,
    node: &'p dyn Fn(Id) -> Option<&'a Term>,
    phase: Phase,
    first_warp: bool,
    first_lane: bool,
    first_register: bool,
}

impl<'a> Reader<'a, '_> {
    fn child(&self, term: &Term, index: usize) -> Result<&'a Term, Incomplete> {
        let id = term.children().get(index).ok_or_else(|| Incomplete(format!("{term} has no child {index}")))?;
        (self.node)(*id).ok_or_else(|| Incomplete(format!("{term} has a child outside the term")))
    }

    fn chain(&mut self, root: &'a Term) -> Result<(), Incomplete> {
        let mut current = root;
        loop {
            let next = match current {
                Term::Nest(state) => return Err(Incomplete(format!("{:?} is not scheduled", state.stage))),
                Term::Multiply(_) => return Ok(()),
                Term::Split(_) | Term::Grid(_) | Term::Direct { .. } | Term::Operands(_) => 0,
                Term::InPlace(_) => 0,
                Term::Write(_) => {
                    self.plan.accumulators = true;
                    0
                }
                Term::Init(_) => {
                    self.plan.init_hoisted = true;
                    0
                }
                Term::Cta { threads, .. } => {
                    self.plan.threads = *threads;
                    self.phase = Phase::Cta;
                    0
                }
                Term::Stage { side, layout, tile, .. } => {
                    let fill = self.fill(self.child(current, 0)?)?;
                    self.stage(*side, *layout, fill);
                    self.plan.k_tile = tile[1];
                    1
                }
                Term::Strip { side, layout, .. } => {
                    let fill = self.fill(self.child(current, 0)?)?;
                    self.stage(*side, *layout, fill).hoisted = true;
                    1
                }
                Term::Fragment { side, vector, .. } => {
                    match side {
                        Side::A => self.plan.a.local = Some(*vector),
                        Side::B => self.plan.b.local = Some(*vector),
                    }
                    0
                }
                Term::Loop { axis, role, extent, total, .. } => {
                    self.one_loop(*axis, *role, *extent, *total);
                    0
                }
                other => return Err(Incomplete(format!("{other} has no place in the main chain"))),
            };
            current = self.child(current, next)?;
        }
    }

    fn stage(&mut self, side: Side, layout: StagedLayout, fill: Fill) -> &mut Staging {
        let staging = match side {
            Side::A => &mut self.plan.a,
            Side::B => &mut self.plan.b,
        };
        staging.shared = Some((layout, fill));
        staging
    }

    fn one_loop(&mut self, axis: Axis, role: Role, extent: i64, total: i64) {
        let plan = &mut *self.plan;
        let set = |pair: &mut Pair| match axis {
            Axis::M => pair.m *= extent,
            Axis::N => pair.n *= extent,
            _ => {}
        };
        match role {
            Role::Block | Role::Group => {
                if axis == Axis::K {
                    plan.split_k = extent;
                    plan.k_part = total / extent.max(1);
                }
                plan.blocks.push(BlockLoop { axis, extent, group: role == Role::Group });
            }
            Role::Pipeline(pipe) => {
                plan.pipe = pipe;
                plan.k_tile = (total + extent - 1) / extent.max(1);
            }
            Role::Serial | Role::Unroll if axis == Axis::K => {
                plan.unroll_k = role == Role::Unroll;
                plan.k_step = total / extent.max(1);
                plan.k_tile = total;
            }
            Role::Serial => {}
            Role::Vthread if self.phase == Phase::Cta => set(&mut plan.vthread_outer),
            Role::Vthread => set(&mut plan.vthread_inner),
            Role::Warp => {
                if self.first_warp {
                    plan.warps_m_outer = axis == Axis::M;
                    self.first_warp = false;
                } else {
                    self.phase = Phase::Warp;
                }
                set(&mut plan.warps);
            }
            Role::Thread => {
                if self.first_lane {
                    plan.lanes_m_outer = axis == Axis::M;
                    self.first_lane = false;
                }
                set(&mut plan.lanes);
            }
            Role::Unroll => {
                if self.first_register {
                    plan.registers_m_outer = axis == Axis::M;
                    self.first_register = false;
                }
                set(&mut plan.registers);
            }
            Role::Vector => {
                plan.store_vector = u32::try_from(extent).unwrap_or(1);
                plan.registers.n *= extent;
            }
        }
    }

    fn fill(&self, root: &'a Term) -> Result<Fill, Incomplete> {
        let mut fill = Fill { coalesced: true, vector: 1, unroll: false };
        let mut current = root;
        loop {
            match current {
                Term::Fuse { coalesced, .. } => fill.coalesced = *coalesced,
                Term::Loop { role: Role::Vector, extent, .. } => fill.vector = u32::try_from(*extent).unwrap_or(1),
                Term::Loop { role: Role::Unroll, .. } => fill.unroll = true,
                Term::Loop { .. } => {}
                Term::CopyElement(_) => return Ok(fill),
                other => return Err(Incomplete(format!("{other} has no place in a copy"))),
            }
            current = self.child(current, 0)?;
        }
    }
}
