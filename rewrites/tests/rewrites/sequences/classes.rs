//! The smallest sequence of each kind that TVM's verdicts let pass and that leaves a wrong program: the strict replay
//! refuses its last call, and says why.
use super::calls::{self, Step};
use super::programs::PROGRAMS;
use satune_ir::{interp, Program};
use satune_rewrites::replay::Replay;
use satune_rewrites::{soundness, Call};

/// A step: `op block arguments`, or `op block+other arguments`.
fn step(text: &str) -> Step {
    let mut parts = text.splitn(3, ' ');
    let (op, blocks, args) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    let (first, second) = blocks.split_once('+').unwrap_or((blocks, blocks));
    let args: Vec<serde_json::Value> = serde_json::from_str(args).unwrap_or_else(|e| panic!("{text}: {e}"));
    Step { first: first.to_string(), second: second.to_string(), call: Call::new(op, args) }
}

fn program(name: &str) -> &'static Program {
    &PROGRAMS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no program {name}")).1
}

/// All steps but the last are accepted; the last one is refused with a word about the program, and without the check its
/// program means something else.
fn refused(name: &str, steps: &[&str], why: &str) {
    let source = program(name);
    let (last, first) = steps.split_last().unwrap();
    let mut state = Replay::strict(source).unwrap();
    let mut plain = Replay::new(source).unwrap();
    for text in first {
        assert!(calls::make(&mut state, &step(text)), "{name}: {text} is refused");
        assert!(calls::make(&mut plain, &step(text)), "{name}: {text} is refused");
    }
    let error = calls::tried(&mut state, &step(last)).unwrap().expect_err(last);
    assert!(error.detail.contains(why), "{name}: {last}: {}", error.detail);
    assert!(calls::make(&mut plain, &step(last)), "{name}: {last} is refused without the check");
    interp::equal_on(source, plain.schedule.program(), 3).expect_err(last);
    interp::equal_on(source, state.schedule.program(), 3).expect("the program before");
}

/// Makes steps, none of which is refused.
fn made(mut state: Replay, steps: &[&str]) -> Replay {
    for text in steps {
        assert!(calls::make(&mut state, &step(text)), "{text} is refused");
    }
    state
}

/// All steps are accepted, and the program means the same.
fn accepted(name: &str, steps: &[&str]) {
    let source = program(name);
    let mut state = Replay::strict(source).unwrap();
    for text in steps {
        assert!(calls::make(&mut state, &step(text)), "{name}: {text} is refused");
    }
    interp::equal_on(source, state.schedule.program(), 3).unwrap_or_else(|e| panic!("{name}: {e}"));
}

#[test]
fn a_consumer_that_reads_all_under_a_loop_that_writes_some() {
    let steps = ["blockize P [\"$l[0]\", true]", "cache_read P_o [\"$b\", 0, \"local\"]"];
    let last = "reverse_compute_at P_o+A_local [\"$b\", \"$m[0]\"]";
    refused("pad1d", &[steps[0], steps[1], last], "is read, and nothing before has written it");
}

#[test]
fn a_consumer_that_reads_in_another_order() {
    let steps = [
        "transform_block_layout B [\"$b\", {\"index_map\": \"lambda i, j: (j, i)\"}]",
        "reverse_compute_at C+B [\"$b\", \"$m[0]\"]",
    ];
    refused("flatten", &steps, "is read, and nothing before has written it");
}

#[test]
fn a_consumer_that_reads_what_data_says() {
    let steps = ["blockize C [\"$l[0]\", false]", "reverse_compute_at C_o+B [\"$b\", \"$m[0]\"]"];
    refused("gather", &steps, "is read, and nothing before has written it");
}

#[test]
fn a_cache_without_a_size() {
    let steps =
        ["split C [\"$l[1]\", [null, 3]]", "blockize C [\"$l[2]\", false]", "cache_read C [\"$b\", 0, \"global\"]"];
    refused(
        "flatten",
        &["split C [\"$l[0]\", [null, 3]]", "blockize C [\"$l[1]\", false]", steps[2]],
        "is not constant",
    );
}

#[test]
fn a_cache_of_what_a_guard_leaves_out() {
    let steps = [
        "compute_at B+C [\"$b\", \"$m[0]\"]",
        "split B [\"$l[1]\", [null, 2, 2]]",
        "cache_write B [\"$b\", 0, \"local\"]",
    ];
    refused("blur", &steps, "is read, and nothing before has written it");
    let read = "cache_read C [\"$b\", 0, \"shared\"]";
    refused("blur", &[steps[0], steps[1], read], "is read, and nothing before has written it");
}

#[test]
fn an_index_that_is_read_where_data_says_and_not_yet_written() {
    let steps = ["cache_index P [\"$b\", \"shared\", 1]", "reverse_compute_at P+index_1 [\"$b\", \"$m[0]\"]"];
    refused("pad1d", &steps, "is read, and nothing before has written it");
}

#[test]
fn an_init_in_the_rounds_that_a_guard_leaves_out() {
    let steps =
        ["add_unit_loop S [\"$l[1]\"]", "split S [\"$l[1]\", [3, null]]", "decompose_reduction S [\"$b\", \"$l[2]\"]"];
    refused("mean", &steps, "is read before it is complete");
}

#[test]
fn an_init_of_each_part_of_a_loop() {
    let steps = [
        "split Y [\"$l[1]\", [null, 2]]",
        "loop_partition Y [\"$l[1]\", [2, null]]",
        "decompose_reduction Y_j_01 [\"$b\", \"$l[0]\"]",
    ];
    refused("norm", &steps, "is read before it is complete");
}

#[test]
fn a_factor_of_each_part_of_a_loop() {
    let steps =
        ["split C [\"$l[1]\", [3, null]]", "loop_partition C [\"$l[2]\", [3, null]]", "rfactor C_j_10 [\"$l[0]\", -1]"];
    refused("gemv", &steps, "values that were added to C[");
}

#[test]
fn blocks_of_blocks_that_overlap() {
    let steps = ["split C [\"$l[1]\", [3, null]]", "split C [\"$l[2]\", [null, 5]]", "blockize C [\"$l[0]\", false]"];
    refused("ragged", &steps, "is updated twice with the same values");
}

#[test]
fn a_reader_in_the_middle_of_a_sum() {
    let steps = [
        "compute_at C+E [\"$b\", \"$m[1]\"]",
        "split C [\"$l[1]\", [3, null]]",
        "decompose_reduction C [\"$b\", \"$l[0]\"]",
    ];
    refused("two_gemms", &steps, "is updated twice with the same values");
}

/// All rows are summed up again for each row that is read, and what is read second has been summed up twice.
#[test]
fn a_sum_that_is_taken_again_under_one_init() {
    let steps = [
        "blockize S [\"$l[0]\", true]",
        "split T [\"$l[0]\", [null, 2, 2]]",
        "reverse_compute_at S_o+T [\"$b\", \"$m[3]\"]",
        "decompose_reduction S_o [\"$b\", \"$l[0]\"]",
    ];
    refused("two_sums", &steps, "is updated twice with the same values");
}

/// Padding written by a nest that holds the init too: all of it stays. TVM drops the init.
#[test]
fn padding_beside_an_init() {
    let map = "{\"index_map\": \"lambda i, j: (i // 2, j, i % 2)\"}, 0.0";
    let layout = format!("transform_layout C_update [\"$b\", [\"write\", 0], {map}]");
    accepted("bias_relu", &["decompose_reduction C [\"$b\", \"$l[1]\"]", &layout]);
}

/// A writer as the reader of its own cache. TVM crashes.
#[test]
fn a_cache_read_by_its_writer() {
    let mut state = Replay::strict(program("two_gemms")).unwrap();
    for (text, outer) in [("cache_read E+C [\"$b\", 0, \"global\", [\"$d\"]]", false), ("blockize C [\"$l[2]\"]", true)]
    {
        if outer {
            assert!(calls::make(&mut state, &step(text)));
        }
        let read = step("cache_read E+C [\"$b\", 0, \"global\", [\"$d\"]]");
        let error = calls::tried(&mut state, &read).unwrap().expect_err("a writer");
        assert!(
            error.fast.ends_with("The consumer block is part of the block that writes the buffer"),
            "{}",
            error.fast
        );
    }
}

/// A loop that repeats a reduction is no part of it. TVM factors it all the same, and adds the sum up 7 times.
#[test]
fn a_factor_that_is_no_part_of_the_sum() {
    let source = program("norm");
    let steps = [
        "reverse_compute_at X+Y [\"$b\", \"$m[1]\"]",
        "cache_read X [\"$b\", 0, \"local\"]",
        "reverse_compute_at Y+A_local [\"$b\", \"$m[1]\"]",
    ];
    let mut state = made(Replay::strict(source).unwrap(), &steps);
    let factor = step("rfactor X [\"$l[1]\", 0]");
    let error = calls::tried(&mut state, &factor).unwrap().expect_err("a loop that feeds nothing");
    assert!(error.detail.contains("feeds no iterator"), "{}", error.detail);
}

/// What data says where to write covers nothing that is certainly read.
#[test]
fn a_producer_that_writes_where_data_says() {
    let steps = [
        "compute_at B+C [\"$b\", \"$m[1]\"]",
        "cache_write C [\"$b\", 0, \"shared\"]",
        "compute_inline C [\"$b\"]",
        "cache_read C_shared [\"$b\", 0, \"local\"]",
    ];
    refused("gather", &steps, "is read, and nothing before has written it");
}

/// A copy in the rounds in which a guard keeps its producer from writing, in memory that lasts for a round: wrong once others
/// read the copy.
#[test]
fn a_copy_in_rounds_without_its_producer() {
    let source = program("gather");
    let steps = [
        "compute_at B+C [\"$b\", \"$m[1]\"]",
        "split B [\"$l[1]\", [null, 2]]",
        "cache_read C [\"$b\", 0, \"global\"]",
        "cache_write C [\"$b\", 0, \"global\"]",
        "compute_inline C [\"$b\"]",
    ];
    let plain = made(Replay::new(source).unwrap(), &steps);
    let scheduled = plain.schedule.program();
    interp::equal_on(source, &soundness::lived(scheduled), 3).expect_err("with memory of a round");
    let error = soundness::check(source, scheduled).expect_err("the check");
    assert!(error.detail.contains("is read, and nothing before has written it"), "{}", error.detail);
}

/// A copy of tiles that lie apart: what is between them is not written yet.
#[test]
fn a_copy_of_what_lies_between_tiles() {
    let steps = [
        "split C [\"$l[0]\", [null, 2, 2]]",
        "reorder C [\"$l[3]\", \"$l[4]\", \"$l[0]\"]",
        "cache_write C [\"$b\", 0, \"local\"]",
        "reverse_compute_at C_local+C [\"$b\", \"$m[1]\"]",
    ];
    refused("conv1d", &steps, "is read, and nothing before has written it");
}
