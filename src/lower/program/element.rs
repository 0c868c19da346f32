//! What an element's place tells of the instance that writes it.
use super::linear::{Atom, Linear, Op, Ranges};
use super::pred::Pred;

/// Whether the element that is written at `at` decides a guard: then no instance writes an element that another leaves out.
pub fn decides(at: &[Linear], guard: &Pred, ranges: &Ranges) -> bool {
    let Pred::Lt(form, _) = guard else { return false };
    let mut known: Vec<Atom> = Vec::new();
    // What is permuted is known where what permutes it is.
    let (permuted, plain): (Vec<&Linear>, Vec<&Linear>) = at.iter().partition(|index| index.without_xor().is_some());
    plain.into_iter().for_each(|index| known.extend(digits(index, ranges)));
    for index in permuted {
        let by_known = |(atom, _): &(Atom, i64)| match atom {
            Atom::Other(Op::Xor, _, by) => all_known(by, &known),
            _ => true,
        };
        if index.terms.iter().all(by_known) {
            known.extend(index.without_xor().map(|index| digits(&index, ranges)).unwrap_or_default());
        }
    }
    all_known(form, &known)
}

/// The atoms of a form that its value tells, one from the other; none where values of some could make up for others.
fn digits(form: &Linear, ranges: &Ranges) -> Vec<Atom> {
    let mut terms: Vec<(i64, i64, &Atom)> = Vec::new();
    for (atom, unit) in &form.terms {
        let (lo, hi) = Linear { terms: vec![(atom.clone(), 1)], constant: 0 }.range(ranges);
        terms.push((*unit, hi.saturating_sub(lo), atom));
    }
    terms.sort_by_key(|(unit, ..)| *unit);
    let mut reached = 0_i64;
    let apart = terms.iter().all(|(unit, span, _)| {
        let apart = *unit > reached;
        reached = reached.saturating_add(unit.saturating_mul(*span));
        apart
    });
    if apart {
        terms.into_iter().map(|(.., atom)| atom.clone()).collect()
    } else {
        Vec::new()
    }
}

/// Whether each atom of a form is known, or made of such.
fn all_known(form: &Linear, known: &[Atom]) -> bool {
    form.terms.iter().all(|(atom, _)| {
        known.contains(atom)
            || match atom {
                Atom::Mod(inner, modulus) if in_digits(inner, *modulus, known) => true,
                Atom::Div(inner, _) | Atom::Mod(inner, _) => all_known(inner, known),
                Atom::Other(_, a, b) => all_known(a, known) && all_known(b, known),
                Atom::Var(_) | Atom::Load(..) => false,
            }
    })
}

/// Whether the low digits of a form, and those above them up to a modulus, are known.
fn in_digits(form: &Linear, modulus: i64, known: &[Atom]) -> bool {
    let whole = || Linear { terms: vec![(Atom::Mod(Box::new(form.clone()), modulus), 1)], constant: 0 };
    known.iter().any(|low| match low {
        Atom::Mod(same, d) if **same == *form && modulus % d == 0 => {
            let quotient = Linear { terms: vec![(Atom::Div(same.clone(), *d), 1)], constant: 0 };
            let high = [Atom::Div(Box::new(whole()), *d), Atom::Mod(Box::new(quotient), modulus / d)];
            high.iter().any(|high| known.contains(high))
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use satune_ir::VarId;

    fn form(atom: Atom) -> Linear {
        Linear { terms: vec![(atom, 1)], constant: 0 }
    }

    #[test]
    fn an_element_decides_what_is_made_of_its_digits() {
        // 128 threads copy tiles of 64 along k, 4 elements each, swizzled by the row: thread t, tile o.
        let [t, o] = [0, 1].map(|i| Linear::var(VarId(i)));
        let ranges: Ranges = [(VarId(0), (0, 127)), (VarId(1), (0, 15))].into_iter().collect();
        let (row, chunk) = (t.divided(16, &ranges), t.remainder(16, &ranges));
        let swizzled = form(Atom::Other(Op::Xor, Box::new(chunk.clone()), Box::new(row.clone())));
        let at = [row.clone(), swizzled.scaled(4).plus(&o, 64)];
        // k < 1000 has lost the elements of a chunk.
        let along_k = Pred::Lt(chunk.plus(&o, 16), 250);
        assert!(decides(&at, &along_k, &ranges));
        // What permutes is not known where the row is not told.
        assert!(!decides(&at[1..], &along_k, &ranges));
        // Nor is the tile where tiles overlap.
        let overlapping = [row, swizzled.scaled(4).plus(&o, 32)];
        assert!(!decides(&overlapping, &along_k, &ranges));
    }

    #[test]
    fn digits_on_either_side_of_a_cut_make_the_whole() {
        let t = Linear::var(VarId(0));
        let ranges: Ranges = [(VarId(0), (0, 127))].into_iter().collect();
        let (low, high) = (t.remainder(8, &ranges), t.remainder(16, &ranges).divided(8, &ranges));
        let guard = Pred::Lt(t.remainder(16, &ranges), 10);
        assert!(decides(&[low.plus(&high, 64)], &guard, &ranges));
        assert!(!decides(&[low], &guard, &ranges));
    }
}
