//! The kernel on `wgmma` (sm_90a) or `tcgen05` (sm_100a): one warp of a producer group keeps a ring of tiles filled by the TMA; groups of
//! four warps consume it. A pair of barriers per stage says when a tile has landed and when it has been read.
//!
//! Every tile begins at stage 0 of the ring, so that stages are constants; the parity of a stage's barriers follows from
//! how often the tiles before used it.
//!
//! Blocks of a cluster compute neighbouring tiles. What several of them read, each brings a part of, to all of them; so a
//! stage is free when the consumers of the whole cluster have read it, and they say so to every block.
use super::tensor_memory::Sums;
use super::*;
use crate::kernel::{Descriptor, GroupOp, Left, Role, TensorMap, Wgmma};
use satune_ir::term::tensor::{wgmma_conditions, Boxes, StreamK};
use satune_ir::term::{Axis, Side as Factor};

pub(super) fn lower(gemm: &Gemm, plan: &WgmmaPlan) -> Result<TensorModule, TensorError> {
    plan.check(gemm)?;
    let gemm = &*gemm.oriented(plan.swapped);
    let copied = copied(gemm);
    let (kernel, operands) = Pipeline::new(gemm, plan, copied)?.kernel();
    let sums = plan.sums_of_result(gemm);
    let mut module = module(gemm, (sums, plan.dealt(gemm).map(|s| (s, plan))), kernel, operands);
    let mut factors = [(Operand::A, "A"), (Operand::B, "B")];
    if gemm.swapped {
        factors.reverse();
    }
    for (factor, (number, copy)) in factors.into_iter().zip(copied).filter_map(|(f, copy)| Some((f, copy?))) {
        let (kernel, operands) = align::kernel(gemm, copy, factor, number);
        module.kernels.insert(number, kernel);
        module.args.insert(number, operands);
        let name = if factor.1 == "A" { "a_aligned" } else { "b_aligned" };
        let between = Between { name, elements: copy.elements() as u64, dtype: gemm.operand };
        module.workspaces.insert(number, between);
        module.main += 1;
    }
    Ok(module)
}

/// The kernel, and the one that adds the sums that a result has, where the kernel writes such; the tiles of stream-K have
/// different numbers of them.
fn module(
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

/// The factors whose rows are copied first, each with the number of its copy.
fn copied(gemm: &Gemm) -> [Option<(usize, wgmma_conditions::AlignedRows)>; 2] {
    let [a, b] = [Factor::A, Factor::B].map(|side| wgmma_conditions::aligned(gemm, side));
    [a.map(|copy| (0, copy)), b.map(|copy| (usize::from(a.is_some()), copy))]
}

/// Threads of a group of four warps.
pub(super) const GROUP: i64 = 128;

/// One operand's part of a stage.
pub(super) struct Side {
    /// Elements before it in the stage.
    offset: i64,
    /// Stored across k: boxes of so many rows or columns (`span`) as a swizzle's row has, by all of k. Else boxes of all rows or
    /// columns by so many values of k as take 128 bytes.
    across: bool,
    span: i64,
    /// Rows of A, columns of B.
    extent: i64,
    /// Rows in memory from one product's matrix to the next.
    rows_of_product: i64,
    /// Where memory does not hold its matrix: what boxes are.
    gathered: Option<Boxes>,
    /// Blocks of a cluster that share it.
    sharing: i64,
    /// Which of them this block is, and one bit for each, by their numbers in the cluster.
    member: Index,
    mask: Index,
}

/// One box that the producer brings.
struct Carton {
    /// Position across k and along k.
    across: Index,
    along: Index,
    /// First element within the stage.
    element: Index,
}

impl Side {
    /// The block's boxes of a stage.
    fn boxes(&self, k: i64) -> Vec<Carton> {
        // Of a shared box each block brings some rows: of the tile, or along k.
        let (along_row, rows) = if self.across { (self.extent, k) } else { (k, self.extent) };
        let first = mul(self.member.clone(), rows / self.sharing);
        (0..along_row / self.span)
            .map(|i| {
                let (row, column) = (first.clone(), c(i * self.span));
                let (across, along) = if self.across { (column, row) } else { (row, column) };
                let element = add(mul(first.clone(), self.span), c(self.offset + i * self.span * rows));
                Carton { across, along, element }
            })
            .collect()
    }

    /// Elements before those of an instruction that begins at a value of k: within the swizzled row and over whole boxes
    /// before it, or over as many rows of a box.
    fn at_k(&self, k: i64) -> i64 {
        let (boxes, within) = (k / self.span, k % self.span);
        self.offset + if self.across { k * self.span } else { boxes * self.span * self.extent + within }
    }

    /// Elements that a row takes, in a tile of so many values of k: whole atoms of eight rows follow each other.
    fn row(&self, k: i64) -> i64 {
        if self.across {
            k
        } else {
            self.span
        }
    }
}

/// A tile of C.
pub(super) struct Work {
    /// First row and column.
    pub m0: Index,
    pub n0: Index,
    /// Part of k.
    pub part: Index,
    /// Number of the product.
    pub batch: Index,
    /// Its number among the block's, and among the role's.
    pub turn: Index,
    pub own_turn: Index,
    /// Of stream-K: the steps that are the block's.
    pub piece: Option<Piece>,
}

/// Steps along k of a tile.
pub(super) struct Piece {
    /// The block's steps before them.
    pub done: Index,
    /// The first, counted in the tile, and how many there are.
    pub from: Index,
    pub extent: Index,
}

/// A step along k.
pub(super) struct Step {
    /// Place in the ring, and parity of its use.
    pub stage: Index,
    pub parity: Index,
    /// First k within the part of k.
    pub at_k: Index,
    /// The place of the step before, and when there is one.
    pub before: Option<(Index, Cond)>,
}

pub(super) struct Pipeline<'p> {
    pub(super) gemm: &'p Gemm,
    pub(super) plan: &'p WgmmaPlan,
    pub(super) builder: Builder,
    pub(super) params: Params,
    pub(super) maps: Vec<TensorMap>,
    pub(super) sides: [Side; 2],
    pub(super) ring: ArrayId,
    pub(super) staging: Option<ArrayId>,
    /// Where the TMA stores to places: what boxes are.
    pub(super) places: Option<Boxes>,
    pub(super) full: ArrayId,
    pub(super) empty: ArrayId,
    /// Whose turn it is to multiply.
    pub(super) order: Option<ArrayId>,
    pub(super) sums: ArrayId,
    /// Where the sums are in tensor memory.
    pub(super) memory: Option<Sums>,
    pub(super) op: Wgmma,
    /// Tiles of C, and how many of them a block takes at most.
    pub(super) tiles: [i64; 2],
    pub(super) grid: i64,
    /// Tiles of C, of all parts of k.
    pub(super) total: i64,
    /// Tiles along k, of a part.
    pub(super) steps: i64,
}

impl<'p> Pipeline<'p> {
    fn new(
        gemm: &'p Gemm,
        plan: &'p WgmmaPlan,
        copied: [Option<(usize, wgmma_conditions::AlignedRows)>; 2],
    ) -> Result<Pipeline<'p>, TensorError> {
        let mut builder = Builder::new();
        let b = &mut builder;
        let params = b.params(gemm, plan.sums_of_result(gemm), copied);
        let [m, n, k] = plan.tile;
        let tiles = [(gemm.m + m - 1) / m, (gemm.n + n - 1) / n];
        let total = plan.tiles(gemm);
        let grid = plan.grid(gemm);
        let ring = b.array("tiles", gemm.operand, i64::from(plan.stages) * (m + n) * k, Space::Shared, 1024);
        let is_tma = plan.store != TileStore::Direct;
        let staged = i64::from(plan.consumers) * plan.staged(gemm.output);
        let staging = is_tma.then(|| b.array("c_tile", gemm.output, staged, Space::Shared, 1024));
        let full = b.array("full", DType::U64, plan.stages.into(), Space::Shared, 8);
        let empty = b.array("empty", DType::U64, plan.stages.into(), Space::Shared, 8);
        let order = plan.ping_pong.then(|| b.array("order", DType::U64, 2, Space::Shared, 8));
        let space = Builder::space_of_sums(gemm);
        let memory = (!plan.op.holds_sums()).then(|| Sums::of(b, gemm, plan));
        // From tensor memory they are loaded some columns at a time.
        let held = if memory.is_some() { 4 * tensor_memory::EIGHTS } else { plan.sums() };
        let sums = b.array("sums", gemm.accumulator(), held, space, 16);
        let [share_b, share_a] = plan.cluster.map(i64::from);
        let map = |array, dims: [i64; 2], tile: [i64; 2]| {
            TensorMap::matrix(array, dims.map(|d| d as u64), tile.map(|t| t as u32))
        };
        let gathered = |side, own| wgmma_conditions::boxes(gemm, side, [own, k]).transpose();
        let places = wgmma_conditions::places(gemm, [m, n], plan.op).filter(|_| is_tma).transpose()?;
        let (gathered_a, gathered_b) = (gathered(Factor::A, m)?, gathered(Factor::B, n)?);
        let [a_across, b_across] = [Factor::A, Factor::B].map(|side| wgmma_conditions::across(gemm, side));
        // The products' rows follow each other.
        let spans = [(a_across, m), (b_across, n)].map(|(across, tile)| match across {
            true => wgmma_conditions::box_columns(tile),
            false => wgmma_conditions::tile_k(gemm.operand, 1),
        });
        let side =
            |array, gathered: &Option<Boxes>, across: bool, extent: i64, (tile, span): (i64, i64), sharing: i64| {
                let one = [span, if across { k } else { tile } / sharing];
                match (gathered, across) {
                    (Some(boxes), _) => TensorMap::of_boxes(array, boxes, one.map(|t| t as u32)),
                    (None, true) => map(array, [extent, gemm.batch * gemm.k], one),
                    (None, false) => map(array, [gemm.k, gemm.batch * extent], one),
                }
            };
        let mut maps = vec![
            side(params.a, &gathered_a, a_across, gemm.m, (m, spans[0]), share_a),
            side(params.b, &gathered_b, b_across, gemm.n, (n, spans[1]), share_b),
        ];
        for (map, (_, copy)) in maps.iter_mut().zip(copied).filter_map(|(map, copy)| Some((map, copy?))) {
            map.strides = vec![copy.pitch as u64];
        }
        if is_tma && !wgmma_conditions::by_rows(gemm) {
            let line = wgmma_conditions::box_line(gemm.output);
            maps.push(match (&places, gemm.c_transposed) {
                (Some(boxes), _) => TensorMap::of_boxes(params.out, boxes, [line, plan.op.rows()].map(|t| t as u32)),
                (None, false) => map(params.out, [gemm.n, gemm.batch * gemm.m], [line, plan.op.rows()]),
                (None, true) => map(params.out, [gemm.m, gemm.batch * gemm.n], [line, n]),
            });
        }
        // Numbers in a cluster run along n first: A's sharers are neighbours.
        let rank = rem(Index::BlockIdx(Dim::X), plan.cluster_size().into());
        let (row, column) = (div(rank.clone(), share_a), rem(rank, share_a));
        let shift = |bits: i64, by: Index| Index::Shl(Box::new(c(bits)), Box::new(by));
        let neighbours = shift((1 << share_a) - 1, mul(row.clone(), share_a));
        let stacked = shift((0..share_b).map(|i| 1 << (i * share_a)).sum(), column.clone());
        Ok(Pipeline {
            gemm,
            plan,
            params,
            maps,
            sides: [
                Side {
                    offset: 0,
                    across: a_across,
                    span: spans[0],
                    extent: m,
                    rows_of_product: if a_across { gemm.k } else { gemm.m },
                    gathered: gathered_a,
                    sharing: share_a,
                    member: column,
                    mask: neighbours,
                },
                Side {
                    offset: m * k,
                    across: b_across,
                    span: spans[1],
                    extent: n,
                    rows_of_product: if b_across { gemm.k } else { gemm.n },
                    gathered: gathered_b,
                    sharing: share_b,
                    member: row,
                    mask: stacked,
                },
            ],
            ring,
            staging,
            places,
            full,
            empty,
            order,
            sums,
            memory,
            op: Wgmma {
                n: n as u32,
                operand: gemm.operand,
                f16_sums: gemm.f16_sums,
                a_held: false,
                a_transposed: a_across,
                b_transposed: b_across,
            },
            tiles,
            grid,
            total,
            steps: (gemm.k + k * plan.split_k - 1) / (k * plan.split_k),
            builder,
        })
    }

    fn kernel(mut self) -> (Kernel, Vec<Operand>) {
        let (gemm, plan) = (self.gemm, self.plan);
        let stages = i64::from(plan.stages);
        let (full, empty) = (self.full, self.empty);
        let maps = 0..self.maps.len() as u32;
        let mut make: Vec<Stmt> = maps.map(|map| Stmt::Group(GroupOp::PrefetchMap { map })).collect();
        make.extend(self.builder.repeat("stage", (0, stages), Unroll::Full, |_, s| {
            let consumers = if plan.ping_pong { 1 } else { plan.consumers };
            [(full, 1), (empty, plan.cluster_size() * consumers * plan.arrivals())]
                .map(|(array, arrivals)| Stmt::Group(GroupOp::BarrierInit { barrier: (array, s.clone()), arrivals }))
                .to_vec()
        }));
        for (array, i) in self.order.iter().flat_map(|array| [(*array, 0), (*array, 1)]) {
            make.push(Stmt::Group(GroupOp::BarrierInit { barrier: (array, c(i)), arrivals: 1 }));
        }
        make.extend(self.memory.iter().flat_map(Sums::barriers));
        make.push(Stmt::Group(GroupOp::FenceBarrierInit));
        let mut body = guarded(Cond::Eq(thread(), c(0)), make);
        body.extend(self.memory.iter().flat_map(Sums::allocate));
        // In a cluster nobody reaches another's barriers before they are made.
        let is_cluster = plan.cluster_size() > 1;
        let meet = Stmt::Group(GroupOp::ClusterBarrier);
        body.push(if is_cluster { meet.clone() } else { Stmt::Barrier });
        body.extend(self.memory.iter().flat_map(Sums::find));
        let registers = plan.registers(self.gemm);
        let producer = Role {
            name: "producer".into(),
            first_warp: 0,
            warps: 4,
            instances: 1,
            number: None,
            registers: registers.map(|r| r.0),
            body: self.producer(),
        };
        let number = self.builder.fresh();
        let consumer = Role {
            name: "consumer".into(),
            first_warp: 4,
            warps: 4,
            instances: plan.consumers,
            number: (plan.consumers > 1).then_some(number),
            registers: registers.map(|r| r.1),
            // The only one is number 0: that its descriptors are constants, the compiler does not see by itself.
            body: self.consumer(&if plan.consumers > 1 { Index::Var(number) } else { c(0) }),
        };
        let mut roles = vec![producer, consumer];
        if is_cluster || self.memory.is_some() {
            // Nobody leaves whose barriers another may still arrive at, or frees what others read.
            roles.iter_mut().for_each(|role| role.body.push(meet.clone()));
        }
        roles[0].body.extend(self.memory.iter().flat_map(Sums::free));
        body.push(Stmt::Roles(roles));
        let (name, notes) = title(gemm, plan.partial(), plan.describe());
        let kernel = Kernel {
            name,
            notes,
            arrays: self.builder.arrays,
            grid: [self.grid as u32, 1, 1],
            block: [plan.threads(), 1, 1],
            shared_bytes: self.builder.shared_bytes,
            min_blocks_per_sm: Some(1),
            cluster: plan.cluster_size(),
            tensor_maps: self.maps,
            body,
        };
        (kernel, self.params.operands)
    }

    /// The code for each of the block's tiles; of a consumer that takes every other one, for those.
    fn for_each_tile(
        &mut self,
        consumer: Option<&Index>,
        code: impl FnOnce(&mut Self, &Work) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        if let Some(stream) = self.plan.dealt(self.gemm) {
            return self.for_each_piece(&stream, consumer.is_some(), code);
        }
        let total = self.total;
        let (grid, raster) = (self.grid, self.plan.raster);
        let cluster = self.plan.cluster.map(i64::from);
        let size = cluster[0] * cluster[1];
        // Clusters walk over the tiles: of what follows, all is counted in clusters.
        let (total, grid) = (total / size, grid / size);
        let tiles = [self.tiles[0] / cluster[0], self.tiles[1] / cluster[1]];
        let block = div(Index::BlockIdx(Dim::X), size);
        let every_other = consumer.filter(|_| self.plan.ping_pong);
        let var = self.builder.fresh();
        let is_loop = total > grid || every_other.is_some();
        let own_turn = if is_loop { Index::Var(var) } else { c(0) };
        let turn = every_other.map_or(own_turn.clone(), |n| add(mul(own_turn.clone(), 2), n.clone()));
        let number = add(block.clone(), mul(turn.clone(), grid));
        let mut body = Vec::new();
        let number = self.builder.bind(&mut body, "tile", number);
        let per_part = self.gemm.batch * tiles[0] * tiles[1];
        let (part, number) = match self.plan.split_k {
            1 => (c(0), number),
            _ => (div(number.clone(), per_part), rem(number, per_part)),
        };
        let part = self.builder.bind(&mut body, "part", part);
        let (batch, number) = product(self.gemm, number, tiles[0] * tiles[1]);
        let batch = self.builder.bind(&mut body, "product", batch);
        let along = cluster[usize::from(raster.columns)];
        let raster = Raster { group: (raster.group + along - 1) / along, ..raster };
        let (row, column) = place(&number, tiles[0], tiles[1], raster);
        // The block's place in its cluster.
        let row = add(mul(row, cluster[0]), self.sides[1].member.clone());
        let column = add(mul(column, cluster[1]), self.sides[0].member.clone());
        let m0 = self.builder.bind(&mut body, "m_tile", mul(row, self.plan.tile[0]));
        let n0 = self.builder.bind(&mut body, "n_tile", mul(column, self.plan.tile[1]));
        body.extend(code(self, &Work { m0, n0, part, batch, turn, own_turn, piece: None }));
        if !is_loop {
            return body;
        }
        let left = Index::Sub(Box::new(c(total + grid - 1)), Box::new(block));
        let count = div(left, grid);
        let extent = match every_other {
            Some(number) => div(Index::Sub(Box::new(add(count, c(1))), Box::new(number.clone())), 2),
            None => count,
        };
        vec![Stmt::For { var, name: "turn".into(), start: c(0), extent, unroll: Unroll::No, body }]
    }

    /// The code for each step along k; where they are the tile's, unrolled by the ring.
    pub(super) fn for_each_step(&mut self, work: &Work, code: impl Fn(&mut Self, &Step) -> Vec<Stmt>) -> Vec<Stmt> {
        if let Some(piece) = &work.piece {
            return self.for_each_step_of(piece, code);
        }
        let (stages, k, turn) = (i64::from(self.plan.stages), self.plan.tile[2], &work.turn);
        let (rounds, rest) = (self.steps / stages, self.steps % stages);
        let uses = |stage: i64| rounds + i64::from(stage < rest);
        let parity = |stage: i64, round: &Index| rem(add(mul(turn.clone(), uses(stage) % 2), round.clone()), 2);
        let step = |stage: i64, round: &Index| Step {
            stage: c(stage),
            parity: parity(stage, round),
            at_k: add(mul(round.clone(), stages * k), c(stage * k)),
            before: match (stage, round) {
                (0, Index::Const(0)) => None,
                (0, Index::Var(_)) => Some((c(stages - 1), Cond::Lt(c(0), round.clone()))),
                _ => Some((c((stage + stages - 1) % stages), Cond::True)),
            },
        };
        let var = self.builder.fresh();
        let round = if rounds == 1 { c(0) } else { Index::Var(var) };
        let mut body: Vec<Stmt> = Vec::new();
        if rounds > 0 {
            for stage in 0..stages {
                body.extend(code(self, &step(stage, &round)));
            }
        }
        if rounds > 1 {
            let (name, extent) = ("round".into(), c(rounds));
            body = vec![Stmt::For { var, name, start: c(0), extent, unroll: Unroll::No, body }];
        }
        for stage in 0..rest {
            body.extend(code(self, &step(stage, &c(rounds))));
        }
        body
    }

    fn producer(&mut self) -> Vec<Stmt> {
        let [m, n, k] = self.plan.tile;
        let body = self.for_each_tile(None, |this, work| {
            let first_k = if work.piece.is_some() { c(0) } else { mul(work.part.clone(), this.steps * k) };
            this.for_each_step(work, |this, at| {
                let barrier = (this.full, at.stage.clone());
                let bytes = ((m + n) * k * i64::from(this.gemm.operand.bytes())) as u32;
                let free = GroupOp::WaitPhase {
                    barrier: (this.empty, at.stage.clone()),
                    parity: crate::lower::index::xor(at.parity.clone(), c(1)),
                };
                let mut list = vec![free, GroupOp::ArriveExpect { barrier: barrier.clone(), bytes }];
                let at_k = add(first_k.clone(), at.at_k.clone());
                let stage = mul(at.stage.clone(), (m + n) * k);
                for (map, (side, first)) in this.sides.iter().zip([&work.m0, &work.n0]).enumerate() {
                    for piece in side.boxes(k) {
                        let across = add(first.clone(), piece.across);
                        let along = add(at_k.clone(), piece.along);
                        let own = [Factor::A, Factor::B][map];
                        let (at, offsets) = match (&side.gathered, this.gemm.gathered(own)) {
                            (Some(boxes), Some(factor)) => gathered::box_at(
                                (factor, boxes),
                                (own.spatial(), across),
                                &work.batch,
                                (Axis::K, along),
                            ),
                            _ => {
                                let (x, y) = if side.across { (across, along) } else { (along, across) };
                                (vec![x, add(mul(work.batch.clone(), side.rows_of_product), y)], Vec::new())
                            }
                        };
                        list.push(GroupOp::LoadTile {
                            dst: this.ring,
                            dst_index: add(stage.clone(), piece.element),
                            map: map as u32,
                            at,
                            offsets,
                            barrier: barrier.clone(),
                            multicast: (side.sharing > 1).then(|| side.mask.clone()),
                        });
                    }
                }
                list.into_iter().map(Stmt::Group).collect()
            })
        });
        guarded(Cond::Eq(thread(), c(0)), body)
    }

    /// Blocks of an instruction's rows of a consumer.
    pub(super) fn blocks(&self) -> i64 {
        self.plan.row_blocks()
    }

    /// A consumer's first row within the tile, in blocks of an instruction's.
    pub(super) fn first_block(&self, consumer: &Index) -> Index {
        if self.plan.ping_pong {
            c(0)
        } else {
            mul(consumer.clone(), self.blocks())
        }
    }

    /// The operands of an instruction: of a step along k, and a block of rows, of a consumer.
    pub(super) fn operands(&self, number: &Index, stage: &Index, (step, block): (i64, i64)) -> [Descriptor; 2] {
        let [m, n, k] = self.plan.tile;
        let stage = mul(stage.clone(), (m + n) * k);
        [0, 1].map(|i| {
            let side = &self.sides[i];
            let constant = side.at_k(step * i64::from(self.op.k()));
            let row_block = self.plan.op.rows() * side.row(k);
            let (own, constant) = match i {
                0 => (mul(self.first_block(number), row_block), constant + block * row_block),
                _ => (c(0), constant),
            };
            let leading = if side.across { (side.span * k * 2) as u32 } else { 16 };
            let span = (side.span * i64::from(self.gemm.operand.bytes())) as u32;
            Descriptor {
                of: self.plan.op,
                array: self.ring,
                index: add(add(own, stage.clone()), c(constant)),
                leading,
                stride: 8 * span,
                span,
            }
        })
    }

    fn consumer(&mut self, number: &Index) -> Vec<Stmt> {
        let [_, n, k] = self.plan.tile;
        let (stages, blocks) = (i64::from(self.plan.stages), self.blocks());
        let (by_rows, eager) = (self.plan.by_rows, self.plan.eager_release);
        let op = self.op;
        let mut head = Vec::new();
        let member = self.builder.bind(&mut head, "member", rem(thread(), GROUP));
        let first = Cond::Eq(member.clone(), c(0));
        let sums = self.sums;
        let release = {
            let empty = self.empty;
            let speaker = if self.plan.arrive_per_warp {
                self.builder.bind(&mut head, "lane", rem(member.clone(), 32))
            } else {
                member.clone()
            };
            let size = i64::from(self.plan.cluster_size());
            move |stage: Index, also: Cond| {
                let barrier = (empty, stage);
                let (who, arrive) = match size {
                    1 => (Cond::Eq(speaker.clone(), c(0)), GroupOp::Arrive { barrier }),
                    // A thread for each block, whose number is no variable: the address is then the same all the time.
                    _ => (
                        less(true, &speaker, size),
                        GroupOp::ArriveRemote { barrier, rank: rem(rem(thread(), GROUP), size) },
                    ),
                };
                guarded(both(who, also), vec![Stmt::Group(arrive)])
            }
        };
        let body = self.for_each_tile(Some(number), |this, work| {
            if let Some(memory) = this.memory.clone() {
                return this.consume(&memory, number, &member, work);
            }
            let mut list = this.builder.cleared(sums, blocks * n / 2);
            let registers = this.gemm.sum_registers(blocks * n / 2) as u32;
            list.push(Stmt::Group(GroupOp::MatrixKeep { array: sums, count: registers }));
            if let Some(order) = this.order {
                // The first consumer begins; then each when the other has issued its last instruction.
                let parity = rem(add(add(work.own_turn.clone(), number.clone()), c(1)), 2);
                list.push(Stmt::Group(GroupOp::WaitPhase { barrier: (order, number.clone()), parity }));
            }
            list.extend(this.for_each_step(work, |this, at| {
                let (barrier, parity) = ((this.full, at.stage.clone()), at.parity.clone());
                let mut list = vec![GroupOp::WaitPhase { barrier, parity }, GroupOp::MatrixFence];
                let steps = k / i64::from(op.k());
                for number_of in 0..steps * blocks {
                    let (step, block) = match by_rows {
                        true => (number_of % steps, number_of / steps),
                        false => (number_of / blocks, number_of % blocks),
                    };
                    let [a, b] = this.operands(number, &at.stage, (step, block));
                    list.push(GroupOp::Matrix { op, d: (sums, c(block * n / 2)), a: Left::Shared(a), b });
                }
                list.extend([GroupOp::MatrixCommit, GroupOp::MatrixWait(u32::from(!eager))]);
                let mut list: Vec<Stmt> = list.into_iter().map(Stmt::Group).collect();
                if eager {
                    list.extend(release(at.stage.clone(), Cond::True));
                } else if let Some((stage, exists)) = &at.before {
                    // The step before has been read.
                    list.extend(release(stage.clone(), exists.clone()));
                }
                list
            }));
            if let Some(order) = this.order {
                let other = crate::lower::index::xor(number.clone(), c(1));
                let arrive = Stmt::Group(GroupOp::Arrive { barrier: (order, other) });
                list.extend(guarded(first.clone(), vec![arrive]));
            }
            list.push(Stmt::Group(GroupOp::MatrixWait(0)));
            if !eager {
                let last = match &work.piece {
                    None => c((this.steps - 1) % stages),
                    Some(piece) => {
                        let done = add(piece.done.clone(), piece.extent.clone());
                        rem(Index::Sub(Box::new(done), Box::new(c(1))), stages)
                    }
                };
                list.extend(release(last, Cond::True));
            }
            list.extend(this.store(number, &member, work));
            list
        });
        head.extend(body);
        if self.staging.is_some() && !wgmma_conditions::by_rows(self.gemm) {
            let wait = Stmt::Group(GroupOp::StoreWait { latest: 0, read: false });
            head.extend(guarded(first, vec![wait]));
        }
        head
    }
}
