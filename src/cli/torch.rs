//! `emit --as torch`.
use super::{stored::Pick, Failure};
use crate::explore::{CandidateReport, Report};
use crate::host::{torch_extension, Extension, Launch, Tensor};
use crate::lower::program::Argument;
use crate::scheduled::Scheduled;
use crate::source;
use satune_ir::{visit, BufferId, Expr, Program, Region, Stmt};

/// Whether a program reads a parameter before it writes it: the first block that touches it does.
fn reads_first(program: &Program, id: BufferId) -> bool {
    let touches = |regions: &[Region]| regions.iter().any(|r| r.buffer == id);
    let mut first = None;
    visit::walk_stmt(&program.body.block.body, &mut |s| {
        if let Stmt::Realize(r) = s {
            if touches(&r.block.reads) || touches(&r.block.writes) {
                first.get_or_insert(touches(&r.block.reads));
            }
        }
    });
    first.unwrap_or(false)
}

/// A PyTorch extension that holds the kernels of a candidate.
pub(super) fn extension(
    pick: &Pick,
    report: &Report,
    c: &CandidateReport,
    made: &Scheduled,
) -> Result<String, Failure> {
    let work = source::work_of_script(&report.operator, &report.program).map_err(|e| Failure::Input(e.to_string()))?;
    let program = work.workload().program();
    let mut tensors = Vec::new();
    for (number, id) in program.params.iter().enumerate() {
        let buffer = program.buffer(*id);
        let written = made.module.kernels.iter().zip(&made.module.args).any(|(kernel, args)| {
            kernel.params().zip(args).any(|((_, array), a)| array.written && *a == Argument::Param(number))
        });
        let shape: Option<Vec<i64>> =
            buffer.shape.iter().map(|e| if let Expr::Int(v, _) = e { Some(*v) } else { None }).collect();
        let shape =
            shape.ok_or_else(|| Failure::Input(format!("the shape of {} is not made of constants", buffer.name)))?;
        let updated = written && reads_first(program, *id);
        tensors.push(Tensor { name: buffer.name.clone(), dtype: buffer.dtype, shape, written, updated });
    }
    let workspaces: Vec<(String, u64)> =
        made.module.workspaces.iter().map(|w| (w.name.clone(), w.elements * u64::from(w.dtype.bytes()))).collect();
    let launches: Vec<Launch> =
        made.module.kernels.iter().zip(&c.kernels).map(|(kernel, k)| Launch::of(kernel, &k.args)).collect();
    let mut sources = Vec::new();
    for kernel in &c.kernels {
        let path = pick.out.join(&kernel.file);
        sources.push(std::fs::read_to_string(&path).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?);
    }
    let name = c.kernels.last().map_or(c.id.as_str(), |k| k.name.as_str());
    let what = Extension { name, tensors: &tensors, workspaces: &workspaces, launches: &launches, sources: &sources };
    torch_extension(&what).map_err(|e| Failure::Nothing(e.to_string()))
}
