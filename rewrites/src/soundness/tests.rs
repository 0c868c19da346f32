use super::*;
use crate::testing::{chain, func, joined, matmul, parse};

const PARAMS: &str = "A: T.Buffer((16,), \"float32\"), C: T.Buffer((16,), \"float32\")";

fn verdict(source: &str, scheduled: &str) -> String {
    let (source, scheduled) = (parse(&func(PARAMS, source)), parse(&func(PARAMS, scheduled)));
    check(&source, &scheduled).map_or_else(|e| e.detail.clone(), |()| "ok".into())
}

fn two(first: &str, second: &str) -> String {
    format!(
        "B = T.sblock_alloc_buffer((16,))\nfor i in range(16):\n    with T.sblock(\"X\"):\n        v = T.axis.spatial(16, i)\n        {first}\nfor i in range(16):\n    with T.sblock(\"Y\"):\n        v = T.axis.spatial(16, i)\n        {second}\n"
    )
}

#[test]
fn plain_programs_are_sound() {
    for s in [chain(), joined(), matmul()] {
        assert!(check(s.program(), s.program()).is_ok());
    }
}

#[test]
fn a_read_before_the_write() {
    let right = two("B[v] = A[v]", "C[v] = B[v]");
    assert_eq!(verdict(&right, &right), "ok");
    let wrong = two("C[v] = B[v]", "B[v] = A[v]");
    assert_eq!(verdict(&right, &wrong), "B is read before anything is written to it");
}

#[test]
fn elements_that_nobody_wrote() {
    let right = two("B[v] = A[v]", "C[v] = B[v]");
    let wrong = two("B[v // 2] = A[v]", "C[v] = B[v]");
    assert_eq!(verdict(&right, &wrong), "B[15] is read, and nothing before has written it");
}

/// What is a result and read on the way is as good as what it is made of; what is given is not.
#[test]
fn results_that_others_are_made_of() {
    const PARAMS: &str =
        "A: T.Buffer((16,), \"float32\"), C: T.Buffer((16,), \"float32\"), D: T.Buffer((16,), \"float32\")";
    let verdict = |source: &str, scheduled: &str| {
        let [source, scheduled] = [source, scheduled].map(|body| parse(&func(PARAMS, body)));
        check(&source, &scheduled).map_or_else(|e| e.detail.clone(), |()| "ok".into())
    };
    let chain = two("C[v] = A[v]", "D[v] = C[v]");
    assert_eq!(verdict(&chain, &two("C[v] = A[v]", "D[v] = A[v]")), "ok");
    assert_eq!(verdict(&chain, &two("C[v] = A[v]", "D[v] = T.float32(0)")), "D no longer depends on A");
    let given = two("C[v] = C[v] + A[v]", "D[v] = C[v]");
    assert_eq!(verdict(&given, &two("C[v] = C[v] + A[v]", "D[v] = A[v]")), "D no longer depends on C");
}

/// An element that is written in each case is written, whatever data decide; in some cases only, it is not.
#[test]
fn elements_that_data_decide_how_to_write() {
    let indented = |text: &str| text.replace('\n', "\n        ");
    let of = |first: &str| two(&indented(first), "C[v] = B[v]");
    let plus = "if A[v] > T.float32(0):\n    B[v] = A[v]\n";
    let both = of(&format!("{plus}else:\n    B[v] = T.float32(0)"));
    let three = of(&format!("{plus}else:\n    if A[v] < T.float32(-1):\n        B[v] = T.float32(-1)\n    else:\n        B[v] = T.float32(0)"));
    let some = of(plus);
    let elsewhere = of(&format!("{plus}else:\n    B[15 - v] = A[v]"));
    let two_of_three = of(&format!("{plus}else:\n    if A[v] < T.float32(-1):\n        B[v] = T.float32(-1)"));
    let readable = |text: &str| super::readable(&parse(&func(PARAMS, text))).map_err(|e| e.detail.clone());
    assert_eq!([readable(&both), readable(&three)], [Ok(()), Ok(())]);
    for wrong in [some, elsewhere, two_of_three] {
        let said = readable(&wrong).unwrap_err();
        assert!(said.ends_with("is read, and nothing before has written it"), "{said}");
    }
}

/// What is copied beside an element that data name was not written, though it may be that other data name it.
#[test]
fn elements_beside_those_that_data_name() {
    const PARAMS: &str =
        "A: T.Buffer((16,), \"float32\"), I: T.Buffer((7,), \"int32\"), C: T.Buffer((7,), \"float32\")";
    let source = r#"
B = T.sblock_alloc_buffer((16,))
for i in range(16):
    with T.sblock("B"):
        v = T.axis.spatial(16, i)
        B[v] = A[v]
for i in range(7):
    with T.sblock("C"):
        v = T.axis.spatial(7, i)
        C[v] = B[I[v]]
"#;
    let copied = |first: &str| {
        format!(
            r#"
B = T.sblock_alloc_buffer((16,))
B_local = T.sblock_alloc_buffer((16,), scope="local")
for i in range(7):
    for x, y in T.grid(1, 3):
        with T.sblock("B"):
            v = T.axis.spatial(16, I[i] + (x * 3 + y))
            T.where({first}0 <= I[i] and I[i] < 16)
            B[v] = A[v]
    for x in range(3):
        with T.sblock("B_local"):
            v = T.axis.spatial(16, I[i] + x)
            T.where(I[i] + x < 16)
            B_local[v] = B[v]
    with T.sblock("C"):
        v = T.axis.spatial(7, i)
        C[v] = B_local[I[v]]
"#
        )
    };
    let verdict = |scheduled: &str| {
        let [source, scheduled] = [source, scheduled].map(|body| parse(&func(PARAMS, body)));
        check(&source, &scheduled).map_or_else(|e| e.detail.clone(), |()| "ok".into())
    };
    assert_eq!(verdict(source), "ok");
    assert_eq!(verdict(&copied("")), "ok");
    assert_eq!(verdict(&copied("x * 3 + y < 1 and ")), "B[2] is read, and nothing before has written it");
}

#[test]
fn a_round_too_early() {
    let right = two("B[v] = A[v]", "C[v] = B[v]");
    let wrong = r#"
B = T.sblock_alloc_buffer((16,))
for i in range(16):
    with T.sblock("X"):
        v = T.axis.spatial(16, i)
        B[v] = A[v]
    with T.sblock("Y"):
        v = T.axis.spatial(16, 15 - i)
        C[v] = B[v]
"#;
    assert_eq!(verdict(&right, wrong), "B[0] is read, and nothing before has written it");
    // B lasts for one round of the loop.
    let late = wrong.replace("15 - i", "i").replace("= B[v]", "= B[v // 2]");
    assert!(
        verdict(&right, &late).ends_with("is read, and nothing before has written it"),
        "{}",
        verdict(&right, &late)
    );
    let same = wrong.replace("15 - i", "i");
    assert_eq!(verdict(&right, &same), "ok");
}

#[test]
fn iterators_outside_of_their_domains() {
    let right = two("B[v] = A[v]", "C[v] = B[v]");
    let guard = "i0 * 3 + i1 < 16";
    let split = |guard: &str| {
        let nest =
            "for i0, i1 in T.grid(6, 3):\n    with T.sblock(\"Y\"):\n        v = T.axis.spatial(16, i0 * 3 + i1)\n";
        format!("for i in range(16):\n    with T.sblock(\"X\"):\n        v = T.axis.spatial(16, i)\n        B[v] = A[v]\n{nest}{guard}        C[v] = B[v]\n")
    };
    let program = |guard: &str| format!("B = T.sblock_alloc_buffer((16,))\n{}", split(guard));
    assert_eq!(verdict(&right, &program(&format!("        T.where({guard})\n"))), "ok");
    assert_eq!(verdict(&right, &program("")), "v of Y is 16, outside of its domain");
}

#[test]
fn parameters_keep_their_part() {
    let right = two("B[v] = A[v]", "C[v] = B[v]");
    let silent = two("B[v] = A[v]", "B[v] = B[v] + T.float32(1)");
    assert_eq!(verdict(&right, &silent), "C is no longer written");
    let over = two("A[v] = T.float32(0)", "C[v] = A[v]");
    assert_eq!(verdict(&right, &over), "A is overwritten before it is read");
}

/// Sums of four, two at a time, on a copy that goes there and back.
#[test]
fn a_part_of_a_sum_on_a_copy() {
    let block = |indent: usize, name: &str, body: &str| {
        let lines = ["w = T.axis.spatial(4, i)"].into_iter().chain(body.split("; "));
        let lines: String = lines.map(|l| format!("{}    {l}\n", " ".repeat(indent))).collect();
        format!("{}with T.sblock(\"{name}\"):\n{lines}", " ".repeat(indent))
    };
    let program = |to: &str, sum: &str, back: &str| {
        let inner = |name: &str, body: &str| if body.is_empty() { String::new() } else { block(4, name, body) };
        let sum = format!("r = T.axis.reduce(4, h * 2 + k); {sum}[w] = {sum}[w] + A[w * 4 + r]");
        format!(
            "L = T.sblock_alloc_buffer((16,), scope=\"local\")\nfor i in range(4):\n{}for i, h in T.grid(4, 2):\n{}    for k in range(2):\n{}{}",
            block(4, "I", "C[w] = T.float32(0)"),
            inner("T", to),
            block(8, "S", &sum),
            inner("R", back)
        )
    };
    let source = program("", "C", "");
    assert_eq!(verdict(&source, &source), "ok");
    assert_eq!(verdict(&source, &program("L[w] = C[w]", "L", "C[w] = L[w]")), "ok");
    // Only the second half is copied; the halves begin anew; what goes back is doubled; only the first half goes back.
    for (to, back) in [
        ("T.where(h == 1); L[w] = C[w]", "C[w] = L[w]"),
        ("L[w] = T.float32(0)", "C[w] = L[w]"),
        ("L[w] = C[w]", "C[w] = L[w] + L[w]"),
        ("L[w] = C[w]", "T.where(h == 0); C[w] = L[w]"),
    ] {
        assert_ne!(verdict(&source, &program(to, "L", back)), "ok", "{to}; {back}");
    }
}
