//! The caches with indices of their own, updates in place, indices computed beforehand, normal forms, merged nests, and the
//! rest of the primitives of TVM (`whole`): verdicts, programs and traces, compared with TVM on a few hundred small cases
//! where it is installed.
//!
//! Where TVM accepts and Satune refuses, TVM's program must be wrong; where both accept and the programs differ, too. What
//! Satune accepts must mean what its source means.
mod programs;
mod whole;

use crate::ask::ask;
use programs::{script, MAPS, PROGRAMS};
use satune_ir::{interp, structural, tvmscript, Program};
use satune_rewrites::replay::{replay, replay_strict, CallResult};
use satune_rewrites::simplified::simplified;
use satune_rewrites::{Call, ErrorClass, Trace};
use serde_json::{json, Value};

struct Case {
    name: String,
    script: String,
    calls: Vec<Call>,
    /// Whether the calls change what is computed, as TVM documents.
    changes: bool,
}

fn cases() -> Vec<Case> {
    let mut out = whole::cases();
    for (at, (program, params, body)) in PROGRAMS.iter().enumerate() {
        let script = script(params, body);
        let mut case = |name: String, calls: Vec<Call>| {
            out.push(Case { name: format!("{program}: {name}"), script: script.clone(), calls, changes: false });
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
                // TVM leaves quotients that bounds decide, `vi // 4` of a `vi` below 1.
                let Ok(program) = tvmscript::parse(&theirs).map(|p| simplified(&p)) else {
                    return Ok("TVM's program is none, mended");
                };
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
        let (strict, _) = replay_strict(&seen.source, &case.calls).expect("a schedule");
        if case.changes {
            assert!(strict.iter().any(Result::is_err), "{} is accepted", case.name);
            continue;
        }
        accepted += 1;
        assert!(seen.keeps_the_meaning(&seen.ours), "{}\n{}", case.name, tvmscript::print(&seen.ours));
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
    let answers = ask("caches", &requests);
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
