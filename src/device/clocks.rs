//! Clocks, power and what holds the clocks back, as `nvidia-smi` tells them five times a second while measurements run.
//! Where it is missing nothing is told.
use crate::store::Conditions;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Milliseconds between samples.
const PERIOD: u64 = 200;
/// Samples that are kept: two minutes of them.
const KEPT: usize = 600;
/// Names of the field with the reasons, since drivers of 535 and before.
const REASONS: [&str; 2] = ["clocks_event_reasons.active", "clocks_throttle_reasons.active"];
/// NVML's bits of what holds clocks back (nvml.h, nvmlClocksEventReasons).
const BITS: [(u64, &str); 9] = [
    (0x1, "idle"),
    (0x2, "applications clocks"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
    (0x100, "display clocks"),
];

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    sm_mhz: f64,
    memory_mhz: f64,
    power_w: f64,
    temperature_c: f64,
    reasons: u64,
}

/// Reads a line of `nvidia-smi --format=csv,noheader,nounits`; a field that the GPU does not tell is no number.
fn read(line: &str) -> Option<Sample> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [sm, memory, power, temperature, reasons] = fields[..] else { return None };
    let number = |text: &str| text.parse().unwrap_or(f64::NAN);
    let reasons = u64::from_str_radix(reasons.trim_start_matches("0x"), 16).ok()?;
    let sample = Sample {
        sm_mhz: number(sm),
        memory_mhz: number(memory),
        power_w: number(power),
        temperature_c: number(temperature),
        reasons,
    };
    sample.sm_mhz.is_finite().then_some(sample)
}

type Shared = Arc<Mutex<Vec<(Instant, Sample)>>>;

/// A watch over a GPU's clocks. Dropping it ends it.
pub(crate) struct Clocks {
    samples: Shared,
    running: Arc<Mutex<Option<Child>>>,
}

impl Clocks {
    /// Begins to watch the GPU at a place on the bus; each sample is also written to `log`, as a line of CSV.
    pub fn start(bus: &str, log: Option<std::fs::File>) -> Clocks {
        let samples: Shared = Arc::default();
        let running: Arc<Mutex<Option<Child>>> = Arc::default();
        let (kept, child, bus) = (samples.clone(), running.clone(), bus.to_string());
        std::thread::spawn(move || watch(&bus, log, &kept, &child));
        Clocks { samples, running }
    }

    /// What was seen since `from`, or right before it: what is shorter than the time between two samples has the last one.
    pub fn since(&self, from: Instant) -> Option<Box<Conditions>> {
        let samples = self.samples.lock().ok()?;
        let early = from.checked_sub(Duration::from_millis(PERIOD + PERIOD / 2)).unwrap_or(from);
        let during: Vec<&Sample> = samples.iter().filter(|(at, _)| *at >= early).map(|(_, s)| s).collect();
        if during.is_empty() {
            return None;
        }
        let middle = |of: fn(&Sample) -> f64| {
            let values: Vec<f64> = during.iter().map(|s| of(s)).filter(|v| v.is_finite()).collect();
            (!values.is_empty()).then(|| crate::store::median(&values))
        };
        let reasons = during.iter().fold(0, |all, s| all | s.reasons);
        Some(Box::new(Conditions {
            sm_mhz: middle(|s| s.sm_mhz),
            memory_mhz: middle(|s| s.memory_mhz),
            power_w: middle(|s| s.power_w),
            temperature_c: middle(|s| s.temperature_c),
            held_back_by: BITS.iter().filter(|(bit, _)| reasons & bit != 0).map(|(_, n)| (*n).to_string()).collect(),
        }))
    }
}

impl Drop for Clocks {
    fn drop(&mut self) {
        if let Some(mut child) = self.running.lock().ok().and_then(|mut c| c.take()) {
            // Already gone is as good as killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn watch(bus: &str, mut log: Option<std::fs::File>, samples: &Shared, running: &Mutex<Option<Child>>) {
    if let Some(log) = &mut log {
        let _ = writeln!(log, "seconds,sm_mhz,memory_mhz,power_w,temperature_c,reasons");
    }
    let begun = Instant::now();
    for reasons in REASONS {
        let query = format!("--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,{reasons}");
        let mut command = Command::new("nvidia-smi");
        command.args([&query, "--format=csv,noheader,nounits", &format!("--loop-ms={PERIOD}")]);
        if !bus.is_empty() {
            command.arg(format!("--id={bus}"));
        }
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let Ok(mut child) = spawned else { return };
        let Some(output) = child.stdout.take() else { return };
        match running.lock() {
            Ok(mut slot) => *slot = Some(child),
            Err(_) => return,
        }
        let mut seen = false;
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let Some(sample) = read(&line) else { continue };
            seen = true;
            if let Some(log) = &mut log {
                let s = &sample;
                let of = (s.sm_mhz, s.memory_mhz, s.power_w, s.temperature_c);
                let at = begun.elapsed().as_secs_f64();
                let _ = writeln!(log, "{at:.2},{},{},{},{},{:#x}", of.0, of.1, of.2, of.3, s.reasons);
            }
            let Ok(mut list) = samples.lock() else { return };
            if list.len() == KEPT {
                list.remove(0);
            }
            list.push((Instant::now(), sample));
        }
        // A driver that does not know the field ends at once, without a sample; the next name is tried.
        if seen {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_nvidia_smi_are_read_and_told_as_medians_with_all_reasons() {
        assert_eq!(read("Field \"clocks_event_reasons.active\" is not a valid field to query."), None);
        let samples: Shared = Arc::default();
        let from = Instant::now();
        for line in ["1980, 3201, 400.5, 51, 0x0000000000000000", "1755, 3201, [N/A], 60, 0x0000000000000004"] {
            samples.lock().unwrap().push((from, read(line).unwrap()));
        }
        let clocks = Clocks { samples, running: Arc::default() };
        let seen = clocks.since(from).unwrap();
        assert_eq!((seen.sm_mhz, seen.memory_mhz), (Some(1867.5), Some(3201.0)));
        assert_eq!((seen.power_w, seen.temperature_c), (Some(400.5), Some(55.5)));
        assert_eq!(seen.held_back_by, ["power cap"]);
        assert_eq!(clocks.since(from + Duration::from_secs(9)), None);
    }
}
