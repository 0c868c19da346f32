//! The copies: the store of sums, and each operand's way to shared memory and fragments.
use super::super::key;
use super::{extent, name_of, Reader};
use crate::space::unread::{wrong, Read};
use crate::{keys, storage_align};
use satune_ir::term::tensor::{mma_conditions, CopyOrder, Mma, OperandPlan, Store, TileLayout, Turn};
use satune_ir::term::Side;
use satune_ir::{Attr, BlockRealize, BufferId, ForKind, Stmt};

impl<'p> Reader<'p> {
    /// The only block that writes (reads) a buffer, beside those that add to it, and those that clear it.
    pub(super) fn copy(&self, buffer: BufferId, writes: bool) -> Read<&'p BlockRealize> {
        let mut found = self.realizes().into_iter().filter(|r| {
            let [written, read] = [&r.block.writes, &r.block.reads].map(|all| all.iter().any(|x| x.buffer == buffer));
            written != read && written == writes && !r.block.reads.is_empty()
        });
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            _ => wrong(
                format!("buffer `{}`", self.program.buffer(buffer).name),
                if writes { "it is not written by one copy" } else { "it is not read by one copy" },
            ),
        }
    }

    pub(super) fn store(&self, sums: BufferId) -> Read<Store> {
        let copy = self.copy(sums, false)?;
        let target = copy.block.writes.first().map(|w| self.program.buffer(w.buffer).scope.to_string());
        let stmatrix = key::flag(&format!("block `{}`", copy.block.name), &copy.block.annotations, keys::STMATRIX)?;
        Ok(if target.as_deref() == Some("shared") { Store::Shared { stmatrix } } else { Store::Direct })
    }

    /// The way of an operand: its copy to shared memory, its layout there, and its fragments.
    pub(super) fn operand(
        &self,
        side: Side,
        (op, tile, threads): (Mma, [i64; 3], i64),
        fragments: BufferId,
    ) -> Read<OperandPlan> {
        let load = self.copy(fragments, true)?;
        let load_name = format!("block `{}`", load.block.name);
        let Some(source) = load.block.reads.first() else { return wrong(load_name, "it copies nothing") };
        let fill = self.copy(source.buffer, true)?;
        let place = format!("block `{}`", fill.block.name);
        let extent_of = if side == Side::A { tile[0] } else { tile[1] };
        let (_, columns) = mma_conditions::tile_rows(self.gemm, side, extent_of, tile[2]);
        let loops = self.loops(fill)?;
        // Blocks, warps, tiles along k, and the only product of the block's.
        let own = loops.get(3 + self.batches()..).unwrap_or_default();
        let of_kind = |fits: &dyn Fn(&ForKind) -> bool| own.iter().position(|l| fits(&l.kind));
        let lane = of_kind(&|k| matches!(k, ForKind::ThreadBinding(t) if t == "threadIdx.x"));
        let vector = of_kind(&|k| *k == ForKind::Vectorized);
        let serial = of_kind(&|k| matches!(k, ForKind::Serial | ForKind::Unrolled));
        let (Some(lane), Some(vector), Some(serial), 4) = (lane, vector, serial, own.len()) else {
            return wrong(place, "a copy has loops over rounds, warps, lanes, and elements of one access");
        };
        let width = extent(own[vector])?;
        let column = fill.iter_values.last();
        let along_rows = match column {
            Some(e) => columns <= width || self.value(e, &[(own[lane].var.id, 1)])? != 0,
            None => return wrong(place, "it copies no matrix"),
        };
        let order = match (serial > lane, along_rows) {
            (true, _) => CopyOrder::Own,
            (false, true) => CopyOrder::Rows,
            (false, false) => CopyOrder::Columns,
        };
        let all = &fill.block.annotations;
        let bytes = match key::small(&place, all, keys::COPY_BYTES)? {
            0 => u32::try_from(width * i64::from(self.gemm.operand.bytes())).unwrap_or(u32::MAX),
            bytes => bytes,
        };
        if threads < 1 || mma_conditions::copy_elements(self.gemm, side, bytes) != width {
            return wrong(name_of(own[vector]), format!("copies of {bytes} bytes have not {width} elements here"));
        }
        let turn = Turn::of(op, mma_conditions::rows_along_k(self.gemm, side));
        Ok(OperandPlan {
            layout: self.layout(fill, turn, columns)?,
            bytes,
            order,
            rolled: own[serial].kind == ForKind::Serial,
            prefetch: key::small(&place, all, keys::PREFETCH)?,
            step: key::small(&place, all, keys::STEP)?,
            // Loads of wmma are whole matrices.
            matrices: if op.wmma().is_some() {
                4
            } else {
                key::small(&load_name, &load.block.annotations, keys::LDMATRIX)?
            },
            sets: 1,
        })
    }

    /// How far apart storage_align puts the rows of each matrix that a copy writes, in chunks: a factor, and what is left.
    /// What it says of other dimensions, or in other numbers, is what no plan's program says.
    fn aligned(&self, fill: &BlockRealize, chunk: i64) -> Option<[i64; 2]> {
        let Some(Attr::List(all)) = fill.block.annotations.get(storage_align::KEY) else { return None };
        let [Attr::List(entry)] = &all[..] else { return None };
        let [Attr::Int(0), Attr::Int(axis), Attr::Int(factor), Attr::Int(rest)] = entry[..] else { return None };
        // Rows come after batches.
        (usize::try_from(axis) == Ok(self.batches())).then_some([factor / chunk, rest / chunk])
    }

    /// Where a copy puts the chunks of a tile's rows.
    fn layout(&self, fill: &BlockRealize, turn: Turn, columns: i64) -> Read<TileLayout> {
        let place = format!("block `{}`", fill.block.name);
        let Stmt::Store { indices, .. } = &*fill.block.body else { return wrong(place, "it is no copy") };
        let ([.., row, column], [.., to]) = (&fill.block.iter_vars[..], &indices[..]) else {
            return wrong(place, "it copies no matrix");
        };
        let chunk = 16 / i64::from(self.gemm.operand.bytes());
        let chunks = columns / chunk;
        // The layouts repeat after 16 rows, and after 8 chunks.
        let mut stands = Vec::new();
        for r in 0..16 {
            for c in 0..chunks.min(8) {
                let at = self.value(to, &[(row.var.id, r), (column.var.id, c * chunk)])?;
                stands.push((r, c, at));
            }
        }
        let is = |layout: &TileLayout| {
            let span = layout.span(chunks);
            stands.iter().all(|(r, c, at)| layout.place(chunks, turn.of_row(*r, span), *c) * chunk == *at)
        };
        let spans = [2, 4, 8];
        let all = [TileLayout::Plain, TileLayout::Padded].into_iter();
        let mut all = all.chain(spans.map(TileLayout::Xor)).chain(spans.map(TileLayout::Rotate));
        let aligned = self.aligned(fill, chunk);
        all.find(|layout| layout.align(turn) == aligned && is(layout))
            .map_or_else(|| wrong(place, "its tile lies as no layout of chunks has it"), Ok)
    }
}
