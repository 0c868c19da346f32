//! What an index map makes of a box: the new shape, the way back, and the elements that nothing is mapped to.
//!
//! Maps in mixed radix are understood as such, with parts that do not divide an extent padded to the next multiple. Others
//! (`j ^ (i % 8)`) are tried on every index of the box, as far as it is small.
use super::IndexMap;
use crate::arith::{add, constant, int, Domains};
use crate::iter_map;
use crate::linear::{Interval, Linear};
use satune_ir::affine::value_of;
use satune_ir::{visit, BinOp, DType, Expr, Range, Var, VarId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Largest box on which a map is tried index by index.
const TRIED: i64 = 1 << 22;

/// The image of a box.
#[derive(Clone, Debug)]
pub struct MappedBox {
    /// Extents of the outputs.
    pub shape: Vec<i64>,
    /// The parameters in terms of [`MappedBox::axes`]; none where the map was tried index by index.
    pub inverse: Option<Vec<Expr>>,
    /// Where nothing is mapped to, in terms of [`MappedBox::axes`]; none where there is no such element.
    pub padding: Option<Expr>,
    /// Variables for the outputs. Their ids lie above those of the parameters.
    pub axes: Vec<Var>,
}

/// Why a map cannot be used on a box.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Another number of parameters.
    #[error("the map has {params} parameters for {dims} dimensions")]
    Arity {
        /// Parameters of the map.
        params: usize,
        /// Dimensions of the box.
        dims: usize,
    },
    /// Two indices have one image.
    #[error("the map {0} takes different indices to the same place")]
    NotInjective(String),
    /// The outputs do not start with 0.
    #[error("the indices that the map {0} makes do not start with 0")]
    Offset(String),
    /// The map leaves elements without a source, and it cannot be told which.
    #[error("the map {0} leaves gaps")]
    Gaps(String),
    /// The map is neither in mixed radix nor small enough to be tried.
    #[error("could not parse mapping {0} as sum of iterators")]
    Unknown(String),
}

impl IndexMap {
    /// What the map makes of the box `[0, shape)`, where elements that nothing is mapped to may be left as they are.
    pub fn layout_with_gaps(&self, shape: &[i64]) -> Result<MappedBox, MapError> {
        match self.layout(shape) {
            Ok(layout) => Ok(MappedBox { padding: None, ..layout }),
            Err(error) => {
                let permuted = (self.swizzles() || self.turns()).then(|| self.swizzled(shape)).flatten();
                permuted.map_or(Err(error), |(layout, _)| Ok(layout))
            }
        }
    }

    /// What the map makes of the box `[0, shape)`.
    pub fn layout(&self, shape: &[i64]) -> Result<MappedBox, MapError> {
        if shape.len() != self.params.len() {
            return Err(MapError::Arity { params: self.params.len(), dims: shape.len() });
        }
        let axes: Vec<Var> = (0..self.outputs.len())
            .map(|k| {
                let passed = self.outputs.get(k).and_then(|e| match e {
                    Expr::Var(v) => Some(v.name.to_string()),
                    _ => None,
                });
                let name = passed.unwrap_or_else(|| format!("axis{k}"));
                Var { id: VarId((self.params.len() + k) as u32), name: name.into(), dtype: DType::I32 }
            })
            .collect();
        let swizzles = self.swizzles();
        match self.radix(shape, &axes).filter(|_| !swizzles) {
            Some(layout) => Ok(layout),
            None if swizzles || self.turns() => match self.swizzled(shape) {
                Some((layout, true)) => Ok(layout),
                Some((_, false)) => Err(MapError::Gaps(self.to_string())),
                None => self.tried(shape, axes),
            },
            None => self.tried(shape, axes),
        }
    }

    /// The map as one in mixed radix, with parameters padded to multiples of what they are divided by.
    fn radix(&self, shape: &[i64], axes: &[Var]) -> Option<MappedBox> {
        let factors = self.padding_factors()?;
        let mut padded = Vec::with_capacity(shape.len());
        for (dim, factor) in shape.iter().zip(&factors) {
            padded.push(dim.checked_add(factor - 1)?.checked_div(*factor)?.checked_mul(*factor)?);
        }
        let range = |e: i64| Range { min: int(0, DType::I32), extent: int(e, DType::I32) };
        let domains: Domains = padded.iter().enumerate().map(|(k, e)| (VarId(k as u32), range(*e))).collect();
        let map = iter_map::detect(&self.outputs, &domains, &int(1, DType::Bool), true)?;
        if !map.has_unit_strides() || !map.is_bijective(&domains) {
            return None;
        }
        let none = Domains::new();
        let mut extents = Vec::new();
        for e in &self.outputs {
            let interval = Interval::of(e, &domains, &none)?;
            if interval.lo.as_constant() != Some(0) {
                return None;
            }
            extents.push(map.extent_of(extents.len())?);
        }
        let outputs: Domains = axes.iter().zip(&extents).map(|(v, e)| (v.id, range(*e))).collect();
        let points: Option<Vec<Interval>> =
            axes.iter().map(|v| Linear::of(&Expr::Var(v.clone()), &none).map(Interval::point)).collect();
        let found = map.inverse(&points?, &domains, &none)?;
        let mut inverse = Vec::new();
        for k in 0..shape.len() {
            inverse.push(match found.get(&VarId(k as u32)) {
                Some(i) => Linear::of(&i.lo.expr(), &none)?.expr(),
                None => int(0, DType::I32),
            });
        }
        let mut padding: Option<Expr> = None;
        for k in self.by_first_use() {
            if padded[k] != shape[k] {
                let clause = padding_of(inverse.get(k)?, shape[k], factors[k], &outputs)?;
                padding = Some(match padding {
                    None => clause,
                    Some(old) => Expr::Binary(BinOp::Or, Arc::new(old), Arc::new(clause)),
                });
            }
        }
        Some(MappedBox { shape: extents, inverse: Some(inverse), padding, axes: axes.to_vec() })
    }

    /// Whether indices of the box `[0, shape)` that differ in a parameter which the map uses have different images. A map
    /// that is not in mixed radix is tried on every index; where these are more than 2^16, it is taken not to be injective.
    pub fn is_injective(&self, shape: &[i64]) -> bool {
        const MOST: i64 = 1 << 16;
        let used = self.by_first_use();
        let shape: Vec<i64> = shape.iter().enumerate().map(|(k, e)| if used.contains(&k) { *e } else { 1 }).collect();
        let range = |e: &i64| Range { min: int(0, DType::I32), extent: int(*e, DType::I32) };
        let domains: Domains = shape.iter().enumerate().map(|(k, e)| (VarId(k as u32), range(e))).collect();
        let radix = iter_map::detect(&self.outputs, &domains, &int(1, DType::Bool), true);
        if radix.is_some_and(|m| m.is_injective(&domains)) {
            return true;
        }
        let count = shape.iter().try_fold(1i64, |p, e| p.checked_mul(*e));
        let mut seen = HashSet::new();
        let image = |at: Vec<i64>| self.outputs.iter().map(|e| value(e, &at)).collect::<Option<Vec<i64>>>();
        count.is_some_and(|c| (1..=MOST).contains(&c))
            && Odometer::new(&shape).all(|at| image(at).is_some_and(|image| seen.insert(image)))
    }

    /// The parameters in the order in which the outputs use them.
    fn by_first_use(&self) -> Vec<usize> {
        let mut out: Vec<usize> = Vec::new();
        for e in &self.outputs {
            visit::walk_expr(e, &mut |e| {
                if let Expr::Var(v) = e {
                    if !out.contains(&(v.id.0 as usize)) {
                        out.push(v.id.0 as usize);
                    }
                }
            });
        }
        out
    }

    /// For every parameter, the least common multiple of all that it is divided by.
    fn padding_factors(&self) -> Option<Vec<i64>> {
        let mut out = vec![1i64; self.params.len()];
        for e in &self.outputs {
            let mut ok = true;
            visit::walk_expr(e, &mut |e| {
                if let Expr::Binary(BinOp::FloorDiv | BinOp::FloorMod, a, b) = e {
                    if let (Some((v, lower)), Some(c)) = (chain(a), constant(b)) {
                        let slot = out.get_mut(v.0 as usize);
                        let new = slot.as_ref().and_then(|s| lcm(**s, lower.checked_mul(c)?));
                        match (slot, new) {
                            (Some(slot), Some(new)) => *slot = new,
                            _ => ok = false,
                        }
                    }
                }
            });
            if !ok {
                return None;
            }
        }
        Some(out)
    }

    /// The map tried on every index of the box.
    pub(super) fn tried(&self, shape: &[i64], axes: Vec<Var>) -> Result<MappedBox, MapError> {
        let name = || self.to_string();
        let count = shape.iter().try_fold(1i64, |p, e| p.checked_mul(*e)).filter(|c| (1..=TRIED).contains(c));
        let Some(count) = count else { return Err(MapError::Unknown(name())) };
        let images = || Odometer::new(shape).map(|at| self.outputs.iter().map(|e| value(e, &at)).collect());
        let mut extents = vec![0i64; self.outputs.len()];
        for image in images() {
            let image: Option<Vec<i64>> = image;
            let Some(image) = image else { return Err(MapError::Unknown(name())) };
            for (extent, v) in extents.iter_mut().zip(&image) {
                if *v < 0 {
                    return Err(MapError::Offset(name()));
                }
                *extent = (*extent).max(v.saturating_add(1));
            }
        }
        let size = extents.iter().try_fold(1i64, |p, e| p.checked_mul(*e)).filter(|s| *s <= 64 * TRIED);
        let Some(size) = size else { return Err(MapError::Gaps(name())) };
        let mut seen = vec![false; size as usize];
        for image in images() {
            let image: Option<Vec<i64>> = image;
            let at = image.unwrap_or_default().iter().zip(&extents).fold(0i64, |at, (v, e)| at * e + v);
            match seen.get_mut(at as usize) {
                Some(slot) if !*slot => *slot = true,
                _ => return Err(MapError::NotInjective(name())),
            }
        }
        if size != count {
            return Err(MapError::Gaps(name()));
        }
        Ok(MappedBox { shape: extents, inverse: None, padding: None, axes })
    }
}

/// A parameter and what it was divided by, for `v`, `v // a`, `(v // a) % b`.
pub(super) fn chain(e: &Expr) -> Option<(VarId, i64)> {
    match e {
        Expr::Var(v) => Some((v.id, 1)),
        Expr::Binary(BinOp::FloorDiv, a, c) => {
            let (v, lower) = chain(a)?;
            Some((v, lower.checked_mul(constant(c).filter(|c| *c > 0)?)?))
        }
        Expr::Binary(BinOp::FloorMod, a, c) => chain(a).filter(|_| constant(c).is_some_and(|c| c > 0)),
        _ => None,
    }
}

fn lcm(a: i64, b: i64) -> Option<i64> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    if x == 0 {
        return None;
    }
    (a / x).checked_mul(b).filter(|v| *v > 0)
}

/// Where a parameter of value `e`, padded to a multiple of `factor`, is at least `extent`.
fn padding_of(e: &Expr, extent: i64, factor: i64, outputs: &Domains) -> Option<Expr> {
    let binary = |op, a: Expr, b: i64| Expr::Binary(op, Arc::new(a), Arc::new(int(b, DType::I32)));
    let at_least = |e: Expr, limit: i64| Expr::Binary(BinOp::Le, Arc::new(int(limit, DType::I32)), Arc::new(e));
    let whole = Linear::of(e, outputs)?;
    let (high, low) = (whole.div(factor, outputs)?, whole.rem(factor, outputs)?);
    let divided =
        |l: &Linear| l.terms().iter().any(|(e, _)| matches!(e, Expr::Binary(BinOp::FloorDiv | BinOp::FloorMod, ..)));
    if divided(&high) || divided(&low) {
        return Some(at_least(whole.expr(), extent));
    }
    let limit = extent.rem_euclid(factor);
    let low = match low.ends(outputs).1 {
        Some(most) if most == limit => binary(BinOp::Eq, low.expr(), limit),
        _ => at_least(low.expr(), limit),
    };
    match high.as_constant() {
        Some(_) => Some(low),
        None => {
            let high = binary(BinOp::Eq, high.expr(), extent.div_euclid(factor));
            Some(Expr::Binary(BinOp::And, Arc::new(high), Arc::new(low)))
        }
    }
}

/// All indices of a box in row-major order.
struct Odometer<'a> {
    shape: &'a [i64],
    next: Option<Vec<i64>>,
}

impl<'a> Odometer<'a> {
    fn new(shape: &'a [i64]) -> Odometer<'a> {
        Odometer { shape, next: Some(vec![0; shape.len()]) }
    }
}

impl Iterator for Odometer<'_> {
    type Item = Vec<i64>;

    fn next(&mut self) -> Option<Vec<i64>> {
        let here = self.next.take()?;
        let mut after = here.clone();
        for (v, e) in after.iter_mut().zip(self.shape).rev() {
            *v += 1;
            if *v < *e {
                self.next = Some(after);
                break;
            }
            *v = 0;
        }
        Some(here)
    }
}

/// The value of an output at an index. None where it overflows or cannot be computed.
fn value(e: &Expr, at: &[i64]) -> Option<i64> {
    value_of(e, &|id| at.get(id.0 as usize).copied())
}

impl MappedBox {
    /// The inverse in terms of other expressions for the axes; none where the map was tried index by index.
    pub fn inverse_at(&self, axes: &[Expr]) -> Option<Vec<Expr>> {
        let inverse = self.inverse.as_ref()?;
        Some(inverse.iter().map(|e| self.at(e, axes)).collect())
    }

    /// The padding predicate in terms of other expressions for the axes.
    pub fn padding_at(&self, axes: &[Expr]) -> Option<Expr> {
        self.padding.as_ref().map(|e| self.at(e, axes))
    }

    fn at(&self, e: &Expr, axes: &[Expr]) -> Expr {
        let map: HashMap<VarId, Expr> = self.axes.iter().map(|v| v.id).zip(axes.iter().cloned()).collect();
        add(visit::substitute(e, &map), int(0, DType::I32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(map: &str, shape: &[i64]) -> Result<MappedBox, MapError> {
        IndexMap::parse(map).unwrap().layout(shape)
    }

    fn padding(map: &str, shape: &[i64]) -> String {
        layout(map, shape).unwrap().padding.map_or_else(String::new, |e| crate::text::expr(&e))
    }

    #[test]
    fn shapes() {
        for (map, shape) in [
            ("lambda i, j: (j, i)", vec![16, 32]),
            ("lambda i, j: (i // 4, j, i % 4)", vec![8, 16, 4]),
            ("lambda i, j: (i // 4, j // 4, i % 4, j % 4)", vec![8, 4, 4, 4]),
            ("lambda i, j: i * 16 + j", vec![512]),
            ("lambda i, j: (j // 16, i, j % 16)", vec![1, 32, 16]),
            ("lambda i, j: (i, j ^ (i % 8))", vec![32, 16]),
        ] {
            let got = layout(map, &[32, 16]).unwrap();
            assert_eq!(got.shape, shape, "{map}");
            assert!(got.padding.is_none(), "{map}");
        }
    }

    #[test]
    fn paddings() {
        for (map, text) in [
            ("lambda i, j: (i // 4, j, i % 4)", "axis0 == 7 and 2 <= axis2"),
            ("lambda i, j: (i // 8, (i // 2) % 4, i % 2, j)", "axis0 == 3 and 6 <= axis1 * 2 + axis2"),
            ("lambda i, j: (i // 32, i % 32, j)", "30 <= axis1"),
            ("lambda i, j: (i // 4, j // 3, i % 4, j % 3)", "axis0 == 7 and 2 <= axis2 or axis1 == 5 and 1 <= axis3"),
            ("lambda i, j: (j, i // 4 * 4 + i % 4)", "30 <= axis1"),
            ("lambda i, j: (i // 16, (i % 16) // 8, i % 8, j)", "axis0 == 1 and 14 <= axis1 * 8 + axis2"),
        ] {
            assert_eq!(padding(map, &[30, 16]), text, "{map}");
        }
    }

    #[test]
    fn refuses() {
        let unclear = "lambda i, j: (i * 8 + j,)";
        for (map, error) in [
            ("lambda i: i", "the map has 1 parameters for 2 dimensions"),
            (
                "lambda i, j: (i // 4, j)",
                "the map T.index_map(lambda i, j: (i // 4, j)) takes different indices to the same place",
            ),
            (unclear, "the map T.index_map(lambda i, j: (i * 8 + j,)) takes different indices to the same place"),
            ("lambda i, j: (i * 2, j)", "the map T.index_map(lambda i, j: (i * 2, j)) leaves gaps"),
            (
                "lambda i, j: (i - 1, j)",
                "the indices that the map T.index_map(lambda i, j: (i - 1, j)) makes do not start with 0",
            ),
        ] {
            assert_eq!(layout(map, &[30, 16]).unwrap_err().to_string(), error, "{map}");
        }
        let large = layout(unclear, &[1 << 20, 1 << 20]).unwrap_err();
        assert!(matches!(large, MapError::Unknown(_)));
    }

    proptest! {
        /// Tilings at random: every index comes back, and exactly the rest is padding.
        #[test]
        fn inverse_and_padding(
            shape in (1i64..20, 1i64..20),
            (a, b, c) in (1i64..7, 1i64..5, 1i64..6),
            order in Just((0..5).collect::<Vec<usize>>()).prop_shuffle(),
        ) {
            let parts = [format!("i // {}", a * b), format!("i // {b} % {a}"), format!("i % {b}"), format!("j // {c}"), format!("j % {c}")];
            let outputs: Vec<&str> = order.iter().map(|k| parts[*k].as_str()).collect();
            let map = IndexMap::parse(&format!("lambda i, j: ({})", outputs.join(", "))).unwrap();
            let layout = map.layout(&[shape.0, shape.1]).unwrap();
            let Some(inverse) = &layout.inverse else { return Err(TestCaseError::fail("no inverse")) };
            for image in Odometer::new(&layout.shape) {
                // The axes' ids follow those of the two parameters.
                let at = [vec![0, 0], image.clone()].concat();
                let back: Vec<i64> = inverse.iter().map(|e| value(e, &at).unwrap()).collect();
                let outside = back[0] >= shape.0 || back[1] >= shape.1;
                prop_assert_eq!(outside, layout.padding.as_ref().is_some_and(|e| holds(e, &at)));
                let again: Vec<i64> = map.outputs.iter().map(|e| value(e, &back).unwrap()).collect();
                prop_assert_eq!(again, image);
            }
        }
    }

    fn holds(e: &Expr, at: &[i64]) -> bool {
        match e {
            Expr::Binary(BinOp::And, a, b) => holds(a, at) && holds(b, at),
            Expr::Binary(BinOp::Or, a, b) => holds(a, at) || holds(b, at),
            Expr::Binary(BinOp::Eq, a, b) => value(a, at) == value(b, at),
            Expr::Binary(BinOp::Le, a, b) => value(a, at) <= value(b, at),
            other => panic!("{other:?}"),
        }
    }
}
