//! What the blocks of a row kernel add to its work, once its rows and columns have threads: the sums of all ways to hold its rows and
//! to unroll its loops, as far as they can be among the k best.
//!
//! Ways that leave the same choices meet in one class, so that the sums are made once for all of them. Of sums with the same
//! registers and shared memory, which say how many blocks are resident, the time grows in each number of [`weights`]: what k others
//! are no larger than in all of them is not needed.
use super::cost::weights;
use super::counts::KernelWork;
use super::row::Rows;
use crate::dominance::{keep, Weighed};
use crate::Descriptor;
use egg::{Id, Language};
use satune_ir::term::stream::{HeldRow, Places, RowPlace, Step, StreamState, StreamTerm};
use satune_ir::term::Space;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What decisions add to what is compared: [`weights`], and what says how many blocks are resident. Sums, but for registers: of these the
/// most that a block finds held.
#[derive(Clone, Copy)]
struct Adds {
    numbers: [f64; 6],
    held_registers: i64,
    shared_bytes: i64,
}

impl Adds {
    fn of(work: &KernelWork, gpu: &Descriptor) -> Adds {
        let (held_registers, shared_bytes) = (work.held_registers, work.shared_bytes);
        Adds { numbers: weights(work, gpu), held_registers, shared_bytes }
    }

    fn with(mut self, other: &Adds) -> Adds {
        self.numbers.iter_mut().zip(other.numbers).for_each(|(one, other)| *one += other);
        self.held_registers = self.held_registers.max(other.held_registers);
        self.shared_bytes += other.shared_bytes;
        self
    }
}

/// Some decisions, from one of a class to the last.
#[derive(Clone, Copy)]
pub(super) struct Label {
    adds: Adds,
    /// Number of the first of them.
    own: usize,
    /// Number of what follows it in [`Sums::links`].
    below: Option<usize>,
}

/// A choice of a class: what it adds, and what is left below it.
struct Own<'s> {
    node: &'s StreamTerm,
    work: KernelWork,
    adds: Adds,
    body: Option<Id>,
}

/// What a block's loop, unrolled or not, or a buffer in a place adds: all that it depends on once there are threads.
#[derive(PartialEq, Eq, Hash)]
enum Decision {
    Hold(u8, RowPlace),
    Stage(u8, bool, Places),
}

/// The sums below one choice of rows and threads.
pub(super) struct Sums<'s, 'a> {
    space: &'s Space<StreamTerm>,
    rows: &'a Rows<'a>,
    gpu: &'a Descriptor,
    /// Of how many best they are.
    k: usize,
    /// What a kernel of one row a block holds, and what one of several.
    held: &'a [Vec<HeldRow>; 2],
    /// The choices of all classes, and which of them are those of a class.
    owns: Vec<Own<'s>>,
    own: HashMap<Id, Range<usize>>,
    added: HashMap<Decision, KernelWork>,
    least: HashMap<Id, KernelWork>,
    known: HashMap<Id, (usize, Arc<Vec<Label>>)>,
    /// Of every label its first choice, and the number of what follows it.
    links: Vec<(usize, Option<usize>)>,
}

impl<'s, 'a> Sums<'s, 'a> {
    /// None is made yet.
    pub fn new(
        space: &'s Space<StreamTerm>,
        rows: &'a Rows<'a>,
        gpu: &'a Descriptor,
        k: usize,
        held: &'a [Vec<HeldRow>; 2],
    ) -> Sums<'s, 'a> {
        let (owns, own, added) = (Vec::new(), HashMap::new(), HashMap::new());
        let (least, known, links) = (HashMap::new(), HashMap::new(), Vec::new());
        Sums { space, rows, gpu, k, held, owns, own, added, least, known, links }
    }

    /// The least of each number below a class.
    pub fn least(&mut self, class: Id) -> KernelWork {
        if let Some(known) = self.least.get(&class) {
            return *known;
        }
        let mut least: Option<KernelWork> = None;
        for at in self.own(class) {
            let Own { mut work, body, .. } = self.owns[at];
            if let Some(body) = body {
                work.add(&self.least(body));
            }
            least = Some(least.map_or(work, |least| least.least(&work)));
        }
        let least = least.unwrap_or_default();
        self.least.insert(class, least);
        least
    }

    /// The sums below a class.
    pub fn of(&mut self, class: Id) -> Arc<Vec<Label>> {
        self.numbered(class).1
    }

    /// The same, and the number of the first in [`Sums::links`], where they follow each other.
    fn numbered(&mut self, class: Id) -> (usize, Arc<Vec<Label>>) {
        if let Some(known) = self.known.get(&class) {
            return known.clone();
        }
        let mut all: Vec<Label> = Vec::new();
        for own in self.own(class) {
            let Own { adds, body, .. } = self.owns[own];
            let Some(body) = body else {
                all.push(Label { adds, own, below: None });
                continue;
            };
            let (first, below) = self.numbered(body);
            all.extend((first..).zip(below.iter()).map(|(at, label)| Label {
                adds: adds.with(&label.adds),
                own,
                below: Some(at),
            }));
        }
        let weighed: Vec<_> = all.iter().map(|label| weighed(&label.adds)).collect();
        let mut kept = keep(&weighed, self.k);
        kept.sort_unstable();
        let kept: Vec<Label> = kept.into_iter().map(|at| all[at]).collect();
        let first = self.links.len();
        self.links.extend(kept.iter().map(|label| (label.own, label.below)));
        let found = (first, Arc::new(kept));
        self.known.insert(class, found.clone());
        found
    }

    /// The choices of a label, from the outside in.
    fn choices(&self, label: &Label) -> impl Iterator<Item = &Own<'s>> + '_ {
        let first = (label.own, label.below);
        let all = std::iter::successors(Some(first), |(_, below)| below.map(|at| self.links[at]));
        all.map(|(own, _)| &self.owns[own])
    }

    /// What its decisions add to a kernel's work.
    pub fn work(&self, label: &Label) -> KernelWork {
        let mut work = KernelWork::default();
        self.choices(label).for_each(|own| work.add(&own.work));
        work
    }

    /// Its decisions, from the outside in.
    pub fn nodes(&self, label: &Label) -> impl Iterator<Item = &'s StreamTerm> + '_ {
        self.choices(label).map(|own| own.node)
    }

    /// The choices of a class.
    fn own(&mut self, class: Id) -> Range<usize> {
        if let Some(known) = self.own.get(&class) {
            return known.clone();
        }
        let (space, first) = (self.space, self.owns.len());
        for node in space.choices(class) {
            let work = self.added(node).unwrap_or_default();
            let body = node.children().first().map(|body| space.egraph.find(*body));
            self.owns.push(Own { node, work, adds: Adds::of(&work, self.gpu), body });
        }
        let own = first..self.owns.len();
        self.own.insert(class, own.clone());
        own
    }

    /// What one decision adds.
    fn added(&mut self, node: &StreamTerm) -> Option<KernelWork> {
        let (StreamTerm::Hold { of, .. } | StreamTerm::Stage { of, .. }) = node else { return None };
        let StreamState { step: Step::Chain(_, chain), .. } = **of else { return None };
        let (rows, held) = (self.rows, &self.held[usize::from(chain.several)]);
        match node {
            StreamTerm::Hold { place, .. } => {
                let row = held.get(usize::from(chain.decided))?;
                let make = || rows.hold(row.buffer, row.form, *place);
                Some(*self.added.entry(Decision::Hold(chain.decided, *place)).or_insert_with(make))
            }
            StreamTerm::Stage { block, unroll, .. } => {
                let number = usize::from(*block);
                let numbered = || held.iter().enumerate();
                let touched = numbered().filter(|(_, row)| rows.touches(number, row.buffer));
                let places = touched.fold(Places::default(), |all, (at, _)| all.with(at, chain.live.get(at)));
                let make = || {
                    let at = |buffer| held.iter().position(|row| row.buffer == buffer);
                    rows.stage(number, *unroll, &|buffer| at(buffer).map(|at| places.get(at)).unwrap_or_default())
                };
                let work = *self.added.entry(Decision::Stage(*block, *unroll, places)).or_insert_with(make);
                let alive = numbered().filter(|(_, row)| row.at(number));
                let held_registers = alive.map(|(at, row)| rows.registers(row.buffer, chain.live.get(at))).sum();
                Some(KernelWork { held_registers, ..work })
            }
            _ => None,
        }
    }
}

fn weighed(adds: &Adds) -> Weighed<6, (i64, i64)> {
    Weighed { numbers: adds.numbers, group: (adds.held_registers, adds.shared_bytes), ways: 1 }
}
