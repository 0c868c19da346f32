//! Where the explorer's time and memory go, one problem per process:
//! `cargo bench --bench phases -- gemm:16384,16384,16384,f32`, or `gemm:4096,4096,4096,bf16@a100` for another GPU. Prints wall-clock seconds of saturation and extraction,
//! the memory after each, and the costs of what was found with all their digits, so that two versions can be compared.
use satune::explore::space;
use satune::operators;
use satune_extract::{best, Descriptor, Query};
use std::time::{Duration, Instant};

/// A line of the process's status, MB; 0 where the system does not say.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.trim_matches([':', '\t', ' ', 'k', 'B']).parse::<u64>().ok()).map_or(0, |kb| kb / 1024)
}

/// Processor seconds of this process so far; 0 where the system does not say. Linux counts 100 ticks per second.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: Vec<f64> = after.split_whitespace().filter_map(|t| t.parse().ok()).collect();
    // The first of these fields is a letter, so utime and stime are the 11th and 12th numbers.
    ticks.get(10).zip(ticks.get(11)).map_or(0.0, |(u, s)| (u + s) / 100.0)
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let names = if asked.is_empty() { vec!["gemm:1024,1024,1024,f32".to_string()] } else { asked };
    for name in names {
        let (operator, gpu) = name.split_once('@').unwrap_or((&name, "h200"));
        let gpu = Descriptor::load(gpu).expect("a built-in descriptor");
        let problem = operators::parse(operator).expect("an operator");
        let (start, before) = (Instant::now(), processor());
        let held = space(&problem, &gpu).expect("a space");
        let (saturate, after) = (start.elapsed().as_secs_f64(), processor());
        let resident = memory("VmRSS");
        let query = Query { k: 8, diverse: false, limit: Duration::from_secs(600), below_ms: f64::INFINITY };
        let found = best(&held, &gpu, query);
        println!(
            "{name}: {} nodes; saturate {saturate:.2} s ({:.2} cpu), then {resident} MB; extract {:.2} s ({:.2} cpu), \
             outer {:?}, proved {}; peak {} MB",
            held.report.nodes,
            after - before,
            found.time.as_secs_f64(),
            processor() - after,
            found.outer,
            found.proved,
            memory("VmHWM"),
        );
        let costs: Vec<String> = found.candidates.iter().map(|c| format!("{:?}", c.cost.ms)).collect();
        println!("  {}", costs.join(" "));
    }
}
