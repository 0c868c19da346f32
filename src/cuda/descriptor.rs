//! Descriptors of the operands of `wgmma` and `tcgen05`.
use super::expression::precedence::ADD;
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
        let known = self.descriptors.iter().find(|(key, _)| same(key, d, &start)).map(|(_, name)| name.clone());
        let base = known.or_else(|| self.moved(d, &start)).unwrap_or_else(|| self.new_descriptor(d, &start));
        match constant / 16 {
            0 => base,
            chunks => format!("{base} + {chunks}"),
        }
    }

    /// One of the role's plus what variables move it by, in whole chunks, which are never negative.
    fn moved(&mut self, d: &Descriptor, start: &Index) -> Option<String> {
        let bytes = i64::from(self.kernel.array(d.array).dtype.bytes());
        let (name, by) = self.descriptors.iter().find_map(|(key, name)| {
            let by = beyond(start, &key.index)?;
            same(key, d, &key.index).then(|| (name.clone(), by))
        })?;
        let chunks = by.iter().map(|term| match term {
            Index::Mul(v, k) => match k.as_ref() {
                Index::Const(k) if k * bytes % 16 == 0 => Some((v.as_ref(), k * bytes / 16)),
                _ => None,
            },
            _ => None,
        });
        let times = |(v, k): (&Index, i64)| match k {
            1 => v.clone(),
            _ => Index::Mul(Box::new(v.clone()), Box::new(Index::Const(k))),
        };
        let chunks = chunks.collect::<Option<Vec<_>>>()?.into_iter().map(times).reduce(sum)?;
        let chunks = self.integer(&chunks);
        (chunks.range.lo >= 0).then(|| format!("{name} + {}", chunks.text.within(ADD)))
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
            let moves = |of: &Index| {
                depends(of, &|i| match i {
                    Index::Var(v) => Some(*v) != number,
                    _ => false,
                })
            };
            // What moves it is added where it is used.
            let start = match d.of {
                GroupMma::Wgmma => terms(&start)
                    .into_iter()
                    .filter(|term| !moves(term))
                    .cloned()
                    .reduce(sum)
                    .unwrap_or(Index::Const(0)),
                GroupMma::Tcgen05 => start,
            };
            if moves(&start) || self.descriptors.iter().any(|(key, _)| same(key, d, &start)) {
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

fn sum(a: Index, b: Index) -> Index {
    Index::Add(Box::new(a), Box::new(b))
}

/// The summands of an index.
fn terms(index: &Index) -> Vec<&Index> {
    match index {
        Index::Add(a, b) => [terms(a), terms(b)].concat(),
        index => vec![index],
    }
}

/// The summands of an index that are not those of another; none where it has not all of them.
fn beyond(index: &Index, of: &Index) -> Option<Vec<Index>> {
    let mut rest: Vec<Index> = terms(index).into_iter().cloned().collect();
    for term in terms(of).into_iter().filter(|term| **term != Index::Const(0)) {
        rest.remove(rest.iter().position(|own| own == term)?);
    }
    Some(rest)
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
