//! How many blocks a multiprocessor holds, and what limits them.
use super::{number, Entry, Page};
use maud::{html, Markup};

/// A resource: its name in the cost model, what a block takes, what there is, and blocks that fit.
struct Limit {
    name: &'static str,
    taken: String,
    of: String,
    blocks: Option<i64>,
}

fn limits(page: &Page<'_>, e: &Entry<'_>) -> Vec<Limit> {
    let gpu = page.gpu;
    let threads = e.report.plan.threads().max(1);
    let registers = e.cost.as_ref().map(|c| c.registers);
    let reserved = e.shared_bytes + i64::from(gpu.shared_reserved);
    vec![
        Limit {
            name: "registers",
            taken: registers.map_or("-".into(), |r| format!("{r} × {threads} threads")),
            of: format!("{}", gpu.registers_per_sm),
            blocks: registers.map(|r| i64::from(gpu.registers_per_sm) / (r * i64::from(threads)).max(1)),
        },
        Limit {
            name: "shared memory",
            taken: number::kib(e.shared_bytes),
            of: number::kib(i64::from(gpu.shared_per_sm)),
            // A block without shared memory is not limited by it.
            blocks: (e.shared_bytes > 0).then(|| i64::from(gpu.shared_per_sm) / reserved.max(1)),
        },
        Limit {
            name: "threads",
            taken: format!("{threads}"),
            of: format!("{}", gpu.threads_per_sm),
            blocks: Some(i64::from(gpu.threads_per_sm / threads)),
        },
        Limit {
            name: "blocks",
            taken: "1".into(),
            of: format!("{}", gpu.blocks_per_sm),
            blocks: Some(i64::from(gpu.blocks_per_sm)),
        },
    ]
}

pub(super) fn section(page: &Page<'_>, e: &Entry<'_>) -> Markup {
    let (resident, limiter) = &e.report.occupancy;
    let warps = resident * i64::from(e.report.plan.threads() / 32);
    let most = i64::from(page.gpu.threads_per_sm / 32);
    html! {
        section {
            h3 {
                "Occupancy"
                span.quiet {
                    (resident) @if *resident == 1 { " block" } @else { " blocks" } " per multiprocessor, "
                    (warps) " of " (most) " warps (" (format!("{:.0}%", 100.0 * warps as f64 / most.max(1) as f64)) "), limited by "
                    strong { (limiter) }
                }
            }
            table.limits {
                thead { tr { th { "resource" } th { "a block takes" } th { "of" } th.n { "blocks that fit" } } }
                tbody {
                    @for l in limits(page, e) {
                        tr.limiter[l.name == limiter] {
                            td { (l.name) }
                            td { (l.taken) }
                            td { (l.of) }
                            td.n { @match l.blocks { Some(b) => (b), None => "any" } }
                        }
                    }
                }
            }
            p.note {
                "Registers are the model's estimate"
                @if let Some(c) = &e.report.compiled { "; the compiler uses " (c.registers) ", " (c.spill_bytes) " bytes spilled" }
                "."
                @if let Some(cost) = &e.cost { " " (page.problem.block_count(&e.report.plan)) " blocks are " (format!("{:.2}", cost.waves)) " waves." }
            }
        }
    }
}
