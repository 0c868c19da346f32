//! The innermost loop over a block, many iterations at a time.
//!
//! Where indices are linear in the loop's variable, what is true of an index at both ends of a range is true between them: bounds are
//! looked at there, and the operations of the value are run one after the other, each for a chunk of iterations. The first
//! iteration, which may have an init, and every chunk in which anything is not as it should be, run as all others do: so faults are
//! the same.
use super::code::*;
use super::run::{Machine, Stop, Values, CHUNK};
use super::value::float_cell;
use crate::semantics::{float_to_int, floats, int_to_float, integers, round, wrap};
use crate::{BinOp, DType};

/// Fewer iterations than this are run one by one.
const FEW: i64 = 8;
/// Statements of an iteration: the loop's, the block's, the store.
const STATEMENTS: u64 = 3;

/// Where a run over a range begins, and its step: of positions in arrays.
#[derive(Clone, Copy)]
struct Line {
    first: i64,
    step: i64,
}

impl Machine<'_> {
    /// Runs iterations of a loop that has a [`Tape`]; tells whether it could.
    pub(super) fn many(&mut self, of: &Loop, tape: &Tape, from: i64, end: i64) -> Result<bool, Stop> {
        let (Step::Block(block), count) = (&of.body, end - from) else { return Ok(false) };
        if count < FEW || self.left() / STATEMENTS <= count as u64 {
            return Ok(false);
        }
        let Some((begin, begun)) = self.place_of(of, block, tape, from) else { return Ok(false) };
        let Some((last, ended)) = self.place_of(of, block, tape, end - 1) else { return Ok(false) };
        let past = |at: usize, it: &Iterator| {
            let Int::Const(min) = it.min else { return false };
            it.reduce && begin[at] > min && last[at] > min
        };
        let mut iterators = block.iterators.iter().enumerate();
        if block.init.is_some() && !iterators.any(|(at, it)| past(at, it)) {
            return Ok(false);
        }
        let line = |(first, last): (&i64, &i64)| Line { first: *first, step: (last - first) / (count - 1) };
        let lines: Vec<Line> = begun.iter().zip(&ended).map(line).collect();
        if tape.carried.is_some() && lines.last().is_none_or(|store| store.step != 0) {
            return Ok(false);
        }
        let mut done = 0;
        while done < count {
            let now = (count - done).min(CHUNK as i64);
            if self.chunk(tape, &lines, done, now as usize).is_some() {
                self.pass(STATEMENTS * now as u64)?;
            } else {
                self.each(of, from + done, from + done + now)?;
            }
            done += now;
        }
        // As the last iteration leaves them.
        self.place_of(of, block, tape, end - 1);
        Ok(true)
    }

    /// Sets the variables for an iteration, and gives the iterators and the positions of loads and of the store; none where one
    /// is not within its bounds.
    fn place_of(&mut self, of: &Loop, block: &Block, tape: &Tape, value: i64) -> Option<(Vec<i64>, Vec<i64>)> {
        self.ints[of.slot] = value;
        let mut iterators = Vec::with_capacity(block.iterators.len());
        for it in &block.iterators {
            let (Int::Const(min), Int::Const(extent)) = (&it.min, &it.extent) else { return None };
            let value = self.linear(&it.value)?;
            if value < *min || value >= min.checked_add(*extent)? {
                return None;
            }
            iterators.push(value);
        }
        for (it, value) in block.iterators.iter().zip(&iterators) {
            self.ints[it.slot] = *value;
        }
        let mut positions = Vec::with_capacity(tape.loads.len() + 1);
        for element in tape.loads.iter().chain([&tape.store]) {
            let mut position = 0;
            for dim in &element.dims {
                let at = self.linear(&dim.index)?;
                if at < 0 || at >= dim.extent {
                    return None;
                }
                position += at * dim.stride;
            }
            positions.push(position);
        }
        Some((iterators, positions))
    }

    /// A sum that its type does not wrap.
    fn linear(&self, e: &Int) -> Option<i64> {
        match e {
            Int::Const(v) => Some(*v),
            Int::Slot(slot) => Some(self.ints[*slot]),
            Int::Affine(a) => {
                let term =
                    |sum: i64, (slot, factor): &(usize, i64)| sum.checked_add(self.ints[*slot].checked_mul(*factor)?);
                let sum = a.terms.iter().try_fold(a.constant, term)?;
                (wrap(sum, a.dtype) == sum).then_some(sum)
            }
            _ => None,
        }
    }

    /// Runs a chunk; none, with nothing done, where something is not as it should be.
    fn chunk(&mut self, tape: &Tape, lines: &[Line], done: i64, count: usize) -> Option<()> {
        let mut room = std::mem::take(&mut self.room);
        room.resize(tape.ops.len().max(room.len()), [0; CHUNK]);
        let result = self.operate(tape, lines, done, count, &mut room);
        self.room = room;
        result
    }

    fn operate(&mut self, tape: &Tape, lines: &[Line], done: i64, count: usize, room: &mut [Values]) -> Option<()> {
        for (at, op) in tape.ops.iter().enumerate() {
            let (before, rest) = room.split_at_mut(at);
            let out = &mut rest[0][..count];
            match op {
                Op::Load(load) => self.gather(&tape.loads[*load], lines[*load], done, out)?,
                Op::Const(bits) => out.fill(*bits),
                Op::Slot(slot) => out.fill(self.floats[*slot].to_bits()),
                Op::Floats(op, dtype, a, b) => both(*op, *dtype, &before[*a], &before[*b], out)?,
                Op::Ints(op, dtype, a, b) => {
                    let pairs = before[*a].iter().zip(&before[*b]);
                    out.iter_mut().zip(pairs).for_each(|(o, (a, b))| {
                        *o = integers(*op, *dtype, *a as i64, *b as i64) as u64;
                    });
                }
                Op::Call(function, dtype, args) => {
                    for (n, o) in out.iter_mut().enumerate() {
                        *o = function.apply(args.map(|a| f64::from_bits(before[a][n])), *dtype).to_bits();
                    }
                }
                Op::Round(dtype, a) => each(&before[*a], out, |x| round(f64::from_bits(x), *dtype).to_bits()),
                Op::Wrap(dtype, a) => each(&before[*a], out, |x| wrap(x as i64, *dtype) as u64),
                Op::FromInt(from, to, a) => each(&before[*a], out, |x| int_to_float(x as i64, *from, *to).to_bits()),
                Op::FromFloat(dtype, a) => each(&before[*a], out, |x| float_to_int(f64::from_bits(x), *dtype) as u64),
            }
        }
        let values = &room[tape.ops.len() - 1][..count];
        let store = lines[lines.len() - 1];
        let array = &mut self.arrays[tape.store.array];
        let Some((op, dtype, first)) = tape.carried else {
            for (n, value) in values.iter().enumerate() {
                let position = (store.first + (done + n as i64) * store.step) as usize;
                array.cells[position] = match tape.whole {
                    Some(dtype) => wrap(*value as i64, dtype) as u64,
                    None => float_cell(f64::from_bits(*value)),
                };
                array.stamps[position] = array.epoch;
            }
            return Some(());
        };
        let position = store.first as usize;
        if array.stamps[position] != array.epoch {
            return None;
        }
        let before = array.cells[position];
        array.cells[position] = match tape.whole {
            Some(whole) => {
                let next = |sum: i64, x: &u64| {
                    let (a, b) = if first { (sum, *x as i64) } else { (*x as i64, sum) };
                    wrap(integers(op, dtype, a, b), whole)
                };
                values.iter().fold(before as i64, next) as u64
            }
            None => float_cell(total(op, dtype, first, f64::from_bits(before), values)?),
        };
        Some(())
    }

    /// Elements of an array along a line; none where one is unwritten.
    fn gather(&self, element: &Element, line: Line, done: i64, out: &mut [u64]) -> Option<()> {
        let array = &self.arrays[element.array];
        let start = (line.first + done * line.step) as usize;
        if line.step == 1 {
            let range = start..start + out.len();
            out.copy_from_slice(&array.cells[range.clone()]);
            return array.stamps[range].iter().all(|stamp| *stamp == array.epoch).then_some(());
        }
        let mut written = true;
        for (n, o) in out.iter_mut().enumerate() {
            let position = (start as i64 + n as i64 * line.step) as usize;
            written &= array.stamps[position] == array.epoch;
            *o = array.cells[position];
        }
        written.then_some(())
    }
}

#[inline]
fn each(from: &Values, out: &mut [u64], f: impl Fn(u64) -> u64) {
    out.iter_mut().zip(from).for_each(|(o, x)| *o = f(*x));
}

/// An operation on floats over a chunk; what most values are made of is a loop of its own. None where floats have no such operation.
fn both(op: BinOp, dtype: DType, a: &Values, b: &Values, out: &mut [u64]) -> Option<()> {
    match (op, dtype) {
        (BinOp::Mul, DType::F32) => over(a, b, out, |a, b| f64::from((a * b) as f32)),
        (BinOp::Add, DType::F32) => over(a, b, out, |a, b| f64::from((a + b) as f32)),
        (BinOp::Mul, DType::F64) => over(a, b, out, |a, b| a * b),
        (BinOp::Add, DType::F64) => over(a, b, out, |a, b| a + b),
        _ => {
            for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
                *o = floats(op, dtype, f64::from_bits(*a), f64::from_bits(*b))?.to_bits();
            }
        }
    }
    Some(())
}

#[inline]
fn over(a: &Values, b: &Values, out: &mut [u64], f: impl Fn(f64, f64) -> f64) {
    for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
        *o = f(f64::from_bits(*a), f64::from_bits(*b)).to_bits();
    }
}

/// What stands in an element after a chunk of values was joined to it, one by one.
fn total(op: BinOp, dtype: DType, first: bool, before: f64, values: &[u64]) -> Option<f64> {
    let numbers = values.iter().map(|x| f64::from_bits(*x));
    match (op, dtype) {
        (BinOp::Add, DType::F32) => Some(numbers.fold(before, |sum, x| f64::from((sum + x) as f32))),
        (BinOp::Add, DType::F64) => Some(numbers.fold(before, |sum, x| sum + x)),
        _ => numbers.into_iter().try_fold(before, |sum, x| {
            let (a, b) = if first { (sum, x) } else { (x, sum) };
            floats(op, dtype, a, b)
        }),
    }
}
