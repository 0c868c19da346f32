//! Annotations: constants, lists and dictionaries.
use super::super::error::{Fail, Res};
use super::reader::Reader;
use super::syntax::{call, Args};
use crate::{Annotations, Attr, DType, Expr};
use ruff_python_ast as ast;

impl Reader {
    /// `{"key": value, ...}`.
    pub(super) fn annotations(&mut self, e: &ast::Expr) -> Res<Annotations> {
        match self.attr(e)? {
            Attr::Dict(map) => Ok(map),
            _ => Err(Fail::on(e, "a dictionary is expected here")),
        }
    }

    fn attr(&mut self, e: &ast::Expr) -> Res<Attr> {
        Ok(match e {
            ast::Expr::StringLiteral(s) => Attr::Str(s.value.to_str().into()),
            ast::Expr::NoneLiteral(_) => Attr::None,
            ast::Expr::BooleanLiteral(b) => Attr::Bool(b.value),
            ast::Expr::List(l) => Attr::List(l.elts.iter().map(|x| self.attr(x)).collect::<Res<_>>()?),
            ast::Expr::Tuple(t) => Attr::List(t.elts.iter().map(|x| self.attr(x)).collect::<Res<_>>()?),
            ast::Expr::Dict(d) => {
                let mut map = Annotations::new();
                for item in &d.items {
                    let Some(key) = &item.key else {
                        return Err(Fail::on(&item.value, "a dictionary cannot be unpacked here"));
                    };
                    map.insert(super::syntax::string(key)?, self.attr(&item.value)?);
                }
                Attr::Dict(map)
            }
            // What a function is compiled for: kept as it is named.
            ast::Expr::Call(c) if call(e).is_some_and(|(name, _)| name == "target") => {
                self.attr(Args::new(c, &["target_config", "host"])?.need("target_config")?)?
            }
            other => match self.expr(other)? {
                Expr::Int(v, DType::Bool) => Attr::Bool(v != 0),
                Expr::Int(v, _) => Attr::Int(v),
                Expr::Float(bits, _) => Attr::Float(f64::from_bits(bits)),
                Expr::Str(s) => Attr::Str(s.to_string()),
                _ => return Err(Fail::on(other, "an annotation holds constants only")),
            },
        })
    }
}
