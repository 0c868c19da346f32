//! Reads a trace, whatever its form.
use crate::index_map::{IndexMap, Ranges};
use crate::trace::{Trace, TraceError};
use crate::{trace_python, trace_tvm};
use serde_json::Value;

impl Trace {
    /// Reads a trace in any of its forms: Satune's JSON, TVM's (`Trace.as_json`, plain or saved as an object graph), the
    /// Python text that TVM prints for one, or that [`Trace::to_python`] writes.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn read(text: &str) -> Result<Trace, TraceError> {
        if !text.trim_start().starts_with(['{', '[']) {
            let trace = trace_python::read(text)?;
            trace.check_maps()?;
            return Ok(trace);
        }
        let value: Value = serde_json::from_str(text)?;
        if trace_tvm::is_trace(&value) {
            let trace = trace_tvm::read(&value)?;
            trace.check_maps()?;
            return Ok(trace);
        }
        Ok(Trace::from_json(text)?)
    }

    /// Checks that every index map of the trace can be read, so that an error is told with its text.
    fn check_maps(&self) -> Result<(), TraceError> {
        for call in &self.calls {
            let ranges = call.op == "annotate_buffer_access";
            for value in call.args.iter().chain(call.kwargs.values()) {
                if let Some(text) = value.get("index_map").and_then(Value::as_str) {
                    let parsed = if ranges { Ranges::parse(text).map(drop) } else { IndexMap::parse(text).map(drop) };
                    parsed.map_err(|e| TraceError::Tvm(format!("{}: {e}", call.op)))?;
                }
            }
        }
        Ok(())
    }
}
