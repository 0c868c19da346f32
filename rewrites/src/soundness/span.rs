//! The values that an integer expression can take.
use satune_ir::fold::{self, floor_div, is_condition};
use satune_ir::{BinOp, Expr, VarId};

/// What variables can be, both ends included.
#[derive(Clone, Debug, Default)]
pub struct Env(Vec<Option<(i64, i64)>>);

impl Env {
    /// What a variable can be, where it is known.
    pub fn get(&self, var: VarId) -> Option<(i64, i64)> {
        self.0.get(var.0 as usize).copied().flatten()
    }

    /// Says what a variable can be.
    pub fn set(&mut self, var: VarId, value: Option<(i64, i64)>) {
        let at = var.0 as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = value;
    }
}

/// Smallest and largest value, where they can be told.
pub fn span(e: &Expr, env: &Env) -> Option<(i64, i64)> {
    match e {
        Expr::Int(v, _) => Some((*v, *v)),
        Expr::Var(v) => env.get(v.id),
        Expr::Not(a) => {
            let (lo, hi) = span(a, env)?;
            Some((i64::from(hi == 0), i64::from(lo == 0)))
        }
        Expr::Cast(t, a) => {
            let (lo, hi) = span(a, env)?;
            let (min, max) = t.int_range()?;
            (min <= lo && hi <= max).then_some((lo, hi))
        }
        Expr::Select { cond, then, otherwise, .. } => match certainly(cond, env) {
            Some(true) => span(then, env),
            Some(false) => span(otherwise, env),
            None => {
                let (a, b) = span(then, env).zip(span(otherwise, env))?;
                Some((a.0.min(b.0), a.1.max(b.1)))
            }
        },
        Expr::Binary(op @ (BinOp::And | BinOp::Or), a, b) => {
            // One side may decide alone.
            let (a, b) = (certainly(a, env), certainly(b, env));
            let decides = *op == BinOp::Or;
            let value =
                if a == Some(decides) || b == Some(decides) { Some(decides) } else { a.zip(b).map(|_| !decides) };
            Some(value.map_or((0, 1), |v| (v.into(), v.into())))
        }
        Expr::Binary(op, a, b) => {
            let (lo, hi) = binary(*op, span(a, env)?, span(b, env)?)?;
            // What leaves its type wraps.
            let (min, max) = fold::dtype(e, &[]).int_range()?;
            (min <= lo && hi <= max).then_some((lo, hi))
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
