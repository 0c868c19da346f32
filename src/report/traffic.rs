//! Bytes that pass each level of memory.
use super::{number, Entry, Page};
use maud::{html, Markup};

pub(super) fn section(page: &Page<'_>, e: &Entry<'_>) -> Markup {
    let Some(cost) = &e.cost else {
        return html! { section { h3 { "Memory traffic" } p.note { "the descriptor's GPU cannot run this candidate" } } };
    };
    let ceilings = page.ceilings();
    let levels = [
        ("dram", "DRAM", cost.dram_bytes, ceilings.dram),
        ("l2", "L2", cost.l2_bytes, ceilings.l2),
        ("shared_memory", "shared", e.shared_traffic().unwrap_or(0.0), ceilings.shared),
    ];
    let most = levels.iter().map(|l| l.2).fold(1.0, f64::max);
    html! {
        section {
            h3 { "Memory traffic" }
            div.bars.four {
                @for (class, name, bytes, rate) in levels {
                    span.key { i class={ "part-" (class) } {} (name) }
                    span.track { span class={ "bar part-" (class) } style={ "width:" (format!("{:.2}", 100.0 * bytes / most)) "%" } {} }
                    span.n { (number::bytes(bytes)) }
                    span.n.quiet { (number::ms(bytes / rate * 1e3)) " at " (number::scaled(rate, "B/s")) }
                }
            }
            p.note {
                "What is accessed of " (page.parameters()) " is " (number::bytes(page.least_bytes())) ", so DRAM carries "
                (format!("{:.2}", cost.dram_bytes / page.least_bytes().max(1.0))) "x the least. "
                "Shared memory counts 128 bytes for each wavefront."
            }
        }
    }
}
