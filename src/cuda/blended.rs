//! Parameters that are not declared `__restrict__`, though nothing writes them.
//!
//! NVRTC (12.9 and 13.5 among others) makes one load of `c ? I[i] : S[j]`, of the address that it picks. Where `I` is declared
//! `const __restrict__`, it takes that load for one of memory that nobody writes, and drops the stores to `S` before it. Without
//! `__restrict__` on `I` it keeps them.
use crate::kernel::{Array, ArrayId, Kernel, Space, Stmt, Value};
use std::collections::BTreeSet;

/// Parameters that are read only, and of which an element may stand where one of a written parameter of the same type may.
pub(super) fn blended(kernel: &Kernel) -> BTreeSet<ArrayId> {
    let mut found = Found { kernel, held: vec![BTreeSet::new(); kernel.arrays.len()], mixed: BTreeSet::new() };
    loop {
        let before: usize = found.held.iter().map(BTreeSet::len).sum();
        found.list(&kernel.body);
        if found.held.iter().map(BTreeSet::len).sum::<usize>() == before {
            return found.mixed;
        }
    }
}

struct Found<'k> {
    kernel: &'k Kernel,
    /// Parameters whose elements an array of each thread may hold as they are.
    held: Vec<BTreeSet<ArrayId>>,
    mixed: BTreeSet<ArrayId>,
}

impl<'k> Found<'k> {
    fn array(&self, id: ArrayId) -> &'k Array {
        self.kernel.array(id)
    }

    fn list(&mut self, body: &[Stmt]) {
        body.iter().for_each(|s| self.stmt(s));
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::For { body, .. } => self.list(body),
            Stmt::If { then, otherwise, .. } => [then, otherwise].into_iter().for_each(|s| self.list(s)),
            Stmt::Store { array, value, .. } => {
                let from = self.origins(value);
                self.holds(*array, from);
            }
            Stmt::Copy { dst, src, .. } => {
                let from = self.elements(*src);
                self.holds(*dst, from);
            }
            Stmt::Fetch { value, .. } | Stmt::AtomicAdd { value, .. } => {
                self.origins(value);
            }
            Stmt::Roles(roles) => roles.iter().for_each(|r| self.list(&r.body)),
            _ => {}
        }
    }

    fn holds(&mut self, array: ArrayId, from: BTreeSet<ArrayId>) {
        if self.array(array).space.is_private() {
            let held = &mut self.held[array.0 as usize];
            held.extend(from);
            let held = held.clone();
            self.mix(&held);
        }
    }

    /// One value is an element of one of these.
    fn mix(&mut self, of: &BTreeSet<ArrayId>) {
        let written = |r: &Array| of.iter().any(|w| self.array(*w).written && self.array(*w).dtype == r.dtype);
        let read = of.iter().filter(|r| !self.array(**r).written && written(self.array(**r)));
        let read: Vec<ArrayId> = read.copied().collect();
        self.mixed.extend(read);
    }

    fn elements(&self, array: ArrayId) -> BTreeSet<ArrayId> {
        match self.array(array).space {
            Space::Global => BTreeSet::from([array]),
            space if space.is_private() => self.held[array.0 as usize].clone(),
            _ => BTreeSet::new(),
        }
    }

    /// The parameters of which a value is an element, converted or not.
    fn origins(&mut self, value: &Value) -> BTreeSet<ArrayId> {
        match value {
            Value::Load(array, _) => self.elements(*array),
            Value::Cast(_, a) | Value::Reinterpret(_, a) => self.origins(a),
            Value::Select(_, a, b) | Value::Choose(_, a, b) => {
                if let Value::Choose(cond, ..) = value {
                    self.origins(cond);
                }
                let mut of = self.origins(a);
                of.extend(self.origins(b));
                self.mix(&of);
                of
            }
            Value::Unary(_, _, a) | Value::Bits(_, a) | Value::Shuffle { value: a, .. } => {
                self.origins(a);
                BTreeSet::new()
            }
            Value::Binary(_, _, a, b) | Value::Compare(_, _, a, b) => {
                [a, b].into_iter().for_each(|v| drop(self.origins(v)));
                BTreeSet::new()
            }
            Value::Fma(_, a, b, c) => {
                [a, b, c].into_iter().for_each(|v| drop(self.origins(v)));
                BTreeSet::new()
            }
            Value::Float(..) | Value::Int(..) | Value::FromIndex(..) => BTreeSet::new(),
        }
    }
}
