//! `unroll`: mark a loop for expansion.
//!
//! before                                after, unroll(k)
//!   for k in range(4):                    for k in T.unroll(4):
//!       ...                                   ...
//!
//! Always legal: the iterations and their order stay. A thread binding is dropped, annotations stay.
use crate::schedule::{Result, Schedule};
use crate::tree::LoopId;
use satune_ir::ForKind;

/// The primitive.
pub fn unroll(s: &mut Schedule, id: LoopId) -> Result<()> {
    s.update_loop(id, |l| l.kind = ForKind::Unrolled).map_err(|e| e.within("unroll"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{loops, matmul};

    #[test]
    fn applies_to_every_loop() {
        let mut s = matmul();
        for id in loops(&s, "C") {
            unroll(&mut s, id).unwrap();
            assert_eq!(s.get_loop(id).unwrap().kind, ForKind::Unrolled);
        }
    }
}
