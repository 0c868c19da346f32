//! Tables for people.
use super::{ask, visible};
use crate::device::DeviceKind;
use crate::execute::Executed;
use crate::explore::{CandidateReport, Judge, Report};
use crate::source::Work;
use crate::workload::{Workload, Yardstick};
use comfy_table::{Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Table, Width};
use satune_extract::Descriptor;
use satune_ir::term::{Axis, Schedule, Side};
use std::io::IsTerminal;
use std::path::Path;

/// Columns that a table fits where nobody says how many there are.
const WIDTH: u16 = 120;

/// Two spaces between columns, a line below the header.
const PRESET: &str = "     ──            ";

/// Whether colours are wanted: on a terminal, unless `NO_COLOR` says no (no-color.org).
fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(PRESET).set_content_arrangement(ContentArrangement::Dynamic);
    if colours() {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    if table.width().is_none_or(|width| !std::io::stdout().is_terminal() || width < WIDTH) {
        table.set_width(WIDTH);
    }
    table.set_header(header.iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    table
}

/// Lets a column's cells take several lines where the table is too wide; words stay whole.
pub(super) fn wrap(table: &mut Table, column: usize) {
    let cells = table.row_iter().filter_map(|row| row.cell_iter().nth(column));
    let words = cells.flat_map(|cell| cell.content().split_whitespace().map(|w| w.chars().count()).max());
    let longest = words.max().unwrap_or(0) as u16;
    if let Some(column) = table.column_mut(column) {
        // The padding counts.
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(longest + 1)));
    }
}

pub(super) fn right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// The table as it is printed.
pub(super) fn text(table: &Table) -> String {
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A large number in a form that can be read: `2.10e12`.
fn large(decimal: &str) -> String {
    if decimal.len() <= 7 {
        return decimal.into();
    }
    let digits: String = decimal.chars().take(3).collect();
    format!("{}.{}e{}", &digits[..1], &digits[1..], decimal.len() - 1)
}

/// What comes of an operator that its name leaves open: the order of storage as BLAS calls it, the result's type.
fn meaning(problem: &dyn Workload) -> String {
    let Some(c) = problem.contraction().filter(|c| c.gather.is_none() && c.combine.is_none()) else {
        return String::new();
    };
    let transposed = |side| c.operand(side).dims.iter().rev().find(|axis| !matches!(axis, Axis::Batch(_))).copied();
    let a = transposed(Side::A).is_some_and(|last| last != Axis::K);
    let b = transposed(Side::B).is_some_and(|last| last == Axis::K);
    let letter = |is: bool| if is { 'T' } else { 'N' };
    let stored = format!("row-major {}{}", letter(a), letter(b));
    let blas = format!("column-major BLAS: {}{}", letter(b), letter(a));
    let result = c.epilogue.as_ref().map_or(c.c.dtype, |_| written(problem));
    format!("; {stored} ({blas}, operands swapped), result {}", result.name())
}

/// The type of the last parameter, which is the result.
fn written(problem: &dyn Workload) -> satune_ir::DType {
    let program = problem.program();
    program.params.last().map_or(satune_ir::DType::F32, |id| program.buffer(*id).dtype)
}

/// What a candidate reaches, and its share of what the GPU can do.
fn rate(yardstick: &Yardstick, gpu: &Descriptor, ms: f64) -> (String, String) {
    let per_second = yardstick.amount() / (ms * 1e-3);
    let scaled = match yardstick {
        Yardstick::Arithmetic { .. } => per_second * 1e-12,
        Yardstick::Bytes(_) => per_second * 1e-9,
    };
    let digits = if scaled < 100.0 { 2 } else { 0 };
    (format!("{scaled:.digits$}"), format!("{:.0}%", 100.0 * per_second / yardstick.peak(gpu)))
}

/// How copies overlap the arithmetic, in a narrow column: `wgmma 4 st 2 wg turn 1x2`. wgmma is fed by the TMA unless it says who else does,
/// `mma.sync` by cp.async where the GPU has it, else through registers as wmma.
fn brief(overlap: &str) -> String {
    let is_matrix = ["mma.sync", "wgmma", "tcgen05", "wmma"].iter().any(|name| overlap.starts_with(name));
    let ways: &[&str] = if is_matrix { &[", cp.async", ", TMA", ", through registers"] } else { &[] };
    let text = ways.iter().fold(overlap.to_string(), |text, way| text.replacen(way, "", 1));
    let short = [(" consumers", " wg"), (" stages", " st"), (" in turn", " turn"), ("cluster ", ""), (", ", " ")];
    short.into_iter().fold(text, |text, (long, short)| text.replace(long, short))
}

/// Runs of candidates that nothing tells apart: neither was measured, and the model gives them one time.
fn ties(report: &Report, timed: bool) -> Vec<&[CandidateReport]> {
    let same = |a: &CandidateReport, b: &CandidateReport| {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs();
        let by_loop = |c: &CandidateReport| c.judged_ms().unwrap_or(c.predicted_ms);
        !timed && near(a.predicted_ms, b.predicted_ms) && near(by_loop(a), by_loop(b))
    };
    report.candidates.chunk_by(same).collect()
}

/// In what those of a tie differ, a line.
fn differ(tie: &[CandidateReport], work: &Work) -> Option<String> {
    let [first, .., last] = tie else { return None };
    let plans: Vec<&Schedule> = tie.iter().map(|c| &c.plan).collect();
    let differences: Vec<String> = ask::differences(work, &plans)
        .into_iter()
        .map(|(name, values)| format!("{name} ({})", values.join(" | ")))
        .collect();
    let ids: Vec<&str> = tie[1..].iter().map(|c| c.id.as_str()).collect();
    Some(format!(
        "{}-{}: the model gives all one time ({} as {}); they differ in {}\n",
        first.rank,
        last.rank,
        ids.join(", "),
        first.id,
        if differences.is_empty() { "nothing that it knows".into() } else { differences.join(", ") }
    ))
}

/// A list of names, the first of many.
fn few(names: &[String]) -> String {
    match names {
        [first, second, third, _, rest @ ..] if !rest.is_empty() => {
            format!("{first}, {second}, {third} and {} others", rest.len() + 1)
        }
        all => all.join(", "),
    }
}

/// What it took to find the programs that primitives make of the source, where that is seen; the sentence goes on.
pub(super) fn encoded(seconds: f64) -> String {
    if seconds < 0.005 {
        return String::new();
    }
    format!("encoded in {seconds:.2} s, ")
}

/// The ranked candidates.
pub(super) fn candidates(report: &Report, work: &Work, gpu: &Descriptor, folder: &Path) -> String {
    let problem = work.workload();
    let space = &report.space;
    let saturated = space.stopped_by == "saturated";
    let counted = match space.schedules.as_str() {
        "" => "schedules not counted".into(),
        all if saturated => format!("{} schedules", large(all)),
        some => format!("{} schedules so far", large(some)),
    };
    let mut out = format!(
        "{} on {}{}\n{counted} in {} e-nodes, {}{} in {:.2} s, extracted in {:.2} s ({})\n",
        report.operator,
        report.gpu,
        meaning(problem),
        space.enodes,
        encoded(space.encode_s),
        if saturated { "saturated".into() } else { format!("saturation ended at its limit ({})", space.stopped_by) },
        space.saturate_s,
        space.extract_s,
        if report.proved_optimal && report.untiled.is_empty() {
            "proved the best under the model".to_string()
        } else if report.proved_optimal {
            format!("the best of these under the model; for {} better ones may not be among them", few(&report.untiled))
        } else if !saturated {
            "not proved: the space is not whole, --fuel gives it more e-nodes".to_string()
        } else {
            format!("not proved; nothing can be predicted below {:.4} ms", report.bound_ms)
        },
    );
    for (refused, who) in [(&report.bugs, "simulator or execution (a bug)"), (&report.rejected, "the compiler")] {
        if !refused.is_empty() {
            out.push_str(&format!("{} candidates are refused by {who}, and not ranked\n", refused.len()));
        }
    }
    for note in &report.notes {
        out.push_str(&format!("{note}\n"));
    }
    let refused = !report.bugs.is_empty() || !report.rejected.is_empty();
    // Where all were refused before, nothing came to a device.
    if let Some(m) = report.measured.as_ref().filter(|m| m.trials > 0 || !refused) {
        let rejected = m.rejected_text();
        let note =
            if m.kind == DeviceKind::Simulator { "; its times are predictions, not measured on a GPU" } else { "" };
        out.push_str(&format!(
            "{} candidates on {} ({}{note}); {} known from the store, {rejected}\n",
            m.trials, m.device, m.toolchain, m.reused
        ));
    }
    let yardstick = problem.yardstick();
    let unit = if matches!(yardstick, Yardstick::Arithmetic { .. }) { "TFLOP/s" } else { "GB/s" };
    // A simulator's times are the predictions.
    let timed = report.measured.as_ref().is_some_and(|m| m.kind != DeviceKind::Simulator);
    let mut header = vec!["#", "id"];
    header.push("ms");
    header.extend(timed.then_some("pred. ms"));
    let by_loops = report.ranked_by == Judge::CompiledLoops;
    header.extend(by_loops.then_some("by loop"));
    header.extend([unit, "peak"]);
    let executed_any = report.candidates.iter().any(|c| c.executed.is_some());
    // Where `ran` takes the room, `why` has it.
    let launches = !timed && !executed_any;
    header.extend(launches.then_some("launch"));
    header.extend(["bound", "block"]);
    // Rows and maps have no tiles along k, and no arithmetic to speak of.
    let tiles = report.candidates.iter().any(|c| c.plan.summary().step != "-");
    header.extend(tiles.then_some("k"));
    header.extend(["threads", "overlap"]);
    let compiled_any = report.candidates.iter().any(|c| c.compiled.is_some());
    header.extend(compiled_any.then_some(["regs", "spill"]).into_iter().flatten());
    // Where the loops themselves are judged, what of them is arithmetic takes no room.
    let math = compiled_any && tiles && !by_loops;
    header.extend(math.then_some("math"));
    header.push("checked");
    header.extend(executed_any.then_some("ran"));
    let mut rows = table(&header);
    let mut conflicts = false;
    let ties = ties(report, timed);
    for tie in &ties {
        let c = &tie[0];
        let compiled = c.compiled.as_ref();
        let dash = || "-".to_string();
        let loop_math =
            compiled.and_then(|m| m.hot_loop.as_ref()).map_or_else(dash, |m| format!("{:.1}%", 100.0 * m.share));
        let s = &c.simulated;
        let agrees = s.agreement.word();
        let times = |taken: u64, least: u64| taken as f64 / least.max(1) as f64;
        let (wavefronts, sectors) =
            (times(s.shared_wavefronts, s.shared_wavefronts_ideal), times(s.global_sectors, s.global_sectors_ideal));
        let extra = s.shared_wavefronts > s.shared_wavefronts_ideal || s.global_sectors > s.global_sectors_ideal;
        conflicts |= extra;
        let simulated = if extra { format!("{agrees} {wavefronts:.2}x/{sectors:.2}x") } else { agrees.to_string() };
        let shape = c.plan.summary();
        let times = c.measured.as_ref().filter(|_| timed);
        let place = match (times, tie.last()) {
            (Some(m), _) if m.place != c.rank => format!("{}={}", c.rank, m.place),
            (_, Some(last)) if last.rank != c.rank => format!("{}-{}", c.rank, last.rank),
            _ => c.rank.to_string(),
        };
        let (reached, share) = rate(&yardstick, gpu, times.map_or(c.predicted_ms, |m| m.ms));
        let mut cells = vec![place, c.id.clone()];
        cells.extend(timed.then(|| times.map_or_else(dash, |m| format!("{:.4}", m.ms))));
        cells.push(format!("{:.4}", c.predicted_ms));
        cells.extend(by_loops.then(|| c.judged_ms().map_or_else(dash, |ms| format!("{ms:.4}"))));
        cells.extend([reached, share]);
        cells.extend(launches.then(|| format!("{:.4}", c.launch_ms)));
        cells.extend([
            c.bottleneck.replace("shared_memory", "shared").replace("tensor_cores", "tensor").replace('_', " "),
            shape.tile,
        ]);
        cells.extend(tiles.then_some(shape.step));
        cells.extend([c.plan.threads().to_string(), brief(&shape.overlap)]);
        if compiled_any {
            cells.extend([
                compiled.map_or_else(dash, |m| m.registers.to_string()),
                compiled.map_or_else(dash, |m| m.spill_bytes.to_string()),
            ]);
            cells.extend(math.then_some(loop_math));
        }
        cells.push(simulated);
        cells.extend(executed_any.then(|| c.executed.as_ref().map_or_else(dash, Executed::word)));
        let spills = compiled.is_some_and(|m| m.spill_bytes > 0);
        let styled = cells.into_iter().enumerate().map(|(at, text)| {
            let cell = Cell::new(visible(&text));
            match header[at] {
                "id" => cell.fg(Color::Cyan),
                "spill" if spills => cell.fg(Color::Yellow),
                _ if c.rank == 1 => cell.fg(Color::Green),
                _ => cell,
            }
        });
        rows.add_row(styled);
    }
    let words = ["id", "bound", "block", "overlap", "checked", "ran"];
    let numbers: Vec<usize> = (0..header.len()).filter(|at| !words.contains(&header[*at])).collect();
    right(&mut rows, &numbers);
    for name in ["overlap", "checked"] {
        if let Some(column) = header.iter().position(|known| *known == name) {
            wrap(&mut rows, column);
        }
    }
    let mut out = format!("{}{}", visible(&out), text(&rows));
    let time = match () {
        () if timed => "ms measured and predicted",
        () if by_loops => "ms predicted, by the model and with the clocks of the compiled loop",
        () => "ms predicted",
    };
    let share = if unit == "GB/s" { "a copy in DRAM" } else { "what the GPU's units can do" };
    out.push_str(&format!("{time}; {unit} and share of {share}"));
    out.push_str(match conflicts {
        true => "; checked in the simulator, wavefronts/sectors over the least\n",
        false => "; checked in the simulator: no conflicts\n",
    });
    for note in ties.iter().filter_map(|tie| differ(tie, work)) {
        out.push_str(&visible(&note));
    }
    if let Some(reason) = &report.not_compiled {
        out.push_str(&visible(&format!("not compiled: {reason}\n")));
    }
    if executed_any {
        out.push_str("ran: blocks of the program itself whose text was executed on the CPU, as PTX");
        let reduced = report.candidates.iter().any(|c| c.executed.as_ref().is_some_and(|e| e.reduced > 0));
        out.push_str(if reduced {
            "; where not all, also all of the same schedule on a smaller problem\n"
        } else {
            "\n"
        });
    }
    if let Some(reason) = &report.not_executed {
        out.push_str(&visible(&format!("text not executed: {}\n", reason.lines().next().unwrap_or_default())));
    }
    if let Some(given) = &report.given {
        out.push_str(&visible(&format!("{}\n", given.sentence(report.candidates.first()))));
    }
    out.push_str(&visible(&format!("kernels, traces, report.html and candidates.json are in {}\n", folder.display())));
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
    text(&rows)
}
