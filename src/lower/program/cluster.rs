//! Clusters: blocks of neighbouring tiles whose producers bring what they share once, to all of them (`satune.cluster_m`, `satune.cluster_n`).
//!
//! ```text
//!   tile = (x * 8 + y) * 8 + z      A's rows are those of x and z, B's columns those of y
//!   of 2 x 1 blocks:                x, y, z // 2 are the cluster's, z % 2 is the block's place in it: both read B's tile
//! ```
//! The tile's number has digits, those by which its copies tell tiles apart. The least ones that A's tiles alone depend on count along m, those that
//! B's alone depend on along n. Blocks whose digits but these are equal are a cluster, neighbours along blockIdx.x.
use super::group::{matrices, Together};
use super::linear::{gcd, Atom, Linear, Ranges};
use super::matrix::What;
use super::nest::Nest;
use super::raster::Raster;
use super::tma::Tiles;
use crate::kernel::{Dim, Index};
use crate::lower::index::{add, c, div, mul, rem};
use satune_ir::{BufferId, VarId};
use std::collections::{BTreeSet, HashMap};

/// Blocks that share tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Blocks along m and along n.
    pub blocks: [i64; 2],
    /// Digits of the tile's number, the least first.
    digits: Vec<Digit>,
}

/// A digit of a tile's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digit {
    /// Its values.
    values: i64,
    /// How many of them blocks of a cluster have, and along which side.
    of: i64,
    side: usize,
    /// Blocks along that side that differ in lesser digits.
    below: i64,
}

impl Digit {
    fn plain(values: i64) -> Digit {
        Digit { values, of: 1, side: 0, below: 1 }
    }
}

impl Cluster {
    /// Blocks of it.
    pub fn size(&self) -> i64 {
        self.blocks[0] * self.blocks[1]
    }

    /// The block's place along m (0) or n (1): A's sharers are neighbours.
    pub fn place(&self, side: usize) -> Index {
        let number = rem(Index::BlockIdx(Dim::X), self.size());
        match side {
            0 => div(number, self.blocks[1]),
            _ => rem(number, self.blocks[1]),
        }
    }

    /// The blocks that have the same tile of an operand, one bit for each: those along the other side.
    pub fn sharers(&self, operand: usize) -> Index {
        let along_n = self.blocks[1];
        let (bits, by) = match operand {
            0 => ((1 << along_n) - 1, mul(self.place(0), along_n)),
            _ => ((0..self.blocks[0]).map(|i| 1 << (i * along_n)).sum(), self.place(1)),
        };
        Index::Shl(Box::new(c(bits)), Box::new(by))
    }

    /// Blocks of the cluster in the digit that begins at a unit.
    fn along(&self, unit: i64) -> i64 {
        let mut own = 1;
        for digit in &self.digits {
            if own == unit && digit.values > 1 {
                return digit.of;
            }
            own *= digit.values;
        }
        1
    }

    /// The tile of the block, of the cluster of a number; clusters go group by group where tiles do.
    pub fn tile(&self, cluster: &Index, raster: Option<Raster>) -> Index {
        let raster = raster.map(|raster| {
            let of = [self.along(raster.across), self.along(1)];
            (raster, raster.by_clusters(if raster.across > 1 { of } else { [of[0], 1] }))
        });
        let (mut rest, mut unit, mut tile) = (cluster.clone(), 1, c(0));
        let places =
            raster.map(|(_, raster)| (raster.lines(cluster), div(cluster.clone(), raster.along * raster.across)));
        let across = raster.map_or(0, |(whole, _)| whole.across);
        for (at, digit) in self.digits.iter().enumerate().filter(|(_, digit)| digit.values > 1) {
            let Digit { values, of, side, below } = *digit;
            let own = match &places {
                Some(((_, place), _)) if unit == 1 && across > 1 => place.clone(),
                Some(((line, _), _)) if unit == across => line.clone(),
                Some((_, beyond)) => beyond.clone(),
                None if at + 1 == self.digits.len() => rest.clone(),
                None => rem(rest.clone(), values / of),
            };
            let digit = match of {
                1 => own,
                _ => add(mul(own, of), rem(div(self.place(side), below), of)),
            };
            tile = add(mul(digit, unit), tile);
            (rest, unit) = (div(rest, values / of), unit * values);
        }
        tile
    }
}

/// The cluster that a nest asks for, where its tiles make one; sets which tiles are shared. Else why not.
pub fn decide(nest: &Nest, (tile, tiles): (VarId, i64), found: &mut Tiles) -> Result<Option<Cluster>, &'static str> {
    let Some(blocks) = nest.cluster else { return Ok(None) };
    let Some(operands) = operands(nest) else { return Err("it has no product") };
    let [Some(a), Some(b)] = operands.map(|b| found.loaded(b)) else {
        return Err("its operands are not brought by the TMA");
    };
    let mut units = BTreeSet::from([1]);
    // In such an order a tile's number is line by line.
    units.extend(nest.raster.iter().flat_map(|raster| [raster.across, raster.along * raster.across]));
    a.iter().chain(&b).for_each(|form| units_of(form, tile, &mut units));
    let units: Vec<i64> = units.into_iter().filter(|unit| *unit < tiles).collect();
    let ends = units.iter().skip(1).copied().chain([tiles]);
    let extents: Vec<i64> = units.iter().zip(ends).map(|(unit, end)| end / unit).collect();
    if extents.iter().product::<i64>() != tiles {
        return Err("the number of a tile has no digits");
    }
    // The number, by its digits.
    let mut ranges: Ranges = nest.ranges.clone();
    let first = nest.next_var + 1;
    let vars: Vec<VarId> = (0..).zip(&extents).map(|(n, _)| VarId(first + n)).collect();
    ranges.extend(vars.iter().zip(&extents).map(|(v, extent)| (*v, (0, extent - 1))));
    let number = vars.iter().zip(&units).fold(Linear::of(0), |sum, (v, unit)| sum.plus(&Linear::var(*v), *unit));
    let map = HashMap::from([(tile, number)]);
    let depends = |forms: &[Linear], v: VarId| forms.iter().any(|f| f.substitute(&map, &ranges).uses(&|x| x == v));
    let mut digits: Vec<Digit> = extents.iter().map(|extent| Digit::plain(*extent)).collect();
    for (side, blocks) in blocks.into_iter().enumerate() {
        let (own, other) = if side == 0 { (&a, &b) } else { (&b, &a) };
        let mut below = 1;
        let counts = |v: VarId| depends(own, v) && !depends(other, v);
        for digit in vars.iter().zip(&mut digits).filter(|(v, _)| counts(**v)).map(|(_, digit)| digit) {
            let of = gcd(digit.values, blocks / below);
            (*digit, below) = (Digit { of, side, below, ..*digit }, below * of);
        }
        if below != blocks {
            return Err("neighbouring tiles do not fill one");
        }
    }
    for (side, buffer) in operands.into_iter().enumerate() {
        if !found.share(buffer, (side, blocks[1 - side])) {
            return Err("a box has no parts of 8 rows for its blocks");
        }
    }
    Ok(Some(Cluster { blocks, digits }))
}

/// The buffers that the nest multiplies.
fn operands(nest: &Nest) -> Option<[BufferId; 2]> {
    let mut found: Option<[BufferId; 2]> = None;
    let mut alike = true;
    nest.leaves(&mut |leaf, _| {
        let Some(What::Together(of)) = leaf.instruction.as_ref().map(|what| what.what) else { return };
        let own = buffers(leaf, of, nest);
        alike &= own.is_some() && (found.is_none() || found == own);
        found = own;
    });
    found.filter(|_| alike)
}

fn buffers(leaf: &super::nest::Leaf, of: Together, nest: &Nest) -> Option<[BufferId; 2]> {
    let what = leaf.instruction.as_deref()?;
    let both = matrices(leaf, what, of, &nest.ranges).ok()?;
    <[_; 2]>::try_from(both).ok().map(|both| both.map(|matrix| matrix.buffer))
}

/// What a form divides a variable by, or takes the remainder of.
fn units_of(form: &Linear, v: VarId, units: &mut BTreeSet<i64>) {
    for (atom, _) in &form.terms {
        match atom {
            Atom::Div(inner, by) | Atom::Mod(inner, by) if inner.uses(&|x| x == v) => {
                // `v % 64 // 8` divides v by 8, `v // 8 % 8` it by 64.
                let mut own = BTreeSet::new();
                units_of(inner, v, &mut own);
                let unit = match (atom, inner.terms.as_slice()) {
                    (Atom::Mod(..), [(Atom::Div(_, unit), 1)]) => *unit,
                    _ => 1,
                };
                units.insert(by * unit);
                units.extend(own);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(index: &Index, block: i64) -> i64 {
        let of = |index: &Index| value(index, block);
        match index {
            Index::Const(value) => *value,
            Index::BlockIdx(_) => block,
            Index::Add(a, b) => of(a) + of(b),
            Index::Mul(a, b) => of(a) * of(b),
            Index::Div(a, b) => of(a) / of(b),
            Index::Mod(a, b) => of(a) % of(b),
            Index::Shl(a, b) => of(a) << of(b),
            Index::And(a, b) => of(a) & of(b),
            Index::Shr(a, b) => of(a) >> of(b),
            other => panic!("{other:?}"),
        }
    }

    /// Each tile is one block's, and blocks of a cluster have neighbours.
    #[test]
    fn clusters_are_of_neighbouring_tiles() {
        // Tiles in groups of 4 rows: 3 groups, 6 columns.
        let of = |values, of, side| Digit { values, of, side, below: 1 };
        let digits = vec![of(4, 2, 0), of(6, 3, 1), Digit::plain(3)];
        let cluster = Cluster { blocks: [2, 3], digits };
        let size = cluster.size();
        let tiles: Vec<i64> =
            (0..72).map(|b| value(&cluster.tile(&div(Index::BlockIdx(Dim::X), size), None), b)).collect();
        let rows = |tile: i64| tile / 24 * 4 + tile % 4;
        let columns = |tile: i64| tile % 24 / 4;
        assert_eq!(tiles.iter().copied().collect::<BTreeSet<i64>>().len(), 72);
        for (number, own) in tiles.chunks(6).enumerate() {
            for (at, tile) in own.iter().enumerate() {
                assert_eq!(rows(*tile), rows(own[0]) + at as i64 / 3);
                assert_eq!(columns(*tile), columns(own[0]) + at as i64 % 3);
                let block = (number * 6 + at) as i64;
                let of = |operand| value(&cluster.sharers(operand), block);
                let same = |tell: &dyn Fn(i64) -> i64| {
                    own.iter()
                        .enumerate()
                        .filter(|(_, other)| tell(**other) == tell(*tile))
                        .map(|(n, _)| 1 << n)
                        .sum::<i64>()
                };
                assert_eq!((of(0), of(1)), (same(&rows), same(&columns)));
            }
        }
    }
}
