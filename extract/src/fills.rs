//! The ways to copy an operand's tile to shared memory that can be among the k best.
use crate::dominance::{keep, Weighed};
use crate::inner::{look_up, store, FillLabel, Fills, Labels};
use crate::path::Path;
use crate::work::{self, Work};
use egg::Id;
use satune_ir::term::{Fill, Pipe, Role, Side, StagedLayout, Team, Term, Way};
use std::sync::Arc;

/// Number of [`components`].
const COMPONENTS: usize = 7;

/// What of a copy's work its time depends on (its sectors are those of L2 too).
fn components(w: &Work) -> [f64; COMPONENTS] {
    [
        w.addresses,
        w.global_loads,
        w.async_copies,
        w.shared_stores,
        w.shared_store_wavefronts,
        w.global_load_sectors,
        w.l1_bytes,
    ]
}

/// Ways to copy an operand that is staged, and where the copy stands.
#[derive(Clone)]
pub(crate) struct Copied<'s> {
    pub side: Side,
    /// A tile or a strip.
    pub way: Way,
    pub fills: Fills<'s>,
    /// Shared memory that it takes with its buffers, bytes.
    pub bytes: i64,
}

/// Work of copies: of those that a k tile makes and of those before the k loop, and the registers that they hold on
/// their way.
#[derive(Clone, Copy)]
pub(crate) struct CopyWork {
    pub tile: Work,
    pub begin: Work,
    /// Of tiles, and of strips.
    held: [i64; 2],
}

impl CopyWork {
    const NONE: CopyWork = CopyWork { tile: Work::NONE, begin: Work::NONE, held: [0, 0] };

    /// With one more copy; `rounds`: how often a strip is filled.
    fn with(mut self, way: Way, work: &Work, registers: i64, rounds: f64) -> CopyWork {
        if way == Way::Strip {
            self.begin.add(work, rounds);
            self.held[1] += registers;
        } else {
            self.tile.add(work, 1.0);
            self.held[0] += registers;
        }
        self
    }

    /// Tiles and strips are not on their way at the same time.
    pub fn registers(&self) -> i64 {
        self.held[0].max(self.held[1])
    }
}

/// One way to copy every operand that is staged.
pub(crate) struct Combination<'s> {
    pub work: CopyWork,
    /// In the order of the operands.
    pub paths: Vec<Arc<Path<'s>>>,
}

/// Of all combinations of fills those that k others do not dominate. Only those of the same registers are compared, as
/// the time is not monotone in registers.
pub(crate) fn combinations<'s>(copied: &[Copied<'s>], rounds: f64, k: usize) -> Vec<Combination<'s>> {
    let mut all = vec![Combination { work: CopyWork::NONE, paths: Vec::new() }];
    for Copied { way, fills, .. } in copied {
        let longer = |c: &Combination<'s>, fill: &FillLabel<'s>| {
            let paths = c.paths.iter().chain([&fill.path]).cloned().collect();
            Combination { work: c.work.with(*way, &fill.work, fill.registers, rounds), paths }
        };
        all = all.iter().flat_map(|c| fills.iter().map(move |fill| longer(c, fill))).collect();
    }
    let numbers = |c: &Combination<'s>| {
        let [tile, begin] = [&c.work.tile, &c.work.begin].map(components);
        std::array::from_fn::<f64, { 2 * COMPONENTS }, _>(
            |i| if i < COMPONENTS { tile[i] } else { begin[i - COMPONENTS] },
        )
    };
    let weighed: Vec<_> =
        all.iter().map(|c| Weighed { numbers: numbers(c), group: c.work.registers(), ways: 1 }).collect();
    let mut kept: Vec<Option<Combination<'s>>> = all.into_iter().map(Some).collect();
    keep(&weighed, k).into_iter().filter_map(|i| kept[i].take()).collect()
}

/// The least work of any of some combinations, component by component, and the least and most of their registers.
pub(crate) struct Floor {
    pub tile: Work,
    pub begin: Work,
    pub registers: [i64; 2],
}

/// The least of several works.
fn least<'w>(works: impl Iterator<Item = &'w Work> + Clone) -> Work {
    let by = |f: fn(&Work) -> f64| works.clone().map(f).fold(f64::INFINITY, f64::min);
    Work {
        addresses: by(|w| w.addresses),
        global_loads: by(|w| w.global_loads),
        async_copies: by(|w| w.async_copies),
        shared_stores: by(|w| w.shared_stores),
        shared_store_wavefronts: by(|w| w.shared_store_wavefronts),
        global_load_sectors: by(|w| w.global_load_sectors),
        l2_sectors: by(|w| w.l2_sectors),
        l1_bytes: by(|w| w.l1_bytes),
        ..Work::default()
    }
}

/// Over everything that can be combined.
pub(crate) fn floor(copied: &[Copied<'_>], rounds: f64) -> Floor {
    let (mut fewest, mut most) = (CopyWork::NONE, CopyWork::NONE);
    for Copied { way, fills, .. } in copied {
        let work = least(fills.iter().map(|l| &l.work));
        let registers = fills.iter().map(|l| l.registers);
        fewest = fewest.with(*way, &work, registers.clone().min().unwrap_or(0), rounds);
        most = most.with(*way, &work, registers.max().unwrap_or(0), rounds);
    }
    Floor { tile: fewest.tile, begin: fewest.begin, registers: [fewest.registers(), most.registers()] }
}

/// Over some combinations, one at least.
pub(crate) fn floor_of(combinations: &[&Combination<'_>]) -> Floor {
    let registers = combinations.iter().map(|c| c.work.registers());
    Floor {
        tile: least(combinations.iter().map(|c| &c.work.tile)),
        begin: least(combinations.iter().map(|c| &c.work.begin)),
        registers: [registers.clone().min().unwrap_or(0), registers.max().unwrap_or(0)],
    }
}

impl<'s> Labels<'_, 's> {
    /// Ways to fill a tile: (fill class, overlap).
    pub fn fills(&self, class: Id, side: Side, layout: StagedLayout, pipe: Pipe) -> Fills<'s> {
        let class = self.space.egraph.find(class);
        // The size of a ring changes nothing.
        let pipe = if let Pipe::Async(_) = pipe { Pipe::Async(2) } else { pipe };
        if let Some(found) = look_up(&self.known.fills, &(class, pipe, self.k)) {
            return found;
        }
        let state = *self.space.state(class);
        let mut labels = Vec::new();
        if let Team::Cta(threads) = state.team {
            let mut ways = Vec::new();
            self.walk_fill(class, Fill { coalesced: true, vector: 1, unroll: false }, &mut Vec::new(), &mut ways);
            let size = (state.tile.m, state.tile.k);
            let contraction = &self.space.contraction;
            let dtype = contraction.operand(side).dtype;
            for (fill, path) in ways {
                // Expanding its loop does not change a copy's work, nor does the overlap beyond what its class says.
                let key = (class, fill.coalesced, fill.vector);
                let work = look_up(&self.known.copies, &key).unwrap_or_else(|| {
                    let made = work::fill(contraction, side, size, threads, pipe, (layout, fill));
                    store(&self.known.copies, key, made);
                    made
                });
                let held = fill.unroll || pipe == Pipe::Registers;
                let registers = match pipe {
                    Pipe::Async(_) => 0,
                    _ => crate::cost::staged_of(size.0 * size.1, threads, fill.vector, dtype, held),
                };
                labels.push(FillLabel { work, registers, path });
            }
        }
        let weighed: Vec<_> =
            labels.iter().map(|l| Weighed { numbers: components(&l.work), group: l.registers, ways: 1 }).collect();
        let labels: Vec<FillLabel<'s>> = keep(&weighed, self.k).into_iter().map(|i| labels[i].clone()).collect();
        let labels = Arc::new(labels);
        store(&self.known.fills, (class, pipe, self.k), labels.clone());
        labels
    }

    fn walk_fill(&self, class: Id, fill: Fill, above: &mut Vec<&'s Term>, out: &mut Vec<(Fill, Arc<Path<'s>>)>) {
        for node in self.space.choices(self.space.egraph.find(class)) {
            let mut fill = fill;
            let next = match node {
                Term::CopyElement(_) => {
                    out.push((fill, Path::chain(above, node)));
                    continue;
                }
                Term::Fuse { coalesced, body, .. } => {
                    fill.coalesced = *coalesced;
                    body[0]
                }
                Term::Loop { role, extent, body, .. } => {
                    match role {
                        Role::Vector => fill.vector = *extent as u32,
                        Role::Unroll => fill.unroll = true,
                        _ => {}
                    }
                    body[0]
                }
                _ => continue,
            };
            above.push(node);
            self.walk_fill(next, fill, above, out);
            above.pop();
        }
    }
}
