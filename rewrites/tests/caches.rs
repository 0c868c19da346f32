//! The caches with indices of their own, updates in place, indices computed beforehand, normal forms and merged nests:
//! verdicts, programs and traces, compared with TVM on a few hundred small cases where it is installed.
//!
//! Where TVM accepts and Satune refuses, TVM's program must be wrong; where both accept and the programs differ, too. What
//! Satune accepts must mean what its source means.
mod ask;

use ask::ask;
use satune_ir::{interp, structural, tvmscript, Program};
use satune_rewrites::replay::{replay, replay_strict, CallResult};
use satune_rewrites::{Call, ErrorClass, Trace};
use serde_json::{json, Value};

/// A program: its name, parameters, and body.
const PROGRAMS: &[(&str, &str, &str)] = &[
    (
        "copy",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj] + T.float32(1)",
    ),
    (
        "transpose",
        "A: (6, 8), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vj, 7 - vi]",
    ),
    (
        "row",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi // 2, 3]",
    ),
    (
        "window",
        "A: (9, 7), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj] + A[vi + 1, vj + 1]",
    ),
    (
        "padded",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = T.if_then_else(1 <= vi, A[vi - 1, vj], T.float32(0))",
    ),
    (
        "unit",
        "A: (8, 1), C: (8, 1)",
        "
for i, j in T.grid(8, 1):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj]",
    ),
    (
        "twice",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi // 2, vj] = A[vi, vj]",
    ),
    (
        "matmul",
        "A: (8, 6), C: (8, 4), D: (6, 4)",
        "
for i, j, k in T.grid(8, 4, 6):
    with T.sblock(\"C\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk] * D[vk, vj]",
    ),
    (
        "ragged",
        "A: (8, 6), C: (8, 6)",
        "
for i_0, i_1, j in T.grid(3, 3, 6):
    with T.sblock(\"C\"):
        vi = T.axis.spatial(8, i_0 * 3 + i_1)
        vj = T.axis.spatial(6, j)
        T.where(i_0 * 3 + i_1 < 8)
        C[vi, vj] = A[vi, vj]",
    ),
    (
        "fused",
        "A: (8, 6), C: (8, 6)",
        "
for f in range(48):
    with T.sblock(\"C\"):
        vi = T.axis.spatial(8, f // 6)
        vj = T.axis.spatial(6, f % 6)
        C[vi, vj] = A[vi, vj]",
    ),
    (
        "chain",
        "A: (8, 6), C: (8, 6); B: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"B\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        B[vi, vj] = A[vi, vj] * T.float32(2)
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = B[7 - vi, vj] + T.float32(1)",
    ),
    (
        "joined",
        "A: (8, 6), C: (8, 6); B: (8, 6)",
        "
for i in range(8):
    for j in range(6):
        with T.sblock(\"B\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for j in range(6):
        with T.sblock(\"C\"):
            vi, vj = T.axis.remap(\"SS\", [i, j])
            C[vi, vj] = B[vi, 5 - vj] + T.float32(1)",
    ),
    (
        "three",
        "A: (8, 6), C: (8, 6), D: (8, 6); B: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"B\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        B[vi, vj] = A[vi, vj] * T.float32(2)
for i, j in T.grid(8, 6):
    with T.sblock(\"D\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        D[vi, vj] = B[vi, vj] + T.float32(1)
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = B[vi, vj] - T.float32(1)",
    ),
    (
        "overwritten",
        "A: (8, 6), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[7 - vi, vj]
for i, j in T.grid(8, 6):
    with T.sblock(\"B\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        A[vi, vj] = A[vi, vj] + T.float32(1)",
    ),
    (
        "in_place",
        "C: (12,)",
        "
for i in range(2):
    with T.sblock(\"C\"):
        T.reads(C[0:12])
        T.writes(C[0:12])
        for k in range(12):
            C[k] = C[k] + T.float32(1)",
    ),
    (
        "part",
        "C: (12,)",
        "
for i in range(1):
    with T.sblock(\"C\"):
        T.reads(C[0:8])
        T.writes(C[2:6])
        for k in range(4):
            C[k + 2] = C[k + 4] + T.float32(1)",
    ),
    (
        "shift",
        "C: (12,)",
        "
for i in range(1):
    with T.sblock(\"C\"):
        T.reads(C[0:4])
        T.writes(C[4:12])
        for k in range(4):
            C[k + 4] = C[k] + T.float32(1)",
    ),
    (
        "update",
        "C: (12,)",
        "
for i in range(12):
    with T.sblock(\"C\"):
        vi = T.axis.spatial(12, i)
        C[vi] = C[vi] + T.float32(1)",
    ),
    (
        "resize",
        "A: (4, 3), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi // 4 + vj // 4, vj // 2]",
    ),
    (
        "resize_mean",
        "A: (4, 3), C: (8, 6)",
        "
for i, j in T.grid(8, 6):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        T.reads(A[0:4, 0:3])
        T.writes(C[vi, vj])
        C[vi, vj] = A[vi // 4 + vj // 4, vj // 4] + A[vj // 4 + vi // 4, vj // 2] * T.Cast(\"float32\", vi + vj)",
    ),
    (
        "two_stores",
        "A: (8,), C: (16,)",
        "
for i in range(8):
    with T.sblock(\"C\"):
        vi = T.axis.spatial(8, i)
        T.reads(A[0:8])
        T.writes(C[vi * 2:vi * 2 + 2])
        C[vi * 2] = A[7 - vi]
        C[vi * 2 + 1] = A[7 - vi] + A[vi // 2]",
    ),
    (
        "units",
        "A: (1, 6), C: (1, 1)",
        "
for i, j, k in T.grid(1, 1, 6):
    with T.sblock(\"C\"):
        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk]",
    ),
    (
        "all_units",
        "A: (1, 1), C: (1, 1)",
        "
for i, j in T.grid(1, 1):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj]",
    ),
    (
        "sum_of_one",
        "A: (8, 1), C: (8,)",
        "
for i, k in T.grid(8, 1):
    with T.sblock(\"C\"):
        vi, vk = T.axis.remap(\"SR\", [i, k])
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + A[vi, vk]",
    ),
    (
        "reordered",
        "A: (8, 6), C: (8, 6)",
        "
for j, i in T.grid(6, 8):
    with T.sblock(\"C\"):
        vi, vj = T.axis.remap(\"SS\", [i, j])
        C[vi, vj] = A[vi, vj]",
    ),
];

const MAPS: &[&str] = &[
    "lambda i, j: (j, i)",
    "lambda i, j: (i * 6 + j,)",
    "lambda i, j: (i // 4, j, i % 4)",
    "lambda i, j: (i // 3, j, i % 3)",
    "lambda i, j: (i * 2, j)",
    "lambda i, j: (i + j * 9,)",
    "lambda i, j: (i + j,)",
    "lambda i, j: (i + 1, j)",
    "lambda i, j: (7 - i, j)",
    "lambda i, j: (i, j ^ i)",
    "lambda i, j: (i,)",
    "lambda i, j: (i // 2,)",
    "lambda i: (i,)",
    "lambda i, j, k: (i // 4, j, i % 4)",
    "lambda i, j, k: (k, i)",
    "lambda i, j, k: (k, j)",
];

struct Case {
    name: String,
    script: String,
    calls: Vec<Call>,
}

/// A program in TVMScript. After a semicolon, the buffers that are no parameters.
fn script(params: &str, body: &str) -> String {
    let (params, allocated) = params.split_once(';').unwrap_or((params, ""));
    let buffers = |text: &str| -> Vec<(String, String)> {
        let parts = text.split("), ").filter(|p| !p.trim().is_empty());
        let named = parts.filter_map(|p| p.split_once(": "));
        named.map(|(n, shape)| (n.trim().to_string(), format!("{})", shape.trim_end_matches(')')))).collect()
    };
    let params: Vec<String> =
        buffers(params).iter().map(|(n, shape)| format!("{n}: T.Buffer({shape}, \"float32\")")).collect();
    let allocated: String =
        buffers(allocated).iter().map(|(n, shape)| format!("    {n} = T.sblock_alloc_buffer({shape})\n")).collect();
    let body: String = body.lines().filter(|l| !l.trim().is_empty()).map(|l| format!("    {l}\n")).collect();
    format!("@T.prim_func(s_tir=True)\ndef main({}):\n{allocated}{body}", params.join(", "))
}

fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (at, (program, params, body)) in PROGRAMS.iter().enumerate() {
        let script = script(params, body);
        let mut case = |name: String, calls: Vec<Call>| {
            out.push(Case { name: format!("{program}: {name}"), script: script.clone(), calls });
        };
        let block = |name: &str| Call::new("get_sblock", [json!(name)]).into_name(name.to_lowercase());
        let updates = ["in_place", "part", "shift", "update", "overwritten"].contains(program);
        let blocks: Vec<&str> =
            ["B", "C", "D"].into_iter().filter(|b| body.contains(&format!("sblock(\"{b}\")"))).collect();
        for op in ["reindex_cache_read", "reindex_cache_write"] {
            let (from, step) = if ["copy", "matmul"].contains(program) { (0, 1) } else { (at % 4, 4) };
            // TVM crashes where a block reads what it writes.
            for (k, map) in MAPS.iter().enumerate().skip(from).step_by(step).filter(|_| !updates && blocks.len() < 3) {
                let at = blocks[(k / step + usize::from(op.ends_with("write"))) % blocks.len()];
                let index = usize::from(*program == "matmul" && k % 2 == 1 && op.ends_with("read"));
                let args = [
                    json!(format!("${}", at.to_lowercase())),
                    json!(index),
                    json!("shared"),
                    json!({ "index_map": map }),
                ];
                case(format!("{op} {map}"), vec![block(at), Call::new(op, args).into_name("made")]);
            }
            if *program == "copy" {
                for (index, memory) in [(1, "shared"), (0, "attic")] {
                    let args = [json!("$c"), json!(index), json!(memory), json!({ "index_map": MAPS[0] })];
                    case(format!("{op} {index} {memory}"), vec![block("C"), Call::new(op, args).into_name("made")]);
                }
            }
        }
        if ["copy", "chain", "matmul", "overwritten"].contains(program) || updates {
            for (at, index, memory) in [("C", 0, "local"), ("C", 1, "local"), ("C", 0, "attic")] {
                let call = Call::new("cache_inplace", [json!("$c"), json!(index), json!(memory)]);
                case(format!("cache_inplace {index} {memory}"), vec![block(at), call.into_names(["x", "y"])]);
            }
        }
        for threshold in [-1, 0, 1, 2, 3] {
            let asked = ["resize", "resize_mean", "two_stores"].contains(program)
                || (*program == "transpose" && threshold == 0);
            let args = [json!("$c"), json!("global"), json!(threshold)];
            if asked {
                case(
                    format!("cache_index {threshold}"),
                    vec![block("C"), Call::new("cache_index", args).into_name("x")],
                );
            }
        }
        // Where a reduction comes before what is data-parallel, Satune orders them, and TVM does not.
        case("normalize_prim_func".into(), vec![Call::new("normalize_prim_func", []).into_name("x")]);
        if blocks.len() > 1 {
            for (a, b) in [("B", "C"), ("C", "B"), ("B", "D"), ("D", "C")] {
                for (x, y) in [(0, 0), (1, 1), (0, 1)] {
                    if !blocks.contains(&a) || !blocks.contains(&b) {
                        continue;
                    }
                    let loops = |n: &str| Call::new("get_loops", [json!(format!("${n}"))]).into_name(format!("l{n}"));
                    let (na, nb) = (a.to_lowercase(), b.to_lowercase());
                    // In `joined`, both have their outer loop in common.
                    if *program == "joined" && (x, y) == (0, 0) {
                        continue;
                    }
                    let merge = Call::new("merge", [json!(format!("$l{na}[{x}]")), json!(format!("$l{nb}[{y}]"))]);
                    let calls = vec![block(a), block(b), loops(&na), loops(&nb), merge.into_name("m")];
                    case(format!("merge {a}{x} {b}{y}"), calls);
                }
            }
        }
    }
    out
}

/// What is known of a case: TVM's answer, and our replay.
struct Seen {
    source: Program,
    results: Vec<CallResult>,
    ours: Program,
}

impl Seen {
    fn of(case: &Case) -> Seen {
        let source = tvmscript::parse(&case.script).unwrap_or_else(|e| panic!("{}: {e}\n{}", case.name, case.script));
        let (results, schedule) = replay(&source, &case.calls).expect("a schedule");
        Seen { source, results, ours: schedule.into_program() }
    }

    fn keeps_the_meaning(&self, program: &Program) -> bool {
        interp::equal_on(&self.source, program, 7).is_ok()
    }

    /// Why the answer and ours do not fit; what kind of agreement it is otherwise.
    fn compared(&self, answer: &Value) -> Result<&'static str, String> {
        let refusal = self.results.iter().find_map(|r| r.as_ref().err());
        let theirs = answer["final"].as_str().map(plain);
        match (refusal, theirs) {
            (Some(ours), None) => {
                let class = answer["class"].as_str().unwrap_or_default();
                let message = answer["error"].as_str().unwrap_or_default();
                // What TVM checks without a message of its own says where in its source it stands.
                let same = ours.class == ErrorClass::InternalError || ours.fast == message;
                // For a program that it cannot normalize, TVM's function returns nothing.
                let class_fits = ours.class.to_string() == class || class == "KeyError";
                let nothing = ours.primitive == "normalize_prim_func" && message.contains("NoneType");
                if nothing {
                    return Ok("both refuse");
                }
                if same && class_fits {
                    return Ok("both refuse");
                }
                Err(format!("TVM says {class}: {message}; Satune {}: {}", ours.class, ours.fast))
            }
            (Some(ours), Some(theirs)) => match tvmscript::parse(&theirs) {
                Ok(program) if self.keeps_the_meaning(&program) => {
                    Err(format!("refused without need: {}\n{theirs}", ours.detail))
                }
                _ => Ok("TVM is wrong, refused"),
            },
            (None, None) => Err(format!("only TVM refuses: {answer}")),
            (None, Some(theirs)) => {
                let printed = tvmscript::parse(&tvmscript::print(&self.ours)).map_err(|e| e.to_string())?;
                let Ok(program) = tvmscript::parse(&theirs) else { return Ok("TVM's program is none, mended") };
                match structural::equal(&printed, &program) {
                    Ok(()) => Ok("one program"),
                    Err(_) if self.keeps_the_meaning(&self.ours) && !self.keeps_the_meaning(&program) => {
                        Ok("TVM is wrong, mended")
                    }
                    Err(difference) => Err(format!("{difference:?}\n{theirs}\n{}", tvmscript::print(&self.ours))),
                }
            }
        }
    }
}

/// TVM's text without what it says of the layout of buffers for indices, which is wrong for all but vectors.
fn plain(text: &str) -> String {
    text.replace(", strides=(1,)", "")
}

/// What is accepted means what its source means, and a strict replay accepts it, too.
#[test]
fn accepted_calls_keep_the_meaning() {
    let mut accepted = 0;
    for case in &cases() {
        let seen = Seen::of(case);
        if seen.results.iter().any(Result::is_err) {
            continue;
        }
        accepted += 1;
        assert!(seen.keeps_the_meaning(&seen.ours), "{}\n{}", case.name, tvmscript::print(&seen.ours));
        let (strict, _) = replay_strict(&seen.source, &case.calls).expect("a schedule");
        assert!(strict.iter().all(Result::is_ok), "{}: {:?}", case.name, strict.last());
    }
    println!("{accepted} cases are accepted");
    assert!(accepted > 80, "{accepted}");
}

#[test]
fn verdicts_and_programs_are_tvms() {
    let cases = cases();
    let requests: Vec<Value> = cases
        .iter()
        .map(|case| {
            let python = Trace { calls: case.calls.clone() }.to_python("schedule");
            json!({"script": case.script, "python": python, "verdict": true})
        })
        .collect();
    let Some(answers) = ask("caches", &requests) else { return };
    let mut counts = std::collections::BTreeMap::<&str, usize>::new();
    let mut failures = Vec::new();
    for (case, answer) in cases.iter().zip(&answers) {
        let seen = Seen::of(case);
        match seen.compared(answer) {
            Ok(kind) => *counts.entry(kind).or_default() += 1,
            Err(why) => failures.push(format!("{}: {why}", case.name)),
        }
        if seen.results.iter().any(Result::is_err) || answer["final"].is_null() {
            continue;
        }
        // TVM's trace of the calls, made again.
        let texts = [
            Some(answer["json"].to_string()),
            answer["graph"].as_str().map(str::to_string),
            answer["text"].as_str().map(str::to_string),
        ];
        for text in texts.into_iter().flatten() {
            if let Err(why) = again(&seen, &text) {
                failures.push(format!("{}: {why}\n{text}", case.name));
            }
        }
    }
    println!("{counts:?} of {} cases", cases.len());
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

fn again(seen: &Seen, text: &str) -> Result<(), String> {
    let trace = Trace::read(text).map_err(|e| e.to_string())?;
    let (results, schedule) = replay(&seen.source, &trace.calls).map_err(|e| e.to_string())?;
    if let Some((call, error)) = trace.calls.iter().zip(&results).find_map(|(c, r)| Some((c, r.as_ref().err()?))) {
        // TVM records what it tried and could not do.
        return Err(format!("{}: {}", call.op, error.detail));
    }
    structural::equal(schedule.program(), &seen.ours).map_err(|e| format!("{e:?}"))
}

/// Traces as text, read back.
#[test]
fn traces_are_read_as_they_are_written() {
    for case in cases() {
        let trace = Trace { calls: case.calls };
        let python = Trace::read(&trace.to_python("schedule")).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        assert_eq!(python.to_python("schedule"), trace.to_python("schedule"));
        assert_eq!(Trace::read(&trace.to_json().unwrap()).unwrap(), trace);
    }
}
