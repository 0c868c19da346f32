//! How far a right kernel's results may be from those of the reference, which is exact for this purpose: the tolerances
//! of measurements on a GPU, whose inputs are random numbers.
//!
//! Errors are relative to the results' root mean square. Each rounding is off by at most a unit of roundoff u of its
//! value, and by about u / 2 in the root of the mean square; roundings of different values have nothing to do with each
//! other. So a sum of n terms, added one after the other, is off by the root of the sum of the squares of u / 2 times its
//! partial sums. For terms with mean zero the i-th partial sum is of the size s sqrt(i): that is u n s / sqrt(8), or
//! 0.35 u sqrt(n) of the result's own size s sqrt(n). For terms of one size and sign it is i s: u s sqrt(n^3 / 12), or
//! 0.29 u sqrt(n) of the result. Any other order has smaller partial sums. So u (sqrt(n) + 4) is almost three times what is
//! expected of the whole result, and a bound of n u / 2, which needs all roundings in one direction, is never near.
//!
//! What that finds: with mean zero, a result that lacks a term of the usual size s is off by 1 / sqrt(n) of its size.
//! [`SINGLE`] times the tolerance, which is asked of each single result, is below that up to n = 2^20 (8 * 2^10 * 2^-24 =
//! 2^-11, and 2^-10). With terms of one sign it is off by 1 / n, and found up to n = 16,000: beyond that the roundings of
//! a plain sum hide a term, whatever the check. Inputs with few different values may round in one direction always; those
//! of measurements are uniform in [-1, 1).
//!
//! Terms of one sign have one more error, which does grow with n: what is added to a sum n times its size is rounded to a
//! multiple of 2 u n of the mean term, and values between two multiples are more often nearer to the one where their
//! density is higher (of products the lower one). The mean of that error is the square of the multiple over 24 times the
//! density's fall over all terms, some (u n)^2 of the mean term: nothing up to n = 2^16, 10^-3 at 2^20. So that much is
//! allowed beyond, unless a term is a product of different inputs, whose mean is zero.
//!
//! Tensor cores add a step's products at once and cut off what does not fit f32 instead of rounding it ("Numerical
//! behavior of NVIDIA tensor cores", Fasi et al. 2021). That is a unit 2^-23 at most, half of it in the mean, always towards
//! zero, so the steps' errors add up: 0.5 (one sign) to 0.58 (mean zero) times 2^-24 per step, of the result. A step is
//! taken to be 8 terms long, the shortest of the GPUs that have a kernel generator. A missing term of a result is then
//! found up to n = 40,000, one missing of all results up to n = 160,000.
use satune_ir::{visit, BinOp, BlockRealize, BufferId, DType, Expr, IterKind, Program, Stmt};
use std::collections::{BTreeMap, HashMap};

/// A single result may be off by so many times the tolerance of all together: the largest of 2^30 is six deviations off.
pub const SINGLE: f64 = 8.0;
/// Units of roundoff that a function or division is off by: CUDA's of one argument by 2 as a rule, `powf` by 4 (CUDA C++
/// Programming Guide, mathematical functions), with room for the arithmetic around them (sigmoid, the sum below tanh).
pub const FUNCTION: f64 = 16.0;
/// Units for a few sums and products, each rounded once.
const ARITHMETIC: f64 = 4.0;
/// Terms that tensor cores add in one step.
const STEP: f64 = 8.0;

/// Largest relative error (root of the sum of squares, over that of the reference) of each parameter of a program; 0 for
/// those that it does not write, and for whole numbers that are made of no floats. `cores` names the block whose products are
/// made on tensor cores, if there is one.
///
/// Errors of what a block reads are added to its own, twice where it reads it more than once (a square): as if it kept
/// their relative size. A function that does not (`exp` of
/// a large sum) or a difference of nearly equal sums would need more: a right kernel would be called wrong, not the other
/// way round.
pub fn tolerances(program: &Program, cores: Option<&str>) -> Vec<f64> {
    let mut errors = Errors { program, cores, of: HashMap::new() };
    errors.stmt(&program.body.block.body);
    program.params.iter().map(|id| errors.of.get(id).copied().unwrap_or(0.0)).collect()
}

/// What a tolerance allows of results of a type whose root mean square is `root`: how far each may be off, and the relative error of
/// all. A whole number that is made of floats is another one where such a float is as near to an end as it may be off.
pub(crate) fn allowed(dtype: DType, tolerance: f64, root: f64) -> (f64, f64) {
    let single = SINGLE * tolerance * root.max(f64::MIN_POSITIVE);
    if dtype.is_float() || tolerance == 0.0 {
        return (single, tolerance);
    }
    (single.max(1.0), tolerance + (tolerance / root.max(1.0)).sqrt())
}

/// Unit of roundoff of a type: half a unit in the last place of 1; 0 of whole numbers.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2.0_f64.powi(-53),
        DType::F32 | DType::TF32 => 2.0_f64.powi(-24),
        DType::F16 => 2.0_f64.powi(-11),
        DType::BF16 => 2.0_f64.powi(-8),
        DType::F8E4M3 => 2.0_f64.powi(-4),
        DType::F8E5M2 => 2.0_f64.powi(-3),
        _ => 0.0,
    }
}

/// The smallest number of a type above 0; 0 of whole numbers.
pub fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(1),
        DType::F32 | DType::TF32 => 2.0_f64.powi(-149),
        DType::BF16 => 2.0_f64.powi(-133),
        DType::F16 => 2.0_f64.powi(-24),
        DType::F8E4M3 => 2.0_f64.powi(-9),
        DType::F8E5M2 => 2.0_f64.powi(-16),
        _ => 0.0,
    }
}

/// Relative error of a sum of so many terms, in a type with a unit of roundoff.
fn of_sums(unit: f64, terms: f64, mean_zero: bool) -> f64 {
    let drift = if mean_zero { 0.0 } else { (unit * terms).powi(2) };
    unit * (terms.sqrt() + ARITHMETIC) + drift
}

/// Relative error of a sum of products of factors of a type, on tensor cores.
fn on_tensor_cores(factor: DType, terms: f64) -> f64 {
    let least = |steps: f64| steps.max(4.0);
    let cut = 2.0_f64.powi(-24) * least(terms / STEP);
    match factor {
        whole if !whole.is_float() => 0.0,
        // sm_90 adds fp8 products with about 13 bits of fraction and cuts the rest off in each step of 32 (as published, with
        // an error of up to 2% at 4096 terms; not measured here).
        DType::F8E4M3 | DType::F8E5M2 => 2.0_f64.powi(-14) * least(terms / 32.0),
        // As tf32 operands lose up to 2^-10 of their value, always towards zero, so that products are off by as much in the
        // mean.
        DType::F32 | DType::TF32 => 2.0_f64.powi(-9) + cut,
        _ => cut,
    }
}

struct Errors<'a> {
    program: &'a Program,
    cores: Option<&'a str>,
    of: HashMap<BufferId, f64>,
}

impl Errors<'_> {
    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::For(l) => self.stmt(&l.body),
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s)),
            Stmt::Realize(r) => {
                self.stmt(&r.block.body);
                self.block(r);
            }
            Stmt::If { then, otherwise, .. } => {
                self.stmt(then);
                otherwise.iter().for_each(|s| self.stmt(s));
            }
            Stmt::Let { body, .. } => self.stmt(body),
            Stmt::Store { .. } | Stmt::Evaluate(_) => {}
        }
    }

    fn block(&mut self, r: &BlockRealize) {
        let mut stores = Vec::new();
        super::own(&r.block.body, &mut stores);
        let bound: Vec<&Expr> = stores.iter().filter(|(b, _)| b.is_none()).map(|(_, e)| e).collect();
        for (target, value) in stores.iter().filter_map(|(b, e)| Some(((*b)?, e))) {
            let error = self.error(r, target, value, &bound);
            let known = self.of.entry(target).or_default();
            *known = known.max(error);
        }
    }

    /// Relative error of what a block stores.
    fn error(&self, r: &BlockRealize, target: BufferId, value: &Expr, bound: &[&Expr]) -> f64 {
        let stored = self.program.buffer(target).dtype;
        // A cast at the end is a rounding of its own.
        let inner = if let Expr::Cast(to, inner) = value { Some((*to, inner.as_ref())) } else { None };
        let inner = inner.filter(|(to, _)| to.is_float()).map_or(value, |(_, inner)| inner);
        let computed = self.made_of(inner);
        let (mut operations, mut functions, mut reads) = (0_u32, 0_u32, BTreeMap::<BufferId, u32>::new());
        for e in std::iter::once(&inner).chain(bound) {
            visit::walk_expr(e, &mut |e| match e {
                Expr::Binary(BinOp::Div, ..) | Expr::Call(..) => functions += 1,
                Expr::Binary(op, a, _) => {
                    let rounds = matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul);
                    operations += u32::from(rounds && self.dtype(a).is_float());
                }
                Expr::Load(b, _) if *b != target => *reads.entry(*b).or_default() += 1,
                _ => {}
            });
        }
        let of = |(b, count): (&BufferId, &u32)| self.of.get(b).map_or(0.0, |e| e * f64::from((*count).min(2)));
        let read: f64 = reads.iter().map(of).sum();
        let of_type = unit(computed);
        let adds =
            matches!(inner, Expr::Binary(BinOp::Add, ..)) && visit::loads(inner).iter().any(|(b, _)| *b == target);
        let own = if adds {
            let terms = terms_of(r) as f64;
            let plain = of_sums(of_type, terms, self.has_mean_zero(inner, target));
            match self.cores {
                Some(name) if name == r.block.name => plain.max(self.of_products(inner, target, terms)),
                _ => plain,
            }
        } else {
            of_type * if operations > 0 { ARITHMETIC } else { 0.0 }
        };
        let narrowed = if unit(stored) > of_type { unit(stored) } else { 0.0 };
        read + own + FUNCTION * of_type * f64::from(functions) + narrowed
    }

    /// Whether the terms of a sum are products of different inputs, or inputs.
    fn has_mean_zero(&self, value: &Expr, target: BufferId) -> bool {
        let mut plain = true;
        visit::walk_expr(value, &mut |e| {
            plain &= !matches!(
                e,
                Expr::Call(..) | Expr::Select { .. } | Expr::Binary(BinOp::Div | BinOp::Min | BinOp::Max, ..)
            );
        });
        let mut inputs: Vec<BufferId> = Vec::new();
        for (b, _) in visit::loads(value).into_iter().filter(|(b, _)| *b != target) {
            plain &= self.program.params.contains(&b) && !self.of.contains_key(&b) && !inputs.contains(&b);
            inputs.push(b);
        }
        plain
    }

    /// Relative error of a block's sum of products on tensor cores.
    fn of_products(&self, value: &Expr, target: BufferId, terms: f64) -> f64 {
        let factor = visit::loads(value).into_iter().find(|(b, _)| *b != target).map(|(b, _)| b);
        factor.map_or(0.0, |b| on_tensor_cores(self.program.buffer(b).dtype, terms))
    }

    /// The type in which a value is computed; of a whole number that of the float which it is made of, if it is.
    fn made_of(&self, value: &Expr) -> DType {
        let mut found = self.dtype(value);
        if !found.is_float() {
            visit::walk_expr(value, &mut |e| {
                let of = match e {
                    Expr::Cast(_, a) | Expr::Binary(_, a, _) => self.dtype(a),
                    _ => return,
                };
                if of.is_float() {
                    found = of;
                }
            });
        }
        found
    }

    fn dtype(&self, e: &Expr) -> DType {
        match e {
            Expr::Int(_, t) | Expr::Float(_, t) | Expr::Cast(t, _) | Expr::Call(_, _, t) => *t,
            Expr::Var(v) => v.dtype,
            Expr::Binary(_, a, _) => self.dtype(a),
            Expr::Select { then, .. } => self.dtype(then),
            Expr::Load(b, _) => self.program.buffer(*b).dtype,
            Expr::Not(_) => DType::Bool,
            Expr::Str(_) => DType::Handle,
        }
    }
}

/// The values that a block adds up into one.
pub(super) fn terms_of(r: &BlockRealize) -> u64 {
    let reduced = r.block.iter_vars.iter().filter(|iv| iv.kind == IterKind::Reduce);
    let extent = |e: &Expr| if let Expr::Int(n, _) = e { n.unsigned_abs() } else { 1 };
    reduced.fold(1, |n: u64, iv| n.saturating_mul(extent(&iv.extent)))
}

/// Whether a kernel's results pass a check against the reference: relative error of all, and none further off than
/// [`SINGLE`] times the tolerance allows.
#[cfg(test)]
fn passes(got: &[f64], expected: &[f64], tolerance: f64) -> bool {
    let squares = |list: &mut dyn Iterator<Item = f64>| list.map(|x| x * x).sum::<f64>();
    let size = squares(&mut expected.iter().copied());
    let distance = squares(&mut got.iter().zip(expected).map(|(x, y)| x - y));
    let bound = SINGLE * tolerance * (size / expected.len() as f64).sqrt();
    (distance / size).sqrt() <= tolerance && got.iter().zip(expected).all(|(x, y)| (x - y).abs() <= bound)
}

#[cfg(test)]
mod tests;
