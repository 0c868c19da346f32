//! Index maps with an xor: `(i, j // 32 * 32 + (j // 4 ^ i) % 8 * 4 + j % 4)` or `(i, (j // 4 ^ i % 8) * 4 + j % 4)`; or with
//! a digit that is turned on, `(i, j // 32 * 32 + (j // 4 + i) % 8 * 4 + j % 4)`.
//!
//! `(a ^ b) % m`, for `m` a power of two, permutes the values of `a % m`, and `a ^ (b % m)` those of `a` within every run of
//! `m` of them. So where `b` follows from the other outputs, the map is the one without the xor, up to a permutation, and one
//! to one as that is. TVM bounds a remainder, but not an xor: it takes maps of the first form only. `(a + b) % m` permutes
//! the values of `a % m` for every `m`.
use super::layout::{chain, MapError, MappedBox};
use super::IndexMap;
use crate::arith::{constant, Domains};
use crate::linear::Linear;
use satune_ir::{visit, BinOp, Expr, VarId};
use std::sync::Arc;

/// What an xor of one output is.
struct Xor {
    /// Which output.
    output: usize,
    /// What it is multiplied by there.
    scale: i64,
    /// What follows from the other outputs.
    key: Expr,
    /// How many values it permutes.
    width: i64,
}

/// An atom that is an xor: what is permuted, the key, and the width; then whether the atom counts a digit, not all values
/// of what is permuted.
fn xor_atom(atom: &Expr) -> Option<(&Expr, &Expr, i64, bool)> {
    let width = |e: &Expr| constant(e).filter(|w| *w > 0 && w.count_ones() == 1);
    match atom {
        Expr::Binary(BinOp::BitXor, a, b) => match b.as_ref() {
            Expr::Binary(BinOp::FloorMod, key, w) => Some((a.as_ref(), key.as_ref(), width(w)?, false)),
            _ => None,
        },
        Expr::Binary(BinOp::FloorMod, x, w) => match x.as_ref() {
            Expr::Binary(BinOp::BitXor, a, key) => Some((a.as_ref(), key.as_ref(), width(w)?, true)),
            _ => turned(atom).map(|(a, key, w)| (a, key, w, true)),
        },
        _ => None,
    }
}

/// `(a + key) % w`, where `a` is digits of one parameter and the key is of others.
fn turned(e: &Expr) -> Option<(&Expr, &Expr, i64)> {
    let Expr::Binary(BinOp::FloorMod, sum, w) = e else { return None };
    let Expr::Binary(BinOp::Add, a, key) = sum.as_ref() else { return None };
    let (parameter, _) = chain(a)?;
    let apart = !visit::uses_var(key, &|v| v == parameter);
    Some((a.as_ref(), key.as_ref(), constant(w).filter(|w| *w > 0 && apart)?))
}

impl IndexMap {
    /// Whether an xor stands in an output.
    pub(super) fn swizzles(&self) -> bool {
        let is_xor = |e: &Expr| matches!(e, Expr::Binary(BinOp::BitXor, ..));
        self.outputs.iter().any(|e| is_inside(e, &is_xor))
    }

    /// Whether a digit of an output is turned on by what others say.
    pub(super) fn turns(&self) -> bool {
        self.outputs.iter().any(|e| is_inside(e, &|e| turned(e).is_some()))
    }

    /// The image of a box under a map with xors: its shape, and whether every element of it is used. None where the map is
    /// not understood.
    pub(super) fn swizzled(&self, shape: &[i64]) -> Option<(MappedBox, bool)> {
        let mut plain = self.clone();
        let mut xors = Vec::new();
        for (k, e) in self.outputs.iter().enumerate() {
            let xor = match xor_of(k, e)? {
                None => continue,
                Some(xor) => xor,
            };
            plain.outputs[k] = without_xor(e);
            xors.push(xor);
        }
        let layout: Result<MappedBox, MapError> = plain.layout(shape);
        let mut layout = layout.ok()?;
        let inverse = layout.inverse.take()?;
        let mut exact = layout.padding.take().is_none();
        for xor in &xors {
            let axis = layout.axes.get(xor.output)?.id;
            let mut apart = true;
            visit::walk_expr(&xor.key, &mut |e| {
                if let Expr::Var(v) = e {
                    let source = inverse.get(v.id.0 as usize);
                    apart &= source.is_some_and(|s| !visit::uses_var(s, &|id| id == axis));
                }
            });
            // Other xors must not change what this one is keyed by.
            let swizzled = |id: VarId| xors.iter().any(|x| layout.axes.get(x.output).is_some_and(|v| v.id == id));
            visit::walk_expr(&xor.key, &mut |e| {
                if let Expr::Var(v) = e {
                    apart &= inverse.get(v.id.0 as usize).is_some_and(|s| !visit::uses_var(s, &swizzled));
                }
            });
            let extent = layout.shape.get_mut(xor.output)?;
            if !apart || *extent % xor.scale != 0 {
                return None;
            }
            let run = xor.scale.checked_mul(xor.width)?;
            let whole = extent.checked_add(run - 1)? / run * run;
            exact &= whole == *extent;
            *extent = whole;
        }
        Some((layout, exact))
    }
}

fn is_inside(e: &Expr, which: &dyn Fn(&Expr) -> bool) -> bool {
    let mut found = false;
    visit::walk_expr(e, &mut |e| found |= which(e));
    found
}

fn is_xor_inside(e: &Expr) -> bool {
    is_inside(e, &|e| matches!(e, Expr::Binary(BinOp::BitXor, ..)) || turned(e).is_some())
}

fn without_xor(e: &Expr) -> Expr {
    visit::map_expr(e, &mut |e| match &e {
        Expr::Binary(BinOp::BitXor, a, _) => a.as_ref().clone(),
        Expr::Binary(BinOp::FloorMod, _, w) => match turned(&e) {
            Some((a, ..)) => Expr::Binary(BinOp::FloorMod, Arc::new(a.clone()), w.clone()),
            None => e,
        },
        _ => e,
    })
}

/// The one xor of an output, as a term of its sum. `Some(None)` where there is none; `None` where it is something else.
fn xor_of(output: usize, e: &Expr) -> Option<Option<Xor>> {
    if !is_xor_inside(e) {
        return Some(None);
    }
    let none = Domains::new();
    let sum = Linear::of(e, &none)?;
    let mut xors = sum.terms().iter().filter(|(atom, _)| is_xor_inside(atom));
    let ((atom, scale), None) = (xors.next()?, xors.next()) else { return None };
    let (permuted, key, width, digit) = xor_atom(atom)?;
    let run = Some(*scale).filter(|s| *s > 0)?.checked_mul(width)?;
    if is_xor_inside(permuted) || is_xor_inside(key) || sum.offset() != 0 {
        return None;
    }
    // The rest of the sum counts what lies below the permuted digit, `j % 4` beside `(j // 4 ^ ...) * 4`, and above it.
    let mut low = 0;
    let apart = sum.terms().iter().filter(|(atom, _)| !is_xor_inside(atom)).all(|(atom, k)| match atom {
        _ if digit && k % run == 0 => true,
        Expr::Binary(BinOp::FloorMod, _, c) => {
            low += 1;
            *k == 1 && constant(c).is_some_and(|c| c > 0 && c <= *scale)
        }
        _ => false,
    });
    let key = key.clone();
    (apart && low <= 1).then_some(Some(Xor { output, scale: *scale, key, width }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(map: &str, shape: &[i64]) -> Option<(Vec<i64>, bool)> {
        IndexMap::parse(map).unwrap().swizzled(shape).map(|(l, exact)| (l.shape, exact))
    }

    #[test]
    fn runs_are_permuted() {
        let map = "lambda i, j: (i, (j // 4 ^ i % 8) * 4 + j % 4)";
        assert_eq!(image(map, &[1 << 20, 1 << 20]), Some((vec![1 << 20, 1 << 20], true)));
        assert_eq!(image(map, &[16, 45]), Some((vec![16, 64], false)), "the last run is padded");
        assert_eq!(image("lambda i, j: (j, i ^ j % 4)", &[8, 16]), Some((vec![16, 8], true)));
        let map = "lambda i, j: (i, j // 32 * 32 + (j // 4 ^ i) % 8 * 4 + j % 4)";
        assert_eq!(image(map, &[1 << 20, 1 << 20]), Some((vec![1 << 20, 1 << 20], true)));
        assert_eq!(image(map, &[16, 45]), Some((vec![16, 64], false)), "the last run is padded");
        assert_eq!(image("lambda i, j: ((i ^ j) % 8, j)", &[8, 16]), Some((vec![8, 16], true)));
    }

    #[test]
    fn digits_are_turned_on() {
        let layout = |map: &str, shape: &[i64]| {
            let map = IndexMap::parse(map).unwrap();
            (map.layout(shape).ok().map(|l| l.shape), map.layout_with_gaps(shape).ok().map(|l| l.shape))
        };
        let map = "lambda i, j: (i, j // 32 * 32 + (j // 4 + i // 2) % 8 * 4 + j % 4)";
        let large = Some(vec![1 << 20, 1 << 20]);
        assert_eq!(layout(map, &[1 << 20, 1 << 20]), (large.clone(), large));
        assert_eq!(layout(map, &[16, 45]), (None, Some(vec![16, 64])), "the last run is padded");
        // Another digit than is left out, and a key of what is turned itself.
        let map = "lambda i, j: (i, j // 32 * 32 + (j // 8 + i) % 8 * 4 + j % 4)";
        assert_eq!(layout(map, &[1 << 20, 1 << 20]), (None, None));
        let map = "lambda i, j: (i, j // 32 * 32 + (j // 4 + j // 32) % 8 * 4 + j % 4)";
        assert_eq!(layout(map, &[1 << 20, 1 << 20]), (None, None));
        // What mixed radix understands stays with it.
        let map = "lambda i, j: ((j + i * 32) // 8, (j + i * 32) % 8)";
        assert_eq!(layout(map, &[1 << 10, 32]).0, Some(vec![1 << 12, 8]));
    }

    #[test]
    fn what_is_not_one_to_one_is_not_taken() {
        // The key is the index itself.
        assert_eq!(image("lambda i, j: (i, j ^ j % 4)", &[8, 8]), None);
        // Keyed by what is itself permuted.
        assert_eq!(image("lambda i, j: (i ^ j % 4, j ^ i % 4)", &[8, 8]), None);
        // No power of two.
        assert_eq!(image("lambda i, j: (i, j ^ i % 3)", &[8, 8]), None);
        assert_eq!(image("lambda i, j: (i, (j // 4 ^ i % 8) * 2 + j % 4)", &[8, 64]), None);
        // Digits that are lost, or counted twice.
        assert_eq!(image("lambda i, j: (i, (j // 4 ^ i) % 8 * 4 + j % 4)", &[8, 64]), None);
        assert_eq!(image("lambda i, j: (i, j // 4 * 4 + (j ^ i) % 8)", &[8, 64]), None);
        assert_eq!(image("lambda i, j: (i, j // 16 * 32 + (j // 4 ^ i) % 8 * 4 + j % 4)", &[8, 64]), None);
        assert_eq!(image("lambda i, j: (i, j // 8 * 8 + (j ^ j // 8) % 8)", &[8, 64]), None);
    }

    /// The image is what trying every index gives.
    #[test]
    fn small_boxes_agree_with_every_index() {
        let maps = [
            "lambda i, j: (i, (j // 4 ^ i % 8) * 4 + j % 4)",
            "lambda i, j: (i, j // 32 * 32 + (j // 4 ^ i) % 8 * 4 + j % 4)",
            "lambda i, j: (i, j // 8 * 8 + (j // 2 ^ i // 2) % 4 * 2 + j % 2)",
            "lambda i, j: (i, j // 32 * 32 + (j // 4 + i // 2) % 8 * 4 + j % 4)",
            "lambda i, j: (i, j // 6 * 6 + (j // 2 + i) % 3 * 2 + j % 2)",
        ];
        for (text, shape) in maps.iter().flat_map(|m| [[8, 32], [16, 64], [4, 96], [8, 12]].map(|s| (m, s))) {
            let map = IndexMap::parse(text).unwrap();
            let (layout, exact) = map.swizzled(&shape).unwrap();
            let tried = map.tried(&shape, layout.axes.clone());
            assert_eq!(exact, tried.is_ok(), "{text} {shape:?}");
            if let Ok(t) = tried {
                assert_eq!(t.shape, layout.shape);
            }
        }
    }
}
