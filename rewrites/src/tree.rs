//! The tree of loops and blocks of a program: finding nodes, their ancestors and their children. What a block runs as
//! its `init` is no part of the tree.
use satune_ir::{visit, BlockId, BlockRealize, For, ForKind, Program, Stmt, VarId};

/// Handle of a loop: the id of its variable.
pub type LoopId = VarId;

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// A loop.
    Loop(LoopId),
    /// A block.
    Block(BlockId),
}

impl Node {
    /// The node that a statement is, if it is a loop or a block.
    pub fn of(stmt: &Stmt) -> Option<Node> {
        match stmt {
            Stmt::For(l) => Some(Node::Loop(l.var.id)),
            Stmt::Realize(r) => Some(Node::Block(r.block.id)),
            _ => None,
        }
    }
}

/// The tag of a statement that is a thread-bound loop.
pub fn tag_of(stmt: &Stmt) -> Option<&str> {
    match stmt {
        Stmt::For(l) => match &l.kind {
            ForKind::ThreadBinding(tag) => Some(tag),
            _ => None,
        },
        _ => None,
    }
}

/// Statements directly below a statement, `init` excluded.
pub fn children(stmt: &Stmt) -> Vec<&Stmt> {
    match stmt {
        Stmt::For(l) => vec![&*l.body],
        Stmt::Realize(r) => vec![&*r.block.body],
        Stmt::Seq(parts) => parts.iter().collect(),
        Stmt::If { then, otherwise, .. } => {
            let mut out = vec![&**then];
            out.extend(otherwise.as_deref());
            out
        }
        Stmt::Let { body, .. } => vec![&**body],
        Stmt::Store { .. } | Stmt::Evaluate(_) => Vec::new(),
    }
}

/// The same, to change them.
fn children_mut(stmt: &mut Stmt) -> Vec<&mut Stmt> {
    below_mut(stmt, false)
}

/// Statements directly below a statement; of a block its init too.
pub fn children_and_init_mut(stmt: &mut Stmt) -> Vec<&mut Stmt> {
    below_mut(stmt, true)
}

fn below_mut(stmt: &mut Stmt, init: bool) -> Vec<&mut Stmt> {
    match stmt {
        Stmt::For(l) => vec![&mut *l.body],
        Stmt::Realize(r) => {
            let mut out = vec![&mut *r.block.body];
            out.extend(r.block.init.as_deref_mut().filter(|_| init));
            out
        }
        Stmt::Seq(parts) => parts.iter_mut().collect(),
        Stmt::If { then, otherwise, .. } => {
            let mut out = vec![&mut **then];
            out.extend(otherwise.as_deref_mut());
            out
        }
        Stmt::Let { body, .. } => vec![&mut **body],
        Stmt::Store { .. } | Stmt::Evaluate(_) => Vec::new(),
    }
}

/// The statement of a node at or below `stmt`.
pub fn find(stmt: &Stmt, node: Node) -> Option<&Stmt> {
    if Node::of(stmt) == Some(node) {
        return Some(stmt);
    }
    // Looked for everywhere and often: without a list of children.
    match stmt {
        Stmt::For(l) => find(&l.body, node),
        Stmt::Realize(r) => find(&r.block.body, node),
        Stmt::Seq(parts) => parts.iter().find_map(|s| find(s, node)),
        Stmt::If { then, otherwise, .. } => find(then, node).or_else(|| find(otherwise.as_deref()?, node)),
        Stmt::Let { body, .. } => find(body, node),
        Stmt::Store { .. } | Stmt::Evaluate(_) => None,
    }
}

/// The same, to change it.
pub fn find_mut(stmt: &mut Stmt, node: Node) -> Option<&mut Stmt> {
    if Node::of(stmt) == Some(node) {
        return Some(stmt);
    }
    match stmt {
        Stmt::For(l) => find_mut(&mut l.body, node),
        Stmt::Realize(r) => find_mut(&mut r.block.body, node),
        Stmt::Seq(parts) => parts.iter_mut().find_map(|s| find_mut(s, node)),
        Stmt::If { then, otherwise, .. } => {
            find_mut(then, node).or_else(|| otherwise.as_deref_mut().and_then(|s| find_mut(s, node)))
        }
        Stmt::Let { body, .. } => find_mut(body, node),
        Stmt::Store { .. } | Stmt::Evaluate(_) => None,
    }
}

/// Calls `f` on every block at or below `stmt`, outer ones first.
pub fn each_realize_mut(stmt: &mut Stmt, f: &mut dyn FnMut(&mut BlockRealize)) {
    if let Stmt::Realize(r) = stmt {
        f(r);
    }
    children_mut(stmt).into_iter().for_each(|s| each_realize_mut(s, f));
}

/// A loop of the program.
pub fn find_loop(program: &Program, id: LoopId) -> Option<&For> {
    match find(&program.body.block.body, Node::Loop(id)) {
        Some(Stmt::For(l)) => Some(l),
        _ => None,
    }
}

/// A block of the program with its realize; the root block too.
pub fn find_realize(program: &Program, id: BlockId) -> Option<&BlockRealize> {
    if program.body.block.id == id {
        return Some(&program.body);
    }
    match find(&program.body.block.body, Node::Block(id)) {
        Some(Stmt::Realize(r)) => Some(r),
        _ => None,
    }
}

/// The nodes from the root block down to `node`, both included.
pub fn path(program: &Program, node: Node) -> Option<Vec<Node>> {
    fn descend(stmt: &Stmt, node: Node, out: &mut Vec<Node>) -> bool {
        let here = Node::of(stmt);
        out.extend(here);
        if here == Some(node) || children(stmt).into_iter().any(|s| descend(s, node, out)) {
            return true;
        }
        if here.is_some() {
            out.pop();
        }
        false
    }
    let mut out = vec![Node::Block(program.body.block.id)];
    if out[0] == node || descend(&program.body.block.body, node, &mut out) {
        return Some(out);
    }
    None
}

/// The blocks at or below `stmt` that no other block encloses there, in program order.
pub fn child_realizes(stmt: &Stmt) -> Vec<&BlockRealize> {
    fn visit<'a>(stmt: &'a Stmt, out: &mut Vec<&'a BlockRealize>) {
        match stmt {
            Stmt::Realize(r) => out.push(r),
            other => children(other).into_iter().for_each(|s| visit(s, out)),
        }
    }
    let mut out = Vec::new();
    visit(stmt, &mut out);
    out
}

/// All blocks at or below `stmt`, nested ones after those that hold them.
pub fn all_realizes(stmt: &Stmt) -> Vec<&BlockRealize> {
    fn visit<'a>(stmt: &'a Stmt, out: &mut Vec<&'a BlockRealize>) {
        if let Stmt::Realize(r) = stmt {
            out.push(r);
        }
        children(stmt).into_iter().for_each(|s| visit(s, out));
    }
    let mut out = Vec::new();
    visit(stmt, &mut out);
    out
}

/// Whether there is a block at or below a statement.
pub fn has_blocks(stmt: &Stmt) -> bool {
    let mut found = false;
    visit::walk_stmt(stmt, &mut |s| found |= matches!(s, Stmt::Realize(_)));
    found
}

/// Calls `f` on every direct child realize of `stmt`, to change it.
pub fn for_each_child_realize(stmt: &mut Stmt, f: &mut dyn FnMut(&mut BlockRealize)) {
    match stmt {
        Stmt::Realize(r) => f(r),
        other => children_mut(other).into_iter().for_each(|s| for_each_child_realize(s, f)),
    }
}

/// All loops at or below `stmt`, outer ones first.
pub fn all_loops(stmt: &Stmt) -> Vec<&For> {
    fn visit<'a>(stmt: &'a Stmt, out: &mut Vec<&'a For>) {
        if let Stmt::For(l) = stmt {
            out.push(l);
        }
        children(stmt).into_iter().for_each(|s| visit(s, out));
    }
    let mut out = Vec::new();
    visit(stmt, &mut out);
    out
}

/// Replaces the statement of a node below `stmt` by what `with` makes of it, keeping sequences flat.
/// Returns whether the node was found.
pub fn replace(stmt: &mut Stmt, node: Node, with: &mut dyn FnMut(Stmt) -> Stmt) -> bool {
    if Node::of(stmt) == Some(node) {
        *stmt = with(std::mem::replace(stmt, Stmt::Seq(Vec::new())));
        return true;
    }
    let found = children_mut(stmt).into_iter().any(|s| replace(s, node, with));
    if found {
        if let Stmt::Seq(parts) = stmt {
            *stmt = Stmt::seq(std::mem::take(parts));
        }
    }
    found
}

/// The entries of a body: the parts of a sequence, or the statement itself.
pub fn entries(stmt: &Stmt) -> &[Stmt] {
    match stmt {
        Stmt::Seq(parts) => parts,
        other => std::slice::from_ref(other),
    }
}

/// Whether a node is at or below `stmt`.
pub fn contains(stmt: &Stmt, node: Node) -> bool {
    find(stmt, node).is_some()
}
