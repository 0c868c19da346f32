//! The decisions of a product's schedule, one by one.
use super::fixed::{Fixed, Operand};
use super::tensor::{MmaFixed, Way, WgmmaFixed};

/// A decision and the question that fixes it alone.
type Decision = (&'static str, fn(&Fixed) -> Fixed);

fn mma(own: MmaFixed) -> Fixed {
    Fixed { mma: own, ..Fixed::default() }
}

fn wgmma(own: WgmmaFixed) -> Fixed {
    Fixed { wgmma: own, ..Fixed::default() }
}

/// Every decision, from the outside in.
const DECISIONS: [Decision; 30] = [
    ("what multiplies", |f| Fixed { kind: f.kind, ..Fixed::default() }),
    ("instruction", |f| Fixed {
        // Its name says what multiplies.
        kind: f.mma.instruction.and(f.kind),
        mma: MmaFixed { instruction: f.mma.instruction, ..MmaFixed::default() },
        ..Fixed::default()
    }),
    ("operands swapped", |f| Fixed { swapped: f.swapped, ..Fixed::default() }),
    ("parts of k", |f| Fixed { split: f.split, ..Fixed::default() }),
    ("order of blocks", |f| Fixed { blocks_m_outer: f.blocks_m_outer, group: f.group, ..Fixed::default() }),
    ("cluster", |f| wgmma(WgmmaFixed { cluster: f.wgmma.cluster, ..WgmmaFixed::default() })),
    ("grid", |f| wgmma(WgmmaFixed { grid: f.wgmma.grid, stream_k: f.wgmma.stream_k, ..WgmmaFixed::default() })),
    ("block tile", |f| Fixed { block: f.block, ..Fixed::default() }),
    ("k tile", |f| Fixed { k: f.k, ..Fixed::default() }),
    ("stages", |f| Fixed { stages: f.stages, ..Fixed::default() }),
    ("k step", |f| Fixed { step: f.step, unroll: f.unroll, ..Fixed::default() }),
    ("threads", |f| Fixed { threads: f.threads, ..Fixed::default() }),
    ("warps", |f| Fixed { warps: f.warps, warps_m_outer: f.warps_m_outer, ..Fixed::default() }),
    ("lanes", |f| Fixed { lanes: f.lanes, lanes_m_outer: f.lanes_m_outer, ..Fixed::default() }),
    ("vthreads", |f| Fixed {
        vthreads_outside: f.vthreads_outside,
        vthreads_inside: f.vthreads_inside,
        ..Fixed::default()
    }),
    ("registers", |f| Fixed { registers: f.registers, registers_m_outer: f.registers_m_outer, ..Fixed::default() }),
    ("consumers", |f| {
        wgmma(WgmmaFixed { consumers: f.wgmma.consumers, in_turn: f.wgmma.in_turn, ..WgmmaFixed::default() })
    }),
    ("warp tile", |f| mma(MmaFixed { warp: f.mma.warp, warps_m_outer: f.mma.warps_m_outer, ..MmaFixed::default() })),
    ("order of instructions", |f| Fixed {
        mma: MmaFixed {
            columns: f.mma.columns,
            serpentine: f.mma.serpentine,
            pairs: f.mma.pairs,
            descending: f.mma.descending,
            ..MmaFixed::default()
        },
        wgmma: WgmmaFixed { by_rows: f.wgmma.by_rows, ..WgmmaFixed::default() },
        ..Fixed::default()
    }),
    ("tiles waited for", |f| mma(MmaFixed { slack: f.mma.slack, rolled: f.mma.rolled, ..MmaFixed::default() })),
    ("tile freed", |f| wgmma(WgmmaFixed { eager_release: f.wgmma.eager_release, ..WgmmaFixed::default() })),
    ("arrivals", |f| wgmma(WgmmaFixed { arrive_per_warp: f.wgmma.arrive_per_warp, ..WgmmaFixed::default() })),
    ("resident blocks asked for", |f| mma(MmaFixed { min_blocks: f.mma.min_blocks, ..MmaFixed::default() })),
    ("A in shared memory", |f| Fixed { a: place(&f.a), mma: layouts(f, 0), ..Fixed::default() }),
    ("B in shared memory", |f| Fixed { b: place(&f.b), mma: layouts(f, 1), ..Fixed::default() }),
    ("copies of A", |f| Fixed { a: copies(&f.a), mma: ways(f, 0), ..Fixed::default() }),
    ("copies of B", |f| Fixed { b: copies(&f.b), mma: ways(f, 1), ..Fixed::default() }),
    ("fragments", |f| Fixed {
        a: Operand { local: f.a.local, ..Operand::default() },
        b: Operand { local: f.b.local, ..Operand::default() },
        mma: MmaFixed {
            ways: f.mma.ways.map(|w| Way { matrices: w.matrices, sets: w.sets, ..Way::default() }),
            ..MmaFixed::default()
        },
        ..Fixed::default()
    }),
    ("sums", |f| Fixed { init_hoisted: f.init_hoisted, accumulators: f.accumulators, ..Fixed::default() }),
    ("store of C", |f| Fixed {
        store: f.store,
        mma: MmaFixed { store: f.mma.store, ..MmaFixed::default() },
        wgmma: WgmmaFixed { store: f.wgmma.store, ..WgmmaFixed::default() },
        ..Fixed::default()
    }),
];

fn place(operand: &Operand) -> Operand {
    Operand {
        // What follows from a layout is not said twice.
        shared: operand.shared.filter(|shared| !shared),
        hoisted: operand.hoisted,
        k_major: operand.k_major,
        pad: operand.pad,
        swizzle: operand.swizzle,
        ..Operand::default()
    }
}

fn copies(operand: &Operand) -> Operand {
    let Operand { fill, coalesced, fill_unroll, .. } = *operand;
    Operand { fill, coalesced, fill_unroll, ..Operand::default() }
}

/// Of one operand what `keep` leaves.
fn way(f: &Fixed, side: usize, keep: impl Fn(Way) -> Way) -> MmaFixed {
    let mut out = MmaFixed::default();
    out.ways[side] = keep(f.mma.ways[side]);
    out
}

fn layouts(f: &Fixed, side: usize) -> MmaFixed {
    way(f, side, |w| Way { layout: w.layout, ..Way::default() })
}

fn ways(f: &Fixed, side: usize) -> MmaFixed {
    way(f, side, |w| Way {
        bytes: w.bytes,
        order: w.order,
        rolled: w.rolled,
        step: w.step,
        prefetch: w.prefetch,
        ..Way::default()
    })
}

impl Fixed {
    /// Each decision that is made, and the question that fixes it alone.
    pub fn decisions(&self) -> Vec<(String, Fixed)> {
        let all = DECISIONS.iter().map(|(name, alone)| ((*name).to_string(), alone(self)));
        all.filter(|(_, alone)| *alone != Fixed::default()).collect()
    }
}
