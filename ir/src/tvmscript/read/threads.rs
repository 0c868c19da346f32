//! Threads by name: `tx = T.launch_thread("threadIdx.x", 32)`, for what follows or as a `with`. They are loops bound to
//! threads, and are printed as such.
use super::super::error::{Fail, Res};
use super::reader::{Name, Reader};
use super::syntax::{call, string, Args};
use crate::{Annotations, Expr, For, ForKind, Range, Stmt, Var};
use ruff_python_ast as ast;

/// A thread axis that is opened: its variable, extent and tag.
pub(super) struct Launch {
    pub var: Var,
    domain: Range,
    tag: String,
}

impl Launch {
    /// The loop around what the threads do.
    pub(super) fn around(self, body: Stmt) -> Stmt {
        Stmt::For(For {
            var: self.var,
            min: self.domain.min,
            extent: self.domain.extent,
            kind: ForKind::ThreadBinding(self.tag),
            annotations: Annotations::new(),
            body: Box::new(body),
        })
    }
}

/// A tag that is a thread axis.
pub(super) fn thread_tag(e: &ast::Expr) -> Res<String> {
    let tag = string(e)?;
    let known = ["blockIdx.", "threadIdx.", "vthread."]
        .iter()
        .any(|p| tag.strip_prefix(p).is_some_and(|axis| matches!(axis, "x" | "y" | "z")))
        || tag == "vthread";
    if known {
        return Ok(tag);
    }
    Err(Fail::on(e, format!("{tag:?} is no thread axis")).help("blockIdx.x, threadIdx.y, vthread.x, ..."))
}

impl Reader {
    /// `T.launch_thread(axis, extent)` or `T.attr(axis, "thread_extent", extent)`, `name` being what its variable is called;
    /// `None` of anything else.
    pub(super) fn launch(&mut self, e: &ast::Expr, name: Option<&str>) -> Res<Option<Launch>> {
        let Some((function, c)) = call(e) else { return Ok(None) };
        let (axis, extent) = match function.as_str() {
            "launch_thread" => {
                let args = Args::new(c, &["thread", "extent"])?;
                (args.need("thread")?, args.need("extent")?)
            }
            "attr" => {
                let args = Args::new(c, &["node", "attr_key", "value"])?;
                let key = args.need("attr_key")?;
                if string(key)? == "reduce_scope" {
                    return Err(written_reduction(key));
                }
                if string(key)? != "thread_extent" {
                    return Err(Fail::on(
                        key,
                        format!("T.attr {:?} has no meaning in a program of blocks", string(key)?),
                    )
                    .help("annotate a loop or a block: T.serial(n, annotations={...}), T.sblock_attr({...})"));
                }
                (args.need("node")?, args.need("value")?)
            }
            _ => return Ok(None),
        };
        let (tag, own) = match axis {
            ast::Expr::Name(n) => match self.lookup(n.id.as_str()) {
                Some(Name::Thread(tag)) => (tag.clone(), Some(n.id.to_string())),
                _ => {
                    return Err(Fail::on(axis, format!("{} is no thread axis", n.id))
                        .help("tx = T.env_thread(\"threadIdx.x\")"))
                }
            },
            text => (thread_tag(text)?, None),
        };
        let domain = self.domain(extent, None)?;
        let name = own.as_deref().or(name).unwrap_or("thread").to_string();
        let dtype = self.dtype_of(&domain.extent);
        let var = self.fresh_var(&name, dtype);
        Ok(Some(Launch { var, domain, tag }))
    }

    /// Reads `body` under the threads.
    pub(super) fn under(
        &mut self,
        at: &ast::Expr,
        launch: Launch,
        name: Option<&str>,
        body: &[ast::Stmt],
    ) -> Res<Option<Stmt>> {
        let stmt = self.scoped(at, |r| {
            let own = launch.var.name.to_string();
            r.bind(&own, Name::Var(launch.var.clone()));
            if let Some(name) = name {
                r.bind(name, Name::Var(launch.var.clone()));
            }
            r.loops.insert(launch.var.id, launch.domain.clone());
            r.sequence(body)
        })?;
        Ok(stmt.map(|s| launch.around(s)))
    }

    /// A statement that opens a thread axis for what follows, and the name that it gives.
    pub(super) fn opens<'s>(&mut self, s: &'s ast::Stmt) -> Res<Option<(&'s ast::Expr, Launch, Option<&'s str>)>> {
        let (value, name): (&ast::Expr, Option<&str>) = match s {
            ast::Stmt::Expr(e) => (&e.value, None),
            ast::Stmt::Assign(a) => match a.targets.as_slice() {
                [ast::Expr::Name(n)] => (&a.value, Some(n.id.as_str())),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(self.launch(value, name)?.map(|launch| (value, launch, name)))
    }

    /// What a name stands for that is given to something else than a value: a thread axis, memory, a meta variable.
    pub(super) fn meta(&mut self, name: &str, function: &str, c: &ast::ExprCall) -> Res<bool> {
        let value = match function {
            "env_thread" => Name::Thread(thread_tag(Args::new(c, &["thread_tag", "dtype"])?.need("thread_tag")?)?),
            "allocate" => {
                let args = Args::new(c, &["extents", "dtype", "scope", "condition", "annotations"])?;
                let scope = args.get("scope").map_or(Ok("global".to_string()), string)?;
                args.need("extents")?;
                Name::Memory(Some(scope))
            }
            "meta_var" => match Args::new(c, &["value"])?.need("value")? {
                ast::Expr::Name(n) if matches!(self.lookup(n.id.as_str()), Some(Name::Buffer(_))) => {
                    match self.lookup(n.id.as_str()) {
                        Some(Name::Buffer(b)) => Name::Buffer(*b),
                        _ => return Ok(false),
                    }
                }
                value => {
                    let read = self.expr(value)?;
                    self.written_out(value, &read)?;
                    Name::Value(read)
                }
            },
            _ => return Ok(false),
        };
        self.bind(name, value);
        Ok(true)
    }

    /// `T.decl_buffer(shape, dtype, data=p)`: the memory that `T.allocate` gave becomes a buffer; without it, it has memory of
    /// its own.
    pub(super) fn declared(&mut self, name: &str, c: &ast::ExprCall) -> Res<crate::Buffer> {
        let mut buffer = self.allocation(name, c, None)?;
        let data = c.arguments.keywords.iter().find(|k| k.arg.as_ref().is_some_and(|a| a == "data")).map(|k| &k.value);
        let Some(data) = data.or_else(|| c.arguments.args.get(2)).filter(|e| !e.is_none_literal_expr()) else {
            return Ok(buffer);
        };
        let shared = "two buffers would lie in the same memory";
        let ast::Expr::Name(n) = data else {
            return Err(Fail::on(data, shared).help("T.match_buffer in a block gives a view of a region"));
        };
        for scope in self.names.iter_mut().rev() {
            if let Some(Name::Memory(memory)) = scope.get_mut(n.id.as_str()) {
                buffer.scope = memory.take().ok_or_else(|| Fail::on(data, shared).help("allocate memory for each"))?;
                return Ok(buffer);
            }
        }
        Err(Fail::on(data, format!("{} is no memory that T.allocate gave", n.id)))
    }
}

/// What `T.comm_reducer`, `T.tvm_thread_allreduce` and `T.Reduce` are told. A pass makes them of what is asked for here: they
/// are steps that all threads take together, on values that no other thread can name, while a program's threads are loops.
pub(super) fn written_reduction(at: &impl ruff_text_size::Ranged) -> Box<Fail> {
    Fail::on(at, "a reduction that is written out has no meaning in a program of blocks").help(
        "write a block with T.axis.reduce and T.init, its loop over T.thread_binding(32, thread=\"threadIdx.x\") where \
         threads share it: the kernel then has the steps between threads",
    )
}

/// An integer or floating constant as a value of a type, from text: what a parameter is given.
pub(super) fn constant(text: &str, dtype: crate::DType) -> Option<Expr> {
    if dtype.is_float() {
        return text.parse::<f64>().ok().map(|v| crate::fold::float(v, dtype));
    }
    let (low, high) = dtype.int_range()?;
    text.parse::<i64>().ok().filter(|v| (low..=high).contains(v)).map(|v| Expr::Int(v, dtype))
}
