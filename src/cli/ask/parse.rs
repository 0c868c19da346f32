//! The question language: decisions separated by commas, each a word and its value.
use super::fixed::{Fixed, Operand};
use super::tensor;
use satune_ir::term::{Axis, Contraction, Pair, Pipe, Side};

/// What the language knows, for help and error messages.
pub(super) const WORDS: &str = "block MxN, k K, step S, threads T or MxN, warps MxN [m outer|n outer], lanes MxN [...], \
vthreads [outside|inside] MxN, registers MxN [...], stages serial|registers|N, split S, order m n, group m G|none, \
A and B: global|shared, above-k|at-k, k-major|x-major|row|transposed, pad P, xor, plain, fill V, rows|columns, fill-unrolled|fill-rolled, \
local V|in-place, unroll yes|no, store V, init hoisted|inside, accumulators registers|global";

/// What may be said, short enough to be read as the end of an error.
fn known() -> String {
    format!(
        "known are {WORDS}; and the lines of a candidate on tensor cores as `show` prints them (`satune why-not --help` \
         lists their words)"
    )
}

type Words<'a> = std::iter::Peekable<std::iter::Copied<std::slice::Iter<'a, &'a str>>>;

/// Reads a question.
///
/// # Errors
/// Says which word is not understood.
pub(super) fn parse(text: &str, contraction: &Contraction) -> Result<Fixed, String> {
    let mut fixed = Fixed::default();
    // In a description some decisions stand in parentheses.
    let text = text.replace(" (m outer)", " m outer").replace(" (n outer)", " n outer");
    for line in text.lines() {
        let mut side = None;
        for clause in line.split([',', ';', '(', ')']).map(str::trim).filter(|p| !p.is_empty()) {
            side = read_clause(&mut fixed, clause, side, contraction)?;
        }
    }
    if fixed == Fixed::default() {
        return Err("nothing is fixed; write for instance \"block 128x256, k 16, threads 256\"".into());
    }
    fixed.settle();
    Ok(fixed)
}

/// Reads the decisions of a clause. `side`: the operand that a description's line is about, as `A:` says; the result is the
/// same for the next clause.
fn read_clause(
    fixed: &mut Fixed,
    clause: &str,
    side: Option<Side>,
    contraction: &Contraction,
) -> Result<Option<Side>, String> {
    let words: Vec<&str> = clause.split_whitespace().collect();
    let (mut at, mut last) = (0, "");
    let named = match words[0] {
        "A:" => Some(Side::A),
        "B:" => Some(Side::B),
        _ => None,
    };
    let here = match words[0] {
        "A" => Some(Side::A),
        "B" => Some(Side::B),
        _ => named,
    };
    at += usize::from(here.is_some());
    while at < words.len() {
        let rest = &words[at..];
        let taken = match here.or(side) {
            Some(side) => of_operand(fixed, side, rest, contraction)?,
            None => None,
        };
        let taken = match (taken, here) {
            (Some(taken), _) => Some(taken),
            (None, Some(_)) => {
                return Err(format!("`{}` is not known of an operand; {}", clip(rest[0]), known()));
            }
            (None, None) => match tensor::read(fixed, rest)? {
                Some(taken) => Some(taken),
                None => of_product(fixed, rest)?,
            },
        };
        let Some(taken) = taken else {
            return Err(if at == 0 {
                format!("`{}` is not known; {}", clip(rest[0]), known())
            } else {
                format!("`{}` is not understood after `{last}` in `{}`", clip(rest[0]), clip(clause))
            });
        };
        (at, last) = (at + taken, rest[0]);
    }
    Ok(named.or(side).filter(|_| here == named))
}

/// Reads one decision about an operand; how many words it takes, or none where it is none.
fn of_operand(
    fixed: &mut Fixed,
    side: Side,
    words: &[&str],
    contraction: &Contraction,
) -> Result<Option<usize>, String> {
    if let Some(taken) = tensor::read_way(fixed.mma.way(side), words)? {
        return Ok(Some(taken));
    }
    let along_k = contraction.operand(side).contiguous_along(Axis::K);
    let slot = if side == Side::A { &mut fixed.a } else { &mut fixed.b };
    let mut rest = words.iter().copied().peekable();
    let word = rest.next().unwrap_or_default();
    let known = operand(slot, word, &mut rest, along_k)?;
    Ok(known.then(|| words.len() - rest.len()))
}

/// Reads one decision about a product on single threads; how many words it takes, or none where it is none.
fn of_product(fixed: &mut Fixed, words: &[&str]) -> Result<Option<usize>, String> {
    let mut rest = words.iter().copied().peekable();
    let what = rest.next().unwrap_or_default();
    let known = read(fixed, what, &mut rest)?;
    Ok(known.then(|| words.len() - rest.len()))
}

pub(super) fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

fn read(fixed: &mut Fixed, what: &str, words: &mut Words<'_>) -> Result<bool, String> {
    match what {
        "block" => fixed.block = Some(pair(what, words)?),
        "k" => fixed.k = Some(number(what, words)?),
        "step" => fixed.step = Some(number(what, words)?),
        "threads" => {
            if words.peek().is_some_and(|w| w.contains('x')) {
                fixed.thread_grid = Some(pair(what, words)?);
            } else {
                fixed.threads = Some(small(what, number(what, words)?)?);
            }
        }
        "warps" => (fixed.warps, fixed.warps_m_outer) = ordered_pair(what, words)?,
        "lanes" => (fixed.lanes, fixed.lanes_m_outer) = ordered_pair(what, words)?,
        "registers" => (fixed.registers, fixed.registers_m_outer) = ordered_pair(what, words)?,
        "vthreads" => {
            let slot = match words.peek() {
                Some(&"outside") => &mut fixed.vthreads_outside,
                Some(&"inside") => &mut fixed.vthreads_inside,
                _ => {
                    fixed.vthreads = Some(pair(what, words)?);
                    return Ok(true);
                }
            };
            words.next();
            *slot = Some(pair(what, words)?);
        }
        "stages" => {
            fixed.stages = Some(match value(what, words)? {
                "serial" | "1" => Pipe::Plain,
                "registers" => Pipe::Registers,
                "async" | "cp.async" => {
                    Pipe::Async(small(what, number(what, words)?)?.try_into().map_err(|_| "too many stages")?)
                }
                n => Pipe::Async(whole(n)?.try_into().map_err(|_| "too many stages".to_string())?),
            });
        }
        "split" => fixed.split = Some(number(what, words)?),
        "order" => {
            let text: String = words.by_ref().take(2).collect();
            fixed.blocks_m_outer = Some(match text.as_str() {
                "mn" => true,
                "nm" => false,
                other => return Err(format!("`order {}` is not known; write order m n or order n m", clip(other))),
            });
        }
        "group" => {
            fixed.group = Some(match value(what, words)? {
                "none" | "1" => None,
                "m" => Some((Axis::M, number(what, words)?)),
                "n" => Some((Axis::N, number(what, words)?)),
                other => return Err(format!("`group {}` is not known; write group m G, group n G, none", clip(other))),
            });
        }
        "unroll" => fixed.unroll = Some(choice(what, words, "yes", "no")?),
        "store" => fixed.store = Some(small(what, number(what, words)?)?),
        "init" => fixed.init_hoisted = Some(choice(what, words, "hoisted", "inside")?),
        "accumulators" => fixed.accumulators = Some(choice(what, words, "registers", "global")?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Whether it is a word of an operand, which then is read. `along_k`: whether the operand's rows in global memory run along k.
fn operand(slot: &mut Operand, word: &str, words: &mut Words<'_>, along_k: bool) -> Result<bool, String> {
    match word {
        "global" => slot.shared = Some(false),
        "shared" => slot.shared = Some(true),
        "above-k" => slot.hoisted = Some(true),
        "at-k" => slot.hoisted = Some(false),
        "k-major" => slot.k_major = Some(true),
        "x-major" => slot.k_major = Some(false),
        // Rows as in global memory: those along k are rows of one m or n.
        "row" => slot.k_major = Some(!along_k),
        "transposed" => slot.k_major = Some(along_k),
        "plain" => (slot.pad, slot.swizzle) = (Some(0), Some(false)),
        "pad" => (slot.pad, slot.swizzle) = (Some(count("pad", words)?), Some(false)),
        "xor" => (slot.pad, slot.swizzle) = (Some(0), Some(true)),
        "fill" => slot.fill = Some(small("fill", number("fill", words)?)?),
        "rows" => slot.coalesced = Some(true),
        "columns" => slot.coalesced = Some(false),
        "fill-unrolled" => slot.fill_unroll = Some(true),
        "fill-rolled" => slot.fill_unroll = Some(false),
        "local" => slot.local = Some(Some(small("local", number("local", words)?)?)),
        "in-place" => slot.local = Some(None),
        _ => return Ok(false),
    }
    Ok(true)
}

fn value<'a>(what: &str, words: &mut Words<'a>) -> Result<&'a str, String> {
    words.next().ok_or_else(|| format!("`{what}` has no value"))
}

pub(super) fn whole(text: &str) -> Result<i64, String> {
    text.parse::<i64>()
        .ok()
        .filter(|n| (1..=1 << 20).contains(n))
        .ok_or_else(|| format!("`{}` is not a whole number from 1 to 1048576", clip(text)))
}

fn number(what: &str, words: &mut Words<'_>) -> Result<i64, String> {
    whole(value(what, words)?)
}

/// A number of 32 bits.
pub(super) fn small(what: &str, number: i64) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| format!("{what} is too large"))
}

/// A number that may be 0.
fn count(what: &str, words: &mut Words<'_>) -> Result<u32, String> {
    match value(what, words)? {
        "0" => Ok(0),
        text => small(what, whole(text)?),
    }
}

fn pair(what: &str, words: &mut Words<'_>) -> Result<Pair, String> {
    let text = value(what, words)?;
    let (m, n) = text.split_once('x').ok_or_else(|| format!("`{}` is not MxN", clip(text)))?;
    Ok(Pair { m: whole(m)?, n: whole(n)? })
}

fn ordered_pair(what: &str, words: &mut Words<'_>) -> Result<(Option<Pair>, Option<bool>), String> {
    let pair = pair(what, words)?;
    let order = words.next_if(|w| matches!(*w, "m" | "n"));
    if order.is_some() && words.next() != Some("outer") {
        return Err(format!("`{what} MxN` is followed by m outer or n outer"));
    }
    let order = order.map(|axis| axis == "m");
    Ok((Some(pair), order))
}

fn choice(what: &str, words: &mut Words, yes: &str, no: &str) -> Result<bool, String> {
    match words.next() {
        None => Ok(true),
        Some(w) if w == yes => Ok(true),
        Some(w) if w == no => Ok(false),
        Some(other) => Err(format!("`{what} {}` is not known; write {what} {yes} or {what} {no}", clip(other))),
    }
}
