//! The form in which a program is run: variables are slots of two flat frames, buffers are numbered arrays, views are
//! resolved to what they show, and every expression is an integer or a float one.
use super::fault::Access;
use crate::semantics::Function;
use crate::{BinOp, DType};

/// An integer or boolean expression.
#[derive(Clone, Debug)]
pub(super) enum Int {
    Const(i64),
    Slot(usize),
    Affine(Box<Affine>),
    /// An operation or comparison in a type.
    Binary(BinOp, DType, Box<[Int; 2]>),
    CompareFloats(BinOp, Box<[Float; 2]>),
    And(Box<[Int; 2]>),
    Or(Box<[Int; 2]>),
    Not(Box<Int>),
    /// A function of one integer of the type.
    Unary(fn(i64, DType) -> i64, DType, Box<Int>),
    /// Bits of a float of the first type as an integer of the second.
    BitsOf(DType, DType, Box<Float>),
    /// Condition, value where it holds, value elsewhere.
    Select(Box<[Int; 3]>),
    Load(Box<Element>),
    Wrap(DType, Box<Int>),
    FromFloat(DType, Box<Float>),
}

/// `constant + sum of factor * slot`, in a type: sums and products wrap last as well as at each step.
#[derive(Clone, Debug)]
pub(super) struct Affine {
    pub dtype: DType,
    pub constant: i64,
    pub terms: Vec<(usize, i64)>,
}

/// A float expression. Every node's value is one of its type.
#[derive(Clone, Debug)]
pub(super) enum Float {
    Const(f64),
    Slot(usize),
    Binary(BinOp, DType, Box<[Float; 2]>),
    Call(Function, DType, Box<[Float; 3]>),
    Select(Box<(Int, Float, Float)>),
    Load(Box<Element>),
    Round(DType, Box<Float>),
    /// Integer of the first type to a float of the second.
    FromInt(DType, DType, Box<Int>),
    /// Bits of an integer of the first type as a float of the second.
    FromBits(DType, DType, Box<Int>),
    /// Bits of a float of the first type as a float of the second.
    Recast(DType, DType, Box<Float>),
}

/// An element of an array.
#[derive(Clone, Debug)]
pub(super) struct Element {
    pub array: usize,
    pub dims: Box<[Dim]>,
    /// The views that the access goes through, each with the index into it.
    pub views: Box<[ViewAccess]>,
    /// Declarations that have to allow it.
    pub guards: Box<[Guard]>,
}

/// One dimension of an access.
#[derive(Clone, Debug)]
pub(super) struct Dim {
    pub index: Int,
    pub extent: i64,
    pub stride: i64,
}

/// An index into a view, which has to be within the view.
#[derive(Clone, Debug)]
pub(super) struct ViewAccess {
    pub name: String,
    pub index: Box<[Int]>,
    pub shape: Box<[i64]>,
}

/// The regions of an array that a block declares to read or to write; an access has to lie in one of them.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    pub block: usize,
    pub access: Access,
    pub regions: Box<[Bounds]>,
}

/// A box of an array: slots of the first index and of the one after the last, per dimension.
pub(super) type Bounds = Box<[(usize, usize)]>;

/// A statement.
#[derive(Debug)]
pub(super) enum Step {
    Loop(Box<Loop>),
    Block(Box<Block>),
    Seq(Box<[Step]>),
    StoreInt(DType, Box<(Element, Int)>),
    StoreFloat(Box<(Element, Float)>),
    If(Box<(Int, Step, Option<Step>)>),
    LetInt(usize, Box<(Int, Step)>),
    LetFloat(usize, Box<(Float, Step)>),
    EvaluateInt(Int),
    EvaluateFloat(Float),
}

#[derive(Debug)]
pub(super) struct Loop {
    pub slot: usize,
    pub min: Int,
    pub extent: Int,
    pub body: Step,
    /// The body as operations, where many iterations may run at a time.
    pub tape: Option<Tape>,
}

/// A block's only statement, a store, as operations in order: what many iterations of the loop around it run at a time.
#[derive(Debug)]
pub(super) struct Tape {
    pub ops: Vec<Op>,
    pub loads: Vec<Element>,
    pub store: Element,
    /// The store's element is read by the last operation alone: operator, type, and whether it stands first.
    pub carried: Option<(BinOp, DType, bool)>,
    /// The type of an integer that is stored.
    pub whole: Option<DType>,
}

/// An operation; operands are earlier ones.
#[derive(Debug)]
pub(super) enum Op {
    Load(usize),
    Const(u64),
    /// A float that is bound outside.
    Slot(usize),
    Floats(BinOp, DType, usize, usize),
    Ints(BinOp, DType, usize, usize),
    Call(Function, DType, [usize; 3]),
    Round(DType, usize),
    Wrap(DType, usize),
    FromInt(DType, DType, usize),
    FromFloat(DType, usize),
}

#[derive(Debug)]
pub(super) struct Block {
    /// Index into [`Code::blocks`].
    pub info: usize,
    pub predicate: Int,
    pub iterators: Box<[Iterator]>,
    pub views: Box<[View]>,
    /// Regions whose bounds are kept in slots while the block runs.
    pub regions: Box<[Region]>,
    pub init: Option<Step>,
    /// Arrays that are unwritten whenever the block is entered.
    pub arrays: Box<[usize]>,
    pub body: Step,
}

#[derive(Debug)]
pub(super) struct Iterator {
    pub slot: usize,
    pub value: Int,
    pub min: Int,
    pub extent: Int,
    pub reduce: bool,
}

/// A dimension of a declared region: where its bounds are kept, and what they are.
#[derive(Debug)]
pub(super) struct Region {
    pub slots: (usize, usize),
    pub min: Int,
    pub extent: Int,
}

/// A `match_buffer`.
#[derive(Debug)]
pub(super) struct View {
    pub name: String,
    pub source: String,
    pub dims: Box<[ViewDim]>,
}

/// A dimension of what a view shows.
#[derive(Debug)]
pub(super) struct ViewDim {
    /// Where the first index is kept.
    pub slot: usize,
    pub min: Int,
    pub extent: Int,
    /// The extent that the view has there.
    pub expected: i64,
    /// Extent of what the view shows.
    pub source_extent: i64,
}

#[derive(Debug)]
pub(super) struct ArrayInfo {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<i64>,
}

#[derive(Debug)]
pub(super) struct BlockInfo {
    pub name: String,
    /// Name and slot of each iterator.
    pub iterators: Vec<(String, usize)>,
}

/// A program, compiled.
#[derive(Debug)]
pub(super) struct Code {
    pub body: Step,
    /// Sizes of the two frames.
    pub ints: usize,
    pub floats: usize,
    /// The parameters, in order, then what blocks allocate.
    pub arrays: Vec<ArrayInfo>,
    pub blocks: Vec<BlockInfo>,
}
