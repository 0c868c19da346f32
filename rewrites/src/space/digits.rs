//! Iterators of which indices take quotients and remainders, as several; and buffers by the same digits.
//!
//! before                                                   after
//!   Y[n] = Y[n] + X[k] * f(W[n, k // 8], k % 8)              Y[n] = Y[n] + X[k_0, k_1] * f(W[n, k_0], k_1)
//!
//! An element of a buffer that holds several values (weights of 4 bits, scales of groups) is read at a quotient. It is `split` of the
//! loop, with the block's iterator, and `transform_layout` of the buffers: a row-major buffer has the same memory with one dimension or
//! with its digits. All blocks that access such a dimension take part, or none does. Done is it where every access of what it makes is
//! known, and was not; what kernels of rows took they still take.
use super::encode::Reader;
use super::nests::{accesses, block_of, nest_over, parts};
use super::ordered::ordered;
use super::stream;
use crate::arith::Domains;
use crate::iter_map::{self, LoopDigit};
use crate::regions::iter_domains;
use satune_ir::affine::{add, constant, index_type, int, mul};
use satune_ir::term::Axis;
use satune_ir::{visit, BinOp, Block, BufferId, DType, Expr, IterKind, IterVar, Program, Stmt, Var, VarId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The same program by digits, where that is worth it.
pub(super) fn by_digits(program: &Program) -> Program {
    let given = parts(program);
    let left: Vec<bool> = given.iter().map(|part| !stream::knows(program, part)).collect();
    if !left.contains(&true) {
        return program.clone();
    }
    let Some(digits) = Digits::of(program) else { return program.clone() };
    let Some(made) = digits.made(program).map(|made| ordered(&made)) else { return program.clone() };
    let mut won = false;
    for ((part, own), left) in parts(&made).into_iter().zip(given).zip(left) {
        let cut = block_of(program, own).is_ok_and(|block| digits.cuts(block));
        let as_it_was = !cut || left || is_row_wise(&made, part) || sums_otherwise(program, own);
        match stream::knows(&made, part) && as_it_was {
            true => won |= left,
            false if left => {}
            false => return program.clone(),
        }
    }
    if won {
        made
    } else {
        program.clone()
    }
}

/// Whether a nest is a sum that no kernel of rows takes: threads share it, by digits as without them.
fn sums_otherwise(program: &Program, part: &Stmt) -> bool {
    block_of(program, part).is_ok_and(reduces) && !is_row_wise(program, part)
}

fn reduces(block: &Block) -> bool {
    block.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce)
}

/// Whether kernels of rows take a nest: a sum of rows, or a map of elements in the order in which it reads them.
fn is_row_wise(program: &Program, part: &Stmt) -> bool {
    let Ok(block) = block_of(program, part) else { return false };
    if reduces(block) {
        return stream::sums_rows(program, part);
    }
    let number = |e: &Expr| match e {
        Expr::Var(v) => block.iter_vars.iter().position(|iv| iv.var == *v),
        _ => None,
    };
    accesses(block).iter().all(|(_, at)| at.iter().filter_map(number).collect::<Vec<_>>().is_sorted())
}

/// Most places at which a number is cut.
const MOST: usize = 16;

/// A buffer's dimension.
type Dim = (BufferId, usize);

/// A part of an index: `(v // low) % (high / low) * scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Term {
    var: VarId,
    low: i64,
    high: i64,
    scale: i64,
}

impl Term {
    fn extent(&self) -> i64 {
        self.high / self.low
    }

    /// One more than the most that it adds, in units of its scale.
    fn end(&self) -> i64 {
        self.scale.saturating_mul(self.extent())
    }
}

/// Places at which numbers are cut: between digits of less weight and those of that weight.
type Cuts = BTreeSet<i64>;

/// Where iterators and dimensions are cut.
#[derive(Default)]
struct Digits {
    /// Those that are cut.
    iters: BTreeMap<VarId, Cuts>,
    dims: BTreeMap<Dim, Cuts>,
}

impl Digits {
    /// What follows from the quotients and remainders of a program; none where something else is done with what they are taken of.
    fn of(program: &Program) -> Option<Digits> {
        let parts = parts(program);
        let blocks: Vec<&Block> = parts.iter().map(|part| block_of(program, part).ok()).collect::<Option<_>>()?;
        let plain = |iv: &IterVar| constant(&iv.min) == Some(0) && constant(&iv.extent).is_some();
        let bare = |b: &Block| b.match_buffers.is_empty() && b.alloc_buffers.is_empty();
        if !blocks.iter().all(|b| bare(b) && b.iter_vars.iter().all(plain)) {
            return None;
        }
        let mut out = Digits::default();
        loop {
            let before = (out.iters.clone(), out.dims.clone());
            for block in &blocks {
                let mut reading = Reading { domains: iter_domains(block), cuts: &mut out.iters };
                let mut sound = true;
                each_integer(block, &mut |e| {
                    reading.terms(e);
                });
                for (buffer, indices) in accesses(block) {
                    for (dim, index) in indices.iter().enumerate() {
                        let extent = constant(&program.buffer(buffer).shape[dim])?;
                        let cuts = out.dims.entry((buffer, dim)).or_default();
                        sound &= reading.joined(index, extent, cuts);
                    }
                }
                if !sound {
                    return None;
                }
            }
            if out.iters.values().chain(out.dims.values()).any(|cuts| cuts.len() > MOST) {
                return None;
            }
            if before == (out.iters.clone(), out.dims.clone()) {
                break;
            }
        }
        let whole = |block: &&Block| {
            block.iter_vars.iter().all(|iv| {
                let cuts = out.iters.get(&iv.var.id);
                cuts.is_none_or(|cuts| constant(&iv.extent).is_some_and(|extent| divides(cuts, extent)))
            })
        };
        let dims = |(&(buffer, dim), cuts): (&Dim, &Cuts)| {
            constant(&program.buffer(buffer).shape[dim]).is_some_and(|extent| divides(cuts, extent))
        };
        let kept = blocks.iter().filter(|b| out.cuts(b)).all(|block| !has_tiles(program, block));
        (kept && blocks.iter().all(whole) && out.dims.iter().all(dims)).then_some(out)
    }

    /// Whether an iterator of a block is cut.
    fn cuts(&self, block: &Block) -> bool {
        block.iter_vars.iter().any(|iv| self.iters.contains_key(&iv.var.id))
    }

    /// The program by these digits.
    fn made(&self, program: &Program) -> Option<Program> {
        let mut out = program.clone();
        let ids: BTreeSet<BufferId> =
            self.dims.iter().filter(|(_, cuts)| !cuts.is_empty()).map(|((b, _), _)| *b).collect();
        for id in ids {
            let held = program.buffer(id);
            if !held.strides.is_empty() || held.elem_offset.is_some() {
                return None;
            }
            let mut shape = Vec::new();
            for (dim, extent) in held.shape.iter().enumerate() {
                let digits = digits(self.dims.get(&(id, dim)), constant(extent)?);
                shape.extend(digits.into_iter().map(|(_, n)| int(n, index_type(extent))));
            }
            out.buffer_mut(id).shape = shape;
        }
        let mut nests = Vec::new();
        for part in parts(program) {
            let block = block_of(program, part).ok()?.clone();
            nests.push(self.nest(&mut out, program, &block)?);
        }
        *out.body.block.body = Stmt::seq(nests);
        Some(out)
    }

    fn nest(&self, out: &mut Program, program: &Program, block: &Block) -> Option<Stmt> {
        let mut iters = Vec::new();
        let mut of_weight: HashMap<(VarId, i64), Var> = HashMap::new();
        for iv in block.iter_vars.iter().filter(|iv| !is_one(iv)) {
            let digits = digits(self.iters.get(&iv.var.id), constant(&iv.extent)?);
            if let [_] = digits[..] {
                of_weight.insert((iv.var.id, 1), iv.var.clone());
                iters.push(iv.clone());
                continue;
            }
            for (number, (weight, extent)) in digits.into_iter().enumerate() {
                let var = out.fresh_var(format!("{}_{number}", iv.var.name), iv.var.dtype);
                of_weight.insert((iv.var.id, weight), var.clone());
                iters.push(IterVar { var, extent: Expr::Int(extent, iv.var.dtype), ..iv.clone() });
            }
        }
        let written = Written { digits: self, program, domains: iter_domains(block), of_weight };
        let init = match &block.init {
            Some(init) => Some(written.stmt(init)?),
            None => None,
        };
        let body = written.stmt(&block.body)?;
        let ones: Vec<VarId> = block.iter_vars.iter().filter(|iv| is_one(iv)).map(|iv| iv.var.id).collect();
        let gone = |v: VarId| ones.contains(&v) || self.iters.contains_key(&v);
        let mut left = false;
        for stmt in init.iter().chain([&body]) {
            visit::walk_stmt_exprs(stmt, &mut |e| left |= visit::uses_var(e, &gone));
        }
        (!left && !iters.is_empty()).then(|| nest_over(out, block.name.clone(), &iters, init, body))
    }
}

/// Whether an iterator has one value, which need not be said.
fn is_one(iv: &IterVar) -> bool {
    iv.kind == IterKind::Spatial && constant(&iv.extent) == Some(1)
}

/// Whether a block is a product that has tiles: each element of both factors is used again and again.
fn has_tiles(program: &Program, block: &Block) -> bool {
    let Ok(product) = (Reader { program, block }).read() else { return false };
    let many = |axis: Axis| product.iters.iter().any(|(a, info)| *a == axis && info.extent > 1);
    many(Axis::M) && many(Axis::N)
}

/// Whether each of some weights divides the next, and the last a number.
fn divides(cuts: &Cuts, extent: i64) -> bool {
    let all: Vec<i64> = cuts.iter().copied().chain([extent]).collect();
    all.windows(2).all(|two| two[0] < two[1] && two[1] % two[0] == 0)
}

/// Weight and extent of each digit, the heaviest first.
fn digits(cuts: Option<&Cuts>, extent: i64) -> Vec<(i64, i64)> {
    let mut weight = 1;
    let mut out = Vec::new();
    for end in cuts.into_iter().flatten().copied().chain([extent]) {
        out.push((weight, end / weight));
        weight = end;
    }
    out.reverse();
    out
}

/// Calls `each` with all expressions of integers in a block that are quotients or remainders.
fn each_integer(block: &Block, each: &mut dyn FnMut(&Expr)) {
    for whole in block.init.as_deref().into_iter().chain([&*block.body]) {
        visit::walk_stmt_exprs(whole, &mut |e| {
            visit::walk_expr(e, &mut |e| {
                if matches!(e, Expr::Binary(BinOp::FloorDiv | BinOp::FloorMod, ..)) {
                    each(e);
                }
            });
        });
    }
}

/// The digits that an integer is the sum of, the heaviest first; none where it is something else.
fn terms(e: &Expr, domains: &Domains) -> Option<Vec<Term>> {
    let map = iter_map::taken_apart(std::slice::from_ref(e), domains, &int(1, DType::Bool), false)?;
    let of = |d: &LoopDigit| match d.var {
        Expr::Var(v) if d.scale > 0 => {
            Some(Term { var: v.id, low: d.lower, high: d.lower.checked_mul(d.extent)?, scale: d.scale })
        }
        _ => None,
    };
    let mut all = map.loop_digits(0)?.iter().map(of).collect::<Option<Vec<_>>>()?;
    all.sort_by_key(|t| -t.scale);
    (map.base_of(0) == Some(0)).then_some(all)
}

/// Reads indices as sums of digits, and notes where iterators are cut for it.
struct Reading<'c> {
    domains: Domains,
    cuts: &'c mut BTreeMap<VarId, Cuts>,
}

impl Reading<'_> {
    fn cut(&mut self, var: VarId, at: i64) {
        let extent = self.domains.get(&var).and_then(|range| constant(&range.extent));
        if at > 1 && extent.is_some_and(|extent| at < extent) {
            self.cuts.entry(var).or_default().insert(at);
        }
    }

    /// Cuts iterators where digits of an integer begin and end.
    fn terms(&mut self, e: &Expr) -> Option<Vec<Term>> {
        let all = terms(e, &self.domains)?;
        for t in &all {
            self.cut(t.var, t.low);
            self.cut(t.var, t.high);
        }
        Some(all)
    }

    /// Cuts an index as its dimension is cut, and the dimension as the index is; whether that can be done.
    fn joined(&mut self, index: &Expr, extent: i64, cuts: &mut Cuts) -> bool {
        if constant(index).is_some_and(|at| at != 0) {
            return cuts.is_empty();
        }
        let Some(terms) = self.terms(index) else { return cuts.is_empty() };
        // From the lightest: each begins where the one before ended.
        let mut weight = 1;
        for t in terms.iter().rev() {
            if t.scale != weight {
                return false;
            }
            if weight > 1 {
                cuts.insert(weight);
            }
            let own = self.cuts.get(&t.var).cloned().unwrap_or_default();
            let inside: Vec<i64> = own.into_iter().filter(|at| *at > t.low && *at < t.high).collect();
            if inside.iter().any(|at| at % t.low != 0) {
                return false;
            }
            cuts.extend(inside.into_iter().map(|at| weight * (at / t.low)));
            weight = t.end();
            for at in cuts.clone().into_iter().filter(|at| *at > t.scale && *at < weight) {
                if at % t.scale != 0 {
                    return false;
                }
                self.cut(t.var, t.low * (at / t.scale));
            }
        }
        // What goes through a part of a dimension may be the whole of a digit.
        if weight < extent && !cuts.is_empty() {
            cuts.insert(weight);
        }
        weight <= extent
    }
}

/// Writes a block's statements by digits.
struct Written<'d> {
    digits: &'d Digits,
    program: &'d Program,
    domains: Domains,
    /// The iterator that is a digit, by the weight.
    of_weight: HashMap<(VarId, i64), Var>,
}

impl Written<'_> {
    fn terms(&self, e: &Expr) -> Option<Vec<Term>> {
        let all = terms(e, &self.domains)?;
        // One of each digit.
        let single = |t: &Term| {
            let own = self.digits.iters.get(&t.var).cloned().unwrap_or_default();
            let inside = own.into_iter().filter(|at| *at > t.low && *at < t.high);
            let ends: Vec<i64> = [t.low].into_iter().chain(inside).chain([t.high]).collect();
            let of = |two: &[i64]| Term { low: two[0], high: two[1], scale: t.scale * (two[0] / t.low), ..*t };
            ends.windows(2).rev().map(of).collect::<Vec<_>>()
        };
        Some(all.iter().flat_map(single).collect())
    }

    fn stmt(&self, stmt: &Stmt) -> Option<Stmt> {
        let Stmt::Store { buffer, indices, value } = stmt else { return None };
        Some(Stmt::Store { buffer: *buffer, indices: self.indices(*buffer, indices), value: self.value(value) })
    }

    /// An expression whose quotients and remainders are digits.
    fn value(&self, e: &Expr) -> Expr {
        let integer = match e {
            Expr::Binary(BinOp::FloorDiv | BinOp::FloorMod | BinOp::Add | BinOp::Mul, ..) | Expr::Var(_) => self.sum(e),
            _ => None,
        };
        if let Some(sum) = integer {
            return sum;
        }
        match e {
            Expr::Load(buffer, at) => Expr::Load(*buffer, self.indices(*buffer, at)),
            other => visit::map_children(other, &mut |child| self.value(child)),
        }
    }

    /// An integer as a sum of digits; none where it is none of iterators that are cut, or of one value.
    fn sum(&self, e: &Expr) -> Option<Expr> {
        let is_one = |v: VarId| self.domains.get(&v).and_then(|range| constant(&range.extent)) == Some(1);
        if !visit::uses_var(e, &|v| self.digits.iters.contains_key(&v) || is_one(v)) {
            return None;
        }
        let mut sum = int(0, satune_ir::fold::dtype(e, &self.program.buffers));
        for t in self.terms(e)? {
            let var = self.of_weight.get(&(t.var, t.low))?;
            sum = add(sum, mul(Expr::Var(var.clone()), int(t.scale, var.dtype)));
        }
        Some(sum)
    }

    fn indices(&self, buffer: BufferId, at: &[Expr]) -> Vec<Expr> {
        let mut out = Vec::new();
        for (dim, index) in at.iter().enumerate() {
            let extent = constant(&self.program.buffer(buffer).shape[dim]).unwrap_or(1);
            let digits = digits(self.digits.dims.get(&(buffer, dim)), extent);
            let zero = || Expr::Int(0, satune_ir::fold::dtype(index, &self.program.buffers));
            match (&digits[..], self.terms(index)) {
                ([_], _) | (_, None) => out.push(self.value(index)),
                (digits, Some(terms)) => out.extend(digits.iter().map(|(weight, _)| {
                    let term = terms.iter().find(|t| t.scale == *weight);
                    let var = term.and_then(|t| self.of_weight.get(&(t.var, t.low)));
                    var.map_or_else(zero, |var| Expr::Var(var.clone()))
                })),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::by_digits;
    use satune_ir::tvmscript;

    fn printed(text: &str) -> String {
        tvmscript::print(&by_digits(&tvmscript::parse(text).unwrap()))
    }

    /// Weights of 4 bits, eight in an element, scales of 32.
    fn quantized(weights: &str, value: &str) -> String {
        format!(
            "@T.prim_func(s_tir=True)
def main(W: T.Buffer(({weights}), \"uint32\"), S: T.Buffer((64, 8), \"float32\"), X: T.Buffer((256,), \"float32\"), Y: T.Buffer((64,), \"float32\")):
    for n, k in T.grid(64, 256):
        with T.sblock(\"Y\"):
            vn, vk = T.axis.remap(\"SR\", [n, k])
            with T.init():
                Y[vn] = T.float32(0)
            Y[vn] = Y[vn] + X[vk] * {value}
"
        )
    }

    const RESHAPED: &str = "@T.prim_func(s_tir=True)
def main(A: T.Buffer((1, 32, 1, 128), \"float16\"), C: T.Buffer((1, 1, 4096), \"float16\")):
    for v in range(4096):
        with T.sblock(\"C\"):
            v0 = T.axis.spatial(4096, v)
            C[0, 0, v0] = A[0, v0 // 128, 0, v0 % 128]
";

    #[test]
    fn a_reshaped_buffer_is_copied_by_its_digits() {
        let made = printed(RESHAPED);
        assert!(made.contains("C[0, 0, v0_0_1, v0_1_1] = A[0, v0_0_1, 0, v0_1_1]"), "{made}");
    }

    const VALUE: &str =
        "(T.Cast(\"float32\", W[vn, vk // 8] >> T.Cast(\"uint32\", vk % 8 * 4) & T.uint32(15)) * S[vn, vk // 32])";

    #[test]
    fn elements_that_hold_several_values_have_an_index_of_their_own() {
        let made = printed(&quantized("64, 32", VALUE));
        for part in [
            "W: T.Buffer((64, 8, 4)",
            "X: T.Buffer((8, 4, 8)",
            "T.grid(64, 8, 4, 8)",
            "X[vk_0, vk_1, vk_2] * (T.Cast(\"float32\", W[vn, vk_0, vk_1] >> T.Cast(\"uint32\", vk_2 * 4) & T.uint32(15)) * S[vn, vk_0])",
        ] {
            assert!(made.contains(part), "{part}\n{made}");
        }
    }

    /// Parts of an element that its extent does not divide into; a neighbour's; a product whose elements are used again and again.
    #[test]
    fn what_has_no_digits_stays() {
        let stays = |text: &str| {
            let given = tvmscript::print(&tvmscript::parse(text).unwrap());
            assert_eq!(printed(text), given);
        };
        let packed = quantized("64, 32", VALUE);
        stays(&packed.replace("256", "252").replace("(64, 8)", "(64, 9)"));
        stays(&packed.replace("vk // 32]", "T.min(vk // 32 + 1, 7)]"));
        let product = packed
            .replace("n, k in T.grid(64, 256)", "n, m, k in T.grid(64, 16, 256)")
            .replace("vn, vk = T.axis.remap(\"SR\", [n, k])", "vn, vm, vk = T.axis.remap(\"SSR\", [n, m, k])")
            .replace("Y[vn]", "Y[vn, vm]")
            .replace("X[vk]", "X[vm, vk]")
            .replace("(256,)", "(16, 256)")
            .replace("Y: T.Buffer((64,)", "Y: T.Buffer((64, 16)")
            .replace(VALUE, "W[vn, vk]")
            .replace("W: T.Buffer((64, 32), \"uint32\")", "P: T.Buffer((64, 32), \"uint32\")");
        let decode = "    W = T.sblock_alloc_buffer((64, 256))
    for n, k in T.grid(64, 256):
        with T.sblock(\"W\"):
            vn, vk = T.axis.remap(\"SS\", [n, k])
            W[vn, vk] = T.Cast(\"float32\", P[vn, vk // 8] >> T.Cast(\"uint32\", vk % 8 * 4) & T.uint32(15))
    for n, m, k";
        stays(&product.replace("    for n, m, k", decode));
    }
}
