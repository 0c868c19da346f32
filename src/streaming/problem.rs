//! A streaming problem, from an operator's name or the text of a PrimFunc.
use super::operators;
use crate::operators::{OperatorError, MOST};
use satune_ir::term::stream::Streams;
use satune_ir::{tvmscript, Program};
use satune_rewrites::space::stream::{streams, StreamError};

/// A problem: its text as TVMScript, and the blocks that it is made of.
#[derive(Clone, Debug)]
pub struct StreamProblem {
    /// As it was asked for.
    pub name: String,
    /// TVMScript of the source program.
    pub script: String,
    /// The source program.
    pub program: Program,
    /// Its blocks, with all ways to inline them.
    pub streams: Streams,
}

/// Why a program is no streaming problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotStreaming {
    /// Its blocks do not stream.
    #[error(transparent)]
    Blocks(#[from] StreamError),
    /// An axis is too long.
    #[error("axis {axis} has {extent} iterations; at most {most} are explored", most = MOST)]
    Extent {
        /// Name of the iterator.
        axis: String,
        /// Its extent.
        extent: i64,
    },
}

impl StreamProblem {
    /// An operator by name.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn operator(text: &str) -> Result<StreamProblem, OperatorError> {
        let script = operators::script(text)?;
        let failed = |reason: String| OperatorError {
            text: text.chars().take(60).collect(),
            reason,
            remedy: "please report this operator".into(),
        };
        let program = tvmscript::parse(&script).map_err(|e| failed(e.to_string()))?;
        StreamProblem::of_program(text, program).map_err(|e| failed(e.to_string()))
    }

    /// A program.
    ///
    /// # Errors
    /// [`NotStreaming`].
    pub fn of_program(name: &str, program: Program) -> Result<StreamProblem, NotStreaming> {
        let streams = streams(&program)?;
        let iters = streams.variants.iter().take(1).flat_map(|v| &v.blocks).flat_map(|b| &b.iters);
        if let Some(long) = iters.into_iter().find(|i| i.extent > MOST) {
            return Err(NotStreaming::Extent { axis: long.name.clone(), extent: long.extent });
        }
        Ok(StreamProblem { name: name.into(), script: tvmscript::print(&program), program, streams })
    }
}
