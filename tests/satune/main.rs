//! End-to-end tests, one binary.
mod compiles;
mod kernels;
mod support;
