//! What was asked, how large the space is, and what is proved.
use super::number;
use super::Page;
use maud::{html, Markup};

pub(super) fn section(page: &Page<'_>) -> Markup {
    let report = page.report;
    let gpu = page.gpu;
    let space = &report.space;
    let (mantissa, power) = number::large(&space.schedules);
    let taken = [
        ("encode", space.encode_s),
        ("saturate", space.saturate_s),
        ("extract", space.extract_s),
        ("simulate", space.simulate_s),
        ("compile", space.compile_s),
        ("execute", space.execute_s),
    ];
    let (peak, units) = page.peak();
    let unit = page.yardstick().unit();
    let best = report.candidates.iter().map(|c| c.predicted_ms).min_by(f64::total_cmp);
    let measured = page.candidates.iter().filter_map(|e| e.measured).map(|m| m.ms).min_by(f64::total_cmp);
    html! {
        header {
            p.brand { "satune explore" }
            h1 { code { (report.operator) } }
            p.lead {
                "on " strong { (gpu.full_name) } " (" (gpu.arch) ", " (gpu.sms) " multiprocessors, "
                (format!("{}", gpu.clock_mhz)) " MHz, " (number::scaled(gpu.dram_gbs * 1e9, "B/s")) " from DRAM)"
            }
            div.tiles {
                div.tile {
                    span.label { "schedules in the space" }
                    span.value title=(space.schedules) {
                        (mantissa) @if let Some(power) = power { " × 10" sup { (power) } }
                    }
                    span.note { (number::grouped(space.enodes)) " e-nodes, " (number::grouped(space.eclasses)) " classes" }
                }
                div.tile {
                    span.label { "proof" }
                    @if report.proved_optimal && !report.untiled.is_empty() {
                        span.value.warn { "best of these" }
                        span.note { "under the model; for " (report.untiled.join(", ")) " better ones may not be among them" }
                    } @else if report.proved_optimal {
                        span.value.good { "best proved" }
                        span.note { "under the model, over the whole space" }
                    } @else {
                        span.value.warn { "not proved" }
                        span.note { @if space.stopped_by == "saturated" { "nothing predicted below " (number::ms(report.bound_ms)) }
                            @else { "the space is not whole: it ended at " (space.stopped_by) }
                        }
                    }
                }
                div.tile {
                    span.label { "best predicted" }
                    @if let Some(ms) = best {
                        span.value { (number::ms(ms)) }
                        span.note {
                            (number::scaled(page.rate(ms), unit)) ", " (format!("{:.0}%", 100.0 * page.rate(ms) / peak)) " of " (units)
                        }
                    } @else {
                        span.value { "-" }
                    }
                }
                div.tile {
                    span.label { "best measured" }
                    @if let Some(ms) = measured {
                        span.value { (number::ms(ms)) }
                        span.note {
                            (number::scaled(page.rate(ms), unit))
                            @if let Some(b) = &page.baseline { ", " (format!("{:.2}", b.ms / ms)) "x " (b.name) }
                        }
                    } @else {
                        span.value.quiet { "none" }
                        span.note { "not measured on a GPU" }
                    }
                }
                div.tile {
                    span.label { "time taken" }
                    span.value { (format!("{:.1} s", taken.iter().map(|(_, s)| s).sum::<f64>())) }
                    span.note { (taken.map(|(step, s)| format!("{step} {s:.1}")).join(", ")) }
                }
            }
            @if let Some(given) = &report.given {
                p.notice { (given.sentence(report.candidates.first())) "." }
            }
            @if let Some(reason) = &report.not_compiled {
                p.notice { strong { "Not compiled: " } (reason) }
            }
            @if let Some(reason) = &report.not_executed {
                p.notice { strong { "Text not executed: " } (reason) }
            }
            @if !report.bugs.is_empty() {
                p.notice {
                    strong { (report.bugs.len()) " candidates were refused by simulator or execution" }
                    " and are not ranked: bugs of Satune, listed in candidates.json."
                }
            }
        }
    }
}
