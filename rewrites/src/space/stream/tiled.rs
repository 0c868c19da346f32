//! The contractions among the blocks of a program: each as a program of its own, and the calls of its schedules in the whole.
use super::blocks::moves;
use super::read::{self, StreamError};
use crate::replay::Replay;
use crate::space::contraction::contraction;
use crate::space::gather::made_elsewhere;
use crate::space::in_order;
use crate::space::nests::parts;
use crate::trace::{Call, Out};
use crate::tree::child_realizes;
use satune_ir::term::stream::{Stream, Tiled};
use satune_ir::term::tensor::Gemm;
use satune_ir::term::Contraction;
use satune_ir::{access, tvmscript, Block, BlockRealize, BufferId, Program, Region, Stmt};
use serde_json::{json, Value};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::iter;

/// What was asked of parts of programs: which contraction each is. Ways to inline leave most parts as they are, and each answer takes
/// replays.
#[derive(Default)]
pub(super) struct Contractions {
    known: HashMap<String, Option<Contraction>>,
}

impl Contractions {
    /// Neighbouring blocks of a program that are a contraction by themselves: a sum of products, of matrices as they are or gathered,
    /// alone and with as much as can be of the chain of maps after it; also with the paddings, or the maps that compute its factors, before
    /// it. `made` has the names of the buffers that are made before, too.
    fn of(&mut self, program: &Program, made: &BTreeSet<String>) -> Vec<Tiled> {
        let nests = parts(program);
        let mut out = Vec::new();
        let sums = |nest: &Stmt| child_realizes(nest).iter().any(|realize| realize.block.init.is_some());
        for sum in (0..nests.len()).filter(|at| sums(nests[*at])) {
            // What makes a factor, or both of them.
            let before = (1..=2).map_while(|n| sum.checked_sub(n).filter(|at| !sums(nests[*at])));
            for from in iter::once(sum).chain(before) {
                let mut longest = None;
                for to in sum + 1..=nests.len() {
                    let found = self.alone(alone(program, &nests, &|at| (from..to).contains(&at)));
                    let Some(mut contraction) = found.filter(|c| from == sum || brings_more(c)) else { break };
                    let read = contraction.epilogue.iter().flat_map(|e| &e.reads).map(|read| &read.name);
                    let of_others: BTreeSet<&String> = read.filter(|name| made.contains(*name)).collect();
                    if !of_others.is_empty() {
                        let part = alone(program, &nests, &|at| (from..to).contains(&at));
                        let Some(reads) = made_elsewhere(&part, &contraction, &of_others) else { break };
                        contraction.epilogue.iter_mut().for_each(|e| e.made = reads.clone());
                    }
                    let found = Tiled { from, to, contraction };
                    match to == sum + 1 {
                        true => out.push(found),
                        false => longest = Some(found),
                    }
                }
                out.extend(longest);
            }
        }
        out
    }

    /// A part of a program; the buffers of a contraction have the numbers that they have there.
    fn alone(&mut self, part: Program) -> Option<Contraction> {
        let numbers = part.params.iter().chain(&part.body.block.alloc_buffers);
        let text = format!("{:?}\n{}", numbers.collect::<Vec<_>>(), tvmscript::print(&part));
        self.known.entry(text).or_insert_with(|| contraction(&part).ok()).clone()
    }
}

/// Whether a contraction with what makes its factors has schedules that the others have not. On single threads what is computed of one
/// element can be combined as well.
fn brings_more(contraction: &Contraction) -> bool {
    let Some(gather) = &contraction.gather else { return false };
    let computed: Vec<_> = [&gather.a, &gather.b].into_iter().filter_map(|of| of.computed.as_ref()).collect();
    computed.is_empty() || Gemm::multiplied(contraction) || computed.iter().any(|of| of.reads.len() > 1)
}

/// The contractions of a program whose buffers are made by its own blocks alone.
pub fn contractions(program: &Program) -> Vec<Tiled> {
    let made = parts(program).into_iter().flat_map(written);
    Contractions::default().of(program, &made.map(|buffer| program.buffer(buffer).name.clone()).collect())
}

/// Some nests as a program: what the others access, too, is a parameter, and a result that nobody reads.
pub(super) fn alone(program: &Program, nests: &[&Stmt], taken: &dyn Fn(usize) -> bool) -> Program {
    let (mut inside, mut outside, mut read) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (at, nest) in nests.iter().enumerate() {
        let accesses = accessed(program, nest);
        if taken(at) {
            read.extend(accesses.reads.iter().copied());
        }
        let side = if taken(at) { &mut inside } else { &mut outside };
        side.extend(accesses.all());
    }
    let kept = nests.iter().enumerate().filter(|(at, _)| taken(*at));
    let root = &program.body.block;
    let passed = |buffer: &&BufferId| outside.contains(buffer) || !read.contains(buffer);
    let (passed, own): (Vec<BufferId>, Vec<BufferId>) =
        root.alloc_buffers.iter().filter(|buffer| inside.contains(buffer)).partition(passed);
    let params = program.params.iter().filter(|buffer| inside.contains(buffer)).copied().chain(passed).collect();
    let block = Block {
        alloc_buffers: own,
        body: Box::new(Stmt::seq(kept.map(|(_, nest)| (*nest).clone()).collect())),
        iter_vars: root.iter_vars.clone(),
        reads: root.reads.clone(),
        writes: root.writes.clone(),
        init: root.init.clone(),
        match_buffers: root.match_buffers.clone(),
        annotations: root.annotations.clone(),
        name: root.name.clone(),
        id: root.id,
    };
    let body = BlockRealize {
        iter_values: program.body.iter_values.clone(),
        predicate: program.body.predicate.clone(),
        block,
    };
    Program {
        name: program.name.clone(),
        params,
        buffers: program.buffers.clone(),
        attrs: program.attrs.clone(),
        body,
        next_var: program.next_var,
        next_block: program.next_block,
    }
}

/// The buffers that the block of a nest writes.
fn written(nest: &Stmt) -> Vec<BufferId> {
    child_realizes(nest).into_iter().flat_map(|r| &r.block.writes).map(|region| region.buffer).collect()
}

/// The buffers that a nest reads, and those that it writes.
struct Accessed {
    reads: Vec<BufferId>,
    writes: Vec<BufferId>,
}

impl Accessed {
    fn all(self) -> impl Iterator<Item = BufferId> {
        self.reads.into_iter().chain(self.writes)
    }
}

fn accessed(program: &Program, nest: &Stmt) -> Accessed {
    let buffers = |regions: &[Region]| regions.iter().map(|region| region.buffer).collect();
    if in_order::launched(nest).is_some() {
        let touched = access::of_block(None, nest, &[], &program.buffers);
        return Accessed { reads: buffers(&touched.reads), writes: buffers(&touched.writes) };
    }
    let read = child_realizes(nest).into_iter().flat_map(|r| &r.block.reads).map(|region| region.buffer);
    Accessed { reads: read.collect(), writes: written(nest) }
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

/// The blocks of a program as it is after some calls; buffers of these names are made by blocks, though they be parameters.
pub(super) fn read(
    state: &Replay,
    made: &BTreeSet<String>,
    contractions: &mut Contractions,
) -> Result<Stream, StreamError> {
    let stream = read::stream(state.schedule.program(), moves(&state.schedule), &mut |_, _| ())?;
    Ok(with_contractions(stream, state, made, contractions))
}

/// The blocks, and which of them are contractions.
pub(super) fn with_contractions(
    stream: Stream,
    state: &Replay,
    made: &BTreeSet<String>,
    contractions: &mut Contractions,
) -> Stream {
    let tiled = if stream.pipeline { contractions.of(state.schedule.program(), made) } else { Vec::new() };
    Stream { tiled, ..stream }
}
