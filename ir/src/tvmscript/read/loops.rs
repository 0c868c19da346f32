//! Loops.
use super::super::error::{Fail, Res};
use super::reader::{Name, Reader};
use super::syntax::{call, target_names, Args};
use crate::affine::simplify::difference;
use crate::{Annotations, DType, Expr, For, ForKind, Range, Stmt, Var};
use ruff_python_ast as ast;

/// What a loop's header says of one loop.
struct Header {
    var: Var,
    domain: Range,
    kind: ForKind,
    annotations: Annotations,
}

impl Reader {
    /// `for i, j in T.grid(16, 16):` and its like.
    pub(super) fn for_(&mut self, s: &ast::StmtFor) -> Res<Option<Stmt>> {
        if !s.orelse.is_empty() || s.is_async {
            return Err(Fail::on(s.target.as_ref(), "a loop has no else and is not async"));
        }
        let names = target_names(&s.target)?;
        let Some((function, c)) = call(&s.iter) else {
            return Err(Fail::on(s.iter.as_ref(), "a loop runs over a range")
                .help("range, T.serial, T.parallel, T.vectorized, T.unroll, T.thread_binding or T.grid"));
        };
        let headers = if function == "grid" { self.grid(&names, c)? } else { vec![self.one(&names, &function, c)?] };
        self.depth += headers.len();
        let out = self.scoped(s.target.as_ref(), |r| {
            for (name, h) in names.iter().zip(&headers) {
                r.bind(name, Name::Var(h.var.clone()));
                r.loops.insert(h.var.id, h.domain.clone());
            }
            r.sequence(&s.body)
        });
        self.depth -= headers.len();
        let Some(mut stmt) = out? else { return Ok(None) };
        for h in headers.into_iter().rev() {
            stmt = Stmt::For(For {
                var: h.var,
                min: h.domain.min,
                extent: h.domain.extent,
                kind: h.kind,
                annotations: h.annotations,
                body: Box::new(stmt),
            });
        }
        Ok(Some(stmt))
    }

    fn grid(&mut self, names: &[&str], c: &ast::ExprCall) -> Res<Vec<Header>> {
        let extents = &c.arguments.args;
        if extents.len() != names.len() {
            let message = format!("{} names for {} extents", names.len(), extents.len());
            return Err(Fail::on(c, message).help("give one name per extent"));
        }
        let mut out = Vec::with_capacity(names.len());
        for (name, e) in names.iter().zip(extents) {
            let domain = match e {
                ast::Expr::Tuple(t) if t.elts.len() == 2 => self.domain(&t.elts[0], Some(&t.elts[1]))?,
                other => self.domain(other, None)?,
            };
            let var = self.loop_var(name, &domain);
            out.push(Header { var, domain, kind: ForKind::Serial, annotations: Annotations::new() });
        }
        Ok(out)
    }

    fn one(&mut self, names: &[&str], function: &str, c: &ast::ExprCall) -> Res<Header> {
        let [name] = names else {
            return Err(Fail::on(c, format!("T.{function} gives one loop, for {} names", names.len())));
        };
        let known: &[&str] = match function {
            "thread_binding" => &["start", "stop", "thread", "annotations"],
            _ => &["start", "stop", "annotations", "step"],
        };
        let args = Args::new(c, known)?;
        let mut thread = args.names.contains(&"thread").then(|| args.get("thread")).flatten();
        let mut stop = args.get("stop");
        // `T.thread_binding(16, "threadIdx.x")`.
        if thread.is_none() && stop.is_some_and(ast::Expr::is_string_literal_expr) {
            (thread, stop) = (stop, None);
        }
        if let Some(step) = (function != "thread_binding").then(|| args.get("step")).flatten() {
            if self.constant(step, "a step")? != 1 {
                return Err(Fail::on(step, "loops run with step 1").help("multiply the variable where it is used"));
            }
        }
        let kind = match function {
            "range" | "serial" => ForKind::Serial,
            "parallel" => ForKind::Parallel,
            "vectorized" => ForKind::Vectorized,
            "unroll" => ForKind::Unrolled,
            "thread_binding" => {
                let thread = thread.ok_or_else(|| {
                    Fail::on(c, "the thread is missing").help("T.thread_binding(16, thread=\"threadIdx.x\")")
                })?;
                ForKind::ThreadBinding(super::threads::thread_tag(thread)?)
            }
            other => {
                let help = "range, T.serial, T.parallel, T.vectorized, T.unroll, T.thread_binding or T.grid";
                return Err(Fail::on(c, format!("T.{other} is no loop")).help(help));
            }
        };
        let domain = self.domain(args.need("start")?, stop)?;
        let annotations = args.get("annotations").map_or(Ok(Annotations::new()), |a| self.annotations(a))?;
        Ok(Header { var: self.loop_var(name, &domain), domain, kind, annotations })
    }

    /// `range(stop)` or `range(start, stop)`.
    pub(super) fn domain(&mut self, start: &ast::Expr, stop: Option<&ast::Expr>) -> Res<Range> {
        let first = self.index(start)?;
        let range = match stop {
            None => Range { min: Expr::Int(0, self.dtype_of(&first)), extent: first },
            Some(stop) => {
                let last = self.index(stop)?;
                let extent = difference(&last, &first).ok_or_else(|| Fail::on(stop, "the extent overflows"))?;
                Range { min: first, extent }
            }
        };
        if let Expr::Int(n, _) = range.extent {
            if n <= 0 {
                let message = format!("an extent of {n}: nothing would run");
                return Err(Fail::on(stop.unwrap_or(start), message).help("extents are at least 1"));
            }
        }
        Ok(range)
    }

    fn loop_var(&mut self, name: &str, domain: &Range) -> Var {
        let dtype = self.dtype_of(&domain.extent);
        self.fresh_var(name, dtype)
    }

    pub(super) fn dtype_of(&self, e: &Expr) -> DType {
        crate::fold::dtype(e, &self.buffers)
    }

    /// An integer expression.
    pub(super) fn index(&mut self, e: &ast::Expr) -> Res<Expr> {
        let value = self.expr(e)?;
        if self.dtype_of(&value).is_float() {
            return Err(Fail::on(e, "an integer is expected here").help("use // to divide integers"));
        }
        Ok(value)
    }
}
