//! What writers of traces share: the calls so far, fresh names, and how results of earlier calls are named.
use crate::trace::{Call, Out, Trace};
use satune_ir::term::{Axis, Contraction, Side};
use serde_json::{json, Value};

/// A trace in the making.
#[derive(Default)]
pub(crate) struct Draft {
    calls: Vec<Call>,
    fresh: u32,
}

impl Draft {
    /// Calls that were made elsewhere.
    pub(crate) fn extend(&mut self, calls: impl IntoIterator<Item = Call>) {
        self.calls.extend(calls);
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub(crate) fn finish(self) -> Trace {
        Trace { calls: self.calls }
    }
}

/// A result by its name.
pub(crate) fn var(name: &str) -> Value {
    json!(format!("${name}"))
}

/// `name[index]`, counted from the end.
pub(crate) fn from_end(name: &str, index: usize) -> Value {
    json!(format!("${name}[-{index}]"))
}

/// Writes a trace call by call.
pub(crate) trait TraceWriter {
    fn draft(&mut self) -> &mut Draft;

    /// A call; its result has no name yet.
    fn call(&mut self, op: &str, args: impl IntoIterator<Item = Value>) -> &mut Call {
        let calls = &mut self.draft().calls;
        calls.push(Call::new(op, args));
        let last = calls.len() - 1;
        &mut calls[last]
    }

    /// A call that takes a map of indices.
    fn mapped(&mut self, op: &str, args: impl IntoIterator<Item = Value>, map: String) -> &mut Call {
        let call = self.call(op, args);
        call.kwargs.insert("index_map".into(), map.into());
        call
    }

    /// A call with one result, of this name.
    fn named(&mut self, op: &str, args: impl IntoIterator<Item = Value>, name: &str) {
        self.call(op, args).out = Some(Out::One(name.to_string()));
    }

    /// A name that no result has.
    fn name(&mut self, stem: &str) -> String {
        let fresh = &mut self.draft().fresh;
        *fresh += 1;
        format!("{stem}{fresh}")
    }

    /// A call with one result, of a fresh name.
    fn bound(&mut self, op: &str, args: impl IntoIterator<Item = Value>, stem: &str) -> String {
        let name = self.name(stem);
        self.named(op, args, &name);
        name
    }

    /// The loops of a block under these names.
    fn loops_of(&mut self, block: &str, names: &[String]) {
        self.call("get_loops", [var(block)]).out = Some(Out::Many(names.to_vec()));
    }

    /// Splits a loop into loops of these names.
    fn split_into(&mut self, target: Value, factors: Vec<Value>, names: &[String]) {
        let call = self.call("split", [target]);
        call.kwargs.insert("factors".into(), Value::Array(factors));
        call.out = Some(Out::Many(names.to_vec()));
    }

    /// One loop of several. Returns its name; one alone keeps its own.
    fn fuse_into(&mut self, loops: &[String], name: &str) -> String {
        match loops {
            [one] => one.clone(),
            many => {
                self.named("fuse", many.iter().map(|l| var(l)), name);
                name.to_string()
            }
        }
    }

    /// Extents along m, n and k become multiples of these; `axes`: the block's, as it has them.
    fn pad_einsum(&mut self, axes: &[Axis], [m, n, k]: [i64; 3]) {
        let of = |axis: &Axis| match axis {
            Axis::M => m,
            Axis::N => n,
            Axis::K => k,
            Axis::Batch(_) | Axis::Outer(_) => 1,
        };
        let padding: Vec<i64> = axes.iter().map(of).collect();
        self.call("pad_einsum", [var("block"), json!(padding)]);
    }

    /// A copy of what the contraction, in `block`, reads as this operand: for nothing else where a block after it reads the buffer, too.
    fn cache_read(&mut self, contraction: &Contraction, block: &str, side: Side, scope: &str, name: &str) {
        let operand = contraction.operand(side);
        let alone = contraction.reads_beside(operand.buffer).then(|| json!([var(block)]));
        let args = [var(block), json!(operand.index), json!(scope)];
        self.named("cache_read", args.into_iter().chain(alone), name);
    }

    /// What comes after the contraction goes into the last of its blocks, which is returned: the order of a gathered result, elementwise
    /// blocks.
    fn inlined_in_last(&mut self, contraction: &Contraction) -> Option<String> {
        let mut blocks = Vec::new();
        if contraction.gather.is_some() {
            blocks.push("c_scatter".to_string());
        }
        for name in contraction.epilogue.iter().flat_map(|e| &e.blocks) {
            blocks.push(self.bound("get_sblock", [json!(name)], "map"));
        }
        let last = blocks.pop()?;
        for block in &blocks {
            self.call("compute_inline", [var(block)]);
        }
        Some(last)
    }

    /// What comes after the contraction goes into the write-back of the sums, which is `stored`.
    fn inline_epilogue(&mut self, contraction: &Contraction, stored: &str) {
        let Some(last) = self.inlined_in_last(contraction) else { return };
        let made = contraction.epilogue.as_ref().map(|e| e.made.clone()).unwrap_or_default();
        self.hidden(&last, &made.of_last);
        self.call("reverse_compute_inline", [var(&last)]);
        self.hidden(stored, &made.of_stored);
    }

    /// A block no longer says that it reads these.
    fn hidden(&mut self, block: &str, reads: &[usize]) {
        if !reads.is_empty() {
            self.call("unsafe_hide_buffer_access", [var(block), json!("read"), json!(reads)]);
        }
    }

    /// The block that copies results of the second kernel of a split reduction, which `block` sums up, to their place, as
    /// `f_local`; `copy`: its name, where there is one already. What comes after the contraction can go into it.
    fn cache_results(&mut self, copy: Option<&str>) {
        match copy {
            None => self.named("cache_write", [var("block"), json!(0), json!("local")], "f_local"),
            Some(copy) => {
                self.call("set_scope", [var("block"), json!(0), json!("local")]);
                self.named("get_sblock", [json!(copy)], "f_local");
            }
        }
    }

    /// The second kernel of a split reduction: one thread per result adds the parts in `block`, and `f_local` copies their
    /// sum ([`TraceWriter::cache_results`]).
    fn add_parts(&mut self, contraction: &Contraction) {
        let all = contraction.iters.iter().filter(|(_, info)| !info.reduce);
        let spatial: Vec<String> = all.map(|(axis, _)| format!("f_{axis}")).collect();
        let names = [spatial.clone(), vec!["f_part".to_string()]].concat();
        self.loops_of("block", &names);
        let [block, thread] = ["f_block", "f_thread"].map(String::from);
        match wide_axis(contraction) {
            None => {
                let fused = self.fuse_into(&spatial, "f_fused");
                self.split_into(var(&fused), vec![Value::Null, json!(256)], &[block, thread]);
            }
            Some(axis) => {
                let of_axis = format!("f_{axis}");
                let across = if spatial.len() == 1 { block.clone() } else { "f_across".to_string() };
                self.split_into(var(&of_axis), vec![Value::Null, json!(256)], &[across.clone(), thread.clone()]);
                let blocks: Vec<String> =
                    spatial.into_iter().map(|l| if l == of_axis { across.clone() } else { l }).collect();
                self.call("reorder", blocks.iter().chain([&thread]).map(|l| var(l)));
                self.fuse_into(&blocks, &block);
            }
        }
        self.call("bind", [var("f_block"), json!("blockIdx.x")]);
        self.call("bind", [var("f_thread"), json!("threadIdx.x")]);
        self.call("reverse_compute_at", [var("f_local"), var("f_thread"), json!(true)]);
    }
}

/// The axis of which each thread of a block has another value, where results are too many for one loop over all of them: its
/// variable has 32 bits. The innermost one that fills a block, for threads to write side by side.
fn wide_axis(contraction: &Contraction) -> Option<Axis> {
    // As m and n are padded to whole tiles.
    let padded = |extent: i64| extent.saturating_add(255) / 256 * 256;
    let spatial = || contraction.iters.iter().filter(|(_, info)| !info.reduce).map(|(axis, info)| (*axis, info.extent));
    let results = spatial().fold(1_i64, |all, (axis, extent)| {
        all.saturating_mul(if matches!(axis, Axis::M | Axis::N) { padded(extent) } else { extent })
    });
    if results <= i64::from(i32::MAX) - 255 {
        return None;
    }
    let fills = spatial().rfind(|(_, extent)| *extent >= 256);
    fills.or_else(|| spatial().max_by_key(|(_, extent)| *extent)).map(|(axis, _)| axis)
}
