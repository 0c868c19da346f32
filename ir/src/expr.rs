//! Scalar expressions over loop variables, block iterators and buffer elements.
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Element type of a buffer or of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum DType {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    /// Eight bits, four of them exponent.
    F8E4M3,
    /// Eight bits, five of them exponent.
    F8E5M2,
    F16,
    BF16,
    TF32,
    F32,
    F64,
    /// An opaque pointer (`T.handle`).
    Handle,
}

/// Every type with its name in TVMScript.
const NAMES: [(DType, &str); 17] = [
    (DType::Bool, "bool"),
    (DType::I8, "int8"),
    (DType::I16, "int16"),
    (DType::I32, "int32"),
    (DType::I64, "int64"),
    (DType::U8, "uint8"),
    (DType::U16, "uint16"),
    (DType::U32, "uint32"),
    (DType::U64, "uint64"),
    (DType::F8E4M3, "float8_e4m3fn"),
    (DType::F8E5M2, "float8_e5m2"),
    (DType::F16, "float16"),
    (DType::BF16, "bfloat16"),
    (DType::TF32, "tfloat32"),
    (DType::F32, "float32"),
    (DType::F64, "float64"),
    (DType::Handle, "handle"),
];

impl DType {
    /// Its name in TVMScript: `float32`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(t, _)| *t == self).map_or("handle", |(_, name)| name)
    }

    /// The type of a name in TVMScript.
    pub fn of_name(name: &str) -> Option<DType> {
        NAMES.iter().find(|(_, n)| *n == name).map(|(t, _)| *t)
    }

    /// Smallest and largest value of an integer type (of 64 unsigned bits: as far as `i64` goes); `None` of others.
    pub fn int_range(self) -> Option<(i64, i64)> {
        Some(match self {
            DType::Bool => (0, 1),
            DType::I8 => (i8::MIN.into(), i8::MAX.into()),
            DType::I16 => (i16::MIN.into(), i16::MAX.into()),
            DType::I32 => (i32::MIN.into(), i32::MAX.into()),
            DType::I64 => (i64::MIN, i64::MAX),
            DType::U8 => (0, u8::MAX.into()),
            DType::U16 => (0, u16::MAX.into()),
            DType::U32 => (0, u32::MAX.into()),
            DType::U64 => (0, i64::MAX),
            _ => return None,
        })
    }
}

/// A scalar variable. Two variables are the same when their `id` is the same; the name is for people.
#[derive(Clone, Debug)]
pub struct Var {
    /// Unique within a [`crate::Program`] (fresh ones come from [`crate::Program::fresh_var`]).
    pub id: VarId,
    /// Name as written; not unique.
    pub name: Arc<str>,
    /// Integer type, `I32` unless the program says otherwise.
    pub dtype: DType,
}

/// Identity of a [`Var`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VarId(pub u32);

/// Identity of a [`crate::Buffer`], as expressions name it: its index in [`crate::Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BufferId(pub u32);

impl PartialEq for Var {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}
impl Eq for Var {}
impl std::hash::Hash for Var {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Binary operators. `FloorDiv` and `FloorMod` round towards minus infinity, `TruncDiv` and `TruncMod` towards zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum BinOp {
    Add,
    Sub,
    Mul,
    /// True division (floats).
    Div,
    FloorDiv,
    FloorMod,
    TruncDiv,
    TruncMod,
    Min,
    Max,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    BitAnd,
    BitOr,
    BitXor,
    Shl,
    Shr,
}

/// A scalar expression. Children are shared, so that cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// Integer or boolean constant.
    Int(i64, DType),
    /// Floating constant, as the bits of the `f64` value (so that `Eq` and `Hash` hold).
    Float(u64, DType),
    /// String constant (arguments of intrinsics, annotations).
    Str(Arc<str>),
    /// A loop variable or block iterator.
    Var(Var),
    /// `a op b`.
    Binary(BinOp, Arc<Expr>, Arc<Expr>),
    /// Logical not.
    Not(Arc<Expr>),
    /// Conversion to a type.
    Cast(DType, Arc<Expr>),
    /// `cond ? a : b`; `lazy` is `T.if_then_else` (only the taken side is evaluated), otherwise `T.Select`.
    Select {
        /// Whether the side not taken is left unevaluated.
        lazy: bool,
        /// Condition, boolean.
        cond: Arc<Expr>,
        /// Value where the condition holds.
        then: Arc<Expr>,
        /// Value elsewhere.
        otherwise: Arc<Expr>,
    },
    /// Element of a buffer.
    Load(BufferId, Vec<Expr>),
    /// A pure intrinsic (`exp`, `sqrt`, `rsqrt`, `tanh`, `erf`, `log`, `sigmoid`, `abs`, `pow`, ...): name, arguments, result type.
    Call(Arc<str>, Vec<Expr>, DType),
}

impl Expr {
    /// `a op b`, as it stands.
    pub fn binary(op: BinOp, a: Expr, b: Expr) -> Expr {
        Expr::Binary(op, Arc::new(a), Arc::new(b))
    }

    /// `T.Select`: both sides are evaluated.
    pub fn select(cond: Expr, then: Expr, otherwise: Expr) -> Expr {
        Expr::Select { lazy: false, cond: Arc::new(cond), then: Arc::new(then), otherwise: Arc::new(otherwise) }
    }

    /// `T.if_then_else`: the side not taken is not evaluated.
    pub fn if_then_else(cond: Expr, then: Expr, otherwise: Expr) -> Expr {
        Expr::Select { lazy: true, cond: Arc::new(cond), then: Arc::new(then), otherwise: Arc::new(otherwise) }
    }
}
