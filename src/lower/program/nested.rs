//! Pipelines in pipelines, as TVM annotates them: what the inner loop begins and ends with, and both halves of a copy by way of registers,
//! are statements of the outer loop.
//!
//! ```text
//!   for k:       stage [0, 0, 0, 0, 0, 1, 1], order [0, 3, 1, 4, 5, 2, 6]        each tile:
//!     copy A     0: fetch, 3: store                                                fetch A, B of the next tile
//!     copy B     1: fetch, 4: store                                           ->   load and multiply, but for the last step
//!     for step:  5: loads of the first step, 2: all between, 6: the last             store A, B; load the next tile's first step
//!       ..       (a pipeline itself: loads a step ahead)                             multiply the last step
//! ```
//! So pipelines of matrices are written anyway ([`super::tiles`]), with one stage for each statement of the loop.
use super::nest::{int_list, is_staged, leaves, Loop, Node};
use satune_rewrites::keys;

/// The stages of a loop's statements, the inner pipeline one of them. None where the annotations say another order.
pub fn stages(l: &Loop, of_all: &[i64]) -> Option<Vec<i64>> {
    let order = int_list(l.annotations.get(keys::PIPELINE_ORDER))?;
    let mut all = of_all.iter().copied().zip(order);
    let (mut at, mut stages) = (0, Vec::new());
    let (mut fetches, mut stores, mut inner) = (Vec::new(), Vec::new(), None);
    for size in &l.child_sizes {
        let nodes = &l.body[at..at + size];
        at += size;
        let mut next = || all.next();
        match nodes {
            [Node::Loop(steps)] if steps.annotations.contains_key(keys::PIPELINE_STAGE) => {
                let three @ [_, (body, _), (end, _)] = [next()?, next()?, next()?];
                stages.push(body);
                inner = Some(three).filter(|_| inner.is_none() && body == end);
                inner?;
            }
            _ => {
                let (stage, at) = next()?;
                fetches.push(at);
                if by_registers(nodes) {
                    stores.push(next().filter(|(own, _)| *own == stage)?.1);
                }
                stages.push(stage);
            }
        }
    }
    let [(ahead, begin), (last, body), (_, end)] = inner?;
    let in_turn = body < begin && begin < end && stores.iter().all(|at| body < *at && *at < begin);
    let fetched = stores.is_empty() || fetches.iter().all(|at| *at < body);
    (all.next().is_none() && last.checked_sub(1) == Some(ahead) && in_turn && fetched).then_some(stages)
}

/// Whether all of a copy goes by way of registers.
fn by_registers(nodes: &[Node]) -> bool {
    let mut all = true;
    leaves(nodes, &mut |leaf| all &= is_staged(leaf));
    all
}
