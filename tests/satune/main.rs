//! End-to-end tests, one binary.
mod architecture;
mod command;
mod compiles;
mod extraction;
mod files;
mod hopper;
mod host;
mod lowering;
mod page;
mod programs;
mod staircase;
mod support;
mod tensor;
mod traces;
