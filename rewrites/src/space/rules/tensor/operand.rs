//! `cache_read` of one operand: where the chunks of its tile stand in shared memory, how they are copied there, when, and
//! how warps load fragments from there. None of it depends on the other operand.
use super::offer::{stage_of, Offer};
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::tensor::{mma_conditions, CopyOrder, Gemm, Matrix, OperandPlan, TensorStage, TileLayout, Turn};
use satune_ir::term::{Axis, Side, Stage, State, Team, Term};
use std::sync::Arc;

/// `(operand nest) = (tile in a layout (copies nest) (when nest) (loads nest))`.
///
/// Side condition: rows of the tile are whole chunks of 16 bytes, of a number that the layout takes; they are padded where
/// the ring has room for that.
pub struct LayoutTile(pub(super) Arc<Offer>);

impl Rule for LayoutTile {
    fn name(&self) -> &'static str {
        "transform_layout tile"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Operand { op, side, room }) = stage_of(node, state) else { return };
        let Team::Cta(threads) = state.team else { return };
        let (gemm, menu) = (self.0.gemm(state), &self.0.menu);
        let (extent, own, k) = (state.tile.m, state.tile.n, state.tile.k);
        let Some(widest) = self.0.copy_bytes(gemm, side).first().copied() else { return };
        let count = mma_conditions::copies(gemm, side, [extent, k], threads.into(), widest);
        // What waits in registers is not copied in a loop.
        let gathered = gemm.gathered(side).is_some();
        let several = count > 1 && menu.copy_loops.contains(&true) && op.is_async() && !gathered;
        // Addresses beyond the edge are looked up one by one: they must fit registers, or be computed in the loop.
        let few = count <= 4 || gathered || !mma_conditions::looked_up(gemm, side, extent);
        let unrolls = !several || few && menu.copy_loops.contains(&false);
        let asynchronous = mma_conditions::is_async(gemm, side, op, widest);
        let chunks = mma_conditions::tile_rows(gemm, side, extent, k).1 * i64::from(gemm.operand.bytes()) / 16;
        let turn = Turn::of(op, mma_conditions::rows_along_k(gemm, side));
        let layouts = if op.wmma().is_some() { &[TileLayout::Padded][..] } else { &menu.layouts };
        for layout in layouts.iter().copied() {
            let fits = mma_conditions::layout(gemm, side, [extent, k], layout);
            // Spans longer than a row are those of the row's length.
            let new = match layout {
                TileLayout::Plain => true,
                // The only way of wmma's tiles. Rows that are so far apart anyway are plain ones.
                TileLayout::Padded => {
                    let more = mma_conditions::padding_of(gemm, side, op, [extent, k], layout);
                    op.wmma().is_some() || room && more > 0
                }
                TileLayout::Xor(span) | TileLayout::Rotate(span) => {
                    let shorter = menu.layouts.iter().any(|l| same_kind(*l, layout) && covers(*l, chunks, span));
                    !shorter && layout.moves(chunks, turn)
                }
            };
            // Exchanging two by two is the same either way.
            let new = new && !(matches!(layout, TileLayout::Rotate(_)) && layout.span(chunks) == 2);
            if !engine.holds(Condition::MmaRows, fits) || !new {
                continue;
            }
            let at = |stage, m| State {
                stage: Stage::Tensor(stage),
                tile: state.tile.with(Axis::M, m).with(Axis::N, 1),
                ..*state
            };
            let copy = engine.nest(at(TensorStage::Copy(op, side, layout), extent));
            let issue =
                State { team: Team::Grid, ..at(TensorStage::Issue { op, side, several, unrolls, asynchronous }, 1) };
            let issue = engine.nest(issue);
            let load = State { team: Team::Warp(32), ..at(TensorStage::Load(op, side, layout), own) };
            let load = engine.nest(load);
            engine.equals(Term::Operand { side, layout, room, children: [copy, issue, load] });
        }
    }
}

fn same_kind(a: TileLayout, b: TileLayout) -> bool {
    std::mem::discriminant(&a) == std::mem::discriminant(&b)
}

/// Whether a layout's span is shorter than `span`, and a row no longer than it.
fn covers(layout: TileLayout, chunks: i64, span: u8) -> bool {
    match layout {
        TileLayout::Plain | TileLayout::Padded => false,
        TileLayout::Xor(s) | TileLayout::Rotate(s) => s < span && i64::from(s) >= chunks,
    }
}

/// `(copies nest) = copies of 16, 8 or 4 bytes, along rows, across them, or each thread its own`.
pub struct CopyTile(pub(super) Arc<Offer>);

impl Rule for CopyTile {
    fn name(&self) -> &'static str {
        "vectorize, bind copies"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Copy(_, side, _)) = stage_of(node, state) else { return };
        let Team::Cta(threads) = state.team else { return };
        let (gemm, tile) = (self.0.gemm(state), [state.tile.m, state.tile.k]);
        let (rows, columns) = mma_conditions::tile_rows(gemm, side, tile[0], tile[1]);
        for bytes in self.0.copy_bytes(gemm, side) {
            let count = mma_conditions::copies(gemm, side, tile, threads.into(), bytes);
            let per_row = columns / mma_conditions::copy_elements(gemm, side, bytes);
            for order in self.0.menu.copy_orders.iter().copied() {
                let same = match order {
                    CopyOrder::Rows => false,
                    // A tile of one row, or of one chunk per row, has one order.
                    CopyOrder::Columns => rows == 1 || per_row == 1,
                    CopyOrder::Own => count == 1,
                };
                if !same {
                    let matrix = Matrix::Copy { bytes, order };
                    engine.equals(Term::Matrix { matrix, state: Box::new(*state) });
                }
            }
        }
    }
}

/// `(when nest) = copies started at a step along k, as a loop or unrolled, L2 asked for 128 or 256 bytes around each or
/// not`: cp.async only.
pub struct IssueCopies(pub(super) Arc<Offer>);

impl Rule for IssueCopies {
    fn name(&self) -> &'static str {
        "software_pipeline copies"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Issue { op, several, unrolls, asynchronous, .. }) = stage_of(node, state) else { return };
        let steps = mma_conditions::steps(op, state.tile.k).filter(|s| *s < self.0.menu.copy_steps);
        for step in steps {
            for rolled in [unrolls.then_some(false), several.then_some(true)].into_iter().flatten() {
                for prefetch in self.0.menu.prefetch.iter().copied().filter(|p| asynchronous || *p == 0) {
                    let matrix = Matrix::Issue { rolled, step, prefetch };
                    engine.equals(Term::Matrix { matrix, state: Box::new(*state) });
                }
            }
        }
    }
}

/// `(loads nest) = ldmatrix of 4, 2 or 1 matrices`, or `wmma.load`.
pub struct LoadFragments(pub(super) Arc<Offer>);

impl Rule for LoadFragments {
    fn name(&self) -> &'static str {
        "tensorize loads"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, state: &State) {
        let Some(TensorStage::Load(op, side, _)) = stage_of(node, state) else { return };
        for matrices in mma_conditions::matrices(self.0.gemm(state), side, op).iter().copied() {
            if self.0.menu.matrices.contains(&matrices) || op.wmma().is_some() {
                engine.equals(Term::Matrix { matrix: Matrix::Load { matrices }, state: Box::new(*state) });
            }
        }
    }
}

impl Offer {
    /// Bytes of one copy of an operand on offer, the most first: no more than its rows are multiples of.
    pub(super) fn copy_bytes(&self, gemm: &Gemm, side: Side) -> Vec<u32> {
        let most = OperandPlan::default().bytes;
        let widest = mma_conditions::copy_elements(gemm, side, most) * i64::from(gemm.operand.bytes());
        let fits: Vec<u32> = self.menu.copy_bytes.iter().copied().filter(|b| i64::from(*b) <= widest).collect();
        match fits.as_slice() {
            [] => self.menu.copy_bytes.iter().copied().min().into_iter().collect(),
            // Of a gathered operand each copy asks where it is: there are as few as can be.
            [widest, ..] if gemm.gathered(side).is_some() => vec![*widest],
            _ => fits,
        }
    }
}
