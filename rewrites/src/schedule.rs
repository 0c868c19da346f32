//! The state that primitives transform: a program and what is known of its blocks.
use crate::dependencies::Scope;
use crate::index_types::Indices;
use crate::simplified::simplify;
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::{Block, BlockId, BlockRealize, Expr, For, Program, Stmt};
use std::collections::{HashMap, HashSet};

/// Result of a primitive.
pub type Result<T> = std::result::Result<T, ScheduleError>;

/// What is known of a block. Computed when a [`Schedule`] is made, then maintained by the primitives; a block that a
/// primitive makes starts with none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockFlags {
    /// Its iterators are an affine map, onto their domain, of the loops above it.
    pub affine_binding: bool,
    /// Everything that it reads from producers in its scope is written by them, below the loops that they share.
    pub region_cover: bool,
    /// As a scope: its children only read what earlier children wrote, all of it.
    pub stage_pipeline: bool,
}

/// A program under transformation.
#[derive(Clone, Debug)]
pub struct Schedule {
    program: Program,
    flags: HashMap<BlockId, BlockFlags>,
    indices: Indices,
}

impl Schedule {
    /// A schedule of `program` before anything is known of its blocks. Fails where two loops share a variable or two blocks an
    /// identity.
    pub(crate) fn bare(program: Program) -> Result<Schedule> {
        let mut seen = HashSet::from([Node::Block(program.body.block.id)]);
        let mut twice = None;
        satune_ir::visit::walk_stmt(&program.body.block.body, &mut |s| {
            if let Some(node) = Node::of(s) {
                if !seen.insert(node) {
                    twice = Some(node);
                }
            }
        });
        match twice {
            Some(Node::Loop(id)) => {
                return Err(ScheduleError::value("two loops of the program share one variable").at_loop(id))
            }
            Some(Node::Block(id)) => {
                return Err(ScheduleError::value("two blocks of the program share one identity").at_block(id))
            }
            None => {}
        }
        let indices = Indices::of(&program);
        Ok(Schedule { program, flags: HashMap::new(), indices })
    }

    /// The program as it stands.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The same, to make variables and buffers or to change buffers. Loops and blocks are changed by the methods below.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Gives the indices that primitives made the integer type of the program's, and their shortest form.
    pub fn settle_indices(&mut self) {
        self.indices.settle(&mut self.program);
        simplify(&mut self.program);
    }

    /// Ends the schedule.
    pub fn into_program(mut self) -> Program {
        self.settle_indices();
        self.program
    }

    /// The root block.
    pub fn root(&self) -> BlockId {
        self.program.body.block.id
    }
}

/// Finding things.
impl Schedule {
    /// A loop by its handle.
    pub fn get_loop(&self, id: LoopId) -> Result<&For> {
        tree::find_loop(&self.program, id).ok_or_else(|| ScheduleError::loop_expired(id))
    }

    /// A block with its realize.
    pub fn realize(&self, id: BlockId) -> Result<&BlockRealize> {
        tree::find_realize(&self.program, id).ok_or_else(|| ScheduleError::block_expired(id))
    }

    /// A block.
    pub fn block(&self, id: BlockId) -> Result<&Block> {
        self.realize(id).map(|r| &r.block)
    }

    /// The statement of a loop, or the body of a block.
    pub fn body_of(&self, node: Node) -> Result<&Stmt> {
        match node {
            Node::Loop(id) => self.get_loop(id).map(|l| &*l.body),
            Node::Block(id) => self.block(id).map(|b| &*b.body),
        }
    }

    /// The nodes from the root block down to `node`, both included.
    pub fn path(&self, node: Node) -> Result<Vec<Node>> {
        tree::path(&self.program, node).ok_or_else(|| match node {
            Node::Loop(id) => ScheduleError::loop_expired(id),
            Node::Block(id) => ScheduleError::block_expired(id),
        })
    }

    /// The node directly above; none for the root block.
    pub fn parent(&self, node: Node) -> Result<Option<Node>> {
        let path = self.path(node)?;
        Ok(path.len().checked_sub(2).map(|i| path[i]))
    }

    /// The loops above a block (or a loop) up to the nearest block, outermost first.
    pub fn loops_above(&self, node: Node) -> Result<Vec<LoopId>> {
        let path = self.path(node)?;
        let mut loops: Vec<LoopId> = path[..path.len() - 1]
            .iter()
            .rev()
            .map_while(|n| match n {
                Node::Loop(id) => Some(*id),
                Node::Block(_) => None,
            })
            .collect();
        loops.reverse();
        Ok(loops)
    }

    /// The loops of a block, outermost first.
    pub fn loops_of(&self, block: BlockId) -> Result<Vec<LoopId>> {
        self.loops_above(Node::Block(block))
    }

    /// The nearest block strictly above.
    pub fn scope_of(&self, node: Node) -> Result<BlockId> {
        let path = self.path(node)?;
        path[..path.len() - 1]
            .iter()
            .rev()
            .find_map(|n| match n {
                Node::Block(id) => Some(*id),
                Node::Loop(_) => None,
            })
            .ok_or_else(|| ScheduleError::root_block(self.root()))
    }

    /// The dependency graph of a scope block.
    pub fn scope(&self, block: BlockId) -> Result<Scope> {
        Ok(Scope::of(self.block(block)?))
    }

    /// The lowest node above both, or one of them where it is above the other.
    pub fn lowest_common_ancestor(&self, a: Node, b: Node) -> Result<Node> {
        let (a, b) = (self.path(a)?, self.path(b)?);
        let shared = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
        Ok(a[shared - 1])
    }

    /// The direct child blocks below a node, in program order.
    pub fn child_blocks(&self, node: Node) -> Result<Vec<BlockId>> {
        Ok(tree::child_realizes(self.body_of(node)?).into_iter().map(|r| r.block.id).collect())
    }

    /// The loops given, with their expressions.
    pub fn get_loops(&self, ids: &[LoopId]) -> Result<Vec<&For>> {
        ids.iter().map(|id| self.get_loop(*id)).collect()
    }
}

/// Flags.
impl Schedule {
    /// What is known of a block.
    pub fn flags(&self, block: BlockId) -> BlockFlags {
        self.flags.get(&block).copied().unwrap_or_default()
    }

    /// Sets what is known of a block.
    pub fn set_flags(&mut self, block: BlockId, flags: BlockFlags) {
        self.flags.insert(block, flags);
    }
}

/// Changing the tree. Every method leaves the program as it was when it fails.
impl Schedule {
    /// Replaces the statement of a node (not of the root block) by what `with` makes of it.
    pub fn replace(&mut self, node: Node, with: impl FnOnce(Stmt) -> Stmt) -> Result<()> {
        self.path(node)?;
        let mut with = Some(with);
        let found = tree::replace(&mut self.program.body.block.body, node, &mut |s| match with.take() {
            Some(f) => f(s),
            None => s,
        });
        if found {
            Ok(())
        } else {
            Err(ScheduleError::root_block(self.root()))
        }
    }

    /// Changes a loop in place.
    pub fn update_loop<T>(&mut self, id: LoopId, f: impl FnOnce(&mut For) -> T) -> Result<T> {
        match tree::find_mut(&mut self.program.body.block.body, Node::Loop(id)) {
            Some(Stmt::For(l)) => Ok(f(l)),
            _ => Err(ScheduleError::loop_expired(id)),
        }
    }

    /// Changes a block and its realize in place.
    pub fn update_realize<T>(&mut self, id: BlockId, f: impl FnOnce(&mut BlockRealize) -> T) -> Result<T> {
        if self.program.body.block.id == id {
            return Ok(f(&mut self.program.body));
        }
        match tree::find_mut(&mut self.program.body.block.body, Node::Block(id)) {
            Some(Stmt::Realize(r)) => Ok(f(r)),
            _ => Err(ScheduleError::block_expired(id)),
        }
    }

    /// Changes several blocks and their realizes in place, outer ones first.
    pub fn update_realizes(&mut self, ids: &[BlockId], f: &mut dyn FnMut(&mut BlockRealize)) -> Result<()> {
        let mut left: HashSet<BlockId> = ids.iter().copied().collect();
        if left.remove(&self.program.body.block.id) {
            f(&mut self.program.body);
        }
        tree::each_realize_mut(&mut self.program.body.block.body, &mut |r| {
            if left.remove(&r.block.id) {
                f(r);
            }
        });
        left.into_iter().min().map_or(Ok(()), |id| Err(ScheduleError::block_expired(id)))
    }

    /// Changes a block in place.
    pub fn update_block<T>(&mut self, id: BlockId, f: impl FnOnce(&mut Block) -> T) -> Result<T> {
        self.update_realize(id, |r| f(&mut r.block))
    }

    /// Changes the body of a loop or block in place.
    pub fn update_body<T>(&mut self, node: Node, f: impl FnOnce(&mut Stmt) -> T) -> Result<T> {
        match node {
            Node::Loop(id) => self.update_loop(id, |l| f(&mut l.body)),
            Node::Block(id) => self.update_block(id, |b| f(&mut b.body)),
        }
    }

    /// Inserts statements into the body of a node, before entry `index` (see [`tree::entries`]).
    pub fn insert(&mut self, node: Node, index: usize, parts: Vec<Stmt>) -> Result<()> {
        self.update_body(node, |body| {
            let old = std::mem::replace(body, Stmt::Seq(Vec::new()));
            let mut all = match old {
                Stmt::Seq(parts) => parts,
                other => vec![other],
            };
            let at = index.min(all.len());
            all.splice(at..at, parts);
            *body = Stmt::seq(all);
        })
    }

    /// Where [`Schedule::remove_leaf`] would cut: the node whose sequence holds the block's branch, and the branch's index.
    pub fn removal_plan(&self, block: BlockId) -> Result<(Node, usize)> {
        let path = self.path(Node::Block(block))?;
        for i in (0..path.len() - 1).rev() {
            let (node, child) = (path[i], path[i + 1]);
            let body = self.body_of(node)?;
            if let Stmt::Seq(parts) = body {
                if let Some(index) = parts.iter().position(|s| tree::contains(s, child)) {
                    return Ok((node, index));
                }
            }
            if matches!(node, Node::Block(_)) {
                break;
            }
        }
        Err(ScheduleError::refused(
            "Cannot remove the only leaf in the scope",
            format!(
                "Block {} is the only leaf in its scope, which cannot be removed; otherwise the scope would be empty",
                self.block(block)?.name
            ),
        )
        .at_block(block)
        .remedy("leave at least one block in the scope"))
    }

    /// Removes a block together with the loops that hold nothing else, and returns its realize.
    pub fn remove_leaf(&mut self, block: BlockId) -> Result<BlockRealize> {
        let (node, index) = self.removal_plan(block)?;
        let realize = self.realize(block)?.clone();
        self.update_body(node, |body| {
            if let Stmt::Seq(parts) = body {
                let mut parts = std::mem::take(parts);
                parts.remove(index);
                *body = Stmt::seq(parts);
            }
        })?;
        Ok(realize)
    }

    /// A nest of new serial loops, named and sized as given, around `body` of their variables.
    pub fn nest(&mut self, dims: &[(String, Expr, Expr)], body: impl FnOnce(&mut Program, &[Expr]) -> Stmt) -> Stmt {
        let vars: Vec<_> =
            dims.iter().map(|(name, _, _)| self.program.fresh_var(name.as_str(), satune_ir::DType::I32)).collect();
        let values: Vec<Expr> = vars.iter().cloned().map(Expr::Var).collect();
        let mut stmt = body(&mut self.program, &values);
        for ((_, min, extent), var) in dims.iter().zip(vars).rev() {
            stmt = Stmt::For(For {
                var,
                min: min.clone(),
                extent: extent.clone(),
                kind: satune_ir::ForKind::Serial,
                annotations: Default::default(),
                body: Box::new(stmt),
            });
        }
        stmt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{block, chain, joined, loops, matmul, refusal};

    #[test]
    fn finds_nodes() {
        let s = joined();
        let (b, c) = (block(&s, "B"), block(&s, "C"));
        let i = loops(&s, "B")[0];
        assert_eq!(s.lowest_common_ancestor(Node::Block(b), Node::Block(c)).unwrap(), Node::Loop(i));
        assert_eq!(s.scope_of(Node::Block(b)).unwrap(), s.root());
        assert_eq!(s.parent(Node::Loop(i)).unwrap(), Some(Node::Block(s.root())));
        assert_eq!(s.child_blocks(Node::Loop(i)).unwrap(), vec![b, c]);
        assert_eq!(s.path(Node::Block(s.root())).unwrap().len(), 1);
    }

    #[test]
    fn removes_a_branch() {
        let mut s = joined();
        let b = block(&s, "B");
        let removed = s.remove_leaf(b).unwrap();
        assert_eq!(removed.block.id, b);
        assert_eq!(loops(&s, "C").len(), 2);
        assert_eq!(s.block(b).unwrap_err().fast, "The block no longer exists in the IRModule");
        let mut s = chain();
        let c = block(&s, "C");
        s.remove_leaf(c).unwrap();
        assert_eq!(s.child_blocks(Node::Block(s.root())).unwrap().len(), 1);
    }

    #[test]
    fn keeps_the_only_leaf() {
        let mut s = matmul();
        let c = block(&s, "C");
        let message = "ScheduleError: Cannot remove the only leaf in the scope";
        assert_eq!(refusal(&mut s, |s| s.remove_leaf(c).map_err(|e| e.within("compute_at"))), message);
    }
}
