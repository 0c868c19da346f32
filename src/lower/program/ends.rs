//! Where rows end: laps that all threads have whole, and the last one, which some have not.
//!
//! ```text
//!   for l in 0..8:                       for l in 0..7:
//!     if tx + 32 l < 250:                  x += f(A[4 tx + 128 l])
//!       x += f(A[4 tx + 128 l])   ->     if tx + 224 < 250:
//!                                          x += f(A[4 tx + 896])
//! ```
//! A compiler does so only where it expands the loop and knows how many threads there are along the row, which the bounds of a
//! launch say of flat blocks alone.
use super::emit::{has_barrier, steps, Emitter, Mode};
use super::error::LowerError;
use super::guards::Guarding;
use super::linear::Ranges;
use super::nest::{leaves, Loop, LoopKind, Node};
use super::pred::Pred;
use crate::kernel::Stmt;
use crate::lower::index::c;
use satune_ir::VarId;
use std::collections::HashMap;

/// Statements of a lap, at most, that are written a second time for the last one.
const MOST_STEPS: i64 = 64;

/// Ranges and guards of all laps.
pub(super) struct Laps {
    ranges: Ranges,
    guarding: HashMap<usize, Guarding>,
}

impl Emitter<'_> {
    /// How many of a loop's first laps need no guards, where the others do.
    pub(super) fn whole_laps(&self, l: &Loop) -> Option<i64> {
        let by_itself = self.mode == Mode::Whole && l.steps.is_none() && l.kind != LoopKind::Vectorized && l.extent > 1;
        if !by_itself || has_barrier(&l.body) || steps(&l.body) > MOST_STEPS || self.pipelined_within(&l.body) {
            return None;
        }
        let mut by_data = false;
        leaves(&l.body, &mut |leaf| by_data |= !leaf.data().is_empty());
        let whole = self.laps_without_guards(l, &l.body);
        (whole > 0 && whole < l.extent && !by_data).then_some(whole)
    }

    /// How many of a loop's first laps need no guards in these nodes.
    pub(super) fn laps_without_guards(&self, l: &Loop, nodes: &[Node]) -> i64 {
        let mut whole = l.extent;
        leaves(nodes, &mut |leaf| {
            let guards = self.guarding.get(&leaf.id).into_iter().flat_map(|g| g.when.iter().chain(&g.zero));
            for guard in guards.filter(|p| p.uses(&|v| v == l.var)) {
                whole = whole.min(self.surely(guard, l.var));
            }
        });
        whole
    }

    /// The laps, from the first on, in which a guard is sure to hold.
    fn surely(&self, guard: &Pred, v: VarId) -> i64 {
        let Pred::Lt(form, bound) = guard else { return 0 };
        match form.split_var(v) {
            Some((each, rest)) if each > 0 => (bound - 1 - rest.range(&self.ranges).1).div_euclid(each) + 1,
            _ => 0,
        }
    }

    /// So many laps without guards, and the others with them.
    pub(super) fn laps_and_ends(&mut self, l: &Loop, whole: i64) -> Result<Vec<Stmt>, LowerError> {
        let before = self.enter_laps(l.var, (0, whole - 1), &l.body);
        let code = self.laps(l, 0, whole);
        self.leave_laps(before);
        let before = self.enter_laps(l.var, (whole, l.extent - 1), &[]);
        let ends = self.laps(l, whole, l.extent - whole);
        self.leave_laps(before);
        let mut code = code?;
        code.extend(ends?);
        Ok(code)
    }

    /// `count` laps from `start` on.
    fn laps(&mut self, l: &Loop, start: i64, count: i64) -> Result<Vec<Stmt>, LowerError> {
        match count {
            1 => self.with(l.var, c(start), |this| this.nodes(&l.body)),
            _ => self.loop_inside(&Loop { extent: count, ..l.clone() }, start),
        }
    }

    /// From here on the laps are these; nodes whose guards are sure to hold in them need none.
    pub(super) fn enter_laps(&mut self, v: VarId, laps: (i64, i64), nodes: &[Node]) -> Laps {
        let before = Laps { ranges: self.ranges.clone(), guarding: self.guarding.clone() };
        self.ranges.insert(v, laps);
        leaves(nodes, &mut |leaf| {
            if let Some(own) = self.guarding.get_mut(&leaf.id) {
                own.when.retain(|p| !p.holds(&self.ranges));
                own.zero.retain(|p| !p.holds(&self.ranges));
            }
        });
        before
    }

    /// Ranges and guards as they were.
    pub(super) fn leave_laps(&mut self, before: Laps) {
        (self.ranges, self.guarding) = (before.ranges, before.guarding);
    }

    fn pipelined_within(&self, nodes: &[Node]) -> bool {
        nodes.iter().any(|n| match n {
            Node::Loop(l) => self.pipelines.contains_key(&l.var) || self.pipelined_within(&l.body),
            _ => false,
        })
    }
}

/// Statements, of which neighbours under one condition stand under it together.
pub(super) fn joined(code: Vec<Stmt>) -> Vec<Stmt> {
    let mut out: Vec<Stmt> = Vec::new();
    for stmt in code {
        match (out.last_mut(), stmt) {
            (Some(Stmt::If { cond, then, otherwise }), Stmt::If { cond: same, then: more, otherwise: other })
                if *cond == same && otherwise.is_empty() && other.is_empty() =>
            {
                then.extend(more);
            }
            (_, stmt) => out.push(stmt),
        }
    }
    out
}
