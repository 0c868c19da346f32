//! The emitted text itself is run: NVRTC makes PTX of it, and [`satune_ptx`] executes that on the CPU and judges it.
mod as_given;
mod candidate;
mod expected;
mod inputs;
mod kernel;
mod module;
mod rounding;
mod values;
mod words;

pub use as_given::difference;
pub use candidate::{execute_given, execute_whole, Candidate, Executed, Refusal};
pub use kernel::{check, Finding, Findings, KernelError, Request, Unwritten};
pub(crate) use rounding::of_whole_numbers;
pub use values::InputKind;
pub use words::{LaunchWords, Role, WordsError};
