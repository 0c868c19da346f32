//! Tiles that the TMA takes from shared to global memory: who waits until they have been read.
//!
//! ```text
//!   for tile:                        for tile:
//!       fill S                           the thread that sends waits for the tile before; all meet
//!       all meet                         fill S
//!       send S                ->         all meet
//!       all meet                         send S
//! ```
//! So what comes between, as the next tile's multiplications, is done meanwhile. Boxes that go one after the other ([`super::by_box`]) have room for two:
//! one is filled while the other is read.
use super::by_box::BOX;
use super::emit::{guarded, Emitter};
use super::nest::{leaves, Leaf, Loop, Nest, Node};
use super::tma::{is_tile, Tiles};
use crate::kernel::{Cond, GroupOp, Index, Stmt};
use crate::lower::index::{add, c, mul, rem};
use satune_ir::{BufferId, VarId};
use std::collections::HashMap;

/// Places for boxes that go one after the other.
pub const PLACES: i64 = 2;

/// How a buffer's tiles are sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The statement that sends.
    leaf: usize,
    /// Whether there may be a box, or a tile, before; and whether a tile.
    again: bool,
    tile_before: bool,
    /// Which of its places a box has, and the loops over boxes with their laps, outermost first.
    pub place: Option<VarId>,
    boxes: Vec<(VarId, i64)>,
}

/// The buffers that are filled and sent in one list of statements, and accessed nowhere else.
pub fn find(nest: &mut Nest, tiles: &Tiles) -> HashMap<BufferId, Sent> {
    let mut accesses: HashMap<BufferId, usize> = HashMap::new();
    nest.leaves(&mut |leaf, _| count(leaf, &mut accesses));
    let mut found = HashMap::new();
    look(&nest.body, &mut Vec::new(), &mut |list, path| {
        for (at, node) in list.iter().enumerate() {
            let Some((leaf, buffer)) = is_tile(node, tiles).and_then(|leaf| Some((leaf, tiles.sent(leaf)?))) else {
                continue;
            };
            let mut inside = HashMap::new();
            leaves(list, &mut |leaf| count(leaf, &mut inside));
            let filled = list[..at].iter().any(|node| writes(node, buffer));
            let mut behind = HashMap::new();
            leaves(&list[at + 1..], &mut |leaf| count(leaf, &mut behind));
            if !filled
                || behind.contains_key(&buffer)
                || inside.get(&buffer) != accesses.get(&buffer)
                || found.contains_key(&buffer)
            {
                continue;
            }
            let boxes = path.iter().filter(|l| l.annotations.contains_key(BOX));
            let boxes: Vec<(VarId, i64)> = boxes.map(|l| (l.var, l.extent)).collect();
            let [again, tile_before] = [0, boxes.len()].map(|loops| path.len() > loops);
            found.insert(buffer, Sent { leaf, again, tile_before, place: None, boxes });
        }
    });
    for sent in found.values_mut().filter(|sent| !sent.boxes.is_empty()) {
        sent.place = Some(nest.fresh(PLACES));
    }
    found
}

fn count(leaf: &Leaf, all: &mut HashMap<BufferId, usize>) {
    let buffers = leaf.reads.iter().map(|(b, _)| *b).chain([leaf.target]);
    buffers.for_each(|b| *all.entry(b).or_default() += 1);
}

/// Calls `f` with every list of statements and the loops around it.
fn look<'n>(nodes: &'n [Node], path: &mut Vec<&'n Loop>, f: &mut dyn FnMut(&'n [Node], &[&'n Loop])) {
    f(nodes, path);
    for node in nodes {
        if let Node::Loop(l) = node {
            path.push(l);
            look(&l.body, path, f);
            path.pop();
        }
    }
}

fn writes(node: &Node, buffer: BufferId) -> bool {
    let mut found = false;
    leaves(std::slice::from_ref(node), &mut |leaf| found |= leaf.target == buffer);
    found
}

impl Sent {
    /// Whether a statement sends, so that nobody but who fills the buffer waits for it.
    pub fn is_by(&self, leaf: usize) -> bool {
        self.leaf == leaf
    }

    /// Boxes that may still be read when the next place is filled.
    fn latest(&self) -> u32 {
        u32::from(self.place.is_some()) * (PLACES as u32 - 1)
    }

    /// Whether the first box of a tile may have the place of the last one of the tile before.
    fn is_odd(&self) -> bool {
        self.tile_before && self.boxes.iter().map(|(_, extent)| extent).product::<i64>() % PLACES != 0
    }
}

impl Emitter<'_> {
    /// The places of the boxes that a list of statements sends.
    pub(super) fn places_of_boxes(&self, nodes: &[Node]) -> Vec<(VarId, Index)> {
        let own = |sent: &&Sent| {
            sent.place.is_some() && nodes.iter().any(|node| is_tile(node, &self.tiles) == Some(sent.leaf))
        };
        let place = |sent: &Sent| sent.place.map(|place| (place, rem(self.number_of_box(sent), PLACES)));
        self.sent.values().filter(own).filter_map(place).collect()
    }

    /// The number of a box among its tile's.
    fn number_of_box(&self, sent: &Sent) -> Index {
        let own = |v: &VarId| self.env.get(v).cloned().unwrap_or(c(0));
        sent.boxes.iter().fold(c(0), |number, (v, extent)| add(mul(number, *extent), own(v)))
    }

    /// What comes before the statement of a number, where it is the first that fills what a later one sends: the tile before has been read. Then
    /// whether all still have to meet.
    pub(super) fn before_filling(&mut self, nodes: &[Node], number: usize) -> (Vec<Stmt>, bool) {
        let meets = |at: usize| matches!(nodes.get(at), Some(Node::Barrier));
        // They meet behind the wait, where they do anyway.
        let (first, meet) = match (meets(number), number.checked_sub(1).is_some_and(meets)) {
            (true, _) => (number + 1, false),
            (_, true) => return (Vec::new(), false),
            _ => (number, true),
        };
        let Some(node) = nodes.get(first) else { return (Vec::new(), false) };
        let fills = |(buffer, sent): &(&BufferId, &Sent)| {
            let is_sent = nodes[first..].iter().any(|node| is_tile(node, &self.tiles) == Some(sent.leaf));
            sent.again && is_sent && writes(node, **buffer) && !nodes[..first].iter().any(|node| writes(node, **buffer))
        };
        let mut list: Vec<Sent> = self.sent.iter().filter(fills).map(|(_, sent)| sent.clone()).collect();
        list.sort_by_key(|sent| sent.leaf);
        let out: Vec<Stmt> = list.iter().flat_map(|sent| self.waits_for_place(sent)).collect();
        let meet = meet && !out.is_empty();
        (out, meet)
    }

    /// Whoever sends waits until the next place can be filled.
    fn waits_for_place(&mut self, sent: &Sent) -> Vec<Stmt> {
        let latest = self.waits(sent, (sent.latest(), true));
        match sent.place.is_some() && sent.is_odd() {
            false => latest,
            true => {
                let (cond, then) = (Cond::Eq(self.number_of_box(sent), c(0)), self.waits(sent, (0, true)));
                vec![Stmt::If { cond, then, otherwise: latest }]
            }
        }
    }

    /// Whoever sends waits until all but so many tiles have been read, or stored.
    fn waits(&mut self, sent: &Sent, (latest, read): (u32, bool)) -> Vec<Stmt> {
        let when = self.tiles.by_leaf.get(&sent.leaf).map(|tile| tile.when.clone()).unwrap_or_default();
        let cond = self.condition(&when);
        guarded(cond, vec![Stmt::Group(GroupOp::StoreWait { latest, read })])
    }

    /// At the end all have been stored.
    pub(super) fn all_stored(&mut self) -> Vec<Stmt> {
        let mut list: Vec<Sent> = self.sent.values().cloned().collect();
        list.sort_by_key(|sent| sent.leaf);
        list.iter().flat_map(|sent| self.waits(sent, (0, false))).collect()
    }
}
