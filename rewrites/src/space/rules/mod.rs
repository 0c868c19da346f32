//! The rules. Each file holds those of one primitive; a rule reads an unscheduled nest (or, for `reorder` and
//! `group`, a pair of neighbouring loops) and adds what equals it.
mod bind;
mod cache_read;
mod cache_write;
mod copy;
mod decompose_reduction;
mod reorder;
mod rfactor;
mod split;
pub mod tensor;
mod unroll;
mod vectorize;
mod vthread;

use super::Rule;

/// Loops over blocks, warps and lanes, and their order.
pub fn tiling() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(bind::Whole),
        Box::new(bind::Blocks),
        Box::new(bind::EnterCta),
        Box::new(bind::Warps),
        Box::new(bind::Lanes),
        Box::new(vthread::Vthreads),
        Box::new(split::KLoop),
        Box::new(split::OuterReduction),
        Box::new(reorder::Reorder),
        Box::new(reorder::Group),
        Box::new(unroll::Steps),
        Box::new(unroll::Registers),
        Box::new(vectorize::Piece),
        Box::new(rfactor::SplitK),
    ]
}

/// Copies of operands and of the result in faster memory, and how they are filled.
pub fn staging() -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(cache_write::Accumulators),
        Box::new(cache_write::InPlace),
        Box::new(decompose_reduction::Clear),
        Box::new(cache_read::SharedStrip),
        Box::new(cache_read::Shared),
        Box::new(cache_read::Direct),
        Box::new(cache_read::Fragments),
        Box::new(copy::FuseCopy),
        Box::new(copy::SplitCopy),
        Box::new(copy::BindCopy),
        Box::new(copy::VectorizeCopy),
    ]
}

/// All rules.
pub fn all() -> Vec<Box<dyn Rule>> {
    let mut rules = tiling();
    rules.extend(staging());
    rules
}
