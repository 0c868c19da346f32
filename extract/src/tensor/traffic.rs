//! What the orders in which a class's blocks run move from DRAM.
use super::time;
use crate::Descriptor;
use satune_ir::term::{BlockLoop, Contraction};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The orders of the blocks of a class, those that move the fewest bytes first: found once for each number of blocks
/// that are at work at once.
pub(super) struct Traffic {
    /// The loops of each order.
    orders: Vec<Vec<BlockLoop>>,
    /// Tile of a block, and its part of k.
    of: ([i64; 3], i64),
    /// How many orders are wanted.
    most: usize,
    /// Bytes and number of an order, by resident blocks per multiprocessor.
    known: BTreeMap<i64, Arc<Vec<(f64, usize)>>>,
}

impl Traffic {
    pub fn new(orders: Vec<Vec<BlockLoop>>, of: ([i64; 3], i64), most: usize) -> Traffic {
        Traffic { orders, of, most, known: BTreeMap::new() }
    }

    /// Blocks in all.
    pub fn blocks(&self) -> i64 {
        self.orders.first().map_or(1, |loops| loops.iter().map(|l| l.extent).product())
    }

    /// The best orders, with their bytes. A plan's time is monotone in these, so that no other order is needed.
    pub fn best(&mut self, resident: i64, contraction: &Contraction, gpu: &Descriptor) -> Arc<Vec<(f64, usize)>> {
        let (orders, of, most) = (&self.orders, self.of, self.most);
        let find = || {
            let of_order = |loops: &Vec<BlockLoop>| time::moved(loops, of, resident, contraction, gpu);
            let mut list: Vec<(f64, usize)> = orders.iter().map(of_order).zip(0..).collect();
            list.sort_by(|a, b| a.0.total_cmp(&b.0));
            list.truncate(most);
            Arc::new(list)
        };
        self.known.entry(resident).or_insert_with(find).clone()
    }

    /// The fewest bytes that any order moves.
    pub fn least(&mut self, resident: i64, contraction: &Contraction, gpu: &Descriptor) -> f64 {
        self.best(resident, contraction, gpu).first().map_or(0.0, |order| order.0)
    }
}
