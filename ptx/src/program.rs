//! From text to what runs: calls are inlined, instructions decoded once, and put in the order in which lanes that went
//! different ways meet again.
use crate::clocks::Agent;
use crate::fault::{Fault, Site};
use crate::instructions;
use crate::machine::Context;
use crate::memory::{GLOBAL_STRIDE, PARAM_WINDOW};
use crate::syntax::*;

/// One register of 32 lanes.
pub type Lanes = [u64; 32];

/// What an instruction does, warp-wide, for the lanes of the context's mask.
pub type Operation = Box<dyn Fn(&mut Context<'_, '_>) -> Result<Flow, Fault> + Send + Sync>;

/// Where it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// At the next instruction.
    Next,
    /// These lanes go to another instruction, the others to the next one.
    Branch {
        /// Lanes.
        taken: u32,
        /// Instruction.
        target: u32,
    },
    /// It could not be done yet and is tried again. See [`Context::token`].
    Wait(Waiting),
    /// The lanes end.
    Exit,
}

/// What a warp waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// In words: "barrier".
    pub on: &'static str,
    /// Which one.
    pub number: u64,
}

/// Why a program cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// No such kernel.
    #[error("there is no kernel `{name}`; the text has {}", if kernels.is_empty() { "none".to_string() } else { kernels.join(", ") })]
    NoKernel {
        /// As asked.
        name: String,
        /// What there is.
        kernels: Vec<String>,
    },
    /// An instruction that is not known.
    #[error("{site}: {what}")]
    Unsupported {
        /// The instruction.
        site: Site,
        /// What about it.
        what: String,
    },
}

/// An operand that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A register's slot.
    Register(u32),
    /// The same in all lanes.
    Constant(u64),
    /// From hardware.
    Special(Hardware),
}

/// Registers that hardware gives; the number is an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Hardware {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Clusterid(u8),
    Nclusterid(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterRank,
    ClusterSize,
    Lane,
    Warp,
    Warps,
    MaskEq,
    MaskLe,
    MaskLt,
    MaskGe,
    MaskGt,
    Clock,
    DynamicShared,
    TotalShared,
    ExplicitCluster,
}

fn hardware(name: &str) -> Option<Hardware> {
    let (stem, axis) = match name.rsplit_once('.') {
        Some((stem, "x")) => (stem, 0),
        Some((stem, "y")) => (stem, 1),
        Some((stem, "z")) => (stem, 2),
        _ => (name, 0),
    };
    Some(match stem {
        "%tid" => Hardware::Tid(axis),
        "%ntid" => Hardware::Ntid(axis),
        "%ctaid" => Hardware::Ctaid(axis),
        "%nctaid" => Hardware::Nctaid(axis),
        "%clusterid" => Hardware::Clusterid(axis),
        "%nclusterid" => Hardware::Nclusterid(axis),
        "%cluster_ctaid" => Hardware::ClusterCtaid(axis),
        "%cluster_nctaid" => Hardware::ClusterNctaid(axis),
        "%cluster_ctarank" => Hardware::ClusterRank,
        "%cluster_nctarank" => Hardware::ClusterSize,
        "%is_explicit_cluster" => Hardware::ExplicitCluster,
        "%laneid" => Hardware::Lane,
        "%warpid" => Hardware::Warp,
        "%nwarpid" => Hardware::Warps,
        "%lanemask_eq" => Hardware::MaskEq,
        "%lanemask_le" => Hardware::MaskLe,
        "%lanemask_lt" => Hardware::MaskLt,
        "%lanemask_ge" => Hardware::MaskGe,
        "%lanemask_gt" => Hardware::MaskGt,
        "%clock" | "%clock64" | "%clock_hi" | "%globaltimer" | "%globaltimer_lo" | "%globaltimer_hi" => Hardware::Clock,
        "%dynamic_smem_size" => Hardware::DynamicShared,
        "%total_smem_size" | "%aggr_smem_size" => Hardware::TotalShared,
        _ => return None,
    })
}

/// An address operand: base and offset, in a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Where it starts.
    pub base: Value,
    /// Bytes to add.
    pub offset: i64,
    /// Whether the base is a register of 32 bits: so is the sum, which compilers take for granted.
    pub narrow: bool,
    /// The space that the operand itself tells (a variable's), if it does.
    pub of: Option<Space>,
}

/// A kernel that can be run.
pub struct Program {
    /// The kernel, with everything it calls inlined.
    pub function: Function,
    /// What runs, by instruction.
    pub operations: Vec<Operation>,
    /// Guards by instruction: slot, negated.
    pub guards: Vec<Option<(u32, bool)>>,
    /// Position of each instruction in the order in which lanes wait for each other.
    pub order: Vec<u32>,
    /// Slots of the register file.
    pub slots: u32,
    /// Static shared variables (start and bytes), and where dynamic shared memory starts with its name.
    pub shared: Vec<(String, u64, u64)>,
    /// Name and start of dynamic shared memory.
    pub dynamic: Option<(String, u64)>,
    /// Local memory of a thread, bytes.
    pub local_bytes: u64,
    /// Offsets of the parameters, and the bytes of all.
    pub parameters: Vec<u64>,
    /// Bytes of all parameters.
    pub parameter_bytes: u64,
    /// Variables of the module; their allocations come before the launch's.
    pub globals: Vec<Variable>,
    /// Granule of shared memory's shadow, bytes.
    pub shared_granule: usize,
    /// Granule of global memory's shadow, bytes.
    pub global_granule: usize,
    /// Whether blocks may talk to each other through global memory.
    pub communicates: bool,
}

/// A message of a family about an instruction that it does not know.
pub type Unsupported = String;

impl Program {
    /// Decodes a kernel of a module.
    ///
    /// # Errors
    /// There is none of that name, or it uses what this crate does not know.
    pub fn new(module: &Module, kernel: &str) -> Result<Program, ProgramError> {
        let entry = module.function(kernel).filter(|f| f.entry && f.body.is_some());
        let Some(entry) = entry else {
            let kernels = module.kernels().map(str::to_string).collect();
            return Err(ProgramError::NoKernel { name: kernel.into(), kernels });
        };
        let function = crate::inline::inlined(module, entry)?;
        let body = function.body.as_deref().unwrap_or_default();
        let layout = StateSpaces::of(module, &function);
        let mut operations = Vec::with_capacity(body.len());
        let mut guards = Vec::with_capacity(body.len());
        let slots = |o: &Operand| layout.named(o);
        let watch = instructions::wgmma::Watch::of(body.iter(), slots);
        let mut named = vec![0; layout.slot_count as usize];
        for instruction in body {
            let guard = instruction.guard.map(|(register, _)| layout.slots[register.0 as usize]);
            instruction.operands.iter().flat_map(slots).chain(guard).for_each(|slot| named[slot as usize] += 1);
        }
        for (pc, instruction) in body.iter().enumerate() {
            let decoder = Decoder { function: &function, layout: &layout, named: &named, pc: pc as u32 };
            let site = || Site { line: instruction.line, text: instruction.text.to_string() };
            let operation = instructions::decode(instruction, &decoder)
                .map_err(|what| ProgramError::Unsupported { site: site(), what })?;
            operations.push(watch.around(instruction, slots, operation));
            guards.push(instruction.guard.map(|(register, negated)| (layout.slots[register.0 as usize], negated)));
        }
        let order = crate::order::order(body);
        let (shared_granule, global_granule) = (granule(body, Space::Shared), granule(body, Space::Global));
        Ok(Program {
            operations,
            guards,
            order,
            slots: layout.slot_count,
            shared: layout.shared,
            dynamic: layout.dynamic,
            local_bytes: layout.local_bytes,
            parameters: layout.parameters,
            parameter_bytes: layout.parameter_bytes,
            globals: module.variables.iter().filter(|v| v.space != Space::Shared).cloned().collect(),
            shared_granule,
            global_granule,
            communicates: body.iter().any(communicates),
            function,
        })
    }

    /// The instructions.
    pub fn instructions(&self) -> &[Instruction] {
        self.function.body.as_deref().unwrap_or_default()
    }

    /// Where an instruction stands.
    pub fn site(&self, pc: u32) -> Site {
        match self.instructions().get(pc as usize) {
            Some(i) => Site { line: i.line, text: i.text.to_string() },
            None => Site { line: Line::default(), text: "the end".into() },
        }
    }

    /// The address of the launch's allocation of a number.
    pub fn address(&self, allocation: usize) -> u64 {
        crate::memory::Global::address(self.globals.len() + allocation)
    }

    /// The agent of a warp: blocks in linear order.
    pub fn agent(block: u64, warps: u32, warp: u32) -> Agent {
        (block as u32).wrapping_mul(warps).wrapping_add(warp) & (crate::clocks::ENGINES - 1)
    }
}

/// The smallest width at which a space is accessed, bytes.
fn granule(body: &[Instruction], space: Space) -> usize {
    let word = if space == Space::Shared { "shared" } else { "global" };
    let mut least = 8;
    for i in body {
        let scalar = matches!(i.opcode.as_str(), "ld" | "st" | "atom" | "red" | "ldu");
        let named = i.modifiers.iter().any(|m| m.split("::").next() == Some(word));
        let generic = !i
            .modifiers
            .iter()
            .any(|m| matches!(m.split("::").next().unwrap_or(""), "shared" | "global" | "param" | "local" | "const"));
        if scalar && (named || generic) {
            least = least.min(i.ty().map_or(1, Type::bytes));
        } else if named && !scalar {
            least = least.min(match i.opcode.as_str() {
                // Boxes begin and end at any element in global memory; in shared memory they are chunks of 16 bytes.
                "cp" if i.has("tensor") && space == Space::Global => 2,
                "cp" if i.has("bulk") => 8,
                "cp" => 4,
                // The address that an allocation gives; the barrier of a commit.
                "tcgen05" if i.has("alloc") => 4,
                "tcgen05" => 8,
                "mbarrier" | "ldmatrix" | "stmatrix" | "wmma" => 8,
                _ => 2,
            });
        }
    }
    least.clamp(1, 8)
}

/// Whether an instruction can let blocks talk: atomics, and accesses that are ordered or volatile, in global memory.
fn communicates(i: &Instruction) -> bool {
    let shared = i.modifiers.iter().any(|m| m.starts_with("shared"));
    match i.opcode.as_str() {
        "atom" | "red" => !shared,
        "ld" | "st" => {
            let strong = ["volatile", "relaxed", "acquire", "release"].iter().any(|m| i.has(m));
            strong && !shared && !i.has("local") && !i.has("param")
        }
        "cp" => i.modifiers.iter().any(|m| m == "reduce"),
        _ => false,
    }
}

/// Where registers and variables are.
pub struct StateSpaces {
    slots: Vec<u32>,
    slot_count: u32,
    shared: Vec<(String, u64, u64)>,
    dynamic: Option<(String, u64)>,
    local_bytes: u64,
    parameters: Vec<u64>,
    parameter_bytes: u64,
    /// Of the function's variables and the module's.
    function: Vec<(Space, u64)>,
    module: Vec<(Space, u64)>,
}

/// Bytes between shared variables: what runs over the end of one meets nothing.
const GAP: u64 = 256;

fn aligned(at: u64, align: u64) -> u64 {
    at.div_ceil(align.max(1)) * align.max(1)
}

impl StateSpaces {
    fn of(module: &Module, function: &Function) -> StateSpaces {
        let mut slots = Vec::with_capacity(function.registers.len());
        let mut slot_count = 0;
        for register in &function.registers {
            slots.push(slot_count);
            slot_count += if register.ty.bits() == 128 { 2 } else { 1 };
        }
        let (mut shared, mut shared_at, mut local_at) = (Vec::new(), 0, 0);
        let mut place_shared = |v: &Variable, shared_at: &mut u64| {
            let start = aligned(*shared_at, v.align.max(16));
            shared.push((v.name.clone(), start, v.bytes));
            *shared_at = start + v.bytes + GAP;
            start
        };
        // Only variables that the kernel names take room.
        let mut used = rustc_hash::FxHashSet::default();
        for i in function.body.iter().flatten() {
            i.operands.iter().for_each(|o| symbols(o, &mut used));
        }
        let function_places = function
            .variables
            .iter()
            .map(|v| match v.space {
                Space::Shared => (Space::Shared, place_shared(v, &mut shared_at)),
                _ => {
                    let start = aligned(local_at, v.align);
                    local_at = start + v.bytes;
                    (Space::Local, start)
                }
            })
            .collect();
        let mut global = 0;
        let mut dynamic = None;
        let mut module_places: Vec<(Space, u64)> = Vec::new();
        for (i, v) in module.variables.iter().enumerate() {
            module_places.push(match v.space {
                Space::Shared if v.dynamic => (Space::Shared, u64::MAX),
                Space::Shared if used.contains(&Symbol::Module(i as u32)) => {
                    (Space::Shared, place_shared(v, &mut shared_at))
                }
                Space::Shared => (Space::Shared, 0),
                space => {
                    global += 1;
                    (space, GLOBAL_STRIDE * global)
                }
            });
        }
        let start = aligned(shared_at, 1024);
        for (place, v) in module_places.iter_mut().zip(&module.variables).filter(|(p, _)| p.1 == u64::MAX) {
            place.1 = start;
            dynamic.get_or_insert((v.name.clone(), start));
        }
        let mut parameters = Vec::new();
        let mut parameter_bytes = 0;
        for p in &function.parameters {
            let start = aligned(parameter_bytes, p.align);
            parameters.push(start);
            parameter_bytes = start + p.bytes;
        }
        StateSpaces {
            slots,
            slot_count,
            shared,
            dynamic,
            local_bytes: local_at,
            parameters,
            parameter_bytes,
            function: function_places,
            module: module_places,
        }
    }
}

impl StateSpaces {
    /// The slots of the registers that an operand names.
    fn named(&self, operand: &Operand) -> Vec<u32> {
        let slot = |r: &Register| self.slots[r.0 as usize];
        match operand {
            Operand::Register(r) | Operand::Not(r) => vec![slot(r)],
            Operand::Pair(a, b) => [a, b].into_iter().flat_map(|o| self.named(o)).collect(),
            Operand::Vector(list) | Operand::List(list) => list.iter().flat_map(|o| self.named(o)).collect(),
            Operand::Address { base, more, .. } => {
                let base = if let Base::Register(r) = base { Some(slot(r)) } else { None };
                base.into_iter().chain(more.iter().flat_map(|o| self.named(o))).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn symbols(operand: &Operand, into: &mut rustc_hash::FxHashSet<Symbol>) {
    match operand {
        Operand::Symbol(s, _) | Operand::Address { base: Base::Symbol(s), .. } => {
            into.insert(*s);
        }
        Operand::Vector(list) | Operand::List(list) => list.iter().for_each(|o| symbols(o, into)),
        _ => {}
    }
}

/// What a family asks while it decodes an instruction.
pub struct Decoder<'m> {
    function: &'m Function,
    layout: &'m StateSpaces,
    /// How often instructions name each slot.
    named: &'m [u32],
    /// The instruction's number.
    pub pc: u32,
}

impl Decoder<'_> {
    /// The slot of a register that is written; `None` for `_`.
    ///
    /// # Errors
    /// The operand is no register.
    pub fn register(&self, operand: &Operand) -> Result<Option<u32>, Unsupported> {
        match operand {
            Operand::Register(r) => Ok(Some(self.layout.slots[r.0 as usize])),
            Operand::Discard => Ok(None),
            _ => Err("a register expected as the result".into()),
        }
    }

    /// Whether some instruction may read a result: its register is named elsewhere.
    pub fn is_read(&self, operand: &Operand) -> bool {
        self.layout.named(operand).iter().any(|slot| self.named[*slot as usize] > 1)
    }

    /// The type of a register operand.
    pub fn type_of(&self, operand: &Operand) -> Option<Type> {
        match operand {
            Operand::Register(r) | Operand::Not(r) => Some(self.function.registers[r.0 as usize].ty),
            _ => None,
        }
    }

    /// An operand that is read.
    ///
    /// # Errors
    /// It cannot be read as a value.
    pub fn value(&self, operand: &Operand) -> Result<Value, Unsupported> {
        Ok(match operand {
            Operand::Register(r) => Value::Register(self.layout.slots[r.0 as usize]),
            Operand::Integer(n) => Value::Constant(*n as u64),
            Operand::Single(bits) => Value::Constant(u64::from(*bits)),
            Operand::Double(bits) => Value::Constant(*bits),
            Operand::Symbol(symbol, offset) => {
                let (space, at) = self.place(*symbol);
                let window = if space == Space::Param { PARAM_WINDOW } else { 0 };
                Value::Constant((window + at).wrapping_add_signed(*offset))
            }
            Operand::Special(Special(name)) => match name.as_str() {
                "%smid" | "%gridid" | "%nsmid" => Value::Constant(u64::from(name == "%nsmid")),
                _ => Value::Special(hardware(name).ok_or_else(|| format!("`{name}` is not declared or not known"))?),
            },
            _ => return Err("an operand of an unknown kind".into()),
        })
    }

    /// An operand read as a constant of a type: an integer is cut to its width, a double immediate becomes a single where one is
    /// meant.
    ///
    /// # Errors
    /// As [`Decoder::value`].
    pub fn typed(&self, operand: &Operand, ty: Type) -> Result<Value, Unsupported> {
        let value = self.value(operand)?;
        Ok(match (operand, value) {
            (Operand::Double(bits), _) if ty == Type::F32 => {
                Value::Constant(u64::from((f64::from_bits(*bits) as f32).to_bits()))
            }
            (Operand::Single(bits), _) if ty == Type::F64 => {
                Value::Constant(f64::from(f32::from_bits(*bits)).to_bits())
            }
            (_, Value::Constant(n)) if ty.bits() < 64 => Value::Constant(n & ((1 << ty.bits()) - 1)),
            (_, value) => value,
        })
    }

    fn place(&self, symbol: Symbol) -> (Space, u64) {
        match symbol {
            Symbol::Module(i) => self.layout.module[i as usize],
            Symbol::Function(i) => self.layout.function[i as usize],
            Symbol::Parameter(i) => (Space::Param, self.layout.parameters[i as usize]),
        }
    }

    /// An address in brackets.
    ///
    /// # Errors
    /// It is none.
    pub fn address(&self, operand: &Operand) -> Result<Address, Unsupported> {
        let Operand::Address { base, offset, .. } = operand else { return Err("an address expected".into()) };
        Ok(match base {
            Base::Register(r) => Address {
                base: Value::Register(self.layout.slots[r.0 as usize]),
                offset: *offset,
                narrow: self.function.registers.get(r.0 as usize).is_some_and(|r| r.ty.bytes() == 4),
                of: None,
            },
            Base::Absolute => Address { base: Value::Constant(0), offset: *offset, narrow: false, of: None },
            Base::Symbol(s) => {
                let (space, at) = self.place(*s);
                Address { base: Value::Constant(at), offset: *offset, narrow: false, of: Some(space) }
            }
        })
    }

    /// Elements of `{..}`, or the operand alone.
    pub fn elements<'o>(&self, operand: &'o Operand) -> &'o [Operand] {
        match operand {
            Operand::Vector(list) => list,
            other => std::slice::from_ref(other),
        }
    }
}
