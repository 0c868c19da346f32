//! The k loop and the cooperative copies that it overlaps with the arithmetic.
use super::index::{add, all, c, div, mul, rem, xor};
use super::Lowering;
use crate::kernel::{ArrayId, Cond, Dim, Index, Stmt, Unroll};
use satune_ir::term::{Axis, Fill, Layout, Pipe, Side};

/// Which part of a copy to emit.
#[derive(Clone, Copy, PartialEq)]
enum Move {
    /// Global memory to registers.
    Load,
    /// Registers to shared memory.
    Store,
    /// Both, element by element.
    Both,
    /// cp.async.
    Async,
}

impl Lowering<'_> {
    /// Whether all steps of a copy are held in registers at once (they are, when its loop is expanded or when they must
    /// wait for the arithmetic).
    pub(super) fn fill_at_once(&self, fill: Fill) -> bool {
        fill.unroll || self.plan.pipe == Pipe::Registers
    }

    fn staged_sides(&self) -> Vec<Side> {
        [Side::A, Side::B].into_iter().filter(|s| self.shared[*s as usize].is_some()).collect()
    }

    /// The k loop of a block.
    pub(super) fn k_loop(&mut self) -> Vec<Stmt> {
        let plan = self.plan;
        let tiles = (plan.k_part + plan.k_tile - 1) / plan.k_tile;
        let sides = self.staged_sides();
        if sides.is_empty() {
            return self.repeat("k_tile", tiles, Unroll::No, |this, tile| this.compute(&tile, &c(0)));
        }
        match plan.pipe {
            Pipe::Plain => self.repeat("k_tile", tiles, Unroll::No, |this, tile| {
                let mut body = this.fill_plain(&sides, &tile);
                body.push(Stmt::Barrier);
                body.extend(this.compute(&tile, &c(0)));
                if tiles > 1 || this.contraction.outer_reduce().next().is_some() {
                    body.push(Stmt::Barrier);
                }
                body
            }),
            Pipe::Registers => self.double_buffered(&sides, tiles),
            Pipe::Async(stages) => self.asynchronous(&sides, tiles, i64::from(stages)),
        }
    }

    fn fill_plain(&mut self, sides: &[Side], tile: &Index) -> Vec<Stmt> {
        let mut body = Vec::new();
        let at_once =
            |this: &Self, side: Side| this.plan.staging(side).shared.is_some_and(|(_, f)| this.fill_at_once(f));
        for side in sides {
            let what = if at_once(self, *side) { Move::Load } else { Move::Both };
            body.extend(self.copy(*side, what, tile, &c(0)));
        }
        for side in sides {
            if at_once(self, *side) {
                body.extend(self.copy(*side, Move::Store, tile, &c(0)));
            }
        }
        body
    }

    fn each(&mut self, sides: &[Side], what: Move, tile: &Index, slot: &Index) -> Vec<Stmt> {
        sides.iter().flat_map(|side| self.copy(*side, what, tile, slot)).collect()
    }

    /// Loads of the next tile before the arithmetic of this one, stores to the other buffer after it.
    fn double_buffered(&mut self, sides: &[Side], tiles: i64) -> Vec<Stmt> {
        let mut body = self.each(sides, Move::Load, &c(0), &c(0));
        body.extend(self.each(sides, Move::Store, &c(0), &c(0)));
        body.push(Stmt::Barrier);
        let again = self.contraction.outer_reduce().next().is_some();
        body.extend(self.repeat("k_tile", tiles, Unroll::No, |this, tile| {
            let slot = rem(tile.clone(), 2);
            if tiles == 1 {
                let mut body = this.compute(&tile, &slot);
                if again {
                    body.push(Stmt::Barrier);
                }
                return body;
            }
            let next = add(tile.clone(), c(1));
            let more = Cond::Lt(next.clone(), c(tiles));
            let loads = this.each(sides, Move::Load, &next, &c(0));
            let mut body = vec![Stmt::If { cond: more.clone(), then: loads, otherwise: vec![] }];
            body.extend(this.compute(&tile, &slot));
            let other = rem(next.clone(), 2);
            let stores = this.each(sides, Move::Store, &next, &other);
            body.push(Stmt::If { cond: more, then: stores, otherwise: vec![] });
            body.push(Stmt::Barrier);
            body
        }));
        body
    }

    /// A ring of buffers filled by cp.async: `stages - 1` tiles are on their way while one is used.
    fn asynchronous(&mut self, sides: &[Side], tiles: i64, stages: i64) -> Vec<Stmt> {
        let mut body = Vec::new();
        for ahead in 0..stages - 1 {
            if ahead < tiles {
                body.extend(self.each(sides, Move::Async, &c(ahead), &c(ahead)));
            }
            body.push(Stmt::AsyncCommit);
        }
        body.extend(self.repeat("k_tile", tiles, Unroll::No, |this, tile| {
            let mut body = vec![Stmt::AsyncWait((stages - 2) as u32), Stmt::Barrier];
            let next = add(tile.clone(), c(stages - 1));
            if tiles > stages - 1 {
                let slot = rem(next.clone(), stages);
                let then = this.each(sides, Move::Async, &next, &slot);
                body.push(Stmt::If { cond: Cond::Lt(next, c(tiles)), then, otherwise: vec![] });
            }
            body.push(Stmt::AsyncCommit);
            let slot = rem(tile.clone(), stages);
            body.extend(this.compute(&tile, &slot));
            body
        }));
        if self.contraction.outer_reduce().next().is_some() {
            body.extend([Stmt::AsyncWait(0), Stmt::Barrier]);
        }
        body
    }

    /// One cooperative copy of a tile: (serial, threads, vector) over the fused tile.
    fn copy(&mut self, side: Side, what: Move, tile: &Index, slot: &Index) -> Vec<Stmt> {
        let plan = self.plan;
        let (Some((layout, fill)), Some(shared)) = (plan.staging(side).shared, self.shared[side as usize]) else {
            return Vec::new();
        };
        let (spatial, ..) = self.side_sizes(side);
        let vector = i64::from(fill.vector);
        let step = i64::from(plan.threads) * vector;
        let total = spatial * plan.k_tile;
        let steps = (total + step - 1) / step;
        let expand = what != Move::Both && (what != Move::Async || fill.unroll);
        let unroll = if expand { Unroll::Full } else { Unroll::No };
        self.repeat("step", steps, unroll, |this, s| {
            let base = mul(Index::ThreadIdx(Dim::X), vector);
            let fused = add(base, mul(s.clone(), step));
            let at = Place { side, layout, fill, spatial, shared, fused: fused.clone(), step: s };
            let code = this.copy_step(&at, what, tile, slot);
            if total % step == 0 {
                code
            } else {
                vec![Stmt::If { cond: Cond::Lt(fused, c(total)), then: code, otherwise: vec![] }]
            }
        })
    }

    fn copy_step(&mut self, at: &Place, what: Move, tile: &Index, slot: &Index) -> Vec<Stmt> {
        let plan = self.plan;
        let operand = self.contraction.operand(at.side);
        let along_k = operand.contiguous_along(Axis::K);
        // The inner one of the two fused loops.
        let k_inner = along_k == at.fill.coalesced;
        let (x, k) = if k_inner {
            (div(at.fused.clone(), plan.k_tile), rem(at.fused.clone(), plan.k_tile))
        } else {
            (rem(at.fused.clone(), at.spatial), div(at.fused.clone(), at.spatial))
        };
        let width = at.fill.vector;
        let same_rows = at.layout.k_major != along_k;
        let element = i64::from(operand.dtype.bytes());
        let offset = |o: i64| {
            let (x, k) = if along_k { (x.clone(), add(k.clone(), c(o))) } else { (add(x.clone(), c(o)), k.clone()) };
            add(mul(slot.clone(), at.layout.elements(at.spatial, plan.k_tile)), at.offset(&x, &k, plan.k_tile, element))
        };
        let k_global = add(add(self.k0.clone(), mul(tile.clone(), plan.k_tile)), k.clone());
        let (origin, axis) = match at.side {
            Side::A => (self.m0.clone(), Axis::M),
            Side::B => (self.n0.clone(), Axis::N),
        };
        let x_global = add(origin, x.clone());
        let zero_unless = all(vec![self.within(axis, &x_global), self.within(Axis::K, &k_global)]);
        let src = self.global[at.side as usize];
        let src_index = self.global_index(operand, &x_global, &x_global, &k_global);
        if what == Move::Async {
            return vec![Stmt::AsyncCopy { dst: at.shared, dst_index: offset(0), src, src_index, width, zero_unless }];
        }
        let Some(held) = self.staged[at.side as usize] else { return Vec::new() };
        let first = if what == Move::Both { c(0) } else { mul(at.step.clone(), i64::from(width)) };
        let mut code = Vec::new();
        if what != Move::Store {
            code.push(Stmt::Copy { dst: held, dst_index: first.clone(), src, src_index, width, zero_unless });
        }
        if what != Move::Load {
            let stores = if same_rows || width == 1 { 1 } else { i64::from(width) };
            let width = width / stores as u32;
            for o in 0..stores {
                code.push(Stmt::Copy {
                    dst: at.shared,
                    dst_index: offset(o),
                    src: held,
                    src_index: add(first.clone(), c(o)),
                    width,
                    zero_unless: Cond::True,
                });
            }
        }
        code
    }

    /// Position in a tile in shared memory of (x, k).
    pub(super) fn shared_index(&self, side: Side, x: &Index, k: &Index, slot: &Index) -> Index {
        let (spatial, ..) = self.side_sizes(side);
        let Some((layout, _)) = self.plan.staging(side).shared else { return c(0) };
        let element = i64::from(self.contraction.operand(side).dtype.bytes());
        let place = layout_offset(layout, x, k, spatial, self.plan.k_tile, element);
        add(mul(slot.clone(), layout.elements(spatial, self.plan.k_tile)), place)
    }
}

/// Where one step of a copy is.
struct Place {
    side: Side,
    layout: Layout,
    fill: Fill,
    spatial: i64,
    shared: ArrayId,
    fused: Index,
    step: Index,
}

impl Place {
    fn offset(&self, x: &Index, k: &Index, k_tile: i64, element: i64) -> Index {
        layout_offset(self.layout, x, k, self.spatial, k_tile, element)
    }
}

/// [`Layout::offset`] for symbolic positions.
fn layout_offset(layout: Layout, x: &Index, k: &Index, spatial: i64, k_tile: i64, element: i64) -> Index {
    let (row, column) = if layout.k_major { (k, x) } else { (x, k) };
    let pitch = layout.pitch(spatial, k_tile);
    let start = mul(row.clone(), pitch);
    if !layout.swizzle {
        return add(start, column.clone());
    }
    let chunk = (16 / element).max(1);
    let chunks = (pitch / chunk).clamp(1, 8);
    let swizzled = xor(div(column.clone(), chunk), rem(row.clone(), chunks));
    add(add(start, mul(swizzled, chunk)), rem(column.clone(), chunk))
}
