//! Whether the program that is explored computes what the given one says, and where it does not.
use super::values::{place, InputKind, Inputs};
use crate::agreement;
use satune_ir::interp::{self, in_double, slice, Array, Bounds};
use satune_ir::{visit, BufferId, Program, Stmt};
use satune_rewrites::tree::all_realizes;
use std::collections::BTreeSet;

/// Most block instances that the interpreter runs for an element.
const INSTANCES: u64 = 200_000;
/// How far apart an element may be, relative to the larger of it and 1: sums in another order, in `f64`.
const APART: f64 = 1e-6;

/// Where `explored` does not leave what `given` leaves in the first, a middle and the last element of each of its results, on whole
/// numbers and in `f64`; none where it does. An element that takes too long to be computed is not looked at, nor are parameters of
/// which one has more elements.
pub fn difference(explored: &Program, given: &Program) -> Option<String> {
    let inputs = Inputs::of(given, InputKind::Ordinary, agreement::terms(given), false, crate::reference::SEED);
    let realizes = all_realizes(&given.body.block.body);
    let mut written: BTreeSet<BufferId> = realizes.iter().flat_map(|r| &r.block.writes).map(|w| w.buffer).collect();
    visit::walk_stmt(&given.body.block.body, &mut |s| {
        if let Stmt::Store { buffer, .. } = s {
            written.insert(*buffer);
        }
    });
    let shapes = |program: &Program| {
        let shape = |p: &BufferId| program.buffer(*p).extents();
        program.params.iter().map(shape).collect::<Option<Vec<_>>>()
    };
    let (own, other) = (shapes(given)?, shapes(explored)?);
    let elements = |all: &[Vec<i64>]| all.iter().map(|shape| shape.iter().product()).collect::<Vec<i64>>();
    let strided = given.params.iter().any(|p| !given.buffer(*p).strides.is_empty());
    if elements(&own) != elements(&other) || strided {
        return None;
    }
    given.params.iter().enumerate().filter(|(_, p)| written.contains(p)).find_map(|(param, id)| {
        [|_| 0, |n: i64| n / 2, |n: i64| n - 1].iter().find_map(|at| {
            let index: Vec<i64> = own[param].iter().map(|n| at(*n)).collect();
            let at = own[param].iter().zip(&index).fold(0, |sum, (n, at)| sum * n + at);
            let want = element(given, &inputs, &own, param, at)??;
            let got = element(explored, &inputs, &other, param, at)?;
            if got.is_some_and(|got| close(got, want)) {
                return None;
            }
            let got = got.map_or("not written".into(), |got| got.to_string());
            Some(format!("{}{index:?} is {got}, not {want}", given.buffer(*id).name))
        })
    })
}

fn close(got: f64, want: f64) -> bool {
    got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= APART * got.abs().max(want.abs()).max(1.0)
}

/// The element at this place of a parameter after the program, none where the program does not run or leaves it unwritten; none at all where it
/// takes too long.
fn element(program: &Program, inputs: &Inputs, shapes: &[Vec<i64>], param: usize, at: i64) -> Option<Option<f64>> {
    let mut rest = at;
    let mut bounds = Bounds::new();
    for extent in shapes[param].iter().rev() {
        bounds.push((rest % extent, rest % extent + 1));
        rest /= extent;
    }
    bounds.reverse();
    let part = slice(program, &[(program.params[param], bounds)]).filter(|part| part.instances <= INSTANCES)?;
    let array = |(p, bounds): (usize, &Bounds)| inputs.array(p, &shapes[p], bounds).ok().map(|a| a.in_double());
    let arrays = part.bounds.iter().enumerate().map(array).collect::<Option<Vec<Array>>>()?;
    let run = interp::run(&in_double(&part.program), &arrays);
    let bounds = &part.bounds[param];
    let extents: Vec<i64> = bounds.iter().map(|(low, high)| high - low).collect();
    let position = (0..extents.iter().product::<i64>() as u64)
        .find(|p| place(*p, &extents, &shapes[param], bounds) == at as u64)?;
    Some(run.ok().and_then(|after| after.get(param)?.to_f64().get(position as usize).copied()))
}

#[cfg(test)]
mod tests {
    use super::difference;
    use satune_ir::{tvmscript, Program};

    fn rows(update: &str, after: &str) -> Program {
        let text = format!(
            "@T.prim_func(s_tir=True)\ndef main(X: T.Buffer((300, 700), \"float32\"), Y: T.Buffer((300, 700), \"float16\")):\n    s = \
             T.sblock_alloc_buffer((300,), \"float32\")\n    for i, j in T.grid(300, 700):\n        with T.sblock(\"s\"):\n            vi, \
             vj = T.axis.remap(\"SR\", [i, j])\n            with T.init():\n                s[vi] = T.float32(0)\n            s[vi] = \
             {update}\n    for i, j in T.grid(300, 700):\n        with T.sblock(\"Y\"):\n            vi, vj = T.axis.remap(\"SS\", \
             [i, j])\n            Y[vi, vj] = T.Cast(\"float16\", {after})\n"
        );
        tvmscript::parse(&text).unwrap()
    }

    #[test]
    fn what_computes_something_else_is_found() {
        let given = rows("s[vi] + X[vi, vj]", "X[vi, vj] - s[vi]");
        let found = |update: &str, after: &str| difference(&rows(update, after), &given);
        assert_eq!(found("X[vi, vj] + s[vi]", "X[vi, vj] - s[vi] * T.float32(1)"), None);
        let wrong = found("s[vi] + X[vi, vj]", "X[vi, vj] - s[299 - vi]").unwrap();
        assert!(wrong.starts_with("Y[0, 0] is ") && wrong.contains(", not "), "{wrong}");
        assert!(found("s[vi] + X[vi, 699 - vj] * T.float32(2)", "X[vi, vj] - s[vi]").is_some());
        assert!(found("T.max(s[vi], X[vi, vj])", "X[vi, vj] - s[vi]").is_some());
    }
}
