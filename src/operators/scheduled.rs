//! The operator that a program on tensor cores is a schedule of.
//!
//! Instructions hide what a program computes. So the operators with its parameters are tried, and one is right where the plan that is read
//! from the program makes this very program of it ([`read_plan`]).
use super::{parse, Problem};
use crate::scheduled::GivenSchedule;
use crate::workload::Asked;
use satune_ir::{DType, Program};
use satune_rewrites::space::read_plan;

/// The operator, with the program's plan to put beside the best; none where no operator that is known leads to the program.
pub fn of_scheduled(program: &Program) -> Option<Problem> {
    let leading_there = |problem: Problem| {
        let plan = read_plan(program, &problem.program, &problem.contraction).ok()?;
        let note = format!("the program is scheduled already: explored is {}, whose schedule it is", problem.name);
        let given = Some(GivenSchedule::Plan(Box::new(plan)));
        Some(Problem { asked: Asked { notes: vec![note], given, ..problem.asked }, ..problem })
    };
    with_parameters_of(program)?.iter().filter_map(|text| parse(text).ok()).find_map(leading_there)
}

/// Products, with what may follow them, whose parameters are those of a program.
fn with_parameters_of(program: &Program) -> Option<Vec<String>> {
    let parameter = |id| {
        let buffer = program.buffer(id);
        Some((buffer.dtype, buffer.extents()?))
    };
    let parameters: Vec<(DType, Vec<i64>)> = program.params.iter().map(|id| parameter(*id)).collect::<Option<_>>()?;
    let [(dtype, a), (_, b), beside @ .., (out, result)] = parameters.as_slice() else { return None };
    let (batch, [m, n]) = match *result.as_slice() {
        [m, n] => (None, [m, n]),
        [batch, m, n] => (Some(batch), [m, n]),
        _ => return None,
    };
    let matrix = |shape: &[i64]| match (batch, shape) {
        (None, [rows, columns]) => Some([*rows, *columns]),
        (Some(batch), [own, rows, columns]) if *own == batch => Some([*rows, *columns]),
        _ => None,
    };
    let (a, b) = (matrix(a)?, matrix(b)?);
    let added: Vec<&str> = beside.iter().map(|(_, shape)| if shape.len() == 1 { "bias" } else { "residual" }).collect();
    let dtype = if *dtype == DType::F32 { "tf32" } else { dtype.name() };
    let narrow = matches!(out, DType::F16 | DType::BF16).then(|| format!("out={}", out.name()));
    let mut found = Vec::new();
    for layout in ["NN", "NT", "TN", "TT"] {
        let [own, k] = if layout.starts_with('T') { [a[1], a[0]] } else { a };
        let [depth, columns] = if layout.ends_with('T') { [b[1], b[0]] } else { b };
        if (own, depth, columns) != (m, k, n) {
            continue;
        }
        let product = match batch {
            None => format!("gemm:{m},{n},{k},{dtype},{layout}"),
            Some(batch) => format!("bmm:{batch},{m},{n},{k},{dtype},{layout}"),
        };
        for activation in ["", "relu", "gelu", "silu"] {
            let options = narrow.as_deref().into_iter().chain(added.iter().copied()).chain([activation]);
            let words = [product.as_str()].into_iter().chain(options.filter(|option| !option.is_empty()));
            let words = words.collect::<Vec<_>>().join(",");
            // Where factors and result are f16, so may sums be.
            let halves = [dtype, out.name()] == ["float16"; 2];
            let in_halves = halves.then(|| format!("{words},sum=f16"));
            found.extend([Some(words), in_halves].into_iter().flatten());
        }
        if batch.is_none() && added == ["bias"] {
            found.push(format!("gemm_bias_relu:{m},{n},{k},{dtype},{layout}"));
        }
    }
    Some(found)
}
