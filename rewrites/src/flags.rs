//! What is known of blocks, computed from the program: affine bindings, covered reads, stage pipelines. A schedule begins with it.
use crate::arith::{self, constant, Domains};
use crate::dependencies::{declares_nothing, DepKind, Scope};
use crate::linear::{all, conjuncts, has_bits, Interval};
use crate::schedule::{BlockFlags, Result, Schedule};
use crate::tree::{self, LoopId, Node};
use satune_ir::{visit, BlockId, BlockRealize, BufferId, Expr, ForKind, Program, Range, Region, Stmt};
use std::collections::HashMap;

impl Schedule {
    /// A schedule of `program`, as it is. Fails where two loops share a variable or two blocks an identity.
    pub fn new(program: Program) -> Result<Schedule> {
        let mut schedule = Schedule::bare(program)?;
        schedule.recompute_flags(schedule.root());
        Ok(schedule)
    }

    fn change_flags(&mut self, block: BlockId, change: impl FnOnce(&mut BlockFlags)) {
        let mut flags = self.flags(block);
        change(&mut flags);
        self.set_flags(block, flags);
    }

    /// Recomputes whether the block's binding is affine.
    pub fn update_affine_binding(&mut self, block: BlockId) {
        let affine = affine_binding(self, block);
        self.change_flags(block, |flags| flags.affine_binding = affine);
    }

    /// Recomputes everything known of a block and of all blocks below it.
    pub fn recompute_flags(&mut self, block: BlockId) {
        let mut blocks = vec![block];
        if let Ok(b) = self.block(block) {
            blocks.extend(tree::all_realizes(&b.body).into_iter().map(|r| r.block.id));
        }
        for &b in &blocks {
            self.update_affine_binding(b);
        }
        for &scope in &blocks {
            let (pipeline, covers) = scope_flags(self, scope);
            for (child, cover) in covers {
                self.change_flags(child, |flags| flags.region_cover = cover);
            }
            self.change_flags(scope, |flags| flags.stage_pipeline = pipeline);
        }
        self.change_flags(self.root(), |flags| flags.region_cover = true);
    }
}

/// Whether the block's iterators are an affine map, onto their domain, of the loops above it.
pub fn affine_binding(s: &Schedule, block: BlockId) -> bool {
    let (Ok(realize), Ok(loops)) = (s.realize(block), s.loops_of(block)) else { return false };
    is_affine(s, realize, &loops)
}

/// The same, of its loops from `top` down; loops further out are constants.
pub fn affine_binding_from(s: &Schedule, block: BlockId, top: LoopId) -> bool {
    let (Ok(realize), Ok(loops)) = (s.realize(block), s.loops_of(block)) else { return false };
    let from = loops.iter().position(|id| *id == top).unwrap_or(0);
    is_affine(s, realize, &loops[from..])
}

fn is_affine(s: &Schedule, realize: &BlockRealize, loops: &[LoopId]) -> bool {
    if loops.is_empty() {
        return true;
    }
    s.get_loops(loops).is_ok_and(|l| arith::is_affine_binding(&realize.iter_values, &l, &realize.predicate))
}

/// Whether the scope is a stage pipeline, and for each of its child blocks whether its reads are covered.
pub fn scope_flags(s: &Schedule, scope: BlockId) -> (bool, Vec<(BlockId, bool)>) {
    let Ok(graph) = s.scope(scope) else { return (false, Vec::new()) };
    let covers: Vec<(BlockId, bool)> =
        graph.children.iter().map(|&c| (c, region_cover(s, &graph, c).unwrap_or(false))).collect();
    let ordered = graph.deps.iter().all(|d| d.kind != DepKind::War);
    let covered = covers.iter().all(|(_, cover)| *cover);
    (ordered && covered, covers)
}

/// Whether everything that `consumer` reads from producers in its scope is written by them: for every set of producers
/// that share a lowest common loop with it, the regions written below that loop hold the regions read below it.
pub fn region_cover(s: &Schedule, graph: &Scope, consumer: BlockId) -> Result<bool> {
    let mut groups: Vec<(Node, Vec<BlockId>)> = Vec::new();
    for d in graph.deps.iter().filter(|d| d.to == consumer && d.kind == DepKind::Raw) {
        let at = s.lowest_common_ancestor(Node::Block(d.from), Node::Block(consumer))?;
        match groups.iter_mut().find(|(node, _)| *node == at) {
            Some((_, blocks)) => blocks.push(d.from),
            None => groups.push((at, vec![d.from])),
        }
    }
    let readers = declaring(s.realize(consumer)?);
    for (at, producers) in groups {
        let outer = outer_domains(s, at)?;
        let writers: Vec<&BlockRealize> = producers
            .iter()
            .map(|p| s.realize(*p))
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flat_map(declaring)
            .collect();
        for reader in &readers {
            if !covered(s, &outer, (at, &writers), reader)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether what a block reads of what `writers` write, all of them below a node, is written by them.
fn covered(
    s: &Schedule,
    outer: &Domains,
    (at, writers): (Node, &[&BlockRealize]),
    reader: &BlockRealize,
) -> Result<bool> {
    for read in &reader.block.reads {
        let buffer = s.program().buffer(read.buffer);
        let Some(shape) = buffer.extents() else { return Ok(false) };
        let mut produced: Option<Vec<Interval>> = None;
        let mut written = false;
        for writer in writers {
            for w in writer.block.writes.iter().filter(|w| w.buffer == read.buffer) {
                written = true;
                let Some(new) = region_written(s, writer, w, at, &reader.predicate)? else { continue };
                produced = match produced {
                    None => Some(new),
                    Some(old) => union(&old, &new, outer).or(Some(old)),
                };
            }
        }
        if !written {
            continue;
        }
        let Some(produced) = produced else { return Ok(false) };
        let consumed = region_read(s, reader, read, at, &shape)?;
        if !produced.iter().zip(&consumed).zip(&shape).all(|((p, c), &dim)| p.covers(c, dim, outer)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A block, or the ones inside of it that declare what it touches, where it says nothing of that itself.
fn declaring(realize: &BlockRealize) -> Vec<&BlockRealize> {
    if !declares_nothing(&realize.block) {
        return vec![realize];
    }
    tree::child_realizes(&realize.block.body).into_iter().flat_map(declaring).collect()
}

/// The union of two boxes where it is a box: they differ in one dimension at most.
fn union(a: &[Interval], b: &[Interval], domains: &Domains) -> Option<Vec<Interval>> {
    let differ = a.iter().zip(b).filter(|(x, y)| x != y).count();
    if differ > 1 {
        return None;
    }
    a.iter().zip(b).map(|(x, y)| x.hull(y, domains)).collect()
}

/// The domains of the loops at and above a node.
fn outer_domains(s: &Schedule, at: Node) -> Result<Domains> {
    let mut out = Domains::new();
    for node in s.path(at)? {
        if let Node::Loop(id) = node {
            out.extend(arith::domains(&[s.get_loop(id)?]));
        }
    }
    Ok(out)
}

/// The loops over which a region of `buffer` in `block` is taken together: those below `at`, and thread loops above whose
/// threads share the buffer's memory.
fn relaxed(s: &Schedule, block: BlockId, at: Node, buffer: BufferId) -> Result<Domains> {
    let path = s.path(Node::Block(block))?;
    let below = path.iter().position(|n| *n == at).map_or(0, |i| i + 1);
    let scope = &s.program().buffer(buffer).scope;
    let mut out = Domains::new();
    for (i, node) in path.iter().enumerate() {
        if let Node::Loop(id) = node {
            let l = s.get_loop(*id)?;
            let shared = matches!(&l.kind, ForKind::ThreadBinding(tag) if threads_share(scope, tag));
            if i >= below || shared {
                out.extend(arith::domains(&[l]));
            }
        }
    }
    Ok(out)
}

/// Whether the threads of `tag` see one buffer of memory scope `scope` together. Global memory is not asked for: all
/// threads share it anyway, and its regions are compared per thread.
pub fn threads_share(scope: &str, tag: &str) -> bool {
    if scope == "warp" {
        return tag == "threadIdx.x";
    }
    let storage = match scope {
        "global" => return false,
        s if s.starts_with("shared") => 1,
        "warp" => 2,
        "local" => 3,
        _ => 4,
    };
    let thread = match tag {
        t if t.starts_with("blockIdx") => 0,
        t if t.starts_with("clusterCtaIdx") => 2,
        _ => 1,
    };
    storage <= thread
}

/// A region of a block, in the variables of its loops.
pub fn bound_region(realize: &BlockRealize, region: &Region) -> Vec<Range> {
    let map: HashMap<_, _> =
        realize.block.iter_vars.iter().zip(&realize.iter_values).map(|(iv, e)| (iv.var.id, e.clone())).collect();
    visit::map_region(region, &mut |e| visit::substitute(e, &map)).ranges
}

/// A box that is certainly written below `at` where `reading` holds, if one can be told.
fn region_written(
    s: &Schedule,
    writer: &BlockRealize,
    region: &Region,
    at: Node,
    reading: &Expr,
) -> Result<Option<Vec<Interval>>> {
    let loops = relaxed(s, writer.block.id, at, region.buffer)?;
    let ranges = bound_region(writer, region);
    // A guard that the reader has too, of loops that both share, keeps nothing from it.
    let guards = conjuncts(reading);
    let shared = |c: &Expr| guards.contains(c) && !visit::uses_var(c, &|v| loops.contains_key(&v));
    let predicate = all(conjuncts(&writer.predicate).into_iter().filter(|c| !shared(c)));
    if ranges.iter().any(|r| constant(&r.extent).is_none()) || !arith::fills_boxes(&ranges, &loops, &predicate) {
        return Ok(None);
    }
    // The region of a permuted index is where it may be.
    let mut permuted = false;
    visit::walk_stmt(&writer.block.body, &mut |s| {
        if let Stmt::Store { buffer, indices, .. } = s {
            permuted |= *buffer == region.buffer && indices.iter().any(has_bits);
        }
    });
    if permuted {
        return Ok(None);
    }
    let symbols = Domains::new();
    Ok(ranges.iter().map(|r| Interval::of_range(r, &loops, &symbols)).collect())
}

/// A box that holds everything read below `at`.
fn region_read(s: &Schedule, reader: &BlockRealize, region: &Region, at: Node, shape: &[i64]) -> Result<Vec<Interval>> {
    let loops = relaxed(s, reader.block.id, at, region.buffer)?;
    let ranges = bound_region(reader, region);
    let symbols = Domains::new();
    let of = |(r, &dim)| Interval::of_range(r, &loops, &symbols).unwrap_or_else(|| Interval::whole(dim));
    Ok(ranges.iter().zip(shape).map(of).collect())
}

#[cfg(test)]
mod tests {
    use crate::testing::{block, chain, func, joined, matmul, schedule};
    use crate::{BlockFlags, Schedule};

    const ALL: BlockFlags = BlockFlags { affine_binding: true, region_cover: true, stage_pipeline: true };

    #[test]
    fn plain_programs_have_all() {
        for s in [chain(), joined(), matmul()] {
            assert_eq!(s.flags(s.root()), ALL);
            assert_eq!(s.flags(block(&s, "C")), ALL);
        }
    }

    /// C reads `index` of what B writes in the same iteration of `i`.
    fn reading(index: &str) -> Schedule {
        let body = format!(
            r#"
B = T.sblock_alloc_buffer((16,))
for i in range(4):
    for j in range(4):
        with T.sblock("B"):
            vi = T.axis.spatial(16, i * 4 + j)
            B[vi] = A[vi]
    for j in range(4):
        with T.sblock("C"):
            vi = T.axis.spatial(16, i * 4 + j)
            C[vi] = B[{index}]
"#
        );
        schedule(&func("A: T.Buffer((16,), \"float32\"), C: T.Buffer((16,), \"float32\")", &body))
    }

    #[test]
    fn reads_are_covered_below_the_common_loop() {
        for (index, covered) in [("vi", true), ("vi // 4 * 4", true), ("15 - vi", false), ("vi // 2", false)] {
            let s = reading(index);
            assert_eq!(s.flags(block(&s, "C")).region_cover, covered, "{index}");
            assert_eq!(s.flags(s.root()).stage_pipeline, covered, "{index}");
        }
    }

    #[test]
    fn strided_writes_cover_nothing() {
        let s = schedule(&func(
            "A: T.Buffer((16,), \"float32\"), C: T.Buffer((16,), \"float32\")",
            r#"
B = T.sblock_alloc_buffer((16,))
for i in range(8):
    with T.sblock("B"):
        vi = T.axis.spatial(16, i * 2)
        B[vi] = A[vi]
for i in range(16):
    with T.sblock("C"):
        vi = T.axis.spatial(16, i)
        C[vi] = B[vi]
"#,
        ));
        assert_eq!(s.flags(block(&s, "B")), BlockFlags { affine_binding: false, ..ALL });
        assert!(!s.flags(block(&s, "C")).region_cover);
    }

    #[test]
    fn overwriting_what_was_read_is_no_pipeline() {
        let s = schedule(&func(
            "A: T.Buffer((16,), \"float32\"), B: T.Buffer((16,), \"float32\")",
            r#"
for i in range(16):
    with T.sblock("B"):
        vi = T.axis.spatial(16, i)
        B[vi] = A[vi]
for i in range(16):
    with T.sblock("A"):
        vi = T.axis.spatial(16, i)
        A[vi] = T.float32(0)
"#,
        ));
        assert!(!s.flags(s.root()).stage_pipeline);
    }
}
