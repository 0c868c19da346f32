//! Random calls, made in the program as it is.
use satune_ir::Program;
use satune_rewrites::replay::{CallResult, Handle, Replay};
use satune_rewrites::{tree, Call};
use serde_json::{json, Value};
use std::fmt;

/// A choice of a call and of its arguments.
pub type Choice = (u8, u8, u8, u8, u8);

/// A call that can be made again in another program: by the names of its blocks. In its arguments `$b` is the first
/// block, `$l` its loops, `$d` and `$m` the second one's.
#[derive(Clone, Debug)]
pub struct Step {
    pub first: String,
    pub second: String,
    pub call: Call,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = (&self.first, &self.second);
        let args = Value::from(self.call.args.clone()).to_string();
        let named = args.replace("$b", first).replace("$d", second);
        let named = named.replace("$l", &format!("${first}")).replace("$m", &format!("${second}"));
        write!(f, "{} {named}", self.call.op)
    }
}

fn pick<'a, T: ?Sized>(list: &[&'a T], by: u8) -> &'a T {
    list[by as usize % list.len()]
}

/// The number of kinds of calls, those that come several times counted as often.
const KINDS: u8 = 52;

/// The call that a choice stands for, where the first block has `loops` loops and the second one `others`.
fn call(choice: Choice, loops: usize, others: usize) -> Call {
    let (op, _, x, y, z) = choice;
    let one = |by: u8| json!(format!("$l[{}]", by as usize % loops.max(1)));
    let other = |by: u8| json!(format!("$m[{}]", by as usize % others.max(1)));
    let block = || json!("$b");
    let scope = || json!(pick(&["global", "shared", "local"], z));
    let next = |by: u8| json!(format!("$l[{}]", (by as usize + 1) % loops.max(1)));
    let factors = |by: u8| match by % 6 {
        0 => json!([null, 2]),
        1 => json!([null, 3]),
        2 => json!([4, null]),
        3 => json!([null, 2, 2]),
        4 => json!([null, 5]),
        _ => json!([3, null]),
    };
    let index = json!(y % 3 % 2);
    let access = json!([if y % 2 == 0 { "read" } else { "write" }, z % 2]);
    let made = |op: &str, args: Vec<Value>| Call::new(op, args);
    // Mostly as given, sometimes at a place of their own and with unit loops.
    let placed = |op: &str| {
        let mut args = vec![block(), other(x)];
        if y % 4 == 0 {
            args.extend([json!(z % 2 == 0), json!([-1, -2, 0, 1][z as usize / 2 % 4])]);
        }
        made(op, args)
    };
    let cache = |op: &str, index: Value| {
        let mut args = vec![block(), index, scope()];
        if x % 4 == 0 {
            args.push(json!(["$d"]));
        }
        made(op, args)
    };
    match op % KINDS {
        0..=3 => made("split", vec![one(x), json!(factors(y))]),
        4 => made("fuse", vec![one(x), next(x)]),
        5 => made("reorder", vec![one(x), one(y)]),
        6 => made("reorder", vec![one(x), one(y), one(z)]),
        7 => made("bind", vec![one(x), json!(pick(&["blockIdx.x", "threadIdx.x", "threadIdx.y", "vthread.x"], y))]),
        8 => made(pick(&["unroll", "vectorize", "parallel"], y), vec![one(x)]),
        9..=11 => cache("cache_read", index),
        12..=14 => cache("cache_write", json!(0)),
        15..=18 => placed("compute_at"),
        19..=22 => placed("reverse_compute_at"),
        23 => made("compute_inline", vec![block()]),
        24 => made("reverse_compute_inline", vec![block()]),
        25 | 26 => made("decompose_reduction", vec![block(), one(x)]),
        27 | 28 => made("rfactor", vec![one(x), json!(i64::from(y % 4) - 1)]),
        29 | 30 => made("reindex", vec![block(), access]),
        31 | 32 => made("blockize", vec![if y % 8 == 0 { json!(["$b", "$d"]) } else { one(x) }, json!(z % 2 == 0)]),
        33 => made("set_scope", vec![block(), json!(0), scope()]),
        34 => {
            let unit = |i: usize| 1 + (y.rotate_left(i as u32 * 2) % 4);
            made("pad_einsum", vec![block(), json!((0..loops.max(1)).map(unit).collect::<Vec<_>>())])
        }
        35 | 36 => made("decompose_padding", vec![block(), one(x)]),
        37 => made(
            "loop_partition",
            vec![one(x), json!([[2, 0], [3, 0], [1, 2]][z as usize % 3].map(|f| (f > 0).then_some(f)))],
        ),
        38 | 39 => {
            let map = pick(
                &[
                    "lambda i, j: (j, i)",
                    "lambda i, j: (i // 2, j, i % 2)",
                    "lambda i: (i // 4, i % 4)",
                    "lambda i, j: (i * 8 + j,)",
                    "lambda i, j: (i, (j + i) % 6)",
                    "lambda i, j: (i, j // 3, j % 3)",
                ],
                x,
            );
            let mut args = vec![block(), access, json!({ "index_map": map })];
            if z % 4 > 1 {
                args.push(json!(0.0));
            }
            made("transform_layout", args)
        }
        40 => {
            let map = pick(&["lambda i, j: (j, i)", "lambda i, j, k: (i * 8 + j, k)", "lambda i: (i // 4, i % 4)"], x);
            made("transform_block_layout", vec![block(), json!({ "index_map": map })])
        }
        41 => made("storage_align", vec![block(), json!(0), json!(y % 2), json!(8), json!(1)]),
        42 => made("add_unit_loop", vec![if y % 2 == 0 { block() } else { one(x) }]),
        43 if y % 2 == 0 => made("annotate", vec![one(x), json!("pragma_unroll"), json!(z)]),
        43 => made("unannotate", vec![one(x), json!("pragma_unroll")]),
        44 => made("tensorize", vec![one(x), json!("dp4a_s8s8s32")]),
        45 | 46 => {
            let op = if y % 2 == 0 { "reindex_cache_read" } else { "reindex_cache_write" };
            let index = if y % 2 == 0 { json!(y / 2 % 2) } else { json!(0) };
            let map = pick(
                &[
                    "lambda i, j: (j, i)",
                    "lambda i, j: (i // 2, j, i % 2)",
                    "lambda i: (i,)",
                    "lambda i, j, k: (i, k)",
                    "lambda i, j, k: (k, j)",
                    "lambda i, j, k: (j, i)",
                    "lambda i, j: (i + j,)",
                ],
                x,
            );
            made(op, vec![block(), index, scope(), json!({ "index_map": map })])
        }
        47 => made("cache_inplace", vec![block(), index, scope()]),
        48 => made("cache_index", vec![block(), scope(), json!(x % 3)]),
        49 | 50 => made("merge", vec![one(x), other(y)]),
        _ => made("normalize_prim_func", vec![]),
    }
}

/// Makes the step that a choice stands for; none where the program has no such blocks.
pub fn step(state: &mut Replay, choice: Choice) -> Option<Step> {
    let names: Vec<String> =
        tree::all_realizes(&state.schedule.program().body.block.body).iter().map(|r| r.block.name.clone()).collect();
    let name = |by: u8| names[by as usize % names.len()].clone();
    let (first, second) = (name(choice.1), name(choice.1 / 16));
    let (loops, others) = look(state, &first, &second)?;
    Some(Step { call: call(choice, loops, others), first, second })
}

/// Binds the names of a step. Returns how many loops its blocks have.
fn look(state: &mut Replay, first: &str, second: &str) -> Option<(usize, usize)> {
    let mut ask = |op: &str, of: &str, out: &str| state.call(&Call::new(op, [json!(of)]).into_name(out)).ok();
    // Several blocks may have one name after blockize and loop_partition.
    ask("get_sblock", first, "b")?;
    ask("get_sblock", second, "d")?;
    ask("get_loops", "$b", "l")?;
    ask("get_loops", "$d", "m")?;
    let count = |name: &str| match state.get(name) {
        Some(Handle::List(l)) => l.len(),
        _ => 0,
    };
    Some((count("l"), count("m")))
}

/// Makes a step. Whether it was accepted.
pub fn make(state: &mut Replay, step: &Step) -> bool {
    tried(state, step).is_some_and(|outcome| outcome.is_ok())
}

/// Makes a step; none where it cannot be asked.
pub fn tried(state: &mut Replay, step: &Step) -> Option<CallResult> {
    look(state, &step.first, &step.second)?;
    // A parameter's new layout is a new signature: nothing to compare with.
    if step.call.op == "transform_layout" && of_parameter(state, &step.first, &step.call.args[1]) {
        return None;
    }
    Some(state.call(&step.call))
}

/// A step that a primitive accepts and the check of its program does not: the program, and why.
pub type Refused = (Program, String);

/// Makes the steps that the choices stand for. Returns those that were accepted. `refused` is told of programs that only
/// the strict replay refuses.
pub fn accepted(source: &Program, choices: &[Choice], refused: &mut dyn FnMut(Refused)) -> (Replay, Vec<Step>) {
    let mut state = Replay::strict(source).expect("a schedule");
    let mut out = Vec::new();
    for &choice in choices {
        let Some(step) = step(&mut state, choice) else { continue };
        match tried(&mut state, &step) {
            Some(Ok(())) => out.push(step),
            Some(Err(error)) if error.fast.ends_with("The program would mean something else") => {
                let mut same = Replay::new(state.schedule.program()).expect("a schedule");
                if make(&mut same, &step) {
                    refused((same.schedule.into_program(), format!("{step}: {}", error.detail)));
                }
            }
            _ => {}
        }
    }
    (state, out)
}

/// Whether `["read" | "write", n]` of a block is a parameter.
fn of_parameter(state: &Replay, block: &str, access: &Value) -> bool {
    let program = state.schedule.program();
    let realizes = tree::all_realizes(&program.body.block.body);
    let regions = realizes.iter().filter(|r| r.block.name == block).flat_map(|r| {
        let list = if access[0] == "read" { &r.block.reads } else { &r.block.writes };
        list.get(access[1].as_u64().unwrap_or(0) as usize)
    });
    regions.into_iter().any(|r| program.params.contains(&r.buffer))
}
