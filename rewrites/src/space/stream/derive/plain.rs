//! The calls of a plain kernel.
use super::{var, TraceWriter, Writer};
use satune_ir::term::stream::{BlockKind, PlainPlan};
use serde_json::json;

/// The nest of a plain kernel, which has no threads yet.
pub(super) struct PlainNest {
    /// The block that adds up, or makes an element.
    block: String,
    /// Loops that become threads, from the outside in.
    parallel: Vec<String>,
    /// Loops that are left inside a thread, and in which the block adds up; none where a sum is held in a register.
    serial: Vec<String>,
    threads: i64,
}

impl Writer<'_> {
    /// A sum is kept in a register, and stored once: the block that stores it has the nest. Else the loops of the block itself.
    pub(super) fn held_plainly(&mut self, plan: &PlainPlan) -> Option<PlainNest> {
        let b = self.stream.blocks.iter().find(|b| b.name == plan.block && b.kind != BlockKind::Bound)?;
        let block = self.block(&plan.block);
        let spatial = b.spatial();
        let reduces = spatial < b.iters.len();
        let first = |(i, place): (usize, &usize)| (*place < spatial) != b.iters[i].reduce;
        let held =
            self.stream.pipeline && b.stores == 1 && reduces && spatial > 0 && b.places.iter().enumerate().all(first);
        if held {
            let written = self.bound("cache_write", [var(&block), json!(0), json!("local")], "written");
            // The copy has a loop per dimension of the buffer, those of one element too.
            let dimensions = b.write.dims.len() - usize::from(b.write.split.is_some());
            let parallel = self.loops(&written, dimensions);
            self.call("compute_at", [var(&block), var(&parallel[dimensions - 1]), json!(true)]);
            return Some(PlainNest { block: written, parallel, serial: Vec::new(), threads: plan.threads });
        }
        let loops = self.loops(&block, b.iters.len());
        let of =
            |reduce: bool| loops.iter().zip(&b.iters).filter(move |(_, i)| i.reduce == reduce).map(|(l, _)| l.clone());
        let (parallel, serial): (Vec<String>, Vec<String>) = (of(false).collect(), of(true).collect());
        let order: Vec<String> = parallel.iter().chain(&serial).cloned().collect();
        if order != loops {
            self.call("reorder", order.iter().map(|l| var(l)));
        }
        Some(PlainNest { block, parallel, serial, threads: plan.threads })
    }

    /// Binds a nest's loops to blocks and threads; where there are none, what is inside gets one.
    pub(super) fn plain(&mut self, PlainNest { block, parallel, serial, threads }: PlainNest) {
        let all = match parallel.as_slice() {
            [] => self.bound("add_unit_loop", [var(serial.first().unwrap_or(&block))], "unit"),
            many => self.fused(many),
        };
        let parts = self.split(var(&all), &[(threads, "thread")], "blocks");
        self.bind(&parts[0], "blockIdx.x");
        self.bind(&parts[1], "threadIdx.x");
        if let Some(first) = serial.first() {
            // The sum is begun before its loops, not in each of their iterations.
            self.call("decompose_reduction", [var(&block), var(first)]);
        }
    }
}
