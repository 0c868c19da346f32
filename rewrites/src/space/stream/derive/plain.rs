//! The calls of a plain kernel.
use super::{from_end, var, TraceWriter, Writer};
use satune_ir::term::stream::{BlockKind, PlainPlan, StreamBlock};
use serde_json::{json, Value};

/// The nest of a plain kernel, which has no threads yet.
pub(super) struct PlainNest {
    /// The block that adds up, or makes an element.
    block: String,
    /// Loops that become threads, from the outside in.
    parallel: Vec<String>,
    /// The block that adds up, and the first loop in which it does; none where its one sum begins in a register as it stands.
    sum: Option<(String, Value)>,
    /// Results of a thread.
    vector: i64,
    /// Threads of a block, or teams that share sums.
    teams: i64,
    /// The threads that these are.
    tag: &'static str,
}

impl Writer<'_> {
    /// A sum is kept in a register, or each of a thread's in one, and stored once: the block that stores it, or the map that it goes through,
    /// has the nest; threads may share its loops. Else the loops of the block itself.
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
            let mut parallel = self.loops(&written, dimensions);
            let side_by_side = self.side_by_side(&mut parallel, plan.vector);
            self.call("compute_at", [var(&block), var(&parallel[dimensions - 1]), json!(true)]);
            let sum = (plan.vector > 1).then(|| self.each_step_for_all(&block, b));
            self.vectorize(&side_by_side);
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
            return Some(PlainNest { block: written, parallel, sum, vector: plan.vector, teams: plan.teams, tag });
        }
        let loops = self.loops(&block, b.iters.len());
        let of =
            |reduce: bool| loops.iter().zip(&b.iters).filter(move |(_, i)| i.reduce == reduce).map(|(l, _)| l.clone());
        let (parallel, serial): (Vec<String>, Vec<String>) = (of(false).collect(), of(true).collect());
        let order: Vec<String> = parallel.iter().chain(&serial).cloned().collect();
        if order != loops {
            self.call("reorder", order.iter().map(|l| var(l)));
        }
        let (mut parallel, sum) = (parallel, serial.first().map(|first| (block.clone(), var(first))));
        let side_by_side = self.side_by_side(&mut parallel, plan.vector);
        self.vectorize(&side_by_side);
        Some(PlainNest { block, parallel, sum, vector: plan.vector, teams: plan.teams, tag: "threadIdx.x" })
    }

    /// Takes a thread's results off the innermost of the loops that become threads: their loop, without a name where there is one.
    fn side_by_side(&mut self, parallel: &mut [String], vector: i64) -> String {
        match parallel.last_mut() {
            Some(last) if vector > 1 => {
                let parts = self.split(var(last), &[(vector, "beside")], "groups");
                *last = parts[0].clone();
                parts[1].clone()
            }
            _ => String::new(),
        }
    }

    /// What a thread adds up in one step for all of its results stands together, inside the loops of the sum. The block and the first of
    /// these.
    fn each_step_for_all(&mut self, block: &str, b: &StreamBlock) -> (String, Value) {
        let all = self.bound("get_loops", [var(block)], "loops");
        let (count, spatial) = (b.places.len(), b.spatial());
        let steps: Vec<Value> = (spatial..count).map(|place| from_end(&all, count - place)).collect();
        let beside = from_end(&all, count - b.places[spatial - 1]);
        let first = steps[0].clone();
        self.call("reorder", steps.into_iter().chain([beside.clone()]));
        self.call("vectorize", [beside]);
        (block.to_string(), first)
    }

    /// Binds a nest's loops to blocks and threads; where there are none, what is inside gets one.
    pub(super) fn plain(&mut self, PlainNest { block, parallel, sum, vector, teams, tag }: PlainNest) {
        let all = match parallel.as_slice() {
            [] => {
                let inside = sum.as_ref().map_or_else(|| var(&block), |(_, first)| first.clone());
                self.bound("add_unit_loop", [inside], "unit")
            }
            many => self.fused(many),
        };
        let parts = self.split(var(&all), &[(teams, "thread")], "blocks");
        self.bind(&parts[0], "blockIdx.x");
        self.bind(&parts[1], tag);
        if let Some((block, first)) = sum {
            // A sum is begun before its loops, not in each of their iterations.
            let init = self.bound("decompose_reduction", [var(&block), first], "init");
            if vector > 1 {
                let loops = self.bound("get_loops", [var(&init)], "loops");
                self.call("unroll", [from_end(&loops, 1)]);
            }
        }
    }
}
