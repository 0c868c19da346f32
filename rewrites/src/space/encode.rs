//! From a block, and the maps after it, to the contraction that they are.
use super::instructions::{step, Step};
use super::nests::{block_of, parts, NestError};
use super::writer::{var, Draft, TraceWriter};
use crate::replay::Replay;
use satune_ir::affine::constant;
use satune_ir::term::{Axis, AxisInfo, Combine, Contraction, OperandInfo};
use satune_ir::{fold, tvmscript, visit, BinOp, Block, BufferId, DType, Expr, IterKind, Program, Stmt, VarId};
use serde_json::{json, Value};

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
    #[error("block `{block}` is not a sum of products: {reason}; the explorer takes C[..] = C[..] + A[..] * B[..] with init 0, or any +, min or max of an expression of A[..] and B[..], each index a bare iterator")]
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
type Accessed<'a> = (BufferId, &'a [Expr]);

impl Reader<'_> {
    pub fn read(&self) -> Result<Contraction, String> {
        let bare = |(buffer, indices): Accessed<'_>| bare(indices).map(|at| (buffer, at));
        let Combined { places: [c, a, b], step } = Combined::of(self.program, self.block)?;
        self.combination([bare(c)?, bare(a)?, bare(b)?], step)
    }

    /// The product whose matrices C, A and B are accessed by these iterators.
    pub fn product(&self, places: [Access; 3]) -> Result<Contraction, String> {
        self.combination(places, None)
    }

    /// What is combined of matrices that are accessed by these iterators; a product where there is no `step`.
    fn combination(&self, [c, a, b]: [Access; 3], step: Option<Step>) -> Result<Contraction, String> {
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
                _ => return Err(format!("iterator `{}` is neither spatial nor a reduction's", iter.var.name)),
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
        let places = [a.0, b.0].map(|buffer| match step {
            None => Some(usize::from(buffer == b.0)),
            Some(_) => self.block.reads.iter().position(|region| region.buffer == buffer),
        });
        let [at_a, at_b] = places.map(|place| place.ok_or("an operand is not among the regions that it reads"));
        let (a, b) = (operand(&a, at_a?)?, operand(&b, at_b?)?);
        let (a, b) = if a_has_m { (a, b) } else { (b, a) };
        let accumulate = self.program.buffer(c.0).dtype;
        let combine = step.map(|mut step| {
            if !a_has_m {
                step.sided.reverse();
            }
            let Step { both, sided, operations } = step;
            let splits = splits(self.program, self.block);
            Box::new(Combine { script: tvmscript::print(self.program), step: both, sided, operations, splits })
        });
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
            combine,
        })
    }
}

/// The update of a block: where its result is, what it begins with, and `C op f`.
pub(super) struct Update<'a> {
    pub c: Accessed<'a>,
    pub init: &'a Expr,
    whole: &'a Expr,
    pub op: BinOp,
    pub f: &'a Expr,
}

impl<'a> Update<'a> {
    pub fn of(block: &'a Block) -> Result<Update<'a>, String> {
        let Some(init) = &block.init else { return Err("it has no init".into()) };
        let Stmt::Store { value: init, buffer: first, indices: first_at } = &**init else {
            return Err("its init is not one store".into());
        };
        let Stmt::Store { buffer, indices, value } = &*block.body else {
            return Err("its body is not one store".into());
        };
        if (first, first_at) != (buffer, indices) {
            return Err("its init sets something else than its body adds to".into());
        }
        let Expr::Binary(op @ (BinOp::Add | BinOp::Min | BinOp::Max), left, right) = value else {
            return Err("its body is no sum, min or max".into());
        };
        let is_c = |e: &Expr| matches!(e, Expr::Load(b, i) if b == buffer && i == indices);
        match (is_c(left), is_c(right)) {
            (true, _) => Ok(Update { c: (*buffer, indices), init, whole: value, op: *op, f: right }),
            (_, true) => Err("what its sum has so far must stand before what is added (`in_reducer_forms`)".into()),
            _ => Err("its body does not add to the result".into()),
        }
    }
}

/// What a block combines: places of C and of the two operands, in the order in which they are written.
pub(super) struct Combined<'a> {
    places: [Accessed<'a>; 3],
    /// Where it is no sum of products from 0 on.
    step: Option<Step>,
}

impl<'a> Combined<'a> {
    pub fn of(program: &Program, block: &'a Block) -> Result<Combined<'a>, String> {
        if let Ok(places) = sum_of_products(block) {
            return Ok(Combined { places, step: None });
        }
        let update = Update::of(block)?;
        if !fold::is_constant(update.init) {
            return Err("its init is no constant".into());
        }
        computed(update.f, program)?;
        let mut operands: Vec<Accessed<'a>> = Vec::new();
        visit_loads(update.f, &mut |place| {
            if !operands.contains(&place) {
                operands.push(place);
            }
        });
        if operands.iter().any(|place| place.0 == update.c.0) {
            return Err("what it adds depends on the result".into());
        }
        let [a, b] = operands[..] else {
            return Err(format!(
                "what it adds is not a product, and combines not one element of each of two buffers but {} in all",
                operands.len()
            ));
        };
        let step = step(update.whole, update.f, [a.0, b.0], &program.buffers);
        Ok(Combined { places: [update.c, a, b], step: Some(step) })
    }
}

fn visit_loads<'a>(e: &'a Expr, f: &mut dyn FnMut(Accessed<'a>)) {
    match e {
        Expr::Load(buffer, indices) => f((*buffer, indices)),
        other => visit::children(other).into_iter().for_each(|e| visit_loads(e, f)),
    }
}

/// Whether an expression can be computed from zeros, too: beyond the shape of a ragged problem tiles hold them. What it is there
/// nobody reads, but no instruction may fault.
fn computed(f: &Expr, program: &Program) -> Result<(), String> {
    use BinOp::{Div, FloorDiv, FloorMod, TruncDiv, TruncMod};
    match f {
        Expr::Load(..) => return Ok(()),
        Expr::Var(v) => return Err(format!("what it adds depends on iterator `{}`", v.name)),
        Expr::Str(_) => return Err("what it adds is no number".into()),
        Expr::Binary(Div | FloorDiv | FloorMod | TruncDiv | TruncMod, _, by) => {
            let constant = matches!(&**by, Expr::Int(value, _) if *value != 0);
            if !constant && !fold::dtype(f, &program.buffers).is_float() {
                return Err("it divides integers by what may be 0".into());
            }
        }
        _ => {}
    }
    visit::children(f).into_iter().try_for_each(|e| computed(e, program))
}

/// Whether `rfactor` takes parts of a block's sums: tried with the primitive itself, on the last of its reductions that has two.
fn splits(program: &Program, block: &Block) -> bool {
    let halves = |iter: &satune_ir::IterVar| {
        iter.kind == IterKind::Reduce && constant(&iter.extent).is_some_and(|extent| extent % 2 == 0)
    };
    let Some(at) = block.iter_vars.iter().rposition(halves) else { return false };
    let mut trial = Trial(Draft::default());
    trial.named("get_sblock", [json!(block.name)], "block");
    trial.named("get_loops", [var("block")], "loops");
    let parts = ["part", "rest"].map(String::from);
    let reduced = json!(format!("$loops[{at}]"));
    trial.split_into(reduced, vec![json!(2), Value::Null], &parts);
    trial.named("rfactor", [var("part"), json!(0)], "partial");
    let Ok(mut state) = Replay::strict(program) else { return false };
    trial.0.calls().iter().all(|call| state.call(call).is_ok())
}

struct Trial(Draft);

impl TraceWriter for Trial {
    fn draft(&mut self) -> &mut Draft {
        &mut self.0
    }
}

/// Accesses of C, A and B of `C[..] = C[..] + A[..] * B[..]`.
pub(super) fn sum_of_products(block: &Block) -> Result<[Accessed<'_>; 3], String> {
    let Update { c, init, op, f, .. } = Update::of(block)?;
    if !fold::is_zero(init) {
        return Err("its init is not 0".into());
    }
    let (BinOp::Add, Expr::Binary(BinOp::Mul, a, b)) = (op, f) else {
        return Err("what it adds is not a product".into());
    };
    Ok([c, factor(a)?, factor(b)?])
}

/// An element, as it is or converted to the type of the sum. A conversion to another type in between would round.
fn factor(expr: &Expr) -> Result<Accessed<'_>, String> {
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
