//! Bytes that `mma.sync` multiplies and that are stored across k: which rows of a product lanes hold.
//!
//! `ldmatrix` turns units of 16 bits. Of bytes across k that is two neighbouring rows of A (columns of B), which so come to one lane, where the
//! instruction has rows g and g + 8 (columns g of two instructions). It multiplies any rows, if operand and sums agree on them. So of
//! buffers that lanes hold for it, where no other statement can tell, each sixteen rows are held in another order than the program has:
//!
//! ```text
//!   for i, k in T.grid(64, 32):                                       with r = i // 16 * 16 + i % 2 * 8 + i % 16 // 2:
//!       W[i // 16, i % 8 * 4 + .., i % 16 // 8 * 4 + ..] = S[k, i]   ->   W[r // 16, r % 8 * 4 + .., r % 16 // 8 * 4 + ..] = S[k, i]
//!   for i, j in T.grid(64, 32):
//!       C[i, j] = D[i // 16, i % 8 * 4 + .., i % 16 // 8 * 2 + ..]   ->   C[i, j] = D[r // 16, r % 8 * 4 + .., r % 16 // 8 * 2 + ..]
//! ```
use super::lanes::{chain, is_held};
use super::linear::{Linear, Ranges};
use super::matrix::{named, What};
use satune_ir::affine::{add, constant, floor_div, floor_mod, int, mul};
use satune_ir::term::tensor::{Fragment, Mma};
use satune_ir::term::Side;
use satune_ir::{visit, Attr, Block, BufferId, Expr, Program, Stmt, Var, VarId};
use satune_rewrites::intrinsics::INTRINSIC;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Rows, or columns, whose order is another.
const TOGETHER: i64 = 16;

/// An access: a buffer and its indices.
type Access = (BufferId, Vec<Expr>);

/// A multiplication on what lanes hold.
struct Product {
    op: Mma,
    operands: [Access; 2],
    sums: Access,
    /// Of which dimensions of the sums both of two neighbouring tiles are multiplied.
    in_twos: Vec<usize>,
}

/// What a buffer is to multiplications.
struct Held {
    of: Fragment,
    op: Mma,
}

/// A kernel's statement, lanes holding bytes that are stored across k as `ldmatrix` brings them.
pub fn interleaved<'p>(program: &Program, part: &'p Stmt) -> Cow<'p, Stmt> {
    let has_bytes = program.buffers.iter().any(|b| is_held(&b.scope) && b.dtype.bytes() == 1);
    if !has_bytes {
        return Cow::Borrowed(part);
    }
    let ranges = ranges(part);
    let Some(products) = products(program, part, &ranges).filter(|all| !all.is_empty()) else {
        return Cow::Borrowed(part);
    };
    let mut held = HashMap::new();
    for product in &products {
        let [a, b] = &product.operands;
        for (access, of) in [(a, Fragment::A), (b, Fragment::B), (&product.sums, Fragment::D)] {
            let known = held.entry(access.0).or_insert(Held { of, op: product.op });
            if known.of != of || known.op != product.op {
                return Cow::Borrowed(part);
            }
        }
    }
    let mut part = Cow::Borrowed(part);
    for side in [Side::A, Side::B] {
        let own = Interleaving { program, ranges: &ranges, held: &held, side };
        let mut changed = part.clone().into_owned();
        if own.agrees(&products, &mut changed) {
            part = Cow::Owned(changed);
        }
    }
    part
}

/// What loops and iterators count.
pub(super) fn ranges(part: &Stmt) -> Ranges {
    let mut ranges = Ranges::new();
    let mut known = |var: &Var, min: &Expr, extent: &Expr| {
        if let (Some(min), Some(extent)) = (constant(min), constant(extent)) {
            let own = (min, min.saturating_add(extent - 1));
            let all = ranges.entry(var.id).or_insert(own);
            *all = (all.0.min(own.0), all.1.max(own.1));
        }
    };
    visit::walk_stmt(part, &mut |s| match s {
        Stmt::For(l) => known(&l.var, &l.min, &l.extent),
        Stmt::Realize(r) => r.block.iter_vars.iter().for_each(|iv| known(&iv.var, &iv.min, &iv.extent)),
        _ => {}
    });
    ranges
}

/// The multiplications. None where one is of another kind.
fn products(program: &Program, part: &Stmt, ranges: &Ranges) -> Option<Vec<Product>> {
    let (mut all, mut known) = (Vec::new(), true);
    let mut seen: HashSet<*const Block> = HashSet::new();
    visit::walk_stmt(part, &mut |s| {
        let Some((loops, _, r)) = chain(s) else {
            // It has a first value: no instruction has.
            known &= !matches!(s, Stmt::Realize(r) if r.block.annotations.contains_key(INTRINSIC));
            return;
        };
        // A block is seen first with all loops around it.
        if !seen.insert(&r.block) {
            return;
        }
        let Some(Attr::Str(name)) = r.block.annotations.get(INTRINSIC) else { return };
        let Some(What::Multiply(multiplication)) = named(name).map(|i| i.what) else { return };
        let mut found = None;
        visit::walk_stmt(&r.block.body, &mut |s| {
            if let Stmt::Store { buffer, indices, value } = s {
                let factors: Vec<Access> = visit::loads(value).into_iter().filter(|(b, _)| b != buffer).collect();
                found = <[Access; 2]>::try_from(factors).ok().map(|factors| (factors, (*buffer, indices.clone())));
            }
        });
        let Some((mut operands, sums)) = found.filter(|_| multiplication.pairs == 1 && multiplication.op.word() == 4)
        else {
            known = false;
            return;
        };
        if multiplication.swapped {
            operands.reverse();
        }
        if ![&operands[0], &operands[1], &sums].iter().all(|(b, _)| is_held(&program.buffer(*b).scope)) {
            known = false;
        }
        let bindings: HashMap<VarId, Expr> =
            r.block.iter_vars.iter().map(|iv| iv.var.id).zip(r.iter_values.iter().cloned()).collect();
        let in_twos = |at: &Expr| {
            let at = Linear::of_expr(&visit::substitute(at, &bindings), ranges);
            at.is_some_and(|at| {
                loops.iter().any(|(l, extent)| {
                    extent % 2 == 0
                        && !visit::uses_var(&r.predicate, &|v| v == l.var.id)
                        && at.split_var(l.var.id).is_some_and(|(unit, rest)| unit == 1 && rest.multiple_of(2))
                })
            })
        };
        let in_twos = (0..sums.1.len()).filter(|d| in_twos(&sums.1[*d])).collect();
        all.push(Product { op: multiplication.op, operands, sums, in_twos });
    });
    known.then_some(all)
}

/// The order of one side: rows of A and of sums, or columns of B and of sums.
struct Interleaving<'p> {
    program: &'p Program,
    ranges: &'p Ranges,
    held: &'p HashMap<BufferId, Held>,
    side: Side,
}

impl Interleaving<'_> {
    fn is_concerned(&self, b: BufferId) -> Option<&Held> {
        let other = if self.side == Side::A { Fragment::B } else { Fragment::A };
        self.held.get(&b).filter(|held| held.of != other)
    }

    /// Changes the order; false where it cannot be, or is of no use.
    fn agrees(&self, products: &[Product], part: &mut Stmt) -> bool {
        let mut tiles = HashMap::new();
        if !self.changed(part, &mut tiles) {
            return false;
        }
        // Columns of two instructions: operand and sums agree on which.
        self.side == Side::A
            || products.iter().all(|product| {
                let [_, (b, b_at)] = &product.operands;
                let (sums, sums_at) = &product.sums;
                let (Some(Some(of_b)), Some(Some(of_sums))) = (tiles.get(b), tiles.get(sums)) else { return false };
                b_at.get(*of_b) == sums_at.get(*of_sums) && product.in_twos.contains(of_sums)
            })
    }

    /// Changes all accesses but those of instructions. `tiles`: of each buffer, the dimension of tiles in which sixteen rows are two.
    fn changed(&self, stmt: &mut Stmt, tiles: &mut HashMap<BufferId, Option<usize>>) -> bool {
        match self.access(stmt) {
            Some(Ok((b, tile, new))) => {
                *stmt = new;
                return *tiles.entry(b).or_insert(tile) == tile;
            }
            Some(Err(())) => return false,
            None => {}
        }
        match stmt {
            Stmt::For(l) => self.changed(&mut l.body, tiles),
            Stmt::Realize(r) if r.block.annotations.contains_key(INTRINSIC) => self.is_whole(&r.block.body),
            Stmt::Realize(r) => {
                let mut parts = r.block.init.iter_mut().chain([&mut r.block.body]);
                parts.all(|part| self.changed(part, tiles))
            }
            Stmt::Seq(parts) => parts.iter_mut().all(|part| self.changed(part, tiles)),
            Stmt::If { then, otherwise, .. } => {
                self.changed(then, tiles) && otherwise.iter_mut().all(|part| self.changed(part, tiles))
            }
            Stmt::Let { body, .. } => self.changed(body, tiles),
            Stmt::Store { .. } | Stmt::Evaluate(_) => !self.uses(stmt),
        }
    }

    fn uses(&self, stmt: &Stmt) -> bool {
        let mut found = false;
        visit::walk_stmt(stmt, &mut |s| {
            if let Stmt::Store { buffer, value, .. } = s {
                let loads = visit::loads(value).into_iter().map(|(b, _)| b);
                found |= loads.chain([*buffer]).any(|b| self.is_concerned(b).is_some());
            }
        });
        found
    }

    /// Whether an instruction multiplies whole tiles, or clears them.
    fn is_whole(&self, body: &Stmt) -> bool {
        let mut whole = true;
        visit::walk_stmt(body, &mut |s| {
            if let Stmt::Store { buffer, value, .. } = s {
                let read = visit::loads(value);
                whole &= self.is_concerned(*buffer).map_or(!self.uses(s), |held| {
                    held.of == Fragment::D && (read.is_empty() || read.iter().any(|(b, _)| b == buffer))
                });
            }
        });
        whole
    }

    /// Loops around a block that accesses a buffer, with the access in the other order. None of any other statement; an error where the order
    /// cannot change, or it would be of no use.
    #[allow(clippy::type_complexity)]
    fn access(&self, stmt: &Stmt) -> Option<Result<(BufferId, Option<usize>, Stmt), ()>> {
        let (loops, _, r) = chain(stmt).filter(|(.., r)| !r.block.annotations.contains_key(INTRINSIC))?;
        let Stmt::Store { buffer, indices, value } = r.block.body.as_ref() else { return None };
        let loads = visit::loads(value);
        let mut accesses = loads.iter().map(|(b, at)| (*b, at)).chain([(*buffer, indices)]);
        let (b, at) = accesses.find(|(b, _)| self.is_concerned(*b).is_some())?;
        let held = self.is_concerned(b)?;
        let bindings: HashMap<VarId, Expr> =
            r.block.iter_vars.iter().map(|iv| iv.var.id).zip(r.iter_values.iter().cloned()).collect();
        let form = |e: &Expr| Linear::of_expr(&visit::substitute(e, &bindings), self.ranges);
        let found = || {
            // One buffer, written or read.
            let others = accesses.filter(|(other, _)| self.is_concerned(*other).is_some()).count();
            let at = at.iter().map(form).collect::<Option<Vec<_>>>().filter(|_| others == 0)?;
            let (l, tile) = loops.iter().find_map(|(l, extent)| {
                let tile = self.tile_of(held, &at, l.var.id, *extent)?;
                Some((l, tile))
            })?;
            // The iterator that counts them.
            let mut own = r.block.iter_vars.iter().zip(&r.iter_values);
            let (iv, value) = own.find(|(_, value)| visit::uses_var(value, &|v| v == l.var.id))?;
            let (unit, first) = form(value)?.split_var(l.var.id)?;
            if unit != 1
                || !first.multiple_of(TOGETHER)
                || own.any(|(_, value)| visit::uses_var(value, &|v| v == l.var.id))
            {
                return None;
            }
            let is_loaded = *buffer == b && held.of != Fragment::D;
            let source = loads.first().filter(|_| is_loaded);
            if is_loaded && !source.is_some_and(|source| self.is_across(source, &form, l.var.id)) {
                return None;
            }
            Some((tile, iv.var.clone()))
        };
        let Some((tile, var)) = found() else { return Some(Err(())) };
        let mut new = stmt.clone();
        visit::walk_stmt_mut(&mut new, &mut |s| {
            if let Stmt::Store { buffer, indices, value } = s {
                let there = |e: &Expr| visit::substitute(e, &[(var.id, elsewhere(&var))].into());
                if *buffer == b {
                    *indices = indices.iter().map(there).collect();
                }
                *value = visit::replace_loads(value, b, &mut |at| Expr::Load(b, at.iter().map(there).collect()));
            }
        });
        Some(Ok((b, tile, new)))
    }

    /// Whether a loop counts the rows (columns) as the instruction has them: lane and register by sixteen of them, and of columns the
    /// dimension in which sixteen are two tiles.
    #[allow(clippy::option_option)]
    fn tile_of(&self, held: &Held, at: &[Linear], v: VarId, extent: i64) -> Option<Option<usize>> {
        let (along, in_tile) = match self.side {
            Side::A => ("row", 16),
            Side::B => ("column", 8),
        };
        let places = held.op.layout(held.of).inverse()?;
        let (count, mut tile) = (at.len().checked_sub(2).filter(|_| extent % TOGETHER == 0)?, None);
        for number in 1..TOGETHER {
            let [first, other] = [0, number].map(|n| at_number(at, v, n, self.ranges));
            for (d, (first, other)) in first.iter().zip(&other).enumerate() {
                let moved = other.plus(first, -1).as_constant()?;
                let of = |name| i64::from(places.at(&[(along, (number % in_tile) as u32)], name));
                let expected = match d.checked_sub(count) {
                    Some(0) => of("lane"),
                    Some(_) => of("element"),
                    None if number < in_tile => 0,
                    // Pairs of tiles begin with an even one.
                    None if moved == 1 && first.multiple_of(2) && *tile.get_or_insert(d) == d => 1,
                    None => 0,
                };
                if moved != expected {
                    return None;
                }
            }
        }
        (tile.is_some() == (in_tile < TOGETHER)).then_some(tile)
    }

    /// Whether neighbouring rows (columns) are neighbours in shared memory.
    fn is_across(&self, (b, at): &Access, form: &dyn Fn(&Expr) -> Option<Linear>, v: VarId) -> bool {
        let Some(at) = at.iter().map(form).collect::<Option<Vec<_>>>() else { return false };
        let [first, next] = [0, 1].map(|n| at_number(&at, v, n, self.ranges));
        let moved: Vec<Option<i64>> = next.iter().zip(&first).map(|(n, f)| n.plus(f, -1).as_constant()).collect();
        let is_shared = self.program.buffer(*b).scope.starts_with("shared");
        is_shared
            && moved.split_last().is_some_and(|(last, others)| *last == Some(1) && others.iter().all(|d| *d == Some(0)))
    }
}

/// Indices where a loop's variable is so much more than a multiple of sixteen, which is in its place.
fn at_number(at: &[Linear], v: VarId, number: i64, ranges: &Ranges) -> Vec<Linear> {
    let map = HashMap::from([(v, Linear::var(v).scaled(TOGETHER).shifted(number))]);
    at.iter().map(|form| form.substitute(&map, ranges)).collect()
}

/// Where a row (column) is held.
fn elsewhere(var: &Var) -> Expr {
    let (dtype, v) = (var.dtype, || Expr::Var(var.clone()));
    let first = mul(floor_div(v(), TOGETHER, dtype), int(TOGETHER, dtype));
    let of_two = mul(floor_mod(v(), 2, dtype), int(TOGETHER / 2, dtype));
    add(add(first, of_two), floor_div(floor_mod(v(), TOGETHER, dtype), 2, dtype))
}

#[cfg(test)]
mod tests {
    use super::super::matrix::with_instructions;
    use super::*;
    use crate::workload::Workload;
    use satune_ir::term::tensor::TensorPlan;
    use satune_ir::term::Schedule;
    use satune_ir::tvmscript;

    /// A scheduled program of a product of bytes, one warp of whose blocks has two multiplications by two.
    fn scheduled(order: &str) -> String {
        let problem = crate::operators::parse(&format!("gemm:64,32,64,i8,{order}")).unwrap();
        let plan = Schedule::Mma(TensorPlan::plain([32, 16, 32], [32, 16], Mma::S8, 2));
        tvmscript::print(&problem.scheduled(&plan, &Default::default()).unwrap().program)
    }

    fn changes(text: &str) -> usize {
        let program = tvmscript::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let program = with_instructions(&program);
        let part = program.body.block.body.as_ref();
        let program = Program { body: program.body.clone(), ..program.clone().into_owned() };
        let after = interleaved(&program, part).into_owned();
        let mut changed = program.clone();
        changed.body.block.body = after.into();
        let lines = |p: &Program| tvmscript::print(p).lines().map(str::to_string).collect::<Vec<_>>();
        lines(&program).iter().zip(lines(&changed)).filter(|(a, b)| a.trim() != b.trim() && a.contains(" = ")).count()
    }

    /// Rows of A, columns of B: where operands are loaded and where sums are stored.
    #[test]
    fn operands_across_k_and_their_sums_are_held_in_another_order() {
        for (order, count) in [("NT", 0), ("NN", 2), ("TT", 2), ("TN", 3)] {
            assert_eq!(changes(&scheduled(order)), count, "{order}");
        }
    }

    /// Where somebody else can tell which rows are where, the order is the program's.
    #[test]
    fn what_others_can_tell_stays() {
        let text = scheduled("NN");
        for (from, to) in [
            // One of two neighbouring instructions alone.
            ("for i_2, j_2 in T.grid(2, 2):", "for i_2, j_2 in T.grid(2, 1):"),
            // Sums that are stored elsewhere.
            (
                "= C_warp[v0 // 16, v1 // 8, v0 % 8 * 4 + v1 % 8 // 2,",
                "= C_warp[v0 // 16, v1 // 8, v0 % 8 * 4 + (v1 + 2) % 8 // 2,",
            ),
            // Pairs of tiles that are not those of the instructions.
            ("B_shared_warp[v1 // 8, v0 // 32,", "B_shared_warp[(v1 + 8) // 8, v0 // 32,"),
            // Columns of operand and sums that differ.
            ("B_shared_warp[vj_o, vk_o, 0:32, 0:8], (32, 8)", "B_shared_warp[vj_o // 2, vk_o, 0:32, 0:8], (32, 8)"),
        ] {
            assert!(text.contains(from), "{from}\n{text}");
            assert_eq!(changes(&text.replace(from, to)), 0, "{to}");
        }
    }
}
