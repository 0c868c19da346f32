//! Matrices of the tensor cores as plain arrays: where fragments hold their elements, how shared memory holds operands, what a
//! product is, what a tensor map describes. Nothing here knows of warps or of the machine's memory.
pub mod descriptor;
pub mod fragment;
pub mod map;
pub mod operand;
pub mod product;
