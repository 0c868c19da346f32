//! What the decisions of the first candidate are worth, and where it stands among all schedules.
use super::Page;
use maud::{html, Markup};

pub(super) fn section(page: &Page<'_>) -> Markup {
    let Some(found) = &page.sensitivity else { return html! {} };
    let classes = found.classes();
    let most = classes.iter().map(|c| c.many).max().unwrap_or(0).max(1);
    html! {
        section {
            h2 { "What the decisions of #1 are worth" }
            div.scroll {
                table {
                    thead { tr { th { "decision" } th { "its value" } th { "the best with another value, all else free" } } }
                    tbody {
                        @for decision in &found.decisions {
                            tr {
                                td { (decision.name) }
                                td { (decision.value) }
                                td {
                                    @for (at, other) in decision.others.iter().enumerate() {
                                        @if at > 0 { br; }
                                        (other.value) ": " (other.word())
                                    }
                                    @if let Some(more) = decision.more() { span.quiet { " (" (more) ")" } }
                                }
                            }
                        }
                    }
                }
            }
            h3 { "Where it stands" }
            p.note { (found.drawn_words()) }
            div.bars {
                @for class in &classes {
                    span.key { (class.name) }
                    span.track {
                        span.bar.part-issue style={ "width:" (format!("{:.2}", 100.0 * class.many as f64 / most as f64)) "%" } {}
                    }
                    span { (class.many) @if !class.marks.is_empty() { " ← " (class.marks.join(", ")) } }
                }
            }
            @for mark in found.marks.iter().filter(|m| m.ratio.is_none()) { p.note { (mark.words()) } }
        }
    }
}
