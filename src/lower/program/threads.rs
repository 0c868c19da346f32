//! Thread tags: which index each is, and how many values it has.
use super::build::Builder;
use super::error::{At, LowerError};
use super::nest::Thread;
use super::team::component;
use crate::kernel::{Dim, Index};
use satune_ir::{visit, Expr, For, ForKind, Stmt, VarId};

impl Builder<'_> {
    /// The variable of a tag; all its loops have one extent.
    pub(super) fn thread(&mut self, tag: &str, extent: i64, name: &str) -> Result<VarId, LowerError> {
        if let Some(t) = self.nest.threads.iter().find(|t| t.tag == tag) {
            if t.extent != extent {
                return Err(LowerError::ThreadExtents {
                    tag: tag.into(),
                    first: (t.first_loop.clone(), t.extent),
                    second: (name.into(), extent),
                });
            }
            return Ok(t.var);
        }
        let dim = match tag.rsplit('.').next() {
            Some("x") => Dim::X,
            Some("y") => Dim::Y,
            _ => Dim::Z,
        };
        let (index, block) = match tag {
            "blockIdx.x" | "blockIdx.y" | "blockIdx.z" => (Index::BlockIdx(dim), false),
            "threadIdx.x" | "threadIdx.y" | "threadIdx.z" => (Index::ThreadIdx(dim), true),
            _ => {
                return Err(LowerError::Unsupported {
                    what: format!("thread tag {tag} of loop {name}"),
                    place: At::default(),
                    remedy: "bind to blockIdx, threadIdx or vthread".into(),
                })
            }
        };
        let var = self.nest.fresh(extent);
        self.nest.threads.push(Thread { tag: tag.into(), var, extent, index, block, first_loop: name.into() });
        Ok(var)
    }

    /// Registers the block's threads before any statement depends on how many there are.
    pub(super) fn note_threads(&mut self, stmt: &Stmt) -> Result<(), LowerError> {
        let mut bound: Vec<(String, i64, String)> = Vec::new();
        visit::walk_stmt(stmt, &mut |s| {
            if let Stmt::For(For { var, kind: ForKind::ThreadBinding(tag), extent: Expr::Int(extent, _), .. }) = s {
                if component(tag).is_some() {
                    bound.push((tag.clone(), *extent, var.name.to_string()));
                }
            }
        });
        bound.into_iter().try_for_each(|(tag, extent, name)| self.thread(&tag, extent, &name).map(|_| ()))
    }
}
