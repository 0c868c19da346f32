//! `why-not`: what stands between a schedule and the top.
use super::{print, Failure, Outcome};
use crate::explore::limits;
use crate::operators::Problem;
use satune_extract::{best, Descriptor, Query};
use satune_ir::term::Pipe;
use satune_rewrites::space::{rules, saturate, Fuel, Menu};
use std::time::Duration;

/// What a question fixes.
#[derive(Default, Debug, PartialEq)]
struct Fixed {
    block: Option<(i64, i64)>,
    k: Option<i64>,
    threads: Option<u32>,
    split: Option<i64>,
    stages: Option<u8>,
}

fn parse(text: &str) -> Result<Fixed, String> {
    let mut fixed = Fixed::default();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (what, value) = part.split_once(char::is_whitespace).ok_or_else(|| format!("`{part}` has no value"))?;
        let value = value.trim();
        let number =
            |v: &str| v.parse::<i64>().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{v}` is not a whole number"));
        match what {
            "block" => {
                let (m, n) = value.split_once('x').ok_or_else(|| format!("`{value}` is not MxN"))?;
                fixed.block = Some((number(m)?, number(n)?));
            }
            "k" => fixed.k = Some(number(value)?),
            "threads" => fixed.threads = Some(number(value)?.try_into().map_err(|_| "too many threads".to_string())?),
            "split" => fixed.split = Some(number(value)?),
            "stages" => fixed.stages = Some(number(value)?.try_into().map_err(|_| "too many stages".to_string())?),
            other => {
                return Err(format!("`{other}` is not known; known are block MxN, k K, threads T, split S, stages S"))
            }
        }
    }
    if fixed == Fixed::default() {
        return Err("nothing is fixed; write for instance \"block 128x256, k 16, threads 256\"".into());
    }
    Ok(fixed)
}

/// Answers the question.
pub(super) fn why_not(problem: &Problem, gpu: &Descriptor, text: &str) -> Outcome {
    let fixed = parse(text).map_err(|e| Failure::Input(format!("schedule \"{text}\": {e}")))?;
    let limits = limits(gpu);
    let contraction = &problem.contraction;
    let usual = Menu::of(contraction, &limits);
    let mut narrowed = usual.clone();
    let mut outside = Vec::new();
    if let Some((m, n)) = fixed.block {
        for (size, menu, axis) in [(m, &usual.tile_m, "m"), (n, &usual.tile_n, "n")] {
            if !menu.contains(&size) {
                outside.push(format!("block tile {size} along {axis} (the menu is {menu:?})"));
            }
        }
        (narrowed.tile_m, narrowed.tile_n) = (vec![m], vec![n]);
    }
    if let Some(k) = fixed.k {
        if !usual.tile_k.contains(&k) {
            outside.push(format!("k tile {k} (the menu is {:?})", usual.tile_k));
        }
        narrowed.tile_k = vec![k];
    }
    if let Some(threads) = fixed.threads {
        if !usual.threads.contains(&threads) {
            outside.push(format!("{threads} threads (the menu is {:?})", usual.threads));
        }
        narrowed.threads = vec![threads];
    }
    if let Some(split) = fixed.split {
        narrowed.split_k = if split == 1 { vec![] } else { vec![split] };
    }
    if let Some(stages) = fixed.stages {
        narrowed.async_stages.retain(|s| *s == stages);
    }
    if !outside.is_empty() {
        return print(&format!("not in the space: {}\n", outside.join("; ")));
    }
    let query = Query { k: 1, diverse: false, limit: Duration::from_secs(60) };
    let make = |menu: &Menu| {
        saturate(contraction, limits, menu, &rules::all(), Fuel::default())
            .map_err(|e| Failure::Internal(e.to_string()))
    };
    let space = make(&narrowed)?;
    let mut found = best(&space, gpu, query);
    found.candidates.retain(|c| {
        fixed.split.is_none_or(|s| c.plan.split_k == s) && fixed.stages.is_none_or(|s| c.plan.pipe == Pipe::Async(s))
    });
    let Some(asked) = found.candidates.pop() else {
        let mut reasons = Vec::new();
        if let (Some((m, n)), Some(threads)) = (fixed.block, fixed.threads) {
            let each = m * n / i64::from(threads);
            reasons.push(format!(
                "{each} accumulators for each of {threads} threads; a thread has {} registers",
                limits.registers
            ));
        }
        if let (Some((m, n)), Some(k)) = (fixed.block, fixed.k) {
            let bytes = (m + n) * k * i64::from(contraction.a.dtype.bytes());
            reasons.push(format!(
                "its tiles take {bytes} bytes per buffer; a block has {} bytes of shared memory",
                limits.shared_bytes
            ));
        }
        reasons.push("or what was fixed beside it is never better than the alternatives of the same tiles".into());
        return print(&format!("nothing found: {}\n", reasons.join("; ")));
    };
    let whole = make(&usual)?;
    let top = best(&whole, gpu, query);
    let Some(winner) = top.candidates.first() else { return Err(Failure::Nothing("the space is empty".into())) };
    let mut out = format!(
        "the best such schedule is in the space: predicted {:.4} ms, {:.2}x the best ({:.4} ms)\n",
        asked.cost.ms,
        asked.cost.ms / winner.cost.ms,
        winner.cost.ms
    );
    for line in asked.plan.describe() {
        out.push_str(&format!("  {line}\n"));
    }
    out.push_str("time by part, ms: asked for, best\n");
    for (name, ms) in &asked.cost.parts {
        let other = winner.cost.parts.get(name).copied().unwrap_or(0.0);
        let mark = if *ms > other * 1.02 { "  <- more" } else { "" };
        out.push_str(&format!("  {name:<14} {ms:>10.4} {other:>10.4}{mark}\n"));
    }
    print(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_and_nonsense_is_refused() {
        let fixed = parse("block 128x256, k 16, threads 256").unwrap();
        assert_eq!((fixed.block, fixed.k, fixed.threads), (Some((128, 256)), Some(16), Some(256)));
        assert_eq!(
            parse("blok 1x1").unwrap_err(),
            "`blok` is not known; known are block MxN, k K, threads T, split S, stages S"
        );
        assert_eq!(parse("k 0").unwrap_err(), "`0` is not a whole number");
        assert!(parse("").is_err());
    }
}
