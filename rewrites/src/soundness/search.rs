//! Finds an instance of an access, if there is one: values of the loops around it for which it runs and certain
//! expressions have certain values.
//!
//! Intervals of the loops are narrowed by what is asked and by the conditions around the access, and halved where that
//! does not decide; an interval in which all is decided holds an instance, or none.
use super::span::{certainly, span, ByVar, Env};
use super::walk::Frame;
use satune_ir::fold::floor_div;
use satune_ir::{visit, BinOp, BlockRealize, Expr, IterKind};

/// An interval without ends, with room for arithmetic.
pub(super) const ANY: (i64, i64) = (i64::MIN / 4, i64::MAX / 4);
/// Intervals that are looked at before the search gives up.
const LIMIT: usize = 1_000;
/// Times that one interval is narrowed before it is halved.
const SWEEPS: usize = 4;

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The values of the loops, outermost first.
    Instance(Vec<i64>),
    /// There is no such instance.
    Nothing,
    /// There may be one: it depends on values of buffers.
    Data,
    /// The search gave up.
    Unknown,
}

/// A search.
pub(super) struct Search<'s, 'a> {
    frames: &'s [Frame<'a>],
    wanted: Vec<(&'s Expr, i64, i64)>,
    towards: Vec<i64>,
    outermost_first: bool,
    despite_data: bool,
    definitions: ByVar<Definition<'a>>,
    loops: usize,
    env: Env,
    left: usize,
}

#[derive(Clone, Copy)]
enum Definition<'a> {
    Loop(usize),
    Value(&'a Expr),
}

/// What an interval does not decide yet.
enum Open<'x> {
    /// The condition has this value.
    Condition(&'x Expr, bool),
    /// The expression is within.
    Within(&'x Expr, i64, i64),
    /// The two are equal.
    Start(&'x Expr, &'x Expr),
    /// The loop with this number is within its bounds, which depend on other loops.
    Bounds(usize, &'x Expr, &'x Expr),
}

impl<'s, 'a> Search<'s, 'a> {
    pub(super) fn new(frames: &'s [Frame<'a>]) -> Search<'s, 'a> {
        let mut search = Search {
            frames,
            wanted: Vec::new(),
            towards: Vec::new(),
            outermost_first: false,
            despite_data: false,
            definitions: ByVar::default(),
            loops: 0,
            env: Env::default(),
            left: LIMIT,
        };
        for frame in frames {
            match frame {
                Frame::Loop(l) => {
                    search.definitions.set(l.var.id, Definition::Loop(search.loops));
                    search.loops += 1;
                }
                Frame::Let(var, value) => search.definitions.set(var.id, Definition::Value(value)),
                Frame::Block(r) => {
                    for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
                        search.definitions.set(iv.var.id, Definition::Value(value));
                    }
                }
                Frame::If(..) | Frame::Init(_) => {}
            }
        }
        search.towards = vec![ANY.0; search.loops];
        search
    }

    /// Asks for `lo <= e <= hi`.
    pub(super) fn within(mut self, e: &'s Expr, lo: i64, hi: i64) -> Self {
        self.wanted.push((e, lo, hi));
        self
    }

    /// Asks for the values of expressions.
    pub(super) fn equal(mut self, list: &'s [Expr], values: &[i64]) -> Self {
        self.wanted.extend(list.iter().zip(values).map(|(e, v)| (e, *v, *v)));
        self
    }

    /// Of several instances finds the first whose loops, outermost first, are nearest to these values.
    pub(super) fn towards(mut self, values: Vec<i64>) -> Self {
        (self.towards, self.outermost_first) = (values, true);
        self
    }

    /// Takes conditions that data decides, and nothing else, for true.
    pub(super) fn despite_data(mut self) -> Self {
        self.despite_data = true;
        self
    }

    /// Of several instances finds the last one.
    pub(super) fn latest(self) -> Self {
        let far = vec![ANY.1; self.loops];
        self.towards(far)
    }

    /// Of several instances finds the first one.
    pub(super) fn earliest(self) -> Self {
        let near = vec![ANY.0; self.loops];
        self.towards(near)
    }

    /// Finds an instance with its loops within the intervals.
    pub(super) fn run(mut self, intervals: &[(i64, i64)]) -> Found {
        let mut all = vec![ANY; self.loops];
        for (slot, given) in all.iter_mut().zip(intervals) {
            *slot = *given;
        }
        self.node(all)
    }

    fn node(&mut self, mut boxes: Vec<(i64, i64)>) -> Found {
        if self.left == 0 {
            return Found::Unknown;
        }
        self.left -= 1;
        let mut sweeps = SWEEPS;
        loop {
            let Some((open, untold)) = self.forward(&mut boxes) else { return Found::Nothing };
            if open.is_empty() {
                return match untold {
                    None => Found::Instance(self.nearest(&boxes)),
                    Some(e) if self.reads_data(e) => self.by_data(&boxes),
                    Some(_) => Found::Unknown,
                };
            }
            let mut narrow = Narrow { definitions: &self.definitions, env: &self.env, boxes: boxes.clone() };
            open.iter().for_each(|o| narrow.open(o));
            let narrowed = narrow.boxes;
            if narrowed.iter().any(|(lo, hi)| lo > hi) {
                return Found::Nothing;
            }
            sweeps = sweeps.saturating_sub(1);
            let split = self.split(&open, &narrowed);
            if narrowed != boxes && (sweeps > 0 || split.is_none()) {
                boxes = narrowed;
                continue;
            }
            return match split {
                Some(at) => self.halves(at, narrowed),
                // All loops that matter have one value each.
                None => match open
                    .iter()
                    .all(|o| matches!(o, Open::Condition(e, _) | Open::Within(e, ..) if self.reads_data(e)))
                {
                    true => self.by_data(&boxes),
                    false => Found::Unknown,
                },
            };
        }
    }

    fn nearest(&self, boxes: &[(i64, i64)]) -> Vec<i64> {
        boxes.iter().zip(&self.towards).map(|((lo, hi), t)| *t.clamp(lo, hi)).collect()
    }

    /// Where all is decided but what data decides. A loop whose bounds are data has no values to take.
    fn by_data(&self, boxes: &[(i64, i64)]) -> Found {
        match self.despite_data && boxes.iter().all(|(lo, hi)| ANY.0 < *lo && *hi < ANY.1) {
            true => Found::Instance(self.nearest(boxes)),
            false => Found::Data,
        }
    }

    fn halves(&mut self, at: usize, boxes: Vec<(i64, i64)>) -> Found {
        let (lo, hi) = boxes[at];
        let middle = lo + (hi - lo) / 2;
        let low_first = self.towards[at] <= middle;
        let mut result = Found::Nothing;
        for low in [low_first, !low_first] {
            let mut half = boxes.clone();
            half[at] = if low { (lo, middle) } else { (middle + 1, hi) };
            match self.node(half) {
                Found::Nothing => {}
                Found::Instance(loops) => return Found::Instance(loops),
                other => result = other,
            }
        }
        result
    }

    /// The loop to halve: one on which something undecided depends, the outermost or the longest.
    fn split(&self, open: &[Open], boxes: &[(i64, i64)]) -> Option<usize> {
        let mut matters = vec![false; boxes.len()];
        for o in open {
            match o {
                Open::Condition(e, _) | Open::Within(e, ..) => self.mark(e, &mut matters),
                Open::Start(a, b) => {
                    self.mark(a, &mut matters);
                    self.mark(b, &mut matters);
                }
                Open::Bounds(at, min, extent) => {
                    matters[*at] = true;
                    self.mark(min, &mut matters);
                    self.mark(extent, &mut matters);
                }
            }
        }
        let mut those = (0..boxes.len()).filter(|i| matters[*i] && boxes[*i].0 < boxes[*i].1);
        if self.outermost_first {
            return those.next();
        }
        those.max_by_key(|i| boxes[*i].1 - boxes[*i].0)
    }

    fn mark(&self, e: &Expr, matters: &mut Vec<bool>) {
        let mut vars = Vec::new();
        visit::walk_expr(e, &mut |e| {
            if let Expr::Var(v) = e {
                vars.push(v.id);
            }
        });
        for var in vars {
            match self.definitions.get(var) {
                Some(Definition::Loop(at)) => matters[at] = true,
                Some(Definition::Value(e)) => self.mark(e, matters),
                None => {}
            }
        }
    }

    /// Whether the value of an expression depends on buffers.
    fn reads_data(&self, e: &Expr) -> bool {
        let (mut found, mut vars) = (false, Vec::new());
        visit::walk_expr(e, &mut |e| match e {
            Expr::Load(..) => found = true,
            Expr::Var(v) => vars.push(v.id),
            _ => {}
        });
        found
            || vars.iter().any(|v| match self.definitions.get(*v) {
                Some(Definition::Value(e)) => self.reads_data(e),
                _ => false,
            })
    }

    /// Cuts the intervals to the bounds of the loops. Returns what they leave open, and an expression about which nothing
    /// can be told, where there is one; none where they hold no instance.
    fn forward(&mut self, boxes: &mut [(i64, i64)]) -> Option<(Vec<Open<'s>>, Option<&'s Expr>)>
    where
        'a: 's,
    {
        let (mut open, mut told, mut index) = (Vec::new(), None, 0);
        let frames: &'s [Frame<'a>] = self.frames;
        for frame in frames {
            match frame {
                Frame::Loop(l) => {
                    let bounds = span(&l.min, &self.env).zip(span(&l.extent, &self.env));
                    let slot = &mut boxes[index];
                    if let Some((min, extent)) = bounds {
                        let end = min.1.saturating_add(extent.1).saturating_sub(1);
                        *slot = (slot.0.max(min.0), slot.1.min(end));
                        let safe = (min.1, min.0.saturating_add(extent.0).saturating_sub(1));
                        if slot.0 < safe.0 || slot.1 > safe.1 {
                            open.push(Open::Bounds(index, &l.min, &l.extent));
                        }
                    } else {
                        told = Some(&l.extent);
                    }
                    if slot.0 > slot.1 {
                        return None;
                    }
                    self.env.set(l.var.id, Some(*slot));
                    index += 1;
                }
                Frame::Let(var, value) => {
                    let value = span(value, &self.env);
                    self.env.set(var.id, value);
                }
                Frame::If(cond, holds) => self.condition(cond, *holds, &mut open, &mut told)?,
                Frame::Init(r) => self.start(r, &mut open, &mut told)?,
                Frame::Block(r) => {
                    self.condition(&r.predicate, true, &mut open, &mut told)?;
                    for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
                        let value = span(value, &self.env);
                        self.env.set(iv.var.id, value);
                    }
                }
            }
        }
        for &(e, lo, hi) in &self.wanted {
            match span(e, &self.env) {
                None => told = Some(e),
                Some((a, b)) if b < lo || hi < a => return None,
                Some((a, b)) if lo <= a && b <= hi => {}
                Some(_) => open.push(Open::Within(e, lo, hi)),
            }
        }
        Some((open, told))
    }

    fn condition(
        &self,
        cond: &'s Expr,
        holds: bool,
        open: &mut Vec<Open<'s>>,
        told: &mut Option<&'s Expr>,
    ) -> Option<()> {
        match certainly(cond, &self.env) {
            Some(value) if value == holds => Some(()),
            Some(_) => None,
            None => {
                match span(cond, &self.env) {
                    Some(_) => open.push(Open::Condition(cond, holds)),
                    None => *told = Some(cond),
                }
                Some(())
            }
        }
    }

    /// All reductions of the block are at their start.
    fn start(&self, r: &'s BlockRealize, open: &mut Vec<Open<'s>>, told: &mut Option<&'s Expr>) -> Option<()> {
        let reduces = r.block.iter_vars.iter().zip(&r.iter_values).filter(|(iv, _)| iv.kind == IterKind::Reduce);
        for (iv, value) in reduces {
            match span(value, &self.env).zip(span(&iv.min, &self.env)) {
                None => *told = Some(value),
                Some((at, start)) if at.1 < start.0 || start.1 < at.0 => return None,
                Some((at, start)) if at == start && at.0 == at.1 => {}
                Some(_) => open.push(Open::Start(value, &iv.min)),
            }
        }
        Some(())
    }
}

/// Cuts intervals of loops to what conditions leave.
struct Narrow<'n, 'a> {
    definitions: &'n ByVar<Definition<'a>>,
    env: &'n Env,
    boxes: Vec<(i64, i64)>,
}

impl Narrow<'_, '_> {
    fn open(&mut self, open: &Open) {
        match open {
            Open::Condition(e, holds) => self.condition(e, *holds),
            Open::Within(e, lo, hi) => self.to(e, *lo, *hi),
            Open::Start(a, b) => self.equal(a, b),
            Open::Bounds(..) => {}
        }
    }

    fn equal(&mut self, a: &Expr, b: &Expr) {
        if let Some((x, y)) = span(a, self.env).zip(span(b, self.env)) {
            self.to(a, y.0, y.1);
            self.to(b, x.0, x.1);
        }
    }

    fn condition(&mut self, e: &Expr, holds: bool) {
        match e {
            Expr::Not(a) => self.condition(a, !holds),
            Expr::Binary(op, a, b) => match (op, holds) {
                (BinOp::And, true) | (BinOp::Or, false) => {
                    self.condition(a, holds);
                    self.condition(b, holds);
                }
                (BinOp::Lt, true) | (BinOp::Ge, false) => self.ordered(a, b, 1),
                (BinOp::Le, true) | (BinOp::Gt, false) => self.ordered(a, b, 0),
                (BinOp::Gt, true) | (BinOp::Le, false) => self.ordered(b, a, 1),
                (BinOp::Ge, true) | (BinOp::Lt, false) => self.ordered(b, a, 0),
                (BinOp::Eq, true) | (BinOp::Ne, false) => self.equal(a, b),
                _ => {}
            },
            _ => {}
        }
    }

    /// `a + by <= b`.
    fn ordered(&mut self, a: &Expr, b: &Expr, by: i64) {
        if let Some((x, y)) = span(a, self.env).zip(span(b, self.env)) {
            self.to(a, ANY.0, y.1.saturating_sub(by));
            self.to(b, x.0.saturating_add(by), ANY.1);
        }
    }

    /// Cuts to `lo <= e <= hi`.
    fn to(&mut self, e: &Expr, lo: i64, hi: i64) {
        match e {
            Expr::Var(v) => match self.definitions.get(v.id) {
                Some(Definition::Loop(at)) => {
                    let slot = &mut self.boxes[at];
                    *slot = (slot.0.max(lo), slot.1.min(hi));
                }
                Some(Definition::Value(value)) => self.to(value, lo, hi),
                None => {}
            },
            Expr::Cast(..) if span(e, self.env).is_none() => {}
            Expr::Cast(_, a) => self.to(a, lo, hi),
            Expr::Binary(op, a, b) => {
                let Some((x, y)) = span(a, self.env).zip(span(b, self.env)) else { return };
                match op {
                    BinOp::Add => {
                        self.to(a, lo.saturating_sub(y.1), hi.saturating_sub(y.0));
                        self.to(b, lo.saturating_sub(x.1), hi.saturating_sub(x.0));
                    }
                    BinOp::Sub => {
                        self.to(a, lo.saturating_add(y.0), hi.saturating_add(y.1));
                        self.to(b, x.0.saturating_sub(hi), x.1.saturating_sub(lo));
                    }
                    BinOp::Mul if y.0 == y.1 && y.0 > 0 => self.quotient(a, y.0, lo, hi),
                    BinOp::Mul if x.0 == x.1 && x.0 > 0 => self.quotient(b, x.0, lo, hi),
                    BinOp::FloorDiv if y.0 == y.1 && y.0 > 0 => {
                        let end = hi.saturating_mul(y.0).saturating_add(y.0 - 1);
                        self.to(a, lo.saturating_mul(y.0).max(ANY.0), end.min(ANY.1));
                    }
                    BinOp::FloorMod if y.0 == y.1 && y.0 > 0 => {
                        let (first, last) = (x.0.div_euclid(y.0), x.1.div_euclid(y.0));
                        if first == last {
                            let start = first.saturating_mul(y.0);
                            self.to(a, start.saturating_add(lo), start.saturating_add(hi));
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// `lo <= a * c <= hi`, for a positive `c`.
    fn quotient(&mut self, a: &Expr, c: i64, lo: i64, hi: i64) {
        let first = lo.saturating_add(c - 1).div_euclid(c);
        self.to(a, first, floor_div(hi, c).unwrap_or(hi));
    }
}
