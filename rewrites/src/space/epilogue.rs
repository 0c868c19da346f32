//! The elementwise blocks after a contraction: which of them a write-back of sums can compute.
use super::nests::{parts, times_loaded};
use super::stream::strictly;
use satune_ir::term::stream::{Access, BlockKind, Stream};
use satune_ir::term::{Axis, Beside, Contraction, Epilogue, OperandInfo, ReadsMade};
use satune_ir::{tvmscript, BufferId, Program, Stmt};

/// The axis of each iterator of the result, and its number of values.
type Dims = [(Axis, i64)];

/// Most times that what is inlined after a contraction loads a sum: a chain of blocks that read their value twice doubles with each.
const MOST_LOADS: usize = 64;

/// Reads the chain after the contraction; returns it with what its last block writes.
///
/// # Errors
/// What does not fit, for people.
pub(super) fn read(program: &Program, contraction: &Contraction) -> Result<(Epilogue, OperandInfo), String> {
    let stream = strictly(program).map_err(|e| e.to_string())?;
    let Some(sum) = stream.blocks.first() else { return Err("there is no block".into()) };
    let dims: Vec<(Axis, i64)> = contraction.c.dims.iter().map(|a| (*a, contraction.extent(*a))).collect();
    if let Some(access) = stream.blocks.iter().flat_map(|b| b.accesses()).find(|access| access.split.is_some()) {
        return Err(format!("an index of buffer `{}` is a sum of two iterators", stream.buffers[access.buffer].name));
    }
    chain(program, (&stream, 0), 1, sum.write.buffer, &dims)
}

/// Reads the chain after block number `at`, which makes `sums`.
///
/// # Errors
/// As [`read`].
pub(super) fn after(
    program: &Program,
    at: usize,
    sums: BufferId,
    dims: &Dims,
) -> Result<(Epilogue, OperandInfo), String> {
    let mut rest = program.clone();
    if let Stmt::Seq(parts) = &mut *rest.body.block.body {
        parts.drain(..=at);
    }
    let stream = strictly(&rest).map_err(|e| e.to_string())?;
    let name = &program.buffer(sums).name;
    let before = stream.buffers.iter().position(|b| b.name == *name);
    let before = before.ok_or_else(|| format!("no block reads buffer `{name}`"))?;
    chain(program, (&stream, at + 1), 0, before, dims)
}

/// Reads the blocks from number `first` on of those that come after so many of the program's; the first of them reads buffer
/// `before`.
fn chain(
    program: &Program,
    (stream, gone): (&Stream, usize),
    first: usize,
    mut before: usize,
    dims: &Dims,
) -> Result<(Epilogue, OperandInfo), String> {
    let beside = |access: &Access| {
        let buffer = &stream.buffers[access.buffer];
        let id = program.buffers.iter().position(|b| b.name == buffer.name).unwrap_or_default();
        let id = BufferId(u32::try_from(id).unwrap_or_default());
        Beside { buffer: id, name: buffer.name.clone(), dtype: buffer.dtype, dims: access.dims.clone() }
    };
    let mut epilogue = Epilogue {
        script: tvmscript::print(program),
        blocks: Vec::new(),
        between: Vec::new(),
        reads: Vec::new(),
        made: ReadsMade::default(),
    };
    let (parts, mut loads) = (parts(program), 1_usize);
    let mut result = None;
    for (number, b) in stream.blocks.iter().enumerate().skip(first) {
        let name = &b.name;
        let plain: Vec<Option<usize>> = (0..b.iters.len()).map(Some).collect();
        let same = b.iters.iter().map(|i| i.extent).eq(dims.iter().map(|d| d.1));
        if b.kind != BlockKind::Map || !same || b.write.dims != plain {
            return Err(format!("block `{name}` is no map over the elements of the result"));
        }
        if b.updates {
            return Err(format!("block `{name}` reads the element that it writes"));
        }
        let between = &stream.buffers[before];
        let takes = b.reads.iter().any(|r| r.buffer == before && r.dims == plain);
        let others =
            stream.blocks.iter().enumerate().any(|(i, o)| i != number && o.reads.iter().any(|r| r.buffer == before));
        if !takes || others || between.param {
            return Err(format!("buffer `{}` is not read by block `{name}` alone, element by element", between.name));
        }
        loads = loads.saturating_mul(parts.get(gone + number).map_or(1, |p| times_loaded(program, p, &between.name)));
        if loads > MOST_LOADS {
            return Err(format!("with block `{name}` inlined, a sum would be loaded more than {MOST_LOADS} times"));
        }
        epilogue.between.push(between.name.clone());
        for read in b.reads.iter().filter(|r| r.buffer != before) {
            let read = beside(read);
            if !epilogue.reads.contains(&read) {
                epilogue.reads.push(read);
            }
        }
        epilogue.blocks.push(name.clone());
        before = b.write.buffer;
        result = Some(beside(&b.write));
    }
    let result = result.ok_or("there is no block after it")?;
    if !stream.buffers[before].param {
        return Err(format!("buffer `{}` is no parameter of the function", result.name));
    }
    let Beside { buffer, name, dtype, dims: _ } = result;
    Ok((epilogue, OperandInfo { buffer, name, dtype, index: 0, dims: dims.iter().map(|d| d.0).collect() }))
}
