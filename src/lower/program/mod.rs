//! Lowering of scheduled programs: from loops that are bound to threads, and blocks over buffers, to kernels.
//!
//! Each top-level nest of the root block becomes a kernel. The passes, one file each:
//! [`build`](self) dissolves blocks and replaces bound loops by thread indices; `vthread` moves vthread loops to the
//! statements that depend on them; `pinned` replaces indices that have one value; `pipeline` finds software pipelines; `layout` allocates of each buffer on the chip
//! only what is alive; `deciding` refuses stores that data of several threads decide; `allreduce`, `team` and `combine` make reductions
//! over threads; `guards` proves which guards can go, `ends` which laps need none; `shared` gives buffers their bytes; `barrier` places
//! barriers; `emit`, `leaf`, `copy`, `vector` and `value` write the statements, `bits` of them addresses in swizzled tiles; `limits`
//! checks the kernel. `matrix` makes instructions of the loops over a warp's matrices, `lanes` gives each lane the elements
//! that it holds of buffers of scope `warp`, `interleaved` says in which order where they are bytes across k, and `mma` multiplies, loads and
//! stores those; `tiles` are pipelines of them, in `steps`, which TVM writes
//! `nested`, `ahead` what their copies compute, and `order` the order of their instructions. `group` are the instructions of four warps, whose tiles are in `boxes`, and `tensor_memory`
//! those whose sums are there. `tma` are tiles that the TMA copies, `places` those whose elements lie apart, `by_box` results box by box, `sent` who
//! waits for them. `roles` part the warps that bring tiles from those that multiply, `in_turn` these into teams. `cropped` are copies without edges,
//! `raster` numbers blocks, `turns` gives a block several tiles, `cluster` neighbours that share some, and `stream_k` deals out steps of tiles.
//! `linear` and `pred` are the arithmetic below all of them.
//!
//! ```
//! use satune::lower::program::{lower, LowerOptions};
//! # fn kernels(program: &satune_ir::Program) -> Result<(), satune::lower::program::LowerError> {
//! let module = lower(program, &LowerOptions::default())?;
//! for kernel in &module.kernels {
//!     println!("{}", satune::cuda::print(kernel));
//! }
//! # Ok(())
//! # }
//! ```
mod ahead;
mod allreduce;
mod barrier;
mod bits;
mod boxes;
mod build;
mod by_box;
mod cluster;
mod combine;
mod copy;
mod cropped;
mod deciding;
mod element;
mod emit;
mod ends;
mod error;
mod group;
mod guards;
mod held;
mod in_turn;
mod interleaved;
mod lanes;
mod layout;
mod leaf;
mod limits;
mod linear;
mod matrix;
mod mma;
mod nest;
mod nested;
mod order;
mod pinned;
mod pipeline;
mod places;
mod pred;
mod raster;
mod roles;
mod sent;
mod shared;
mod steps;
mod stream_k;
mod team;
mod tensor_memory;
mod threads;
mod tiles;
mod tma;
mod turns;
mod value;
mod vector;
mod vthread;

pub use error::{At, LowerError};

use crate::kernel::{Array, ArrayId, Kernel, Space, Stmt};
use allreduce::Reduction;
use deciding::Deciding;
use emit::Emitter;
use lanes::is_held;
use layout::BufferLayout;
use linear::Linear;
use matrix::{is_fragment, is_private, Fragments};
use nest::{Leaf, Nest, Thread};
use satune_ir::{BufferId, DType, Program, Stmt as Node, VarId};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use stream_k::{Asked, Dealt};

/// What the GPU has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerTarget {
    /// Shared memory that a block can have, bytes.
    pub max_shared_bytes: u64,
    /// Whether it copies asynchronously from global to shared memory (compute capability 8.0 and later).
    pub has_cp_async: bool,
    /// Threads that a block can have.
    pub max_threads: i64,
}

/// How to lower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerOptions {
    /// The GPU.
    pub target: LowerTarget,
    /// Statements that a loop which indexes registers may be expanded to.
    pub max_expanded: i64,
    /// Blocks of the first kernel that each multiprocessor is to hold: the second argument of its `__launch_bounds__`.
    pub min_blocks: Option<u32>,
}

impl Default for LowerOptions {
    fn default() -> LowerOptions {
        // What the largest GPUs have.
        let target = LowerTarget { max_shared_bytes: 227 * 1024, has_cp_async: true, max_threads: 1024 };
        LowerOptions { target, max_expanded: 1 << 14, min_blocks: None }
    }
}

/// A global buffer between kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Name of the program's buffer.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub elements: u64,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Argument {
    /// A parameter of the program, by position.
    Param(usize),
    /// One of [`Module::workspaces`].
    Workspace(usize),
}

/// The kernels of a program, to be launched in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// In order.
    pub kernels: Vec<Kernel>,
    /// For each kernel: the argument for each of its parameters.
    pub args: Vec<Vec<Argument>>,
    /// Global buffers that the program allocates.
    pub workspaces: Vec<Workspace>,
    /// The number of the first kernel that multiplies matrices by instructions; of the first of all, where none does.
    pub main: usize,
}

/// Lowers a scheduled program.
///
/// # Errors
/// What stands in the way: loops that are not bound, sizes beyond the target's, constructs that are not supported.
pub fn lower(program: &Program, options: &LowerOptions) -> Result<Module, LowerError> {
    let program = matrix::with_instructions(program);
    let Some(Asked { name, nest, dealt }) = stream_k::asked(&program) else {
        return lower_nests(&program, (0, &[]), options);
    };
    let kernels = dealt.map(|(program, dealt)| lower_nests(&program, (nest, &dealt), options));
    let why = match kernels {
        Ok(Ok(module)) => return Ok(module),
        Ok(Err(error)) => error.to_string(),
        Err(why) => why,
    };
    let mut module = lower_nests(&program, (0, &[]), options)?;
    let note = format!("annotation {} of loop {name} is ignored: {why}", satune_rewrites::keys::STREAM_K);
    module.kernels.iter_mut().skip(nest).take(1).for_each(|kernel| kernel.notes.push(note.clone()));
    Ok(module)
}

/// Lowers a program nest by nest. From the nest of a number on they have `dealt` steps.
fn lower_nests(
    program: &Program,
    (first_dealt, dealt): (usize, &[Dealt]),
    options: &LowerOptions,
) -> Result<Module, LowerError> {
    let program = layout::aligned(program);
    let program = program.as_ref();
    let body = program.body.block.body.as_ref();
    let parts: Vec<&Node> = match body {
        Node::Seq(parts) => parts.iter().collect(),
        one => vec![one],
    };
    let main = parts.iter().position(|part| matrix::multiplies(part)).unwrap_or(0);
    let mut module = Module { kernels: Vec::new(), args: Vec::new(), workspaces: Vec::new(), main };
    let mut globals: Vec<BufferId> = Vec::new();
    let mut owner: HashMap<BufferId, usize> = HashMap::new();
    // Lowering adds buffers of its own, anew for each kernel.
    let own = program.buffers.len();
    let name = crate::cuda::function_name(&program.name);
    for (i, part) in parts.iter().enumerate() {
        let name = if parts.len() == 1 { name.clone() } else { format!("{name}_{i}") };
        let dealt = i.checked_sub(first_dealt).and_then(|at| dealt.get(at)).copied();
        let (program, part) = match dealt {
            // Its conditions are not on data, but on a variable that no loop says the values of.
            Some(_) => (Cow::Borrowed(program), Cow::Borrowed(*part)),
            None => held::held(program, part),
        };
        let part = interleaved::interleaved(&program, part.as_ref());
        let (program, part) = by_box::by_box(Cow::Borrowed(program.as_ref()), part);
        let (program, part) = tensor_memory::by_registers(program, part)?;
        let (program, part) = group::side_by_side(program, part)?;
        let part = part.as_ref();
        let (program, reductions) = allreduce::find(program.as_ref(), part)?;
        let program = program.as_ref();
        let mut lowering = OneKernel { program, options, dealt, used: Vec::new() };
        let mut kernel = lowering.kernel(part, name, &reductions)?;
        // Roles have the registers of a whole multiprocessor.
        let parts = kernel.body.iter().any(|s| matches!(s, Stmt::Roles(_)));
        kernel.min_blocks_per_sm = options.min_blocks.filter(|_| i == 0 && !parts).or(kernel.min_blocks_per_sm);
        let mut args = Vec::new();
        for id in lowering.used {
            let buffer = program.buffer(id);
            if buffer.scope != "global" {
                if (id.0 as usize) < own && *owner.entry(id).or_insert(i) != i {
                    return Err(LowerError::ScopeLeft { buffer: buffer.name.clone(), scope: buffer.scope.clone() });
                }
                continue;
            }
            args.push(match program.params.iter().position(|p| *p == id) {
                Some(position) => Argument::Param(position),
                None => {
                    let known = globals.iter().position(|g| *g == id);
                    Argument::Workspace(known.unwrap_or_else(|| {
                        globals.push(id);
                        globals.len() - 1
                    }))
                }
            });
        }
        module.kernels.push(kernel);
        module.args.push(args);
    }
    for id in globals {
        let (shape, strides) = layout::constants(program, id)?;
        let buffer = program.buffer(id);
        let elements = BufferLayout::whole(&shape, &strides).len as u64;
        module.workspaces.push(Workspace { name: buffer.name.clone(), dtype: buffer.dtype, elements });
    }
    Ok(module)
}

/// Lowering of one top-level nest.
struct OneKernel<'p> {
    program: &'p Program,
    options: &'p LowerOptions,
    /// What it has of steps that are dealt out.
    dealt: Option<Dealt>,
    /// Buffers of the kernel: parameters in the program's order, then others as they occur.
    used: Vec<BufferId>,
}

impl OneKernel<'_> {
    fn kernel(&mut self, part: &Node, name: String, reductions: &[Reduction]) -> Result<Kernel, LowerError> {
        let program = self.program;
        let mut nest = build::build(program, part, reductions, self.dealt)?;
        limits::launch(&nest, self.options.target.max_threads)?;
        vthread::distribute(&mut nest, program);
        let pipelines = pipeline::find(&mut nest, program, self.options.target.has_cp_async);
        let written = self.find_buffers(&nest);
        let fragments = matrix::fragments(&nest, program)?;
        let layouts = self.layouts(&nest, &written, reductions)?;
        let guarding = guards::decide(&nest, program, &layouts);
        let mut tiles = tma::find(&mut nest, program, &layouts, &guarding)?;
        let max_threads = self.options.target.max_threads;
        let brought = match limits::producer(&nest, 1, max_threads) {
            true => roles::brought(&nest, program, &pipelines, &tiles),
            false => Vec::new(),
        };
        nest.check_pieces(&brought)?;
        in_turn::decide(&mut nest, &brought, max_threads);
        let sent = sent::find(&mut nest, &tiles);
        let (mut arrays, places, copies) = self.arrays((&nest, &layouts), &written, (&pipelines, &sent), &fragments);
        matrix::align(&nest, &places, &mut arrays);
        let on_chip = places.iter().map(|(b, (id, _))| (*b, id));
        let most = self.options.target.max_shared_bytes;
        // Who reads what the TMA brings is told by barriers of its own.
        let (mut shared_bytes, sharing) = shared::place(&nest, &mut arrays, on_chip, (most, tiles.is_empty()))?;
        let rings = roles::rings(brought, nest.teams(), (&mut arrays, &mut shared_bytes));
        if rings.is_empty() {
            tiles.without_loads(&mut nest, program);
            roles::note_ignored(&mut nest, &pipelines);
        }
        let cluster = self.cluster(&mut nest, &mut tiles);
        let brought: HashSet<BufferId> = rings.keys().flat_map(|v| pipelines[v].buffers.iter().copied()).collect();
        let owners = barrier::Owners::of(&nest);
        let rules = barrier::Rules {
            shared: &|b| shared::is_shared(&program.buffer(b).scope) && !brought.contains(&b),
            pipelined: &|v| pipelines.contains_key(&v),
            owners: &owners,
            waited_for: &|leaf| sent.values().any(|sent| sent.is_by(leaf.id)),
            sharing: &sharing,
        };
        let mut body = std::mem::take(&mut nest.body);
        barrier::place(&mut body, &mut barrier::Pending::default(), &rules);
        nest.body = body;

        let expanded = self.expanded(&nest, &layouts)?;
        if !rings.is_empty() {
            nest.min_blocks = nest.min_blocks.or(Some(1));
        }
        let sums = tensor_memory::find((&nest, program), &layouts, &rings, (&mut arrays, &mut shared_bytes))?;
        let shared_bytes = shared::within(&arrays, shared_bytes.into(), most)?;
        let mut emitter = Emitter::new(program, &nest, arrays, places, guarding);
        emitter.with_sums(sums);
        emitter.sent = sent;
        emitter.cluster = cluster;
        emitter.number_blocks();
        emitter.number_tiles();
        emitter.expanded = expanded;
        emitter.rings = copies;
        let map = |b: &BufferId, tile: &tma::Tile| tile.map(program, emitter.places[b].0);
        let tensor_maps = tiles.maps().map(|(b, tile)| map(b, tile)).collect::<Result<_, _>>()?;
        emitter.tiles = tiles;
        emitter.rings_of_tiles = rings;
        emitter.fragments = fragments;
        emitter.partials = reductions.iter().map(|r| r.partial).collect();
        emitter.pipelines = pipelines;
        let body = emitter.kernel_body()?;
        let arrays = std::mem::take(&mut emitter.arrays);
        limits::local_memory(&arrays)?;
        let [grid, mut block] = [nest.extents(false), nest.extents(true)].map(|e| e.map(|x| x as u32));
        if !emitter.rings_of_tiles.is_empty() {
            // The producer's come first.
            block = [group::THREADS as u32 + nest.teams() as u32 * block.iter().product::<u32>(), 1, 1];
        }
        let mut notes = vec![format!(
            "{}: {} x {} x {} blocks of {} x {} x {} threads",
            name, grid[0], grid[1], grid[2], block[0], block[1], block[2]
        )];
        notes.append(&mut emitter.notes);
        notes.extend(nest.notes.iter().cloned());
        Ok(Kernel {
            name,
            notes,
            arrays,
            grid,
            block,
            shared_bytes,
            min_blocks_per_sm: nest.min_blocks,
            cluster: emitter.cluster.as_ref().map_or(1, |cluster| cluster.size() as u32),
            tensor_maps,
            body,
        })
    }

    /// The cluster that the loop of blocks asks for.
    fn cluster(&self, nest: &mut Nest, tiles: &mut tma::Tiles) -> Option<cluster::Cluster> {
        let [m, n] = nest.cluster?;
        let block = nest.threads.iter().find(|t| t.tag == "blockIdx.x").map(|t| (t.var, t.extent));
        let tile =
            nest.turns.map(|turns| (turns.tile, nest.ranges.get(&turns.tile).map_or(0, |r| r.1 + 1))).or(block)?;
        let alone = nest.extents(false)[1..] == [1, 1];
        let whole = alone && nest.extents(false)[0] % (m * n) == 0;
        match cluster::decide(nest, tile, tiles) {
            Ok(found) if whole => found,
            other => {
                tiles.alone();
                let why = other.err().unwrap_or("its blocks are not all along blockIdx.x, or no whole clusters");
                nest.notes.push(format!("there are no clusters of {m} x {n} blocks: {why}"));
                None
            }
        }
    }

    /// Collects the buffers; returns those that are written.
    fn find_buffers(&mut self, nest: &Nest) -> HashSet<BufferId> {
        let (mut seen, mut written) = (Vec::new(), HashSet::new());
        nest.leaves(&mut |leaf, _| {
            for b in leaf.reads.iter().map(|(b, _)| *b).chain([leaf.target]) {
                if !seen.contains(&b) {
                    seen.push(b);
                }
            }
            written.insert(leaf.target);
        });
        self.used = self.program.params.iter().copied().filter(|p| seen.contains(p)).collect();
        self.used.extend(seen.into_iter().filter(|b| !self.program.params.contains(b)));
        written
    }

    fn layouts(
        &self,
        nest: &Nest,
        written: &HashSet<BufferId>,
        reductions: &[Reduction],
    ) -> Result<HashMap<BufferId, BufferLayout>, LowerError> {
        let mut out = HashMap::new();
        let deciding = Deciding::of(nest, self.program, reductions);
        deciding.check()?;
        for id in &self.used {
            let buffer = self.program.buffer(*id);
            let layout = match buffer.scope.as_str() {
                "global" => {
                    let (shape, strides) = layout::constants(self.program, *id)?;
                    if written.contains(id) {
                        self.check_exchange(nest, &deciding, *id)?;
                    }
                    BufferLayout::whole(&shape, &strides)
                }
                scope if is_private(scope) => layout::compact(nest, self.program, *id, true)?,
                scope if shared::is_shared(scope) || tensor_memory::is_tensor(scope) => {
                    layout::compact(nest, self.program, *id, false)?
                }
                scope => {
                    return Err(LowerError::Unsupported {
                        what: format!("buffer {} of scope {scope}", buffer.name),
                        place: At::default(),
                        remedy: "use global, shared or local".into(),
                    })
                }
            };
            if !(0..=1 << 40).contains(&layout.len) {
                return Err(LowerError::Overflow { what: format!("the size of buffer {}", buffer.name) });
            }
            out.insert(*id, layout);
        }
        for (id, layout) in group::boxed(nest, self.program, |id| out.get(&id).cloned())? {
            out.insert(id, layout);
        }
        Ok(out)
    }

    /// A global buffer that a kernel writes is read by the thread that wrote only.
    fn check_exchange(&self, nest: &Nest, deciding: &Deciding, id: BufferId) -> Result<(), LowerError> {
        let threads: Vec<&Thread> = nest.threads.iter().filter(|t| t.extent > 1).collect();
        let (mut writers, mut readers) = (Vec::new(), Vec::new());
        nest.leaves(&mut |leaf, _| {
            if leaf.target == id {
                writers.push((leaf, &leaf.at));
            }
            readers.extend(leaf.reads.iter().filter(|(b, _)| *b == id).map(|(_, at)| (leaf, at)));
        });
        for (writer, written) in &writers {
            // Of threads that would write the same only one does.
            let idle = |leaf: &Leaf| {
                let mut unused = threads.iter().filter(|t| !nest.uses(writer, t));
                leaf.id != writer.id && unused.any(|t| nest.uses(leaf, t))
            };
            let told = deciding.told(written, &threads);
            let same = |read: &[Linear]| {
                deciding.parts(read) == deciding.parts(written)
                    || told.is_some() && deciding.told(read, &threads) == told
            };
            if let Some((reader, _)) = readers.iter().find(|(leaf, read)| !same(read) || idle(leaf)) {
                return Err(LowerError::NotOneKernel {
                    buffer: self.program.buffer(id).name.clone(),
                    writer: writer.block.clone(),
                    reader: reader.block.clone(),
                });
            }
        }
        Ok(())
    }

    #[allow(clippy::type_complexity)]
    fn arrays(
        &self,
        (nest, layouts): (&Nest, &HashMap<BufferId, BufferLayout>),
        written: &HashSet<BufferId>,
        (pipelines, sent): (&HashMap<VarId, pipeline::Pipeline>, &HashMap<BufferId, sent::Sent>),
        fragments: &HashMap<BufferId, Fragments>,
    ) -> (Vec<Array>, HashMap<BufferId, (ArrayId, BufferLayout)>, HashMap<BufferId, Vec<(VarId, i64)>>) {
        let mut arrays: Vec<Array> = Vec::new();
        let (mut places, mut rings) = (HashMap::new(), HashMap::<BufferId, Vec<(VarId, i64)>>::new());
        let space = |id: &BufferId| match self.program.buffer(*id).scope.as_str() {
            "global" => Space::Global,
            scope if is_held(scope) && nest.is_packed(self.program, *id) => Space::Fragment,
            "local" | "warp" => Space::Register,
            scope if is_fragment(scope) => Space::Opaque,
            scope if tensor_memory::is_tensor(scope) => Space::Tensor,
            _ => Space::Shared,
        };
        let mut order = self.used.clone();
        order.sort_by_key(|id| match space(id) {
            Space::Global => 0,
            Space::Shared => 1,
            Space::Register | Space::Fragment | Space::Opaque | Space::Tensor => 2,
        });
        for id in &order {
            let (buffer, Some(layout)) = (self.program.buffer(*id), layouts.get(id)) else { continue };
            let mut name = crate::lower::safe(&buffer.name);
            while arrays.iter().any(|a| a.name == name) {
                name.push('_');
            }
            let mut len = layout.len.max(1);
            if let Some(held) = fragments.get(id) {
                len = held.count(len) * held.per_lane;
            }
            if space(id) == Space::Tensor {
                // All that there is.
                len = tensor_memory::CELLS;
            }
            let align = if layout.boxes().is_some() { boxes::ALIGN as u32 } else { 16 };
            let pipeline = pipelines.values().find(|p| p.buffers.contains(id)).map(|p| (p.slot, p.slots()));
            // Teams that take turns have their own.
            let own = nest.in_turn.filter(|_| space(id) == Space::Shared).map(|turn| (turn.team, in_turn::TEAMS));
            let boxes = sent.get(id).and_then(|sent| sent.place).map(|place| (place, sent::PLACES));
            let copies = pipeline.map_or_else(|| boxes.into_iter().chain(own).collect(), |one| vec![one]);
            for (number, count) in copies {
                // Each copy begins at a multiple of the widest access, or where boxes may.
                len = (len as u64).next_multiple_of(u64::from(align / buffer.dtype.bytes().min(16))) as i64;
                rings.entry(*id).or_default().push((number, len));
                len *= count;
            }
            arrays.push(Array {
                name,
                dtype: buffer.dtype,
                len: len as u64,
                space: space(id),
                align,
                shared_offset: 0,
                written: space(id) == Space::Tensor || space(id) == Space::Global && written.contains(id),
            });
            places.insert(*id, (ArrayId(arrays.len() as u32 - 1), layout.clone()));
        }
        (arrays, places, rings)
    }

    /// Loops that must be expanded, since registers have no addresses.
    fn expanded(&self, nest: &Nest, layouts: &HashMap<BufferId, BufferLayout>) -> Result<HashSet<VarId>, LowerError> {
        let (mut loops, mut by) = (HashSet::new(), HashMap::new());
        let mut error = None;
        nest.leaves(&mut |leaf, _| {
            let reads = leaf.reads.iter().map(|(b, at)| (b, at));
            for (id, at) in reads.chain([(&leaf.target, &leaf.at)]) {
                let buffer = self.program.buffer(*id);
                let Some(layout) = layouts.get(id).filter(|_| is_private(&buffer.scope)) else { continue };
                layout.flatten(at, &nest.ranges).vars(&mut |v| {
                    let own = leaf.instruction.as_ref().filter(|what| what.what != matrix::What::Matrices);
                    if own.is_some_and(|what| what.loops.contains(&v)) {
                        return;
                    }
                    if nest.thread(v).is_some() {
                        let (buffer, block) = (buffer.name.clone(), leaf.block.clone());
                        error.get_or_insert(LowerError::RegisterIndex { buffer, block });
                    }
                    loops.insert(v);
                    by.entry(v).or_insert_with(|| buffer.name.clone());
                });
            }
        });
        nest.leaves(&mut |_, path| {
            let mut steps = 1_i64;
            for l in path.iter().filter(|l| loops.contains(&l.var)) {
                steps = steps.saturating_mul(l.extent);
                if steps > self.options.max_expanded {
                    let (name, buffer) = (l.name.clone(), by.get(&l.var).cloned().unwrap_or_default());
                    error.get_or_insert(LowerError::Registers { name, steps, buffer });
                }
            }
        });
        error.map_or(Ok(loops), Err)
    }
}
