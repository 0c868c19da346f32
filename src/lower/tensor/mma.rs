//! The kernel of warps that multiply bytes by `mma.sync`.
//!
//! One loop over k, unrolled by the ring's length so that every stage and fragment set is a constant; each thread's
//! addresses are computed before it. The loop runs as long as all its copies are whole; what is left, with the end of k,
//! stands unrolled after it. Per tile and step along k: the next step's fragments are loaded while this one's are
//! multiplied. Where nothing is copied asynchronously, the next tile waits in
//! registers while this one is multiplied, and is stored before the barrier.
use super::fragments::Loader;
use super::gathered::Gathering;
use super::tile::{Filler, Source, Tile};
use super::*;
use crate::kernel::WarpOp;
use satune_ir::term::tensor::{mma_conditions, StreamK, Turn};
use satune_ir::term::Side;
use std::rc::Rc;

pub(super) fn lower(gemm: &Gemm, plan: &TensorPlan) -> Result<TensorModule, TensorError> {
    plan.check(gemm)?;
    let gemm = &*gemm.oriented(plan.swapped);
    let (kernel, operands) = Mainloop::new(gemm, plan).kernel();
    Ok(module(gemm, (plan.split_k, None), kernel, operands))
}

/// The kernel, and the one that adds the sums that a result has, where the kernel writes such; the tiles of stream-K have
/// different numbers of them.
pub(super) fn module(
    gemm: &Gemm,
    (split, stream): (i64, Option<(StreamK, &WgmmaPlan)>),
    kernel: Kernel,
    operands: Vec<Operand>,
) -> TensorModule {
    let partial = operands.last().copied();
    let mut module = TensorModule { kernels: vec![kernel], args: vec![operands], workspaces: Vec::new(), main: 0 };
    if let Some(partial) = partial.filter(|_| split > 1) {
        let elements = (gemm.results() * split) as u64;
        module.workspaces.push(Between { name: "partial", elements, dtype: gemm.accumulator() });
        let (kernel, operands) = epilogue::sum_kernel(gemm, split, stream, partial);
        module.kernels.push(kernel);
        module.args.push(operands);
    }
    module
}

/// The parts of a kernel under construction.
pub(super) struct Mainloop<'p> {
    pub(super) gemm: &'p Gemm,
    pub(super) plan: &'p TensorPlan,
    pub(super) builder: Builder,
    pub(super) params: Params,
    pub(super) threads: i64,
    pub(super) head: Vec<Stmt>,
    pub(super) m0: Index,
    pub(super) n0: Index,
    /// The warp's first row and column within the tile.
    pub(super) warp_m: Index,
    pub(super) warp_n: Index,
    pub(super) lane: Index,
    pub(super) part: Index,
    /// Number of the product.
    pub(super) batch: Index,
    pub(super) ring: ArrayId,
    pub(super) sums: ArrayId,
    /// Elements of a stage.
    pub(super) stage: i64,
    pub(super) fillers: [Filler; 2],
    pub(super) loaders: [Loader; 2],
    /// Tiles along k.
    pub(super) tiles: i64,
    /// Whether every tile may hang over the end of k (split-K), or only the last (ragged k), or none.
    pub(super) guard_all: bool,
    pub(super) guard_last: bool,
}

impl<'p> Mainloop<'p> {
    fn new(gemm: &'p Gemm, plan: &'p TensorPlan) -> Mainloop<'p> {
        let mut builder = Builder::new();
        let b = &mut builder;
        let params = b.params(gemm, plan.split_k);
        let [m, n, k] = plan.tile;
        let op = plan.instruction;
        let (rows, columns) = ((gemm.m + m - 1) / m, (gemm.n + n - 1) / n);
        let per_part = (gemm.k + k * plan.split_k - 1) / (k * plan.split_k);
        let threads = plan.threads();
        let mut head = Vec::new();
        let part = if plan.split_k > 1 { Index::BlockIdx(Dim::Z) } else { c(0) };
        let (batch, number) = product(gemm, Index::BlockIdx(Dim::X), rows * columns);
        let batch = b.bind(&mut head, "product", batch);
        let (row, column) = place(&number, rows, columns, plan.raster);
        let m0 = b.bind(&mut head, "m_block", mul(row, m));
        let n0 = b.bind(&mut head, "n_block", mul(column, n));
        let k0 = b.bind(&mut head, "k_part", mul(part.clone(), per_part * k));
        let lane = b.bind(&mut head, "lane", rem(thread(), 32));
        let (warps_m, warps_n) = (m / plan.warp[0], n / plan.warp[1]);
        let number = div(thread(), 32);
        let (row, column) = match plan.warps_m_outer {
            true => (div(number.clone(), warps_n), rem(number, warps_n)),
            false => (rem(number.clone(), warps_m), div(number, warps_m)),
        };
        let warp_m = b.bind(&mut head, "m_warp", mul(row, plan.warp[0]));
        let warp_n = b.bind(&mut head, "n_warp", mul(column, plan.warp[1]));
        let padding = mma_conditions::padding(gemm, op, plan.tile, plan.operands.map(|o| o.layout));
        let bytes = mma_conditions::ring_bytes(gemm, plan.tile, plan.stages, padding);
        let elements = bytes / i64::from(gemm.operand.bytes());
        let ring = b.array("tiles", gemm.operand, elements, Space::Shared, 128);
        let tile = |k_rows: bool, offset: i64, extent: i64, layout: TileLayout| {
            let (rows, columns) = if k_rows { (k, extent) } else { (extent, k) };
            Tile { array: ring, offset, rows, columns, dtype: gemm.operand, layout, turn: Turn::of(op, k_rows) }
        };
        let (a_rows, b_rows) = (gemm.a_transposed, !gemm.b_transposed);
        let (a_tile, b_tile) =
            (tile(a_rows, 0, m, plan.operands[0].layout), tile(b_rows, m * k, n, plan.operands[1].layout));
        let b_tile = Tile { offset: a_tile.rows * a_tile.pitch(), ..b_tile };
        let source = |array, name, k_rows, first: &Index, extent, side, plan: &OperandPlan| Source {
            array,
            origin: mul(batch.clone(), extent * gemm.k),
            name,
            k_rows,
            first: first.clone(),
            extent,
            k_first: k0.clone(),
            k: gemm.k,
            tile_k: k,
            width: mma_conditions::copy_elements(gemm, side, plan.bytes),
            order: plan.order,
            rolled: plan.rolled,
            prefetch: plan.prefetch,
            through_registers: !op.is_async(),
            gathered: gemm.gathered(side).map(|factor| {
                Rc::new(Gathering {
                    factor: factor.clone(),
                    own: side.spatial(),
                    batch: batch.clone(),
                    first_tile: mul(part.clone(), per_part),
                    tile_k: k,
                })
            }),
        };
        let a_source = source(params.a, "a", a_rows, &m0, gemm.m, Side::A, &plan.operands[0]);
        let b_source = source(params.b, "b", b_rows, &n0, gemm.n, Side::B, &plan.operands[1]);
        let fillers = [
            Filler::new(b, &mut head, a_tile, a_source, threads),
            Filler::new(b, &mut head, b_tile, b_source, threads),
        ];
        let a_first = (warp_m.clone(), plan.warp[0], lane.clone());
        let b_first = (warp_n.clone(), plan.warp[1], lane.clone());
        let loaders = [
            Loader::new(b, (Side::A, "a"), op, (a_tile, a_rows), a_first, &plan.operands[0]),
            Loader::new(b, (Side::B, "b"), op, (b_tile, b_rows), b_first, &plan.operands[1]),
        ];
        let space = Builder::space_of_sums(gemm);
        let sums = b.array("sums", gemm.accumulator(), plan.warp[0] * plan.warp[1] / 32, space, 16);
        let guard_all = plan.split_k > 1 && per_part * k * plan.split_k != gemm.k;
        Mainloop {
            gemm,
            plan,
            params,
            threads,
            head,
            m0,
            n0,
            warp_m,
            warp_n,
            lane,
            part,
            batch,
            ring,
            sums,
            stage: elements / i64::from(plan.stages),
            fillers,
            loaders,
            tiles: per_part,
            guard_all,
            guard_last: gemm.k % k != 0,
            builder,
        }
    }

    fn kernel(mut self) -> (Kernel, Vec<Operand>) {
        let (gemm, plan) = (self.gemm, self.plan);
        let loop_body = self.k_loop();
        let store = match plan.store {
            Store::Direct => self.store_direct(),
            Store::Shared { stmatrix } => self.store_shared(stmatrix),
        };
        let mut body = std::mem::take(&mut self.head);
        body.extend(loop_body);
        body.extend(store);
        let [m, n, _] = plan.tile;
        let blocks = gemm.batch * ((gemm.m + m - 1) / m) * ((gemm.n + n - 1) / n);
        let (name, notes) = title(gemm, plan.split_k > 1, plan.describe());
        let kernel = Kernel {
            name,
            notes,
            arrays: self.builder.arrays,
            grid: [blocks as u32, 1, plan.split_k as u32],
            block: [self.threads as u32, 1, 1],
            shared_bytes: self.builder.shared_bytes,
            min_blocks_per_sm: plan.min_blocks,
            cluster: 1,
            tensor_maps: vec![],
            body,
        };
        (kernel, self.params.operands)
    }

    /// First element of a stage.
    fn at(&self, stage: Index) -> Index {
        mul(stage, self.stage)
    }

    fn fill(&self, stage: Index, number: &Index, guard: bool) -> Vec<Stmt> {
        (0..2).flat_map(|side| self.fill_one(side, stage.clone(), number, guard)).collect()
    }

    /// Copies one operand's tile.
    fn fill_one(&self, side: usize, stage: Index, number: &Index, guard: bool) -> Vec<Stmt> {
        let filler = &self.fillers[side];
        match self.through_registers() {
            true => [filler.fetch(number, guard), filler.deposit(&self.at(stage))].concat(),
            false => filler.fill(&self.at(stage), number, guard),
        }
    }

    /// Begins to copy one operand's tile.
    fn begin_one(&self, side: usize, stage: Index, number: &Index, guard: bool) -> Vec<Stmt> {
        match self.through_registers() {
            true => self.fillers[side].fetch(number, guard),
            false => self.fill_one(side, stage, number, guard),
        }
    }

    /// Whether tiles wait in registers on their way to the ring.
    fn through_registers(&self) -> bool {
        !self.plan.instruction.is_async()
    }

    /// The end of a tile's copies, where they are asynchronous.
    fn committed(&self) -> Option<Stmt> {
        (!self.through_registers()).then_some(Stmt::AsyncCommit)
    }

    /// What stands before the barrier after which the next tile is read.
    fn landed(&self) -> Option<Stmt> {
        (!self.through_registers()).then(|| Stmt::AsyncWait(self.under_way()))
    }

    /// Loads the fragments of those operands that have so many sets.
    fn fragments(&mut self, stage: Index, step: i64, set: &Index, sets: i64) -> Vec<Stmt> {
        let at = self.at(stage);
        let step = if self.plan.order.descending { self.steps() - 1 - step } else { step };
        let mut list = Vec::new();
        for loader in self.loaders.iter_mut().filter(|l| l.sets == sets) {
            list.extend(loader.load(&mut self.builder, &mut self.head, &at, step, set));
        }
        list
    }

    fn steps(&self) -> i64 {
        self.plan.tile[2] / i64::from(self.plan.instruction.k())
    }

    fn k_loop(&mut self) -> Vec<Stmt> {
        let stages = i64::from(self.plan.stages);
        let (tiles, ahead, steps) = (self.tiles, stages - 1, self.steps());
        // As many tiles as bring stages and fragment sets back to where they were; one where neither is a constant.
        let round = match (self.plan.rolled, stages * steps % 2) {
            (true, _) => 1,
            (false, 0) => stages,
            (false, _) => 2 * stages,
        };
        let (guard_all, guard_last) = (self.guard_all, self.guard_last);
        let (sums, count) = (self.sums, self.plan.warp[0] * self.plan.warp[1] / 32);
        let mut body = self.builder.cleared(sums, count);
        // A loop for those that are alike: unrolled, addresses of all of them are held at once. Two of them hold no more than
        // the loop does, which has a counter too.
        let alike = ahead.min(tiles - i64::from(guard_last && !guard_all));
        let looped = if alike > 2 { alike } else { 0 };
        if looped > 0 {
            let var = self.builder.fresh();
            let mut fill = self.fill(Index::Var(var), &Index::Var(var), guard_all);
            fill.extend(self.committed());
            let (name, start, extent) = ("stage".into(), c(0), c(looped));
            body.push(Stmt::For { var, name, start, extent, unroll: Unroll::No, body: fill });
        }
        for stage in looped..ahead {
            if stage < tiles {
                body.extend(self.fill(c(stage), &c(stage), guard_all || guard_last && stage == tiles - 1));
            }
            body.extend(self.committed());
        }
        body.extend(self.landed());
        body.push(Stmt::Barrier);
        body.extend(self.fragments(c(0), 0, &c(0), 2));
        let whole = (tiles - ahead - i64::from(guard_last && !guard_all)).max(0) / round;
        let (outer, inner) = (self.builder.fresh(), self.builder.fresh());
        if whole > 0 {
            let tile = add(mul(Index::Var(outer), round), Index::Var(inner));
            let body_of_round = if self.plan.rolled {
                let number = Index::Var(outer);
                self.tile(&number, &add(number.clone(), c(ahead)), Some(guard_all), None)
            } else {
                let code = self.tile(&Index::Var(inner), &add(tile, c(ahead)), Some(guard_all), None);
                vec![Stmt::For {
                    var: inner,
                    name: "tile".into(),
                    start: c(0),
                    extent: c(round),
                    unroll: Unroll::Full,
                    body: code,
                }]
            };
            body.push(Stmt::For {
                var: outer,
                name: "round".into(),
                start: c(0),
                extent: c(whole),
                unroll: Unroll::No,
                body: body_of_round,
            });
        }
        let first = whole * round;
        let rest = self.builder.fresh();
        let number = Index::Var(rest);
        let loads = (tiles - ahead > first).then_some(guard_all || guard_last);
        let code = self.tile(&number, &add(number.clone(), c(ahead)), loads, Some(tiles));
        // Unrolled, the compiler moves loads of several of these tiles up to the first, and runs out of registers. Sets of
        // fragments are constants only there where a tile's steps are odd.
        let unroll = if steps % 2 == 0 || self.loaders.iter().all(|l| l.sets == 1) { Unroll::No } else { Unroll::Full };
        let (start, extent) = (c(first), c(tiles - first));
        body.push(Stmt::For { var: rest, name: "tile".into(), start, extent, unroll, body: code });
        body
    }

    /// One tile along k. `next`: the tile whose copies are started, guarded or not; `last`: how many tiles there are,
    /// where some may have no successor.
    fn tile(&mut self, number: &Index, next: &Index, guard: Option<bool>, last: Option<i64>) -> Vec<Stmt> {
        let stages = i64::from(self.plan.stages);
        let steps = self.steps();
        let stage = |ahead: i64| rem(add(number.clone(), c(ahead)), stages);
        let set = |step: i64| match steps % 2 {
            0 => c(step % 2),
            _ => rem(add(mul(number.clone(), steps), c(step)), 2),
        };
        let mut body = Vec::new();
        let begins: [i64; 2] = [0, 1].map(|side| i64::from(self.plan.operands[side].step));
        // The copies that are started at a step, and the end of their group.
        let fill_at = |this: &Self, step: i64| {
            let mut list = Vec::new();
            if let Some(guard) = guard {
                let sides = (0..2).filter(|side| begins[*side] == step);
                let copies: Vec<Stmt> = sides.flat_map(|s| this.begin_one(s, stage(stages - 1), next, guard)).collect();
                if !copies.is_empty() {
                    list = guarded(last.map_or(Cond::True, |tiles| Cond::Lt(next.clone(), c(tiles))), copies);
                }
            }
            if begins.iter().max() == Some(&step) {
                list.extend(this.committed());
            }
            list
        };
        for step in 0..steps {
            let is_last = step + 1 == steps;
            // Those of one set, while the tile may be read: before the barrier after which it is overwritten.
            body.extend(self.fragments(stage(0), step, &set(step), 1));
            if is_last && steps == 1 {
                body.extend(fill_at(self, step));
            }
            let next_fragments = if is_last {
                // The next tile must have landed before its first fragments are read.
                let mut list: Vec<Stmt> = self.landed().into_iter().collect();
                if guard.is_some() {
                    list.extend(self.fillers.iter().flat_map(|f| f.deposit(&self.at(stage(stages - 1)))));
                }
                list.push(Stmt::Barrier);
                list.extend(self.fragments(stage(1), 0, &set(steps), 2));
                guarded(last.map_or(Cond::True, |tiles| Cond::Lt(number.clone(), c(tiles - 1))), list)
            } else {
                self.fragments(stage(0), step + 1, &set(step + 1), 2)
            };
            body.extend(next_fragments);
            if !is_last {
                body.extend(fill_at(self, step));
            }
            body.extend(self.multiply(&set(step)));
        }
        body
    }

    /// Tiles whose copies may be under way at a barrier.
    fn under_way(&self) -> u32 {
        self.plan.stages - 2 - self.plan.slack
    }

    fn multiply(&mut self, set: &Index) -> Vec<Stmt> {
        let (op, sums) = (self.plan.instruction, self.sums);
        let [a, b] = [&self.loaders[0], &self.loaders[1]].map(|l| (l.fragments, l.blocks, l.block_len(), l.set(set)));
        // Two instructions' columns of B are loaded together on mma.sync.
        let [rows, wide] = op.block();
        let (parts, len) = (op.loaded(Side::B) / wide, rows * wide / 32);
        let columns = self.plan.warp[1] / wide;
        let at = |(array, blocks, len, set): &(ArrayId, i64, i64, Index), i: Index, part: i64| {
            (*array, add(mul(set.clone(), blocks * len), mul(i, len / part)))
        };
        let by_columns = self.plan.order.columns;
        let (outer, inner) = if by_columns { (columns, a.1) } else { (a.1, columns) };
        let multiply = |i: Index, j: Index| {
            let (row, column) = if by_columns { (j, i) } else { (i, j) };
            let d = (sums, add(mul(row.clone(), len * columns), mul(column.clone(), len)));
            let (a, b) = (at(&a, row, 1), at(&b, column, parts));
            Stmt::Warp(WarpOp::Mma { op, d, a, b })
        };
        let order = self.plan.order;
        if order.serpentine || order.pairs {
            // Lines that are walked at once; back and forth goes from one walk to the next, and within one from step to step.
            let lines = if order.pairs { 2 } else { 1 };
            let back = |odd: bool, at: i64, of: i64| if odd && order.serpentine { of - 1 - at } else { at };
            let places = (0..outer / lines)
                .flat_map(|walk| (0..inner).flat_map(move |step| (0..lines).map(move |line| (walk, step, line))));
            return places
                .map(|(walk, step, line)| {
                    let i = walk * lines + back(step % 2 == 1, line, lines);
                    multiply(c(i), c(back(walk % 2 == 1, step, inner)))
                })
                .collect();
        }
        self.builder.repeat("i", (0, outer), Unroll::Full, |builder, i| {
            builder.repeat("j", (0, inner), Unroll::Full, |_, j| vec![multiply(i.clone(), j)])
        })
    }
}
