//! The side conditions of the rules for single threads and, in `stream`, of those for streaming programs, each a function
//! that says what does not hold, with its numbers. Rules ask whether there is a refusal; whoever explains a space prints it.
mod copies;
mod loops;
pub mod plain;
mod refusal;
mod staged;
mod staging;
pub mod stream;

pub use copies::{
    async_bytes, async_rows, copy_bytes, copy_coalesced, copy_rows, copy_runs, copy_threads, cut, store_along,
    store_bytes, store_divides, store_rows, WIDTHS,
};
pub use loops::{
    accumulators_fit, divides, group_divides, in_place, long_parts, one_kernel_parts, parts_divide, plain_parts,
    step_along_k, step_divides, strip_repeats, threads_divide, STEPS,
};
pub use refusal::{Held, Refusal};
pub use staged::Staged;
pub use staging::{
    chunk, fragment_bytes, fragment_run, fragment_sums, layout_offered, offered, overlap_staged, overlap_sums,
    shared_fits, staged_sums, strip_layout, strip_offered, swizzle_parts, swizzle_rows,
};
