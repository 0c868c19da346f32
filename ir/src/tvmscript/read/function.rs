//! Modules, functions, parameters, the root block.
use super::super::error::{Fail, Res};
use super::choice::Choice;
use super::reader::{finish, Frame, Name, Reader};
use super::syntax::{call, path};
use crate::fold::boolean;
use crate::{Attr, BlockRealize, BufferId, DType, Expr, Program, Stmt};
use ruff_python_ast as ast;
use std::collections::HashMap;

/// The function of a file that is chosen: the one of that name, the only one, or the one named `main`.
pub fn of_module(body: &[ast::Stmt], choice: &Choice) -> Res<Program> {
    let mut found: Found = Vec::new();
    collect(body, &mut HashMap::new(), &mut found)?;
    let names: Vec<&str> = found.iter().map(|(f, _)| f.name.as_str()).collect();
    let wanted = choice.function.as_deref().or(if found.len() > 1 { Some("main") } else { None });
    let fits: Vec<_> = found.iter().filter(|(f, _)| wanted.is_none_or(|w| f.name.as_str() == w)).collect();
    match (found.as_slice(), fits.as_slice()) {
        (_, [(f, c)]) => of_function(f, c, choice),
        ([], _) => Err(Fail::at(0..0, "there is no function under @T.prim_func")
            .help("write @T.prim_func above the function's def, with `from tvm.script import tirx as T`")),
        (_, [_, (second, _), ..]) => {
            Err(Fail::on(&second.name, format!("two functions are named {}", second.name)).help("rename one of them"))
        }
        (many, []) => {
            let message = match &choice.function {
                Some(wanted) => format!("there is no function {wanted}, but {}", names.join(", ")),
                None => format!("there are {} functions: {}", names.len(), names.join(", ")),
            };
            let help = format!("say which: FILE::{}; or name one of them main", names[0]);
            Err(Fail::on(&many[many.len().min(2) - 1].0.name, message).help(help))
        }
    }
}

/// Functions, with the constants that they see.
pub(super) type Found<'a> = Vec<(&'a ast::StmtFunctionDef, HashMap<String, Name>)>;

pub(super) fn collect<'a>(
    body: &'a [ast::Stmt],
    constants: &mut HashMap<String, Name>,
    found: &mut Found<'a>,
) -> Res<()> {
    for s in body {
        match s {
            ast::Stmt::FunctionDef(f) if f.decorator_list.iter().any(|d| is_prim_func(&d.expression)) => {
                found.push((f, constants.clone()));
            }
            // A function that makes functions: its parameters are what they are without being given.
            ast::Stmt::FunctionDef(f) if f.decorator_list.is_empty() => {
                let mut inner = constants.clone();
                for p in f.parameters.iter_non_variadic_params() {
                    inner.remove(p.parameter.name.as_str());
                    let value = p.default.as_ref().and_then(|e| Reader::new(constants.clone()).expr(e).ok());
                    inner.extend(value.map(|v| (p.parameter.name.to_string(), Name::Value(v))));
                }
                collect(&f.body, &mut inner, found)?;
            }
            ast::Stmt::ClassDef(c) => collect(&c.body, &mut constants.clone(), found)?,
            // Constants that shapes may name: `M, N, K = 1024, 1024, 1024`.
            ast::Stmt::Assign(a) => {
                for target in &a.targets {
                    let (targets, values) = (super::syntax::elements(target), super::syntax::elements(&a.value));
                    if targets.len() != values.len() {
                        continue;
                    }
                    for (t, v) in targets.into_iter().zip(values) {
                        let ast::Expr::Name(name) = t else { continue };
                        // What is no constant is left alone: it may not concern the function at all.
                        if let Ok(value) = Reader::new(constants.clone()).expr(v) {
                            constants.insert(name.id.to_string(), Name::Value(value));
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_prim_func(e: &ast::Expr) -> bool {
    let name = match e {
        ast::Expr::Call(c) => path(&c.func),
        other => path(other),
    };
    name.is_some_and(|n| n == "prim_func")
}

pub(super) fn of_function(
    f: &ast::StmtFunctionDef,
    constants: &HashMap<String, Name>,
    choice: &Choice,
) -> Res<Program> {
    let mut r = Reader::new(constants.clone());
    r.values = choice.values.clone();
    r.names.push(HashMap::new());
    r.frames.push(Frame::default());
    let root = r.fresh_block();
    if let Some(extra) = f.parameters.vararg.as_ref().or(f.parameters.kwarg.as_ref()) {
        return Err(Fail::on(extra.as_ref(), "a function has a fixed number of parameters"));
    }
    for p in f.parameters.iter_non_variadic_params() {
        let (name, parameter) = (p.parameter.name.as_str(), &p.parameter);
        let Some(annotation) = &parameter.annotation else {
            return Err(Fail::on(parameter, format!("parameter {name} has no type"))
                .help("write A: T.Buffer((16, 16), \"float32\") or a: T.handle"));
        };
        if let Some(dtype) = r.scalar(annotation) {
            let value = r.given(annotation, name, dtype)?;
            r.bind(name, Name::Value(value));
            continue;
        }
        let buffer = r.parameter(name, annotation)?;
        r.params.push((name.to_string(), buffer));
    }
    let stmt = r.sequence(&f.body)?;
    if let Some((name, _)) = r.values.first() {
        return Err(Fail::on(&f.name, format!("{name} is no scalar that the function leaves open"))
            .help("give values to scalar parameters, n: T.int32, and to variables, n = T.int32()"));
    }
    let ids = r
        .params
        .iter()
        .map(|(name, id)| {
            id.ok_or_else(|| {
                Fail::on(&f.name, format!("parameter {name} is a handle that no T.match_buffer names"))
                    .help(format!("write A = T.match_buffer({name}, (16, 16), \"float32\") in the function"))
            })
        })
        .collect::<Res<Vec<BufferId>>>()?;
    let frame = r.frames.pop().unwrap_or_default();
    let empty = || Fail::on(&f.name, "the function has no statements");
    let body = match stmt {
        // `with T.sblock("root"):` written out is the root itself.
        Some(Stmt::Realize(realize)) if is_root(&realize) && frame.alloc_buffers.is_empty() => *realize,
        Some(stmt) => {
            let mut block =
                finish(Frame { reads: Some(vec![]), writes: Some(vec![]), ..frame }, root, "root", stmt, &r.buffers);
            block.iter_vars.clear();
            BlockRealize { iter_values: Vec::new(), predicate: boolean(true), block }
        }
        None => return Err(empty()),
    };
    let mut attrs = std::mem::take(&mut r.attrs);
    let mut name = f.name.to_string();
    // The symbol is the function's name; TVM prints it as such.
    if let Some(Attr::Str(symbol)) = attrs.shift_remove("global_symbol") {
        name = symbol;
    }
    Ok(Program { name, params: ids, buffers: r.buffers, attrs, body, next_var: r.next_var, next_block: r.next_block })
}

fn is_root(r: &BlockRealize) -> bool {
    r.block.name == "root" && r.block.iter_vars.is_empty() && r.block.init.is_none()
}

impl Reader {
    /// The type of a scalar: `T.int32`, `T.int32()`, `"int32"`.
    fn scalar(&self, annotation: &ast::Expr) -> Option<DType> {
        self.dtype(annotation).ok().filter(|t| *t != DType::Handle)
    }

    /// The value that a scalar is given. Kernels are made for one value: extents and guards depend on it.
    pub(super) fn given(&mut self, at: &ast::Expr, name: &str, dtype: DType) -> Res<Expr> {
        let Some(place) = self.values.iter().position(|(n, _)| n == name) else {
            let message = format!("{name} is a scalar of type {} and has no value", dtype.name());
            let help =
                format!("kernels are made for one value: give it behind the file's name, FILE::main({name}=128)");
            return Err(Fail::on(at, message).help(help));
        };
        let (_, text) = self.values.remove(place);
        super::threads::constant(&text, dtype)
            .ok_or_else(|| Fail::on(at, format!("{text:?} is no value of {name}, which is of type {}", dtype.name())))
    }

    /// The buffer that a parameter's annotation describes; `None` for a handle.
    fn parameter(&mut self, name: &str, annotation: &ast::Expr) -> Res<Option<BufferId>> {
        if let Some((function, c)) = call(annotation) {
            if function == "Buffer" {
                let buffer = self.buffer_of_args(name, c, true)?;
                return Ok(Some(self.add_buffer(name, buffer)));
            }
        }
        if let ast::Expr::Subscript(s) = annotation {
            if path(&s.value).is_some_and(|p| p == "Buffer") {
                let buffer = self.buffer_of_subscript(name, s)?;
                return Ok(Some(self.add_buffer(name, buffer)));
            }
        }
        let type_name = match annotation {
            ast::Expr::Call(c) => path(&c.func),
            other => path(other),
        };
        match type_name.as_deref() {
            Some("handle") => Ok(None),
            Some(_) | None => Err(Fail::on(annotation, format!("the type of parameter {name} is not understood"))
                .help("write T.Buffer((16, 16), \"float32\")")),
        }
    }

    /// `A = T.match_buffer(a, ...)` for a handle `a` among the parameters, anywhere in the function; false where the call
    /// names something else.
    pub(super) fn match_parameter(&mut self, name: &str, c: &ast::ExprCall) -> Res<bool> {
        let Some(ast::Expr::Name(handle)) = super::syntax::Args::new(c, super::buffer::MATCH)?.get("param") else {
            return Ok(false);
        };
        let Some(slot) = self.params.iter().position(|(name, _)| name == handle.id.as_str()) else { return Ok(false) };
        if self.params[slot].1.is_some() {
            return Err(Fail::on(c, format!("parameter {} has a buffer already", handle.id)));
        }
        let buffer = self.buffer_of_args(name, c, false)?;
        self.params[slot].1 = Some(self.add_buffer(name, buffer));
        Ok(true)
    }

    pub(super) fn add_buffer(&mut self, name: &str, buffer: crate::Buffer) -> BufferId {
        let id = BufferId(self.buffers.len() as u32);
        self.buffers.push(buffer);
        self.bind(name, Name::Buffer(id));
        id
    }

    /// The constant that a shape or an extent is.
    pub(super) fn constant(&mut self, e: &ast::Expr, what: &str) -> Res<i64> {
        match self.expr(e)? {
            Expr::Int(v, _) => Ok(v),
            _ => Err(Fail::on(e, format!("{what} must be a constant"))),
        }
    }
}
