//! The program whose steps are dealt out: a nest that stores parts of tiles, and one that adds them.
use super::super::lanes::{chain, is_held};
use super::super::matrix::named;
use super::super::nest::flag;
use super::super::raster::Raster;
use super::super::tensor_memory::is_tensor;
use super::{Dealt, Pieces};
use satune_ir::affine::{self, constant, floor_div, floor_mod, int};
use satune_ir::term::tensor::StreamK;
use satune_ir::{
    visit, Annotations, Attr, BinOp, Block, BlockRealize, Buffer, BufferId, DType, Expr, For, ForKind, IterKind,
    IterVar, Program, Range, Region, Stmt as Node, Var,
};
use satune_rewrites::intrinsics::INTRINSIC;
use satune_rewrites::keys;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Threads of a block that adds parts.
const THREADS: i64 = 256;

/// Where a program asks for dealt steps: the loop's name, the number of its nest, and the program in which they are, with what the kernel
/// of that number and the next one have; or why there is none.
pub struct Asked {
    pub name: String,
    pub nest: usize,
    pub dealt: Result<(Program, [Dealt; 2]), String>,
}

/// The first loop of a program that asks for dealt steps.
pub fn asked(program: &Program) -> Option<Asked> {
    let body = program.body.block.body.as_ref();
    let parts = match body {
        Node::Seq(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    parts.iter().enumerate().find_map(|(nest, part)| {
        let mut name = None;
        visit::walk_stmt(part, &mut |s| match s {
            Node::For(l) if name.is_none() && flag(&l.annotations, keys::STREAM_K) => {
                name = Some(l.var.name.to_string())
            }
            _ => {}
        });
        let dealt = |product: Product| {
            let mut out = program.clone();
            let (two, dealt) = product.dealt(&mut out);
            let mut all = parts.to_vec();
            all.splice(nest..=nest, two);
            *out.body.block.body = Node::seq(all);
            (out, dealt)
        };
        Some(Asked { name: name?, nest, dealt: Product::of(program, part).map(dealt).map_err(String::from) })
    })
}

/// A nest whose steps can be dealt out.
struct Product<'p> {
    blocks: &'p For,
    stream: StreamK,
    /// Loops of threads around all that a block does.
    threads: Vec<(&'p For, i64)>,
    /// Its statements: clears the sums, adds to them, stores what is computed of them.
    body: &'p [Node; 3],
    store: Store<'p>,
}

/// The statement that stores results.
struct Store<'p> {
    loops: Vec<(&'p For, i64)>,
    realize: &'p BlockRealize,
    buffer: BufferId,
    indices: &'p [Expr],
    value: &'p Expr,
    /// What it reads of the sums, and their type.
    sums: (BufferId, Vec<Expr>),
    sums_type: DType,
}

impl<'p> Product<'p> {
    fn of(program: &'p Program, part: &'p Node) -> Result<Product<'p>, &'static str> {
        let of_blocks = |l: &For| matches!(&l.kind, ForKind::ThreadBinding(tag) if tag == "blockIdx.x");
        let Node::For(blocks) = part else { return Err("it is not the outermost loop") };
        if !of_blocks(blocks) || !flag(&blocks.annotations, keys::STREAM_K) {
            return Err("it is no outermost loop of blocks along blockIdx.x");
        }
        let number = |key: &str| match blocks.annotations.get(key) {
            Some(Attr::Int(n)) => *n,
            _ => 0,
        };
        if number(keys::CLUSTER_M).max(1).saturating_mul(number(keys::CLUSTER_N).max(1)) > 1 {
            return Err("blocks of a cluster take whole tiles together");
        }
        if flag(&blocks.annotations, keys::PING_PONG) {
            return Err("teams that take turns take whole tiles");
        }
        let tiles = from_zero(blocks).ok_or("it has no constant extent")?;
        let (mut threads, mut inside) = (Vec::new(), blocks.body.as_ref());
        while let Node::For(l) = inside {
            match &l.kind {
                ForKind::ThreadBinding(tag) if tag.starts_with("threadIdx.") => {
                    threads.push((l, from_zero(l).ok_or("threads have no constant extent")?));
                }
                _ => return Err("there are loops around all that is done of a tile"),
            }
            inside = &l.body;
        }
        let three = match inside {
            Node::Seq(parts) => <&[Node; 3]>::try_from(parts.as_slice()).ok(),
            _ => None,
        };
        let body = three.ok_or("a tile has more, or less, than sums that are cleared, a loop along k, and results")?;
        let [clear, along, results] = body;
        let store = Store::of(program, results)?;
        let steps = match along {
            Node::For(l) if matches!(l.kind, ForKind::Serial) => from_zero(l),
            _ => None,
        };
        let steps = steps.ok_or("the sums are added up in no loop of constant extent")?;
        if !clears(clear, store.sums.0) {
            return Err("the sums do not begin at 0");
        }
        if !only_adds(program, along, [clear, results], store.sums.0) {
            return Err("its loop along k does more than add to the sums");
        }
        let stream = StreamK { blocks: number(keys::PERSISTENT), tiles, steps };
        let total = tiles.checked_mul(steps).filter(|total| *total < 1 << 30).ok_or("there are too many steps")?;
        match stream.blocks {
            ..=0 => Err("satune.persistent does not say how many blocks there are"),
            blocks if blocks > total => Err("there are fewer steps than blocks"),
            _ => Ok(Product { blocks, stream, threads, body, store }),
        }
    }

    /// The two nests, and what each has beside its statements.
    fn dealt(&self, program: &mut Program) -> ([Node; 2], [Dealt; 2]) {
        let index = self.blocks.var.dtype;
        let [part, done, from, steps] =
            ["part", "steps_done", "step_of_tile", "steps"].map(|name| program.fresh_var(name, index));
        let number = program.fresh_var("number", index);
        let (stream, dtype) = (self.stream, self.store.sums_type);
        let elements = self.digits().iter().fold(1_i64, |all, (_, extent)| all.saturating_mul(*extent));
        let shape = [stream.parts(), stream.tiles, elements].map(|n| int(n, index)).to_vec();
        let partial = program.add_buffer(Buffer::plain("partial", dtype, shape, "global"));
        let sum = program.add_buffer(Buffer::plain("sum", dtype, vec![int(1, index)], "local"));
        program.body.block.alloc_buffers.extend([partial, sum]);
        let multiplies = self.multiplies(program, partial, &part);
        let adds = self.adds(program, (partial, sum), (&number, elements));
        let pieces = Pieces { stream, part: part.id, done: done.id, from: from.id, steps: steps.id };
        ([multiplies, adds], [Dealt::Steps(pieces), Dealt::Parts(number.id, stream.tiles)])
    }

    /// Loops over the elements of a tile, outermost first.
    fn digits(&self) -> Vec<(&'p For, i64)> {
        self.threads.iter().chain(&self.store.loops).copied().collect()
    }

    /// The nest with parts of tiles in place of results.
    fn multiplies(&self, program: &mut Program, partial: BufferId, part: &Var) -> Node {
        let index = self.blocks.var.dtype;
        let mut realize = self.store.realize.clone();
        // Where in the tile an element is, in iterators of the block.
        let mut place = int(0, index);
        let mut iter = |l: &For, extent: i64| {
            let var = program.fresh_var(format!("v_{}", l.var.name), index);
            let (min, extent) = (int(0, index), int(extent, index));
            realize.block.iter_vars.push(IterVar { var: var.clone(), min, extent, kind: IterKind::Spatial });
            realize.iter_values.push(Expr::Var(l.var.clone()));
            Expr::Var(var)
        };
        let tile = iter(self.blocks, self.stream.tiles);
        for (l, extent) in self.digits() {
            place = affine::add(affine::mul(place, int(extent, index)), iter(l, extent));
        }
        let indices = vec![Expr::Var(part.clone()), tile, place];
        let point = |e: &Expr| Range { min: e.clone(), extent: int(1, index) };
        let (sums, at) = self.store.sums.clone();
        let block = &mut realize.block;
        block.name = "partial".into();
        block.annotations.clear();
        block.reads = vec![Region { buffer: sums, ranges: at.iter().map(point).collect() }];
        block.writes = vec![Region { buffer: partial, ranges: indices.iter().map(point).collect() }];
        *block.body = Node::Store { buffer: partial, indices, value: Expr::Load(sums, at) };
        let within = |body: Node, l: &For| Node::For(For { body: body.into(), ..l.clone() });
        let store = self.store.loops.iter().rev().fold(Node::Realize(realize.into()), |body, (l, _)| within(body, l));
        let [clear, along, _] = self.body.clone();
        let body = self.threads.iter().rev().fold(Node::Seq(vec![clear, along, store]), |body, (l, _)| within(body, l));
        within(body, self.blocks)
    }

    /// The nest that adds the parts of each tile.
    fn adds(
        &self,
        program: &mut Program,
        (partial, sum): (BufferId, BufferId),
        (number, elements): (&Var, i64),
    ) -> Node {
        let index = self.blocks.var.dtype;
        let of = |n: i64| int(n, index);
        let [tile, lines, thread, part] = ["tile", "line", "thread", "part"].map(|name| program.fresh_var(name, index));
        let by_thread = (elements + THREADS - 1) / THREADS;
        let place = affine::add(affine::mul(Expr::Var(lines.clone()), of(THREADS)), Expr::Var(thread.clone()));
        // What the program's variables are, of an element of a tile.
        let (mut values, mut unit) = (HashMap::from([(self.blocks.var.id, Expr::Var(tile.clone()))]), elements);
        for (l, extent) in self.digits() {
            unit /= extent;
            let digit = floor_mod(floor_div(place.clone(), unit, index), extent, index);
            values.insert(
                l.var.id,
                if unit * extent == elements { floor_div(place.clone(), unit, index) } else { digit },
            );
        }
        let store = &self.store;
        let block = &store.realize.block;
        let mut exists = visit::substitute(&store.realize.predicate, &values);
        if elements % THREADS != 0 {
            exists = affine::and(affine::lt(place.clone(), of(elements)), exists);
        }
        let iters = block.iter_vars.iter().zip(&store.realize.iter_values);
        let iters: Vec<_> = iters.map(|(iv, value)| (iv.var.id, visit::substitute(value, &values))).collect();
        values.extend(iters);
        let first = || vec![of(0)];
        let so_far = || Expr::Load(sum, first());
        let mut one = |name: &str, body: Node| {
            Node::Realize(BlockRealize::single(Block::plain(program.fresh_block(), name, body)).into())
        };
        let dtype = store.sums_type;
        let zero = if dtype.is_float() { Expr::Float(0, dtype) } else { Expr::Int(0, dtype) };
        let clear = one("sum_init", Node::Store { buffer: sum, indices: first(), value: zero });
        // Tiles are dealt out by the numbers that blocks have before they are told another order.
        let by_number = Raster::of(&self.blocks.annotations, self.stream.tiles).map_or(&tile, |_| number);
        let [from, last] = [0, self.stream.steps - 1].map(|step| {
            let first = affine::mul(Expr::Var(by_number.clone()), of(self.stream.steps));
            block_of(&self.stream, affine::add(first, of(step)), index)
        });
        let at = vec![Expr::Var(part.clone()), Expr::Var(tile.clone()), place];
        let value = binary(BinOp::Add, so_far(), Expr::Load(partial, at));
        let more = one("sum", Node::Store { buffer: sum, indices: first(), value });
        let is_part = affine::lt(affine::add(Expr::Var(part.clone()), from), affine::add(last, of(1)));
        let more = Node::If { cond: is_part, then: more.into(), otherwise: None };
        let serial = |var: Var, extent: i64, kind: ForKind, annotations: Annotations, body: Node| {
            Node::For(For { var, min: of(0), extent: of(extent), kind, annotations, body: body.into() })
        };
        let more = serial(part, self.stream.parts(), ForKind::Serial, Annotations::new(), more);
        let value = visit::replace_loads(store.value, store.sums.0, &mut |_| so_far());
        let indices = store.indices.iter().map(|e| visit::substitute(e, &values)).collect();
        let result = Node::Store { buffer: store.buffer, indices, value: visit::substitute(&value, &values) };
        let result = one(&block.name, result);
        let body = Node::Seq(vec![clear, more, result]);
        let body = match constant(&exists) {
            Some(1) => body,
            _ => Node::If { cond: exists, then: body.into(), otherwise: None },
        };
        let bound = |tag: &str| ForKind::ThreadBinding(tag.into());
        let body = serial(thread, THREADS, bound("threadIdx.x"), Annotations::new(), body);
        let body = serial(lines, by_thread, bound("blockIdx.y"), Annotations::new(), body);
        let mut order = self.blocks.annotations.clone();
        order.retain(|key, _| [keys::RASTER_ROWS, keys::RASTER_COLUMNS, keys::RASTER_TILES].contains(&key.as_str()));
        serial(tile, self.stream.tiles, bound("blockIdx.x"), order, body)
    }
}

impl<'p> Store<'p> {
    fn of(program: &Program, results: &'p Node) -> Result<Store<'p>, &'static str> {
        let (loops, _, realize) = chain(results).ok_or("its results are stored by no single statement")?;
        let Node::Store { buffer, indices, value } = realize.block.body.as_ref() else {
            return Err("its results are stored by no single statement");
        };
        let is_global = program.buffer(*buffer).scope == "global";
        let loads = visit::loads(value);
        let is_sums = |scope: &str| is_held(scope) || is_tensor(scope);
        let (held, others): (Vec<_>, Vec<_>) = loads.into_iter().partition(|(b, _)| is_sums(&program.buffer(*b).scope));
        let elsewhere = others.iter().any(|(b, _)| program.buffer(*b).scope != "global");
        let in_place = indices.iter().all(|e| visit::loads(e).is_empty());
        match held.as_slice() {
            [] => Err("its results go by way of shared memory, or are no sums of registers"),
            [sums, more @ ..] if is_global && !elsewhere && in_place && more.iter().all(|other| other == sums) => {
                let (sums, sums_type) = (sums.clone(), program.buffer(sums.0).dtype);
                Ok(Store { loops, realize, buffer: *buffer, indices, value, sums, sums_type })
            }
            _ => Err("its results are computed of more than a sum and global memory"),
        }
    }
}

/// The constant extent of a loop that counts from 0 on.
fn from_zero(l: &For) -> Option<i64> {
    constant(&l.extent).filter(|n| (1..1 << 30).contains(n) && constant(&l.min) == Some(0))
}

/// Whether a statement does nothing but set sums to 0.
fn clears(stmt: &Node, sums: BufferId) -> bool {
    let (mut any, mut all) = (false, true);
    visit::walk_stmt(stmt, &mut |s| match s {
        Node::Store { buffer, value, .. } => {
            any = true;
            all &= *buffer == sums && matches!(value, Expr::Int(0, _) | Expr::Float(0, _));
        }
        Node::Realize(r) => all &= r.block.init.is_none(),
        _ => {}
    });
    any && all
}

/// How often statements read a buffer.
fn reads(stmt: &Node, buffer: BufferId) -> usize {
    let mut count = 0;
    visit::walk_stmt_exprs(stmt, &mut |e| count += visit::loads(e).iter().filter(|(b, _)| *b == buffer).count());
    count
}

/// Whether a loop does nothing but add to sums by instructions: what else it writes nobody reads outside of it.
fn only_adds(program: &Program, along: &Node, outside: [&Node; 2], sums: BufferId) -> bool {
    let (mut all, mut written, mut stores, mut additions) = (true, HashSet::new(), 0, 0);
    let mut block = |r: &BlockRealize| {
        all &= r.block.init.is_none();
        let Some(Attr::Str(name)) = r.block.annotations.get(INTRINSIC) else { return };
        if !named(name).is_some_and(|what| what.multiplies()) {
            return;
        }
        visit::walk_stmt(&r.block.body, &mut |s| {
            let Node::Store { buffer, indices, value: Expr::Binary(BinOp::Add, a, b) } = s else { return };
            let is_sum = |e: &Expr| matches!(e, Expr::Load(b, at) if b == buffer && at == indices);
            additions += usize::from(*buffer == sums && (is_sum(a) || is_sum(b)));
        });
    };
    visit::walk_stmt(along, &mut |s| match s {
        Node::Store { buffer, .. } if *buffer == sums => stores += 1,
        Node::Store { buffer, .. } => {
            written.insert(*buffer);
        }
        Node::Realize(r) => block(r),
        _ => {}
    });
    let on_chip = |b: &BufferId| program.buffer(*b).scope != "global" && outside.iter().all(|s| reads(s, *b) == 0);
    all && additions > 0 && stores == additions && reads(along, sums) == additions && written.iter().all(on_chip)
}

fn binary(op: BinOp, a: Expr, b: Expr) -> Expr {
    Expr::Binary(op, Arc::new(a), Arc::new(b))
}

/// The block of a step, as an expression.
fn block_of(stream: &StreamK, step: Expr, index: DType) -> Expr {
    let (each, more) = stream.each();
    if more == 0 {
        return floor_div(step, each, index);
    }
    // Those of one step more come first.
    let larger = more * (each + 1);
    let low = binary(BinOp::Min, step.clone(), int(larger, index));
    let rest = binary(BinOp::Sub, step, int(larger, index));
    let rest = binary(BinOp::Max, rest, int(0, index));
    affine::add(floor_div(low, each + 1, index), floor_div(rest, each, index))
}
