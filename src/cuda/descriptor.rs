//! Descriptors of the operands of `wgmma` and `tcgen05`.
use super::hopper::GroupHelper;
use super::Printer;
use crate::kernel::{each_group_op, Descriptor, GroupOp, Index, Kernel, Left, LocalVar, Stmt, TensorMemoryOp};
use satune_ir::term::tensor::{GroupMma, MOST_KEPT};

impl Printer<'_> {
    /// The descriptor by its own name, where it has one; else as one of the role's plus a constant: the compiler then only adds to the low word, in uniform
    /// registers, where it would make each descriptor anew from the address.
    pub(super) fn descriptor(&mut self, d: &Descriptor) -> String {
        let (start, constant) = anchor(self.kernel, d);
        if let Some((_, name)) = self.kept.iter().find(|(key, _)| key == d) {
            return name.clone();
        }
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
        // The instruction's number of the swizzle.
        let swizzle = match d.span {
            32 => 3,
            64 => 2,
            _ => 1,
        };
        // Those of `tcgen05` have another version.
        let version = match d.of {
            GroupMma::Wgmma => "",
            GroupMma::Tcgen05 => " + (1ull << 46)",
        };
        format!("{name}({at}, {}, {}, {swizzle}){version}", d.leading, d.stride)
    }

    /// Names for the descriptors that a role's instructions begin from, where they are the same all the time. Where there are
    /// few instructions each descriptor gets a name, and is kept.
    pub(super) fn name_descriptors(&mut self, body: &[Stmt], number: Option<LocalVar>) {
        let mut pairs: Vec<Vec<Descriptor>> = Vec::new();
        each_group_op(body, &mut |op| {
            let pair = match op {
                GroupOp::Matrix { a: Left::Shared(a), b, .. } => vec![a.clone(), b.clone()],
                GroupOp::Matrix { b, .. } => vec![b.clone()],
                GroupOp::TensorMemory(TensorMemoryOp::Multiply { a, b, .. }) => vec![a.clone(), b.clone()],
                _ => return,
            };
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        });
        // One thread multiplies on `tcgen05`: its descriptors are few numbers, which nobody waits for.
        let few = pairs.len() <= MOST_KEPT && pairs.iter().flatten().all(|d| d.of == GroupMma::Wgmma);
        let list: Vec<Descriptor> = pairs.into_iter().flatten().collect();
        self.name_anchors(&list, number);
        if !few {
            return;
        }
        for d in list {
            let (start, _) = anchor(self.kernel, &d);
            let is_fixed = self.descriptors.iter().any(|(key, _)| same(key, &d, &start));
            if !is_fixed || self.kept.iter().any(|(key, _)| *key == d) {
                continue;
            }
            let (value, keep) = (self.descriptor(&d), self.group_helper(GroupHelper::Kept));
            let name = self.names.take("kept");
            self.line(&format!("const unsigned long long {name} = {keep}({value});"));
            self.kept.push((d, name));
        }
    }

    fn name_anchors(&mut self, list: &[Descriptor], number: Option<LocalVar>) {
        for d in list {
            let (start, _) = anchor(self.kernel, d);
            let is_fixed = !depends(&start, &|i| match i {
                Index::Var(v) => Some(*v) != number,
                _ => false,
            });
            if !is_fixed || self.descriptors.iter().any(|(key, _)| same(key, d, &start)) {
                continue;
            }
            let wish = format!("{}_matrix", self.arrays[d.array.0 as usize]);
            let (value, name) = (self.new_descriptor(d, &start), self.names.take(&wish));
            self.line(&format!("const unsigned long long {name} = {value};"));
            self.descriptors.push((Descriptor { index: start, ..d.clone() }, name));
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
    (key.array, &key.index, key.leading, key.stride, key.span) == (d.array, start, d.leading, d.stride, d.span)
}

/// Whether the condition holds for a part of the expression.
pub(super) fn depends(index: &Index, holds: &dyn Fn(&Index) -> bool) -> bool {
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
