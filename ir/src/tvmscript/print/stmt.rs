//! Statements, loops and blocks.
use super::{dict, quoted, Printer};
use crate::{Block, BlockRealize, DType, Expr, For, ForKind, IterKind, IterVar, Stmt, Var};

impl Printer<'_> {
    /// The root block: written out only where it says more than its allocations.
    pub(super) fn root(&mut self) {
        let block = &self.program.body.block;
        let plain = block.annotations.is_empty() && block.reads.is_empty() && block.writes.is_empty();
        if plain && block.match_buffers.is_empty() {
            self.line("# with T.sblock(\"root\"):");
            self.allocations(block);
            self.stmt(&block.body);
        } else {
            self.realize(&self.program.body);
        }
    }

    fn stmt(&mut self, s: &Stmt) {
        match s {
            Stmt::For(l) => self.loops(l),
            Stmt::Realize(r) => self.realize(r),
            Stmt::Seq(parts) => parts.iter().for_each(|p| self.stmt(p)),
            Stmt::Store { buffer, indices, value } => {
                let name = self.names.of_buffer(*buffer, &self.program.buffer(*buffer).name);
                let line = format!("{name}[{}] = {}", self.indices(indices), self.expr(value));
                self.line(&line);
            }
            Stmt::If { cond, then, otherwise } => {
                let line = format!("if {}:", self.expr(cond));
                self.line(&line);
                self.nested(then);
                if let Some(other) = otherwise {
                    self.line("else:");
                    self.nested(other);
                }
            }
            Stmt::Let { var, value, body } => {
                let value = self.expr(value);
                let name = self.names.define(var);
                self.line(&format!("{name}: T.let[T.{}] = {value}", var.dtype.name()));
                self.stmt(body);
                self.names.leave(var);
            }
            Stmt::Evaluate(e) => {
                let text = self.expr(e);
                let line = if matches!(e, Expr::Call(..)) { text } else { format!("T.evaluate({text})") };
                self.line(&line);
            }
        }
    }

    fn nested(&mut self, s: &Stmt) {
        self.indent += 1;
        self.stmt(s);
        self.indent -= 1;
    }

    /// A loop; plain ones that stand in each other alone are one `T.grid`.
    fn loops(&mut self, first: &For) {
        let mut chain = vec![first];
        while let (true, Stmt::For(inner)) = (is_plain(chain[chain.len() - 1]), chain[chain.len() - 1].body.as_ref()) {
            let free = |v: &Var| !crate::visit::uses_var(&inner.extent, &|id| id == v.id);
            if !is_plain(inner) || !chain.iter().all(|l| free(&l.var)) {
                break;
            }
            chain.push(inner);
        }
        let header = if chain.len() > 1 {
            let extents: Vec<String> = chain.iter().map(|l| self.expr(&l.extent)).collect();
            let names: Vec<String> = chain.iter().map(|l| self.names.define(&l.var)).collect();
            format!("for {} in T.grid({}):", names.join(", "), extents.join(", "))
        } else {
            let range = self.header(first);
            format!("for {} in {range}:", self.names.define(&first.var))
        };
        for l in &chain {
            self.domains.insert(l.var.id, (l.min.clone(), l.extent.clone()));
        }
        self.line(&header);
        self.nested(&chain[chain.len() - 1].body);
        for l in chain {
            self.names.leave(&l.var);
        }
    }

    fn header(&self, l: &For) -> String {
        let mut args = match &l.min {
            Expr::Int(0, _) => vec![self.expr(&l.extent)],
            min => {
                let end = end(min, &l.extent);
                vec![self.expr(min), self.expr(&end)]
            }
        };
        let function = match &l.kind {
            ForKind::Serial if l.annotations.is_empty() => "range",
            ForKind::Serial => "T.serial",
            ForKind::Parallel => "T.parallel",
            ForKind::Vectorized => "T.vectorized",
            ForKind::Unrolled => "T.unroll",
            ForKind::ThreadBinding(tag) => {
                args.push(format!("thread={}", quoted(tag)));
                "T.thread_binding"
            }
        };
        if !l.annotations.is_empty() {
            args.push(format!("annotations={}", dict(&l.annotations)));
        }
        format!("{function}({})", args.join(", "))
    }

    fn allocations(&mut self, block: &Block) {
        for id in &block.alloc_buffers {
            let b = self.program.buffer(*id);
            let name = self.names.buffer(*id, &b.name);
            let args = self.buffer_args(b, false);
            self.line(&format!("{name} = T.sblock_alloc_buffer({args})"));
        }
    }

    /// Buffers that a block names and nothing above declares, as TVM prints them.
    fn undeclared(&mut self, block: &Block) {
        for region in block.reads.iter().chain(&block.writes) {
            if self.names.has_buffer(region.buffer) || block.alloc_buffers.contains(&region.buffer) {
                continue;
            }
            let b = self.program.buffer(region.buffer);
            let name = self.names.buffer(region.buffer, &b.name);
            let args = self.buffer_args(b, true);
            self.line(&format!("{name} = T.Buffer({args})"));
        }
    }

    fn realize(&mut self, r: &BlockRealize) {
        let block = &r.block;
        self.line(&format!("with T.sblock({}):", quoted(&block.name)));
        self.indent += 1;
        self.iterators(r);
        if !matches!(r.predicate, Expr::Int(1, DType::Bool)) {
            let line = format!("T.where({})", self.expr(&r.predicate));
            self.line(&line);
        }
        self.undeclared(block);
        for (function, regions) in [("reads", &block.reads), ("writes", &block.writes)] {
            let list: Vec<String> = regions.iter().map(|r| self.region(r)).collect();
            self.line(&format!("T.{function}({})", list.join(", ")));
        }
        if !block.annotations.is_empty() {
            self.line(&format!("T.sblock_attr({})", dict(&block.annotations)));
        }
        self.allocations(block);
        for (id, region) in &block.match_buffers {
            let source = self.region(region);
            let b = self.program.buffer(*id);
            let name = self.names.buffer(*id, &b.name);
            let args = self.buffer_args(b, true);
            self.line(&format!("{name} = T.match_buffer({source}, {args})"));
        }
        if let Some(init) = &block.init {
            self.line("with T.init():");
            self.nested(init);
        }
        self.stmt(&block.body);
        self.indent -= 1;
        for iv in &block.iter_vars {
            self.names.leave(&iv.var);
        }
    }

    fn iterators(&mut self, r: &BlockRealize) {
        let pairs: Vec<(&IterVar, &Expr)> = r.block.iter_vars.iter().zip(&r.iter_values).collect();
        let values: Vec<String> = pairs.iter().map(|(_, e)| self.expr(e)).collect();
        let mut at = 0;
        while at < pairs.len() {
            let run = pairs[at..].iter().take_while(|(iv, e)| self.is_remap(iv, e)).count();
            if run > 1 {
                let names: Vec<String> = pairs[at..at + run].iter().map(|(iv, _)| self.names.define(&iv.var)).collect();
                let kinds: String = pairs[at..at + run].iter().map(|(iv, _)| iv.kind.letter()).collect();
                let line =
                    format!("{} = T.axis.remap(\"{kinds}\", [{}])", names.join(", "), values[at..at + run].join(", "));
                self.line(&line);
                at += run;
                continue;
            }
            let (iv, _) = pairs[at];
            let function = match iv.kind {
                IterKind::Spatial => "spatial",
                IterKind::Reduce => "reduce",
                IterKind::Ordered => "scan",
                IterKind::Opaque => "opaque",
            };
            let domain = match &iv.min {
                Expr::Int(0, _) => self.expr(&iv.extent),
                min => {
                    let end = end(min, &iv.extent);
                    format!("({}, {})", self.expr(min), self.expr(&end))
                }
            };
            let name = self.names.define(&iv.var);
            self.line(&format!("{name} = T.axis.{function}({domain}, {})", values[at]));
            at += 1;
        }
    }

    /// Whether an iterator runs over a loop's variable with the loop's own domain.
    fn is_remap(&self, iv: &IterVar, value: &Expr) -> bool {
        let Expr::Var(v) = value else { return false };
        if iv.kind == IterKind::Ordered {
            return false;
        }
        let domain = self.domains.get(&v.id);
        iv.var.dtype == v.dtype && domain.is_some_and(|(min, extent)| iv.min == *min && iv.extent == *extent)
    }
}

/// `min + extent`.
fn end(min: &Expr, extent: &Expr) -> Expr {
    match (min, extent) {
        (Expr::Int(a, t), Expr::Int(b, _)) => Expr::Int(a.saturating_add(*b), *t),
        _ => crate::affine::add(min.clone(), extent.clone()),
    }
}

fn is_plain(l: &For) -> bool {
    matches!(l.min, Expr::Int(0, _)) && l.kind == ForKind::Serial && l.annotations.is_empty()
}
