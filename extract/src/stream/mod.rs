//! The cost of streaming programs, and the k best of them.
mod accesses;
mod chain;
mod cost;
mod counts;
mod plain;
mod row;
mod tile;
mod topk;
mod work;

pub(crate) use cost::Prepared;
pub use cost::{counted_cost, predict_stream, stream_cost, KernelCost, StreamCost, BASE_REGISTERS, STEP_CLOCKS};
pub use counts::{around, Kept, KernelWork};
pub use plain::TOGETHER;
pub use topk::{best_stream, best_stream_knowing, Teams};
pub use work::{kernel_work, stream_work};
