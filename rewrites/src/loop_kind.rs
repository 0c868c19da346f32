//! What `parallel`, `vectorize` and `bind` ask of a loop.
use crate::arith::{constant, Domains};
use crate::flags::bound_region;
use crate::linear::Linear;
use crate::schedule::{Result, Schedule};
use crate::scope::require_compact_dataflow;
use crate::tree::{self, LoopId, Node};
use crate::ScheduleError;
use satune_ir::{visit, BufferId, Expr, For, IterKind, Range};
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
            IterKind::Ordered | IterKind::Opaque => false,
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
            .at_loop(id)
            .remedy("choose a loop over spatial iterators, or rfactor the reduction first"));
        }
    }
    Ok(())
}

/// Where an iteration of a loop writes: at `scale` times its number plus `offset` of dimension `dim`, and fewer than `scale`
/// elements further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Own {
    dim: usize,
    scale: i64,
    offset: i64,
}

/// The first dimension that keeps iterations of a loop apart.
fn own_elements(l: &For, ranges: &[Range]) -> Option<Own> {
    ranges.iter().enumerate().find_map(|(dim, range)| {
        let at = Linear::of(&range.min, &Domains::new())?;
        let extent = constant(&range.extent)?;
        match at.terms() {
            [(Expr::Var(v), scale)] if v.id == l.var.id && extent <= *scale => {
                Some(Own { dim, scale: *scale, offset: at.offset() })
            }
            _ => None,
        }
    })
}

/// Refuses a loop with two child blocks that write one buffer: TVM accepts them, and iterations may overtake each other.
/// Threads may run them where each iteration writes elements of its own.
pub fn require_one_writer_each(s: &Schedule, id: LoopId, what: What<'_>) -> Result<()> {
    let l = s.get_loop(id)?;
    let mut writers: HashMap<BufferId, (&satune_ir::Block, Option<Own>)> = HashMap::new();
    for r in tree::child_realizes(&l.body) {
        for w in &r.block.writes {
            let own = own_elements(l, &bound_region(r, w)).filter(|_| matches!(what, What::Bind(_)));
            let before = writers.insert(w.buffer, (&r.block, own));
            if let Some((first, _)) = before.filter(|(b, o)| b.id != r.block.id && (own.is_none() || own != *o)) {
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
                .at_block(r.block.id)
                .remedy("put the blocks under loops of their own"));
            }
        }
    }
    Ok(())
}
