//! Inputs for a program, and whether two programs do the same with them.
use super::value::{elements, Array, Scalar, BYTES_PER_ELEMENT};
use super::{run_with, Fault, Options};
use crate::affine::linear::Linear;
use crate::affine::{constant, Domains};
use crate::{visit, BinOp, BufferId, DType, Expr, Program, Range, Stmt, VarId};
use std::collections::HashMap;
use std::fmt;

/// How two programs differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// Their parameters do not correspond.
    #[error("the parameters differ: {0}")]
    Signature(String),
    /// There are no inputs for them.
    #[error("no inputs: {0}")]
    Inputs(Fault),
    /// One of them does not run to its end.
    #[error("the {program} program: {fault}")]
    Fault {
        /// Which one.
        program: Which,
        /// Why.
        fault: Fault,
    },
    /// They leave different values.
    #[error(
        "{buffer}{index:?} is {} after the first program and {} after the second; so differ {count} of {of} \
             elements of {buffer}",
        show(first),
        show(second)
    )]
    Value {
        /// Name of the first parameter that differs.
        buffer: String,
        /// Its first element that differs.
        index: Vec<i64>,
        /// What the first program leaves there; none where nothing was written.
        first: Option<Scalar>,
        /// What the second program leaves there.
        second: Option<Scalar>,
        /// How many elements of the buffer differ.
        count: usize,
        /// How many elements it has.
        of: usize,
    },
}

/// One of two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one given first.
    First,
    /// The one given second.
    Second,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Which::First { "first" } else { "second" })
    }
}

fn show(value: &Option<Scalar>) -> String {
    value.map_or("unwritten".to_string(), |v| v.to_string())
}

/// What a program does first with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstUse {
    /// It reads what somebody else left there.
    Read,
    /// It writes it.
    Written,
}

/// What a program, read from top to bottom, does first with each of its parameters; none with those that it never uses.
pub fn first_uses(program: &Program) -> Vec<Option<FirstUse>> {
    let uses = Uses::of(program);
    program.params.iter().map(|id| uses.first.get(id.0 as usize).copied().flatten()).collect()
}

/// How a program uses its buffers, by their numbers.
struct Uses<'p> {
    program: &'p Program,
    /// In the order of execution.
    first: Vec<Option<FirstUse>>,
    /// Of a buffer whose elements are indices into another: the extent there, the smallest one.
    index_into: Vec<Option<i64>>,
    /// The buffers whose elements decide the value of a variable, and by how much they may be larger than it.
    decided: HashMap<VarId, Vec<(BufferId, i64)>>,
    /// What loops and iterators count.
    domains: Domains,
    /// Whether integers become floats somewhere: then sums of them are exact only of small ones.
    makes_floats: bool,
}

impl Uses<'_> {
    fn of(program: &Program) -> Uses<'_> {
        let n = program.buffers.len();
        let (first, index_into) = (vec![None; n], vec![None; n]);
        let (decided, domains) = (HashMap::new(), Domains::new());
        let mut uses = Uses { program, first, index_into, decided, domains, makes_floats: false };
        uses.realize(&program.body);
        uses
    }

    fn note(&mut self, buffer: BufferId, first: FirstUse) {
        if let Some(slot) = self.first.get_mut(buffer.0 as usize) {
            slot.get_or_insert(first);
        }
    }

    fn expr(&mut self, e: &Expr) {
        visit::walk_expr(e, &mut |e| match e {
            Expr::Load(buffer, indices) => {
                self.note(*buffer, FirstUse::Read);
                self.indices(*buffer, indices);
            }
            Expr::Cast(t, a) if t.is_float() => {
                self.makes_floats |= !crate::fold::dtype(a, &self.program.buffers).is_float();
            }
            Expr::Call(name, ..) => self.makes_floats |= name.as_ref() == "reinterpret",
            _ => {}
        });
    }

    fn indices(&mut self, buffer: BufferId, indices: &[Expr]) {
        for (index, extent) in indices.iter().zip(&self.program.buffer(buffer).shape) {
            let Expr::Int(extent, _) = extent else { continue };
            let mut most = Vec::new();
            self.most(index, extent.saturating_sub(1), &mut most);
            for (inner, most) in most {
                if let Some(slot) = self.index_into.get_mut(inner.0 as usize) {
                    let below = most.saturating_add(1);
                    *slot = Some(slot.map_or(below, |e| e.min(below)));
                }
            }
        }
    }

    /// The largest values of elements that decide an expression, so that it is no more than `limit`.
    fn most(&self, e: &Expr, limit: i64, out: &mut Vec<(BufferId, i64)>) {
        let by_data = |e: &Expr| !self.deciding(e).is_empty();
        let positive = |e: &Expr| constant(e).filter(|by| *by > 0);
        let largest = |e: &Expr| Linear::of(e, &self.domains).and_then(|form| form.ends(&self.domains).1);
        match e {
            // What it is read at is limited there.
            Expr::Load(buffer, _) => out.push((*buffer, limit)),
            Expr::Cast(_, a) => self.most(a, limit, out),
            Expr::Binary(BinOp::Add, a, b) if by_data(a) && by_data(b) => {
                self.most(a, limit / 2, out);
                self.most(b, limit / 2, out);
            }
            Expr::Binary(BinOp::Add, a, b) => {
                let (data, rest) = if by_data(a) { (a, b) } else { (b, a) };
                self.most(data, limit.saturating_sub(largest(rest).unwrap_or(0)), out);
            }
            Expr::Binary(op @ (BinOp::Mul | BinOp::FloorDiv), a, b) => match (op, positive(a), positive(b)) {
                (BinOp::Mul, Some(by), _) => self.most(b, limit / by, out),
                (BinOp::Mul, _, Some(by)) => self.most(a, limit / by, out),
                (BinOp::FloorDiv, _, Some(by)) => {
                    self.most(a, limit.saturating_mul(by).saturating_add(by - 1), out);
                }
                _ => self.otherwise(e, limit, out),
            },
            _ => self.otherwise(e, limit, out),
        }
    }

    /// What decides an expression in another way is taken to be no more than all of it.
    fn otherwise(&self, e: &Expr, limit: i64, out: &mut Vec<(BufferId, i64)>) {
        out.extend(self.deciding(e).into_iter().map(|(b, more)| (b, limit.saturating_add(more))));
    }

    /// The buffers whose elements decide an expression's value, and by how much they may be larger than it.
    fn deciding(&self, e: &Expr) -> Vec<(BufferId, i64)> {
        let mut out: Vec<(BufferId, i64)> = visit::loads(e).into_iter().map(|(b, _)| (b, 0)).collect();
        visit::walk_expr(e, &mut |e| {
            if let Expr::Var(v) = e {
                out.extend(self.decided.get(&v.id).into_iter().flatten());
            }
        });
        out
    }

    fn stmt(&mut self, s: &Stmt) {
        match s {
            Stmt::For(l) => {
                self.expr(&l.min);
                self.expr(&l.extent);
                // A loop variable is less than its end.
                let of_end = self.deciding(&l.extent).into_iter().map(|(b, more)| (b, more + 1));
                let by = self.deciding(&l.min).into_iter().chain(of_end).collect();
                self.decided.insert(l.var.id, by);
                self.domains.insert(l.var.id, Range { min: l.min.clone(), extent: l.extent.clone() });
                self.stmt(&l.body);
            }
            Stmt::Realize(r) => self.realize(r),
            Stmt::Seq(parts) => parts.iter().for_each(|s| self.stmt(s)),
            Stmt::Store { buffer, indices, value } => {
                self.expr(value);
                indices.iter().for_each(|e| self.expr(e));
                self.indices(*buffer, indices);
                self.note(*buffer, FirstUse::Written);
            }
            Stmt::If { cond, then, otherwise } => {
                self.expr(cond);
                self.stmt(then);
                otherwise.iter().for_each(|s| self.stmt(s));
            }
            Stmt::Let { var, value, body } => {
                self.expr(value);
                self.decided.insert(var.id, self.deciding(value));
                self.stmt(body);
            }
            Stmt::Evaluate(e) => self.expr(e),
        }
    }

    fn realize(&mut self, r: &crate::BlockRealize) {
        self.expr(&r.predicate);
        for (iv, value) in r.block.iter_vars.iter().zip(&r.iter_values) {
            self.expr(value);
            self.decided.insert(iv.var.id, self.deciding(value));
            self.domains.insert(iv.var.id, Range { min: iv.min.clone(), extent: iv.extent.clone() });
        }
        r.block.init.iter().for_each(|s| self.stmt(s));
        self.stmt(&r.block.body);
        // A view is used as what it shows; its use is known only after the body.
        for (view, region) in &r.block.match_buffers {
            if let Some(Some(first)) = self.first.get(view.0 as usize).copied() {
                self.note(region.buffer, first);
            }
        }
    }
}

/// A generator of 64 random bits (splitmix64): a few lines, and the same numbers everywhere and always.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What the values of a parameter must be for the results to be exact and the accesses inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputRule {
    /// The program reads what somebody else left there.
    pub read: bool,
    /// Elements are indices: from 0 to below this.
    pub index_below: Option<i64>,
    /// Integers of the whole range of the type are as good as small ones: none becomes a float.
    pub wide: bool,
}

/// The rule of each parameter.
pub fn input_rules(program: &Program) -> Vec<InputRule> {
    let uses = Uses::of(program);
    let of = |param: &BufferId| {
        let at = param.0 as usize;
        let dtype = program.buffer(*param).dtype;
        let index_below = uses.index_into.get(at).copied().flatten();
        InputRule {
            read: uses.first.get(at).copied().flatten() == Some(FirstUse::Read),
            index_below,
            wide: !uses.makes_floats && index_below.is_none() && !dtype.is_float() && dtype != DType::Bool,
        }
    };
    program.params.iter().map(of).collect()
}

/// Inputs for a program: integers from -3 to 3 (0 to 3 where the type is unsigned, 0 and 1 for booleans), of float
/// parameters too, so that sums are exact in any order. Where no integer becomes a float, half of the integers are from the
/// whole range of their type. Elements that are indices into another buffer are within it. A parameter that the program, read from top to bottom, writes before it reads it, or never uses, is left unwritten.
pub fn random_inputs(program: &Program, seed: u64) -> Result<Vec<Array>, Fault> {
    let rules = input_rules(program);
    let mut random = Random(seed);
    let mut inputs = Vec::with_capacity(program.params.len());
    let (mut needed, limit) = (0u64, Options::default().max_bytes);
    for (&param, rule) in program.params.iter().zip(rules) {
        let dtype = program.buffer(param).dtype;
        let shape = super::constant_shape(program, param)?;
        needed = needed.saturating_add(elements(&shape).unwrap_or(0).saturating_mul(BYTES_PER_ELEMENT));
        if needed > limit {
            return Err(Fault::Memory { needed, limit });
        }
        let mut array = Array::unwritten(dtype, &shape)?;
        if rule.read {
            let (min, count) = match (rule.index_below, dtype) {
                (Some(extent), _) => (0, extent.clamp(1, 128)),
                (None, DType::Bool) => (0, 2),
                (None, DType::U8 | DType::U16 | DType::U32 | DType::U64) => (0, 4),
                (None, _) => (-3, 7),
            };
            for at in 0..array.len() {
                let any = random.next();
                let value = match any & 7 {
                    // The ends of the range, and the numbers beside them.
                    0 | 1 if rule.wide => dtype.int_range().map_or(0, |r| r.1).wrapping_add((any >> 8 & 3) as i64 - 1),
                    2 | 3 if rule.wide => any as i64 >> 3,
                    _ => (any >> 33) as i64 % count + min,
                };
                array.set(at, Scalar::int(value, dtype));
            }
        }
        inputs.push(array);
    }
    Ok(inputs)
}

/// Whether two programs leave the same values, bit for bit, in all parameters, given the [`random_inputs`] of the
/// first one. What one of them leaves unwritten, the other has to leave unwritten too.
pub fn equal_on(first: &Program, second: &Program, seed: u64) -> Result<(), Difference> {
    let inputs = random_inputs(first, seed).map_err(Difference::Inputs)?;
    equal_on_inputs(first, second, &inputs, &Options::default())
}

/// [`equal_on`] for given inputs and limits.
pub fn equal_on_inputs(
    first: &Program,
    second: &Program,
    inputs: &[Array],
    options: &Options,
) -> Result<(), Difference> {
    same_signature(first, second)?;
    let run = |program: &Program, which: Which| {
        run_with(program, inputs, options).map_err(|fault| Difference::Fault { program: which, fault })
    };
    let (left, right) = (run(first, Which::First)?, run(second, Which::Second)?);
    for ((a, b), param) in left.iter().zip(&right).zip(&first.params) {
        let mut differing = a.iter().zip(b.iter()).enumerate().filter(|(_, (x, y))| x != y);
        if let Some((at, (x, y))) = differing.next() {
            return Err(Difference::Value {
                buffer: first.buffer(*param).name.clone(),
                index: a.index_of(at),
                first: x,
                second: y,
                count: 1 + differing.count(),
                of: a.len(),
            });
        }
    }
    Ok(())
}

fn same_signature(first: &Program, second: &Program) -> Result<(), Difference> {
    if first.params.len() != second.params.len() {
        let (a, b) = (first.params.len(), second.params.len());
        return Err(Difference::Signature(format!("the first program has {a}, the second {b}")));
    }
    for (i, (&a, &b)) in first.params.iter().zip(&second.params).enumerate() {
        let describe = |program: &Program, id: BufferId| -> Result<String, Difference> {
            let shape = super::constant_shape(program, id).map_err(Difference::Inputs)?;
            Ok(format!("{}{shape:?}", program.buffer(id).dtype.name()))
        };
        let (x, y) = (describe(first, a)?, describe(second, b)?);
        if x != y {
            let name = &first.buffer(a).name;
            let text = format!("number {}, {name}, is {x} in the first program and {y} in the second", i + 1);
            return Err(Difference::Signature(text));
        }
    }
    Ok(())
}
