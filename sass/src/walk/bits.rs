//! Operations on bits and on predicates that may be unknown.
use super::op::Op;
use satune_ir::semantics::reinterpret;
use satune_ir::DType;

/// The last two operands as halves, the upper one first.
pub(super) fn halves(text: &str) -> Option<u32> {
    let half = |x: f64| reinterpret(x.to_bits(), DType::F16, DType::U16) as u32;
    let mut last = text.rsplit(',').map(|o| o.trim().parse().ok().map(half));
    let (low, high) = (last.next()??, last.next()??);
    Some((high << 16) | low)
}

pub(super) fn and(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        _ => Some(a? && b?),
    }
}

pub(super) fn or(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    and(a.map(|a| !a), b.map(|b| !b)).map(|x| !x)
}

/// The bits that a table of eight gives for those of three words.
pub(super) fn lut3(a: u32, b: u32, c: u32, lut: u32) -> u32 {
    let of = |x: u32, on: bool| if on { x } else { !x };
    (0..8)
        .filter(|at| lut >> at & 1 == 1)
        .fold(0, |all, at| all | of(a, at & 4 != 0) & of(b, at & 2 != 0) & of(c, at & 1 != 0))
}

/// What a table of eight gives where some of three predicates are unknown: a value if it does not depend on them.
pub(super) fn plop(lut: u32, read: [Option<bool>; 3]) -> Option<bool> {
    let fits = |at: usize| (0..3).all(|n| read[n].is_none_or(|p| p == (at >> (2 - n) & 1 == 1)));
    let mut all = (0..8).filter(|at| fits(*at)).map(|at| lut >> at & 1 == 1);
    let first = all.next()?;
    all.all(|x| x == first).then_some(first)
}

pub(super) fn compared(op: &Op, order: std::cmp::Ordering, low: Option<bool>) -> Option<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let ex = op.has("EX");
    Some(match (op.modifiers.first()?.as_str(), order) {
        // Of wide numbers whose upper words are equal, the lower ones decide.
        ("EQ" | "LT" | "LE" | "GT" | "GE" | "NE", Equal) if ex => low?,
        ("EQ" | "LE" | "GE", Equal) | ("LT" | "LE" | "NE", Less) | ("GT" | "GE" | "NE", Greater) => true,
        ("EQ" | "LT" | "LE" | "GT" | "GE" | "NE", _) => false,
        _ => return None,
    })
}

/// A shift of two words.
pub(super) fn shift(op: &Op, a: Option<u32>, s: Option<u32>, b: Option<u32>) -> Option<u32> {
    let (wide, high) = (op.has("U64") || op.has("S64"), op.has("HI"));
    let s = s?;
    let s = if op.has("W") || s < 64 { s & if wide { 63 } else { 31 } } else { 63 };
    Some(match (op.has("L"), high) {
        (true, false) => a?.checked_shl(s).unwrap_or(0),
        (true, true) => ((((u64::from(b?) << 32) | u64::from(a?)) << s) >> 32) as u32,
        (false, true) if op.has("S32") || op.has("S64") => (b? as i32 >> s.min(31)) as u32,
        (false, true) => b?.checked_shr(s).unwrap_or(0),
        (false, false) => (((u64::from(b?) << 32) | u64::from(a?)) >> s) as u32,
    })
}
