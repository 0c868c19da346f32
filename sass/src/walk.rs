//! How many instructions the warps of a launch issue, by following its threads through the machine code.
//!
//! Integers, addresses and predicates are computed as the hardware does, from the places of a thread, the sizes of the launch,
//! and pointers that are somewhere; what memory, other lanes and floating-point units give is unknown. Where a branch depends on
//! what is unknown, the side that begins with a call is not taken: that is how compilers put the cases of divisions and roots that
//! need more than their few steps. Of other such branches lanes take both sides, as the lanes of a warp do. A warp issues what one
//! of its lanes comes by: an instruction counts as often as that lane which comes by most, predicated off or not.
mod bits;
mod op;

use crate::{Listing, Unknown};
use bits::{and, compared, halves, lut3, or, plop, shift};
use op::{Op, Operand, Register, Sign, TRUE, ZERO};
use std::collections::BTreeMap;

/// The sizes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks of threads in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
}

/// Most instructions of a thread: more is a loop that does not end.
const MOST_STEPS: u64 = 20_000_000;

/// Warp instructions that a launch issues, all blocks, by opcode with its modifiers. Of many blocks so many are followed, spread evenly,
/// and stand for the others.
///
/// # Errors
/// Where a thread's way depends on what is unknown in a way that is not described above.
pub fn issued(listing: &Listing, launch: Launch, most_blocks: u32) -> Result<BTreeMap<String, f64>, Unknown> {
    if listing.lines.is_empty() {
        return Err(Unknown::NoCode);
    }
    let code: Vec<Op> = (0..listing.lines.len()).map(|at| Op::read(at, listing)).collect();
    let blocks: u32 = launch.grid.iter().product();
    let threads: u32 = launch.block.iter().product();
    let followed = blocks.min(most_blocks.max(1));
    let mut counts = vec![0_u64; code.len()];
    for number in 0..followed {
        let at = (u64::from(number) * u64::from(blocks) / u64::from(followed)) as u32;
        let block = place(at, launch.grid);
        for first in (0..threads).step_by(32) {
            let mut most = vec![0_u64; code.len()];
            for thread in first..threads.min(first + 32) {
                let visits =
                    Thread::new(launch, block, place(thread, launch.block), thread % 32).run(&code, listing)?;
                most.iter_mut().zip(visits).for_each(|(most, one)| *most = one.max(*most));
            }
            counts.iter_mut().zip(most).for_each(|(all, one)| *all += one);
        }
    }
    let mut out = BTreeMap::new();
    for (op, count) in code.iter().zip(counts).filter(|(_, count)| *count > 0) {
        *out.entry(op.name.clone()).or_default() += count as f64 * f64::from(blocks) / f64::from(followed);
    }
    Ok(out)
}

fn place(at: u32, sizes: [u32; 3]) -> [u32; 3] {
    [at % sizes[0], at / sizes[0] % sizes[1], at / sizes[0] / sizes[1]]
}

/// A thread on its way. Of registers and predicates the second half are the uniform ones.
struct Thread {
    launch: Launch,
    block: [u32; 3],
    thread: [u32; 3],
    lane: u32,
    registers: [[Option<u32>; 256]; 2],
    predicates: [[Option<bool>; 8]; 2],
}

impl Thread {
    fn new(launch: Launch, block: [u32; 3], thread: [u32; 3], lane: u32) -> Thread {
        let mut registers = [[None; 256]; 2];
        let mut predicates = [[None; 8]; 2];
        for file in 0..2 {
            registers[file][ZERO] = Some(0);
            predicates[file][TRUE] = Some(true);
        }
        Thread { launch, block, thread, lane, registers, predicates }
    }

    /// How often it comes by each instruction.
    fn run(mut self, code: &[Op], listing: &Listing) -> Result<Vec<u64>, Unknown> {
        let mut visits = vec![0; code.len()];
        let mut at = 0;
        for _ in 0..MOST_STEPS {
            let Some(op) = code.get(at) else { return Ok(visits) };
            visits[at] += 1;
            let runs = op.guard.map_or(Some(true), |guard| self.predicate(guard));
            let unknown = || Unknown::Branch(listing.lines[at].text.clone());
            match op.opcode.as_str() {
                "EXIT" if runs == Some(true) => return Ok(visits),
                // A call that may be needed is not.
                "EXIT" | "CALL" if runs.is_none() => {}
                // One that is sure is a jump.
                "CALL" if runs == Some(true) => {
                    at = op.target.ok_or_else(unknown)?;
                    continue;
                }
                "RET" | "BRX" | "JMP" if runs == Some(true) => return Err(unknown()),
                "BRA" if !op.has("DIV") => {
                    let target = op.target.ok_or_else(unknown)?;
                    // A second predicate may stand before the target.
                    let more = op.operands.first().filter(|o| matches!(o, Operand::Predicate(..)));
                    let taken = and(runs, more.map_or(Some(true), |p| self.predicate(*p)));
                    let taken = match (taken, op.calls) {
                        (Some(taken), _) => taken,
                        (None, [true, false]) => true,
                        (None, [false, true]) => false,
                        (None, _) if target <= at => return Err(unknown()),
                        (None, _) => self.lane >> (at % 5) & 1 == 1,
                    };
                    at = if taken { target } else { at + 1 };
                    continue;
                }
                _ if runs == Some(false) => {}
                _ => self.step(op, runs == Some(true)),
            }
            at += 1;
        }
        Err(Unknown::Branch(listing.lines[at].text.clone()))
    }

    fn predicate(&self, operand: Operand) -> Option<bool> {
        match operand {
            Operand::Predicate(r, not) => self.predicates[usize::from(r.uniform)][r.number].map(|p| p != not),
            _ => None,
        }
    }

    fn value(&self, operand: Option<&Operand>) -> Option<u32> {
        self.word(operand?, 0)
    }

    /// A word of an operand, the second where it is of 64 bits.
    fn word(&self, operand: &Operand, high: usize) -> Option<u32> {
        let signed = |v: u32, sign: Sign| match sign {
            Sign::Plain => v,
            Sign::Negated => v.wrapping_neg(),
            Sign::Inverted => !v,
        };
        match *operand {
            Operand::Register(r, sign) => {
                let number = if r.number == ZERO { ZERO } else { r.number + high };
                self.registers[usize::from(r.uniform)][number].map(|v| signed(v, sign))
            }
            Operand::Value(v) => Some(if high == 0 { v } else { 0 }),
            Operand::Constant(at, sign) => self.constant(at + 4 * high as u32).map(|v| signed(v, sign)),
            _ => None,
        }
    }

    /// A word of the constants of a launch: sizes first, then pointers, which are somewhere.
    fn constant(&self, at: u32) -> Option<u32> {
        let Launch { grid, block } = self.launch;
        match (at / 4) as usize {
            word @ 0..3 => Some(block[word]),
            word @ 3..6 => Some(grid[word - 3]),
            // Where arguments begin differs from one architecture to another, and none are before here.
            word if at >= 0x160 => Some(if word % 2 == 0 { (word as u32) << 22 } else { 0x7f00 }),
            _ => None,
        }
    }

    fn set(&mut self, operand: Option<&Operand>, high: usize, value: Option<u32>, surely: bool) {
        if let Some(Operand::Register(r, _)) =
            operand.filter(|o| !matches!(o, Operand::Register(r, _) if r.number == ZERO))
        {
            let place = &mut self.registers[usize::from(r.uniform)][(r.number + high).min(ZERO - 1)];
            *place = if surely || *place == value { value } else { None };
        }
    }

    fn set_predicate(&mut self, operand: Option<&Operand>, value: Option<bool>, surely: bool) {
        if let Some(Operand::Predicate(r, _)) =
            operand.filter(|o| !matches!(o, Operand::Predicate(r, _) if r.number == TRUE))
        {
            let place = &mut self.predicates[usize::from(r.uniform)][r.number];
            *place = if surely || *place == value { value } else { None };
        }
    }

    /// Executes an instruction that is no branch; `surely`: its predicate is known to hold.
    fn step(&mut self, op: &Op, surely: bool) {
        // Predicates that it sets come first, then a register, then what it reads, and predicates that it reads.
        let leading = op.operands.iter().take_while(|o| matches!(o, Operand::Predicate(..))).count();
        let sets_register = !["ISETP", "UISETP", "PLOP3", "UPLOP3", "R2P", "FSETP", "HSETP2", "PSETP", "FCHK"]
            .contains(&op.opcode.as_str());
        let mut out = leading;
        let to = if sets_register { op.operands.get(leading) } else { None };
        // Of `IADD3 R2, P0, R4, ...` the predicates that it sets follow the register.
        let from = if sets_register {
            let after = op.operands.get(leading + 1..).unwrap_or_default();
            out = after.iter().take_while(|o| matches!(o, Operand::Predicate(..))).count();
            after.get(out..).unwrap_or_default()
        } else {
            op.operands.get(leading..).unwrap_or_default()
        };
        let carries =
            if sets_register && leading == 0 { op.operands.get(1..1 + out) } else { op.operands.get(..leading) };
        let carries: Vec<Operand> = carries.unwrap_or_default().to_vec();
        let (to, from) = (to.copied(), from.to_vec());
        let v = |at: usize| self.value(from.get(at));
        // A predicate among what it reads, the nth.
        let p = |n: usize| {
            let mut all = from.iter().filter(|o| matches!(o, Operand::Predicate(..)));
            all.nth(n).map(|o| self.predicate(*o))
        };
        let unsigned = op.has("U32");
        let mut set: [Option<Option<u32>>; 2] = [None, None];
        let mut outs: Vec<Option<bool>> = Vec::new();
        match op.opcode.trim_start_matches('U') {
            "MOV" | "MOV32I" | "R2UR" => set[0] = Some(v(0)),
            // On registers that are zero it moves a pair of halves.
            "HFMA2" if op.text.contains("-RZ, RZ, ") => set[0] = Some(halves(&op.text)),
            "S2R" | "S2UR" => set[0] = Some(self.special(&op.text)),
            "CS2R" => {
                let zero = op.text.contains("SRZ").then_some(0);
                set = [Some(zero), (!op.has("32")).then_some(zero)];
            }
            "LDC" => {
                set[0] = Some(v(0));
                set[1] = op.has("64").then(|| from.first().and_then(|o| self.word(o, 1)));
            }
            "IMAD" if op.has("WIDE") => {
                let product = v(0).zip(v(1)).map(|(a, b)| match unsigned {
                    true => u64::from(a).wrapping_mul(u64::from(b)),
                    false => (i64::from(a as i32) * i64::from(b as i32)) as u64,
                });
                let sum =
                    from.get(2).and_then(|o| Some(u64::from(self.word(o, 0)?) | (u64::from(self.word(o, 1)?) << 32)));
                let all = product.zip(sum).map(|(a, b)| a.overflowing_add(b));
                set = [Some(all.map(|x| x.0 as u32)), Some(all.map(|x| (x.0 >> 32) as u32))];
                outs.push(all.map(|x| x.1));
            }
            "IMAD" if op.has("HI") => {
                let product = v(0).zip(v(1)).map(|(a, b)| match unsigned {
                    true => ((u64::from(a) * u64::from(b)) >> 32) as u32,
                    false => ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32,
                });
                set[0] = Some(product.zip(v(2)).map(|(a, b)| a.wrapping_add(b)));
            }
            "IMAD" => {
                let carry = if op.has("X") { p(0).unwrap_or(Some(false)) } else { Some(false) };
                let sum = || Some(v(0)?.wrapping_mul(v(1)?).wrapping_add(v(2)?).wrapping_add(u32::from(carry?)));
                set[0] = Some(sum());
            }
            "IADD3" | "IADD" | "VIADD" | "IADD32I" => {
                let carries = [0, 1].map(|n| if op.has("X") { p(n).unwrap_or(Some(false)) } else { Some(false) });
                let words: Vec<&Operand> = from.iter().filter(|o| !matches!(o, Operand::Predicate(..))).collect();
                // What is subtracted is added inverted, and one, which may carry.
                let term = |o: &Operand| match *o {
                    Operand::Register(r, Sign::Negated) => {
                        self.word(&Operand::Register(r, Sign::Inverted), 0).map(|v| u64::from(v) + 1)
                    }
                    _ => self.word(o, 0).map(u64::from),
                };
                let sum = words.iter().try_fold(0_u64, |sum, o| Some(sum + term(o)?));
                let sum = sum.and_then(|s| Some(s + u64::from(carries[0]?) + u64::from(carries[1]?)));
                set[0] = Some(sum.map(|s| s as u32));
                outs = vec![sum.map(|s| s >> 32 & 3 != 0), sum.map(|s| s >> 33 != 0)];
            }
            "LEA" => {
                let words: Vec<&Operand> = from.iter().filter(|o| !matches!(o, Operand::Predicate(..))).collect();
                let word = |at: usize| words.get(at).and_then(|o| self.word(o, 0));
                let shift = words.last().and_then(|o| self.word(o, 0)).map(|s| s & 31);
                let carry = if op.has("X") { p(0).unwrap_or(Some(false)) } else { Some(false) };
                let high = match (op.has("HI"), op.has("SX32"), words.len()) {
                    (true, true, _) => word(0).map(|a| (a as i32 >> 31) as u32),
                    (true, false, 4) => word(2),
                    _ => Some(0),
                };
                let shifted = || {
                    let (low, high) = (u64::from(word(0)?), u64::from(high?));
                    let all = ((high << 32) | low) << shift?;
                    Some(if op.has("HI") { all >> 32 & 0xffff_ffff } else { all & 0xffff_ffff })
                };
                let sum = || Some(shifted()? + u64::from(word(1)?) + u64::from(carry?));
                set[0] = Some(sum().map(|s| s as u32));
                outs.push(sum().map(|s| s >> 32 != 0));
            }
            "SHF" => set[0] = Some(shift(op, v(0), v(1), v(2))),
            "LOP3" => {
                let lut = from.get(3).and_then(|o| self.word(o, 0));
                let result = v(0).zip(v(1)).zip(v(2)).zip(lut).map(|(((a, b), c), lut)| lut3(a, b, c, lut));
                // A mask of one bit may be known where the rest is not.
                set[0] = Some(result);
                outs.push(result.map(|r| r != 0));
            }
            "ISETP" => {
                let found = v(0).zip(v(1)).map(|(a, b)| {
                    let signed = |x: u32| if unsigned { i64::from(x) } else { i64::from(x as i32) };
                    signed(a).cmp(&signed(b))
                });
                let low = if op.has("EX") { p(1).unwrap_or(None) } else { None };
                let holds = found.and_then(|order| compared(op, order, low));
                let with = p(0).unwrap_or(Some(true));
                let join = |x: Option<bool>| match () {
                    () if op.has("OR") => or(x, with),
                    () if op.has("XOR") => Some(x? != with?),
                    () => and(x, with),
                };
                outs = vec![join(holds), join(holds.map(|h| !h))];
            }
            "PLOP3" => {
                let words: Vec<u32> = op
                    .operands
                    .iter()
                    .filter_map(|o| if let Operand::Value(v) = o { Some(*v) } else { None })
                    .collect();
                // What it sets are two; what it reads, three.
                let read = |n: usize| op.operands.get(2 + n).and_then(|o| self.predicate(*o));
                let all = read(0).zip(read(1)).zip(read(2));
                let of = |lut: u32| match all {
                    Some(((a, b), c)) => Some(lut3(u32::from(a), u32::from(b), u32::from(c), lut) & 1 == 1),
                    None => plop(lut, [read(0), read(1), read(2)]),
                };
                outs = words.iter().map(|lut| of(*lut)).collect();
                let targets = [op.operands.first().copied(), op.operands.get(1).copied()];
                for (target, value) in targets.iter().zip(outs.clone()) {
                    self.set_predicate(target.as_ref(), value, surely);
                }
                return;
            }
            "SEL" => {
                let chosen = p(0).flatten().map(|p| if p { v(0) } else { v(1) });
                set[0] = Some(chosen.flatten());
            }
            "IMNMX" | "VIMNMX" => {
                let both = v(0).zip(v(1)).zip(p(0).flatten());
                set[0] = Some(both.map(|((a, b), least)| match (least, unsigned) {
                    (true, true) => a.min(b),
                    (false, true) => a.max(b),
                    (true, false) => (a as i32).min(b as i32) as u32,
                    (false, false) => (a as i32).max(b as i32) as u32,
                }));
            }
            "IABS" => set[0] = Some(v(0).map(|a| (a as i32).unsigned_abs())),
            "R2P" => {
                let mask = from.last().and_then(|o| self.word(o, 0)).unwrap_or(0xff);
                let value = from.iter().find(|o| matches!(o, Operand::Register(..))).and_then(|o| self.word(o, 0));
                for n in (0..7).filter(|n| mask >> n & 1 == 1) {
                    let place = Operand::Predicate(Register { uniform: false, number: n }, false);
                    self.set_predicate(Some(&place), value.map(|v| v >> n & 1 == 1), surely);
                }
                return;
            }
            _ => {
                let wide = if op.has("128") {
                    4
                } else if op.has("64") || op.opcode.starts_with('D') {
                    2
                } else {
                    1
                };
                let stores = ["STG", "STS", "ST", "STL", "RED", "BAR"].contains(&op.opcode.as_str());
                for high in 0..if stores { 0 } else { wide } {
                    self.set(to.as_ref(), high, None, surely);
                }
                for place in op.operands.iter().take(leading).chain(&carries) {
                    self.set_predicate(Some(place), None, surely);
                }
                return;
            }
        }
        for (high, value) in set.into_iter().enumerate() {
            if let Some(value) = value {
                self.set(to.as_ref(), high, value, surely);
            }
        }
        for (at, place) in carries.iter().enumerate() {
            self.set_predicate(Some(place), outs.get(at).copied().flatten(), surely);
        }
    }

    fn special(&self, text: &str) -> Option<u32> {
        let name = text.rsplit([' ', ',']).next()?;
        let axis = |name: &str| ["X", "Y", "Z"].iter().position(|a| name.ends_with(a));
        match () {
            () if name.starts_with("SR_TID") => Some(self.thread[axis(name)?]),
            () if name.starts_with("SR_CTAID") => Some(self.block[axis(name)?]),
            () if name == "SR_LANEID" => Some(self.lane),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str, launch: Launch) -> BTreeMap<String, f64> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let text: String = lines
            .map(
                |line| if line.ends_with(':') { format!("{line}\n") } else { format!("/*0000*/ {line} ; /* 0x0 */\n") },
            )
            .collect();
        issued(&Listing::read(&text), launch, 8).unwrap()
    }

    /// Three blocks of two warps, each warp five times through a loop; of the lanes the last goes on once more.
    #[test]
    fn a_warp_goes_through_a_loop_as_often_as_its_busiest_lane() {
        let text = "
            S2R R0, SR_TID.X
            LOP3.LUT R0, R0, 0x1f, RZ, 0xc0, !PT
            ISETP.EQ.AND P1, PT, R0, 0x1f, PT
            SEL R2, 0x6, 0x5, P1
            MOV R1, RZ
            .L_x_0:
            IADD3 R1, R1, 0x1, RZ
            ISETP.NE.AND P0, PT, R1, R2, PT
            @P0 BRA `(.L_x_0)
            EXIT";
        let found = counted(text, Launch { grid: [3, 1, 1], block: [64, 1, 1] });
        assert_eq!((found["IADD3"], found["BRA"], found["EXIT"]), (36.0, 36.0, 6.0), "{found:?}");
    }

    /// What memory decides: a slow case behind a call is not taken, other ways both are.
    #[test]
    fn slow_cases_are_not_taken_and_unknown_ways_both_are() {
        let text = "
            LDG.E R2, [R4.64]
            FSETP.GT.AND P0, PT, R2, RZ, PT
            @P0 BRA `(.L_x_1)
            MUFU.RCP R3, R2
            BRA `(.L_x_2)
            .L_x_1:
            CALL.REL.NOINC `(.L_x_2)
            .L_x_2:
            @P0 BRA `(.L_x_3)
            FADD R3, R3, R3
            BRA `(.L_x_4)
            .L_x_3:
            FMUL R3, R3, R3
            .L_x_4:
            EXIT";
        let found = counted(text, Launch { grid: [1, 1, 1], block: [32, 1, 1] });
        assert!(!found.contains_key("CALL.REL.NOINC"), "{found:?}");
        assert_eq!((found["MUFU.RCP"], found["FADD"], found["FMUL"]), (1.0, 1.0, 1.0), "{found:?}");
    }
}
