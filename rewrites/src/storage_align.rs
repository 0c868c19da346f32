//! `storage_align`: pad the stride of a dimension, so that `stride % factor == offset`.
//!
//! before                                after, storage_align(A_shared, 0, 0, 32, 1)
//!   with T.sblock("A_shared"):            with T.sblock("A_shared"):
//!       ...                                   T.sblock_attr({"buffer_dim_align": [[0, 0, 32, 1]]})
//!                                             ...
//!
//! Legal when: 1 the index names a buffer that the block writes; 2 the factor is positive; 3 the axis is one of the buffer's,
//! from -ndim on; 4 a block allocates the buffer; 5 an earlier annotation is well-formed. Lowering pads the stride; an
//! annotation for the same buffer and axis is replaced.
use crate::regions;
use crate::schedule::{Result, Schedule};
use crate::set_scope::allocation;
use crate::ScheduleError;
use satune_ir::{Attr, BlockId};

/// The annotation's key.
pub const KEY: &str = "buffer_dim_align";

/// Conditions 1 to 5. Returns the axis, counted from the front, and the annotation so far.
pub fn legal(s: &Schedule, block: BlockId, index: i64, axis: i64, factor: i64) -> Result<(i64, Vec<Attr>)> {
    let buffer = regions::access(s, block, index, true)?.buffer;
    if factor <= 0 {
        let what = "The input `factor` of storage_align is expected to be a positive number.";
        let detail = format!("{what} However, the input `factor` is {factor}, which is out of the expected range.");
        return Err(ScheduleError::refused(what, detail)
            .at_block(block)
            .remedy("give a positive factor and an offset of 0 or more"));
    }
    let b = s.program().buffer(buffer);
    let dims = b.shape.len() as i64;
    if !(-dims..dims).contains(&axis) {
        return Err(ScheduleError::refused(
            "The input `axis` is out of range. It is required to be in range [-ndim, ndim) where `ndim` is the number of \
             dimensions of the buffer to set storage alignment.",
            format!(
                "The buffer {} has {dims} dimension(s), so `axis` is required to be in [-{dims}, {dims}) for storage_align. \
                 However, the input `axis` is {axis}, which is out of the expected range.",
                b.name
            ),
        )
        .at_block(block).remedy("count the buffer's dimensions from 0, or from -1 backwards"));
    }
    allocation(s, block, buffer)?;
    let found = match s.block(block)?.annotations.get(KEY) {
        None => Vec::new(),
        Some(Attr::List(items)) if items.iter().all(well_formed) => items.clone(),
        Some(_) => {
            return Err(ScheduleError::refused(
                "The block annotation for storage align is expected to be an array of 4-integer-tuples (buffer_index, axis, \
                 factor, offset).",
                format!("The annotation {KEY} of block {} is not a list of 4 integers each", s.block(block)?.name),
            )
            .at_block(block).remedy("unannotate it first"))
        }
    };
    Ok((if axis < 0 { axis + dims } else { axis }, found))
}

fn well_formed(entry: &Attr) -> bool {
    matches!(entry, Attr::List(items) if items.len() == 4 && items.iter().all(|i| matches!(i, Attr::Int(_))))
}

/// The primitive.
pub fn storage_align(s: &mut Schedule, block: BlockId, index: i64, axis: i64, factor: i64, offset: i64) -> Result<()> {
    let (axis, mut entries) = legal(s, block, index, axis, factor).map_err(|e| e.within("storage_align"))?;
    let key = [Attr::Int(index), Attr::Int(axis)];
    let new = Attr::List(vec![Attr::Int(index), Attr::Int(axis), Attr::Int(factor), Attr::Int(offset)]);
    match entries.iter_mut().find(|e| matches!(e, Attr::List(items) if items.starts_with(&key))) {
        Some(entry) => *entry = new,
        None => entries.push(new),
    }
    s.update_block(block, |b| b.annotations.insert(KEY.to_string(), Attr::List(entries))).map(|_| ())
}
