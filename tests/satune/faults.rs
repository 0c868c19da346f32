//! What can go wrong while measuring, each fault acted out; `docs/GUARANTEES.md` has the table. No row may be lost that
//! was written, and no number recorded that was not measured.
use rand::{Rng, SeedableRng};
use satune::compile::{CompileError, Compiler, Job};
use satune::device::{Ask, Device, DeviceError, Script, Scripted, ScriptedOutcome as Outcome};
use satune::explore::space;
use satune::measure::{measure, MeasureError, Measured, Random, Record, Settings};
use satune::operators::{parse, Problem};
use satune::progress::Quiet;
use satune::store::{Reason, Row, Store, StoreError, Verdict};
use satune_extract::Descriptor;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const SATUNE: &str = env!("CARGO_BIN_EXE_satune");

pub fn problem() -> Problem {
    parse("gemm:16,16,16,f32").unwrap()
}

/// A folder with a script.
pub fn scripted(outcomes: &[Outcome]) -> (tempfile::TempDir, PathBuf, Script) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.json");
    let script: Script = serde_json::from_value(serde_json::json!({"outcomes": outcomes})).unwrap();
    std::fs::write(&path, serde_json::to_string(&script).unwrap()).unwrap();
    (folder, path, script)
}

/// Random candidates on a device.
fn run(device: &mut dyn Device, store: &mut Store, trials: usize, timeout_s: f64) -> Result<Measured, MeasureError> {
    let problem = problem();
    let gpu = Descriptor::load("h200").unwrap();
    let space = space(&problem, &gpu).unwrap();
    let run = store.begin_run("test").unwrap();
    let ask = Ask { timeout: Duration::from_secs_f64(timeout_s), ..Ask::default() };
    let settings = Settings { trials, keep: 8, ask, ..Settings::default() };
    let mut strategy = Random::of(&space, &gpu, 7, &|| true);
    measure(&problem, &gpu, &mut strategy, device, &mut Record { store, run }, &settings, &Quiet)
}

/// Every row has exactly what the script says.
fn as_scripted(rows: &[Row], script: &Script) {
    for row in rows {
        let outcome = script.outcome(&row.key.trace);
        match (&row.verdict, script.time_ms(&row.key.trace, row.predicted_ms)) {
            (Verdict::Measured(timing), Some(ms)) => {
                assert!(timing.times_ms.iter().all(|t| *t == ms), "{outcome:?}: {timing:?}, not {ms}");
            }
            (Verdict::Rejected { reason, detail }, None) => {
                let expected = match outcome {
                    Outcome::Hang => Reason::Timeout,
                    Outcome::Wrong => Reason::Wrong,
                    Outcome::Oom => Reason::Oom,
                    Outcome::CompileError => Reason::CompileError,
                    _ => Reason::Crash,
                };
                assert_eq!(*reason, expected, "{outcome:?}: {detail}");
                assert!(!detail.is_empty());
            }
            (verdict, time) => panic!("{outcome:?}: {verdict:?}, but the script's time is {time:?}"),
        }
    }
}

#[test]
fn every_fault_of_a_device_costs_its_candidate_and_nothing_else() {
    let outcomes = [
        Outcome::Near,
        Outcome::Hang,
        Outcome::Abort,
        Outcome::Killed,
        Outcome::KilledOnce,
        Outcome::Leaves,
        Outcome::IllegalAccess,
        Outcome::Wrong,
        Outcome::Oom,
        Outcome::OomOnce,
        Outcome::CompileError,
        Outcome::Nonsense,
        Outcome::Half,
        Outcome::Stale,
        Outcome::Flood,
        Outcome::Talkative,
        Outcome::Empty,
        Outcome::Zero,
        Outcome::Negative,
        Outcome::NotANumber,
    ];
    let (folder, path, script) = scripted(&outcomes);
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    let mut device = Scripted::new(SATUNE.into(), &path).unwrap();
    let asked = 110;
    let measured = run(&mut device, &mut store, asked, 2.0).unwrap();
    let rows = store.rows().unwrap();
    // Each trial has its row. What the compiler refused is none of those that were asked for; every other fault is one.
    let refused = |r: &&Row| matches!(&r.verdict, Verdict::Rejected { reason: Reason::CompileError, .. });
    let tried = asked + rows.iter().filter(refused).count();
    assert_eq!((measured.trials.len(), rows.len()), (tried, tried));
    as_scripted(&rows, &script);
    let acted: HashSet<String> = rows.iter().map(|r| format!("{:?}", script.outcome(&r.key.trace))).collect();
    assert_eq!(acted.len(), outcomes.len(), "not all were acted out: {acted:?}");
    println!("{} ms around each candidate", measured.overhead_ms);
    // The log has the best so far after each.
    let steps = store.steps(1).unwrap();
    assert_eq!(steps, measured.log);
    let times: Vec<f64> = steps.iter().filter_map(|s| s.ms).collect();
    assert_eq!(steps.last().unwrap().best_ms, times.iter().copied().reduce(f64::min));
    // A second run asks the device nothing and comes to the same.
    let mut device = Scripted::new(SATUNE.into(), &path).unwrap();
    let again = run(&mut device, &mut store, asked, 2.0).unwrap();
    assert_eq!((again.trials.len(), again.reused, device.workers()), (tried, tried, 0));
    assert_eq!(again.ranking, measured.ranking);
}

#[test]
fn a_lost_device_ends_the_run_and_blames_no_candidate() {
    let (folder, path, script) = scripted(&[Outcome::Near, Outcome::Near, Outcome::TakesDown]);
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    let mut device = Scripted::new(SATUNE.into(), &path).unwrap();
    let error = run(&mut device, &mut store, 30, 5.0).unwrap_err();
    assert!(matches!(error, MeasureError::Device(DeviceError::Gone { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains("the device is lost") && text.contains("satune resume"), "{text}");
    let before = store.rows().unwrap();
    as_scripted(&before, &script);
    assert!(before.iter().all(|r| *script.outcome(&r.key.trace) == Outcome::Near));
    // It comes back, again and again; the run goes on each time.
    let down = folder.path().join("script.json.down");
    let measured = loop {
        std::fs::remove_file(&down).unwrap();
        match run(&mut device, &mut store, 30, 5.0) {
            Ok(measured) => break measured,
            Err(error) => assert!(matches!(error, MeasureError::Device(DeviceError::Gone { .. }))),
        }
    };
    assert_eq!((measured.trials.len(), store.len().unwrap()), (30, 30));
    as_scripted(&store.rows().unwrap(), &script);
}

#[test]
fn a_worker_that_cannot_be_started_is_an_error_of_the_environment() {
    let (folder, path, _) = scripted(&[Outcome::Near]);
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    let mut device = Scripted::new("/nonexistent/satune".into(), &path).unwrap();
    let error = run(&mut device, &mut store, 3, 1.0).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/satune") && error.contains("satune doctor"), "{error}");
    assert!(store.is_empty().unwrap());
}

#[test]
fn noise_is_measured_again_and_reported_as_ties() {
    let (folder, path, _) = scripted(&[Outcome::Noisy]);
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    let mut device = Scripted::new(SATUNE.into(), &path).unwrap();
    let measured = run(&mut device, &mut store, 40, 5.0).unwrap();
    let visits: Vec<u32> = measured
        .trials
        .iter()
        .filter_map(|t| match &t.verdict {
            Verdict::Measured(timing) => Some(timing.rounds),
            Verdict::Rejected { .. } => None,
        })
        .collect();
    assert!(visits.contains(&3) && visits.contains(&1), "{visits:?}");
    let rows = store.rows().unwrap();
    for (trial, visits) in measured.trials.iter().zip(visits) {
        let row = rows.iter().find(|r| r.key.trace == trial.trace).unwrap();
        assert_eq!(row.verdict, trial.verdict);
        let Verdict::Measured(timing) = &row.verdict else { panic!("{row:?}") };
        assert_eq!((timing.rounds, timing.times_ms.len()), (visits, 20 * visits as usize));
    }
}

/// A compile worker that is a shell script.
#[cfg(unix)]
fn compiler(script: &str) -> (tempfile::TempDir, Compiler) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("worker");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut compiler = Compiler::of(path);
    // Only what never ends is waited for in vain: on a busy machine the others may take a while.
    let hangs = script.contains("sleep");
    compiler.timeout = if hangs { Duration::from_millis(800) } else { Duration::from_secs(60) };
    compiler.memory = 40 << 20;
    (folder, compiler)
}

#[cfg(unix)]
#[test]
fn a_compiler_that_hangs_crashes_or_raves_costs_its_kernel() {
    let job = Job { name: "k".into(), source: "x".repeat(1 << 20), arch: "sm_90".into() };
    type Test = fn(&CompileError) -> bool;
    let cases: [(&str, Test); 6] = [
        ("exec tail /dev/zero", |e| matches!(e, CompileError::Memory { .. })),
        ("exec sleep 10000", |e| matches!(e, CompileError::Timeout { .. })),
        ("kill -SEGV $$", |e| matches!(e, CompileError::Crashed { .. })),
        ("exit 0", |e| matches!(e, CompileError::Crashed { .. })),
        ("cat > /dev/null; echo '{\"Done\":'", |e| matches!(e, CompileError::Crashed { .. })),
        ("cat > /dev/null; echo '{\"Refused\":{\"log\":\"no\"}}'", |e| matches!(e, CompileError::Refused { .. })),
    ];
    for (script, expected) in cases {
        let (_folder, compiler) = compiler(script);
        let error = compiler.compile(&job).unwrap_err();
        assert!(expected(&error), "{script}: {error}");
    }
}

fn explore(folder: &Path, trials: u32) -> Command {
    explore_of("gemm:16,16,16,f32", folder, trials)
}

pub fn explore_of(program: &str, folder: &Path, trials: u32) -> Command {
    let mut command = Command::new(SATUNE);
    command
        .args(["explore", program, "--device", "scripted", "--strategy", "random", "--no-compile", "--json"])
        .args(["--trials", &trials.to_string(), "--script"])
        .arg(folder.join("script.json"))
        .arg("--out")
        .arg(folder.join("out"))
        .arg("--store")
        .arg(folder.join("store.db"));
    command
}

/// The first eight: id and time.
pub fn top(stdout: &[u8]) -> Vec<(String, String)> {
    let report: serde_json::Value = serde_json::from_slice(stdout).unwrap();
    let list = report["candidates"].as_array().unwrap();
    assert_eq!(list.len(), 8);
    list.iter().map(|c| (c["id"].to_string(), c["measured"]["ms"].to_string())).collect()
}

fn alive(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // A zombie waits for whoever adopts it, and does nothing any more.
    !stat.is_empty() && !stat.contains(") Z")
}

/// Ctrl-C on a terminal reaches the workers, too.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_run_keeps_the_best_so_far_and_can_be_resumed() {
    interrupted("gemm:16,16,16,f32");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_run_of_a_streaming_program_does_so_too() {
    interrupted("softmax:8,64,f32");
}

#[cfg(target_os = "linux")]
fn interrupted(program: &str) {
    use std::os::unix::process::CommandExt;
    let (folder, path, mut script) = scripted(&[Outcome::Near]);
    script.delay_ms = 40;
    std::fs::write(path, serde_json::to_string(&script).unwrap()).unwrap();
    let file = folder.path().join("store.db");
    let child = explore_of(program, folder.path(), 60)
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let rows = || Store::existing(&file).and_then(|s| s.len()).unwrap_or(0);
    let deadline = Instant::now() + Duration::from_secs(600);
    while rows() < 10 {
        assert!(Instant::now() < deadline, "nothing is measured");
        std::thread::sleep(Duration::from_millis(5));
    }
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-s", "INT", "--", &group]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("ending with what was found so far"), "{said}");
    let measured = rows();
    assert!((10..60).contains(&measured), "{measured}");
    // What it printed is what it wrote: the eight best of what was measured by then.
    top(&ended.stdout);
    let written = std::fs::read(folder.path().join("out/candidates.json")).unwrap();
    assert_eq!(top(&written), top(&ended.stdout));
    let all = Store::existing(&file).unwrap().rows().unwrap();
    assert!(all.iter().all(|r| matches!(r.verdict, Verdict::Measured(_))), "an interruption is no candidate's fault");
    let resumed = Command::new(SATUNE).args(["resume", "--json", "--store"]).arg(&file).output().unwrap();
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    let (again, _, _) = scripted(&[Outcome::Near]);
    std::fs::write(again.path().join("script.json"), serde_json::to_string(&script).unwrap()).unwrap();
    assert_eq!(top(&resumed.stdout), top(&explore_of(program, again.path(), 60).output().unwrap().stdout));
}

/// Kills runs at random moments; `SATUNE_KILLS` sets how often (40 by default, 200 for the figure in GUARANTEES.md). The
/// program has a small space: most of a run is measuring then.
#[cfg(target_os = "linux")]
#[test(slow)]
fn a_run_that_is_killed_loses_at_most_the_running_measurement() {
    const TRIALS: u32 = 60;
    let explore = |folder: &Path| explore_of("rowsum:16,256,f32", folder, TRIALS);
    let kills: usize = std::env::var("SATUNE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let mut rng = rand::rngs::StdRng::seed_from_u64(11);
    let setup = || {
        let (folder, path, mut script) =
            scripted(&[Outcome::Near, Outcome::Near, Outcome::Wrong, Outcome::IllegalAccess]);
        (script.delay_ms, script.log) = (2, true);
        std::fs::write(path, serde_json::to_string(&script).unwrap()).unwrap();
        (folder, script)
    };
    let (folder, _) = setup();
    let start = Instant::now();
    let whole = explore(folder.path()).output().unwrap();
    let length = start.elapsed();
    let expected = top(&whole.stdout);
    let mut killed = 0;
    while killed < kills {
        let (folder, script) = setup();
        let file = folder.path().join("store.db");
        let mut rows_before = 0;
        for _ in 0..8 {
            let running = Store::existing(&file).and_then(|s| s.run_to_resume(None)).is_ok();
            let mut command = if running {
                let mut resume = Command::new(SATUNE);
                resume.args(["resume", "--json", "--store"]).arg(&file);
                resume
            } else if rows_before == 0 {
                explore(folder.path())
            } else {
                break;
            };
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(length.mul_f64(rng.gen_range(0.0..0.9)));
            let ended = child.try_wait().unwrap().is_some();
            child.kill().unwrap();
            child.wait().unwrap();
            killed += usize::from(!ended);
            if !file.is_file() {
                continue;
            }
            // The store opens, is sound, has no wrong row, and lacks one at most of those that the device answered.
            let store = Store::open(&file).unwrap();
            let health = store.check().unwrap();
            assert!(health.faults.is_empty(), "{:?}", health.faults);
            let rows = store.rows().unwrap();
            as_scripted(&rows, &script);
            let known: HashSet<&str> = rows.iter().map(|r| r.key.trace.as_str()).collect();
            let log = std::fs::read_to_string(folder.path().join("script.json.log")).unwrap_or_default();
            let visits: Vec<(&str, &str)> = log.lines().filter_map(|l| l.split_once(' ')).collect();
            let lost: HashSet<&str> = visits.iter().map(|(_, trace)| *trace).filter(|t| !known.contains(t)).collect();
            assert!(lost.len() <= 1, "{} of {} lost", lost.len(), visits.len());
            assert!(rows.len() >= rows_before);
            rows_before = rows.len();
            // Whoever worked for it ends by itself.
            let deadline = Instant::now() + Duration::from_secs(120);
            while visits.last().is_some_and(|(process, _)| alive(process)) {
                assert!(Instant::now() < deadline, "a worker outlives its run");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let resumed = if rows_before == 0 && Store::existing(&file).and_then(|s| s.run_to_resume(Some(1))).is_err() {
            explore(folder.path()).output().unwrap()
        } else {
            Command::new(SATUNE).args(["resume", "1", "--json", "--store"]).arg(&file).output().unwrap()
        };
        assert_eq!(top(&resumed.stdout), expected, "{}", String::from_utf8_lossy(&resumed.stderr));
        assert_eq!(Store::open(&file).unwrap().len().unwrap(), u64::from(TRIALS));
    }
    println!("{killed} kills");
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_said_and_costs_nothing_that_was_written() {
    let (folder, _, script) = scripted(&[Outcome::Near]);
    let (whole, _, _) = scripted(&[Outcome::Near]);
    let expected = top(&explore(whole.path(), 60).output().unwrap().stdout);
    // A limit on file sizes fails writes as a full disk does.
    let plain = explore(folder.path(), 60);
    let words: Vec<String> = std::iter::once(plain.get_program())
        .chain(plain.get_args())
        .map(|w| format!("'{}'", w.to_string_lossy()))
        .collect();
    let limited = format!("ulimit -f 300; exec {}", words.join(" "));
    let run = Command::new("sh").args(["-c", &limited]).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(3), "{said}");
    assert!(said.contains("no space left") && said.contains("satune resume --store"), "{said}");
    let file = folder.path().join("store.db");
    let store = Store::open(&file).unwrap();
    assert!(store.check().unwrap().faults.is_empty());
    let rows = store.rows().unwrap();
    assert!(!rows.is_empty() && rows.len() < 60, "{}", rows.len());
    as_scripted(&rows, &script);
    drop(store);
    let resumed = Command::new(SATUNE).args(["resume", "--json", "--store"]).arg(&file).output().unwrap();
    assert_eq!(top(&resumed.stdout), expected, "{}", String::from_utf8_lossy(&resumed.stderr));
}

#[test]
fn a_resume_without_a_run_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    assert!(matches!(Store::existing(&file), Err(StoreError::Unusable { .. })));
    let store = Store::open(&file).unwrap();
    let error = store.run_to_resume(None).unwrap_err().to_string();
    assert!(error.contains("no run is unfinished; `satune explore PROGRAM --store"), "{error}");
    let run = Command::new(SATUNE).args(["resume", "7", "--store"]).arg(&file).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
}
