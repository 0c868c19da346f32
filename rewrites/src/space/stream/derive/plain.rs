//! The calls of a plain kernel.
use super::{from_end, var, TraceWriter, Writer};
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
    /// Results of a block.
    results: i64,
    /// The threads that these are.
    tag: &'static str,
}

impl Writer<'_> {
    /// A sum is kept in a register, and stored once: the block that stores it, or the map that it goes through, has the nest; threads may
    /// share its loops. Else the loops of the block itself.
    pub(super) fn held_plainly(&mut self, plan: &PlainPlan) -> Option<PlainNest> {
        let b = self.stream.blocks.iter().find(|b| b.name == plan.block && b.kind != BlockKind::Bound)?;
        let block = self.block(&plan.block);
        if self.stream.holds_sum(b) {
            let map = plan.map.as_ref().and_then(|map| self.stream.blocks.iter().find(|b| b.name == *map));
            let (written, dimensions) = match map {
                Some(map) => {
                    self.call("set_scope", [var(&block), json!(0), json!("local")]);
                    (self.block(&map.name), map.iters.len())
                }
                // The copy has a loop per dimension of the buffer, those of one element too.
                None => {
                    let written = self.bound("cache_write", [var(&block), json!(0), json!("local")], "written");
                    (written, b.write.dims.len() - usize::from(b.write.split.is_some()))
                }
            };
            let parallel = self.loops(&written, dimensions);
            self.call("compute_at", [var(&block), var(&parallel[dimensions - 1]), json!(true)]);
            let mut tag = "threadIdx.x";
            if let Some(sharing) = plan.sharing {
                let all = self.bound("get_loops", [var(&block)], "loops");
                let place = b.places.get(sharing.iter).copied().unwrap_or_default();
                let parts = self.split(from_end(&all, b.places.len() - place), &[(sharing.threads, "share")], "steps");
                let (own, results) =
                    if sharing.lanes { ("threadIdx.x", "threadIdx.y") } else { ("threadIdx.y", "threadIdx.x") };
                self.bind(&parts[1], own);
                tag = results;
            }
            return Some(PlainNest { block: written, parallel, serial: Vec::new(), results: plan.results, tag });
        }
        let loops = self.loops(&block, b.iters.len());
        let of =
            |reduce: bool| loops.iter().zip(&b.iters).filter(move |(_, i)| i.reduce == reduce).map(|(l, _)| l.clone());
        let (parallel, serial): (Vec<String>, Vec<String>) = (of(false).collect(), of(true).collect());
        let order: Vec<String> = parallel.iter().chain(&serial).cloned().collect();
        if order != loops {
            self.call("reorder", order.iter().map(|l| var(l)));
        }
        Some(PlainNest { block, parallel, serial, results: plan.results, tag: "threadIdx.x" })
    }

    /// Binds a nest's loops to blocks and threads; where there are none, what is inside gets one.
    pub(super) fn plain(&mut self, PlainNest { block, parallel, serial, results, tag }: PlainNest) {
        let all = match parallel.as_slice() {
            [] => self.bound("add_unit_loop", [var(serial.first().unwrap_or(&block))], "unit"),
            many => self.fused(many),
        };
        let parts = self.split(var(&all), &[(results, "thread")], "blocks");
        self.bind(&parts[0], "blockIdx.x");
        self.bind(&parts[1], tag);
        if let Some(first) = serial.first() {
            // The sum is begun before its loops, not in each of their iterations.
            self.call("decompose_reduction", [var(&block), var(first)]);
        }
    }
}
