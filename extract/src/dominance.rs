//! k-dominance: of many labels keep those that can be among the k best in some context.

/// Keeps a label unless k others (earlier ones, on a tie) are at most as large in every component: then those k are at
/// least as good in every context, and it is not needed for the k best. Returns the positions of those kept.
pub(crate) fn keep<const N: usize>(labels: &[[f64; N]], k: usize) -> Vec<usize> {
    let sums: Vec<f64> = labels.iter().map(|l| l.iter().sum()).collect();
    // What dominates has the smaller sum, so it comes first; the sort is stable.
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by(|a, b| sums[*a].total_cmp(&sums[*b]));
    // Equal labels stand together with their number.
    let mut kept: Vec<([f64; N], usize)> = Vec::new();
    let mut out = Vec::new();
    for i in order {
        let label = &labels[i];
        let mut dominators = 0;
        let mut equal = None;
        for (at, (other, count)) in kept.iter().enumerate() {
            if other.iter().zip(label).all(|(o, l)| o <= l) {
                dominators += count;
                if dominators >= k {
                    break;
                }
                if other == label {
                    equal = Some(at);
                }
            }
        }
        if dominators < k {
            match equal {
                Some(at) => kept[at].1 += 1,
                None => kept.push((*label, 1)),
            }
            out.push(i);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::keep;

    #[test]
    fn what_k_others_dominate_is_dropped() {
        let labels = [[1.0, 5.0], [2.0, 6.0], [3.0, 3.0], [2.0, 6.0], [9.0, 9.0]];
        assert_eq!(keep(&labels, 1), [0, 2]);
        assert_eq!(keep(&labels, 2), [0, 2, 1]);
        assert_eq!(keep(&labels, 5).len(), 5);
    }
}
