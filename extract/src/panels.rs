//! What blocks that run side by side read of the operands.
use satune_ir::term::{Axis, BlockLoop};

/// Different panels of A and of B that the first `slots` blocks touch.
pub(crate) fn panels(blocks: &[BlockLoop], slots: i64) -> (usize, usize) {
    let mut a = Vec::new();
    let mut b = Vec::new();
    // The loops' values, the last one fastest.
    let mut at = vec![0; blocks.len()];
    for _ in 0..slots {
        let (mut m, mut n, mut other) = (0, 0, 0);
        for (l, value) in blocks.iter().zip(&at) {
            match l.axis {
                Axis::M => m = m * l.extent + value,
                Axis::N => n = n * l.extent + value,
                _ => other = other * l.extent + value,
            }
        }
        for (list, panel) in [(&mut a, (other, m)), (&mut b, (other, n))] {
            if list.last() != Some(&panel) {
                list.push(panel);
            }
        }
        for (value, l) in at.iter_mut().zip(blocks).rev() {
            *value += 1;
            if *value < l.extent {
                break;
            }
            *value = 0;
        }
    }
    [&mut a, &mut b].into_iter().for_each(|list| {
        list.sort_unstable();
        list.dedup();
    });
    (a.len(), b.len())
}
