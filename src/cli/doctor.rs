//! `doctor`: what this machine has, and what would make the rest work.
use super::{print, print_json, Outcome};
use crate::compile::{nvdisasm, CompileError, Compiler, Job};

/// Runs the checks. Nothing here is needed to explore without a GPU, so the exit code is 0.
pub(super) fn run(json: bool) -> Outcome {
    let job =
        Job { name: "probe".into(), source: "extern \"C\" __global__ void probe() {}".into(), arch: "sm_90".into() };
    let nvrtc = match Compiler::of_this_program().map(|c| c.compile(&job)) {
        Ok(Ok(compiled)) => Ok(format!("compiles for sm_90 ({} bytes)", compiled.cubin.len())),
        Ok(Err(error @ CompileError::Missing)) => Err(error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let disassembler = nvdisasm().map(|p| p.display().to_string()).ok_or_else(|| {
        "not found; install the CUDA toolkit or the wheel nvidia-cuda-nvdisasm (only the share of FFMA needs it)"
            .to_string()
    });
    // The driver announces itself in /proc.
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version")
        .map(|t| t.lines().next().unwrap_or("").to_string())
        .map_err(|_| "no NVIDIA driver; candidates are checked in the simulator instead".to_string());
    let rows = [
        ("simulator", Ok("always there".to_string())),
        ("nvrtc", nvrtc),
        ("nvdisasm", disassembler),
        ("driver", driver),
    ];
    if json {
        let all: serde_json::Map<String, serde_json::Value> = rows
            .iter()
            .map(|(name, r)| {
                let value = match r {
                    Ok(what) => serde_json::json!({"ok": true, "what": what}),
                    Err(remedy) => serde_json::json!({"ok": false, "remedy": remedy}),
                };
                ((*name).to_string(), value)
            })
            .collect();
        return print_json(&all);
    }
    let mut out = String::new();
    for (name, result) in rows {
        match result {
            Ok(what) => out.push_str(&format!("{name:<10} ok       {what}\n")),
            Err(remedy) => out.push_str(&format!("{name:<10} missing  {remedy}\n")),
        }
    }
    print(&out)
}
