//! Whole numbers and bools that are made of rounded floats: which they are, and how far rounding moves them.
use super::{binary, bounds, choice, in_f64, is_zero, larger, magnitude, number, plus, times};
use super::{Bounds, Maker, Pair, BEYOND, NOTHING};
use satune_ir::affine::constant;
use satune_ir::interp::{self, Array, Fault};
use satune_ir::{visit, BinOp, BufferId, DType, Expr, Program, Stmt};

/// The most by which rounding may change a whole number of each parameter, given what all parameters hold; 0 of floats, and where
/// that cannot be told.
///
/// # Errors
/// When it is told to end.
pub(crate) fn of_whole_numbers(
    program: &Program,
    inputs: &[Array],
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<f64>, Fault> {
    let mut out = vec![0.0; program.params.len()];
    let Some(bounds) = bounds_of_whole_numbers(program) else { return Ok(out) };
    let all = match bounds.run(inputs, interp::Options::default().max_steps, go_on) {
        Err(Fault::Stopped) => return Err(Fault::Stopped),
        other => other.unwrap_or_default(),
    };
    for (p, bounds) in bounds.bounded.iter().zip(all).filter(|(p, _)| is_whole(program, **p)) {
        out[*p] = bounds.to_f64().into_iter().filter(|bound| *bound < BEYOND).fold(0.0, f64::max);
    }
    Ok(out)
}

fn is_whole(program: &Program, param: usize) -> bool {
    !program.buffer(program.params[param]).dtype.is_float()
}

/// [`bounds`], where a parameter of whole numbers has some.
pub(in crate::execute) fn bounds_of_whole_numbers(program: &Program) -> Option<Bounds> {
    let any = (0..program.params.len()).any(|p| is_whole(program, p));
    any.then(|| bounds(program))?.filter(|b| b.bounded.iter().any(|p| is_whole(program, *p)))
}

impl Maker<'_> {
    /// A buffer of whole numbers or bools that has no bounds, and holds what is made of rounded values.
    pub(super) fn made_of_rounded(&self) -> Option<BufferId> {
        let mut found = None;
        visit::walk_stmt(&self.program.body.block.body, &mut |s| {
            if let Stmt::Store { buffer, value, .. } = s {
                found = found.or((!self.errors.contains_key(buffer) && !self.exact(value)).then_some(*buffer));
            }
        });
        found
    }

    /// A bool that rounded values decide, and whether that is sure.
    pub(super) fn decided(&mut self, given: &Expr, wide: &Expr) -> Option<Pair> {
        let unsure = self.unsure(given, wide)?;
        let bound = unsure.map_or(number(0.0), |unsure| choice(unsure, number(1.0), number(0.0)));
        let bound = self.bind(bound);
        Some((wide.clone(), bound))
    }

    /// A whole number that is made of rounded values, and its bound.
    pub(super) fn whole(&mut self, given: &Expr, wide: &Expr, dtype: DType) -> Option<Pair> {
        let (value, bound) = match (given, wide) {
            (Expr::Cast(_, a), Expr::Cast(to, wide_a)) => {
                let from = self.dtype(a);
                let (x, bound) = self.pair(a, wide_a)?;
                if !from.is_float() {
                    (Expr::Cast(*to, x.into()), bound)
                } else {
                    // Rounded towards zero.
                    let (x, bound) = (self.bind(x), self.bind(bound));
                    let whole = |e: Expr| Expr::Call("trunc".into(), vec![e], DType::F64);
                    let end = |op| {
                        magnitude(binary(BinOp::Sub, whole(binary(op, x.clone(), bound.clone())), whole(x.clone())))
                    };
                    let most = larger(end(BinOp::Add), end(BinOp::Sub));
                    let moves = binary(BinOp::Gt, bound.clone(), number(0.0));
                    (Expr::Cast(*to, x.clone().into()), choice(moves, most, number(0.0)))
                }
            }
            (Expr::Binary(op, a, b), Expr::Binary(_, wide_a, wide_b)) => {
                let divisor = constant(b);
                let ((a, of_a), (b, of_b)) = (self.pair(a, wide_a)?, self.pair(b, wide_b)?);
                let (a, b) = (self.bind_as(a, dtype), self.bind_as(b, dtype));
                let [size_a, size_b] = [&a, &b].map(|e| magnitude(in_f64(e, dtype)));
                let bound = match op {
                    BinOp::Add | BinOp::Sub => plus(of_a, of_b),
                    BinOp::Mul => {
                        plus(plus(times(size_a, of_b.clone()), times(size_b, of_a.clone())), times(of_a, of_b))
                    }
                    BinOp::Min | BinOp::Max => larger(of_a, of_b),
                    // A quotient moves by no more than what is divided does, which is a whole number.
                    BinOp::FloorDiv | BinOp::TruncDiv if divisor.is_some_and(|d| d > 0) => of_a,
                    BinOp::Shr if is_zero(&of_b) => of_a,
                    _ => return None,
                };
                (binary(*op, a, b), bound)
            }
            (
                Expr::Select { lazy, cond, then, otherwise },
                Expr::Select { cond: wide_cond, then: wide_then, otherwise: wide_otherwise, .. },
            ) => return self.choice(*lazy, [(cond, wide_cond), (then, wide_then), (otherwise, wide_otherwise)]),
            _ => return None,
        };
        // What outgrows its type wraps.
        let value = self.bind_as(value, dtype);
        let (low, high) = dtype.int_range()?;
        let bound = self.bounded(bound);
        let bound = self.bind(bound);
        let at = in_f64(&value, dtype);
        let above = binary(BinOp::Ge, binary(BinOp::Sub, at.clone(), bound.clone()), number(low as f64));
        let below = binary(BinOp::Le, binary(BinOp::Add, at, bound.clone()), number(high as f64));
        let moves = binary(BinOp::Gt, bound.clone(), number(0.0));
        let known = choice(binary(BinOp::And, above, below), bound, number(NOTHING));
        let bound = self.bind(choice(moves, known, number(0.0)));
        Some((value, bound))
    }
}
