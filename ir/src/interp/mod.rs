//! The reference interpreter: the meaning of a program, scheduled or not.
//!
//! A program is run by one thread, statement after statement. Loops of every kind, bound to threads, vectorized,
//! unrolled or parallel, run as plain loops, and annotations mean nothing.
//!
//! * A block instance runs where its predicate holds. Its iterators have to be within their domains. Its `init` runs
//!   before the body where every reduction iterator is at its minimum.
//! * A buffer that a block allocates is unwritten whenever the block is entered; reading an unwritten element is a
//!   [`Fault`], and so is every index outside a buffer. Strides and alignment of buffers have no influence.
//! * Each operation is that of its type, as [`crate::semantics`] has it: floats are rounded, integers wrap, on elements and
//!   indices alike.
//! * `T.if_then_else` and `T.Select` alike evaluate only the side that is taken; `and` and `or` stop where the result is
//!   known.
//! * Intrinsics are computed in `f64` and rounded to their type. One that the interpreter does not know is a fault
//!   before anything runs.
//!
//! A program is compiled once to a form without names, which is then run.
mod code;
mod compare;
mod compile;
mod compiler;
mod double;
mod eval;
mod expression;
mod fault;
mod inner;
mod options;
mod run;
mod slice;
mod tape;
#[cfg(test)]
mod tests;
mod value;

pub use compare::{
    equal_on, equal_on_inputs, first_uses, input_rules, random_inputs, Difference, FirstUse, InputRule, Which,
};
pub use double::{doubled, in_double};
pub use fault::{Access, Fault, Instance};
pub use options::Options;
pub use slice::{slice, Bounds, Slice};
pub use value::{Array, Scalar};

use crate::semantics::Function;
use crate::{BufferId, DType, Program};
use fault::Tuple;

/// The value of an intrinsic of a name without prefix (`exp`, `pow`), of type `dtype`: computed in `f64`, then rounded.
/// None where there is no such function of so many arguments.
pub fn intrinsic(name: &str, args: &[f64], dtype: DType) -> Option<f64> {
    let (function, count) = Function::named(name)?;
    let mut padded = [0.0; 3];
    padded.get_mut(..args.len())?.copy_from_slice(args);
    (count == args.len()).then(|| function.apply(padded, dtype))
}

/// Runs a program on one array per parameter (those that it only writes may be [`Array::unwritten`]), and returns what
/// it leaves in them.
pub fn run(program: &Program, inputs: &[Array]) -> Result<Vec<Array>, Fault> {
    run_with(program, inputs, &Options::default())
}

/// [`run`], where blocks may access only what they declare.
pub fn run_checked(program: &Program, inputs: &[Array]) -> Result<Vec<Array>, Fault> {
    run_with(program, inputs, &Options { check_regions: true, ..Options::default() })
}

/// [`run`] with limits and checks.
pub fn run_with(program: &Program, inputs: &[Array], options: &Options) -> Result<Vec<Array>, Fault> {
    run_while(program, inputs, options, &|| true)
}

/// [`run_with`] for as long as `go_on` says so, which is asked every few thousand statements; then [`Fault::Stopped`].
pub fn run_while(
    program: &Program,
    inputs: &[Array],
    options: &Options,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<Array>, Fault> {
    if inputs.len() != program.params.len() {
        let reason = format!("{} has {} parameters, but {} arrays", program.name, program.params.len(), inputs.len());
        return Err(Fault::Inputs { reason });
    }
    let code = compile::compile(program, options)?;
    for (info, array) in code.arrays.iter().zip(inputs) {
        if info.dtype != array.dtype() || info.shape != array.shape() {
            let (given, wanted) = (Tuple(array.shape()), Tuple(&info.shape));
            let (name, wants, has) = (&info.name, info.dtype.name(), array.dtype().name());
            let reason = format!("the parameter {name} is {wants} of shape {wanted}, its array {has} of shape {given}");
            return Err(Fault::Inputs { reason });
        }
    }
    run::Machine::run(&code, inputs, options, go_on)
}

/// The shape of a buffer, which has to be constant.
fn constant_shape(program: &Program, buffer: BufferId) -> Result<Vec<i64>, Fault> {
    let buffer = program.buffer(buffer);
    let none = || Fault::Inputs { reason: format!("the shape of the parameter {} is not constant", buffer.name) };
    buffer.extents().ok_or_else(none)
}
