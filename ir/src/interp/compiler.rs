//! What is known of a program while it is compiled: where its variables and buffers are, and in which block we stand.
use super::code::{ArrayInfo, BlockInfo, Bounds};
use super::fault::Fault;
use super::options::Options;
use crate::{BufferId, DType, Program, Var, VarId};
use std::collections::HashMap;

/// Statements and expressions nested deeper than this are refused, since they are compiled and run recursively.
const MAX_DEPTH: usize = 1000;

/// What a variable is at run time.
#[derive(Clone, Copy)]
pub(super) enum Slot {
    Int(usize, DType),
    Float(usize, DType),
}

/// Where a buffer's elements are.
#[derive(Clone)]
pub(super) enum Storage {
    Array(usize),
    /// Per dimension of the source: the slot of the first index, and the view's dimension that runs over it.
    View {
        source: BufferId,
        dims: Vec<(usize, Option<usize>)>,
    },
}

/// A block that is being compiled, other than the root: what it declares.
pub(super) struct Scope {
    pub info: usize,
    /// Buffer's array and bounds.
    pub reads: Vec<(usize, Bounds)>,
    pub writes: Vec<(usize, Bounds)>,
    pub has_init: bool,
    /// Number of arrays when it was entered: later ones live inside it and need no declaration.
    pub arrays: usize,
}

/// The state of compiling one program.
pub(super) struct Compiler<'p> {
    pub program: &'p Program,
    pub options: &'p Options,
    pub vars: HashMap<VarId, Slot>,
    pub places: HashMap<BufferId, Storage>,
    pub scopes: Vec<Scope>,
    pub ints: usize,
    pub floats: usize,
    pub arrays: Vec<ArrayInfo>,
    pub blocks: Vec<BlockInfo>,
    pub block: usize,
    pub bytes: u64,
    pub depth: usize,
}

impl<'p> Compiler<'p> {
    pub fn new(program: &'p Program, options: &'p Options) -> Self {
        Compiler {
            program,
            options,
            vars: HashMap::new(),
            places: HashMap::new(),
            scopes: Vec::new(),
            ints: 0,
            floats: 0,
            arrays: Vec::new(),
            blocks: vec![BlockInfo { name: program.body.block.name.clone(), iterators: Vec::new() }],
            block: 0,
            bytes: 0,
            depth: 0,
        }
    }

    fn block_name(&self) -> String {
        self.blocks[self.block].name.clone()
    }

    pub fn invalid(&self, reason: String) -> Fault {
        Fault::Invalid { reason, block: self.block_name() }
    }

    pub fn unknown(&self, name: &str, arguments: usize) -> Fault {
        Fault::UnknownIntrinsic { name: name.to_string(), arguments, block: self.block_name() }
    }

    pub fn enter(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.invalid(format!("expressions or statements are nested deeper than {MAX_DEPTH}")));
        }
        Ok(())
    }

    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    pub fn slot(&self, var: &Var) -> Result<Slot, Fault> {
        let slot = self.vars.get(&var.id).copied();
        slot.ok_or_else(|| self.invalid(format!("the variable {} is used where nothing binds it", var.name)))
    }

    pub fn new_int(&mut self) -> usize {
        self.ints += 1;
        self.ints - 1
    }

    /// Binds an index variable to a new slot.
    pub fn bind(&mut self, var: &Var) -> usize {
        let slot = self.new_int();
        self.vars.insert(var.id, Slot::Int(slot, var.dtype));
        slot
    }

    pub fn shape(&self, buffer: BufferId) -> Result<Vec<i64>, Fault> {
        let buffer = self.program.buffer(buffer);
        buffer.extents().ok_or_else(|| self.invalid(format!("the shape of {} is not constant", buffer.name)))
    }
}
