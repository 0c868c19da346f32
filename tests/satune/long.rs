//! Programs of more blocks, and of more ways to inline them, than are looked at: they are explored all the same, and what is left
//! out is told.
use crate::support::{executed, script};
use serde_json::Value;

/// Maps, one after the other.
fn maps(count: usize) -> String {
    let mut body = String::new();
    for at in 0..count {
        let name = |at: usize| if at == count { "O".into() } else { format!("B{at}") };
        let (from, to) = (if at == 0 { "A".into() } else { name(at) }, name(at + 1));
        if at + 1 < count {
            body = format!("{to} = T.sblock_alloc_buffer((128, 64))\n{body}");
        }
        body += &format!(
            "for i, j in T.grid(128, 64):\n    with T.sblock(\"m{at}\"):\n        vi, vj = T.axis.remap(\"SS\", [i, j])\n        {to}[vi, vj] = {from}[vi, vj] + T.float32({})\n",
            at + 1
        );
    }
    script("A: 128, 64 float32; O: 128, 64 float32", &body)
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
fn programs_of_many_blocks_are_explored() {
    for program in [maps(70), differences(13)] {
        let report = executed(&program, "h200", 1);
        assert!(note(&report, "are not looked at").contains("kernels of more than"));
        assert_eq!(report["untiled"].as_array().map(Vec::is_empty), Some(false));
    }
}
