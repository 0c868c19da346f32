//! `annotate` and `unannotate`: hints on a loop or block for the passes that follow.
//!
//! before                                after, annotate(i, "pragma_auto_unroll_max_step", 64)
//!   for i in range(8):                    for i in T.serial(8, annotations={"pragma_auto_unroll_max_step": 64}):
//!       ...                                   ...
//!
//! Legal unless the key begins with `satune.` and is none that kernels on tensor cores know (TVM does not ask): what it says
//! would be lost. A key that is there already keeps its value, as in TVM: `unannotate` first to change it.
use crate::schedule::{Result, Schedule};
use crate::tree::Node;
use crate::{keys, ErrorClass, ScheduleError};
use satune_ir::{Annotations, Attr};

fn annotations<T>(s: &mut Schedule, node: Node, f: impl FnOnce(&mut Annotations) -> T) -> Result<T> {
    match node {
        Node::Loop(id) => s.update_loop(id, |l| f(&mut l.annotations)),
        Node::Block(id) => s.update_block(id, |b| f(&mut b.annotations)),
    }
}

fn at(error: ScheduleError, node: Node) -> ScheduleError {
    match node {
        Node::Loop(id) => error.at_loop(id),
        Node::Block(id) => error.at_block(id),
    }
}

/// Adds an annotation, unless the key has one. Refused where it is none of the `satune.` keys that there are.
pub fn annotate(s: &mut Schedule, node: Node, key: &str, value: Attr) -> Result<()> {
    if let Some(known) = keys::unknown(key) {
        let message = format!("Annotation key {key} is not known");
        let error = ScheduleError::refused(&message, message.clone()).within("annotate");
        return Err(at(error.remedy(format!("use one of {}", known.join(", "))), node));
    }
    annotations(s, node, |all| {
        all.entry(key.to_string()).or_insert(value);
    })
    .map_err(|e| e.within("annotate"))
}

/// Removes an annotation. Refused where the key has none.
pub fn unannotate(s: &mut Schedule, node: Node, key: &str) -> Result<()> {
    let removed = annotations(s, node, |all| all.shift_remove(key)).map_err(|e| e.within("unannotate"))?;
    if removed.is_some() {
        return Ok(());
    }
    let message = format!("Cannot find annotation key: {key}");
    let error = ScheduleError::of(ErrorClass::IndexError, message.clone(), message)
        .within("unannotate")
        .remedy("unannotate a key that stands there");
    Err(at(error, node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{block, loops, matmul, refusal};

    #[test]
    fn adds_keeps_and_removes() {
        let mut s = matmul();
        let i = loops(&s, "C")[0];
        annotate(&mut s, Node::Loop(i), "k", Attr::Int(1)).unwrap();
        annotate(&mut s, Node::Loop(i), "k", Attr::Int(2)).unwrap();
        assert_eq!(s.get_loop(i).unwrap().annotations["k"], Attr::Int(1));
        unannotate(&mut s, Node::Loop(i), "k").unwrap();
        assert!(s.get_loop(i).unwrap().annotations.is_empty());
        let c = block(&s, "C");
        annotate(&mut s, Node::Block(c), "k", Attr::Int(1)).unwrap();
        assert_eq!(refusal(&mut s, |s| unannotate(s, Node::Block(c), "z")), "Cannot find annotation key: z");
        annotate(&mut s, Node::Loop(i), "satune.raster_rows", Attr::Int(1)).unwrap();
        let unknown = refusal(&mut s, |s| annotate(s, Node::Loop(i), "satune.raster_row", Attr::Int(1)));
        assert_eq!(unknown, "ScheduleError: Annotation key satune.raster_row is not known");
    }
}
