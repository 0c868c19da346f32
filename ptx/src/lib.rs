//! Runs PTX on the CPU and judges it: is the program free of races, of accesses out of bounds, of reads of what nobody wrote,
//! of barriers that not all threads reach, of waits that were forgotten? And what does it compute? It stands alone: PTX from any
//! compiler will do, and no GPU is needed.
//!
//! ```
//! use satune_ptx::{parse, run, Allocation, Argument, Initial, Launch, Options, Program};
//! let text = "
//! .version 8.0
//! .target sm_80
//! .address_size 64
//! .visible .entry double(.param .u64 x)
//! {
//!     .reg .b32 %r<3>;
//!     .reg .b64 %rd<4>;
//!     ld.param.u64 %rd1, [x];
//!     mov.u32 %r1, %tid.x;
//!     mul.wide.u32 %rd2, %r1, 4;
//!     add.s64 %rd3, %rd1, %rd2;
//!     ld.global.u32 %r2, [%rd3];
//!     shl.b32 %r2, %r2, 1;
//!     st.global.u32 [%rd3], %r2;
//!     ret;
//! }";
//! let module = parse(text)?;
//! let program = Program::new(&module, "double")?;
//! let values: Vec<u8> = [3u32, 4, 5].iter().flat_map(|n| n.to_le_bytes()).collect();
//! let x = Allocation { name: "x".into(), bytes: 12, initial: Initial::Bytes(values.into()), writable: true };
//! let launch = Launch::new(&program, [1; 3], [3, 1, 1], 0, &[Argument::Allocation(x)], Options::default())?;
//! let outcome = run(&program, &launch);
//! assert!(outcome.faults.is_empty());
//! assert_eq!(outcome.whole(0).0[..4], [6, 0, 0, 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//! [`parse()`] reads a text into a [`syntax::Module`]. [`Program::new`] inlines calls and has every instruction decoded once into an
//! [`Operation`], a closure that executes it for all active lanes of a warp. A [`machine::Unit`] runs blocks that can
//! talk to each other by turns of their warps; units run in parallel. Lanes that go different ways meet again where the flow
//! graph says (see [`order`]). Each byte of memory knows who wrote and read it ([`memory::Shadow`]), each lane what has happened
//! before ([`clocks`]): two accesses of which neither happened before the other are a race, whatever the turns were.
//!
//! Matrix instructions that are known: `mma.sync`, `wmma`, `wgmma` (sm_90a), `tcgen05` of single blocks (sm_100a).
//!
//! Where two threads write the same value, no race is reported: the result does not depend on the order.
//!
//! # How an instruction family is added
//! A family is one file in `src/instructions` with one function
//! `pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>>`, and one line in
//! [`instructions::FAMILIES`]. It answers `None` for what is not its own. In `decode` it reads operands with
//! [`program::Decoder`] (`value`, `typed`, `register`, `address`, `elements`) and returns a closure over them. The closure gets a
//! [`machine::Context`]:
//!
//! * `read`, `write`: registers of 32 lanes; `mask`: the lanes that execute; `together()`: a fault unless all of the warp do.
//! * `load`, `store`: memory as a lane, with all checks. Other agents touch memory by [`memory::Shared`] and [`memory::Global`]
//!   as a [`memory::Who`], and have [`machine::Unit::judge`] turn what came of it into a fault.
//! * [`Flow::Wait`]: it cannot be done yet. It is tried again; `token` keeps what must be kept until then. Nothing else
//!   runs for these lanes; when nobody can go on, that is a hang, and the fault says who waits for what.
//! * `unit.submit(Pending)`: an asynchronous operation, delivered late, early or at random, as the launch asks. Its destination
//!   is announced at once ([`memory::Shared::announce`]), so that a touch before its delivery is a missing wait. Its accesses belong to
//!   an agent of its own ([`machine::Unit::engine`]), which a thread knows of when it has waited (`clocks.update`).
//! * `warp.state`, `block().state`, `unit.state`: what the family itself keeps, one value of each type.
//! * `warp.clocks`: `release` (hand on what is known), `update` with `acquire` (learn), `meet` (lanes synchronise), `fence`,
//!   `fence_proxy`. An agent of the asynchronous proxy sets `engine` in its [`memory::Who`] and gives the issuing lane's `fenced`.
//! * Blocks of a cluster are side by side in `unit.blocks`; `shared_block` finds the one that an address means.
pub mod clocks;
pub mod fault;
pub mod format;
mod inline;
pub mod instructions;
pub mod launch;
pub mod machine;
pub mod matrix;
pub mod memory;
pub mod number;
pub mod order;
mod parse;
pub mod program;
pub mod syntax;

pub use fault::{Fault, FaultKind, Site, Thread};
pub use launch::{run, run_clusters, run_onward, Argument, Delivery, Launch, LaunchError, Options, Outcome};
pub use matrix::descriptor::Swizzle;
pub use matrix::map::{Image, MapError, TensorMap};
pub use memory::{Allocation, Initial};
pub use parse::{parse, ParseError};
pub use program::{Flow, Operation, Program, ProgramError};
