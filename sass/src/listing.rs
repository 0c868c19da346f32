//! Machine code as the disassembler prints it: instructions with their 128-bit words, and the loop where a kernel spends its
//! time.
use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// As printed, without the semicolon.
    pub text: String,
    /// The machine word (sm_70 and later); 0 where the disassembler printed none.
    pub word: u128,
}

/// Instructions in order, and where the labels among them are.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Instructions.
    pub lines: Vec<Line>,
    labels: HashMap<String, usize>,
}

/// Opcodes that do the arithmetic of a contraction: what multiplies and adds; where a kernel has none of it, what adds and chooses;
/// else integers.
const MATH: [&[&str]; 3] = [
    &["FFMA", "FFMA2", "DFMA", "HFMA2", "HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "QMMA", "DMMA"],
    &["FADD", "FMUL", "FMNMX", "DADD", "DMUL", "DMNMX", "HADD2", "HMUL2", "HMNMX2"],
    &["IMAD", "IDP"],
];

impl Listing {
    /// Reads what `nvdisasm -c -hex` prints. An instruction's first 64 bits stand behind it, the others on a line of their own.
    pub fn read(text: &str) -> Listing {
        let mut listing = Listing::default();
        for line in text.lines().map(str::trim) {
            if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L_")) {
                listing.labels.insert(label.into(), listing.lines.len());
            } else if let Some(high) = word(line) {
                if let Some(last) = listing.lines.last_mut() {
                    last.word |= u128::from(high) << 64;
                }
            } else if let Some((_, rest)) = line.strip_prefix("/*").and_then(|l| l.split_once("*/")) {
                if let Some((text, rest)) = rest.split_once(';') {
                    let low = word(rest.trim()).unwrap_or(0);
                    listing.lines.push(Line { text: text.trim().into(), word: low.into() });
                }
            }
        }
        listing
    }

    /// Where a branch goes, as the number of an instruction.
    pub fn target(&self, line: &Line) -> Option<usize> {
        let label = line.text.split('`').nth(1)?.trim_start_matches('(').split(')').next()?;
        self.labels.get(label).copied()
    }

    /// The ranges of backward branches.
    fn loops(&self) -> impl Iterator<Item = RangeInclusive<usize>> + '_ {
        self.lines.iter().enumerate().filter(|(_, line)| opcode(&line.text) == "BRA").filter_map(|(end, line)| {
            let start = self.target(line)?;
            // A branch back from code that was moved behind the end, as waits are, closes no loop.
            let body = self.lines.get(start..=end)?;
            body.iter().all(|line| opcode(&line.text) != "EXIT").then_some(start..=end)
        })
    }

    /// Among the ranges of backward branches the one with the most arithmetic, and within it, as long as an inner one has at
    /// least half of the arithmetic, that inner one. `None` where no loop has arithmetic.
    pub fn hot_loop(&self) -> Option<Range<usize>> {
        let mut loops: Vec<(usize, RangeInclusive<usize>)> =
            self.loops().map(|body| (self.math(body.clone()), body)).filter(|(math, _)| *math > 0).collect();
        // From the largest to the smallest: every loop comes after those that contain it.
        loops.sort_by_key(|(math, body)| std::cmp::Reverse((*math, body.end() - body.start())));
        let (mut math, mut body) = loops.first()?.clone();
        for (inner_math, inner) in loops {
            let contained = body.contains(inner.start()) && inner.end() - inner.start() < body.end() - body.start();
            if contained && 2 * inner_math >= math {
                (math, body) = (inner_math, inner);
            }
        }
        Some(*body.start()..body.end() + 1)
    }

    /// Instructions of arithmetic among some, of the first kind of [`MATH`] that the kernel has.
    pub fn math(&self, range: impl std::slice::SliceIndex<[Line], Output = [Line]>) -> usize {
        // HFMA2 on no register moves a constant.
        let works = |line: &&Line| !(line.text.contains("HFMA2") && line.text.contains("-RZ, RZ"));
        let count = |lines: &[Line], kind: &[&str]| {
            lines.iter().filter(works).filter(|line| kind.contains(&opcode(&line.text))).count()
        };
        let kind = MATH.iter().find(|kind| count(&self.lines, kind) > 0).unwrap_or(&MATH[0]);
        count(self.lines.get(range).unwrap_or_default(), kind)
    }
}

/// The number of a comment that holds nothing else: `/* 0x00005b0005057a23 */`.
fn word(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("/*")?.strip_suffix("*/")?.trim().strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok()
}

/// The opcode of an instruction, without predicate and modifiers.
pub fn opcode(instruction: &str) -> &str {
    let mut words = instruction.split_whitespace();
    let first = words.next().unwrap_or("");
    let word = if first.starts_with('@') { words.next().unwrap_or("") } else { first };
    word.split('.').next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_halves_of_a_word_are_put_together() {
        let text = "
.L_x_0:
        /*00d0*/                   FFMA R5, R5, R0, c[0x0][0x16c] ;  /* 0x00005b0005057a23 */
                                                                     /* 0x020fe20000000000 */
        /*00e0*/              @!P0 BRA `(.L_x_0) ;                   /* 0xfffffe0000008947 */
                                                                     /* 0x000fea000383ffff */";
        let listing = Listing::read(text);
        assert_eq!(listing.lines.len(), 2);
        assert_eq!(listing.lines[0].word, 0x020f_e200_0000_0000_0000_5b00_0505_7a23);
        assert_eq!(listing.lines[0].text, "FFMA R5, R5, R0, c[0x0][0x16c]");
        assert_eq!(listing.target(&listing.lines[1]), Some(0));
        assert_eq!(listing.hot_loop(), Some(0..2));
    }
}
