//! The ranked table.
use super::{number, Entry, Page};
use crate::explore::Judge;
use maud::{html, Markup};

pub(super) fn section(page: &Page<'_>) -> Markup {
    let any = page.candidates.iter().any(|e| e.measured.is_some());
    let compiled = page.candidates.iter().any(|e| e.report.compiled.is_some());
    let by_loops = page.report.ranked_by == Judge::CompiledLoops;
    let (peak, _) = page.peak();
    let unit = page.yardstick().unit();
    html! {
        section {
            h2 { "Candidates" }
            div.scroll {
                table.ranking {
                    thead {
                        tr {
                            th.n { "#" }
                            th { "id" }
                            th.n { "predicted" }
                            @if by_loops { th.n { "by its loop" } }
                            th.n { "launch" }
                            @if any { th.n { "measured" } th.n { "ratio" } }
                            th.n { "rate" }
                            th.n { "of peak" }
                            th { "bound by" }
                            th { "block tile" }
                            th.n { "k tile" }
                            th.n { "threads" }
                            th { "overlap" }
                            @if compiled {
                                th.n { "registers" }
                                th.n { "spilled" }
                                th.n { "math share" }
                            }
                            th { "simulated" }
                        }
                    }
                    tbody {
                        @for e in &page.candidates {
                            @let c = e.report;
                            @let shape = c.plan.summary();
                            tr {
                                td.n { (c.rank) }
                                td { a href={ "#" (page.anchor) "c" (c.rank) } { code { (c.id) } } }
                                td.n { (number::ms(c.predicted_ms)) }
                                @if by_loops { td.n { @match c.judged_ms() { Some(ms) => (number::ms(ms)), None => "-" } } }
                                td.n { (number::ms(c.launch_ms)) }
                                @if any {
                                    td.n { @match e.measured { Some(m) => (number::ms(m.ms)), None => "-" } }
                                    td.n { @match e.measured { Some(m) => (format!("{:.2}", m.ms / c.predicted_ms)), None => "-" } }
                                }
                                td.n { (number::scaled(page.rate(shown(e)), unit)) }
                                td.n { (format!("{:.1}%", 100.0 * page.rate(shown(e)) / peak)) }
                                td { (number::part(&c.bottleneck)) }
                                td { (shape.tile.replace('x', " × ")) }
                                td.n { (shape.step) }
                                td.n { (c.plan.threads()) }
                                td { (shape.overlap) }
                                @match &c.compiled {
                                    Some(m) => {
                                        td.n { (m.registers) }
                                        td.n { (m.spill_bytes) " B" }
                                        td.n { @match &m.hot_loop { Some(l) => (format!("{:.1}%", 100.0 * l.share)), None => "-" } }
                                    }
                                    None => @if compiled { td.n { "-" } td.n { "-" } td.n { "-" } }
                                }
                                td { (simulated(e)) }
                            }
                        }
                    }
                }
            }
            p.note {
                @if any {
                    "Ratio is measured over predicted time; the rate is of the measured time where there is one, else of the predicted one."
                } @else {
                    "The rate is of the predicted time."
                }
                @if by_loops { " They are ranked by the predictions with the clocks of their compiled loops." }
                " Launching is a part of the predicted time that does not depend on what a kernel does."
                @if compiled { " Registers, spills and the share of arithmetic in the hot loop are the compiler's." }
            }
        }
    }
}

/// The time that stands for a candidate.
fn shown(e: &Entry<'_>) -> f64 {
    e.measured.map_or(e.report.predicted_ms, |m| m.ms)
}

fn simulated(e: &Entry<'_>) -> String {
    let s = &e.report.simulated;
    let agrees = s.agreement.word();
    let ratio = |taken: u64, ideal: u64| taken as f64 / ideal.max(1) as f64;
    if !s.ok {
        "refused".into()
    } else if s.shared_wavefronts == s.shared_wavefronts_ideal && s.global_sectors == s.global_sectors_ideal {
        format!("{agrees}, no conflicts")
    } else {
        format!(
            "{agrees}, {:.2}x wavefronts, {:.2}x sectors",
            ratio(s.shared_wavefronts, s.shared_wavefronts_ideal),
            ratio(s.global_sectors, s.global_sectors_ideal)
        )
    }
}
