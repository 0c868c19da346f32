//! Descriptors of the operands of `wgmma`.
use super::hopper::GroupHelper;
use super::Printer;
use crate::kernel::{Descriptor, GroupOp, Index, Kernel, LocalVar, Stmt};

impl Printer<'_> {
    /// The descriptor as one of the role's plus a constant: the compiler then only adds to the low word, in uniform
    /// registers, where it would make each descriptor anew from the address.
    pub(super) fn descriptor(&mut self, d: &Descriptor) -> String {
        let (start, constant) = anchor(self.kernel, d);
        let known = self.descriptors.iter().find(|(key, _)| same(key, d, &start));
        let base = known.map(|(_, name)| name.clone()).unwrap_or_else(|| self.new_descriptor(d, &start));
        match constant / 16 {
            0 => base,
            chunks => format!("{base} + {chunks}"),
        }
    }

    fn new_descriptor(&mut self, d: &Descriptor, start: &Index) -> String {
        let name = self.group_helper(GroupHelper::Descriptor);
        let at = self.pointer(d.array, start).text;
        format!("{name}({at}, {}, {})", d.leading, d.stride)
    }

    /// Names for the descriptors that a role's instructions begin from, where they are the same all the time.
    pub(super) fn name_descriptors(&mut self, body: &[Stmt], number: Option<LocalVar>) {
        let mut list = Vec::new();
        matrices(body, &mut |d| list.push(d.clone()));
        for d in list {
            let (start, _) = anchor(self.kernel, &d);
            let is_fixed = !depends(&start, &|i| match i {
                Index::Var(v) => Some(*v) != number,
                _ => false,
            });
            if !is_fixed || self.descriptors.iter().any(|(key, _)| same(key, &d, &start)) {
                continue;
            }
            let wish = format!("{}_matrix", self.arrays[d.array.0 as usize]);
            let (value, name) = (self.new_descriptor(&d, &start), self.names.take(&wish));
            self.line(&format!("const unsigned long long {name} = {value};"));
            self.descriptors.push((Descriptor { index: start, ..d }, name));
        }
    }
}

/// Where a descriptor's constant part begins: index, and bytes beyond it, in whole chunks.
fn anchor(kernel: &Kernel, d: &Descriptor) -> (Index, i64) {
    let bytes = i64::from(kernel.array(d.array).dtype.bytes());
    let (start, constant) = match &d.index {
        Index::Const(v) => (Index::Const(0), *v),
        Index::Add(a, b) => match b.as_ref() {
            Index::Const(v) => (a.as_ref().clone(), *v),
            _ => (d.index.clone(), 0),
        },
        index => (index.clone(), 0),
    };
    if constant >= 0 && constant * bytes % 16 == 0 {
        (start, constant * bytes)
    } else {
        (d.index.clone(), 0)
    }
}

fn same(key: &Descriptor, d: &Descriptor, start: &Index) -> bool {
    (key.array, &key.index, key.leading, key.stride) == (d.array, start, d.leading, d.stride)
}

/// Whether the condition holds for a part of the expression.
fn depends(index: &Index, holds: &dyn Fn(&Index) -> bool) -> bool {
    holds(index)
        || match index {
            Index::Const(_) | Index::Var(_) | Index::BlockIdx(_) | Index::ThreadIdx(_) => false,
            Index::Add(a, b)
            | Index::Sub(a, b)
            | Index::Mul(a, b)
            | Index::Div(a, b)
            | Index::Mod(a, b)
            | Index::Min(a, b)
            | Index::Max(a, b)
            | Index::Xor(a, b)
            | Index::And(a, b)
            | Index::Shl(a, b)
            | Index::Shr(a, b) => depends(a, holds) || depends(b, holds),
        }
}

/// Calls `f` with the operands of each `wgmma`.
fn matrices(body: &[Stmt], f: &mut dyn FnMut(&Descriptor)) {
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } => matrices(body, f),
            Stmt::If { then, otherwise, .. } => {
                matrices(then, f);
                matrices(otherwise, f);
            }
            Stmt::Group(GroupOp::Matrix { a, b, .. }) => {
                f(a);
                f(b);
            }
            _ => {}
        }
    }
}
