//! The loop tree, coloured by team and stage.
use super::tree::{self, LineKind, Team};
use super::{Entry, Page};
use crate::workload::Workload;
use maud::{html, Markup};
use satune_ir::term::Schedule;

pub(super) fn section(page: &Page<'_>, e: &Entry<'_>) -> Markup {
    let lines = tree::of(&e.report.plan, page.problem);
    html! {
        section {
            h3 { "Loop tree" }
            p.legend {
                @for team in [Team::Grid, Team::Block, Team::Warp, Team::Thread] {
                    span class={ "chip team-" (team.name()) } { (team.name()) }
                }
                span.chip.stage { "stage" }
            }
            div.tree {
                @for l in &lines {
                    @let kind = match l.kind { LineKind::Loop => "loop", LineKind::Stage => "stage", LineKind::Work => "work" };
                    div class={ "line team-" (l.team.name()) " " (kind) } style={ "margin-left:" (l.depth * 14) "px" } {
                        span.what { (l.text) }
                        @for tag in &l.tags { span.tag { (tag) } }
                    }
                }
            }
            details.fold {
                summary { "In words" }
                ul.words { @for line in &e.report.schedule { li { (line) } } }
                ul.words {
                    @for k in &e.report.kernels {
                        li {
                            "kernel " code { (k.name) } " in " code { (k.file) } ": grid "
                            (format!("{} x {} x {}", k.grid[0], k.grid[1], k.grid[2])) ", block "
                            (format!("{} x {} x {}", k.block[0], k.block[1], k.block[2])) ", "
                            (k.dynamic_shared_bytes) " bytes of dynamic shared memory, arguments " (k.args.join(", "))
                        }
                    }
                }
            }
        }
    }
}

/// The loop tree as text.
pub fn loop_tree(plan: &Schedule, problem: &dyn Workload) -> String {
    tree::of(plan, problem)
        .iter()
        .map(|l| {
            let tags = if l.tags.is_empty() { String::new() } else { format!("  [{}]", l.tags.join(", ")) };
            format!("  {:<6} {}{}{tags}\n", l.team.name(), "  ".repeat(l.depth), l.text)
        })
        .collect()
}
