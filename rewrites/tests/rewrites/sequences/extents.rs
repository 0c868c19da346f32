//! Producers and consumers of all small extents, moved to each other, bound, and kept in each memory: what is accepted means
//! what the source means, with memory of the size and life that its scope gives it.
use super::oracle;
use satune_ir::tvmscript;
use satune_rewrites::replay::Replay;
use satune_rewrites::Call;
use serde_json::{json, Value};

const COLUMNS: i64 = 3;

/// B, of `made` rows, is twice A; C, of `read` rows, is B and one.
fn script(made: i64, read: i64, shift: i64, int64: bool) -> String {
    let n = |v: i64| if int64 { format!("T.int64({v})") } else { v.to_string() };
    let (rows, columns, cut) = (n(made), n(COLUMNS), n(read));
    format!(
        r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({rows}, {columns}), "float32"), C: T.Buffer(({cut}, {columns}), "float32")):
    B = T.sblock_alloc_buffer(({rows}, {columns}), "float32")
    for i, j in T.grid({rows}, {columns}):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid({cut}, {columns}):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi + {shift}, vj] + T.float32(1)
"#,
        shift = n(shift)
    )
}

fn calls(moved: &str, target: &str, level: usize, unit: bool, tag: Option<&str>, scope: &str) -> Vec<Call> {
    let call = |op: &str, args: Vec<Value>| Call::new(op, args);
    let mut out = vec![
        call("get_sblock", vec![json!("B")]).into_name("b"),
        call("get_sblock", vec![json!("C")]).into_name("c"),
        call("get_loops", vec![json!(format!("${target}"))]).into_name("l"),
        call("set_scope", vec![json!("$b"), json!(0), json!(scope)]),
    ];
    let op = if moved == "c" { "reverse_compute_at" } else { "compute_at" };
    out.push(call(op, vec![json!(format!("${moved}")), json!(format!("$l[{level}]")), json!(unit)]));
    out.extend(tag.map(|tag| call("bind", vec![json!("$l[0]"), json!(tag)])));
    out
}

/// How many schedules were accepted, and all that are wrong.
fn sweep(most: i64, int64: bool) -> (usize, Vec<String>) {
    let (mut accepted, mut wrong) = (0, Vec::new());
    for (made, read) in (1..=most).flat_map(|m| (1..=m).map(move |r| (m, r))) {
        for shift in [0, made - read] {
            let source = tvmscript::parse(&script(made, read, shift, int64)).unwrap();
            for (moved, target) in [("c", "b"), ("b", "c")] {
                for (level, unit) in [(0, false), (0, true), (1, false)] {
                    for tag in [None, Some("blockIdx.x"), Some("threadIdx.x")] {
                        for scope in ["global", "shared", "local"] {
                            let mut state = Replay::strict(&source).unwrap();
                            let calls = calls(moved, target, level, unit, tag, scope);
                            if calls.iter().any(|c| state.call(c).is_err()) {
                                continue;
                            }
                            accepted += 1;
                            if let Some(why) = oracle::wrong(&source, state.schedule.program(), 3) {
                                let name = format!("{made} rows made, {read} read from {shift} on, {moved} at {level}");
                                wrong.push(format!("{name} {unit} {tag:?} {scope}: {why}"));
                            }
                        }
                    }
                }
            }
        }
    }
    (accepted, wrong)
}

#[test]
fn what_is_moved_runs_where_its_memory_lasts() {
    let most = std::env::var("SATUNE_SAMPLES").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    for int64 in [false, true] {
        let (accepted, wrong) = sweep(most, int64);
        assert!(accepted > 300, "{accepted} accepted");
        assert!(wrong.is_empty(), "{} of {accepted} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
}

/// One row of 8 is read: only in the round that makes it.
#[test]
fn a_consumer_of_one_row_is_guarded() {
    let source = tvmscript::parse(&script(8, 1, 0, false)).unwrap();
    let mut state = Replay::strict(&source).unwrap();
    for c in calls("c", "b", 0, false, Some("blockIdx.x"), "global") {
        state.call(&c).unwrap();
    }
    let text = tvmscript::print(state.schedule.program());
    assert!(text.contains("T.where(i < 1)"), "{text}");
}
