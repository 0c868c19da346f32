//! Which guards of a statement stay, which become zeros, and which go.
//!
//! **The proof.** Call an element of a buffer on the chip *beyond* when its index lies past the buffer's logical shape:
//! no access of the program touches it, it exists only because tiles are allocated whole. So
//! 1. a guard `index < shape` on the very index that a statement writes (its *own* guard) only keeps beyond elements
//!    unwritten. Writing them changes nothing that the program sees, provided that evaluating the value is safe: loads
//!    from global memory are made conditional (the copy writes zeros instead), loads from the chip read memory that is
//!    always written (the buffer is *full*: its writers reach all that is read, and have no guards left but those that
//!    mask a copy's surplus instances);
//!    A copy from global memory that alone writes a buffer may write zeros under any guard that the element decides: an element that
//!    it leaves out is written by nobody, and so read by nobody (a swizzled tile's are not beyond its shape);
//! 2. a buffer is *zeroed* when every writer leaves zeros in all beyond elements: copies from global memory under own
//!    guards for each dimension that may run over, copies of zeroed buffers along the same dimension, and zeros;
//! 3. a guard of `x += f` that fails only where *every* element that f combines is read from a beyond element of a full and
//!    zeroed buffer can go, if f of zeros is 0 (a product, a difference): 0 is added. A minimum is none: 0 is not neutral there. Where other threads see the sum, only if it does not tell threads apart: one that
//!    it keeps out would add 0 to an element while another adds to it.
//!
//! The assumptions "full" and "zeroed" start true for all buffers and are withdrawn until nothing changes, which is
//! sound by induction over the order of execution. A guard on a write to global memory always stays.
use super::element::decides;
use super::layout::BufferLayout;
use super::linear::{Atom, Linear, Ranges};
use super::matrix::{is_private, one_warp};
use super::nest::{Leaf, Nest, Thread};
use super::pred::{join, range_of_parts, Pred};
use super::tensor_memory::is_tensor;
use satune_ir::{fold, visit, BinOp, BufferId, Expr, Program};
use std::collections::{HashMap, HashSet};

/// What became of a statement's guards.
#[derive(Clone, Debug, Default)]
pub struct Guarding {
    /// The statement runs where these hold.
    pub when: Vec<Pred>,
    /// It writes zeros where these do not hold.
    pub zero: Vec<Pred>,
}

/// Decides for every leaf.
pub fn decide(nest: &Nest, program: &Program, layouts: &HashMap<BufferId, BufferLayout>) -> HashMap<usize, Guarding> {
    let on_chip: HashSet<BufferId> = layouts.keys().copied().filter(|b| program.buffer(*b).scope != "global").collect();
    let mut proof = Proof {
        program,
        nest,
        ranges: &nest.ranges,
        full: on_chip.iter().copied().filter(|b| layouts.get(b).is_some_and(|l| l.covered)).collect(),
        zeroed: on_chip.clone(),
        on_chip,
    };
    loop {
        let mut out = HashMap::new();
        let before = (proof.full.len(), proof.zeroed.len());
        nest.leaves(&mut |leaf, _| {
            let guarding = proof.leaf(leaf);
            if proof.on_chip.contains(&leaf.target) {
                let all = guarding.when.iter().all(|p| proof.surplus(leaf, p));
                if !all {
                    proof.full.remove(&leaf.target);
                }
                if !all || !proof.leaves_zeros(leaf, &guarding) {
                    proof.zeroed.remove(&leaf.target);
                }
            }
            out.insert(leaf.id, guarding);
        });
        if before == (proof.full.len(), proof.zeroed.len()) {
            nest.leaves(&mut |leaf, _| {
                if let Some(guarding) = out.get_mut(&leaf.id) {
                    join(&mut guarding.when, one_thread(nest, program, leaf));
                }
            });
            return out;
        }
    }
}

/// Whether a statement may run, or write zeros, where a guard does not hold: what it then touches must have memory. `write`: it writes there;
/// what it reads it reads where it writes no zeros.
pub fn may_go(nest: &Nest, program: &Program, leaf: &Leaf, guard: &Pred, write: bool) -> bool {
    let none = HashSet::new;
    let proof = Proof { program, nest, ranges: &nest.ranges, full: none(), zeroed: none(), on_chip: none() };
    let from_global = leaf.reads.iter().any(|(b, _)| program.buffer(*b).scope == "global");
    let own = proof.past(guard, leaf.target, &leaf.at);
    match from_global && !leaf.accumulates() {
        true => write && (own || proof.left_out(leaf, guard)),
        false => own,
    }
}

/// Memory that several threads see is written by one of those that would write the same.
fn one_thread(nest: &Nest, program: &Program, leaf: &Leaf) -> Vec<Pred> {
    let (of_block, of_grid) = match program.buffer(leaf.target).scope.as_str() {
        // Who multiplies in tensor memory, the instruction decides.
        scope if is_private(scope) || is_tensor(scope) => (false, false),
        "global" => (true, true),
        _ => (true, false),
    };
    let idle = nest.threads.iter().filter(|t| {
        let sees = if t.block { of_block } else { of_grid };
        sees && t.extent > 1 && !nest.uses(leaf, t)
    });
    let first = |t: &Thread| one_warp(nest, leaf, t.var).unwrap_or_else(|| Pred::eq(&Linear::var(t.var), &nest.ranges));
    idle.flat_map(first).collect()
}

/// Extent of a buffer along a dimension of an index, which may have more dimensions in front.
pub fn shape(program: &Program, buffer: BufferId, rank: usize, d: usize) -> Option<i64> {
    let shape = &program.buffer(buffer).shape;
    match shape.get((d + shape.len()).checked_sub(rank)?) {
        Some(Expr::Int(v, _)) => Some(*v),
        _ => None,
    }
}

/// The clauses that an index into a global buffer needs beyond what is known.
pub fn missing(program: &Program, buffer: BufferId, at: &[Linear], known: &[Pred], ranges: &Ranges) -> Vec<Pred> {
    let mut out = Vec::new();
    for (d, index) in at.iter().enumerate() {
        let Some(extent) = shape(program, buffer, at.len(), d) else { continue };
        let (lo, hi) = range_of_parts(index, known, ranges);
        if hi >= extent {
            join(&mut out, Pred::lt(&index.shifted(-extent), ranges));
        }
        if lo < 0 {
            join(&mut out, Pred::lt(&index.scaled(-1).shifted(-1), ranges));
        }
    }
    out
}

/// The load that an expression is, under casts.
fn loaded(e: &Expr) -> Option<BufferId> {
    match e {
        Expr::Load(b, _) => Some(*b),
        Expr::Cast(_, a) => loaded(a),
        _ => None,
    }
}

/// The sum so far and what is added to it, of `target + f`.
fn added<'e>(leaf: &Leaf, value: &'e Expr) -> Option<(&'e Expr, &'e Expr)> {
    let Expr::Binary(BinOp::Add, x, y) = value else { return None };
    let own = |e: &Expr| matches!(e, Expr::Load(b, _) if *b == leaf.target);
    let (sum, rest) = if own(x) { (x, y) } else { (y, x) };
    (own(sum) && leaf.accumulates()).then_some((sum.as_ref(), rest.as_ref()))
}

/// The factors of `target + a * b`.
pub fn product<'e>(leaf: &Leaf, value: &'e Expr) -> Option<(&'e Expr, &'e Expr, &'e Expr)> {
    match added(leaf, value)? {
        (sum, Expr::Binary(BinOp::Mul, a, b)) => Some((sum, a, b)),
        _ => None,
    }
}

/// The value of an expression whose elements are all 0; `None` where that is not known.
fn of_zeros(e: &Expr) -> Option<f64> {
    Some(match e {
        Expr::Load(..) => 0.0,
        Expr::Int(value, _) => *value as f64,
        Expr::Float(bits, _) => f64::from_bits(*bits),
        // 0 is 0 in every type.
        Expr::Cast(_, a) => of_zeros(a).filter(|a| *a == 0.0)?,
        Expr::Call(name, args, _) if name.ends_with("abs") => of_zeros(args.first()?)?.abs(),
        Expr::Binary(op, a, b) => {
            let (a, b) = (of_zeros(a)?, of_zeros(b)?);
            match op {
                BinOp::Add => a + b,
                BinOp::Sub => a - b,
                BinOp::Mul => a * b,
                BinOp::Min => a.min(b),
                BinOp::Max => a.max(b),
                BinOp::BitAnd | BinOp::BitOr | BinOp::BitXor if a == 0.0 && b == 0.0 => 0.0,
                _ => return None,
            }
        }
        _ => return None,
    })
}

/// Threads of a block at most.
const MOST_THREADS: i64 = 1024;

struct Proof<'p> {
    program: &'p Program,
    nest: &'p Nest,
    ranges: &'p Ranges,
    full: HashSet<BufferId>,
    zeroed: HashSet<BufferId>,
    on_chip: HashSet<BufferId>,
}

impl Proof<'_> {
    /// Whether a guard fails only where `at` is past the shape along some dimension.
    fn past(&self, guard: &Pred, buffer: BufferId, at: &[Linear]) -> bool {
        at.iter().enumerate().any(|(d, index)| {
            shape(self.program, buffer, at.len(), d).is_some_and(|extent| self.past_along(guard, index, extent))
        })
    }

    /// Whether a guard fails only where an index is past an extent.
    fn past_along(&self, guard: &Pred, index: &Linear, extent: i64) -> bool {
        self.first_outside(guard, index, extent).is_some_and(|first| first >= extent)
    }

    /// Whether all that a statement would write without a guard is of the buffer, or beyond it by another guard: what is over a tile's
    /// end has no memory.
    fn within(&self, leaf: &Leaf, guard: &Pred) -> bool {
        leaf.at.iter().enumerate().all(|(d, index)| {
            let Some(extent) = shape(self.program, leaf.target, leaf.at.len(), d) else { return false };
            let (first, last) = index.range(self.ranges);
            let beyond = |other: &Pred| other != guard && self.past_along(other, index, extent);
            first >= 0 && (last < extent || leaf.guards.iter().any(beyond))
        })
    }

    /// Whether what a guard of a copy from global memory leaves out is written by nobody.
    fn left_out(&self, leaf: &Leaf, guard: &Pred) -> bool {
        self.written_once(leaf.target) && self.within(leaf, guard) && decides(&leaf.at, guard, self.ranges)
    }

    /// Whether one statement writes a buffer.
    fn written_once(&self, buffer: BufferId) -> bool {
        let mut writers = 0;
        self.nest.leaves(&mut |leaf, _| writers += usize::from(leaf.target == buffer));
        writers == 1
    }

    /// The value of an index from which on a guard fails, and below which it holds. A guard may have lost digits that do not matter:
    /// then it compares the index divided by their unit.
    fn first_outside(&self, guard: &Pred, index: &Linear, extent: i64) -> Option<i64> {
        let Pred::Lt(form, bound) = guard else { return None };
        // Digits of threads and of vectors that the extent is a multiple of.
        (1..=extent.min(MOST_THREADS)).filter(|unit| extent % unit == 0).find_map(|unit| {
            let shift = index.divided(unit, self.ranges).plus(form, -1).as_constant()?;
            bound.checked_add(shift)?.checked_mul(unit)
        })
    }

    fn leaf(&self, leaf: &Leaf) -> Guarding {
        let mut out = Guarding::default();
        if !self.on_chip.contains(&leaf.target) {
            out.when.clone_from(&leaf.guards);
            let more = missing(self.program, leaf.target, &leaf.at, &leaf.guards, self.ranges);
            join(&mut out.when, more);
            return out;
        }
        let from_global = leaf.reads.iter().any(|(b, _)| !self.on_chip.contains(b));
        let chip_safe = leaf.reads.iter().all(|(b, _)| !self.on_chip.contains(b) || self.full.contains(b));
        for guard in &leaf.guards {
            let own = self.past(guard, leaf.target, &leaf.at);
            if own && chip_safe && !from_global {
                continue;
            }
            let zeros = || own || from_global && self.left_out(leaf, guard);
            if chip_safe && !leaf.accumulates() && zeros() {
                out.zero.push(guard.clone());
            } else if !(chip_safe && self.adds_zero(leaf, guard)) {
                out.when.push(guard.clone());
            }
        }
        // A guard that stays protects the rest as well.
        out
    }

    /// Whether a guard `e < bound` on a copy masks only what it writes beyond its tile: `e` counts the tile's elements
    /// and the indices are its quotient and remainder, so that below the bound each element has its instance.
    fn surplus(&self, leaf: &Leaf, guard: &Pred) -> bool {
        let Pred::Lt(e, bound) = guard else { return false };
        if leaf.accumulates() || *bound < 1 || !self.counts(e) || self.counts_owners(leaf, e) {
            return false;
        }
        let apart = |d: usize, part: &Linear| {
            leaf.at.get(d).is_some_and(|index| {
                let rest = index.plus(part, -1);
                let mut free = true;
                e.vars(&mut |v| free &= !rest.uses(&|x| x == v));
                free
            })
        };
        let others_free = |used: &[usize]| (0..leaf.at.len()).all(|d| used.contains(&d) || apart(d, &Linear::of(0)));
        let dims = 0..leaf.at.len();
        dims.clone().any(|d| apart(d, e) && others_free(&[d]))
            || (2..=*bound.min(&4096)).filter(|n| bound % n == 0).any(|n| {
                let (quotient, remainder) = (e.divided(n, self.ranges), e.remainder(n, self.ranges));
                dims.clone().any(|a| {
                    dims.clone().any(|b| a != b && apart(a, &quotient) && apart(b, &remainder) && others_free(&[a, b]))
                })
            })
    }

    /// Whether a form depends on which block (or which thread, of a local buffer) has the memory that is written: then
    /// each has a memory of its own, and some of them stay unwritten.
    fn counts_owners(&self, leaf: &Leaf, form: &Linear) -> bool {
        let local = is_private(&self.program.buffer(leaf.target).scope);
        self.nest.threads.iter().any(|t| (local || !t.block) && form.uses(&|v| v == t.var))
    }

    /// Whether a form takes every value from 0 to its last while its variables run.
    fn counts(&self, form: &Linear) -> bool {
        let mut digits: Vec<(i64, i64)> = Vec::new();
        for (atom, unit) in &form.terms {
            let Atom::Var(v) = atom else { return false };
            match self.ranges.get(v) {
                Some((0, last)) => digits.push((*unit, *last)),
                _ => return false,
            }
        }
        digits.sort_unstable();
        let mut reached = 0_i64;
        form.constant == 0
            && digits.iter().all(|(unit, last)| {
                let dense = *unit > 0 && *unit <= reached.saturating_add(1);
                reached = reached.saturating_add(unit.saturating_mul(*last));
                dense
            })
    }

    /// Point 3 of the proof.
    fn adds_zero(&self, leaf: &Leaf, guard: &Pred) -> bool {
        let shared = !is_private(&self.program.buffer(leaf.target).scope);
        if shared && guard.uses(&|v| self.nest.thread(v).is_some()) {
            return false;
        }
        let Some((_, rest)) = added(leaf, &leaf.value) else { return false };
        let loads = visit::loads(rest);
        let all_beyond = loads.iter().all(|(buffer, _)| {
            let beyond = |at: &[Linear]| self.past(guard, *buffer, at);
            self.zeroed.contains(buffer)
                && self.full.contains(buffer)
                && leaf.reads.iter().filter(|(x, _)| x == buffer).all(|(_, at)| beyond(at))
        });
        !loads.is_empty() && all_beyond && of_zeros(rest) == Some(0.0)
    }

    /// Point 2 of the proof, for one writer.
    fn leaves_zeros(&self, leaf: &Leaf, guarding: &Guarding) -> bool {
        if fold::is_zero(&leaf.value) {
            return true;
        }
        let (Some(source), [(_, from)]) = (loaded(&leaf.value), leaf.reads.as_slice()) else { return false };
        leaf.at.iter().enumerate().all(|(d, index)| {
            let Some(extent) = shape(self.program, leaf.target, leaf.at.len(), d) else { return true };
            if index.range(self.ranges).1 < extent {
                return true;
            }
            let first = |p| self.first_outside(p, index, extent);
            let zero_here = guarding.zero.iter().any(|p| first(p).is_some_and(|first| first <= extent));
            let passed_on = self.zeroed.contains(&source)
                && self.full.contains(&source)
                && from.iter().enumerate().any(|(e, other)| {
                    let k = other.plus(index, -1).as_constant();
                    let theirs = shape(self.program, source, from.len(), e);
                    k.zip(theirs).is_some_and(|(k, theirs)| theirs - k <= extent)
                });
            zero_here || passed_on
        })
    }
}
