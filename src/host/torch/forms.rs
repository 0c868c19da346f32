//! The forms of an operator: one that makes its results and one that is given them, each on a GPU and on tensors without
//! data, and the schemas that PyTorch knows them by.
use super::Tensor;
use std::fmt::Write;

/// The forms of an operator.
pub(super) struct Forms<'f> {
    name: &'f str,
    tensors: &'f [Tensor],
    /// Names of the tensors.
    names: &'f [String],
}

impl<'f> Forms<'f> {
    pub fn of(name: &'f str, tensors: &'f [Tensor], names: &'f [String]) -> Forms<'f> {
        Forms { name, tensors, names }
    }

    /// Numbers of what it is given in each form.
    fn reads(&self) -> Vec<usize> {
        (0..self.tensors.len()).filter(|i| !self.tensors[*i].written || self.tensors[*i].updated).collect()
    }

    /// Numbers of what it makes, or is given as `out`.
    fn writes(&self) -> Vec<usize> {
        (0..self.tensors.len()).filter(|i| self.tensors[*i].written && !self.tensors[*i].updated).collect()
    }

    /// Whether there is a form that makes the results: where PyTorch can tell by an argument where to make them.
    fn makes(&self) -> bool {
        !self.reads().is_empty()
    }

    fn list(&self, which: &[usize], one: impl Fn(&str) -> String) -> String {
        which.iter().map(|i| one(&self.names[*i])).collect::<Vec<_>>().join(", ")
    }

    /// What stands first in the file.
    pub fn usage(&self) -> String {
        let (name, reads, writes) = (self.name, self.reads(), self.writes());
        let (given, kept) = (self.list(&reads, str::to_string), self.list(&writes, str::to_string));
        let mut calls = String::new();
        // Writing to a string cannot fail.
        if self.makes() {
            let to = if writes.is_empty() { String::new() } else { format!("{kept} = ") };
            let _ = writeln!(calls, "//   {to}torch.ops.satune.{name}({given})");
        }
        if !writes.is_empty() {
            let out = self.list(&writes, |n| format!("{n}={n}"));
            let separator = if given.is_empty() { "" } else { ", " };
            let _ = writeln!(calls, "//   torch.ops.satune.{name}.out({given}{separator}{out})");
        }
        let updated: Vec<usize> = reads.iter().copied().filter(|i| self.tensors[*i].updated).collect();
        if !updated.is_empty() {
            let _ = writeln!(calls, "// Changes {} in place.", self.list(&updated, str::to_string));
        }
        format!(
            "// {name}: an operator of PyTorch (2.6 or later), made by Satune. Building it takes a C++ compiler and PyTorch, and
// no CUDA toolkit:
//   import torch, torch.utils.cpp_extension
//   torch.utils.cpp_extension.load(\"{name}\", [\"this file, with the ending .cpp\"], extra_ldflags=[\"-ldl\"],
//                                  is_python_module=False)
{calls}// It has no gradient; torch.library.register_autograd gives it one.
"
        )
    }

    /// Schemas and the functions' names behind the operator's.
    fn schemas(&self) -> Vec<(String, &'static str)> {
        let (reads, writes) = (self.reads(), self.writes());
        let argument = |i: &usize| match self.tensors[*i].written {
            true => format!("Tensor(a{i}!) {}", self.names[*i]),
            false => format!("Tensor {}", self.names[*i]),
        };
        let list = |which: &[usize]| which.iter().map(argument).collect::<Vec<_>>().join(", ");
        let mut schemas = Vec::new();
        if self.makes() {
            let results = match writes.len() {
                0 => "()".into(),
                1 => "Tensor".to_string(),
                n => format!("({})", vec!["Tensor"; n].join(", ")),
            };
            schemas.push((format!("{}({}) -> {results}", self.name, list(&reads)), ""));
        }
        if !writes.is_empty() {
            let given = if reads.is_empty() { String::new() } else { format!("{}, ", list(&reads)) };
            schemas.push((format!("{}.out({given}*, {}) -> ()", self.name, list(&writes)), "_out"));
        }
        schemas
    }

    /// C++ of each form on each kind of tensors.
    pub fn functions(&self) -> String {
        let (reads, writes) = (self.reads(), self.writes());
        let all: Vec<usize> = (0..self.tensors.len()).collect();
        let parameters = |which: &[usize]| self.list(which, |n| format!("const at::Tensor& {n}"));
        let given = [reads.clone(), writes.clone()].concat();
        let fitting = |which: &[usize]| -> String {
            which.iter().map(|i| format!("  fits({}, PARAMETERS[{i}]);\n", self.names[*i])).collect()
        };
        let run = format!("  run({{{}}});\n", self.list(&all, str::to_string));
        let mut out = String::new();
        // Writing to a string cannot fail.
        if let Some(first) = reads.first() {
            let beside = &self.names[*first];
            let made: String = writes
                .iter()
                .map(|i| format!("  const at::Tensor {} = made(PARAMETERS[{i}], {beside});\n", self.names[*i]))
                .collect();
            let results = self.list(&writes, str::to_string);
            let (result, back) = match writes.len() {
                0 => ("void".to_string(), String::new()),
                1 => ("at::Tensor".into(), format!("  return {results};\n")),
                n => {
                    let types = vec!["at::Tensor"; n].join(", ");
                    (format!("std::tuple<{types}>"), format!("  return {{{results}}};\n"))
                }
            };
            for (kind, body) in [("cuda", &run), ("meta", &fitting(&reads))] {
                let parameters = parameters(&reads);
                let _ = writeln!(out, "{result} {kind}({parameters}) {{\n{made}{body}{back}}}\n");
            }
        }
        if !writes.is_empty() {
            for (kind, body) in [("cuda", &run), ("meta", &fitting(&given))] {
                let _ = writeln!(out, "void {kind}_out({}) {{\n{body}}}\n", parameters(&given));
            }
        }
        out
    }

    /// What tells PyTorch of them.
    pub fn registered(&self) -> String {
        let mut out = "TORCH_LIBRARY_FRAGMENT(satune, m) {\n".to_string();
        let schemas = self.schemas();
        // Writing to a string cannot fail, here and below.
        for (schema, _) in &schemas {
            let tags = "{at::Tag::pt2_compliant_tag, at::Tag::needs_fixed_stride_order}";
            let _ = writeln!(out, "  m.def(\"{schema}\",\n        {tags});");
        }
        out.push_str("}\n");
        for (key, function) in [("CUDA", "cuda"), ("Meta", "meta")] {
            let _ = writeln!(out, "\nTORCH_LIBRARY_IMPL(satune, {key}, m) {{");
            for (schema, ending) in &schemas {
                let operator = schema.split('(').next().unwrap_or(schema);
                let _ = writeln!(out, "  m.impl(\"{operator}\", &{function}{ending});");
            }
            out.push_str("}\n");
        }
        out
    }
}
