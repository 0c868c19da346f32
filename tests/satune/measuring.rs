//! The measuring loop, its strategies, and the commands around them.
use crate::compiles::compile;
use crate::faults::{problem, scripted, SATUNE};
use crate::support::{support_as_cpp, NO_LIMIT};
use satune::compile::Compiler;
use satune::device::{Ask, Device, DeviceError, DeviceKind, Identity, Ready, ScriptedOutcome, Simulator, Subject};
use satune::explore::{space, Request};
use satune::measure::bench::{bench, Wanted};
use satune::measure::{measure, BestFirst, Learned, Measured, Random, Record, Settings, Strategy, TopK};
use satune::operators::{parse, Problem};
use satune::progress::Quiet;
use satune::source;
use satune::store::{Store, Timing, Verdict};
use satune::workload::Workload;
use satune_extract::{best, Descriptor, Query};
use satune_ir::DType;
use satune_rewrites::space::Fuel;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Output};

fn h200() -> Descriptor {
    Descriptor::load("h200").unwrap()
}

/// A GPU that is not what its descriptor says.
fn other_gpu() -> Descriptor {
    let mut gpu = h200();
    gpu.issue_efficiency *= 0.5;
    gpu.l2_bytes_per_clock /= 6.0;
    gpu.dram_gbs /= 3.0;
    gpu.launch_us *= 1.5;
    gpu
}

fn run(problem: &Problem, strategy: &mut dyn Strategy, device: &mut dyn Device, settings: Settings) -> Measured {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    let run = store.begin_run("test").unwrap();
    measure(problem, &h200(), strategy, device, &mut Record { store: &mut store, run }, &settings, &Quiet).unwrap()
}

#[test(slow)]
fn three_strategies_search_one_space() {
    let problem = parse("gemm:32,48,128,f32").unwrap();
    let (believed, truth) = (h200(), other_gpu());
    let space = space(&problem, &believed).unwrap();
    let settings = Settings { trials: 32, keep: 8, batch: 16, ..Settings::default() };
    let limit = NO_LIMIT;
    let first = best(&space, &believed, Query { k: 32, diverse: false, limit, below_ms: f64::INFINITY }).candidates;
    let optimum =
        best(&space, &truth, Query { k: 1, diverse: false, limit, below_ms: f64::INFINITY }).candidates[0].cost.ms;
    let mut bests = Vec::new();
    type Maker<'a> = Box<dyn Fn() -> Box<dyn Strategy + 'a> + 'a>;
    let strategies: [(&str, Maker<'_>); 3] = [
        ("analytical", Box::new(|| Box::new(TopK::of(first.clone())))),
        ("random", Box::new(|| Box::new(Random::of(&space, &believed, 3, &|| true)))),
        ("learned", Box::new(|| Box::new(Learned::of(&space, &believed, 3, limit, &|| true)))),
    ];
    for (name, strategy) in &strategies {
        let measured = run(&problem, &mut *strategy(), &mut Simulator::of(&truth), settings);
        assert_eq!(measured.trials.len(), 32, "{name}");
        assert!(measured.bugs.is_empty(), "{name}: {:?}", measured.bugs);
        let so_far: Vec<f64> = measured.log.iter().map(|s| s.best_ms.unwrap()).collect();
        assert!(so_far.windows(2).all(|w| w[1] <= w[0]));
        assert_eq!(measured.ranking[0].ms, *so_far.last().unwrap());
        println!("{name}: {:.3} of the optimum after 16, {:.3} after 32", optimum / so_far[15], optimum / so_far[31]);
        bests.push(so_far[31]);
        if *name == "learned" {
            // The same again, so that a resumed run goes the same way.
            let settings = Settings { trials: 16, batch: 8, ..settings };
            let once = run(&problem, &mut *strategy(), &mut Simulator::of(&truth), settings);
            let again = run(&problem, &mut *strategy(), &mut Simulator::of(&truth), settings);
            assert_eq!(again.ranking, once.ranking, "{name}");
        }
    }
    let [analytical, random, learned] = bests[..] else { unreachable!() };
    assert!(learned <= analytical && learned < random, "{bests:?}");
    assert!(learned <= 1.02 * optimum, "{learned} ms, the optimum is {optimum} ms");
}

/// A device in this process: slow candidates stop early when they may.
struct Fake {
    identity: Identity,
    asked: Vec<Option<f64>>,
}

impl Fake {
    fn new() -> Fake {
        let identity = Identity {
            kind: DeviceKind::Scripted,
            device: "fake".into(),
            toolchain: "none".into(),
            deterministic: true,
        };
        Fake { identity, asked: Vec::new() }
    }
}

impl Device for Fake {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn measure_ready(&mut self, _: &dyn Workload, subject: &Ready, ask: &Ask) -> Result<Verdict, DeviceError> {
        self.asked.push(ask.cut_off_ms);
        let ms = subject.predicted_ms;
        let cut_off = ask.cut_off_ms.is_some_and(|limit| ms > limit);
        let times_ms = vec![ms; if cut_off { 3 } else { 16 }];
        Ok(Verdict::Measured(Timing {
            times_ms,
            rounds: 1,
            cut_off,
            clock_mhz: None,
            relative_error: None,
            conditions: None,
        }))
    }
}

/// A device whose compiler loses the stores of the first kernel that it is given.
struct Losing {
    fake: Fake,
    compiler: Compiler,
    ptx: HashMap<String, Vec<String>>,
    lost: Option<String>,
    measured: Vec<String>,
}

impl Device for Losing {
    fn identity(&self) -> &Identity {
        self.fake.identity()
    }

    fn compiler(&self) -> Option<(Compiler, String)> {
        Some((self.compiler.clone(), "sm_90".into()))
    }

    fn prepare(&mut self, problem: &dyn Workload, subjects: &[&Subject]) {
        for subject in subjects {
            let compiled = compile(&Ready::of(problem, subject).jobs("sm_90"));
            let mut ptx: Vec<String> = compiled.into_iter().map(|c| c.ptx).collect();
            if self.lost.is_none() {
                let keeps = |line: &&str| !line.contains("st.global");
                ptx[0] = ptx[0].lines().filter(keeps).collect::<Vec<_>>().join("\n");
                self.lost = Some(subject.trace.clone());
            }
            self.ptx.insert(subject.trace.clone(), ptx);
        }
    }

    fn ptx(&self, trace: &str) -> Option<Vec<String>> {
        self.ptx.get(trace).cloned()
    }

    fn measure_ready(&mut self, problem: &dyn Workload, ready: &Ready, ask: &Ask) -> Result<Verdict, DeviceError> {
        self.measured.push(ready.trace.clone());
        self.fake.measure_ready(problem, ready, ask)
    }
}

/// What execution finds wrong is told as a bug and measured nowhere; the next best is measured in its place.
#[test]
fn a_benchmark_executes_what_it_measures() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    let compiler = Compiler::of(SATUNE);
    let mut device = Losing { fake: Fake::new(), compiler, ptx: HashMap::new(), lost: None, measured: Vec::new() };
    let request = Request { gpu: h200(), top: 2, twins: true, limit: NO_LIMIT, compile: false, fuel: Fuel::default() };
    let wanted = Wanted { request, library: false, ask: Ask::default() };
    let work = source::load_work("gemm:16,16,16,f32").unwrap();
    let result = bench(&[work], &wanted, &mut device, &mut store, &Quiet, &mut |_| {}).unwrap();
    let row = &result.rows[0];
    assert_eq!((row.bugs.len(), row.candidates), (1, (2, 0)), "{row:?}");
    assert!(row.bugs[0].contains("executed: C[0, 0] is not written"), "{}", row.bugs[0]);
    assert!(row.executed.as_ref().is_some_and(|e| e.blocks == e.of && e.compared > 0), "{:?}", row.executed);
    assert_eq!(row.not_executed, None);
    let lost = device.lost.unwrap();
    assert!(device.measured.len() == 2 && !device.measured.contains(&lost));
    assert_eq!(result.reports[0].candidates.iter().filter(|c| c.executed.is_some()).count(), 2);
}

#[test]
fn what_is_clearly_slower_is_cut_off_and_measured_again_where_it_matters() {
    let (problem, gpu) = (problem(), h200());
    let space = space(&problem, &gpu).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(&folder.path().join("store.db")).unwrap();
    let mut go = |keep: usize, trials: usize| {
        let mut device = Fake::new();
        let run = store.begin_run("test").unwrap();
        let settings = Settings { trials, keep, cut_off: 1.1, ..Settings::default() };
        let mut strategy = Random::of(&space, &gpu, 9, &|| true);
        let mut record = Record { store: &mut store, run };
        let measured = measure(&problem, &gpu, &mut strategy, &mut device, &mut record, &settings, &Quiet).unwrap();
        (measured, device.asked)
    };
    let cut = |m: &Measured| {
        m.trials.iter().filter(|t| matches!(&t.verdict, Verdict::Measured(timing) if timing.cut_off)).count()
    };
    let (few, asked) = go(4, 60);
    // None of the first four has a limit; each later one's is 1.1 times the fourth best.
    assert!(asked[..4].iter().all(Option::is_none) && asked[4..].iter().all(Option::is_some));
    assert!(cut(&few) > 10);
    // Who wants more of them needs some of those that were cut off, and measures these again.
    let (more, asked) = go(30, 60);
    assert!(!asked.is_empty() && cut(&more) < cut(&few) && more.reused + asked.len() == 60);
    let exact = |m: &Measured| m.ranking.iter().take_while(|r| r.repeats == 16).count();
    assert!(exact(&more) >= 30 && exact(&few) >= 4, "{} {}", exact(&more), exact(&few));
    let (again, asked) = go(30, 60);
    assert_eq!((again.reused, asked.len()), (60, 0));
}

fn satune(folder: &Path, args: &[&str]) -> Output {
    Command::new(SATUNE).args(args).current_dir(folder).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_second_exploration_reuses_what_the_first_has_stored() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["explore", "gemm:16,16,16,f32", "--no-compile", "--json", "--device", "simulator", "--trials", "12"];
    let first = json(&satune(folder.path(), &args));
    assert_eq!((&first["measured"]["trials"], &first["measured"]["reused"]), (&12.into(), &0.into()));
    assert_eq!(first["measured"]["kind"], "simulator");
    assert_eq!(first["candidates"].as_array().unwrap().len(), 8);
    let second = json(&satune(folder.path(), &args));
    assert_eq!(second["measured"]["reused"], 12);
    assert_eq!(second["candidates"][0]["id"], first["candidates"][0]["id"]);
    let text = satune(folder.path(), &args[..3]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("8 known from the store") && text.contains("not measured on a GPU"), "{text}");
    // Another descriptor is another device.
    let other = json(&satune(folder.path(), &[&args[..], &["--gpu", "t4"]].concat()));
    assert_eq!(other["measured"]["reused"], 0);
    let check = json(&satune(folder.path(), &["db", "check", "--json"]));
    assert_eq!((check["rows"].as_u64(), check["faults"].as_array().map(Vec::len)), (Some(24), Some(0)));
    assert!(satune(folder.path(), &["db", "export", "--to", "rows.ndjson"]).status.success());
    let import = json(&satune(folder.path(), &["db", "import", "rows.ndjson", "--store", "new.db", "--json"]));
    assert_eq!(import["written"], 24);
    let unmeasured = json(&satune(folder.path(), &[&args[..4], &["--device", "none", "--out", "none"]].concat()));
    assert!(unmeasured.get("measured").is_none() && !folder.path().join("none/store.db").exists());
}

#[test]
fn a_benchmark_says_what_it_measured_and_what_became_slower() {
    let (folder, _, _) = scripted(&[ScriptedOutcome::Near]);
    std::fs::write(folder.path().join("suite.txt"), "# two\ngemm:16,16,16,f32\n\nbmm:2,8,8,8,f16 # batched\n").unwrap();
    let on = |device: &[&str], more: &[&str]| {
        satune(folder.path(), &[&["bench", "--suite", "suite.txt", "--top", "3", "--device"], device, more].concat())
    };
    let script: &[&str] = &["scripted", "--script", "script.json"];
    let result = json(&on(script, &["--json"]));
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let (ms, tflops) = (row["ms"].as_f64().unwrap(), row["tflops"].as_f64().unwrap());
        let flops = if row["program"] == "gemm:16,16,16,f32" { 8192.0 } else { 2048.0 };
        assert!((tflops * ms * 1e9 / flops - 1.0).abs() < 1e-9);
        assert!(row["library_ms"].is_null() && row["ratio"].is_null());
    }
    let table = on(&["simulator"], &["--vs", "cublas"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("not measured on a GPU") && table.contains("cuBLAS not measured"), "{table}");
    // One file with all programs, each at a place of its own, that refers to nothing elsewhere.
    let page = std::fs::read_to_string(folder.path().join("satune-out/report.html")).unwrap();
    for part in [
        "gemm:16,16,16,f32",
        "bmm:2,8,8,8,f16",
        "not measured on a GPU",
        "href=\"#p2\"",
        "id=\"p2\"",
        "href=\"#p2c1\"",
        "id=\"p2c1\"",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("https://"));
    // What was faster once is a regression now.
    let mut before = result.clone();
    before["rows"][1]["ms"] = (before["rows"][1]["ms"].as_f64().unwrap() / 1.2).into();
    std::fs::write(folder.path().join("before.json"), before.to_string()).unwrap();
    let run = on(script, &["--baseline", "before.json"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(stderr(&run).contains("bmm:2,8,8,8,f16: ") && stderr(&run).contains("20.0% slower"), "{}", stderr(&run));
    assert!(on(script, &["--baseline", "before.json", "--tolerance", "25"]).status.success());
    assert_eq!(on(&["simulator"], &["--baseline", "before.json"]).status.code(), Some(2));
}

#[test]
fn the_committed_suites_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/suites");
    let mut lines = 0;
    for entry in std::fs::read_dir(root).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines().map(|l| l.split('#').next().unwrap().trim()).filter(|l| !l.is_empty()) {
            satune::source::operator(line).unwrap_or_else(|e| panic!("{e}"));
            lines += 1;
        }
    }
    assert!(lines >= 7 + 11 + 32 + 12 + 11);
}

#[test]
fn commands_of_measuring_refuse_bad_input_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("suite.txt"), "gemm:1,1,1,f32\ngemm:0,1,1,f32\n").unwrap();
    std::fs::write(folder.path().join("empty.json"), r#"{"outcomes":[]}"#).unwrap();
    let small = "gemm:8,8,8,f32";
    let cases: [(&[&str], i32, &str); 10] = [
        (&["bench"], 2, "name a program, or a file of them with --suite"),
        (&["bench", "--suite", "suite.txt"], 2, "suite suite.txt, line 2: "),
        (&["bench", small, "--device", "none"], 2, "choose simulator or cuda"),
        (&["bench", small, "--baseline", "suite.txt"], 2, "not what `bench --json` prints"),
        (&["explore", small, "--strategy", "best"], 2, "strategies are analytical, random, learned"),
        (&["explore", small, "--trials", "0"], 2, "0 is not in"),
        (&["explore", small, "--timeout", "0"], 2, "--timeout"),
        (&["explore", small, "--device", "scripted", "--script", "empty.json"], 3, "no outcomes"),
        (&["explore", small, "--store", "/proc/store.db"], 3, "store /proc/store.db"),
        (&["resume"], 3, "satune-out/store.db: there is no such file"),
    ];
    for (args, code, part) in cases {
        let run = satune(folder.path(), args);
        let text = stderr(&run);
        assert_eq!(run.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(part) && !text.contains("panicked"), "{args:?}: {text}");
    }
    if !Path::new("/proc/driver/nvidia/version").exists() {
        let run = satune(folder.path(), &["explore", small, "--device", "cuda"]);
        assert_eq!(run.status.code(), Some(3));
        assert!(stderr(&run).contains("use --device simulator"), "{}", stderr(&run));
        let doctor = json(&satune(folder.path(), &["doctor", "--json"]));
        assert_eq!(doctor["driver"]["ok"], false);
        for row in ["simulator", "nvrtc", "driver", "gpu", "cublas", "descriptor"] {
            assert!(doctor[row]["what"].is_string() || doctor[row]["remedy"].is_string(), "{row}");
        }
    }
}

/// The kernels around the candidates, as plain C++ with one thread: they are C but for a few words.
#[test]
fn the_reference_kernels_compute_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let main = r#"
int main()
{
    enum { N = 24 };
    static factor_t a[N], b[N];
    static wide_t expected[N];
    static double sums[3];
    static factor_t c[N];
    FILL(a, N, 1, 0);
    FILL(b, N, 2, 0);
    bool varied = a[0] != a[1] && a[0] != b[0];
    for (int i = 0; i < N; ++i) {
        varied = varied && LOAD(a[i]) >= -LIMIT && LOAD(a[i]) <= LIMIT;
        c[i] = a[i];
        expected[i] = LOAD(a[i]);
    }
    if (!varied) return printf("fill\n");
    FILL(b, N, 2, 1);
    for (int i = 0; i < N; ++i) {
        if (LOAD(b[i]) != floor(LOAD(b[i])) || LOAD(b[i]) < (LIMIT == 1 ? -3 : -LIMIT)) return printf("whole\n");
    }
    FILL(b, N, 2, 0);
    COMPARE(c, expected, sums, N, 1e-5);
    if (sums[2] != 0 || sums[0] > 1e-12 || !(sums[1] > 0)) return printf("equal: %g %g %g\n", sums[0], sums[1], sums[2]);
    expected[3] += 1;
    expected[7] = ODD;
    COMPARE(c, expected, sums, N, 1e-5);
    if (sums[2] != 2) return printf("two are wrong, %g found\n", sums[2]);
    return 0;
}
"#;
    let text = support_as_cpp();
    for (dtype, held, wide, limit, odd) in [
        (DType::F32, "float", "double", 1, "NAN"),
        (DType::F64, "double", "double", 1, "NAN"),
        (DType::BF16, "unsigned short", "double", 1, "NAN"),
        (DType::F8E5M2, "unsigned char", "double", 1, "NAN"),
        (DType::I8, "signed char", "signed char", 128, "expected[7] + 1"),
        (DType::U16, "unsigned short", "unsigned short", 256, "expected[7] + 1"),
        (DType::I32, "int", "int", 128, "expected[7] - 1"),
        (DType::I64, "long long", "long long", 128, "expected[7] - 1"),
    ] {
        let mut words =
            format!("#define LIMIT {limit}\n#define ODD {odd}\ntypedef {held} factor_t;\ntypedef {wide} wide_t;\n");
        for (word, name) in [("LOAD", "load"), ("FILL", "fill"), ("COMPARE", "compare")] {
            words += &format!("#define {word} {name}_{}\n", dtype.name());
        }
        let source = folder.path().join("support.cpp");
        std::fs::write(&source, format!("{text}{words}{main}")).unwrap();
        let program = folder.path().join("support");
        let compiled = Command::new("c++").arg("-O1").arg("-w").arg("-o").arg(&program).arg(&source).output();
        let compiled = compiled.unwrap_or_else(|error| satune_testing::no_compiler(&error));
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let run = Command::new(&program).output().unwrap();
        assert!(run.status.success(), "{dtype:?}: {}", String::from_utf8_lossy(&run.stdout));
    }
}

#[test]
fn another_question_gives_nothing_that_was_given() {
    let (problem, gpu) = (parse("gemm:64,64,64,f32").unwrap(), h200());
    let space = space(&problem, &gpu).unwrap();
    let query = |k, diverse| Query { k, diverse, limit: NO_LIMIT, below_ms: f64::INFINITY };
    let go_on = || true;
    let mut list = BestFirst::of(&space, &gpu, query(4, false), &go_on);
    let taken = list.take(4);
    // The best of all is the best of its tile.
    let beside = BestFirst::of(&space, &gpu, query(8, true), &go_on).take(8);
    assert!(beside.iter().any(|c| c.plan == taken[0].plan));
    let next = list.asked(query(8, true)).take(8);
    assert!(!next.is_empty() && next.iter().all(|c| taken.iter().all(|t| t.plan != c.plan)));
}
