//! Rules, primitives and traces against the interpreter and TVM. One binary, so that few tests that take long run beside each other.
#[macro_use]
extern crate satune_testing;

mod ask;
mod caches;
mod heron;
mod judged;
mod plans;
mod rules;
mod sequences;
mod space;
mod stream;
mod tensor;
mod tensor_trace;
mod tensorize;
mod tvm;
mod verdicts;

fn main() {
    satune_testing::main()
}
