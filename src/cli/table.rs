//! Tables for people.
use crate::device::Kind;
use crate::explore::Report;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use satune_extract::Descriptor;
use std::path::Path;

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(header);
    table
}

pub(super) fn right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// A large number in a form that can be read: `2.10e12`.
fn large(decimal: &str) -> String {
    if decimal.len() <= 7 {
        return decimal.into();
    }
    let digits: String = decimal.chars().take(3).collect();
    format!("{}.{}e{}", &digits[..1], &digits[1..], decimal.len() - 1)
}

/// The ranked candidates.
pub(super) fn candidates(report: &Report, folder: &Path) -> String {
    let space = &report.space;
    let saturated = space.stopped_by == "saturated";
    let counted = match space.schedules.as_str() {
        "" => "schedules not counted".into(),
        all if saturated => format!("{} schedules", large(all)),
        some => format!("{} schedules so far", large(some)),
    };
    let mut out = format!(
        "{} on {}: {counted} in {} e-nodes, {} in {:.2} s, extracted in {:.2} s ({})\n",
        report.operator,
        report.gpu,
        space.enodes,
        if saturated { "saturated".into() } else { format!("saturation ended at its limit ({})", space.stopped_by) },
        space.saturate_s,
        space.extract_s,
        if report.proved_optimal {
            "proved the best under the model".to_string()
        } else if !saturated {
            "not proved: the space is not whole, --fuel gives it more e-nodes".to_string()
        } else {
            format!("not proved; nothing can be predicted below {:.4} ms", report.bound_ms)
        },
    );
    for (refused, who) in [(&report.bugs, "the simulator (a bug)"), (&report.rejected, "the compiler")] {
        if !refused.is_empty() {
            out.push_str(&format!("{} candidates are refused by {who}, and not ranked\n", refused.len()));
        }
    }
    for note in &report.notes {
        out.push_str(&format!("{note}\n"));
    }
    if let Some(m) = &report.measured {
        let rejected = m.rejected_text();
        let note = if m.kind == Kind::Simulator { "; its times are predictions, not measured on a GPU" } else { "" };
        out.push_str(&format!(
            "{} candidates on {} ({}{note}); {} known from the store, {rejected}\n",
            m.trials, m.device, m.toolchain, m.reused
        ));
    }
    // A simulator's times are the predictions.
    let timed = report.measured.as_ref().is_some_and(|m| m.kind != Kind::Simulator);
    let mut header = vec!["#", "id"];
    header.extend(timed.then_some("measured ms"));
    header.extend([
        "predicted ms",
        "launch",
        "bound by",
        "block",
        "k",
        "threads",
        "overlap",
        "regs",
        "spill",
        "math",
        "simulated",
    ]);
    let mut rows = table(&header);
    for c in &report.candidates {
        let compiled = c.compiled.as_ref();
        let dash = || "-".to_string();
        let loop_math =
            compiled.and_then(|m| m.hot_loop.as_ref()).map_or_else(dash, |m| format!("{:.1}%", 100.0 * m.share));
        let s = &c.simulated;
        let agrees = s.agreement.word();
        let clean = if s.shared_wavefronts == s.shared_wavefronts_ideal && s.global_sectors == s.global_sectors_ideal {
            format!("{agrees}, no conflicts")
        } else {
            format!(
                "{agrees}, {:.2}x wavefronts, {:.2}x sectors",
                s.shared_wavefronts as f64 / s.shared_wavefronts_ideal.max(1) as f64,
                s.global_sectors as f64 / s.global_sectors_ideal.max(1) as f64
            )
        };
        let shape = c.plan.summary();
        let times = c.measured.as_ref().filter(|_| timed);
        let tie = times.filter(|m| m.place != c.rank).map_or(String::new(), |m| format!(" (ties with {})", m.place));
        let mut cells = vec![format!("{}{tie}", c.rank), c.id.clone()];
        cells.extend(timed.then(|| times.map_or_else(dash, |m| format!("{:.4}", m.ms))));
        cells.extend([
            format!("{:.4}", c.predicted_ms),
            format!("{:.4}", c.launch_ms),
            c.bottleneck.clone(),
            shape.tile,
            shape.step,
            c.plan.threads().to_string(),
            shape.overlap,
            compiled.map_or_else(dash, |m| m.registers.to_string()),
            compiled.map_or_else(dash, |m| m.spill_bytes.to_string()),
            loop_math,
            clean,
        ]);
        rows.add_row(cells);
    }
    let numbers = [2, 3, 6, 7, 9, 10, 11].map(|column| column + usize::from(timed));
    right(&mut rows, &numbers);
    right(&mut rows, if timed { &[0, 2] } else { &[0] });
    out.push_str(&format!("{rows}\n"));
    if let Some(reason) = &report.not_compiled {
        out.push_str(&format!("not compiled: {reason}\n"));
    }
    out.push_str(&format!("kernels, traces, report.html and candidates.json are in {}\n", folder.display()));
    out
}

/// The built-in descriptors.
pub(super) fn gpus(all: &[Descriptor]) -> String {
    let mut rows = table(&["name", "GPU", "arch", "SMs", "MHz", "shared/block KiB", "L2 MiB", "DRAM GB/s", "cp.async"]);
    for gpu in all {
        rows.add_row([
            gpu.name.clone(),
            gpu.full_name.clone(),
            gpu.arch.clone(),
            gpu.sms.to_string(),
            format!("{}", gpu.clock_mhz),
            (gpu.shared_per_block / 1024).to_string(),
            (gpu.l2_bytes >> 20).to_string(),
            format!("{}", gpu.dram_nominal_gbs),
            if gpu.cp_async { "yes" } else { "no" }.into(),
        ]);
    }
    right(&mut rows, &[3, 4, 5, 6, 7]);
    format!("{rows}\n")
}
