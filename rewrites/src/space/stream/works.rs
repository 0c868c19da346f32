//! What the primitives make of a program's blocks, tried with the primitives themselves: each work is asked about as a program of
//! its own. It is decided block by block: what goes away is inlined where it is read, what stays shares the kernel of those that
//! stayed before it, or begins another. What is left then knows nothing of how it came about, so that different ways meet there.
use super::blocks::{begins_kernel, is_kernel, only_plainly, others, MOST_BLOCKS};
use super::programs::Programs;
use super::steps::{calls, calls_of, cascade, touched, Split};
use super::StreamMenu;
use crate::space::conditions::stream::{no_idle_warp, part_team, whole_warps};
use crate::space::nests::{parts, times_loaded};
use satune_ir::term::stream::{
    Become, BlockKind, Choices, How, Inlining, KernelPlan, Point, RowParts, Stream, StreamBlock, StreamPlan, Streams,
};
use satune_ir::Program;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// Most blocks of a kernel.
    kernel: usize,
    /// Most times that blocks of the source are computed again, where others read them: a value that is read twice is computed twice
    /// where it is inlined, so that a chain of such values doubles with each.
    again: usize,
    /// Whether a block stays that may as well be inlined: one other block reads it, once for each time that it is computed.
    stays: bool,
    /// Most blocks of a program for which it is tried.
    program: usize,
}

/// Where there are too many works, less is looked at. The last are few in every program.
const BOUNDS: [Bounds; 8] = [
    Bounds { kernel: MOST_BLOCKS, again: MOST_AGAIN, stays: true, program: 64 },
    Bounds { kernel: MOST_BLOCKS, again: MOST_AGAIN, stays: false, program: 96 },
    Bounds { kernel: MOST_BLOCKS, again: 4, stays: true, program: 64 },
    Bounds { kernel: MOST_BLOCKS, again: 0, stays: true, program: 96 },
    Bounds { kernel: MOST_BLOCKS, again: 0, stays: false, program: 128 },
    Bounds { kernel: 4, again: 2, stays: true, program: 128 },
    Bounds { kernel: 3, again: 1, stays: true, program: MOST_BLOCKS },
    Bounds { kernel: 2, again: 1, stays: true, program: MOST_BLOCKS },
];
/// Most times that blocks are computed again in any program: what computes more is no good schedule.
const MOST_AGAIN: usize = 255;
/// Most blocks of all works together, and about the most e-nodes of kernels of several blocks: what it takes to look at a space.
const MOST_IN_WORKS: usize = 40_000;
const MOST_NODES: usize = 144_000;

impl Bounds {
    /// What is not looked at, for people; `again` where a block was not inlined because of these bounds, `gone` where one was, `joined`
    /// where a map had to be in a kernel.
    fn text(self, [again, gone, joined]: [bool; 3]) -> Option<String> {
        let kernel = (self.kernel < MOST_BLOCKS).then(|| format!("kernels of more than {} blocks", self.kernel));
        let again = again.then(|| match self.again {
            0 => "programs where a block is computed again where it is read".to_string(),
            most => format!("programs where blocks are computed again more than {most} times"),
        });
        let joined = joined.then(|| "kernels of maps that end before one that reads them".to_string());
        let gone = gone.then(|| "programs where a block stays that one other reads once".to_string());
        let parts: Vec<String> = kernel.into_iter().chain(again).chain(gone).chain(joined).collect();
        (!parts.is_empty()).then(|| format!("{} are not looked at: there are too many", parts.join(", and ")))
    }
}

/// A work as a program of its own: its number, and what else is known of it.
#[derive(Clone)]
struct Rest {
    program: usize,
    facts: Facts,
}

/// What is known of a work besides its program.
#[derive(Clone, Debug)]
struct Facts {
    /// Parts of the rows of reductions to come.
    parts: RowParts,
    /// Reductions whose rows are split already.
    parted: BTreeSet<String>,
    /// Whether there is any, there or in earlier kernels.
    any: bool,
    /// Blocks that are left to plain kernels.
    plainly: BTreeSet<String>,
    /// Parameters of the source that earlier kernels touch.
    touched: BTreeSet<String>,
    /// How much blocks compute besides themselves.
    inlined: BTreeMap<String, Inlined>,
}

/// What was inlined into a block.
#[derive(Clone, Copy, Debug, Default)]
struct Inlined {
    /// How often it computes blocks of the source besides itself.
    times: usize,
    /// How many of these are computed elsewhere, too, or here before.
    again: usize,
}

/// What makes works equal: the program, and what else is known of it.
type Key = (usize, RowParts, bool, [BTreeSet<String>; 3]);

impl Rest {
    fn key(&self) -> Key {
        let Facts { parts, any, parted, plainly, touched, .. } = &self.facts;
        (self.program, *parts, *any, [parted.clone(), plainly.clone(), touched.clone()])
    }
}

/// There are more works than are looked at.
struct TooMany;

/// Nothing is made of a work.
struct NoWay;

/// The source program, read.
pub(super) struct Source<'p> {
    pub stream: Stream,
    /// How rows are split, beside whole ones.
    pub parts: Vec<RowParts>,
    /// Reductions whose parts later ones can use, by how rows are split.
    pub cascades: BTreeMap<RowParts, BTreeSet<String>>,
    /// Where only one plan's way is wanted.
    pub only: Option<&'p StreamPlan>,
}

impl Source<'_> {
    fn split(&self, parts: RowParts) -> Split<'_> {
        Split { parts, only: self.only }
    }

    /// Finds the reductions whose parts, split so, later ones can use; and offers that where there are any.
    pub fn find_cascades(&mut self, parts: RowParts, programs: &mut Programs) {
        let split = self.split(parts);
        // What can be in so many parts can be in half as many, where that was asked.
        let half = RowParts { number: parts.number / 2, ..parts };
        let among = self.cascades.get(&half).filter(|_| parts.number % 2 == 0);
        let blocks = self.stream.blocks.iter().enumerate();
        let blocks = blocks.filter(|(_, b)| among.is_none_or(|among| among.contains(&b.name)));
        let found = blocks.filter(|(at, _)| cascade(programs, 0, *at, split).is_some());
        let found: BTreeSet<String> = found.map(|(_, b)| b.name.clone()).collect();
        if !found.is_empty() {
            self.parts.push(parts);
        }
        self.cascades.insert(parts, found);
    }

    /// All works, with these blocks left to plain kernels, the second ones where rows stay whole; and whether there is a schedule
    /// without tiles, which depend on the GPU: one of whole rows, and any.
    pub fn works(&self, plainly: [&BTreeSet<String>; 2], programs: &mut Programs) -> (Streams, [bool; 2]) {
        let fits = |bounds: &&Bounds| self.only.is_some() || self.stream.blocks.len() <= bounds.program;
        let mut all = BOUNDS.iter().filter(fits).peekable();
        loop {
            let bounds = *all.next().unwrap_or(&BOUNDS[BOUNDS.len() - 1]);
            let mut explorer = Explorer::new(self, bounds, programs);
            let whole = explorer.explore(plainly).is_ok() && (bounds.stays || explorer.some());
            if whole || all.peek().is_none() {
                return explorer.finished();
            }
        }
    }
}

struct Explorer<'a> {
    source: &'a Source<'a>,
    programs: &'a mut Programs,
    bounds: Bounds,
    parameters: BTreeSet<String>,
    works: Vec<Stream>,
    rests: HashMap<usize, Rest>,
    known: HashMap<Key, usize>,
    kernels: HashMap<Vec<String>, Vec<usize>>,
    roots: Vec<(RowParts, usize)>,
    choices: BTreeMap<Point, Choices>,
    queue: VecDeque<Point>,
    /// Blocks of all works.
    blocks: usize,
    /// E-nodes of kernels of several blocks, about.
    nodes: usize,
    /// Whether a block was not inlined because of the bounds.
    too_often: bool,
    /// Whether a block was inlined without a choice because of them.
    gone: bool,
    /// Whether a map had to be in the kernel of what it reads because of them.
    joined: bool,
}

impl<'a> Explorer<'a> {
    fn new(source: &'a Source<'a>, bounds: Bounds, programs: &'a mut Programs) -> Explorer<'a> {
        let parameters = source.stream.buffers.iter().filter(|b| b.param).map(|b| b.name.clone()).collect();
        Explorer {
            source,
            programs,
            bounds,
            parameters,
            works: Vec::new(),
            rests: HashMap::new(),
            known: HashMap::new(),
            kernels: HashMap::new(),
            roots: Vec::new(),
            choices: BTreeMap::new(),
            queue: VecDeque::new(),
            blocks: 0,
            nodes: 0,
            too_often: false,
            gone: false,
            joined: false,
        }
    }

    fn explore(&mut self, [always, whole]: [&BTreeSet<String>; 2]) -> Result<(), TooMany> {
        for parts in [RowParts::WHOLE].iter().chain(&self.source.parts) {
            let plainly: BTreeSet<String> = match parts.number {
                1 => always | whole,
                _ => always.clone(),
            };
            let facts = Facts {
                parts: *parts,
                parted: BTreeSet::new(),
                any: *parts == RowParts::WHOLE,
                plainly,
                touched: BTreeSet::new(),
                inlined: BTreeMap::new(),
            };
            let mut stream = self.source.stream.clone();
            facts.plainly.iter().for_each(|block| only_plainly(&mut stream, block));
            let number = self.add(Rest { program: 0, facts }, stream);
            self.roots.push((*parts, number));
        }
        while let Some(at) = self.queue.pop_front() {
            if self.choices.contains_key(&at) {
                continue;
            }
            // The last bounds are kept to in any case, as far as works have numbers.
            let many = self.blocks > MOST_IN_WORKS || self.nodes > MOST_NODES;
            let leaves = self.source.only.is_none() && self.bounds != BOUNDS[BOUNDS.len() - 1];
            if (leaves && many) || self.works.len() >= usize::from(u16::MAX) {
                return Err(TooMany);
            }
            let choices = self.choose(at);
            self.choices.insert(at, choices);
        }
        Ok(())
    }

    /// The number of a work.
    fn add(&mut self, rest: Rest, stream: Stream) -> usize {
        let number = *self.known.entry(rest.key()).or_insert(self.works.len());
        if number == self.works.len() {
            self.blocks += stream.blocks.len();
            self.works.push(stream);
            self.rests.insert(number, rest);
            self.queue.push_back(Point::of(number));
        }
        number
    }

    /// A work that primitives made of another, as far as it is one of streaming blocks, of which at most so many are left to plain
    /// kernels.
    fn made(&mut self, program: usize, mut facts: Facts, plain: usize) -> Option<usize> {
        let mut stream = self.programs.stream(program)?.clone();
        stream.pipeline &= self.source.stream.pipeline;
        let here: BTreeSet<&String> = stream.blocks.iter().map(|b| &b.name).collect();
        facts.plainly.retain(|name| here.contains(name));
        facts.parted.retain(|name| here.contains(name));
        facts.inlined.retain(|name, _| here.contains(name));
        facts.plainly.iter().for_each(|block| only_plainly(&mut stream, block));
        (others(&stream) <= plain).then_some(())?;
        let written: BTreeSet<usize> = stream.blocks.iter().map(|b| b.write.buffer).collect();
        for (number, buffer) in stream.buffers.iter_mut().enumerate() {
            buffer.param = self.parameters.contains(&buffer.name);
            buffer.before =
                if buffer.param { facts.touched.contains(&buffer.name) } else { !written.contains(&number) };
        }
        facts.touched.retain(|name| stream.buffer(name).is_some());
        Some(self.add(Rest { program, facts }, stream))
    }

    /// The point in another work where it goes on.
    fn goes_on(&mut self, work: usize, at: Point) -> Point {
        let to = Point { work: work as u16, ..at };
        self.queue.push_back(to);
        to
    }

    /// Whether the first blocks make a kernel of the plan's, if there is one; or a part of one.
    fn planned(&self, work: usize, kept: usize, whole: bool) -> bool {
        let names = || self.works[work].blocks[..kept].iter().map(|b| b.name.as_str());
        let fits = |kernel: &KernelPlan| {
            let blocks = kernel.blocks();
            names().eq(blocks.iter().copied().take(kept)) && (blocks.len() == kept) == whole
        };
        self.source.only.is_none_or(|plan| plan.kernels.iter().any(fits))
    }

    fn choose(&mut self, at: Point) -> Choices {
        let mut choices = Choices::default();
        let (work, kept) = (usize::from(at.work), usize::from(at.kept));
        if kept < self.works[work].blocks.len() {
            match self.next_split(work, kept) {
                Err(NoWay) => return choices,
                Ok(None) => {}
                Ok(Some(how)) => {
                    if let Some(to) = self.parted(work, kept, &how) {
                        let to = self.goes_on(to, at);
                        choices.becomes.push(Become { how, to });
                    }
                    return choices;
                }
            }
            let begins = kept == 0;
            // What nobody reads goes first, and is no choice.
            if let Some(dead) = begins.then(|| self.dead(at)).flatten() {
                choices.becomes.push(dead);
                return choices;
            }
            // What is inlined while blocks are kept is read by others of their kernel; what others read is inlined after it.
            if begins || self.may_share(work, kept, false) {
                choices.becomes.extend(self.inlined(at, kept, false));
            }
            let gone = !self.bounds.stays && !choices.becomes.is_empty() && self.read_once(work, kept);
            self.gone |= gone;
            if gone && begins {
                return choices;
            }
            if !begins && !at.open {
                choices.becomes.extend(self.inlined_back(at));
            }
            let shares = begins || (kept < self.bounds.kernel && self.may_share(work, kept, true));
            if shares && !gone && self.planned(work, kept, false) {
                choices.keep = true;
                self.queue.push_back(at.with_next());
            }
        }
        if kept > 0 && !at.open && self.planned(work, kept, true) {
            choices.then = self.then(work, kept);
        }
        choices
    }

    /// Whether one other block reads a block, and once for each time that it is computed.
    fn read_once(&self, work: usize, block: usize) -> bool {
        let blocks = &self.works[work].blocks;
        let [_, reader] = self.with_readers(work, block)[..] else { return false };
        let program = self.program(work);
        let made = &self.works[work].buffers[blocks[block].write.buffer].name;
        blocks[reader].instances() == blocks[block].instances()
            && times_loaded(program, parts(program)[reader], made) == 1
    }

    /// Whether the blocks that are kept, and the next one where it is `with` them, are in one kernel with others, as far as can be
    /// seen from here: they have the rows and columns of the first reduction that there is, or are the first of a contraction, or maps
    /// over the same elements, or a sum with the map before it and that of its results.
    fn may_share(&self, work: usize, kept: usize, with: bool) -> bool {
        let stream = &self.works[work];
        if stream.tiled.iter().any(|t| t.from == 0 && t.to > kept) {
            return true;
        }
        // What such a map makes may go into another one.
        if kept < 3 && stream.fits_plain(0, kept + 1) {
            return true;
        }
        let count = kept + usize::from(with);
        if (with || self.wanted(work, kept - 1)) && self.shares_elements(work, count) {
            return true;
        }
        let Some(first) = stream.blocks.iter().position(|b| b.kind == BlockKind::Reduce) else { return false };
        let mut blocks = stream.blocks[..count].to_vec();
        blocks.extend((first >= count).then(|| stream.blocks[first].clone()));
        let count = blocks.len();
        Stream { blocks, pipeline: stream.pipeline, ..Stream::default() }.row_shape(0, count).is_some()
    }

    fn then(&mut self, work: usize, kept: usize) -> Option<(usize, Option<usize>)> {
        let stream = &self.works[work];
        let count = stream.blocks.len();
        let tiled = stream.contraction(0, kept).is_some();
        let whole = stream.row_shape(0, kept).is_some() || stream.fits_flat(0, kept) || stream.fits_plain(0, kept);
        (kept == 1 || tiled || whole).then_some(())?;
        let kernel = stream.first(kept);
        if self.source.only.is_none() && self.takes_rows(work, kept) {
            return None;
        }
        let rest = match kept == count {
            // Where no row was split, that is said by one part.
            true => self.rests[&work].facts.any.then_some(None)?,
            false => {
                let Rest { program, mut facts } = self.rests[&work].clone();
                let touched = kernel.buffers.iter().map(|b| &b.name).filter(|name| self.parameters.contains(*name));
                facts.touched.extend(touched.cloned());
                let rest = self.programs.rest(program, kept)?;
                Some(self.made(rest, facts, usize::MAX)?)
            }
        };
        Some((self.kernel(kernel), rest))
    }

    /// Whether the block after those that are kept reads rows that one of them makes, other than the last, and can be in their kernel:
    /// there they are, and what is copied to memory would only be read again. Where all are maps, and there are too many works, so is
    /// what the last makes.
    fn takes_rows(&mut self, work: usize, kept: usize) -> bool {
        let stream = &self.works[work];
        let Some(next) = stream.blocks.get(kept).filter(|_| kept < self.bounds.kernel) else { return false };
        let reads = |b: &StreamBlock| next.reads.iter().any(|r| r.buffer == b.write.buffer);
        if self.shares_elements(work, kept + 1) {
            let maps = stream.blocks.iter().all(|b| b.kind == BlockKind::Map);
            let taken = self.bounds != BOUNDS[0] && maps && self.wanted(work, kept);
            let taken = taken && stream.blocks[..kept].iter().any(reads);
            self.joined |= taken;
            return taken;
        }
        let Some(shape) = stream.row_shape(0, kept + 1) else { return false };
        let mut made =
            stream.blocks[..kept - 1].iter().filter(|b| b.kind == BlockKind::Map && b.iters.len() > shape.row_iters);
        made.any(reads) && stream.fits_row(0, kept + 1)
    }

    /// Whether the first blocks, and no others, are a kernel over the same elements: what one other alone reads once is no block there,
    /// but inlined.
    fn shares_elements(&self, work: usize, count: usize) -> bool {
        self.works[work].fits_flat(0, count) && (0..count - 1).all(|block| self.wanted(work, block))
    }

    /// Whether what a block makes is a result, or read more than once.
    fn wanted(&self, work: usize, block: usize) -> bool {
        let stream = &self.works[work];
        stream.buffers[stream.blocks[block].write.buffer].param || !self.read_once(work, block)
    }

    /// The number of the work that a kernel is.
    fn kernel(&mut self, kernel: Stream) -> usize {
        let names = kernel.blocks.iter().map(|b| b.name.clone()).collect();
        let alike = self.kernels.entry(names).or_default();
        if let Some(known) = alike.iter().find(|number| self.works[**number] == kernel) {
            return *known;
        }
        alike.push(self.works.len());
        self.nodes = self.nodes.saturating_add(size(&kernel));
        self.works.push(kernel);
        self.works.len() - 1
    }

    /// The program that a work is.
    fn program(&self, work: usize) -> &Program {
        self.programs.program(self.rests[&work].program)
    }

    /// A block, and those that read what it writes.
    fn with_readers(&self, work: usize, block: usize) -> Vec<usize> {
        let stream = &self.works[work];
        let reads = |at: &usize| stream.reads_from(*at, block);
        [block].into_iter().chain((block + 1..stream.blocks.len()).filter(reads)).collect()
    }

    /// That a block is inlined, where the plan, if there is one, has it.
    fn inlining(&self, work: usize, block: usize, reverse: bool) -> Option<Inlining> {
        let inlining = Inlining { block: self.works[work].blocks[block].name.clone(), reverse };
        self.source.only.is_none_or(|plan| plan.inlined.contains(&inlining)).then_some(inlining)
    }

    /// A block inlined, the next one where it is read, or another into its producer.
    fn inlined(&mut self, at: Point, block: usize, reverse: bool) -> Option<Become> {
        let involved = match reverse {
            true => vec![usize::from(at.kept) - 1, block],
            false => self.with_readers(at.work.into(), block),
        };
        let work = usize::from(at.work);
        let inlining = self.inlining(work, block, reverse)?;
        let calls = calls(&inlining);
        let Rest { program, mut facts } = self.rests[&work].clone();
        self.programs.legal(program, &involved, &calls).then_some(())?;
        let stream = &self.works[work];
        // What inlining makes may be no streaming program any more; then it is no way.
        let plain = others(stream);
        if merge(&mut facts, stream, self.programs.program(program), &inlining) > self.bounds.again {
            self.too_often = true;
            return None;
        }
        let made = self.programs.next(program, &involved, &calls)?;
        let to = self.made(made, facts, plain)?;
        let to = self.goes_on(to, Point { open: at.kept > 0 && !reverse, ..at });
        Some(Become { how: How::Inline(inlining), to })
    }

    /// The first block whose values nobody reads and that is no result, left out; where the primitive takes that.
    fn dead(&mut self, at: Point) -> Option<Become> {
        let work = usize::from(at.work);
        let count = self.works[work].blocks.len();
        let unread = |explorer: &Self, block: usize| {
            let stream = &explorer.works[work];
            let written = &stream.buffers[stream.blocks[block].write.buffer];
            !written.param && explorer.with_readers(work, block).len() == 1
        };
        let dead: Vec<usize> = (0..count).filter(|block| unread(self, *block)).collect();
        dead.into_iter().find_map(|block| {
            let inlining = self.inlining(work, block, false)?;
            let Rest { program, facts } = self.rests[&work].clone();
            let made = self.programs.whole(program, &calls(&inlining))?;
            let to = self.made(made, facts, others(&self.works[work]))?;
            Some(Become { how: How::Inline(inlining), to: self.goes_on(to, at) })
        })
    }

    /// What reads the last block that is kept, inlined there, where neither goes where it is read: that makes the same program.
    fn inlined_back(&mut self, at: Point) -> Option<Become> {
        let (work, last) = (usize::from(at.work), usize::from(at.kept) - 1);
        let [_, reader] = self.with_readers(work, last)[..] else { return None };
        // `reverse_compute_inline` takes what reads nothing else that is made, be it in a kernel before.
        let stream = &self.works[work];
        let written = stream.blocks[last].write.buffer;
        let mut others = stream.blocks[reader].reads.iter().filter(|r| r.buffer != written);
        if others.any(|r| self.programs.made().contains(&stream.buffers[r.buffer].name)) {
            return None;
        }
        let goes = |explorer: &mut Self, block: usize| {
            let inlining = Inlining { block: explorer.works[work].blocks[block].name.clone(), reverse: false };
            let involved = explorer.with_readers(work, block);
            explorer.programs.legal(explorer.rests[&work].program, &involved, &calls(&inlining))
        };
        if goes(self, last) || goes(self, reader) {
            return None;
        }
        self.inlined(at, reader, true)
    }

    /// How the next block's rows are split; none where they stay as they are. There is no way where later blocks can use its parts,
    /// but not in this work.
    fn next_split(&mut self, work: usize, kept: usize) -> Result<Option<How>, NoWay> {
        let Rest { program, facts } = &self.rests[&work];
        let split = self.source.split(facts.parts);
        let parting = split.parting(&self.works[work], kept).filter(|p| !facts.parted.contains(&p.block));
        let Some(parting) = parting.filter(|_| facts.parts != RowParts::WHOLE) else { return Ok(None) };
        if self.source.cascades.get(&facts.parts).is_some_and(|all| all.contains(&parting.block)) {
            return cascade(self.programs, *program, kept, split).map(|c| Some(How::Cascade(c))).ok_or(NoWay);
        }
        Ok(Some(How::Part(parting)))
    }

    fn parted(&mut self, work: usize, kept: usize, how: &How) -> Option<usize> {
        let Rest { program, mut facts } = self.rests[&work].clone();
        let calls = calls_of(how, facts.parts.number, 0);
        let (involved, partings) = match how {
            How::Inline(_) => return None,
            How::Part(parting) => (vec![kept], std::slice::from_ref(parting)),
            How::Cascade(cascade) => {
                self.inlines(program, &mut facts, &cascade.inlined)?;
                (touched(&self.works[work], cascade), &cascade.partings[..])
            }
        };
        let made = self.programs.next(program, &involved, &calls)?;
        let next = self.programs.stream(made)?.clone();
        let old = &self.works[work].blocks;
        let is_part = |name: &String| partings.iter().any(|p| p.block == *name) || old.iter().all(|b| b.name != *name);
        let columns = partings.iter().any(|p| p.columns);
        for (at, block) in next.blocks.iter().enumerate().filter(|(_, b)| is_part(&b.name)) {
            facts.parted.insert(block.name.clone());
            // Parts of columns are summed up by plain kernels.
            if columns && !begins_kernel(&next, at) {
                facts.plainly.insert(block.name.clone());
            }
        }
        facts.any = true;
        self.made(made, facts, usize::MAX)
    }

    /// Notes what blocks go into that are inlined one after the other; none where too much is computed again.
    fn inlines(&mut self, mut program: usize, facts: &mut Facts, all: &[Inlining]) -> Option<()> {
        for inlining in all {
            let stream = self.programs.stream(program)?.clone();
            if merge(facts, &stream, self.programs.program(program), inlining) > self.bounds.again {
                self.too_often = true;
                return None;
            }
            program = self.programs.whole(program, &calls(inlining))?;
        }
        Some(())
    }

    /// Whether there is a schedule, of whole rows or others, with what is tiled.
    fn some(&self) -> bool {
        let mut known = HashMap::new();
        self.roots.iter().any(|(_, root)| self.lives(Point::of(*root), true, &mut known))
    }

    fn finished(mut self) -> (Streams, [bool; 2]) {
        let mut known = HashMap::new();
        let whole = self.lives(Point::of(0), false, &mut known);
        let any = self.roots.iter().any(|(_, root)| self.lives(Point::of(*root), false, &mut known));
        let mut alive: HashMap<Point, bool> = HashMap::new();
        for (_, root) in self.roots.clone() {
            self.lives(Point::of(root), true, &mut alive);
        }
        let lives = |at: Point| alive.get(&at) == Some(&true);
        self.choices.retain(|at, _| lives(*at));
        for (at, choices) in &mut self.choices {
            choices.becomes.retain(|b| lives(b.to));
            choices.keep &= lives(at.with_next());
            choices.then = choices.then.filter(|(_, rest)| rest.is_none_or(|rest| lives(Point::of(rest))));
        }
        self.roots.retain(|(parts, root)| *parts == RowParts::WHOLE || lives(Point::of(*root)));
        let source = self.source.stream.blocks.iter().map(|b| b.name.clone()).collect();
        let Explorer { works, roots, choices, bounds, too_often, gone, joined, .. } = self;
        let left_out = bounds.text([too_often, gone, joined]);
        (Streams { source, works, roots, choices, plain: Vec::new(), left_out }, [whole, any])
    }

    /// Whether kernels take what is left; `tiled` ones, too.
    fn lives(&self, at: Point, tiled: bool, known: &mut HashMap<Point, bool>) -> bool {
        if let Some(known) = known.get(&at) {
            return *known;
        }
        let Some(choices) = self.choices.get(&at) else { return false };
        let mut found = false;
        for next in &choices.becomes {
            found |= self.lives(next.to, tiled, known);
        }
        if choices.keep {
            found |= self.lives(at.with_next(), tiled, known);
        }
        if let Some((kernel, rest)) = choices.then {
            let after = rest.is_none_or(|rest| self.lives(Point::of(rest), tiled, known));
            let stream = &self.works[kernel];
            let of_tiles = || tiled && stream.contraction(0, stream.blocks.len()).is_some();
            found |= after && (self.source.only.is_some() || is_kernel(stream) || of_tiles());
        }
        known.insert(at, found);
        found
    }
}

/// Notes what an inlined block goes into; returned is how often blocks of the source are computed again there and elsewhere: once for
/// each load of what they make, but the first.
fn merge(facts: &mut Facts, stream: &Stream, program: &Program, inlining: &Inlining) -> usize {
    let Some(at) = stream.blocks.iter().position(|b| b.name == inlining.block) else { return 0 };
    let parts = parts(program);
    let before = |block: usize| facts.inlined.get(&stream.blocks[block].name).copied().unwrap_or_default();
    let mut into = Vec::new();
    let mut first = true;
    for other in (0..stream.blocks.len()).filter(|other| *other != at) {
        let (producer, reader) = if inlining.reverse { (other, at) } else { (at, other) };
        let made = &stream.buffers[stream.blocks[producer].write.buffer].name;
        let loads = times_loaded(program, parts[reader], made);
        if loads > 0 {
            let (made, read) = (before(producer), before(reader));
            let times = made.times.saturating_add(1).saturating_mul(loads);
            let new = if std::mem::take(&mut first) { (made.times + 1).saturating_sub(made.again) } else { 0 };
            let again = read.again.saturating_add(times.saturating_sub(new));
            into.push((other, Inlined { times: read.times.saturating_add(times), again }));
        }
    }
    facts.inlined.remove(&inlining.block);
    facts.inlined.extend(into.into_iter().map(|(block, inlined)| (stream.blocks[block].name.clone(), inlined)));
    facts.inlined.values().map(|inlined| inlined.again).fold(0, usize::saturating_add)
}

/// About how many e-nodes a kernel of several blocks takes; one of rows for its rows and threads, and for each block what it may
/// choose times the places that are known of what it and later blocks access; 0 of other kernels.
fn size(kernel: &Stream) -> usize {
    let count = kernel.blocks.len();
    if count > 1 && kernel.fits_flat(0, count) {
        return FLAT;
    }
    let Some(shape) = kernel.row_shape(0, count) else { return 0 };
    let menu = StreamMenu::default();
    let divides = |rows: i64| rows <= shape.rows && shape.rows % rows == 0;
    let rows = menu.serial_rows.iter().flat_map(|s| menu.side_by_side.iter().map(move |y| s * y));
    let vectors = menu.vectors.iter().filter(|v| shape.columns % **v == 0);
    let taken = |t: i64, v: i64| no_idle_warp(t, v, shape.columns).and(part_team(t, v, shape.columns)).is_ok();
    let threads = || menu.threads.iter().chain(&menu.part_threads);
    let columns = vectors.flat_map(|v| threads().filter(move |t| taken(**t, *v)));
    let sides = |t: i64| menu.side_by_side.iter().filter(|y| whole_warps(t, **y).is_ok()).count();
    let teams = 2 * columns.map(|t| sides(*t)).sum::<usize>();
    let held = kernel.rows_held(true);
    let places = |block: usize| {
        let live = held.iter().filter(|row| (row.first..=row.last).contains(&block));
        live.map(|row| if row.made { 2 } else { 3 }).fold(LAPS * ROOMS, usize::saturating_mul)
    };
    let blocks = (0..count).map(places).fold(0, usize::saturating_add);
    rows.filter(|r| divides(*r)).count().saturating_add(teams).saturating_add(blocks)
}

/// E-nodes of a kernel over all elements, about.
const FLAT: usize = 300;
/// How often a thread goes along a row, as far as it is told apart.
const LAPS: usize = 3;
/// Of how much room for rows is told apart, about (estimate).
const ROOMS: usize = 4;
