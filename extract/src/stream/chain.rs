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
use satune_ir::term::stream::{HeldRow, Step, StreamState, StreamTerm};
use satune_ir::term::Space;
use std::collections::HashMap;
use std::sync::Arc;

/// Nodes that stand over each other.
pub(super) struct Path<'s> {
    node: &'s StreamTerm,
    below: Option<Arc<Path<'s>>>,
}

impl<'s> Path<'s> {
    /// From the outside in.
    pub fn nodes(&self) -> impl Iterator<Item = &'s StreamTerm> + '_ {
        std::iter::successors(Some(self), |path| path.below.as_deref()).map(|path| path.node)
    }
}

/// What some decisions add, and which these are.
pub(super) struct Label<'s> {
    pub work: KernelWork,
    pub path: Arc<Path<'s>>,
}

/// The sums below one choice of rows and threads.
pub(super) struct Sums<'s, 'a> {
    pub space: &'s Space<StreamTerm>,
    pub rows: Rows<'a>,
    pub gpu: &'a Descriptor,
    /// Of how many best they are.
    pub k: usize,
    /// What a kernel of one row a block holds, and what one of several.
    pub held: &'a [Vec<HeldRow>; 2],
    /// What each choice of a class adds.
    own: HashMap<Id, Arc<Vec<Own<'s>>>>,
    least: HashMap<Id, KernelWork>,
    known: HashMap<Id, Arc<Vec<Label<'s>>>>,
}

/// A node, what it adds, and what is left below it.
type Own<'s> = (&'s StreamTerm, KernelWork, Option<Id>);

impl<'s, 'a> Sums<'s, 'a> {
    /// None is made yet.
    pub fn new(
        space: &'s Space<StreamTerm>,
        rows: Rows<'a>,
        gpu: &'a Descriptor,
        k: usize,
        held: &'a [Vec<HeldRow>; 2],
    ) -> Sums<'s, 'a> {
        let (own, least, known) = (HashMap::new(), HashMap::new(), HashMap::new());
        Sums { space, rows, gpu, k, held, own, least, known }
    }

    /// The least of each number below a class.
    pub fn least(&mut self, class: Id) -> KernelWork {
        if let Some(known) = self.least.get(&class) {
            return *known;
        }
        let mut least: Option<KernelWork> = None;
        for (_, own, body) in self.own(class).iter() {
            let mut work = *own;
            if let Some(body) = body {
                work.add(&self.least(*body));
            }
            least = Some(least.map_or(work, |least| least.least(&work)));
        }
        let least = least.unwrap_or_default();
        self.least.insert(class, least);
        least
    }

    /// The sums below a class.
    pub fn of(&mut self, class: Id) -> Arc<Vec<Label<'s>>> {
        if let Some(known) = self.known.get(&class) {
            return known.clone();
        }
        let mut all: Vec<Label<'s>> = Vec::new();
        for (node, own, body) in self.own(class).iter() {
            match body {
                None => all.push(Label { work: *own, path: Arc::new(Path { node, below: None }) }),
                Some(body) => all.extend(self.of(*body).iter().map(|below| {
                    let mut work = *own;
                    work.add(&below.work);
                    Label { work, path: Arc::new(Path { node, below: Some(below.path.clone()) }) }
                })),
            }
        }
        let weighed: Vec<_> = all.iter().map(|label| self.weighed(label)).collect();
        let mut kept = vec![false; all.len()];
        keep(&weighed, self.k).into_iter().for_each(|at| kept[at] = true);
        let mut kept = kept.into_iter();
        all.retain(|_| kept.next() == Some(true));
        let all = Arc::new(all);
        self.known.insert(class, all.clone());
        all
    }

    fn weighed(&self, label: &Label<'s>) -> Weighed<6, (i64, i64)> {
        let group = (label.work.held_registers, label.work.shared_bytes);
        Weighed { numbers: weights(&label.work, self.gpu), group, ways: 1 }
    }

    fn own(&mut self, class: Id) -> Arc<Vec<Own<'s>>> {
        if let Some(known) = self.own.get(&class) {
            return known.clone();
        }
        let space = self.space;
        let body = |node: &StreamTerm| node.children().first().map(|body| space.egraph.find(*body));
        let own: Vec<Own<'s>> =
            space.choices(class).map(|node| (node, self.added(node).unwrap_or_default(), body(node))).collect();
        let own = Arc::new(own);
        self.own.insert(class, own.clone());
        own
    }

    /// What one decision adds.
    fn added(&self, node: &StreamTerm) -> Option<KernelWork> {
        let (StreamTerm::Hold { of, .. } | StreamTerm::Stage { of, .. }) = node else { return None };
        let StreamState { step: Step::Chain(_, chain), .. } = **of else { return None };
        let held = &self.held[usize::from(chain.several)];
        match node {
            StreamTerm::Hold { place, .. } => {
                held.get(usize::from(chain.decided)).map(|row| self.rows.hold(row.buffer, row.form, *place))
            }
            StreamTerm::Stage { block, unroll, .. } => {
                let at = |buffer| held.iter().position(|row| row.buffer == buffer);
                let place = |buffer| at(buffer).map(|at| chain.live.get(at)).unwrap_or_default();
                Some(self.rows.stage(usize::from(*block), *unroll, &place))
            }
            _ => None,
        }
    }
}
