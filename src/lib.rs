//! Satune: explores GPU schedules of a tensor program by equality saturation, and proves, writes and measures the
//! best few.

pub mod agreement;
pub mod cli;
pub mod compile;
pub mod cuda;
pub mod device;
pub mod execute;
pub mod explore;
pub mod host;
pub mod kernel;
pub mod lower;
pub mod measure;
pub mod measurements;
pub mod nvmmh;
pub mod on_gpu;
pub mod operators;
pub mod pack;
pub mod progress;
pub mod published;
pub mod reference;
pub mod report;
pub mod scheduled;
pub mod sensitivity;
pub mod simulate;
pub mod source;
pub mod store;
pub mod streaming;
mod worker_process;
pub mod workload;

pub use satune_extract::Descriptor;
pub use worker_process::worker;
