//! Shared memory: which bytes each buffer has. Buffers that are not alive at the same time may have the same.
//!
//! A buffer is alive from the first statement that accesses it to the last, statements counted in order and outermost
//! loops taken whole. It takes the lowest bytes that no buffer has which is alive at the same time. A buffer that takes
//! over bytes costs a barrier before it, so small ones, as threads exchange partial results through, keep their own.
use super::error::LowerError;
use super::nest::{Nest, Node};
use crate::kernel::{Array, ArrayId, Space};
use satune_ir::BufferId;
use std::collections::HashMap;

/// Bytes below which a buffer keeps its own.
const SMALL: u64 = 512;

/// Whether buffers of a scope are in shared memory.
pub fn is_shared(scope: &str) -> bool {
    matches!(scope, "shared" | "shared.dyn")
}

/// A shared array.
struct Item {
    buffer: BufferId,
    array: usize,
    /// First and last top-level statement.
    life: (usize, usize),
    start: u64,
    bytes: u64,
    align: u64,
}

/// Assigns offsets to the shared arrays; the bytes of a block in all, and for each buffer those that have bytes of it at
/// other times.
pub fn place<'a>(
    nest: &Nest,
    arrays: &mut [Array],
    places: impl Iterator<Item = (BufferId, &'a ArrayId)>,
    (most, may_share): (u64, bool),
) -> Result<(u32, HashMap<BufferId, Vec<BufferId>>), LowerError> {
    let lives = lives(nest);
    let mut items: Vec<Item> = places
        .filter_map(|(buffer, id)| {
            let array = arrays.get(id.0 as usize).filter(|a| a.space == Space::Shared)?;
            let bytes = array.len.saturating_mul(u64::from(array.dtype.bytes()));
            let life = if bytes < SMALL || !may_share { None } else { lives.get(&buffer).copied() };
            let life = life.unwrap_or((0, usize::MAX));
            Some(Item { buffer, array: id.0 as usize, life, start: 0, bytes, align: array.align.into() })
        })
        .collect();
    items.sort_by_key(|i| i.array);
    let mut end = 0;
    for i in 0..items.len() {
        let (placed, rest) = items.split_at_mut(i);
        let Some(item) = rest.first_mut() else { break };
        let meets = |a: (usize, usize), b: (usize, usize)| a.0 <= b.1 && b.0 <= a.1;
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|p| meets(p.life, item.life))
            .map(|p| (p.start, p.start.saturating_add(p.bytes)))
            .collect();
        taken.sort_unstable();
        for (from, to) in taken {
            if item.start.saturating_add(item.bytes) > from {
                item.start = item.start.max(to.next_multiple_of(item.align));
            }
        }
        end = end.max(item.start.saturating_add(item.bytes));
    }
    let bytes = within(arrays, end, most)?;
    let mut sharing: HashMap<BufferId, Vec<BufferId>> = HashMap::new();
    for a in &items {
        if let Some(array) = arrays.get_mut(a.array) {
            array.shared_offset = a.start as u32;
        }
        for b in items.iter().filter(|b| b.array != a.array) {
            if a.start < b.start + b.bytes && b.start < a.start + a.bytes {
                sharing.entry(a.buffer).or_default().push(b.buffer);
            }
        }
    }
    Ok((bytes, sharing))
}

/// What shared arrays take together, where a block has as much.
///
/// # Errors
/// Where it has not.
pub fn within(arrays: &[Array], bytes: u64, most: u64) -> Result<u32, LowerError> {
    u32::try_from(bytes).ok().filter(|_| bytes <= most).ok_or_else(|| {
        let of = |a: &Array| format!("{} {}", a.name, a.len.saturating_mul(u64::from(a.dtype.bytes())));
        let list: Vec<String> = arrays.iter().filter(|a| a.space == Space::Shared).map(of).collect();
        LowerError::SharedMemory { bytes, most, list: list.join(", ") }
    })
}

/// First and last top-level statement that accesses each buffer.
fn lives(nest: &Nest) -> HashMap<BufferId, (usize, usize)> {
    fn note(node: &Node, at: usize, out: &mut HashMap<BufferId, (usize, usize)>) {
        match node {
            Node::Loop(l) => l.body.iter().for_each(|n| note(n, at, out)),
            Node::Leaf(leaf) => {
                for b in leaf.reads.iter().map(|(b, _)| *b).chain([leaf.target]) {
                    let life = out.entry(b).or_insert((at, at));
                    life.1 = at;
                }
            }
            Node::Barrier => {}
        }
    }
    let mut out = HashMap::new();
    nest.body.iter().enumerate().for_each(|(at, node)| note(node, at, &mut out));
    out
}
