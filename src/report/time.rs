//! Where the time goes: one stacked bar of the predicted time, and what each resource alone would take.
use super::{number, Entry, Page};
use maud::{html, Markup};
use satune_extract::ADDED;
use std::collections::BTreeMap;

/// Bars in the overview.
const MOST_ROWS: usize = 10;

/// Shares of the predicted time, ms. Resources that overlap share what the added parts leave by the p-th power of
/// their own times, which is how a p-norm weighs them.
pub(super) fn shares(parts: &BTreeMap<String, f64>, ms: f64, p: f64) -> Vec<(&str, f64)> {
    let added: Vec<(&str, f64)> =
        ADDED.iter().filter_map(|n| parts.get(*n).map(|v| (*n, v.clamp(0.0, ms.max(0.0))))).collect();
    let rest = (ms - added.iter().map(|a| a.1).sum::<f64>()).max(0.0);
    let overlapping: Vec<(&str, f64)> =
        parts.iter().filter(|(n, _)| !ADDED.contains(&n.as_str())).map(|(n, v)| (n.as_str(), *v)).collect();
    let largest = overlapping.iter().map(|o| o.1).fold(0.0, f64::max);
    let weight = |v: f64| if largest > 0.0 { (v / largest).powf(p) } else { 0.0 };
    let sum: f64 = overlapping.iter().map(|o| weight(o.1)).sum();
    let mut out: Vec<(&str, f64)> =
        overlapping.iter().map(|(n, v)| (*n, if sum > 0.0 { rest * weight(*v) / sum } else { 0.0 })).collect();
    out.sort_by(|a, b| b.1.total_cmp(&a.1));
    out.extend(added);
    out
}

/// Shares of a time as one bar; `longest` fills the width.
fn stack(shares: &[(&str, f64)], total: f64, longest: f64) -> Markup {
    html! {
        div.stack {
            @for (name, ms) in shares.iter().filter(|s| s.1 / longest > 0.002) {
                span class={ "part-" (name) } style={ "width:" (format!("{:.2}", 100.0 * ms / longest)) "%" }
                    title={ (number::part(name)) ": " (number::ms(*ms)) " of " (number::ms(total)) } {
                    @if ms / longest > 0.24 { (number::part(name)) }
                }
            }
        }
    }
}

/// All candidates' times, one bar each.
pub(super) fn overview(page: &Page<'_>) -> Markup {
    let longest = page.candidates.iter().map(|e| e.report.predicted_ms).fold(1e-12, f64::max);
    let mut used: Vec<&str> = Vec::new();
    let rows: Vec<(&Entry<'_>, Vec<(&str, f64)>)> = page
        .candidates
        .iter()
        .take(MOST_ROWS)
        .map(|e| (e, shares(&e.report.parts, e.report.predicted_ms, page.gpu.overlap_exponent)))
        .collect();
    for (name, ms) in rows.iter().flat_map(|r| &r.1) {
        if ms / longest > 0.002 && !used.contains(name) {
            used.push(name);
        }
    }
    html! {
        section.figure.wide[!page.trials.is_empty()] {
            h2 { "Predicted time by part" }
            div.bars.tall {
                @for (e, shares) in &rows {
                    a href={ "#" (page.anchor) "c" (e.report.rank) } { "#" (e.report.rank) }
                    (stack(shares, e.report.predicted_ms, longest))
                    span.n { (number::ms(e.report.predicted_ms)) }
                }
            }
            p.legend { @for name in used { span.key { i class={ "part-" (name) } {} (number::part(name)) } " " } }
            @if page.candidates.len() > MOST_ROWS { p.note { "The first " (MOST_ROWS) " of " (page.candidates.len()) "." } }
        }
    }
}

pub(super) fn section(page: &Page<'_>, e: &Entry<'_>) -> Markup {
    let c = e.report;
    let p = page.gpu.overlap_exponent;
    let shares = shares(&c.parts, c.predicted_ms, p);
    let total = c.predicted_ms.max(1e-12);
    let mut alone: Vec<(&String, &f64)> = c.parts.iter().collect();
    alone.sort_by(|a, b| b.1.total_cmp(a.1));
    let longest = alone.iter().map(|a| *a.1).fold(total, f64::max);
    html! {
        section {
            h3 { "Time" span.quiet { (number::ms(c.predicted_ms)) " predicted" } }
            p.note { (crate::explore::binds(&c.parts, &c.occupancy)) }
            @if let Some(of_loop) = c.compiled.as_ref().and_then(|m| m.loop_clocks.as_ref()) { p.note { (of_loop.sentence()) } }
            (stack(&shares, total, total))
            p.note {
                "Below, what each would take alone; the line is the predicted time. In the bar above, resources that overlap have shares by the power " (format!("{p}")) " of their own times, as a norm weighs them; latency, what a block does before and after its k loop, and launch are added."
            }
            div.bars {
                @for (name, ms) in alone {
                    span.key { i class={ "part-" (name) } {} (number::part(name)) }
                    span.track {
                        span class={ "bar part-" (name) } style={ "width:" (format!("{:.2}", 100.0 * ms / longest)) "%" } {}
                        span.limit style={ "left:" (format!("{:.2}", 100.0 * total / longest)) "%" } {}
                    }
                    span.n { (number::ms(*ms)) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_predicted_time() {
        let parts: BTreeMap<String, f64> =
            [("issue", 2.0), ("dram", 1.0), ("launch", 0.1)].map(|(n, v)| (n.to_string(), v)).into();
        let shares = shares(&parts, 2.3, 4.0);
        assert!((shares.iter().map(|s| s.1).sum::<f64>() - 2.3).abs() < 1e-12);
        assert_eq!(shares[0].0, "issue");
        assert!((shares[0].1 / shares[1].1 - 16.0).abs() < 1e-9);
    }
}
