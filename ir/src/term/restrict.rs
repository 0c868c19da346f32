//! A part of a space: the programs that keep to some decisions.
use super::{Space, TermLanguage};
use egg::Id;
use rustc_hash::{FxHashMap, FxHashSet};

impl<T: TermLanguage> Space<T> {
    /// The programs whose every node is kept. Nodes that then lead nowhere are left out too, so that the root of a part
    /// without programs has no choices.
    pub fn restricted(&self, keep: &dyn Fn(Id, &T) -> bool) -> Space<T> {
        let mut inhabited: FxHashSet<Id> = FxHashSet::default();
        let mut egraph = self.egraph.clone();
        // Children come first, so one pass decides every class.
        for class in self.bottom_up() {
            let kept: Vec<T> = self
                .choices(class)
                .filter(|node| keep(class, node))
                .filter(|node| node.children().iter().all(|c| inhabited.contains(&self.egraph.find(*c))))
                .cloned()
                .collect();
            if !kept.is_empty() {
                inhabited.insert(class);
            }
            egraph[class].nodes = kept;
        }
        Space {
            egraph,
            root: self.root,
            contraction: self.contraction.clone(),
            made_by: self.made_by.clone(),
            report: self.report.clone(),
        }
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
