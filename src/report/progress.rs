//! Best measured time after each trial: how few measurements the search needs.
use super::svg::{axes, c, line, text, Scale};
use super::{number, Page};
use maud::{html, Markup};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;

pub(super) fn section(page: &Page<'_>) -> Markup {
    let trials: Vec<(f64, f64)> =
        page.trials.iter().filter(|t| t.1.is_finite() && t.1 > 0.0).map(|(n, ms)| (*n as f64, *ms)).collect();
    let (Some(first), Some(last)) = (trials.first(), trials.last()) else { return html! {} };
    let low = trials.iter().map(|t| t.1).chain(page.baseline.iter().map(|b| b.ms)).fold(f64::INFINITY, f64::min);
    let high = trials.iter().map(|t| t.1).chain(page.baseline.iter().map(|b| b.ms)).fold(0.0, f64::max);
    let x = Scale::linear(first.0.min(0.0), last.0, 60.0, WIDTH - 14.0);
    let spread = (high - low).max(0.05 * high);
    let y = Scale::linear((low - 0.2 * spread).max(0.0), high + 0.1 * spread, HEIGHT - 44.0, 24.0);
    let mut path = String::new();
    for (i, (n, ms)) in trials.iter().enumerate() {
        if i == 0 {
            path.push_str(&format!("M{} {}", c(x.at(*n)), c(y.at(*ms))));
        } else {
            path.push_str(&format!("H{}V{}", c(x.at(*n)), c(y.at(*ms))));
        }
    }
    html! {
        section.figure {
            h2 { "Best so far" }
            svg viewBox={ "0 0 " (c(WIDTH)) " " (c(HEIGHT)) } role="img" aria-label="best measured time after each trial" {
                (axes(&x, &y, ("measured candidates", "ms"), ("", "")))
                @if let Some(b) = &page.baseline {
                    (line("roof peak", (x.at(first.0.min(0.0)), y.at(b.ms)), (x.at(last.0), y.at(b.ms))))
                    (text("mark", "end", (WIDTH - 16.0, y.at(b.ms) - 6.0), &format!("{} {}", b.name, number::ms(b.ms))))
                }
                path class="steps" d=(path) {}
                circle class="point measured" cx=(c(x.at(last.0))) cy=(c(y.at(last.1))) r="4" {}
                (text("mark", "end", (x.at(last.0), y.at(last.1) + 18.0), &number::ms(last.1)))
            }
            p.legend { "Best measured time after each of " (trials.len()) " trials" }
        }
    }
}
