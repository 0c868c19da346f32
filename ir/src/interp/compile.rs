//! Compilation of statements, accesses and views.
use super::code::*;
use super::compiler::{Compiler, Scope, Slot, Storage};
use super::expression::{binary, Typed};
use super::fault::{Access, Fault};
use super::options::Options;
use super::value::{elements, BYTES_PER_ELEMENT};
use crate::{BinOp, BlockRealize, BufferId, DType, Expr, IterKind, Program, Stmt, Var};

/// Compiles a program.
pub(super) fn compile(program: &Program, options: &Options) -> Result<Code, Fault> {
    let mut c = Compiler::new(program, options);
    for &param in &program.params {
        c.allocate(param)?;
    }
    let body = Step::Block(Box::new(c.realize(&program.body, true)?));
    Ok(Code { body, ints: c.ints, floats: c.floats, arrays: c.arrays, blocks: c.blocks })
}

impl Compiler<'_> {
    /// Gives a buffer an array of its own.
    fn allocate(&mut self, id: BufferId) -> Result<usize, Fault> {
        let buffer = self.program.buffer(id);
        let shape = self.shape(id)?;
        if buffer.dtype == DType::Handle {
            return Err(self.invalid(format!("{} has elements of type handle", buffer.name)));
        }
        let count = elements(&shape)
            .ok_or_else(|| self.invalid(format!("the shape {shape:?} of {} is not one of an array", buffer.name)))?;
        self.bytes = self.bytes.saturating_add(count.saturating_mul(BYTES_PER_ELEMENT));
        if self.bytes > self.options.max_bytes {
            return Err(Fault::Memory { needed: self.bytes, limit: self.options.max_bytes });
        }
        self.arrays.push(ArrayInfo { name: buffer.name.clone(), dtype: buffer.dtype, shape });
        self.places.insert(id, Storage::Array(self.arrays.len() - 1));
        Ok(self.arrays.len() - 1)
    }

    fn realize(&mut self, realize: &BlockRealize, root: bool) -> Result<Block, Fault> {
        let block = &realize.block;
        let predicate = self.condition(&realize.predicate)?;
        if realize.iter_values.len() != block.iter_vars.len() {
            let (given, wanted) = (realize.iter_values.len(), block.iter_vars.len());
            return Err(self.invalid(format!("block {} has {wanted} iterators, but {given} values", block.name)));
        }
        let mut iterators = Vec::with_capacity(block.iter_vars.len());
        for (iv, value) in block.iter_vars.iter().zip(&realize.iter_values) {
            let (value, min, extent) = (self.int(value)?, self.int(&iv.min)?, self.int(&iv.extent)?);
            iterators.push(Iterator { slot: 0, value, min, extent, reduce: iv.kind == IterKind::Reduce });
        }
        // Only now: the values are those of the outer scope.
        for (it, iv) in iterators.iter_mut().zip(&block.iter_vars) {
            it.slot = self.bind(&iv.var);
        }
        let names = block.iter_vars.iter().zip(&iterators).map(|(iv, it)| (iv.var.name.to_string(), it.slot)).collect();
        self.blocks.push(BlockInfo { name: block.name.clone(), iterators: names });
        let outer = std::mem::replace(&mut self.block, self.blocks.len() - 1);
        let info = self.block;
        let arrays_before = self.arrays.len();
        let arrays = block.alloc_buffers.iter().map(|&b| self.allocate(b)).collect::<Result<Box<[_]>, _>>()?;
        // Regions are declared in terms of what is outside, so they come before the block's own views.
        let mut regions = Vec::new();
        if self.options.check_regions && !root {
            let reads = self.declare(&block.reads, &mut regions)?;
            let writes = self.declare(&block.writes, &mut regions)?;
            let has_init = block.init.is_some();
            self.scopes.push(Scope { info, reads, writes, has_init, arrays: arrays_before });
        }
        let views = block.match_buffers.iter().map(|m| self.view(m)).collect::<Result<Box<[_]>, _>>()?;
        let init = block.init.as_ref().map(|s| self.step(s)).transpose()?;
        let body = self.step(&block.body)?;
        if self.options.check_regions && !root {
            self.scopes.pop();
        }
        self.block = outer;
        let regions = regions.into();
        Ok(Block { info, predicate, iterators: iterators.into(), views, regions, init, arrays, body })
    }

    /// Keeps the bounds of declared regions in slots.
    fn declare(
        &mut self,
        declared: &[crate::Region],
        regions: &mut Vec<Region>,
    ) -> Result<Vec<(usize, Bounds)>, Fault> {
        let mut list = Vec::with_capacity(declared.len());
        for region in declared {
            let mut views = Vec::new();
            let mins = region.ranges.iter().map(|r| self.int(&r.min)).collect::<Result<_, _>>()?;
            let (array, mins) = self.resolve(region.buffer, mins, &mut views)?;
            // A view's extents are those of the last dimensions of what it shows; the others are one index wide.
            let lead = mins.len().saturating_sub(region.ranges.len());
            let mut bounds = Vec::with_capacity(mins.len());
            for (d, min) in mins.into_iter().enumerate() {
                let extent = if d < lead { Int::Const(1) } else { self.int(&region.ranges[d - lead].extent)? };
                let slots = (self.new_int(), self.new_int());
                bounds.push(slots);
                regions.push(Region { slots, min, extent });
            }
            list.push((array, bounds.into()));
        }
        Ok(list)
    }

    fn view(&mut self, (view, region): &(BufferId, crate::Region)) -> Result<View, Fault> {
        let (shape, source) = (self.shape(*view)?, self.shape(region.buffer)?);
        let (to, from) = (self.program.buffer(*view), self.program.buffer(region.buffer));
        if !self.places.contains_key(&region.buffer) {
            return Err(self.invalid(format!("{} shows {}, which nothing allocates", to.name, from.name)));
        }
        if region.ranges.len() != source.len() || shape.len() > source.len() || to.dtype != from.dtype {
            let (a, b) = (format!("{}{shape:?}", to.dtype.name()), format!("{}{source:?}", from.dtype.name()));
            return Err(self.invalid(format!("{} of {a} cannot show a part of {} of {b}", to.name, from.name)));
        }
        let lead = source.len() - shape.len();
        let (mut dims, mut place) = (Vec::new(), Vec::new());
        for (d, range) in region.ranges.iter().enumerate() {
            let slot = self.new_int();
            let own = d.checked_sub(lead);
            let (min, extent) = (self.int(&range.min)?, self.int(&range.extent)?);
            let expected = own.map_or(1, |v| shape[v]);
            dims.push(ViewDim { slot, min, extent, expected, source_extent: source[d] });
            place.push((slot, own));
        }
        self.places.insert(*view, Storage::View { source: region.buffer, dims: place });
        Ok(View { name: to.name.clone(), source: from.name.clone(), dims: dims.into() })
    }

    /// The array and the index into it that an index into a buffer stands for.
    fn resolve(
        &self,
        buffer: BufferId,
        index: Vec<Int>,
        views: &mut Vec<ViewAccess>,
    ) -> Result<(usize, Vec<Int>), Fault> {
        let name = &self.program.buffer(buffer).name;
        let shape = self.shape(buffer)?;
        if index.len() != shape.len() {
            let reason = format!("{name} has {} dimensions, but {} indices are given", shape.len(), index.len());
            return Err(self.invalid(reason));
        }
        match self.places.get(&buffer) {
            None => Err(self.invalid(format!("{name} is used where nothing allocates it"))),
            Some(Storage::Array(array)) => Ok((*array, index)),
            Some(Storage::View { source, dims }) => {
                views.push(ViewAccess { name: name.clone(), index: index.clone().into(), shape: shape.into() });
                let shifted = dims.iter().map(|&(slot, own)| match own {
                    Some(v) => binary(BinOp::Add, DType::I64, Int::Slot(slot), index[v].clone()),
                    None => Int::Slot(slot),
                });
                self.resolve(*source, shifted.collect(), views)
            }
        }
    }

    /// An element of a buffer, which is read or written.
    pub fn element(&mut self, buffer: BufferId, indices: &[Expr], access: Access) -> Result<Element, Fault> {
        let index = indices.iter().map(|e| self.int(e)).collect::<Result<_, _>>()?;
        let mut views = Vec::new();
        let (array, index) = self.resolve(buffer, index, &mut views)?;
        let shape = &self.arrays[array].shape;
        let mut dims = Vec::with_capacity(index.len());
        let mut stride = 1;
        for (index, &extent) in index.into_iter().zip(shape).rev() {
            dims.push(Dim { index, extent, stride });
            stride *= extent;
        }
        dims.reverse();
        Ok(Element { array, dims: dims.into(), views: views.into(), guards: self.guards(array, access) })
    }

    /// Every enclosing block has to declare the access, unless the array lives inside it. What a block writes it may
    /// also read where it has an init (whose result the body continues from), and so may blocks around it; these may also declare nothing at
    /// all, as the root does.
    fn guards(&self, array: usize, access: Access) -> Box<[Guard]> {
        let mut guards = Vec::new();
        for (depth, scope) in self.scopes.iter().enumerate().filter(|(_, s)| array < s.arrays) {
            let innermost = depth + 1 == self.scopes.len();
            let reads = if access == Access::Read { scope.reads.as_slice() } else { &[] };
            let writes_count = access == Access::Written || scope.has_init || !innermost;
            let writes = if writes_count { scope.writes.as_slice() } else { &[] };
            if !innermost && scope.reads.is_empty() && scope.writes.is_empty() {
                continue;
            }
            let regions = reads.iter().chain(writes).filter(|(a, _)| *a == array).map(|(_, b)| b.clone()).collect();
            guards.push(Guard { block: scope.info, access, regions });
        }
        guards.into()
    }

    fn step(&mut self, stmt: &Stmt) -> Result<Step, Fault> {
        self.enter()?;
        let step = self.step_inner(stmt);
        self.leave();
        step
    }

    fn step_inner(&mut self, stmt: &Stmt) -> Result<Step, Fault> {
        Ok(match stmt {
            Stmt::For(l) => {
                let (min, extent) = (self.int(&l.min)?, self.int(&l.extent)?);
                let slot = self.bind(&l.var);
                let body = self.step(&l.body)?;
                let tape = Tape::of(&body);
                Step::Loop(Box::new(Loop { slot, min, extent, body, tape }))
            }
            Stmt::Realize(r) => Step::Block(Box::new(self.realize(r, false)?)),
            Stmt::Seq(parts) => Step::Seq(parts.iter().map(|s| self.step(s)).collect::<Result<_, _>>()?),
            Stmt::Store { buffer, indices, value } => {
                let dtype = self.program.buffer(*buffer).dtype;
                let value = self.typed(value)?;
                let element = self.element(*buffer, indices, Access::Written)?;
                if dtype.is_float() {
                    Step::StoreFloat(Box::new((element, self.to_float(value, dtype))))
                } else {
                    Step::StoreInt(dtype, Box::new((element, self.to_int(value, dtype))))
                }
            }
            Stmt::If { cond, then, otherwise } => {
                let cond = self.condition(cond)?;
                let otherwise = otherwise.as_ref().map(|s| self.step(s)).transpose();
                Step::If(Box::new((cond, self.step(then)?, otherwise?)))
            }
            Stmt::Let { var, value, body } => self.let_step(var, value, body)?,
            Stmt::Evaluate(e) => match self.typed(e)? {
                Typed::Int(e, ..) => Step::EvaluateInt(e),
                Typed::Float(e, _) => Step::EvaluateFloat(e),
            },
        })
    }

    fn let_step(&mut self, var: &Var, value: &Expr, body: &Stmt) -> Result<Step, Fault> {
        let typed = self.typed(value)?;
        if var.dtype.is_float() {
            let value = self.to_float(typed, var.dtype);
            self.floats += 1;
            let slot = self.floats - 1;
            self.vars.insert(var.id, Slot::Float(slot, var.dtype));
            return Ok(Step::LetFloat(slot, Box::new((value, self.step(body)?))));
        }
        let value = self.to_int(typed, var.dtype);
        let slot = self.new_int();
        self.vars.insert(var.id, Slot::Int(slot, var.dtype));
        Ok(Step::LetInt(slot, Box::new((value, self.step(body)?))))
    }
}
