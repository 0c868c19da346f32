//! From a program to the contraction that it computes.
use super::nests::{block_of, parts, NestError};
use satune_ir::affine::constant;
use satune_ir::term::{Axis, AxisInfo, Contraction, OperandInfo};
use satune_ir::{BinOp, Block, BufferId, DType, Expr, IterKind, Program, Stmt, VarId};

/// Why a program is not a contraction that the space can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Several blocks, and not a contraction with elementwise blocks after it.
    #[error("the program has {found} blocks: {reason}; the explorer takes a sum of products (C[..] = C[..] + A[..] * B[..] with init 0), and a chain of elementwise blocks after it")]
    Blocks {
        /// How many.
        found: usize,
        /// What does not fit.
        reason: String,
    },
    /// Something else than nests of one block each.
    #[error("the program is no sequence of loop nests with one block each: {reason}; the explorer takes a sum of products, and a chain of elementwise blocks after it")]
    Nests {
        /// What does not fit.
        reason: String,
    },
    /// The block is no sum of products.
    #[error("block `{block}` is not a sum of products: {reason}; the explorer takes C[..] = C[..] + A[..] * B[..] with init 0, each index a bare iterator")]
    NotContraction {
        /// Its name.
        block: String,
        /// What does not fit.
        reason: String,
    },
    /// A sum of products, but neither a plain one nor a convolution.
    #[error("{product}\n  as a convolution: {reason}")]
    Convolution {
        /// Why it is no plain product.
        product: Box<EncodeError>,
        /// What does not fit.
        reason: String,
    },
}

impl From<NestError> for EncodeError {
    fn from(error: NestError) -> EncodeError {
        match error {
            NestError::Block { block, reason } => EncodeError::NotContraction { block, reason },
            NestError::Program { reason } => EncodeError::Nests { reason },
        }
    }
}

/// Reads the contraction off a program: of one block, of one and a chain of elementwise blocks after it, or of a convolution
/// with its padding and such a chain.
///
/// # Errors
/// When the program is something else; the message says what does not fit.
pub fn contraction(program: &Program) -> Result<Contraction, EncodeError> {
    let error = match product(program) {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    // Of a program without a sum of products there is nothing more to say than why the block that reduces is none.
    if !super::gather::sums_products(program) {
        return Err(reducing(program).unwrap_or(error));
    }
    super::gather::read(program).map_err(|reason| EncodeError::Convolution { product: Box::new(error), reason })
}

/// Why the only block of several that reduces is no sum of products.
fn reducing(program: &Program) -> Option<EncodeError> {
    let blocks = parts(program).into_iter().map(|p| block_of(program, p)).collect::<Result<Vec<_>, _>>().ok()?;
    let mut reduce = blocks.into_iter().filter(|b| b.init.is_some());
    let (block, None) = (reduce.next()?, reduce.next()) else { return None };
    let reason = sum_of_products(block).err()?;
    Some(EncodeError::NotContraction { block: block.name.clone(), reason })
}

/// A product whose indices are bare iterators, and maps after it.
pub(super) fn product(program: &Program) -> Result<Contraction, EncodeError> {
    let blocks = parts(program).into_iter().map(|part| block_of(program, part)).collect::<Result<Vec<_>, _>>()?;
    let Some((block, rest)) = blocks.split_first() else {
        return Err(EncodeError::Blocks { found: 0, reason: "there is nothing to schedule".into() });
    };
    let read = Reader { program, block }.read();
    let mut found = read.map_err(|reason| EncodeError::NotContraction { block: block.name.clone(), reason })?;
    if !rest.is_empty() {
        let fused = super::epilogue::read(program, &found);
        let (epilogue, c) = fused.map_err(|reason| EncodeError::Blocks { found: blocks.len(), reason })?;
        (found.epilogue, found.c) = (Some(epilogue), c);
    }
    Ok(found)
}

pub(super) struct Reader<'a> {
    pub program: &'a Program,
    /// Under loops that are its iterators.
    pub block: &'a Block,
}

/// A matrix, and the iterators by which it is accessed.
pub(super) type Access = (BufferId, Vec<VarId>);

/// A buffer, and the indices at which it is accessed.
type Place<'a> = (BufferId, &'a [Expr]);

impl Reader<'_> {
    pub fn read(&self) -> Result<Contraction, String> {
        let bare = |(buffer, indices): Place<'_>| bare(indices).map(|at| (buffer, at));
        let [c, a, b] = sum_of_products(self.block)?;
        self.product([bare(c)?, bare(a)?, bare(b)?])
    }

    /// The product whose matrices C, A and B are accessed by these iterators.
    pub fn product(&self, [c, a, b]: [Access; 3]) -> Result<Contraction, String> {
        if a.0 == b.0 {
            return Err("both factors are the same buffer".into());
        }
        let uses = |access: &Access, var: VarId| access.1.contains(&var);
        let mut kinds: Vec<(VarId, bool, i64, [bool; 3])> = Vec::new();
        for iter in &self.block.iter_vars {
            let extent = constant(&iter.extent).filter(|e| *e >= 1).ok_or("an iterator's extent is not a constant")?;
            if constant(&iter.min) != Some(0) {
                return Err(format!("iterator `{}` does not start at 0", iter.var.name));
            }
            let reduce = match iter.kind {
                IterKind::Spatial => false,
                IterKind::Reduce => true,
                IterKind::Opaque => return Err(format!("iterator `{}` is opaque", iter.var.name)),
            };
            let v = iter.var.id;
            kinds.push((v, reduce, extent, [uses(&a, v), uses(&b, v), uses(&c, v)]));
        }
        let largest = |wanted: [bool; 3], reduce: bool| {
            kinds
                .iter()
                .filter(|(_, r, _, u)| *r == reduce && *u == wanted)
                .max_by_key(|(v, _, e, _)| (*e, c.1.iter().position(|x| x == v)))
                .map(|k| k.0)
        };
        let m = largest([true, false, true], false);
        let n = largest([false, true, true], false);
        let k = largest([true, true, false], true).ok_or("no reduction axis is shared by both factors")?;
        let (mut batch, mut outer) = (0, 0);
        let mut iters = Vec::new();
        for (iter, (var, reduce, extent, used)) in self.block.iter_vars.iter().zip(&kinds) {
            let axis = if Some(*var) == m {
                Axis::M
            } else if Some(*var) == n {
                Axis::N
            } else if *var == k {
                Axis::K
            } else if *reduce {
                if !(used[0] && used[1]) {
                    return Err(format!("reduction iterator `{}` is in one factor only", iter.var.name));
                }
                outer += 1;
                Axis::Outer(outer - 1)
            } else {
                if !used[2] {
                    return Err(format!("spatial iterator `{}` does not index the result", iter.var.name));
                }
                batch += 1;
                Axis::Batch(batch - 1)
            };
            let name = iter.var.name.to_string();
            iters.push((axis, AxisInfo { name, extent: *extent, reduce: *reduce }));
        }
        if m.is_none() || n.is_none() {
            return Err("it has no spatial axis of its own for each factor (a matrix-vector product?)".into());
        }
        let axis_of = |var: &VarId| kinds.iter().position(|k| k.0 == *var).map(|i| iters[i].0);
        let operand = |access: &Access, index: usize| -> Result<OperandInfo, String> {
            let buffer = self.program.buffer(access.0);
            let dims = access.1.iter().map(axis_of).collect::<Option<Vec<_>>>().ok_or("an index is not an iterator")?;
            for (dim, axis) in buffer.shape.iter().zip(&dims) {
                let extent = iters.iter().find(|(a, _)| a == axis).map(|(_, i)| i.extent);
                if constant(dim) != extent {
                    return Err(format!("buffer `{}` is larger or smaller than what is accessed", buffer.name));
                }
            }
            if !buffer.strides.is_empty() || buffer.elem_offset.is_some() {
                return Err(format!("buffer `{}` is not a plain row-major array", buffer.name));
            }
            if buffer.dtype == DType::Bool {
                return Err(format!("elements of buffer `{}` are no numbers", buffer.name));
            }
            Ok(OperandInfo { buffer: access.0, name: buffer.name.clone(), dtype: buffer.dtype, index, dims })
        };
        // The factor that has m is A, whichever was written first.
        let a_has_m = m.is_some_and(|m| a.1.contains(&m));
        let (a, b) = if a_has_m { (operand(&a, 0)?, operand(&b, 1)?) } else { (operand(&b, 1)?, operand(&a, 0)?) };
        let accumulate = self.program.buffer(c.0).dtype;
        Ok(Contraction {
            block: self.block.id,
            block_name: self.block.name.clone(),
            a,
            b,
            c: operand(&c, 0)?,
            iters,
            accumulate,
            epilogue: None,
            gather: None,
        })
    }
}

/// Accesses of C, A and B of `C[..] = C[..] + A[..] * B[..]`.
pub(super) fn sum_of_products(block: &Block) -> Result<[Place<'_>; 3], String> {
    let Some(init) = &block.init else { return Err("it has no init".into()) };
    let Stmt::Store { value: zero, buffer: first, indices: first_at } = &**init else {
        return Err("its init is not one store".into());
    };
    let is_zero = match zero {
        Expr::Float(bits, _) => f64::from_bits(*bits) == 0.0,
        Expr::Int(value, _) => *value == 0,
        _ => false,
    };
    if !is_zero {
        return Err("its init is not 0".into());
    }
    let Stmt::Store { buffer, indices, value } = &*block.body else {
        return Err("its body is not one store".into());
    };
    if (first, first_at) != (buffer, indices) {
        return Err("its init sets something else than its body adds to".into());
    }
    let Expr::Binary(BinOp::Add, left, right) = value else { return Err("its body is not a sum".into()) };
    let is_c = |e: &Expr| matches!(e, Expr::Load(b, i) if b == buffer && i == indices);
    let product = match (is_c(left), is_c(right)) {
        (true, _) => right,
        (_, true) => return Err("what its sum has so far must stand before what is added (`sums_first`)".into()),
        _ => return Err("its body does not add to the result".into()),
    };
    let Expr::Binary(BinOp::Mul, a, b) = &**product else {
        return Err("what it adds is not a product".into());
    };
    Ok([(*buffer, indices), factor(a)?, factor(b)?])
}

/// An element, as it is or converted to the type of the sum. A conversion to another type in between would round.
fn factor(expr: &Expr) -> Result<Place<'_>, String> {
    let element = if let Expr::Cast(_, inner) = expr { inner } else { expr };
    match element {
        Expr::Load(buffer, indices) => Ok((*buffer, indices)),
        Expr::Cast(..) => Err("a factor is converted more than once".into()),
        _ => Err("a factor is not an element of a buffer".into()),
    }
}

fn bare(indices: &[Expr]) -> Result<Vec<VarId>, String> {
    indices
        .iter()
        .map(|e| match e {
            Expr::Var(v) => Ok(v.id),
            _ => Err("an index is not a bare iterator".to_string()),
        })
        .collect()
}
