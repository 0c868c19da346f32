//! Heron's rows as traces: TVM makes the same programs.
use satune_ir::{structural, tvmscript, Program};
use satune_rewrites::heron::Record;
use satune_rewrites::replay::replay_strict;
use satune_rewrites::simplified::simplified;
use satune_rewrites::space::contraction;
use serde_json::{json, Value};

/// te's dense in f16.
const DENSE: &str = r#"
@T.prim_func(s_tir=True)
def main(A: T.Buffer((1024, 1024), "float16"), B: T.Buffer((1024, 1024), "float16"), C: T.Buffer((1024, 1024), "float16")):
    for i, j, k in T.grid(1024, 1024, 1024):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float16(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vj, vk]
"#;

/// Rows for it, as a table has them.
const ROWS: [&str; 3] = [
    "77,8.906950110460233, 16,16,16, 3,3, 1,0,5, 4,16,16,1,16, 1,32,32,16,1, 64,8, 16,1, 1,4,32, 1,1,1, 1,1,1, 16,0,1, 16,24,2",
    "1190,10.284423285696588,16,16,16, 0,1, 1,0,5, 4,16,16,1,16, 1,32,32,16,1, 64,0, 16,1, 1,1,32, 1,1,1, 1,4,2, 32,24,8, 32,8,8",
    "0.0,16,16,16,1,2,1,0,5,4,16,16,1,16,1,32,32,16,1,64,24,16,1,1,1,32,1,1,1,1,1,1,32,24,2,32,24,2",
];

/// For 128 x 64 x 64: parts at several levels, fragments beside their tiles, sums of one fragment at a time.
const SMALL: [&str; 3] = [
    "16,16,16, 1,2, 1,0,0, 2,1,2,1,2, 1,32,32,32,1, 64,8, 1,2, 2,1,1, 1,1,2, 2,2,1, 32,8,4, 32,8,8",
    "16,16,16, 0,0, 1,0,0, 2,1,2,1,2, 1,32,32,32,1, 64,8, 2,1, 1,1,1, 2,2,2, 1,1,1, 64,8,4, 64,8,8",
    "16,16,16, 0,1, 1,1,3, 2,1,1,1,1, 1,32,32,64,1, 64,8, 1,1, 1,1,2, 1,1,2, 1,1,1, 32,8,4, 32,8,8",
];

#[test]
fn tvm_makes_the_same_programs() {
    let dense = tvmscript::parse(DENSE).unwrap();
    let small = crate::plans::source([128, 64, 64], "float16", "NT", None);
    let mut all = Vec::new();
    for (text, source) in ROWS.map(|row| (row, &dense)).into_iter().chain(SMALL.map(|row| (row, &small))) {
        let trace = Record::read(text).unwrap().unwrap().remove(0).row.trace(&contraction(source).unwrap()).unwrap();
        let (results, schedule) = replay_strict(source, &trace.calls).unwrap();
        assert!(results.iter().all(Result::is_ok), "{text}");
        all.push((source, trace.to_python("schedule"), schedule.program().clone()));
    }
    let request = |(source, python, made): &(&Program, String, Program)| json!({"expect": tvmscript::print(made), "script": tvmscript::print(source), "python": python});
    let answers = crate::ask::ask("heron", &all.iter().map(request).collect::<Vec<Value>>());
    for ((_, python, made), answer) in all.iter().zip(&answers) {
        let Some(text) = answer["final"].as_str() else { panic!("{}\n{python}", answer["error"]) };
        let theirs = simplified(&tvmscript::parse(text).unwrap());
        structural::equal(&simplified(made), &theirs)
            .unwrap_or_else(|e| panic!("{e}\n--- TVM's\n{text}\n--- ours\n{}", tvmscript::print(made)));
    }
}
