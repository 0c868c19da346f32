//! Long chains of maps, shortened: each way to inline some of a program's blocks is tried, and a chain of twelve has thousands.
//!
//! A map whose result one other map reads, element by element, has nothing to gain by itself: inlined, what it computes is computed
//! as often, and neither stored nor loaded. Where a program has more blocks than can be decided one by one, such maps are inlined
//! before, by the primitive, until it has few enough.
use super::stream::streaming_blocks;
use crate::compute_inline::compute_inline;
use crate::queries::get_block;
use crate::schedule::Schedule;
use satune_ir::term::stream::{Access, BlockKind, Stream, StreamBlock};
use satune_ir::Program;

/// Blocks that are decided one by one, at most: there are no more than 256 ways to inline them.
const MOST: usize = 9;

/// The program with as few of its maps inlined as leave so many blocks, where there are such maps.
pub(super) fn shortened(program: Program) -> Program {
    let Some(mut stream) = long(&program) else { return program };
    let Ok(mut schedule) = Schedule::new(program.clone()) else { return program };
    while let Some(name) = chained(&stream) {
        let inlined = get_block(&schedule, &name).and_then(|block| compute_inline(&mut schedule, block));
        match long(schedule.program()).filter(|_| inlined.is_ok()) {
            Some(next) => stream = next,
            None => break,
        }
    }
    schedule.program().clone()
}

/// The blocks of a program that has many, and whose blocks may move.
fn long(program: &Program) -> Option<Stream> {
    streaming_blocks(program).filter(|s| s.blocks.len() > MOST && s.pipeline)
}

/// The first map that one other map alone reads, at the element that it computes.
fn chained(stream: &Stream) -> Option<String> {
    let extents = |b: &StreamBlock| -> Vec<i64> { b.iters.iter().map(|i| i.extent).collect() };
    let inner = |b: &&StreamBlock| {
        let of = b.write.buffer;
        let mut readers = stream.blocks.iter().filter(|c| c.reads.iter().any(|r| r.buffer == of));
        let (Some(reader), None) = (readers.next(), readers.next()) else { return false };
        let same = |r: &Access| r.buffer != of || r.dims == b.write.dims;
        b.kind == BlockKind::Map
            && reader.kind == BlockKind::Map
            && !stream.buffers[of].param
            && extents(b) == extents(reader)
            && reader.write.dims == b.write.dims
            && reader.reads.iter().all(same)
    };
    stream.blocks.iter().find(inner).map(|b| b.name.clone())
}

#[cfg(test)]
mod tests {
    use super::super::explored;
    use super::super::stream::streams;
    use crate::tree::all_realizes;
    use satune_ir::{interp, tvmscript, Program};

    fn chain(blocks: usize, value: impl Fn(usize, &str) -> String) -> String {
        let name = |at: usize| if at == blocks { "C".into() } else { format!("B{at}") };
        let made = (1..blocks).map(|at| format!("    {} = T.sblock_alloc_buffer((4, 64))\n", name(at)));
        let nests = (1..=blocks).map(|at| {
            let from = if at == 1 { "A".into() } else { name(at - 1) };
            format!(
                "    for i, j in T.grid(4, 64):\n        with T.sblock(\"b{at}\"):\n            vi, vj = \
                 T.axis.remap(\"SS\", [i, j])\n            {}[vi, vj] = {}\n",
                name(at),
                value(at, &from)
            )
        });
        let head = "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer((4, 64), \"float32\"), C: T.Buffer((4, 64), \"float32\")):\n";
        head.to_string() + &made.chain(nests).collect::<String>()
    }

    #[test]
    fn long_chains_of_maps_are_explored() {
        let text = chain(40, |at, from| format!("{from}[vi, vj] + T.float32({at})"));
        let program = tvmscript::parse(&text).unwrap();
        let shorter = explored(&program);
        let blocks = |p: &Program| all_realizes(&p.body.block.body).len();
        assert_eq!((blocks(&shorter), streams(&shorter).unwrap().source.len()), (super::MOST, super::MOST));
        interp::equal_on(&program, &shorter, 5).unwrap();
        // What is few enough is left as it is, and what is read at another element.
        let few = chain(super::MOST, |_, from| format!("{from}[vi, vj] + T.float32(1)"));
        assert_eq!(blocks(&explored(&tvmscript::parse(&few).unwrap())), super::MOST);
        let turned = chain(12, |_, from| format!("{from}[vi, 63 - vj] + T.float32(1)"));
        assert_eq!(blocks(&explored(&tvmscript::parse(&turned).unwrap())), 12);
    }
}
