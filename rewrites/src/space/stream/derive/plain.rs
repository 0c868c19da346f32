//! The calls of a plain kernel.
use super::{var, TraceWriter, Writer};
use satune_ir::term::stream::PlainPlan;
use serde_json::json;

impl Writer<'_> {
    pub(super) fn plain(&mut self, plan: &PlainPlan) {
        let Some(b) = self.stream.blocks.iter().find(|b| b.name == plan.block) else { return };
        let block = self.block(&plan.block);
        let spatial = b.spatial();
        // A sum is kept in a register, and stored once.
        let reduces = spatial < b.iters.len();
        let first = |(i, place): (usize, &usize)| (*place < spatial) != b.iters[i].reduce;
        let held = self.stream.pipeline && reduces && spatial > 0 && b.places.iter().enumerate().all(first);
        if held {
            let written = self.bound("cache_write", [var(&block), json!(0), json!("local")], "written");
            let loops = self.loops(&written, spatial);
            let thread = self.threads(&written, &loops, plan.threads);
            self.call("compute_at", [var(&block), var(&thread), json!(true)]);
            return;
        }
        let loops = self.loops(&block, b.iters.len());
        let of =
            |reduce: bool| loops.iter().zip(&b.iters).filter(move |(_, i)| i.reduce == reduce).map(|(l, _)| l.clone());
        let (parallel, serial): (Vec<String>, Vec<String>) = (of(false).collect(), of(true).collect());
        let order: Vec<String> = parallel.iter().chain(&serial).cloned().collect();
        if order != loops {
            self.call("reorder", order.iter().map(|l| var(l)));
        }
        self.threads(serial.first().unwrap_or(&block), &parallel, plan.threads);
        if let Some(first) = serial.first() {
            // The sum is begun before its loops, not in each of their iterations.
            self.call("decompose_reduction", [var(&block), var(first)]);
        }
    }

    /// Binds loops to blocks and threads, and names the loop over threads. Where there are none, what is `inside` gets one.
    fn threads(&mut self, inside: &str, loops: &[String], threads: i64) -> String {
        let all = match loops {
            [] => self.bound("add_unit_loop", [var(inside)], "unit"),
            many => self.fused(many),
        };
        let parts = self.split(var(&all), &[(threads, "thread")], "blocks");
        self.bind(&parts[0], "blockIdx.x");
        self.bind(&parts[1], "threadIdx.x");
        parts[1].clone()
    }
}
