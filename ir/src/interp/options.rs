//! What a run may do and use.

/// What a run may do and use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Statements and iterations of loops that may be executed.
    pub max_steps: u64,
    /// Memory for all buffers, bytes.
    pub max_bytes: u64,
    /// Whether what a block accesses has to lie within the regions that it and the blocks around it declare. The root
    /// block is exempt, and so are blocks around others that declare nothing at all.
    pub check_regions: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { max_steps: 2_000_000_000, max_bytes: 2 << 30, check_regions: false }
    }
}
