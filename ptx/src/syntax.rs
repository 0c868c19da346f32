//! PTX as it is written: modules, functions, instructions, with every name resolved.
use std::fmt;
use std::sync::Arc;

/// A scalar type of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// One bit, true or false.
    Pred,
    /// Bits without a meaning: their number.
    Bits(u16),
    /// Unsigned integer: its bits.
    Unsigned(u16),
    /// Two's complement integer: its bits.
    Signed(u16),
    /// IEEE half.
    F16,
    /// Two halves in 32 bits.
    F16x2,
    /// bfloat16.
    Bf16,
    /// Two bfloat16 in 32 bits.
    Bf16x2,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// Two singles in 64 bits.
    F32x2,
}

impl Type {
    /// Reads a modifier: `u32`, `bf16x2`. `None` for what is no scalar type of registers.
    pub fn parse(text: &str) -> Option<Type> {
        Some(match text {
            "pred" => Type::Pred,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::Bf16,
            "bf16x2" => Type::Bf16x2,
            "f32" => Type::F32,
            "f64" => Type::F64,
            "f32x2" => Type::F32x2,
            "b8" | "b16" | "b32" | "b64" | "b128" => Type::Bits(text[1..].parse().ok()?),
            "u8" | "u16" | "u32" | "u64" => Type::Unsigned(text[1..].parse().ok()?),
            "s8" | "s16" | "s32" | "s64" => Type::Signed(text[1..].parse().ok()?),
            _ => return None,
        })
    }

    /// Its width, bits (a predicate has one).
    pub fn bits(self) -> u32 {
        match self {
            Type::Pred => 1,
            Type::Bits(n) | Type::Unsigned(n) | Type::Signed(n) => u32::from(n),
            Type::F16 | Type::Bf16 => 16,
            Type::F32 | Type::F16x2 | Type::Bf16x2 => 32,
            Type::F64 | Type::F32x2 => 64,
        }
    }

    /// Its size in memory, bytes.
    pub fn bytes(self) -> usize {
        self.bits().div_ceil(8) as usize
    }

    /// Whether it is a signed integer.
    pub fn signed(self) -> bool {
        matches!(self, Type::Signed(_))
    }

    /// Whether it is one floating-point number.
    pub fn float(self) -> bool {
        matches!(self, Type::F16 | Type::Bf16 | Type::F32 | Type::F64)
    }
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Whatever a 64-bit address points into.
    Generic,
    /// Memory of the grid.
    Global,
    /// Memory of the block (or, with a rank, of a block of the cluster).
    Shared,
    /// Memory of one thread.
    Local,
    /// The kernel's parameters.
    Param,
    /// Constants of the module.
    Const,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Param => "parameter",
            Space::Const => "constant",
        })
    }
}

/// A variable with an address.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Where it lives.
    pub space: Space,
    /// Alignment, bytes.
    pub align: u64,
    /// Size, bytes; 0 for an `extern` array whose size the launch says.
    pub bytes: u64,
    /// Its first bytes; the rest is 0. `None` where the text gives no value.
    pub initial: Option<Vec<u8>>,
    /// Its size is given by the launch (dynamic shared memory).
    pub dynamic: bool,
}

/// A register of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(pub u32);

/// What a register is.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisterInfo {
    /// As written.
    pub name: String,
    /// Its type.
    pub ty: Type,
}

/// A variable that an operand names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// Of the module.
    Module(u32),
    /// Of the function (shared and local variables, parameters of calls).
    Function(u32),
    /// A formal parameter of the function, in order; results of a device function come first.
    Parameter(u32),
}

/// Registers that hardware gives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Special(pub String);

/// Base of an address.
#[derive(Clone, Debug, PartialEq)]
pub enum Base {
    /// A register.
    Register(Register),
    /// A variable.
    Symbol(Symbol),
    /// A number.
    Absolute,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// `%r1`
    Register(Register),
    /// `!%p1`
    Not(Register),
    /// `%p1|%p2`: two results.
    Pair(Box<Operand>, Box<Operand>),
    /// An integer constant, as 64 bits of two's complement.
    Integer(i64),
    /// `0f3F800000`, its bits.
    Single(u32),
    /// `0d...`, its bits.
    Double(u64),
    /// A variable's address plus bytes.
    Symbol(Symbol, i64),
    /// `%tid.x`
    Special(Special),
    /// `[base + offset]`, for tensors with the coordinates (and what follows them).
    Address {
        /// Register, variable or number.
        base: Base,
        /// Bytes.
        offset: i64,
        /// Coordinates and other things inside the brackets.
        more: Vec<Operand>,
    },
    /// `{%r1, %r2}`
    Vector(Vec<Operand>),
    /// `(param0, param1)`
    List(Vec<Operand>),
    /// A label: an index into the function's instructions.
    Label(u32),
    /// A function's name.
    Function(String),
    /// `_`
    Discard,
}

/// Where in the source an instruction comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// File, as numbered by the module.
    pub file: u32,
    /// Line in the source, from 1; 0 where the text does not say.
    pub line: u32,
    /// The line of the call through which it was inlined (the outermost that the text tells), 0 if it was not.
    pub called_at: u32,
    /// Line in the PTX text, from 1.
    pub ptx: u32,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.called_at) {
            (0, _) => write!(f, "line {} of the PTX", self.ptx),
            (line, 0) => write!(f, "line {line}"),
            (line, call) => write!(f, "line {line} (called at line {call})"),
        }
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// `ld`
    pub opcode: String,
    /// `["global", "v4", "f32"]`
    pub modifiers: Vec<String>,
    /// Results first, as written.
    pub operands: Vec<Operand>,
    /// `@%p` or `@!%p` (negated).
    pub guard: Option<(Register, bool)>,
    /// Where it comes from.
    pub line: Line,
    /// As written, without the guard.
    pub text: Arc<str>,
}

impl Instruction {
    /// Whether a modifier is there.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }

    /// The last modifier that is a scalar type.
    pub fn ty(&self) -> Option<Type> {
        self.modifiers.iter().rev().find_map(|m| Type::parse(m))
    }

    /// All modifiers that are scalar types.
    pub fn types(&self) -> Vec<Type> {
        self.modifiers.iter().filter_map(|m| Type::parse(m)).collect()
    }

    /// Length of `.v2`, `.v4`, `.v8`; 1 without.
    pub fn vector(&self) -> usize {
        self.modifiers.iter().find_map(|m| m.strip_prefix('v').and_then(|n| n.parse().ok())).unwrap_or(1)
    }
}

/// A function.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// A kernel.
    pub entry: bool,
    /// Results of a device function, then parameters.
    pub parameters: Vec<Variable>,
    /// How many of them are results.
    pub results: usize,
    /// Registers.
    pub registers: Vec<RegisterInfo>,
    /// Variables that are declared inside.
    pub variables: Vec<Variable>,
    /// Instructions; `None` for a declaration.
    pub body: Option<Vec<Instruction>>,
    /// `.maxntid`: the most threads, if it says.
    pub max_threads: Option<u64>,
    /// `.reqntid`
    pub required_threads: Option<[u32; 3]>,
    /// `.reqnctapercluster`
    pub cluster: Option<[u32; 3]>,
}

/// A text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// `.version`
    pub version: String,
    /// `.target`
    pub target: String,
    /// Variables of the module.
    pub variables: Vec<Variable>,
    /// Functions in order.
    pub functions: Vec<Function>,
    /// Names of `.file`, by number.
    pub files: Vec<(u32, String)>,
}

impl Module {
    /// A function by name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        let with_body = self.functions.iter().find(|f| f.name == name && f.body.is_some());
        with_body.or_else(|| self.functions.iter().find(|f| f.name == name))
    }

    /// Names of the kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().filter(|f| f.entry && f.body.is_some()).map(|f| f.name.as_str())
    }
}
