//! Memory of the simulator: values with what is known of who wrote and read them, and when.
use super::{Fault, FaultKind};
use crate::kernel::{Array, Space};
use satune_ir::interp::doubled;
use satune_ir::{semantics, BinOp, DType};
use std::rc::Rc;

/// No thread (or block).
const NOBODY: u32 = u32::MAX;
/// More than one thread.
const MANY: u32 = u32::MAX - 1;

/// The type in which threads hold values of a type: its own, or `f64` for all floats where nothing is to be rounded.
pub fn held(double: bool, dtype: DType) -> DType {
    if double {
        doubled(dtype)
    } else {
        dtype
    }
}

/// The result of an operation in a type.
pub fn round(dtype: DType, value: f64) -> f64 {
    brought(dtype, value, semantics::round)
}

/// What an array of the type holds of a value that the caller puts there.
pub fn moved(dtype: DType, value: f64) -> f64 {
    brought(dtype, value, semantics::moved)
}

fn brought(dtype: DType, value: f64, float: fn(f64, DType) -> f64) -> f64 {
    match dtype {
        // Their bits (see [`semantics::held`]).
        DType::I64 | DType::U64 => value,
        dtype if dtype.is_float() => float(value, dtype),
        dtype => semantics::wrap(value as i64, dtype) as f64,
    }
}

/// A value of one type as one of another.
pub fn convert(value: f64, from: DType, to: DType) -> f64 {
    match (from.is_float(), to.is_float()) {
        (true, true) => semantics::round(value, to),
        (true, false) => semantics::held(semantics::float_to_int(value, to), to),
        (false, true) => semantics::int_to_float(semantics::unheld(value, from), from, to),
        (false, false) => semantics::held(semantics::wrap(semantics::unheld(value, from), to), to),
    }
}

/// One array in global or shared memory. Time is counted in barriers; accesses of two threads in one interval between
/// barriers, one of them a write, are a race.
pub struct Tracked {
    /// Values, as [`semantics::held`] has them.
    pub data: Vec<f64>,
    known: Vec<bool>,
    writer: Vec<u32>,
    written_at: Vec<u32>,
    reader: Vec<u32>,
    read_at: Vec<u32>,
    in_flight: Vec<bool>,
    /// Asynchronous reads that are not complete.
    reading: Vec<u16>,
    /// Fences of the writer when it wrote; `u32::MAX` for what the TMA wrote.
    fenced: Vec<u32>,
    /// Global arrays that the kernel writes: the block that wrote or read an element.
    block_writer: Vec<u32>,
    block_reader: Vec<u32>,
    checked: bool,
    /// Every element of an array without contents: what is written there is forgotten.
    blank: Option<f64>,
    len: usize,
    dtype: DType,
    name: String,
}

/// Who accesses, and when.
#[derive(Clone)]
pub struct Access {
    /// Linear block number.
    pub block: u32,
    /// Linear thread number in the block.
    pub thread: u32,
    /// Barriers passed.
    pub epoch: u32,
    /// Where warps have roles: what happened before.
    pub order: Option<Rc<Order>>,
    /// Fences of the thread for asynchronous readers so far.
    pub fences: u32,
}

/// What happened before an access of a role.
pub struct Order {
    /// Number of the role.
    pub role: usize,
    /// First thread of each role, and the end.
    pub roles: Rc<Vec<(u32, u32)>>,
    /// For each thread, then each barrier with phases: its accesses (phases) with smaller numbers happened before.
    pub horizon: Vec<u32>,
}

impl Access {
    /// Whether an access of a thread (or the phase of a barrier) happened before.
    pub(super) fn is_after(&self, other: u32, epoch: u32) -> bool {
        match &self.order {
            _ if other == self.thread => true,
            None => epoch < self.epoch,
            Some(order) => order.horizon.get(other as usize).is_some_and(|end| epoch < *end),
        }
    }

    /// The same for all threads of a role.
    fn is_after_all(&self, role: usize, epoch: u32) -> bool {
        match &self.order {
            None => epoch < self.epoch,
            Some(order) => {
                let (first, end) = order.roles.get(role).copied().unwrap_or_default();
                (first..end).all(|t| order.horizon.get(t as usize).is_some_and(|h| epoch < *h))
            }
        }
    }

    fn role(&self) -> usize {
        self.order.as_ref().map_or(0, |o| o.role)
    }
}

impl Tracked {
    /// An array with given contents, and which of them are known (`None`: nothing is written).
    pub fn new(array: &Array, contents: Option<(Vec<f64>, Vec<bool>)>, double: bool) -> Tracked {
        let len = array.len as usize;
        let (data, known) = contents.unwrap_or_else(|| (vec![f64::NAN; len], vec![false; len]));
        // Global arrays that are only read cannot race.
        let checked = array.space == Space::Shared || array.written;
        let track = if checked { len } else { 0 };
        let blocks = if checked && array.space == Space::Global { len } else { 0 };
        Tracked {
            data,
            known,
            writer: vec![NOBODY; track],
            written_at: vec![0; track],
            reader: vec![NOBODY; track],
            read_at: vec![0; track],
            in_flight: vec![false; track],
            reading: vec![0; track],
            fenced: vec![0; track],
            block_writer: vec![NOBODY; blocks],
            block_reader: vec![NOBODY; blocks],
            checked,
            blank: None,
            len,
            dtype: held(double, array.dtype),
            name: array.name.clone(),
        }
    }

    /// An array of which only the places of accesses matter, of any size: integers are 0, floats 1.
    pub fn blank(array: &Array) -> Tracked {
        let value = if array.dtype.is_float() { 1.0 } else { 0.0 };
        let none = Array { len: 0, ..array.clone() };
        Tracked { blank: Some(value), len: array.len as usize, checked: false, ..Tracked::new(&none, None, false) }
    }

    /// Forgets everything (shared memory at the start of a block).
    pub fn clear(&mut self) {
        self.known.fill(false);
        self.writer.fill(NOBODY);
        self.reader.fill(NOBODY);
        self.in_flight.fill(false);
        self.reading.fill(0);
        self.one_role();
    }

    fn one_role(&mut self) {
        self.reader.truncate(self.writer.len());
        self.read_at.truncate(self.writer.len());
    }

    /// From here on, reads are noted for each role apart.
    pub fn part(&mut self, roles: usize) {
        let len = self.writer.len();
        self.one_role();
        for _ in 1..roles {
            self.reader.extend_from_within(..len);
            self.read_at.extend_from_within(..len);
        }
    }

    /// A new block begins: epochs start again.
    pub fn next_block(&mut self) {
        self.one_role();
        self.writer.fill(NOBODY);
        self.reader.fill(NOBODY);
    }

    fn fault(&self, who: &Access, index: usize, kind: FaultKind) -> Fault {
        Fault { kind, array: self.name.clone(), index: index as i64, block: who.block, thread: who.thread }
    }

    /// Position of an element, checked.
    pub fn position(&self, who: &Access, index: i64, width: u32) -> Result<usize, Fault> {
        let end = index.checked_add(i64::from(width));
        match (usize::try_from(index), end) {
            (Ok(i), Some(end)) if end <= self.len as i64 => {
                if i % width as usize != 0 {
                    return Err(self.fault(who, i, FaultKind::Misaligned { width }));
                }
                Ok(i)
            }
            _ => Err(Fault {
                kind: FaultKind::OutOfBounds { len: self.len as u64 },
                array: self.name.clone(),
                index,
                block: who.block,
                thread: who.thread,
            }),
        }
    }

    /// Reads an element.
    pub fn read(&mut self, who: &Access, i: usize) -> Result<f64, Fault> {
        if let Some(value) = self.blank {
            return Ok(value);
        }
        if self.checked {
            if self.in_flight[i] {
                return Err(self.fault(who, i, FaultKind::InFlight));
            }
            if self.writer[i] != NOBODY && !who.is_after(self.writer[i], self.written_at[i]) {
                return Err(self.fault(who, i, FaultKind::Race { other: self.writer[i], write: false }));
            }
            self.note_reader(who, i, who.epoch);
            if let Some(writer) = self.block_writer.get(i) {
                if *writer != NOBODY && *writer != who.block {
                    return Err(self.fault(who, i, FaultKind::BlockRace { other: *writer }));
                }
                self.block_reader[i] = who.block;
            }
        }
        if !self.known[i] {
            return Err(self.fault(who, i, FaultKind::Unwritten));
        }
        Ok(self.data[i])
    }

    /// Checks a write without doing it (cp.async claims its target when it is issued).
    pub fn claim(&mut self, who: &Access, i: usize) -> Result<(), Fault> {
        if !self.checked {
            return Ok(());
        }
        if self.in_flight[i] {
            return Err(self.fault(who, i, FaultKind::InFlight));
        }
        if self.reading[i] > 0 {
            return Err(self.fault(who, i, FaultKind::BeingRead));
        }
        if self.writer[i] != NOBODY && !who.is_after(self.writer[i], self.written_at[i]) {
            return Err(self.fault(who, i, FaultKind::Race { other: self.writer[i], write: true }));
        }
        for (role, at) in (i..self.reader.len()).step_by(self.writer.len().max(1)).enumerate() {
            let (reader, epoch) = (self.reader[at], self.read_at[at]);
            let before = match reader {
                NOBODY => true,
                MANY => who.is_after_all(role, epoch),
                reader => who.is_after(reader, epoch),
            };
            if !before {
                return Err(self.fault(who, i, FaultKind::Race { other: reader, write: true }));
            }
        }
        if let Some(writer) = self.block_writer.get(i) {
            for other in [*writer, self.block_reader[i]] {
                if other != NOBODY && other != who.block {
                    return Err(self.fault(who, i, FaultKind::BlockRace { other }));
                }
            }
            self.block_writer[i] = who.block;
        }
        self.writer[i] = who.thread;
        self.written_at[i] = who.epoch;
        self.fenced[i] = who.fences;
        Ok(())
    }

    fn note_reader(&mut self, who: &Access, i: usize, epoch: u32) {
        let at = i + who.role() * self.writer.len();
        if self.read_at[at] != epoch || self.reader[at] == NOBODY {
            self.reader[at] = who.thread;
            self.read_at[at] = epoch;
        } else if self.reader[at] != who.thread {
            self.reader[at] = MANY;
        }
    }

    /// The TMA begins to write an element. It will have been written by `writer` (a barrier) in its phase `phase`.
    pub fn begin_landing(&mut self, who: &Access, i: usize, writer: u32, phase: u32) -> Result<(), Fault> {
        self.begin(who, i)?;
        (self.writer[i], self.written_at[i], self.fenced[i]) = (writer, phase, u32::MAX);
        Ok(())
    }

    /// What the TMA writes is there.
    pub fn land(&mut self, i: usize, value: f64) {
        self.in_flight[i] = false;
        self.data[i] = value;
        self.known[i] = true;
    }

    /// TMA or `wgmma` begin to read an element. `fences`: of all threads, so far.
    pub fn begin_reading(&mut self, who: &Access, i: usize, fences: &[u32]) -> Result<(), Fault> {
        self.read(who, i)?;
        if self.fenced[i] != u32::MAX {
            let now = fences.get(self.writer[i] as usize).copied().unwrap_or(0);
            if now <= self.fenced[i] {
                return Err(self.fault(who, i, FaultKind::NoFence));
            }
        }
        self.reading[i] += 1;
        Ok(())
    }

    /// The read is complete, for the thread (or the role: `epoch`, one that has passed) that waited.
    pub fn end_reading(&mut self, who: &Access, i: usize, epoch: u32) -> f64 {
        self.reading[i] = self.reading[i].saturating_sub(1);
        let at = i + who.role() * self.writer.len();
        (self.reader[at], self.read_at[at]) = (who.thread, epoch);
        self.data[i]
    }

    /// Writes an element: a value of the array's type, as it is.
    pub fn write(&mut self, who: &Access, i: usize, value: f64) -> Result<(), Fault> {
        if self.blank.is_some() {
            return Ok(());
        }
        self.claim(who, i)?;
        self.data[i] = value;
        self.known[i] = true;
        Ok(())
    }

    /// Some of the element's bytes are written through another array that shares them. Several threads may write them, once what
    /// was there is gone: where two write the same bytes, their own array finds it.
    pub fn overwrite(&mut self, who: &Access, i: usize) -> Result<(), Fault> {
        if !self.known[i] && !self.in_flight[i] {
            return Ok(());
        }
        self.claim(who, i)?;
        self.known[i] = false;
        Ok(())
    }

    /// An asynchronous copy to the element begins.
    pub fn begin(&mut self, who: &Access, i: usize) -> Result<(), Fault> {
        if self.blank.is_some() {
            return Ok(());
        }
        self.claim(who, i)?;
        self.in_flight[i] = true;
        self.known[i] = false;
        Ok(())
    }

    /// The asynchronous copy to the element ends, for the thread that waited.
    pub fn end(&mut self, who: &Access, i: usize, value: f64) {
        if self.blank.is_some() {
            return;
        }
        self.in_flight[i] = false;
        self.data[i] = value;
        self.known[i] = true;
        self.writer[i] = who.thread;
        self.written_at[i] = who.epoch;
    }

    /// Adds atomically.
    pub fn add(&mut self, who: &Access, i: usize, value: f64) -> Result<(), Fault> {
        if self.blank.is_some() {
            return Ok(());
        }
        if !self.known[i] {
            return Err(self.fault(who, i, FaultKind::Unwritten));
        }
        self.data[i] = match self.dtype {
            dtype if dtype.is_float() => round(dtype, self.data[i] + value),
            dtype => {
                let [a, b] = [self.data[i], value].map(|v| semantics::unheld(v, dtype));
                semantics::held(semantics::integers(BinOp::Add, dtype, a, b), dtype)
            }
        };
        Ok(())
    }

    /// Which elements hold values.
    pub fn known(&self) -> &[bool] {
        &self.known
    }
}
