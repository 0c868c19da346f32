//! k-dominance: of many labels keep those that can be among the k best in some context.

/// A label: what is compared, what must agree for a comparison to mean anything, and how many programs it stands for.
pub(crate) struct Weighed<const N: usize, G> {
    pub numbers: [f64; N],
    pub group: G,
    pub ways: usize,
}

/// Keeps a label unless others of its group (earlier ones, on a tie) that stand for k programs together are at most as
/// large in every component: then those k are at least as good in every context, and it is not needed for the k best.
/// Returns the positions of those kept.
pub(crate) fn keep<const N: usize, G: PartialEq>(labels: &[Weighed<N, G>], k: usize) -> Vec<usize> {
    let sums: Vec<f64> = labels.iter().map(|l| l.numbers.iter().sum()).collect();
    // What dominates has the smaller sum, so it comes first; the sort is stable.
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by(|a, b| sums[*a].total_cmp(&sums[*b]));
    let mut kept: Vec<usize> = Vec::new();
    for i in order {
        let label = &labels[i];
        let mut dominators = 0;
        for other in kept.iter().map(|at| &labels[*at]) {
            if other.group == label.group && other.numbers.iter().zip(&label.numbers).all(|(o, l)| o <= l) {
                dominators += other.ways;
                if dominators >= k {
                    break;
                }
            }
        }
        if dominators < k {
            kept.push(i);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::{keep, Weighed};

    #[test]
    fn what_k_others_dominate_is_dropped() {
        let of = |numbers, group, ways| Weighed { numbers, group, ways };
        let mut labels = vec![
            of([1.0, 5.0], 0, 1),
            of([2.0, 6.0], 0, 1),
            of([3.0, 3.0], 0, 1),
            of([2.0, 6.0], 0, 1),
            of([9.0, 9.0], 0, 1),
        ];
        assert_eq!(keep(&labels, 1), [0, 2]);
        assert_eq!(keep(&labels, 2), [0, 2, 1]);
        assert_eq!(keep(&labels, 5).len(), 5);
        labels.push(of([9.0, 9.0], 1, 1));
        assert_eq!(keep(&labels, 1), [0, 2, 5], "another group is not compared");
        labels[0].ways = 2;
        assert_eq!(keep(&labels, 2), [0, 2, 5], "one label may stand for two programs");
    }
}
