//! The cost of streaming programs, and the k best of them.
mod accesses;
mod cost;
mod tile;
mod topk;
mod work;

pub(crate) use cost::Prepared;
pub use cost::{predict_stream, stream_cost, KernelCost, StreamCost};
pub use topk::{best_stream, best_stream_while};
pub use work::{kernel_work, stream_work, KernelWork};
