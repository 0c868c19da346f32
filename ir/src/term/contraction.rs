//! What a contraction is: the statement whose schedules a space holds.
use super::{Axis, AxisInfo, Dimension, Gather, Instructions, Side};
use crate::{BlockId, BufferId, DType};
use serde::{Deserialize, Serialize};

/// An operand's access: which buffer, and which axis indexes each of its dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperandInfo {
    /// The buffer in the source program.
    pub buffer: BufferId,
    /// Its name.
    pub name: String,
    /// Element type in memory.
    pub dtype: DType,
    /// Its place among the regions that the block reads (for the result: writes).
    pub index: usize,
    /// The axis of each dimension, outermost first; row-major.
    pub dims: Vec<Axis>,
}

/// A contraction: sum of products of two operands, over at least one reduction axis; or ([`Combine`]) what another expression
/// combines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contraction {
    /// The block in the source program.
    pub block: BlockId,
    /// Its name.
    pub block_name: String,
    /// For each block iterator in order (which is the order of the source's loops): its role and facts.
    pub iters: Vec<(Axis, AxisInfo)>,
    /// First factor of the product, has axes m and k.
    pub a: OperandInfo,
    /// Second factor, has axes k and n.
    pub b: OperandInfo,
    /// Result.
    pub c: OperandInfo,
    /// Type of the sum.
    pub accumulate: DType,
    /// Elementwise blocks after the contraction, computed where the sums are written back; `c` is then what the last of
    /// them writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epilogue: Option<Epilogue>,
    /// How its matrices lie in memory, where they are none there (a convolution). `block_name` is then the block of the
    /// source, and operands name the buffers in memory, with the dimensions of their matrices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gather: Option<Box<Gather>>,
    /// What is combined where it is no sum of products from 0 on. The kernels are then those of single threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combine: Option<Box<Combine>>,
}

/// The update `C = C op f(A, B)` of a contraction: op is +, min or max, f any expression of one element of each operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combine {
    /// TVMScript of the whole source program.
    pub script: String,
    /// What a step of a thread executes that depends on both operands, with op.
    pub step: Instructions,
    /// What it executes on an element of A, and of B, alone: once for each element that a thread reads.
    pub sided: [Instructions; 2],
    /// Operations of a step that a person counts: those of f, each different one once, and op. Conversions are none.
    pub operations: u32,
    /// Whether `rfactor` takes parts of it.
    pub splits: bool,
}

/// A chain of elementwise blocks that ends a contraction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epilogue {
    /// TVMScript of the whole source program.
    pub script: String,
    /// Names of the blocks in order; each reads what the one before it writes, the first the sums. All have the iterators
    /// of the result's dimensions.
    pub blocks: Vec<String>,
    /// Names of the buffers in between, the sums' first. None of them is left when the chain is fused.
    pub between: Vec<String>,
    /// What else the blocks read, each once.
    pub reads: Vec<Beside>,
    /// What other kernels of its program make of this.
    #[serde(default, skip_serializing_if = "ReadsMade::is_none")]
    pub made: ReadsMade,
}

/// Of what is read after a contraction, what other kernels make: `reverse_compute_inline` takes a block with one producer, and
/// `reverse_compute_at` one whose producers are all below the loop, so blocks do not say that they read it
/// (`unsafe_hide_buffer_access`). It is whole before the contraction begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadsMade {
    /// Numbers of these reads of the last block, when the others are inlined in it.
    pub of_last: Vec<usize>,
    /// The same of the write-back of the sums, when all of it is.
    pub of_stored: Vec<usize>,
}

impl ReadsMade {
    /// Whether other kernels make nothing of it.
    pub fn is_none(&self) -> bool {
        self.of_last.is_empty()
    }
}

/// What a block after a contraction reads beside the sums: an element for each result, or one for several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// The buffer in the source program.
    pub buffer: BufferId,
    /// Its name.
    pub name: String,
    /// Element type in memory.
    pub dtype: DType,
    /// For each of its dimensions, outermost first: the number of the result's dimension ([`Contraction::result_dims`]) with whose
    /// index it is accessed; none where it has one element.
    pub dims: Vec<Option<usize>>,
}

impl Contraction {
    /// Whether a block after it reads a buffer, too: then copies of its elements are for the contraction alone.
    pub fn reads_beside(&self, buffer: BufferId) -> bool {
        self.epilogue.iter().flat_map(|e| &e.reads).any(|r| r.buffer == buffer)
    }

    /// Axes of more than one value, besides m, n and k, along which elements are read again: spatial ones that one operand has and
    /// the other has not, and further ones that are summed over. Its space has no tiles along them.
    pub fn untiled(&self) -> impl Iterator<Item = &(Axis, AxisInfo)> {
        self.iters.iter().filter(|(axis, info)| match axis {
            _ if info.extent <= 1 => false,
            Axis::Batch(_) => self.a.dims.contains(axis) != self.b.dims.contains(axis),
            Axis::Outer(_) => true,
            Axis::M | Axis::N | Axis::K => false,
        })
    }

    /// What its space leaves out, for people: tiles along [`Contraction::untiled`].
    pub fn left_out(&self) -> Option<String> {
        let further: Vec<&str> = self.untiled().map(|(_, info)| info.name.as_str()).collect();
        let tiled = self.iters.iter().filter(|(axis, _)| matches!(axis, Axis::M | Axis::N | Axis::K));
        let tiled: Vec<&str> = tiled.map(|(_, info)| info.name.as_str()).collect();
        (!further.is_empty()).then(|| {
            let (block, tiled, further) = (&self.block_name, tiled.join(", "), further.join(", "));
            format!(
                "block {block} has tiles along {tiled}, and one value of {further} at a time: they index no neighbouring dimensions, the \
                 same in every buffer, that would be taken as one"
            )
        })
    }

    /// A matrix product of m x n x k, or `batch` of them: operands A and B of type `input`, result C and sums of type
    /// `sum`. Layout: `N` or `T` for A and for B; T means that A is stored as k x m, or B as n x k.
    pub fn gemm(
        batch: Option<i64>,
        [m, n, k]: [i64; 3],
        input: DType,
        sum: DType,
        [a_transposed, b_transposed]: [bool; 2],
    ) -> Contraction {
        let info = |name: &str, extent, reduce| AxisInfo { name: name.into(), extent, reduce };
        let operand = |id: u32, name: &str, transposed: bool, [row, column]: [Axis; 2], dtype| OperandInfo {
            buffer: BufferId(id),
            name: name.into(),
            dtype,
            index: usize::from(id == 1),
            dims: batch
                .map(|_| Axis::Batch(0))
                .into_iter()
                .chain(if transposed { [column, row] } else { [row, column] })
                .collect(),
        };
        let batched = batch.map(|b| (Axis::Batch(0), info("vb", b, false)));
        let product =
            [(Axis::M, info("vi", m, false)), (Axis::N, info("vj", n, false)), (Axis::K, info("vk", k, true))];
        Contraction {
            block: BlockId(1),
            block_name: "C".into(),
            iters: batched.into_iter().chain(product).collect(),
            a: operand(0, "A", a_transposed, [Axis::M, Axis::K], input),
            b: operand(1, "B", b_transposed, [Axis::K, Axis::N], input),
            c: operand(2, "C", false, [Axis::M, Axis::N], sum),
            accumulate: sum,
            epilogue: None,
            gather: None,
            combine: None,
        }
    }

    /// What a thread executes per element of A and of B that it combines.
    pub fn step(&self) -> Instructions {
        self.combine.as_ref().map_or(Instructions::MULTIPLY_ADD, |combine| combine.step)
    }

    /// Operations of a step that a person counts: of a product two.
    pub fn operations(&self) -> u32 {
        self.combine.as_ref().map_or(2, |combine| combine.operations)
    }

    /// Extent of an axis; 1 for an axis that the contraction does not have.
    pub fn extent(&self, axis: Axis) -> i64 {
        self.iters.iter().find(|(a, _)| *a == axis).map_or(1, |(_, info)| info.extent)
    }

    /// The further spatial axes, in loop order.
    pub fn batch(&self) -> impl Iterator<Item = (Axis, &AxisInfo)> {
        self.iters.iter().filter(|(a, _)| matches!(a, Axis::Batch(_))).map(|(a, i)| (*a, i))
    }

    /// The further reduction axes, in loop order.
    pub fn outer_reduce(&self) -> impl Iterator<Item = (Axis, &AxisInfo)> {
        self.iters.iter().filter(|(a, _)| matches!(a, Axis::Outer(_))).map(|(a, i)| (*a, i))
    }

    /// The contraction of the transposed product, `C^T = B^T A^T`: A and B have changed places, and so have m and n. Matrices lie
    /// as they did.
    #[must_use]
    pub fn transposed(&self) -> Contraction {
        let turned = |info: &OperandInfo| OperandInfo {
            dims: info.dims.iter().map(|axis| axis.transposed()).collect(),
            ..info.clone()
        };
        let iters = self.iters.iter().map(|(axis, info)| (axis.transposed(), info.clone())).collect();
        let (a, b, c) = (turned(&self.b), turned(&self.a), turned(&self.c));
        let mut combine = self.combine.clone();
        combine.iter_mut().for_each(|combine| combine.sided.reverse());
        let gather = self.gather.as_ref().map(|gather| Box::new(gather.transposed()));
        Contraction { iters, a, b, c, gather, combine, ..self.clone() }
    }

    /// Dimensions of the result in memory, outermost first: axis and extent. One that several iterators index is as many.
    pub fn result_dims(&self) -> Vec<(Axis, i64)> {
        let Some(gather) = &self.gather else {
            return self.c.dims.iter().map(|axis| (*axis, self.extent(*axis))).collect();
        };
        if let Some(dims) = gather.c.by_iterators(&gather.iters) {
            return dims.into_iter().map(|(i, extent)| (i.map_or(Axis::M, |i| gather.iters[i].0), extent)).collect();
        }
        let axis = |d: &Dimension| d.terms.first().map_or(Axis::M, |(i, _)| gather.iters[*i].0);
        gather.c.dims.iter().map(|d| (axis(d), d.extent)).collect()
    }

    /// Elements of what an epilogue reads beside the sums.
    pub fn elements_beside(&self, read: &Beside) -> i64 {
        let dims = self.result_dims();
        read.dims.iter().flatten().filter_map(|d| dims.get(*d)).fold(1, |n, (_, extent)| n.saturating_mul(*extent))
    }

    /// The operand of a side.
    pub fn operand(&self, side: Side) -> &OperandInfo {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

impl OperandInfo {
    /// Whether its innermost dimension in global memory runs along `axis`.
    pub fn contiguous_along(&self, axis: Axis) -> bool {
        self.dims.last() == Some(&axis)
    }
}
