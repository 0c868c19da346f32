//! What the syntax tree of a Python file says: names, calls with their arguments, lists, strings.
use super::super::error::{Fail, Res};
use ruff_python_ast as ast;

/// The name of an attribute chain below `T` (or `tir`, `tirx`, ...): `axis.spatial` of `T.axis.spatial`.
pub(super) fn path(e: &ast::Expr) -> Option<String> {
    match e {
        ast::Expr::Attribute(a) => match a.value.as_ref() {
            ast::Expr::Name(n) if matches!(n.id.as_str(), "T" | "tir" | "tirx" | "Tx") => Some(a.attr.to_string()),
            ast::Expr::Name(n) if n.id.as_str() == "I" => Some(format!("I.{}", a.attr)),
            inner => Some(format!("{}.{}", path(inner)?, a.attr)),
        },
        ast::Expr::Name(n) if n.id.as_str() == "range" => Some("range".into()),
        _ => None,
    }
}

/// A call of something below `T`, with its name.
pub(super) fn call(e: &ast::Expr) -> Option<(String, &ast::ExprCall)> {
    match e {
        ast::Expr::Call(c) => Some((path(&c.func)?, c)),
        _ => None,
    }
}

/// Arguments of a call, by position and by name.
pub(super) struct Args<'a> {
    call: &'a ast::ExprCall,
    pub names: &'a [&'a str],
}

impl<'a> Args<'a> {
    /// Arguments, which have these names in this order.
    pub fn new(call: &'a ast::ExprCall, names: &'a [&'a str]) -> Res<Args<'a>> {
        let args = &call.arguments;
        if let Some(extra) = args.args.get(names.len()) {
            return Err(Fail::on(
                extra,
                format!("too many arguments: {} are known: {}", names.len(), names.join(", ")),
            ));
        }
        for k in &args.keywords {
            match &k.arg {
                None => return Err(Fail::on(k, "arguments cannot be unpacked here").help("write them out")),
                Some(name) if !names.contains(&name.as_str()) => {
                    let message = format!("there is no argument {name}; there are: {}", names.join(", "));
                    return Err(Fail::on(k, message));
                }
                Some(_) => {}
            }
        }
        Ok(Args { call, names })
    }

    /// The argument of a name, where it was given and is not `None`.
    pub fn get(&self, name: &str) -> Option<&'a ast::Expr> {
        let args = &self.call.arguments;
        let position = self.names.iter().position(|n| *n == name)?;
        args.args
            .get(position)
            .or_else(|| args.keywords.iter().find(|k| k.arg.as_ref().is_some_and(|a| a == name)).map(|k| &k.value))
            .filter(|e| !matches!(e, ast::Expr::NoneLiteral(_)))
    }

    pub fn need(&self, name: &str) -> Res<&'a ast::Expr> {
        self.get(name).ok_or_else(|| Fail::on(self.call, format!("the argument {name} is missing")))
    }
}

/// The elements of a list or tuple; the expression itself otherwise.
pub(super) fn elements(e: &ast::Expr) -> Vec<&ast::Expr> {
    match e {
        ast::Expr::Tuple(t) => t.elts.iter().collect(),
        ast::Expr::List(l) => l.elts.iter().collect(),
        other => vec![other],
    }
}

/// A string literal.
pub(super) fn string(e: &ast::Expr) -> Res<String> {
    match e {
        ast::Expr::StringLiteral(s) => Ok(s.value.to_str().to_string()),
        other => Err(Fail::on(other, "a string is expected here")),
    }
}

/// The names that a statement assigns to.
pub(super) fn target_names(target: &ast::Expr) -> Res<Vec<&str>> {
    elements(target)
        .into_iter()
        .map(|e| match e {
            ast::Expr::Name(n) => Ok(n.id.as_str()),
            other => Err(Fail::on(other, "a name is expected here")),
        })
        .collect()
}
