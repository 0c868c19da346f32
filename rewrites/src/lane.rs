//! Indices in a vectorized loop: which of them are one for all of its values.
use satune_ir::{visit, BinOp, Expr, VarId};

/// The variable of a vectorized loop, from 0 on.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    pub var: VarId,
    pub lanes: i64,
}

impl Lane {
    fn is_in(self, e: &Expr) -> bool {
        visit::uses_var(e, &|v| v == self.var)
    }

    /// Whether an index is the same for all lanes: `(8 * x + lane) // 32`, for 8 of them.
    pub fn stays(self, e: &Expr) -> bool {
        match e {
            _ if !self.is_in(e) => true,
            Expr::Binary(BinOp::FloorDiv, a, b) => {
                self.stays(a) && !self.is_in(b) || self.is_lowest(a) && self.is_multiple(b)
            }
            Expr::Binary(_, a, b) => self.stays(a) && self.stays(b),
            Expr::Cast(_, a) => self.stays(a),
            // One element for all.
            Expr::Load(_, at) => at.iter().all(|index| self.stays(index)),
            _ => false,
        }
    }

    /// Whether it is the lane plus a multiple of their number.
    fn is_lowest(self, e: &Expr) -> bool {
        match e {
            Expr::Var(v) => v.id == self.var,
            Expr::Binary(BinOp::Add, a, b) => {
                self.is_lowest(a) && self.is_multiple(b) || self.is_multiple(a) && self.is_lowest(b)
            }
            Expr::Binary(BinOp::FloorMod, a, b) => self.is_lowest(a) && self.is_multiple(b),
            _ => false,
        }
    }

    /// Whether it is a multiple of their number, in which the lane has no part.
    fn is_multiple(self, e: &Expr) -> bool {
        match e {
            _ if self.is_in(e) => false,
            Expr::Int(value, _) => value % self.lanes == 0,
            Expr::Binary(BinOp::Add | BinOp::Sub | BinOp::FloorMod, a, b) => self.is_multiple(a) && self.is_multiple(b),
            Expr::Binary(BinOp::Mul, a, b) => self.is_multiple(a) || self.is_multiple(b),
            _ => false,
        }
    }
}
