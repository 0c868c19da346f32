//! What `parallel`, `vectorize` and `bind` ask of a loop.
use crate::schedule::{Result, Schedule};
use crate::scope::require_compact_dataflow;
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::{visit, BufferId, IterKind};
use std::collections::HashMap;

/// Which of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// CPU threads.
    Parallel,
    /// Vector lanes.
    Vectorize,
    /// GPU threads of a tag.
    Bind(&'a str),
}

impl What<'_> {
    fn name(self) -> &'static str {
        match self {
            What::Parallel => "parallel",
            What::Vectorize => "vectorize",
            What::Bind(_) => "bind",
        }
    }

    /// Reductions may be spread over the threads of a block, which can combine their results.
    fn allows(self, kind: IterKind) -> bool {
        match kind {
            IterKind::Spatial => true,
            IterKind::Reduce => matches!(self, What::Bind(tag) if tag.starts_with("threadIdx.")),
            IterKind::Opaque => false,
        }
    }
}

/// Refuses a loop whose subtree has no compact dataflow, or which feeds a block iterator of the wrong kind.
pub fn require_parallelizable(s: &Schedule, id: LoopId, what: What<'_>) -> Result<()> {
    let l = s.get_loop(id)?;
    require_compact_dataflow(s, Node::Loop(id))?;
    for r in tree::all_realizes(&l.body) {
        let b = &r.block;
        let wrong = b
            .iter_vars
            .iter()
            .zip(&r.iter_values)
            .any(|(iv, value)| !what.allows(iv.kind) && visit::uses_var(value, &|v| v == id));
        if wrong {
            let name = what.name();
            let detail = match what {
                What::Bind(_) => format!(
                    "The \"bind\" cannot be fulfilled with regard to block {}. This is because some of its block iter whose \
                     block binding contains {} does not meet any of the conditions:\n1) the block iter is data \
                     parallel;\n2) the block iter is a reduction block iter, and the thread axis to be bound is \
                     \"threadIdx.x/y/z\"",
                    b.name, l.var.name
                ),
                _ => format!(
                    "The \"{name}\" cannot be fulfilled with regard to block {} because some block iter whose block binding \
                     contains the loop var is not a data parallel block iter",
                    b.name
                ),
            };
            return Err(ScheduleError::refused(
                format!("The \"{name}\" cannot be fulfilled with regard to some of its underlying block"),
                detail,
            )
            .at_block(b.id)
            .at_loop(id));
        }
    }
    Ok(())
}

/// Refuses a loop with two child blocks that write one buffer: TVM accepts them, and iterations may overtake each other.
pub fn require_one_writer_each(s: &Schedule, id: LoopId, what: What<'_>) -> Result<()> {
    let l = s.get_loop(id)?;
    let mut writers: HashMap<BufferId, &satune_ir::Block> = HashMap::new();
    for r in tree::child_realizes(&l.body) {
        for w in &r.block.writes {
            if let Some(first) = writers.insert(w.buffer, &r.block).filter(|first| first.id != r.block.id) {
                let name = what.name();
                return Err(ScheduleError::refused(
                    format!("The \"{name}\" cannot be fulfilled because two blocks under the loop write one buffer"),
                    format!(
                        "The blocks {} and {} under the loop {} both write {}",
                        first.name,
                        r.block.name,
                        l.var.name,
                        s.program().buffer(w.buffer).name
                    ),
                )
                .at_loop(id)
                .at_block(first.id)
                .at_block(r.block.id));
            }
        }
    }
    Ok(())
}
