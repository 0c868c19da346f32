//! The terms as people read them: a word per decision.
use super::{Axis, Pipe, Role, Side, StagedLayout, Term};
use std::fmt;

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Axis::M => f.write_str("m"),
            Axis::N => f.write_str("n"),
            Axis::K => f.write_str("k"),
            Axis::Batch(i) => write!(f, "batch{i}"),
            Axis::Outer(i) => write!(f, "outer{i}"),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::A => "A",
            Side::B => "B",
        })
    }
}

impl fmt::Display for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pipe::Plain => f.write_str("serial"),
            Pipe::Registers => f.write_str("double-buffered through registers"),
            Pipe::Async(stages) => write!(f, "cp.async, {stages} stages"),
        }
    }
}

impl fmt::Display for StagedLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.k_major { "[k][x]" } else { "[x][k]" })?;
        if self.pad > 0 {
            write!(f, "+{}", self.pad)?;
        }
        if self.swizzle {
            f.write_str(" xor")?;
        }
        Ok(())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Block => f.write_str("block"),
            Role::Group => f.write_str("block-group"),
            Role::Serial => f.write_str("serial"),
            Role::Pipeline(pipe) => write!(f, "pipeline({pipe})"),
            Role::Vthread => f.write_str("vthread"),
            Role::Warp => f.write_str("warp"),
            Role::Thread => f.write_str("thread"),
            Role::Unroll => f.write_str("unroll"),
            Role::Vector => f.write_str("vector"),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Nest(state) => write!(f, "nest:{:?}", state.stage),
            Term::Loop { axis, role, extent, .. } => write!(f, "loop:{axis}:{role}:{extent}"),
            Term::Cta { threads, .. } => write!(f, "cta:{threads}"),
            Term::Write(_) => f.write_str("write:C:local"),
            Term::Init(_) => f.write_str("init"),
            Term::Stage { side, layout, .. } => write!(f, "read:{side}:shared:{layout}"),
            Term::Strip { side, layout, .. } => write!(f, "read:{side}:shared-strip:{layout}"),
            Term::Direct { .. } => f.write_str("direct"),
            Term::Fragment { side, vector, .. } => write!(f, "read:{side}:local:x{vector}"),
            Term::Operands(_) => f.write_str("operands"),
            Term::Grid(_) => f.write_str("grid"),
            Term::InPlace(_) => f.write_str("in-place"),
            Term::Fuse { coalesced, .. } => write!(f, "fuse:{}", if *coalesced { "coalesced" } else { "strided" }),
            Term::CopyElement(_) => f.write_str("do:copy"),
            Term::Store(_) => f.write_str("do:store"),
            Term::Multiply(_) => f.write_str("do:multiply-add"),
            Term::Split(_) => f.write_str("split-k"),
            Term::AddParts(_) => f.write_str("add-parts"),
            Term::Tensor { node, .. } => node.fmt(f),
            Term::Dealt { node, .. } => node.fmt(f),
            Term::Operand { side, layout, .. } => write!(f, "tile:{side}:{layout:?}"),
            Term::Matrix { matrix, .. } => matrix.fmt(f),
        }
    }
}
