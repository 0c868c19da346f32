//! The calls of a flat kernel.
use super::{most_blocks, var, TraceWriter, Writer};
use satune_ir::term::stream::{Access, FlatPlan, StreamBlock};
use serde_json::{json, Value};

/// The loops of a nest: (blocks of rows, blocks of columns, row, step, thread), and that of an access. What has one iteration has no
/// name.
struct Loops {
    path: [String; 5],
    vector: String,
}

impl Loops {
    /// The innermost loop above accesses: threads have one, of columns or of rows.
    fn innermost(&self) -> &str {
        self.path.iter().rev().find(|name| !name.is_empty()).map_or("", String::as_str)
    }
}

impl Writer<'_> {
    pub(super) fn flat(&mut self, plan: &FlatPlan) {
        let stream = self.stream;
        let Some(from) = stream.blocks.iter().position(|b| Some(&b.name) == plan.blocks.first()) else { return };
        let to = from + plan.blocks.len();
        let maps = &stream.blocks[from..to];
        let Some((last, others)) = maps.split_last() else { return };
        let names: Vec<String> = maps.iter().map(|b| self.block(&b.name)).collect();
        let wide = plan.vector > 1;
        // Nests that become one with that of the last map: copies to memory. Where a map changes what it reads, which is not copied,
        // all keep their order, and are nests of their own.
        let in_order = maps.iter().any(|b| b.updates);
        let mut beside: Vec<(usize, String, bool)> = Vec::new();
        for (number, b) in others.iter().enumerate() {
            beside.extend(in_order.then(|| (number, names[number].clone(), false)));
            if !b.updates {
                let out = self.held_made((from, to), &names, number, "local");
                beside.extend(out.map(|copy| (number, copy, true)));
            }
        }
        let Some(block) = names.last() else { return };
        let written = wide.then(|| self.bound("cache_write", [var(block), json!(0), json!("local")], "written"));
        let fragments = self.fragments_of(maps, &names, wide);
        // The loops of the last block, or of its copy, and those of the other copies are one nest.
        let own = match &written {
            Some(copy) => self.copy_loops(copy, last),
            None => self.loops(block, last.iters.len()),
        };
        let mut nest = self.nest(plan, last, own, written.is_some());
        let place = written.as_ref().map_or([0; 2], |_| self.read_at(last, to));
        let mut merged = vec![((place, others.len()), var(nest.innermost()))];
        let mut vectors = Vec::new();
        for (at, (i, name, copy)) in beside.iter().enumerate() {
            let b = &maps[*i];
            let loops = if *copy { self.copy_loops(name, b) } else { self.loops(name, b.iters.len()) };
            let other = self.nest(plan, b, loops, *copy);
            let place = if in_order { [usize::MAX - at; 2] } else { self.read_at(b, to) };
            merged.push(((place, *i), var(other.innermost())));
            vectors.push(other.vector);
        }
        if beside.is_empty() {
            self.bind_nest(&nest, last, plan);
        } else {
            self.as_one(merged);
            let anchor = written.as_ref().unwrap_or(block);
            let below = usize::from(!nest.vector.is_empty());
            let kept: Vec<usize> = (0..5).filter(|i| !nest.path[*i].is_empty()).collect();
            let names: Vec<String> = (0..kept.len() + below).map(|_| self.name("merged")).collect();
            self.loops_of(anchor, &names);
            for (at, name) in kept.iter().zip(&names) {
                nest.path[*at].clone_from(name);
            }
            if let (1, Some(name)) = (below, names.last()) {
                nest.vector.clone_from(name);
            }
            self.bind_nest(&nest, last, plan);
            vectors.iter().for_each(|vector| self.vectorize(vector));
        }
        // The last block stands there already where accesses are of one element, and all do that keep their order.
        let thread = nest.innermost();
        let placed = names.iter().rev().skip(if in_order { names.len() } else { usize::from(!wide) });
        if wide {
            placed.for_each(|name| self.at_thread(thread, Some(name), &[]));
            self.at_thread(thread, None, &fragments);
            return;
        }
        for name in placed.chain(&fragments) {
            self.call("compute_at", [var(name), var(thread), json!(true)]);
        }
    }

    /// Copies into registers of what blocks read along the row, each once for all of them: of what several read, and where accesses are
    /// wide, of all.
    fn fragments_of(&mut self, maps: &[StreamBlock], names: &[String], wide: bool) -> Vec<String> {
        let mut copied: Vec<&Access> = Vec::new();
        let mut out = Vec::new();
        for (i, b) in maps.iter().enumerate() {
            let inner = Some(b.iters.len() - 1);
            for (number, read) in b.reads.iter().enumerate() {
                let made = maps.iter().any(|m| m.write.buffer == read.buffer);
                if made || copied.contains(&read) || read.dims.last() != Some(&inner) {
                    continue;
                }
                let readers: Vec<&str> =
                    (i..maps.len()).filter(|at| maps[*at].reads.contains(read)).map(|at| names[at].as_str()).collect();
                if wide || readers.len() > 1 {
                    copied.push(read);
                    out.push(self.copy_for((&names[i], number), readers, "local", "fragment"));
                }
            }
        }
        out
    }

    /// The loops of a block, or of a copy of its result, split and in their order.
    fn nest(&mut self, plan: &FlatPlan, b: &StreamBlock, mut loops: Vec<String>, copy: bool) -> Loops {
        let inner = b.iters.len() - 1;
        // A copy also has loops for dimensions of one element.
        let of_copy = || b.write.dims.iter().position(|d| *d == Some(inner));
        let at = copy.then(of_copy).flatten().unwrap_or(inner);
        let along = loops.split_off(at);
        let columns = self.fused(&along);
        let parts = [(plan.steps, "step"), (plan.threads, "thread"), (plan.vector, "vector")];
        let along = self.split(var(&columns), &parts, "columns");
        let [outer, step, thread, vector] = [0, 1, 2, 3].map(|i| along[i].clone());
        let (mut of_rows, mut row) = (String::new(), String::new());
        if !loops.is_empty() {
            let rows = self.fused(&loops);
            let rows = self.split(var(&rows), &[(plan.side_by_side, "row")], "rows");
            self.call("reorder", [&rows[0], &outer, &rows[1]].into_iter().filter(|l| !l.is_empty()).map(|l| var(l)));
            (of_rows, row) = (rows[0].clone(), rows[1].clone());
        }
        Loops { path: [of_rows, outer, row, step, thread], vector }
    }

    /// Gives the loops of a nest their threads.
    fn bind_nest(&mut self, nest: &Loops, b: &StreamBlock, plan: &FlatPlan) {
        let [rows, outer, row, step, thread] = &nest.path;
        let tile = plan.steps * plan.threads * plan.vector;
        let columns = b.iters.last().map_or(1, |i| i.extent);
        if rows.is_empty() {
            self.bind(outer, "blockIdx.x");
        } else if (columns + tile - 1) / tile > most_blocks() {
            let all = self.fused(&[rows.clone(), outer.clone()]);
            self.bind(&all, "blockIdx.x");
        } else {
            self.bind(rows, "blockIdx.x");
            self.bind(outer, "blockIdx.y");
        }
        self.bind(row, "threadIdx.y");
        self.bind(thread, "threadIdx.x");
        self.unroll(step);
        self.vectorize(&nest.vector);
    }

    /// The number of the first block after the kernel that reads what a block of it makes, and of the copy before that which does: there a
    /// copy of it stands.
    pub(super) fn read_at(&self, b: &StreamBlock, to: usize) -> [usize; 2] {
        let mut later = self.stream.blocks.iter().enumerate().skip(to);
        let block = later.find(|(_, c)| c.loads().any(|r| r.buffer == b.write.buffer)).map_or(usize::MAX, |(at, _)| at);
        let copy = self.copied.get(&self.stream.buffers[b.write.buffer].name);
        [block, copy.copied().unwrap_or(usize::MAX)]
    }

    /// Loops of several nests as one; each nest stands where the first number says, and comes after others there by the second.
    pub(super) fn as_one(&mut self, mut loops: Vec<(([usize; 2], usize), Value)>) -> String {
        loops.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        self.bound("merge", loops.into_iter().map(|(_, rows)| rows), "merged")
    }
}
