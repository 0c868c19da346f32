//! End-to-end tests, one binary.
mod architecture;
mod command;
mod compiles;
mod cuda_worker;
mod extraction;
mod faults;
mod kernels;
mod lowering;
mod measuring;
mod programs;
mod staircase;
mod store;
mod support;
mod traces;
