//! Fields of buffers: `A.data`, `A.elem_offset`, `A.strides[0]`, `A.access_ptr("r")`.
use super::super::error::{Fail, Res};
use super::reader::{Name, Reader};
use super::syntax::string;
use crate::{fields, BufferId, Expr};
use ruff_python_ast as ast;

impl Reader {
    /// The buffer of which an expression names an attribute.
    pub(super) fn field_of(&self, e: &ast::Expr, attribute: &str) -> Option<BufferId> {
        let ast::Expr::Attribute(a) = e else { return None };
        let ast::Expr::Name(n) = a.value.as_ref() else { return None };
        match self.lookup(n.id.as_str()) {
            Some(Name::Buffer(b)) if a.attr.as_str() == attribute => Some(*b),
            _ => None,
        }
    }

    /// `A.data` or `A.elem_offset`.
    pub(super) fn field(&self, e: &ast::Expr, attribute: &str) -> Res<Expr> {
        let buffer = self.field_of(e, attribute).ok_or_else(|| Fail::on(e, "this is not a value"))?;
        Ok(if attribute == "data" { fields::data(buffer) } else { fields::offset(buffer) })
    }

    /// `A.strides[0]`.
    pub(super) fn stride(&mut self, e: &ast::Expr, s: &ast::ExprSubscript) -> Res<Expr> {
        let buffer = self.field_of(&s.value, "strides").ok_or_else(|| Fail::on(e, "this is not a value"))?;
        let axis = self.constant(&s.slice, "the dimension")?;
        let (name, count) = (&self.buffers[buffer.0 as usize].name, self.buffers[buffer.0 as usize].strides.len());
        if usize::try_from(axis).ok().filter(|a| *a < count).is_none() {
            return Err(Fail::on(e, format!("buffer {name} has {count} strides; number {axis} is named"))
                .help("declare them: strides=(\"s0\", \"s1\")"));
        }
        Ok(fields::stride(buffer, axis))
    }

    /// `A.access_ptr("r")`; `None` of anything else.
    pub(super) fn access_ptr(&self, e: &ast::Expr) -> Res<Option<Expr>> {
        let ast::Expr::Call(c) = e else { return Ok(None) };
        let Some(buffer) = self.field_of(&c.func, "access_ptr") else { return Ok(None) };
        let mask = c.arguments.args.first().ok_or_else(|| Fail::on(e, "the argument access_mask is missing"))?;
        let mask = match string(mask)?.as_str() {
            "r" => 1,
            "w" => 2,
            "rw" | "wr" => 3,
            other => return Err(Fail::on(e, format!("{other:?} is no access")).help("\"r\", \"w\" or \"rw\"")),
        };
        let pointer = fields::access_ptr(buffer, &self.buffers[buffer.0 as usize], mask);
        pointer.map(Some).ok_or_else(|| Fail::on(e, "the shape of the buffer is not constant"))
    }
}
