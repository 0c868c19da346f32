//! CUDA C++ text of a kernel: header-free, so that it compiles anywhere, and meant to be read.
mod expression;
mod prelude;
#[cfg(test)]
mod tests;

use crate::kernel::{Array, ArrayId, Cond, Index, Kernel, LocalVar, Space, Stmt, Unroll};
use satune_ir::DType;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// Prints a kernel, with the helper functions that it uses.
pub fn print(kernel: &Kernel) -> String {
    let mut printer = Printer {
        kernel,
        out: String::new(),
        depth: 1,
        names: HashMap::new(),
        used: kernel.arrays.iter().map(|a| a.name.clone()).collect(),
        helpers: BTreeSet::new(),
    };
    printer.list(&kernel.body);
    let (body, helpers) = (printer.out, printer.helpers);
    let mut out = String::new();
    for line in &kernel.notes {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(out, "// {line}");
    }
    for helper in helpers {
        out.push_str(prelude::text(helper));
    }
    let bounds = match kernel.min_blocks_per_sm {
        Some(blocks) => format!("{}, {blocks}", kernel.threads()),
        None => kernel.threads().to_string(),
    };
    let params: Vec<String> = kernel
        .params()
        .map(|(_, a)| {
            let constant = if a.written { "" } else { "const " };
            format!("{constant}{}* __restrict__ {}", c_type(a.dtype), a.name)
        })
        .collect();
    let _ = writeln!(
        out,
        "extern \"C\" __global__ void __launch_bounds__({bounds})\n{}({})\n{{",
        kernel.name,
        params.join(", ")
    );
    out.push_str(&arrays(kernel));
    out.push_str(&body);
    out.push_str("}\n");
    out
}

fn arrays(kernel: &Kernel) -> String {
    let mut out = String::new();
    let dynamic = kernel.dynamic_shared_bytes() > 0;
    if dynamic {
        out.push_str("    extern __shared__ __align__(16) unsigned char shared_memory[];\n");
    }
    for a in &kernel.arrays {
        let t = c_type(a.dtype);
        let _ = match a.space {
            Space::Global => Ok(()),
            Space::Shared if dynamic => writeln!(
                out,
                "    {t}* const {} = reinterpret_cast<{t}*>(shared_memory + {});",
                a.name, a.shared_offset
            ),
            Space::Shared => writeln!(out, "    __shared__ __align__(16) {t} {}[{}];", a.name, a.len),
            Space::Register => writeln!(out, "    {t} {}[{}];", a.name, a.len),
        };
    }
    out
}

/// The C type that holds an element. Half types are held as their bits.
pub(crate) fn c_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 => "unsigned char",
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

struct Printer<'k> {
    kernel: &'k Kernel,
    out: String,
    depth: usize,
    names: HashMap<LocalVar, String>,
    used: BTreeSet<String>,
    helpers: BTreeSet<prelude::Helper>,
}

impl Printer<'_> {
    fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn list(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.statement(stmt);
        }
    }

    fn nested(&mut self, body: &[Stmt]) {
        self.depth += 1;
        self.list(body);
        self.depth -= 1;
    }

    /// A name for a variable: as wished, with a number where that is taken.
    fn name(&mut self, var: LocalVar, wish: &str) -> String {
        let wish = crate::lower::safe(wish);
        let mut name = wish.clone();
        let mut number = 1;
        while self.used.contains(&name) {
            number += 1;
            name = format!("{wish}{number}");
        }
        self.used.insert(name.clone());
        self.names.insert(var, name.clone());
        name
    }

    fn statement(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::For { var, name, start, extent, unroll, body } => {
                let (first, end) = (self.index(start, false), self.index(&plus(start, extent), false));
                let name = self.name(*var, name);
                match unroll {
                    Unroll::No => self.line("#pragma unroll 1"),
                    Unroll::Full => self.line("#pragma unroll"),
                    Unroll::By(n) => self.line(&format!("#pragma unroll {n}")),
                    Unroll::Auto => {}
                }
                self.line(&format!("for (int {name} = {first}; {name} < {end}; ++{name}) {{"));
                self.nested(body);
                self.line("}");
                // The name is free again: loops that follow may be called the same.
                self.used.remove(&name);
            }
            Stmt::If { cond, then, otherwise } => {
                let cond = self.condition(cond);
                self.line(&format!("if ({cond}) {{"));
                self.nested(then);
                if !otherwise.is_empty() {
                    self.line("} else {");
                    self.nested(otherwise);
                }
                self.line("}");
            }
            Stmt::Let { var, name, value } => {
                let value = self.index(value, false);
                let name = self.name(*var, name);
                self.line(&format!("const int {name} = {value};"));
            }
            Stmt::Store { array, index, value } => {
                let value = self.value(value);
                let target = self.element(*array, index);
                self.line(&format!("{target} = {value};"));
            }
            Stmt::Copy { dst, dst_index, src, src_index, width, zero_unless } => {
                self.copy((*dst, dst_index), (*src, src_index), *width, zero_unless);
            }
            Stmt::Barrier => self.line("__syncthreads();"),
            Stmt::AsyncCopy { dst, dst_index, src, src_index, width, zero_unless } => {
                let bytes = width * self.kernel.array(*dst).dtype.bytes();
                self.helpers.insert(prelude::Helper::CopyAsync(bytes, *zero_unless != Cond::True));
                let (to, from) = (self.pointer(*dst, dst_index), self.pointer(*src, src_index));
                if *zero_unless == Cond::True {
                    self.line(&format!("copy_async_{bytes}({to}, {from});"));
                } else {
                    let cond = self.condition(zero_unless);
                    // The address must be valid even where nothing is read.
                    let base = &self.kernel.array(*src).name;
                    let from = format!("{cond} ? {from} : {base}");
                    self.line(&format!("copy_async_{bytes}_or_zero({to}, {from}, {cond});"));
                }
            }
            Stmt::AsyncCommit => self.line("asm volatile(\"cp.async.commit_group;\" ::: \"memory\");"),
            Stmt::AsyncWait(n) => self.line(&format!("asm volatile(\"cp.async.wait_group {n};\" ::: \"memory\");")),
            Stmt::AtomicAdd { array, index, value } => {
                let (value, to) = (self.value(value), self.pointer(*array, index));
                self.line(&format!("atomicAdd({to}, {value});"));
            }
            Stmt::Comment(text) => self.line(&format!("// {text}")),
        }
    }

    fn array(&self, id: ArrayId) -> &Array {
        self.kernel.array(id)
    }

    fn copy(&mut self, dst: (ArrayId, &Index), src: (ArrayId, &Index), width: u32, zero_unless: &Cond) {
        let bytes = width * self.array(src.0).dtype.bytes();
        let dtype = self.array(src.0).dtype;
        let registers = |p: &Self, id: ArrayId| p.array(id).space == Space::Register;
        if width == 1 {
            let from = self.element(src.0, src.1);
            let to = self.element(dst.0, dst.1);
            let value = if *zero_unless == Cond::True {
                from
            } else {
                format!("{} ? {from} : {}", self.condition(zero_unless), zero(dtype))
            };
            self.line(&format!("{to} = {value};"));
            return;
        }
        if registers(self, src.0) && registers(self, dst.0) {
            for i in 0..width {
                let from = self.element(src.0, &plus_constant(src.1, i));
                let to = self.element(dst.0, &plus_constant(dst.1, i));
                self.line(&format!("{to} = {from};"));
            }
            return;
        }
        let vector = vector_type(dtype, bytes);
        let lanes = vector.fields.len() as u32;
        let packed = lanes != width;
        if registers(self, src.0) {
            let to = self.pointer(dst.0, dst.1);
            let value = if packed {
                format!("*reinterpret_cast<const {}*>({})", vector.name, self.pointer(src.0, src.1))
            } else {
                let parts: Vec<String> = (0..width).map(|i| self.element(src.0, &plus_constant(src.1, i))).collect();
                format!("make_{}({})", vector.name, parts.join(", "))
            };
            self.line(&format!("*reinterpret_cast<{}*>({to}) = {value};", vector.name));
            return;
        }
        let from = self.pointer(src.0, src.1);
        let mut value = format!("*reinterpret_cast<const {}*>({from})", vector.name);
        if *zero_unless != Cond::True {
            let zeros = if lanes == 1 {
                "0".to_string()
            } else {
                format!("make_{}({})", vector.name, vec!["0"; lanes as usize].join(", "))
            };
            value = format!("{} ? {value} : {zeros}", self.condition(zero_unless));
        }
        if !registers(self, dst.0) || packed {
            let to = self.pointer(dst.0, dst.1);
            self.line(&format!("*reinterpret_cast<{}*>({to}) = {value};", vector.name));
            return;
        }
        self.line("{");
        self.depth += 1;
        self.line(&format!("const {} v = {value};", vector.name));
        for (i, field) in vector.fields.iter().enumerate() {
            let to = self.element(dst.0, &plus_constant(dst.1, i as u32));
            self.line(&format!("{to} = v.{field};"));
        }
        self.depth -= 1;
        self.line("}");
    }
}

/// A vector type of the machine and the names of its parts.
struct Vector {
    name: &'static str,
    fields: &'static [&'static str],
}

/// The type of an access of so many bytes. Types without vectors of their own move as 32-bit words.
fn vector_type(dtype: DType, bytes: u32) -> Vector {
    let (name, fields): (&str, &[&str]) = match (dtype, bytes) {
        (DType::F32 | DType::TF32, 8) => ("float2", &["x", "y"]),
        (DType::F32 | DType::TF32, 16) => ("float4", &["x", "y", "z", "w"]),
        (DType::F64, 16) => ("double2", &["x", "y"]),
        (DType::I32, 8) => ("int2", &["x", "y"]),
        (DType::I32, 16) => ("int4", &["x", "y", "z", "w"]),
        (_, 2) => ("unsigned short", &["x"]),
        (_, 4) => ("unsigned int", &["x"]),
        (_, 8) => ("uint2", &["x", "y"]),
        _ => ("uint4", &["x", "y", "z", "w"]),
    };
    Vector { name, fields }
}

fn zero(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::TF32 => "0.0f",
        DType::F64 => "0.0",
        _ => "0",
    }
}

fn plus(a: &Index, b: &Index) -> Index {
    match (a, b) {
        (Index::Const(0), b) => b.clone(),
        (Index::Const(a), Index::Const(b)) => Index::Const(a + b),
        (a, b) => Index::Add(Box::new(a.clone()), Box::new(b.clone())),
    }
}

fn plus_constant(a: &Index, b: u32) -> Index {
    match a {
        a if b == 0 => a.clone(),
        Index::Const(a) => Index::Const(a + i64::from(b)),
        a => Index::Add(Box::new(a.clone()), Box::new(Index::Const(i64::from(b)))),
    }
}
