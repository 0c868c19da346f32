//! Consumers in turn (`satune.ping_pong`): two teams of the nest's threads take one tile after the other, each every other one.
//!
//! ```text
//!                team 0                  team 1
//!   tile 0       multiply
//!   tile 1       store                   multiply
//!   tile 2       multiply                store
//! ```
//! A barrier for each team says when the other has begun its last multiplication; the first team begins. What a team has in shared memory beside
//! the ring, each has for itself.
use super::emit::{guarded, Emitter};
use super::limits;
use super::nest::Nest;
use super::roles::Brought;
use crate::kernel::{ArrayId, Cond, GroupOp, Index, Stmt};
use crate::lower::index::{add, c, div, minus, mul, rem, xor};
use satune_ir::VarId;
use satune_rewrites::keys;

/// Teams that take turns.
pub const TEAMS: i64 = 2;

/// What tells teams apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InTurn {
    /// The team's number.
    pub team: VarId,
    /// How many tiles it has taken before.
    pub own: VarId,
}

/// Whether teams take a nest's tiles in turn, where it asks for it; else notes why not.
pub fn decide(nest: &mut Nest, brought: &[Brought], max_threads: i64) {
    if !nest.asks_for_turns {
        return;
    }
    let of_tile = |ring: &Brought| nest.turns.is_some_and(|turns| ring.is_once_in(turns.turn));
    let why = match brought {
        [] => Some("no producer brings its tiles"),
        _ if nest.pieces().is_some() => Some("steps of tiles are dealt out"),
        _ if nest.turns.is_none() => Some("a block has one tile"),
        [ring] if of_tile(ring) => {
            (!limits::producer(nest, TEAMS, max_threads)).then_some("there are too many threads")
        }
        _ => Some("a tile has more than one loop of multiplications"),
    };
    match why {
        Some(why) => nest.notes.push(format!("annotation {} is ignored: {why}", keys::PING_PONG)),
        None => nest.in_turn = Some(InTurn { team: nest.fresh(TEAMS), own: nest.fresh(1 << 20) }),
    }
}

impl Nest {
    /// Teams of its threads.
    pub fn teams(&self) -> i64 {
        self.in_turn.map_or(1, |_| TEAMS)
    }
}

impl Emitter<'_> {
    /// The number of a team's tile among the block's, from that among its own; and how many it takes of so many.
    pub(super) fn every_other(&self, own: &Index, count: Index) -> (Index, Index) {
        match self.team() {
            None => (own.clone(), count),
            Some(team) => {
                let left = minus(add(count, c(TEAMS - 1)), team.clone());
                (add(mul(own.clone(), TEAMS), team), div(left, TEAMS))
            }
        }
    }

    /// The number of the team whose code is emitted.
    fn team(&self) -> Option<Index> {
        self.nest.in_turn.and_then(|turn| self.role.as_ref().map(|_| self.env.get(&turn.team).cloned()))?
    }

    /// Multiplications of a tile when it is the team's turn; one thread of each four warps tells the other team.
    pub(super) fn when_it_is_its_turn(
        &self,
        order: Option<ArrayId>,
        who: &Cond,
        multiplications: Vec<Stmt>,
    ) -> Vec<Stmt> {
        let (Some(order), Some(team), Some(turn)) = (order, self.team(), self.nest.in_turn) else {
            return multiplications;
        };
        let own = self.env.get(&turn.own).cloned().unwrap_or(c(0));
        let parity = rem(add(add(own, team.clone()), c(1)), 2);
        let mut out = vec![Stmt::Group(GroupOp::WaitPhase { barrier: (order, team.clone()), parity })];
        out.extend(multiplications);
        let arrive = GroupOp::Arrive { barrier: (order, xor(team, c(1))) };
        out.extend(guarded(who.clone(), vec![Stmt::Group(arrive)]));
        out
    }
}
