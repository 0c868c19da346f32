//! Warps with roles: one brings tiles into a ring by the TMA, the others multiply them by `wgmma`.
//!
//! ```text
//!   for k:  (pipelined)          producer                               consumers
//!     copy A, B         ->       for k:                                 for k:
//!     multiply                     wait until a place is free             wait until its tiles are there
//!   store                          bring the tiles of k                   multiply
//!                                                                         the place of the lap before is free
//!                                                                       store
//! ```
//! A pair of barriers for each place says when its tiles have landed and when they have been read. A place is freed when the
//! multiplications behind it have begun, so that two laps' are under way; at once where the loop asks for it (`satune.eager_release`), or does more
//! than multiply. Each time the loop begins with the first place, and so many laps are written out as bring
//! the ring back to it: then places are constants, and the parity of a place's use follows from how often the loop was gone through before.
//!
//! The loops around the pipelined one are gone through by both roles; statements beside it are the consumers'.
use super::barrier::{owner, Owner};
use super::cluster::Cluster;
use super::emit::{guarded, Emitter};
use super::error::LowerError;
use super::group::{is_group, THREADS};
use super::matrix::{LANES, LANE_TAG};
use super::nest::{flag, Loop, LoopKind, Nest, Node, Thread};
use super::pipeline::{Form, Pipeline};
use super::shared;
use super::tensor_memory::Sums;
use super::tma::{self, Tiles};
use crate::kernel::{Array, ArrayId, Cond, Dim, GroupOp, Index, Role, Space, Stmt, Unroll};
use crate::lower::index::{add, c, div, minus, mul, rem, xor};
use satune_ir::term::tensor::wgmma_conditions;
use satune_ir::{BufferId, DType, Program, VarId};
use satune_rewrites::keys;
use std::collections::{HashMap, HashSet};

/// A loop whose tiles a producer can bring.
#[derive(Clone, Debug)]
pub struct Brought {
    v: VarId,
    /// The loops around it, outermost first, with their laps.
    outer: Laps,
    /// Bytes of a lap.
    bytes: u32,
    places: u32,
    /// How often a group of four warps says that a place is free.
    arrivals: i64,
}

impl Brought {
    /// Its variable.
    pub fn variable(&self) -> VarId {
        self.v
    }

    /// Whether it is gone through once in each lap of a loop, and that loop once.
    pub fn is_once_in(&self, v: VarId) -> bool {
        matches!(self.outer.as_slice(), [(outer, _)] if *outer == v)
    }
}

/// A loop whose tiles a producer brings.
#[derive(Clone, Debug)]
pub struct Ring {
    /// One barrier for each place, complete when its tiles are there, and one when they have been read.
    pub full: ArrayId,
    pub empty: ArrayId,
    /// Of teams that take turns: one for each, complete when it may begin.
    pub order: Option<ArrayId>,
    of: Brought,
}

/// Threads that meet: all that multiply, or one group of four warps of them.
#[derive(Clone, Debug)]
pub struct Consumer {
    /// The group's number.
    pub number: Index,
    /// How many they are.
    pub threads: u32,
    /// The number of the thread's four warps, among all that multiply.
    pub group: Index,
}

/// Loops, with their laps.
type Laps = Vec<(VarId, i64)>;

/// A lap of a ring's loop.
pub(super) struct Lap {
    /// Its number.
    pub number: Index,
    /// Its place in the ring, and the parity of the place's use.
    pub place: Index,
    pub parity: Index,
    /// The place of the lap before, and when there is one.
    pub before: Option<(Index, Cond)>,
}

/// The loops of a nest whose tiles a producer can bring, where all pipelined loops are such.
pub fn brought(nest: &Nest, program: &Program, pipelines: &HashMap<VarId, Pipeline>, tiles: &Tiles) -> Vec<Brought> {
    let mut found = Vec::new();
    let all = walk(nest, &nest.body, &mut Vec::new(), &mut |l, outer| {
        let Some(p) = pipelines.get(&l.var) else { return true };
        let copies: Option<Vec<usize>> = l.body[..p.copies].iter().map(|node| tma::is_tile(node, tiles)).collect();
        let Some(copies) = copies.filter(|_| matches!(p.form, Form::Ring(..)) && p.copies > 0) else { return false };
        let Some(outer) = outer else { return false };
        let bytes = copies.iter().map(|leaf| tiles.by_leaf[leaf].bytes(program)).sum::<i64>() as u32;
        let arrivals = if flag(&l.annotations, keys::ARRIVE_PER_WARP) { THREADS / LANES } else { 1 };
        found.push(Brought { v: l.var, outer: outer.clone(), bytes, places: p.slots() as u32, arrivals });
        true
    });
    if all {
        found
    } else {
        Vec::new()
    }
}

/// Their rings, for so many teams; the barriers are behind the other shared arrays.
pub fn rings(
    brought: Vec<Brought>,
    teams: i64,
    (arrays, shared_bytes): (&mut Vec<Array>, &mut u32),
) -> HashMap<VarId, Ring> {
    let mut array = |name: &str, number: usize, len: u64| {
        let name = if number == 0 { name.to_string() } else { format!("{name}_{number}") };
        let shared_offset = shared_bytes.next_multiple_of(8);
        *shared_bytes = shared_offset + 8 * len as u32;
        let (dtype, space, align, written) = (DType::U64, Space::Shared, 8, true);
        arrays.push(Array { name, dtype, len, space, align, shared_offset, written });
        ArrayId(arrays.len() as u32 - 1)
    };
    let mut rings = HashMap::new();
    for (number, of) in brought.into_iter().enumerate() {
        let [full, empty] = ["full", "empty"].map(|name| array(name, number, of.places.into()));
        let order = (teams > 1).then(|| array("order", number, teams as u64));
        rings.insert(of.v, Ring { full, empty, order, of });
    }
    rings
}

/// Notes what is said of tiles that no producer brings.
pub fn note_ignored(nest: &mut Nest, pipelines: &HashMap<VarId, Pipeline>) {
    let mut notes = Vec::new();
    walk(nest, &nest.body, &mut Vec::new(), &mut |l, _| {
        let followed =
            |key: &str| key == keys::EAGER_RELEASE && pipelines.get(&l.var).is_some_and(|p| p.is_for_groups(l));
        let asked = [keys::EAGER_RELEASE, keys::ARRIVE_PER_WARP].into_iter();
        let asked = asked.filter(|key| flag(&l.annotations, key) && !followed(key));
        notes.extend(
            asked.map(|key| format!("annotation {key} of loop {} is ignored: no producer brings its tiles", l.name)),
        );
        true
    });
    nest.notes.extend(notes);
}

/// Calls `f` with every loop and the loops around it, none where those are not gone through alike by all threads.
fn walk(
    nest: &Nest,
    nodes: &[Node],
    outer: &mut Vec<Option<(VarId, i64)>>,
    f: &mut dyn FnMut(&Loop, Option<&Laps>) -> bool,
) -> bool {
    nodes.iter().all(|node| {
        let Node::Loop(l) = node else { return true };
        let around: Option<Laps> = outer.iter().copied().collect();
        if !f(l, around.as_ref()) {
            return false;
        }
        let is_plain = l.steps.is_none() && matches!(l.kind, LoopKind::Serial | LoopKind::Unrolled);
        let turns = nest.turns.filter(|turns| turns.tile == l.var).map(|turns| (turns.turn, turns.most));
        outer.push(turns.or(is_plain.then_some((l.var, l.extent))));
        let all = walk(nest, &l.body, outer, f);
        outer.pop();
        all
    })
}

/// Whether what one group of four warps writes to shared memory no other reads.
fn groups_are_apart(nest: &Nest, program: &Program) -> bool {
    let of_group = |t: &&Thread| t.block && t.extent > 1 && t.tag != LANE_TAG;
    let threads: Vec<&Thread> = nest.threads.iter().filter(of_group).collect();
    let mut owners: HashMap<BufferId, Vec<Option<Owner>>> = HashMap::new();
    let mut written = HashSet::new();
    nest.leaves(&mut |leaf, _| {
        // Tiles that a producer brings are read by all.
        if leaf.instruction.as_ref().is_none_or(|what| !what.multiplies())
            && !(tma::asks(leaf) && is_shared(program, leaf.target))
        {
            written.insert(leaf.target);
        }
        for (b, at) in leaf.reads.iter().map(|(b, at)| (*b, at)).chain([(leaf.target, &leaf.at)]) {
            owners.entry(b).or_default().push(owner(at, &threads, &nest.ranges));
        }
    });
    written.retain(|b| is_shared(program, *b));
    written.iter().all(|b| owners[b].windows(2).all(|pair| pair[0] == pair[1]) && owners[b].iter().all(Option::is_some))
}

fn is_shared(program: &Program, b: BufferId) -> bool {
    shared::is_shared(&program.buffer(b).scope)
}

fn thread() -> Index {
    Index::ThreadIdx(Dim::X)
}

impl Emitter<'_> {
    /// The threads of the nest, which multiply.
    pub(super) fn consumers(&self) -> i64 {
        self.nest.extents(true).into_iter().product()
    }

    /// All of the kernel.
    pub(super) fn with_roles(&mut self) -> Result<Vec<Stmt>, LowerError> {
        let (groups, teams) = (self.consumers() / THREADS, self.nest.teams());
        let size = self.cluster.as_ref().map_or(1, Cluster::size);
        // In a cluster nobody reaches another's barriers before they are made, or leaves while another may.
        let meet = (size > 1).then_some(Stmt::Group(GroupOp::ClusterBarrier));
        // Nor are sums in tensor memory freed that others read.
        let end = (size > 1 || self.sums.is_some()).then_some(Stmt::Group(GroupOp::ClusterBarrier));
        let maps = 0..self.tiles.mapped.len() as u32;
        let mut begin: Vec<Stmt> = maps.map(|map| Stmt::Group(GroupOp::PrefetchMap { map })).collect();
        let mut rings: Vec<&Ring> = self.rings_of_tiles.values().collect();
        rings.sort_by_key(|ring| ring.full);
        for ring in rings {
            let mut init = |(array, arrivals), count: i64| {
                begin.extend(
                    (0..count).map(|at| Stmt::Group(GroupOp::BarrierInit { barrier: (array, c(at)), arrivals })),
                );
            };
            // Instructions of one thread free a place, where they do it themselves.
            let arrivals = if self.sums.is_some() { 1 } else { ring.of.arrivals };
            for place in [(ring.full, 1), (ring.empty, (size * groups * arrivals) as u32)] {
                init(place, ring.of.places.into());
            }
            ring.order.into_iter().for_each(|order| init((order, groups as u32), teams));
        }
        begin.extend(self.sums.iter().flat_map(|sums| sums.barriers(groups * teams)));
        begin.push(Stmt::Group(GroupOp::FenceBarrierInit));
        // The number of the block, which both roles know.
        let mut out = std::mem::take(&mut self.lets);
        out.extend(guarded(Cond::Eq(thread(), c(0)), begin));
        out.extend(self.sums.iter().flat_map(Sums::allocate));
        out.push(meet.unwrap_or(Stmt::Barrier));
        out.extend(self.sums.iter().flat_map(Sums::found));
        let nest = self.nest;
        let produced = self.produced(&nest.body)?;
        let mut code = std::mem::take(&mut self.lets);
        code.extend(produced);
        let mut producer = guarded(Cond::Eq(thread(), c(0)), code);
        producer.extend(end.clone());
        producer.extend(self.sums.iter().flat_map(Sums::free));
        // What the producer has computed, the consumers do not know.
        self.forget();
        let [x, y, z] = nest.extents(true);
        let apart = groups > 1 && teams == 1 && groups_are_apart(nest, self.program);
        let var = (apart || teams > 1).then(|| self.fresh());
        let instance = var.map_or(c(0), Index::Var);
        let number = match groups {
            1 => c(0),
            _ if apart => instance.clone(),
            _ => {
                let of_all = minus(div(thread(), x), c(1));
                if teams > 1 {
                    rem(of_all, groups)
                } else {
                    of_all
                }
            }
        };
        self.env.extend(nest.in_turn.map(|turn| (turn.team, instance.clone())));
        for t in nest.threads.iter().filter(|t| t.block) {
            let index = match t.tag.rsplit('.').next() {
                Some("x") => rem(thread(), x),
                Some("y") if z == 1 => number.clone(),
                Some("y") => rem(number.clone(), y),
                _ => div(number.clone(), y),
            };
            self.env.insert(t.var, index);
        }
        let (instances, threads) = if apart { (groups, THREADS) } else { (teams, self.consumers()) };
        let group = if apart { instance.clone() } else { add(mul(instance.clone(), groups), number) };
        self.role = Some(Consumer { number: instance, threads: threads as u32, group });
        let mut consumer = self.own_body()?;
        consumer.extend(end);
        let sums: i64 = self.arrays.iter().filter(|a| a.space.is_private()).map(words).sum();
        // Of one block all that a multiprocessor has.
        let alone = nest.min_blocks.is_none_or(|blocks| blocks == 1);
        let registers =
            wgmma_conditions::dealt_registers((groups * teams) as u32, sums).filter(|_| alone && self.sums.is_none());
        let of_group = (THREADS / LANES) as u32;
        let producer = Role {
            name: "producer".into(),
            first_warp: 0,
            warps: of_group,
            instances: 1,
            number: None,
            registers: registers.map(|r| r.0),
            body: producer,
        };
        let consumer = Role {
            name: "consumer".into(),
            first_warp: of_group,
            warps: (threads / LANES) as u32,
            instances: instances as u32,
            number: var,
            registers: registers.map(|r| r.1),
            body: consumer,
        };
        out.push(Stmt::Roles(vec![producer, consumer]));
        Ok(out)
    }

    /// What the producer does of a list of statements.
    fn produced(&mut self, nodes: &[Node]) -> Result<Vec<Stmt>, LowerError> {
        let mut out = Vec::new();
        for node in nodes {
            let Node::Loop(l) = node else { continue };
            if self.rings_of_tiles.contains_key(&l.var) {
                out.extend(self.filled(l)?);
                continue;
            }
            if let Some(code) = self.turns(l, &|this| this.produced(&l.body)) {
                out.extend(code?);
                continue;
            }
            let var = self.fresh();
            let body = self.with(l.var, Index::Var(var), |this| this.produced(&l.body))?;
            if !body.is_empty() {
                let (name, start, extent) = (l.name.clone(), c(0), c(l.extent));
                out.push(Stmt::For { var, name, start, extent, unroll: Unroll::No, body });
            }
        }
        Ok(out)
    }

    /// The tiles of a loop, brought one lap after the other.
    fn filled(&mut self, l: &Loop) -> Result<Vec<Stmt>, LowerError> {
        let (Some(p), Some(ring)) = (self.pipelines.get(&l.var).cloned(), self.rings_of_tiles.get(&l.var).cloned())
        else {
            return Ok(Vec::new());
        };
        self.laps_of_ring(l, &p, &ring, &|this, lap| {
            let barrier = (ring.full, lap.place.clone());
            let free =
                GroupOp::WaitPhase { barrier: (ring.empty, lap.place.clone()), parity: xor(lap.parity.clone(), c(1)) };
            let mut list = [free, GroupOp::ArriveExpect { barrier: barrier.clone(), bytes: ring.of.bytes }]
                .map(Stmt::Group)
                .to_vec();
            let bound = [(l.var, lap.number.clone()), (p.slot, lap.place.clone())];
            for node in &l.body[..p.copies] {
                let tile = tma::is_tile(node, &this.tiles).and_then(|leaf| this.tiles.by_leaf.get(&leaf).cloned());
                if let Some(tile) = tile {
                    list.extend(this.with_all(&bound, |this| this.load_tile(&tile, &barrier))?);
                }
            }
            Ok(list)
        })
    }

    /// A loop whose tiles are brought by the producer.
    pub(super) fn consumed(&mut self, l: &Loop) -> Result<Vec<Stmt>, LowerError> {
        let (Some(p), Some(ring)) = (self.pipelines.get(&l.var).cloned(), self.rings_of_tiles.get(&l.var).cloned())
        else {
            return Ok(Vec::new());
        };
        let compute = &l.body[p.copies..];
        if self.multiplies_in_memory(compute) {
            return self.issued(l, &p, &ring);
        }
        let multiplies = compute.iter().all(is_group);
        let at_once = !multiplies || flag(&l.annotations, keys::EAGER_RELEASE);
        let speaker = rem(thread(), THREADS / ring.of.arrivals);
        let size = self.cluster.as_ref().map_or(1, Cluster::size);
        let free = |place: Index, also: Cond| {
            let barrier = (ring.empty, place);
            let (who, arrive) = match size {
                1 => (Cond::Eq(speaker.clone(), c(0)), GroupOp::Arrive { barrier }),
                // A thread for each block, whose number is no variable: the address is then the same all the time.
                _ => {
                    let rank = rem(rem(thread(), THREADS), size);
                    (Cond::Lt(speaker.clone(), c(size)), GroupOp::ArriveRemote { barrier, rank })
                }
            };
            guarded(crate::lower::index::all(vec![who, also]), vec![Stmt::Group(arrive)])
        };
        let laps = self.laps_of_ring(l, &p, &ring, &|this, lap| {
            let full = GroupOp::WaitPhase { barrier: (ring.full, lap.place.clone()), parity: lap.parity.clone() };
            let mut list = vec![Stmt::Group(full)];
            let bound = [(l.var, lap.number.clone()), (p.slot, lap.place.clone())];
            if multiplies {
                list.push(Stmt::Group(GroupOp::MatrixFence));
                this.in_group = true;
                let code = this.with_all(&bound, |this| this.nodes(compute));
                this.in_group = false;
                list.extend(code?);
                let wait = GroupOp::MatrixWait(u32::from(!at_once));
                list.extend([GroupOp::MatrixCommit, wait].map(Stmt::Group));
            } else {
                list.extend(this.with_all(&bound, |this| this.nodes(compute))?);
                // Each thread has read of them by itself.
                list.extend(this.barrier());
            }
            match &lap.before {
                _ if at_once => list.extend(free(lap.place.clone(), Cond::True)),
                Some((place, exists)) => list.extend(free(place.clone(), exists.clone())),
                None => {}
            }
            Ok(list)
        })?;
        let kept = if multiplies { self.kept(&laps) } else { Vec::new() };
        let mut out = kept.clone();
        out.extend(self.when_it_is_its_turn(ring.order, &Cond::Eq(rem(thread(), THREADS), c(0)), laps));
        if !at_once {
            out.push(Stmt::Group(GroupOp::MatrixWait(0)));
            out.extend(free(self.last_place(l, &p), Cond::True));
        }
        out.extend(kept);
        Ok(out)
    }

    /// The same, by the team whose code is emitted.
    pub(super) fn own_turn(&self, ring: &Ring) -> Index {
        match self.nest.in_turn {
            Some(turn) => self.env.get(&turn.own).cloned().unwrap_or(c(0)),
            None => self.laps_before(ring),
        }
    }

    /// How often a ring's loop was gone through before.
    fn laps_before(&self, ring: &Ring) -> Index {
        ring.of.outer.iter().fold(c(0), |sum, (v, extent)| {
            let own = self.env.get(v).cloned().unwrap_or(c(0));
            add(mul(sum, *extent), own)
        })
    }

    /// Code for each lap.
    #[allow(clippy::type_complexity)]
    pub(super) fn laps_of_ring(
        &mut self,
        l: &Loop,
        p: &Pipeline,
        ring: &Ring,
        code: &dyn Fn(&mut Self, &Lap) -> Result<Vec<Stmt>, LowerError>,
    ) -> Result<Vec<Stmt>, LowerError> {
        if let Some(steps) = self.steps_of_piece(p, code) {
            return steps;
        }
        let (places, before) = (p.slots(), self.laps_before(ring));
        let (rounds, rest) = (l.extent / places, l.extent % places);
        let uses = |place: i64| rounds + i64::from(place < rest);
        let lap = |place: i64, round: &Index| Lap {
            number: add(mul(round.clone(), places), c(place)),
            place: c(place),
            parity: rem(add(mul(before.clone(), uses(place) % 2), round.clone()), 2),
            before: match (place, round) {
                (0, Index::Const(0)) => None,
                (0, Index::Var(_)) => Some((c(places - 1), Cond::Lt(c(0), round.clone()))),
                _ => Some((c((place + places - 1) % places), Cond::True)),
            },
        };
        let var = self.fresh();
        let round = if rounds == 1 { c(0) } else { Index::Var(var) };
        let mut body = Vec::new();
        if rounds > 0 {
            for place in 0..places {
                body.extend(code(self, &lap(place, &round))?);
            }
        }
        if rounds > 1 {
            let (name, start, extent) = (format!("{}_round", l.name), c(0), c(rounds));
            body = vec![Stmt::For { var, name, start, extent, unroll: Unroll::No, body }];
        }
        for place in 0..rest {
            body.extend(code(self, &lap(place, &c(rounds)))?);
        }
        Ok(body)
    }
}

/// Registers of an array of a thread.
fn words(array: &Array) -> i64 {
    (array.len as i64 * i64::from(array.dtype.bytes()) + 3) / 4
}
