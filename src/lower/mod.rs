//! Lowering: from the plan of a contraction's schedule to kernels.
//!
//! The code of a block: (1) the tile's place from blockIdx.x, the thread's from threadIdx.x; (2) accumulators cleared;
//! (3) the k loop: fills of the staged operands, overlapped as the plan says, barriers where a tile in shared memory
//! passes from its writers to its readers or back, and nowhere else; (4) the accumulators stored.
//!
//! Guards. Where a tile hangs over the problem's edge, copies fill zeros there. A product with a zero factor adds
//! nothing, so the arithmetic needs no guard; the results beyond the edge are never stored.
mod compute;
mod fill;
mod index;
pub mod program;
pub mod tensor;

use crate::kernel::{Array, ArrayId, Cond, Dim, Index, Kernel, LocalVar, Space, Stmt, Unroll, Value};
use index::{add, all, c, digit, div, mul, rem};
use satune_ir::term::{Axis, Contraction, OperandInfo, Pair, Pipe, Plan, Side};
use satune_ir::DType;

/// Why a plan has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// More blocks than a launch takes.
    #[error("{blocks} blocks; a launch takes at most {most}: choose larger tiles")]
    Blocks {
        /// Asked for.
        blocks: i64,
        /// Limit.
        most: i64,
    },
    /// Sizes beyond 63 bits.
    #[error("buffer {0} has more elements than can be counted in 63 bits")]
    Overflow(String),
}

/// The kernels of a plan, to be launched in order, and the buffer between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// In order.
    pub kernels: Vec<Kernel>,
    /// For each kernel: the argument for each of its parameters.
    pub args: Vec<Vec<Argument>>,
    /// Elements of the workspace (partial sums of split-K) and their type; 0 where there is none.
    pub workspace: (u64, DType),
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// First factor.
    A,
    /// Second factor.
    B,
    /// Result.
    C,
    /// Partial sums.
    Workspace,
}

/// Elements of an operand.
fn elements(operand: &OperandInfo, contraction: &Contraction) -> Result<u64, LowerError> {
    operand
        .dims
        .iter()
        .try_fold(1_i64, |n, axis| n.checked_mul(contraction.extent(*axis)))
        .map(|n| n as u64)
        .ok_or_else(|| LowerError::Overflow(operand.name.clone()))
}

/// Lowers a plan.
///
/// # Errors
/// When the launch or a buffer would be too large.
pub fn lower(plan: &Plan, contraction: &Contraction, name: &str) -> Result<Module, LowerError> {
    let blocks = plan.block_count();
    let most = i64::from(i32::MAX);
    if blocks > most {
        return Err(LowerError::Blocks { blocks, most });
    }
    let c_elements = elements(&contraction.c, contraction)?;
    let split = plan.split_k > 1;
    let parts = plan.split_k as u64;
    let mut lowering = Lowering::new(plan, contraction)?;
    let body = lowering.body();
    let main_name = if split { format!("{name}_partial") } else { name.to_string() };
    let main = Kernel {
        name: main_name,
        notes: notes(plan, contraction),
        arrays: lowering.arrays,
        grid: [blocks as u32, 1, 1],
        block: [plan.threads, 1, 1],
        shared_bytes: lowering.shared_bytes,
        min_blocks_per_sm: None,
        tensor_maps: vec![],
        body,
    };
    let mut module = Module {
        kernels: vec![main],
        args: vec![vec![Argument::A, Argument::B, if split { Argument::Workspace } else { Argument::C }]],
        workspace: (0, contraction.accumulate),
    };
    if split {
        module.workspace.0 = c_elements * parts;
        module.kernels.push(add_parts(contraction, c_elements, parts, &format!("{name}_sum")));
        module.args.push(vec![Argument::Workspace, Argument::C]);
    }
    Ok(module)
}

/// The schedule in a few lines, for the head of the CUDA text.
fn notes(plan: &Plan, contraction: &Contraction) -> Vec<String> {
    let shape = format!(
        "{} += {} * {}: m {}, n {}, k {}",
        contraction.c.name,
        contraction.a.name,
        contraction.b.name,
        contraction.extent(Axis::M),
        contraction.extent(Axis::N),
        contraction.extent(Axis::K)
    );
    let mut lines = vec![shape];
    lines.extend(plan.describe());
    lines
}

/// Adds partial sums: one thread per result.
fn add_parts(contraction: &Contraction, results: u64, parts: u64, name: &str) -> Kernel {
    let dtype = contraction.accumulate;
    let array = |name: &str, len, space, written| Array {
        name: name.into(),
        dtype,
        len,
        space,
        align: 16,
        shared_offset: 0,
        written,
    };
    let (workspace, out, sum) = (ArrayId(0), ArrayId(1), ArrayId(2));
    let at = add(mul(Index::BlockIdx(Dim::X), 256), Index::ThreadIdx(Dim::X));
    let i = LocalVar(0);
    let part = LocalVar(1);
    let load = Value::Load(workspace, add(mul(Index::Var(part), results as i64), Index::Var(i)));
    let added = Value::Binary(crate::kernel::Arith::Add, dtype, Box::new(Value::Load(sum, c(0))), Box::new(load));
    let then = vec![
        Stmt::Store { array: sum, index: c(0), value: Value::Float(0.0, dtype) },
        Stmt::For {
            var: part,
            name: "part".into(),
            start: c(0),
            extent: c(parts as i64),
            unroll: Unroll::By(4),
            body: vec![Stmt::Store { array: sum, index: c(0), value: added }],
        },
        Stmt::Store { array: out, index: Index::Var(i), value: Value::Load(sum, c(0)) },
    ];
    Kernel {
        name: name.into(),
        notes: vec![format!("adds the {parts} partial sums of each result")],
        arrays: vec![
            array("partial", results * parts, Space::Global, false),
            array(&safe(&contraction.c.name), results, Space::Global, true),
            array("sum", 1, Space::Register, false),
        ],
        grid: [results.div_ceil(256) as u32, 1, 1],
        block: [256, 1, 1],
        shared_bytes: 0,
        min_blocks_per_sm: None,
        tensor_maps: vec![],
        body: vec![
            Stmt::Let { var: i, name: "i".into(), value: at },
            Stmt::If { cond: Cond::Lt(Index::Var(i), c(results as i64)), then, otherwise: vec![] },
        ],
    }
}

/// A C identifier for a name of the program.
pub fn safe(name: &str) -> String {
    let mut out: String = name.chars().map(|ch| if ch.is_ascii_alphanumeric() { ch } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|ch: char| ch.is_ascii_digit()) {
        out.insert(0, 'v');
    }
    out
}

/// Names and ids that all parts of the lowering share.
pub(crate) struct Lowering<'a> {
    plan: &'a Plan,
    contraction: &'a Contraction,
    arrays: Vec<Array>,
    shared_bytes: u32,
    vars: u32,
    global: [ArrayId; 3],
    shared: [Option<ArrayId>; 2],
    staged: [Option<ArrayId>; 2],
    fragment: [Option<ArrayId>; 2],
    sums: Option<ArrayId>,
    /// First row of the block's tile.
    m0: Index,
    /// First column of the block's tile.
    n0: Index,
    /// First k value of the block's part.
    k0: Index,
    /// Number of the part.
    part: Index,
    /// The thread's first row within the tile.
    m_thread: Index,
    /// The thread's first column within the tile.
    n_thread: Index,
    /// Values of batch and outer reduction axes.
    others: Vec<(Axis, Index)>,
}

impl<'a> Lowering<'a> {
    fn new(plan: &'a Plan, contraction: &'a Contraction) -> Result<Lowering<'a>, LowerError> {
        let mut lowering = Lowering {
            plan,
            contraction,
            arrays: Vec::new(),
            shared_bytes: 0,
            vars: 0,
            global: [ArrayId(0), ArrayId(1), ArrayId(2)],
            shared: [None; 2],
            staged: [None; 2],
            fragment: [None; 2],
            sums: None,
            m0: c(0),
            n0: c(0),
            k0: c(0),
            part: c(0),
            m_thread: c(0),
            n_thread: c(0),
            others: Vec::new(),
        };
        lowering.declare()?;
        Ok(lowering)
    }

    fn array(&mut self, name: &str, dtype: DType, len: i64, space: Space, written: bool) -> ArrayId {
        let mut name = safe(name);
        while self.arrays.iter().any(|a| a.name == name) {
            name.push('_');
        }
        let mut array = Array { name, dtype, len: len as u64, space, align: 16, shared_offset: 0, written };
        if space == Space::Shared {
            array.shared_offset = self.shared_bytes.next_multiple_of(16);
            self.shared_bytes = array.shared_offset + len as u32 * dtype.bytes();
        }
        self.arrays.push(array);
        ArrayId(self.arrays.len() as u32 - 1)
    }

    fn declare(&mut self) -> Result<(), LowerError> {
        let (plan, contraction) = (self.plan, self.contraction);
        for (operand, written) in [(&contraction.a, false), (&contraction.b, false), (&contraction.c, true)] {
            let copies = if written { plan.split_k } else { 1 };
            let len = elements(operand, contraction)? as i64;
            let len = len.checked_mul(copies).ok_or_else(|| LowerError::Overflow(operand.name.clone()))?;
            self.array(&operand.name, operand.dtype, len, Space::Global, written);
        }
        for side in [Side::A, Side::B] {
            let operand = contraction.operand(side);
            let (spatial, registers, pieces) = self.side_sizes(side);
            let staging = plan.staging(side);
            if let Some((layout, fill)) = staging.shared {
                let len = layout.elements(spatial, plan.k_tile) * plan.pipe.buffers();
                let name = format!("{}_shared", operand.name);
                self.shared[side as usize] = Some(self.array(&name, operand.dtype, len, Space::Shared, false));
                if !matches!(plan.pipe, Pipe::Async(_)) {
                    let step = i64::from(plan.threads) * i64::from(fill.vector);
                    let len = (spatial * plan.k_tile + step - 1) / step * i64::from(fill.vector);
                    let len = if self.fill_at_once(fill) { len } else { i64::from(fill.vector) };
                    let name = format!("{}_next", operand.name);
                    self.staged[side as usize] = Some(self.array(&name, operand.dtype, len, Space::Register, false));
                }
            }
            if staging.local.is_some() {
                let len = pieces * registers * plan.k_step;
                let name = format!("{}_local", operand.name);
                self.fragment[side as usize] = Some(self.array(&name, operand.dtype, len, Space::Register, false));
            }
        }
        if plan.accumulators {
            let name = format!("{}_local", contraction.c.name);
            self.sums =
                Some(self.array(&name, contraction.accumulate, plan.results_per_thread(), Space::Register, false));
        }
        Ok(())
    }

    /// (tile extent, results along the axis in one piece, pieces of a thread along the axis) of an operand's axis.
    fn side_sizes(&self, side: Side) -> (i64, i64, i64) {
        let p = self.plan;
        match side {
            Side::A => (p.tile.m, p.registers.m, p.vthread_outer.m * p.vthread_inner.m),
            Side::B => (p.tile.n, p.registers.n, p.vthread_outer.n * p.vthread_inner.n),
        }
    }

    fn fresh(&mut self) -> LocalVar {
        self.vars += 1;
        LocalVar(self.vars - 1)
    }

    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: Index) -> Index {
        if matches!(value, Index::Const(_) | Index::Var(_)) {
            return value;
        }
        let var = self.fresh();
        body.push(Stmt::Let { var, name: name.into(), value });
        Index::Var(var)
    }

    /// `for name in 0..extent: body`; no loop where it has one iteration.
    fn repeat(
        &mut self,
        name: &str,
        extent: i64,
        unroll: Unroll,
        body: impl FnOnce(&mut Self, Index) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        if extent == 1 {
            return body(self, c(0));
        }
        let var = self.fresh();
        let body = body(self, Index::Var(var));
        vec![Stmt::For { var, name: name.into(), start: c(0), extent: c(extent), unroll, body }]
    }

    /// The kernel's code.
    fn body(&mut self) -> Vec<Stmt> {
        let mut body = Vec::new();
        self.place_block(&mut body);
        self.place_thread(&mut body);
        let plan = self.plan;
        if plan.accumulators && plan.init_hoisted {
            body.extend(self.clear());
        }
        let outer: Vec<(Axis, i64)> = self.contraction.outer_reduce().map(|(axis, info)| (axis, info.extent)).collect();
        let code = self.reduction(&outer);
        body.extend(code);
        if plan.accumulators {
            body.extend(self.drain());
        }
        body
    }

    fn reduction(&mut self, outer: &[(Axis, i64)]) -> Vec<Stmt> {
        match outer.split_first() {
            None => self.k_loop(),
            Some(((axis, extent), rest)) => {
                let (axis, name) = (*axis, format!("{axis}"));
                self.repeat(&name, *extent, Unroll::No, |this, value| {
                    this.others.push((axis, value));
                    let code = this.reduction(rest);
                    this.others.pop();
                    code
                })
            }
        }
    }

    /// Where the block's tile begins, from blockIdx.x: the loops over blocks are its digits, the last varies fastest.
    fn place_block(&mut self, body: &mut Vec<Stmt>) {
        let plan = self.plan;
        let number = Index::BlockIdx(Dim::X);
        let mut below = plan.block_count();
        let (mut m, mut n) = (c(0), c(0));
        for (i, l) in plan.blocks.iter().enumerate() {
            below /= l.extent;
            let value = if l.extent == 1 { c(0) } else { digit(&number, below, l.extent, i == 0) };
            match l.axis {
                Axis::M => m = add(mul(m, l.extent), value),
                Axis::N => n = add(mul(n, l.extent), value),
                Axis::K => self.part = self.bind(body, "k_part", value),
                other => {
                    let value = self.bind(body, &format!("{other}"), value);
                    self.others.push((other, value));
                }
            }
        }
        self.m0 = self.bind(body, "m_block", mul(m, plan.tile.m));
        self.n0 = self.bind(body, "n_block", mul(n, plan.tile.n));
        self.k0 = mul(self.part.clone(), plan.k_part);
    }

    /// Where the thread's results begin within the tile, from threadIdx.x: warps, then lanes.
    fn place_thread(&mut self, body: &mut Vec<Stmt>) {
        let p = self.plan;
        let thread = Index::ThreadIdx(Dim::X);
        let warp = div(thread.clone(), 32);
        let lane = rem(thread, 32);
        let pair = |number: &Index, pair: Pair, m_outer: bool| {
            if m_outer {
                (digit(number, pair.n, pair.m, true), digit(number, 1, pair.n, false))
            } else {
                (digit(number, 1, pair.m, false), digit(number, pair.m, pair.n, true))
            }
        };
        let one_lane_group = |extent: i64, value: Index| if extent == 1 { c(0) } else { value };
        let (wm, wn) = pair(&warp, p.warps, p.warps_m_outer);
        let (lm, ln) = pair(&lane, p.lanes, p.lanes_m_outer);
        let place = |w: Index, l: Index, warps: i64, inner: i64, lanes: i64, registers: i64| {
            let w = mul(one_lane_group(warps, w), inner * lanes * registers);
            add(w, mul(one_lane_group(lanes, l), registers))
        };
        let m = place(wm, lm, p.warps.m, p.vthread_inner.m, p.lanes.m, p.registers.m);
        let n = place(wn, ln, p.warps.n, p.vthread_inner.n, p.lanes.n, p.registers.n);
        self.m_thread = self.bind(body, "m_thread", m);
        self.n_thread = self.bind(body, "n_thread", n);
    }

    /// Offset of a piece from the thread's first result along an axis, for the vthread numbers.
    fn piece_offset(&self, axis: Axis, outer: &Index, inner: &Index) -> Index {
        let p = self.plan;
        let (warps, vi, lanes, registers) = match axis {
            Axis::M => (p.warps.m, p.vthread_inner.m, p.lanes.m, p.registers.m),
            _ => (p.warps.n, p.vthread_inner.n, p.lanes.n, p.registers.n),
        };
        add(mul(outer.clone(), warps * vi * lanes * registers), mul(inner.clone(), lanes * registers))
    }

    /// Position in global memory of an element, given m, n and k in the whole problem.
    fn global_index(&self, operand: &OperandInfo, m: &Index, n: &Index, k: &Index) -> Index {
        let mut stride = 1;
        let mut sum = c(0);
        for axis in operand.dims.iter().rev() {
            let value = match axis {
                Axis::M => m.clone(),
                Axis::N => n.clone(),
                Axis::K => k.clone(),
                other => self.others.iter().find(|(a, _)| a == other).map_or(c(0), |(_, v)| v.clone()),
            };
            sum = add(mul(value, stride), sum);
            stride *= self.contraction.extent(*axis);
        }
        sum
    }

    /// The condition that a position lies within the problem along an axis; true where tiles do not hang over.
    fn within(&self, axis: Axis, position: &Index) -> Cond {
        let plan = self.plan;
        match axis {
            Axis::M if self.contraction.extent(Axis::M) % plan.tile.m != 0 => {
                Cond::Lt(position.clone(), c(self.contraction.extent(Axis::M)))
            }
            Axis::N if self.contraction.extent(Axis::N) % plan.tile.n != 0 => {
                Cond::Lt(position.clone(), c(self.contraction.extent(Axis::N)))
            }
            Axis::K if plan.k_part % plan.k_tile != 0 => {
                Cond::Lt(position.clone(), add(self.k0.clone(), c(plan.k_part)))
            }
            _ => Cond::True,
        }
    }

    /// The condition that a result lies within the problem.
    fn inside(&self, m: &Index, n: &Index) -> Cond {
        all(vec![self.within(Axis::M, m), self.within(Axis::N, n)])
    }
}
