//! What is fixed of a product's schedules, in the words that a question is read from.
use super::fixed::{Fixed, Operand};
use super::tensor::{Multiplier, Way};
use satune_ir::term::tensor::{CopyOrder, GroupMma, Mma, Store, TileLayout};
use satune_ir::term::{Axis, Pair, Pipe, Side};

/// Decisions that stand one after the other.
#[derive(Default)]
struct Said(Vec<String>);

impl Said {
    /// Says a decision that is fixed.
    fn say<T>(&mut self, fixed: Option<T>, words: impl FnOnce(T) -> String) {
        self.0.extend(fixed.map(words));
    }

    /// Says one of two.
    fn either(&mut self, fixed: Option<bool>, yes: &str, no: &str) {
        self.say(fixed, |is| (if is { yes } else { no }).into());
    }

    /// Says a number after its word.
    fn number(&mut self, word: &str, fixed: Option<impl std::fmt::Display>) {
        self.say(fixed, |n| format!("{word} {n}"));
    }

    /// Says a pair after its word, and which loop is the outer one.
    fn pair(&mut self, word: &str, fixed: Option<Pair>, m_outer: Option<bool>) {
        let outer = match m_outer {
            Some(true) => " m outer",
            Some(false) => " n outer",
            None => "",
        };
        self.say(fixed, |p| format!("{word} {}x{}{outer}", p.m, p.n));
    }
}

impl Fixed {
    /// The question in words; [`super::parse::parse`] reads them.
    pub fn words(&self) -> String {
        let mut said = Said::default();
        // An instruction's name says what multiplies.
        let kind = self.kind.filter(|_| self.mma.instruction.is_none());
        // Which of the two it is, is the GPU's to say: then who brings tiles tells the kind.
        let told = self.wgmma.op.is_none() && self.wgmma.by_threads.is_some();
        said.say(kind.filter(|kind| *kind != Multiplier::Wgmma || !told), |kind| match kind {
            Multiplier::Cores => "cores".into(),
            Multiplier::Wgmma => self.wgmma.op.map_or("TMA", GroupMma::name).into(),
            kind => kind.name().into(),
        });
        said.either(self.swapped, "swapped", "swapped no");
        said.pair("block", self.block, None);
        said.number("k", self.k);
        said.number("step", self.step);
        said.number("threads", self.threads);
        said.pair("threads", self.thread_grid, None);
        said.pair("warps", self.warps, self.warps_m_outer);
        said.pair("lanes", self.lanes, self.lanes_m_outer);
        said.pair("vthreads", self.vthreads, None);
        said.pair("vthreads outside", self.vthreads_outside, None);
        said.pair("vthreads inside", self.vthreads_inside, None);
        said.pair("registers", self.registers, self.registers_m_outer);
        said.say(self.stages, |pipe| match pipe {
            Pipe::Plain => "stages serial".into(),
            Pipe::Registers => "stages registers".into(),
            Pipe::Async(stages) => format!("stages {stages}"),
        });
        said.number("split", self.split);
        said.either(self.blocks_m_outer, "order m n", "order n m");
        said.say(self.group, |group| match group {
            None => "group none".into(),
            Some((axis, size)) => format!("group {} {size}", if axis == Axis::M { "m" } else { "n" }),
        });
        for (side, name) in [(Side::A, "A"), (Side::B, "B")] {
            said.0.extend(self.operand(side).words().into_iter().map(|words| format!("{name} {words}")));
            let way = &self.mma.ways[usize::from(side == Side::B)];
            said.0.extend(way.words().into_iter().map(|words| format!("{name}: {words}")));
        }
        said.either(self.unroll, "unroll yes", "unroll no");
        said.number("store", self.store);
        said.either(self.init_hoisted, "init hoisted", "init inside");
        said.either(self.accumulators, "accumulators registers", "accumulators global");
        self.mma_words(&mut said);
        self.wgmma_words(&mut said);
        said.0.join(", ")
    }

    fn mma_words(&self, said: &mut Said) {
        let mma = &self.mma;
        said.say(mma.instruction, |op: Mma| op.to_string());
        said.pair("warp", mma.warp, mma.warps_m_outer);
        said.say(mma.slack, |tiles| format!("waits for {tiles} more"));
        said.either(mma.rolled, "rolled", "unrolled");
        said.either(mma.columns, "instructions by columns", "instructions by rows");
        said.either(mma.serpentine, "back and forth", "straight");
        said.either(mma.pairs, "two at once", "one at a time");
        said.either(mma.descending, "k downwards", "k upwards");
        said.say(mma.store, |store| match store {
            Store::Direct => "C from the fragments".into(),
            Store::Shared { stmatrix: true } => "C by stmatrix and shared memory".into(),
            Store::Shared { stmatrix: false } => "C by way of shared memory".into(),
        });
        said.say(mma.min_blocks, |blocks| blocks.map_or("resident any".into(), |n| format!("resident {n}")));
    }

    fn wgmma_words(&self, said: &mut Said) {
        let wgmma = &self.wgmma;
        let op = wgmma.op.unwrap_or_default();
        said.say(wgmma.n, |n| format!("{op} m{}n{n}", op.rows()));
        said.either(wgmma.by_threads, "by threads", "TMA");
        match (wgmma.row_blocks, wgmma.consumers) {
            (Some(rows), Some(consumers)) => {
                let turn = if wgmma.in_turn == Some(true) { "in turn " } else { "" };
                said.0.push(format!("{consumers} consumers {turn}of {rows} x {} rows", op.rows()));
            }
            _ => {
                said.say(wgmma.consumers, |n| format!("consumers {n}"));
                said.either(wgmma.in_turn, "in turn", "together");
            }
        }
        said.either(wgmma.by_rows, "one after the other", "step by step");
        said.either(wgmma.eager_release, "freed at once", "freed a tile later");
        said.either(wgmma.arrive_per_warp, "an arrival per warp", "an arrival per warpgroup");
        said.say(wgmma.grid, |grid| grid.map_or("grid tiles".into(), |blocks| format!("grid {blocks}")));
        said.either(wgmma.stream_k, "stream-k yes", "stream-k no");
        said.say(wgmma.cluster, |[m, n]| format!("cluster {m}x{n}"));
        said.say(wgmma.store, |store| format!("C {}", store.text()));
    }
}

impl Operand {
    fn words(&self) -> Vec<String> {
        let mut said = Said::default();
        said.either(self.shared, "shared", "global");
        said.either(self.hoisted, "above-k", "at-k");
        said.either(self.k_major, "k-major", "x-major");
        match (self.pad, self.swizzle) {
            (Some(0), Some(false)) => said.0.push("plain".into()),
            (_, Some(true)) => said.0.push("xor".into()),
            (pad, _) => said.number("pad", pad),
        }
        said.number("fill", self.fill);
        said.either(self.coalesced, "rows", "columns");
        said.either(self.fill_unroll, "fill-unrolled", "fill-rolled");
        said.say(self.local, |local| local.map_or("in-place".into(), |vector| format!("local {vector}")));
        said.0
    }
}

impl Way {
    fn words(&self) -> Vec<String> {
        let mut said = Said::default();
        said.say(self.bytes, |bytes| format!("copies of {bytes} bytes"));
        said.say(self.order, |order| match order {
            CopyOrder::Rows => "along rows".into(),
            CopyOrder::Columns => "across rows".into(),
            CopyOrder::Own => "each thread its own".into(),
        });
        said.either(self.rolled, "rolled", "unrolled");
        said.say(self.step, |step| format!("at step {step}"));
        said.say(self.prefetch, |bytes| format!("{bytes} bytes to L2"));
        said.say(self.layout, |layout| match layout {
            TileLayout::Plain => "not swizzled".into(),
            TileLayout::Padded => "rows padded".into(),
            TileLayout::Xor(span) => format!("swizzled in spans of {span}"),
            TileLayout::Rotate(span) => format!("rotated in spans of {span}"),
        });
        said.say(self.matrices, |many| format!("ldmatrix x{many}"));
        said.say(self.sets, |sets| (if sets == 1 { "one set of fragments" } else { "two sets of fragments" }).into());
        said.0
    }
}
