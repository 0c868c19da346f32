//! From a plan to the trace of primitives that makes it: replayed on the source program, the trace gives the scheduled
//! program.
//!
//! The calls come in the one order that TensorIR's conditions allow: caches while the nest is whole, then the loops,
//! then the caches to their loops (innermost first: a copy moves only after its consumers did), then the schedules of the
//! copies, and decompose_reduction last, since nothing above the update can be bound after it.
use super::gather::GatherWriter;
use super::writer::{from_end, var, Draft, TraceWriter};
use crate::keys;
use crate::trace::Trace;
use satune_ir::term::{Axis, Contraction, CoresPlan, Fill, Pair, Pipe, Side, StagedLayout};
use serde_json::{json, Value};

/// Makes the trace of a plan.
pub fn trace(plan: &CoresPlan, contraction: &Contraction) -> Trace {
    let [mut placed, laid_out] = trace_in_parts(plan, contraction);
    placed.calls.extend(laid_out.calls);
    placed
}

/// The trace of a plan in two parts: up to where every block has its place, and from the layouts on. After a layout of the
/// second part, that a copy covers what is read from it may be no longer proved, and so no block of the program has a new place.
pub(super) fn trace_in_parts(plan: &CoresPlan, contraction: &Contraction) -> [Trace; 2] {
    let mut writer = Writer { plan, contraction, draft: Draft::default(), placed: 0 };
    writer.write();
    let mut calls = writer.draft.finish().calls;
    let laid_out = calls.split_off(writer.placed);
    [Trace { calls }, Trace { calls: laid_out }]
}

struct Writer<'a> {
    plan: &'a CoresPlan,
    contraction: &'a Contraction,
    draft: Draft,
    /// Calls until every block has its place.
    placed: usize,
}

impl TraceWriter for Writer<'_> {
    fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

/// Loops that one axis was split into, by what they are for; an empty name is a loop that is not there.
#[derive(Default, Clone)]
struct AxisLoops {
    block: String,
    group: String,
    vthread_outer: String,
    warp: String,
    vthread_inner: String,
    lane: String,
    register: String,
}

impl Writer<'_> {
    fn write(&mut self) {
        let (plan, contraction) = (self.plan, self.contraction);
        self.named("get_sblock", [json!(contraction.block_name)], "block");
        self.made_a_product(contraction);
        let mut loops: Vec<String> = contraction.iters.iter().map(|(axis, _)| format!("l_{axis}")).collect();
        self.loops_of("block", &loops.clone());
        let main = if plan.split_k > 1 {
            let (part, rest) = ("k_part".to_string(), "l_k_rest".to_string());
            self.split_into(var("l_k"), vec![json!(plan.split_k), Value::Null], &[part.clone(), rest.clone()]);
            self.named("rfactor", [var(&part), json!(0)], "partial");
            // The partial block has the same loops, with k split.
            let at = loops.iter().position(|l| l == "l_k").unwrap_or(loops.len() - 1);
            loops.splice(at..=at, [part, "l_k".to_string()]);
            self.loops_of("partial", &loops);
            "partial"
        } else {
            "block"
        };
        self.caches(main);
        self.inlined(contraction);
        if self.plan.accumulators {
            self.inline_epilogue(contraction, "c_local");
        }
        let (m, n) = (self.split_axis(Axis::M), self.split_axis(Axis::N));
        let (k_outer, k_inner, k_step) = self.split_k();
        let (thread, k_loops) = self.nest(&m, &n, [&k_outer, &k_inner, &k_step]);
        // The innermost loop above the k loop.
        let innermost = self.contraction.outer_reduce().last().map(|(axis, _)| format!("l_{axis}"));
        self.place(&thread, [&innermost.unwrap_or_else(|| thread.clone()), &k_outer, &k_inner]);
        if plan.split_k > 1 {
            // Before layouts: that a swizzled copy covers what is read from it is not proved by regions.
            self.cache_results(None);
            self.add_parts(contraction);
        }
        self.placed = self.draft.calls().len();
        self.fills(&k_outer);
        self.fragments();
        self.unrolls(&m, &n, &k_inner, &k_step);
        if plan.accumulators {
            self.store("c_local");
        }
        if plan.init_hoisted {
            self.named("decompose_reduction", [var(main), var(&k_loops)], "clear");
        }
        if plan.split_k > 1 {
            // Last of all: it looks at every block of the scope anew, and proves less of guarded ones than is known.
            self.named("decompose_reduction", [var("block"), var("f_part")], "f_clear");
        }
    }

    fn caches(&mut self, main: &str) {
        if self.plan.accumulators {
            self.named("cache_write", [var(main), json!(0), json!("local")], "c_local");
        }
        for side in [Side::A, Side::B] {
            let staging = *self.plan.staging(side);
            if let Some((_, fill)) = staging.shared {
                self.cache_read(self.contraction, main, side, "shared", &shared_name(side));
                if !fill.coalesced {
                    // Neighbouring threads run across the rows.
                    let last = self.contraction.operand(side).dims.len() - 1;
                    self.iterate(&shared_name(side), &[&[last][..], &(0..last).collect::<Vec<_>>()].concat());
                }
            }
            if let Some(vector) = staging.local {
                self.cache_read(self.contraction, main, side, "local", &local_name(side));
                if vector > 1 {
                    // The vector loop has to be innermost.
                    let (at, _) = self.fragment_axis(side);
                    let others = (0..self.contraction.operand(side).dims.len()).filter(|i| *i != at);
                    self.iterate(&local_name(side), &others.chain([at]).collect::<Vec<_>>());
                }
            }
        }
    }

    /// The iterators of an operand's copy in the order that its loops are to have: `compute_at` makes a loop for each in turn.
    /// `reorder` of the loops would ask for affine bindings, and guards along both axes are none.
    fn iterate(&mut self, block: &str, order: &[usize]) {
        if !order.is_sorted() {
            self.call("reorder_block_iter_var", [var(block), json!(order)]);
        }
    }

    /// Position of the dimension along which a fragment's accesses run, and how many elements of it a thread has.
    fn fragment_axis(&self, side: Side) -> (usize, i64) {
        let along_k = self.plan.staging(side).shared.is_some_and(|(layout, _)| !layout.k_major);
        let (axis, run) = match (along_k, side) {
            (true, _) => (Axis::K, self.plan.k_step),
            (false, Side::A) => (Axis::M, self.plan.registers.m),
            (false, Side::B) => (Axis::N, self.plan.registers.n),
        };
        let dims = &self.contraction.operand(side).dims;
        (dims.iter().position(|d| *d == axis).unwrap_or(dims.len() - 1), run)
    }

    /// Splits m or n into the loops of the plan; parts of extent 1 are left out.
    fn split_axis(&mut self, axis: Axis) -> AxisLoops {
        let get = |pair: Pair| if axis == Axis::M { pair.m } else { pair.n };
        let plan = self.plan;
        let mut loops = AxisLoops { block: format!("{axis}_block"), ..AxisLoops::default() };
        let group = plan.blocks.iter().find(|l| l.axis == axis && l.group).map_or(1, |l| l.extent);
        let parts = [
            (group, "group", &mut loops.group),
            (get(plan.vthread_outer), "vthread", &mut loops.vthread_outer),
            (get(plan.warps), "warp", &mut loops.warp),
            (get(plan.vthread_inner), "wvthread", &mut loops.vthread_inner),
            (get(plan.lanes), "lane", &mut loops.lane),
            (get(plan.registers), "reg", &mut loops.register),
        ];
        let mut factors = vec![Value::Null];
        let mut names = vec![loops.block.clone()];
        for (extent, what, slot) in parts {
            if extent > 1 {
                *slot = format!("{axis}_{what}");
                names.push(slot.clone());
                factors.push(json!(extent));
            }
        }
        if names.len() == 1 {
            // Nothing to split: the whole loop goes to blocks.
            loops.block = format!("l_{axis}");
        } else {
            self.split_into(var(&format!("l_{axis}")), factors, &names);
        }
        loops
    }

    fn split_k(&mut self) -> (String, String, String) {
        let plan = self.plan;
        let names = ["k_outer", "k_inner", "k_step"].map(String::from);
        let steps = plan.k_tile / plan.k_step.max(1);
        if plan.k_step > 1 {
            self.split_into(var("l_k"), vec![Value::Null, json!(steps), json!(plan.k_step)], &names);
            let [outer, inner, step] = names;
            (outer, inner, step)
        } else {
            self.split_into(var("l_k"), vec![Value::Null, json!(steps)], &names[..2]);
            let [outer, inner, _] = names;
            (outer, inner, String::new())
        }
    }

    /// Orders all loops, fuses and binds those of blocks and threads. Returns the thread loop and the outermost reduction
    /// loop.
    fn nest(&mut self, m: &AxisLoops, n: &AxisLoops, k: [&String; 3]) -> (String, String) {
        let plan = self.plan;
        let mut blocks: Vec<String> = Vec::new();
        for l in &plan.blocks {
            let of = |loops: &AxisLoops| if l.group { loops.group.clone() } else { loops.block.clone() };
            blocks.push(match l.axis {
                Axis::M => of(m),
                Axis::N => of(n),
                Axis::K => "k_part".into(),
                other => format!("l_{other}"),
            });
        }
        let ordered = |m_outer: bool, on_m: &String, on_n: &String| {
            let pair = if m_outer { [on_m, on_n] } else { [on_n, on_m] };
            pair.into_iter().filter(|l| !l.is_empty()).cloned().collect::<Vec<_>>()
        };
        let vthreads: Vec<String> =
            [ordered(true, &m.vthread_outer, &n.vthread_outer), ordered(true, &m.vthread_inner, &n.vthread_inner)]
                .concat();
        let threads =
            [ordered(plan.warps_m_outer, &m.warp, &n.warp), ordered(plan.lanes_m_outer, &m.lane, &n.lane)].concat();
        let outer: Vec<String> = self.contraction.outer_reduce().map(|(axis, _)| format!("l_{axis}")).collect();
        let registers = ordered(plan.registers_m_outer, &m.register, &n.register);
        let reduction = outer.first().unwrap_or(k[0]).clone();
        let serial: Vec<String> = outer.iter().chain(k).filter(|l| !l.is_empty()).cloned().collect();
        let all = [blocks.clone(), vthreads.clone(), threads.clone(), serial, registers].concat();
        self.call("reorder", all.iter().map(|l| var(l)));
        let block = self.fuse_into(&blocks, "block_fused");
        let thread = self.fuse_into(&threads, "thread_fused");
        self.call("bind", [var(&block), json!("blockIdx.x")]);
        for (vthread, tag) in vthreads.iter().zip(["vthread.x", "vthread.y", "vthread.z", "vthread"]) {
            self.call("bind", [var(vthread), json!(tag)]);
        }
        self.call("bind", [var(&thread), json!("threadIdx.x")]);
        (thread, reduction)
    }

    /// Caches go to their loops, consumers before producers.
    fn place(&mut self, thread: &str, [above_k, k_outer, k_inner]: [&str; 3]) {
        if self.plan.accumulators {
            self.call("reverse_compute_at", [var("c_local"), var(thread), json!(true)]);
        }
        for side in [Side::A, Side::B] {
            if self.plan.staging(side).local.is_some() {
                self.call("compute_at", [var(&local_name(side)), var(k_inner), json!(true)]);
            }
        }
        for side in [Side::A, Side::B] {
            let staging = self.plan.staging(side);
            if staging.shared.is_some() {
                let at = if staging.hoisted { above_k } else { k_outer };
                self.call("compute_at", [var(&shared_name(side)), var(at), json!(true)]);
            }
        }
    }

    fn fills(&mut self, k_outer: &str) {
        let mut staged = 0;
        for side in [Side::A, Side::B] {
            if let Some((layout, fill)) = self.plan.staging(side).shared {
                self.fill(side, fill);
                self.layout(side, layout);
                if self.plan.staging(side).hoisted {
                    continue;
                }
                if self.plan.pipe == Pipe::Registers {
                    let block = shared_name(side);
                    self.call("annotate", [var(&block), json!(keys::LOCAL_STAGE), json!(1)]);
                }
                staged += 1;
            }
        }
        let last = match self.plan.pipe {
            Pipe::Plain => return,
            Pipe::Registers => 1,
            Pipe::Async(stages) => i64::from(stages) - 1,
        };
        let mut stages = vec![0; staged];
        stages.push(last);
        let order: Vec<usize> = (0..=staged).collect();
        self.call("annotate", [var(k_outer), json!(keys::PIPELINE_STAGE), json!(stages)]);
        self.call("annotate", [var(k_outer), json!(keys::PIPELINE_ORDER), json!(order)]);
        if matches!(self.plan.pipe, Pipe::Async(_)) {
            self.call("annotate", [var(k_outer), json!(keys::PIPELINE_ASYNC), json!([0])]);
        }
    }

    /// The cooperative copy: all its loops fused, then (serial, threads, vector).
    fn fill(&mut self, side: Side, fill: Fill) {
        let rank = self.contraction.operand(side).dims.len();
        let loops = self.name("copy_loops");
        self.named("get_loops", [var(&shared_name(side))], &loops);
        let fused = if rank > 1 {
            let fused = self.name("copy_fused");
            self.named("fuse", (1..=rank).rev().map(|i| from_end(&loops, i)), &fused);
            var(&fused)
        } else {
            from_end(&loops, 1)
        };
        let (serial, thread, vector) = (self.name("copy_serial"), self.name("copy_thread"), self.name("copy_vector"));
        let threads = json!(self.plan.threads);
        if fill.vector > 1 {
            let names = [serial.clone(), thread.clone(), vector.clone()];
            self.split_into(fused, vec![Value::Null, threads, json!(fill.vector)], &names);
            self.call("vectorize", [var(&vector)]);
        } else {
            self.split_into(fused, vec![Value::Null, threads], &[serial.clone(), thread.clone()]);
        }
        self.call("bind", [var(&thread), json!("threadIdx.x")]);
        if fill.unroll {
            self.call("unroll", [var(&serial)]);
        }
    }

    /// transform_layout and storage_align of a tile in shared memory.
    fn layout(&mut self, side: Side, layout: StagedLayout) {
        let operand = self.contraction.operand(side);
        let (spatial, tile) = (side.spatial(), self.plan.spatial(side));
        let rank = operand.dims.len();
        let column = if layout.k_major { spatial } else { Axis::K };
        let row = if layout.k_major { Axis::K } else { spatial };
        let names: Vec<String> = (0..rank).map(|i| format!("i{i}")).collect();
        let name_of =
            |axis: Axis| operand.dims.iter().position(|d| *d == axis).map_or("0".into(), |i| names[i].clone());
        let mut target: Vec<String> =
            operand.dims.iter().filter(|d| **d != row && **d != column).map(|d| name_of(*d)).collect();
        target.push(name_of(row));
        let pitch = layout.pitch(tile, self.plan.staged_k(side));
        let chunk = i64::from((16 / operand.dtype.bytes()).max(1));
        let chunks = (pitch / chunk).clamp(1, 8);
        let plain_column = name_of(column);
        target.push(if layout.swizzle && chunks > 1 {
            // The remainder bounds the xor, of which TVM knows nothing.
            let (c, r, run) = (plain_column, name_of(row), chunk * chunks);
            format!("{c} // {run} * {run} + ({c} // {chunk} ^ {r}) % {chunks} * {chunk} + {c} % {chunk}")
        } else {
            plain_column
        });
        if target != names {
            let map = format!("lambda {}: ({})", names.join(", "), target.join(", "));
            let block = shared_name(side);
            let call = self.mapped("transform_layout", [var(&block), json!(["write", 0])], map);
            if layout.swizzle {
                // Where the tensor's last tile is cut, the permutation reaches past it.
                call.kwargs.insert("assume_injective_transform".into(), json!(true));
            }
        }
        if layout.pad > 0 {
            let block = shared_name(side);
            let row_length = pitch - i64::from(layout.pad);
            let (factor, offset) =
                if i64::from(layout.pad) < row_length { (row_length, i64::from(layout.pad)) } else { (pitch, 0) };
            self.call("storage_align", [var(&block), json!(0), json!(-2), json!(factor), json!(offset)]);
        }
    }

    fn fragments(&mut self) {
        for side in [Side::A, Side::B] {
            let staging = *self.plan.staging(side);
            let Some(vector) = staging.local.filter(|v| *v > 1) else { continue };
            let run = self.fragment_axis(side).1;
            let loops = self.name("fragment_loops");
            self.named("get_loops", [var(&local_name(side))], &loops);
            let mut target = from_end(&loops, 1);
            if run > i64::from(vector) {
                let (outer, inner) = (self.name("fragment_outer"), self.name("fragment_vector"));
                self.split_into(target, vec![Value::Null, json!(vector)], &[outer, inner.clone()]);
                target = var(&inner);
            }
            self.call("vectorize", [target]);
        }
    }

    fn unrolls(&mut self, m: &AxisLoops, n: &AxisLoops, k_inner: &str, k_step: &str) {
        if self.plan.unroll_k {
            self.call("unroll", [var(k_inner)]);
        }
        for name in [k_step, &m.register, &n.register] {
            if !name.is_empty() {
                self.call("unroll", [var(name)]);
            }
        }
    }

    /// Vectorizes the innermost loop of a write-back.
    fn store(&mut self, block: &str) {
        let width = i64::from(self.plan.store_vector);
        if width == 1 {
            return;
        }
        let loops = self.name("store_loops");
        self.named("get_loops", [var(block)], &loops);
        let mut target = from_end(&loops, 1);
        if self.plan.registers.n > width {
            let (outer, inner) = (self.name("store_outer"), self.name("store_vector"));
            self.split_into(target, vec![Value::Null, json!(width)], &[outer, inner.clone()]);
            target = var(&inner);
        }
        self.call("vectorize", [target]);
    }
}

fn shared_name(side: Side) -> String {
    match side {
        Side::A => "a_shared".into(),
        Side::B => "b_shared".into(),
    }
}

fn local_name(side: Side) -> String {
    match side {
        Side::A => "a_local".into(),
        Side::B => "b_local".into(),
    }
}
