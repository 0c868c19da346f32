//! From a scheduled program to the plan that it is a program of: on tensor cores, or on single threads.
use super::derive_tensor::{on_tensor_cores, read_tensor};
use super::read_cores::read_cores;
use super::unread::Read;
use satune_ir::term::{Contraction, Schedule};
use satune_ir::Program;

/// Reads the plan of a scheduled program; `source` is what was scheduled, and `contraction` what that is.
///
/// # Errors
/// What in the program is not as any plan has it, and where.
pub fn read_plan(program: &Program, source: &Program, contraction: &Contraction) -> Read<Schedule> {
    // What warps hold together is for tensor cores, though nothing multiplies there.
    let of_warps = program.buffers.iter().any(|b| b.scope == "warp" || b.scope.starts_with("wmma."));
    match of_warps || on_tensor_cores(program) {
        true => read_tensor(program, source, contraction),
        false => read_cores(program, source, contraction).map(Schedule::Cores),
    }
}
