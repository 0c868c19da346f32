//! The control bits that ptxas leaves in each instruction: when the warp may go on, and what it waits for.
//!
//! From sm_70 on an instruction is one word of 128 bits, and bits 105 to 125 are the scheduler's. Source of the fields: Jia et
//! al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), section 2; what they do in the issue
//! stage: Huerta et al., "Analyzing Modern NVIDIA GPU cores" (2025), section 4.

/// Counters of a warp that instructions of variable latency raise, and others wait for.
pub const SCOREBOARDS: usize = 6;

/// The control bits of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Clocks until the warp may issue its next instruction.
    pub stall: u8,
    /// Whether another warp goes first in the next clock. The bit is inverted in the word.
    pub yields: bool,
    /// Scoreboard that is held until the result is written.
    pub write: Option<u8>,
    /// Scoreboard that is held until the operands are read.
    pub read: Option<u8>,
    /// Scoreboards that must be clear, one bit each.
    pub wait: u8,
    /// Operands that stay in the reuse cache: bit 0 the first source.
    pub reuse: u8,
}

impl Control {
    /// Of an instruction's word, sm_70 and later.
    pub fn of(word: u128) -> Control {
        let field = |from: u32, bits: u32| (word >> from & ((1 << bits) - 1)) as u8;
        let board = |from: u32| Some(field(from, 3)).filter(|b| usize::from(*b) < SCOREBOARDS);
        Control {
            stall: field(105, 4),
            yields: field(109, 1) == 0,
            write: board(110),
            read: board(113),
            wait: field(116, 6),
            reuse: field(122, 4),
        }
    }

    /// Clocks from this instruction to the warp's next one at least.
    pub fn clocks(&self) -> u64 {
        u64::from(self.stall).max(if self.yields { 2 } else { 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_bits() {
        let word = |stall: u128, busy: u128, write: u128, read: u128, wait: u128, reuse: u128| {
            stall << 105 | busy << 109 | write << 110 | read << 113 | wait << 116 | reuse << 122
        };
        let all = Control::of(word(11, 1, 2, 5, 0b10_0001, 0b101));
        let expected = Control { stall: 11, yields: false, write: Some(2), read: Some(5), wait: 33, reuse: 5 };
        assert_eq!(all, expected);
        // 7 is none, and the bits below and above are none of these fields.
        let none = Control::of(word(1, 0, 7, 7, 0, 0) | ((1 << 105) - 1) | 3 << 126);
        let expected = Control { stall: 1, yields: true, write: None, read: None, wait: 0, reuse: 0 };
        assert_eq!((none, none.clocks()), (expected, 2));
    }
}
