//! Chains of nodes, shared between candidates, and the terms that they stand for.
use egg::{Id, Language, RecExpr};
use satune_ir::term::Term;
use std::sync::Arc;

/// A node with what was chosen below it: the main chain and, for nodes with two children, the other one.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub node: Term,
    pub main: Option<Arc<Path>>,
    pub side: Option<Arc<Path>>,
}

impl Path {
    /// A leaf.
    pub fn leaf(node: Term) -> Arc<Path> {
        Arc::new(Path { node, main: None, side: None })
    }

    /// A node over one chain.
    pub fn over(node: Term, main: Arc<Path>) -> Arc<Path> {
        Arc::new(Path { node, main: Some(main), side: None })
    }

    /// A node over two.
    pub fn over_two(node: Term, main: Arc<Path>, side: Arc<Path>) -> Arc<Path> {
        Arc::new(Path { node, main: Some(main), side: Some(side) })
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
            Term::Stage { .. } => [side, main],
            _ => [main, side],
        };
        for (child, id) in node.children_mut().iter_mut().zip(order.into_iter().flatten()) {
            *child = id;
        }
        out.add(node)
    }
}
