//! `show`: a candidate in text.
use super::{print, print_json, stored, table, Failure, Outcome};
use crate::compile::{self, Compiler};
use crate::explore::{CandidateReport, Report};
use crate::report;
use crate::simulate::Counts;
use crate::source;
use serde_json::json;

/// What to show.
#[derive(clap::Args)]
pub(super) struct Show {
    #[command(flatten)]
    pick: stored::Pick,
    /// What each NVRTC that is here makes of its kernels: registers, spills, hot loop
    #[arg(long)]
    compilers: bool,
}

/// The kernels by each compiler.
fn compilers(report: &Report, c: &CandidateReport, as_json: bool) -> Outcome {
    let jobs = stored::jobs(report, c)?;
    let compiler = Compiler::of(super::devices::this_program()?);
    let found = compile::by_all(&compiler, &jobs);
    if found.is_empty() {
        return Err(Failure::Environment(compile::CompileError::Missing.to_string()));
    }
    let rows = found.iter().flat_map(|(nvrtc, made)| jobs.iter().zip(made).map(move |(job, made)| (job, nvrtc, made)));
    if as_json {
        let row = |(job, nvrtc, made): (&compile::Job, &String, &Result<compile::Figures, String>)| match made {
            Ok(figures) => json!({"kernel": job.name, "nvrtc": nvrtc, "figures": figures}),
            Err(why) => json!({"kernel": job.name, "nvrtc": nvrtc, "refused": why}),
        };
        return print_json(&rows.map(row).collect::<Vec<_>>());
    }
    let mut shown = table::table(&["kernel", "NVRTC", "registers", "spilled bytes", "hot loop", "code bytes"]);
    table::right(&mut shown, &[1, 2, 3, 4, 5]);
    let mut refused = String::new();
    for (job, nvrtc, made) in rows {
        match made {
            Ok(f) => {
                let hot_loop = f.hot_loop.map_or("-".into(), |n| n.to_string());
                let numbers = [f.registers.to_string(), f.spill_bytes.to_string(), hot_loop, f.code_bytes.to_string()];
                shown.add_row([vec![job.name.clone(), nvrtc.clone()], numbers.to_vec()].concat());
            }
            Err(why) => refused.push_str(&format!("NVRTC {nvrtc}: {}\n", why.trim())),
        }
    }
    print(&format!("{}{refused}", table::text(&shown)))
}

/// Prints a candidate: its loops, time parts, occupancy, kernels, and what simulator and compiler found.
pub(super) fn run(args: &Show) -> Outcome {
    let pick = &args.pick;
    let (report, c) = pick.load()?;
    if args.compilers {
        return compilers(&report, &c, pick.json);
    }
    if pick.json {
        return print_json(&c);
    }
    let mut out = format!(
        "{}, {}, of {} on {}: predicted {}, bound by {}\n",
        c.id,
        stored::place(&c),
        report.operator,
        report.gpu,
        stored::predicted(&c),
        c.bottleneck
    );
    for line in &c.schedule {
        out.push_str(&format!("  {line}\n"));
    }
    // A program that this version does not read has no loop tree, and the rest all the same.
    if let Ok(work) = source::work_of_script(&report.operator, &report.program) {
        out.push_str("loops:\n");
        out.push_str(&report::loop_tree(&c.plan, work.workload()));
    }
    out.push_str("time, each part alone:\n");
    out.push_str(&stored::parts(&c));
    out.push_str(&format!(
        "{} block{} resident per multiprocessor, limited by {}\n",
        c.occupancy.0,
        if c.occupancy.0 == 1 { "" } else { "s" },
        c.occupancy.1
    ));
    let s = &c.simulated;
    out.push_str(&format!(
        "simulated {} blocks, equal {}: shared wavefronts {} (least {}), global sectors {} (least {}), {}, {} barriers\n",
        s.blocks,
        s.agreement.words(),
        s.shared_wavefronts,
        s.shared_wavefronts_ideal,
        s.global_sectors,
        s.global_sectors_ideal,
        Counts { matrix: s.matrix, fma: s.fma, arithmetic: s.arithmetic, ..Counts::default() }.computed(),
        s.barriers
    ));
    match &c.compiled {
        Some(m) => out.push_str(&format!(
            "compiled for {}: {} registers, {} bytes spilled, {} bytes of static shared memory{}\n",
            m.arch,
            m.registers,
            m.spill_bytes,
            m.static_shared_bytes,
            m.hot_loop.as_ref().map_or_else(String::new, |l| format!(
                ", hot loop {} instructions, {:.1}% of them arithmetic",
                l.instructions,
                100.0 * l.share
            ))
        )),
        None => out.push_str("not compiled\n"),
    }
    for k in &c.kernels {
        out.push_str(&format!(
            "kernel {} in {}: grid {:?}, block {:?}, {} bytes of dynamic shared memory, arguments {}\n",
            k.name,
            k.file,
            k.grid,
            k.block,
            k.dynamic_shared_bytes,
            k.args.join(", ")
        ));
    }
    out.push_str(&format!("trace in {}, as Python in {}\n", c.trace, c.tvm));
    print(&out)
}
