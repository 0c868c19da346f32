//! Packs run once more under NVIDIA's tools: compute-sanitizer looks for races and bad addresses, ncu counts what the model
//! counts. A tool that is not there leaves its reason, and the stage ends at once.
use super::{Failed, State};
use crate::compile;
use serde_json::{json, Value};
use std::fmt::Write;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What compute-sanitizer looks for.
const SANITIZERS: [&str; 4] = ["memcheck", "racecheck", "synccheck", "initcheck"];

/// Counters beside the model's counts: wavefronts of shared memory, sectors of L1, L2 and DRAM, instructions, and those on
/// tensor cores.
const COUNTERS: [&str; 9] = [
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "lts__t_sectors.sum",
    "dram__bytes.sum",
    "smsp__inst_executed.sum",
    "sm__inst_executed_pipe_tensor.sum",
];

/// Lines of a tool's log that are told in the stage's file.
const LINES: usize = 12;

/// A small kernel of each family under each sanitizer.
pub(super) fn sanitizers(state: &mut State<'_, '_>, folder: &Path, budget: Duration) -> Result<Value, Failed> {
    let name = "compute-sanitizer";
    let Some(tool) = compile::tool(name) else { return Ok(absent(name)) };
    let (mut found, mut page) = (serde_json::Map::new(), "# sanitizers\n\n".to_string());
    for kind in SANITIZERS {
        let log = format!("{kind}.log");
        let arguments = ["--tool", kind, "--target-processes", "all", "--log-file", &log];
        let run = under(state, (&tool, &arguments), "families.pack", folder, kind, budget / SANITIZERS.len() as u32)?;
        let text = std::fs::read_to_string(folder.join(&log)).unwrap_or_default();
        let told: Vec<&str> = text.lines().filter(|l| l.contains("ERROR SUMMARY") || l.contains("Error:")).collect();
        let errors: Vec<&str> = told.iter().copied().filter(|l| !l.contains(" 0 errors")).take(LINES).collect();
        let status = run["status"].as_str().unwrap_or("not ended");
        let rows = std::fs::read_to_string(folder.join(kind).join("rows.ndjson")).unwrap_or_default();
        let (looked_at, wrong) = (rows.lines().count(), errors.len());
        let _ = writeln!(page, "* {kind}: {wrong} errors, {looked_at} candidates looked at, {status}");
        errors.iter().for_each(|error| page.push_str(&format!("  * {error}\n")));
        found.insert(
            kind.into(),
            json!({"run": run, "processes": told.len(), "candidates": looked_at, "errors": errors}),
        );
    }
    std::fs::write(folder.join("SUMMARY.md"), page)?;
    Ok(found.into())
}

/// The first launch of each kernel of a pack, counted.
pub(super) fn counters(state: &mut State<'_, '_>, folder: &Path, budget: Duration) -> Result<Value, Failed> {
    let name = "ncu";
    let Some(tool) = compile::tool(name) else { return Ok(absent(name)) };
    let metrics = COUNTERS.join(",");
    let arguments = [
        "--target-processes",
        "all",
        "--metrics",
        &metrics,
        "--kernel-id",
        ":::1",
        "--csv",
        "--log-file",
        "counters.csv",
    ];
    let run = under(state, (&tool, &arguments), "families.pack", folder, "counted", budget)?;
    let text = std::fs::read_to_string(folder.join("counters.csv")).unwrap_or_default();
    Ok(json!({"run": run, "lines": text.lines().filter(|l| l.starts_with('"')).count()}))
}

fn absent(name: &str) -> Value {
    json!({"skipped": format!("{name} is not here: it comes with the CUDA toolkit; carry it beside the program in cuda/bin")})
}

/// Ends a tool and what it runs: alone it would leave its program behind, which has the GPU. The worker ends when its asker does.
fn end(child: &mut Child) {
    #[cfg(unix)]
    {
        use rustix::process::{kill_process_group, Pid, Signal};
        // It leads a group of its own.
        let group = Pid::from_child(child);
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
}

/// Runs a pack in a process of its own under a tool, in the stage's folder; it is ended when its time is over.
fn under(
    state: &mut State<'_, '_>,
    (tool, arguments): (&Path, &[&str]),
    pack: &str,
    folder: &Path,
    out: &str,
    budget: Duration,
) -> Result<Value, Failed> {
    // One process at a time has the GPU.
    state.device = None;
    let hour = state.hour;
    // The rest is for the tool to come up, and for what it has to say.
    let inner = budget.as_secs_f64() * 0.8;
    let mut command = Command::new(tool);
    command.args(arguments).arg(&hour.program).arg("run-pack").arg(std::path::absolute(hour.packs.join(pack))?);
    command.args(["--apart", "--out", out, "--budget", &inner.to_string(), "--least-timeout", &inner.to_string()]);
    // What hung hangs under a tool too, and longer.
    command.args(state.breaker.hung().flat_map(|family| ["--without", family.name()]));
    command.args(&hour.again).current_dir(folder);
    command.stdin(Stdio::null()).stdout(File::create(folder.join(format!("{out}.out")))?);
    command.stderr(File::create(folder.join(format!("{out}.err")))?);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let begun = Instant::now();
    let mut child = command.spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begun.elapsed() > budget || state.progress.stopped() {
            end(&mut child);
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // A family may hang under a tool alone: the next one is not asked to hang in it again.
    state.breaker.recall(&folder.join(out))?;
    let status = status.map_or_else(|| "stopped: its time was over".into(), |s| s.to_string());
    Ok(json!({"status": status, "seconds": begun.elapsed().as_secs_f64()}))
}
