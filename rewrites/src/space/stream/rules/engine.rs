//! What every rule for streaming programs is given.
use satune_ir::term::stream::StreamTerm;

/// The rule's view of saturation.
pub(crate) type Engine<'a> = crate::space::Engine<'a, StreamTerm>;

/// `x / y`, rounded up.
pub(crate) fn up(x: i64, y: i64) -> i64 {
    (x + y - 1) / y.max(1)
}
