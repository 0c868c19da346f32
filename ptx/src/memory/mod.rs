//! Memories: of the grid, of a block, of a thread; each with what was written and who touched it.
mod global;
mod local;
mod shadow;
mod shared;

pub use global::{Allocation, Global, Initial, Page, Written, GLOBAL_STRIDE, PAGE};
pub use local::Local;
pub use shadow::{Clash, Shadow, Stamp, Who};
pub use shared::Shared;

/// Generic addresses of the shared window: bits 24 and up hold a block's rank in the cluster plus one, or 0 for the own block.
pub const SHARED_WINDOW: u64 = 1 << 56;
/// Generic addresses of local memory.
pub const LOCAL_WINDOW: u64 = 2 << 56;
/// Generic addresses of the kernel's parameters.
pub const PARAM_WINDOW: u64 = 3 << 56;

/// Why an access was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Outside of what there is.
    Bounds,
    /// The address is no multiple of this.
    Alignment(u64),
    /// A write into an input.
    ReadOnly,
}

/// What came of an access that was made.
pub type Touched = Result<Result<(), (Clash, u64)>, Refused>;
