//! The report for people: one HTML file that holds all it needs (styles, figures, sources; no script), so that it can
//! be mailed and opened offline. One file per section, each a pure function from [`Page`] to markup.
mod bench;
mod data;
mod derivation;
mod header;
mod loops;
mod number;
mod occupancy;
mod progress;
mod ranking;
mod roofline;
mod sensitivity;
mod source;
mod stream_tree;
mod svg;
mod tensor_tree;
mod time;
mod traffic;
mod tree;

pub use bench::Row;
pub use data::{Baseline, Ceilings, Entry, Measured, Page, Source};
pub use loops::loop_tree;
pub use source::hot_loop;

use maud::{html, Markup, PreEscaped, DOCTYPE};
use std::io;
use std::path::Path;

/// The styles, for light and dark.
const STYLE: &str = include_str!("style.css");

/// The page as HTML.
pub fn render(page: &Page<'_>) -> String {
    let title = format!("{} on {} - Satune", page.report.operator, page.gpu.full_name);
    document(&title, &html! { (body(page, true)) (footer(page)) })
}

/// A benchmark's pages as one file: a table of all programs, then each program's page, folded.
pub fn render_all(title: &str, rows: &[Row], notes: &[String], pages: &[Page<'_>]) -> String {
    let folded = html! {
        (bench::section(title, rows, notes))
        @for page in pages {
            details.program id={ (page.anchor) } {
                summary { h2 { code { (page.report.operator) } } }
                (body(page, false))
            }
        }
        @if let Some(page) = pages.first() { (footer(page)) }
    };
    document(&format!("{title} - Satune"), &folded)
}

/// A file that needs nothing else.
fn document(title: &str, content: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (content) } }
        }
    }
    .into_string()
}

/// All about one exploration; its first candidate unfolded, if so wished.
fn body(page: &Page<'_>, open: bool) -> Markup {
    html! {
        (header::section(page))
        (ranking::section(page))
        div.figures {
            (roofline::overview(page))
            (progress::section(page))
            (time::overview(page))
        }
        (sensitivity::section(page))
        @for (at, entry) in page.candidates.iter().enumerate() {
            (candidate(page, entry, open && at == 0))
        }
    }
}

/// All about one candidate; only the first is unfolded.
fn candidate(page: &Page<'_>, entry: &Entry<'_>, open: bool) -> Markup {
    let c = entry.report;
    html! {
        details.candidate id={ (page.anchor) "c" (c.rank) } open[open] {
            summary {
                h2 { "#" (c.rank) " " code { (c.id) } }
                span.big { (number::ms(c.predicted_ms)) " predicted" }
                @if c.launch_ms > 0.0 { span.quiet { (number::ms(c.launch_ms)) " of it to launch" } }
                @match &entry.measured {
                    Some(m) => span.big.measured { (number::ms(m.ms)) " measured" },
                    None => span.quiet { "not measured" },
                }
                span.quiet { "bound by " (number::part(&c.bottleneck)) }
            }
            div.pair {
                div {
                    (loops::section(page, entry))
                    (occupancy::section(page, entry))
                }
                div {
                    (time::section(page, entry))
                    (traffic::section(page, entry))
                    (roofline::of_candidate(page, entry))
                }
            }
            (derivation::section(entry))
            (source::section(entry))
        }
    }
}

fn footer(page: &Page<'_>) -> Markup {
    html! {
        footer {
            p {
                "Written by Satune " (env!("CARGO_PKG_VERSION")) ". Times are predicted by an analytical model with the constants of the descriptor "
                code { (page.gpu.name) }
                @if page.candidates.iter().all(|e| e.measured.is_none()) {
                    "; nothing on this page was measured on a GPU."
                } @else {
                    "; measured times are marked as such."
                }
                " Every candidate was run in the simulator on a problem with its tiles and few blocks, and equals the definition " (page.problem.agreement().words()) "."
            }
        }
    }
}

/// Writes `report.html` into a folder, whole or not at all.
///
/// # Errors
/// What the system says, with the path.
pub fn write(page: &Page<'_>, folder: &Path) -> io::Result<()> {
    crate::explore::write_whole(folder, "report.html", &render(page))
}
