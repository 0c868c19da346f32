//! `emit --as torch`.
use super::{stored, Failure};
use crate::explore::{self, CandidateReport, Report};
use crate::host::{torch_extension, Extension, Tensor};
use crate::lower::program::Argument;
use crate::scheduled::Scheduled;
use crate::source;
use satune_rewrites::soundness::makes_all;

/// A PyTorch operator that holds the kernels of a candidate.
pub(super) fn extension(report: &Report, c: &CandidateReport, made: &Scheduled, name: &str) -> Result<String, Failure> {
    let work = source::work_of_script(&report.operator, &report.program).map_err(|e| Failure::Input(e.to_string()))?;
    let program = work.workload().program();
    let mut tensors = Vec::new();
    for (number, id) in program.params.iter().enumerate() {
        let buffer = program.buffer(*id);
        let written = made.module.kernels.iter().zip(&made.module.args).any(|(kernel, args)| {
            kernel.params().zip(args).any(|((_, array), a)| array.written && *a == Argument::Param(number))
        });
        let given = report.shapes.get(number).cloned();
        let shape = given.or_else(|| buffer.extents());
        let shape =
            shape.ok_or_else(|| Failure::Input(format!("the shape of {} is not made of constants", buffer.name)))?;
        // What it leaves of what was there is the caller's.
        let updated = written && !makes_all(program, *id);
        tensors.push(Tensor { name: buffer.name.clone(), dtype: buffer.dtype, shape, written, updated });
    }
    let workspaces: Vec<(String, u64)> =
        made.module.workspaces.iter().map(|w| (w.name.clone(), w.elements * u64::from(w.dtype.bytes()))).collect();
    let launches = stored::launches(program, made, name);
    let sources: Vec<String> = explore::renamed(made, name).iter().map(crate::cuda::print).collect();
    let what = Extension { name, tensors: &tensors, workspaces: &workspaces, launches: &launches, sources: &sources };
    let text = torch_extension(&what).map_err(|e| Failure::Nothing(e.to_string()))?;
    Ok(format!("{}{text}", explore::comment("//", &stored::about(report, c)?)))
}
