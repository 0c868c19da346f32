//! End-to-end tests, one binary.
mod architecture;
mod command;
mod compiles;
mod cuda_worker;
mod extraction;
mod faults;
mod hopper;
mod host;
mod lowering;
mod measuring;
mod page;
mod programs;
mod staircase;
mod store;
mod support;
mod tensor;
mod traces;
