//! From the scheduled program to the plan on tensor cores that it is a program of.
//!
//! Extents, bindings, scopes, intrinsics, layouts and annotations say what the plan is. Whether they say all of it is
//! then seen by making the plan's own program: where it differs, the program holds something that no plan has, and is
//! refused.
mod copies;

use super::{key, tensor_trace};
use crate::intrinsics::group::Group;
use crate::intrinsics::{self, mma_sync, wmma};
use crate::keys;
use crate::replay::replay;
use crate::schedule::Schedule as Scheduled;
use crate::space::unread::{wrong, Read};
use crate::tree;
use satune_ir::affine::constant;
use satune_ir::affine::value_of;
use satune_ir::term::tensor::{Gemm, Mma, OperandPlan, Order, Raster, Store, TensorPlan, TileStore, WgmmaPlan};
use satune_ir::term::{Contraction, Schedule, Side};
use satune_ir::{
    structural, visit, Annotations, Block, BlockRealize, BufferId, Expr, For, ForKind, IterKind, IterVar, Program,
    Stmt, VarId,
};
use std::collections::BTreeSet;

/// Reads the plan of a scheduled program on tensor cores; `source` is what was scheduled, and `contraction` what that is.
///
/// # Errors
/// What in the program is not as any plan has it, and where.
pub fn read_tensor(program: &Program, source: &Program, contraction: &Contraction) -> Read<Schedule> {
    let gemm = Gemm::of(contraction).or_else(|e| wrong("source program", e.to_string()))?;
    let scheduled = Scheduled::new(program.clone()).or_else(|e| wrong("program", e.detail.clone()))?;
    let reader = Reader { program, scheduled: &scheduled, contraction, gemm: &gemm };
    reader.known_annotations()?;
    let plan = reader.plan()?;
    let trace = tensor_trace(&plan, contraction).or_else(|e| wrong("plan", e.to_string()))?;
    let (results, made) = replay(source, &trace.calls).or_else(|e| wrong("source program", e.detail.clone()))?;
    if let Some((call, e)) = trace.calls.iter().zip(results).find_map(|(c, r)| Some((c, r.err()?))) {
        return wrong(&call.op, e.detail.clone());
    }
    match structural::equal(&compared(program), &compared(made.program())) {
        Ok(()) => Ok(plan),
        Err(difference) => wrong(
            "program",
            format!("its loops and annotations are not those of any plan; beside the plan nearest to it: {difference}"),
        ),
    }
}

/// A program less what says how its kernel may be written.
fn compared(program: &Program) -> Program {
    let mut out = keys::by_present_names(program);
    visit::walk_stmt_mut(&mut out.body.block.body, &mut |s| {
        let annotations = match s {
            Stmt::For(l) => &mut l.annotations,
            Stmt::Realize(r) => &mut r.block.annotations,
            _ => return,
        };
        annotations.retain(|key, _| !keys::HINTS.contains(&key.as_str()));
    });
    out
}

/// Whether a program has a block that is an instruction of tensor cores which plans know.
pub fn on_tensor_cores(program: &Program) -> bool {
    tree::all_realizes(&program.body.block.body).iter().any(|r| operation(program, r).is_some())
}

/// What a tensorized block does.
#[derive(Clone, Copy)]
enum Op {
    Mma(Mma),
    /// `wgmma` or `tcgen05`.
    Group(Group),
}

/// The instruction that a block is, and the buffers that it accesses.
fn operation(program: &Program, realize: &BlockRealize) -> Option<(Op, [BufferId; 3])> {
    let (intrinsic, buffers) = intrinsics::of_block(program, &realize.block)?;
    let mma = Mma::SYNC.into_iter().find(|op| mma_sync::name(*op) == intrinsic.name);
    let mma = mma.or_else(|| wmma::named(&intrinsic.name).map(Mma::Wmma)).map(Op::Mma);
    let op = mma.or_else(|| Group::named(&intrinsic.name).filter(|group| !group.held).map(Op::Group))?;
    Some((op, buffers.try_into().ok()?))
}

struct Reader<'p> {
    program: &'p Program,
    scheduled: &'p Scheduled,
    contraction: &'p Contraction,
    gemm: &'p Gemm,
}

/// A block that is an instruction, with what that reads and writes.
struct Instruction<'p> {
    op: Op,
    realize: &'p BlockRealize,
    /// A and B in fragments or shared memory, and the sums.
    buffers: [BufferId; 3],
}

/// Loops of a block on tensor cores, each in its place.
struct Nest<'p> {
    block: &'p For,
    /// Warps, or groups of four.
    team: &'p For,
    /// Tiles along k.
    tile: &'p For,
    /// What a team does with a tile.
    inner: &'p [&'p For],
}

fn extent(l: &For) -> Read<i64> {
    constant(&l.extent).map_or_else(|| wrong(format!("loop `{}`", l.var.name), "its extent is no number"), Ok)
}

fn name_of(l: &For) -> String {
    format!("loop `{}`", l.var.name)
}

impl<'p> Reader<'p> {
    fn realizes(&self) -> Vec<&'p BlockRealize> {
        tree::all_realizes(&self.program.body.block.body)
    }

    /// What an annotation of ours says must be understood, wherever it stands.
    fn known_annotations(&self) -> Read<()> {
        let check = |place: String, all: &Annotations| match all.keys().find(|k| keys::unknown(k).is_some()) {
            Some(unknown) => wrong(place, format!("annotation `{unknown}` is not known")),
            None => Ok(()),
        };
        let mut result = Ok(());
        visit::walk_stmt(&self.program.body.block.body, &mut |s| {
            let here = match s {
                Stmt::For(l) => check(name_of(l), &l.annotations),
                Stmt::Realize(r) => check(format!("block `{}`", r.block.name), &r.block.annotations),
                _ => Ok(()),
            };
            if result.is_ok() {
                result = here;
            }
        });
        result
    }

    fn plan(&self) -> Read<Schedule> {
        let instruction = self.instruction()?;
        let loops = self.loops(instruction.realize)?;
        let nest = self.nest(&instruction, &loops)?;
        let gemm = &*self.gemm.oriented(self.takes_rows_of_b(&instruction)?);
        let oriented = Reader { gemm, ..*self };
        match instruction.op {
            Op::Mma(op) => oriented.mma(op, &instruction, &nest).map(Schedule::Mma),
            Op::Group(op) => oriented.group(op, &instruction, &nest).map(Schedule::Wgmma),
        }
    }

    /// Whether the instruction's A is a tile of the product's B: it multiplies for the transposed product.
    fn takes_rows_of_b(&self, instruction: &Instruction<'p>) -> Read<bool> {
        let mut buffer = instruction.buffers[0];
        // From one copy to the one before it; there are as many as buffers at most.
        for _ in &self.program.buffers {
            if self.program.params.contains(&buffer) {
                break;
            }
            let Some(source) = self.copy(buffer, true)?.block.reads.first() else { break };
            buffer = source.buffer;
        }
        match [&self.contraction.a, &self.contraction.b].map(|operand| operand.buffer == buffer) {
            [true, _] => Ok(false),
            [_, true] => Ok(true),
            _ => wrong(
                format!("block `{}`", instruction.realize.block.name),
                format!("its rows are copied from `{}`, no operand of the product", self.program.buffer(buffer).name),
            ),
        }
    }

    /// The block that multiplies.
    fn instruction(&self) -> Read<Instruction<'p>> {
        let mut found = self.realizes().into_iter().filter_map(|realize| {
            let (op, buffers) = operation(self.program, realize)?;
            Some(Instruction { op, realize, buffers })
        });
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => wrong(
                format!("block `{}`", self.contraction.block_name),
                "it is not tensorized with an instruction of mma.sync m16n8kK, wmma, wgmma m64nNkK or tcgen05 m128nNkK",
            ),
            (_, Some(second)) => {
                wrong(format!("block `{}`", second.realize.block.name), "a second block multiplies on tensor cores")
            }
        }
    }

    fn loops(&self, realize: &BlockRealize) -> Read<Vec<&'p For>> {
        let name = || format!("block `{}`", realize.block.name);
        let ids = self.scheduled.loops_of(realize.block.id).or_else(|e| wrong(name(), e.detail.clone()))?;
        self.scheduled.get_loops(&ids).or_else(|e| wrong(name(), e.detail.clone()))
    }

    fn nest<'l>(&self, instruction: &Instruction<'p>, loops: &'l [&'l For]) -> Read<Nest<'l>> {
        let place = format!("block `{}`", instruction.realize.block.name);
        let (team, inner) = match instruction.op {
            Op::Mma(_) => ("warps", "steps along k, and instructions along m and n"),
            Op::Group(..) => ("consumers", "steps along k, and blocks of rows"),
        };
        let [block, first, tile, inner @ ..] = loops else {
            return wrong(
                place,
                format!("it has {} loops; they are blocks, {team}, tiles along k, {inner}", loops.len()),
            );
        };
        let count = if matches!(instruction.op, Op::Mma(_)) { 3 } else { 2 };
        if inner.len() != count {
            return wrong(
                place,
                format!("it has {} loops; they are blocks, {team}, tiles along k, and {count} below them", loops.len()),
            );
        }
        for (l, tag) in [(block, "blockIdx.x"), (first, "threadIdx.y")] {
            if !matches!(&l.kind, ForKind::ThreadBinding(t) if t == tag) {
                return wrong(name_of(l), format!("it is not bound to {tag}"));
            }
        }
        for l in [tile].into_iter().chain(inner) {
            if l.kind != ForKind::Serial {
                return wrong(
                    name_of(l),
                    "loops along k and over instructions are serial; the kernel unrolls them itself",
                );
            }
        }
        Ok(Nest { block, team: first, tile, inner })
    }

    /// The value of an expression where variables have these values, and all others are 0.
    fn value(&self, e: &Expr, at: &[(VarId, i64)]) -> Read<i64> {
        let of = |id| Some(at.iter().find(|(v, _)| *v == id).map_or(0, |(_, n)| *n));
        value_of(e, &of).map_or_else(|| wrong("an index", "it is no number where its variables are"), Ok)
    }

    /// The binding of the iterator that a dimension of a view is; of the only tile of a buffer, which needs no iterator, where
    /// it begins.
    fn binding(&self, instruction: &Instruction<'p>, buffer: BufferId, from_end: usize) -> Read<&'p Expr> {
        let realize = instruction.realize;
        let region = realize.block.match_buffers.iter().find(|(_, r)| r.buffer == buffer).map(|(_, r)| r);
        let place = region.and_then(|r| r.ranges.len().checked_sub(from_end).and_then(|d| r.ranges.get(d)));
        let Some(place) = place else {
            return wrong(format!("block `{}`", realize.block.name), "it has no view of a tile of its buffers");
        };
        let names = |iv: &IterVar| visit::uses_var(&place.min, &|id| id == iv.var.id);
        let iterator = realize.block.iter_vars.iter().position(names);
        Ok(iterator.and_then(|i| realize.iter_values.get(i)).unwrap_or(&place.min))
    }

    /// Whether the second iteration of a loop is elsewhere than the first.
    fn moves(&self, l: &For, e: &Expr) -> Read<bool> {
        Ok(extent(l)? > 1 && self.value(e, &[(l.var.id, 1)])? != 0)
    }

    fn mma(&self, op: Mma, instruction: &Instruction<'p>, nest: &Nest<'_>) -> Read<TensorPlan> {
        let [a, b, c] = instruction.buffers;
        let &[step, first, second] = nest.inner else {
            return wrong(name_of(nest.tile), "it has no three loops below");
        };
        let lines = [first, second];
        // Sums are matrices in fragments of wmma, tiles in lanes and registers of mma.sync.
        let [from_m, from_n] = if op.wmma().is_some() { [2, 1] } else { [4, 3] };
        let (m, n) = (self.binding(instruction, c, from_m)?, self.binding(instruction, c, from_n)?);
        let columns = self.moves(lines[0], n)? || self.moves(lines[1], m)?;
        if !columns && extent(lines[1])? > 1 && !self.moves(lines[1], n)? {
            return wrong(name_of(lines[1]), "neither loop over a warp's instructions runs along n");
        }
        let [along_m, along_n] = if columns { [lines[1], lines[0]] } else { lines };
        let [rows_of_one, columns_of_one] = op.block();
        let warp = [rows_of_one * extent(along_m)?, columns_of_one * extent(along_n)?];
        let count = extent(nest.team)?;
        let mut places = [BTreeSet::new(), BTreeSet::new()];
        for w in 0..count.min(64) {
            for (set, e) in places.iter_mut().zip([m, n]) {
                set.insert(self.value(e, &[(nest.team.var.id, w)])?);
            }
        }
        let [warps_m, warps_n] = places.map(|set| set.len() as i64);
        let tile = [warp[0] * warps_m, warp[1] * warps_n, extent(step)? * i64::from(op.k())];
        let warps_m_outer = warps_m == 1 || warps_n == 1 || self.moves(nest.team, n)?;
        let order = {
            let (outer, all) = (name_of(lines[0]), &lines[0].annotations);
            let descending = key::flag(&name_of(step), &step.annotations, keys::DESCENDING)?;
            let (serpentine, pairs) = (key::flag(&outer, all, keys::SERPENTINE)?, key::flag(&outer, all, keys::PAIRS)?);
            Order { columns, serpentine, pairs, descending }
        };
        let (ring, of_ring) = (name_of(nest.tile), &nest.tile.annotations);
        let stages = self.stages(nest)?;
        let sets = match key::numbers(&name_of(step), &step.annotations, keys::PIPELINE_STAGE)?.as_deref() {
            Some([a, b, _]) => [a, b].map(|stage| if *stage == 0 { 2 } else { 1 }),
            _ => [1, 1],
        };
        let threads = 32 * count;
        let mut operands = [OperandPlan::default(); 2];
        for ((side, fragments), (plan, sets)) in
            [(Side::A, a), (Side::B, b)].into_iter().zip(operands.iter_mut().zip(sets))
        {
            *plan = OperandPlan { sets, ..self.operand(side, (op, tile, threads), fragments)? };
        }
        let (grid, of_grid) = (name_of(nest.block), &nest.block.annotations);
        let raster = self.raster(nest)?;
        let parts = self.parts(instruction, c)?;
        let min_blocks = Some(key::small(&grid, of_grid, keys::MIN_BLOCKS)?).filter(|b| *b > 0);
        Ok(TensorPlan {
            swapped: self.gemm.swapped,
            tile,
            warp,
            warps_m_outer,
            instruction: op,
            order,
            stages,
            slack: key::small(&ring, of_ring, keys::SLACK)?,
            rolled: key::flag(&ring, of_ring, keys::ROLLED)?,
            operands,
            raster,
            split_k: parts,
            store: self.store(c)?,
            min_blocks,
        })
    }

    /// Tiles in the ring.
    fn stages(&self, nest: &Nest<'_>) -> Read<u32> {
        let ring = name_of(nest.tile);
        let Some(&[_, _, last]) = key::numbers(&ring, &nest.tile.annotations, keys::PIPELINE_STAGE)?.as_deref() else {
            return wrong(
                ring,
                format!("annotation `{}` is not there for two copies and the rest", keys::PIPELINE_STAGE),
            );
        };
        u32::try_from(last.saturating_add(1)).or_else(|_| wrong(&ring, "a ring has 2 to 16 stages"))
    }

    fn raster(&self, nest: &Nest<'_>) -> Read<Raster> {
        let (grid, of_grid) = (name_of(nest.block), &nest.block.annotations);
        match [keys::RASTER_ROWS, keys::RASTER_COLUMNS].map(|k| key::number(&grid, of_grid, k)) {
            [Ok(group), Ok(0)] if group > 0 => Ok(Raster { columns: false, group }),
            [Ok(0), Ok(group)] if group > 0 => Ok(Raster { columns: true, group }),
            _ => {
                let keys = [keys::RASTER_ROWS, keys::RASTER_COLUMNS].join("` or `");
                wrong(grid, format!("the order of tiles is not named: annotate it with `{keys}`"))
            }
        }
    }

    fn group(&self, op: Group, instruction: &Instruction<'p>, nest: &Nest<'_>) -> Read<WgmmaPlan> {
        let [a, _, c] = instruction.buffers;
        let &[first, second] = nest.inner else { return wrong(name_of(nest.tile), "it has no two loops below") };
        let vars = instruction.realize.block.iter_vars.iter().zip(&instruction.realize.iter_values);
        let Some((_, k)) = vars.into_iter().find(|(iv, _)| iv.kind == IterKind::Reduce) else {
            return wrong(name_of(nest.tile), "it does not run along k");
        };
        let by_rows = !self.moves(first, k)?;
        let [step, rows] = if by_rows { [second, first] } else { [first, second] };
        let (grid, of_grid) = (name_of(nest.block), &nest.block.annotations);
        let together = extent(nest.team)?;
        let ping_pong = key::flag(&grid, of_grid, keys::PING_PONG)?;
        let consumers = u32::try_from(if ping_pong { 2 } else { together });
        let cluster = [key::small(&grid, of_grid, keys::CLUSTER_M)?, key::small(&grid, of_grid, keys::CLUSTER_N)?];
        let (ring, of_ring) = (name_of(nest.tile), &nest.tile.annotations);
        Ok(WgmmaPlan {
            op: op.op,
            swapped: self.gemm.swapped,
            tile: [op.op.rows() * extent(rows)? * together, op.n, extent(step)? * op.k()],
            by_threads: self.way_by_tma(&self.copy(a, true)?.block)? == 0,
            consumers: consumers.or_else(|_| wrong(name_of(nest.team), "there are 1 to 3 consumers"))?,
            ping_pong,
            stages: self.stages(nest)?,
            by_rows,
            eager_release: key::flag(&ring, of_ring, keys::EAGER_RELEASE)?,
            arrive_per_warp: key::flag(&ring, of_ring, keys::ARRIVE_PER_WARP)?,
            raster: self.raster(nest)?,
            blocks: Some(key::small(&grid, of_grid, keys::PERSISTENT)?).filter(|b| *b > 0),
            cluster: cluster.map(|c| c.max(1)),
            split_k: self.parts(instruction, c)?,
            stream_k: key::flag(&grid, of_grid, keys::STREAM_K)?,
            store: match self.store(c)? {
                Store::Direct => TileStore::Direct,
                Store::Shared { .. } => self.boxes(c)?,
            },
        })
    }

    /// How the TMA takes sums from shared memory.
    fn boxes(&self, sums: BufferId) -> Read<TileStore> {
        let Some(staged) = self.copy(sums, false)?.block.writes.first() else { return Ok(TileStore::Tma) };
        let sent = &self.copy(staged.buffer, false)?.block;
        Ok(if self.way_by_tma(sent)? == 2 { TileStore::Boxes } else { TileStore::Tma })
    }

    /// How the TMA makes a copy; 0 where threads do.
    fn way_by_tma(&self, copy: &Block) -> Read<i64> {
        key::number(&format!("block `{}`", copy.name), &copy.annotations, keys::TMA)
    }

    /// Parts of k: the first dimension of partial sums.
    fn parts(&self, instruction: &Instruction<'p>, sums: BufferId) -> Read<i64> {
        let shape = &self.program.buffer(sums).shape;
        let is_matrix = match instruction.op {
            Op::Mma(op) => op.wmma().is_some(),
            Op::Group(op) => !op.op.holds_sums(),
        };
        // Of one product, and one part of k.
        let own = if is_matrix { 2 } else { 4 };
        match shape.len().checked_sub(own + self.batches()) {
            Some(0) => Ok(1),
            Some(1) => constant(&shape[0]).map_or_else(|| wrong("partial sums", "their number is no number"), Ok),
            _ => wrong(
                format!("block `{}`", instruction.realize.block.name),
                format!(
                    "its sums have {} dimensions; they are parts of k and batches, where there are any, {}",
                    shape.len(),
                    if is_matrix { "rows and columns" } else { "tiles along m and n, lanes and registers" }
                ),
            ),
        }
    }

    /// Dimensions of matrices before their own two.
    fn batches(&self) -> usize {
        self.contraction.batch().count()
    }
}
