//! What an expression costs a thread: which unit executes each of its operations.
use satune_ir::term::stream::Issued;
use satune_ir::term::Instructions;
use satune_ir::{fold, visit, BinOp, Buffer, BufferId, DType, Expr};
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
            "abs" | "isnan" | "isinf" | "isfinite" => Unit::Logic,
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

/// What an expression of elements costs, what occurs several times once.
pub(super) fn of_value(value: &Expr, buffers: &[Buffer]) -> Instructions {
    let (mut all, mut seen, mut open) = (Instructions::default(), HashSet::new(), vec![value]);
    while let Some(e) = open.pop() {
        // What has no elements is a constant, or an index.
        if seen.insert(e) && !visit::loads(e).is_empty() {
            open.extend(operands(e));
            add(&mut all, unit(e, buffers));
        }
    }
    all
}

fn add(to: &mut Instructions, unit: Option<Unit>) {
    match unit {
        Some(Unit::MultiplyAdd) => to.multiply_adds += 1,
        Some(Unit::Logic) => to.logic += 1,
        Some(Unit::Special) => to.special += 1,
        None => {}
    }
}

/// Instructions of a division in f32 where neither operand nor result is so large or small that it takes the long way: a reciprocal, five
/// multiply-adds, the check, and the three of the branch around the long way. Read off what CUDA 13 makes of a kernel with that
/// operation alone (as all of these), the same for sm_80, sm_89 and sm_90, one more for sm_75.
const DIVISION: u32 = 10;
/// Of another function, and of a division of integers (estimate; sines and others that reduce their argument take far more).
const FUNCTION: u32 = 20;

/// Instructions of a function of f32 in the machine code of a kernel with it alone, per value, without the ways for numbers that are
/// very large, or smaller than normal ones.
fn function(name: &str) -> u32 {
    match name {
        "exp" | "exp10" => 8,
        "exp2" | "rsqrt" => 4,
        "log" => 25,
        "log2" => 27,
        "log10" => 26,
        "sqrt" => 10,
        "tanh" | "cosh" => 15,
        "erf" | "sigmoid" => 20,
        "expm1" => 22,
        "log1p" => 29,
        "pow" => 73,
        "erfc" => 45,
        "floor" | "ceil" | "trunc" | "rint" | "nearbyint" => 1,
        _ => FUNCTION,
    }
}

/// Counts the instructions of expressions.
pub(super) struct Issuing<'e> {
    buffers: &'e [Buffer],
    varies: &'e dyn Fn(&Expr) -> bool,
    /// Whether what is stored adds to a sum, to which a product is added by a multiply-add.
    sums: bool,
    seen: HashSet<Expr>,
    /// Of what varies within a row, and of the rest.
    pub all: [Issued; 2],
    /// Value by value: whether it varies, and what it takes.
    pub parts: Vec<(Expr, bool, Issued)>,
}

impl<'e> Issuing<'e> {
    pub fn of(buffers: &'e [Buffer], sums: bool, varies: &'e dyn Fn(&Expr) -> bool) -> Issuing<'e> {
        Issuing { buffers, varies, sums, seen: HashSet::new(), all: [Issued::default(); 2], parts: Vec::new() }
    }

    /// A value that is stored: two of 16 bits are rounded by one instruction.
    pub fn store(&mut self, value: &Expr) {
        self.value(value, true);
    }

    fn value(&mut self, e: &Expr, stored: bool) {
        if !self.seen.insert(e.clone()) {
            return;
        }
        let to = fold::dtype(e, self.buffers);
        let narrow = |t: DType| [DType::F16, DType::BF16].iter().position(|n| *n == t);
        let varies = (self.varies)(e);
        let part = &mut self.all[usize::from(!varies)];
        let before = *part;
        let mut inside = operands(e);
        match (unit(e, self.buffers), e) {
            (None, _) => {}
            // A conversion of a constant is done by the compiler.
            (_, Expr::Cast(_, x)) if matches!(**x, Expr::Int(..) | Expr::Float(..)) => {}
            (_, Expr::Cast(..)) => match narrow(to) {
                Some(kind) => round(part, kind, stored),
                None => widen(part, fold::dtype(inside[0], self.buffers), 2),
            },
            // Pairs of halves are added and multiplied as they are.
            (Some(Unit::MultiplyAdd), Expr::Binary(BinOp::Add | BinOp::Sub | BinOp::Mul, ..)) if to == DType::F16 => {
                part.halves += 1;
                part.pairs -= 1;
                if self.sums && stored {
                    self.fuse(e, &mut inside);
                }
            }
            (Some(by), _) => {
                match (by, e) {
                    (Unit::Special, Expr::Call(name, ..)) => {
                        part.special += function(name.rsplit('.').next().unwrap_or(name));
                    }
                    (Unit::Special, _) => part.special += DIVISION,
                    _ => part.halves += 2,
                }
                let computed = |x: &&&Expr| !matches!(x, Expr::Int(..) | Expr::Float(..));
                let types = inside.iter().filter(computed).map(|x| fold::dtype(x, self.buffers));
                // Choices take values as they are; other operations widen what has 16 bits, and round.
                if !matches!(e, Expr::Select { .. }) {
                    types.for_each(|from| widen(part, from, 0));
                    if let Some(kind) = narrow(to) {
                        round(part, kind, stored);
                    }
                }
                if to == DType::F32 {
                    self.fuse(e, &mut inside);
                }
            }
        }
        let own = self.all[usize::from(!varies)].since(before);
        if own != Issued::default() {
            self.parts.push((e.clone(), varies, own));
        }
        inside.into_iter().for_each(|x| self.value(x, false));
    }

    /// A product that is added is part of the multiply-add: its operands are those of the sum.
    fn fuse<'x>(&mut self, e: &'x Expr, inside: &mut Vec<&'x Expr>) {
        let Expr::Binary(BinOp::Add | BinOp::Sub, a, b) = e else { return };
        let product = [a, b].into_iter().find(|x| {
            matches!(***x, Expr::Binary(BinOp::Mul | BinOp::Div, ..))
                && unit(x, self.buffers) == Some(Unit::MultiplyAdd)
                && (self.varies)(x) == (self.varies)(e)
        });
        if let Some(product) = product.filter(|x| self.seen.insert((***x).clone())) {
            inside.retain(|x| !std::ptr::eq(*x, &**product));
            inside.extend(operands(product));
        }
    }
}

/// Makes an f32 of a value of 16 bits; what has another type takes `other` halves. Of a pair of bf16 the upper one is taken out
/// first: seen in chains of maps, not measured by itself.
fn widen(part: &mut Issued, from: DType, other: u32) {
    let (halves, pairs) = match from {
        DType::F16 => (2, 0),
        DType::BF16 => (3, 1),
        _ => (other, 0),
    };
    part.halves += halves;
    part.pairs += pairs;
}

/// A value rounded to f16 or bf16. Where it is not stored beside another one, it is put in a register of its own, and a bf16 is taken out
/// of a pair.
fn round(part: &mut Issued, kind: usize, stored: bool) {
    part.narrowed[kind] += 1;
    let apart = if stored { 0 } else { [1, 3][kind] };
    part.halves += apart;
    part.pairs += apart as i32;
}
