//! What is best in a space, and how good it is: GPU descriptors, the analytical cost, exact counts, uniform samples,
//! exact top-k with a proof or a bound. It knows spaces and plans from `satune_ir`, and no rewrite rule.
//!
//! ```
//! use satune_extract::{cost, Descriptor};
//! use satune_ir::term::{Axis, BlockLoop, Contraction, CoresPlan, Pair, Staging};
//! use satune_ir::DType;
//!
//! let (product, gpu) = (Contraction::gemm(None, [4096; 3], DType::F32, DType::F32, [false; 2]), Descriptor::load("h200")?);
//! // A thread per result, in blocks of 16 x 16; then 4 x 4 results a thread, in registers.
//! let plan = |results: i64| CoresPlan {
//!     blocks: [Axis::M, Axis::N].map(|axis| BlockLoop { axis, extent: 256 / results, group: false }).to_vec(),
//!     tile: Pair { m: 16 * results, n: 16 * results },
//!     threads: 256,
//!     warps: Pair { m: 4, n: 2 },
//!     lanes: Pair { m: 4, n: 8 },
//!     registers: Pair { m: results, n: results },
//!     accumulators: true,
//!     a: Staging { local: Some(1), ..Staging::default() },
//!     b: Staging { local: Some(1), ..Staging::default() },
//!     ..CoresPlan::naive(&product)
//! };
//! let (one, sixteen) = (cost(&plan(1), &product, &gpu)?, cost(&plan(4), &product, &gpu)?);
//! assert!(sixteen.ms < one.ms && sixteen.l2_bytes < one.l2_bytes);
//! println!("{:.3} ms, bound by {}", sixteen.ms, sixteen.bottleneck);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The time of a plan is [`cost`], of a schedule of any kind [`predict`]. [`best`] finds the k best of a space, [`portfolio()`] those that
//! are worth measuring together, [`Counts`] how many there are. [`mod@calibrate`] fits a [`Descriptor`] to measured times.
#![forbid(unsafe_code)]

pub mod calibrate;
mod cores;
mod cost;
mod count;
mod descend;
mod descriptor;
mod descriptors;
mod dominance;
mod fills;
mod inner;
mod least;
mod panels;
mod path;
mod portfolio;
mod prediction;
pub mod published;
mod query;
mod residency;
mod searched;
pub mod stream;
pub mod tensor;
mod time;
mod topk;
mod uncertainty;
pub mod work;

pub use cores::LOGIC_LANES;
pub use cost::{compiled, cost, least_on_threads, predict};
pub use count::{Counts, Evenly};
pub use descriptor::{arch_number, Descriptor, Power, TensorRates};
pub use descriptors::DescriptorError;
pub use inner::Known;
pub use portfolio::{portfolio, Portfolio};
pub use prediction::{Compiled, Cost, Infeasible, KLoop};
pub use query::Query;
pub use residency::{registers_left, resident_blocks};
pub use searched::Searched;
pub use time::{stays_in_l2, ADDED};
pub use topk::{best, best_knowing, best_while, Candidate, Extraction};
pub use uncertainty::drawn;
