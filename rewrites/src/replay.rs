//! Replaying a trace: the interpreter of calls.
use crate::index_map::IndexMap;
use crate::schedule::{Result, Schedule};
use crate::trace::{Call, Out};
use crate::tree::{LoopId, Node};
use crate::{
    add_unit_loop, annotate, bind, blockize, cache_read, cache_write, compute_at, compute_inline, decompose_padding,
    decompose_reduction, fuse, loop_partition, pad_einsum, parallel, queries, reindex, reorder, reverse_compute_at,
    reverse_compute_inline, rfactor, set_scope, soundness, split, storage_align, transform_block_layout,
    transform_layout, unroll, vectorize, ErrorClass, ScheduleError,
};
use satune_ir::{Attr, BlockId, DType, Expr, Program};
use serde_json::Value;
use std::collections::HashMap;

/// Outcome of one call.
pub type CallResult = Result<()>;

/// A value that a call made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handle {
    /// Nothing.
    None,
    /// A block.
    Block(BlockId),
    /// A loop.
    Loop(LoopId),
    /// Several.
    List(Vec<Handle>),
}

impl From<Vec<LoopId>> for Handle {
    fn from(ids: Vec<LoopId>) -> Handle {
        Handle::List(ids.into_iter().map(Handle::Loop).collect())
    }
}

impl From<Vec<BlockId>> for Handle {
    fn from(ids: Vec<BlockId>) -> Handle {
        Handle::List(ids.into_iter().map(Handle::Block).collect())
    }
}

/// A schedule together with the values that calls have bound.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The schedule so far.
    pub schedule: Schedule,
    env: HashMap<String, Handle>,
    /// The program at the start, where every call is followed by [`soundness::check`].
    source: Option<Program>,
}

/// Makes the calls one after the other, up to the first refusal. Returns an outcome per call made, and the schedule that
/// the calls up to there left.
///
/// The verdicts are TVM's. [`replay_strict`] refuses what TVM gets wrong, too.
pub fn replay(program: &Program, calls: &[Call]) -> Result<(Vec<CallResult>, Schedule)> {
    run(Replay::new(program)?, calls)
}

/// [`replay`], where a call is refused that leaves a program which means something else, as far as
/// [`soundness::check`] can tell.
pub fn replay_strict(program: &Program, calls: &[Call]) -> Result<(Vec<CallResult>, Schedule)> {
    run(Replay::strict(program)?, calls)
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
        Ok(Replay { schedule: Schedule::new(program.clone())?, env: HashMap::new(), source: None })
    }

    /// Nothing called yet; calls are refused that leave a program which is not sound.
    pub fn strict(program: &Program) -> Result<Replay> {
        Ok(Replay { source: Some(program.clone()), ..Replay::new(program)? })
    }

    /// What a name is bound to.
    pub fn get(&self, name: &str) -> Option<&Handle> {
        self.env.get(name)
    }

    /// Makes one call. On refusal nothing has changed.
    pub fn call(&mut self, call: &Call) -> CallResult {
        let Some(source) = &self.source else { return self.call_as_tvm(call) };
        if call.op.starts_with("get_") {
            return self.call_as_tvm(call);
        }
        let (schedule, env) = (self.schedule.clone(), self.env.clone());
        let source = source.clone();
        let outcome = self.call_as_tvm(call).and_then(|()| soundness::check(&source, self.schedule.program()));
        if outcome.is_err() {
            (self.schedule, self.env) = (schedule, env);
        }
        outcome
    }

    fn call_as_tvm(&mut self, call: &Call) -> CallResult {
        let result = dispatch(&mut self.schedule, &self.env, call)?;
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

fn wrong(call: &Call, what: impl std::fmt::Display) -> ScheduleError {
    let message = format!("{}: {what}", call.op);
    ScheduleError::of(ErrorClass::TypeError, message.clone(), message)
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
    "reorder",
    "bind",
    "vectorize",
    "unroll",
    "parallel",
    "annotate",
    "unannotate",
    "add_unit_loop",
    "cache_read",
    "cache_write",
    "compute_at",
    "reverse_compute_at",
    "decompose_reduction",
    "set_scope",
    "storage_align",
    "rfactor",
    "compute_inline",
    "reverse_compute_inline",
    "reindex",
    "blockize",
    "pad_einsum",
    "decompose_padding",
    "loop_partition",
    "transform_layout",
    "transform_block_layout",
];

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
        "reorder" => reorder::reorder(s, &args.all_loops()?).map(done),
        "bind" => bind::bind(s, args.loop_(0, "loop")?, args.text(1, "thread_axis")?).map(done),
        "vectorize" => vectorize::vectorize(s, args.loop_(0, "loop")?).map(done),
        "unroll" => unroll::unroll(s, args.loop_(0, "loop")?).map(done),
        "parallel" => parallel::parallel(s, args.loop_(0, "loop")?).map(done),
        "annotate" => {
            let value = attribute(args.get(2, "ann_val").ok_or_else(|| args.missing("ann_val"))?);
            annotate::annotate(s, args.node(s, 0, "block_or_loop")?, args.text(1, "ann_key")?, value).map(done)
        }
        "unannotate" => annotate::unannotate(s, args.node(s, 0, "block_or_loop")?, args.text(1, "ann_key")?).map(done),
        "add_unit_loop" => add_unit_loop::add_unit_loop(s, args.node(s, 0, "block_or_loop")?).map(Handle::Loop),
        "cache_read" | "cache_write" => {
            let write = call.op == "cache_write";
            let cache = if write { cache_write::cache_write } else { cache_read::cache_read };
            let index = args.int(1, if write { "write_buffer_index" } else { "read_buffer_index" })?;
            let consumers = args.blocks(s, 3, "consumer_blocks")?;
            cache(s, args.block(s, 0, "block")?, index, args.text(2, "storage_scope")?, &consumers).map(Handle::Block)
        }
        "compute_at" | "reverse_compute_at" => {
            let compute =
                if call.op == "compute_at" { compute_at::compute_at } else { reverse_compute_at::reverse_compute_at };
            let (block, target) = (args.block(s, 0, "block")?, args.loop_(1, "loop")?);
            let preserve = args.flag(2, "preserve_unit_loops", false)?;
            compute(s, block, target, preserve, args.int_or(3, "index", -1)?).map(done)
        }
        "decompose_reduction" => {
            decompose_reduction::decompose_reduction(s, args.block(s, 0, "block")?, args.loop_(1, "loop")?)
                .map(Handle::Block)
        }
        "set_scope" => {
            let index = args.int(1, "buffer_index")?;
            set_scope::set_scope(s, args.block(s, 0, "block")?, index, args.text(2, "storage_scope")?).map(done)
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
        "rfactor" => rfactor::rfactor(s, args.loop_(0, "loop")?, args.int(1, "factor_axis")?).map(Handle::Block),
        "compute_inline" => compute_inline::compute_inline(s, args.block(s, 0, "block")?).map(done),
        "reverse_compute_inline" => {
            reverse_compute_inline::reverse_compute_inline(s, args.block(s, 0, "block")?).map(done)
        }
        "reindex" => {
            let (write, index) = args.buffer(1, "buffer")?;
            let kind = if write { reindex::Kind::Write } else { reindex::Kind::Read };
            reindex::reindex(s, args.block(s, 0, "block")?, kind, index).map(Handle::Block)
        }
        "blockize" => {
            let preserve = args.flag(1, "preserve_unit_iters", true)?;
            match args.required(0, "target")? {
                Value::Array(_) => blockize::blockize_blocks(s, &args.blocks(s, 0, "target")?, preserve),
                _ => blockize::blockize(s, args.loop_(0, "target")?, preserve),
            }
            .map(Handle::Block)
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
            let (block, (write, index)) = (args.block(s, 0, "block")?, args.buffer(1, "buffer")?);
            let (map, value) = (args.index_map(2, "index_map")?, args.constant(3, "pad_value")?);
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
        "merge" => Err(ScheduleError::refused(
            "The loops cannot be merged without a proof that their nests are independent",
            "merge runs the iterations of several nests together and proves nothing about their dependences",
        )
        .within("merge")
        .remedy("compute_at and reverse_compute_at join nests and check what they must")),
        other => Err(ScheduleError::value(format!("`{other}` is no primitive that Satune has"))),
    }
}

/// The arguments of a call, by position or by name. A primitive is added with one line in `dispatch`, which takes its
/// arguments from here, and its name in [`PRIMITIVES`].
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    call: &'a Call,
    env: &'a HashMap<String, Handle>,
}

impl<'a> Args<'a> {
    fn get(&self, position: usize, name: &str) -> Option<&'a Value> {
        self.call.args.get(position).or_else(|| self.call.kwargs.get(name))
    }

    fn missing(&self, name: &str) -> ScheduleError {
        wrong(self.call, format!("argument `{name}` is missing"))
    }

    fn unsuitable(&self, name: &str, value: &Value) -> ScheduleError {
        wrong(self.call, format!("argument `{name}` cannot be {value}"))
    }

    fn required(&self, position: usize, name: &str) -> Result<&'a Value> {
        self.get(position, name).ok_or_else(|| self.missing(name))
    }

    /// The value that `"$x"` or `"$x[i]"` stands for.
    fn handle(&self, text: &str) -> Option<Result<Handle>> {
        let reference = text.strip_prefix('$')?;
        Some(self.resolve(reference).ok_or_else(|| wrong(self.call, format!("`{text}` is not bound to anything"))))
    }

    fn resolve(&self, reference: &str) -> Option<Handle> {
        let (name, index) = match reference.split_once('[') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(']')?.parse::<i64>().ok()?)),
            None => (reference, None),
        };
        let value = self.env.get(name)?;
        match (value, index) {
            (value, None) => Some(value.clone()),
            (Handle::List(items), Some(i)) => {
                let at = if i < 0 { i + items.len() as i64 } else { i };
                items.get(usize::try_from(at).ok()?).cloned()
            }
            _ => None,
        }
    }

    fn node_of(&self, s: &Schedule, name: &str, value: &Value) -> Result<Node> {
        let Value::String(text) = value else { return Err(self.unsuitable(name, value)) };
        match self.handle(text) {
            Some(handle) => match handle? {
                Handle::Block(id) => Ok(Node::Block(id)),
                Handle::Loop(id) => Ok(Node::Loop(id)),
                _ => Err(self.unsuitable(name, value)),
            },
            None => queries::get_sblock(s, text).map(Node::Block),
        }
    }

    /// A loop, or a block by handle or name.
    pub fn node(&self, s: &Schedule, position: usize, name: &str) -> Result<Node> {
        self.node_of(s, name, self.required(position, name)?)
    }

    /// A block, by handle or by name.
    pub fn block(&self, s: &Schedule, position: usize, name: &str) -> Result<BlockId> {
        let value = self.required(position, name)?;
        match self.node_of(s, name, value)? {
            Node::Block(id) => Ok(id),
            Node::Loop(_) => Err(self.unsuitable(name, value)),
        }
    }

    fn loop_of(&self, name: &str, value: &Value) -> Result<LoopId> {
        match value.as_str().and_then(|text| self.handle(text)) {
            Some(Ok(Handle::Loop(id))) => Ok(id),
            Some(Err(error)) => Err(error),
            _ => Err(self.unsuitable(name, value)),
        }
    }

    /// A loop.
    pub fn loop_(&self, position: usize, name: &str) -> Result<LoopId> {
        self.loop_of(name, self.required(position, name)?)
    }

    /// All positional arguments, loops.
    pub fn all_loops(&self) -> Result<Vec<LoopId>> {
        self.call.args.iter().map(|v| self.loop_of("loops", v)).collect()
    }

    /// A string.
    pub fn text(&self, position: usize, name: &str) -> Result<&'a str> {
        let value = self.required(position, name)?;
        value.as_str().ok_or_else(|| self.unsuitable(name, value))
    }

    /// A boolean, or its default.
    pub fn flag(&self, position: usize, name: &str, default: bool) -> Result<bool> {
        match self.get(position, name) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.unsuitable(name, value)),
        }
    }

    /// An integer.
    pub fn int(&self, position: usize, name: &str) -> Result<i64> {
        let value = self.required(position, name)?;
        value.as_i64().ok_or_else(|| self.unsuitable(name, value))
    }

    /// An integer, or its default.
    pub fn int_or(&self, position: usize, name: &str, default: i64) -> Result<i64> {
        self.get(position, name).map_or(Ok(default), |_| self.int(position, name))
    }

    /// A list of integers.
    pub fn ints(&self, position: usize, name: &str) -> Result<Vec<i64>> {
        let value = self.required(position, name)?;
        let items = value.as_array().ok_or_else(|| self.unsuitable(name, value))?;
        items.iter().map(|v| v.as_i64().ok_or_else(|| self.unsuitable(name, value))).collect()
    }

    /// An index map: `"lambda i, j: (j, i)"`, or the same under the key `index_map`.
    pub fn index_map(&self, position: usize, name: &str) -> Result<IndexMap> {
        let value = self.required(position, name)?;
        let text = value.as_str().or_else(|| value.get("index_map")?.as_str());
        let text = text.ok_or_else(|| self.unsuitable(name, value))?;
        IndexMap::parse(text).map_err(|e| wrong(self.call, e))
    }

    /// A number; none where the argument is missing.
    pub fn constant(&self, position: usize, name: &str) -> Result<Option<Expr>> {
        match self.get(position, name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Number(n)) => Ok(Some(match n.as_i64() {
                Some(v) => Expr::Int(v, DType::I32),
                None => Expr::Float(n.as_f64().unwrap_or(f64::NAN).to_bits(), DType::F32),
            })),
            Some(value) => Err(self.unsuitable(name, value)),
        }
    }

    /// A list of blocks; none where the argument is missing.
    pub fn blocks(&self, s: &Schedule, position: usize, name: &str) -> Result<Vec<BlockId>> {
        let one = |value: &Value| match self.node_of(s, name, value)? {
            Node::Block(id) => Ok(id),
            Node::Loop(_) => Err(self.unsuitable(name, value)),
        };
        match self.get(position, name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => items.iter().map(one).collect(),
            Some(value) => one(value).map(|id| vec![id]),
        }
    }

    /// A buffer of a block, `["read", 0]`: whether it is written, and its index.
    pub fn buffer(&self, position: usize, name: &str) -> Result<(bool, i64)> {
        let value = self.required(position, name)?;
        let Some([kind, index]) = value.as_array().map(Vec::as_slice) else { return Err(self.unsuitable(name, value)) };
        match (kind.as_str(), index.as_i64()) {
            (Some("read"), Some(i)) => Ok((false, i)),
            (Some("write"), Some(i)) => Ok((true, i)),
            _ => Err(self.unsuitable(name, value)),
        }
    }

    /// Factors; `null` and -1 are to be inferred.
    pub fn factors(&self, position: usize, name: &str) -> Result<Vec<Option<i64>>> {
        let value = self.required(position, name)?;
        let items = match value {
            Value::Array(items) => items,
            Value::Object(map) => match map.get("factors") {
                Some(Value::Array(items)) => items,
                _ => return Err(self.unsuitable(name, value)),
            },
            _ => return Err(self.unsuitable(name, value)),
        };
        items
            .iter()
            .map(|v| match v {
                Value::Null => Ok(None),
                _ => match v.as_i64() {
                    Some(-1) => Ok(None),
                    Some(f) => Ok(Some(f)),
                    None => Err(self.unsuitable(name, value)),
                },
            })
            .collect()
    }
}

fn attribute(value: &Value) -> Attr {
    match value {
        Value::Null => Attr::None,
        Value::Bool(b) => Attr::Bool(*b),
        Value::Number(n) => n.as_i64().map_or_else(|| Attr::Float(n.as_f64().unwrap_or(f64::NAN)), Attr::Int),
        Value::String(text) => Attr::Str(text.clone()),
        Value::Array(items) => Attr::List(items.iter().map(attribute).collect()),
        Value::Object(map) => Attr::Dict(map.iter().map(|(k, v)| (k.clone(), attribute(v))).collect()),
    }
}
