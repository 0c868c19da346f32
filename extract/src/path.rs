//! Chains of nodes, shared between candidates, and the terms that they stand for.
use egg::{Id, Language, RecExpr};
use satune_ir::term::Term;
use std::sync::Arc;

/// A node of a space with what was chosen below it: the main chain and, for nodes with two children, the other one.
#[derive(Clone, Debug)]
pub(crate) struct Path<'s> {
    node: &'s Term,
    main: Option<Arc<Path<'s>>>,
    side: Option<Arc<Path<'s>>>,
}

impl<'s> Path<'s> {
    /// A leaf.
    pub fn leaf(node: &'s Term) -> Arc<Path<'s>> {
        Arc::new(Path { node, main: None, side: None })
    }

    /// A leaf under a chain of nodes, given from the outside in.
    pub fn chain(above: &[&'s Term], leaf: &'s Term) -> Arc<Path<'s>> {
        above.iter().rev().fold(Path::leaf(leaf), |path, node| Path::over(node, path, None))
    }

    /// A node over a chain and, where it has two children, over the other one.
    pub fn over(node: &'s Term, main: Arc<Path<'s>>, side: Option<Arc<Path<'s>>>) -> Arc<Path<'s>> {
        Arc::new(Path { node, main: Some(main), side })
    }

    /// The term.
    pub fn term(&self) -> RecExpr<Term> {
        let mut out = RecExpr::default();
        self.add_to(&mut out);
        out
    }

    fn add_to(&self, out: &mut RecExpr<Term>) -> Id {
        let main = self.main.as_ref().map(|p| p.add_to(out));
        let side = self.side.as_ref().map(|p| p.add_to(out));
        let mut node = self.node.clone();
        let order = match node {
            Term::Stage { .. } | Term::Strip { .. } => [side, main],
            _ => [main, side],
        };
        for (child, id) in node.children_mut().iter_mut().zip(order.into_iter().flatten()) {
            *child = id;
        }
        out.add(node)
    }
}
