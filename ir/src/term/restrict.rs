//! A part of a space: the programs that keep to some decisions.
use super::{Space, TermLanguage};
use egg::Id;
use rustc_hash::FxHashSet;

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

    /// Whether there is a program at all, in a space made by [`Space::restricted`].
    pub fn is_empty(&self) -> bool {
        self.choices(self.egraph.find(self.root)).next().is_none()
    }
}
