//! `replay`: traces and cases of primitive calls, made again on their programs.
use super::{print, Failure, Outcome};
use crate::source;
use rayon::prelude::*;
use satune_ir::{tvmscript, Program};
use satune_rewrites::replay::{self, CallResult, Judged};
use satune_rewrites::{soundness, Call, ScheduleError, Trace};
use serde::Deserialize;
use serde_json::{json, Value};
use std::path::PathBuf;

/// What to replay.
#[derive(clap::Args)]
pub(super) struct Replay {
    /// A trace (Satune's or TVM's JSON, or Python text), or cases, one JSON object a line: {"name", "script", "calls"}
    file: PathBuf,
    /// Seed of samples that the trace does not decide
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The program that a trace is replayed on, where it does not say: an operator or a file with a PrimFunc
    #[arg(long)]
    program: Option<String>,
    /// Refuse calls that leave a program which means something else, and that no later call puts right
    #[arg(long)]
    strict: bool,
    /// Print JSON, one line per case
    #[arg(long)]
    json: bool,
}

/// One case.
#[derive(Deserialize)]
struct Case {
    name: String,
    script: String,
    calls: Vec<Call>,
}

/// A trace with its source program.
#[derive(Deserialize)]
struct TraceFile {
    program: Option<String>,
}

/// `replay`.
pub(super) fn run(args: &Replay) -> Outcome {
    let path = args.file.display().to_string();
    let text =
        satune_ir::files::read_text(&args.file, 256 << 20).map_err(|e| Failure::Input(format!("{path}: {e}")))?;
    if is_cases(&text) {
        return cases(&path, &text, args);
    }
    let trace = Trace::read(&text).map_err(|e| {
        Failure::Input(format!(
            "{path}: {e}; a trace is a JSON list of {{\"op\", \"args\", \"kwargs\", \"out\"}}, an object with such a list as \"calls\", TVM's [instructions, decisions], or Python text"
        ))
    })?;
    let own = serde_json::from_str::<TraceFile>(&text).ok().and_then(|t| t.program);
    let program = match (&args.program, own) {
        (Some(name), _) => program_of(name)?,
        (None, Some(script)) => parse(&path, &script)?,
        (None, None) => {
            return Err(Failure::Input(format!(
                "{path}: the trace does not hold its program; name it with --program gemm:... or --program FILE"
            )))
        }
    };
    let outcome = Outcomes::of(&program, &trace.calls, args).map_err(|e| Failure::Input(format!("{path}: {e}")))?;
    if args.json {
        print(&format!("{}\n", outcome.json(None)))?;
    } else if outcome.refused.is_none() {
        outcome.put_right.iter().for_each(|note| super::say(note));
        print(&outcome.script)?;
    }
    match outcome.refused {
        None => Ok(()),
        Some(refusal) => Err(Failure::Nothing(refusal)),
    }
}

fn program_of(name: &str) -> Result<Program, Failure> {
    let file = std::path::Path::new(tvmscript::file_of(name));
    if file.is_file() {
        let text = source::read(file).map_err(|e| Failure::Input(e.to_string()))?;
        return parse(name, &text);
    }
    source::load_work(name).map(|w| w.workload().program().clone()).map_err(|e| Failure::Input(e.to_string()))
}

fn parse(name: &str, script: &str) -> Result<Program, Failure> {
    tvmscript::parse_named(name, script).map_err(|e| Failure::Input(source::rendered(&e)))
}

/// Whether the text is cases: its first line is an object with a script.
fn is_cases(text: &str) -> bool {
    let first = text.lines().find(|l| !l.trim().is_empty()).unwrap_or_default();
    serde_json::from_str::<Value>(first).is_ok_and(|v| v.get("script").is_some())
}

/// What came of a list of calls.
struct Outcomes {
    calls: Vec<Value>,
    /// TVMScript of the program that the calls left.
    script: String,
    /// The first refusal: which call, and its picture.
    refused: Option<String>,
    /// Calls that left a wrong program, which later ones put right.
    put_right: Vec<String>,
    /// What is wrong with the program that the calls left, if anything is found.
    unsound: Option<String>,
}

/// Most calls of a trace, and most blocks of its program: what is checked after each call is then checked some minutes long
/// at most.
const MOST_CALLS: usize = 1000;
const MOST_BLOCKS: u32 = 256;

impl Outcomes {
    fn of(program: &Program, calls: &[Call], args: &Replay) -> Result<Outcomes, String> {
        if calls.len() > MOST_CALLS {
            return Err(format!("{} calls; at most {MOST_CALLS} are made: replay a part of them", calls.len()));
        }
        let blocks = program.next_block.saturating_sub(1);
        if blocks > MOST_BLOCKS {
            return Err(format!(
                "the program has {blocks} blocks; at most {MOST_BLOCKS} are scheduled: give a part of it"
            ));
        }
        // What a program means after each call is asked where somebody wants to know.
        let judged = match args.strict {
            true => Judged::of(program, calls, args.seed),
            false => replay::replay_seeded(program, calls, args.seed).map(|(calls, schedule)| Judged {
                calls,
                verdicts: Vec::new(),
                schedule,
            }),
        };
        let judged = judged.map_err(|e| e.detail.clone())?;
        let scheduled = judged.schedule.program();
        let refusal =
            |at: usize, e: &ScheduleError| format!("call {at} ({}) is refused\n{}", calls[at].op, e.render(scheduled));
        let by_tvm = judged.calls.iter().enumerate().find_map(|(i, r)| r.as_ref().err().map(|e| refusal(i, e)));
        let culprit = judged.culprit().map(|(at, e)| refusal(at, e));
        let verdict = |r: &CallResult| match r {
            Ok(()) => json!({"ok": true}),
            Err(e) => json!({"ok": false, "detail": e.detail}),
        };
        let calls_made = judged
            .calls
            .iter()
            .enumerate()
            .map(|(at, r)| {
                let mut made = match r {
                    Ok(()) => json!({"ok": true}),
                    Err(e) => json!({
                        "ok": false, "error_class": e.class.to_string(), "fast": e.fast, "detail": e.detail,
                        "remedy": e.remedy,
                    }),
                };
                if let Some(sound) = judged.verdicts.get(at) {
                    made["sound"] = verdict(sound);
                }
                made
            })
            .collect();
        let put_right = judged.put_right();
        let note = |at: usize| {
            let why = judged.verdicts[at].as_ref().err().map_or("", |e| &e.detail);
            format!(
                "call {at} ({}) left a program that means something else ({why}); a later call put it right",
                calls[at].op
            )
        };
        Ok(Outcomes {
            calls: calls_made,
            script: tvmscript::print(scheduled),
            refused: culprit.or(by_tvm),
            put_right: put_right.into_iter().map(note).collect(),
            unsound: soundness::check(program, scheduled).err().map(|e| e.detail.clone()),
        })
    }

    fn json(&self, name: Option<&str>) -> Value {
        let mut out = serde_json::Map::new();
        if let Some(name) = name {
            out.insert("name".into(), name.into());
        }
        out.insert("calls".into(), Value::Array(self.calls.clone()));
        out.insert("script".into(), self.script.clone().into());
        let sound = match &self.unsound {
            None => json!({"ok": true}),
            Some(detail) => json!({"ok": false, "detail": detail}),
        };
        out.insert("sound".into(), sound);
        Value::Object(out)
    }
}

/// A line of text per case, and whether it could be read at all.
fn case(path: &str, number: usize, line: &str, args: &Replay) -> Result<String, Failure> {
    let at = format!("{path}:{}", number + 1);
    let case: Case = serde_json::from_str(line)
        .map_err(|e| Failure::Input(format!("{at}: {e}; a case is {{\"name\", \"script\", \"calls\"}}")))?;
    let program = parse(&format!("{at} ({})", case.name), &case.script)?;
    let outcome = Outcomes::of(&program, &case.calls, args).map_err(|e| Failure::Input(format!("{at}: {e}")))?;
    if args.json {
        return Ok(format!("{}\n", outcome.json(Some(&case.name))));
    }
    Ok(match &outcome.refused {
        None => format!("{}: {} calls made\n", case.name, outcome.calls.len()),
        Some(refusal) => format!("{}: {refusal}\n", case.name),
    })
}

fn cases(path: &str, text: &str, args: &Replay) -> Outcome {
    let lines: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()).collect();
    let mut unread = Vec::new();
    // In pieces, so that results come while later cases are still under way.
    for piece in lines.chunks(256) {
        let done: Vec<Result<String, Failure>> =
            piece.par_iter().map(|(number, line)| case(path, *number, line, args)).collect();
        for result in done {
            match result {
                Ok(text) => print(&text)?,
                Err(failure) => unread.push(failure.text().to_string()),
            }
        }
    }
    if unread.is_empty() {
        return Ok(());
    }
    Err(Failure::Input(unread.join("\n")))
}
