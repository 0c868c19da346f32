//! `reorder`: neighbouring loops of one team and one role change places; and the grouped rasterization made from it.
use crate::space::conditions::group_divides;
use crate::space::{Condition, Engine, Rule};
use satune_ir::term::{Axis, Role, Stage, State, Term};

/// `for m: for n: body = for n: for m: body`, where both are loops over blocks, warps, lanes or registers.
///
/// Side condition: neither has extent 1 (that would be the same program twice). Both axes are spatial, so no
/// dependence is crossed.
pub struct Reorder;

impl Rule for Reorder {
    fn name(&self) -> &'static str {
        "reorder"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, _state: &State) {
        let Term::Loop { axis: Axis::M, role, extent, total, body } = node else { return };
        let may = matches!(role, Role::Block | Role::Warp | Role::Thread | Role::Unroll);
        if !engine.holds(Condition::ReorderRoles, may) || *extent == 1 {
            return;
        }
        for inner in engine.nodes(body[0]) {
            let Term::Loop { axis: Axis::N, role: inner_role, extent: e, total: t, body: inner_body } = inner else {
                continue;
            };
            let free = engine.holds(Condition::ReorderGrouped, !grouped(engine, inner_body[0]));
            if inner_role != *role || e == 1 || !free {
                continue;
            }
            let below = engine.term(Term::Loop {
                axis: Axis::M,
                role: *role,
                extent: *extent,
                total: *total,
                body: inner_body,
            });
            engine.equals(Term::Loop { axis: Axis::N, role: *role, extent: e, total: t, body: [below] });
        }
    }
}

/// Whether the blocks below are grouped already.
fn grouped(engine: &Engine<'_>, class: egg::Id) -> bool {
    matches!(engine.state(class).stage, Stage::Grouped { .. })
}

/// Grouped rasterization: `for m in blocks(g * G): for n in blocks: body = for m in blocks(g): for n in blocks: for m in
/// group(G): body`, and the same with m and n changed: neighbouring blocks share panels of both operands in L2.
///
/// Side condition: G divides the blocks along the axis, and the other axis has more than one block.
pub struct Group;

impl Rule for Group {
    fn name(&self) -> &'static str {
        "split, reorder blocks (grouped rasterization)"
    }

    fn apply(&self, engine: &mut Engine<'_>, node: &Term, _state: &State) {
        let Term::Loop { axis, role: Role::Block, extent, total, body } = node else { return };
        if !matches!(axis, Axis::M | Axis::N) {
            return;
        }
        for inner in engine.nodes(body[0]) {
            let Term::Loop { axis: other, role: Role::Block, extent: e, total: t, body: inner_body } = inner else {
                continue;
            };
            let crosses = matches!((axis, other), (Axis::M, Axis::N) | (Axis::N, Axis::M));
            if !crosses || grouped(engine, inner_body[0]) {
                continue;
            }
            let tile = engine.state(inner_body[0]).tile.get(*axis);
            for group in engine.menu.groups.clone() {
                let [several, divides] = group_divides(*axis, group, *extent, e);
                if several.is_err() || !engine.holds(Condition::GroupDivides, divides) {
                    continue;
                }
                let grouped = engine.term(Term::Loop {
                    axis: *axis,
                    role: Role::Group,
                    extent: group,
                    total: group * tile,
                    body: inner_body,
                });
                let crossed =
                    engine.term(Term::Loop { axis: other, role: Role::Block, extent: e, total: t, body: [grouped] });
                let (extent, total) = (extent / group, *total);
                engine.equals(Term::Loop { axis: *axis, role: Role::Block, extent, total, body: [crossed] });
            }
        }
    }
}
