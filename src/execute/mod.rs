//! The emitted text itself is run: NVRTC makes PTX of it, and [`satune_ptx`] executes that on the CPU and judges it.
mod inputs;
mod kernel;
mod words;

pub use kernel::{check, Finding, Findings, KernelError, Request, Unwritten};
pub use words::{LaunchWords, Role, WordsError};
