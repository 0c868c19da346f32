//! `doctor`: what this machine has, and what would make the rest work.
use super::{devices, print, print_json, Outcome};
use crate::compile::{nvdisasm, versions, Compiler, Job};
use crate::device::cuda::Cuda;
use crate::device::GpuInfo;
use satune_extract::Descriptor;

type Row = (&'static str, Result<String, String>);

/// Runs the checks.
fn rows() -> Vec<Row> {
    let job =
        Job { name: "probe".into(), source: "extern \"C\" __global__ void probe() {}".into(), arch: "sm_90".into() };
    let nvrtc =
        |arch: &str| match Compiler::of_this_program().map(|c| c.compile(&Job { arch: arch.into(), ..job.clone() })) {
            Ok(Ok(compiled)) => Ok(format!("{}, compiles for {arch} ({} bytes)", compiled.nvrtc, compiled.cubin.len())),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        };
    let disassembler = nvdisasm().map(|p| p.display().to_string()).ok_or_else(|| {
        "not found; install the CUDA toolkit or the wheel nvidia-cuda-nvdisasm (only the share of FFMA needs it)"
            .to_string()
    });
    let mut rows: Vec<Row> =
        // Versions from 13 on begin with sm_75: another one compiles for older GPUs.
        vec![
            ("simulator", Ok("always there".into())),
            ("nvrtc", nvrtc("sm_90")),
            ("nvrtc_70", nvrtc("sm_70")),
            ("compilers", compilers()),
            ("nvdisasm", disassembler),
        ];
    // The driver's module announces itself in /proc.
    let module =
        std::fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|t| t.lines().next().map(str::to_string));
    let gpu = std::env::current_exe()
        .map_err(|e| e.to_string())
        .and_then(|program| Cuda::describe(program).map_err(|e| e.to_string()));
    match gpu {
        Ok(info) => rows.extend(of_gpu(&info, module)),
        Err(error) => {
            let driver = match module {
                Some(line) => Err(format!("{line}; but {error}")),
                None => Err(error),
            };
            let waits = |what: &str| Err(format!("{what} is looked at where there is a driver and a GPU"));
            rows.extend([("driver", driver), ("gpu", waits("the GPU")), ("cublas", waits("cuBLAS"))]);
            rows.push(("descriptor", waits("a descriptor's match")));
        }
    }
    rows.extend(tools());
    rows
}

/// The versions of NVRTC: two of them disagree about registers.
fn compilers() -> Result<String, String> {
    let known: Vec<String> =
        versions().iter().map(|(version, folder)| format!("{version} ({})", folder.display())).collect();
    let further = "`scripts/fetch-cuda 13.0` fetches a further NVRTC";
    match known.len() {
        0 => Err(format!("none; {further}")),
        1 => Ok(format!("{}; {further}, and `satune show ID --compilers` compares them", known[0])),
        _ => Ok(format!("{}; --nvrtc VERSION takes one, `satune show ID --compilers` compares them", known.join(", "))),
    }
}

/// What NVIDIA's tools say of themselves; only a machine that is rented to measure needs them.
fn tools() -> Vec<Row> {
    let of = |tool: &'static str, pattern: &str| -> Row {
        let path = crate::compile::tool(tool).unwrap_or_else(|| tool.into());
        let told = std::process::Command::new(path).arg("--version").output();
        let told = told.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).map_err(|_| {
            "not found; it comes with the CUDA toolkit or the driver (only `satune on-gpu` asks it)".to_string()
        });
        (tool, told.map(|text| text.lines().find(|l| l.contains(pattern)).unwrap_or("there").trim().to_string()))
    };
    vec![of("nvidia-smi", "ersion"), of("compute-sanitizer", "ersion"), of("ncu", "ersion")]
}

fn as_json(rows: &[Row]) -> serde_json::Value {
    let one = |(name, r): &Row| {
        let value = match r {
            Ok(what) => serde_json::json!({"ok": true, "what": what}),
            Err(remedy) => serde_json::json!({"ok": false, "remedy": remedy}),
        };
        ((*name).to_string(), value)
    };
    serde_json::Value::Object(rows.iter().map(one).collect())
}

/// All of it, for a file.
pub(super) fn machine() -> serde_json::Value {
    as_json(&rows())
}

/// Runs the checks. Nothing here is needed to explore without a GPU, so the exit code is 0.
pub(super) fn run(json: bool) -> Outcome {
    let rows = rows();
    if json {
        return print_json(&as_json(&rows));
    }
    let mut out = String::new();
    for (name, result) in rows {
        match result {
            Ok(what) => out.push_str(&format!("{name:<17} ok       {what}\n")),
            Err(remedy) => out.push_str(&format!("{name:<17} missing  {remedy}\n")),
        }
    }
    print(&out)
}

fn of_gpu(info: &GpuInfo, module: Option<String>) -> Vec<Row> {
    let driver = format!("CUDA {}{}", info.libraries.driver, module.map_or(String::new(), |m| format!(" ({m})")));
    let gpu = format!(
        "{}: {}, {} multiprocessors, {} MHz, memory {} MHz, {} GiB",
        info.name,
        info.arch,
        info.sms,
        info.clock_mhz,
        info.memory_clock_mhz,
        info.memory_bytes >> 30
    );
    let cublas = info.libraries.cublas.clone().ok_or_else(|| {
        "not found; install the CUDA toolkit or the wheel nvidia-cublas, or name its folder in LD_LIBRARY_PATH (only `bench --vs cublas` needs it)".to_string()
    });
    let fits =
        Descriptor::names().filter_map(|n| Descriptor::load(n).ok()).find(|d| devices::mismatch(info, d).is_none());
    let descriptor = fits.map(|d| format!("--gpu {}", d.name)).ok_or_else(|| {
        format!(
            "none of the built-in ones is of {} multiprocessors of {}; copy the nearest (`satune gpu show NAME > my.toml`), change its numbers, and give --gpu my.toml",
            info.sms, info.arch
        )
    });
    let clusters = match &info.max_clusters[..] {
        [] => Err("the driver does not say (clusters are of sm_90 and later, and of CUDA 11.8 and later)".to_string()),
        counts => {
            let each = [1, 2, 4, 8].iter().zip(counts).map(|(size, count)| format!("{count} of {size}"));
            Ok(format!("{} blocks at once", each.collect::<Vec<_>>().join(", ")))
        }
    };
    vec![
        ("clusters", clusters),
        ("driver", Ok(driver)),
        ("gpu", Ok(gpu)),
        ("cublas", cublas),
        ("descriptor", descriptor),
    ]
}
