//! Which values of a program are exact on the inputs of a check, small integers: the multiples of what power of two they are,
//! and how large. A sum or product of exact values is exact where its type has as many digits as that takes, in any order. So
//! `x * 0.5` is, `x * 0.001` is not, and a sum of halves is up to some hundreds of terms.
use super::{rounding, EXACT};
use satune_ir::interp::{first_uses, FirstUse};
use satune_ir::{
    fold, fp8, semantics, visit, BinOp, BlockRealize, BufferId, DType, Expr, IterKind, Program, Stmt, VarId,
};
use std::cell::Cell;
use std::collections::HashMap;

/// Largest magnitude of an input of a check.
pub(super) const INPUT: f64 = 3.0;

/// Multiples of `2^low`, none larger than `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grain {
    low: i32,
    high: f64,
}

/// 0 is a multiple of everything.
const ZERO: Grain = Grain { low: i32::MAX, high: 0.0 };

impl Grain {
    fn whole(high: f64) -> Grain {
        Grain { low: 0, high }
    }

    /// Of one number. An infinity is the same in any order.
    fn of(value: f64) -> Grain {
        if value == 0.0 || !value.is_finite() {
            return ZERO;
        }
        let bits = value.to_bits();
        let (exponent, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
        let digits = if exponent == 0 { fraction } else { fraction | 1 << 52 };
        Grain { low: exponent.max(1) - 1075 + digits.trailing_zeros() as i32, high: value.abs() }
    }

    fn join(self, other: Grain) -> Grain {
        Grain { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    fn plus(self, other: Grain, times: f64) -> Grain {
        Grain { low: self.low.min(other.low), high: self.high + times * other.high }
    }

    fn times(self, other: Grain) -> Grain {
        if self.high == 0.0 || other.high == 0.0 {
            return ZERO;
        }
        Grain { low: self.low.saturating_add(other.low), high: self.high * other.high }
    }

    /// As values of a type; none where the type rounds some.
    fn within(self, dtype: DType) -> Option<Grain> {
        if self.high == 0.0 {
            return Some(ZERO);
        }
        if let Some((least, most)) = dtype.int_range() {
            // Integers wrap, and are exact.
            let end = (most as f64).max(-(least as f64));
            return Some(Grain { low: self.low.max(0), high: self.high.min(end) });
        }
        let (digits, largest) = match dtype {
            DType::F64 => (53, f64::MAX),
            DType::F32 => (24, f64::from(f32::MAX)),
            DType::TF32 => (11, f64::from(f32::MAX)),
            DType::F16 => (11, 65504.0),
            DType::BF16 => (8, 3e38),
            DType::F8E4M3 => (4, fp8::E4M3.largest),
            _ => (3, fp8::E5M2.largest),
        };
        let held = self.high <= largest && self.high.log2().floor() as i32 - self.low < digits;
        held.then_some(self)
    }
}

/// What is known of a program's values. None of what is rounded.
pub(super) struct Grains<'p> {
    program: &'p Program,
    of: HashMap<BufferId, Option<Grain>>,
    vars: HashMap<VarId, Option<Grain>>,
    /// Largest magnitude of an input.
    input: f64,
    /// Whether rounded values are added up, or multiplied.
    pub depends: bool,
    /// Whether a product of floats is rounded: one that a compiler fuses with a sum is not.
    pub rounds: Cell<bool>,
}

impl<'p> Grains<'p> {
    /// Of inputs that are whole numbers up to a magnitude.
    pub fn of(program: &'p Program, input: f64) -> Grains<'p> {
        let read = program.params.iter().zip(first_uses(program)).filter(|(_, first)| *first == Some(FirstUse::Read));
        let of = read.map(|(b, _)| (*b, Some(Grain::whole(input)))).collect();
        let mut grains = Grains { program, of, vars: HashMap::new(), input, depends: false, rounds: Cell::new(false) };
        // Once more, for what a loop brings round.
        for _ in 0..2 {
            grains.realize(&program.body);
        }
        // What grows by itself, or gets finer, each time (a recurrence) does so without end, and is rounded.
        let before = grains.of.clone();
        grains.realize(&program.body);
        let grows = |(b, now): (&BufferId, &Option<Grain>)| {
            let (now, was) = (*now).zip(before.get(b).copied().flatten())?;
            let more = now.high >= 2.0 * was.high && was.high > 0.0 || now.low < was.low;
            (more && program.buffer(*b).dtype.is_float()).then_some(*b)
        };
        let growing: Vec<BufferId> = grains.of.iter().filter_map(grows).collect();
        if !growing.is_empty() {
            grains.depends = true;
            grains.of.extend(growing.into_iter().map(|b| (b, None)));
            grains.realize(&program.body);
        }
        grains
    }

    fn dtype(&self, e: &Expr) -> DType {
        fold::dtype(e, &self.program.buffers)
    }

    fn grain(&self, e: &Expr) -> Option<Grain> {
        let grain = self.exact(e);
        let product = matches!(e, Expr::Binary(BinOp::Mul, ..)) && self.dtype(e).is_float();
        self.rounds.set(self.rounds.get() || product && grain.is_none());
        grain
    }

    fn exact(&self, e: &Expr) -> Option<Grain> {
        let grain = match e {
            Expr::Int(v, _) => Grain::of(*v as f64),
            Expr::Float(bits, t) => Grain::of(semantics::round(f64::from_bits(*bits), *t)),
            Expr::Str(_) | Expr::Not(_) => Grain::whole(1.0),
            Expr::Var(v) => match self.vars.get(&v.id) {
                Some(known) => (*known)?,
                None => Grain::whole(f64::MAX),
            },
            Expr::Cast(_, a) => self.grain(a)?,
            Expr::Load(b, _) => self.of.get(b).copied().unwrap_or(Some(Grain::whole(self.input)))?,
            Expr::Select { then, otherwise, .. } => {
                let (then, otherwise) = self.grain(then).zip(self.grain(otherwise))?;
                then.join(otherwise)
            }
            Expr::Binary(op, a, b) => self.binary(*op, a, b)?,
            Expr::Call(name, args, _) => self.call(name.rsplit('.').next().unwrap_or(name), args)?,
        };
        grain.within(self.dtype(e))
    }

    fn binary(&self, op: BinOp, a: &Expr, b: &Expr) -> Option<Grain> {
        if fold::is_condition(op) {
            return Some(Grain::whole(1.0));
        }
        // Both are looked at, whatever the first one is.
        let (a, b) = self.grain(a).zip(self.grain(b))?;
        Some(match op {
            BinOp::Add | BinOp::Sub => a.plus(b, 1.0),
            BinOp::Mul => a.times(b),
            BinOp::Min | BinOp::Max => a.join(b),
            // By a power of two.
            BinOp::Div if b.high > 0.0 && b.high == 2f64.powi(b.low) => {
                Grain { low: a.low.saturating_sub(b.low), high: a.high / b.high }
            }
            BinOp::Div => return None,
            BinOp::FloorMod | BinOp::TruncMod => Grain::whole(a.high.max(b.high)),
            BinOp::FloorDiv | BinOp::TruncDiv | BinOp::Shr => Grain::whole(a.high),
            _ => Grain::whole(f64::MAX),
        })
    }

    fn call(&self, name: &str, args: &[Expr]) -> Option<Grain> {
        Some(match (name, args) {
            ("likely", [a]) => self.grain(a)?,
            ("if_then_else", [_, a, b]) => self.grain(a)?.join(self.grain(b)?),
            ("isnan" | "isinf" | "isfinite", _) => Grain::whole(1.0),
            ("popcount" | "clz", _) => Grain::whole(64.0),
            ("abs" | "fabs", [a]) | ("copysign", [a, _]) => self.grain(a)?,
            ("fma", [a, b, c]) => self.grain(a)?.times(self.grain(b)?).plus(self.grain(c)?, 1.0),
            (name, [a]) if EXACT.contains(&name) => Grain::whole(self.grain(a)?.high + 1.0),
            _ => return None,
        })
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Realize(r) => self.realize(r),
            Stmt::For(l) => {
                self.vars.insert(l.var.id, Some(range(&l.min, &l.extent)));
                self.stmt(&l.body);
            }
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s)),
            Stmt::If { then, otherwise, .. } => {
                self.stmt(then);
                otherwise.iter().for_each(|s| self.stmt(s));
            }
            Stmt::Let { body, .. } => self.stmt(body),
            Stmt::Store { .. } | Stmt::Evaluate(_) => {}
        }
    }

    fn realize(&mut self, r: &BlockRealize) {
        for iv in &r.block.iter_vars {
            self.vars.insert(iv.var.id, Some(range(&iv.min, &iv.extent)));
        }
        self.stmt(&r.block.body);
        let mut begun = HashMap::new();
        if let Some(init) = &r.block.init {
            self.stores(init, &mut |grains, buffer, value| {
                begun.insert(buffer, grains.grain(value));
            });
        }
        let reduces = r.block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce);
        let terms = rounding::terms_of(r) as f64;
        self.stores(&r.block.body, &mut |grains, buffer, value| {
            let grain = grains.update(buffer, value, terms, reduces, begun.get(&buffer).copied());
            let known = grains.of.get(&buffer).copied().unwrap_or(grain);
            grains.of.insert(buffer, known.zip(grain).map(|(a, b)| a.join(b)));
        });
    }

    /// Of what a block leaves in an element, which it updates so often, beginning with what its init leaves.
    fn update(
        &mut self,
        buffer: BufferId,
        value: &Expr,
        terms: f64,
        reduces: bool,
        begun: Option<Option<Grain>>,
    ) -> Option<Grain> {
        let own = |e: &Expr| matches!(e, Expr::Load(b, _) if *b == buffer);
        let accumulates = visit::loads(value).iter().any(|(b, _)| *b == buffer);
        let dtype = self.program.buffer(buffer).dtype;
        let parts = match value {
            Expr::Binary(op, a, b) if own(a) => Some((*op, b)),
            Expr::Binary(op, a, b) if own(b) => Some((*op, a)),
            _ => None,
        };
        let grain = match parts {
            // The first value is none of the inputs', or smaller than all.
            Some((BinOp::Min | BinOp::Max, term)) => return self.grain(term)?.within(dtype),
            Some((BinOp::Add | BinOp::Sub, term)) => {
                let before = begun.unwrap_or_else(|| self.of.get(&buffer).copied().unwrap_or(Some(ZERO)));
                let term = self.grain(term);
                before.zip(term).and_then(|(before, term)| before.plus(term, terms).within(dtype))
            }
            // Of whole numbers any order is right.
            Some((_, term)) if reduces && !dtype.is_float() => {
                self.grain(term).and_then(|_| Grain::whole(f64::MAX).within(dtype))
            }
            Some(_) if reduces => None,
            _ => self.grain(value).and_then(|grain| grain.within(dtype)),
        };
        self.depends |= grain.is_none() && (accumulates || reduces);
        grain
    }

    /// The stores of a block itself, not of blocks in it, with what is bound around them known.
    fn stores(&mut self, stmt: &Stmt, f: &mut dyn FnMut(&mut Self, BufferId, &Expr)) {
        match stmt {
            Stmt::Store { buffer, value, .. } => f(self, *buffer, value),
            Stmt::Let { var, value, body } => {
                let grain = self.grain(value).and_then(|grain| grain.within(var.dtype));
                self.vars.insert(var.id, grain);
                self.stores(body, f);
            }
            Stmt::For(l) => {
                self.vars.insert(l.var.id, Some(range(&l.min, &l.extent)));
                self.stores(&l.body, f);
            }
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stores(s, f)),
            Stmt::If { then, otherwise, .. } => {
                self.stores(then, f);
                otherwise.iter().for_each(|s| self.stores(s, f));
            }
            Stmt::Realize(_) | Stmt::Evaluate(_) => {}
        }
    }
}

/// Of a loop's variable.
fn range(min: &Expr, extent: &Expr) -> Grain {
    match (min, extent) {
        (Expr::Int(min, _), Expr::Int(extent, _)) => {
            Grain::whole(min.unsigned_abs() as f64 + extent.unsigned_abs() as f64)
        }
        _ => Grain::whole(f64::MAX),
    }
}
