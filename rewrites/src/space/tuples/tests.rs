use super::super::stream::sums_rows;
use super::{parts, taken_apart};
use satune_ir::interp::{self, Array};
use satune_ir::{tvmscript, DType, Program};

fn parsed(text: &str) -> Program {
    tvmscript::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A reduction of the rows of `A` to `buffers`, given as declarations, by these starts and updates.
fn reduction([rows, columns]: [usize; 2], dtype: &str, buffers: &str, [starts, updates]: [&str; 2]) -> String {
    let lines = |indent: &str, text: &str| text.lines().map(|l| format!("{indent}{l}\n")).collect::<String>();
    format!(
        "@T.prim_func(s_tir=True)\ndef main(A: T.Buffer(({rows}, {columns}), \"{dtype}\"), {buffers}    for i, k in T.grid({rows}, \
         {columns}):\n        with T.sblock(\"C\"):\n            vi, vk = T.axis.remap(\"SR\", [i, k])\n            with T.init():\n{}{}",
        lines("                ", starts),
        lines("            ", updates)
    )
}

/// The program as it is explored, of so many blocks, with the same values.
fn compared(source: &Program, blocks: usize, inputs: &[Array]) -> Program {
    let made = taken_apart(source, sums_rows);
    let text = tvmscript::print(&made);
    assert_eq!(parts(&made).len(), blocks, "{text}");
    let [before, after] =
        [source, &parsed(&text)].map(|p| interp::run(p, inputs).unwrap_or_else(|e| panic!("{e}\n{text}")));
    for (before, after) in before.iter().zip(&after) {
        for at in 0..before.len() {
            let [want, got] =
                [before, after].map(|a| a.get(at).unwrap_or_else(|| panic!("{at} is not written: {text}")));
            let same = want.bits() == got.bits() || want.as_f64().is_nan() && got.as_f64().is_nan();
            assert!(same, "row {at}: {} is {}\n{text}", want.as_f64(), got.as_f64());
        }
    }
    made
}

#[test]
fn results_that_no_other_is_made_of_are_reductions_by_themselves() {
    let buffers = "S: T.Buffer((6,), \"float32\"), Q: T.Buffer((6,), \"float32\"), M: T.Buffer((6,), \"float32\")):\n";
    let starts = "S[vi] = T.float32(0)\nQ[vi] = T.float32(0)\nM[vi] = T.float32(-7)";
    let [s, q, m] = ["S[vi] + A[vi, vk]", "Q[vi] + A[vi, vk] * A[vi, vk]", "T.max(M[vi], A[vi, vk])"];
    let bound = format!("s: T.float32 = {s}\nq: T.float32 = {q}\nm: T.float32 = {m}\nS[vi] = s\nQ[vi] = q\nM[vi] = m");
    let shared = format!("a: T.float32 = A[vi, vk]\nS[vi] = S[vi] + a\nQ[vi] = a * a + Q[vi]\nM[vi] = {m}");
    let of = |updates: &str| parsed(&reduction([6, 40], "float32", buffers, [starts, updates]));
    for updates in [bound.clone(), format!("S[vi] = {s}\nQ[vi] = {q}\nM[vi] = {m}"), shared] {
        let source = of(&updates);
        let made = compared(&source, 3, &interp::random_inputs(&source, 5).unwrap());
        assert_eq!(taken_apart(&made, sums_rows), made);
    }
    // One is made of another: of what it was, or of what it is.
    for updates in [
        bound.replace("A[vi, vk] * A[vi, vk]", "S[vi] * A[vi, vk]"),
        format!("S[vi] = {s}\nQ[vi] = Q[vi] + S[vi]\nM[vi] = {m}"),
        format!("S[vi] = {s}\nQ[vi] = {q}\nM[vi] = T.max(M[vi], S[vi])"),
    ] {
        let source = of(&updates);
        assert_eq!(taken_apart(&source, sums_rows), source);
    }
    // What is summed up lies across the rows of memory: the block reads it once for all.
    let columns = parsed(&reduction(
        [40, 40],
        "float32",
        &buffers.replace('6', "40"),
        [starts, &bound.replace("A[vi, vk]", "A[vk, vi]")],
    ));
    assert_eq!(taken_apart(&columns, sums_rows), columns);
    // So many short rows have a thread each, and use all of it.
    for ([rows, columns], apart) in [([1 << 15, 31], false), ([1 << 15, 32], true), ([(1 << 15) - 1, 31], true)] {
        let buffers = buffers.replace('6', &rows.to_string());
        let source = parsed(&reduction([rows, columns], "float32", &buffers, [starts, &bound]));
        assert_eq!(taken_apart(&source, sums_rows) != source, apart, "{rows} x {columns}");
    }
}

/// Forms of the furthest element `$v` and its place `$i`, of which `⊐` says that one is further; the last two as topi has them.
const FORMS: [[&str; 2]; 9] = [
    ["T.Select($v ⊒ $a, $i, $k)", "T.Select($v ⊒ $a, $v, $a)"],
    ["T.Select($v ⊐ $a, $i, $k)", "T.Select($v ⊐ $a, $v, $a)"],
    ["T.Select($a ⊐ $v, $k, $i)", "T.Select($a ⊐ $v, $a, $v)"],
    ["T.Select($a ⊒ $v, $k, $i)", "T.Select($a ⊒ $v, $a, $v)"],
    ["T.if_then_else(not $v ⊒ $a, $k, $i)", "T.Select($a ⊏ $v or $a == $v, $v, $a)"],
    ["T.Select($a ⊐ $v or $a == $v and $k < $i, $k, $i)", "T.Select($v ⊏ $a, $a, $v)"],
    ["T.Select($a ⊐ $v, $k, $i)", "T.furthest($v, $a)"],
    ["T.Select($v ⊐ $a or $v == $a and $i < $k, $i, $k)", "T.Select($v ⊐ $a, $v, $a)"],
    ["T.Select($v ⊐ $a or $v == $a and $i > $k, $i, $k)", "T.Select($v ⊐ $a, $v, $a)"],
];

/// All rows of four such values.
fn rows(dtype: DType, values: &[f64]) -> Array {
    let count = values.len().pow(4);
    let each = |at: usize| values[at / 4 / values.len().pow(at as u32 % 4) % values.len()];
    Array::from_f64(dtype, &[count as i64, 4], &(0..4 * count).map(each).collect::<Vec<_>>()).unwrap()
}

/// A form as a program: of the largest, or the least; whether the extremum is a result, too, and under a condition.
fn extremum(rows: usize, [dtype, place]: [&str; 2], form: [&str; 2], [least, asked, under]: [bool; 3]) -> Program {
    let [more, less] = if least { ["<", ">"] } else { [">", "<"] };
    let number = if place == "int32" { "vk".to_string() } else { format!("T.Cast(\"{place}\", vk)") };
    let words = [
        ("$v", "V[vi]"),
        ("$a", "A[vi, vk]"),
        ("$i", "I[vi]"),
        ("$k", &number),
        ("⊒", &format!("{more}=")),
        ("⊐", more),
        ("⊏", less),
        ("furthest", if least { "min" } else { "max" }),
    ];
    let filled = |text: &str| words.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to));
    let [i, v] = form.map(filled);
    let updates = match under {
        true => format!("if {}:\n    I[vi] = {number}\n    V[vi] = A[vi, vk]", filled("$a ⊐ $v")),
        false => format!("i: T.{place} = {i}\nv: T.{dtype} = {v}\nI[vi] = i\nV[vi] = v"),
    };
    let start = format!("I[vi] = -1\nV[vi] = T.{}_value(\"{dtype}\")", if least { "max" } else { "min" });
    let buffers = match asked {
        true => format!("I: T.Buffer(({rows},), \"{place}\"), V: T.Buffer(({rows},), \"{dtype}\")):\n"),
        false => {
            format!("I: T.Buffer(({rows},), \"{place}\")):\n    V = T.sblock_alloc_buffer(({rows},), \"{dtype}\")\n")
        }
    };
    parsed(&reduction([rows, 4], dtype, &buffers, [&start, &updates]))
}

/// Every form, of all rows of values that are told apart: NaN, infinities, zeros of both signs, the ends of the range.
#[test]
fn an_extremum_and_its_place_are_those_of_the_source() {
    let max = f64::from(f32::MAX);
    let floats = [f64::NAN, f64::NEG_INFINITY, -max, -0.0, 0.0, max, f64::INFINITY];
    let ints = [-128.0, -127.0, 0.0, 127.0];
    let cases = [("float32", DType::F32, &floats[..], "int32"), ("int8", DType::I8, &ints[..], "int64")];
    for (name, dtype, values, place) in cases {
        let array = rows(dtype, values);
        let count = array.shape()[0] as usize;
        let results = |asked: bool| {
            let place = if place == "int32" { DType::I32 } else { DType::I64 };
            let results = [(place, true), (dtype, asked)].into_iter().filter(|r| r.1);
            results.map(|(dtype, _)| Array::unwritten(dtype, &[count as i64]).unwrap()).collect::<Vec<_>>()
        };
        for (number, form) in FORMS.into_iter().enumerate() {
            for mode in 0..4 {
                let [least, asked] = [mode & 1 == 1, mode & 2 == 2];
                let source = extremum(count, [name, place], form, [least, asked, false]);
                // Zeros have signs, so that the extremum is not the element at the place.
                if asked && number == 7 && dtype.is_float() {
                    assert_eq!(taken_apart(&source, sums_rows), source);
                    continue;
                }
                let anew = dtype.is_float() && ![2, 3, 5, 6].contains(&number);
                let fetched = asked && number != 6;
                let inputs = [vec![array.clone()], results(asked)].concat();
                compared(&source, 3 + usize::from(anew) + usize::from(fetched), &inputs);
            }
        }
        let source = extremum(count, [name, place], FORMS[0], [false, true, true]);
        compared(&source, 4, &[vec![array.clone()], results(true)].concat());
    }
}

#[test]
fn what_is_no_extremum_and_its_place_stays() {
    let source = |from: &str, to: &str| {
        let text = tvmscript::print(&extremum(6, ["float32", "int32"], FORMS[0], [false, true, false]));
        assert!(text.contains(from), "{text}");
        let said = |line: &&str| line.contains("T.reads") || line.contains("T.writes");
        let lines: Vec<&str> = text.lines().filter(|line| !said(line)).collect();
        parsed(&lines.join("\n").replace(from, to))
    };
    assert_ne!(taken_apart(&source("vk", "vk"), sums_rows), source("vk", "vk"));
    for (from, to) in [
        // Another number than that of the instance; one that is found at the start already.
        ("I_[vi], vk)", "I_[vi], vk * 2)"),
        ("I_[vi] = -1", "I_[vi] = 0"),
        // Where nothing is found after a NaN more is missing than infinite elements.
        ("V[vi] = T.float32(-3.4028234663852886e38)", "V[vi] = T.float32(0)"),
        // The place of another extremum, and of another NaN.
        ("T.Select(V[vi] >= A[vi, vk], I_[vi]", "T.Select(V[vi] <= A[vi, vk], I_[vi]"),
        ("T.Select(V[vi] >= A[vi, vk], I_[vi], vk)", "T.Select(V[vi] < A[vi, vk], vk, I_[vi])"),
        // What a compiler may round here and not there.
        ("A[vi, vk]", "(A[vi, vk] * T.float32(3) + T.float32(1))"),
    ] {
        let source = source(from, to);
        assert_eq!(taken_apart(&source, sums_rows), source, "{to}");
    }
}
