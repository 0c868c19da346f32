//! The rule about what results are made of: through all buffers in between, each parameter depends on the parameters that
//! it depends on in the source. What the source writes before it reads it is such a buffer in between, be it a parameter.
use super::view::{unsound, View};
use crate::schedule::Result;
use satune_ir::BufferId;
use std::collections::{HashMap, HashSet};

/// Rule 10.
pub(super) fn same(source: &View, scheduled: &View) -> Result<()> {
    // Intrinsics say nothing of what they read.
    if !source.walk.opaque.is_empty() || !scheduled.walk.opaque.is_empty() {
        return Ok(());
    }
    let (before, after) = (direct(source), direct(scheduled));
    for (at, (old, new)) in source.program.params.iter().zip(&scheduled.program.params).enumerate() {
        let was = of(*old, &before, &source.program.params);
        let is = of(*new, &after, &scheduled.program.params);
        let given = |other: &&usize| source.program.params.get(**other).is_some_and(|b| source.read_first.contains(b));
        let Some(other) = was.symmetric_difference(&is).filter(given).min() else { continue };
        let name = |at: usize| source.program.params.get(at).map_or("", |b| source.program.buffer(*b).name.as_str());
        let no = if is.contains(other) { "now depends" } else { "no longer depends" };
        return Err(unsound(format!("{} {no} on {}", name(at), name(*other)), None));
    }
    Ok(())
}

/// The buffers of which the values that are stored in a buffer are made.
fn direct(view: &View) -> HashMap<BufferId, HashSet<BufferId>> {
    let mut out: HashMap<BufferId, HashSet<BufferId>> = HashMap::new();
    for store in view.walk.accesses.iter().filter(|a| a.write) {
        out.entry(store.buffer).or_default().extend(store.operands().into_iter().map(|(b, _)| b));
    }
    out
}

/// The parameters, by number, that a buffer depends on.
fn of(buffer: BufferId, direct: &HashMap<BufferId, HashSet<BufferId>>, params: &[BufferId]) -> HashSet<usize> {
    let (mut seen, mut next) = (HashSet::new(), vec![buffer]);
    while let Some(b) = next.pop() {
        for &read in direct.get(&b).into_iter().flatten() {
            if seen.insert(read) {
                next.push(read);
            }
        }
    }
    // What a parameter depends on through itself alone is told by its updates.
    seen.remove(&buffer);
    params.iter().enumerate().filter(|(_, b)| seen.contains(b)).map(|(at, _)| at).collect()
}
