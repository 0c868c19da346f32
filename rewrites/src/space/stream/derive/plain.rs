//! The calls of a plain kernel.
use super::{from_end, var, TraceWriter, Writer};
use satune_ir::term::stream::{BlockKind, PlainHeld, PlainPlan, PlainStep, StreamBlock};
use serde_json::{json, Value};

/// The nest of a plain kernel, which has no threads yet.
pub(super) struct PlainNest {
    /// The block that adds up, or makes an element.
    block: String,
    /// Loops that become threads, from the outside in.
    parallel: Vec<String>,
    /// The block that adds up, and the first loop in which it does; none where its one sum begins in a register as it stands.
    sum: Option<(String, Value)>,
    /// Loops over the results of a thread.
    own: usize,
    /// Threads of a block, or teams that share sums.
    teams: i64,
    /// The threads that these are.
    tag: &'static str,
}

/// Loops over the results of a thread, without a name where there is one result.
struct OwnLoops {
    /// Along its window.
    window: String,
    /// Side by side.
    beside: String,
}

/// Of the outermost loop with several values each block says where it is alike: loops of one value around it stay as they are.
fn without_units(parallel: &mut Vec<String>, extents: &[i64], plan: &PlainPlan, along: Option<usize>) {
    let own = |at: usize| plan.window.filter(|_| along == Some(at)).map_or(1, |window| window.results);
    let units = extents.iter().enumerate().take_while(|(at, extent)| **extent == own(*at)).count();
    parallel.drain(..units.min(parallel.len().saturating_sub(1)));
}

impl Writer<'_> {
    /// A sum is kept in a register, or each of a thread's in one, and stored once: the block that stores it, or the map that it goes through,
    /// has the nest; threads may share its loops. Else the loops of the block itself.
    pub(super) fn held_plainly(&mut self, plan: &PlainPlan) -> Option<PlainNest> {
        let stream = self.stream;
        let named = |name: &String| stream.blocks.iter().find(|b| b.name == *name);
        let b = named(&plan.block).filter(|b| b.kind != BlockKind::Bound)?;
        let block = self.block(&plan.block);
        let own = usize::from(plan.vector > 1) + usize::from(plan.window.is_some());
        if stream.holds_sum(b) {
            let held = self.held_in_registers(plan, (&block, b));
            let map = plan.map.as_ref().and_then(named);
            let (written, extents): (String, Vec<i64>) = match map {
                Some(map) => {
                    self.call("set_scope", [var(&block), json!(0), json!("local")]);
                    (self.block(&map.name), map.iters.iter().map(|i| i.extent).collect())
                }
                // The copy has a loop per dimension of the buffer, those of one element too.
                None => {
                    let written = self.bound("cache_write", [var(&block), json!(0), json!("local")], "written");
                    (written, b.write.reach(&|i| b.iters[i].extent))
                }
            };
            let dimensions = extents.len();
            let mut parallel = self.loops(&written, dimensions);
            let along = plan.window.and_then(|window| match map {
                Some(_) => Some(window.iter),
                None => b.write.dims.iter().position(|dim| *dim == Some(window.iter)),
            });
            let results = self.own_loops(&mut parallel, plan, along);
            self.call("compute_at", [var(&block), var(&parallel[dimensions - 1]), json!(true)]);
            let sum = (own > 0).then(|| self.each_step_for_all(plan, (&block, b), (&held, &parallel)));
            self.each_by_itself(&results);
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
            if !held.is_empty() {
                without_units(&mut parallel, &extents, plan, along);
            }
            return Some(PlainNest { block: written, parallel, sum, own, teams: plan.teams, tag });
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
        let held = self.held_in_registers(plan, (&block, b));
        let results = self.own_loops(&mut parallel, plan, plan.window.map(|window| window.iter));
        self.each_by_itself(&results);
        let around = parallel.last().map(|last| var(last)).unwrap_or_default();
        self.hold(&held, &[around], plan.vector);
        if !held.is_empty() {
            let extents: Vec<i64> = b.iters.iter().map(|i| i.extent).collect();
            without_units(&mut parallel, &extents, plan, plan.window.map(|window| window.iter));
        }
        Some(PlainNest { block, parallel, sum, own, teams: plan.teams, tag: "threadIdx.x" })
    }

    /// Takes a thread's results off the loops that become threads: off the innermost one, and off the one of its window, which goes inside
    /// of all of them.
    fn own_loops(&mut self, parallel: &mut [String], plan: &PlainPlan, along: Option<usize>) -> OwnLoops {
        let last = parallel.len().checked_sub(1);
        let mut take = |of: Option<usize>, results: i64, stem: &str| match of.and_then(|of| parallel.get_mut(of)) {
            Some(all) if results > 1 => {
                let parts = self.split(var(all), &[(results, stem)], "groups");
                *all = parts[0].clone();
                parts[1].clone()
            }
            _ => String::new(),
        };
        let window = take(along, plan.window.map_or(1, |w| w.results), "window");
        let beside = take(last, plan.vector, "beside");
        if let Some(along) = along {
            let inside = parallel[along + 1..].iter().chain([&window, &beside]).filter(|name| !name.is_empty());
            self.call("reorder", inside.map(|name| var(name)));
        }
        OwnLoops { window, beside }
    }

    fn each_by_itself(&mut self, results: &OwnLoops) {
        self.unroll(&results.window);
        self.vectorize(&results.beside);
    }

    fn step_of(&self, plan: &PlainPlan) -> PlainStep {
        let blocks = self.stream.plain_of(plan);
        blocks.map(|blocks| self.stream.plain_step(blocks, plan.vector, plan.window)).unwrap_or_default()
    }

    /// The blocks that make what a thread holds in a step: the map before, or copies of what the block reads.
    fn held_in_registers(&mut self, plan: &PlainPlan, (block, b): (&str, &StreamBlock)) -> Vec<(String, PlainHeld)> {
        let stream = self.stream;
        let named = |name: &&String| stream.blocks.iter().find(|b| b.name == **name);
        let before = plan.before.as_ref().filter(|_| stream.holds_sum(b));
        let of_map = before.as_ref().and_then(named).map(|before| before.write.buffer);
        let mut out = Vec::new();
        for held in self.step_of(plan).held {
            if let Some(before) = before.filter(|_| of_map == Some(held.buffer)) {
                let before = self.block(before);
                self.call("set_scope", [var(&before), json!(0), json!("local")]);
                out.push((before, held));
            } else if let Some(read) = b.reads.iter().position(|read| read.buffer == held.buffer) {
                out.push((self.copy_for((block, read), [block], "local", "held"), held));
            }
        }
        out
    }

    /// What a thread adds up in one step for all of its results stands together, inside the other loops of the sum, with what it holds for
    /// that. The block and the first loop of its sum.
    fn each_step_for_all(
        &mut self,
        plan: &PlainPlan,
        (block, b): (&str, &StreamBlock),
        (held, parallel): (&[(String, PlainHeld)], &[String]),
    ) -> (String, Value) {
        let step = self.step_of(plan);
        let all = self.bound("get_loops", [var(block)], "loops");
        let loop_of = |iter: usize| from_end(&all, b.places.len() - b.places[iter]);
        let [outside, inside] =
            [step.outside, step.inside].map(|iters| iters.into_iter().map(loop_of).collect::<Vec<Value>>());
        let window = plan.window.map(|window| loop_of(window.iter));
        let beside = (plan.vector > 1).then(|| loop_of(b.spatial() - 1));
        let order: Vec<Value> = outside.iter().chain(&inside).chain(&window).chain(&beside).cloned().collect();
        let first = order[0].clone();
        self.call("reorder", order);
        if let Some(beside) = beside {
            self.call("vectorize", [beside]);
        }
        for each in window.iter().chain(&inside) {
            self.call("unroll", [each.clone()]);
        }
        let around = outside.last().cloned().or_else(|| parallel.last().map(|last| var(last))).unwrap_or_default();
        self.hold(held, &[vec![around], inside].concat(), plan.vector);
        (block.to_string(), first)
    }

    /// Puts what makes what a thread holds under loops: each under as many of the inner ones as it says.
    fn hold(&mut self, held: &[(String, PlainHeld)], loops: &[Value], vector: i64) {
        for (maker, held) in held {
            self.call("compute_at", [var(maker), loops[held.inside].clone(), json!(true)]);
            let count = held.lengths.len();
            let several = held.lengths.iter().enumerate().rev().filter(|(_, length)| **length > 1);
            let several: Vec<(usize, i64)> = several.map(|(at, length)| (at, *length)).collect();
            if several.is_empty() {
                continue;
            }
            let all = self.bound("get_loops", [var(maker)], "loops");
            for (at, length) in several {
                let wide = at + 1 == count && length == vector;
                self.call(if wide { "vectorize" } else { "unroll" }, [from_end(&all, count - at)]);
            }
        }
    }

    /// Binds a nest's loops to blocks and threads; where there are none, what is inside gets one.
    pub(super) fn plain(&mut self, PlainNest { block, parallel, sum, own, teams, tag }: PlainNest) {
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
            if own > 0 {
                let loops = self.bound("get_loops", [var(&init)], "loops");
                (1..=own).for_each(|at| {
                    self.call("unroll", [from_end(&loops, at)]);
                });
            }
        }
    }
}
