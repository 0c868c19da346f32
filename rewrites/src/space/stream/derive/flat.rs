//! The calls of a flat kernel.
use super::{most_blocks, var, TraceWriter, Writer};
use satune_ir::term::stream::FlatPlan;
use serde_json::json;

impl Writer<'_> {
    pub(super) fn flat(&mut self, plan: &FlatPlan) {
        let Some(b) = self.stream.blocks.iter().find(|b| b.name == plan.block) else { return };
        let block = self.block(&plan.block);
        let inner = b.iters.len() - 1;
        let wide = plan.vector > 1;
        let written = wide.then(|| self.bound("cache_write", [var(&block), json!(0), json!("local")], "written"));
        let wide_reads: Vec<usize> =
            (0..b.reads.len()).filter(|r| b.reads[*r].dims.last() == Some(&Some(inner))).collect();
        let fragments = if wide { self.fragments(&block, &wide_reads) } else { Vec::new() };
        let mut loops = match &written {
            Some(copy) => self.copy_loops(copy, b),
            None => self.loops(&block, b.iters.len()),
        };
        // A copy also has loops for dimensions of one element.
        let at = written.as_ref().and_then(|_| b.write.dims.iter().position(|d| *d == Some(inner))).unwrap_or(inner);
        let along = loops.split_off(at);
        let columns = self.fused(&along);
        let parts = [(plan.steps, "step"), (plan.threads, "thread"), (plan.vector, "vector")];
        let along = self.split(var(&columns), &parts, "columns");
        let (outer, step, thread, vector) = (&along[0], &along[1], &along[2], &along[3]);
        if loops.is_empty() {
            self.bind(outer, "blockIdx.x");
        } else {
            let rows = self.fused(&loops);
            let rows = self.split(var(&rows), &[(plan.side_by_side, "row")], "rows");
            self.call("reorder", [&rows[0], outer, &rows[1]].into_iter().filter(|l| !l.is_empty()).map(|l| var(l)));
            let tile = plan.steps * plan.threads * plan.vector;
            if (b.iters[inner].extent + tile - 1) / tile > most_blocks() {
                let all = self.fused(&[rows[0].clone(), outer.clone()]);
                self.bind(&all, "blockIdx.x");
            } else {
                self.bind(&rows[0], "blockIdx.x");
                self.bind(outer, "blockIdx.y");
            }
            self.bind(&rows[1], "threadIdx.y");
        }
        self.bind(thread, "threadIdx.x");
        self.unroll(step);
        self.vectorize(vector);
        if wide {
            self.at_thread(thread, Some(&block), &fragments);
        }
    }
}
