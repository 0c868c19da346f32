//! Rules 4, 5 and 7 where integers that are given decide which elements are accessed: the program is looked at as it is for
//! some of their values, the same for all of a parameter. Those for which the source breaks a rule itself are not asked.
use super::samples::Samples;
use super::view::{Rule, View};
use super::walk::{Frame, Walk};
use crate::schedule::Result;
use satune_ir::{visit, BufferId, DType, Expr, Program};
use std::collections::HashSet;

/// The least that an index may be, and one with a neighbour on either side.
const VALUES: [i64; 2] = [0, 1];

/// Integers that a program is given and that decide where it accesses others, and the rules that it keeps for some of their
/// values.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    given: HashSet<BufferId>,
    kept: Vec<(i64, Vec<bool>)>,
}

impl Data {
    /// Those of a source.
    pub(super) fn of(source: &Program, before: &Walk, rules: &[Rule]) -> Data {
        let given = given(source, before);
        let kept = |value: i64| {
            let fixed = with(source, &given, value);
            let walk = Walk::of(&fixed);
            let view = View::of(&fixed, &walk, before);
            (value, rules.iter().map(|rule| rule(&view, &mut Samples::default()).is_ok()).collect())
        };
        let kept = if given.is_empty() { Vec::new() } else { VALUES.map(kept).to_vec() };
        Data { given, kept }
    }

    /// Refuses a program that breaks a rule for values for which its source keeps it.
    pub(super) fn check(&self, scheduled: &Program, before: &Walk, rules: &[Rule]) -> Result<()> {
        self.kept.iter().try_for_each(|(value, kept)| {
            let fixed = with(scheduled, &self.given, *value);
            let walk = Walk::of(&fixed);
            let (view, mut samples) = (View::of(&fixed, &walk, before), Samples::default());
            rules.iter().zip(kept).filter(|(_, kept)| **kept).try_for_each(|(rule, _)| rule(&view, &mut samples))
        })
    }
}

/// The parameters of integers that are only read, and read for an index or to bind an iterator.
fn given(program: &Program, walk: &Walk) -> HashSet<BufferId> {
    let integers = |b: &BufferId| matches!(program.buffer(*b).dtype, DType::I32 | DType::I64);
    let only_read = |b: &BufferId| walk.stores(*b).next().is_none() && !walk.opaque.contains(b);
    let mut given: HashSet<BufferId> = program.params.iter().copied().filter(|b| integers(b) && only_read(b)).collect();
    if !given.is_empty() {
        let frames = walk.instances.iter().filter_map(|frames| frames.last());
        let bound = frames.flat_map(|f| match f {
            Frame::Block(r) => &r.iter_values[..],
            _ => &[],
        });
        let indices = walk.accesses.iter().flat_map(|a| a.indices).chain(bound);
        let named: HashSet<BufferId> = indices.flat_map(visit::loads).map(|(b, _)| b).collect();
        given.retain(|b| named.contains(b));
    }
    given
}

/// The program where all of these parameters hold one value.
fn with(program: &Program, given: &HashSet<BufferId>, value: i64) -> Program {
    let mut out = program.clone();
    out.body = visit::map_realize_exprs(&out.body, &mut |e| {
        visit::map_expr(e, &mut |e| match &e {
            Expr::Load(buffer, _) if given.contains(buffer) => Expr::Int(value, program.buffer(*buffer).dtype),
            _ => e,
        })
    });
    out
}
