//! What is best in a space, and how good it is: GPU descriptors, the analytical cost, exact counts, uniform samples,
//! exact top-k with a proof or a bound.
#![forbid(unsafe_code)]

pub mod calibrate;
mod cores;
mod cost;
mod count;
mod descend;
mod descriptor;
mod dominance;
mod fills;
mod inner;
mod least;
mod path;
mod portfolio;
pub mod published;
mod residency;
mod searched;
pub mod stream;
pub mod tensor;
mod time;
mod topk;
mod uncertainty;
pub mod work;

pub use cores::LOGIC_LANES;
pub use cost::{cost, predict, predict_compiled, Cost, Infeasible};
pub use count::Counts;
pub use descriptor::{arch_number, Descriptor, DescriptorError, Power, TensorRates};
pub use inner::Known;
pub use portfolio::{portfolio, Portfolio};
pub use residency::registers_left;
pub use searched::Searched;
pub use time::ADDED;
pub use topk::{best, best_knowing, best_while, Candidate, Extraction, Query};
pub use uncertainty::drawn;
