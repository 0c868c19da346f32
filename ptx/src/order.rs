//! The order in which lanes of a warp that went different ways wait for each other.
//!
//! Of several groups of lanes the one that is first in this order runs. A loop's blocks stand together, before everything that
//! follows the loop, and otherwise a block stands before those that it leads to: so the block where all ways meet again (the
//! immediate post-dominator) is last among them, and every group arrives there before any goes on.
use crate::syntax::{Instruction, Operand};

/// Position of each instruction.
pub fn order(body: &[Instruction]) -> Vec<u32> {
    let mut leader = vec![false; body.len() + 1];
    if let Some(first) = leader.first_mut() {
        *first = true;
    }
    let jumps = |i: &Instruction| matches!(i.opcode.as_str(), "bra" | "brx" | "ret" | "exit" | "trap");
    for (pc, i) in body.iter().enumerate() {
        if jumps(i) {
            leader[pc + 1] = true;
        }
        for target in targets(i) {
            leader[target as usize] = true;
        }
    }
    let starts: Vec<usize> = (0..body.len()).filter(|pc| leader[*pc]).collect();
    let block_of: Vec<usize> = leader
        .iter()
        .scan(0usize, |n, l| {
            *n += usize::from(*l);
            Some(n.saturating_sub(1))
        })
        .collect();
    let end_of = |b: usize| starts.get(b + 1).copied().unwrap_or(body.len());
    let successors: Vec<Vec<usize>> = (0..starts.len())
        .map(|b| {
            let last = end_of(b) - 1;
            let i = &body[last];
            let mut next: Vec<usize> = Vec::new();
            let goes_on = i.guard.is_some() || !jumps(i);
            if goes_on && end_of(b) < body.len() {
                next.push(b + 1);
            }
            next.extend(targets(i).filter(|t| (*t as usize) < body.len()).map(|t| block_of[t as usize]));
            next
        })
        .collect();
    let mut predecessors = vec![Vec::new(); starts.len()];
    for (from, list) in successors.iter().enumerate() {
        list.iter().for_each(|to: &usize| predecessors[*to].push(from));
    }
    let mut inside = vec![false; starts.len()];
    let all: Vec<usize> = (0..starts.len()).collect();
    let mut arranged = Vec::with_capacity(starts.len());
    let mut work = vec![(all, Vec::new())];
    // Depth first: parts are taken from the end.
    while let Some((nodes, without)) = work.pop() {
        if let [only] = nodes[..] {
            arranged.push(only);
            continue;
        }
        let parts = components(&nodes, &successors, &without);
        let whole = parts.len() == 1;
        for part in parts.into_iter().rev() {
            if part.len() == 1 {
                work.push((part, without.clone()));
                continue;
            }
            // The head of a loop: where it is entered from outside, else its first block.
            part.iter().for_each(|n| inside[*n] = true);
            let entered = |n: usize| predecessors[n].iter().any(|p| !inside[*p]);
            let candidates = part.iter().copied().filter(|n| !without.contains(n));
            let head = candidates
                .clone()
                .filter(|n| entered(*n))
                .min()
                .or_else(|| candidates.min())
                .unwrap_or_else(|| part.iter().copied().min().unwrap_or(0));
            part.iter().for_each(|n| inside[*n] = false);
            if whole && without.contains(&head) {
                let mut rest = part;
                rest.sort_unstable();
                for n in rest.into_iter().rev() {
                    work.push((vec![n], Vec::new()));
                }
                continue;
            }
            let mut without = without.clone();
            without.push(head);
            work.push((part, without));
        }
    }
    let mut order = vec![0; body.len()];
    let mut position = 0;
    for b in arranged {
        for at in &mut order[starts[b]..end_of(b)] {
            *at = position;
            position += 1;
        }
    }
    order
}

fn targets(i: &Instruction) -> impl Iterator<Item = u32> + '_ {
    i.operands.iter().filter_map(|o| match o {
        Operand::Label(target) => Some(*target),
        _ => None,
    })
}

/// Strongly connected components of a part of the graph, in topological order; edges to `without` do not count (Tarjan 1972).
fn components(nodes: &[usize], successors: &[Vec<usize>], without: &[usize]) -> Vec<Vec<usize>> {
    const UNSEEN: u32 = u32::MAX;
    let size = successors.len();
    let mut inside = vec![false; size];
    nodes.iter().for_each(|n| inside[*n] = true);
    let mut cut = vec![false; size];
    without.iter().for_each(|n| cut[*n] = true);
    let (mut number, mut low, mut on) = (vec![UNSEEN; size], vec![0u32; size], vec![false; size]);
    let (mut count, mut stack, mut out) = (0, Vec::new(), Vec::new());
    let mut roots: Vec<usize> = nodes.to_vec();
    roots.sort_unstable();
    for root in roots {
        if number[root] != UNSEEN {
            continue;
        }
        let mut calls = vec![(root, 0usize)];
        while let Some((node, next)) = calls.pop() {
            if next == 0 {
                number[node] = count;
                low[node] = count;
                count += 1;
                stack.push(node);
                on[node] = true;
            }
            let mut edge = next;
            let mut deeper = None;
            while edge < successors[node].len() {
                let to = successors[node][edge];
                edge += 1;
                if !inside[to] || cut[to] {
                    continue;
                }
                if number[to] == UNSEEN {
                    deeper = Some(to);
                    break;
                }
                if on[to] {
                    low[node] = low[node].min(number[to]);
                }
            }
            if let Some(to) = deeper {
                calls.push((node, edge));
                calls.push((to, 0));
                continue;
            }
            if low[node] == number[node] {
                let mut part = Vec::new();
                while let Some(n) = stack.pop() {
                    on[n] = false;
                    part.push(n);
                    if n == node {
                        break;
                    }
                }
                out.push(part);
            }
            if let Some((parent, _)) = calls.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
        }
    }
    out.reverse();
    out
}
