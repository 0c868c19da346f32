//! The space of a contraction's schedules: encoding, rules, saturation.
mod bare;
mod channels;
mod condition;
pub mod conditions;
mod contraction;
mod derive;
mod derive_tensor;
mod digits;
mod encode;
mod engine;
mod epilogue;
mod factored;
mod flattened;
mod gather;
mod grouped;
mod in_order;
mod in_place;
mod instructions;
mod lanes;
mod menu;
mod nests;
mod ordered;
mod parted;
mod read;
mod read_cores;
mod reducer_forms;
pub mod rules;
mod scans;
pub mod stream;
mod strided;
mod summed;
mod tuples;
mod unread;
mod unscheduled;
pub(crate) mod writer;

use crate::simplified::simplified;
use crate::tree::all_realizes;
pub use condition::Condition;
pub use contraction::contraction;
pub use derive::trace;
pub use derive_tensor::{on_tensor_cores, padded, tensor_trace, Untraced};
pub use encode::EncodeError;
pub use engine::{
    root_state, saturate, saturate_while, saturate_without, Engine, Explored, Rule, SaturationError, Verdict,
};
pub use in_order::{BY_ITSELF, IN_ORDER};
pub use menu::{Fuel, Limits, Menu};
pub(crate) use nests::nest_over;
pub use read::read_plan;
use reducer_forms::differences_as_sums;
pub use reducer_forms::in_reducer_forms;
use satune_ir::IterKind;
pub use unread::ReadError;

/// The program that is explored for a source: one whose scans are sums, whose loops and stores are those of blocks, without the schedule
/// that it has already, buffers row by row, a reduction for each result, reductions in the form of reducers, indices in their shortest
/// form, what is updated in place copied before, channels by their groups, a sum for each of several products, factors that are computed
/// or looked up as buffers of their own, channels side by side, neighbouring axes of products as one, maps in the order of what they write, iterators by the
/// digits that indices take of them, products by their groups, a few long sums in parts, and bound to threads what no primitive
/// schedules.
pub fn explored(source: &satune_ir::Program) -> satune_ir::Program {
    let source = &bare::as_blocks(&scans::as_sums(&differences_as_sums(source)));
    let source = strided::row_major(&unscheduled::unscheduled(source).unwrap_or_else(|_| source.clone()));
    let source = tuples::taken_apart(&source, stream::sums_rows);
    let program = simplified(&in_reducer_forms(&in_place::copied_before(&source)));
    let program = summed::one_by_one(&grouped::grouped(&program), summed::MANY);
    let program = factored::factored(&grouped::by_tables(&program));
    let program = flattened::flattened(&channels::side_by_side(&program));
    let program = grouped::products(&digits::by_digits(&ordered::ordered(&program)));
    let program = parted::in_parts(&program, |program, part| {
        !stream::knows(program, part) && stream::takes(program, part).is_ok()
    });
    in_order::in_order(&program, stream::takes)
}

/// Why the program that a scheduled one schedules cannot be told, for people; none where it can.
pub fn not_told(scheduled: &satune_ir::Program) -> Option<String> {
    unscheduled::unscheduled(scheduled).err()
}

/// Whether scans of a program are explored as sums.
pub fn scans(program: &satune_ir::Program) -> bool {
    let program = &differences_as_sums(program);
    scans::as_sums(program).body.block.body != program.body.block.body
}

/// Whether sums of several products of a program are explored as a sum of each.
pub fn sums_products_apart(program: &satune_ir::Program) -> bool {
    let program = in_reducer_forms(&bare::as_blocks(&differences_as_sums(program)));
    summed::one_by_one(&program, summed::MANY).body.block.body != program.body.block.body
}

/// Whether blocks made of loops of a program, which are in no block or within one, add up; none where there are no such loops.
pub fn of_bare_loops(program: &satune_ir::Program) -> Option<bool> {
    let program = &differences_as_sums(program);
    let made = bare::as_blocks(program);
    let sums = |program: &satune_ir::Program| {
        let blocks = all_realizes(&program.body.block.body).into_iter().map(|r| &r.block);
        blocks.filter(|b| b.iter_vars.iter().any(|iv| iv.kind == IterKind::Reduce)).count()
    };
    (made.body.block.body != program.body.block.body).then(|| sums(&made) > sums(program))
}
