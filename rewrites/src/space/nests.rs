//! The nests of a program: one block each, under loops that are its iterators.
//!
//! Here is refused what no schedule of the spaces keeps as it is: loops that do not run over whole iterators, conditions,
//! statements beside the blocks, and regions that say something else than the block does.
use crate::regions::iter_domains;
use crate::split::serial_nest;
use crate::tree::all_realizes;
use satune_ir::access::{self, Accesses};
use satune_ir::affine::linear::Linear;
use satune_ir::affine::{constant, Domains};
use satune_ir::{
    fields, visit, BinOp, Block, BlockRealize, Buffer, BufferId, DType, Expr, ForKind, IterVar, Program, Region, Stmt,
    Var, VarId,
};
use std::collections::HashMap;

/// Why a part of a program is no nest of a block's iterators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NestError {
    /// The block is not plainly nested, or says something else than it does.
    #[error("block `{block}`: {reason}")]
    Block {
        /// Its name.
        block: String,
        /// What does not fit.
        reason: String,
    },
    /// There is no nest of one block.
    #[error("{reason}")]
    Program {
        /// What does not fit.
        reason: String,
    },
}

/// A block, and its iterators in the order of its loops.
pub(super) struct Nest<'p> {
    pub block: &'p Block,
    /// Numbers of the iterators.
    pub order: Vec<usize>,
}

/// The statements of the root block, one nest each.
pub(super) fn parts(program: &Program) -> Vec<&Stmt> {
    match &*program.body.block.body {
        Stmt::Seq(parts) => parts.iter().collect(),
        one => vec![one],
    }
}

/// How often the text of a nest loads of a buffer of this name: so often a value that is inlined there is computed.
pub(super) fn times_loaded(program: &Program, nest: &Stmt, name: &str) -> usize {
    let mut count = 0;
    visit::walk_stmt_exprs(nest, &mut |whole| {
        let is_it = |e: &Expr| matches!(e, Expr::Load(b, _) if program.buffer(*b).name == name);
        visit::walk_expr(whole, &mut |e| count += usize::from(is_it(e)));
    });
    count
}

/// Whether a value is the same wherever it is computed.
pub(super) fn is_fixed(value: &Expr) -> bool {
    visit::loads(value).is_empty() && !visit::uses_var(value, &|_| true)
}

/// A new block over iterators like these, under a loop for each, which does what is said of them.
pub(crate) fn nest_over(out: &mut Program, name: String, iters: &[IterVar], init: Option<Stmt>, body: Stmt) -> Stmt {
    let (mut loops, mut iter_vars, mut iter_values) = (Vec::new(), Vec::new(), Vec::new());
    let mut map: HashMap<_, Expr> = HashMap::new();
    for iv in iters {
        let var = out.fresh_var(iv.var.name.clone(), iv.var.dtype);
        let l = out.fresh_var(iv.var.name.trim_start_matches('v'), iv.var.dtype);
        map.insert(iv.var.id, Expr::Var(var.clone()));
        iter_values.push(Expr::Var(l.clone()));
        loops.push((l, constant(&iv.extent).unwrap_or(1)));
        iter_vars.push(IterVar { var, ..iv.clone() });
    }
    let of = |stmt: &Stmt| visit::map_stmt_exprs(stmt, &mut |e| visit::substitute(e, &map));
    let (init, body) = (init.as_ref().map(of), of(&body));
    let touched = access::of_block(init.as_ref(), &body, &[], &out.buffers);
    let mut block = Block::plain(out.fresh_block(), name, body);
    (block.iter_vars, block.init) = (iter_vars, init.map(Box::new));
    (block.reads, block.writes) = (touched.reads, touched.writes);
    let realize = BlockRealize { iter_values, predicate: Expr::Int(1, DType::Bool), block };
    serial_nest(loops.into_iter(), Stmt::Realize(Box::new(realize)))
}

/// Whether an iterator is in an expression.
pub(super) fn uses(e: &Expr, var: VarId) -> bool {
    visit::uses_var(e, &|v| v == var)
}

/// An expression with another one in the place of each that is this.
pub(super) fn replaced(e: &Expr, what: &Expr, with: &Expr) -> Expr {
    if e == what {
        return with.clone();
    }
    visit::map_children(e, &mut |child| replaced(child, what, with))
}

/// Whether elements say where an access is.
pub(super) fn by_data(at: &[Expr]) -> bool {
    at.iter().any(|index| !visit::loads(index).is_empty())
}

/// The same program, with what `made` makes of a nest instead of it, where that is anything.
pub(super) fn remade(program: &Program, made: impl Fn(&mut Program, &Stmt) -> Option<Vec<Stmt>>) -> Program {
    let mut out = program.clone();
    let nests = parts(program).into_iter().flat_map(|part| made(&mut out, part).unwrap_or_else(|| vec![part.clone()]));
    let nests = nests.collect();
    *out.body.block.body = Stmt::seq(nests);
    out
}

/// A buffer that the root allocates; its name is followed by a number where another, or a block, has it.
pub(super) fn allocated(out: &mut Program, name: &str, dtype: DType, shape: Vec<Expr>) -> BufferId {
    let blocks = all_realizes(&out.body.block.body);
    let taken =
        |name: &String| out.buffers.iter().any(|b| b.name == *name) || blocks.iter().any(|r| r.block.name == *name);
    let name = unused(name, taken);
    let id = out.add_buffer(Buffer::plain(name, dtype, shape, "global"));
    out.body.block.alloc_buffers.push(id);
    id
}

/// What a block loads and stores.
pub(super) fn accesses(block: &Block) -> Vec<(BufferId, Vec<Expr>)> {
    let mut out = Vec::new();
    for whole in block.init.as_deref().into_iter().chain([&*block.body]) {
        visit::walk_stmt_exprs(whole, &mut |e| out.extend(visit::loads(e)));
        visit::walk_stmt(whole, &mut |s| {
            if let Stmt::Store { buffer, indices, .. } = s {
                out.push((*buffer, indices.clone()));
            }
        });
    }
    out
}

/// Whether a statement has anything to do with a buffer.
pub(super) fn touches(stmt: &Stmt, buffer: BufferId) -> bool {
    let mut found = false;
    visit::walk_stmt(stmt, &mut |s| match s {
        Stmt::Store { buffer: b, .. } => found |= *b == buffer,
        Stmt::Realize(r) => {
            found |= r.block.reads.iter().chain(&r.block.writes).any(|region| region.buffer == buffer);
            found |= !r.block.match_buffers.is_empty();
        }
        _ => {}
    });
    visit::walk_stmt_exprs(stmt, &mut |e| {
        visit::walk_expr(e, &mut |e| found |= matches!(e, Expr::Load(b, _) if *b == buffer) || fields::of(e).is_some());
    });
    found
}

/// A name, followed by a number where it is taken.
pub(super) fn unused(name: &str, taken: impl Fn(&String) -> bool) -> String {
    let mut names = (0..).map(|n| if n == 0 { name.to_string() } else { format!("{name}_{n}") });
    names.find(|n| !taken(n)).unwrap_or_default()
}

/// The iterators of an index `part * extent of place + place`.
pub(super) fn part_of<'e>(index: &'e Expr, block: &Block) -> Option<(&'e Var, &'e Var)> {
    let Expr::Binary(BinOp::Add, outer, place) = index else { return None };
    let (Expr::Binary(BinOp::Mul, part, length), Expr::Var(place)) = (&**outer, &**place) else { return None };
    let (Expr::Var(part), Expr::Int(length, _)) = (&**part, &**length) else { return None };
    let extent = block.iter_vars.iter().find(|iv| iv.var.id == place.id).and_then(|iv| constant(&iv.extent));
    (extent == Some(*length) && *length > 1).then_some((part, place))
}

/// The block of a nest.
///
/// # Errors
/// What is more, or less, than a block under a loop per iterator.
pub(super) fn nest_of<'p>(program: &'p Program, part: &'p Stmt) -> Result<Nest<'p>, NestError> {
    let (loops, realize) = nest(part)?;
    let block = &realize.block;
    let fail = |reason| NestError::Block { block: block.name.clone(), reason };
    let order = plain(&loops, realize).map_err(fail)?;
    declared(program, block).map_err(fail)?;
    Ok(Nest { block, order })
}

/// The block of a nest whose loops are its iterators in order.
///
/// # Errors
/// As [`nest_of`].
pub(super) fn block_of<'p>(program: &'p Program, part: &'p Stmt) -> Result<&'p Block, NestError> {
    let Nest { block, order } = nest_of(program, part)?;
    match order.windows(2).all(|w| w[0] < w[1]) {
        true => Ok(block),
        false => Err(NestError::Block {
            block: block.name.clone(),
            reason: "its loops are not in the order of its iterators".into(),
        }),
    }
}

/// Whether a nest is plain, and only the regions of its block are not what it accesses.
pub(super) fn misdeclared(program: &Program, part: &Stmt) -> bool {
    nest(part).is_ok_and(|(loops, r)| plain(&loops, r).is_ok() && declared(program, &r.block).is_err())
}

type Loops = Vec<(VarId, i64)>;

/// The loops of a nest with one block, and the block.
fn nest(stmt: &Stmt) -> Result<(Loops, &BlockRealize), NestError> {
    let mut loops = Vec::new();
    let mut current = stmt;
    loop {
        match current {
            Stmt::For(l) => {
                let extent = constant(&l.extent).filter(|_| constant(&l.min) == Some(0));
                let extent = extent.ok_or_else(|| NestError::Program {
                    reason: format!("loop `{}` has no constant bounds from 0", l.var.name),
                })?;
                if l.kind != ForKind::Serial {
                    return Err(NestError::Program { reason: format!("loop `{}` is scheduled already", l.var.name) });
                }
                loops.push((l.var.id, extent));
                current = &l.body;
            }
            Stmt::Realize(r) => return Ok((loops, r)),
            _ => return Err(NestError::Program { reason: "a nest holds something besides loops and a block".into() }),
        }
    }
}

/// The loops are one per iterator, each over the whole of it. Returns the iterators in the order of their loops.
fn plain(loops: &Loops, r: &BlockRealize) -> Result<Vec<usize>, String> {
    let iters = &r.block.iter_vars;
    let of_loop = |(var, extent): &(VarId, i64)| {
        r.iter_values.iter().zip(iters).position(|(value, iter)| {
            matches!(value, Expr::Var(v) if v.id == *var) && constant(&iter.extent) == Some(*extent)
        })
    };
    let order: Option<Vec<usize>> = loops.iter().map(of_loop).collect();
    let order = order.filter(|o| o.len() == iters.len() && r.iter_values.len() == iters.len());
    let unconditional = matches!(&r.predicate, Expr::Int(1, _));
    match (order, unconditional) {
        (Some(order), true) => Ok(order),
        (None, _) => Err("its loops are not one per iterator, each over all of its values".into()),
        (_, false) => Err("it runs under a condition".into()),
    }
}

/// The regions of a block are what it accesses: primitives take them at their word, and copy as much.
fn declared(program: &Program, block: &Block) -> Result<(), String> {
    let Accesses { reads, writes } =
        access::of_block(block.init.as_deref(), &block.body, &block.alloc_buffers, &program.buffers);
    let domains = iter_domains(block);
    for (what, said, done) in [("reads", &block.reads, &reads), ("writes", &block.writes, &writes)] {
        let name = |region: &Region| &program.buffer(region.buffer).name;
        let wrong = |region: &Region| {
            let call = format!("T.{what}");
            Err(format!("`{call}` is not what it {what} of buffer `{}`; leave `{call}` out", name(region)))
        };
        if let Some(more) = said.iter().find(|r| !done.iter().any(|d| same(r, d, &domains))) {
            return wrong(more);
        }
        // That an instance reads the element that it writes may be left out (`unsafe_hide_buffer_access`).
        let own = |d: &Region| {
            what == "reads" && !said.iter().any(|r| r.buffer == d.buffer) && writes.iter().any(|w| same(w, d, &domains))
        };
        if let Some(less) = done.iter().find(|d| !said.iter().any(|r| same(r, d, &domains)) && !own(d)) {
            return wrong(less);
        }
    }
    Ok(())
}

/// Whether two regions are one.
fn same(a: &Region, b: &Region, domains: &Domains) -> bool {
    let equal =
        |x: &Expr, y: &Expr| x == y || Linear::of(x, domains).is_some_and(|l| Linear::of(y, domains) == Some(l));
    a.buffer == b.buffer
        && a.ranges.len() == b.ranges.len()
        && a.ranges.iter().zip(&b.ranges).all(|(x, y)| equal(&x.min, &y.min) && equal(&x.extent, &y.extent))
}

#[cfg(test)]
mod tests {
    use crate::space::contraction;
    use crate::space::stream::streams;
    use satune_ir::tvmscript::parse;

    const PRODUCT: &str = "@T.prim_func(s_tir=True)
def main(A: T.Buffer((16, 32), \"float32\"), B: T.Buffer((32, 64), \"float32\"), C: T.Buffer((16, 64), \"float32\")):
    for i, j, k in T.grid(16, 64, 32):
        with T.sblock(\"C\"):
            vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
            T.reads(A[vi, vk], B[vk, vj])
            T.writes(C[vi, vj])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
";

    const SUM: &str = "@T.prim_func(s_tir=True)
def main(A: T.Buffer((16, 32), \"float32\"), S: T.Buffer((16,), \"float32\")):
    for i, j in T.grid(16, 32):
        with T.sblock(\"S\"):
            vi, vj = T.axis.remap(\"SR\", [i, j])
            T.reads(A[vi, vj])
            T.writes(S[vi])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vj]
";

    /// The text with another part, which must have been there.
    fn with(text: &str, part: &str, other: &str) -> String {
        assert!(text.contains(part), "{part}");
        text.replace(part, other)
    }

    #[test]
    fn products_that_the_space_would_change_are_refused() {
        assert!(contraction(&parse(PRODUCT).unwrap()).is_ok());
        let place = "            T.reads(";
        let remap = "vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])";
        let axes =
            "vi = T.axis.spatial(16, i)\n            vj = T.axis.spatial(64, j)\n            vk = T.axis.reduce(32, k)";
        let bools = with(PRODUCT, "float32\"", "bool\"");
        let error = parse(&with(&bools, "T.float32(0)", "T.bool(False)")).unwrap_err().to_string();
        assert!(error.contains("arithmetic on truth values"), "{error}");
        for (text, part) in [
            (with(PRODUCT, place, &format!("            T.where(i < 7)\n{place}")), "under a condition"),
            (with(PRODUCT, place, &format!("            T.where(k < 7)\n{place}")), "under a condition"),
            (with(&with(PRODUCT, remap, axes), "T.grid(16, 64, 32)", "T.grid(16, 64, 8)"), "over all of its values"),
            (with(PRODUCT, "T.reads(A[vi, vk]", "T.reads(A[0:16, vk]"), "`T.reads` is not what it reads of buffer `A`"),
            (with(PRODUCT, "T.reads(A[vi, vk], ", "T.reads("), "`T.reads` is not what it reads of buffer `A`"),
            (with(PRODUCT, "T.reads(A", "T.reads(C[vi, vj], A"), "`T.reads` is not what it reads of buffer `C`"),
            (with(PRODUCT, "T.writes(C[vi, vj])", "T.writes(C[vi, 0:64])"), "leave `T.writes` out"),
            (format!("{PRODUCT}    C[0, 0] = C[0, 0] + T.float32(1)\n"), "something besides loops and a block"),
        ] {
            let error = contraction(&parse(&text).unwrap()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}\n{text}");
        }
        // A factor that is rounded in between is no product of elements, and combined as it is.
        let rounded = with(PRODUCT, "+ A[vi, vk]", "+ T.Cast(\"float32\", T.Cast(\"float16\", A[vi, vk]))");
        assert!(contraction(&parse(&rounded).unwrap()).unwrap().combine.is_some());
    }

    #[test]
    fn reductions_that_threads_cannot_share_are_refused_or_plain() {
        assert!(streams(&parse(SUM).unwrap()).is_ok());
        for (text, part) in [
            (with(SUM, "= S[vi] + ", "= S[vi % 2] + "), "`S = S op value`"),
            (with(SUM, "= S[vi] + ", "= S[vi] - "), "`S = S op value`"),
            (with(SUM, "= S[vi] + A[vi, vj]", "= S[vi] + A[vi, vj] * S[vi]"), "`S = S op value`"),
        ] {
            let plain = streams(&parse(&text).unwrap()).unwrap().plain;
            assert!(plain.iter().any(|(_, why)| why.contains(part)), "{plain:?}\n{text}");
        }
        for (text, part) in [
            (with(SUM, "S[vi] = T.float32(0)", "S[vi - 1] = T.float32(0)"), "`T.writes` is not what it writes"),
            (with(SUM, "+ A[vi, vj]", "+ A[vi, 31 - vj]"), "`T.reads` is not what it reads of buffer `A`"),
        ] {
            let error = streams(&parse(&text).unwrap()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}\n{text}");
        }
    }
}
