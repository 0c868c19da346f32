//! Every program of a small space, one by one: what exact counts and exact extraction are compared with.
use super::{Space, TermLanguage};
use egg::{Id, RecExpr};

impl<T: TermLanguage> Space<T> {
    /// Every program of a class, as terms. As many as the class stands for: only for spaces that are small.
    pub fn programs(&self, class: Id) -> Vec<RecExpr<T>> {
        let mut out = Vec::new();
        for node in self.choices(self.egraph.find(class)) {
            let mut partial: Vec<Vec<RecExpr<T>>> = vec![Vec::new()];
            for child in node.children() {
                let below = self.programs(*child);
                partial = partial
                    .iter()
                    .flat_map(|list| below.iter().map(|b| list.iter().cloned().chain([b.clone()]).collect()))
                    .collect();
            }
            out.extend(partial.iter().map(|children| joined(node, children)));
        }
        out
    }
}

/// A node over whole terms.
fn joined<T: TermLanguage>(node: &T, children: &[RecExpr<T>]) -> RecExpr<T> {
    let mut term = RecExpr::default();
    let mut ids = Vec::with_capacity(children.len());
    for child in children {
        let offset = term.as_ref().len();
        for node in child.as_ref() {
            term.add(node.clone().map_children(|id| Id::from(usize::from(id) + offset)));
        }
        ids.push(Id::from(term.as_ref().len() - 1));
    }
    let mut node = node.clone();
    node.children_mut().copy_from_slice(&ids);
    term.add(node);
    term
}
