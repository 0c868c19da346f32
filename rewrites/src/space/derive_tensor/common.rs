//! What traces of plans on tensor cores share.
use crate::intrinsics::{self, fragment as places};
use crate::keys;
use crate::space::gather::{from_memory, GatherWriter};
use crate::space::writer::{from_end, var, Draft, TraceWriter};
use crate::trace::Trace;
use satune_ir::term::tensor::wgmma_conditions::AlignedRows;
use satune_ir::term::tensor::{mma_conditions, CopyOrder, Fragment, Gemm, Mma, OperandPlan, Raster};
use satune_ir::term::{Axis, Contraction, Side};
use serde_json::{json, Value};

pub(super) const SIDES: [Side; 2] = [Side::A, Side::B];

/// The names of the blocks that copy an operand's rows first.
const ALIGNED: [&str; 2] = ["a_aligned", "b_aligned"];

/// What is scheduled, as a plan sees it: swapped, it is the transposed product.
pub(super) struct Product {
    pub gemm: Gemm,
    /// The same with its axes in order: batches, m, n, k.
    pub contraction: Contraction,
    /// The axes as the block has them.
    axes: Vec<Axis>,
}

impl Product {
    pub fn of(gemm: &Gemm, contraction: &Contraction, swapped: bool) -> Product {
        let mut contraction = if swapped { contraction.transposed() } else { contraction.clone() };
        let in_order = |c: &Contraction| c.iters.iter().map(|(axis, _)| *axis).collect();
        let given = in_order(&contraction);
        contraction.iters.sort_by_key(|(axis, _)| match axis {
            Axis::Batch(i) => (0, *i),
            Axis::M => (1, 0),
            Axis::N => (2, 0),
            Axis::K => (3, 0),
            Axis::Outer(i) => (4, *i),
        });
        // The axes of gathered matrices are made in order.
        let axes = if contraction.gather.is_some() { in_order(&contraction) } else { given };
        Product { gemm: gemm.oriented(swapped).into_owned(), contraction, axes }
    }

    /// The map of the block's axes to those in order, where they are not.
    fn map(&self) -> Option<String> {
        let ordered: Vec<Axis> = self.contraction.iters.iter().map(|(axis, _)| *axis).collect();
        let list = |axes: &[Axis]| axes.iter().map(Axis::to_string).collect::<Vec<_>>().join(", ");
        (ordered != self.axes).then(|| format!("lambda {}: ({})", list(&self.axes), list(&ordered)))
    }
}

/// A trace in the making.
pub(super) struct Writer<'a> {
    product: &'a Product,
    pub gemm: &'a Gemm,
    pub contraction: &'a Contraction,
    /// Tile of a block.
    pub tile: [i64; 3],
    /// Parts of k.
    pub split_k: i64,
    /// Operands whose rows are copied first.
    pub aligned: [Option<AlignedRows>; 2],
    pub draft: Draft,
    /// Calls while the nests are whole, and until its reduction is taken apart.
    parts: [usize; 2],
}

impl TraceWriter for Writer<'_> {
    fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

/// The names of an operand's blocks: in shared memory, and in fragments.
pub(super) fn shared(side: Side) -> &'static str {
    match side {
        Side::A => "a_shared",
        Side::B => "b_shared",
    }
}

pub(super) fn fragment(side: Side) -> &'static str {
    match side {
        Side::A => "a_fragment",
        Side::B => "b_fragment",
    }
}

/// Tiles that cover an extent.
pub(super) fn covering(extent: i64, tile: i64) -> i64 {
    (extent + tile - 1) / tile
}

impl<'a> Writer<'a> {
    pub fn new(product: &'a Product, tile: [i64; 3], split_k: i64) -> Writer<'a> {
        let Product { gemm, contraction, .. } = product;
        let aligned = [None; 2];
        Writer { product, gemm, contraction, tile, split_k, aligned, draft: Draft::default(), parts: [0; 2] }
    }

    /// What follows takes the block's nest apart.
    pub fn begin_loops(&mut self) {
        self.parts = [self.draft.calls().len(); 2];
    }

    /// The calls until [`Writer::begin_loops`], those until [`Writer::instructions`], and those there.
    pub fn in_parts(self) -> [Trace; 3] {
        let [whole, loops] = self.parts;
        let mut calls = self.draft.finish().calls;
        let instructions = calls.split_off(loops);
        let loops = calls.split_off(whole);
        [calls, loops, instructions].map(|calls| Trace { calls })
    }

    /// The batch axes, each with a comma after it: what comes first in maps of matrices.
    pub fn batches(&self) -> String {
        self.contraction.batch().map(|(axis, _)| format!("{axis}, ")).collect()
    }

    /// What the extents along m, n and k are padded to multiples of, and whether that changes them. Every part of k has
    /// the same number of tiles.
    pub fn padding(&self) -> ([i64; 3], [bool; 3]) {
        let [m, n, k] = self.tile;
        let to = [m, n, k * self.split_k];
        let of = [self.gemm.m, self.gemm.n, self.gemm.k];
        (to, [0, 1, 2].map(|i| of[i] % to[i] != 0))
    }

    pub fn pads(&self, side: Side) -> bool {
        let (_, [m, n, k]) = self.padding();
        k || if side == Side::A { m } else { n }
    }

    pub fn pads_sums(&self) -> bool {
        let (_, [m, n, _]) = self.padding();
        m || n
    }

    /// The block that copies padded sums to where they belong.
    pub fn sums_copy(&self) -> String {
        format!("{}_pad", self.contraction.sums())
    }

    /// Whole tiles: pads the extents, where they are ragged; the axes in order; makes a block of the parts of k. Returns
    /// the name of the block that multiplies; its loops are those over batches, `l_m`, `l_n`, `l_k` and `k_part`.
    pub fn begin(&mut self) -> &'static str {
        self.named("get_sblock", [json!(self.contraction.block_name)], "block");
        self.made_a_product(self.contraction);
        self.align_rows();
        let (to, pads) = self.padding();
        if pads.contains(&true) {
            self.pad_einsum(&self.product.axes, to);
        }
        // After padding: TVM takes a reduction over one value for no reduction, which padding would then make a wrong one.
        if let Some(map) = self.product.map() {
            self.mapped("transform_block_layout", [var("block")], map);
        }
        let mut loops: Vec<String> = self.contraction.iters.iter().map(|(axis, _)| format!("l_{axis}")).collect();
        self.loops_of("block", &loops.clone());
        if self.split_k == 1 {
            return "block";
        }
        let names = ["k_part".to_string(), "l_k_rest".to_string()];
        self.split_into(var("l_k"), vec![json!(self.split_k), Value::Null], &names);
        self.named("rfactor", [var("k_part"), json!(0)], "partial");
        // The partial block has the same loops, with k split.
        let at = loops.iter().position(|l| l == "l_k").unwrap_or(loops.len() - 1);
        loops.splice(at..=at, ["k_part".to_string(), "l_k".to_string()]);
        self.loops_of("partial", &loops);
        "partial"
    }

    fn aligned_of(&self, side: Side) -> Option<AlignedRows> {
        self.aligned[usize::from(side == Side::B)]
    }

    /// Copies operands to rows that the instruction takes.
    fn align_rows(&mut self) {
        for (side, copy) in SIDES.into_iter().zip(ALIGNED) {
            let Some(rows) = self.aligned_of(side) else { continue };
            let operand = json!(self.contraction.operand(side).index);
            self.named("cache_read", [var("block"), operand, json!("global"), json!([var("block")])], copy);
            if rows.turned {
                let dims: Vec<String> = self.contraction.operand(side).dims.iter().map(Axis::to_string).collect();
                let mut turned = dims.clone();
                let last = turned.len() - 1;
                turned.swap(last - 1, last);
                self.map(copy, format!("lambda {}: ({})", dims.join(", "), turned.join(", ")));
            }
            if rows.pitch != rows.row {
                self.call("storage_align", [var(copy), json!(0), json!(-2), json!(rows.unit), json!(0)]);
            }
        }
    }

    /// The kernels of these copies, each thread so many elements. They come last: where threads do not divide the elements there are
    /// guards, under which it is not proved that all of the copy is written.
    pub fn spread_copies(&mut self) {
        for (side, copy) in SIDES.into_iter().zip(ALIGNED) {
            if self.aligned_of(side).is_none() {
                continue;
            }
            let names = |stems: &[&str]| stems.iter().map(|stem| format!("{copy}_{stem}")).collect::<Vec<_>>();
            let dims = self.contraction.operand(side).dims.len();
            let loops: Vec<String> = (0..dims).map(|d| format!("{copy}_{d}")).collect();
            self.loops_of(copy, &loops);
            let all = self.fuse_into(&loops, &format!("{copy}_elements"));
            let loops = names(&["block", "step", "thread"]);
            let factors = vec![Value::Null, json!(AlignedRows::STEPS), json!(AlignedRows::THREADS)];
            self.split_into(var(&all), factors, &loops);
            self.call("bind", [var(&loops[0]), json!("blockIdx.x")]);
            self.call("bind", [var(&loops[2]), json!("threadIdx.x")]);
            self.call("unroll", [var(&loops[1])]);
        }
    }

    /// The sums in registers of warps or in tensor memory, `c_fragment` being what copies them to their place; the epilogue goes there.
    pub fn cache_sums(&mut self, main: &str, scope: &str) {
        if self.pads_sums() && self.split_k == 1 {
            // The padded sums are the program's own already.
            self.call("set_scope", [var(main), json!(0), json!(scope)]);
            let copy = self.sums_copy();
            self.named("get_sblock", [json!(copy)], "c_fragment");
        } else {
            self.named("cache_write", [var(main), json!(0), json!(scope)], "c_fragment");
        }
        self.epilogue_of_sums("c_fragment");
    }

    /// The epilogue is computed where sums leave their registers, by the block `stored`; that of parts of k by the kernel that adds them
    /// ([`Writer::finish`]).
    pub fn epilogue_of_sums(&mut self, stored: &str) {
        if self.split_k == 1 {
            self.inline_epilogue(self.contraction, stored);
        }
    }

    /// C's tile in shared memory, on its way from the registers: a matrix, whatever the indices of what is stored.
    pub fn cache_tile(&mut self) {
        self.named("cache_write", [var("c_fragment"), json!(0), json!("shared")], "c_shared");
        if let Some(gather) = &self.contraction.gather {
            let map = from_memory(gather, &self.contraction.c.dims);
            self.mapped("transform_layout", [var("c_shared"), json!(["read", 0])], map.clone());
            self.mapped("transform_block_layout", [var("c_shared")], map);
        }
    }

    /// An operand's tiles in shared memory: a copy, or the padded operand itself.
    pub fn cache_operand(&mut self, main: &str, side: Side) {
        if self.pads(side) {
            let matrix = self.contraction.matrix(side);
            let copy = if self.aligned_of(side).is_some() { "_global" } else { "" };
            self.named("get_sblock", [json!(format!("{matrix}{copy}_pad"))], shared(side));
            self.call("set_scope", [var(shared(side)), json!(0), json!("shared")]);
        } else {
            self.cache_read(self.contraction, main, side, "shared", shared(side));
        }
    }

    /// The copies of an operand's tile: which thread copies what.
    pub fn fill(&mut self, side: Side, plan: &OperandPlan, threads: [i64; 2]) {
        let width = mma_conditions::copy_elements(self.gemm, side, plan.bytes);
        self.copies(shared(side), threads, (plan.order, plan.rolled), width);
        let bytes = i64::from(plan.bytes);
        if width * i64::from(self.gemm.operand.bytes()) != bytes {
            self.note(shared(side), keys::COPY_BYTES, bytes);
        }
        self.crop(side, width);
    }

    /// What padding along m or n makes is left out of the results.
    fn crop(&mut self, side: Side, width: i64) {
        let gemm = self.gemm;
        let (_, [m, n, _]) = self.padding();
        let is_padded = if side == Side::A { m } else { n };
        if is_padded {
            let along_k = mma_conditions::rows_along_k(gemm, side);
            let dims = self.contraction.operand(side).dims.len();
            let dimension = if along_k { dims - 1 } else { dims - 2 };
            let at_once = if along_k { width } else { 1 };
            self.call("annotate", [var(shared(side)), json!(keys::CROPPED), json!([dimension, at_once])]);
        }
    }

    /// The copies of a tile by teams of so many threads (threadIdx.y and x), each of so many elements at once.
    pub fn copies(&mut self, block: &str, threads: [i64; 2], (order, rolled): (CopyOrder, bool), width: i64) {
        let ([teams, threads], width) = (threads.map(|n| json!(n)), json!(width));
        let loops = self.name("copy_loops");
        self.named("get_loops", [var(block)], &loops);
        let rows_and_columns = [from_end(&loops, 2), from_end(&loops, 1)];
        let names = ["serial", "warp", "lane", "vector"].map(|part| self.name(&format!("copy_{part}")));
        let [serial, warp, lane, vector] = names.clone();
        let fused = self.name("copy_fused");
        match order {
            CopyOrder::Rows => {
                self.named("fuse", rows_and_columns, &fused);
                self.split_into(var(&fused), vec![Value::Null, teams, threads, width], &names);
            }
            CopyOrder::Own => {
                self.named("fuse", rows_and_columns, &fused);
                let names = [warp.clone(), lane.clone(), serial.clone(), vector.clone()];
                self.split_into(var(&fused), vec![teams, threads, Value::Null, width], &names);
            }
            CopyOrder::Columns => {
                let chunk = self.name("copy_chunk");
                let [row, column] = rows_and_columns;
                self.split_into(column, vec![Value::Null, width], &[chunk.clone(), vector.clone()]);
                self.call("reorder", [var(&chunk), row.clone(), var(&vector)]);
                self.named("fuse", [var(&chunk), row], &fused);
                let names = [serial.clone(), warp.clone(), lane.clone()];
                self.split_into(var(&fused), vec![Value::Null, teams, threads], &names);
            }
        }
        self.call("vectorize", [var(&vector)]);
        self.call("bind", [var(&warp), json!("threadIdx.y")]);
        self.call("bind", [var(&lane), json!("threadIdx.x")]);
        if !rolled {
            self.call("unroll", [var(&serial)]);
        }
    }

    /// Tiles along the loop that a raster has in groups, and across it.
    fn tiles(&self, raster: Raster) -> [i64; 2] {
        let [rows, columns] = [covering(self.gemm.m, self.tile[0]), covering(self.gemm.n, self.tile[1])];
        if raster.columns {
            [columns, rows]
        } else {
            [rows, columns]
        }
    }

    /// The loops over blocks in order, outermost first, from loops `m_block` and `n_block`: groups take one of them apart.
    /// Where they do not divide it, the loops are those without groups, and the order is the kernel's own.
    pub fn blocks(&mut self, raster: Raster) -> Vec<String> {
        let (along, across) = if raster.columns { ("n_block", "m_block") } else { ("m_block", "n_block") };
        let [extent, _] = self.tiles(raster);
        let parts = (self.split_k > 1).then(|| "k_part".to_string());
        let batches = self.contraction.batch().map(|(axis, _)| format!("l_{axis}"));
        let mut loops: Vec<String> = parts.into_iter().chain(batches).collect();
        if raster.group > 1 && extent % raster.group == 0 {
            let names = ["outer", "group"].map(|part| format!("{along}_{part}"));
            self.split_into(var(along), vec![Value::Null, json!(raster.group)], &names);
            let [outer, group] = names;
            loops.extend([outer, across.to_string(), group]);
        } else {
            loops.extend([along, across].map(String::from));
        }
        loops
    }

    /// The annotation of a raster.
    pub fn annotate_raster(&mut self, raster: Raster) {
        let name = if raster.columns { keys::RASTER_COLUMNS } else { keys::RASTER_ROWS };
        self.note("block_fused", name, raster.group);
        let tiles = self.tiles(raster);
        if raster.group > 1 && tiles[0] % raster.group != 0 && tiles[0] * tiles[1] > 1 {
            self.call("annotate", [var("block_fused"), json!(keys::RASTER_TILES), json!(tiles)]);
        }
    }

    /// An annotation with a number, unless that is 0.
    pub fn note(&mut self, target: &str, key: &str, value: i64) {
        if value != 0 {
            self.call("annotate", [var(target), json!(key), json!(value)]);
        }
    }

    /// transform_layout of what a block writes.
    pub fn map(&mut self, block: &str, map: String) {
        self.mapped("transform_layout", [var(block), json!(["write", 0])], map);
    }

    /// transform_layout of the sums: tiles of 16 x 8, the lanes and registers that instructions have them in.
    pub fn sums_in_registers(&mut self, main: &str) {
        let [lane, register] = places::held(Mma::F16, Fragment::D, ["m", "n"], false);
        let (before, dims) = self.dims_of_sums();
        let batches = self.batches();
        self.map(main, format!("lambda {before}{dims}: ({before}{batches}m // 16, n // 8, {lane}, {register})"));
    }

    /// transform_layout of the sums where memory has their columns first: tensor memory has rows and columns.
    pub fn sums_in_rows(&mut self, main: &str) {
        let (before, dims) = self.dims_of_sums();
        let in_rows = format!("{}m, n", self.batches());
        if dims != in_rows {
            self.map(main, format!("lambda {before}{dims}: ({before}{in_rows})"));
        }
    }

    /// What stands before the dimensions of sums, and these as memory has them.
    fn dims_of_sums(&self) -> (&'static str, String) {
        let dims: Vec<String> = self.contraction.c.dims.iter().map(Axis::to_string).collect();
        (if self.split_k > 1 { "part, " } else { "" }, dims.join(", "))
    }

    /// The loops are done, and what is left are instructions: where one stands for a part of a tile, it is not proved that what reads the
    /// tile has all of it, and nothing of another kernel can be moved.
    pub fn loops_are_done(&mut self) {
        self.parts[1] = self.draft.calls().len();
    }

    /// decompose_reduction and tensorize: what clears an instruction's sums, and the instruction, from its outermost loop.
    pub fn instructions(&mut self, main: &str, at: &str, (fill, multiply): (String, String)) {
        self.named("decompose_reduction", [var(main), var("k_tile")], "clear");
        self.named("get_loops", [var("clear")], "clear_loops");
        self.call("tensorize", [from_end("clear_loops", 2), json!(fill)]);
        // The factor with rows may come second, as that of a transposed product does.
        let rows_first = self.contraction.a.index < self.contraction.b.index;
        let multiply = if rows_first { multiply } else { intrinsics::swapped(&multiply) };
        self.call("tensorize", [var(at), json!(multiply)]);
        if self.split_k > 1 {
            // Last of all: it looks at every block of the scope anew.
            self.named("decompose_reduction", [var("block"), var("f_part")], "f_clear");
        }
    }

    /// The kernel that adds the parts of k, and computes the epilogue of their sums.
    pub fn finish(&mut self) {
        if self.split_k > 1 {
            let copy = self.pads_sums().then(|| self.sums_copy());
            self.cache_results(copy.as_deref());
            self.inline_epilogue(self.contraction, "f_local");
            self.add_parts(self.contraction);
        }
    }
}
