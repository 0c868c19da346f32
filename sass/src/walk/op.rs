//! Instructions, taken apart.
use crate::{Line, Listing};

/// A register file and a number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register {
    pub uniform: bool,
    pub number: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    /// A register, negated or inverted.
    Register(Register, Sign),
    /// A predicate, and whether it is negated. 7 is true.
    Predicate(Register, bool),
    /// A number.
    Value(u32),
    /// A constant of the launch.
    Constant(u32, Sign),
    /// Something whose value is unknown.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Plain,
    Negated,
    Inverted,
}

/// Registers beyond the last are those that read as zero.
pub(super) const ZERO: usize = 255;
pub(super) const TRUE: usize = 7;

impl Operand {
    fn read(text: &str) -> Operand {
        let text = text.trim();
        let (sign, bare) = match text.as_bytes().first() {
            Some(b'-') => (Sign::Negated, &text[1..]),
            Some(b'~' | b'!') => (Sign::Inverted, &text[1..]),
            _ => (Sign::Plain, text),
        };
        if let Some(inside) = bare.strip_prefix("c[0x0][") {
            let hex = inside.trim_end_matches(']').strip_prefix("0x").unwrap_or("");
            return u32::from_str_radix(hex, 16).map_or(Operand::Other, |at| Operand::Constant(at, sign));
        }
        if let Some(hex) = bare.strip_prefix("0x") {
            let value = u32::from_str_radix(hex, 16).ok();
            let signed = |v: u32| if sign == Sign::Negated { v.wrapping_neg() } else { v };
            return value.map_or(Operand::Other, |v| Operand::Value(signed(v)));
        }
        let half = bare.contains(".H") || bare.contains(".B");
        let name = bare.split('.').next().unwrap_or("");
        let (uniform, kind) = match name.strip_prefix('U') {
            Some(rest) => (true, rest),
            None => (false, name),
        };
        let number = |digits: &str, most: &str, value: usize| match digits == most {
            true => Some(value),
            false => digits.parse().ok().filter(|n| *n < value.max(64)),
        };
        let of = |number| Register { uniform, number };
        match kind.as_bytes().first() {
            Some(b'R') if !half => {
                number(&kind[1..], "Z", ZERO).map_or(Operand::Other, |n| Operand::Register(of(n), sign))
            }
            Some(b'P') => number(&kind[1..], "T", TRUE)
                .map_or(Operand::Other, |n| Operand::Predicate(of(n), sign == Sign::Inverted)),
            _ => Operand::Other,
        }
    }
}

/// An instruction, taken apart.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub guard: Option<Operand>,
    /// Opcode and modifiers, and the opcode alone.
    pub name: String,
    pub opcode: String,
    pub modifiers: Vec<String>,
    pub operands: Vec<Operand>,
    pub text: String,
    pub target: Option<usize>,
    /// Whether a branch here may only go on, not to its target, or the other way round, for there a call begins.
    pub calls: [bool; 2],
}

impl Op {
    /// The instruction `own` of a listing.
    pub fn read(own: usize, listing: &Listing) -> Op {
        let line = &listing.lines[own];
        let (guard, text) = match line.text.strip_prefix('@').and_then(|rest| rest.split_once(' ')) {
            Some((guard, rest)) => (Some(Operand::read(guard)), rest.trim()),
            None => (None, line.text.as_str()),
        };
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let mut parts = name.split('.').map(str::to_string);
        let target = listing.target(line);
        let call = |from: usize| calls(&listing.lines[from.min(listing.lines.len())..]);
        Op {
            guard,
            name: name.to_string(),
            opcode: parts.next().unwrap_or_default(),
            modifiers: parts.collect(),
            operands: rest.split(',').filter(|o| !o.trim().is_empty()).map(Operand::read).collect(),
            text: line.text.clone(),
            target,
            calls: [call(own + 1), target.is_some_and(call)],
        }
    }

    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }
}

/// Whether a call comes before anything else that changes the way.
fn calls(lines: &[Line]) -> bool {
    let ways = ["CALL", "BRA", "EXIT", "RET", "BAR", "STG", "BSYNC"];
    let first = lines.iter().map(|l| crate::opcode(&l.text)).find(|name| ways.contains(name));
    first == Some("CALL")
}
