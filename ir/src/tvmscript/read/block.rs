//! Blocks: `with T.sblock("C"):`, their iterators and init.
use super::super::error::{Fail, Res};
use super::reader::{finish, Frame, Name, Reader};
use super::syntax::{call, elements, string, Args};
use crate::fold::boolean;
use crate::pointers;
use crate::{BlockRealize, Buffer, DType, Expr, IterKind, IterVar, Range, Stmt};
use ruff_python_ast as ast;

impl Reader {
    /// `with T.sblock("C"):` and `with T.init():`.
    pub(super) fn with(&mut self, w: &ast::StmtWith) -> Res<Option<Stmt>> {
        let [item] = w.items.as_slice() else {
            return Err(Fail::on(w, "one block per with").help("nest the blocks"));
        };
        let Some((function, c)) = call(&item.context_expr) else {
            return Err(Fail::on(&item.context_expr, "a block is expected here").help("with T.sblock(\"C\"):"));
        };
        match function.as_str() {
            "sblock" | "block" => {
                let args = Args::new(c, &["name", "no_realize", "exec_scope"])?;
                let name = args.get("name").map_or(Ok(String::new()), string)?;
                self.block(w, &name).map(Some)
            }
            "init" => {
                let body = self.scoped(&item.context_expr, |r| r.sequence(&w.body))?;
                let frame = self.frame(c)?;
                if frame.init.is_some() {
                    return Err(Fail::on(c, "a block has one T.init"));
                }
                // Without a reduction iterator it runs each time: so it is with a sum over one value, normalized.
                frame.init = Some(body.ok_or_else(|| Fail::on(c, "T.init has no statements"))?);
                Ok(None)
            }
            "LetStmt" | "Let" | "let" => {
                let args = Args::new(c, &["value", "var"])?;
                let value = self.expr(args.need("value")?)?;
                let name = match item.optional_vars.as_deref() {
                    Some(ast::Expr::Name(n)) => n.id.to_string(),
                    _ => return Err(Fail::on(c, "the variable has no name").help("with T.LetStmt(value) as x:")),
                };
                let (var, body) = self.scoped(&item.context_expr, |r| {
                    let var = r.let_var(&item.context_expr, &name, &value)?;
                    Ok((var, r.sequence(&w.body)?))
                })?;
                Ok(body.map(|body| Stmt::Let { var, value, body: Box::new(body) }))
            }
            "launch_thread" | "attr" => {
                let name = match item.optional_vars.as_deref() {
                    None => None,
                    Some(ast::Expr::Name(n)) => Some(n.id.as_str()),
                    Some(other) => return Err(Fail::on(other, "a name is expected here")),
                };
                match self.launch(&item.context_expr, name)? {
                    Some(launch) => self.under(&item.context_expr, launch, name, &w.body),
                    None => Err(Fail::on(c, "this opens no thread axis")),
                }
            }
            "allocate" | "decl_buffer" => {
                let Some(target @ ast::Expr::Name(_)) = item.optional_vars.as_deref() else {
                    return Err(Fail::on(c, format!("what T.{function} gives has no name")).help("as B:"));
                };
                self.scoped(&item.context_expr, |r| {
                    r.assign(target, &item.context_expr)?;
                    r.sequence(&w.body)
                })
            }
            "Assert" => {
                let args = Args::new(c, &["condition", "message", "error_kind"])?;
                self.asserted(args.need("condition")?)?;
                self.scoped(&item.context_expr, |r| r.sequence(&w.body))
            }
            other => Err(Fail::on(&item.context_expr, format!("with T.{other} is not part of a program"))
                .help("with T.sblock(\"name\"): or with T.init():")),
        }
    }

    fn block(&mut self, w: &ast::StmtWith, name: &str) -> Res<Stmt> {
        self.frames.push(Frame::default());
        let at = &w.items[0].context_expr;
        let body = self.scoped(at, |r| r.sequence(&w.body))?;
        let mut frame = self.frames.pop().unwrap_or_default();
        let Some(body) = body else {
            return Err(Fail::on(at, format!("block {name} has no statements")));
        };
        if frame.reads.is_none() || frame.writes.is_none() {
            require_seen(at, name, &frame, &body, &self.buffers)?;
        }
        let id = self.fresh_block();
        let predicate = frame.predicate.take().unwrap_or_else(|| boolean(true));
        let iter_values = std::mem::take(&mut frame.iter_values);
        let block = finish(frame, id, name, body, &self.buffers);
        Ok(Stmt::Realize(Box::new(BlockRealize { iter_values, predicate, block })))
    }

    /// `vi = T.axis.spatial(16, i)`, `vi, vj = T.axis.remap("SS", [i, j])`.
    pub(super) fn axis(&mut self, names: &[&str], function: &str, c: &ast::ExprCall) -> Res<()> {
        let kind = match function.trim_start_matches("axis.") {
            "spatial" | "S" => IterKind::Spatial,
            "reduce" | "R" => IterKind::Reduce,
            "scan" => IterKind::Ordered,
            "opaque" | "O" => IterKind::Opaque,
            "remap" => return self.remap(names, c),
            other => {
                return Err(Fail::on(c, format!("T.axis.{other} is not known"))
                    .help("T.axis.spatial, T.axis.reduce, T.axis.scan, T.axis.opaque or T.axis.remap"))
            }
        };
        let [name] = names else {
            return Err(Fail::on(c, format!("one iterator for {} names", names.len())));
        };
        let args = Args::new(c, &["dom", "binding", "dtype"])?;
        let dom = args.need("dom")?;
        let domain = match (dom, call(dom)) {
            (ast::Expr::Tuple(t), _) if t.elts.len() == 2 => self.domain(&t.elts[0], Some(&t.elts[1]))?,
            (_, Some((f, r))) if f == "Range" || f == "ir.Range" => {
                let r = Args::new(r, &["begin", "end"])?;
                self.domain(r.need("begin")?, r.get("end"))?
            }
            _ => self.domain(dom, None)?,
        };
        let value = self.index(args.need("binding")?)?;
        self.iterator(c, name, domain, kind, value)
    }

    fn remap(&mut self, names: &[&str], c: &ast::ExprCall) -> Res<()> {
        let args = Args::new(c, &["kinds", "bindings", "dtype"])?;
        let kinds = string(args.need("kinds")?)?;
        let bindings = elements(args.need("bindings")?);
        if kinds.chars().count() != names.len() || bindings.len() != names.len() {
            let message =
                format!("{} names, {} kinds and {} loops", names.len(), kinds.chars().count(), bindings.len());
            return Err(Fail::on(c, message).help("give as many of each"));
        }
        for ((name, kind), binding) in names.iter().zip(kinds.chars()).zip(bindings) {
            let kind = match kind {
                'S' => IterKind::Spatial,
                'R' => IterKind::Reduce,
                'O' => IterKind::Opaque,
                other => return Err(Fail::on(c, format!("{other:?} is no kind of iterator")).help("S, R or O")),
            };
            let value = self.index(binding)?;
            let domain = match &value {
                Expr::Var(v) => self.loops.get(&v.id).cloned(),
                _ => None,
            };
            let Some(domain) = domain else {
                return Err(Fail::on(binding, "T.axis.remap binds loop variables only")
                    .help("use T.axis.spatial(extent, value) or T.axis.reduce(extent, value)"));
            };
            self.iterator(c, name, domain, kind, value)?;
        }
        Ok(())
    }

    fn iterator(&mut self, c: &ast::ExprCall, name: &str, domain: Range, kind: IterKind, value: Expr) -> Res<()> {
        if self.frames.len() < 2 {
            return Err(Fail::on(c, "an iterator stands outside of any block").help("with T.sblock(\"name\"):"));
        }
        // The domain's type is the wider one: `T.axis.spatial(16, i)` with a 64-bit i.
        let dtype = match (self.dtype_of(&domain.extent), self.dtype_of(&value)) {
            (DType::I64, _) | (_, DType::I64) => DType::I64,
            (t, _) => t,
        };
        let (min, extent) = (self.cast(c, domain.min, dtype)?, self.cast(c, domain.extent, dtype)?);
        let value = self.cast(c, value, dtype)?;
        let var = self.fresh_var(name, dtype);
        self.bind(name, Name::Var(var.clone()));
        let frame = self.frame(c)?;
        frame.iter_vars.push(IterVar { var, min, extent, kind });
        frame.iter_values.push(value);
        Ok(())
    }
}
/// Refuses a block that does not declare what it touches, and takes a buffer's address: what is done with it cannot be seen.
/// Where `T.tvm_access_ptr` says that it is only read, or only written, all of the buffer is declared (as in TVM).
fn require_seen(at: &ast::Expr, name: &str, frame: &Frame, body: &Stmt, buffers: &[Buffer]) -> Res<()> {
    let init = frame.init.as_ref().map(pointers::pointed_in).unwrap_or_default();
    let hidden = pointers::pointed_in(body)
        .into_iter()
        .chain(init)
        .find(|(b, mask)| *mask == pointers::BOTH && !frame.alloc_buffers.contains(b));
    let Some((buffer, _)) = hidden else { return Ok(()) };
    let buffer = &buffers[buffer.0 as usize].name;
    let message =
        format!("block {name} accesses {buffer} through its address, and does not say what it reads and writes");
    Err(Fail::on(at, message).help(format!("declare both: T.reads({buffer}[0:16]), T.writes(...)")))
}
