//! Functions of floats: computed in `f64`, then rounded to the type of the call.
use super::round;
use crate::DType;

/// A function of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Exp,
    Exp2,
    Exp10,
    Log,
    Log2,
    Log10,
    Log1p,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Sigmoid,
    Abs,
    Floor,
    Ceil,
    Round,
    NearbyInt,
    Trunc,
    Pow,
    Atan2,
    Fmod,
    Copysign,
    Hypot,
    Fma,
}

impl Function {
    /// The function of a name without prefix, and how many arguments it takes.
    pub fn named(name: &str) -> Option<(Function, usize)> {
        use Function::*;
        Some(match name {
            "exp" => (Exp, 1),
            "exp2" => (Exp2, 1),
            "exp10" => (Exp10, 1),
            "log" => (Log, 1),
            "log2" => (Log2, 1),
            "log10" => (Log10, 1),
            "log1p" => (Log1p, 1),
            "sqrt" => (Sqrt, 1),
            "rsqrt" => (Rsqrt, 1),
            "sin" => (Sin, 1),
            "cos" => (Cos, 1),
            "tan" => (Tan, 1),
            "asin" => (Asin, 1),
            "acos" => (Acos, 1),
            "atan" => (Atan, 1),
            "sinh" => (Sinh, 1),
            "cosh" => (Cosh, 1),
            "tanh" => (Tanh, 1),
            "asinh" => (Asinh, 1),
            "acosh" => (Acosh, 1),
            "atanh" => (Atanh, 1),
            "erf" => (Erf, 1),
            "sigmoid" => (Sigmoid, 1),
            "abs" | "fabs" => (Abs, 1),
            "floor" => (Floor, 1),
            "ceil" => (Ceil, 1),
            "round" => (Round, 1),
            "nearbyint" | "rint" => (NearbyInt, 1),
            "trunc" => (Trunc, 1),
            "pow" | "power" => (Pow, 2),
            "atan2" => (Atan2, 2),
            "fmod" => (Fmod, 2),
            "copysign" => (Copysign, 2),
            "hypot" => (Hypot, 2),
            "fma" => (Fma, 3),
            _ => return None,
        })
    }

    /// Its value, of type `dtype`; arguments that it does not take are ignored.
    pub fn apply(self, [a, b, c]: [f64; 3], dtype: DType) -> f64 {
        let value = match self {
            Function::Exp => a.exp(),
            Function::Exp2 => a.exp2(),
            Function::Exp10 => 10f64.powf(a),
            Function::Log => a.ln(),
            Function::Log2 => a.log2(),
            Function::Log10 => a.log10(),
            Function::Log1p => a.ln_1p(),
            Function::Sqrt => a.sqrt(),
            Function::Rsqrt => 1.0 / a.sqrt(),
            Function::Sin => a.sin(),
            Function::Cos => a.cos(),
            Function::Tan => a.tan(),
            Function::Asin => a.asin(),
            Function::Acos => a.acos(),
            Function::Atan => a.atan(),
            Function::Sinh => a.sinh(),
            Function::Cosh => a.cosh(),
            Function::Tanh => a.tanh(),
            Function::Asinh => a.asinh(),
            Function::Acosh => a.acosh(),
            Function::Atanh => a.atanh(),
            Function::Erf => erf(a),
            Function::Sigmoid => 1.0 / (1.0 + (-a).exp()),
            Function::Abs => a.abs(),
            Function::Floor => a.floor(),
            Function::Ceil => a.ceil(),
            Function::Round => a.round(),
            Function::NearbyInt => a.round_ties_even(),
            Function::Trunc => a.trunc(),
            Function::Pow => a.powf(b),
            Function::Atan2 => a.atan2(b),
            Function::Fmod => a % b,
            Function::Copysign => a.copysign(b),
            Function::Hypot => a.hypot(b),
            // In f64 the sum would be rounded before it is rounded to f32.
            Function::Fma if dtype == DType::F32 => f64::from((a as f32).mul_add(b as f32, c as f32)),
            Function::Fma => a.mul_add(b, c),
        };
        round(value, dtype)
    }
}

/// `2/sqrt(pi) exp(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!`: all terms have one sign, so nothing cancels.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    // 1 - erf(6) is below half a unit in the last place.
    if x.abs() >= 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// The smaller one; a number rather than NaN, `-0.0` rather than `0.0`, so that the order of operands never matters.
pub fn min(a: f64, b: f64) -> f64 {
    if a < b || b.is_nan() || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

/// The larger one; a number rather than NaN, `0.0` rather than `-0.0`.
pub fn max(a: f64, b: f64) -> f64 {
    if a > b || b.is_nan() || (a == b && a.is_sign_positive()) {
        a
    } else {
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_function() {
        for (x, y) in [(0.0, 0.0), (0.5, 0.5204998778130465), (1.0, 0.8427007929497149), (3.0, 0.9999779095030014)] {
            assert!((erf(x) - y).abs() < 1e-15 && erf(-x) == -erf(x), "erf({x}) = {}", erf(x));
        }
        assert_eq!((erf(f64::INFINITY), erf(-7.0)), (1.0, -1.0));
    }

    #[test]
    fn minimum_does_not_depend_on_order() {
        let same = |a: f64, b: f64| a.to_bits() == b.to_bits();
        assert!(same(min(0.0, -0.0), -0.0) && same(min(-0.0, 0.0), -0.0));
        assert!(same(max(0.0, -0.0), 0.0) && same(max(-0.0, 0.0), 0.0));
        assert!(min(f64::NAN, 1.0) == 1.0 && max(1.0, f64::NAN) == 1.0 && min(2.0, 1.0) == 1.0);
        assert!(max(f64::NAN, f64::NAN).is_nan());
    }

    #[test]
    fn fma_rounds_once() {
        let (a, b, c) = (1.0 + 2f64.powi(-23), 1.0 - 2f64.powi(-23), -1.0);
        assert_eq!(Function::Fma.apply([a, b, c], DType::F32), -(2f64.powi(-46)));
    }
}
