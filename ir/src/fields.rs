//! What an intrinsic says of a buffer other than its elements: its pointer, its offset, its strides. They are calls of
//! reserved names, whose first argument names the buffer as a load without indices.
use crate::{Buffer, BufferId, DType, Expr};

/// `A.data`.
pub const DATA: &str = "buffer_data";
/// `A.elem_offset`.
pub const OFFSET: &str = "buffer_offset";
/// `A.strides[0]`.
pub const STRIDE: &str = "buffer_stride";

/// A field of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The pointer to its memory.
    Data,
    /// Position of its first element there.
    Offset,
    /// Stride of a dimension.
    Stride(i64),
}

/// `A.data`.
pub fn data(buffer: BufferId) -> Expr {
    Expr::Call(DATA.into(), vec![Expr::Load(buffer, Vec::new())], DType::Handle)
}

/// `A.elem_offset`.
pub fn offset(buffer: BufferId) -> Expr {
    Expr::Call(OFFSET.into(), vec![Expr::Load(buffer, Vec::new())], DType::I32)
}

/// `A.strides[axis]`.
pub fn stride(buffer: BufferId, axis: i64) -> Expr {
    Expr::Call(STRIDE.into(), vec![Expr::Load(buffer, Vec::new()), crate::fold::int32(axis)], DType::I32)
}

/// The field that an expression is, and the buffer's.
pub fn of(e: &Expr) -> Option<(BufferId, Field)> {
    let Expr::Call(name, args, _) = e else { return None };
    match (name.as_ref(), args.as_slice()) {
        (DATA, [Expr::Load(b, i)]) if i.is_empty() => Some((*b, Field::Data)),
        (OFFSET, [Expr::Load(b, i)]) if i.is_empty() => Some((*b, Field::Offset)),
        (STRIDE, [Expr::Load(b, i), Expr::Int(axis, _)]) if i.is_empty() => Some((*b, Field::Stride(*axis))),
        _ => None,
    }
}

/// Whether an expression is, or may be, such a field: no element is read in it.
pub fn is_field(e: &Expr) -> bool {
    of(e).is_some()
}

/// `A.access_ptr("r")`: the call that it stands for; `None` where the buffer's shape is not constant. Bits of `mask`: 1
/// read, 2 written.
pub fn access_ptr(id: BufferId, buffer: &Buffer, mask: i64) -> Option<Expr> {
    let product = |dims: &[Expr]| {
        dims.iter().try_fold(1i64, |n, e| match e {
            Expr::Int(v, _) => n.checked_mul(*v),
            _ => None,
        })
    };
    let extent = if buffer.strides.is_empty() {
        crate::fold::int32(product(&buffer.shape)?)
    } else {
        let first = buffer.shape.first().cloned()?;
        crate::fold::binary(crate::BinOp::Mul, stride(id, 0), first)?
    };
    let element = Expr::Call("type_annotation".into(), vec![Expr::Str(buffer.dtype.name().into())], DType::Handle);
    let args = vec![element, data(id), offset(id), extent, crate::fold::int32(mask)];
    Some(Expr::Call("tvm_access_ptr".into(), args, DType::Handle))
}
