//! Barriers with phases, and copies by the TMA, which arrive as late as the model allows: when someone waits for the
//! phase that counts their bytes, and everybody it counts has arrived. Threads are numbered through the cluster here.
use super::{Counts, Fault, FaultKind, Ints, Mask, Runner};
use crate::kernel::{ArrayId, GroupOp, Index, Space};
use satune_ir::DType;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// An element of an array in memory.
type Element = (ArrayId, usize);

/// An element in shared memory, and its place in global memory, unless it lies beyond the matrix.
pub(super) type Move = (Element, Option<Element>);

/// One barrier.
struct Barrier {
    /// Arrivals of a phase, and those still missing from this one.
    arrivals: u32,
    missing: u32,
    /// Bytes announced and not yet landed.
    announced: u64,
    /// Number of the phase that is not complete.
    phase: u32,
    /// Who made it, and when; their fences then.
    made: (usize, u32, u32),
    /// Number among the writers of memory: after the threads.
    writer: u32,
    /// What happened before the arrivals.
    horizon: Vec<u32>,
    /// Elements on their way.
    flights: Vec<Move>,
    /// Their bytes, those beyond the matrix's edge too.
    bytes: u64,
}

/// A store by the TMA.
struct Stored {
    moves: Vec<Move>,
    /// Once it has read.
    values: Option<Vec<f64>>,
}

/// A barrier of one of the cluster's blocks.
type Name = (usize, ArrayId, i64);

/// All barriers and stores of a cluster.
pub(super) struct Phases {
    barriers: HashMap<Name, Barrier>,
    /// Fences for asynchronous readers, per thread.
    pub fences: Vec<u32>,
    /// Fences after barriers were made, per thread.
    made_fences: Vec<u32>,
    open: HashMap<usize, Vec<Stored>>,
    groups: HashMap<usize, VecDeque<Vec<Stored>>>,
    /// What the blocks knew of each thread when they last met.
    pub met: Vec<u32>,
    /// The last arrival of each thread at a barrier of each other block.
    pub visits: BTreeMap<(usize, usize), u32>,
}

impl Phases {
    pub fn new(threads: usize) -> Phases {
        Phases {
            barriers: HashMap::new(),
            fences: vec![0; threads],
            made_fences: vec![0; threads],
            open: HashMap::new(),
            groups: HashMap::new(),
            met: vec![0; threads],
            visits: BTreeMap::new(),
        }
    }

    /// Threads and barriers.
    pub fn writers(&self) -> usize {
        self.fences.len() + self.barriers.len()
    }
}

impl Runner<'_> {
    pub(super) fn group_op(&mut self, op: &GroupOp, mask: &Mask) -> Result<(), Fault> {
        let threads: Vec<usize> = (0..self.threads).filter(|t| mask[*t]).collect();
        let base = self.id(0);
        match op {
            GroupOp::BarrierInit { barrier, arrivals } => {
                let index = self.index(&barrier.1)?;
                for t in threads {
                    self.make_barrier(barrier.0, index.get(t), *arrivals, t)?;
                }
                Ok(())
            }
            GroupOp::FenceBarrierInit => {
                threads.into_iter().for_each(|t| self.phases.made_fences[base + t] += 1);
                Ok(())
            }
            // What it brings early is the same later.
            GroupOp::PrefetchMap { .. } => Ok(()),
            GroupOp::Arrive { .. } | GroupOp::ArriveExpect { .. } | GroupOp::ArriveRemote { .. } => {
                self.arrivals(op, &threads)?;
                // What the role does from here on, nobody knows by these arrivals.
                self.now.epoch += u32::from(self.now.order.is_some());
                Ok(())
            }
            GroupOp::ClusterBarrier => Err(self.machine("a cluster's blocks meet in part of their code".into())),
            GroupOp::WaitPhase { .. } => Err(self.machine("a wait for a phase outside of roles".into())),
            GroupOp::LoadTile { dst, dst_index, map, at, offsets, barrier, multicast } => {
                let place = [self.index(dst_index)?, self.index(&barrier.1)?];
                let coordinates = at.iter().chain(offsets).map(|i| self.index(i)).collect::<Result<Vec<_>, _>>()?;
                let blocks = multicast.as_ref().map(|mask| self.index(mask)).transpose()?;
                for t in threads {
                    let mask = blocks.as_ref().map_or(1 << self.rank, |mask| mask.get(t));
                    self.load_tile(*dst, *map, barrier.0, (&place, &coordinates), mask, t)?;
                }
                Ok(())
            }
            GroupOp::StoreTile { map, at, src, src_index } => {
                let first = self.index(src_index)?;
                let at = at.iter().map(|i| self.index(i)).collect::<Result<Vec<_>, _>>()?;
                threads.into_iter().try_for_each(|t| self.store_tile((*src, first.get(t)), *map, &at, t))
            }
            GroupOp::StoreCommit => {
                for id in threads.into_iter().map(|t| base + t) {
                    let group = self.phases.open.remove(&id).unwrap_or_default();
                    self.phases.groups.entry(id).or_default().push_back(group);
                }
                Ok(())
            }
            GroupOp::StoreWait { latest, read } => {
                threads.into_iter().try_for_each(|t| self.store_wait(t, *latest as usize, *read))
            }
            GroupOp::FenceAsync => {
                threads.into_iter().for_each(|t| self.phases.fences[base + t] += 1);
                Ok(())
            }
            GroupOp::NamedBarrier { threads: count, .. } => {
                let role = self.now.order.as_ref().and_then(|o| o.roles.get(o.role).copied());
                if role.map(|(first, end)| end - first) != Some(*count) || threads.len() != *count as usize {
                    let array = self.kernel.name.clone();
                    let thread = threads.first().map_or(0, |t| *t as u32);
                    let kind = FaultKind::DivergentBarrier;
                    return Err(Fault { kind, array, index: 0, block: self.block, thread });
                }
                self.pass_barrier();
                self.here().barriers += self.warps(mask);
                Ok(())
            }
            GroupOp::MatrixKeep { .. } => Ok(()),
            GroupOp::TensorMemory(op) => self.tensor_memory_op(op, mask),
            GroupOp::MatrixFence | GroupOp::MatrixCommit | GroupOp::MatrixWait(_) | GroupOp::Matrix { .. } => {
                self.matrix_op(op, mask)
            }
        }
    }

    fn arrivals(&mut self, op: &GroupOp, threads: &[usize]) -> Result<(), Fault> {
        let (barrier, bytes) = match op {
            GroupOp::Arrive { barrier } | GroupOp::ArriveRemote { barrier, .. } => (barrier, 0),
            GroupOp::ArriveExpect { barrier, bytes } => (barrier, *bytes),
            _ => return Ok(()),
        };
        let index = self.index(&barrier.1)?;
        let ranks = if let GroupOp::ArriveRemote { rank, .. } = op { Some(self.index(rank)?) } else { None };
        threads.iter().try_for_each(|t| match &ranks {
            Some(ranks) => self.arrive_remote(barrier.0, index.get(*t), ranks.get(*t), *t),
            None => self.arrive((self.rank, barrier.0, index.get(*t)), bytes, *t),
        })
    }

    fn make_barrier(&mut self, array: ArrayId, index: i64, arrivals: u32, t: usize) -> Result<(), Fault> {
        let a = self.kernel.array(array);
        let fits = a.space == Space::Shared && a.dtype == DType::U64 && index >= 0 && (index as u64) < a.len;
        if !fits || arrivals == 0 || self.now.order.is_some() {
            return Err(self.machine(
                "a barrier that is no element of a shared array of u64, counts nobody, or is made by a role".into(),
            ));
        }
        let writer = self.phases.writers() as u32;
        let id = self.id(t);
        let made = (id, self.now.epoch, self.phases.made_fences[id]);
        let barrier = Barrier {
            arrivals,
            missing: arrivals,
            announced: 0,
            phase: 0,
            made,
            writer,
            horizon: Vec::new(),
            flights: Vec::new(),
            bytes: 0,
        };
        if self.phases.barriers.insert((self.rank, array, index), barrier).is_some() {
            return Err(self.machine("a barrier is made twice".into()));
        }
        Ok(())
    }

    /// The barrier, if the thread may know of it; `tma`: and the TMA.
    fn barrier(&mut self, at: Name, t: usize, tma: bool) -> Result<&mut Barrier, Fault> {
        let who = self.who(t);
        let name = self.kernel.array(at.1).name.clone();
        let fault = |kind| Fault { kind, array: name.clone(), index: at.2, block: who.block, thread: who.thread };
        let Some(barrier) = self.phases.barriers.get_mut(&at) else { return Err(fault(FaultKind::Unwritten)) };
        let (maker, epoch, fences) = barrier.made;
        if !who.is_after(maker as u32, epoch) {
            return Err(fault(FaultKind::Race { other: maker as u32, write: false }));
        }
        if tma && self.phases.made_fences[maker] <= fences {
            return Err(fault(FaultKind::NoFence));
        }
        Ok(barrier)
    }

    fn arrive(&mut self, at: Name, bytes: u32, t: usize) -> Result<(), Fault> {
        let mut horizon = self.now.order.as_ref().map(|o| o.horizon.clone()).unwrap_or_default();
        if let Some(own) = horizon.get_mut(self.id(t)) {
            *own = self.now.epoch + 1;
        }
        let message = "more arrivals than a phase takes, before its bytes have landed";
        let late = self.machine(message.into());
        let barrier = self.barrier(at, t, bytes > 0 || at.0 != self.rank)?;
        if barrier.missing == 0 {
            return Err(late);
        }
        barrier.missing -= 1;
        barrier.announced += u64::from(bytes);
        join(&mut barrier.horizon, &horizon);
        if barrier.missing == 0 && barrier.announced == 0 && barrier.bytes == 0 {
            barrier.complete();
        }
        Ok(())
    }

    /// An arrival at a barrier of a block of the cluster.
    pub(super) fn arrive_remote(&mut self, array: ArrayId, index: i64, rank: i64, t: usize) -> Result<(), Fault> {
        let target = usize::try_from(rank).ok().filter(|r| *r < self.blocks.len());
        let Some(target) = target else {
            return Err(self.machine(format!("an arrival at block {rank} of a cluster of {}", self.blocks.len())));
        };
        if target != self.rank {
            let visit = self.phases.visits.entry((target, self.id(t))).or_default();
            *visit = (*visit).max(self.now.epoch);
        }
        self.arrive((target, array, index), 0, t)
    }

    /// Whether the phase of the parity is complete; then the role knows what happened before.
    pub(super) fn try_wait(
        &mut self,
        array: ArrayId,
        index: &Index,
        parity: &Index,
        mask: &Mask,
    ) -> Result<bool, Fault> {
        let (index, parity) = (self.index(index)?, self.index(parity)?);
        let Some(t) = mask.iter().position(|m| *m) else { return Ok(true) };
        let at = (self.rank, array, index.get(t));
        if (0..self.threads).any(|u| mask[u] && (index.get(u), parity.get(u)) != (at.2, parity.get(t))) {
            return Err(self.machine("threads of a role wait for different barriers".into()));
        }
        self.land(at, t)?;
        let barrier = self.barrier(at, t, false)?;
        if i64::from(barrier.phase % 2) == parity.get(t) {
            return Ok(false);
        }
        let mut known = barrier.horizon.clone();
        known.resize(known.len().max(barrier.writer as usize + 1), 0);
        known[barrier.writer as usize] = barrier.phase;
        self.learn(&known);
        Ok(true)
    }

    /// Lets the copies arrive that a phase waits for, where nothing else is missing.
    fn land(&mut self, at: Name, t: usize) -> Result<(), Fault> {
        let barrier = self.barrier(at, t, false)?;
        if barrier.missing > 0 || barrier.announced == 0 || barrier.announced != barrier.bytes {
            return Ok(());
        }
        let flights = std::mem::take(&mut barrier.flights);
        barrier.complete();
        for ((dst, element), source) in flights {
            let who = self.who(t);
            let value = match source {
                Some((array, i)) => self.tracked(array)?.read(&who, i)?,
                None => 0.0,
            };
            self.tracked(dst)?.land(element, value);
        }
        Ok(())
    }

    /// The elements of a box, at these coordinates, behind which the offsets of images come: in shared memory, and in global memory
    /// where it has them.
    fn tile_elements(&self, (shared, first): (ArrayId, i64), map: u32, at: &[i64]) -> Result<Vec<Move>, Fault> {
        let map = self.kernel.tensor_maps.get(map as usize).ok_or_else(|| self.machine("no such tensor map".into()))?;
        let (a, global) = (self.kernel.array(shared), self.kernel.array(map.array));
        let bytes = u64::from(a.dtype.bytes());
        let row = u64::from(map.tile[0]) * bytes;
        let start = u64::from(a.shared_offset) + first.max(0) as u64 * bytes;
        let reason = if a.space != Space::Shared || global.space != Space::Global || a.dtype != global.dtype {
            "a copy by the TMA between other things than shared and global arrays of one type"
        } else if map.tile.iter().any(|n| *n == 0 || *n > 256) || map.spanned() != global.len {
            "a tensor map with a box beyond 256, or of another size than its array"
        } else if map.strides.iter().any(|stride| stride * bytes % 16 != 0) || row % 16 != 0 {
            "a tensor map whose rows are not multiples of 16 bytes"
        } else if at.len() != map.dims.len() + map.image.as_ref().map_or(0, |image| image.lower.len()) {
            "a box whose coordinates are not those of its tensor map"
        } else if map.swizzle && !matches!(row, 32 | 64 | 128) {
            "a swizzled box with rows of other than 32, 64 or 128 bytes"
        } else if start % if map.swizzle { (8 * row).max(128) } else { 128 } != 0 {
            "a box that is not aligned in shared memory"
        } else if first < 0 || first as u64 + row / bytes * u64::from(map.tile[1]) > a.len {
            "a box that does not fit into its shared array"
        } else {
            let mut list = Vec::new();
            for (r, line) in (0..).zip(lines(map, at).map_err(|reason| self.machine(reason))?) {
                for (column, x) in (0..u64::from(map.tile[0])).zip(at[0]..) {
                    let place = start + r * row + column * bytes;
                    let place = if map.swizzle { swizzled(place, row) } else { place };
                    let element = ((place - u64::from(a.shared_offset)) / bytes) as usize;
                    // Before the first element and behind the last are zeros.
                    let x = u64::try_from(x).ok().filter(|x| *x < map.dims[0]);
                    let source = line.zip(x).map(|(line, x)| (map.array, (line + x) as usize));
                    list.push(((shared, element), source));
                }
            }
            return Ok(list);
        };
        Err(self.machine(reason.into()))
    }

    /// `mask`: the blocks of the cluster that receive the box, one bit for each.
    fn load_tile(
        &mut self,
        dst: ArrayId,
        map: u32,
        barriers: ArrayId,
        (place, coordinates): (&[Ints; 2], &[Ints]),
        mask: i64,
        t: usize,
    ) -> Result<(), Fault> {
        let [first, index] = place.each_ref().map(|i| i.get(t));
        let at: Vec<i64> = coordinates.iter().map(|i| i.get(t)).collect();
        let elements = self.tile_elements((dst, first), map, &at)?;
        let bytes = elements.len() as u64 * u64::from(self.kernel.array(dst).dtype.bytes());
        let blocks = self.blocks.len();
        if mask <= 0 || mask >> blocks != 0 {
            return Err(self.machine(format!("a copy to the blocks {mask:#b} of a cluster of {blocks}")));
        }
        let (home, who) = (self.rank, self.who(t));
        let mut traffic = self.tile_traffic(&elements, map, false);
        traffic.async_copies = 1;
        self.note_box(&elements, false);
        for rank in (0..blocks).filter(|rank| mask >> rank & 1 == 1) {
            let barrier = self.barrier((rank, barriers, index), t, true)?;
            let (writer, phase) = (barrier.writer, barrier.phase);
            barrier.bytes += bytes;
            barrier.flights.extend(&elements);
            self.enter(rank);
            let begun = elements
                .iter()
                .try_for_each(|((_, element), _)| self.tracked(dst)?.begin_landing(&who, *element, writer, phase));
            self.enter(home);
            begun?;
            *self.here() += traffic;
            // Global memory is read once, whoever receives it.
            traffic = Counts { global_load_sectors: 0, global_load_sectors_ideal: 0, async_copies: 0, ..traffic };
        }
        Ok(())
    }

    /// L2 sees a box.
    fn note_box(&mut self, elements: &[Move], store: bool) {
        let Some(array) = elements.iter().find_map(|(_, global)| global.map(|(array, _)| array)) else { return };
        let bytes = u64::from(self.kernel.array(array).dtype.bytes());
        if let Some(cache) = &mut self.cache {
            cache.moved(
                array,
                elements.iter().filter_map(|(_, global)| Some(global.as_ref()?.1 as u64 * bytes)),
                store,
            );
        }
    }

    fn store_tile(&mut self, (src, first): (ArrayId, i64), map: u32, at: &[Ints], t: usize) -> Result<(), Fault> {
        let at: Vec<i64> = at.iter().map(|i| i.get(t)).collect();
        let elements = self.tile_elements((src, first), map, &at)?;
        let (who, fences) = (self.who(t), self.phases.fences.clone());
        for ((_, element), target) in &elements {
            self.tracked(src)?.begin_reading(&who, *element, &fences)?;
            if let Some((array, i)) = target {
                self.tracked(*array)?.begin(&who, *i)?;
            }
        }
        let mut traffic = self.tile_traffic(&elements, map, true);
        traffic.async_copies = 1;
        self.note_box(&elements, true);
        *self.here() += traffic;
        self.phases.open.entry(self.id(t)).or_default().push(Stored { moves: elements, values: None });
        Ok(())
    }

    fn store_wait(&mut self, t: usize, latest: usize, read: bool) -> Result<(), Fault> {
        let mut groups = self.phases.groups.remove(&self.id(t)).unwrap_or_default();
        let done = groups.len().saturating_sub(latest);
        let (who, epoch) = (self.who(t), self.now.epoch);
        for stored in groups.iter_mut().take(done).flatten() {
            if stored.values.is_none() {
                let mut values = Vec::new();
                for ((array, element), _) in &stored.moves {
                    values.push(self.tracked(*array)?.end_reading(&who, *element, epoch));
                }
                stored.values = Some(values);
            }
            if !read {
                let values = stored.values.iter().flatten();
                for ((_, target), value) in stored.moves.iter().zip(values) {
                    if let Some((array, i)) = target {
                        self.tracked(*array)?.end(&who, *i, *value);
                    }
                }
            }
        }
        if !read {
            groups.drain(..done);
        }
        self.phases.groups.insert(self.id(t), groups);
        Ok(())
    }

    /// What must not be under way when the blocks end; stores that have read become complete.
    pub(super) fn end_of_cluster(&mut self) -> Result<(), Fault> {
        if self.phases.barriers.values().any(|b| !b.flights.is_empty()) {
            return Err(self.machine("the block ends while the TMA still writes its shared memory".into()));
        }
        let unread = |stored: &Stored| stored.values.is_none();
        let waiting = self.phases.groups.values().flatten().flatten().any(unread);
        if waiting || self.phases.open.values().any(|list| !list.is_empty()) {
            return Err(self.machine("the block ends while the TMA still reads its shared memory".into()));
        }
        let mut threads: Vec<usize> = self.phases.groups.keys().copied().collect();
        threads.sort_unstable();
        threads.into_iter().try_for_each(|id| {
            self.enter(id / self.threads);
            self.store_wait(id % self.threads, 0, false)
        })
    }
}

impl Barrier {
    fn complete(&mut self) {
        self.phase += 1;
        self.missing = self.arrivals;
        (self.announced, self.bytes) = (0, 0);
    }
}

/// The later of each.
pub(super) fn join(to: &mut Vec<u32>, from: &[u32]) {
    to.resize(to.len().max(from.len()), 0);
    to.iter_mut().zip(from).for_each(|(a, b)| *a = (*a).max(*b));
}

/// First elements in memory of a box's rows, or of its pixels' channels; none where they are outside.
fn lines(map: &crate::kernel::TensorMap, at: &[i64]) -> Result<Vec<Option<u64>>, String> {
    let (first, offsets) = at.split_at(map.dims.len());
    let mut pixel = first[1..].to_vec();
    let corners: Vec<[i64; 2]> = match &map.image {
        None => Vec::new(),
        Some(image) => {
            (0..).zip(&image.lower).map(|(d, lower)| [i64::from(*lower), image.last(d, map.dims[d + 1])]).collect()
        }
    };
    for (d, [lower, upper]) in corners.iter().enumerate() {
        if !(*lower..=*upper).contains(&pixel[d]) {
            return Err(format!(
                "a box of pixels begins at {} of dimension {}, not in {lower} to {upper}",
                pixel[d],
                d + 1
            ));
        }
        if offsets[d] < 0 {
            return Err(format!("a box of pixels has the offset {} along dimension {}", offsets[d], d + 1));
        }
    }
    let mut list = Vec::new();
    for _ in 0..map.tile[1] {
        let places = pixel.iter().enumerate().zip(&map.strides);
        let line = places.map(|((d, p), stride)| {
            let moved = u64::try_from(p + offsets.get(d).copied().unwrap_or(0)).ok()?;
            (moved < map.dims[d + 1]).then_some(moved * stride)
        });
        list.push(line.sum());
        for (d, at) in pixel.iter_mut().enumerate() {
            *at += map.image.as_ref().and_then(|image| image.steps.get(d)).map_or(1, |step| i64::from(*step));
            match corners.get(d) {
                Some([lower, upper]) if *at > *upper => *at = *lower,
                _ => break,
            }
        }
    }
    Ok(list)
}

/// Where a byte of a tile is whose rows of so many bytes, 128, 64 or 32, are swizzled.
pub(super) fn swizzled(at: u64, span: u64) -> u64 {
    at ^ ((at >> 7 & (span / 16 - 1)) << 4)
}
