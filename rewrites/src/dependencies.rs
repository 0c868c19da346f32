//! Scopes: the dependency graph among the child blocks of a block.
use crate::tree;
use indexmap::IndexMap;
use satune_ir::{Block, BlockId, BufferId};
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
