//! Chains of nodes, shared between candidates, and the terms that they stand for.
use egg::{Id, Language, RecExpr};
use satune_ir::term::Term;
use std::sync::Arc;

/// A node of a space with what was chosen below it: the main chain and, for nodes with two children, the other one.
#[derive(Clone, Debug)]
pub(crate) struct Path<'s> {
    node: &'s Term,
    /// In the order of the node's children.
    children: Vec<Arc<Path<'s>>>,
}

impl<'s> Path<'s> {
    /// A leaf.
    pub fn leaf(node: &'s Term) -> Arc<Path<'s>> {
        Arc::new(Path { node, children: Vec::new() })
    }

    /// A leaf under a chain of nodes, given from the outside in.
    pub fn chain(above: &[&'s Term], leaf: &'s Term) -> Arc<Path<'s>> {
        above.iter().rev().fold(Path::leaf(leaf), |path, node| Path::over(node, path, None))
    }

    /// A node over a chain and, where it has two children, over the other one.
    pub fn over(node: &'s Term, main: Arc<Path<'s>>, side: Option<Arc<Path<'s>>>) -> Arc<Path<'s>> {
        let children = match node {
            Term::Stage { .. } | Term::Strip { .. } => side.into_iter().chain([main]).collect(),
            _ => [main].into_iter().chain(side).collect(),
        };
        Path::with(node, children)
    }

    /// A node over what was chosen for each of its children.
    pub fn with(node: &'s Term, children: Vec<Arc<Path<'s>>>) -> Arc<Path<'s>> {
        Arc::new(Path { node, children })
    }

    /// The term.
    pub fn term(&self) -> RecExpr<Term> {
        let mut out = RecExpr::default();
        self.add_to(&mut out);
        out
    }

    fn add_to(&self, out: &mut RecExpr<Term>) -> Id {
        let ids: Vec<Id> = self.children.iter().map(|p| p.add_to(out)).collect();
        let mut node = self.node.clone();
        for (child, id) in node.children_mut().iter_mut().zip(ids) {
            *child = id;
        }
        out.add(node)
    }
}

/// Nodes of the space from the outside in, each with what its second child is.
pub(crate) type Above<'s> = Vec<(&'s Term, Option<Arc<Path<'s>>>)>;
