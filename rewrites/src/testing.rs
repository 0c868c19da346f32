//! Programs and comparisons that tests share.
use crate::queries::{get_loops, get_sblock};
use crate::{LoopId, Result, Schedule};
use satune_ir::{structural, tvmscript, BlockId, Program};

/// The header of a one-line function: `def main(...)`.
pub fn func(params: &str, body: &str) -> String {
    let body: String = body.lines().filter(|l| !l.trim().is_empty()).map(|l| format!("    {l}\n")).collect();
    format!("@T.prim_func(s_tir=True)\ndef main({params}):\n{body}")
}

pub fn parse(script: &str) -> Program {
    match tvmscript::parse(script) {
        Ok(program) => program,
        Err(error) => panic!("{error}\n{script}"),
    }
}

pub fn schedule(script: &str) -> Schedule {
    Schedule::new(parse(script)).unwrap()
}

/// C = A B, 16 x 16 x 16.
pub fn matmul() -> Schedule {
    schedule(&func(
        "A: T.Buffer((16, 16), \"float32\"), B: T.Buffer((16, 16), \"float32\"), C: T.Buffer((16, 16), \"float32\")",
        r#"
for i, j, k in T.grid(16, 16, 16):
    with T.sblock("C"):
        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"#,
    ))
}

/// B = 2 A, C = B + 1, 16 x 30, in two nests.
pub fn chain() -> Schedule {
    schedule(&func(
        "A: T.Buffer((16, 30), \"float32\"), C: T.Buffer((16, 30), \"float32\")",
        r#"
B = T.sblock_alloc_buffer((16, 30))
for i, j in T.grid(16, 30):
    with T.sblock("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] * T.float32(2)
for i, j in T.grid(16, 30):
    with T.sblock("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = B[vi, vj] + T.float32(1)
"#,
    ))
}

/// The same with both blocks in one nest under `i`.
pub fn joined() -> Schedule {
    schedule(&func(
        "A: T.Buffer((16, 30), \"float32\"), C: T.Buffer((16, 30), \"float32\")",
        r#"
B = T.sblock_alloc_buffer((16, 30))
for i in range(16):
    for j in range(30):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for j in range(30):
        with T.sblock("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)
"#,
    ))
}

/// One vector copy under `header`, a loop of variable `i`.
pub fn copy(header: &str) -> Schedule {
    let body =
        format!("{header}\n    with T.sblock(\"B\"):\n        vi = T.axis.spatial(32, i)\n        B[vi] = A[vi]\n");
    schedule(&func("A: T.Buffer((32,), \"float32\"), B: T.Buffer((32,), \"float32\")", &body))
}

pub fn block(s: &Schedule, name: &str) -> BlockId {
    get_sblock(s, name).unwrap()
}

pub fn loops(s: &Schedule, name: &str) -> Vec<LoopId> {
    get_loops(s, block(s, name)).unwrap()
}

/// The short message of a refusal; the program must be as it was.
pub fn refusal<T: std::fmt::Debug>(s: &mut Schedule, call: impl FnOnce(&mut Schedule) -> Result<T>) -> String {
    let before = s.program().clone();
    let error = call(s).expect_err("the call should be refused");
    let mut after = s.program().clone();
    after.next_var = before.next_var;
    assert_eq!(before, after, "a refusal changed the program");
    assert!(!error.primitive.is_empty() && !error.detail.is_empty());
    error.fast.clone()
}

/// The program is `script`.
pub fn assert_program(s: &Schedule, script: &str) {
    let expected = parse(script);
    if let Err(difference) = structural::equal(s.program(), &expected) {
        panic!("{difference:?}\n{}", tvmscript::print(s.program()));
    }
}
