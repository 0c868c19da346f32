//! Timing on a GPU: warm-up, repeats with the L2 flushed before each, the clock beside them.
use super::super::protocol::MeasureJob;
use super::driver::{Arg, Buffer, Error, Event, Gpu, Module};
use super::inputs::Inputs;
use super::server::Trouble;
use super::support::{CLOCKS, COMPARE_BLOCKS, THREADS};
use crate::store::Timing;
use std::time::Instant;

/// Repeats whose events are queued at once.
const BATCH: usize = 8;
/// Blocks that read the L2 empty.
const READERS: u32 = 1024;
/// Repeats at least, unless cut off.
const LEAST: usize = 10;
/// Threads of a block of all kernels around the candidates.
pub(super) const BLOCK: [u32; 3] = [THREADS, 1, 1];

/// Queues one run of what is timed.
pub(super) type Run<'r> = dyn FnMut() -> Result<(), Error> + 'r;

/// The time of one run, ms.
pub(super) fn between(begin: &Event, end: &Event, run: &mut Run<'_>) -> Result<f64, Error> {
    begin.record()?;
    run()?;
    end.record()?;
    end.wait()?;
    end.since(begin)
}

/// What all problems share.
pub(super) struct Timer {
    /// The kernels around the candidates.
    pub support: Module,
    /// Three sums for each block of a comparison.
    pub sums: Buffer,
    /// Twice the L2: reading it after writing it leaves nothing of the inputs there, and nothing that is yet to be written
    /// back while something is timed.
    flush: Buffer,
    clock: Buffer,
    events: Vec<(Event, Event)>,
}

impl Timer {
    /// Loads the kernels around the candidates.
    pub fn new(gpu: &Gpu, support: &[u8]) -> Result<Timer, Error> {
        let info = gpu.info()?;
        let mut events = Vec::new();
        for _ in 0..BATCH {
            events.push((gpu.event()?, gpu.event()?));
        }
        Ok(Timer {
            support: gpu.load(support)?,
            sums: gpu.alloc(u64::from(COMPARE_BLOCKS) * 24)?,
            flush: gpu.alloc(2 * info.l2_bytes.max(1 << 24))?,
            clock: gpu.alloc(16)?,
            events,
        })
    }

    /// Checks where there is something to check, warms up, repeats until the median is known well enough, checks again.
    pub fn time(
        &self,
        gpu: &Gpu,
        job: &MeasureJob,
        inputs: Option<&Inputs>,
        run: &mut Run<'_>,
    ) -> Result<Timing, Trouble> {
        let verify = |run: &mut Run<'_>| match inputs {
            Some(inputs) => inputs.verify(gpu, self, &job.tolerances, run).map(Some),
            None => Ok(None),
        };
        let mut error = verify(run)?;
        let start = Instant::now();
        let mut timing = Timing {
            times_ms: Vec::new(),
            rounds: 1,
            cut_off: false,
            clock_mhz: None,
            relative_error: None,
            conditions: None,
        };
        if job.most_repeats == 0 {
            let (begin, end) = &self.events[0];
            timing.times_ms = vec![between(begin, end, run)?];
            timing.relative_error = error;
            return Ok(timing);
        }
        // The first three tell how long it takes; they are warm-up and not recorded unless they decide.
        let first = self.batch(3, run)?;
        let quick = first.iter().copied().fold(f64::INFINITY, f64::min);
        if job.cut_off_ms.is_some_and(|limit| quick > limit) {
            timing.cut_off = true;
            timing.times_ms = first;
        } else {
            // 20 ms of work bring the clocks up.
            let warm = (20.0 / quick.max(1e-3)).ceil().min(200.0) as usize;
            for _ in 0..warm {
                run()?;
            }
            let most = (job.most_repeats as usize).max(LEAST);
            // Some at least, however long the warm-up took: no times would be blamed on the kernel.
            let go_on = |count| count == 0 || (count < most && start.elapsed().as_secs_f64() < job.seconds);
            while go_on(timing.times_ms.len()) {
                timing.times_ms.extend(self.batch(BATCH, run)?);
                let count = timing.times_ms.len();
                if count >= LEAST && 1.2533 * timing.spread() / (count as f64).sqrt() < job.settle {
                    break;
                }
            }
        }
        timing.clock_mhz = Some(self.clock_mhz(run)?);
        if !timing.cut_off {
            // Of two checks the worse.
            let again = verify(run)?;
            error = error.zip(again).map(|(first, second)| first.max(second));
        }
        timing.relative_error = error;
        if timing.median_ms() < job.floor_ms {
            let (got, floor) = (timing.median_ms(), job.floor_ms);
            return Err(Trouble::Wrong(format!("{got:.6} ms, but this GPU cannot need less than {floor:.6} ms")));
        }
        Ok(timing)
    }

    /// The least of three times, ms.
    pub fn quick(&self, run: &mut Run<'_>) -> Result<f64, Error> {
        Ok(self.batch(3, run)?.into_iter().fold(f64::INFINITY, f64::min))
    }

    /// Times two in turns, after both were warmed up; a round is three runs of each. Of each its times, and of each round
    /// the second's median over the first's.
    pub fn in_turns(
        &self,
        job: &MeasureJob,
        rounds: u32,
        [ours, theirs]: [&mut Run<'_>; 2],
    ) -> Result<([Timing; 2], Vec<f64>), Trouble> {
        let empty = || Timing {
            times_ms: Vec::new(),
            rounds,
            cut_off: false,
            clock_mhz: None,
            relative_error: None,
            conditions: None,
        };
        let mut timings = [empty(), empty()];
        let mut ratios = Vec::new();
        let start = Instant::now();
        for run in [&mut *ours, &mut *theirs] {
            let quick = self.quick(run)?;
            for _ in 0..(10.0 / quick.max(1e-3)).ceil().min(100.0) as usize {
                run()?;
            }
        }
        // At least two rounds, however long they take: one has no spread.
        while ratios.len() < rounds as usize && (ratios.len() < 2 || start.elapsed().as_secs_f64() < job.seconds) {
            let first = self.batch(3, ours)?;
            let second = self.batch(3, theirs)?;
            ratios.push(crate::store::median(&second) / crate::store::median(&first));
            timings[0].times_ms.extend(first);
            timings[1].times_ms.extend(second);
        }
        timings[0].clock_mhz = Some(self.clock_mhz(ours)?);
        timings[1].clock_mhz = Some(self.clock_mhz(theirs)?);
        if timings[0].median_ms() < job.floor_ms {
            let (got, floor) = (timings[0].median_ms(), job.floor_ms);
            return Err(Trouble::Wrong(format!("{got:.6} ms, but this GPU cannot need less than {floor:.6} ms")));
        }
        Ok((timings, ratios))
    }

    /// Times of some repeats, the L2 flushed before each.
    fn batch(&self, count: usize, run: &mut Run<'_>) -> Result<Vec<f64>, Error> {
        let count = count.min(BATCH);
        let read_all = self.support.kernel("read_all", 0)?;
        let words = self.flush.bytes() / 8;
        let all = [Arg::Buffer(&self.flush), Arg::Int(words as i64), Arg::Buffer(&self.clock)];
        for (i, (start, end)) in self.events[..count].iter().enumerate() {
            self.flush.set(i as u8)?;
            read_all.launch([READERS, 1, 1], BLOCK, &all)?;
            start.record()?;
            run()?;
            end.record()?;
        }
        self.events[..count]
            .iter()
            .map(|(start, end)| {
                end.wait()?;
                end.since(start)
            })
            .collect()
    }

    /// The clock right behind a few runs, MHz.
    fn clock_mhz(&self, run: &mut Run<'_>) -> Result<f64, Error> {
        for _ in 0..3 {
            run()?;
        }
        let arguments = [Arg::Buffer(&self.clock), Arg::Int(CLOCKS)];
        self.support.kernel("clock_rate", 0)?.launch([1, 1, 1], [1, 1, 1], &arguments)?;
        let counted: Vec<u64> = self.clock.read(2)?;
        let (clocks, ns) = (counted.first().copied().unwrap_or(0), counted.get(1).copied().unwrap_or(0));
        Ok(clocks as f64 / (ns.max(1)) as f64 * 1e3)
    }
}
