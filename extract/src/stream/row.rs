//! Counts of what a row kernel does, decision by decision: what its rows and threads come to, what each place of a row adds, and
//! what each block adds. A kernel's work is their sum.
use super::accesses::{rows, Parted, Places, ShortRows, Touched};
use super::counts::{distinct_rows, guarded_load, starts, up, KernelWork, EXCHANGE, GUARD, LAP, ROW};
use satune_ir::machine::SECTOR;
use satune_ir::term::stream::{
    Access, AccessForm, BlockKind, HeldRow, PartValue, RowPlace, RowPlan, Shape, Stream, StreamBlock, StreamTerm,
};
use satune_ir::DType;

/// A row kernel whose rows and columns have threads.
pub(super) struct Rows<'a> {
    stream: &'a Stream,
    shape: Shape,
    blocks: &'a [StreamBlock],
    range: (usize, usize),
    serial_rows: i64,
    side_by_side: i64,
    threads: i64,
    vector: i64,
}

impl<'a> Rows<'a> {
    /// Of a plan's kernel, which are the blocks `from..to`.
    pub fn of(plan: &RowPlan, stream: &'a Stream, (from, to): (usize, usize)) -> Option<Rows<'a>> {
        let shape = stream.row_shape(from, to)?;
        let (serial_rows, side_by_side, threads, vector) =
            (plan.serial_rows, plan.side_by_side, plan.threads, plan.vector);
        let blocks = &stream.blocks[from..to];
        Some(Rows { stream, shape, blocks, range: (from, to), serial_rows, side_by_side, threads, vector })
    }

    /// Of a kernel that all blocks make, with the rows and threads that are decided on a path of nodes.
    pub fn on(path: &[&StreamTerm], stream: &'a Stream) -> Option<Rows<'a>> {
        let count = stream.blocks.len();
        let shape = stream.row_shape(0, count)?;
        let rows = path.iter().find_map(|node| match node {
            StreamTerm::Rows { serial, side_by_side, .. } => Some((*serial, *side_by_side)),
            _ => None,
        });
        let columns = path.iter().find_map(|node| match node {
            StreamTerm::Columns { threads, vector, .. } => Some((*threads, *vector)),
            _ => None,
        });
        let ((serial_rows, side_by_side), (threads, vector)) = (rows?, columns?);
        let blocks = &stream.blocks;
        Some(Rows { stream, shape, blocks, range: (0, count), serial_rows, side_by_side, threads, vector })
    }

    /// Whether a block of the kernel accesses a buffer.
    pub fn touches(&self, number: usize, buffer: usize) -> bool {
        self.blocks.get(number).is_some_and(|b| b.touches(buffer))
    }

    /// Threads of a block.
    pub fn threads(&self) -> i64 {
        self.threads * self.side_by_side
    }

    /// Rows of a block.
    pub fn rows_per_block(&self) -> i64 {
        self.serial_rows * self.side_by_side
    }

    /// All that the kernel does.
    pub fn whole(&self, plan: &RowPlan) -> KernelWork {
        let (from, to) = self.range;
        let mut work = self.team();
        let place = |buffer: usize| plan.place(&self.stream.buffers[buffer].name);
        let rows = self.stream.rows_of(from, to, plan.rows_per_block());
        for row in &rows {
            work.add(&self.hold(row.buffer, row.form, place(row.buffer)));
        }
        let registers: Vec<_> = rows.iter().map(|row| (*row, self.registers(row.buffer, place(row.buffer)))).collect();
        work.held_registers = HeldRow::most_at_once(&registers);
        for number in 0..self.blocks.len() {
            work.add(&self.stage(number, plan.unroll.get(number) == Some(&true), &place));
        }
        work
    }

    /// Whether a buffer has values of rows, which a thread keeps.
    fn per_row(&self, buffer: usize) -> bool {
        let accesses = || self.blocks.iter().flat_map(|b| b.accesses().map(move |a| (b, a)));
        accesses()
            .filter(|(_, a)| a.buffer == buffer)
            .all(|(b, a)| b.form(a, self.shape.row_iters) == AccessForm::PerRow)
    }

    fn bytes(&self, buffer: usize) -> i64 {
        i64::from(self.stream.buffers[buffer].dtype.bytes())
    }

    /// The lanes of warps, where a row has a part of one.
    fn short(&self) -> Option<ShortRows> {
        (self.threads < 32).then_some(ShortRows { rows: self.shape.rows, threads: self.threads.max(1) })
    }

    /// Warp accesses along a row, all rows.
    fn along(&self) -> f64 {
        match self.short() {
            Some(short) => short.warps() * self.laps() as f64,
            None => self.shape.rows as f64 * up(self.shape.columns, 32 * self.vector) as f64,
        }
    }

    /// How often a thread goes along a row.
    fn laps(&self) -> i64 {
        up(self.shape.columns, self.threads * self.vector)
    }

    /// Whether some threads have less of a row than others.
    fn ends(&self) -> bool {
        self.shape.columns % (self.threads * self.vector) != 0
    }

    /// Warps of a row.
    fn warps(&self) -> f64 {
        self.threads as f64 / 32.0
    }

    /// Instructions of warps for what one thread of each row does.
    fn led(&self) -> f64 {
        self.shape.rows as f64 * self.warps().min(1.0)
    }

    /// Accesses along all rows to an element for each of the columns; `long` are those where a row has whole warps.
    fn along_rows(&self, b: &StreamBlock, access: &Access, long: impl FnOnce() -> Touched) -> Touched {
        let Some(short) = self.short() else { return long() };
        let places = Places::of(b, access, self.shape.row_iters);
        short.touched(self.shape.columns, self.vector, self.bytes(access.buffer), &places)
    }

    /// Accesses to a value of each row.
    fn values(&self, b: &StreamBlock, access: &Access, instructions: f64) -> Touched {
        let Some(short) = self.short() else { return Touched { instructions, sectors: instructions } };
        let places = Places::of(b, access, self.shape.row_iters);
        let once = short.touched(1, 1, self.bytes(access.buffer), &places);
        once.times(instructions / once.instructions.max(1.0))
    }

    /// Accesses along rows of a buffer that is held in shared memory.
    fn in_shared(&self, work: &mut KernelWork, (buffer, form): (usize, AccessForm), instructions: f64, store: bool) {
        let bytes = self.bytes(buffer);
        // All threads of a block copy what is for all rows.
        match self.short().filter(|_| form != AccessForm::PerColumn || !store) {
            Some(short) => {
                // A row of a buffer has room for all that its threads copy.
                let pitch = if form == AccessForm::PerColumn { 0 } else { self.laps() * self.threads * self.vector };
                let each = short.wavefronts(self.vector, bytes, pitch);
                work.shared_in(instructions, each.map(|wavefronts| instructions * wavefronts), store);
            }
            None => work.shared(instructions, self.vector * bytes, store),
        }
    }

    /// What reading so many rows touches.
    fn row_reads(&self, b: &StreamBlock, access: &Access, count: i64) -> Touched {
        let length = self.shape.columns;
        let (chunk, bytes) = (32 * self.vector, self.bytes(access.buffer));
        let parts = access.split.and_then(|at| access.dims[at]).map(|i| b.iters[i].extent);
        match parts.filter(|_| self.vector > 1) {
            Some(parts) => {
                let tile = self.threads * self.vector;
                Parted { rows: count / parts, parts, length, tile }.touched(chunk, bytes)
            }
            None => rows(count, length, chunk, bytes),
        }
    }

    /// Sectors that a warp's access touches of a buffer whose elements neighbouring columns share.
    fn shared_sectors(&self, b: &StreamBlock, access: &Access) -> f64 {
        let last = access.dims.iter().flatten().max().map_or(0, |last| last + 1);
        let sharing: i64 = b.iters[last.max(self.shape.row_iters)..].iter().map(|i| i.extent).product();
        up(up(32 * self.vector, sharing) * self.bytes(access.buffer), SECTOR as i64) as f64
    }

    /// Blocks of the launch.
    fn block_count(&self) -> f64 {
        (self.shape.rows / self.rows_per_block().max(1)) as f64
    }

    /// What rows and threads come to by themselves.
    pub fn team(&self) -> KernelWork {
        let warps = self.shape.rows as f64 / self.serial_rows.max(1) as f64 * self.warps();
        let reduces = self.blocks.iter().any(|b| b.kind == BlockKind::Reduce);
        let exchange = if reduces && self.threads > 32 { EXCHANGE } else { 0.0 };
        KernelWork {
            blocks: self.block_count(),
            overhead: starts(warps, self.buffers()) + warps * exchange + self.in_turn_slots(),
            again_live: (self.shape.columns * self.side_by_side) as f64 * 4.0,
            ..KernelWork::default()
        }
    }

    /// Buffers that are in global memory.
    fn buffers(&self) -> usize {
        let all = 0..self.stream.buffers.len();
        let made = |buffer: usize| {
            let passed = self.blocks.iter().rev().skip(1).any(|b| b.write.buffer == buffer);
            passed && !self.stream.outlives(buffer, self.range.1)
        };
        all.filter(|buffer| !made(*buffer) && self.blocks.iter().any(|b| b.touches(*buffer))).count()
    }

    /// Instructions of the loop over rows in turn, all warps. Compilers expand it where a row is one sum without barriers.
    fn in_turn_slots(&self) -> f64 {
        let each = match (self.serial_rows, self.threads, self.blocks.len()) {
            (1, ..) | (_, ..=32, 1) => 0.0,
            (_, ..=32, _) => LAP,
            _ => ROW,
        };
        self.shape.rows as f64 * self.warps() * each
    }

    /// Rows of a block in turn, one chain after the other.
    fn in_turn(&self, chain: [f64; 4]) -> [f64; 4] {
        chain.map(|steps| steps * self.serial_rows as f64)
    }

    /// Registers of a thread for a buffer in a place, while it is held.
    pub fn registers(&self, buffer: usize, place: RowPlace) -> i64 {
        match place {
            RowPlace::Registers => self.laps() * self.vector * up(self.bytes(buffer), 4),
            RowPlace::Global | RowPlace::Shared => 0,
        }
    }

    /// What it takes to have a buffer in a place, registers aside.
    pub fn hold(&self, buffer: usize, form: AccessForm, place: RowPlace) -> KernelWork {
        let (shape, bytes) = (&self.shape, self.bytes(buffer));
        let (chunk, laps) = (32 * self.vector, self.laps());
        let mut work = KernelWork::default();
        match place {
            RowPlace::Global => return work,
            RowPlace::Registers => {}
            RowPlace::Shared if form == AccessForm::PerColumn => work.shared_bytes = shape.columns * bytes,
            RowPlace::Shared => work.shared_bytes = shape.columns * bytes * self.side_by_side,
        }
        if self.stream.made_in(buffer, self.range.0, self.range.1) {
            return work;
        }
        let (copied, times) = match form {
            AccessForm::PerColumn => (rows(1, shape.columns, chunk, bytes), self.block_count()),
            _ => {
                let mut reads = self.blocks.iter().flat_map(|b| b.reads.iter().map(move |a| (b, a)));
                let long = || rows(shape.rows, shape.columns, chunk, bytes);
                let read = reads.find(|(_, a)| a.buffer == buffer);
                (read.map_or_else(long, |(b, a)| self.along_rows(b, a, long)), 1.0)
            }
        };
        let copied = copied.times(times);
        work.global(copied, false);
        let (team, ends) = match form {
            AccessForm::PerColumn => (self.threads(), self.shape.columns % (self.threads() * self.vector) != 0),
            _ => (self.threads, self.ends()),
        };
        if ends {
            let rows = if form == AccessForm::PerColumn { self.block_count() } else { shape.rows as f64 };
            work.overhead += rows * team as f64 / 32.0 * guarded_load(self.vector, bytes);
        }
        let once = if form == AccessForm::PerColumn { 1.0 / self.serial_rows as f64 } else { 1.0 };
        work.chain = self.in_turn([once, 0.0, 0.0, 0.0]);
        if place == RowPlace::Shared {
            self.in_shared(&mut work, (buffer, form), copied.instructions, true);
            work.barriers += copied.instructions / (laps as f64).max(1.0);
        }
        work
    }

    /// What a block of the kernel does, with what it accesses in these places.
    pub fn stage(&self, number: usize, unroll: bool, place: &dyn Fn(usize) -> RowPlace) -> KernelWork {
        let (shape, blocks) = (&self.shape, self.blocks);
        let b = &blocks[number];
        let mut work = KernelWork::default();
        let last = number + 1 == blocks.len();
        // What others read after the kernel, too, is copied by a loop of its own.
        let copied = !last && self.stream.outlives(b.write.buffer, self.range.1);
        let to_memory = last || copied;
        let has_columns = b.iters.len() > shape.row_iters;
        let chunk = 32 * self.vector;
        let rows_all = shape.rows as f64;
        let warps = self.warps();
        let laps = if has_columns { self.laps() as f64 } else { 1.0 };
        let unrolled = unroll || laps == 1.0;
        let groups = if unrolled { 1.0 } else { laps };
        // Instances, as warp instructions.
        let only_first = last && !has_columns;
        let instances = match (has_columns, only_first) {
            (true, _) => self.along() * self.vector as f64,
            (false, true) => self.led(),
            (false, false) => rows_all * warps,
        };
        let mut latency = 0;
        for access in &b.reads {
            let before = blocks[..number].iter().any(|p| p.reads.iter().any(|r| r.buffer == access.buffer));
            let made = blocks[..number].iter().any(|p| p.write.buffer == access.buffer);
            let bytes = self.bytes(access.buffer);
            match (b.form(access, shape.row_iters), place(access.buffer)) {
                (AccessForm::Full | AccessForm::PerColumn, RowPlace::Registers) => {}
                (form @ (AccessForm::Full | AccessForm::PerColumn), RowPlace::Shared) => {
                    self.in_shared(&mut work, (access.buffer, form), self.along(), false);
                    latency = latency.max(1);
                }
                (AccessForm::Full, RowPlace::Global) => {
                    work.global(self.along_rows(b, access, || self.row_reads(b, access, shape.rows)), false);
                    if before {
                        work.again_bytes += (shape.rows * shape.columns * bytes) as f64;
                    }
                    latency = latency.max(if before { 2 } else { 3 });
                }
                (AccessForm::SharedRow, _) => {
                    // Rows that others have read, too, come from L2.
                    let (different, times) = distinct_rows(b, access, shape.row_iters);
                    let long = || self.row_reads(b, access, different).times(times);
                    work.global(self.along_rows(b, access, long), false);
                    latency = latency.max(if times > 1.0 { 2 } else { 3 });
                }
                (AccessForm::PerColumn, RowPlace::Global) => {
                    let long = || rows(1, shape.columns, chunk, bytes).times(rows_all);
                    work.global(self.along_rows(b, access, long), false);
                    latency = latency.max(2);
                }
                (AccessForm::PerRow, _) if made => {}
                (AccessForm::SomeColumns, _) => {
                    let instructions = instances / self.vector as f64;
                    work.global(
                        Touched { instructions, sectors: instructions * self.shared_sectors(b, access) },
                        false,
                    );
                    latency = latency.max(2);
                }
                _ => {
                    work.global(self.values(b, access, instances), false);
                    latency = latency.max(2);
                }
            }
        }
        match latency {
            3 => work.chain[0] += groups,
            2 => work.chain[1] += groups,
            1 => work.chain[2] += groups,
            _ => {}
        }
        let alone = self.vector == 1;
        // What the innermost iterator does not change.
        let outer = if b.iters.len() > shape.row_iters + 1 { instances / self.vector as f64 } else { rows_all * warps };
        work.operations(b, instances, outer, alone);
        // What an earlier block has computed from registers stays there: not what it computed under a guard, of which a compiler does
        // not know that it holds again. It does not look into conversions from f16, which are text to it, so that of what comes from
        // them it finds again the conversions alone, within code without branches.
        let shared = |part: &PartValue| {
            let held = |buffer: &usize| place(*buffer) == RowPlace::Registers || self.per_row(*buffer);
            let f16 = part.buffers.iter().any(|buffer| self.stream.buffers[*buffer].dtype == DType::F16);
            match part.varies {
                false => rows_all * warps,
                true if !part.buffers.iter().all(held) || f16 && (self.ends() || !part.converts) => 0.0,
                true if self.ends() => instances * (laps - 1.0) / laps,
                true => instances,
            }
        };
        let again = |part: &&PartValue| {
            blocks[..number].iter().flat_map(|earlier| &earlier.parts).any(|earlier| earlier.number == part.number)
        };
        for part in b.parts.iter().filter(again) {
            work.issues(&part.issued, -shared(part), alone);
        }
        let loops = if copied && has_columns { 2.0 } else { 1.0 };
        if !unrolled {
            work.overhead += loops * rows_all * warps * laps * LAP;
        }
        if has_columns && self.ends() {
            // The last lap alone has guards, and all that it does stands under one.
            work.overhead += loops * rows_all * warps * GUARD;
        }
        work.chain[3] += laps * self.vector as f64 * f64::from(b.arithmetic + 4 * b.special).max(1.0);
        if b.kind == BlockKind::Reduce {
            let stages = if self.threads > 32 { 2.0 } else { 1.0 };
            // A warp's lanes halve what is left step by step, and then as many as there are warps.
            let halvings = (self.threads.min(32) as f64).log2();
            let steps = rows_all * warps * (halvings + warps.max(1.0).log2().ceil());
            work.shuffles += steps;
            work.arithmetic += steps;
            work.chain[3] += halvings * 6.0 * stages;
            if stages > 1.0 {
                // One before partial results are read, and where rows follow, one before they are written again.
                work.barriers += if self.serial_rows > 1 { 2.0 * rows_all * warps } else { rows_all * warps };
                work.shared(2.0 * rows_all * warps, 4, false);
                work.chain[2] += 2.0;
            }
        }
        let bytes = self.bytes(b.write.buffer);
        match b.form(&b.write, shape.row_iters) {
            AccessForm::Full => {
                if to_memory {
                    let long = || rows(shape.rows, shape.columns, chunk, bytes);
                    work.global(self.along_rows(b, &b.write, long), true);
                }
                if !last && place(b.write.buffer) == RowPlace::Shared {
                    self.in_shared(&mut work, (b.write.buffer, AccessForm::Full), self.along(), true);
                    work.barriers += rows_all * warps;
                    if to_memory {
                        self.in_shared(&mut work, (b.write.buffer, AccessForm::Full), self.along(), false);
                    }
                }
            }
            AccessForm::PerRow if to_memory => {
                work.global(self.values(b, &b.write, self.led()), true);
            }
            _ => {}
        }
        work.chain = self.in_turn(work.chain);
        work
    }
}
