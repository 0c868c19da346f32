//! Execution of statements.
use super::code::*;
use super::fault::{Fault, Instance};
use super::options::Options;
use super::value::{float_cell, Array};
use crate::semantics::wrap;

/// Execution has ended with [`Machine::fault`]. Without contents, so that results travel in registers.
#[derive(Debug)]
pub(super) struct Stop;

/// Iterations of a chunk, where many run at a time.
pub(super) const CHUNK: usize = 64;

/// The values of an operation over a chunk: bits of floats, or integers.
pub(super) type Values = [u64; CHUNK];

/// The state of a run.
pub(super) struct Machine<'c> {
    pub code: &'c Code,
    pub arrays: Vec<Array>,
    pub ints: Vec<i64>,
    pub floats: Vec<f64>,
    pub fault: Option<Fault>,
    /// The innermost block that runs.
    block: usize,
    steps: u64,
    max_steps: u64,
    /// Asked once as many steps are done as `ask_at`.
    go_on: &'c dyn Fn() -> bool,
    ask_at: u64,
    /// For [`Machine::many`].
    pub room: Vec<Values>,
}

/// Statements and iterations between two questions whether to go on.
const ASK: u64 = 1 << 16;

impl<'c> Machine<'c> {
    /// Runs a program on the arrays of its parameters and returns them.
    pub fn run(
        code: &'c Code,
        inputs: &[Array],
        options: &Options,
        go_on: &'c dyn Fn() -> bool,
    ) -> Result<Vec<Array>, Fault> {
        let mut arrays = inputs.to_vec();
        for info in &code.arrays[inputs.len()..] {
            arrays.push(Array::unwritten(info.dtype, &info.shape)?);
        }
        let mut machine = Machine {
            code,
            arrays,
            ints: vec![0; code.ints],
            floats: vec![0.0; code.floats],
            fault: None,
            block: 0,
            steps: 0,
            max_steps: options.max_steps,
            go_on,
            ask_at: 0,
            room: Vec::new(),
        };
        let result = machine.step(&code.body);
        match (result, machine.fault.take()) {
            (Ok(()), None) => {
                machine.arrays.truncate(inputs.len());
                Ok(machine.arrays)
            }
            (_, Some(fault)) => Err(fault),
            // Every stop leaves its fault; this is for the type checker.
            (Err(Stop), None) => Err(Fault::Steps { limit: machine.max_steps, place: machine.place() }),
        }
    }

    /// Where the program is.
    pub fn place(&self) -> Box<Instance> {
        let info = &self.code.blocks[self.block];
        let iterators = info.iterators.iter().map(|(name, slot)| (name.clone(), self.ints[*slot])).collect();
        Box::new(Instance { block: info.name.clone(), iterators })
    }

    /// Ends the run.
    #[cold]
    pub fn stop<T>(&mut self, fault: Fault) -> Result<T, Stop> {
        self.fault = Some(fault);
        Err(Stop)
    }

    /// Ends the run since 64 bits do not hold a result.
    #[cold]
    pub fn overflow<T>(&mut self, what: String) -> Result<T, Stop> {
        let place = self.place();
        self.stop(Fault::Overflow { what, place })
    }

    fn count(&mut self) -> Result<(), Stop> {
        self.pass(1)
    }

    /// So many statements and iterations are executed.
    pub fn pass(&mut self, statements: u64) -> Result<(), Stop> {
        self.steps += statements;
        if self.steps > self.ask_at {
            return self.ask();
        }
        Ok(())
    }

    /// Whether there are steps left, and the caller wants them.
    #[cold]
    fn ask(&mut self) -> Result<(), Stop> {
        if self.steps > self.max_steps {
            let fault = Fault::Steps { limit: self.max_steps, place: self.place() };
            return self.stop(fault);
        }
        if !(self.go_on)() {
            return self.stop(Fault::Stopped);
        }
        self.ask_at = self.max_steps.min(self.steps.saturating_add(ASK));
        Ok(())
    }

    /// Statements and iterations that may still be executed.
    pub fn left(&self) -> u64 {
        self.max_steps.saturating_sub(self.steps)
    }

    /// Runs iterations of a loop one by one.
    pub fn each(&mut self, l: &Loop, from: i64, end: i64) -> Result<(), Stop> {
        for value in from..end {
            self.count()?;
            self.ints[l.slot] = value;
            self.step(&l.body)?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Loop(l) => {
                let min = self.int(&l.min)?;
                let extent = self.int(&l.extent)?;
                let Some(end) = min.checked_add(extent) else {
                    return self.overflow(format!("the range of a loop, {min} + {extent}"));
                };
                let Some(tape) = l.tape.as_ref().filter(|_| min < end) else { return self.each(l, min, end) };
                self.each(l, min, min + 1)?;
                match self.many(l, tape, min + 1, end)? {
                    true => Ok(()),
                    false => self.each(l, min + 1, end),
                }
            }
            Step::Block(block) => self.block(block),
            Step::Seq(steps) => steps.iter().try_for_each(|s| self.step(s)),
            Step::StoreInt(dtype, store) => {
                self.count()?;
                let value = wrap(self.int(&store.1)?, *dtype);
                self.store(&store.0, value as u64)
            }
            Step::StoreFloat(store) => {
                self.count()?;
                let value = self.float(&store.1)?;
                self.store(&store.0, float_cell(value))
            }
            Step::If(branches) => {
                let (cond, then, otherwise) = branches.as_ref();
                match (self.int(cond)? != 0, otherwise) {
                    (true, _) => self.step(then),
                    (false, Some(otherwise)) => self.step(otherwise),
                    (false, None) => Ok(()),
                }
            }
            Step::LetInt(slot, bound) => {
                self.ints[*slot] = self.int(&bound.0)?;
                self.step(&bound.1)
            }
            Step::LetFloat(slot, bound) => {
                self.floats[*slot] = self.float(&bound.0)?;
                self.step(&bound.1)
            }
            Step::EvaluateInt(e) => self.int(e).map(|_| ()),
            Step::EvaluateFloat(e) => self.float(e).map(|_| ()),
        }
    }

    fn block(&mut self, block: &Block) -> Result<(), Stop> {
        self.count()?;
        if self.int(&block.predicate)? == 0 {
            return Ok(());
        }
        for it in &block.iterators {
            self.ints[it.slot] = self.int(&it.value)?;
        }
        let outer = std::mem::replace(&mut self.block, block.info);
        let mut first = true;
        for (at, it) in block.iterators.iter().enumerate() {
            let (value, min, extent) = (self.ints[it.slot], self.int(&it.min)?, self.int(&it.extent)?);
            let Some(end) = min.checked_add(extent) else {
                return self.overflow(format!("the domain of an iterator, {min} + {extent}"));
            };
            if !(min..end).contains(&value) {
                let iterator = self.code.blocks[block.info].iterators[at].0.clone();
                let place = self.place();
                return self.stop(Fault::Domain { iterator, min, end, place });
            }
            first &= !it.reduce || value == min;
        }
        for &array in &block.arrays {
            self.arrays[array].forget();
        }
        for region in &block.regions {
            let (min, extent) = (self.int(&region.min)?, self.int(&region.extent)?);
            let Some(end) = min.checked_add(extent) else {
                return self.overflow(format!("the bounds of a region, {min} + {extent}"));
            };
            self.ints[region.slots.0] = min;
            self.ints[region.slots.1] = end;
        }
        for view in &block.views {
            self.view(view)?;
        }
        if let Some(init) = block.init.as_ref().filter(|_| first) {
            self.step(init)?;
        }
        self.step(&block.body)?;
        self.block = outer;
        Ok(())
    }

    fn view(&mut self, view: &View) -> Result<(), Stop> {
        let mut region = Vec::with_capacity(view.dims.len());
        let mut reason = None;
        for (d, dim) in view.dims.iter().enumerate() {
            let (min, extent) = (self.int(&dim.min)?, self.int(&dim.extent)?);
            self.ints[dim.slot] = min;
            let Some(end) = min.checked_add(extent) else {
                return self.overflow(format!("the bounds of a view, {min} + {extent}"));
            };
            region.push(format!("{min}:{end}"));
            if extent != dim.expected {
                reason = Some(format!("whose dimension {d} has {extent} indices where {} are due", dim.expected));
            } else if min < 0 || end > dim.source_extent {
                reason = Some(format!("whose dimension {d} is outside the extent {}", dim.source_extent));
            }
        }
        match reason {
            None => Ok(()),
            Some(reason) => {
                let region = format!("{}[{}]", view.source, region.join(", "));
                let place = self.place();
                self.stop(Fault::View { view: view.name.clone(), region, reason, place })
            }
        }
    }

    /// The row-major position of an access, within the array and its declarations.
    fn locate(&mut self, element: &Element) -> Result<usize, Stop> {
        for view in &element.views {
            for (index, extent) in view.index.iter().zip(&view.shape) {
                let at = self.int(index)?;
                if at < 0 || at >= *extent {
                    return self.outside(&view.name, &view.index, &view.shape);
                }
            }
        }
        let mut position = 0;
        for dim in &element.dims {
            let at = self.int(&dim.index)?;
            if at < 0 || at >= dim.extent {
                let code = self.code;
                let indices: Vec<Int> = element.dims.iter().map(|d| d.index.clone()).collect();
                let info = &code.arrays[element.array];
                return self.outside(&info.name, &indices, &info.shape);
            }
            position += at * dim.stride;
        }
        let position = position as usize;
        if !element.guards.is_empty() {
            self.check_declared(element, position)?;
        }
        Ok(position)
    }

    #[cold]
    fn outside<T>(&mut self, name: &str, indices: &[Int], shape: &[i64]) -> Result<T, Stop> {
        let index = indices.iter().map(|e| self.int(e)).collect::<Result<_, _>>()?;
        let place = self.place();
        self.stop(Fault::OutOfBounds { buffer: name.to_string(), index, shape: shape.to_vec(), place })
    }

    fn check_declared(&mut self, element: &Element, position: usize) -> Result<(), Stop> {
        'guards: for guard in &element.guards {
            'regions: for bounds in &guard.regions {
                for (&(min, end), dim) in bounds.iter().zip(&element.dims) {
                    // Evaluated again: nearly always a leaf, while a quotient of the position never is.
                    let at = self.int(&dim.index)?;
                    if at < self.ints[min] || at >= self.ints[end] {
                        continue 'regions;
                    }
                }
                continue 'guards;
            }
            return self.undeclared(element, guard, position);
        }
        Ok(())
    }

    #[cold]
    fn undeclared(&mut self, element: &Element, guard: &Guard, position: usize) -> Result<(), Stop> {
        let buffer = self.code.arrays[element.array].name.clone();
        let text = |bounds: &Bounds| {
            let dims: Vec<String> =
                bounds.iter().map(|&(min, end)| format!("{}:{}", self.ints[min], self.ints[end])).collect();
            format!("{buffer}[{}]", dims.join(", "))
        };
        let regions: Vec<String> = guard.regions.iter().map(text).collect();
        let declared = if regions.is_empty() { format!("no region of {buffer}") } else { regions.join(" and ") };
        let index = self.arrays[element.array].index_of(position);
        let block = self.code.blocks[guard.block].name.clone();
        let place = self.place();
        self.stop(Fault::Undeclared { access: guard.access, buffer, index, block, declared, place })
    }

    fn store(&mut self, element: &Element, cell: u64) -> Result<(), Stop> {
        let position = self.locate(element)?;
        let array = &mut self.arrays[element.array];
        array.cells[position] = cell;
        array.stamps[position] = array.epoch;
        Ok(())
    }

    /// The bits of an element.
    pub fn load(&mut self, element: &Element) -> Result<u64, Stop> {
        let position = self.locate(element)?;
        let array = &self.arrays[element.array];
        if array.stamps[position] != array.epoch {
            let fault = Fault::Unwritten {
                buffer: self.code.arrays[element.array].name.clone(),
                index: array.index_of(position),
                place: self.place(),
            };
            return self.stop(fault);
        }
        Ok(array.cells[position])
    }
}
