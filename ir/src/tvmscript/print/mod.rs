//! From a program to the text that TVM 0.27 reads.
mod expr;
mod names;
mod stmt;

use crate::{Attr, Buffer, Expr, Program};
use names::Names;
pub use names::TAKEN;
use std::collections::HashMap;
use std::fmt::Write;

/// The program as TVMScript. Names are made unique and safe; reading the text gives an equal program.
pub fn print(program: &Program) -> String {
    let mut p = Printer { program, names: Names::new(), out: String::new(), indent: 1, domains: HashMap::new() };
    let params: Vec<String> = program
        .params
        .iter()
        .map(|id| {
            let name = p.names.buffer(*id, &program.buffer(*id).name);
            format!("{name}: T.Buffer({})", p.buffer_args(program.buffer(*id), true))
        })
        .collect();
    let mut out = String::from("@T.prim_func(s_tir=True)\n");
    let _ = writeln!(out, "def {}({}):", names::safe(&program.name), params.join(", "));
    if !program.attrs.is_empty() {
        p.line(&format!("T.func_attr({})", dict(&program.attrs)));
    }
    p.root();
    out + &p.out
}

/// An expression of a program, with the names that variables have there.
pub fn expression(program: &Program, e: &Expr) -> String {
    let mut p = Printer { program, names: Names::new(), out: String::new(), indent: 0, domains: HashMap::new() };
    for (i, b) in program.buffers.iter().enumerate() {
        p.names.buffer(crate::BufferId(i as u32), &b.name);
    }
    p.expr(e)
}

struct Printer<'p> {
    program: &'p Program,
    names: Names,
    out: String,
    indent: usize,
    /// First value and extent of the loops around.
    domains: HashMap<crate::VarId, (Expr, Expr)>,
}

impl Printer<'_> {
    fn line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// Arguments of `T.Buffer` or of an allocation: shape, type, and what is not as usual.
    fn buffer_args(&mut self, b: &Buffer, with_type: bool) -> String {
        let mut args = vec![self.tuple(&b.shape)];
        if with_type || b.dtype != crate::DType::F32 {
            args.push(format!("\"{}\"", b.dtype.name()));
        }
        if !b.strides.is_empty() {
            let strides = self.tuple_of_strides(&b.strides);
            args.push(format!("strides={strides}"));
        }
        if let Some(offset) = &b.elem_offset {
            let text = self.stride(offset);
            args.push(format!("elem_offset={text}"));
        }
        if b.scope != "global" {
            args.push(format!("scope={}", quoted(&b.scope)));
        }
        if b.align > 0 {
            args.push(format!("align={}", b.align));
        }
        if b.offset_factor > 0 {
            args.push(format!("offset_factor={}", b.offset_factor));
        }
        args.join(", ")
    }

    fn tuple(&mut self, parts: &[Expr]) -> String {
        let parts: Vec<String> = parts.iter().map(|e| self.expr(e)).collect();
        tuple(&parts)
    }

    fn tuple_of_strides(&mut self, parts: &[Expr]) -> String {
        let parts: Vec<String> = parts.iter().map(|e| self.stride(e)).collect();
        tuple(&parts)
    }

    /// A stride or offset; one that is not known is a name of its own.
    fn stride(&mut self, e: &Expr) -> String {
        match e {
            Expr::Var(v) if !self.names.knows(v.id) => quoted(&v.name),
            other => self.expr(other),
        }
    }
}

fn tuple(parts: &[String]) -> String {
    match parts {
        [one] => format!("({one},)"),
        many => format!("({})", many.join(", ")),
    }
}

/// A Python string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn dict(map: &crate::Annotations) -> String {
    let items: Vec<String> = map.iter().map(|(k, v)| format!("{}: {}", quoted(k), attr(v))).collect();
    format!("{{{}}}", items.join(", "))
}

fn attr(a: &Attr) -> String {
    match a {
        Attr::Int(v) => v.to_string(),
        Attr::Bool(b) => if *b { "True" } else { "False" }.into(),
        Attr::Float(v) => number(*v),
        Attr::Str(s) => quoted(s),
        Attr::List(l) => format!("[{}]", l.iter().map(attr).collect::<Vec<_>>().join(", ")),
        Attr::Dict(d) => dict(d),
        Attr::None => "None".into(),
    }
}

/// A floating number that Python reads back as the same one.
fn number(v: f64) -> String {
    let text = format!("{v:?}");
    match text.as_str() {
        "inf" => "float(\"inf\")".into(),
        "-inf" => "float(\"-inf\")".into(),
        "NaN" => "float(\"nan\")".into(),
        _ => text,
    }
}
