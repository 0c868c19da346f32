//! From a plan to the trace of primitives that makes it.
//!
//! The calls of a kernel come in the one order that TensorIR's conditions allow: caches while the nests are whole, then the
//! loops of the last block, then the other blocks to the row, consumers before producers (`compute_at` wants every
//! consumer below the loop), and what is held for all of them last. The threads of plain kernels come after all of this: where
//! they do not divide the results there are guards, under which it is not proved that a buffer is written as a whole.
mod flat;
mod plain;
mod row;
mod tile;

use super::steps::calls_of;
use super::tiled;
use crate::gpu_check::GpuLimits;
use crate::space::writer::{from_end, var, Draft, TraceWriter};
use crate::space::{derive, derive_tensor, Untraced};
use crate::trace::{Call, Out, Trace};
use satune_ir::term::stream::{KernelPlan, Stream, StreamBlock, StreamPlan, Streams};
use satune_ir::term::Schedule;
use serde_json::{json, Value};
use std::collections::HashMap;

/// Most blocks along y and z of a grid; what has more is fused into x.
fn most_blocks() -> i64 {
    GpuLimits::default().blocks[1]
}

/// The calls by which a plan inlines blocks and splits rows, before any kernel has its loops.
fn becomes(plan: &StreamPlan, problem: &Streams) -> Trace {
    let way = problem.way_of(plan);
    let hows = way.iter().flat_map(|way| &way.becomes).enumerate();
    Trace { calls: hows.flat_map(|(number, how)| calls_of(how, plan.parts, number)).collect() }
}

/// Makes the trace of a plan. A plan of another program (or with blocks that the program does not have) has an empty one.
///
/// # Errors
/// Where a contraction's plan on tensor cores does not fit it.
pub fn trace(plan: &StreamPlan, problem: &Streams) -> Result<Trace, Untraced> {
    let Some(way) = problem.way_of(plan) else { return Ok(Trace::default()) };
    let stream = &problem.joined(&way.kernels);
    let mut writer = Writer { stream, draft: Draft::default(), copied: HashMap::new() };
    writer.draft.extend(becomes(plan, problem).calls);
    let (mut plain, mut taken_apart, mut laid_out) = (Vec::new(), Vec::new(), Vec::new());
    // Kernels on tensor cores pad their operands, and copy them, before any nest is taken apart; the last kernel's nest is taken
    // apart first, since what reads a result of tiles over the edge is no longer known to have all of it.
    for (number, kernel) in plan.kernels.iter().enumerate().rev() {
        let Some((plan @ (Schedule::Mma(_) | Schedule::Wgmma(_)), contraction)) = kernel.contraction(stream) else {
            continue;
        };
        writer.copied.extend(derive_tensor::copies(plan, contraction));
        let parts = derive_tensor::trace_in_parts(plan, contraction)?;
        let [whole, loops, instructions] = parts.map(|part| of_kernel(number, part));
        writer.draft.extend(whole);
        taken_apart.extend(loops);
        laid_out.extend(instructions);
    }
    for (number, kernel) in plan.kernels.iter().enumerate() {
        match kernel {
            KernelPlan::Flat(p) => writer.flat(p),
            KernelPlan::Row(p) => writer.row(p),
            KernelPlan::Tile(p) => writer.tile(p),
            KernelPlan::Plain(p) => plain.extend(writer.held_plainly(p)),
            KernelPlan::Tiled(_) => {
                let Some((Schedule::Cores(plan), contraction)) = kernel.contraction(stream) else { continue };
                let [placed, after] = derive::trace_in_parts(plan, contraction).map(|part| of_kernel(number, part));
                writer.draft.extend(placed);
                laid_out.extend(after);
            }
        }
    }
    writer.draft.extend(taken_apart);
    plain.into_iter().for_each(|nest| writer.plain(nest));
    writer.draft.extend(laid_out);
    Ok(writer.draft.finish())
}

/// Calls on the blocks of one kernel, their results under names of their own.
fn of_kernel(number: usize, part: Trace) -> Vec<Call> {
    tiled::in_whole(part.calls, &format!("k{number}_")).collect()
}

struct Writer<'a> {
    stream: &'a Stream,
    draft: Draft,
    /// Of buffers that a kernel on tensor cores copies before what multiplies them, the place of the first copy among all of them.
    copied: HashMap<String, usize>,
}

impl TraceWriter for Writer<'_> {
    fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

impl Writer<'_> {
    fn block(&mut self, name: &str) -> String {
        self.bound("get_sblock", [json!(name)], "block")
    }

    /// Splits a loop; the first part takes what the others leave, and parts of extent 1 are left out (their name is
    /// empty).
    fn split(&mut self, target: Value, parts: &[(i64, &str)], first: &str) -> Vec<String> {
        let mut factors = vec![Value::Null];
        let mut names = vec![self.name(first)];
        let mut all = names.clone();
        for (extent, stem) in parts {
            if *extent == 1 {
                all.push(String::new());
                continue;
            }
            let name = self.name(stem);
            factors.push(json!(extent));
            names.push(name.clone());
            all.push(name);
        }
        if names.len() == 1 {
            // The loop as it is, under a name of its own.
            let whole = target.as_str().map_or_else(String::new, |t| t.trim_start_matches('$').to_string());
            all[0] = whole;
            return all;
        }
        let call = self.call("split", [target]);
        call.kwargs.insert("factors".into(), Value::Array(factors));
        call.out = Some(Out::Many(names));
        all
    }

    /// The loops of the copy of a block's result, one per dimension of the buffer; of one that is written by parts two, as the
    /// block has.
    fn copy_loops(&mut self, copy: &str, b: &StreamBlock) -> Vec<String> {
        let dims = &b.write.dims;
        if dims.is_empty() {
            return Vec::new();
        }
        let Some(at) = b.write.split else { return self.loops(copy, dims.len()) };
        let mut loops = self.loops(copy, dims.len() - 1);
        let length = dims[at + 1].map_or(1, |i| b.iters[i].extent);
        let parts = self.split(var(&loops[at]), &[(length, "place")], "part");
        loops.splice(at..=at, parts);
        loops
    }

    /// The loops of a block, under fresh names.
    fn loops(&mut self, block: &str, count: usize) -> Vec<String> {
        let names: Vec<String> = (0..count).map(|_| self.name("loop")).collect();
        self.loops_of(block, &names);
        names
    }

    /// Several loops as one.
    fn fused(&mut self, loops: &[String]) -> String {
        match loops {
            [one] => one.clone(),
            many => self.bound("fuse", many.iter().map(|l| var(l)), "fused"),
        }
    }

    /// The last `count` loops of a block as one; the loops above stay without names.
    fn last_fused(&mut self, block: &str, count: usize) -> Value {
        let all = self.bound("get_loops", [var(block)], "loops");
        if count == 1 {
            return from_end(&all, 1);
        }
        let fused = self.bound("fuse", (1..=count).rev().map(|i| from_end(&all, i)), "fused");
        var(&fused)
    }

    fn bind(&mut self, name: &str, tag: &str) {
        if !name.is_empty() {
            self.call("bind", [var(name), json!(tag)]);
        }
    }

    fn unroll(&mut self, name: &str) {
        if !name.is_empty() {
            self.call("unroll", [var(name)]);
        }
    }

    fn vectorize(&mut self, name: &str) {
        if !name.is_empty() {
            self.call("vectorize", [var(name)]);
        }
    }

    /// Copies of what a block reads into registers, by wide accesses: (copy, ...) for the reads of these numbers.
    fn fragments(&mut self, block: &str, reads: &[usize]) -> Vec<String> {
        reads.iter().map(|r| self.copy_for((block, *r), [block], "local", "fragment")).collect()
    }

    /// A copy of what a block reads, for these alone: others that read the buffer read it still.
    fn copy_for<'n>(
        &mut self,
        (block, read): (&str, usize),
        readers: impl IntoIterator<Item = &'n str>,
        scope: &str,
        stem: &str,
    ) -> String {
        let readers: Vec<Value> = readers.into_iter().map(var).collect();
        self.bound("cache_read", [var(block), json!(read), json!(scope), json!(readers)], stem)
    }

    /// Holds in a scope what block `number` of a kernel makes for later ones of it. Returned is its copy to memory, where it outlives the
    /// kernel.
    fn held_made(
        &mut self,
        (from, to): (usize, usize),
        names: &[String],
        number: usize,
        scope: &str,
    ) -> Option<String> {
        let (stream, name) = (self.stream, &names[number]);
        let made = stream.blocks[from + number].write.buffer;
        if !stream.outlives(made, to) {
            self.call("set_scope", [var(name), json!(0), json!(scope)]);
            return None;
        }
        let reads = |b: &StreamBlock| b.reads.iter().any(|r| r.buffer == made);
        let later = (number + 1..to - from).filter(|at| reads(&stream.blocks[from + at]));
        let readers: Vec<Value> = later.map(|at| var(&names[at])).collect();
        Some(self.bound("cache_write", [var(name), json!(0), json!(scope), json!(readers)], "out"))
    }

    /// Puts copies, and the computation between them, under the loop over threads.
    fn at_thread(&mut self, thread: &str, compute: Option<&str>, fragments: &[String]) {
        if let Some(block) = compute {
            self.call("compute_at", [var(block), var(thread), json!(true)]);
            let loops = self.bound("get_loops", [var(block)], "loops");
            self.call("unroll", [from_end(&loops, 1)]);
        }
        for fragment in fragments {
            self.call("compute_at", [var(fragment), var(thread), json!(true)]);
            let loops = self.bound("get_loops", [var(fragment)], "loops");
            self.call("vectorize", [from_end(&loops, 1)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_check;
    use crate::replay::replay_strict;
    use crate::space::stream::streams;
    use satune_ir::term::stream::{FlatPlan, TilePlan};
    use satune_ir::tvmscript;

    fn runs(shapes: [&str; 2], extents: [i64; 2], from: &str, kernel: KernelPlan) {
        let [m, n] = extents;
        let [a, b] = shapes;
        let text = format!(
            "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer({a}, \"float16\"), B: T.Buffer({b}, \"float16\")):\n    for i, j in T.grid({m}, {n}):\n        with T.sblock(\"map\"):\n            vi, vj = T.axis.remap(\"SS\", [i, j])\n            B[vi, vj] = A[{from}]\n"
        );
        let program = tvmscript::parse(&text).unwrap();
        let plan = StreamPlan { inlined: Vec::new(), parts: 1, cascaded: false, kernels: vec![kernel] };
        let trace = trace(&plan, &streams(&program).unwrap()).unwrap();
        let (results, schedule) = replay_strict(&program, &trace.calls).unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        if let Err(error) = gpu_check::check(schedule.program(), &GpuLimits::default()) {
            panic!("{extents:?}: {error}\n{}", tvmscript::print(schedule.program()));
        }
    }

    #[test]
    fn tiles_may_be_wider_than_rows_and_more_than_a_grid_has_along_y() {
        for (m, n) in [(5, 3), (3, 5), (100, 20), (20, 100), (1, 1), (1 << 20, 3), (3, 1 << 20)] {
            for vector in [1, 4].into_iter().filter(|v| m % v == 0 && n % v == 0) {
                let tile = TilePlan { block: "map".into(), side: 16, threads: 64, vector, pad: 1 };
                let (a, b) = (format!("({n}, {m})"), format!("({m}, {n})"));
                runs([&a, &b], [m, n], "vj, vi", KernelPlan::Tile(tile));
            }
        }
    }

    #[test]
    fn rows_may_have_more_blocks_than_a_grid_has_along_y() {
        for (m, n) in [(1, 1 << 28), (4, 1 << 20)] {
            let shape = format!("({m}, {n})");
            let plan = FlatPlan { blocks: vec!["map".into()], side_by_side: 1, steps: 1, threads: 32, vector: 2 };
            runs([&shape, &shape], [m, n], "vi, vj", KernelPlan::Flat(plan));
        }
    }
}
