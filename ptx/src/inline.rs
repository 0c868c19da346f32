//! Calls of device functions are replaced by their bodies.
use crate::fault::Site;
use crate::program::ProgramError;
use crate::syntax::*;

/// Most instructions of a kernel with all that it calls.
const MOST: usize = 400_000;

/// The kernel with everything it calls in place.
///
/// # Errors
/// Recursion, or too large.
pub fn inlined(module: &Module, entry: &Function) -> Result<Function, ProgramError> {
    let mut out = Function { registers: Vec::new(), variables: Vec::new(), body: Some(Vec::new()), ..entry.clone() };
    let parameters: Vec<Symbol> = (0..entry.parameters.len() as u32).map(Symbol::Parameter).collect();
    let mut stack = vec![entry.name.clone()];
    copy(module, entry, &parameters, &mut out, &mut stack)?;
    Ok(out)
}

fn copy(
    module: &Module,
    from: &Function,
    parameters: &[Symbol],
    out: &mut Function,
    stack: &mut Vec<String>,
) -> Result<(), ProgramError> {
    let (registers, variables) = (out.registers.len() as u32, out.variables.len() as u32);
    out.registers.extend(from.registers.iter().cloned());
    out.variables.extend(from.variables.iter().cloned());
    let body = from.body.as_deref().unwrap_or_default();
    let renamed = Renamed { registers, variables, parameters };
    // New numbers of the old instructions; instructions whose labels are still old ones.
    let mut numbers = Vec::with_capacity(body.len() + 1);
    let mut own = Vec::new();
    let mut to_end = Vec::new();
    for instruction in body {
        let at = out.body.as_ref().map_or(0, Vec::len);
        numbers.push(at as u32);
        let mut new = instruction.clone();
        new.guard = new.guard.map(|(r, n)| (renamed.register(r), n));
        new.operands = new.operands.iter().map(|o| renamed.operand(o)).collect();
        let refuse = |what: String| {
            let site = Site { line: instruction.line, text: instruction.text.to_string() };
            Err(ProgramError::Unsupported { site, what })
        };
        if at > MOST {
            return refuse(format!("more than {MOST} instructions with all that is called"));
        }
        let callee = match new.opcode.as_str() {
            "call" => new.operands.iter().find_map(|o| match o {
                Operand::Function(name) => Some(name.clone()),
                _ => None,
            }),
            _ => None,
        };
        let called = callee.as_ref().and_then(|name| module.function(name)).filter(|f| f.body.is_some());
        if new.opcode == "call" && callee.is_none() {
            return refuse("calls through pointers are not supported".into());
        }
        let push = |out: &mut Function, i: Instruction| out.body.get_or_insert_default().push(i);
        if let Some(function) = called {
            if stack.contains(&function.name) {
                return refuse(format!("`{}` calls itself; recursion is not supported", function.name));
            }
            let mut arguments = Vec::new();
            for operand in &new.operands {
                let Operand::List(list) = operand else { continue };
                for item in list {
                    match item {
                        Operand::Symbol(symbol, 0) => arguments.push(*symbol),
                        _ => return refuse("arguments of calls that are no `.param` variables".into()),
                    }
                }
            }
            if arguments.len() != function.parameters.len() {
                return refuse(format!("`{}` takes other arguments", function.name));
            }
            let around = new.guard.map(|(register, negated)| {
                let skip = Instruction {
                    opcode: "bra".into(),
                    modifiers: vec![],
                    operands: vec![Operand::Label(0)],
                    guard: Some((register, !negated)),
                    ..new.clone()
                };
                push(out, skip);
                at
            });
            stack.push(function.name.clone());
            copy(module, function, &arguments, out, stack)?;
            stack.pop();
            if let Some(at) = around {
                let end = out.body.as_ref().map_or(0, Vec::len) as u32;
                out.body.get_or_insert_default()[at].operands = vec![Operand::Label(end)];
            }
        } else if new.opcode == "ret" && stack.len() > 1 {
            new.opcode = "bra".into();
            new.operands = vec![Operand::Label(0)];
            to_end.push(at);
            push(out, new);
        } else {
            if new.operands.iter().any(|o| matches!(o, Operand::Label(_))) {
                own.push(at);
            }
            push(out, new);
        }
    }
    let list = out.body.get_or_insert_default();
    let end = list.len() as u32;
    numbers.push(end);
    for at in own {
        for operand in &mut list[at].operands {
            if let Operand::Label(old) = operand {
                *old = numbers[*old as usize];
            }
        }
    }
    for at in to_end {
        list[at].operands = vec![Operand::Label(end)];
    }
    if stack.len() == 1 && list.last().is_none_or(|i| i.opcode != "ret" || i.guard.is_some()) {
        // Labels may stand at the end.
        let line = list.last().map(|i| i.line).unwrap_or_default();
        list.push(Instruction {
            opcode: "ret".into(),
            modifiers: vec![],
            operands: vec![],
            guard: None,
            line,
            text: "ret".into(),
        });
    }
    Ok(())
}

struct Renamed<'a> {
    registers: u32,
    variables: u32,
    parameters: &'a [Symbol],
}

impl Renamed<'_> {
    fn register(&self, r: Register) -> Register {
        Register(r.0 + self.registers)
    }

    fn symbol(&self, s: Symbol) -> Symbol {
        match s {
            Symbol::Module(_) => s,
            Symbol::Function(i) => Symbol::Function(i + self.variables),
            Symbol::Parameter(i) => self.parameters[i as usize],
        }
    }

    fn operand(&self, operand: &Operand) -> Operand {
        let list = |l: &[Operand]| l.iter().map(|o| self.operand(o)).collect::<Vec<_>>();
        match operand {
            Operand::Register(r) => Operand::Register(self.register(*r)),
            Operand::Not(r) => Operand::Not(self.register(*r)),
            Operand::Pair(a, b) => Operand::Pair(Box::new(self.operand(a)), Box::new(self.operand(b))),
            Operand::Symbol(s, offset) => Operand::Symbol(self.symbol(*s), *offset),
            Operand::Address { base, offset, more } => Operand::Address {
                base: match base {
                    Base::Register(r) => Base::Register(self.register(*r)),
                    Base::Symbol(s) => Base::Symbol(self.symbol(*s)),
                    Base::Absolute => Base::Absolute,
                },
                offset: *offset,
                more: list(more),
            },
            Operand::Vector(l) => Operand::Vector(list(l)),
            Operand::List(l) => Operand::List(list(l)),
            other => other.clone(),
        }
    }
}
