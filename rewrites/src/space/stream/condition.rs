//! The side conditions of the rules for streaming programs, by name, so that a test can remove one.
use std::fmt;

/// A side condition. `RULES.md` says what catches a rule without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum StreamCondition {
    RowFits,
    FlatFits,
    RowsDivide,
    ThreadsFit,
    VectorBytes,
    VectorDivides,
    SharedFits,
    RegistersFit,
    TeamDivides,
    Pipeline,
}

impl StreamCondition {
    /// All of them.
    pub const ALL: [StreamCondition; 10] = [
        StreamCondition::RowFits,
        StreamCondition::FlatFits,
        StreamCondition::RowsDivide,
        StreamCondition::ThreadsFit,
        StreamCondition::VectorBytes,
        StreamCondition::VectorDivides,
        StreamCondition::SharedFits,
        StreamCondition::RegistersFit,
        StreamCondition::TeamDivides,
        StreamCondition::Pipeline,
    ];

    /// What it asks.
    pub fn text(self) -> &'static str {
        match self {
            StreamCondition::RowFits => {
                "blocks that share a row kernel have the same rows and columns, and what passes between them is of the same row"
            }
            StreamCondition::FlatFits => "every access of a flat kernel follows the order of its loops, which all of its blocks have",
            StreamCondition::RowsDivide => "the rows of a block divide the rows of the problem",
            StreamCondition::ThreadsFit => "a block has no more threads than the GPU lets it have",
            StreamCondition::VectorBytes => "an access has 16 bytes at most",
            StreamCondition::VectorDivides => "the width of an access divides the rows that it runs along",
            StreamCondition::SharedFits => "what is held in shared memory fits there",
            StreamCondition::RegistersFit => "what is held in registers fits there",
            StreamCondition::Pipeline => "accesses are copied only where no block writes what it, or an earlier one, reads",
            StreamCondition::TeamDivides => "the threads of a tile kernel are whole rows of its tile",
        }
    }
}

impl fmt::Display for StreamCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
