//! How well predicted times order and match measured ones.
use serde::Serialize;
use std::collections::BTreeMap;

/// Quality of predictions. Orders are judged within each shape, and the figures are means over shapes; what no shape
/// has enough measurements for is `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Spearman's rank correlation, shapes of at least 3 measurements.
    pub spearman: Option<f64>,
    /// Kendall's (tau-b), the same shapes.
    pub kendall: Option<f64>,
    /// By how much the predicted best is slower than the measured best, as a share; shapes of at least 2.
    pub regret_1: Option<f64>,
    /// The same for the best of the 8 predicted best; shapes of more than 8.
    pub regret_8: Option<f64>,
    /// The same of 16.
    pub regret_16: Option<f64>,
    /// Median of |predicted / measured - 1| over all measurements.
    pub median_error: f64,
    /// The largest of them.
    pub worst_error: f64,
}

/// A figure of one shape's pairs of predicted and measured times.
type Figure<'f> = &'f dyn Fn(&[(f64, f64)]) -> Option<f64>;

impl Quality {
    /// Of (shape, predicted, measured).
    pub fn of(rows: &[(&str, f64, f64)]) -> Quality {
        let mut shapes: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (shape, predicted, measured) in rows {
            shapes.entry(shape).or_default().push((*predicted, *measured));
        }
        let over = |least: usize, of: Figure<'_>| {
            let values: Vec<f64> = shapes.values().filter(|s| s.len() >= least).filter_map(|s| of(s)).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let mut errors: Vec<f64> = rows.iter().map(|(_, p, m)| (p / m - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        Quality {
            spearman: over(3, &spearman),
            kendall: over(3, &kendall),
            regret_1: over(2, &|s| regret(s, 1)),
            regret_8: over(9, &|s| regret(s, 8)),
            regret_16: over(17, &|s| regret(s, 16)),
            median_error: errors.get(errors.len() / 2).copied().unwrap_or(0.0),
            worst_error: errors.last().copied().unwrap_or(0.0),
        }
    }
}

/// Ranks from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut out = vec![0.0; values.len()];
    let mut at = 0;
    while at < order.len() {
        let same = order[at..].iter().take_while(|i| values[**i] == values[order[at]]).count();
        for i in &order[at..at + same] {
            out[*i] = at as f64 + (same as f64 + 1.0) / 2.0;
        }
        at += same;
    }
    out
}

/// Spearman's rank correlation of pairs; `None` where one side does not vary.
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let a = ranks(&pairs.iter().map(|p| p.0).collect::<Vec<_>>());
    let b = ranks(&pairs.iter().map(|p| p.1).collect::<Vec<_>>());
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let norm = (product(&a, &a) * product(&b, &b)).sqrt();
    (norm > 0.0).then(|| product(&a, &b) / norm)
}

/// Kendall's rank correlation (tau-b, which allows for ties); `None` where one side does not vary.
pub fn kendall(pairs: &[(f64, f64)]) -> Option<f64> {
    let (mut sum, mut varied_a, mut varied_b) = (0.0, 0.0, 0.0_f64);
    for (i, x) in pairs.iter().enumerate() {
        for y in &pairs[i + 1..] {
            let sign = |a: f64, b: f64| f64::from(i8::from(a > b) - i8::from(a < b));
            let (a, b) = (sign(x.0, y.0), sign(x.1, y.1));
            sum += a * b;
            varied_a += a * a;
            varied_b += b * b;
        }
    }
    let norm: f64 = (varied_a * varied_b).sqrt();
    (norm > 0.0).then(|| sum / norm)
}

/// How much slower the best measured of the `k` predicted best is than the best of all, as a share.
fn regret(pairs: &[(f64, f64)], k: usize) -> Option<f64> {
    let mut order: Vec<&(f64, f64)> = pairs.iter().collect();
    // Of those that are predicted alike, one may pick the worst.
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let best = pairs.iter().map(|p| p.1).min_by(f64::total_cmp)?;
    let picked = order.iter().take(k).map(|p| p.1).min_by(f64::total_cmp)?;
    (best > 0.0).then(|| picked / best - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlations_are_the_textbook_ones() {
        let up = [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)];
        let down = [(1.0, 30.0), (2.0, 20.0), (3.0, 10.0)];
        assert_eq!((spearman(&up), kendall(&up)), (Some(1.0), Some(1.0)));
        assert_eq!((spearman(&down), kendall(&down)), (Some(-1.0), Some(-1.0)));
        // One neighbouring swap of four: 1 - 6 * 2 / (4 * 15) and (5 - 1) / 6.
        let swapped = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)];
        assert!((spearman(&swapped).unwrap() - 0.8).abs() < 1e-12);
        assert!((kendall(&swapped).unwrap() - 4.0 / 6.0).abs() < 1e-12);
        assert_eq!(spearman(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(ranks(&[5.0, 1.0, 5.0]), [2.5, 1.0, 2.5]);
    }

    #[test]
    fn regret_is_what_the_pick_costs() {
        let pairs = [(1.0, 12.0), (2.0, 11.0), (3.0, 10.0)];
        assert!((regret(&pairs, 1).unwrap() - 0.2).abs() < 1e-12);
        assert!((regret(&pairs, 2).unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(regret(&pairs, 3), Some(0.0));
        let rows: Vec<(&str, f64, f64)> = pairs.iter().map(|p| ("s", p.0, p.1)).collect();
        let quality = Quality::of(&rows);
        assert_eq!(quality.regret_8, None, "three measurements say nothing about the best eight");
    }
}
