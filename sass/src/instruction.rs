//! An instruction of machine code as the issue stage sees it: which unit takes it for how long, which registers it reads.
use crate::{opcode, Control, Line, Unknown};

/// A unit of a multiprocessor. Which opcodes it takes: NVIDIA's Nsight Compute documentation, "Pipelines".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Multiply-adds in single precision.
    Fma,
    /// Integer multiply-adds, on that half of the multiply-add lanes that has them.
    IntegerFma,
    /// Pairs of multiply-adds in half precision.
    Half,
    /// Integers, comparisons, logic, moves.
    Alu,
    /// Double precision.
    Fp64,
    /// Transcendental functions and conversions.
    Special,
    /// Tensor cores.
    Tensor(Matrix),
    /// Tensor cores of all partitions for a warpgroup, beside its warps' other instructions (`wgmma`).
    Warpgroup(Matrix),
    /// Load/store units, shared by the partitions.
    Memory(Access),
    /// Takes an issue slot and nothing else that is modelled.
    Issue,
}

/// A matrix instruction of a warp; of a warpgroup a warp's quarter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Multiply-adds, times two.
    pub flop: u32,
    /// Bytes that a warpgroup's instruction reads of shared memory.
    pub bytes: u32,
    /// Types of operands and sums.
    pub types: [satune_ir::DType; 2],
}

/// An access of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To shared memory, bytes per lane.
    Shared { bytes: u32 },
    /// Of `ldmatrix` and `stmatrix`: 8x8 matrices, a wavefront each.
    Matrices(u32),
    /// To global memory, bytes per lane.
    Global { bytes: u32 },
    /// From global to shared memory without a register (`cp.async`), bytes per lane.
    Copy { bytes: u32 },
    /// Lanes exchange registers; one wavefront.
    Shuffle,
    /// A constant by an index, or an mbarrier; one wavefront.
    Word,
}

impl Unit {
    /// Multiply-adds of a warp's instruction, times two, where it is one of those.
    pub fn flop(self) -> f64 {
        match self {
            Unit::Half => 128.0,
            Unit::Tensor(matrix) | Unit::Warpgroup(matrix) => f64::from(matrix.flop),
            _ => 64.0,
        }
    }

    /// Wavefronts of shared memory, 128 bytes each, that the bytes of an access need.
    pub fn wavefronts(self) -> f64 {
        match self {
            Unit::Memory(Access::Shared { bytes } | Access::Copy { bytes }) => (f64::from(bytes) / 4.0).max(1.0),
            Unit::Memory(Access::Matrices(count)) => f64::from(count),
            _ => 0.0,
        }
    }
}

/// What else an instruction does to its warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// Waits for all warps of the block.
    Barrier,
    /// Holds its scoreboard until the copies before it are done.
    CopiesDone,
    /// Waits until so many holders of a scoreboard are left at most.
    WaitFor { board: u8, left: usize },
    /// Ends a group of a warpgroup's matrix instructions.
    EndsGroup,
    /// Waits until so many such groups are left at most.
    WaitForGroups(usize),
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub control: Control,
    pub unit: Unit,
    pub effect: Effect,
    /// Registers of 32-bit operands of the multiply-add and integer units, by slot.
    pub reads: [Option<u8>; 3],
}

const FMA: &[&str] = &["FFMA", "FADD", "FMUL", "FFMA32I", "FADD32I", "FMUL32I"];
const INTEGER_FMA: &[&str] = &["IMAD", "IMUL", "IMAD32I", "IDP", "IDP4A"];
const HALF: &[&str] = &["HFMA2", "HADD2", "HMUL2", "HFMA2_32I", "HADD2_32I", "HMUL2_32I"];
const FP64: &[&str] = &["DFMA", "DADD", "DMUL", "DSETP", "DMNMX"];
const SPECIAL: &[&str] = &["MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV", "I2I"];
#[rustfmt::skip]
const ALU: &[&str] = &[
    "IADD3", "IADD", "VIADD", "LOP3", "LOP", "LOP32I", "IADD32I", "SHF", "SHL", "SHR", "LEA", "ISETP", "FSETP", "SEL", "FSEL",
    "FMNMX", "IMNMX", "VIMNMX", "VIADDMNMX", "PRMT", "MOV", "MOV32I", "IABS", "BMSK", "SGXT", "PLOP3", "PSETP", "P2R", "R2P", "FSET",
    "ISET", "VOTE", "FCHK", "F2FP", "I2FP", "I2IP", "HSETP2", "HSET2", "HMNMX2", "CS2R", "VABSDIFF",
];
/// Uniform registers, control flow, and what reads special registers: an issue slot each.
#[rustfmt::skip]
const ISSUE: &[&str] = &[
    "UIADD3", "UMOV", "ULDC", "ULOP3", "USHF", "ULEA", "UISETP", "UIMAD", "USEL", "UPRMT", "UPLOP3", "UP2UR", "UR2UP", "USGXT", "UBMSK",
    "VOTEU", "UFLO", "UPOPC", "UBREV", "UFSETP", "R2UR", "S2R", "S2UR", "NOP", "BSSY", "BSYNC", "WARPSYNC", "BRA", "CALL", "EXIT", "BREAK",
];

impl Step {
    /// Of an instruction as it stands in a loop.
    pub fn of(line: &Line) -> Result<Step, Unknown> {
        let control = Control::of(line.word);
        // What is predicated off takes its slot, and neither a unit nor a scoreboard.
        if ["@!PT ", "@!UPT "].iter().any(|never| line.text.starts_with(never)) {
            let control = Control { write: None, read: None, ..control };
            return Ok(Step { control, unit: Unit::Issue, effect: Effect::None, reads: [None; 3] });
        }
        let (unit, effect) = unit(line)?;
        let narrow = matches!(unit, Unit::Fma | Unit::IntegerFma | Unit::Half | Unit::Alu);
        let reads = if narrow { sources(&line.text) } else { [None; 3] };
        Ok(Step { control, unit, effect, reads })
    }
}

/// The instruction without its predicate.
fn unpredicated(text: &str) -> &str {
    match text.strip_prefix('@') {
        Some(rest) => rest.split_once(' ').map_or("", |(_, rest)| rest).trim_start(),
        None => text,
    }
}

fn unit(line: &Line) -> Result<(Unit, Effect), Unknown> {
    let text = unpredicated(&line.text);
    let unknown = || Unknown::Instruction(text.to_string());
    let (name, modifiers) =
        text.split_whitespace().next().unwrap_or_default().split_once('.').unwrap_or((opcode(text), ""));
    let has = |what: &str| modifiers.split('.').any(|m| m == what);
    let bytes = || match () {
        () if has("128") => 16,
        () if has("64") => 8,
        () if has("U16") || has("S16") => 2,
        () if has("U8") || has("S8") => 1,
        () => 4,
    };
    let unit = match name {
        _ if FMA.contains(&name) => Unit::Fma,
        _ if INTEGER_FMA.contains(&name) => Unit::IntegerFma,
        _ if HALF.contains(&name) => Unit::Half,
        _ if FP64.contains(&name) => Unit::Fp64,
        _ if SPECIAL.contains(&name) => Unit::Special,
        _ if ALU.contains(&name) => Unit::Alu,
        "HMMA" | "IMMA" | "QMMA" | "DMMA" => Unit::Tensor(matrix(name, modifiers).ok_or_else(unknown)?),
        "LDS" | "STS" => Unit::Memory(Access::Shared { bytes: bytes() }),
        "LDSM" | "STSM" => Unit::Memory(Access::Matrices(if has("4") {
            4
        } else if has("2") {
            2
        } else {
            1
        })),
        "LDG" | "STG" => Unit::Memory(Access::Global { bytes: bytes() }),
        "LDGSTS" => Unit::Memory(Access::Copy { bytes: bytes() }),
        "SHFL" => Unit::Memory(Access::Shuffle),
        "LDC" => Unit::Memory(Access::Word),
        // A wait finds what it waits for: who fills the buffers is in time.
        "SYNCS" if has("TRYWAIT") || has("ARRIVE") => Unit::Memory(Access::Word),
        "HGMMA" | "QGMMA" | "IGMMA" => {
            let matrix = warpgroup(name, modifiers, text).ok_or_else(unknown)?;
            let ends = text.ends_with("gsb0");
            return Ok((Unit::Warpgroup(matrix), if ends { Effect::EndsGroup } else { Effect::None }));
        }
        "WARPGROUP" if has("ARRIVE") => Unit::Issue,
        "WARPGROUP" if has("DEPBAR") && has("LE") && text.contains("gsb0,") => {
            let left = text.rsplit("0x").next().and_then(|left| usize::from_str_radix(left.trim(), 16).ok());
            return Ok((Unit::Issue, Effect::WaitForGroups(left.ok_or_else(unknown)?)));
        }
        // A barrier of the whole block names neither a register nor a count.
        "BAR" if has("SYNC") && !text.contains(',') && !text.contains('R') => {
            return Ok((Unit::Issue, Effect::Barrier));
        }
        "BAR" if has("SYNC") && text.split_whitespace().nth(1) == Some("0x0") => {
            return Ok((Unit::Issue, Effect::Barrier));
        }
        "LDGDEPBAR" => return Ok((Unit::Issue, Effect::CopiesDone)),
        "DEPBAR" if has("LE") => {
            let mut operands = text.split_once(' ').map_or("", |(_, o)| o).split(',').map(str::trim);
            let board = operands.next().and_then(|o| o.strip_prefix("SB")?.parse().ok()).ok_or_else(unknown)?;
            let left = operands.next().and_then(|o| usize::from_str_radix(o.strip_prefix("0x")?, 16).ok());
            return Ok((Unit::Issue, Effect::WaitFor { board, left: left.ok_or_else(unknown)? }));
        }
        _ if ISSUE.contains(&name) => Unit::Issue,
        _ => return Err(unknown()),
    };
    Ok((unit, Effect::None))
}

/// A matrix instruction: its shape is the first modifier, digits of m, n and k without what parts them. Sparse operands have rates
/// that a descriptor does not name.
fn matrix(name: &str, modifiers: &str) -> Option<Matrix> {
    use satune_ir::DType;
    let parts: Vec<&str> = modifiers.split('.').collect();
    let (m, n, k) = match *parts.first()? {
        "16816" => (16, 8, 16),
        "1688" => (16, 8, 8),
        "1684" => (16, 8, 4),
        "16832" => (16, 8, 32),
        "8816" => (8, 8, 16),
        "884" if name == "DMMA" => (8, 8, 4),
        // A quarter of four 8x8x4 products.
        "884" => (8, 8, 4),
        _ => return None,
    };
    let operand = match name {
        "IMMA" => DType::I8,
        "QMMA" => DType::F8E4M3,
        "DMMA" => return None,
        _ if parts.contains(&"TF32") => DType::F32,
        _ if parts.contains(&"BF16") => DType::BF16,
        _ => DType::F16,
    };
    let known = !parts.iter().any(|p| p.contains("SP") || p.contains("S4") || p.contains("U4"));
    let types = [operand, sums(operand, &parts)?];
    known.then_some(Matrix { flop: 2 * m * n * k, bytes: 0, types })
}

/// The type of sums, where it is said and a rate is known.
fn sums(operand: satune_ir::DType, parts: &[&str]) -> Option<satune_ir::DType> {
    use satune_ir::DType;
    match operand {
        DType::I8 => Some(DType::I32),
        _ if parts.contains(&"F32") => Some(DType::F32),
        DType::F16 if parts.contains(&"F16") => Some(DType::F16),
        _ => None,
    }
}

/// A warpgroup's matrix instruction, `HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24`: A is in shared memory, too, unless a register
/// stands before the descriptor.
fn warpgroup(name: &str, modifiers: &str, text: &str) -> Option<Matrix> {
    use satune_ir::DType;
    let parts: Vec<&str> = modifiers.split('.').collect();
    let mut shape = parts.first()?.split('x').map(|extent| extent.parse::<u32>().ok());
    let (m, n, k) = (shape.next()??, shape.next()??, shape.next()??);
    let (operand, bytes) = match name {
        "IGMMA" => (DType::I8, 1),
        "QGMMA" => (DType::F8E4M3, 1),
        _ if parts.contains(&"TF32") => (DType::F32, 4),
        _ if parts.contains(&"BF16") => (DType::BF16, 2),
        _ => (DType::F16, 2),
    };
    let from_shared = text.split(',').nth(1).is_some_and(|second| second.trim().starts_with("gdesc"));
    let rows = if from_shared { m } else { 0 };
    let types = [operand, sums(operand, &parts)?];
    (!parts.contains(&"SP")).then_some(Matrix { flop: 2 * m * n * k / 4, bytes: (rows + n) * k * bytes, types })
}

/// The registers of an instruction's sources by slot: `FFMA R0, R1, R2, R3` reads R1, R2 and R3. An operation on one source has
/// it in the second slot, as the reuse bits say.
fn sources(text: &str) -> [Option<u8>; 3] {
    let text = unpredicated(text);
    let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
    let is_predicate = |o: &str| {
        let o = o.trim_start_matches('!');
        o.starts_with('P') || o.starts_with("UP")
    };
    let operands: Vec<&str> = operands.split(',').map(str::trim).filter(|o| !is_predicate(o)).collect();
    let compares = ["ISETP", "FSETP", "HSETP2", "PLOP3", "PSETP", "R2P"].contains(&opcode(name));
    let sources = if compares { &operands[..] } else { operands.get(1..).unwrap_or_default() };
    let mut reads = [None; 3];
    let from = usize::from(sources.len() == 1);
    for (slot, source) in reads[from..].iter_mut().zip(sources) {
        *slot = register(source);
    }
    reads
}

/// The number of a general register: `-R12.reuse`, `|R3|`; none of RZ, constants and uniform registers.
fn register(operand: &str) -> Option<u8> {
    let name = operand.trim_start_matches(['-', '~', '|', '!']);
    let digits = name.strip_prefix('R')?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(text: &str) -> Result<Step, Unknown> {
        Step::of(&Line { text: text.into(), word: 7 << 110 | 7 << 113 })
    }

    #[test]
    fn sources_have_their_slots() {
        let reads = |text: &str| step(text).unwrap().reads;
        assert_eq!(reads("FFMA R5, R6, R0.reuse, c[0x0][0x16c]"), [Some(6), Some(0), None]);
        assert_eq!(reads("@P0 FFMA R5, -R6, |R7|, R12"), [Some(6), Some(7), Some(12)]);
        assert_eq!(reads("MOV R17, R5.reuse"), [None, Some(5), None]);
        assert_eq!(reads("IMAD.MOV.U32 R18, RZ, RZ, R6.reuse"), [None, None, Some(6)]);
        assert_eq!(reads("ISETP.GE.AND P0, PT, R4, c[0x0][0x170], PT"), [Some(4), None, None]);
        assert_eq!(reads("IADD3 R2, P0, R4, UR5, RZ"), [Some(4), None, None]);
    }

    #[test]
    fn units_and_effects_are_read() {
        let of = |text: &str| step(text).map(|s| (s.unit, s.effect));
        let access = |a| Ok((Unit::Memory(a), Effect::None));
        assert_eq!(of("LDS.U.128 R4, [R43]"), access(Access::Shared { bytes: 16 }));
        assert_eq!(of("LDSM.16.M88.4 R4, [R43]"), access(Access::Matrices(4)));
        assert_eq!(of("LDGSTS.E.BYPASS.128 [R1], [R2.64]"), access(Access::Copy { bytes: 16 }));
        assert_eq!(of("BAR.SYNC.DEFER_BLOCKING 0x0"), Ok((Unit::Issue, Effect::Barrier)));
        assert!(of("BAR.SYNC.DEFER_BLOCKING 0x1, 0x80").is_err());
        assert!(of("BAR.SYNC.DEFER_BLOCKING R3, 0x80").is_err());
        assert_eq!(of("DEPBAR.LE SB0, 0x2"), Ok((Unit::Issue, Effect::WaitFor { board: 0, left: 2 })));
        assert_eq!(of("@!PT LDS RZ, [RZ]"), Ok((Unit::Issue, Effect::None)));
        use satune_ir::DType::{BF16, F16, F32, F8E4M3, I32, I8};
        let matrix = |flop, types| Ok((Unit::Tensor(Matrix { flop, bytes: 0, types }), Effect::None));
        assert_eq!(of("HMMA.16816.F32.BF16 R8, R4, R2, R8"), matrix(4096, [BF16, F32]));
        assert_eq!(of("HMMA.16816.F16 R8, R4, R2, R8"), matrix(4096, [F16, F16]));
        assert_eq!(of("IMMA.16832.S8.S8 R8, R4.ROW, R2.COL, R8"), matrix(8192, [I8, I32]));
        assert_eq!(of("QMMA.16832.F32.E4M3.E4M3 R8, R4, R2, R8"), matrix(8192, [F8E4M3, F32]));
        assert!(of("QMMA.16832.F16.E4M3.E4M3 R8, R4, R2, R8").is_err());
        let group = |bytes, effect| {
            let matrix = Matrix { flop: 2 * 16 * 256 * 16, bytes, types: [BF16, F32] };
            Ok((Unit::Warpgroup(matrix), effect))
        };
        let (a, b) = (64 * 16 * 2, 256 * 16 * 2);
        assert_eq!(of("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4].tnspB, R24"), group(a + b, Effect::None));
        assert_eq!(of("HGMMA.64x256x16.F32.BF16 R24, R4, gdesc[UR4], R24, gsb0"), group(b, Effect::EndsGroup));
        assert_eq!(of("WARPGROUP.DEPBAR.LE gsb0, 0x1"), Ok((Unit::Issue, Effect::WaitForGroups(1))));
        assert_eq!(of("@!P0 SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [R6+URZ], RZ"), access(Access::Word));
        assert!(matches!(of("ATOMG.E.ADD R1, [R2], R3"), Err(Unknown::Instruction(text)) if text.starts_with("ATOMG")));
    }
}
