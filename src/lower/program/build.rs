//! From a part of a program to a nest: statement by statement, with the loops and conditions around it.
use super::allreduce::Reduction;
use super::by_box::BOX;
use super::cropped;
use super::error::{At, LowerError};
use super::group;
use super::lanes::{self, is_held};
use super::linear::{Atom, Linear};
use super::matrix::{self, is_fragment};
use super::nest::{flag, Leaf, Loop, LoopKind, Nest, Node, VThread};
use super::pinned;
use super::places::Written;
use super::pred::{join, Pred};
use super::raster::Raster;
use super::stream_k::Dealt;
use satune_ir::{
    tvmscript, visit, Annotations, Attr, BlockRealize, Buffer, BufferId, DType, Expr, For, ForKind, IterKind, Program,
    Stmt, Var, VarId,
};
use satune_rewrites::intrinsics::INTRINSIC;
use satune_rewrites::keys;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What surrounds a statement.
#[derive(Clone, Default)]
pub(super) struct Around {
    /// What variables of the program are, in variables of the nest.
    pub values: HashMap<VarId, Expr>,
    pub guards: Vec<Pred>,
    pub vthreads: Vec<VarId>,
    pub block: String,
    pub annotations: Arc<Annotations>,
    /// Iterators of the block, with their numbers of values.
    pub iters: Vec<(VarId, i64)>,
    /// Whether a loop bound to blockIdx or threadIdx is outside.
    pub bound: bool,
    /// Whether it is a multiplication of a whole warp.
    pub multiplies: bool,
    /// Whether loops over elements that lanes hold are those of each lane already.
    pub of_own_lane: bool,
}

impl Around {
    /// The same place, reached by all threads whatever the conditions.
    pub fn unguarded(&self) -> Around {
        Around { guards: Vec::new(), annotations: Arc::default(), bound: true, ..self.clone() }
    }
}

/// Blocks of a cluster that every GPU with clusters runs, at most.
const MOST_CLUSTER: i64 = 8;
/// Characters of a call that are told.
const MOST_TEXT: usize = 80;

/// Annotations that lowering follows.
const FOLLOWED: &[&str] = &[
    keys::PIPELINE_STAGE,
    keys::PIPELINE_ORDER,
    keys::PIPELINE_ASYNC,
    keys::LOCAL_STAGE,
    keys::OLD_LOCAL_STAGE,
    "pragma_auto_unroll_max_step",
    "pragma_unroll_explicit",
    "buffer_dim_align",
    satune_rewrites::space::IN_ORDER,
    keys::LDMATRIX,
    keys::STMATRIX,
    keys::ROLLED,
    keys::SLACK,
    keys::STEP,
    keys::DESCENDING,
    keys::SERPENTINE,
    keys::PAIRS,
    keys::PREFETCH,
    keys::MIN_BLOCKS,
    // What loops do by themselves.
    keys::RASTER_ROWS,
    keys::RASTER_COLUMNS,
    keys::RASTER_TILES,
    keys::PERSISTENT,
    keys::PING_PONG,
    keys::STREAM_K,
    keys::CLUSTER_M,
    keys::CLUSTER_N,
    keys::TMA,
    keys::EAGER_RELEASE,
    keys::ARRIVE_PER_WARP,
    keys::CROPPED,
    keys::COPY_BYTES,
    BOX,
    INTRINSIC,
];

/// A call for its effect, which is none of an intrinsic's.
fn unknown(program: &Program, call: &Expr, block: &str) -> LowerError {
    let text = tvmscript::expression(program, call);
    let short: String = text.chars().take(MOST_TEXT).collect();
    LowerError::Unsupported {
        what: format!("the call {short}{}", if short.len() < text.len() { " .." } else { "" }),
        place: At::block(block),
        remedy: "blocks hold plain stores, or what an intrinsic is implemented by, as tensorize writes it".into(),
    }
}

/// Such calls are told before what stands around them.
fn calls_are_known(program: &Program, stmt: &Stmt) -> Result<(), LowerError> {
    let (mut block, mut failed) = (String::new(), None);
    visit::walk_stmt(stmt, &mut |s| match s {
        Stmt::Realize(r) => block.clone_from(&r.block.name),
        Stmt::Evaluate(call) if !matches!(call, Expr::Int(..)) && failed.is_none() => {
            failed = Some(unknown(program, call, &block));
        }
        _ => {}
    });
    failed.map_or(Ok(()), Err)
}

/// Takes a top-level statement of the root block apart. `program` has the buffers that its reductions need.
pub fn build(
    program: &Program,
    stmt: &Stmt,
    reductions: &[Reduction],
    dealt: Option<Dealt>,
) -> Result<Nest, LowerError> {
    calls_are_known(program, stmt)?;
    let ranges = dealt.iter().map(Dealt::free).map(|(v, extent)| (v, (0, extent - 1))).collect();
    let nest = Nest {
        next_var: program.next_var,
        roles: lanes::roles(program, stmt)?,
        lanes: group::lanes(stmt)?,
        ranges,
        dealt,
        ..Nest::default()
    };
    let mut builder = Builder {
        program,
        nest,
        reductions,
        begun: HashSet::new(),
        partials: HashMap::new(),
        own_tiles: HashMap::new(),
    };
    if !reductions.is_empty() {
        builder.note_threads(stmt)?;
    }
    let body = builder.stmt(stmt, &Around::default())?;
    let mut nest = builder.nest;
    nest.body = body;
    pinned::pin(&mut nest, program);
    matrix::lanes(&mut nest)?;
    Ok(nest)
}

pub(super) struct Builder<'p> {
    pub program: &'p Program,
    pub nest: Nest,
    /// Reductions over threads.
    pub reductions: &'p [Reduction<'p>],
    /// Those whose loops have begun.
    pub begun: HashSet<usize>,
    /// The vthreads that tell the partial results of each apart.
    pub partials: HashMap<usize, Vec<Expr>>,
    /// What names the warp in a dimension of a buffer that lanes hold.
    pub own_tiles: HashMap<(BufferId, usize), Expr>,
}

impl Builder<'_> {
    pub fn stmt(&mut self, stmt: &Stmt, around: &Around) -> Result<Vec<Node>, LowerError> {
        match stmt {
            Stmt::For(l) => match self.over_lanes(stmt, around)? {
                Some(nodes) => Ok(nodes),
                None => self.for_loop(l, around),
            },
            Stmt::Realize(r) => match self.over_lanes(stmt, around)? {
                Some(nodes) => Ok(nodes),
                None => self.realize(r, around),
            },
            Stmt::Seq(parts) => {
                let mut nodes = Vec::new();
                for part in parts {
                    nodes.extend(self.stmt(part, around)?);
                }
                Ok(nodes)
            }
            Stmt::Store { buffer, indices, value } => self.store(*buffer, indices, value, around),
            Stmt::If { cond, then, otherwise } => {
                let clauses = self.clauses(cond, around)?;
                let mut inside = around.clone();
                join(&mut inside.guards, clauses.clone());
                let mut nodes = self.stmt(then, &inside)?;
                if let Some(other) = otherwise {
                    let mut outside = around.clone();
                    join(&mut outside.guards, Pred::negated(clauses));
                    nodes.extend(self.stmt(other, &outside)?);
                }
                Ok(nodes)
            }
            Stmt::Let { var, value, body } => {
                let mut inside = around.clone();
                inside.values.insert(var.id, visit::substitute(value, &around.values));
                self.stmt(body, &inside)
            }
            Stmt::Evaluate(Expr::Int(..)) => Ok(Vec::new()),
            Stmt::Evaluate(call) => Err(unknown(self.program, call, &around.block)),
        }
    }

    /// Says which annotations change nothing.
    fn note(&mut self, annotations: &Annotations, of: &str) {
        let unknown = annotations.keys().filter(|k| !FOLLOWED.contains(&k.as_str()));
        let mut notes: Vec<String> = unknown.map(|key| format!("annotation {key} of {of} is ignored")).collect();
        if annotations.get(keys::PREFETCH).is_some_and(|bytes| !matches!(bytes, Attr::Int(0 | 64 | 128 | 256))) {
            notes.push(format!("annotation {} of {of} is ignored: it is 64, 128 or 256 bytes", keys::PREFETCH));
        }
        notes.retain(|note| !self.nest.notes.contains(note));
        self.nest.notes.extend(notes);
    }

    fn constant(&self, e: &Expr, around: &Around, what: &str) -> Result<i64, LowerError> {
        Linear::of_expr(&visit::substitute(e, &around.values), &self.nest.ranges)
            .and_then(|l| l.as_constant())
            .ok_or_else(|| LowerError::Unsupported {
                what: format!("{what} that is no constant"),
                place: At::block(&around.block),
                remedy: "give shapes and loops constant extents".into(),
            })
    }

    /// Whether a loop is pipelined that loads what a warp multiplies, or whose tiles a producer may bring.
    fn loads_ahead(&self, l: &For) -> bool {
        let multiplied = |b: &Buffer| is_fragment(&b.scope) || is_held(&b.scope);
        let mut found = false;
        if l.annotations.contains_key(keys::PIPELINE_STAGE) {
            visit::walk_stmt(&l.body, &mut |s| match s {
                Stmt::Store { buffer, .. } => {
                    found |= self.program.buffers.get(buffer.0 as usize).is_some_and(multiplied);
                }
                Stmt::Realize(r) => found |= r.block.annotations.contains_key(keys::TMA),
                _ => {}
            });
        }
        found
    }

    pub fn clauses(&self, cond: &Expr, around: &Around) -> Result<Vec<Pred>, LowerError> {
        let cond = visit::substitute(cond, &around.values);
        let form = |e: &Expr| Linear::of_index(e, &self.nest.ranges, self.program);
        Pred::clauses_of(&cond, &form, &self.nest.ranges).ok_or_else(|| LowerError::Unsupported {
            what: "a condition that is not on integers".into(),
            place: At::block(&around.block),
            remedy: "write it as T.Select on the value".into(),
        })
    }

    pub fn for_loop(&mut self, l: &For, around: &Around) -> Result<Vec<Node>, LowerError> {
        let begins = self.reduction_of_loop(l);
        if !begins.is_empty() {
            return self.reduced(l, begins, around);
        }
        let steps = match visit::loads(&l.extent).is_empty() || !around.vthreads.is_empty() {
            true => None,
            false => {
                let steps = visit::substitute(&l.extent, &around.values);
                let form = Linear::of_index(&steps, &self.nest.ranges, self.program);
                form.map(|form| Box::new((form, around.guards.clone())))
            }
        };
        let extent = match &steps {
            Some(steps) => steps.0.range(&self.nest.ranges).1.clamp(2, (1 << 31) - 1),
            None => self.constant(&l.extent, around, &format!("loop {} with an extent", l.var.name))?,
        };
        if !(0..1 << 31).contains(&extent) {
            return Err(LowerError::Overflow { what: format!("loop {}: extent {extent}", l.var.name) });
        }
        self.note(&l.annotations, &format!("loop {}", l.var.name));
        if let Some(Attr::Int(blocks @ 1..)) = l.annotations.get(keys::MIN_BLOCKS) {
            self.nest.min_blocks = u32::try_from(*blocks).ok();
        }
        let along = |key| match l.annotations.get(key) {
            Some(Attr::Int(blocks @ 1..=MOST_CLUSTER)) => Some(*blocks),
            _ => None,
        };
        if let (Some(m), Some(n)) = (along(keys::CLUSTER_M), along(keys::CLUSTER_N)) {
            self.nest.cluster = Some([m, n]).filter(|_| (2..=MOST_CLUSTER).contains(&(m * n)));
        }
        self.nest.asks_for_turns |= flag(&l.annotations, keys::PING_PONG);
        self.nest.raster = self.nest.raster.or_else(|| Raster::of(&l.annotations, extent));
        let mut inside = around.clone();
        let min = visit::substitute(&l.min, &around.values);
        let mut bind = |v: VarId| {
            let var = Expr::Var(Var { id: v, name: l.var.name.clone(), dtype: l.var.dtype });
            let value = match &min {
                Expr::Int(0, _) => var,
                min => Expr::Binary(satune_ir::BinOp::Add, Arc::new(min.clone()), Arc::new(var)),
            };
            inside.values.insert(l.var.id, value);
        };
        match &l.kind {
            ForKind::ThreadBinding(tag) if tag.starts_with("vthread") || tag == "cthread" => {
                let v = self.nest.fresh(extent);
                bind(v);
                if extent > 1 {
                    self.nest.vthreads.push(VThread { var: v, name: l.var.name.to_string(), extent });
                    inside.vthreads.push(v);
                } else {
                    inside.values.insert(l.var.id, min);
                }
                return self.stmt(&l.body, &inside);
            }
            ForKind::ThreadBinding(tag) => {
                let walkers = self.walkers(l, tag, extent, around);
                let v = match walkers {
                    Some(_) => self.nest.fresh(extent),
                    None => self.thread(tag, extent, &l.var.name)?,
                };
                bind(v);
                inside.bound = true;
                return match walkers {
                    Some(blocks) => self.in_turns(l, (v, extent), blocks, &inside),
                    None => self.stmt(&l.body, &inside),
                };
            }
            ForKind::Parallel => {
                return Err(LowerError::Unsupported {
                    what: format!("parallel loop {}", l.var.name),
                    place: At::default(),
                    remedy: "bind it to blockIdx or threadIdx".into(),
                })
            }
            _ if extent == 0 => return Ok(Vec::new()),
            // What is loaded a step ahead may be of the next tile.
            _ if extent == 1 && !self.loads_ahead(l) => {
                inside.values.insert(l.var.id, min);
                return self.stmt(&l.body, &inside);
            }
            _ => {}
        }
        let v = self.nest.fresh(extent);
        bind(v);
        let kind = match l.kind {
            ForKind::Vectorized => LoopKind::Vectorized,
            ForKind::Unrolled => LoopKind::Unrolled,
            _ => LoopKind::Serial,
        };
        let (mut body, mut child_sizes) = (Vec::new(), Vec::new());
        let children = match l.body.as_ref() {
            Stmt::Seq(parts) => parts.iter().collect(),
            one => vec![one],
        };
        for child in children {
            let nodes = self.stmt(child, &inside)?;
            child_sizes.push(nodes.len());
            body.extend(nodes);
        }
        let (name, annotations) = (l.var.name.to_string(), l.annotations.clone());
        Ok(vec![Node::Loop(Loop { var: v, name, extent, steps, kind, annotations, body, child_sizes })])
    }

    fn realize(&mut self, r: &BlockRealize, around: &Around) -> Result<Vec<Node>, LowerError> {
        let block = &r.block;
        self.note(&block.annotations, &format!("block {}", block.name));
        let mut inside = around.clone();
        inside.block.clone_from(&block.name);
        inside.annotations = Arc::new(block.annotations.clone());
        inside.iters.clear();
        join(&mut inside.guards, self.clauses(&r.predicate, around)?);
        let intrinsic = match block.annotations.get(INTRINSIC) {
            Some(Attr::Str(name)) => Some((name, matrix::named(name))),
            _ => None,
        };
        inside.multiplies |= matches!(&intrinsic, Some((_, Some(what))) if what.is_of_lanes());
        let over_threads = self.reduction_of_block(r);
        let mut first = Vec::new();
        for (iv, value) in block.iter_vars.iter().zip(&r.iter_values) {
            let value = visit::substitute(value, &around.values);
            if iv.kind == IterKind::Reduce && over_threads.is_none() {
                if let Some(t) = self.nest.threads.iter().find(|t| visit::uses_var(&value, &|v| v == t.var)) {
                    let why = format!(
                        "its reduction iterator {} depends on {} in a way that is not lowered",
                        iv.var.name, t.tag
                    );
                    return Err(LowerError::CrossThread { block: block.name.clone(), why });
                }
                if block.init.is_some() {
                    let at = Linear::of_expr(&value, &self.nest.ranges);
                    let min = self.constant(&iv.min, around, "an iterator with a first value")?;
                    let at = at.ok_or_else(|| self.strange_index(&value, &block.name))?;
                    first.extend(Pred::eq(&at.shifted(-min), &self.nest.ranges));
                }
            }
            inside.values.insert(iv.var.id, value);
            if let (Expr::Int(0, _), Expr::Int(extent, _)) = (&iv.min, &iv.extent) {
                inside.iters.push((iv.var.id, *extent));
            }
        }
        if let Some(i) = over_threads {
            return self.update_partial(i, &inside);
        }
        let mut nodes = Vec::new();
        if let Some(init) = &block.init {
            let mut at_first = inside.clone();
            join(&mut at_first.guards, first);
            nodes.extend(self.stmt(init, &at_first)?);
        }
        nodes.extend(self.stmt(&cropped::without_edge(block), &inside)?);
        match intrinsic {
            Some((_, Some(instruction))) => matrix::mark(&mut nodes, instruction, &inside)?,
            Some((name, None)) if !self.of_lanes(&r.block.body) => {
                self.nest.notes.push(format!("{name} of block {} is computed element by element", block.name));
            }
            _ => {}
        }
        Ok(nodes)
    }

    fn strange_index(&self, index: &Expr, block: &str) -> LowerError {
        let index = tvmscript::expression(self.program, index);
        LowerError::Unsupported {
            what: format!("index {index}, which is no integer arithmetic on loop variables and elements,"),
            place: At::block(block),
            remedy: "indices may use +, -, *, //, %, min, max and bit operations, of values that fit their type".into(),
        }
    }

    pub fn forms(&self, indices: &[Expr], block: &str) -> Result<Vec<Linear>, LowerError> {
        let form = |e: &Expr| Linear::of_index(e, &self.nest.ranges, self.program);
        indices.iter().map(|e| form(e).ok_or_else(|| self.strange_index(e, block))).collect()
    }

    /// What data index has addresses.
    fn require_addresses<'a>(
        &self,
        mut accesses: impl Iterator<Item = &'a (BufferId, Vec<Linear>)>,
        around: &Around,
    ) -> Result<(), LowerError> {
        let of_data = |(b, at): &&(BufferId, Vec<Linear>)| {
            let elsewhere = self.program.buffers.get(b.0 as usize).is_some_and(|b| b.scope != "global");
            at.iter().any(Linear::is_data) && elsewhere
        };
        let Some((b, _)) = accesses.find(of_data) else { return Ok(()) };
        let name = &self.program.buffer(*b).name;
        Err(LowerError::Unsupported {
            what: format!("buffer {name} indexed by data, in shared or local memory"),
            place: At::block(&around.block),
            remedy: "keep it in global memory".into(),
        })
    }

    pub fn store(
        &mut self,
        buffer: BufferId,
        indices: &[Expr],
        value: &Expr,
        around: &Around,
    ) -> Result<Vec<Node>, LowerError> {
        if around.guards.contains(&Pred::Never) {
            return Ok(Vec::new());
        }
        if !around.bound {
            return Err(LowerError::NotBound { what: format!("block {}", around.block) });
        }
        let written = Written::of((indices, value), around, &self.nest.ranges);
        let indices: Vec<Expr> = indices.iter().map(|e| visit::substitute(e, &around.values)).collect();
        let indices = self.of_own_lane(buffer, indices, around)?;
        let value = self.of_own_lanes(visit::substitute(value, &around.values), around)?;
        let at = self.forms(&indices, &around.block)?;
        let mut reads = Vec::new();
        for (b, idx) in indices.iter().chain([&value]).flat_map(visit::loads) {
            reads.push((b, self.forms(&idx, &around.block)?));
        }
        let mut guarding = Vec::new();
        around.guards.iter().for_each(|p| p.loads(&mut guarding));
        for atom in guarding {
            let Atom::Load(b, _, at) = atom else { continue };
            if !reads.contains(&(b, at.clone())) {
                reads.push((b, at));
            }
        }
        self.require_addresses(reads.iter().chain([&(buffer, at.clone())]), around)?;
        let known = |b: BufferId| self.program.buffers.get(b.0 as usize).is_some_and(|x| x.dtype != DType::Handle);
        if !known(buffer) || !reads.iter().all(|(b, _)| known(*b)) {
            return Err(LowerError::Unsupported {
                what: "an access through a pointer".into(),
                place: At::block(&around.block),
                remedy: "index the buffer itself".into(),
            });
        }
        self.nest.leaves += 1;
        Ok(vec![Node::Leaf(Box::new(Leaf {
            id: self.nest.leaves,
            block: around.block.clone(),
            annotations: around.annotations.clone(),
            guards: around.guards.clone(),
            target: buffer,
            at,
            value,
            reads,
            written,
            vthreads: around.vthreads.clone(),
            instruction: None,
        }))])
    }
}
