//! The kernel IR: one CUDA function and its launch, in structured form. Lowering writes it; the CUDA printer and the
//! simulator read it, and nothing else decides what a kernel means.
//!
//! All arrays are flat: an index counts elements. Integer arithmetic ([`Index`]) is exact (no overflow: lowering
//! checks ranges and the printer picks 32 or 64 bits); divisions and remainders are of non-negative numbers.
mod group;
mod tensor_memory;
mod warp;
mod wmma;

pub use group::{each_group_op, Descriptor, GroupOp, Image, Left, Role, TensorMap, Wgmma};
pub use tensor_memory::{Tcgen05, TensorMemoryOp};
pub use warp::{Mma, WarpOp};
pub use wmma::WmmaOp;

use satune_ir::semantics::Function;
use satune_ir::{BinOp, DType};
use serde::{Deserialize, Serialize};

/// Identity of an [`Array`] within its kernel: its position in [`Kernel::arrays`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ArrayId(pub u32);

/// Identity of an integer variable (loop counter or `let`) within its kernel; each is bound in one place only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LocalVar(pub u32);

/// Where an array lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Space {
    /// A kernel parameter.
    Global,
    /// One per block.
    Shared,
    /// One per thread; every index into it is a constant once the loops marked [`Unroll::Full`] are expanded.
    Register,
    /// As registers, in whole 32-bit words that hold elements packed: operands of matrix instructions.
    Fragment,
    /// All of the block's tensor memory, as 128 lanes of 512 columns: see [`TensorMemoryOp`].
    Tensor,
    /// A warp's matrices in registers whose layout is not known: see [`WmmaOp`]. Operands' elements are packed.
    Opaque,
}

impl Space {
    /// Whether each thread has its own.
    pub fn is_private(self) -> bool {
        matches!(self, Space::Register | Space::Fragment | Space::Opaque)
    }
}

/// An array of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Array {
    /// A safe C identifier, unique in the kernel.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: u64,
    /// Where it lives.
    pub space: Space,
    /// Alignment of its first element, bytes.
    pub align: u32,
    /// Shared arrays: byte offset in the block's shared memory (arrays whose lives do not overlap may share bytes).
    pub shared_offset: u32,
    /// Parameters: whether the kernel writes it.
    pub written: bool,
}

/// One of x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Dim {
    X,
    Y,
    Z,
}

/// An integer expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Index {
    Const(i64),
    Var(LocalVar),
    BlockIdx(Dim),
    ThreadIdx(Dim),
    Add(Box<Index>, Box<Index>),
    Sub(Box<Index>, Box<Index>),
    Mul(Box<Index>, Box<Index>),
    Div(Box<Index>, Box<Index>),
    Mod(Box<Index>, Box<Index>),
    Min(Box<Index>, Box<Index>),
    Max(Box<Index>, Box<Index>),
    Xor(Box<Index>, Box<Index>),
    And(Box<Index>, Box<Index>),
    Shl(Box<Index>, Box<Index>),
    Shr(Box<Index>, Box<Index>),
}

/// A condition on integers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Cond {
    True,
    Lt(Index, Index),
    Le(Index, Index),
    Eq(Index, Index),
    Ne(Index, Index),
    And(Vec<Cond>),
    Or(Vec<Cond>),
    Not(Box<Cond>),
}

/// Scalar arithmetic on elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    /// Integers, rounded down.
    FloorDiv,
    /// Integers, with the sign of the divisor.
    FloorMod,
    /// Integers, rounded towards zero.
    TruncDiv,
    /// Integers, with the sign of the dividend.
    TruncMod,
    BitAnd,
    BitOr,
    BitXor,
    Shl,
    Shr,
    /// `pow(a, b)`, floats.
    Pow,
    /// Floats.
    Atan2,
    /// Floats.
    Fmod,
    /// Floats.
    Copysign,
    /// Floats.
    Hypot,
    /// Of two booleans.
    And,
    /// Of two booleans.
    Or,
}

/// The function of two floats that an operation is, or the operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meaning {
    /// See [`satune_ir::semantics::integers`] and [`satune_ir::semantics::floats`].
    Operator(BinOp),
    /// See [`Function`].
    Function(Function),
}

impl Arith {
    /// The operation of an operator of programs; none of comparisons, which are values of their own.
    pub fn of(op: BinOp) -> Option<Arith> {
        Some(match op {
            BinOp::Add => Arith::Add,
            BinOp::Sub => Arith::Sub,
            BinOp::Mul => Arith::Mul,
            BinOp::Div => Arith::Div,
            BinOp::FloorDiv => Arith::FloorDiv,
            BinOp::FloorMod => Arith::FloorMod,
            BinOp::TruncDiv => Arith::TruncDiv,
            BinOp::TruncMod => Arith::TruncMod,
            BinOp::Min => Arith::Min,
            BinOp::Max => Arith::Max,
            BinOp::BitAnd => Arith::BitAnd,
            BinOp::BitOr => Arith::BitOr,
            BinOp::BitXor => Arith::BitXor,
            BinOp::Shl => Arith::Shl,
            BinOp::Shr => Arith::Shr,
            BinOp::And => Arith::And,
            BinOp::Or => Arith::Or,
            BinOp::Eq | BinOp::Ne | BinOp::Lt | BinOp::Le | BinOp::Gt | BinOp::Ge => return None,
        })
    }

    /// The operation of a function of two floats, by its name in programs.
    pub fn named(name: &str) -> Option<Arith> {
        Some(match name {
            "pow" | "power" => Arith::Pow,
            "atan2" => Arith::Atan2,
            "fmod" => Arith::Fmod,
            "copysign" => Arith::Copysign,
            "hypot" => Arith::Hypot,
            _ => return None,
        })
    }

    /// What it computes.
    pub fn meaning(self) -> Meaning {
        Meaning::Operator(match self {
            Arith::Add => BinOp::Add,
            Arith::Sub => BinOp::Sub,
            Arith::Mul => BinOp::Mul,
            Arith::Div => BinOp::Div,
            Arith::FloorDiv => BinOp::FloorDiv,
            Arith::FloorMod => BinOp::FloorMod,
            Arith::TruncDiv => BinOp::TruncDiv,
            Arith::TruncMod => BinOp::TruncMod,
            Arith::Min => BinOp::Min,
            Arith::Max => BinOp::Max,
            Arith::BitAnd => BinOp::BitAnd,
            Arith::BitOr => BinOp::BitOr,
            Arith::BitXor => BinOp::BitXor,
            Arith::Shl => BinOp::Shl,
            Arith::Shr => BinOp::Shr,
            Arith::And => BinOp::And,
            Arith::Or => BinOp::Or,
            Arith::Pow => return Meaning::Function(Function::Pow),
            Arith::Atan2 => return Meaning::Function(Function::Atan2),
            Arith::Fmod => return Meaning::Function(Function::Fmod),
            Arith::Copysign => return Meaning::Function(Function::Copysign),
            Arith::Hypot => return Meaning::Function(Function::Hypot),
        })
    }
}

/// A comparison of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Comparison {
    Lt,
    Le,
    Eq,
    Ne,
}

/// What is counted in an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BitFunction {
    /// Ones.
    Ones,
    /// Zeros above the highest one.
    LeadingZeros,
}

/// A scalar value, computed in the type given where it matters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// Constant of a floating type.
    Float(f64, DType),
    /// Constant of an integer type.
    Int(i64, DType),
    /// An element.
    Load(ArrayId, Index),
    /// `a op b` in the type.
    Binary(Arith, DType, Box<Value>, Box<Value>),
    /// `a * b + c` in the type, fused (one rounding) for floats.
    Fma(DType, Box<Value>, Box<Value>, Box<Value>),
    /// A function of one argument; what it computes is [`satune_ir::interp::intrinsic`], rounded once. On floats.
    Unary(String, DType, Box<Value>),
    /// A function of one integer of any type: an `i32`.
    Bits(BitFunction, Box<Value>),
    /// Conversion to the type.
    Cast(DType, Box<Value>),
    /// The bits of a value as a value of the type, which has the same width.
    Reinterpret(DType, Box<Value>),
    /// `cond ? a : b`; only the taken side is evaluated.
    Select(Cond, Box<Value>, Box<Value>),
    /// `a op b` of two values of the type: a boolean.
    Compare(Comparison, DType, Box<Value>, Box<Value>),
    /// `cond ? a : b` by a boolean value; only the taken side is evaluated.
    Choose(Box<Value>, Box<Value>, Box<Value>),
    /// An integer expression as a value of the type.
    FromIndex(DType, Index),
    /// `__shfl_xor_sync`: the value that another lane of the warp has, the one whose number differs in the bits of the
    /// mask. All of the `lanes` aligned neighbours that a lane belongs to must reach it.
    Shuffle {
        /// What each lane gives.
        value: Box<Value>,
        /// Bits in which the two lanes differ; less than `lanes`.
        lane_mask: u32,
        /// A power of two up to 32, the whole warp.
        lanes: u32,
    },
}

impl Value {
    /// Zero of a type.
    #[must_use]
    pub fn zero(dtype: DType) -> Value {
        if dtype.is_float() {
            Value::Float(0.0, dtype)
        } else {
            Value::Int(0, dtype)
        }
    }

    /// `a op b` of two values of a type: a boolean where it compares.
    #[must_use]
    pub fn of_operator(op: BinOp, dtype: DType, a: Value, b: Value) -> Value {
        let (a, b) = if matches!(op, BinOp::Gt | BinOp::Ge) { (b, a) } else { (a, b) };
        let (a, b) = (Box::new(a), Box::new(b));
        match (Arith::of(op), op) {
            (Some(op), _) => Value::Binary(op, dtype, a, b),
            (None, BinOp::Lt | BinOp::Gt) => Value::Compare(Comparison::Lt, dtype, a, b),
            (None, BinOp::Le | BinOp::Ge) => Value::Compare(Comparison::Le, dtype, a, b),
            (None, BinOp::Eq) => Value::Compare(Comparison::Eq, dtype, a, b),
            (None, _) => Value::Compare(Comparison::Ne, dtype, a, b),
        }
    }

    /// A value of a type as one of another.
    #[must_use]
    pub fn converted(self, from: DType, to: DType) -> Value {
        if from == to {
            self
        } else {
            Value::Cast(to, Box::new(self))
        }
    }

    /// Calls `each` with the loads of a value, in their order; several of one element, if it stands there so often.
    pub fn loads<'v>(&'v self, each: &mut dyn FnMut(ArrayId, &'v Index)) {
        match self {
            Value::Load(array, index) => each(*array, index),
            Value::Binary(_, _, a, b) | Value::Compare(_, _, a, b) | Value::Select(_, a, b) => {
                [a, b].into_iter().for_each(|v| v.loads(each));
            }
            Value::Fma(_, a, b, c) | Value::Choose(a, b, c) => [a, b, c].into_iter().for_each(|v| v.loads(each)),
            Value::Unary(_, _, a) | Value::Bits(_, a) | Value::Cast(_, a) | Value::Reinterpret(_, a) => a.loads(each),
            Value::Shuffle { value, .. } => value.loads(each),
            Value::Float(..) | Value::Int(..) | Value::FromIndex(..) => {}
        }
    }
}

/// How a loop is expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unroll {
    /// `#pragma unroll 1`.
    No,
    /// Expanded completely: indices of register arrays become constants.
    Full,
    /// `#pragma unroll n`.
    By(u32),
    /// Left to the compiler.
    Auto,
}

/// A statement. All threads of a block run the same statements; a barrier must be reached by all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stmt {
    /// `for var in start..start+extent`.
    For {
        /// Counter.
        var: LocalVar,
        /// Its name for people.
        name: String,
        /// First value.
        start: Index,
        /// Number of iterations.
        extent: Index,
        /// Expansion.
        unroll: Unroll,
        /// What is repeated.
        body: Vec<Stmt>,
    },
    /// `if`.
    If {
        /// Condition.
        cond: Cond,
        /// Where it holds.
        then: Vec<Stmt>,
        /// Elsewhere; may be empty.
        otherwise: Vec<Stmt>,
    },
    /// `const int name = value;`, visible in the rest of the enclosing list.
    Let {
        /// Bound variable.
        var: LocalVar,
        /// Its name for people.
        name: String,
        /// Value.
        value: Index,
    },
    /// `const int name = value;`, an integer that data decide, visible in the rest of the enclosing list.
    Fetch {
        /// Bound variable.
        var: LocalVar,
        /// Its name for people.
        name: String,
        /// Value, of an integer type.
        value: Value,
    },
    /// `array[index] = value`.
    Store {
        /// Target.
        array: ArrayId,
        /// Element.
        index: Index,
        /// Value, converted to the array's type already.
        value: Value,
    },
    /// Moves `width` neighbouring elements of one type in one access per side (16 bytes at most); one side or both are a register
    /// array (then it costs nothing), or both are memory (then it goes through registers).
    Copy {
        /// Target array.
        dst: ArrayId,
        /// First element there; a multiple of `width`.
        dst_index: Index,
        /// Source array.
        src: ArrayId,
        /// First element there; a multiple of `width`.
        src_index: Index,
        /// Elements.
        width: u32,
        /// Where it does not hold, zeros are written to `dst` and `src` is not touched.
        zero_unless: Cond,
    },
    /// `__syncthreads()`.
    Barrier,
    /// `cp.async`: like [`Stmt::Copy`] from global to shared, but complete only after a wait (4, 8 or 16 bytes).
    AsyncCopy {
        /// Target, shared.
        dst: ArrayId,
        /// First element there.
        dst_index: Index,
        /// Source, global.
        src: ArrayId,
        /// First element there.
        src_index: Index,
        /// Elements.
        width: u32,
        /// Bytes around them that L2 is asked to fetch from memory: 0, 128 or 256. No value depends on it.
        prefetch: u32,
        /// Where it does not hold, zeros are written.
        zero_unless: Cond,
    },
    /// `cp.async.commit_group`.
    AsyncCommit,
    /// `cp.async.wait_group n`: all but the latest n groups of this thread are complete (a barrier must follow before
    /// other threads read).
    AsyncWait(u32),
    /// `atomicAdd(&array[index], value)` on global memory.
    AtomicAdd {
        /// Target.
        array: ArrayId,
        /// Element.
        index: Index,
        /// Summand.
        value: Value,
    },
    /// Something that a whole warp does.
    Warp(WarpOp),
    /// Barriers with phases, the tensor memory accelerator, matrix instructions of four warps.
    Group(GroupOp),
    /// The block's warps part into roles, each with its own code, all at once. The last statement of a kernel.
    Roles(Vec<Role>),
    /// A comment line in the CUDA text.
    Comment(String),
}

/// One CUDA function and its launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Function name, a safe C identifier.
    pub name: String,
    /// Lines for the head of the CUDA text (the schedule, for people).
    pub notes: Vec<String>,
    /// Parameters first (in argument order), then shared and register arrays.
    pub arrays: Vec<Array>,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Neighbouring blocks along x that form a cluster: they run at once and reach each other's shared memory. 1: none.
    #[serde(default = "alone")]
    pub cluster: u32,
    /// Bytes of shared memory per block, all arrays together after reuse. Beyond 48 KiB it is dynamic.
    pub shared_bytes: u32,
    /// Second argument of `__launch_bounds__`, where given.
    pub min_blocks_per_sm: Option<u32>,
    /// Parameters that are passed as tensor maps instead of as pointers.
    pub tensor_maps: Vec<TensorMap>,
    /// The code.
    pub body: Vec<Stmt>,
}

/// No cluster.
fn alone() -> u32 {
    1
}

impl Kernel {
    /// Whether it needs the features of the very chip (`sm_90a`): `wgmma`, `setmaxnreg`, and with them all kernels that take boxes.
    pub fn is_of_chip(&self) -> bool {
        let mut found = !self.tensor_maps.is_empty();
        each_group_op(&self.body, &mut |op| found |= matches!(op, GroupOp::Matrix { .. }));
        found
    }

    /// The array of an identity of this kernel.
    pub fn array(&self, id: ArrayId) -> &Array {
        &self.arrays[id.0 as usize]
    }

    /// The type of a value.
    pub fn type_of(&self, value: &Value) -> DType {
        match value {
            Value::Load(array, _) => self.array(*array).dtype,
            Value::Float(_, d) | Value::Int(_, d) | Value::Binary(_, d, ..) | Value::Fma(d, ..) => *d,
            Value::Unary(_, d, _) | Value::Cast(d, _) | Value::FromIndex(d, _) | Value::Reinterpret(d, _) => *d,
            Value::Bits(..) => DType::I32,
            Value::Select(_, a, _) | Value::Choose(_, a, _) | Value::Shuffle { value: a, .. } => self.type_of(a),
            Value::Compare(..) => DType::Bool,
        }
    }

    /// Kernel parameters in argument order.
    pub fn params(&self) -> impl Iterator<Item = (ArrayId, &Array)> {
        self.arrays.iter().enumerate().filter(|(_, a)| a.space == Space::Global).map(|(i, a)| (ArrayId(i as u32), a))
    }

    /// Threads in a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Whether shared memory must be asked for at launch (more than 48 KiB).
    pub fn dynamic_shared_bytes(&self) -> u32 {
        if self.shared_bytes > 48 * 1024 {
            self.shared_bytes
        } else {
            0
        }
    }
}
