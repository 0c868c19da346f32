//! Blocks that read what they write, as blocks that do not.
//!
//! before                                        after
//!   R[i, j] = R[i, j] + A[i, k] * B[k, j]         R_sum[i, j] = sum over k of A[i, k] * B[k, j], from 0 on
//!                                                 R[i, j] = R[i, j] + R_sum[i, j], which says that it reads R_sum[i, j]
//!   s[i] = sum over j of A[i, j]                  s[i] = sum over j of A[i, j]
//!   A[i, j] = A[i, j] / s[i]                      A_before[i, j] = A[i, j]
//!                                                 A[i, j] = A_before[i, j] / s[i]
//!   C[i, j] = sum over k of A[i, k] * B[k, j]     C_before[i, j] = sum over k of A[i, k] * B[k, j]
//!   C[i, j] = max(C[i, j], 0)                     C[i, j] = max(C_before[i, j], 0)
//!   m[i] = max over j of A[i, j]                  m[i] = max over j of A[i, j]
//!   A[i, j] = exp(A[i, j] - m[i])                 A_before[i, j] = exp(A[i, j] - m[i])
//!   A[i, j] = A[i, j] * 2                         A[i, j] = A_before[i, j] * 2
//!
//! TensorIR binds no loop of a block that says that it reads what it writes. Where no block before accesses the buffer, it goes
//! without saying (`unsafe_hide_buffer_access`, which is safe where an instance reads the element that it writes, and nothing else
//! is moved past it). Where blocks before made the buffer, these make it under another name; where a later one makes all of it
//! anew, the others until then use another name. Else what was there is copied first, by a kernel of its own.
//! Instances may read the element that they write, and no other: else what they compute depends on their order (see
//! [`super::in_order`]).
use super::nests::{allocated, nest_over, parts};
use crate::tree::{self, child_realizes};
use satune_ir::affine::constant;
use satune_ir::{
    visit, BinOp, Block, BlockRealize, Buffer, BufferId, DType, Expr, IterKind, IterVar, Program, Region, Stmt,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// The same program without blocks that read what they write, but for those of which it is not certain that their instances may
/// run in any order.
pub(super) fn copied_before(program: &Program) -> Program {
    let mut out = program.clone();
    let mut made = Vec::new();
    let mut left: VecDeque<Stmt> = parts(program).into_iter().cloned().collect();
    while let Some(part) = left.pop_front() {
        match updating(&part).and_then(|realize| Update::of(&mut out, realize)) {
            None => made.push(part.clone()),
            Some(update) => update.blocks(&mut made, left.make_contiguous()),
        }
    }
    out.body.block.body = Box::new(Stmt::seq(made));
    out
}

/// The block of a nest.
fn block_of(part: &Stmt) -> Option<&BlockRealize> {
    match part {
        Stmt::For(l) => block_of(&l.body),
        Stmt::Realize(realize) => Some(realize),
        _ => None,
    }
}

/// The block of a nest, where it stores to what it reads and does not begin with an init.
fn updating(part: &Stmt) -> Option<&BlockRealize> {
    let realize = block_of(part)?;
    let Stmt::Store { buffer, value, .. } = &*realize.block.body else { return None };
    let reads = visit::loads(value).iter().any(|(b, _)| b == buffer);
    (reads && realize.block.init.is_none()).then_some(realize)
}

struct Update<'p> {
    out: &'p mut Program,
    block: &'p Block,
    target: BufferId,
    indices: &'p [Expr],
    value: &'p Expr,
    /// The elements before the update, or before a later one.
    before: BufferId,
}

impl<'p> Update<'p> {
    fn of(out: &'p mut Program, realize: &'p BlockRealize) -> Option<Update<'p>> {
        let block = &realize.block;
        let Stmt::Store { buffer: target, indices, value } = &*block.body else { return None };
        // Instances that read other elements than they write depend on their order.
        let own = |(b, at): &(BufferId, Vec<Expr>)| b != target || at == indices;
        let spatial = |iv: &IterVar| iv.kind == IterKind::Spatial;
        let used = |iv: &IterVar| indices.iter().any(|e| matches!(e, Expr::Var(v) if *v == iv.var));
        let plain = indices.iter().all(|e| matches!(e, Expr::Var(_) | Expr::Int(..)));
        let bare = plain && block.iter_vars.iter().all(|iv| spatial(iv) == used(iv) && iv.kind.any_order());
        let constant = block.iter_vars.iter().all(|iv| constant(&iv.extent).is_some());
        let free = matches!(realize.predicate, Expr::Int(1, _)) && bare && constant;
        let load = Expr::Load(*target, indices.clone());
        let sums = block.iter_vars.iter().all(spatial) || combined(value, &load, out.buffer(*target).dtype).is_some();
        if !free || !sums || !visit::loads(value).iter().all(own) {
            return None;
        }
        let before = like(out, *target, "before");
        Some(Update { out, block, target: *target, indices, value, before })
    }

    /// Whether every element of the buffer is written by a block with these indices.
    fn whole(&self, block: &Block, indices: &[Expr]) -> bool {
        let shape = &self.out.buffer(self.target).shape;
        let of = |(at, dim): (&Expr, &Expr)| {
            let Expr::Var(v) = at else { return false };
            let iter = block.iter_vars.iter().find(|iv| iv.var == *v && iv.kind == IterKind::Spatial);
            iter.is_some_and(|iv| constant(&iv.extent).is_some() && constant(&iv.extent) == constant(dim))
        };
        let once = |(n, at): (usize, &Expr)| !indices[..n].contains(at);
        shape.len() == indices.len() && indices.iter().zip(shape).all(of) && indices.iter().enumerate().all(once)
    }

    /// The index and the value of a block's store, where it always stores to every element of the buffer.
    fn stored_to_all<'r>(&self, r: &'r BlockRealize) -> Option<(&'r [Expr], &'r Expr)> {
        let Stmt::Store { buffer, indices, value } = &*r.block.body else { return None };
        let all = *buffer == self.target && matches!(r.predicate, Expr::Int(1, _)) && self.whole(&r.block, indices);
        all.then_some((indices, value))
    }

    /// Whether the blocks so far make all of the buffer before anything reads it, and this one makes all of it anew.
    fn made_here(&self, parts: &[Stmt]) -> bool {
        let mut first = None;
        for r in parts.iter().flat_map(child_realizes) {
            let touches = |regions: &[Region]| regions.iter().any(|r| r.buffer == self.target);
            if first.is_none() && (touches(&r.block.reads) || touches(&r.block.writes)) {
                first = Some(r);
            }
        }
        let makes = |r: &BlockRealize| {
            let reads = |value| visit::loads(value).iter().any(|(b, _)| *b == self.target) && r.block.init.is_none();
            self.stored_to_all(r).is_some_and(|(_, value)| !reads(value))
        };
        self.whole(self.block, self.indices) && first.is_some_and(makes)
    }

    /// Whether a block so far accesses the buffer, or something is not known of it.
    fn touched(&self, parts: &[Stmt]) -> bool {
        let touches = |r: &BlockRealize| r.block.reads.iter().chain(&r.block.writes).any(|r| r.buffer == self.target);
        !self.out.params.contains(&self.target) || parts.iter().flat_map(tree::all_realizes).any(touches)
    }

    /// Where the last of the parts to come that store to the buffer makes all of it anew.
    fn made_anew(&self, to_come: &[Stmt]) -> Option<usize> {
        let stores = |part: &Stmt| {
            let all = tree::all_realizes(part);
            all.iter().flat_map(|r| &r.block.writes).any(|region| region.buffer == self.target)
        };
        let last = to_come.iter().rposition(stores)?;
        let realize = block_of(&to_come[last])?;
        let (indices, value) = self.stored_to_all(realize)?;
        // One that reads other elements than it writes, or one more than once, reads what its instances before have written.
        let own = visit::loads(value).iter().all(|(b, at)| *b != self.target || at == indices);
        let once =
            realize.block.init.is_none() && realize.block.iter_vars.iter().all(|iv| iv.kind == IterKind::Spatial);
        (own && once && self.whole(self.block, self.indices)).then_some(last)
    }

    /// The nests that stand for the block; parts to come may use another name for what it makes.
    fn blocks(mut self, into: &mut Vec<Stmt>, to_come: &mut [Stmt]) {
        let reduces = self.block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce);
        let load = |buffer: BufferId, at: &[Expr]| Expr::Load(buffer, at.to_vec());
        let own = load(self.target, self.indices);
        let mut value = visit::replace_loads(self.value, self.target, &mut |at| load(self.before, &at));
        if reduces {
            let sum = like(self.out, self.target, "sum");
            let dtype = self.out.buffer(self.target).dtype;
            let Some((op, first, added)) = combined(self.value, &own, dtype) else { return };
            let at = load(sum, self.indices);
            let update = Expr::Binary(op, Arc::new(at.clone()), Arc::new(added));
            let store = |value| Stmt::Store { buffer: sum, indices: self.indices.to_vec(), value };
            let (init, body) = (store(first), store(update));
            into.push(self.nest("sum", |_| true, Some(init), body));
            value = Expr::Binary(op, Arc::new(load(self.before, self.indices)), Arc::new(at));
        }
        let spatial = |iv: &IterVar| iv.kind == IterKind::Spatial;
        if self.made_here(into) {
            into.iter_mut().for_each(|part| *part = renamed(part, [self.target, self.before], true));
            let update = Stmt::Store { buffer: self.target, indices: self.indices.to_vec(), value };
            into.push(self.nest("", spatial, None, update));
            return;
        }
        let store = |buffer, value| Stmt::Store { buffer, indices: self.indices.to_vec(), value };
        if !self.touched(into) {
            let value = visit::replace_loads(&value, self.before, &mut |at| load(self.target, &at));
            let (target, update) = (self.target, store(self.target, value));
            self.out.body.block.alloc_buffers.retain(|b| *b != self.before);
            let mut update = self.nest("", spatial, None, update);
            tree::each_realize_mut(&mut update, &mut |r| r.block.reads.retain(|region| region.buffer != target));
            into.push(update);
            return;
        }
        if let (false, Some(last)) = (reduces, self.made_anew(to_come)) {
            let (until, anew) = to_come.split_at_mut(last);
            let names = [self.target, self.before];
            until.iter_mut().for_each(|part| *part = renamed(part, names, true));
            anew[0] = renamed(&anew[0], names, false);
            let update = store(self.before, self.value.clone());
            into.push(self.nest("", spatial, None, update));
            return;
        }
        let (copy, update) = (store(self.before, own), store(self.target, value));
        into.push(self.nest("before", spatial, None, copy));
        into.push(self.nest("", spatial, None, update));
    }

    /// A block over some of the iterators, under loops of its own.
    fn nest(&mut self, suffix: &str, kept: impl Fn(&IterVar) -> bool, init: Option<Stmt>, body: Stmt) -> Stmt {
        let name = match suffix {
            "" => self.block.name.clone(),
            more => format!("{}_{more}", self.block.name),
        };
        let iters: Vec<IterVar> = self.block.iter_vars.iter().filter(|iv| kept(iv)).cloned().collect();
        nest_over(self.out, name, &iters, init, body)
    }
}

/// The statement where it reads a buffer instead of another, and where it `stores`, too.
fn renamed(stmt: &Stmt, [from, to]: [BufferId; 2], stores: bool) -> Stmt {
    let mut out = visit::map_stmt_exprs(stmt, &mut |e| visit::replace_loads(e, from, &mut |at| Expr::Load(to, at)));
    regions(&mut out, [from, to], stores);
    out
}

fn regions(stmt: &mut Stmt, [from, to]: [BufferId; 2], stores: bool) {
    match stmt {
        Stmt::Store { buffer, .. } if stores && *buffer == from => *buffer = to,
        Stmt::Realize(r) => {
            let writes = r.block.writes.iter_mut().filter(|_| stores);
            r.block.reads.iter_mut().chain(writes).filter(|r| r.buffer == from).for_each(|r| r.buffer = to);
        }
        _ => {}
    }
    tree::children_and_init_mut(stmt).into_iter().for_each(|s| regions(s, [from, to], stores));
}

/// A buffer of the shape and type of another, allocated by the root.
fn like(out: &mut Program, other: BufferId, suffix: &str) -> BufferId {
    let Buffer { name, dtype, shape, .. } = out.buffer(other).clone();
    allocated(out, &format!("{name}_{suffix}"), dtype, shape)
}

/// Of `own op added` (or the other way round): the operation, where a reduction by it begins, and what is added.
pub(super) fn combined(value: &Expr, own: &Expr, dtype: DType) -> Option<(BinOp, Expr, Expr)> {
    let Expr::Binary(op @ (BinOp::Add | BinOp::Mul | BinOp::Min | BinOp::Max), a, b) = value else { return None };
    let added = match (**a == *own, **b == *own) {
        (true, false) => b,
        (false, true) => a,
        _ => return None,
    };
    let Expr::Load(buffer, _) = own else { return None };
    if visit::loads(added).iter().any(|(other, _)| other == buffer) {
        return None;
    }
    let first = match (op, dtype.int_range()) {
        (BinOp::Min, Some((_, most))) => Expr::Int(most, dtype),
        (BinOp::Max, Some((least, _))) => Expr::Int(least, dtype),
        (_, Some(_)) => Expr::Int(i64::from(*op == BinOp::Mul), dtype),
        (BinOp::Min, None) => Expr::Float(f64::INFINITY.to_bits(), dtype),
        (BinOp::Max, None) => Expr::Float(f64::NEG_INFINITY.to_bits(), dtype),
        (_, None) => Expr::Float(f64::from(u8::from(*op == BinOp::Mul)).to_bits(), dtype),
    };
    // Of 64 unsigned bits and 8 bits of float there is no such number here.
    let none = matches!(op, BinOp::Min | BinOp::Max) && matches!(dtype, DType::U64 | DType::F8E4M3 | DType::F8E5M2);
    (!none).then(|| (*op, first, added.as_ref().clone()))
}

#[cfg(test)]
mod tests {
    use super::copied_before;
    use satune_ir::{interp, tvmscript};

    fn script(axes: &str, grid: &str, update: &str) -> String {
        format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((8, 4), \"float32\"), B: T.Buffer((4, 6), \"float32\"), R: T.Buffer((8, 6), \
             \"float32\")):\n    for i, j{grid}:\n        with T.sblock(\"R\"):\n            {axes}\n            R[vi, vj] = {update}\n"
        )
    }

    #[test]
    fn updates_read_without_saying_so_and_mean_the_same() {
        let sum = ("vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])", ", k in T.grid(8, 6, 4)");
        let map = ("vi, vj = T.axis.remap(\"SS\", [i, j])", " in T.grid(8, 6)");
        for ((axes, grid), update, nests) in [
            (sum, "R[vi, vj] + A[vi, vk] * B[vk, vj]", 2),
            (sum, "A[vi, vk] * B[vk, vj] + R[vi, vj]", 2),
            (sum, "T.max(A[vi, vk] * B[vk, vj], R[vi, vj])", 2),
            (map, "R[vi, vj] * T.float32(2) + R[vi, vj]", 1),
            (map, "A[vi, 0]", 1),
        ] {
            let source = tvmscript::parse(&script(axes, grid, update)).unwrap();
            let made = copied_before(&source);
            let text = tvmscript::print(&made);
            assert_eq!(super::parts(&made).len(), nests, "{text}");
            let again = tvmscript::parse(&text).unwrap();
            for seed in 0..3 {
                interp::equal_on(&source, &again, seed).unwrap_or_else(|e| panic!("{e}\n{text}"));
            }
        }
    }

    /// What a block before has read is copied: a write after that read is one that TensorIR sees.
    #[test]
    fn what_was_read_before_is_copied() {
        let map = ("vi, vj = T.axis.remap(\"SS\", [i, j])", " in T.grid(8, 6)");
        let reader = "    for i, j in T.grid(8, 6):\n        with T.sblock(\"Q\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            Q[vi, vj] = R[vi, vj]\n";
        let text = script(map.0, map.1, "R[vi, vj] * T.float32(2)")
            .replace("R: T.", "Q: T.Buffer((8, 6), \"float32\"), R: T.");
        let (head, update) = text.split_at(text.find("    for").unwrap());
        for (nests, made) in [(format!("{reader}{update}"), 3), (format!("{update}{reader}"), 2)] {
            let source = tvmscript::parse(&format!("{head}{nests}")).unwrap();
            let text = tvmscript::print(&copied_before(&source));
            let again = tvmscript::parse(&text).unwrap();
            assert_eq!(super::parts(&again).len(), made, "{text}");
            interp::equal_on(&source, &again, 1).unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }

    /// Between two updates of all of it a buffer has another name, and nothing is copied; but for what depends on its order.
    #[test]
    fn what_is_made_anew_later_has_another_name() {
        let nest = |name: &str, store: &str| {
            format!("    for i, j in T.grid(8, 6):\n        with T.sblock(\"{name}\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            {store}\n")
        };
        let head = "@T.prim_func(s_tir=True)\ndef main(P: T.Buffer((8, 6), \"float32\"), Q: T.Buffer((8, 6), \"float32\"), R: T.Buffer((8, 6), \"float32\")):\n";
        let (first, second) = ("Q[vi, vj] = R[vi, vj]", "P[vi, vj] = R[vi, vj] + Q[vi, vj]");
        for (update, last, made) in [
            ("R[vi, vj] = R[vi, vj] * T.float32(2)", "R[vi, vj] = R[vi, vj] + P[vi, vj]", 4),
            ("R[vi, vj] = R[vi, vj] * T.float32(2)", "R[vi, vj] = P[vi, vj]", 4),
            ("R[vi, vj] = R[vi, vj] * T.float32(2)", "R[vi, vj] = R[vi, 5 - vj] + P[vi, vj]", 5),
            ("R[vi, 0] = R[vi, 0] * P[vi, vj]", "R[vi, vj] = R[vi, vj] + P[vi, vj]", 5),
        ] {
            let nests = [nest("Q", first), nest("one", update), nest("P", second), nest("two", last)].concat();
            let source = tvmscript::parse(&format!("{head}{nests}")).unwrap();
            let text = tvmscript::print(&copied_before(&source));
            let again = tvmscript::parse(&text).unwrap();
            assert_eq!(super::parts(&again).len(), made, "{text}");
            interp::equal_on(&source, &again, 1).unwrap_or_else(|e| panic!("{e}\n{text}"));
        }
    }

    /// What is added to a buffer reads it again and again, so that it makes nothing anew.
    #[test]
    fn what_is_added_later_is_added_to_what_was_made() {
        let sum = script(
            "vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])",
            ", k in T.grid(8, 6, 4)",
            "R[vi, vj] + A[vi, vk] * B[vk, vj]",
        );
        let map = |name: &str, store: &str| {
            format!("    for i, j in T.grid(8, 6):\n        with T.sblock(\"{name}\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            {store}\n")
        };
        let before = [map("Q", "Q[vi, vj] = R[vi, vj]"), map("one", "R[vi, vj] = R[vi, vj] * T.float32(2)")].concat();
        let text = sum.replace("def main(", "def main(Q: T.Buffer((8, 6), \"float32\"), ");
        let (head, update) = text.split_at(text.find("    for").unwrap());
        let source = tvmscript::parse(&format!("{head}{before}{update}")).unwrap();
        let text = tvmscript::print(&copied_before(&source));
        let again = tvmscript::parse(&text).unwrap();
        assert_eq!(super::parts(&again).len(), 6, "{text}");
        interp::equal_on(&source, &again, 1).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }

    /// What the program has made is no copy, and the product is one with a map after it.
    #[test]
    fn what_was_made_before_has_another_name() {
        let product = script(
            "vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])",
            ", k in T.grid(8, 6, 4)",
            "R[vi, vj] + A[vi, vk] * B[vk, vj]",
        );
        let product = product.replace(
            "            R[vi, vj] =",
            "            with T.init():\n                R[vi, vj] = T.float32(0)\n            R[vi, vj] =",
        );
        let relu = "    for i, j in T.grid(8, 6):\n        with T.sblock(\"relu\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            R[vi, vj] = T.max(R[vi, vj], T.float32(0))\n";
        let source = tvmscript::parse(&format!("{product}{relu}")).unwrap();
        let made = copied_before(&source);
        let text = tvmscript::print(&made);
        assert_eq!(super::parts(&made).len(), 2, "{text}");
        let again = tvmscript::parse(&text).unwrap();
        interp::equal_on(&source, &again, 1).unwrap();
        assert!(crate::space::contraction(&again).unwrap().epilogue.is_some(), "{text}");
    }

    #[test]
    fn what_depends_on_the_order_stays() {
        let map = ("vi, vj = T.axis.remap(\"SS\", [i, j])", " in T.grid(8, 6)");
        let source = tvmscript::parse(&script(map.0, map.1, "R[vi, 5 - vj]")).unwrap();
        assert_eq!(tvmscript::print(&copied_before(&source)), tvmscript::print(&source));
    }
}
