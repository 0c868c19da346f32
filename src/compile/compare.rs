//! What several compilers make of the same text: registers, spills, the hot loop.
use super::{hot_loop_mix, versions, Compiled, Compiler, Job};
use serde::{Deserialize, Serialize};

/// What a compiler made of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes per thread that did not fit in them, stores and loads.
    pub spill_bytes: u32,
    /// Instructions of the hot loop, where there is a disassembler.
    pub hot_loop: Option<u32>,
    /// Of machine code.
    pub code_bytes: u64,
}

impl From<&Compiled> for Figures {
    fn from(compiled: &Compiled) -> Figures {
        Figures {
            registers: compiled.registers,
            spill_bytes: compiled.spill_bytes,
            hot_loop: hot_loop_mix(&compiled.cubin).map(|mix| mix.instructions),
            code_bytes: compiled.cubin.len() as u64,
        }
    }
}

/// Each kernel by each NVRTC that is here, the newest first: the compiler, and of each kernel its figures or what the compiler
/// said.
pub fn by_all(compiler: &Compiler, jobs: &[Job]) -> Vec<(String, Vec<Result<Figures, String>>)> {
    let by = |(version, folder): (super::Version, _)| {
        let one = Compiler { nvrtc: Some(folder), ..compiler.clone() };
        let made = one.compile_many(jobs).into_iter();
        (version.to_string(), made.map(|m| m.as_ref().map(Figures::from).map_err(ToString::to_string)).collect())
    };
    versions().into_iter().map(by).collect()
}
