//! Which threads decide where a statement stores and whether, by what they have read: a store is refused where data of several
//! threads may choose one element.
//!
//! ```text
//!   C[X[i]] = ...                         thread i decides: refused
//!   held[0] = X[i] * X[i] % 8             (see `held`)
//!   C[held[0]] = ...                      what a register holds its thread decides: refused
//!   if held[0] > 3: C[5] = ...            refused
//!   C[i, held[0]] = ...                   right: `i` tells the threads apart
//! ```
use super::barrier::owner;
use super::error::{LowerError, Place};
use super::linear::{Atom, Linear};
use super::nest::{Leaf, Nest, Thread};
use satune_ir::{BufferId, Program, VarId};
use std::collections::{BTreeSet, HashMap};

pub struct Deciding<'n> {
    nest: &'n Nest,
    program: &'n Program,
    /// The threads that decide what a local buffer holds.
    registers: HashMap<BufferId, BTreeSet<VarId>>,
}

impl<'n> Deciding<'n> {
    pub fn of(nest: &'n Nest, program: &'n Program) -> Deciding<'n> {
        let mut out = Deciding { nest, program, registers: HashMap::new() };
        let mut leaves: Vec<&Leaf> = Vec::new();
        nest.leaves(&mut |leaf, _| leaves.push(leaf));
        if leaves.iter().all(|leaf| leaf.data().is_empty()) {
            return out;
        }
        leaves.retain(|leaf| program.buffer(leaf.target).scope == "local");
        loop {
            let before: usize = out.registers.values().map(BTreeSet::len).sum();
            for leaf in &leaves {
                let own = nest.threads.iter().filter(|t| leaf.uses(t.var)).map(|t| t.var);
                let read = leaf.reads.iter().filter_map(|(b, _)| out.registers.get(b)).flatten().copied();
                let all: BTreeSet<VarId> = own.chain(read).collect();
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

    /// Whether no two threads store to one element because of what they have read.
    pub fn check(&self) -> Result<(), LowerError> {
        let mut wrong = None;
        self.nest.leaves(&mut |leaf, _| {
            if wrong.is_none() && !self.apart(leaf) {
                wrong = Some(leaf);
            }
        });
        let Some(leaf) = wrong else { return Ok(()) };
        Err(LowerError::Unsupported {
            what: format!("a store to {} that data of several threads decide", self.program.buffer(leaf.target).name),
            place: Place::block(&leaf.block),
            remedy: "they may choose one element: let its other indices tell the threads apart, or leave the loops that index the data serial".into(),
        })
    }

    fn apart(&self, leaf: &Leaf) -> bool {
        let scope = self.program.buffer(leaf.target).scope.as_str();
        let mut data = Vec::new();
        leaf.at.iter().for_each(|form| form.loads(&mut data));
        leaf.guards.iter().for_each(|p| p.loads(&mut data));
        let decide: BTreeSet<VarId> = data.iter().flat_map(|atom| self.threads_of(atom)).collect();
        let sees = |t: &&Thread| t.extent > 1 && decide.contains(&t.var) && (t.block || scope == "global");
        let threads: Vec<&Thread> = self.nest.threads.iter().filter(sees).collect();
        scope == "local" || threads.is_empty() || self.told(&leaf.at, &threads).is_some()
    }
}
