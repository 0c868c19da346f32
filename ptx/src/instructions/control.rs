//! Branches, ends, traps, calls of what has no body.
use crate::fault::FaultKind;
use crate::program::{Decoder, Flow, Operation, Unsupported};
use crate::syntax::{Instruction, Operand};

/// See [`super::Family`].
pub fn decode(i: &Instruction, d: &Decoder<'_>) -> Option<Result<Operation, Unsupported>> {
    Some(match i.opcode.as_str() {
        "bra" => match i.operands.as_slice() {
            [Operand::Label(target)] => {
                let target = *target;
                Ok(Box::new(move |c| Ok(Flow::Branch { taken: c.mask, target })))
            }
            _ => Err("a label expected".into()),
        },
        "ret" | "exit" => Ok(Box::new(|_| Ok(Flow::Exit))),
        "trap" => Ok(Box::new(|c| c.refuse(FaultKind::Trap("the program traps".into())))),
        "brkpt" | "pmevent" | "nanosleep" => Ok(Box::new(|_| Ok(Flow::Next))),
        "call" => call(i, d),
        _ => return None,
    })
}

fn call(i: &Instruction, d: &Decoder<'_>) -> Result<Operation, Unsupported> {
    let name = i.operands.iter().find_map(|o| match o {
        Operand::Function(name) => Some(name.as_str()),
        _ => None,
    });
    match name {
        // Its output is not shown. The result, a number of arguments, is 0.
        Some("vprintf") => {
            let result = match i.operands.first() {
                Some(Operand::List(list)) => match list.first() {
                    Some(symbol @ Operand::Symbol(..)) => Some(d.value(symbol)?),
                    _ => None,
                },
                _ => None,
            };
            Ok(Box::new(move |c| {
                if let Some(result) = result {
                    let at = c.read(result);
                    for lane in crate::machine::lanes(c.mask) {
                        c.store(crate::syntax::Space::Local, lane, at[lane], &[0; 4], false)?;
                    }
                }
                Ok(Flow::Next)
            }))
        }
        Some("__assertfail" | "__assert_fail") => {
            Ok(Box::new(|c| c.refuse(FaultKind::Trap("an assertion of the program fails".into()))))
        }
        Some(other) => Err(format!("`{other}` has no body")),
        None => Err("a function's name expected".into()),
    }
}
