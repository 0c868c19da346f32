//! An extremum and its place, as reductions of one result each.
//!
//! before                                         after
//!   keep = V[i] >= A[i, k]                         last[i] = the largest k where A[i, k] is not a number, less than all where none is
//!   I[i], V[i] = I[i] if keep else k,              most[i] = the largest A[i, k] where k > last[i]
//!                V[i] if keep else A[i, k]         place[i] = the first k > last[i] where A[i, k] == most[i]
//!                                                  I[i] = place[i], or what it begins with where that is kept
//!                                                  V[i] = A[i, I[i]], likewise
//!
//! What the order of the source decides is as it decides: which of equal elements is found, the first or the last; and NaN, which is
//! neither more nor less than any number. Either it is never taken, and there is no `last`; or it is, and so is whatever comes
//! next: the search begins anew after it.
//!
//! An element is read several times, by several blocks, into which what makes it may be inlined. It has to be the same each time: one
//! that no compiler computes otherwise here than there, as it may a product that is added.
use super::super::nests::parts;
use super::results::{Nests, Reduced};
use crate::reducer::limits;
use crate::regions::iter_domains;
use satune_ir::affine::linear::Linear;
use satune_ir::affine::{add, constant};
use satune_ir::{fold, visit, BinOp, Block, BufferId, DType, Expr, IterKind, Program, Stmt};
use std::collections::HashMap;

/// What was found so far, beside an element.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    More,
    Equal,
    Less,
    /// One of them is not a number.
    Neither,
}

/// An extremum and its place, of a block with two results.
pub(super) struct Extremum<'r> {
    place: &'r Reduced,
    most: &'r Reduced,
    element: Expr,
    /// The number of the instance among those of a row.
    number: Expr,
    /// How many there are.
    count: i64,
    /// Min or Max.
    op: BinOp,
    /// Whether the first of equal elements is found, else the last.
    first: bool,
    /// Whether the search begins anew after an element that is not a number.
    anew: bool,
}

impl<'r> Extremum<'r> {
    /// Of a block's results.
    pub fn of(program: &Program, block: &Block, results: &'r [Reduced]) -> Option<Extremum<'r>> {
        let [one, other] = results else { return None };
        let (most, place) = if one.reads(other) { (other, one) } else { (one, other) };
        if most.reads(place) || most.at != place.at {
            return None;
        }
        let (element, number) = (most.taken()?.clone(), place.taken()?.clone());
        let types = [most.buffer, place.buffer].map(|b| program.buffer(b).dtype);
        let comparable = match types[0] {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => true,
            other => other != DType::Bool && other.int_range().is_some(),
        };
        let count = count(block, &number)?;
        let fits = types[1].int_range().is_some_and(|(low, high)| low < 0 && count <= high);
        let before_all = constant(&place.start).is_some_and(|start| start < 0);
        if !comparable || !fits || !before_all || fold::dtype(&element, &program.buffers) != types[0] {
            return None;
        }
        let own = |(b, _): &(BufferId, Vec<Expr>)| *b == most.buffer || *b == place.buffer;
        if visit::loads(&element).iter().any(own) || !same_each_time(program, &element) {
            return None;
        }
        let mut out = Extremum { place, most, element, number, count, op: BinOp::Max, first: true, anew: false };
        let keeps = |r: &Reduced| -> Option<[bool; 4]> {
            let all = [Beside::More, Beside::Equal, Beside::Less, Beside::Neither].map(|beside| out.keeps(r, beside));
            Some([all[0]?, all[1]?, all[2]?, all[3]?])
        };
        let ([more, equal, less, neither], own) = (keeps(place)?, keeps(most)?);
        let floats = types[0].is_float();
        if [more, less] != [own[0], own[2]] || more == less || floats && neither != own[3] {
            return None;
        }
        (out.op, out.first, out.anew) = (if more { BinOp::Max } else { BinOp::Min }, equal, floats && !neither);
        // After a NaN the search begins with an element, whatever it is: what is beyond the start then is infinite.
        let value = |e: &Expr| match e {
            Expr::Float(bits, _) => Some(f64::from_bits(*bits)).filter(|value| !value.is_nan()),
            e => constant(e).map(|value| value as f64),
        };
        let (start, (low, high)) = (value(&most.start)?, limits(types[0]));
        let furthest = match out.op {
            BinOp::Max => start <= value(&low)?,
            _ => start >= value(&high)?,
        };
        (furthest || !out.anew).then_some(out)
    }

    /// Whether what a result was stays, where what was found is so beside an element.
    fn keeps(&self, r: &Reduced, beside: Beside) -> Option<bool> {
        match &r.value {
            Expr::Select { cond, then, .. } => Some(self.holds(cond, beside)? == (**then == r.own())),
            Expr::Binary(BinOp::Max, ..) => Some(beside != Beside::Less),
            Expr::Binary(BinOp::Min, ..) => Some(beside != Beside::More),
            _ => None,
        }
    }

    fn holds(&self, cond: &Expr, beside: Beside) -> Option<bool> {
        Some(match cond {
            Expr::Not(e) => !self.holds(e, beside)?,
            Expr::Binary(BinOp::And, a, b) => self.holds(a, beside)? && self.holds(b, beside)?,
            Expr::Binary(BinOp::Or, a, b) => self.holds(a, beside)? || self.holds(b, beside)?,
            Expr::Binary(op, a, b) => {
                let is = |x: &Expr, y: &Expr| **a == *x && **b == *y;
                let (most, place) = (self.most.own(), self.place.own());
                let beside = match beside {
                    same if is(&most, &self.element) => same,
                    Beside::More if is(&self.element, &most) => Beside::Less,
                    Beside::Less if is(&self.element, &most) => Beside::More,
                    same if is(&self.element, &most) => same,
                    // What was found is of an earlier instance.
                    _ if is(&place, &self.number) => Beside::Less,
                    _ if is(&self.number, &place) => Beside::More,
                    _ => return None,
                };
                match op {
                    BinOp::Gt => beside == Beside::More,
                    BinOp::Ge => matches!(beside, Beside::More | Beside::Equal),
                    BinOp::Lt => beside == Beside::Less,
                    BinOp::Le => matches!(beside, Beside::Less | Beside::Equal),
                    BinOp::Eq => beside == Beside::Equal,
                    BinOp::Ne => beside != Beside::Equal,
                    _ => return None,
                }
            }
            _ => return None,
        })
    }

    /// The blocks; none where the extremum is asked for, and is that of another instance than the place.
    pub fn nests(&self, nests: &mut Nests<'_>, part: &Stmt) -> Option<()> {
        let (place, most) = (self.place, self.most);
        let dtype = nests.out.buffer(place.buffer).dtype;
        let (low, high) = dtype.int_range()?;
        let int = |value| Expr::Int(value, dtype);
        let asked = nests.out.params.contains(&most.buffer) || read_elsewhere(&nests.out, part, most.buffer);
        let fetched = asked && !matches!(most.value, Expr::Binary(..));
        let equal = [place, most].map(|r| self.keeps(r, Beside::Equal));
        let values = nests.out.buffer(most.buffer).dtype;
        if fetched && values.is_float() && equal[0] != equal[1] {
            return None;
        }
        let found = nests.beside(place, "found", dtype);
        let best = if asked && !fetched { most.clone() } else { nests.beside(place, "most", values) };
        let number = cast(self.number.clone(), dtype, &nests.out);
        let (mut element, mut is_it) =
            (self.element.clone(), Expr::binary(BinOp::Eq, self.element.clone(), best.own()));
        let mut last = None;
        if self.anew {
            let last = &*last.insert(nests.beside(place, "last", dtype));
            let nan = Expr::Call("isnan".into(), vec![self.element.clone()], DType::Bool);
            nests.reduction(
                last,
                &int(low),
                &Expr::binary(BinOp::Max, last.own(), Expr::select(nan, number.clone(), int(low))),
            );
            let after = Expr::binary(BinOp::Gt, number.clone(), last.own());
            element = Expr::select(after.clone(), element, most.start.clone());
            is_it = Expr::binary(BinOp::And, is_it, after);
        }
        nests.reduction(&best, &most.start, &Expr::binary(self.op, best.own(), element));
        let (op, none) = if self.first { (BinOp::Min, int(high)) } else { (BinOp::Max, int(low)) };
        nests.reduction(&found, &none, &Expr::binary(op, found.own(), Expr::select(is_it, number, none.clone())));
        let found_one = Expr::binary(BinOp::Ne, found.own(), none);
        // The first of equal elements leaves what there was at the start where it is that.
        let taken = match (self.first, self.op) {
            (false, _) => found_one.clone(),
            (true, BinOp::Max) => Expr::binary(BinOp::Gt, best.own(), most.start.clone()),
            (true, _) => Expr::binary(BinOp::Lt, best.own(), most.start.clone()),
        };
        let mut at = Expr::select(taken, found.own(), place.start.clone());
        if let Some(last) = last {
            // Nothing found after a NaN: it is the last of all, or only infinite ones follow, which the start was before.
            let end = int(self.count - 1);
            let next = Expr::binary(BinOp::Min, add(last.own(), int(1)), end.clone());
            let anew = Expr::select(found_one, found.own(), if self.first { next } else { end });
            at = Expr::select(Expr::binary(BinOp::Ge, last.own(), int(0)), anew, at);
        }
        nests.map(place, &at);
        if fetched {
            let mut reduced = nests.block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce);
            let iter = reduced.next().filter(|_| reduced.next().is_none())?;
            let index = HashMap::from([(iter.var.id, cast(place.own(), iter.var.dtype, &nests.out))]);
            let cond = Expr::binary(BinOp::Ge, place.own(), int(0));
            let (then, otherwise) = (visit::substitute(&self.element, &index), most.start.clone());
            let value = Expr::if_then_else(cond, then, otherwise);
            nests.map(most, &value);
        }
        Some(())
    }
}

impl Reduced {
    /// What is taken instead, where it does not stay.
    fn taken(&self) -> Option<&Expr> {
        let (Expr::Select { then: a, otherwise: b, .. } | Expr::Binary(BinOp::Min | BinOp::Max, a, b)) = &self.value
        else {
            return None;
        };
        match (**a == self.own(), **b == self.own()) {
            (true, false) => Some(b),
            (false, true) => Some(a),
            _ => None,
        }
    }
}

/// How many instances a block has per row, where an expression numbers them in their order from 0 on.
fn count(block: &Block, number: &Expr) -> Option<i64> {
    let number = match number {
        Expr::Cast(to, e) if to.int_range().is_some() => e,
        other => other,
    };
    let mut all = 1_i64;
    let mut terms = Vec::new();
    for iv in block.iter_vars.iter().rev().filter(|iv| iv.kind == IterKind::Reduce) {
        let extent = constant(&iv.extent).filter(|_| constant(&iv.min) == Some(0))?;
        if extent > 1 {
            terms.push((iv.var.id, all));
        }
        all = all.checked_mul(extent)?;
    }
    let form = Linear::of(number, &iter_domains(block))?;
    let own = |(v, by): &(_, i64)| form.terms().iter().any(|(e, n)| n == by && matches!(e, Expr::Var(x) if x.id == *v));
    (form.offset() == 0 && form.terms().len() == terms.len() && terms.iter().all(own)).then_some(all)
}

/// Whether an expression has one value wherever it is computed, with what may be inlined in it.
fn same_each_time(program: &Program, e: &Expr) -> bool {
    let mut open = vec![e.clone()];
    let mut seen: Vec<BufferId> = Vec::new();
    while let Some(e) = open.pop() {
        let mut plain = true;
        visit::walk_expr(&e, &mut |x| {
            let product = matches!(x, Expr::Binary(BinOp::Mul | BinOp::Div, ..));
            plain &= !(product && fold::dtype(x, &program.buffers).is_float() || matches!(x, Expr::Call(..)));
        });
        if !plain {
            return false;
        }
        for (buffer, _) in visit::loads(&e) {
            if seen.contains(&buffer) {
                continue;
            }
            seen.push(buffer);
            for part in parts(program) {
                let sums = crate::tree::all_realizes(part).iter().any(|r| r.block.init.is_some());
                visit::walk_stmt(part, &mut |s| match s {
                    Stmt::Store { buffer: b, value, .. } if *b == buffer && !sums => open.push(value.clone()),
                    _ => {}
                });
            }
        }
    }
    true
}

/// Whether something besides this part of a program reads a buffer.
fn read_elsewhere(program: &Program, own: &Stmt, buffer: BufferId) -> bool {
    let mut found = false;
    for part in parts(program).into_iter().filter(|part| *part != own) {
        visit::walk_stmt_exprs(part, &mut |e| found |= visit::loads(e).iter().any(|(b, _)| *b == buffer));
    }
    found
}

fn cast(e: Expr, to: DType, program: &Program) -> Expr {
    fold::cast(e.clone(), to, &program.buffers).unwrap_or(e)
}
