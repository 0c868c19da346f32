//! The statements of a reduction over threads (see `allreduce`).
use super::allreduce::{thread_numbers, Reduction};
use super::build::{Around, Builder};
use super::error::LowerError;
use super::nest::{Loop, LoopKind, Node};
use super::pred::{join, Pred};
use super::team::{binary, integer, variable, WARP};
use satune_ir::{visit, BinOp, BlockRealize, Expr, For, IterKind, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// Name of the call that stands for a shuffle: (value, lane mask, lanes that take part). No text of a program can spell it.
pub const SHUFFLE: &str = "shuffle xor";

impl Builder<'_> {
    /// The reduction that a loop begins, where its body is not being built already.
    pub(super) fn reduction_of_loop(&self, l: &For) -> Vec<usize> {
        let starts = |r: &Reduction| r.loops.first().is_some_and(|first| first.var.id == l.var.id);
        let all = self.reductions.iter().enumerate();
        all.filter(|(i, r)| starts(r) && !self.begun.contains(i)).map(|(i, _)| i).collect()
    }

    /// The reduction over threads that a block is.
    pub(super) fn reduction_of_block(&self, realize: &BlockRealize) -> Option<usize> {
        self.reductions.iter().position(|r| std::ptr::eq(r.realize, realize))
    }

    /// A reduction's loops with what comes before and after them.
    pub(super) fn reduced(&mut self, l: &For, which: Vec<usize>, around: &Around) -> Result<Vec<Node>, LowerError> {
        self.begun.extend(&which);
        let outside = Around { bound: true, ..around.clone() };
        let mut nodes = Vec::new();
        for i in &which {
            self.partials.insert(*i, self.slots(around));
            let start = self.reductions[*i].start(self.reduced_type(*i)).0;
            nodes.extend(self.set_partial(*i, start, &around.unguarded())?);
        }
        nodes.extend(self.for_loop(l, around)?);
        for i in which {
            nodes.extend(self.combine(i, &outside)?);
        }
        Ok(nodes)
    }

    /// The block's update, on the thread's partial result.
    pub(super) fn update_partial(&mut self, i: usize, inside: &Around) -> Result<Vec<Node>, LowerError> {
        let r = &self.reductions[i];
        let (before, value) = (r.before, binary(r.op, self.partial(i), r.operand.clone()));
        let mut nodes = Vec::new();
        for stmt in before {
            nodes.extend(self.stmt(stmt, inside)?);
        }
        nodes.extend(self.set_partial(i, value, inside)?);
        Ok(nodes)
    }

    fn reduced_type(&self, i: usize) -> satune_ir::DType {
        self.reductions[i].dtype(self.program)
    }

    /// The vthreads around a reduction, each of which has partial results of its own.
    fn slots(&self, around: &Around) -> Vec<Expr> {
        around.vthreads.iter().map(|v| variable(*v, "vthread")).collect()
    }

    fn with_slots(&self, i: usize, indices: Vec<Expr>) -> Vec<Expr> {
        self.partials.get(&i).into_iter().flatten().cloned().chain(indices).collect()
    }

    fn partial(&self, i: usize) -> Expr {
        Expr::Load(self.reductions[i].partial, self.with_slots(i, vec![integer(0)]))
    }

    fn set_partial(&mut self, i: usize, value: Expr, around: &Around) -> Result<Vec<Node>, LowerError> {
        let at = self.with_slots(i, vec![integer(0)]);
        self.store(self.reductions[i].partial, &at, &value, around)
    }

    /// Combines the partial results of all members of a team.
    fn combine(&mut self, i: usize, around: &Around) -> Result<Vec<Node>, LowerError> {
        let (team, op, exchange) = (self.reductions[i].team, self.reductions[i].op, self.reductions[i].exchange);
        let mut free = around.unguarded();
        free.block.clone_from(&self.reductions[i].realize.block.name);
        let mut nodes = self.shuffles(i, team.lanes(), team.named_lanes(), &free)?;
        if let Some(exchange) = exchange {
            let threads = thread_numbers(|tag| self.nest.threads.iter().find(|t| t.tag == tag).map(|t| t.var));
            let (thread, lanes, parts) = (team.thread(&threads), team.lanes(), team.parts());
            let part = binary(BinOp::FloorDiv, team.member(&threads), integer(lanes));
            let at = |this: &Self, part: Expr| this.with_slots(i, vec![part, team.team(&threads)]);
            let leader = binary(BinOp::FloorMod, thread.clone(), integer(lanes));
            let mut leading = free.clone();
            let leader = self.forms(&[leader], &free.block)?;
            join(&mut leading.guards, leader.iter().flat_map(|l| Pred::eq(l, &self.nest.ranges)).collect());
            let (here, partial) = (at(self, part), self.partial(i));
            nodes.extend(self.store(exchange, &here, &partial, &leading)?);
            let load = |this: &Self, part: Expr| Expr::Load(exchange, at(this, part));
            if lanes == WARP {
                // Whole warps: lane j of each takes part j, and shuffles combine them once more.
                let width = parts.unsigned_abs().next_power_of_two() as i64;
                let lane = binary(BinOp::FloorMod, thread, integer(width));
                let mut value = load(self, binary(BinOp::Min, lane.clone(), integer(parts - 1)));
                if width > parts && !self.reductions[i].idempotent() {
                    let otherwise = self.reductions[i].identity(self.reduced_type(i));
                    let cond = Arc::new(binary(BinOp::Lt, lane, integer(parts)));
                    value = Expr::Select { lazy: true, cond, then: Arc::new(value), otherwise: Arc::new(otherwise) };
                }
                nodes.extend(self.set_partial(i, value, &free)?);
                nodes.extend(self.shuffles(i, width, WARP, &free)?);
            } else {
                let first = load(self, integer(0));
                nodes.extend(self.set_partial(i, first, &free)?);
                let var = self.nest.fresh(parts - 1);
                let next = load(self, binary(BinOp::Add, variable(var, "part"), integer(1)));
                let body = self.set_partial(i, binary(op, self.partial(i), next), &free)?;
                nodes.push(Node::Loop(Loop {
                    steps: None,
                    var,
                    name: "part".into(),
                    extent: parts - 1,
                    kind: LoopKind::Serial,
                    annotations: Default::default(),
                    child_sizes: vec![body.len()],
                    body,
                }));
            }
        }
        nodes.extend(self.write_result(i, around)?);
        Ok(nodes)
    }

    /// Steps of a butterfly: every lane ends with what all `width` lanes have together.
    fn shuffles(&mut self, i: usize, width: i64, named: i64, free: &Around) -> Result<Vec<Node>, LowerError> {
        let mut nodes = Vec::new();
        let mut mask = width / 2;
        while mask > 0 {
            let arguments = vec![self.partial(i), integer(mask), integer(named)];
            let other = Expr::Call(SHUFFLE.into(), arguments, self.reduced_type(i));
            let value = binary(self.reductions[i].op, self.partial(i), other);
            nodes.extend(self.set_partial(i, value, free)?);
            mask /= 2;
        }
        Ok(nodes)
    }

    /// The store of the block, once, where its init would have run.
    fn write_result(&mut self, i: usize, around: &Around) -> Result<Vec<Node>, LowerError> {
        let r = &self.reductions[i];
        let (realize, target) = (r.realize, r.target);
        let block = &realize.block;
        let first: HashMap<VarId, Expr> = r.loops.iter().map(|l| (l.var.id, l.min.clone())).collect();
        let mut inside = around.clone();
        inside.block.clone_from(&block.name);
        inside.annotations = Arc::new(block.annotations.clone());
        let at_first = |e: &Expr| visit::substitute(&visit::substitute(e, &first), &around.values);
        let predicate = at_first(&realize.predicate);
        join(&mut inside.guards, self.clauses(&predicate, around)?);
        for (iv, value) in block.iter_vars.iter().zip(&realize.iter_values) {
            if iv.kind != IterKind::Reduce {
                inside.values.insert(iv.var.id, at_first(value));
            }
        }
        let mut value = self.partial(i);
        if r.start(r.dtype(self.program)).1 {
            value = binary(r.op, r.init.clone(), value);
        }
        self.store(target, r.at, &value, &inside)
    }
}

/// The arguments of a shuffle.
pub fn shuffled<'e>(name: &str, args: &'e [Expr]) -> Option<(&'e Expr, u32, u32)> {
    match args {
        [value, Expr::Int(mask, _), Expr::Int(lanes, _)] if name == SHUFFLE => {
            Some((value, u32::try_from(*mask).ok()?, u32::try_from(*lanes).ok()?))
        }
        _ => None,
    }
}
