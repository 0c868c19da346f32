//! Statements.
use super::super::error::{Fail, Res};
use super::reader::{Name, Reader};
use super::syntax::{call, elements, target_names, Args};
use crate::{BinOp, DType, Expr, Region, Stmt};
use ruff_python_ast as ast;

/// Function names that allocate, with the scope that the name says.
const ALLOCATORS: [(&str, Option<&str>); 6] = [
    ("sblock_alloc_buffer", None),
    ("alloc_buffer", None),
    ("alloc_shared", Some("shared")),
    ("alloc_local", Some("local")),
    ("alloc_global", Some("global")),
    ("alloc_shared_dyn", Some("shared.dyn")),
];

impl Reader {
    /// Statements in order; `None` where none of them does anything.
    pub(super) fn sequence(&mut self, body: &[ast::Stmt]) -> Res<Option<Stmt>> {
        let mut parts = Vec::new();
        let mut rest = body;
        while let Some((first, tail)) = rest.split_first() {
            rest = tail;
            if let Some((at, launch, name)) = self.opens(first)? {
                parts.extend(self.under(at, launch, name, tail)?);
                break;
            }
            if self.open(first)? {
                continue;
            }
            if let Some((var, value)) = self.let_(first)? {
                // What follows sees the variable.
                let body = self.scoped(first, |r| r.sequence(tail))?;
                if let Some(body) = body {
                    parts.push(Stmt::Let { var, value, body: Box::new(body) });
                }
                break;
            }
            if let Some(s) = self.statement(first)? {
                parts.push(s);
            }
        }
        Ok(if parts.is_empty() { None } else { Some(Stmt::seq(parts)) })
    }

    /// A scalar that is left open, `n = T.int32()`: it has the value that the file's name gives it.
    fn open(&mut self, s: &ast::Stmt) -> Res<bool> {
        let ast::Stmt::Assign(a) = s else { return Ok(false) };
        let ([ast::Expr::Name(n)], Some((f, c))) = (a.targets.as_slice(), call(&a.value)) else { return Ok(false) };
        let Some(dtype) = DType::of_name(&f).filter(|t| *t != DType::Handle && c.arguments.is_empty()) else {
            return Ok(false);
        };
        let value = self.given(&a.value, n.id.as_str(), dtype)?;
        self.bind(n.id.as_str(), Name::Value(value));
        Ok(true)
    }

    fn statement(&mut self, s: &ast::Stmt) -> Res<Option<Stmt>> {
        match s {
            ast::Stmt::Pass(_) => Ok(None),
            ast::Stmt::For(f) => self.for_(f),
            ast::Stmt::With(w) => self.with(w),
            ast::Stmt::If(i) => self.if_(i),
            ast::Stmt::Expr(e) if e.value.is_string_literal_expr() => Ok(None),
            ast::Stmt::Expr(e) => self.effect(&e.value),
            ast::Stmt::Assign(a) => match a.targets.as_slice() {
                [target] => self.assign(target, &a.value),
                [_, extra, ..] => Err(Fail::on(extra, "one target per assignment")),
                [] => Ok(None),
            },
            ast::Stmt::AugAssign(a) => self.update(a),
            ast::Stmt::Assert(a) => self.asserted(&a.test).map(|()| None),
            ast::Stmt::While(w) => Err(Fail::on(w.test.as_ref(), "how often a while runs is not known before it does")
                .help("write a loop over a range, with an if in it where it ends early")),
            other => Err(Fail::on(other, "this statement is not part of a program")
                .help("loops, blocks, if, assignments to buffers, T.evaluate")),
        }
    }

    /// `x = T.bind(value)`, `x: T.let[T.int32] = value`, `x: T.int32 = value`, `x = value` of a scalar.
    fn let_(&mut self, s: &ast::Stmt) -> Res<Option<(crate::Var, Expr)>> {
        let (name, value, declared) = match s {
            ast::Stmt::AnnAssign(a) => {
                let ast::Expr::Name(n) = a.target.as_ref() else {
                    return Err(Fail::on(a.target.as_ref(), "a name is expected here"));
                };
                let Some(value) = &a.value else {
                    return Err(Fail::on(s, "the variable has no value").help("x: T.let[T.int32] = ..."));
                };
                let declared = match a.annotation.as_ref() {
                    ast::Expr::Subscript(t) => self.dtype(&t.slice)?,
                    other => self.dtype(other)?,
                };
                (n, value.as_ref(), Some(declared))
            }
            ast::Stmt::Assign(a) => {
                let [ast::Expr::Name(n)] = a.targets.as_slice() else { return Ok(None) };
                match call(&a.value) {
                    Some((f, c)) if f == "bind" || f == "let" => {
                        (n, Args::new(c, &["value", "var"])?.need("value")?, None)
                    }
                    Some((f, _))
                        if f.starts_with("axis.")
                            || matches!(f.as_str(), "match_buffer" | "Buffer" | "decl_buffer" | "launch_thread")
                            || matches!(f.as_str(), "env_thread" | "allocate" | "meta_var")
                            || is_allocator(&f) =>
                    {
                        return Ok(None)
                    }
                    _ => (n, a.value.as_ref(), None),
                }
            }
            _ => return Ok(None),
        };
        let mut value = self.expr(value)?;
        if let Some(t) = declared {
            value = self.cast(s, value, t)?;
        }
        if let Some(Name::Var(v)) = self.names.last().and_then(|scope| scope.get(name.id.as_str())) {
            let message = format!("{} is given a second value", v.name);
            return Err(Fail::on(s, message).help("a scalar has one value; use a buffer for what changes"));
        }
        let var = self.let_var(s, name.id.as_str(), &value)?;
        Ok(Some((var, value)))
    }

    /// `assert condition`: what always holds says nothing.
    pub(super) fn asserted(&mut self, e: &ast::Expr) -> Res<()> {
        match self.condition(e)? {
            Expr::Int(1, DType::Bool) => Ok(()),
            Expr::Int(0, DType::Bool) => Err(Fail::on(e, "the assertion never holds")),
            _ => Err(Fail::on(e, "a kernel cannot check this while it runs")
                .help("T.assume(...) where it always holds; or leave it out")),
        }
    }

    pub(super) fn assign(&mut self, target: &ast::Expr, value: &ast::Expr) -> Res<Option<Stmt>> {
        if let ast::Expr::Subscript(s) = target {
            let value = self.expr(value)?;
            return self.store(target, s, value).map(Some);
        }
        let names = target_names(target)?;
        if let (ast::Expr::Tuple(values), true) = (value, names.len() > 1) {
            if values.elts.len() == names.len() {
                for (t, v) in elements(target).into_iter().zip(&values.elts) {
                    self.assign(t, v)?;
                }
                return Ok(None);
            }
        }
        let Some((function, c)) = call(value) else {
            return Err(
                Fail::on(value, "several names need T.axis.remap").help("vi, vj = T.axis.remap(\"SS\", [i, j])")
            );
        };
        if function.starts_with("axis.") {
            self.axis(&names, &function, c)?;
            return Ok(None);
        }
        let [name] = names.as_slice() else {
            return Err(Fail::on(target, format!("T.{function} gives one value, for {} names", names.len())));
        };
        if self.meta(name, &function, c)? {
            return Ok(None);
        }
        if function == "decl_buffer" {
            let buffer = self.declared(name, c)?;
            let id = self.add_buffer(name, buffer);
            self.frame(c)?.alloc_buffers.push(id);
            return Ok(None);
        }
        if let Some((_, scope)) = ALLOCATORS.iter().find(|(f, _)| *f == function) {
            let buffer = self.allocation(name, c, *scope)?;
            let id = self.add_buffer(name, buffer);
            self.frame(c)?.alloc_buffers.push(id);
            return Ok(None);
        }
        if function == "Buffer" {
            // TVM prints a buffer that nothing declares in this way.
            let buffer = self.buffer_of_args(name, c, true)?;
            self.add_buffer(name, buffer);
            return Ok(None);
        }
        if self.match_parameter(name, c)? {
            return Ok(None);
        }
        let (buffer, region) = self.view(name, c)?;
        let id = self.add_buffer(name, buffer);
        self.frame(c)?.match_buffers.push((id, region));
        Ok(None)
    }

    /// `C[i, j] = value`.
    fn store(&mut self, target: &ast::Expr, s: &ast::ExprSubscript, value: Expr) -> Res<Stmt> {
        let buffer = self.buffer_named(&s.value)?;
        let indices = elements(&s.slice).into_iter().map(|e| self.index(e)).collect::<Res<Vec<Expr>>>()?;
        self.check_rank(target, buffer, indices.len())?;
        let dtype = self.buffers[buffer.0 as usize].dtype;
        let value = self.cast(target, value, dtype)?;
        self.written_out(target, &value)?;
        Ok(Stmt::Store { buffer, indices, value })
    }

    /// `C[i, j] += value`.
    fn update(&mut self, a: &ast::StmtAugAssign) -> Res<Option<Stmt>> {
        let ast::Expr::Subscript(s) = a.target.as_ref() else {
            return Err(Fail::on(a.target.as_ref(), "only elements of buffers can be updated"));
        };
        let (old, value) = (self.expr(&a.target)?, self.expr(&a.value)?);
        let value = self.operator(a, a.op, old, value)?;
        self.store(&a.target, s, value).map(Some)
    }

    fn if_(&mut self, i: &ast::StmtIf) -> Res<Option<Stmt>> {
        let cond = self.condition(&i.test)?;
        let then = self.scoped(i.test.as_ref(), |r| r.sequence(&i.body))?;
        let otherwise = self.else_(i.test.as_ref(), &i.elif_else_clauses)?;
        Ok(self.branches(cond, then, otherwise))
    }

    fn else_(&mut self, at: &ast::Expr, clauses: &[ast::ElifElseClause]) -> Res<Option<Stmt>> {
        let Some((first, rest)) = clauses.split_first() else { return Ok(None) };
        self.scoped(at, |r| match &first.test {
            None => r.sequence(&first.body),
            Some(test) => {
                let cond = r.condition(test)?;
                let then = r.sequence(&first.body)?;
                let otherwise = r.else_(at, rest)?;
                Ok(r.branches(cond, then, otherwise))
            }
        })
    }

    fn branches(&self, cond: Expr, then: Option<Stmt>, otherwise: Option<Stmt>) -> Option<Stmt> {
        match (then, otherwise) {
            (None, None) => None,
            (Some(then), otherwise) => {
                Some(Stmt::If { cond, then: Box::new(then), otherwise: otherwise.map(Box::new) })
            }
            (None, Some(other)) => {
                Some(Stmt::If { cond: crate::fold::not(cond), then: Box::new(other), otherwise: None })
            }
        }
    }

    /// A truth value.
    pub(super) fn condition(&mut self, e: &ast::Expr) -> Res<Expr> {
        let value = self.expr(e)?;
        match self.dtype_of(&value) {
            DType::Bool => Ok(value),
            t if t.is_float() => Err(Fail::on(e, "a condition is expected here").help("compare: x > 0")),
            t => crate::fold::binary(BinOp::Ne, value, Expr::Int(0, t))
                .ok_or_else(|| Fail::on(e, "the condition overflows")),
        }
    }

    /// A call that stands alone.
    fn effect(&mut self, e: &ast::Expr) -> Res<Option<Stmt>> {
        let Some((function, c)) = call(e) else {
            return Err(Fail::on(e, "this has no effect").help("assign it, or write T.evaluate(...)"));
        };
        match function.as_str() {
            "func_attr" => {
                let map = self.annotations(Args::new(c, &["attrs"])?.need("attrs")?)?;
                self.attrs.extend(map);
            }
            "sblock_attr" | "block_attr" => {
                let map = self.annotations(Args::new(c, &["attrs"])?.need("attrs")?)?;
                self.frame(c)?.annotations.extend(map);
            }
            "where" => {
                let predicate = self.condition(Args::new(c, &["predicate"])?.need("predicate")?)?;
                let frame = self.frame(c)?;
                if frame.predicate.replace(predicate).is_some() {
                    return Err(Fail::on(c, "a block has one T.where").help("join the conditions with `and`"));
                }
            }
            "reads" => {
                let regions = self.regions(c)?;
                self.frame(c)?.reads = Some(regions);
            }
            "writes" => {
                let regions = self.regions(c)?;
                self.frame(c)?.writes = Some(regions);
            }
            "evaluate" => {
                let value = self.expr(Args::new(c, &["value"])?.need("value")?)?;
                // `T.evaluate(0)` is TVM's empty statement.
                if !matches!(value, Expr::Int(..)) {
                    return Ok(Some(Stmt::Evaluate(value)));
                }
            }
            "buffer_store" => {
                let args = Args::new(c, &["buffer", "value", "indices"])?;
                let buffer = self.buffer_named(args.need("buffer")?)?;
                let value = self.expr(args.need("value")?)?;
                let indices =
                    elements(args.need("indices")?).into_iter().map(|e| self.index(e)).collect::<Res<Vec<_>>>()?;
                self.check_rank(e, buffer, indices.len())?;
                let value = self.cast(e, value, self.buffers[buffer.0 as usize].dtype)?;
                self.written_out(e, &value)?;
                return Ok(Some(Stmt::Store { buffer, indices, value }));
            }
            _ => return Ok(Some(Stmt::Evaluate(self.expr(e)?))),
        }
        Ok(None)
    }

    /// `T.reads(A[i], B[j])` or `T.reads([A[i], B[j]])`.
    fn regions(&mut self, c: &ast::ExprCall) -> Res<Vec<Region>> {
        let parts: Vec<&ast::Expr> = match &c.arguments.args[..] {
            [one @ (ast::Expr::List(_) | ast::Expr::Tuple(_))] => elements(one),
            many => many.iter().collect(),
        };
        parts.into_iter().map(|e| self.region(e)).collect()
    }

    /// A value in a type, where it can be one.
    pub(super) fn cast(&self, at: &impl ruff_text_size::Ranged, value: Expr, to: DType) -> Res<Expr> {
        let from = self.dtype_of(&value);
        if from != to && (from == DType::Handle || to == DType::Handle) {
            return Err(Fail::on(at, format!("a {} is expected here, not a {}", to.name(), from.name())));
        }
        crate::fold::cast(value, to, &self.buffers)
            .ok_or_else(|| Fail::on(at, format!("the constant does not fit into {}", to.name())))
    }
}

fn is_allocator(function: &str) -> bool {
    ALLOCATORS.iter().any(|(f, _)| *f == function)
}
