//! From a term to the plan that it stands for.
use super::{
    BlockKind, FlatPlan, Held, How, KernelPlan, PlainPlan, RowParts, RowPlan, Step, Stream, StreamPlan, StreamState,
    StreamTerm, Streams, TilePlan, TiledPlan,
};
use crate::term::Incomplete;
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
        let (mut inlined, mut parts, mut kernels) = (Vec::new(), RowParts::WHOLE, Vec::new());
        let missing = || Incomplete("a work or a choice that the program does not have".into());
        loop {
            current = match current {
                StreamTerm::Parts { parts: n, body } => {
                    parts = *n;
                    node(body[0])?
                }
                StreamTerm::Become { at, choice, body } => {
                    let choices = problem.choices.get(at);
                    let chosen = choices.and_then(|c| c.becomes.get(usize::from(*choice))).ok_or_else(missing)?;
                    if let How::Inline(inlining) = &chosen.how {
                        inlined.push(inlining.clone());
                    }
                    node(body[0])?
                }
                StreamTerm::Keep { body, .. } => node(body[0])?,
                StreamTerm::Then { kernel, children, .. } => {
                    let stream = problem.works.get(usize::from(*kernel)).ok_or_else(missing)?;
                    kernels.push(KernelPlan::from_nodes(node(children[0])?, &node, stream)?);
                    node(children[1])?
                }
                StreamTerm::Last { kernel, body, .. } => {
                    let stream = problem.works.get(usize::from(*kernel)).ok_or_else(missing)?;
                    kernels.push(KernelPlan::from_nodes(node(body[0])?, &node, stream)?);
                    let RowParts { number: parts, cascaded } = parts;
                    return Ok(StreamPlan { inlined, parts, cascaded, kernels });
                }
                other => return Err(Incomplete(format!("{other} has no place between kernels"))),
            };
        }
    }
}

impl KernelPlan {
    /// Reads the decisions of the kernel that a work is, from the outside in.
    ///
    /// # Errors
    /// As [`StreamPlan::from_term`].
    pub fn from_path<'a>(
        path: impl IntoIterator<Item = &'a StreamTerm>,
        stream: &Stream,
    ) -> Result<KernelPlan, Incomplete> {
        KernelPlan::read(path.into_iter().map(Ok), stream)
    }

    fn from_nodes<'a>(
        root: &'a StreamTerm,
        node: &dyn Fn(Id) -> Result<&'a StreamTerm, Incomplete>,
        stream: &Stream,
    ) -> Result<KernelPlan, Incomplete> {
        let below = |current: &Result<&'a StreamTerm, Incomplete>| match current {
            Ok(current) => current.children().first().map(|next| node(*next)),
            Err(_) => None,
        };
        KernelPlan::read(std::iter::successors(Some(Ok(root)), below), stream)
    }

    fn read<'a>(
        path: impl Iterator<Item = Result<&'a StreamTerm, Incomplete>>,
        stream: &Stream,
    ) -> Result<KernelPlan, Incomplete> {
        let names: Vec<String> = stream.blocks.iter().map(|b| b.name.clone()).collect();
        let first = names.first().cloned().unwrap_or_default();
        let mut flat = FlatPlan { blocks: names.clone(), side_by_side: 1, steps: 1, threads: 1, vector: 1 };
        let mut row = RowPlan {
            blocks: names,
            serial_rows: 1,
            side_by_side: 1,
            threads: 1,
            vector: 1,
            held: Vec::new(),
            unroll: Vec::new(),
        };
        let mut tile = TilePlan { block: first, side: 1, vector: 1, threads: 1, pad: 0 };
        for current in path {
            let current = current?;
            match current {
                StreamTerm::Blocks { .. } => {}
                StreamTerm::Threads { side_by_side, threads, .. } => {
                    (flat.side_by_side, flat.threads) = (*side_by_side, *threads);
                }
                StreamTerm::Steps { steps, vector, .. } => {
                    (flat.steps, flat.vector) = (*steps, *vector);
                    return Ok(KernelPlan::Flat(flat));
                }
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
                StreamTerm::Plain { teams, vector, window, sharing, .. } => {
                    let missing = || Incomplete("a plain kernel of other blocks".into());
                    let blocks = stream.plain_blocks(0, stream.blocks.len()).ok_or_else(missing)?;
                    let name = |block: usize| stream.blocks[block].name.clone();
                    return Ok(KernelPlan::Plain(PlainPlan {
                        before: blocks.before.map(name),
                        block: name(blocks.block),
                        map: blocks.map.map(name),
                        teams: *teams,
                        vector: *vector,
                        window: *window,
                        in_order: stream.blocks.iter().any(|b| b.kind == BlockKind::Bound),
                        sharing: *sharing,
                    }));
                }
                StreamTerm::Tiled { plan, .. } => {
                    let plan = TiledPlan { blocks: row.blocks, plan: (**plan).clone() };
                    return Ok(KernelPlan::Tiled(Box::new(plan)));
                }
                StreamTerm::Done(state) => {
                    return match **state {
                        StreamState { step: Step::Chain(..), .. } => {
                            // A plan has them by their numbers, whoever comes to them first.
                            row.held.sort_by_key(|held| stream.buffer(&held.buffer));
                            Ok(KernelPlan::Row(row))
                        }
                        _ => Err(Incomplete("it ends before everything is decided".into())),
                    };
                }
                other => return Err(Incomplete(format!("{other} has no place in a kernel"))),
            }
        }
        Err(Incomplete("it ends before everything is decided".into()))
    }
}
