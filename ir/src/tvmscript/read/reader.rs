//! The state of reading one function: the names in scope, the loops around, the block that is being read.
use super::super::error::{Fail, Res};
use super::super::scan::OPERATORS;
use crate::visit;
use crate::{Annotations, Block, BlockId, Buffer, BufferId, DType, Expr, IterVar, Range, Region, Stmt, Var, VarId};
use std::collections::HashMap;

/// Most nested loops, blocks and conditions.
const DEEPEST: usize = 160;

/// Most operators and operands of a value with its variables written out. A statement's have conversions beside them.
const WRITTEN_OUT: usize = 2 * OPERATORS;

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) enum Name {
    Var(Var),
    Buffer(BufferId),
    /// A constant of the file, or a value that a name was given.
    Value(Expr),
    /// A thread axis that is not open yet.
    Thread(String),
    /// Memory without shape, with its scope; none where a buffer has it.
    Memory(Option<String>),
}

/// A block while its statements are read.
#[derive(Default)]
pub(super) struct Frame {
    pub iter_vars: Vec<IterVar>,
    pub iter_values: Vec<Expr>,
    pub predicate: Option<Expr>,
    pub reads: Option<Vec<Region>>,
    pub writes: Option<Vec<Region>>,
    pub init: Option<Stmt>,
    pub alloc_buffers: Vec<BufferId>,
    pub match_buffers: Vec<(BufferId, Region)>,
    pub annotations: Annotations,
}

/// The state of reading one function.
pub(super) struct Reader {
    /// The function's parameters; a handle is only a name until it is matched to a buffer.
    pub params: Vec<(String, Option<BufferId>)>,
    /// Values of scalars that the program leaves open.
    pub values: Vec<(String, String)>,
    pub buffers: Vec<Buffer>,
    pub attrs: Annotations,
    pub names: Vec<HashMap<String, Name>>,
    /// Domains of the loops around.
    pub loops: HashMap<VarId, Range>,
    pub frames: Vec<Frame>,
    /// Operators and operands of each variable's value, written out.
    pub lengths: HashMap<VarId, usize>,
    pub next_var: u32,
    pub next_block: u32,
    pub depth: usize,
}

impl Reader {
    pub fn new(constants: HashMap<String, Name>) -> Reader {
        Reader {
            params: Vec::new(),
            values: Vec::new(),
            buffers: Vec::new(),
            attrs: Annotations::new(),
            names: vec![constants],
            loops: HashMap::new(),
            frames: Vec::new(),
            lengths: HashMap::new(),
            next_var: 0,
            next_block: 0,
            depth: 0,
        }
    }

    pub fn fresh_var(&mut self, name: &str, dtype: DType) -> Var {
        let id = VarId(self.next_var);
        self.next_var += 1;
        Var { id, name: name.into(), dtype }
    }

    pub fn fresh_block(&mut self) -> BlockId {
        let id = BlockId(self.next_block);
        self.next_block += 1;
        id
    }

    /// The operators and operands of a value with its variables written out, as they are in a kernel: what is read twice again and
    /// again doubles each time.
    ///
    /// # Errors
    /// Where they are too many.
    pub fn written_out(&self, node: &impl ruff_text_size::Ranged, value: &Expr) -> Res<usize> {
        let mut count = 0_usize;
        visit::walk_expr(value, &mut |e| {
            let of = if let Expr::Var(v) = e { self.lengths.get(&v.id) } else { None };
            count = count.saturating_add(*of.unwrap_or(&1));
        });
        if count > WRITTEN_OUT {
            let message =
                format!("with its variables written out, this has more than {WRITTEN_OUT} operators and operands");
            return Err(Fail::on(node, message).help("keep what is used again in a buffer"));
        }
        Ok(count)
    }

    /// A variable of a value, which what comes next in this scope sees.
    pub fn let_var(&mut self, node: &impl ruff_text_size::Ranged, name: &str, value: &Expr) -> Res<Var> {
        let length = self.written_out(node, value)?;
        let var = self.fresh_var(name, self.dtype_of(value));
        self.lengths.insert(var.id, length);
        self.bind(name, Name::Var(var.clone()));
        Ok(var)
    }

    pub fn bind(&mut self, name: &str, value: Name) {
        if let Some(scope) = self.names.last_mut() {
            scope.insert(name.to_string(), value);
        }
    }

    pub fn lookup(&self, name: &str) -> Option<&Name> {
        self.names.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Runs `f` with names of its own.
    pub fn scoped<T>(&mut self, node: &impl ruff_text_size::Ranged, f: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
        self.depth += 1;
        if self.depth > DEEPEST {
            let message = format!("loops, blocks and conditions are nested more than {DEEPEST} deep");
            return Err(Fail::on(node, message));
        }
        self.names.push(HashMap::new());
        let out = f(self);
        self.names.pop();
        self.depth -= 1;
        out
    }

    pub fn frame(&mut self, node: &impl ruff_text_size::Ranged) -> Res<&mut Frame> {
        self.frames.last_mut().ok_or_else(|| Fail::on(node, "this stands outside of any block"))
    }
}

/// A block's parts with an identity.
pub(super) fn finish(frame: Frame, id: BlockId, name: &str, body: Stmt, buffers: &[Buffer]) -> Block {
    let own: Vec<BufferId> = frame.alloc_buffers.clone();
    let (reads, writes) = match (frame.reads, frame.writes) {
        (Some(r), Some(w)) => (r, w),
        (r, w) => {
            let found = crate::access::of_block(frame.init.as_ref(), &body, &own, buffers);
            (r.unwrap_or(found.reads), w.unwrap_or(found.writes))
        }
    };
    Block {
        id,
        name: name.into(),
        iter_vars: frame.iter_vars,
        reads,
        writes,
        init: frame.init.map(Box::new),
        alloc_buffers: frame.alloc_buffers,
        match_buffers: frame.match_buffers,
        annotations: frame.annotations,
        body: Box::new(body),
    }
}
