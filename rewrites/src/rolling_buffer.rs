//! `rolling_buffer`: a buffer between tiles that overlap keeps what the next tile needs, and only the rest is computed anew.
//!
//! before                                             after, rolling_buffer(B, 0)
//!   B = T.sblock_alloc_buffer((10,))                   B = T.sblock_alloc_buffer((6,))
//!   for i in range(2):                                 for i in range(2):
//!       for ax in range(6):                                for ax in range(6):
//!           with T.sblock("B"):                                with T.sblock("B"):
//!               v = T.axis.spatial(10, i * 4 + ax)                 v = T.axis.opaque(10, i * 4 + ax)
//!               B[v] = A[v]                                        T.where(i < 1 or 2 <= ax)
//!       for j, k in T.grid(4, 3):                                  B[v % 6] = A[v]
//!           with T.sblock("C"):                            for j, k in T.grid(4, 3):
//!               ... B[i * 4 + j + k]                           ... B[(i * 4 + j + k) % 6]
//!
//! Legal when: 1 the index names a buffer that the block writes; 2 the block is no output; 3 it has only read-after-write
//! dependences; 4 the lowest node above it and all its consumers is a loop; 5 per tile, every dimension of the buffer begins
//! at a constant, or at a multiple of a loop variable, and one is longer than the step from tile to tile; and, what TVM does
//! not ask: 6 where tiles overlap, the block stores at its own iterator of the dimension's number; 7 the loops of the tiles
//! run one after the other; 8 nobody takes the buffer's address or has a view of a part of it.
//! The dimension of the outermost such loop is rolled: the buffer is as long as a tile there. As in TVM, the iterators of its
//! number are opaque afterwards, in all blocks of the scope.
use crate::arith::{floor_mod, int, Domains};
use crate::dependencies::DepKind;
use crate::guards;
use crate::linear::{all, conjuncts, Interval, Linear};
use crate::pointers;
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::scope;
use crate::set_scope::with_views;
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::{access, fold, visit, BinOp, Block, BlockId, BlockRealize, Buffer, BufferId, DType, Expr, ForKind};
use satune_ir::{IterKind, Stmt, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// A dimension in which tiles overlap.
#[derive(Clone, Debug)]
pub struct Overlap {
    /// The dimension.
    pub axis: usize,
    /// The loop over the tiles.
    pub tiles: LoopId,
    /// How much of a tile the one before has, elements.
    pub overlap: i64,
}

/// What is rolled.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The block around the producer and its consumers.
    pub scope: BlockId,
    /// The buffer.
    pub buffer: BufferId,
    /// The dimension that is rolled.
    pub axis: usize,
    /// Its length in a tile.
    pub extent: i64,
    /// All dimensions in which tiles overlap.
    pub overlaps: Vec<Overlap>,
}

/// Conditions 1 to 8, in TVM's order.
pub fn legal(s: &Schedule, block: BlockId, index: i64) -> Result<Plan> {
    let region = regions::access(s, block, index, true)?;
    let scope = s.scope_of(Node::Block(block))?;
    let graph = s.scope(scope)?;
    scope::require_not_output(s, block, &graph)?;
    let realize = s.realize(block)?;
    let (name, buffer) = (&realize.block.name, &s.program().buffer(region.buffer).name);
    if graph.deps.iter().any(|d| (d.from == block || d.to == block) && d.kind != DepKind::Raw) {
        return Err(ScheduleError::refused(
            "The target block is required to have only RAW dependencies",
            format!("The target block {name} is required to have only RAW dependencies"),
        )
        .at_block(block)
        .remedy("let one block write the buffer, before all that read it"));
    }
    let mut lowest = Node::Block(block);
    let consumers = graph.consumers(block);
    for c in &consumers {
        lowest = s.lowest_common_ancestor(lowest, Node::Block(*c))?;
    }
    if consumers.is_empty() {
        lowest = s.parent(lowest)?.unwrap_or(Node::Block(scope));
    }
    if !matches!(lowest, Node::Loop(_)) {
        return Err(ScheduleError::refused(
            "rolling_buffer injection is invalid, the lca of the access location of the target buffer is not a for loop. ",
            format!(
                "rolling_buffer injection is invalid. The block {name} should be tiled so that the lca of the access \
                 location of the target buffer {buffer} is a for loop. "
            ),
        )
        .at_block(block)
        .remedy("compute_at the block at a loop of its consumer first"));
    }
    let unmatched = |why: &str| {
        ScheduleError::refused(
            "rolling_buffer expect the buffer region to have at least one dimentionmatching the rolling pattern such as: \
             hh.outer * stride + hh.inner",
            format!(
                "The target buffer {buffer} should have at least one dimension range that matches a rolling pattern such \
                 as hh.outer * stride + hh.inner: {why}"
            ),
        )
        .at_block(block)
        .remedy("tile the consumer with split, and compute_at the block at the loop over the tiles")
    };
    let below = regions::relaxed_loops(s, block, lowest, region.buffer, false)?;
    let outer = regions::domains_to(s, lowest)?;
    let boxes = regions::relaxed(s, realize, &region, &below, &outer)?;
    let mut overlaps = Vec::new();
    for (axis, interval) in boxes.iter().enumerate() {
        let step = step(&interval.lo).ok_or_else(|| unmatched("a tile does not begin at a multiple of a loop"))?;
        let Some((tiles, stride)) = step else { continue };
        let Some(extent) = extent_of(interval, &outer) else { return Err(unmatched("a tile has no constant size")) };
        if extent > stride {
            overlaps.push(Overlap { axis, tiles, overlap: extent - stride });
        }
    }
    let loops = s.loops_of(block)?;
    let rolled = loops.iter().find_map(|l| overlaps.iter().find(|o| o.tiles == *l));
    let axis = rolled.map(|o| o.axis).ok_or_else(|| unmatched("no tile overlaps the one before"))?;
    let extent = extent_of(&boxes[axis], &outer).ok_or_else(|| unmatched("a tile has no constant size"))?;
    for o in &overlaps {
        if !stores_at_iterator(realize, region.buffer, o.axis) {
            return Err(unmatched("where tiles overlap, the block does not store at its iterator of that number"));
        }
        if !matches!(s.get_loop(o.tiles)?.kind, ForKind::Serial | ForKind::Unrolled) {
            return Err(unmatched("the tiles are not computed one after the other").at_loop(o.tiles));
        }
    }
    pointers::require_none(s, region.buffer, "the buffer would hold only a tile")?;
    if with_views(s, region.buffer).len() > 1 {
        return Err(unmatched("a block has a view of a part of it"));
    }
    Ok(Plan { scope, buffer: region.buffer, axis, extent, overlaps })
}

fn extent_of(interval: &Interval, outer: &Domains) -> Option<i64> {
    interval.extent(outer).and_then(|e| e.as_constant())
}

/// The loop of which the first index of a tile is a multiple, and the step from tile to tile; `Some(None)` where it is
/// constant, `None` where it is something else.
fn step(first: &Linear) -> Option<Option<(VarId, i64)>> {
    if first.as_constant().is_some() {
        return Some(None);
    }
    let [(atom, factor)] = first.terms() else { return None };
    if first.offset() != 0 || *factor < 1 {
        return None;
    }
    let (atom, stride) = match atom {
        Expr::Binary(BinOp::FloorDiv, x, d) if *factor == 1 => {
            let (d, x) = (crate::arith::constant(d).filter(|d| *d > 0)?, Linear::of(x, &Domains::new())?);
            let [(atom, c)] = x.terms() else { return None };
            if x.offset() != 0 || *c < 1 {
                return None;
            }
            (atom.clone(), (c + d - 1) / d)
        }
        other => (other.clone(), *factor),
    };
    match atom {
        Expr::Var(v) => Some(Some((v.id, stride))),
        _ => None,
    }
}

/// Whether all stores to a buffer in a block have the block's iterator of a number as their index of that number.
fn stores_at_iterator(realize: &BlockRealize, buffer: BufferId, axis: usize) -> bool {
    let iterator = realize.block.iter_vars.get(axis);
    let mut all = iterator.is_some();
    let mut look = |stmt: &Stmt| {
        visit::walk_stmt(stmt, &mut |s| {
            if let Stmt::Store { buffer: b, indices, .. } = s {
                let at = matches!((indices.get(axis), iterator), (Some(Expr::Var(v)), Some(iv)) if *v == iv.var);
                all &= *b != buffer || at;
            }
        });
    };
    look(&realize.block.body);
    realize.block.init.iter().for_each(|init| look(init));
    all
}

/// The primitive.
pub fn rolling_buffer(s: &mut Schedule, block: BlockId, index: i64) -> Result<()> {
    let plan = legal(s, block, index).map_err(|e| e.within("rolling_buffer"))?;
    apply(s, block, &plan).map_err(|e| e.within("rolling_buffer"))
}

fn apply(s: &mut Schedule, block: BlockId, plan: &Plan) -> Result<()> {
    let dtype = fold::dtype(&s.program().buffer(plan.buffer).shape[plan.axis], &[]);
    s.program_mut().buffer_mut(plan.buffer).shape[plan.axis] = int(plan.extent, dtype);
    let tiles: HashMap<VarId, DType> =
        plan.overlaps.iter().map(|o| s.get_loop(o.tiles).map(|l| (o.tiles, l.var.dtype))).collect::<Result<_>>()?;
    s.update_realize(block, |r| {
        let guards = plan.overlaps.iter().filter_map(|o| {
            let v = Expr::Var(satune_ir::Var { id: o.tiles, name: "".into(), dtype: tiles[&o.tiles] });
            let value = &r.iter_values[o.axis];
            // The loop's own variable, with its name.
            let mut var = v.clone();
            visit::walk_expr(value, &mut |e| {
                if *e == v {
                    var = e.clone();
                }
            });
            let inner = visit::substitute(value, &HashMap::from([(o.tiles, int(0, tiles[&o.tiles]))]));
            let inner = Linear::of(&inner, &Domains::new())?;
            let first = Expr::Binary(BinOp::Lt, Arc::new(var), Arc::new(int(1, tiles[&o.tiles])));
            Some(Expr::Binary(BinOp::Or, Arc::new(first), Arc::new(guards::at_least(&inner, o.overlap))))
        });
        r.predicate = all(conjuncts(&r.predicate).into_iter().chain(guards.collect::<Vec<_>>()));
    })?;
    let buffers = s.program().buffers.clone();
    s.update_block(plan.scope, |b| {
        let rolled =
            |e: &Expr| visit::replace_loads(e, plan.buffer, &mut |list| Expr::Load(plan.buffer, plan.indices(list)));
        *b.body = visit::map_stmt_exprs(&b.body, &mut |e| rolled(e));
        plan.blocks(&mut b.body, &buffers);
    })?;
    s.recompute_flags(plan.scope);
    Ok(())
}

impl Plan {
    fn indices(&self, mut list: Vec<Expr>) -> Vec<Expr> {
        if let Some(index) = list.get_mut(self.axis) {
            *index = floor_mod(index.clone(), self.extent, fold::dtype(index, &[]));
        }
        list
    }

    /// Stores, iterators and regions of all blocks below a statement.
    fn blocks(&self, stmt: &mut Stmt, buffers: &[Buffer]) {
        match stmt {
            Stmt::Store { buffer, indices, .. } if *buffer == self.buffer => {
                *indices = self.indices(std::mem::take(indices));
            }
            Stmt::Realize(r) => {
                self.blocks(&mut r.block.body, buffers);
                if let Some(init) = &mut r.block.init {
                    self.blocks(init, buffers);
                }
                self.block(&mut r.block, buffers);
            }
            other => tree::children_and_init_mut(other).into_iter().for_each(|s| self.blocks(s, buffers)),
        }
    }

    fn block(&self, b: &mut Block, buffers: &[Buffer]) {
        if let Some(iv) = b.iter_vars.get_mut(self.axis) {
            iv.kind = IterKind::Opaque;
        }
        let found = access::of_block(b.init.as_deref(), &b.body, &b.alloc_buffers, buffers);
        for (declared, now) in [(&mut b.reads, found.reads), (&mut b.writes, found.writes)] {
            for region in declared.iter_mut().filter(|r| r.buffer == self.buffer) {
                if let Some(new) = now.iter().find(|r| r.buffer == self.buffer) {
                    *region = new.clone();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soundness;
    use crate::testing::{assert_program, block, func, loops, refusal, schedule};

    const PARAMS: &str = "A: T.Buffer((10,), \"float32\"), C: T.Buffer((8,), \"float32\")";

    fn tiled(kind: &str) -> String {
        func(
            PARAMS,
            &format!(
                r#"
B = T.sblock_alloc_buffer((10,))
for i in {kind}:
    for ax in range(6):
        with T.sblock("B"):
            v = T.axis.spatial(10, i * 4 + ax)
            B[v] = A[v] * T.float32(2)
    for j, k in T.grid(4, 3):
        with T.sblock("C"):
            vi = T.axis.spatial(8, i * 4 + j)
            vk = T.axis.reduce(3, k)
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + B[vi + vk]
"#
            ),
        )
    }

    #[test]
    fn the_picture() {
        let mut s = schedule(&tiled("range(2)"));
        let (before, b, c) = (s.program().clone(), block(&s, "B"), block(&s, "C"));
        assert_eq!(refusal(&mut s, |s| rolling_buffer(s, c, 0)), "ScheduleError: Cannot operate on an output block");
        rolling_buffer(&mut s, b, 0).unwrap();
        soundness::check(&before, s.program()).unwrap();
        assert_program(
            &s,
            &func(
                PARAMS,
                r#"
B = T.sblock_alloc_buffer((6,))
for i in range(2):
    for ax in range(6):
        with T.sblock("B"):
            v = T.axis.opaque(10, i * 4 + ax)
            T.where(i < 1 or 2 <= ax)
            T.reads(A[v])
            T.writes(B[v % 6])
            B[v % 6] = A[v] * T.float32(2)
    for j, k in T.grid(4, 3):
        with T.sblock("C"):
            vi = T.axis.opaque(8, i * 4 + j)
            vk = T.axis.reduce(3, k)
            T.reads(B[(vi + vk) % 6])
            T.writes(C[vi])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + B[(vi + vk) % 6]
"#,
            ),
        );
    }

    #[test]
    fn refuses() {
        let mut s = schedule(&tiled("T.thread_binding(2, thread=\"threadIdx.x\")"));
        let b = block(&s, "B");
        assert!(refusal(&mut s, |s| rolling_buffer(s, b, 0)).contains("rolling pattern"));
        let apart = r#"
B = T.sblock_alloc_buffer((10,))
for i in range(10):
    with T.sblock("B"):
        v = T.axis.spatial(10, i)
        B[v] = A[v]
for i in range(8):
    with T.sblock("C"):
        v = T.axis.spatial(8, i)
        C[v] = B[v + 2]
"#;
        let mut s = schedule(&func(PARAMS, apart));
        let (b, l) = (block(&s, "B"), loops(&s, "C")[0]);
        assert!(refusal(&mut s, |s| rolling_buffer(s, b, 0)).contains("is not a for loop"));
        crate::compute_at::compute_at(&mut s, b, l, false, -1).unwrap();
        assert!(refusal(&mut s, |s| rolling_buffer(s, b, 0)).contains("rolling pattern"));
    }
}
