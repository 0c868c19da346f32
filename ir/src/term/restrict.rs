//! A part of a space: the programs that keep to some decisions.
use super::{Space, TermLanguage};
use egg::Id;
use rustc_hash::FxHashMap;

impl<T: TermLanguage> Space<T> {
    /// The programs whose every node is kept. Nodes that then lead nowhere are left out too, so that the root of a part
    /// without programs has no choices.
    pub fn restricted(&self, keep: &dyn Fn(Id, &T) -> bool) -> Space<T> {
        let mut kept = FxHashMap::default();
        self.keep(self.egraph.find(self.root), keep, &mut kept);
        Space {
            egraph: self.egraph.clone(),
            kept: Some(kept),
            root: self.root,
            contraction: self.contraction.clone(),
            made_by: self.made_by.clone(),
            report: self.report.clone(),
        }
    }

    /// Collects what is kept of a class and of what it leads to; whether that is anything.
    fn keep(&self, class: Id, keep: &dyn Fn(Id, &T) -> bool, kept: &mut FxHashMap<Id, Vec<T>>) -> bool {
        if let Some(known) = kept.get(&class) {
            return !known.is_empty();
        }
        let mut nodes = Vec::new();
        for node in self.choices(class) {
            if keep(class, node) && node.children().iter().all(|c| self.keep(self.egraph.find(*c), keep, kept)) {
                nodes.push(node.clone());
            }
        }
        let any = !nodes.is_empty();
        kept.insert(class, nodes);
        any
    }

    /// Whether there is a program whose every node is kept.
    pub fn has_program(&self, keep: &dyn Fn(Id, &T) -> bool) -> bool {
        self.leads(self.egraph.find(self.root), keep, &mut FxHashMap::default())
    }

    /// Whether a class has such a program; `known` are the classes that were asked before.
    fn leads(&self, class: Id, keep: &dyn Fn(Id, &T) -> bool, known: &mut FxHashMap<Id, bool>) -> bool {
        if let Some(known) = known.get(&class) {
            return *known;
        }
        let found = self.choices(class).any(|node| {
            keep(class, node) && node.children().iter().all(|c| self.leads(self.egraph.find(*c), keep, known))
        });
        known.insert(class, found);
        found
    }

    /// Whether there is a program at all, in a space made by [`Space::restricted`].
    pub fn is_empty(&self) -> bool {
        self.choices(self.egraph.find(self.root)).next().is_none()
    }
}
