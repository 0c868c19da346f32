//! Teams: the threads of a block that reduce together, and how their lanes and warps are numbered.
use super::error::LowerError;
use satune_ir::{BinOp, DType, Expr, For, ForKind, Stmt, Var, VarId};
use std::sync::Arc;

/// Lanes of a warp.
pub const WARP: i64 = 32;

/// The threads of a block parted into teams: a team's members differ in some components of threadIdx, the others tell
/// the teams apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Team {
    /// Threads of a block in x, y and z.
    extents: [i64; 3],
    /// The components in which the members differ.
    over: [bool; 3],
}

/// A component of threadIdx by its tag.
pub fn component(tag: &str) -> Option<usize> {
    ["threadIdx.x", "threadIdx.y", "threadIdx.z"].iter().position(|t| *t == tag)
}

/// Threads of a block in x, y and z, where all below a statement runs in one kernel.
pub fn block_extents(part: &Stmt) -> Result<[i64; 3], LowerError> {
    let mut out = [1_i64; 3];
    satune_ir::visit::walk_stmt(part, &mut |s| {
        if let Stmt::For(For { kind: ForKind::ThreadBinding(tag), extent: Expr::Int(extent, _), .. }) = s {
            if let Some(d) = component(tag) {
                out[d] = out[d].max(*extent);
            }
        }
    });
    let threads = out.iter().fold(1_i64, |n, e| n.saturating_mul(*e));
    if !(1..=1 << 16).contains(&threads) {
        return Err(LowerError::Launch { what: "threads per block".into(), count: threads, most: 1024 });
    }
    Ok(out)
}

impl Team {
    /// Teams over the components.
    pub fn new(extents: [i64; 3], over: [bool; 3]) -> Team {
        Team { extents, over }
    }

    /// Whether the members of a team differ in the component of this tag.
    pub fn differ_in(&self, tag: &str) -> bool {
        component(tag).is_some_and(|d| self.over[d])
    }

    /// Threads of a team.
    pub fn members(&self) -> i64 {
        (0..3).filter(|d| self.over[*d]).map(|d| self.extents[d]).product()
    }

    /// Teams of a block.
    pub fn count(&self) -> i64 {
        self.extents.iter().product::<i64>() / self.members().max(1)
    }

    /// Neighbouring lanes that surely belong to one team: a power of two, at most a warp.
    pub fn lanes(&self) -> i64 {
        let mut run = 1;
        for d in (0..3).filter(|d| self.extents[*d] > 1) {
            if !self.over[d] {
                break;
            }
            run *= self.extents[d];
        }
        (run & run.wrapping_neg()).min(WARP)
    }

    /// What is left of a team when its neighbouring lanes have been combined.
    pub fn parts(&self) -> i64 {
        self.members() / self.lanes()
    }

    /// Lanes that a shuffle within [`lanes`](Self::lanes) names: the whole warp, where all warps are whole.
    pub fn named_lanes(&self) -> i64 {
        if self.extents.iter().product::<i64>() % WARP == 0 {
            WARP
        } else {
            self.lanes()
        }
    }

    /// The number of a thread, counted over the components that `take` chooses.
    fn number(&self, threads: &[Expr; 3], take: impl Fn(usize) -> bool) -> Expr {
        let mut sum = integer(0);
        let mut unit = 1;
        for d in (0..3).filter(|d| self.extents[*d] > 1 && take(*d)) {
            sum = binary(BinOp::Add, sum, binary(BinOp::Mul, threads[d].clone(), integer(unit)));
            unit *= self.extents[d];
        }
        sum
    }

    /// The number of a thread in its block; its lane is the remainder by [`WARP`].
    pub fn thread(&self, threads: &[Expr; 3]) -> Expr {
        self.number(threads, |_| true)
    }

    /// The number of a member in its team.
    pub fn member(&self, threads: &[Expr; 3]) -> Expr {
        self.number(threads, |d| self.over[d])
    }

    /// The number of a thread's team.
    pub fn team(&self, threads: &[Expr; 3]) -> Expr {
        self.number(threads, |d| !self.over[d])
    }
}

/// An integer.
pub fn integer(v: i64) -> Expr {
    Expr::Int(v, DType::I32)
}

/// A variable of the nest.
pub fn variable(id: VarId, name: &str) -> Expr {
    Expr::Var(Var { id, name: name.into(), dtype: DType::I32 })
}

/// `a op b`.
pub fn binary(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Arc::new(a), Arc::new(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_of_neighbours_and_of_columns() {
        let facts = |extents, over| {
            let t = Team::new(extents, over);
            (t.members(), t.count(), t.lanes(), t.parts(), t.named_lanes())
        };
        let [x, y, xy] = [[true, false, false], [false, true, false], [true, true, false]];
        assert_eq!(facts([32, 1, 1], x), (32, 1, 32, 1, 32));
        assert_eq!(facts([256, 1, 1], x), (256, 1, 32, 8, 32));
        assert_eq!(facts([64, 4, 1], x), (64, 4, 32, 2, 32));
        assert_eq!(facts([8, 4, 1], x), (8, 4, 8, 1, 32));
        assert_eq!(facts([96, 1, 1], x), (96, 1, 32, 3, 32));
        assert_eq!(facts([24, 1, 1], x), (24, 1, 8, 3, 8), "a warp that is not whole");
        assert_eq!(facts([8, 8, 1], xy), (64, 1, 32, 2, 32));
        assert_eq!(facts([32, 8, 1], y), (8, 32, 1, 8, 32), "columns: no two neighbours");
        assert_eq!(facts([1, 8, 1], y), (8, 1, 8, 1, 8));
    }
}
