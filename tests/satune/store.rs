//! The store: what it keeps, what it refuses, what can be saved.
use crate::faults::{problem, SATUNE};
use rand::SeedableRng;
use satune::explore::{space, trace_hash};
use satune::store::{hash, repair, Key, Options, Reason, Row, Store, StoreError, Timing, Verdict};
use satune_extract::{Counts, Descriptor};
use satune_ir::term::CoresPlan;
use std::io::Cursor;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A row of its own for every number, by writers that may run at once.
fn row(plan: &CoresPlan, writer: usize, number: usize) -> Row {
    let verdict = if number % 10 == 9 {
        Verdict::Rejected { reason: Reason::Timeout, detail: format!("number {number}") }
    } else {
        Verdict::Measured(timing(&[0.1 + number as f64 / 3.0; 3], 1))
    };
    let key = Key {
        program: hash("program"),
        trace: hash(&format!("{writer} {number}")),
        toolchain: "NVRTC 13.0, driver 13.0".into(),
        device: "NVIDIA H200, 1980 MHz".into(),
    };
    Row {
        key,
        operator: "gemm:16,16,16,f32".into(),
        script: None,
        gpu: "h200".into(),
        predicted_ms: 0.1,
        plan: plan.clone().into(),
        at: 1,
        verdict,
    }
}

fn timing(times: &[f64], rounds: u32) -> Timing {
    Timing {
        times_ms: times.to_vec(),
        rounds,
        cut_off: false,
        clock_mhz: Some(1900.0),
        relative_error: Some(1e-7),
        conditions: None,
    }
}

fn plan() -> CoresPlan {
    CoresPlan::naive(&problem().contraction)
}

fn filled(path: &Path, rows: usize) -> Vec<Row> {
    let plan = plan();
    let mut store = Store::open(path).unwrap();
    let list: Vec<Row> = (0..rows).map(|n| row(&plan, 0, n)).collect();
    for row in &list {
        assert!(store.put(row).unwrap());
    }
    list
}

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows
}

#[test]
fn rows_come_back_as_they_went() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b/store.db");
    let rows = filled(&path, 50);
    let mut store = Store::open(&path).unwrap();
    assert_eq!(store.rows().unwrap(), sorted(rows.clone()));
    assert_eq!(store.get(&rows[3].key).unwrap(), Some(rows[3].clone()));
    // Other clocks, other rows.
    let other = Key { device: "NVIDIA H200, 1200 MHz".into(), ..rows[3].key.clone() };
    assert_eq!(store.get(&other).unwrap(), None);
    // What is known stays, unless the new one is worth more.
    let mut again = rows[3].clone();
    again.verdict = Verdict::Rejected { reason: Reason::Oom, detail: "later".into() };
    assert!(!store.put(&again).unwrap());
    again.verdict = Verdict::Measured(timing(&[5.0; 6], 2));
    assert!(store.put(&again).unwrap());
    assert_eq!(store.get(&again.key).unwrap(), Some(again.clone()));
    again.verdict = Verdict::Rejected { reason: Reason::Wrong, detail: "wrong after all".into() };
    assert!(store.put(&again).unwrap());
    // What is no time is no row.
    for times in [vec![], vec![0.0], vec![-1.0], vec![1.0, f64::NAN], vec![f64::INFINITY]] {
        let mut bad = row(&plan(), 1, 1);
        bad.verdict = Verdict::Measured(timing(&times, 1));
        assert!(matches!(store.put(&bad), Err(StoreError::Row { .. })), "{times:?}");
    }
    assert_eq!(store.len().unwrap(), 50);
    let health = store.check().unwrap();
    assert_eq!((health.rows, health.measured, health.faults.len()), (50, 44, 0));
}

#[test]
fn ndjson_goes_both_ways_and_refuses_what_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    let rows = filled(&folder.path().join("one.db"), 30);
    let mut text = Vec::new();
    assert_eq!(Store::open(&folder.path().join("one.db")).unwrap().export(&mut text).unwrap(), 30);
    let mut other = Store::open(&folder.path().join("two.db")).unwrap();
    other.put(&rows[0]).unwrap();
    let done = other.import(&mut Cursor::new(&text), "export").unwrap();
    assert_eq!((done.read, done.written), (30, 29));
    assert_eq!(other.rows().unwrap(), sorted(rows));
    let mut back = Vec::new();
    other.export(&mut back).unwrap();
    assert_eq!(back, text);
    let text = String::from_utf8(text).unwrap();
    let changed = text.replacen("\"predicted_ms\":0.1", "\"predicted_ms\":0.2", 1);
    let no_head = text.split_once('\n').unwrap().1.to_string();
    let half = text[..text.len() - 40].to_string();
    let newer = text.replacen("\"version\":1", "\"version\":99", 1);
    for (bad, part) in [
        (changed, "line 2: the row does not have its hash"),
        (no_head, "line 1: not the head"),
        (half, "line 31: "),
        (newer, "line 1: version 99"),
    ] {
        let mut store = Store::open(&folder.path().join("three.db")).unwrap();
        let error = store.import(&mut Cursor::new(bad), "file").unwrap_err().to_string();
        assert!(error.contains(part) && error.ends_with("nothing was imported"), "{error}");
        assert!(store.is_empty().unwrap());
    }
}

#[test]
fn newer_foreign_and_senseless_files_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let sql = |path: &Path, text: &str| rusqlite::Connection::open(path).unwrap().execute_batch(text).unwrap();
    filled(&at("newer.db"), 3);
    sql(&at("newer.db"), "PRAGMA user_version = 99");
    let error = Store::open(&at("newer.db")).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("use a newer satune"));
    assert!(matches!(repair(&at("newer.db")), Err(StoreError::Newer { .. })));
    sql(&at("foreign.db"), "CREATE TABLE cats(name)");
    assert!(matches!(Store::open(&at("foreign.db")), Err(StoreError::Foreign { .. })));
    assert!(matches!(repair(&at("foreign.db")), Err(StoreError::Foreign { .. })));
    std::fs::write(at("text.db"), "Dear diary, ".repeat(1000)).unwrap();
    let error = Store::open(&at("text.db")).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("satune db repair --store"), "{error}");
    std::fs::create_dir(at("folder.db")).unwrap();
    assert!(matches!(Store::open(&at("folder.db")), Err(StoreError::Unusable { .. })));
    for (file, code) in [("newer.db", 2), ("foreign.db", 2), ("text.db", 3), ("folder.db", 3), ("missing.db", 3)] {
        let run = Command::new(SATUNE).args(["db", "check", "--store"]).arg(at(file)).output().unwrap();
        assert_eq!(run.status.code(), Some(code), "{file}: {}", String::from_utf8_lossy(&run.stderr));
    }
    // A file that was made by a process that died before it wrote anything is an empty store.
    std::fs::write(at("empty.db"), "").unwrap();
    assert!(Store::open(&at("empty.db")).unwrap().is_empty().unwrap());
}

#[test]
fn damage_is_found_and_repair_saves_every_sound_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let rows = sorted(filled(&path, 60));
    drop(Store::open(&path).unwrap());
    let sound = std::fs::read(&path).unwrap();
    let pages = sound.len() / 4096;
    let damaged = folder.path().join("damaged.db");
    let mut least = usize::MAX;
    for page in 0..pages {
        for fresh in std::fs::read_dir(folder.path()).unwrap() {
            let file = fresh.unwrap().path();
            if file.file_name().unwrap().to_string_lossy().starts_with("damaged") {
                std::fs::remove_file(file).unwrap();
            }
        }
        let mut bytes = sound.clone();
        bytes[page * 4096..(page + 1) * 4096].fill(0xa5);
        std::fs::write(&damaged, &bytes).unwrap();
        // Found: nobody gets a number from a damaged page.
        let found = match Store::open(&damaged) {
            Err(error) => matches!(error, StoreError::Corrupt { .. } | StoreError::Foreign { .. }),
            Ok(store) => {
                let known = rows.iter().all(|r| match store.get(&r.key) {
                    Ok(Some(got)) => got == *r,
                    Ok(None) | Err(_) => true,
                });
                assert!(known, "page {page}: a wrong row");
                !store.check().unwrap().faults.is_empty()
            }
        };
        assert!(found, "page {page}: not found");
        let repaired = repair(&damaged).unwrap();
        let store = Store::open(&damaged).unwrap();
        assert!(store.check().unwrap().faults.is_empty(), "page {page}");
        let saved = store.rows().unwrap();
        assert!(saved.iter().all(|s| rows.contains(s)), "page {page}: a wrong row");
        assert_eq!(saved.len() as u64, repaired.saved);
        assert_eq!(std::fs::read(&repaired.kept).unwrap(), bytes);
        // The root of the table's tree is the one page that cannot be lost.
        if saved.is_empty() {
            assert_eq!(least, 60, "page {page}: a second page that costs everything");
            least = 59;
        } else {
            assert!(saved.len() >= 55, "page {page}: {} of 60 saved", saved.len());
            if least == usize::MAX {
                least = 60;
            }
        }
    }
}

#[test]
fn a_sound_store_survives_repair_and_a_changed_row_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let rows = sorted(filled(&path, 20));
    assert_eq!(repair(&path).unwrap().saved, 20);
    assert_eq!(Store::open(&path).unwrap().rows().unwrap(), rows);
    let sql =
        "UPDATE measurement SET body = replace(body, '\"predicted_ms\":0.1', '\"predicted_ms\":0.3') WHERE id = 7";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let store = Store::open(&path).unwrap();
    assert!(matches!(store.rows(), Err(StoreError::Corrupt { .. })));
    assert_eq!(store.check().unwrap().faults, ["row 7: a row's text does not have its hash"]);
    drop(store);
    let run = Command::new(SATUNE).args(["db", "repair", "--json", "--store"]).arg(&path).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((said["saved"].as_u64(), said["lost"].as_u64()), (Some(19), Some(1)));
    // A cut file keeps what is before the cut.
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 4096 * 3 / 4 * 4096]).unwrap();
    assert!(repair(&path).unwrap().saved > 0);
}

#[test]
fn a_full_store_refuses_the_row_and_keeps_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let plan = plan();
    let options = Options { most_bytes: Some(200_000), ..Options::default() };
    let mut store = Store::open_with(&path, &options).unwrap();
    let mut written = 0;
    let error = loop {
        match store.put(&row(&plan, 0, written)) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert!(written > 20);
    assert_eq!(store.rows().unwrap().len(), written);
    assert!(store.check().unwrap().faults.is_empty());
    drop(store);
    let mut store = Store::open(&path).unwrap();
    assert!(store.put(&row(&plan, 0, written)).unwrap());
}

#[test]
fn a_writer_that_never_ends_is_named_after_the_wait() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    filled(&path, 1);
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let options = Options { busy: Duration::from_millis(100), ..Options::default() };
    let mut store = Store::open_with(&path, &options).unwrap();
    assert_eq!(store.len().unwrap(), 1);
    assert!(matches!(store.put(&row(&plan(), 0, 5)), Err(StoreError::Busy { .. })));
    other.execute_batch("ROLLBACK").unwrap();
    assert!(store.put(&row(&plan(), 0, 5)).unwrap());
}

#[test]
fn gc_removes_what_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    filled(&path, 20);
    let mut store = Store::open(&path).unwrap();
    let run = store.begin_run("{}").unwrap();
    store.finish_run(run).unwrap();
    assert_eq!(store.gc(None, false).unwrap(), 0);
    assert!(store.run_to_resume(Some(run)).is_err());
    assert_eq!(store.gc(None, true).unwrap(), 2);
    assert_eq!(store.gc(Some(1), false).unwrap(), 18);
    assert!(store.is_empty().unwrap());
}

/// Not a test by itself: one of the processes of the next one.
#[test]
#[ignore]
fn writer() {
    let (Ok(path), Ok(number)) = (std::env::var("SATUNE_TEST_STORE"), std::env::var("SATUNE_TEST_WRITER")) else {
        return;
    };
    let (writer, plan) = (number.parse().unwrap(), plan());
    let mut store = Store::open(Path::new(&path)).unwrap();
    for n in 0..1000 {
        assert!(store.put(&row(&plan, writer, n)).unwrap());
        // And one that all of them write.
        store.put(&row(&plan, 99, n)).unwrap();
    }
}

#[test]
fn eight_processes_write_a_thousand_rows_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let children: Vec<_> = (0..8)
        .map(|n: usize| {
            Command::new(std::env::current_exe().unwrap())
                .args(["store::writer", "--exact", "--ignored", "--quiet"])
                .env("SATUNE_TEST_STORE", &path)
                .env("SATUNE_TEST_WRITER", n.to_string())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let store = Store::open(&path).unwrap();
    let health = store.check().unwrap();
    assert_eq!((health.rows, health.faults.len()), (9000, 0));
    let plan = plan();
    let expected: Vec<Row> =
        (0..8).chain([99]).flat_map(|w| (0..1000).map(move |n| (w, n))).map(|(w, n)| row(&plan, w, n)).collect();
    assert_eq!(store.rows().unwrap(), sorted(expected));
}

#[test]
fn schedules_have_hashes_of_their_own() {
    let problem = problem();
    let gpu = Descriptor::load("h200").unwrap();
    let space = space(&problem, &gpu).unwrap();
    let counts = Counts::of(&space);
    let mut rng = rand::rngs::StdRng::seed_from_u64(5);
    let plans: std::collections::HashSet<CoresPlan> = (0..200)
        .map(|_| CoresPlan::from_term(&counts.sample(&space, &mut rng).unwrap(), &space.contraction).unwrap())
        .collect();
    let hashes: std::collections::HashSet<String> =
        plans.iter().map(|p| trace_hash(&p.clone().into(), &problem)).collect();
    assert_eq!(hashes.len(), plans.len());
}
