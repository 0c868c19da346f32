//! The order in which a warp's instructions on matrices are issued, where two loops over them are annotated.
//!
//! ```text
//!   by lines        back and forth      in pairs          both
//!   0 1 2 3         0 1 2 3             0 2 4 6           0 3 4 7
//!   4 5 6 7         7 6 5 4             1 3 5 7           1 2 5 6
//! ```
//! The next instruction then has an operand of the one before it in registers that are near.
use super::emit::Emitter;
use super::error::LowerError;
use super::nest::{flag, leaves, Loop, Node};
use crate::kernel::Stmt;
use crate::lower::index::c;
use satune_rewrites::keys;

/// The outer and the inner number of each instruction, in order: `outer` lines of so many, two at once where they come in pairs.
fn places([outer, inner]: [i64; 2], serpentine: bool, pairs: bool) -> Vec<[i64; 2]> {
    let lines = if pairs && outer % 2 == 0 { 2 } else { 1 };
    let back = |odd: bool, at: i64, of: i64| if odd && serpentine { of - 1 - at } else { at };
    let walks = (0..outer / lines)
        .flat_map(|walk| (0..inner).flat_map(move |step| (0..lines).map(move |line| (walk, step, line))));
    // Back and forth goes from one walk to the next, and within one from step to step.
    walks
        .map(|(walk, step, line)| [walk * lines + back(step % 2 == 1, line, lines), back(walk % 2 == 1, step, inner)])
        .collect()
}

impl Emitter<'_> {
    /// Two loops over instructions, in the order that the outer one's annotations ask for; none where they ask for none.
    pub(super) fn in_order(&mut self, outer: &Loop) -> Result<Option<Vec<Stmt>>, LowerError> {
        let [serpentine, pairs] = [keys::SERPENTINE, keys::PAIRS].map(|key| flag(&outer.annotations, key));
        let [Node::Loop(inner)] = outer.body.as_slice() else { return Ok(None) };
        let known = outer.steps.is_none() && inner.steps.is_none();
        let mut asked = serpentine || pairs;
        leaves(&inner.body, &mut |leaf| asked &= leaf.instruction.as_ref().is_some_and(|what| what.multiplies()));
        if !asked || !known || ![outer, inner].iter().all(|l| self.expanded.contains(&l.var)) {
            return Ok(None);
        }
        let mut code = Vec::new();
        for [i, j] in places([outer.extent, inner.extent], serpentine, pairs) {
            code.extend(self.with_all(&[(outer.var, c(i)), (inner.var, c(j))], |e| e.nodes(&inner.body))?);
        }
        Ok(Some(code))
    }
}

#[cfg(test)]
mod tests {
    use super::places;

    #[test]
    fn lines_are_walked_as_the_picture_has_it() {
        let drawn = |serpentine, pairs| {
            let mut numbers = [[0; 4]; 2];
            places([2, 4], serpentine, pairs)
                .into_iter()
                .zip(0..)
                .for_each(|([i, j], at)| numbers[i as usize][j as usize] = at);
            numbers
        };
        assert_eq!(drawn(false, false), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(drawn(true, false), [[0, 1, 2, 3], [7, 6, 5, 4]]);
        assert_eq!(drawn(false, true), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(drawn(true, true), [[0, 3, 4, 7], [1, 2, 5, 6]]);
    }
}
