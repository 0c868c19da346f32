//! Which threads decide where a statement stores and whether, by what they have read: a store is refused where data of several
//! threads may choose one element.
//!
//! ```text
//!   C[X[i]] = ...                         thread i decides: refused
//!   held[0] = X[i] * X[i] % 8             (see `held`)
//!   C[held[0]] = ...                      what a register holds its thread decides: refused
//!   if held[0] > 3: C[5] = ...            refused
//!   C[i, held[0]] = ...                   right: `i` tells the threads apart
//!
//!   held[0] = X[i]
//!   C[0] = held[0]                        each thread holds another value, and one of them would store its own: refused
//! ```
use super::allreduce::Reduction;
use super::barrier::owner;
use super::error::{At, LowerError};
use super::linear::{Atom, Linear};
use super::matrix::is_private;
use super::nest::{Leaf, Nest, Thread};
use super::pred::range_under;
use satune_ir::{BufferId, Program, VarId};
use std::collections::{BTreeSet, HashMap};

pub struct Deciding<'n> {
    nest: &'n Nest,
    program: &'n Program,
    /// The threads that decide what a local buffer holds.
    registers: HashMap<BufferId, BTreeSet<VarId>>,
}

impl<'n> Deciding<'n> {
    pub fn of(nest: &'n Nest, program: &'n Program, reductions: &[Reduction]) -> Deciding<'n> {
        let mut out = Deciding { nest, program, registers: HashMap::new() };
        let mut leaves: Vec<&Leaf> = Vec::new();
        nest.leaves(&mut |leaf, _| leaves.push(leaf));
        leaves.retain(|leaf| is_private(&program.buffer(leaf.target).scope));
        loop {
            let before: usize = out.registers.values().map(BTreeSet::len).sum();
            for leaf in &leaves {
                let own = nest.threads.iter().filter(|t| leaf.uses(t.var)).map(|t| t.var);
                let read = leaf.reads.iter().filter_map(|(b, _)| out.registers.get(b)).flatten().copied();
                let mut all: BTreeSet<VarId> = own.chain(read).collect();
                // Those that reduce together end with the same value, and their exchange is where each team has its own place for it.
                if let Some(reduction) = reductions.iter().find(|r| r.partial == leaf.target) {
                    if leaf.reads.iter().any(|(b, _)| Some(*b) == reduction.exchange) {
                        continue;
                    }
                    all.retain(|v| nest.thread(*v).is_none_or(|t| !reduction.team.differ_in(&t.tag)));
                }
                out.registers.entry(leaf.target).or_default().extend(all);
            }
            if out.registers.values().map(BTreeSet::len).sum::<usize>() == before {
                return out;
            }
        }
    }

    /// The threads that decide an element which stands in an index or a condition.
    fn threads_of(&self, atom: &Atom) -> BTreeSet<VarId> {
        let mut found: BTreeSet<VarId> = self.registers_in(atom).flatten().copied().collect();
        atom.vars(&mut |v| found.extend(self.nest.thread(v).map(|t| t.var)));
        found
    }

    fn registers_in<'s>(&'s self, atom: &Atom) -> impl Iterator<Item = &'s BTreeSet<VarId>> {
        let mut loads = Vec::new();
        atom.loads(&mut loads);
        loads.into_iter().filter_map(|load| match load {
            Atom::Load(b, ..) => self.registers.get(&b),
            _ => None,
        })
    }

    /// The part of each index that threads decide.
    pub fn parts(&self, at: &[Linear]) -> Vec<Linear> {
        at.iter().map(|form| form.partition(&|atom| !self.threads_of(atom).is_empty()).0).collect()
    }

    /// The indices that tell these threads apart, without those that data or a loop decide: statements that have them in common
    /// access one element in one thread only. None where they do not tell them.
    pub fn told(&self, at: &[Linear], threads: &[&Thread]) -> Option<Vec<(usize, Linear)>> {
        let of_threads = |form: &Linear| form.terms.iter().all(|(a, _)| !a.is_data() && self.only_threads(a));
        let own: Vec<(usize, Linear)> = at.iter().cloned().enumerate().filter(|(_, form)| of_threads(form)).collect();
        let (mut number, mut unit) = (Linear::of(0), 1_i64);
        for (_, form) in own.iter().rev() {
            let falls = form.terms.iter().all(|(_, c)| *c < 0);
            let form = if falls { form.scaled(-1) } else { form.clone() };
            let (lo, hi) = form.range(&self.nest.ranges);
            number = number.plus(&form.shifted(lo.saturating_neg()), unit);
            unit = unit.checked_mul(hi.checked_sub(lo)?.checked_add(1)?).filter(|unit| *unit < 1 << 40)?;
        }
        owner(&[number.joined(&self.nest.ranges)], threads, &self.nest.ranges).map(|_| own)
    }

    fn only_threads(&self, atom: &Atom) -> bool {
        !atom.uses(&|v| self.nest.thread(v).is_none())
    }

    /// Whether no two threads store to one element because of what they have read, and none stores for others that hold
    /// something else.
    pub fn check(&self) -> Result<(), LowerError> {
        let mut found = Ok(());
        self.nest.leaves(&mut |leaf, _| {
            if found.is_ok() {
                found = self.check_leaf(leaf);
            }
        });
        found
    }

    fn check_leaf(&self, leaf: &Leaf) -> Result<(), LowerError> {
        let name = &self.program.buffer(leaf.target).name;
        let (what, remedy) = if !self.apart(leaf) {
            let remedy = "they may choose one element: let its other indices tell the threads apart, or leave the loops that index the data serial";
            (format!("a store to {name} that data of several threads decide"), remedy)
        } else if !self.agreed(leaf) {
            let remedy = "let its index tell the threads apart, or reduce over them";
            (format!("a store to an element of {name} of what several threads hold, each its own value"), remedy)
        } else {
            return Ok(());
        };
        Err(LowerError::Unsupported { what, place: At::block(&leaf.block), remedy: remedy.into() })
    }

    /// Threads of more than one that see the same memory of this scope.
    fn seeing<'s>(&'s self, scope: &'s str) -> impl Iterator<Item = &'s Thread> {
        self.nest.threads.iter().filter(move |t| t.extent > 1 && !is_private(scope) && (t.block || scope == "global"))
    }

    fn apart(&self, leaf: &Leaf) -> bool {
        let mut data = Vec::new();
        leaf.at.iter().for_each(|form| form.loads(&mut data));
        leaf.guards.iter().for_each(|p| p.loads(&mut data));
        let decide: BTreeSet<VarId> = data.iter().flat_map(|atom| self.threads_of(atom)).collect();
        let scope = &self.program.buffer(leaf.target).scope;
        // A guard may leave one thread of many: the kernel of one row.
        let many = |t: &&Thread| {
            let (lo, hi) = range_under(&Linear::var(t.var), &leaf.guards, &self.nest.ranges);
            lo < hi
        };
        let threads: Vec<&Thread> = self.seeing(scope).filter(|t| decide.contains(&t.var)).filter(many).collect();
        threads.is_empty() || self.told(&leaf.at, &threads).is_some()
    }

    /// Whether threads of which one stores for all would store the same.
    fn agreed(&self, leaf: &Leaf) -> bool {
        let held = |v: VarId| leaf.reads.iter().any(|(b, _)| self.registers.get(b).is_some_and(|r| r.contains(&v)));
        self.seeing(&self.program.buffer(leaf.target).scope).all(|t| leaf.uses(t.var) || !held(t.var))
    }
}
