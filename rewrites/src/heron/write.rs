//! The calls that make a row's schedule of a product.
use super::fit::{by_rows, Fit};
use super::{Row, RowError, Rows};
use crate::intrinsics::{self, wmma};
use crate::space::writer::{from_end, var, Draft, TraceWriter};
use crate::trace::Trace;
use satune_ir::term::{Axis, Contraction, Side};
use serde_json::{json, Value};

/// The loops of the sums, level by level.
const SUMS: [[&str; 3]; 5] = [
    ["i_0", "j_0", "k_0"],
    ["i_1", "j_1", "k_1"],
    ["i_2", "j_2", "k_2"],
    ["i_tile", "j_tile", "k_tile"],
    ["i_in", "j_in", "k_in"],
];

struct Writer<'a> {
    row: &'a Row,
    fit: Fit,
    contraction: &'a Contraction,
    draft: Draft,
}

impl TraceWriter for Writer<'_> {
    fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

impl Row {
    /// The trace that schedules the product's program as Heron's template does with this row. What comes after the product, element
    /// by element, is computed where C's tile leaves shared memory.
    ///
    /// # Errors
    /// Where the row contradicts itself or the product, or makes no kernel.
    pub fn trace(&self, contraction: &Contraction) -> Result<Trace, RowError> {
        let contraction = &*by_rows(contraction);
        let fit = Fit::of(self, contraction)?;
        let mut writer = Writer { row: self, fit, contraction, draft: Draft::default() };
        writer.caches();
        writer.results();
        writer.tiles_of_c();
        writer.sums();
        writer.operands();
        writer.instructions();
        Ok(writer.draft.finish())
    }
}

impl Writer<'_> {
    /// The stages.
    fn caches(&mut self) {
        let contraction = self.contraction;
        self.named("get_sblock", [json!(contraction.block_name)], "block");
        let axes: Vec<Axis> = contraction.iters.iter().map(|(axis, _)| *axis).collect();
        if axes != [Axis::M, Axis::N, Axis::K] {
            let given: Vec<String> = axes.iter().map(Axis::to_string).collect();
            let map = format!("lambda {}: ({}, {}, {})", given.join(", "), Axis::M, Axis::N, Axis::K);
            self.mapped("transform_block_layout", [var("block")], map);
        }
        self.named("cache_write", [var("block"), json!(0), json!("wmma.accumulator")], "c_shared");
        self.named("cache_write", [var("c_shared"), json!(0), json!("shared")], "dense");
        for (names, scopes) in [(SHARED, ["shared"; 2]), (FRAGMENTS, ["wmma.matrix_a", "wmma.matrix_b"])] {
            for (side, (name, scope)) in [Side::A, Side::B].into_iter().zip(names.into_iter().zip(scopes)) {
                self.cache_read(contraction, "block", side, scope, name);
            }
        }
        self.inline_epilogue(contraction, "dense");
    }

    /// dense: blocks, threads, a serial loop, a vector.
    fn results(&mut self) {
        let names = |axis: &str| ["block", "y", "x", "serial", "vector"].map(|level| format!("{axis}_{level}"));
        let [i, j] = ["i", "j"].map(names);
        self.loops_of("dense", &["i", "j"].map(String::from));
        for (at, (axis, names)) in [("i", &i), ("j", &j)].into_iter().enumerate() {
            let row = self.row;
            let levels = [row.blocks, row.warps, row.lanes, row.serial].map(|parts| json!(parts[at]));
            self.split_into(var(axis), levels.into_iter().chain([Value::Null]).collect(), names);
        }
        self.call("reorder", i.iter().zip(&j).flat_map(|(i, j)| [var(i), var(j)]));
        for (at, tag) in [(0, "blockIdx.x"), (1, "threadIdx.y"), (2, "threadIdx.x"), (4, "")] {
            let fused = format!("dense_{}", ["block", "y", "x", "", "vector"][at]);
            self.named("fuse", [var(&i[at]), var(&j[at])], &fused);
            if tag.is_empty() {
                self.call("vectorize", [var(&fused)]);
            } else {
                self.call("bind", [var(&fused), json!(tag)]);
            }
        }
        let steps = 4_i64.saturating_pow(u32::try_from(self.row.unroll).unwrap_or(0));
        self.call("annotate", [var("dense_block"), json!("pragma_auto_unroll_max_step"), json!(steps)]);
        self.call("annotate", [var("dense_block"), json!("pragma_unroll_explicit"), json!(0)]);
    }

    /// C's tile in shared memory: its warps, and the fragments of each.
    fn tiles_of_c(&mut self) {
        let Row { wmma: [m, n, _], sums: [warps_i, warps_j], .. } = *self.row;
        self.call("compute_at", [var("c_shared"), var("dense_block"), json!(true)]);
        self.named("get_loops", [var("c_shared")], "c_loops");
        let i = ["c_i_warp", "c_i_tile", "c_i_in"].map(String::from);
        self.split_into(from_end("c_loops", 2), vec![json!(warps_i), Value::Null, json!(m)], &i);
        let j = ["c_j_warp", "c_j_tile", "c_j_in"].map(String::from);
        self.split_into(from_end("c_loops", 1), vec![json!(warps_j), Value::Null, json!(n)], &j);
        self.call("reorder", i.iter().zip(&j).flat_map(|(i, j)| [var(i), var(j)]));
        self.named("fuse", [var("c_i_warp"), var("c_j_warp")], "c_warp");
        self.call("bind", [var("c_warp"), json!("threadIdx.y")]);
    }

    /// The sums: three levels of parts along i, j and k, then instructions.
    fn sums(&mut self) {
        let at = if self.row.sums_at == 0 { "c_warp" } else { "c_j_tile" };
        self.call("compute_at", [var("block"), var(at), json!(true)]);
        self.named("get_loops", [var("block")], "loops");
        for axis in 0..3 {
            let [first, second, third] = self.row.parts.map(|parts| json!(parts[axis]));
            let names = SUMS.map(|level| level[axis].to_string());
            let factors = vec![first, second, third, Value::Null, json!(self.row.wmma[axis])];
            self.split_into(from_end("loops", 3 - axis), factors, &names);
        }
        self.call("reorder", SUMS.into_iter().flatten().map(var));
    }

    /// The copies of A and B, A's first: at one level each tile is followed by its fragments, as in te.
    fn operands(&mut self) {
        let level = |at: i64| usize::try_from(at).ok().and_then(|at| SUMS.get(at)).map_or("k_0", |level| level[2]);
        let at = [level(self.row.tiles_at), level(self.row.fragments_at)];
        for (tile, fragments) in SHARED.into_iter().zip(FRAGMENTS) {
            self.call("compute_at", [var(fragments), var(at[1]), json!(true)]);
            self.call("compute_at", [var(tile), var(at[0]), json!(true)]);
        }
        // Last: of a tile that threads do not divide it is no longer known that all of it is written.
        let row = self.row;
        for (tile, rows, vector) in [(SHARED[0], row.a, row.a_vector), (SHARED[1], row.b, row.b_vector)] {
            self.align(tile, rows);
            let [loops, fused] = ["loops", "fused"].map(|part| format!("{tile}_{part}"));
            self.named("get_loops", [var(tile)], &loops);
            self.named("fuse", [from_end(&loops, 2), from_end(&loops, 1)], &fused);
            let [chunk, lanes, step, y, x] = ["chunk", "vector", "step", "y", "x"].map(|part| format!("{tile}_{part}"));
            // A vector is whole, or not there.
            self.split_into(var(&fused), vec![Value::Null, json!(vector)], &[chunk.clone(), lanes.clone()]);
            let threads = vec![Value::Null, json!(self.row.threads_y), json!(self.row.threads_x)];
            self.split_into(var(&chunk), threads, &[step, y.clone(), x.clone()]);
            self.call("vectorize", [var(&lanes)]);
            self.call("bind", [var(&y), json!("threadIdx.y")]);
            self.call("bind", [var(&x), json!("threadIdx.x")]);
        }
    }

    /// Heron's words for rows that are so far apart; without an offset they are as they are.
    fn align(&mut self, block: &str, rows: Rows) {
        if rows.offset > 0 {
            let [factor, offset] = [json!(rows.pitch() - 1), json!(rows.pitch())];
            self.call("storage_align", [var(block), json!(0), json!(-2), factor, offset]);
        }
    }

    fn instructions(&mut self) {
        let ([m, n, k], op, transposed) = (self.row.wmma, self.fit.op, self.fit.transposed);
        self.named("decompose_reduction", [var("block"), var("k_0")], "clear");
        self.named("get_loops", [var("clear")], "clear_loops");
        self.call("tensorize", [from_end("clear_loops", 2), json!(wmma::fill_name(op))]);
        // The factor with rows may come second.
        let rows_first = self.contraction.a.index < self.contraction.b.index;
        let sync = wmma::sync_name(op, transposed);
        let sync = if rows_first { sync } else { intrinsics::swapped(&sync) };
        self.call("tensorize", [var("i_in"), json!(sync)]);
        let sides = [(Side::A, [m, k]), (Side::B, [k, n])].into_iter().zip(transposed);
        for (fragments, ((side, mut shape), transposed)) in FRAGMENTS.into_iter().zip(sides) {
            if transposed {
                shape.reverse();
            }
            let loops = format!("{fragments}_loops");
            self.named("get_loops", [var(fragments)], &loops);
            let names = ["row", "column"].map(|axis| ["tile", "in"].map(|part| format!("{fragments}_{axis}_{part}")));
            for (names, (from, extent)) in names.iter().zip([2, 1].into_iter().zip(shape)) {
                self.split_into(from_end(&loops, from), vec![Value::Null, json!(extent)], names);
            }
            let [rows, columns] = names;
            self.call("reorder", [&rows[0], &columns[0], &rows[1], &columns[1]].map(|name| var(name)));
            self.call("tensorize", [var(&rows[1]), json!(wmma::load_name(op, side, transposed))]);
        }
        // Not the loop: the block that the intrinsic is keeps its annotation.
        self.named("blockize", [var("c_i_in")], "c_store");
        self.align("c_store", self.row.c);
        self.call("tensorize", [var("c_store"), json!(wmma::store_name(op, "shared"))]);
    }
}

/// The blocks that copy A's and B's tiles, and load their fragments.
const SHARED: [&str; 2] = ["a_shared", "b_shared"];
const FRAGMENTS: [&str; 2] = ["a_fragments", "b_fragments"];

#[cfg(test)]
mod tests {
    use crate::heron::testing::{product, row, ROW_1190, ROW_77, ROW_99};
    use crate::heron::{Row, Rows};
    use crate::replay::replay_strict;
    use crate::testing::{func, parse};
    use crate::{intrinsics, soundness};
    use satune_ir::interp::{random_inputs, run};
    use satune_ir::{tvmscript, Program};

    /// What a row makes of a program: no call is refused, and it means the same.
    fn scheduled(row: &Row, (program, contraction): (Program, satune_ir::term::Contraction)) -> String {
        let trace = row.trace(&contraction).unwrap_or_else(|e| panic!("{e}"));
        let (results, schedule) = replay_strict(&program, &trace.calls).unwrap();
        for (call, result) in trace.calls.iter().zip(&results) {
            if let Err(e) = result {
                panic!("{call:?}: {}\n{}", e.detail, tvmscript::print(schedule.program()));
            }
        }
        assert_eq!(results.len(), trace.calls.len());
        let made = schedule.program();
        let sound = soundness::check(&program, &intrinsics::described(made));
        sound.unwrap_or_else(|e| panic!("{}\n{}", e.detail, tvmscript::print(made)));
        tvmscript::print(made)
    }

    #[test]
    fn rows_of_the_table_are_schedules() {
        for text in [ROW_77, ROW_1190, ROW_99] {
            let made = scheduled(&row(text), product([1024; 3], "NT", ["float16"; 2]));
            for part in ["blockIdx.x", "tvm_mma_sync", "buffer_dim_align", "\"pragma_auto_unroll_max_step\": 1024"] {
                assert!(made.contains(part), "{part}\n{made}");
            }
        }
    }

    /// A row for 128 x 64 x 64 with two warps, whose levels all have parts.
    const SMALL: &str = "16,16,16, 1,2, 1,0,0, 2,1,2,1,2, 1,32,32,32,1, 64,8, 1,2, 2,1,1, 1,2,2, 2,1,1, 32,8,4, 32,8,8";

    #[test]
    fn sums_are_those_of_the_product() {
        let (program, contraction) = product([128, 64, 64], "NT", ["float16", "float32"]);
        for (tiles_at, fragments_at, sums_at) in
            [(0, 0, 0), (0, 3, 0), (1, 1, 0), (1, 2, 0), (2, 3, 0), (3, 3, 0), (0, 1, 1)]
        {
            let mut row = row(SMALL);
            (row.tiles_at, row.fragments_at, row.sums_at) = (tiles_at, fragments_at, sums_at);
            row.parts =
                if sums_at == 0 { [[2, 1, 1], [1, 2, 2], [2, 1, 1]] } else { [[1, 1, 2], [1, 1, 2], [1, 1, 1]] };
            let k = if sums_at == 1 { [32, 16, 16, 16] } else { [64, 32, 32, 16] }[tiles_at as usize];
            (row.a.length, row.b.length) = (k, k);
            scheduled(&row, (program.clone(), contraction.clone()));
        }
        let made = parse(&scheduled(&row(SMALL), (program.clone(), contraction)));
        let inputs = random_inputs(&program, 7).unwrap();
        assert_eq!(run(&intrinsics::described(&made), &inputs).unwrap(), run(&program, &inputs).unwrap());
    }

    /// The orders of storage, types and shapes that have instructions.
    #[test]
    fn whatever_wmma_multiplies_is_scheduled() {
        let types = [["float16"; 2], ["float16", "float32"], ["bfloat16", "float32"], ["int8", "int32"]];
        let forms = ["NN", "NT", "TN", "TT"];
        let shapes = [[16, 16, 16], [32, 8, 16], [8, 32, 16]];
        for (at, (types, order)) in types.into_iter().flat_map(|t| forms.map(|f| (t, f))).enumerate() {
            let mut row = row(SMALL);
            row.wmma = shapes[at % 3];
            row.parts = [[1, 1, 1], [1, 1, 2], [1, 1, 1]];
            row.a = Rows { length: if order.starts_with('T') { 64 } else { 32 }, offset: 16 };
            row.b = Rows { length: if order.ends_with('T') { 32 } else { 64 }, offset: 16 };
            let made = scheduled(&row, product([128, 64, 64], order, types));
            assert!(made.contains("tvm_load_matrix_sync"), "{made}");
        }
    }

    /// Loops and factors in another order, and a block after the product.
    #[test]
    fn other_forms_of_a_product_are_scheduled() {
        for (loops, [first, second]) in [
            ("i, j, k", ["A[vi, vk]", "B[vj, vk]"]),
            ("j, i, k", ["A[vi, vk]", "B[vj, vk]"]),
            ("i, j, k", ["B[vj, vk]", "A[vi, vk]"]),
        ] {
            let axes = loops.replace('i', "vi").replace('j', "vj").replace('k', "vk");
            let extents = loops.replace('i', "128").replace(['j', 'k'], "64");
            let body = format!(
                r#"
C = T.sblock_alloc_buffer((128, 64), "float32")
for {loops} in T.grid({extents}):
    with T.sblock("C"):
        {axes} = T.axis.remap("SSR", [{loops}])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + T.Cast("float32", {first}) * T.Cast("float32", {second})
for i, j in T.grid(128, 64):
    with T.sblock("D"):
        vi, vj = T.axis.remap("SS", [i, j])
        D[vi, vj] = T.Cast("float16", T.max(C[vi, vj], T.float32(0)))
"#
            );
            let buffers = [("A", 128), ("B", 64), ("D", 128)];
            let params = buffers.map(|(name, rows)| format!("{name}: T.Buffer(({rows}, 64), \"float16\")")).join(", ");
            let program = parse(&func(&params, &body));
            let contraction = crate::space::contraction(&program).unwrap();
            let made = scheduled(&row(SMALL), (program, contraction));
            assert!(made.contains("T.max") && !made.contains("T.sblock(\"C\")"), "{made}");
        }
    }
}
