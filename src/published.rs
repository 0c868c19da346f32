//! Published measurements beside what the model predicts of them.
use crate::explore::{self, ExploreError};
use crate::source::{self, Work};
use crate::streaming;
use satune_extract::published::{sets, Judged, PublishedError, Row, Set, Verdict};
use satune_extract::stream::best_stream;
use satune_extract::{best, Cost, Descriptor, DescriptorError, Extraction, Query};
use satune_ir::term::Schedule;
use std::time::Duration;

/// Why a measurement cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// A set cannot be read.
    #[error(transparent)]
    Set(#[from] PublishedError),
    /// Its GPU is not described.
    #[error(transparent)]
    Gpu(#[from] DescriptorError),
    /// The row's operator or plan is none.
    #[error("{set}, {row}: {reason}")]
    Row {
        /// Set.
        set: String,
        /// Row.
        row: String,
        /// What is wrong.
        reason: String,
    },
}

/// What to judge.
#[derive(Clone, Copy, Debug)]
pub struct Judging {
    /// Only rows whose schedule is known; the others need a search.
    pub known_only: bool,
    /// Longest search for the best of a row's space.
    pub limit: Duration,
}

/// Judges the rows of every set, one set after the other; sets without rows that are asked for are left out. `go_on`: told
/// the name of each row before it is judged, and whether to.
///
/// # Errors
/// See [`JudgeError`].
pub fn judge(judging: Judging, go_on: &dyn Fn(&str, &str) -> bool) -> Result<Vec<Verdict>, JudgeError> {
    let mut verdicts = Vec::new();
    for mut set in sets()? {
        set.rows.retain(|row| row.plan.is_some() || !judging.known_only);
        let gpu = Descriptor::load(&set.gpu)?;
        let mut rows = Vec::new();
        for row in &set.rows {
            if !go_on(&set.name, &row.name) {
                return Ok(verdicts);
            }
            let error = |reason: String| JudgeError::Row { set: set.name.clone(), row: row.name.clone(), reason };
            rows.push(judged(row, &row.conditions(&gpu), judging.limit).map_err(error)?);
        }
        if !rows.is_empty() {
            verdicts.push(Verdict::of(&set, rows));
        }
    }
    Ok(verdicts)
}

fn judged(row: &Row, gpu: &Descriptor, limit: Duration) -> Result<Judged, String> {
    let work = source::operator(&row.operator).map_err(|e| e.to_string())?;
    let amount = work.workload().yardstick().amount();
    let measured_ms = row.measured_ms(amount).ok_or("no time and no rate")?;
    let (cost, bound_ms) = match &row.plan {
        Some(text) => {
            let plan: Schedule = serde_json::from_str(text).map_err(|e| e.to_string())?;
            let cost = match row.registers {
                None => work.workload().predict(&plan, gpu),
                Some(registers) => work.workload().predict_compiled(&plan, gpu, registers),
            };
            (cost.map_err(|e| e.to_string())?, None)
        }
        None => {
            let (cost, bound_ms) = best_of(&work, gpu, limit).map_err(|e| e.to_string())?;
            (cost.ok_or("no schedule of its space runs on the GPU")?, Some(bound_ms))
        }
    };
    Ok(Judged {
        name: row.name.clone(),
        measured_ms,
        predicted_ms: cost.kernel_ms(),
        within: row.within,
        mechanism: cost.bottleneck,
        bound_ms,
    })
}

/// The library that was measured on an operator by name, at the clock that a GPU takes and on data of all kinds, and its time
/// without the launch, ms.
pub fn library(operator: &str, gpu: &Descriptor) -> Option<(String, f64)> {
    let sets = sets().ok()?;
    let of = sets.iter().filter(|set| set.gpu == gpu.name).filter_map(|set| Some((set.library.as_ref()?, &set.rows)));
    let mut rows = of.flat_map(|(library, rows)| rows.iter().map(move |row| (library, row)));
    rows.find_map(|(library, row)| {
        let comparable = row.clock_mhz.is_none() && !row.zeros && row.plan.is_none();
        let work =
            source::operator(&row.operator).ok().filter(|work| comparable && work.workload().name() == operator)?;
        Some((library.clone(), row.measured_ms(work.workload().yardstick().amount())?))
    })
}

/// The best of a space, with what nothing in it is predicted to be faster than, ms.
fn best_of(work: &Work, gpu: &Descriptor, limit: Duration) -> Result<(Option<Cost>, f64), ExploreError> {
    let query = Query { k: 1, diverse: false, limit, below_ms: f64::INFINITY };
    fn first<T>(found: Extraction<T>) -> (Option<Cost>, f64) {
        (found.candidates.into_iter().next().map(|c| c.cost), found.bound_ms)
    }
    match work {
        Work::Contraction(problem) => Ok(first(best(&explore::space(problem, gpu)?, gpu, query))),
        Work::Streams(problem) => Ok(first(best_stream(&streaming::space(problem, gpu)?, gpu, query))),
    }
}

/// A measured schedule of a space is no faster than what the space's best is proved to be predicted at, but for its spread:
/// the bounds of spaces whose schedules were measured, with the fastest of those.
///
/// # Errors
/// See [`JudgeError`].
pub fn bounds(set: &Set, limit: Duration) -> Result<Vec<(String, f64, f64)>, JudgeError> {
    let gpu = Descriptor::load(&set.gpu)?;
    let mut fastest: std::collections::BTreeMap<&str, f64> = std::collections::BTreeMap::new();
    let error = |row: &str, reason: String| JudgeError::Row { set: set.name.clone(), row: row.into(), reason };
    for row in set.rows.iter().filter(|row| row.plan.is_some()) {
        let work = source::operator(&row.operator).map_err(|e| error(&row.name, e.to_string()))?;
        let ms = row.measured_ms(work.workload().yardstick().amount()).unwrap_or(f64::INFINITY);
        let known = fastest.entry(&row.operator).or_insert(ms);
        *known = known.min(ms);
    }
    let of = |(operator, ms): (&str, f64)| {
        let work = source::operator(operator).map_err(|e| error(operator, e.to_string()))?;
        let (_, bound) = best_of(&work, &gpu, limit).map_err(|e| error(operator, e.to_string()))?;
        Ok((operator.to_string(), bound, ms))
    };
    fastest.into_iter().map(of).collect()
}
