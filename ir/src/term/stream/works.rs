//! The works of a program: some of its blocks in order, and nothing else. A schedule goes from the whole program to less and less:
//! a block is inlined, or kept; the blocks that were kept share a kernel, which is a work by itself, and what is left is another.
//! Equal works are one, however they came about.
use super::{BlockKind, Point, Stream, StreamBlock};
use std::collections::{BTreeMap, VecDeque};

/// A step of inlining.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Inlining {
    /// The block that goes away.
    pub block: String,
    /// Into its producer (`reverse_compute_inline`) rather than into its consumers.
    pub reverse: bool,
}

/// How the rows of a reduction are split (`rfactor`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parting {
    /// Its block.
    pub block: String,
    /// Iterators that it reduces over; the outermost is split.
    pub reduced: usize,
    /// Whether what is summed up lies across the rows of memory.
    pub columns: bool,
    /// Whether each value of that iterator is a part.
    pub each: bool,
}

/// How the rows of a program's reductions are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowParts {
    /// Parts of each row; 1 where rows stay whole.
    pub number: i64,
    /// Whether reductions that use the result of another use its parts' (`rebase_reduction`), as far as they can.
    pub cascaded: bool,
}

impl RowParts {
    /// Rows as they are.
    pub const WHOLE: RowParts = RowParts { number: 1, cascaded: false };
}

/// Reductions of the same rows in parts, of which the later ones use the parts of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cascade {
    /// What stands between them, and is inlined.
    pub inlined: Vec<Inlining>,
    /// How they are split, in order.
    pub partings: Vec<Parting>,
}

impl Cascade {
    /// Whether a block is inlined for it.
    pub fn inlines(&self, block: &str) -> bool {
        self.inlined.iter().any(|i| i.block == block)
    }

    /// Whether it splits the rows of a block.
    pub fn splits(&self, block: &str) -> bool {
        self.partings.iter().any(|p| p.block == block)
    }
}

/// What makes other blocks of some, with the same results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// `compute_inline` or `reverse_compute_inline`.
    Inline(Inlining),
    /// `rfactor`.
    Part(Parting),
    /// `rfactor` and `rebase_reduction`.
    Cascade(Cascade),
}

/// What a work becomes, its blocks before the one that is decided about as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Become {
    /// By which primitive.
    pub how: How,
    /// Where that leads.
    pub to: Point,
}

/// What there is to decide at a point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// What it becomes.
    pub becomes: Vec<Become>,
    /// Whether the next block can be kept, too.
    pub keep: bool,
    /// The blocks that are kept as a work, their kernel, and the work that is left, if any is.
    pub then: Option<(usize, Option<usize>)>,
}

/// A streaming program with all ways to part it into kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Names of the source's blocks, in order.
    pub source: Vec<String>,
    /// The works; the first is the source.
    pub works: Vec<Stream>,
    /// Parts that the rows of reductions are split into, and the work that begins there; whole rows first.
    pub roots: Vec<(RowParts, usize)>,
    /// What there is to decide.
    pub choices: BTreeMap<Point, Choices>,
    /// The source's blocks that only plain kernels take, and its nests that run as they are written, each with the reason.
    pub plain: Vec<(String, String)>,
    /// What is not looked at, because there would be too many works; none where all are.
    pub left_out: Option<String>,
}

/// The way of a schedule through the works.
#[derive(Clone, Debug, Default)]
pub struct Way<'s> {
    /// What is done to blocks, in order.
    pub becomes: Vec<&'s How>,
    /// The kernels.
    pub kernels: Vec<&'s Stream>,
}

impl Streams {
    /// The source.
    pub fn whole(&self) -> &Stream {
        &self.works[0]
    }

    /// Numbers of the works that are kernels.
    pub fn kernels(&self) -> impl Iterator<Item = usize> + '_ {
        let mut all: Vec<usize> = self.choices.values().filter_map(|c| c.then).map(|(kernel, _)| kernel).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter()
    }

    /// Numbers of the works that are kernels, and the least number of blocks that are inlined where they are read on a way there.
    pub fn inlined(&self) -> BTreeMap<usize, usize> {
        let (mut known, mut kernels) = (BTreeMap::new(), BTreeMap::new());
        let mut next: VecDeque<(usize, Point)> = self.roots.iter().map(|(_, root)| (0, Point::of(*root))).collect();
        while let Some((times, at)) = next.pop_front() {
            if known.get(&at).is_some_and(|before| *before <= times) {
                continue;
            }
            known.insert(at, times);
            let Some(choices) = self.choices.get(&at) else { continue };
            for Become { how, to } in &choices.becomes {
                match how {
                    How::Inline(inlining) if !inlining.reverse => next.push_back((times + 1, *to)),
                    _ => next.push_front((times, *to)),
                }
            }
            if choices.keep {
                next.push_front((times, at.with_next()));
            }
            if let Some((kernel, rest)) = choices.then {
                let least = kernels.entry(kernel).or_insert(times);
                *least = times.min(*least);
                rest.into_iter().for_each(|rest| next.push_front((times, Point::of(rest))));
            }
        }
        kernels
    }

    /// All that blocks become.
    pub fn becomes(&self) -> impl Iterator<Item = &How> {
        self.choices.values().flat_map(|c| &c.becomes).map(|b| &b.how)
    }

    /// The way on which rows have so many parts, the blocks that `inlined` names are inlined, and a kernel ends where `ends` says
    /// so of its blocks; `None` where the works have no such way.
    pub fn way(
        &self,
        parts: RowParts,
        inlined: &dyn Fn(&Inlining) -> bool,
        ends: &mut dyn FnMut(&[StreamBlock]) -> bool,
    ) -> Option<Way<'_>> {
        let mut at = Point::of(self.roots.iter().find(|(p, _)| *p == parts)?.1);
        let mut way = Way::default();
        loop {
            let choices = self.choices.get(&at)?;
            let blocks = self.works.get(usize::from(at.work))?.blocks.get(..usize::from(at.kept))?;
            // What is inlined where it is read goes into blocks of the same kernel; so one that ends comes first.
            let goes_on = |b: &&Become| matches!(&b.how, How::Inline(i) if !i.reverse && inlined(i));
            let changes = |b: &&Become| match &b.how {
                How::Inline(inlining) => inlining.reverse && inlined(inlining),
                How::Part(_) | How::Cascade(_) => true,
            };
            let changed = choices.becomes.iter().find(changes);
            let ended = choices.then.filter(|_| changed.is_none() && ends(blocks));
            if let Some((kernel, rest)) = ended {
                way.kernels.push(self.works.get(kernel)?);
                let Some(rest) = rest else { return Some(way) };
                at = Point::of(rest);
            } else if let Some(Become { how, to }) = changed.or_else(|| choices.becomes.iter().find(goes_on)) {
                way.becomes.push(how);
                at = *to;
            } else if choices.keep {
                at = at.with_next();
            } else if let [Become { how, to }] = &choices.becomes[..] {
                // It is no choice.
                way.becomes.push(how);
                at = *to;
            } else {
                return None;
            }
        }
    }

    /// The blocks of some kernels, one after the other.
    pub fn joined(&self, kernels: &[&Stream]) -> Stream {
        let mut out = Stream { pipeline: self.whole().pipeline, ..Stream::default() };
        for kernel in kernels {
            out.append(kernel);
        }
        out.number_axes();
        out
    }

    /// The source's blocks that only plain kernels take, and that are in no contraction; each with the reason.
    pub fn left_plain(&self) -> impl Iterator<Item = &(String, String)> {
        let source = self.whole();
        let tiled = move |name: &str| {
            source.blocks.iter().enumerate().any(|(at, b)| b.name == name && source.in_contraction(at))
        };
        let bound = |name: &str| self.in_order().any(|(b, _)| b.name == name);
        let in_row = |name: &str| {
            let mut of = self.works.iter().filter(|work| work.blocks.iter().any(|b| b.name == name));
            of.any(|work| work.fits_row(0, work.blocks.len()))
        };
        self.plain.iter().filter(move |(block, _)| !tiled(block) && !bound(block) && !in_row(block))
    }

    /// The source's nests that run as they are written, each with the reason.
    pub fn in_order(&self) -> impl Iterator<Item = (&StreamBlock, &str)> {
        self.whole().blocks.iter().filter(|b| b.kind == BlockKind::Bound).map(|b| {
            let why = self.plain.iter().find(|(name, _)| *name == b.name).map_or("", |(_, why)| why.as_str());
            (b, why)
        })
    }

    /// Names of the source's blocks that may have better schedules than there are: nests that run as they are written; reductions that
    /// one thread does per result; all where not every work is looked at; and those with twice as many instances as the largest
    /// of their buffers has elements, or more, that are in no contraction: their kernels have no tiles to keep what is read again.
    pub fn untiled(&self) -> Vec<&str> {
        let source = self.whole();
        let again = |b: &StreamBlock| {
            let elements = |at: usize| source.buffers[at].dims.iter().map(|d| *d as f64).product::<f64>();
            let largest = b.accesses().map(|access| elements(access.buffer)).fold(1.0, f64::max);
            let by_one_thread = b.kind == BlockKind::Other && b.iters.iter().any(|i| i.reduce);
            b.kind == BlockKind::Bound || by_one_thread || b.instances() as f64 >= 2.0 * largest
        };
        let blocks = source.blocks.iter().enumerate();
        let further = |b: &StreamBlock| {
            let mut of = source.tiled.iter().filter(|t| t.contraction.block_name == b.name);
            of.any(|t| t.contraction.left_out().is_some())
        };
        let blocks = blocks.filter(|(at, b)| {
            self.left_out.is_some() || if source.in_contraction(*at) { further(b) } else { again(b) }
        });
        blocks.map(|(_, b)| b.name.as_str()).collect()
    }
}
