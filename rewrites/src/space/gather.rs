//! Convolutions, and whatever else is a sum of products whose indices are sums of iterators: by primitives they become a
//! product of two matrices that no kernel writes.
//!
//! `reindex` copies both factors and the result into buffers that are indexed by the block's iterators alone,
//! `transform_layout` and `transform_block_layout` fuse these to (batch, m, n, k). The schedule of a product follows; in it the
//! copies, and what stands before them (a padding), go into the copies to faster memory by `compute_inline`, and the one
//! after the block into the write-back of the sums by `reverse_compute_inline`. Whatever a primitive refuses is refused here,
//! in its words: the whole sequence is tried when a program is read.
use super::encode::{sum_of_products, Access, Reader};
use super::instructions::of_value;
use super::nests::{block_of, by_data, parts};
use super::writer::{var, Draft, TraceWriter};
use crate::guards::always;
use crate::lane::Lane;
use crate::regions::iter_domains;
use crate::replay::replay_strict;
use crate::schedule::Schedule;
use crate::trace::Call;
use crate::tree::child_realizes;
use satune_ir::affine::linear::{conjuncts, Linear};
use satune_ir::affine::{constant, Domains};
use satune_ir::term::{
    Axis, AxisInfo, Computed, Contraction, Dimension, Gather, Gathered, Input, OperandInfo, ReadsMade, Side,
};
use satune_ir::{fold, tvmscript, visit, BinOp, Block, BufferId, DType, Expr, IterKind, IterVar, Program, Stmt};
use serde_json::json;
use std::collections::BTreeSet;

/// An index as a sum: constant, and iterators by number with their coefficients.
type Sum = (i64, Vec<(usize, i64)>);

/// Whether one of the blocks is a sum of products, whatever its indices.
pub(super) fn sums_products(program: &Program) -> bool {
    parts(program).into_iter().filter_map(|p| block_of(program, p).ok()).any(|b| sum_of_products(b).is_ok())
}

/// Whether a block is a sum of products whose indices are sums of iterators.
pub(super) fn takes(program: &Program, block: &Block) -> bool {
    Source::of(program, block).is_ok()
}

/// Reads a contraction whose operands are gathered, with its epilogue.
pub(super) fn read(program: &Program) -> Result<Contraction, String> {
    let blocks = parts(program).into_iter().map(|p| block_of(program, p)).collect::<Result<Vec<_>, _>>();
    let blocks = blocks.map_err(|e| e.to_string())?;
    let sums: Vec<usize> = (0..blocks.len()).filter(|i| blocks[*i].init.is_some()).collect();
    let [at] = sums[..] else { return Err(format!("{} of its blocks reduce; it takes one", sums.len())) };
    let (before, after) = (&blocks[..at], &blocks[at + 1..]);
    let source = Source::of(program, blocks[at])?;
    let mut used = Vec::new();
    let (mut gather, buffers) = source.gather(before, &mut used)?;
    if let Some(other) = before.iter().find(|b| !used.contains(&b.name)) {
        return Err(format!("block `{}` makes no operand of block `{}`", other.name, source.block.name));
    }
    let mut found = source.as_product(&mut gather)?;
    for (operand, buffer) in [&mut found.a, &mut found.b, &mut found.c].into_iter().zip(buffers) {
        let memory = program.buffer(buffer);
        (operand.buffer, operand.name, operand.dtype) = (buffer, memory.name.clone(), memory.dtype);
    }
    let written: i64 = source.iters.iter().filter(|(_, i)| !i.reduce).map(|(_, i)| i.extent).product();
    if shape(program, source.accesses[0].0)?.iter().product::<i64>() != written {
        let name = &program.buffer(source.accesses[0].0).name;
        return Err(format!("buffer `{name}` is larger or smaller than what is written"));
    }
    if !after.is_empty() {
        let dims = source.result_axes(&gather)?;
        let (epilogue, c) = super::epilogue::after(program, at, buffers[2], &dims)?;
        let dims = found.c.dims.clone();
        (found.epilogue, found.c) = (Some(epilogue), OperandInfo { dims, ..c });
    }
    found.gather = Some(Box::new(gather));
    tried(program, &found)?;
    Ok(found)
}

/// The block that reduces.
struct Source<'p> {
    program: &'p Program,
    block: &'p Block,
    /// C, A, B: what is accessed, and where.
    accesses: [(BufferId, &'p [Expr]); 3],
    domains: Domains,
    iters: Vec<(Axis, AxisInfo)>,
}

impl<'p> Source<'p> {
    fn of(program: &'p Program, block: &'p Block) -> Result<Source<'p>, String> {
        let accesses = sum_of_products(block)?;
        if accesses[1].0 == accesses[2].0 {
            return Err("both factors are the same buffer".into());
        }
        let domains = iter_domains(block);
        for (buffer, indices) in &accesses {
            if let Some(e) = indices.iter().find(|e| sum_of(e, &block.iter_vars, &domains).is_none()) {
                let (name, index) = (&program.buffer(*buffer).name, crate::text::expr(e));
                let groups = match e {
                    Expr::Binary(..) if index.contains("//") => " (channels in groups?)",
                    _ => "",
                };
                return Err(format!("the index {index} of buffer `{name}` is no sum of iterators{groups}"));
            }
        }
        let uses = |i: usize, iv: &IterVar| accesses[i].1.iter().any(|e| visit::uses_var(e, &|v| v == iv.var.id));
        let (mut iters, mut batch) = (Vec::new(), 0);
        for iv in &block.iter_vars {
            let name = iv.var.name.to_string();
            let extent = constant(&iv.extent).filter(|e| *e >= 1 && constant(&iv.min) == Some(0));
            let extent = extent.ok_or_else(|| format!("iterator `{name}` has no constant range from 0"))?;
            let reduce = iv.kind == IterKind::Reduce;
            let axis = match (reduce, [0, 1, 2].map(|i| uses(i, iv))) {
                (true, [false, true, true]) => Axis::K,
                (false, [true, true, false]) => Axis::M,
                (false, [true, false, true]) => Axis::N,
                (false, [true, true, true]) => {
                    batch += 1;
                    Axis::Batch(batch - 1)
                }
                // An iterator of one value is whatever suits: what simplified an index by it left nothing of it.
                (true, _) if extent == 1 => Axis::K,
                (false, [_, false, false]) if extent == 1 => Axis::M,
                (true, _) => {
                    return Err(format!("reduction iterator `{name}` does not index both factors and them alone"))
                }
                (false, _) => return Err(format!("spatial iterator `{name}` does not index the result and a factor")),
            };
            iters.push((axis, AxisInfo { name, extent, reduce }));
        }
        for (axis, what) in [(Axis::M, "the first factor"), (Axis::N, "the second factor"), (Axis::K, "the sum")] {
            if !iters.iter().any(|(a, _)| *a == axis) {
                return Err(format!("no iterator belongs to {what} alone (a convolution of each channel by itself?)"));
            }
        }
        if iters.iter().all(|(axis, info)| *axis != Axis::K || info.extent == 1) {
            return Err("it adds up nothing: each sum is of one product (one channel, a kernel of one element)".into());
        }
        Ok(Source { program, block, accesses, domains, iters })
    }

    /// How each matrix is gathered, and the buffers in memory: of A, B and C. `used` gets the blocks that padding is read from.
    fn gather(&self, before: &[&Block], used: &mut Vec<String>) -> Result<(Gather, [BufferId; 3]), String> {
        let [c, a, b] = self.accesses;
        let mut of = |access: (BufferId, &[Expr])| self.gathered(access, before, used);
        let ((a, at_a), (b, at_b), (c, at_c)) = (of(a)?, of(b)?, of(c)?);
        let script = tvmscript::print(self.program);
        Ok((Gather { script, iters: self.iters.clone(), a, b, c }, [at_a, at_b, at_c]))
    }

    fn gathered(
        &self,
        (buffer, indices): (BufferId, &[Expr]),
        before: &[&Block],
        used: &mut Vec<String>,
    ) -> Result<(Gathered, BufferId), String> {
        let shape = shape(self.program, buffer)?;
        let mut dims = Vec::new();
        for (e, extent) in indices.iter().zip(&shape) {
            let sum = sum_of(e, &self.block.iter_vars, &self.domains);
            let name = &self.program.buffer(buffer).name;
            let (offset, terms) = sum.ok_or_else(|| format!("an index of buffer `{name}` is no sum of iterators"))?;
            dims.push(Dimension { extent: *extent, offset, step: 1, terms, padded: false });
        }
        let name = self.program.buffer(buffer).name.clone();
        let mut found = Gathered { name, iters: Vec::new(), blocks: Vec::new(), dims, computed: None };
        let mut memory = buffer;
        while let Some(block) = before.iter().find(|b| b.writes.iter().any(|w| w.buffer == memory)) {
            let again = used.contains(&block.name);
            if again || self.program.params.contains(&memory) {
                return Err(format!("what block `{}` writes is used elsewhere, too", block.name));
            }
            found.blocks.push(block.name.clone());
            used.push(block.name.clone());
            let why = match through(self.program, block, &found.dims) {
                Ok(read) => {
                    (memory, found.dims) = read;
                    continue;
                }
                Err(why) => why,
            };
            let before = shape_names(self.program, memory);
            let computed = computed(self.program, block).map_err(|reason| {
                format!("block `{}`, which makes {before}, is no padding: {why}; {reason}", block.name)
            })?;
            found.computed = Some(computed);
            break;
        }
        if found.blocks.len() > usize::from(found.computed.is_some()) {
            // The first shape was that of the padded buffer.
            found.dims.iter_mut().for_each(|d| d.padded |= self.leaves(d));
        }
        Ok((found, memory))
    }

    /// Whether an index takes values outside of its dimension.
    fn leaves(&self, d: &Dimension) -> bool {
        let ends = d.terms.iter().fold((d.offset, d.offset), |(lo, hi), (i, c)| {
            let last = c.saturating_mul(self.iters[*i].1.extent - 1);
            (lo.saturating_add(last.min(0)), hi.saturating_add(last.max(0)))
        });
        ends.0 < 0 || ends.1 >= d.extent.saturating_mul(d.step)
    }

    /// Makes the product, in a copy of the program: the contraction of its block, whose operands are the matrices. Fills in
    /// which iterators each copy has.
    fn as_product(&self, gather: &mut Gather) -> Result<Contraction, String> {
        let [_, a, b] = self.accesses.map(|(buffer, _)| buffer);
        let place =
            |list: &[satune_ir::Region], buffer| list.iter().position(|r| r.buffer == buffer).unwrap_or_default();
        let (index_a, index_b) = (place(&self.block.reads, a), place(&self.block.reads, b));
        let mut made = Made { draft: Draft::default() };
        made.named("get_sblock", [json!(self.block.name)], "block");
        made.reindexed([index_a, index_b]);
        let reindexed = made.replayed(self.program)?;
        let block = named(reindexed.program(), &self.block.name)?;
        let bare = sum_of_products(block)?;
        let number = |e: &Expr| match e {
            Expr::Var(v) => block.iter_vars.iter().position(|iv| iv.var.id == v.id),
            _ => None,
        };
        for (of, (_, at)) in [&mut gather.c, &mut gather.a, &mut gather.b].into_iter().zip(bare) {
            let iters: Option<Vec<usize>> = at.iter().map(number).collect();
            of.iters = iters.ok_or("the copies that reindex makes are not indexed by iterators")?;
        }
        let dims = |of: &Gathered, [x, y]: [Axis; 2]| {
            let batch = self.iters.iter().map(|(axis, _)| *axis).filter(|a| matches!(a, Axis::Batch(_)));
            let last = if of.contiguous(&gather.iters) == Some(x) { [y, x] } else { [x, y] };
            batch.chain(last).collect::<Vec<_>>()
        };
        let operand = |of: &Gathered, axes, index| OperandInfo {
            buffer: BufferId(0),
            name: String::new(),
            dtype: DType::F32,
            index,
            dims: dims(of, axes),
        };
        let (a, b) = (operand(&gather.a, [Axis::M, Axis::K], index_a), operand(&gather.b, [Axis::K, Axis::N], index_b));
        let c = operand(&gather.c, [Axis::M, Axis::N], 0);
        made.as_matrices(gather, [&a, &b, &c]);
        let product = made.replayed(self.program)?;
        let program = product.program();
        let block = named(program, &self.block.name)?;
        let [at_c, at_a, at_b] = sum_of_products(block)?;
        let accesses = [indexed(block, at_c, &c.dims)?, indexed(block, at_a, &a.dims)?, indexed(block, at_b, &b.dims)?];
        let found = Reader { program, block }.product(accesses)?;
        for ((mine, read), name) in [(&a, &found.a), (&b, &found.b), (&c, &found.c)].into_iter().zip(["A", "B", "C"]) {
            if mine.dims != read.dims {
                return Err(format!("matrix {name} is read as {:?}, not as {:?}", read.dims, mine.dims));
            }
        }
        let index = |o: &OperandInfo, index| OperandInfo { index, ..o.clone() };
        Ok(Contraction { a: index(&found.a, index_a), b: index(&found.b, index_b), ..found })
    }

    /// The axis of each iterator of the result, as they index memory, and its number of values.
    fn result_axes(&self, gather: &Gather) -> Result<Vec<(Axis, i64)>, String> {
        let dims = gather.c.by_iterators(&gather.iters);
        let dims = dims.ok_or("an index of the result is no iterator, and blocks come after it")?;
        Ok(dims.into_iter().map(|(i, extent)| (i.map_or(Axis::M, |i| gather.iters[i].0), extent)).collect())
    }
}

/// The iterators by which a block accesses a matrix of these axes. Iterators of one value index nothing once `reindex` has
/// simplified the indices: where an axis has no others, the index along it is 0, for which its iterator stands.
fn indexed(block: &Block, (buffer, indices): (BufferId, &[Expr]), dims: &[Axis]) -> Result<Access, String> {
    let batch = dims.iter().filter(|a| matches!(a, Axis::Batch(_))).count();
    let of = |(e, axis): (&Expr, &Axis)| {
        let place = match axis {
            Axis::Batch(i) => usize::from(*i),
            Axis::M => batch,
            Axis::N => batch + 1,
            _ => batch + 2,
        };
        let iter = block.iter_vars.get(place).filter(|iv| constant(&iv.extent) == Some(1) && constant(e) == Some(0));
        match (e, iter) {
            (Expr::Var(v), _) => Ok(v.id),
            (_, Some(iv)) => Ok(iv.var.id),
            _ => Err(format!("axis {axis} of a matrix is indexed by {}", crate::text::expr(e))),
        }
    };
    Ok((buffer, indices.iter().zip(dims).map(of).collect::<Result<_, _>>()?))
}

fn named<'p>(program: &'p Program, name: &str) -> Result<&'p Block, String> {
    let found = parts(program).into_iter().filter_map(|p| block_of(program, p).ok()).find(|b| b.name == name);
    found.ok_or_else(|| format!("there is no block `{name}`"))
}

fn shape_names(program: &Program, buffer: BufferId) -> String {
    format!("buffer `{}`", program.buffer(buffer).name)
}

/// The constant shape of a plain buffer.
fn shape(program: &Program, id: BufferId) -> Result<Vec<i64>, String> {
    let buffer = program.buffer(id);
    match buffer.extents().filter(|_| buffer.strides.is_empty() && buffer.elem_offset.is_none()) {
        Some(dims) => Ok(dims),
        None => Err(format!("buffer `{}` is not a plain row-major array", buffer.name)),
    }
}

/// An index as a constant and multiples of iterators.
fn sum_of(e: &Expr, iters: &[IterVar], domains: &Domains) -> Option<Sum> {
    let form = Linear::of(e, domains)?;
    let term = |(atom, c): &(Expr, i64)| match atom {
        Expr::Var(v) => iters.iter().position(|iv| iv.var.id == v.id).map(|i| (i, *c)),
        _ => None,
    };
    form.terms().iter().map(term).collect::<Option<Vec<_>>>().map(|terms| (form.offset(), terms))
}

/// What a block writes that is a map, at its iterators: the buffer, and the value.
fn mapped(block: &Block) -> Result<(BufferId, &Expr), String> {
    let Stmt::Store { buffer, indices, value } = &*block.body else { return Err("its body is not one store".into()) };
    let plain = indices.iter().zip(&block.iter_vars).all(|(e, iv)| matches!(e, Expr::Var(v) if *v == iv.var));
    let spatial = block.iter_vars.iter().all(|iv| iv.kind == IterKind::Spatial) && block.init.is_none();
    match plain && spatial && indices.len() == block.iter_vars.len() {
        true => Ok((*buffer, value)),
        false => Err("it does not write at its iterators".into()),
    }
}

/// What a block that copies with zeros around, or between, reads: the buffer, and its dimensions for the indices at which the
/// block's result is read.
fn through(program: &Program, block: &Block, read: &[Dimension]) -> Result<(BufferId, Vec<Dimension>), String> {
    let domains = iter_domains(block);
    let (_, value) = mapped(block)?;
    let zero = |e: &Expr| match e {
        Expr::Int(0, _) => true,
        Expr::Float(bits, _) => f64::from_bits(*bits) == 0.0,
        _ => false,
    };
    let (mut cond, load) = match value {
        Expr::Select { cond, then, otherwise, .. } if zero(otherwise) => (conjuncts(cond), &**then),
        other => (Vec::new(), other),
    };
    // What is asked of an iterator of one value is known.
    let same = |a: &Expr, b: &Expr| {
        let sums = [a, b].map(|e| sum_of(e, &block.iter_vars, &domains));
        sums[0].is_some() && sums[0] == sums[1]
    };
    cond.retain(|c| !always(c, &domains) && !matches!(c, Expr::Binary(BinOp::Eq, a, b) if same(a, b)));
    let Expr::Load(from, at) = load else { return Err("it computes more than a copy with zeros".into()) };
    let mut out = Vec::new();
    let mut through = vec![false; read.len()];
    for (e, extent) in at.iter().zip(shape(program, *from)?) {
        let (inner, by) = match e {
            Expr::Binary(BinOp::FloorDiv, inner, by) => (&**inner, constant(by).filter(|d| *d > 1)),
            other => (other, Some(1)),
        };
        let sum = by.and_then(|by| sum_of(inner, &block.iter_vars, &domains).map(|sum| (sum, by)));
        let (d, own) = match sum {
            Some(((offset, terms), by)) if terms.is_empty() && offset % by == 0 => {
                (Dimension { extent, offset: offset / by, step: 1, terms: Vec::new(), padded: false }, None)
            }
            Some(((offset, terms), by)) if terms.len() == 1 && terms[0].1 == 1 => {
                let (i, of) = (terms[0].0, &read[terms[0].0]);
                let whole = |c: &Expr| {
                    matches!(c, Expr::Binary(BinOp::Eq, rest, zero)
                    if constant(zero) == Some(0) && matches!(&**rest, Expr::Binary(BinOp::FloorMod, x, m)
                        if constant(m) == Some(by) && sum_of(x, &block.iter_vars, &domains) == Some((offset, terms.clone()))))
                };
                if by > 1 && !cond.iter().any(whole) {
                    return Err("it reads at a quotient without asking that nothing is left".into());
                }
                let shifted = offset.checked_mul(of.step).and_then(|o| o.checked_add(of.offset));
                let offset = shifted.ok_or("an index overflows")?;
                let step = of.step.checked_mul(by).ok_or("an index overflows")?;
                let asked = cond.iter().any(|c| visit::uses_var(c, &|v| v == block.iter_vars[i].var.id));
                let padded = of.padded || asked || by > 1;
                (Dimension { extent, offset, step, terms: of.terms.clone(), padded }, Some(i))
            }
            _ => return Err("an index is no iterator, shifted or divided".into()),
        };
        if let Some(i) = own {
            through[i] = true;
        }
        out.push(d);
    }
    let lost = |i: usize| {
        let v = block.iter_vars[i].var.id;
        !through[i] && (!read[i].terms.is_empty() || cond.iter().any(|c| visit::uses_var(c, &|x| x == v)))
    };
    if let Some(i) = (0..read.len()).find(|i| lost(*i)) {
        return Err(format!("iterator `{}` does not index what it reads", block.iter_vars[i].var.name));
    }
    Ok((*from, out))
}

/// Whether an element is that of the last two dimensions' iterators, the whole of both, in one of the matrices of a buffer.
fn chooses_matrices(program: &Program, block: &Block, value: &Expr) -> bool {
    let (Expr::Load(buffer, at), [.., row, column]) = (value, &block.iter_vars[..]) else { return false };
    let Some((others, [r, c])) = at.split_last_chunk::<2>() else { return false };
    let own = [row, column];
    let bare = |e: &Expr, iv: &IterVar| matches!(e, Expr::Var(v) if *v == iv.var);
    let extents = program.buffer(*buffer).extents().unwrap_or_default();
    let whole = extents.ends_with(&own.map(|iv| constant(&iv.extent).unwrap_or(0)));
    let free = |e: &Expr| !visit::uses_var(e, &|v| own.iter().any(|iv| iv.var.id == v));
    bare(r, row) && bare(c, column) && whole && others.iter().all(free)
}

/// An index where the elements in it are 0.
fn without_data(program: &Program, e: &Expr) -> Expr {
    match e {
        Expr::Load(table, _) => Expr::Int(0, program.buffer(*table).dtype),
        Expr::Cast(to, inner) => match without_data(program, inner) {
            Expr::Int(0, _) => Expr::Int(0, *to),
            inner => Expr::Cast(*to, inner.into()),
        },
        e => visit::map_children(e, &mut |child| without_data(program, child)),
    }
}

/// Whether an index grows with the elements in it, which are numbers.
fn upwards(program: &Program, e: &Expr) -> bool {
    let grows = |e: &Expr| upwards(program, e);
    match e {
        _ if visit::loads(e).is_empty() => true,
        Expr::Load(table, _) => program.buffer(*table).dtype != DType::Bool,
        Expr::Binary(BinOp::Sub, a, b) => grows(a) && visit::loads(b).is_empty(),
        Expr::Binary(BinOp::Mul, a, b) => {
            let by = constant(a).or(constant(b));
            by.is_none_or(|by| by >= 0) && grows(a) && grows(b)
        }
        e => visit::children(e).into_iter().all(grows),
    }
}

/// Whether a sum is of a type whatever the elements in it are: what wraps has no neighbours.
fn stays_whole(program: &Program, form: &Linear, domains: &Domains, dtype: DType) -> bool {
    fn element(e: &Expr) -> &Expr {
        match e {
            Expr::Cast(_, inner) => element(inner),
            e => e,
        }
    }
    let ends = |(atom, c): &(Expr, i64)| {
        let (lo, hi) = match element(atom) {
            Expr::Load(table, _) => program.buffer(*table).dtype.int_range()?,
            _ => {
                let (lo, hi) = Linear::of(atom, domains)?.ends(domains);
                (lo?, hi?)
            }
        };
        let (a, b) = (i128::from(lo) * i128::from(*c), i128::from(hi) * i128::from(*c));
        Some((a.min(b), a.max(b)))
    };
    let all: Option<Vec<(i128, i128)>> = form.terms().iter().map(ends).collect();
    let offset = i128::from(form.offset());
    all.zip(dtype.int_range()).is_some_and(|(all, (least, most))| {
        let [lo, hi] = [all.iter().map(|e| e.0).sum::<i128>(), all.iter().map(|e| e.1).sum::<i128>()];
        i128::from(least) <= lo + offset && hi + offset <= i128::from(most)
    })
}

/// What a block computes that makes each element of a factor of elements of other buffers, in memory: a map, read where it is used.
fn computed(program: &Program, block: &Block) -> Result<Computed, String> {
    let (buffer, value) = mapped(block)?;
    let whole: Option<Vec<i64>> = block.iter_vars.iter().map(|iv| constant(&iv.extent)).collect();
    if whole != Some(shape(program, buffer)?) {
        return Err("it does not write each element".into());
    }
    let loads = visit::loads(value);
    let mut seen: Vec<&BufferId> = Vec::new();
    let mut reads = Vec::new();
    let bytes = |read: &BufferId| i64::from(program.buffer(*read).dtype.bytes());
    let (domains, last) = (iter_domains(block), block.iter_vars.last().ok_or("it has no iterators")?.var.id);
    let stays = |at: &[Expr], lanes: i64| at.iter().all(|e| Lane { var: last, lanes }.stays(e));
    // One element decides where all of a vector are, of which it says the first.
    let together = |at: &[Expr], lanes: i64| {
        let lane = Lane { var: last, lanes };
        let steps = |(atom, c): &(Expr, i64)| match atom {
            Expr::Var(v) if v.id == last => *c == 1,
            atom => !visit::uses_var(atom, &|v| v == last) && c % lanes == 0,
        };
        let side_by_side = |e: &Expr| {
            let form = Linear::of(e, &domains);
            form.is_some_and(|form| {
                let first = form.offset() % lanes == 0 && form.terms().iter().all(steps);
                first && stays_whole(program, &form, &domains, fold::dtype(e, &program.buffers))
            })
        };
        let one = std::slice::from_ref;
        at.iter().enumerate().all(|(d, e)| !by_data(one(e)) || lane.stays(e) || d + 1 == at.len() && side_by_side(e))
    };
    let fits = |lanes: &i64| {
        let mut all = loads.iter();
        all.all(|(read, at)| stays(at, *lanes) || lanes * bytes(read) <= 16 && together(at, *lanes))
    };
    let vector = [16, 8, 4, 2].into_iter().find(fits).unwrap_or(1);
    let written = shape(program, buffer)?.iter().product::<i64>();
    for (read, at) in &loads {
        let name = &program.buffer(*read).name;
        if !program.params.contains(read) {
            return Err(format!("buffer `{name}`, which it reads, is made here"));
        }
        let extents = shape(program, *read)?;
        // What data decide is asked where it is read; with zeros as data it is inside, as far as that can be told, and larger ones take it
        // further.
        let inside = |(e, extent): (&Expr, &i64)| {
            let form = Linear::of(&without_data(program, e), &domains);
            let (lo, hi) = form.map_or((None, None), |form| form.ends(&domains));
            let unknown = visit::loads(e).is_empty() && (lo.is_none() || hi.is_none());
            !unknown && upwards(program, e) && lo.is_none_or(|lo| lo >= 0) && hi.is_none_or(|hi| hi < *extent)
        };
        if !at.iter().zip(&extents).all(inside) {
            return Err(format!("it may read outside of buffer `{name}`"));
        }
        let all: i64 = extents.iter().product();
        let elements = match seen.contains(&read) {
            true => 0,
            false if by_data(at) => all.min(written),
            false => all,
        };
        seen.push(read);
        reads.push(Input { elements, dtype: program.buffer(*read).dtype, moves: !stays(at, vector) });
    }
    match reads.is_empty() {
        true => Err("it reads nothing".into()),
        false => {
            let (dtype, step) = (program.buffer(buffer).dtype, of_value(value, &program.buffers));
            let looked_up = matches!(value, Expr::Load(_, at) if by_data(at));
            let whole_matrices = looked_up && chooses_matrices(program, block, value);
            Ok(Computed { dtype, reads, vector, step, looked_up, whole_matrices })
        }
    }
}

/// Calls in the making.
struct Made {
    draft: Draft,
}

impl TraceWriter for Made {
    fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

impl Made {
    /// The program after the calls so far.
    fn replayed(&self, program: &Program) -> Result<Schedule, String> {
        let calls: Vec<Call> = self.draft.calls().to_vec();
        let (results, schedule) = replay_strict(program, &calls).map_err(|e| e.detail.clone())?;
        match results.into_iter().zip(&calls).find_map(|(r, c)| r.err().map(|e| (c, e))) {
            Some((call, error)) => Err(format!("{} refuses: {}", call.op, error.detail)),
            None => Ok(schedule),
        }
    }
}

/// The map of indices by some iterators to those of a matrix, each dimension of which is an axis.
pub(super) fn as_axes(gather: &Gather, iters: &[usize], axes: &[Axis]) -> String {
    let digits: Vec<(usize, String)> = iters.iter().map(|i| (*i, format!("i{i}"))).collect();
    let list: Vec<&str> = digits.iter().map(|(_, name)| name.as_str()).collect();
    fused(gather, &list, &digits, axes)
}

/// The map of indices of the result in memory to those of its matrix: a dimension of groups is both of its digits.
pub(super) fn from_memory(gather: &Gather, axes: &[Axis]) -> String {
    let Some(dims) = gather.c.by_iterators(&gather.iters) else { return as_axes(gather, &gather.c.iters, axes) };
    let (mut list, mut digits) = (Vec::new(), Vec::new());
    let mut dims = dims.into_iter();
    for (number, memory) in gather.c.dims.iter().enumerate() {
        let (name, mut above) = (format!("i{number}"), memory.extent);
        for _ in 0..memory.terms.len().max(1) {
            let Some((iter, extent)) = dims.next() else { continue };
            let (whole, below) = (above == memory.extent, above / extent.max(1));
            above = below;
            let low = if whole { name.clone() } else { format!("{name} % {}", below * extent) };
            let digit = if below == 1 { low } else { format!("({low}) // {below}") };
            digits.extend(iter.map(|i| (i, digit)));
        }
        list.push(name);
    }
    digits.sort();
    fused(gather, &list.iter().map(String::as_str).collect::<Vec<_>>(), &digits, axes)
}

/// The map of parameters to axes, of which iterators are the digits, as expressions of these parameters.
fn fused(gather: &Gather, list: &[&str], digits: &[(usize, String)], axes: &[Axis]) -> String {
    let of_axis = |axis: &Axis| {
        let mine = digits.iter().filter(|(i, _)| gather.iters[*i].0 == *axis);
        let next = |sum: Option<String>, (i, digit): &(usize, String)| match sum {
            None => Some(digit.clone()),
            Some(sum) => Some(format!("({sum}) * {} + {digit}", gather.iters[*i].1.extent)),
        };
        // Where none is left, the primitive refuses.
        mine.fold(None, next).unwrap_or_else(|| "0".into())
    };
    let outputs: Vec<String> = axes.iter().map(of_axis).collect();
    format!("lambda {}: ({},)", list.join(", "), outputs.join(", "))
}

/// The calls that make a product of a block, and those that leave its matrices in no memory.
pub(super) trait GatherWriter: TraceWriter {
    /// Copies of both factors and of the result, by the block's iterators.
    fn reindexed(&mut self, [a, b]: [usize; 2]) {
        for (name, kind, index) in [("a_gather", "read", a), ("b_gather", "read", b), ("c_scatter", "write", 0)] {
            self.named("reindex", [var("block"), json!([kind, index])], name);
        }
    }

    /// Fuses the iterators to the axes of a product: in the copies, then in the block.
    fn as_matrices(&mut self, gather: &Gather, [a, b, c]: [&OperandInfo; 3]) {
        let all: Vec<usize> = (0..gather.iters.len()).collect();
        for (of, operand, kind) in [(&gather.a, a, "read"), (&gather.b, b, "read"), (&gather.c, c, "write")] {
            let map = as_axes(gather, &of.iters, &operand.dims);
            self.mapped("transform_layout", [var("block"), json!([kind, operand.index])], map);
        }
        let batch = gather.iters.iter().map(|(axis, _)| *axis).filter(|a| matches!(a, Axis::Batch(_)));
        let axes: Vec<Axis> = batch.chain([Axis::M, Axis::N, Axis::K]).collect();
        let map = as_axes(gather, &all, &axes);
        self.mapped("transform_block_layout", [var("block")], map);
    }

    /// Both for a contraction that is gathered; for any other nothing.
    fn made_a_product(&mut self, contraction: &Contraction) {
        if let Some(gather) = &contraction.gather {
            self.reindexed([contraction.a.index, contraction.b.index]);
            self.as_matrices(gather, [&contraction.a, &contraction.b, &contraction.c]);
        }
    }

    /// The copies of factors, and paddings, are computed where they are read.
    fn inlined(&mut self, contraction: &Contraction) {
        for (side, name) in [(Side::A, "a_gather"), (Side::B, "b_gather")] {
            let Some(of) = contraction.gathered(side) else { continue };
            self.call("compute_inline", [var(name)]);
            for block in &of.blocks {
                let padding = self.bound("get_sblock", [json!(block)], "padding");
                self.call("compute_inline", [var(&padding)]);
            }
        }
    }
}

impl<W: TraceWriter> GatherWriter for W {}

/// The way to a product whose sums are in registers, but for what comes after it.
fn multiplied(contraction: &Contraction) -> Made {
    let mut made = Made { draft: Draft::default() };
    made.named("get_sblock", [json!(contraction.block_name)], "block");
    made.made_a_product(contraction);
    made.named("cache_write", [var("block"), json!(0), json!("local")], "c_local");
    made.inlined(contraction);
    made
}

/// Tries the whole way: product, sums in registers, nothing else in memory.
fn tried(program: &Program, contraction: &Contraction) -> Result<(), String> {
    let mut made = multiplied(contraction);
    made.inline_epilogue(contraction, "c_local");
    made.replayed(program).map(|_| ())
}

/// What of the reads after a contraction has one of these names, where all that comes after it is inlined. Nothing where a primitive
/// refuses it.
pub(super) fn made_elsewhere(
    program: &Program,
    contraction: &Contraction,
    names: &BTreeSet<&String>,
) -> Option<ReadsMade> {
    let name = contraction.epilogue.as_ref()?.blocks.last()?;
    let of_block = |schedule: &Schedule, is: &dyn Fn(&Block) -> bool| -> Option<Vec<usize>> {
        let program = schedule.program();
        let realizes = parts(program).into_iter().flat_map(child_realizes);
        let block = realizes.map(|realize| &realize.block).find(|block| is(block))?;
        let numbered = block.reads.iter().enumerate();
        Some(numbered.filter(|(_, r)| names.contains(&program.buffer(r.buffer).name)).map(|(at, _)| at).collect())
    };
    let mut made = multiplied(contraction);
    let last = made.inlined_in_last(contraction)?;
    let of_last = of_block(&made.replayed(program).ok()?, &|block| block.name == *name)?;
    made.call("reverse_compute_inline", [var(&last)]);
    let result = &contraction.c.name;
    let schedule = made.replayed(program).ok()?;
    let writes = |block: &Block| block.writes.iter().any(|w| schedule.program().buffer(w.buffer).name == *result);
    let of_stored = of_block(&schedule, &writes)?;
    Some(ReadsMade { of_last, of_stored })
}
