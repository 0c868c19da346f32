//! Rewrite rules for streaming programs, one file per decision. Each turns a plain nest into terms that mean the same.
pub mod becomes;
pub mod columns;
mod engine;
pub mod flat;
pub mod hold;
pub mod kernel;
pub mod parts;
pub mod plain;
pub mod rows;
pub mod stage;
pub mod tile;
pub mod tiled;

use crate::space::Rule;
use satune_ir::term::stream::StreamTerm;

/// All rules.
pub fn all() -> Vec<Box<dyn Rule<StreamTerm>>> {
    vec![
        Box::new(parts::Parts),
        Box::new(becomes::Become),
        Box::new(kernel::Kernels),
        Box::new(rows::Rows),
        Box::new(columns::Columns),
        Box::new(hold::Hold),
        Box::new(stage::Stage),
        Box::new(flat::Flat),
        Box::new(tile::Tile),
        Box::new(plain::Plain),
        Box::new(tiled::Tiled),
    ]
}
