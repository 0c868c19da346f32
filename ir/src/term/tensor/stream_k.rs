//! Stream-K: the steps along k of all tiles of C, one tile after the other, are dealt out evenly to the blocks of a
//! persistent grid. A tile whose steps fall to several blocks is added up by a second kernel, in the order of k.

/// Who takes which steps: block b those from [`first`](StreamK::first)`(b)` up to `first(b + 1)`, so that no two blocks
/// differ by more than one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamK {
    /// Blocks of the grid; none is idle.
    pub blocks: i64,
    /// Tiles of C, of all products.
    pub tiles: i64,
    /// Steps along k of a tile.
    pub steps: i64,
}

impl StreamK {
    /// Steps in all.
    pub fn total(&self) -> i64 {
        self.tiles * self.steps
    }

    /// Steps that each block has at least, and the number of blocks that have one more.
    pub fn each(&self) -> (i64, i64) {
        (self.total() / self.blocks, self.total() % self.blocks)
    }

    /// The first step of a block.
    pub fn first(&self, block: i64) -> i64 {
        let (each, more) = self.each();
        block * each + block.min(more)
    }

    /// The block of a step.
    pub fn block_of(&self, step: i64) -> i64 {
        let (each, more) = self.each();
        let larger = more * (each + 1);
        step.min(larger) / (each + 1) + (step - larger).max(0) / each.max(1)
    }

    /// The most blocks that a tile may fall to.
    pub fn parts(&self) -> i64 {
        let each = self.each().0.max(1);
        ((self.steps + each - 2) / each + 1).min(self.blocks)
    }

    /// Parts of tiles, of all blocks together; and the most that one block has.
    pub fn pieces(&self) -> (i64, i64) {
        let of = |block: i64| (self.first(block + 1) - 1) / self.steps - self.first(block) / self.steps + 1;
        (0..self.blocks).map(of).fold((0, 0), |(sum, most), pieces| (sum + pieces, most.max(pieces)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_one_block_and_no_block_is_idle() {
        for blocks in 1..14 {
            for tiles in 1..6 {
                for steps in 1..9 {
                    let stream = StreamK { blocks, tiles, steps };
                    if stream.total() < blocks {
                        continue;
                    }
                    assert_eq!((stream.first(0), stream.first(blocks)), (0, stream.total()));
                    let mut parts = vec![0; tiles as usize];
                    for block in 0..blocks {
                        let range = stream.first(block)..stream.first(block + 1);
                        assert!(!range.is_empty());
                        assert!(range.clone().all(|step| stream.block_of(step) == block), "{stream:?}");
                        let mut own: Vec<i64> = range.map(|step| step / steps).collect();
                        own.dedup();
                        own.into_iter().for_each(|tile| parts[tile as usize] += 1);
                    }
                    assert!(parts.iter().all(|p| *p <= stream.parts()), "{stream:?}");
                    assert_eq!(stream.pieces().0, parts.iter().sum::<i64>());
                }
            }
        }
    }
}
