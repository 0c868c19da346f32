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

/// The loop with the most multiply-adds among those that no larger count contains: the range of a backward branch.
/// `None` where there is no disassembler, or no loop with arithmetic.
pub fn hot_loop_mix(cubin: &[u8]) -> Option<Mix> {
    let tool = super::libraries::nvdisasm()?;
    let mut file = tempfile::NamedTempFile::new().ok()?;
    std::io::Write::write_all(&mut file, cubin).ok()?;
    let output = std::process::Command::new(tool).arg("-c").arg(file.path()).output().ok()?;
    hot_loop(&String::from_utf8_lossy(&output.stdout))
}

fn hot_loop(text: &str) -> Option<Mix> {
    let mut labels: HashMap<&str, usize> = HashMap::new();
    let mut code: Vec<&str> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L_")) {
            labels.insert(label, code.len());
        } else if let Some((_, rest)) = line.strip_prefix("/*").and_then(|l| l.split_once("*/")) {
            if let Some((instruction, _)) = rest.split_once(';') {
                code.push(instruction.trim());
            }
        }
    }
    let is_math = |i: &&&str| ["FFMA", "DFMA", "HMMA", "HGMMA", "IMMA"].contains(&opcode(i));
    let mut best: Option<(usize, &[&str])> = None;
    for (end, instruction) in code.iter().enumerate() {
        let Some(target) = instruction.split('`').nth(1).and_then(|t| t.trim_matches(['(', ')']).split(')').next())
        else {
            continue;
        };
        let Some(start) = labels.get(target).filter(|s| **s <= end && opcode(instruction) == "BRA") else { continue };
        let body = &code[*start..=end];
        let math = body.iter().filter(is_math).count();
        // A longer loop is hotter only if it has more arithmetic of its own, not for containing the other.
        if math > 0 && best.is_none_or(|(m, b)| math > m || (math == m && body.len() < b.len())) {
            best = Some((math, body));
        }
    }
    let (math, body) = best?;
    let mut by_opcode = BTreeMap::new();
    for instruction in body {
        *by_opcode.entry(opcode(instruction).to_string()).or_insert(0) += 1;
    }
    let instructions = body.len() as u32;
    Some(Mix { instructions, math: math as u32, share: math as f64 / f64::from(instructions), by_opcode })
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
