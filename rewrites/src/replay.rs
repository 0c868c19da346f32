//! Replaying a trace: the interpreter of calls.
mod args;
mod handle;

pub use handle::Handle;

use crate::sample::Random;
use crate::sample_compute_location::Location;
use crate::schedule::{Result, Schedule};
use crate::trace::{Call, Out};
use crate::{
    add_unit_loop, annotate, annotate_buffer_access, bind, blockize, cache_index, cache_inplace, cache_read,
    cache_write, compute_at, compute_inline, decompose_padding, decompose_reduction, fuse, fuse_reduction_epilogue,
    loop_partition, merge, normalize_prim_func, pad_einsum, parallel, queries, read_at, rebase_reduction, reindex,
    reindex_cache_read, reindex_cache_write, reorder, reorder_block_iter_var, reverse_compute_at,
    reverse_compute_inline, rfactor, rolling_buffer, sample_categorical, sample_compute_location,
    sample_partitioned_tile, sample_perfect_tile, set_scope, soundness, split, storage_align, tensorize,
    transform_block_layout, transform_layout, unroll, unsafe_hide_buffer_access, unsafe_set_dtype, vectorize, write_at,
    ScheduleError,
};
use args::{wrong, Args};
use satune_ir::{BlockId, Expr, Program};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Outcome of one call.
pub type CallResult = Result<()>;

/// A schedule together with the values that calls have bound.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The schedule so far.
    pub schedule: Schedule,
    env: HashMap<String, Handle>,
    random: Random,
    decision: Option<Value>,
    /// The program at the start, where every call is followed by [`soundness::check`].
    source: Option<Arc<soundness::Source>>,
}

/// Makes the calls one after the other, up to the first refusal. Returns an outcome per call made, and the schedule that
/// the calls up to there left.
///
/// The verdicts are TVM's. [`replay_strict`] refuses what TVM gets wrong, too.
pub fn replay(program: &Program, calls: &[Call]) -> Result<(Vec<CallResult>, Schedule)> {
    run(Replay::new(program)?, calls)
}

/// [`replay`], with the seed of samples that have no decision.
pub fn replay_seeded(program: &Program, calls: &[Call], seed: u64) -> Result<(Vec<CallResult>, Schedule)> {
    run(Replay::new(program)?.with_seed(seed), calls)
}

/// [`replay`], where a call is refused that leaves a program which means something else, as far as [`soundness::check`] can
/// tell, and that no later call puts right.
pub fn replay_strict(program: &Program, calls: &[Call]) -> Result<(Vec<CallResult>, Schedule)> {
    // What is right in the end needs no look at what it was on the way.
    let (results, schedule) = replay(program, calls)?;
    let of_values = calls.iter().any(|c| MAY_CHANGE_VALUES.contains(&c.op.as_str()));
    if !of_values && soundness::check(program, schedule.program()).is_ok() {
        return Ok((results, schedule));
    }
    let judged = Judged::of(program, calls, 0)?;
    let Some((at, error)) = judged.culprit() else { return Ok((results, schedule)) };
    let (mut kept, schedule) = replay(program, &calls[..at])?;
    kept.push(Err(error.clone()));
    Ok((kept, schedule))
}

/// What came of calls made as TVM makes them: the outcome of each, whether the program means the same after each of them,
/// and after all.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Outcomes, up to the first refusal.
    pub calls: Vec<CallResult>,
    /// What [`soundness::check`] says after each of the calls; nothing where it was not asked.
    pub verdicts: Vec<CallResult>,
    /// What the calls left.
    pub schedule: Schedule,
}

impl Judged {
    /// Makes the calls, samples from a seed.
    ///
    /// # Errors
    /// Where the program is none that can be scheduled.
    pub fn of(program: &Program, calls: &[Call], seed: u64) -> Result<Judged> {
        let source = soundness::Source::new(program.clone());
        let mut state = Replay::new(program)?.with_seed(seed);
        let (mut results, mut verdicts): (Vec<CallResult>, Vec<CallResult>) = Default::default();
        let mut changed = None;
        for call in calls {
            let values = state.keeps_values(call).err();
            let result = state.call(call);
            let stop = result.is_err();
            changed = changed.or(values.filter(|_| !stop));
            let before = verdicts.last().cloned().unwrap_or(Ok(()));
            verdicts.push(match &changed {
                Some(error) => Err(error.clone()),
                None if stop || keeps_the_meaning(call) => before,
                None => source.check(state.schedule.program()),
            });
            results.push(result);
            if stop {
                break;
            }
        }
        Ok(Judged { calls: results, verdicts, schedule: state.schedule })
    }

    /// The call after which the program means something else to the end, and what is wrong with what it left.
    pub fn culprit(&self) -> Option<(usize, &ScheduleError)> {
        let last_sound = self.verdicts.iter().rposition(Result::is_ok);
        let at = last_sound.map_or(0, |i| i + 1);
        self.verdicts.get(at)?.as_ref().err().map(|error| (at, error))
    }

    /// The calls that left a program which meant something else until a later one put it right.
    pub fn put_right(&self) -> Vec<usize> {
        let end = self.culprit().map_or(self.verdicts.len(), |(at, _)| at);
        let wrong = |i: &usize| self.verdicts[*i].is_err() && (*i == 0 || self.verdicts[i - 1].is_ok());
        (0..end).filter(wrong).collect()
    }
}

fn run(mut state: Replay, calls: &[Call]) -> Result<(Vec<CallResult>, Schedule)> {
    let mut results = Vec::with_capacity(calls.len());
    for call in calls {
        let result = state.call(call);
        let stop = result.is_err();
        results.push(result);
        if stop {
            break;
        }
    }
    Ok((results, state.schedule))
}

impl Replay {
    /// Nothing called yet.
    pub fn new(program: &Program) -> Result<Replay> {
        Ok(Replay {
            schedule: Schedule::new(program.clone())?,
            env: HashMap::new(),
            random: Random::new(0),
            decision: None,
            source: None,
        })
    }

    /// Starts from a seed; without it, from 0. The seed matters for samples without a decision.
    pub fn with_seed(mut self, seed: u64) -> Replay {
        self.random = Random::new(seed);
        self
    }

    /// What the last call decided, where it was a sample; as its argument `decision`, it decides the same again.
    pub fn decision(&self) -> Option<&Value> {
        self.decision.as_ref()
    }

    /// Nothing called yet; calls are refused that leave a program which is not sound.
    pub fn strict(program: &Program) -> Result<Replay> {
        let source = soundness::Source::new(program.clone());
        Ok(Replay { source: Some(Arc::new(source)), ..Replay::new(program)? })
    }

    /// What a name is bound to.
    pub fn get(&self, name: &str) -> Option<&Handle> {
        self.env.get(name)
    }

    /// Makes one call. On refusal nothing has changed.
    pub fn call(&mut self, call: &Call) -> CallResult {
        let Some(source) = self.source.clone() else { return self.call_as_tvm(call) };
        if keeps_the_meaning(call) {
            return self.call_as_tvm(call);
        }
        self.keeps_values(call)?;
        let (schedule, env) = (self.schedule.clone(), self.env.clone());
        let outcome = self.call_as_tvm(call).and_then(|()| source.check(self.schedule.program()));
        if outcome.is_err() {
            (self.schedule, self.env) = (schedule, env);
        }
        outcome
    }

    /// Refuses the two primitives that change what is computed, and not only how, where they do.
    fn keeps_values(&self, call: &Call) -> CallResult {
        let (s, args) = (&self.schedule, Args { call, env: &self.env });
        let refused = |why: &str| ScheduleError::refused("The call changes the results", why);
        match call.op.as_str() {
            "fuse_reduction_epilogue" => {
                let (first, second) = (args.block(s, 0, "reduction_block")?, args.block(s, 1, "epilogue_block")?);
                let plan = fuse_reduction_epilogue::legal(s, first, second)
                    .map_err(|e| e.within("fuse_reduction_epilogue"))?;
                if !fuse_reduction_epilogue::is_linear(&plan) {
                    return Err(refused("The sum would be cut to its bounds after each step, and not once at its end")
                        .within("fuse_reduction_epilogue")
                        .at_block(second)
                        .remedy("reverse_compute_at brings the second block under the loops of the first"));
                }
            }
            "unsafe_set_dtype" => {
                let (block, index) = (args.block(s, 0, "block")?, args.int(1, "buffer_index")?);
                let plan = unsafe_set_dtype::legal(s, block, index, args.text(2, "dtype")?)
                    .map_err(|e| e.within("unsafe_set_dtype"))?;
                let old = s.program().buffer(plan.buffer).dtype;
                if !unsafe_set_dtype::keeps_values(old, plan.dtype) {
                    let why = format!("{} does not hold every value of {}", plan.dtype.name(), old.name());
                    return Err(refused(&why)
                        .within("unsafe_set_dtype")
                        .at_block(block)
                        .remedy("give a type that holds all values of the buffer's"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn call_as_tvm(&mut self, call: &Call) -> CallResult {
        self.decision = None;
        let result = match sample(self, call) {
            Some(result) => result?,
            None => dispatch(&mut self.schedule, &self.env, call)?,
        };
        self.schedule.settle_indices();
        match (&call.out, result) {
            (None, _) => {}
            (Some(Out::One(name)), value) => {
                self.env.insert(name.clone(), value);
            }
            (Some(Out::Many(names)), Handle::List(values)) if values.len() == names.len() => {
                self.env.extend(names.iter().cloned().zip(values));
            }
            (Some(Out::Many(names)), value) => {
                let count = if let Handle::List(values) = value { values.len() } else { 1 };
                return Err(wrong(call, format!("{} names for {count} results", names.len())));
            }
        }
        Ok(())
    }
}

/// The primitives of which [`Replay::keeps_values`] says whether they change what is computed, and not only how.
const MAY_CHANGE_VALUES: [&str; 2] = ["fuse_reduction_epilogue", "unsafe_set_dtype"];

fn keeps_the_meaning(call: &Call) -> bool {
    call.op.starts_with("get_") || KEEP_THE_MEANING.contains(&call.op.as_str())
}

/// Primitives that change how loops are executed, how they are written or what is said about them, and nothing that
/// [`soundness`] looks at.
const KEEP_THE_MEANING: [&str; 15] = [
    "fuse",
    "add_unit_loop",
    "vectorize",
    "unroll",
    "parallel",
    "annotate",
    "unannotate",
    "storage_align",
    "annotate_buffer_access",
    "reorder_block_iter_var",
    "unsafe_hide_buffer_access",
    "sample_perfect_tile",
    "sample_partitioned_tile",
    "sample_compute_location",
    "sample_categorical",
];

/// A number as an element of a block's buffer: a trace says whether it is whole, and not how many bits it has.
fn of_buffer(s: &Schedule, block: BlockId, (write, index): (bool, i64), value: Expr) -> Expr {
    let Ok(block) = s.block(block) else { return value };
    let regions = if write { &block.writes } else { &block.reads };
    let region = usize::try_from(index).ok().and_then(|i| regions.get(i));
    match (value, region.map(|r| s.program().buffer(r.buffer).dtype)) {
        (Expr::Int(v, _), Some(dtype)) if !dtype.is_float() => Expr::Int(v, dtype),
        (Expr::Float(bits, _), Some(dtype)) if dtype.is_float() => Expr::Float(bits, dtype),
        (value, _) => value,
    }
}

/// The names that [`replay`] knows, in the order of the manual.
pub const PRIMITIVES: &[&str] = &[
    "get_sblock",
    "get_block",
    "get_loops",
    "get_child_blocks",
    "get_producers",
    "get_consumers",
    "get_output_blocks",
    "split",
    "fuse",
    "merge",
    "reorder",
    "reorder_block_iter_var",
    "bind",
    "vectorize",
    "unroll",
    "parallel",
    "annotate",
    "unannotate",
    "add_unit_loop",
    "cache_read",
    "cache_write",
    "cache_inplace",
    "cache_index",
    "read_at",
    "write_at",
    "compute_at",
    "reverse_compute_at",
    "decompose_reduction",
    "set_scope",
    "unsafe_set_dtype",
    "storage_align",
    "rfactor",
    "rebase_reduction",
    "compute_inline",
    "reverse_compute_inline",
    "fuse_reduction_epilogue",
    "reindex",
    "reindex_cache_read",
    "reindex_cache_write",
    "blockize",
    "tensorize",
    "pad_einsum",
    "decompose_padding",
    "loop_partition",
    "transform_layout",
    "transform_block_layout",
    "normalize_prim_func",
    "rolling_buffer",
    "annotate_buffer_access",
    "unsafe_hide_buffer_access",
    "can_decompose_padding",
    "sample_perfect_tile",
    "sample_partitioned_tile",
    "sample_categorical",
    "sample_compute_location",
    "enter_postproc",
];

/// The primitives that take from the random state. None where the call is of another.
fn sample(state: &mut Replay, call: &Call) -> Option<Result<Handle>> {
    let args = Args { call, env: &state.env };
    let (handle, decision) = match call.op.as_str() {
        "sample_perfect_tile" | "sample_partitioned_tile" => match tile(&state.schedule, &args, &mut state.random) {
            Ok(factors) => (
                Handle::List(factors.iter().map(|f| Handle::Int(*f)).collect()),
                factors.into_iter().map(Value::from).collect(),
            ),
            Err(error) => return Some(Err(error)),
        },
        "sample_categorical" => match categorical(&args, &mut state.random) {
            Ok(choice) => (Handle::Int(choice.value), Value::from(choice.index)),
            Err(error) => return Some(Err(error)),
        },
        "sample_compute_location" => match location(&state.schedule, &args, &mut state.random) {
            Ok((number, Location::Loop(id))) => (Handle::Loop(id), Value::from(number)),
            Ok((number, place)) => (Handle::Place(place), Value::from(number)),
            Err(error) => return Some(Err(error)),
        },
        _ => return None,
    };
    state.decision = Some(decision);
    Some(Ok(handle))
}

/// The decision of a sample that decides several numbers; `null` is none.
fn decision(args: &Args<'_>, position: usize) -> Result<Option<Vec<i64>>> {
    match args.get(position, "decision") {
        None | Some(Value::Null) => Ok(None),
        Some(_) => args.ints(position, "decision").map(Some),
    }
}

fn tile(s: &Schedule, args: &Args<'_>, random: &mut Random) -> Result<Vec<i64>> {
    let (id, n) = (args.loop_(0, "loop")?, args.int(1, "n")?);
    if args.call.op == "sample_perfect_tile" {
        let (max, decision) = (args.int_or(2, "max_innermost_factor", 16)?, decision(args, 3)?);
        return sample_perfect_tile::sample_perfect_tile(s, id, n, max, decision.as_deref(), random);
    }
    let part = (args.int_or(2, "partition_pos", 0)?, args.int_or(3, "innerpart_factor", 1)?);
    sample_partitioned_tile::sample_partitioned_tile(s, id, n, part, decision(args, 4)?.as_deref(), random)
}

/// The decision of a sample that decides one number; `null` is none.
fn choice(args: &Args<'_>, position: usize) -> Result<Option<i64>> {
    match args.get(position, "decision") {
        None | Some(Value::Null) => Ok(None),
        Some(_) => args.int(position, "decision").map(Some),
    }
}

fn location(s: &Schedule, args: &Args<'_>, random: &mut Random) -> Result<(i64, Location)> {
    sample_compute_location::sample_compute_location(s, args.block(s, 0, "block")?, choice(args, 1)?, random)
}

fn categorical(args: &Args<'_>, random: &mut Random) -> Result<sample_categorical::Choice> {
    let decision = choice(args, 2)?;
    let probs = args.required(1, "probs")?;
    let weights = probs.as_array().and_then(|items| items.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
    let weights = weights.ok_or_else(|| args.unsuitable("probs", probs))?;
    sample_categorical::sample_categorical(&args.ints(0, "candidates")?, &weights, decision, random)
}

fn dispatch(s: &mut Schedule, env: &HashMap<String, Handle>, call: &Call) -> Result<Handle> {
    let args = Args { call, env };
    let done = |()| Handle::None;
    match call.op.as_str() {
        "get_sblock" | "get_block" => queries::get_sblock(s, args.text(0, "name")?).map(Handle::Block),
        "get_loops" => queries::get_loops(s, args.block(s, 0, "block")?).map(Handle::from),
        "get_child_blocks" | "get_child_sblocks" => {
            queries::get_child_blocks(s, args.node(s, 0, "block_or_loop")?).map(Handle::from)
        }
        "get_producers" => queries::get_producers(s, args.block(s, 0, "block")?).map(Handle::from),
        "get_consumers" => queries::get_consumers(s, args.block(s, 0, "block")?).map(Handle::from),
        "get_output_blocks" | "get_output_sblocks" => {
            queries::get_output_blocks(s, args.block(s, 0, "scope_block")?).map(Handle::from)
        }
        "split" => split::split(
            s,
            args.loop_(0, "loop")?,
            &args.factors(1, "factors")?,
            args.flag(2, "preserve_unit_iters", true)?,
            args.flag(3, "disable_predication", false)?,
        )
        .map(Handle::from),
        "fuse" => {
            fuse::fuse(s, &args.all_loops()?, args.flag(usize::MAX, "preserve_unit_iters", true)?).map(Handle::Loop)
        }
        "merge" => merge::merge(s, &args.all_loops()?).map(Handle::Loop),
        "reorder" => reorder::reorder(s, &args.all_loops()?).map(done),
        "bind" => bind::bind(s, args.loop_(0, "loop")?, args.text(1, "thread_axis")?).map(done),
        "vectorize" => vectorize::vectorize(s, args.loop_(0, "loop")?).map(done),
        "unroll" => unroll::unroll(s, args.loop_(0, "loop")?).map(done),
        "parallel" => parallel::parallel(s, args.loop_(0, "loop")?).map(done),
        "annotate" => {
            let value = args.attribute(args.required(2, "ann_val")?)?;
            annotate::annotate(s, args.node(s, 0, "block_or_loop")?, args.text(1, "ann_key")?, value).map(done)
        }
        "unannotate" => annotate::unannotate(s, args.node(s, 0, "block_or_loop")?, args.text(1, "ann_key")?).map(done),
        "add_unit_loop" => add_unit_loop::add_unit_loop(s, args.node(s, 0, "block_or_loop")?).map(Handle::Loop),
        "cache_read" | "cache_write" => {
            let write = call.op == "cache_write";
            let cache = if write { cache_write::cache_write } else { cache_read::cache_read };
            let index =
                args.buffer_index(s, 1, if write { "write_buffer_index" } else { "read_buffer_index" }, write)?;
            let consumers = args.blocks(s, 3, "consumer_blocks")?;
            cache(s, args.block(s, 0, "block")?, index, args.text(2, "storage_scope")?, &consumers).map(Handle::Block)
        }
        "compute_at" | "reverse_compute_at" => {
            let compute =
                if call.op == "compute_at" { compute_at::compute_at } else { reverse_compute_at::reverse_compute_at };
            let block = args.block(s, 0, "block")?;
            let preserve = args.flag(2, "preserve_unit_loops", false)?;
            match args.location(1, "loop")? {
                Location::Loop(target) => compute(s, block, target, preserve, args.int_or(3, "index", -1)?).map(done),
                Location::Root => Ok(Handle::None),
                Location::Inline if call.op == "compute_at" => compute_inline::compute_inline(s, block).map(done),
                Location::Inline => reverse_compute_inline::reverse_compute_inline(s, block).map(done),
            }
        }
        "decompose_reduction" => {
            decompose_reduction::decompose_reduction(s, args.block(s, 0, "block")?, args.loop_(1, "loop")?)
                .map(Handle::Block)
        }
        "set_scope" => {
            let index = args.buffer_index(s, 1, "buffer_index", true)?;
            set_scope::set_scope(s, args.block(s, 0, "block")?, index, args.text(2, "storage_scope")?).map(done)
        }
        "unsafe_set_dtype" => {
            let (block, index) = (args.block(s, 0, "block")?, args.int(1, "buffer_index")?);
            unsafe_set_dtype::unsafe_set_dtype(s, block, index, args.text(2, "dtype")?).map(done)
        }
        "read_at" | "write_at" => {
            let write = call.op == "write_at";
            let copy = if write { write_at::write_at } else { read_at::read_at };
            let index = args.int(2, if write { "write_buffer_index" } else { "read_buffer_index" })?;
            let (target, block) = (args.loop_(0, "loop")?, args.block(s, 1, "block")?);
            copy(s, target, block, index, args.text(3, "storage_scope")?).map(Handle::Block)
        }
        "rolling_buffer" => {
            let (block, index) = (args.block(s, 0, "block")?, args.int(1, "write_buffer_index")?);
            rolling_buffer::rolling_buffer(s, block, index).map(done)
        }
        "reorder_block_iter_var" => {
            let (block, order) = (args.block(s, 0, "block")?, args.ints(1, "new_order")?);
            reorder_block_iter_var::reorder_block_iter_var(s, block, &order).map(done)
        }
        "annotate_buffer_access" => {
            let (block, index) = (args.block(s, 0, "block")?, args.int(1, "buffer_index")?);
            let (kind, ranges) = (args.text(2, "buf_type")?, args.ranges(3, "gen_new_ranges")?);
            annotate_buffer_access::annotate_buffer_access(s, block, index, kind, &ranges).map(done)
        }
        "unsafe_hide_buffer_access" => {
            let (block, kind) = (args.block(s, 0, "block")?, args.text(1, "buf_type")?);
            let indices = args.ints(2, "buf_index_array")?;
            unsafe_hide_buffer_access::unsafe_hide_buffer_access(s, block, kind, &indices).map(done)
        }
        "fuse_reduction_epilogue" => {
            let (first, second) = (args.block(s, 0, "reduction_block")?, args.block(s, 1, "epilogue_block")?);
            fuse_reduction_epilogue::fuse_reduction_epilogue(s, first, second).map(done)
        }
        "can_decompose_padding" => {
            let (block, target) = (args.block(s, 0, "block")?, args.loop_(1, "loop")?);
            Ok(Handle::Int(decompose_padding::legal(s, block, target).is_ok().into()))
        }
        "storage_align" => storage_align::storage_align(
            s,
            args.block(s, 0, "block")?,
            args.int(1, "buffer_index")?,
            args.int(2, "axis")?,
            args.int(3, "factor")?,
            args.int(4, "offset")?,
        )
        .map(done),
        "rebase_reduction" => rebase_reduction::rebase_reduction(s, args.block(s, 0, "block")?).map(done),
        "rfactor" => rfactor::rfactor(s, args.loop_(0, "loop")?, args.int(1, "factor_axis")?).map(Handle::Block),
        "compute_inline" => compute_inline::compute_inline(s, args.block(s, 0, "block")?).map(done),
        "reverse_compute_inline" => {
            reverse_compute_inline::reverse_compute_inline(s, args.block(s, 0, "block")?).map(done)
        }
        "reindex" => {
            let (write, index) = args.buffer(s, 1, "buffer")?;
            let kind = if write { reindex::BufferIndexType::Write } else { reindex::BufferIndexType::Read };
            reindex::reindex(s, args.block(s, 0, "block")?, kind, index).map(Handle::Block)
        }
        "reindex_cache_read" | "reindex_cache_write" => {
            let write = call.op == "reindex_cache_write";
            let cache =
                if write { reindex_cache_write::reindex_cache_write } else { reindex_cache_read::reindex_cache_read };
            let index =
                args.buffer_index(s, 1, if write { "write_buffer_index" } else { "read_buffer_index" }, write)?;
            let (block, memory) = (args.block(s, 0, "block")?, args.text(2, "storage_scope")?);
            cache(s, block, index, memory, &args.index_map(3, "index_map")?).map(Handle::Block)
        }
        "cache_inplace" => {
            let (block, index) = (args.block(s, 0, "block")?, args.buffer_index(s, 1, "read_buffer_index", false)?);
            cache_inplace::cache_inplace(s, block, index, args.text(2, "storage_scope")?)
                .map(|blocks| Handle::from(blocks.to_vec()))
        }
        "cache_index" => {
            let (block, memory) = (args.block(s, 0, "block")?, args.text(1, "storage_scope")?);
            cache_index::cache_index(s, block, memory, args.int_or(2, "cse_thresh", 0)?).map(Handle::from)
        }
        "normalize_prim_func" => normalize_prim_func::normalize_prim_func(s)
            .map(|infos| Handle::from(infos.into_iter().map(|info| info.block).collect::<Vec<_>>())),
        "blockize" => {
            let preserve = args.flag(1, "preserve_unit_iters", true)?;
            match args.required(0, "target")? {
                Value::Array(_) => blockize::blockize_blocks(s, &args.blocks(s, 0, "target")?, preserve),
                _ => blockize::blockize(s, args.loop_(0, "target")?, preserve),
            }
            .map(Handle::Block)
        }
        "tensorize" => {
            let target = args.node(s, 0, "block_or_loop")?;
            let intrinsic = args.text(1, "tensor_intrin")?;
            tensorize::tensorize(s, target, intrinsic, args.flag(2, "preserve_unit_iters", true)?).map(done)
        }
        "pad_einsum" => pad_einsum::pad_einsum(s, args.block(s, 0, "block")?, &args.ints(1, "padding")?).map(done),
        "decompose_padding" => {
            decompose_padding::decompose_padding(s, args.block(s, 0, "block")?, args.loop_(1, "loop")?)
                .map(Handle::Block)
        }
        "loop_partition" => {
            loop_partition::loop_partition(s, args.loop_(0, "loop")?, &args.factors(1, "factors")?).map(Handle::from)
        }
        "transform_layout" => {
            let (block, (write, index)) = (args.block(s, 0, "block")?, args.buffer(s, 1, "buffer")?);
            let map = args.index_map(2, "index_map")?;
            let value = args.constant(3, "pad_value")?.map(|value| of_buffer(s, block, (write, index), value));
            let pad = match &value {
                Some(value) => transform_layout::Padding::Value(value),
                None if args.flag(4, "assume_injective_transform", false)? => transform_layout::Padding::Unused,
                None => transform_layout::Padding::None,
            };
            transform_layout::transform_layout(s, block, write, index, &map, pad).map(done)
        }
        "transform_block_layout" => {
            let (block, map) = (args.block(s, 0, "block")?, args.index_map(1, "index_map")?);
            transform_block_layout::transform_block_layout(s, block, &map).map(done)
        }
        // Says where TVM's postprocessors begin; changes nothing.
        "enter_postproc" => Ok(Handle::None),
        // Prints the program, or forgets a variable of TVM's; neither changes anything.
        "show" | "remove_rv" => Ok(Handle::None),
        other => Err(no_primitive(other)),
    }
}

/// Methods of TVM's schedule that are no primitives, each with what stands in its place; and what is none.
fn no_primitive(op: &str) -> ScheduleError {
    let why = match op {
        "work_on" => "a trace here is of one function, which the program's name chooses (FILE::function)",
        "seed" => "the seed of samples is the command's (`replay --seed`), or each sample has its decision",
        "copy" | "fork_seed" => "a trace here is of one schedule: make another trace of its calls",
        "get" | "get_sref" | "mod" | "state" | "trace" | "func_working_on" => {
            "it gives an object of TVM's, for which a trace here has no value: use get_sblock, get_loops and their like"
        }
        _ => return ScheduleError::value(format!("`{op}` is no primitive that Satune has")),
    };
    ScheduleError::value(format!("`{op}` is no primitive: {why}")).remedy("leave the call out")
}
