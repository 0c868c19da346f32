//! Tensor intrinsics in a file, as TVM's users register them: two functions, and
//! `TensorIntrin.register("name", description, implementation)`.
use super::super::error::{Fail, Res};
use super::choice::Choice;
use super::function::{collect, of_function, Found};
use super::reader::Name;
use super::syntax::{string, Args};
use crate::Program;
use ruff_python_ast as ast;
use std::collections::HashMap;

/// Name, description and implementation of each.
pub fn of_module(body: &[ast::Stmt]) -> Res<Vec<(String, Program, Program)>> {
    let mut functions: Found = Vec::new();
    let mut constants = HashMap::new();
    collect(body, &mut constants, &mut functions)?;
    let mut out: Vec<(String, Program, Program)> = Vec::new();
    for s in body {
        let ast::Stmt::Expr(e) = s else { continue };
        let ast::Expr::Call(c) = e.value.as_ref() else { continue };
        if !is_register(&c.func) {
            continue;
        }
        let args = Args::new(c, &["name", "desc", "impl", "override"])?;
        let name = match args.need("name")? {
            e @ ast::Expr::Name(n) => match constants.get(n.id.as_str()) {
                Some(Name::Value(crate::Expr::Str(text))) => text.to_string(),
                _ => return Err(Fail::on(e, format!("{} is no text", n.id))),
            },
            text => string(text)?,
        };
        if out.iter().any(|(n, ..)| *n == name) {
            return Err(Fail::on(c, format!("{name} is registered twice")));
        }
        let program = |argument: &str| -> Res<Program> {
            let e = args.need(argument)?;
            let ast::Expr::Name(n) = e else { return Err(Fail::on(e, "a function's name is expected here")) };
            let found = functions.iter().rfind(|(f, _)| f.name.as_str() == n.id.as_str());
            let (f, constants) = found.ok_or_else(|| {
                Fail::on(e, format!("{} is no function under @T.prim_func of this file", n.id))
                    .help("write both functions in the file, and register them below")
            })?;
            of_function(f, constants, &Choice::default())
        };
        out.push((name, program("desc")?, program("impl")?));
    }
    if out.is_empty() {
        return Err(Fail::at(0..0, "no intrinsic is registered here").help(
            "TensorIntrin.register(\"name\", description, implementation), below two functions under @T.prim_func",
        ));
    }
    Ok(out)
}

fn is_register(e: &ast::Expr) -> bool {
    let ast::Expr::Attribute(a) = e else { return false };
    let class = match a.value.as_ref() {
        ast::Expr::Name(n) => n.id.as_str(),
        ast::Expr::Attribute(inner) => inner.attr.as_str(),
        _ => return false,
    };
    a.attr.as_str() == "register" && class == "TensorIntrin"
}
