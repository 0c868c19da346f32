//! What an expression costs a thread: which unit executes each of its operations.
use satune_ir::term::Instructions;
use satune_ir::{fold, visit, BinOp, Buffer, BufferId, Expr};
use std::collections::HashSet;

/// What executes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Sums and products.
    MultiplyAdd,
    /// Comparisons, minima, choices, logic, conversions, sums of integers.
    Logic,
    /// Divisions and functions: several instructions, some at a quarter of the rate.
    Special,
}

/// The unit of an expression's outermost operation; none where it costs nothing: elements, constants, `not`, and the size of a
/// float, which is a bit of the instruction that takes it.
pub(super) fn unit(e: &Expr, buffers: &[Buffer]) -> Option<Unit> {
    use BinOp::{Add, Div, FloorDiv, FloorMod, Mul, Sub, TruncDiv, TruncMod};
    let float = || fold::dtype(e, buffers).is_float();
    Some(match e {
        // By a power of two it is a product, a shift or a mask.
        Expr::Binary(Div | FloorDiv | FloorMod | TruncDiv | TruncMod, _, b) => match is_power_of_two(b) {
            true if float() => Unit::MultiplyAdd,
            true => Unit::Logic,
            false => Unit::Special,
        },
        Expr::Binary(Mul, ..) => Unit::MultiplyAdd,
        Expr::Binary(Add | Sub, ..) if float() => Unit::MultiplyAdd,
        Expr::Binary(..) | Expr::Cast(..) | Expr::Select { .. } => Unit::Logic,
        Expr::Call(name, ..) => match name.rsplit('.').next().unwrap_or(name) {
            "abs" | "fabs" if float() => return None,
            "abs" => Unit::Logic,
            "fma" => Unit::MultiplyAdd,
            "likely" | "reinterpret" => return None,
            _ => Unit::Special,
        },
        Expr::Not(_) | Expr::Int(..) | Expr::Float(..) | Expr::Str(_) | Expr::Var(_) | Expr::Load(..) => return None,
    })
}

/// What an operation computes with; of an element nothing, for its indices are no arithmetic on elements.
pub(super) fn operands(e: &Expr) -> Vec<&Expr> {
    match e {
        Expr::Load(..) => Vec::new(),
        other => visit::children(other),
    }
}

fn is_power_of_two(e: &Expr) -> bool {
    match e {
        Expr::Int(value, _) => *value > 0 && value & (value - 1) == 0,
        // The significand is 1.
        Expr::Float(bits, _) => f64::from_bits(*bits).is_normal() && bits << 12 == 0,
        _ => false,
    }
}

/// What a step of `C = C op f` costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    /// Instructions that depend on both operands, op among them.
    pub both: Instructions,
    /// Of the elements of each buffer alone.
    pub sided: [Instructions; 2],
    /// Operations that a person counts.
    pub operations: u32,
}

/// The cost of combining `f`, an expression of elements of two buffers, by `update`, the whole `C op f`. What occurs several times is
/// computed once, as compilers do; the product in a sum of products is part of its multiply-add.
pub(super) fn step(update: &Expr, f: &Expr, of: [BufferId; 2], buffers: &[Buffer]) -> Step {
    let mut step = Step::default();
    let fused = matches!((update, f), (Expr::Binary(BinOp::Add, ..), Expr::Binary(BinOp::Mul, ..)));
    let unit_of_op = if fused { Some(Unit::MultiplyAdd) } else { unit(update, buffers) };
    add(&mut step.both, unit_of_op);
    step.operations = 1;
    let mut seen = HashSet::new();
    let mut open = vec![f];
    while let Some(e) = open.pop() {
        if !seen.insert(e) {
            continue;
        }
        open.extend(operands(e));
        let loads = visit::loads(e);
        let [a, b] = of.map(|buffer| loads.iter().any(|(loaded, _)| *loaded == buffer));
        let counted = matches!(e, Expr::Binary(..) | Expr::Select { .. } | Expr::Call(..));
        // What has no elements is a constant.
        step.operations += u32::from(counted && (a || b));
        let part = match (a, b) {
            (true, true) if !(fused && std::ptr::eq(e, f)) => &mut step.both,
            (true, false) => &mut step.sided[0],
            (false, true) => &mut step.sided[1],
            _ => continue,
        };
        add(part, unit(e, buffers));
    }
    step
}

fn add(to: &mut Instructions, unit: Option<Unit>) {
    match unit {
        Some(Unit::MultiplyAdd) => to.multiply_adds += 1,
        Some(Unit::Logic) => to.logic += 1,
        Some(Unit::Special) => to.special += 1,
        None => {}
    }
}
