//! The program: loop nests over blocks and buffers, as TensorIR has them (a `PrimFunc`).
use crate::{BufferId, DType, Expr, Var};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Identity of a [`Block`], unique within its program and never reused: a handle that survives transformations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockId(pub u32);

/// A multi-dimensional array.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Name as written; the printer makes it unique.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extent per dimension, elements. Constants in all programs that Satune schedules.
    pub shape: Vec<Expr>,
    /// Stride per dimension in elements, empty for row-major.
    pub strides: Vec<Expr>,
    /// Offset of the first element, where one was given.
    pub elem_offset: Option<Expr>,
    /// `global`, `shared`, `shared.dyn`, `local`, `warp`, `wmma.matrix_a`, ...
    pub scope: String,
    /// Alignment of the data, bytes; 0 where not given.
    pub align: i64,
    /// `offset_factor` of a match_buffer; 0 where not given.
    pub offset_factor: i64,
}

impl Buffer {
    /// A row-major buffer in a scope, of which nothing else is given.
    pub fn plain(name: impl Into<String>, dtype: DType, shape: Vec<Expr>, scope: &str) -> Buffer {
        Buffer {
            name: name.into(),
            dtype,
            shape,
            strides: Vec::new(),
            elem_offset: None,
            scope: scope.into(),
            align: 0,
            offset_factor: 0,
        }
    }
}

/// A dimension of a region: `[min, min + extent)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    /// First index.
    pub min: Expr,
    /// Number of indices.
    pub extent: Expr,
}

/// A box of a buffer's elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Which buffer.
    pub buffer: BufferId,
    /// One range per dimension.
    pub ranges: Vec<Range>,
}

/// How a loop is executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ForKind {
    /// One iteration after the other.
    Serial,
    /// CPU threads.
    Parallel,
    /// Vector lanes.
    Vectorized,
    /// Expanded.
    Unrolled,
    /// Bound to a thread tag: `blockIdx.x`, `threadIdx.y`, `vthread.x`, ...
    ThreadBinding(String),
}

/// An annotation's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// Integer.
    Int(i64),
    /// Boolean.
    Bool(bool),
    /// Float.
    Float(f64),
    /// String.
    Str(String),
    /// List.
    List(Vec<Attr>),
    /// Dictionary.
    Dict(IndexMap<String, Attr>),
    /// `None`.
    None,
}

/// Annotations in the order in which they were made.
pub type Annotations = IndexMap<String, Attr>;

/// `for var in range(min, min + extent)`. A loop's identity is its variable's id.
#[derive(Clone, Debug, PartialEq)]
pub struct For {
    /// Loop variable.
    pub var: Var,
    /// First value.
    pub min: Expr,
    /// Number of iterations.
    pub extent: Expr,
    /// How it is executed.
    pub kind: ForKind,
    /// Annotations, `pragma_auto_unroll_max_step` for instance.
    pub annotations: Annotations,
    /// What is repeated.
    pub body: Box<Stmt>,
}

/// What an iterator of a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IterKind {
    /// `S`: data-parallel.
    Spatial,
    /// `R`: commutative reduction.
    Reduce,
    /// Ordered, as a scan's: instances run one after the other.
    Ordered,
    /// `O`: opaque; never scheduled.
    Opaque,
}

impl IterKind {
    /// The letter of TVM's `GetBlockVarTypes`.
    pub fn letter(self) -> char {
        match self {
            IterKind::Spatial => 'S',
            IterKind::Reduce => 'R',
            IterKind::Ordered | IterKind::Opaque => 'O',
        }
    }

    /// Whether instances may run in any order: data-parallel, or a reduction.
    pub fn any_order(self) -> bool {
        matches!(self, IterKind::Spatial | IterKind::Reduce)
    }
}

/// An iterator of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct IterVar {
    /// Its variable.
    pub var: Var,
    /// First value.
    pub min: Expr,
    /// Number of values.
    pub extent: Expr,
    /// Spatial, reduction or opaque.
    pub kind: IterKind,
}

/// A unit of computation: iterators, declared regions, optional init, body.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Identity.
    pub id: BlockId,
    /// Name hint.
    pub name: String,
    /// Iterators.
    pub iter_vars: Vec<IterVar>,
    /// Regions read (per instance, in terms of the iterators).
    pub reads: Vec<Region>,
    /// Regions written.
    pub writes: Vec<Region>,
    /// Runs before the body where every reduction iterator is at its minimum.
    pub init: Option<Box<Stmt>>,
    /// Buffers that live inside this block.
    pub alloc_buffers: Vec<BufferId>,
    /// Views: (buffer, region that it names).
    pub match_buffers: Vec<(BufferId, Region)>,
    /// Annotations.
    pub annotations: Annotations,
    /// Body.
    pub body: Box<Stmt>,
}

/// A block with the values of its iterators and the predicate under which it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockRealize {
    /// One value per iterator.
    pub iter_values: Vec<Expr>,
    /// `T.where`; the constant true where none was given.
    pub predicate: Expr,
    /// The block.
    pub block: Block,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// A loop.
    For(For),
    /// A block.
    Realize(Box<BlockRealize>),
    /// Statements in order. Never empty, never nested directly, never of one element (see [`Stmt::seq`]).
    Seq(Vec<Stmt>),
    /// `buffer[indices] = value`.
    Store {
        /// Target.
        buffer: BufferId,
        /// One index per dimension.
        indices: Vec<Expr>,
        /// Value, of the buffer's type.
        value: Expr,
    },
    /// `if`.
    If {
        /// Condition.
        cond: Expr,
        /// Where it holds.
        then: Box<Stmt>,
        /// Elsewhere.
        otherwise: Option<Box<Stmt>>,
    },
    /// `var = value` for the statements that follow in `body` (`T.let`, `T.bind`).
    Let {
        /// Bound variable.
        var: Var,
        /// Its value.
        value: Expr,
        /// Where it is visible.
        body: Box<Stmt>,
    },
    /// An expression for its effect (`T.evaluate`).
    Evaluate(Expr),
}

/// A tensor program: one `PrimFunc`. `body` is the realize of the root block, which has no iterators.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Function name.
    pub name: String,
    /// Parameters in order, each a buffer of [`Program::buffers`].
    pub params: Vec<BufferId>,
    /// All buffers ever made; those of dropped allocations stay as unused entries, so that ids are stable.
    pub buffers: Vec<Buffer>,
    /// Function attributes (`tirx.noalias`, `global_symbol`, ...).
    pub attrs: Annotations,
    /// The root block.
    pub body: BlockRealize,
    /// Next fresh variable id.
    pub next_var: u32,
    /// Next fresh block id.
    pub next_block: u32,
}

impl Program {
    /// A variable that no other part of the program has.
    pub fn fresh_var(&mut self, name: impl Into<std::sync::Arc<str>>, dtype: DType) -> Var {
        let id = crate::VarId(self.next_var);
        self.next_var += 1;
        Var { id, name: name.into(), dtype }
    }

    /// A block identity that no other block has or had.
    pub fn fresh_block(&mut self) -> BlockId {
        let id = BlockId(self.next_block);
        self.next_block += 1;
        id
    }

    /// Adds a buffer to the table and returns its identity. It still has to be allocated by a block.
    pub fn add_buffer(&mut self, buffer: Buffer) -> BufferId {
        self.buffers.push(buffer);
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// The buffer of an identity of this program.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// The same, to change it.
    pub fn buffer_mut(&mut self, id: BufferId) -> &mut Buffer {
        &mut self.buffers[id.0 as usize]
    }
}

impl Block {
    /// A block around a statement that has no iterators and declares nothing.
    pub fn plain(id: BlockId, name: impl Into<String>, body: Stmt) -> Block {
        Block {
            id,
            name: name.into(),
            iter_vars: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            init: None,
            alloc_buffers: Vec::new(),
            match_buffers: Vec::new(),
            annotations: Annotations::new(),
            body: Box::new(body),
        }
    }
}

impl BlockRealize {
    /// The one instance of a block without iterators.
    pub fn single(block: Block) -> BlockRealize {
        BlockRealize { iter_values: Vec::new(), predicate: Expr::Int(1, DType::Bool), block }
    }
}

impl Stmt {
    /// Statements in order, flattened; a single one stands alone.
    pub fn seq(parts: Vec<Stmt>) -> Stmt {
        let mut flat = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Stmt::Seq(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        if flat.len() == 1 {
            flat.pop().unwrap_or(Stmt::Seq(Vec::new()))
        } else {
            Stmt::Seq(flat)
        }
    }
}

impl crate::DType {
    /// Size of an element in memory, bytes (tf32 is stored as f32; a boolean takes one byte).
    pub fn bytes(self) -> u32 {
        use crate::DType::*;
        match self {
            Bool | I8 | U8 | F8E4M3 | F8E5M2 => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | U32 | F32 | TF32 => 4,
            I64 | U64 | F64 | Handle => 8,
        }
    }

    /// Whether arithmetic in it rounds.
    pub fn is_float(self) -> bool {
        use crate::DType::*;
        matches!(self, F8E4M3 | F8E5M2 | F16 | BF16 | TF32 | F32 | F64)
    }
}
