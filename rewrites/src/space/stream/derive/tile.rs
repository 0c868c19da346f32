//! The calls of a tile kernel.
use super::{from_end, most_blocks, var, TraceWriter, Writer};
use satune_ir::term::stream::TilePlan;
use serde_json::json;

impl Writer<'_> {
    pub(super) fn tile(&mut self, plan: &TilePlan) {
        let Some(number) = self.stream.blocks.iter().position(|b| b.name == plan.block) else { return };
        let Some((read, write, access)) = self.stream.transposed(number) else { return };
        let b = &self.stream.blocks[number];
        let along = plan.side / plan.vector;
        let side_by_side = plan.threads / along;
        let block = self.block(&plan.block);
        let tile = self.copy_for((&block, access), [block.as_str()], "shared", "tile");
        let wide = plan.vector > 1;
        let written = wide.then(|| self.bound("cache_write", [var(&block), json!(0), json!("local")], "written"));
        // What else runs along the result's rows is read by wide accesses, too.
        let others: Vec<usize> =
            (0..b.reads.len()).filter(|r| *r != access && b.reads[*r].dims.last() == Some(&Some(write))).collect();
        let fragments = if wide { self.fragments(&block, &others) } else { Vec::new() };
        let anchor = written.unwrap_or_else(|| block.clone());
        let loops = self.loops(&anchor, b.iters.len());
        let rows = self.split(var(&loops[read]), &[(plan.side, "tile_rows")], "rows");
        let columns = self.split(var(&loops[write]), &[(plan.side, "tile_columns")], "columns");
        let inner_rows = self.split(var(&rows[1]), &[(side_by_side, "row")], "turn");
        let inner_columns = self.split(var(&columns[1]), &[(plan.vector, "vector")], "thread");
        // A vector as wide as the tile leaves one thread along the row.
        let (turn, row) = (&inner_rows[0], &inner_rows[1]);
        let (thread, vector) = (&inner_columns[0], &inner_columns[1]);
        let rest: Vec<String> =
            (0..loops.len()).filter(|i| *i != read && *i != write).map(|i| loops[i].clone()).collect();
        let order = rest.iter().chain([&rows[0], &columns[0], turn, row, thread, vector]).filter(|l| !l.is_empty());
        let order: Vec<_> = order.map(|l| var(l)).collect();
        self.call("reorder", order);
        let blocks = (b.iters[read].extent + plan.side - 1) / plan.side;
        let others: i64 = (0..b.iters.len()).filter(|i| *i != read && *i != write).map(|i| b.iters[i].extent).product();
        let block_loop = if blocks.max(others) > most_blocks() {
            let all: Vec<String> = rest.iter().chain([&rows[0], &columns[0]]).cloned().collect();
            self.fused(&all)
        } else {
            if !rest.is_empty() {
                let batch = self.fused(&rest);
                self.bind(&batch, "blockIdx.z");
            }
            self.bind(&rows[0], "blockIdx.y");
            columns[0].clone()
        };
        self.bind(&block_loop, "blockIdx.x");
        self.bind(row, "threadIdx.y");
        self.bind(thread, "threadIdx.x");
        self.unroll(turn);
        self.vectorize(vector);
        if wide {
            self.at_thread(thread, Some(&block), &fragments);
        }
        // The copy: the source's last two loops are those of the tile, the one that its rows run along innermost.
        self.call("compute_at", [var(&tile), var(&block_loop), json!(true)]);
        let all = self.bound("get_loops", [var(&tile)], "loops");
        let dims: Vec<usize> = b.reads[access].dims.iter().flatten().copied().collect();
        let at = |iter: usize| dims.len() - dims.iter().position(|d| *d == iter).unwrap_or(0);
        let (across, run) = (from_end(&all, at(write)), from_end(&all, at(read)));
        let across = self.split(across, &[(side_by_side, "copy_row")], "copy_turn");
        // Rows that are shorter than the tile have as many threads as whole ones, of which some rest.
        let run = match b.iters[read].extent < plan.side {
            true => self.split(run, &[(along, "copy_thread"), (plan.vector, "copy_vector")], "copy_whole").split_off(1),
            false => self.split(run, &[(plan.vector, "copy_vector")], "copy_thread"),
        };
        self.bind(&across[1], "threadIdx.y");
        self.bind(&run[0], "threadIdx.x");
        self.unroll(&across[0]);
        self.vectorize(&run[1]);
        if plan.pad > 0 {
            let (factor, offset) = if plan.pad < plan.side { (plan.side, plan.pad) } else { (plan.side + plan.pad, 0) };
            self.call("storage_align", [var(&tile), json!(0), json!(-2), json!(factor), json!(offset)]);
        }
    }
}
