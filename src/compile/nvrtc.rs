//! The worker's side: the only code that calls NVRTC.
use super::{Answer, Job, Request};
use cudarc::nvrtc::{result, sys};
use std::ffi::CString;
use std::io::{Read, Write};

/// Reads a job from standard input, compiles it, writes the answer to standard output: a line of JSON, then the machine
/// code. Returns the exit status.
pub fn worker_main() -> i32 {
    let mut request = Vec::new();
    if std::io::stdin().read_to_end(&mut request).is_err() {
        return 2;
    }
    let Ok(Request { job, lines }) = serde_json::from_slice(&request) else { return 2 };
    let (answer, cubin) = compile(&job, lines);
    let Ok(mut head) = serde_json::to_vec(&answer) else { return 4 };
    head.push(b'\n');
    let mut out = std::io::stdout().lock();
    match out.write_all(&head).and_then(|()| out.write_all(&cubin)).and_then(|()| out.flush()) {
        Ok(()) => 0,
        Err(_) => 3,
    }
}

fn compile(job: &Job, lines: bool) -> (Answer, Vec<u8>) {
    let refused = |log: String| (Answer::Refused { log }, Vec::new());
    // SAFETY: looks for the library by name; loading it runs its initialisers, which is what we want.
    if !unsafe { sys::is_culib_present() } {
        return (Answer::Missing, Vec::new());
    }
    let known = known_architectures();
    let number = |arch: &str| {
        arch.trim_start_matches("sm_").trim_start_matches("compute_").trim_end_matches(['a', 'f']).parse::<i32>().ok()
    };
    let unknown = || {
        let known: Vec<String> = known.iter().map(|n| format!("sm_{n}")).collect();
        (Answer::UnknownArch { known: known.join(", ") }, Vec::new())
    };
    if !known.is_empty() && number(&job.arch).is_none_or(|n| !known.contains(&n)) {
        return unknown();
    }
    // The name stands in quotes in the PTX, where nothing can be escaped.
    let file: String = job.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let (Ok(source), Ok(name)) = (CString::new(job.source.as_str()), CString::new(format!("{file}.cu"))) else {
        return refused("the text has a zero byte".into());
    };
    let program = match result::create_program(&source, Some(&name)) {
        Ok(program) => program,
        Err(error) => return refused(format!("{error:?}")),
    };
    let options =
        [format!("--gpu-architecture={}", job.arch), "--std=c++17".into(), "--ptxas-options=-v".into()].into_iter();
    let options = options.chain(lines.then(|| "--generate-line-info".to_string()));
    let headers = super::folders().into_iter().map(|f| f.join("../include")).find(|f| f.join("cuda_fp16.h").is_file());
    let options: Vec<String> = options.chain(headers.map(|f| format!("--include-path={}", f.display()))).collect();
    // SAFETY: the program was just created and is not shared.
    let compiled = unsafe { result::compile_program(program, &options) };
    // SAFETY: as above; the log exists after compilation, successful or not.
    let log = unsafe { result::get_program_log(program) }
        .map(|bytes| {
            let bytes: Vec<u8> = bytes.into_iter().map(|b| b as u8).take_while(|b| *b != 0).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        })
        .unwrap_or_default();
    if let Err(error) = compiled {
        if log.contains("invalid value for --gpu-architecture") {
            return unknown();
        }
        return refused(if log.trim().is_empty() { format!("{error:?}") } else { log });
    }
    // A virtual architecture has PTX and no machine code.
    if job.arch.starts_with("compute_") {
        return (Answer::Done { log, version: version(), ptx: ptx(program) }, Vec::new());
    }
    let mut size = 0;
    // SAFETY: `size` outlives the call; the program was compiled for a real architecture.
    let sized = unsafe { sys::nvrtcGetCUBINSize(program, &mut size) };
    let mut cubin = vec![0_u8; size];
    // SAFETY: the buffer has the size that NVRTC asked for.
    let got = unsafe { sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()) };
    match (sized.result(), got.result()) {
        (Ok(()), Ok(())) if size > 0 => (Answer::Done { log, version: version(), ptx: ptx(program) }, cubin),
        _ => refused("NVRTC gave no machine code".into()),
    }
}

/// The PTX of a compiled program; empty where NVRTC gives none.
fn ptx(program: sys::nvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: `size` outlives the call; the program was compiled.
    if unsafe { sys::nvrtcGetPTXSize(program, &mut size) }.result().is_err() {
        return String::new();
    }
    let mut text = vec![0_u8; size];
    // SAFETY: the buffer has the size that NVRTC asked for.
    if unsafe { sys::nvrtcGetPTX(program, text.as_mut_ptr().cast()) }.result().is_err() {
        return String::new();
    }
    text.truncate(text.iter().position(|b| *b == 0).unwrap_or(text.len()));
    String::from_utf8_lossy(&text).into_owned()
}

/// Its version.
fn version() -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both numbers outlive the call.
    match unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result() {
        Ok(()) => format!("{major}.{minor}"),
        Err(_) => "unknown".into(),
    }
}

/// The numbers of the architectures that NVRTC compiles for; none where it does not say.
fn known_architectures() -> Vec<i32> {
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    if unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().is_err() {
        return Vec::new();
    }
    let mut list = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the buffer has the size that NVRTC asked for.
    match unsafe { sys::nvrtcGetSupportedArchs(list.as_mut_ptr()) }.result() {
        Ok(()) => list,
        Err(_) => Vec::new(),
    }
}
