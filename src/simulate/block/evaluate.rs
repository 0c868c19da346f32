//! Values, conditions and integer expressions, for all threads at once.
use super::{Fault, FaultKind, Ints, Loaded, Mask, Runner};
use crate::kernel::{Arith, ArrayId, Comparison, Cond, Dim, Index, Value};
use crate::simulate::memory::round;
use satune_ir::{interp, DType};
use std::rc::Rc;

impl Runner<'_> {
    /// The value that a statement computes.
    pub(super) fn value(&mut self, value: &Value, mask: &Mask) -> Result<Vec<f64>, Fault> {
        self.loaded.clear();
        self.repeats = repeats(value);
        self.term(value, mask)
    }

    fn term(&mut self, value: &Value, mask: &Mask) -> Result<Vec<f64>, Fault> {
        let n = self.threads;
        Ok(match value {
            Value::Float(v, dtype) => vec![round(*dtype, *v); n],
            Value::Int(v, _) => vec![*v as f64; n],
            Value::Load(array, index) => self.load_once(*array, index, mask)?,
            Value::Binary(op, dtype, a, b) => {
                let (a, b) = (self.term(a, mask)?, self.term(b, mask)?);
                self.here().arithmetic += self.warps(mask);
                let held = self.held(*dtype);
                a.iter().zip(&b).map(|(a, b)| round(held, arithmetic(*op, *a, *b))).collect()
            }
            Value::Fma(dtype, a, b, c) => {
                let (a, b, c) = (self.term(a, mask)?, self.term(b, mask)?, self.term(c, mask)?);
                self.here().fma += self.warps(mask);
                let held = self.held(*dtype);
                (0..n).map(|t| fused(held, a[t], b[t], c[t])).collect()
            }
            Value::Unary(name, dtype, a) => {
                let a = self.term(a, mask)?;
                self.here().arithmetic += self.warps(mask);
                let held = self.held(*dtype);
                let f = |a: &f64| interp::intrinsic(name, &[*a], held);
                let values: Option<Vec<f64>> = a.iter().map(f).collect();
                values.ok_or_else(|| self.machine(format!("unknown function {name}")))?
            }
            Value::Cast(dtype, a) => {
                let (from_float, held) = (self.kernel.type_of(a).is_float(), self.held(*dtype));
                // From floats to integers the machine takes the nearest end of the range beyond it; integers wrap.
                let convert = |v: &f64| match from_float && !dtype.is_float() {
                    true => interp::Scalar::float(*v, *dtype).as_f64(),
                    false => round(held, *v),
                };
                self.term(a, mask)?.iter().map(convert).collect()
            }
            Value::Select(cond, a, b) => {
                let holds = self.condition(cond)?;
                self.either(&holds, a, b, mask)?
            }
            Value::Compare(op, _, a, b) => {
                let (a, b) = (self.term(a, mask)?, self.term(b, mask)?);
                self.here().arithmetic += self.warps(mask);
                a.iter().zip(&b).map(|(a, b)| f64::from(u8::from(compare(*op, *a, *b)))).collect()
            }
            Value::Choose(cond, a, b) => {
                let holds: Vec<bool> = self.term(cond, mask)?.iter().map(|v| *v != 0.0).collect();
                self.either(&holds, a, b, mask)?
            }
            Value::FromIndex(_, index) => {
                let index = self.index(index)?;
                (0..n).map(|t| index.get(t) as f64).collect()
            }
            Value::Shuffle { value, lane_mask, lanes } => {
                self.whole_groups(mask, *lane_mask, *lanes)?;
                let values = self.term(value, mask)?;
                self.here().shuffles += self.warps(mask);
                (0..n).map(|t| if mask[t] { values[t ^ *lane_mask as usize] } else { 0.0 }).collect()
            }
        })
    }

    fn load_once(&mut self, array: ArrayId, index: &Index, mask: &Mask) -> Result<Vec<f64>, Fault> {
        if !self.repeats {
            let at = self.index(index)?;
            return self.load(array, &at, mask);
        }
        let known = self.loaded.iter().find(|l| l.array == array && l.mask == *mask && l.index == *index);
        if let Some(known) = known {
            return Ok(known.values.clone());
        }
        let at = self.index(index)?;
        let values = self.load(array, &at, mask)?;
        if !self.space(array).is_private() {
            let (index, mask) = (index.clone(), mask.clone());
            self.loaded.push(Loaded { array, index, mask, values: values.clone() });
        }
        Ok(values)
    }

    /// One value where a condition holds, the other elsewhere; each is evaluated there only.
    fn either(&mut self, holds: &[bool], a: &Value, b: &Value, mask: &Mask) -> Result<Vec<f64>, Fault> {
        let side = |want: bool| Rc::new(mask.iter().zip(holds).map(|(m, h)| *m && *h == want).collect::<Vec<_>>());
        let (yes, no) = (side(true), side(false));
        let (a, b) = (self.term(a, &yes)?, self.term(b, &no)?);
        Ok((0..self.threads).map(|t| if holds[t] { a[t] } else { b[t] }).collect())
    }

    /// A fault where some lanes of a group that shuffles do not take part.
    fn whole_groups(&self, mask: &Mask, lane_mask: u32, lanes: u32) -> Result<(), Fault> {
        if !lanes.is_power_of_two() || lanes > 32 || lane_mask >= lanes {
            return Err(self.machine(format!("a shuffle by {lane_mask} within {lanes} lanes")));
        }
        for (group, members) in mask.chunks(lanes as usize).enumerate() {
            let active = members.iter().filter(|b| **b).count();
            if active != 0 && active != lanes as usize {
                let first = group * lanes as usize;
                let thread = (first..).zip(members).find(|(_, b)| !**b).map_or(first + active, |(t, _)| t) as u32;
                let (array, block) = (self.kernel.name.clone(), self.block);
                return Err(Fault { kind: FaultKind::DivergentShuffle { lanes }, array, index: 0, block, thread });
            }
        }
        Ok(())
    }

    pub(super) fn condition(&self, cond: &Cond) -> Result<Vec<bool>, Fault> {
        let n = self.threads;
        let compare = |a: &Index, b: &Index, f: fn(i64, i64) -> bool| -> Result<Vec<bool>, Fault> {
            let (a, b) = (self.index(a)?, self.index(b)?);
            Ok((0..n).map(|t| f(a.get(t), b.get(t))).collect())
        };
        match cond {
            Cond::True => Ok(vec![true; n]),
            Cond::Lt(a, b) => compare(a, b, |a, b| a < b),
            Cond::Le(a, b) => compare(a, b, |a, b| a <= b),
            Cond::Eq(a, b) => compare(a, b, |a, b| a == b),
            Cond::Ne(a, b) => compare(a, b, |a, b| a != b),
            Cond::And(list) => list.iter().try_fold(vec![true; n], |acc, c| {
                Ok(acc.iter().zip(self.condition(c)?).map(|(a, b)| *a && b).collect())
            }),
            Cond::Or(list) => list.iter().try_fold(vec![false; n], |acc, c| {
                Ok(acc.iter().zip(self.condition(c)?).map(|(a, b)| *a || b).collect())
            }),
            Cond::Not(c) => Ok(self.condition(c)?.into_iter().map(|b| !b).collect()),
        }
    }

    pub(super) fn index(&self, index: &Index) -> Result<Ints, Fault> {
        let both = |a: &Index, b: &Index, f: fn(i64, i64) -> Option<i64>| -> Result<Ints, Fault> {
            let overflow = || self.machine("integer overflow or division by zero in an index".into());
            Ok(match (self.index(a)?, self.index(b)?) {
                (Ints::Same(a), Ints::Same(b)) => Ints::Same(f(a, b).ok_or_else(overflow)?),
                (a, b) => Ints::Each(Rc::new(
                    (0..self.threads)
                        .map(|t| f(a.get(t), b.get(t)).ok_or_else(overflow))
                        .collect::<Result<Vec<_>, _>>()?,
                )),
            })
        };
        match index {
            Index::Const(v) => Ok(Ints::Same(*v)),
            Index::Var(v) => {
                self.now.vars.get(v).cloned().ok_or_else(|| self.machine(format!("variable {} is not bound", v.0)))
            }
            Index::BlockIdx(d) => Ok(Ints::Same(i64::from(self.block_index[dim(*d)]))),
            Index::ThreadIdx(d) => Ok(self.thread_index[dim(*d)].clone()),
            Index::Add(a, b) => both(a, b, i64::checked_add),
            Index::Sub(a, b) => both(a, b, i64::checked_sub),
            Index::Mul(a, b) => both(a, b, i64::checked_mul),
            Index::Div(a, b) => both(a, b, i64::checked_div_euclid),
            Index::Mod(a, b) => both(a, b, i64::checked_rem_euclid),
            Index::Min(a, b) => both(a, b, |a, b| Some(a.min(b))),
            Index::Max(a, b) => both(a, b, |a, b| Some(a.max(b))),
            Index::Xor(a, b) => both(a, b, |a, b| Some(a ^ b)),
            Index::And(a, b) => both(a, b, |a, b| Some(a & b)),
            Index::Shl(a, b) => both(a, b, |a, b| u32::try_from(b).ok().and_then(|b| a.checked_shl(b))),
            Index::Shr(a, b) => both(a, b, |a, b| u32::try_from(b).ok().and_then(|b| a.checked_shr(b))),
        }
    }
}

fn dim(d: Dim) -> usize {
    match d {
        Dim::X => 0,
        Dim::Y => 1,
        Dim::Z => 2,
    }
}

fn arithmetic(op: Arith, a: f64, b: f64) -> f64 {
    match op {
        Arith::Add => a + b,
        Arith::Sub => a - b,
        Arith::Mul => a * b,
        Arith::Div => a / b,
        Arith::Min => a.min(b),
        Arith::Max => a.max(b),
        Arith::Pow => a.powf(b),
        Arith::And => f64::from(u8::from(a != 0.0 && b != 0.0)),
        Arith::Or => f64::from(u8::from(a != 0.0 || b != 0.0)),
    }
}

fn compare(op: Comparison, a: f64, b: f64) -> bool {
    match op {
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Eq => a == b,
        Comparison::Ne => a != b,
    }
}

fn fused(dtype: DType, a: f64, b: f64, c: f64) -> f64 {
    match dtype {
        DType::F32 | DType::TF32 => f64::from((a as f32).mul_add(b as f32, c as f32)),
        _ => round(dtype, a.mul_add(b, c)),
    }
}

/// Whether an element is loaded at two places of a value.
fn repeats(value: &Value) -> bool {
    fn find<'v>(value: &'v Value, seen: &mut Vec<(ArrayId, &'v Index)>) -> bool {
        match value {
            Value::Load(array, index) => {
                let known = seen.iter().any(|(a, i)| a == array && *i == index);
                seen.push((*array, index));
                known
            }
            Value::Float(..) | Value::Int(..) | Value::FromIndex(..) => false,
            Value::Binary(_, _, a, b) | Value::Compare(_, _, a, b) | Value::Select(_, a, b) => {
                find(a, seen) || find(b, seen)
            }
            Value::Fma(_, a, b, c) | Value::Choose(a, b, c) => find(a, seen) || find(b, seen) || find(c, seen),
            Value::Unary(_, _, a) | Value::Cast(_, a) | Value::Shuffle { value: a, .. } => find(a, seen),
        }
    }
    find(value, &mut Vec::new())
}
