//! The calls of a row kernel.
use super::{from_end, var, TraceWriter, Writer};
use crate::space::conditions::stream::Team;
use satune_ir::term::stream::{Access, AccessForm, BlockKind, RowPlace, RowPlan, Shape, StreamBlock};
use serde_json::json;

/// A block of the kernel and what was made around it.
#[derive(Clone)]
struct Made {
    /// Name of the block's value.
    block: String,
    /// The copy of its result from registers, where it has one: then the loops of rows are this block's.
    written: Option<String>,
    /// Copies of what it reads.
    fragments: Vec<String>,
    /// The copy to memory of what outlives the kernel, where later blocks of the kernel read it, too.
    out: Option<String>,
}

/// A copy that is held for several blocks or rows.
struct Copy {
    block: String,
    form: AccessForm,
    place: RowPlace,
}

/// The loops of the copy of a block's result, one per dimension of the buffer, those of one element too: all of them, and
/// those of the rows.
fn copied_loops(b: &StreamBlock, shape: &Shape) -> (usize, usize) {
    let dims = &b.write.dims;
    let of_rows = dims.iter().position(|d| d.is_some_and(|i| i >= shape.row_iters));
    (dims.len(), of_rows.unwrap_or(dims.len()))
}

impl Writer<'_> {
    pub(super) fn row(&mut self, plan: &RowPlan) {
        let Some(from) = self.stream.blocks.iter().position(|b| Some(&b.name) == plan.blocks.first()) else { return };
        let to = from + plan.blocks.len();
        let Some(shape) = self.stream.row_shape(from, to) else { return };
        let stream = self.stream;
        let blocks = &stream.blocks[from..to];
        let names: Vec<String> = plan.blocks.iter().map(|name| self.block(name)).collect();
        let copies = self.held(plan, blocks, &names, &shape);
        let mut made: Vec<Made> = Vec::new();
        for (i, (b, name)) in blocks.iter().zip(&names).enumerate() {
            let scope = self.scope_of_made(plan, b, &shape);
            let out = (i + 1 < blocks.len()).then(|| self.held_made((from, to), &names, i, scope)).flatten();
            made.push(Made { out, ..self.caches(plan, b, name, &shape, i + 1 == blocks.len()) });
        }
        // The loops of the last block are those of the rows.
        let Some((last, others)) = made.split_last() else { return };
        let Some(last_block) = blocks.last() else { return };
        let anchor = last.written.as_ref().unwrap_or(&last.block).clone();
        let map = last_block.kind != BlockKind::Reduce;
        let has_columns = self.has_columns(last_block, &shape) && (map || last.written.is_none());
        let of_rows = last.written.as_ref().map_or(shape.row_iters, |_| copied_loops(last_block, &shape).1);
        let loops = match (&last.written, last_block.iters.len()) {
            (Some(copy), _) => self.copy_loops(copy, last_block),
            (None, 0) => Vec::new(),
            (None, all) => self.loops(&anchor, all),
        };
        let mut rows = self.rows_as_one(&anchor, &loops, of_rows);
        // What is also copied to memory has its rows with those of the last block. A copy stands before the first that reads it, or at
        // the end; and all of them where the first of them stood.
        let place = last.written.as_ref().map_or([0; 2], |_| self.read_at(last_block, to));
        let mut copied = vec![((place, blocks.len()), var(&rows))];
        for (i, (m, b)) in made.iter().zip(blocks).enumerate() {
            let Some(copy) = &m.out else { continue };
            let (loops, of_rows) = (self.copy_loops(copy, b), copied_loops(b, &shape).1);
            copied.push(((self.read_at(b, to), i), var(&self.rows_as_one(copy, &loops, of_rows))));
        }
        if copied.len() > 1 {
            rows = self.as_one(copied);
        }
        let parts = [(plan.serial_rows, "turn"), (plan.side_by_side, "row")];
        let rows = self.split(var(&rows), &parts, "rows");
        self.bind(&rows[0], "blockIdx.x");
        self.bind(&rows[2], "threadIdx.y");
        let row = rows.iter().rev().find(|l| !l.is_empty()).cloned().unwrap_or_default();
        if has_columns {
            let columns = self.fused(&loops[of_rows..]);
            self.columns(plan, last, var(&columns), plan.unroll.last() == Some(&true), map);
        } else if last.written.is_some() {
            self.call("compute_at", [var(&last.block), var(&row), json!(true)]);
            // Its copy is the anchor, which has no columns.
            let reduction = Made { written: None, ..last.clone() };
            self.own_columns(plan, &reduction, last_block, &shape, blocks.len() - 1);
        }
        for (i, (m, b)) in others.iter().zip(blocks).enumerate() {
            let Some(copy) = &m.out else { continue };
            let (all, of_rows) = copied_loops(b, &shape);
            if all > of_rows {
                let columns = self.last_fused(copy, all - of_rows);
                self.on_threads(plan, columns, plan.unroll.get(i) == Some(&true), true);
            }
        }
        for (i, (m, b)) in others.iter().zip(blocks).enumerate().rev() {
            let place = m.written.as_ref().unwrap_or(&m.block).clone();
            self.call("compute_at", [var(&place), var(&row), json!(true)]);
            self.own_columns(plan, m, b, &shape, i);
        }
        for copy in &copies {
            let at = if copy.form == AccessForm::PerColumn { &rows[0] } else { &row };
            self.call("compute_at", [var(&copy.block), var(at), json!(true)]);
            self.copy(plan, copy, &shape, blocks);
        }
    }

    /// The loops of rows of a nest, which are the first ones, as one.
    fn rows_as_one(&mut self, block: &str, loops: &[String], of_rows: usize) -> String {
        match (&loops[..of_rows], loops.get(of_rows)) {
            // Of one row, a loop of its own.
            ([], Some(outermost)) => self.bound("add_unit_loop", [var(outermost)], "one"),
            ([], None) => self.bound("add_unit_loop", [var(block)], "one"),
            (rows, _) => self.fused(rows),
        }
    }

    /// Where what a block of the kernel makes is for the later ones: a value of a row in registers of every thread.
    fn scope_of_made(&self, plan: &RowPlan, b: &StreamBlock, shape: &Shape) -> &'static str {
        let place = self.stream.buffers.get(b.write.buffer).map(|buffer| plan.place(&buffer.name));
        match place.filter(|_| b.form(&b.write, shape.row_iters) != AccessForm::PerRow) {
            Some(RowPlace::Shared) => "shared",
            _ => "local",
        }
    }

    fn has_columns(&self, b: &StreamBlock, shape: &Shape) -> bool {
        b.iters.len() > shape.row_iters
    }

    /// cache_read of what is held; returns the copies.
    fn held(&mut self, plan: &RowPlan, blocks: &[StreamBlock], names: &[String], shape: &Shape) -> Vec<Copy> {
        let mut copies = Vec::new();
        for held in &plan.held {
            let Some(buffer) = self.stream.buffer(&held.buffer) else { continue };
            let scope = match held.place {
                RowPlace::Global => continue,
                RowPlace::Shared => "shared",
                RowPlace::Registers => "local",
            };
            if blocks.iter().any(|b| b.write.buffer == buffer) {
                continue;
            }
            // What is read from anywhere is read from memory.
            let of = |r: &Access| r.buffer == buffer && r.known;
            let readers: Vec<usize> = (0..blocks.len()).filter(|i| blocks[*i].reads.iter().any(of)).collect();
            let Some(first) = readers.first() else { continue };
            let Some(number) = blocks[*first].reads.iter().position(|r| r.buffer == buffer) else { continue };
            let form = blocks[*first].form(&blocks[*first].reads[number], shape.row_iters);
            let consumers = readers.iter().map(|i| names[*i].as_str());
            let block = self.copy_for((&names[*first], number), consumers, scope, "held");
            copies.push(Copy { block, form, place: held.place });
        }
        copies
    }

    /// The copies around one block: wide ones of what it reads from memory, and one of its result.
    fn caches(&mut self, plan: &RowPlan, b: &StreamBlock, name: &str, shape: &Shape, last: bool) -> Made {
        let wide = plan.vector > 1 && self.has_columns(b, shape);
        let to_memory = match self.stream.buffers.get(b.write.buffer) {
            Some(buffer) => last || plan.place(&buffer.name) == RowPlace::Shared,
            None => last,
        };
        let map = b.kind != BlockKind::Reduce;
        // A sum is copied where accesses may be; else one of its threads writes it.
        let copied = if map { wide && to_memory } else { last && self.stream.pipeline };
        let written = copied.then(|| self.bound("cache_write", [var(name), json!(0), json!("local")], "written"));
        let from_memory = |r: &Access| {
            let along =
                matches!(b.form(r, shape.row_iters), AccessForm::Full | AccessForm::PerColumn | AccessForm::SharedRow);
            along && self.stream.buffers.get(r.buffer).is_some_and(|x| plan.place(&x.name) != RowPlace::Registers)
        };
        let reads: Vec<usize> = (0..b.reads.len()).filter(|r| wide && from_memory(&b.reads[*r])).collect();
        let fragments = self.fragments(name, &reads);
        Made { block: name.into(), written, fragments, out: None }
    }

    /// Schedules the columns of a block that stands at the row, if it has any.
    fn own_columns(&mut self, plan: &RowPlan, m: &Made, b: &StreamBlock, shape: &Shape, number: usize) {
        if !self.has_columns(b, shape) {
            return;
        }
        let columns = match &m.written {
            Some(copy) => {
                let (all, of_rows) = copied_loops(b, shape);
                self.last_fused(copy, all - of_rows)
            }
            None => self.own_fused(&m.block, b, shape.row_iters),
        };
        self.columns(plan, m, columns, plan.unroll.get(number) == Some(&true), b.kind != BlockKind::Reduce);
    }

    /// The column loops of a block that stands at the row, as one: they come in the order of its iterators.
    fn own_fused(&mut self, block: &str, b: &StreamBlock, row_iters: usize) -> serde_json::Value {
        let all = self.bound("get_loops", [var(block)], "loops");
        let columns: Vec<_> = b.places[row_iters..].iter().map(|p| from_end(&all, b.places.len() - p)).collect();
        match columns.as_slice() {
            [one] => one.clone(),
            _ => {
                let fused = self.bound("fuse", columns, "fused");
                var(&fused)
            }
        }
    }

    /// Splits the columns of a block, and puts what it needs under the loop over threads.
    fn columns(&mut self, plan: &RowPlan, m: &Made, columns: serde_json::Value, unroll: bool, map: bool) {
        let compute = m.written.as_ref().filter(|_| map).map(|_| m.block.as_str());
        let thread = self.on_threads(plan, columns, unroll, compute.is_some());
        self.at_thread(&thread, compute, &m.fragments);
    }

    /// Splits columns into (serial or unrolled, threadIdx.x, one access or unrolled); returns the second.
    fn on_threads(&mut self, plan: &RowPlan, columns: serde_json::Value, unroll: bool, access: bool) -> String {
        let parts = self.split(columns, &[(plan.threads, "thread"), (plan.vector, "vector")], "columns");
        let (outer, thread, vector) = (&parts[0], &parts[1], &parts[2]);
        self.bind(thread, "threadIdx.x");
        if unroll {
            self.unroll(outer);
        }
        match access {
            true => self.vectorize(vector),
            false => self.unroll(vector),
        }
        thread.clone()
    }

    /// Schedules a copy that is held for several blocks or rows.
    fn copy(&mut self, plan: &RowPlan, copy: &Copy, shape: &Shape, blocks: &[StreamBlock]) {
        let column_iters = blocks.iter().map(|b| b.iters.len() - shape.row_iters).max().unwrap_or(1).max(1);
        if copy.form == AccessForm::PerColumn {
            let columns = self.last_fused(&copy.block, column_iters);
            let parts = [(plan.side_by_side, "copy_row"), (plan.threads, "copy_thread"), (plan.vector, "copy_vector")];
            let parts = self.split(columns, &parts, "copy");
            self.bind(&parts[1], "threadIdx.y");
            self.bind(&parts[2], "threadIdx.x");
            self.vectorize(&parts[3]);
            return;
        }
        if copy.place == RowPlace::Shared && plan.side_by_side > 1 {
            // What goes to shared memory at a row is that of all rows side by side, each copied by its own threads.
            let loops = self.bound("get_loops", [var(&copy.block)], "loops");
            self.call("bind", [from_end(&loops, 1 + column_iters), json!("threadIdx.y")]);
        }
        let columns = self.last_fused(&copy.block, column_iters);
        let parts = [(plan.threads, "copy_thread"), (plan.vector, "copy_vector")];
        let parts = self.split(columns, &parts, "copy");
        self.bind(&parts[1], "threadIdx.x");
        self.vectorize(&parts[2]);
        let RowPlan { side_by_side, threads, vector, .. } = *plan;
        let iterations = Team { columns: shape.columns, side_by_side, threads, vector }.laps();
        if iterations > 1 && iterations * plan.vector <= UNROLLED {
            self.unroll(&parts[0]);
        }
    }
}

/// Most iterations, times the width of an access, of a copy's loop that is unrolled.
const UNROLLED: i64 = 64;
