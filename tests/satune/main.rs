//! End-to-end tests, one binary.
mod compiles;
mod extraction;
mod kernels;
mod support;
