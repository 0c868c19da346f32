//! Values, conditions and integer expressions, for all threads at once.
use super::{Fault, FaultKind, Ints, Loaded, Mask, Runner};
use crate::kernel::{Arith, ArrayId, BitFunction, Comparison, Cond, Dim, Index, Meaning, Value};
use crate::simulate::memory::convert;
use satune_ir::semantics::{held, unheld};
use satune_ir::{interp, semantics, BinOp, DType};
use std::rc::Rc;

impl Runner<'_> {
    /// The value that a statement computes, as one of a type.
    pub(super) fn value(&mut self, value: &Value, dtype: DType, mask: &Mask) -> Result<Vec<f64>, Fault> {
        self.loaded.clear();
        self.repeats = repeats(value);
        self.term_as(value, dtype, mask)
    }

    fn term(&mut self, value: &Value, mask: &Mask) -> Result<Vec<f64>, Fault> {
        let n = self.threads;
        Ok(match value {
            Value::Float(v, dtype) if dtype.is_float() => vec![semantics::round(*v, *dtype); n],
            Value::Float(v, dtype) => vec![held(*v as i64, *dtype); n],
            Value::Int(v, dtype) => vec![convert(held(*v, DType::I64), DType::I64, *dtype); n],
            Value::Load(array, index) => self.load_once(*array, index, mask)?,
            Value::Binary(op, dtype, a, b) => {
                let (a, b) = (self.term_as(a, *dtype, mask)?, self.term_as(b, *dtype, mask)?);
                self.here().arithmetic += self.warps(mask);
                let held = self.held(*dtype);
                let values: Option<Vec<f64>> = a.iter().zip(&b).map(|(a, b)| arithmetic(*op, held, *a, *b)).collect();
                values.ok_or_else(|| self.machine(format!("{op:?} of {}", dtype.name())))?
            }
            Value::Fma(dtype, a, b, c) => {
                let [a, b, c] = [a, b, c].map(|v| self.term_as(v, *dtype, mask));
                let (a, b, c) = (a?, b?, c?);
                self.here().fma += self.warps(mask);
                let held = self.held(*dtype);
                (0..n).map(|t| fused(held, a[t], b[t], c[t])).collect()
            }
            Value::Unary(name, dtype, a) if !dtype.is_float() => {
                let a = self.term_as(a, *dtype, mask)?;
                self.here().arithmetic += self.warps(mask);
                if !matches!(name.as_str(), "abs" | "fabs") {
                    return Err(self.machine(format!("{name} of {}", dtype.name())));
                }
                a.iter().map(|a| held(semantics::magnitude(unheld(*a, *dtype), *dtype), *dtype)).collect()
            }
            Value::Unary(name, dtype, a) => {
                let a = self.term_as(a, *dtype, mask)?;
                self.here().arithmetic += self.warps(mask);
                let held = self.held(*dtype);
                let f = |a: &f64| interp::intrinsic(name, &[*a], held);
                let values: Option<Vec<f64>> = a.iter().map(f).collect();
                values.ok_or_else(|| self.machine(format!("unknown function {name}")))?
            }
            Value::Bits(function, a) => {
                let from = self.kernel.type_of(a);
                self.here().arithmetic += self.warps(mask);
                let f = match function {
                    BitFunction::Ones => semantics::ones,
                    BitFunction::LeadingZeros => semantics::leading_zeros,
                };
                self.term(a, mask)?.iter().map(|a| f(unheld(*a, from), from) as f64).collect()
            }
            Value::Cast(dtype, a) => self.term_as(a, *dtype, mask)?,
            Value::Reinterpret(dtype, a) => {
                let from = self.kernel.type_of(a);
                // What was not rounded is, as [`interp::in_double`] converts it.
                let double = self.double;
                let own = |v: f64| if double { semantics::round(v, from) } else { v };
                let cell = |v: f64| if from.is_float() { own(v).to_bits() } else { unheld(v, from) as u64 };
                let bits = |v: &f64| semantics::reinterpret(cell(*v), from, *dtype);
                let value = |cell: u64| if dtype.is_float() { f64::from_bits(cell) } else { held(cell as i64, *dtype) };
                self.term(a, mask)?.iter().map(|v| value(bits(v))).collect()
            }
            Value::Select(cond, a, b) => {
                let holds = self.condition(cond)?;
                self.either(&holds, a, b, mask)?
            }
            Value::Compare(op, dtype, a, b) => {
                let (a, b) = (self.term_as(a, *dtype, mask)?, self.term_as(b, *dtype, mask)?);
                self.here().arithmetic += self.warps(mask);
                a.iter().zip(&b).map(|(a, b)| f64::from(u8::from(compare(*op, *dtype, *a, *b)))).collect()
            }
            Value::Choose(cond, a, b) => {
                let holds: Vec<bool> = self.term_as(cond, DType::Bool, mask)?.iter().map(|v| *v != 0.0).collect();
                self.either(&holds, a, b, mask)?
            }
            Value::FromIndex(dtype, index) => {
                let index = self.index(index)?;
                let dtype = self.held(*dtype);
                (0..n).map(|t| convert(held(index.get(t), DType::I64), DType::I64, dtype)).collect()
            }
            Value::Shuffle { value, lane_mask, lanes } => {
                self.whole_groups(mask, *lane_mask, *lanes)?;
                let values = self.term(value, mask)?;
                self.here().shuffles += self.warps(mask);
                (0..n).map(|t| if mask[t] { values[t ^ *lane_mask as usize] } else { 0.0 }).collect()
            }
        })
    }

    /// The value as one of a type.
    fn term_as(&mut self, value: &Value, to: DType, mask: &Mask) -> Result<Vec<f64>, Fault> {
        let from = self.kernel.type_of(value);
        let mut values = self.term(value, mask)?;
        if from != to {
            let (from, to) = (self.held(from), self.held(to));
            values.iter_mut().for_each(|v| *v = convert(*v, from, to));
        }
        Ok(values)
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
        let dtype = self.kernel.type_of(a);
        let (a, b) = (self.term(a, &yes)?, self.term_as(b, dtype, &no)?);
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

/// An operation on values of a type; none that it does not have.
fn arithmetic(op: Arith, dtype: DType, a: f64, b: f64) -> Option<f64> {
    match op.meaning() {
        Meaning::Operator(op) if dtype.is_float() => semantics::floats(op, dtype, a, b),
        Meaning::Operator(op) => Some(held(semantics::integers(op, dtype, unheld(a, dtype), unheld(b, dtype)), dtype)),
        Meaning::Function(f) => dtype.is_float().then(|| f.apply([a, b, 0.0], dtype)),
    }
}

fn compare(op: Comparison, dtype: DType, a: f64, b: f64) -> bool {
    let op = match op {
        Comparison::Lt => BinOp::Lt,
        Comparison::Le => BinOp::Le,
        Comparison::Eq => BinOp::Eq,
        Comparison::Ne => BinOp::Ne,
    };
    if dtype.is_float() {
        semantics::compare(op, a, b)
    } else {
        semantics::integers(op, dtype, unheld(a, dtype), unheld(b, dtype)) != 0
    }
}

fn fused(dtype: DType, a: f64, b: f64, c: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from((a as f32).mul_add(b as f32, c as f32)),
        dtype if dtype.is_float() => semantics::round(a.mul_add(b, c), dtype),
        dtype => {
            let [a, b, c] = [a, b, c].map(|v| unheld(v, dtype));
            held(semantics::wrap(a.wrapping_mul(b).wrapping_add(c), dtype), dtype)
        }
    }
}

/// Whether an element is loaded at two places of a value.
fn repeats(value: &Value) -> bool {
    let (mut seen, mut found) = (Vec::new(), false);
    value.loads(&mut |array, index| {
        found |= seen.contains(&(array, index));
        seen.push((array, index));
    });
    found
}
