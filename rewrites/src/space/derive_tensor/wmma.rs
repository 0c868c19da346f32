//! The trace of a plan on `wmma`.
//!
//! Fragments are matrices whose lanes only the machine knows: buffers of scope `wmma.matrix_a`, `wmma.matrix_b` and
//! `wmma.accumulator` in the matrices' own order, which nothing but tensorized blocks touch. The scopes are TVM's, and so are
//! the intrinsics that it has. Padded rows are `storage_align`'s, and that tiles pass through registers is what TensorIR's own
//! annotation of such copies says.
use super::common::{fragment, SIDES};
use super::mma::MmaWriter;
use crate::intrinsics::wmma;
use crate::space::gather::GatherWriter;
use crate::space::writer::{from_end, var, TraceWriter};
use satune_ir::term::tensor::{mma_conditions, Store, Wmma};
use satune_ir::term::Side;
use serde_json::{json, Value};

impl MmaWriter<'_> {
    pub(super) fn write_wmma(&mut self, op: Wmma) {
        let is_staged = self.plan.store != Store::Direct;
        let main = self.base.begin();
        self.sums(main, is_staged);
        for side in SIDES {
            self.base.cache_operand(main, side);
        }
        for side in SIDES {
            self.base.cache_read(self.base.contraction, main, side, scope(side), fragment(side));
        }
        self.base.inlined(self.base.contraction);
        self.nest();
        self.place_operands();
        self.place_sums(op, is_staged);
        for side in SIDES {
            self.fill(side);
            self.layout(side);
        }
        self.ring();
        self.base.finish();
        self.base.loops_are_done();
        for side in SIDES {
            self.load(op, side);
        }
        self.store(op, is_staged);
        let transposed = [self.base.gemm.a_transposed, self.base.gemm.b_transposed];
        self.base.instructions(main, "m_row", (wmma::fill_name(op), wmma::sync_name(op, transposed)));
    }

    /// Sums in fragments. `c_fragment` stores them as they are: to C, or to shared memory, from where `c_shared` takes them to
    /// C and computes the epilogue on the way.
    fn sums(&mut self, main: &str, is_staged: bool) {
        let base = &mut self.base;
        base.named("cache_write", [var(main), json!(0), json!("wmma.accumulator")], "c_fragment");
        if !is_staged {
            return;
        }
        if base.pads_sums() {
            // What copies padded sums to where they belong takes them from shared memory.
            base.call("set_scope", [var("c_fragment"), json!(0), json!("shared")]);
            let copy = base.sums_copy();
            base.named("get_sblock", [json!(copy)], "c_shared");
        } else {
            base.named("cache_write", [var("c_fragment"), json!(0), json!("shared")], "c_shared");
        }
        base.epilogue_of_sums("c_shared");
    }

    /// The store of a warp's sums, fragment by fragment; staged, some columns of a row of fragments at a time, which the warp's
    /// lanes take from shared memory before the next.
    fn place_sums(&mut self, op: Wmma, is_staged: bool) {
        let [m, n, _] = op.extents().map(i64::from);
        let base = &mut self.base;
        base.call("reverse_compute_at", [var("c_fragment"), var("warp_fused"), json!(true)]);
        base.named("get_loops", [var("c_fragment")], "c_loops");
        let (rows, columns) = (from_end("c_loops", 2), from_end("c_loops", 1));
        base.split_into(rows, vec![Value::Null, json!(m)], &["c_rows", "c_row"].map(String::from));
        let at_once = op.staged_columns(self.plan.warp[1]);
        let names = ["c_columns", "c_fragments", "c_column"].map(String::from);
        base.split_into(columns, vec![Value::Null, json!(at_once / n), json!(n)], &names);
        base.call("reorder", ["c_rows", "c_columns", "c_fragments", "c_row", "c_column"].map(var));
        if is_staged {
            base.call("reverse_compute_at", [var("c_shared"), var("c_columns"), json!(true)]);
            self.take_staged();
        }
    }

    /// The store of one fragment.
    fn store(&mut self, op: Wmma, is_staged: bool) {
        // Not the loop: the block that the intrinsic is keeps its annotation.
        self.base.named("blockize", [var("c_row")], "c_store");
        if is_staged {
            let [unit, more] = op.staged_align().map(Value::from);
            self.base.call("storage_align", [var("c_store"), json!(0), json!(-2), unit, more]);
        }
        let to = if is_staged { "shared" } else { "global" };
        self.base.call("tensorize", [var("c_store"), json!(wmma::store_name(op, to))]);
    }

    /// The lanes' copies of what their warp staged.
    fn take_staged(&mut self) {
        let width = mma_conditions::staged_width(self.base.gemm);
        let base = &mut self.base;
        base.named("get_loops", [var("c_shared")], "out_loops");
        base.named("fuse", [from_end("out_loops", 2), from_end("out_loops", 1)], "out_fused");
        let names = ["out_serial", "out_lane", "out_vector"].map(String::from);
        base.split_into(var("out_fused"), vec![Value::Null, json!(32), json!(width)], &names);
        base.call("vectorize", [var("out_vector")]);
        base.call("bind", [var("out_lane"), json!("threadIdx.x")]);
        base.call("unroll", [var("out_serial")]);
    }

    /// Loads of an operand's fragments: matrix by matrix.
    fn load(&mut self, op: Wmma, side: Side) {
        let gemm = self.base.gemm;
        let [m, n, _] = op.extents();
        let (own, transposed) = match side {
            Side::A => (m, gemm.a_transposed),
            Side::B => (n, gemm.b_transposed),
        };
        let base = &mut self.base;
        let loops = base.name("load_loops");
        base.named("get_loops", [var(fragment(side))], &loops);
        let names = ["load_matrix", "load_line"].map(|part| base.name(part));
        let [matrix, line] = names.clone();
        // Along k a step has one matrix.
        let first = if mma_conditions::rows_along_k(gemm, side) {
            let k = from_end(&loops, 2);
            base.split_into(from_end(&loops, 1), vec![Value::Null, json!(own)], &names);
            base.call("reorder", [var(&matrix), k.clone(), var(&line)]);
            k
        } else {
            base.split_into(from_end(&loops, 2), vec![Value::Null, json!(own)], &names);
            var(&line)
        };
        base.call("tensorize", [first, json!(wmma::load_name(op, side, transposed))]);
    }
}

/// Where fragments of an operand are.
fn scope(side: Side) -> &'static str {
    match side {
        Side::A => "wmma.matrix_a",
        Side::B => "wmma.matrix_b",
    }
}
