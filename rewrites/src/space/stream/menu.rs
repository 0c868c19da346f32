//! Sizes on offer for streaming programs.
use satune_ir::term::Schedule;
use std::collections::BTreeMap;

/// Sizes that the rules offer. A user may narrow or widen each list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamMenu {
    /// Rows of a block, side by side.
    pub side_by_side: Vec<i64>,
    /// Rows of a block, in turn.
    pub serial_rows: Vec<i64>,
    /// Rows of a block of a flat kernel, side by side, of which a part of a warp takes each.
    pub short_rows: Vec<i64>,
    /// Threads along a row, multiples of 32.
    pub threads: Vec<i64>,
    /// Threads along a row of a row kernel, where they are a part of a warp.
    pub part_threads: Vec<i64>,
    /// Elements per access.
    pub vectors: Vec<i64>,
    /// Results of a thread of a plain kernel along another loop than the innermost one.
    pub windows: Vec<i64>,
    /// Unrolled steps of a flat kernel.
    pub steps: Vec<i64>,
    /// Sides of a tile.
    pub tiles: Vec<i64>,
    /// Threads per block of a tile kernel.
    pub tile_threads: Vec<i64>,
    /// Elements added to a tile's rows.
    pub pads: Vec<i64>,
    /// Threads that share a sum of a plain kernel: others than neighbours, and neighbours.
    pub sharing: [Vec<i64>; 2],
    /// Results of a block whose threads share sums, likewise: of others one for each lane at least, of neighbours one for a warp at most.
    pub shared_results: [Vec<i64>; 2],
    /// Most elements that a thread holds of a row in registers.
    pub held_elements: i64,
    /// Most iterations, times the width of an access, of a loop that is unrolled.
    pub unrolled: i64,
    /// Schedules of the works that are contractions, by their numbers.
    pub tiled: BTreeMap<u16, Vec<Schedule>>,
}

impl Default for StreamMenu {
    fn default() -> StreamMenu {
        StreamMenu {
            side_by_side: vec![1, 2, 4, 8, 16, 32],
            serial_rows: vec![1, 2, 4, 8, 16],
            short_rows: vec![2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
            threads: vec![32, 64, 128, 256, 512, 1024],
            part_threads: vec![2, 4, 8, 16],
            vectors: vec![1, 2, 4, 8],
            windows: vec![2, 3, 4, 5, 6, 7, 8],
            steps: vec![1, 2, 4, 8],
            tiles: vec![16, 32, 64],
            tile_threads: vec![64, 128, 256, 512],
            pads: vec![0, 1, 2, 4, 8],
            sharing: [vec![4, 8, 16, 32], vec![32, 64, 128, 256]],
            shared_results: [vec![32, 64, 128, 256], vec![1, 2, 4, 8]],
            held_elements: 128,
            unrolled: 64,
            tiled: BTreeMap::new(),
        }
    }
}
