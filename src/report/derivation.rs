//! How a candidate came about, rule by rule.
use super::Entry;
use maud::{html, Markup};

pub(super) fn section(entry: &Entry<'_>) -> Markup {
    let lines = &entry.report.derivation;
    html! {
        details.fold {
            summary { h3 { "Derivation" } span.quiet { (lines.len()) " decisions, from the outside in" } }
            div.scroll {
                table.derivation {
                    thead { tr { th.n { "" } th { "node of the term" } th { "made by rule" } } }
                    tbody {
                        @for (i, line) in lines.iter().enumerate() {
                            @let (node, rule) = line.split_once("  by  ").unwrap_or((line, ""));
                            tr {
                                td.n { (i + 1) }
                                td { code { (node) } }
                                td { (rule) }
                            }
                        }
                    }
                }
            }
        }
    }
}
