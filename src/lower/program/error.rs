//! Why a program has no kernel.

/// Where in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct At(Option<String>);

impl At {
    /// In a block.
    pub fn block(name: &str) -> At {
        At((!name.is_empty()).then(|| name.to_string()))
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(name) => write!(f, "block {name}: "),
            None => Ok(()),
        }
    }
}

/// Why a program has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// A nest without thread bindings.
    #[error("{what} runs outside of any thread; bind a loop around it to blockIdx or threadIdx")]
    NotBound {
        /// Block or program.
        what: String,
    },
    /// Two loops with one tag and two extents.
    #[error(
        "loops {} and {} are both bound to {tag}, with extents {} and {}; give them the same extent",
        first.0, second.0, first.1, second.1
    )]
    ThreadExtents {
        /// Thread tag.
        tag: String,
        /// Loop and extent.
        first: (String, i64),
        /// Loop and extent.
        second: (String, i64),
    },
    /// A launch that no GPU takes.
    #[error("{what}: {count}, at most {most} are possible; choose smaller extents for the bound loops")]
    Launch {
        /// Threads per block, or blocks.
        what: String,
        /// Asked for.
        count: i64,
        /// Limit.
        most: i64,
    },
    /// A reduction over threads that has a form which they cannot combine.
    #[error("block {block} reduces over threads, and {why}")]
    CrossThread {
        /// Block.
        block: String,
        /// What stands in the way, and what to do.
        why: String,
    },
    /// Something that lowering does not know.
    #[error("{place}{what} is not supported; {remedy}")]
    Unsupported {
        /// What.
        what: String,
        /// Where.
        place: At,
        /// What to do.
        remedy: String,
    },
    /// A local buffer that threads exchange data through.
    #[error("buffer {buffer} is local to a thread, but block {reader} reads elements at {read} that other threads wrote at {written}; use scope shared")]
    NotLocal {
        /// Buffer.
        buffer: String,
        /// Block that reads.
        reader: String,
        /// Its index.
        read: String,
        /// Index of the writer.
        written: String,
    },
    /// A global buffer that threads of one kernel exchange data through.
    #[error("buffer {buffer} is written and read by different threads of one kernel (blocks {writer} and {reader}); put the reader into a nest of its own, or use scope shared")]
    NotOneKernel {
        /// Buffer.
        buffer: String,
        /// Block that writes.
        writer: String,
        /// Block that reads.
        reader: String,
    },
    /// A register array that needs a loop expanded that is too long.
    #[error("loop {name} of {steps} steps must be expanded, because it indexes the local buffer {buffer}; use scope shared, or move the computation of {buffer} under loop {name}")]
    Registers {
        /// Loop.
        name: String,
        /// Steps in all.
        steps: i64,
        /// Buffer.
        buffer: String,
    },
    /// A local buffer indexed by what is no constant.
    #[error("local buffer {buffer}: block {block} indexes it by a thread's number or by the value of a loop that is not expanded; use scope shared")]
    RegisterIndex {
        /// Buffer.
        buffer: String,
        /// Block.
        block: String,
    },
    /// Too much shared memory.
    #[error(
        "{bytes} bytes of shared memory per block ({list}), the GPU has {most}; choose smaller tiles or fewer stages"
    )]
    SharedMemory {
        /// Asked for.
        bytes: u64,
        /// Limit.
        most: u64,
        /// Arrays and their bytes.
        list: String,
    },
    /// Too much memory of a thread's own.
    #[error("{bytes} bytes of registers and local memory per thread ({list}), a GPU has {most}; choose smaller tiles, or more threads")]
    LocalMemory {
        /// Asked for.
        bytes: u64,
        /// Limit.
        most: u64,
        /// Arrays and their bytes.
        list: String,
    },
    /// Numbers beyond what can be counted.
    #[error("{what} is beyond 2^40")]
    Overflow {
        /// What.
        what: String,
    },
    /// A buffer of one kernel's scope that two kernels use.
    #[error("buffer {buffer} of scope {scope} is used by two kernels; only global buffers outlive a kernel")]
    ScopeLeft {
        /// Buffer.
        buffer: String,
        /// Its scope.
        scope: String,
    },
}
