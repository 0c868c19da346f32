//! From a term to the plan that it stands for.
use super::{
    BlockKind, FlatPlan, Held, KernelPlan, PlainPlan, RowPlan, Step, Stream, StreamPlan, StreamState, StreamTerm,
    Streams, TilePlan, TiledPlan,
};
use crate::term::{Incomplete, Role};
use egg::{Id, Language, RecExpr};

impl StreamPlan {
    /// Reads a complete term (its last node is the root).
    ///
    /// # Errors
    /// When the term still holds an unscheduled nest or is none of the term language.
    pub fn from_term(term: &RecExpr<StreamTerm>, problem: &Streams) -> Result<StreamPlan, Incomplete> {
        let nodes = term.as_ref();
        let node = |id: Id| nodes.get(usize::from(id)).ok_or_else(|| Incomplete("a child outside the term".into()));
        let mut current = nodes.last().ok_or_else(|| Incomplete("an empty term".into()))?;
        let mut inlined = Vec::new();
        let mut parts = 1;
        loop {
            match current {
                StreamTerm::Inline { block, reverse, body, .. } => {
                    let block = problem.source.get(usize::from(*block)).cloned();
                    let block = block.ok_or_else(|| Incomplete("a block that the program does not have".into()))?;
                    inlined.push(super::Inlining { block, reverse: *reverse });
                    current = node(body[0])?;
                }
                StreamTerm::Keep { body, .. } => current = node(body[0])?,
                StreamTerm::Parts { parts: n, body, .. } => {
                    parts = *n;
                    current = node(body[0])?;
                }
                _ => break,
            }
        }
        let stream = problem.variant(&inlined, parts);
        let stream = stream.ok_or_else(|| Incomplete("blocks are inlined or rows split that cannot be".into()))?;
        let mut kernels = Vec::new();
        loop {
            match current {
                StreamTerm::Launch { from, to, children } => {
                    kernels.push(KernelPlan::from_nodes(node(children[0])?, &node, stream, (*from, *to))?);
                    current = node(children[1])?;
                }
                StreamTerm::Last { from, to, body } => {
                    kernels.push(KernelPlan::from_nodes(node(body[0])?, &node, stream, (*from, *to))?);
                    return Ok(StreamPlan { inlined, parts, kernels });
                }
                other => return Err(Incomplete(format!("{other} has no place between kernels"))),
            }
        }
    }
}

impl KernelPlan {
    /// Reads the term of the kernel of blocks `from..to`.
    ///
    /// # Errors
    /// As [`StreamPlan::from_term`].
    pub fn from_term(term: &RecExpr<StreamTerm>, stream: &Stream, blocks: (u8, u8)) -> Result<KernelPlan, Incomplete> {
        let nodes = term.as_ref();
        let node = |id: Id| nodes.get(usize::from(id)).ok_or_else(|| Incomplete("a child outside the term".into()));
        let root = nodes.last().ok_or_else(|| Incomplete("an empty term".into()))?;
        KernelPlan::from_nodes(root, &node, stream, blocks)
    }

    fn from_nodes<'a>(
        root: &'a StreamTerm,
        node: &dyn Fn(Id) -> Result<&'a StreamTerm, Incomplete>,
        stream: &Stream,
        (from, to): (u8, u8),
    ) -> Result<KernelPlan, Incomplete> {
        let names: Vec<String> = stream
            .blocks
            .get(usize::from(from)..usize::from(to))
            .ok_or_else(|| Incomplete("blocks that the program does not have".into()))?
            .iter()
            .map(|b| b.name.clone())
            .collect();
        let first = names.first().cloned().unwrap_or_default();
        let mut row = RowPlan {
            blocks: names,
            serial_rows: 1,
            side_by_side: 1,
            threads: 1,
            vector: 1,
            held: Vec::new(),
            unroll: Vec::new(),
        };
        let mut flat = FlatPlan { block: first.clone(), side_by_side: 1, steps: 1, threads: 1, vector: 1 };
        let mut tile = TilePlan { block: first, side: 1, vector: 1, threads: 1, pad: 0 };
        let mut current = root;
        loop {
            match current {
                StreamTerm::Loop { role: Role::Unroll, extent, .. } => flat.steps = *extent,
                StreamTerm::Loop { role: Role::Thread, extent, .. } => flat.threads = *extent,
                StreamTerm::Loop { role: Role::Vector, extent, .. } => flat.vector = *extent,
                StreamTerm::Loop { .. } => {}
                StreamTerm::Rows { serial, side_by_side, .. } => {
                    (row.serial_rows, row.side_by_side) = (*serial, *side_by_side);
                }
                StreamTerm::Columns { threads, vector, .. } => (row.threads, row.vector) = (*threads, *vector),
                StreamTerm::Hold { buffer, place, .. } => {
                    let buffer = stream.buffers.get(usize::from(*buffer)).map(|b| b.name.clone());
                    let buffer = buffer.ok_or_else(|| Incomplete("a buffer that the program does not have".into()))?;
                    row.held.push(Held { buffer, place: *place });
                }
                StreamTerm::Stage { unroll, .. } => row.unroll.push(*unroll),
                StreamTerm::Tile { side, .. } => tile.side = *side,
                StreamTerm::Wide { vector, .. } => tile.vector = *vector,
                StreamTerm::Team { threads, .. } => tile.threads = *threads,
                StreamTerm::Pad { pad, .. } => {
                    tile.pad = *pad;
                    return Ok(KernelPlan::Tile(tile));
                }
                StreamTerm::Plain { threads, .. } => {
                    let of = stream.blocks.iter().find(|b| b.name == tile.block);
                    let in_order = of.is_some_and(|b| b.kind == BlockKind::Bound);
                    return Ok(KernelPlan::Plain(PlainPlan { block: tile.block, threads: *threads, in_order }));
                }
                StreamTerm::Tiled { plan, .. } => {
                    let plan = TiledPlan { blocks: row.blocks, plan: (**plan).clone() };
                    return Ok(KernelPlan::Tiled(Box::new(plan)));
                }
                StreamTerm::Done(state) => {
                    return match **state {
                        StreamState { step: Step::Row(..), .. } => Ok(KernelPlan::Row(row)),
                        StreamState { step: Step::Flat(_, state), .. } => {
                            flat.side_by_side = state.side_by_side;
                            Ok(KernelPlan::Flat(flat))
                        }
                        _ => Err(Incomplete("it ends before everything is decided".into())),
                    };
                }
                other => return Err(Incomplete(format!("{other} has no place in a kernel"))),
            }
            let next = current.children().first().ok_or_else(|| Incomplete(format!("{current} has no child")))?;
            current = node(*next)?;
        }
    }
}
