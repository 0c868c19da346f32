//! CUDA C++ text of a kernel: header-free, so that it compiles anywhere, and meant to be read.
//!
//! Integers are `int` as far as their bounds allow (`bounds`); numbers of half types are held as their bits;
//! arrays that share bytes of shared memory are carved from one; the helper functions that a kernel uses, and no
//! others, stand before it.
mod blended;
mod bounds;
mod descriptor;
mod expression;
pub(crate) mod fp8;
mod hopper;
mod instructions;
mod integer;
mod names;
mod prelude;
mod remote;
mod statement;
mod tensor_memory;
#[cfg(test)]
mod tests;
mod value;
mod warp;
mod wmma;

pub(crate) use instructions::{mma_text, operands, sums};
pub use names::{function_name, identifier};

use crate::kernel::{Array, ArrayId, Descriptor, Dim, Index, Kernel, LocalVar, Space, Stmt};
use expression::{position, Integer, Text};
use names::Names;
use prelude::Helper;
use satune_ir::DType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

/// Longer lines are broken where that is easy.
const MARGIN: usize = 120;

/// Prints a kernel, with the helper functions that it uses.
pub fn print(kernel: &Kernel) -> String {
    let mut names = Names::default();
    let arrays = kernel.arrays.iter().map(|a| names.take(&a.name)).collect();
    let mut printer = Printer {
        kernel,
        arrays,
        out: String::new(),
        depth: 1,
        names,
        variables: HashMap::new(),
        places: BTreeMap::new(),
        used_places: BTreeSet::new(),
        renamed_places: BTreeSet::new(),
        aligned: BTreeSet::new(),
        helpers: BTreeSet::new(),
        descriptors: Vec::new(),
        kept: Vec::new(),
        remotes: Vec::new(),
    };
    printer.name_places();
    printer.list(&kernel.body);
    let mut out = String::new();
    for line in kernel.notes.iter().flat_map(|n| comment(n)) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "{}", printer.launch());
    if !printer.helpers.is_empty() {
        out.push('\n');
    }
    for helper in &printer.helpers {
        let _ = writeln!(out, "{}", helper.text());
    }
    out.push_str(&printer.signature());
    out.push_str("{\n");
    out.push_str(&printer.declarations());
    out.push_str(&printer.out);
    out.push_str("}\n");
    out
}

/// The lines of a comment: no text can end it or carry it on beyond its line.
fn comment(text: &str) -> Vec<String> {
    text.lines().map(|l| format!("// {}", l.trim_end_matches([' ', '\\'])).trim_end().to_string()).collect()
}

/// The C type that holds an element. Floats of 16 and 8 bits are held as their bits.
pub(crate) fn c_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 | DType::F8E4M3 | DType::F8E5M2 => "unsigned char",
        DType::I8 => "signed char",
        DType::I16 => "short",
        DType::U16 | DType::F16 | DType::BF16 => "unsigned short",
        DType::I32 => "int",
        DType::U32 => "unsigned int",
        DType::I64 => "long long",
        DType::U64 | DType::Handle => "unsigned long long",
        DType::F32 | DType::TF32 => "float",
        DType::F64 => "double",
    }
}

/// A component of blockIdx (false) or threadIdx (true).
type Component = (bool, usize);

struct Printer<'k> {
    kernel: &'k Kernel,
    /// Names of the arrays in the text.
    arrays: Vec<String>,
    out: String,
    depth: usize,
    names: Names,
    variables: HashMap<LocalVar, Integer>,
    /// Names of the components of blockIdx and threadIdx.
    places: BTreeMap<Component, String>,
    used_places: BTreeSet<Component>,
    /// Variables that are but names of components of blockIdx and threadIdx.
    renamed_places: BTreeSet<LocalVar>,
    /// Register arrays that are accessed as vectors.
    aligned: BTreeSet<ArrayId>,
    helpers: BTreeSet<Helper>,
    /// Descriptors of the role that is printed, with their names.
    descriptors: Vec<(Descriptor, String)>,
    /// The role's descriptors that are kept in registers of their own.
    kept: Vec<(Descriptor, String)>,
    /// The role's names for the first of an array's barriers in the block of a rank.
    remotes: Vec<(ArrayId, Index, String)>,
}

impl Printer<'_> {
    /// Names blockIdx and threadIdx: as the kernel itself does, where it does.
    fn name_places(&mut self) {
        for stmt in &self.kernel.body {
            let Stmt::Let { var, name, value } = stmt else { continue };
            let (place, top) = match value {
                Index::BlockIdx(d) => ((false, position(*d)), self.kernel.grid[position(*d)]),
                Index::ThreadIdx(d) => ((true, position(*d)), self.kernel.block[position(*d)]),
                _ => continue,
            };
            let name = match self.places.get(&place) {
                Some(name) => name.clone(),
                None => self.names.take(name),
            };
            self.places.insert(place, name.clone());
            self.used_places.insert(place);
            self.renamed_places.insert(*var);
            let range = bounds::Range::of(0, i128::from(top) - 1);
            self.variables.insert(*var, Integer { text: Text::atom(name), wide: false, range });
        }
        for (is_thread, wishes) in [(false, ["bx", "by", "bz"]), (true, ["tx", "ty", "tz"])] {
            for (i, wish) in wishes.into_iter().enumerate() {
                if !self.places.contains_key(&(is_thread, i)) {
                    let name = self.names.take(wish);
                    self.places.insert((is_thread, i), name);
                }
            }
        }
    }

    fn place(&mut self, is_thread: bool, d: Dim) -> String {
        let place = (is_thread, position(d));
        self.used_places.insert(place);
        self.places.get(&place).cloned().unwrap_or_default()
    }

    /// The helper's name; its text is printed before the kernel.
    fn helper(&mut self, helper: Helper) -> String {
        self.helpers.extend(helper.needs());
        self.helpers.insert(helper);
        helper.name()
    }

    fn launch(&self) -> String {
        let size = |d: &[u32; 3]| match d {
            [x, 1, 1] => x.to_string(),
            [x, y, 1] => format!("({x}, {y})"),
            [x, y, z] => format!("({x}, {y}, {z})"),
        };
        let mut out = format!("// launch: {} blocks of {} threads", size(&self.kernel.grid), size(&self.kernel.block));
        let _ = match (self.kernel.shared_bytes, self.kernel.dynamic_shared_bytes()) {
            (0, _) => Ok(()),
            (bytes, 0) => write!(out, ", {bytes} bytes of shared memory"),
            (bytes, _) => write!(out, ", {bytes} bytes of dynamic shared memory"),
        };
        out
    }

    fn signature(&self) -> String {
        let bounds = match self.kernel.min_blocks_per_sm {
            Some(blocks) => format!("{}, {blocks}", self.kernel.threads()),
            None => self.kernel.threads().to_string(),
        };
        let blended = blended::blended(self.kernel);
        let params: Vec<String> = self
            .kernel
            .params()
            .map(|(id, a)| {
                if self.kernel.tensor_maps.iter().any(|m| m.array == id) {
                    return format!("const __grid_constant__ TensorMap {}", self.arrays[id.0 as usize]);
                }
                let constant = if a.written { "" } else { "const " };
                let restrict = if blended.contains(&id) { "" } else { "__restrict__ " };
                format!("{constant}{}* {restrict}{}", c_type(a.dtype), self.arrays[id.0 as usize])
            })
            .collect();
        let cluster = match self.kernel.cluster {
            0 | 1 => String::new(),
            blocks => format!(" __cluster_dims__({blocks}, 1, 1)"),
        };
        let head = format!("extern \"C\" __global__ void{cluster} __launch_bounds__({bounds})\n");
        let name = function_name(&self.kernel.name);
        let one_line = format!("{name}({})\n", params.join(", "));
        if one_line.len() <= MARGIN {
            return head + &one_line;
        }
        format!("{head}{name}(\n    {})\n", params.join(",\n    "))
    }

    fn declarations(&self) -> String {
        let mut out = String::new();
        let shared: Vec<&Array> = self.kernel.arrays.iter().filter(|a| a.space == Space::Shared).collect();
        let align = shared.iter().map(|a| a.align).fold(16, u32::max);
        let dynamic = self.kernel.dynamic_shared_bytes() > 0;
        let carved = dynamic || overlap(&shared);
        let _ = match (shared.is_empty(), dynamic, carved) {
            (true, ..) | (_, _, false) => Ok(()),
            (_, true, _) => writeln!(out, "    extern __shared__ __align__({align}) unsigned char shared_memory[];"),
            _ => {
                let bytes = self.kernel.shared_bytes;
                writeln!(out, "    __shared__ __align__({align}) unsigned char shared_memory[{bytes}];")
            }
        };
        for (i, (a, name)) in self.kernel.arrays.iter().zip(&self.arrays).enumerate() {
            let t = c_type(a.dtype);
            let _ = match a.space {
                Space::Global | Space::Tensor => Ok(()),
                Space::Shared if carved => {
                    let at = if a.shared_offset == 0 { String::new() } else { format!(" + {}", a.shared_offset) };
                    writeln!(out, "    {t}* const {name} = reinterpret_cast<{t}*>(shared_memory{at});")
                }
                Space::Shared => writeln!(out, "    __shared__ __align__({}) {t} {name}[{}];", a.align.max(16), a.len),
                Space::Fragment => {
                    let align = if self.aligned.contains(&ArrayId(i as u32)) { "__align__(16) " } else { "" };
                    let words = (a.len * u64::from(a.dtype.bytes())).div_ceil(4);
                    writeln!(out, "    {align}unsigned int {name}[{words}];")
                }
                Space::Opaque if a.dtype.bytes() < 4 => {
                    writeln!(out, "    unsigned int {name}[{}];", (a.len * u64::from(a.dtype.bytes())).div_ceil(4))
                }
                Space::Register if self.aligned.contains(&ArrayId(i as u32)) => {
                    writeln!(out, "    __align__(16) {t} {name}[{}];", a.len)
                }
                Space::Register | Space::Opaque => writeln!(out, "    {t} {name}[{}];", a.len),
            };
        }
        for (is_thread, d) in &self.used_places {
            let (what, axis) = (if *is_thread { "threadIdx" } else { "blockIdx" }, ["x", "y", "z"][*d]);
            if let Some(name) = self.places.get(&(*is_thread, *d)) {
                let _ = writeln!(out, "    const int {name} = {what}.{axis};");
            }
        }
        out
    }
}

/// Whether two arrays share bytes.
fn overlap(shared: &[&Array]) -> bool {
    let mut spans: Vec<(u64, u64)> =
        shared.iter().map(|a| (a.shared_offset.into(), a.len * u64::from(a.dtype.bytes()))).collect();
    spans.sort_unstable();
    spans.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
}
