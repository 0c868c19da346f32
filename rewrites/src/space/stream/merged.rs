//! Programs of more blocks than there are ways to inline them that can be looked at.
use super::encode::{inlined, movable, others, MOST_CHOICES};
use crate::replay::Replay;
use satune_ir::term::stream::{BlockKind, Stream, StreamBlock, WHOLE_BLOCKS};
use satune_ir::Program;

/// Choices that are left where blocks are merged.
const LEFT: usize = 6;

/// The program with maps computed where they are read, and the names of these: of blocks whose elements one other block reads, each
/// once, so many as it takes for the ways to inline the others to be few. A program that has few is left as it is.
///
/// The primitive itself merges them, under strict replay; that there is no choice is for the caller to tell.
pub fn merged(program: &Program) -> (Program, Vec<String>) {
    let mut names = Vec::new();
    let Ok(mut state) = Replay::strict(program) else { return (program.clone(), names) };
    let Some(mut stream) = movable(&state) else { return (program.clone(), names) };
    let mut left = stream.blocks.iter().filter(|b| inlined(&state, &stream, &b.name).is_some()).count();
    if left <= MOST_CHOICES && stream.blocks.len() <= WHOLE_BLOCKS {
        return (program.clone(), names);
    }
    for name in stream.blocks.iter().map(|b| b.name.clone()).collect::<Vec<_>>() {
        if left <= LEFT && stream.blocks.len() <= WHOLE_BLOCKS {
            break;
        }
        let Some((next, false)) = read_once(&stream, &name).then(|| inlined(&state, &stream, &name)).flatten() else {
            continue;
        };
        let Some(read) = movable(&next).filter(|read| others(read) <= others(&stream)) else { continue };
        (state, stream, left) = (next, read, left - 1);
        names.push(name);
    }
    (state.schedule.into_program(), names)
}

/// Whether one block reads what a map makes, and each element once.
fn read_once(stream: &Stream, name: &str) -> bool {
    let Some(block) = stream.blocks.iter().find(|b| b.name == name && b.kind == BlockKind::Map) else { return false };
    let of = |b: &&StreamBlock| b.reads.iter().any(|r| r.buffer == block.write.buffer);
    let readers: Vec<_> = stream.blocks.iter().filter(of).collect();
    matches!(readers[..], [reader] if reader.instances() == block.instances())
}
