//! The contractions among the blocks of a program: each as a program of its own, and the calls of its schedules in the whole.
use crate::space::encode::product;
use crate::space::nests::parts;
use crate::trace::{Call, Out};
use crate::tree::child_realizes;
use satune_ir::term::stream::Tiled;
use satune_ir::{BufferId, Program, Stmt};
use serde_json::{json, Value};
use std::collections::HashSet;

/// Neighbouring blocks of a program that are a contraction by themselves: a sum of products of matrices as they are, alone and
/// with as much as can be of the chain of maps after it.
pub(super) fn of(program: &Program) -> Vec<Tiled> {
    let nests = parts(program);
    let made: HashSet<BufferId> = nests.iter().flat_map(|nest| written(nest)).collect();
    let mut out = Vec::new();
    let sums = |nest: &Stmt| child_realizes(nest).iter().any(|realize| realize.block.init.is_some());
    for from in (0..nests.len()).filter(|from| sums(nests[*from])) {
        let mut longest = None;
        for to in from + 1..=nests.len() {
            let contraction = alone(program, &nests, from, to).and_then(|part| product(&part).ok());
            let Some(contraction) = contraction else { break };
            // `reverse_compute_inline` takes maps that read nothing else that the program makes.
            let read = contraction.epilogue.iter().flat_map(|e| &e.reads);
            if read.into_iter().any(|operand| made.contains(&operand.buffer)) {
                break;
            }
            let found = Tiled { from, to, contraction };
            match to == from + 1 {
                true => out.push(found),
                false => longest = Some(found),
            }
        }
        out.extend(longest);
    }
    out
}

/// Nests `from..to` as a program: what the others access, too, is a parameter.
fn alone(program: &Program, nests: &[&Stmt], from: usize, to: usize) -> Option<Program> {
    let buffers = |nests: &[&Stmt]| -> HashSet<BufferId> { nests.iter().flat_map(|nest| accessed(nest)).collect() };
    let (inside, outside) = (buffers(nests.get(from..to)?), buffers(&[&nests[..from], &nests[to..]].concat()));
    let mut part = program.clone();
    let root = &mut part.body.block;
    let shared = |buffer: &BufferId| inside.contains(buffer) && outside.contains(buffer);
    let passed: Vec<BufferId> = root.alloc_buffers.iter().copied().filter(shared).collect();
    root.alloc_buffers.retain(|buffer| inside.contains(buffer) && !outside.contains(buffer));
    *root.body = Stmt::seq(nests[from..to].iter().map(|nest| (*nest).clone()).collect());
    part.params.retain(|buffer| inside.contains(buffer));
    part.params.extend(passed);
    Some(part)
}

/// The buffers that the block of a nest writes.
fn written(nest: &Stmt) -> Vec<BufferId> {
    child_realizes(nest).into_iter().flat_map(|r| &r.block.writes).map(|region| region.buffer).collect()
}

/// The buffers that the block of a nest reads and writes.
fn accessed(nest: &Stmt) -> Vec<BufferId> {
    let read = child_realizes(nest).into_iter().flat_map(|r| &r.block.reads).map(|region| region.buffer);
    read.chain(written(nest)).collect()
}

/// The calls of a contraction's schedule as a part of a longer trace: its results have names that begin with `prefix`, and what
/// it copies is a copy for its own block alone.
pub(super) fn in_whole(calls: Vec<Call>, prefix: &str) -> impl Iterator<Item = Call> + '_ {
    let of_result = move |name: String| format!("{prefix}{name}");
    calls.into_iter().map(move |mut call| {
        call.args.iter_mut().for_each(|value| rename(value, prefix));
        call.kwargs.values_mut().for_each(|value| rename(value, prefix));
        call.out = call.out.map(|out| match out {
            Out::One(name) => Out::One(of_result(name)),
            Out::Many(names) => Out::Many(names.into_iter().map(of_result).collect()),
        });
        if let ("cache_read", [block, _, _]) = (call.op.as_str(), call.args.as_slice()) {
            let consumers = json!([block]);
            call.args.push(consumers);
        }
        call
    })
}

/// Gives the results that a value refers to other names.
fn rename(value: &mut Value, prefix: &str) {
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix('$') {
                *text = format!("${prefix}{name}");
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|v| rename(v, prefix)),
        _ => {}
    }
}
