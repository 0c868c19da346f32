//! From loops and leaves to the statements of a kernel.
use super::ahead::Ahead;
use super::cluster::Cluster;
use super::ends::joined;
use super::error::LowerError;
use super::group;
use super::guards::Guarding;
use super::layout::BufferLayout;
use super::linear::{Atom, Linear, Op, Ranges};
use super::matrix::{Fragments, What};
use super::nest::{flag, leaves, Leaf, Loop, LoopKind, Nest, Node};
use super::pipeline::Pipeline;
use super::pred::{join, Pred};
use super::roles::{Consumer, Ring};
use super::sent::Sent;
use super::tensor_memory::{is_tensor, Sums};
use super::tma::Tiles;
use super::vector::InRegisters;
use crate::kernel::{Array, ArrayId, Cond, Index, LocalVar, Space, Stmt, Unroll};
use crate::lower::index::{self, add, all, c, div, minus, mul, rem, scaled};
use satune_ir::{Attr, BufferId, DType, Program, VarId};
use satune_rewrites::keys;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What part of a copy is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All of it.
    Whole,
    /// As an asynchronous copy, where it can be.
    Async,
    /// From global memory to registers.
    Load,
    /// From those registers to shared memory.
    Store,
}

/// Emission of one kernel.
pub struct Emitter<'a> {
    pub program: &'a Program,
    pub nest: &'a Nest,
    /// Values of the variables, of a loop's variable those of the laps that are emitted.
    pub ranges: Ranges,
    pub arrays: Vec<Array>,
    pub places: HashMap<BufferId, (ArrayId, BufferLayout)>,
    pub guarding: HashMap<usize, Guarding>,
    pub env: HashMap<VarId, Index>,
    /// Shared buffers held several times: the variables that number the copies, and the elements of one.
    pub rings: HashMap<BufferId, Vec<(VarId, i64)>>,
    /// What buffers of fragments hold.
    pub fragments: HashMap<BufferId, Fragments>,
    pub pipelines: HashMap<VarId, Pipeline>,
    /// Loops that index register arrays.
    pub expanded: HashSet<VarId>,
    pub mode: Mode,
    /// Whether statements are written out for known laps, as those of pipelines of matrices are.
    pub written_out: bool,
    /// The copies that the TMA makes, and the loops whose tiles a producer brings.
    pub tiles: Tiles,
    pub rings_of_tiles: HashMap<VarId, Ring>,
    pub cluster: Option<Cluster>,
    /// The role whose code is emitted.
    pub role: Option<Consumer>,
    /// Whether the instructions around are waited for together.
    pub in_group: bool,
    /// The buffers whose tiles the TMA stores while others go on.
    pub sent: HashMap<BufferId, Sent>,
    /// What is in tensor memory, and whether sums were there before the lap that is emitted.
    pub sums: Option<Sums>,
    pub sums_exist: Cond,
    /// Statements of the kernel's head: parts of indices that threads and blocks decide.
    pub lets: Vec<Stmt>,
    pub notes: Vec<String>,
    /// Registers between the two halves of a copy.
    pub staging: HashMap<usize, ArrayId>,
    /// Of copies that compute, those of what they load, and the set of them that is loaded or used.
    pub ahead: HashMap<usize, Ahead>,
    pub set: Index,
    /// Loops around the current statement within a pipeline's copy.
    pub path: Vec<(VarId, i64)>,
    /// Partial results of reductions over threads.
    pub partials: HashSet<BufferId>,
    /// Registers that hold vectors between two statements: no buffer of the program.
    pub temporaries: HashSet<ArrayId>,
    /// Elements that a vector load has brought into registers, and the variable that counts them there.
    pub vectors: HashMap<(BufferId, Vec<Linear>), InRegisters>,
    /// Variables of loops around it that are expanded.
    pub counted: HashSet<VarId>,
    /// Conditions under which the leaf stands that is emitted.
    pub assumed: Vec<Pred>,
    /// Elements that the leaf which is emitted has read, since they decide an index or a condition.
    pub fetched: HashMap<Atom, LocalVar>,
    /// Those of them that are read once, at the head of the kernel.
    pub told: HashMap<Atom, LocalVar>,
    /// What stands at the head, by name and form.
    cache: BTreeMap<(String, Linear), Index>,
    vars: u32,
    unroll_limit: i64,
}

impl<'a> Emitter<'a> {
    /// Nothing emitted yet; parameters and other arrays are there.
    pub fn new(
        program: &'a Program,
        nest: &'a Nest,
        arrays: Vec<Array>,
        places: HashMap<BufferId, (ArrayId, BufferLayout)>,
        guarding: HashMap<usize, Guarding>,
    ) -> Emitter<'a> {
        let env = nest.threads.iter().map(|t| (t.var, t.index.clone())).collect();
        Emitter {
            program,
            nest,
            ranges: nest.ranges.clone(),
            arrays,
            places,
            guarding,
            env,
            rings: HashMap::new(),
            fragments: HashMap::new(),
            pipelines: HashMap::new(),
            expanded: HashSet::new(),
            mode: Mode::Whole,
            written_out: false,
            tiles: Tiles::default(),
            rings_of_tiles: HashMap::new(),
            cluster: None,
            role: None,
            in_group: false,
            sent: HashMap::new(),
            sums: None,
            sums_exist: Cond::True,
            lets: Vec::new(),
            notes: Vec::new(),
            staging: HashMap::new(),
            ahead: HashMap::new(),
            set: c(0),
            path: Vec::new(),
            partials: HashSet::new(),
            temporaries: HashSet::new(),
            vectors: HashMap::new(),
            counted: HashSet::new(),
            assumed: Vec::new(),
            fetched: HashMap::new(),
            told: HashMap::new(),
            cache: BTreeMap::new(),
            vars: 0,
            unroll_limit: 0,
        }
    }

    pub fn fresh(&mut self) -> LocalVar {
        self.vars += 1;
        LocalVar(self.vars - 1)
    }

    pub fn array(&self, id: ArrayId) -> &Array {
        &self.arrays[id.0 as usize]
    }

    pub fn is_global(&self, b: BufferId) -> bool {
        self.program.buffer(b).scope == "global"
    }

    /// A register array.
    pub fn registers(&mut self, name: &str, dtype: DType, len: i64) -> ArrayId {
        self.registers_in(Space::Register, name, dtype, len)
    }

    /// An array of registers of one kind.
    pub fn registers_in(&mut self, space: Space, name: &str, dtype: DType, len: i64) -> ArrayId {
        let mut name = crate::lower::safe(name);
        while self.arrays.iter().any(|a| a.name == name) {
            name.push('_');
        }
        let len = len.max(1) as u64;
        self.arrays.push(Array { name, dtype, len, space, align: 16, shared_offset: 0, written: false });
        ArrayId(self.arrays.len() as u32 - 1)
    }

    /// Registers for a vector of `width` elements on their way to or from an array, other than those that are `taken`.
    pub fn vector_registers(&mut self, of: ArrayId, dtype: DType, width: i64, taken: &[ArrayId]) -> ArrayId {
        let name = format!("{}_vector", self.array(of).name);
        self.temporary((Space::Register, &name), dtype, width, taken)
    }

    /// Whole words on their way to or from an array, as `ldmatrix` and `stmatrix` have them.
    pub fn words_of(&mut self, of: ArrayId, len: i64) -> ArrayId {
        let Array { name, dtype, .. } = self.array(of);
        let (name, dtype) = (format!("{name}_words"), *dtype);
        self.temporary((Space::Fragment, &name), dtype, len, &[])
    }

    fn temporary(&mut self, (space, name): (Space, &str), dtype: DType, len: i64, taken: &[ArrayId]) -> ArrayId {
        let fits = |id: &&ArrayId| {
            let a = self.array(**id);
            let alike = (a.space, a.dtype, a.len) == (space, dtype, len as u64);
            !taken.contains(id) && a.name.starts_with(name) && alike
        };
        if let Some(known) = self.temporaries.iter().filter(fits).min() {
            return *known;
        }
        let id = self.registers_in(space, name, dtype, len);
        self.temporaries.insert(id);
        id
    }

    /// Array and position of an element of a buffer.
    pub fn element(&self, buffer: BufferId, at: &[Linear]) -> Result<(ArrayId, Linear), LowerError> {
        let (array, form) = self.of_one(buffer, at)?;
        Ok((array, form.plus(&self.turn(buffer), 1)))
    }

    /// Where what is held several times begins, of the one that its loop's variable numbers.
    pub fn turn(&self, buffer: BufferId) -> Linear {
        let all = self.rings.get(&buffer).into_iter().flatten();
        all.fold(Linear::of(0), |sum, (slot, len)| sum.plus(&Linear::var(*slot), *len))
    }

    /// [`Emitter::element`] within one of what is held several times.
    pub fn of_one(&self, buffer: BufferId, at: &[Linear]) -> Result<(ArrayId, Linear), LowerError> {
        let (array, layout) = self.places.get(&buffer).ok_or_else(|| LowerError::Overflow {
            what: format!("buffer {} has no place: its use", self.program.buffer(buffer).name),
        })?;
        let mut form = layout.flatten(at, &self.nest.ranges);
        if self.is_global(buffer) {
            form = form.joined(&self.nest.ranges);
        }
        Ok((*array, form))
    }

    fn atom(&mut self, atom: &Atom) -> Index {
        match atom {
            Atom::Var(v) => {
                if let Some(index) = self.env.get(v) {
                    return index.clone();
                }
                let index = Index::Var(self.fresh());
                self.env.insert(*v, index.clone());
                index
            }
            Atom::Div(l, d) => div(self.plain_index(l), *d),
            Atom::Mod(l, d) => rem(self.plain_index(l), *d),
            Atom::Other(Op::Xor, a, b) => self.xor_of(a, b),
            Atom::Other(op, a, b) => {
                let (a, b) = (self.plain_index(a), self.plain_index(b));
                let (x, y) = (Box::new(a), Box::new(b));
                match op {
                    Op::Min => Index::Min(x, y),
                    Op::Max => Index::Max(x, y),
                    Op::And => Index::And(x, y),
                    Op::Mul => Index::Mul(x, y),
                    Op::Xor => Index::Xor(x, y),
                }
            }
            // What no leaf has read is bound nowhere; the printer and the simulator say so.
            Atom::Load(..) => match self.fetched.get(atom) {
                Some(var) => Index::Var(*var),
                None => Index::Var(self.fresh()),
            },
        }
    }

    /// An index as it stands.
    pub fn plain_index(&mut self, form: &Linear) -> Index {
        let mut sum: Option<Index> = None;
        for (atom, k) in form.terms.iter().filter(|(_, k)| *k > 0) {
            let term = scaled(&self.atom(atom), *k);
            sum = Some(match sum {
                Some(s) => index::sum(s, term),
                None => term,
            });
        }
        let mut sum = add(sum.unwrap_or(c(0)), c(form.constant.max(0)));
        for (atom, k) in form.terms.iter().filter(|(_, k)| *k < 0) {
            sum = minus(sum, mul(self.atom(atom), -*k));
        }
        match form.constant {
            k if k < 0 => minus(sum, c(-k)),
            _ => sum,
        }
    }

    /// A form with the numbers of laps that are written out.
    pub(super) fn at_this_lap(&self, form: &Linear) -> Linear {
        let mut known = HashMap::new();
        form.vars(&mut |v| {
            if let Some(Index::Const(number)) = self.env.get(&v) {
                known.insert(v, Linear::of(*number));
            }
        });
        form.substitute(&known, &self.nest.ranges)
    }

    /// An index whose thread part is computed once, at the head of the kernel.
    fn hoisted(&mut self, form: &Linear, name: impl FnOnce(&Self) -> String) -> Index {
        let form = &match self.written_out {
            true => Cow::Owned(self.at_this_lap(form)),
            false => Cow::Borrowed(form),
        };
        let of_thread = |a: &Atom| !a.is_data() && !a.uses(&|v| self.nest.thread(v).is_none());
        let (thread, rest) = form.partition(&of_thread);
        let trivial = matches!(thread.terms.as_slice(), [] | [(Atom::Var(_), 1)]);
        let base = if trivial {
            self.plain_index(&thread)
        } else {
            let key = (name(self), thread);
            match self.cache.get(&key) {
                Some(index) => index.clone(),
                None => {
                    let known = self.cache.iter().find(|((_, form), _)| *form == key.1).map(|(_, index)| index.clone());
                    let value = known.unwrap_or_else(|| self.plain_index(&key.1));
                    let var = self.fresh();
                    self.lets.push(Stmt::Let { var, name: key.0.clone(), value });
                    self.cache.insert(key, Index::Var(var));
                    Index::Var(var)
                }
            }
        };
        if rest.terms.iter().any(|(_, k)| *k < 0) || rest.constant < 0 {
            let whole = self.plain_index(&rest);
            return add(base, whole);
        }
        let mut sum = base;
        for (atom, k) in &rest.terms {
            sum = index::sum(sum, scaled(&self.atom(atom), *k));
        }
        add(sum, c(rest.constant))
    }

    /// An index into an array.
    pub fn index(&mut self, array: ArrayId, form: &Linear, role: &str) -> Index {
        let a = self.array(array);
        if a.space == Space::Register || a.len > i32::MAX as u64 {
            return self.plain_index(form);
        }
        self.hoisted(form, |this| format!("{}_{role}", this.array(array).name))
    }

    /// What stands under conditions that need not be asked again.
    pub(super) fn assuming<T>(&mut self, conditions: &[Pred], inside: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.assumed.len();
        self.assumed.extend(conditions.iter().map(|p| p.coarse(&self.nest.ranges)));
        let out = inside(self);
        self.assumed.truncate(before);
        out
    }

    /// A condition.
    pub fn condition(&mut self, clauses: &[Pred]) -> Cond {
        let mut coarse: Vec<Pred> = Vec::new();
        join(&mut coarse, clauses.iter().map(|p| p.coarse(&self.nest.ranges)).collect());
        if self.written_out {
            coarse.retain(|p| !p.map(&mut |form| self.at_this_lap(form)).holds(&self.nest.ranges));
        }
        coarse.retain(|p| !self.assumed.contains(p));
        let list = coarse.iter().map(|p| self.clause(p)).collect();
        all(list)
    }

    fn clause(&mut self, p: &Pred) -> Cond {
        let never = Cond::Lt(c(1), c(0));
        match p {
            Pred::Never => never,
            Pred::Lt(form, bound) => {
                // What is negative goes to the other side.
                let (up, down) = form.signs();
                let (a, b) = (self.hoisted(&up, |_| "edge".into()), self.hoisted(&down, |_| "edge".into()));
                match (add(a, c((-*bound).max(0))), add(b, c((*bound).max(0)))) {
                    (Index::Const(x), Index::Const(y)) if x < y => Cond::True,
                    (Index::Const(_), Index::Const(_)) => never,
                    (a, b) => Cond::Lt(a, b),
                }
            }
            Pred::Eq(form, value) => {
                let a = self.plain_index(form);
                match (a, *value) {
                    (Index::Const(x), y) if x == y => Cond::True,
                    (Index::Const(_), _) => never,
                    (a, y) => Cond::Eq(a, c(y)),
                }
            }
            Pred::Not(p) => Cond::Not(Box::new(self.clause(p))),
            Pred::And(list) => Cond::And(list.iter().map(|p| self.clause(p)).collect()),
            Pred::Or(list) => Cond::Or(list.iter().map(|p| self.clause(p)).collect()),
        }
    }

    /// All of the kernel. What threads and blocks decide of indices is computed at its head, but for what only comes after a loop that
    /// multiplies matrices: that has no registers for it.
    pub fn kernel_body(&mut self) -> Result<Vec<Stmt>, LowerError> {
        match self.rings_of_tiles.is_empty() {
            true => self.own_body(),
            false => self.with_roles(),
        }
    }

    /// What stands at the head belongs to another role.
    pub(super) fn forget(&mut self) {
        self.cache.clear();
        self.told.clear();
    }

    /// The code of the nest's threads.
    pub(super) fn own_body(&mut self) -> Result<Vec<Stmt>, LowerError> {
        let ends =
            |node: &Node| matches!(node, Node::Loop(l) if self.pipelines.contains_key(&l.var)) && has_instruction(node);
        let parts: Vec<&[Node]> = self.nest.body.split_inclusive(ends).collect();
        let mut out = Vec::new();
        for part in parts {
            let code = self.nodes(part)?;
            out.append(&mut self.lets);
            out.extend(code);
        }
        out.extend(self.all_stored());
        Ok(joined(out))
    }

    /// A list of statements.
    pub fn nodes(&mut self, nodes: &[Node]) -> Result<Vec<Stmt>, LowerError> {
        let places = self.places_of_boxes(nodes);
        self.with_all(&places, |this| this.statements(nodes))
    }

    fn statements(&mut self, nodes: &[Node]) -> Result<Vec<Stmt>, LowerError> {
        let mut out = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let (waits, meet) = self.before_filling(nodes, number);
            out.extend(waits);
            if meet {
                out.push(self.meet());
            }
            match node {
                Node::Barrier => out.extend(self.barrier()),
                Node::Leaf(leaf) => out.extend(self.leaf(leaf, None)?),
                Node::Loop(l) => out.extend(self.grouped(node, |this| this.for_loop(l))?),
            }
        }
        Ok(joined(out))
    }

    /// Emits with a variable bound to an index.
    pub fn with<T>(&mut self, v: VarId, index: Index, f: impl FnOnce(&mut Self) -> T) -> T {
        self.with_all(&[(v, index)], f)
    }

    /// [`Emitter::with`] of several.
    pub fn with_all<T>(&mut self, bound: &[(VarId, Index)], f: impl FnOnce(&mut Self) -> T) -> T {
        let old: Vec<_> = bound.iter().map(|(v, index)| (*v, self.env.insert(*v, index.clone()))).collect();
        let out = f(self);
        for (v, old) in old.into_iter().rev() {
            match old {
                Some(old) => self.env.insert(v, old),
                None => self.env.remove(&v),
            };
        }
        out
    }

    fn for_loop(&mut self, l: &Loop) -> Result<Vec<Stmt>, LowerError> {
        if let Some(code) = self.turns(l, &|this| this.nodes(&l.body)) {
            return code;
        }
        if let Some((leaf, _)) = single_leaf(l) {
            if is_tensor(&self.program.buffer(leaf.target).scope) && leaf.instruction.is_none() {
                // Nothing clears sums in tensor memory.
                return Ok(Vec::new());
            }
            if let Some(tile) = self.tiles.by_leaf.get(&leaf.id).filter(|tile| tile.loops[0] == l.var).cloned() {
                return self.store_tile(&tile);
            }
            if let Some(what) = leaf.instruction.as_deref().filter(|what| what.loops.first() == Some(&l.var)) {
                match what.what {
                    What::Matrices => {
                        if let Some(code) = self.by_stmatrix(leaf, what)? {
                            return Ok(code);
                        }
                    }
                    _ => return self.instruction(leaf, what),
                }
            }
        }
        if self.rings_of_tiles.contains_key(&l.var) {
            return self.consumed(l);
        }
        if self.pipelines.contains_key(&l.var) {
            return self.pipelined(l);
        }
        let Some((leaf, vars)) = single_leaf(l) else { return self.plain_loop(l) };
        let Some(mut own) = self.guarding.get(&leaf.id).cloned() else { return self.plain_loop(l) };
        let (inside, outside): (Vec<_>, Vec<_>) = own
            .when
            .iter()
            .cloned()
            .partition(|p| p.is_data() || p.coarse(&self.nest.ranges).uses(&|v| vars.contains(&v)));
        if outside.is_empty() {
            return self.plain_loop(l);
        }
        let cond = self.condition(&outside);
        let whole = own.clone();
        own.when = inside;
        self.guarding.insert(leaf.id, own);
        let then = self.assuming(&outside, |this| this.plain_loop(l));
        self.guarding.insert(leaf.id, whole);
        Ok(guarded(cond, then?))
    }

    fn plain_loop(&mut self, l: &Loop) -> Result<Vec<Stmt>, LowerError> {
        if let Some(code) = self.in_order(l)? {
            return Ok(code);
        }
        self.path.push((l.var, l.extent));
        let out = match self.whole_laps(l) {
            Some(whole) => self.laps_and_ends(l, whole),
            None if self.written_out && l.kind == LoopKind::Unrolled => self.one_by_one(l),
            // Then descriptors are constants.
            None if self.in_group && l.extent.saturating_mul(group::count(&l.body)) <= group::MOST => {
                self.one_by_one(l)
            }
            None => self.loop_inside(l, 0),
        };
        self.path.pop();
        out
    }

    /// A loop written out, so that what of its addresses threads decide is computed before the kernel's loop.
    fn one_by_one(&mut self, l: &Loop) -> Result<Vec<Stmt>, LowerError> {
        let mut code = Vec::new();
        for lap in 0..l.extent {
            code.extend(self.with(l.var, c(lap), |this| this.nodes(&l.body))?);
        }
        Ok(code)
    }

    /// A loop whose variable counts from `start` on.
    pub(super) fn loop_inside(&mut self, l: &Loop, start: i64) -> Result<Vec<Stmt>, LowerError> {
        if let [Node::Leaf(leaf)] = l.body.as_slice() {
            if l.kind == LoopKind::Vectorized {
                return self.leaf(leaf, Some(l));
            }
            if let Some(code) = if start == 0 { self.vector_leaf(leaf, l)? } else { None } {
                return Ok(code);
            }
        }
        let limit = self.unroll_limit;
        if let Some(Attr::Int(steps)) = l.annotations.get("pragma_auto_unroll_max_step") {
            self.unroll_limit = *steps;
        }
        let unroll = self.unroll(l);
        let var = self.fresh();
        if unroll == Unroll::Full {
            self.counted.insert(l.var);
        }
        // Sums may be added up in any order; other statements keep theirs.
        let mut of_matrices = true;
        leaves(&l.body, &mut |leaf| of_matrices &= leaf.instruction.is_some());
        let number = match of_matrices && flag(&l.annotations, keys::DESCENDING) {
            true => minus(c(2 * start + l.extent - 1), Index::Var(var)),
            false => Index::Var(var),
        };
        let body = self.with(l.var, number, |this| this.nodes(&l.body));
        self.counted.remove(&l.var);
        self.unroll_limit = limit;
        let body = body?;
        if body.is_empty() {
            return Ok(body);
        }
        let (name, start) = (l.name.clone(), c(start));
        let Some((steps, guards)) = l.steps.as_deref() else {
            return Ok(vec![Stmt::For { var, name, start, extent: c(l.extent), unroll, body }]);
        };
        // Where the conditions do not hold, nobody has said how many steps there are.
        let (by_data, plain): (Vec<_>, Vec<_>) = guards.iter().cloned().partition(Pred::is_data);
        let mut data = Vec::new();
        by_data.iter().for_each(|p| p.loads(&mut data));
        let mut code = self.fetched(&data, &plain)?;
        let cond = self.condition(&by_data);
        let mut data = Vec::new();
        steps.loads(&mut data);
        let mut inside = self.fetched(&data, guards)?;
        let extent = self.plain_index(steps);
        self.fetched.clear();
        inside.push(Stmt::For { var, name, start, extent, unroll: Unroll::No, body });
        code.extend(guarded(cond, inside));
        let cond = self.condition(&plain);
        Ok(guarded(cond, code))
    }

    fn unroll(&self, l: &Loop) -> Unroll {
        let staged = matches!(self.mode, Mode::Load | Mode::Store);
        if self.expanded.contains(&l.var) || l.kind != LoopKind::Serial || staged {
            return Unroll::Full;
        }
        if let Some(unroll) = self.rolled(l) {
            return unroll;
        }
        if has_barrier(&l.body) || l.body.iter().any(|n| self.has_pipeline(n)) {
            return Unroll::No;
        }
        let steps = steps(&l.body).saturating_mul(l.extent);
        if steps <= self.unroll_limit || (steps <= 16 && single_leaf(l).is_some_and(|(leaf, _)| !leaf.accumulates())) {
            Unroll::Full
        } else {
            Unroll::Auto
        }
    }

    fn has_pipeline(&self, node: &Node) -> bool {
        match node {
            Node::Loop(l) => self.pipelines.contains_key(&l.var) || l.body.iter().any(|n| self.has_pipeline(n)),
            _ => false,
        }
    }
}

/// Whether a statement in it is an instruction of a warp.
fn has_instruction(node: &Node) -> bool {
    match node {
        Node::Leaf(leaf) => leaf.instruction.is_some(),
        Node::Loop(l) => l.body.iter().any(has_instruction),
        Node::Barrier => false,
    }
}

/// `if`, where there is a condition.
pub fn guarded(cond: Cond, then: Vec<Stmt>) -> Vec<Stmt> {
    match cond {
        Cond::True => then,
        _ if then.is_empty() => then,
        cond => vec![Stmt::If { cond, then, otherwise: Vec::new() }],
    }
}

/// The only leaf of a loop, with the variables of the loops around it.
fn single_leaf(l: &Loop) -> Option<(&Leaf, Vec<VarId>)> {
    match l.body.as_slice() {
        [Node::Leaf(leaf)] => Some((leaf, vec![l.var])),
        [Node::Loop(inner)] => {
            let (leaf, mut vars) = single_leaf(inner)?;
            vars.push(l.var);
            Some((leaf, vars))
        }
        _ => None,
    }
}

/// The only leaf of a loop, and the loop right around it.
pub(super) fn innermost(l: &Loop) -> Option<(&Leaf, &Loop)> {
    match l.body.as_slice() {
        [Node::Leaf(leaf)] => Some((leaf, l)),
        [Node::Loop(inner)] => innermost(inner),
        _ => None,
    }
}

pub(super) fn has_barrier(nodes: &[Node]) -> bool {
    nodes.iter().any(|n| match n {
        Node::Barrier => true,
        Node::Loop(l) => has_barrier(&l.body),
        Node::Leaf(_) => false,
    })
}

/// Leaves that run, all loops expanded.
pub(super) fn steps(nodes: &[Node]) -> i64 {
    nodes
        .iter()
        .map(|n| match n {
            Node::Loop(l) => steps(&l.body).saturating_mul(l.extent),
            Node::Leaf(_) => 1,
            Node::Barrier => 0,
        })
        .fold(0, i64::saturating_add)
}

/// A form for people.
pub fn describe(form: &Linear, nest: &Nest) -> String {
    let mut parts: Vec<String> = Vec::new();
    let name = |v: VarId| nest.thread(v).map_or_else(|| format!("v{}", v.0), |t| t.tag.clone());
    for (atom, k) in &form.terms {
        let text = match atom {
            Atom::Var(v) => name(*v),
            Atom::Div(l, d) => format!("({}) // {d}", describe(l, nest)),
            Atom::Mod(l, d) => format!("({}) % {d}", describe(l, nest)),
            Atom::Other(op, a, b) => format!("{op:?}({}, {})", describe(a, nest), describe(b, nest)),
            Atom::Load(..) => "an element".into(),
        };
        parts.push(if *k == 1 { text } else { format!("{text} * {k}") });
    }
    if form.constant != 0 || parts.is_empty() {
        parts.push(form.constant.to_string());
    }
    parts.join(" + ")
}
