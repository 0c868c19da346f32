//! Scopes: the dependency graph among the child blocks of a block, and the classes of blocks that primitives ask for.
use crate::schedule::{Result, Schedule};
use crate::tree::{self, Node};
use crate::ScheduleError;
use indexmap::IndexMap;
use satune_ir::{visit, Block, BlockId, BufferId, IterKind, Stmt, VarId};
use std::collections::HashSet;

/// Kind of a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DepKind {
    /// Read after write.
    Raw,
    /// Write after write.
    Waw,
    /// Write after read.
    War,
}

/// A dependency: `to` comes after `from` in the program and touches a buffer that `from` touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dep {
    /// The earlier block.
    pub from: BlockId,
    /// The later block.
    pub to: BlockId,
    /// Kind.
    pub kind: DepKind,
}

/// The dependency graph of a scope, over its direct child blocks in program order. Per buffer: regions are not compared.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The child blocks in program order.
    pub children: Vec<BlockId>,
    /// Who reads a buffer.
    pub readers: IndexMap<BufferId, Vec<BlockId>>,
    /// Who writes a buffer.
    pub writers: IndexMap<BufferId, Vec<BlockId>>,
    /// All dependencies.
    pub deps: Vec<Dep>,
    /// The buffers that the scope itself allocates.
    pub allocated: Vec<BufferId>,
}

impl Scope {
    /// The graph of the blocks directly below `scope`.
    pub fn of(scope: &Block) -> Scope {
        let mut out = Scope { allocated: scope.alloc_buffers.clone(), ..Scope::default() };
        let mut seen = HashSet::new();
        for child in tree::child_realizes(&scope.body) {
            out.add(&child.block, &mut seen);
        }
        out
    }

    fn add(&mut self, block: &Block, seen: &mut HashSet<Dep>) {
        let to = block.id;
        self.children.push(to);
        let (reads, writes) = touched(block);
        for r in &reads {
            push_unique(self.readers.entry(*r).or_default(), to);
        }
        for w in &writes {
            push_unique(self.writers.entry(*w).or_default(), to);
        }
        let mut new = Vec::new();
        for r in &reads {
            new.extend(of(&self.writers, *r).iter().map(|&from| Dep { from, to, kind: DepKind::Raw }));
        }
        for w in &writes {
            new.extend(of(&self.writers, *w).iter().map(|&from| Dep { from, to, kind: DepKind::Waw }));
            new.extend(of(&self.readers, *w).iter().map(|&from| Dep { from, to, kind: DepKind::War }));
        }
        self.deps.extend(new.into_iter().filter(|d| d.from != d.to && seen.insert(*d)));
    }

    /// Blocks that write what `block` reads or writes, in order, each once.
    pub fn producers(&self, block: BlockId) -> Vec<BlockId> {
        unique(self.deps.iter().filter(|d| d.to == block && d.kind != DepKind::War).map(|d| d.from))
    }

    /// Blocks that read or overwrite what `block` writes, in order, each once.
    pub fn consumers(&self, block: BlockId) -> Vec<BlockId> {
        unique(self.deps.iter().filter(|d| d.from == block && d.kind != DepKind::War).map(|d| d.to))
    }

    /// Who writes a buffer, in program order.
    pub fn writers_of(&self, buffer: BufferId) -> &[BlockId] {
        of(&self.writers, buffer)
    }

    /// Who reads a buffer, in program order.
    pub fn readers_of(&self, buffer: BufferId) -> &[BlockId] {
        of(&self.readers, buffer)
    }

    /// Whether every buffer that `block` writes has no other writer in the scope.
    pub fn is_dominant(&self, block: &Block) -> bool {
        touched(block).1.iter().all(|w| self.writers_of(*w).len() <= 1)
    }

    /// Whether `block` writes a buffer that its scope does not allocate.
    pub fn is_output(&self, block: &Block) -> bool {
        touched(block).1.iter().any(|w| !self.allocated.contains(w))
    }
}

/// The buffers that a block reads and writes: those it declares, or, where it declares none, those of the blocks inside
/// it. `loop_partition` leaves such blocks; TVM loses their dependencies.
pub(crate) fn touched(block: &Block) -> (Vec<BufferId>, Vec<BufferId>) {
    if !declares_nothing(block) {
        let of = |list: &[satune_ir::Region]| list.iter().map(|r| r.buffer).collect();
        return (of(&block.reads), of(&block.writes));
    }
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for r in tree::child_realizes(&block.body) {
        let (inner_reads, inner_writes) = touched(&r.block);
        let seen = |list: &[BufferId], b: &BufferId| list.contains(b) || block.alloc_buffers.contains(b);
        inner_reads.into_iter().for_each(|b| {
            if !seen(&reads, &b) {
                reads.push(b)
            }
        });
        inner_writes.into_iter().for_each(|b| {
            if !seen(&writes, &b) {
                writes.push(b)
            }
        });
    }
    (reads, writes)
}

/// Whether a block says nothing of what it touches.
pub(crate) fn declares_nothing(block: &Block) -> bool {
    block.reads.is_empty() && block.writes.is_empty()
}

fn of(map: &IndexMap<BufferId, Vec<BlockId>>, buffer: BufferId) -> &[BlockId] {
    map.get(&buffer).map_or(&[], Vec::as_slice)
}

fn push_unique(list: &mut Vec<BlockId>, block: BlockId) {
    if list.last() != Some(&block) {
        list.push(block);
    }
}

fn unique(blocks: impl Iterator<Item = BlockId>) -> Vec<BlockId> {
    let mut out: Vec<BlockId> = Vec::new();
    for b in blocks {
        if !out.contains(&b) {
            out.push(b);
        }
    }
    out
}

/// The condition of a complete block that does not hold, if any: 1 all iterators are data-parallel, 2 it is the only
/// writer of what it writes (`dominant`), 3 it reads nothing that it writes.
fn complete_violation(block: &Block, dominant: bool) -> Option<u8> {
    if block.iter_vars.iter().any(|iv| iv.kind != IterKind::Spatial) {
        Some(1)
    } else if !dominant {
        Some(2)
    } else if block.reads.iter().any(|r| block.writes.iter().any(|w| w.buffer == r.buffer)) {
        Some(3)
    } else {
        None
    }
}

/// The condition of a reduction block that does not hold, if any: 1 it has an init, 2 its binding is affine, 3 iterators
/// are data-parallel or reductions, 4 it is the only writer of what it writes, 5 no reduction iterator indexes what it
/// writes.
fn reduction_violation(s: &Schedule, block: &Block, dominant: bool) -> Option<u8> {
    if block.init.is_none() {
        Some(1)
    } else if !s.flags(block.id).affine_binding {
        Some(2)
    } else if block.iter_vars.iter().any(|iv| iv.kind == IterKind::Opaque) {
        Some(3)
    } else if !dominant {
        Some(4)
    } else if reduce_iter_indexes_output(block) {
        Some(5)
    } else {
        None
    }
}

fn reduce_iter_indexes_output(block: &Block) -> bool {
    let reduce: HashSet<VarId> =
        block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce).map(|iv| iv.var.id).collect();
    let mut found = false;
    visit::walk_stmt(&block.body, &mut |s| {
        if let Stmt::Store { buffer, indices, .. } = s {
            found |= block.writes.iter().any(|w| w.buffer == *buffer)
                && indices.iter().any(|e| visit::uses_var(e, &|v| reduce.contains(&v)));
        }
    });
    found
}

const COMPLETE: &str =
    "Definition of a complete block:\n1) All block vars are data parallel\n2) Dominant: the block is the only \
                        writer of its output, dominating the reader of its output buffers\n3) No overlap between the \
                        buffers the block reads and writes";
const REDUCTION: &str = "Definition of a reduction block:\n1) The block has the `init` statement\n2) All the block bindings are \
                         quasi-affine expressions\n3) All block vars are either data parallel block vars or reduction \
                         block vars\n4) Dominant: the block is the only writer of its output, dominating the reader of its \
                         output buffers\n5) The reduction block vars are not used to index the output buffers";

/// Refuses a block that is not complete in its scope.
pub fn require_complete(s: &Schedule, block: BlockId, scope: &Scope) -> Result<()> {
    let b = s.block(block)?;
    complete_violation(b, scope.is_dominant(b)).map_or(Ok(()), |n| {
        let detail = format!("The block {} is not a complete block - it violates condition #{n}.\n{COMPLETE}", b.name);
        Err(ScheduleError::refused("Incomplete block", detail)
            .at_block(block)
            .remedy("make this call before the one that lost the condition named"))
    })
}

/// Refuses a block that is not a reduction block in its scope.
pub fn require_reduction(s: &Schedule, block: BlockId, scope: &Scope) -> Result<()> {
    let b = s.block(block)?;
    reduction_violation(s, b, scope.is_dominant(b)).map_or(Ok(()), |n| {
        let detail =
            format!("The block {} is not a reduction block - it violates condition #{n}.\n{REDUCTION}", b.name);
        Err(ScheduleError::refused("Not a reduction block", detail)
            .at_block(block)
            .remedy("make this call before decompose_reduction, on a block with an init"))
    })
}

/// Whether a block is complete in its scope.
pub fn is_complete(s: &Schedule, block: BlockId, scope: &Scope) -> bool {
    require_complete(s, block, scope).is_ok()
}

/// Whether a block is a reduction block in its scope.
pub fn is_reduction(s: &Schedule, block: BlockId, scope: &Scope) -> bool {
    require_reduction(s, block, scope).is_ok()
}

/// Refuses a block that is neither complete nor a reduction block in its scope.
pub fn require_complete_or_reduction(s: &Schedule, block: BlockId, scope: &Scope) -> Result<()> {
    let b = s.block(block)?;
    let dominant = scope.is_dominant(b);
    match (complete_violation(b, dominant), reduction_violation(s, b, dominant)) {
        (Some(c), Some(r)) => Err(ScheduleError::refused(
            "Not a complete or reduction block",
            format!(
                "The block {0} is not a complete block - it violates condition #{c}.\n{COMPLETE}\nThe block {0} is not a \
                 reduction block - it violates condition #{r}.\n{REDUCTION}",
                b.name
            ),
        )
        .at_block(block).remedy("let each buffer have one writer, and reductions only update what their init set")),
        _ => Ok(()),
    }
}

/// Refuses a subtree with a child block that is neither locally complete nor a local reduction.
pub fn require_compact_dataflow(s: &Schedule, node: Node) -> Result<()> {
    let body = s.body_of(node)?;
    let children = tree::child_realizes(body);
    // Below a loop, dominance is asked of the writers inside the child blocks, as TVM does: vacuous for leaf blocks.
    let inner: Vec<Scope> = match node {
        Node::Block(id) => vec![s.scope(id)?],
        Node::Loop(_) => children.iter().map(|r| Scope::of(&r.block)).collect(),
    };
    for r in children {
        let b = &r.block;
        let dominant = inner.iter().all(|scope| scope.is_dominant(b));
        if let (Some(c), Some(n)) = (complete_violation(b, dominant), reduction_violation(s, b, dominant)) {
            let detail = format!(
                "The queried subtree root in SRef tree does not have compact dataflow, because its child block {0} on SRef \
                 tree is neither a local complete block nor a local reduction block.\nIt violates condition #{c} as a local \
                 complete block.\n{COMPLETE}\nIt violates condition #{n} as a local reduction block.\n{REDUCTION}",
                b.name
            );
            return Err(ScheduleError::refused(
                "The queried subtree root in SRef tree does not have compact dataflow, because some of its child block on \
                 SRef tree is neither a local complete block nor a local reduction block.",
                detail,
            )
            .at_block(b.id)
            .remedy("bind, parallelize and vectorize before decompose_reduction"));
        }
    }
    Ok(())
}

/// Refuses a scope that is not a stage pipeline.
pub fn require_stage_pipeline(s: &Schedule, scope: BlockId) -> Result<()> {
    if s.flags(scope).stage_pipeline {
        return Ok(());
    }
    let detail = format!(
        "The scope {} is not a stage pipeline.\nDefinition of a scope that is a stage pipeline:\n- The region cover property \
         holds for every of its child blocks\n- No write-after-read dependency or opaque dependency\n- only read-after-write \
         and write-after-write are allowed\n- All the statements in the scope are schedulable statements, i.e. Block and For",
        s.block(scope)?.name
    );
    Err(ScheduleError::refused("The scope root is not a stage pipeline", detail)
        .at_block(scope)
        .remedy("let each buffer of the scope have one writer, before its readers"))
}

/// The scope in which a block stands. Refused where it is not a stage pipeline.
pub fn pipeline_of(s: &Schedule, block: BlockId) -> Result<BlockId> {
    let scope = s.scope_of(Node::Block(block))?;
    require_stage_pipeline(s, scope)?;
    Ok(scope)
}

/// Refuses a block that writes a buffer of an outer scope.
pub fn require_not_output(s: &Schedule, block: BlockId, scope: &Scope) -> Result<()> {
    let b = s.block(block)?;
    if scope.is_output(b) {
        let detail = format!("The block {} is an output block", b.name);
        return Err(ScheduleError::refused("Cannot operate on an output block", detail)
            .at_block(block)
            .remedy("cache_write the block first, then move the block that it leaves"));
    }
    Ok(())
}

/// Refuses a block whose binding is not affine.
pub fn require_affine_binding(s: &Schedule, block: BlockId) -> Result<()> {
    if s.flags(block).affine_binding {
        return Ok(());
    }
    let detail = format!("The block {} is required to have an affine binding", s.block(block)?.name);
    Err(ScheduleError::refused("The block is required to have an affine binding", detail)
        .at_block(block)
        .remedy("split and fuse so that iterators stay affine in the loops, or blockize first"))
}
