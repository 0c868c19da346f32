//! Neighbouring axes of a product as one.
//!
//! before                                                after
//!   C[b, i, n] = C[b, i, n] + A[b, i, k] * W[k, n]        C[b_i, n] = C[b_i, n] + A[b_i, k] * W[k, n]
//!
//! A product has tiles along m, n and k; of further axes it takes one value at a time, and reads again along them what one operand does
//! not have. Two axes are one where they index neighbouring dimensions, the same everywhere: the memory of a row-major buffer is the
//! same with both dimensions or with one. It is what `fuse` does with loops, and `transform_layout` with buffers. All blocks that
//! access these dimensions take part, or none does.
use super::encode::Reader;
use super::nests::{accesses, block_of, nest_over, parts, touches};
use satune_ir::affine::{constant, int};
use satune_ir::{visit, Block, BufferId, Expr, IterVar, Program, Stmt, Var, VarId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most values of an axis, as of those of operators.
const MOST: i64 = 1 << 20;

/// A buffer, and the first of two neighbouring dimensions.
type At = (BufferId, usize);

/// The same program, with one axis for neighbours of which its products would take one value at a time.
pub(super) fn flattened(program: &Program) -> Program {
    let mut out = program.clone();
    while let Some(next) = wanted(&out).into_iter().find_map(|at| Together::of(&out, at)?.made(&out)) {
        out = next;
    }
    out
}

/// Neighbouring dimensions of products' operands of which one is of an axis without tiles.
fn wanted(program: &Program) -> BTreeSet<At> {
    let mut out = BTreeSet::new();
    for block in parts(program).into_iter().filter_map(|part| block_of(program, part).ok()) {
        let Ok(product) = (Reader { program, block }).read() else { continue };
        let left: Vec<_> = product.untiled().map(|(axis, _)| axis).collect();
        for operand in [&product.c, &product.a, &product.b] {
            let pairs = operand.dims.windows(2).enumerate();
            let some = pairs.filter(|(_, pair)| pair.iter().any(|axis| left.contains(&axis)));
            out.extend(some.map(|(dim, _)| (operand.buffer, dim)));
        }
    }
    out
}

/// Dimensions that become one together, and of each block the axes that do.
#[derive(Default)]
struct Together {
    dims: BTreeSet<At>,
    axes: BTreeMap<usize, BTreeSet<[VarId; 2]>>,
}

impl Together {
    /// What follows from these two dimensions; none where something else is done with one of them.
    fn of(program: &Program, first: At) -> Option<Together> {
        let parts = parts(program);
        let blocks: Vec<Option<&Block>> = parts.iter().map(|part| block_of(program, part).ok()).collect();
        let mut out = Together::default();
        let mut next = vec![first];
        while let Some(at @ (buffer, dim)) = next.pop() {
            if !out.dims.insert(at) {
                continue;
            }
            if out.dims.contains(&(buffer, dim + 1)) || dim > 0 && out.dims.contains(&(buffer, dim - 1)) {
                return None;
            }
            for (number, (part, block)) in parts.iter().zip(&blocks).enumerate() {
                let Some(block) = block else {
                    if touches(part, buffer) {
                        return None;
                    }
                    continue;
                };
                for (_, indices) in accesses(block).into_iter().filter(|(b, _)| *b == buffer) {
                    let pair = pair(program, block, at, &indices)?;
                    if out.axes.entry(number).or_default().insert(pair) {
                        next.extend(accesses(block).into_iter().flat_map(|(b, indices)| places(b, &indices, pair)));
                    }
                }
            }
        }
        Some(out)
    }

    /// The program with both as one; none where an axis is left in something else than such a pair of indices.
    fn made(&self, program: &Program) -> Option<Program> {
        let mut out = program.clone();
        for (buffer, dim) in &self.dims {
            let held = program.buffer(*buffer);
            if !held.strides.is_empty() || held.elem_offset.is_some() {
                return None;
            }
            let shape = &mut out.buffer_mut(*buffer).shape;
            let extent = constant(&shape[*dim])?.checked_mul(constant(&shape[dim + 1])?)?;
            shape[*dim] = int(extent, satune_ir::affine::index_type(&shape[*dim]));
            shape.remove(dim + 1);
        }
        let mut nests: Vec<Stmt> = parts(program).into_iter().cloned().collect();
        for (number, pairs) in &self.axes {
            let block = block_of(program, &nests[*number]).ok()?.clone();
            nests[*number] = self.nest(&mut out, &block, pairs)?;
        }
        *out.body.block.body = Stmt::seq(nests);
        Some(out)
    }

    fn nest(&self, out: &mut Program, block: &Block, pairs: &BTreeSet<[VarId; 2]>) -> Option<Stmt> {
        let mut iters = block.iter_vars.clone();
        let mut as_one: HashMap<VarId, Expr> = HashMap::new();
        for [first, second] in pairs {
            let place = |v: &VarId, iters: &[IterVar]| iters.iter().position(|iv| iv.var.id == *v);
            let inner = iters.remove(place(second, &iters)?);
            let at = place(first, &iters)?;
            let extent = constant(&iters[at].extent)?.checked_mul(constant(&inner.extent)?).filter(|e| *e <= MOST)?;
            let dtype = inner.var.dtype;
            let name = format!("{}_{}", iters[at].var.name, inner.var.name.trim_start_matches('v'));
            let var = out.fresh_var(name, dtype);
            as_one.insert(*first, Expr::Var(var.clone()));
            iters[at] = IterVar { var, extent: Expr::Int(extent, dtype), ..inner };
        }
        let indices = |buffer: BufferId, at: Vec<Expr>| -> Vec<Expr> {
            let dims = at.into_iter().enumerate().filter(|(d, _)| !(*d > 0 && self.dims.contains(&(buffer, d - 1))));
            let of = |(d, e): (usize, Expr)| match &e {
                Expr::Var(v) if self.dims.contains(&(buffer, d)) => as_one.get(&v.id).cloned().unwrap_or(e),
                _ => e,
            };
            dims.map(of).collect()
        };
        let relaid = |stmt: &Stmt| {
            let loads = |e: &Expr| {
                visit::map_expr(e, &mut |e| match e {
                    Expr::Load(buffer, at) => Expr::Load(buffer, indices(buffer, at)),
                    other => other,
                })
            };
            let stmt = visit::map_stmt_exprs(stmt, &mut |e| loads(e));
            match stmt {
                Stmt::Store { buffer, indices: at, value } => {
                    Some(Stmt::Store { buffer, indices: indices(buffer, at), value })
                }
                _ => None,
            }
        };
        let init = match &block.init {
            Some(init) => Some(relaid(init)?),
            None => None,
        };
        let body = relaid(&block.body)?;
        let gone: BTreeSet<VarId> = pairs.iter().flatten().copied().collect();
        let mut left = false;
        for stmt in init.iter().chain([&body]) {
            visit::walk_stmt_exprs(stmt, &mut |e| left |= visit::uses_var(e, &|v| gone.contains(&v)));
        }
        (!left).then(|| nest_over(out, block.name.clone(), &iters, init, body))
    }
}

/// The two iterators that index these dimensions from end to end.
fn pair(program: &Program, block: &Block, (buffer, dim): At, indices: &[Expr]) -> Option<[VarId; 2]> {
    let shape = &program.buffer(buffer).shape;
    let iter = |dim: usize| {
        let Expr::Var(Var { id, .. }) = indices.get(dim)? else { return None };
        let iter = block.iter_vars.iter().find(|iv| iv.var.id == *id)?;
        let whole = constant(&iter.min) == Some(0) && constant(&iter.extent) == constant(&shape[dim]);
        (whole && constant(&iter.extent).is_some()).then_some(iter)
    };
    let [first, second] = [iter(dim)?, iter(dim + 1)?];
    (first.kind == second.kind && first.var != second.var).then_some([first.var.id, second.var.id])
}

/// Where the first of two iterators indexes a buffer, if the second comes next.
fn places(buffer: BufferId, indices: &[Expr], [first, second]: [VarId; 2]) -> Vec<At> {
    let is = |e: &Expr, id: VarId| matches!(e, Expr::Var(v) if v.id == id);
    let next = indices.windows(2).enumerate().filter(|(_, two)| is(&two[0], first) && is(&two[1], second));
    next.map(|(dim, _)| (buffer, dim)).collect()
}

#[cfg(test)]
mod tests {
    use super::flattened;
    use satune_ir::tvmscript;

    /// A product over `iters` and k, and a map of its result.
    fn program(buffers: [(&str, &str); 5], iters: &str, extents: &str) -> String {
        let [(a_shape, a), (w_shape, w), (c_shape, c), (d_shape, d), (bias_shape, bias)] = buffers;
        let kinds = |last: &str| format!("{}{last}", "S".repeat(iters.split(", ").count()));
        let loops = iters.replace('v', "");
        let (sums, all) = (kinds("R"), kinds(""));
        format!(
            "@T.prim_func(s_tir=True)
def main(A: T.Buffer(({a_shape}), \"float32\"), W: T.Buffer(({w_shape}), \"float32\"), bias: T.Buffer(({bias_shape}), \"float32\"), D: \
             T.Buffer(({d_shape}), \"float32\")):
    C = T.sblock_alloc_buffer(({c_shape}), \"float32\")
    for {loops}, k in T.grid({extents}, 32):
        with T.sblock(\"C\"):
            {iters}, vk = T.axis.remap(\"{sums}\", [{loops}, k])
            with T.init():
                C[{c}] = T.float32(0)
            C[{c}] = C[{c}] + A[{a}] * W[{w}]
    for {loops} in T.grid({extents}):
        with T.sblock(\"D\"):
            {iters} = T.axis.remap(\"{all}\", [{loops}])
            D[{d}] = C[{c}] + bias[{bias}]
"
        )
    }

    fn printed(text: &str) -> String {
        tvmscript::print(&flattened(&tvmscript::parse(text).unwrap()))
    }

    #[test]
    fn neighbours_are_one_in_all_blocks() {
        let w = ("32, 64", "vk, vj");
        let given = program(
            [("8, 4, 32", "vb, vi, vk"), w, ("8, 4, 64", "vb, vi, vj"), ("8, 4, 64", "vb, vi, vj"), ("64,", "vj")],
            "vb, vi, vj",
            "8, 4, 64",
        );
        let made = printed(&given);
        for part in
            ["A: T.Buffer((32, 32)", "D: T.Buffer((32, 64)", "A[vb_i, vk] * W[vk, vj]", "C[vb_i, vj] + bias[vj]"]
        {
            assert!(made.contains(part), "{part}\n{made}");
        }
    }

    /// One of the two indexes something else; another order; only a part of the dimension; what is a batch for both factors.
    #[test]
    fn what_is_not_the_same_everywhere_stays() {
        let (a, w) = (("8, 4, 32", "vb, vi, vk"), ("32, 64", "vk, vj"));
        let (c, bias) = (("8, 4, 64", "vb, vi, vj"), ("64,", "vj"));
        for buffers in [
            [a, w, c, c, ("4, 64", "vi, vj")],
            [a, w, c, ("4, 8, 64", "vi, vb, vj"), bias],
            [("4, 8, 32", "vi, vb, vk"), w, c, c, bias],
            [a, w, c, ("8, 6, 64", "vb, vi, vj"), bias],
            [a, w, c, ("8, 64, 4", "vb, vj, vi"), bias],
            [a, ("8, 4, 32, 64", "vb, vi, vk, vj"), c, c, bias],
        ] {
            let given = program(buffers, "vb, vi, vj", "8, 4, 64");
            assert_eq!(printed(&given), tvmscript::print(&tvmscript::parse(&given).unwrap()));
        }
    }
}
