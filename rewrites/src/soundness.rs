//! What a scheduled program must not do, whatever calls made it: a check that looks at the program alone.
//!
//! The verdicts of the primitives are TVM's, and TVM accepts some calls that leave a program which means something else.
//! [`check`] finds those that show in the program:
//!
//! 1. a buffer is accessed that is no parameter, allocated by no block around the access, and no view made by one; or it
//!    has a shape that is not constant;
//! 2. a buffer is read before anything was written to it, though the source wrote it first (or did not have it); or a
//!    parameter is written before it is read, though the source read it first;
//! 3. an element of a parameter that the source writes is not written, or one is written that the source does not write;
//! 4. an instance of a block has an iterator outside of its domain;
//! 5. an instance of a block reads an element that no instance before it has written, while the memory of its buffer lasts
//!    ([`lived`]);
//! 6. a variable is used where nothing binds it;
//! 7. an instance of a block accesses an element outside of a buffer;
//! 8. an element is updated (`B[i] = B[i] + ...`) twice with the same values, and not set anew in between;
//! 9. an element is read before all of its updates were made, or after it was set anew and they were not made again,
//!    by something whose result is seen;
//! 10. a parameter no longer depends on one that it depends on in the source, or depends on another;
//! 11. a reduction does more in a step than to combine what it has with something, by one operation.
//!
//! 4 and 7 are searched for among all instances. Of 3, 5, 8 and 9 a few instances are looked at (at the ends of the loops,
//! within the guards, and some at random; for 8 also the last update before a read); for each of these the instances before
//! and after it are searched exactly. A rule that the source breaks itself is not asked. Where integers that are
//! given decide which element is accessed, 4, 5 and 7 are asked for some of their values. What else depends on the values of
//! buffers, or takes too long to search, is taken for right: the check refuses nothing that is right but for reads of
//! unwritten elements whose values do not matter, and may miss what is wrong.
use crate::schedule::Result;
use data::Data;
pub use lifetimes::lived;
use samples::Samples;
use satune_ir::Program;
use std::collections::HashSet;
use view::{unsound, Rule, View};
use walk::Walk;
pub use whole::makes_all;

mod copies;
mod data;
mod lifetimes;
mod order;
mod origins;
mod places;
mod reads;
mod samples;
mod search;
mod span;
mod steps;
mod updates;
mod view;
mod walk;
mod whole;

/// Rules 4, 5, 7, 8 and 9, the quick ones first.
const RULES: [Rule; 5] = [places::domains, places::inside, reads::written, updates::once, updates::whole];

/// The number of the first rule about sums.
const SUMS: usize = 3;

/// A program to which scheduled ones are compared.
#[derive(Clone, Debug)]
pub struct Source {
    program: Program,
    /// Which of the rules it keeps itself.
    keeps: [bool; RULES.len()],
    /// Whether it keeps them where memory lasts only as long as it is needed.
    lived: bool,
    data: Data,
}

impl Source {
    /// A source, with what it does itself.
    pub fn new(program: Program) -> Source {
        let kept = |program: &Program| {
            let walk = Walk::of(program);
            let (view, mut samples) = (View::of(program, &walk, &walk), Samples::default());
            RULES.map(|rule| rule(&view, &mut samples).is_ok())
        };
        let (keeps, short) = (kept(&program), lived(&program));
        let lived = kept(&short) == keeps;
        let program = if lived { short } else { program };
        let data = Data::of(&program, &Walk::of(&program), &RULES[..SUMS]);
        Source { program, keeps, lived, data }
    }

    /// Refuses a program that is certainly not what the source is.
    ///
    /// # Errors
    /// The first thing found, of those that the module lists.
    pub fn check(&self, scheduled: &Program) -> Result<()> {
        let short = self.lived.then(|| lived(scheduled));
        let scheduled = short.as_ref().unwrap_or(scheduled);
        let (before, after) = (Walk::of(&self.program), Walk::of(scheduled));
        names(scheduled, &before, &after)?;
        order(&self.program, scheduled, &before, &after)?;
        let (source, view) = (View::of(&self.program, &before, &before), View::of(scheduled, &after, &before));
        let mut samples = Samples::default();
        for (number, rule) in RULES.iter().enumerate().filter(|(number, _)| self.keeps[*number]) {
            let Err(refusal) = rule(&view, &mut samples) else { continue };
            // A copy of a part of a sum is no result that is read too soon.
            let without = (number >= SUMS).then(|| copies::without(scheduled)).flatten().ok_or(refusal.clone())?;
            let walk = Walk::of(&without);
            rule(&View::of(&without, &walk, &before), &mut Samples::default()).map_err(|_| refusal)?;
        }
        self.data.check(scheduled, &before, &RULES[..SUMS])?;
        reads::results(&source, &view)?;
        steps::pure(&self.program, scheduled)?;
        origins::same(&source, &view)
    }
}

/// [`Source::check`], once.
///
/// # Errors
/// The first thing found, of those that the module lists.
pub fn check(source: &Program, scheduled: &Program) -> Result<()> {
    Source::new(source.clone()).check(scheduled)
}

/// Refuses a program that breaks rule 4, 5 or 7 by itself: what it means is not known. That of one which breaks rules about sums
/// is what its statements do in their order.
///
/// # Errors
/// The first thing found.
pub fn readable(program: &Program) -> Result<()> {
    let walk = Walk::of(program);
    let view = View::of(program, &walk, &walk);
    RULES[..SUMS].iter().try_for_each(|rule| rule(&view, &mut Samples::default()))
}

/// Rules 1 and 6.
fn names(scheduled: &Program, before: &Walk, after: &Walk) -> Result<()> {
    if let Some((buffer, block)) = after.unknown {
        let name = &scheduled.buffer(buffer).name;
        let why = format!("{name} is accessed, but it is no parameter and no block around the access allocates it");
        return Err(unsound(why, block));
    }
    for access in after.accesses.iter().filter(|a| !before.depth.contains_key(&a.buffer)) {
        let buffer = scheduled.buffer(access.buffer);
        let constant = buffer.shape.iter().all(|d| crate::arith::constant(d).is_some());
        if !constant && after.depth.contains_key(&access.buffer) {
            let why = format!("the shape of {} is not constant", buffer.name);
            return Err(unsound(why, access.block()));
        }
    }
    if let (None, Some((var, block))) = (before.unbound, after.unbound) {
        return Err(unsound(format!("{} is used where nothing binds it", var.name), block));
    }
    Ok(())
}

/// Rule 2.
fn order(source: &Program, scheduled: &Program, before: &Walk, after: &Walk) -> Result<()> {
    let mut seen = HashSet::new();
    for access in &after.accesses {
        if !seen.insert(access.buffer) || after.opaque.contains(&access.buffer) {
            continue;
        }
        let name = &scheduled.buffer(access.buffer).name;
        let parameter = scheduled.params.contains(&access.buffer);
        let known = (access.buffer.0 as usize) < source.buffers.len();
        let first = known.then(|| before.written_first(access.buffer)).flatten();
        if !access.write && first != Some(false) && (first == Some(true) || !parameter) {
            return Err(unsound(format!("{name} is read before anything is written to it"), access.block()));
        }
        if access.write && first == Some(false) && parameter {
            return Err(unsound(format!("{name} is overwritten before it is read"), access.block()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
