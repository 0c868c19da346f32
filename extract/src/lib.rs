//! What is best in a space, and how good it is: GPU descriptors, the analytical cost, exact counts, uniform samples,
//! exact top-k with a proof or a bound.
#![forbid(unsafe_code)]

pub mod calibrate;
mod cost;
mod count;
mod descend;
mod descriptor;
mod dominance;
mod fills;
mod inner;
mod least;
mod path;
mod searched;
pub mod stream;
pub mod tensor;
mod time;
mod topk;
pub mod work;

pub use cost::{cost, predict, predict_compiled, Cost, Infeasible};
pub use count::Counts;
pub use descriptor::{arch_number, Descriptor, DescriptorError, TensorRates};
pub use searched::Searched;
pub use topk::{best, best_while, Candidate, Extraction, Query};
