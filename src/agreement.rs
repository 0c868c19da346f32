//! How closely the results of a kernel agree with what the program means.
//!
//! Bit for bit, as a rule: inputs are small integers, so that sums and products of them are exact in any order, and the
//! simulator computes each function as the interpreter does, once in `f64`, then rounded to the type. Only where a program
//! adds up (or multiplies up) values that have been rounded do they depend on the order, which a schedule changes: the
//! results of functions and divisions, products that take more digits than their type has (`x * 0.001`), and sums that
//! outgrow their type (see `grain`). Then there are two comparisons.
//!
//! * In the program's types, which shows that the kernel computes in them. Two results agree when they differ by at most 256
//!   units of roundoff of their type (8 for types of 16 bits, whose sums are kept in f32), relative to the largest result of
//!   the buffer: 1.5e-5 for f32. A sum of n values of one size and sign is off by up to n / 2 units, since every addition
//!   rounds by up to a unit of a partial sum that grows evenly, and may do so in one direction: so many are allowed where they
//!   are more (n above 512). Here that does happen: inputs are a handful of small integers, each of which is rounded the same
//!   way again and again. Where differences cancel what is large (a variance), rounding shows more: results may
//!   differ by eight times what rounding does to those of the program itself.
//! * With every float in `f64`, program and kernel alike, which shows that they compute the same: to 1e-9 of a result, and 1e-11
//!   of the largest. A sum of 2^20 values that lacks one is found so, and not in `f32`.
//!
//! On a GPU inputs are random, and roundings with them: [`tolerances`] says what that allows.
mod grain;
mod rounding;

pub(crate) use rounding::{allowed, FUNCTION};
pub use rounding::{smallest, tolerances, unit, SINGLE};

use grain::Grains;
use satune_ir::affine::constant;
use satune_ir::{fold, visit, BinOp, BufferId, DType, Expr, For, ForKind, Program, Stmt};

/// Whether results have to agree bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// Bit for bit.
    Exact,
    /// Up to roundoff.
    Roundoff,
}

impl Agreement {
    /// What can be asked of the schedules of a program.
    pub fn of(program: &Program) -> Agreement {
        Agreement::up_to(program, grain::INPUT)
    }

    /// The same where inputs are whole numbers up to a magnitude.
    pub(crate) fn up_to(program: &Program, input: f64) -> Agreement {
        if Grains::of(program, input).depends {
            Agreement::Roundoff
        } else {
            Agreement::Exact
        }
    }

    /// In a table: `exact`, or `to roundoff`.
    pub fn word(self) -> &'static str {
        match self {
            Agreement::Exact => "exact",
            Agreement::Roundoff => "to roundoff",
        }
    }

    /// In a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Agreement::Exact => "bit for bit",
            Agreement::Roundoff => "up to roundoff",
        }
    }

    /// Largest difference of two results of a type, relative to the larger one.
    pub fn tolerance(self, dtype: DType) -> f64 {
        match (self, dtype) {
            (Agreement::Exact, _) => 0.0,
            (_, DType::F64) => 256.0 * f64::EPSILON / 2.0,
            (_, DType::F32 | DType::TF32) => 256.0 * f64::from(f32::EPSILON) / 2.0,
            (_, DType::F16) => 8.0 * 2.0_f64.powi(-11),
            (_, DType::BF16) => 8.0 * 2.0_f64.powi(-8),
            (_, DType::F8E4M3) => 2.0_f64.powi(-3),
            (_, DType::F8E5M2) => 2.0_f64.powi(-2),
            _ => 0.0,
        }
    }

    /// [`Agreement::tolerance`] of sums of up to so many values (see [`terms`]).
    fn over(self, dtype: DType, terms: u64) -> f64 {
        (terms as f64 / 2.0 / 256.0).max(1.0) * self.tolerance(dtype)
    }

    /// Whether two results of a type agree.
    pub fn agree(self, a: f64, b: f64, dtype: DType) -> bool {
        within(a, b, self.tolerance(dtype))
    }
}

/// Whether two results are the same, or differ by a share of the larger one. Of an infinite one any number would be a small
/// share.
fn within(a: f64, b: f64, share: f64) -> bool {
    let larger = a.abs().max(b.abs());
    a == b || (a.is_nan() && b.is_nan()) || larger.is_finite() && (a - b).abs() <= share * larger
}

/// The results in one buffer of a program that adds up rounded values.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The largest magnitude.
    largest: f64,
    /// The most that rounding changes a result by.
    rounding: f64,
}

impl Spread {
    /// Of every parameter, from what a program makes of it in its types, and without rounding.
    pub fn of_each(typed: &[Vec<f64>], unrounded: &[Vec<f64>]) -> Vec<Spread> {
        let most = |values: &mut dyn Iterator<Item = f64>| values.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let of = |(typed, unrounded): (&Vec<f64>, &Vec<f64>)| Spread {
            largest: most(&mut unrounded.iter().map(|v| v.abs())),
            rounding: most(&mut typed.iter().zip(unrounded).map(|(a, b)| (a - b).abs())),
        };
        typed.iter().zip(unrounded).map(of).collect()
    }

    /// Whether two results in the program's types agree, made of sums of up to so many values.
    pub fn agree(&self, a: f64, b: f64, dtype: DType, terms: u64) -> bool {
        let agreement = Agreement::Roundoff;
        agreement.agree(a, b, dtype)
            || (a - b).abs() <= (agreement.over(dtype, terms) * self.largest).max(8.0 * self.rounding)
    }

    /// Whether two results agree of which neither was rounded.
    pub fn agree_unrounded(&self, a: f64, b: f64) -> bool {
        within(a, b, 1e-9) || (a - b).abs() <= 1e-11 * self.largest
    }
}

/// The most values that a block of a program adds up into one, or that a thread does where it runs a nest in its order.
pub fn terms(program: &Program) -> u64 {
    let mut most = 0;
    let mut todo: Vec<&Stmt> = vec![&program.body.block.body];
    while let Some(stmt) = todo.pop() {
        match stmt {
            Stmt::Realize(r) => {
                most = most.max(rounding::terms_of(r));
                todo.push(&r.block.body);
            }
            Stmt::For(For { kind: ForKind::ThreadBinding(_), body, .. }) => {
                most = most.max(updates(program, body));
                todo.push(body);
            }
            Stmt::For(l) => todo.push(&l.body),
            Stmt::Seq(parts) => todo.extend(parts),
            Stmt::If { then, otherwise, .. } => {
                todo.push(then);
                todo.extend(otherwise.iter().map(|s| &**s));
            }
            Stmt::Let { body, .. } => todo.push(body),
            Stmt::Store { .. } | Stmt::Evaluate(_) => {}
        }
    }
    most
}

/// How often a thread stores to a buffer from which it read for that: its loops' steps, of which there are as many as a buffer is
/// long where data decide that.
fn updates(program: &Program, stmt: &Stmt) -> u64 {
    let of = |s: &Stmt| updates(program, s);
    match stmt {
        Stmt::For(l) => {
            let long = || program.buffers.iter().flat_map(|b| &b.shape).filter_map(constant).max();
            let steps = match l.kind {
                ForKind::ThreadBinding(_) => 1,
                _ => constant(&l.extent).or_else(long).unwrap_or(1).max(1) as u64,
            };
            of(&l.body).saturating_mul(steps)
        }
        Stmt::Realize(r) => of(&r.block.body),
        Stmt::Seq(parts) => parts.iter().map(of).max().unwrap_or(0),
        Stmt::If { then, otherwise, .. } => of(then).max(otherwise.as_deref().map_or(0, of)),
        Stmt::Let { value, body, .. } => of(body).max(u64::from(!visit::loads(value).is_empty())),
        Stmt::Store { buffer, value, .. } => u64::from(visit::loads(value).iter().any(|(b, _)| b == buffer)),
        Stmt::Evaluate(_) => 0,
    }
}

/// Whether a compiler may fuse a product of a program with a sum where that shows: on inputs up to a magnitude, whole ones if it is
/// finite, the product takes more digits than its type has.
pub(crate) fn fuses(program: &Program, input: f64) -> bool {
    let mut sums = false;
    visit::walk_stmt_exprs(&program.body.block.body, &mut |e| {
        visit::walk_expr(e, &mut |e| {
            let sum = matches!(e, Expr::Binary(BinOp::Add | BinOp::Sub, ..));
            sums |= sum && fold::dtype(e, &program.buffers).is_float();
        });
    });
    sums && Grains::of(program, input).rounds.get()
}

/// Functions whose values are exact.
pub(crate) const EXACT: [&str; 7] = ["abs", "fabs", "floor", "ceil", "round", "trunc", "nearbyint"];

/// The stores and bound values of a block itself, not of blocks in it. Bound values have no buffer.
fn own(stmt: &Stmt, out: &mut Vec<(Option<BufferId>, Expr)>) {
    match stmt {
        Stmt::Store { buffer, value, .. } => out.push((Some(*buffer), value.clone())),
        Stmt::Let { value, body, .. } => {
            out.push((None, value.clone()));
            own(body, out);
        }
        Stmt::For(l) => own(&l.body, out),
        Stmt::Seq(parts) => parts.iter().for_each(|s| own(s, out)),
        Stmt::If { then, otherwise, .. } => {
            own(then, out);
            otherwise.iter().for_each(|s| own(s, out));
        }
        Stmt::Realize(_) | Stmt::Evaluate(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_results_agree_as_far_as_their_rounding_lets_them() {
        let spread = |typed: &[f64], unrounded: &[f64]| Spread::of_each(&[typed.to_vec()], &[unrounded.to_vec()])[0];
        // A sum of many values may be further off.
        let even = spread(&[1.0, 1.0], &[1.0, 1.0]);
        assert!(even.agree(1.0, 1.0001, DType::F32, 4096) && !even.agree(1.0, 1.0001, DType::F32, 4));
        assert!(!even.agree(1.0, 1.001, DType::F32, 4096));
        // What is left of a difference is rounded as the large values were.
        let cancelled = spread(&[1.5, -0.00195], &[1.5, -0.001951]);
        assert!(
            cancelled.agree(-0.00195, -0.001957, DType::F32, 4) && !cancelled.agree(-0.00195, -0.00198, DType::F32, 4)
        );
        // A result that is infinite, or no number, says nothing about the others.
        let wild = spread(&[f64::NAN, f64::INFINITY, 1.0], &[f64::NAN, f64::INFINITY, 1.0]);
        assert!(!wild.agree(1.0, 1.001, DType::F32, 4) && wild.agree(f64::NAN, f64::NAN, DType::F32, 4));
        assert!(!wild.agree(f64::INFINITY, 1.0, DType::F32, 4) && !wild.agree_unrounded(f64::NAN, 1.0));
        // One of a million terms is missing.
        assert!(!even.agree_unrounded(1.0, 1.0 - 2f64.powi(-20)) && even.agree_unrounded(1.0, 1.0 - 1e-12));
    }

    fn of(update: &str, last: &str) -> Agreement {
        let text = format!(
            r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4,), "float32")):
    S = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 8):
        with T.sblock("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = {update}
    for i in range(4):
        with T.sblock("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = {last}
"#
        );
        Agreement::of(&satune_ir::tvmscript::parse(&text).unwrap())
    }

    /// A product and a sum are rounded twice, or once where a compiler fuses them.
    #[test]
    fn products_that_are_rounded_may_be_fused() {
        let fuses = |value: &str, input: f64| {
            let text = format!(
                "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((4,), \"float32\"), B: T.Buffer((4,), \"float32\")):\n    for i in \
                 range(4):\n        with T.sblock(\"B\"):\n            vi = T.axis.spatial(4, i)\n            B[vi] = {value}\n"
            );
            fuses(&satune_ir::tvmscript::parse(&text).unwrap(), input)
        };
        assert!(!fuses("A[vi] * A[vi] + A[vi]", 24.0) && fuses("A[vi] * A[vi] + A[vi]", f64::MAX));
        assert!(fuses("A[vi] * T.float32(0.1) - A[vi]", 24.0) && !fuses("A[vi] * T.float32(0.5) - A[vi]", 24.0));
        assert!(!fuses("A[vi] * T.float32(0.1)", 24.0) && !fuses("T.max(A[vi] * T.float32(0.1), A[vi])", 24.0));
    }

    #[test]
    fn only_sums_of_rounded_values_depend_on_their_order() {
        assert_eq!(of("S[vi] + A[vi, vk]", "S[vi] / T.float32(3)"), Agreement::Exact);
        assert_eq!(of("S[vi] + A[vi, vk]", "T.exp(S[vi])"), Agreement::Exact);
        assert_eq!(of("T.max(S[vi], T.exp(A[vi, vk]))", "S[vi]"), Agreement::Exact);
        assert_eq!(of("S[vi] + T.exp(A[vi, vk])", "S[vi]"), Agreement::Roundoff);
        assert_eq!(of("S[vi] + A[vi, vk] / T.float32(3)", "S[vi]"), Agreement::Roundoff);
        // Products, by their digits.
        assert_eq!(of("S[vi] + A[vi, vk] * T.float32(0.001)", "S[vi]"), Agreement::Roundoff);
        assert_eq!(of("S[vi] + A[vi, vk] * T.float32(0.375)", "S[vi]"), Agreement::Exact);
        assert_eq!(of("S[vi] + A[vi, vk] / T.float32(4)", "S[vi] * T.float32(0.001)"), Agreement::Exact);
        // What is rounded once and no more is the same in each schedule.
        assert_eq!(
            of("S[vi] + A[vi, vk]", "T.Cast(\"float32\", T.Cast(\"bfloat16\", S[vi] * T.float32(0.1)))"),
            Agreement::Exact
        );
        assert_eq!(of("S[vi] + A[vi, vk] * T.Cast(\"float32\", vk * 16777217)", "S[vi]"), Agreement::Roundoff);
        assert!(!Agreement::Exact.agree(1.0, 1.0000001, DType::F32));
        assert!(Agreement::Roundoff.agree(1.0, 1.0000001, DType::F32));
        assert!(!Agreement::Roundoff.agree(1.0, 1.0001, DType::F32));
        let softmax = crate::streaming::StreamProblem::operator("softmax:2,300,f32").unwrap();
        assert_eq!(terms(&softmax.program), 300);
    }
}
