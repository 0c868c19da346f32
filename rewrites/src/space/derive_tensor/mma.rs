//! The trace of a plan on `mma.sync`.
use super::common::{fragment, shared, Product, Writer, SIDES};
use super::error::Untraced;
use crate::intrinsics::{fragment as places, mma_sync};
use crate::keys;
use crate::space::gather::GatherWriter;
use crate::space::writer::{var, TraceWriter};
use crate::trace::Trace;
use satune_ir::term::tensor::{mma_conditions, CopyOrder, Fragment, OperandPlan, Store, TensorPlan, TileLayout, Turn};
use satune_ir::term::{Axis, Side};
use satune_ir::DType;
use serde_json::{json, Value};

/// Makes the trace.
pub(super) fn trace(plan: &TensorPlan, product: &Product) -> Result<[Trace; 3], Untraced> {
    plan.check(&product.gemm)?;
    let mut writer = MmaWriter { plan, base: Writer::new(product, plan.tile, plan.split_k) };
    match plan.instruction.wmma() {
        Some(op) => writer.write_wmma(op),
        None => writer.write(),
    }
    Ok(writer.base.in_parts())
}

/// The trace of a plan of warps that multiply, whatever the instruction; what is `wmma`'s alone stands in a file of its own.
pub(super) struct MmaWriter<'a> {
    pub(super) plan: &'a TensorPlan,
    pub(super) base: Writer<'a>,
}

impl MmaWriter<'_> {
    fn write(&mut self) {
        let main = self.base.begin();
        self.base.cache_sums(main, "warp");
        if self.plan.store != Store::Direct {
            self.base.cache_tile();
        }
        for side in SIDES {
            self.base.cache_operand(main, side);
        }
        for side in SIDES {
            self.base.cache_read(self.base.contraction, main, side, "warp", fragment(side));
        }
        self.base.inlined(self.base.contraction);
        self.nest();
        self.place_operands();
        // Last: where tiles lie over the edge, what reads the result is no longer known to have all of it.
        self.base.call("reverse_compute_at", [var("c_fragment"), var("warp_fused"), json!(true)]);
        if self.plan.store != Store::Direct {
            self.base.call("reverse_compute_at", [var("c_shared"), var("block_fused"), json!(true)]);
        }
        for side in SIDES {
            self.fill(side);
            self.layout(side);
        }
        self.ring();
        if self.plan.instruction.is_async() {
            self.base.call("annotate", [var("k_tile"), json!(keys::PIPELINE_ASYNC), json!([0])]);
        }
        self.fragments(main);
        if self.plan.store != Store::Direct {
            self.store_tile();
        }
        self.base.finish();
        let op = self.plan.instruction;
        self.base.loops_are_done();
        self.base.instructions(main, "m_row", (mma_sync::fill_name(op), mma_sync::name(op)));
    }

    /// Warps along m and n.
    fn warps(&self) -> [i64; 2] {
        let (tile, warp) = (self.plan.tile, self.plan.warp);
        [tile[0] / warp[0], tile[1] / warp[1]]
    }

    /// Warps of a block, and threads of one.
    fn threads(&self) -> [i64; 2] {
        [self.warps().iter().product(), 32]
    }

    /// The loops: blocks, warps, tiles and steps along k, instructions.
    pub(super) fn nest(&mut self) {
        let plan = self.plan;
        let [warps_m, warps_n] = self.warps();
        let k = i64::from(plan.instruction.k());
        let [m, n] = plan.instruction.block();
        self.base.begin_loops();
        let mut split = |axis: &str, factors: [i64; 3], names: [&str; 4]| {
            let factors = [vec![Value::Null], factors.map(Value::from).to_vec()].concat();
            self.base.split_into(var(axis), factors, &names.map(String::from));
        };
        split("l_m", [warps_m, plan.warp[0] / m, m], ["m_block", "m_warp", "m_instruction", "m_row"]);
        split("l_n", [warps_n, plan.warp[1] / n, n], ["n_block", "n_warp", "n_instruction", "n_column"]);
        let names = ["k_tile", "k_step", "k_lane"].map(String::from);
        let factors = vec![Value::Null, json!(plan.tile[2] / k), json!(k)];
        self.base.split_into(var("l_k"), factors, &names);
        let blocks = self.base.blocks(plan.raster);
        let warps = if plan.warps_m_outer { ["m_warp", "n_warp"] } else { ["n_warp", "m_warp"] };
        let warps = warps.map(String::from);
        let mut instructions = ["m_instruction", "n_instruction"];
        if plan.order.columns {
            instructions.reverse();
        }
        let inner = [&["k_tile", "k_step"][..], &instructions[..], &["m_row", "n_column", "k_lane"][..]].concat();
        let all = [blocks.clone(), warps.to_vec(), inner.into_iter().map(String::from).collect()].concat();
        let base = &mut self.base;
        base.call("reorder", all.iter().map(|l| var(l)));
        base.fuse_into(&blocks, "block_fused");
        base.fuse_into(&warps, "warp_fused");
        base.call("bind", [var("block_fused"), json!("blockIdx.x")]);
        base.call("bind", [var("warp_fused"), json!("threadIdx.y")]);
        base.annotate_raster(plan.raster);
        base.note("block_fused", keys::MIN_BLOCKS, plan.min_blocks.map_or(0, i64::from));
        base.note(instructions[0], keys::SERPENTINE, plan.order.serpentine.into());
        base.note(instructions[0], keys::PAIRS, plan.order.pairs.into());
        base.note("k_step", keys::DESCENDING, plan.order.descending.into());
    }

    /// The copies of operands go to their loops.
    pub(super) fn place_operands(&mut self) {
        for (names, at) in [(SIDES.map(fragment), "k_step"), (SIDES.map(shared), "k_tile")] {
            for block in names {
                self.base.call("compute_at", [var(block), var(at), json!(true)]);
            }
        }
    }

    pub(super) fn operand(&self, side: Side) -> &OperandPlan {
        match side {
            Side::A => &self.plan.operands[0],
            Side::B => &self.plan.operands[1],
        }
    }

    /// The copies of an operand's tile: which thread copies what, and whether it waits in registers on its way.
    pub(super) fn fill(&mut self, side: Side) {
        let plan = *self.operand(side);
        self.base.fill(side, &plan, self.threads());
        self.base.note(shared(side), keys::PREFETCH, plan.prefetch.into());
        self.base.note(shared(side), keys::STEP, plan.step.into());
        if !self.plan.instruction.is_async() {
            self.base.call("annotate", [var(shared(side)), json!(keys::LOCAL_STAGE), json!(1)]);
        }
    }

    /// Where an operand's tile has its elements.
    pub(super) fn layout(&mut self, side: Side) {
        let (plan, gemm) = (*self.operand(side), self.base.gemm);
        let k_rows = mma_conditions::rows_along_k(gemm, side);
        let extent = if side == Side::A { self.plan.tile[0] } else { self.plan.tile[1] };
        let (_, columns) = mma_conditions::tile_rows(gemm, side, extent, self.plan.tile[2]);
        let turn = Turn::of(self.plan.instruction, k_rows);
        self.lay(shared(side), (plan.layout, turn), columns, gemm.operand);
    }

    /// transform_layout or storage_align of the tile that a block writes, whose rows have so many elements: where chunks of 16 bytes stand
    /// in its rows, and how far these are apart.
    fn lay(&mut self, block: &str, (layout, turn): (TileLayout, Turn), columns: i64, dtype: DType) {
        let chunk = 16 / i64::from(dtype.bytes());
        let span = layout.span(columns / chunk);
        if let Some(align) = layout.align(turn) {
            // Elsewhere rows that are long enough as they are do not count as padded.
            if self.plan.instruction.wmma().is_some() || layout.pitch(columns, dtype, turn) > columns {
                let [factor, rest] = align.map(|chunks| json!(chunks * chunk));
                self.base.call("storage_align", [var(block), json!(0), json!(-2), factor, rest]);
            }
            return;
        }
        let key = match turn {
            _ if !layout.moves(columns / chunk, turn) => return,
            Turn::Rows if span == 8 => "r".to_string(),
            Turn::Rows => format!("r // {}", 8 / span),
            Turn::Quads => "r % 4 * 2".to_string(),
            Turn::Bytes => "(r % 16 // 4 * 2 + r % 2)".to_string(),
        };
        let run = span * chunk;
        let place = match layout {
            TileLayout::Plain | TileLayout::Padded => return,
            TileLayout::Xor(_) => format!("(c // {chunk} ^ {key}) % {span}"),
            // Summands in the order that TVM's simplifier brings them into.
            TileLayout::Rotate(_) if turn == Turn::Bytes => {
                format!("(r % 16 // 4 * 2 + c // {chunk} + r % 2) % {span}")
            }
            TileLayout::Rotate(_) if turn == Turn::Quads => format!("({key} + c // {chunk}) % {span}"),
            TileLayout::Rotate(_) => format!("(c // {chunk} + {key}) % {span}"),
        };
        let batches = self.base.batches();
        let map = format!("lambda {batches}r, c: ({batches}r, c // {run} * {run} + {place} * {chunk} + c % {chunk})");
        let call = self.base.mapped("transform_layout", [var(block), json!(["write", 0])], map);
        call.kwargs.insert("assume_injective_transform".into(), json!(true));
    }

    /// The software pipelines: tiles of the ring, and sets of fragments.
    pub(super) fn ring(&mut self) {
        let plan = self.plan;
        let mut pipeline = |at: &str, stages: [i64; 3]| {
            self.base.call("annotate", [var(at), json!(keys::PIPELINE_STAGE), json!(stages)]);
            self.base.call("annotate", [var(at), json!(keys::PIPELINE_ORDER), json!([0, 1, 2])]);
        };
        pipeline("k_tile", [0, 0, i64::from(plan.stages) - 1]);
        let sets = mma_conditions::sets(&plan.operands);
        if sets != [1, 1] {
            let [a, b] = sets.map(|s| 2 - i64::from(s));
            pipeline("k_step", [a, b, 1]);
        }
        self.base.note("k_tile", keys::SLACK, plan.slack.into());
        self.base.note("k_tile", keys::ROLLED, plan.rolled.into());
    }

    /// transform_layout of fragments and sums: the lanes and registers that the instruction has them in.
    fn fragments(&mut self, main: &str) {
        let op = self.plan.instruction;
        for side in SIDES {
            let dims = &self.base.contraction.operand(side).dims;
            let names: Vec<String> = dims.iter().map(Axis::to_string).collect();
            let [lane, register] = match side {
                Side::A => places::held(op, Fragment::A, ["m", "k"], false),
                Side::B => places::held(op, Fragment::B, ["k", "n"], false),
            };
            let tile = if side == Side::A { "m // 16" } else { "n // 8" };
            let batches = self.base.batches();
            let map = format!("lambda {}: ({batches}{tile}, k // {}, {lane}, {register})", names.join(", "), op.k());
            self.base.map(fragment(side), map);
            self.base.note(fragment(side), keys::LDMATRIX, self.operand(side).matrices.into());
        }
        self.base.sums_in_registers(main);
    }

    /// The copies of C's tile from shared memory.
    fn store_tile(&mut self) {
        let width = 16 / i64::from(self.base.gemm.output.bytes());
        self.base.copies("c_shared", self.threads(), (CopyOrder::Rows, false), width);
        let (gemm, [m, n, _]) = (self.base.gemm, self.plan.tile);
        let columns = if gemm.c_transposed { m } else { n };
        self.lay("c_fragment", (mma_conditions::staged_layout(columns), Turn::Rows), columns, gemm.output);
        let by_stmatrix = self.plan.store == Store::Shared { stmatrix: true };
        self.base.note("c_fragment", keys::STMATRIX, by_stmatrix.into());
    }
}
