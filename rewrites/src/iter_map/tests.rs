//! Tests of iter-map detection.
use super::*;
use crate::arith::lt;
use proptest::prelude::*;
use satune_ir::{Var, VarId};
use std::collections::{BTreeSet, HashMap};

fn var(id: u32) -> Expr {
    Expr::Var(Var { id: VarId(id), name: format!("x{id}").into(), dtype: DType::I32 })
}

fn domains(extents: &[i64]) -> Domains {
    let range = |e: i64| Range { min: int(0, DType::I32), extent: int(e, DType::I32) };
    extents.iter().enumerate().map(|(i, e)| (VarId(i as u32), range(*e))).collect()
}

fn eval(e: &Expr, point: &[i64]) -> i64 {
    match e {
        Expr::Int(v, _) => *v,
        Expr::Var(v) => point[v.id.0 as usize],
        Expr::Binary(op, a, b) => {
            let (a, b) = (eval(a, point), eval(b, point));
            match op {
                BinOp::Add => a + b,
                BinOp::Mul => a * b,
                BinOp::FloorDiv => a.div_euclid(b),
                BinOp::FloorMod => a.rem_euclid(b),
                BinOp::Lt => i64::from(a < b),
                BinOp::And => a & b,
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

fn points(extents: &[i64]) -> Vec<Vec<i64>> {
    extents.iter().fold(vec![Vec::new()], |all, &e| {
        all.into_iter().flat_map(|p| (0..e).map(move |v| [p.clone(), vec![v]].concat())).collect()
    })
}

#[test]
fn accepts_mixed_radix_only() {
    let (d, yes) = (domains(&[4, 8]), int(1, DType::Bool));
    let affine = |e: &[Expr]| detect(e, &d, &yes, true).is_some_and(|m| m.has_unit_strides());
    let nested = add(mul(var(0), int(8, DType::I32)), var(1));
    assert!(affine(std::slice::from_ref(&nested)));
    assert!(affine(&[floor_div(nested.clone(), 4, DType::I32), floor_mod(nested.clone(), 4, DType::I32)]));
    assert!(!affine(&[add(var(0), var(1))]), "overlapping");
    assert!(!affine(&[mul(var(0), int(2, DType::I32))]), "strided");
    assert!(!affine(&[var(0), var(0)]), "diagonal");
    assert!(!affine(&[mul(var(0), var(1))]), "a product");
    assert!(affine(&[floor_div(var(1), 4, DType::I32)]), "a part may stay unused");
}

#[test]
fn sees_through_guards() {
    let d = domains(&[7, 5]);
    let sum = add(mul(var(0), int(5, DType::I32)), var(1));
    let guard = lt(sum.clone(), int(32, DType::I32));
    let map = detect(&[floor_mod(sum.clone(), 32, DType::I32)], &d, &guard, true).unwrap();
    assert_eq!(map.indices(), vec![sum.clone()]);
    assert!(detect(&[var(0), var(1)], &d, &guard, true).is_none(), "a guarded box is no box");
    assert!(detect(&[var(0)], &d, &guard, true).is_some());
    // A digit that is bounded: its parts have to be whole.
    let digit = |m| floor_mod(var(0), m, DType::I32);
    let d = domains(&[64]);
    let guard = lt(digit(32), int(30, DType::I32));
    let parts = |c| [floor_div(var(0), 32, DType::I32), floor_div(digit(32), c, DType::I32), digit(c)];
    let map = detect(&parts(2), &d, &guard, true).unwrap();
    assert_eq!(map.indices(), parts(2));
    assert!(detect(&parts(4), &d, &guard, true).is_none());
    let both = crate::arith::and(lt(var(0), int(19, DType::I32)), lt(digit(4), int(3, DType::I32)));
    let pair = [floor_div(var(0), 4, DType::I32), digit(4)];
    assert_eq!(detect(&pair, &d, &both, true).unwrap().indices(), pair);
    // What says nothing of the variables.
    assert!(detect(&parts(4), &d, &lt(var(7), int(3, DType::I32)), true).is_some());
}

/// Two warps' columns of a ragged tile that is longer than the matrix: `x0 < 2 and x1 * 2 + x0 % 2 < 3`. TVM leaves the quotient
/// out, too.
#[test]
fn a_loop_is_as_long_as_its_guard_lets_it_be() {
    let i = |v| int(v, DType::I32);
    let d = domains(&[4, 2, 2]);
    let (warp, quotient) = (floor_mod(var(0), 2, DType::I32), floor_div(var(0), 2, DType::I32));
    let columns = |warp| add(mul(var(1), i(2)), warp);
    let guard = crate::arith::and(lt(var(0), i(2)), lt(columns(warp.clone()), i(3)));
    let row = add(mul(quotient, i(2)), var(2));
    let map = detect(&[row, columns(warp)], &d, &guard, true).unwrap();
    assert_eq!(map.indices(), [var(2), columns(var(0))]);
    // The last round of a guarded sum has fewer values of its lowest part.
    let guard = lt(add(mul(var(1), i(4)), var(0)), i(6));
    assert!(detect(&[var(1), floor_div(var(0), 2, DType::I32)], &d, &guard, true).is_none());
}

proptest! {
    /// Splits and fusions of loops, at random: the normal form has the same values, and what is accepted fills its box.
    #[test]
    fn normal_forms_keep_values(
        extents in prop::collection::vec(1i64..6, 1..4),
        steps in prop::collection::vec((0usize..4, 0usize..4, 1i64..7), 0..5),
        guard in 1i64..60,
        modulus in 2i64..9,
    ) {
        let yes = int(1, DType::Bool);
        let mut values: Vec<(Expr, i64)> = extents.iter().enumerate().map(|(i, e)| (var(i as u32), *e)).collect();
        for (kind, at, factor) in steps {
            let at = at % values.len();
            if kind < 2 && values.len() > 1 {
                let (b, be) = values.remove((at + 1) % values.len());
                let at = at % values.len();
                let (a, ae) = values[at].clone();
                values[at] = (add(mul(a, int(be, DType::I32)), b), ae * be);
            } else {
                let (a, e) = values.remove(at);
                values.push((floor_div(a.clone(), factor, DType::I32), (e + factor - 1) / factor));
                values.push((floor_mod(a, factor, DType::I32), factor.min(e)));
            }
        }
        let indices: Vec<Expr> = values.iter().map(|(e, _)| e.clone()).collect();
        let d = domains(&extents);
        let first = lt(indices[0].clone(), int(guard, DType::I32));
        let digit = lt(floor_mod(indices[0].clone(), modulus, DType::I32), int(guard.min(modulus), DType::I32));
        let both = crate::arith::and(first.clone(), digit.clone());
        for (keep, predicate) in [(true, &yes), (false, &yes), (true, &first), (true, &digit), (true, &both)] {
            let Some(map) = detect(&indices, &d, predicate, keep) else { continue };
            let normal = map.indices();
            let mut image: HashMap<usize, BTreeSet<i64>> = HashMap::new();
            let mut all = BTreeSet::new();
            for p in points(&extents).iter().filter(|p| eval(predicate, p) == 1) {
                let got: Vec<i64> = normal.iter().map(|e| eval(e, p)).collect();
                let want: Vec<i64> = indices.iter().map(|e| eval(e, p)).collect();
                prop_assert_eq!(&got, &want, "{:?} for {:?}", normal, indices);
                want.iter().enumerate().for_each(|(i, v)| { image.entry(i).or_default().insert(*v); });
                all.insert(want);
            }
            if map.has_unit_strides() {
                let sizes: usize = image.values().map(BTreeSet::len).product();
                prop_assert_eq!(sizes, all.len(), "no box: {:?}", indices);
                for set in image.values() {
                    let span = set.last().unwrap() - set.first().unwrap() + 1;
                    prop_assert_eq!(span as usize, set.len(), "gaps: {:?}", indices);
                }
            }
        }
    }
}
