//! `check` of a file's kernel: what it says, and its exit codes. PTX is given, so that no compiler is needed.
use std::path::PathBuf;
use std::process::{Command, Output};

const SHIFT: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry shift(.param .u64 px, .param .u64 py)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [px];
    ld.param.u64 %rd2, [py];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.u32 %r2, [%rd4];
    st.global.u32 [%rd5+OFFSET], %r2;
    ret;
}
";

fn check(offset: &str, launch: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("shift.ptx");
    std::fs::write(&path, SHIFT.replace("OFFSET", offset)).unwrap();
    let path = path.to_string_lossy().into_owned();
    Command::new(env!("CARGO_BIN_EXE_satune")).args(["check", &path, "--launch", launch]).output().unwrap()
}

#[test]
fn a_file_s_kernel_is_judged() {
    let launch = "block=32, args=(x: in i32[32], y: out i32[32])";
    let clean = check("0", launch);
    assert_eq!(clean.status.code(), Some(0));
    let said = String::from_utf8_lossy(&clean.stdout).into_owned();
    assert_eq!(said, "`shift`: 1 block run, 288 thread instructions: no races, nothing out of bounds or unwritten\n");
    let over = check("4", launch);
    assert_eq!(over.status.code(), Some(1));
    let said = String::from_utf8_lossy(&over.stdout).into_owned();
    let place = "thread 31 of block 0: out of bounds: writes 4 bytes of global memory at `y` + 128 bytes (it has 128)";
    assert!(said.contains(place), "{said}");
    let short = check("0", "block=31, args=(x: in i32[32], y: out i32[32])");
    assert_eq!(short.status.code(), Some(1));
    let said = String::from_utf8_lossy(&short.stdout).into_owned();
    assert!(said.contains("1 elements of `y` are never written, the first is element 31"), "{said}");
}

#[test]
fn a_launch_that_makes_no_sense_is_bad_input() {
    let wrong = [
        "args=(x: in i32[32])",
        "block=2048, args=(x: in i32[32], y: out i32[32])",
        "block=32, args=(x: in i32[32])",
        "block=32, args=(x: in i99[32], y: out i32[32])",
    ];
    for launch in wrong {
        assert_eq!(check("0", launch).status.code(), Some(2), "{launch}");
    }
}
