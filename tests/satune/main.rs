//! End-to-end tests, one binary.
mod architecture;
mod command;
mod compiles;
mod extraction;
mod lowering;
mod page;
mod programs;
mod staircase;
mod support;
mod traces;
mod tvm;
