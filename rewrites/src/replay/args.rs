//! The arguments of a call, by position or by name, with what earlier calls bound.
use super::handle::Handle;
use crate::index_map::{IndexMap, Ranges};
use crate::sample_compute_location::Location;
use crate::schedule::{Result, Schedule};
use crate::trace::Call;
use crate::tree::{LoopId, Node};
use crate::{queries, ErrorClass, ScheduleError};
use satune_ir::{Attr, BlockId, DType, Expr};
use serde_json::Value;
use std::collections::HashMap;

/// The arguments of a call. A primitive is added with one line in `dispatch`, which takes its arguments from here, and its
/// name in `PRIMITIVES`.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    pub(super) call: &'a Call,
    pub(super) env: &'a HashMap<String, Handle>,
}

impl<'a> Args<'a> {
    pub(super) fn get(&self, position: usize, name: &str) -> Option<&'a Value> {
        self.call.args.get(position).or_else(|| self.call.kwargs.get(name))
    }

    pub(super) fn missing(&self, name: &str) -> ScheduleError {
        wrong(self.call, format!("argument `{name}` is missing"))
    }

    pub(super) fn unsuitable(&self, name: &str, value: &Value) -> ScheduleError {
        wrong(self.call, format!("argument `{name}` cannot be {value}"))
    }

    pub(super) fn required(&self, position: usize, name: &str) -> Result<&'a Value> {
        self.get(position, name).ok_or_else(|| self.missing(name))
    }

    /// The value that `"$x"` or `"$x[i]"` stands for.
    pub(super) fn handle(&self, text: &str) -> Option<Result<Handle>> {
        let reference = text.strip_prefix('$')?;
        Some(self.resolve(reference).ok_or_else(|| wrong(self.call, format!("`{text}` is not bound to anything"))))
    }

    pub(super) fn resolve(&self, reference: &str) -> Option<Handle> {
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

    pub(super) fn node_of(&self, s: &Schedule, name: &str, value: &Value) -> Result<Node> {
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

    pub(super) fn loop_of(&self, name: &str, value: &Value) -> Result<LoopId> {
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
        self.int_of(name, self.required(position, name)?)
    }

    /// A number, or what a sample chose.
    pub(super) fn int_of(&self, name: &str, value: &Value) -> Result<i64> {
        match value.as_str().and_then(|text| self.handle(text)) {
            Some(Ok(Handle::Int(number))) => Ok(number),
            Some(Err(error)) => Err(error),
            _ => value.as_i64().ok_or_else(|| self.unsuitable(name, value)),
        }
    }

    /// The elements of a list; a name bound to integers is one too.
    pub(super) fn list(&self, name: &str, value: &Value) -> Result<Vec<Value>> {
        match value.as_str().and_then(|text| self.handle(text)) {
            Some(Ok(Handle::List(items))) => items
                .iter()
                .map(|item| match item {
                    Handle::Int(number) => Ok(Value::from(*number)),
                    _ => Err(self.unsuitable(name, value)),
                })
                .collect(),
            Some(Err(error)) => Err(error),
            _ => value.as_array().cloned().ok_or_else(|| self.unsuitable(name, value)),
        }
    }

    /// The value of an annotation; `"$x"` is what a sample chose.
    pub(super) fn attribute(&self, value: &Value) -> Result<Attr> {
        Ok(match value {
            Value::Null => Attr::None,
            Value::Bool(b) => Attr::Bool(*b),
            Value::Number(n) => n.as_i64().map_or_else(|| Attr::Float(n.as_f64().unwrap_or(f64::NAN)), Attr::Int),
            Value::String(text) if text.starts_with('$') => Attr::Int(self.int_of("ann_val", value)?),
            Value::String(text) => Attr::Str(text.clone()),
            Value::Array(items) => Attr::List(items.iter().map(|v| self.attribute(v)).collect::<Result<_>>()?),
            Value::Object(map) => {
                Attr::Dict(map.iter().map(|(k, v)| Ok((k.clone(), self.attribute(v)?))).collect::<Result<_>>()?)
            }
        })
    }

    /// An integer, or its default.
    pub fn int_or(&self, position: usize, name: &str, default: i64) -> Result<i64> {
        self.get(position, name).map_or(Ok(default), |_| self.int(position, name))
    }

    /// A list of integers.
    pub fn ints(&self, position: usize, name: &str) -> Result<Vec<i64>> {
        let value = self.required(position, name)?;
        self.list(name, value)?.iter().map(|v| self.int_of(name, v)).collect()
    }

    /// An index map: `"lambda i, j: (j, i)"`, or the same under the key `index_map`.
    pub fn index_map(&self, position: usize, name: &str) -> Result<IndexMap> {
        let value = self.required(position, name)?;
        let text = value.as_str().or_else(|| value.get("index_map")?.as_str());
        let text = text.ok_or_else(|| self.unsuitable(name, value))?;
        IndexMap::parse(text).map_err(|e| wrong(self.call, e))
    }

    /// A function from iterators to ranges: `"lambda i, j: ((i - 1, i + 1), j)"`, or the same under the key `index_map`.
    pub fn ranges(&self, position: usize, name: &str) -> Result<Ranges> {
        let value = self.required(position, name)?;
        let text = value.as_str().or_else(|| value.get("index_map")?.as_str());
        let text = text.ok_or_else(|| self.unsuitable(name, value))?;
        Ranges::parse(text).map_err(|e| wrong(self.call, e))
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

    /// A buffer of the block that is the first argument, `["read", 0]` or its name: whether it is written, and its index.
    pub fn buffer(&self, s: &Schedule, position: usize, name: &str) -> Result<(bool, i64)> {
        let value = self.required(position, name)?;
        if let Value::String(text) = value {
            return self.buffer_named(s, text);
        }
        let Some([kind, index]) = value.as_array().map(Vec::as_slice) else { return Err(self.unsuitable(name, value)) };
        match (kind.as_str(), index.as_i64()) {
            (Some("read"), Some(i)) => Ok((false, i)),
            (Some("write"), Some(i)) => Ok((true, i)),
            _ => Err(self.unsuitable(name, value)),
        }
    }

    /// The index among what the first argument, a block, reads or writes: a number, or a buffer's name.
    pub fn buffer_index(&self, s: &Schedule, position: usize, name: &str, write: bool) -> Result<i64> {
        let value = self.required(position, name)?;
        let Some(text) = value.as_str().filter(|text| !text.starts_with('$')) else { return self.int_of(name, value) };
        let (written, index) = self.buffer_named(s, text)?;
        if written == write {
            return Ok(index);
        }
        let kind = |write| if write { "write" } else { "read" };
        Err(ScheduleError::value(format!(
            "Expected buffer to be read buffer, but {text} was a {} buffer in the specified block",
            kind(written)
        ))
        .remedy(format!("name a buffer that the block {}s, or give its number", kind(write))))
    }

    /// The buffer of a name that the first argument, a block, reads or writes; one that it does both is written.
    fn buffer_named(&self, s: &Schedule, text: &str) -> Result<(bool, i64)> {
        let b = s.block(self.block(s, 0, "block")?)?;
        let all = b.reads.iter().enumerate().map(|(i, r)| (r.buffer, false, i));
        let all = all.chain(b.writes.iter().enumerate().map(|(i, r)| (r.buffer, true, i)));
        let found: Vec<_> = all.filter(|(id, ..)| s.program().buffer(*id).name == text).collect();
        match found.last() {
            None => Err(ScheduleError::value(format!("Could not find buffer '{text}' in block '{}'", b.name))
                .at_block(b.id)
                .remedy("name a buffer that the block reads or writes")),
            Some((id, ..)) if found.iter().any(|(other, ..)| other != id) => {
                Err(ScheduleError::value(format!("Multiple buffers named '{text}' in block '{}'", b.name))
                    .at_block(b.id)
                    .remedy("give the buffer's number"))
            }
            Some((_, write, index)) => Ok((*write, *index as i64)),
        }
    }

    /// A loop, or another place that a sample chose.
    pub fn location(&self, position: usize, name: &str) -> Result<Location> {
        match self.required(position, name)?.as_str().and_then(|text| self.handle(text)) {
            Some(Ok(Handle::Place(place))) => Ok(place),
            _ => self.loop_(position, name).map(Location::Loop),
        }
    }

    /// Factors; `null` is to be inferred.
    pub fn factors(&self, position: usize, name: &str) -> Result<Vec<Option<i64>>> {
        let value = self.required(position, name)?;
        let items = value.as_object().and_then(|map| map.get("factors")).unwrap_or(value);
        self.list(name, items)?
            .iter()
            .map(|v| match v {
                Value::Null => Ok(None),
                _ => self.int_of(name, v).map(Some),
            })
            .collect()
    }
}

/// A call whose arguments are not those of the primitive.
pub(super) fn wrong(call: &Call, what: impl std::fmt::Display) -> ScheduleError {
    let message = format!("{}: {what}", call.op);
    ScheduleError::of(ErrorClass::TypeError, message.clone(), message)
}
