//! Scalar expressions over loop variables, block iterators and buffer elements.
use crate::BufferId;
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
    F16,
    BF16,
    TF32,
    F32,
    F64,
    /// An opaque pointer (`T.handle`).
    Handle,
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
