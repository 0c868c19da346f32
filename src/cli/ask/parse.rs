//! The question language: decisions separated by commas, each a word and its value.
use super::fixed::{Fixed, Operand};
use satune_ir::term::{Axis, Contraction, Pair, Pipe, Side};

/// What the language knows, for help and error messages.
pub(super) const WORDS: &str = "block MxN, k K, step S, threads T or MxN, warps MxN [m outer|n outer], lanes MxN [...], \
vthreads [outside|inside] MxN, registers MxN [...], stages serial|registers|N, split S, order m n, group m G|none, \
A and B: global|shared, above-k|at-k, k-major|x-major|row|transposed, pad P, xor, plain, fill V, rows|columns, fill-unrolled|fill-rolled, \
local V|in-place, unroll yes|no, store V, init hoisted|inside, accumulators registers|global";

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// Reads a question.
///
/// # Errors
/// Says which word is not understood.
pub(super) fn parse(text: &str, contraction: &Contraction) -> Result<Fixed, String> {
    let mut fixed = Fixed::default();
    for clause in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let mut words = clause.split_whitespace().peekable();
        let what = words.next().unwrap_or_default();
        read(&mut fixed, what, &mut words, contraction)?;
        if let Some(rest) = words.next() {
            return Err(format!("`{}` is not understood after `{what}` in `{}`", clip(rest), clip(clause)));
        }
    }
    if fixed == Fixed::default() {
        return Err("nothing is fixed; write for instance \"block 128x256, k 16, threads 256\"".into());
    }
    fixed.settle();
    Ok(fixed)
}

fn clip(text: &str) -> String {
    text.chars().take(60).collect()
}

fn read(fixed: &mut Fixed, what: &str, words: &mut Words, contraction: &Contraction) -> Result<(), String> {
    match what {
        "block" => fixed.block = Some(pair(what, words)?),
        "k" => fixed.k = Some(number(what, words)?),
        "step" => fixed.step = Some(number(what, words)?),
        "threads" => {
            if words.peek().is_some_and(|w| w.contains('x')) {
                fixed.thread_grid = Some(pair(what, words)?);
            } else {
                fixed.threads = Some(small(what, words)?);
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
                    return Ok(());
                }
            };
            words.next();
            *slot = Some(pair(what, words)?);
        }
        "stages" => {
            fixed.stages = Some(match value(what, words)? {
                "serial" | "1" => Pipe::Plain,
                "registers" => Pipe::Registers,
                "async" | "cp.async" => Pipe::Async(small(what, words)?.try_into().map_err(|_| "too many stages")?),
                n => Pipe::Async(whole(n)?.try_into().map_err(|_| "too many stages".to_string())?),
            });
        }
        "split" => fixed.split = Some(number(what, words)?),
        "order" => {
            let text: String = words.by_ref().collect();
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
        "A" | "B" => {
            let side = if what == "A" { Side::A } else { Side::B };
            let along_k = contraction.operand(side).contiguous_along(Axis::K);
            let slot = if what == "A" { &mut fixed.a } else { &mut fixed.b };
            while let Some(word) = words.next() {
                operand(slot, word, words, along_k)?;
            }
        }
        "unroll" => fixed.unroll = Some(choice(what, words, "yes", "no")?),
        "store" => fixed.store = Some(small(what, words)?),
        "init" => fixed.init_hoisted = Some(choice(what, words, "hoisted", "inside")?),
        "accumulators" => fixed.accumulators = Some(choice(what, words, "registers", "global")?),
        other => return Err(format!("`{}` is not known; known are {WORDS}", clip(other))),
    }
    Ok(())
}

/// `along_k`: whether the operand's rows in global memory run along k.
fn operand(slot: &mut Operand, word: &str, words: &mut Words, along_k: bool) -> Result<(), String> {
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
        "fill" => slot.fill = Some(small("fill", words)?),
        "rows" => slot.coalesced = Some(true),
        "columns" => slot.coalesced = Some(false),
        "fill-unrolled" => slot.fill_unroll = Some(true),
        "fill-rolled" => slot.fill_unroll = Some(false),
        "local" => slot.local = Some(Some(small("local", words)?)),
        "in-place" => slot.local = Some(None),
        other => return Err(format!("`{}` is not known of an operand; known are {WORDS}", clip(other))),
    }
    Ok(())
}

fn value<'a>(what: &str, words: &mut Words<'a>) -> Result<&'a str, String> {
    words.next().ok_or_else(|| format!("`{what}` has no value"))
}

fn whole(text: &str) -> Result<i64, String> {
    text.parse::<i64>()
        .ok()
        .filter(|n| (1..=1 << 20).contains(n))
        .ok_or_else(|| format!("`{}` is not a whole number from 1 to 1048576", clip(text)))
}

fn number(what: &str, words: &mut Words) -> Result<i64, String> {
    whole(value(what, words)?)
}

fn small(what: &str, words: &mut Words) -> Result<u32, String> {
    u32::try_from(number(what, words)?).map_err(|_| format!("{what} is too large"))
}

/// A number that may be 0.
fn count(what: &str, words: &mut Words) -> Result<u32, String> {
    match value(what, words)? {
        "0" => Ok(0),
        text => u32::try_from(whole(text)?).map_err(|_| format!("{what} is too large")),
    }
}

fn pair(what: &str, words: &mut Words) -> Result<Pair, String> {
    let text = value(what, words)?;
    let (m, n) = text.split_once('x').ok_or_else(|| format!("`{}` is not MxN", clip(text)))?;
    Ok(Pair { m: whole(m)?, n: whole(n)? })
}

fn ordered_pair(what: &str, words: &mut Words) -> Result<(Option<Pair>, Option<bool>), String> {
    let pair = pair(what, words)?;
    let order = match words.next() {
        None => None,
        Some(axis @ ("m" | "n")) if words.next() == Some("outer") => Some(axis == "m"),
        Some(other) => return Err(format!("`{}` is not known after `{what}`; write m outer or n outer", clip(other))),
    };
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
