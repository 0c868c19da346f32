//! Axes of the figures.
use super::number;
use maud::{html, Markup};

/// A scale from values to places on the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Scale {
    /// A logarithmic scale; `low` and `high` are widened to be positive and apart.
    pub fn log(low: f64, high: f64, from: f64, to: f64) -> Scale {
        let low = low.max(1e-30);
        Scale { low, high: high.max(low * 1.01), from, to, logarithmic: true }
    }

    /// A linear scale.
    pub fn linear(low: f64, high: f64, from: f64, to: f64) -> Scale {
        Scale { low, high: if high > low { high } else { low + 1.0 }, from, to, logarithmic: false }
    }

    /// Where a value stands; values outside stand at the end.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(1e-30) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Values to be labelled.
    pub fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let (low, high) = (self.low.log10().ceil() as i32, self.high.log10().floor() as i32);
            let decades: Vec<f64> = (low..=high).map(|e| 10f64.powi(e)).collect();
            if decades.len() >= 3 {
                return decades;
            }
            // A short range: ones, twos and fives.
            return (low - 1..=high)
                .flat_map(|e| [1.0, 2.0, 5.0].map(|f| f * 10f64.powi(e)))
                .filter(|v| (self.low..=self.high).contains(v))
                .collect();
        }
        let rough = (self.high - self.low) / 4.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|f| f * unit).into_iter().find(|s| *s >= rough).unwrap_or(unit);
        let first = (self.low / step).ceil();
        (0..12).map(|i| (first + f64::from(i)) * step).filter(|v| *v <= self.high + 1e-9 * step).collect()
    }
}

/// A coordinate with one decimal: files stay small.
pub(super) fn c(value: f64) -> String {
    format!("{value:.1}")
}

/// A line.
pub(super) fn line(class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> Markup {
    html! { line class=(class) x1=(c(x1)) y1=(c(y1)) x2=(c(x2)) y2=(c(y2)) {} }
}

/// A text; `anchor` is start, middle or end.
pub(super) fn text(class: &str, anchor: &str, (x, y): (f64, f64), content: &str) -> Markup {
    html! { text class=(class) text-anchor=(anchor) x=(c(x)) y=(c(y)) { (content) } }
}

/// Grid lines and labels of both axes, and the axes' names.
pub(super) fn axes(x: &Scale, y: &Scale, names: (&str, &str), units: (&str, &str)) -> Markup {
    let label = |v: f64, unit: &str| {
        if unit.is_empty() {
            // No more digits than the value has.
            let text = format!("{v:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            // Round values need no digits after the point.
            let text = number::scaled(v, unit);
            match text.split_once(' ') {
                Some((n, unit)) if n.contains('.') => {
                    format!("{} {unit}", n.trim_end_matches('0').trim_end_matches('.'))
                }
                _ => text,
            }
        }
    };
    html! {
        @for v in x.ticks() {
            (line("grid", (x.at(v), y.from), (x.at(v), y.to)))
            (text("tick", "middle", (x.at(v), y.from + 16.0), &label(v, units.0)))
        }
        @for v in y.ticks() {
            (line("grid", (x.from, y.at(v)), (x.to, y.at(v))))
            (text("tick", "end", (x.from - 6.0, y.at(v) + 4.0), &label(v, units.1)))
        }
        (line("axis", (x.from, y.from), (x.to, y.from)))
        (line("axis", (x.from, y.from), (x.from, y.to)))
        (text("name", "middle", ((x.from + x.to) / 2.0, y.from + 34.0), names.0))
        (text("name", "start", (4.0, y.to - 10.0), names.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_lie_within_and_are_round() {
        assert_eq!(Scale::log(0.5, 2000.0, 0.0, 100.0).ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(Scale::log(3.0, 30.0, 0.0, 100.0).ticks(), [5.0, 10.0, 20.0]);
        assert_eq!(Scale::linear(0.0, 8.0, 0.0, 100.0).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        let scale = Scale::log(1.0, 100.0, 0.0, 100.0);
        assert!((scale.at(10.0) - 50.0).abs() < 1e-9);
        assert_eq!(scale.at(1e9), 100.0);
    }
}
