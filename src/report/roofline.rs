//! Rooflines: all candidates over DRAM's intensity, and one candidate over the intensity of each level of memory.
use super::svg::{axes, c, line, text, Scale};
use super::{number, Entry, Page};
use maud::{html, Markup};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;

/// A point: FLOP per byte, FLOP/s.
struct Point {
    intensity: f64,
    rate: f64,
    class: &'static str,
    label: String,
    title: String,
}

/// A memory level's slope.
struct Slope {
    class: &'static str,
    name: &'static str,
    bytes_per_s: f64,
}

/// All candidates.
pub(super) fn overview(page: &Page<'_>) -> Markup {
    if page.problem.contraction().is_none() {
        // A streaming program does hardly any arithmetic with what it moves: all of it lies on DRAM's slope.
        return html! {};
    }
    let mut points = Vec::new();
    for e in &page.candidates {
        let Some(cost) = &e.cost else { continue };
        let intensity = page.flops() / cost.dram_bytes.max(1.0);
        let place = |kind: &str, ms: f64| {
            format!(
                "#{} {kind} {}: {}, {:.0} FLOP per byte of DRAM",
                e.report.rank,
                number::ms(ms),
                number::scaled(page.rate(ms), "FLOP/s"),
                intensity
            )
        };
        points.push(Point {
            intensity,
            rate: page.rate(e.report.predicted_ms),
            class: "predicted",
            label: String::new(),
            title: place("predicted", e.report.predicted_ms),
        });
        if let Some(m) = e.measured {
            points.push(Point {
                intensity,
                rate: page.rate(m.ms),
                class: "measured",
                label: String::new(),
                title: place("measured", m.ms),
            });
        }
    }
    if points.is_empty() {
        return html! {};
    }
    let count = page.candidates.len();
    let measured = page.candidates.iter().filter(|e| e.measured.is_some()).count();
    let ceilings = page.ceilings();
    let slopes = [Slope { class: "dram", name: "DRAM", bytes_per_s: ceilings.dram }];
    html! {
        section.figure {
            h2 { "Roofline" }
            (figure(page, &points, &slopes, "FLOP per byte of DRAM"))
            p.legend {
                span.dot.predicted {} (count) " predicted"
                @if measured > 0 { span.dot.measured {} (measured) " measured" } @else { ", none measured" }
                "; dashed: what the descriptor says is sustained"
            }
        }
    }
}

/// One candidate, its rate over the intensity of each level.
pub(super) fn of_candidate(page: &Page<'_>, e: &Entry<'_>) -> Markup {
    let Some(cost) = e.cost.as_ref().filter(|_| page.problem.contraction().is_some()) else { return html! {} };
    let ceilings = page.ceilings();
    let shared = e.shared_traffic().unwrap_or(0.0);
    let levels = [
        ("dram", "DRAM", cost.dram_bytes, ceilings.dram),
        ("l2", "L2", cost.l2_bytes, ceilings.l2),
        ("shared", "shared", shared, ceilings.shared),
    ];
    let times = [("predicted", Some(e.report.predicted_ms)), ("measured", e.measured.map(|m| m.ms))];
    let mut points = Vec::new();
    for (kind, ms) in times {
        let Some(ms) = ms else { continue };
        for (class, name, bytes, _) in levels.iter().filter(|l| l.2 > 0.0) {
            points.push(Point {
                intensity: page.flops() / bytes,
                rate: page.rate(ms),
                class: if kind == "measured" { "measured" } else { class },
                label: if kind == "measured" { String::new() } else { (*name).to_string() },
                title: format!("{kind}: {} at {:.1} FLOP per byte of {name}", number::ms(ms), page.flops() / bytes),
            });
        }
    }
    let slopes: Vec<Slope> = levels
        .iter()
        .filter(|l| l.2 > 0.0)
        .map(|(class, name, _, rate)| Slope { class, name, bytes_per_s: *rate })
        .collect();
    html! {
        section {
            h3 { "Roofline by level" }
            (figure(page, &points, &slopes, "FLOP per byte of each level"))
        }
    }
}

/// How far below its point each label stands: labels that would run into each other stand at different heights.
fn label_drops(points: &[Point], x: &Scale) -> Vec<f64> {
    let mut taken: Vec<(f64, f64)> = Vec::new();
    points
        .iter()
        .map(|p| {
            let at = x.at(p.intensity);
            if p.label.is_empty() {
                return 0.0;
            }
            let free = |drop: &f64| !taken.iter().any(|(place, used)| (place - at).abs() < 52.0 && used == drop);
            let drop = [20.0, 35.0].into_iter().find(free).unwrap_or(50.0);
            taken.push((at, drop));
            drop
        })
        .collect()
}

fn figure(page: &Page<'_>, points: &[Point], slopes: &[Slope], name: &str) -> Markup {
    let ceilings = page.ceilings();
    let ridges = slopes.iter().map(|s| ceilings.peak / s.bytes_per_s);
    let all: Vec<f64> = points.iter().map(|p| p.intensity).chain(ridges).collect();
    let lowest = all.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = all.iter().copied().fold(0.0, f64::max);
    let x = Scale::log(lowest / 4.0, highest * 4.0, 78.0, WIDTH - 14.0);
    let slowest = points.iter().map(|p| p.rate).fold(ceilings.peak, f64::min);
    let y = Scale::log((slowest / 3.0).min(ceilings.peak / 30.0), ceilings.peak * 2.2, HEIGHT - 44.0, 24.0);
    let (left, right) = (lowest / 4.0, highest * 4.0);
    let bottom = (slowest / 3.0).min(ceilings.peak / 30.0);
    html! {
        svg viewBox={ "0 0 " (c(WIDTH)) " " (c(HEIGHT)) } role="img" aria-label="roofline" {
            (axes(&x, &y, (name, "FLOP/s"), ("", "FLOP/s")))
            @for s in slopes {
                // From where the slope enters the picture to where it meets the peak.
                @let start = left.max(bottom / s.bytes_per_s);
                @let ridge = ceilings.peak / s.bytes_per_s;
                (line(&format!("roof {}", s.class), (x.at(start), y.at(start * s.bytes_per_s)), (x.at(ridge), y.at(ceilings.peak))))
                // A slope's name stands along it.
                @let middle = (start * ridge).sqrt();
                @let at = (x.at(middle), y.at(middle * s.bytes_per_s));
                @let turn = (y.at(start * s.bytes_per_s) - y.at(ceilings.peak)).atan2(x.at(ridge) - x.at(start)).to_degrees();
                text class={ "mark " (s.class) } text-anchor="middle" transform={ "translate(" (c(at.0)) " " (c(at.1)) ") rotate(" (c(-turn)) ")" } dy="-5" { (s.name) }
            }
            @let first = slopes.iter().map(|s| ceilings.peak / s.bytes_per_s).fold(f64::INFINITY, f64::min);
            (line("roof peak", (x.at(first), y.at(ceilings.peak)), (x.at(right), y.at(ceilings.peak))))
            (text("mark", "end", (WIDTH - 16.0, y.at(ceilings.peak) - 6.0), &format!("{} peak {}", ceilings.units, number::scaled(ceilings.peak, "FLOP/s"))))
            @let first = slopes.iter().map(|s| ceilings.sustained / s.bytes_per_s).fold(f64::INFINITY, f64::min);
            (line("roof sustained", (x.at(first), y.at(ceilings.sustained)), (x.at(right), y.at(ceilings.sustained))))
            @for (p, drop) in points.iter().zip(label_drops(points, &x)) {
                g {
                    title { (p.title) }
                    @if p.class == "measured" {
                        @let (px, py) = (x.at(p.intensity), y.at(p.rate));
                        path class="point measured" d={ "M" (c(px - 5.0)) " " (c(py)) "L" (c(px)) " " (c(py - 5.0)) "L" (c(px + 5.0)) " " (c(py)) "L" (c(px)) " " (c(py + 5.0)) "Z" } {}
                    } @else {
                        circle class={ "point " (p.class) } cx=(c(x.at(p.intensity))) cy=(c(y.at(p.rate))) r="5" {}
                    }
                    @if !p.label.is_empty() {
                        (text("mark", "middle", (x.at(p.intensity), y.at(p.rate) + drop), &p.label))
                    }
                }
            }
        }
    }
}
