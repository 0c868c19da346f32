//! The order of blocks, where groups do not divide the tiles: no loop says it, so the block's number is another.
//!
//! ```text
//!   5 x 3 tiles in groups of 2 rows:      0 2 4
//!                                         1 3 5
//!                                         6 8 10
//!                                         7 9 11
//!                                         12 13 14
//! ```
use super::cluster::Cluster;
use super::emit::Emitter;
use super::nest::int_list;
use crate::kernel::{Dim, Index, Stmt};
use crate::lower::index::{add, div, grouped, mul, rem};
use satune_ir::{Annotations, Attr};
use satune_rewrites::keys;

/// Tiles along the loop that is in groups, and across it; tiles of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raster {
    pub along: i64,
    pub across: i64,
    group: i64,
}

impl Raster {
    /// Of a loop of so many blocks.
    pub fn of(annotations: &Annotations, blocks: i64) -> Option<Raster> {
        let number = |key: &str| match annotations.get(key) {
            Some(Attr::Int(group @ 2..)) => Some(*group),
            _ => None,
        };
        let group = number(keys::RASTER_ROWS).or_else(|| number(keys::RASTER_COLUMNS))?;
        match int_list(annotations.get(keys::RASTER_TILES))?.as_slice() {
            &[along, across] => {
                let tiles = along.checked_mul(across).filter(|tiles| along > 0 && *tiles > 0)?;
                (blocks > 1 && blocks % tiles == 0).then_some(Raster { along, across, group })
            }
            _ => None,
        }
    }

    /// The order of clusters of so many tiles along it and across.
    pub fn by_clusters(self, [along, across]: [i64; 2]) -> Raster {
        let group = (self.group + along - 1) / along;
        Raster { along: self.along / along, across: self.across / across, group }
    }

    /// The line of a block's tile, and the place in it.
    pub fn lines(&self, number: &Index) -> (Index, Index) {
        grouped(&rem(number.clone(), self.along * self.across), self.along, self.across, self.group)
    }

    /// The number of the block's tile, line by line, from the block's own.
    fn tile(&self, number: &Index) -> Index {
        let tiles = self.along * self.across;
        let (line, place) = self.lines(number);
        add(mul(div(number.clone(), tiles), tiles), add(mul(line, self.across), place))
    }
}

impl Emitter<'_> {
    /// Gives blocks their numbers.
    pub(super) fn number_blocks(&mut self) {
        if self.nest.turns.is_some() || self.nest.raster.is_none() && self.cluster.is_none() {
            return;
        }
        let Some(thread) = self.nest.threads.iter().find(|t| t.index == Index::BlockIdx(Dim::X)) else { return };
        let size = self.cluster.as_ref().map_or(1, Cluster::size);
        let (v, value) = (thread.var, self.numbered(&div(thread.index.clone(), size)));
        let var = self.fresh();
        self.lets.push(Stmt::Let { var, name: "block".into(), value });
        self.env.insert(v, Index::Var(var));
    }

    /// The tile of a block's number, or a cluster's.
    pub(super) fn numbered(&self, number: &Index) -> Index {
        match (&self.cluster, self.nest.raster) {
            (Some(cluster), raster) => cluster.tile(number, raster),
            (None, Some(raster)) => raster.tile(number),
            (None, None) => number.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::index::c;

    fn value(index: &Index) -> i64 {
        match index {
            Index::Const(value) => *value,
            Index::Add(a, b) => value(a) + value(b),
            Index::Sub(a, b) => value(a) - value(b),
            Index::Mul(a, b) => value(a) * value(b),
            Index::Div(a, b) => value(a) / value(b),
            Index::Mod(a, b) => value(a) % value(b),
            Index::Min(a, b) => value(a).min(value(b)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn blocks_go_group_by_group() {
        let raster = Raster { along: 5, across: 3, group: 2 };
        let tiles: Vec<i64> = (0..15).map(|b| value(&raster.tile(&c(b)))).collect();
        let mut numbers = vec![0; 15];
        tiles.iter().zip(0..).for_each(|(tile, block)| numbers[*tile as usize] = block);
        assert_eq!(numbers, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 12, 13, 14]);
    }
}
