//! What the hot loop of a compiled kernel is made of, read off its disassembly.
use satune_sass::{opcode, Listing};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

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

impl Mix {
    /// The mix of the loop where a kernel spends its time: see [`Listing::hot_loop`]. `None` where no loop has arithmetic.
    pub fn of(listing: &Listing) -> Option<Mix> {
        let range = listing.hot_loop()?;
        let math = listing.math(range.clone());
        let body = &listing.lines[range];
        let mut by_opcode = BTreeMap::new();
        for line in body {
            *by_opcode.entry(opcode(&line.text).to_string()).or_insert(0) += 1;
        }
        let instructions = body.len() as u32;
        Some(Mix { instructions, math: math as u32, share: math as f64 / f64::from(instructions), by_opcode })
    }
}

/// Disassembles machine code. `None` where there is no disassembler.
pub fn disassemble(cubin: &[u8]) -> Option<Listing> {
    let tool = super::libraries::nvdisasm()?;
    let mut file = tempfile::NamedTempFile::new().ok()?;
    std::io::Write::write_all(&mut file, &known(cubin)).ok()?;
    let output = std::process::Command::new(tool).args(["-c", "-hex"]).arg(file.path()).output().ok()?;
    Some(Listing::read(&String::from_utf8_lossy(&output.stdout)))
}

/// The code under a name that every disassembler knows. That of CUDA 13 knows sm_70 and sm_72 no more, whose instructions sm_75
/// has all, in the same words; an ELF file says in its flags for which of them it is, and for which virtual one.
fn known(cubin: &[u8]) -> Cow<'_, [u8]> {
    const FLAGS: usize = 48;
    match cubin.get(FLAGS) {
        Some(70 | 72) => {
            let mut renamed = cubin.to_vec();
            for at in [FLAGS, FLAGS + 2] {
                if let Some(flag) = renamed.get_mut(at).filter(|flag| matches!(**flag, 70 | 72)) {
                    *flag = 75;
                }
            }
            Cow::Owned(renamed)
        }
        _ => Cow::Borrowed(cubin),
    }
}

/// [`Mix::of`] machine code; `None` also where there is no disassembler.
pub fn hot_loop_mix(cubin: &[u8]) -> Option<Mix> {
    Mix::of(&disassemble(cubin)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot_loop(text: &str) -> Option<Mix> {
        Mix::of(&Listing::read(text))
    }

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
