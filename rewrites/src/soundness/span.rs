//! The values that an integer expression can take.
use satune_ir::fold::{floor_div, is_condition};
use satune_ir::semantics::promote;
use satune_ir::{BinOp, DType, Expr, VarId};

/// Something about each of the few variables around an access, by their identities: nothing is as long as the program.
#[derive(Clone, Debug)]
pub struct ByVar<T>(Vec<(VarId, T)>);

impl<T> Default for ByVar<T> {
    fn default() -> ByVar<T> {
        ByVar(Vec::new())
    }
}

impl<T: Copy> ByVar<T> {
    fn find(&self, var: VarId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&var, |(v, _)| *v)
    }

    /// What is known of a variable.
    pub fn get(&self, var: VarId) -> Option<T> {
        self.find(var).ok().map(|at| self.0[at].1)
    }

    /// Says it, in place of what was said before.
    pub fn set(&mut self, var: VarId, value: T) {
        match self.find(var) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (var, value)),
        }
    }
}

/// What variables can be, both ends included; none where it is not known.
pub type Env = ByVar<Option<(i64, i64)>>;

/// Smallest and largest value, where they can be told.
pub fn span(e: &Expr, env: &Env) -> Option<(i64, i64)> {
    typed(e, env).map(|(values, _)| values)
}

/// Smallest and largest value, and the type: told together, so that no part of an expression is looked at again for each that it
/// is in.
fn typed(e: &Expr, env: &Env) -> Option<((i64, i64), DType)> {
    let fits = |t: DType, (lo, hi): (i64, i64)| {
        let (min, max) = t.int_range()?;
        (min <= lo && hi <= max).then_some(((lo, hi), t))
    };
    match e {
        Expr::Int(v, t) => Some(((*v, *v), *t)),
        Expr::Var(v) => Some((env.get(v.id)??, v.dtype)),
        Expr::Not(a) => {
            let (lo, hi) = span(a, env)?;
            Some(((i64::from(hi == 0), i64::from(lo == 0)), DType::Bool))
        }
        Expr::Cast(t, a) => fits(*t, span(a, env)?),
        Expr::Select { cond, then, otherwise, .. } => match certainly(cond, env) {
            Some(true) => typed(then, env),
            Some(false) => typed(otherwise, env),
            None => {
                let ((a, t), (b, u)) = typed(then, env).zip(typed(otherwise, env))?;
                Some(((a.0.min(b.0), a.1.max(b.1)), promote(t, u)))
            }
        },
        Expr::Binary(op @ (BinOp::And | BinOp::Or), a, b) => {
            // One side may decide alone.
            let (a, b) = (certainly(a, env), certainly(b, env));
            let decides = *op == BinOp::Or;
            let value =
                if a == Some(decides) || b == Some(decides) { Some(decides) } else { a.zip(b).map(|_| !decides) };
            Some((value.map_or((0, 1), |v| (v.into(), v.into())), DType::Bool))
        }
        Expr::Binary(op, a, b) => {
            let ((a, t), (b, u)) = typed(a, env).zip(typed(b, env))?;
            // What leaves its type wraps.
            fits(if is_condition(*op) { DType::Bool } else { promote(t, u) }, binary(*op, a, b)?)
        }
        Expr::Float(..) | Expr::Str(_) | Expr::Load(..) | Expr::Call(..) => None,
    }
}

/// Whether a condition holds, where it can be told.
pub fn certainly(e: &Expr, env: &Env) -> Option<bool> {
    match span(e, env)? {
        (0, 0) => Some(false),
        (lo, hi) if lo > 0 || hi < 0 => Some(true),
        _ => None,
    }
}

fn binary(op: BinOp, a: (i64, i64), b: (i64, i64)) -> Option<(i64, i64)> {
    if is_condition(op) {
        let value = match op {
            BinOp::Lt => decided(a.1 < b.0, a.0 >= b.1),
            BinOp::Le => decided(a.1 <= b.0, a.0 > b.1),
            BinOp::Gt => decided(a.0 > b.1, a.1 <= b.0),
            BinOp::Ge => decided(a.0 >= b.1, a.1 < b.0),
            BinOp::Eq => decided(a == b && a.0 == a.1, a.1 < b.0 || b.1 < a.0),
            BinOp::Ne => decided(a.1 < b.0 || b.1 < a.0, a == b && a.0 == a.1),
            _ => None,
        };
        return Some(value.map_or((0, 1), |v| (v.into(), v.into())));
    }
    let single = (a.0 == a.1 && b.0 == b.1).then_some((a.0, b.0));
    match op {
        BinOp::Add => Some((a.0.checked_add(b.0)?, a.1.checked_add(b.1)?)),
        BinOp::Sub => Some((a.0.checked_sub(b.1)?, a.1.checked_sub(b.0)?)),
        BinOp::Mul => {
            let ends = [a.0.checked_mul(b.0)?, a.0.checked_mul(b.1)?, a.1.checked_mul(b.0)?, a.1.checked_mul(b.1)?];
            Some((*ends.iter().min()?, *ends.iter().max()?))
        }
        BinOp::Min => Some((a.0.min(b.0), a.1.min(b.1))),
        BinOp::Max => Some((a.0.max(b.0), a.1.max(b.1))),
        BinOp::FloorDiv if b.0 == b.1 && b.0 > 0 => Some((floor_div(a.0, b.0)?, floor_div(a.1, b.0)?)),
        BinOp::FloorMod if b.0 == b.1 && b.0 > 0 => {
            let c = b.0;
            let same = a.0.div_euclid(c) == a.1.div_euclid(c);
            Some(if same { (a.0.rem_euclid(c), a.1.rem_euclid(c)) } else { (0, c - 1) })
        }
        BinOp::BitXor | BinOp::BitAnd | BinOp::BitOr => {
            if let Some((x, y)) = single {
                let value = match op {
                    BinOp::BitXor => x ^ y,
                    BinOp::BitAnd => x & y,
                    _ => x | y,
                };
                return Some((value, value));
            }
            // Of numbers that are not negative no bit is set above the highest one of both.
            let all_ones =
                i64::try_from(u64::try_from(a.1.max(b.1)).ok()?.checked_add(1)?.checked_next_power_of_two()? - 1)
                    .ok()?;
            (a.0 >= 0 && b.0 >= 0).then_some((0, all_ones))
        }
        _ => None,
    }
}

fn decided(yes: bool, no: bool) -> Option<bool> {
    match (yes, no) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}
