//! A streaming problem, from an operator's name or the text of a PrimFunc.
use super::operators;
use crate::operators::OperatorError;
use satune_ir::term::stream::Streams;
use satune_ir::{tvmscript, Program};
use satune_rewrites::space::stream::{streams, StreamError};

/// Longest axis.
pub const LONGEST: i64 = 1 << 28;
/// Most instances of a block: those of the largest matrix of axes that contractions take.
pub const MOST_INSTANCES: i64 = 1 << 40;

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
    #[error("axis {axis} has {extent} iterations; at most {most} are explored", most = LONGEST)]
    Extent {
        /// Name of the iterator.
        axis: String,
        /// Its extent.
        extent: i64,
    },
    /// A block has too many instances.
    #[error("block {block} has {instances} instances; at most {most} are explored", most = MOST_INSTANCES)]
    Instances {
        /// Its name.
        block: String,
        /// How many.
        instances: i64,
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
        if let Some(long) = iters.into_iter().find(|i| i.extent > LONGEST) {
            return Err(NotStreaming::Extent { axis: long.name.clone(), extent: long.extent });
        }
        let blocks = streams.variants.iter().take(1).flat_map(|v| &v.blocks);
        if let Some(large) = blocks.into_iter().find(|b| b.instances() > MOST_INSTANCES) {
            return Err(NotStreaming::Instances { block: large.name.clone(), instances: large.instances() });
        }
        Ok(StreamProblem { name: name.into(), script: tvmscript::print(&program), program, streams })
    }
}
