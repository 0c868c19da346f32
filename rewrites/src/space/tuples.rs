//! Reductions with several results, as reductions with one result each.
//!
//! before                                                  after
//!   s, q = S[i] + A[i, k], Q[i] + A[i, k] * A[i, k]         S[i] = S[i] + A[i, k]
//!   S[i], Q[i] = s, q                                       Q[i] = Q[i] + A[i, k] * A[i, k]
//!
//! Threads share reductions of one result: of several there is a thread per row. A result of whose values no other one is made, and
//! which is made of no other one's, is a reduction by itself: the same values, in the same order.
//!
//! It is done where each of the new blocks sums up rows as they lie in memory. Such blocks have a kernel with several threads per
//! row, which reads the row once for all of them. Other blocks would read once each what the one reads once, and stay as they are; so do
//! those of very many rows of a few elements.
mod extremum;
mod results;

use super::nests::{block_of, parts};
use crate::tree::all_realizes;
use extremum::Extremum;
use results::{results, Nests, Reduced};
use satune_ir::{Program, Stmt};
use std::collections::BTreeSet;

/// The same program with blocks of one result each for its reductions of several, where `sums_rows` takes all of these.
pub(super) fn taken_apart(program: &Program, sums_rows: impl Fn(&Program, &Stmt) -> bool) -> Program {
    let mut out = program.clone();
    let mut made = Vec::new();
    let mut taken = all_realizes(&program.body.block.body).into_iter().map(|r| r.block.name.clone()).collect();
    for part in parts(program) {
        let several = block_of(program, part).ok().and_then(|block| Some((block, results(block)?)));
        let nests = several.and_then(|(block, results)| {
            let mut nests = Nests { out: out.clone(), block, taken: BTreeSet::clone(&taken), made: Vec::new() };
            apart(&mut nests, part, &results)?;
            let reduces = |nest: &&Stmt| all_realizes(nest).iter().any(|r| r.block.init.is_some());
            nests.made.iter().filter(reduces).all(|nest| sums_rows(&nests.out, nest)).then_some(nests)
        });
        match nests {
            Some(nests) => {
                made.extend(nests.made);
                (out, taken) = (nests.out, nests.taken);
            }
            None => made.push(part.clone()),
        }
    }
    out.body.block.body = Box::new(Stmt::seq(made));
    out
}

/// A block for each result that is made of no other, and of which no other is made; the rest is an extremum and its place.
fn apart(nests: &mut Nests<'_>, part: &Stmt, results: &[Reduced]) -> Option<()> {
    let alone = |r: &Reduced| {
        let mut others = results.iter().filter(|other| other.buffer != r.buffer);
        !others.any(|other| r.reads(other) || other.reads(r))
    };
    let (alone, together): (Vec<Reduced>, Vec<Reduced>) = results.iter().cloned().partition(alone);
    alone.iter().for_each(|r| nests.reduction(r, &r.start, &r.value));
    match together[..] {
        [] => Some(()),
        _ => Extremum::of(&nests.out, nests.block, &together)?.nests(nests, part),
    }
}

#[cfg(test)]
mod tests;
