//! Satune: explores GPU schedules of a tensor program by equality saturation, and proves, writes and measures the
//! best few. It needs no GPU, and writes nothing that it has not run: in a simulator, and as compiled text on the CPU.
//!
//! ```
//! use satune::explore::{explore, Request};
//! use satune::{operators, progress::Quiet, Descriptor};
//! use satune_rewrites::space::Fuel;
//! use std::time::Duration;
//!
//! let problem = operators::parse("gemm:64,64,64,f32")?;
//! let (gpu, limit) = (Descriptor::load("h200")?, Duration::from_secs(60));
//! // Without a compiler: this is what the simulator checks, and the model predicts.
//! let request = Request { gpu, top: 2, twins: false, limit, compile: false, fuel: Fuel::default() };
//! let report = explore(&problem, &request, &Quiet)?;
//! assert!(report.proved_optimal);
//! assert!(report.candidates[0].predicted_ms <= report.candidates[1].predicted_ms);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where what is
//! * What is asked: [`operators`], [`source`] (PrimFuncs), [`streaming`]; [`workload`] is what all of them have in common.
//! * The main job: [`explore`]. It measures by [`measure`], on a [`device`], into a [`store`].
//! * From a decision to kernels: [`scheduled`] replays a trace, [`lower`] makes [`kernel`]s, [`simulate`] runs them, [`cuda`] prints
//!   them, [`compile`] asks NVRTC, [`execute`] runs its PTX. [`mod@reference`] and [`agreement`] say what is right.
//! * Primitives are in `satune_rewrites`, programs and their meaning in `satune_ir`, the model in `satune_extract`.
//!
//! A program that compiles or measures by this library begins its `main` with [`worker`]. `examples` has four to begin with.

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
