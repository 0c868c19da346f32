//! End-to-end tests, one binary.
#[macro_use]
extern crate satune_testing;

mod accumulators;
mod architecture;
mod bare;
mod beside;
mod blackwell;
mod by_hand;
mod by_others;
mod calibrate;
mod cascaded;
mod chains;
mod check_kernel;
mod circles;
mod combined;
mod command;
mod compiles;
mod computed;
mod convolutions;
mod cuda_worker;
mod distinct;
mod examples;
mod executed;
mod expressions;
mod extraction;
mod factored;
mod faults;
mod files;
mod fp8;
mod fused;
mod given;
mod headers;
mod hopper;
mod host;
mod in_order;
mod in_place;
mod interruptions;
mod known;
mod long;
mod looked_up;
mod loops;
mod lowering;
mod maps;
mod measuring;
mod mutants;
mod named;
mod networks;
mod nvmmh;
mod orientation;
mod packs;
mod page;
mod plain;
mod portfolio;
mod programs;
mod published;
mod quantized;
mod recorded;
mod reductions;
mod registers;
mod rows;
mod scalars;
mod scans;
mod semantics;
mod simulated;
mod slots;
mod store;
mod streaming;
mod streaming_command;
mod summed;
mod sums;
mod support;
mod synchronisation;
mod tensor;
mod tensor_counts;
mod tensor_space;
mod tensor_traces;
mod threats;
mod tiled;
mod tilings;
mod tiny;
mod traces;
mod transaction;
mod tuples;
mod tvm;
mod vet;
mod why_not;
mod why_not_tensor;
mod wmma;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    satune_testing::main()
}
