//! The space of a streaming problem.
use super::StreamProblem;
use crate::explore::{limits, tensor_cores, ExploreError};
use satune_extract::{best_while, least_on_threads, predict, Descriptor, Query, Searched};
use satune_ir::term::stream::{StreamTerm, Streams, Tiled};
use satune_ir::term::tensor::Gemm;
use satune_ir::term::{AxisInfo, Contraction, Gathered, OperandInfo, ReadsMade, Schedule, Side, Space, StoppedBy};
use satune_rewrites::space::rules::tensor::{self, TensorMenu};
use satune_rewrites::space::stream::{rules, StreamMenu};
use satune_rewrites::space::{self, saturate_while, Fuel, Menu, Rule, SaturationError};
use std::collections::BTreeMap;
use std::time::Duration;

/// Schedules of each contraction among the blocks that take part: so many of the best, and of the best of each tile.
const TILED: usize = 24;
/// Longest search for them.
const LIMIT: Duration = Duration::from_secs(60);

/// The space of a streaming problem on a GPU.
///
/// # Errors
/// When a rule is unsound, which is a bug.
pub fn space(problem: &StreamProblem, gpu: &Descriptor) -> Result<Space<StreamTerm>, ExploreError> {
    space_while(problem, gpu, Fuel::default(), &|_| true)
}

/// [`space`] of at most so many nodes, for as long as `go_on` says so, which is told how many there are.
///
/// # Errors
/// As [`space`], and when it is told to end.
pub fn space_while(
    problem: &StreamProblem,
    gpu: &Descriptor,
    fuel: Fuel,
    go_on: &(dyn Fn(usize) -> bool + Sync),
) -> Result<Space<StreamTerm>, ExploreError> {
    let mut tiling =
        Tiling { streams: &problem.streams, gpu, fuel, go_on, menu: menu(), known: Vec::new(), limit: None };
    tiling.fill()?;
    let mut space = tiling.space()?;
    if let (StoppedBy::Saturated, Some(limit)) = (&space.report.stopped_by, tiling.limit) {
        space.report.stopped_by = StoppedBy::Limit(limit);
    }
    Ok(space)
}

/// Puts the best schedules of each contraction among the blocks into the menu. Each has a space of its own, which is searched
/// exactly.
struct Tiling<'a> {
    streams: &'a Streams,
    gpu: &'a Descriptor,
    fuel: Fuel,
    go_on: &'a (dyn Fn(usize) -> bool + Sync),
    menu: StreamMenu,
    /// Contractions, whether tensor cores take them, whether an operand has to stay as it is; with their schedules.
    known: Vec<((Contraction, bool, bool), Vec<Schedule>)>,
    /// What one of the searches ran into, if any did.
    limit: Option<String>,
}

impl Tiling<'_> {
    /// Kernels in which less is inlined come first. Of the others those are of use that take less time than so many whole programs.
    fn fill(&mut self) -> Result<(), ExploreError> {
        let mut rounds: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (work, inlined) in self.streams.inlined() {
            let of = &self.streams.works[work];
            if !of.tiled.is_empty() {
                let before = |t: &Tiled| of.blocks.iter().take_while(|b| b.name != t.contraction.block_name).count();
                let inside = of.tiled.iter().map(before).min().unwrap_or_default();
                rounds.entry(inlined + inside).or_default().push(work);
            }
        }
        for (round, works) in rounds.into_values().enumerate() {
            let below_ms = if round == 0 { f64::INFINITY } else { self.last_ms()? };
            for work in works {
                self.add(work, below_ms)?;
            }
        }
        Ok(())
    }

    fn space(&self) -> Result<Space<StreamTerm>, ExploreError> {
        let (menu, rules) = (&self.menu, rules::all());
        Ok(saturate_while(self.streams, limits(self.gpu), menu, &rules, self.fuel, self.go_on)?)
    }

    /// The time of the last of so many best programs that are known so far, ms.
    fn last_ms(&self) -> Result<f64, ExploreError> {
        let space = self.space()?;
        let query = Query { k: TILED, diverse: false, limit: LIMIT, below_ms: f64::INFINITY };
        let looking = || (self.go_on)(space.report.nodes);
        let found = StreamTerm::best_while(&space, self.gpu, query, &looking);
        Ok(found.candidates.get(TILED - 1).map_or(f64::INFINITY, |last| last.cost.ms))
    }

    /// The schedules of the contractions of a kernel that take less than so many ms.
    fn add(&mut self, work: usize, below_ms: f64) -> Result<(), ExploreError> {
        for tiled in &self.streams.works[work].tiled {
            let contraction = &tiled.contraction;
            // A padded operand is a block, known by its name: two products do not pad the same one.
            let shared = |operand: &String| {
                let reads = |c: &Contraction| [Side::A, Side::B].iter().any(|side| c.matrix(*side) == *operand);
                let other = |c: &Contraction| c.block_name != contraction.block_name;
                self.streams.whole().tiled.iter().any(|t| other(&t.contraction) && reads(&t.contraction))
            };
            let whole = [Side::A, Side::B].iter().any(|side| shared(&contraction.matrix(*side)));
            // Whether tensor cores take what its epilogue computes is not said by what that reads.
            let asked = (nameless(contraction), Gemm::of(contraction).is_ok(), whole);
            let plans = match self.known.iter().find(|(before, _)| *before == asked) {
                Some((_, plans)) => plans.clone(),
                None => {
                    let (plans, ended) = self.best_plans(contraction, whole, below_ms)?;
                    self.limit = self.limit.take().or(ended);
                    self.known.push((asked, plans.clone()));
                    plans
                }
            };
            let pads_its_own = |plan: &Schedule| !space::padded(plan, contraction).iter().any(shared);
            let plans: Vec<Schedule> = plans.into_iter().filter(pads_its_own).collect();
            // Where less is inlined the product has the same sizes, and is asked about first.
            let without = || below_ms.is_infinite() && plans.iter().all(|plan| plan.cores().is_some());
            let cores = || TensorMenu::of(contraction, &tensor_cores(self.gpu));
            if whole && without() && !tensor::all(contraction, cores()).is_empty() {
                let why = "tensor cores for a product whose operand another one reads, and whose sizes no tile divides";
                self.limit = self.limit.take().or_else(|| Some(format!("{why}: {}", contraction.block_name)));
            }
            if !plans.is_empty() {
                self.menu.tiled.insert(work as u16, plans);
            }
        }
        Ok(())
    }

    /// The best schedules of a contraction on tensor cores, of `whole` tiles alone or of any, and those on single threads that are as
    /// good; and the limit that ended a search, if one did.
    fn best_plans(&self, contraction: &Contraction, whole: bool, below_ms: f64) -> Result<Ended, ExploreError> {
        let menu = Menu::of(contraction, &limits(self.gpu));
        let (mut plans, mut limit, mut worst) = (Vec::new(), None, below_ms);
        let offered = TensorMenu::of(contraction, &tensor_cores(self.gpu));
        let offered = if whole { offered.of_whole_tiles(contraction) } else { offered };
        let products = tensor::all(contraction, offered);
        if !products.is_empty() {
            let rules: Vec<Box<dyn Rule>> = space::rules::all().into_iter().chain(products).collect();
            let alone = Menu::without_threads(menu.split_k.clone(), menu.groups.clone());
            (plans, limit) = self.best_of(contraction, &alone, &rules, below_ms)?;
            // Beside so many that the program can have no others are among its best: a padded operand is nobody else's, unless another
            // product reads it.
            let taken = plans.iter().filter(|plan| !whole || space::padded(plan, contraction).is_empty());
            let mut times: Vec<f64> =
                taken.filter_map(|plan| predict(plan, contraction, self.gpu).ok()).map(|cost| cost.ms).collect();
            times.sort_by(f64::total_cmp);
            worst = times.get(TILED - 1).copied().unwrap_or(worst);
        }
        if least_on_threads(contraction, self.gpu) < worst {
            let (more, ended) = self.best_of(contraction, &menu, &space::rules::all(), worst)?;
            plans.extend(more);
            limit = limit.or(ended);
        }
        Ok((plans, limit))
    }

    /// The best schedules of the space that some rules make, of those that take less than so many ms.
    fn best_of(
        &self,
        contraction: &Contraction,
        menu: &Menu,
        rules: &[Box<dyn Rule>],
        below_ms: f64,
    ) -> Result<Ended, ExploreError> {
        let space = saturate_while(contraction, limits(self.gpu), menu, rules, self.fuel, self.go_on)?;
        let mut limit = match &space.report.stopped_by {
            StoppedBy::Saturated => None,
            StoppedBy::Limit(limit) => Some(limit.clone()),
        };
        let mut plans: Vec<Schedule> = Vec::new();
        let looking = || (self.go_on)(space.report.nodes);
        for diverse in [false, true] {
            let query = Query { k: TILED, diverse, limit: LIMIT, below_ms };
            let found = best_while(&space, self.gpu, query, &looking);
            if !looking() {
                return Err(SaturationError::Interrupted { nodes: space.report.nodes }.into());
            }
            if !found.proved && limit.is_none() {
                limit = Some(format!("{} s for the tiles of {}", LIMIT.as_secs(), contraction.block_name));
            }
            if found.candidates.is_empty() {
                break;
            }
            for candidate in found.candidates {
                if !plans.contains(&candidate.plan) {
                    plans.push(candidate.plan);
                }
            }
        }
        Ok((plans, limit))
    }
}

/// Schedules, and the limit that ended their search, if one did.
type Ended = (Vec<Schedule>, Option<String>);

/// What a contraction's schedules depend on: all but the names of blocks, axes and buffers.
fn nameless(contraction: &Contraction) -> Contraction {
    let mut out = contraction.clone();
    (out.block, out.block_name) = (satune_ir::BlockId(0), String::new());
    let info = |axis: &mut AxisInfo| axis.name.clear();
    out.iters.iter_mut().for_each(|(_, axis)| info(axis));
    let operand = |operand: &mut OperandInfo| {
        operand.name.clear();
        operand.buffer = satune_ir::BufferId(0);
    };
    [&mut out.a, &mut out.b, &mut out.c].into_iter().for_each(operand);
    if let Some(combine) = &mut out.combine {
        combine.script.clear();
    }
    if let Some(gather) = &mut out.gather {
        gather.script.clear();
        gather.iters.iter_mut().for_each(|(_, axis)| info(axis));
        let factor = |of: &mut Gathered| {
            of.name.clear();
            // How memory is indexed says all of what copies without arithmetic.
            of.blocks.truncate(usize::from(of.computed.is_some()));
            of.blocks.iter_mut().for_each(String::clear);
        };
        [&mut gather.a, &mut gather.b, &mut gather.c].into_iter().for_each(factor);
    }
    if let Some(epilogue) = &mut out.epilogue {
        epilogue.script.clear();
        (epilogue.blocks, epilogue.between, epilogue.made) = (Vec::new(), Vec::new(), ReadsMade::default());
        for read in &mut epilogue.reads {
            read.name.clear();
            read.buffer = satune_ir::BufferId(0);
        }
    }
    out
}

/// The sizes that its rules offer.
pub fn menu() -> StreamMenu {
    StreamMenu::default()
}
