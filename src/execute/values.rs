//! Inputs of a program that is executed: every element by its place alone, so that large buffers are never made.
use super::inputs::size;
use crate::agreement::{smallest, Agreement};
use satune_ir::affine::constant;
use satune_ir::interp::{self, Array, Bounds, Fault, InputRule, Scalar};
use satune_ir::semantics::round;
use satune_ir::{fp8, visit, BufferId, DType, Expr, Program};
use satune_ptx::Initial;
use std::sync::Arc;

/// Kinds of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// Whole numbers, as large as sums of them are exact (so that what rounds a result to its type is seen), at most 24;
    /// integers that never become floats from their whole range.
    Ordinary,
    /// Among them NaN, infinities, zeros of both signs, denormals, the ends of the range, and the program's own constants with
    /// their neighbours; a first line of ones. Where values are added up, only as many as leave results that say something.
    Extreme,
}

/// The inputs of a program, of one kind.
#[derive(Clone, Debug)]
pub struct Inputs {
    kind: InputKind,
    rules: Vec<(DType, InputRule)>,
    constants: Vec<f64>,
    whole: Vec<i64>,
    /// One of so many elements is out of the ordinary.
    rare: u64,
    /// Values are added up.
    sums: bool,
    /// The largest magnitude of what is ordinary.
    most: i64,
    /// Elements of each parameter's first line; 0 where it has one dimension.
    lines: Vec<u64>,
    /// Instructions of the kernels take singles with the digits of `tf32` only.
    tf32: bool,
    seed: u64,
}

/// Most constants of a program that are tried.
const CONSTANTS: usize = 16;

impl Inputs {
    /// Of a program in which a value is made of up to so many others.
    pub fn of(program: &Program, kind: InputKind, terms: u64, tf32: bool, seed: u64) -> Inputs {
        let dtypes = program.params.iter().map(|p| program.buffer(*p).dtype);
        let rules = dtypes.zip(interp::input_rules(program)).collect();
        let (mut constants, mut whole) = (Vec::new(), Vec::new());
        visit::walk_stmt_exprs(&program.body.block.body, &mut |e| {
            visit::walk_expr(e, &mut |e| match e {
                Expr::Float(x, _) if constants.len() < CONSTANTS && !constants.contains(&f64::from_bits(*x)) => {
                    constants.push(f64::from_bits(*x));
                }
                Expr::Int(n, _) if whole.len() < CONSTANTS && !whole.contains(n) => whole.push(*n),
                _ => {}
            });
        });
        let rare = if terms > 1 { 4 * terms } else { 2 };
        let exact = |most: &i64| Agreement::up_to(program, *most as f64) == Agreement::Exact;
        let most = [24, 8].into_iter().find(|most| kind == InputKind::Ordinary && exact(most)).unwrap_or(3);
        let line = |p: &BufferId| match program.buffer(*p).shape.split_first() {
            Some((_, rest)) if !rest.is_empty() => rest.iter().map(|e| constant(e).unwrap_or(0) as u64).product(),
            _ => 0,
        };
        let lines = program.params.iter().map(line).collect();
        Inputs { kind, rules, constants, whole, rare, sums: terms > 1, most, lines, tf32, seed }
    }

    /// The largest magnitude of floats.
    pub fn largest(&self) -> f64 {
        match self.kind {
            InputKind::Ordinary => self.most as f64,
            InputKind::Extreme => f64::MAX,
        }
    }

    /// An element of a parameter.
    pub fn scalar(&self, param: usize, at: u64) -> Scalar {
        let Some((dtype, rule)) = self.rules.get(param) else { return Scalar::int(0, DType::I32) };
        let any = mixed(self.seed ^ ((param as u64 + 1) << 48) ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (min, count) = match (rule.index_below, *dtype) {
            (Some(extent), _) => return Scalar::int((any >> 33) as i64 % extent.clamp(1, 128), *dtype),
            (None, DType::Bool) => return Scalar::int((any >> 33) as i64 & 1, *dtype),
            (None, DType::U8 | DType::U16 | DType::U32 | DType::U64) => (0, 4),
            (None, dtype) if dtype.is_float() => (-self.most, 2 * self.most + 1),
            (None, _) => (-3, 7),
        };
        if self.kind == InputKind::Extreme && at < self.lines[param] {
            // All the same: nothing varies, and what guards a division by that is needed.
            return Scalar::int(1, *dtype);
        }
        if self.kind == InputKind::Extreme && (any >> 20) % self.rare == 0 {
            if let Some(value) = self.extreme(*dtype, rule, mixed(any)) {
                return value;
            }
        }
        if rule.wide {
            match any & 7 {
                0 | 1 => {
                    let (low, high) = dtype.int_range().unwrap_or((0, 0));
                    let end = if any & 8 == 0 { low } else { high };
                    return Scalar::int(end.wrapping_add((any >> 8 & 3) as i64 - 1), *dtype);
                }
                2 | 3 => return Scalar::int(any as i64 >> 3, *dtype),
                _ => {}
            }
        }
        Scalar::int((any >> 33) as i64 % count + min, *dtype)
    }

    fn extreme(&self, dtype: DType, rule: &InputRule, any: u64) -> Option<Scalar> {
        let pick = (any >> 8) as usize;
        if dtype.is_float() {
            let largest = match dtype {
                DType::F64 => f64::MAX,
                DType::F16 => 65504.0,
                DType::F8E4M3 => fp8::E4M3.largest,
                DType::F8E5M2 => fp8::E5M2.largest,
                DType::BF16 => f64::from(half::bf16::MAX),
                _ => f64::from(f32::MAX),
            };
            let least = smallest(dtype);
            let mut list = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, least, -least, 5.0 * least];
            for c in self.constants.iter().copied().chain(self.whole.iter().map(|n| *n as f64)) {
                // Where values are added up, what is large hides the others.
                if !self.sums || c.abs() <= 8.0 {
                    list.extend([c, c * (1.0 + f64::from(f32::EPSILON)), c * (1.0 - f64::from(f32::EPSILON))]);
                }
            }
            if !self.sums {
                list.extend([largest, -largest, largest / 3.0, 1e4 * least, 0.1, -1.75]);
            }
            let value = list[pick % list.len()];
            let exact = if self.tf32 && dtype == DType::F32 { round(value, DType::TF32) } else { value };
            // Infinities of 8 bits, too.
            return Some(Scalar::of_held(exact, dtype));
        }
        let (low, high) = dtype.int_range()?;
        let mut list: Vec<i64> = self.whole.iter().flat_map(|n| [n.wrapping_sub(1), *n, n.wrapping_add(1)]).collect();
        if rule.wide || !self.sums {
            list.extend([low, low.wrapping_add(1), high, high.wrapping_sub(1), 0, -1, 1, high / 2, any as i64]);
        }
        (!list.is_empty()).then(|| Scalar::int(list[pick % list.len()], dtype))
    }

    /// A part of a parameter, whose whole shape is given; unwritten where the program reads nothing of it.
    ///
    /// # Errors
    /// More memory than there is.
    pub fn array(&self, param: usize, shape: &[i64], bounds: &Bounds) -> Result<Array, Fault> {
        let (dtype, rule) = self.rules[param];
        let part: Vec<i64> = bounds.iter().map(|(low, high)| (high - low).max(1)).collect();
        let mut array = Array::unwritten(dtype, &part)?;
        if rule.read {
            for at in 0..array.len() {
                array.set(at, self.scalar(param, place(at as u64, &part, shape, bounds)));
            }
        }
        Ok(array)
    }

    /// Whether the program reads what somebody else left in a parameter.
    pub fn read(&self, param: usize) -> bool {
        self.rules[param].1.read
    }

    /// A parameter's type.
    pub fn dtype(&self, param: usize) -> DType {
        self.rules[param].0
    }

    /// What a parameter holds before the program runs.
    pub fn initial(self: &Arc<Inputs>, param: usize) -> Initial {
        if !self.read(param) {
            return Initial::Undefined;
        }
        let (inputs, bytes) = (self.clone(), size(self.dtype(param)));
        Initial::Formula(Arc::new(move |offset, to| {
            let mut done = 0;
            while done < to.len() {
                let at = offset + done as u64;
                let inside = (at % bytes) as usize;
                let element = inputs.scalar(param, at / bytes).bits().to_le_bytes();
                let piece = (bytes as usize - inside).min(to.len() - done);
                to[done..done + piece].copy_from_slice(&element[inside..inside + piece]);
                done += piece;
            }
        }))
    }
}

/// The row-major position in a whole buffer of an element of a part of it.
pub fn place(at: u64, part: &[i64], shape: &[i64], bounds: &Bounds) -> u64 {
    let (mut rest, mut out, mut stride) = (at, 0, 1);
    for ((part, extent), (low, _)) in part.iter().zip(shape).zip(bounds).rev() {
        out += (rest % (*part).max(1) as u64 + *low as u64) * stride;
        rest /= (*part).max(1) as u64;
        stride *= *extent as u64;
    }
    out
}

/// Splitmix64's last step: any number of 64 bits, evenly.
fn mixed(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The value of bytes in memory. A byte that is neither 0 nor 1 is no boolean.
pub fn value(dtype: DType, bytes: &[u8]) -> Scalar {
    let bits = bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    Scalar::of_bits(bits, if dtype == DType::Bool && bits > 1 { DType::U8 } else { dtype })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_values_are_each_other_s() {
        let types = [
            DType::F64,
            DType::F32,
            DType::F16,
            DType::BF16,
            DType::F8E4M3,
            DType::F8E5M2,
            DType::I8,
            DType::I16,
            DType::I32,
            DType::I64,
            DType::U8,
            DType::U32,
            DType::U64,
        ];
        for dtype in types {
            for n in [-3.0, -1.0, -0.0, 0.0, 1.0, 2.5, 448.0, f64::INFINITY, f64::NAN] {
                let scalar = Scalar::float(n, dtype);
                let bytes = &scalar.bits().to_le_bytes()[..size(dtype) as usize];
                assert_eq!(value(dtype, bytes), scalar, "{dtype:?} {n}");
            }
        }
    }

    #[test]
    fn parts_have_the_values_of_the_whole() {
        let text = "
@T.prim_func(s_tir=True)
def main(A: T.Buffer((6, 10), \"float32\"), B: T.Buffer((6, 10), \"float32\")):
    for i, j in T.grid(6, 10):
        with T.sblock(\"B\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1.5)
";
        let program = satune_ir::tvmscript::parse(text).unwrap();
        let inputs = Arc::new(Inputs::of(&program, InputKind::Extreme, 1, false, 3));
        let part = inputs.array(0, &[6, 10], &vec![(2, 5), (3, 7)]).unwrap();
        let Initial::Formula(formula) = inputs.initial(0) else { panic!() };
        let mut bytes = [0; 4];
        formula(4 * (10 * 3 + 4), &mut bytes);
        assert_eq!(part.at(&[1, 1]), Some(value(DType::F32, &bytes)));
        assert!(matches!(inputs.initial(1), Initial::Undefined));
    }
}
