//! Whether a space holds a given schedule.
use super::{Axis, CoresPlan, Pair, Role, Side, Space, Stage, State, Term};
use egg::Id;

/// The first decision of a plan that a space does not offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the space has no {wanted} here; it has {offered}")]
pub struct NotInSpace {
    /// What the plan asks for.
    pub wanted: String,
    /// What the class offers.
    pub offered: String,
}

impl Space {
    /// Checks that the plan is a program of the space.
    ///
    /// # Errors
    /// The deepest decision on the way that the space does not offer.
    pub fn contains(&self, plan: &CoresPlan) -> Result<(), NotInSpace> {
        Finder { space: self, plan }.find(self.egraph.find(self.root), 0).map_err(|(_, missing)| missing)
    }
}

struct Finder<'a> {
    space: &'a Space,
    plan: &'a CoresPlan,
}

type Missing = (usize, NotInSpace);

impl Finder<'_> {
    /// `blocks`: loops over blocks passed so far.
    fn find(&self, class: Id, blocks: usize) -> Result<(), Missing> {
        let stage = self.space.state(class).stage;
        let mut deepest: Option<Missing> = None;
        let mut offered = Vec::new();
        for node in self.space.choices(class) {
            offered.push(node.to_string());
            if !self.fits(node, self.space.state(class), blocks) {
                continue;
            }
            let next = match node {
                Term::Multiply(_) => return Ok(()),
                Term::Stage { children, side, .. } | Term::Strip { children, side, .. } => {
                    if !self.fill_fits(self.space.egraph.find(children[0]), *side) {
                        continue;
                    }
                    children[1]
                }
                other => match egg::Language::children(other).first() {
                    Some(child) => *child,
                    None => return Ok(()),
                },
            };
            let passed = blocks + usize::from(matches!(node, Term::Loop { role: Role::Block | Role::Group, .. }));
            match self.find(self.space.egraph.find(next), passed) {
                Ok(()) => return Ok(()),
                Err((depth, missing)) => {
                    if deepest.as_ref().is_none_or(|(d, _)| depth + 1 > *d) {
                        deepest = Some((depth + 1, missing));
                    }
                }
            }
        }
        offered.truncate(12);
        let wanted = format!("choice at {stage:?} that fits the schedule");
        Err(deepest.unwrap_or((0, NotInSpace { wanted, offered: offered.join(", ") })))
    }

    fn fits(&self, node: &Term, state: &State, blocks: usize) -> bool {
        let stage = state.stage;
        let p = self.plan;
        match node {
            Term::Split(_) => p.split_k > 1,
            Term::Grid(_) => p.split_k == 1,
            Term::Cta { threads, .. } => *threads == p.threads,
            Term::Write(_) => p.accumulators,
            Term::InPlace(_) => !p.accumulators,
            Term::Init(_) => p.init_hoisted,
            Term::Stage { side, layout, .. } => {
                !p.staging(*side).hoisted && p.staging(*side).shared.is_some_and(|(l, _)| l == *layout)
            }
            Term::Strip { side, layout, .. } => {
                p.staging(*side).hoisted && p.staging(*side).shared.is_some_and(|(l, _)| l == *layout)
            }
            Term::Direct { .. } => [Side::A, Side::B]
                .into_iter()
                .all(|side| p.staging(side).shared.is_some() == state.place(side).layout().is_some()),
            Term::Fragment { side, vector, .. } => p.staging(*side).local == Some(*vector),
            Term::Operands(_) => p.a.local.is_none() || p.b.local.is_none(),
            Term::Loop { axis, role, extent, total, .. } => {
                self.loop_fits(*axis, *role, *extent, *total, stage, blocks)
            }
            Term::Tensor { .. } | Term::Dealt { .. } | Term::Operand { .. } | Term::Matrix { .. } => false,
            _ => true,
        }
    }

    fn loop_fits(&self, axis: Axis, role: Role, extent: i64, total: i64, stage: Stage, blocks: usize) -> bool {
        let p = self.plan;
        let along = |pair: Pair| if axis == Axis::M { pair.m } else { pair.n };
        match role {
            Role::Block | Role::Group => p
                .blocks
                .get(blocks)
                .is_some_and(|l| l.axis == axis && l.extent == extent && l.group == (role == Role::Group)),
            Role::Pipeline(pipe) => pipe == p.pipe && extent == (total + p.k_tile - 1) / p.k_tile,
            Role::Serial if axis != Axis::K => true,
            Role::Serial | Role::Unroll if axis == Axis::K => {
                total == extent * p.k_step && p.unroll_k == (role == Role::Unroll)
            }
            Role::Vthread => match stage {
                Stage::CtaVthread { .. } => extent == along(p.vthread_outer),
                _ => extent == along(p.vthread_inner),
            },
            Role::Warp => {
                let first = matches!(stage, Stage::Warps { m: true, n: true });
                let both = p.warps.m > 1 && p.warps.n > 1;
                extent == along(p.warps) && (!first || !both || p.warps_m_outer == (axis == Axis::M))
            }
            Role::Thread => {
                let first = matches!(stage, Stage::Lanes { m: true, n: true });
                let both = p.lanes.m > 1 && p.lanes.n > 1;
                extent == along(p.lanes) && (!first || !both || p.lanes_m_outer == (axis == Axis::M))
            }
            Role::Unroll => match axis {
                Axis::M => extent == p.registers.m,
                _ => extent * i64::from(p.store_vector) == p.registers.n,
            },
            Role::Vector => extent == i64::from(p.store_vector),
            Role::Serial => true,
        }
    }

    /// Whether a class of copies holds the one that the plan wants.
    fn fill_fits(&self, class: Id, side: Side) -> bool {
        let Some((_, fill)) = self.plan.staging(side).shared else { return false };
        self.space.choices(class).any(|node| match node {
            Term::CopyElement(_) => true,
            Term::Fuse { coalesced, body, .. } => {
                *coalesced == fill.coalesced && self.fill_fits(self.space.egraph.find(body[0]), side)
            }
            Term::Loop { role, extent, body, .. } => {
                let fits = match role {
                    Role::Vector => *extent == i64::from(fill.vector),
                    Role::Unroll => fill.unroll,
                    Role::Serial => !fill.unroll,
                    _ => true,
                };
                fits && self.fill_fits(self.space.egraph.find(body[0]), side)
            }
            _ => false,
        })
    }
}
