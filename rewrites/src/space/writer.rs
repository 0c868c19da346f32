//! What writers of traces share: the calls so far, fresh names, and how results of earlier calls are named.
use crate::trace::{Call, Out, Trace};
use serde_json::{json, Value};

/// A trace in the making.
#[derive(Default)]
pub(in crate::space) struct Draft {
    calls: Vec<Call>,
    fresh: u32,
}

impl Draft {
    /// Calls that were made elsewhere.
    pub(in crate::space) fn extend(&mut self, calls: impl IntoIterator<Item = Call>) {
        self.calls.extend(calls);
    }

    /// The calls so far.
    pub(in crate::space) fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub(in crate::space) fn finish(self) -> Trace {
        Trace { calls: self.calls }
    }
}

/// A result by its name.
pub(in crate::space) fn var(name: &str) -> Value {
    json!(format!("${name}"))
}

/// `name[index]`, counted from the end.
pub(in crate::space) fn from_end(name: &str, index: usize) -> Value {
    json!(format!("${name}[-{index}]"))
}

/// Writes a trace call by call.
pub(in crate::space) trait TraceWriter {
    fn draft(&mut self) -> &mut Draft;

    /// A call; its result has no name yet.
    fn call(&mut self, op: &str, args: impl IntoIterator<Item = Value>) -> &mut Call {
        let calls = &mut self.draft().calls;
        calls.push(Call::new(op, args));
        let last = calls.len() - 1;
        &mut calls[last]
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
}
