//! Memory of the simulator: values with what is known of who wrote and read them, and when.
use super::{Fault, FaultKind};
use crate::kernel::{Array, Space};
use satune_ir::DType;

/// No thread (or block).
const NOBODY: u32 = u32::MAX;
/// More than one thread.
const MANY: u32 = u32::MAX - 1;

/// A value as it is after a store to an array of the type.
pub fn round(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 | DType::TF32 => f64::from(value as f32),
        DType::F16 => half::f16::from_f64(value).to_f64(),
        DType::BF16 => half::bf16::from_f64(value).to_f64(),
        _ => value,
    }
}

/// One array in global or shared memory. Time is counted in barriers; accesses of two threads in one interval between
/// barriers, one of them a write, are a race.
pub struct Tracked {
    /// Values.
    pub data: Vec<f64>,
    known: Vec<bool>,
    writer: Vec<u32>,
    written_at: Vec<u32>,
    reader: Vec<u32>,
    read_at: Vec<u32>,
    in_flight: Vec<bool>,
    /// Global arrays that the kernel writes: the block that wrote or read an element.
    block_writer: Vec<u32>,
    block_reader: Vec<u32>,
    checked: bool,
    dtype: DType,
    name: String,
}

/// Who accesses, and when.
#[derive(Clone, Copy)]
pub struct Access {
    /// Linear block number.
    pub block: u32,
    /// Linear thread number in the block.
    pub thread: u32,
    /// Barriers passed.
    pub epoch: u32,
}

impl Tracked {
    /// An array with given contents (`None`: unwritten).
    pub fn new(array: &Array, contents: Option<Vec<f64>>) -> Tracked {
        let len = array.len as usize;
        let known = contents.is_some();
        // Global arrays that are only read cannot race.
        let checked = array.space == Space::Shared || array.written;
        let track = if checked { len } else { 0 };
        let blocks = if checked && array.space == Space::Global { len } else { 0 };
        Tracked {
            data: contents.unwrap_or_else(|| vec![f64::NAN; len]),
            known: vec![known; len],
            writer: vec![NOBODY; track],
            written_at: vec![0; track],
            reader: vec![NOBODY; track],
            read_at: vec![0; track],
            in_flight: vec![false; track],
            block_writer: vec![NOBODY; blocks],
            block_reader: vec![NOBODY; blocks],
            checked,
            dtype: array.dtype,
            name: array.name.clone(),
        }
    }

    /// Forgets everything (shared memory at the start of a block).
    pub fn clear(&mut self) {
        self.known.fill(false);
        self.writer.fill(NOBODY);
        self.reader.fill(NOBODY);
        self.in_flight.fill(false);
    }

    /// A new block begins: epochs start again.
    pub fn next_block(&mut self) {
        self.writer.fill(NOBODY);
        self.reader.fill(NOBODY);
    }

    fn fault(&self, who: Access, index: usize, kind: FaultKind) -> Fault {
        Fault { kind, array: self.name.clone(), index: index as i64, block: who.block, thread: who.thread }
    }

    /// Position of an element, checked.
    pub fn position(&self, who: Access, index: i64, width: u32) -> Result<usize, Fault> {
        let end = index.checked_add(i64::from(width));
        match (usize::try_from(index), end) {
            (Ok(i), Some(end)) if end <= self.data.len() as i64 => {
                if i % width as usize != 0 {
                    return Err(self.fault(who, i, FaultKind::Misaligned { width }));
                }
                Ok(i)
            }
            _ => Err(Fault {
                kind: FaultKind::OutOfBounds { len: self.data.len() as u64 },
                array: self.name.clone(),
                index,
                block: who.block,
                thread: who.thread,
            }),
        }
    }

    /// Reads an element.
    pub fn read(&mut self, who: Access, i: usize) -> Result<f64, Fault> {
        if self.checked {
            if self.in_flight[i] {
                return Err(self.fault(who, i, FaultKind::InFlight));
            }
            if self.writer[i] != NOBODY && self.written_at[i] == who.epoch && self.writer[i] != who.thread {
                return Err(self.fault(who, i, FaultKind::Race { other: self.writer[i], write: false }));
            }
            if self.read_at[i] != who.epoch || self.reader[i] == NOBODY {
                self.reader[i] = who.thread;
                self.read_at[i] = who.epoch;
            } else if self.reader[i] != who.thread {
                self.reader[i] = MANY;
            }
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
    pub fn claim(&mut self, who: Access, i: usize) -> Result<(), Fault> {
        if !self.checked {
            return Ok(());
        }
        if self.in_flight[i] {
            return Err(self.fault(who, i, FaultKind::InFlight));
        }
        if self.writer[i] != NOBODY && self.written_at[i] == who.epoch && self.writer[i] != who.thread {
            return Err(self.fault(who, i, FaultKind::Race { other: self.writer[i], write: true }));
        }
        let read_now = self.reader[i] != NOBODY && self.read_at[i] == who.epoch;
        if read_now && self.reader[i] != who.thread {
            return Err(self.fault(who, i, FaultKind::Race { other: self.reader[i], write: true }));
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
        Ok(())
    }

    /// Writes an element.
    pub fn write(&mut self, who: Access, i: usize, value: f64) -> Result<(), Fault> {
        self.claim(who, i)?;
        self.data[i] = round(self.dtype, value);
        self.known[i] = true;
        Ok(())
    }

    /// An asynchronous copy to the element begins.
    pub fn begin(&mut self, who: Access, i: usize) -> Result<(), Fault> {
        self.claim(who, i)?;
        self.in_flight[i] = true;
        self.known[i] = false;
        Ok(())
    }

    /// The asynchronous copy to the element ends, for the thread that waited.
    pub fn end(&mut self, who: Access, i: usize, value: f64) {
        self.in_flight[i] = false;
        self.data[i] = round(self.dtype, value);
        self.known[i] = true;
        self.writer[i] = who.thread;
        self.written_at[i] = who.epoch;
    }

    /// Adds atomically.
    pub fn add(&mut self, who: Access, i: usize, value: f64) -> Result<(), Fault> {
        if !self.known[i] {
            return Err(self.fault(who, i, FaultKind::Unwritten));
        }
        self.data[i] = round(self.dtype, self.data[i] + value);
        Ok(())
    }

    /// Elements that were never written.
    pub fn unwritten(&self) -> usize {
        self.known.iter().filter(|k| !**k).count()
    }
}
