//! The ways to copy an operand's tile to shared memory that can be among the k best.
use crate::dominance::{keep, Weighed};
use crate::inner::{look_up, store, Labels};
use crate::path::Path;
use crate::work::{self, Work};
use egg::Id;
use satune_ir::term::{Fill, Layout, Pipe, Role, Side, Team, Term};
use std::sync::Arc;

/// One way to copy a tile.
#[derive(Clone, Debug)]
pub(crate) struct FillLabel<'s> {
    pub work: Work,
    /// Registers that hold the tile on its way.
    pub registers: i64,
    pub path: Arc<Path<'s>>,
}

/// What of a copy's work its time depends on (its sectors are those of L2 too).
fn components(w: &Work) -> [f64; 6] {
    [w.global_loads, w.async_copies, w.shared_stores, w.shared_store_wavefronts, w.global_load_sectors, w.l1_bytes]
}

/// One way to copy every operand that is staged.
pub(crate) struct Combination<'s> {
    pub work: Work,
    pub registers: i64,
    /// In the order of the operands.
    pub paths: Vec<Arc<Path<'s>>>,
}

/// Of all combinations of fills those that k others do not dominate. Only those of the same registers are compared, as
/// the time is not monotone in registers.
pub(crate) fn combinations<'s>(staged: &[Arc<Vec<FillLabel<'s>>>], k: usize) -> Vec<Combination<'s>> {
    let mut all = vec![Combination { work: Work::default(), registers: 0, paths: Vec::new() }];
    for fills in staged {
        let longer = |c: &Combination<'s>, fill: &FillLabel<'s>| {
            let mut work = c.work;
            work.add(&fill.work, 1.0);
            let paths = c.paths.iter().chain([&fill.path]).cloned().collect();
            Combination { work, registers: c.registers + fill.registers, paths }
        };
        all = all.iter().flat_map(|c| fills.iter().map(move |fill| longer(c, fill))).collect();
    }
    let weighed: Vec<_> =
        all.iter().map(|c| Weighed { numbers: components(&c.work), group: c.registers, ways: 1 }).collect();
    let mut kept: Vec<Option<Combination<'s>>> = all.into_iter().map(Some).collect();
    keep(&weighed, k).into_iter().filter_map(|i| kept[i].take()).collect()
}

/// The least work of any of some combinations, component by component, and the least and most of their registers.
pub(crate) struct Floor {
    pub work: Work,
    pub registers: [i64; 2],
}

/// The least of several works and their registers.
fn least<'w>(works: impl Iterator<Item = (&'w Work, i64)> + Clone) -> Floor {
    let by = |f: fn(&Work) -> f64| works.clone().map(|(w, _)| f(w)).fold(f64::INFINITY, f64::min);
    let work = Work {
        global_loads: by(|w| w.global_loads),
        async_copies: by(|w| w.async_copies),
        shared_stores: by(|w| w.shared_stores),
        shared_store_wavefronts: by(|w| w.shared_store_wavefronts),
        global_load_sectors: by(|w| w.global_load_sectors),
        l2_sectors: by(|w| w.l2_sectors),
        l1_bytes: by(|w| w.l1_bytes),
        ..Work::default()
    };
    let registers = works.map(|(_, r)| r);
    Floor { work, registers: [registers.clone().min().unwrap_or(0), registers.max().unwrap_or(0)] }
}

/// Over everything that can be combined.
pub(crate) fn floor(staged: &[Arc<Vec<FillLabel<'_>>>]) -> Floor {
    let mut sum = Floor { work: Work::default(), registers: [0, 0] };
    for fills in staged {
        let least = least(fills.iter().map(|l| (&l.work, l.registers)));
        sum.work.add(&least.work, 1.0);
        sum.registers = [sum.registers[0] + least.registers[0], sum.registers[1] + least.registers[1]];
    }
    sum
}

/// Over some combinations, one at least.
pub(crate) fn floor_of(combinations: &[&Combination<'_>]) -> Floor {
    least(combinations.iter().map(|c| (&c.work, c.registers)))
}

impl<'s> Labels<'_, 's> {
    /// Ways to fill a tile: (fill class, overlap).
    pub fn fills(&self, class: Id, side: Side, layout: Layout, pipe: Pipe) -> Arc<Vec<FillLabel<'s>>> {
        let class = self.space.egraph.find(class);
        // The size of a ring changes nothing.
        let pipe = if let Pipe::Async(_) = pipe { Pipe::Async(2) } else { pipe };
        if let Some(found) = look_up(&self.known.fills, &(class, pipe)) {
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
        store(&self.known.fills, (class, pipe), labels.clone());
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
