//! What the hot loop of a compiled kernel is made of, read off its disassembly.
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Instructions of a loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// All of them.
    pub instructions: u32,
    /// FFMA, HMMA and their like.
    pub math: u32,
    /// math / instructions.
    pub share: f64,
    /// By opcode.
    pub by_opcode: BTreeMap<String, u32>,
}

/// Opcodes that do the arithmetic of a contraction.
const MATH: &[&str] =
    &["FFMA", "FFMA2", "DFMA", "HFMA2", "HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "DMMA", "IMAD", "IDP"];

/// The mix of the loop where a kernel spends its time: see `hot_loop`. `None` where there is no disassembler, or no
/// loop with arithmetic.
pub fn hot_loop_mix(cubin: &[u8]) -> Option<Mix> {
    let tool = super::libraries::nvdisasm()?;
    let mut file = tempfile::NamedTempFile::new().ok()?;
    std::io::Write::write_all(&mut file, cubin).ok()?;
    let output = std::process::Command::new(tool).arg("-c").arg(file.path()).output().ok()?;
    hot_loop(&String::from_utf8_lossy(&output.stdout))
}

/// Among the ranges of backward branches: the one with the most arithmetic, and within it, as long as an inner one has
/// at least half of the arithmetic, that inner one.
fn hot_loop(text: &str) -> Option<Mix> {
    let code = Code::read(text);
    // Integer multiplications count only where a kernel has no others.
    let floats = code.instructions.iter().any(|i| is_float_math(opcode(i)));
    let is_math = |i: &&&str| if floats { is_float_math(opcode(i)) } else { MATH.contains(&opcode(i)) };
    let mut loops: Vec<(usize, &[&str])> =
        code.loops().map(|body| (body.iter().filter(is_math).count(), body)).filter(|(math, _)| *math > 0).collect();
    // From the largest to the smallest: every loop comes after those that contain it.
    loops.sort_by_key(|(math, body)| std::cmp::Reverse((*math, body.len())));
    let (mut math, mut body) = *loops.first()?;
    for (inner_math, inner) in loops {
        let contained = body.as_ptr_range().contains(&inner.as_ptr()) && inner.len() < body.len();
        if contained && 2 * inner_math >= math {
            (math, body) = (inner_math, inner);
        }
    }
    let mut by_opcode = BTreeMap::new();
    for instruction in body {
        *by_opcode.entry(opcode(instruction).to_string()).or_insert(0) += 1;
    }
    let instructions = body.len() as u32;
    Some(Mix { instructions, math: math as u32, share: math as f64 / f64::from(instructions), by_opcode })
}

fn is_float_math(opcode: &str) -> bool {
    MATH.contains(&opcode) && !matches!(opcode, "IMAD" | "IDP")
}

/// Instructions in order, and where the labels among them are.
struct Code<'t> {
    instructions: Vec<&'t str>,
    labels: HashMap<&'t str, usize>,
}

impl<'t> Code<'t> {
    fn read(text: &'t str) -> Code<'t> {
        let mut code = Code { instructions: Vec::new(), labels: HashMap::new() };
        for line in text.lines().map(str::trim) {
            if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L_")) {
                code.labels.insert(label, code.instructions.len());
            } else if let Some((_, rest)) = line.strip_prefix("/*").and_then(|l| l.split_once("*/")) {
                if let Some((instruction, _)) = rest.split_once(';') {
                    code.instructions.push(instruction.trim());
                }
            }
        }
        code
    }

    /// The ranges of backward branches.
    fn loops(&self) -> impl Iterator<Item = &[&'t str]> {
        self.instructions.iter().enumerate().filter(|(_, i)| opcode(i) == "BRA").filter_map(|(end, instruction)| {
            let target = instruction.split('`').nth(1)?.trim_start_matches('(').split(')').next()?;
            let start = *self.labels.get(target)?;
            // A branch back from code that was moved behind the end, as waits are, closes no loop.
            self.instructions.get(start..=end).filter(|body| !body.iter().any(|i| opcode(i) == "EXIT"))
        })
    }
}

/// The opcode of an instruction, without predicate and modifiers.
fn opcode(instruction: &str) -> &str {
    let mut words = instruction.split_whitespace();
    let first = words.next().unwrap_or("");
    let word = if first.starts_with('@') { words.next().unwrap_or("") } else { first };
    word.split('.').next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inner_loop_with_most_of_the_arithmetic_is_hotter_than_the_one_around_it() {
        let text = "
.L_x_2:
        /*0000*/                   FFMA R1, R2, R3, R1 ;
.L_x_0:
        /*0010*/                   FFMA R1, R2, R3, R1 ;
        /*0020*/                   FFMA R1, R2, R3, R1 ;
        /*0030*/              @!P0 BRA.U UP0, `(.L_x_0) ;
        /*0040*/                   IMAD R1, R2, R3, R1 ;
        /*0050*/               @P0 BRA `(.L_x_2) ;";
        let mix = hot_loop(text).unwrap();
        assert_eq!((mix.instructions, mix.math), (3, 2));
    }

    #[test]
    fn a_wait_behind_the_end_closes_no_loop() {
        let text = "
.L_x_0:
        /*0000*/                   HGMMA.64x8x16.F32 R24, gdesc[UR4], R24 ;
        /*0010*/               @P0 BRA `(.L_x_2) ;
.L_x_1:
        /*0020*/                   HGMMA.64x8x16.F32 R24, gdesc[UR4], R24 ;
        /*0030*/              @!P0 BRA `(.L_x_0) ;
        /*0040*/                   EXIT ;
.L_x_2:
        /*0050*/                   BRA `(.L_x_1) ;";
        let mix = hot_loop(text).unwrap();
        assert_eq!((mix.instructions, mix.math), (4, 2));
    }

    #[test]
    fn the_loop_with_the_arithmetic_is_found() {
        let text = "
.L_x_0:
        /*0010*/                   FFMA R1, R2, R3, R1 ;  /* 0x1 */
        /*0020*/                   LDS.128 R4, [R5] ;
        /*0030*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0040*/                   BRA `(.L_x_1) ;";
        let mix = hot_loop(text).unwrap();
        assert_eq!((mix.instructions, mix.math), (3, 1));
        assert_eq!(mix.by_opcode["LDS"], 1);
    }
}
