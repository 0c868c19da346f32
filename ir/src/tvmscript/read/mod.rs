//! From the syntax tree of a Python file to a program.
mod attr;
mod block;
mod buffer;
mod choice;
mod expr;
mod fields;
mod function;
mod loops;
mod registered;
mod stmt;
mod threads;

pub use choice::{file_of, Choice};

use super::error::{Fail, Res};
use super::scan::OPERATORS;
use crate::visit;
use crate::{Annotations, DType, IterVar, Stmt};
use crate::{Block, BlockId, Buffer, BufferId, Expr, Program, Range, Region, Var, VarId};
use ruff_python_ast as ast;
use std::collections::HashMap;

/// Most nested loops, blocks and conditions.
const DEEPEST: usize = 160;
/// Most operators and operands of a value with its variables written out. A statement's have conversions beside them.
const WRITTEN_OUT: usize = 2 * OPERATORS;

/// Reads a function of the text of a file.
pub fn program(text: &str, choice: &Choice) -> Res<Program> {
    function::of_module(&module(text)?.body, choice)
}

/// Reads the tensor intrinsics that a file registers.
pub fn intrinsics(text: &str) -> Res<Vec<(String, Program, Program)>> {
    registered::of_module(&module(text)?.body)
}

fn module(text: &str) -> Res<ast::ModModule> {
    let module = ruff_python_parser::parse_module(text).map_err(|e| {
        let range = e.location.start().to_usize()..e.location.end().to_usize();
        Fail::at(range, format!("this is not Python: {}", e.error))
    })?;
    Ok(module.into_syntax())
}

/// What a name stands for.
#[derive(Clone, Debug)]
enum Name {
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
struct Frame {
    iter_vars: Vec<IterVar>,
    iter_values: Vec<Expr>,
    predicate: Option<Expr>,
    reads: Option<Vec<Region>>,
    writes: Option<Vec<Region>>,
    init: Option<Stmt>,
    alloc_buffers: Vec<BufferId>,
    match_buffers: Vec<(BufferId, Region)>,
    annotations: Annotations,
}

/// The state of reading one function.
struct Reader {
    /// The function's parameters; a handle is only a name until it is matched to a buffer.
    params: Vec<(String, Option<BufferId>)>,
    /// Values of scalars that the program leaves open.
    values: Vec<(String, String)>,
    buffers: Vec<Buffer>,
    attrs: Annotations,
    names: Vec<HashMap<String, Name>>,
    /// Domains of the loops around.
    loops: HashMap<VarId, Range>,
    frames: Vec<Frame>,
    /// Operators and operands of each variable's value, written out.
    lengths: HashMap<VarId, usize>,
    next_var: u32,
    next_block: u32,
    depth: usize,
}

impl Reader {
    fn new(constants: HashMap<String, Name>) -> Reader {
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

    fn fresh_var(&mut self, name: &str, dtype: DType) -> Var {
        let id = VarId(self.next_var);
        self.next_var += 1;
        Var { id, name: name.into(), dtype }
    }

    fn fresh_block(&mut self) -> BlockId {
        let id = BlockId(self.next_block);
        self.next_block += 1;
        id
    }

    /// The operators and operands of a value with its variables written out, as they are in a kernel: what is read twice again and
    /// again doubles each time.
    ///
    /// # Errors
    /// Where they are too many.
    fn written_out(&self, node: &impl ruff_text_size::Ranged, value: &Expr) -> Res<usize> {
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
    fn let_var(&mut self, node: &impl ruff_text_size::Ranged, name: &str, value: &Expr) -> Res<Var> {
        let length = self.written_out(node, value)?;
        let var = self.fresh_var(name, self.dtype_of(value));
        self.lengths.insert(var.id, length);
        self.bind(name, Name::Var(var.clone()));
        Ok(var)
    }

    fn bind(&mut self, name: &str, value: Name) {
        if let Some(scope) = self.names.last_mut() {
            scope.insert(name.to_string(), value);
        }
    }

    fn lookup(&self, name: &str) -> Option<&Name> {
        self.names.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Runs `f` with names of its own.
    fn scoped<T>(&mut self, node: &impl ruff_text_size::Ranged, f: impl FnOnce(&mut Self) -> Res<T>) -> Res<T> {
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

    fn frame(&mut self, node: &impl ruff_text_size::Ranged) -> Res<&mut Frame> {
        self.frames.last_mut().ok_or_else(|| Fail::on(node, "this stands outside of any block"))
    }
}

/// A block's parts with an identity.
fn finish(frame: Frame, id: BlockId, name: &str, body: Stmt, buffers: &[Buffer]) -> Block {
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

/// The name of an attribute chain below `T` (or `tir`, `tirx`, ...): `axis.spatial` of `T.axis.spatial`.
fn path(e: &ast::Expr) -> Option<String> {
    match e {
        ast::Expr::Attribute(a) => match a.value.as_ref() {
            ast::Expr::Name(n) if matches!(n.id.as_str(), "T" | "tir" | "tirx" | "Tx") => Some(a.attr.to_string()),
            ast::Expr::Name(n) if n.id.as_str() == "I" => Some(format!("I.{}", a.attr)),
            inner => Some(format!("{}.{}", path(inner)?, a.attr)),
        },
        ast::Expr::Name(n) if n.id.as_str() == "range" => Some("range".into()),
        _ => None,
    }
}

/// A call of something below `T`, with its name.
fn call(e: &ast::Expr) -> Option<(String, &ast::ExprCall)> {
    match e {
        ast::Expr::Call(c) => Some((path(&c.func)?, c)),
        _ => None,
    }
}

/// Arguments of a call, by position and by name.
struct Args<'a> {
    call: &'a ast::ExprCall,
    names: &'a [&'a str],
}

impl<'a> Args<'a> {
    /// Arguments, which have these names in this order.
    fn new(call: &'a ast::ExprCall, names: &'a [&'a str]) -> Res<Args<'a>> {
        let args = &call.arguments;
        if let Some(extra) = args.args.get(names.len()) {
            return Err(Fail::on(
                extra,
                format!("too many arguments: {} are known: {}", names.len(), names.join(", ")),
            ));
        }
        for k in &args.keywords {
            match &k.arg {
                None => return Err(Fail::on(k, "arguments cannot be unpacked here").help("write them out")),
                Some(name) if !names.contains(&name.as_str()) => {
                    let message = format!("there is no argument {name}; there are: {}", names.join(", "));
                    return Err(Fail::on(k, message));
                }
                Some(_) => {}
            }
        }
        Ok(Args { call, names })
    }

    /// The argument of a name, where it was given and is not `None`.
    fn get(&self, name: &str) -> Option<&'a ast::Expr> {
        let args = &self.call.arguments;
        let position = self.names.iter().position(|n| *n == name)?;
        args.args
            .get(position)
            .or_else(|| args.keywords.iter().find(|k| k.arg.as_ref().is_some_and(|a| a == name)).map(|k| &k.value))
            .filter(|e| !matches!(e, ast::Expr::NoneLiteral(_)))
    }

    fn need(&self, name: &str) -> Res<&'a ast::Expr> {
        self.get(name).ok_or_else(|| Fail::on(self.call, format!("the argument {name} is missing")))
    }
}

/// The elements of a list or tuple; the expression itself otherwise.
fn elements(e: &ast::Expr) -> Vec<&ast::Expr> {
    match e {
        ast::Expr::Tuple(t) => t.elts.iter().collect(),
        ast::Expr::List(l) => l.elts.iter().collect(),
        other => vec![other],
    }
}

/// A string literal.
fn string(e: &ast::Expr) -> Res<String> {
    match e {
        ast::Expr::StringLiteral(s) => Ok(s.value.to_str().to_string()),
        other => Err(Fail::on(other, "a string is expected here")),
    }
}

/// The names that a statement assigns to.
fn target_names(target: &ast::Expr) -> Res<Vec<&str>> {
    elements(target)
        .into_iter()
        .map(|e| match e {
            ast::Expr::Name(n) => Ok(n.id.as_str()),
            other => Err(Fail::on(other, "a name is expected here")),
        })
        .collect()
}
