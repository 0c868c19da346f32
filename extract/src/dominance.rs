//! k-dominance: of many labels keep those that can be among the k best in some context.

/// Something with components that a cost never falls with.
pub(crate) trait Components {
    /// Number of components.
    const COUNT: usize;
    /// One of them.
    fn component(&self, i: usize) -> f64;

    /// Whether it is at most as large in every component.
    fn at_most(&self, other: &Self) -> bool {
        (0..Self::COUNT).all(|i| self.component(i) <= other.component(i))
    }
}

/// Keeps a label unless k others (earlier ones, on a tie) are at most as large in every component: then those k are at
/// least as good in every context, and it is not needed for the k best.
pub(crate) fn keep<T: Components>(mut labels: Vec<T>, k: usize) -> Vec<T> {
    let sum = |l: &T| (0..T::COUNT).map(|i| l.component(i)).sum::<f64>();
    // What dominates has the smaller sum, so it comes first; the sort is stable.
    labels.sort_by(|a, b| sum(a).total_cmp(&sum(b)));
    let mut kept: Vec<T> = Vec::new();
    for label in labels {
        if kept.iter().filter(|other| other.at_most(&label)).take(k).count() < k {
            kept.push(label);
        }
    }
    kept
}
