//! The table of a benchmark.
use super::number;
use maud::{html, Markup};

/// A program's result.
#[derive(Clone, Debug)]
pub struct Row {
    /// As it was asked for.
    pub program: String,
    /// Where its page begins.
    pub anchor: String,
    /// Best candidate, ms: measured, or predicted where a simulator stood in.
    pub ms: f64,
    /// Predicted, ms.
    pub predicted_ms: f64,
    /// Useful work over time, per second.
    pub rate: f64,
    /// Its unit: operations, or for streaming programs bytes.
    pub unit: String,
    /// Of the rate that the descriptor allows.
    pub fraction_of_peak: f64,
    /// What it was compared with, ms.
    pub library_ms: Option<f64>,
    /// Its time over ours.
    pub ratio: Option<f64>,
}

pub(super) fn section(title: &str, rows: &[Row], notes: &[String]) -> Markup {
    let library = rows.iter().any(|r| r.library_ms.is_some());
    html! {
        header {
            p.brand { "satune bench" }
            h1 { (title) }
        }
        section {
            div.scroll {
                table.ranking {
                    thead {
                        tr {
                            th { "program" }
                            th.n { "time" }
                            th.n { "predicted" }
                            th.n { "rate" }
                            th.n { "of peak" }
                            @if library { th.n { "library" } th.n { "vs library" } }
                        }
                    }
                    tbody {
                        @for r in rows {
                            tr {
                                td { a href={ "#" (r.anchor) } { code { (r.program) } } }
                                td.n { (number::ms(r.ms)) }
                                td.n { (number::ms(r.predicted_ms)) }
                                td.n { (number::scaled(r.rate, &r.unit)) }
                                td.n { (format!("{:.1}%", 100.0 * r.fraction_of_peak)) }
                                @if library {
                                    td.n { @match r.library_ms { Some(ms) => (number::ms(ms)), None => "-" } }
                                    td.n { @match r.ratio { Some(ratio) => (format!("{ratio:.2}x")), None => "-" } }
                                }
                            }
                        }
                    }
                }
            }
            @for note in notes { p.note { (note) } }
        }
    }
}
