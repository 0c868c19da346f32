use super::*;

fn v(i: u32) -> Linear {
    Linear::var(VarId(i))
}

#[test]
fn fused_copies_come_apart() {
    let ranges: Ranges = [(VarId(0), (0, 3)), (VarId(1), (0, 15)), (VarId(2), (0, 15))].into();
    let fused = v(0).scaled(256).plus(&v(1), 16).plus(&v(2), 1);
    let row = fused.divided(8, &ranges);
    assert_eq!(row, v(0).scaled(32).plus(&v(1), 2).plus(&v(2).divided(8, &ranges), 1));
    let column = fused.remainder(128, &ranges);
    assert_eq!(column, v(1).remainder(8, &ranges).scaled(16).plus(&v(2), 1));
    let vector: Ranges = [(VarId(0), (0, 0)), (VarId(1), (0, 15)), (VarId(2), (0, 15)), (VarId(3), (0, 3))].into();
    let fused = v(1).scaled(64).plus(&v(2), 4).plus(&v(3), 1);
    assert_eq!(fused.divided(8, &vector), v(1).scaled(8).plus(&v(2).divided(2, &vector), 1));
    assert_eq!(fused.remainder(8, &vector), v(2).remainder(2, &vector).scaled(4).plus(&v(3), 1));
}

#[test]
fn every_simplification_keeps_the_value() {
    let ranges: Ranges = [(VarId(0), (0, 6)), (VarId(1), (0, 4)), (VarId(2), (0, 11))].into();
    for (a, b, c, k) in [(12, 60, 1, 0), (5, 35, 1, 3), (-3, 2, 7, 5), (24, 8, 2, -9), (7, 0, 3, 1)] {
        let l = v(0).scaled(a).plus(&v(1), b).plus(&v(2), c).shifted(k);
        for d in [2, 3, 4, 6, 8, 12, 24, 60, 128] {
            let (quotient, rest) = (l.divided(d, &ranges), l.remainder(d, &ranges));
            let (lo, hi) = quotient.range(&ranges);
            for (x, y, z) in (0..7).flat_map(|x| (0..5).flat_map(move |y| (0..12).map(move |z| (x, y, z)))) {
                let at = [(VarId(0), Linear::of(x)), (VarId(1), Linear::of(y)), (VarId(2), Linear::of(z))].into();
                let value = |l: &Linear| l.substitute(&at, &ranges).as_constant().unwrap();
                let exact = a * x + b * y + c * z + k;
                assert_eq!((value(&quotient), value(&rest)), (exact.div_euclid(d), exact.rem_euclid(d)));
                assert!(lo <= value(&quotient) && value(&quotient) <= hi);
                for (f, c) in [(2, 3), (5, 1), (d, 7)] {
                    // The low digit has lost what is a multiple of `d` of the whole.
                    let more = l.plus(&v(1), d * f);
                    let both = more.divided(d, &ranges).remainder(f + 1, &ranges).scaled(d).plus(&rest, 1);
                    let wrapped = (exact + d * f * y).rem_euclid(d * (f + 1));
                    assert_eq!((value(&both), value(&both.joined(&ranges))), (wrapped, wrapped));
                    let third = l.remainder(d * f * 3, &ranges).divided(d, &ranges).remainder(f, &ranges);
                    assert_eq!(value(&third.joined(&ranges)), exact.div_euclid(d).rem_euclid(f));
                    let digits = quotient.divided(f, &ranges).scaled(c * d * f).plus(&rest, c);
                    let address = digits.plus(&quotient.remainder(f, &ranges), c * d);
                    assert_eq!(value(&address.joined(&ranges)), c * exact);
                }
            }
        }
    }
}

/// The address of an element at the digits of one index, as a convolution's weights are.
#[test]
fn digits_of_one_index_are_joined() {
    let ranges: Ranges = [(VarId(0), (0, 8)), (VarId(1), (0, 127)), (VarId(2), (0, 63))].into();
    let k = v(0).scaled(16).plus(&v(1).divided(8, &ranges), 1);
    let digits = [
        (k.divided(24, &ranges), 1536),
        (k.divided(8, &ranges).remainder(3, &ranges), 512),
        (k.remainder(8, &ranges), 64),
    ];
    let address = digits.iter().fold(v(2), |sum, (digit, c)| sum.plus(digit, *c));
    assert_eq!(address.joined(&ranges), v(2).plus(&k, 64));
    // So are those of a thread's number that was split and fused again.
    let row = v(1).divided(32, &ranges).scaled(8).plus(&v(1).remainder(32, &ranges).divided(4, &ranges), 1);
    assert_eq!(row.joined(&ranges), v(1).divided(4, &ranges));
    // A row of an image, whose batch, row and column are digits of m.
    let ranges: Ranges = [(VarId(0), (0, 391)), (VarId(1), (0, 127)), (VarId(2), (0, 7))].into();
    let m = v(0).scaled(128).plus(&v(2), 16).plus(&v(1).divided(8, &ranges), 1);
    let digits = [
        (m.divided(3136, &ranges), 200_704),
        (m.divided(56, &ranges).remainder(56, &ranges), 3584),
        (m.remainder(56, &ranges), 64),
    ];
    let address = digits.iter().fold(Linear::of(-3648), |sum, (digit, c)| sum.plus(digit, *c));
    assert_eq!(address.joined(&ranges), m.scaled(64).shifted(-3648));
    // Digits of two indices stay apart.
    let other = v(0).divided(3, &ranges).scaled(3).plus(&v(1).remainder(3, &ranges), 1);
    assert_eq!(other.joined(&ranges), other);
}

#[test]
fn swizzles_let_vectors_through() {
    let ranges: Ranges = [(VarId(0), (0, 7)), (VarId(1), (0, 7)), (VarId(2), (0, 3))].into();
    let e = combine(Op::Xor, v(0).scaled(4).plus(&v(2), 1), v(1).scaled(4), &ranges);
    let (coefficient, rest) = e.split_var(VarId(2)).unwrap();
    assert_eq!((coefficient, rest.multiple_of(4)), (1, true));
    // `(x ^ y) % 4` of `x < 8` and `y < 8` is what is known of two bits of each.
    let low = combine(Op::Xor, v(0), v(1), &ranges).remainder(4, &ranges);
    let bits = |i| v(i).remainder(4, &ranges);
    assert_eq!(low, combine(Op::Xor, bits(0), bits(1), &ranges));
    assert_eq!(low.range(&ranges), (0, 3));
}

#[test]
fn an_xor_of_what_nothing_is_known_of_stays_one() {
    let ranges: Ranges = [(VarId(0), (0, 6)), (VarId(1), (0, 4))].into();
    let product = combine(Op::Mul, v(0), v(1), &ranges);
    let permuted = combine(Op::Xor, product.clone(), Linear::of(16), &ranges);
    assert_eq!(permuted.terms.len(), 1);
    for (x, y) in (0..7).flat_map(|x| (0..5).map(move |y| (x, y))) {
        let at = [(VarId(0), Linear::of(x)), (VarId(1), Linear::of(y))].into();
        assert_eq!(permuted.substitute(&at, &ranges).as_constant(), Some((x * y) ^ 16));
    }
    // Multiples of a number leave nothing, however they are written.
    let even = combine(Op::Mul, v(0).scaled(2), v(1).scaled(2), &ranges);
    assert_eq!(even.remainder(4, &ranges), Linear::of(0));
}
