//! An index that guards leave one value, as that value: an axis of extent 1 that is tiled wider is indexed by the thread
//! here, and by 0 there, behind the same guard.
use super::linear::{Linear, Ranges};
use super::matrix::is_private;
use super::nest::{Leaf, Nest};
use super::pred::{range_under, Pred};
use satune_ir::{BufferId, Program};
use std::collections::{HashMap, HashSet};

/// Replaces such indices.
///
/// Memory of one thread keeps indices that name the same thread everywhere, since they are dropped; where they differ, a
/// guard on another form counts, too: `tx // 2` is 0 where `tx < 2`. Other memory has copies whose guard counts the elements
/// that they reach, and whose indices are its digits (see [`super::guards`]): there the index itself has to be guarded.
pub fn pin(nest: &mut Nest, program: &Program) {
    let threads: HashSet<_> = nest.threads.iter().map(|t| t.var).collect();
    let is_thread = |v| threads.contains(&v);
    let mut owners: HashMap<(BufferId, usize), Linear> = HashMap::new();
    let mut mixed: HashSet<(BufferId, usize)> = HashSet::new();
    let mut note = |b: BufferId, at: &[Linear]| {
        for (d, form) in at.iter().enumerate() {
            let (own, _) = form.partition(&|atom| atom.uses(&is_thread));
            if *owners.entry((b, d)).or_insert_with(|| own.clone()) != own {
                mixed.insert((b, d));
            }
        }
    };
    nest.leaves(&mut |leaf, _| {
        note(leaf.target, &leaf.at);
        leaf.reads.iter().for_each(|(b, at)| note(*b, at));
    });
    let ranges = std::mem::take(&mut nest.ranges);
    nest.leaves_mut(&mut |leaf| {
        let Leaf { guards, target, at, reads, .. } = leaf;
        for (b, at) in reads.iter_mut().map(|(b, at)| (*b, at)).chain([(*target, at)]) {
            let local = is_private(&program.buffer(b).scope);
            for (d, form) in at.iter_mut().enumerate() {
                let value = match local {
                    true if mixed.contains(&(b, d)) => {
                        let (lo, hi) = range_under(form, guards, &ranges);
                        (lo == hi).then_some(lo)
                    }
                    true if form.uses(&is_thread) => None,
                    _ => guarded(form, guards, &ranges),
                };
                if let Some(value) = value {
                    *form = Linear::of(value);
                }
            }
        }
    });
    nest.ranges = ranges;
}

/// The one value that a guard on the form, up to a constant, leaves it.
fn guarded(form: &Linear, guards: &[Pred], ranges: &Ranges) -> Option<i64> {
    guards.iter().find_map(|guard| {
        let Pred::Lt(e, bound) = guard else { return None };
        let least = e.range(ranges).0;
        let rest = form.plus(e, -1).as_constant()?;
        (least == bound - 1).then(|| least.saturating_add(rest))
    })
}
