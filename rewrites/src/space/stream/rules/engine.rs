//! What every rule for streaming programs is given.
use satune_ir::term::stream::StreamTerm;

/// The rule's view of saturation.
pub(crate) type Engine<'a> = crate::space::Engine<'a, StreamTerm>;
