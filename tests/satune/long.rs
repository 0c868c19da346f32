//! Programs of more blocks, and of more ways to inline them, than are looked at: they are explored all the same, and what is left
//! out is told.
use crate::support::{executed, kernels, script, some_of};
use serde_json::Value;

/// Maps of buffer `first` to `O`, one after the other; what each makes of the value before it.
fn mapped(first: &str, count: usize, made: impl Fn(usize, &str) -> String) -> String {
    let mut body = String::new();
    for at in 0..count {
        let name = |at: usize| if at == count { "O".into() } else { format!("B{at}") };
        let (from, to) = (if at == 0 { first.into() } else { name(at) }, name(at + 1));
        if at + 1 < count {
            body = format!("{to} = T.sblock_alloc_buffer((128, 64))\n{body}");
        }
        let value = made(at, &format!("{from}[vi, vj]"));
        body += &format!(
            "for i, j in T.grid(128, 64):\n    with T.sblock(\"m{at}\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        {to}[vi, vj] = {value}\n",
        );
    }
    body
}

fn maps(count: usize) -> String {
    let body = mapped("A", count, |at, value| format!("{value} + T.float32({})", at + 1));
    script("A: 128, 64 float32; O: 128, 64 float32", &body)
}

/// What reads its value twice.
fn twice(_: usize, value: &str) -> String {
    format!("{value} * T.float32(0.5) + {value} * T.float32(-0.25)")
}

/// Rows less their sum, again and again: each map has two readers.
fn differences(count: usize) -> String {
    let (mut allocated, mut body) = (String::new(), String::new());
    for at in 0..count {
        let name = |at: usize| if at == count { "O".into() } else { format!("B{at}") };
        let (from, to) = (if at == 0 { "A".into() } else { name(at) }, name(at + 1));
        allocated += &format!("S{at} = T.sblock_alloc_buffer((128,))\n");
        if at + 1 < count {
            allocated += &format!("{to} = T.sblock_alloc_buffer((128, 64))\n");
        }
        body += &format!(
            "for i, j in T.grid(128, 64):\n    with T.sblock(\"r{at}\"):\n        vi, vj = T.axis.remap(\"SR\", [i, j])\n        with T.init():\n            S{at}[vi] = T.float32(0)\n        S{at}[vi] = S{at}[vi] + {from}[vi, vj]\n"
        );
        body += &format!(
            "for i, j in T.grid(128, 64):\n    with T.sblock(\"m{at}\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        {to}[vi, vj] = {from}[vi, vj] - S{at}[vi] * T.float32(0.25)\n"
        );
    }
    script("A: 128, 64 float32; O: 128, 64 float32", &(allocated + &body))
}

fn note<'r>(report: &'r Value, words: &str) -> &'r str {
    let notes = report["notes"].as_array().unwrap();
    notes.iter().filter_map(Value::as_str).find(|n| n.contains(words)).unwrap_or_else(|| panic!("{words}: {notes:?}"))
}

#[test]
fn all_ways_to_inline_a_chain_are_looked_at() {
    let report = executed(&maps(24), "h200", 2);
    assert!(!report["notes"].to_string().contains("not looked at"), "{}", report["notes"]);
    assert_eq!(report["untiled"].as_array().map_or(0, Vec::len), 0);
    assert_eq!(report["proved_optimal"], Value::Bool(true));
    let nodes = report["space"]["enodes"].as_u64().unwrap();
    assert!(nodes < 100_000, "{nodes} e-nodes of a chain of 24 maps");
}

#[test]
fn all_kernels_of_a_chain_with_reductions_are_looked_at() {
    // Six sums of rows with a map after each.
    let report = executed(&differences(6), "h200", 2);
    assert!(!report["notes"].to_string().contains("not looked at"), "{}", report["notes"]);
    assert_eq!(report["proved_optimal"], Value::Bool(true));
    let nodes = report["space"]["enodes"].as_u64().unwrap();
    assert!(nodes < 100_000, "{nodes} e-nodes of twelve blocks");
}

#[test]
fn programs_of_many_blocks_are_explored() {
    let cases = [(maps(70), "a block stays that one other reads once"), (differences(13), "a block is computed again")];
    for (program, left_out) in some_of(cases, 1) {
        let report = executed(&program, "h200", 1);
        assert!(note(&report, "are not looked at").contains(left_out));
        assert_eq!(kernels(&report), 1);
        let nodes = report["space"]["enodes"].as_u64().unwrap();
        assert!(nodes < 100_000, "{nodes} e-nodes");
        assert_eq!(report["untiled"].as_array().map(Vec::is_empty), Some(false));
    }
}

#[test(slow)]
fn branches_that_one_block_reads_are_inlined_there() {
    let (mut body, mut allocated, mut sum) = (String::new(), String::new(), String::from("T.float32(0)"));
    for at in 0..14 {
        allocated += &format!("C{at} = T.sblock_alloc_buffer((128, 64))\n");
        body += &format!(
            "for i, j in T.grid(128, 64):\n    with T.sblock(\"c{at}\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        C{at}[vi, vj] = A[vi, vj] * T.float32({at})\n",
        );
        sum += &format!(" + C{at}[vi, vj]");
    }
    body += &format!(
        "for i, j in T.grid(128, 64):\n    with T.sblock(\"o\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        O[vi, vj] = {sum}\n"
    );
    let report = executed(&script("A: 128, 64 float32; O: 128, 64 float32", &(allocated + &body)), "h200", 1);
    assert!(note(&report, "are not looked at").contains("a block stays that one other reads once"));
    assert_eq!(kernels(&report), 1);
}

#[test(slow)]
fn values_that_double_are_computed_once() {
    let program = script("A: 128, 64 float32; O: 128, 64 float32", &mapped("A", 60, twice));
    let report = executed(&program, "h200", 1);
    assert!(note(&report, "are not looked at").contains("a block is computed again where it is read"));
    assert_eq!(kernels(&report), 1);
    assert_eq!(report["untiled"].as_array().map(Vec::len), Some(60));
}

#[test(slow)]
fn maps_after_a_product_that_double_its_sums_too_often_are_kernels_of_their_own() {
    let product = "for i, j, k in T.grid(128, 64, 32):\n    with T.sblock(\"p\"):\n        vi, vj, vk = T.axis.remap(\"SSR\", [i, j, k])\n        with T.init():\n            P[vi, vj] = T.float32(0)\n        P[vi, vj] = P[vi, vj] + A[vi, vk] * B[vk, vj]\n";
    let body = format!("P = T.sblock_alloc_buffer((128, 64))\nMAPS{product}");
    let of = |count| {
        let maps = mapped("P", count, twice);
        let (allocated, maps) = maps.split_at(maps.find("for i").unwrap());
        let body = body.replace("MAPS", allocated) + maps;
        executed(&script("A: 128, 32 float32; B: 32, 64 float32; O: 128, 64 float32", &body), "h200", 1)
    };
    assert_eq!(kernels(&of(3)), 1);
    // A small one may have them in a plain kernel, which adds up first.
    let many = of(8);
    let plain = many["candidates"][0]["plan"]["kernels"][0]["Plain"].is_object();
    assert!(kernels(&many) > 1 || plain, "{many}");
}
