//! From the syntax tree of a Python file to a program.
mod attr;
mod block;
mod buffer;
mod choice;
mod expr;
mod fields;
mod function;
mod loops;
mod reader;
mod registered;
mod stmt;
mod syntax;
mod threads;

pub use choice::{file_of, Choice};

use super::error::{Fail, Res};
use crate::Program;
use ruff_python_ast as ast;

/// Reads a function of the text of a file.
pub fn program(text: &str, choice: &Choice) -> Res<Program> {
    function::of_module(&module(text)?.body, choice)
}

/// Reads the tensor intrinsics that a file registers.
pub fn intrinsics(text: &str) -> Res<Vec<(String, Program, Program)>> {
    registered::of_module(&module(text)?.body)
}

fn module(text: &str) -> Res<ast::ModModule> {
    let module = ruff_python_parser::parse_module(text).map_err(|e| {
        let range = e.location.start().to_usize()..e.location.end().to_usize();
        Fail::at(range, format!("this is not Python: {}", e.error))
    })?;
    Ok(module.into_syntax())
}
