//! Pointers: the buffers whose address a statement takes. Whoever gets it may read and write what no load or store shows.
use crate::fields::{self, Field};
use crate::{visit, BufferId, Expr, Stmt};

/// Read and written, as bits of a mask.
pub const BOTH: i64 = 3;

/// The buffers of which an expression takes the address, `A.data` or `T.address_of(A[i])`: whoever gets it may read and
/// write all of their elements, in the order in which they lie. With the bits of the mask that `T.tvm_access_ptr` was
/// given (1 read, 2 written), both for other pointers.
pub fn pointed(e: &Expr) -> Vec<(BufferId, i64)> {
    fn below(e: &Expr, mask: i64, out: &mut Vec<(BufferId, i64)>) {
        match (fields::of(e), e) {
            (Some((buffer, Field::Data)), _) => out.push((buffer, mask)),
            (Some(_), _) => {}
            (None, Expr::Call(name, args, _)) => {
                let given = match args.as_slice() {
                    [.., Expr::Int(given, _)] if name.as_ref() == "tvm_access_ptr" => given & BOTH,
                    _ => mask,
                };
                if let ("address_of", [Expr::Load(buffer, _)]) = (name.as_ref(), args.as_slice()) {
                    out.push((*buffer, mask));
                }
                args.iter().for_each(|a| below(a, given, out));
            }
            (None, e) => visit::children(e).into_iter().for_each(|c| below(c, mask, out)),
        }
    }
    let mut out = Vec::new();
    below(e, BOTH, &mut out);
    out
}

/// The same of a statement and all below it.
pub fn pointed_in(stmt: &Stmt) -> Vec<(BufferId, i64)> {
    let mut out = Vec::new();
    visit::walk_stmt_exprs(stmt, &mut |e| out.extend(pointed(e)));
    out
}
