//! A kernel's part of a program as loops and leaves: blocks dissolved into their statements, loops that are bound to
//! threads replaced by the thread's index, loops of one iteration gone. `build` makes it.
use super::in_turn::InTurn;
use super::lanes::Role;
use super::linear::{Atom, Linear, Ranges};
use super::matrix::Instruction;
use super::places::Written;
use super::pred::Pred;
use super::raster::Raster;
use super::stream_k::Dealt;
use super::turns::Turns;
use crate::kernel::Index;
use satune_ir::{visit, Annotations, Attr, BufferId, Expr, Program, VarId};
use satune_rewrites::keys;
use std::collections::HashMap;
use std::sync::Arc;

/// A statement of a nest.
#[derive(Clone, Debug)]
pub enum Node {
    Loop(Loop),
    Leaf(Box<Leaf>),
    Barrier,
}

/// How a loop asks to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopKind {
    Serial,
    Unrolled,
    Vectorized,
}

/// `for var in 0..extent`.
#[derive(Clone, Debug)]
pub struct Loop {
    pub var: VarId,
    pub name: String,
    /// Its steps; the most there may be, where their number is not the same each time.
    pub extent: i64,
    /// The number of steps, where data decide it, and the conditions under which they have been read.
    pub steps: Option<Box<(Linear, Vec<Pred>)>>,
    pub kind: LoopKind,
    pub annotations: Annotations,
    pub body: Vec<Node>,
    /// How many nodes of the body each statement of the program's body became.
    pub child_sizes: Vec<usize>,
}

/// One store, under its guards.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub id: usize,
    pub block: String,
    pub annotations: Arc<Annotations>,
    /// Conditions of the program (predicates, `if`, the init's), all of which must hold.
    pub guards: Vec<Pred>,
    pub target: BufferId,
    pub at: Vec<Linear>,
    pub value: Expr,
    pub reads: Vec<(BufferId, Vec<Linear>)>,
    /// What it is by its block's iterators, where it asks for the TMA.
    pub written: Option<Arc<Written>>,
    /// Enclosing vthread loops, outermost first.
    pub vthreads: Vec<VarId>,
    /// The instruction that the innermost loops around it are.
    pub instruction: Option<Arc<Instruction>>,
}

impl Leaf {
    /// Calls `f` for every variable in it.
    pub fn vars(&self, f: &mut dyn FnMut(VarId)) {
        let reads = self.reads.iter().flat_map(|(_, at)| at);
        self.at.iter().chain(reads).for_each(|l| l.vars(f));
        visit::walk_expr(&self.value, &mut |e| {
            if let Expr::Var(v) = e {
                f(v.id);
            }
        });
        for guard in &self.guards {
            guard.forms(&mut |form| {
                form.vars(f);
                true
            });
        }
    }

    /// Whether a variable in it satisfies `pred`.
    pub fn uses(&self, v: VarId) -> bool {
        let mut found = false;
        self.vars(&mut |x| found |= x == v);
        found
    }

    /// The elements that decide where it reads and writes, and whether, each after those that its own index needs.
    pub fn data(&self) -> Vec<Atom> {
        let mut out = Vec::new();
        let reads = self.reads.iter().flat_map(|(_, at)| at);
        self.at.iter().chain(reads).for_each(|l| l.loads(&mut out));
        self.guards.iter().for_each(|p| p.loads(&mut out));
        out
    }

    /// The one element that it reads, where all else that it reads decides where that is.
    pub fn copied(&self) -> Option<&(BufferId, Vec<Linear>)> {
        let data = self.data();
        let decides = |(b, at): &(BufferId, Vec<Linear>)| {
            data.iter().any(|atom| matches!(atom, Atom::Load(table, _, place) if (table, place) == (b, at)))
        };
        let mut copied = self.reads.iter().filter(|read| !decides(read));
        copied.next().filter(|_| copied.next().is_none())
    }

    /// Whether what data decide of it is where it reads, one place for all lanes of a vectorized loop, and is read under conditions that
    /// all of them have.
    pub fn is_steady(&self, lanes: Option<&Loop>, program: &Program) -> bool {
        let of_lane = |v: VarId| lanes.is_some_and(|l| v == l.var);
        let data = self.data();
        let on_chip = |atom: &Atom| matches!(atom, Atom::Load(table, ..) if program.buffer(*table).scope != "global");
        !self.at.iter().any(Linear::is_data)
            && !self.guards.iter().any(|p| p.is_data() || p.uses(&of_lane) && data.iter().any(on_chip))
            && !data.iter().any(|atom| atom.uses(&of_lane))
    }

    /// Whether it reads the element that it writes.
    pub fn accumulates(&self) -> bool {
        self.reads.iter().any(|(b, at)| *b == self.target && *at == self.at)
    }
}

/// A thread tag's index and how many values it has.
#[derive(Clone, Debug)]
pub struct Thread {
    pub tag: String,
    pub var: VarId,
    pub extent: i64,
    pub index: Index,
    pub block: bool,
    pub first_loop: String,
}

/// A vthread loop.
#[derive(Clone, Debug)]
pub struct VThread {
    pub var: VarId,
    pub name: String,
    pub extent: i64,
}

/// A kernel's part of the program.
#[derive(Debug, Default)]
pub struct Nest {
    pub body: Vec<Node>,
    pub threads: Vec<Thread>,
    pub vthreads: Vec<VThread>,
    /// Buffers that instructions multiply, and those that they add up in.
    pub roles: HashMap<BufferId, Role>,
    /// Threads that hold a buffer of scope `warp` together, neighbours along threadIdx.x.
    pub lanes: i64,
    pub ranges: Ranges,
    /// Blocks that are to fit on a multiprocessor at once.
    pub min_blocks: Option<u32>,
    /// The order of blocks, where it is none of loops.
    pub raster: Option<Raster>,
    /// Blocks along m and n that share what the TMA brings.
    pub cluster: Option<[i64; 2]>,
    /// The loop over a block's tiles.
    pub turns: Option<Turns>,
    /// What it has of steps that are dealt out.
    pub dealt: Option<Dealt>,
    /// Whether two teams are to take them in turn, and those that do.
    pub asks_for_turns: bool,
    pub in_turn: Option<InTurn>,
    /// Extra leading dimensions that a buffer got.
    pub notes: Vec<String>,
    /// Next free variable.
    pub next_var: u32,
    pub(super) leaves: usize,
}

impl Nest {
    /// A fresh variable with values `0..extent`.
    pub fn fresh(&mut self, extent: i64) -> VarId {
        let v = VarId(self.next_var);
        self.next_var += 1;
        self.ranges.insert(v, (0, extent - 1));
        v
    }

    /// Extents of the grid or of a block, x, y, z.
    pub fn extents(&self, block: bool) -> [i64; 3] {
        let mut out = [1; 3];
        for t in self.threads.iter().filter(|t| t.block == block) {
            match t.index {
                Index::BlockIdx(d) | Index::ThreadIdx(d) => out[d as usize] = t.extent,
                _ => {}
            }
        }
        out
    }

    /// The thread variable with an identity.
    pub fn thread(&self, v: VarId) -> Option<&Thread> {
        self.threads.iter().find(|t| t.var == v)
    }

    /// Calls `f` for every leaf with the loops around it.
    pub fn leaves<'n>(&'n self, f: &mut dyn FnMut(&'n Leaf, &[&'n Loop])) {
        leaves_in(&self.body, f);
    }

    /// Calls `f` for every leaf, to change it.
    pub fn leaves_mut(&mut self, f: &mut dyn FnMut(&mut Leaf)) {
        fn go(nodes: &mut [Node], f: &mut dyn FnMut(&mut Leaf)) {
            for node in nodes {
                match node {
                    Node::Loop(l) => go(&mut l.body, f),
                    Node::Leaf(leaf) => f(leaf),
                    Node::Barrier => {}
                }
            }
        }
        go(&mut self.body, f);
    }
}

/// The integers of an annotation's list.
pub fn int_list(attr: Option<&Attr>) -> Option<Vec<i64>> {
    let Some(Attr::List(list)) = attr else { return None };
    list.iter()
        .map(|a| match a {
            Attr::Int(v) => Some(*v),
            _ => None,
        })
        .collect()
}

/// Whether an annotation is set to something other than 0 or false.
pub fn flag(annotations: &Annotations, key: &str) -> bool {
    matches!(annotations.get(key), Some(Attr::Int(1..)) | Some(Attr::Bool(true)))
}

/// Whether a copy goes by way of registers.
pub fn is_staged(leaf: &Leaf) -> bool {
    [keys::LOCAL_STAGE, keys::OLD_LOCAL_STAGE].iter().any(|key| flag(&leaf.annotations, key))
}

/// Calls `f` for every leaf in nodes with the loops around it there.
pub fn leaves_in<'n>(nodes: &'n [Node], f: &mut dyn FnMut(&'n Leaf, &[&'n Loop])) {
    fn go<'n>(nodes: &'n [Node], path: &mut Vec<&'n Loop>, f: &mut dyn FnMut(&'n Leaf, &[&'n Loop])) {
        for node in nodes {
            match node {
                Node::Loop(l) => {
                    path.push(l);
                    go(&l.body, path, f);
                    path.pop();
                }
                Node::Leaf(leaf) => f(leaf, path),
                Node::Barrier => {}
            }
        }
    }
    go(nodes, &mut Vec::new(), f);
}

/// Calls `f` for every leaf in nodes.
pub fn leaves<'n>(nodes: &'n [Node], f: &mut dyn FnMut(&'n Leaf)) {
    for node in nodes {
        match node {
            Node::Leaf(leaf) => f(leaf),
            Node::Loop(l) => leaves(&l.body, f),
            Node::Barrier => {}
        }
    }
}
